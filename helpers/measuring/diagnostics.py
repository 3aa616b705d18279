"""Step diagnostics of the ASV paper's first version: belief movement, surprise, damage, flags and lost cues.

Equation numbers are those of the first version. Arrays hold candidates on their last axis and layouts on the
axis before it; NaN means missing and spreads.
"""

import difflib
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.special import entr, rel_entr, softmax

from helpers.channels.prompts import with_aliases
from helpers.measuring.labels import NOT_RETURNED
from helpers.measuring.reducers import competitor_margin, target_margin
from helpers.study.files import DataError, read_jsonl
from helpers.study.projection import state_slice
from helpers.study.tasks import K, terms

_EPSILON = 1e-6  # smoothing of Equation 4
KEPT = 0.5  # share of a sentence's own words that must be found again for it to count as kept
CUE_LABELS = ("state damage", "compression loss", "neither")
_OWN_WORDS = 3  # fewest words of its own that make a sentence a cue


def beliefs(energies, scale=1.0):
    """Belief over candidates, softmax(energies / scale), from (..., K) nats; scale is the temperature probe's tau."""
    return softmax(np.asarray(energies, float) / scale, axis=-1)


def entropy_movement(before, after):
    """Mean over layouts of H(before) - H(after), in nats (Equation 2). Beliefs are (..., B, K)."""
    return (entr(before).sum(axis=-1) - entr(after).sum(axis=-1)).mean(axis=-1)


def surprise(before, after, epsilon=_EPSILON):
    """Kullback-Leibler divergence of the after belief from the before belief, in nats (Equation 4).

    Beliefs (..., B, K) are averaged over layouts, then mixed with the uniform belief, (1 - epsilon) p + epsilon / K:
    the paper does not print its smoothing, and its largest surprise is above what adding epsilon to each p can give.
    """
    p, q = ((1 - epsilon) * b.mean(axis=-2) + epsilon / b.shape[-1] for b in map(np.asarray, (after, before)))
    return rel_entr(p, q).sum(axis=-1)


def crossings(before, after):
    """Damage and repair: margins that leave the positive side, and that reach it; 0 or 1, NaN where missing."""
    before, after = np.asarray(before, float), np.asarray(after, float)
    gone = np.isnan(before + after)
    return tuple(np.where(gone, np.nan, x) for x in ((before > 0) & (after <= 0), (before <= 0) & (after > 0)))


def with_floor(cells, floor):
    """Cells with a floor score (nats; None leaves them missing) where an answered label was not returned.

    The second value is an (n,) array of int: for how many labels of each cell the floor stands in.
    """
    absent = np.isnan(cells.values) & (cells.reason == NOT_RETURNED)[:, None]
    values = cells.values if floor is None else np.where(absent, floor, cells.values)
    return replace(cells, values=values), absent.sum(axis=1)


_LABELS = re.compile(
    r"\b(?i:option|choice|label|answer|candidate)\s+[A-D]\b|\b(?i:first|second|third|fourth)\s+(?i:option|choice)\b"
    r"|\b(?i:option|choice|label|answer|candidate)[\"'*]*\s*[:=][\s\"'*]*[A-D]\b(?!\s+[a-z])"
    r"|(?<!\w)(?:\"[A-D]\"|'[A-D]'|\*{1,2}[A-D]\*{1,2}|\([A-D][).:])(?=[\s:,.])|^[\s>*•-]*[A-D][).:]\s",
    re.MULTILINE,
)
_GOLD = re.compile(
    r"\b(?:gold(?:en)?\s+(?:label|answer|candidate)|ground[ -]truth|answer\s+key|correct\s+(?:answer|option|candidate)"
    r"|reviewed\s+target|success\s+flag|final\s+score)\b",
    re.IGNORECASE,
)


def label_leak(text):
    """Whether a rationale names a physical option label."""
    return bool(_LABELS.search(text))


def gold_leak(text):
    """Whether a rationale speaks of a gold label, an answer key, a correct answer or a score."""
    return bool(_GOLD.search(text))


def _candidate_coverage(text, task=None):
    """Share of the candidates that a rationale names: as CANDIDATE_01, as it writes it (Candidate 1), by stored id."""
    text = text if task is None else with_aliases(text, task)
    return sum(bool(re.search(rf"candidate[ _-]?0?{i}(?!\d)", text, re.IGNORECASE)) for i in range(1, K + 1)) / K


def _texts(value):
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]


def _cue_spans(state_text, task):
    """Sentences of a projected state's evidence that say something of their own, as sets of words.

    A word is a sentence's own when neither question nor candidates hold it; with fewer than three it carries no cue.
    """
    shown = set(terms(" ".join([task["question"], *(c["text"] for c in task["candidates"])])))
    texts = _texts(json.loads(state_slice(state_text, "evidence")))
    sentences = (s for text in texts for s in re.split(r"(?<=[.!?;])\s+", text))
    own = [frozenset(terms(s)) - shown for s in sentences]
    return [words for words in dict.fromkeys(own) if len(words) >= _OWN_WORDS]


def kept(spans, text):
    """Share of cue spans of which at least half of the own words stand in a text; NaN without a span."""
    words = set(terms(text))
    return float(np.mean([len(span & words) >= KEPT * len(span) for span in spans])) if spans else np.nan


def cue_loss(before_text, after_text, rationale, task):
    """Where a transition's rationale loses the cue: a rule, not a judgement.

    ``state damage``: the after-state keeps less than half of the before-state's cue sentences.
    ``compression loss``: the after-state has cue sentences and its rationale keeps less than half of them.
    ``neither``: anything else, also where there is no evidence yet. Returns a dict: label, spans (cue sentences of the
    after-state), in_state, in_rationale (shares kept).
    """
    spans = _cue_spans(after_text, task)
    in_state, in_rationale = kept(_cue_spans(before_text, task), after_text), kept(spans, rationale)
    label = "state damage" if in_state < KEPT else "compression loss" if in_rationale < KEPT else "neither"
    return {"label": label, "spans": len(spans), "in_state": in_state, "in_rationale": in_rationale}


def step_table(ends, energies, study, scale=1.0):
    """Every diagnostic of every transition under one channel, a DataFrame indexed by (trajectory_id, step).

    Parameters
    ----------
    ends, energies : ``reducers.endpoint_energies`` of one channel and one wave; layout 0 comes first
    study : Study, for the reviewed targets
    scale : float, temperature scale of the beliefs

    Notes
    -----
    Columns, in nats: ``gain_b1``, ``gain_b4`` (Equation 3; the fixed layout, and the mean over layouts), ``rest_b4``
    (against all others together), ``before``, ``after`` (margins of the fixed layout), ``entropy``, ``surprise`` (fixed
    layout), ``entropy_b4``, ``surprise_b4`` (all); ``damage``, ``repair``; ``top_before``, ``top_after`` (top belief).
    """
    names, states = ends["trajectory_id"].unique(), np.sort(ends["state"].unique())
    place = pd.Series(np.arange(len(ends)), index=pd.MultiIndex.from_frame(ends[["trajectory_id", "state"]]))
    steps = pd.MultiIndex.from_product([names, states[1:]], names=["trajectory_id", "step"])
    cube = np.concatenate([energies, np.full((1, *energies.shape[1:]), np.nan)])  # last: an endpoint not planned
    of, number = (steps.get_level_values(level) for level in ("trajectory_id", "step"))
    pairs = (pd.MultiIndex.from_arrays([of, at]) for at in (number - 1, number))
    sides = [cube[place.reindex(pair).fillna(-1).astype(int)] for pair in pairs]
    target = np.repeat(np.array([study.target(name) for name in of])[:, None], cube.shape[1], axis=1)
    (near_before, near), (rest_before, rest) = (
        [margin(side, target) for side in sides] for margin in (competitor_margin, target_margin)
    )
    p, q = (beliefs(side, scale) for side in sides)
    columns = {
        "gain_b1": near[:, 0] - near_before[:, 0],
        "gain_b4": (near - near_before).mean(axis=1),
        "rest_b4": (rest - rest_before).mean(axis=1),
        "before": near_before[:, 0],
        "after": near[:, 0],
        "entropy": entropy_movement(p[:, :1], q[:, :1]),
        "surprise": surprise(p[:, :1], q[:, :1]),
        "entropy_b4": entropy_movement(p, q),
        "surprise_b4": surprise(p, q),
        **dict(zip(("damage", "repair"), crossings(near_before[:, 0], near[:, 0]), strict=True)),
        "top_before": p[:, 0].max(axis=-1),
        "top_after": q[:, 0].max(axis=-1),
    }
    return pd.DataFrame(columns, index=steps)


def flags(study, kind):
    """Flags of every frozen rationale of a kind by (trajectory_id, state): label_leak, gold_leak (bool), coverage."""
    rows = {}
    for name, texts in study.states.items():
        for state in range(len(texts)):
            if (text := study.view(name, state, kind)) is not None:
                rows[name, state] = label_leak(text), gold_leak(text), _candidate_coverage(text, study.task(name))
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=["label_leak", "gold_leak", "coverage"])
    frame.index = pd.MultiIndex.from_tuples(rows or [], names=["trajectory_id", "state"])
    return frame


def state_difference(before_text, after_text):
    """Lines of a projected state that a step removed (``- ``) and added (``+ ``), in order."""
    lines = difflib.ndiff(before_text.splitlines(), after_text.splitlines())
    return [line for line in lines if line[:2] in ("- ", "+ ")]


def check_cues(labels, study, kind="rationale-128"):
    """The rule beside the hand (trajectory_id, step, rule, hand) for labelled transitions with a frozen rationale."""
    rows = []
    for name, step, hand in labels.itertuples(index=False):
        if rationale := name in study.trajectories and study.view(name, step, kind):
            states = study.states[name]
            found = cue_loss(states[step - 1], states[step], rationale, study.task(name))
            rows.append((name, step, found["label"], hand))
    return pd.DataFrame(rows, columns=["trajectory_id", "step", "rule", "hand"])


def read_cue_labels(path):
    """Hand labels of lost cues as a DataFrame (trajectory_id, step, label); empty without a file.

    DataError names a row that lacks a field or holds an unknown label.
    """
    rows = read_jsonl(path, missing_ok=True)
    for number, row in enumerate(rows, start=1):
        if not {"trajectory_id", "step"} <= set(row) or row.get("label") not in CUE_LABELS:
            raise DataError(f"{path}, line {number}: needs trajectory_id, step and a label of {', '.join(CUE_LABELS)}.")
    return pd.DataFrame(rows, columns=["trajectory_id", "step", "label"])
