"""Views: text derived from a projected state, computed by rule or generated once and frozen in ``data/views.jsonl``."""

import hashlib
import json
import re
from collections import ChainMap
from collections.abc import Mapping
from functools import lru_cache

from helpers.channels.prompts import generator_messages, two_pass_generator_messages, two_pass_manifest
from helpers.study.files import DataError, read_jsonl
from helpers.study.projection import state_slice
from helpers.study.traces import RETRIEVE

# Every kind of view and how it is made: computed from task and state, asked of a generator, or chosen.
KINDS = {
    "empty": {"computed": lambda task, state_text: ""},
    "quote": {"computed": lambda task, state_text: quote(state_text)},
    "candidates": {"computed": lambda task, state_text: two_pass_manifest(task)},
    "generated-128": {"max_tokens": 128, "source_only": False},
    "ungrounded-512": {"max_tokens": 512, "source_only": False},
    "source-only-512": {"max_tokens": 512, "source_only": True},
    "donor": {"chosen": "generated-128"},  # another trajectory's view of that kind, chosen once
    # the first version's rationale pass, of the whole projected state and of its evidence alone
    "rationale-128": {"max_tokens": 128, "two_pass": "full"},
    "rationale-512": {"max_tokens": 512, "two_pass": "full"},
    "evidence-rationale-128": {"max_tokens": 128, "two_pass": "evidence"},
}
GENERATED = {kind: rule for kind, rule in KINDS.items() if "max_tokens" in rule}
_FROZEN = tuple(kind for kind, rule in KINDS.items() if "computed" not in rule)
_QUOTE_LINES = 24
# Fields whose lines a quote may hold: evidence and what was concluded from it, not the question or the plan.
QUOTE_FIELDS = ("artifacts", "evidence", "answer", "citations", "issues", "verification", "observation")
ENDPOINTS = (RETRIEVE, RETRIEVE + 1)  # states before and after the retrieve step
_KEY = re.compile(r'^\s*"(?:[^"\\]|\\.)*":')  # a field's name at the beginning of a line


@lru_cache(maxsize=4096)  # every layout, readout and wave quotes the same state
def quote(state_text):
    """The quote view: the first 24 lines of a projected state that carry a value and lie in ``QUOTE_FIELDS``."""
    kept, field = [], None
    for line in state_text.split("\n"):  # not splitlines(): U+2028 may stand inside a value
        top = re.match(r' "([^"]+)":', line)
        field = top.group(1) if top else field
        if field in QUOTE_FIELDS and any(map(str.isalnum, _KEY.sub("", line))):  # not only brackets
            kept.append(line)
    return "\n".join(kept[:_QUOTE_LINES])


def view_id(trajectory_id, state, kind):
    """Identifier of a frozen view: trajectory/state/kind."""
    return f"{trajectory_id}/{state}/{kind}"


class _FrozenViews(Mapping):
    """``{view_id: text}``; a view is held against its prompt when it is first looked at; a stale one is not there.

    Stale is a view that was made from another state, question or prompt than there is now, and a donor that is no
    longer its donor's view. When the first is found, ``say`` gets the number of all.
    """

    def __init__(self, rows, fitting, say):
        self._rows, self._fitting, self._say, self._texts = rows, fitting, say, {}

    def __getitem__(self, name):
        if name not in self._texts and name in self._rows:
            self._texts[name] = self._rows[name]["text"] if self._current(self._rows[name]) else None
            if self._texts[name] is None and self._say:
                say, self._say = self._say, None
                say(len(self._rows) - len(self))
        if self._texts.get(name) is None:
            raise KeyError(name)
        return self._texts[name]

    def __iter__(self):
        return (name for name in self._rows if name in self)

    def __len__(self):
        return sum(1 for _ in self)

    def __or__(self, added):
        """These views and others beside or instead of them; none is looked at for it."""
        return ChainMap(dict(added), self)

    def _current(self, row):
        if "donor" not in row or row["kind"] != "donor":
            return self._fitting(row)
        given = self.get(view_id(row["donor"], row["state"], KINDS["donor"]["chosen"]))
        return given is None or given == row["text"]


def load_views(path, trajectories, tasks=None, say=print):
    """Frozen views of a file as FrozenViews; DataError for an unusable row or a view of a state that is not there.

    Without ``tasks`` (dict by task_id) no view is held against its prompt. Views of trajectories that are not there are
    left out, and ``say`` tells how many.
    """
    of, rows, absent = {t.trajectory_id: t for t in trajectories}, {}, 0

    def fitting(row):
        trajectory = of[row["trajectory_id"]]
        return tasks is None or fits(row, trajectory, tasks[trajectory.task_id])

    for number, row in enumerate(read_jsonl(path), start=1):
        if not isinstance(row.get("trajectory_id"), str) or row["trajectory_id"] not in of:
            absent += 1
            continue
        _check(row, of[row["trajectory_id"]], f"{path}, line {number}")
        key = view_id(row["trajectory_id"], row["state"], row["kind"])
        chosen = row["kind"] == "donor" and "donor" in row  # the last one counts: a donor may have been chosen again
        if key in rows and not chosen:
            if not fitting(row):
                continue
            if fitting(rows[key]):
                said = f"a second view {key}; a view is frozen once, so remove one of them."
                raise DataError(f"{path}, line {number}: {said}")
        rows[key] = row
    if absent:
        say(f"{path}: {absent} views are of trajectories that are not there; they are left out.")
    made = "views were made from another state, question or prompt; they count as not frozen."
    return _FrozenViews(rows, fitting, lambda stale: say(f"{path}: {stale} {made}"))


def _check(row, trajectory, where):
    if type(row.get("state")) is not int or not 0 <= row["state"] < len(trajectory.states):
        raise DataError(f"{where}: view of state {row.get('state')!r}, which {row['trajectory_id']} does not have.")
    if row.get("kind") not in _FROZEN:
        raise DataError(f"{where}: unknown kind {row.get('kind')!r}; a frozen view is one of {', '.join(_FROZEN)}.")
    if not isinstance(row.get("text"), str):
        raise DataError(f"{where}: the view has no text; remove the line and freeze it again.")


def prompt_sha256(messages):
    """Hash of a view's prompt, kept with the view."""
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()


def fits(row, trajectory, task):
    """Whether a row's view was generated from the state, the task and the prompt that there are now."""
    if row.get("prompt_sha256") is None or row.get("kind") not in GENERATED:
        return True  # made elsewhere, and taken as it is
    messages = view_messages(task, trajectory.projected[row["state"]], GENERATED[row["kind"]])
    return row["prompt_sha256"] == prompt_sha256(messages)


def wanted_views(trajectories, kinds, states):
    """(trajectory, state, kind) triples in the order in which they are generated."""
    return [(t, k, kind) for t in trajectories for k in states for kind in kinds]


def view_messages(task, state_text, rule):
    """Messages that ask for a view by its rule in ``GENERATED``."""
    if "two_pass" in rule:
        return two_pass_generator_messages(task, state_slice(state_text, rule["two_pass"]))
    return generator_messages(task, state_text, source_only=rule["source_only"])
