"""Recordings: every answer an evaluator gave, kept as received, keyed by what was asked.

New answers go to a journal (SQLite, one commit before an answer counts); a frozen study ships one
compressed Parquet file per stack. A reader sees both. Failures are never stored as answers.
"""

import contextlib
import json
import sqlite3
import time
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from helpers.asking.turns import turn
from helpers.channels.channels import Channel
from helpers.channels.plan import CELL
from helpers.study.files import DataError

# Every column that is neither text nor a field of the channel.
TYPES = {
    "state": pa.int16(), "layout": pa.int8(), "assessed": pa.int8(), "wave": pa.int16(),
    "tokens": pa.list_(pa.string()), "logprobs": pa.list_(pa.float64()), "prompt_tokens": pa.int32(),
    "cached_tokens": pa.int32(), "completion_tokens": pa.int32(), "asked_at": pa.float64(), "seconds": pa.float64(),
}  # fmt: skip
PARTS = ("state_hash", "view_hash", "task_hash", "settings", "identity")  # of a request; see plan.request_parts
_ANSWER = ("tokens", "logprobs", "unread", "sampled", "returned_model", "fingerprint", "response_id", "finish_reason",
          "prompt_tokens", "cached_tokens", "completion_tokens", "asked_at", "seconds")  # fmt: skip
READ = ("key", "tokens", "logprobs", "unread")  # what the reducers read
# True for a journal row that was answered without log-probabilities: inside a JSON text a quote is escaped,
# so this sequence can only be the row's own field.
_UNREAD = '(instr(row, \'"unread": "\') > 0)'
_TABLES = (
    "answers (key TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID",
    "failures (key TEXT PRIMARY KEY, reason TEXT, at REAL)",
)
_WAITING = "another run is asking {}; waiting for it, then only what is still missing is asked."


def _channel_types(channel=Channel):
    """The Arrow type of each field of the channel, by its annotation."""
    kinds = {str: pa.string(), int: pa.int16(), float: pa.float64(), bool: pa.bool_()}
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(channel).items()}
    hints = {name: [kind if isinstance(kind, type) else type(kind) for kind in hint] for name, hint in hints.items()}
    return {name: next(kinds[kind] for kind in hint if kind in kinds) for name, hint in hints.items()}


_TYPES = _channel_types() | TYPES
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in ("key", "section", *CELL, *PARTS, *_ANSWER)])
# What recordings from before a field of the channel was added had in it.
_LATER = {field.name: field.default for field in fields(Channel) if field.default is not MISSING}


def _as_table(rows):
    """Recording rows (dicts) as an Arrow table of the declared schema."""
    rows = [{name: row.get(name, _LATER.get(name)) for name in SCHEMA.names} for row in rows]
    return pa.Table.from_pylist(rows, SCHEMA)


class Recordings:
    """The recordings of one stack: a Parquet file that ships and a journal that grows.

    What was read is kept for as long as both files stay as they are, and a column is read once it is asked for.

    Parameters
    ----------
    folder : path of ``<stack>.parquet`` and ``journal/<stack>.sqlite``
    busy_s : float, how long a write waits while another program holds the journal
    """

    def __init__(self, folder, stack, busy_s=60.0):
        self.stack, self.busy_s = stack, busy_s
        self.parquet = Path(folder) / f"{stack}.parquet"
        self.journal = Path(folder) / "journal" / f"{stack}.sqlite"
        self._columns, self._fresh, self._stamp = {}, None, None

    # -- reading ----------------------------------------------------------------------------------

    def table(self, columns=None):
        """All recordings as an Arrow table sorted by key, one row a key.

        The first answer with log-probabilities counts; one without stands until the question is asked again.
        """
        wanted = list(columns or SCHEMA.names)
        self._forget_what_has_changed()
        shipped, fresh = self._shipped(list(dict.fromkeys([*wanted, "key", "unread"]))), self._journal()
        if fresh.num_rows:
            readable = shipped.filter(pc.is_null(shipped["unread"]))
            fresh = fresh.filter(pc.invert(pc.is_in(fresh["key"], readable["key"])))
            kept = shipped.filter(pc.invert(pc.is_in(shipped["key"], fresh["key"])))
            shipped = pa.concat_tables([kept, fresh.select(shipped.column_names)])
        return shipped.sort_by("key").select(wanted)

    def keys(self):
        """Keys of the questions that need not be asked again, as a set: recorded with log-probabilities."""
        table = self.table(["key", "unread"])
        return set(table.filter(pc.is_null(table["unread"]))["key"].to_pylist())

    def frame(self, columns=None):
        """All recordings as a DataFrame, sorted by key."""
        return self.table(columns).to_pandas()

    def _forget_what_has_changed(self):
        files = (self.parquet, self.journal, self.journal.with_name(f"{self.journal.name}-wal"))
        found = [path.stat() if path.exists() else None for path in files]
        stamp = [at and (at.st_ino, at.st_size, at.st_mtime_ns) for at in found]
        if stamp != self._stamp:
            self._columns, self._fresh, self._stamp = {}, None, stamp

    def _shipped(self, columns):
        """Columns of the Parquet file, those that were not read before from the disk."""
        if not self.parquet.exists():
            return SCHEMA.empty_table().select(columns)
        try:
            new = [name for name in columns if name not in self._columns]
            later = set(new) & _LATER.keys() - set(pq.read_schema(self.parquet).names) if new else ()
            if set(new) - set(later):
                read = pq.read_table(self.parquet, columns=[name for name in new if name not in later])
                self._columns |= dict(zip(read.column_names, read.columns, strict=True))
            rows = len(self._columns["key"])
            self._columns |= {name: pa.array([_LATER[name]] * rows, SCHEMA.field(name).type) for name in later}
            return pa.table({name: self._columns[name] for name in columns})
        except (pa.ArrowException, OSError, KeyError) as error:
            raise DataError(
                f"{self.parquet}: not a readable recordings file ({str(error).splitlines()[0][:120]}). Restore it from "
                "the repository; answers in the journal are untouched."
            ) from None

    def _journal(self):
        """Rows of the journal as a table."""
        if self._fresh is None:
            rows = self._select("SELECT row FROM answers ORDER BY key")
            self._fresh = _as_table([json.loads(text) for (text,) in rows])
        return self._fresh

    def failures(self):
        """Why cells failed when they were last asked: ``{key: reason}``; a later answer removes the entry."""
        return dict(self._select("SELECT key, reason FROM failures"))

    def _select(self, query):
        if not self.journal.exists():
            return []
        with self._open() as database:
            return database.execute(query).fetchall()

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
            for table in _TABLES:
                database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
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
        """A function ``write(rows)`` that returns once the rows are on disk; who wins is as in :meth:`table`."""
        with self._open() as database:

            def write(rows):
                database.execute("BEGIN IMMEDIATE")
                database.executemany(
                    f"INSERT INTO answers AS old VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET row = excluded.row "
                    f"WHERE {_UNREAD.replace('row', 'old.row')} AND NOT {_UNREAD.replace('row', 'excluded.row')}",
                    [(row["key"], json.dumps(row, ensure_ascii=False)) for row in rows],
                )
                database.executemany("DELETE FROM failures WHERE key = ?", [(row["key"],) for row in rows])
                database.execute("COMMIT")

            yield write

    def note_failures(self, failures):
        """Remember why cells are missing: ``{key: reason}``. Failures are not answers."""
        if failures:
            rows = [(key, reason, time.time()) for key, reason in failures.items()]
            with self._open() as database:
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", rows)
                database.execute("COMMIT")

    def my_turn(self, say=print):
        """One run at a time asks a stack, so that two runs never pay for the same question; see :func:`turns.turn`."""
        return turn(self.journal.with_suffix(".lock"), _WAITING.format(self.stack), say)

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
