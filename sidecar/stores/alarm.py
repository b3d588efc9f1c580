"""A limit in time for what nearly always ends before it."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

NEVER: Final = math.inf
"""No limit."""


class Alarm:
    """Calls `reached` when the loop's clock shows `until`. For one event loop, no threads.

    The timer stays where it is while the limit moves later or is lifted, and is set anew when it goes off too early:
    a timer for each wait of each request would cost more than the waiting does.
    """

    __slots__ = ("_reached", "_timer", "until")

    def __init__(self, reached: Callable[[float], None]) -> None:
        """`reached` is given the limit; there is none any more when it is called."""
        self._reached = reached
        self._timer: asyncio.TimerHandle | None = None
        self.until = NEVER
        """The limit, which `set` moves; may be lifted by assigning NEVER."""

    def set(self, until: float) -> None:
        """Move the limit, to an earlier or a later time."""
        self.until = until
        timer = self._timer
        if timer is not None:
            if timer.when() <= until:
                return
            timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(until, self._ring, until)

    def _ring(self, at: float) -> None:
        self._timer = None
        if self.until <= at:
            self.until = NEVER
            self._reached(at)
        elif self.until < NEVER:
            self.set(self.until)
