"""Stacks: the evaluators of ``params/stacks.yml``, and what is refused of one."""

import re
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, ValidationError, WrapValidator
from pydantic.dataclasses import dataclass

from helpers.study.checks import STRICT, Text, sentences

_NEEDED = {"embedded": ("file", "sha256"), "api": ("base_url", "key_variable")}
_NO_NUMBER = ("currency", "date", "source")  # of a price
_STACKS = Path(__file__).resolve().parents[2] / "params" / "stacks.yml"


class StackError(RuntimeError):
    """An evaluator cannot be used. The message says why and what to do."""


def text_exponent(value):
    """The first text in a YAML value, however deep, that was meant as a number (``1e-3``); None without one."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+", value) else None
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for item in items if (found := text_exponent(item)) is not None), None)


def _as_written(value, check):
    """The value as it was written, once it is checked: 45 stays 45, as another text would be another request."""
    if (text := text_exponent(value)) is not None:
        raise ValueError(f"holds text ({text!r}); YAML reads 1e-3 as text, so write 1.0e-3.")
    check({k: v for k, v in value.items() if k not in _NO_NUMBER} if isinstance(value, dict) else value)
    return value


Number = WrapValidator(_as_written)
Count = Annotated[int, Field(ge=1), Number]
Positive = Annotated[float, Field(gt=0), Number]


@dataclass(frozen=True, config=ConfigDict(**STRICT, extra="forbid"))
class Stack:
    """One evaluator: endpoint, model, sampling settings, price. A field of another type is refused."""

    name: Text
    kind: Literal[*_NEEDED]
    model: Text
    sampling: Annotated[dict[str, Any], Number]
    order: Literal["prefix", "hash"]
    concurrency: Count
    timeout_s: Positive
    tokens_per_s: Annotated[dict[str, Positive], Number]
    price: Annotated[dict[str, Annotated[float, Field(ge=0)]], Number]
    logprobs_scaled_by_temperature: bool
    base_url: str | None = None
    key_variable: str | None = None
    returned_models: Annotated[tuple[str, ...], Field(strict=False)] = ()
    extra_body: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    sha256: str | None = None
    hub: str | None = None
    wheels: dict[str, Any] | None = None
    licence: str | None = None
    threads: Count = 2

    @property
    def identity(self):
        """What answers, part of every recording's key: the hash of a model's file, or an endpoint and its model."""
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


class _Stacks(dict):
    """Stacks by name; an unknown name raises a StackError with those that their file has."""

    def __init__(self, stacks, file=_STACKS.name):
        super().__init__(stacks)
        self.file = file

    def __missing__(self, name):
        raise StackError(f"unknown stack {name!r}; {self.file} has {', '.join(self)}.")


def load_stacks(path=_STACKS):
    """All stacks of a YAML file as ``{name: Stack}``; StackError names the file, the stack and the field."""
    try:
        rows = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise StackError(f"{path}: cannot be read ({error.strerror}); restore it from the repository.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = f", line {error.problem_mark.line + 1}" if getattr(error, "problem_mark", None) else ""
        said = getattr(error, "problem", "not UTF-8")
        raise StackError(f"{path}{where}: not valid YAML ({said}); repair it.") from None
    if not isinstance(rows, dict) or not rows:
        raise StackError(f"{path}: holds no stacks; each is a name with its fields below it.")
    return _Stacks({name: _stack(f"{path}: stack {name!r}:", name, row) for name, row in rows.items()}, Path(path).name)


def _stack(where, name, row):
    if not isinstance(row, dict):
        raise StackError(f"{where} expected fields, found {type(row).__name__}.")
    if "name" in row:
        raise StackError(f"{where} its name stands above its fields; remove the field name.")
    try:
        stack = Stack(name=name, **{str(field_name): value for field_name, value in row.items()})
    except ValidationError as error:
        raise StackError(f"{where} {' '.join(sentences(error, Stack))}") from None
    if missing := [needed for needed in _NEEDED[stack.kind] if not getattr(stack, needed)]:
        raise StackError(f"{where} {', '.join(missing)} missing, which a stack of kind {stack.kind} needs.")
    return stack


def load_stack(name, path=_STACKS):
    """One stack by name; StackError lists the names that exist."""
    return load_stacks(path)[name]
