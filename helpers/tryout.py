"""One step that a visitor typed in, as a study of its own."""

from helpers.plan import Study, short_hash
from helpers.tasks import FALLBACK, DataError, K
from helpers.traces import Trajectory
from helpers.views import load_views

KINDS = ("ungrounded-512", "source-only-512")
IDS = ("answer-a", "answer-b", "answer-c", FALLBACK)


def one_step(question, candidates, target, before, after, folder):
    """A study of one trajectory with two states, and that trajectory's id.

    Parameters
    ----------
    question : str
    candidates : list of four different texts
    target : int, 1 to 4, the candidate that is right
    before, after : dicts, the states around the step; the question is added to both
    folder : path; ``<trajectory id>.jsonl`` holds the views that were written for this step before

    Returns
    -------
    study, trajectory_id; the id follows from everything that was typed in, so a changed text is another step.

    Raises
    ------
    DataError that says which of the values does not fit.
    """
    texts = [text.strip() if isinstance(text, str) else "" for text in candidates]
    if len(texts) != K or len(set(texts)) != K or not all(texts):
        raise DataError(f"CANDIDATES: {K} different answers are needed, none of them empty.")
    if not isinstance(question, str) or not question.strip():
        raise DataError("QUESTION: is empty.")
    if target not in range(1, K + 1):
        raise DataError(f"TARGET: {target!r}; say which candidate is right, 1 to {K}.")
    for name, state in (("BEFORE", before), ("AFTER", after)):
        if not isinstance(state, dict):
            raise DataError(f'{name}: a state is a dict of fields, say {{"evidence": ["…"]}}.')
    listed = [{"candidate_id": i, "text": text} for i, text in zip(IDS, texts, strict=True)]
    name = f"tried-{short_hash([question, texts, target, before, after])}"
    task = {"task_id": name, "family": "tried", "question": question, "candidates": listed, "target": IDS[target - 1]}
    states = tuple({"question": question, **state} for state in (before, after))
    trajectory = Trajectory(name, name, states, ({"action": "try"},), None, None)
    path = folder / f"{name}.jsonl"
    views = load_views(path, [trajectory]) if path.exists() else {}
    return Study({name: task}, {name: trajectory}, views), name
