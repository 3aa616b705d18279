"""The report as web pages that need no network: one HTML page a notebook and an index."""

import html
import re
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html

from helpers.reporting.params import ParameterError

# A dollar opens a formula before a non-space and closes it after one and not before a digit, so prices stay prices.
_MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$(?=\S)([^$\n]+?)(?<=\S)\$(?!\d)", re.DOTALL)
_STYLE = """
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 17px/1.5 system-ui, sans-serif; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; } p { margin: .4rem 0; }
a { color: #0072B2; } .note { color: #555; font-size: .95rem; } img { max-width: 100%; }
"""

def mathml(markdown):
    """Markdown whose TeX formulas are MathML, which browsers draw without any script."""

    def replace(match):
        display = match.group(1) is not None
        return convert((match.group(1) or match.group(2)).strip(), display="block" if display else "inline")

    return _MATH.sub(replace, markdown)


def _readable_copy(notebook):
    """A copy of an executed notebook with MathML formulas and figures that carry their alternative text."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            cell.source = mathml(cell.source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                alt = html.escape("".join(data.get("text/plain", "figure")), quote=True)
                image = "".join(data["image/png"].split())
                output.data = {"text/html": f'<img alt="{alt}" src="data:image/png;base64,{image}">'}
    return copy


def page(notebook, title):
    """One notebook as a self-contained HTML page; nothing is loaded from elsewhere."""
    exporter = HTMLExporter(template_name="lab", require_js_url="", mathjax_url="", jquery_url="", mermaid_js_url="")
    body, _ = exporter.from_notebook_node(_readable_copy(notebook), resources={"metadata": {"name": title}})
    return re.sub(r"<script\b.*?</script>", "", body, flags=re.DOTALL)  # formulas are MathML: no script is needed


def heading(notebook):
    """Title and question of a notebook: its first heading and the sentence after **Question.**"""
    text = notebook.cells[0].source
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    question = re.search(r"\*\*Question\.\*\* (.+)", text)
    return (title.group(1) if title else "Notebook"), (question.group(1) if question else "")


def findings(notebook):
    """The computed sentences of an executed notebook, as Markdown."""
    found = []
    for cell in notebook.cells:
        if "finding" in cell.metadata.get("tags", []):
            for output in cell.get("outputs", []):
                text = "".join(output.get("data", {}).get("text/markdown", ""))
                found += [text.removeprefix("**Finding.** ")] if text else []
    return found


def index(entries, profile):
    """The index page: question, finding and link of each notebook."""
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>ASV lab report: {html.escape(profile)}</title>",
        f"<style>{_STYLE}</style><h1>Agent Step Value: lab report</h1>",
        "<p>Does a step reward keep its sign when only the way of asking changes? Start with the overview; each further page is "
        "one experiment. Sentences and numbers below were computed by the notebooks, and figures marked as published are the "
        "ASV paper's, from other evaluators.</p>",
        f"<p class='note'>Profile: {html.escape(profile)}. Research artefacts from public literature, not for clinical use.</p>",
    ]
    for name, title, question, sentences in entries:
        parts.append(f"<h2><a href='{name}.html'>{html.escape(title)}</a></h2>")
        parts.append(markdown2html(html.escape(question, quote=False)))
        parts += [f"<div class='note'>{markdown2html(html.escape(s, quote=False))}</div>" for s in sentences]
    return "\n".join([*parts, "</html>", ""])


def build(folder, profile):
    """Write every page of an output folder; returns the names of the notebooks."""
    folder = Path(folder)
    sources = sorted(p for p in folder.glob("*.ipynb") if not p.stem.endswith((".partial", ".failed")))
    if not sources:
        raise ParameterError(f"{folder} holds no executed notebook; run `make reproduce PROFILE={profile}` first.")
    entries = []
    for path in sources:
        notebook = nbformat.read(path, as_version=4)
        title, question = heading(notebook)
        path.with_suffix(".html").write_text(page(notebook, title), encoding="utf-8")
        entries.append((path.stem, title, question, findings(notebook)))
    (folder / "index.html").write_text(index(entries, profile), encoding="utf-8")
    return [name for name, *_ in entries]
