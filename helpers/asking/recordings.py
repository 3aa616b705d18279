"""Recordings: every answer an evaluator gave, kept as received, keyed by what was asked.

New answers go to a journal (SQLite, one commit before an answer counts); a frozen study ships one
compressed Parquet file per stack. A reader sees both. Failures are never stored as answers.
"""

import contextlib
import json
import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from helpers.asking.turns import turn
from helpers.study.files import DataError

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
        ("wording", pa.string()),
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
LATER = {"slice": "full", "wording": "paper"}
# True for a journal row that was answered without log-probabilities: inside a JSON text a quote is escaped,
# so this sequence can only be the row's own field.
UNREAD = '(instr(row, \'"unread": "\') > 0)'
WAITING = "another run is asking {}; waiting for it, then only what is still missing is asked."


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
