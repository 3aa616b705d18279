"""Ask an evaluator: the openai client over HTTP, adaptive, durable, resumable.

Every answer is on disk before it counts. A refused request is missing with its reason; a fault that
may pass is tried again; a wrong key or an exhausted budget stops the run with one clear sentence.
"""

import asyncio
import contextlib
import html
import json
import math
import os
import random
import time
from collections import deque
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import openai
import pandas as pd
from tenacity import AsyncRetrying, retry_if_exception, retry_if_exception_type
from tqdm import tqdm

from helpers import embedded
from helpers.budget import Budget, BudgetSpent
from helpers.labels import ANOTHER_MODEL, BINARY_LABELS, JOINT_LABELS, SENTINEL, read_labels
from helpers.plan import CELL, cell_messages, in_order, request_body, request_parts
from helpers.stacks import StackError, short, without_key

ATTEMPTS = 6
OUTAGE_S = 300.0  # how long an endpoint may be out of reach before a run gives up
LONGEST_WAIT_S = 900.0  # a longer Retry-After ends the run: it is a quota, not a rate
GRACE_S = 30.0  # how long a stopping run waits for answers that are paid for
MOST_SPOILED = 0.2
FIRST_LOOK = 20  # settled cells before the spoiled share is looked at
TRANSIENT = (408, 409, 425, 429)
BEARER = {"security": {"bearer_auth": True}}


class Unusable(Exception):
    """An answer or a fault that a later attempt may mend.

    ``wait`` is what the endpoint asked for, in seconds; ``offline`` means that the endpoint was not reached;
    ``charged`` that it may have made an answer all the same, which costs money.
    """

    def __init__(self, reason, wait=None, overloaded=False, offline=False, charged=True):
        super().__init__(reason)
        self.wait = wait
        self.overloaded = overloaded
        self.offline = offline
        self.charged = charged


class Refused(Exception):
    """The endpoint has refused this request for good; the cell is missing with this reason.

    ``charged``: it answered and withheld the answer, so its tokens may be billed.
    """

    def __init__(self, reason, charged=False):
        super().__init__(reason)
        self.charged = charged


class RunStopped(RuntimeError):
    """The run cannot go on. Everything answered so far is recorded."""


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


def api_key(stack):
    """The key of an API stack, from the environment variable that the stack names."""
    key = os.environ.get(stack.key_variable or "", "").strip()
    if not key:
        raise StackError(
            f"{stack.name}: no API key. Set the environment variable {stack.key_variable} and run again; "
            'or use ACQUIRE = "recorded", which needs none.'
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise StackError(f"{stack.name}: {stack.key_variable} holds characters that no API key has; set it again.")
    return key


def checked_url(stack):
    """The address of an API stack; StackError where it carries a secret, for it is part of every recording."""
    parts = urlsplit(stack.base_url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StackError(f"{stack.name}: base_url is not an http(s) address; correct params/stacks.yml.")
    if parts.username or parts.password or parts.query:
        raise StackError(
            f"{stack.name}: base_url carries a user name or a query; it is kept with every recording, so give the key "
            f"in the environment variable {stack.key_variable} only."
        )
    return stack.base_url


@contextlib.asynccontextmanager
async def client_for(stack, *, slots=1, timeout_s=None):
    """An AsyncOpenAI client for a stack; an embedded stack is served while the block runs."""
    with contextlib.ExitStack() as held:
        if stack.kind == "embedded":
            base_url, key = await asyncio.to_thread(held.enter_context, embedded.running(stack, slots=slots))
        else:
            base_url, key = checked_url(stack), api_key(stack)
        # What is served on this machine is asked directly, whatever proxy the environment names.
        here = urlsplit(base_url).hostname in ("127.0.0.1", "localhost")
        client = openai.AsyncOpenAI(
            base_url=base_url, api_key=key, max_retries=0, timeout=timeout_s or stack.timeout_s,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if here else None,
        )  # fmt: skip
        try:
            yield client
        finally:
            await client.close()


def shown(text, key=None):
    """At most 200 characters of an endpoint's text, escaped and without the key."""
    return html.escape(short(text, key))


def retry_after(response):
    """Seconds that a response asks to wait (``retry-after-ms``, ``retry-after`` in seconds or as a date), or None."""
    try:
        return max(0.0, float(response.headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    text = response.headers.get("retry-after", "")
    try:
        seconds = float(text)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def classify_error(error, key):
    """What a client error means: Unusable (try again), Refused (missing) or RunStopped (end)."""
    cause = type(error.__cause__).__name__
    if cause in ("ConnectError", "ConnectTimeout"):
        return Unusable("the endpoint cannot be reached", offline=True, charged=False)
    if isinstance(error, (openai.APITimeoutError, TimeoutError)):
        return Unusable("no answer within the time-out")
    if isinstance(error, openai.APIConnectionError):
        return Unusable(f"connection failed ({cause})")
    if not isinstance(error, openai.APIStatusError):
        return Unusable(f"unreadable answer ({type(error).__name__})")
    code, text = error.status_code, shown(error.message, key)
    if code in (401, 403):
        return RunStopped(f"the endpoint refuses the key (HTTP {code}); check the key's environment variable.")
    if code in (402, 404) or getattr(error, "code", None) == "insufficient_quota":
        return RunStopped(f"the endpoint cannot serve this run (HTTP {code}): {text}")
    if code not in TRANSIENT and code < 500:
        return Refused(f"refused by the endpoint (HTTP {code}): {text}")
    wait = retry_after(error.response)
    if wait is not None and wait > LONGEST_WAIT_S:
        return RunStopped(f"the endpoint asks to wait {wait:,.0f} s (HTTP {code}); run again after that.")
    return Unusable(f"HTTP {code}: {text}", wait=wait, overloaded=code == 429, charged=False)


async def ask_once(client, body):
    """One request over the wire: ``(answer text without the key, time asked, seconds taken)``.

    Raises Unusable, Refused or RunStopped. The client's time-out holds for the whole answer, so that an
    endpoint that sends a byte now and then cannot hold a run up.
    """
    asked_at, start, meaning = time.time(), time.monotonic(), None
    try:
        async with asyncio.timeout(_seconds(client.timeout)):
            # client.chat.completions.create would walk every field of the body by its type annotations first, and
            # parse the answer into objects: a quarter of the time of an answer. The wire sees the same request.
            text = await client.post("/chat/completions", cast_to=str, body=body, options=BEARER)
    except (openai.OpenAIError, TimeoutError) as error:
        meaning = classify_error(error, client.api_key)
    if meaning is not None:  # raised here, so that the client's error and its request headers are let go
        raise meaning
    return without_key(text, client.api_key), asked_at, time.monotonic() - start


def _seconds(timeout):
    return timeout if timeout is None or isinstance(timeout, (int, float)) else timeout.read


def _text(value):
    """A value as text that UTF-8 can hold, or None: what an endpoint sends may be of any type."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _count(value):
    """A token count, or None where it is not one."""
    is_count = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**31
    return int(value) if is_count else None


def _mapping(value):
    return value if isinstance(value, dict) else {}


def parse_answer(text, asked_at, seconds):
    """The kept part of one chat-completion answer, as received; nothing is derived.

    Raises Unusable when the text is no chat completion at all.
    """
    try:
        answer = json.loads(text)
        choice = answer["choices"][0]
        finish, logprobs = choice.get("finish_reason"), choice.get("logprobs")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise Unusable(f"the answer is no chat completion: {shown(text)}") from None
    if finish == "content_filter":
        raise Refused("refused by the endpoint's content filter", charged=True)
    usage = _mapping(answer.get("usage"))
    details = _mapping(usage.get("prompt_tokens_details"))
    row = {
        "sampled": _text(_mapping(choice.get("message")).get("content")),
        "returned_model": _text(answer.get("model")),
        "fingerprint": _text(answer.get("system_fingerprint")),
        "response_id": _text(answer.get("id")),
        "finish_reason": _text(finish),
        "prompt_tokens": _count(usage.get("prompt_tokens")),
        "cached_tokens": _count(details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))),
        "completion_tokens": _count(usage.get("completion_tokens")),
        "asked_at": round(asked_at, 3),
        "seconds": round(seconds, 4),
    }
    return row | first_alternatives(logprobs)


def first_alternatives(logprobs):
    """Alternatives of the first generated token: ``tokens`` and ``logprobs``, else ``unread`` with what came.

    Some serialisers write minus infinity as null: such an alternative is kept as NaN, and the others can be read.
    """
    try:
        top = logprobs["content"][0]["top_logprobs"]
        pairs = [(_text(t["token"]), math.nan if t["logprob"] is None else float(t["logprob"])) for t in top]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        pairs = []
    if all(math.isnan(value) for _, value in pairs) or None in (token for token, _ in pairs):
        return {"unread": _text(json.dumps(logprobs)[:4000])}
    return {"tokens": [token for token, _ in pairs], "logprobs": [value for _, value in pairs]}


def set_aside(row):
    """An answer by a model that the stack does not declare: what came is kept, nothing of it is read as a value."""
    said = json.dumps({name: row.pop(name, None) for name in ("tokens", "logprobs", "unread")})
    return row | {"unread": _text(f"{ANOTHER_MODEL}: {said}"[:4000])}


def label_reasons(row, readout):
    """Why labels of an answer are missing, one a label (None where it is there)."""
    labels = BINARY_LABELS if readout == "binary" else JOINT_LABELS
    return read_labels(row.get("tokens"), row.get("logprobs"), labels).reasons


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
                 attempts=ATTEMPTS, backoff_s=0.5, outage_s=OUTAGE_S, most_spoiled=MOST_SPOILED):  # fmt: skip
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
                f"`python -m helpers.probe {self.stack.name}` before running again."
            )

    async def _ask(self, body, fields):
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Unusable), stop=self._give_up, wait=self._wait, reraise=True
        )
        return await retrying(self._attempt, body, fields)

    def _give_up(self, retry_state):
        return self._stopping or retry_state.attempt_number >= self.attempts

    def _wait(self, retry_state):
        asked = retry_state.outcome.exception().wait
        if asked is not None:
            return asked + random.uniform(0, self.backoff_s)
        return random.uniform(0.5, 1) * min(60.0, self.backoff_s * 2**retry_state.attempt_number)

    async def _attempt(self, body, fields):
        async with self.pace.slot():
            try:
                held = await self.budget.hold(body, self.stack.price)
            except BudgetSpent as spent:
                raise RunStopped(f"{self.stack.name}: {spent}; what was answered is recorded.") from None
            self.calls += 1
            bill = {}  # no usage: the estimate is charged, unless the endpoint says that nothing was answered
            try:
                row = bill = parse_answer(*await self._reach(body))
                row = row if self._expected(row["returned_model"]) else set_aside(row)
            except Unusable as fault:
                bill = {} if fault.charged else None
                self.pace.overloaded(fault.wait) if fault.overloaded else self.pace.fault()
                raise
            except Refused as refusal:
                bill = {} if refusal.charged else None
                raise
            finally:
                self.budget.settle(held, body, self.stack.price, bill)
            self._unwritten += 1
            self._queue.put_nowait({**fields, **row})  # here, so that nothing can come between answer and queue
            self.pace.went_well()
            return row

    async def _reach(self, body):
        """One request, once the endpoint can be reached: being away is no attempt, and costs nothing."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, Unusable) and error.offline),
            stop=lambda state: self._stopping or state.seconds_since_start >= self.outage_s,
            wait=self._wait, reraise=True,
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
