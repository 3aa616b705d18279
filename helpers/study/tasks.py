"""Tasks and library: what is asked, what the actor may retrieve, and what is refused of either.

A task is one question with three concrete candidates and one ``none-of-the-above`` candidate whose text says that the
evidence is insufficient. Both stay dicts, as they were read.
"""

import re
from functools import partial
from typing import Literal

from pydantic import field_validator, model_validator

from helpers.study.checks import Row, Text, load, sound

_FAMILIES = ("intervention", "risk", "mechanism", "diagnostic", "insufficient-evidence")
FALLBACK = "none-of-the-above"
K = 4

_LEAKS = re.compile(
    r"\b(correct answer|right answer|answer key|gold (?:label|answer)|expert label|reviewed target"
    r"|none-of-the-above|option [A-D]\b|CANDIDATE_\d+|answer-[a-z]\b)",
    re.IGNORECASE,
)
_INSUFFICIENT = re.compile(r"\b(insufficient|not enough|inadequate|too little|cannot be)\b", re.I)


class _Candidate(Row):
    candidate_id: Text
    text: Text


class _Task(Row):
    task_id: Text
    family: Literal[*_FAMILIES]
    question: Text
    candidates: list[_Candidate]
    target: Text
    source: dict | None = None

    @model_validator(mode="after")
    def _together(self):
        ids = [c.candidate_id for c in self.candidates]
        fallbacks = ids.count(FALLBACK)
        texts = {c.candidate_id: c.text.strip() for c in self.candidates}
        fallback, target = texts.get(FALLBACK, "insufficient"), texts.get(self.target, "").rstrip(".").lower()
        checks = [
            (len(ids) == K, f"{len(ids)} candidates; exactly {K} are needed."),
            (len(set(ids)) == len(ids), f"duplicate candidate ids in {ids}."),
            (fallbacks == 1, f"{fallbacks} candidates have the id {FALLBACK!r}; exactly one is needed."),
            (self.target in ids, f"target {self.target!r} is no candidate; the candidates are {ids}."),
            (_INSUFFICIENT.search(fallback),
             f"the text of {FALLBACK} must say that the evidence is insufficient: {fallback!r}."),
            (len({t.lower() for t in texts.values()}) == len(texts), "two candidates have the same text."),
            (len(target.split()) <= 4 or target not in self.question.lower(),
             "the question states the target's text word for word; reword one of them."),
        ]  # fmt: skip
        for where, text in [("question", self.question), *texts.items()]:
            leak = _LEAKS.search(text)
            checks.append((not leak, f"{where} leaks a label or target ({leak and leak[0]!r}); reword it."))
        if wrong := [sentence for holds, sentence in checks if not holds]:
            raise ValueError("\n".join(wrong))
        return self


class _Entry(Row):
    doc_id: Text
    year: object
    design: Text
    summary: Text

    @field_validator("year")
    @classmethod
    def _said(cls, year):
        if not (year and isinstance(year, (int, str))):
            raise ValueError("is missing or empty." if not year else f"is {year!r:.60}; expected a number or text.")
        return year


validate_tasks = partial(sound, model=_Task, noun="task", key="task_id")
validate_library = partial(sound, model=_Entry, noun="library entry", key="doc_id")
load_tasks = partial(load, check=validate_tasks)
load_library = partial(load, check=validate_library)


def own_document(task, library):
    """Id of the library's document about a task's question; None where the library, a collection of ids, holds none."""
    document = f"pmid:{(task.get('source') or {}).get('pmid')}"
    return document if document in library else None


_STOP = frozenset(
    "a an and are as at be by can did do does for from had has have how in into is it its of on or than that the their "
    "there this those to was were what when whether which who will with without after before between during".split()
)


def terms(text):
    """Content words of a text, lower case, without stop words and plural s."""
    words = re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", text.lower())
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in words if w not in _STOP]
