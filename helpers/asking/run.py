"""Ask an evaluator: many requests at once, adaptive, durable, resumable.

Every answer is on disk before it counts. A refused request is missing with its reason; a fault that
may pass is tried again; a wrong key or an exhausted budget stops the run with one clear sentence.
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass, field

import pandas as pd
from tenacity import AsyncRetrying, retry_if_exception, retry_if_exception_type
from tqdm import tqdm

from helpers.asking.budget import Budget, BudgetSpent
from helpers.asking.client import (
    ATTEMPTS,
    BACKOFF_S,
    Refused,
    RunStopped,
    Unusable,
    ask_once,
    parse_answer,
    pause,
    plain_text,
)
from helpers.channels.plan import CELL, cell_messages, in_order, request_body, request_parts
from helpers.measuring.labels import ANOTHER_MODEL, LABELS_OF, SENTINEL, read_labels

OUTAGE_S = 300.0  # how long an endpoint may be out of reach before a run gives up
GRACE_S = 30.0  # how long a stopping run waits for answers that are paid for
MOST_SPOILED = 0.2
FIRST_LOOK = 20  # settled cells before the spoiled share is looked at


@dataclass
class Pace:
    """How many requests are in flight: doubles a round trip until the first cut, then grows by one.

    A 429 halves the limit and pauses everyone for as long as the endpoint asked; a 5xx stops growth.
    """

    most: int
    limit: float = 4.0
    steady: bool = False
    paused_until: float = 0.0
    hold_until: float = 0.0
    in_flight: int = 0
    cuts: int = 0
    _waiting: deque = field(default_factory=deque)

    def __post_init__(self):
        self.limit = float(min(self.limit, self.most))

    @contextlib.asynccontextmanager
    async def slot(self):
        """Wait for a free place and for the end of a pause, hold the place for one attempt.

        Leaving never suspends, so an answer that has arrived cannot be lost to a cancellation here.
        """
        while self.in_flight >= int(self.limit):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self.in_flight += 1
        try:
            while (delay := self.paused_until - time.monotonic()) > 0:
                await asyncio.sleep(delay)
            yield
        finally:
            self.in_flight -= 1
            self._wake()

    def _wake(self):
        free = int(self.limit) - self.in_flight
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    def went_well(self):
        """One answer arrived: grow, unless growth is on hold."""
        if time.monotonic() >= self.hold_until:
            self.limit = min(self.most, self.limit + (1 / self.limit if self.steady else 1))

    def overloaded(self, wait):
        """A 429: halve, at most once a second, and pause."""
        now = time.monotonic()
        if now >= self.hold_until:
            self.limit, self.steady, self.cuts = max(1.0, self.limit / 2), True, self.cuts + 1
            self.hold_until = now + 1.0
        self.paused_until = max(self.paused_until, now + (wait or 0.0))

    def fault(self):
        """A server fault: do not grow for two seconds."""
        self.hold_until = max(self.hold_until, time.monotonic() + 2.0)


def set_aside(row):
    """An answer by a model that the stack does not declare: what came is kept, nothing of it is read as a value."""
    said = json.dumps({name: row.pop(name, None) for name in ("tokens", "logprobs", "unread")})
    return row | {"unread": plain_text(f"{ANOTHER_MODEL}: {said}"[:4000])}


def label_reasons(row, readout):
    """Why labels of an answer are missing, one a label (None where it is there)."""
    return read_labels(row.get("tokens"), row.get("logprobs"), LABELS_OF[readout]).reasons


class Acquisition:
    """One run over one stack: what is missing is asked, in the declared order, and written.

    Parameters
    ----------
    recordings : Recordings
    stack : Stack
    client : openai.AsyncOpenAI with ``max_retries=0``
    budget : Budget, optional
        The run stops cleanly before it would ask or spend more; ``budget_calls`` and ``budget_money`` make one.
    attempts, backoff_s, outage_s
        Tries of one question, the unit of the growing pause between them, and for how long an endpoint
        that cannot be reached at all is tried again, in seconds.
    most_spoiled : float
        The run stops when more than this share of the cells (after the first 20) came back without
        log-probabilities or with a sentinel for a label, from another model, or not at all.
    """

    def __init__(self, recordings, stack, client, *, budget=None, budget_calls=None, budget_money=None, progress=True,
                 attempts=ATTEMPTS, backoff_s=BACKOFF_S, outage_s=OUTAGE_S, most_spoiled=MOST_SPOILED):  # fmt: skip
        self.recordings = recordings
        self.stack = stack
        self.client = client
        self.budget = budget or Budget(budget_calls, budget_money)
        self.progress = progress
        self.attempts = attempts
        self.backoff_s = backoff_s
        self.outage_s = outage_s
        self.most_spoiled = most_spoiled
        self.pace = Pace(most=stack.concurrency)
        self.failures = {}
        self.calls = 0
        self.written = 0
        self.spoiled = 0
        self.begun = 0
        self.settled = 0
        self._stopping = False
        self._away = False
        self._busy = set()
        self._unwritten = 0
        self._room = asyncio.Event()

    async def run(self, cells):
        """Ask ``cells``, an iterable of ``(row fields, request body)``; returns how many answers were written.

        Raises RunStopped when the run cannot go on and DataError when answers cannot be written; what has
        arrived by then is written first, as far as the disk takes it.
        """
        cells = list(cells)
        if not cells:
            return 0
        self._queue = asyncio.Queue()
        self._todo = iter(cells)
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
            self._stopping = True
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
            self._stopping = True
            paid = running & self._busy
            for worker in running - paid:
                worker.cancel()
            if paid:  # their requests are out and will be charged: wait for the answers, ask nothing new
                await asyncio.wait(paid, timeout=GRACE_S)
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
            spoiled = True
            try:
                row = await self._ask(body, fields)
                spoiled = bool(row.get("unread")) or SENTINEL in label_reasons(row, fields["readout"])
                reason = "log-probabilities or the right model are missing in the answer"
            except (Refused, Unusable) as fault:
                reason = f"no usable answer: {fault}" if isinstance(fault, Unusable) else str(fault)
                self.failures[fields["key"]] = reason
            self._look(spoiled, reason)
            if self._stopping:
                return

    def _expected(self, model):
        return not self.stack.returned_models or model in self.stack.returned_models

    def _look(self, spoiled, reason):
        """Stop before money is spent on answers that nobody can use.

        Refusals come back faster than answers, so the share is of all cells begun: those in flight may yet be whole.
        """
        self.settled += 1
        self.spoiled += spoiled
        if spoiled and self.settled >= FIRST_LOOK and self.spoiled > self.most_spoiled * self.begun:
            raise RunStopped(
                f"{self.stack.name}: {self.spoiled} of {self.begun} cells begun came back without a usable answer, more "
                f"than {self.most_spoiled:.0%}; the last one: {reason}. What was answered is recorded; look at "
                f"`make probe STACK={self.stack.name}` before running again."
            )

    async def _ask(self, body, fields):
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Unusable), stop=self._give_up, wait=self._wait, reraise=True
        )
        return await retrying(self._attempt, body, fields)

    def _give_up(self, retry_state):
        return self._stopping or retry_state.attempt_number >= self.attempts

    def _wait(self, retry_state):
        return pause(retry_state, self.backoff_s)

    async def _attempt(self, body, fields):
        async with self.pace.slot():
            try:
                async with self.budget.room_for(body, self.stack.price) as bill:
                    self.calls += 1
                    row = parse_answer(*await self._reach(body))
                    bill |= row
            except BudgetSpent as spent:
                raise RunStopped(f"{self.stack.name}: {spent}; what was answered is recorded.") from None
            except Unusable as fault:
                self.pace.overloaded(fault.wait) if fault.overloaded else self.pace.fault()
                raise
            row = row if self._expected(row["returned_model"]) else set_aside(row)
            self._unwritten += 1
            self._queue.put_nowait({**fields, **row})  # here, so that nothing can come between answer and queue
            self.pace.went_well()
            return row

    async def _reach(self, body):
        """One request, once the endpoint can be reached: being away is no attempt, and costs nothing."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, Unusable) and error.offline),
            stop=lambda state: self._stopping or state.seconds_since_start >= self.outage_s,
            wait=self._wait, before_sleep=self._say_away, reraise=True,
        )  # fmt: skip
        try:
            return await retrying(self._send, body)
        except Unusable as fault:
            if not fault.offline:
                raise
        raise RunStopped(
            f"{self.stack.name}: the endpoint could not be reached for {self.outage_s:,.0f} s; what was answered is "
            "recorded, run again to go on."
        )

    def _say_away(self, _):
        """Once a run: why nothing moves."""
        if not self._away:
            self._away = True
            tqdm.write(f"{self.stack.name}: the endpoint cannot be reached; trying for {self.outage_s:,.0f} s.")

    async def _send(self, body):
        task = asyncio.current_task()
        self._busy.add(task)
        try:
            return await ask_once(self.client, body)
        finally:
            self._busy.discard(task)

    async def _write(self, write, bar):
        """Write in batches: whatever arrived while the last batch went to disk is the next one."""
        last = False
        while not last:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            last = batch[-1] is None
            rows = [row for row in batch if row is not None]
            if rows:
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
