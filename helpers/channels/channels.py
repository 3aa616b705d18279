"""Channels: everything about the asking that can change the number is a field here."""

from dataclasses import asdict, dataclass

TEMPLATES = ("direct", "buffered", "matched", "two-pass")
VIEWS = (
    "empty", "quote", "candidates", "generated-128", "ungrounded-512", "source-only-512", "donor",
    "rationale-128", "rationale-512", "evidence-rationale-128",
    "generated-128-plain", "ungrounded-512-plain", "source-only-512-plain",
)  # fmt: skip
AUTHORITIES = ("neutral", "evidence-primary")
ORDERS = ("state-first", "state-last")
READOUTS = ("joint", "binary", "support")
YES_NO = ("binary", "support")  # readouts that assess one candidate at a time
SLICES = ("full", "evidence")
WORDINGS = ("paper", "plain")


@dataclass(frozen=True)
class Channel:
    """One evaluation channel; it travels with every number it produced.

    ``view`` names the kind of derived text; ``view_state`` is None when the view belongs to the scored
    state, else the state whose frozen view is shown (the crossed cells of the retrieval face). ``slice`` is the
    part of the projected state that is shown. ``wording`` is whose words ask: the paper's or plain ones.
    """

    template: str
    view: str = "empty"
    authority: str = "neutral"
    source_order: str = "state-first"
    readout: str = "joint"
    stack: str = "qwen-1.5b"
    view_state: int | None = None
    slice: str = "full"
    wording: str = "paper"

    def __post_init__(self):
        allowed = {
            "template": TEMPLATES, "authority": AUTHORITIES, "source_order": ORDERS, "readout": READOUTS,
            "slice": SLICES, "wording": WORDINGS,
        }  # fmt: skip
        for field, values in allowed.items():
            if getattr(self, field) not in values:
                raise ValueError(f"channel {field} {getattr(self, field)!r}; use one of {', '.join(values)}.")
        if self.view not in VIEWS:
            raise ValueError(f"channel view {self.view!r}; use one of {', '.join(VIEWS)}.")
        if self.template == "direct" and self.view != "empty":
            raise ValueError("the direct template shows no view; use the buffered or the matched template.")
        if self.template in ("direct", "two-pass") and (self.authority, self.source_order) != ("neutral", "state-first"):
            raise ValueError(f"the {self.template} template has no authority policy and one order; leave both as they are.")
        if self.readout == "binary" and self.template != "matched":
            raise ValueError("the binary readout belongs to the matched template.")
        if self.template == "two-pass" and (self.readout, self.wording) != ("joint", "paper"):
            raise ValueError("the two-pass template has the joint readout and its own wording; leave both as they are.")

    def fields(self):
        """The channel as a dict: the columns that identify it in a plan and in a recording."""
        return asdict(self)


CHANNEL_FIELDS = tuple(Channel("direct").fields())


def direct(stack, **fields):
    """The direct channel of the global replay."""
    return Channel("direct", stack=stack, **fields)


def generated(stack):
    """The generated-view channel of the global replay."""
    return Channel("buffered", "generated-128", stack=stack)


def two_pass(view, stack, **fields):
    """A channel of the first version's protocol: a rationale, then one scored token."""
    return Channel("two-pass", view, stack=stack, **fields)


def matched(view, stack, **fields):
    """A cell of the matched cube, the bridge or the source-only intervention."""
    return Channel("matched", view, stack=stack, **fields)
