"""Cells: a plan's rows with what their recordings say, read once and then passed around."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from helpers.measuring import labels as said
from helpers.study.files import DataError

_NOT_RECORDED = "not recorded"
_NOT_FROZEN = "view not frozen"


@dataclass(frozen=True, eq=False)
class Cells:
    """Planned cells and what came back for them, row by row.

    Attributes
    ----------
    plan : DataFrame with ``key`` and the cell columns, index 0 … n-1
    table : Arrow table of recordings in which they were looked up
    values : (n, 4) array, nats; joint rows: labels A … D, binary rows: Yes, No, NaN, NaN; NaN where missing
    reason : (n,) array of object, why a cell is incomplete, else None
    mass : (n,) array, probability of the labels together
    """

    plan: pd.DataFrame
    table: pa.Table
    values: np.ndarray
    reason: np.ndarray
    mass: np.ndarray

    @property
    def answered(self):
        """(n,) array of bool: which cells are recorded, whatever the answer holds."""
        return ~np.isin(self.reason.astype(str), [_NOT_RECORDED, _NOT_FROZEN])

    def where(self, mask):
        """The cells at which a boolean array is true; nothing is read again."""
        mask = np.asarray(mask, bool)
        plan = self.plan[mask].reset_index(drop=True)
        return Cells(plan, self.table, self.values[mask], self.reason[mask], self.mass[mask])


def lookup(plan, table):
    """Row of each planned cell in a recordings table by its ``key``, -1 where it is not recorded: (n,) array of int."""
    position = pd.Series(np.arange(table.num_rows), index=table["key"].to_pylist())
    return position.reindex(plan["key"]).fillna(-1).astype(int).to_numpy()


def read_cells(plan, table):
    """The :class:`Cells` of a plan with ``key`` and of an Arrow table of recordings."""
    plan = plan.reset_index(drop=True)
    found = lookup(plan, table)
    values, mass = np.full((len(plan), len(said.JOINT_LABELS)), np.nan), np.full(len(plan), np.nan)
    reason = np.full(len(plan), None, dtype=object)
    reason[found < 0] = _NOT_RECORDED
    reason[(found < 0) & plan["key"].isna().to_numpy()] = _NOT_FROZEN
    binary = (plan["readout"] == "binary").to_numpy()
    for labels, kind in ((said.JOINT_LABELS, ~binary), (said.BINARY_LABELS, binary)):
        rows = np.flatnonzero(kind & (found >= 0))
        if len(rows):
            read, reason[rows], mass[rows] = _read(table.take(found[rows]).combine_chunks(), labels)
            values[rows[:, None], np.arange(len(labels))] = read
    return Cells(plan, table, values, reason, mass)


def _read(part, labels):
    """Label log-probabilities of recordings, why one is missing, and the labels' mass."""
    tokens, logprobs = (part[column].combine_chunks() for column in ("tokens", "logprobs"))
    values, sentinel, mass = said.label_matrix(tokens, logprobs, labels)
    why = np.where(sentinel.any(axis=1), said.SENTINEL, said.NOT_RETURNED).astype(object)
    why[np.isnan(mass)] = said.NO_LOGPROBS
    why[~np.isnan(values).any(axis=1)] = None
    if "unread" in part.column_names:
        other = pc.fill_null(pc.starts_with(part["unread"], said.ANOTHER_MODEL), False)
        why[other.to_numpy(zero_copy_only=False)] = said.ANOTHER_MODEL
    return values, why, mass


def channel_names(plan):
    """A short, unique name of each planned cell's channel, as an array."""
    fields = ["template", "view", "authority", "source_order", "readout", "stack", "view_state", "slice"]
    shown = [f for f in fields if plan[f].nunique(dropna=False) > 1 or f in ("template", "view")]
    parts = plan[shown].astype("string")
    if "view_state" in shown:
        held = plan["view_state"].astype("Int64").astype("string")
        parts["view_state"] = ("view of state " + held).fillna("view of its own state")
    return np.array([" · ".join(row) for row in parts.fillna("–").itertuples(index=False)], dtype=object)


def completeness(cells, may_be_empty=False):
    """Planned, answered and complete cells per channel, and why the others are missing, as a DataFrame.

    DataError where nothing at all was answered, unless ``may_be_empty``: the section has nothing to go on with.
    """
    plan, reason, answered = cells.plan, cells.reason, cells.answered
    if not (answered.any() or may_be_empty):
        why = ", ".join(f"{count:,} {what}" for what, count in pd.Series(reason).value_counts().items())
        raise DataError(
            f"nothing of this section is recorded for {' and '.join(plan['stack'].unique())}: "
            f'of {len(plan):,} cells {why}; ACQUIRE = "missing" asks for them.'
        )
    wanted = np.where(plan["readout"] == "binary", len(said.BINARY_LABELS), len(said.JOINT_LABELS))
    columns = {
        "planned": 1,
        "answered": answered,
        "complete": pd.isna(reason),
        "labels": np.where(answered, wanted, 0),
        "returned": np.where(answered, np.isfinite(cells.values).sum(axis=1), 0),
        "mass": cells.mass,
    }
    channel = channel_names(plan)
    groups = pd.DataFrame(columns).groupby(channel, sort=False)
    out = groups[["planned", "answered", "complete"]].sum()
    with np.errstate(invalid="ignore"):
        out["label coverage"] = groups["returned"].sum() / groups["labels"].sum()
    out["label mass (mean)"] = groups["mass"].mean()
    out["label mass (least)"] = groups["mass"].min()
    why = {name: part.value_counts() for name, part in pd.Series(reason).groupby(channel)}
    out["missing because"] = ["; ".join(f"{w}: {n}" for w, n in why[name].items()) or "–" for name in out.index]
    return out.rename_axis("channel")
