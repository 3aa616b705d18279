"""From a plan to its recordings: killed, doubled, offline, and in new waves."""

import asyncio
import os
import random
import signal
import time
from dataclasses import replace

import pandas as pd
import pytest

from helpers.asking.acquire import _fresh_waves, check_mode, obtain
from helpers.asking.probe import CALLS
from helpers.asking.recordings import Recordings
from helpers.asking.run import missing_cells
from helpers.channels.plan import add_keys
from helpers.channels.stacks import StackError
from helpers.measuring.cells import lookup
from tests.conftest import (
    KEY,
    KEY_VARIABLE,
    joint_and_binary,
    loopback_stack,
    obtained,
    start_child,
    tiny_plan,
    tiny_study,
)
from tests.rehearsal.endpoint import prompt_id


def big_plan(study):
    return tiny_plan(study, states=(2, 3, 4, 5), channels=joint_and_binary())


def record(url, folder, key):
    """In a child process: ask everything that is missing of the big plan."""
    os.environ[KEY_VARIABLE] = key
    study = tiny_study()
    obtained(big_plan(study), study, loopback_stack(url, concurrency=6), folder, acquire="missing")


def questions(plan, study, stack, folder):
    """``{key: prompt id}`` of everything that is not recorded in a folder."""
    cells = missing_cells(add_keys(plan, study, {"loopback": stack}), study, stack, Recordings(folder, "loopback"))
    return {fields["key"]: prompt_id(body) for fields, body in cells}


def test_killed_at_random_moments_nothing_is_lost_and_nothing_recorded_is_asked_again(study, endpoint, tmp_path):
    server = endpoint(latency_s=0.02)
    plan, stack, store = big_plan(study), loopback_stack(server.url, concurrency=6), Recordings(tmp_path, "loopback")
    prompts = questions(plan, study, stack, tmp_path)
    draw, kills = random.Random(20260716), 0
    for _ in range(3):
        before, asked = store.keys(), dict(server.asked)
        goal = server.answered.total() + draw.randint(5, 45)
        child = start_child(record, server.url, str(tmp_path), KEY)
        while server.answered.total() < goal and child.is_alive():
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        child.kill()
        child.join(30)
        kills += child.exitcode == -signal.SIGKILL
        assert before <= store.keys()
        assert all(server.asked[prompts[key]] == asked[prompts[key]] for key in before)
    assert kills == 3 and 10 < len(store.keys()) < 160
    recorded = store.keys()
    asked = {key: server.asked[prompts[key]] for key in recorded}
    _, table = obtained(plan, study, stack, tmp_path, acquire="missing")
    assert set(table["key"].to_pylist()) == set(prompts) and table.num_rows == 160
    assert all(server.asked[prompts[key]] == n for key, n in asked.items())
    assert max(server.asked[p] for p in prompts.values()) <= 1 + kills


def test_two_processes_at_once_ask_every_question_once(study, endpoint, tmp_path):
    server = endpoint(latency_s=0.01)
    prompts = questions(big_plan(study), study, loopback_stack(server.url), tmp_path)
    children = [start_child(record, server.url, str(tmp_path), KEY) for _ in range(2)]
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0] and server.requests == 160 + CALLS
    assert Recordings(tmp_path, "loopback").keys() == set(prompts)
    assert all(server.asked[p] == 1 for p in prompts.values())


def test_two_runs_in_one_event_loop_take_turns(study, endpoint, tmp_path, capsys):
    server = endpoint(latency_s=0.01)
    stack = loopback_stack(server.url)

    async def scene():
        runs = [
            obtain(tiny_plan(study), study, {"loopback": stack}, tmp_path, acquire="missing", progress=False)
            for _ in range(2)
        ]
        return await asyncio.wait_for(asyncio.gather(*runs), 20)

    (_, first), (_, second) = asyncio.run(scene())
    assert first.num_rows == 16 and second.num_rows == 16 and server.requests == 16 + CALLS
    assert "another run is asking loopback; waiting for it" in capsys.readouterr().out


def test_a_fully_recorded_run_needs_no_endpoint_and_no_key(study, endpoint, tmp_path, monkeypatch):
    server = endpoint()
    stack = loopback_stack(server.url)
    _, table = obtained(tiny_plan(study), study, stack, tmp_path, acquire="missing")
    Recordings(tmp_path, "loopback").export()
    server.__exit__()
    server.__exit__ = lambda: None
    monkeypatch.delenv(KEY_VARIABLE)
    for mode in ("missing", "recorded"):
        plan, again = obtained(tiny_plan(study), study, stack, tmp_path, acquire=mode)
        assert again.equals(table) and (lookup(plan, again) >= 0).all()


def test_recorded_never_asks_and_leaves_cells_missing(study, endpoint, tmp_path):
    server = endpoint()
    plan, table = obtained(tiny_plan(study), study, loopback_stack(server.url), tmp_path)
    assert server.requests == 0 and table.num_rows == 0 and (lookup(plan, table) == -1).all()


def test_missing_without_a_key_stops_before_anything_is_asked(study, endpoint, tmp_path, monkeypatch):
    server = endpoint()
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(StackError, match="no API key. Set the environment variable ASV_TEST_KEY"):
        obtained(tiny_plan(study), study, loopback_stack(server.url), tmp_path, acquire="missing")
    assert server.requests == 0


def test_fresh_asks_the_whole_plan_again_in_a_wave_of_its_own(study, endpoint, tmp_path):
    server = endpoint()
    stack, plan = loopback_stack(server.url), tiny_plan(study, states=(4,))
    obtained(plan, study, stack, tmp_path, acquire="missing")
    keyed, table = obtained(plan, study, stack, tmp_path, acquire="fresh")
    assert set(keyed["wave"]) == {1} and sorted(set(table["wave"].to_pylist())) == [0, 1] and table.num_rows == 16
    assert set(_fresh_waves(plan, [table])["wave"]) == {2}


def test_an_unknown_mode_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match="ACQUIRE = 'live'; use one of recorded, missing, fresh"):
        check_mode("live")


def test_the_section_travels_with_the_recording(study, endpoint, tmp_path):
    stack = loopback_stack(endpoint().url)
    _, table = obtained(
        tiny_plan(study, states=(4,)), study, stack, tmp_path, acquire="missing", section="global_replay"
    )
    assert set(table["section"].to_pylist()) == {"global_replay"}


def test_every_shape_of_answer_goes_end_to_end(study, endpoint, tmp_path):
    for shape in ("openai", "deepseek", "llamacpp"):
        server = endpoint("all", shape=shape, share=0.1, seed=4)
        stack = loopback_stack(server.url, timeout_s=0.5)
        _, table = obtained(tiny_plan(study, states=(4,)), study, stack, tmp_path / shape, acquire="missing")
        assert table.num_rows >= 6 and set(table["cached_tokens"].to_pylist()) - {None}


def test_two_names_for_one_evaluator_are_refused(study, tmp_path):
    stacks = {name: loopback_stack("http://127.0.0.1:9/v1", name=name, concurrency=n) for name, n in (("one", 2), ("two", 4))}
    plan = pd.concat([tiny_plan(study, states=(4,)).assign(stack=name) for name in stacks])
    with pytest.raises(ValueError, match="stacks one and two are one evaluator"):
        asyncio.run(obtain(plan, study, stacks, tmp_path))
    apart = stacks | {"two": replace(stacks["two"], model="tiny-2")}
    assert len(asyncio.run(obtain(plan, study, apart, tmp_path))[0]) == len(plan)
