"""Acquisition beside the bare client, and a fully recorded run beside the one that asked."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers.asking.acquire import obtain
from helpers.asking.client import client_for
from helpers.asking.embedded import _free_port
from helpers.asking.recordings import Recordings
from helpers.asking.run import Acquisition
from helpers.channels import sections
from helpers.channels.plan import request_body
from helpers.channels.stacks import Stack
from tests.benchmarks import Figure
from tests.rehearsal.simulate import write_study

LATENCY_MS = 50
IN_FLIGHT = 64
KEY_VARIABLE = "ASV_BENCH_KEY"
ROOT = Path(__file__).resolve().parents[2]
FILLER = "Cramp rose from 3 to 7 of 40 walkers within a year of follow-up. "


@contextlib.contextmanager
def endpoint_process(latency_ms=LATENCY_MS):
    """The loopback endpoint in a process of its own; yields its base URL."""
    port = _free_port()
    command = [sys.executable, "-m", "tests.rehearsal.endpoint", "--port", str(port), "--latency-ms", str(latency_ms)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        _wait_until_it_listens(port, process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(port, process):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the loopback endpoint did not start on port {port} (exit code {process.poll()}).")


def bench_stack(url):
    """The stack of the endpoint: 64 in flight, one token, 20 alternatives."""
    return Stack(
        name="bench", kind="api", model="bench-1", sampling={"temperature": 1.0, "top_logprobs": 20, "max_tokens": 1},
        order="hash", concurrency=IN_FLIGHT, timeout_s=30.0, tokens_per_s={"prompt": 1e5, "completion": 500},
        price={"currency": "USD", "input": 0.0, "cached_input": 0.0, "output": 0.0, "batch": 0.0},
        logprobs_scaled_by_temperature=False, base_url=url, key_variable=KEY_VARIABLE,
    )  # fmt: skip


def made_up_cells(count, stack, label):
    """``count`` cells as ``missing_cells`` gives them, with prompts of about 2,000 characters that all differ."""
    cells = []
    for i in range(count):
        prompt = f"{label} {i}. {FILLER * 30}\nOutput exactly one physical option token: A, B, C, or D."
        fields = {"key": f"{label}-{i:08d}", "section": "bench", "trajectory_id": f"traj-{i // 96}", "state": i % 12,
                  "template": "direct", "view": "empty", "authority": "neutral", "source_order": "view-last",
                  "readout": "joint", "stack": stack.name, "view_state": None, "layout": i % 4, "assessed": -1,
                  "wave": 0, "settings": "{}", "identity": "{}"}  # fmt: skip
        cells.append((fields, request_body([{"role": "user", "content": prompt}], stack)))
    return cells


async def bare_client(client, cells, in_flight=IN_FLIGHT):
    """Seconds that the client alone takes for the same requests; answers are parsed by it and dropped."""
    todo = iter(cells)

    async def work():
        for _, body in todo:
            answer = await client.chat.completions.create(**body)
            assert answer.choices[0].logprobs.content

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return time.perf_counter() - start


async def acquisition(client, stack, cells, folder):
    """Seconds that a run over ``cells`` takes, each answer on disk before it counts."""
    store = Recordings(folder, stack.name)
    start = time.perf_counter()
    written = await Acquisition(store, stack, client, progress=False).run(cells)
    seconds = time.perf_counter() - start
    assert written == len(cells) and {fields["key"] for fields, _ in cells} <= store.keys()
    return seconds


async def _rates(url, count, rounds):
    stack, bare, durable = bench_stack(url), [], []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(rounds):  # in turn, so that a change of the machine's load meets both
            for label, seconds in (("bare", bare), ("durable", durable)):
                cells = made_up_cells(count, stack, f"{label}-{n}")
                async with client_for(stack) as client:
                    timed = bare_client(client, cells) if label == "bare" else acquisition(client, stack, cells, folder)
                    seconds.append(await timed)
    return count / min(bare), count / min(durable)


def rates(count=4000, rounds=2):
    """Answers per second: the bare client, and a run in which every answer is durable; the better of the rounds."""
    os.environ.setdefault(KEY_VARIABLE, "bench")
    with endpoint_process() as url:
        bare, durable = asyncio.run(_rates(url, count, rounds))
    where = f"{LATENCY_MS} ms endpoint, {IN_FLIGHT} in flight"
    return [
        Figure(f"bare client, {where}", bare, "answers/s"),
        Figure(f"acquisition, every answer durable, {where}", durable, "answers/s", ">= 400"),
        Figure("acquisition beside the bare client", durable / bare, "ratio", ">= 0.8"),
    ]


def second_run(trajectories=20):
    """Time of a run that finds everything recorded, beside the run that asked; both with the plan and its keys."""
    os.environ.setdefault(KEY_VARIABLE, "bench")
    seconds = []
    with tempfile.TemporaryDirectory() as folder, endpoint_process() as url:
        study = write_study(folder, count=trajectories)
        stack = bench_stack(url)
        plan = sections.global_replay(list(study.trajectories), stack.name)
        for _ in range(2):
            start = time.perf_counter()
            _, table = asyncio.run(obtain(plan, study, {stack.name: stack}, folder, acquire="missing", progress=False))
            seconds.append(time.perf_counter() - start)
            assert table.num_rows == len(plan)
    return [
        Figure(f"second, fully recorded run over {len(plan):,} cells", seconds[1], "s"),
        Figure("second run beside the first", seconds[1] / seconds[0], "ratio"),
        Figure("second run, each 1,000 cells", 1000 * seconds[1] / len(plan), "s"),
    ]
