"""The published numbers: unique ids, and the identities that tie them together within rounding."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = ROOT / "../shared/seeds"
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
PRINTED = json.loads(Path(__file__).with_name("printed_numbers.json").read_text(encoding="utf-8"))
PAPER = pd.read_csv(ROOT / "data/paper_reported.csv").set_index("id")
ESTIMATE = PAPER["estimate"]
UNITS = {"nats", "count", "proportion", "AUC", "correlation", "candidates", "probability"}


def rounded(parts):
    """Largest difference that rounding to three decimals can make: half a unit for each number and the result."""
    return 0.0005 * (parts + 1) + 1e-9


def test_every_id_is_there_once():
    assert PAPER.index.is_unique
    assert not PAPER.index.hasnans and PAPER.index.str.fullmatch(r"[a-z0-9]+\.[A-Za-z0-9_.]+").all()


def test_every_row_says_what_it_is_where_it_comes_from_and_in_which_unit():
    filled = PAPER[["section", "quantity", "cohort", "estimate", "unit", "source"]]
    assert filled.notna().all(axis=None)
    assert set(PAPER["unit"]) <= UNITS
    assert PAPER["section"].str.fullmatch(r"\d\d_[a-z_]+|A_controls").all()


def test_intervals_come_in_pairs_and_hold_their_estimate():
    both = PAPER["low"].notna() & PAPER["high"].notna()
    assert (PAPER["low"].notna() == PAPER["high"].notna()).all()
    held = PAPER[both]
    assert len(held) > 50
    assert ((held["low"] <= held["estimate"]) & (held["estimate"] <= held["high"])).all()


def test_counts_are_whole_and_shares_lie_between_nought_and_one():
    counts = ESTIMATE[PAPER["unit"] == "count"]
    assert (counts == counts.round()).all() and (counts >= 0).all()
    shares = ESTIMATE[PAPER["unit"].isin(["proportion", "AUC", "probability", "correlation"])]
    assert shares.between(0, 1).all()


# Each quantity on the left is the first on the right minus the second.
DIFFERENCES = [
    ("global.omega", "global.generated", "global.direct"),
    ("retry.omega_w1", "retry.generated_w1", "retry.direct_w1"),
    ("retry.omega_w2", "retry.generated_w2", "retry.direct_w2"),
    ("retry.excess", "retry.cross", "retry.same"),
    ("cube.empty_authority", "cube.empty_primary", "cube.empty_neutral"),
    ("cube.quote_authority", "cube.quote_primary", "cube.quote_neutral"),
    ("cube.generated_authority", "cube.generated_primary", "cube.generated_neutral"),
    ("cube.gen_minus_quote", "cube.generated_neutral", "cube.quote_neutral"),
    ("cube.quote_minus_empty", "cube.quote_neutral", "cube.empty_neutral"),
    ("cube.authority_interaction", "cube.generated_authority", "cube.quote_authority"),
    ("cube.authority_interaction_90", "cube.generated_authority", "cube.quote_authority"),
    *((f"bridge.auc_diff_{v}", f"bridge.auc_quote_{v}", f"bridge.auc_generated_{v}") for v in "ABC"),
    ("source.shift_artifact", "source.source_only", "source.ungrounded"),
    ("source.contrast", "source.shift_artifact", "source.shift_no_artifact"),
    ("v1.channel_effect", "v1.margin", "v1.direct"),
    *(
        (f"v1.attribution_{name}_gap", f"v1.attribution_{name}_mean_gain", "v1.attribution_full_direct_mean_gain")
        for name in (
            "full_gen128",
            "full_gen512",
            "full_extractive",
            "full_candidate_only",
            "evidence_direct",
            "evidence_gen128",
        )
    ),
]


@pytest.mark.parametrize(("difference", "first", "second"), DIFFERENCES, ids=[d[0] for d in DIFFERENCES])
def test_a_published_difference_is_the_difference_of_the_published_numbers(difference, first, second):
    assert ESTIMATE[difference] == pytest.approx(ESTIMATE[first] - ESTIMATE[second], abs=rounded(2))


SUMS = [
    ("global.sign_flips", ["global.flips_pos_neg", "global.flips_neg_pos"]),
    ("retry.stable", ["retry.stable_pos_neg", "retry.stable_neg_pos"]),
    ("global.n_transitions", ["v1.positive", "v1.zero", "v1.negative"]),
]


@pytest.mark.parametrize(("total", "parts"), SUMS, ids=[s[0] for s in SUMS])
def test_published_counts_add_up(total, parts):
    assert ESTIMATE[total] == sum(ESTIMATE[part] for part in parts)


def test_the_authority_interaction_is_the_change_of_the_view_contrast():
    primary = ESTIMATE["cube.generated_primary"] - ESTIMATE["cube.quote_primary"]
    neutral = ESTIMATE["cube.generated_neutral"] - ESTIMATE["cube.quote_neutral"]
    assert ESTIMATE["cube.authority_interaction"] == pytest.approx(primary - neutral, abs=rounded(4))


def test_the_shift_over_all_retrievals_is_the_weighted_mean_of_its_two_cohorts():
    artifact, none = PAPER.loc["source.shift_artifact"], PAPER.loc["source.shift_no_artifact"]
    assert artifact["n"] + none["n"] == PAPER.loc["source.contrast", "n"] == 100
    overall = (artifact["n"] * artifact["estimate"] + none["n"] * none["estimate"]) / 100
    assert ESTIMATE["source.after_shift"] - ESTIMATE["source.before_shift"] == pytest.approx(overall, abs=rounded(3))


def test_the_planned_rows_follow_from_the_design():
    trajectories, states, channels, layouts, waves = 100, 12, 2, 4, 2
    assert ESTIMATE["global.n_transitions"] == trajectories * (states - 1)
    assert ESTIMATE["global.rows_planned"] == trajectories * states * channels * layouts
    assert ESTIMATE["retry.requests"] == waves * ESTIMATE["global.rows_planned"]


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("global.rows_retained", "global.rows_planned"),
        ("global.complete", "global.n_transitions"),
        ("global.omega_negative", "global.complete"),
        ("global.sign_flips", "global.complete"),
        ("retry.n", "global.n_transitions"),
        ("retry.stable", "retry.n"),
        ("face.n_direct", "face.n"),
        ("retry.thresholded_0.1_w1", "retry.thresholded_0.05_w1"),
        ("retry.thresholded_0.2_w1", "retry.thresholded_0.1_w1"),
        ("retry.thresholded_0.1_w2", "retry.thresholded_0.05_w2"),
        ("retry.thresholded_0.2_w2", "retry.thresholded_0.1_w2"),
    ],
)
def test_a_part_is_smaller_than_its_whole(part, whole):
    assert ESTIMATE[part] < ESTIMATE[whole]


def test_cohort_sizes_are_those_that_the_counts_report():
    rows = PAPER[PAPER["cohort"] == "complete transitions"]
    assert (rows["n"] == ESTIMATE["global.complete"]).all()
    assert (PAPER.loc[PAPER["cohort"] == "retry cohort", "n"] == ESTIMATE["retry.n"]).all()
    assert (
        PAPER.loc["face.C_x", "n"] == ESTIMATE["face.n"] and PAPER.loc["face.omega", "n"] == ESTIMATE["face.n_direct"]
    )


@pytest.mark.parametrize(
    ("low", "middle", "high"),
    [
        ("global.omega_layout_min", "global.omega", "global.omega_layout_max"),
        ("global.omega_loo_min", "global.omega", "global.omega_loo_max"),
        ("v1.loo_min", "v1.margin", "v1.loo_max"),
        *((f"bridge.wave_min_{v}", f"bridge.D_{v}", f"bridge.wave_max_{v}") for v in "ABC"),
        *((f"bridge.layout_min_{v}", f"bridge.D_{v}", f"bridge.layout_max_{v}") for v in "ABC"),
    ],
)
def test_a_mean_lies_within_the_range_of_its_parts(low, middle, high):
    assert ESTIMATE[low] < ESTIMATE[middle] < ESTIMATE[high]


@pytest.mark.parametrize(
    "name", ["global.omega_layout_{}", *(f"bridge.{k}_{{}}_{v}" for k in ("wave", "layout") for v in "ABC")]
)
def test_the_largest_upper_end_lies_above_the_largest_estimate_and_below_nought(name):
    assert ESTIMATE[name.format("max")] < ESTIMATE[name.format("upper")] < 0


def test_the_papers_main_reversals_are_strict():
    for negative, positive in [
        ("global.generated", "global.direct"), ("retry.generated_w1", "retry.direct_w1"),
        ("cube.generated_neutral", "cube.quote_neutral"), ("source.ungrounded", "source.source_only"),
    ]:  # fmt: skip
        assert PAPER.loc[negative, "high"] < 0 < PAPER.loc[positive, "low"]


def test_the_authority_interval_at_ninety_percent_lies_inside_the_wider_one_and_not_in_the_equivalence_band():
    wide, narrow = PAPER.loc["cube.authority_interaction"], PAPER.loc["cube.authority_interaction_90"]
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]
    assert narrow["high"] > 0.25


def forms(value):
    """Ways in which a number may be printed, without its sign."""
    size = abs(float(value))
    plain = {f"{size:g}", f"{size:.1f}", f"{size:.2f}", f"{size:.3f}", f"{size:.4f}", f"{size:.5f}"}
    kept = {text for text in plain if float(text) == pytest.approx(size, abs=1e-9)}
    percent = {f"{100 * size:.{d}f}" for d in (0, 1, 2) if round(100 * size, d) == pytest.approx(100 * size, abs=1e-9)}
    return kept | percent | ({f"{size:,.0f}"} if size == round(size) else set())


@pytest.mark.parametrize("name", PAPER.index)
def test_every_number_is_printed_in_the_text_that_it_is_taken_from(name):
    row = PAPER.loc[name]
    source = row["source"].split()[0]
    printed = set(PRINTED[source])
    if isinstance(row["note"], str):
        assert row["note"], "a number that is not printed says how it was worked out"
        return
    for value in row[["estimate", "low", "high"]].dropna():
        assert forms(value) & printed, f"{value} is not in {source}"


@pytest.mark.skipif(not SEEDS.exists(), reason="the papers' texts are not beside the project")
def test_the_listed_numbers_are_those_that_the_texts_print():
    for source in PRINTED.keys() - {"note"}:
        assert set(PRINTED[source]) == set(NUMBER.findall((SEEDS / source).read_text(encoding="utf-8"))), source


def test_the_table_holds_the_papers_main_number_as_printed():
    assert PAPER.loc["global.omega", ["estimate", "low", "high"]].tolist() == [-0.323, -0.418, -0.232]
