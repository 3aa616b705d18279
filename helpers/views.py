"""Views: text derived from a projected state, generated once and then frozen in ``data/views.jsonl``."""

import asyncio
import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path

from helpers.budget import Budget
from helpers.client import Refused, RunStopped, Unusable, ask_again, parse_text
from helpers.projection import projected_state, state_slice
from helpers.prompts import alias, generator_messages, two_pass_generator_messages
from helpers.stacks import StackError
from helpers.tasks import DataError, append_jsonl, read_jsonl
from helpers.traces import RETRIEVE

GENERATED = {
    "generated-128": {"max_tokens": 128, "source_only": False},
    "ungrounded-512": {"max_tokens": 512, "source_only": False},
    "source-only-512": {"max_tokens": 512, "source_only": True},
    # the first version's rationale pass, of the whole projected state and of its evidence alone
    "rationale-128": {"max_tokens": 128, "two_pass": "full"},
    "rationale-512": {"max_tokens": 512, "two_pass": "full"},
    "evidence-rationale-128": {"max_tokens": 128, "two_pass": "evidence"},
}
FROZEN = (*GENERATED, "donor")  # a donor is another trajectory's view, chosen once
QUOTE_LINES = 24
MOST_WITHOUT_TEXT = 3  # refused or empty views after which a run that has written none stops
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


async def freeze_views(wanted, tasks, path, stack, client, *, at_once=4, budget=None, left_out=None):
    """Generate the views that ``path`` does not hold yet and append each as it arrives.

    Parameters
    ----------
    wanted : list of (Trajectory, state index, kind)
    tasks : dict, task_id to task
    stack, client : the generator's Stack and an AsyncOpenAI client for it
    at_once : int
        Views generated side by side; a server with as many slots shares its weights between them.
    budget : Budget, optional
    left_out : dict, optional
        Gets ``{view id: reason}`` of views for which the generator has no text. They stay missing: the next run asks
        for them again. ``MOST_WITHOUT_TEXT`` of them and not one view stop the run.

    Yields
    ------
    dict, the row that was written. A second call goes on where the first was stopped.

    Raises
    ------
    StackError when the generator fails, BudgetSpent when the budget is: nothing new is asked then, and what is under
    way is still written.
    """
    budget, left_out = budget or Budget(), {} if left_out is None else left_out
    path = Path(path)
    rows = read_jsonl(path, missing_ok=True)
    todo = {view_id(trajectory.trajectory_id, state, kind): (trajectory, state, kind) for trajectory, state, kind in wanted}
    for row in rows:
        key = view_id(row["trajectory_id"], row["state"], row["kind"])
        if key in todo and fits(row, todo[key][0], tasks[todo[key][0].task_id]):
            del todo[key]
    gate, stop, written = asyncio.Semaphore(at_once), asyncio.Event(), []

    async def one(trajectory, state, kind):
        async with gate:
            if stop.is_set():
                return None
            try:
                row = await generated_view(trajectory, state, kind, tasks[trajectory.task_id], stack=stack, client=client, budget=budget)
            except NoText as reason:
                left_out[view_id(trajectory.trajectory_id, state, kind)] = str(reason)
                if len(left_out) < MOST_WITHOUT_TEXT or written:
                    return None
                stop.set()
                raise StackError(f"{stack.name}: {len(left_out)} views asked, none written. {reason}") from None
            except BaseException:
                stop.set()
                raise
            append_jsonl(path, row)
            written.append(row)
            return row

    running = [asyncio.ensure_future(one(*w)) for w in todo.values()]
    try:
        for finished in asyncio.as_completed(running):
            if row := await finished:
                yield row
    except asyncio.CancelledError:
        for task in running:
            task.cancel()
        raise
    finally:
        stop.set()
        await asyncio.gather(*running, return_exceptions=True)


def view_messages(task, state_text, rule):
    """Messages that ask for a view by its rule in ``GENERATED``."""
    if "two_pass" in rule:
        return two_pass_generator_messages(task, state_slice(state_text, rule["two_pass"]))
    return generator_messages(task, state_text, source_only=rule["source_only"])


class NoText(Exception):
    """The generator refuses this view or answers without text; asking again may bring the same."""


async def generated_view(trajectory, state, kind, task, *, stack, client, budget):
    """Ask the generator for one view; the row to freeze. NoText or StackError name the view where there is none."""
    rule = GENERATED[kind]
    messages = view_messages(task, projected_state(trajectory, state), rule)
    where = f"{stack.name}: view {view_id(trajectory.trajectory_id, state, kind)}"
    body = {"model": stack.model, "messages": messages, "temperature": 0, "max_tokens": rule["max_tokens"]}
    try:
        answer = await ask_again(client, body, parse_text, price=stack.price, budget=budget)
    except Refused as refusal:
        raise NoText(f"{where}: {refusal}") from None
    except (Unusable, RunStopped) as fault:
        raise StackError(f"{where}: {fault} Run again; what was written is kept.") from None
    if not answer["text"]:
        raise NoText(f"{where}: the generator returned no text; look at the endpoint and run again.")
    return {
        "trajectory_id": trajectory.trajectory_id,
        "state": state,
        "kind": kind,
        "text": answer["text"],
        "finish_reason": answer["finish_reason"],
        "stack": stack.name,
        "identity": stack.identity,
        "prompt_sha256": prompt_sha256(messages),
        **{name: answer[name] for name in ("prompt_tokens", "completion_tokens")},
    }


# -- support claims of a generated view ------------------------------------------------------------

_ALIAS = re.compile(r"\W*candidate[ _-]?0?([1-4])(?!\d)", re.IGNORECASE)
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)(?:"|(\\?\Z))|([{}\[\],:])|([^\s{}\[\],:"][^{}\[\],:"\n]*)', re.DOTALL)
_AGAINST = re.compile(
    r"contradict|against|missing|absen|lack|unsupport|ambig|unresolv|uncertain|insufficien|refut|oppos|conflict|\bgaps?\b"
    r"|\bnot?\b|\bnon\b"
)
_NOTHING = re.compile(
    r"\W*(?:none|no|nil|null|false|n\W?a|nothing|unknown|unclear|missing|absent|empty|unavailable|insufficient"
    r"|inadequate|unsupported|(?:not|none|nothing) (?:\w+ ){0,2}(?:provided|available|applicable|found|given|present"
    r"|stated|mentioned|specified|identified|reported|supported|sufficient))\W*",
    re.IGNORECASE,
)
_EVIDENCE = (
    r"(?:evidence|support|information|data|facts?|details?|stud(?:y|ies)|sources?|mention|statement|artifacts?|proof)"
)
_KIND = (  # words that may stand between "no" and "evidence"
    r"(?:a|any|and|or|the|direct|explicit|specific|clear|relevant|factual|substantive|supporting|supportive"
    r"|contradicting|further|additional|available|such|sufficient|concrete|empirical|strong|reliable|scientific"
    r"|clinical|quantitative|conclusive)"
)
_MARK = re.compile(r"\W*(?:missing|absent|insufficient|unavailable|not (?:provided|available))\W*", re.IGNORECASE)
_ABSENT = re.compile(
    rf"""
      \b(?:no|without|lacks?|lacking|absence\ of|lack\ of|insufficient|inadequate|missing|absent|not\ enough
         |unavailable)\s+(?:{_KIND}\s+){{0,4}}{_EVIDENCE}\b
    | \b{_EVIDENCE}\b(?:\s+[\w-]+){{0,8}}\s+(?:(?:is|are|was|were)\s+(?:[\w-]+\s+)?)?
         (?:missing|absent|insufficient|inadequate|lacking|unavailable|empty|not\ (?:found|given|present|reported))\b
    | (?:\b(?:not|never|cannot\ be)|n't)\s+(?:[\w-]+\s+){{0,2}}(?:provided?|available|stated?|mention(?:ed)?
         |specif(?:y|ied)|included?|contain(?:ed)?|address(?:ed)?|support(?:ed)?|sufficient)\b
    | \binsufficient\ to\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def supported_candidates(view_text, fallback=3, *, texts=(), stand_in=True):
    """Positions (0 … 3) of the concrete candidates that a generated view claims support for.

    Parameters
    ----------
    view_text : str
        JSON-like text of the generator; a code fence, text around it and a cut at the token cap are allowed for.
    fallback : int
        Position of the none-of-the-above candidate, which never counts.
    texts : sequence of str
        The candidates' texts by position. A string that is word for word one of them then names that candidate, too:
        generators list a candidate's text as evidence without its id.
    stand_in : bool
        Whether a field named "evidence" counts as the support field of an object that has none.

    Returns
    -------
    set of int, or None when the text holds no bracket and no field named support or evidence

    Notes
    -----
    The empty-before content audit of the ASV paper (Appendix A). A candidate counts when one of its support fields
    holds text that does not mark evidence as absent. In detail:

    - A candidate is named by an alias (``CANDIDATE_01``) as a key, as the value of a field such as ``candidate_id``,
      or at the beginning of a string. What lies inside such an object or under such a key belongs to it.
    - A support field is one whose name has a word that begins with "support". In an object without such a field, one
      whose name has the word "evidence" stands in for it (unless ``stand_in`` is False): generators write "evidence"
      beside "contradicting_evidence" and "missing_evidence". Names that say against, contradicting, missing, absent,
      ambiguous, unresolved and the like are neither.
    - Its value may be text, a list (one item is enough) or an object (its texts are read together, and one that is
      just "missing", "absent", "insufficient", "unavailable" or "not provided" marks them all). Text inherits the
      field that it lies in, unless its own object says which field is which.
    - Text counts when it has a word and says neither nothing ("none", "n/a", "missing", "not provided") nor, anywhere
      in it, that evidence, support, information, data or the like is absent, missing, insufficient, not provided or
      unavailable. Whether what it says is true, or only restates the candidate, is not judged.
    - A text that is cut off before its fourth word does not count; "true" and "false" are read as words.
    """
    for position, text in enumerate(texts):
        view_text = view_text.replace(f'"{text}"', f'"{alias(position)}: {text}"')
    tokens = [_token(m) for m in _TOKEN.finditer(view_text)]
    start = next((i for i, (mark, _) in enumerate(tokens) if mark in "{["), None)
    rest = tokens[start or 0 :][::-1]
    top, found = [], set()
    try:
        while rest:
            top += _members(rest)
        _claims(tuple(top), None, False, found, stand_in)
    except RecursionError:  # a generator that loops writes thousands of brackets
        return None
    if start is None and not any(_role(key) for key, _ in top):
        return None
    return found - {fallback}


def _token(match):
    """(mark, text) of one token; the mark of a text is 's' (quoted) or 'b' (bare)."""
    quoted, cut, mark, bare = match.groups()
    if mark:
        return mark, ""
    if bare is not None:
        return "b", bare.strip(" '`*-")
    return "s", "" if cut is not None and len(quoted.split()) < 4 else quoted


def _value(rest):
    """The next value of a reversed token list: str, list of values, or tuple of (key, value) pairs."""
    mark, text = rest.pop()
    if mark == "{":
        return tuple(_members(rest))
    if mark != "[":
        return text
    items = []
    while rest and rest[-1][0] not in "]}":
        if rest[-1][0] in ",:":
            rest.pop()
        else:
            items.append(_value(rest))
    if rest and rest[-1][0] == "]":
        rest.pop()
    return items


def _members(rest):
    """(key, value) pairs up to the end of an object; a value without a key has the key ''."""
    pairs = []
    while rest:
        mark = rest[-1][0]
        if mark in "}]":
            rest.pop()
            break
        if mark in ",:":
            rest.pop()
            continue
        item = _value(rest)
        if isinstance(item, str) and rest and rest[-1][0] == ":":
            rest.pop()
            pairs.append((item, _value(rest) if rest and rest[-1][0] not in "},]" else ""))
        elif isinstance(item, str) and pairs and isinstance(pairs[-1][1], str) and not _ALIAS.match(item):
            # the rest of a bare value that holds a comma or a colon
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]}, {item}")
        else:
            pairs.append(("", item))
    return pairs


def _role(key):
    """What a field holds by its name: 'support', 'evidence', 'against' or None."""
    name = re.sub(r"[^a-z]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key).lower())
    if _AGAINST.search(name):
        return "against"
    return "support" if re.search(r"\bsupport", name) else "evidence" if re.search(r"\bevidences?\b", name) else None


def _alias_position(text):
    match = _ALIAS.match(text)
    return int(match.group(1)) - 1 if match else None


def _only_alias(text):
    return isinstance(text, str) and bool(re.fullmatch(_ALIAS.pattern + r"\W*", text, re.IGNORECASE))


def _texts(value):
    """All texts of a value, in order."""
    if isinstance(value, str):
        return [value]
    return [text for item in value for text in _texts(item[1] if isinstance(value, tuple) else item)]


def _claims_support(text):
    return bool(re.search(r"[A-Za-z]{2}", text)) and not _NOTHING.fullmatch(text) and not _ABSENT.search(text)


def _claims(value, candidate, in_support, found, stand_in):
    """Add to ``found`` the positions that a parsed value claims support for."""
    if isinstance(value, str):
        named = _alias_position(value) if candidate is None else candidate
        if in_support and named is not None and _claims_support(value):
            found.add(named)
    elif isinstance(value, list):
        for item in value:
            _claims(item, candidate, in_support, found, stand_in)
    else:
        _object_claims(value, candidate, in_support, found, stand_in)


def _object_claims(pairs, candidate, in_support, found, stand_in):
    roles = [_role(key) if _alias_position(key) is None else None for key, _ in pairs]
    own = [
        _alias_position(value) for (_, value), role in zip(pairs, roles, strict=True) if not role and _only_alias(value)
    ]
    candidate = own[0] if len(own) == 1 else candidate
    keyed = any(_alias_position(key) is not None for key, _ in pairs)
    if in_support and not any(roles) and not keyed and len(own) <= 1:
        texts = [text for _, value in pairs if not _only_alias(value) for text in _texts(value)]
        if not any(_MARK.fullmatch(text) for text in texts):
            _claims(". ".join(texts), candidate, True, found, stand_in)
        return
    support = "support" if "support" in roles or not stand_in else "evidence"
    for (key, value), role in zip(pairs, roles, strict=True):
        named = _alias_position(key)
        if not role and _only_alias(value) and named is None:
            candidate = _alias_position(value)
            continue
        counts = role == support if role else in_support and not any(roles)
        _claims(value, candidate if named is None else named, counts, found, stand_in)
