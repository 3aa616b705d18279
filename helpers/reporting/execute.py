"""Execute one notebook with the parameters of a profile, so that the result depends on nothing else.

The executed notebook appears in one step when every cell has run. One that fails is kept beside it as
``NOTEBOOK.failed.ipynb``.
"""

import json
import os
import re
import sys
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError

from helpers.reporting.params import ROOT

_INJECTED = "injected-parameters"
_CELL_FILE = re.compile(r"\S*ipykernel_\d+/\d+\.py")  # the kernel's name for a cell, another one in each run
_BAR = re.compile(r"\r[^\r\n\[]*\[[^\]\r\n]*\] *\n?|\r *")  # one state of a tqdm bar, or its removal
_HOME = re.compile(r"(?:/[^\s:'\"]*)?/site-packages/")


class NotebookFailed(RuntimeError):
    """A cell raised. The message names the notebook, the heading and the error's last line."""


def execute(source, output, parameters, *, settings=None, folder=None, root=ROOT, progress=True):
    """Run a notebook and write it to ``output`` in one step; returns the cleaned notebook.

    Parameters
    ----------
    source, output : paths of the notebook without and with outputs
    parameters : dict of plain values, the notebook's parameters that differ from its cell
    settings : dict, the profile's settings that the command line changes
    folder : where the notebook writes tables and figures; the output's folder without it
    root : working folder of the kernel

    Raises
    ------
    NotebookFailed, OSError
    """
    source, output = Path(source), Path(output).resolve()
    partial, failed = output.with_suffix(".partial.ipynb"), output.with_suffix(".failed.ipynb")
    output.parent.mkdir(parents=True, exist_ok=True)
    run = {"settings": settings or {}, "folder": str(folder or output.parent)}
    os.environ |= {"PYTHONHASHSEED": "0", "ASV_RUN": json.dumps(run)}  # the kernel inherits them; see Lab.open
    try:
        papermill.execute_notebook(
            str(source), str(partial), parameters, kernel_name="python3", language="python", cwd=str(root),
            progress_bar=progress, log_output=False, stderr_file=sys.stderr, record_timing=False,
            extra_arguments=["--log-level=CRITICAL"],  # its own log: a warning a start, a traceback at Ctrl-C
        )  # fmt: skip
        notebook = _cleaned(nbformat.read(partial, as_version=4), root)
        nbformat.write(notebook, partial)
        partial.replace(output)
        failed.unlink(missing_ok=True)
    except papermill.PapermillExecutionError as error:
        partial.replace(failed)
        raise NotebookFailed(failure(source.stem, failed, error)) from None
    except (DeadKernelError, RuntimeError) as error:
        raise NotebookFailed(f"{source.stem}: the kernel stopped ({_last_line(str(error))}); is memory short?") from None
    finally:
        partial.unlink(missing_ok=True)
        del os.environ["ASV_RUN"]
    return notebook


def _cleaned(notebook, root=ROOT):
    """The notebook without what differs from run to run or from machine to machine, changed in place.

    Timings, random ids, dates, progress bars and folders go; warnings and results stay.
    """
    notebook.metadata.pop("papermill", None)
    notebook.metadata.get("language_info", {}).pop("version", None)
    for number, cell in enumerate(notebook.cells):
        for name in ("papermill", "execution", "ExecuteTime", "collapsed"):
            cell.metadata.pop(name, None)
        if _INJECTED in cell.metadata.get("tags", []):
            cell.id = _INJECTED
        elif "id" not in cell:
            cell.id = f"cell-{number:02d}"
        if cell.cell_type == "code":
            outputs = [_placeless(_without_progress(o), root) for o in cell.outputs]
            cell.outputs = [o for o in outputs if o.get("name") != "stderr" or o.text.strip()]
    return notebook


def _without_progress(output):
    if output.output_type == "stream" and output.name == "stderr":
        output.text = _BAR.sub("", output.text)
    return output


def _placeless(output, root):
    if "text" in output:
        output.text = _without_places(output.text, root)
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/") and isinstance(value, str):
            output.data[kind] = _without_places(value, root)
    return output


def _without_places(text, root=ROOT):
    """A text without this machine's folders: paths start at the repository, at site-packages or at the cell."""
    text = _HOME.sub("site-packages/", _CELL_FILE.sub("<cell>", text))
    return text.replace(f"{root}/", "").replace(str(root), ".")


def failure(name, failed, error):
    """One sentence about a notebook that stopped: where, why, and where to look."""
    cells = nbformat.read(failed, as_version=4).cells
    raised = [i for i, c in enumerate(cells) if any(o.output_type == "error" for o in c.get("outputs", []))]
    where = heading(cells[: raised[0] if raised else len(cells)])
    shown = os.path.relpath(failed) if failed.is_relative_to(Path.cwd()) else failed
    return f"{name}, {where}: {error.ename}: {_last_line(error.evalue)} See {shown}."


def heading(cells):
    """The last markdown heading among cells, as ``under "Heading"``."""
    lines = [line for c in cells if c.cell_type == "markdown" for line in c.source.splitlines()]
    found = [line.lstrip("#").strip() for line in lines if re.match(r"#{1,6} ", line)]
    return f"under {found[-1]!r}" if found else "before the first heading"


def _last_line(text):
    """The last line of a text that is not empty, without terminal colours."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return lines[-1] if lines else "(no message)"
