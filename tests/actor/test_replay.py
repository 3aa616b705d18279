"""Causal debugging: one factor a replay, effects that can be predicted, and influence beside exact refits."""

import pytest

from helpers.actor import replay as d
from helpers.actor import scenarios
from helpers.actor.retrieval import LibraryRetriever
from helpers.actor.scenarios import _PROMPTS
from helpers.actor.workflow import _ABSTAIN, Workflow
from tests.actor.test_workflow import GOOD, LIBRARY, TASK

SETTING = {"relevance": 1.0}
STALE = {"doc_id": "pmid:503", "year": 2012, "design": "review", "text": LIBRARY[2]["summary"]}


def scripted(**answers):
    """A model that answers well, but for what is given."""
    return scenarios.scripted(GOOD | answers)


def replay(*interventions, ask=None, setting=SETTING):
    return d.replay(TASK, LibraryRetriever(LIBRARY), ask or scripted(), setting, *interventions)


def failed(row):
    return not row["success"]


# -- replays ----------------------------------------------------------------------------------------


def test_without_an_intervention_a_replay_is_the_workflow():
    assert replay() == Workflow(LibraryRetriever(LIBRARY), scripted(), **SETTING).run(TASK)


@pytest.mark.parametrize(
    ("intervention", "step", "patch"),
    [
        (d._Intervention("other plan", "plan", {"plan": {"query": "honey cough"}}), "plan", {"plan": {"query": "honey cough"}}),
        (d._Intervention("stale note", "documents", {"artifacts": [STALE]}), "retrieve", {"artifacts": [STALE]}),
        (d._Intervention("a guess", "draft", {"answer": "Maybe so.", "citations": []}), "synthesize", {"answer": "Maybe so.", "citations": []}),
    ],
)
def test_an_intervention_sets_one_step_and_leaves_those_before_it_alone(intervention, step, patch):
    baseline, patched = replay(), replay(intervention)
    before = [s["action"] for s in baseline["steps"]].index(step)
    assert patched["steps"][before]["patch"] == patch
    assert patched["steps"][:before] == baseline["steps"][:before]


def test_the_ranking_and_the_audit_threshold_can_be_set_too():
    assert replay()["steps"][3]["patch"]["artifacts"][0]["doc_id"] == "pmid:501"
    assert replay(d._Intervention("nothing found", "ranking", lambda hits: []))["steps"][3]["patch"] == {}
    strict = replay(d._Intervention("strict audit", "audit", 1.01))
    assert "issues" in strict["steps"][6]["patch"] and "issues" not in replay()["steps"][6]["patch"]


def test_the_changes_that_make_sense_depend_on_the_library_and_on_what_was_extracted():
    article = LIBRARY[0]
    every = {c.name: c for c in d.causes(TASK, article, replay())}
    assert list(every) == ["the question's words", "a lax audit", "the right document", "the article first", "a quoting draft"]
    assert every["the right document"].value["artifacts"][0]["text"] == article["summary"]
    hits = [{"doc_id": "x"}, {"doc_id": article["doc_id"]}, {"doc_id": "y"}]
    assert [h["doc_id"] for h in every["the article first"].value(hits)] == [article["doc_id"], "x", "y"]
    for change in every.values():
        assert replay(change)["steps"], "each of them can be replayed"
    nothing = replay(d._Intervention("nothing found", "ranking", lambda hits: []))
    assert [c.name for c in d.causes(TASK, None, nothing)] == ["the question's words", "a lax audit"]


def test_two_changes_at_once_are_refused():
    two = [d._Intervention("stale note", "documents", {"artifacts": [STALE]}), d._Intervention("strict", "audit", 1.0)]
    with pytest.raises(d.TwoFactors, match="stale note, strict: one replay changes one factor"):
        replay(*two)
    with pytest.raises(ValueError, match="factor 'mood'; use one of plan, documents, ranking, draft, audit"):
        replay(d._Intervention("x", "mood", 1))


def test_a_model_that_answers_differently_each_time_is_found_out():
    moods = iter(range(100))

    def fickle(prompt, max_tokens):
        return f"zinc lozenges cold number {next(moods)}" if prompt.startswith(_PROMPTS["plan"]) else scripted()(prompt, max_tokens)

    with pytest.raises(d.NotDeterministic, match="step plan differs although only synthesize was set"):
        d._same_until(replay(ask=fickle), replay(ask=fickle), "synthesize")


# -- causes -----------------------------------------------------------------------------------------


def test_the_cause_of_a_failure_is_ranked_first():
    blank = scripted(synthesize="Zinc definitely cures 99 of 100 colds.", revise="Zinc definitely cures 99 of 100 colds.")
    causes = [
        d._Intervention("another plan", "plan", {"plan": {"query": "zinc lozenges common cold"}}),
        d._Intervention("a quoting draft", "draft", {"answer": GOOD["synthesize"], "citations": ["pmid:501"]}),
        d._Intervention("a lax audit", "audit", 0.0),
    ]
    found = d.debug_failure(TASK, LibraryRetriever(LIBRARY), blank, SETTING, failed=failed, interventions=causes)
    assert found.loc[0, "intervention"] == "a quoting draft" and found["effect"].tolist() == [1, 0, 0]
    assert found.loc[0, "changed"].startswith("synthesize")


def test_a_run_that_does_not_fail_is_not_debugged():
    with pytest.raises(ValueError, match="does not fail, so there is nothing to debug"):
        d.debug_failure(TASK, LibraryRetriever(LIBRARY), scripted(), SETTING, failed=failed, interventions=[])


# -- remembered answers -----------------------------------------------------------------------------


def test_answers_are_kept_and_replayed_without_a_model(tmp_path):
    path, calls = tmp_path / "answers.jsonl", []

    def ask(prompt, max_tokens):
        calls.append(prompt)
        return scripted()(prompt, max_tokens), {"prompt_tokens": len(prompt), "seconds": 0.5}

    model = d.Remembered(path, ask)
    first = replay(ask=model)
    assert len(calls) == len(set(calls)) > 0
    again = d.Remembered(path)
    assert replay(ask=again) == first and again.meter() == model.meter()
    assert again.meter() == {"prompt_tokens": sum(map(len, calls)), "seconds": 0.5 * len(calls)}
    with pytest.raises(d.NotAnswered, match="no answer to the prompt .* ACQUIRE"):
        d.Remembered(path)("Another prompt", 5)
    with pytest.raises(d.NotAnswered):
        replay(d._Intervention("stale note", "documents", {"artifacts": [STALE]}), ask=d.Remembered(path))


# -- actors with a component left out ---------------------------------------------------------------


def test_an_actor_without_planning_searches_with_the_questions_words_and_asks_no_model_for_them():
    run = Workflow(LibraryRetriever(LIBRARY), scripted(plan="honey cough"), **SETTING, leave_out=["planning"]).run(TASK)
    assert run["steps"][1]["patch"]["plan"]["query"].split()[:2] == ["zinc", "lozenge"] and run["steps"][1]["cost"] == {"calls": 0}
    assert run["steps"][2]["patch"] == {} and run["success"]


def test_an_actor_without_reflection_keeps_a_bad_draft():
    bad = scripted(synthesize="Zinc definitely cures 99 of 100 colds.", revise=_ABSTAIN)
    run = Workflow(LibraryRetriever(LIBRARY), bad, **SETTING, leave_out=["reflection"]).run(TASK)
    assert run["steps"][6]["patch"] == run["steps"][7]["patch"] == {} and "99" in run["steps"][5]["patch"]["answer"]
    assert not run["success"]
    with pytest.raises(ValueError, match="use planning, reflection"):
        Workflow(LibraryRetriever(LIBRARY), bad, **SETTING, leave_out=["memory"])


def test_a_meter_is_read_before_and_after_each_step():
    used = {"tokens": 0}

    def ask(prompt, max_tokens):
        used["tokens"] += 10
        return scripted()(prompt, max_tokens)

    run = Workflow(LibraryRetriever(LIBRARY), ask, **SETTING, meter=lambda: dict(used)).run(TASK)
    assert [s["cost"].get("tokens") for s in run["steps"]][:4] == [10, 10, 0, 0]
    assert sum(s["cost"]["tokens"] for s in run["steps"]) == used["tokens"] == 10 * sum(s["cost"]["calls"] for s in run["steps"])
