"""Stacks: the evaluators of ``params/stacks.yml``."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

STACKS = Path(__file__).resolve().parent.parent / "params" / "stacks.yml"


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


def load_stacks(path=STACKS):
    """All stacks of a YAML file as ``{name: Stack}``; StackError names an unknown field."""
    rows = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    stacks = {}
    for name, row in rows.items():
        try:
            stacks[name] = Stack(name=name, **row)
        except TypeError as error:
            raise StackError(f"{path}: stack {name!r}: {str(error).split('__init__() ')[-1]}.") from None
    return stacks


def load_stack(name, path=STACKS):
    """One stack by name; StackError lists the names that exist."""
    stacks = load_stacks(path)
    if name not in stacks:
        raise StackError(f"unknown stack {name!r}; {Path(path).name} has {', '.join(stacks)}.")
    return stacks[name]


def describe(stack):
    """A stack as a plain dict, for tables and notes; it holds no key."""
    return asdict(stack)
