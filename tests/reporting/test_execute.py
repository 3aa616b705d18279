"""One notebook executed: what is kept, what is taken out, and what is said when it fails."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from helpers.__main__ import main
from helpers.reporting.execute import NotebookFailed, _cleaned, _last_line, _without_places, execute, heading
from tests.small_project import copy_project, helpers, write_notebook, write_profile

GOOD = """
import json, os, warnings
from tqdm import tqdm
bar = tqdm(total=2, desc="asking", unit="cell", mininterval=0)
bar.update()
warnings.warn("kept")
bar.update()
bar.close()
print(os.getcwd(), COUNT, os.environ["PYTHONHASHSEED"])
print(json.loads(os.environ["ASV_RUN"]))
"""
SLOW = """
import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
time.sleep(60)
"""
COUNT = "PROFILE: str = 'smoke'\nCOUNT: int = 2  # how many"
FAILS = "if COUNT == 2:\n    raise ValueError('first line\\ndata/x.jsonl, line 3: not valid JSON.')"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A small copy of the project with three notebooks; the module runs each of them once or twice."""
    root = copy_project(tmp_path_factory.mktemp("repository"))
    write_notebook(root / "notebooks" / "good.ipynb", COUNT, GOOD)
    text = new_markdown_cell("Some text.\n\n## Gains per step")
    write_notebook(root / "notebooks" / "bad.ipynb", COUNT, text, new_code_cell(FAILS), new_markdown_cell("## Later"))
    write_notebook(root / "notebooks" / "dying.ipynb", COUNT, "import os; os._exit(1)")
    write_notebook(root / "notebooks" / "slow.ipynb", COUNT, SLOW)
    write_profile(root / "params" / "smoke", SEED=3, NOTEBOOKS=["good", "bad"])
    return root


@pytest.fixture(scope="module")
def good(root):
    """The executed notebook, and what the command printed."""
    done = helpers(root, "execute", "good", "--profile", "smoke", "--set", "COUNT=7 SEED=4")
    assert done.returncode == 0, done.stderr
    return nbformat.read(root / "outputs" / "tweaked" / "smoke" / "good.ipynb", as_version=4), done.stderr


def executed(root, name, **parameters):
    """One notebook executed in this process, into the smoke profile's folder."""
    out = root / "outputs" / "smoke"
    return execute(root / "notebooks" / f"{name}.ipynb", out / f"{name}.ipynb", parameters, root=root, progress=False)


def streams(notebook, name):
    return "".join(o.text for c in notebook.cells for o in c.get("outputs", []) if o.get("name") == name)


def test_the_kernel_works_in_the_root_with_the_parameters_and_a_fixed_hash_seed(good):
    assert streams(good[0], "stdout").startswith(". 7 0\n")  # the root's own path is written as a dot


def test_the_kernel_is_told_the_settings_of_the_command_line_and_where_to_write(good):
    told = {"settings": {"SEED": 4}, "folder": "outputs/tweaked/smoke"}
    assert streams(good[0], "stdout").splitlines()[1] == str(told)
    assert "ASV_RUN" not in os.environ, "nor does it stay for what this process does next"


def test_progress_is_shown_while_it_runs_and_is_not_kept(good):
    assert "asking:  50%|" in good[1]
    assert not re.search(r"asking|\r|%", streams(good[0], "stderr"))


def test_a_warning_is_kept_without_the_kernels_name_for_the_cell(good):
    assert "<cell>:5: UserWarning: kept" in streams(good[0], "stderr")


def test_nothing_that_differs_from_run_to_run_is_kept(good, root):
    text = (root / "outputs" / "tweaked" / "smoke" / "good.ipynb").read_text()
    assert not re.search(r"papermill|start_time|execution_state|ipykernel_\d|iopub", text)
    assert str(root) not in text
    injected = [c.id for c in good[0].cells if "injected-parameters" in c.metadata.get("tags", [])]
    assert injected == ["injected-parameters"]


def test_a_second_run_writes_the_same_bytes(good, root):
    path = root / "outputs" / "tweaked" / "smoke" / "good.ipynb"
    first = path.read_bytes()
    execute(root / "notebooks" / "good.ipynb", path, {"COUNT": 7}, settings={"SEED": 4}, root=root, progress=False)
    assert path.read_bytes() == first


def test_a_failed_notebook_says_where_and_why_in_one_line_and_leaves_no_output(root):
    with pytest.raises(NotebookFailed) as failed:
        executed(root, "bad")
    assert re.fullmatch(r"bad, under 'Gains per step': ValueError: data/x.jsonl, line 3: not valid JSON\. "
                        r"See \S+/outputs/smoke/bad\.failed\.ipynb\.", str(failed.value))  # fmt: skip
    assert sorted(p.name for p in (root / "outputs" / "smoke").glob("bad*")) == ["bad.failed.ipynb"]


def test_a_notebook_that_runs_again_takes_its_failed_copy_away(root):
    (root / "outputs" / "smoke").mkdir(parents=True, exist_ok=True)
    (root / "outputs" / "smoke" / "bad.failed.ipynb").touch()
    executed(root, "bad", COUNT=3)
    assert sorted(p.name for p in (root / "outputs" / "smoke").glob("bad*")) == ["bad.ipynb"]


def test_an_executed_notebook_keeps_its_old_output_when_a_new_run_fails(root):
    (root / "outputs" / "smoke").mkdir(parents=True, exist_ok=True)
    kept = root / "outputs" / "smoke" / "dying.ipynb"
    kept.write_text("the last good one")
    with pytest.raises(NotebookFailed, match="^dying: the kernel stopped .*; is memory short?"):
        executed(root, "dying")
    assert kept.read_text() == "the last good one"
    assert [p.name for p in (root / "outputs" / "smoke").glob("dying*")] == ["dying.ipynb"]


def test_ctrl_c_is_one_sentence_and_ends_the_kernel(root):
    command = [sys.executable, "-m", "helpers", "reproduce", "--profile", "smoke", "--nb", "slow"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root, start_new_session=True)
    while not (root / "pid").exists() or not (root / "pid").read_text():
        assert running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "Traceback" not in said
    assert said.count("stopped; everything answered so far is recorded, and the same command goes on from here.") == 1
    assert not (root / "outputs/smoke/slow.ipynb").exists() and not list((root / "outputs/smoke").glob("slow.partial*"))
    kernel = int((root / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{kernel}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{kernel}").exists()


def test_an_unwritable_output_folder_gives_one_sentence(tmp_path, capsys):
    """A file stands where the folder should be, which stops root as well."""
    (tmp_path / "outputs").write_text("in the way")
    assert main(["execute", "03_retrieval_face", "--set", f"OUTPUT={tmp_path}/outputs/here"]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and re.match(r"error: .*/outputs.*: .*Make it readable and its folder writable\.$", said[0])


@pytest.mark.parametrize(
    ("name", "setting", "said"),
    [
        ("03_retrieval_face", "DRAW=7", "the command line: no parameter 'DRAW' in any notebook. Did you mean 'DRAWS'?"),
        ("03_retrieval_fac", "", "no notebook '03_retrieval_fac' in notebooks/. Did you mean '03_retrieval_face'?"),
        ("inspect_transition", "STPE=4", "the command line: no parameter 'STPE' in this notebook. Did you mean 'STEP'?"),
    ],
)
def test_a_misspelt_name_stops_before_anything_runs(name, setting, said, capsys):
    assert main(["execute", name, "--set", setting]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/tmp/ipykernel_123/456.py:3: UserWarning", "<cell>:3: UserWarning"),
        ("/home/x/.venv/lib/python3.11/site-packages/pandas/a.py:1", "site-packages/pandas/a.py:1"),
        ("/repo/data/views.jsonl, line 7", "data/views.jsonl, line 7"),
        ("in /repo", "in ."),
    ],
)
def test_places_of_this_machine_are_taken_out_of_a_text(text, expected):
    assert _without_places(text, "/repo") == expected


def test_an_output_that_was_only_a_progress_bar_is_gone():
    cell = new_code_cell("ask()")
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="\rasking: 3cell [00:01, 2.9cell/s]\n")]
    assert _cleaned(new_notebook(cells=[cell]), "/repo").cells[0].outputs == []


def test_cleaning_keeps_tags_results_and_errors():
    cell = new_code_cell("1", metadata={"tags": ["x"], "papermill": {"duration": 1.5}, "execution": {"iopub": "t"}})
    data = {"text/plain": "1", "image/png": "abc"}
    cell.outputs = [nbformat.v4.new_output("execute_result", data, execution_count=1)]
    language = {"name": "python", "version": "3.11.7"}
    notebook = new_notebook(cells=[cell], metadata={"papermill": {}, "language_info": language})
    kept = _cleaned(notebook, "/repo")
    assert kept.metadata == {"language_info": {"name": "python"}}
    assert kept.cells[0].metadata == {"tags": ["x"]}
    assert kept.cells[0].outputs[0].data == {"text/plain": "1", "image/png": "abc"}


def test_the_heading_is_the_last_one_before_the_failing_cell():
    cells = [new_markdown_cell("# One\n\ntext\n\n## Two"), new_code_cell("# no heading"), new_markdown_cell("text")]
    assert heading(cells) == "under 'Two'"
    assert heading(cells[1:]) == "before the first heading"


def test_the_last_line_of_an_error_has_no_colours_and_is_never_empty():
    assert _last_line("\x1b[31mfirst\x1b[0m\n second \n\n") == "second"
    assert _last_line("") == "(no message)"
