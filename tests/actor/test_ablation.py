"""Four arms: what each leaves out, effects worked out by hand, and the stated confidence."""

import numpy as np
import pandas as pd
import pytest

from helpers.actor import ablation as a
from helpers.actor.retrieval import LibraryRetriever
from tests.actor.test_replay import SETTING, scripted
from tests.actor.test_workflow import LIBRARY, OTHER, TASK


class Model:
    """A scripted model that states 80 percent and counts its calls."""

    def __init__(self, **answers):
        self.script, self.calls = scripted(**answers), 0

    def __call__(self, prompt, max_tokens):
        self.calls += 1
        return "80" if prompt.startswith("How likely") else self.script(prompt, max_tokens)

    def meter(self):
        return {"prompt_tokens": 100 * self.calls}


def run(*tasks, **answers):
    return a.run_arms(list(tasks), LibraryRetriever(LIBRARY), Model(**answers), SETTING)


def test_every_arm_runs_on_every_task_with_its_cost_and_its_confidence():
    found = run(TASK, OTHER)
    assert found.groupby("task_id")["arm"].apply(list).tolist() == [list(a._ARMS)] * 2
    one = found[found["task_id"] == TASK["task_id"]].set_index("arm")
    assert one["calls"].to_dict() == {"neither": 3, "planning": 4, "reflection": 3, "both": 4}
    assert (found["prompt_tokens"] == 100 * found["calls"]).all() and found["seconds"].isna().all()
    assert (found["confidence"] == 0.8).all() and (found["hard"] == 0).all()


def test_reflection_repairs_a_bad_draft_and_the_effect_is_its_own():
    bad = "Zinc definitely cures 99 of 100 colds."
    good = "Zinc lozenges shortened the common cold from 7.6 to 4.4 days."
    found = run(TASK, {**TASK, "task_id": "again"}, synthesize=bad, revise=good)
    assert found.groupby("arm")["success"].mean().to_dict() == {"both": 1, "neither": 0, "planning": 0, "reflection": 1}
    effects = a.effects(found, "success", draws=200)
    assert effects["estimate"].tolist() == [0, 1, 0] and effects["n"].tolist() == [2] * 3


def test_effects_are_the_ones_of_a_two_by_two_design():
    arms = [(0.2, 0.5, 0.3, 0.9), (0.1, 0.4, 0.4, 0.6), (0.0, 0.0, 0.3, 0.5)]
    rows = [(f"t{i}", arm, v) for i, values in enumerate(arms) for arm, v in zip(a._ARMS, values, strict=True)]
    found = a.effects(pd.DataFrame(rows, columns=["task_id", "arm", "value"]), "value", draws=500)
    n, p, r, b = np.array(arms).T
    assert found.loc["planning", "estimate"] == pytest.approx(((p + b) - (n + r)).mean() / 2)
    assert found.loc["reflection", "estimate"] == pytest.approx(((r + b) - (n + p)).mean() / 2)
    assert found.loc["interaction", "estimate"] == pytest.approx((b - p - r + n).mean())
    assert (found["low"] <= found["estimate"]).all() and (found["estimate"] <= found["high"]).all()


def test_a_task_without_all_arms_is_left_out():
    rows = [("t0", arm, 1.0) for arm in a._ARMS] + [("t1", arm, 0.0) for arm in a._ARMS] + [("t2", "both", 9.0)]
    assert a.effects(pd.DataFrame(rows, columns=["task_id", "arm", "value"]), "value", draws=50)["n"].tolist() == [2] * 3


@pytest.mark.parametrize(("text", "value"), [("85", 0.85), ("About 90.5%.", 0.905), ("100", 1.0), ("0", 0.0)])
def test_a_stated_number_is_read(text, value):
    assert a._stated_confidence(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["very likely", "", "850"])
def test_no_number_is_no_confidence(text):
    assert np.isnan(a._stated_confidence(text))
