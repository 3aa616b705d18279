"""One step that a visitor typed in, as a study of its own."""

import numpy as np

from helpers.channels.plan import Study, short_hash
from helpers.channels.views import load_views
from helpers.study.files import DataError
from helpers.study.tasks import FALLBACK, K
from helpers.study.traces import Trajectory

KINDS = ("ungrounded-512", "source-only-512")
IDS = ("answer-a", "answer-b", "answer-c", FALLBACK)


def one_step(question, candidates, before, after, *, target, folder, generator):
    """A study of one trajectory with two states, that trajectory's id, and the file of its views.

    Parameters
    ----------
    question : str
    candidates : list of four different texts
    before, after : dicts, the states around the step; the question is added to both
    target : int, 1 to 4, the candidate that is right
    folder : path of the views that were written before; every step and generator has a file of its own
    generator : Stack that writes the views

    Returns
    -------
    study, trajectory_id, path; the id follows from what an evaluator can see, so a changed text is another step, and
    another target is the same step judged anew.

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
    name = f"tried-{short_hash([question, texts, before, after])}"
    task = {"task_id": name, "family": "tried", "question": question, "candidates": listed, "target": IDS[target - 1]}
    states = tuple({"question": question, **state} for state in (before, after))
    trajectory = Trajectory(name, name, states, ({"action": "try"},), None, None)
    path = folder / f"{name}-{short_hash(generator.identity)}.jsonl"
    views = load_views(path, [trajectory]) if path.exists() else {}
    return Study({name: task}, {name: trajectory}, views), name, path


def sign_verdict(gains):
    """Whether a step keeps its sign over channels, as half a sentence. A gain of exactly zero has no sign.

    Parameters
    ----------
    gains : Series by channel, nats; NaN where it could not be read
    """
    gone, up, down = (", ".join(gains.index[which]) for which in (gains.isna(), gains > 0, gains < 0))
    zero = f"; exactly zero: {', '.join(gains.index[gains == 0])}" if (gains == 0).any() else ""
    if gone:
        return f"{gone} could not be read (see the completeness table), so the question stays open"
    signs = np.unique(np.sign(gains[gains != 0]))
    if len(signs) == 2:
        return f"it does not keep its sign: {up} above zero, {down} below{zero}"
    if not len(signs):
        return "it moves nothing: the gain is exactly zero in every channel"
    says = "helps" if up else "harms"
    return f"it keeps its sign: every channel says that it {says}" if not zero else f"{up or down} say that it {says}{zero}"
