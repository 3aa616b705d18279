"""What views claim before anything was retrieved, and how well the parser reads it.

Hand labels (``data/support_labels.jsonl``) hold, for every view of the first trajectories, the concrete candidates that
the view's support field supports: ``{"trajectory_id", "state", "kind", "supported": ["CANDIDATE_01", …]}``. A later
``round`` than 1 says that the label was given after the parser had been changed by what the earlier ones showed.
"""

import itertools

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from helpers.channels.prompts import alias, with_aliases
from helpers.channels.views import view_id
from helpers.measuring.claims import supported_candidates
from helpers.study.files import DataError, read_jsonl
from helpers.study.tasks import FALLBACK, K


def fallback_position(task):
    """Position of the none-of-the-above candidate of a task."""
    return [c["candidate_id"] for c in task["candidates"]].index(FALLBACK)


def parsed(study, name, text, by_text=True):
    """Positions of the concrete candidates that a view of a trajectory supports; None where it cannot be read.

    A candidate is named by its alias, by its stored id and, with ``by_text``, by its own text, word for word.
    """
    task = study.task(name)
    texts = [candidate["text"] for candidate in task["candidates"]] if by_text else ()
    return supported_candidates(with_aliases(text, task), fallback_position(task), texts=texts)


def before_claims(study, kinds, state):
    """Supported concrete candidates (count; NaN: unreadable) per frozen view of a state that holds no artifact yet."""
    rows = []
    for name, kind in itertools.product(study.trajectories, kinds):
        text = study.views.get(view_id(name, state, kind))
        if text is not None and not study.trajectories[name].states[state].get("artifacts"):
            found = parsed(study, name, text)
            rows.append((name, kind, np.nan if found is None else len(found)))
    return pd.DataFrame(rows, columns=["trajectory_id", "kind", "supported"])


def hand_labels(path):
    """Hand labels of support fields; an empty list where no file is there, DataError for a broken row."""
    rows = read_jsonl(path, missing_ok=True)
    allowed = {alias(i) for i in range(K)}
    for number, row in enumerate(rows, start=1):
        if not {"trajectory_id", "state", "kind", "supported"} <= set(row) or not set(row["supported"]) <= allowed:
            raise DataError(f"{path}, line {number}: a label needs trajectory_id, state, kind and supported aliases.")
    return rows


def validate(labels, study, by_text=True):
    """Precision, recall and agreement of the parser against hand labels, per contract and together.

    One unit is one concrete candidate of one labelled view; intervals are Wilson's, 95%. Returns a DataFrame, one row a
    contract and measure: contract, measure, hits, of, share, low, high, views.
    """
    units = []
    for row in labels:
        name, view = row["trajectory_id"], (row["trajectory_id"], row["state"], row["kind"])
        text = study.views.get(view_id(*view))
        if text is None or name not in study.trajectories:
            continue
        found = parsed(study, name, text, by_text) or set()
        for position in set(range(K)) - {fallback_position(study.task(name))}:
            units.append((*view, position in found, alias(position) in row["supported"]))
    frame = pd.DataFrame(units, columns=["trajectory_id", "state", "kind", "parser", "hand"])
    out = []
    for contract, part in [*frame.groupby("kind", sort=True), ("both", frame)]:
        both = (part["parser"] & part["hand"]).sum()
        measures = {
            "precision": (both, part["parser"].sum()),
            "recall": (both, part["hand"].sum()),
            "agreement": ((part["parser"] == part["hand"]).sum(), len(part)),
        }
        views = part.groupby(["trajectory_id", "state", "kind"]).ngroups
        for measure, (hits, of) in measures.items():
            share = (hits / of, *proportion_confint(hits, of, method="wilson")) if of else (np.nan,) * 3
            out.append((contract, measure, int(hits), int(of), *share, views))
    return pd.DataFrame(out, columns=["contract", "measure", "hits", "of", "share", "low", "high", "views"])
