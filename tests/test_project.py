"""The project's own files: one list of dependencies, a clean lock, a licence, profiles that exist."""

import configparser
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rattler import MatchSpec

from helpers.channels.stacks import load_stacks

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
NOT_OURS = ("python", "pip")  # a conda environment has to name them


def requirements():
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


def conda_specs():
    return [MatchSpec(text, strict=True) for text in CONDA["dependencies"] if isinstance(text, str)]


def pip_requirements():
    return [Requirement(text) for part in CONDA["dependencies"] if isinstance(part, dict) for text in part["pip"]]


def exact(version):
    """The number of ``==1.2.3``, as packaging and rattler both write it."""
    assert str(version).startswith("=="), f"{version} is no exact version"
    return str(version)[2:]


def test_environment_yml_lists_the_same_packages_in_the_same_versions_as_pyproject():
    ours = {canonicalize_name(r.name): exact(r.specifier) for r in requirements()}
    named = [(s.name.normalized, s.version) for s in conda_specs()]
    conda = {canonicalize_name(name): exact(version) for name, version in named if name not in NOT_OURS}
    conda |= {canonicalize_name(r.name): exact(r.specifier) for r in pip_requirements()}
    assert conda == ours


def test_environment_yml_asks_for_the_python_that_pyproject_asks_for():
    python = next(s for s in conda_specs() if s.name.normalized == "python")
    assert str(python.version) == PROJECT["requires-python"]


def test_no_package_is_listed_twice():
    names = [canonicalize_name(r.name) for r in requirements()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["pyproject.toml", "environment.yml"])
def test_every_dependency_says_why_it_is_there(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if re.search(r"[A-Za-z]\s?==\d", line)]
    assert len(pinned) == len(requirements())
    assert [line for line in pinned if not re.search(r"# \w+", line)] == []


def test_the_lock_holds_every_direct_dependency_in_its_version():
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^\s;]+)", LOCK, flags=re.MULTILINE))
    assert {canonicalize_name(r.name): exact(r.specifier) for r in requirements()}.items() <= locked.items()


def test_every_line_of_the_lock_has_a_hash():
    entries = re.split(r"\n(?=[a-z0-9])", LOCK[re.search(r"^[a-z0-9]", LOCK, flags=re.MULTILINE).start() :])
    assert len(entries) > len(requirements())
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_lock_holds_no_index_address_and_no_machine_path():
    assert re.findall(r"https?://\S*|file:\S*|--(?:extra-)?index-url.*|--find-links.*|(?<![\w.])/\w+/\S*", LOCK) == []


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text


def test_the_readme_names_every_profile_and_every_notebook():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    profiles = ["embedded", "paper", "pubmedqa", "smoke"]  # those that ship; a user's own need not be in it
    notebooks = [p.stem for p in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]
    assert [name for name in [*profiles, *notebooks] if name not in text] == []


def test_every_link_of_the_readme_to_a_file_leads_somewhere():
    """The report's pages are made by `make reproduce`, so they may be missing before the first run."""
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith(("outputs/", "notebooks/"))]
    assert [link for link in local if not (ROOT / link).exists()] == []


def test_every_stack_has_a_dated_price_with_its_source():
    for stack in load_stacks().values():
        wanted = {"currency", "input", "cached_input", "output", "batch", "date", "source"}
        assert wanted <= set(stack.price), stack.name


def test_no_stack_holds_a_key_and_every_api_stack_names_its_variable():
    for stack in load_stacks().values():
        if stack.kind == "api":
            assert re.fullmatch(r"[A-Z][A-Z0-9_]*KEY", stack.key_variable), stack.name
    assert not re.search(r"\bsk-\w{8,}", (ROOT / "params" / "stacks.yml").read_text(encoding="utf-8"))


def test_ci_runs_the_test_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, "not executable"
    assert re.search(r"^exec make test$", script.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_report_check_forgives_no_digit_of_a_result():
    """The rules that blank out what may differ between runs must leave every number of a table or sentence alone."""
    rules = configparser.ConfigParser(interpolation=None)
    rules.read(ROOT / "tests" / "nbval_sanitize.cfg")

    def blanked(text):
        for section in rules.values():
            text = re.sub(section["regex"], section["replace"], text) if "regex" in section else text
        return text

    result = "mean gain  -0.044 [-0.067, -0.022] nats, 56 of 132 signs, 37% of states (n = 12)"
    for place in (i for i, c in enumerate(result) if c.isdigit()):
        other = result[:place] + str((int(result[place]) + 1) % 10) + result[place + 1 :]
        assert blanked(other) != blanked(result), other
    assert blanked("asked at 12:31:07") == blanked("asked at 09:00:59")
