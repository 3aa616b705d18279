"""Which transitions stand out: the three orders, and choices that do not exist."""

import pandas as pd
import pyarrow as pa
import pytest

from helpers.measuring.inspection import check_choice, chosen, readings, standing_out
from helpers.study.files import DataError
from tests.conftest import tiny_study


def frame(values, names):
    """Margins of one trajectory: ``{column value: margins of its states}``."""
    return pd.concat(
        pd.DataFrame({"trajectory_id": "t", "state": range(len(m)), "margin": m}).assign(**dict(zip(names, key, strict=True)))
        for key, m in values.items()
    )


# steps 1 to 3: direct gains 1, -2, 1; generated gains 1.5, 0.5, -0.8
MARGINS = frame({("direct",): [0, 1, -1, 0], ("generated",): [0, 1.5, 2.0, 1.2]}, ["channel"])
WAVES = frame(
    {("direct", 1): [0, 1, 1], ("direct", 2): [0, 1, 1.5], ("buffered", 1): [0, 0, 0], ("buffered", 2): [0, 0.1, 0.1]},
    ["template", "wave"],
)


def steps(found):
    return list(found.index.get_level_values("step"))


def test_the_largest_interaction_comes_first():
    found = standing_out(MARGINS, WAVES, "omega")
    assert steps(found) == [2, 3, 1] and found["omega"].tolist() == pytest.approx([2.5, -1.8, 0.5])
    assert found["action"].tolist() == ["plan", "validate_plan", "classify"]


def test_a_reversal_is_as_clear_as_its_smaller_gain():
    assert steps(standing_out(MARGINS, WAVES, "reversal")) == [3, 2]


def test_retry_orders_by_the_largest_change_between_waves():
    found = standing_out(MARGINS, WAVES, "retry")
    assert steps(found) == [2, 1] and found["direct change"].tolist() == pytest.approx([0.5, 0.0])
    assert found["generated change"].tolist() == pytest.approx([0.0, 0.1])


@pytest.mark.parametrize("sort", ["omega", "reversal", "retry"])
def test_an_incomplete_transition_is_not_listed(sort):
    margins, waves = (m.assign(margin=m["margin"].where(m["state"] != 1)) for m in (MARGINS, WAVES))
    assert steps(standing_out(margins, waves, sort)) == ([] if sort == "retry" else [3])


def test_what_is_set_is_kept_and_the_list_fills_in_the_rest():
    found = standing_out(MARGINS, WAVES, "omega")  # steps 2, 3, 1 of t
    assert chosen(found, "", 0) == ("t", 2) and chosen(found, "", 3) == ("t", 3) == chosen(found, "t", 3)
    assert chosen(found, "t", 0) == ("t", 2) and chosen(found, "other", 7) == ("other", 7)
    for choice in (("other", 0), ("", 9)):
        with pytest.raises(DataError, match="nothing that is recorded fits; set TRAJECTORY and STEP"):
            chosen(found, *choice)


def test_a_missing_label_is_told_with_its_reason_and_bound():
    plan = pd.DataFrame({"key": ["k1", "k2"], "readout": "joint"}, index=[4, 7])
    table = pa.table({"key": ["k1"], "tokens": [["A", "B", "C", "D"]], "logprobs": [[-9999.0, -1.2, -1.9, -2.3]]})
    told = readings(plan, table)
    assert told[4] == "A: sentinel instead of a log-probability, at most -0.80 nats"
    assert told[7].startswith("A: answer without log-probabilities; B:")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (("traj-x", 4, "omega"), "TRAJECTORY: no 'traj-x'; there are traj-risk-01"),
        (("", 12, "omega"), "STEP: 12; use 0 for the first of the list, or one of 1 classify"),
        (("", 0, "size"), "SORT: 'size'; use one of omega, reversal, retry"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(choice, message):
    with pytest.raises(DataError, match=message):
        check_choice(tiny_study(), *choice)
    check_choice(tiny_study(), "", 0, "retry")
