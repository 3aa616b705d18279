"""Recording known-answer states: batch by batch, verdicts first, and nothing asked twice."""

import asyncio

import pytest

from helpers.asking import instrument as module
from helpers.asking.instrument import known_answer_study, record
from helpers.asking.recordings import Recordings
from helpers.channels.known_answer_plan import instrument, parts
from helpers.channels.plan import Study, add_keys
from helpers.channels.stacks import load_stacks
from helpers.study.known_answers import DOSES, known_answers
from tests.conftest import loopback_stack, tiny_task


def tiny_known():
    tasks = [
        tiny_task(f"risk-0{n}", "risk", topic, "answer-b")
        for n, topic in enumerate(["Night cramp", "Sore feet", "Thirst"])
    ]
    texts = {task["task_id"]: f"{task['task_id'][-1]} of 40 walkers." for task in tasks}
    built = known_answers(tasks, texts=texts)
    return Study({task["task_id"]: task for task in tasks}, {t.trajectory_id: t for t in built})


def test_the_plan_has_every_dose_under_every_instrument_and_its_parts_are_disjoint():
    plan = instrument(["known-a", "known-b"], "s1")
    assert sorted(plan["state"].unique()) == list(range(len(DOSES))) and not plan.duplicated().any()
    assert sum(len(instrument(["known-a", "known-b"], "s1", only=name)) for name in parts("s1")) == len(plan)
    verdict = plan[["template", "wording", "readout"]].drop_duplicates().apply(tuple, axis=1).tolist()
    assert verdict[:3] == [("direct", "plain", "support"), ("direct", "plain", "joint"), ("direct", "paper", "joint")]
    assert set(instrument(["known-a"], "s1", small=True)["template"]) == {"direct"}


def test_a_recording_goes_part_by_part_within_a_batch_and_asks_nothing_twice(endpoint, tmp_path, monkeypatch):
    sections = []
    asked = module.ask_missing

    async def noted(plan, *arguments, **options):
        sections.append((tuple(plan["trajectory_id"].unique()), plan["template"].iloc[0], plan["wording"].iloc[-1]))
        return await asked(plan, *arguments, **options)

    monkeypatch.setattr(module, "ask_missing", noted)
    url = endpoint(shape="openai").url
    stack, study = loopback_stack(url), tiny_known()

    def run():
        return asyncio.run(record(stack, {"loopback": stack}, study, tmp_path, views=tmp_path / "views.jsonl", batch=2))

    run()
    names = list(study.trajectories)
    first, second = tuple(names[:2]), tuple(names[2:])
    assert [s[:2] for s in sections[:4]] == [
        (first, "direct"),
        (first, "matched"),
        (second, "direct"),
        (second, "matched"),
    ]
    count = Recordings(tmp_path, "loopback").table(["key"]).num_rows
    views = (tmp_path / "views.jsonl").read_text().count("\n")
    run()
    assert Recordings(tmp_path, "loopback").table(["key"]).num_rows == count
    assert (tmp_path / "views.jsonl").read_text().count("\n") == views == 2 * len(DOSES) * len(names)


def test_the_development_study_has_24_tasks_with_all_doses_and_no_analysed_one(tmp_path):
    study = known_answer_study(first=24, views=tmp_path / "none.jsonl")
    assert len(study.trajectories) == 24 and all(len(t.states) == len(DOSES) for t in study.trajectories.values())
    numbers = {int(name.rsplit("-", 1)[1]) for name in study.trajectories}
    assert min(numbers) == 13
    plan = instrument(list(study.trajectories), "qwen-1.5b", only="direct")
    assert add_keys(plan, study, load_stacks())["key"].is_unique


@pytest.mark.parametrize("part", ["matched_plain", "buffered"])
def test_cells_without_a_frozen_view_wait_for_it(part):
    study = tiny_known()
    stack = loopback_stack("http://127.0.0.1:9/v1")
    keyed = add_keys(instrument(list(study.trajectories), "loopback", only=part), study, {"loopback": stack})
    assert keyed["key"].isna().any()
    assert keyed.loc[keyed["view"] == "quote", "key"].notna().all()
