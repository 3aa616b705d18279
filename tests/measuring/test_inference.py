"""Inference: the bootstrap against a loop over resampled trajectories, AUCs against counted pairs, refusals."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.measuring import inference
from helpers.measuring.inference import (
    DRAWS,
    SEED,
    TooFewTrajectories,
    TrajectoryDraws,
    auc,
    auc_draws,
    holders,
    interval,
    leave_one_out,
    means_by,
)

# A lopsided split: 1, 7, 2, 13 and 3 observations a trajectory, two quantities, three values missing.
SIZES = {"t04": 1, "t00": 7, "t11": 2, "t02": 13, "t07": 3}
IDS = np.repeat(list(SIZES), list(SIZES.values()))
VALUES = np.random.default_rng(8).normal([0.4, -1.3], [1.0, 2.5], size=(len(IDS), 2))
VALUES[[0, 4, 25], [1, 0, 1]] = np.nan


def drawn(draws):
    """The trajectories of each draw, one by one: a trajectory drawn twice stands there twice."""
    counts = np.concatenate(list(draws.weights())).astype(int)
    return [[name for name, times in zip(draws.ids, row, strict=True) for _ in range(times)] for row in counts]


# -- draws ------------------------------------------------------------------------------------------


def test_the_paper_draws_ten_thousand_with_its_seed():
    draws = TrajectoryDraws(["a", "b"])
    assert (draws.draws, draws.seed, DRAWS, SEED) == (10_000, 20260716, 10_000, 20260716)


def test_every_draw_holds_as_many_trajectories_as_there_are():
    weights = np.concatenate(list(TrajectoryDraws(SIZES, draws=300).weights()))
    assert weights.shape == (300, 5)
    assert (weights.sum(axis=1) == 5).all() and weights.max() >= 3
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.2)


def test_the_same_seed_gives_the_same_draws_and_another_seed_others():
    one, two, other = (np.concatenate(list(TrajectoryDraws(SIZES, 50, s).weights())) for s in (5, 5, 6))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


def test_draws_do_not_depend_on_how_many_are_held_at_once(monkeypatch):
    whole = np.concatenate(list(TrajectoryDraws(SIZES, draws=101).weights()))
    monkeypatch.setattr(inference, "_BLOCK", 35)  # seven draws of five trajectories
    blocks = list(TrajectoryDraws(SIZES, draws=101).weights())
    assert [len(b) for b in blocks] == [7] * 14 + [3]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def test_the_order_and_repetition_of_the_given_ids_do_not_matter():
    one, other = TrajectoryDraws(list(SIZES), 20), TrajectoryDraws(list(reversed(IDS)), 20)
    assert one.ids.tolist() == other.ids.tolist() == ["t00", "t02", "t04", "t07", "t11"] and len(one) == 5
    np.testing.assert_array_equal(next(one.weights()), next(other.weights()))


@pytest.mark.parametrize("gone", [None, np.nan, pd.NA, float("nan"), pd.NaT])
def test_a_missing_trajectory_id_is_refused(gone):
    with pytest.raises(ValueError, match="a transition has no trajectory_id"):
        TrajectoryDraws(["a", gone, "b"])


@pytest.mark.parametrize("ids", [["a"], ["a", "a", "a"], []])
def test_fewer_than_two_trajectories_are_refused(ids):
    with pytest.raises(
        TooFewTrajectories, match=rf"{len(set(ids))} trajectory: an interval over trajectories needs at least two"
    ):
        TrajectoryDraws(ids)


def test_an_unknown_trajectory_is_refused_by_name():
    draws = TrajectoryDraws(["a", "c"], 5)
    for unknown in ("b", "zz", "A"):
        with pytest.raises(ValueError, match=f"trajectory '{unknown}' is not among the drawn trajectories"):
            draws.means([1.0, 2.0], ["a", unknown])
    with pytest.raises(ValueError, match="is not among the drawn trajectories"):
        draws.means([1.0, 2.0], ["a", None])


# -- means ------------------------------------------------------------------------------------------


def test_bootstrapped_means_equal_a_loop_over_explicit_resampled_trajectories():
    draws = TrajectoryDraws(SIZES, draws=200, seed=4)
    point, replicates = draws.means(VALUES, IDS)
    np.testing.assert_allclose(point, np.nanmean(VALUES, axis=0))
    assert replicates.shape == (200, 2)
    for sample, got in zip(drawn(draws), replicates, strict=True):
        rows = np.concatenate([VALUES[IDS == name] for name in sample])
        for q in range(2):
            kept = [v for v in rows[:, q] if not np.isnan(v)]
            expected = sum(kept) / len(kept) if kept else np.nan
            np.testing.assert_allclose(got[q], expected)


def test_a_mean_over_two_trajectories_can_be_worked_out_by_hand():
    # a: 1, 2, 6 (sum 9); b: -4. Draws aa -> 3, bb -> -4, ab -> 5/4.
    draws = TrajectoryDraws(["a", "b"], draws=60, seed=2)
    point, replicates = draws.means([1.0, -4.0, 2.0, 6.0], ["a", "b", "a", "a"])
    assert point == pytest.approx([1.25])
    expected = {2.0: 3.0, 0.0: -4.0, 1.0: 1.25}
    times_a = np.concatenate(list(draws.weights()))[:, 0]
    assert replicates[:, 0] == pytest.approx([expected[t] for t in times_a])
    assert set(times_a) == {0.0, 1.0, 2.0}


def test_a_contrast_of_bootstrapped_means_is_the_bootstrapped_contrast():
    whole = ~np.isnan(VALUES).any(axis=1)
    values, ids = VALUES[whole], IDS[whole]
    draws = TrajectoryDraws(SIZES, draws=80)
    point, both = draws.means(values, ids)
    contrast, replicates = draws.means(values[:, 1] - values[:, 0], ids)
    np.testing.assert_allclose(both[:, 1] - both[:, 0], replicates[:, 0])
    assert point[1] - point[0] == pytest.approx(contrast[0])


def test_a_paired_interval_is_narrower_than_one_that_forgets_the_pairing():
    values = np.random.default_rng(5).normal(size=len(IDS)) * 3
    pair = np.column_stack([values, values + 0.5 + 0.01 * np.arange(len(IDS))])
    draws = TrajectoryDraws(SIZES, draws=300)
    _, same = draws.means(pair, IDS)
    _, other = TrajectoryDraws(SIZES, draws=300, seed=1).means(pair, IDS)
    paired, unpaired = (np.ptp(interval(r)) for r in (same[:, 1] - same[:, 0], other[:, 1] - same[:, 0]))
    assert paired < unpaired / 5


def test_a_draw_without_any_observation_of_a_quantity_has_no_value():
    draws = TrajectoryDraws(["a", "b"], draws=40)
    point, replicates = draws.means([[1.0, 5.0], [2.0, np.nan]], ["a", "b"])
    without_a = np.concatenate(list(draws.weights()))[:, 0] == 0
    assert without_a.any()
    np.testing.assert_array_equal(np.isnan(replicates[:, 1]), without_a)
    assert not np.isnan(replicates[:, 0]).any() and point.tolist() == [1.5, 5.0]
    assert np.isnan(interval(replicates[:, 1])).all(), "one observation says nothing about how others would differ"


@pytest.mark.parametrize("method", ["percentile", "expanded", "t"])
def test_replicates_without_spread_give_no_interval_and_leave_the_others_alone(method):
    rng = np.random.default_rng(1)
    alike = 0.1 + rng.choice([0.0, 1e-17], 200)
    low, high = interval(np.column_stack([alike, rng.normal(size=200)]), method=method, n=9)
    assert np.isnan([low[0], high[0]]).all() and low[1] < 0 < high[1]


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(len(IDS))), st.floats(-5, 5))
def test_shuffling_rows_changes_nothing_and_a_constant_shifts_everything(order, constant):
    draws = TrajectoryDraws(SIZES, draws=25)
    point, replicates = draws.means(VALUES, IDS)
    order = list(order)
    shifted, moved = draws.means(VALUES[order] + constant, IDS[order])
    np.testing.assert_allclose(shifted, point + constant, atol=1e-9)
    np.testing.assert_allclose(moved, replicates + constant, atol=1e-9)


def test_transitions_count_once_each_while_trajectory_means_count_each_trajectory_once():
    draws = TrajectoryDraws(["a", "b"], draws=5)
    weighted, _ = draws.means([1.0, 2.0, 6.0, -4.0], ["a", "a", "a", "b"])
    per_trajectory, _ = draws.means([3.0, -4.0], ["a", "b"])
    assert (weighted[0], per_trajectory[0]) == (1.25, -0.5)


# -- equal weight of strata -------------------------------------------------------------------------


def test_equal_strata_means_weigh_a_small_stratum_as_much_as_a_large_one():
    values, ids = [1.0, 2.0, 6.0, -4.0, 9.0], ["a", "a", "b", "c", "c"]
    strata = ["x", "y", "x", "x", "y"]
    # x: 1, 6, -4 -> 1; y: 2, 9 -> 5.5
    point, _ = TrajectoryDraws("abc", draws=5).equal_strata_means(values, ids, strata)
    assert point == pytest.approx([3.25])


def test_equal_strata_means_equal_a_loop_over_explicit_resampled_trajectories():
    strata = np.array(["answer-a", "answer-b", "answer-a", "none", "answer-b"])[[list(SIZES).index(i) for i in IDS]]
    draws = TrajectoryDraws(SIZES, draws=120, seed=9)
    point, replicates = draws.equal_strata_means(VALUES, IDS, strata)
    names = ["answer-a", "answer-b", "none"]
    np.testing.assert_allclose(point, np.mean([np.nanmean(VALUES[strata == s], axis=0) for s in names], axis=0))
    lost = 0
    for sample, got in zip(drawn(draws), replicates, strict=True):
        rows = np.concatenate([np.flatnonzero(IDS == name) for name in sample])
        for q in range(2):
            parts = [[VALUES[r, q] for r in rows if strata[r] == s and not np.isnan(VALUES[r, q])] for s in names]
            expected = np.mean([np.mean(p) for p in parts]) if all(parts) else np.nan
            lost += not all(parts)
            np.testing.assert_allclose(got[q], expected)
    assert lost, "no draw lost a stratum, so the rule for such draws was not looked at"


# -- intervals and leave-one-out --------------------------------------------------------------------


def test_the_interval_is_the_percentile_interval():
    replicates = np.random.default_rng(1).permutation(np.arange(1.0, 102.0))
    assert interval(replicates, level=0.90) == (pytest.approx(6.0), pytest.approx(96.0))
    assert interval(replicates, level=0.95) == (pytest.approx(3.5), pytest.approx(98.5))


def test_intervals_of_many_quantities_stand_side_by_side_and_leave_missing_draws_out():
    replicates = np.column_stack([np.arange(1.0, 102.0), np.r_[np.nan, np.arange(2.0, 102.0)]])
    low, high = interval(replicates, level=0.90)
    np.testing.assert_allclose(low, [6.0, 2 + 0.05 * 99])
    np.testing.assert_allclose(high, [96.0, 2 + 0.95 * 99])


def test_leaving_each_trajectory_out_by_hand():
    values = [1.0, -1.0, 4.0, 2.0, -3.0, np.nan, 5.0]
    ids = ["a", "c", "b", "a", "c", "b", "c"]
    # sum 8 over 6 values; without a (3 over 2), b (4 over 1), c (1 over 3)
    np.testing.assert_allclose(leave_one_out(values, ids), [5 / 4, 4 / 5, 7 / 3])


def test_leaving_one_out_equals_the_mean_of_the_others():
    values = VALUES[:, 0]
    expected = [np.nanmean(values[IDS != name]) for name in sorted(SIZES)]
    np.testing.assert_allclose(leave_one_out(values, IDS), expected)


def test_leaving_the_only_trajectory_out_is_refused():
    with pytest.raises(TooFewTrajectories, match="1 trajectory: leaving it out leaves nothing"):
        leave_one_out([1.0, 2.0, np.nan], ["a", "a", "b"])


# -- ranking ----------------------------------------------------------------------------------------

SCORES = st.lists(st.integers(-3, 3), min_size=2, max_size=12)


def counted_pairs(scores, outcomes):
    """AUC by its definition: the share of success/failure pairs in the right order, ties half."""
    won = total = 0
    for (s, a), (t, b) in itertools.product(zip(scores, outcomes, strict=True), repeat=2):
        if a and not b:
            total += 1
            won += 1 if s > t else 0.5 if s == t else 0
    return won / total


def test_the_auc_of_a_small_ranking_by_hand():
    # successes 0.9, 0.4, 0.4; failures 0.4, 0.1: wins 1 + 1, 0.5 + 1, 0.5 + 1 of six pairs
    assert auc([0.9, 0.4, 0.1, 0.4, 0.4], [True, False, False, True, True]) == pytest.approx(5 / 6)


@settings(deadline=None, max_examples=100)
@given(SCORES, st.randoms(use_true_random=False))
def test_the_auc_equals_counted_pairs_and_keeps_its_symmetries(scores, random):
    outcomes = [True, False, *(random.random() < 0.4 for _ in scores[2:])]
    expected = counted_pairs(scores, outcomes)
    assert auc(scores, outcomes) == pytest.approx(expected)
    assert auc(np.exp(scores), outcomes) == pytest.approx(expected), "only the order counts"
    assert auc(scores, ~np.array(outcomes)) == pytest.approx(1 - expected)
    assert auc(-np.array(scores), outcomes) == pytest.approx(1 - expected)


def test_auc_draws_equal_a_loop_over_explicit_outcome_stratified_resamples():
    rng = np.random.default_rng(12)
    outcomes = np.array([True] * 3 + [False] * 8)
    scores = np.column_stack([rng.normal(size=11), rng.integers(-2, 3, size=11)])
    point, replicates = auc_draws(scores, outcomes, draws=60, seed=17)
    assert point == pytest.approx([counted_pairs(scores[:, q], outcomes) for q in (0, 1)])
    one, other = (np.random.default_rng(s) for s in np.random.SeedSequence(17).spawn(2))
    successes, failures = one.integers(3, size=(60, 3)), other.integers(8, size=(60, 8))
    for b in range(60):
        rows = [*np.flatnonzero(outcomes)[successes[b]], *np.flatnonzero(~outcomes)[failures[b]]]
        for q in (0, 1):
            assert replicates[b, q] == pytest.approx(counted_pairs(scores[rows, q], outcomes[rows]))


def test_the_same_column_twice_has_an_auc_difference_of_nothing_in_every_draw():
    scores = np.random.default_rng(3).normal(size=(9, 1))
    _, replicates = auc_draws(np.hstack([scores, scores + 5]), [1, 0, 0, 1, 0, 1, 0, 0, 1], draws=50)
    np.testing.assert_array_equal(replicates[:, 0], replicates[:, 1])


@pytest.mark.parametrize("ranking", [auc, lambda s, o: auc_draws(np.array(s)[:, None], o, draws=5)])
@pytest.mark.parametrize("outcomes", [[True, True, True], [False, False, False]])
def test_a_ranking_needs_both_outcomes(ranking, outcomes):
    with pytest.raises(ValueError, match="an AUC needs both outcomes"):
        ranking([0.1, 0.2, 0.7], outcomes)


@pytest.mark.parametrize("ranking", [auc, lambda s, o: auc_draws(np.array(s)[:, None], o, draws=5)])
@pytest.mark.parametrize("gone", [None, np.nan])
def test_a_trajectory_without_a_stored_outcome_is_no_failure(ranking, gone):
    with pytest.raises(ValueError, match="a trajectory has no stored outcome"):
        ranking([0.1, 0.2, 0.7], [True, gone, False])


@pytest.mark.parametrize("position", range(4))
def test_a_missing_score_makes_the_auc_missing_and_is_not_ranked_last(position):
    scores = np.array([0.9, 0.2, 0.5, 0.1])
    scores[position] = np.nan
    outcomes = [True, False, True, False]
    assert np.isnan(auc(scores, outcomes))
    point, replicates = auc_draws(np.column_stack([scores, [4, 3, 2, 1]]), outcomes, draws=20)
    assert np.isnan(point[0]) and np.isnan(replicates[:, 0]).all()
    assert point[1] == pytest.approx(0.75) and np.isfinite(replicates[:, 1]).all()


# -- intervals for few trajectories -----------------------------------------------------------------


def test_the_t_interval_is_point_plus_t_times_the_unbiased_spread():
    replicates = np.random.default_rng(2).normal(3.0, 0.5, size=4000)
    low, high = interval(replicates, method="t", n=8, point=3.1)
    half = 2.364624 * np.std(replicates) * np.sqrt(8 / 7)  # t quantile of 0.975 with 7 degrees of freedom
    assert (low, high) == (pytest.approx(3.1 - half), pytest.approx(3.1 + half))
    assert sum(interval(replicates, method="t", n=8)) / 2 == pytest.approx(replicates.mean())


def test_the_expanded_interval_is_the_percentile_interval_at_a_wider_level():
    replicates = np.random.default_rng(2).exponential(size=(4000, 2))
    wider = 1 - 2 * 0.00573752  # normal tail beyond sqrt(8 / 7) times 2.364624
    np.testing.assert_allclose(interval(replicates, method="expanded", n=8), interval(replicates, wider), rtol=1e-4)


def test_with_many_trajectories_the_three_intervals_agree():
    replicates = np.random.default_rng(2).normal(size=40_000)
    percentile = interval(replicates)
    for method in ("expanded", "t"):
        assert interval(replicates, method=method, n=100_000) == pytest.approx(percentile, abs=0.03)


def test_unknown_methods_and_missing_numbers_of_trajectories_are_refused():
    with pytest.raises(ValueError, match="method 'bca'; use one of percentile, expanded, t"):
        interval([1.0, 2.0], method="bca", n=9)
    with pytest.raises(ValueError, match="needs n, the number of resampled trajectories"):
        interval([1.0, 2.0], method="expanded")


@pytest.mark.parametrize("method", ["expanded", "t"])
def test_one_trajectory_has_no_interval(method):
    low, high = interval(np.random.default_rng(1).normal(size=(50, 2)), method=method, n=1)
    assert np.isnan([low, high]).all() and low.shape == (2,)


def test_trajectories_that_hold_a_value_are_counted_once():
    values = np.array([[np.nan, 1.0], [np.nan, np.nan], [2.0, 3.0], [4.0, np.nan]])
    assert holders(values, ["a", "b", "c", "c"]) == 2 and holders(values[:, 0], ["a", "b", "c", "c"]) == 1


def test_means_within_groups_are_those_of_the_groups_own_observations():
    draws, groups = TrajectoryDraws(IDS, 300, SEED), np.arange(len(IDS)) % 2
    table = means_by(draws, pd.DataFrame(VALUES, columns=["a", "b"]), IDS, groups, [(1, "odd"), (0, "even")], method="t")
    assert table["group"].tolist() == ["odd", "odd", "even", "even"] and table["quantity"].tolist() == ["a", "b"] * 2
    assert table["n"].tolist() == [(groups == 1).sum()] * 2 + [(groups == 0).sum()] * 2
    np.testing.assert_allclose(table["mean"], [*np.nanmean(VALUES[groups == 1], axis=0), *np.nanmean(VALUES[groups == 0], axis=0)])
    alone = draws.means(VALUES[groups == 1], IDS[groups == 1])
    low, high = interval(alone[1], method="t", n=holders(VALUES[groups == 1], IDS[groups == 1]))
    np.testing.assert_allclose(table[["low", "high"]].to_numpy()[:2].T, [low, high])


def test_an_auc_does_not_depend_on_how_many_draws_are_held_at_once(monkeypatch):
    rng = np.random.default_rng(5)
    scores, outcomes = rng.integers(0, 6, (40, 2)).astype(float), rng.random(40) < 0.4
    whole = auc_draws(scores, outcomes, draws=50, seed=3)
    monkeypatch.setattr(inference, "_BLOCK", 40 * 7)
    for one, other in zip(whole, auc_draws(scores, outcomes, draws=50, seed=3), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_column_without_any_value_has_no_interval_and_no_warning(recwarn):
    replicates = np.column_stack([np.arange(20.0), np.full(20, np.nan)])
    low, high = inference.interval(replicates, 0.9)
    assert np.isfinite([low[0], high[0]]).all() and np.isnan([low[1], high[1]]).all() and not len(recwarn)
