"""Every notebook on a simulated study over real HTTP: it runs, and it finds what was planted.

The loopback endpoint answers with log-probabilities that were built from planted margins, so the tables must
come back to the planted numbers up to the planted retry noise.
"""

import os
import secrets

import nbformat
import numpy as np
import pandas as pd
import pytest

from helpers.channels.channels import direct, generated, matched, two_pass
from helpers.channels.sections import SECTIONS, section
from helpers.reporting.params import ROOT, settings_of
from helpers.study.traces import STEPS, acquired_artifact
from tests.rehearsal import simulate
from tests.rehearsal.endpoint import Endpoint, read_answers
from tests.rehearsal.reports import (
    WarmKernel,
    all_at_once,
    all_ran,
    code_cells,
    planted,
    planted_gains,
    run_notebook,
    shown,
    table,
    temporary_profile,
)

PUBLISHED = sorted({row.notebook for row in SECTIONS if row.plan})
NOISE = 0.02  # planted retry noise of one log-probability, nats
CLOSE = 0.05  # how far a mean of at least six gains may lie from the planted one, nats


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A simulated study with its endpoint's answers, and where its profile is."""
    folder = tmp_path_factory.mktemp("smoke")
    study = simulate.write_study(folder / "data", count=6, noise_sd=NOISE)
    os.environ["ASV_SMOKE_KEY"] = secrets.token_hex(16)
    return study, folder, temporary_profile(folder)


@pytest.fixture(scope="module")
def report(smoke):
    """The whole smoke report, executed once: every notebook asks the endpoint for what it needs."""
    study, folder, profile = smoke
    with WarmKernel() as kernel, Endpoint(port=8808, answers=read_answers(folder / "data/answers.jsonl")) as endpoint:
        for name in sorted(settings_of(profile).NOTEBOOKS, key=lambda name: name == "00_overview"):
            kernel.run(profile, name)
        assert endpoint.requests > 1000
    return study, folder


def row(folder, section, name):
    return table(folder / "out", section).loc[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_notebook_reports_every_published_quantity_of_its_section(report, name):
    _, folder = report
    found = pd.read_csv(folder / "out" / f"{name}.csv")
    paper = pd.read_csv(ROOT / "data/paper_reported.csv")
    wanted = {i for i in paper["id"] if i.split(".")[0] == section(name).prefix}
    assert wanted and wanted <= set(found["id"])
    assert found["id"].is_unique
    assert list(found.columns)[:4] == ["id", "quantity", "cohort", "n_trajectories"]


def test_the_global_replay_finds_the_planted_gains_and_interaction(report):
    study, folder = report
    steps = range(1, len(STEPS) + 1)
    one, two = (planted_gains(study, c("smoke"), steps) for c in (direct, generated))
    for name, values in {"direct": one, "generated": two, "omega": two - one}.items():
        assert row(folder, "01_global_replay", f"global.{name}")["estimate"] == pytest.approx(values.mean(), abs=CLOSE)
    assert row(folder, "01_global_replay", "global.complete")["estimate"] == one.size
    assert row(folder, "01_global_replay", "global.sign_flips")["estimate"] == pytest.approx((one * two < 0).sum(), abs=3)
    for name, values in {"direct": one, "generated": two, "omega": two - one}.items():
        found = row(folder, "01_global_replay", f"global.end_to_end_{name}")
        assert found["estimate"] == pytest.approx(values.sum(axis=0).mean(), abs=CLOSE)
        assert found["estimate"] == pytest.approx(len(STEPS) * row(folder, "01_global_replay", f"global.{name}")["estimate"], abs=1e-4)
    p, q = (one > 0).mean(), (two > 0).mean()
    assert row(folder, "01_global_replay", "global.flip_chance")["estimate"] == pytest.approx(p * (1 - q) + q * (1 - p), abs=0.04)


def test_the_retry_finds_little_disagreement_within_a_channel_and_the_planted_one_across(report):
    study, folder = report
    steps = range(1, len(STEPS) + 1)
    one, two = (planted_gains(study, c("smoke"), steps) for c in (direct, generated))
    assert row(folder, "02_retry", "retry.cross")["estimate"] == pytest.approx((one * two < 0).mean(), abs=0.04)
    assert row(folder, "02_retry", "retry.same")["estimate"] < 0.04
    cross, chance, apart = (row(folder, "02_retry", f"retry.{n}") for n in ("cross", "chance", "cross_minus_chance"))
    assert apart["estimate"] == pytest.approx(cross["estimate"] - chance["estimate"], abs=1e-5) and apart["low"] < apart["high"]
    noise = row(folder, "02_retry", "retry.noise_direct")["estimate"]
    assert 0.2 * NOISE < noise < 2 * NOISE


def test_the_face_splits_a_gain_that_half_belongs_to_the_view(report):
    study, folder = report
    whole = planted_gains(study, generated("smoke")).mean()
    for name in ("C_x", "C_r"):
        assert row(folder, "03_retrieval_face", f"face.{name}")["estimate"] == pytest.approx(whole / 2, abs=CLOSE)


def test_the_cube_finds_the_planted_view_and_authority_effects(report):
    study, folder = report
    quote, view = (planted_gains(study, matched(v, "smoke")) for v in ("quote", "generated-128"))
    primary = planted_gains(study, matched("generated-128", "smoke", authority="evidence-primary"))
    found = {n: row(folder, "04_matched_cube", f"cube.{n}")["estimate"] for n in ("gen_minus_quote", "generated_authority")}
    assert found["gen_minus_quote"] == pytest.approx((view - quote).mean(), abs=CLOSE)
    assert found["generated_authority"] == pytest.approx((primary - view).mean(), abs=CLOSE)
    assert found["generated_authority"] == pytest.approx(simulate.PRIMARY, abs=CLOSE)


@pytest.mark.parametrize(
    ("vertex", "readout", "stack"),
    [("A", "joint", "smoke"), ("B", "binary", "smoke"), ("C", "binary", "smoke-2"), ("D", "joint", "smoke-2")],
)
def test_the_bridge_finds_the_planted_interaction_at_each_vertex(report, vertex, readout, stack):
    study, folder = report
    quote, view = (planted_gains(study, matched(v, stack, readout=readout)) for v in ("quote", "generated-128"))
    found = row(folder, "05_bridge", f"bridge.D_{vertex}")["estimate"]
    assert found == pytest.approx((view - quote).mean(), abs=2 * CLOSE)


def test_the_source_only_section_separates_the_planted_cohorts(report):
    study, folder = report
    artifact = np.array([acquired_artifact(t) for t in study.trajectories.values()])
    plain, strict = (planted_gains(study, matched(v, "smoke"))[0] for v in ("ungrounded-512", "source-only-512"))
    shift = strict - plain
    found = {n: row(folder, "06_source_only", f"source.{n}")["estimate"] for n in ("shift_artifact", "contrast", "claims_source_only")}
    assert found["shift_artifact"] == pytest.approx(shift[artifact].mean(), abs=CLOSE)
    assert found["contrast"] == pytest.approx(shift[artifact].mean() - shift[~artifact].mean(), abs=2 * CLOSE)
    assert found["claims_source_only"] == 0
    assert row(folder, "06_source_only", "source.claims_ungrounded")["estimate"] == len(artifact)


def test_the_step_diagnostics_find_the_planted_gains_of_each_component(report):
    study, folder = report
    steps = range(1, len(STEPS) + 1)
    plain = planted_gains(study, two_pass("empty", "smoke"), steps)
    found = {n: row(folder, "07_step_diagnostics", f"v1.{n}")["estimate"] for n in ("margin", "margin_b4", "direct", "channel_effect")}
    gains = planted_gains(study, two_pass("rationale-128", "smoke"), steps)
    for name, values in {"margin": gains, "margin_b4": gains, "direct": plain, "channel_effect": gains - plain}.items():
        assert found[name] == pytest.approx(values.mean(), abs=CLOSE)
    assert row(folder, "07_step_diagnostics", "v1.margin")["n_transitions"] == gains.size
    longer = planted_gains(study, two_pass("rationale-512", "smoke"), steps)
    audit = row(folder, "07_step_diagnostics", "v1.attribution_full_gen512_gap")
    assert audit["estimate"] == pytest.approx((longer - plain).mean(), abs=CLOSE) and audit["n_transitions"] == gains.size
    assert row(folder, "07_step_diagnostics", "v1.attribution_full_direct_gap")["estimate"] == 0


def test_the_reasoners_are_judged_and_their_log_is_held_against_the_truth(report):
    study, folder = report
    arms, truth = row(folder, "08_evaluating_reasoners", "arms.success_both"), row(folder, "09_debugging_reasoners", "ope.truth")
    assert arms["n_trajectories"] == 6 and 0 <= arms["estimate"] <= 1
    estimate = row(folder, "09_debugging_reasoners", "ope.importance")
    assert estimate["low"] <= truth["estimate"] <= estimate["high"] and truth["estimate"] > 0.5
    missing = sum(not acquired_artifact(t) for t in study.trajectories.values())
    assert row(folder, "09_debugging_reasoners", "failures.missing_retrieval")["estimate"] == missing
    right = row(folder, "08_evaluating_reasoners", "belief.log_loss")["estimate"]
    margins = np.array([planted(study, k, direct("smoke")) for k in range(len(STEPS) + 1)])
    assert right == pytest.approx(np.logaddexp(0, -margins).mean(), abs=0.1)


def test_the_overview_quotes_every_section(report):
    _, folder = report
    text = shown(folder / "out" / "00_overview.ipynb")
    assert [row.title for row in SECTIONS if not row.part_of and f"{row.title}:**" not in text] == []


def test_a_second_run_asks_nothing_and_writes_the_same_table(report):
    """The profile asks for what is missing; nothing is, so it needs neither the endpoint, which is gone, nor a key."""
    study, folder = report
    before = (folder / "out" / "03_retrieval_face.csv").read_bytes()
    key = os.environ.pop("ASV_SMOKE_KEY")
    run_notebook(str(folder / "profile"), "03_retrieval_face")
    os.environ["ASV_SMOKE_KEY"] = key
    assert (folder / "out" / "03_retrieval_face.csv").read_bytes() == before


def test_all_cells_may_be_queued_while_an_evaluator_is_asked(smoke, tmp_path):
    """The first await of a live run must not let the cells behind it overtake."""
    _, folder, _ = smoke
    places = {name: str(folder / "data" / f"{name.lower()}.jsonl") for name in ("TASKS", "TRAJECTORIES", "VIEWS")}
    profile = temporary_profile(tmp_path, **places)
    with Endpoint(port=8808, latency_s=0.01) as endpoint:
        all_ran(all_at_once(code_cells("03_retrieval_face", PROFILE=profile)))
        assert endpoint.requests > 100
    assert len(table(tmp_path / "out", "03_retrieval_face"))


def test_a_typed_step_is_asked_once_and_its_sign_is_told(smoke, tmp_path):
    _, _, profile = smoke

    def tried(setting=""):
        return shown(kernel.run(profile, "try_a_step", f"FOLDER={tmp_path} {setting}", tmp_path / "out"))

    with WarmKernel() as kernel:
        with Endpoint(port=8808) as endpoint:
            tried()
            asked = endpoint.requests
            assert asked >= 4 + 32, "four views, and four channels in four layouts at both states"
            assert tried().count("The step's gain is direct ") == 1
            assert endpoint.requests == asked, "the second run is instant"
        assert "stays open" not in tried("TARGET=1 ASK=false"), "another target needs no new answer"
        for other in ("QUESTION='Another one?'", "STACK=smoke-2"):
            assert "the question stays open" in tried(f"{other} ASK=false")


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").rglob("*.ipynb")), ids=lambda p: p.stem)
def test_a_source_notebook_has_the_declared_form(path):
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[0].source.startswith("# ") and "**Question.**" in notebook.cells[0].source
    assert "**Reads**" in notebook.cells[0].source and "**Writes**" in notebook.cells[0].source
    assert "parameters" in notebook.cells[1].metadata.get("tags", [])
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None, "sources carry no outputs"
    code = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    for forbidden in ("nest_asyncio", "filterwarnings", "!make", "!pip", "%autoreload", "asyncio.run(", "units="):
        assert forbidden not in code
