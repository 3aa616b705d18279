"""Step diagnostics: worked examples, slow definitions beside them, and what the rules of thumb do with odd texts."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.channels.plan import load_study
from helpers.channels.views import view_id
from helpers.measuring import diagnostics as d
from helpers.measuring.cells import Cells
from helpers.measuring.reducers import competitor_margin
from helpers.reporting.params import ROOT
from helpers.study.files import DataError, write_jsonl
from tests.conftest import tiny_study

SHARP, OTHER = [9.0, 0.0, 0.0, 0.0], [0.0, 9.0, 0.0, 0.0]
FINITE = st.floats(-20, 20)
TASK = {
    "question": "Does night work go with migraine?",
    "candidates": [
        {"candidate_id": "answer-a", "text": "More migraine on nights."},
        {"candidate_id": "answer-b", "text": "The same on every shift."},
        {"candidate_id": "answer-c", "text": "Only above fifty."},
        {"candidate_id": "none-of-the-above", "text": "The evidence is insufficient."},
    ],
}
CUE = "A registry of 412 nurses in Bergen found an odds ratio of 1.9 for rotating rosters."
REPEATS = "Night work goes with migraine."


def state(*evidence, **more):
    return json.dumps({"question": TASK["question"], "evidence": list(evidence), **more})


# -- belief movement --------------------------------------------------------------------------------


def test_a_pivot_between_sharp_beliefs_moves_no_entropy_and_surprises():
    before, after = d.beliefs([[SHARP]]), d.beliefs([[OTHER]])
    assert d.entropy_movement(before, after) == pytest.approx([0.0], abs=1e-12)
    assert d.surprise(before, after)[0] > 8
    assert d.surprise(before, before) == pytest.approx([0.0], abs=1e-12)


def test_entropy_movement_is_positive_where_the_belief_sharpens_and_averages_over_layouts():
    flat, sharp = [0.0] * 4, [50.0, 0.0, 0.0, 0.0]
    one = d.entropy_movement(d.beliefs([[flat]]), d.beliefs([[sharp]]))
    assert one == pytest.approx([math.log(4)])
    assert d.entropy_movement(d.beliefs([[flat, flat]]), d.beliefs([[sharp, flat]])) == pytest.approx([math.log(4) / 2])


@given(st.lists(FINITE, min_size=4, max_size=4), st.lists(FINITE, min_size=4, max_size=4))
def test_surprise_equals_its_definition_and_is_never_negative(x, y):
    before, after = d.beliefs([[x]]), d.beliefs([[y]])
    p, q = ([(1 - 1e-6) * v + 0.25e-6 for v in b[0, 0]] for b in (after, before))
    slow = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert d.surprise(before, after)[0] == pytest.approx(slow, abs=1e-9) and d.surprise(before, after)[0] >= -1e-12


def test_the_smoothing_leaves_room_for_the_largest_published_surprise():
    one_hot = np.eye(4)[:2, None]  # a full pivot: nothing can surprise more
    assert d.surprise(one_hot[:1], one_hot[1:])[0] == pytest.approx(math.log(4e6 - 3), abs=1e-4)
    assert d.surprise(one_hot[:1], one_hot[1:])[0] > 15.194


def test_surprise_averages_layouts_before_it_compares():
    half = d.beliefs([[SHARP, OTHER]])
    assert d.surprise(half, d.beliefs([[OTHER, SHARP]])) == pytest.approx([0.0], abs=1e-12)


def test_a_larger_scale_flattens_a_belief():
    top = [d.beliefs(SHARP, scale).max() for scale in (1, 2, 5)]
    assert top == sorted(top, reverse=True) and top[0] > 0.999 and d.beliefs(SHARP, 5).sum() == pytest.approx(1)


def test_missing_spreads_through_every_diagnostic():
    missing, whole = d.beliefs([[[np.nan, 0.0, 0.0, 0.0]]]), d.beliefs([[SHARP]])
    assert np.isnan(d.entropy_movement(missing, whole)).all() and np.isnan(d.surprise(whole, missing)).all()
    assert np.isnan(d.crossings([np.nan], [1.0])).all()


def test_crossings_count_margins_that_leave_and_reach_the_positive_side():
    damage, repair = d.crossings([1.0, 1.0, -1.0, 0.0, 0.0], [0.0, 2.0, 1.0, 0.1, -1.0])
    assert damage.tolist() == [1, 0, 0, 0, 0] and repair.tolist() == [0, 0, 1, 1, 0]


def test_the_competitor_margin_is_what_the_first_version_prints():
    assert competitor_margin([2.0, 1.5, -3.0, 0.0], 0) == pytest.approx(0.5)
    assert competitor_margin([2.0, 1.5, -3.0, 0.0], 2) == pytest.approx(-5.0)


def test_a_step_table_holds_every_diagnostic_of_every_step_and_misses_what_is_missing():
    study = tiny_study()
    name = next(iter(study.trajectories))
    g = study.target(name)
    far, near = np.full(4, -4.0), np.full(4, -4.0)
    far[g], near[g], near[(g + 1) % 4] = 0.0, -1.0, 0.0  # the target leads by 4, then trails by 1
    ends = pd.DataFrame({"trajectory_id": name, "state": [0, 1, 2]})
    found = d.step_table(ends, np.array([[far, far], [near, far], [near, np.full(4, np.nan)]]), study)
    assert list(found.index) == [(name, 1), (name, 2)]
    first, second = found.iloc[0], found.iloc[1]
    assert (first["before"], first["after"], first["gain_b1"], first["gain_b4"]) == (4, -1, -5, -2.5)
    assert (first["damage"], first["repair"], second["gain_b1"]) == (1, 0, 0)
    assert np.isnan(second["gain_b4"]) and np.isnan(second["rest_b4"]) and first["surprise"] > 0
    assert np.isnan(second["entropy_b4"]) and np.isnan(second["surprise_b4"]) and 0 < first["surprise_b4"] < first["surprise"]
    rest = [x[g] - np.logaddexp.reduce(np.delete(x, g)) for x in (far, near)]
    assert first["rest_b4"] == pytest.approx((rest[1] - rest[0]) / 2)
    assert first["top_before"] == pytest.approx(np.exp(far[g]) / np.exp(far).sum())


def test_an_endpoint_that_was_not_planned_leaves_its_steps_missing():
    study = tiny_study()
    name = next(iter(study.trajectories))
    found = d.step_table(pd.DataFrame({"trajectory_id": name, "state": [0, 2]}), np.zeros((2, 1, 4)), study)
    assert np.isnan(found["gain_b1"]).all()


# -- the evaluator's quality ------------------------------------------------------------------------


def test_the_floor_stands_in_for_labels_that_were_not_returned_and_for_nothing_else():
    values = np.array([[-0.1, np.nan, -3.0, np.nan], [np.nan] * 4, [-1.0, -1.0, -2.0, -3.0]])
    reason = np.array(["label not returned", "not recorded", None], dtype=object)
    cells = Cells(None, None, values, reason, None)
    filled, floored = d.with_floor(cells, -20.0)
    filled = filled.values
    assert filled[0].tolist() == [-0.1, -20.0, -3.0, -20.0] and np.isnan(filled[1]).all() and floored.tolist() == [2, 0, 0]
    untouched, floored = d.with_floor(cells, None)
    assert np.isnan(untouched.values[0]).sum() == 2 and floored.tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    "text",
    ["Option B fits", "candidate D is best", "so the first option", "A) raises the level", "(C. lowers it", "x\nB: lowers it",
     '{"A": "supported"}', "**A**: lowers it", '"option": "B"', "Answer: C.", "see (D), which fits"],
)
def test_a_named_label_is_a_leak(text):
    assert d.label_leak(text)


@pytest.mark.parametrize(
    "text",
    ["CANDIDATE_01 fits", "A drug raises it", "vitamin D levels", "hepatitis B and C", "an option beside others", "candidate_id: CANDIDATE_04",
     "500 mg of vitamin C. Therefore", "vitamin D. Patients", "hepatitis B: the", "haemophilia A. No", "answer: A drug raises it"],
)
def test_a_letter_in_prose_is_no_leak(text):
    assert not d.label_leak(text)


def test_gold_leaks_are_words_about_the_key_and_not_about_gold_standards():
    assert all(map(d.gold_leak, ("the Gold label is", "answer key", "the correct answer", "final score 1.0")))
    assert not any(map(d.gold_leak, ("the gold standard test", "correct diagnosis", "a score of 7")))


def test_coverage_is_the_share_of_candidates_that_are_named():
    assert d._candidate_coverage("candidate_01 and CANDIDATE_04, CANDIDATE_04") == 0.5
    assert d._candidate_coverage("Candidate 02: none. candidate 3, Candidate-4 and CANDIDATE_12") == 0.75
    assert d._candidate_coverage("") == 0
    task = {"candidates": [{"candidate_id": i, "text": ""} for i in ("answer-a", "answer-b", "answer-c", "none-of-the-above")]}
    assert d._candidate_coverage("answer-a, and none-of-the-above", task) == 0.5


def test_flags_are_read_off_every_frozen_rationale():
    study = tiny_study()
    name = next(iter(study.trajectories))
    texts = {f"{name}/0/rationale-128": "Option B, says CANDIDATE_02", f"{name}/3/rationale-128": "the answer key"}
    found = d.flags(replace(study, views=texts), "rationale-128")
    assert found.loc[(name, 0)].tolist() == [True, False, 0.25] and found.loc[(name, 3)].tolist() == [False, True, 0.0]
    assert len(found) == 2 and d.flags(replace(study, views={}), "rationale-128").empty


# -- where the cue is lost --------------------------------------------------------------------------


def test_a_cue_is_an_evidence_sentence_with_words_of_its_own():
    (words,) = d._cue_spans(state(f"{CUE} {REPEATS}", answer="An answer with plenty of words."), TASK)
    assert {"registry", "412", "bergen"} <= words and "migraine" not in words
    assert d._cue_spans(state(), TASK) == []


def test_nested_evidence_is_read_and_numbers_are_no_text():
    nested = [{"doc_id": "pmid:1", "year": 2010, "text": CUE}]
    assert len(d._cue_spans(json.dumps({"artifacts": nested}), TASK)) == 1


@pytest.mark.parametrize(
    ("before", "after", "rationale", "label"),
    [
        (state(), state(CUE), "CANDIDATE_01: a registry of 412 nurses in Bergen, odds ratio 1.9", "neither"),
        (state(), state(CUE), "CANDIDATE_01: More migraine on nights.", "compression loss"),
        (state(CUE), state(REPEATS), "anything", "state damage"),
        (state(CUE), state(CUE), "", "compression loss"),
        (state(), state(), "anything", "neither"),
    ],
)
def test_the_rule_tells_lost_in_the_state_from_lost_in_the_rationale(before, after, rationale, label):
    assert d.cue_loss(before, after, rationale, TASK)["label"] == label


def test_shares_kept_are_counted_over_sentences():
    second = "Dosing followed kidney clearance in 77 wards."
    found = d.cue_loss(state(), state(CUE, second), "registry of 412 nurses Bergen odds ratio rotating rosters", TASK)
    assert (found["spans"], found["in_rationale"], found["label"]) == (2, 0.5, "neither") and np.isnan(found["in_state"])


def test_a_difference_shows_removed_and_added_lines_only():
    assert d.state_difference("{\n a\n b\n}", "{\n a\n c\n}") == ["-  b", "+  c"]


def test_hand_labels_of_cues_are_read_and_a_broken_one_is_named(tmp_path):
    path = tmp_path / "cue_labels.jsonl"
    assert d.read_cue_labels(path).empty
    write_jsonl(path, [{"trajectory_id": "t1", "step": 5, "label": "neither"}])
    assert d.read_cue_labels(path).to_dict("records") == [{"trajectory_id": "t1", "step": 5, "label": "neither"}]
    write_jsonl(path, [{"trajectory_id": "t1", "step": 5, "label": "lost"}])
    with pytest.raises(DataError, match="line 1: needs trajectory_id, step and a label of state damage"):
        d.read_cue_labels(path)


def test_the_rule_is_held_against_the_hand_where_a_rationale_is_frozen():
    study = tiny_study()
    name = next(iter(study.trajectories))
    views = {view_id(name, k, "rationale-128"): "nothing of it" for k in (4, 5)}
    labels = pd.DataFrame(
        [(name, 4, "neither"), (name, 5, "state damage"), (name, 6, "neither"), ("another", 4, "neither")],
        columns=["trajectory_id", "step", "label"],
    )
    found = d.check_cues(labels, replace(study, views=views))
    assert found[["trajectory_id", "step", "hand"]].values.tolist() == [[name, 4, "neither"], [name, 5, "state damage"]]
    rules = [d.cue_loss(study.states[name][k - 1], study.states[name][k], "nothing of it", study.task(name)) for k in (4, 5)]
    assert found["rule"].tolist() == [rule["label"] for rule in rules]
    assert d.check_cues(labels.head(0), study).empty


def test_the_shipped_labels_cover_whole_trajectories_that_exist():
    labels = d.read_cue_labels(ROOT / "data/cue_labels.jsonl")
    study = load_study(ROOT / "data/tasks.jsonl", ROOT / "data/trajectories.jsonl")
    assert set(labels["trajectory_id"]) <= set(study.trajectories) and len(labels) >= 30
    assert labels.groupby("trajectory_id")["step"].apply(sorted).map(lambda s: s == list(range(1, 12))).all()
