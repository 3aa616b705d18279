"""Projection: nothing forbidden gets through at any depth, question and evidence do, and prefixes are shared."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.channels.prompts import buffered_messages, direct_messages
from helpers.study.projection import _REDACTED, _forbidden_key, project, redact, state_slice
from helpers.study.tasks import FALLBACK
from helpers.study.traces import STEPS, parse_trajectory

PLANTED = "zq-planted-zq"  # no state holds this by chance

FORBIDDEN_KEYS = {
    "target": ["target", "reviewed_target", "gold", "goldAnswer", "target_id", "correct_candidate", "is_correct"],
    "success": ["success", "is_success", "Success", "succeeded"],
    "score and its parts": [
        "final_score", "finalScore", "score", "scores", "claim_support", "claimSupport", "Claim-Support",
        "citation_precision", "citationPrecision", "overclaim", "overclaim_rate", "reward",
    ],
    "answer key": ["answer_key", "answerKey", "Answer Key", "expected_answer"],
    "physical labels": ["label", "labels", "physical_label", "optionLabel", "gold_label"],
    "provider responses": [
        "provider", "provider_response", "raw", "raw_response", "rawResponse", "response", "responses", "completion",
        "usage", "system_fingerprint", "logprobs", "token_logprobs",
    ],
    "request and trace ids": ["request_id", "requestId", "trace_id", "traceID", "run_id", "id", "ids", "uuid"],
    "timestamps": ["timestamp", "created_at", "createdAt", "updated", "time", "datetime", "started", "elapsed"],
    "secrets": [
        "secret", "client_secret", "api_key", "apiKey", "APIKey", "password", "access_token", "auth_token", "token",
        "Authorization", "bearer", "cookie", "credentials",
    ],
}  # fmt: skip
KEYS = [key for keys in FORBIDDEN_KEYS.values() for key in keys]

# The whole text on the left, and the part of it that must not be seen.
FORBIDDEN_TEXTS = {
    "the correct answer is answer-b": "correct answer",
    "Reviewed target = answer-c": "answer-c",
    "gold label: B": "gold label",
    "answer key: BADC": "BADC",
    "success=True": "True",
    "Success: false": "false",
    "final_score=0.8125": "0.8125",
    "Overall score is 0.8125": "0.8125",
    "Option B": "Option B",
    "label D": "label D",
    "choice C": "choice C",
    "sk-abcdefghijklmnop1234": "abcdefghijklmnop",
    "ghp_abcdefghijklmnopqrst": "abcdefghijklmnop",
    "AKIAIOSFODNN7EXAMPLE": "IOSFODNN7",
    "Bearer abcdefgh.12345": "abcdefgh",
    "api_key=hunter22": "hunter22",
    "password: hunter22": "hunter22",
    "secret = hunter22": "hunter22",
    "2026-07-16T12:34:56.789Z": "12:34",
    "2026-07-16 12:34": "12:34",
    "2026-07-16T12:34:56+02:00": "12:34",
    "chatcmpl-abc12345XYZ": "abc12345",
    "req_0123456789ab": "0123456789ab",
    "trace-0123456789ab": "0123456789ab",
    "123e4567-e89b-12d3-a456-426614174000": "e89b",
}

# Spellings that real exports use for the same things.
OTHER_KEYS = [
    "openai_api_key", "X-API-Key", "refresh_token", "session_token", "private_key", "auth", "time_stamp", "start_time",
    "llm_response", "raw_output", "ground_truth", "final_decision", "claim_support_rate", "citation_precision_mean",
    "LLMScore", "QAScore", "GTLabel", "URLToken", "HTTPResponse", "score1", "label2", "target1", "2ndScore", "finalscore",
    "groundtruth", "goldanswer", "answerkey", "ANSWERKEY",
]  # fmt: skip
OTHER_TEXTS = {
    "API_KEY=hunter22": "hunter22",
    "Password: hunter22": "hunter22",
    '{"password": "hunter22"}': "hunter22",
    '{"target": "answer-c"}': "answer-c",
    "claim_support=0.8125": "0.8125",
    "overclaim: 1.0": "overclaim",
    "123E4567-E89B-12D3-A456-426614174000": "E89B",
    '{"score": 0.8125}': "0.8125",
    "Final answer: B": "answer: B",
    "The answer is A.": "is A",
    "Answer: A, the first": "Answer: A",
    "https://user:hunter22@example.org/v1": "hunter22",
    "Authorization: Basic aHVudGVyMjI=": "aHVudGVyMjI",
    "github_pat_11ABCDEFG0hunter22hunter22": "hunter22",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIifQ.c2lnbmF0dXJl": "eyJzdWIi",
    "xoxb-123456789012-1234567890123-hunter22": "hunter22",
}

INNOCENT = st.sampled_from(
    ["plan", "query", "artifacts", "evidence", "issues", "notes", "text", "quote", "design", "a"]
)
WRAPPERS = st.lists(st.one_of(st.just(None), INNOCENT), max_size=8)  # None wraps in a list, a name in an object
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.just("plain words")


def nested(value, wrappers):
    """A state that holds ``value`` inside the given lists and objects, with neighbours on both sides."""
    for name in wrappers:
        value = ["left", value, {"text": "right"}] if name is None else {"before": 1999, name: value, "after": "kept"}
    return {"question": "Why?", "plan": value}


# -- what never appears -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_no_forbidden_key_or_its_content_appears_at_the_top(key):
    shown = project({"question": "Why?", key: PLANTED, "answer": "none yet"})
    assert PLANTED not in shown and f'"{key}"' not in shown
    assert json.loads(shown) == {"question": "Why?", "answer": "none yet"}


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(KEYS), WRAPPERS, WRAPPERS, LEAVES)
def test_no_forbidden_key_appears_at_any_depth_whatever_it_holds(key, outside, inside, leaf):
    held = nested([PLANTED, {"text": PLANTED}, leaf], inside)
    shown = project(nested({key: held, "text": "beside"}, outside))
    assert PLANTED not in shown
    assert f'"{key}":' not in shown
    assert '"text": "beside"' in shown


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(FORBIDDEN_TEXTS)), WRAPPERS, st.booleans())
def test_no_forbidden_text_appears_at_any_depth_or_in_an_observation(text, wrappers, observed):
    sentence = f"The trial found {text} in adults."
    state = nested("nothing" if observed else sentence, wrappers)
    shown = project(state, sentence if observed else None)
    assert FORBIDDEN_TEXTS[text] not in shown
    assert "The trial found " in shown and _REDACTED in shown and "in adults." in shown


@pytest.mark.parametrize("text", sorted(FORBIDDEN_TEXTS))
def test_each_forbidden_text_is_replaced_where_it_stands(text):
    assert FORBIDDEN_TEXTS[text] not in redact(f"Seen: {text}")
    assert redact(f"Seen: {text}").startswith("Seen: [redacted]") or redact(f"Seen: {text}").startswith(
        "Seen: the [red"
    )


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_further_spellings_of_forbidden_keys_are_redacted(key):
    assert PLANTED not in project({"question": "Why?", key: PLANTED})


@pytest.mark.parametrize("text", sorted(OTHER_TEXTS))
def test_further_spellings_of_forbidden_texts_are_redacted(text):
    assert OTHER_TEXTS[text] not in project({"question": "Why?", "answer": text})


# -- what survives ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["question", "artifacts", "evidence", "answer", "citations", "issues", "verification", "status", "plan", "query",
     "question_type", "doc_id", "candidate_id", "year", "design", "text", "quote", "targeted_therapy", "scored",
     "HbA1c", "phase2", "DNARepair"],
)  # fmt: skip
def test_ordinary_keys_are_kept(key):
    assert not _forbidden_key(key)


def test_the_question_the_evidence_and_their_figures_survive_word_for_word():
    state = {
        "question": "Does vitamin C keep pain from developing?",
        "artifacts": [{"doc_id": "pmid:17606778", "year": 2007, "design": "randomised trial"}],
        "evidence": [
            {"doc_id": "pmid:17606778", "quote": "Pain in 8 of 328 (2.4%) and 10 of 99 (p=0.002); success rates."}
        ],
        "answer": "Yes, in most patients, with a score of 3 on the scale; Apgar score: 7. Basic research agrees. Answer: A trial says so.",
    }
    shown = json.loads(project(state, "kept 1 sentence"))
    assert shown == {**state, "observation": "kept 1 sentence"}


@settings(deadline=None, max_examples=100)
@given(WRAPPERS, st.text(alphabet="abcdefg αβγ'\"\\\n,.%", max_size=30))
def test_text_without_forbidden_content_comes_through_unchanged(wrappers, text):
    state = nested(text, wrappers)
    assert json.loads(project(state)) == state


def test_redaction_leaves_the_state_itself_as_it_was():
    state = {"question": "Why?", "plan": {"score": 0.25, "query": "Option B"}}
    project(state, "done")
    assert state == {"question": "Why?", "plan": {"score": 0.25, "query": "Option B"}}


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(KEYS), st.sampled_from(sorted(FORBIDDEN_TEXTS)), WRAPPERS)
def test_redacting_twice_changes_nothing_more(key, text, wrappers):
    once = redact(nested({key: 1, "text": text}, wrappers))
    assert redact(once) == once


# -- order and prefixes -----------------------------------------------------------------------------


def test_keys_keep_their_order_and_empty_ones_go_last():
    state = {"question": "Why?", "artifacts": [], "plan": {"hits": None, "query": "pain"}, "answer": "", "limit": 0}
    assert project(state).splitlines() == [
        "{",
        ' "question": "Why?",',
        ' "plan": {',
        '  "query": "pain",',
        '  "hits": null',
        " },",
        ' "limit": 0,',
        ' "artifacts": [],',
        ' "answer": ""',
        "}",
    ]


def test_the_observation_stands_at_the_end_and_replaces_a_stored_one():
    shown = json.loads(project({"observation": "old", "question": "Why?", "answer": ""}, "new"))
    assert list(shown) == ["question", "answer", "observation"] and shown["observation"] == "new"
    assert "observation" not in json.loads(project({"question": "Why?"}, ""))


TRAJECTORY = parse_trajectory(
    {
        "trajectory_id": "traj-9",
        "task_id": "risk-77",
        "x0": {"question": "Does night work go with migraine?", "artifacts": [], "evidence": [], "answer": ""},
        "steps": [
            {"action": action, "patch": patch, "observation": f"did {action}"}
            for action, patch in zip(
                STEPS,
                [
                    {"question_type": "risk"},
                    {"plan": {"query": "night migraine"}},
                    {"plan": {"query": "night migraine nurses", "checked": True}},
                    {"artifacts": [{"doc_id": "pmid:4", "year": 2004, "text": "Nurses on nights had more migraine."}]},
                    {"artifacts": [{"doc_id": "pmid:4", "year": 2004}], "evidence": [{"quote": "More migraine."}]},
                    {"answer": "It does.", "citations": ["pmid:4"]},
                    {"issues": ["claim 1 is too strong"]},
                    {"issues": None, "answer": "It may."},
                    {"verification": "supported"},
                    {},
                    {"status": "answered"},
                ],
                strict=True,
            )
        ],
    }
)
TASK = {
    "question": "Does night work go with migraine?",
    "candidates": [{"candidate_id": i, "text": f"Statement {i}."} for i in ("p", "q", "r", FALLBACK)],
}
# The first top-level key of x_k that x_{k+1} does not repeat at the same place, for k = 0 … 10.
FIRST_CHANGE = [
    "artifacts", "artifacts", "plan", "artifacts", "artifacts", "answer", "observation", "answer", "observation",
    "observation", "observation",
]  # fmt: skip


def test_consecutive_projections_share_everything_before_the_first_change():
    texts = TRAJECTORY.projected
    assert len(texts) == 12 and '"observation"' not in texts[0] and '"did finalize"' in texts[11]
    for before, after, key in zip(texts, texts[1:], FIRST_CHANGE, strict=False):
        shared = os.path.commonprefix([before, after])
        unchanged = before.split(f' "{key}":')[0]
        assert shared.startswith(unchanged), (key, before, after)


@pytest.mark.parametrize("messages", [direct_messages, lambda t, s, y: buffered_messages(t, s, "a view", y)])
def test_prompts_of_consecutive_states_share_their_prefix(messages):
    prompts = [messages(TASK, text, 0)[0]["content"] for text in TRAJECTORY.projected]
    for before, after in zip(prompts, prompts[1:], strict=False):
        shared = os.path.commonprefix([before, after])
        assert "<EVIDENCE>" in shared and '"question": "Does night work go with migraine?"' in shared
    late = os.path.commonprefix(prompts[9:])
    assert '"verification"' in late or '"evidence"' in late, "what the last steps leave alone is shared"


def test_layouts_of_one_prompt_share_the_state():
    text = TRAJECTORY.projected[5]
    prompts = [direct_messages(TASK, text, layout)[0]["content"] for layout in range(4)]
    assert text in os.path.commonprefix(prompts)


def test_the_evidence_slice_holds_what_was_retrieved_and_extracted_and_nothing_else():
    state = {"question": "Q?", "plan": {"query": "q"}, "evidence": ["A sentence."], "artifacts": [{"doc_id": "pmid:1"}]}
    text = project(state, "retrieved one document")
    assert state_slice(text, "full") == text
    assert json.loads(state_slice(text, "evidence")) == {
        "evidence": ["A sentence."],
        "artifacts": [{"doc_id": "pmid:1"}],
    }
