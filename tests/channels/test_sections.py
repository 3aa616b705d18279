"""Sections: each asks the cells that its design needs, and nothing else."""

import pytest

from helpers.channels import sections
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
        (sections.retrieval_face(IDS, "s1"), ENDS * 3),
        (sections.matched_cube(IDS, "s1"), ENDS * 3 * 2),
        (sections.matched_cube(IDS, "s1", ("neutral",)), ENDS * 3),
        (sections.bridge(IDS, "s1", "s2"), ENDS * 2 * (1 + 4) * 2),
        (sections.source_only(IDS, "s1"), ENDS * 3),
        (sections.controls(IDS, "s1"), ENDS * 4),
        (sections.step_diagnostics(IDS, "s1"), STATES * 2),
        (sections.temperature_check(IDS, "s1"), ENDS * 2),
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
    plan = sections.retrieval_face(IDS, "s1").query("template == 'buffered'")
    ends = (RETRIEVE, RETRIEVE + 1)
    assert distinct(plan, "state", "view_state") == [(x, r) for x in ends for r in ends]


def test_the_bridge_has_four_vertices_with_both_views():
    found = distinct(sections.bridge(IDS, "s1", "s2"), "readout", "stack", "view")
    assert found == sorted((r, s, v) for r in ("joint", "binary") for s in ("s1", "s2") for v in ("quote", "generated-128"))


def test_the_first_version_differs_between_its_channels_in_the_rationale_alone():
    assert distinct(sections.step_diagnostics(IDS, "s1"), "template", "view") == [("two-pass", "empty"), ("two-pass", "rationale-128")]
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
