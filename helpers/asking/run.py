"""Ask an evaluator: many requests at once, adaptive, durable, resumable.

Every answer is on disk before it counts. A refused request is missing with its reason; a fault that
may pass is tried again; a wrong key or an exhausted budget stops the run with one clear sentence.
"""

import asyncio
import contextlib
import json

import pandas as pd
from tqdm import tqdm

from helpers.asking.answers import parse_answer, plain_text
from helpers.asking.client import Asker
from helpers.asking.faults import Refused, RunStopped, Unusable
from helpers.channels.plan import CELL, cell_messages, in_order, request_body, request_parts
from helpers.measuring.labels import ANOTHER_MODEL, BINARY_LABELS, JOINT_LABELS, SENTINEL, read_labels

_OUTAGE_S = 300.0  # how long an endpoint may be out of reach before a run gives up
_GRACE_S = 30.0  # how long a stopping run waits for answers that are paid for
_MOST_SPOILED = 0.2
_FIRST_LOOK = 20  # settled cells before the spoiled share is looked at


def _set_aside(row):
    """An answer by a model that the stack does not declare: what came is kept, nothing of it is read as a value."""
    said = json.dumps({name: row.pop(name, None) for name in ("tokens", "logprobs", "unread")})
    return row | {"unread": plain_text(f"{ANOTHER_MODEL}: {said}"[:4000])}


def _is_spoiled(row, readout):
    """Whether an answer came without log-probabilities, from another model, or with a sentinel for a label."""
    labels = BINARY_LABELS if readout == "binary" else JOINT_LABELS
    return bool(row.get("unread")) or SENTINEL in read_labels(row.get("tokens"), row.get("logprobs"), labels).reasons


class Acquisition:
    """One run over one stack: what is missing is asked, in the declared order, and written.

    Parameters
    ----------
    recordings : Recordings
    stack, client, options : as :class:`client.Asker` takes them
    most_spoiled : float
        The run stops when more than this share of the cells (after the first 20) came back without
        log-probabilities or with a sentinel for a label, from another model, or not at all.

    Attributes
    ----------
    failures : dict, why cells stay missing, by key
    written, begun, settled, spoiled : int, answers on disk; cells asked, through, and through without a usable answer
    """

    def __init__(self, recordings, stack, client, *, progress=True, most_spoiled=_MOST_SPOILED, outage_s=_OUTAGE_S,
                 **options):  # fmt: skip
        self.recordings, self.stack, self.progress, self.most_spoiled = recordings, stack, progress, most_spoiled
        self.asker = Asker(stack, client, outage_s=outage_s, **options)
        self.budget = self.asker.budget
        self.failures = {}
        self.written = self.begun = self.settled = self.spoiled = self._unwritten = 0
        self._room = asyncio.Event()

    async def run(self, cells):
        """Ask ``cells``, an iterable of ``(row fields, request body)``; returns how many answers were written.

        Raises RunStopped when the run cannot go on and DataError when answers cannot be written; what has
        arrived by then is written first, as far as the disk takes it.
        """
        cells = list(cells)
        if not cells:
            return 0
        self._queue, self._todo = asyncio.Queue(), iter(cells)
        bar = tqdm(total=len(cells), desc=f"asking {self.stack.name}", unit="cell", disable=not self.progress)
        try:
            with bar, self.recordings.writer() as write:
                await self._ask_and_write(write, bar, len(cells))
        finally:
            with contextlib.suppress(Exception):  # a reason that cannot be noted must not hide the error that matters
                self.recordings.note_failures(self.failures)
        return self.written

    async def _ask_and_write(self, write, bar, cells):
        """Workers and the writer side by side: either one's failure ends both, and the queue is written."""
        writer = asyncio.create_task(self._write(write, bar))
        asking = asyncio.create_task(self._ask_all(cells))
        try:
            await asyncio.wait({writer, asking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.asker.stopping = True
            asking.cancel()  # no effect where it has ended; else the writer failed or the run was interrupted
            await asyncio.gather(asking, return_exceptions=True)
            self._queue.put_nowait(None)
            await writer
        if not asking.cancelled():
            asking.result()

    async def _ask_all(self, cells):
        """All workers until the cells are through; the first one's failure stops the others."""
        workers = {asyncio.create_task(self._work()) for _ in range(min(self.stack.concurrency, cells))}
        try:
            done, running = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            self.asker.stopping = True
            paid = running & self.asker.out
            for worker in running - paid:
                worker.cancel()
            if paid:  # their requests are out and will be charged: wait for the answers, ask nothing new
                await asyncio.wait(paid, timeout=_GRACE_S)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        for worker in done:
            worker.result()

    async def _work(self):
        for fields, body in self._todo:
            while self._unwritten > max(8, 4 * self.stack.concurrency):  # never pay for more than a slow disk can keep
                self._room.clear()
                await self._room.wait()
            self.begun += 1
            spoiled, reason = True, "log-probabilities or the right model are missing in the answer"
            try:
                row = await self.asker.ask(body, lambda *wire, fields=fields: self._kept(fields, parse_answer(*wire)))
                spoiled = _is_spoiled(row, fields["readout"])
            except (Refused, Unusable) as fault:
                reason = f"no usable answer: {fault}" if isinstance(fault, Unusable) else str(fault)
                self.failures[fields["key"]] = reason
            self._look(spoiled, reason)
            if self.asker.stopping:
                return

    def _kept(self, fields, row):
        """Hand an answer to the writer while it is read, so that nothing can come between answer and queue."""
        if self.stack.returned_models and row["returned_model"] not in self.stack.returned_models:
            row = _set_aside(row)
        self._unwritten += 1
        self._queue.put_nowait({**fields, **row})
        return row

    def _look(self, spoiled, reason):
        """Stop before money is spent on answers that nobody can use.

        Refusals come back faster than answers, so the share is of all cells begun: those in flight may yet be whole.
        """
        self.settled += 1
        self.spoiled += spoiled
        if spoiled and self.settled >= _FIRST_LOOK and self.spoiled > self.most_spoiled * self.begun:
            raise RunStopped(
                f"{self.stack.name}: {self.spoiled} of {self.begun} cells begun came back without a usable answer, "
                f"more than {self.most_spoiled:.0%}; the last one: {reason}. What was answered is recorded; look at "
                f"`make probe STACK={self.stack.name}` before running again."
            )

    async def _write(self, write, bar):
        """Write in batches: whatever arrived while the last batch went to disk is the next one."""
        last = False
        while not last:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            last = batch[-1] is None
            if rows := [row for row in batch if row is not None]:
                await asyncio.to_thread(write, rows)
                self.written += len(rows)
                self._unwritten -= len(rows)
                self._room.set()
                bar.update(len(rows))


def unrecorded(plan, stack, recordings):
    """Rows of a keyed plan that a stack has yet to answer, one per key."""
    wanted = plan[plan["key"].notna() & (plan["stack"] == stack.name)].drop_duplicates("key")
    return wanted[~wanted["key"].isin(recordings.keys())] if len(wanted) else wanted


def missing_cells(plan, study, stack, recordings, *, order=None, section=""):
    """Cells of a keyed plan that are not recorded: ``(row fields, request body)`` in declared order.

    Equal requests of one wave are one question, however many cells share it.
    """
    todo = unrecorded(plan, stack, recordings)
    rows = list(todo.itertuples(index=False))
    cells = []
    for row in (rows[position] for position in in_order(todo, study, order or stack.order)):
        fields = {name: _plain(getattr(row, name)) for name in CELL}
        fields |= {"key": row.key, "section": section, **request_parts(row, study, stack)}
        cells.append((fields, request_body(cell_messages(row, study), stack)))
    return cells


def _plain(value):
    """A plan value as JSON takes it: None for a missing one, Python numbers for numpy's."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
