"""Off-policy evaluation: what would another policy have earned, from the log of this one?

A log holds episodes of decisions with the logging policy's propensities. All estimators refuse a decision that
the log cannot speak about: beta = 0 where pi > 0.
"""

import numpy as np


class NoSupport(ValueError):
    """The candidate policy takes a decision that the logging policy never takes."""


def ratios(target, logged):
    """Importance ratios pi / beta (n, T) of the decisions that were taken; NoSupport where beta is 0 and pi is not."""
    target, logged = np.asarray(target, float), np.asarray(logged, float)
    if gaps := int(((logged <= 0) & (target > 0)).sum()):
        raise NoSupport(
            f"{gaps} logged decisions have propensity 0 and probability above 0 under the new policy; "
            "the log holds nothing about them."
        )
    return np.divide(target, logged, out=np.zeros_like(target), where=logged > 0)


def check_support(target_policy, logging_policy):
    """NoSupport, with the actions, where a policy puts probability on what the logging policy never does.

    A policy is a dict ``{decision: {action: probability}}``.
    """
    missing = [
        f"{decision}: {action}"
        for decision, actions in target_policy.items()
        for action, probability in actions.items()
        if probability > 0 and logging_policy.get(decision, {}).get(action, 0) <= 0
    ]
    if missing:
        raise NoSupport(f"the log has no support for {', '.join(missing)}; log such decisions before evaluating them.")


def importance_sampling(weights, returns):
    """Mean of (product of ratios) x return: unbiased, and as variable as its largest product.

    ``weights`` (n, T) are ratios, ``returns`` (n,) what the episodes earned; so too below.
    """
    return float((np.prod(weights, axis=1) * np.asarray(returns, float)).mean())


def weighted_importance_sampling(weights, returns):
    """Products normalised to sum to one: biased for few episodes, consistent, and never outside the returns' range."""
    products = np.prod(weights, axis=1)
    return float((products * np.asarray(returns, float)).sum() / products.sum())


def per_decision(weights, rewards):
    """Each reward (n, T) is weighted by the ratios of the decisions up to it."""
    return float((np.cumprod(weights, axis=1) * np.asarray(rewards, float)).sum(axis=1).mean())


def clipped(weights, returns, most):
    """Importance sampling with products cut at ``most``: less variance, and a bias towards what was logged."""
    return float((np.minimum(np.prod(weights, axis=1), most) * np.asarray(returns, float)).mean())


def effective_sample_size(weights):
    """(sum of products)^2 / sum of their squares: how many on-policy episodes the log is worth."""
    products = np.prod(weights, axis=1)
    return float(products.sum() ** 2 / (products**2).sum())


def bootstrap(estimate, weights, values, *, draws=2000, seed=20260716):
    """An estimator over episodes drawn with replacement: (draws,) array."""
    rng = np.random.default_rng(seed)
    weights, values = np.asarray(weights, float), np.asarray(values, float)
    picks = rng.integers(len(weights), size=(draws, len(weights)))
    return np.array([estimate(weights[p], values[p]) for p in picks])
