"""Freeze views, which later runs only read: texts that a generator writes, and donors that are chosen."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from helpers.asking.answers import parse_text
from helpers.asking.client import Asker, client_for
from helpers.asking.faults import Refused, sentence
from helpers.asking.modes import check_mode
from helpers.asking.pace import Pace
from helpers.asking.probe import ensure_probed
from helpers.asking.recordings import Recordings
from helpers.asking.turns import turn
from helpers.channels.stacks import StackError
from helpers.channels.views import ENDPOINTS, GENERATED, fits, prompt_sha256, view_id, view_messages, wanted_views
from helpers.study.files import append_jsonl, read_jsonl

_SLOTS = 2  # texts generated side by side by the embedded server; more would each evaluate the shared prompt again
_MOST_WITHOUT_TEXT = 3  # refused or empty views after which a run that has written none stops
_DONOR_KIND = "generated-128"  # the views that a donor gives


# -- generated views --------------------------------------------------------------------------------


async def obtain_views(study, kinds, states, *, path, stack, acquire="recorded", recordings=None, budget=None,
                       pairs=None, progress=True):  # fmt: skip
    """The study with its frozen views; a live run generates the ones that are missing first.

    Parameters
    ----------
    kinds, states : kinds of generated views (``views.GENERATED``) and indices of the states they are of
    path : JSONL file that the views are appended to
    stack : Stack, the generator
    acquire : "recorded" leaves the study as it is; "missing" and "fresh" generate what is not there
    recordings : folder of the recordings that the stack will add to as an evaluator, optional
        It is probed first, so that no view is paid for where the endpoint returns no log-probabilities.
    budget : Budget, optional; each view is one call of it, and BudgetSpent is raised when it is spent
    pairs : set of (trajectory_id, state), optional; only their views are wanted
    """
    wanted = wanted_views(study.trajectories.values(), kinds, states)
    wanted = [w for w in wanted if pairs is None or (w[0].trajectory_id, w[1]) in pairs]
    if check_mode(acquire) == "recorded" or not _missing(wanted, study):
        return study
    async with my_turn(study, path) as study:
        missing, rows, left_out = _missing(wanted, study), [], {}
        if not missing:
            return study
        async with client_for(stack, slots=_SLOTS) as client:
            if recordings is not None:
                store = Recordings(recordings, stack.name)
                async with store.my_turn():
                    await ensure_probed(stack, client, store, readouts=("joint",), budget=budget)
            options = {"at_once": _SLOTS, "budget": budget, "left_out": left_out}
            with tqdm(total=len(missing), desc="generating views", unit="view", disable=not progress) as bar:
                async for row in _freeze_views(missing, study.tasks, path, stack, client, **options):
                    rows.append(row)
                    bar.update()
    if left_out:
        first = next(iter(left_out.values()))
        print(f"{len(left_out)} views stay missing: the generator has no text for them. {first}")
    return _with_views(study, rows)


def _id(wanted):
    """Name of a view that is wanted, a triple (Trajectory, state, kind)."""
    return view_id(wanted[0].trajectory_id, *wanted[1:])


def _missing(wanted, study):
    return [w for w in wanted if _id(w) not in study.views]


async def _freeze_views(wanted, tasks, path, stack, client, *, at_once=4, budget=None, left_out=None):
    """Generate the views that ``path`` does not hold yet; append and yield each row as it arrives.

    Parameters
    ----------
    wanted : list of (Trajectory, state index, kind)
    tasks : dict, task_id to task
    at_once : int
        Views generated side by side; a server with as many slots shares its weights between them.
    left_out : dict, optional
        Gets ``{view id: reason}`` of views for which the generator has no text. They stay missing: the next run asks
        for them again. ``MOST_WITHOUT_TEXT`` of them and not one view stop the run.

    Raises
    ------
    StackError when the generator fails, BudgetSpent: nothing new is asked then, and what is under way is written.
    """
    left_out, written = {} if left_out is None else left_out, []
    todo = {_id(w): w for w in wanted}
    for row in read_jsonl(path, missing_ok=True):
        found = todo.get(view_id(row["trajectory_id"], row["state"], row["kind"]))
        if found and fits(row, found[0], tasks[found[0].task_id]):
            del todo[_id(found)]
    gate, asker = asyncio.Semaphore(at_once), Asker(stack, client, budget=budget, pace=Pace(at_once))

    async def one(name, view):
        async with gate:
            if asker.stopping:
                return None
            try:
                row = await _generated_view(*view, tasks[view[0].task_id], asker)
                append_jsonl(path, row)
            except Refused as reason:
                left_out[name] = str(reason)
                if len(left_out) < _MOST_WITHOUT_TEXT or written:
                    return None
                asker.stopping = True
                raise StackError(f"{stack.name}: {len(left_out)} views asked, none written. {reason}") from None
            except BaseException:
                asker.stopping = True
                raise
            written.append(row)
            return row

    running = [asyncio.ensure_future(one(*item)) for item in todo.items()]
    try:
        for finished in asyncio.as_completed(running):
            if row := await finished:
                yield row
    except asyncio.CancelledError:
        for task in running:
            task.cancel()
        raise
    finally:
        asker.stopping = True
        await asyncio.gather(*running, return_exceptions=True)


async def _generated_view(trajectory, state, kind, task, asker):
    """Ask the generator for one view; the row to freeze. Refused or StackError name the view where there is none."""
    rule, stack, name = GENERATED[kind], asker.stack, f"view {view_id(trajectory.trajectory_id, state, kind)}"
    messages = view_messages(task, trajectory.projected[state], rule)
    body = {"model": stack.model, "messages": messages, "temperature": 0, "max_tokens": rule["max_tokens"]}
    answer = await asker.ask(body, parse_text, name)
    if not answer["text"]:
        silent = Refused("the generator returned no text; look at the endpoint and run again")
        raise Refused(sentence(silent, stack, name))
    return {
        "trajectory_id": trajectory.trajectory_id, "state": state, "kind": kind, "text": answer["text"],
        "finish_reason": answer["finish_reason"], "stack": stack.name, "identity": stack.identity,
        "prompt_sha256": prompt_sha256(messages), "prompt_tokens": answer["prompt_tokens"],
        "completion_tokens": answer["completion_tokens"],
    }  # fmt: skip


# -- donors -----------------------------------------------------------------------------------------


async def obtain_donors(study, path, *, acquire="recorded"):
    """The study with a donor view for both ends of the retrieve step; chosen once, then frozen.

    ``recorded`` leaves the study as it is. A donor that is frozen stays, also when a nearer one appears later.
    """
    if check_mode(acquire) == "recorded":
        return study
    async with my_turn(study, path) as study:
        rows = [
            {"trajectory_id": name, "state": state, "kind": "donor", "donor": donor,
             "text": study.views[view_id(donor, state, _DONOR_KIND)]}
            for name, donor in _choose_donors(study).items()
            for state in ENDPOINTS if view_id(name, state, "donor") not in study.views
        ]  # fmt: skip
        for row in rows:
            append_jsonl(path, row)
    return _with_views(study, rows)


def _choose_donors(study):
    """Donor of each trajectory: another task of the same family, nearest combined word count, ties by file order.

    Any trajectory of the file may give, also one that the study leaves out. Those whose views are not frozen neither
    give nor receive; one without a relative has no donor.
    """
    words = {name: count for name in study.task_ids if (count := _combined_words(study, name)) is not None}
    families, donors = {}, {}
    for name in words:
        families.setdefault(study.task(name)["family"], []).append(name)
    for names in families.values():
        counts, tasks = np.array([words[n] for n in names], float), np.array([study.task_ids[n] for n in names])
        for name in filter(study.trajectories.__contains__, names):
            apart = np.where(tasks == study.task_ids[name], np.inf, np.abs(counts - words[name]))
            nearest = int(apart.argmin())  # the first in the file where several are as near
            if np.isfinite(apart[nearest]):
                donors[name] = names[nearest]
    return {name: donors[name] for name in words if name in donors}


def _combined_words(study, name):
    """Words of a trajectory's views before and after retrieval together; None where one is not frozen."""
    texts = [study.views.get(view_id(name, state, _DONOR_KIND)) for state in ENDPOINTS]
    return None if None in texts else sum(len(text.split()) for text in texts)


# -- the views file ---------------------------------------------------------------------------------


def adding_to(path):
    """The turn of the one run that may append to a file now; its folder is made."""
    path = Path(path)
    return turn(path.with_name(f".{path.name}.lock"), f"another run is adding to {path.name}; waiting for it.")


@contextlib.asynccontextmanager
async def my_turn(study, path):
    """One run at a time adds to a views file; the block gets the study with what the others have added by then."""
    async with adding_to(path):
        yield _with_views(study, [row for row in read_jsonl(path, missing_ok=True) if _added(study, row)])


def _added(study, row):
    """Whether a row is one of this study's views that it does not have yet and that was made from its states."""
    name = row["trajectory_id"]
    new = view_id(name, row["state"], row["kind"]) not in study.views
    return new and name in study.trajectories and fits(row, study.trajectories[name], study.task(name))


def _with_views(study, rows):
    """The study with frozen rows added to its views."""
    added = {view_id(row["trajectory_id"], row["state"], row["kind"]): row["text"] for row in rows}
    return replace(study, views=study.views | added)
