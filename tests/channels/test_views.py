"""Views: the quote rule, frozen views and their refusals, and freezing against a generator on 127.0.0.1."""

import asyncio
import contextlib
import http.server
import json
import threading
import time
from dataclasses import replace

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.asking.budget import Budget
from helpers.asking.faults import BudgetSpent
from helpers.asking.generate import _freeze_views
from helpers.channels import views
from helpers.channels.channels import _ALLOWED
from helpers.channels.prompts import _SOURCE_ONLY_CLAUSE, generator_messages, two_pass_generator_messages
from helpers.channels.stacks import StackError, load_stack
from helpers.channels.views import (
    _FROZEN,
    ENDPOINTS,
    GENERATED,
    KINDS,
    load_views,
    prompt_sha256,
    quote,
    view_id,
    view_messages,
    wanted_views,
)  # fmt: skip
from helpers.measuring.claims import supported_candidates
from helpers.study.files import DataError, read_jsonl
from helpers.study.projection import state_slice
from helpers.study.traces import STEPS, parse_trajectory
from tests.conftest import held_by

KEY = "planted-generator-key-83b1"
FINDING = "Of 61 walkers 17 fell ill; of 58 sitters 23 did."
TASK = {
    "task_id": "risk-41",
    "family": "risk",
    "question": "Do walkers fall ill less often than sitters?",
    "candidates": [
        {"candidate_id": "answer-a", "text": "Walkers fell ill less often."},
        {"candidate_id": "answer-b", "text": "Sitters fell ill less often."},
        {"candidate_id": "answer-c", "text": "Both fell ill equally often."},
        {"candidate_id": "none-of-the-above", "text": "The available evidence is insufficient to decide."},
    ],
    "target": "answer-a",
}


@pytest.fixture(scope="module")
def trajectory():
    patches = {
        "classify": {"question_type": "risk"},
        "plan": {"plan": {"query": "walkers sitters illness"}},
        "retrieve": {"artifacts": [{"doc_id": "pmid:71", "year": 2003, "design": "cohort", "text": FINDING}]},
        "extract": {
            "artifacts": [{"doc_id": "pmid:71", "year": 2003}],
            "evidence": [{"doc_id": "pmid:71", "quote": FINDING}],
        },
        "synthesize": {"answer": "Walkers fell ill less often.", "citations": ["pmid:71"]},
        "verify": {"verification": "supported"},
        "finalize": {"status": "answered"},
    }
    steps = [{"action": a, "patch": patches.get(a, {}), "observation": f"{a} went well"} for a in STEPS]
    x0 = {"question": TASK["question"], "artifacts": [], "evidence": [], "answer": ""}
    return parse_trajectory({"trajectory_id": "traj-risk-41", "task_id": "risk-41", "x0": x0, "steps": steps})


# -- the quote view --------------------------------------------------------------------------------


def test_a_quote_holds_verbatim_lines_of_evidence_and_conclusions_only(trajectory):
    state = trajectory.projected[6]
    lines = quote(state).splitlines()
    assert set(lines) <= set(state.splitlines())
    text = "\n".join(lines)
    assert FINDING in text and '"Walkers fell ill less often."' in text and "synthesize went well" in text
    assert TASK["question"] not in text and "walkers sitters illness" not in text and '"question_type"' not in text


def test_a_quote_leaves_out_lines_that_hold_only_brackets_or_empty_values(trajectory):
    lines = quote(trajectory.projected[6]).splitlines()
    assert all(any(c.isalnum() for c in line.split(":", 1)[-1]) for line in lines)
    assert quote(trajectory.projected[0]) == ""


@pytest.mark.parametrize("line", ['  "Аспирин снижает риск"', '  "アスピリンは有効"', '  "Result (P < 0.05):"', '  "n: 5:"'])
def test_a_quoted_value_may_be_in_any_script_and_may_end_in_a_colon(line):
    assert quote('{\n "evidence": [\n' + line + "\n ]\n}") == line


def test_a_field_without_a_value_is_not_quoted():
    assert quote('{\n "answer": "",\n "evidence": [\n  {\n   "quote": "a, b",\n   "note": "–"\n  }\n ]\n}') == '   "quote": "a, b",'


def test_a_line_separator_inside_a_value_does_not_cut_a_quoted_line():
    line = '  "quote": "before\u2028after"'
    assert quote('{\n "evidence": [\n' + line + "\n ]\n}") == line


def test_a_quote_has_at_most_24_lines_and_keeps_the_first():
    state = json.dumps({"evidence": [f"sentence {n}" for n in range(1, 41)], "answer": "last"}, indent=1)
    lines = quote(state).splitlines()
    assert len(lines) == 24
    assert (lines[0], lines[-1]) == ('  "sentence 1",', '  "sentence 24",')


# -- frozen views ----------------------------------------------------------------------------------


def row(**changes):
    return {"trajectory_id": "traj-risk-41", "state": 3, "kind": "generated-128", "text": "{}", **changes}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def test_frozen_views_load_by_trajectory_state_and_kind(tmp_path, trajectory):
    path = write_rows(tmp_path / "views.jsonl", [row(), row(state=4, text="é"), row(kind="ungrounded-512", text="x")])
    assert load_views(path, [trajectory]) == {
        "traj-risk-41/3/generated-128": "{}",
        "traj-risk-41/4/generated-128": "é",
        "traj-risk-41/3/ungrounded-512": "x",
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": 12}, "view of state 12, which traj-risk-41 does not have"),
        ({"state": -1}, "view of state -1, which traj-risk-41 does not have"),
        ({"state": "3"}, "view of state '3', which traj-risk-41 does not have"),
        ({"state": True}, "view of state True, which traj-risk-41 does not have"),
        ({"state": None}, "view of state None, which traj-risk-41 does not have"),
        ({"kind": "generated-256"}, "unknown kind 'generated-256'; a frozen view is one of generated-128, "),
        ({"kind": ["quote"]}, r"unknown kind \['quote'\]"),
        ({"text": None}, "the view has no text; remove the line and freeze it again"),
        ({}, "a second view traj-risk-41/3/generated-128; a view is frozen once, so remove one of them"),
    ],
)
def test_an_unusable_view_is_refused_with_the_file_and_the_line(tmp_path, trajectory, changes, says):
    path = write_rows(tmp_path / "views.jsonl", [row(), row(**changes)])
    with pytest.raises(DataError, match=rf"views\.jsonl, line 2: {says}"):
        load_views(path, [trajectory])


def test_views_of_trajectories_that_are_not_there_are_left_out_and_counted(tmp_path, trajectory):
    path, said = write_rows(tmp_path / "views.jsonl", [row(), row(trajectory_id="traj-risk-42"), row(trajectory_id=["x"])]), []
    assert list(load_views(path, [trajectory], say=said.append)) == ["traj-risk-41/3/generated-128"]
    assert said == [f"{path}: 2 views are of trajectories that are not there; they are left out."]


def edited(trajectory):
    """The trajectory with another finding, so that its states from extract on are others."""
    states = [json.loads(json.dumps(s, ensure_ascii=False).replace("17 fell ill", "19 fell ill")) for s in trajectory.states]
    return replace(trajectory, states=tuple(states))


def test_a_view_of_a_state_that_was_edited_since_counts_as_not_frozen_and_is_made_again(tmp_path, trajectory, generator):
    path, said, tasks = tmp_path / "views.jsonl", [], {"risk-41": TASK}
    freeze(generator, wanted_views([trajectory], ["generated-128"], (3, 6)), path)
    assert len(load_views(path, [trajectory], tasks, say=said.append)) == 2 and said == []
    other = edited(trajectory)
    assert list(load_views(path, [other], tasks, say=said.append)) == ["traj-risk-41/3/generated-128"]
    assert said == [f"{path}: 1 views were made from another state, question or prompt; they count as not frozen."]
    asked = {"risk-41": {**TASK, "question": "Do walkers sleep better?"}}
    assert load_views(path, [trajectory], asked, say=said.append) == {}
    assert len(freeze(generator, wanted_views([other], ["generated-128"], (3, 6)), path)) == 1
    assert len(load_views(path, [other], tasks, say=said.append)) == 2
    assert len(freeze(generator, wanted_views([other], ["generated-128"], (3, 6)), path)) == 0


def test_a_donor_goes_when_its_giver_says_something_else_and_the_last_choice_counts(tmp_path, trajectory):
    giver, said = replace(trajectory, trajectory_id="traj-risk-43"), []
    given = row(trajectory_id="traj-risk-43", text="new")
    old, new = (row(kind="donor", donor="traj-risk-43", text=text) for text in ("old", "new"))
    path = write_rows(tmp_path / "views.jsonl", [given, old])
    assert "traj-risk-41/3/donor" not in load_views(path, [trajectory, giver], say=said.append) and len(said) == 1
    path = write_rows(tmp_path / "views.jsonl", [given, old, new])
    assert load_views(path, [trajectory, giver], say=said.append)["traj-risk-41/3/donor"] == "new" and len(said) == 1


@pytest.fixture
def hashed(monkeypatch):
    """The prompts of views that are hashed from here on."""
    seen = []
    monkeypatch.setattr(views, "prompt_sha256", lambda messages: (seen.append(messages), prompt_sha256(messages))[1])
    return seen


def frozen_rows(trajectory, states, kind="generated-128"):
    """Rows as the generator writes them, with the hash of the prompt that there is now."""
    prompts = {k: view_messages(TASK, trajectory.projected[k], GENERATED[kind]) for k in states}
    return [row(state=k, text=f"view {k}", prompt_sha256=prompt_sha256(prompts[k])) for k in states]


def test_a_view_is_held_against_its_prompt_when_it_is_first_looked_at_and_once(tmp_path, trajectory, hashed):
    path = write_rows(tmp_path / "views.jsonl", frozen_rows(trajectory, range(12)))
    found = load_views(path, [trajectory], {"risk-41": TASK})
    assert hashed == []
    name = view_id("traj-risk-41", 3, "generated-128")
    assert found[name] == "view 3" and found.get(name) == "view 3" and name in found and len(hashed) == 1
    assert "traj-risk-41/3/donor" not in found and found.get("nobody/0/donor", "none") == "none" and len(hashed) == 1
    more = found | {name: "another", "x/1/donor": "new"}
    assert (more[name], found[name], more["x/1/donor"], len(hashed)) == ("another", "view 3", "new", 1)
    assert len(found) == len(list(found)) == 12 and len(more) == 13 and len(hashed) == 12
    with pytest.raises(KeyError):
        found["nobody/0/donor"]


def test_stale_views_are_told_once_and_all_together_when_the_first_is_found(tmp_path, trajectory, hashed):
    path, said = write_rows(tmp_path / "views.jsonl", frozen_rows(trajectory, (0, 3, 6, 7))), []
    found = load_views(path, [edited(trajectory)], {"risk-41": TASK}, say=said.append)
    assert view_id("traj-risk-41", 0, "generated-128") in found and said == []
    assert view_id("traj-risk-41", 6, "generated-128") not in found
    assert said == [f"{path}: 2 views were made from another state, question or prompt; they count as not frozen."]
    assert view_id("traj-risk-41", 7, "generated-128") not in found and len(found) == 2 and len(said) == 1
    assert found | {} == dict(found)


def test_every_kind_of_view_is_computed_generated_or_chosen():
    made = [sum(name in rule for name in ("computed", "max_tokens", "chosen")) for rule in KINDS.values()]
    assert set(made) == {1} and set(_ALLOWED["view"]) == set(KINDS)
    assert set(_FROZEN) == set(GENERATED) | {"donor"} and KINDS["donor"]["chosen"] in GENERATED


def test_a_broken_line_is_refused_with_its_number(tmp_path, trajectory):
    path = write_rows(tmp_path / "views.jsonl", [row(), row(state=4)])
    path.write_text(path.read_text()[:-9], encoding="utf-8")
    with pytest.raises(DataError, match=r"views\.jsonl, line 2: not valid JSON"):
        load_views(path, [trajectory])


def test_views_are_wanted_by_trajectory_then_state_then_kind(trajectory):
    other = replace(trajectory, trajectory_id="traj-risk-99")
    wanted = wanted_views([trajectory, other], ["ungrounded-512", "source-only-512"], ENDPOINTS)
    assert [(t.trajectory_id[-2:], k, kind[:3]) for t, k, kind in wanted] == [
        ("41", 3, "ung"), ("41", 3, "sou"), ("41", 4, "ung"), ("41", 4, "sou"),
        ("99", 3, "ung"), ("99", 3, "sou"), ("99", 4, "ung"), ("99", 4, "sou"),
    ]  # fmt: skip


# -- freezing against a generator ------------------------------------------------------------------


class Generator(http.server.BaseHTTPRequestHandler):
    """A chat-completions endpoint that numbers its answers; ``faults`` names what to do at which request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(body)
            number = len(self.server.asked)
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        time.sleep(self.server.pause)
        with self.server.lock:
            self.server.now -= 1
        fault = self.server.faults.get(number)
        text = {"null": None, "empty": ""}.get(fault, f'{{"view": {number}}}')
        choices = [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": text}}]
        answer = {"id": f"r{number}", "object": "chat.completion", "created": 1, "model": body["model"]}
        answer |= {
            "choices": choices,
            "usage": {"prompt_tokens": 7, "completion_tokens": number, "total_tokens": 7 + number},
        }
        if fault == "refuse":
            answer = {"error": {"message": f"the key {KEY} may not do this", "type": "denied"}}
        data = json.dumps(answer).encode()
        if fault == "too-long":
            answer = {"error": {"message": f"the prompt of {KEY} is too long", "type": "invalid"}}
        self.send_response({"refuse": 403, "fail": 500, "too-long": 400}.get(fault, 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def generator():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Generator)
    server.asked, server.faults, server.pause, server.lock, server.now, server.most = [], {}, 0, threading.Lock(), 0, 0
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield server
    server.shutdown()
    server.server_close()


def freeze(generator, wanted, path, *, stop_after=None, **options):
    """Freeze views through the real client; the rows that were yielded."""
    stack = replace(load_stack("smollm2-135m"), name="loopback", kind="api", base_url=generator.url, model="writer")

    async def collect():
        found = []
        async with openai.AsyncOpenAI(base_url=generator.url, api_key=KEY, max_retries=0, timeout=20) as client:
            rows = _freeze_views(wanted, {"risk-41": TASK}, path, stack, client, **options)
            async with contextlib.aclosing(rows):
                async for each in rows:
                    found.append(each)
                    if len(found) == stop_after:
                        break
        return found

    return asyncio.run(collect())


def asked_views(generator):
    return [(body["max_tokens"], body["messages"][0]["content"]) for body in generator.asked]


def test_a_view_is_asked_with_the_generator_prompt_of_its_kind_at_temperature_zero(tmp_path, trajectory, generator):
    wanted = wanted_views([trajectory], ["generated-128", "source-only-512"], [4])
    freeze(generator, wanted, tmp_path / "views.jsonl", at_once=1)
    first, second = generator.asked
    state = trajectory.projected[4]
    assert first == {
        "model": "writer", "temperature": 0, "max_tokens": 128,
        "messages": generator_messages(TASK, state, source_only=False),
    }  # fmt: skip
    assert second["messages"] == generator_messages(TASK, state, source_only=True)
    assert second["messages"][0]["content"].startswith(_SOURCE_ONLY_CLAUSE) and second["max_tokens"] == 512


def test_rationales_are_asked_by_the_first_versions_prompt_of_the_whole_state_or_of_its_evidence(
    tmp_path, trajectory, generator
):
    kinds = ["rationale-128", "rationale-512", "evidence-rationale-128"]
    freeze(generator, wanted_views([trajectory], kinds, [4]), tmp_path / "views.jsonl", at_once=1)
    state = trajectory.projected[4]
    texts = [state, state, state_slice(state, "evidence")]
    assert [body["messages"] for body in generator.asked] == [two_pass_generator_messages(TASK, t) for t in texts]
    assert [body["max_tokens"] for body in generator.asked] == [128, 512, 128] and texts[2] != state


def test_rows_say_what_was_asked_of_whom_and_how_it_ended(tmp_path, trajectory, generator):
    path = tmp_path / "views.jsonl"
    (found,) = freeze(generator, wanted_views([trajectory], ["ungrounded-512"], [3]), path)
    assert read_jsonl(path) == [found]
    assert found["identity"] == {"base_url": generator.url, "model": "writer"}
    assert (found["state"], found["kind"], found["text"]) == (3, "ungrounded-512", '{"view": 1}')
    assert (found["finish_reason"], found["prompt_tokens"], found["completion_tokens"]) == ("length", 7, 1)
    assert len(found["prompt_sha256"]) == 64 and found["stack"] == "loopback"
    assert load_views(path, [trajectory]) == {"traj-risk-41/3/ungrounded-512": '{"view": 1}'}


def test_a_second_run_asks_nothing_and_leaves_the_file_as_it_is(tmp_path, trajectory, generator):
    path = tmp_path / "views.jsonl"
    wanted = wanted_views([trajectory], ["generated-128"], range(12))
    assert len(freeze(generator, wanted, path)) == 12
    before = path.read_bytes()
    assert freeze(generator, wanted, path) == []
    assert (len(generator.asked), path.read_bytes()) == (12, before)


def test_a_run_that_is_stopped_early_goes_on_and_asks_nothing_twice(tmp_path, trajectory, generator):
    path = tmp_path / "views.jsonl"
    wanted = wanted_views([trajectory], ["generated-128"], range(12))
    generator.pause = 0.05
    freeze(generator, wanted, path, stop_after=3, at_once=4)
    assert 3 <= len(read_jsonl(path)) == len(generator.asked) < 12
    freeze(generator, wanted, path, at_once=4)
    assert len(generator.asked) == len(set(asked_views(generator))) == 12
    assert len(load_views(path, [trajectory])) == 12


def test_when_one_view_fails_the_others_under_way_are_written_and_only_the_rest_is_asked_later(
    tmp_path, trajectory, generator
):
    path = tmp_path / "views.jsonl"
    wanted = wanted_views([trajectory], ["generated-128"], range(12))
    generator.pause, generator.faults = 0.05, {5: "refuse"}
    with pytest.raises(
        StackError, match=r"^loopback: view traj-risk-41/\d+/generated-128: the endpoint refuses the key .* Run again"
    ):
        freeze(generator, wanted, path, at_once=4)
    asked = len(generator.asked)
    assert len(read_jsonl(path)) == asked - 1 < 11
    assert len(freeze(generator, wanted, path, at_once=4)) == 12 - (asked - 1)
    assert len(generator.asked) == 13
    assert len(load_views(path, [trajectory])) == 12


def test_a_fault_that_passes_is_tried_again(tmp_path, trajectory, generator):
    generator.faults = {2: "fail"}
    wanted = wanted_views([trajectory], ["generated-128"], range(4))
    assert len(freeze(generator, wanted, tmp_path / "views.jsonl")) == 4 and len(generator.asked) == 5


def test_at_most_the_stated_number_is_asked_side_by_side(tmp_path, trajectory, generator):
    generator.pause = 0.05
    freeze(generator, wanted_views([trajectory], ["generated-128"], range(9)), tmp_path / "views.jsonl", at_once=3)
    assert generator.most == 3


@pytest.mark.parametrize("fault", ["null", "empty", "too-long"])
def test_a_view_without_text_stays_missing_with_its_reason_and_the_others_are_written(tmp_path, trajectory, generator, fault):
    path, left_out = tmp_path / "views.jsonl", {}
    generator.faults = {2: fault}
    wanted = wanted_views([trajectory], ["generated-128"], (3, 4, 5))
    freeze(generator, wanted, path, at_once=1, left_out=left_out)
    assert [r["state"] for r in read_jsonl(path)] == [3, 5]
    ((name, reason),) = left_out.items()
    assert name == "traj-risk-41/4/generated-128" and KEY not in reason
    assert ("refused by the endpoint (HTTP 400)" if fault == "too-long" else "the generator returned no text") in reason
    assert len(freeze(generator, wanted, path)) == 1, "it is asked for again"


def test_a_generator_without_any_text_stops_the_run(tmp_path, trajectory, generator):
    generator.faults = dict.fromkeys(range(1, 13), "empty")
    with pytest.raises(StackError, match="3 views asked, none written.* returned no text"):
        freeze(generator, wanted_views([trajectory], ["generated-128"], range(12)), tmp_path / "views.jsonl", at_once=1)
    assert len(generator.asked) == 3 and not (tmp_path / "views.jsonl").exists()


def test_views_count_against_the_budget(tmp_path, trajectory, generator):
    path, budget = tmp_path / "views.jsonl", Budget(calls=2)
    with pytest.raises(BudgetSpent, match="budget of 2 calls"):
        freeze(generator, wanted_views([trajectory], ["generated-128"], range(12)), path, at_once=1, budget=budget)
    assert len(read_jsonl(path)) == len(generator.asked) == budget.used == 2


def test_the_key_never_shows_when_the_generator_refuses(tmp_path, trajectory, generator):
    generator.faults = {1: "refuse"}
    with pytest.raises(StackError) as caught:
        freeze(generator, wanted_views([trajectory], ["generated-128"], [3]), tmp_path / "views.jsonl")
    assert "may not do this" in str(caught.value) and "[key]" in str(caught.value)
    assert KEY not in str(caught.value)
    assert KEY not in held_by(caught.value)
    assert not (tmp_path / "views.jsonl").exists()


def test_a_torn_last_line_is_named_before_anything_is_asked(tmp_path, trajectory, generator):
    path = write_rows(tmp_path / "views.jsonl", [row(), row(state=4)])
    torn = path.read_text()[:-20]
    path.write_text(torn)
    with pytest.raises(DataError, match=r"views\.jsonl, line 2: not valid JSON .* Repair or remove that line\."):
        freeze(generator, wanted_views([trajectory], ["generated-128"], range(12)), path)
    assert generator.asked == [] and path.read_text() == torn


def test_a_last_line_without_its_line_end_is_not_glued_to_the_next(tmp_path, trajectory, generator):
    path = write_rows(tmp_path / "views.jsonl", [row(), row(state=4)])
    path.write_text(path.read_text().rstrip("\n"))
    freeze(generator, wanted_views([trajectory], ["generated-128"], [3, 4, 5]), path)
    assert [r["state"] for r in read_jsonl(path)] == [3, 4, 5]


def test_a_view_id_names_trajectory_state_and_kind():
    assert view_id("traj-risk-41", 3, "ungrounded-512") == "traj-risk-41/3/ungrounded-512"


# -- support claims --------------------------------------------------------------------------------

KEYED = """{"CANDIDATE_01": {"supporting_evidence": "Fewer walkers fell ill.", "contradicting_evidence": ""},
 "CANDIDATE_02": {"supporting_evidence": "None", "missing_evidence": "How many sat"},
 "CANDIDATE_03": {"supporting_evidence": ["", "17 of 61 and 23 of 58 look alike"]},
 "CANDIDATE_04": {"supporting_evidence": "Too few were watched"}}"""
LISTED = """```json
{"candidates": [
  {"candidate_id": "CANDIDATE_01", "text": "Walkers fell ill less often.", "supporting_evidence": [], "missing": "x"},
  {"supporting_evidence": [{"doc_id": "pmid:71", "quote": "23 sitters fell ill"}], "candidate_id": "CANDIDATE_02"},
  {"candidate_id": "CANDIDATE_03", "supporting_evidence": null, "unresolved_ambiguity": "Which walkers?"}
]}
```"""
TURNED = """{"supporting_evidence": [{"candidate_id": "CANDIDATE_03", "text": "Both groups fell ill"},
 {"candidate_id": "CANDIDATE_01", "text": "Evidence is missing."}],
 "contradicting_evidence": [{"candidate_id": "CANDIDATE_02", "text": "Sitters fell ill too"}]}"""
STAND_IN = """{"evidence": [{"candidate_id": "CANDIDATE_02", "text": "Sitters fell ill less often."}],
 "contradicting_evidence": [{"candidate_id": "CANDIDATE_01", "text": "Walkers did"}], "missing_evidence": []}"""


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        (KEYED, {0, 2}),
        (LISTED, {1}),
        (TURNED, {2}),
        (STAND_IN, {1}),
        ('{"supporting_evidence": {"CANDIDATE_02": "Sitters did well", "CANDIDATE_01": "Not provided"}}', {1}),
        (
            '{"supporting_evidence": ["CANDIDATE_02", "CANDIDATE_03: no data", "CANDIDATE_01: 17 of 61 walkers"]}',
            {0, 1},
        ),
        (
            '[{"candidate_id": "CANDIDATE_01", "supported": false}, {"id": "CANDIDATE_03", "supported": true}]',
            {2},
        ),
        ('{"CANDIDATE_01": {"evidence": {"supporting": "17 of 61 fell ill", "contradicting": "none"}}}', {0}),
        ('{"buffer": {"CANDIDATE_01": {"supportingEvidence": "walkers did well", "contradictingEvidence": "x"}}}', {0}),
        ('{"CANDIDATE_02": {"support": {"status": "missing", "note": "The state restates the question"}}}', set()),
        ("{'CANDIDATE_02': {'support': 'sitters did well'}}", {1}),
        (
            '{"candidate_id": "CANDIDATE_01", "support": "did well"}\n{"id": "CANDIDATE_03", "support": "ill too"}',
            {0, 2},
        ),
        (
            '{"candidate_id": "CANDIDATE_01", "support": "did well", '
            '"candidate_id": "CANDIDATE_02", "support": "none", '
            '"candidate_id": "CANDIDATE_03", "support": "ill too"}',
            {0, 2},
        ),
        ('{"candidate_id": "CANDIDATE_01", "rationale": "Walkers did well"}', set()),
        (
            '{"CANDIDATE_01": {"unsupported": "walkers did well", "missing_support": "a trial", "against": "y"}}',
            set(),
        ),
        ('{"evidence": [{"doc_id": "pmid:71", "quote": "17 of 61 walkers fell ill"}], "missing_evidence": []}', set()),
        (
            '{"evidence": [{"candidate_id": "CANDIDATE_01", "text": "Walkers did well", "support": "none"}]}',
            set(),
        ),
        (
            "candidate_id: CANDIDATE_01\nsupporting_evidence: 17 ill, rate: 0.28\n\n"
            "candidate_id: CANDIDATE_02\nsupporting_evidence: None",
            {0},
        ),
        (
            "**CANDIDATE_01**\n- **Supporting evidence**: walkers did well\n**CANDIDATE_02**\n- Support: n/a",
            {0},
        ),
        ("{}", set()),
    ],
)
def test_support_claims_are_read_in_every_shape_that_generators_return(text, positions):
    assert supported_candidates(text) == positions


@pytest.mark.parametrize("text", ["", "The walkers did better, I think.", "CANDIDATE_01"])
def test_a_text_without_any_structure_is_not_parsed(text):
    assert supported_candidates(text) is None


def claim(text):
    return supported_candidates(json.dumps({"CANDIDATE_02": {"supporting_evidence": text}}))


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "-", "None", "none.", "N/A", "null", "No", "Missing", "Not provided", "not explicitly stated", "0.8",
        "No evidence", "There is no direct evidence in the state.", "No explicit support or contradiction is present",
        "The evidence does not provide any information on walkers.",
        "The available evidence is insufficient to support this.",
        "Data are unavailable in this state", "Insufficient evidence", "The evidence block is empty",
        "Absence of evidence", "Evidence on this candidate was not found",
        "Evidence for this candidate is missing", "It isn't supported by the state",
    ],
)  # fmt: skip
def test_a_support_field_that_marks_evidence_as_absent_claims_nothing(text):
    assert claim(text) == set()


@pytest.mark.parametrize(
    "text",
    [
        "The study found no difference between walkers and sitters (p=0.4).",
        "Renal insufficiency was rarer among walkers, and absent in women.",
        "No patient had evidence of fracture healing.",
        "Missing teeth were as common in both groups.",
        "Patients who were not given vitamin C fell ill more often.",
        "17 of 61 walkers fell ill",
    ],
)
def test_a_negative_finding_is_still_a_finding(text):
    assert claim(text) == {1}


def test_the_fallback_is_left_out_wherever_it_stands():
    assert supported_candidates(KEYED, fallback=0) == {2, 3}
    assert supported_candidates(KEYED, fallback=2) == {0, 3}


def test_a_field_named_evidence_stands_in_only_without_a_support_field():
    both = '{"evidence": {"CANDIDATE_01": "did well"}, "supporting_evidence": {"CANDIDATE_02": "did well"}}'
    assert supported_candidates(both) == {1}


def test_a_candidate_listed_by_its_own_text_is_named_when_the_texts_are_given():
    texts = [candidate["text"] for candidate in TASK["candidates"]]
    view = json.dumps({"evidence": [texts[2], "Walkers did well", texts[3]], "contradicting_evidence": [texts[0]]})
    assert supported_candidates(view) == set()
    assert supported_candidates(view, texts=texts) == {2}
    assert supported_candidates(LISTED, texts=texts) == supported_candidates(LISTED)


def test_a_view_cut_at_the_token_cap_keeps_what_was_said_before_the_cut():
    cut = KEYED.index("fell ill.") + len("fell")
    assert supported_candidates(KEYED[:cut]) == set()  # "Fewer walkers fell" may go on in any way
    assert supported_candidates(KEYED[: cut + 6]) == {0}
    assert supported_candidates(KEYED[: KEYED.index("17 of 61")]) == {0}
    assert supported_candidates(KEYED[: KEYED.index(" look")]) == {0, 2}


@pytest.mark.parametrize("text", [KEYED, LISTED, TURNED, STAND_IN])
def test_every_prefix_of_a_view_can_be_read(text):
    for end in range(len(text)):
        found = supported_candidates(text[:end])
        assert found is None or found <= {0, 1, 2}


@given(st.text(alphabet='{}[],:" \\\nabCANDIDATE_0123support', max_size=60))
def test_no_text_makes_the_parser_fail(text):
    found = supported_candidates(text)
    assert found is None or found <= {0, 1, 2}


def test_a_generator_that_loops_on_brackets_is_not_parsed():
    assert supported_candidates("[" * 50_000) is None
