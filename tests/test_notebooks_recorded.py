"""Notebooks over a simulated study that is recorded already: as Run All sends them, with other parameters, the tools."""

import re

import pytest

from helpers.channels.channels import direct, generated
from tests.rehearsal.reports import (
    WarmKernel,
    all_at_once,
    all_ran,
    code_cells,
    planted_gains,
    recorded_study,
    shown,
    table,
    temporary_profile,
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A simulated study with all of its recordings, its folder and its profile."""
    folder = tmp_path_factory.mktemp("recorded")
    study = recorded_study(folder, count=6)
    return study, folder, temporary_profile(folder, ACQUIRE="recorded")


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks here that need no fresh one."""
    with WarmKernel() as kernel:
        yield kernel


def usual_table(kernel, folder, profile, name):
    """A notebook's table under the profile's own values; made by the first test that asks for it."""
    if not (folder / "out" / f"{name}.ipynb").exists():
        kernel.run(profile, name)
    return table(folder / "out", name)


@pytest.mark.parametrize("name", ["01_global_replay", "05_bridge", "00_overview"])
def test_a_notebook_survives_all_cells_queued_at_once(recorded, name):
    _, folder, profile = recorded
    all_ran(all_at_once(code_cells(name, PROFILE=profile)))
    assert (folder / "out" / f"{name}.csv").exists()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("01_global_replay", "WEIGHTING=target FIRST=4 DRAWS=200 INTERVAL=t"),
        ("02_retry", "SEED=7 THRESHOLDS=[0.3] INTERVAL=expanded"),
        ("04_matched_cube", "AUTHORITIES=[neutral] WEIGHTING=target"),
        ("05_bridge", "MOST_WAVES=1 WEIGHTING=target INTERVAL=expanded"),
        ("06_source_only", "WEIGHTING=target BUDGET_MONEY=1.0"),
        ("07_step_diagnostics", "MISSING=floor TOP=12 SCALES=[1.0, 4.0] INTERVAL=expanded"),
    ],
)
def test_changed_parameters_change_the_table(recorded, kernel, name, changes):
    _, folder, profile = recorded
    usual = usual_table(kernel, folder, profile, name)["low"]
    kernel.run(profile, name, changes, folder / "changed")
    changed = table(folder / "changed", name)["low"]
    assert len(changed) and not changed.equals(usual)


@pytest.mark.parametrize(("name", "method"), [("03_retrieval_face", "expanded"), ("06_source_only", "t"), ("A1_controls", "expanded")])
def test_intervals_that_allow_for_few_trajectories_are_wider_around_the_same_estimates(recorded, kernel, name, method):
    _, folder, profile = recorded
    usual = usual_table(kernel, folder, profile, name)
    again = kernel.run(profile, name, f"INTERVAL={method}", folder / "wider")
    wider = table(folder / "wider", name)
    assert usual["estimate"].equals(wider["estimate"])
    resampled = usual["low"].notna() & (usual["low"] < usual["high"])
    assert resampled.any() and ((wider["high"] - wider["low"]) > (usual["high"] - usual["low"]))[resampled].all()
    assert "too narrow" in shown(folder / "out" / f"{name}.ipynb") and "too narrow" not in shown(again)


@pytest.mark.parametrize("changes", ["", "SORT=reversal", "SORT=retry TRAJECTORY=traj-synthetic-002 STEP=4"])
def test_a_transition_is_shown_whole(recorded, kernel, changes):
    study, folder, profile = recorded
    text = shown(kernel.run(profile, "inspect_transition", changes, folder / "inspected"))
    assert "&lt;RATIONALE_BUFFER&gt;" in text and "nothing is missing" in text and "<RATIONALE_BUFFER>" not in text
    if "TRAJECTORY" in changes:
        d, g = (planted_gains(study, c("smoke"), (4,))[0][2] for c in (direct, generated))
        found = [float(v) for v in re.findall(r"gains ([+-][\d.]+) nats directly and ([+-][\d.]+)", text)[0]]
        assert found == pytest.approx([d, g], abs=3 * 0.02)
