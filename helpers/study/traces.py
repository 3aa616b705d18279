"""Trajectories: x0 and one JSON merge patch (RFC 7396) per step, or full before/after states."""

import copy
import json
import math
import re
from dataclasses import dataclass

from helpers.study.files import DataError, read_jsonl
from helpers.study.projection import EVIDENCE_FIELDS

STEPS = (
    "classify", "plan", "validate_plan", "retrieve", "extract", "synthesize",
    "audit", "revise", "verify", "post_audit", "finalize",
)  # fmt: skip
MODES = ("llm", "deterministic", "fallback")
_NAME = re.compile(r"[\w.:/@+-]+")  # shown in tables and findings as it is
RETRIEVE = STEPS.index("retrieve")  # the step that takes state 3 to state 4


@dataclass(frozen=True)
class Trajectory:
    """One frozen trajectory: ``states[k]`` is x_k, ``steps[k]`` leads from x_k to x_{k+1}.

    Dictionaries keep their keys in the order in which they were last written.
    """

    trajectory_id: str
    task_id: str
    states: tuple
    steps: tuple
    final_score: float | None
    success: bool | None


def apply_patch(state, patch):
    """Merge patch of RFC 7396; a key that is written moves to the end of its object.

    The order makes consecutive states share their beginning, and so do their prompts.
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(state) if isinstance(state, dict) else {}
    for key, value in patch.items():
        old = merged.pop(key, None)
        if value is not None:
            merged[key] = apply_patch(old, value)
    return merged


def make_patch(before, after):
    """The merge patch that leads from one JSON object to another."""
    patch = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key in before and _same(before[key], value):
            continue
        both = isinstance(value, dict) and isinstance(before.get(key), dict)
        patch[key] = make_patch(before[key], value) if both else value
    return patch


def _same(one, other):
    """Whether two JSON values are written alike; Python holds 1 and true, and 0 and false, for equal."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _without_nulls(value):
    """An object without its null fields, at any depth of objects: a merge patch cannot tell null from absent."""
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}


def _object(value, where):
    if not isinstance(value, dict):
        raise DataError(f"{where} is {type(value).__name__}, expected a JSON object.")
    return value


def _step_states(row, where):
    """States x0 … xn of one JSON row, from patches or from full before/after states."""
    first = row["steps"][0] if row.get("steps") else {}
    if "x0" not in row and "before" not in first:
        raise DataError(f"{where}: neither x0 nor a full before-state in the first step.")
    start = row["x0"] if "x0" in row else first["before"]
    states = [_without_nulls(_object(start, f"{where}: the first state"))]
    for number, step in enumerate(row.get("steps", []), start=1):
        here = f"{where}, step {number}"
        if "patch" in step:
            patch = _object(step["patch"], f"{here}: its patch")
        elif "after" in step:
            before = _without_nulls(_object(step.get("before", states[-1]), f"{here}: its before-state"))
            if not _same(before, states[-1]):
                raise DataError(f"{here}: its before-state is not the state after step {number - 1}.")
            patch = make_patch(states[-1], _without_nulls(_object(step["after"], f"{here}: its after-state")))
        else:
            raise DataError(f"{here} ({step.get('action')}): no after-state and no patch; export it again.")
        states.append(apply_patch(states[-1], patch))
    for number, state in enumerate(states):
        for name in EVIDENCE_FIELDS:
            if not isinstance(state.get(name, []), list):
                raise DataError(f"{where}: state {number}: {name} is {type(state[name]).__name__}, expected a list.")
    return states


def parse_trajectory(row, where="trajectory"):
    """One JSON row as a Trajectory; DataError names the file, line and step."""
    name = row.get("trajectory_id")
    where = f"{where} ({name or 'no trajectory_id'})"
    if not name or not row.get("task_id"):
        raise DataError(f"{where}: trajectory_id and task_id are needed; trajectories are what the bootstrap draws.")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise DataError(f"{where}: a trajectory_id is text that holds letters, digits and . _ - : / @ + only; rename it.")
    final_score, success = _outcome(row, where)
    steps = row.get("steps") or []
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise DataError(f"{where}: steps is a list of JSON objects.")
    for number, (step, expected) in enumerate(zip(steps, STEPS, strict=False), start=1):
        if step.get("action") != expected:
            raise DataError(
                f"{where}, step {number}: action {step.get('action')!r}, expected {expected!r}. "
                f"The steps are {', '.join(STEPS)}."
            )
        if step.get("mode", "deterministic") not in MODES:
            raise DataError(f"{where}, step {number}: mode {step['mode']!r} is not one of {', '.join(MODES)}.")
    if len(steps) != len(STEPS):
        raise DataError(f"{where}: {len(steps)} steps, expected {len(STEPS)}.")
    return Trajectory(name, row["task_id"], tuple(_step_states(row, where)), tuple(steps), final_score, success)


def _outcome(row, where):
    """Final score and success of one JSON row: success is 1{final_score = 1}, None where neither is known."""
    score, success = row.get("final_score"), row.get("success")
    if not (success is None or isinstance(success, bool)):
        raise DataError(f"{where}: success is {success!r}; it is true, false, or left out where it is not known.")
    if score is None:
        return None, success
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise DataError(f"{where}: final_score is {score!r}; it is a number, or left out where it is not known.")
    if success is not None and success != (score == 1):
        raise DataError(
            f"{where}: final_score is {score:g} and success {str(success).lower()}, but success means a final score of 1; "
            "leave final_score out where success is judged otherwise."
        )
    return score, score == 1


def load_trajectories(path, tasks=None):
    """Trajectories of a JSONL file in file order; ids are unique and, given tasks, known."""
    rows = read_jsonl(path)
    found = [parse_trajectory(row, f"{path}, line {number}") for number, row in enumerate(rows, start=1)]
    known = {task["task_id"]: task for task in tasks} if tasks is not None else None
    seen = set()
    for trajectory in found:
        if trajectory.trajectory_id in seen:
            raise DataError(f"{path}: trajectory_id {trajectory.trajectory_id!r} appears twice.")
        seen.add(trajectory.trajectory_id)
        if known is not None and trajectory.task_id not in known:
            raise DataError(f"{path}: trajectory {trajectory.trajectory_id!r} belongs to unknown task {trajectory.task_id!r}.")
        if known is not None:
            _keeps_the_question(trajectory, known[trajectory.task_id]["question"], path)
    return found


def _keeps_the_question(trajectory, question, path):
    """DataError where a state does not hold its task's question: some prompts show it by the state alone."""
    written = json.dumps(question, ensure_ascii=False)[1:-1]
    for number, state in enumerate(trajectory.states):
        if state.get("question") != question and written not in json.dumps(state, ensure_ascii=False):
            raise DataError(
                f"{path}: trajectory {trajectory.trajectory_id!r}: state {number} does not hold the question of task "
                f"{trajectory.task_id!r}, so the evaluator would not see it; put it into x0 as \"question\" and leave it there."
            )


def acquired_artifact(trajectory):
    """Whether the retrieve step added an evidence artifact."""
    before, after = trajectory.states[RETRIEVE], trajectory.states[RETRIEVE + 1]
    return len(after.get("artifacts") or []) > len(before.get("artifacts") or [])
