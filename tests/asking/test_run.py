"""The evaluator over real HTTP: every fault ends as an answer, a missing cell with its reason, or a clean stop."""

import asyncio
import http.client
import json
import logging
import math
import os
import resource
import threading
import time
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openai
import pytest

from helpers.asking.answers import _first_alternatives, parse_answer
from helpers.asking.budget import Budget
from helpers.asking.client import _checked_url, api_key, client_for
from helpers.asking.faults import RunStopped, Unusable, _retry_after, shown
from helpers.asking.pace import Pace
from helpers.asking.recordings import Recordings
from helpers.asking.run import missing_cells
from helpers.channels.plan import _request_key, add_keys, request_body
from helpers.channels.stacks import StackError
from helpers.measuring.cells import read_cells
from helpers.measuring.labels import ANOTHER_MODEL, JOINT_LABELS, NOT_RETURNED, SENTINEL, label_matrix, read_labels
from helpers.study.files import DataError
from tests.conftest import (
    KEY,
    KEY_VARIABLE,
    ask,
    held_by,
    joint_and_binary,
    loopback_stack,
    run_child,
    tiny_plan,
    tiny_study,
)
from tests.rehearsal.endpoint import FAULTS, PASSING, SENTINELS, Endpoint, prompt_id

ENDS = {
    "unauthorized": "refuses the key",
    "forbidden": "refuses the key",
    "insufficient-quota": "cannot serve this run",
    "insufficient-balance": "cannot serve this run",
    "unknown-model": "cannot serve this run",
    "long-wait": "asks to wait 86,400 s",
}
REFUSED = {"bad-request": "HTTP 400", "content-filter-400": "HTTP 400", "content-filter": "content filter"}
WITHOUT_LOGPROBS = (
    "logprobs-null",
    "logprobs-missing",
    "logprobs-empty",
    "content-null",
    "content-empty",
    "top-logprobs-null",
    "top-logprobs-empty",
    "tokens-arrays",
    "text-logprobs",
)
READABLE = (
    "second-token",
    "null-alternative",
    "null-message",
    "odd-types",
    "wrong-model",
    "duplicate-id",
    "missing-id",
    "no-usage",
    "lone-surrogate",
    "key-echo",
)


def readings(table):
    return [
        read_labels(t, v, JOINT_LABELS)
        for t, v in zip(table["tokens"].to_pylist(), table["logprobs"].to_pylist(), strict=True)
    ]


def everything_written(folder):
    return b"".join(p.read_bytes() for p in Path(folder).rglob("*") if p.is_file())


# -- healthy runs, order, pace -----------------------------------------------------------------------


def test_every_cell_is_asked_once_and_recorded_as_received(study, endpoint, tmp_path):
    server = endpoint(latency_s=0.01)
    stack = loopback_stack(server.url)
    run, error = ask(tiny_plan(study, channels=joint_and_binary()), study, stack, tmp_path)
    table = Recordings(tmp_path, "loopback").table()
    assert error is None and run.written == run.budget.used == table.num_rows == 80
    assert set(server.asked.values()) == {1}
    first = table.slice(0, 1).to_pylist()[0]
    assert first["returned_model"] == "tiny-1" and first["fingerprint"] == "fp_loopback" and len(first["tokens"]) == 20
    assert first["prompt_tokens"] > 100 and first["completion_tokens"] == 1 and first["seconds"] >= 0.01


def test_concurrency_grows_to_the_limit_of_the_stack_and_not_beyond(study, endpoint, tmp_path):
    server = endpoint(latency_s=0.05)
    ask(tiny_plan(study, channels=joint_and_binary()), study, loopback_stack(server.url, concurrency=7), tmp_path)
    assert server.most_at_once == 7


def test_a_limit_of_one_asks_one_after_the_other(study, endpoint, tmp_path):
    server = endpoint(latency_s=0.005)
    ask(tiny_plan(study), study, loopback_stack(server.url, concurrency=1), tmp_path)
    assert server.most_at_once == 1


def test_a_rate_limit_cuts_the_pace_and_a_server_fault_pauses_its_growth():
    pace = Pace(most=64, limit=16)
    pace.overloaded(0.5)
    pace.overloaded(0.2)  # of the same burst: cut once, and the longer pause stays
    assert (pace.limit, pace.cuts) == (8.0, 1) and 0.3 < pace.paused_until - time.monotonic() <= 0.5
    pace.went_well()
    assert pace.limit == 8.0
    other = Pace(most=64, limit=5)
    other.went_well()
    other.fault()
    other.went_well()
    assert other.limit == 6.0


def test_a_cancelled_wait_for_a_slot_does_not_swallow_the_turn_of_the_next():
    async def scene():
        pace, order = Pace(most=1, limit=1), []

        async def take(name):
            async with pace.slot():
                order.append(name)
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(take(n)) for n in "abc"]
        await asyncio.sleep(0.002)
        tasks[1].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 1)
        return order, pace.in_flight

    assert asyncio.run(scene()) == (["a", "c"], 0)


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({}, None),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_retry_after_is_read_in_seconds_and_milliseconds(headers, seconds):
    assert _retry_after(SimpleNamespace(headers=headers)) == seconds


def test_retry_after_is_read_as_a_date():
    headers = {"retry-after": formatdate(time.time() + 40, usegmt=True)}
    assert 37 < _retry_after(SimpleNamespace(headers=headers)) <= 40


def test_retry_after_is_honoured(study, endpoint, tmp_path):
    server = endpoint("rate-limit-wait")
    arrived = []
    reply = server.reply
    server.reply = lambda body, key: (arrived.append((prompt_id(body), time.monotonic())), reply(body, key))[1]
    plan = tiny_plan(study, states=(3,)).head(3)
    ask(plan, study, loopback_stack(server.url, concurrency=3), tmp_path)
    times = {}
    for name, at in arrived:
        times.setdefault(name, []).append(at)
    assert all(len(each) == 2 and each[1] - each[0] >= 1.0 for each in times.values())


# -- faults that pass --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", sorted(set(PASSING) - {"time-out", "slow-drip", "rate-limit-wait"}))
def test_a_passing_fault_is_tried_again_and_the_cell_is_answered(fault, study, endpoint, tmp_path):
    server = endpoint(fault, first=2)
    run, error = ask(tiny_plan(study, states=(4,)), study, loopback_stack(server.url), tmp_path)
    assert error is None and run.written == 8 and not run.failures
    assert set(server.asked.values()) == ({1} if fault == "slow" else {3})


@pytest.mark.parametrize("fault", ["time-out", "slow-drip"])
def test_an_answer_that_does_not_come_in_time_is_asked_again(fault, study, endpoint, tmp_path):
    server = endpoint(fault)
    run, error = ask(tiny_plan(study, states=(4,)), study, loopback_stack(server.url, timeout_s=0.4), tmp_path)
    assert error is None and run.written == 8 and set(server.asked.values()) == {2}


def test_faults_that_do_not_pass_leave_cells_missing_and_only_those_are_asked_again(study, tmp_path, endpoint):
    bad = endpoint("server-error", share=0.1, first=99, seed=3)
    stack = loopback_stack(bad.url)
    plan = tiny_plan(study, states=(1, 2, 3, 4))
    run, error = ask(plan, study, stack, tmp_path, attempts=2)
    failed = [p for p, n in bad.asked.items() if n > 1]
    store = Recordings(tmp_path, "loopback")
    assert (
        error is None and 0 < len(failed) < 7 and len(run.failures) == len(failed) and run.written == 32 - len(failed)
    )
    assert all("HTTP 500" in reason for reason in store.failures().values()) and len(store.failures()) == len(failed)
    bad.faults = ()
    before = dict(bad.asked)
    again, error = ask(plan, study, stack, tmp_path)
    assert error is None and again.budget.used == len(failed) and store.failures() == {}
    assert {p for p in bad.asked if bad.asked[p] > before[p]} == set(failed)


# -- faults that stay --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault, reason", REFUSED.items())
def test_a_refused_request_is_asked_once_and_missing_with_its_reason(fault, reason, study, endpoint, tmp_path):
    server = endpoint(fault)
    run, error = ask(tiny_plan(study, states=(4,)), study, loopback_stack(server.url), tmp_path)
    assert error is None and run.written == 0 and set(server.asked.values()) == {1}
    assert len(run.failures) == 8 and all(
        reason in text for text in Recordings(tmp_path, "loopback").failures().values()
    )


@pytest.mark.parametrize("fault, sentence", ENDS.items())
def test_a_fault_that_no_request_will_survive_ends_the_run_at_once(fault, sentence, study, endpoint, tmp_path):
    server = endpoint(fault, after=20, latency_s=0.01)
    run, error = ask(tiny_plan(study, channels=joint_and_binary()), study, loopback_stack(server.url), tmp_path)
    assert isinstance(error, RunStopped) and sentence in str(error) and "\n" not in str(error)
    assert run.written == Recordings(tmp_path, "loopback").table().num_rows == 20
    assert server.requests <= 20 + 8


@pytest.mark.parametrize("fault", WITHOUT_LOGPROBS)
def test_an_answer_without_log_probabilities_is_kept_raw_and_asked_again_later(fault, study, endpoint, tmp_path):
    server = endpoint(fault)
    stack, plan = loopback_stack(server.url), tiny_plan(study, states=(4,))
    _, error = ask(plan, study, stack, tmp_path)
    store = Recordings(tmp_path, "loopback")
    assert error is None and store.table()["tokens"].null_count == 8 and store.table()["unread"].null_count == 0
    assert all(math.isnan(reading.mass) for reading in readings(store.table())) and store.keys() == set()
    server.faults = ()
    ask(plan, study, stack, tmp_path)
    assert store.table().num_rows == len(store.keys()) == 8 and store.table()["tokens"].null_count == 0


@pytest.mark.parametrize("fault", sorted(READABLE))
def test_oddities_around_the_log_probabilities_do_not_cost_the_answer(fault, study, endpoint, tmp_path):
    server = endpoint(fault)
    run, error = ask(tiny_plan(study, states=(4,)), study, loopback_stack(server.url), tmp_path)
    table = Recordings(tmp_path, "loopback").table()
    assert error is None and run.written == table.num_rows == 8
    assert all(None not in r.values and not any(r.reasons) for r in readings(table))
    expected = {"duplicate-id": {"chatcmpl-same"}, "missing-id": {None}, "odd-types": {"7"}}.get(fault)
    assert expected is None or set(table["response_id"].to_pylist()) == expected
    Recordings(tmp_path, "loopback").export()  # every odd type must fit the file too


@pytest.mark.parametrize("fault", sorted(SENTINELS))
def test_a_sentinel_makes_its_label_missing_and_no_other(fault, study, endpoint, tmp_path):
    server = endpoint(fault)
    ask(tiny_plan(study, states=(4,)), study, loopback_stack(server.url), tmp_path)
    for reading in readings(Recordings(tmp_path, "loopback").table()):
        assert sorted(map(str, reading.reasons)) == ["None", "None", "None", SENTINEL]
        assert math.isnan(reading.values[reading.reasons.index(SENTINEL)])


@pytest.mark.parametrize(
    "fault, gone",
    [("no-labels", "ABCD"), ("label-outside", "D"), ("lower-case", "ABCD"), ("cyrillic", "ABC"), ("prefixed", "ABCD")],
)
def test_look_alikes_and_labels_outside_the_list_are_missing_never_another_number(
    fault, gone, study, endpoint, tmp_path
):
    server = endpoint(fault)
    ask(tiny_plan(study, states=(4,)), study, loopback_stack(server.url), tmp_path)
    table = Recordings(tmp_path, "loopback").table()
    values, _, _ = label_matrix(table["tokens"].combine_chunks(), table["logprobs"].combine_chunks(), JOINT_LABELS)
    for row, reading in zip(values, readings(table), strict=True):
        assert [r == NOT_RETURNED for r in reading.reasons] == [label in gone for label in "ABCD"]
        assert [math.isnan(v) for v in row] == [label in gone for label in "ABCD"]
        assert all(bound < 0 for bound, r in zip(reading.bounds, reading.reasons, strict=True) if r)


# -- runs that end early -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["content-null", "bad-request", "html", "nan"])
def test_a_run_stops_once_too_many_answers_are_of_no_use(fault, study, endpoint, tmp_path):
    server = endpoint(fault, share=0.5, first=99, seed=1)
    plan = tiny_plan(study, channels=joint_and_binary())
    run, error = ask(plan, study, loopback_stack(server.url, concurrency=4), tmp_path, attempts=2)
    assert isinstance(error, RunStopped) and "came back without a usable answer, more than 20%" in str(error)
    assert 20 <= run.settled < 40 and run.written == Recordings(tmp_path, "loopback").table().num_rows


def test_a_run_stops_when_another_model_answers(study, endpoint, tmp_path):
    server = endpoint("wrong-model")
    stack = loopback_stack(server.url, returned_models=("tiny-1-0613",))
    run, error = ask(tiny_plan(study, channels=joint_and_binary()), study, stack, tmp_path)
    assert isinstance(error, RunStopped) and "right model" in str(error) and run.settled < 40


def test_the_answers_of_another_model_are_missing_with_that_reason_and_asked_again(study, endpoint, tmp_path):
    server = endpoint("wrong-model", share=0.1, seed=2)
    stack = loopback_stack(server.url, returned_models=("tiny-1",))
    plan = tiny_plan(study, channels=joint_and_binary())
    _, error = ask(plan, study, stack, tmp_path)
    keyed, table = add_keys(plan, study, {"loopback": stack}), Recordings(tmp_path, "loopback").table()
    cells = read_cells(keyed, table)
    values, reason = cells.values, cells.reason
    other = reason == ANOTHER_MODEL
    assert error is None and 0 < other.sum() < 16 and np.isnan(values[other]).all() and set(reason[~other]) == {None}
    kept = [text for text in table["unread"].to_pylist() if text]
    assert len(kept) == keyed["key"][other].nunique() and all("logprobs" in text for text in kept)
    assert not set(keyed["key"][other]) & Recordings(tmp_path, "loopback").keys(), "they are asked again"


def test_a_tenth_of_useless_answers_does_not_stop_a_run(study, endpoint, tmp_path):
    server = endpoint("content-null", share=0.08, seed=2)
    run, error = ask(tiny_plan(study, channels=joint_and_binary()), study, loopback_stack(server.url), tmp_path)
    assert error is None and run.settled == 80 and 0 < run.spoiled < 16


def test_refusals_that_come_back_before_the_answers_in_flight_do_not_stop_a_run(study, endpoint, tmp_path):
    server = endpoint("bad-request", *["slow"] * 5, share=1.0, first=99, seed=1)
    stack = loopback_stack(server.url, concurrency=32)
    run, error = ask(tiny_plan(study, channels=joint_and_binary()), study, stack, tmp_path, attempts=1)
    assert error is None and run.settled == 80 and 8 < run.spoiled < 16


def test_the_budget_stops_a_run_cleanly_and_every_paid_answer_is_kept(study, endpoint, tmp_path):
    server = endpoint(latency_s=0.02)
    plan, stack = tiny_plan(study, channels=joint_and_binary()), loopback_stack(server.url)
    run, error = ask(plan, study, stack, tmp_path, budget=Budget(31))
    assert isinstance(error, RunStopped) and "budget of 31 calls" in str(error)
    assert server.requests == run.budget.used == run.written == Recordings(tmp_path, "loopback").table().num_rows == 31
    again, error = ask(plan, study, stack, tmp_path)
    assert error is None and again.budget.used == 49 and set(server.asked.values()) == {1}


def test_a_cancelled_run_keeps_what_has_arrived(study, endpoint, tmp_path):
    server = endpoint(latency_s=0.02)
    stack = loopback_stack(server.url, concurrency=4)
    store = Recordings(tmp_path, "loopback")
    plan = add_keys(tiny_plan(study, channels=joint_and_binary()), study, {"loopback": stack})

    async def scene():
        from helpers.asking.run import Acquisition

        async with client_for(stack) as client:
            run = Acquisition(store, stack, client, progress=False)
            task = asyncio.create_task(run.run(missing_cells(plan, study, stack, store)))
            while server.answered.total() < 20:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return run

    run = asyncio.run(scene())
    assert 12 <= run.written == store.table().num_rows < 80


def test_a_run_goes_on_when_the_endpoint_was_away_for_a_while(study, key, tmp_path):
    first = Endpoint(latency_s=0.01).__enter__()
    second = Endpoint(port=first.port)

    def go_and_come_back():
        while first.answered.total() < 30:
            time.sleep(0.002)
        first.__exit__()
        time.sleep(0.6)
        second.__enter__()

    mover = threading.Thread(target=go_and_come_back)
    mover.start()
    plan = tiny_plan(study, channels=joint_and_binary())
    run, error = ask(plan, study, loopback_stack(first.url), tmp_path, attempts=3)
    mover.join()
    second.__exit__()
    assert error is None and run.written == 80 and not run.failures and second.answered.total() >= 30


def test_an_endpoint_that_stays_away_ends_the_run_with_one_sentence(study, key, tmp_path):
    with Endpoint() as gone:
        url = gone.url
    run, error = ask(tiny_plan(study), study, loopback_stack(url), tmp_path, attempts=2, outage_s=0.3)
    assert isinstance(error, RunStopped) and "could not be reached" in str(error) and "Run again" in str(error)
    assert run.written == 0 and not run.failures


def test_a_journal_held_by_another_program_stops_the_run_and_loses_nothing(study, endpoint, tmp_path):
    server = endpoint()
    stack, plan = loopback_stack(server.url, concurrency=1), tiny_plan(study, channels=joint_and_binary())
    ask(plan, study, stack, tmp_path, budget=Budget(5))
    store = Recordings(tmp_path, "loopback")
    with store._open() as other:
        other.execute("BEGIN IMMEDIATE")
        short = Recordings(tmp_path, "loopback", busy_s=1.0)
        error = run_with(short, plan, study, stack)
        other.execute("ROLLBACK")
    assert (
        isinstance(error, DataError) and "locked" in str(error) and "run again" in str(error) and "\n" not in str(error)
    )
    assert store.table().num_rows == 5
    assert server.requests <= 5 + 8 + 2  # what cannot be written is not asked on and on
    assert ask(plan, study, stack, tmp_path)[1] is None and store.table().num_rows == 80


def run_with(store, plan, study, stack):
    """The error of a run with a given store."""
    from helpers.asking.run import Acquisition

    async def scene():
        keyed = add_keys(plan, study, {stack.name: stack})
        async with client_for(stack) as client:
            try:
                await Acquisition(store, stack, client, progress=False).run(missing_cells(keyed, study, stack, store))
            except Exception as error:  # noqa: BLE001 - the test looks at what it is
                return error

    return asyncio.run(scene())


def record_on_a_full_disk(url, folder, key):
    """In a child process: a run where no file may grow beyond 120,000 bytes."""
    os.environ[KEY_VARIABLE] = key
    study = tiny_study()
    resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
    plan = tiny_plan(study, channels=joint_and_binary())
    run, error = ask(plan, study, loopback_stack(url, concurrency=1), folder)
    Path(folder, "said").write_text(f"{run.written} {type(error).__name__} {error}")


def test_a_full_disk_stops_the_run_with_one_sentence_and_loses_nothing(study, endpoint, tmp_path):
    server = endpoint()
    stack, plan = loopback_stack(server.url), tiny_plan(study, channels=joint_and_binary())
    assert run_child(record_on_a_full_disk, server.url, str(tmp_path), KEY) == 0
    written, kind, message = (tmp_path / "said").read_text().split(" ", 2)
    assert kind == "DataError" and "Free disk space" in message and "\n" not in message
    store = Recordings(tmp_path, "loopback")
    assert 5 < int(written) <= store.table().num_rows < 80
    assert server.requests <= store.table().num_rows + 8 + 1  # the run stopped asking once it could not write
    recorded = store.keys()
    asked = dict(server.asked)
    assert ask(plan, study, stack, tmp_path)[1] is None and len(store.keys()) == 80
    again = sum(server.asked[p] > n for p, n in asked.items())
    assert again <= len(asked) - len(recorded)


# -- keys and text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"slow", "rate-limit-wait"}))
def test_a_planted_key_shows_up_nowhere(fault, study, endpoint, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    server = endpoint(fault, first=99)
    stack = loopback_stack(server.url, timeout_s=0.15 if fault in ("time-out", "slow-drip") else 2.0)
    run, error = ask(tiny_plan(study, states=(4,)), study, stack, tmp_path, attempts=1)
    shown_text = "".join(capfd.readouterr()) + caplog.text + json.dumps(run.failures) + repr(error) + str(run)
    seen = held_by(error)
    for secret in (KEY, json.dumps(KEY)[1:-1], KEY.replace("/", "\\/")):
        assert secret not in shown_text + seen and secret.encode() not in everything_written(tmp_path)
    assert server.requests > 0


def test_shown_text_is_short_escaped_and_without_the_key():
    text = shown("<script>\n" + "x" * 190 + "planted-key-9" + "y" * 50, "planted-key-9")
    assert text.startswith("&lt;script&gt; x") and "planted" not in text and len(text) <= 200 + 6
    assert shown("a planted-key-9 b", "planted-key-9") == "a [key] b"


def test_an_error_shows_two_hundred_characters_of_an_answer_at_most():
    with pytest.raises(Unusable) as caught:
        parse_answer("<html>" + "z" * 5000, 0.0, 0.0)
    assert "&lt;html&gt;zzz" in str(caught.value) and len(str(caught.value)) < 260


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "7", '{"choices": null}', '{"choices": [null]}', '{"choices": ["A"]}', '{"choices": {}}']
)
def test_any_other_json_is_no_chat_completion(text):
    with pytest.raises(Unusable, match="no chat completion"):
        parse_answer(text, 0.0, 0.0)


def test_a_missing_or_unusable_key_is_refused_without_showing_it(monkeypatch):
    stack = loopback_stack("http://127.0.0.1:9/v1")
    monkeypatch.delenv("ASV_TEST_KEY", raising=False)
    with pytest.raises(StackError, match="Set the environment variable ASV_TEST_KEY"):
        api_key(stack)
    for bad in ("two parts", "ключ-4711", "a\nb"):
        monkeypatch.setenv("ASV_TEST_KEY", bad)
        with pytest.raises(StackError, match="characters that no API key has") as caught:
            api_key(stack)
        assert bad not in str(caught.value)
    monkeypatch.setenv("ASV_TEST_KEY", " planted-4711\n")
    assert api_key(stack) == "planted-4711"


@pytest.mark.parametrize("url", ["http://user:pw-77@127.0.0.1:9/v1", "http://127.0.0.1/v1?api-key=pw-77"])
def test_an_address_that_carries_a_secret_is_refused_without_showing_it(url):
    with pytest.raises(StackError, match="carries a user name or a query") as caught:
        _checked_url(loopback_stack(url))
    assert "pw-77" not in str(caught.value)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(StackError, match="not an http"):
        _checked_url(loopback_stack("127.0.0.1:9/v1"))


# -- what a request is called ------------------------------------------------------------------------


def test_the_request_key_changes_with_each_field_of_the_request():
    stack = loopback_stack("http://127.0.0.1:9/v1", extra_body={"route": "eu"})
    body = request_body([{"role": "user", "content": "a prompt"}], stack)
    keys = {_request_key(body, stack, 0), _request_key(body, stack, 1)}
    for name in body:
        keys.add(_request_key({**body, name: "other"}, stack, 0))
        keys.add(_request_key({k: v for k, v in body.items() if k != name}, stack, 0))
    for changes in ({"base_url": "http://127.0.0.1:8/v1"}, {"model": "tiny-2"}):
        keys.add(_request_key(body, loopback_stack("http://127.0.0.1:9/v1", **changes), 0))
    keys.add(_request_key({**body, "messages": [{"role": "system", "content": "a prompt"}]}, stack, 0))
    assert {"model", "messages", "logprobs", "temperature", "top_logprobs", "max_tokens", "route"} == set(body)
    assert len(keys) == 2 + 2 * 7 + 2 + 1


def test_the_request_key_does_not_change_with_time_out_concurrency_price_or_order(study):
    first = loopback_stack("http://127.0.0.1:9/v1")
    other = loopback_stack(
        "http://127.0.0.1:9/v1",
        timeout_s=77.0,
        concurrency=3,
        order="prefix",
        price={},
        tokens_per_s={},
        returned_models=("x",),
    )
    plan = tiny_plan(study)
    assert list(add_keys(plan, study, {"loopback": first})["key"]) == list(
        add_keys(plan, study, {"loopback": other})["key"]
    )


def test_the_request_that_goes_over_the_wire_is_the_one_that_is_keyed(study, endpoint, tmp_path):
    server = endpoint()
    bodies = []
    reply = server.reply
    server.reply = lambda body, key: (bodies.append(body), reply(body, key))[1]
    stack = loopback_stack(server.url, extra_body={"cache_prompt": True})
    ask(tiny_plan(study, states=(4,)), study, stack, tmp_path)
    assert {_request_key(body, stack, 0) for body in bodies} == Recordings(tmp_path, "loopback").keys()


def test_equal_requests_of_one_wave_are_one_question_and_each_wave_asks_anew(study, endpoint, tmp_path):
    server = endpoint()
    plan = tiny_plan(study, states=(4,), waves=(0, 1))
    twice = plan.loc[plan.index.repeat(2)].reset_index(drop=True)
    run, _ = ask(twice, study, loopback_stack(server.url), tmp_path)
    assert run.budget.used == 16 and set(server.asked.values()) == {2}


def test_the_client_never_retries_by_itself(key):
    async def scene():
        async with client_for(loopback_stack("http://127.0.0.1:9/v1"), timeout_s=3) as client:
            return client.max_retries, client.timeout, isinstance(client, openai.AsyncOpenAI)

    assert asyncio.run(scene()) == (0, 3, True)


def test_the_loopback_health_page_answers_while_a_run_goes_on(study, endpoint, tmp_path):
    server = endpoint("all", share=0.3, seed=5)
    ask(tiny_plan(study), study, loopback_stack(server.url, timeout_s=0.3), tmp_path, attempts=2, most_spoiled=1.0)
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_value_that_is_true_or_false_is_no_log_probability():
    top = [{"token": "A", "logprob": False}, {"token": "B", "logprob": -0.7}]
    row = _first_alternatives({"content": [{"top_logprobs": top}]})
    assert np.isnan(row["logprobs"][0]) and row["logprobs"][1] == -0.7


def test_an_answer_nested_too_deeply_is_unusable_and_no_crash():
    with pytest.raises(Unusable, match="nested too deeply|no chat completion"):
        parse_answer("[" * 100_000, 0.0, 0.0)
    deep = '{"choices": [{"message": {"content": ' + "[" * 900 + "]" * 900 + "}}]}"
    for _ in range(2):
        try:
            assert parse_answer(deep, 0.0, 0.0)["finish_reason"] is None
        except Unusable:
            pass


@pytest.mark.parametrize("key", ["none", "EMPTY", "ollama", "token", "A"])
def test_a_short_key_of_a_local_server_changes_no_answer(key, study, endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, key)
    stack = loopback_stack(endpoint().url)
    run, error = ask(tiny_plan(study, states=(4,)), study, stack, tmp_path)
    table = Recordings(tmp_path, "loopback").table()
    assert error is None and run.failures == {} and table["unread"].null_count == len(table) == 8
    assert "[key]" not in str(table.to_pylist())


def test_a_short_key_for_another_machine_is_refused(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "hunter22")
    with pytest.raises(StackError, match="fewer than 12 characters") as caught:
        api_key(loopback_stack("https://example.org/v1"))
    assert "hunter22" not in str(caught.value)
