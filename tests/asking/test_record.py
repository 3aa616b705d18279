"""`make plan`: what is still to ask, how tokens are counted, what it costs, and what the probe said."""

import re
from dataclasses import replace

import pyarrow as pa
import pytest

from helpers.__main__ import main
from helpers.asking.forecast import (
    _Counting,
    _expected_seconds,
    _fresh_share,
    _measured_counting,
    _measured_speed,
    _prompt_text,
    _stack_notes,
    forecasts,
    prices,
    print_plan,
)
from helpers.asking.probe import CALLS
from helpers.asking.record import Setting
from helpers.asking.verify import _draw_transitions, compare
from helpers.channels.channels import direct
from helpers.channels.sections import Evaluators, Section, section
from helpers.channels.stacks import _Stacks
from helpers.channels.views import ENDPOINTS, GENERATED, view_messages
from helpers.lab import setting_of
from tests.conftest import KEY_VARIABLE, joint_and_binary, loopback_stack, obtained, tiny_plan

NOWHERE = "http://127.0.0.1:9/v1"
GLOBAL = replace(section("01_global_replay"), views=())


@pytest.fixture
def setting(study, tmp_path):
    """A profile whose recordings lie in a scratch folder and whose evaluator answers nowhere."""
    stacks = _Stacks({"loopback": loopback_stack(NOWHERE)})
    return Setting(study, stacks, Evaluators("loopback"), tmp_path, tmp_path / "views.jsonl")


def test_shared_prefixes_count_once():
    assert _fresh_share(["ab", "abcd", "abx"]) == pytest.approx(5 / 9)
    assert _fresh_share(["abcd", "xy", "xyz"]) == pytest.approx((4 + 2 + 1) / 9)
    assert _fresh_share([]) == 1.0


def test_waves_that_are_interleaved_cost_each_its_own_prompts(setting):
    setting.stacks["loopback"] = replace(setting.main, kind="embedded", order="prefix")
    waves = replace(section("02_retry"), views=())
    (mixed,), (sorted_,) = forecasts([waves], setting), forecasts([replace(waves, interleaved=False)], setting)
    assert mixed["prompt tokens"] == sorted_["prompt tokens"]
    assert mixed["of them new to the cache"] > 1.9 * sorted_["of them new to the cache"]


def test_planned_is_recorded_and_to_ask_also_where_views_are_missing_or_alike(study, setting):
    first = {name: text for name, text in study.views.items() if "/0/" in name}
    (row,) = forecasts([GLOBAL], replace(setting, study=replace(study, views=first)))
    assert (row["planned"], row["recorded"], row["to ask"]) == (192, 0, 192)
    face = replace(section("03_retrieval_face"), views=())
    assert [row["planned"] for row in forecasts([face], setting)] == [48]
    before, after = (f"{next(iter(study.trajectories))}/{state}/generated-128" for state in ENDPOINTS)
    alike = replace(study, views=study.views | {after: study.views[before]})  # two of its four cells are the other two
    (row,) = forecasts([face], replace(setting, study=alike))
    assert row["planned"] == row["to ask"] == 48 - 2 * 4


def test_prices_at_list_with_cached_input_and_by_batch():
    stack = loopback_stack(NOWHERE)
    found = prices(3e6, 1e6, 200_000, stack)  # 2.0 input, 0.5 cached, 8.0 output, 1.0 batch a million
    assert found == {"list": 6 + 1.6, "cached input": 2 + 1 + 1.6, "batch": 3 + 1.6, "currency": "USD"}


def test_without_recordings_tokens_are_estimated_and_the_plan_says_so(study, setting, capsys):
    (row,) = rows = forecasts([GLOBAL], setting)
    prompts = [_prompt_text(r, study) for r in setting.plan(GLOBAL).itertuples(index=False)]
    assert (row["planned"], row["recorded"], row["to ask"], row["counted"]) == (192, 0, 192, "estimated")
    assert row["prompt tokens"] == round(sum(map(len, prompts)) / 4)
    print_plan(rows, setting)
    said = capsys.readouterr().out
    assert f"not probed yet, which takes {CALLS} calls" in said and "in all: 192 calls" in said
    assert re.search(r"USD at list price \(.* with cached input, .* by batch\)", said)


def test_recorded_cells_say_how_many_characters_a_token_has(study, endpoint, setting, capsys):
    server = endpoint()
    setting.stacks["loopback"] = stack = loopback_stack(server.url)
    part = tiny_plan(study, states=(3,), channels=joint_and_binary())
    obtained(part, study, stack, setting.recordings, acquire="missing")
    cube = Section("04_matched_cube", "", "", lambda ids, e, w: tiny_plan(study, channels=joint_and_binary()))
    rows = forecasts([GLOBAL, cube], setting)
    table = setting.store("loopback").table()
    characters = sum(len(_prompt_text(r, study)) for r in part.itertuples(index=False))
    rate = characters / sum(table["prompt_tokens"].to_pylist())
    assert rate != 4.0 and [r["counted"] for r in rows] == [f"measured, {rate:.2f} characters a token"] * 2
    assert [r["recorded"] for r in rows] == [0, 40] and rows[1]["to ask"] == 40
    print_plan(rows, setting)
    said = capsys.readouterr().out
    assert "probed: 20 alternatives, every label one token" in said and "answered by tiny-1" in said


def test_cells_without_a_view_are_said_to_be_taken_at_the_mean(study, setting):
    some = replace(study, views=dict(list(study.views.items())[:3]))
    (row,) = forecasts([GLOBAL], replace(setting, study=some))
    assert row["counted"] == f"estimated, {96 - 3 * 4} without their view at the mean" and row["to ask"] == 192


def test_views_that_are_missing_have_a_row_of_their_own_and_count_once(study, setting):
    short = replace(GLOBAL, views=("generated-128",), states=(3, 4))
    every = replace(short, name="later", states=range(12))
    names = [f"{t}/{k}/generated-128" for t in study.trajectories for k in range(12)]
    some = replace(study, views={name: "x" * 40 for name in names[:2]})  # states 0 and 1 of the first trajectory
    rows = {r["section"]: r for r in forecasts([short, every], replace(setting, study=some))}
    first, later = rows["views of 01_global_replay"], rows["views of later"]
    assert (first["planned"], first["recorded"], first["to ask"]) == (4, 0, 4)
    assert (later["planned"], later["recorded"], later["to ask"]) == (24, 2, 24 - 2 - 4)
    assert "and 180 of answers" in later["counted"]  # 18 texts of the ten tokens that the frozen ones have
    prompts = [view_messages(some.task(t), some.states[t][k], GENERATED["generated-128"])[0]["content"]
               for t in some.trajectories for k in (3, 4)]  # fmt: skip
    assert first["prompt tokens"] == round(sum(map(len, prompts)) / 4)
    assert "views of 01_global_replay" not in {r["section"] for r in forecasts([short], setting)}


def test_measured_cells_are_spread_over_the_plan(study):
    plan = tiny_plan(study).assign(key=[f"k{i:02d}" for i in range(16)])
    lengths = [len(_prompt_text(r, study)) for r in plan.itertuples(index=False)]
    table = pa.table({"key": plan["key"], "prompt_tokens": pa.array([100] * 15 + [None], pa.int32())})
    found = _measured_counting(plan, study, table, most=4)
    assert found.cells == 4 and found.characters == pytest.approx(sum(lengths[:15:4]) / 400)
    assert _measured_counting(plan.assign(key="other"), study, table) == _Counting()


def test_time_is_expected_at_the_measured_speed_of_this_machine_and_at_the_declared_one_elsewhere():
    table = pa.table({"prompt_tokens": [600, 500], "cached_tokens": [0, 460], "seconds": [12.0, 4.0]})
    assert _measured_speed(table) == 640 / 16 and _measured_speed(table.slice(0, 0)) is None
    speeds = {"prompt": 50, "completion": 10}
    far = loopback_stack(NOWHERE, tokens_per_s=speeds)
    near, work = replace(far, kind="embedded"), {"calls": 10, "tokens": 9000, "fresh": 400}
    assert _expected_seconds(near, **work, measured=40.0) == 10
    assert _expected_seconds(near, **work, measured=None) == 8 + 1
    assert _expected_seconds(far, **work, measured=40.0) == 180


def test_an_unknown_profile_or_section_is_refused_with_those_that_exist(capsys):
    assert main(["plan", "--profile", "papier"]) == 2
    assert "no profile 'papier'. Did you mean 'paper'? There are: " in capsys.readouterr().err
    assert main(["plan", "--sections", "07_other"]) == 1
    assert "no section 07_other; there are 04_matched_cube" in capsys.readouterr().err


def test_the_plan_of_the_shipped_study_has_prices_and_their_source(capsys):
    assert main(["plan", "--first", "1", "--sections", "05_bridge"]) == 0
    said = capsys.readouterr().out
    assert "qwen-1.5b: " in said and "qwen-0.5b: " in said and "cached input" in said and "runs on this machine" in said


def test_an_api_is_planned_as_the_notebooks_ask_it(setting):
    setting.evaluators = Evaluators("loopback", "loopback", "loopback")
    embedded = replace(setting, stacks={"loopback": replace(setting.main, kind="embedded", order="prefix")})
    recorded, asked = ({s.name: s for s in each.chosen()} for each in (embedded, setting))
    assert recorded["02_retry"].recorded == 30 and embedded.order(recorded["02_retry"]) == "prefix-groups"
    assert {s.recorded for s in asked.values()} == {None} and setting.order(asked["02_retry"]) == "hash"
    assert setting.order(asked["01_global_replay"]) is None, "waves of one asking need no interleaving"
    assert "05_bridge_wave_2" in recorded and "05_bridge_wave_2" not in asked
    assert set(setting.plan(asked["05_bridge"])["wave"]) == {0}


def test_a_section_is_recorded_for_so_many_trajectories_as_its_row_says(setting):
    two = replace(GLOBAL, recorded=1)
    assert setting.ids(GLOBAL) == list(setting.study.trajectories) and setting.ids(two) == setting.ids(GLOBAL)[:1]
    assert set(setting.plan(two)["trajectory_id"]) == set(setting.ids(two))


def test_what_a_notebook_chooses_by_its_recordings_is_left_to_it(setting):
    chosen = {s.name for s in setting.chosen()}
    assert "07_components" not in chosen and "07_step_diagnostics" in chosen
    with pytest.raises(ValueError, match="no section 07_components; there are "):
        setting.chosen(["07_components"])


def test_the_published_design_asks_four_waves_at_the_bridge():
    setting = setting_of("paper", 1)
    (bridge,) = setting.chosen(["05_bridge"])
    assert set(setting.plan(bridge)["wave"]) == {0, 1, 2, 3} and len(setting.study.trajectories) == 1


def test_a_verified_sample_holds_whole_transitions_and_compares_only_their_gains(study, endpoint, tmp_path):
    """Two drawn transitions of one trajectory that do not follow each other make two gains, not three."""
    stack = loopback_stack(endpoint().url)
    plan, table = obtained(tiny_plan(study, channels=[direct("loopback")], states=range(12)), study, stack, tmp_path, acquire="missing")
    drawn = _draw_transitions(plan, 24)
    for _, states in drawn.groupby("trajectory_id")["state"]:
        whole = set(states)
        assert all(s + 1 in whole or s - 1 in whole for s in whole)
    name = plan["trajectory_id"].iloc[0]
    apart = plan[(plan["trajectory_id"] == name) & plan["state"].isin([1, 2, 6, 7])]
    found = compare(apart, study, table, table)
    assert found["cells"] == 16 and found["gains compared"] == 2 == found["gain signs that agree"]
    assert found["mean difference (nats)"] == 0


def test_without_a_second_evaluator_there_is_no_bridge(setting):
    names = [row.name for row in setting.chosen()]
    assert "04_matched_cube" in names and not [n for n in names if n.startswith("05")]
    assert "01_temperature" not in names, "nor a check that needs the evaluator at another temperature"


def test_the_plan_says_which_key_is_not_set(setting, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    named = replace(setting, stacks=_Stacks({"one": loopback_stack(NOWHERE, name="one")}))
    assert f"{KEY_VARIABLE}, which holds its key, is not set" in _stack_notes(["one"], named)[0]


@pytest.mark.parametrize(("command", "argument"), [("plan", "--first"), ("verify", "--count"), ("record", "--first")])
def test_a_number_of_less_than_one_is_refused(command, argument, capsys):
    with pytest.raises(SystemExit):
        main([command, argument, "-1"])
    assert "'-1' is no number from 1 on" in capsys.readouterr().err


def test_how_many_is_taken_from_the_environment_as_make_hands_it_on(monkeypatch, capsys):
    monkeypatch.setenv("N", "1")
    assert main(["plan", "--sections", "01_global_replay"]) == 0
    assert f" {12 * 2 * 4} " in capsys.readouterr().out
    monkeypatch.setenv("N", "none")
    with pytest.raises(SystemExit):
        main(["plan"])
