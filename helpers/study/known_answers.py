"""Known-answer states: what an evaluator should say about them is known, so they tell whether it can answer at all.

One trajectory a task; its states are doses of evidence, each built by rule from the task and its article alone:

============  ==========================================================================
``none``      the question alone
``noise``     the question and bookkeeping: a status, a checked plan
``other``     the article of another task of the family
``support``   the task's own article
``oracle``    one sentence that states the target's finding as reported
``counter``   the same sentence with the finding of a wrong concrete candidate
============  ==========================================================================

States have the fields of a traced workflow's (``question``, ``plan``, ``artifacts``, ``evidence``, …), so that prompts
look like those of the study. A dose that cannot be built is left out: ``support`` without an article, ``other`` where no
other task of the family has one, ``counter`` without a wrong concrete candidate.
"""

import hashlib
import re

from helpers.study.tasks import FALLBACK, own_document
from helpers.study.traces import Trajectory

DOSES = ("none", "noise", "other", "support", "oracle", "counter")
PREFIX = "known-"
REPORTED = "The study reports: {}"
UNNAMED = "article-1"  # id of an article that no library names; a task's own id may tell its family


def known_answers(tasks, library=None, *, texts=None):
    """Trajectories of known-answer states, one for each task whose target is a concrete candidate.

    Parameters
    ----------
    tasks : list of dict
        Tasks in the file's order; any number of candidates. One whose target is none-of-the-above has no article that
        decides it: nothing is built for it, but its article, if it has one, may be another task's ``other``.
    library : list of dict, optional
        Documents (``doc_id, year, design, summary``); a task's own is found by its source.
    texts : dict, optional
        ``{task_id: text}``: evidence texts, for tasks without a document in the library.

    Returns
    -------
    list of Trajectory
        ``known-<task_id>``; the state x_k is named by :func:`doses`. Final score and success are None.
    """
    articles = _articles(tasks, library or [], texts or {})
    decided = [task for task in tasks if task["target"] != FALLBACK]
    return [_trajectory(task, articles.get(task["task_id"]), _other(task, tasks, articles)) for task in decided]


def known_id(task_id):
    """Trajectory id of a task's known-answer states."""
    return f"{PREFIX}{task_id}"


def doses(trajectory):
    """Names of a known-answer trajectory's states, x0 first."""
    return (DOSES[0], *(step["action"] for step in trajectory.steps))


def wrong_candidate(task):
    """Id of the concrete candidate that ``counter`` states: chosen by the hash of the task's id; None without one."""
    wrong = sorted(c["candidate_id"] for c in task["candidates"] if c["candidate_id"] not in (task["target"], FALLBACK))
    number = int(hashlib.sha256(task["task_id"].encode()).hexdigest(), 16)
    return wrong[number % len(wrong)] if wrong else None


def _articles(tasks, library, texts):
    """``{task_id: document}`` of the tasks that have an article."""
    by_id = {entry["doc_id"]: entry for entry in library}
    found = {}
    for task in tasks:
        name = task["task_id"]
        document = own_document(task, by_id)
        if name in texts:
            found[name] = {"doc_id": UNNAMED, "summary": texts[name]}
        elif document:
            found[name] = by_id[document]
    return found


def _other(task, tasks, articles):
    """Article of the next task of the family that has one, in the file's order and round; None without one."""
    names = [t["task_id"] for t in tasks if t["family"] == task["family"]]
    place = names.index(task["task_id"])
    return next((articles[n] for n in names[place + 1 :] + names[:place] if n in articles), None)


def _trajectory(task, article, other):
    states = {"none": _state(task), "noise": _noise(task)}
    if other:
        states["other"] = _state(task, other)
    if article:
        states["support"] = _state(task, article)
    about = article or {"doc_id": UNNAMED}
    texts = {c["candidate_id"]: c["text"] for c in task["candidates"]}
    for dose, candidate in (("oracle", task["target"]), ("counter", wrong_candidate(task))):
        if candidate:
            states[dose] = _state(task, about | {"summary": REPORTED.format(texts[candidate])})
    steps = tuple({"action": dose, "mode": "deterministic"} for dose in states if dose != DOSES[0])
    return Trajectory(known_id(task["task_id"]), task["task_id"], tuple(states.values()), steps, None, None)


def _state(task, article=None):
    """A state with the question and, given an article, that article as an artifact and as evidence."""
    if article is None:
        return {"question": task["question"], "artifacts": [], "evidence": [], "answer": ""}
    source = {name: article[name] for name in ("doc_id", "year", "design") if name in article}
    quoted = {"doc_id": article["doc_id"], "quote": article["summary"]}
    return {"question": task["question"], "artifacts": [source], "evidence": [quoted], "answer": ""}


def _noise(task):
    """A state that has gone through planning and found nothing: bookkeeping beside the question."""
    query = " ".join(re.findall(r"[\w-]{4,}", task["question"])[:8])
    plan = {"query": query, "checked": True}
    return {
        "question": task["question"],
        "plan": plan,
        "artifacts": [],
        "evidence": [],
        "answer": "",
        "status": "planned",
    }
