"""Which sections the report has, and what each of them asks.

One function makes a section's plan; one row of ``SECTIONS`` says all the rest. The notebooks, the commands, the overview,
the index page and the data card read that row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from helpers.channels.channels import Channel, direct, generated, matched, two_pass
from helpers.channels.plan import make_plan
from helpers.channels.views import ENDPOINTS
from helpers.study.traces import STEPS

_ALL_STATES = tuple(range(len(STEPS) + 1))


def global_replay(ids, stack, waves=(0,)):
    """§5.1: every state, direct and generated-view channel."""
    return make_plan(ids, _ALL_STATES, [direct(stack), generated(stack)], waves=waves)


def _temperature_check(ids, warm):
    """§5.1: both channels at the retrieve step, by the evaluator at another sampling temperature."""
    return make_plan(ids, ENDPOINTS, [direct(warm), generated(warm)])


def retry(ids, stack, waves=(1, 2)):
    """§5.1, B.1: the same cells in new waves."""
    return global_replay(ids, stack, waves)


def _retrieval_face(ids, stack, waves=(0,)):
    """§5.2, Equation 4: both endpoints of the retrieve step under both frozen views, and the direct path."""
    crossed = [Channel("buffered", "generated-128", stack=stack, view_state=s) for s in ENDPOINTS]
    return make_plan(ids, ENDPOINTS, [direct(stack), *crossed], waves=waves)


def matched_cube(ids, stack, authorities=("neutral", "evidence-primary"), waves=(0,)):
    """§5.2, B.2: empty, quote and generated view under each authority, one template."""
    views = ("empty", "quote", "generated-128")
    channels = [matched(view, stack, authority=authority) for authority in authorities for view in views]
    return make_plan(ids, ENDPOINTS, channels, waves=waves)


def bridge(ids, stack, second_stack, waves=(0,)):
    """§5.3: quote and generated view at vertices A, B, C, and the fourth vertex D (joint on stack 2)."""
    vertices = [("joint", stack), ("binary", stack), ("binary", second_stack), ("joint", second_stack)]
    channels = [matched(view, s, readout=r) for r, s in vertices for view in ("quote", "generated-128")]
    return make_plan(ids, ENDPOINTS, channels, waves=waves)


def source_only(ids, stack, waves=(0,)):
    """§5.4: ungrounded and source-only views with a 512-token cap, and the quote."""
    channels = [matched(view, stack) for view in ("ungrounded-512", "source-only-512", "quote")]
    return make_plan(ids, ENDPOINTS, channels, waves=waves)


def controls(ids, stack, waves=(0,)):
    """B.4: own view, length-matched donor, state-last order, evidence-primary authority; buffered template."""
    own = generated(stack)
    channels = [
        own,
        Channel("buffered", "donor", stack=stack),
        Channel("buffered", "generated-128", source_order="state-last", stack=stack),
        Channel("buffered", "generated-128", authority="evidence-primary", stack=stack),
    ]
    return make_plan(ids, ENDPOINTS, channels, waves=waves)


def _step_diagnostics(ids, stack):
    """First version, §4: every state, scored with the rationale pass disabled and with a 128-token rationale."""
    return make_plan(ids, _ALL_STATES, [two_pass("empty", stack), two_pass("rationale-128", stack)])


def component_channels(stack):
    """First version, Table 2: the channels that differ from direct scoring in one component, by their published name."""
    return {
        "full_direct": two_pass("empty", stack),
        "full_gen128": two_pass("rationale-128", stack),
        "full_gen512": two_pass("rationale-512", stack),
        "full_extractive": two_pass("quote", stack),
        "full_candidate_only": two_pass("candidates", stack),
        "evidence_direct": two_pass("empty", stack, slice="evidence"),
        "evidence_gen128": two_pass("evidence-rationale-128", stack, slice="evidence"),
    }


def components(transitions, stack):
    """First version, Table 2: both ends of chosen transitions under every component channel, fixed layout."""
    states = {}
    for name, step in transitions:
        states.setdefault(name, set()).update((step - 1, step))
    channels = list(component_channels(stack).values())
    return together(*(make_plan([name], sorted(found), channels, layouts=(0,)) for name, found in states.items()))


def _components_of_all(ids, stack):
    """The component channels over every transition: what the audit may choose from."""
    return components([(name, step) for name in ids for step in range(1, len(STEPS) + 1)], stack)


def together(*plans):
    """Several plans as one, for a count over sections."""
    return pd.concat(plans, ignore_index=True)

# -- the registry -----------------------------------------------------------------------------------

_SHORT, _LONG = ("generated-128",), ("ungrounded-512", "source-only-512")


@dataclass(frozen=True)
class Section:
    """One section of the report; what another room must know about it stands in its row of ``SECTIONS``.

    ``name`` is its notebook, its table, and what its recordings are filed under; a row that is ``part_of`` another one
    plans more of that notebook's cells. ``prefix`` begins the ids of its rows. ``plan(ids, evaluators, waves)`` makes its
    cells; ``views`` are the kinds it reads at ``states``, ``asks`` the evaluators that it needs. ``interleaved``: its waves must not line up with time.
    ``recorded``: how many trajectories the embedded study records, where it is not all of them; 0 leaves it to the
    notebook, which chooses its cells by what is recorded first.
    """

    name: str
    title: str
    prefix: str
    plan: Callable | None = None
    views: tuple = ()
    states: tuple = ENDPOINTS
    waves: tuple = (0,)
    interleaved: bool = False
    recorded: int | None = None
    part_of: str | None = None
    asks: tuple = ("stack",)

    def possible(self, evaluators):
        """Whether all the evaluators that its plan asks are there."""
        return all(getattr(evaluators, who) for who in self.asks)

    @property
    def notebook(self):
        """The notebook that reads it."""
        return self.part_of or self.name


class Evaluators(NamedTuple):
    """Names of the stacks that a plan asks: the evaluator, a second one, the first at another sampling temperature."""

    stack: str
    second: str | None = None
    warm: str | None = None


# In the order in which they are recorded, so that a partial recording is useful.
SECTIONS = (
    Section("04_matched_cube", "Matched cube", "cube", lambda ids, e, w: matched_cube(ids, e.stack, waves=w), _SHORT),
    Section("06_source_only", "Source-only", "source", lambda ids, e, w: source_only(ids, e.stack, w), _LONG),
    Section("05_bridge", "Bridge", "bridge", lambda ids, e, w: bridge(ids, e.stack, e.second, w), _SHORT,
            asks=("stack", "second")),
    Section("05_bridge_wave_2", "Bridge, second wave", "bridge", lambda ids, e, w: bridge(ids, e.stack, e.second, w), _SHORT,
            waves=(1,), interleaved=True, recorded=6, part_of="05_bridge",
            asks=("stack", "second")),
    Section("03_retrieval_face", "Retrieval face", "face", lambda ids, e, w: _retrieval_face(ids, e.stack, w), _SHORT),
    Section("01_global_replay", "Global replay", "global", lambda ids, e, w: global_replay(ids, e.stack, w), _SHORT, _ALL_STATES),
    Section("01_temperature", "Temperature check", "global", lambda ids, e, w: _temperature_check(ids, e.warm), _SHORT,
            recorded=2, part_of="01_global_replay", asks=("warm",)),
    Section("02_retry", "Retry", "retry", lambda ids, e, w: retry(ids, e.stack, w), _SHORT, _ALL_STATES, waves=(1, 2),
            interleaved=True, recorded=30),
    Section("A1_controls", "Controls", "controls", lambda ids, e, w: controls(ids, e.stack, w), (*_SHORT, "donor"),
            recorded=30),
    Section("07_step_diagnostics", "Step diagnostics", "v1", lambda ids, e, w: _step_diagnostics(ids, e.stack),
            ("rationale-128",), _ALL_STATES),
    Section("07_components", "Components", "v1", lambda ids, e, w: _components_of_all(ids, e.stack),
            ("rationale-128", "rationale-512", "evidence-rationale-128"), _ALL_STATES, recorded=0,
            part_of="07_step_diagnostics"),
    Section("08_evaluating_reasoners", "Evaluating reasoners", "belief"),
    Section("09_debugging_reasoners", "Debugging reasoners", "ope"),
)  # fmt: skip


def section(name):
    """A row of the registry by its name; ValueError lists the names that exist."""
    found = {row.name: row for row in SECTIONS}
    if name not in found:
        raise ValueError(f"no section {name!r}; there are {', '.join(found)}.")
    return found[name]
