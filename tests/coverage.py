"""How often the 95% intervals hold the truth, by simulation: ``python -m tests.coverage`` (``make coverage``).

Each replication draws a study of transition gains with a known truth: a trajectory effect, skewed
transition effects, unequal numbers of complete transitions, strata of unequal size. The intervals are those of
the report (trajectory bootstrap; outcome-stratified draws for the AUC), percentile and its alternatives.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtr

from helpers.measuring.inference import METHODS, TrajectoryDraws, auc_draws, interval

STEPS = 11
MEAN = np.array([0.3, -0.2])  # mean gain of the reference and the alternative channel, nats
CROSS = 0.5  # correlation of the two channels' trajectory effects
TRAJECTORY_SD, TRANSITION_SD = 0.4, 0.6
FEWER = 0.5  # how strongly the number of complete transitions falls with the trajectory effect
STRATUM_SHIFT = np.array([0.6, 0.1, -0.5])  # added to the gains of a stratum, nats
STRATUM_SHARE = np.array([0.5, 0.3, 0.2])
APART = np.array([1.0, 0.5])  # how far successes' scores lie above failures', in standard deviations
QUANTITIES = ("mean", "contrast", "ratio mean, unequal counts", "equal-strata mean", "AUC difference")


def observed_counts(effect, uniform):
    """Complete transitions of each trajectory, 1 … STEPS: a binomial count whose chance falls with the effect."""
    chance = 1 / (1 + np.exp(FEWER * effect / TRAJECTORY_SD - 0.5))
    return 1 + (uniform < chance[..., None]).sum(axis=-1)


def gains(count, n, rng):
    """Gains of ``count`` studies at once.

    Returns
    -------
    values : (count, n, STEPS, 2) array, nats; seen : (count, n, STEPS) array of bool, complete in the
    unequal design; stratum : (count, n) array of int
    """
    effect = rng.standard_normal((count, n, 2))
    effect[..., 1] = CROSS * effect[..., 0] + np.sqrt(1 - CROSS**2) * effect[..., 1]
    skewed = rng.exponential(size=(count, n, STEPS, 2)) - 1  # mean 0, standard deviation 1, skewness 2
    values = MEAN + TRAJECTORY_SD * effect[:, :, None] + TRANSITION_SD * skewed
    kept = observed_counts(TRAJECTORY_SD * effect[..., 0], rng.random((count, n, STEPS - 1)))
    stratum = rng.choice(len(STRATUM_SHARE), size=(count, n), p=STRATUM_SHARE)
    return values, np.arange(STEPS) < kept[..., None], stratum


def truths(seed=99, size=400_000):
    """True value of each quantity; the ratio mean's, which has no closed form, from a large sample."""
    rng = np.random.default_rng(seed)
    effect = TRAJECTORY_SD * rng.standard_normal(size)
    kept = observed_counts(effect, rng.random((size, STEPS - 1)))
    ratio = MEAN[0] + (kept * effect).sum() / kept.sum()
    auc = ndtr(APART / np.sqrt(2))
    strata = MEAN[0] + STRATUM_SHIFT.mean()
    return dict(zip(QUANTITIES, (MEAN[0], MEAN[1] - MEAN[0], ratio, strata, auc[1] - auc[0]), strict=True))


def replicate(values, seen, stratum, draws, seed):
    """Points and replicates of the four means of one study: ``[(point, (draws,) array)]``."""
    n = len(stratum)
    ids = np.char.add("t", np.char.zfill(np.arange(n).astype(str), 4))
    names = np.repeat(ids, STEPS)
    unequal = np.where(seen, values[..., 0], np.nan)
    columns = [values[..., 0], values[..., 1] - values[..., 0], unequal]
    sample = TrajectoryDraws(ids, draws, seed)
    point, found = sample.means(np.stack([c.ravel() for c in columns], axis=1), names)
    shifted = (values[..., 0] + STRATUM_SHIFT[stratum][:, None]).ravel()
    strata_point, strata_found = sample.equal_strata_means(shifted, names, np.repeat(stratum, STEPS))
    return [*zip(point, found.T, strict=True), (strata_point[0], strata_found[:, 0])]


def auc_difference(n, draws, seed, rng):
    """Point and replicates of the difference of two correlated AUCs; n // 2 successes."""
    success = np.arange(n) < n // 2
    common = rng.standard_normal((n, 1))
    scores = np.sqrt(0.5) * (common + rng.standard_normal((n, 2))) + APART * success[:, None]
    point, found = auc_draws(scores, success, draws, seed)
    return point[1] - point[0], found[:, 1] - found[:, 0]


def holds(n, replications, draws, seed=7):
    """Whether each interval holds the truth, and how wide it is.

    Returns
    -------
    held, width : (replications, quantities, methods) arrays
    """
    rng, truth = np.random.default_rng([seed, n]), np.array(list(truths().values()))
    studies = zip(*gains(replications, n, rng), strict=True)
    held, width = np.zeros((2, replications, len(QUANTITIES), len(METHODS)))
    for r, study in enumerate(studies):
        found = [*replicate(*study, draws, r), auc_difference(n, draws, r, rng)]
        point, drawn = np.array([p for p, _ in found]), np.stack([d for _, d in found], axis=1)
        for m, method in enumerate(METHODS):
            low, high = interval(drawn, method=method, n=n, point=point)
            held[r, :, m] = (low <= truth) & (truth <= high)
            width[r, :, m] = high - low
    return held, width


def coverage(sizes=(6, 12, 20, 30, 50, 100), replications=1000, draws=2000):
    """One row a number of trajectories, quantity and method: coverage with its simulation error, mean width."""
    rows = []
    for n in sizes:
        held, width = holds(n, replications, draws)
        for q, quantity in enumerate(QUANTITIES):
            for m, method in enumerate(METHODS):
                share = held[:, q, m].mean()
                error = np.sqrt(share * (1 - share) / replications)
                rows.append({"n": n, "quantity": quantity, "method": method, "coverage": share,
                             "simulation_error": error, "width": width[:, q, m].mean(),
                             "replications": replications, "draws": draws})  # fmt: skip
    return pd.DataFrame(rows)


def verdict(table, level=0.95):
    """For each n, the method whose worst coverage over the quantities lies nearest to the level, as sentences."""
    away = (table["coverage"] - level).abs()
    worst = away.groupby([table["n"], table["method"]], sort=False).max().unstack()
    span = table.groupby(["n", "method"])["coverage"].agg(["min", "max"])
    lines = []
    for n, row in worst.iterrows():
        ranges = ", ".join("{} {:.1%} to {:.1%}".format(m, *span.loc[(n, m)]) for m in METHODS)
        lines.append(f"n = {n}: {row.idxmin()} is nearest to {level:.0%} over all quantities ({ranges}).")
    return lines


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__.split("\n\n")[0])
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[6, 12, 20, 30, 50, 100], help="numbers of trajectories")
    parser.add_argument("--folder", default="outputs/embedded")
    options = parser.parse_args(arguments)
    table = coverage(options.sizes, options.replications, options.draws)
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    table.to_csv(Path(options.folder) / "coverage.csv", index=False, float_format="%.6g", lineterminator="\n")
    print(table.pivot(index=["n", "quantity"], columns="method", values="coverage")[list(METHODS)]
          .loc[[(n, q) for n in options.sizes for q in QUANTITIES]].to_string(float_format="{:.3f}".format))  # fmt: skip
    print(f"\nsimulation error of a coverage: {table['simulation_error'].max():.3f} at most")
    print("\n".join(verdict(table)))
    print(f"written to {options.folder}/coverage.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
