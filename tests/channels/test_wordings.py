"""Wordings: other words in the same blocks, so that every contrast of the paper exists under each of them."""

import itertools
import re

import pytest

from helpers.channels import prompts, wordings
from helpers.channels.channels import Channel
from helpers.channels.views import GENERATED, view_messages
from helpers.channels.wordings import BLOCKS, PAPER, PLAIN, WORDS
from tests.channels.test_prompts import STATE, TASK, text_of

VIEW = "Notes: answer-b is supported."
CHANNELS = [
    Channel(template, view, authority, order, readout, wording=wording)
    for wording in WORDS
    for template, view, authorities, orders, readouts in [
        ("direct", "empty", ["neutral"], ["state-first"], ["joint", "support"]),
        ("buffered", "quote", ["neutral", "evidence-primary"], ["state-first", "state-last"], ["joint", "support"]),
        (
            "matched",
            "quote",
            ["neutral", "evidence-primary"],
            ["state-first", "state-last"],
            ["joint", "binary", "support"],
        ),
    ]
    for authority, order, readout in itertools.product(authorities, orders, readouts)
]
NAMES = [f"{c.wording} {c.template} {c.readout} {c.authority} {c.source_order}" for c in CHANNELS]
every_channel = pytest.mark.parametrize("channel", CHANNELS, ids=NAMES)


def said(channel, state=STATE, view=VIEW, layout=1, assessed=1, task=TASK):
    return text_of(wordings.messages(channel, task, state, view, layout, assessed))


# -- the paper's words through the same blocks -------------------------------------------------------


@pytest.mark.parametrize("layout", range(4))
@pytest.mark.parametrize("channel", [c for c in CHANNELS if c.wording == "paper" and c.readout != "support"], ids=str)
def test_the_papers_words_give_the_papers_prompts_byte_for_byte(channel, layout):
    options = {"authority": channel.authority, "source_order": channel.source_order}
    expected = {
        "direct": lambda: prompts.direct_messages(TASK, STATE, layout),
        "buffered": lambda: prompts.buffered_messages(TASK, STATE, VIEW, layout, **options),
        "matched": lambda: prompts.matched_messages(
            TASK, STATE, VIEW, layout, assessed=2 if channel.readout == "binary" else None, **options
        ),
    }[channel.template]()
    assert wordings.messages(channel, TASK, STATE, VIEW, layout, 2) == expected


@pytest.mark.parametrize("source_only", [True, False])
def test_so_they_do_for_the_generator(source_only):
    expected = prompts.generator_messages(TASK, STATE, source_only=source_only)
    assert wordings.generator_messages(TASK, STATE, source_only=source_only, words=PAPER) == expected


# -- the parallel ------------------------------------------------------------------------------------


def test_both_wordings_have_the_same_blocks_with_the_same_fields():
    for template, blocks in PAPER.items():
        assert set(blocks) == set(PLAIN[template]), template
        for name in blocks:
            fields = [set(re.findall("<([a-z_]+)>", words[template][name])) for words in WORDS.values()]
            # a line may name a candidate by its alias, by its text or by both
            if not PLAIN[template][name]:  # the plain mapping lists the statements by itself
                assert name == "manifest" and "<text>" in PLAIN[template]["mapped"]
                continue
            ways = {"alias", "text"} if name in ("option", "mapped", "statement", "support", "binary") else set()
            assert fields[0] - ways == fields[1] - ways, (template, name)


def test_every_block_of_an_order_exists_in_both_wordings():
    for words in WORDS.values():
        for template, orders in BLOCKS.items():
            for order in orders.values() if isinstance(orders, dict) else [orders]:
                assert {n for n in order if n != "policy"} <= set(words[template])


def test_both_have_two_policies_and_one_clause_and_no_other_word_for_priority():
    for words in WORDS.values():
        assert words["matched"]["policy neutral"] != words["matched"]["policy evidence-primary"]
        assert "policy neutral" not in words["buffered"] and "policy evidence-primary" in words["buffered"]
        assert "evidence" in words["generator"]["clause"].lower() and "missing" in words["generator"]["clause"]


@every_channel
def test_each_part_stands_once_and_in_the_order_of_the_blocks(channel):
    text = said(channel)
    state, view = text.index(STATE), text.find("CANDIDATE_02 is supported.")
    assert text.count(STATE) == 1
    assert (view >= 0) == (channel.template != "direct")
    if view >= 0:
        assert (state < view) == (channel.source_order == "state-first")
    first, last = min(p for p in (state, view) if p >= 0), max(state, view)
    assert last < text.index(TASK["candidates"][1]["text"]) or channel.template == "buffered"
    assert first > 0


@every_channel
def test_the_authority_policy_changes_nothing_but_its_own_block(channel):
    if channel.template == "direct":
        return
    other = Channel(
        **channel.fields() | {"authority": {"neutral": "evidence-primary"}.get(channel.authority, "neutral")}
    )
    one, two = (said(c).split("\n\n") for c in (channel, other))
    assert one != two and len(set(one) ^ set(two)) <= 2


@every_channel
def test_a_layout_changes_nothing_but_the_mapping(channel):
    if channel.readout == "support":
        assert len({said(channel, layout=s) for s in range(4)}) == 1
        return
    texts = [said(channel, layout=s).split("\n\n") for s in range(4)]
    changed = {i for i in range(len(texts[0])) if len({t[i] for t in texts}) > 1}
    assert len(changed) == (2 if channel.readout == "binary" else 1)  # binary names the letter in its question, too
    blocks = {"direct": "options"}.get(channel.template, "mapping")
    head = WORDS[channel.wording][channel.template][blocks].split("\n")[0]
    assert texts[0][min(changed)].startswith(head)


@pytest.mark.parametrize("channel", [c for c in CHANNELS if c.readout == "support"], ids=str)
def test_the_support_readout_shows_one_candidate_and_asks_last(channel):
    texts = [said(channel, view="", assessed=i) for i in range(4)]
    for i, text in enumerate(texts):
        shown = [c["text"] for c in TASK["candidates"] if c["text"] in text]
        assert shown == [TASK["candidates"][i]["text"]]
        assert text.endswith(("No.", "</READOUT_CONTRACT>"))
    shared = len(re.match(r"(?s)(.*).*\0\1.*", "\0".join(texts[:2])).group(1))
    assert shared > texts[0].index(STATE) + len(STATE)


def test_wordings_ask_differently():
    for channel in CHANNELS:
        if channel.wording == "plain":
            assert said(channel) != said(Channel(**channel.fields() | {"wording": "paper"}))


# -- the generators ----------------------------------------------------------------------------------


def test_the_clause_is_all_that_the_two_contracts_differ_in():
    for words in WORDS.values():
        (bound,), (free,) = (
            wordings.generator_messages(TASK, STATE, source_only=s, words=words) for s in (True, False)
        )
        assert bound["content"] == f"{words['generator']['clause']}\n\n{free['content']}"


def test_the_ungrounded_contract_never_tells_the_generator_to_keep_to_the_evidence():
    own = " ".join(text for name, text in PLAIN["generator"].items() if name != "clause")
    assert not re.search(r"\b(only|outside|explicit)", own, re.IGNORECASE)


@pytest.mark.parametrize("kind", ["generated-128-plain", "ungrounded-512-plain", "source-only-512-plain"])
def test_plain_views_are_asked_for_in_plain_words(kind):
    rule = GENERATED[kind]
    assert rule["max_tokens"] == GENERATED[kind.removesuffix("-plain")]["max_tokens"]
    assert view_messages(TASK, STATE, rule) == wordings.generator_messages(TASK, STATE, source_only=rule["source_only"])
