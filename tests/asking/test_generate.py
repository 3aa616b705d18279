"""Donors: same family, nearest length, chosen once and then frozen."""

import asyncio
import json
from dataclasses import replace

import pytest

from helpers.actor.freeze import NotReached, _answering, obtain_trajectories, with_answers
from helpers.actor.retrieval import LibraryRetriever
from helpers.actor.workflow import Workflow
from helpers.asking.acquire import obtain
from helpers.asking.budget import Budget
from helpers.asking.client import client_for
from helpers.asking.faults import RunStopped
from helpers.asking.generate import _choose_donors, obtain_donors, obtain_views
from helpers.asking.probe import CALLS
from helpers.channels.plan import Study
from helpers.channels.stacks import StackError
from helpers.channels.views import ENDPOINTS, view_id
from helpers.study.files import append_jsonl, read_jsonl
from helpers.study.traces import parse_trajectory
from tests.conftest import KEY, KEY_VARIABLE, held_by, loopback_stack, tiny_plan, tiny_study
from tests.rehearsal import simulate


@pytest.fixture()
def study():
    """Eleven simulated trajectories; number i has views of 10 + 3 i words, the last has none."""
    tasks, _, rows, _ = simulate.synthetic_rows(11)
    trajectories = {r["trajectory_id"]: parse_trajectory(r) for r in rows}
    names = list(trajectories)
    views = {view_id(n, s, "generated-128"): "word " * (10 + 3 * i) for i, n in enumerate(names[:-1]) for s in ENDPOINTS}
    return Study({t["task_id"]: t for t in tasks}, trajectories, views)


def test_a_donor_is_another_trajectory_of_the_same_family_with_the_nearest_length(study):
    donors = _choose_donors(study)
    names = list(study.trajectories)
    assert donors[names[0]] == names[5] and donors[names[7]] == names[2]
    for name, donor in donors.items():
        assert donor != name and study.task(donor)["family"] == study.task(name)["family"]


def test_another_run_of_the_same_task_is_no_donor(study):
    first, second = list(study.trajectories)[:2]
    one_task = {**study.task_ids, second: study.task_ids[first]}
    assert _choose_donors(study) != _choose_donors(replace(study, file=one_task))
    assert _choose_donors(replace(study, file=one_task))[first] != second
    only = {name: study.task_ids[first] for name in study.task_ids}
    assert _choose_donors(replace(study, file=only)) == {}


def test_a_trajectory_without_views_neither_gives_nor_receives(study):
    last = list(study.trajectories)[-1]
    donors = _choose_donors(study)
    assert last not in donors and last not in donors.values()


def test_a_donor_does_not_depend_on_how_many_trajectories_are_looked_at(study):
    few = dict(list(study.trajectories.items())[:2])
    chosen = _choose_donors(study)
    assert _choose_donors(replace(study, trajectories=few, file=study.task_ids)) == {name: chosen[name] for name in few}


def test_donors_are_frozen_once_and_stay_when_a_nearer_one_appears(study, tmp_path):
    path = tmp_path / "views.jsonl"
    path.touch()
    first = asyncio.run(obtain_donors(study, path, acquire="missing"))
    names = list(study.trajectories)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 2 * len(_choose_donors(study))
    nearer = {view_id(names[10], s, "generated-128"): "word " * 11 for s in ENDPOINTS}
    later = asyncio.run(obtain_donors(replace(first, views=first.views | nearer), path, acquire="missing"))
    assert _choose_donors(later)[names[0]] == names[10]
    kept = {r["trajectory_id"]: r["donor"] for r in map(json.loads, path.read_text().splitlines())}
    assert kept[names[0]] == names[5] and kept[names[10]] == names[0]


def test_a_recorded_run_writes_nothing(study, tmp_path):
    assert asyncio.run(obtain_donors(study, tmp_path / "views.jsonl")) is study
    assert not (tmp_path / "views.jsonl").exists()


def test_two_runs_at_once_freeze_every_view_once(study, endpoint, tmp_path):
    """The second run waits for the first one's lock and finds its views."""
    server, path = endpoint(latency_s=0.02), tmp_path / "views.jsonl"
    stack, few = loopback_stack(server.url), dict(list(study.trajectories.items())[:2])
    bare = replace(study, trajectories=few, views={})

    async def scene():
        runs = [obtain_views(bare, ["generated-128"], (3, 4), path=path, stack=stack, acquire="missing", progress=False) for _ in "ab"]
        return await asyncio.wait_for(asyncio.gather(*runs), 20)

    one, two = asyncio.run(scene())
    assert one.views == two.views and len(one.views) == len(path.read_text().splitlines()) == server.requests == 4


def test_no_view_is_paid_for_before_the_evaluator_is_known_to_return_log_probabilities(study, endpoint, tmp_path):
    server, bare = endpoint("content-null"), replace(study, views={})
    stack, options = loopback_stack(server.url), {"acquire": "missing", "recordings": tmp_path, "progress": False}
    with pytest.raises(StackError, match="no log-probabilities"):
        asyncio.run(obtain_views(bare, ["generated-128"], (3, 4), path=tmp_path / "views.jsonl", stack=stack, **options))
    assert server.requests == CALLS and not (tmp_path / "views.jsonl").exists()


def test_views_and_answers_share_one_budget(study, endpoint, tmp_path):
    server, budget = endpoint(), Budget(CALLS + 4)
    few = dict(list(study.trajectories.items())[:2])
    bare, stack = replace(study, trajectories=few, views={}), loopback_stack(server.url)
    found = asyncio.run(obtain_views(bare, ["generated-128"], (3, 4), path=tmp_path / "views.jsonl", stack=stack,
                                     acquire="missing", recordings=tmp_path, budget=budget, progress=False))  # fmt: skip
    assert len(found.views) == 4 and budget.calls_left == 0
    with pytest.raises(RunStopped, match="budget of 7 calls is spent"):
        asyncio.run(obtain(tiny_plan(found), found, {"loopback": stack}, tmp_path, acquire="missing", budget=budget, progress=False))
    with pytest.raises(RunStopped, match="budget of 7 calls is spent; what was answered is kept"):
        asyncio.run(obtain_views(bare, ["ungrounded-512"], (3, 4), path=tmp_path / "more.jsonl", stack=stack,
                                 acquire="missing", budget=budget, progress=False))  # fmt: skip
    assert server.requests == CALLS + 4


def test_the_actors_answers_count_against_the_budget(endpoint, tmp_path):
    server = endpoint()
    stack = loopback_stack(server.url)

    def run(model):
        return [model(f"Question {n}?", 5) for n in range(3)]

    path = tmp_path / "answers.jsonl"
    with pytest.raises(RunStopped, match="budget of 2 calls is spent; what was answered is kept"):
        asyncio.run(with_answers(run, path, stack, acquire="missing", budget=Budget(2)))
    assert server.requests == len(read_jsonl(path)) == 2
    assert len(asyncio.run(with_answers(run, path, stack, acquire="missing"))) == 3 and server.requests == 3


def test_two_runs_that_want_the_same_answers_ask_once(endpoint, tmp_path):
    server = endpoint(latency_s=0.02)
    stack, path = loopback_stack(server.url), tmp_path / "answers.jsonl"

    def run(model):
        return [model(f"Question {n}?", 5) for n in range(3)]

    async def scene():
        return await asyncio.wait_for(asyncio.gather(*(with_answers(run, path, stack, acquire="missing") for _ in "ab")), 20)

    one, two = asyncio.run(scene())
    assert one == two and server.requests == len(read_jsonl(path)) == 3


def test_where_every_task_has_its_trajectory_no_key_is_needed(study, tmp_path, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    path, stack = tmp_path / "trajectories.jsonl", loopback_stack("http://127.0.0.1:9/v1")
    tasks = list(study.tasks.values())[:2]
    for task in tasks:
        append_jsonl(path, {"task_id": task["task_id"]})
    freeze = {"relevance": 1.0, "library": None, "progress": False}
    assert asyncio.run(obtain_trajectories(tasks, None, path, stack, **freeze)) == 0
    with pytest.raises(StackError, match="no API key"):
        asyncio.run(obtain_trajectories(list(study.tasks.values())[:3], None, path, stack, **freeze))


@pytest.mark.parametrize(("fault", "error"), [("unauthorized", NotReached), ("bad-request", RuntimeError)])
def test_only_a_refused_request_is_left_to_the_actors_fallback(fault, error, endpoint):
    server = endpoint(fault, first=99)
    stack = loopback_stack(server.url)

    async def scene():
        async with client_for(stack) as client:
            await asyncio.to_thread(_answering(stack, client), "Why?", 5)

    with pytest.raises(error) as caught:
        asyncio.run(scene())
    assert type(caught.value) is error and KEY not in held_by(caught.value)


UNREADABLE = ("html", "empty-body", "truncated-json", "invalid-json", "no-choices", "error-in-200", "reset")


@pytest.mark.parametrize("fault", UNREADABLE)
def test_an_answer_that_cannot_be_read_is_asked_again_for_a_view_and_for_the_actor(fault, endpoint, tmp_path):
    server = endpoint(fault, first=1)
    stack, study = loopback_stack(server.url), replace(tiny_study(), views={})
    path = tmp_path / "views.jsonl"
    found = asyncio.run(obtain_views(study, ["generated-128"], (3,), path=path, stack=stack, acquire="missing", progress=False))
    assert len(found.views) == len(read_jsonl(path)) == len(study.trajectories) and KEY not in path.read_text()
    assert server.requests == 2 * len(found.views)  # the fault holds for the first request of each question
    answers = asyncio.run(with_answers(lambda model: model("Why?", 5), tmp_path / "answers.jsonl", stack, acquire="missing"))
    assert answers and server.requests == 2 * len(found.views) + 2


def test_a_message_of_an_odd_type_is_no_text(endpoint, tmp_path):
    stack, study = loopback_stack(endpoint("odd-types", first=99).url), replace(tiny_study(), views={})
    path = tmp_path / "views.jsonl"
    found = asyncio.run(obtain_views(study, ["generated-128"], (3,), path=path, stack=stack, acquire="missing", progress=False))
    assert found.views == {} and not path.exists()


def test_every_attempt_for_a_text_counts_against_the_budget(endpoint, tmp_path):
    server, budget = endpoint("unavailable", first=99), Budget(4)
    stack = loopback_stack(server.url)
    with pytest.raises(RunStopped, match="budget of 4 calls is spent"):
        asyncio.run(with_answers(lambda model: model("Why?", 5), tmp_path / "a.jsonl", stack, acquire="missing", budget=budget))
    assert server.requests == budget.used == 4


def test_a_spent_budget_stops_the_actor_instead_of_sending_it_to_its_fallback(endpoint, tmp_path):
    server = endpoint()
    tasks, library, _, _ = simulate.synthetic_rows(2)

    def run(model):
        return [Workflow(LibraryRetriever(library), model, relevance=1.0).run(task) for task in tasks]

    with pytest.raises(RunStopped, match="budget of 3 calls is spent"):
        asyncio.run(with_answers(run, tmp_path / "a.jsonl", loopback_stack(server.url), acquire="missing", budget=Budget(3)))
    assert server.requests == 3


def test_what_is_served_on_this_machine_is_asked_without_a_proxy(endpoint, monkeypatch):
    server = endpoint()
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    stack = loopback_stack(server.url)

    async def scene():
        async with client_for(stack) as client:
            return await asyncio.to_thread(_answering(stack, client), "Why?", 5)

    assert asyncio.run(scene())[0] and server.requests == 1


def test_an_unknown_mode_is_refused_before_anything_is_asked(endpoint, tmp_path):
    server = endpoint()
    stack, bare = loopback_stack(server.url), replace(tiny_study(), views={})
    path = tmp_path / "views.jsonl"
    for asking in (
        obtain_views(bare, ["generated-128"], (3,), path=path, stack=stack, acquire="never"),
        obtain_donors(bare, path, acquire="never"),
        with_answers(lambda model: model("Why?", 5), path, stack, acquire="never"),
    ):
        with pytest.raises(ValueError, match="ACQUIRE = 'never'; use one of recorded"):
            asyncio.run(asking)
    assert server.requests == 0 and not path.exists()
