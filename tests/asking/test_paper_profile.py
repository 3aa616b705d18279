"""The `paper` profile end to end over real HTTP: DeepSeek's and GPT-4o's shape of answer, faults switched on."""

import asyncio
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers.asking.acquire import obtain
from helpers.asking.client import api_key
from helpers.asking.forecast import forecasts
from helpers.asking.probe import CALLS, saved_probe
from helpers.asking.record import Setting
from helpers.asking.recordings import READ, Recordings
from helpers.asking.why import stats
from helpers.channels.plan import add_keys
from helpers.channels.sections import Evaluators, section
from helpers.channels.stacks import load_stacks
from helpers.measuring.cells import lookup, read_cells
from helpers.measuring.reducers import endpoint_margins, transition_gains
from helpers.reporting.params import settings_of
from tests.conftest import tiny_study
from tests.rehearsal.endpoint import LASTING, PASSING, Endpoint

SHAPES = {"deepseek": "deepseek", "gpt-4o": "openai"}
KEYS = {"deepseek": "sk-planted-deepseek-91", "gpt-4o": "sk-planted-openai-47"}
PASS = ("rate-limit", "server-error", "unavailable", "reset", "truncated-json", "html")
SEED = 6  # of the faults: the probes pass, every kind of fault comes
CHOSEN = ("01_global_replay", "04_matched_cube", "05_bridge")
STAY = ("sentinel-9999", "no-usage", "missing-id", "lower-case", "logprobs-null", "bad-request")


def paper_evaluators():
    """The two evaluators that the profile names."""
    profile = settings_of("paper")
    assert (profile.STACK, profile.SECOND_STACK) == ("deepseek", "gpt-4o")
    return Evaluators(profile.STACK, profile.SECOND_STACK)


def paper_sections(ids):
    """The sections of the report that the test asks, as the profile's stacks ask them."""
    return {name: section(name).plan(ids, paper_evaluators(), (0,)) for name in CHOSEN}


@pytest.fixture
def servers(monkeypatch):
    """A function that starts one endpoint for each of the paper's stacks; returns (stacks, endpoints)."""
    running = []

    def start(*faults, share=0.0, first=1):
        declared, stacks, found = load_stacks(), {}, {}
        for name, shape in SHAPES.items():
            monkeypatch.setenv(declared[name].key_variable, KEYS[name])
            server = Endpoint(faults=faults, share=share, first=first, shape=shape, scaled=True, seed=SEED, key=KEYS[name])
            running.append(server.__enter__())
            stacks[name], found[name] = replace(declared[name], base_url=server.url, timeout_s=3.0), server
        return stacks, found

    yield start
    for each in running:
        each.__exit__()


def ask_all(stacks, study, folder):
    """Every section asked, missing cells only: ``{section: (keyed plan, table)}``."""

    async def scene():
        return {
            name: await obtain(plan, study, stacks, folder, acquire="missing", section=name,
                               columns=(*READ, "fingerprint"), progress=False)  # fmt: skip
            for name, plan in paper_sections(list(study.trajectories)).items()
        }

    return asyncio.run(scene())


def distinct(study, stacks):
    """Keys of all questions of the test's sections, by stack."""
    plans = pd.concat([add_keys(p, study, stacks) for p in paper_sections(list(study.trajectories)).values()])
    return {name: set(part["key"]) for name, part in plans.groupby("stack")}


def gains_of(found, study):
    """Gains of each section, one column a channel and stack."""
    by = ["template", "view", "authority", "readout", "stack"]
    gains = {n: transition_gains(endpoint_margins(read_cells(*pair), study), by=by) for n, pair in found.items()}
    asked = {n: plan[by].drop_duplicates() for n, (plan, _) in found.items()}
    return {n: g[list(asked[n].itertuples(index=False, name=None))] for n, g in gains.items()}


def test_every_section_is_probed_planned_asked_read_and_reduced_in_spite_of_passing_faults(servers, tmp_path):
    assert set(PASS) <= set(PASSING)
    study = tiny_study()
    stacks, endpoints = servers(*PASS, share=0.15)
    setting = Setting(study, stacks, paper_evaluators(), tmp_path, tmp_path / "views.jsonl")
    chosen = [replace(row, views=()) for row in setting.chosen(CHOSEN)]
    before = forecasts(chosen, setting)
    keys = distinct(study, stacks)
    assert {r["stack"] for r in before} == set(SHAPES) and all(r["recorded"] == 0 and r["list"] >= 0 for r in before)
    assert sum(server.requests for server in endpoints.values()) == 0, "a plan asks nothing"
    found = ask_all(stacks, study, tmp_path)
    for name, server in endpoints.items():
        store = Recordings(tmp_path, name)
        assert store.keys() == keys[name] and store.failures() == {} and server.requests > len(keys[name]) + CALLS
        probe = saved_probe(tmp_path, stacks[name])
        assert probe["returned_model"] == stacks[name].model and probe["scaled_by_temperature"] is True
        table = store.table()
        assert set(table["returned_model"].to_pylist()) == {stacks[name].model}
        assert min(table["prompt_tokens"].to_pylist()) > max(0, *table["cached_tokens"].to_pylist()) // 2
        assert table["cached_tokens"].null_count == 0
    for name, gains in gains_of(found, study).items():
        assert gains.notna().all().all() and gains.to_numpy().std() > 0.1, name
    after = forecasts(chosen, setting)
    assert all(r["to ask"] == 0 and r["recorded"] >= r["planned"] for r in after)
    assert stats(tmp_path, stacks)["cost"].sum() > 0


def test_both_shapes_of_answer_are_read_alike(servers, tmp_path):
    study = tiny_study()
    stacks, _ = servers()
    plan, table = ask_all(stacks, study, tmp_path)["05_bridge"]
    cells = read_cells(plan, table)
    values, reason, mass = cells.values, cells.reason, cells.mass
    binary, second = (plan["readout"] == "binary").to_numpy(), (plan["stack"] == "gpt-4o").to_numpy()
    for rows in (binary & second, binary & ~second, ~binary & second, ~binary & ~second):
        assert rows.any() and np.isfinite(values[rows][:, :2]).all() and (mass[rows] > 0.5).all()
    assert set(reason) == {None} and set(table["fingerprint"].to_pylist()) == {"fp_loopback", "fp_loopback_prod"}


def test_faults_that_stay_leave_cells_missing_with_a_reason_and_the_rest_whole(servers, tmp_path):
    assert set(STAY) <= set(LASTING)
    study = tiny_study()
    stacks, endpoints = servers(*STAY, share=0.12)
    found = ask_all(stacks, study, tmp_path)
    reasons = set()
    for plan, table in found.values():
        cells = read_cells(plan, table)
        values, reason = cells.values, cells.reason
        binary = (plan["readout"] == "binary").to_numpy()
        whole = np.where(binary, np.isfinite(values[:, :2]).all(axis=1), np.isfinite(values).all(axis=1))
        np.testing.assert_array_equal(whole, reason == None)  # noqa: E711 - an array of objects
        reasons |= set(reason)
        assert 0.8 < whole.mean() < 1
    assert {"sentinel instead of a log-probability", "label not returned", "answer without log-probabilities",
            "not recorded"} <= reasons  # fmt: skip
    assert all("HTTP 400" in why for name in SHAPES for why in Recordings(tmp_path, name).failures().values())
    assert any(Recordings(tmp_path, name).failures() for name in SHAPES)
    gains = gains_of(found, study)
    assert all(g.notna().any().any() and g.isna().any().any() for g in gains.values()), "missing spreads, nothing is imputed"
    for server in endpoints.values():  # the endpoints are mended: only what is missing is asked
        server.faults = ()
    asked = sum(server.requests for server in endpoints.values())
    unread = sum(len(keys - Recordings(tmp_path, name).keys()) for name, keys in distinct(study, stacks).items())
    plan, table = ask_all(stacks, study, tmp_path)["05_bridge"]
    assert sum(server.requests for server in endpoints.values()) - asked == unread > 0
    assert (lookup(plan, table) >= 0).all()


def test_no_key_of_the_paper_profile_reaches_a_file(servers, tmp_path):
    stacks, _ = servers("key-echo", "bad-request", share=0.1)
    ask_all(stacks, tiny_study(), tmp_path)
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    for name, key in KEYS.items():
        assert api_key(stacks[name]) == key and key.encode() not in written
