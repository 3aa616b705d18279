"""What each section of the report asks: its plan, from trajectories and stacks.

One function a section; notebooks, `make plan` and `make record` call the same one.
"""

import pandas as pd

from helpers.channels.channels import Channel, direct, generated, matched, two_pass
from helpers.channels.plan import make_plan
from helpers.channels.views import ENDPOINTS
from helpers.study.traces import STEPS

ALL_STATES = tuple(range(len(STEPS) + 1))


def global_replay(ids, stack, waves=(0,)):
    """§5.1: every state, direct and generated-view channel."""
    return make_plan(ids, ALL_STATES, [direct(stack), generated(stack)], waves=waves)


def temperature_check(ids, warm):
    """§5.1: both channels at the retrieve step, by the evaluator at another sampling temperature."""
    return make_plan(ids, ENDPOINTS, [direct(warm), generated(warm)])


def retry(ids, stack, waves=(1, 2)):
    """§5.1, B.1: the same cells in new waves."""
    return global_replay(ids, stack, waves)


def retrieval_face(ids, stack, waves=(0,)):
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


def step_diagnostics(ids, stack):
    """First version, §4: every state, scored with the rationale pass disabled and with a 128-token rationale."""
    return make_plan(ids, ALL_STATES, [two_pass("empty", stack), two_pass("rationale-128", stack)])


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


BY_NAME = {
    plan.__name__: plan
    for plan in (
        global_replay, temperature_check, retry, retrieval_face, matched_cube, bridge, source_only, controls,
        step_diagnostics,
    )
}


def together(*plans):
    """Several plans as one, for a count over sections."""
    return pd.concat(plans, ignore_index=True)
