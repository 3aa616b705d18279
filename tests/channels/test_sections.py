"""Sections: each asks the cells that its design needs, and nothing else."""

import pandas as pd
import pytest

from helpers.channels import sections
from helpers.channels.sections import SECTIONS, Evaluators, section
from helpers.channels.views import GENERATED
from helpers.reporting.params import ROOT, notebooks
from helpers.study.traces import RETRIEVE, STEPS

IDS = ["t1", "t2"]
LAYOUTS, STATES, ENDS = 4, len(STEPS) + 1, 2


def distinct(plan, *columns):
    """Sorted distinct values of columns of a plan."""
    return sorted(set(plan[list(columns)].itertuples(index=False, name=None)))


@pytest.mark.parametrize(
    ("plan", "cells"),
    [
        (sections.global_replay(IDS, "s1"), STATES * 2),
        (sections.retry(IDS, "s1"), STATES * 2 * 2),
        (sections._retrieval_face(IDS, "s1"), ENDS * 3),
        (sections.matched_cube(IDS, "s1"), ENDS * 3 * 2),
        (sections.matched_cube(IDS, "s1", ("neutral",)), ENDS * 3),
        (sections.bridge(IDS, "s1", "s2"), ENDS * 2 * (1 + 4) * 2),
        (sections.source_only(IDS, "s1"), ENDS * 3),
        (sections.controls(IDS, "s1"), ENDS * 4),
        (sections._step_diagnostics(IDS, "s1"), STATES * 2),
        (sections._temperature_check(IDS, "s1"), ENDS * 2),
    ],
    ids=lambda value: "",
)
def test_a_plan_has_every_cell_of_its_design_once(plan, cells):
    assert len(plan) == len(IDS) * LAYOUTS * cells == len(plan.drop_duplicates())
    assert distinct(plan, "trajectory_id") == [("t1",), ("t2",)] and distinct(plan, "layout") == [(0,), (1,), (2,), (3,)]


def test_endpoints_are_the_states_around_the_retrieve_step():
    for plan in (sections.matched_cube(IDS, "s1"), sections.bridge(IDS, "s1", "s2"), sections.source_only(IDS, "s1")):
        assert distinct(plan, "state") == [(RETRIEVE,), (RETRIEVE + 1,)]


def test_the_retry_is_the_global_replay_in_two_new_waves():
    first, again = sections.global_replay(IDS, "s1"), sections.retry(IDS, "s1")
    assert distinct(first, "wave") == [(0,)] and distinct(again, "wave") == [(1,), (2,)]
    assert first.drop(columns="wave").equals(again[again["wave"] == 1].drop(columns="wave").reset_index(drop=True))


def test_the_face_shows_both_frozen_views_at_both_states():
    plan = sections._retrieval_face(IDS, "s1").query("template == 'buffered'")
    ends = (RETRIEVE, RETRIEVE + 1)
    assert distinct(plan, "state", "view_state") == [(x, r) for x in ends for r in ends]


def test_the_bridge_has_four_vertices_with_both_views():
    found = distinct(sections.bridge(IDS, "s1", "s2"), "readout", "stack", "view")
    assert found == sorted((r, s, v) for r in ("joint", "binary") for s in ("s1", "s2") for v in ("quote", "generated-128"))


def test_the_first_version_differs_between_its_channels_in_the_rationale_alone():
    assert distinct(sections._step_diagnostics(IDS, "s1"), "template", "view") == [("two-pass", "empty"), ("two-pass", "rationale-128")]
    channels = sections.component_channels("s1")
    base = channels["full_direct"].fields()
    changed = {name: {k for k, v in c.fields().items() if v != base[k]} for name, c in channels.items()}
    assert {name: fields for name, fields in changed.items() if name.startswith("full_")} == {
        "full_direct": set(), "full_gen128": {"view"}, "full_gen512": {"view"}, "full_extractive": {"view"},
        "full_candidate_only": {"view"},
    }  # fmt: skip
    assert changed["evidence_direct"] == {"slice"}


def test_components_ask_each_state_of_a_chosen_transition_once_in_the_fixed_layout():
    plan = sections.components([("t1", 4), ("t1", 5), ("t2", 9)], "s1")
    assert distinct(plan, "trajectory_id", "state") == [("t1", 3), ("t1", 4), ("t1", 5), ("t2", 8), ("t2", 9)]
    assert distinct(plan, "layout") == [(0,)] and len(plan) == 5 * len(sections.component_channels("s1"))


# -- the registry -------------------------------------------------------------------------------------

ROWS = {row.name: row for row in SECTIONS}
EVERYBODY = Evaluators("s1", "s2", "warm")


def test_a_section_is_named_once_and_belongs_to_a_notebook_that_exists():
    assert len(ROWS) == len(SECTIONS)
    assert {row.notebook for row in SECTIONS} == {n for n in notebooks() if n[0].isdigit() and n[:2] != "00" or n[0] == "A"}
    assert all(row.notebook in ROWS and ROWS[row.notebook].part_of is None for row in SECTIONS)


def test_a_sections_prefix_is_that_of_its_published_quantities_and_of_no_other_notebook():
    paper = pd.read_csv(ROOT / "data/paper_reported.csv")
    published = paper["id"].str.split(".").str[0]
    assert set(published) <= {row.prefix for row in SECTIONS}
    owners = {(row.prefix, row.notebook) for row in SECTIONS}
    assert len({prefix for prefix, _ in owners}) == len(owners)


@pytest.mark.parametrize("name", [row.name for row in SECTIONS if row.plan])
def test_a_row_plans_its_cells_at_its_states_and_reads_the_views_that_it_names(name):
    row = section(name)
    plan = row.plan(IDS, EVERYBODY, row.waves)
    assert len(plan) == len(plan.drop_duplicates()) and distinct(plan, "wave") == [(w,) for w in row.waves]
    assert distinct(plan, "state") == [(s,) for s in row.states]
    assert set(plan["view"]) & {*GENERATED, "donor"} == set(row.views)
    assert {stack for (stack,) in distinct(plan, "stack")} == {getattr(EVERYBODY, who) for who in row.asks}


def test_a_section_is_possible_with_the_evaluators_that_it_asks():
    alone, pair = Evaluators("s1"), Evaluators("s1", "s2")
    assert ROWS["04_matched_cube"].possible(alone) and not ROWS["05_bridge"].possible(alone)
    assert ROWS["05_bridge"].possible(pair) and not ROWS["01_temperature"].possible(pair)


def test_a_misspelt_section_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match="no section '04_cube'; there are 04_matched_cube, 06_source_only"):
        section("04_cube")
