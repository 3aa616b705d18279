"""Causal debugging of the actor: replay a trace with one factor changed, and see what becomes of the failure.

A replay is deterministic: the model's answers come from a file, so what differs between two replays was set, or
follows from what was set.
"""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pandas as pd

from helpers.actor.workflow import Workflow, as_artifact
from helpers.study.files import append_jsonl, read_jsonl
from helpers.study.tasks import terms
from helpers.study.traces import STEPS, parse_trajectory

# Each factor and the step at which it acts.
FACTORS = {"plan": "plan", "documents": "retrieve", "ranking": "retrieve", "draft": "synthesize", "audit": "audit"}


class TwoFactors(ValueError):
    """A replay was to change more than one thing, so its effect would belong to neither."""


class NotDeterministic(RuntimeError):
    """Two replays differ before the step at which something was set."""


class NotAnswered(LookupError):
    """The model's answer to a prompt is not in the file of answers and no model may be asked."""


class Remembered:
    """A model's answers by prompt, kept in a JSON Lines file of ``{"prompt_sha256", "max_tokens", "text", "usage"}``.

    ``ask``, (prompt, max_tokens) -> (text, usage dict), answers a prompt that is not in it; without it NotAnswered is
    raised. ``used`` are running totals of the usage, the same whether an answer was asked now or remembered.
    """

    def __init__(self, path, ask=None):
        self.path, self.ask, self.used = Path(path), ask, {}
        rows = read_jsonl(path, missing_ok=True)
        self.answers = {(row["prompt_sha256"], row["max_tokens"]): row for row in rows}

    def __call__(self, prompt, max_tokens):
        key = (hashlib.sha256(prompt.encode()).hexdigest(), max_tokens)
        if key not in self.answers:
            if self.ask is None:
                unknown = f"{self.path}: no answer to the prompt {key[0][:12]}…"
                raise NotAnswered(f'{unknown}; run once with ACQUIRE = "missing" to ask the model.')
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


class _Intervention(NamedTuple):
    """One factor set to one value; ``name`` is how a table calls it."""

    name: str
    factor: str
    value: object


def replay(task, retriever, ask, setting, *interventions):
    """The actor's run on a task, with at most one factor changed, as a trajectory row that could be frozen.

    ``setting`` holds the Workflow's own thresholds (``relevance``, ``support``, …), ``interventions`` none for the
    baseline, or one :class:`_Intervention`; TwoFactors for more.
    """
    if len(interventions) > 1:
        names = ", ".join(i.name for i in interventions)
        raise TwoFactors(f"{names}: one replay changes one factor; run them one at a time.")
    fixed = {}
    for it in interventions:
        if it.factor not in FACTORS:
            raise ValueError(f"factor {it.factor!r}; use one of {', '.join(FACTORS)}.")
        if it.factor == "audit":
            setting = {**setting, "support": it.value}
        elif it.factor == "ranking":
            found, order = retriever.search, it.value
            retriever = SimpleNamespace(search=lambda query, limit=5: order(found(query, limit)))
        else:
            fixed = {FACTORS[it.factor]: it.value}
    return Workflow(retriever, ask, **setting, fixed=fixed).run(task)


def causes(task, article, baseline):
    """Single changes that make sense for a failed run, as a list of :class:`_Intervention`.

    ``article`` is the library entry about the question, None where there is none; ``baseline`` is a trajectory row.
    """
    words = " ".join(dict.fromkeys(terms(task["question"])))
    every = [_Intervention("the question's words", "plan", {"plan": {"query": words}}),
             _Intervention("a lax audit", "audit", 0.0)]  # fmt: skip
    if article:
        first = lambda hits: sorted(hits, key=lambda hit: hit["doc_id"] != article["doc_id"])
        every += [_Intervention("the right document", "documents", {"artifacts": [as_artifact(article)]}),
                  _Intervention("the article first", "ranking", first)]  # fmt: skip
    if evidence := parse_trajectory(baseline).states[STEPS.index("extract") + 1].get("evidence"):
        answer = {"answer": evidence[0]["quote"], "citations": [evidence[0]["doc_id"]]}
        every.append(_Intervention("a quoting draft", "draft", answer))
    return every


def _same_until(baseline, patched, step):
    """NotDeterministic where two replays differ before the step at which something was set."""
    for old, new in zip(baseline["steps"], patched["steps"], strict=True):
        if old["action"] == step:
            return
        if old["patch"] != new["patch"]:
            differs = f"step {old['action']} differs although only {step} was set"
            raise NotDeterministic(f"{differs}; the replay cannot be trusted.")


def debug_failure(task, retriever, ask, setting, *, failed, interventions):
    """Which single change makes a failure go away, as a DataFrame, largest effect first.

    ``failed``, trajectory row -> bool, is the failure's predicate; ValueError where the baseline does not fulfil it.
    Columns: intervention, factor, effect (1 the failure goes away, 0 it stays), changed (steps whose outcome differs
    from the baseline's).
    """
    baseline = replay(task, retriever, ask, setting)
    if not failed(baseline):
        raise ValueError(f"{task['task_id']}: the replayed run does not fail, so there is nothing to debug.")
    rows = []
    for it in interventions:
        patched = replay(task, retriever, ask, setting, it)
        _same_until(baseline, patched, FACTORS[it.factor])
        steps = zip(baseline["steps"], patched["steps"], strict=True)
        changed = [old["action"] for old, new in steps if old["patch"] != new["patch"]]
        rows.append((it.name, it.factor, 1.0 - float(failed(patched)), ", ".join(changed)))
    found = pd.DataFrame(rows, columns=["intervention", "factor", "effect", "changed"])
    return found.sort_values("effect", ascending=False, kind="stable", ignore_index=True)
