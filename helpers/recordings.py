"""Recordings: every answer an evaluator gave, kept as received, keyed by what was asked.

New answers go to a journal (SQLite, one commit before an answer counts); a frozen study ships one
compressed Parquet file per stack. A reader sees both. Failures are never stored as answers.

``python -m helpers.recordings stats`` counts what is there;
``python -m helpers.recordings why NOTEBOOK …`` says why cells are missing.
"""

import contextlib
import fcntl
import json
import sqlite3
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from helpers.tasks import DataError

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
PARTS = ("state_hash", "view_hash", "task_hash", "settings", "identity", "wave")


def as_table(rows):
    """Recording rows (dicts) as an Arrow table of the declared schema."""
    return pa.Table.from_pylist([{name: row.get(name) for name in SCHEMA.names} for row in rows], schema=SCHEMA)


class Recordings:
    """The recordings of one stack: a Parquet file that ships and a journal that grows.

    Parameters
    ----------
    folder : path
        ``<folder>/<stack>.parquet`` is read; ``<folder>/journal/<stack>.sqlite`` is read and written.
    """

    def __init__(self, folder, stack):
        self.stack = stack
        self.parquet = Path(folder) / f"{stack}.parquet"
        self.journal = Path(folder) / "journal" / f"{stack}.sqlite"

    # -- reading ----------------------------------------------------------------------------------

    def table(self, columns=None):
        """All recordings as an Arrow table sorted by key, one row a key (the first answer counts)."""
        shipped = self._shipped(columns)
        rows = self._journal_rows()
        if rows:
            known = set(shipped["key"].to_pylist())
            fresh = as_table([r for r in rows if r["key"] not in known])
            shipped = pa.concat_tables([shipped, fresh.select(shipped.column_names)])
        return shipped.sort_by("key")

    def keys(self):
        """Keys of everything recorded, as a set."""
        return set(self.table(["key"])["key"].to_pylist())

    def frame(self, columns=None):
        """All recordings as a DataFrame, sorted by key."""
        return self.table(columns).to_pandas()

    def _shipped(self, columns):
        if not self.parquet.exists():
            table = SCHEMA.empty_table()
            return table.select(columns) if columns else table
        try:
            return pq.read_table(self.parquet, columns=columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"{self.parquet}: not a readable Parquet file ({str(error).splitlines()[0][:120]}). Restore it from "
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
            database = sqlite3.connect(self.journal, timeout=60, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.OperationalError) as error:
            raise DataError(f"{self.journal}: cannot be opened ({error}); make the folder writable.") from None
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID")
            database.execute("CREATE TABLE IF NOT EXISTS failures (key TEXT PRIMARY KEY, reason TEXT, at REAL)")
            yield database
        except sqlite3.OperationalError as error:
            raise DataError(f"{self.journal}: {error}. Free disk space or fix permissions; nothing recorded is lost.") from None
        finally:
            database.close()

    @contextlib.contextmanager
    def writer(self):
        """A function ``write(rows)`` that returns once the rows are on disk; earlier answers win."""
        with self._open() as database:

            def write(rows):
                database.execute("BEGIN IMMEDIATE")
                database.executemany(
                    "INSERT OR IGNORE INTO answers VALUES (?, ?)",
                    [(row["key"], json.dumps(row, ensure_ascii=False)) for row in rows],
                )
                database.execute("COMMIT")

            yield write

    def note_failures(self, failures):
        """Remember why cells are missing: ``{key: reason}``. Failures are not answers."""
        if not failures:
            return
        with self._open() as database:
            database.executemany(
                "INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", [(k, r, time.time()) for k, r in failures.items()]
            )

    def failures(self):
        """Why cells failed when they were last asked: ``{key: reason}``."""
        if not self.journal.exists():
            return {}
        with self._open() as database:
            return dict(database.execute("SELECT key, reason FROM failures"))

    @contextlib.contextmanager
    def turn(self, say=print):
        """One run at a time asks a stack, so that two runs never pay for the same question."""
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        with open(self.journal.with_suffix(".lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another run is asking {self.stack}; waiting for it, then only what is still missing is asked.")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def export(self):
        """Write everything recorded to the Parquet file: sorted by key, same content, same bytes."""
        table = self.table()
        self.parquet.parent.mkdir(parents=True, exist_ok=True)
        partial = self.parquet.with_suffix(".partial")
        pq.write_table(
            table.replace_schema_metadata(None), partial, compression="zstd", compression_level=15,
            row_group_size=1 << 20, write_statistics=False,
        )  # fmt: skip
        partial.replace(self.parquet)
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
