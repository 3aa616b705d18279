"""The HTML report needs no network, shows formulas and describes its figures."""

import re

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.__main__ import main
from helpers.reporting import site
from helpers.reporting.params import ParameterError

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture()
def notebook():
    """A report notebook with a formula, a figure, a finding and text that looks like mark-up."""
    figure = new_output("display_data", data={"image/png": PIXEL, "text/plain": 'gains & "losses" <b>'})
    sentence = new_output("display_data", data={"text/markdown": "**Finding.** It rose by 3 < 4."})
    cells = [
        new_markdown_cell("# 1. A title\n\n**Question.** Does it rise?\n\nIt costs $5 or $6. Gain: $G^\\rho = 2$.\n\n$$\\Omega = G_1 - G_0$$"),
        new_code_cell("show()", outputs=[figure]),
        new_code_cell("say()", outputs=[sentence], metadata={"tags": ["finding"]}),
    ]
    return new_notebook(cells=cells)


def test_a_page_loads_nothing_from_elsewhere(notebook):
    page = site.page(notebook, "A title")
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=[\"']https?:", page) and "@import" not in page


def test_formulas_become_mathml_and_prices_stay(notebook):
    text = site.mathml(notebook.cells[0].source)
    assert text.count("<math") == 2 and "$$" not in text
    assert "It costs $5 or $6." in text


def test_a_figure_carries_its_alternative_text_escaped(notebook):
    page = site.page(notebook, "A title")
    image = BeautifulSoup(page, "html.parser").find("img")
    assert image["alt"] == 'gains & "losses" <b>' and image["src"].startswith("data:image/png;base64,")


def test_title_question_and_findings_are_read_from_the_notebook(notebook):
    assert site.heading(notebook) == ("1. A title", "Does it rise?")
    assert site.findings(notebook) == ["It rose by 3 < 4."]


def test_the_index_escapes_what_it_quotes():
    page = site.index([("01_x", "A <title>", "Why is *this* < that?", ["3 < 4"])], "embedded")
    assert "A &lt;title&gt;" in page and "3 &lt; 4" in page and "href='01_x.html'" in page
    assert "Why is <em>this</em> &lt; that?" in page


def test_the_source_notebook_is_left_as_it_was(notebook):
    before = nbformat.writes(notebook)
    site.page(notebook, "A title")
    assert nbformat.writes(notebook) == before


def test_a_report_that_was_never_made_has_no_pages(tmp_path):
    (tmp_path / "01_first.failed.ipynb").touch()
    with pytest.raises(ParameterError, match="holds no executed notebook; run `make reproduce PROFILE=smoke` first"):
        site.build(tmp_path, "smoke")


def test_a_misspelt_profile_is_refused_with_the_list(capsys):
    assert main(["report", "--profile", "embeded"]) == 2
    assert "Did you mean 'embedded'? There are: embedded, " in capsys.readouterr().err
