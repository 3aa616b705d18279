"""The Makefile, run for real in a small copy of the project: what is executed, when, and what is refused.

The copy has three tiny notebooks and this test's own Python instead of .venv, so nothing is installed.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
SITE = """
import pathlib, sys
pathlib.Path('outputs', sys.argv[1], 'index.html').write_text('pages')
print('pages written')
"""
TABLES = "import pathlib\nprint(len(list(pathlib.Path('outputs/embedded').glob('0[12]_*.csv'))), 'tables')"


def write_notebook(path, parameters, *sources):
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), *map(new_code_cell, sources)]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), path)


def table(name):
    return f"import pathlib\npathlib.Path('outputs/embedded/{name}.csv').write_text(f'{{DRAWS}}')\nprint(DRAWS)"


def copy_project(folder):
    """Makefile, helpers and parameters as they are; notebooks, page writer and environment of its own."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "requirements.lock").touch()
    (folder / "helpers").mkdir()
    for name in ("__init__", "params", "executor", "environment"):
        shutil.copy(ROOT / "helpers" / f"{name}.py", folder / "helpers")
    (folder / "helpers" / "site.py").write_text(SITE)
    for profile in ("embedded", "smoke"):
        (folder / "params" / profile).mkdir(parents=True)
        (folder / "params" / profile / "common.yml").write_text("SEED: 7\n")
    write_notebook(folder / "notebooks" / "00_overview.ipynb", "LEVEL: float = 0.9", TABLES)
    write_notebook(folder / "notebooks" / "01_first.ipynb", "DRAWS: int = 3", table("01_first"))
    write_notebook(folder / "notebooks" / "02_second.ipynb", "DRAWS: int = 5", table("02_second"))
    write_notebook(folder / "notebooks" / "tools" / "inspect.ipynb", "AT: int = 1", "print(AT)")
    venv = folder / ".venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (venv / ".ready").touch()
    return folder


def make(folder, *arguments, **environment):
    """The finished process of one make call, without what an outer make or conda would hand down."""
    kept = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CONDA_PREFIX", "SET")}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env={**kept, **environment}, capture_output=True, text=True, timeout=300
    )  # fmt: skip


def executed(done):
    """Names of the notebooks that a call executed, in order."""
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Executing ")]


def touch(path):
    """Make a file newer than everything that was written before."""
    later = time.time() + 2
    os.utime(path, (later, later))


def printed(folder, name, cell=-1):
    return nbformat.read(folder / "outputs" / "embedded" / f"{name}.ipynb", as_version=4).cells[cell].outputs[0].text


@pytest.fixture
def project(tmp_path):
    return copy_project(tmp_path)


def test_help_is_what_make_says_first_and_it_lists_every_target(project):
    done = make(project)
    assert done.returncode == 0
    targets = "help reproduce report test lab freeze plan record why verify smoke probe model endpoint bench coverage "
    targets += "lock clean"
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("make ")] == targets.split()
    assert "Profiles (PROFILE=): embedded smoke. Notebooks (NB=): 00_overview 01_first 02_second inspect" in done.stdout


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("PROFILE=embeded", "no profile 'embeded' in params/. There are: embedded smoke"),
        ("PROFILE=", "no profile '' in params/. There are: embedded smoke"),
        ("NB=01_frist", "no notebook '01_frist' in notebooks/. There are: 00_overview 01_first 02_second inspect"),
        ("NB=01_first 02_second", "NB names one notebook, and '01_first 02_second' is 2"),
    ],
)
def test_a_misspelt_profile_or_notebook_stops_with_the_list_of_the_right_ones(project, setting, said):
    done = make(project, "reproduce", setting)
    assert done.returncode != 0
    assert said in done.stderr
    assert not (project / "outputs").exists()


def test_a_notebook_may_be_left_out(project):
    done = make(project, "-n", "reproduce", "WITHOUT=02_second")
    assert done.returncode == 0 and "embedded 01_first" in done.stdout and "embedded 02_second" not in done.stdout


def test_a_profile_without_a_second_evaluator_has_no_bridge(project):
    shutil.copy(project / "notebooks/01_first.ipynb", project / "notebooks/05_bridge.ipynb")
    assert "embedded 05_bridge" not in make(project, "-n", "reproduce").stdout
    with (project / "params/embedded/common.yml").open("a") as out:
        out.write("SECOND_STACK: another\n")
    assert "embedded 05_bridge" in make(project, "-n", "reproduce").stdout


def test_a_misspelt_setting_stops_with_the_list_before_anything_runs(project):
    done = make(project, "reproduce", "SET=DRAW=9")
    assert done.returncode != 0 and executed(done) == []
    assert "no parameter 'DRAW' in any notebook. Did you mean 'DRAWS'? There are: LEVEL, DRAWS" in done.stderr
    done = make(project, "reproduce", "NB=01_first", "SET=LEVEL=0.8")
    assert done.returncode != 0 and executed(done) == []
    assert "no parameter 'LEVEL' in this notebook" in done.stderr


def test_the_life_of_a_report(project):
    """One story, because every chapter needs the one before: kernels take seconds to start."""
    first = make(project, "-j2", "reproduce")
    assert first.returncode == 0, first.stderr
    assert sorted(executed(first)) == ["00_overview", "01_first", "02_second"]
    assert executed(first)[-1] == "00_overview" and printed(project, "00_overview") == "2 tables\n"
    assert first.stdout.endswith("The report is up to date: outputs/embedded/index.html\n")

    again = make(project, "reproduce")
    assert again.returncode == 0 and executed(again) == [] and "pages written" not in again.stdout

    changed = make(project, "reproduce", "NB=01_first", "SET=DRAWS=11")
    assert changed.returncode == 0 and executed(changed) == ["01_first"], changed.stderr
    assert printed(project, "01_first") == "11\n"

    back = make(project, "reproduce")
    assert executed(back) == ["01_first", "00_overview"] and printed(project, "01_first") == "3\n"

    touch(project / ".venv" / ".ready")  # as after a fresh clone: set up later than the committed outputs
    fresh = make(project, "-n", "reproduce")
    assert sorted(executed_dry(fresh)) == ["00_overview", "01_first", "02_second"]


def executed_dry(done):
    """Names of the notebooks that ``make -n`` would execute."""
    return re.findall(r'echo "Executing (\w+)"', done.stdout)


def test_a_notebook_that_fails_stops_make_and_is_tried_again(project):
    write_notebook(project / "notebooks" / "01_first.ipynb", "DRAWS: int = 3", "raise ValueError('no data')")
    for _ in range(2):
        done = make(project, "reproduce", "NB=01_first")
        assert done.returncode != 0 and executed(done) == ["01_first"]
        said = "01_first, before the first heading: ValueError: no data See outputs/embedded/01_first.failed.ipynb."
        assert said in done.stderr
    assert not (project / "outputs" / "embedded" / "01_first.ipynb").exists()
    assert not (project / "outputs" / "embedded" / "index.html").exists()


def test_a_tool_is_executed_beside_the_report(project):
    done = make(project, "reproduce", "NB=inspect", "SET=AT=4")
    assert done.returncode == 0, done.stderr
    assert printed(project, "tools/inspect") == "4\n"
    assert done.stdout.endswith("The report is up to date: outputs/embedded/tools/inspect.ipynb\n")


@pytest.mark.parametrize(
    "changed", ["params/embedded/common.yml", "helpers/reporting/params.py", "data/views.jsonl", "notebooks/01_first.ipynb"]
)
def test_what_a_notebook_is_made_from_makes_it_out_of_date(project, changed):
    (project / "data").mkdir()
    (project / "data" / "views.jsonl").touch()
    out = project / "outputs" / "embedded"
    out.mkdir(parents=True)
    state = project / ".work" / "embedded"
    state.mkdir(parents=True)
    for name in ("00_overview", "01_first", "02_second"):
        (state / f"{name}.set").touch()
        touch(out / shutil.copy(project / "notebooks" / f"{name}.ipynb", out))
    touch(out / "00_overview.ipynb")
    assert executed_dry(make(project, "-n", "reproduce")) == []
    later = time.time() + 60
    os.utime(project / changed, (later, later))
    assert "01_first" in executed_dry(make(project, "-n", "reproduce"))


def test_without_a_new_enough_python_set_up_says_so_in_one_sentence(project, tmp_path):
    shutil.rmtree(project / ".venv")
    tools = project / "tools"
    tools.mkdir()
    for name in ("sh", "touch", "mkdir", "cmp", "sed"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    done = subprocess.run(
        [shutil.which("make"), ".venv/.ready"], cwd=project, env={"PATH": str(tools)}, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.startswith("error: no Python 3.11 or newer on PATH.")
    assert not (project / ".venv" / ".ready").exists()


def conda(folder, status):
    """A conda environment whose Python says that it fits (status 0) or does not."""
    (folder / "conda" / "bin").mkdir(parents=True)
    python = folder / "conda" / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase "$1" in *environment.py) exit {status};; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return str(folder / "conda")


def test_an_active_conda_environment_that_has_everything_is_used_as_it_is(project):
    done = make(project, "-n", "plan", CONDA_PREFIX=conda(project, 0))
    assert f"{project}/conda/bin/python -m helpers.asking.record plan" in done.stdout


def test_an_active_conda_environment_that_lacks_something_is_left_alone(project):
    done = make(project, "-n", "plan", CONDA_PREFIX=conda(project, 1))
    assert ".venv/bin/python -m helpers.asking.record plan" in done.stdout and "conda/bin" not in done.stdout


def test_pubmedqa_asks_for_its_file_and_says_when_it_is_not_there(project):
    shutil.copytree(project / "params" / "smoke", project / "params" / "pubmedqa")
    done = make(project, "reproduce", "PROFILE=pubmedqa")
    assert done.returncode != 0
    assert "error: say which questions: PUBMEDQA=<pqal_dev.json or ori_pqal.json> N=3" in done.stderr
    done = make(project, "reproduce", "PROFILE=pubmedqa", "PUBMEDQA=nowhere.json")
    assert done.returncode != 0 and "error: nowhere.json: no such file" in done.stderr


def test_clean_keeps_recordings_and_reports(project):
    kept = [project / "data" / "recordings" / "a.parquet", project / "outputs" / "embedded" / "01_first.ipynb"]
    kept += [project / "outputs" / "paper" / "data" / "recordings" / "journal" / "deepseek.sqlite"]
    gone = [project / "outputs" / "smoke" / "x.csv", project / "outputs" / "embedded" / "01_first.failed.ipynb"]
    for path in [*kept, *gone]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert make(project, "clean").returncode == 0
    assert all(path.exists() for path in kept) and not any(path.exists() for path in [*gone, project / ".venv"])
