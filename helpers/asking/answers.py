"""What an answer is: the kept part of a chat completion, as received; nothing is derived."""

import json
import math

from helpers.asking.faults import Refused, Unusable, shown


def parse_answer(text, asked_at, seconds):
    """The row that is recorded of an evaluator's answer; Unusable where the text is no chat completion at all."""
    answer, choice, message = _completion(text)
    return {
        "sampled": plain_text(message.get("content")),
        "returned_model": plain_text(answer.get("model")),
        "fingerprint": plain_text(answer.get("system_fingerprint")),
        "response_id": plain_text(answer.get("id")),
        "finish_reason": plain_text(choice.get("finish_reason")),
        **_usage(answer),
        "asked_at": round(asked_at, 3),
        "seconds": round(seconds, 4),
        **_first_alternatives(choice.get("logprobs")),
    }


def parse_text(text, asked_at, seconds):
    """What a generator said: ``text`` ("" where it said nothing), ``finish_reason`` and token counts; else Unusable."""
    answer, choice, message = _completion(text)
    said = message.get("content")
    said = plain_text(said) if isinstance(said, str) else ""
    return {"text": said, "finish_reason": plain_text(choice.get("finish_reason")), **_usage(answer)}


def _completion(text):
    """An answer, its first choice and its message; Unusable where it has none, Refused where a filter withheld it."""
    try:
        answer = json.loads(text)
        json.dumps(answer)  # what is nested too deeply to be written cannot be kept either
        choice = answer["choices"][0]
        finish = choice.get("finish_reason")
    except RecursionError:
        raise Unusable("the answer is nested too deeply to be read") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise Unusable(f"the answer is no chat completion: {shown(text)}") from None
    if finish == "content_filter":
        raise Refused("refused by the endpoint's content filter", charged=True)
    return answer, choice, _mapping(choice.get("message"))


def plain_text(value):
    """A value as text that UTF-8 can hold, or None: what an endpoint sends may be of any type."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _mapping(value):
    return value if isinstance(value, dict) else {}


def _count(value):
    """A token count, or None where it is not one."""
    is_count = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**31
    return int(value) if is_count else None


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


def _first_alternatives(logprobs):
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
