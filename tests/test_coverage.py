"""The coverage simulation: its truths, its rows, its verdict. How often intervals cover is for `make coverage`."""

import numpy as np
import pandas as pd
import pytest

from tests import coverage as module
from tests.coverage import METHODS, QUANTITIES, coverage, gains, main, replicate, truths, verdict


def test_the_simulated_studies_average_to_the_truths():
    values, seen, stratum = gains(400, 50, np.random.default_rng(3))
    truth = truths()
    assert values[..., 0].mean() == pytest.approx(truth["mean"], abs=0.01)
    assert (values[..., 1] - values[..., 0]).mean() == pytest.approx(truth["contrast"], abs=0.02)
    assert values[seen][:, 0].mean() == pytest.approx(truth["ratio mean, unequal counts"], abs=0.01)
    shifted = values[..., 0] + module.STRATUM_SHIFT[stratum][..., None]
    by_stratum = [shifted[stratum == s].mean() for s in range(3)]
    assert np.mean(by_stratum) == pytest.approx(truth["equal-strata mean"], abs=0.01)
    assert abs(truth["ratio mean, unequal counts"] - truth["mean"]) > 0.01, "unequal counts must matter"
    rng = np.random.default_rng(4)
    auc = [module.auc_difference(200, 1, 0, rng)[0] for _ in range(60)]
    assert np.mean(auc) == pytest.approx(truth["AUC difference"], abs=0.015)


def test_counts_of_complete_transitions_are_unequal_and_at_least_one():
    _, seen, _ = gains(20, 30, np.random.default_rng(5))
    counts = seen.sum(axis=-1)
    assert counts.min() >= 1 and counts.max() == module.STEPS and counts.std() > 1


def test_points_of_one_study_are_its_plain_means():
    values, seen, stratum = (a[0] for a in gains(1, 25, np.random.default_rng(6)))
    points = [p for p, _ in replicate(values, seen, stratum, 10, 0)]
    shifted = values[..., 0] + module.STRATUM_SHIFT[stratum][:, None]
    expected = [values[..., 0].mean(), (values[..., 1] - values[..., 0]).mean(), values[seen][:, 0].mean(),
                np.mean([shifted[stratum == s].mean() for s in np.unique(stratum)])]  # fmt: skip
    assert points == pytest.approx(expected)


def test_every_size_quantity_and_method_has_a_row():
    table = coverage((12, 16), replications=6, draws=80)
    assert len(table) == 2 * len(QUANTITIES) * len(METHODS)
    assert table["coverage"].between(0, 1).all() and (table["width"] > 0).all()
    widths = table.pivot_table(index=["n", "quantity"], columns="method", values="width")
    assert (widths["expanded"] > widths["percentile"]).all()


def test_the_verdict_names_the_method_whose_worst_quantity_is_nearest():
    rows = [(20, q, m, c) for m, cs in {"percentile": (0.90, 0.95), "expanded": (0.94, 0.97), "t": (0.95, 0.91)}.items()
            for q, c in zip("ab", cs, strict=True)]  # fmt: skip
    (line,) = verdict(pd.DataFrame(rows, columns=["n", "quantity", "method", "coverage"]))
    assert line.startswith("n = 20: expanded is nearest to 95%") and "percentile 90.0% to 95.0%" in line


def test_the_command_writes_its_table(tmp_path, capsys):
    assert main(["--replications", "4", "--draws", "50", "--sizes", "10", "--folder", str(tmp_path / "bench")]) == 0
    assert len(pd.read_csv(tmp_path / "bench" / "coverage.csv")) == len(QUANTITIES) * len(METHODS)
    assert "n = 10: " in capsys.readouterr().out
