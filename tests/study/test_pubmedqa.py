"""Tasks and library from a PubMedQA file."""

import json
from pathlib import Path

import pytest

from helpers.study import pubmedqa
from helpers.study.files import DataError
from helpers.study.tasks import load_library, load_tasks

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "pubmedqa" / "pqal_dev.json"


def record(decision, year="2011"):
    return {"QUESTION": f"Is it {decision}?", "CONTEXTS": ["One  part.", "Another."], "final_decision": decision, "YEAR": year}


@pytest.fixture()
def path(tmp_path):
    path = tmp_path / "pqal.json"
    path.write_text(json.dumps({"11": record("yes"), "22": record("no", None), "33": record("maybe")}))
    return path


def test_the_expert_decision_is_the_target_and_every_task_is_valid(path, tmp_path):
    pubmedqa.build(path, 3, tmp_path / "data")
    tasks = {t["source"]["pmid"]: t for t in load_tasks(tmp_path / "data/tasks.jsonl")}
    assert {p: t["target"] for p, t in tasks.items()} == {"11": "answer-a", "22": "answer-b", "33": "answer-c"}
    assert tasks["22"]["source"]["year"] is None


def test_the_library_holds_every_abstract_without_its_conclusion(path, tmp_path):
    pubmedqa.build(path, 1, tmp_path / "data")
    library = load_library(tmp_path / "data/library.jsonl")
    assert [e["doc_id"] for e in library] == ["pmid:11", "pmid:22", "pmid:33"]
    assert library[0]["summary"] == "One part. Another."


def test_the_first_questions_do_not_depend_on_how_many_are_asked_for(path, tmp_path):
    one = pubmedqa.build(path, 1, tmp_path / "one")
    two = pubmedqa.build(path, 2, tmp_path / "two")
    assert two[:1] == one


@pytest.mark.parametrize(("count", "match"), [(0, "N=0"), (4, "the file has 3")])
def test_a_number_that_the_file_cannot_give_is_refused(path, tmp_path, count, match):
    with pytest.raises(DataError, match=match):
        pubmedqa.build(path, count, tmp_path / "data")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[]", r"not a labelled PubMedQA file: is \[\]; expected an object"),
        ('{"1": {"final_decision": "perhaps"}}', "final_decision 'perhaps' is unknown; use one of yes, no, maybe"),
        ("{", "not valid JSON"),
        ('{"1": {}}', "final_decision"),
    ],
)
def test_another_file_is_refused_with_what_is_wrong(tmp_path, text, match):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(DataError, match=match):
        pubmedqa.build(path, 1, tmp_path / "data")


def test_a_missing_file_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(DataError, match="nowhere.json: no such file"):
        pubmedqa.build(tmp_path / "nowhere.json", 1, tmp_path)


@pytest.mark.skipif(not REAL.exists(), reason="the real PubMedQA file is not beside the project")
def test_the_real_file_makes_valid_tasks(tmp_path):
    tasks = pubmedqa.build(REAL, 500, tmp_path / "data")
    assert len(load_tasks(tmp_path / "data/tasks.jsonl")) == len(tasks) == 500
