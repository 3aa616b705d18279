"""Influence beside exact refits: where the first order follows them, and where it fails."""

import numpy as np

from helpers.measuring import influence as d


def examples(n=60, seed=3):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ [0.3, 1.2, -0.8]))).astype(float)
    return x, y


def error_share(x, y, ridge=1.0):
    """Largest error of the first-order change as a share of the largest exact change."""
    x_test, y_test = examples(30, seed=8)
    first, exact = (f(x, y, x_test, y_test, ridge) for f in (d.influence_on_loss, d.leave_one_out_loss))
    return np.abs(first - exact).max() / np.abs(exact).max()


def test_the_worked_influence():
    """Test gradient 2, inverse Hessian 0.5, item gradient 3."""
    assert d.up_weighting(np.array([2.0]), np.array([[1 / 0.5]]), [[3.0]]).tolist() == [-3.0]


def test_the_fit_is_the_minimum_of_the_penalised_loss():
    x, y = examples()
    theta = d._fit_logistic(x, y, ridge=0.7)
    loss = lambda t: d._point_loss(t, x, y).sum() + 0.35 * t @ t  # noqa: E731
    for step in np.eye(3) * 1e-3:
        assert loss(theta) < min(loss(theta + step), loss(theta - step))


def test_the_first_order_influence_follows_the_exact_refits():
    assert error_share(*examples(300)) < 0.1


def test_with_few_examples_and_a_weak_penalty_the_approximation_fails():
    assert error_share(*examples(12), ridge=0.1) > 0.5
