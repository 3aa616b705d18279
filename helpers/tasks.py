"""Tasks and library: read, validate, and keep the texts our own.

A task is one question with three concrete candidates and one ``none-of-the-above`` candidate
whose text says that the evidence is insufficient. The library is what the actor may retrieve.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import re
from collections import Counter
from pathlib import Path

FAMILIES = ("intervention", "risk", "mechanism", "diagnostic", "insufficient-evidence")
FALLBACK = "none-of-the-above"
K = 4
LOOK_AGAIN_S = 0.2  # between two looks at a lock that another run holds

_LEAKS = re.compile(
    r"\b(correct answer|right answer|answer key|gold (?:label|answer)|expert label|reviewed target"
    r"|none-of-the-above|option [A-D]\b|CANDIDATE_\d+|answer-[a-z]\b)",
    re.IGNORECASE,
)
_INSUFFICIENT = re.compile(r"\b(insufficient|not enough|inadequate|too little|cannot be)\b", re.I)


class DataError(ValueError):
    """A frozen input is unusable. The message names the file, the line or id, and what to do."""


_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # an escape that may leave half a character behind


def _encodable(row):
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_jsonl(path, *, missing_ok=False):
    """Rows of a JSON Lines file as a list of dicts; DataError names the broken line.

    A file that is not there is an error too, or holds no rows where it ``missing_ok``.
    """
    path = Path(path)
    if missing_ok and not path.exists():
        return []
    if not path.exists():
        raise DataError(f"{path}: no such file. Check the path in params/, or restore it from the repository.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # a byte order mark is no part of the text
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}). Save the file as UTF-8.") from None
    rows = []
    # Not splitlines(): that also cuts at U+2028 and U+0085, which may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: not valid JSON ({error.msg} at column {error.colno}). "
                "Repair or remove that line."
            ) from None
        except (ValueError, RecursionError):
            raise DataError(f"{path}, line {number}: holds a number too long or a nesting too deep to be read.") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}.")
        if _HALF_CHARACTER.search(line) and not _encodable(row):
            raise DataError(f"{path}, line {number}: holds half of a surrogate pair, a character that was cut; repair it.")
        rows.append(row)
    return rows


def write_jsonl(path, rows):
    """Write dicts as JSON Lines, UTF-8, one row a line, replacing the file in one step."""
    path = Path(path)
    partial = path.with_suffix(path.suffix + ".partial")
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


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


def _taken(lock):
    """Try to take an advisory lock; it goes back when the file is closed or the process ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.asynccontextmanager
async def turn(lock, waiting, say=print):
    """Hold a lock file while the block runs, so that one run at a time writes; ``waiting`` is said when another does.

    Waiting leaves the event loop free, for another run in it may hold the turn.
    """
    lock = Path(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")  # closed below
    except OSError as error:
        raise DataError(f"{lock.parent}: cannot be written ({error.strerror}); make it writable.") from None
    with file:
        if not _taken(file):
            say(waiting)
            while not _taken(file):
                await asyncio.sleep(LOOK_AGAIN_S)
        yield


def append_jsonl(path, row):
    """Append one JSON line, on disk when this returns; a last line without its line end gets one first.

    Where the disk takes only a part of it, the file is left as it was and the OSError is raised.
    """
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
    with Path(path).open("ab+", buffering=0) as out:
        size = out.seek(0, os.SEEK_END)
        if size:
            out.seek(-1, os.SEEK_END)
            line = line if out.read(1) == b"\n" else b"\n" + line
        try:
            while line:
                line = line[out.write(line) :]
            os.fsync(out.fileno())
        except OSError:
            os.ftruncate(out.fileno(), size)
            raise


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
