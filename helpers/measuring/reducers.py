"""Reducers: label log-probabilities to energies, energies to margins, margins to contrasts.

Arrays in, arrays out. NaN means missing and spreads; nothing is imputed, clipped or defaulted.
Equation numbers are those of the ASV paper.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from scipy.special import softmax
from scipy.stats import trim_mean

from helpers.channels.channels import YES_NO
from helpers.channels.plan import CELL, LAYOUTS
from helpers.measuring.labels import (
    ANOTHER_MODEL,
    BINARY_LABELS,
    JOINT_LABELS,
    NO_LOGPROBS,
    NOT_RETURNED,
    SENTINEL,
    label_matrix,
)
from helpers.study.tasks import K

ENDPOINT = tuple(name for name in CELL if name not in ("layout", "assessed"))
LAYOUT_MARGINS = tuple(f"layout_{s}" for s in LAYOUTS)


class IncompleteFace(ValueError):
    """An interaction was asked for without all of its four corners."""

# -- energies ---------------------------------------------------------------------------------------


def align_labels(values, layouts):
    """Label log-probabilities as candidate energies.

    Parameters
    ----------
    values : (n, K) array, nats
        Columns are the labels A, B, C, D.
    layouts : (n,) array of int
        Cyclic layout s: candidate j stands at label (j + s) mod K.

    Returns
    -------
    (n, K) array, nats; column j is candidate j.
    """
    values, layouts = np.asarray(values, float), np.asarray(layouts)
    slots = (np.arange(K) + layouts[:, None]) % K
    return np.take_along_axis(values, slots, axis=1)


def binary_energy(yes, no):
    """Candidate energy of the binary readout, L(Yes) - L(No), in nats (Equation 7)."""
    return np.asarray(yes, float) - np.asarray(no, float)


def layout_reduction(energies, tau=1.0):
    """Average candidate energies over cyclic layouts, centred within each (Equation 8).

    Parameters
    ----------
    energies : (..., S, K) array, nats
        Aligned by candidate identity; S layouts.
    tau : float
        Sampling temperature; applies only where log-probabilities are temperature-scaled.

    Returns
    -------
    (..., K) array: (tau / S) sum over s of [l_s(c) - mean over c of l_s(c)]; NaN if any part is missing.
    """
    energies = np.asarray(energies, float)
    centred = energies - energies.mean(axis=-1, keepdims=True)
    return tau * centred.mean(axis=-2)


def latin_square_shares(energies):
    """What the label log-probabilities of an endpoint follow: the candidate, its letter, or neither.

    Over the four cyclic layouts every candidate stands once at every letter, so an endpoint's 16 values, centred
    within each layout, are a Latin square and their sum of squares splits exactly.

    Parameters
    ----------
    energies : (n, K, K) array, nats; layouts 0 to K-1, candidates by identity

    Returns
    -------
    (n, 3) array: shares of candidate, letter and rest; they sum to one, NaN where a value is missing
    """
    centred = np.asarray(energies, float)
    centred = centred - centred.mean(axis=-1, keepdims=True)
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
    energies : (..., K) array of float
        Candidate energies in nats. A constant added to all K cancels.
    target : (...) array of int
        Position of the reviewed target on the last axis.

    Returns
    -------
    (...) array of float, in nats
        L_g - log(sum of exp(L_c), c != g); NaN where any of the K is missing.
    """
    energies = np.asarray(energies, float)
    target = np.asarray(target)[..., None]
    own = np.take_along_axis(energies, target, axis=-1)[..., 0]
    rest = np.where(np.arange(energies.shape[-1]) == target, -np.inf, energies)
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(energies).any(axis=-1), np.nan, own - np.logaddexp.reduce(rest, axis=-1))


def competitor_margin(energies, target):
    """Target energy minus the strongest competitor's, in nats (Equation 3 of the first version)."""
    energies = np.asarray(energies, float)
    target = np.asarray(target)[..., None]
    own = np.take_along_axis(energies, target, axis=-1)[..., 0]
    rest = np.where(np.arange(energies.shape[-1]) == target, -np.inf, energies)
    return np.where(np.isnan(energies).any(axis=-1), np.nan, own - rest.max(axis=-1))


def wave_reduction(margins, weights=None):
    """Weighted mean of margins over waves on the last axis (Equation 6); equal weights by default."""
    margins = np.asarray(margins, float)
    weights = np.full(margins.shape[-1], 1 / margins.shape[-1]) if weights is None else np.asarray(weights, float)
    if (weights < 0).any() or not np.isclose(weights.sum(), 1):
        raise ValueError("wave weights must be non-negative and sum to one.")
    return margins @ weights


# -- contrasts --------------------------------------------------------------------------------------


def gain(after, before):
    """Agent Step Value of one channel, F(x+) - F(x-), in nats (Equation 3)."""
    return np.asarray(after, float) - np.asarray(before, float)


def interaction(after_1, after_0, before_1, before_0):
    """State-by-channel interaction F11 - F10 - F01 + F00, in nats (Equation 1).

    The first index is the state (after = 1), the second the channel. IncompleteFace is raised when a
    corner is None or, for a single transition, NaN: without it the interaction is not identified (Proposition 1).
    In an array a NaN corner leaves its own transition NaN.
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
    return np.asarray(after_1, float) - np.asarray(before_0, float)


def symmetric_allocation(before_before, after_before, before_after, after_after):
    """Allocation of the diagonal change of the retrieval face to state and view (Equation 4).

    Parameters
    ----------
    before_before, after_before, before_after, after_after : arrays, nats
        F(x-, r-), F(x+, r-), F(x-, r+), F(x+, r+): state first, frozen view second.

    Returns
    -------
    C_x, C_r : arrays, nats; C_x + C_r = F(x+, r+) - F(x-, r-).
    """
    state = 0.5 * (gain(after_before, before_before) + gain(after_after, before_after))
    view = 0.5 * (gain(before_after, before_before) + gain(after_after, after_before))
    return state, view


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
    """Share of opposite signs that two gains would have, were they unrelated: what a disagreement is held against.

    Parameters
    ----------
    up_1, down_1, up_0, down_0 : floats or (draws,) arrays
        Shares of positive and of negative gains under each channel.
    """
    return up_1 * down_0 + down_1 * up_0


@dataclass(frozen=True)
class SignCounts:
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
    a, b = np.asarray(gain_0, float), np.asarray(gain_1, float)
    a, b = a[~np.isnan(a + b)], b[~np.isnan(a + b)]
    pos_neg, neg_pos = int(((a > 0) & (b < 0)).sum()), int(((a < 0) & (b > 0)).sum())
    zero = int(((a == 0) | (b == 0)).sum())
    return SignCounts(pos_neg, neg_pos, len(a) - pos_neg - neg_pos - zero, zero)


def retry_disagreement(reference, alternative):
    """Cross-channel and same-channel sign disagreement per transition, over two waves (B.1).

    Parameters
    ----------
    reference, alternative : (n, 2) arrays, nats
        Gains of the two channels in wave 1 and wave 2.

    Returns
    -------
    cross, same : (n,) arrays
        Mean over the four cross-channel wave pairings; mean over the two same-channel pairings.
    """
    a, b = np.asarray(reference, float), np.asarray(alternative, float)
    cross = np.mean([disagrees(a[:, i], b[:, j]) for i in (0, 1) for j in (0, 1)], axis=0)
    same = np.mean([disagrees(a[:, 0], a[:, 1]), disagrees(b[:, 0], b[:, 1])], axis=0)
    return cross, same


def trimmed_mean(values, share=0.1):
    """Mean without the given share of values at each end (the count cut is rounded down); NaN if any is missing."""
    values = np.asarray(values, float)
    # A NaN would sort last and be cut as if it were the largest value.
    return np.nan if np.isnan(values).any() else trim_mean(values, share)


# -- from recordings to endpoint margins -------------------------------------------------------------


def read_cells(plan, table):
    """What each planned cell's recording says, as arrays.

    Parameters
    ----------
    plan : DataFrame with ``key`` and the cell columns
    table : Arrow table of recordings, sorted by key

    Returns
    -------
    values : (n, 4) array, nats
        Joint rows: labels A … D. Binary rows: Yes, No, NaN, NaN. NaN where missing.
    reason : (n,) array of object
        Why a cell is incomplete, else None.
    mass : (n,) array, probability of the labels together
    """
    found = lookup(plan, table)
    values = np.full((len(plan), K), np.nan)
    mass = np.full(len(plan), np.nan)
    reason = np.full(len(plan), None, dtype=object)
    reason[found < 0] = "not recorded"
    reason[(found < 0) & plan["key"].isna().to_numpy()] = "view not frozen"
    binary = plan["readout"].isin(YES_NO).to_numpy()
    for labels, rows in ((JOINT_LABELS, ~binary), (BINARY_LABELS, binary)):
        rows = np.flatnonzero(rows & (found >= 0))
        if not len(rows):
            continue
        part = table.take(found[rows]).combine_chunks()
        tokens, logprobs = (part[c].combine_chunks() for c in ("tokens", "logprobs"))
        read, sentinel, label_mass = label_matrix(tokens, logprobs, labels)
        if "unread" in part.column_names:
            other = pc.fill_null(pc.starts_with(part["unread"], ANOTHER_MODEL), False).to_numpy(zero_copy_only=False)
            reason[rows[other]] = ANOTHER_MODEL
        values[rows[:, None], np.arange(len(labels))] = read
        mass[rows] = label_mass
        gone = np.isnan(read).any(axis=1) & (reason[rows] == None)  # noqa: E711 - an array of objects
        why = np.where(sentinel.any(axis=1), SENTINEL, NOT_RETURNED)
        why = np.where(np.isnan(label_mass), NO_LOGPROBS, why)
        reason[rows[gone]] = why[gone]
    return values, reason, mass


def candidate_gaps(plan, table):
    """Pairwise gaps between candidates within each joint cell, (n, K(K-1)/2) array, nats."""
    energies = align_labels(read_cells(plan, table)[0], plan["layout"].to_numpy())
    first, second = np.triu_indices(K, 1)
    return energies[:, first] - energies[:, second]


def endpoint_energies(plan, values):
    """Candidate energies of every (trajectory, state, channel, wave), layout by layout.

    Parameters
    ----------
    plan : DataFrame, one row a cell
    values : (n, 4) array, nats, from :func:`read_cells`

    Returns
    -------
    ends : DataFrame of m endpoints in the order of the plan
    energies : (m, S, K) array, nats; layouts in ascending order, candidates by identity; NaN where missing
    """
    groups = plan.groupby(list(ENDPOINT), sort=False, dropna=False)
    number = groups.ngroup().to_numpy()
    ends = plan.loc[~plan.duplicated(list(ENDPOINT)), list(ENDPOINT)].reset_index(drop=True)
    layouts = np.sort(plan["layout"].unique())
    slot = np.searchsorted(layouts, plan["layout"].to_numpy())
    energies = np.full((len(ends), len(layouts), K), np.nan)
    joint = (plan["readout"] == "joint").to_numpy()
    energies[number[joint], slot[joint]] = align_labels(values[joint], plan["layout"].to_numpy()[joint])
    assessed, single = plan["assessed"].to_numpy(), binary_energy(values[:, 0], values[:, 1])
    binary, support = ((plan["readout"] == name).to_numpy() for name in YES_NO)
    energies[number[binary], slot[binary], assessed[binary]] = single[binary]
    energies[number[support], :, assessed[support]] = single[support, None]  # shown alone: the same under every layout
    return ends, energies


def endpoint_margins(plan, study, table, *, tau=1.0):
    """One row per (trajectory, state, channel, wave): its target margin and what it rests on.

    Parameters
    ----------
    plan : DataFrame with keys (see ``plan.add_keys``)
    study : Study, for the reviewed targets
    table : Arrow table of recordings

    Returns
    -------
    DataFrame with the endpoint's columns and
        ``margin`` (nats; layouts reduced first), ``layout_0`` … ``layout_3`` (nats; margin of one layout
        alone), ``energy_0`` … ``energy_3`` (nats; reduced candidate energies), ``complete``.
    """
    ends, energies = endpoint_energies(plan, read_cells(plan, table)[0])
    layouts = np.sort(plan["layout"].unique())
    target = np.array([study.target(name) for name in ends["trajectory_id"]], dtype=int)
    reduced = layout_reduction(energies, tau)
    margins = target_margin(tau * energies, np.repeat(target[:, None], len(layouts), axis=1))
    out = {"margin": target_margin(reduced, target)}
    out |= {f"layout_{s}": margins[:, i] for i, s in enumerate(layouts)}
    out |= {f"energy_{j}": reduced[:, j] for j in range(K)}
    ends = ends.assign(**out)
    return ends.assign(complete=ends["margin"].notna())


def state_beliefs(plan, study, table, *, tau=1.0):
    """Beliefs over the candidates at every state of the complete trajectories, averaged over layouts.

    Parameters
    ----------
    plan : keyed DataFrame of one channel and one wave
    tau : float, as in :func:`layout_reduction`

    Returns
    -------
    ends : DataFrame, one row a state, of the m states whose trajectory lacks no layout of any planned state
    beliefs : (m, K) array, probabilities
    target : (m,) array of int, position of the reviewed target
    """
    ends, energies = endpoint_energies(plan, read_cells(plan, table)[0])
    beliefs = softmax(tau * energies, axis=-1).mean(axis=1)
    whole = pd.Series(~np.isnan(beliefs).any(axis=1)).groupby(ends["trajectory_id"].to_numpy()).transform("all").to_numpy(bool)
    ends, beliefs = ends[whole].reset_index(drop=True), beliefs[whole]
    return ends, beliefs, np.array([study.target(name) for name in ends["trajectory_id"]], dtype=int)


def view_interactions(margins, states):
    """Gains and interactions of two views at every vertex of a bridge (Equation 5), in nats.

    Parameters
    ----------
    margins : Series of margins indexed by (trajectory_id, vertex, view, state); views ``quote`` and ``generated``
    states : (before, after)

    Returns
    -------
    DataFrame, one row a trajectory: ``quote_v``, ``generated_v`` (gains) and ``D_v`` (generated minus quote) for each
    vertex v
    """
    wide = margins.unstack(["vertex", "view", "state"])
    out = {}
    for v in sorted(margins.index.unique("vertex")):
        for view in ("quote", "generated"):
            out[f"{view}_{v}"] = gain(wide[v, view, states[1]], wide[v, view, states[0]])
        out[f"D_{v}"] = out[f"generated_{v}"] - out[f"quote_{v}"]
    return pd.DataFrame(out, index=wide.index)


def without_begun(plan, table, least=0.5):
    """The plan without trajectories of which no more than the share ``least`` of the planned cells is recorded.

    A recording may have been stopped, and sections share cells: such a trajectory would come in with the few
    transitions that happen to be there. This is decided by what was asked, not by any answer; of the trajectories
    that stay a transition counts when its own cells are complete.
    """
    recorded = plan["key"].isin(table["key"].to_pylist()).groupby(plan["trajectory_id"]).mean()
    return plan[plan["trajectory_id"].isin(recorded.index[recorded > least])].reset_index(drop=True)


def transition_gains(margins, *, column="margin", by):
    """Gains of every transition, one column a channel.

    Parameters
    ----------
    margins : DataFrame from :func:`endpoint_margins`, one wave
    column : str
        Which margin to difference.
    by : str or list of str
        Endpoint column(s) that tell the channels apart.

    Returns
    -------
    DataFrame indexed by (trajectory_id, step): F(x_step) - F(x_{step-1}), nats; NaN where incomplete.

    Raises
    ------
    ValueError
        When two endpoints share trajectory, state and ``by``: averaging them would hide a missing one.
    """
    cell = ["trajectory_id", "state", *([by] if isinstance(by, str) else by)]
    twice = margins[margins.duplicated(cell)]
    if len(twice):
        raise ValueError(
            f"{len(twice) + 1} or more endpoints of trajectory {twice['trajectory_id'].iloc[0]!r}, state "
            f"{twice['state'].iloc[0]} fall into one column; pass one wave, or name in `by` what tells them apart."
        )
    wide = margins.pivot_table(index=["trajectory_id", "state"], columns=by, values=column, dropna=False, sort=False)
    states = range(int(margins["state"].min()), int(margins["state"].max()) + 1) if len(margins) else []
    grid = [margins["trajectory_id"].unique(), states]  # a state between two others that nobody scored: its steps are NaN
    wide = wide.reindex(pd.MultiIndex.from_product(grid, names=["trajectory_id", "state"]))
    gains = wide.groupby(level="trajectory_id", sort=False).diff()
    first = gains.index.get_level_values("state") == margins["state"].min()
    return gains[~first].rename_axis(["trajectory_id", "step"])


def lookup(plan, table):
    """Row of each planned cell in a recordings table, -1 where it is not recorded.

    Parameters
    ----------
    plan : DataFrame with a ``key`` column
    table : Arrow table of recordings

    Returns
    -------
    (n,) array of int
    """
    position = pd.Series(np.arange(table.num_rows), index=table["key"].to_pylist())
    return position.reindex(plan["key"]).fillna(-1).astype(int).to_numpy()
