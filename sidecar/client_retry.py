"""When to try again: exponential pauses with jitter, never before the server's Retry-After, never after the end."""

import os
import time
from typing import Final

FIRST_PAUSE_S: Final = 0.1
"""Upper bound of the first pause; each next one is twice as long."""
LONGEST_PAUSE_S: Final = 5.0
"""Upper bound of every pause that the server did not ask for."""


class Schedule:
    """The pauses of one fetch, which ends at `end` on the clock of `time.monotonic`."""

    __slots__ = ("_bound", "_end")

    def __init__(self, end: float) -> None:
        """Begin before the first attempt."""
        self._end = end
        self._bound = FIRST_PAUSE_S

    def pause(self, retry_after: int | None) -> float | None:
        """Return the seconds to wait before the next attempt, None when that would be too late.

        The pause is random, so that workers that failed together do not return together; beyond `retry_after` seconds
        where the server names them.
        """
        pause = self._bound * (1 + os.urandom(1)[0] / 255) / 2 + (retry_after or 0)
        self._bound = min(self._bound * 2, LONGEST_PAUSE_S)
        return pause if time.monotonic() + pause < self._end else None
