"""Tasks and library: what is refused, and that the shipped texts are our own and agree with their sources."""

import copy
import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.study.files import DataError, append_jsonl, read_jsonl, write_jsonl
from helpers.study.tasks import (
    _FAMILIES,
    FALLBACK,
    load_library,
    load_tasks,
    own_document,
    validate_library,
    validate_tasks,
)
from tests.wording import counted_words, shared_runs, source_runs

ROOT = Path(__file__).resolve().parents[2]
PUBMEDQA = ROOT / "../shared/data/pubmedqa/pqal_dev.json"
FACTS = json.loads(Path(__file__).with_name("pubmedqa_facts.json").read_text(encoding="utf-8"))

TASK = {
    "task_id": "risk-77",
    "family": "risk",
    "question": "Does night work go with more migraine in nurses?",
    "candidates": [
        {"candidate_id": "answer-a", "text": "Migraine was more frequent in nurses on nights."},
        {"candidate_id": "answer-b", "text": "Migraine was equally frequent on every shift."},
        {"candidate_id": FALLBACK, "text": "The available evidence is insufficient to decide."},
        {"candidate_id": "answer-c", "text": "Only nurses older than fifty had more migraine."},
    ],
    "target": "answer-c",
}


def changed(path, value):
    """TASK with one value replaced; ``path`` is a tuple of keys, DROP removes the last one."""
    task = copy.deepcopy(TASK)
    place = task
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return task


def test_a_sound_task_has_no_problem():
    assert validate_tasks([TASK]) == [TASK]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("question",), "", "task risk-77: question is missing or empty."),
        (("target",), None, "task risk-77: target is missing or empty."),
        (("task_id",), "", "task (no task_id): task_id is missing or empty."),
        (("family",), "riskk", "family 'riskk' is unknown; use one of intervention, risk,"),
        (("candidates",), TASK["candidates"][:3], "3 candidates; exactly 4 are needed."),
        (
            ("candidates",),
            [*TASK["candidates"], {"candidate_id": "answer-d", "text": "A fifth."}],
            "5 candidates; exactly 4",
        ),
        (("candidates", 2, "candidate_id"), "answer-d", "0 candidates have the id 'none-of-the-above'"),
        (("candidates", 0, "candidate_id"), FALLBACK, "2 candidates have the id 'none-of-the-above'"),
        (("candidates", 0, "candidate_id"), "answer-b", "duplicate candidate ids"),
        (("target",), "answer-e", "target 'answer-e' is no candidate"),
        (("candidates", 1, "text"), "  ", "task risk-77: candidate 2: text is missing or empty."),
        (
            ("candidates", 1, "text"),
            "migraine WAS more frequent in nurses on nights.",
            "two candidates have the same text.",
        ),
        (("candidates", 2, "text"), "None of these.", "must say that the evidence is insufficient"),
        (("question",), "Is answer-c right about night work?", "question leaks a label or target ('answer-c')"),
        (("question",), "Which is the correct answer about night work?", "question leaks a label or target"),
        (("question",), "Is option B true of night work?", "question leaks a label or target ('option B')"),
        (("candidates", 0, "text"), "The gold label says more migraine.", "answer-a leaks a label or target"),
        (("candidates", 1, "text"), "As CANDIDATE_02 says, no.", "answer-b leaks a label or target"),
        (
            ("question",),
            "Is it so that only nurses older than fifty had more migraine?",
            "the question states the target's text word for word",
        ),
        (("candidates",), {"answer-a": "More."}, "task risk-77: candidates is {'answer-a': 'More.'}; expected a list."),
        (("candidates",), ["More.", "Less.", "Same.", "Insufficient."], "candidate 1 is 'More.'; expected an object"),
        (("candidates", 0), {"text": "More on nights."}, "candidate 1: candidate_id is missing or empty."),
        (("candidates", 3, "text"), 7, "candidate 4: text is 7; expected text."),
        (("question",), ["Does it?"], "question is ['Does it?']; expected text."),
        (("source",), "pmid:4", "source is 'pmid:4'; expected an object of fields."),
    ],
)
def test_an_unsound_task_is_refused_with_its_id_and_the_reason(path, value, message):
    with pytest.raises(DataError) as caught:
        validate_tasks([changed(path, value)])
    assert message in str(caught.value)


def test_every_problem_of_every_task_is_named_at_once():
    other = {**changed(("target",), "answer-z"), "task_id": "risk-78"}
    with pytest.raises(DataError) as caught:
        validate_tasks([changed(("family",), "odd"), other])
    assert len(str(caught.value).splitlines()) == 2
    assert "risk-77" in str(caught.value) and "risk-78" in str(caught.value)


def test_a_task_id_that_appears_twice_is_refused():
    with pytest.raises(DataError, match="task risk-77: the task_id appears 2 times"):
        validate_tasks([TASK, TASK])


def test_the_library_refuses_duplicate_ids_and_empty_fields():
    entry = {"doc_id": "pmid:12", "year": 1999, "design": "cohort", "summary": "Nurses were followed."}
    assert validate_library([entry]) == [entry]
    with pytest.raises(DataError, match="library entry pmid:12: the doc_id appears 3 times"):
        validate_library([entry] * 3)
    with pytest.raises(DataError, match="library entry pmid:12: year is missing .*\n.*12: summary is missing"):
        validate_library([{**entry, "year": None, "summary": ""}])
    with pytest.raises(DataError, match=r"library entry pmid:12: year is \[1999\]; expected a number or text"):
        validate_library([{**entry, "year": [1999]}])


# -- files ------------------------------------------------------------------------------------------


def test_a_broken_line_is_named_by_file_and_line_number(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2,}\n')
    with pytest.raises(DataError, match=r"tasks\.jsonl, line 3: not valid JSON .* Repair or remove that line\."):
        read_jsonl(path)


def test_a_line_that_is_no_object_is_refused(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"a": 1}\n[2, 3]\n')
    with pytest.raises(DataError, match="line 2: expected a JSON object, found list"):
        read_jsonl(path)


def test_a_missing_file_is_refused_with_its_path(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file\. Check the path"):
        read_jsonl(tmp_path / "nowhere.jsonl")


def test_a_file_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes('{"text": "Ménière"}\n'.encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.jsonl: not UTF-8 text \(byte 11\)"):
        read_jsonl(path)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.dictionaries(st.text(max_size=5), st.text() | st.integers() | st.none()), max_size=4))
def test_what_is_written_is_read_again(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("jsonl") / "rows.jsonl"
    write_jsonl(path, rows)
    assert read_jsonl(path) == rows


def test_a_line_separator_inside_a_text_does_not_break_its_line(tmp_path):
    rows = [{"text": "before\u2028after\u0085end"}, {"text": "next"}]  # neither of them ends a line
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert read_jsonl(tmp_path / "rows.jsonl") == rows


def test_writing_replaces_the_file_in_one_step_and_leaves_nothing_else(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [{"a": 1}, {"a": 2}])
    write_jsonl(tmp_path / "rows.jsonl", [{"a": 3}])
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]
    assert read_jsonl(tmp_path / "rows.jsonl") == [{"a": 3}]


FULL_DISK = """
import resource, signal, sys
from helpers.study.files import append_jsonl
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
try:
    append_jsonl(sys.argv[1], {"text": "é" * 200})
except OSError as error:
    print(error.strerror)
"""


def test_a_line_that_the_disk_takes_only_in_part_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, {"a": 3})
    before = path.read_bytes()
    ran = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "large" in ran.stdout and path.read_bytes() == before
    append_jsonl(path, {"a": 4})
    assert read_jsonl(path) == [{"a": 3}, {"a": 4}]


# -- wording ----------------------------------------------------------------------------------------


def test_numbers_acronyms_and_names_do_not_count_as_words():
    text = "In 427 wrist fractures (p=0.002), HbA1c and the VAS score fell under Atropine, the patients' own drug."
    assert counted_words(text, names=["atropine"]) == (
        "in wrist fractures p and the score fell under the patients own drug".split()
    )


def test_a_shared_run_of_eight_counted_words_is_found_across_numbers_and_punctuation():
    source = "After surgery, 12 of the 30 women reported less pain at night than before the operation."
    copied = "At first after surgery 99 of the women reported less pain; at 3 months it returned."
    runs = source_runs([source])
    assert shared_runs(copied, runs) == [
        "after surgery of the women reported less pain",
        "surgery of the women reported less pain at",
    ]
    assert shared_runs("After surgery of the women reported less trouble at night than before.", runs) == []


def test_a_run_does_not_reach_from_one_source_text_into_the_next():
    runs = source_runs(["one two three four", "five six seven eight"])
    assert shared_runs("one two three four five six seven eight", runs) == []


# -- the shipped corpus -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tasks():
    return load_tasks(ROOT / "data/tasks.jsonl")


@pytest.fixture(scope="module")
def library():
    return load_library(ROOT / "data/library.jsonl")


@pytest.fixture(scope="module")
def pubmedqa():
    """The PubMedQA records; None where their file is not beside the project."""
    return json.loads(PUBMEDQA.read_text(encoding="utf-8")) if PUBMEDQA.exists() else None


def test_every_family_has_at_least_four_tasks_and_the_target_position_is_spread(tasks):
    families = Counter(t["family"] for t in tasks)
    assert set(families) == set(_FAMILIES) and min(families.values()) >= 4
    positions = Counter([c["candidate_id"] for c in t["candidates"]].index(t["target"]) for t in tasks)
    assert min(positions[p] for p in range(4)) >= len(tasks) / 10


def test_the_fallback_is_the_target_of_every_insufficient_evidence_task_and_of_no_other(tasks):
    assert all((t["target"] == FALLBACK) == (t["family"] == "insufficient-evidence") for t in tasks)


def test_the_article_of_a_task_is_in_the_library_unless_its_evidence_is_to_be_insufficient(tasks, library):
    known = {entry["doc_id"] for entry in library}
    for task in tasks:
        held = f"pmid:{task['source']['pmid']}" in known
        assert held == (task["family"] != "insufficient-evidence"), task["task_id"]


def test_candidates_and_summaries_keep_to_their_lengths(tasks, library):
    concrete = [c["text"] for t in tasks for c in t["candidates"] if c["candidate_id"] != FALLBACK]
    assert max(len(text.split()) for text in concrete) <= 15
    lengths = [len(entry["summary"].split()) for entry in library]
    assert 60 <= min(lengths) and max(lengths) <= 110


def test_the_target_cannot_be_told_by_its_length(tasks):
    longest = 0
    concrete = [t for t in tasks if t["target"] != FALLBACK]
    for task in concrete:
        length = {c["candidate_id"]: len(c["text"]) for c in task["candidates"] if c["candidate_id"] != FALLBACK}
        longest += length[task["target"]] == max(length.values())
    assert longest <= 0.5 * len(concrete), f"the target is the longest candidate in {longest} of {len(concrete)} tasks"


def test_no_text_shares_eight_counted_words_in_a_row_with_any_pubmedqa_text(tasks, library, pubmedqa):
    ours = [(t["task_id"], text) for t in tasks for text in [t["question"], *(c["text"] for c in t["candidates"])]]
    ours += [(entry["doc_id"], entry[field]) for entry in library for field in ("summary", "design")]
    if pubmedqa is not None:
        theirs = [text for row in pubmedqa.values() for text in [row["QUESTION"], *row["CONTEXTS"], row["LONG_ANSWER"]]]
        runs = source_runs(theirs)
        copied = [(name, found) for name, text in ours if (found := shared_runs(text, runs))]
        assert copied == []
        assert shared_runs(theirs[1], runs), "the check would not find even a copied text"
    assert hashlib.sha256(json.dumps(ours).encode()).hexdigest() == FACTS["compared"], (
        "a text is not the one that was compared: run this test beside the PubMedQA file, then write the hash anew"
    )


def test_year_and_expert_label_of_every_task_agree_with_pubmedqa(tasks):
    for task in tasks:
        facts = [str(task["source"]["year"]), task["source"]["label"]]
        assert facts == FACTS["records"][task["source"]["pmid"]], task["task_id"]


def test_year_of_every_library_entry_agrees_with_pubmedqa(library):
    for entry in library:
        assert str(entry["year"]) == FACTS["records"][entry["doc_id"].removeprefix("pmid:")][0], entry["doc_id"]


@pytest.mark.skipif(not PUBMEDQA.exists(), reason="the PubMedQA file is not beside the project")
def test_the_listed_facts_are_those_of_the_pubmedqa_file(pubmedqa):
    for pmid, facts in FACTS["records"].items():
        assert facts == [pubmedqa[pmid]["YEAR"], pubmedqa[pmid]["final_decision"]]


def test_the_document_about_a_question_is_the_one_of_its_source_if_the_library_holds_it():
    task = {"source": {"pmid": "17"}}
    assert own_document(task, {"pmid:17", "pmid:18"}) == "pmid:17" and own_document(task, {"pmid:18"}) is None
    assert own_document({}, {"pmid:18"}) is None


def test_a_character_that_was_cut_in_half_is_refused_with_its_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "\\ud83d\\ude00"}\n{"a": "\\ud83d"}\n')
    with pytest.raises(DataError, match="line 2: holds half of a surrogate pair"):
        read_jsonl(path)


@pytest.mark.parametrize("line", ['{"a": ' + "9" * 5000 + "}", '{"a": ' + "[" * 100_000])
def test_a_number_too_long_or_a_nesting_too_deep_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(DataError, match="rows.jsonl, line 2: holds a number too long or a nesting too deep"):
        read_jsonl(path)


@pytest.mark.parametrize("changes", [{"target": ["answer-a"]}, {"task_id": ["risk-77"]}, {"task_id": {"a": 1}}])
def test_an_id_or_a_target_that_is_no_text_is_refused_with_the_file(tmp_path, changes):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({**TASK, **changes}) + "\n")
    with pytest.raises(DataError, match=r"tasks.jsonl: task .*: (target|task_id) is .*; expected text\."):
        load_tasks(path)


def test_a_family_that_is_no_text_is_refused():
    with pytest.raises(DataError, match=r"family \['risk'\] is unknown; use one of intervention, risk, mech"):
        validate_tasks([changed(("family",), ["risk"])])


def test_a_file_of_tasks_without_any_is_refused(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n")
    with pytest.raises(DataError, match="tasks.jsonl: holds no row"):
        load_tasks(path)
