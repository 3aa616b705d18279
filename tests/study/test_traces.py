"""Trajectories: merge patches, full states, and what is refused."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.study.files import DataError
from helpers.study.traces import STEPS, _make_patch, acquired_artifact, apply_patch, load_trajectories, parse_trajectory

# Objects as merge patches can express them: no null as an object's value (RFC 7396, section 1).
SCALARS = st.booleans() | st.integers(2, 99) | st.text(max_size=6)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner | st.none(), max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


def row(**changes):
    """A complete trajectory row: each step writes one field, retrieve adds an artifact."""
    steps = [{"action": a, "patch": {a: n}, "observation": f"did {a}", "mode": "llm"} for n, a in enumerate(STEPS, 1)]
    steps[3]["patch"] = {"artifacts": [{"doc_id": "pmid:4", "text": "a finding"}]}
    base = {
        "trajectory_id": "traj-9",
        "task_id": "risk-77",
        "x0": {"question": "Why?", "artifacts": []},
        "steps": steps,
    }
    return {**base, "final_score": 0.75, "success": False, **changes}


def full_states(patched):
    """The same row with before and after states instead of x0 and patches."""
    states = [patched["x0"]]
    steps = []
    for step in patched["steps"]:
        states.append(apply_patch(states[-1], step["patch"]))
        kept = {k: v for k, v in step.items() if k != "patch"}
        steps.append({**kept, "before": states[-2], "after": states[-1]})
    return {**{k: v for k, v in patched.items() if k != "x0"}, "steps": steps}


# -- patches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [  # RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_patches_follow_the_examples_of_rfc_7396(before, patch, after):
    assert apply_patch(before, patch) == after


@settings(deadline=None, max_examples=200)
@given(OBJECTS, OBJECTS)
def test_the_patch_between_two_states_leads_from_one_to_the_other(before, after):
    assert apply_patch(before, _make_patch(before, after)) == after


@settings(deadline=None, max_examples=50)
@given(OBJECTS)
def test_a_state_that_did_not_change_needs_an_empty_patch(state):
    assert _make_patch(state, copy.deepcopy(state)) == {}


@settings(deadline=None, max_examples=100)
@given(OBJECTS, OBJECTS)
def test_a_patch_leaves_the_state_before_it_as_it_was(before, after):
    kept = copy.deepcopy(before)
    patch = _make_patch(before, after)
    apply_patch(before, patch)
    assert before == kept


def test_a_patched_state_does_not_share_its_lists_with_the_patch():
    patch = {"evidence": [{"quote": "first"}]}
    state = apply_patch({}, patch)
    patch["evidence"][0]["quote"] = "changed later"
    assert state == {"evidence": [{"quote": "first"}]}


def test_a_written_key_moves_to_the_end_of_its_object_at_every_depth():
    state = {"question": "Why?", "plan": {"query": "q", "checked": False, "limit": 3}, "answer": "old", "note": "n"}
    after = apply_patch(state, {"plan": {"query": "r"}, "answer": "new"})
    assert list(after) == ["question", "note", "plan", "answer"]
    assert list(after["plan"]) == ["checked", "limit", "query"]


# -- trajectories -----------------------------------------------------------------------------------


def test_a_trajectory_has_twelve_states_each_from_the_one_before():
    trajectory = parse_trajectory(row())
    assert len(trajectory.states) == 12 and len(trajectory.steps) == 11
    assert trajectory.states[0] == {"question": "Why?", "artifacts": []}
    assert trajectory.states[2] == {"question": "Why?", "artifacts": [], "classify": 1, "plan": 2}
    assert list(trajectory.states[4]) == ["question", "classify", "plan", "validate_plan", "artifacts"]
    assert trajectory.states[11]["finalize"] == 11
    assert (trajectory.final_score, trajectory.success) == (0.75, False)


def test_full_states_and_patches_give_the_same_trajectory():
    patched, full = parse_trajectory(row()), parse_trajectory(full_states(row()))
    assert full.states == patched.states
    assert [list(s) for s in full.states] == [list(s) for s in patched.states]


def test_the_retrieve_step_acquired_an_artifact_when_the_list_grew():
    assert acquired_artifact(parse_trajectory(row()))
    empty = row()
    empty["steps"][3]["patch"] = {}
    assert not acquired_artifact(parse_trajectory(empty))
    late = row(x0={"question": "Why?", "artifacts": [{"doc_id": "pmid:1"}]})
    late["steps"][3]["patch"] = {"artifacts": [{"doc_id": "pmid:2"}]}
    assert not acquired_artifact(parse_trajectory(late)), "replacing an artifact adds none"


def broken(number, **changes):
    """A row whose step ``number`` is changed; None removes a field."""
    bad = row()
    step = {**bad["steps"][number - 1], **changes}
    bad["steps"][number - 1] = {k: v for k, v in step.items() if v is not None}
    return bad


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(trajectory_id=None), r"line 1 \(no trajectory_id\): trajectory_id is missing or empty; trajectories are"),
        (row(task_id=""), r"line 1 \(traj-9\): task_id is missing or empty"),
        (row(steps=row()["steps"][:10]), r"\(traj-9\): 10 steps, expected 11"),
        (row(steps=[*row()["steps"], row()["steps"][0]]), r"\(traj-9\): 12 steps, expected 11"),
        (
            broken(5, action="summarise"),
            r"step 5: action 'summarise', expected 'extract'. The steps are classify, plan",
        ),
        (broken(2, action="classify"), r"step 2: action 'classify', expected 'plan'"),
        (broken(7, mode="human"), r"step 7: mode 'human' is unknown; use one of llm, deterministic, fallback"),
        (broken(6, patch=None), r"step 6 \(synthesize\): no after-state and no patch"),
        (row(trajectory_id="<img src=x>"), r"trajectory_id is '<img src=x>'; .* text that holds letters, digits and"),
        (row(trajectory_id=7), r"\(7\): trajectory_id is 7; expected text; .* text that holds"),
        (row(success="false"), r"success is 'false'; expected true or false; it is true, false, or left out"),
        (row(x0=[]), r"x0 is \[\]; expected an object"),
        (broken(4, patch="gone"), r"step 4: patch is 'gone'; expected an object"),
        (row(steps=["classify"]), r"step 1 is 'classify'; expected an object"),
        ({k: v for k, v in row().items() if k != "x0"}, r"neither x0 nor a full before-state in the first step"),
    ],
)
def test_an_unusable_trajectory_is_refused_with_file_line_id_and_step(tmp_path, bad, message):
    path = tmp_path / "trajectories.jsonl"
    path.write_text(json.dumps(bad) + "\n")
    with pytest.raises(
        DataError, match=r"trajectories\.jsonl, " + ".*" + message if "line 1" not in message else message
    ):
        load_trajectories(path)


def test_a_before_state_that_is_not_the_state_after_the_last_step_is_refused():
    bad = full_states(row())
    bad["steps"][4]["before"] = {"question": "Another one?"}
    with pytest.raises(DataError, match=r"step 5: its before-state is not the state after step 4"):
        parse_trajectory(bad)


def test_null_fields_of_full_states_are_absent_fields():
    full, plain = full_states(row()), parse_trajectory(row()).states
    for step in full["steps"]:
        for side in ("before", "after"):
            step[side] = {**step[side], "note": None, "extra": {"why": None, "kept": 1}}
    assert parse_trajectory(full).states == tuple({**state, "extra": {"kept": 1}} for state in plain)


def test_a_full_trace_without_an_after_state_is_refused():
    bad = full_states(row())
    del bad["steps"][8]["after"]
    with pytest.raises(DataError, match=r"step 9 \(verify\): no after-state and no patch; export it again"):
        parse_trajectory(bad)


def test_a_trajectory_id_that_appears_twice_is_refused(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    path.write_text((json.dumps(row()) + "\n") * 2)
    with pytest.raises(DataError, match="trajectory_id 'traj-9' appears twice"):
        load_trajectories(path)


def test_a_trajectory_of_an_unknown_task_is_refused(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    path.write_text(json.dumps(row()) + "\n")
    known = [{"task_id": "risk-77", "question": "Why?"}]
    assert [t.trajectory_id for t in load_trajectories(path, known)] == ["traj-9"]
    with pytest.raises(DataError, match="trajectory 'traj-9' belongs to unknown task 'risk-77'"):
        load_trajectories(path, [{"task_id": "risk-78"}])


@pytest.mark.parametrize(
    ("changes", "state"),
    [({"x0": {"artifacts": []}}, 0), ({"x0": {"question": "Who?", "artifacts": []}}, 0), ({"drop": 7}, 7)],
)
def test_a_state_without_the_tasks_question_is_refused(tmp_path, changes, state):
    trace = row()
    if step := changes.get("drop"):
        trace["steps"][step - 1]["patch"] = {"question": None}
    path = tmp_path / "trajectories.jsonl"
    path.write_text(json.dumps({**trace, **{k: v for k, v in changes.items() if k != "drop"}}) + "\n")
    with pytest.raises(DataError, match=f"'traj-9': state {state} does not hold the question"):
        load_trajectories(path, [{"task_id": "risk-77", "question": "Why?"}])


def test_a_question_may_stand_anywhere_in_a_state(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    path.write_text(json.dumps(row(x0={"messages": [{"text": 'Asked: "Why – ü?"'}], "artifacts": []})) + "\n")
    assert load_trajectories(path, [{"task_id": "risk-77", "question": '"Why – ü?"'}])


@pytest.mark.parametrize("before, after", [({"hits": 1, "flag": 0}, {"hits": True, "flag": False}), ({"a": [1.0]}, {"a": [True]})])
def test_a_number_that_becomes_true_or_false_is_a_change(before, after):
    patched = apply_patch(before, _make_patch(before, after))
    assert json.dumps(patched) == json.dumps(after)


@pytest.mark.parametrize(
    ("outcome", "success"),
    [({"final_score": 1.0}, True), ({"final_score": 0.5}, False), ({"success": True}, True), ({}, None), ({"final_score": 1, "success": True}, True)],
)
def test_success_is_a_final_score_of_one_where_that_is_known(outcome, success):
    trace = {k: v for k, v in row().items() if k not in ("final_score", "success")}
    assert parse_trajectory({**trace, **outcome}).success is success


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({"final_score": 0.25, "success": True}, "final_score is 0.25 and success true"),
        ({"final_score": 1, "success": False}, "leave final_score out where success is judged otherwise"),
        ({"final_score": "high"}, "final_score is 'high'; expected a number; it is a number"),
        ({"final_score": True}, "final_score is True"),
    ],
)
def test_an_outcome_that_contradicts_itself_is_refused(outcome, words):
    trace = {k: v for k, v in row().items() if k not in ("final_score", "success")}
    with pytest.raises(DataError, match=words):
        parse_trajectory({**trace, **outcome})


@pytest.mark.parametrize("value", [3, "none", {"doc_id": "pmid:4"}])
@pytest.mark.parametrize("name", ["artifacts", "evidence"])
def test_artifacts_and_evidence_are_lists(name, value):
    trace = row()
    trace["steps"][4]["patch"] = {name: value}
    with pytest.raises(DataError, match=f"state 5: {name} is .*, expected a list"):
        parse_trajectory(trace)
