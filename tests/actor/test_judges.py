"""Three judges: the chapter's worked numbers, feasibility before value, and each forbidden transition."""

import numpy as np
import pandas as pd
import pytest

from helpers.actor import judges as v
from helpers.reporting.params import ROOT
from helpers.study.tasks import load_tasks
from helpers.study.traces import STEPS, load_trajectories, parse_trajectory

PRICE, MOST = 3.0, 0.2


def row(**patches):
    """A clean trajectory's JSON row; each step's patch can be replaced by its action."""
    clean = {
        "classify": {"question_type": "risk"},
        "plan": {"plan": {"query": "night work migraine"}},
        "validate_plan": {"plan": {"checked": True}},
        "retrieve": {"artifacts": [{"doc_id": "pmid:1", "text": "…"}]},
        "extract": {"artifacts": [{"doc_id": "pmid:1"}], "evidence": [{"doc_id": "pmid:1", "quote": "…"}]},
        "synthesize": {"answer": "It does.", "citations": ["pmid:1"]},
        "verify": {"verification": "supported"},
        "finalize": {"status": "answered"},
    } | patches
    steps = [{"action": a, "patch": clean.get(a, {}), "observation": "", "mode": "llm"} for a in STEPS]
    x0 = {"question": "Does it?", "artifacts": [], "evidence": [], "answer": ""}
    return {"trajectory_id": "t", "task_id": "k", "x0": x0, "steps": steps, "final_score": 1.0, "success": True}


def rules(**patches):
    return [(f.step, f.rule, f.seen) for f in v.violations(parse_trajectory(row(**patches)))]


def policies(**columns):
    return pd.DataFrame({"utility": [9.0, 7.0], "soft_cost": [2.0, 0.0], "hard": [0.0, 0.0], "loss": [0.1, 0.1]} | columns,
                        index=["A", "B"])  # fmt: skip


def test_the_worked_numbers_rank_the_cheaper_policy_first():
    assert v._governed_value(9, 2, PRICE) == 3 and v._governed_value(7, 0, PRICE) == 7
    assert list(v.verdict(policies(), price=PRICE, most_loss=MOST).index) == ["B", "A"]


def test_a_hard_violation_is_refused_before_any_utility_is_compared():
    found = v.verdict(policies(utility=[100.0, 7.0], soft_cost=[0.0, 0.0], hard=[0.01, 0.0]), price=PRICE, most_loss=MOST)
    assert list(found.index) == ["B", "A"] and not found.loc["A", "feasible"]
    assert found.loc["A", "why"] == "hard violations in 1% of its trajectories"


def test_calibration_loss_is_a_loss():
    found = v.verdict(policies(loss=[0.19, 0.21], utility=[1.0, 9.0]), price=PRICE, most_loss=MOST)
    assert found["feasible"].to_dict() == {"A": True, "B": False} and "above 0.2" in found.loc["B", "why"]
    assert "not measured" in v.verdict(policies(loss=[np.nan, 0.1]), price=PRICE, most_loss=MOST).loc["A", "why"]


def test_the_frontier_holds_what_no_other_policy_beats_twice():
    four = pd.DataFrame({"utility": [1.0, 2.0, 2.0, 0.5], "loss": [0.1, 0.2, 0.3, 0.1]}, index=list("abcd"))
    assert v.frontier(four).to_dict() == {"a": True, "b": True, "c": False, "d": False}
    feasible = four.assign(feasible=[False, True, True, True])
    assert v.frontier(feasible).to_dict()["a"] is False
    only = four.assign(feasible=[name == "c" for name in four.index])
    assert v.frontier(only).to_dict() == {"a": False, "b": False, "c": True, "d": False}


# -- forbidden transitions --------------------------------------------------------------------------


def test_a_clean_trajectory_breaks_no_rule():
    assert rules() == []


def test_the_shipped_trajectories_break_no_rule():
    for trajectory in load_trajectories(ROOT / "data/trajectories.jsonl", load_tasks(ROOT / "data/tasks.jsonl")):
        assert v.violations(trajectory) == [], trajectory.trajectory_id


@pytest.mark.parametrize(
    ("patches", "found"),
    [
        ({"audit": {"answer": "Never."}}, (7, "foreign field", "answer")),
        ({"extract": {"question": "Another?"}}, (5, "foreign field", "question")),
        ({"plan": {"plan": {"query": "night AND migraine"}}}, (2, "tool argument", "night AND migraine")),
        ({"plan": {"plan": {"query": ["night"]}}}, (2, "tool argument", "['night']")),
        ({"plan": {"plan": {"query": "w " * 41}}}, (2, "tool argument", ("w " * 41)[:80])),
        ({"synthesize": {"answer": "It does.", "citations": ["pmid:9"]}}, (6, "unknown citation", "pmid:9")),
    ],
)
def test_each_hard_rule_names_the_step_that_broke_it(patches, found):
    assert found in rules(**patches)


def test_a_change_after_the_case_was_closed_is_a_step_after_halt():
    found = rules(verify={"status": "answered"}, post_audit={"issues": ["late"]})
    assert (10, "step after halt", "issues") in found and (9, "foreign field", "status") in found


# -- failures ---------------------------------------------------------------------------------------


def kinds(own="pmid:1", scores=(1.0, 1.0), **patches):
    trajectory = parse_trajectory(row(**patches))
    order = iter(scores)
    return [(step, kind) for step, kind, _ in v.failures(trajectory, own, lambda state: next(order))]


def test_a_clean_run_has_no_failure():
    assert kinds() == []


@pytest.mark.parametrize(
    ("given", "failure"),
    [
        ({"own": "pmid:2"}, (4, "missing retrieval")),
        ({"own": "pmid:2"}, (4, "contaminated memory")),
        ({"own": None}, (4, "contaminated memory")),
        ({"scores": (1.0, 0.6)}, (8, "unsafe reflection")),
        ({"post_audit": {"issues": ["claim 1"]}}, (9, "bad belief update")),
        ({"verify": {"verification": "unsupported"}}, (9, "bad belief update")),
        ({"post_audit": {"issues": ["claim 1"]}}, (11, "premature halt")),
        ({"finalize": {"status": "abstained"}}, (11, "premature halt")),
        ({"audit": {"plan": {"query": "x"}}}, (7, "illegal action")),
    ],
)
def test_each_failure_stands_at_its_transition(given, failure):
    assert failure in kinds(**given) and failure not in kinds()
