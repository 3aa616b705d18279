"""Freeze what later runs only read: traces from tasks, and views from states."""

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from helpers import embedded
from helpers.acquire import check_mode
from helpers.budget import Budget, BudgetSpent
from helpers.client import Refused, RunStopped, Unusable, ask_again, client_for, parse_text
from helpers.debugging import NotAnswered, Remembered
from helpers.probe import ensure_probed
from helpers.recordings import Recordings
from helpers.tasks import append_jsonl, read_jsonl, turn
from helpers.views import ENDPOINTS, fits, freeze_views, view_id, wanted_views
from helpers.workflow import Workflow, freeze


class NotReached(Exception):
    """The actor's model cannot be used: a wrong key, no network, an endpoint that stays down."""


SLOTS = 2  # texts generated side by side by the embedded server; more would each evaluate the shared prompt again


async def obtain_views(study, kinds, states, *, path, stack, acquire="recorded", recordings=None, budget=None,
                       pairs=None, progress=True):  # fmt: skip
    """The study with its frozen views; a live run generates the ones that are missing first.

    Parameters
    ----------
    study : Study
    kinds : list of str, kinds of generated views (``views.GENERATED``)
    states : sequence of int
    path : JSONL file that the views are read from and appended to
    stack : Stack, the generator
    acquire : "recorded" leaves the study as it is; "missing" and "fresh" generate what is not there
    recordings : path, optional
        Folder of the recordings that the stack will add to as an evaluator. It is probed first, so that no view is
        paid for where the endpoint returns no log-probabilities.
    budget : Budget, optional
        Each view is one call of it; RunStopped when it is spent.
    pairs : set of (trajectory_id, state), optional; only their views are wanted
    """
    wanted = wanted_views(study.trajectories.values(), kinds, states)
    wanted = [w for w in wanted if pairs is None or (w[0].trajectory_id, w[1]) in pairs]
    missing = [w for w in wanted if view_id(w[0].trajectory_id, w[1], w[2]) not in study.views]
    if check_mode(acquire) == "recorded" or not missing:
        return study
    async with my_turn(study, path) as study:
        missing = [w for w in missing if view_id(w[0].trajectory_id, w[1], w[2]) not in study.views]
        if not missing:
            return study
        rows, left_out, budget = [], {}, budget or Budget()
        async with client_for(stack, slots=SLOTS) as client:
            if recordings is not None:
                store = Recordings(recordings, stack.name)
                async with store.my_turn():
                    await ensure_probed(stack, client, store, readouts=("joint",), budget=budget)
            views = freeze_views(missing, study.tasks, path, stack, client, at_once=SLOTS, budget=budget, left_out=left_out)
            with tqdm(total=len(missing), desc="generating views", unit="view", disable=not progress) as bar:
                try:
                    async for row in views:
                        rows.append(row)
                        bar.update()
                except BudgetSpent as spent:
                    raise RunStopped(f"{stack.name}: {spent}; what was written is kept.") from None
    if left_out:
        print(f"{len(left_out)} views stay missing: the generator has no text for them. {next(iter(left_out.values()))}")
    return with_views(study, rows)


@contextlib.asynccontextmanager
async def my_turn(study, path):
    """One run at a time adds to a views file; the block gets the study with what the others have added by then."""
    async with adding_to(path):
        rows = read_jsonl(path, missing_ok=True)
        yield with_views(study, [row for row in rows if _added(study, row)])


def _added(study, row):
    """Whether a row is one of this study's views that it does not have yet and that was made from its states."""
    name = row["trajectory_id"]
    new = view_id(name, row["state"], row["kind"]) not in study.views
    return new and name in study.trajectories and fits(row, study.trajectories[name], study.task(name))


def adding_to(path):
    """The turn of the one run that may append to a file now; its folder is made."""
    path = Path(path)
    return turn(path.with_name(f".{path.name}.lock"), f"another run is adding to {path.name}; waiting for it.")


def with_views(study, rows):
    """The study with frozen rows added to its views."""
    added = {view_id(row["trajectory_id"], row["state"], row["kind"]): row["text"] for row in rows}
    return replace(study, views=study.views | added)


def combined_words(study, name, kind="generated-128"):
    """Words of a trajectory's views before and after retrieval together; None where one is not frozen."""
    texts = [study.views.get(view_id(name, state, kind)) for state in ENDPOINTS]
    return None if None in texts else sum(len(text.split()) for text in texts)


def choose_donors(study):
    """Donor of each trajectory: another task of the same family, nearest combined word count, ties by file order.

    Any trajectory of the file may give, also one that the study leaves out. Those whose views are not frozen neither
    give nor receive; one without a relative has no donor.
    """
    words = {name: combined_words(study, name) for name in study.task_ids}
    words = {name: count for name, count in words.items() if count is not None}
    families = {}
    for name in words:
        families.setdefault(study.task(name)["family"], []).append(name)
    counts = {family: np.array([words[name] for name in names], float) for family, names in families.items()}
    tasks = {family: np.array([study.task_ids[name] for name in names]) for family, names in families.items()}
    donors = {}
    for name in (n for n in words if n in study.trajectories):
        family = study.task(name)["family"]
        apart = np.where(tasks[family] == study.task_ids[name], np.inf, np.abs(counts[family] - words[name]))
        nearest = int(apart.argmin())  # the first in the file where several are as near
        if np.isfinite(apart[nearest]):
            donors[name] = families[family][nearest]
    return donors


async def obtain_donors(study, path, *, acquire="recorded"):
    """The study with a donor view for both ends of the retrieve step; chosen once, then frozen.

    ``recorded`` leaves the study as it is. A donor that is frozen stays, also when a nearer one appears later.
    """
    if check_mode(acquire) == "recorded":
        return study
    async with my_turn(study, path) as study:
        rows = []
        for name, donor in choose_donors(study).items():
            for state in ENDPOINTS:
                if view_id(name, state, "donor") not in study.views:
                    text = study.views[view_id(donor, state, "generated-128")]
                    rows.append({"trajectory_id": name, "state": state, "kind": "donor", "text": text, "donor": donor})
        for row in rows:
            append_jsonl(path, row)
    return with_views(study, rows)


def answering(stack, client, budget=None):
    """A function for other threads: ``(prompt, max_tokens) -> (text, usage)`` at temperature zero.

    A request that the endpoint refuses raises RuntimeError, for which the actor has a fallback; an endpoint that
    cannot be used raises NotReached, so that no run is frozen as if its model had had nothing to say, and a spent
    budget RunStopped. Usage: prompt_tokens, completion_tokens and seconds, as far as the endpoint tells.
    """
    loop = asyncio.get_running_loop()

    def answer(prompt, max_tokens):
        body = {"model": stack.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
        asking = ask_again(client, body | {"temperature": 0}, parse_text, price=stack.price, budget=budget)
        start = time.monotonic()
        try:
            found = asyncio.run_coroutine_threadsafe(asking, loop).result()
        except BudgetSpent as spent:
            raise RunStopped(f"{stack.name}: {spent}; what was answered is kept.") from None
        except Refused as refusal:
            raise RuntimeError(str(refusal)) from None
        except (Unusable, RunStopped) as fault:
            raise NotReached(f"{stack.name}: {fault} Run again; what was frozen is kept.") from None
        usage = {name: found[name] for name in ("prompt_tokens", "completion_tokens")}
        told = usage if None not in usage.values() else {}
        return found["text"], {"seconds": round(time.monotonic() - start, 3), **told}

    return answer


async def with_answers(run, path, stack, *, acquire="recorded", budget=None):
    """``run(model)`` with a model that remembers its answers; a live run asks for those that are missing.

    Parameters
    ----------
    run : callable taking a :class:`Remembered`; it is called again from the start when an answer was missing, and
        what was answered by then is not asked again
    path : file of the model's answers
    stack : Stack, the actor's model
    acquire : "recorded" raises NotAnswered where an answer is missing; "missing" and "fresh" ask for it
    budget : Budget, optional; RunStopped when it is spent
    """
    check_mode(acquire)
    try:
        return run(Remembered(path))
    except NotAnswered:
        if acquire == "recorded":
            raise
    async with adding_to(path), client_for(stack) as client:
        return await asyncio.to_thread(run, Remembered(path, answering(stack, client, budget)))


async def obtain_trajectories(tasks, retriever, path, stack, *, relevance, library, budget=None, progress=True):
    """Run the workflow on every task that has no trajectory yet and append it; returns how many were run.

    Parameters
    ----------
    tasks : list of task dicts
    retriever : LibraryRetriever or PubMedRetriever
    path : JSONL file of trajectories
    stack : Stack, the actor's model
    relevance : float, least relevance of an acquired document, in the retriever's unit
    library : path of the library file, whose hash is kept in every row; None for live retrieval
    budget : Budget, optional; RunStopped when it is spent

    Notes
    -----
    Where every task has its trajectory, no model is started and no key is needed.
    """
    frozen = {row["task_id"] for row in read_jsonl(path, missing_ok=True)}
    if frozen.issuperset(task["task_id"] for task in tasks):
        return 0
    async with adding_to(path), client_for(stack) as client:
        answer = answering(stack, client, budget)
        workflow = Workflow(retriever, lambda prompt, most: answer(prompt, most)[0], relevance=relevance)
        actor = {"stack": stack.name, "relevance": relevance, "support": workflow.support}
        actor["library_sha256"] = embedded.file_sha256(library) if library else None
        steps = freeze(tasks, workflow, path, actor)
        bar = tqdm(total=len(tasks), desc="freezing traces", unit="trajectory", disable=not progress)
        count = 0
        while (number := await asyncio.to_thread(next, steps, None)) is not None:
            count = number
            bar.update()
        bar.close()
    return count
