"""A task that waits for `Wake` runs inside `set`, and is in everything else a task like any other."""

import asyncio
import contextvars

import pytest

from sidecar.wake import Wake

SAID: contextvars.ContextVar[str] = contextvars.ContextVar("SAID", default="nothing")


class Looper:
    """A task that waits again and again, and what it did."""

    def __init__(self) -> None:
        self.wake = Wake(asyncio.get_running_loop())
        self.rounds: list[str] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        SAID.set("the task's")
        while True:
            await self.wake
            assert asyncio.current_task() is self.task
            self.rounds.append(SAID.get())

    async def set_by_the_loop(self) -> int:
        """Call `set` as the loop calls its callbacks; return the rounds that were done when it returned."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def call() -> None:
            self.wake.set()
            done.set_result(len(self.rounds))

        asyncio.get_running_loop().call_soon(call)
        return await done


async def test_the_task_runs_inside_set() -> None:
    """When `set` returns the task has gone on, in its own context, and waits anew."""
    looper = Looper()
    await asyncio.sleep(0)
    for count in (1, 2, 3):
        assert await looper.set_by_the_loop() == count
    assert looper.rounds == ["the task's"] * 3
    looper.task.cancel()


async def test_set_within_a_task_takes_a_turn() -> None:
    """From within another task it runs in the loop's next turn: no task runs inside another."""
    looper = Looper()
    await asyncio.sleep(0)
    looper.wake.set()
    assert looper.rounds == []
    await asyncio.sleep(0)
    assert len(looper.rounds) == 1
    looper.task.cancel()


async def test_set_for_nobody_is_nothing() -> None:
    """Before anybody waits, and after the task has ended, `set` does nothing and is not remembered."""
    Wake(asyncio.get_running_loop()).set()
    looper = Looper()
    looper.wake.set()
    await asyncio.sleep(0)
    assert looper.rounds == []
    looper.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looper.task
    assert await looper.set_by_the_loop() == 0


async def test_cancelling_is_as_usual() -> None:
    """A waiting task that is cancelled gets CancelledError, in the next turn, whether or not `set` comes in between."""
    for interfere in (False, True):
        looper = Looper()
        await asyncio.sleep(0)
        assert looper.task.cancel()
        assert (looper.wake.is_awaited, looper.task.done()) == (False, False)
        if interfere:
            looper.wake.set()
            assert not looper.wake.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looper.task
        assert looper.rounds == []


async def test_a_caught_cancel_can_wait_anew() -> None:
    """A task that survives its cancelling waits again and is woken again."""
    wake, woken = Wake(asyncio.get_running_loop()), []

    async def stubborn() -> None:
        try:
            await wake
        except asyncio.CancelledError:
            await wake
            woken.append(True)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wake.is_awaited
    wake.set()
    await task
    assert woken == [True]


async def test_a_timeout_around_it_holds() -> None:
    """`asyncio.timeout` ends the wait as it ends any other."""
    wake = Wake(asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wake
