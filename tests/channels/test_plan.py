"""Plans: one row a cell, the messages of a cell, keys that change with every field, and the order of asking."""

import copy
import hashlib
import json
import os
from dataclasses import replace

import pandas as pd
import pytest

from helpers.channels.channels import Channel, direct, generated, matched, two_pass
from helpers.channels.plan import (
    CELL,
    JOINT,
    Study,
    add_keys,
    cell_messages,
    channel_of,
    in_order,
    load_study,
    make_plan,
    request_body,
    request_key,
    request_parts,
)
from helpers.channels.stacks import Stack
from helpers.study.files import DataError, write_jsonl
from helpers.study.projection import state_slice
from helpers.study.tasks import FALLBACK
from helpers.study.traces import STEPS, parse_trajectory

TASK = {
    "task_id": "risk-77",
    "family": "risk",
    "question": "Does night work go with more migraine in nurses?",
    "candidates": [
        {"candidate_id": "answer-a", "text": "More frequent on nights."},
        {"candidate_id": "answer-b", "text": "Equally frequent on every shift."},
        {"candidate_id": FALLBACK, "text": "The available evidence is insufficient to decide."},
        {"candidate_id": "answer-c", "text": "Only nurses above fifty had more."},
    ],
    "target": "answer-c",
}


def trajectory_row(name):
    """A trajectory whose states differ from those of any other name."""
    steps = [{"action": a, "patch": {a: f"{name} {n}"}, "observation": f"did {a}"} for n, a in enumerate(STEPS)]
    steps[3]["patch"] = {"artifacts": [{"doc_id": "pmid:4", "text": f"Finding of {name}."}]}
    x0 = {"question": TASK["question"], "artifacts": []}
    return {"trajectory_id": name, "task_id": "risk-77", "x0": x0, "steps": steps}


VIEWS = {f"{t}/{s}/generated-128": f"view of {t} at {s}" for t in ("t1", "t2") for s in (3, 4)}
STUDY = Study({"risk-77": TASK}, {n: parse_trajectory(trajectory_row(n)) for n in ("t1", "t2")}, VIEWS)
STACK = Stack(
    name="s1", kind="api", model="m-1", sampling={"temperature": 1.0, "top_logprobs": 20, "max_tokens": 1},
    order="hash", concurrency=8, timeout_s=60, tokens_per_s={}, price={}, logprobs_scaled_by_temperature=False,
    base_url="http://127.0.0.1:9/v1", key_variable="SOME_KEY",
)  # fmt: skip


def only(plan):
    """The single row of a plan as a named tuple."""
    (row,) = plan.itertuples(index=False)
    return row


def cell(channel, *, name="t1", state=4, layout=2, assessed=None, wave=0):
    """One row of a plan."""
    plan = make_plan([name], [state], [channel], waves=[wave], layouts=[layout])
    return only(plan if assessed is None else plan[plan["assessed"] == assessed])


def text_of(row):
    """All that a cell's messages say."""
    return "\n".join(m["content"] for m in cell_messages(row, STUDY))


# -- rows -------------------------------------------------------------------------------------------


def test_a_plan_has_one_row_for_each_cell_and_four_for_each_binary_one():
    channels = [direct("s1"), matched("quote", "s1", readout="binary"), generated("s1")]
    plan = make_plan(["t1", "t2"], [3, 4, 5], channels, waves=(1, 2), layouts=(0, 1, 2))
    assert len(plan) == 2 * 3 * 2 * 3 * (1 + 4 + 1)
    assert list(plan.columns) == list(CELL)
    assert not plan.duplicated().any()
    binary = plan[plan["readout"] == "binary"]
    assert sorted(binary["assessed"].unique()) == [0, 1, 2, 3]
    assert set(plan.loc[plan["readout"] == "joint", "assessed"]) == {JOINT}


def test_the_support_readout_has_one_cell_a_candidate_and_no_layout():
    channels = [direct("s1", readout="support"), matched("quote", "s1", readout="support", wording="plain"), direct("s1")]
    plan = make_plan(["t1", "t2"], [3, 4], channels, waves=(0, 1))
    support = plan[plan["readout"] == "support"]
    assert len(support) == 2 * 2 * 2 * 2 * 4 and set(support["layout"]) == {0} and not plan.duplicated().any()
    assert support.groupby(["trajectory_id", "state", "template", "wave"])["assessed"].apply(tuple).isin([(0, 1, 2, 3)]).all()
    assert set(make_plan(["t1"], [3], channels[:1], layouts=(2, 3))["layout"]) == {0}


@pytest.mark.parametrize("readout", ["joint", "support"])
def test_a_wording_and_a_readout_have_keys_of_their_own(readout):
    channels = [matched("quote", "s1", wording=w, readout=readout) for w in ("paper", "plain")]
    plan = add_keys(make_plan(["t1"], [4], channels), STUDY, {"s1": STACK})
    assert plan["key"].is_unique


def test_rows_stand_in_declared_order_trajectory_state_channel_wave_layout():
    plan = make_plan(["t2", "t1"], [4, 3], [generated("s1"), direct("s1")], waves=(2, 1), layouts=(1, 0))
    rows = plan[["trajectory_id", "state", "template", "wave", "layout"]].apply(tuple, axis=1).tolist()
    assert rows[:5] == [
        ("t2", 4, "buffered", 2, 1),
        ("t2", 4, "buffered", 2, 0),
        ("t2", 4, "buffered", 1, 1),
        ("t2", 4, "buffered", 1, 0),
        ("t2", 4, "direct", 2, 1),
    ]
    assert rows[8][:2] == ("t2", 3) and rows[16][0] == "t1"


@pytest.mark.parametrize(
    "channel",
    [
        direct("s1"),
        Channel("buffered", "generated-128", stack="s2", view_state=3),
        matched("quote", "s1", readout="binary"),
    ],
)
def test_the_channel_of_a_row_is_the_channel_it_was_made_from(channel):
    plan = make_plan(["t1"], [4], [channel, generated("s1")], layouts=[0])
    assert channel_of(next(plan.itertuples(index=False))) == channel
    assert channel_of(plan.iloc[0].to_dict()) == channel


# -- the study --------------------------------------------------------------------------------------


def test_the_target_is_a_position_among_the_candidates():
    assert STUDY.target("t2") == 3


def test_the_quote_view_comes_from_the_state_and_the_empty_view_is_empty():
    assert STUDY.view("t1", 4, "empty") == ""
    assert "Finding of t1." in STUDY.view("t1", 4, "quote")
    assert "Finding" not in STUDY.view("t1", 3, "quote")
    assert STUDY.view("t1", 4, "generated-128") == "view of t1 at 4"
    assert STUDY.view("t1", 5, "generated-128") is None


@pytest.fixture
def folder(tmp_path):
    write_jsonl(tmp_path / "tasks.jsonl", [TASK])
    write_jsonl(tmp_path / "trajectories.jsonl", [trajectory_row("t2"), trajectory_row("t1")])
    write_jsonl(
        tmp_path / "views.jsonl", [{"trajectory_id": "t1", "state": 4, "kind": "ungrounded-512", "text": "theirs"}]
    )
    return tmp_path


def paths(folder):
    return [folder / f"{name}.jsonl" for name in ("tasks", "trajectories", "views")]


def test_a_study_is_read_in_file_order_and_can_be_cut_to_its_first_trajectories(folder):
    assert list(load_study(*paths(folder)).trajectories) == ["t2", "t1"]
    study = load_study(*paths(folder), first=1)
    assert list(study.trajectories) == ["t2"] and list(study.task_ids) == ["t2", "t1"]
    assert load_study(*paths(folder)).view("t1", 4, "ungrounded-512") == "theirs"


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (
            {"trajectory_id": "t1", "state": 12, "kind": "ungrounded-512", "text": "-"},
            r"views\.jsonl, line 2: view of state 12, which t1 does not have",
        ),
        ({"trajectory_id": "t1", "state": -1, "kind": "ungrounded-512", "text": "-"}, r"line 2: view of state -1"),
        (
            {"trajectory_id": "t1", "state": 4, "kind": "ungrounded-512", "text": "-"},
            r"line 2: a second view t1/4/ungrounded-512",
        ),
    ],
)
def test_a_view_that_fits_no_state_is_refused(folder, view, message):
    with (folder / "views.jsonl").open("a") as out:
        out.write(json.dumps(view) + "\n")
    with pytest.raises(DataError, match=message):
        load_study(*paths(folder))


def test_a_study_without_a_trajectory_is_refused(folder):
    write_jsonl(folder / "trajectories.jsonl", [])
    write_jsonl(folder / "views.jsonl", [])
    with pytest.raises(DataError, match=r"trajectories\.jsonl: no trajectory to work with"):
        load_study(*paths(folder))


# -- messages ---------------------------------------------------------------------------------------


def test_each_template_shows_the_cells_state_and_its_view():
    assert "did retrieve" in text_of(cell(direct("s1"))) and "view of" not in text_of(cell(direct("s1")))
    assert "<RATIONALE_BUFFER>\nview of t1 at 4\n" in text_of(cell(generated("s1")))
    assert "<SOURCE_B>\nview of t2 at 3\n" in text_of(cell(matched("generated-128", "s1"), name="t2", state=3))
    assert "<SOURCE_B>\n\n</SOURCE_B>" in text_of(cell(matched("empty", "s1")))


def test_the_first_versions_cells_show_the_slice_of_the_state_and_their_text():
    whole, part = (text_of(cell(two_pass("candidates", "s1", slice=name), state=4)) for name in ("full", "evidence"))
    state = STUDY.states["t1"][4]
    assert whole.startswith(state) and part.startswith(state_slice(state, "evidence")) and not part.startswith(state)
    listing = STUDY.view("t1", 4, "candidates")
    assert listing.count("CANDIDATE_0") == 4 and part.count(listing) == 2, (
        "the manifest, and the buffer that repeats it"
    )
    assert state not in text_of(cell(direct("s1", slice="evidence"), state=4))


def test_a_crossed_cell_shows_one_state_and_the_view_of_another():
    crossed = Channel("buffered", "generated-128", stack="s1", view_state=3)
    text = text_of(cell(crossed, state=4))
    assert "view of t1 at 3" in text and "did retrieve" in text


def test_a_cell_whose_view_is_not_frozen_has_no_messages_and_no_key():
    row = cell(generated("s1"), state=7)
    assert cell_messages(row, STUDY) is None
    plan = make_plan(["t1"], [4, 7], [generated("s1")], layouts=[0])
    keys = add_keys(plan, STUDY, {"s1": STACK})["key"]
    assert isinstance(keys[0], str) and pd.isna(keys[1])


def test_authority_source_order_and_assessed_candidate_reach_the_prompt():
    channel = matched("quote", "s1", authority="evidence-primary", source_order="state-last", readout="binary")
    text = text_of(cell(channel, assessed=1, layout=3))
    assert "SOURCE_A is authoritative" in text
    assert text.index("<SOURCE_B>\n") < text.index("<SOURCE_A>\n")
    assert "Assess exactly one listed candidate: A [CANDIDATE_02]." in text


# -- keys -------------------------------------------------------------------------------------------

BODY = request_body(cell_messages(cell(generated("s1")), STUDY), STACK)


def test_the_request_asks_for_one_token_with_log_probabilities():
    assert {k: v for k, v in BODY.items() if k != "messages"} == {
        "model": "m-1", "logprobs": True, "temperature": 1.0, "top_logprobs": 20, "max_tokens": 1
    }  # fmt: skip


def test_the_key_is_the_sha256_of_the_canonical_request_identity_and_wave():
    text = json.dumps(
        {"wave": 3, "stack": {"model": "m-1", "base_url": "http://127.0.0.1:9/v1"}, "request": BODY},
        sort_keys=True, separators=(",", ":"), ensure_ascii=False,
    )  # fmt: skip
    assert request_key(BODY, STACK, 3) == hashlib.sha256(text.encode()).hexdigest()
    assert request_key(dict(reversed(BODY.items())), STACK, 3) == request_key(BODY, STACK, 3)


def changed_bodies():
    """The request with each of its fields changed, one at a time, and with one more."""
    for name, value in BODY.items():
        if name != "messages":
            yield name, {**BODY, name: f"{value}?"}
    for field in ("content", "role"):
        messages = copy.deepcopy(BODY["messages"])
        messages[-1][field] += "."
        yield f"message {field}", {**BODY, "messages": messages}
    yield "one more field", {**BODY, "seed": 7}
    yield "one more message", {**BODY, "messages": [*BODY["messages"], BODY["messages"][0]]}


@pytest.mark.parametrize(("name", "body"), list(changed_bodies()), ids=lambda v: v if isinstance(v, str) else "")
def test_changing_any_field_of_the_request_changes_the_key(name, body):
    assert request_key(body, STACK, 0) != request_key(BODY, STACK, 0), name


@pytest.mark.parametrize(
    "change",
    [
        {"model": "m-2"}, {"base_url": "http://127.0.0.1:10/v1"}, {"sampling": {**STACK.sampling, "temperature": 0.5}},
        {"sampling": {**STACK.sampling, "top_logprobs": 5}}, {"extra_body": {"provider": {"order": ["a"]}}},
    ],
)  # fmt: skip
def test_changing_model_endpoint_routing_or_sampling_of_a_stack_changes_the_key(change):
    plan = make_plan(["t1"], [4], [direct("s1")], layouts=[0])
    before, after = (add_keys(plan, STUDY, {"s1": s})["key"][0] for s in (STACK, replace(STACK, **change)))
    assert before != after


@pytest.mark.parametrize(
    "change",
    [
        {"timeout_s": 5},
        {"concurrency": 64},
        {"price": {"input": 9.0}},
        {"order": "prefix"},
        {"tokens_per_s": {"prompt": 1}},
        {"key_variable": "OTHER_KEY"},
        {"name": "s1-again"},
    ],
)
def test_changing_what_does_not_reach_the_evaluator_keeps_the_key(change):
    plan = make_plan(["t1"], [4], [direct("s1")], layouts=[0])
    before, after = (add_keys(plan, STUDY, {"s1": s})["key"][0] for s in (STACK, replace(STACK, **change)))
    assert before == after


def test_an_embedded_stack_is_known_by_the_hash_of_its_model_file():
    local = replace(STACK, kind="embedded", sha256="aa", base_url=None)
    assert request_key(BODY, local, 0) != request_key(BODY, replace(local, sha256="bb"), 0)
    assert request_key(BODY, local, 0) != request_key(BODY, STACK, 0)


def test_every_wave_layout_state_and_candidate_of_a_plan_has_its_own_key():
    channels = [matched("quote", "s1", readout="binary"), generated("s1"), direct("s1")]
    plan = add_keys(make_plan(["t1", "t2"], [3, 4], channels, waves=(0, 1)), STUDY, {"s1": STACK})
    assert plan["key"].is_unique and plan["key"].str.fullmatch("[0-9a-f]{64}").all()


@pytest.mark.parametrize(
    ("row", "differs"),
    [
        (cell(generated("s1"), state=3), {"state_hash", "view_hash"}),
        (cell(Channel("buffered", "generated-128", stack="s1", view_state=3)), {"view_hash"}),
        (cell(generated("s1"), layout=0), set()),
    ],
)
def test_the_parts_of_a_request_tell_which_of_them_differs(row, differs):
    base, other = request_parts(cell(generated("s1")), STUDY, STACK), request_parts(row, STUDY, STACK)
    assert {name for name in base if base[name] != other[name]} == differs


def test_the_parts_of_a_request_tell_a_changed_task_from_changed_settings():
    row = cell(direct("s1"))
    reworded = Study({"risk-77": {**TASK, "question": "Why?"}}, STUDY.trajectories, VIEWS)
    base = request_parts(row, STUDY, STACK)
    for other, name in [
        (request_parts(row, reworded, STACK), "task_hash"),
        (request_parts(row, STUDY, replace(STACK, sampling={"temperature": 0.5})), "settings"),
        (request_parts(row, STUDY, replace(STACK, base_url="http://127.0.0.1:10/v1")), "identity"),
    ]:
        assert [n for n in base if base[n] != other[n]] == [name]


# -- order ------------------------------------------------------------------------------------------

MIXED = make_plan(
    ["t2", "t1"], [3, 4], [direct("s1"), matched("quote", "s1", readout="binary"), generated("s1")], waves=(1, 2)
)


def prompts_in(order, plan=MIXED):
    """Prompts of a plan as JSON text, in the order in which they are asked."""
    rows = list(plan.itertuples(index=False))
    return [json.dumps(cell_messages(rows[i], STUDY), ensure_ascii=False) for i in in_order(plan, STUDY, order)]


def trie_size(texts):
    """Nodes of the tree of all texts' prefixes, grown letter by letter: what must be read at least once."""
    root, size = {}, 0
    for text in texts:
        node = root
        for letter in text:
            if letter not in node:
                node[letter] = {}
                size += 1
            node = node[letter]
    return size


def read_with_one_prefix_kept(texts):
    """Letters that a server reads which remembers only the last prompt."""
    pairs = zip(["", *texts], texts, strict=False)
    return sum(len(text) - len(os.path.commonprefix([last, text])) for last, text in pairs)


@pytest.mark.parametrize("order", ["prefix", "prefix-groups", "hash"])
def test_every_order_asks_every_cell_once_and_is_the_same_each_time(order):
    positions = in_order(MIXED, STUDY, order)
    assert sorted(positions) == list(range(len(MIXED)))
    assert positions == in_order(MIXED, STUDY, order)


def test_in_prefix_order_a_server_that_keeps_one_prompt_reads_each_branch_once():
    plan = MIXED[MIXED["trajectory_id"] == "t1"].sample(frac=1, random_state=5).reset_index(drop=True)
    texts = prompts_in("prefix", plan)
    assert read_with_one_prefix_kept(texts) == trie_size(texts)
    assert read_with_one_prefix_kept(prompts_in("hash", plan)) > 2 * trie_size(texts)


def test_in_prefix_order_trajectories_follow_one_another_as_in_the_plan():
    names = MIXED["trajectory_id"].iloc[in_order(MIXED, STUDY, "prefix")].tolist()
    assert names == ["t2"] * (len(names) // 2) + ["t1"] * (len(names) // 2)


def test_prefix_groups_keep_a_state_channel_and_wave_together_and_mix_the_waves():
    rows = MIXED.iloc[in_order(MIXED, STUDY, "prefix-groups")]
    groups = rows[["trajectory_id", "state", "template", "wave"]].apply(tuple, axis=1).tolist()
    runs = [g for i, g in enumerate(groups) if i == 0 or g != groups[i - 1]]
    assert len(runs) == len(set(runs)) == 2 * 2 * 3 * 2
    waves = [g[3] for g in runs]
    assert waves != sorted(waves) and waves != sorted(waves, reverse=True)


def test_the_hash_order_does_not_line_up_with_time_and_not_with_the_plan():
    rows = MIXED.iloc[in_order(MIXED, STUDY, "hash")]
    for column in ("wave", "trajectory_id", "state"):
        first, second = rows[column].iloc[: len(rows) // 2], rows[column].iloc[len(rows) // 2 :]
        assert first.nunique() == second.nunique() == 2, column
    shuffled = MIXED.sample(frac=1, random_state=3).reset_index(drop=True)
    again = shuffled.iloc[in_order(shuffled, STUDY, "hash")].reset_index(drop=True)
    pd.testing.assert_frame_equal(again, rows.reset_index(drop=True))


def test_an_unknown_order_is_refused_with_the_ones_there_are():
    with pytest.raises(ValueError, match="order 'random'; use prefix, prefix-groups or hash"):
        in_order(MIXED, STUDY, "random")
