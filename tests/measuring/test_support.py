"""Support claims of views: counted per view, and the parser held against hand labels."""

import json

import pytest

from helpers.channels.plan import Study, load_study
from helpers.channels.views import view_id
from helpers.measuring import support
from helpers.reporting.params import ROOT
from helpers.study.files import DataError
from helpers.study.traces import parse_trajectory
from tests.rehearsal import simulate

CLAIM = json.dumps({"CANDIDATE_01": {"support": "The level rose."}, "CANDIDATE_03": {"support": "missing"}})
NOTHING = json.dumps({"CANDIDATE_01": {"support": "missing"}, "CANDIDATE_04": {"support": "Nothing was found."}})


@pytest.fixture()
def study():
    """Three simulated trajectories: one view that claims, one that does not, one that nobody can read."""
    tasks, _, rows, _ = simulate.synthetic_rows(3)
    trajectories = {r["trajectory_id"]: parse_trajectory(r) for r in rows}
    texts = dict(zip(trajectories, (CLAIM, NOTHING, "no brackets here"), strict=True))
    views = {view_id(name, 3, "ungrounded-512"): text for name, text in texts.items()}
    return Study({t["task_id"]: t for t in tasks}, trajectories, views)


def test_claims_are_counted_per_view_and_an_unreadable_view_is_missing_not_zero(study):
    found = support.before_claims(study, ["ungrounded-512", "source-only-512"], 3)
    assert found["supported"].tolist()[:2] == [1.0, 0.0]
    assert found["supported"].isna().tolist() == [False, False, True]
    assert set(found["kind"]) == {"ungrounded-512"}


def test_the_fallback_candidate_is_found_by_its_id(study):
    task = dict(next(iter(study.tasks.values())))
    task["candidates"] = [task["candidates"][3], *task["candidates"][:3]]
    assert support.fallback_position(task) == 0


def label(name, *supported):
    return {"trajectory_id": name, "state": 3, "kind": "ungrounded-512", "supported": list(supported)}


def test_precision_recall_and_agreement_are_counted_per_candidate(study):
    first, second, _ = study.trajectories
    labels = [label(first, "CANDIDATE_01", "CANDIDATE_02"), label(second)]
    table = support.validate(labels, study).set_index(["contract", "measure"])
    both = table.loc["both"]
    assert (both.loc["precision", "hits"], both.loc["precision", "of"]) == (1, 1)
    assert (both.loc["recall", "hits"], both.loc["recall", "of"]) == (1, 2)
    assert (both.loc["agreement", "hits"], both.loc["agreement", "of"]) == (5, 6)
    assert both.loc["recall", "low"] < 0.5 < both.loc["recall", "high"]
    assert both["views"].unique().tolist() == [2]


def test_without_labels_the_table_is_there_and_holds_no_share(study, tmp_path):
    table = support.validate(support.hand_labels(tmp_path / "absent.jsonl"), study)
    assert table["share"].isna().all() and len(table) == 3


@pytest.mark.parametrize("row", [{"trajectory_id": "t"}, {"trajectory_id": "t", "state": 3, "kind": "k", "supported": ["A"]}])
def test_a_broken_label_is_refused_with_its_line(row, tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="line 1"):
        support.hand_labels(path)


def test_a_candidate_named_by_its_own_text_counts_unless_only_aliases_do(study):
    name = list(study.trajectories)[1]
    text = study.task(name)["candidates"][1]["text"]
    study.views[view_id(name, 3, "ungrounded-512")] = json.dumps({"supporting_evidence": [text]})
    assert support.before_claims(study, ["ungrounded-512"], 3)["supported"].tolist()[1] == 1.0
    shares = {
        by: support.validate([label(name, "CANDIDATE_02")], study, by).set_index(["contract", "measure"])["hits"]["both", "recall"]
        for by in (True, False)
    }
    assert shares == {True: 1, False: 0}


def test_the_shipped_labels_are_of_shipped_views_of_both_contracts_and_each_view_is_labelled_once():
    labels = support.hand_labels(ROOT / "data/support_labels.jsonl")
    study = load_study(ROOT / "data/tasks.jsonl", ROOT / "data/trajectories.jsonl", ROOT / "data/views.jsonl")
    names = [view_id(row["trajectory_id"], row["state"], row["kind"]) for row in labels]
    assert len(set(names)) == len(names) >= 60 and set(names) <= set(study.views)
    assert {row["kind"] for row in labels} == {"ungrounded-512", "source-only-512"}
