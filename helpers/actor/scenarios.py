"""Regression scenarios: known disturbances with a scripted model, kept as data, and what the workflow does on each.

A row of ``data/scenarios.jsonl`` holds ``scenario``, ``why``, ``question``, ``library``, ``answers`` (what the model
says at each step; null is a failing call), ``own_document`` and ``expect``, the behaviour that must not change.
"""

from helpers.actor.judges import failures, violations
from helpers.actor.retrieval import LibraryRetriever
from helpers.actor.workflow import Workflow, audit_answer
from helpers.study.files import DataError, read_jsonl
from helpers.study.traces import parse_trajectory

_NAMES = (
    "stale memory", "flaky tool", "adversarial distractor", "ambiguous request", "invalid schema", "premature halt",
)  # fmt: skip
_SETTING = {"relevance": 1.0}
# The beginning of each step's prompt tells a scripted model which step is asking.
_PROMPTS = {
    "classify": "Classify the biomedical question",
    "plan": "Write a PubMed search query",
    "synthesize": "Answer the",
    "revise": "Rewrite the answer",
    "verify": "Is the answer supported",
}


def load_scenarios(path):
    """Scenarios of a file; DataError names a row that lacks a field or an unknown scenario."""
    rows = read_jsonl(path)
    needed = {"scenario", "why", "question", "library", "answers", "own_document", "expect"}
    for number, row in enumerate(rows, start=1):
        if needed - set(row) or row["scenario"] not in _NAMES:
            fields = ", ".join(sorted(needed))
            raise DataError(f"{path}, line {number}: a scenario of {', '.join(_NAMES)} with {fields}.")
    return rows


def scripted(answers):
    """A model that says what a scenario tells it to; null fails like a lost connection."""

    def ask(prompt, max_tokens):
        step = next(name for name, start in _PROMPTS.items() if prompt.startswith(start))
        if answers.get(step) is None:
            raise RuntimeError("the scripted model fails here")
        return answers[step]

    return ask


def behaviour(scenario):
    """What the workflow does in a scenario, as the fields that ``expect`` may name.

    Acquired are document ids, fallbacks steps, issues a count, violations rules and failures kinds.
    """
    task, library = {"task_id": "scenario", "question": scenario["question"]}, scenario["library"]
    row = Workflow(LibraryRetriever(library), scripted(scenario["answers"]), **_SETTING).run(task)
    trajectory, documents = parse_trajectory(row), {d["doc_id"]: d for d in library}
    final = trajectory.states[-1]
    score = lambda state: audit_answer(state, documents, 0.5)["final_score"]
    return {
        "status": final["status"],
        "success": row["success"],
        "acquired": [a["doc_id"] for a in final["artifacts"]],
        "cited": final.get("citations", []),
        "fallbacks": [s["action"] for s in row["steps"] if s["mode"] == "fallback"],
        "issues": len(final.get("issues") or []),
        "violations": [v.rule for v in violations(trajectory)],
        "failures": [kind for _, kind, _ in failures(trajectory, scenario["own_document"], score)],
        "answer": final["answer"],
    }
