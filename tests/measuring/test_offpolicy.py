"""Off-policy evaluation: the chapter's worked number, unbiasedness by enumeration, and the support check."""

import itertools

import numpy as np
import pytest

from helpers.measuring import offpolicy as o

BETA = {"query": {"plan": 0.5, "question": 0.5}, "document": {"first": 0.6, "second": 0.3, "third": 0.1}}
PI = {"query": {"plan": 0.9, "question": 0.1}, "document": {"first": 0.2, "second": 0.8, "third": 0.0}}
REWARD = {("plan", "first"): 3.0, ("plan", "second"): 1.0, ("plan", "third"): 5.0, ("question", "first"): 2.0,
          ("question", "second"): 4.0, ("question", "third"): 0.0}  # fmt: skip
EVERY = list(itertools.product(BETA["query"], BETA["document"]))


def probability(policy, episode):
    return np.array([policy[d][a] for d, a in zip(BETA, episode, strict=True)])


TRUTH = sum(probability(PI, e).prod() * REWARD[e] for e in EVERY)


def log(n, seed=1):
    """n episodes of the logging policy: ratios and returns."""
    rng = np.random.default_rng(seed)
    picks = rng.choice(len(EVERY), size=n, p=[probability(BETA, e).prod() for e in EVERY])
    episodes = [EVERY[i] for i in picks]
    weights = o.ratios([probability(PI, e) for e in episodes], [probability(BETA, e) for e in episodes])
    return weights, np.array([REWARD[e] for e in episodes])


def test_the_worked_contribution():
    assert o.importance_sampling([[1.5, 0.5]], [8.0]) == pytest.approx(0.75 * 8) == 6


def test_importance_sampling_is_unbiased():
    """Weighted by how often the log holds them, all episodes together give the new policy's value."""
    weights = o.ratios([probability(PI, e) for e in EVERY], [probability(BETA, e) for e in EVERY])
    share = np.array([probability(BETA, e).prod() for e in EVERY])
    assert (share * weights.prod(axis=1) * [REWARD[e] for e in EVERY]).sum() == pytest.approx(TRUTH)


@pytest.mark.parametrize("estimate", [o.importance_sampling, o.weighted_importance_sampling])
def test_estimators_come_to_the_truth(estimate):
    assert estimate(*log(20_000)) == pytest.approx(TRUTH, abs=0.05)


def test_per_decision_weights_a_reward_by_the_decisions_up_to_it():
    weights, rewards = np.array([[2.0, 0.5], [1.0, 3.0]]), np.array([[1.0, 10.0], [0.0, 1.0]])
    assert o.per_decision(weights, rewards) == pytest.approx(((2 * 1 + 1.0 * 10) + (0 + 3 * 1)) / 2)
    late = np.array([[0.0, 10.0], [0.0, 1.0]])
    assert o.per_decision(weights, late) == pytest.approx(o.importance_sampling(weights, late.sum(axis=1)))


def test_weighted_sampling_stays_within_the_returns():
    weights, returns = log(5)
    assert returns.min() <= o.weighted_importance_sampling(weights, returns) <= returns.max()


def test_clipping_leaves_small_products_alone_and_biases_large_ones():
    weights, returns = log(2000)
    assert o.clipped(weights, returns, 1e9) == o.importance_sampling(weights, returns)
    assert o.clipped(weights, returns, 0.5) < o.importance_sampling(weights, returns)


def test_effective_sample_size_counts_equal_weights_fully_and_a_single_one_as_one():
    assert o.effective_sample_size(np.ones((50, 2))) == 50
    assert o.effective_sample_size([[100.0], [1e-9], [1e-9]]) == pytest.approx(1)


def test_a_decision_that_was_never_logged_is_refused():
    with pytest.raises(o.NoSupport, match="1 logged decisions have propensity 0"):
        o.ratios([[0.5, 0.2]], [[0.5, 0.0]])
    assert o.ratios([[0.5, 0.0]], [[0.5, 0.0]]).tolist() == [[1.0, 0.0]]
    with pytest.raises(o.NoSupport, match="no support for document: fourth"):
        o.check_support({"document": {"first": 0.5, "fourth": 0.5}}, BETA)
    o.check_support(PI, BETA)


def test_a_log_without_a_decision_does_not_speak_about_it():
    narrow = {**BETA, "document": {"first": 1.0, "second": 0.0, "third": 0.0}}
    with pytest.raises(o.NoSupport, match="document: second"):
        o.check_support(PI, narrow)


def test_the_bootstrap_spreads_around_the_estimate():
    weights, returns = log(3000)
    found = o.bootstrap(o.importance_sampling, weights, returns, draws=300)
    assert found.mean() == pytest.approx(o.importance_sampling(weights, returns), abs=3 * found.std() / np.sqrt(300))
    assert found.tolist() == o.bootstrap(o.importance_sampling, weights, returns, draws=300).tolist()
