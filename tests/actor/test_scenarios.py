"""Regression scenarios: the workflow's behaviour on each known disturbance is what the file says."""

import json

import pytest

from helpers.actor.scenarios import _NAMES, behaviour, load_scenarios
from helpers.reporting.params import ROOT
from helpers.study.files import DataError, write_jsonl

SCENARIOS = load_scenarios(ROOT / "data/scenarios.jsonl")


def test_every_kind_of_disturbance_has_its_scenario():
    assert sorted(s["scenario"] for s in SCENARIOS) == sorted(_NAMES)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s["scenario"].replace(" ", "-"))
def test_the_workflow_behaves_as_recorded(scenario):
    found = behaviour(scenario)
    assert len(scenario["expect"]) >= 7
    assert {name: found[name] for name in scenario["expect"]} == scenario["expect"]


def test_an_instruction_inside_a_document_stays_data():
    (scenario,) = (s for s in SCENARIOS if s["scenario"] == "adversarial distractor")
    harmless = {**scenario, "answers": {**scenario["answers"], "synthesize": "Zinc lozenges are about the common cold in adults."}}
    found = behaviour(harmless)
    assert found["success"] and "Ignore" not in found["answer"], "nothing but the model can follow the instruction"


def test_a_broken_row_is_named(tmp_path):
    path = tmp_path / "scenarios.jsonl"
    write_jsonl(path, [SCENARIOS[0], {**SCENARIOS[1], "scenario": "bad weather"}])
    with pytest.raises(DataError, match="line 2: a scenario of stale memory"):
        load_scenarios(path)
    assert json.loads(path.read_text().splitlines()[0]) == SCENARIOS[0]
