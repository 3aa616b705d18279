"""What the report in a folder was made from and what it consists of, so that a try never changes it and a change shows.

``manifest.json`` stands beside the report: for each notebook the values it ran with and the SHA-256 of every file it wrote.
What it was made from (its source, the helpers, the data) is remembered in ``.work/``, which is not kept.
"""

import hashlib
import json
import sqlite3
from pathlib import Path

from helpers.study.files import write_text

FILE = "manifest.json"
PAGES = "index"  # what the pages stand under in it
TWEAKED = "outputs/tweaked"
_SPENDING = ("BUDGET", "BUDGET_MONEY", "NOTEBOOKS", "PREPARE", "OUTPUT")  # these say nothing about a result


def digest(content):
    """SHA-256 of bytes or of a text."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def told(values, settings):
    """All values that a result depends on, as JSON takes them; an empty parameter leaves it to the profile's setting."""
    every = [*settings.model_dump(exclude=_SPENDING).items(), *values.items()]
    return json.loads(json.dumps({name: value for name, value in every if value not in ("", None)}))


def read(folder):
    """The manifest of an output folder: ``{notebook: {"values", "files"}}``, empty without one."""
    try:
        return json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def folder_for(notebook, values, settings, usual, root):
    """Where a run outside of ``make`` writes: the profile's folder if its values are the report's, else one of its own.

    ``usual`` are the parameters that the profile has, for a report that has not been made yet.
    """
    entry = read(root / settings.OUTPUT).get(notebook)
    report = entry["values"] if entry else told(usual, settings)
    return settings.OUTPUT if told(values, settings) == report else f"{TWEAKED}/{notebook}"


def is_tweaked(folder):
    """Whether an output folder is one for tries."""
    return str(folder).startswith(TWEAKED)


def files(notebook, folder):
    """SHA-256 of every file that a notebook wrote: those that begin with its number, and the executed notebook.

    ``PAGES`` in place of a notebook are the report's HTML pages.
    """
    number = notebook.split("_")[0]
    written = ["*.html"] if notebook == PAGES else [f"{number}_*.csv", f"figures/{number}_*", f"{notebook}.ipynb"]
    found = [path for pattern in written for path in folder.glob(pattern)]
    return {str(p.relative_to(folder)): digest(p.read_bytes()) for p in sorted(found)}


def intact(notebook, folder):
    """Whether a notebook's files are what they were when it ran."""
    entry = read(folder).get(notebook)
    return bool(entry) and bool(entry["files"]) and entry["files"] == files(notebook, Path(folder))


def record(notebook, folder, values=None):
    """Note in the manifest what a notebook wrote, and the values (see :func:`told`) that it ran with."""
    every = read(folder) | {notebook: {"values": values or {}, "files": files(notebook, Path(folder))}}
    write_text(Path(folder) / FILE, json.dumps(dict(sorted(every.items())), indent=1) + "\n")


# -- what a notebook is made from -------------------------------------------------------------------


def inputs(source, values, settings, root):
    """A hash of everything that an executed notebook depends on; ``settings`` name the profile's own data.

    Of a journal, which grows while it is asked, only the number of answers counts.
    """
    root = Path(root)
    data = [getattr(settings, name) for name in type(settings).model_fields if name.isupper()]
    data = [root / p for p in data if isinstance(p, str) and p and (root / p).is_file()]
    code = [p for p in sorted((root / "helpers").rglob("*.py")) if p.name not in ("site.py", "__main__.py")]
    recordings = root / settings.RECORDINGS
    parts = [json.dumps(told(values, settings), sort_keys=True)]
    parts += [digest(p.read_bytes()) for p in [Path(source), root / "params" / "stacks.yml", *code, *data] if p.exists()]
    parts += [digest(p.read_bytes()) for p in sorted(recordings.glob("*.parquet"))]
    parts += [f"{p.name} {_answers(p)}" for p in sorted(recordings.glob("journal/*.sqlite"))]
    return digest("\n".join(parts))


def _answers(journal):
    try:
        database = sqlite3.connect(f"{journal.resolve().as_uri()}?mode=ro", uri=True)
        try:
            return database.execute("SELECT count(*) FROM answers").fetchone()[0]
        finally:
            database.close()
    except sqlite3.Error:
        return -1
