"""Projection: the redacted text of a state that evaluators and generators read.

It keeps the question and the evidence, and never holds what would tell the answer or who asked: target, success,
scores, labels, provider responses, ids, times, secrets.
"""

import json
import re
from collections.abc import Sequence

_REDACTED = "[redacted]"
EVIDENCE_FIELDS = ("artifacts", "evidence")

# Words that condemn a key wherever they stand in it (camelCase and snake_case are split first).
_FORBIDDEN_WORDS = frozenset(
    "target gold truth success succeeded score scores correct correctness reward label labels logprob logprobs "
    "secret secrets password passwd credential credentials authorization auth apikey cookie bearer token tokens "
    "timestamp timestamps datetime latency elapsed duration provider completion completions fingerprint usage "
    "response responses overclaim expected "
    "finalscore groundtruth goldanswer goldlabel answerkey accesstoken privatekey".split()  # written as one word
)
# Runs of words that condemn a key when they stand in it one after the other.
_FORBIDDEN_RUNS = re.compile(
    "(?:^|_)(?:answer_key|api_key|private_key|access_key|claim_support|citation_precision|time_stamp|final_decision"
    "|raw_output|start_time|end_time|start_date|date_time|created|updated|started|finished)(?:_|$)"
)
_FORBIDDEN_KEYS = frozenset("raw time headers family".split())
_KEPT_IDS = frozenset({"doc_id", "candidate_id"})

_FORBIDDEN_TEXT = re.compile(
    r"""
      \b(?:sk|pk|rk)-[A-Za-z0-9_-]{12,}                      # API keys
    | \b(?:ghp|gho|AKIA|hf)_?-?[A-Za-z0-9]{16,}              # tokens of common services
    | \b(?:github_pat_\w{16,}|xox[abeps]-[A-Za-z0-9-]{16,})
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*                     # JSON web tokens
    | \bBearer\s+[A-Za-z0-9._~+/=-]{8,}
    | (?i:\bauthorization["']?\s*[:=]\s*["']?(?:basic|digest|token)\s+[^\s"']+)
    | ://[^\s/@:]+:[^\s/@]+@                                 # user and password in an address
    | (?i:\b(?:[a-z]+[_-])?(?:api[_ -]?key|password|secret|access[_ -]?token)["']?\s*[:=]\s*\S+)
    | (?i:["'](?:target|answer[_ ]key|gold|label|success|(?:final[_ ])?score)["']\s*:\s*\S+)   # JSON inside a text
    | (?i:\b(?:claim[_ ]support|citation[_ ]precision|overclaim)\s*[:=]\s*\S+)
    | \b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?   # timestamps
    | \b(?:chatcmpl|cmpl|req|resp|run|trace|thread|msg)[-_][A-Za-z0-9]{8,}             # request and trace ids
    | \b(?i:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b            # UUIDs
    | \b(?i:option|choice|label)\s+[A-D]\b                   # physical labels
    | \b(?i:(?:final\s+)?answer)\s*(?:is|:|=)\s*(?:[B-D]\b|A\b(?!\s+[a-z]))   # "Answer: A trial" has an article
    | \b(?i:(?:correct|gold|reviewed|right)\s+(?:answer|target|label|option|candidate))\b(?:\s*(?:is|:|=)\s*\S+)?
    | \b(?i:answer\s+key)\b(?:\s*(?:is|:|=)\s*\S+)?
    | \b(?i:(?:final|overall)[_ ]score)\b(?:\s*(?:is|:|=)\s*\S+)?
    | \b(?i:success)\s*[:=]\s*\S+
    """,
    re.VERBOSE,
)
# Where a word begins inside a key: camelCase, LLMScore, score1
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")


def _forbidden_key(key):
    """Whether a state key may not be shown to an evaluator."""
    words = [w for w in re.split(r"[^A-Za-z0-9]+", _WORD.sub("_", str(key)).lower()) if w]
    name = "_".join(words)
    if name in _KEPT_IDS:
        return False
    is_id = words[-1:] in (["id"], ["ids"], ["uuid"]) or (len(words) > 1 and words[-1] == "at")
    by_word = name in _FORBIDDEN_KEYS or _FORBIDDEN_WORDS.intersection(words)
    return bool(is_id or by_word or _FORBIDDEN_RUNS.search(name))


def redact(value):
    """A JSON value without forbidden keys and with forbidden text replaced, at every depth."""
    if isinstance(value, dict):
        kept = {k: redact(v) for k, v in value.items() if not _forbidden_key(k)}
        full = {k: v for k, v in kept.items() if v not in ("", [], {}, None)}
        return {**full, **{k: v for k, v in kept.items() if k not in full}}
    if isinstance(value, list):
        return [redact(v) for v in value]
    if isinstance(value, str):
        return _FORBIDDEN_TEXT.sub(_REDACTED, value)
    return value


def project(state, observation=None):
    """Projection of a state as JSON text, one field a line: keys in the order of their last writing, empty ones last
    but for ``observation``, which is what the step that led here reported.
    """
    visible = redact(state)
    if observation:
        visible.pop("observation", None)
        visible["observation"] = redact(observation)
    return json.dumps(visible, ensure_ascii=False, indent=1)


def state_slice(state_text, name):
    """A part of a projected state: ``full`` is all of it, ``evidence`` only what was retrieved or extracted."""
    if name == "full":
        return state_text
    visible = json.loads(state_text)
    return json.dumps({k: v for k, v in visible.items() if k in EVIDENCE_FIELDS}, ensure_ascii=False, indent=1)


class Projected(Sequence):
    """Projections of states x0 … xn, each made when first looked at; one after a step has that step's observation."""

    def __init__(self, states, steps):
        self._states, self._steps, self._made = states, steps, {}

    def __len__(self):
        return len(self._states)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[k] for k in range(len(self))[number]]
        number = range(len(self))[number]
        if number not in self._made:
            observation = self._steps[number - 1].get("observation") if number else None
            self._made[number] = project(self._states[number], observation)
        return self._made[number]
