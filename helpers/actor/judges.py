"""Three judges: utility at its soft cost, hard violations, calibration. None of them speaks for another.

A policy that broke a hard rule even once is infeasible before any utility is compared, and one whose calibration
loss is above the limit is infeasible, too; among the rest the governed value decides.
"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.study.traces import STEPS, Trajectory

# The state fields that each step may write; the question is written by nobody.
_WRITES = {
    "classify": {"question_type"}, "plan": {"plan"}, "validate_plan": {"plan"}, "retrieve": {"artifacts"},
    "extract": {"artifacts", "evidence"}, "synthesize": {"answer", "citations"}, "audit": {"issues"},
    "revise": {"answer", "citations", "issues"}, "verify": {"verification"}, "post_audit": {"issues"},
    "finalize": {"status"},
}  # fmt: skip
_QUERY_WORDS = 40  # a search query is text of one to so many words, without operators
_OPERATOR = re.compile(r"\b(?:AND|OR|NOT)\b|[\[\]()\"]")


class Violation(NamedTuple):
    """One forbidden transition: the step (1 … 11), which rule, and what was seen."""

    step: int
    rule: str
    seen: str


def violations(trajectory: Trajectory):
    """Forbidden transitions of a trajectory, in order: a list of :class:`Violation`.

    ``foreign field``: a step wrote a state field that is not its own. ``tool argument``: a search query outside its
    contract. ``unknown citation``: the state cites a document that was never retrieved. ``step after halt``: a step
    changed the state after the case was closed.
    """
    found, retrieved, cited, closed = [], set(), set(), False
    for number, (action, before, after) in enumerate(zip(STEPS, trajectory.states, trajectory.states[1:]), start=1):
        changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
        found += [Violation(number, "foreign field", k) for k in sorted(changed - _WRITES[action])]
        if closed and changed:
            found.append(Violation(number, "step after halt", ", ".join(sorted(changed))))
        if "plan" in changed and not _query_fits(after):
            found.append(Violation(number, "tool argument", str((after.get("plan") or {}).get("query"))[:80]))
        retrieved |= _documents(after)
        unknown = {str(c) for c in after.get("citations") or []} - retrieved - cited
        found += [Violation(number, "unknown citation", doc) for doc in sorted(unknown)]
        cited |= unknown
        closed = closed or bool(after.get("status"))
    return found


def _query_fits(state):
    query = state["plan"].get("query") if isinstance(state.get("plan"), dict) else None
    return isinstance(query, str) and 1 <= len(query.split()) <= _QUERY_WORDS and not _OPERATOR.search(query)


def _documents(state):
    return {str(a.get("doc_id")) for a in state.get("artifacts") or [] if isinstance(a, dict)}


def _governed_value(utility, soft_cost, price):
    """Utility minus price times soft cost: what is traded, and nothing that must not be."""
    return utility - price * soft_cost


def verdict(policies, *, price, most_loss):
    """The three judges' table, best policy first; infeasible ones come last, whatever their value.

    Parameters
    ----------
    policies : DataFrame, one row a policy: ``utility``, ``soft_cost``, ``hard`` (share of trajectories with a hard
        violation), ``loss`` (calibration loss, lower is better; NaN where it was not measured); ``value``, ``feasible``
        and ``why`` are added
    price : float, utility per unit of soft cost (the lambda of the text)
    most_loss : float, largest calibration loss that is tolerated (its epsilon)
    """
    out = policies.copy()
    out["value"] = _governed_value(out["utility"], out["soft_cost"], price)
    out["why"] = [_refusal(row, most_loss) for row in out.itertuples()]
    out["feasible"] = out["why"] == ""
    return out.sort_values(["feasible", "value"], ascending=[False, False], kind="stable")


def _refusal(row, most_loss):
    if row.hard > 0:
        return f"hard violations in {row.hard:.0%} of its trajectories"
    if np.isnan(row.loss):
        return "its calibration was not measured"
    return f"calibration loss {row.loss:.3f} above {most_loss:g}" if row.loss > most_loss else ""


def frontier(policies):
    """Which feasible policies no other feasible one beats in utility and calibration loss at once: a boolean Series."""
    rivals = policies[policies["feasible"]] if "feasible" in policies else policies
    on = pd.Series(False, index=policies.index)
    for name, utility, loss in rivals[["utility", "loss"]].itertuples():
        at_least = rivals[(rivals["utility"] >= utility) & (rivals["loss"] <= loss)]
        on[name] = not ((at_least["utility"] > utility) | (at_least["loss"] < loss)).any()
    return on


FAILURES = (
    "illegal action", "bad belief update", "missing retrieval", "contaminated memory", "premature halt",
    "unsafe reflection",
)  # fmt: skip


def failures(trajectory, own_document, score):
    """Transition-labelled failures of a trajectory by explicit rules: a list of (step, kind, what was seen).

    ``own_document`` is the library's article about the question, None where it holds none; ``score`` is the workflow's
    audit of a state, in [0, 1].

    ``illegal action``: a hard violation. ``bad belief update``: an answer is verified as supported and the audit
    after it finds issues, or the other way round. ``missing retrieval``: the library holds the article and it was not
    acquired. ``contaminated memory``: a document about something else is in the state. ``premature halt``: the case
    is closed as answered while issues remain, or given up while evidence is in the state. ``unsafe reflection``:
    revising lowered the audit's score.
    """
    states, final = trajectory.states, trajectory.states[-1]
    at = {action: number for number, action in enumerate(STEPS, start=1)}
    found = [(v.step, "illegal action", f"{v.rule}: {v.seen}") for v in violations(trajectory)]
    acquired = _documents(states[at["retrieve"]])
    if own_document and own_document not in acquired:
        found.append((at["retrieve"], "missing retrieval", f"{own_document} was not acquired"))
    foreign = sorted(acquired - {own_document})
    found += [(at["retrieve"], "contaminated memory", f"{doc} is about another question") for doc in foreign]
    before, after = score(states[at["revise"] - 1]), score(states[at["revise"]])
    if after < before:
        found.append((at["revise"], "unsafe reflection", f"audit score fell from {before:.2f} to {after:.2f}"))
    says, issues, answered = final.get("verification"), final.get("issues") or [], final.get("status") == "answered"
    if answered and says and (says == "supported") == bool(issues):
        found.append((at["verify"], "bad belief update", f"says {says}; open issues by the audit: {len(issues)}"))
    if answered and issues:
        found.append((at["finalize"], "premature halt", f"answered; open issues: {len(issues)}"))
    if final.get("status") == "abstained" and final.get("evidence"):
        found.append((at["finalize"], "premature halt", f"gave up with {len(final['evidence'])} sentences of evidence"))
    return sorted(found)
