"""Known-answer states: six doses by rule, no answer that slips in, and a dose without its text left out."""

import json

import pytest

from helpers.study import known_answers as known
from helpers.study.known_answers import DOSES, doses, known_answers, known_id, wrong_candidate
from helpers.study.projection import REDACTED, projected_states
from helpers.study.tasks import FALLBACK, load_library, load_tasks
from tests.golden import ROOT

DEVELOPMENT = slice(60, 100)


def task(name, target="answer-a", count=3, family="risk", fallback=True, pmid=None):
    """A task with ``count`` concrete candidates."""
    candidates = [{"candidate_id": f"answer-{c}", "text": f"Finding {c} of {name}."} for c in "abcdefg"[:count]]
    if fallback:
        candidates.append({"candidate_id": FALLBACK, "text": "The evidence is insufficient."})
    source = {"source": {"pmid": pmid}} if pmid else {}
    return {
        "task_id": name,
        "family": family,
        "question": f"What about {name}?",
        "candidates": candidates,
        "target": target,
        **source,
    }


def document(pmid):
    return {
        "doc_id": f"pmid:{pmid}",
        "year": 2001,
        "design": "cohort study",
        "summary": f"Article {pmid} found something.",
    }


def states(trajectory):
    """``{dose: projected state as JSON}``"""
    return dict(zip(doses(trajectory), map(json.loads, projected_states(trajectory)), strict=True))


def quoted(state):
    return [entry["quote"] for entry in state["evidence"]]


THREE = [task("one", "answer-b", pmid=11), task("two", pmid=22), task("three", FALLBACK, pmid=33)]
LIBRARY = [document(11), document(22), document(33)]


def test_each_dose_holds_what_it_is_called_for_and_the_question():
    first, second = known_answers(THREE, LIBRARY)
    one = states(first)
    assert tuple(one) == DOSES
    assert all(state["question"] == "What about one?" for state in one.values())
    assert quoted(one["none"]) == quoted(one["noise"]) == [] == one["noise"]["artifacts"]
    assert one["noise"]["plan"]["checked"] is True and "status" in one["noise"]
    assert (
        quoted(one["other"]) == ["Article 22 found something."] and one["other"]["artifacts"][0]["doc_id"] == "pmid:22"
    )
    assert quoted(one["support"]) == ["Article 11 found something."]
    assert quoted(one["oracle"]) == ["The study reports: Finding b of one."]
    wrong = {"The study reports: Finding a of one.", "The study reports: Finding c of one."}
    assert len(quoted(one["counter"])) == 1 and set(quoted(one["counter"])) < wrong
    assert quoted(states(second)["other"]) == ["Article 33 found something."]


def test_oracle_and_counter_differ_from_support_in_the_sentence_alone():
    one = states(known_answers(THREE, LIBRARY)[0])
    for dose in ("oracle", "counter"):
        assert {**one[dose], "evidence": None} == {**one["support"], "evidence": None}
        assert one[dose]["evidence"][0]["doc_id"] == one["support"]["evidence"][0]["doc_id"]


def test_a_task_that_its_article_does_not_decide_gets_no_states():
    assert [t.task_id for t in known_answers(THREE, LIBRARY)] == ["one", "two"]
    assert known_answers(THREE, LIBRARY)[0].trajectory_id == known_id("one") == "known-one"


def test_without_evidence_texts_only_the_doses_that_need_none_are_built():
    assert doses(known_answers([task("one")])[0]) == ("none", "noise", "oracle", "counter")


def test_own_texts_stand_for_a_library():
    own = known_answers([task("one"), task("two")], texts={"one": "We saw it.", "two": "We did not."})
    assert quoted(states(own[0])["support"]) == ["We saw it."] and quoted(states(own[0])["other"]) == ["We did not."]
    assert "one" not in json.dumps(states(own[0])["support"]["artifacts"])


def test_another_family_lends_no_article():
    other = known_answers([task("one", pmid=11), task("two", family="mechanism", pmid=22)], LIBRARY)
    assert [doses(t) for t in other] == [("none", "noise", "support", "oracle", "counter")] * 2


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("count", range(1, 8))
def test_any_number_of_candidates_is_taken(count, fallback):
    one = task("one", count=count, fallback=fallback)
    assert ("counter" in doses(known_answers([one])[0])) == (count > 1)
    assert wrong_candidate(one) not in ("answer-a", FALLBACK)


def test_the_wrong_candidate_depends_on_the_task_alone_and_is_not_always_the_same():
    chosen = [wrong_candidate(task(f"t{n}", count=4)) for n in range(40)]
    assert chosen == [wrong_candidate(task(f"t{n}", count=4)) for n in range(40)]
    assert set(chosen) == {"answer-b", "answer-c", "answer-d"}


# -- the shipped study --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped():
    tasks = load_tasks(ROOT / "data/tasks.jsonl")[DEVELOPMENT]
    return {t["task_id"]: t for t in tasks}, known_answers(tasks, load_library(ROOT / "data/library.jsonl"))


def test_every_development_task_with_a_deciding_article_has_all_doses(shipped):
    tasks, built = shipped
    assert [t.task_id for t in built] == [name for name, t in tasks.items() if t["target"] != FALLBACK]
    assert {doses(t) for t in built} == {DOSES}
    families = [tasks[t.task_id]["family"] for t in built[:24]]
    assert {f: families.count(f) for f in families} == {"intervention": 6, "risk": 6, "mechanism": 6, "diagnostic": 6}


def test_no_state_names_a_family_a_label_or_the_target_and_nothing_is_redacted(shipped):
    tasks, built = shipped
    for trajectory in built:
        target = next(
            c["text"]
            for c in tasks[trajectory.task_id]["candidates"]
            if c["candidate_id"] == tasks[trajectory.task_id]["target"]
        )
        for dose, text in zip(doses(trajectory), projected_states(trajectory), strict=True):
            assert (
                trajectory.task_id not in text
                and "answer-" not in text
                and FALLBACK not in text
                and REDACTED not in text
            )
            assert (target in text) == (dose == "oracle")


def test_leaving_the_other_articles_out_takes_the_dose_away_and_changes_no_other(shipped, monkeypatch):
    tasks, built = shipped
    monkeypatch.setattr(known, "_other", lambda *_: None)
    less = known.known_answers(list(tasks.values()), load_library(ROOT / "data/library.jsonl"))
    with_other, without = states(built[0]), states(less[0])
    assert "other" not in without and without == {d: s for d, s in with_other.items() if d != "other"}
