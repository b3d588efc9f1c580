"""Whether the server is there, asked once a second: readiness tells it at once and asks nobody (contract 9)."""

import asyncio
from typing import Final

from sidecar.stores.postgres_pool import Pool
from sidecar.stores.postgres_session import Unusable
from sidecar.stores.postgres_sql import NEWEST

_NOBODY: Final = "-"
"""No credential has this id."""
_EVERY_S: Final = 0.8
_PATIENCE_S: Final = 1.5
"""With `_EVERY_S` less than the 3 s within which a lost server has to show."""


class Watch:
    """Asks on a session that is idle, the one that was idle longest, so that dead ones are found before a request is.

    Where every session is in use the requests themselves show that the server answers.
    """

    def __init__(self, pool: Pool, connection_timeout_s: float) -> None:
        """Not healthy until the first look."""
        self._pool = pool
        self._connection_timeout_s = connection_timeout_s
        self._task: asyncio.Task[None] | None = None
        self.healthy = False
        """What was seen last."""

    def start(self) -> None:
        """Look once a second until stopped."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Look no more. Idempotent."""
        self.healthy = False
        if self._task is not None:
            self._task.cancel()

    async def look(self, until: float) -> None:
        """Look once, until `until` on the loop's clock at most; does not raise."""
        # An answer that takes too long shows before it comes: a new session may take longer than an answer.
        timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._fail)
        try:
            self.healthy = await self._ask(until)
        except Unusable:
            self._fail()
        finally:
            timer.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.look(asyncio.get_running_loop().time() + self._connection_timeout_s)

    async def _ask(self, until: float) -> bool:
        session = await self._pool.take_idlest(until)
        now = asyncio.get_running_loop().time()
        if session is None:
            return self._pool.answered_at > now - _PATIENCE_S - _EVERY_S
        try:
            rows = await session.fetch(NEWEST, now + _PATIENCE_S, _NOBODY)
        except Unusable:
            # The others have seen no more of the server than this one.
            self._pool.drop_idle()
            raise
        finally:
            self._pool.give_back(session)
        return bool(rows) and not rows[0][1]

    def _fail(self) -> None:
        self.healthy = False
