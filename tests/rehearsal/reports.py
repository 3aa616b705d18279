"""A profile in a folder of its own over a simulated study, and its notebooks, run there or in a kernel as JupyterLab does."""

import asyncio
import shutil
from contextlib import suppress

import nbformat
import numpy as np
import pandas as pd
import yaml
from jupyter_client.manager import AsyncKernelManager, start_new_async_kernel
from nbclient import NotebookClient
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from helpers.channels.plan import add_keys
from helpers.channels.stacks import load_stacks
from helpers.reporting import reproduce
from helpers.reporting.params import ROOT, Settings, declared, notebook_source, split_settings
from helpers.study.traces import RETRIEVE
from tests.rehearsal import simulate

SPREAD = {"seed": 1, "trajectory_sd": 0.4, "transition_sd": 0.6}


def temporary_profile(folder, **settings):
    """The smoke profile with its data, recordings and report below a folder; returns the profile's path as a text."""
    data, profile = folder / "data", folder / "profile"
    shutil.copytree(ROOT / "params" / "smoke", profile)
    places = {"OUTPUT": folder / "out", "RECORDINGS": folder / "recordings", "ANSWERS": folder / "answers.jsonl"}
    places |= {name: data / f"{name.lower()}.jsonl" for name in ("TASKS", "TRAJECTORIES", "VIEWS", "LIBRARY")}
    values = yaml.safe_load((profile / "common.yml").read_text(encoding="utf-8"))
    values |= {name: str(path) for name, path in places.items()} | settings
    (profile / "common.yml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(profile)


def recorded_study(folder, count):
    """A simulated study with recordings of every section's cells, without any endpoint."""
    study, stacks = simulate.write_frozen(folder / "data", count), load_stacks()
    plan = add_keys(simulate.every_plan(list(study.trajectories), (0, 1)), study, stacks)
    simulate.record_directly(plan, study, folder / "recordings", stacks, **SPREAD, noise_sd=0.02)
    return study


def run_notebook(profile, name, setting="", folder=None):
    """Execute one notebook of a profile, into its report or into another folder; returns the path of the result."""
    setting += f" OUTPUT={folder}" if folder else ""
    (job,) = reproduce.plan(profile, only=name, setting=setting)
    job.run()
    return job.output


def shown(path):
    """Everything that an executed notebook shows as text."""
    outputs = [o for c in nbformat.read(path, as_version=4).cells for o in c.get("outputs", [])]
    return "\n".join(str(o.get("data", {}).get(kind, "")) for o in outputs for kind in ("text/markdown", "text/html", "text/plain"))


def table(folder, name):
    """A section's table of a report, indexed by id."""
    return pd.read_csv(folder / f"{name}.csv").set_index("id")


def planted(study, state, channel):
    """Planted margins of all trajectories at one state under one channel."""
    return np.array([simulate.planted_margin(t, state, channel, **SPREAD) for t in study.trajectories.values()])


def planted_gains(study, channel, steps=(RETRIEVE + 1,)):
    """Planted gains, one row a step and one column a trajectory."""
    return np.array([planted(study, k, channel) - planted(study, k - 1, channel) for k in steps])


class WarmKernel:
    """One kernel that runs notebook after notebook, each in an empty namespace, so that modules are loaded once."""

    def __enter__(self):
        self.manager = AsyncKernelManager(kernel_name="python3")
        asyncio.run(self.manager.start_kernel(cwd=str(ROOT)))
        return self

    def __exit__(self, *error):
        asyncio.run(self.manager.shutdown_kernel(now=True))

    def run(self, profile, name, setting="", folder=None):
        """What :func:`run_notebook` does, without a kernel of its own."""
        (job,) = reproduce.plan(profile, only=name, setting=f"{setting} OUTPUT={folder}" if folder else setting)
        default = declared(job.source)
        values = {name: value for name, value in job.values.items() if value != default[name]}
        given = {k: v for k, v in split_settings(job.setting).items() if k in Settings.model_fields}
        told = {"settings": given, "folder": str(job.folder)}
        notebook = parameterize_notebook(load_notebook_node(str(job.source)), values)
        first = f"%reset -f\nimport json, os\nos.environ['ASV_RUN'] = json.dumps({told!r})"
        notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
        client = NotebookClient(notebook, km=self.manager, timeout=300)
        client.execute()
        client.kc.stop_channels()
        job.output.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, job.output)
        return job.output


# -- a kernel, as JupyterLab uses one -----------------------------------------------------------------


def code_cells(name, **typed):
    """Sources of a notebook's code cells; ``typed`` values stand in the parameters cell in place of its own."""
    cells = [c for c in nbformat.read(notebook_source(name), as_version=4).cells if c.cell_type == "code"]
    sources = [c.source for c in cells]
    lines = sources[0].splitlines()
    for parameter, value in typed.items():
        place = next((i for i, line in enumerate(lines) if line.startswith(f"{parameter}:")), len(lines))
        kind = lines[place].partition(":")[2].partition("=")[0].strip() if place < len(lines) else type(value).__name__
        lines[place : place + 1] = [f"{parameter}: {kind} = {value!r}"]
    return ["\n".join(lines), *sources[1:]]


def all_at_once(sources):
    """Queue all cells in one kernel before any reply is read, as Run All does; the replies with what each cell printed."""
    return asyncio.run(_all_at_once(sources))


async def _all_at_once(sources):
    manager, client = await start_new_async_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        asked = [client.execute(source, stop_on_error=False) for source in sources]
        replies, printed = {}, {}
        while not replies.keys() >= set(asked):  # what answers the start may come in between
            message = await client.get_shell_msg(timeout=180)
            replies[message["parent_header"]["msg_id"]] = message["content"]
        with suppress(Exception):  # what was printed has arrived by now, but for the very last of it
            while message := await client.get_iopub_msg(timeout=0.5):
                if message["msg_type"] == "stream":
                    printed.setdefault(message["parent_header"]["msg_id"], []).append(message["content"]["text"])
        return [replies[i] | {"printed": "".join(printed.get(i, []))} for i in asked]
    finally:
        client.stop_channels()
        with suppress(RuntimeError):
            await manager.shutdown_kernel(now=True)


def all_ran(replies):
    """Assert that no cell raised; shows what the others said."""
    assert [r["status"] for r in replies] == ["ok"] * len(replies), [r.get("evalue") for r in replies if r["status"] != "ok"]
