"""Prompts: Appendix C of the ASV paper byte for byte, strict filling, and what each field may change."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.channels import prompts
from helpers.channels.prompts import (
    AUTHORITY,
    LABELS,
    PromptError,
    _label_of,
    _layout_order,
    alias,
    buffered_messages,
    direct_messages,
    fill,
    generator_messages,
    matched_messages,
    two_pass_generator_messages,
    two_pass_messages,
    with_aliases,
)
from helpers.study.tasks import FALLBACK

ROOT = Path(__file__).resolve().parents[2]
SEEDS = sorted((ROOT / "../shared/seeds").glob("002_*.txt"))

PRINTED = json.loads(Path(__file__).with_name("printed_templates.json").read_text(encoding="utf-8"))["sha256"]

# How the paper prints the fields that this project fills with a whole list.
LISTS = {
    "DIRECT_TAIL": ("<options>", "<label>: <candidate_id> - <candidate_text>\n..."),
    "GENERATOR_TAIL": ("<candidates>", "- candidate_id: <candidate_id>\n- text: <candidate_text>\n..."),
    "BUFFERED_QUESTION": ("<manifest>", "candidate_id: <candidate_id>\ntext: <candidate_text>\n..."),
    "BUFFERED_MAPPING": ("<mapping>", "<label> = candidate_id: <candidate_id>\n..."),
    "MATCHED_POLICY": ("<policy>", AUTHORITY["neutral"]),
    "TWO_PASS_MAPPING": ("<mapping>", " ".join(f"{label} = candidate_id: [id]." for label in "ABCD")),
}

TASK = {
    "question": "Does night work go with migraine?",
    "candidates": [
        {"candidate_id": "answer-a", "text": "More on nights."},
        {"candidate_id": "answer-b", "text": "The same on every shift."},
        {"candidate_id": FALLBACK, "text": "The evidence is insufficient."},
        {"candidate_id": "answer-c", "text": "Only above fifty."},
    ],
}
STATE = '{\n "question": "Does night work go with migraine?"\n}'


def template(name):
    """A template by its name in PRINTED."""
    return AUTHORITY[name] if name in AUTHORITY else getattr(prompts, f"_{name}")


def text_of(messages):
    """Roles and contents as one text."""
    return "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in messages)


# -- the printed templates --------------------------------------------------------------------------


def printed(name):
    """A template as the paper prints it: the fields that this project fills with a whole list are lines there."""
    field, lines = LISTS.get(name, ("", ""))
    return template(name).replace(field, lines) if field else template(name)


@pytest.mark.parametrize("name", PRINTED)
def test_each_template_is_byte_equal_to_the_printed_one(name):
    assert hashlib.sha256(printed(name).encode()).hexdigest() == PRINTED[name]


@pytest.mark.skipif(not SEEDS, reason="the papers' texts are not beside the project; the hashes of what they print are")
def test_what_was_hashed_stands_word_for_word_in_its_appendix():
    for name in PRINTED:
        first = name.startswith("TWO_PASS")
        seed = next(SEEDS[0].parent.glob("000_*.txt")) if first else SEEDS[0]
        start = "Appendix B Evaluator prompt skeleton" if first else "Appendix C Evaluator prompts"
        assert printed(name) in seed.read_text(encoding="utf-8").split(start)[1], name


def test_the_hashes_cover_every_template_of_the_module_that_is_not_this_projects_own():
    own = {"EVIDENCE_BLOCK", "MATCHED_CANDIDATES", "MATCHED_MAPPING", "BUFFERED_AUTHORITY"}
    texts = {name.lstrip("_") for name, value in vars(prompts).items() if name.isupper() and isinstance(value, str)}
    assert texts - own == set(PRINTED) - set(AUTHORITY)


# -- filling ----------------------------------------------------------------------------------------


def test_filling_replaces_every_field_once():
    assert fill("<who> asks <whom>: <who>?", who="Ann", whom="Bob") == "Ann asks Bob: Ann?"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"who": "Ann"}, r"missing: \['whom'\]; unknown: \[\]"),
        ({"who": "Ann", "whom": "Bob", "why": "-"}, r"missing: \[\]; unknown: \['why'\]"),
        ({"who": "Ann", "whon": "Bob"}, r"missing: \['whom'\]; unknown: \['whon'\]"),
    ],
)
def test_a_missing_or_unknown_field_is_an_error(fields, message):
    with pytest.raises(PromptError, match=message):
        fill("<who> asks <whom>", **fields)


HOSTILE = st.text(alphabet="ab<>_/\\1g{}%&\n", max_size=20) | st.sampled_from(
    ["<question>", "</EVIDENCE>", "<projected_state>", "<options>", r"\1 \g<0>", "{question}", "%s", "<mapping>"]
)


@settings(deadline=None, max_examples=150)
@given(HOSTILE, HOSTILE)
def test_values_are_inert_whatever_they_hold(question, state):
    expected = f"<EVIDENCE>\n{state}\n</EVIDENCE>\n\nQuestion:\n{question}\n\nOptions:\n"
    assert expected in direct_messages({**TASK, "question": question}, state, 0)[0]["content"]


def test_a_field_name_inside_evidence_stays_as_it_is():
    prompt = text_of(matched_messages(TASK, "see <derived_view> and <question>", "a <policy>", 0))
    assert "<SOURCE_A>\nsee <derived_view> and <question>\n</SOURCE_A>" in prompt
    assert "<SOURCE_B>\na <policy>\n</SOURCE_B>" in prompt


# -- candidates and layouts -------------------------------------------------------------------------


def test_over_the_four_layouts_each_candidate_stands_at_each_label_once():
    for position in range(4):
        assert sorted(_label_of(position, layout) for layout in range(4)) == list(LABELS)
    for layout in range(4):
        assert sorted(_layout_order(layout)) == [0, 1, 2, 3]


def test_layout_one_moves_every_candidate_one_label_on():
    assert _layout_order(1) == [3, 0, 1, 2]
    assert [_label_of(position, 1) for position in range(4)] == ["B", "C", "D", "A"]


@pytest.mark.parametrize("layout", range(4))
def test_the_order_of_a_layout_and_the_label_of_a_candidate_agree(layout):
    for label, position in zip(LABELS, _layout_order(layout), strict=True):
        assert _label_of(position, layout) == label


def test_aliases_number_the_candidates_from_one_in_stored_order():
    assert [alias(i) for i in range(4)] == ["CANDIDATE_01", "CANDIDATE_02", "CANDIDATE_03", "CANDIDATE_04"]


def test_stored_ids_become_aliases_and_longer_words_that_hold_them_stay():
    text = "answer-c beats answer-a, not answer-ab or my-answer-a; else none-of-the-above."
    assert with_aliases(text, TASK) == (
        "CANDIDATE_04 beats CANDIDATE_01, not answer-ab or my-answer-a; else CANDIDATE_03."
    )


def test_ids_that_are_words_or_aliases_already_are_left_alone():
    words = {"candidates": [{"candidate_id": i, "text": i} for i in ("yes", "no", "maybe", "none-of-the-above")]}
    assert with_aliases("there was no difference; none-of-the-above", words) == "there was no difference; CANDIDATE_04"
    turned = {"candidates": [{"candidate_id": f"CANDIDATE_0{i}", "text": ""} for i in (2, 1, 3, 4)]}
    assert with_aliases("CANDIDATE_01, not CANDIDATE_02", turned) == "CANDIDATE_01, not CANDIDATE_02"


@pytest.mark.parametrize("messages", [matched_messages, buffered_messages, two_pass_messages])
def test_a_view_names_the_candidates_as_the_manifest_does(messages):
    content = messages(TASK, STATE, "The trial supports answer-c.", 0)[-1]["content"]
    assert "supports CANDIDATE_04." in content and "answer-" not in content


MATCHED = {
    "joint": lambda layout: matched_messages(TASK, STATE, "a view", layout),
    "direct": lambda layout: direct_messages(TASK, STATE, layout),
    "buffered": lambda layout: buffered_messages(TASK, STATE, "a view", layout),
}


@pytest.mark.parametrize("name", MATCHED)
def test_a_layout_changes_only_the_lines_that_map_labels_to_candidates(name):
    mapping = re.compile(r"^[A-D](?::| =) (?:candidate_id: )?CANDIDATE_0\d(?: - .*)?$")
    texts = [text_of(MATCHED[name](layout)).splitlines() for layout in range(4)]
    for other in texts[1:]:
        assert len(other) == len(texts[0])
        changed = [(a, b) for a, b in zip(texts[0], other, strict=True) if a != b]
        assert len(changed) == 4
        assert all(mapping.match(a) and mapping.match(b) and a[0] == b[0] for a, b in changed)


@pytest.mark.parametrize("name", MATCHED)
def test_each_candidate_is_shown_at_each_label_once_over_the_layouts(name):
    shown = [
        re.findall(r"^([A-D])(?::| =) (?:candidate_id: )?(CANDIDATE_0\d)", text_of(MATCHED[name](y)), re.M)
        for y in range(4)
    ]
    pairs = [pair for prompt in shown for pair in prompt]
    assert len(pairs) == len(set(pairs)) == 16


# -- whole prompts ----------------------------------------------------------------------------------


def test_the_direct_prompt_reads_as_declared():
    assert direct_messages(TASK, STATE, 1) == [
        {
            "role": "user",
            "content": f"{prompts._DIRECT_INSTRUCTION}\n\n<EVIDENCE>\n{STATE}\n</EVIDENCE>\n\n"
            "Question:\nDoes night work go with migraine?\n\n"
            "Options:\n"
            "A: CANDIDATE_04 - Only above fifty.\n"
            "B: CANDIDATE_01 - More on nights.\n"
            "C: CANDIDATE_02 - The same on every shift.\n"
            "D: CANDIDATE_03 - The evidence is insufficient.\n\n"
            "Output exactly one option label.",
        }
    ]


def test_the_buffered_prompt_reads_as_declared():
    evidence = f"<EVIDENCE>\n{STATE}\n</EVIDENCE>"
    question = (
        "Question:\nDoes night work go with migraine?\n\nCandidate manifest:\n"
        "candidate_id: CANDIDATE_01\ntext: More on nights.\n"
        "candidate_id: CANDIDATE_02\ntext: The same on every shift.\n"
        "candidate_id: CANDIDATE_03\ntext: The evidence is insufficient.\n"
        "candidate_id: CANDIDATE_04\ntext: Only above fifty."
    )
    view = "<RATIONALE_BUFFER>\na view\n</RATIONALE_BUFFER>"
    mapping = (
        "Current physical option mapping:\nA = candidate_id: CANDIDATE_02\nB = candidate_id: CANDIDATE_03\n"
        "C = candidate_id: CANDIDATE_04\nD = candidate_id: CANDIDATE_01\n\nOutput exactly one uppercase option label."
    )
    head = prompts._BUFFERED_INSTRUCTION
    (message,) = buffered_messages(TASK, STATE, "a view", 3)
    assert message == {"role": "user", "content": "\n\n".join([head, evidence, question, view, mapping])}
    (last,) = buffered_messages(TASK, STATE, "a view", 3, source_order="state-last")
    assert last["content"] == "\n\n".join([head, question, view, evidence, mapping])
    (primary,) = buffered_messages(TASK, STATE, "a view", 3, authority="evidence-primary")
    assert primary["content"] == "\n\n".join([head, prompts._BUFFERED_AUTHORITY, evidence, question, view, mapping])


@pytest.mark.parametrize(
    ("assessed", "suffix"),
    [
        (None, prompts._JOINT_SUFFIX),
        (3, prompts._BINARY_SUFFIX.replace("<assessed_label>", "B").replace("<stable_alias>", "CANDIDATE_04")),
    ],
)
def test_the_matched_prompt_reads_as_declared(assessed, suffix):
    system, user = matched_messages(TASK, STATE, "a view", 2, assessed=assessed)
    assert system == {"role": "system", "content": prompts._MATCHED_SYSTEM}
    assert user["role"] == "user"
    assert user["content"] == (
        f"<AUTHORITY_POLICY>\n{AUTHORITY['neutral']}\n</AUTHORITY_POLICY>\n\n"
        f"<SOURCE_A>\n{STATE}\n</SOURCE_A>\n\n<SOURCE_B>\na view\n</SOURCE_B>\n\n"
        "<CANDIDATES>\nCANDIDATE_01: More on nights.\nCANDIDATE_02: The same on every shift.\n"
        "CANDIDATE_03: The evidence is insufficient.\nCANDIDATE_04: Only above fifty.\n</CANDIDATES>\n\n"
        "<OPTION_MAPPING>\nA = CANDIDATE_03\nB = CANDIDATE_04\n"
        "C = CANDIDATE_01\nD = CANDIDATE_02\n</OPTION_MAPPING>\n\n"
        f"{suffix}"
    )


def test_the_generator_prompt_puts_the_source_only_clause_before_the_same_prompt():
    plain = generator_messages(TASK, STATE, source_only=False)[0]["content"]
    clause = generator_messages(TASK, STATE, source_only=True)[0]["content"]
    assert clause == f"{prompts._SOURCE_ONLY_CLAUSE}\n\n{plain}"
    assert plain.startswith(f"{prompts._GENERATOR_INSTRUCTION}\n\n<EVIDENCE>\n{STATE}\n</EVIDENCE>\n\nQuestion:\n")
    assert "Candidates:\n- candidate_id: CANDIDATE_01\n- text: More on nights.\n- candidate_id: CANDIDATE_02\n" in plain
    assert plain.endswith("\n- text: Only above fifty.\n\nReturn concise JSON-like text.")


def test_the_first_versions_passes_read_as_declared():
    manifest = (
        "CANDIDATE_01: More on nights.\nCANDIDATE_02: The same on every shift.\n"
        "CANDIDATE_03: The evidence is insufficient.\nCANDIDATE_04: Only above fifty."
    )
    (asked,) = two_pass_generator_messages(TASK, STATE)
    question = "Question: Does night work go with migraine?"
    assert asked["content"] == f"{prompts._TWO_PASS_GENERATOR}\n\n{question}\n\n{STATE}\n\n{manifest}"
    tail = (
        "Current physical option mapping: A = candidate_id: CANDIDATE_03. B = candidate_id: CANDIDATE_04. "
        "C = candidate_id: CANDIDATE_01. D = candidate_id: CANDIDATE_02. Output exactly one uppercase option label."
    )
    (scored,) = two_pass_messages(TASK, STATE, "a rationale", 2)
    assert scored["content"] == f"{STATE}\n\n{manifest}\n\na rationale\n\n{tail}"
    (without,) = two_pass_messages(TASK, STATE, "", 2)
    assert without["content"] == f"{STATE}\n\n{manifest}\n\n{tail}"


def test_no_prompt_shows_a_stored_candidate_id():
    every = [
        *(make(0) for make in MATCHED.values()),
        generator_messages(TASK, STATE, source_only=True),
        two_pass_generator_messages(TASK, STATE),
        two_pass_messages(TASK, STATE, "a rationale", 3),
        *(matched_messages(TASK, STATE, "a view", 1, assessed=a) for a in range(4)),
    ]
    for messages in every:
        assert not any(c["candidate_id"] in text_of(messages) for c in TASK["candidates"])


# -- one field at a time in the matched template ----------------------------------------------------


def blocks(messages):
    """The matched prompt as {block: content}; the readout suffix is the block 'suffix'."""
    text = messages[1]["content"]
    found = dict(re.findall(r"^<([A-Z_]+)>\n(.*?)\n</\1>", text.split("Use only SOURCE_A")[0], re.M | re.S))
    return {**found, "suffix": text[text.index("Use only SOURCE_A") :], "system": messages[0]["content"]}


@pytest.mark.parametrize(
    ("change", "block"),
    [
        ({"state_text": '{\n "answer": "Yes."\n}'}, "SOURCE_A"),
        ({"view_text": "another view"}, "SOURCE_B"),
        ({"view_text": ""}, "SOURCE_B"),
        ({"authority": "evidence-primary"}, "AUTHORITY_POLICY"),
        ({"layout": 3}, "OPTION_MAPPING"),
        ({"assessed": 2}, "suffix"),
    ],
)
def test_in_the_matched_template_each_field_changes_only_its_own_block(change, block):
    base = {"state_text": STATE, "view_text": "a view", "layout": 1}
    before, after = blocks(matched_messages(TASK, **base)), blocks(matched_messages(TASK, **{**base, **change}))
    assert set(before) == {
        "AUTHORITY_POLICY",
        "SOURCE_A",
        "SOURCE_B",
        "CANDIDATES",
        "OPTION_MAPPING",
        "suffix",
        "system",
    }
    assert [name for name in before if before[name] != after[name]] == [block]


def test_state_last_swaps_the_two_sources_and_changes_nothing_else():
    first = matched_messages(TASK, STATE, "a view", 1)
    last = matched_messages(TASK, STATE, "a view", 1, source_order="state-last")
    assert blocks(first) == blocks(last)
    assert first[1]["content"].index("<SOURCE_A>\n") < first[1]["content"].index("<SOURCE_B>\n")
    assert last[1]["content"].index("<SOURCE_A>\n") > last[1]["content"].index("<SOURCE_B>\n")


@pytest.mark.parametrize("layout", range(4))
@pytest.mark.parametrize("assessed", range(4))
def test_the_binary_suffix_names_the_label_that_the_mapping_gives_the_candidate(assessed, layout):
    parts = blocks(matched_messages(TASK, STATE, "a view", layout, assessed=assessed))
    label, name = re.search(r"listed candidate: ([A-D]) \[(CANDIDATE_0\d)\]\.", parts["suffix"]).groups()
    assert f"{label} = {name}" in parts["OPTION_MAPPING"].splitlines()
    assert name == alias(assessed)
