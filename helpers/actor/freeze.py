"""Run the actor on tasks and freeze what it did; its model's answers come from a file or from an endpoint."""

import asyncio
import time

from tqdm import tqdm

from helpers.actor.replay import NotAnswered, Remembered
from helpers.actor.workflow import Workflow
from helpers.asking import embedded
from helpers.asking.answers import parse_text
from helpers.asking.client import Asker, client_for
from helpers.asking.faults import Refused
from helpers.asking.generate import adding_to
from helpers.asking.modes import check_mode
from helpers.channels.stacks import StackError
from helpers.study.files import append_jsonl, read_jsonl


class NotReached(Exception):
    """The actor's model cannot be used: a wrong key, no network, an endpoint that stays down."""


def _answering(stack, client, budget=None):
    """A function for other threads: ``(prompt, max_tokens) -> (text, usage)`` at temperature zero.

    A request that the endpoint refuses raises RuntimeError, for which the actor has a fallback; an endpoint that
    cannot be used raises NotReached, so that no run is frozen as if its model had had nothing to say, and a spent
    budget BudgetSpent. Usage: prompt_tokens, completion_tokens and seconds, as far as the endpoint tells.
    """
    loop, asker = asyncio.get_running_loop(), Asker(stack, client, budget=budget)

    def answer(prompt, max_tokens):
        body = {"model": stack.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
        asking = asker.ask(body | {"temperature": 0}, parse_text, "the actor")
        start = time.monotonic()
        try:
            found = asyncio.run_coroutine_threadsafe(asking, loop).result()
        except Refused as refusal:
            raise RuntimeError(str(refusal)) from None
        except StackError as fault:
            raise NotReached(str(fault)) from None
        usage = {name: found[name] for name in ("prompt_tokens", "completion_tokens")}
        told = usage if None not in usage.values() else {}
        return found["text"], {"seconds": round(time.monotonic() - start, 3), **told}

    return answer


async def with_answers(run, path, stack, *, acquire="recorded", budget=None):
    """``run(model)`` with a model that remembers its answers; a live run asks for those that are missing.

    ``run`` takes a :class:`Remembered` over the file ``path``; when an answer was missing it is called again from the
    start, and what was answered by then is not asked again. Raises NotAnswered where ``acquire`` is "recorded" and an
    answer is missing, BudgetSpent when the budget is.
    """
    check_mode(acquire)
    try:
        return run(Remembered(path))
    except NotAnswered:
        if acquire == "recorded":
            raise
    async with adding_to(path), client_for(stack) as client:
        return await asyncio.to_thread(run, Remembered(path, _answering(stack, client, budget)))


def freeze(tasks, workflow, path, actor):
    """Run the workflow on every task that ``path`` does not hold yet; one JSON line as each one ends.

    Yields the number of trajectories written so far in this call. ``actor`` (model, thresholds, library hash) is
    kept in every row. A run that was stopped goes on with the next task.
    """
    for number, task in enumerate(_left(tasks, path), start=1):
        append_jsonl(path, {**workflow.run(task), "actor": actor})
        yield number


def _left(tasks, path):
    frozen = {row["task_id"] for row in read_jsonl(path, missing_ok=True)}
    return [task for task in tasks if task["task_id"] not in frozen]


async def obtain_trajectories(tasks, retriever, path, stack, *, relevance, library, budget=None, progress=True):
    """Run the workflow on every task that has no trajectory yet and append it; returns how many were run.

    Parameters
    ----------
    tasks : list of task dicts; where each has its trajectory no model is started and no key is needed
    retriever : LibraryRetriever or PubMedRetriever
    path : JSONL file of trajectories
    stack : Stack, the actor's model
    relevance : float, least relevance of an acquired document, in the retriever's unit
    library : path of the library file, whose hash is kept in every row; None for live retrieval
    budget : Budget, optional; BudgetSpent when it is spent
    """
    if not _left(tasks, path):
        return 0
    async with adding_to(path), client_for(stack) as client:
        answer = _answering(stack, client, budget)
        workflow = Workflow(retriever, lambda prompt, most: answer(prompt, most)[0], relevance=relevance)
        actor = {"stack": stack.name, "relevance": relevance, "support": workflow.support}
        actor["library_sha256"] = embedded.file_sha256(library) if library else None
        steps, count = freeze(tasks, workflow, path, actor), 0
        with tqdm(total=len(tasks), desc="freezing traces", unit="trajectory", disable=not progress) as bar:
            while number := await asyncio.to_thread(next, steps, None):
                count = number
                bar.update()
    return count
