"""The sessions of the PostgreSQL store: so many places, and a session opened when one is wanted and none is idle."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sidecar.stores.places import Line
from sidecar.stores.postgres_session import Session, Unusable

_ROLL_BACK_S: Final = 1.0


@dataclass(slots=True)
class PoolStats:
    """What metrics show of the pool. Counters count since the start."""

    sessions: int = 0
    """Open now."""
    used: int = 0
    """In use now, or being opened."""
    waits: int = 0
    """Calls that found every session in use."""
    opened: int = 0
    open_failures: int = 0
    """Sessions that could not be opened."""
    broken: int = 0
    """Sessions that ended while in use: an answer lost, late or bad."""


class Pool:
    """At most `size` sessions. The one used last is used next; for one event loop, no threads."""

    def __init__(self, size: int, opener: Callable[[float], Awaitable[Session]]) -> None:
        """`opener(until)` opens a session or raises Unusable."""
        self._opener = opener
        self._line = Line(size)
        self._idle: deque[Session] = deque()
        self._used: set[Session] = set()
        self._retired: set[Session] = set()
        self._rolling_back: set[asyncio.Task[None]] = set()
        self._over = False
        self._stats = PoolStats()
        self.answered_at = float("-inf")
        """When a session last came back alive, on the loop's clock."""

    @property
    def stats(self) -> PoolStats:
        """The counters, with the sessions counted now."""
        self._stats.sessions = sum(not session.closed for session in (*self._idle, *self._used))
        return self._stats

    async def take(self, until: float) -> Session:
        """Return a session, to be given back exactly once. Raises Unusable, at `until` at the latest."""
        if not self._line.take_now():
            self._stats.waits += 1
            if not await self._line.take(until):
                raise Unusable
        return await self._with_place(until)

    async def take_idlest(self, until: float) -> Session | None:
        """Return the session that was idle longest, or a new one; None at once when every place is taken."""
        if not self._line.take_now():
            return None
        self._idle.rotate(-1)
        return await self._with_place(until)

    async def _with_place(self, until: float) -> Session:
        self._stats.used += 1
        try:
            session = self._pop() or await self._open(until)
        except BaseException:
            self._free()
            raise
        self._used.add(session)
        return session

    def _pop(self) -> Session | None:
        while self._idle:
            session = self._idle.pop()
            if not session.closed:
                return session
        return None

    async def _open(self, until: float) -> Session:
        if self._over:
            raise Unusable
        try:
            session = await self._opener(until)
        except BaseException:
            self._stats.open_failures += 1
            raise
        self._stats.opened += 1
        return session

    def give_back(self, session: Session) -> None:
        """Take a session back that has no transaction open; a closed one is dropped."""
        retired = self._over or session in self._retired
        self._used.discard(session)
        self._retired.discard(session)
        if session.closed:
            self._stats.broken += 1
        elif retired:
            session.close()
        else:
            self.answered_at = asyncio.get_running_loop().time()
            self._idle.append(session)
        self._free()

    def roll_back(self, session: Session, after: Callable[[], None]) -> None:
        """End the session's transaction without anybody waiting for it, then take it back and call `after`."""
        task = asyncio.get_running_loop().create_task(self._roll_back(session, after))
        self._rolling_back.add(task)
        task.add_done_callback(self._rolling_back.discard)

    async def _roll_back(self, session: Session, after: Callable[[], None]) -> None:
        try:
            with suppress(Unusable):
                await session.tell("ROLLBACK", asyncio.get_running_loop().time() + _ROLL_BACK_S)
            if session.in_transaction:
                session.close()
        finally:
            self.give_back(session)
            after()

    def _free(self) -> None:
        self._stats.used -= 1
        self._line.give_back()

    def drop_idle(self) -> None:
        """Close every idle session."""
        while self._idle:
            self._idle.pop().close()

    def retire(self) -> None:
        """Close every session, one in use when it comes back: each next one is opened, and judged, anew."""
        self.drop_idle()
        self._retired |= self._used

    def close(self) -> None:
        """Close every session, also those in use. Nothing can be had afterwards."""
        self._over = True
        self.drop_idle()
        for session in self._used:
            session.close()
