"""A section more: one row of the registry and its notebook, and everything else knows it."""

import shutil
import sys

import pytest

from tests.rehearsal.endpoint import Endpoint
from tests.rehearsal.reports import shown
from tests.rehearsal.simulate import write_frozen
from tests.small_project import ROOT, copy_project, executed, helpers, run, write_notebook, write_profile

ROW = """    Section("10_toy", "Toy section", "toy", lambda ids, e, w: make_plan(ids, ENDPOINTS, [direct(e.stack)], waves=w)),
"""
PARAMETERS = "PROFILE: str = 'embedded'  # whose traces\nDRAWS: int = 200  # bootstrap draws"
CELLS = (
    "from helpers.lab import Lab\nfrom helpers.measuring import reducers\n\nlab = Lab.open('10_toy', PROFILE, draws=DRAWS)",
    "cells = await lab.ask()\nlab.completeness(cells)",
    "gains = reducers.transition_gains(reducers.endpoint_margins(cells, lab.study), by='template').dropna()\n"
    "ids = gains.index.get_level_values('trajectory_id').to_numpy()\n"
    "point, replicates = lab.draws(ids).means(gains, ids)\n"
    "lab.results.add('toy.gain', point[0], replicates[:, 0], cohort='all', n=len(ids), transitions=len(ids), quantity='gain of the toy')\n"
    "lab.write()",
)
COMMANDS = """
from helpers.__main__ import main
for command in (["plan", "--sections", "10_toy"], ["record", "--sections", "10_toy"], ["why", "--section", "10_toy"]):
    print("#", command[0], flush=True)
    assert main(command) == 0
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with the row and the notebook, and the endpoint that its evaluator asks."""
    folder = copy_project(tmp_path_factory.mktemp("toy"))
    registry = folder / "helpers" / "channels" / "sections.py"
    text = registry.read_text(encoding="utf-8")
    assert text.count("\n)  # fmt: skip\n\n\ndef section(") == 1
    registry.write_text(text.replace("\n)  # fmt: skip\n\n\ndef section(", f"\n{ROW})  # fmt: skip\n\n\ndef section("), encoding="utf-8")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    write_notebook(folder / "notebooks" / "10_toy.ipynb", PARAMETERS, *CELLS, title="10. A toy section")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    write_profile(folder / "params" / "embedded", NOTEBOOKS=["00_overview", "10_toy"], PAPER="data/paper_reported.csv")
    write_frozen(folder / "data", 3)
    shutil.copy(ROOT / "data" / "paper_reported.csv", folder / "data")
    with Endpoint() as endpoint:
        stacks = folder / "params" / "stacks.yml"
        stacks.write_text(stacks.read_text(encoding="utf-8").replace("http://127.0.0.1:8808/v1", endpoint.url), encoding="utf-8")
        yield folder


@pytest.fixture(scope="module")
def said(project):
    """What plan, record and why said, by command."""
    done = run(project, sys.executable, "-c", COMMANDS, ASV_SMOKE_KEY="a-key-for-the-toy")
    assert done.returncode == 0, done.stderr
    return dict(part.split("\n", 1) for part in done.stdout.split("# ")[1:])


@pytest.fixture(scope="module")
def report(project, said):
    """What reproducing the report said."""
    done = helpers(project, "reproduce")
    assert done.returncode == 0, done.stderr
    return done


CELLS_OF_IT = 3 * 2 * 4  # trajectories, states, layouts


def test_it_is_planned_recorded_and_explained(said):
    assert f"in all: {CELLS_OF_IT} calls" in said["plan"] and "10_toy" in said["plan"]
    assert f"10_toy: {CELLS_OF_IT} answers by smoke." in said["record"]
    assert said["why"] == f"{CELLS_OF_IT} cells, 0 of them missing.\n"


def test_the_overview_and_the_index_page_tell_its_finding(project, report):
    assert executed(report)[-1] == "00_overview" and set(executed(report)) == {"10_toy", "00_overview"}
    text = shown(project / "outputs" / "embedded" / "00_overview.ipynb")
    assert "- **10. Toy section:** on 3 trajectories gain of the toy: " in text and "trajectories analysed in 10_toy" in text
    page = (project / "outputs" / "embedded" / "index.html").read_text(encoding="utf-8")
    assert "<a href='10_toy.html'>10. A toy section</a>" in page


def test_the_data_card_counts_it(project, report):
    script = "from tests import datacard; print(*datacard.recorded(3, datacard.ROOT), sep='\\n')"
    done = run(project, sys.executable, "-c", script)
    assert done.stdout == "- 10_toy: 3 trajectories analysed of 3 frozen.\n", done.stderr
