"""How many requests are out at a time: as many as an endpoint bears."""

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field


@dataclass
class Pace:
    """How many requests are in flight: doubles a round trip until the first cut, then grows by one.

    A 429 halves the limit and pauses everyone for as long as the endpoint asked; a 5xx stops growth.
    """

    most: int
    limit: float = 4.0
    steady: bool = False
    paused_until: float = 0.0
    hold_until: float = 0.0
    in_flight: int = 0
    cuts: int = 0
    _waiting: deque = field(default_factory=deque)

    def __post_init__(self):
        self.limit = float(min(self.limit, self.most))

    @contextlib.asynccontextmanager
    async def slot(self):
        """Wait for a free place and for the end of a pause, hold the place for one attempt.

        Leaving never suspends, so an answer that has arrived cannot be lost to a cancellation here.
        """
        while self.in_flight >= int(self.limit):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self.in_flight += 1
        try:
            while (delay := self.paused_until - time.monotonic()) > 0:
                await asyncio.sleep(delay)
            yield
        finally:
            self.in_flight -= 1
            self._wake()

    def _wake(self):
        free = int(self.limit) - self.in_flight
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    def went_well(self):
        """One answer arrived: grow, unless growth is on hold."""
        if time.monotonic() >= self.hold_until:
            self.limit = min(self.most, self.limit + (1 / self.limit if self.steady else 1))

    def overloaded(self, wait):
        """A 429: halve, at most once a second, and pause."""
        now = time.monotonic()
        if now >= self.hold_until:
            self.limit, self.steady, self.cuts = max(1.0, self.limit / 2), True, self.cuts + 1
            self.hold_until = now + 1.0
        self.paused_until = max(self.paused_until, now + (wait or 0.0))

    def fault(self):
        """A server fault: do not grow for two seconds."""
        self.hold_until = max(self.hold_until, time.monotonic() + 2.0)
