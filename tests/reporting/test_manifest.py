"""What a report was made from and what it consists of: a try never counts as the report, and a change shows."""

import json
import sqlite3

import pytest

from helpers.reporting import manifest
from helpers.reporting.params import merged
from tests.small_project import PLACES, write_notebook, write_profile

CELL = "PROFILE: str = 'mine'\nSTACK: str = ''\nDRAWS: int = 7\nWAVES: list = [1, 2]\nBEST: float | None = None"


@pytest.fixture
def root(tmp_path):
    """A notebook, a profile, data and a helper."""
    write_notebook(tmp_path / "notebooks" / "01_first.ipynb", CELL)
    write_profile(tmp_path / "params" / "mine", SEED=5)
    (tmp_path / "params" / "stacks.yml").write_text("a: 1\n")
    for name in ("helpers/reporting/site.py", "helpers/__main__.py", "helpers/study/tasks.py", *list(PLACES.values())[:3]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "data" / "recordings" / "journal").mkdir(parents=True)
    (tmp_path / "data" / "recordings" / "smoke.parquet").write_text("answers")
    return tmp_path


def inputs(root, given=None):
    return manifest.inputs(root / "notebooks/01_first.ipynb", *merged("mine", "01_first", given, root=root), root)


def test_what_a_result_depends_on_is_told_by_parameters_and_settings_together(root):
    told = manifest.told(*merged("mine", "01_first", root=root))
    assert {"PROFILE": "mine", "DRAWS": 7, "WAVES": [1, 2], "SEED": 5, "STACK": "smoke", "ACQUIRE": "recorded"}.items() <= told.items()
    assert {"OUTPUT", "BUDGET", "BUDGET_MONEY", "NOTEBOOKS", "BEST", "SECOND_STACK"}.isdisjoint(told)


def test_an_empty_parameter_leaves_it_to_the_setting_and_the_settings_own_value_is_the_same(root):
    settings = {given: manifest.told(*merged("mine", "01_first", {"STACK": given}, root=root)) for given in ("smoke", "other")}
    assert settings["smoke"] == manifest.told(*merged("mine", "01_first", root=root)) and settings["other"]["STACK"] == "other"
    write_profile(root / "params" / "mine", SEED=5, STACK="other")
    assert manifest.told(*merged("mine", "01_first", root=root))["STACK"] == "other"


def test_values_are_held_against_the_report_that_was_made_or_else_against_the_profile(root):
    (values, settings), out = merged("mine", "01_first", root=root), root / "outputs" / "mine"

    def folder(**changed):
        return manifest.folder_for("01_first", values | changed, settings, values, root)

    assert folder() == "outputs/mine" and folder(DRAWS=8) == "outputs/tweaked/01_first"
    out.mkdir(parents=True)
    manifest.record("01_first", out, manifest.told(values | {"DRAWS": 8}, settings))
    assert folder() == "outputs/tweaked/01_first" and folder(DRAWS=8) == "outputs/mine"
    assert folder(WAVES=(1, 2), DRAWS=8) == "outputs/mine", "a tuple is a list to JSON"


def test_only_folders_for_tries_are_tweaked():
    assert manifest.is_tweaked("outputs/tweaked/01_first") and not manifest.is_tweaked("outputs/embedded")


def write_output(folder):
    for name in ("01_first.csv", "01_steps.csv", "figures/01_a.png", "01_first.ipynb", "02_second.csv", "011_other.csv", "01_first.html"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_notebooks_files_begin_with_its_number_and_all_of_them_must_be_what_they_were(tmp_path):
    write_output(tmp_path)
    assert not manifest.intact("01_first", tmp_path)
    manifest.record("01_first", tmp_path, {"DRAWS": 7})
    manifest.record("02_second", tmp_path, {})
    assert list(manifest.read(tmp_path)) == ["01_first", "02_second"]
    assert sorted(manifest.read(tmp_path)["01_first"]["files"]) == ["01_first.csv", "01_first.ipynb", "01_steps.csv", "figures/01_a.png"]
    assert manifest.intact("01_first", tmp_path) and manifest.intact("02_second", tmp_path)
    (tmp_path / "02_second.csv").write_text("other")
    assert manifest.intact("01_first", tmp_path) and not manifest.intact("02_second", tmp_path)
    for change in (lambda: (tmp_path / "01_more.csv").touch(), lambda: (tmp_path / "figures/01_a.png").unlink()):
        change()
        assert not manifest.intact("01_first", tmp_path)
        manifest.record("01_first", tmp_path, {"DRAWS": 7})


def test_the_pages_are_all_that_is_html(tmp_path):
    write_output(tmp_path)
    manifest.record(manifest.PAGES, tmp_path)
    assert manifest.intact(manifest.PAGES, tmp_path)
    (tmp_path / "01_first.html").write_text("edited")
    assert not manifest.intact(manifest.PAGES, tmp_path)


def test_a_manifest_that_cannot_be_read_is_none(tmp_path):
    write_output(tmp_path)
    (tmp_path / manifest.FILE).write_text('{"01_first": ')
    assert manifest.read(tmp_path) == {} and not manifest.intact("01_first", tmp_path)


def test_a_manifest_is_the_same_bytes_whatever_was_recorded_first(tmp_path):
    write_output(tmp_path)
    manifest.record("01_first", tmp_path, {"A": 1})
    manifest.record("02_second", tmp_path, {"B": 2})
    first = (tmp_path / manifest.FILE).read_bytes()
    (tmp_path / manifest.FILE).unlink()
    manifest.record("02_second", tmp_path, {"B": 2})
    manifest.record("01_first", tmp_path, {"A": 1})
    assert (tmp_path / manifest.FILE).read_bytes() == first and json.loads(first)["01_first"]["values"] == {"A": 1}


@pytest.mark.parametrize(
    "changed",
    ["helpers/study/tasks.py", "params/stacks.yml", "data/tasks.jsonl", "data/views.jsonl", "notebooks/01_first.ipynb",
     "data/recordings/smoke.parquet"],
)  # fmt: skip
def test_what_a_notebook_is_made_from_is_told_by_its_content(root, changed):
    before, path = inputs(root), root / changed
    path.write_bytes(path.read_bytes())
    assert inputs(root) == before, "another time stamp is no other content"
    path.write_bytes(path.read_bytes() + b"\n")
    assert inputs(root) != before


@pytest.mark.parametrize("changed", ["helpers/reporting/site.py", "helpers/__main__.py"])
def test_what_writes_pages_and_reads_commands_changes_no_result(root, changed):
    before = inputs(root)
    (root / changed).write_text("other")
    assert inputs(root) == before


def test_another_value_or_setting_is_another_input_and_what_may_be_spent_is_not(root):
    before = inputs(root)
    assert inputs(root, {"DRAWS": 8}) != before and inputs(root, {"SEED": 6}) != before
    assert inputs(root, {"BUDGET": 3}) == before
    write_profile(root / "params" / "mine", SEED=5, STACK="other")
    assert inputs(root) != before, "a cell without an evaluator of its own takes the profile's"


def test_of_a_journal_only_the_number_of_answers_counts(root):
    path = root / "data" / "recordings" / "journal" / "smoke.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE answers (key TEXT)")
    before = inputs(root)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (key TEXT)")
    assert inputs(root) == before
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO answers VALUES ('a')")
    assert inputs(root) != before
    path.write_text("no database")
    assert inputs(root) != before
