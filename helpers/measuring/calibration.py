"""Calibration: does confidence match frequency? Losses, bins and their intervals.

All probabilities are floats in [0, 1]; outcomes are 0 or 1, or class numbers. NaN are refused, not skipped: a missing
belief has no loss, and leaving it out is the caller's decision.
"""

import math

import numpy as np
import pandas as pd
from sklearn import metrics

BINS = ("width", "mass")


def _pairs(confidence, outcome):
    confidence, outcome = np.asarray(confidence, float), np.asarray(outcome, float)
    if confidence.shape != outcome.shape or not confidence.size:
        raise ValueError(f"{confidence.size} confidences, {outcome.size} outcomes; one outcome a confidence is needed.")
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise ValueError("a confidence is a probability: a number between 0 and 1, none missing.")
    if not np.isin(outcome, (0, 1)).all():
        raise ValueError("an outcome is 0 or 1.")
    return confidence, outcome


def _beliefs(beliefs, truth):
    beliefs, truth = np.asarray(beliefs, float), np.asarray(truth, int)
    if beliefs.ndim != 2 or len(beliefs) != len(truth) or not len(truth):
        raise ValueError("beliefs are one row an example and one column a class, with one true class a row.")
    if not np.allclose(beliefs.sum(axis=1), 1) or (beliefs < 0).any():
        raise ValueError("a row of beliefs holds probabilities that sum to one, none missing.")
    return beliefs, truth


def log_loss(beliefs, truth):
    """Mean of -log p(true class), in nats. Beliefs (n, K), true classes (n,); infinite where the truth got 0."""
    beliefs, truth = _beliefs(beliefs, truth)
    if (beliefs[np.arange(len(truth)), truth] == 0).any():  # scikit-learn would put a small number for it
        return math.inf
    return float(metrics.log_loss(truth, beliefs, labels=range(beliefs.shape[1])))


def brier(confidence, outcome):
    """Mean squared error of a probability, in [0, 1]."""
    confidence, outcome = _pairs(confidence, outcome)
    return float(((confidence - outcome) ** 2).mean())  # scikit-learn's checks take too long for a bootstrap


def brier_multiclass(beliefs, truth):
    """Mean over examples of the squared errors summed over classes, in [0, 2]."""
    beliefs, truth = _beliefs(beliefs, truth)
    return float(metrics.brier_score_loss(truth, beliefs, labels=range(beliefs.shape[1]), scale_by_half=False))


def bin_numbers(confidence, bins=10, rule="width"):
    """Bin of each confidence: bins of equal width over [0, 1], or of equal mass (quantiles; ties stay together).

    A confidence on an edge belongs to the upper bin; scikit-learn's ``calibration_curve`` puts it into the lower one.
    """
    if rule not in BINS:
        raise ValueError(f"bins by {rule!r}; use one of {', '.join(BINS)}.")
    confidence = np.asarray(confidence, float)
    if rule == "width":
        return np.minimum((confidence * bins).astype(int), bins - 1)
    edges = np.quantile(confidence, np.arange(1, bins) / bins)
    return np.searchsorted(np.unique(edges), confidence, side="right")


def reliability(confidence, outcome, bins=10, rule="width"):
    """The reliability diagram, one row a filled bin: n, mean confidence, accuracy (frequency), gap (between them)."""
    filled, n, confidence, accuracy = _filled_bins(confidence, outcome, bins, rule)
    points = {"n": n, "confidence": confidence, "accuracy": accuracy, "gap": accuracy - confidence}
    return pd.DataFrame(points, index=pd.Index(filled, name="bin"))


def _filled_bins(confidence, outcome, bins, rule):
    """Number, size, mean confidence and mean outcome of every filled bin: arrays, for a bootstrap asks often."""
    confidence, outcome = _pairs(confidence, outcome)
    number = bin_numbers(confidence, bins, rule)
    n, filled = np.bincount(number), np.unique(number)
    means = (np.bincount(number, weights=values)[filled] / n[filled] for values in (confidence, outcome))
    return filled, n[filled], *means


def expected_calibration_error(confidence, outcome, bins=10, rule="width"):
    """Mean over examples of |accuracy - confidence| of their bin, in [0, 1]."""
    _, n, confidence, accuracy = _filled_bins(confidence, outcome, bins, rule)
    return float(n @ np.abs(accuracy - confidence) / n.sum())


def brier_parts(confidence, outcome, bins=10, rule="width"):
    """Murphy's split of the Brier score over bins, as a dict: reliability - resolution + uncertainty + within.

    Lower reliability and higher resolution are better; within is what the bins' width leaves over.
    """
    points, base = reliability(confidence, outcome, bins, rule), float(np.mean(outcome))
    weight, uncertainty = points["n"] / points["n"].sum(), base * (1 - base)
    cost = float((weight * points["gap"] ** 2).sum())
    resolution = float((weight * (points["accuracy"] - base) ** 2).sum())
    within = brier(confidence, outcome) - cost + resolution - uncertainty
    return {"reliability": cost, "resolution": resolution, "uncertainty": uncertainty, "within": within}


def conditional(frame, by, *, confidence="confidence", outcome="outcome", bins=10, shares=()):
    """Calibration within groups, beside the whole: an aggregate can average a warning away.

    ``frame`` has one row an example, the column ``by`` makes the groups, and ``shares`` are columns of true or false.
    Returns a DataFrame, one row a group and last "all": n, confidence, accuracy, brier, ece, and the shares.
    """
    rows = {}
    for name, part in [*frame.groupby(by, sort=True), ("all", frame)]:
        if len(part):
            p, y = part[confidence], part[outcome]
            rows[name] = {"n": len(part), "confidence": p.mean(), "accuracy": y.mean(), "brier": brier(p, y),
                          "ece": expected_calibration_error(p, y, bins), **part[list(shares)].mean()}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(by)


def bootstrapped(measure, confidence, outcome, trajectory_ids, draws):
    """A measure, (confidence, outcome) -> float, over bootstrap draws of trajectories: a (draws,) array.

    An example of a trajectory drawn twice counts twice.
    """
    confidence, outcome = _pairs(confidence, outcome)
    codes = draws.codes(trajectory_ids)
    ends = np.cumsum(np.bincount(codes, minlength=len(draws)))[:-1]
    rows = np.split(np.argsort(codes, kind="stable"), ends)  # of each trajectory
    out = []
    for counts in (row for block in draws.weights() for row in block.astype(int)):
        picked = np.concatenate([np.tile(r, c) for r, c in zip(rows, counts, strict=True) if c])
        out.append(measure(confidence[picked], outcome[picked]))
    return np.array(out)
