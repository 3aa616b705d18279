"""Recordings: durable, append-only, exact; and what the counts and explanations say."""

import asyncio
import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from helpers.asking import recordings as module
from helpers.asking.budget import money
from helpers.asking.recordings import LATER, SCHEMA, Recordings, as_table
from helpers.asking.why import nearest, section_plan, stats, why
from helpers.channels.channels import direct, generated
from helpers.channels.plan import Study, add_keys
from helpers.study.files import DataError
from tests.conftest import ask, loopback_stack, obtained, run_child, tiny_plan


def answer(key, **fields):
    return {"key": key, "wave": 0, "stack": "loopback", "tokens": ["A", "\u0412"], "logprobs": [-0.25, -2.5], **fields}


def unread(key):
    return {"key": key, "wave": 0, "stack": "loopback", "unread": '{"content": null}'}


def store_with(folder, *rows, **options):
    store = Recordings(folder, "loopback", **options)
    with store.writer() as write:
        write(list(rows))
    return store


def export_on_a_full_disk(folder, said):
    """In a child process: export where the new file cannot be written whole; the journal is read only."""
    store = Recordings(folder, "loopback")
    with store._open():  # another reader keeps the journal's side files, so that opening it needs no room
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
        try:
            store.export()
            return
        except DataError as caught:
            error = caught
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        Path(said).write_text(f"{type(error).__name__} {error}")


def write_six_and_die(folder):
    """In a child process: six commits, then an end without closing anything."""
    with Recordings(folder, "loopback").writer() as write:
        for n in range(6):
            write([answer(f"k{n}")])
        os._exit(9)


# -- writing and reading -----------------------------------------------------------------------------


def test_what_is_written_is_read_back_as_received(tmp_path):
    row = answer("k1", logprobs=[float("-inf"), 3e-7], sampled='"unread": "', section="bridge", prompt_tokens=77)
    table = store_with(tmp_path, row).table()
    assert table.schema == SCHEMA and table.to_pylist()[0] == {**dict.fromkeys(SCHEMA.names), **LATER, **row}
    assert Recordings(tmp_path, "loopback").keys() == {"k1"}


def test_recordings_from_before_a_column_was_added_have_the_value_that_all_of_them_had(tmp_path):
    store = store_with(tmp_path, answer("k1"))
    store.export()
    store.journal.unlink()
    pq.write_table(pq.read_table(store.parquet).drop_columns(list(LATER)), store.parquet)
    assert store.table().schema == SCHEMA and store.table(list(LATER)).to_pylist() == [LATER]


def test_the_first_answer_counts(tmp_path):
    store = store_with(tmp_path, answer("k1", logprobs=[-0.1, -3.0]))
    with store.writer() as write:
        write([answer("k1", logprobs=[-0.9, -1.0]), answer("k2")])
    assert store.table(["key", "logprobs"]).to_pylist()[0]["logprobs"] == [-0.1, -3.0]
    assert store.table().num_rows == 2


def test_an_answer_with_log_probabilities_replaces_one_without_and_never_the_other_way_round(tmp_path):
    store = store_with(tmp_path, unread("k1"), answer("k2"))
    assert store.keys() == {"k2"} and store.table().num_rows == 2
    store_with(tmp_path, answer("k1"), unread("k2"))
    assert store.keys() == {"k1", "k2"} and store.table()["unread"].null_count == 2


def test_the_same_holds_between_the_file_that_ships_and_the_journal(tmp_path):
    store = store_with(tmp_path, unread("k1"), answer("k2", logprobs=[-0.1, -3.0]))
    store.export()
    store.journal.unlink()
    store_with(tmp_path, answer("k1"), answer("k2", logprobs=[-0.9, -1.0]), unread("k3"))
    table = store.table(["key", "logprobs"])
    assert table.to_pydict() == {"key": ["k1", "k2", "k3"], "logprobs": [[-0.25, -2.5], [-0.1, -3.0], None]}
    assert store.keys() == {"k1", "k2"}


def test_columns_can_be_chosen_without_the_key(tmp_path):
    store = store_with(tmp_path, answer("k2", wave=3), answer("k1", wave=5))
    assert store.table(["wave"]).to_pydict() == {"wave": [5, 3]}


def test_export_gives_the_same_bytes_whatever_the_order_of_arrival(tmp_path):
    rows = [answer("k2", section="bridge"), answer("k1", prompt_tokens=31), unread("k3")]
    first, second = store_with(tmp_path / "a", *rows), store_with(tmp_path / "b", *reversed(rows))
    assert first.export() == second.export() == 3
    assert first.parquet.read_bytes() == second.parquet.read_bytes()
    once = first.parquet.read_bytes()
    first.export()
    assert first.parquet.read_bytes() == once and pq.read_schema(first.parquet) == SCHEMA


def test_an_export_that_cannot_be_written_leaves_the_old_file_and_no_piece(tmp_path):
    store = store_with(tmp_path, answer("k1"))
    store.export()
    old = store.parquet.read_bytes()
    store_with(tmp_path, answer("k2", section="bridge"))
    said = tmp_path / "said"
    run_child(export_on_a_full_disk, str(tmp_path), str(said))
    assert said.read_text().startswith("DataError") and "free disk space" in said.read_text()
    assert store.parquet.read_bytes() == old and not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b[:-3], lambda b: b"", lambda b: b"PAR1" + b"\x00" * 60]
)
def test_a_torn_parquet_file_is_one_sentence_and_the_journal_is_untouched(damage, tmp_path):
    store = store_with(tmp_path, answer("k1"), answer("k2"))
    store.export()
    store.parquet.write_bytes(damage(store.parquet.read_bytes()))
    for read in (store.table, store.keys):
        with pytest.raises(
            DataError, match=r"loopback.parquet: not a readable recordings file .* journal are untouched"
        ) as caught:
            read()
        assert "\n" not in str(caught.value)
    store.parquet.unlink()
    assert store.keys() == {"k1", "k2"}


def test_a_parquet_file_of_something_else_is_refused(tmp_path):
    pq.write_table(as_table([answer("k1")]).select(["wave", "stack"]), tmp_path / "loopback.parquet")
    with pytest.raises(DataError, match="not a readable recordings file"):
        Recordings(tmp_path, "loopback").table()


def test_a_damaged_journal_is_one_sentence_that_says_what_to_do(tmp_path):
    store = store_with(tmp_path, answer("k1"))
    store.journal.write_bytes(b"this is no database" * 300)
    with pytest.raises(DataError, match=r"loopback.sqlite: damaged .*Move it away"):
        store.table()


def test_a_torn_last_record_of_the_journal_costs_that_record_only(tmp_path):
    run_child(write_six_and_die, str(tmp_path))
    store = Recordings(tmp_path, "loopback")
    log = store.journal.with_name("loopback.sqlite-wal")
    log.write_bytes(log.read_bytes()[:-1500])  # the last frame of the write-ahead log is torn
    assert store.keys() == {f"k{n}" for n in range(5)}
    store_with(tmp_path, answer("k5"))
    assert len(store.keys()) == 6


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = Recordings(tmp_path / "file", "loopback")
    for use in (lambda: store.writer().__enter__(), lambda: asyncio.run(store.my_turn().__aenter__())):
        with pytest.raises(DataError, match="loopback.sqlite: cannot be opened|journal: cannot be written"):
            use()


def test_an_answer_is_on_disk_when_it_is_written_even_if_the_machine_stops(tmp_path):
    with Recordings(tmp_path, "loopback")._open() as database:
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL; a killed process alone cannot show it
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_failures_are_kept_apart_from_answers_and_vanish_with_an_answer(tmp_path):
    store = Recordings(tmp_path, "loopback")
    assert store.failures() == {}
    store.note_failures({"k1": "refused (HTTP 400)", "k2": "no usable answer"})
    assert store.table().num_rows == 0 and store.failures()["k1"] == "refused (HTTP 400)"
    store_with(tmp_path, answer("k1"))
    assert store.failures() == {"k2": "no usable answer"}


# -- counts ------------------------------------------------------------------------------------------


def test_money_is_tokens_times_the_price_of_a_million():
    price = {"input": 2.0, "cached_input": 0.5, "output": 8.0}
    assert money(3_000_000, 1_000_000, 250_000, price) == pytest.approx(2 * 2.0 + 1 * 0.5 + 0.25 * 8.0)


def test_stats_count_recordings_tokens_and_money_across_restarts(tmp_path):
    store_with(
        tmp_path, answer("k1", section="a", prompt_tokens=900, cached_tokens=300, completion_tokens=1), unread("k4")
    )
    Recordings(tmp_path, "loopback").export()
    Recordings(tmp_path, "loopback").journal.unlink()
    store_with(
        tmp_path, answer("k2", section="a", prompt_tokens=500, completion_tokens=2), answer("k3", section="a", wave=2)
    )
    out = stats(tmp_path, {"loopback": loopback_stack("http://127.0.0.1:9/v1")})
    row = out.loc[("loopback", 0, "a")]
    assert (row["recordings"], row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (
        2,
        1400,
        300,
        3,
    )
    assert row["cost"] == pytest.approx((1100 * 2.0 + 300 * 0.5 + 3 * 8.0) / 1e6) and row["currency"] == "USD"
    assert out.loc[("loopback", 2, "a"), "recordings"] == 1 and out.loc[("loopback", 0, ""), "unread"] == 1
    assert stats(tmp_path, {})["cost"].isna().all() and stats(tmp_path / "none", {}).empty


# -- explanations ------------------------------------------------------------------------------------


@pytest.fixture
def recorded(study, endpoint, tmp_path):
    """Both trajectories at state 4, direct and generated, recorded; returns (stack, folder)."""
    stack = loopback_stack(endpoint().url)
    ask(tiny_plan(study, states=(4,), channels=[direct("loopback"), generated("loopback")]), study, stack, tmp_path)
    return stack, tmp_path


def explained(study, stack, folder, **coordinates):
    channels = coordinates.pop("channels", [direct("loopback")])
    plan = tiny_plan(study, states=(4,), channels=channels, **coordinates).head(1)
    return why(plan, study, {"loopback": stack}, folder)[0][1]


def test_a_recorded_cell_is_said_to_be_recorded(study, recorded):
    assert explained(study, *recorded) == "is recorded."


@pytest.mark.parametrize(
    "changes, text",
    [
        (
            {"sampling": {"temperature": 1.5, "top_logprobs": 20, "max_tokens": 1}},
            "settings.temperature is 1.5, recorded with 1.0",
        ),
        ({"base_url": "http://127.0.0.1:9/v2"}, "identity.base_url is 'http://127.0.0.1:9/v2', recorded with"),
        ({"extra_body": {"route": "eu"}}, "settings.route is 'eu', recorded with None"),
        (
            {"sampling": {"temperature": 1, "top_logprobs": 20, "max_tokens": 1}},
            "settings.temperature is 1, recorded with 1.0",
        ),
        ({"model": "tiny-2"}, "settings.model is 'tiny-2', recorded with 'tiny-1'"),
    ],
)
def test_a_changed_setting_or_identity_is_named_and_nothing_else(changes, text, study, recorded):
    stack, folder = recorded
    found = explained(study, replace(stack, **changes), folder)
    assert text in found and "hash" not in found and "wave" not in found


def test_a_changed_wave_is_named(study, recorded):
    found = explained(study, *recorded, waves=(3,))
    assert found.endswith(": wave is 3, recorded with 0.")


def changed_study(study, what):
    trajectory_id = next(iter(study.trajectories))
    trajectory = study.trajectories[trajectory_id]
    if what == "state":
        states = tuple({**s, "answer": s["answer"] + " Indeed."} for s in trajectory.states)
        return Study(
            study.tasks, {**study.trajectories, trajectory_id: replace(trajectory, states=states)}, study.views
        )
    if what == "view":
        return Study(study.tasks, study.trajectories, {k: v + " more" for k, v in study.views.items()})
    task = study.tasks[trajectory.task_id]
    return Study(
        {**study.tasks, trajectory.task_id: {**task, "question": task["question"] + "?"}},
        study.trajectories,
        study.views,
    )


@pytest.mark.parametrize(
    "what, others", [("state", ("view", "task")), ("view", ("state", "task")), ("task", ("state", "view"))]
)
def test_a_changed_state_view_or_task_is_named_and_nothing_else(what, others, study, recorded):
    found = explained(changed_study(study, what), *recorded, channels=[generated("loopback")])
    assert (
        f"{what}_hash is " in found
        and not any(f"{other}_hash" in found for other in others)
        and "settings" not in found
    )


def test_a_missing_cell_coordinate_is_named(study, recorded):
    stack, folder = recorded
    plan = tiny_plan(study, states=(7,)).head(1)
    found = why(plan, study, {"loopback": stack}, folder)[0][1]
    assert "state is 7, recorded with 4" in found and "layout" not in found


def test_a_view_that_is_not_frozen_and_an_empty_folder_are_named(study, recorded, tmp_path):
    bare = Study(study.tasks, study.trajectories, {})
    assert "generated-128 view is not frozen" in explained(bare, *recorded, channels=[generated("loopback")])
    assert "nothing is recorded for stack loopback" in explained(study, recorded[0], tmp_path / "empty")


def test_the_reason_of_the_last_failure_is_repeated(study, recorded):
    stack, folder = recorded
    plan = add_keys(tiny_plan(study, states=(7,)).head(1), study, {"loopback": stack})
    Recordings(folder, "loopback").note_failures({plan["key"][0]: "refused by the endpoint (HTTP 400): too long"})
    found = why(plan.drop(columns="key"), study, {"loopback": stack}, folder)[0][1]
    assert found.endswith("When it was last asked: refused by the endpoint (HTTP 400): too long")


def test_the_nearest_recording_agrees_in_most_fields():
    fields = dict.fromkeys(module._COMPARED, 1)
    frame = pd.DataFrame(
        [{**fields, "state": 2, "layout": 3}, {**fields, "wave": 5}, {**fields, "state": 2, "wave": 5}]
    )
    found, differing = nearest(fields, frame.assign(key=["x", "y", "z"]))
    assert found["key"] == "y" and differing == ["wave"]


def test_an_unknown_section_and_a_bridge_without_its_second_stack_are_refused():
    with pytest.raises(DataError, match="no section 'globl'; there are global_replay"):
        section_plan("globl", ["t"], "loopback")
    with pytest.raises(DataError, match="--second-stack"):
        section_plan("bridge", ["t"], "loopback")
    assert len(section_plan("bridge", ["t"], "one", "two")) == 2 * 2 * 2 * 4 * (1 + 4)
    assert len(section_plan("components", ["t"], "one")) == 12 * 7, "both ends of every transition, seven channels"


def write_study(study, folder, stack):
    """The tiny study as files, for the command line; returns the arguments that name them."""
    rows = {"tasks": list(study.tasks.values()), "trajectories": [], "views": []}
    for t in study.trajectories.values():
        rows["trajectories"].append(
            {
                "trajectory_id": t.trajectory_id,
                "task_id": t.task_id,
                "x0": t.states[0],
                "steps": list(t.steps),
                "final_score": t.final_score,
                "success": t.success,
            }
        )
    for name, text in study.views.items():
        trajectory_id, state, kind = name.split("/")
        rows["views"].append({"trajectory_id": trajectory_id, "state": int(state), "kind": kind, "text": text})
    arguments = []
    for name, part in rows.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in part))
        arguments += [f"--{name}", str(path)]
    plain = {k: v for k, v in vars(stack).items() if v not in (None, ()) and k != "name"}
    (folder / "stacks.yml").write_text(yaml.safe_dump({"loopback": plain}))
    return [*arguments, "--stacks", str(folder / "stacks.yml"), "--stack", "loopback", "--folder", str(folder)]


def test_the_commands_print_counts_and_reasons(study, recorded, capsys):
    stack, folder = recorded
    arguments = write_study(study, folder, replace(stack, sampling={**stack.sampling, "top_logprobs": 15}))
    assert module.main(["stats", "--folder", str(folder), "--stacks", str(folder / "stacks.yml")]) == 0
    assert "16" in capsys.readouterr().out
    cell = ["--trajectory", "traj-risk-01", "--state", "4", "--template", "direct", "--layout", "2"]
    assert module.main(["why", *arguments, *cell]) == 0
    out = capsys.readouterr().out
    assert "1 cells, 1 of them missing." in out and "settings.top_logprobs is 15, recorded with 20" in out
    assert module.main(["why", *arguments, "--trajectory", "traj-risk-99"]) == 1
    assert "no trajectory 'traj-risk-99'" in capsys.readouterr().err
    assert module.main(["why", *arguments, "--state", "4", "--template", "matched"]) == 1
    assert "plans no such cell" in capsys.readouterr().err


def test_obtain_and_the_store_agree_on_what_is_recorded(study, recorded):
    stack, folder = recorded
    _, table = obtained(tiny_plan(study, states=(4,)), study, stack, folder)
    assert set(table["key"].to_pylist()) == Recordings(folder, "loopback").keys()


def test_what_the_command_line_leaves_out_comes_from_the_profile(capsys):
    assert module.main(["why", "--profile", "paper", "--trajectory", "traj-risk-01", "--state", "4", "--layout", "0"]) == 0
    out = capsys.readouterr().out
    assert "2 cells, 2 of them missing" in out and "nothing is recorded for stack deepseek" in out and "qwen" not in out
    assert module.main(["why", "--profile", "papper"]) == 1
    assert "no profile 'papper'" in capsys.readouterr().err


def test_no_more_cells_are_explained_than_are_shown(study, recorded, capsys, monkeypatch):
    stack, folder = recorded
    arguments = write_study(study, folder, replace(stack, sampling={**stack.sampling, "top_logprobs": 15}))
    asked = []
    monkeypatch.setattr(module, "nearest", lambda *a, nearest=module.nearest: asked.append(1) or nearest(*a))
    assert module.main(["why", *arguments, "--most", "3"]) == 0
    assert capsys.readouterr().out.count("\n- ") == len(asked) == 3
