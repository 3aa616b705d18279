"""The one transport: the openai client of a stack, and one way to ask it, paid from a budget and tried again."""

import asyncio
import contextlib
import os
import random
import time
from urllib.parse import urlsplit

import openai
from tenacity import AsyncRetrying, retry_if_exception_type
from tqdm import tqdm

from helpers.asking import embedded
from helpers.asking.budget import Budget
from helpers.asking.faults import (
    SHORTEST_KEY,
    BudgetSpent,
    Refused,
    RunStopped,
    Unusable,
    meaning,
    sentence,
    without_key,
)
from helpers.asking.pace import Pace
from helpers.channels.stacks import StackError

ATTEMPTS = 6
_BACKOFF_S = 0.5  # unit of the growing pause between two attempts
_BEARER = {"security": {"bearer_auth": True}}
_LOCAL = ("127.0.0.1", "localhost", "::1")


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
    if len(key) < SHORTEST_KEY and urlsplit(stack.base_url or "").hostname not in _LOCAL:
        raise StackError(
            f"{stack.name}: {stack.key_variable} holds fewer than {SHORTEST_KEY} characters, too few for a secret that "
            "is to be kept out of every file; set the real key."
        )
    return key


def _checked_url(stack):
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
            base_url, key = _checked_url(stack), api_key(stack)
        # What is served on this machine is asked directly, whatever proxy the environment names.
        here = urlsplit(base_url).hostname in _LOCAL
        client = openai.AsyncOpenAI(
            base_url=base_url, api_key=key, max_retries=0, timeout=timeout_s or stack.timeout_s,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if here else None,
        )  # fmt: skip
        try:
            yield client
        finally:
            await client.close()


async def post(client, body):
    """One request over the wire: ``(answer text without the key, time asked, seconds taken)``.

    Raises Unusable, Refused or RunStopped. The client's time-out holds for the whole answer, so that an
    endpoint that sends a byte now and then cannot hold a run up.
    """
    asked_at, start, fault, most = time.time(), time.monotonic(), None, client.timeout
    try:
        async with asyncio.timeout(most if most is None or isinstance(most, (int, float)) else most.read):
            # client.chat.completions.create would walk every field of the body by its type annotations first, and
            # parse the answer into objects: a quarter of the time of an answer. The wire sees the same request.
            text = await client.post("/chat/completions", cast_to=str, body=body, options=_BEARER)
    except (openai.OpenAIError, TimeoutError) as error:
        fault = meaning(error, client.api_key)
    if fault is not None:  # raised here, so that the client's error and its request headers are let go
        raise fault
    return without_key(text, client.api_key), asked_at, time.monotonic() - start


class Asker:
    """Asks one stack: each attempt waits for its place, is held in the budget and tried again where that may mend it.

    Parameters
    ----------
    client : openai.AsyncOpenAI with ``max_retries=0``
    attempts, backoff_s : tries of one question, and the unit of the growing pause between them
    outage_s : float
        For how long an endpoint that cannot be reached is tried again before RunStopped. Being away is no attempt then,
        and at no time a call. With 0 it is an attempt like any other.

    Attributes
    ----------
    out : set of the tasks whose request is out
    stopping : bool; True tries nothing again
    """

    def __init__(self, stack, client, *, budget=None, attempts=ATTEMPTS, backoff_s=_BACKOFF_S, outage_s=0.0, pace=None):
        self.stack, self.client = stack, client
        self.budget, self.pace = budget or Budget(), pace or Pace(most=stack.concurrency)
        self.attempts, self.backoff_s, self.outage_s = attempts, backoff_s, outage_s
        self.out, self.stopping = set(), False
        self._away_since, self._said = None, False

    async def ask(self, body, read, what=None):
        """One answer as ``read(text, time asked, seconds)`` takes it from the wire; it may raise Unusable or Refused.

        Raises
        ------
        Refused, and Unusable after the last attempt, with the bare reason; RunStopped, and BudgetSpent where the budget
        has no room. With ``what``, the name of what is asked, Refused says so, and all else but BudgetSpent is a
        StackError that does.
        """
        faults = []

        async def attempt():
            try:
                return await self._attempt(body, read)
            except Unusable as fault:
                faults.append(fault)
                raise

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Unusable), stop=lambda _: self._enough(faults), wait=self._pause, reraise=True
        )
        try:
            return await retrying(attempt)
        except (Unusable, Refused) as fault:
            if what is None:
                raise
            kind = Refused if isinstance(fault, Refused) else StackError
            raise kind(sentence(fault, self.stack, what)) from None
        except RunStopped as fault:
            kind = type(fault) if what is None or isinstance(fault, BudgetSpent) else StackError
            raise kind(sentence(fault, self.stack, what)) from None

    async def _attempt(self, body, read):
        async with self.pace.slot():
            try:
                async with self.budget.room_for(body, self.stack.price) as bill:
                    answer = read(*await self._post(body))
                    bill |= answer
            except Unusable as fault:
                self._bear(fault)
                raise
            self._away_since = None
            self.pace.went_well()
            return answer

    async def _post(self, body):
        task = asyncio.current_task()
        self.out.add(task)
        try:
            return await post(self.client, body)
        finally:
            self.out.discard(task)

    def _bear(self, fault):
        """Slow down after a fault; RunStopped where the endpoint has been away for too long."""
        if not self._is_away(fault):
            self._away_since = None
            return self.pace.overloaded(fault.wait) if fault.overloaded else self.pace.fault()
        now = time.monotonic()
        self._away_since = self._away_since or now
        if self.stopping or now - self._away_since >= self.outage_s:
            raise RunStopped(f"the endpoint could not be reached for {self.outage_s:,.0f} s")
        if not self._said:
            self._said = True
            tqdm.write(f"{self.stack.name}: the endpoint cannot be reached; trying for {self.outage_s:,.0f} s.")

    def _is_away(self, fault):
        return fault.offline and self.outage_s > 0

    def _enough(self, faults):
        return self.stopping or sum(not self._is_away(fault) for fault in faults) >= self.attempts

    def _pause(self, state):
        """Seconds until the next attempt: what the endpoint asked for, else a growing, random time."""
        asked = state.outcome.exception().wait
        if asked is not None:
            return asked + random.uniform(0, self.backoff_s)
        return random.uniform(0.5, 1) * min(60.0, self.backoff_s * 2**state.attempt_number)
