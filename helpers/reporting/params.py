"""Profiles and parameters: whose traces and evaluator, and what a reader may turn.

A profile is a folder of ``params/``. Its ``common.yml`` holds what :class:`Settings` declares: paths, evaluators, which
notebooks it runs. A notebook's parameters stand in its own cell. ``<notebook>.yml`` may set either kind for one notebook,
and ``SET`` on the command line goes over both. Whatever is misspelt or does not fit is refused with the right names.
"""

import ast
import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from helpers.asking.modes import MODES
from helpers.channels.stacks import text_exponent
from helpers.measuring.inference import METHODS, SEED

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list, "tuple": list, "dict": dict}
# What a parameter may be, wherever a notebook declares it; a notebook asserts what it alone needs.
_CHOICES = {"ACQUIRE": ("", *MODES), "INTERVAL": METHODS}
_LEAST = {"DRAWS": 2, "FIRST": 0, "WAVES": 1, "MOST_WAVES": 1, "TOP": 1, "BINS": 1, "EPISODES": 2, "REPLAYS": 0,
         "ARM_TASKS": 2}  # fmt: skip


class ParameterError(ValueError):
    """A profile, a notebook or a parameter does not exist or fit. The message lists the ones that do."""


class Settings(BaseModel):
    """What a profile says, for all of its notebooks: names of ``common.yml``, also of ``SET``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    OUTPUT: str  # where tables, figures and pages go
    TASKS: str  # tasks with candidates and reviewed targets
    TRAJECTORIES: str  # frozen traces
    VIEWS: str  # frozen generated views
    RECORDINGS: str  # evaluator answers, one Parquet file a stack
    LIBRARY: str = ""  # what the actor may retrieve
    ANSWERS: str = ""  # the actor's model's answers, for replays without it
    SCENARIOS: str = ""  # known disturbances of the actor
    SUPPORT_LABELS: str = ""  # hand labels of the views' support fields
    CUE_LABELS: str = ""  # hand labels of lost cues
    PAPER: str = ""  # published numbers
    STACK: str  # the evaluator, a name in params/stacks.yml; it writes the views, too
    SECOND_STACK: str | None = None  # another evaluator, which the bridge needs
    ACQUIRE: Literal[MODES] = "recorded"  # recorded, missing (ask for what is not recorded) or fresh (ask all in a new wave)
    BUDGET: int = Field(0, ge=0)  # most requests of a live run, for views and for answers; 0 is no limit
    BUDGET_MONEY: float = Field(0.0, ge=0)  # most money it may spend on them, in their prices' currency; 0 is no limit
    SEED: int = Field(SEED, ge=0)  # seed of the bootstrap draws
    LEVEL: float = Field(0.95, gt=0, lt=1)  # confidence level of the intervals
    NOTEBOOKS: list[str] = []  # the notebooks that make up its report
    PREPARE: str = ""  # what makes its data first: simulate, pubmedqa


def suggestion(name, known):
    """`` Did you mean …?`` for a name that is nearly one of the known ones, else nothing."""
    close = get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


# -- profiles and notebooks ---------------------------------------------------------------------------


def _profiles(root=ROOT):
    """Names of the profiles: the folders of ``params/``."""
    return sorted(p.name for p in (Path(root) / "params").iterdir() if p.is_dir() and not p.name.startswith("."))


def _check_profile(profile, root=ROOT):
    """The folder of a profile, a name in ``params/`` or an absolute path; ParameterError lists the ones that exist."""
    folder = Path(root) / "params" / profile
    if not profile or not (folder / "common.yml").is_file() or (profile not in _profiles(root) and not Path(profile).is_absolute()):
        known = _profiles(root)
        raise ParameterError(f"no profile {profile!r}.{suggestion(profile, known)} There are: {', '.join(known)}.")
    return folder


def notebooks(root=ROOT):
    """Sources of all notebooks as ``{name: path}``, from ``notebooks/`` and ``notebooks/tools/``."""
    found = sorted((Path(root) / "notebooks").rglob("*.ipynb"))
    return {p.stem: p for p in found if ".ipynb_checkpoints" not in p.parts}


def notebook_source(name, root=ROOT):
    """Path of a notebook's source by its name."""
    found = notebooks(root)
    if name not in found:
        raise ParameterError(f"no notebook {name!r}.{suggestion(name, found)} There are: {', '.join(found)}.")
    return found[name]


def parameters_cell(notebook):
    cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]  # nbformat takes two seconds to import
    tagged = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise ParameterError(f"{notebook}: {len(tagged)} cells carry the tag 'parameters'; exactly one is needed.")
    return "".join(tagged[0]["source"])


def assigned(source):
    """Names that the cell's source sets, with their annotation and value: ``{name: (annotation, value)}``, literals only."""
    nodes = ast.parse(source).body
    nodes = [n for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    return {n.target.id: (ast.unparse(n.annotation), ast.literal_eval(n.value)) for n in nodes}


def declared(notebook):
    """Parameters of a notebook's ``parameters`` cell: ``{name: default}``."""
    return {name: value for name, (_, value) in assigned(parameters_cell(notebook)).items()}


# -- values -------------------------------------------------------------------------------------------


def _read_values(path):
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


def split_settings(text):
    """``"A=1 B=[x, y]"`` as ``{"A": 1, "B": ["x", "y"]}``: settings are parted where a new ``NAME=`` begins; YAML values."""
    values = {}
    for part in filter(None, re.split(r"\s+(?=[A-Za-z_]\w*=)", text.strip())):
        name, equals, value = part.partition("=")
        if not equals:
            raise ParameterError(f"the command line: {part!r} sets nothing; write NAME=value.")
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ParameterError(f"the command line: the value in {part!r} is not valid YAML; quote it.") from None
        _refuse_text_number(name, values[name], "the command line")
    return values


def settings_of(profile, notebook="", overrides=None, root=ROOT):
    """The Settings of a profile for one notebook: ``common.yml``, then what the notebook's file and ``overrides`` say of them."""
    folder, overrides = _check_profile(profile, root), overrides or {}
    places = {place: f"params/{folder.name}/{place}" for place in ("common.yml", f"{notebook}.yml")} | {"": "the command line"}
    given = {place: _read_values(folder / place) if place else overrides for place in places}
    refuse_unknown(given["common.yml"], Settings.model_fields, places["common.yml"], "no setting {!r} of a profile.")
    values = {name: (value, places[place]) for place, named in given.items() for name, value in named.items()
              if name in Settings.model_fields}  # fmt: skip
    try:
        return Settings(**{name: value for name, (value, _) in values.items()})
    except ValidationError as error:
        where = {name: place for name, (_, place) in values.items()}
        said = [f"{where.get(problem['loc'][0], places['common.yml'])}: {_sentence(problem)}" for problem in error.errors()]
        raise ParameterError("\n".join(said)) from None


def _sentence(problem):
    """One of pydantic's findings as a sentence."""
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"{name} is missing; a profile needs it."
    return f"{name} = {problem['input']!r}: {problem['msg'][:1].lower()}{problem['msg'][1:]}."


def merged(profile, notebook, overrides=None, *, shared=False, root=ROOT):
    """What a notebook runs with: its parameters and the profile's Settings, each checked for name, type and range.

    Parameters
    ----------
    overrides : dict, from the command line; each name must be a parameter of this notebook or a setting
    shared : bool
        They are meant for several notebooks; what only another one declares is left out here.

    Returns
    -------
    values : dict of the notebook's parameters, PROFILE among them; settings : Settings
    """
    source, overrides = notebook_source(notebook, root), overrides or {}
    folder, known = _check_profile(profile, root), assigned(parameters_cell(source))
    own = _read_values(folder / f"{notebook}.yml")
    refuse_unknown(own, [*known, *Settings.model_fields], f"params/{folder.name}/{notebook}.yml")
    every = _declared_anywhere(root) if shared else known
    refuse_unknown(overrides, dict.fromkeys([*every, *Settings.model_fields]), "the command line",
                   f"no parameter {{!r}} in {'any' if shared else 'this'} notebook.")  # fmt: skip
    if overrides.get("PROFILE", profile) != profile:
        raise ParameterError(f"the command line: PROFILE={overrides['PROFILE']} stands by itself, not in SET.")
    settings = settings_of(profile, notebook, overrides, root)
    values = {name: value for name, (_, value) in known.items()}
    values |= {name: value for given in (own, overrides) for name, value in given.items() if name in known}
    check_values(values | {"PROFILE": profile}, known, notebook)
    return values | {"PROFILE": profile}, settings


def _declared_anywhere(root=ROOT):
    """Names of the parameters of all notebooks, in order of first appearance."""
    return list(dict.fromkeys(name for path in notebooks(root).values() for name in declared(path)))


def check_values(values, known, notebook):
    """ParameterError where a parameter is unknown, of another type than its cell writes, or out of range.

    ``known`` is ``{name: (annotation, default)}`` of the cell.
    """
    refuse_unknown(values, [*known, "PROFILE"], notebook)
    for name, (annotation, default) in known.items():
        if name not in values:
            continue
        if not fits(values[name], annotation):
            raise ParameterError(f"{notebook}: {name} = {values[name]!r} is no {annotation}; its default is {default!r}.")
        if rule := _out_of_range(name, values[name]):
            raise ParameterError(f"{notebook}: {name} = {values[name]!r}; {rule}. Its default is {default!r}.")


def _out_of_range(name, value):
    """What a parameter's value must be, where it is not; None where it may stay."""
    if name in _CHOICES and value not in _CHOICES[name]:
        return f"it is one of {', '.join(filter(None, _CHOICES[name]))}"
    if name in _LEAST and isinstance(value, (int, float)) and value < _LEAST[name]:
        return f"it is at least {_LEAST[name]}"
    return None


def fits(value, annotation):
    """Whether a value has the type that a parameters cell writes, such as ``int | None``; unknown types fit."""
    for part in annotation.split("|"):
        name = part.strip().partition("[")[0]
        if name == "None" and value is None or name not in {*TYPES, "None"}:
            return True
        if name in TYPES and isinstance(value, TYPES[name]) and (name == "bool" or not isinstance(value, bool)):
            return True
    return False


def refuse_unknown(values, known, where, what="no parameter {!r} in this notebook."):
    """Raise ParameterError for the first name that is not known."""
    for name in values:
        if name not in known:
            raise ParameterError(f"{where}: {what.format(name)}{suggestion(name, known)} There are: {', '.join(known)}.")
