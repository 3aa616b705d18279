"""One run at a time: locks on files, between processes and between the runs of one event loop."""

import asyncio
import contextlib
from pathlib import Path

from filelock import FileLock, Timeout

from helpers.study.files import DataError

_LOOK_AGAIN_S = 0.2  # between two looks at a lock that another run holds


@contextlib.asynccontextmanager
async def turn(lock, waiting, say=print):
    """Hold a lock file while the block runs, so that one run at a time writes; ``waiting`` is said when another does.

    Waiting leaves the event loop free, for another run in it may hold the turn.
    """
    lock, held = Path(lock), FileLock(lock, thread_local=False)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        while not held.is_locked:
            try:
                held.acquire(blocking=False)
            except Timeout:
                if waiting:
                    say(waiting)
                waiting = None  # once is enough
                await asyncio.sleep(_LOOK_AGAIN_S)
    except OSError as error:
        raise DataError(f"{lock.parent}: cannot be written ({error.strerror}); make it writable.") from None
    try:
        yield
    finally:
        held.release()
