"""Label log-probabilities: variants add up, what is not there is missing, and nothing stands in for it."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.measuring.labels import (
    BINARY_LABELS,
    JOINT_LABELS,
    NO_LOGPROBS,
    NOT_RETURNED,
    SENTINEL,
    label_matrix,
    normalise,
    read_labels,
    usable,
)

NAN = math.nan


def logs(*probabilities):
    """Log-probabilities in nats."""
    return [math.log(p) for p in probabilities]


def matrix(answers, labels=JOINT_LABELS):
    """:func:`label_matrix` of ``[(tokens, logprobs), …]``."""
    tokens = pa.array([t for t, _ in answers], pa.list_(pa.string()))
    values = pa.array([v for _, v in answers], pa.list_(pa.float64()))
    return label_matrix(tokens, values, labels)


# -- worked examples --------------------------------------------------------------------------------


def test_each_label_takes_the_value_of_its_token():
    reading = read_labels(["B", "D", "A", "the", "C"], logs(0.4, 0.3, 0.15, 0.08, 0.05), JOINT_LABELS)
    assert reading.values == pytest.approx(logs(0.15, 0.4, 0.05, 0.3))
    assert reading.reasons == (None,) * 4
    assert reading.mass == pytest.approx(0.9)
    assert all(math.isnan(b) for b in reading.bounds)


def test_variants_of_one_label_add_up_as_probabilities():
    tokens = ["A", " A", "A.", "(A)", "\nA", "B", "'C'", "**D**"]
    reading = read_labels(tokens, logs(0.2, 0.1, 0.05, 0.03, 0.02, 0.25, 0.15, 0.12), JOINT_LABELS)
    assert reading.values == pytest.approx(logs(0.4, 0.25, 0.15, 0.12))
    assert reading.mass == pytest.approx(0.92)


@pytest.mark.parametrize(
    "token", ["a", "\u0410", "\uff21", ">A", "A>", "AA", "A B", "Answer", "Á", "A\u0301", "A1", "-A", "_A", ""]
)
def test_what_only_looks_like_a_label_is_none(token):
    reading = read_labels([token, "B", "C", "D"], logs(0.5, 0.2, 0.15, 0.1), JOINT_LABELS)
    assert math.isnan(reading.values[0]) and reading.reasons[0] == NOT_RETURNED
    assert reading.mass == pytest.approx(0.45)


@pytest.mark.parametrize("token", ["Yes", " Yes", "Yes.", '"Yes"', "Yes\n"])
def test_yes_is_yes_whatever_simple_punctuation_surrounds_it(token):
    assert read_labels([token, "No"], logs(0.7, 0.2), BINARY_LABELS).values == pytest.approx(logs(0.7, 0.2))


@pytest.mark.parametrize("token", ["yes", "YES", "Yes, it", "Y", "Yeah", "not"])
def test_another_spelling_of_yes_is_not_yes(token):
    assert math.isnan(read_labels([token, "No"], logs(0.7, 0.2), BINARY_LABELS).values[0])


# -- missing ----------------------------------------------------------------------------------------


def test_a_label_that_was_not_returned_is_missing_and_bounded_by_the_smallest_returned():
    reading = read_labels(["A", "B", "C"], logs(0.5, 0.2, 0.05), JOINT_LABELS)
    assert math.isnan(reading.values[3]) and reading.reasons == (None, None, None, NOT_RETURNED)
    assert reading.bounds[3] == pytest.approx(math.log(0.05)), "the residual 0.25 is larger, so it does not bind"


def test_a_label_that_was_not_returned_is_bounded_by_what_probability_is_left():
    reading = read_labels(["A", "B", "C"], logs(0.5, 0.3, 0.17), JOINT_LABELS)
    assert reading.bounds[3] == pytest.approx(math.log(0.03))
    assert all(math.isnan(b) for b in reading.bounds[:3])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.01, 1.0), min_size=4, max_size=7), st.integers(1, 3))
def test_the_true_value_of_a_cut_off_label_lies_below_its_bound(weights, kept):
    order = sorted(weights, reverse=True)
    true = [w / sum(order) for w in order]
    reading = read_labels(list("ABCDEFG")[:kept], logs(*true[:kept]), JOINT_LABELS)
    for label in range(kept, 4):
        assert math.log(true[label]) <= reading.bounds[label] + 1e-9


@pytest.mark.parametrize(
    "value", [-9999.0, -9999, -100.0, -100, -1000.0, -1e30, -math.inf, math.inf, NAN, 1e-9, 0.3, 9999.0, None, "-0.1"]
)
def test_a_sentinel_is_no_log_probability(value):
    assert not usable(value)
    reading = read_labels(["A", "B", "C", "D"], [value, -1.2, -1.9, -2.3], JOINT_LABELS)
    assert math.isnan(reading.values[0]) and reading.reasons == (SENTINEL, None, None, None)
    assert reading.mass == pytest.approx(math.exp(-1.2) + math.exp(-1.9) + math.exp(-2.3))


@pytest.mark.parametrize("value", [-1e-12, -0.0, 0.0, -0.5, -37.25, -99.9, -100.1, -999.9])
def test_an_ordinary_value_is_a_log_probability(value):
    assert usable(value)


@pytest.mark.parametrize("filler", [-9999.0, -100.0, -math.inf])
def test_a_readable_variant_counts_even_when_another_one_is_a_filler(filler):
    reading = read_labels(["A", " A", "B", "C", "D"], [filler, -0.7, -1.2, -1.9, -2.3], JOINT_LABELS)
    assert reading.values[0] == pytest.approx(-0.7) and reading.reasons[0] is None


@pytest.mark.parametrize("value", [NAN, 0.3, math.inf, None])
def test_a_variant_whose_value_says_nothing_leaves_its_label_missing(value):
    tokens, logprobs = ["A", " A", "B", "C", "D"], [value, -6.0, -1.2, -1.9, -2.3]
    reading = read_labels(tokens, logprobs, JOINT_LABELS)
    assert math.isnan(reading.values[0]) and reading.reasons == (SENTINEL, None, None, None)
    others = math.exp(-1.2) + math.exp(-1.9) + math.exp(-2.3)
    assert reading.bounds[0] == pytest.approx(math.log(1 - others)), "with what its readable variant has"
    values, sentinel, _ = matrix([(tokens, logprobs)])
    assert np.isnan(values[0, 0]) and not np.isnan(values[0, 1:]).any() and sentinel[0].tolist() == [True] + 3 * [False]


def test_a_sentinel_is_bounded_by_what_probability_is_left_alone():
    reading = read_labels(["A", "B", "C", "D"], [-9999.0, -1.2, -1.9, -2.3], JOINT_LABELS)
    assert reading.bounds[0] == pytest.approx(math.log(1 - math.exp(-1.2) - math.exp(-1.9) - math.exp(-2.3)))


@pytest.mark.parametrize(
    ("tokens", "logprobs"),
    [(None, None), ([], []), (["A"], None), (None, [-0.1]), (["A", "B"], []), (["A", "B"], [-0.1])],
)
def test_an_answer_without_usable_lists_is_missing_altogether(tokens, logprobs):
    reading = read_labels(tokens, logprobs, JOINT_LABELS)
    assert all(math.isnan(v) for v in reading.values + reading.bounds) and math.isnan(reading.mass)
    assert reading.reasons == (NO_LOGPROBS,) * 4
    values, sentinel, mass = matrix([(tokens, logprobs)])
    assert np.isnan(values).all() and not sentinel.any() and np.isnan(mass).all()


def test_no_missing_value_is_ever_a_number():
    """A floor, a zero or minus infinity would enter the margins as if it had been measured."""
    reading = read_labels(["A", "B", "the"], [-0.2, -9999.0, -4.0], JOINT_LABELS)
    assert [math.isnan(v) for v in reading.values] == [False, True, True, True]
    values, sentinel, _ = matrix([(["A", "B", "the"], [-0.2, -9999.0, -4.0])])
    np.testing.assert_array_equal(np.isnan(values), [[False, True, True, True]])
    np.testing.assert_array_equal(sentinel, [[False, True, False, False]])


# -- the fast function against the definition -------------------------------------------------------

TOKENS = st.sampled_from(
    ["A", " A", "A.", "a", "\u0410", "B", "B ", "C", "(C)", "D", ">D", "Yes", " No", "the", "", None]
)
VALUES = st.floats(-40, 0) | st.sampled_from([-9999.0, -100.0, NAN, math.inf, -math.inf, 0.25, None])
PAIRS = st.lists(st.tuples(TOKENS, VALUES), max_size=8).map(lambda p: ([t for t, _ in p], [v for _, v in p]))
ANSWERS = st.lists(
    PAIRS | st.just((None, None)) | st.just((["A"], None)) | st.just((["A", "B"], [-0.5])) | st.just((None, [-0.5])),
    max_size=6,
)


@settings(deadline=None, max_examples=300)
@given(ANSWERS, st.sampled_from([JOINT_LABELS, BINARY_LABELS]))
def test_many_answers_at_once_read_as_each_answer_by_itself(answers, labels):
    values, sentinel, mass = matrix(answers, labels)
    readings = [read_labels(tokens, logprobs, labels) for tokens, logprobs in answers]
    shape = (len(answers), len(labels))
    assert values.shape == sentinel.shape == shape and mass.shape == shape[:1]
    np.testing.assert_allclose(values, np.array([r.values for r in readings]).reshape(shape), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(mass, [r.mass for r in readings], rtol=1e-12)
    np.testing.assert_array_equal(
        sentinel, np.array([[x == SENTINEL for x in r.reasons] for r in readings]).reshape(shape)
    )


def test_values_far_below_the_smallest_double_do_not_underflow():
    values, _, mass = matrix([(["A", " A", "B", "C", "D"], [-800.0, -800.0, -0.5, -1.5, -3.0])])
    assert values[0, 0] == pytest.approx(-800.0 + math.log(2))
    assert mass[0] == pytest.approx(math.exp(-0.5) + math.exp(-1.5) + math.exp(-3.0))


def test_a_slice_of_a_larger_table_is_read_as_that_slice():
    tokens = pa.array([["A"], ["B", "C"], ["D", " D"]], pa.list_(pa.string())).slice(1)
    logprobs = pa.array([[-0.1], [-0.2, -0.3], [-2.0, -3.0]], pa.list_(pa.float64())).slice(1)
    values, _, _ = label_matrix(tokens, logprobs, JOINT_LABELS)
    np.testing.assert_allclose(values, [[NAN, -0.2, -0.3, NAN], [NAN, NAN, NAN, math.log(math.exp(-2) + math.exp(-3))]])


@settings(deadline=None, max_examples=60)
@given(st.permutations(range(6)))
def test_the_order_of_the_returned_tokens_does_not_matter(order):
    tokens, values = ["A", " A", "B", "the", "C", "D"], logs(0.3, 0.1, 0.2, 0.15, 0.12, 0.05)
    shuffled = read_labels([tokens[i] for i in order], [values[i] for i in order], JOINT_LABELS)
    assert shuffled.values == pytest.approx(logs(0.4, 0.2, 0.12, 0.05))


def test_normalising_strips_the_ends_only():
    assert normalise(" (A). ") == "A" and normalise("A.B") == "A.B" and normalise("\t'Yes'\r\n") == "Yes"


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2009", "\t", "\u2028"])
def test_any_white_space_around_a_label_is_stripped(space):
    assert read_labels([space + "A" + space, "B", "C", "D"], [-0.7, -1.2, -1.9, -2.3], JOINT_LABELS).values[0] == -0.7
