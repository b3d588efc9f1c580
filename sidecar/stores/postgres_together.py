"""Calls that come together go to the server together: one statement, one round trip, for all who wait (ADR 15).

A call asks for nothing of its own but a row: the newest version of a credential, or that an audit row be written. So
what one statement answers for a list of them is what as many statements would have answered.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from sidecar.stores.alarm import NEVER, Alarm
from sidecar.stores.postgres_pool import Pool
from sidecar.stores.postgres_session import Unusable
from sidecar.stores.postgres_sql import SEPARATOR

PATIENCE_S: Final = 0.02
"""How long those who wait leave the line to the statement before them: one whose answer does not come stops nobody."""
LANES: Final = 4
"""How many statements of a kind are under way at most."""
_ENDED: Final = -NEVER

Row: TypeAlias = Sequence[Any]


class _Call(NamedTuple):
    answer: asyncio.Future[Row | None]
    until: float
    text: str


class Together:
    """One kind of call. For one event loop, no threads."""

    __slots__ = (
        "_alarm", "_calls", "_patient_until", "_pool", "_returns", "_sent", "_starting", "_statement", "_tasks",
    )  # fmt: skip

    def __init__(self, pool: Pool, statement: str, *, returns: bool) -> None:
        """`statement` takes the values of all calls, one after the other, in one text, a SEPARATOR between any two.

        `returns`: it has a row for each call, in their order.
        """
        self._pool = pool
        self._statement = statement
        self._returns = returns
        self._calls: list[_Call] = []
        self._sent = 0
        """Statements under way, or about to take up the calls that wait."""
        self._starting = False
        """Whether one is about to."""
        self._patient_until = _ENDED
        """When the last one to be sent has taken long, on the loop's clock; past as soon as it has ended."""
        self._alarm = Alarm(lambda _at: self._go_on())
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, until: float, *values: str | None) -> Row | None:
        """Return the row of a call, an empty one where none is returned, or None when there is no answer.

        `until` is on the loop's clock; a call that goes with others may have its None at the first one's, and is sent
        even when nobody waits for it any more. Raises ValueError for a value that would be taken for several.
        """
        text = SEPARATOR.join([value or "" for value in values])
        if text.count(SEPARATOR) != len(values) - 1:
            raise ValueError("a value holds the separator")
        if self._sent == 0:
            # Nobody to go with: at once, in the caller's own task.
            self._sent = 1
            try:
                rows = await self._send([text], until)
            finally:
                self._ended()
            return rows[0]
        answer: asyncio.Future[Row | None] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(answer, until, text))
        if len(self._calls) == 1:
            self._go_on()
        return await answer

    def _go_on(self) -> None:
        """See to it that the calls that wait are taken up: once the statement before them ends, or takes long."""
        if not self._calls or self._starting or self._sent == LANES:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._patient_until:
            self._alarm.set(self._patient_until)
            return
        self._sent += 1
        self._starting = True
        # Not in the caller's task: who goes away takes nobody's answer along.
        task = loop.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        calls, self._calls = self._calls, []
        self._starting = False
        rows: Sequence[Row | None] = [None] * len(calls)
        try:
            rows = await self._send([call.text for call in calls], calls[0].until)
        finally:
            self._ended()
            for call, row in zip(calls, rows, strict=True):
                if not call.answer.done():
                    call.answer.set_result(row)

    def _ended(self) -> None:
        self._sent -= 1
        self._go_on()

    async def _send(self, calls: Sequence[str], until: float) -> Sequence[Row | None]:
        """Return what the statement answers for each call; None when there is no answer."""
        patient_until = self._patient_until = asyncio.get_running_loop().time() + PATIENCE_S
        try:
            session = await self._pool.take(until)
            try:
                rows: Sequence[Row] = await session.fetch(self._statement, until, SEPARATOR.join(calls))
            finally:
                self._pool.give_back(session)
        except Unusable:
            return [None] * len(calls)
        finally:
            if self._patient_until == patient_until:
                self._patient_until = _ENDED
        if not self._returns:
            return [()] * len(calls)
        return rows if len(rows) == len(calls) else [None] * len(calls)
