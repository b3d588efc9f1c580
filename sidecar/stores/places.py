"""The places of contract 6: what a request takes in memory before it may use a session of the store.

In this order: the place of its attempt id, a transaction place, and for slow material a material place. Waiters are
served in the order they came; all waiting together ends after 2 s or at the request's deadline. A free place is taken
without suspending. Shared by both stores.
"""

import asyncio
from typing import Final

from provider import limits
from provider.outcomes import Reason, Refused
from sidecar.stores.alarm import Alarm


class Line:
    """A number of equal places and those who wait for one, first come first served. For one event loop, no threads."""

    __slots__ = ("_alarm", "_free", "_places", "_waiting")

    def __init__(self, places: int) -> None:
        """Make `places` free places, at least one."""
        self._places: Final = places
        self._free = places
        self._waiting: dict[asyncio.Future[bool], float] = {}
        self._alarm: Alarm | None = None

    @property
    def idle(self) -> bool:
        """Whether every place is free, so that nobody knows this line."""
        return self._free == self._places

    def take_now(self) -> bool:
        """Take a place if one is free; nobody waits then, since a returned place goes to the first in line."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def take(self, until: float) -> bool:
        """Take a place, waiting for it until the loop's clock shows `until`. Returns whether it was taken.

        A cancelled waiter leaves the line, and passes on a place that it was given in the same moment.
        """
        if self.take_now():
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = until
        alarm = self._alarm = self._alarm or Alarm(self._expire)
        if until < alarm.until:
            alarm.set(until)
        taken = False
        try:
            taken = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.give_back()
                taken = True
            raise
        finally:
            if not taken:
                del self._waiting[turn]
        return taken

    def give_back(self) -> None:
        """Return a place: to the first who waits, otherwise to the free ones."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(True)
                del self._waiting[turn]
                return
        self._free += 1

    def _expire(self, at: float) -> None:
        for turn, until in self._waiting.items():
            if until <= at and not turn.done():
                turn.set_result(False)
        rest = [until for until in self._waiting.values() if until > at]
        if rest and self._alarm is not None:
            self._alarm.set(min(rest))


class Taken:
    """The places of one request. Give them back exactly once."""

    __slots__ = ("_attempt_id", "_lines", "_places")

    def __init__(self, places: "Places", attempt_id: str, lines: list[Line]) -> None:
        """Made by `Places.take` alone."""
        self._places = places
        self._attempt_id = attempt_id
        self._lines = lines

    def give_back(self) -> None:
        """Return every place, the last one taken first. Idempotent."""
        while self._lines:
            self._lines.pop().give_back()
        self._places.forget(self._attempt_id)


class Places:
    """All places of a store: `transactions` of its sessions, `materials` of them for slow material."""

    def __init__(self, transactions: int, materials: int) -> None:
        """Make the places; both numbers are at least one."""
        self._attempts: dict[str, Line] = {}
        self._transactions = Line(transactions)
        self._materials = Line(materials)

    def __len__(self) -> int:
        """Return how many attempts hold or wait for a place."""
        return len(self._attempts)

    async def take(self, attempt_id: str, deadline: float, *, slow_material: bool) -> Taken:
        """Take every place that the request needs (contract 6).

        Raises `Refused(AUTHORITY_STORE)` after 2 s and `Refused(DEADLINE)` at `deadline`, a time of the loop's clock.
        Nothing is kept then, nor when the wait is cancelled.
        """
        until = asyncio.get_running_loop().time() + limits.PLACES_WAIT_S
        attempt = self._attempts.setdefault(attempt_id, Line(1))
        wanted = [attempt, self._transactions, self._materials] if slow_material else [attempt, self._transactions]
        lines: list[Line] = []
        taken = Taken(self, attempt_id, lines)
        try:
            for line in wanted:
                if not await line.take(min(until, deadline)):
                    raise Refused(Reason.AUTHORITY_STORE if until <= deadline else Reason.DEADLINE)
                lines.append(line)
        except BaseException:
            taken.give_back()
            raise
        return taken

    def forget(self, attempt_id: str) -> None:
        """Drop the line of an attempt that nobody holds or waits for."""
        line = self._attempts.get(attempt_id)
        if line is not None and line.idle:
            del self._attempts[attempt_id]
