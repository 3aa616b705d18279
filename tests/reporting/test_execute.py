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

from helpers.reporting import execute as executor
from helpers.reporting.execute import NotebookFailed, cleaned, heading, last_line, without_places

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
import os, warnings
from tqdm import tqdm
bar = tqdm(total=2, desc="asking", unit="cell", mininterval=0)
bar.update()
warnings.warn("kept")
bar.update()
bar.close()
print(os.getcwd(), COUNT, os.environ["PYTHONHASHSEED"])
"""
SLOW = """
import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
time.sleep(60)
"""


def write_notebook(path, *cells):
    parameters = new_code_cell("COUNT: int = 2  # how many", metadata={"tags": ["parameters"]})
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[new_markdown_cell("# A title"), parameters, *cells]), path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A repository of three notebooks; the module runs each of them once or twice."""
    root = tmp_path_factory.mktemp("repository")
    write_notebook(root / "notebooks" / "good.ipynb", new_code_cell(GOOD))
    write_notebook(
        root / "notebooks" / "bad.ipynb",
        new_markdown_cell("Some text.\n\n## Gains per step"),
        new_code_cell("if COUNT == 2:\n    raise ValueError('first line\\ndata/x.jsonl, line 3: not valid JSON.')"),
        new_markdown_cell("## Later"),
    )
    write_notebook(root / "notebooks" / "dying.ipynb", new_code_cell("import os; os._exit(1)"))
    (root / "params" / "smoke").mkdir(parents=True)
    (root / "params" / "smoke" / "common.yml").write_text("SEED: 3\n")
    return root


@pytest.fixture(scope="module")
def good(root):
    """The executed notebook, and what the command printed."""
    call = f"from helpers.reporting import execute; raise SystemExit(execute.main(root={str(root)!r}))"
    command = [sys.executable, "-c", call, "smoke", "good", "COUNT=7"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return nbformat.read(root / "outputs" / "smoke" / "good.ipynb", as_version=4), done.stderr


def streams(notebook, name):
    return "".join(o.text for c in notebook.cells for o in c.get("outputs", []) if o.get("name") == name)


def test_the_kernel_works_in_the_root_with_the_parameters_and_a_fixed_hash_seed(good):
    assert streams(good[0], "stdout") == ". 7 0\n"  # the root's own path is written as a dot


def test_progress_is_shown_while_it_runs_and_is_not_kept(good):
    assert "asking:  50%|" in good[1]
    assert not re.search(r"asking|\r|%", streams(good[0], "stderr"))


def test_a_warning_is_kept_without_the_kernels_name_for_the_cell(good):
    assert "<cell>:5: UserWarning: kept" in streams(good[0], "stderr")


def test_nothing_that_differs_from_run_to_run_is_kept(good, root):
    text = (root / "outputs" / "smoke" / "good.ipynb").read_text()
    assert not re.search(r"papermill|start_time|execution_state|ipykernel_\d|iopub", text)
    assert str(root) not in text
    injected = [c.id for c in good[0].cells if "injected-parameters" in c.metadata.get("tags", [])]
    assert injected == ["injected-parameters"]


def test_a_second_run_writes_the_same_bytes(good, root):
    path = root / "outputs" / "smoke" / "good.ipynb"
    first = path.read_bytes()
    assert executor.main(["smoke", "good", "COUNT=7"], root=root) == 0
    assert path.read_bytes() == first


def test_a_failed_notebook_says_where_and_why_in_one_line_and_leaves_no_output(root, capfd):
    out = root / "outputs" / "smoke"
    assert executor.main(["smoke", "bad"], root=root) == 1
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(said) == 1
    assert "bad, under 'Gains per step': ValueError: data/x.jsonl, line 3: not valid JSON. See " in said[0]
    assert sorted(p.name for p in out.glob("bad*")) == ["bad.failed.ipynb"]


def test_a_notebook_that_runs_again_takes_its_failed_copy_away(root):
    (root / "outputs" / "smoke").mkdir(parents=True, exist_ok=True)
    (root / "outputs" / "smoke" / "bad.failed.ipynb").touch()
    assert executor.main(["smoke", "bad", "COUNT=3"], root=root) == 0
    assert sorted(p.name for p in (root / "outputs" / "smoke").glob("bad*")) == ["bad.ipynb"]


def test_a_kernel_that_dies_is_a_failure_with_one_sentence(root, capfd):
    assert executor.main(["smoke", "dying"], root=root) == 1
    assert "error: dying: the kernel stopped" in capfd.readouterr().err
    assert list((root / "outputs" / "smoke").glob("dying*")) == []


def test_ctrl_c_is_one_sentence_and_ends_the_kernel(root):
    write_notebook(root / "notebooks" / "slow.ipynb", new_code_cell(SLOW))
    call = f"from helpers.reporting import execute; raise SystemExit(execute.main(root={str(root)!r}))"
    command = [sys.executable, "-c", call, "smoke", "slow"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
    while not (root / "pid").exists() or not (root / "pid").read_text():
        assert running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "slow: stopped; what was answered is kept" in said and "Traceback" not in said
    assert not (root / "outputs/smoke/slow.ipynb").exists() and not list((root / "outputs/smoke").glob("slow.partial*"))
    kernel = int((root / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{kernel}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{kernel}").exists()


def test_an_unwritable_output_folder_gives_one_sentence(root, tmp_path, capfd):
    """A file stands where the folder should be, which stops root as well."""
    (tmp_path / "outputs").write_text("in the way")
    assert executor.main(["smoke", "good", "--output", str(tmp_path / "outputs" / "good.ipynb")], root=root) == 1
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1 and re.match(r"error: good: .*/outputs: .*Make the folder writable\.$", said[0])


def test_a_misspelt_parameter_stops_before_anything_runs(root, capfd):
    assert executor.main(["smoke", "good", "CUONT=7"], root=root) == 2
    assert "no parameter 'CUONT' in this notebook. Did you mean 'COUNT'?" in capfd.readouterr().err


def test_an_executed_notebook_keeps_its_old_output_when_a_new_run_fails(root):
    output = root / "kept.ipynb"
    output.write_text("the last good one")
    with pytest.raises(NotebookFailed):
        executor.execute(root / "notebooks" / "bad.ipynb", output, {"COUNT": 2}, root=root, progress=False)
    assert output.read_text() == "the last good one"


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
    assert without_places(text, "/repo") == expected


def test_an_output_that_was_only_a_progress_bar_is_gone():
    cell = new_code_cell("ask()")
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="\rasking: 3cell [00:01, 2.9cell/s]\n")]
    assert cleaned(new_notebook(cells=[cell]), "/repo").cells[0].outputs == []


def test_cleaning_keeps_tags_results_and_errors():
    cell = new_code_cell("1", metadata={"tags": ["x"], "papermill": {"duration": 1.5}, "execution": {"iopub": "t"}})
    data = {"text/plain": "1", "image/png": "abc"}
    cell.outputs = [nbformat.v4.new_output("execute_result", data, execution_count=1)]
    language = {"name": "python", "version": "3.11.7"}
    notebook = new_notebook(cells=[cell], metadata={"papermill": {}, "language_info": language})
    kept = cleaned(notebook, "/repo")
    assert kept.metadata == {"language_info": {"name": "python"}}
    assert kept.cells[0].metadata == {"tags": ["x"]}
    assert kept.cells[0].outputs[0].data == {"text/plain": "1", "image/png": "abc"}


def test_the_heading_is_the_last_one_before_the_failing_cell():
    cells = [new_markdown_cell("# One\n\ntext\n\n## Two"), new_code_cell("# no heading"), new_markdown_cell("text")]
    assert heading(cells) == "under 'Two'"
    assert heading(cells[1:]) == "before the first heading"


def test_the_last_line_of_an_error_has_no_colours_and_is_never_empty():
    assert last_line("\x1b[31mfirst\x1b[0m\n second \n\n") == "second"
    assert last_line("") == "(no message)"
