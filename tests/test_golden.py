"""Nothing that was recorded loses its key: requests, prompts, projections, views and tables are what they were."""

import json

import pytest

from tests import golden

WAS = json.loads(golden.FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def now():
    return golden.found()


@pytest.mark.parametrize("part", WAS)
def test_it_is_byte_for_byte_what_it_was(part, now):
    assert now[part] == WAS[part]


def test_a_changed_letter_of_one_prompt_would_show():
    assert golden.digest([[{"role": "user", "content": "a"}]]) != golden.digest([[{"role": "user", "content": "b"}]])
