"""Tasks and a library straight from a PubMedQA file that the user points to.

:func:`build` writes ``tasks.jsonl`` (the first N questions by a fixed hash) and
``library.jsonl`` (every abstract of the file, without its conclusion). The file's own texts are used, so the
result belongs in an output folder and is not part of the project.
"""

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import RootModel

from helpers.study.checks import Row, Text, problems
from helpers.study.files import DataError, write_jsonl
from helpers.study.tasks import FALLBACK, validate_library, validate_tasks

# The expert decision, as the four candidates that every question gets.
CANDIDATES = (
    ("answer-a", "yes", "Yes, the study's findings support it."),
    ("answer-b", "no", "No, the study's findings speak against it."),
    ("answer-c", "maybe", "The study's findings are mixed and point both ways."),
    (FALLBACK, None, "The available evidence is insufficient to tell."),
)


class _Record(Row):
    QUESTION: Text
    CONTEXTS: list[str]
    final_decision: Literal[*(decision for _, decision, _ in CANDIDATES if decision)]


def _read_pubmedqa(path):
    """Records of a PubMedQA file as ``{pmid: record}``; DataError when it is something else."""
    try:
        records = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        said = "no such file. Give the path of pqal_dev.json or ori_pqal.json as PUBMEDQA=…."
        raise DataError(f"{path}: {said}") from None
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({str(error)[:80]}); download it again.") from None
    if found := problems(RootModel[dict[str, _Record]], records):
        raise DataError(f"{path}: not a labelled PubMedQA file: {' '.join(found[:3])}")
    return records


def _make_task(pmid, record):
    """One question as a task; the expert decision is the target."""
    return {
        "task_id": f"pubmedqa-{pmid}", "family": "intervention",
        "question": " ".join(record["QUESTION"].split()),
        "candidates": [{"candidate_id": i, "text": text} for i, _, text in CANDIDATES],
        "target": next(i for i, decision, _ in CANDIDATES if decision == record["final_decision"]),
        "source": {"pmid": pmid, "label": record["final_decision"], "year": _year(record)},
    }  # fmt: skip


def _make_document(pmid, record):
    """One abstract as a library entry; PubMedQA keeps the conclusion apart, so it is not in it."""
    text = " ".join(" ".join(record["CONTEXTS"]).split())
    return {"doc_id": f"pmid:{pmid}", "year": _year(record) or "not stated", "design": "abstract", "summary": text}


def _year(record):
    year = str(record.get("YEAR") or "")
    return int(year) if year.isdigit() else None


def build(path, count, folder):
    """Write tasks and library of the first ``count`` questions by hash; returns the tasks."""
    records = _read_pubmedqa(path)
    if not 1 <= count <= len(records):
        raise DataError(f"N={count}: the file has {len(records)} questions; choose a number from 1 to {len(records)}.")
    ordered = sorted(records, key=lambda pmid: hashlib.sha256(pmid.encode()).hexdigest())
    tasks = validate_tasks([_make_task(p, records[p]) for p in ordered[:count]])
    library = validate_library([_make_document(p, r) for p, r in sorted(records.items()) if r["CONTEXTS"]])
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_jsonl(Path(folder) / "tasks.jsonl", tasks)
    write_jsonl(Path(folder) / "library.jsonl", library)
    return tasks
