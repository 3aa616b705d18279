"""The benchmarks return their rows on tiny sizes. No figure that depends on time is asserted."""

import math

import pandas as pd
import pytest

from helpers.measuring.cells import read_cells
from helpers.measuring.reducers import endpoint_margins
from tests.benchmarks import Figure, acquisition, as_frame, reduction, trie
from tests.benchmarks.__main__ import main


@pytest.fixture(autouse=True)
def _own_key(monkeypatch):
    monkeypatch.setenv(acquisition.KEY_VARIABLE, "bench")


@pytest.mark.parametrize(
    "value, goal, reached",
    [(410, ">= 400", True), (390, ">= 400", False), (1.2, "<= 1.1", False), (1.05, "<= 1.1", True), (3, "", None),
     (math.nan, "<= 2", None)],
)  # fmt: skip
def test_a_goal_is_reached_on_its_own_side(value, goal, reached):
    assert Figure("x", value, "s", goal).reached is reached


def test_figures_become_the_table_that_is_written():
    frame = as_frame([Figure("rate", 450.0, "answers/s", ">= 400"), Figure("time", 2.5, "s")])
    assert list(frame.columns) == ["name", "value", "unit", "goal", "reached"]
    assert frame["reached"].tolist() == ["yes", ""]


def test_both_clients_are_measured_and_set_beside_each_other():
    bare, durable, ratio = acquisition.rates(count=30, rounds=1)
    assert ratio.value == pytest.approx(durable.value / bare.value) and durable.goal == ">= 400" and bare.value > 0


def test_a_second_run_is_measured_beside_the_first():
    whole, ratio, _ = acquisition.second_run(trajectories=1)
    assert "96 cells" in whole.name and whole.value > 0 and ratio.unit == "ratio"


def test_made_up_recordings_are_complete_and_reduce():
    plan = reduction.made_up_plan(150)
    table = reduction.made_up_recordings(plan)
    assert table.num_rows == len(plan) == 192 and len(set(table["key"].to_pylist())) == 192
    names = [f.name for f in reduction.load_and_reduce(150)]
    assert names[0] == "load and reduce 192 recorded cells"
    study = type("Fixed", (), {"target": staticmethod(lambda name: 2)})
    assert endpoint_margins(read_cells(plan, table), study)["complete"].all()


def test_the_bootstrap_figures_have_their_goals():
    (small,) = reduction.paper_bootstrap(draws=20)
    large = reduction.large_bootstrap(300, 30, 20)
    assert small.goal == "<= 0.2" and large[0].unit == "MiB" and large[0].value > 10
    assert [f.goal for f in large] == ["<= 1024", "", "<= 1.25", "<= 1.25"]


def test_a_token_trie_counts_every_shared_prefix_once():
    # root -> 5 -> 6 -> 7 | 8 -> 9; root -> 4: nodes 5, 6, 7, 8, 9, 4
    assert trie.trie_size([[5, 6, 7], [5, 6, 8, 9], [4], [5, 6], [5, 6, 7]]) == 6
    assert trie.trie_size([[3, 1], [2, 1]]) == 4


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    assert main(["--only", "reduction", "bootstrap", "--scale", "0.002", "--folder", str(tmp_path / "b")]) == 0
    table = pd.read_csv(tmp_path / "b" / "bench.csv")
    assert len(table) == 4 and "load and reduce 288 recorded cells" in set(table["name"])
    assert "load and reduce 288 recorded cells" in capsys.readouterr().out


