"""Budgets of calls and money: what is held, what is charged, and runs that stop before either is passed."""

import asyncio

import pandas as pd
import pytest

from helpers.asking.acquire import obtain
from helpers.asking.budget import Budget, cost
from helpers.asking.faults import BudgetSpent, RunStopped
from helpers.asking.probe import CALLS
from helpers.asking.recordings import Recordings
from tests.conftest import ask, joint_and_binary, loopback_stack, obtained, tiny_plan

PRICE = {"currency": "USD", "input": 2.0, "cached_input": 0.5, "output": 8.0, "batch": 1.0}
BODY = {"messages": [{"role": "user", "content": "x" * 365}], "max_tokens": 3}


def charged(table):
    """What a table of recordings costs, in the price's currency."""
    return sum(cost(row, PRICE) for row in table.to_pylist())


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 5))


def test_an_answer_costs_its_uncached_cached_and_generated_tokens():
    row = {"prompt_tokens": 700, "cached_tokens": 300, "completion_tokens": 5}
    assert cost(row, PRICE) == pytest.approx((400 * 2 + 300 * 0.5 + 5 * 8) / 1e6)
    assert cost({**row, "cached_tokens": None}, PRICE) == pytest.approx((700 * 2 + 5 * 8) / 1e6)
    assert cost({**row, "prompt_tokens": None}, PRICE) is None


def test_a_request_is_held_at_a_token_a_byte_until_an_answer_says_better():
    async def scene():
        budget = Budget(money=1.0)
        first = await budget.hold(BODY, PRICE)
        budget.settle(first, BODY, PRICE, {"prompt_tokens": 100, "completion_tokens": 1})
        return first, budget.most(BODY, PRICE), budget.spent, budget.held

    size = len('[{"role": "user", "content": ""}]') + 365
    first, later, spent, held = run(scene())
    assert first == pytest.approx((size * 2 + 3 * 8) / 1e6) and spent == pytest.approx((100 * 2 + 8) / 1e6)
    assert later == pytest.approx((110 * 2 + 3 * 8) / 1e6) and held == 0


@pytest.mark.parametrize("row, share", [({}, 1), (None, 0)])
def test_an_attempt_without_usage_is_charged_as_held_unless_nothing_was_answered(row, share):
    async def scene():
        budget = Budget(money=1.0)
        held = await budget.hold(BODY, PRICE)
        budget.settle(held, BODY, PRICE, row)
        return budget.spent, held

    spent, held = run(scene())
    assert spent == share * held


def test_a_request_waits_for_those_that_are_out_and_goes_when_they_cost_less_than_held():
    async def scene():
        most = Budget(money=1.0).most(BODY, PRICE)
        budget = Budget(money=1.5 * most)
        first = await budget.hold(BODY, PRICE)
        second = asyncio.create_task(budget.hold(BODY, PRICE))
        await asyncio.sleep(0.01)
        waited = not second.done()
        budget.settle(first, BODY, PRICE, {"prompt_tokens": 90, "completion_tokens": 1})
        held = await second
        with pytest.raises(BudgetSpent, match="budget of .* USD is spent"):
            budget.settle(held, BODY, PRICE, {"prompt_tokens": 390, "completion_tokens": 3})
            await budget.hold(BODY, PRICE)
        return waited, budget.used

    assert run(scene()) == (True, 2)


def test_a_run_stops_before_its_money_is_passed_and_every_paid_answer_is_kept(study, endpoint, tmp_path):
    server = endpoint(latency_s=0.01)
    plan, stack = tiny_plan(study, channels=joint_and_binary()), loopback_stack(server.url)
    ask(plan, study, stack, tmp_path / "all")
    whole = charged(Recordings(tmp_path / "all", "loopback").table())
    run_, error = ask(plan, study, stack, tmp_path / "part", budget=Budget(money=0.4 * whole))
    table = Recordings(tmp_path / "part", "loopback").table()
    assert isinstance(error, RunStopped) and "USD is spent" in str(error) and "\n" not in str(error)
    assert run_.budget.spent == pytest.approx(charged(table))
    assert 0.3 * whole < charged(table) <= 0.4 * whole and table.num_rows == run_.budget.used < 80
    assert ask(plan, study, stack, tmp_path / "part", budget=Budget(money=whole))[1] is None
    assert Recordings(tmp_path / "part", "loopback").table().num_rows == 80


def test_answers_that_never_come_in_time_are_charged_as_if_they_had(study, endpoint, tmp_path):
    stack = loopback_stack(endpoint("time-out", first=99).url, timeout_s=0.1)
    plan = tiny_plan(study, states=(4,))
    run_, _ = ask(plan, study, stack, tmp_path, attempts=1, budget=Budget(money=1.0))
    assert run_.budget.used == 8 and run_.budget.spent > 8 * 500 * 2 / 1e6


def test_refused_and_rate_limited_attempts_cost_no_money(study, endpoint, tmp_path):
    stack = loopback_stack(endpoint("rate-limit", first=1).url)
    run_, error = ask(tiny_plan(study, states=(4,)), study, stack, tmp_path, budget=Budget(money=1.0))
    table = Recordings(tmp_path, "loopback").table()
    assert error is None and run_.budget.used == 16 and run_.budget.spent == pytest.approx(charged(table))


def test_a_request_that_is_refused_by_its_status_costs_no_money(study, endpoint, tmp_path):
    stack = loopback_stack(endpoint("bad-request", first=99).url)
    run_, _ = ask(tiny_plan(study, states=(4,)), study, stack, tmp_path, budget=Budget(money=1.0))
    assert run_.budget.used == 8 and run_.budget.spent == 0 and len(run_.failures) == 8


def test_the_probe_counts_against_the_money(study, endpoint, tmp_path):
    server = endpoint()
    with pytest.raises(RunStopped, match="its probe of at least 3 calls: the budget of 0.0001 USD is spent.* Raise the budget"):
        obtained(tiny_plan(study), study, loopback_stack(server.url), tmp_path, acquire="missing", budget=Budget(money=1e-4))
    assert server.requests == 0
    with pytest.raises(RunStopped, match="budget of 0.005 USD is spent"):
        obtained(tiny_plan(study), study, loopback_stack(server.url), tmp_path, acquire="missing", budget=Budget(money=0.005))
    assert CALLS < server.requests < CALLS + 16


def test_one_budget_of_calls_holds_over_all_stacks_of_a_run(study, endpoint, tmp_path):
    server = endpoint()
    stacks = {name: loopback_stack(server.url, name=name, model=name) for name in ("one", "two")}
    plan = tiny_plan(study, states=(4,))
    both = [plan.assign(stack=name) for name in stacks]
    with pytest.raises(RunStopped, match="budget of 20 calls"):
        asyncio.run(obtain(pd.concat(both), study, stacks, tmp_path, acquire="missing", budget=Budget(20), progress=False))
    assert server.requests == 20


def test_one_budget_of_money_in_two_currencies_is_refused(study, tmp_path):
    stacks = {"one": loopback_stack("http://127.0.0.1:9/v1", name="one"),
              "two": loopback_stack("http://127.0.0.1:9/v1", name="two", model="two", price={**PRICE, "currency": "CNY"})}  # fmt: skip
    both = pd.concat([tiny_plan(study, states=(4,)).assign(stack=name) for name in stacks])
    with pytest.raises(ValueError, match="prices are in CNY and USD"):
        asyncio.run(obtain(both, study, stacks, tmp_path, acquire="missing", budget=Budget(money=1.0), progress=False))


def test_zero_is_no_limit():
    budget = Budget(0, 0.0)
    assert budget.calls_left is None and budget.money is None
