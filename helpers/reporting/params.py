"""Profiles: a folder of YAML files under ``params/``, one a notebook and one they share.

``python -m helpers.reporting.params PROFILE NOTEBOOK [NAME=value …]`` prints the merged parameters of a notebook. A misspelt
profile, notebook or parameter is refused with the list of the right ones.
"""

import argparse
import ast
import json
import re
import sys
from difflib import get_close_matches
from pathlib import Path

import yaml

from helpers.asking.modes import MODES
from helpers.channels.stacks import text_exponent

ROOT = Path(__file__).resolve().parents[2]
PARAMS = ROOT / "params"

# What ``common.yml`` may set although no notebook declares it (yet).
SHARED = (
    "OUTPUT", "TASKS", "LIBRARY", "TRAJECTORIES", "VIEWS", "RECORDINGS", "PAPER", "ACQUIRE", "STACK", "SECOND_STACK",
    "DRAWS", "SEED",
)  # fmt: skip
TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list, "tuple": list, "dict": dict}


# What a parameter may be, wherever a notebook declares it; a notebook asserts what it alone needs.
CHOICES = {"ACQUIRE": MODES, "INTERVAL": ("percentile", "expanded", "t")}
LEAST = {"DRAWS": 2, "FIRST": 0, "SEED": 0, "WAVES": 1, "MOST_WAVES": 1, "BUDGET": 0, "BUDGET_MONEY": 0, "TOP": 1, "BINS": 1,
         "EPISODES": 2, "REPLAYS": 0, "ARM_TASKS": 2}  # fmt: skip


class ParameterError(ValueError):
    """A profile, a notebook or a parameter does not exist or fit. The message lists the ones that do."""

def _suggest(name, known):
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def profiles(folder=PARAMS):
    """Names of the profiles: the folders of ``params/``."""
    return sorted(p.name for p in Path(folder).iterdir() if p.is_dir() and not p.name.startswith("."))


def check_profile(profile, folder=PARAMS):
    """The folder of a profile; ParameterError lists the profiles that exist."""
    known = profiles(folder)
    if profile not in known:
        raise ParameterError(f"no profile {profile!r}.{_suggest(profile, known)} There are: {', '.join(known)}.")
    return Path(folder) / profile


def notebooks(root=ROOT):
    """Sources of all notebooks as ``{name: path}``, from ``notebooks/`` and ``notebooks/tools/``."""
    found = sorted((Path(root) / "notebooks").rglob("*.ipynb"))
    return {p.stem: p for p in found if ".ipynb_checkpoints" not in p.parts}


def notebook_source(name, root=ROOT):
    """Path of a notebook's source by its name."""
    found = notebooks(root)
    if name not in found:
        raise ParameterError(f"no notebook {name!r}.{_suggest(name, found)} There are: {', '.join(found)}.")
    return found[name]


def _parameters_cell(notebook):
    cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]  # nbformat takes two seconds to import
    tagged = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise ParameterError(f"{notebook}: {len(tagged)} cells carry the tag 'parameters'; exactly one is needed.")
    nodes = ast.parse("".join(tagged[0]["source"])).body
    return [n for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]


def declared(notebook):
    """Parameters of a notebook's ``parameters`` cell: ``{name: default}``, literals only."""
    return {node.target.id: ast.literal_eval(node.value) for node in _parameters_cell(notebook)}


def annotations(notebook):
    """Types of a notebook's parameters as they are written there: ``{name: "int | None"}``."""
    return {node.target.id: ast.unparse(node.annotation) for node in _parameters_cell(notebook)}


def load_profile(profile, notebook, root=ROOT):
    """Parameters that a profile sets for a notebook: ``common.yml``, then the notebook's own file.

    ``common.yml`` may hold names that other notebooks declare; a name in the notebook's own file must be declared
    there. ``PROFILE`` is the profile's name, where the notebook declares it.
    """
    folder = check_profile(profile, Path(root) / "params")
    known = declared(notebook_source(notebook, root))
    common = read_values(folder / "common.yml")
    own = read_values(folder / f"{notebook}.yml")
    refuse_unknown(common, dict.fromkeys([*declared_anywhere(root), *SHARED]), f"params/{profile}/common.yml", "any")
    refuse_unknown(own, known, f"params/{profile}/{notebook}.yml")
    return {k: v for k, v in ({"PROFILE": profile} | common).items() if k in known} | own


def declared_anywhere(root=ROOT):
    """Names of the parameters of all notebooks, in order of first appearance."""
    return list(dict.fromkeys(name for path in notebooks(root).values() for name in declared(path)))


def merged(profile, notebook, overrides=(), *, shared=(), root=ROOT):
    """The parameters a notebook runs with: profile, then overrides, each checked for name and type.

    Parameters
    ----------
    overrides : sequence of "NAME=value" texts; each must be a parameter of this notebook
    shared : the same, meant for several notebooks; what only another one declares is left out here
    """
    source = notebook_source(notebook, root)
    values, known = load_profile(profile, notebook, root), declared(source)
    if shared:
        asked = with_overrides({}, shared, declared_anywhere(root), "any")
        values |= {name: value for name, value in asked.items() if name in known}
    values = with_overrides(values, overrides, known)
    for name, annotation in annotations(source).items():
        if name in values and not fits(values[name], annotation):
            raise ParameterError(
                f"{notebook}: {name} = {values[name]!r} is no {annotation}; its default is {known[name]!r}."
            )
        if name in values and (rule := out_of_range(name, values[name])):
            raise ParameterError(f"{notebook}: {name} = {values[name]!r}; {rule}. Its default is {known[name]!r}.")
    return values


def out_of_range(name, value):
    """What a parameter's value must be, where it is not; None where it may stay."""
    if name in CHOICES and value not in CHOICES[name]:
        return f"it is one of {', '.join(CHOICES[name])}"
    if name in LEAST and value < LEAST[name]:
        return f"it is at least {LEAST[name]}"
    if name == "LEVEL" and not 0 < value < 1:
        return "it lies between 0 and 1, as 0.95 does"
    return None


def with_overrides(values, overrides, known, owner="this"):
    """Parameters with ``NAME=value`` texts from the command line; values are YAML literals."""
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals:
            raise ParameterError(f"the command line: {text!r} sets nothing; write NAME=value.")
        refuse_unknown({name: None}, known, "the command line", owner)
        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ParameterError(f"the command line: the value in {text!r} is not valid YAML; quote it.") from None
        _refuse_text_number(name, value, "the command line")
        values = {**values, name: value}
    return values


def split_settings(text):
    """``"A=1 B=[x, y]"`` as ``["A=1", "B=[x, y]"]``: settings are parted where a new ``NAME=`` begins."""
    return [part for part in re.split(r"\s+(?=[A-Za-z_]\w*=)", text.strip()) if part]


def fits(value, annotation):
    """Whether a value has the type that a parameters cell writes, such as ``int | None``; unknown types fit."""
    for part in annotation.split("|"):
        name = part.strip().partition("[")[0]
        if name == "None" and value is None or name not in {*TYPES, "None"}:
            return True
        if name in TYPES and isinstance(value, TYPES[name]) and (name == "bool" or not isinstance(value, bool)):
            return True
    return False


def refuse_unknown(values, known, where, owner="this"):
    """Raise ParameterError for the first name that is not known."""
    for name in values:
        if name not in known:
            raise ParameterError(
                f"{where}: no parameter {name!r} in {owner} notebook.{_suggest(name, known)} "
                f"There are: {', '.join(known)}."
            )


def read_values(path):
    """Names and values of one YAML file, empty where there is no file; ParameterError names what is wrong in it."""
    if not path.exists():
        return {}
    where = "/".join(path.parts[-3:])
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ParameterError(f"{where}: not valid YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(values, dict):
        raise ParameterError(f"{where}: expected lines of `NAME: value`, found a {type(values).__name__}.")
    for name, value in values.items():
        _refuse_text_number(name, value, where)
    return values


def _refuse_text_number(name, value, where):
    if (text := text_exponent(value)) is not None:
        raise ParameterError(f"{where}: {name} holds text ({text!r}); YAML reads 1e-3 as text, so write 1.0e-3.")


def add_arguments(parser):
    """The arguments that say which parameters a notebook gets; the executor takes the same ones."""
    parser.add_argument("profile", help="a folder of params/")
    parser.add_argument("notebook", help="a notebook by its name, without .ipynb")
    parser.add_argument("overrides", nargs="*", metavar="NAME=value", help="a parameter of this notebook")
    parser.add_argument("--set", default="", help="NAME=value texts in one, for whichever notebook has them")
    parser.add_argument("--only", action="store_true", help="--set is meant for this notebook alone")


def from_arguments(options, root=ROOT):
    """Merged parameters from parsed arguments."""
    asked = split_settings(options.set)
    own, shared = (asked, []) if options.only else ([], asked)
    return merged(options.profile, options.notebook, [*own, *options.overrides], shared=shared, root=root)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m helpers.reporting.params", description=__doc__)
    add_arguments(parser)
    try:
        values = from_arguments(parser.parse_intermixed_args(arguments))
        print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")
    except ParameterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
