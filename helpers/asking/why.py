"""Why cells are not found among the recordings, and what is there."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.asking.budget import money
from helpers.asking.recordings import Recordings
from helpers.channels import sections
from helpers.channels.plan import CELL, add_keys, load_study, request_parts
from helpers.channels.stacks import STACKS, StackError, load_stacks
from helpers.reporting.params import ParameterError, check_profile, read_values
from helpers.study.files import DataError
from helpers.study.traces import STEPS

PARTS = ("state_hash", "view_hash", "task_hash", "settings", "identity", "wave")


def recorded_stacks(folder):
    """Names of the stacks that have recordings in a folder."""
    folder = Path(folder)
    return sorted({p.stem for pattern in ("*.parquet", "journal/*.sqlite") for p in folder.glob(pattern)})


def stats(folder, stacks):
    """Recordings, tokens and money per stack, wave and section.

    Parameters
    ----------
    folder : path of the recordings
    stacks : dict of name to Stack, for the prices

    Returns
    -------
    DataFrame: recordings, unread (without log-probabilities), prompt_tokens, cached_tokens, completion_tokens,
    cost (at list price; NaN where the stack is not in params/stacks.yml), currency. Calls that failed are not in it.
    """
    counts = ["prompt_tokens", "cached_tokens", "completion_tokens"]
    frames = []
    for name in recorded_stacks(folder):
        frame = Recordings(folder, name).frame(["wave", "section", "unread", *counts])
        frame[counts] = frame[counts].fillna(0).astype("int64")
        frame["section"] = frame["section"].fillna("")
        groups = frame.assign(recordings=1, unread=frame["unread"].notna(), stack=name).groupby(
            ["stack", "wave", "section"]
        )
        out = groups[["recordings", "unread", *counts]].sum()
        price = stacks[name].price if name in stacks else None
        out["cost"] = money(*(out[c] for c in counts), price) if price else np.nan
        out["currency"] = price["currency"] if price else ""
        frames.append(out)
    return pd.concat(frames) if frames else pd.DataFrame()


def section_plan(section, ids, stack, second_stack=None):
    """A section's plan by the name of its function in ``helpers.channels.sections``."""
    if section == "bridge":
        if second_stack is None:
            raise DataError("section bridge asks two stacks; name the other one with --second-stack.")
        return sections.bridge(ids, stack, second_stack)
    if section == "components":  # chosen by their gap from all of these
        return sections.components([(name, step) for name in ids for step in range(1, len(STEPS) + 1)], stack)
    if section not in SECTIONS:
        raise DataError(f"no section {section!r}; there are {', '.join(SECTIONS)}.")
    return sections.BY_NAME[section](ids, stack)


SECTIONS = (*sections.BY_NAME, "components")
_COMPARED = (*(name for name in CELL if name != "wave"), *PARTS)


def comparable(row, study, stack):
    """A plan row (a named tuple) as the fields that are compared with recordings."""
    cell = {name: getattr(row, name) for name in CELL}
    cell = {name: None if pd.isna(value) else value for name, value in cell.items()}
    return {**cell, **request_parts(row, study, stack)}


def nearest(wanted, recorded):
    """The recording that agrees with a wanted cell in most fields, and the fields in which it differs.

    Parameters
    ----------
    wanted : dict from :func:`comparable`
    recorded : DataFrame of recordings, sorted by key

    Returns
    -------
    (named row, list of field names); ties go to the same cell coordinates, then to the first key.
    """
    same = pd.DataFrame({n: recorded[n].eq(wanted[n]) | (recorded[n].isna() & (wanted[n] is None)) for n in _COMPARED})
    coordinates = [name for name in _COMPARED if name not in PARTS]
    score = same.sum(axis=1) + same[coordinates].all(axis=1) / 2
    best = score.idxmax()
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
    plan = add_keys(plan, study, stacks)
    out = []
    for name, part in plan.groupby("stack", sort=False):
        store = Recordings(folder, name)
        recorded = store.frame([*dict.fromkeys([*_COMPARED, "key", "unread"])])
        seen = {"keys": store.keys(), "unread": set(recorded["key"]), "failures": store.failures()}
        out += [(row, _reason(row, study, stacks[name], recorded, **seen)) for row in part.itertuples(index=False)]
    return out


def without_recording(plan, study, stacks, folder):
    """The rows of a plan that are not found among the recordings."""
    keys = set().union(*(Recordings(folder, name).keys() for name in plan["stack"].unique()))
    return plan[~add_keys(plan, study, stacks)["key"].isin(keys).to_numpy()]


def _reason(row, study, stack, recorded, *, keys, unread, failures):
    if pd.isna(row.key):
        return f"its {row.view} view is not frozen; make the views first."
    if row.key in keys:
        return "is recorded."
    if row.key in unread:
        return "was answered without log-probabilities; ask again."
    last = f" When it was last asked: {failures[row.key]}" if row.key in failures else ""
    if recorded.empty:
        return f"nothing is recorded for stack {stack.name}.{last}"
    wanted = comparable(row, study, stack)
    found, differing = nearest(wanted, recorded)
    if not differing:
        return f"every part agrees with recording {found['key'][:12]}, so the prompt templates have changed.{last}"
    texts = [difference(name, found[name], wanted[name]) for name in differing]
    return f"nearest recording {found['key'][:12]}: {'; '.join(texts)}.{last}"


def _parser():
    parser = argparse.ArgumentParser(prog="python -m helpers.asking.why", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    counted = actions.add_parser("stats", help="recordings, tokens and money per stack, wave and section")
    asked = actions.add_parser("why", help="why cells are not found")
    for each in (counted, asked):
        each.add_argument("--profile", default="embedded", help="a folder of params/; what is not named comes from it")
        each.add_argument("--folder", help="the recordings")
        each.add_argument("--stacks", default=STACKS)
    asked.add_argument("--section", default="global_replay", choices=SECTIONS)
    for name in ("stack", "second-stack", "tasks", "trajectories", "views"):
        asked.add_argument(f"--{name}")
    asked.add_argument("--trajectory", help="trajectory_id; all without it")
    asked.add_argument("--most", type=int, default=20, help="cells that are shown at most")
    for name in ("template", "view", "slice", "authority", "source-order", "readout"):
        asked.add_argument(f"--{name}")
    for name in ("state", "layout", "assessed", "wave"):
        asked.add_argument(f"--{name}", type=int)
    return parser


def _wanted_cells(options, study, stacks):
    """The plan rows that the command line describes."""
    for name in filter(None, (options.stack, options.second_stack)):
        if name not in stacks:
            raise StackError(f"unknown stack {name!r}; there are {', '.join(stacks)}.")
    ids = [options.trajectory] if options.trajectory else list(study.trajectories)
    if ids[0] not in study.trajectories:
        raise DataError(
            f"no trajectory {ids[0]!r} in {options.trajectories}; there are {', '.join(study.trajectories)}."
        )
    plan = section_plan(options.section, ids, options.stack, options.second_stack)
    if options.wave is not None:
        plan = plan.assign(wave=options.wave)
    for name in ("state", "template", "view", "slice", "authority", "source_order", "readout", "layout", "assessed"):
        value = getattr(options, name)
        plan = plan if value is None else plan[plan[name] == value]
    if plan.empty:
        raise DataError(
            f"section {options.section} plans no such cell; leave out a coordinate or name another section."
        )
    return plan.drop_duplicates()


def _print_why(options):
    stacks = load_stacks(options.stacks)
    views = options.views if options.views and Path(options.views).exists() else None
    study = load_study(options.tasks, options.trajectories, views)
    plan = _wanted_cells(options, study, stacks)
    missing = without_recording(plan, study, stacks, options.folder)
    print(f"{len(plan)} cells, {len(missing)} of them missing.")
    for row, text in why(missing.head(options.most), study, stacks, options.folder):
        channel = f"{row.template}/{row.view}, {row.readout}"
        cell = f"{row.trajectory_id} state {row.state}, {channel}, layout {row.layout}, wave {row.wave}"
        print(f"- {cell}: {text}")


def main(arguments=None):
    options = _parser().parse_args(arguments)
    try:
        _complete(options)
        if options.action == "why":
            _print_why(options)
        else:
            found = stats(options.folder, load_stacks(options.stacks))
            print(found.to_string() if len(found) else f"no recordings in {options.folder}.")
    except (DataError, StackError, ParameterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _complete(options):
    """What the command line does not name comes from the profile; a profile whose views are not written has none."""
    values = read_values(check_profile(options.profile) / "common.yml")
    defaults = {"folder": values["RECORDINGS"]}
    if options.action == "why":
        second = ("second_stack",) if options.section == "bridge" else ()
        named = ("stack", "tasks", "trajectories", "views", *second)
        defaults |= {name: values.get(name.upper()) for name in named}
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


if __name__ == "__main__":
    sys.exit(main())
