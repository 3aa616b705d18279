"""Profiles and parameters: what goes over what, and every way to misspell one."""

import re
import shutil

import pytest
import yaml

from helpers.channels.stacks import load_stacks
from helpers.reporting import params
from helpers.reporting.params import ParameterError, Settings, declared, fits, merged, settings_of, split_settings
from tests.small_project import PLACES, write_notebook, write_profile


@pytest.fixture
def root(tmp_path):
    """Two notebooks, two profiles."""
    first = "PROFILE: str = 'embedded'\nDRAWS: int = 7  # draws\nSHARE: float = 0.9\nSTACK: str = ''\nFIRST: int | None = None"
    write_notebook(tmp_path / "notebooks" / "01_first.ipynb", first)
    second = "PROFILE: str = 'embedded'\nAUTHORITIES: list[str] = ['neutral']\nDRAWS: int = 3"
    write_notebook(tmp_path / "notebooks" / "tools" / "second.ipynb", second)
    write_profile(tmp_path / "params" / "embedded", STACK="b", SEED=5, BUDGET=9)
    write_profile(tmp_path / "params" / "smoke", SEED=6)
    (tmp_path / "params" / "embedded" / "01_first.yml").write_text("SHARE: 0.8\nDRAWS: 11\nSEED: 4\n")
    return tmp_path


def test_the_command_line_goes_over_a_notebooks_own_file_and_that_over_the_cell(root):
    values, settings = merged("embedded", "01_first", {"DRAWS": 17, "BUDGET": 3}, root=root)
    assert values == {"PROFILE": "embedded", "DRAWS": 17, "SHARE": 0.8, "STACK": "", "FIRST": None}
    assert (settings.SEED, settings.BUDGET, settings.STACK) == (4, 3, "b"), "SET, then 01_first.yml, then common.yml"
    values, settings = merged("embedded", "01_first", root=root)
    assert (values["DRAWS"], settings.BUDGET) == (11, 9)


def test_a_value_typed_into_the_cell_takes_effect_where_nothing_goes_over_it(root):
    write_notebook(root / "notebooks" / "01_first.ipynb", "PROFILE: str = 'embedded'\nDRAWS: int = 777\nSHARE: float = 0.5")
    assert merged("smoke", "01_first", root=root)[0] == {"PROFILE": "smoke", "DRAWS": 777, "SHARE": 0.5}
    assert merged("embedded", "01_first", root=root)[0]["DRAWS"] == 11, "its own file still goes over it"


def test_a_setting_that_a_cell_declares_too_reaches_both(root):
    values, settings = merged("smoke", "01_first", {"STACK": "another"}, root=root)
    assert values["STACK"] == settings.STACK == "another"


def test_common_yml_holds_nothing_but_settings(root):
    write_profile(root / "params" / "smoke", DRAWS=13)
    with pytest.raises(ParameterError, match=r"params/smoke/common.yml: no setting 'DRAWS' of a profile\..* There are: OUTPUT"):
        merged("smoke", "01_first", root=root)


def test_settings_for_several_notebooks_reach_those_that_declare_them(root):
    given = {"AUTHORITIES": ["neutral", "primary"], "SHARE": 0.5}
    first, second = (merged("smoke", name, given, shared=True, root=root)[0] for name in ("01_first", "second"))
    assert first["SHARE"] == 0.5 and "AUTHORITIES" not in first
    assert second == {"PROFILE": "smoke", "DRAWS": 3, "AUTHORITIES": ["neutral", "primary"]}


def test_a_misspelt_profile_is_refused_with_the_list_of_profiles(root):
    with pytest.raises(ParameterError, match=r"'embeded'. Did you mean 'embedded'\? There are: embedded, smoke"):
        merged("embeded", "01_first", root=root)
    for none in ("", "../params/smoke", str(root / "elsewhere")):
        with pytest.raises(ParameterError, match=f"no profile {none!r}.* There are: embedded, smoke"):
            merged(none, "01_first", root=root)


def test_a_profile_may_be_an_absolute_folder_anywhere(root, tmp_path_factory):
    folder = write_profile(tmp_path_factory.mktemp("mine") / "study", SEED=8)
    values, settings = merged(str(folder), "01_first", root=root)
    assert values["PROFILE"] == str(folder) and settings.SEED == 8
    (folder / "second.yml").write_text("DRAWS: 21\n")
    assert merged(str(folder), "second", root=root)[0]["DRAWS"] == 21


def test_a_misspelt_notebook_is_refused_with_the_list_of_notebooks(root):
    with pytest.raises(ParameterError, match=r"'01_frist'. Did you mean '01_first'\? There are: 01_first, second"):
        merged("smoke", "01_frist", root=root)


def test_a_misspelt_parameter_is_refused_with_the_list_of_parameters(root):
    with pytest.raises(ParameterError, match="'DRAW' in this notebook. Did you mean 'DRAWS'.*SHARE, STACK, FIRST"):
        merged("smoke", "01_first", {"DRAW": 3}, root=root)
    with pytest.raises(ParameterError, match="no parameter 'AUTHORITY' in any notebook. Did you mean 'AUTHORITIES'"):
        merged("smoke", "01_first", {"AUTHORITY": "x"}, shared=True, root=root)


def test_a_parameter_of_another_notebook_is_refused_where_it_is_meant_for_this_one(root):
    with pytest.raises(ParameterError, match="no parameter 'AUTHORITIES' in this notebook"):
        merged("smoke", "01_first", {"AUTHORITIES": ["a"]}, root=root)


def test_a_profile_is_not_chosen_among_the_settings(root):
    with pytest.raises(ParameterError, match="the command line: PROFILE=embedded stands by itself, not in SET"):
        merged("smoke", "01_first", {"PROFILE": "embedded"}, root=root)


def test_a_misspelt_name_in_a_profiles_file_is_refused_with_the_files_name(root):
    (root / "params" / "smoke" / "second.yml").write_text("DRWAS: 4\n")
    with pytest.raises(ParameterError, match=r"params/smoke/second.yml: no parameter 'DRWAS'.* Did you mean 'DRAWS'"):
        merged("smoke", "second", root=root)
    write_profile(root / "params" / "smoke", SEDE=4)
    with pytest.raises(ParameterError, match=r"params/smoke/common.yml: no setting 'SEDE' of a profile. Did you mean 'SEED'"):
        merged("smoke", "01_first", root=root)


def test_a_profile_without_something_it_needs_is_refused_with_its_name(root):
    write_profile(root / "params" / "smoke", TASKS=None, STACK=None)
    with pytest.raises(ParameterError) as refused:
        merged("smoke", "01_first", root=root)
    assert str(refused.value).splitlines() == [
        f"params/smoke/common.yml: {name} is missing; a profile needs it." for name in ("TASKS", "STACK")
    ]


def test_a_number_that_yaml_reads_as_text_is_refused_with_the_way_to_write_it(root):
    (root / "params" / "smoke" / "01_first.yml").write_text("SHARE: 1e-3\n")
    with pytest.raises(ParameterError, match="smoke/01_first.yml: SHARE holds text.*write 1.0e-3"):
        merged("smoke", "01_first", root=root)
    with pytest.raises(ParameterError, match="command line: SHARE holds text.*write 1.0e-3"):
        split_settings("SHARE=1e-3")


def test_such_a_number_is_found_inside_lists_and_dicts_too():
    with pytest.raises(ParameterError, match="command line: AUTHORITIES holds text .'5e-1'.*write 1.0e-3"):
        split_settings("AUTHORITIES=[0.5, {x: 5e-1}]")
    assert split_settings("AUTHORITIES=[1e3 words, 2e, '5']") == {"AUTHORITIES": ["1e3 words", "2e", "5"]}


@pytest.mark.parametrize("text", ["DRAWS=many", "DRAWS=2.5", "DRAWS=true", "SHARE=[1]", "FIRST=all"])
def test_a_value_of_the_wrong_type_is_refused(root, text):
    with pytest.raises(ParameterError, match=f"01_first: {text.partition('=')[0]} = .* is no "):
        merged("embedded", "01_first", split_settings(text), root=root)


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


def test_a_setting_without_a_value_or_of_broken_yaml_is_refused():
    with pytest.raises(ParameterError, match="'DRAWS' sets nothing; write NAME=value"):
        split_settings("DRAWS")
    with pytest.raises(ParameterError, match=r"the value in 'DRAWS=\[1' is not valid YAML; quote it"):
        split_settings("DRAWS=[1")


def test_settings_are_parted_where_a_new_name_begins():
    assert split_settings(" A=1  B=[x, y] C='p q' D=") == {"A": 1, "B": ["x", "y"], "C": "p q", "D": None}
    assert split_settings("") == {}


def test_broken_yaml_is_refused_with_the_files_name(root):
    (root / "params" / "smoke" / "common.yml").write_text("SEED: [1\n")
    with pytest.raises(ParameterError, match="params/smoke/common.yml: not valid YAML"):
        merged("smoke", "01_first", root=root)
    (root / "params" / "smoke" / "common.yml").write_text("- SEED\n")
    with pytest.raises(ParameterError, match="expected lines of `NAME: value`, found a list"):
        merged("smoke", "01_first", root=root)


@pytest.mark.parametrize("tags", [(), ("parameter",)])
def test_a_notebook_without_a_parameters_cell_is_refused(root, tags):
    """papermill would run it with its defaults and say nothing."""
    write_notebook(root / "notebooks" / "01_first.ipynb", "DRAWS: int = 7", tags=tags)
    with pytest.raises(ParameterError, match="0 cells carry the tag 'parameters'; exactly one is needed"):
        merged("smoke", "01_first", root=root)


def test_a_setting_that_does_not_fit_is_refused_where_it_was_written(root):
    with pytest.raises(ParameterError, match=r"the command line: SEED = -1: .*greater than or equal to 0"):
        merged("smoke", "01_first", {"SEED": -1}, root=root)
    (root / "params" / "smoke" / "01_first.yml").write_text("LEVEL: 95.0\n")
    with pytest.raises(ParameterError, match=r"params/smoke/01_first.yml: LEVEL = 95.0: .*less than 1"):
        merged("smoke", "01_first", root=root)
    write_profile(root / "params" / "embedded", SECOND_STACK=3)
    with pytest.raises(ParameterError, match=r"params/embedded/common.yml: SECOND_STACK = 3: input should be a valid string"):
        merged("embedded", "second", root=root)


# -- the profiles that ship ----------------------------------------------------------------------------

SHIPPED = ["embedded", "paper", "pubmedqa", "smoke"]


@pytest.mark.parametrize(("profile", "name"), [(p, n) for p in SHIPPED for n in params.notebooks()])
def test_every_profile_fits_every_notebook(profile, name):
    values, settings = merged(profile, name)
    assert settings.OUTPUT == f"outputs/{profile}" and set(values) == {"PROFILE", *declared(params.notebook_source(name))}


@pytest.mark.parametrize("profile", SHIPPED)
def test_a_shipped_profile_names_known_stacks_and_notebooks_that_exist(profile):
    settings = settings_of(profile)
    assert {settings.STACK, settings.SECOND_STACK} <= set(load_stacks()) and settings.STACK != settings.SECOND_STACK
    assert settings.NOTEBOOKS and set(settings.NOTEBOOKS) <= set(params.notebooks())


def test_the_whole_report_is_made_by_every_profile_but_the_one_whose_cohort_is_too_small():
    every = sorted(p.stem for p in (params.ROOT / "notebooks").glob("*.ipynb"))
    assert [p for p in SHIPPED if sorted(settings_of(p).NOTEBOOKS) != every] == ["pubmedqa"]


def test_only_the_embedded_profile_writes_and_reads_nothing_but_what_ships():
    for profile in SHIPPED:
        settings = settings_of(profile)
        shipped = settings.RECORDINGS.startswith("data/")
        assert shipped == (profile == "embedded") == (settings.ACQUIRE == "recorded"), profile


def test_a_profile_folder_that_is_copied_is_a_profile(root):
    shutil.copytree(root / "params" / "smoke", root / "params" / "mine")
    assert settings_of("mine", root=root).SEED == 6 and params._profiles(root) == ["embedded", "mine", "smoke"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("ACQUIRE=recoded", "ACQUIRE = 'recoded': input should be 'recorded', 'missing' or 'fresh'"),
        ("INTERVAL=wide", "it is one of percentile, expanded, t"),
        ("DRAWS=1", "DRAWS = 1; it is at least 2"),
        ("FIRST=-1", "it is at least 0"),
        ("SEED=-1", "greater than or equal to 0"),
        ("LEVEL=95.0", "LEVEL = 95.0: input should be less than 1"),
        ("LEVEL=0.0", "input should be greater than 0"),
        ("BUDGET_MONEY=-0.5", "greater than or equal to 0"),
    ],
)
def test_a_value_out_of_its_range_is_refused_before_a_kernel_starts(setting, words):
    with pytest.raises(ParameterError, match=re.escape(words)):
        merged("embedded", "03_retrieval_face", split_settings(setting))


@pytest.mark.parametrize("good", ["FIRST=0", "DRAWS=2", "LEVEL=0.9", "ACQUIRE=fresh", "BUDGET_MONEY=2"])
def test_a_value_in_its_range_is_taken(good):
    values, settings = merged("embedded", "03_retrieval_face", given := split_settings(good))
    assert given.items() <= {**settings.model_dump(), **values}.items()


def test_every_setting_that_ships_is_declared_and_paths_are_relative():
    for profile in SHIPPED:
        common = yaml.safe_load((params.ROOT / "params" / profile / "common.yml").read_text(encoding="utf-8"))
        assert set(common) <= set(Settings.model_fields) and {"OUTPUT", *PLACES} <= set(common)
        assert [v for v in common.values() if isinstance(v, str) and v.startswith("/")] == []
