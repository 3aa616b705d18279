"""Cells: what a part of them keeps, and how the completeness table names channels and gaps."""

import numpy as np
import pandas as pd
import pytest

from helpers.channels.channels import Channel, direct
from helpers.channels.plan import add_keys
from helpers.measuring import cells as module
from helpers.measuring.cells import channel_names, completeness, read_cells
from helpers.study.files import DataError
from tests.conftest import loopback_stack, obtained, tiny_plan, tiny_study


@pytest.fixture
def nothing(tmp_path):
    """Cells of a plan of which nothing is recorded."""
    study, stack = tiny_study(), loopback_stack("http://127.0.0.1:9/v1")
    return read_cells(*obtained(tiny_plan(study, states=(4,)), study, stack, tmp_path))


def test_a_part_is_what_reading_its_rows_alone_would_give_and_nothing_is_read_again(
    study, endpoint, tmp_path, monkeypatch
):
    plan, stack = tiny_plan(study, states=(3, 4)), loopback_stack(endpoint().url)
    mask = (plan["state"] == 4) & (plan["layout"] > 0)
    _, table = obtained(plan.drop(index=plan.index[mask][[1, 2]]), study, stack, tmp_path, acquire="missing")
    plan = add_keys(plan, study, {"loopback": stack})
    cells = read_cells(plan, table)
    alone = read_cells(plan[mask], table)
    monkeypatch.setattr(module.said, "label_matrix", lambda *_: pytest.fail("read again"))
    part = cells.where(mask)
    pd.testing.assert_frame_equal(part.plan, alone.plan)
    assert 0 < len(part.plan) < len(plan) and list(part.plan.index) == list(range(len(part.plan)))
    assert len(set(part.reason)) == 2 and list(part.reason) == list(alone.reason)
    np.testing.assert_array_equal(part.values, alone.values)
    np.testing.assert_array_equal(part.mass, alone.mass)


def test_an_answer_without_labels_is_answered_and_what_is_not_recorded_is_not(nothing):
    reason = np.array(["view not frozen", "label not returned", None, "not recorded"] * 2, dtype=object)
    cells = module.Cells(nothing.plan, nothing.table, nothing.values, reason, nothing.mass)
    assert cells.answered.tolist() == [False, True, True, False] * 2
    table = completeness(cells)
    assert table["planned"].sum() == 8 and table["answered"].sum() == 4 and table["complete"].sum() == 2
    assert "label not returned: 2" in table["missing because"].iloc[0]


def test_channels_are_named_apart_and_a_held_view_names_its_state():
    held = Channel("buffered", "generated-128", view_state=3)
    plan = pd.DataFrame([vars(c) for c in (direct("qwen-1.5b"), Channel("buffered", "generated-128"), held)])
    names = channel_names(plan)
    assert len(set(names)) == 3 and names[2].endswith("view of state 3") and names[1].endswith("view of its own state")


def test_a_section_of_which_nothing_is_recorded_stops_with_one_sentence(nothing):
    said = 'nothing of this section is recorded for loopback: of 8 cells 8 not recorded; ACQUIRE = "missing"'
    with pytest.raises(DataError, match=said):
        completeness(nothing)
    assert completeness(nothing, may_be_empty=True)["answered"].sum() == 0
