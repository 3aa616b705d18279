"""A small copy of the project: its helpers and Makefile, tiny notebooks, and this Python in the place of .venv."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
PLACES = {"TASKS": "data/tasks.jsonl", "TRAJECTORIES": "data/trajectories.jsonl", "VIEWS": "data/views.jsonl",
          "RECORDINGS": "data/recordings", "STACK": "smoke"}  # fmt: skip


def write_notebook(path, parameters, *sources, title="A title", tags=("parameters",)):
    """A notebook with a title, a parameters cell and further code cells."""
    cells = [new_markdown_cell(f"# {title}\n\n**Question.** Does it?"), new_code_cell(parameters, metadata={"tags": list(tags)})]
    cells += [source if isinstance(source, dict) else new_code_cell(source) for source in sources]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells), path)


def write_profile(folder, **settings):
    """A profile's ``common.yml`` with what every profile needs; a setting of None is left out."""
    values = {"OUTPUT": f"outputs/{folder.name}", **PLACES, **settings}
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({k: v for k, v in values.items() if v is not None}, sort_keys=False)
    (folder / "common.yml").write_text(text, encoding="utf-8")
    return folder


def copy_project(folder):
    """Makefile, helpers and stacks as they are, with an environment of its own; the notebooks are up to the test."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "requirements.lock").touch()
    shutil.copytree(ROOT / "helpers", folder / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "params").mkdir()
    shutil.copy(ROOT / "params" / "stacks.yml", folder / "params")
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / ".venv" / ".ready").touch()
    return folder


def run(folder, *command, timeout=300, **environment):
    """A finished command in the copy, without what an outer make, kernel or environment would hand down."""
    dropped = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SET", "NB", "PROFILE", "WITHOUT", "N", "PUBMEDQA", "PY", "ASV_RUN")
    kept = {k: v for k, v in os.environ.items() if k not in dropped}
    environment = {**kept, "PYTHONPATH": str(folder), **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)


def make(folder, *arguments, **environment):
    """One finished make call."""
    return run(folder, "make", *arguments, **environment)


def helpers(folder, *arguments, **environment):
    """One finished ``python -m helpers`` in the copy."""
    return run(folder, sys.executable, "-m", "helpers", *arguments, **environment)


def executed(done):
    """Names of the notebooks that a call executed, in order."""
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Executing ")]


def contents(folder):
    """Bytes of every file below a folder, by relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
