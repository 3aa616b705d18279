"""Influence triage: how much each training example moves the loss of a logistic model, to first order and exactly."""

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression


def _fit_logistic(x, y, ridge=1.0):
    """Coefficients (p,) of a logistic regression that minimises the summed loss + ridge/2 |theta|^2.

    ``x`` (n, p) has a column of ones if an intercept is wanted; ``y`` (n,) holds 0 and 1, both.
    """
    model = LogisticRegression(C=1 / ridge, fit_intercept=False, solver="newton-cholesky", tol=1e-10, max_iter=200)
    return model.fit(x, y).coef_[0]


def _point_loss(theta, x, y):
    """Log loss of single examples under a logistic model, (n,) array, nats."""
    z = np.atleast_2d(x) @ theta
    return np.logaddexp(0, z) - np.asarray(y, float) * z


def up_weighting(test_gradient, curvature, gradients):
    """Influence of up-weighting each of n examples on a test loss, by gradients and Hessian: -g_test' H^-1 g."""
    return -np.asarray(gradients, float) @ np.linalg.solve(curvature, test_gradient)


def influence_on_loss(x, y, x_test, y_test, ridge=1.0):
    """First-order change of a test loss when each training example is left out.

    Leaving out is up-weighting by minus one, so this is minus :func:`up_weighting`: (n,) array, nats. Positive:
    without the example the test loss rises, so it helped.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    theta = _fit_logistic(x, y, ridge)
    p = expit(x @ theta)
    curvature = (x * (p * (1 - p))[:, None]).T @ x + ridge * np.eye(x.shape[1])
    p_test = expit(np.atleast_2d(x_test) @ theta)
    test_gradient = np.atleast_2d(x_test).T @ (p_test - y_test) / len(np.atleast_1d(y_test))
    return -up_weighting(test_gradient, curvature, x * (p - y)[:, None])


def leave_one_out_loss(x, y, x_test, y_test, ridge=1.0):
    """The exact change of the mean test loss when each training example is left out and the model refitted: (n,)."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    base = _point_loss(_fit_logistic(x, y, ridge), x_test, y_test).mean()
    keep = ~np.eye(len(y), dtype=bool)
    return np.array([_point_loss(_fit_logistic(x[k], y[k], ridge), x_test, y_test).mean() - base for k in keep])
