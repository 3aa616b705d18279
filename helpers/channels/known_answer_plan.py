"""What is asked of known-answer states: the plan from which an evaluator's instruments get their verdicts."""

from helpers.channels.channels import Channel, direct, matched
from helpers.channels.plan import make_plan
from helpers.study.known_answers import DOSES

ALL_DOSES = tuple(range(len(DOSES)))
MATCHED_VIEWS = {"paper": ("quote", "generated-128"), "plain": ("quote", "generated-128-plain")}
BUFFERED_VIEWS = {wording: views[1] for wording, views in MATCHED_VIEWS.items()}


def direct_channels(stack):
    """The direct template under both wordings and both readouts, those that decide a verdict first."""
    pairs = (("plain", "support"), ("plain", "joint"), ("paper", "joint"), ("paper", "support"))
    return [direct(stack, wording=wording, readout=readout) for wording, readout in pairs]


def matched_channels(stack, wording, readouts=("support", "joint")):
    """The matched template with the quote and the generated view of a wording."""
    return [matched(view, stack, wording=wording, readout=r) for r in readouts for view in MATCHED_VIEWS[wording]]


def buffered_channels(stack):
    """The buffered template with the generated view under both wordings, joint readout."""
    return [Channel("buffered", BUFFERED_VIEWS[w], wording=w, stack=stack) for w in ("plain", "paper")]


def parts(stack, *, small=False):
    """``{name: channels}`` in the order in which they are recorded, so that a partial recording has verdicts.

    ``small``: the direct template alone, for an evaluator that no section reads views with.
    """
    straight = direct_channels(stack)
    if small:
        return {"direct": straight}
    return {
        "direct": straight[:3],
        "matched_plain": matched_channels(stack, "plain"),
        "matched_paper": matched_channels(stack, "paper", ("joint",)),
        "buffered": buffered_channels(stack),
        "paper_support": [straight[3], *matched_channels(stack, "paper", ("support",))],
    }


def instrument(ids, stack, *, waves=(0,), states=ALL_DOSES, only=None, small=False):
    """Cells of known-answer trajectories under every instrument of a stack.

    Parameters
    ----------
    ids : list of str, trajectories of :func:`helpers.study.known_answers.known_answers`
    states : sequence of int, positions of the doses; all six by default
    only : name of one of :func:`parts`, optional
    """
    chosen = parts(stack, small=small)
    channels = chosen[only] if only else [channel for channels in chosen.values() for channel in channels]
    return make_plan(ids, states, channels, waves=waves)
