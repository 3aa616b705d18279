"""Calibration: the chapter's worked numbers, identities, and refusals."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.measuring import calibration as c
from helpers.measuring.inference import TrajectoryDraws

PAIRS = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 1])), min_size=1, max_size=40)


@pytest.mark.parametrize(("p", "loss"), [(0.8, 0.22), (0.01, 4.61)])
def test_log_loss_of_the_truth(p, loss):
    assert c.log_loss([[p, 1 - p]], [0]) == pytest.approx(-math.log(p)) == pytest.approx(loss, abs=0.005)


@pytest.mark.parametrize(("y", "loss"), [(1, 0.01), (0, 0.81)])
def test_brier_score_of_a_confident_prediction(y, loss):
    assert c.brier([0.9], [y]) == pytest.approx(loss)


def test_brier_score_of_three_classes():
    assert c.brier_multiclass([[0.7, 0.2, 0.1]], [0]) == pytest.approx(0.14)


def test_calibration_error_of_one_bad_bucket_beside_a_good_one():
    confidence = [0.8] * 10 + [0.5] * 10
    outcome = [1] * 6 + [0] * 4 + [1] * 5 + [0] * 5
    assert c.expected_calibration_error(confidence, outcome) == pytest.approx(0.1)


def test_two_classes_cost_twice_the_binary_score():
    assert c.brier_multiclass([[0.9, 0.1]], [1]) == pytest.approx(2 * c.brier([0.9], [0]))


@given(PAIRS, st.integers(1, 12), st.sampled_from(c.BINS))
def test_the_brier_score_is_its_parts(pairs, bins, rule):
    confidence, outcome = map(np.array, zip(*pairs, strict=True))
    parts = c.brier_parts(confidence, outcome, bins, rule)
    whole = parts["reliability"] - parts["resolution"] + parts["uncertainty"] + parts["within"]
    assert whole == pytest.approx(c.brier(confidence, outcome), abs=1e-9)
    assert min(parts["reliability"], parts["resolution"], parts["uncertainty"]) >= 0


def test_without_spread_inside_the_bins_nothing_is_left_over():
    parts = c.brier_parts([0.25, 0.25, 0.75, 0.75], [0, 1, 1, 1], bins=2)
    assert parts["within"] == pytest.approx(0) and parts["reliability"] == pytest.approx(0.0625)


@given(PAIRS, st.integers(1, 12))
def test_calibration_error_is_the_weighted_gap_of_the_diagram(pairs, bins):
    confidence, outcome = map(np.array, zip(*pairs, strict=True))
    slow = 0.0
    for b in range(bins):
        inside = [i for i, p in enumerate(confidence) if min(int(p * bins), bins - 1) == b]
        if inside:
            slow += len(inside) / len(confidence) * abs(outcome[inside].mean() - confidence[inside].mean())
    assert c.expected_calibration_error(confidence, outcome, bins) == pytest.approx(slow, abs=1e-9)


def test_bins_of_equal_mass_hold_equally_many_and_keep_ties_together():
    assert np.bincount(c.bin_numbers(np.linspace(0.5, 0.99, 40), 4, "mass")).tolist() == [10, 10, 10, 10]
    assert len(set(c.bin_numbers([0.9] * 7, 4, "mass"))) == 1
    assert c.bin_numbers([0.0, 0.1, 1.0], 10, "width").tolist() == [0, 1, 9]


def test_a_good_average_can_hide_a_bad_group():
    frame = pd.DataFrame({"step": ["search"] * 10 + ["read"] * 10, "confidence": 0.7, "outcome": [1] * 4 + [0] * 6 + [1] * 10})
    found = c.conditional(frame.assign(sure=frame["step"] == "read"), "step", shares=["sure"])
    assert found["sure"].tolist() == [1.0, 0.0, 0.5]
    assert found.loc["all", "ece"] == pytest.approx(0) and found.loc["search", "ece"] == pytest.approx(0.3)
    assert list(found.index) == ["read", "search", "all"] and found["n"].tolist() == [10, 10, 20]


def test_the_bootstrap_draws_whole_trajectories():
    ids = np.repeat(["a", "b"], 3)
    draws = TrajectoryDraws(ids, 200, 1)
    found = c.bootstrapped(c.brier, [0.0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1], ids, draws)
    assert set(found) == {0.0, 0.5, 1.0} and len(found) == 200
    assert found.tolist() == c.bootstrapped(c.brier, [0.0, 0, 0, 1, 1, 1], [1] * 6, ids, draws).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: c.brier([1.2], [1]), "between 0 and 1"),
        (lambda: c.brier([np.nan], [1]), "none missing"),
        (lambda: c.brier([0.5], [2]), "an outcome is 0 or 1"),
        (lambda: c.brier([0.5, 0.5], [1]), "one outcome a confidence"),
        (lambda: c.log_loss([[0.5, 0.4]], [0]), "sum to one"),
        (lambda: c.log_loss([[np.nan, 1.0]], [0]), "none missing"),
        (lambda: c.bin_numbers([0.5], 3, "depth"), "use one of width, mass"),
    ],
)
def test_what_is_no_probability_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
