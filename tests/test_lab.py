"""The front door: a notebook opens it in JupyterLab with checked values, and a try never reaches the report."""

import asyncio
import json
import os

import numpy as np
import pandas as pd
import pytest

from helpers.channels.sections import Evaluators, section
from helpers.channels.stacks import StackError
from helpers.lab import _RUN, Lab, setting_of
from helpers.reporting import manifest
from helpers.reporting.params import ROOT, ParameterError
from tests.rehearsal.reports import all_at_once, all_ran, code_cells, recorded_study, temporary_profile
from tests.small_project import contents

NOTEBOOK = "03_retrieval_face"
WHERE = "print(lab.output, '|', lab.stack.name, '|', len(lab.study.trajectories), '|', lab.draws(['a', 'b']).draws)"
SAVE = "import pandas; lab.save(pandas.DataFrame({'a': [len(lab.study.trajectories)]}), '03_saved')"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of a recorded study of two trajectories, and its profile."""
    folder = tmp_path_factory.mktemp("lab")
    recorded_study(folder, count=2)
    return folder, temporary_profile(folder, ACQUIRE="recorded")


# -- in JupyterLab ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(place):
    """One warm kernel in which a reader opens the notebook again and again with other values: ``{scene: replies}``.

    Folders for tries lie in a scratch folder here, and nothing is in the environment.
    """
    folder, profile = place
    report = contents(ROOT / "outputs" / "embedded")
    away = f"from helpers.reporting import manifest; manifest.TWEAKED = {str(folder / 'tweaked')!r}"

    def opened(source=None, **typed):
        cells = code_cells(NOTEBOOK, PROFILE=profile, **typed)
        return [source or cells[0], cells[1]]

    parameters = code_cells(NOTEBOOK, PROFILE=profile)[0]
    scenes = {
        "as it is": [away, *opened(), WHERE, SAVE],
        "fewer": [*opened(FIRST=1), WHERE, SAVE],
        "same evaluator": [*opened(STACK="smoke"), WHERE],
        "misspelt": opened(parameters.replace("DRAWS:", "DRAW:")),
        "a word": opened(DRAWS="ten"),
        "negative": opened(FIRST=-5),
        "no such interval": opened(INTERVAL="foo"),
        "no such profile": opened(parameters.replace(profile, "embeded")),
        "right again": [*opened(), WHERE],
        "the report with ten": code_cells(NOTEBOOK, FIRST=10),
    }
    replies = iter(all_at_once([source for sources in scenes.values() for source in sources]))
    return {name: [next(replies) for _ in sources] for name, sources in scenes.items()}, report


def test_the_profile_of_the_cell_is_the_one_that_is_opened_without_a_shell(place, session):
    folder, _ = place
    all_ran(session[0]["as it is"])
    assert session[0]["as it is"][3]["printed"] == f"{folder / 'out'} | smoke | 2 | 10000\n"


def test_unchanged_values_write_to_the_profiles_folder(place, session):
    folder, _ = place
    assert (folder / "out" / "03_saved.csv").read_text() == "a\n2\n"
    for scene in ("same evaluator", "right again"):
        all_ran(session[0][scene])
        assert session[0][scene][2]["printed"].startswith(f"{folder / 'out'} | smoke | 2 |")


def test_another_value_writes_to_a_folder_of_its_own_and_two_lines_say_so(place, session):
    folder, _ = place
    _, opening, where, _ = session[0]["fewer"]
    assert opening["printed"].splitlines() == [
        "FIRST = 1 here; the profile has 0.",
        f"These values differ from the report's, so everything is written to {folder}/tweaked/{NOTEBOOK}.",
    ]
    assert where["printed"] == f"{folder}/tweaked/{NOTEBOOK} | smoke | 1 | 10000\n"


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("misspelt", "03_retrieval_face: no parameter 'DRAW' in this notebook. Did you mean 'DRAWS'? There are: PROFILE, STACK, "),
        ("a word", "03_retrieval_face: DRAWS = 'ten' is no int; its default is 10000."),
        ("negative", "03_retrieval_face: FIRST = -5; it is at least 0. Its default is 0."),
        ("no such interval", "03_retrieval_face: INTERVAL = 'foo'; it is one of percentile, expanded, t. Its default is 'percentile'."),
        ("no such profile", "no profile 'embeded'. Did you mean 'embedded'? There are: "),
    ],
)
def test_a_value_that_does_not_fit_is_refused_in_our_words(session, scene, said):
    typed, opening = session[0][scene]
    assert typed["status"] == "ok" and (opening["status"], opening["ename"]) == ("error", "ParameterError")
    assert opening["evalue"].startswith(said)


def test_a_try_on_the_shipped_study_changes_not_one_byte_of_its_report(place, session):
    folder, _ = place
    all_ran(session[0]["the report with ten"])
    assert contents(ROOT / "outputs" / "embedded") == session[1]
    written = pd.read_csv(folder / "tweaked" / NOTEBOOK / f"{NOTEBOOK}.csv")
    assert written["n_trajectories"].max() == 10 and (folder / "tweaked" / NOTEBOOK / "figures" / "03_face.png").exists()


# -- what it holds ------------------------------------------------------------------------------------


@pytest.fixture
def opened(place, monkeypatch):
    """A function that opens a notebook's lab in this process."""
    folder, profile = place
    monkeypatch.setattr(manifest, "TWEAKED", str(folder / "tweaked"))
    return lambda notebook=NOTEBOOK, **values: Lab.open(notebook, values.pop("profile", profile), **values)


def test_a_value_that_the_cell_does_not_declare_is_refused(opened):
    with pytest.raises(ParameterError, match="03_retrieval_face: no parameter 'DRAW' in this notebook. Did you mean 'DRAWS'"):
        opened(draw=5)
    with pytest.raises(ParameterError, match="no notebook '03_face'"):
        opened("03_face")
    with pytest.raises(StackError, match="unknown stack 'gpt-5'; .* has .*smoke"):
        opened(stack="gpt-5")


def test_a_run_under_make_writes_where_it_is_told_with_the_settings_of_the_command_line(opened, place, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(_RUN, json.dumps({"settings": {"SEED": 3, "LEVEL": 0.5}, "folder": str(tmp_path)}))
    lab = opened(first=1)
    assert lab.output == tmp_path and (lab.settings.SEED, lab.settings.LEVEL) == (3, 0.5) and capsys.readouterr().out == ""
    assert opened("inspect_transition").output == tmp_path / "tools"


def test_its_section_evaluators_and_draws_are_those_of_notebook_and_profile(opened):
    lab = opened(stack="smoke-2", draws=50, first=1)
    assert (lab.section, lab.stack.name, lab.second.name) == (section(NOTEBOOK), "smoke-2", "smoke-2")
    assert lab.evaluators == Evaluators("smoke-2", "smoke-2") and lab.results.prefix == "face"
    draws = lab.draws(["t1", "t2", "t3"])
    other, values = opened(draws=50).draws(["t1", "t2", "t3"]), np.array([[1.0], [2.0], [4.0]])
    means = [each.means(values, np.array(["t1", "t2", "t3"]))[1] for each in (draws, other)]
    assert len(draws) == 3 and means[0].shape == (50, 1) and (means[0] == means[1]).all()
    spread = np.linspace(0, 1, 101)
    assert lab.interval(spread) == pytest.approx((0.025, 0.975))


def test_a_plan_is_the_sections_own_and_what_is_recorded_of_it_is_read(opened):
    lab = opened()
    asked = asyncio.run(lab.ask())
    own = section(NOTEBOOK).plan(list(lab.study.trajectories), lab.evaluators, (0,))
    assert asked.plan.drop(columns="key").equals(own) and asked.answered.all()
    assert lab.completeness(asked)["planned"].sum() == len(own)
    later = asyncio.run(lab.recorded(waves=(7,)))
    assert set(later.plan["wave"]) == {7} and not later.answered.any()
    assert "recordings used" in lab.colophon(asked).index and "recordings used" not in lab.colophon().index


def test_a_section_without_its_second_evaluator_says_what_to_do(opened, tmp_path):
    profile = temporary_profile(tmp_path, ACQUIRE="recorded", SECOND_STACK=None)
    lab = opened("05_bridge", profile=profile)
    assert lab.second is None and lab.evaluators.second is None
    with pytest.raises(ParameterError, match="05_bridge asks two evaluators, and the profile has one; set SECOND_STACK, or leave"):
        asyncio.run(lab.ask())


def test_a_profile_whose_views_are_not_written_yet_has_none_and_says_so(opened, place, tmp_path, capsys):
    folder, _ = place
    places = {name: str(folder / "data" / f"{name.lower()}.jsonl") for name in ("TASKS", "TRAJECTORIES")}
    lab = opened(profile=temporary_profile(tmp_path, **places))
    assert lab.study.views == {} and "views.jsonl: not there yet, so no generated view is frozen." in capsys.readouterr().out


def test_anothers_table_is_the_one_beside_it_or_else_the_reports(opened, place):
    folder, _ = place
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / "01_global_replay.csv").write_text("id,estimate\na,1\n")
    lab = opened(first=1)
    assert lab.table("01_global_replay").loc["a", "estimate"] == 1
    (lab.output / "01_global_replay.csv").write_text("id,estimate\na,2\n")
    assert lab.table("01_global_replay").loc["a", "estimate"] == 2 and opened().table("01_global_replay").loc["a", "estimate"] == 1
    assert len(lab.table("02_retry")) == 0 and lab.table("02_retry").index.name == "id"
    for path in (folder / "out", lab.output):
        (path / "01_global_replay.csv").unlink()


def test_a_section_is_written_only_with_all_of_its_published_quantities(opened):
    lab = opened(first=1)
    lab.results.add("face.C_x", 0.1, cohort="c")
    with pytest.raises(AssertionError, match=r"published quantities without a row: .*face\.C_r"):
        lab.write()
    assert list(lab.write(complete=False).index) == ["face.C_x"]
    assert (lab.output / f"{NOTEBOOK}.csv").read_text().count("\n") == 2


def test_a_command_works_on_the_same_study_and_shows_nothing(place):
    folder, profile = place
    before = contents(folder / "out") if (folder / "out").exists() else {}
    setting = setting_of(profile, 1)
    assert len(setting.study.trajectories) == 1 and setting.recordings == folder / "recordings"
    assert setting.waves == (0,) and setting_of("paper", 1).waves == (0, 1, 2, 3)
    assert (contents(folder / "out") if (folder / "out").exists() else {}) == before
    assert _RUN not in os.environ
