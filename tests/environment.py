"""Whether a Python already has this project's dependencies. Standard library only: it runs before anything is set up.

``python helpers/reporting/environment.py`` exits with 0 when every version of ``pyproject.toml`` is installed, else it says
what is missing and exits with 1.
"""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"Python {sys.version.split()[0]} is too old: this project needs 3.11 or newer.")

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def pinned(pyproject=PYPROJECT):
    """Direct dependencies with their exact versions, extras included: ``{name: version}``."""
    project = tomllib.loads(Path(pyproject).read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return dict(text.replace(" ", "").split("==") for group in groups for text in group)


def unmet(wanted):
    """One sentence for each package that is not installed in the wanted version."""
    problems = []
    for name, number in wanted.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            problems.append(f"{name} is not installed.")
            continue
        if found != number:
            problems.append(f"{name} is {found}; {number} is needed.")
    return problems


if __name__ == "__main__":
    sys.exit("\n".join(unmet(pinned())) or 0)
