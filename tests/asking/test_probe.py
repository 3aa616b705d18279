"""The probe: what it finds out, what it refuses, and that a run does not start without it."""

import asyncio
import json

import pytest

from helpers.__main__ import main
from helpers.asking import probe as module
from helpers.asking.budget import Budget
from helpers.asking.client import client_for
from helpers.asking.faults import RunStopped
from helpers.asking.probe import (
    CALLS,
    _save_probe,
    _temperature_slope,
    probe,
    refusal,
    saved_probe,
    scaled_by_temperature,
)
from helpers.asking.recordings import Recordings
from helpers.channels.stacks import StackError
from tests.conftest import KEY, joint_and_binary, loopback_stack, obtained, tiny_plan


def probed(stack):
    async def scene():
        async with client_for(stack) as client:
            return await probe(stack, client)

    return asyncio.run(scene())


@pytest.mark.parametrize("scaled, slope", [(False, 1.0), (True, 0.5)])
def test_a_healthy_stack_is_described_in_three_calls(scaled, slope, endpoint):
    server = endpoint(scaled=scaled)
    stack = loopback_stack(server.url, logprobs_scaled_by_temperature=scaled)
    found = probed(stack)
    assert server.requests == CALLS == 3
    assert (
        found["logprobs"]
        and found["alternatives"] == 20
        and found["labels"] == dict.fromkeys(["A", "B", "C", "D", "Yes", "No"], True)
    )
    assert found["scaled_by_temperature"] is scaled and found["temperature_slope"] == slope
    assert found["returned_model"] == "tiny-1" and found["fingerprint"] == "fp_loopback" and found["sentinels"] == []
    assert refusal(found, stack) is None


def test_the_temperature_slope_is_the_ratio_of_differences():
    cool = {"A": -0.5, "B": -1.7, "C": -4.1, "x": -9999.0}
    warm = {"A": -0.9, "B": -1.5, "C": -2.7, "x": -7.0, "y": -3.0}
    assert _temperature_slope(cool, warm) == pytest.approx(0.5)
    assert _temperature_slope({**cool, "C": -2.2}, cool) == pytest.approx(2.02, abs=0.2)
    assert _temperature_slope({"A": -1.0, "B": -2.0}, warm) is None


@pytest.mark.parametrize(
    "slope, verdict", [(0.5, True), (0.62, True), (1.0, False), (0.88, False), (0.75, None), (2.0, None), (None, None)]
)
def test_cache_noise_does_not_blur_scaled_and_unscaled(slope, verdict):
    assert scaled_by_temperature(slope) is verdict


@pytest.mark.parametrize(
    "fault, reason",
    [
        ("content-null", "returns no log-probabilities"),
        ("logprobs-missing", "returns no log-probabilities"),
        ("tokens-arrays", "returns no log-probabilities"),
        ("no-labels", "A, B, C, D, Yes, No did not come back"),
        ("label-outside", "D, No did not come back"),
        ("lower-case", "did not come back"),
        ("prefixed", "did not come back"),
        ("sentinel-9999", r"values that are no log-probabilities: -9999\)"),
        ("nan", "values that are no log-probabilities: nan"),
    ],
)
def test_a_stack_that_cannot_be_read_is_refused_with_the_reason(fault, reason, endpoint, study, tmp_path):
    server = endpoint(fault)
    stack = loopback_stack(server.url)
    with pytest.raises(StackError, match=f"loopback: the probe refuses this stack: .*{reason}"):
        obtained(tiny_plan(study, channels=joint_and_binary()), study, stack, tmp_path, acquire="missing")
    assert server.requests == CALLS and Recordings(tmp_path, "loopback").table().num_rows == 0


@pytest.mark.parametrize(
    "fault, reason",
    [("unauthorized", "refuses the key"), ("bad-request", "HTTP 400"), ("insufficient-quota", "HTTP 429")],
)
def test_an_endpoint_that_does_not_answer_is_refused_with_the_reason(fault, reason, endpoint):
    with pytest.raises(StackError, match=f"its probe of at least 3 calls: .*{reason}") as caught:
        probed(loopback_stack(endpoint(fault).url))
    assert KEY not in str(caught.value)


def test_a_passing_fault_does_not_fail_the_probe(endpoint):
    server = endpoint("unavailable")
    assert probed(loopback_stack(server.url))["logprobs"]
    assert server.requests == 5  # the joint prompt is asked twice, so only its first try meets the fault


def test_a_label_that_the_plan_does_not_need_is_no_reason_to_refuse(endpoint):
    stack = loopback_stack(endpoint().url)
    found = probed(stack)
    found["labels"]["No"] = False
    assert refusal(found, stack, ["joint"]) is None and "No did not come back" in refusal(found, stack, ["binary"])


def test_alternatives_that_add_up_to_more_than_one_are_refused(endpoint):
    stack = loopback_stack(endpoint().url)
    found = probed(stack)
    assert 0 < found["mass"] <= 1 and refusal(found, stack) is None
    assert "add up to a probability of 2.1" in refusal({**found, "mass": 2.1}, stack)
    assert refusal({k: v for k, v in found.items() if k != "mass"}, stack) is None, "a result from before"


def test_a_wrong_declaration_is_refused_where_it_changes_a_number(endpoint):
    stack = loopback_stack(endpoint(scaled=True).url)
    warm = loopback_stack(stack.base_url, sampling={"temperature": 1.5, "top_logprobs": 20, "max_tokens": 1})
    assert refusal(probed(stack), stack) is None
    assert "are scaled by the request temperature, params/stacks.yml declares false" in refusal(probed(warm), warm)


def test_another_model_and_too_few_alternatives_are_refused(endpoint):
    server = endpoint()
    named = loopback_stack(server.url, returned_models=("tiny-1-0613",))
    assert "'tiny-1' answered, expected tiny-1-0613" in refusal(probed(named), named)
    few = loopback_stack(server.url, sampling={"temperature": 1.0, "top_logprobs": 3, "max_tokens": 1})
    assert "only 3 alternatives" in refusal(probed(few), few)


def test_a_run_probes_once_and_keeps_the_result_beside_the_recordings(endpoint, study, tmp_path):
    server = endpoint()
    stack, plan = loopback_stack(server.url), tiny_plan(study, states=(4,))
    obtained(plan, study, stack, tmp_path, acquire="missing")
    path = tmp_path / "probe" / "loopback.json"
    assert (
        server.requests == 8 + CALLS
        and json.loads(path.read_text())["alternatives"] == 20
        and KEY not in path.read_text()
    )
    stamp = path.stat().st_mtime_ns
    obtained(tiny_plan(study, states=(5,)), study, stack, tmp_path, acquire="missing")
    assert server.requests == 16 + CALLS and path.stat().st_mtime_ns == stamp
    changed = loopback_stack(server.url, sampling={**stack.sampling, "top_logprobs": 12})
    assert saved_probe(tmp_path, stack) and saved_probe(tmp_path, changed) is None


def test_saving_the_same_findings_again_does_not_touch_the_file(endpoint, tmp_path):
    stack = loopback_stack(endpoint().url)
    _save_probe(probed(stack), tmp_path, stack)
    path = tmp_path / "probe" / "loopback.json"
    stamp = path.stat().st_mtime_ns
    _save_probe(probed(stack), tmp_path, stack)
    assert path.stat().st_mtime_ns == stamp


def test_a_mended_endpoint_is_probed_again_and_used(endpoint, study, tmp_path):
    server = endpoint("content-null")
    stack, plan = loopback_stack(server.url), tiny_plan(study, states=(4,))
    with pytest.raises(StackError):
        obtained(plan, study, stack, tmp_path, acquire="missing")
    server.faults = ()
    _, table = obtained(plan, study, stack, tmp_path, acquire="missing")
    assert table.num_rows == 8


def test_the_probe_counts_against_the_budget(endpoint, study, tmp_path):
    server = endpoint()
    stack, plan = loopback_stack(server.url), tiny_plan(study)
    with pytest.raises(RunStopped, match="its probe needs 3 calls, the budget is 2"):
        obtained(plan, study, stack, tmp_path, acquire="missing", budget=Budget(2))
    assert server.requests == 0
    with pytest.raises(RunStopped, match="budget"):
        obtained(plan, study, stack, tmp_path, acquire="missing", budget=Budget(10))
    assert server.requests == 10 and Recordings(tmp_path, "loopback").table().num_rows == 7


def test_the_command_prints_what_it_found_and_fails_with_the_reason(endpoint, tmp_path, capsys):
    server = endpoint()
    stack = loopback_stack(server.url)
    asyncio.run(module.show_probe(stack, tmp_path))
    assert json.loads(capsys.readouterr().out)["returned_model"] == "tiny-1"
    server.faults = ("content-null",)
    with pytest.raises(StackError, match="loopback: the probe refuses this stack: the endpoint returns no log-probabilities"):
        asyncio.run(module.show_probe(stack, tmp_path))
    assert main(["probe", "loopbak"]) == 1 and "unknown stack 'loopbak'" in capsys.readouterr().err

