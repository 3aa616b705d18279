"""Reducers: worked examples, invariances, refusals, and the definition beside each fast function."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

from helpers.asking.recordings import as_table
from helpers.channels import prompts
from helpers.channels.channels import Channel, direct, generated, matched
from helpers.channels.plan import Study, add_keys, make_plan
from helpers.measuring.reducers import (
    IncompleteFace,
    align_labels,
    binary_energy,
    chance_disagreement,
    competitor_margin,
    diagonal,
    disagrees,
    disagrees_where_nonzero,
    endpoint_energies,
    endpoint_margins,
    gain,
    interaction,
    latin_square_shares,
    layout_reduction,
    read_cells,
    retry_disagreement,
    sign_counts,
    sign_shares,
    state_beliefs,
    symmetric_allocation,
    target_margin,
    transition_gains,
    trimmed_mean,
    view_interactions,
    wave_reduction,
    without_begun,
)
from helpers.study.tasks import FALLBACK
from helpers.study.traces import STEPS, parse_trajectory
from tests.conftest import loopback_stack, obtained, tiny_plan

NAN = math.nan
NATS = st.floats(-20, 20).map(lambda x: round(x, 3))
FOUR = st.lists(NATS, min_size=4, max_size=4)
ORBIT = st.lists(FOUR, min_size=4, max_size=4).map(np.array)


# -- energies and margins ---------------------------------------------------------------------------


def test_labels_become_candidates_as_the_layout_maps_them():
    aligned = align_labels([[-1.0, -2.0, -3.0, -4.0], [-1.0, -2.0, -3.0, -4.0]], [1, 3])
    np.testing.assert_array_equal(aligned, [[-2.0, -3.0, -4.0, -1.0], [-4.0, -1.0, -2.0, -3.0]])


@pytest.mark.parametrize("layout", range(4))
def test_alignment_undoes_the_order_in_which_the_prompt_shows_the_candidates(layout):
    by_candidate = np.array([-0.3, -1.1, -2.7, -3.9])
    shown = [by_candidate[position] for position in prompts.layout_order(layout)]
    np.testing.assert_array_equal(align_labels([shown], [layout])[0], by_candidate)


def test_the_binary_energy_is_yes_minus_no():
    np.testing.assert_allclose(binary_energy([-0.2, -1.7], [-2.5, -0.4]), [2.3, -1.3])


def test_the_layout_reduction_centres_within_each_layout_and_averages():
    # centred rows: [2, 1, -3] and [2, -1.5, -0.5]; mean [2, -0.25, -1.75]
    energies = [[-1.0, -2.0, -6.0], [-0.5, -4.0, -3.0]]
    np.testing.assert_allclose(layout_reduction(energies), [2.0, -0.25, -1.75])
    np.testing.assert_allclose(layout_reduction(energies, tau=1.5), [3.0, -0.375, -2.625])


@settings(deadline=None, max_examples=50)
@given(st.lists(ORBIT, min_size=1, max_size=3), st.floats(0.5, 2))
def test_the_layout_reduction_equals_equation_8_written_as_loops(orbits, tau):
    expected = []
    for orbit in orbits:
        total = [0.0] * 4
        for layout in orbit:
            for c in range(4):
                total[c] += layout[c] - sum(layout) / 4
        expected.append([tau / 4 * t for t in total])
    np.testing.assert_allclose(layout_reduction(np.array(orbits), tau), expected, atol=1e-12)


def test_the_target_margin_is_the_log_odds_of_the_target():
    energies = np.log([0.45, 0.30, 0.15, 0.10])
    assert target_margin(energies, 0) == pytest.approx(-0.2006706955)  # log(0.45 / 0.55)
    assert target_margin(energies, 2) == pytest.approx(-1.7346010554)  # log(0.15 / 0.85)
    np.testing.assert_allclose(target_margin([energies, energies[::-1]], [1, 3]), [-0.8472978604, -0.2006706955])


def test_the_competitor_margin_is_the_lead_over_the_strongest_other_candidate():
    np.testing.assert_allclose(competitor_margin([[-0.7, -1.9, -2.4, -3.1]] * 2, [1, 0]), [-1.2, 1.2])


@settings(deadline=None, max_examples=100)
@given(FOUR, st.integers(0, 3))
def test_the_target_margin_equals_equation_2_written_as_a_sum(energies, target):
    rest = sum(math.exp(e) for c, e in enumerate(energies) if c != target)
    assert target_margin(energies, target) == pytest.approx(energies[target] - math.log(rest), abs=1e-9)


@pytest.mark.parametrize("margin", [target_margin, competitor_margin])
@settings(deadline=None, max_examples=60)
@given(energies=FOUR, target=st.integers(0, 3), constant=st.floats(-50, 50))
def test_a_constant_added_to_all_energies_cancels(margin, energies, target, constant):
    shifted = np.array(energies) + constant
    assert margin(shifted, target) == pytest.approx(margin(energies, target), abs=1e-9)
    np.testing.assert_allclose(layout_reduction([shifted]), layout_reduction([energies]), atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(ORBIT, st.permutations(range(4)), st.permutations(range(4)), st.integers(0, 3))
def test_relabelling_candidates_and_permuting_layouts_change_nothing(orbit, candidates, layouts, target):
    margin = target_margin(layout_reduction(orbit), target)
    other = orbit[list(layouts)][:, list(candidates)]
    assert target_margin(layout_reduction(other), candidates.index(target)) == pytest.approx(margin, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(FOUR, FOUR, st.integers(0, 3))
def test_a_preference_for_a_physical_label_cancels_over_the_four_layouts(energies, bias, target):
    labels = [[energies[i] + b for i, b in zip(prompts.layout_order(s), bias, strict=True)] for s in range(4)]
    reduced = layout_reduction(align_labels(labels, range(4)))
    assert target_margin(reduced, target) == pytest.approx(target_margin(energies, target), abs=1e-9)


@pytest.mark.parametrize("position", range(4))
def test_one_missing_candidate_makes_the_margin_missing(position):
    energies = np.array([-0.4, -1.3, -2.2, -3.7])
    energies[position] = NAN
    assert np.isnan(target_margin(energies, 1)) and np.isnan(competitor_margin(energies, 1))
    assert np.isnan(layout_reduction([[-1.0, -2.0, -3.0, -5.0], energies])).all()


# -- waves ------------------------------------------------------------------------------------------


def test_waves_are_averaged_as_margins_with_their_weights():
    assert wave_reduction([1.2, -0.4, 0.7]) == pytest.approx(0.5)
    assert wave_reduction([1.2, -0.4, 0.7], [0.5, 0.2, 0.3]) == pytest.approx(0.73)
    np.testing.assert_allclose(wave_reduction([[1.0, 4.0], [-2.0, 3.0]], [0.25, 0.75]), [3.25, 1.75])


def test_averaging_margins_is_not_pooling_logits_over_waves():
    waves = np.log([[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]])
    margins = target_margin(waves, [0, 0])
    assert wave_reduction(margins) == pytest.approx((math.log(7 / 3) - math.log(9)) / 2)
    assert abs(wave_reduction(margins) - target_margin(waves.mean(axis=0), 0)) > 0.1


@pytest.mark.parametrize("weights", [[0.5, 0.2, 0.2], [0.5, 0.6, -0.1], [2.0, -0.5, -0.5], [NAN, 0.5, 0.5]])
def test_wave_weights_that_are_no_weights_are_refused(weights):
    with pytest.raises(ValueError, match="wave weights must be non-negative and sum to one"):
        wave_reduction([1.2, -0.4, 0.7], weights)


def test_a_missing_wave_is_not_averaged_away():
    assert np.isnan(wave_reduction([1.2, NAN, 0.7]))


# -- contrasts --------------------------------------------------------------------------------------

# Figure 4 of the paper: F00 = -0.2, F10 = +0.4, F01 = +0.5, F11 = +0.1.
CORNERS = {"after_1": 0.1, "after_0": 0.4, "before_1": 0.5, "before_0": -0.2}


def test_the_four_corners_of_the_papers_figure_give_a_strict_reversal():
    assert gain(0.4, -0.2) == pytest.approx(0.6)
    assert gain(0.1, 0.5) == pytest.approx(-0.4)
    assert interaction(**CORNERS) == pytest.approx(-1.0)


def test_the_diagonal_mixes_reference_gain_channel_shift_and_interaction():
    assert diagonal(0.1, -0.2) == pytest.approx(0.3)
    assert diagonal(0.1, -0.2) == pytest.approx(0.6 + (0.5 - -0.2) + interaction(**CORNERS))


@pytest.mark.parametrize(
    ("corner", "name"), [("after_1", "F11"), ("after_0", "F10"), ("before_1", "F01"), ("before_0", "F00")]
)
def test_an_interaction_without_one_of_its_corners_is_refused(corner, name):
    with pytest.raises(IncompleteFace, match=f"needs all four corners of the face; {name} missing"):
        interaction(**{**CORNERS, corner: None})
    with pytest.raises(IncompleteFace, match=f"{name} missing"):
        interaction(**{**CORNERS, corner: NAN})


def test_every_absent_corner_is_named():
    with pytest.raises(IncompleteFace, match="F10, F01 missing"):
        interaction(0.1, None, None, -0.2)


def test_an_unmeasured_corner_of_one_transition_leaves_only_that_one_missing():
    omega = interaction([0.1, 0.7], [0.4, 0.2], [0.5, NAN], [-0.2, 0.3])
    np.testing.assert_allclose(omega, [-1.0, NAN])


@settings(deadline=None, max_examples=80)
@given(FOUR, NATS, NATS)
def test_an_additive_channel_offset_cancels_in_the_interaction(corners, offset_1, offset_0):
    f11, f10, f01, f00 = corners
    shifted = interaction(f11 + offset_1, f10 + offset_0, f01 + offset_1, f00 + offset_0)
    assert shifted == pytest.approx(interaction(f11, f10, f01, f00), abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(FOUR, st.integers(0, 3), st.floats(0.01, 9))
def test_replacing_one_corner_moves_the_interaction_by_as_much(corners, corner, shift):
    """Proposition 1: no three corners say anything about the fourth."""
    moved = list(corners)
    moved[corner] += shift
    sign = [1, -1, -1, 1][corner]
    assert interaction(*moved) - interaction(*corners) == pytest.approx(sign * shift, abs=1e-9)


CALIBRATION = st.tuples(st.floats(0.01, 100), st.floats(-10, 10))


@settings(deadline=None, max_examples=100)
@given(FOUR, CALIBRATION, CALIBRATION)
def test_a_positive_affine_recalibration_keeps_gain_signs_and_strict_reversals(corners, one, zero):
    f11, f10, f01, f00 = corners
    (a1, b1), (a0, b0) = one, zero
    gain_1, gain_0 = gain(f11, f01), gain(f10, f00)
    new_1, new_0 = gain(a1 * f11 + b1, a1 * f01 + b1), gain(a0 * f10 + b0, a0 * f00 + b0)
    if abs(gain_1) > 1e-3:
        assert np.sign(new_1) == np.sign(gain_1)
    if abs(gain_0) > 1e-3:
        assert np.sign(new_0) == np.sign(gain_0)
    if gain_1 < -1e-3 and gain_0 > 1e-3:
        assert interaction(a1 * f11 + b1, a0 * f10 + b0, a1 * f01 + b1, a0 * f00 + b0) < 0
        assert disagrees(new_1, new_0) == 1


def test_the_sign_of_an_interaction_without_reversal_is_not_kept_by_recalibration():
    assert interaction(0.9, 0.4, 0.1, 0.0) > 0 > interaction(0.1 * 0.9, 0.4, 0.1 * 0.1, 0.0)


def test_the_symmetric_allocation_splits_the_diagonal_change():
    # state effects 0.8 and 1.3, view effects -1.2 and -0.7
    state, view = symmetric_allocation(0.3, 1.1, -0.9, 0.4)
    assert (state, view) == (pytest.approx(1.05), pytest.approx(-0.95))


@settings(deadline=None, max_examples=60)
@given(FOUR)
def test_the_two_allocations_add_up_and_change_places_with_the_factors(corners):
    bb, ab, ba, aa = corners
    state, view = symmetric_allocation(bb, ab, ba, aa)
    assert state + view == pytest.approx(aa - bb, abs=1e-9)
    assert symmetric_allocation(bb, ba, ab, aa) == (pytest.approx(view), pytest.approx(state))


def test_opposite_signs_disagree_and_zeros_do_not():
    np.testing.assert_array_equal(
        disagrees([0.3, -0.2, 0.4, 0.0, -0.5, NAN], [-0.1, -0.7, 0.2, -0.6, 0.0, 0.3]), [1, 0, 0, 0, 0, NAN]
    )


def test_sign_counts_keep_both_directions_and_zeros_apart():
    reference = [0.3, 0.2, 0.9, -0.4, -0.1, 0.5, 0.6, 0.0, 0.7, NAN, -0.2, 0.0]
    alternative = [-0.1, -0.6, -0.2, 0.3, 0.8, 0.4, 0.1, 0.2, 0.0, -0.3, NAN, 0.0]
    counts = sign_counts(reference, alternative)
    assert (counts.pos_neg, counts.neg_pos, counts.same, counts.zero, counts.disagree) == (3, 2, 2, 3, 5)


def test_unrelated_signs_disagree_as_often_as_their_shares_say():
    assert chance_disagreement(0.5, 0.5, 0.9, 0.1) == pytest.approx(0.5)
    assert chance_disagreement(1.0, 0.0, 1.0, 0.0) == 0 and chance_disagreement(0.6, 0.2, 0.1, 0.7) == pytest.approx(0.44)
    assert sign_shares([0.2, 0.0, -3]).tolist() == [[1, 0], [0, 0], [0, 1]]
    assert sign_shares([[0.2, -1], [0, 1]]).tolist() == [[0.5, 0.5], [0.5, 0]]
    rng = np.random.default_rng(5)
    a, b = rng.choice([1, 0, -1], 40_000, p=[0.6, 0.2, 0.2]), rng.choice([1, 0, -1], 40_000, p=[0.1, 0.2, 0.7])
    assert disagrees(a, b).mean() == pytest.approx(0.44, abs=0.01)


def test_a_trajectory_of_which_no_more_than_half_was_asked_is_left_out_and_one_with_gaps_stays():
    names = np.repeat(["whole", "gaps", "half", "begun"], 4)
    plan = pd.DataFrame({"trajectory_id": names, "key": [f"k{i}" for i in range(16)]})
    plan.loc[5, "key"] = None  # a view that is not frozen
    recorded = ["k0", "k1", "k2", "k3", "k4", "k6", "k7", "k8", "k9", "k12"]
    kept = without_begun(plan, pa.table({"key": recorded}))
    assert list(kept["trajectory_id"].unique()) == ["whole", "gaps"] and list(kept.index) == list(range(8))


def test_retry_disagreement_averages_four_cross_and_two_same_pairings():
    reference = [[0.4, 0.3], [0.2, -0.1], [-0.5, -0.6], [0.1, -0.2], [0.1, 0.0], [0.3, NAN]]
    alternative = [[-0.2, -0.7], [0.9, 0.8], [-0.3, 0.4], [0.3, -0.4], [-0.2, 0.3], [-0.4, -0.6]]
    cross, same = retry_disagreement(reference, alternative)
    np.testing.assert_array_equal(cross, [1.0, 0.5, 0.5, 0.5, 0.25, NAN])
    np.testing.assert_array_equal(same, [0.0, 0.5, 0.5, 1.0, 0.5, NAN])


def test_the_trimmed_mean_drops_one_of_eleven_values_at_each_end():
    assert trimmed_mean([9, -4, 2, 1, 3, 5, 7, 100, -50, 6, 8]) == pytest.approx(37 / 9)


@settings(deadline=None, max_examples=60)
@given(st.lists(NATS, min_size=3, max_size=60), st.sampled_from([0.0, 0.1, 0.25]))
def test_the_trimmed_mean_agrees_with_scipy(values, share):
    assert trimmed_mean(values, share) == pytest.approx(trim_mean(values, share), abs=1e-9)


def test_a_missing_value_is_not_trimmed_as_if_it_were_the_largest():
    assert np.isnan(trimmed_mean([*range(1, 20), NAN]))


# -- from recordings to margins ---------------------------------------------------------------------

TASK = {
    "task_id": "risk-77",
    "candidates": [{"candidate_id": i, "text": i} for i in ("answer-a", "answer-b", FALLBACK, "answer-c")],
    "target": "answer-b",
}
OTHER = {**TASK, "task_id": "risk-78", "target": "answer-c"}


def trajectory(name, task_id):
    steps = [{"action": a, "patch": {a: 1}, "observation": a} for a in STEPS]
    return parse_trajectory({"trajectory_id": name, "task_id": task_id, "x0": {"question": "Why?"}, "steps": steps})


STUDY = Study(
    {"risk-77": TASK, "risk-78": OTHER}, {"t1": trajectory("t1", "risk-77"), "t2": trajectory("t2", "risk-78")}
)
TARGET = {"t1": 1, "t2": 3}
CROSSED = [Channel("buffered", "generated-128", stack="s1", view_state=s) for s in (4, 3)]
CHANNELS = [generated("s1"), *CROSSED, direct("s1"), matched("quote", "s1", readout="binary"), matched("quote", "s1")]


def keyed_plan(channels=tuple(CHANNELS), states=(3, 4), waves=(0,)):
    """A plan of two trajectories whose keys are the row numbers."""
    plan = make_plan(["t2", "t1"], states, channels, waves=waves)
    return plan.assign(key=[f"{i:05d}" for i in range(len(plan))])


def recorded(plan, seed=3):
    """One recording a row: four labels or Yes and No with random log-probabilities, and a token besides."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in plan.itertuples(index=False):
        labels = ["Yes", "No"] if row.readout == "binary" else ["A", "B", "C", "D"]
        values = np.log(rng.dirichlet(np.ones(len(labels) + 1)))
        rows.append(
            {
                "key": row.key,
                "tokens": [*labels, "the"],
                "logprobs": values.tolist(),
                "returned_model": "m-1",
                "sampled": "A",
            }
        )
    return rows


def margin_by_hand(rows, plan, *, name, state, channel, tau=1.0, layouts=(0, 1, 2, 3)):
    """Equations 7, 8 and 2 as loops over one endpoint's recordings."""
    answers = {row["key"]: dict(zip(row["tokens"], row["logprobs"], strict=True)) for row in rows}
    ubar = [0.0] * 4
    for layout in layouts:
        energy = [NAN] * 4
        for cell in plan.to_dict("records"):
            view_state = None if pd.isna(cell["view_state"]) else int(cell["view_state"])
            mine = {**cell, "view_state": view_state}
            if (cell["trajectory_id"], cell["state"], cell["layout"]) != (name, state, layout):
                continue
            if any(mine[field] != value for field, value in channel.fields().items()):
                continue
            answer = answers[cell["key"]]
            if channel.readout == "binary":
                energy[cell["assessed"]] = answer["Yes"] - answer["No"]
            else:
                for label, position in zip("ABCD", prompts.layout_order(layout), strict=True):
                    energy[position] = answer[label]
        for c in range(4):
            ubar[c] += tau / len(layouts) * (energy[c] - sum(energy) / 4)
    target = TARGET[name]
    return ubar[target] - math.log(sum(math.exp(u) for c, u in enumerate(ubar) if c != target)), ubar


def row_of(margins, name, state, channel):
    """The single endpoint of a trajectory, state and channel."""
    found = margins[(margins["trajectory_id"] == name) & (margins["state"] == state)]
    for field, value in channel.fields().items():
        found = found[found[field].isna() if value is None else found[field].eq(value).fillna(False)]
    assert len(found) == 1
    return found.iloc[0]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("tau", [1.0, 1.5])
def test_every_endpoint_margin_equals_the_loops_over_its_recordings(shuffled, tau):
    plan = keyed_plan()
    rows = recorded(plan)
    if shuffled:
        plan = plan.sample(frac=1, random_state=11).reset_index(drop=True)
    margins = endpoint_margins(plan, STUDY, as_table(rows), tau=tau)
    assert len(margins) == 2 * 2 * len(CHANNELS) and margins["complete"].all()
    for name in ("t1", "t2"):
        for state in (3, 4):
            for channel in CHANNELS:
                got = row_of(margins, name, state, channel)
                want, ubar = margin_by_hand(rows, plan, name=name, state=state, channel=channel, tau=tau)
                assert got["margin"] == pytest.approx(want)
                assert [got[f"energy_{c}"] for c in range(4)] == pytest.approx(ubar)
                for s in range(4):
                    alone, _ = margin_by_hand(rows, plan, name=name, state=state, channel=channel, layouts=(s,), tau=tau)
                    assert got[f"layout_{s}"] == pytest.approx(alone)


def test_a_margin_worked_out_by_hand():
    # Layout 0 shows candidates 0 1 2 3 as A B C D, layout 1 shows 3 0 1 2. Target: candidate 1.
    plan = make_plan(["t1"], [4], [direct("s1")], layouts=(0, 1)).assign(key=["a", "b"])
    first = {"key": "a", "tokens": ["A", "B", "C", "D"], "logprobs": [-3.0, -0.2, -2.0, -2.8]}
    second = {"key": "b", "tokens": ["B", "A", "D", "C"], "logprobs": [-1.0, -4.0, -3.5, -0.7]}
    got = endpoint_margins(plan, STUDY, as_table([first, second])).iloc[0]
    # centred: [-1.0, 1.8, 0.0, -0.8] and, by candidate, [1.3, 1.6, -1.2, -1.7]; mean [0.15, 1.7, -0.6, -1.25]
    assert [got[f"energy_{c}"] for c in range(4)] == pytest.approx([0.15, 1.7, -0.6, -1.25])
    assert got["margin"] == pytest.approx(1.7 - math.log(math.exp(0.15) + math.exp(-0.6) + math.exp(-1.25)))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda row: None, "not recorded"),
        (lambda row: {**row, "logprobs": [-9999.0, *row["logprobs"][1:]]}, "sentinel instead of a log-probability"),
        (lambda row: {**row, "tokens": ["?", *row["tokens"][1:]]}, "label not returned"),
        (lambda row: {**row, "tokens": None, "logprobs": None}, "answer without log-probabilities"),
        (lambda row: {**row, "tokens": None, "logprobs": None, "unread": "answered by another model: {}"}, "answered by another model"),
    ],
)
@pytest.mark.parametrize("channel", [direct("s1"), matched("quote", "s1", readout="binary")])
def test_one_unusable_answer_makes_its_endpoint_missing_with_a_reason_and_no_other(spoil, reason, channel):
    """The sampled token is there in every recording; it never stands in for the statistic."""
    plan = keyed_plan([channel, generated("s1")])
    rows = recorded(plan)
    spoiled = int(np.flatnonzero((plan["template"] == channel.template) & (plan["state"] == 4))[5])
    changed = [spoil(row) if i == spoiled else row for i, row in enumerate(rows)]
    table = as_table([row for row in changed if row is not None])
    values, why, mass = read_cells(plan, table)
    assert why[spoiled] == reason and [w for i, w in enumerate(why) if i != spoiled] == [None] * (len(plan) - 1)
    assert np.isnan(values[spoiled, :2]).any()
    assert np.isfinite(np.delete(mass, spoiled)).all()
    margins = endpoint_margins(plan, STUDY, table)
    broken = margins[~margins["complete"]]
    cell = plan.iloc[spoiled]
    assert broken[["trajectory_id", "state", "template"]].values.tolist() == [
        [cell["trajectory_id"], cell["state"], cell["template"]]
    ]
    assert broken["margin"].isna().all()
    other_layouts = [f"layout_{s}" for s in range(4) if s != cell["layout"]]
    assert broken[other_layouts].notna().all(axis=None) and broken[f"layout_{cell['layout']}"].isna().all()


def test_a_cell_without_a_frozen_view_says_so():
    plan = keyed_plan([direct("s1")])
    plan.loc[2, "key"] = None
    _, why, _ = read_cells(plan, as_table(recorded(keyed_plan([direct("s1")]))))
    assert why[2] == "view not frozen" and why[3] is None


def test_nothing_recorded_at_all_is_all_missing():
    plan = keyed_plan()
    margins = endpoint_margins(plan, STUDY, as_table([]))
    assert len(margins) == 2 * 2 * len(CHANNELS) and not margins["complete"].any()


def test_recordings_that_no_cell_asks_for_change_nothing():
    plan = keyed_plan()
    rows = recorded(plan)
    extra = [{**rows[0], "key": "zzzzz"}, {**rows[5], "key": "!"}]
    pd.testing.assert_frame_equal(
        endpoint_margins(plan, STUDY, as_table(rows)),
        endpoint_margins(plan, STUDY, as_table(extra[1:] + rows + extra[:1])),
    )


def test_waves_are_endpoints_of_their_own():
    plan = keyed_plan([direct("s1")], waves=(1, 2))
    margins = endpoint_margins(plan, STUDY, as_table(recorded(plan)))
    assert margins.groupby("wave").size().to_dict() == {1: 4, 2: 4}
    assert margins["margin"].nunique() == 8


# -- gains ------------------------------------------------------------------------------------------


def margin_rows(values, channel="direct"):
    """Margins of one channel from ``{trajectory: [F(x_first), …]}``, states from 3 on."""
    return pd.DataFrame(
        [(t, 3 + i, channel, v) for t, series in values.items() for i, v in enumerate(series)],
        columns=["trajectory_id", "state", "template", "margin"],
    )


def test_gains_are_differences_of_consecutive_states_within_a_trajectory():
    margins = pd.concat(
        [
            margin_rows({"t9": [0.5, 1.25, -0.25], "t1": [4.0, 3.0, 3.5]}),
            margin_rows({"t9": [1.0, 0.9, 0.2], "t1": [-1.0, NAN, 2.0]}, "buffered"),
        ]
    )
    gains = transition_gains(margins, by="template")
    assert gains.index.names == ["trajectory_id", "step"]
    assert gains.index.tolist() == [("t9", 4), ("t9", 5), ("t1", 4), ("t1", 5)]
    np.testing.assert_allclose(gains["direct"], [0.75, -1.5, -1.0, 0.5])
    np.testing.assert_allclose(gains["buffered"], [-0.1, -0.7, NAN, NAN])


def test_a_channel_that_is_missing_everywhere_keeps_its_column():
    margins = pd.concat([margin_rows({"t1": [0.5, 1.5]}), margin_rows({"t1": [NAN, NAN]}, "buffered")])
    gains = transition_gains(margins, by="template")
    assert gains["buffered"].isna().all() and gains["direct"].tolist() == [1.0]


def test_the_order_of_the_rows_does_not_change_a_gain():
    margins = margin_rows({"t1": [0.5, 1.25, -0.25, 2.0]})
    shuffled = margins.iloc[[2, 0, 3, 1]]
    pd.testing.assert_frame_equal(transition_gains(shuffled, by="template"), transition_gains(margins, by="template"))


def test_two_waves_in_one_column_are_refused_because_an_average_would_hide_a_missing_one():
    margins = pd.concat([margin_rows({"t1": [0.5, 1.5]}), margin_rows({"t1": [0.75, NAN]})])
    with pytest.raises(ValueError, match="endpoints of trajectory 't1', state 3 fall into one column; pass one wave"):
        transition_gains(margins, by="template")
    kept = transition_gains(margins.assign(wave=[1, 1, 2, 2]), by=["template", "wave"])
    np.testing.assert_allclose(kept[("direct", 1)], [1.0])
    assert kept[("direct", 2)].isna().all()


# -- candidate or letter ----------------------------------------------------------------------------


def square(candidate, letter, noise=0.0):
    """(1, 4, 4) values that are candidate effect + letter effect (+ noise), by layout and candidate."""
    rng = np.random.default_rng(2)
    return np.array([[[candidate[j] + letter[(j + s) % 4] for j in range(4)] for s in range(4)]]) + noise * rng.normal(size=(1, 4, 4))


def test_values_that_follow_the_candidate_or_the_letter_are_told_apart():
    assert latin_square_shares(square([3, 1, 0, 0], [0] * 4))[0] == pytest.approx([1, 0, 0])
    assert latin_square_shares(square([0] * 4, [2, 0, 0, -1]))[0] == pytest.approx([0, 1, 0])
    assert latin_square_shares(square([1, -1, 0, 0], [0, 0, 1, -1]))[0] == pytest.approx([0.5, 0.5, 0])


def test_the_shares_sum_to_one_and_ignore_what_a_layout_adds_to_all_labels():
    noisy = square([1, 0, 0, 0], [0, 1, 0, 0], noise=0.5)
    shares = latin_square_shares(noisy)
    assert shares.sum() == pytest.approx(1) and (shares > 0).all()
    assert latin_square_shares(noisy + np.arange(4)[None, :, None]) == pytest.approx(shares)
    noisy[0, 2, 1] = np.nan
    assert np.isnan(latin_square_shares(noisy)).all()


def test_a_rate_over_nonzero_moves_leaves_out_exact_zeros():
    one, two = [0.1, -0.1, 0.0, np.nan], [-0.2, -0.2, 0.3, 0.1]
    np.testing.assert_array_equal(disagrees_where_nonzero(one, two), [1.0, 0.0, np.nan, np.nan])


# -- beliefs and view interactions -------------------------------------------------------------------


def test_beliefs_are_those_of_whole_trajectories_averaged_over_layouts(study, endpoint, tmp_path):
    server = endpoint()
    stack = loopback_stack(server.url)
    names = list(study.trajectories)
    asked = tiny_plan(study, states=(3, 4))
    gap = asked.index[(asked["trajectory_id"] == names[1]) & (asked["state"] == 4)][:1]
    _, table = obtained(asked.drop(gap), study, stack, tmp_path, acquire="missing")
    plan = add_keys(asked, study, {"loopback": stack})
    ends, beliefs, target = state_beliefs(plan, study, table, tau=0.5)
    assert ends["trajectory_id"].unique().tolist() == names[:1] and ends["state"].tolist() == [3, 4]
    _, energies = endpoint_energies(plan, read_cells(plan, table)[0])
    slow = [np.mean([np.exp(0.5 * x) / np.exp(0.5 * x).sum() for x in e], axis=0) for e in energies[:2]]
    np.testing.assert_allclose(beliefs, slow)
    assert target.tolist() == [study.target(names[0])] * 2


def test_view_interactions_are_generated_minus_quote_gains_at_each_vertex():
    index = pd.MultiIndex.from_product([["t1"], ["A", "B"], ["quote", "generated"], [3, 4]], names=["trajectory_id", "vertex", "view", "state"])
    found = view_interactions(pd.Series([0.0, 1.0, 5.0, 5.5, -1.0, -3.0, 0.0, NAN], index=index), (3, 4)).loc["t1"]
    assert found[["quote_A", "generated_A", "D_A", "quote_B"]].tolist() == [1.0, 0.5, -0.5, -2.0]
    assert np.isnan(found["generated_B"]) and np.isnan(found["D_B"])


def test_a_step_over_a_state_that_nobody_scored_has_no_gain():
    margins = pd.DataFrame({"trajectory_id": "t1", "state": [3, 4, 8, 9], "margin": [1.0, 2.5, 9.0, 9.5], "channel": "direct"})
    gains = transition_gains(margins, by="channel")["direct"].droplevel("trajectory_id")
    assert gains.dropna().to_dict() == {4: 1.5, 9: 0.5}


def test_the_support_readout_gives_the_same_energies_under_every_layout_also_beside_channels_that_have_layouts():
    alone, joint = direct("s1", readout="support"), direct("s1")
    plan = keyed_plan([joint, alone], states=(4,))
    yes = {0: -0.3, 1: -0.9, 2: -2.1, 3: -1.4}
    rows = recorded(plan[plan["readout"] == "joint"])
    for row in plan[plan["readout"] == "support"].itertuples():
        rows.append({"key": row.key, "tokens": ["No", "Yes"], "logprobs": [-0.5, yes[row.assessed]]})
    ends = endpoint_margins(plan, STUDY, as_table(rows))
    got = row_of(ends, "t1", 4, alone)
    mean = sum(yes.values()) / 4
    assert [got[f"energy_{c}"] for c in range(4)] == pytest.approx([yes[c] - mean for c in range(4)])
    assert got["margin"] == pytest.approx(-0.9 - math.log(math.exp(-0.3) + math.exp(-2.1) + math.exp(-1.4)))
    assert [got[f"layout_{s}"] for s in range(4)] == pytest.approx([got["margin"]] * 4)
    assert ends["complete"].all()
