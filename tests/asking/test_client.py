"""The transport: one sentence for a fault, whoever asks, and one run at a time."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.asking.answers import parse_text
from helpers.asking.budget import Budget
from helpers.asking.client import Asker, client_for
from helpers.asking.faults import BudgetSpent, Refused, RunStopped, Unusable
from helpers.asking.turns import turn
from helpers.channels.stacks import StackError
from helpers.study.files import DataError
from tests.conftest import KEY, held_by, loopback_stack
from tests.rehearsal.endpoint import Endpoint

ROOT = Path(__file__).resolve().parents[2]


def asked(stack, what=None, **options):
    """One question through an Asker of its own; returns (answer or error, Asker)."""

    async def scene():
        async with client_for(stack) as client:
            asker = Asker(stack, client, **{"backoff_s": 0.01, "attempts": 2} | options)
            body = {"model": stack.model, "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 5}
            try:
                return await asker.ask(body, parse_text, what), asker
            except Exception as error:  # noqa: BLE001 - the test looks at what it is
                return error, asker

    return asyncio.run(scene())


SENTENCES = {
    "bad-request": (Refused, Refused, "refused by the endpoint (HTTP 400): "),
    "server-error": (Unusable, StackError, "HTTP 500: "),
    "unauthorized": (RunStopped, StackError, "the endpoint refuses the key (HTTP 401: "),
    "long-wait": (RunStopped, StackError, "the endpoint asks to wait 86,400 s (HTTP 429)"),
}


@pytest.mark.parametrize("fault", SENTENCES)
def test_a_fault_is_the_same_sentence_whoever_asks_and_names_what_was_asked(fault, endpoint):
    bare, named, text = SENTENCES[fault]
    stack = loopback_stack(endpoint(fault, first=99).url)
    plain, asker = asked(stack)
    assert type(plain) is bare and text in str(plain)
    error, _ = asked(stack, "view t/3")
    assert type(error) is named and str(error).startswith(f"loopback: view t/3: {text}") and "\n" not in str(error)
    assert str(error).endswith("." if named is Refused else ". Run again; what was answered is kept.")
    assert KEY not in held_by(plain) + held_by(error) and not asker.out


def test_a_spent_budget_says_so_with_and_without_a_name(endpoint):
    stack = loopback_stack(endpoint().url)
    for what, where in ((None, "loopback: "), ("the actor", "loopback: the actor: ")):
        budget = Budget(1)
        budget.used = 1
        error, _ = asked(stack, what, budget=budget)
        assert type(error) is BudgetSpent and isinstance(error, RunStopped)
        assert str(error).startswith(f"{where}the budget of 1 calls is spent; what was answered is kept. Raise the")


def test_an_endpoint_that_is_away_is_an_attempt_without_patience_and_at_no_time_a_call(key):
    with Endpoint() as gone:
        stack = loopback_stack(gone.url)
    error, asker = asked(stack, "view t/3")
    assert type(error) is StackError and "cannot be reached; start it, or correct its address." in str(error)
    assert asker.budget.used == 0 and asker.budget.spent == 0
    error, asker = asked(stack, outage_s=0.2)
    assert type(error) is RunStopped and "loopback: the endpoint could not be reached for 0 s" in str(error)
    assert asker.budget.used == 0


def test_an_asker_that_is_stopping_tries_nothing_again(endpoint):
    server = endpoint("server-error", first=99)
    stack = loopback_stack(server.url)

    async def scene():
        async with client_for(stack) as client:
            asker = Asker(stack, client, backoff_s=0.01, attempts=5)
            asker.stopping = True
            body = {"model": stack.model, "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 5}
            with pytest.raises(Unusable):
                await asker.ask(body, parse_text)

    asyncio.run(scene())
    assert server.requests == 1


# -- one run at a time -------------------------------------------------------------------------------


def test_a_turn_is_waited_for_with_the_loop_free_and_the_reason_said_once(tmp_path):
    order, said = [], []

    async def one(name, seconds):
        async with turn(tmp_path / "new" / "it.lock", "waiting for the other", said.append):
            order.append(f"{name} in")
            await asyncio.sleep(seconds)
            order.append(f"{name} out")

    async def scene():
        first = asyncio.create_task(one("first", 0.5))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(one("second", 0))
        await asyncio.sleep(0.1)
        order.append("the loop is free")
        await asyncio.gather(first, second)

    asyncio.run(asyncio.wait_for(scene(), 10))
    assert order == ["first in", "the loop is free", "first out", "second in", "second out"]
    assert said == ["waiting for the other"]


def test_a_turn_is_held_between_processes_and_goes_back_when_its_holder_is_killed(tmp_path):
    code = (
        "import asyncio, sys; from helpers.asking.turns import turn\n"
        "async def hold():\n    async with turn(sys.argv[1], ''):\n"
        "        print('held', flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(hold())"
    )
    lock, said = tmp_path / "it.lock", []
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    async def scene():
        asyncio.get_running_loop().call_later(0.4, holder.kill)
        async with turn(lock, "waiting", said.append):
            return holder.poll() is not None or holder.wait(5)

    try:
        assert holder.stdout.readline() == "held\n"
        assert asyncio.run(asyncio.wait_for(scene(), 10)) and said == ["waiting"]
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_lock_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "it.lock").mkdir()
    with pytest.raises(DataError, match=r"cannot be written \(.*\); make it writable\.$"):
        asyncio.run(turn(tmp_path / "it.lock", "").__aenter__())


def test_a_folder_that_cannot_be_made_is_one_sentence_too(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file: cannot be written \(.*\); make it writable\.$"):
        asyncio.run(turn(tmp_path / "file" / "it.lock", "").__aenter__())
