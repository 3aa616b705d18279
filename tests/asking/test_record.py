"""`make plan`: what is still to ask, how tokens are counted, what it costs, and what the probe said."""

import re
from dataclasses import replace

import pyarrow as pa
import pytest

from helpers.asking import record
from helpers.asking.forecast import (
    Counting,
    expected_seconds,
    forecasts,
    fresh_share,
    measured_counting,
    measured_speed,
    prices,
    prompt_text,
)
from helpers.asking.probe import CALLS
from helpers.asking.record import Section, Setting
from helpers.channels.channels import direct
from helpers.channels.sections import global_replay, retrieval_face, retry
from helpers.channels.stacks import Stacks
from helpers.channels.views import ENDPOINTS, GENERATED, view_messages
from tests.conftest import KEY_VARIABLE, joint_and_binary, loopback_stack, obtained, tiny_plan

SECTION = Section("01_global_replay", lambda ids: global_replay(ids, "loopback"))


@pytest.fixture
def setting(tmp_path):
    """A profile whose recordings lie in a scratch folder and whose evaluator answers nowhere."""
    return Setting({"RECORDINGS": str(tmp_path), "STACK": "loopback"}, {"loopback": loopback_stack("http://127.0.0.1:9/v1")})


def test_shared_prefixes_count_once():
    assert fresh_share(["ab", "abcd", "abx"]) == pytest.approx(5 / 9)
    assert fresh_share(["abcd", "xy", "xyz"]) == pytest.approx((4 + 2 + 1) / 9)
    assert fresh_share([]) == 1.0


def test_waves_that_are_interleaved_cost_each_its_own_prompts(study, setting):
    near = replace(setting.stacks["loopback"], kind="embedded", order="prefix")
    apart = Setting(setting.common, {"loopback": near})
    waves = Section("02_retry", lambda ids: retry(ids, "loopback"), order="prefix-groups")
    (mixed,), (sorted_,) = forecasts([waves], study, apart), forecasts([replace(waves, order=None)], study, apart)
    assert mixed["prompt tokens"] == sorted_["prompt tokens"]
    assert mixed["of them new to the cache"] > 1.9 * sorted_["of them new to the cache"]


def test_planned_is_recorded_and_to_ask_also_where_views_are_missing_or_alike(study, setting):
    first = {name: text for name, text in study.views.items() if "/0/" in name}
    (row,) = forecasts([SECTION], replace(study, views=first), setting)
    assert (row["planned"], row["recorded"], row["to ask"]) == (192, 0, 192)
    face = replace(SECTION, plan=lambda ids: retrieval_face(ids, "loopback"))
    assert [row["planned"] for row in forecasts([face], study, setting)] == [48]
    before, after = (f"{next(iter(study.trajectories))}/{state}/generated-128" for state in ENDPOINTS)
    alike = replace(study, views=study.views | {after: study.views[before]})  # two of its four cells are the other two
    (row,) = forecasts([face], alike, setting)
    assert row["planned"] == row["to ask"] == 48 - 2 * 4


def test_prices_at_list_with_cached_input_and_by_batch():
    stack = loopback_stack("http://127.0.0.1:9/v1")
    found = prices(3e6, 1e6, 200_000, stack)  # 2.0 input, 0.5 cached, 8.0 output, 1.0 batch a million
    assert found == {"list": 6 + 1.6, "cached input": 2 + 1 + 1.6, "batch": 3 + 1.6, "currency": "USD"}


def test_without_recordings_tokens_are_estimated_and_the_plan_says_so(study, setting, capsys):
    (row,) = rows = forecasts([SECTION], study, setting)
    prompts = [prompt_text(r, study) for r in SECTION.plan(list(study.trajectories)).itertuples(index=False)]
    assert (row["planned"], row["recorded"], row["to ask"], row["counted"]) == (192, 0, 192, "estimated")
    assert row["prompt tokens"] == round(sum(map(len, prompts)) / 4)
    record.print_plan(rows, setting)
    said = capsys.readouterr().out
    assert f"not probed yet, which takes {CALLS} calls" in said and "in all: 192 calls" in said
    assert re.search(r"USD at list price \(.* with cached input, .* by batch\)", said)


def test_recorded_cells_say_how_many_characters_a_token_has(study, endpoint, setting, capsys):
    server = endpoint()
    setting.stacks["loopback"] = stack = loopback_stack(server.url)
    part = tiny_plan(study, states=(3,), channels=joint_and_binary())
    obtained(part, study, stack, setting.common["RECORDINGS"], acquire="missing")
    sections = [SECTION, Section("04_matched_cube", lambda ids: tiny_plan(study, channels=joint_and_binary()))]
    rows = forecasts(sections, study, setting)
    table = setting.store("loopback").table()
    characters = sum(len(prompt_text(r, study)) for r in part.itertuples(index=False))
    rate = characters / sum(table["prompt_tokens"].to_pylist())
    assert rate != 4.0 and [r["counted"] for r in rows] == [f"measured, {rate:.2f} characters a token"] * 2
    assert [r["recorded"] for r in rows] == [0, 40] and rows[1]["to ask"] == 40
    record.print_plan(rows, setting)
    said = capsys.readouterr().out
    assert "probed: 20 alternatives, every label one token" in said and "answered by tiny-1" in said


def test_cells_without_a_view_are_said_to_be_taken_at_the_mean(study, setting):
    some = replace(study, views=dict(list(study.views.items())[:3]))
    (row,) = forecasts([SECTION], some, setting)
    assert row["counted"] == f"estimated, {96 - 3 * 4} without their view at the mean" and row["to ask"] == 192


def test_views_that_are_missing_have_a_row_of_their_own_and_count_once(study, setting):
    short = replace(SECTION, kinds=("generated-128",), states=(3, 4))
    every = replace(short, name="later", states=range(12))
    names = [f"{t}/{k}/generated-128" for t in study.trajectories for k in range(12)]
    some = replace(study, views={name: "x" * 40 for name in names[:2]})  # states 0 and 1 of the first trajectory
    rows = {r["section"]: r for r in forecasts([short, every], some, setting)}
    first, later = rows["views of 01_global_replay"], rows["views of later"]
    assert (first["planned"], first["recorded"], first["to ask"]) == (4, 0, 4)
    assert (later["planned"], later["recorded"], later["to ask"]) == (24, 2, 24 - 2 - 4)
    assert "and 180 of answers" in later["counted"]  # 18 texts of the ten tokens that the frozen ones have
    prompts = [view_messages(some.task(t), some.states[t][k], GENERATED["generated-128"])[0]["content"]
               for t in some.trajectories for k in (3, 4)]  # fmt: skip
    assert first["prompt tokens"] == round(sum(map(len, prompts)) / 4)
    assert "views of 01_global_replay" not in {r["section"] for r in forecasts([short], study, setting)}


def test_measured_cells_are_spread_over_the_plan(study):
    plan = tiny_plan(study).assign(key=[f"k{i:02d}" for i in range(16)])
    lengths = [len(prompt_text(r, study)) for r in plan.itertuples(index=False)]
    table = pa.table({"key": plan["key"], "prompt_tokens": pa.array([100] * 15 + [None], pa.int32())})
    found = measured_counting(plan, study, table, most=4)
    assert found.cells == 4 and found.characters == pytest.approx(sum(lengths[:15:4]) / 400)
    assert measured_counting(plan.assign(key="other"), study, table) == Counting()


def test_time_is_expected_at_the_measured_speed_of_this_machine_and_at_the_declared_one_elsewhere():
    table = pa.table({"prompt_tokens": [600, 500], "cached_tokens": [0, 460], "seconds": [12.0, 4.0]})
    assert measured_speed(table) == 640 / 16 and measured_speed(table.slice(0, 0)) is None
    speeds = {"prompt": 50, "completion": 10}
    far = loopback_stack("http://127.0.0.1:9/v1", tokens_per_s=speeds)
    near, work = replace(far, kind="embedded"), {"calls": 10, "tokens": 9000, "fresh": 400}
    assert expected_seconds(near, **work, measured=40.0) == 10
    assert expected_seconds(near, **work, measured=None) == 8 + 1
    assert expected_seconds(far, **work, measured=40.0) == 180


def test_an_unknown_profile_or_section_is_refused_with_those_that_exist(capsys):
    assert record.main(["plan", "--profile", "papier"]) == 1
    assert "no profile 'papier'; there are " in capsys.readouterr().err
    assert record.main(["plan", "--sections", "07_other"]) == 1
    assert "no section ['07_other']; there are 04_matched_cube" in capsys.readouterr().err


def test_the_plan_of_the_shipped_study_has_prices_and_their_source(capsys):
    assert record.main(["plan", "--first", "1", "--sections", "05_bridge"]) == 0
    said = capsys.readouterr().out
    assert "qwen-1.5b: " in said and "qwen-0.5b: " in said and "cached input" in said and "runs on this machine" in said


def test_an_api_is_planned_as_the_notebooks_ask_it(setting):
    embedded = replace(loopback_stack("http://127.0.0.1:9/v1"), kind="embedded", order="prefix")
    common = {**setting.common, "STACK": "loopback", "SECOND_STACK": "loopback"}
    recorded = {s.name: s for s in Setting(common, {"loopback": embedded}).chosen([])}
    asked = {s.name: s for s in Setting(common, setting.stacks).chosen([])}
    assert recorded["02_retry"].first == 30 and recorded["02_retry"].order == "prefix-groups"
    assert {s.first for s in asked.values()} == {None} and asked["02_retry"].order == "hash"
    assert "05_bridge_wave_2" in recorded and "05_bridge_wave_2" not in asked
    assert set(asked["05_bridge"].plan(["t1"])["wave"]) == {0}


def test_the_published_design_asks_four_waves_at_the_bridge():
    (bridge,) = Setting.of("paper").chosen(["05_bridge"])
    assert set(bridge.plan(["t1"])["wave"]) == {0, 1, 2, 3}


def test_a_verified_sample_holds_whole_transitions_and_compares_only_their_gains(study, endpoint, tmp_path):
    """Two drawn transitions of one trajectory that do not follow each other make two gains, not three."""
    stack = loopback_stack(endpoint().url)
    plan, table = obtained(tiny_plan(study, channels=[direct("loopback")], states=range(12)), study, stack, tmp_path, acquire="missing")
    drawn = record.draw_transitions(plan, 24)
    for _, states in drawn.groupby("trajectory_id")["state"]:
        whole = set(states)
        assert all(s + 1 in whole or s - 1 in whole for s in whole)
    name = plan["trajectory_id"].iloc[0]
    apart = plan[(plan["trajectory_id"] == name) & plan["state"].isin([1, 2, 6, 7])]
    found = record.compare(apart, study, table, table)
    assert found["cells"] == 16 and found["gains compared"] == 2 == found["gain signs that agree"]
    assert found["mean difference (nats)"] == 0


def test_without_a_second_evaluator_there_is_no_bridge(setting):
    alone = replace(setting, common={k: v for k, v in setting.common.items() if k != "SECOND_STACK"})
    names = [section.name for section in alone.chosen([])]
    assert "04_matched_cube" in names and not [n for n in names if n.startswith("05")]


def test_the_plan_says_which_key_is_not_set(setting, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    named = replace(setting, stacks=Stacks({"one": loopback_stack("http://127.0.0.1:9/v1", name="one")}))
    assert f"{KEY_VARIABLE}, which holds its key, is not set" in record.stack_notes(["one"], named)[0]


@pytest.mark.parametrize("argument", ["--first", "--count"])
def test_a_number_of_less_than_one_is_refused(argument, capsys):
    with pytest.raises(SystemExit):
        record.main(["plan", argument, "-1"])
    assert "at least 1 is needed" in capsys.readouterr().err
