"""Why cells are not found among the recordings, and what is there."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.asking.budget import money
from helpers.asking.recordings import PARTS, Recordings
from helpers.channels import sections
from helpers.channels.plan import CELL, add_keys, request_parts
from helpers.study.files import DataError

COORDINATES = tuple(name for name in CELL if name != "wave")  # that make two cells the same but for their wave
_COMPARED = (*COORDINATES, *PARTS, "wave")


def _recorded_stacks(folder):
    """Names of the stacks that have recordings in a folder."""
    folder = Path(folder)
    return sorted({p.stem for pattern in ("*.parquet", "journal/*.sqlite") for p in folder.glob(pattern)})


def stats(folder, stacks):
    """Recordings, tokens and money per stack, wave and section.

    A DataFrame: recordings, unread (without log-probabilities), prompt_tokens, cached_tokens, completion_tokens,
    cost (at the list price of ``stacks``; NaN where the stack is not in it), currency. Failed calls are not in it.
    """
    counts = ["prompt_tokens", "cached_tokens", "completion_tokens"]
    frames = []
    for name in _recorded_stacks(folder):
        frame = Recordings(folder, name).frame(["wave", "section", "unread", *counts])
        frame[counts] = frame[counts].fillna(0).astype("int64")
        frame["section"] = frame["section"].fillna("")
        frame = frame.assign(recordings=1, unread=frame["unread"].notna(), stack=name)
        out = frame.groupby(["stack", "wave", "section"])[["recordings", "unread", *counts]].sum()
        price = stacks[name].price if name in stacks else None
        out["cost"] = money(*(out[c] for c in counts), price) if price else np.nan
        out["currency"] = price["currency"] if price else ""
        frames.append(out)
    return pd.concat(frames) if frames else pd.DataFrame()


def _comparable(row, study, stack):
    """A plan row (a named tuple) as the fields that are compared with recordings."""
    cell = {name: getattr(row, name) for name in CELL}
    return {n: None if pd.isna(value) else value for n, value in cell.items()} | request_parts(row, study, stack)


def nearest(wanted, recorded):
    """The recording that agrees with a wanted cell in most fields, and the fields in which it differs.

    ``wanted`` is from :func:`_comparable`, ``recorded`` a DataFrame sorted by key. Returns a row of it and a list of
    names; ties go to the same cell coordinates, then to the first key.
    """
    same = pd.DataFrame({n: recorded[n].eq(wanted[n]) | (recorded[n].isna() & (wanted[n] is None)) for n in _COMPARED})
    best = (same.sum(axis=1) + same[list(COORDINATES)].all(axis=1) / 2).idxmax()
    return recorded.loc[best], [name for name in _COMPARED if not same.loc[best, name]]


def difference(name, recorded, wanted):
    """One differing field as text; settings and identity are compared entry by entry."""
    if name in ("settings", "identity"):
        old, new = json.loads(recorded), json.loads(wanted)
        # as JSON writes them: 1 and 1.0 are one number to Python, and two questions to a key
        entries = [k for k in sorted(old.keys() | new.keys()) if json.dumps(old.get(k)) != json.dumps(new.get(k))]
        return "; ".join(f"{name}.{k} is {new.get(k)!r}, recorded with {old.get(k)!r}" for k in entries)
    recorded = recorded.item() if hasattr(recorded, "item") else recorded
    return f"{name} is {wanted!r}, recorded with {recorded!r}"


def why(plan, study, stacks, folder):
    """Why cells of a plan are not found: one sentence a cell, as ``[(plan row, sentence)]``."""
    plan = plan if "key" in plan else add_keys(plan, study, stacks)
    out = []
    for name, part in plan.groupby("stack", sort=False):
        store = Recordings(folder, name)
        recorded, failures = store.frame(["key", "unread", *_COMPARED]), store.failures()
        readable = dict(zip(recorded["key"], recorded["unread"].isna(), strict=True))
        for row in part.itertuples(index=False):
            out.append((row, _reason(row, study, stacks[name], recorded, readable=readable, failures=failures)))
    return out


def _without_recording(plan, study, stacks, folder):
    """The rows of a plan that are not found among the recordings, with their keys."""
    keys = set().union(*(Recordings(folder, name).keys() for name in plan["stack"].unique()))
    plan = add_keys(plan, study, stacks)
    return plan[~plan["key"].isin(keys)]


def _reason(row, study, stack, recorded, *, readable, failures):
    if pd.isna(row.key):
        return f"its {row.view} view is not frozen; make the views first."
    if row.key in readable:
        return "is recorded." if readable[row.key] else "was answered without log-probabilities; ask again."
    last = f" When it was last asked: {failures[row.key]}" if row.key in failures else ""
    if recorded.empty:
        return f"nothing is recorded for stack {stack.name}.{last}"
    wanted = _comparable(row, study, stack)
    found, differing = nearest(wanted, recorded)
    if not differing:
        return f"every part agrees with recording {found['key'][:12]}, so the prompt templates have changed.{last}"
    texts = [difference(name, found[name], wanted[name]) for name in differing]
    return f"nearest recording {found['key'][:12]}: {'; '.join(texts)}.{last}"


def _wanted_cells(setting, section, trajectory=None, wanted=None):
    """The rows of a section's plan that some coordinates describe; DataError where there are none.

    Parameters
    ----------
    setting : record.Setting
    section : str, a name of the registry
    trajectory : trajectory_id; all without it
    wanted : dict of column and value; a ``wave`` is the plan's whatever it is
    """
    ids, wanted = [trajectory] if trajectory else list(setting.study.trajectories), dict(wanted or {})
    if ids[0] not in setting.study.trajectories:
        raise DataError(f"no trajectory {ids[0]!r}; there are {', '.join(setting.study.trajectories)}.")
    row = sections.section(section)
    if row.plan is None or not row.possible(setting.evaluators):
        raise DataError(f"section {section} plans no cell with this profile's evaluators.")
    plan = row.plan(ids, setting.evaluators, [wanted.pop("wave")] if "wave" in wanted else row.waves)
    for name, value in wanted.items():
        plan = plan[plan[name] == value]
    if plan.empty:
        raise DataError(f"section {section} plans no such cell; leave out a coordinate or name another section.")
    return plan.drop_duplicates()


def print_why(setting, section, trajectory=None, wanted=None, most=20):
    """Print how many of some cells are missing, and why the first of them are."""
    plan = _wanted_cells(setting, section, trajectory, wanted)
    missing = _without_recording(plan, setting.study, setting.stacks, setting.recordings)
    print(f"{len(plan)} cells, {len(missing)} of them missing.")
    for row, text in why(missing.head(most), setting.study, setting.stacks, setting.recordings):
        channel = f"{row.template}/{row.view}, {row.readout}"
        print(f"- {row.trajectory_id} state {row.state}, {channel}, layout {row.layout}, wave {row.wave}: {text}")
