"""Every notebook on a simulated study over real HTTP: it runs, and it finds what was planted.

The loopback endpoint answers with log-probabilities that were built from planted margins, so the tables must
come back to the planted numbers up to the planted retry noise.
"""

import asyncio
import os
import re
import secrets
from contextlib import suppress

import nbformat
import numpy as np
import pandas as pd
import pytest
from jupyter_client.manager import start_new_async_kernel

from helpers.channels.channels import direct, generated, matched, two_pass
from helpers.reporting.execute import execute
from helpers.reporting.params import ROOT, declared, merged, notebook_source
from helpers.study.traces import RETRIEVE, STEPS, acquired_artifact
from tests.rehearsal import simulate
from tests.rehearsal.endpoint import Endpoint, read_answers

SECTIONS = (
    "01_global_replay", "02_retry", "03_retrieval_face", "04_matched_cube", "05_bridge", "06_source_only",
    "07_step_diagnostics", "A1_controls",
)  # fmt: skip
REASONERS = ("08_evaluating_reasoners", "09_debugging_reasoners")
NOTEBOOKS = (*SECTIONS, *REASONERS, "00_overview")
NOISE = 0.02  # planted retry noise of one log-probability, nats
CLOSE = 0.05  # how far a mean of at least six gains may lie from the planted one, nats
SPREAD = {"seed": 1, "trajectory_sd": 0.4, "transition_sd": 0.6}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A simulated study with its endpoint's answers, and where the report goes."""
    folder = tmp_path_factory.mktemp("smoke")
    study = simulate.write_study(folder / "data", count=6, noise_sd=NOISE)
    return study, folder


def parameters(notebook, folder, **others):
    """The smoke profile's parameters, with data and output under a temporary folder."""
    places = {
        "OUTPUT": folder / "out", "TASKS": folder / "data/tasks.jsonl", "TRAJECTORIES": folder / "data/trajectories.jsonl",
        "VIEWS": folder / "data/views.jsonl", "RECORDINGS": folder / "recordings", "ANSWERS": folder / "answers.jsonl", "LIBRARY": folder / "data/library.jsonl",
    }  # fmt: skip
    known = declared(notebook_source(notebook))
    values = {**merged("smoke", notebook), **{k: str(v) for k, v in places.items()}, **others}
    return {k: v for k, v in values.items() if k in known}


@pytest.fixture(scope="module")
def report(smoke):
    """The whole smoke report, executed once: every notebook asks the endpoint for what it needs."""
    study, folder = smoke
    os.environ["ASV_SMOKE_KEY"] = secrets.token_hex(16)
    with Endpoint(port=8808, answers=read_answers(folder / "data/answers.jsonl")) as endpoint:
        for name in NOTEBOOKS:
            execute(notebook_source(name), folder / f"{name}.ipynb", parameters(name, folder), progress=False)
        again = endpoint.requests
        execute(notebook_source("03_retrieval_face"), folder / "again.ipynb", parameters("03_retrieval_face", folder), progress=False)
        assert endpoint.requests == again, "a second run must not ask anything"
    return study, folder


def planted(study, state, channel):
    """Planted margins of all trajectories at one state under one channel."""
    return np.array([simulate.planted_margin(t, state, channel, **SPREAD) for t in study.trajectories.values()])


def planted_gains(study, channel, steps=(RETRIEVE + 1,)):
    """Planted gains, one row a step and one column a trajectory."""
    return np.array([planted(study, k, channel) - planted(study, k - 1, channel) for k in steps])


def row(folder, section, name):
    return pd.read_csv(folder / "out" / f"{section}.csv").set_index("id").loc[name]


@pytest.mark.parametrize("name", SECTIONS)
def test_a_notebook_reports_every_published_quantity_of_its_section(report, name):
    _, folder = report
    section = "A_controls" if name == "A1_controls" else name
    table = pd.read_csv(folder / "out" / f"{section}.csv")
    paper = pd.read_csv(ROOT / "data/paper_reported.csv")
    wanted = set(paper.loc[paper["section"] == section, "id"])
    assert wanted and wanted <= set(table["id"])
    assert table["id"].is_unique
    assert list(table.columns)[:4] == ["id", "quantity", "cohort", "n_trajectories"]


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
    cells = nbformat.read(folder / "00_overview.ipynb", as_version=4).cells
    shown = "".join(str(o.get("data", {}).get("text/markdown", "")) for c in cells for o in c.get("outputs", []))
    for title in ("Global replay", "Retry", "Retrieval face", "Matched cube", "Bridge", "Source-only", "Controls", "Step diagnostics", "Evaluating reasoners", "Debugging reasoners"):
        assert title in shown


async def _all_at_once(sources, folder):
    """Queue all cells in one kernel before any reply is read, as Run All does; return the replies."""
    manager, client = await start_new_async_kernel(kernel_name="python3", cwd=str(ROOT))
    try:
        asked = [client.execute(source) for source in sources]
        replies = {}
        while len(replies) < len(asked):
            message = await client.get_shell_msg(timeout=120)
            replies[message["parent_header"]["msg_id"]] = message["content"]
        return [replies[i] for i in asked]
    finally:
        client.stop_channels()
        with suppress(RuntimeError):
            await manager.shutdown_kernel(now=True)


def _queued(name, values):
    """Code cells of a notebook with their parameters set, as Run All sends them."""
    cells = [c for c in nbformat.read(notebook_source(name), as_version=4).cells if c.cell_type == "code"]
    sources = []
    for cell in cells:
        sources.append(cell.source)
        if "parameters" in cell.metadata.get("tags", []):
            sources.append("\n".join(f"{k} = {v!r}" for k, v in values.items()))
    return sources


@pytest.mark.parametrize("name", ["01_global_replay", "05_bridge", "00_overview"])
def test_a_notebook_survives_all_cells_queued_at_once(report, name):
    _, folder = report
    sources = _queued(name, parameters(name, folder, ACQUIRE="recorded"))
    replies = asyncio.run(_all_at_once(sources, folder))
    assert [r["status"] for r in replies] == ["ok"] * len(sources), [r.get("evalue") for r in replies if r["status"] != "ok"]


def test_all_cells_may_be_queued_while_an_evaluator_is_asked(smoke, tmp_path):
    """The first await of a live run must not let the cells behind it overtake."""
    _, folder = smoke
    os.environ["ASV_SMOKE_KEY"] = secrets.token_hex(16)
    places = {"RECORDINGS": str(tmp_path / "recordings"), "OUTPUT": str(tmp_path / "out")}
    sources = _queued("03_retrieval_face", parameters("03_retrieval_face", folder, ACQUIRE="missing") | places)
    with Endpoint(port=8808, latency_s=0.01) as endpoint:
        replies = asyncio.run(_all_at_once(sources, folder))
        assert endpoint.requests > 100
    assert [r["status"] for r in replies] == ["ok"] * len(sources), [r.get("evalue") for r in replies if r["status"] != "ok"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("01_global_replay", {"WEIGHTING": "target", "FIRST": 4, "DRAWS": 200, "INTERVAL": "t"}),
        ("02_retry", {"SEED": 7, "THRESHOLDS": [0.3], "INTERVAL": "expanded"}),
        ("04_matched_cube", {"AUTHORITIES": ["neutral"], "WEIGHTING": "target"}),
        ("05_bridge", {"MOST_WAVES": 1, "WEIGHTING": "target", "INTERVAL": "expanded"}),
        ("06_source_only", {"WEIGHTING": "target", "BUDGET_MONEY": 1.0}),
        ("07_step_diagnostics", {"MISSING": "floor", "TOP": 12, "SCALES": [1.0, 4.0], "INTERVAL": "expanded"}),
    ],
)
def test_changed_parameters_change_the_table(report, name, changes):
    _, folder = report
    values = parameters(name, folder, ACQUIRE="recorded", **changes) | {"OUTPUT": str(folder / "changed")}
    execute(notebook_source(name), folder / f"changed_{name}.ipynb", values, progress=False)
    usual, changed = (pd.read_csv(folder / out / f"{name}.csv").set_index("id")["low"] for out in ("out", "changed"))
    assert len(changed) and not changed.equals(usual)


@pytest.mark.parametrize(
    ("name", "section", "method"),
    [("03_retrieval_face", "03_retrieval_face", "expanded"), ("06_source_only", "06_source_only", "t"), ("A1_controls", "A_controls", "expanded")],
)
def test_intervals_that_allow_for_few_trajectories_are_wider_around_the_same_estimates(report, name, section, method):
    _, folder = report
    values = parameters(name, folder, ACQUIRE="recorded", INTERVAL=method) | {"OUTPUT": str(folder / "wider")}
    execute(notebook_source(name), folder / f"wider_{name}.ipynb", values, progress=False)
    usual, wider = (pd.read_csv(folder / out / f"{section}.csv").set_index("id") for out in ("out", "wider"))
    pd.testing.assert_series_equal(usual["estimate"], wider["estimate"])
    resampled = usual["low"].notna() & (usual["low"] < usual["high"])
    assert resampled.any() and ((wider["high"] - wider["low"]) > (usual["high"] - usual["low"]))[resampled].all()
    assert "too narrow" in shown(folder / f"{name}.ipynb") and "too narrow" not in shown(folder / f"wider_{name}.ipynb")


def shown(path):
    """Everything that an executed notebook shows as text."""
    outputs = [o for c in nbformat.read(path, as_version=4).cells for o in c.get("outputs", [])]
    return "\n".join(str(o.get("data", {}).get(kind, "")) for o in outputs for kind in ("text/markdown", "text/html", "text/plain"))


@pytest.mark.parametrize("changes", [{}, {"SORT": "reversal"}, {"SORT": "retry", "TRAJECTORY": "traj-synthetic-002", "STEP": 4}])
def test_a_transition_is_shown_whole(report, changes):
    study, folder = report
    values = parameters("inspect_transition", folder, ACQUIRE="recorded", **changes) | {"OUTPUT": str(folder / "inspected")}
    execute(notebook_source("inspect_transition"), folder / "inspected.ipynb", values, progress=False)
    text = shown(folder / "inspected.ipynb")
    assert "&lt;RATIONALE_BUFFER&gt;" in text and "nothing is missing" in text and "<RATIONALE_BUFFER>" not in text
    if "TRAJECTORY" in changes:
        d, g = (planted_gains(study, c("smoke"), (4,))[0][2] for c in (direct, generated))
        found = [float(v) for v in re.findall(r"gains ([+-][\d.]+) nats directly and ([+-][\d.]+)", text)[0]]
        assert found == pytest.approx([d, g], abs=3 * NOISE)


def test_a_typed_step_is_asked_once_and_its_sign_is_told(smoke, tmp_path):
    _, folder = smoke
    os.environ["ASV_SMOKE_KEY"] = secrets.token_hex(16)
    values = parameters("try_a_step", folder, STACK="smoke") | {"FOLDER": str(tmp_path)}
    with Endpoint(port=8808) as endpoint:
        execute(notebook_source("try_a_step"), tmp_path / "tried.ipynb", values, progress=False)
        asked = endpoint.requests
        assert asked >= 4 + 32, "four views, and four channels in four layouts at both states"
        execute(notebook_source("try_a_step"), tmp_path / "again.ipynb", values, progress=False)
        assert endpoint.requests == asked, "the second run is instant"
    assert shown(tmp_path / "again.ipynb").count("The step's gain is direct ") == 1
    execute(notebook_source("try_a_step"), tmp_path / "target.ipynb", {**values, "TARGET": 1, "ASK": False}, progress=False)
    assert "stays open" not in shown(tmp_path / "target.ipynb"), "another target needs no new answer"
    for other in ({"QUESTION": "Another one?"}, {"STACK": "smoke-2"}):
        execute(notebook_source("try_a_step"), tmp_path / "other.ipynb", {**values, **other, "ASK": False}, progress=False)
        assert "the question stays open" in shown(tmp_path / "other.ipynb")


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
