"""The actor: a scripted model, a real index, and audit numbers worked out by hand."""

import json

import pytest

from helpers.actor.freeze import freeze
from helpers.actor.retrieval import LibraryRetriever
from helpers.actor.scenarios import _PROMPTS
from helpers.actor.workflow import (
    _ABSTAIN,
    Workflow,
    _accept_answer,
    _accept_query,
    _accept_verdict,
    _best_sentences,
    _guess_type,
    _is_supported,
    audit_answer,
    sentences,
)
from helpers.study.files import DataError, read_jsonl
from helpers.study.traces import STEPS, acquired_artifact, load_trajectories, parse_trajectory

LIBRARY = [
    {
        "doc_id": "pmid:501",
        "year": 1998,
        "design": "randomised trial",
        "summary": (
            "In 104 adults zinc lozenges shortened the common cold from 7.6 to 4.4 days. "
            "Nausea and bad taste were the usual complaints. The lozenges were taken every two waking hours."
        ),
    },
    {
        "doc_id": "pmid:502",
        "year": 2007,
        "design": "cohort study",
        "summary": "Night nurses slept 5.9 hours a day, and coffee did not change that.",
    },
    {
        "doc_id": "pmid:503",
        "year": 2012,
        "design": "review",
        "summary": "Honey eased night cough in children more than no treatment did.",
    },
]
TASK = {
    "task_id": "intervention-77",
    "family": "intervention",
    "question": "Do zinc lozenges shorten the common cold in adults?",
    "candidates": [
        {"candidate_id": "answer-a", "text": "Peppermint candy does the same as any metal tablet."},
        {"candidate_id": "answer-b", "text": "Colds end three days earlier under the lozenge."},
        {"candidate_id": "answer-c", "text": "Only smokers recover sooner with it."},
        {
            "candidate_id": "none-of-the-above",
            "text": "The available evidence is insufficient for the other statements.",
        },
    ],
    "target": "answer-b",
}
OTHER = {**TASK, "task_id": "risk-78", "family": "risk", "question": "Does coffee shorten the sleep of night nurses?"}
STRANGE = {**TASK, "task_id": "mechanism-79", "family": "mechanism", "question": "Why do quasars flicker in winter?"}

GOOD = {
    "classify": "Intervention.",
    "plan": "zinc lozenges common cold adults duration",
    "synthesize": "Zinc lozenges shortened the common cold from 7.6 to 4.4 days in adults.",
    "revise": "In adults zinc lozenges shortened the common cold.",
    "verify": "supported",
}


class Scripted:
    """An ``ask`` that answers by step and keeps its prompts; a missing step raises ``error``."""

    def __init__(self, answers, error=None):
        self.answers, self.prompts = answers, []
        self.error = error or ConnectionError("the endpoint is gone")

    def __call__(self, prompt, max_tokens):
        self.prompts.append(prompt)
        step = next(step for step, begin in _PROMPTS.items() if prompt.startswith(begin))
        if step not in self.answers:
            raise self.error
        return self.answers[step]


def workflow(ask, relevance=0.5, **options):
    return Workflow(LibraryRetriever(LIBRARY), ask, relevance=relevance, **options)


def modes(row):
    return {step["action"]: step["mode"] for step in row["steps"] if step["mode"] != "deterministic"}


def states(row):
    return parse_trajectory(row).states


# -- modes -----------------------------------------------------------------------------------------


def test_steps_that_the_model_answered_are_recorded_as_llm_and_the_others_as_deterministic():
    row = workflow(Scripted(GOOD)).run(TASK)
    assert [step["action"] for step in row["steps"]] == list(STEPS)
    assert modes(row) == {"classify": "llm", "plan": "llm", "synthesize": "llm", "verify": "llm"}
    assert [step["cost"]["calls"] for step in row["steps"]] == [1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("error", [ConnectionError("gone"), TimeoutError("slow"), RuntimeError("refused")])
def test_a_failing_model_leaves_fallbacks_that_are_recorded_as_such(error):
    row = workflow(Scripted({}, error)).run(TASK)
    assert modes(row) == {"classify": "fallback", "plan": "fallback", "synthesize": "fallback", "verify": "fallback"}
    final = states(row)[-1]
    assert final["question_type"] == _guess_type(TASK["question"]) == "other"
    assert final["plan"]["query"].startswith("zinc lozenge shorten common cold adult")
    assert final["answer"] == "In 104 adults zinc lozenges shortened the common cold from 7.6 to 4.4 days."
    assert final["verification"] == "supported"


@pytest.mark.parametrize(
    ("step", "unusable"),
    [
        ("classify", "banana"),
        ("plan", "zinc"),
        ("synthesize", "Yes, it does."),
        ("verify", "Maybe so"),
        ("verify", " \n"),
    ],
)
def test_an_unusable_answer_makes_exactly_that_step_a_fallback(step, unusable):
    row = workflow(Scripted({**GOOD, step: unusable})).run(TASK)
    assert [name for name, mode in modes(row).items() if mode == "fallback"] == [step]


def test_a_revision_by_the_model_and_one_by_rule_are_told_apart():
    wrong = {**GOOD, "synthesize": "Zinc lozenges shortened the common cold by 11 days in adults."}
    assert modes(workflow(Scripted(wrong)).run(TASK))["revise"] == "llm"
    del wrong["revise"]
    row = workflow(Scripted(wrong)).run(TASK)
    assert modes(row)["revise"] == "fallback"
    assert states(row)[-1]["answer"] == states(row)[-1]["evidence"][0]["quote"]


# -- the trajectory --------------------------------------------------------------------------------


def test_the_states_follow_the_evidence_from_question_to_answer():
    row = workflow(Scripted(GOOD), keywords=6).run(TASK)
    x = states(row)
    assert x[0] == {"question": TASK["question"], "artifacts": [], "evidence": [], "answer": ""}
    assert x[3]["plan"] == {"query": "zinc lozenges common cold adults duration shorten", "checked": True}
    assert x[4]["artifacts"] == [
        {"doc_id": "pmid:501", "year": 1998, "design": "randomised trial", "text": LIBRARY[0]["summary"]}
    ]
    assert x[5]["artifacts"] == [{"doc_id": "pmid:501", "year": 1998, "design": "randomised trial"}]
    assert [e["quote"] for e in x[5]["evidence"]] == sentences(LIBRARY[0]["summary"])
    assert x[6]["answer"] == GOOD["synthesize"] and x[6]["citations"] == ["pmid:501"]
    assert x[11]["status"] == "answered" and x[11]["verification"] == "supported"
    assert acquired_artifact(parse_trajectory(row))


def test_a_supported_cited_and_measured_answer_scores_one_and_succeeds():
    row = workflow(Scripted(GOOD)).run(TASK)
    assert row["audit"] == {
        "claim_support": 1.0, "citation_precision": 1.0, "overclaim": 0.0, "final_score": 1.0, "issues": [],
    }  # fmt: skip
    assert (row["final_score"], row["success"]) == (1.0, True)


def test_an_overclaim_that_survives_the_revision_costs_a_third_and_the_success():
    bold = "Zinc lozenges always shortened the common cold in adults."
    row = workflow(Scripted({**GOOD, "synthesize": bold, "revise": bold})).run(TASK)
    assert states(row)[7]["issues"] == ["stronger than the evidence: always"]
    assert "issues" not in states(row)[8]
    assert states(row)[10]["issues"] == ["stronger than the evidence: always"]
    assert (row["final_score"], row["success"]) == (0.666667, False)


def test_below_the_relevance_threshold_there_is_no_artifact_and_no_evidence():
    best = LibraryRetriever(LIBRARY).search("zinc lozenges common cold adults duration shorten")[0]["relevance"]
    row = workflow(Scripted({**GOOD, "synthesize": _ABSTAIN}), relevance=best + 0.001).run(TASK)
    assert row["steps"][3]["patch"] == {}
    assert "none relevant enough; no artifact acquired" in row["steps"][3]["observation"]
    assert all(x["artifacts"] == [] and x["evidence"] == [] for x in states(row))
    assert not acquired_artifact(parse_trajectory(row))
    assert row["relevance"] == round(best, 3)


def test_at_the_relevance_threshold_the_artifact_is_acquired():
    best = LibraryRetriever(LIBRARY).search("zinc lozenges common cold adults duration shorten")[0]["relevance"]
    assert acquired_artifact(parse_trajectory(workflow(Scripted(GOOD), relevance=best, keywords=6).run(TASK)))


def test_a_search_without_a_hit_is_no_error():
    row = workflow(Scripted({})).run(STRANGE)
    assert row["relevance"] == 0.0
    assert row["steps"][3]["observation"].startswith("0 hits")
    assert states(row)[-1]["answer"] == _ABSTAIN
    assert states(row)[-1]["status"] == "abstained"


def test_abstaining_is_safe_but_does_not_answer():
    row = workflow(Scripted({"synthesize": _ABSTAIN})).run(STRANGE)
    audit = row["audit"]
    assert (audit["claim_support"], audit["citation_precision"], audit["overclaim"]) == (1.0, 0.0, 0.0)
    assert (row["final_score"], row["success"], audit["issues"]) == (0.666667, False, [])


def test_the_actor_never_sees_the_candidates_the_target_or_the_family():
    ask = Scripted({**GOOD, "synthesize": "Zinc lozenges shortened the common cold by 11 days in adults."})
    row = workflow(ask).run(TASK)
    assert len(ask.prompts) == 5
    seen = "\n".join(ask.prompts) + json.dumps({**row, "task_id": None, "trajectory_id": None})
    for candidate in TASK["candidates"]:
        assert candidate["text"] not in seen and candidate["candidate_id"] not in seen
    assert "target" not in seen and TASK["task_id"] not in seen


def test_another_target_or_other_candidates_leave_the_trajectory_as_it_is():
    other = {**TASK, "target": "answer-c", "candidates": TASK["candidates"][::-1]}
    assert workflow(Scripted(GOOD)).run(other) == workflow(Scripted(GOOD)).run(TASK)


# -- the audit by hand -----------------------------------------------------------------------------


def test_audit_numbers_are_those_worked_out_by_hand():
    documents = {d["doc_id"]: d for d in LIBRARY}
    state = {
        # 3 claims; the first is in pmid:501, the second says 9 where no source does, the third is in pmid:503
        "answer": (
            "Zinc lozenges shortened the common cold from 7.6 to 4.4 days. "
            "Zinc lozenges shortened the common cold to 9 days. "
            "Honey definitively eased night cough in children. The evidence on adults with asthma is insufficient."
        ),
        "citations": ["pmid:501", "pmid:503", "pmid:999", "pmid:503x", "pmid:502"],
    }
    audit = audit_answer(state, documents, support=0.5)
    assert audit["claim_support"] == pytest.approx(2 / 3)
    assert audit["citation_precision"] == pytest.approx(3 / 5)
    assert audit["overclaim"] == 1.0
    assert audit["final_score"] == round((2 / 3 + 3 / 5 + 0) / 3, 6) == 0.422222
    assert audit["issues"] == [
        "claim 2 has no support in its sources",
        "pmid:999 is cited but was not retrieved",
        "pmid:503x is cited but was not retrieved",
        "stronger than the evidence: definitively",
    ]


def test_a_claim_without_citation_has_neither_support_nor_precision():
    audit = audit_answer({"answer": "Honey eased night cough in children."}, {"pmid:503": LIBRARY[2]}, support=0.5)
    assert audit["issues"] == ["claim 1 has no support in its sources", "the answer cites nothing"]
    assert audit["final_score"] == round((0 + 0 + 1) / 3, 6)


def test_a_strong_word_of_the_source_is_no_overclaim():
    source = {"pmid:504": {"summary": "Honey always eased cough."}}
    audit = audit_answer({"answer": "Honey always eased cough.", "citations": ["pmid:504"]}, source, support=0.5)
    assert (audit["overclaim"], audit["final_score"]) == (0.0, 1.0)


def test_support_needs_the_share_of_words_and_every_figure():
    source = "Honey eased night cough in 73 children."
    claim = "Honey eased asthma in children of 73 families"  # honey, eased, asthma, children, familie: 3 of 5
    assert _is_supported(claim, source, 0.6)
    assert not _is_supported(claim, source, 0.61)
    assert not _is_supported("Honey eased night cough in 74 children", source, 0.1)
    assert not _is_supported("Yes, the evidence suggests not.", source, 0.0001)


# -- freezing --------------------------------------------------------------------------------------


def test_freezing_writes_one_line_a_task_with_the_actor_and_loads_as_trajectories(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    actor = {"stack": "scripted", "relevance": 0.5}
    assert list(freeze([TASK, OTHER], workflow(Scripted(GOOD)), path, actor)) == [1, 2]
    rows = read_jsonl(path)
    assert [(r["task_id"], r["actor"]) for r in rows] == [("intervention-77", actor), ("risk-78", actor)]
    assert [t.trajectory_id for t in load_trajectories(path, [TASK, OTHER])] == ["traj-intervention-77", "traj-risk-78"]


def test_freezing_goes_on_after_a_stop_and_runs_nothing_twice(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    first = freeze([TASK, OTHER, STRANGE], workflow(Scripted(GOOD)), path, {})
    next(first)
    first.close()
    before = path.read_bytes()
    ask = Scripted(GOOD)
    assert list(freeze([TASK, OTHER, STRANGE], workflow(ask), path, {})) == [1, 2]
    assert path.read_bytes().startswith(before)
    assert [r["task_id"] for r in read_jsonl(path)] == ["intervention-77", "risk-78", "mechanism-79"]
    assert not any(TASK["question"] in prompt for prompt in ask.prompts)
    assert list(freeze([TASK, OTHER, STRANGE], workflow(Scripted(GOOD)), path, {})) == []


def test_a_half_written_last_line_is_named_and_nothing_is_asked_or_changed(tmp_path):
    path = tmp_path / "trajectories.jsonl"
    list(freeze([TASK, OTHER], workflow(Scripted(GOOD)), path, {}))
    whole = path.read_text()
    torn = whole[: len(whole) - 70]
    path.write_text(torn)
    ask = Scripted(GOOD)
    with pytest.raises(DataError, match=r"trajectories\.jsonl, line 2: not valid JSON .* Repair or remove that line\."):
        list(freeze([TASK, OTHER], workflow(ask), path, {}))
    assert path.read_text() == torn and ask.prompts == []
    path.write_text(whole.splitlines(keepends=True)[0])
    assert list(freeze([TASK, OTHER], workflow(ask), path, {})) == [1]
    assert path.read_text() == whole


# -- small parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("zinc AND (cold OR flu), adults!", "zinc cold flu adults"),
        ("zinc", None),
        ("a b c d e f g h i j k l m n", "a b c d e f g h i j k l"),
        ("", None),
    ],
)
def test_a_search_query_loses_operators_and_is_cut_at_twelve_words(text, query):
    assert _accept_query(text) == query


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Zinc made colds shorter. It also cau", "Zinc made colds shorter."),
        ("Zinc made colds much shorter", "Zinc made colds much shorter"),
        ("No. Zinc made colds no shorter at all", "No. Zinc made colds no shorter at all"),
        ("Yes it does", None),
    ],
)
def test_an_answer_is_cut_after_its_last_full_sentence(text, answer):
    assert _accept_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("Partly supported.", "partly"), ("UNSUPPORTED", "unsupported"), ("It is supported", "supported"), ("no", None)],
)
def test_a_verdict_is_the_first_of_the_three_words(text, verdict):
    assert _accept_verdict(text) == verdict


def test_sentences_are_not_cut_at_decimals_and_abbreviations():
    text = "It fell from 7.6 to 4.4 days vs. Placebo, e.g. Honey. Then it rose! Did it stay?"
    assert sentences(text) == ["It fell from 7.6 to 4.4 days vs. Placebo, e.g. Honey.", "Then it rose!", "Did it stay?"]


def test_the_best_sentences_are_kept_in_their_own_order():
    artifacts = [
        {"doc_id": "pmid:501", "text": LIBRARY[0]["summary"]},
        {"doc_id": "pmid:503", "text": LIBRARY[2]["summary"]},
    ]
    found = _best_sentences(artifacts, "Were lozenges for the common cold taken every waking hour?", 2)
    assert [(e["doc_id"], e["quote"][:12]) for e in found] == [
        ("pmid:501", "In 104 adult"),
        ("pmid:501", "The lozenges"),
    ]


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("Can MRI detect tears?", "diagnostic"),
        ("Is the receptor expressed in mice?", "mechanism"),
        ("Is surgery better?", "intervention"),
        ("Is smoking linked to strokes?", "risk"),
        ("Who came?", "other"),
    ],
)
def test_a_question_is_classified_by_keyword_when_the_model_does_not(question, kind):
    assert _guess_type(question) == kind
