"""Reducers: label log-probabilities to energies, energies to margins, margins to contrasts.

Arrays in, arrays out. NaN means missing and spreads; nothing is imputed, clipped or defaulted.
Equation numbers are those of the ASV paper.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import softmax
from scipy.stats import trim_mean

from helpers.channels.plan import CELL, LAYOUTS
from helpers.study.tasks import K

_ENDPOINT = [name for name in CELL if name not in ("layout", "assessed")]
LAYOUT_MARGINS = tuple(f"layout_{s}" for s in LAYOUTS)


class IncompleteFace(ValueError):
    """An interaction was asked for without all of its four corners."""


def align_labels(values, layouts):
    """Label log-probabilities (n, K), columns A to D, as candidate energies (n, K), nats.

    In cyclic layout s, of which ``layouts`` (n,) gives one a row, candidate j stands at label (j + s) mod K.
    """
    slots = (np.arange(K) + np.asarray(layouts)[:, None]) % K
    return np.take_along_axis(np.asarray(values, float), slots, axis=1)


def binary_energy(yes, no):
    """Candidate energy of the binary readout, L(Yes) - L(No), in nats (Equation 7)."""
    return np.asarray(yes, float) - np.asarray(no, float)


def layout_reduction(energies, tau=1.0):
    """Average candidate energies (..., S, K) over S cyclic layouts, centred within each (Equation 8).

    Returns (..., K), nats: (tau / S) sum over s of [l_s(c) - mean over c of l_s(c)]; NaN if any part is missing.
    ``tau`` is the sampling temperature; it applies only where log-probabilities are temperature-scaled.
    """
    return tau * _centred(energies).mean(axis=-2)


def _centred(energies):
    energies = np.asarray(energies, float)
    return energies - energies.mean(axis=-1, keepdims=True)


def latin_square_shares(energies):
    """What the label log-probabilities of an endpoint follow: the candidate, its letter, or neither.

    Over the four cyclic layouts every candidate stands once at every letter, so an endpoint's 16 values, centred
    within each layout, are a Latin square and their sum of squares splits exactly. Takes energies (n, K, K), nats, by
    layout and candidate; returns (n, 3): shares of candidate, letter and rest, NaN where a value is missing.
    """
    centred = _centred(energies)
    size = centred.shape[-1]
    letter = (np.arange(size) + np.arange(size)[:, None]) % size  # letter[s, j]: where candidate j stands in layout s
    at_letter = np.take_along_axis(centred, np.argsort(letter, axis=1)[None], axis=-1)
    total = (centred**2).sum(axis=(-2, -1))
    parts = [size * (x.mean(axis=-2) ** 2).sum(axis=-1) for x in (centred, at_letter)]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([*parts, total - parts[0] - parts[1]], axis=-1) / total[..., None]


def target_margin(energies, target):
    """Log odds of the reviewed target against all other candidates (Equation 2).

    Parameters
    ----------
    energies : (..., K) array, candidate energies in nats; a constant added to all K cancels
    target : (...) array of int, position of the reviewed target on the last axis

    Returns
    -------
    (...) array, nats: L_g - log(sum of exp(L_c), c != g); NaN where any of the K is missing
    """
    return _margin(energies, target, lambda rest: np.logaddexp.reduce(rest, axis=-1))


def competitor_margin(energies, target):
    """Target energy minus the strongest competitor's, in nats (Equation 3 of the first version)."""
    return _margin(energies, target, lambda rest: rest.max(axis=-1))


def _margin(energies, target, against):
    energies, target = np.asarray(energies, float), np.asarray(target)[..., None]
    own = np.take_along_axis(energies, target, axis=-1)[..., 0]
    rest = np.where(np.arange(energies.shape[-1]) == target, -np.inf, energies)
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(energies).any(axis=-1), np.nan, own - against(rest))


def wave_reduction(margins, weights=None):
    """Weighted mean of margins over waves on the last axis (Equation 6); equal weights by default."""
    margins = np.asarray(margins, float)
    weights = np.full(margins.shape[-1], 1 / margins.shape[-1]) if weights is None else np.asarray(weights, float)
    if (weights < 0).any() or not np.isclose(weights.sum(), 1):
        raise ValueError("wave weights must be non-negative and sum to one.")
    return margins @ weights


def gain(after, before):
    """Agent Step Value of one channel, F(x+) - F(x-), in nats (Equation 3)."""
    return np.asarray(after, float) - np.asarray(before, float)


def interaction(after_1, after_0, before_1, before_0):
    """State-by-channel interaction F11 - F10 - F01 + F00, in nats (Equation 1).

    The first index is the state (after = 1), the second the channel. IncompleteFace where a corner is None or, for a
    single transition, NaN: without it the interaction is not identified (Proposition 1). In an array a NaN corner
    leaves its own transition NaN.
    """
    corners = {"F11": after_1, "F10": after_0, "F01": before_1, "F00": before_0}
    absent = [name for name, value in corners.items() if value is None or (np.ndim(value) == 0 and np.isnan(value))]
    if absent:
        raise IncompleteFace(
            f"the interaction needs all four corners of the face; {', '.join(absent)} missing. Two gains are not "
            "a substitute: an unobserved corner can change the interaction by any amount."
        )
    return gain(after_1, before_1) - gain(after_0, before_0)


def diagonal(after_1, before_0):
    """F1(x+) - F0(x-): reference gain, channel shift and interaction in one number. NOT identified."""
    return gain(after_1, before_0)


def symmetric_allocation(before_before, after_before, before_after, after_after):
    """Allocation of the diagonal change of the retrieval face to state and view (Equation 4), in nats.

    From F(x-, r-), F(x+, r-), F(x-, r+), F(x+, r+), state first, view second, to C_x and C_r, which add up to
    F(x+, r+) - F(x-, r-).
    """
    state = gain(after_before, before_before) + gain(after_after, before_after)
    view = gain(before_after, before_before) + gain(after_after, after_before)
    return 0.5 * state, 0.5 * view


def disagrees(gain_1, gain_0):
    """1.0 where two gains have opposite signs, else 0.0; NaN where one is missing. Zeros do not disagree."""
    product = np.asarray(gain_1, float) * np.asarray(gain_0, float)
    return np.where(np.isnan(product), np.nan, (product < 0).astype(float))


def disagrees_where_nonzero(gain_1, gain_0):
    """Like :func:`disagrees`, but NaN where either gain is exactly zero: a rate over nonzero paired moves."""
    product = np.asarray(gain_1, float) * np.asarray(gain_0, float)
    return np.where(product == 0, np.nan, disagrees(gain_1, gain_0))


def sign_shares(gains):
    """Shares of positive and of negative gains of each transition: (n, 2) from (n,) gains or (n, waves) of them."""
    gains = np.asarray(gains, float).reshape(len(gains), -1)
    return np.column_stack([(gains > 0).mean(axis=1), (gains < 0).mean(axis=1)])


def chance_disagreement(up_1, down_1, up_0, down_0):
    """Share of opposite signs, were two gains unrelated, from the shares of positive and negative ones of each."""
    return up_1 * down_0 + down_1 * up_0


class SignCounts(NamedTuple):
    """How two gains' signs relate over complete transitions; exact zeros are their own class."""

    pos_neg: int
    neg_pos: int
    same: int
    zero: int

    @property
    def disagree(self):
        """Transitions with opposite signs."""
        return self.pos_neg + self.neg_pos


def sign_counts(gain_0, gain_1):
    """SignCounts of a reference gain and an alternative gain; pairs with a missing gain are left out."""
    a, b = np.sign(np.asarray(gain_0, float)), np.sign(np.asarray(gain_1, float))
    kinds = (a > 0) & (b < 0), (a < 0) & (b > 0), a * b > 0, a * b == 0
    return SignCounts(*(int(kind.sum()) for kind in kinds))


def retry_disagreement(reference, alternative):
    """Cross-channel and same-channel sign disagreement of each transition, from gains (n, 2) in two waves (B.1).

    The first (n,) is the mean over the four cross-channel wave pairings, the second over the two same-channel pairings.
    """
    a, b = np.asarray(reference, float), np.asarray(alternative, float)
    cross = np.mean([disagrees(a[:, i], b[:, j]) for i in (0, 1) for j in (0, 1)], axis=0)
    same = np.mean([disagrees(a[:, 0], a[:, 1]), disagrees(b[:, 0], b[:, 1])], axis=0)
    return cross, same


def trimmed_mean(values, share=0.1):
    """Mean without the given share of values at each end (the count cut is rounded down); NaN if any is missing."""
    # A NaN would sort last and be cut as if it were the largest value.
    return np.nan if np.isnan(np.asarray(values, float)).any() else trim_mean(values, share)


def candidate_gaps(cells):
    """Pairwise gaps between candidates within each joint cell, (n, K(K-1)/2) array, nats."""
    energies = align_labels(cells.values, cells.plan["layout"].to_numpy())
    first, second = np.triu_indices(K, 1)
    return energies[:, first] - energies[:, second]


def endpoint_energies(cells):
    """Candidate energies of every (trajectory, state, channel, wave) of :class:`Cells`, layout by layout.

    Returns a DataFrame of the m endpoints in the order of the plan, and energies (m, S, K), nats: layouts in ascending
    order, candidates by identity, NaN where missing.
    """
    plan, values, layout = cells.plan, cells.values, cells.plan["layout"].to_numpy()
    number = plan.groupby(_ENDPOINT, sort=False, dropna=False).ngroup().to_numpy()
    ends = plan.loc[~plan.duplicated(_ENDPOINT), _ENDPOINT].reset_index(drop=True)
    layouts, slot = np.unique(layout, return_inverse=True)
    energies = np.full((len(ends), len(layouts), K), np.nan)
    joint = (plan["readout"] == "joint").to_numpy()
    energies[number[joint], slot[joint]] = align_labels(values[joint], layout[joint])
    binary = ~joint
    assessed = plan["assessed"].to_numpy()[binary]
    energies[number[binary], slot[binary], assessed] = binary_energy(values[binary, 0], values[binary, 1])
    return ends, energies


def endpoint_margins(cells, study, tau=1.0):
    """One row per (trajectory, state, channel, wave): its target margin and what it rests on.

    ``study`` knows the reviewed targets, ``tau`` is that of :func:`layout_reduction`. Columns are the endpoint's own,
    ``margin`` (layouts reduced first), ``layout_0`` … ``layout_3`` (margin of one layout alone), ``energy_0`` …
    ``energy_3`` (reduced candidate energies), all in nats, and ``complete``.
    """
    ends, energies = endpoint_energies(cells)
    layouts = np.sort(cells.plan["layout"].unique())
    target = _targets(ends, study)
    reduced = layout_reduction(energies, tau)
    margins = target_margin(tau * energies, np.repeat(target[:, None], len(layouts), axis=1))
    out = {"margin": target_margin(reduced, target)}
    out |= {f"layout_{s}": margins[:, i] for i, s in enumerate(layouts)}
    out |= {f"energy_{j}": reduced[:, j] for j in range(K)}
    return ends.assign(**out, complete=~np.isnan(out["margin"]))


def _targets(ends, study):
    return np.array([study.target(name) for name in ends["trajectory_id"]], dtype=int)


def state_beliefs(cells, study, tau=1.0):
    """Beliefs over the candidates at every state of the complete trajectories, averaged over layouts.

    The cells are those of one channel and one wave; ``tau`` is that of :func:`layout_reduction`. Returns a DataFrame of
    the m states whose trajectory lacks no layout of any planned state, their beliefs (m, K), and the position of their
    reviewed targets (m,).
    """
    ends, energies = endpoint_energies(cells)
    beliefs = softmax(tau * energies, axis=-1).mean(axis=1)
    gone = ends.loc[np.isnan(beliefs).any(axis=1), "trajectory_id"]
    whole = ~ends["trajectory_id"].isin(gone).to_numpy()
    ends = ends[whole].reset_index(drop=True)
    return ends, beliefs[whole], _targets(ends, study)


def view_interactions(margins, states):
    """Gains and interactions of two views at every vertex of a bridge (Equation 5), in nats.

    ``margins`` is a Series indexed by (trajectory_id, vertex, view, state), with the views ``quote`` and ``generated``;
    ``states`` are (before, after). Returns, one row a trajectory, ``quote_v``, ``generated_v`` (gains) and ``D_v``
    (generated minus quote) for each vertex v.
    """
    wide, out = margins.unstack(["vertex", "view", "state"]), {}
    for v in sorted(margins.index.unique("vertex")):
        quote, generated = (wide[v, view, states[1]] - wide[v, view, states[0]] for view in ("quote", "generated"))
        out |= {f"quote_{v}": quote, f"generated_{v}": generated, f"D_{v}": generated - quote}
    return pd.DataFrame(out, index=wide.index)


def without_begun(cells, least=0.5):
    """The cells without trajectories of which no more than the share ``least`` of the planned cells is recorded.

    A recording may have been stopped, and sections share cells: such a trajectory would come in with the few
    transitions that happen to be there. What was asked decides, not any answer.
    """
    names = cells.plan["trajectory_id"]
    recorded = pd.Series(cells.answered).groupby(names).mean()
    return cells.where(names.isin(recorded.index[recorded > least]))


def transition_gains(margins, *, column="margin", by):
    """Gains F(x_step) - F(x_{step-1}), nats, by (trajectory_id, step), one column a channel; NaN where incomplete.

    Parameters
    ----------
    margins : DataFrame from :func:`endpoint_margins`, one wave
    column : str, which margin to difference
    by : str or list of str, endpoint column(s) that tell the channels apart; ValueError when two endpoints share
        trajectory, state and these: averaging them would hide a missing one
    """
    cell = ["trajectory_id", "state", *([by] if isinstance(by, str) else by)]
    twice = margins[margins.duplicated(cell)]
    if len(twice):
        raise ValueError(
            f"{len(twice) + 1} or more endpoints of trajectory {twice['trajectory_id'].iloc[0]!r}, state "
            f"{twice['state'].iloc[0]} fall into one column; pass one wave, or name in `by` what tells them apart."
        )
    wide = margins.pivot_table(index=["trajectory_id", "state"], columns=by, values=column, dropna=False, sort=False)
    # Also a state between two others that nobody scored: its steps are NaN.
    states = range(int(margins["state"].min()), int(margins["state"].max()) + 1) if len(margins) else []
    grid = pd.MultiIndex.from_product([margins["trajectory_id"].unique(), states], names=wide.index.names)
    gains = wide.reindex(grid).groupby(level="trajectory_id", sort=False).diff()
    first = gains.index.get_level_values("state") == margins["state"].min()
    return gains[~first].rename_axis(["trajectory_id", "step"])
