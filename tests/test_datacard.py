"""The data card's counts are those of the data."""

from helpers.channels.sections import SECTIONS
from tests import datacard


def test_the_counted_part_of_the_card_is_current():
    text = datacard.CARD.read_text(encoding="utf-8")
    assert datacard.updated(text, datacard.counted()) == text, "run `python -m tests.datacard`"


def test_only_the_counted_part_is_replaced():
    text = f"before\n{datacard.BEGIN}\nold\n{datacard.END}\nafter\n"
    assert datacard.updated(text, ["- new"]) == f"before\n{datacard.BEGIN}\n- new\n{datacard.END}\nafter\n"


def test_every_section_that_asks_an_evaluator_is_counted_once():
    lines = datacard.recorded(30)
    names = [line.split(":")[0].removeprefix("- ") for line in lines]
    assert names == sorted(names) == sorted({s.notebook for s in SECTIONS if s.plan})
