"""A loopback evaluator for rehearsals and tests: deterministic answers, and every fault on demand.

``python -m tests.rehearsal.endpoint --port 8099`` serves ``/v1/chat/completions`` and ``/health`` on 127.0.0.1;
``--faults rate-limit,reset`` makes it misbehave, ``--faults all`` in every way it knows.

A healthy answer is a function of the prompt, the temperature and the seed alone, so two runs agree.
"""

import argparse
import asyncio
import hashlib
import json
import math
import random
import re
import socket
import struct
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace

from helpers.channels.stacks import StackError
from helpers.study.files import DataError, read_jsonl

HOST = "127.0.0.1"
SHAPES = ("openai", "deepseek", "llamacpp")
FINGERPRINTS = {"openai": "fp_loopback", "deepseek": "fp_loopback_prod", "llamacpp": "b0-loopback"}
MOST_ALTERNATIVES = {"openai": 20, "deepseek": 20, "llamacpp": 100}
NEVER = 3600.0  # seconds a request waits that is never answered
SENTINELS = {
    "sentinel-9999": -9999.0, "sentinel-100": -100.0, "minus-infinity": -math.inf, "nan": math.nan,
    "tiny-positive": 3e-7,
}  # fmt: skip
_FILLERS = (
    "The", "Based", "Option", "Answer", "I", "There", "None", "Not", "\n", "**", "E", "CAND", "It", "In", "This",
    "Insufficient", "Un", "Both", "Since", "To", "From", "Given", "F", "According",
)  # fmt: skip
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_BEARER = re.compile(rb"\r\nauthorization:\s*bearer\s+(\S+)", re.IGNORECASE)
_STATUS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found",
    411: "Length Required", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """What goes over the wire. ``delay`` in seconds; ``cut`` resets after so many bytes; ``drip`` seconds a byte."""

    status: int = 200
    body: bytes = b""
    headers: tuple = ()
    kind: str = "application/json"
    delay: float = 0.0
    cut: int | None = None
    drip: float = 0.0

    def wire(self):
        """The HTTP response as bytes."""
        lines = [f"HTTP/1.1 {self.status} {_STATUS[self.status]}", f"Content-Type: {self.kind}"]
        lines += [f"Content-Length: {len(self.body)}", *(f"{name}: {value}" for name, value in self.headers)]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


# -- healthy answers -------------------------------------------------------------------------------


def prompt_id(body):
    """What identifies a question: SHA-256 of its model and messages."""
    text = json.dumps([body.get("model"), body.get("messages")], ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def labels_of(body):
    """The labels that a prompt asks for: Yes and No, or A to D."""
    last = str((body.get("messages") or [{}])[-1].get("content", ""))
    return ("Yes", "No") if re.search(r"\bYes or No\b", last[-400:]) else ("A", "B", "C", "D")


def first_token(body, seed=0, scaled=False):
    """All alternatives of the first token as ``[(token, log-probability)]``, best first.

    Labels get normal logits from the prompt's hash (standard deviation 1.5), their variants with a space
    lie three nats lower, other tokens at least four. ``scaled`` divides logits by the request temperature.
    """
    draw = random.Random(f"{seed}{prompt_id(body)}")
    logits = {}
    for label in labels_of(body):
        logits[label] = 4 + draw.gauss(0, 1.5)
        logits[" " + label] = logits[label] - 3
    logits |= {token: -2 - draw.expovariate(0.5) for token in _FILLERS}
    heat = float(body.get("temperature") or 1.0) if scaled else 1.0
    total = math.log(math.fsum(math.exp(v / heat) for v in logits.values()))
    pairs = [(token, round(v / heat - total, 7)) for token, v in logits.items()]
    return sorted(pairs, key=lambda pair: -pair[1])


def generated_text(body, seed=0):
    """A short JSON-like text that depends on the prompt alone, at most ``max_tokens`` words long."""
    draw = random.Random(f"{seed}{prompt_id(body)}")
    say = (
        "is supported by the stated figures",
        "is contradicted by the stated figures",
        "has no evidence in the block",
    )
    parts = [f'"CANDIDATE_0{n}": "this candidate {draw.choice(say)}"' for n in (1, 2, 3, 4)]
    words = ("{ " + ", ".join(parts) + " }").split(" ")
    return " ".join(words[: int(body.get("max_tokens") or 64)])


def _entry(token, value):
    return {"token": token, "logprob": value, "bytes": list(token.encode())}


def _usage(body, completion, shape):
    prompt = 3 + sum(len(str(m.get("content", ""))) for m in body.get("messages") or []) // 4
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    cached = prompt // 2 // 64 * 64
    if shape == "deepseek":
        return {**usage, "prompt_cache_hit_tokens": cached, "prompt_cache_miss_tokens": prompt - cached}
    return {**usage, "prompt_tokens_details": {"cached_tokens": cached}}


def healthy(body, shape="openai", seed=0, scaled=False, pairs=None):
    """A chat completion as a dict, in the shape of one kind of endpoint; ``pairs`` fixes its alternatives."""
    most = int(body.get("max_tokens") or 64)
    model = body.get("model")
    answer = {
        "id": f"chatcmpl-{prompt_id(body)[:24]}", "object": "chat.completion", "created": 1, "model": model,
        "system_fingerprint": FINGERPRINTS[shape],
    }  # fmt: skip
    choice = {"index": 0, "finish_reason": "length", "logprobs": None}
    if body.get("logprobs"):
        pairs = pairs or first_token(body, seed, scaled)
        kept = pairs[: min(int(body.get("top_logprobs") or 0), MOST_ALTERNATIVES[shape])]
        first = {**_entry(*pairs[0]), "top_logprobs": [_entry(*pair) for pair in kept]}
        if shape == "llamacpp":
            first["id"] = 32
        choice["logprobs"] = {"content": [first]}
        text, used = pairs[0][0], 1
    else:
        text = generated_text(body, seed)
        used = len(text.split(" "))
        choice["finish_reason"] = "length" if used >= most else "stop"
    choice["message"] = {"role": "assistant", "content": text}
    answer |= {"choices": [choice], "usage": _usage(body, used, shape)}
    if shape == "llamacpp":
        answer["timings"] = {"prompt_n": 1, "predicted_n": used}
    return answer


# -- faults ----------------------------------------------------------------------------------------
# A fault takes the healthy Reply and the request, and returns the Reply that is sent. Errors echo the
# caller's key on purpose: some real gateways do, and nothing of it may reach a file or a message.


@dataclass(frozen=True)
class Request:
    """One request: its JSON body, the key it came with, and how often it has been asked (from 1)."""

    body: dict
    key: str
    tries: int


def _error(status, message, request, *, code=None, headers=()):
    error = {"message": f"{message} (key {request.key})", "type": "error", "code": code}
    return Reply(status, json.dumps({"error": error}).encode(), headers)


def _edit(change):
    """A fault that changes the answer's JSON by ``change(answer, choice)``."""

    def fault(reply, request):
        answer = json.loads(reply.body)
        change(answer, answer["choices"][0])
        return replace(reply, body=json.dumps(answer, ensure_ascii=False).encode())

    return fault


def _edit_tokens(change):
    """A fault that replaces the alternatives by ``change([(token, value)])``."""

    def edit(answer, choice):
        content = (choice.get("logprobs") or {}).get("content")
        if content:
            pairs = [(t["token"], t["logprob"]) for t in content[0]["top_logprobs"]]
            content[0]["top_logprobs"] = [_entry(*pair) for pair in change(pairs)]

    return _edit(edit)


def _rename(names):
    return lambda pairs: [(names(token), value) for token, value in pairs]


def _is_label(token):
    return token.strip() in ("A", "B", "C", "D", "Yes", "No")


def _first_label(pairs):
    return next((token for token, _ in pairs if _is_label(token)), None)


def _sentinel(value):
    def change(pairs):
        spoiled = (_first_label(pairs) or "").strip()
        return [(token, value if token.strip() == spoiled else v) for token, v in pairs]

    return _edit_tokens(change)


def _set_logprobs(value):
    return _edit(lambda answer, choice: choice.update(logprobs=value(choice["logprobs"])))


def _first_content(**fields):
    def change(logprobs):
        return logprobs and {"content": [{**logprobs["content"][0], **fields}]}

    return _set_logprobs(change)


def _token_arrays(logprobs):
    first = logprobs["content"][0]
    top = {t["token"]: t["logprob"] for t in first["top_logprobs"]}
    return {"tokens": [first["token"]], "token_logprobs": [first["logprob"]], "top_logprobs": [top]}


def _drop_field(*path):
    def edit(answer, choice):
        place = {"choice": choice, "answer": answer}[path[0]]
        for name in path[1:-1]:
            place = place[name]
        place.pop(path[-1], None)

    return _edit(edit)


def _text_logprobs(answer, choice):
    for first in (choice.get("logprobs") or {}).get("content") or []:
        for entry in first["top_logprobs"]:
            entry["logprob"] = "not a number"


def _second_token(answer, choice):
    for content in [(choice.get("logprobs") or {}).get("content") or []]:
        content += [{**first, "top_logprobs": [_entry(t["token"], t["logprob"] - 1) for t in first["top_logprobs"]]}
                    for first in content[:1]]  # fmt: skip


CYRILLIC = str.maketrans("ABC", "\u0410\u0412\u0421")

# Faults that pass: they hit the first tries of a question and then let it through.
PASSING = {
    "slow": lambda reply, request: replace(reply, delay=reply.delay + 0.3),
    "rate-limit": lambda reply, request: _error(429, "slow down", request),
    "rate-limit-wait": lambda reply, request: _error(429, "slow down", request, headers=(("Retry-After", "1"),)),
    "server-error": lambda reply, request: _error(500, "internal", request),
    "unavailable": lambda reply, request: _error(503, "overloaded", request, headers=(("Retry-After", "0"),)),
    "reset": lambda reply, request: replace(reply, cut=len(reply.wire()) // 2),
    "early-reset": lambda reply, request: replace(reply, cut=0),
    "time-out": lambda reply, request: replace(reply, delay=NEVER),
    "slow-drip": lambda reply, request: replace(reply, drip=0.02),
    "truncated-json": lambda reply, request: replace(reply, body=reply.body[: len(reply.body) * 2 // 3]),
    "invalid-json": lambda reply, request: replace(reply, body=b"{'choices': [" + request.key.encode() + b"]}"),
    "empty-body": lambda reply, request: replace(reply, body=b""),
    "html": lambda reply, request: replace(
        reply, kind="text/html", body=f"<html><h1>Sign in</h1>{request.key}<script>alert(1)</script></html>".encode()
    ),
    "no-choices": _edit(lambda answer, choice: answer.update(choices=[])),
    "error-in-200": lambda reply, request: replace(_error(400, "upstream failed", request), status=200),
}
# Faults that stay: the same question always gets the same answer.
LASTING = {
    "bad-request": lambda reply, request: _error(400, "prompt too long", request),
    "content-filter": _edit(lambda answer, choice: choice.update(finish_reason="content_filter", logprobs=None)),
    "content-filter-400": lambda reply, request: _error(400, "filtered", request, code="content_filter"),
    "unauthorized": lambda reply, request: _error(401, "incorrect API key", request, code="invalid_api_key"),
    "forbidden": lambda reply, request: _error(403, "not allowed", request),
    "insufficient-quota": lambda reply, request: _error(429, "no quota", request, code="insufficient_quota"),
    "insufficient-balance": lambda reply, request: _error(402, "no balance", request),
    "unknown-model": lambda reply, request: _error(404, "no such model", request),
    "long-wait": lambda reply, request: _error(429, "daily limit", request, headers=(("Retry-After", "86400"),)),
    "logprobs-null": _set_logprobs(lambda logprobs: None),
    "logprobs-missing": _drop_field("choice", "logprobs"),
    "logprobs-empty": _set_logprobs(lambda logprobs: {}),
    "content-null": _set_logprobs(lambda logprobs: {"content": None}),
    "content-empty": _set_logprobs(lambda logprobs: {"content": []}),
    "top-logprobs-null": _first_content(top_logprobs=None),
    "top-logprobs-empty": _first_content(top_logprobs=[]),
    "tokens-arrays": _set_logprobs(lambda logprobs: logprobs and _token_arrays(logprobs)),
    "text-logprobs": _edit(_text_logprobs),
    "second-token": _edit(_second_token),
    "null-alternative": _edit_tokens(lambda pairs: [*pairs[:-1], (pairs[-1][0], None)]),
    "null-message": _edit(lambda answer, choice: choice["message"].update(content=None)),
    "odd-types": _edit(
        lambda answer, choice: (choice.update(message="A"), answer.update(usage=[], id=7, system_fingerprint={"v": 1}))
    ),
    "lone-surrogate": _edit_tokens(lambda pairs: [*pairs[:-1], ("<S>", pairs[-1][1])]),
    "key-echo": lambda reply, request: _edit_tokens(lambda pairs: [*pairs[:-1], (request.key, pairs[-1][1])])(
        reply, request
    ),
    "wrong-model": _edit(lambda answer, choice: answer.update(model="another-model-0613")),
    "duplicate-id": _edit(lambda answer, choice: answer.update(id="chatcmpl-same")),
    "missing-id": _drop_field("answer", "id"),
    "no-usage": _drop_field("answer", "usage"),
    "no-labels": _edit_tokens(lambda pairs: [p for p in pairs if not _is_label(p[0])]),
    "label-outside": _edit_tokens(lambda pairs: [p for p in pairs if p[0].strip() not in ("D", "No")]),
    "lower-case": _edit_tokens(_rename(lambda t: t.lower() if _is_label(t) else t)),
    "cyrillic": _edit_tokens(_rename(lambda t: t.translate(CYRILLIC) if _is_label(t) else t)),
    "prefixed": _edit_tokens(_rename(lambda t: ">" + t if _is_label(t) else t)),
    **{name: _sentinel(value) for name, value in SENTINELS.items()},
}
FAULTS = {**PASSING, **LASTING}
# Faults that end a run at once; "all" leaves them out, so that a rehearsal goes on.
ENDING = ("unauthorized", "forbidden", "insufficient-quota", "insufficient-balance", "unknown-model", "long-wait")


def chosen(names):
    """The faults of a list of names; "all" stands for every one that does not end a run."""
    if list(names) == ["all"]:
        return tuple(name for name in FAULTS if name not in ENDING)
    for name in names:
        if name not in FAULTS:
            raise StackError(f"unknown fault {name!r}; there are: all, {', '.join(FAULTS)}.")
    return tuple(names)


# -- the server ------------------------------------------------------------------------------------


@dataclass
class Endpoint:
    """An OpenAI-compatible endpoint on 127.0.0.1; as a context manager it runs in a thread.

    Parameters
    ----------
    latency_s : float
        Seconds before each answer.
    faults : sequence of str
        Names from ``FAULTS``; a question gets the one that its hash picks.
    share : float
        Share of questions that meet a fault, chosen by hash.
    first : int
        A passing fault hits the first so many tries of a question.
    after : int
        Faults begin after so many requests to the endpoint.
    scaled : bool
        Log-probabilities depend on the request temperature.
    key : str, optional
        The only key that is accepted; None accepts all.
    answers : dict, optional
        Planted answers: :func:`prompt_id` to a list of ``[(token, log-probability)]``, one a repetition, in turn.

    Attributes
    ----------
    asked, answered : Counter
        By :func:`prompt_id`: requests that arrived, and those that were answered without a fault.
    requests, most_at_once : int
        Requests that arrived in all, and how many waited for an answer side by side at most.
    """

    port: int = 0
    latency_s: float = 0.0
    faults: tuple = ()
    share: float = 1.0
    first: int = 1
    after: int = 0
    shape: str = "openai"
    seed: int = 0
    scaled: bool = False
    key: str | None = None
    answers: dict = field(default_factory=dict)
    asked: Counter = field(default_factory=Counter)
    answered: Counter = field(default_factory=Counter)
    requests: int = 0
    most_at_once: int = 0

    def __post_init__(self):
        self.faults = chosen(self.faults)
        self._open = set()
        self._at_once = 0

    @property
    def url(self):
        """Base URL for a client."""
        return f"http://{HOST}:{self.port}/v1"

    def fault_of(self, identity):
        """Name of the fault that a question meets, or None; a function of its hash and the seed."""
        draw = random.Random(f"fault{self.seed}{identity}")
        return draw.choice(self.faults) if self.faults and draw.random() < self.share else None

    def reply(self, body, key):
        """The Reply to one chat request."""
        identity = prompt_id(body)
        self.asked[identity] += 1
        self.requests += 1
        request = Request(body, key, self.asked[identity])
        if self.key is not None and key != self.key:
            return _error(401, "incorrect API key", request, code="invalid_api_key")
        planted = self.answers.get(identity)
        pairs = planted[(self.asked[identity] - 1) % len(planted)] if planted else None
        text = json.dumps(healthy(body, self.shape, self.seed, self.scaled, pairs), ensure_ascii=False)
        good = Reply(body=text.encode(), delay=self.latency_s)
        name = self.fault_of(identity) if self.requests > self.after else None
        if name is None or (name in PASSING and request.tries > self.first):
            self.answered[identity] += 1
            return good
        spoiled = FAULTS[name](good, request)
        return replace(spoiled, body=spoiled.body.replace(b"<S>", b"\\ud83d"), delay=max(spoiled.delay, self.latency_s))

    def answer(self, head, body):
        """The Reply to any HTTP request: health, counts, chat."""
        path = head.split(b" ", 2)[1]
        if path == b"/health":
            return Reply(body=b'{"status": "ok"}')
        if path == b"/counts":
            counts = {"requests": self.requests, "questions": len(self.asked), "answers": self.answered.total()}
            return Reply(body=json.dumps(counts).encode())
        if path != b"/v1/chat/completions":
            return Reply(404, b'{"error": {"message": "no such path"}}')
        try:
            request = json.loads(body)
            found = _BEARER.search(head)
            return self.reply(request, found.group(1).decode() if found else "")
        except (ValueError, TypeError, AttributeError, KeyError):
            return Reply(400, b'{"error": {"message": "the request is no chat completion request"}}')

    async def listen(self):
        """Start listening; StackError where the port is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Connection(self), HOST, self.port, backlog=512)
        except OSError as error:
            raise StackError(f"port {self.port} on {HOST} cannot be used ({error.strerror}); choose another.") from None
        self.port = self._server.sockets[0].getsockname()[1]

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(self.listen())
        except StackError:
            self._loop.close()
            raise
        self._thread = threading.Thread(target=self._loop.run_forever, name="loopback endpoint", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    async def _close(self):
        self._server.close()
        for transport in list(self._open):
            transport.abort()
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """One kept-alive HTTP/1.1 connection."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.buffer = b""
        self.waiting = None

    def connection_made(self, transport):
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.endpoint._open.add(transport)

    def connection_lost(self, error):
        self.endpoint._open.discard(self.transport)
        if self.waiting:
            self.waiting.cancel()
            self._ended()

    def data_received(self, data):
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            found = _LENGTH.search(head)
            size = end + 4 + (int(found.group(1)) if found else 0)
            if len(self.buffer) < size:
                return
            body, self.buffer = self.buffer[end + 4 : size], self.buffer[size:]
            self._started(self.endpoint.answer(head, body))

    def _started(self, reply):
        self.endpoint._at_once += 1
        self.endpoint.most_at_once = max(self.endpoint.most_at_once, self.endpoint._at_once)
        self.waiting = asyncio.get_running_loop().call_later(reply.delay, self._send, reply)

    def _ended(self):
        self.waiting = None
        self.endpoint._at_once -= 1

    def _send(self, reply):
        wire = reply.wire()
        if reply.cut is not None:
            self._ended()
            self.transport.write(wire[: reply.cut])
            asyncio.get_running_loop().call_later(0.01 if reply.cut else 0, self._reset)
        elif reply.drip:
            self._drip(wire, reply.drip)
        else:
            self._ended()
            self.transport.write(wire)

    def _drip(self, wire, pause):
        if not wire:
            return self._ended()
        self.transport.write(wire[:1])
        self.waiting = asyncio.get_running_loop().call_later(pause, self._drip, wire[1:], pause)

    def _reset(self):
        """Close with a TCP reset, as a machine does that went away."""
        if not self.transport.is_closing():
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()


def read_answers(path):
    """Planted answers of a JSON Lines file, as :class:`Endpoint` takes them."""
    return {row["prompt"]: [list(zip(a["tokens"], a["logprobs"], strict=True)) for a in row["answers"]] for row in read_jsonl(path)}


async def _serve(endpoint):
    await endpoint.listen()
    print(
        f"{endpoint.url} answers after {endpoint.latency_s * 1000:g} ms; any key is accepted; stop it with Ctrl-C.",
        flush=True,
    )
    if endpoint.faults:
        print(f"faults for {endpoint.share:.0%} of the questions: {', '.join(endpoint.faults)}", flush=True)
    await asyncio.Event().wait()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal.endpoint", description=__doc__.split("\n\n")[0])
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--faults", default="", help=f"all, or some of: {', '.join(FAULTS)}")
    parser.add_argument("--share", type=float, default=0.1, help="share of the questions that meet a fault")
    parser.add_argument("--first", type=int, default=1, help="a passing fault hits the first so many tries")
    parser.add_argument("--shape", choices=SHAPES, default="openai")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scaled", action="store_true", help="log-probabilities depend on the request temperature")
    parser.add_argument("--answers", help="JSON Lines file of planted answers (tests/rehearsal/simulate.py writes one)")
    options = parser.parse_args(arguments)
    try:
        endpoint = Endpoint(
            port=options.port, latency_s=options.latency_ms / 1000, faults=[f for f in options.faults.split(",") if f],
            share=options.share, first=options.first, shape=options.shape, seed=options.seed, scaled=options.scaled,
            answers=read_answers(options.answers) if options.answers else {},
        )  # fmt: skip
        asyncio.run(_serve(endpoint))
    except (StackError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OverflowError:
        print(f"error: port {options.port} is none; a port is a number up to 65535.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
