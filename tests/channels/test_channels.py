"""Channels: every field that changes the number is there, and impossible channels are refused."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from helpers.channels.channels import CHANNEL_FIELDS, Channel, direct, generated, matched, two_pass


def test_the_shorthands_name_the_channels_of_the_paper():
    assert direct("s1") == Channel("direct", "empty", "neutral", "state-first", "joint", "s1", None, "full")
    assert two_pass("rationale-128", "s1", slice="evidence") == Channel(
        "two-pass", "rationale-128", "neutral", "state-first", "joint", "s1", None, "evidence"
    )
    assert generated("s1") == Channel("buffered", "generated-128", "neutral", "state-first", "joint", "s1", None)
    assert matched("quote", "s2", authority="evidence-primary", readout="binary") == Channel(
        "matched", "quote", "evidence-primary", "state-first", "binary", "s2", None
    )


def test_the_columns_of_a_channel_are_all_of_its_fields_in_order():
    names = ("template", "view", "authority", "source_order", "readout", "stack", "view_state", "slice", "wording")
    assert names == CHANNEL_FIELDS
    assert tuple(f.name for f in fields(Channel)) == CHANNEL_FIELDS
    assert Channel(**matched("quote", "s2").fields()) == matched("quote", "s2")


@pytest.mark.parametrize(
    "change",
    [
        {"template": "buffered"}, {"view": "quote"}, {"authority": "evidence-primary"}, {"source_order": "state-last"},
        {"readout": "binary"}, {"stack": "s2"}, {"view_state": 4}, {"slice": "evidence"},
        {"wording": "plain"}, {"readout": "support"},
    ],
)  # fmt: skip
def test_changing_any_field_makes_another_channel(change):
    base = Channel("matched", "generated-128", stack="s1", view_state=3)
    assert replace(base, **change) != base
    assert len({base, replace(base, **change)}) == 2


def test_a_channel_cannot_be_changed_after_it_was_made():
    with pytest.raises(FrozenInstanceError):
        direct("s1").view = "quote"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"template": "direct", "authority": "evidence-primary"}, "the direct template has no authority policy and one order"),
        ({"template": "two-pass", "source_order": "state-last"}, "the two-pass template has no authority policy"),
        ({"template": "indirect"}, "channel template 'indirect'; use one of direct, buffered, matched, two-pass"),
        (
            {"template": "matched", "view": "quotes"},
            "channel view 'quotes'; use one of empty, quote, candidates, generated-128",
        ),
        ({"template": "matched", "authority": "primary"}, "channel authority 'primary'; use one of neutral"),
        ({"template": "matched", "source_order": "last"}, "channel source_order 'last'; use one of state-first"),
        ({"template": "matched", "readout": "yes"}, "channel readout 'yes'; use one of joint, binary"),
        ({"template": "direct", "slice": "half"}, "channel slice 'half'; use one of full, evidence"),
        ({"template": "direct", "wording": "own"}, "channel wording 'own'; use one of paper, plain"),
        ({"template": "two-pass", "wording": "plain"}, "the two-pass template has the joint readout and its own wording"),
        ({"template": "two-pass", "readout": "support"}, "the two-pass template has the joint readout and its own wording"),
        ({"template": "direct", "view": "quote"}, "the direct template shows no view"),
        ({"template": "buffered", "readout": "binary"}, "the binary readout belongs to the matched template"),
    ],
)
def test_an_impossible_channel_is_refused_with_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        Channel(**arguments)
