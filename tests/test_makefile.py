"""The Makefile, run for real in a small copy of the project: what is executed, when, and what is refused.

The copy has tiny notebooks and this test's own Python instead of .venv, so nothing is installed. Which notebooks are out
of date, and why, is tested without a kernel in reporting/test_reproduce.py.
"""

import json
import shutil
import subprocess

import nbformat
import pytest

from tests.small_project import contents, copy_project, executed, make, run, write_notebook, write_profile

TABLES = "import json, os, pathlib\nfolder = pathlib.Path(json.loads(os.environ['ASV_RUN'])['folder'])\n"
COUNT = TABLES + "print(len(list(folder.glob('0[12]_*.csv'))), 'tables')"
NAMES = ["00_overview", "01_first"]


def table(name):
    return TABLES + f"(folder / '{name}.csv').write_text(f'{{DRAWS}}')\nprint(DRAWS)"


def with_notebooks(folder):
    """The copy with three notebooks and a tool, and two profiles that run two; the overview counts the others' tables."""
    copy_project(folder)
    write_profile(folder / "params" / "embedded", NOTEBOOKS=NAMES)
    write_profile(folder / "params" / "smoke", NOTEBOOKS=NAMES)
    profile = "PROFILE: str = 'embedded'\n"
    write_notebook(folder / "notebooks" / "00_overview.ipynb", profile + "SHARE: float = 0.9", COUNT)
    write_notebook(folder / "notebooks" / "01_first.ipynb", profile + "DRAWS: int = 3", table("01_first"))
    write_notebook(folder / "notebooks" / "02_second.ipynb", profile + "DRAWS: int = 5", table("02_second"))
    write_notebook(folder / "notebooks" / "tools" / "inspect.ipynb", profile + "AT: int = 1", "print(AT)")
    return folder


def printed(folder, name):
    return nbformat.read(folder / "outputs" / f"{name}.ipynb", as_version=4).cells[-1].outputs[0].text


@pytest.fixture
def project(tmp_path):
    return with_notebooks(tmp_path)


def test_help_is_what_make_says_first_and_it_lists_every_target(project):
    done = make(project)
    assert done.returncode == 0
    targets = "help reproduce report test lab freeze plan record why verify smoke probe model endpoint bench coverage "
    targets += "lock clean"
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("make ")] == targets.split()
    assert "Profiles (PROFILE=): embedded smoke." in done.stdout
    assert "Notebooks (NB=): 00_overview 01_first 02_second inspect." in done.stdout
    phony = (project / "Makefile").read_text().partition(".PHONY:")[2].partition("\n")[0].split()
    assert phony == targets.split(), "test, notebooks and the like are folders, too"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("PROFILE=embeded", "no profile 'embeded'. Did you mean 'embedded'? There are: embedded, smoke."),
        ("PROFILE=", "no profile ''. There are: embedded, smoke."),
        ("NB=01_frist", "no notebook '01_frist' in notebooks/. Did you mean '01_first'? There are: 00_overview, 01_first, "),
        ("SET=DRAW=9", "no parameter 'DRAW' in any notebook. Did you mean 'DRAWS'? There are: PROFILE, SHARE, DRAWS"),
    ],
)
def test_a_misspelt_word_stops_with_the_list_of_the_right_ones(project, setting, said):
    done = make(project, "reproduce", setting)
    assert done.returncode != 0 and executed(done) == []
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (project / "outputs").exists()


def test_the_life_of_a_report(project):
    """One story, because every chapter needs the one before: kernels take seconds to start."""
    first = make(project, "-j2", "reproduce")
    assert first.returncode == 0, first.stderr
    assert sorted(executed(first)) == NAMES
    assert executed(first)[-1] == "00_overview" and printed(project, "embedded/00_overview") == "1 tables\n"
    assert first.stdout.endswith("The report is up to date: outputs/embedded/index.html\n")
    report = contents(project / "outputs")
    assert {f"embedded/{n}.html" for n in (*NAMES, "index")} <= set(report)
    made = json.loads(report["embedded/manifest.json"])
    assert made["01_first"]["values"]["DRAWS"] == 3 and set(made["01_first"]["files"]) == {"01_first.csv", "01_first.ipynb"}

    again = make(project, "reproduce")
    assert again.returncode == 0 and executed(again) == [] and contents(project / "outputs") == report

    changed = make(project, "reproduce", "NB=01_first", "SET=DRAWS=11")
    assert changed.returncode == 0 and executed(changed) == ["01_first"], changed.stderr
    assert printed(project, "tweaked/01_first/01_first") == "11\n"
    assert changed.stdout.endswith("The report is up to date: outputs/tweaked/01_first/index.html\n")
    assert contents(project / "outputs" / "embedded") == {k.removeprefix("embedded/"): v for k, v in report.items()}

    (project / "outputs" / "embedded" / "01_first.csv").write_text("11")  # as a run in JupyterLab could leave it
    back = make(project, "reproduce", "WITHOUT=00_overview")
    assert executed(back) == ["01_first"] and printed(project, "embedded/01_first") == "3\n"
    assert contents(project / "outputs" / "embedded") == {k.removeprefix("embedded/"): v for k, v in report.items()}


def test_a_notebook_that_fails_stops_make_with_one_sentence(project):
    write_notebook(project / "notebooks" / "01_first.ipynb", "DRAWS: int = 3", "raise ValueError('no data')", title="First")
    done = make(project, "reproduce", "NB=01_first")
    assert done.returncode != 0 and executed(done) == ["01_first"]
    said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert said == ["error: 01_first, under 'First': ValueError: no data See outputs/embedded/01_first.failed.ipynb."]
    assert sorted(contents(project / "outputs")) == ["embedded/01_first.failed.ipynb"]


def test_a_profile_in_a_folder_of_its_own_is_reported_there(project, tmp_path_factory):
    mine = tmp_path_factory.mktemp("away") / "study"
    write_profile(mine, NOTEBOOKS=["02_second"], OUTPUT=str(mine / "out"))
    (mine / "02_second.yml").write_text("DRAWS: 8\n")
    done = make(project, "reproduce", f"PROFILE={mine}")
    assert done.returncode == 0 and executed(done) == ["02_second"], done.stderr
    assert (mine / "out" / "02_second.csv").read_text() == "8"
    assert f"{mine}/02_second.yml sets DRAWS = 8.\n" in done.stdout
    assert done.stdout.endswith(f"The report is up to date: {mine}/out/index.html\n")
    pages = make(project, "report", f"PROFILE={mine}")
    assert pages.stdout == f"{mine}/out/index.html: 1 notebooks.\n" and not (project / "outputs").exists()


# -- set-up -------------------------------------------------------------------------------------------


def test_without_a_new_enough_python_set_up_says_so_in_one_sentence(project):
    shutil.rmtree(project / ".venv")
    tools = project / "tools"
    tools.mkdir()
    for name in ("sh", "touch", "mkdir"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    command = [shutil.which("make"), ".venv/.ready"]
    done = subprocess.run(command, cwd=project, env={"PATH": str(tools)}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("error: no Python 3.11 or newer on PATH.")
    assert not (project / ".venv" / ".ready").exists()


def test_an_environment_of_ones_own_is_used_as_it_is(project):
    shutil.rmtree(project / ".venv")
    done = make(project, "-n", "plan", "PY=conda/bin/python")
    assert done.stdout == "conda/bin/python -m helpers plan \n", "and nothing is set up"
    done = make(project, "-n", "plan")
    assert ".venv/bin/python -m helpers plan" in done.stdout and "Setting up .venv" in done.stdout


def test_set_up_lets_git_strip_the_outputs_of_source_notebooks(project):
    run(project, "git", "init", "-q", GIT_CONFIG_GLOBAL="/dev/null")
    assert run(project, ".venv/bin/python", "-m", "helpers", "clean-sources").returncode == 0
    told = run(project, "git", "config", "--get", "filter.outputs.clean").stdout
    assert "nbstripout" in told
    shutil.rmtree(project / ".venv")
    filtered = run(project, "sh", "-c", f"echo as it is | {told.strip()}")
    assert filtered.stdout == "as it is\n", "without an environment nothing is filtered"


def test_pubmedqa_asks_for_its_file_and_says_when_it_is_not_there(project):
    write_profile(project / "params" / "pubmedqa", PREPARE="pubmedqa", NOTEBOOKS=["01_first"])
    for given, said in (([], "say which questions: PUBMEDQA=<pqal_dev.json or ori_pqal.json> N=3"),
                        (["PUBMEDQA=nowhere.json"], "nowhere.json: no such file")):  # fmt: skip
        done = make(project, "reproduce", "PROFILE=pubmedqa", *given)
        assert done.returncode != 0 and f"error: {said}" in done.stderr


def test_clean_keeps_recordings_and_reports(project):
    kept = [project / "data" / "recordings" / "a.parquet", project / "outputs" / "embedded" / "01_first.ipynb"]
    kept += [project / "outputs" / "paper" / "data" / "recordings" / "journal" / "deepseek.sqlite"]
    gone = [project / "outputs" / "smoke" / "x.csv", project / "outputs" / "embedded" / "01_first.failed.ipynb"]
    gone += [project / "outputs" / "tweaked" / "01_first" / "01_first.csv", project / ".work" / "outputs-embedded" / "01.made"]
    for path in [*kept, *gone]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert make(project, "clean").returncode == 0
    assert all(path.exists() for path in kept) and not any(path.exists() for path in [*gone, project / ".venv"])
