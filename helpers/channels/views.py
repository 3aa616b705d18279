"""Views: text derived from a projected state, generated once and then frozen in ``data/views.jsonl``."""

import hashlib
import json
import re
from functools import lru_cache

from helpers.channels import wordings
from helpers.channels.prompts import generator_messages, two_pass_generator_messages
from helpers.study.files import DataError, read_jsonl
from helpers.study.projection import projected_state, state_slice
from helpers.study.traces import RETRIEVE

GENERATED = {
    "generated-128": {"max_tokens": 128, "source_only": False},
    "ungrounded-512": {"max_tokens": 512, "source_only": False},
    "source-only-512": {"max_tokens": 512, "source_only": True},
    # the first version's rationale pass, of the whole projected state and of its evidence alone
    "rationale-128": {"max_tokens": 128, "two_pass": "full"},
    "rationale-512": {"max_tokens": 512, "two_pass": "full"},
    "evidence-rationale-128": {"max_tokens": 128, "two_pass": "evidence"},
    # the same contracts in plain words
    "generated-128-plain": {"max_tokens": 128, "source_only": False, "wording": "plain"},
    "ungrounded-512-plain": {"max_tokens": 512, "source_only": False, "wording": "plain"},
    "source-only-512-plain": {"max_tokens": 512, "source_only": True, "wording": "plain"},
}
FROZEN = (*GENERATED, "donor")  # a donor is another trajectory's view, chosen once
QUOTE_LINES = 24
# Fields whose lines a quote may hold: evidence and what was concluded from it, not the question or the plan.
QUOTE_FIELDS = ("artifacts", "evidence", "answer", "citations", "issues", "verification", "observation")
ENDPOINTS = (RETRIEVE, RETRIEVE + 1)  # states before and after the retrieve step


_KEY = re.compile(r'^\s*"(?:[^"\\]|\\.)*":')  # a field's name at the beginning of a line


@lru_cache(maxsize=4096)  # every layout, readout and wave quotes the same state
def quote(state_text):
    """The quote view: at most 24 verbatim lines of a projected state, by the fixed field rule.

    A line counts when it carries a value (not only brackets) and lies in one of ``QUOTE_FIELDS``.
    """
    kept, field = [], None
    for line in state_text.split("\n"):  # not splitlines(): U+2028 may stand inside a value
        top = re.match(r' "([^"]+)":', line)
        field = top.group(1) if top else field
        carries_value = any(map(str.isalnum, _KEY.sub("", line)))
        if field in QUOTE_FIELDS and carries_value:
            kept.append(line)
    return "\n".join(kept[:QUOTE_LINES])


def view_id(trajectory_id, state, kind):
    """Identifier of a frozen view: trajectory/state/kind."""
    return f"{trajectory_id}/{state}/{kind}"


def load_views(path, trajectories, tasks=None, say=print):
    """Frozen views as ``{view_id: text}``; DataError for an unusable row or a view of a state that does not exist.

    Given ``tasks`` (dict by task_id), a view that was generated from another state, question or prompt than there is now
    counts as not frozen, and so does a donor that is no longer its donor's view. Views of trajectories that are not
    there are left out. ``say`` tells how many of either.
    """
    of, views, donors = {t.trajectory_id: t for t in trajectories}, {}, {}
    absent = stale = 0
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{path}, line {number}"
        trajectory = of.get(row.get("trajectory_id")) if isinstance(row.get("trajectory_id"), str) else None
        if trajectory is None:
            absent += 1
            continue
        if type(row.get("state")) is not int or not 0 <= row["state"] < len(trajectory.states):
            raise DataError(f"{where}: view of state {row.get('state')!r}, which {row['trajectory_id']} does not have.")
        if row.get("kind") not in FROZEN:
            raise DataError(
                f"{where}: unknown kind {row.get('kind')!r}; a frozen view is one of {', '.join(FROZEN)}."
            )
        if not isinstance(row.get("text"), str):
            raise DataError(f"{where}: the view has no text; remove the line and freeze it again.")
        key = view_id(row["trajectory_id"], row["state"], row["kind"])
        if tasks is not None and not fits(row, trajectory, tasks[trajectory.task_id]):
            stale += 1
            continue
        if row["kind"] == "donor" and "donor" in row:
            donors[key] = row  # the last one counts: a donor may have been chosen again
            continue
        if key in views:
            raise DataError(f"{where}: a second view {key}; a view is frozen once, so remove one of them.")
        views[key] = row["text"]
    for key, row in donors.items():
        given = views.get(view_id(row["donor"], row["state"], "generated-128"))
        stale += given is not None and given != row["text"]
        if given is None or given == row["text"]:
            views[key] = row["text"]
    if absent:
        say(f"{path}: {absent} views are of trajectories that are not there; they are left out.")
    if stale:
        say(f"{path}: {stale} views were made from another state, question or prompt; they count as not frozen.")
    return views


def prompt_sha256(messages):
    """Hash of a view's prompt, kept with the view."""
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()


def fits(row, trajectory, task):
    """Whether a row's view was generated from the state, the task and the prompt that there are now.

    A view without the hash of its prompt was made elsewhere and is taken as it is.
    """
    if row.get("prompt_sha256") is None or row.get("kind") not in GENERATED:
        return True
    messages = view_messages(task, projected_state(trajectory, row["state"]), GENERATED[row["kind"]])
    return row["prompt_sha256"] == prompt_sha256(messages)


def wanted_views(trajectories, kinds, states):
    """(trajectory, state, kind) triples in the order in which they are generated."""
    return [(t, k, kind) for t in trajectories for k in states for kind in kinds]


def view_messages(task, state_text, rule):
    """Messages that ask for a view by its rule in ``GENERATED``."""
    if "two_pass" in rule:
        return two_pass_generator_messages(task, state_slice(state_text, rule["two_pass"]))
    ask = wordings.generator_messages if rule.get("wording") == "plain" else generator_messages
    return ask(task, state_text, source_only=rule["source_only"])


# -- support claims of a generated view ------------------------------------------------------------


