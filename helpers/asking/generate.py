"""Freeze what later runs only read: traces from tasks, and views from states."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from helpers.asking.acquire import check_mode
from helpers.asking.budget import Budget, BudgetSpent
from helpers.asking.client import Refused, RunStopped, Unusable, ask_again, client_for, parse_text
from helpers.asking.probe import ensure_probed
from helpers.asking.recordings import Recordings
from helpers.asking.turns import turn
from helpers.channels.stacks import StackError
from helpers.channels.views import ENDPOINTS, GENERATED, fits, prompt_sha256, view_id, view_messages, wanted_views
from helpers.study.files import append_jsonl, read_jsonl

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


MOST_WITHOUT_TEXT = 3  # refused or empty views after which a run that has written none stops


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


class NoText(Exception):
    """The generator refuses this view or answers without text; asking again may bring the same."""

async def generated_view(trajectory, state, kind, task, *, stack, client, budget):
    """Ask the generator for one view; the row to freeze. NoText or StackError name the view where there is none."""
    rule = GENERATED[kind]
    messages = view_messages(task, trajectory.projected[state], rule)
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
