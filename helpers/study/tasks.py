"""Tasks and library: read, validate, and keep the texts our own.

A task is one question with three concrete candidates and one ``none-of-the-above`` candidate
whose text says that the evidence is insufficient. The library is what the actor may retrieve.
"""

import re
from collections import Counter

from helpers.study.files import DataError, read_jsonl

FAMILIES = ("intervention", "risk", "mechanism", "diagnostic", "insufficient-evidence")
FALLBACK = "none-of-the-above"
K = 4

_LEAKS = re.compile(
    r"\b(correct answer|right answer|answer key|gold (?:label|answer)|expert label|reviewed target"
    r"|none-of-the-above|option [A-D]\b|CANDIDATE_\d+|answer-[a-z]\b)",
    re.IGNORECASE,
)
_INSUFFICIENT = re.compile(r"\b(insufficient|not enough|inadequate|too little|cannot be)\b", re.I)


def _well_formed(task):
    """Whether question and candidates have the types that the checks below rely on."""
    candidates = task["candidates"]
    return (
        all(isinstance(task[name], str) for name in ("task_id", "family", "question", "target"))
        and isinstance(candidates, list)
        and all(isinstance(c, dict) and isinstance(c.get("candidate_id"), str) for c in candidates)
    )


def _leaks(question, texts, target):
    """Where a label or the target shows in a task's own text; ``texts`` maps candidate id to text."""
    leaks = []
    for where, text in [("question", question), *texts.items()]:
        found = _LEAKS.search(text)
        if found:
            leaks.append(f"{where} leaks a label or target ({found.group(0)!r}); reword it.")
    statement = texts.get(target, "").rstrip(".").lower()
    if len(statement.split()) > 4 and statement in question.lower():
        leaks.append("the question states the target's text word for word; reword one of them.")
    return leaks


def task_problems(task):
    """Every reason why one task is refused, as a list of sentences (empty when it is valid)."""
    name = task.get("task_id") or "(no task_id)"
    problems = []

    def say(text):
        problems.append(f"task {name}: {text}")

    for field in ("task_id", "family", "question", "candidates", "target"):
        if not task.get(field):
            say(f"{field} is missing or empty.")
    if problems or not _well_formed(task):
        return problems or [f"task {name}: task_id, family, question and target are text, candidates a list of {{candidate_id, text}} objects."]
    if task["family"] not in FAMILIES:
        say(f"family {task['family']!r} is unknown; use one of {', '.join(FAMILIES)}.")
    candidates = task["candidates"]
    ids = [c.get("candidate_id") for c in candidates]
    if len(candidates) != K:
        say(f"{len(candidates)} candidates; exactly {K} are needed.")
    if len(set(ids)) != len(ids):
        say(f"duplicate candidate ids in {ids}.")
    if ids.count(FALLBACK) != 1:
        say(f"{ids.count(FALLBACK)} candidates have the id {FALLBACK!r}; exactly one is needed.")
    if task["target"] not in ids:
        say(f"target {task['target']!r} is no candidate; the candidates are {ids}.")
    texts = [str(c.get("text") or "").strip() for c in candidates]
    for candidate_id, text in zip(ids, texts, strict=True):
        if not text:
            say(f"candidate {candidate_id} has an empty text.")
        elif candidate_id == FALLBACK and not _INSUFFICIENT.search(text):
            say(f"the text of {FALLBACK} must say that the evidence is insufficient: {text!r}.")
    if len({t.lower() for t in texts}) != len(texts):
        say("two candidates have the same text.")
    by_id = dict(zip(ids, texts, strict=True))
    problems += [f"task {name}: {leak}" for leak in _leaks(task["question"], by_id, task["target"])]
    return problems


def validate_tasks(tasks):
    """Return the tasks unchanged, or raise DataError with every problem found."""
    problems = [p for task in tasks for p in task_problems(task)]
    counts = Counter(str(task.get("task_id")) for task in tasks)
    problems += [f"task {i}: the task_id appears {n} times." for i, n in counts.items() if n > 1]
    if problems:
        raise DataError("\n".join(problems))
    return tasks


def validate_library(library):
    """Return the library unchanged, or raise DataError: unique ``doc_id``, no empty summary."""
    problems = []
    for entry in library:
        missing = [f for f in ("doc_id", "year", "design", "summary") if not entry.get(f)]
        if missing:
            problems.append(f"library entry {entry.get('doc_id', '(no doc_id)')}: missing {', '.join(missing)}.")
    counts = Counter(str(entry.get("doc_id")) for entry in library)
    problems += [f"library entry {i}: the doc_id appears {n} times." for i, n in counts.items() if n > 1]
    if problems:
        raise DataError("\n".join(problems))
    return library


def load_tasks(path):
    """Validated tasks of a JSONL file, in file order; DataError names the file."""
    return _of_file(path, validate_tasks)


def load_library(path):
    """Validated library entries of a JSONL file, in file order; DataError names the file."""
    return _of_file(path, validate_library)


def _of_file(path, validate):
    rows = read_jsonl(path)
    if not rows:
        raise DataError(f"{path}: holds no row.")
    try:
        return validate(rows)
    except DataError as error:
        raise DataError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def own_document(task, library):
    """Id of the library's document about a task's question; None where the library holds none.

    ``library`` is a collection of document ids. A task without a known source has none.
    """
    document = f"pmid:{(task.get('source') or {}).get('pmid')}"
    return document if document in library else None
