"""Tables and words of the report: rounding, sides, agreement with the published numbers."""

import base64

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from helpers.reporting import figures
from helpers.reporting import results as report

PAPER = pd.DataFrame(
    {"quantity": ["a gain"], "unit": ["nats"], "estimate": [0.2], "low": [0.1], "high": [0.3], "section": ["x"]}, index=pd.Index(["a"], name="id")
)


def row(estimate, low=np.nan, high=np.nan, unit="nats", paper=(0.2, 0.1, 0.3), n=30):
    return {"estimate": estimate, "low": low, "high": high, "unit": unit, "n_trajectories": n, **dict(zip(("paper_estimate", "paper_low", "paper_high"), paper, strict=True))}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0.1634, 0.1021, 0.2184), "+0.163 [0.102, 0.218]"),
        ((-0.00001, -0.2, 0.2), "+0.00 [-0.20, 0.20]"),
        ((1234.0, np.nan, np.nan, "count"), "1,234"),
        ((0.00004, np.nan, np.nan, "probability"), "<0.001"),
        ((np.nan,), "–"),
        ((0.0137, -0.00029, 0.0307), "+0.0137 [-0.0003, 0.0307]"),
        ((0.0, 0.0, 0.5, "AUC"), "0.00 [0.00, 0.50]"),
    ],
)
def test_an_amount_is_rounded_by_its_interval(values, text):
    assert report.amount(*values) == text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (row(0.15, 0.05, 0.25), "same direction"),
        (row(-0.15, -0.25, -0.05), "other direction"),
        (row(-0.01, -0.05, 0.03), "our direction is not settled"),
        (row(0.15, 0.05, 0.25, paper=(-0.2, -0.5, 0.1)), "the published direction is not settled"),
        (row(0.15, 0.05, 0.25, paper=(0.0, np.nan, np.nan)), "the published direction is not settled"),
        (row(0.4), "–"),
        (row(0.4, 0.3, 0.5, "nats (KL)"), "–"),
        (row(0.4, 0.2, 0.5, "proportion"), "intervals overlap"),
        (row(0.2, 0.1, 0.3, "AUC difference", (-0.3, -0.4, -0.2)), "other direction, intervals apart"),
        (row(0.4, 0.2, 0.6, "AUC", (0.7, 0.6, 0.8)), "our direction is not settled, intervals overlap"),
        (row(0.8, 0.7, 0.9, "AUC", (0.4, np.nan, np.nan)), "other direction, published without an interval"),
        (row(0.15, 0.05, 0.25, n=5), "too few to say (n = 5)"),
        (row(np.nan), "–"),
    ],
)
def test_agreement_speaks_of_a_direction_only_where_it_is_settled(values, words):
    assert report.agreement(values) == words


@pytest.mark.parametrize(
    ("paper", "unit", "text"),
    [
        ((-1.305, -1.802, -0.8), "nats", "-1.305 [-1.802, -0.800]"),
        ((0.095, np.nan, np.nan), "AUC difference", "+0.095"),
        ((2.693, np.nan, np.nan), "nats (absolute)", "2.693"),
        ((9600.0, np.nan, np.nan), "count", "9,600"),
        ((1.0, np.nan, np.nan), "proportion", "1.0"),
        ((np.nan, np.nan, np.nan), "nats", "–"),
    ],
)
def test_a_published_number_keeps_the_digits_it_was_published_with(paper, unit, text):
    assert report.published(row(0.1, unit=unit, paper=paper)) == text


def test_the_last_cell_counts_the_questions_of_every_plan_once():
    pairs = [(pd.DataFrame({"key": ["a", "b", None]}), pa.table({"key": ["a"]})),
             (pd.DataFrame({"key": ["b", "c"]}), pa.table({"key": ["c", "z"]}))]  # fmt: skip
    assert report.colophon([], *pairs).loc["recordings used", "value"].startswith("2 of 3 ")
    assert "recordings used" not in report.colophon([]).index


def test_an_interval_follows_the_method_and_needs_two_trajectories_where_it_counts_them():
    replicates = np.random.default_rng(1).normal(0.2, 0.1, 4000)
    rows = [report.Results(PAPER, "s", "a", m).add("a", 0.2, replicates, cohort="c", n=5) for m in ("percentile", "expanded", "t")]
    widths = [r["high"] - r["low"] for r in rows]
    assert widths[1] > 1.2 * widths[0] and widths[2] > 1.2 * widths[0] and {r["estimate"] for r in rows} == {0.2}
    assert np.isnan(report.Results(PAPER, "s", "a", "t").add("a", 0.2, replicates, cohort="c", n=1)["low"])
    with pytest.raises(ValueError, match="INTERVAL = 'wide'; use one of percentile"):
        report.Results(PAPER, "s", "a", "wide")


def test_a_section_knows_what_it_has_not_reported():
    results = report.Results(PAPER, "s", "a")
    assert results.unreported() == ["a"]
    results.add("a", 0.1, cohort="c")
    assert results.unreported() == [] and results["a"]["paper_high"] == 0.3
    assert report.Results(PAPER, "s", "b").unreported() == [], "an id begins with its section's prefix"


@pytest.mark.parametrize(("n", "method", "warned"), [(1, "percentile", False), (0, "percentile", False), (5, "percentile", True), (5, "t", False), (40, "percentile", False), (None, "percentile", False)])
def test_few_trajectories_are_warned_of_where_the_interval_ignores_them(n, method, warned):
    assert (f"With {n} trajectories" in report._caution(n, method)) is warned


def test_a_figure_is_saved_small_without_a_visible_loss(tmp_path, monkeypatch):
    figures.use_style()
    shown = []
    monkeypatch.setattr(figures, "display", lambda data, raw: shown.append(data))
    figure, axis = plt.subplots()
    for i, colour in enumerate(figures.COLOURS.values()):
        axis.plot([0, 1], [i, i + 1], color=colour, lw=3)
    axis.imshow(np.linspace(0, 1, 64).reshape(8, 8), extent=(0, 1, -4, -1), aspect="auto", cmap="RdBu")
    figure.savefig(tmp_path / "full.png")
    figures.show_figure(figure, tmp_path / "small", "eight lines")

    assert (tmp_path / "small.pdf").stat().st_size > 1000
    (data,) = shown
    assert data["text/plain"] == "eight lines"
    assert base64.b64decode(data["image/png"]) == (tmp_path / "small.png").read_bytes()
    small = Image.open(tmp_path / "small.png")
    assert small.mode == "P" and (tmp_path / "small.png").stat().st_size < 0.6 * (tmp_path / "full.png").stat().st_size
    full = Image.open(tmp_path / "full.png").convert("RGB")
    assert small.size == full.size
    off = np.abs(np.asarray(small.convert("RGB"), int) - np.asarray(full, int)).max(axis=2)
    assert (off > 24).mean() < 0.005  # a few pixels of softened edges, no more


def test_without_an_interval_a_side_is_told_in_its_own_words():
    assert report.side(np.nan, np.nan, without="has none") == "has none" and report.side(0.1, 0.2, without="x") == "above zero"
