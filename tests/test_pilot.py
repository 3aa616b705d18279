"""The pilot's table: gains, accuracy and abstentions from energies whose answer is known."""

import pytest

from tests.conftest import tiny_task
from tests.pilot import table

TASKS = {
    name: tiny_task(name, "risk", "Night cramp", target) for name, target in (("a", "answer-a"), ("b", "answer-c"))
}


def test_the_table_is_worked_out_by_hand():
    rows = [
        {"variant": "v", "task": "a", "dose": "none", "energies": [0.1, 0.3, 0.2, 0.9]},
        {"variant": "v", "task": "b", "dose": "none", "energies": [0.5, 0.1, 0.2, 0.4]},
        {"variant": "v", "task": "a", "dose": "oracle", "energies": [2.0, 0.4, 0.7, 0.8]},
        {"variant": "v", "task": "b", "dose": "oracle", "energies": [0.9, 0.3, 0.6, 1.1]},
        {"variant": "w", "task": "a", "dose": "none", "energies": [None, 0.3, 0.2, 0.9]},
    ]
    (v,) = table(rows, TASKS)
    # a: 1.9 - (0.1 + 0.5) / 2 = 1.6; b: 0.4 - (0.4 + 0.2) / 2 = 0.1
    assert v["gain_oracle"] == f"{0.85:+.2f} ± {0.75:.2f}"
    assert (v["abstains_none"], v["abstains_oracle"], v["right_oracle"]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("target", ["answer-a", "answer-b"])
def test_a_shift_of_none_of_the_above_is_no_gain(target):
    rows = [
        {"variant": "v", "task": "a", "dose": d, "energies": [0.1, 0.3, 0.2, f]}
        for d, f in (("none", 2.0), ("oracle", -2.0))
    ]
    (v,) = table(rows, {"a": TASKS["a"] | {"target": target}})
    assert v["gain_oracle"].startswith(("+0.00", "-0.00"))
