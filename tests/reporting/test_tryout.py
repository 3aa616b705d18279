"""A typed-in step: a study of its own, and a clear word where a value does not fit."""

import pandas as pd
import pytest

from helpers.channels.channels import direct
from helpers.channels.plan import cell_messages, make_plan
from helpers.channels.prompts import direct_messages
from helpers.channels.stacks import load_stack
from helpers.reporting.tryout import one_step, sign_verdict
from helpers.study.files import DataError, write_jsonl

TEXTS = ["Up.", "Down.", "Both.", "The evidence is insufficient."]
STEP = ("Up or down?", TEXTS, {"evidence": []}, {"evidence": ["It fell."]})


def typed(folder, step=STEP, target=2, generator="smollm2-135m"):
    """The example step as a study, with changes."""
    return one_step(*step, target=target, folder=folder, generator=load_stack(generator))


def test_a_step_becomes_a_study_of_two_states(tmp_path):
    study, name, _ = typed(tmp_path)
    assert len(study.states[name]) == 2 and study.target(name) == 1
    assert "It fell." in study.states[name][1] and "It fell." not in study.states[name][0]
    row = next(make_plan([name], [1], [direct("s")], layouts=[2]).itertuples(index=False))
    assert cell_messages(row, study) == direct_messages(study.task(name), study.states[name][1], 2)


def test_forbidden_fields_of_a_typed_state_are_redacted(tmp_path):
    after = {"evidence": ["It fell."], "gold": "answer-b", "note": "final score: 1"}
    study, name, _ = typed(tmp_path, (*STEP[:3], after))
    assert "gold" not in study.states[name][1] and "final score" not in study.states[name][1]


def test_another_text_is_another_step_and_the_same_text_finds_its_views(tmp_path):
    _, name, path = typed(tmp_path)
    other = ("Up or down then?", *STEP[1:])
    assert typed(tmp_path, other)[1] != name
    write_jsonl(path, [{"trajectory_id": name, "state": 1, "kind": "ungrounded-512", "text": "a view"}])
    assert typed(tmp_path)[0].view(name, 1, "ungrounded-512") == "a view"
    assert typed(tmp_path, other)[0].views == {}


def test_another_target_keeps_the_views_and_another_generator_does_not(tmp_path):
    _, name, path = typed(tmp_path)
    write_jsonl(path, [{"trajectory_id": name, "state": 1, "kind": "ungrounded-512", "text": "a view"}])
    judged, same, _ = typed(tmp_path, target=1)
    assert same == name and judged.target(name) == 0 and judged.view(name, 1, "ungrounded-512") == "a view"
    assert typed(tmp_path, generator="qwen-0.5b")[0].views == {}


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.2, 0.1], "it keeps its sign: every channel says that it helps"),
        ([-0.2, -0.1], "it keeps its sign: every channel says that it harms"),
        ([0.2, -0.1], "it does not keep its sign: a above zero, b below"),
        ([0.2, 0.0], "a say that it helps; exactly zero: b"),
        ([0.2, -0.1, 0.0], "it does not keep its sign: a above zero, b below; exactly zero: c"),
        ([0.0, 0.0], "it moves nothing: the gain is exactly zero in every channel"),
        ([0.2, float("nan")], "b could not be read (see the completeness table), so the question stays open"),
    ],
)
def test_the_verdict_counts_signs_and_a_zero_has_none(gains, verdict):
    assert sign_verdict(pd.Series(gains, index=list("abc")[: len(gains)])) == verdict


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, " ", "QUESTION: is empty"),
        (1, TEXTS[:3], "CANDIDATES: 4 different answers are needed"),
        (1, [*TEXTS[:3], "Up."], "CANDIDATES: 4 different answers"),
        (1, [*TEXTS[:3], ""], "CANDIDATES: 4 different answers"),
        (2, "a text", "BEFORE: a state is a dict of fields"),
        (3, ["a", "b"], "AFTER: a state is a dict of fields"),
    ],
)
def test_a_value_that_does_not_fit_is_named(place, value, message, tmp_path):
    step = list(STEP)
    step[place] = value
    with pytest.raises(DataError, match=message):
        typed(tmp_path, step)
    with pytest.raises(DataError, match="TARGET: 0; say which candidate is right, 1 to 4"):
        typed(tmp_path, target=0)
