"""Profiles and parameters: merging, and every way to misspell one."""

import re

import nbformat
import pytest
import yaml

from helpers.channels.stacks import load_stacks
from helpers.reporting import params
from helpers.reporting.params import ParameterError, fits, merged, split_settings


def write_notebook(path, source, tags=("parameters",)):
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)


@pytest.fixture
def root(tmp_path):
    """Two notebooks, two profiles."""
    first = "DRAWS: int = 7  # draws\nLEVEL: float = 0.9\nSTACK: str = 'a'\nFIRST: int | None = None\nPROFILE: str = ''"
    write_notebook(tmp_path / "notebooks" / "01_first.ipynb", first)
    second = "AUTHORITIES: list[str] = ['neutral']\nDRAWS: int = 3"
    write_notebook(tmp_path / "notebooks" / "tools" / "second.ipynb", second)
    for profile, common in (("embedded", "DRAWS: 11\nSTACK: b\nSEED: 5\n"), ("smoke", "DRAWS: 13\n")):
        (tmp_path / "params" / profile).mkdir(parents=True)
        (tmp_path / "params" / profile / "common.yml").write_text(common)
    (tmp_path / "params" / "embedded" / "01_first.yml").write_text("LEVEL: 0.8\n")
    return tmp_path


def test_a_notebooks_own_file_is_put_over_common_yml_and_the_command_line_over_both(root):
    values = merged("embedded", "01_first", ["DRAWS=17"], root=root)
    assert values == {"PROFILE": "embedded", "DRAWS": 17, "STACK": "b", "LEVEL": 0.8}


def test_common_yml_reaches_a_notebook_only_with_what_it_declares(root):
    assert merged("embedded", "second", root=root) == {"DRAWS": 11}


def test_settings_for_several_notebooks_reach_those_that_declare_them(root):
    shared = ["AUTHORITIES=[neutral, primary]", "LEVEL=0.5"]
    assert merged("smoke", "01_first", shared=shared, root=root) == {"PROFILE": "smoke", "DRAWS": 13, "LEVEL": 0.5}
    assert merged("smoke", "second", shared=shared, root=root) == {"DRAWS": 13, "AUTHORITIES": ["neutral", "primary"]}


def test_a_misspelt_profile_is_refused_with_the_list_of_profiles(root):
    with pytest.raises(ParameterError, match=r"'embeded'. Did you mean 'embedded'\? There are: embedded, smoke"):
        merged("embeded", "01_first", root=root)


def test_a_misspelt_notebook_is_refused_with_the_list_of_notebooks(root):
    with pytest.raises(ParameterError, match=r"'01_frist'. Did you mean '01_first'\? There are: 01_first, second"):
        merged("smoke", "01_frist", root=root)


def test_a_misspelt_parameter_is_refused_with_the_list_of_parameters(root):
    with pytest.raises(ParameterError, match="'DRAW' in this notebook. Did you mean 'DRAWS'.*LEVEL, STACK"):
        merged("smoke", "01_first", ["DRAW=3"], root=root)
    with pytest.raises(ParameterError, match="no parameter 'AUTHORITY' in any notebook. Did you mean 'AUTHORITIES'"):
        merged("smoke", "01_first", shared=["AUTHORITY=x"], root=root)


def test_a_parameter_of_another_notebook_is_refused_where_it_is_meant_for_this_one(root):
    with pytest.raises(ParameterError, match="no parameter 'AUTHORITIES' in this notebook"):
        merged("smoke", "01_first", ["AUTHORITIES=[a]"], root=root)


def test_a_misspelt_name_in_a_profiles_file_is_refused_with_the_files_name(root):
    (root / "params" / "smoke" / "second.yml").write_text("DRWAS: 4\n")
    with pytest.raises(ParameterError, match=r"params/smoke/second.yml: no parameter 'DRWAS'"):
        merged("smoke", "second", root=root)
    (root / "params" / "smoke" / "common.yml").write_text("SEDE: 4\n")
    with pytest.raises(ParameterError, match=r"params/smoke/common.yml: no parameter 'SEDE' in any notebook"):
        merged("smoke", "01_first", root=root)


def test_a_number_that_yaml_reads_as_text_is_refused_with_the_way_to_write_it(root):
    (root / "params" / "smoke" / "common.yml").write_text("LEVEL: 1e-3\n")
    with pytest.raises(ParameterError, match="smoke/common.yml: LEVEL holds text.*write 1.0e-3"):
        merged("smoke", "01_first", root=root)
    with pytest.raises(ParameterError, match="command line: LEVEL holds text.*write 1.0e-3"):
        merged("embedded", "01_first", ["LEVEL=1e-3"], root=root)


def test_such_a_number_is_found_inside_lists_and_dicts_too(root):
    with pytest.raises(ParameterError, match="command line: AUTHORITIES holds text .'5e-1'.*write 1.0e-3"):
        merged("smoke", "second", ["AUTHORITIES=[0.5, {x: 5e-1}]"], root=root)
    assert merged("smoke", "second", ["AUTHORITIES=[1e3 words, 2e, '5']"], root=root)["AUTHORITIES"]


@pytest.mark.parametrize("text", ["DRAWS=many", "DRAWS=2.5", "DRAWS=true", "LEVEL=[1]", "STACK=3", "FIRST=all"])
def test_a_value_of_the_wrong_type_is_refused(root, text):
    with pytest.raises(ParameterError, match=f"01_first: {text.partition('=')[0]} = .* is no "):
        merged("embedded", "01_first", [text], root=root)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (3, "int", True),
        (3.5, "int", False),
        (True, "int", False),
        (True, "bool", True),
        (3, "float", True),
        (None, "int | None", True),
        (None, "int", False),
        (["a"], "list[str]", True),
        ("a", "list[str] | str", True),
        ({"a": 2}, "list[str]", False),
        ({"a": 2}, "Mapping", True),
    ],
)
def test_a_value_fits_the_type_that_the_parameters_cell_writes(value, annotation, expected):
    assert fits(value, annotation) is expected


def test_a_setting_without_a_value_is_refused(root):
    with pytest.raises(ParameterError, match="'DRAWS' sets nothing; write NAME=value"):
        merged("embedded", "01_first", ["DRAWS"], root=root)


def test_settings_are_parted_where_a_new_name_begins():
    assert split_settings(" A=1  B=[x, y] C='p q' ") == ["A=1", "B=[x, y]", "C='p q'"]
    assert split_settings("") == []


def test_broken_yaml_is_refused_with_the_files_name(root):
    (root / "params" / "smoke" / "common.yml").write_text("DRAWS: [1\n")
    with pytest.raises(ParameterError, match="params/smoke/common.yml: not valid YAML"):
        merged("smoke", "01_first", root=root)
    (root / "params" / "smoke" / "common.yml").write_text("- DRAWS\n")
    with pytest.raises(ParameterError, match="expected lines of `NAME: value`, found a list"):
        merged("smoke", "01_first", root=root)


@pytest.mark.parametrize("tags", [(), ("parameter",)])
def test_a_notebook_without_a_parameters_cell_is_refused(root, tags):
    """papermill would run it with its defaults and say nothing."""
    write_notebook(root / "notebooks" / "01_first.ipynb", "DRAWS: int = 7", tags=tags)
    with pytest.raises(ParameterError, match="0 cells carry the tag 'parameters'; exactly one is needed"):
        merged("smoke", "01_first", root=root)


def test_the_command_prints_yaml_and_refuses_with_exit_code_2(capsys):
    assert params.main(["embedded", "no-such-notebook"]) == 2
    assert "error: no notebook 'no-such-notebook'" in capsys.readouterr().err


# -- the profiles that ship ----------------------------------------------------------------------------

SHIPPED = [(profile, name) for profile in params.profiles() for name in params.notebooks()]


@pytest.mark.parametrize(("profile", "name"), SHIPPED)
def test_every_profile_fits_every_notebook(profile, name):
    values = merged(profile, name)
    assert values.get("OUTPUT", f"outputs/{profile}") == f"outputs/{profile}"


@pytest.mark.parametrize("profile", ["embedded", "smoke", "pubmedqa", "paper"])
def test_a_shipped_profile_sets_every_shared_name_and_known_stacks(profile):
    common = yaml.safe_load((params.PARAMS / profile / "common.yml").read_text(encoding="utf-8"))
    assert set(params.SHARED) <= set(common)
    assert {common["STACK"], common["SECOND_STACK"]} <= set(load_stacks())
    assert common["STACK"] != common["SECOND_STACK"]


def test_only_the_embedded_profile_writes_and_reads_nothing_but_what_ships():
    for profile in params.profiles():
        common = yaml.safe_load((params.PARAMS / profile / "common.yml").read_text(encoding="utf-8"))
        shipped = common["RECORDINGS"].startswith("data/")
        assert shipped == (profile == "embedded") == (common["ACQUIRE"] == "recorded"), profile


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("ACQUIRE=recoded", "ACQUIRE = 'recoded'; it is one of recorded, missing, fresh"),
        ("INTERVAL=wide", "it is one of percentile, expanded, t"),
        ("DRAWS=1", "DRAWS = 1; it is at least 2"),
        ("FIRST=-1", "it is at least 0"),
        ("SEED=-1", "it is at least 0"),
        ("LEVEL=95.0", "LEVEL = 95.0; it lies between 0 and 1"),
        ("LEVEL=0.0", "it lies between 0 and 1"),
        ("BUDGET_MONEY=-0.5", "it is at least 0"),
    ],
)
def test_a_value_out_of_its_range_is_refused_before_a_kernel_starts(setting, words):
    with pytest.raises(params.ParameterError, match=re.escape(words)):
        params.merged("embedded", "03_retrieval_face", [setting])
    for good in ("FIRST=0", "DRAWS=2", "LEVEL=0.9", "ACQUIRE=fresh"):
        params.merged("embedded", "03_retrieval_face", [good])
