"""Which notebooks a report executes, when, and where to; nothing is really executed here (see test_makefile)."""

import os
import shutil
import threading
import time
from types import SimpleNamespace

import pytest

from helpers.reporting import execute, manifest, reproduce, site
from helpers.reporting.params import ParameterError, merged, settings_of
from helpers.study import pubmedqa
from tests.small_project import contents, write_notebook, write_profile

CELL = "PROFILE: str = 'mine'\nDRAWS: int = 7\nSTACK: str = ''"
NAMES = ["00_overview", "01_first", "02_second"]


@pytest.fixture
def root(tmp_path):
    """Three notebooks, a tool, and a profile that runs the three."""
    for name in NAMES:
        write_notebook(tmp_path / "notebooks" / f"{name}.ipynb", CELL)
    write_notebook(tmp_path / "notebooks" / "02_second.ipynb", CELL + "\nBAND: float = 0.5")
    write_notebook(tmp_path / "notebooks" / "tools" / "inspect.ipynb", "PROFILE: str = 'mine'\nAT: int = 1")
    write_profile(tmp_path / "params" / "mine", NOTEBOOKS=NAMES)
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "lab.py").write_text("one")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "views.jsonl").write_text("one")
    return tmp_path


@pytest.fixture
def made(monkeypatch):
    """Names of the notebooks that were executed, in order; each writes its values, the overview the tables it finds."""
    found = SimpleNamespace(names=[], fail=set(), most=0, now=0, lock=threading.Lock())

    def run(job):
        with found.lock:
            found.names.append(job.notebook)
            found.now += 1
            found.most = max(found.most, found.now)
        time.sleep(0.02)
        found.now -= 1
        if job.notebook in found.fail:
            raise reproduce.Stopped(1)
        (job.output.parent / "figures").mkdir(parents=True, exist_ok=True)
        job.output.write_text("executed")
        tables = {p.name: p.read_text() for p in job.folder.glob("0[1-9]*.csv")} if job.notebook == "00_overview" else {}
        number = job.notebook.split("_")[0]
        (job.output.parent / f"{job.notebook}.csv").write_text(f"{job.values.get('DRAWS')} {tables}")
        (job.output.parent / "figures" / f"{number}_a.png").write_text("picture")

    def build(folder, profile):
        for name in ("index", "01_first"):
            (folder / f"{name}.html").write_text(f"pages of {profile}")

    monkeypatch.setattr(reproduce, "_in_a_process_of_its_own", run)
    monkeypatch.setattr(site, "build", build)
    return found


def again(made, root, **options):
    """What one more run executes, and the page that it names."""
    made.names.clear()
    page = reproduce.reproduce(options.pop("profile", "mine"), root=root, **options)
    return list(made.names), page


def names(jobs):
    return [job.notebook for job in jobs]


# -- the plan -----------------------------------------------------------------------------------------


def test_a_report_is_the_list_of_its_profile_without_what_is_left_out(root):
    assert names(reproduce.plan("mine", root=root)) == NAMES
    assert names(reproduce.plan("mine", without=["01_first"], root=root)) == ["00_overview", "02_second"]
    assert names(reproduce.plan("mine", only="inspect", root=root)) == ["inspect"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"only": "01_frist"}, r"no notebook '01_frist' in notebooks/. Did you mean '01_first'\? There are: 00_overview, 01_first"),
        ({"without": ["02_secnd"]}, r"no notebook '02_secnd' in notebooks/. Did you mean '02_second'\?"),
        ({"setting": "DRAW=9"}, r"no parameter 'DRAW' in any notebook. Did you mean 'DRAWS'\? There are: PROFILE, DRAWS"),
        ({"only": "01_first", "setting": "BAND=0.5"}, "no parameter 'BAND' in this notebook"),
        ({"only": "01_first", "setting": "DRAWS=many"}, "01_first: DRAWS = 'many' is no int; its default is 7"),
        ({"without": NAMES}, "params/mine/common.yml: NOTEBOOKS lists no notebook to execute"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_before_anything_runs(root, options, said):
    with pytest.raises(ParameterError, match=said):
        reproduce.plan("mine", root=root, **options)


def test_a_list_that_names_a_notebook_that_is_gone_is_refused(root):
    write_profile(root / "params" / "mine", NOTEBOOKS=["01_first", "03_third"])
    with pytest.raises(ParameterError, match="no notebook '03_third' in notebooks/"):
        reproduce.plan("mine", root=root)


def test_a_setting_for_all_reaches_those_that_know_it(root):
    jobs = reproduce.plan("mine", setting="BAND=0.25 DRAWS=9", root=root)
    assert [(job.values["DRAWS"], job.values.get("BAND")) for job in jobs] == [(9, None), (9, None), (9, 0.25)]


# -- up to date ---------------------------------------------------------------------------------------


def test_the_overview_runs_last_and_a_second_run_does_nothing(root, made):
    ran, page = again(made, root)
    assert sorted(ran) == NAMES and ran[-1] == "00_overview" and page == root / "outputs/mine/index.html"
    assert "01_first.csv" in (root / "outputs/mine/00_overview.csv").read_text()
    before = contents(root / "outputs")
    assert again(made, root)[0] == [] and contents(root / "outputs") == before


@pytest.mark.parametrize("changed", ["helpers/lab.py", "data/views.jsonl"])
def test_what_all_notebooks_are_made_from_makes_all_of_them_out_of_date_by_its_content(root, made, changed):
    again(made, root)
    later = time.time() + 60
    os.utime(root / changed, (later, later))
    assert again(made, root)[0] == []
    (root / changed).write_text("another text")
    assert sorted(again(made, root)[0]) == NAMES


def test_a_value_typed_into_a_cell_or_a_file_of_its_own_makes_that_notebook_out_of_date_in_the_report(root, made):
    again(made, root)
    write_notebook(root / "notebooks" / "01_first.ipynb", CELL.replace("7", "777"))
    assert again(made, root) == (["01_first", "00_overview"], root / "outputs/mine/index.html")
    assert (root / "outputs/mine/01_first.csv").read_text().startswith("777")
    (root / "params" / "mine" / "02_second.yml").write_text("DRAWS: 8\n")
    assert again(made, root)[0] == ["02_second", "00_overview"] and not (root / "outputs" / "tweaked").exists()


def test_the_overview_runs_again_only_when_another_table_changed(root, made):
    again(made, root)
    (root / "params" / "mine" / "02_second.yml").write_text("BAND: 0.75\n")
    assert again(made, root)[0] == ["02_second"], "its table is the same"
    (root / "outputs" / "mine" / "verify.json").write_text("{}")
    assert again(made, root)[0] == ["00_overview"]


@pytest.mark.parametrize("name", ["01_first.csv", "01_first.ipynb", "figures/01_a.png"])
@pytest.mark.parametrize("change", ["changed", "deleted"])
def test_a_file_of_the_report_that_is_changed_or_deleted_is_put_back(root, made, name, change):
    again(made, root)
    before = contents(root / "outputs")
    path = root / "outputs" / "mine" / name
    path.write_text("edited by hand") if change == "changed" else path.unlink()
    assert "01_first" in again(made, root)[0]
    assert contents(root / "outputs") == before
    assert again(made, root)[0] == []


@pytest.mark.parametrize("change", ["changed", "deleted"])
def test_a_page_that_is_changed_or_deleted_is_written_again_and_nothing_is_executed(root, made, change):
    again(made, root)
    before, page = contents(root / "outputs"), root / "outputs" / "mine" / "01_first.html"
    page.write_text("edited") if change == "changed" else page.unlink()
    assert again(made, root)[0] == [] and contents(root / "outputs") == before


def test_a_fresh_clone_executes_the_report_once_and_finds_every_byte_as_it_was(root, made):
    again(made, root)
    before = contents(root / "outputs")
    shutil.rmtree(root / ".work")
    assert sorted(again(made, root)[0]) == NAMES and contents(root / "outputs") == before
    assert again(made, root)[0] == []


def test_a_notebook_that_fails_is_tried_again_and_what_was_finished_meanwhile_is_not(root, made):
    made.fail = {"01_first"}
    for ran in (["01_first", "02_second"], ["01_first"]):
        with pytest.raises(reproduce.Stopped):
            again(made, root)
        assert sorted(made.names) == ran
    assert not (root / "outputs" / "mine" / "index.html").exists()
    made.fail = set()
    assert again(made, root)[0] == ["01_first", "00_overview"]


def test_two_run_at_a_time_and_one_where_an_evaluator_may_be_asked(root, made, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    again(made, root)
    assert made.most == 2
    made.most = 0
    write_profile(root / "params" / "mine", NOTEBOOKS=NAMES, ACQUIRE="missing")
    assert sorted(again(made, root)[0]) == NAMES and made.most == 1


# -- trying something ---------------------------------------------------------------------------------


def test_another_value_goes_to_a_folder_of_its_own_and_leaves_the_report_alone(root, made):
    again(made, root)
    before = contents(root / "outputs" / "mine")
    ran, page = again(made, root, only="01_first", setting="DRAWS=9")
    assert (ran, page) == (["01_first"], root / "outputs/tweaked/01_first/index.html")
    assert (root / "outputs/tweaked/01_first/01_first.csv").read_text().startswith("9")
    ran, page = again(made, root, setting="DRAWS=9")
    assert sorted(ran) == NAMES and page == root / "outputs/tweaked/mine/index.html"
    assert contents(root / "outputs" / "mine") == before and again(made, root)[0] == []
    assert again(made, root, setting="DRAWS=9")[0] == [], "a try is remembered, too"


@pytest.mark.parametrize("setting", ["DRAWS=7", "STACK=smoke", "SEED=20260716", "BUDGET=5", "LEVEL=0.95 DRAWS=7"])
def test_a_value_that_the_profile_has_anyway_is_no_try(root, made, setting):
    again(made, root)
    assert again(made, root, setting=setting) == ([], root / "outputs/mine/index.html")


def test_another_setting_of_the_profile_is_a_try_as_well(root, made):
    ran, page = again(made, root, only="02_second", setting="SEED=3")
    assert page == root / "outputs/tweaked/02_second/index.html" and ran == ["02_second"]
    assert manifest.read(page.parent)["02_second"]["values"]["SEED"] == 3


def test_an_output_folder_that_is_named_is_used(root, made, tmp_path):
    _, page = again(made, root, only="01_first", setting=f"OUTPUT={tmp_path}/else DRAWS=9")
    assert page == tmp_path / "else" / "index.html" and not (root / "outputs").exists()


def test_a_profile_may_be_a_folder_anywhere_and_its_tries_go_to_its_name(root, made, tmp_path_factory):
    mine = write_profile(tmp_path_factory.mktemp("away") / "study", NOTEBOOKS=["01_first"], OUTPUT=None)
    write_profile(mine, NOTEBOOKS=["01_first"], OUTPUT=str(mine / "out"))
    assert again(made, root, profile=str(mine)) == (["01_first"], mine / "out" / "index.html")
    assert again(made, root, profile=str(mine))[0] == []
    assert again(made, root, profile=str(mine), setting="DRAWS=9")[1] == root / "outputs/tweaked/study/index.html"


def test_a_tool_goes_beside_the_report_and_is_no_part_of_it(root, made):
    again(made, root)
    before = (root / "outputs/mine/manifest.json").read_bytes()
    assert again(made, root, only="inspect") == (["inspect"], root / "outputs/mine/tools/inspect.ipynb")
    assert again(made, root, only="inspect")[0] == [] and (root / "outputs/mine/manifest.json").read_bytes() == before
    assert again(made, root, only="inspect", setting="AT=4")[1] == root / "outputs/tweaked/inspect/tools/inspect.ipynb"


# -- one notebook -------------------------------------------------------------------------------------


def test_a_notebook_gets_what_differs_from_its_cell_and_one_line_says_what_goes_over_the_cell(root, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(execute, "execute", lambda source, output, cell, **how: calls.append((output, cell, how)))
    (root / "params" / "mine" / "02_second.yml").write_text("BAND: 0.75\n")
    (job,) = reproduce.plan("mine", only="02_second", setting="DRAWS=9 SEED=3", root=root)
    job.run()
    folder = root / "outputs/tweaked/02_second"
    wanted = {"settings": {"SEED": 3}, "folder": folder, "root": root}
    assert calls == [(folder / "02_second.ipynb", {"DRAWS": 9, "BAND": 0.75}, wanted)]
    assert capsys.readouterr().out == "params/mine/02_second.yml sets BAND = 0.75.\n"


# -- a profile whose data are made first --------------------------------------------------------------


@pytest.fixture
def built(root, monkeypatch):
    """A pubmedqa profile, and the calls that built its tasks."""
    calls = []

    def build(path, number, folder):
        calls.append((path, number))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tasks.jsonl").write_text(f"{number}")
        return [{}] * number

    monkeypatch.setattr(pubmedqa, "build", build)
    write_profile(root / "params" / "pubmedqa", PREPARE="pubmedqa", NOTEBOOKS=["01_first"], TASKS="outputs/pubmedqa/data/tasks.jsonl")
    (root / "questions.json").write_text("{}")
    return calls


def test_the_questions_come_from_a_file_that_must_be_named_and_exist(root, built):
    settings = settings_of("pubmedqa", root=root)
    with pytest.raises(ParameterError, match="say which questions: PUBMEDQA=<pqal_dev.json or ori_pqal.json> N=3"):
        reproduce._prepare(settings, "", None, root)
    with pytest.raises(ParameterError, match="nowhere.json: no such file; PUBMEDQA is a pqal_dev.json or ori_pqal.json"):
        reproduce._prepare(settings, "nowhere.json", None, root)
    with pytest.raises(ParameterError, match="N = 'three'; it is a number of questions, such as N=3"):
        reproduce._prepare(settings, str(root / "questions.json"), "three", root)
    assert built == []


def test_another_file_or_number_makes_the_tasks_again_and_the_one_named_before_is_meant_without_one(root, built):
    settings, path = settings_of("pubmedqa", root=root), str(root / "questions.json")
    reproduce._prepare(settings, path, None, root)
    for _ in range(2):
        reproduce._prepare(settings, "", None, root)
        reproduce._prepare(settings, path, "3", root)
    assert built == [(path, 3)]
    reproduce._prepare(settings, path, "5", root)
    (root / settings.TASKS).unlink()
    reproduce._prepare(settings, "", None, root)
    assert built == [(path, 3), (path, 5), (path, 5)]


def test_its_traces_are_frozen_before_its_notebooks_run(root, made, built):
    write_notebook(root / "notebooks" / "tools" / "freeze_traces.ipynb", "PROFILE: str = 'mine'")
    ran, page = again(made, root, profile="pubmedqa", source=str(root / "questions.json"), count="2")
    assert ran == ["freeze_traces", "01_first"] and page == root / "outputs/pubmedqa/index.html"
    assert again(made, root, profile="pubmedqa")[0] == []


def test_the_values_of_a_job_are_those_of_its_profile(root):
    (job,) = reproduce.plan("mine", only="01_first", root=root)
    assert (job.values, job.settings) == merged("mine", "01_first", root=root)
