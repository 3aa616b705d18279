"""Probe: three calls that find out what an evaluator returns, before money is spent on a run.

The result is kept as ``<recordings>/probe/<stack>.json``.
"""

import json
import math
from pathlib import Path

import numpy as np

from helpers.asking.answers import parse_answer
from helpers.asking.client import Asker, client_for
from helpers.asking.faults import Refused, RunStopped
from helpers.channels.plan import request_body
from helpers.channels.stacks import StackError
from helpers.measuring.labels import BINARY_LABELS, JOINT_LABELS, normalise, usable

CALLS = 3
ATTEMPTS = 4
LABELS = {"joint": JOINT_LABELS, "binary": BINARY_LABELS}
_FEWEST_ALTERNATIVES = 4
_MOST_MASS = 1.05  # of all alternatives of one token; rounding takes it a little above 1
_JOINT_PROMPT = (
    "Four boxes are labelled A, B, C and D. A coin is in one of them, and nothing is known about which one.\n"
    "Output exactly one physical option token: A, B, C, or D."
)
_BINARY_PROMPT = "A coin is thrown and nobody has looked at it. Does it show heads?\nOutput exactly Yes or No."
# Slope of log-probability differences at temperature 2 on those at temperature 1: 1 where the endpoint
# ignores the temperature, 0.5 where it divides by it. A warm prefix cache moves single values by up to
# 0.2 nats, alternatives spread over 5 nats and more, so 0.15 leaves room and keeps the two apart.
_SLOPES = {False: 1.0, True: 0.5}
_TOLERANCE = 0.15


def _temperature_slope(cool, warm):
    """Slope of log-probability differences between two temperatures, by least squares.

    ``cool`` and ``warm`` are {token: log-probability} (nats) at temperature 1 and 2. None with fewer than three common
    alternatives or no spread. log p_T(t) = z(t)/T - log Z_T, so differences scale by 1/T where T is applied.
    """
    common = sorted(t for t in cool.keys() & warm.keys() if usable(cool[t]) and usable(warm[t]))
    x, y = (np.array([values[t] for t in common]) for values in (cool, warm))
    if len(common) < 3 or np.ptp(x) < 0.5:
        return None
    x = x - x.mean()
    return float(x @ y / (x @ x))


def scaled_by_temperature(slope):
    """True, False, or None where the slope says neither."""
    if slope is None:
        return None
    return next((scaled for scaled, at in _SLOPES.items() if abs(slope - at) <= _TOLERANCE), None)


def _alternatives(row):
    return dict(zip(row.get("tokens") or [], row.get("logprobs") or [], strict=True))


def findings(stack, joint, binary, warm):
    """What three answers say about a stack, as a dict without times or keys.

    ``labels`` says for each label whether it came back as one token with a usable value.
    """
    found = {"joint": _alternatives(joint), "binary": _alternatives(binary)}
    single = {readout: {normalise(t) for t, v in tokens.items() if usable(v)} for readout, tokens in found.items()}
    slope = _temperature_slope(found["joint"], _alternatives(warm))
    return {
        **_asked_of(stack),
        "logprobs": all(found.values()),
        "alternatives": min(len(tokens) for tokens in found.values()),
        "labels": {label: label in single[readout] for readout, labels in LABELS.items() for label in labels},
        "scaled_by_temperature": scaled_by_temperature(slope),
        "temperature_slope": None if slope is None else round(slope, 1),
        "sentinels": sorted({f"{v:g}" for tokens in found.values() for v in tokens.values() if not usable(v)}),
        "mass": max(round(sum(math.exp(v) for v in tokens.values() if usable(v)), 3) for tokens in found.values()),
        "returned_model": joint["returned_model"],
        "fingerprint": joint["fingerprint"],
    }


def refusal(found, stack, readouts=("joint", "binary")):
    """Why a probed stack cannot be used for these readouts, as a sentence; None where it can."""
    if not found["logprobs"]:
        return "the endpoint returns no log-probabilities although they were asked for; use another model or endpoint."
    if found["alternatives"] < _FEWEST_ALTERNATIVES:
        came = found["alternatives"]
        return f"only {came} alternatives come back, at least {_FEWEST_ALTERNATIVES} are needed; raise top_logprobs."
    if found.get("mass", 0) > _MOST_MASS:  # a result of an earlier version has none
        return (
            f"the alternatives of one token add up to a probability of {found['mass']:g}, so the values are no "
            "log-probabilities of that token; use another model or endpoint."
        )
    gone = [label for r, labels in LABELS.items() if r in readouts for label in labels if not found["labels"][label]]
    if gone:
        odd = f" (values that are no log-probabilities: {', '.join(found['sentinels'])})" if found["sentinels"] else ""
        names = ", ".join(gone)
        return f"{names} did not come back as single first tokens{odd}; this model cannot be read with these labels."
    if stack.returned_models and found["returned_model"] not in stack.returned_models:
        expected = " or ".join(stack.returned_models)
        return f"{found['returned_model']!r} answered, expected {expected}; correct params/stacks.yml."
    declared, scaled = stack.logprobs_scaled_by_temperature, found["scaled_by_temperature"]
    if stack.sampling.get("temperature", 1.0) != 1.0 and scaled != declared:
        seen = {True: "are", False: "are not", None: "may or may not be"}[scaled]
        return (
            f"log-probabilities {seen} scaled by the request temperature, params/stacks.yml declares "
            f"{str(declared).lower()}; correct it, or ask at temperature 1, where it makes no difference."
        )
    return None


async def probe(stack, client, budget=None):
    """Ask a stack three questions and return :func:`findings`; StackError without an answer, BudgetSpent without room.

    They are the joint question at temperature 1, a binary one with the stack's own settings, and the joint one at 2.
    """
    asker, answers = Asker(stack, client, budget=budget, attempts=ATTEMPTS), []
    for prompt, temperature in ((_JOINT_PROMPT, 1.0), (_BINARY_PROMPT, None), (_JOINT_PROMPT, 2.0)):
        body = request_body([{"role": "user", "content": prompt}], stack)
        body |= {} if temperature is None else {"temperature": temperature}
        try:
            answers.append(await asker.ask(body, parse_answer, f"its probe of at least {CALLS} calls"))
        except Refused as refused:  # a stack that does not answer its probe cannot be used
            raise StackError(str(refused)) from None
    return findings(stack, *answers)


def _asked_of(stack):
    """What a probe result belongs to: another identity or other settings need another probe."""
    settings = {"model": stack.model, **stack.sampling, **stack.extra_body}
    return {"stack": stack.name, "identity": stack.identity, "settings": settings}


def _path(folder, stack):
    return Path(folder) / "probe" / f"{stack.name}.json"


def saved_probe(folder, stack):
    """The result that was saved for this identity and these settings, or None."""
    try:
        found = json.loads(_path(folder, stack).read_text(encoding="utf-8"))
        return found if _asked_of(stack).items() <= found.items() else None
    except (OSError, ValueError, AttributeError):
        return None


def _save_probe(found, folder, stack):
    """Keep a result; the file is touched only where it says something new."""
    path, text = _path(folder, stack), json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _check_probe(found, stack, readouts=("joint", "binary")):
    """StackError where a probe's result refuses the stack."""
    if reason := refusal(found, stack, readouts):
        raise StackError(f"{stack.name}: the probe refuses this stack: {reason}")


async def ensure_probed(stack, client, store, *, readouts=("joint", "binary"), budget=None):
    """Probe a stack, within the budget, unless a good result is saved beside its recordings.

    A result that refuses the stack is asked again, so that a mended endpoint needs no file removed. StackError where
    the probe refuses the stack, RunStopped where the budget has no room for it.
    """
    found = saved_probe(store.parquet.parent, stack)
    if found and refusal(found, stack, readouts) is None:
        return
    left = budget and budget.calls_left
    if left is not None and left < CALLS:
        raise RunStopped(f"{stack.name}: its probe needs {CALLS} calls, the budget is {left}; raise the budget.")
    found = await probe(stack, client, budget)
    _save_probe(found, store.parquet.parent, stack)
    _check_probe(found, stack, readouts)


async def show_probe(stack, folder):
    """Probe a stack, print and return the result; StackError where it refuses the stack."""
    async with client_for(stack) as client:
        found = await probe(stack, client)
    _save_probe(found, folder, stack)
    print(json.dumps(found, indent=1, ensure_ascii=False))
    _check_probe(found, stack)
    return found
