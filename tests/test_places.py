"""The places: in order, fair, bounded in time, and never lost."""

import asyncio
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from provider import limits
from provider.outcomes import Reason, Refused
from sidecar.stores.places import Line, Places, Taken

FAR = 3600.0


def later(seconds: float = FAR) -> float:
    """Return a time of the loop's clock."""
    return asyncio.get_running_loop().time() + seconds


async def test_a_free_place_is_taken_without_suspending() -> None:
    """Taking and giving back run to their end while nothing else of the loop does."""
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, 1)
    places = Places(1, 1)
    for _ in range(3):
        (await places.take("attempt", later(), slow_material=True)).give_back()
    assert others == []
    assert len(places) == 0


async def test_waiters_are_served_in_the_order_they_came() -> None:
    """A place that comes free goes to whoever waits longest; a newcomer does not pass those who wait."""
    line, order = Line(1), list[int]()
    assert line.take_now()

    async def wait(number: int) -> None:
        assert await line.take(later())
        order.append(number)
        await asyncio.sleep(0)
        line.give_back()

    tasks = [asyncio.create_task(wait(number)) for number in range(20)]
    await asyncio.sleep(0)
    line.give_back()
    assert not line.take_now()
    await asyncio.gather(*tasks)
    assert order == list(range(20))
    assert line.idle
    assert not line._waiting


async def test_every_waiter_has_its_own_limit() -> None:
    """However the limits of those who wait are ordered, each stops waiting at its own, not at another's."""
    line, began = Line(1), later(0)
    assert line.take_now()

    async def wait(seconds: float) -> bool:
        assert not await line.take(began + seconds)
        return later(0) - began >= seconds - 0.001

    longest = asyncio.create_task(line.take(began + 60))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.gather(*map(wait, (0.2, 0.05, 0.35, 0.05))), 20) == [True] * 4
    assert not longest.done()
    line.give_back()
    assert await longest
    line.give_back()
    assert line.idle


async def test_waiting_ends_and_leaves_the_line() -> None:
    """Whoever has waited until the given time gets False, and the place goes to the next."""
    line = Line(1)
    assert line.take_now()
    short, long = asyncio.create_task(line.take(later(0.02))), asyncio.create_task(line.take(later()))
    assert await short is False
    line.give_back()
    assert await long is True
    line.give_back()
    assert line.idle


async def test_places_are_taken_in_the_contracts_order() -> None:
    """Who waits for its attempt holds no transaction place, and who waits for that holds no material place."""
    places = Places(2, 1)
    first = await places.take("a", later(), slow_material=True)
    same = asyncio.create_task(places.take("a", later(), slow_material=True))
    await asyncio.sleep(0)
    other = await places.take("b", later(), slow_material=False)
    third = asyncio.create_task(places.take("c", later(), slow_material=True))
    await asyncio.sleep(0)
    first.give_back()
    assert not third.done()
    for waiting in (third, same):
        (await waiting).give_back()
    other.give_back()
    assert len(places) == 0


async def test_material_places_are_for_slow_material_alone() -> None:
    """A request whose material is at hand does not wait for those whose material hangs."""
    places = Places(4, 1)
    slow = await places.take("slow", later(), slow_material=True)
    (await places.take("quick", later(), slow_material=False)).give_back()
    waiting = asyncio.create_task(places.take("slow too", later(), slow_material=True))
    await asyncio.sleep(0)
    assert not waiting.done()
    slow.give_back()
    (await waiting).give_back()


@pytest.mark.parametrize("held", ["attempt", "transaction", "material"])
async def test_all_waiting_together_is_bounded(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the contract's time the request is unavailable, whichever place was missing, and holds none."""
    assert limits.PLACES_WAIT_S == 2.0
    monkeypatch.setattr(limits, "PLACES_WAIT_S", 0.03)
    places = Places(1 if held == "transaction" else 2, 1)
    blocker = await places.take("same" if held == "attempt" else "other", later(), slow_material=True)
    with pytest.raises(Refused) as caught:
        await places.take("same", later(), slow_material=True)
    assert caught.value.reason is Reason.AUTHORITY_STORE
    assert len(places) == 1
    blocker.give_back()
    assert len(places) == 0


async def test_the_requests_deadline_may_come_first() -> None:
    """A request that runs out of its own time while it waits is refused for that."""
    places = Places(1, 1)
    blocker = await places.take("a", later(), slow_material=False)
    with pytest.raises(Refused) as caught:
        await places.take("b", later(0.02), slow_material=False)
    assert caught.value.reason is Reason.DEADLINE
    blocker.give_back()
    blocker.give_back()  # a second time does nothing
    assert len(places) == 0


class Machine(RuleBasedStateMachine):
    """Any mixture of requests, ends and cancels, stepped by hand, against the bounds and the order of arrival."""

    def __init__(self) -> None:
        """Begin with an event loop of its own."""
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.patience = patch.object(limits, "PLACES_WAIT_S", FAR)  # a slow machine must not end a wait
        self.patience.start()
        self.waiting: dict[asyncio.Task[Taken], tuple[str, bool]] = {}
        self.holding: list[tuple[Taken, str, bool]] = []

    @initialize(transactions=st.integers(1, 3), materials=st.integers(1, 2))
    def begin(self, transactions: int, materials: int) -> None:
        """Choose how many places there are."""
        self.transactions, self.materials = transactions, materials
        self.places = Places(transactions, materials)

    @rule(attempt=st.sampled_from("abcd"), slow=st.booleans())
    def request(self, attempt: str, slow: bool) -> None:
        """A request asks for its places."""
        task = self.loop.create_task(self.places.take(attempt, self.loop.time() + FAR, slow_material=slow))
        self.waiting[task] = (attempt, slow)

    @rule(data=st.data(), cancel_too=st.booleans())
    def end(self, data: st.DataObject, cancel_too: bool) -> None:
        """A request ends, perhaps in the very moment in which one that waits is cancelled."""
        if self.holding:
            self.holding.pop(data.draw(st.integers(0, len(self.holding) - 1)))[0].give_back()
        if cancel_too:
            self.cancel(data)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A request that waits is cancelled."""
        if self.waiting:
            data.draw(st.sampled_from(list(self.waiting))).cancel()

    @rule(turns=st.integers(1, 4))
    def step(self, turns: int) -> None:
        """The loop runs for a few turns."""
        for _ in range(turns):
            self.loop.run_until_complete(asyncio.sleep(0))
        for task in [task for task in self.waiting if task.done()]:
            attempt, slow = self.waiting.pop(task)
            if not task.cancelled():
                self.holding.append((task.result(), attempt, slow))

    @invariant()
    def bounds(self) -> None:
        """No more hold a place than there are, and no attempt is held twice."""
        attempts = [attempt for _, attempt, _ in self.holding]
        assert len(attempts) == len(set(attempts))
        if self.holding:
            assert len(self.holding) <= self.transactions
            assert sum(slow for _, _, slow in self.holding) <= self.materials

    def teardown(self) -> None:
        """End everything: every request is served or was cancelled, and nothing is left."""
        for _ in range(1000):
            self.step(6)
            if not self.holding:
                break
            self.holding.pop()[0].give_back()
        assert not self.waiting
        if hasattr(self, "places"):
            assert len(self.places) == 0
            assert self.places._transactions.idle
            assert self.places._materials.idle
        self.loop.close()
        self.patience.stop()


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=40, max_examples=100)
