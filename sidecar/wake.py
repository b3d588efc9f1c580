"""Waking a task in place: a request is served in the very callback that brought it (docs/adr/0012).

A future wakes its task in the loop's next turn, which costs a handle, a turn of the loop and a look at every socket.
This is a future to asyncio, by the protocol that it has for foreign ones, but runs its task inside `set`.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Wake:
    """What one task awaits, again and again. `set` runs the task until it waits for something else."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_cancelled", "_context", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with nobody waiting."""
        self._loop = loop
        self._asyncio_future_blocking = False
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._cancelled = False

    def __await__(self) -> Generator["Wake", None, None]:
        """Wait for `set`. Raises CancelledError when the task is cancelled meanwhile."""
        self._asyncio_future_blocking = True
        self._cancelled = False
        yield self

    @property
    def is_awaited(self) -> bool:
        """Whether the task waits here and was not cancelled."""
        return self._callback is not None and not self._cancelled

    def set(self) -> None:
        """Run the task that waits here, if one does; from within another task, in the loop's next turn."""
        if not self.is_awaited:
            return
        if asyncio.current_task(self._loop) is None:
            self._run()
        else:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        callback, context, self._callback = self._callback, self._context, None
        if callback is not None and context is not None:
            context.run(callback, self)

    # --- what a task asks of a future --------------------------------------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that the task must be of."""
        return self._loop

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context) -> None:
        """Keep the one who waits."""
        self._callback, self._context = callback, context

    def cancel(self, msg: object = None) -> bool:
        """Wake the task in the loop's next turn, as cancelling does everywhere; `result` then raises."""
        if not self.is_awaited:
            return False
        self._cancelled = True
        self._loop.call_soon(self._run)
        return True

    def result(self) -> None:
        """Raise CancelledError for a cancelled wait."""
        if self._cancelled:
            raise asyncio.CancelledError
