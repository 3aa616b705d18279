"""Causal debugging of the actor: replay a trace with one factor changed, and see what becomes of the failure.

A replay is deterministic: the model's answers come from a file, so what differs between two replays was set, or
follows from what was set.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from helpers.actor.workflow import Workflow
from helpers.study.files import append_jsonl, read_jsonl
from helpers.study.traces import STEPS, parse_trajectory
from helpers.study.words import terms

# Each factor and the step at which it acts.
FACTORS = {"plan": "plan", "documents": "retrieve", "ranking": "retrieve", "draft": "synthesize", "audit": "audit"}


class TwoFactors(ValueError):
    """A replay was to change more than one thing, so its effect would belong to neither."""

class NotDeterministic(RuntimeError):
    """Two replays differ before the step at which something was set."""


class NotAnswered(LookupError):
    """The model's answer to a prompt is not in the file of answers and no model may be asked."""


class Remembered:
    """A model's answers by prompt, kept in a JSON Lines file.

    Parameters
    ----------
    path : file of ``{"prompt_sha256", "max_tokens", "text", "usage"}``, read and appended to
    ask : callable (prompt, max_tokens) -> (text, usage dict), optional; without it an unknown prompt raises NotAnswered

    Attributes
    ----------
    used : dict, running totals of the answers' usage, the same whether an answer was asked now or remembered
    """

    def __init__(self, path, ask=None):
        self.path, self.ask = Path(path), ask
        rows = read_jsonl(path, missing_ok=True)
        self.answers = {(row["prompt_sha256"], row["max_tokens"]): row for row in rows}
        self.used = {}

    def __call__(self, prompt, max_tokens):
        key = (hashlib.sha256(prompt.encode()).hexdigest(), max_tokens)
        if key not in self.answers:
            if self.ask is None:
                raise NotAnswered(
                    f"{self.path}: no answer to the prompt {key[0][:12]}…; run once with ACQUIRE = \"missing\" to ask the model."
                )
            text, usage = self.ask(prompt, max_tokens)
            row = {"prompt_sha256": key[0], "max_tokens": max_tokens, "text": text, "usage": usage}
            append_jsonl(self.path, row)
            self.answers[key] = row
        for name, amount in self.answers[key]["usage"].items():
            self.used[name] = self.used.get(name, 0) + amount
        return self.answers[key]["text"]

    def meter(self):
        """A copy of what has been used so far."""
        return dict(self.used)


@dataclass(frozen=True)
class Intervention:
    """One factor set to one value; ``name`` is how a table calls it."""

    name: str
    factor: str
    value: object


class Ranked:
    """A retriever whose hits come in another order: ``order(hits) -> hits``."""

    def __init__(self, retriever, order):
        self.retriever, self.order = retriever, order

    def search(self, query, limit=5):
        return self.order(self.retriever.search(query, limit))


def replay(task, retriever, ask, setting, *interventions):
    """The actor's run on a task, with at most one factor changed.

    Parameters
    ----------
    setting : dict, the Workflow's own thresholds (``relevance``, ``support``, …)
    interventions : none for the baseline, or one :class:`Intervention`; TwoFactors for more

    Returns
    -------
    dict, a trajectory row as it would be frozen
    """
    if len({i.factor for i in interventions}) > 1 or len(interventions) > 1:
        raise TwoFactors(
            f"{', '.join(i.name for i in interventions)}: one replay changes one factor; run them one at a time."
        )
    fixed = {}
    for it in interventions:
        if it.factor not in FACTORS:
            raise ValueError(f"factor {it.factor!r}; use one of {', '.join(FACTORS)}.")
        if it.factor == "audit":
            setting = {**setting, "support": it.value}
        elif it.factor == "ranking":
            retriever = Ranked(retriever, it.value)
        else:
            fixed = {FACTORS[it.factor]: it.value}
    return Workflow(retriever, ask, **setting, fixed=fixed).run(task)


def causes(task, article, baseline):
    """Single changes that make sense for a failed run, as a list of :class:`Intervention`.

    Parameters
    ----------
    task : task dict
    article : library entry about the question, or None where the library holds none
    baseline : trajectory row of the failed run
    """
    words = " ".join(dict.fromkeys(terms(task["question"])))
    every = [Intervention("the question's words", "plan", {"plan": {"query": words}}), Intervention("a lax audit", "audit", 0.0)]
    if article:
        document = {"doc_id": article["doc_id"], "year": article["year"], "design": article["design"], "text": article["summary"]}
        first = lambda hits: sorted(hits, key=lambda hit: hit["doc_id"] != article["doc_id"])  # noqa: E731
        every += [Intervention("the right document", "documents", {"artifacts": [document]}),
                  Intervention("the article first", "ranking", first)]  # fmt: skip
    if evidence := parse_trajectory(baseline).states[STEPS.index("extract") + 1].get("evidence"):
        answer = {"answer": evidence[0]["quote"], "citations": [evidence[0]["doc_id"]]}
        every.append(Intervention("a quoting draft", "draft", answer))
    return every


def same_until(baseline, patched, step):
    """NotDeterministic where two replays differ before the step at which something was set."""
    for old, new in zip(baseline["steps"], patched["steps"], strict=True):
        if old["action"] == step:
            return
        if old["patch"] != new["patch"]:
            raise NotDeterministic(f"step {old['action']} differs although only {step} was set; the replay cannot be trusted.")


def debug_failure(task, retriever, ask, setting, *, failed, interventions):
    """Which single change makes a failure go away.

    Parameters
    ----------
    failed : callable (trajectory row) -> bool, the failure's predicate; the baseline must fulfil it (ValueError)
    interventions : list of :class:`Intervention`

    Returns
    -------
    DataFrame, largest effect first: intervention, factor, effect (1 the failure goes away, 0 it stays), changed
    (steps whose outcome differs from the baseline's)
    """
    baseline = replay(task, retriever, ask, setting)
    if not failed(baseline):
        raise ValueError(f"{task['task_id']}: the replayed run does not fail, so there is nothing to debug.")
    rows = []
    for it in interventions:
        patched = replay(task, retriever, ask, setting, it)
        same_until(baseline, patched, FACTORS[it.factor])
        changed = [o["action"] for o, n in zip(baseline["steps"], patched["steps"], strict=True) if o["patch"] != n["patch"]]
        rows.append((it.name, it.factor, 1.0 - float(failed(patched)), ", ".join(changed)))
    found = pd.DataFrame(rows, columns=["intervention", "factor", "effect", "changed"])
    return found.sort_values("effect", ascending=False, kind="stable", ignore_index=True)
