"""Which transitions stand out, and whether a chosen one exists."""

import numpy as np

from helpers.measuring.labels import LABELS_OF, read_labels
from helpers.measuring.reducers import lookup, transition_gains
from helpers.study.files import DataError
from helpers.study.traces import STEPS

SORTS = ("omega", "reversal", "retry")


def check_choice(study, trajectory_id, step, sort):
    """DataError where the trajectory, the step or the order does not exist; it lists what does."""
    if trajectory_id and trajectory_id not in study.trajectories:
        raise DataError(f"TRAJECTORY: no {trajectory_id!r}; there are {', '.join(study.trajectories)}.")
    if step not in range(len(STEPS) + 1):
        names = ", ".join(f"{i} {name}" for i, name in enumerate(STEPS, start=1))
        raise DataError(f"STEP: {step!r}; use 0 for the first of the list, or one of {names}.")
    if sort not in SORTS:
        raise DataError(f"SORT: {sort!r}; use one of {', '.join(SORTS)}.")


def chosen(listed, trajectory_id, step):
    """(trajectory_id, step) to inspect: what is set, the first of the list that fits where something is left open.

    DataError where nothing on the list fits.
    """
    if trajectory_id and step:
        return trajectory_id, step
    names, steps = (listed.index.get_level_values(level) for level in ("trajectory_id", "step"))
    fits = listed[((names == trajectory_id) | (not trajectory_id)) & ((steps == step) | (not step))]
    if fits.empty:
        raise DataError("nothing that is recorded fits; set TRAJECTORY and STEP, both, or another SORT.")
    return fits.index[0]


def readings(plan, table):
    """What is missing in recorded answers, by plan row: each such label with its reason and upper bound, as text.

    Parameters
    ----------
    plan : DataFrame with ``key`` and ``readout``; table : Arrow table of recordings
    """
    out = {}
    for index, place, readout in zip(plan.index, lookup(plan, table), plan["readout"], strict=True):
        answer = table.slice(place, 1).to_pylist()[0] if place >= 0 else {}
        labels = LABELS_OF[readout]
        found = read_labels(answer.get("tokens"), answer.get("logprobs"), labels)
        gone = zip(labels, found.reasons, found.bounds, strict=True)
        out[index] = "; ".join(f"{label}: {reason}" + (f", at most {bound:.2f} nats" if np.isfinite(bound) else "")
                               for label, reason, bound in gone if reason)  # fmt: skip
    return out


def standing_out(margins, waves, sort):
    """Complete transitions in the order in which they are worth a look, most striking first.

    Parameters
    ----------
    margins : DataFrame from ``endpoint_margins`` with a ``channel`` column (direct, generated), one wave
    waves : DataFrame from ``endpoint_margins`` of the retry's two waves; only ``retry`` reads it
    sort : str
        ``omega`` by the interaction's size; ``reversal`` by the smaller of two opposite gains; ``retry`` by the
        largest change of a gain between two waves.

    Returns
    -------
    DataFrame indexed by (trajectory_id, step): action, direct and generated gain, omega or change; nats
    """
    if sort == "retry":
        gains = transition_gains(waves, by=["template", "wave"])
        change = gains.T.groupby(level="template").agg(lambda g: g.max() - g.min() if g.notna().all() else np.nan).T
        out = change.rename(columns={"direct": "direct change", "buffered": "generated change"}).dropna()
        size = out.max(axis=1)
    else:
        out = transition_gains(margins, by="channel")[["direct", "generated"]].dropna()
        out["omega"] = out["generated"] - out["direct"]
        opposite = out["direct"] * out["generated"] < 0
        out = out[opposite] if sort == "reversal" else out
        size = out["omega"].abs() if sort == "omega" else out[["direct", "generated"]].abs().min(axis=1)
    out = out.loc[size.sort_values(ascending=False, kind="stable").index]
    out.insert(0, "action", [STEPS[step - 1] for step in out.index.get_level_values("step")])
    return out
