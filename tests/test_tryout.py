"""A typed-in step: a study of its own, and a clear word where a value does not fit."""

import pytest

from helpers.channels import direct
from helpers.plan import cell_messages, make_plan
from helpers.prompts import direct_messages
from helpers.tasks import DataError, write_jsonl
from helpers.tryout import one_step

TEXTS = ["Up.", "Down.", "Both.", "The evidence is insufficient."]
STEP = ("Up or down?", TEXTS, 2, {"evidence": []}, {"evidence": ["It fell."]})


def test_a_step_becomes_a_study_of_two_states(tmp_path):
    study, name = one_step(*STEP, tmp_path)
    assert len(study.states[name]) == 2 and study.target(name) == 1
    assert "It fell." in study.states[name][1] and "It fell." not in study.states[name][0]
    row = next(make_plan([name], [1], [direct("s")], layouts=[2]).itertuples(index=False))
    assert cell_messages(row, study) == direct_messages(study.task(name), study.states[name][1], 2)


def test_forbidden_fields_of_a_typed_state_are_redacted(tmp_path):
    study, name = one_step(*STEP[:4], {"evidence": ["It fell."], "gold": "answer-b", "note": "final score: 1"}, tmp_path)
    assert "gold" not in study.states[name][1] and "final score" not in study.states[name][1]


def test_another_text_is_another_step_and_the_same_text_finds_its_views(tmp_path):
    _, name = one_step(*STEP, tmp_path)
    _, other = one_step("Up or down then?", *STEP[1:], tmp_path)
    assert name != other
    write_jsonl(tmp_path / f"{name}.jsonl", [{"trajectory_id": name, "state": 1, "kind": "ungrounded-512", "text": "a view"}])
    assert one_step(*STEP, tmp_path)[0].view(name, 1, "ungrounded-512") == "a view"
    assert one_step("Up or down then?", *STEP[1:], tmp_path)[0].views == {}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, " ", "QUESTION: is empty"),
        (1, TEXTS[:3], "CANDIDATES: 4 different answers are needed"),
        (1, [*TEXTS[:3], "Up."], "CANDIDATES: 4 different answers"),
        (1, [*TEXTS[:3], ""], "CANDIDATES: 4 different answers"),
        (2, 0, "TARGET: 0; say which candidate is right, 1 to 4"),
        (3, "a text", "BEFORE: a state is a dict of fields"),
        (4, ["a", "b"], "AFTER: a state is a dict of fields"),
    ],
)
def test_a_value_that_does_not_fit_is_named(place, value, message, tmp_path):
    step = list(STEP)
    step[place] = value
    with pytest.raises(DataError, match=message):
        one_step(*step, tmp_path)
