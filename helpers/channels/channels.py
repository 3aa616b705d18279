"""Channels: everything about the asking that can change the number is a field here."""

from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args, get_origin

from helpers.channels.prompts import AUTHORITY
from helpers.channels.views import KINDS


@dataclass(frozen=True)
class Channel:
    """One evaluation channel; it travels with every number it produced.

    A ``Literal`` field takes what it lists. ``view_state`` is None when the view belongs to the scored state, else the
    state whose frozen view is shown (the crossed cells of the retrieval face). ``slice`` is the part of the projected
    state that is shown.
    """

    template: Literal["direct", "buffered", "matched", "two-pass"]
    view: Literal[*KINDS] = "empty"
    authority: Literal[*AUTHORITY] = "neutral"
    source_order: Literal["state-first", "state-last"] = "state-first"
    readout: Literal["joint", "binary"] = "joint"
    stack: str = "qwen-1.5b"
    view_state: int | None = None
    slice: Literal["full", "evidence"] = "full"

    def __post_init__(self):
        for name, values in _ALLOWED.items():
            if getattr(self, name) not in values:
                raise ValueError(f"channel {name} {getattr(self, name)!r}; use one of {', '.join(values)}.")
        if self.template == "direct" and self.view != "empty":
            raise ValueError("the direct template shows no view; use the buffered or the matched template.")
        plain = (self.authority, self.source_order) == ("neutral", "state-first")
        if self.template in ("direct", "two-pass") and not plain:
            raise ValueError(f"the {self.template} template has no authority policy and one order; leave both alone.")
        if self.readout == "binary" and self.template != "matched":
            raise ValueError("the binary readout belongs to the matched template.")

    def fields(self):
        """The channel as a dict: the columns that identify it in a plan and in a recording."""
        return asdict(self)


CHANNEL_FIELDS = tuple(field.name for field in fields(Channel))
_ALLOWED = {field.name: get_args(field.type) for field in fields(Channel) if get_origin(field.type) is Literal}


def direct(stack, **changes):
    """The direct channel of the global replay."""
    return Channel("direct", stack=stack, **changes)


def generated(stack):
    """The generated-view channel of the global replay."""
    return Channel("buffered", "generated-128", stack=stack)


def two_pass(view, stack, **changes):
    """A channel of the first version's protocol: a rationale, then one scored token."""
    return Channel("two-pass", view, stack=stack, **changes)


def matched(view, stack, **changes):
    """A cell of the matched cube, the bridge or the source-only intervention."""
    return Channel("matched", view, stack=stack, **changes)
