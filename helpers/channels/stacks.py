"""Stacks: the evaluators of ``params/stacks.yml``."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

NEEDED = {"embedded": ("file", "sha256"), "api": ("base_url", "key_variable")}
ORDERS = ("prefix", "hash")
NUMBERS = ("sampling", "concurrency", "timeout_s", "tokens_per_s", "price", "threads")
SHORTEST_KEY = 12  # characters below which a key is a word rather than a secret
SHOWN = 200  # characters of a text from elsewhere that an error may show
STACKS = Path(__file__).resolve().parents[2] / "params" / "stacks.yml"


class StackError(RuntimeError):
    """An evaluator cannot be used. The message says why and what to do."""

@dataclass(frozen=True)
class Stack:
    """One evaluator: endpoint, model, sampling settings, price.

    ``identity`` is what goes into every recording's key: the model file's hash for an embedded
    stack, the endpoint and model for an API. Time-outs and concurrency do not belong to it.
    """

    name: str
    kind: str
    model: str
    sampling: dict
    order: str
    concurrency: int
    timeout_s: float
    tokens_per_s: dict
    price: dict
    logprobs_scaled_by_temperature: bool
    base_url: str | None = None
    key_variable: str | None = None
    returned_models: tuple = ()
    extra_body: dict = field(default_factory=dict)
    file: str | None = None
    sha256: str | None = None
    hub: str | None = None
    wheels: dict | None = None
    licence: str | None = None
    threads: int = 2

    @property
    def identity(self):
        """What answers, as a dict: part of every recording's key."""
        if self.kind == "embedded":
            return {"model_sha256": self.sha256}
        return {"base_url": self.base_url, "model": self.model}

    @property
    def tau(self):
        """Factor of Equation 8: the sampling temperature where log-probabilities are scaled by it, else 1."""
        return self.sampling["temperature"] if self.logprobs_scaled_by_temperature else 1.0

    @property
    def interleaved(self):
        """Order of asking where waves must not line up with time: groups that share a prefix, or single requests."""
        return "prefix-groups" if self.order == "prefix" else "hash"


class Stacks(dict):
    """Stacks by name; an unknown name raises a StackError with those that exist."""

    def __missing__(self, name):
        raise StackError(f"unknown stack {name!r}; params/stacks.yml has {', '.join(self)}.")


def load_stacks(path=STACKS):
    """All stacks of a YAML file as ``{name: Stack}``; StackError names the file, the stack and the field."""
    try:
        rows = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise StackError(f"{path}: cannot be read ({error.strerror}); restore it from the repository.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise StackError(
            f"{path}{where}: not valid YAML ({getattr(error, 'problem', 'not UTF-8')}); repair it."
        ) from None
    if not isinstance(rows, dict) or not rows:
        raise StackError(f"{path}: holds no stacks; each is a name with its fields below it.")
    return Stacks({name: _stack(path, name, row) for name, row in rows.items()})


def _stack(path, name, row):
    where = f"{path}: stack {name!r}"
    if not isinstance(row, dict):
        raise StackError(f"{where}: expected fields, found {type(row).__name__}.")
    try:
        stack = Stack(name=name, **row)
    except TypeError as error:
        raise StackError(f"{where}: {str(error).split('__init__() ')[-1]}.") from None
    for field_name in NUMBERS:
        if (text := text_exponent(row.get(field_name))) is not None:
            raise StackError(f"{where}: {field_name} holds text ({text!r}); YAML reads 1e-3 as text, so write 1.0e-3.")
    if stack.kind not in NEEDED:
        raise StackError(f"{where}: kind {stack.kind!r} is unknown; use one of {', '.join(NEEDED)}.")
    if stack.order not in ORDERS:
        raise StackError(f"{where}: order {stack.order!r} is unknown; use one of {', '.join(ORDERS)}.")
    missing = [field_name for field_name in NEEDED[stack.kind] if not getattr(stack, field_name)]
    if missing:
        raise StackError(f"{where}: {', '.join(missing)} missing, which a stack of kind {stack.kind} needs.")
    return stack


def text_exponent(value):
    """The first text in a YAML value, however deep, that was meant as a number (``1e-3``); None without one."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+", value) else None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for item in items if (found := text_exponent(item)) is not None), None)


def load_stack(name, path=STACKS):
    """One stack by name; StackError lists the names that exist."""
    stacks = load_stacks(path)
    if name not in stacks:
        raise StackError(f"unknown stack {name!r}; {Path(path).name} has {', '.join(stacks)}.")
    return stacks[name]


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
