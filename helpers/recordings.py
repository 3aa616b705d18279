"""Recordings: every answer an evaluator gave, kept as received, keyed by what was asked.

New answers go to a journal (SQLite, one commit before an answer counts); a frozen study ships one
compressed Parquet file per stack. A reader sees both. Failures are never stored as answers.

``python -m helpers.recordings stats`` counts what is there;
``python -m helpers.recordings why --trajectory … --state …`` says why cells are missing.
"""

import argparse
import contextlib
import json
import sqlite3
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from helpers import sections
from helpers.budget import money
from helpers.params import ParameterError, check_profile, read_values
from helpers.plan import CELL, add_keys, load_study, request_parts
from helpers.stacks import STACKS, StackError, load_stacks
from helpers.tasks import DataError, turn
from helpers.traces import STEPS

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("section", pa.string()),
        ("trajectory_id", pa.string()),
        ("state", pa.int16()),
        ("template", pa.string()),
        ("view", pa.string()),
        ("authority", pa.string()),
        ("source_order", pa.string()),
        ("readout", pa.string()),
        ("stack", pa.string()),
        ("view_state", pa.int16()),
        ("slice", pa.string()),
        ("layout", pa.int8()),
        ("assessed", pa.int8()),
        ("wave", pa.int16()),
        ("state_hash", pa.string()),
        ("view_hash", pa.string()),
        ("task_hash", pa.string()),
        ("settings", pa.string()),
        ("identity", pa.string()),
        ("tokens", pa.list_(pa.string())),
        ("logprobs", pa.list_(pa.float64())),
        ("unread", pa.string()),
        ("sampled", pa.string()),
        ("returned_model", pa.string()),
        ("fingerprint", pa.string()),
        ("response_id", pa.string()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("asked_at", pa.float64()),
        ("seconds", pa.float64()),
    ]
)
# Columns that the first recordings lack, with the value that all of these had.
LATER = {"slice": "full"}
# True for a journal row that was answered without log-probabilities: inside a JSON text a quote is escaped,
# so this sequence can only be the row's own field.
UNREAD = '(instr(row, \'"unread": "\') > 0)'
WAITING = "another run is asking {}; waiting for it, then only what is still missing is asked."
PARTS = ("state_hash", "view_hash", "task_hash", "settings", "identity", "wave")


def as_table(rows):
    """Recording rows (dicts) as an Arrow table of the declared schema."""
    return pa.Table.from_pylist(
        [{name: row.get(name, LATER.get(name)) for name in SCHEMA.names} for row in rows], schema=SCHEMA
    )


class Recordings:
    """The recordings of one stack: a Parquet file that ships and a journal that grows.

    Parameters
    ----------
    folder : path
        ``<folder>/<stack>.parquet`` is read; ``<folder>/journal/<stack>.sqlite`` is read and written.
    busy_s : float
        How long a write waits while another program holds the journal, in seconds.
    """

    def __init__(self, folder, stack, busy_s=60.0):
        self.stack = stack
        self.busy_s = busy_s
        self.parquet = Path(folder) / f"{stack}.parquet"
        self.journal = Path(folder) / "journal" / f"{stack}.sqlite"

    # -- reading ----------------------------------------------------------------------------------

    def table(self, columns=None):
        """All recordings as an Arrow table sorted by key, one row a key.

        The first answer with log-probabilities counts; one without stands until the question is asked again.
        """
        wanted = list(columns or SCHEMA.names)
        shipped = self._shipped(list(dict.fromkeys([*wanted, "key", "unread"])))
        rows = self._journal_rows()
        if rows:
            readable = shipped.filter(pc.is_null(shipped["unread"]))
            known = set(readable["key"].to_pylist())
            fresh = as_table([r for r in rows if r["key"] not in known])
            kept = shipped.filter(pc.invert(pc.is_in(shipped["key"], fresh["key"])))
            shipped = pa.concat_tables([kept, fresh.select(shipped.column_names)])
        return shipped.sort_by("key").select(wanted)

    def keys(self):
        """Keys of the questions that need not be asked again, as a set: recorded with log-probabilities."""
        shipped = self._shipped(["key", "unread"])
        known = set(shipped.filter(pc.is_null(shipped["unread"]))["key"].to_pylist())
        if self.journal.exists():
            with self._open() as database:
                known.update(key for (key,) in database.execute(f"SELECT key FROM answers WHERE NOT {UNREAD}"))
        return known

    def frame(self, columns=None):
        """All recordings as a DataFrame, sorted by key."""
        return self.table(columns).to_pandas()

    def _shipped(self, columns):
        if not self.parquet.exists():
            return SCHEMA.empty_table().select(columns)
        try:
            present = set(pq.read_schema(self.parquet).names)
            later = [name for name in columns if name in LATER and name not in present]
            table = pq.read_table(self.parquet, columns=[name for name in columns if name not in later])
            for name in later:
                table = table.append_column(SCHEMA.field(name), pa.repeat(LATER[name], len(table)))
            return table.select(columns)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise DataError(
                f"{self.parquet}: not a readable recordings file ({str(error).splitlines()[0][:120]}). Restore it from "
                "the repository; answers in the journal are untouched."
            ) from None

    def _journal_rows(self):
        if not self.journal.exists():
            return []
        with self._open() as database:
            return [json.loads(text) for (text,) in database.execute("SELECT row FROM answers ORDER BY key")]

    # -- writing ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open(self):
        try:
            self.journal.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.journal, timeout=self.busy_s, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"{self.journal}: cannot be opened ({error}); make the folder writable.") from None
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID"
            )
            database.execute("CREATE TABLE IF NOT EXISTS failures (key TEXT PRIMARY KEY, reason TEXT, at REAL)")
            yield database
        except sqlite3.OperationalError as error:
            raise DataError(
                f"{self.journal}: {error}. Free disk space, end the program that holds the file, or fix permissions, "
                "and run again; nothing recorded is lost, only what is missing is asked."
            ) from None
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self.journal}: damaged ({error}). Move it away together with its -wal file and run again; "
                "what was exported to the Parquet file is untouched."
            ) from None
        finally:
            database.close()

    @contextlib.contextmanager
    def writer(self):
        """A function ``write(rows)`` that returns once the rows are on disk.

        Earlier answers win, except that an answer with log-probabilities replaces one without.
        """
        with self._open() as database:

            def write(rows):
                database.execute("BEGIN IMMEDIATE")
                database.executemany(
                    f"INSERT INTO answers AS old VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET row = excluded.row "
                    f"WHERE {UNREAD.replace('row', 'old.row')} AND NOT {UNREAD.replace('row', 'excluded.row')}",
                    [(row["key"], json.dumps(row, ensure_ascii=False)) for row in rows],
                )
                database.executemany("DELETE FROM failures WHERE key = ?", [(row["key"],) for row in rows])
                database.execute("COMMIT")

            yield write

    def note_failures(self, failures):
        """Remember why cells are missing: ``{key: reason}``. Failures are not answers."""
        if not failures:
            return
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", [(k, r, time.time()) for k, r in failures.items()]
            )
            database.execute("COMMIT")

    def failures(self):
        """Why cells failed when they were last asked: ``{key: reason}``; a later answer removes the entry."""
        if not self.journal.exists():
            return {}
        with self._open() as database:
            return dict(database.execute("SELECT key, reason FROM failures"))

    def my_turn(self, say=print):
        """One run at a time asks a stack, so that two runs never pay for the same question; see :func:`tasks.turn`."""
        return turn(self.journal.with_suffix(".lock"), WAITING.format(self.stack), say)

    def export(self):
        """Write everything recorded to the Parquet file: sorted by key, same content, same bytes."""
        # A file that was read names its list items otherwise, and arrives in pieces; both show in the bytes.
        table = self.table().cast(SCHEMA).combine_chunks()
        partial = self.parquet.with_suffix(".partial")
        try:
            self.parquet.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(
                table.replace_schema_metadata(None), partial, compression="zstd", compression_level=15,
                row_group_size=1 << 20, write_statistics=False,
            )  # fmt: skip
            partial.replace(self.parquet)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise DataError(
                f"{self.parquet}: cannot be written ({error.strerror or error}); free disk space or make the folder "
                "writable and export again. The answers are safe in the journal."
            ) from None
        return table.num_rows


def lookup(plan, table):
    """Row of each planned cell in a recordings table, -1 where it is not recorded.

    Parameters
    ----------
    plan : DataFrame with a ``key`` column
    table : Arrow table of recordings

    Returns
    -------
    (n,) array of int
    """
    position = pd.Series(np.arange(table.num_rows), index=table["key"].to_pylist())
    return position.reindex(plan["key"]).fillna(-1).astype(int).to_numpy()


# -- counts ----------------------------------------------------------------------------------------


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


# -- explanations ----------------------------------------------------------------------------------


def section_plan(section, ids, stack, second_stack=None):
    """A section's plan by the name of its function in ``helpers.sections``."""
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


# -- command line ----------------------------------------------------------------------------------


def _parser():
    parser = argparse.ArgumentParser(prog="python -m helpers.recordings", description=__doc__.split("\n\n")[0])
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
