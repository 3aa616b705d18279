"""JSON Lines files: read strictly, written in one step or appended durably."""

import json
import os
import re
from pathlib import Path

_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")  # an escape that may leave half a character behind


class DataError(ValueError):
    """A frozen input is unusable. The message names the file, the line or id, and what to do."""


def read_jsonl(path, *, missing_ok=False):
    """Rows of a JSON Lines file as a list of dicts; DataError names the broken line.

    A file that is not there is an error too, or holds no rows where it ``missing_ok``.
    """
    path = Path(path)
    if missing_ok and not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8-sig")  # a byte order mark is no part of the text
    except FileNotFoundError:
        said = "no such file. Check the path in params/, or restore it from the repository."
        raise DataError(f"{path}: {said}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}). Save the file as UTF-8.") from None
    # Not splitlines(): that also cuts at U+2028 and U+0085, which may stand inside a JSON string.
    lines = enumerate(text.split("\n"), start=1)
    return [_row(line, f"{path}, line {number}:") for number, line in lines if line.strip()]


def _row(line, where):
    try:
        row = json.loads(line)
        if _HALF_CHARACTER.search(line):
            json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        said = f"not valid JSON ({error.msg} at column {error.colno}). Repair or remove that line."
        raise DataError(f"{where} {said}") from None
    except UnicodeEncodeError:
        raise DataError(f"{where} holds half of a surrogate pair, a character that was cut; repair it.") from None
    except (ValueError, RecursionError):
        raise DataError(f"{where} holds a number too long or a nesting too deep to be read.") from None
    if not isinstance(row, dict):
        raise DataError(f"{where} expected a JSON object, found {type(row).__name__}.")
    return row


def write_text(path, text):
    """Write a UTF-8 text file in one step, so that nobody ever reads half of it."""
    path = Path(path)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_jsonl(path, rows):
    """Write dicts as JSON Lines, UTF-8, one row a line, replacing the file in one step."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def append_jsonl(path, row):
    """Append one JSON line, on disk when this returns; a last line without its line end gets one first.

    Where the disk takes only a part of it, the file is left as it was and the OSError is raised.
    """
    line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
    with Path(path).open("ab+", buffering=0) as out:
        size = out.seek(0, os.SEEK_END)
        if size:
            out.seek(-1, os.SEEK_END)
            line = line if out.read(1) == b"\n" else b"\n" + line
        try:
            while line:
                line = line[out.write(line) :]
            os.fsync(out.fileno())
        except OSError:
            os.ftruncate(out.fileno(), size)
            raise
