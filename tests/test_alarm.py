"""The limit in time: one timer, and each limit kept as if it had its own."""

import asyncio
from typing import Any

import pytest

from sidecar.stores.alarm import NEVER, Alarm


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


class Seen:
    """An alarm, and when it went off for which limit."""

    def __init__(self) -> None:
        """No limit yet."""
        self.limits: list[float] = []
        self.went_off = asyncio.Event()
        self.alarm = Alarm(self._reached)

    def _reached(self, at: float) -> None:
        self.limits.append(at)
        self.went_off.set()

    async def wait(self) -> float:
        """Wait until it goes off; return the time."""
        async with asyncio.timeout(20):
            await self.went_off.wait()
        return now()


async def test_a_limit_is_kept() -> None:
    """It goes off once, when the clock shows the limit and not before, and there is no limit any more."""
    seen, until = Seen(), now() + 0.02
    seen.alarm.set(until)
    assert await seen.wait() >= until - 0.001
    await asyncio.sleep(0.05)
    assert seen.limits == [until]
    assert seen.alarm.until == NEVER


async def test_a_limit_that_moves_later_is_kept() -> None:
    """The timer of the earlier limit goes off for nothing, and that of the later one is waited for."""
    seen, until = Seen(), now() + 0.15
    seen.alarm.set(now() + 0.02)
    seen.alarm.set(until)
    assert await seen.wait() >= until - 0.001
    assert seen.limits == [until]


async def test_a_limit_that_comes_sooner_is_kept() -> None:
    """The timer of the later limit is not waited for."""
    seen, until = Seen(), now() + 0.02
    seen.alarm.set(now() + 60)
    seen.alarm.set(until)
    assert until - 0.001 <= await seen.wait() < until + 19
    assert seen.limits == [until]


async def test_a_limit_that_is_lifted_is_none() -> None:
    """Nothing happens when its time comes, and the next limit is kept all the same."""
    seen = Seen()
    seen.alarm.set(now() + 0.02)
    seen.alarm.until = NEVER
    await asyncio.sleep(0.1)
    assert seen.limits == []
    until = now() + 0.02
    seen.alarm.set(until)
    assert await seen.wait() >= until - 0.001


async def test_limits_that_are_never_reached_cost_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred limits, each later than the one before and lifted in time, have one timer between them."""
    loop, made = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def counted(when: float, *rest: Any, **named: Any) -> asyncio.TimerHandle:
        made.append(when)
        return call_at(when, *rest, **named)

    monkeypatch.setattr(loop, "call_at", counted)
    seen = Seen()
    for _ in range(100):
        seen.alarm.set(now() + 6)
        seen.alarm.until = NEVER
    assert len(made) == 1
