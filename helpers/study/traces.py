"""Trajectories: x0 and one JSON merge patch (RFC 7396) per step, or full before/after states."""

import copy
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from helpers.study.checks import Row, Text, problems
from helpers.study.files import DataError, read_jsonl
from helpers.study.projection import EVIDENCE_FIELDS, Projected

STEPS = (
    "classify", "plan", "validate_plan", "retrieve", "extract", "synthesize",
    "audit", "revise", "verify", "post_audit", "finalize",
)  # fmt: skip
MODES = ("llm", "deterministic", "fallback")
RETRIEVE = STEPS.index("retrieve")  # the step that takes state 3 to state 4


@dataclass(frozen=True)
class Trajectory:
    """``states[k]`` is x_k, its keys in the order of their last writing; ``steps[k]`` leads from x_k to x_{k+1}."""

    trajectory_id: str
    task_id: str
    states: tuple
    steps: tuple
    final_score: float | None
    success: bool | None

    @cached_property
    def projected(self):
        """What evaluators and generators read: the text of x0 … xn, each made when it is first looked at."""
        return Projected(self.states, self.steps)


def apply_patch(state, patch):
    """Merge patch of RFC 7396; a written key moves to the end, so that consecutive prompts share their beginning."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(state) if isinstance(state, dict) else {}
    for key, value in patch.items():
        old = merged.pop(key, None)
        if value is not None:
            merged[key] = apply_patch(old, value)
    return merged


def _make_patch(before, after):
    """The merge patch that leads from one JSON object to another."""
    patch = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key in before and _same(before[key], value):
            continue
        both = isinstance(value, dict) and isinstance(before.get(key), dict)
        patch[key] = _make_patch(before[key], value) if both else value
    return patch


def _same(one, other):
    """Whether two JSON values are written alike; Python holds 1 and true, and 0 and false, for equal."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _without_nulls(value):
    """An object without its null fields, at any depth of objects: a merge patch cannot tell null from absent."""
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}


class _Step(Row):
    action: Text
    mode: Literal[*MODES] = "deterministic"
    patch: dict = None
    before: dict = None
    after: dict = None


class _Line(Row):
    trajectory_id: Annotated[str, StringConstraints(pattern=r"^[\w.:/@+-]+$")] = Field(
        description="trajectories are what the bootstrap draws, and tables show their names, so a trajectory_id is "
        "text that holds letters, digits and . _ - : / @ + only; rename it"
    )
    task_id: Text
    x0: dict = None
    steps: list[_Step] = []
    final_score: float | None = Field(None, description="it is a number, or left out where it is not known")
    success: bool | None = Field(None, description="it is true, false, or left out where it is not known")

    @model_validator(mode="after")
    def _together(self):
        for number, (step, expected) in enumerate(zip(self.steps, STEPS, strict=False), start=1):
            if step.action != expected:
                said = f"action {step.action!r}, expected {expected!r}. The steps are {', '.join(STEPS)}."
                raise ValueError(f"step {number}: {said}")
        if len(self.steps) != len(STEPS):
            raise ValueError(f"{len(self.steps)} steps, expected {len(STEPS)}.")
        if None not in (self.final_score, self.success) and self.success != (self.final_score == 1):
            raise ValueError(
                f"final_score is {self.final_score:g} and success {str(self.success).lower()}, but success means a "
                "final score of 1; leave final_score out where success is judged otherwise."
            )
        return self


def parse_trajectory(row, where="trajectory"):
    """One JSON row as a Trajectory; DataError names the file, line and step."""
    where = f"{where} ({row.get('trajectory_id') or 'no trajectory_id'})"
    if found := problems(_Line, row):
        raise DataError("\n".join(f"{where}: {said}" for said in found))
    score, success = row.get("final_score"), row.get("success")
    success = success if score is None else score == 1
    states = tuple(_states(row, where))
    return Trajectory(row["trajectory_id"], row["task_id"], states, tuple(row["steps"]), score, success)


def _states(row, where):
    """States x0 … xn of one JSON row, from patches or from full before/after states."""
    steps = row["steps"]
    if "x0" not in row and "before" not in steps[0]:
        raise DataError(f"{where}: neither x0 nor a full before-state in the first step.")
    states = [_without_nulls(row["x0"] if "x0" in row else steps[0]["before"])]
    for number, step in enumerate(steps, start=1):
        here, last = f"{where}, step {number}", states[-1]
        if "patch" not in step and "after" not in step:
            raise DataError(f"{here} ({step['action']}): no after-state and no patch; export it again.")
        if "patch" not in step and not _same(_without_nulls(step.get("before", last)), last):
            raise DataError(f"{here}: its before-state is not the state after step {number - 1}.")
        patch = step["patch"] if "patch" in step else _make_patch(last, _without_nulls(step["after"]))
        states.append(apply_patch(last, patch))
    for number, state in enumerate(states):
        for name in EVIDENCE_FIELDS:
            if not isinstance(state.get(name, []), list):
                raise DataError(f"{where}: state {number}: {name} is {type(state[name]).__name__}, expected a list.")
    return states


def load_trajectories(path, tasks=None):
    """Trajectories of a JSONL file in file order; ids are unique and, given tasks, known and their questions kept."""
    found = {}
    known = None if tasks is None else {task["task_id"]: task for task in tasks}
    for number, row in enumerate(read_jsonl(path), start=1):
        trajectory = parse_trajectory(row, f"{path}, line {number}")
        name = trajectory.trajectory_id
        if name in found:
            raise DataError(f"{path}: trajectory_id {name!r} appears twice.")
        if known is not None and trajectory.task_id not in known:
            raise DataError(f"{path}: trajectory {name!r} belongs to unknown task {trajectory.task_id!r}.")
        if known is not None:
            _keeps_the_question(trajectory, known[trajectory.task_id]["question"], path)
        found[name] = trajectory
    return list(found.values())


def _keeps_the_question(trajectory, question, path):
    """DataError where a state does not hold its task's question: some prompts show it by the state alone."""
    written = json.dumps(question, ensure_ascii=False)[1:-1]
    for number, state in enumerate(trajectory.states):
        if state.get("question") != question and written not in json.dumps(state, ensure_ascii=False):
            raise DataError(
                f"{path}: trajectory {trajectory.trajectory_id!r}: state {number} does not hold the question of task "
                f"{trajectory.task_id!r}, so the evaluator would not see it; "
                'put it into x0 as "question" and leave it there.'
            )


def acquired_artifact(trajectory):
    """Whether the retrieve step added an evidence artifact."""
    before, after = trajectory.states[RETRIEVE], trajectory.states[RETRIEVE + 1]
    return len(after.get("artifacts") or []) > len(before.get("artifacts") or [])
