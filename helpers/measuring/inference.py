"""Trajectory-block bootstrap: draw trajectories once, use the same draws for everything.

A bootstrapped mean is (W @ sums) / (W @ counts), W the draw-by-trajectory counts, so a contrast of bootstrapped means
is the bootstrapped contrast. A trajectory drawn twice counts twice.
"""

import numpy as np
import pandas as pd
from scipy.stats import norm
from scipy.stats import t as student

DRAWS = 10_000
SEED = 20260716
METHODS = ("percentile", "expanded", "t")
_BLOCK = 1 << 22  # draws times trajectories that are held at once


class TooFewTrajectories(ValueError):
    """Uncertainty over trajectories needs at least two of them."""


def _blocks(draws, n):
    """Sizes of the blocks in which draws of ``n`` trajectories are made, so that memory is bounded."""
    rows = max(1, _BLOCK // n)
    return [min(rows, draws - start) for start in range(0, draws, rows)]


def _counts(rng, draws, n):
    """How often each of ``n`` trajectories is drawn in each of so many draws: (draws, n) array of float."""
    picks = rng.integers(n, size=(draws, n), dtype=np.int32)
    picks += np.arange(draws, dtype=np.int32)[:, None] * n
    return np.bincount(picks.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)


class TrajectoryDraws:
    """So many bootstrap draws of the given trajectories, shared by every quantity of a section.

    The order of ``trajectory_ids`` does not matter, and duplicates are one trajectory.
    """

    def __init__(self, trajectory_ids, draws=DRAWS, seed=SEED):
        ids = np.asarray(list(trajectory_ids), dtype=object)
        if pd.isna(ids).any():
            raise ValueError("a transition has no trajectory_id, so it belongs to no block; fix the trace.")
        self.ids, self.draws, self.seed = np.unique(ids.astype(str)), int(draws), seed
        if len(self.ids) < 2:
            said = f"{len(self.ids)} trajectory: an interval over trajectories needs at least two. Record more."
            raise TooFewTrajectories(said)

    def __len__(self):
        return len(self.ids)

    def codes(self, trajectory_ids):
        """Position of each given trajectory among the drawn ones; ValueError for an unknown one."""
        names = np.asarray(trajectory_ids).astype(str)
        codes = np.searchsorted(self.ids, names)
        unknown = (codes == len(self.ids)) | (self.ids[np.minimum(codes, len(self.ids) - 1)] != names)
        if unknown.any():
            raise ValueError(f"trajectory {str(names[unknown][0])!r} is not among the drawn trajectories.")
        return codes

    def weights(self):
        """Blocks of the (draws, n) matrix of counts, in order; the same on every call."""
        rng = np.random.default_rng(self.seed)
        for size in _blocks(self.draws, len(self)):
            yield _counts(rng, size, len(self))

    def means(self, values, trajectory_ids):
        """Observation-weighted means of q quantities and their bootstrap: a (q,) and a (draws, q) array.

        ``values`` (m,) or (m, q) are observations, ``trajectory_ids`` (m,) theirs; NaN are left out of their quantity.
        A draw that holds no observation of a quantity gives NaN.
        """
        sums, counts = self.totals(_columns(values), trajectory_ids)
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates = np.concatenate([(w @ sums) / (w @ counts) for w in self.weights()])
            return sums.sum(0) / counts.sum(0), replicates

    def totals(self, values, trajectory_ids):
        """Sums and counts of (m, q) values per trajectory, each (n, q); NaN are left out."""
        codes = self.codes(trajectory_ids)
        sums, counts = np.zeros((2, len(self), values.shape[1]))
        for q, column in enumerate(values.T):
            seen = ~np.isnan(column)
            sums[:, q] = np.bincount(codes[seen], column[seen], minlength=len(self))
            counts[:, q] = np.bincount(codes[seen], minlength=len(self))
        return sums, counts

    def equal_strata_means(self, values, trajectory_ids, strata):
        """Like :meth:`means`, but the mean of the strata's means: each stratum weighs the same.

        ``strata`` gives each observation's stratum (the reviewed target id). A draw without one of them is NaN.
        """
        values, strata = _columns(values), np.asarray(strata)
        only = [np.where((strata == s)[:, None], values, np.nan) for s in np.unique(strata)]
        point, replicates = self.means(np.concatenate(only, axis=1), trajectory_ids)  # one pass over the draws
        shape = (len(only), values.shape[1])
        return point.reshape(shape).mean(axis=0), replicates.reshape(-1, *shape).mean(axis=1)


def _columns(values):
    values = np.asarray(values, float)
    return values[:, None] if values.ndim == 1 else values


def interval(replicates, level=0.95, *, method="percentile", n=None, point=None):
    """Interval over the first axis of bootstrapped values, NaN replicates left out: arrays low, high.

    There is none (NaN) where ``n`` is below two, and where the replicates are all alike: then all observed values were
    the same, and a bootstrap cannot tell how others would differ.

    Parameters
    ----------
    replicates : (draws, ...) array
    method : ``percentile``, the quantiles of the replicates; ``expanded``, the same at wider levels; or ``t``, point ±
        Student's t times the replicates' standard deviation times sqrt(n / (n - 1))
    n : int, number of resampled trajectories, of both outcomes together for an AUC; ``percentile`` needs none
    point : (...) array, optional, the centre of ``t``; the replicates' mean without it

    Notes
    -----
    A bootstrap over few units is too narrow: its variance is (n - 1) / n of the unbiased one, and its tails are
    normal instead of Student's. ``expanded`` corrects both in the level, to norm.cdf(sqrt(n / (n - 1)) t_{n-1}(tail)),
    and keeps the replicates' asymmetry (Hesterberg 2015). ``make coverage`` compares the three.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r}; use one of {', '.join(METHODS)}.")
    replicates, tail = np.asarray(replicates, float), (1 - level) / 2
    replicates = np.where(np.isnan(replicates).all(axis=0), 0.0, replicates)  # no value at all: alike, so no interval
    if method != "percentile":
        if n is None:
            raise ValueError(f"method {method!r} needs n, the number of resampled trajectories.")
        if n < 2:
            return tuple(np.full((2, *replicates.shape[1:]), np.nan))
        reach = student.ppf(1 - tail, n - 1) * np.sqrt(n / (n - 1))
        if method == "t":
            centre = np.nanmean(replicates, axis=0) if point is None else np.asarray(point, float)
            half = reach * np.nanstd(replicates, axis=0)
            return _with_spread(replicates, centre - half, centre + half)
        tail = norm.cdf(-reach)
    return _with_spread(replicates, *np.nanquantile(replicates, [tail, 1 - tail], axis=0))


def _with_spread(replicates, low, high):
    least, most = np.fmin.reduce(replicates), np.fmax.reduce(replicates)
    alike = most - least <= 1e-12 * np.maximum(1, np.abs(most))  # equal means of other sums may differ in the last bit
    return tuple(np.where(alike, np.nan, np.stack([low, high])))


def holders(values, trajectory_ids):
    """How many trajectories hold a value that is not NaN; for several columns, in any of them."""
    return len(np.unique(np.asarray(trajectory_ids).astype(str)[~np.isnan(_columns(values)).all(axis=1)]))


def means_by(draws, values, trajectory_ids, groups, order, *, level=0.95, method="percentile"):
    """Means of each quantity within groups of observations, over the shared draws.

    ``values`` is a DataFrame, one column a quantity, ``groups`` gives each row's group, ``order`` lists (group, name).
    Returns one row a group and quantity: group, quantity, n (rows), trajectories (that hold one), mean, low, high.
    """
    rows = []
    for group, name in order:
        part = np.where((groups == group)[:, None], values, np.nan)
        point, replicates = draws.means(part, trajectory_ids)
        behind = holders(part, trajectory_ids)
        low, high = interval(replicates, level, method=method, n=behind)
        count = int((groups == group).sum())
        of_each = zip(values.columns, point, low, high, strict=True)
        rows += [(name, quantity, count, behind, *numbers) for quantity, *numbers in of_each]
    return pd.DataFrame(rows, columns=["group", "quantity", "n", "trajectories", "mean", "low", "high"])


def leave_one_out(values, trajectory_ids):
    """Mean without each trajectory in turn: array over trajectories that hold a value, in sorted order."""
    values = np.asarray(values, float)
    kept = ~np.isnan(values)
    _, codes = np.unique(np.asarray(trajectory_ids).astype(str)[kept], return_inverse=True)
    sums, counts = np.bincount(codes, values[kept]), np.bincount(codes)
    if len(counts) < 2:
        raise TooFewTrajectories(f"{len(counts)} trajectory: leaving it out leaves nothing. Record more.")
    return (sums.sum() - sums) / (counts.sum() - counts)


def auc(scores, outcomes):
    """Probability that a success outranks a failure; ties count half. NaN where a score is missing."""
    scores, outcomes = np.asarray(scores, float), _both_outcomes(outcomes)
    return float(_win_shares(scores[outcomes], scores[~outcomes], np.ones((1, (~outcomes).sum()))).mean())


def _both_outcomes(outcomes):
    if pd.isna(np.asarray(outcomes, dtype=object)).any():
        raise ValueError("a trajectory has no stored outcome; leave it out before ranking.")
    outcomes = np.asarray(outcomes, bool)
    if outcomes.all() or not outcomes.any():
        raise ValueError("an AUC needs both outcomes; every trajectory here has the same.")
    return outcomes


def _win_shares(success, failure, weights):
    """Share of the failures that each success outranks, ties half, (draws, n_s); NaN where a score is missing.

    ``success`` (n_s,) and ``failure`` (n_f,) are scores, ``weights`` (draws, n_f) say how often each failure is drawn.
    """
    if np.isnan(success).any() or np.isnan(failure).any():
        return np.full((len(weights), len(success)), np.nan)
    order = np.argsort(failure)
    below = np.zeros((len(weights), len(failure) + 1))
    np.cumsum(weights[:, order], axis=1, out=below[:, 1:])
    low, high = (np.searchsorted(failure[order], success, side) for side in ("left", "right"))
    return (below[:, low] + below[:, high]) / (2 * below[:, -1:])


def auc_draws(scores, outcomes, draws=DRAWS, seed=SEED):
    """AUCs of score columns (n, q) over the same outcome-stratified draws: a (q,) and a (draws, q) array.

    Drawn in blocks, so memory is bounded; time is linear in trajectories times draws.
    """
    scores, outcomes = np.asarray(scores, float), _both_outcomes(outcomes)
    pairs = [(column[outcomes], column[~outcomes]) for column in scores.T]
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2)]
    sizes, replicates = (int(outcomes.sum()), int((~outcomes).sum())), []
    for block in _blocks(draws, len(outcomes)):
        success, failure = (_counts(rng, block, size) for rng, size in zip(streams, sizes, strict=True))
        wins = [(success * _win_shares(s, f, failure)).sum(axis=1) / sizes[0] for s, f in pairs]
        replicates.append(np.stack(wins, axis=1))
    return np.array([auc(column, outcomes) for column in scores.T]), np.concatenate(replicates)
