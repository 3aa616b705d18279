"""Views: text derived from a projected state, generated once and then frozen in ``data/views.jsonl``."""

import asyncio
import hashlib
import json
import re
from pathlib import Path

from helpers.projection import projected_states
from helpers.prompts import generator_messages
from helpers.tasks import DataError, read_jsonl
from helpers.traces import RETRIEVE

GENERATED = {
    "generated-128": {"max_tokens": 128, "source_only": False},
    "ungrounded-512": {"max_tokens": 512, "source_only": False},
    "source-only-512": {"max_tokens": 512, "source_only": True},
}
QUOTE_LINES = 24
# Fields whose lines a quote may hold: evidence and what was concluded from it, not the question or the plan.
QUOTE_FIELDS = ("artifacts", "evidence", "answer", "citations", "issues", "verification", "observation")
ENDPOINTS = (RETRIEVE, RETRIEVE + 1)  # states before and after the retrieve step


def quote(state_text):
    """The quote view: at most 24 verbatim lines of a projected state, by the fixed field rule.

    A line counts when it carries a value (not only brackets) and lies in one of ``QUOTE_FIELDS``.
    """
    kept, field = [], None
    for line in state_text.splitlines():
        top = re.match(r' "([^"]+)":', line)
        field = top.group(1) if top else field
        carries_value = bool(re.search(r"[A-Za-z0-9]", line.split(":", 1)[-1]))
        if field in QUOTE_FIELDS and carries_value:
            kept.append(line)
    return "\n".join(kept[:QUOTE_LINES])


def view_id(trajectory_id, state, kind):
    """Identifier of a frozen view: trajectory/state/kind."""
    return f"{trajectory_id}/{state}/{kind}"


def load_views(path, trajectories):
    """Frozen views as ``{view_id: text}``; DataError for a view of a state that does not exist."""
    states = {t.trajectory_id: len(t.states) for t in trajectories}
    views = {}
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{path}, line {number}"
        if row.get("trajectory_id") not in states:
            raise DataError(f"{where}: view of unknown trajectory {row.get('trajectory_id')!r}; remove the line.")
        if not isinstance(row.get("state"), int) or not 0 <= row["state"] < states[row["trajectory_id"]]:
            raise DataError(f"{where}: view of state {row.get('state')!r}, which {row['trajectory_id']} does not have.")
        key = view_id(row["trajectory_id"], row["state"], row["kind"])
        if key in views:
            raise DataError(f"{where}: a second view {key}; a view is frozen once, so remove one of them.")
        views[key] = row["text"]
    return views


def wanted_views(trajectories, kinds, states):
    """(trajectory, state, kind) triples in the order in which they are generated."""
    return [(t, k, kind) for t in trajectories for k in states for kind in kinds]


async def freeze_views(wanted, tasks, path, stack, client, *, at_once=4):
    """Generate the views that ``path`` does not hold yet and append each as it arrives.

    Parameters
    ----------
    wanted : list of (Trajectory, state index, kind)
    tasks : dict, task_id to task
    stack, client : the generator's Stack and an AsyncOpenAI client for it
    at_once : int
        Views generated side by side; a server with as many slots shares its weights between them.

    Yields
    ------
    dict, the row that was written. A second call goes on where the first was stopped.
    """
    path = Path(path)
    rows = read_jsonl(path) if path.exists() else []
    done = {view_id(r["trajectory_id"], r["state"], r["kind"]) for r in rows}
    todo = iter([w for w in wanted if view_id(w[0].trajectory_id, w[1], w[2]) not in done])
    arrived = asyncio.Queue()

    async def one(trajectory, state, kind):
        rule = GENERATED[kind]
        text = projected_states(trajectory)[state]
        messages = generator_messages(tasks[trajectory.task_id], text, source_only=rule["source_only"])
        answer = await client.chat.completions.create(
            model=stack.model, messages=messages, temperature=0, max_tokens=rule["max_tokens"]
        )
        choice = answer.choices[0]
        return {
            "trajectory_id": trajectory.trajectory_id,
            "state": state,
            "kind": kind,
            "text": choice.message.content or "",
            "finish_reason": choice.finish_reason,
            "stack": stack.name,
            "identity": stack.identity,
            "prompt_sha256": hashlib.sha256(json.dumps(messages).encode()).hexdigest(),
            "prompt_tokens": answer.usage.prompt_tokens,
            "completion_tokens": answer.usage.completion_tokens,
        }

    async def work():
        # Workers take the next view in order, so that neighbouring states share the server's prompt cache.
        for triple in todo:
            await arrived.put(await one(*triple))

    workers = asyncio.gather(*(work() for _ in range(at_once)))
    workers.add_done_callback(lambda _: arrived.put_nowait(None))
    try:
        while (row := await arrived.get()) is not None:
            with path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
            yield row
        await workers
    finally:
        workers.cancel()
