"""Four-arm ablation of the actor: planning and reflection, neither, each alone, and both."""

import itertools
import re

import numpy as np
import pandas as pd

from helpers.actor.judges import violations
from helpers.actor.workflow import Workflow, evidence_and_answer
from helpers.measuring.inference import TrajectoryDraws, interval
from helpers.study.traces import parse_trajectory

# What each arm does without.
_ARMS = {"neither": ("planning", "reflection"), "planning": ("reflection",), "reflection": ("planning",), "both": ()}
_COSTS = ["calls", "prompt_tokens", "completion_tokens", "seconds"]
_CONFIDENCE_TOKENS = 6


def _confidence_prompt(state):
    """The question for the actor's stated confidence in its own answer."""
    return (
        "How likely is it, in percent, that the evidence supports every statement of this answer? Reply with one "
        f"number from 0 to 100.\n{evidence_and_answer(state)}\nPercent:"
    )


def _stated_confidence(text):
    """The first number of a reply as a probability; NaN where there is none from 0 to 100."""
    match = re.search(r"\d+(?:\.\d+)?", text)
    return float(match.group(0)) / 100 if match and float(match.group(0)) <= 100 else np.nan


def run_arms(tasks, retriever, model, setting):
    """Every arm on every task, one row each.

    Parameters
    ----------
    tasks : iterable of task dicts
    model : callable (prompt, max_tokens) -> str with ``meter()``, running totals of its usage
    setting : dict, the Workflow's thresholds

    Returns
    -------
    DataFrame: task_id, family, arm, success (0 or 1), partial (the audit's score), calls, prompt_tokens,
    completion_tokens, seconds (NaN where the endpoint did not tell), hard (violations), confidence (stated; NaN
    where no number was given), trajectory
    """
    rows = []
    for task, (arm, left_out) in itertools.product(tasks, _ARMS.items()):
        frozen = Workflow(retriever, model, **setting, leave_out=left_out, meter=model.meter).run(task)
        trajectory = parse_trajectory(frozen)
        used = pd.DataFrame([step["cost"] for step in frozen["steps"]]).reindex(columns=_COSTS).sum(min_count=1)
        said = model(_confidence_prompt(trajectory.states[-1]), _CONFIDENCE_TOKENS)
        rows.append({
            "task_id": task["task_id"], "family": task["family"], "arm": arm, "success": float(frozen["success"]),
            "partial": frozen["final_score"], **used, "hard": len(violations(trajectory)),
            "confidence": _stated_confidence(said), "trajectory": trajectory,
        })  # fmt: skip
    return pd.DataFrame(rows)


def effects(frame, value, *, draws=10_000, seed=20260716, level=0.95, method="percentile"):
    """Main effects and interaction of the two components on a column of :func:`run_arms`, paired by task.

    With N, P, R, B for the arms: planning = (P + B - N - R) / 2, reflection = (R + B - N - P) / 2, interaction =
    B - P - R + N, over the tasks that all four arms ran, which are drawn with replacement. Returns a DataFrame indexed
    by effect (planning, reflection, interaction): estimate, low, high, n (tasks).
    """
    wide = frame.pivot(index="task_id", columns="arm", values=value)[list(_ARMS)].dropna()
    n, p, r, b = (wide[arm].to_numpy() for arm in _ARMS)
    table = np.column_stack([(p + b - n - r) / 2, (r + b - n - p) / 2, b - p - r + n])
    ids = wide.index.to_numpy()
    point, replicates = TrajectoryDraws(ids, draws, seed).means(table, ids)
    low, high = interval(replicates, level, method=method, n=len(wide), point=point)
    index = pd.Index(["planning", "reflection", "interaction"], name="effect")
    return pd.DataFrame({"estimate": point, "low": low, "high": high, "n": len(wide)}, index=index)
