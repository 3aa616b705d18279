"""Stacks: what params/stacks.yml says, and what is refused."""

import json
import re
from dataclasses import asdict, replace

import pytest

from helpers.channels.stacks import StackError, load_stack, load_stacks

ROW = """
local:
  kind: embedded
  model: tiny-model
  file: tiny.gguf
  sha256: 5d41402abc4b2a76b9719d911017c592ae5d41402abc4b2a76b9719d911017c5
  sampling: {temperature: 1.0, top_logprobs: 20, max_tokens: 1}
  order: prefix
  concurrency: 3
  timeout_s: 45
  tokens_per_s: {prompt: 70, completion: 20}
  price: {currency: USD, input: 0.1}
  logprobs_scaled_by_temperature: false
"""


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "stacks.yml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_every_stack_of_the_project_loads_with_what_its_kind_needs():
    stacks = load_stacks()
    assert {"qwen-1.5b", "qwen-0.5b", "smollm2-135m"} <= set(stacks)
    for name, stack in stacks.items():
        assert stack.name == name
        assert 1 <= stack.sampling["top_logprobs"] <= 20 and stack.sampling["max_tokens"] == 1
        if stack.kind == "embedded":
            assert re.fullmatch(r"[0-9a-f]{64}", stack.sha256) and stack.file.endswith(".gguf")
            assert stack.wheels["parts"] >= 1 and "{}" in stack.wheels["name"] + "{}" * (stack.wheels["parts"] == 1)
            assert stack.licence == "Apache-2.0"


def test_the_identity_of_an_embedded_stack_is_the_hash_of_its_file():
    stack = load_stack("smollm2-135m")
    assert stack.identity == {"model_sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}


def test_the_identity_of_an_api_stack_is_its_endpoint_and_model_and_nothing_else():
    stack = replace(load_stack("smollm2-135m"), kind="api", base_url="http://127.0.0.1:9/v1", model="big-one")
    assert stack.identity == {"base_url": "http://127.0.0.1:9/v1", "model": "big-one"}
    other = replace(stack, name="again", timeout_s=7, concurrency=9, key_variable="OTHER_KEY", price={})
    assert other.identity == stack.identity
    assert replace(stack, model="bigger-one").identity != stack.identity


def test_a_description_is_plain_data_without_a_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key-4471")
    for stack in load_stacks().values():
        text = json.dumps(asdict(stack), default=str)
        assert "planted-key-4471" not in text and json.loads(text)["model"] == stack.model


def test_a_stack_of_ones_own_file_loads(write):
    stack = load_stack("local", write(ROW))
    assert (stack.name, stack.concurrency, stack.timeout_s, stack.base_url) == ("local", 3, 45, None)


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [("timeout_s", "45", "6e2"), ("sampling", "temperature: 1.0", "temperature: 1e0"), ("price", "input: 0.1", "input: 1e-1")],
)
def test_a_number_that_yaml_reads_as_text_is_refused(write, field, right, wrong):
    with pytest.raises(StackError, match=f"stack 'local': {field} holds text .*write 1.0e-3"):
        load_stack("local", write(ROW.replace(right, wrong)))


def test_an_unknown_stack_lists_the_names_that_exist(write):
    with pytest.raises(StackError, match=r"^unknown stack 'lokal'; stacks\.yml has local\.$"):
        load_stack("lokal", write(ROW))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("order: prefix", "ordre: prefix"), r"stack 'local': order is missing .* ordre is not known; the fields are .*\.$"),
        (("  order: prefix\n", ""), r"stack 'local': order is missing or empty\.$"),
        (("kind: embedded", "kind: remote"), r"stack 'local': kind 'remote' is unknown; use one of embedded, api\.$"),
        (("order: prefix", "order: random"), r"stack 'local': order 'random' is unknown; use one of prefix, hash\.$"),
        (("concurrency: 3", "concurrency: 0"), r"stack 'local': concurrency is 0; expected greater than or equal to 1\.$"),
        (("concurrency: 3", "concurrency: 2.5"), r"stack 'local': concurrency is 2\.5; expected a whole number\.$"),
        (("concurrency: 3", "concurrency: true"), r"stack 'local': concurrency is True; expected a whole number\.$"),
        (("timeout_s: 45", 'timeout_s: "45"'), r"stack 'local': timeout_s is '45'; expected a number\.$"),
        (("timeout_s: 45", "timeout_s: .nan"), r"stack 'local': timeout_s is nan; expected .*\.$"),
        (("prompt: 70", "prompt: -70"), r"stack 'local': tokens_per_s\.prompt is -70; expected greater than 0\.$"),
        (("input: 0.1", 'input: "0.1"'), r"stack 'local': price\.input is '0\.1'; expected a number\.$"),
        (("input: 0.1", "input: -1"), r"stack 'local': price\.input is -1; expected greater than or equal to 0\.$"),
        (("{currency: USD, input: 0.1}", "free"), r"stack 'local': price is 'free'; expected an object of fields\.$"),
        (("model: tiny-model", "model: 7"), r"stack 'local': model is 7; expected text\.$"),
        (("temperature: false", "temperature: 1"), r"logprobs_scaled_by_temperature is 1; expected true or false\.$"),
        (("  file: tiny", "  name: other\n  file: tiny"), r"stack 'local': its name stands above its fields"),
        (("  file: tiny.gguf\n", ""), r"stack 'local': file missing, which a stack of kind embedded needs\.$"),
        (("kind: embedded", "kind: api"), r"base_url, key_variable missing, which a stack of kind api needs\.$"),
        (
            ("{prompt: 70, completion: 20}", "{prompt: 70, "),
            r"stacks\.yml, line 13: not valid YAML \(.*\); repair it\.$",
        ),
    ],
)
def test_a_broken_stack_is_refused_with_the_file_the_stack_and_the_field(write, change, says):
    assert change[0] in ROW
    with pytest.raises(StackError, match=says) as caught:
        load_stacks(write(ROW.replace(*change)))
    assert "stacks.yml" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no stacks"),
        ("- one\n- two\n", "holds no stacks"),
        ("local: 7\n", "stack 'local': expected fields, found int"),
    ],
)
def test_a_file_of_another_shape_is_refused(write, text, says):
    with pytest.raises(StackError, match=says):
        load_stacks(write(text))


def test_a_missing_file_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(StackError, match=r"stacks\.yml: cannot be read \(No such file or directory\); restore it"):
        load_stacks(tmp_path / "stacks.yml")


def test_an_unknown_name_among_loaded_stacks_is_one_sentence():
    stacks = load_stacks()
    assert stacks.get("mystak") is None and "mystak" not in stacks
    with pytest.raises(StackError, match="unknown stack 'mystak'; stacks.yml has qwen-1.5b"):
        stacks["mystak"]
