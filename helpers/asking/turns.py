"""One run at a time: advisory locks on files."""

import asyncio
import contextlib
import fcntl
from pathlib import Path

from helpers.study.files import DataError

LOOK_AGAIN_S = 0.2  # between two looks at a lock that another run holds


def _taken(lock):
    """Try to take an advisory lock; it goes back when the file is closed or the process ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.asynccontextmanager
async def turn(lock, waiting, say=print):
    """Hold a lock file while the block runs, so that one run at a time writes; ``waiting`` is said when another does.

    Waiting leaves the event loop free, for another run in it may hold the turn.
    """
    lock = Path(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")  # closed below
    except OSError as error:
        raise DataError(f"{lock.parent}: cannot be written ({error.strerror}); make it writable.") from None
    with file:
        if not _taken(file):
            say(waiting)
            while not _taken(file):
                await asyncio.sleep(LOOK_AGAIN_S)
        yield
