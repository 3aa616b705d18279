"""What an endpoint's fault means, and the one sentence that says so.

A fault that may pass is :class:`Unusable`, a request that is refused for good :class:`Refused`, and one that ends the
run :class:`RunStopped`. None of them holds the key, nor the client's own error, whose request headers do.
"""

import html
import json
import math
import time
from email.utils import parsedate_to_datetime

import openai

_LONGEST_WAIT_S = 900.0  # a longer Retry-After ends the run: it is a quota, not a rate
_TRANSIENT = (408, 409, 425, 429)
SHORTEST_KEY = 12  # characters below which a key is a word rather than a secret
SHOWN = 200  # characters of a text from elsewhere that an error may show


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


class Unusable(Exception):
    """An answer or a fault that a later attempt may mend.

    ``wait`` is what the endpoint asked for, in seconds; ``offline`` means that the endpoint was not reached;
    ``charged`` that it may have made an answer all the same, which costs money.
    """

    def __init__(self, reason, wait=None, overloaded=False, offline=False, charged=True):
        super().__init__(reason)
        self.wait, self.overloaded, self.offline, self.charged = wait, overloaded, offline, charged


class Refused(Exception):
    """There is no answer to this request, and asking again brings the same.

    ``charged``: the endpoint answered and withheld the answer, so its tokens may be billed.
    """

    def __init__(self, reason, charged=False):
        super().__init__(reason)
        self.charged = charged


class RunStopped(Exception):
    """The run cannot go on. Everything answered so far is recorded."""


class BudgetSpent(RunStopped):
    """The next request could pass the budget. The message says which one."""


def sentence(fault, stack, what=None):
    """Which stack, what was asked of it (``what``, where it has a name), what came instead, and what to do."""
    text = ": ".join(filter(None, (stack.name, what, str(fault).rstrip("."))))
    if isinstance(fault, Refused):
        return f"{text}."
    if isinstance(fault, BudgetSpent):
        return f"{text}; what was answered is kept. Raise the budget to go on."
    return f"{text}. Run again; what was answered is kept."


def shown(text, key=None):
    """At most 200 characters of an endpoint's text, escaped and without the key."""
    return html.escape(short(text, key))


def _retry_after(response):
    """Seconds that a response asks to wait (``retry-after-ms``, ``retry-after`` in seconds or as a date), or None."""
    readers = (
        ("retry-after-ms", lambda text: float(text) / 1000),
        ("retry-after", float),
        ("retry-after", lambda text: parsedate_to_datetime(text).timestamp() - time.time()),
    )
    for header, read in readers:
        try:
            seconds = read(response.headers[header])
        except (KeyError, ValueError, TypeError):
            continue
        return max(0.0, seconds) if math.isfinite(seconds) else None
    return None


def meaning(error, key):
    """What a client error means: Unusable (try again), Refused (missing) or RunStopped (end)."""
    cause = type(error.__cause__).__name__
    if cause in ("ConnectError", "ConnectTimeout"):
        return Unusable("the endpoint cannot be reached; start it, or correct its address", offline=True, charged=False)
    if isinstance(error, (openai.APITimeoutError, TimeoutError)):
        return Unusable("no answer within the time-out")
    if isinstance(error, openai.APIConnectionError):
        return Unusable(f"connection failed ({cause})")
    if not isinstance(error, openai.APIStatusError):
        return Unusable(f"unreadable answer ({type(error).__name__})")
    code, text = error.status_code, shown(error.message, key)
    if code in (401, 403):
        return RunStopped(f"the endpoint refuses the key (HTTP {code}: {text}); check the key's environment variable")
    if code in (402, 404) or getattr(error, "code", None) == "insufficient_quota":
        return RunStopped(f"the endpoint cannot serve this run (HTTP {code}): {text}")
    if code not in _TRANSIENT and code < 500:
        return Refused(f"refused by the endpoint (HTTP {code}): {text}")
    wait = _retry_after(error.response)
    if wait is not None and wait > _LONGEST_WAIT_S:
        return RunStopped(f"the endpoint asks to wait {wait:,.0f} s (HTTP {code}), so wait first")
    return Unusable(f"HTTP {code}: {text}", wait=wait, overloaded=code == 429, charged=False)
