"""Fixtures that several test files share: a tiny study built in code, a loopback endpoint and its stack."""

import asyncio
import multiprocessing
from dataclasses import replace

import pytest

from helpers.asking.acquire import obtain
from helpers.asking.client import client_for
from helpers.asking.recordings import SCHEMA, Recordings
from helpers.asking.run import Acquisition, missing_cells
from helpers.channels.channels import direct, matched
from helpers.channels.plan import Study, add_keys, make_plan
from helpers.channels.stacks import Stack
from helpers.channels.views import view_id
from helpers.study.traces import STEPS, parse_trajectory
from tests.rehearsal.endpoint import Endpoint

KEY = "sk-planted/0123456789abcdefXYZ"
KEY_VARIABLE = "ASV_TEST_KEY"


def tiny_task(task_id, family, topic, target):
    """A valid task about an invented topic."""
    texts = [f"{topic} becomes rarer.", f"{topic} becomes more common.", f"{topic} stays as common as before."]
    candidates = [{"candidate_id": f"answer-{c}", "text": t} for c, t in zip("abc", texts, strict=True)]
    candidates.append(
        {"candidate_id": "none-of-the-above", "text": "The available evidence is insufficient to decide."}
    )
    question = f"Does walking change how often {topic.lower()} occurs?"
    return {"task_id": task_id, "family": family, "question": question, "candidates": candidates, "target": target}


def tiny_trajectory(task, finding, success):
    """Eleven steps, the fourth of which acquires one artifact."""
    patches = {
        "classify": {"question_type": "risk"},
        "plan": {"plan": {"query": "walking frequency"}},
        "retrieve": {"artifacts": [{"doc_id": "pmid:101", "text": finding}]},
        "extract": {"evidence": [{"doc_id": "pmid:101", "quote": finding}]},
        "synthesize": {"answer": finding},
        "finalize": {"status": "answered"},
    }
    steps = [
        {
            "action": action,
            "patch": patches.get(action, {}),
            "observation": f"{action} is done",
            "mode": "deterministic",
        }
        for action in STEPS
    ]
    x0 = {"question": task["question"], "artifacts": [], "evidence": [], "answer": ""}
    row = {"trajectory_id": f"traj-{task['task_id']}", "task_id": task["task_id"], "x0": x0, "steps": steps}
    return parse_trajectory({**row, "final_score": 1.0 if success else 0.5, "success": success})


# Children are forked from a server process that has imported everything and runs no thread.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["tests.conftest"])


def start_child(function, *arguments):
    """Run a module-level function in a process of its own; returns the process."""
    child = CHILDREN.Process(target=function, args=arguments)
    child.start()
    return child


def run_child(function, *arguments):
    """Run a function in a process of its own to its end; returns the exit code."""
    child = start_child(function, *arguments)
    child.join(60)
    assert child.exitcode is not None
    return child.exitcode


@pytest.fixture
def study():
    """Two trajectories, one successful, with a generated view of every state."""
    return tiny_study()


def tiny_study():
    """Two trajectories, one successful, with a generated view of every state."""
    risk = tiny_task("risk-01", "risk", "Night cramp", "answer-b")
    mechanism = tiny_task("mechanism-02", "mechanism", "Ankle swelling", "none-of-the-above")
    first = tiny_trajectory(risk, "Cramp rose from 3 to 7 of 40 walkers.", True)
    second = tiny_trajectory(mechanism, "Swelling was seen in 5 of 90 walkers.", False)
    views = {
        view_id(t.trajectory_id, state, "generated-128"): f"{{ CANDIDATE_01: missing, state {state} of {t.task_id} }}"
        for t in (first, second)
        for state in range(12)
    }
    tasks = {task["task_id"]: task for task in (risk, mechanism)}
    return Study(tasks, {t.trajectory_id: t for t in (first, second)}, views)


@pytest.fixture
def key(monkeypatch):
    """A planted key in the environment; it must not turn up anywhere else."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    return KEY


@pytest.fixture
def endpoint(key):
    """A function that starts a loopback endpoint for the rest of the test."""
    running = []

    def start(*faults, **options):
        running.append(Endpoint(faults=faults, **options).__enter__())
        return running[-1]

    yield start
    for each in running:
        each.__exit__()


def loopback_stack(url, **changes):
    """An API stack at a URL, named ``loopback``."""
    stack = Stack(
        name="loopback", kind="api", model="tiny-1", sampling={"temperature": 1.0, "top_logprobs": 20, "max_tokens": 1},
        order="hash", concurrency=8, timeout_s=5.0, tokens_per_s={"prompt": 1000, "completion": 10},
        price={"currency": "USD", "input": 2.0, "cached_input": 0.5, "output": 8.0, "batch": 1.0},
        logprobs_scaled_by_temperature=False, base_url=url, key_variable=KEY_VARIABLE,
    )  # fmt: skip
    return replace(stack, **changes)


def tiny_plan(study, *, states=(3, 4), channels=None, waves=(0,)):
    """A plan over both trajectories; 16 joint cells without further arguments."""
    return make_plan(list(study.trajectories), states, channels or [direct("loopback")], waves=waves)


def joint_and_binary():
    """Two matched channels of the loopback stack: 4 and 16 cells a state."""
    return [matched("quote", "loopback"), matched("quote", "loopback", readout="binary")]


def ask(plan, study, stack, folder, **options):
    """Ask everything that is missing, without a probe, fast to give up; returns (Acquisition, RunStopped or None)."""

    async def run():
        store = Recordings(folder, stack.name)
        cells = missing_cells(add_keys(plan, study, {stack.name: stack}), study, stack, store)
        async with client_for(stack) as client:
            acquisition = Acquisition(store, stack, client, progress=False, **{"backoff_s": 0.01, **options})
            try:
                await acquisition.run(cells)
            except Exception as error:  # noqa: BLE001 - the test looks at what it is
                return acquisition, error
            return acquisition, None

    return asyncio.run(run())


def held_by(error):
    """What an interactive traceback could show of an error and its causes, request headers included, as one text."""
    seen = ""
    while error is not None:
        headers = getattr(getattr(error, "request", None), "headers", {})
        seen += f"{error!r} {vars(error)!r} {dict(headers)!r}"
        error = error.__cause__ or error.__context__
    return seen


def obtained(plan, study, stack, folder, **options):
    """``obtain`` as a plain call: the keyed plan and the table."""
    options = {"columns": SCHEMA.names, "progress": False} | options
    return asyncio.run(obtain(plan, study, {stack.name: stack}, folder, **options))
