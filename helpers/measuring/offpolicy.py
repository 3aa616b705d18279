"""Off-policy evaluation: what would another policy have earned, from the log of this one?

A log holds episodes of decisions with the logging policy's propensities. All estimators refuse a decision that
the log cannot speak about: beta = 0 where pi > 0.
"""

import numpy as np
import pandas as pd


class NoSupport(ValueError):
    """The candidate policy takes a decision that the logging policy never takes."""

def ratios(target, logged):
    """Importance ratios pi / beta of decisions; NoSupport where beta is 0 and pi is not.

    Parameters
    ----------
    target, logged : (n, T) arrays of probabilities of the decisions that were taken
    """
    target, logged = np.asarray(target, float), np.asarray(logged, float)
    gap = (logged <= 0) & (target > 0)
    if gap.any():
        raise NoSupport(
            f"{int(gap.sum())} logged decisions have propensity 0 and probability above 0 under the new policy; "
            "the log holds nothing about them."
        )
    return np.divide(target, logged, out=np.zeros_like(target), where=logged > 0)


def check_support(target_policy, logging_policy):
    """NoSupport, with the actions, where a policy puts probability on what the logging policy never does.

    Parameters
    ----------
    target_policy, logging_policy : dicts ``{decision: {action: probability}}``
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

    Parameters
    ----------
    weights : (n, T) array of ratios
    returns : (n,) array
    """
    return float((np.prod(weights, axis=1) * np.asarray(returns, float)).mean())


def weighted_importance_sampling(weights, returns):
    """Products normalised to sum to one: biased for few episodes, consistent, and never outside the returns' range."""
    products = np.prod(weights, axis=1)
    return float((products * np.asarray(returns, float)).sum() / products.sum())


def per_decision(weights, rewards):
    """Each reward is weighted by the ratios of the decisions up to it.

    Parameters
    ----------
    weights, rewards : (n, T) arrays
    """
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


# -- a retrieval policy of two decisions ------------------------------------------------------------

QUERIES = ("planned", "question")
DOCUMENTS = ("first", "second", "third", "none")
EARNED = {"found": 0.25, "acquired": 0.75}  # by a right search and a right choice of the document
REWARDS = tuple(EARNED)


def retrieval_outcomes(tasks, plans, retriever, own, relevance):
    """What every pair of decisions would earn on every task.

    First decision: search with the planned query or with the question's words. It earns ``EARNED["found"]`` where the article about
    the question is among the three best hits, or, where the library holds none, where no hit is relevant enough.
    Second decision: which hit is acquired, if any. It earns ``EARNED["acquired"]`` where that is the article, or rightly none.

    Parameters
    ----------
    tasks : list of task dicts; plans : dict, task_id to the planned query; retriever : object with ``search``
    own : dict, task_id to the document about the question, None where the library holds none
    relevance : float, least relevance of a hit that counts as found

    Returns
    -------
    DataFrame indexed by (task_id, query, document): found, acquired (rewards)
    """
    rows = {}
    for task in tasks:
        name, article = task["task_id"], own[task["task_id"]]
        for query in QUERIES:
            hits = retriever.search(plans[name] if query == "planned" else task["question"], 3)
            ids = [hit["doc_id"] for hit in hits]
            found = article in ids if article else all(hit["relevance"] < relevance for hit in hits)
            for rank, document in enumerate(DOCUMENTS):
                acquired = ids[rank] if rank < len(ids) else None
                rows[name, query, document] = {
                    "found": EARNED["found"] * found, "acquired": EARNED["acquired"] * (acquired == article),
                }  # fmt: skip
    index = pd.MultiIndex.from_tuples(rows, names=["task_id", "query", "document"])
    return pd.DataFrame(list(rows.values()), index=index, columns=list(REWARDS))


def exact_value(outcomes, policy):
    """Value of a policy over all tasks and decisions: no sampling, so this is the on-policy truth."""
    chance = [policy["query"][q] * policy["document"][d] for _, q, d in outcomes.index]
    return float((outcomes.sum(axis=1) * chance).sum() / outcomes.index.get_level_values(0).nunique())


def run_policy(outcomes, policy, episodes, seed=20260716):
    """A log of episodes: tasks drawn evenly, decisions drawn from a policy whose propensities are logged.

    Returns
    -------
    DataFrame, one row an episode: task_id, query, document, p_query, p_document (propensities), found, acquired
    """
    rng = np.random.default_rng(seed)
    tasks = outcomes.index.get_level_values(0).unique()
    drawn = {"task_id": rng.choice(tasks, size=episodes)}
    for decision in ("query", "document"):
        actions, chances = zip(*policy[decision].items(), strict=True)
        drawn[decision] = rng.choice(actions, size=episodes, p=chances)
        drawn[f"p_{decision}"] = [policy[decision][a] for a in drawn[decision]]
    log = pd.DataFrame(drawn)
    earned = outcomes.loc[list(zip(log["task_id"], log["query"], log["document"], strict=True))]
    return log.assign(**{reward: earned[reward].to_numpy() for reward in REWARDS})


def log_ratios(log, policy):
    """Importance ratios of a log's two decisions under another policy, (n, 2); NoSupport as :func:`ratios`."""
    taken = zip(log["query"], log["document"], strict=True)
    target = [[policy["query"].get(q, 0), policy["document"].get(d, 0)] for q, d in taken]
    return ratios(target, log[["p_query", "p_document"]].to_numpy())
