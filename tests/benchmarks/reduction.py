"""Loading and reducing recordings, and the bootstrap: time, memory, and how both grow."""

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from helpers.asking.recordings import SCHEMA, Recordings
from helpers.channels import sections
from helpers.channels.plan import CELL
from helpers.measuring.cells import read_cells
from helpers.measuring.inference import TrajectoryDraws, interval
from helpers.measuring.reducers import endpoint_margins
from tests.benchmarks import Figure

ROOT = Path(__file__).resolve().parents[2]
CELLS_A_TRAJECTORY = 96  # of the global replay: 12 states, 2 channels, 4 layouts
ALTERNATIVES = ["A", "B", "C", "D", " A", " B", " C", " D", *(f"word{i}" for i in range(12))]


# -- loading and reducing --------------------------------------------------------------------------


def made_up_plan(cells):
    """A plan of the global replay with at least so many cells and made-up keys."""
    ids = [f"traj-{i:05d}" for i in range(-(-cells // CELLS_A_TRAJECTORY))]
    plan = sections.global_replay(ids, "bench")
    return plan.assign(key=[hashlib.sha256(str(i).encode()).hexdigest() for i in range(len(plan))])


def made_up_recordings(plan, seed=5):
    """Recordings of a plan with 20 alternatives each, drawn at once, as an Arrow table of the declared schema."""
    n, width = len(plan), len(ALTERNATIVES)
    logits = np.random.default_rng(seed).normal(0, 1.5, (n, width))
    logits[:, 4:] -= 4
    values = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * width)
    columns = {name: pa.array(plan[name], from_pandas=True) for name in ("key", *CELL)}
    columns["tokens"] = pa.ListArray.from_arrays(offsets, pa.array(ALTERNATIVES * n))
    columns["logprobs"] = pa.ListArray.from_arrays(offsets, pa.array(values.ravel()))
    columns["returned_model"] = pa.array(["bench-1"] * n)
    arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(n, f.type) for f in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA).sort_by("key")


def load_and_reduce(cells=100_000):
    """Parquet file to endpoint margins; beside it, what reading the file alone takes."""
    plan = made_up_plan(cells)
    study = SimpleNamespace(target=lambda name: int(name[-5:]) % 4)
    with tempfile.TemporaryDirectory() as folder:
        store = Recordings(folder, "bench")
        pq.write_table(made_up_recordings(plan), store.parquet, compression="zstd")
        start = time.perf_counter()
        pq.read_table(store.parquet)
        read = time.perf_counter() - start
        start = time.perf_counter()
        table = store.table()
        loaded = time.perf_counter() - start
        margins = endpoint_margins(read_cells(plan, table), study)
        whole = time.perf_counter() - start
    assert margins["complete"].all() and 4 * len(margins) == len(plan)
    return [
        Figure(f"load and reduce {len(plan):,} recorded cells", whole, "s", "<= 2"),
        Figure("of that, loading", loaded, "s"),
        Figure("load and reduce beside reading the file alone", whole / read, "ratio"),
    ]


# -- bootstrap -------------------------------------------------------------------------------------


def bootstrap(transitions, trajectories, draws, quantities, seed=3):
    """Seconds for the intervals of several means: made-up gains with a trajectory effect, equal counts."""
    rng = np.random.default_rng(seed)
    ids = np.array([f"traj-{i:06d}" for i in range(trajectories)])
    codes = np.arange(transitions) % trajectories
    values = rng.normal(size=(transitions, quantities)) + rng.normal(size=trajectories)[codes, None]
    names = ids[codes]
    start = time.perf_counter()
    _, replicates = TrajectoryDraws(ids, draws).means(values, names)
    low, high = interval(replicates)
    assert replicates.shape == (draws, quantities) and (low < high).all()
    return time.perf_counter() - start


def peak_mib():
    """Most memory that this process has held, in MiB."""
    # ru_maxrss of a child starts at its parent's peak on Linux, VmHWM is the process's own.
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))


def in_a_process(*arguments):
    """:func:`bootstrap` in a process of its own: ``(seconds, peak MiB)``."""
    code = "import json, sys; from tests.benchmarks.reduction import bootstrap, peak_mib; "
    code += "print(json.dumps([bootstrap(*map(int, sys.argv[1:])), peak_mib()]))"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def paper_bootstrap(draws=10_000):
    """The paper's bootstrap with ten quantities, the best of three."""
    seconds = min(bootstrap(1100, 100, draws, 10) for _ in range(3))
    name = f"bootstrap, 1,100 transitions x 100 trajectories x {draws:,} draws x 10 quantities"
    return [Figure(name, seconds, "s", "<= 0.2")]


def large_bootstrap(transitions=1_000_000, trajectories=100_000, draws=1000):
    """Memory of a large bootstrap, and how its time grows with the draws and with the trajectories."""
    seconds, mib = in_a_process(transitions, trajectories, draws, 1)
    twice_draws, _ = in_a_process(transitions, trajectories, 2 * draws, 1)
    half, _ = in_a_process(transitions // 2, trajectories // 2, draws, 1)
    name = f"{transitions:,} transitions in {trajectories:,} trajectories, {draws:,} draws"
    return [
        Figure(f"{name}: peak memory", mib, "MiB", "<= 1024"),
        Figure(f"{name}: time", seconds, "s"),
        Figure("twice the draws: time, in times of the double", twice_draws / (2 * seconds), "ratio", "<= 1.25"),
        Figure("twice the trajectories: time, in times of the double", seconds / (2 * half), "ratio", "<= 1.25"),
    ]
