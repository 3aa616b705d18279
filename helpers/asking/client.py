"""Reach an endpoint: the openai client over HTTP, one request, and what an answer or a fault means.

A fault that may pass is :class:`Unusable`, a request that is refused for good :class:`Refused`, and one that ends the
run :class:`RunStopped`. None of them holds the key, nor the client's own error, whose request headers do.
"""

import asyncio
import contextlib
import html
import json
import math
import os
import random
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import openai
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from helpers.asking import embedded
from helpers.asking.budget import Budget
from helpers.channels.stacks import StackError

ATTEMPTS = 6
BACKOFF_S = 0.5  # unit of the growing pause between two attempts
LONGEST_WAIT_S = 900.0  # a longer Retry-After ends the run: it is a quota, not a rate
TRANSIENT = (408, 409, 425, 429)
BEARER = {"security": {"bearer_auth": True}}
LOCAL = ("127.0.0.1", "localhost", "::1")
SHORTEST_KEY = 12  # characters below which a key is a word rather than a secret
SHOWN = 200  # characters of a text from elsewhere that an error may show


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


class RunStopped(Exception):
    """The run cannot go on. Everything answered so far is recorded."""

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
    if len(key) < SHORTEST_KEY and urlsplit(stack.base_url or "").hostname not in LOCAL:
        raise StackError(
            f"{stack.name}: {stack.key_variable} holds fewer than {SHORTEST_KEY} characters, too few for a secret that "
            "is to be kept out of every file; set the real key."
        )
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
        here = urlsplit(base_url).hostname in LOCAL
        client = openai.AsyncOpenAI(
            base_url=base_url, api_key=key, max_retries=0, timeout=timeout_s or stack.timeout_s,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if here else None,
        )  # fmt: skip
        try:
            yield client
        finally:
            await client.close()


def without_key(text, key):
    """A text in which the key, plain or as JSON writes it, is replaced.

    A key of fewer than ``SHORTEST_KEY`` characters stays: local servers take words such as ``none`` for a key, which are
    no secret and may stand in any answer.
    """
    for form in (key, json.dumps(key)[1:-1]) if key and len(key) >= SHORTEST_KEY else ():
        text = text.replace(form, "[key]")
    return text


def short(text, key=None):
    """At most 200 characters of a text from elsewhere, on one line and without the key."""
    return " ".join(without_key(str(text), key).split())[:SHOWN]


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
        return Unusable("the endpoint cannot be reached; start it, or correct its address.", offline=True, charged=False)
    if isinstance(error, (openai.APITimeoutError, TimeoutError)):
        return Unusable("no answer within the time-out")
    if isinstance(error, openai.APIConnectionError):
        return Unusable(f"connection failed ({cause})")
    if not isinstance(error, openai.APIStatusError):
        return Unusable(f"unreadable answer ({type(error).__name__})")
    code, text = error.status_code, shown(error.message, key)
    if code in (401, 403):
        return RunStopped(f"the endpoint refuses the key (HTTP {code}: {text}); check the key's environment variable.")
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


def plain_text(value):
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
        answer, choice = _completion(text)
        row = {
            "sampled": plain_text(_mapping(choice.get("message")).get("content")),
            "returned_model": plain_text(answer.get("model")),
            "fingerprint": plain_text(answer.get("system_fingerprint")),
            "response_id": plain_text(answer.get("id")),
            "finish_reason": plain_text(choice.get("finish_reason")),
            **_usage(answer),
            "asked_at": round(asked_at, 3),
            "seconds": round(seconds, 4),
        }
        return row | first_alternatives(choice.get("logprobs"))
    except RecursionError:
        raise Unusable("the answer is nested too deeply to be read") from None


def parse_text(text, asked_at, seconds):
    """What a generator said: ``text`` ("" where it said nothing), ``finish_reason`` and the token counts.

    Raises Unusable when the answer is no chat completion at all.
    """
    try:
        answer, choice = _completion(text)
        said = _mapping(choice.get("message")).get("content")
        return {
            "text": plain_text(said) if isinstance(said, str) else "",
            "finish_reason": plain_text(choice.get("finish_reason")),
            **_usage(answer),
        }
    except RecursionError:
        raise Unusable("the answer is nested too deeply to be read") from None


def _completion(text):
    """The answer and its first choice; Unusable where it has none, Refused where a filter withheld it."""
    try:
        answer = json.loads(text)
        choice = answer["choices"][0]
        finish = choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise Unusable(f"the answer is no chat completion: {shown(text)}") from None
    if finish == "content_filter":
        raise Refused("refused by the endpoint's content filter", charged=True)
    return answer, choice


def _usage(answer):
    usage = _mapping(answer.get("usage"))
    details = _mapping(usage.get("prompt_tokens_details"))
    return {
        "prompt_tokens": _count(usage.get("prompt_tokens")),
        "cached_tokens": _count(details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))),
        "completion_tokens": _count(usage.get("completion_tokens")),
    }


def _logprob(value):
    return math.nan if value is None or isinstance(value, bool) else float(value)


def first_alternatives(logprobs):
    """Alternatives of the first generated token: ``tokens`` and ``logprobs``, else ``unread`` with what came.

    Some serialisers write minus infinity as null: such an alternative is kept as NaN, and the others can be read; so
    is one whose value is true or false, which Python would take for 1 and 0.
    """
    try:
        top = logprobs["content"][0]["top_logprobs"]
        pairs = [(plain_text(t["token"]), _logprob(t["logprob"])) for t in top]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        pairs = []
    if all(math.isnan(value) for _, value in pairs) or None in (token for token, _ in pairs):
        return {"unread": plain_text(json.dumps(logprobs)[:4000])}
    return {"tokens": [token for token, _ in pairs], "logprobs": [value for _, value in pairs]}


def pause(state, backoff_s=BACKOFF_S):
    """Seconds until the next attempt: what the endpoint asked for, else a growing, random time."""
    asked = state.outcome.exception().wait
    if asked is not None:
        return asked + random.uniform(0, backoff_s)
    return random.uniform(0.5, 1) * min(60.0, backoff_s * 2**state.attempt_number)


async def ask_again(client, body, read, *, price=None, budget=None, attempts=ATTEMPTS, backoff_s=BACKOFF_S):
    """One answer as ``read`` takes it from the wire, asked again where a later attempt may mend it.

    Parameters
    ----------
    read : :func:`parse_answer` or :func:`parse_text`
    price, budget : the stack's price and a Budget, optional; each attempt is held in the budget by itself

    Raises
    ------
    Unusable after the last attempt, Refused, RunStopped; BudgetSpent where the budget has no room for an attempt
    """
    budget = budget or Budget()

    async def attempt():
        async with budget.room_for(body, price) as bill:
            answer = read(*await ask_once(client, body))
            bill |= answer
        return answer

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(Unusable), stop=stop_after_attempt(attempts), reraise=True,
        wait=lambda state: pause(state, backoff_s),
    )  # fmt: skip
    return await retrying(attempt)
