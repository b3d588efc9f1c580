"""The shield: budgets of failed authentications, against a model that keeps every failure it ever saw."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.shield import Shield, ShieldLimits

WINDOW_S = 60.0
PEERS = [bytes([n]) * 32 for n in range(5)]


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(per_peer: int = 3, all_peers: int = 100, max_peers: int = 10) -> tuple[Shield, Clock]:
    """Return a shield and its clock."""
    clock = Clock()
    return Shield(ShieldLimits(WINDOW_S, per_peer, all_peers, max_peers), clock), clock


def fail(shield: Shield, peer: bytes, times: int = 1) -> None:
    """Let a peer fail."""
    for _ in range(times):
        shield.begin(peer)
        shield.end(peer, failed=True)


def test_a_peer_may_fail_as_often_as_its_budget() -> None:
    """The budget is spent with its last failure, not before; other peers are not touched."""
    shield, _ = make(per_peer=3)
    fail(shield, PEERS[0], 2)
    assert shield.retry_after(PEERS[0]) is None
    fail(shield, PEERS[0])
    assert shield.retry_after(PEERS[0]) == 60
    assert shield.retry_after(PEERS[1]) is None


def test_success_spends_nothing() -> None:
    """Any number of good authentications leaves the budget whole."""
    shield, _ = make(per_peer=1)
    for _ in range(10):
        shield.begin(PEERS[0])
        shield.end(PEERS[0], failed=False)
    assert shield.retry_after(PEERS[0]) is None
    assert shield.peers == 0


def test_concurrency_holds_only_those_back_who_have_failed() -> None:
    """Attempts in progress count as spent after a first failure in the window, and never before."""
    shield, _ = make(per_peer=3)
    for _ in range(5):
        shield.begin(PEERS[0])
    assert shield.retry_after(PEERS[0]) is None
    shield.end(PEERS[0], failed=True)
    assert shield.retry_after(PEERS[0]) == 60
    for _ in range(3):
        shield.end(PEERS[0], failed=False)
    assert shield.retry_after(PEERS[0]) is None


def test_the_global_budget_refuses_only_who_has_failed() -> None:
    """When the global budget is spent, a peer without a failure in this window goes on."""
    shield, _ = make(per_peer=100, all_peers=4)
    fail(shield, PEERS[0], 3)
    fail(shield, PEERS[1])
    assert shield.retry_after(PEERS[0]) == shield.retry_after(PEERS[1]) == 60
    assert shield.retry_after(PEERS[2]) is None


def test_attempts_in_progress_count_in_the_global_budget_too() -> None:
    """A peer that has failed cannot overrun the global budget by asking many times at once."""
    shield, _ = make(per_peer=100, all_peers=4)
    fail(shield, PEERS[0], 2)
    shield.begin(PEERS[0])
    assert shield.retry_after(PEERS[0]) is None
    shield.begin(PEERS[0])
    assert shield.retry_after(PEERS[0]) == 60


def test_a_refused_peer_spends_nothing() -> None:
    """Being refused costs neither budget, and is counted."""
    shield, clock = make(per_peer=1, all_peers=2)
    fail(shield, PEERS[0])
    for _ in range(10):
        assert shield.retry_after(PEERS[0]) is not None
    assert shield.refused == 10
    fail(shield, PEERS[1])
    clock.now += WINDOW_S
    assert shield.retry_after(PEERS[0]) is None


@pytest.mark.parametrize(("passed", "seconds"), [(0.0, 60), (0.5, 60), (1.0, 59), (58.9, 2), (59.0, 1), (59.999, 1)])
def test_retry_after_is_rounded_up_and_at_least_one(passed: float, seconds: int) -> None:
    """`Retry-After` is the whole seconds to the end of the window, never zero."""
    shield, clock = make(per_peer=1)
    fail(shield, PEERS[0])
    clock.now += passed
    assert shield.retry_after(PEERS[0]) == seconds


def test_the_window_is_fixed() -> None:
    """A window ends a minute after it began, not after the last failure, and later windows keep the grid."""
    shield, clock = make(per_peer=1)
    clock.now += 59
    fail(shield, PEERS[0])
    assert shield.retry_after(PEERS[0]) == 1
    clock.now += 1
    assert shield.retry_after(PEERS[0]) is None
    clock.now += 3600 + 15
    fail(shield, PEERS[0])
    assert shield.retry_after(PEERS[0]) == 45


def test_an_attempt_that_fails_in_a_later_window_spends_there() -> None:
    """What counts is when an attempt failed."""
    shield, clock = make(per_peer=1)
    shield.begin(PEERS[0])
    clock.now += 90
    shield.end(PEERS[0], failed=True)
    assert shield.retry_after(PEERS[0]) == 30


def test_a_full_table_drops_its_oldest_peer() -> None:
    """Remembering a new peer forgets the one that failed first; the global budget forgets nothing."""
    shield, _ = make(per_peer=1, all_peers=4, max_peers=2)
    for peer in PEERS[:3]:
        fail(shield, peer)
    assert shield.retry_after(PEERS[0]) is None
    assert shield.retry_after(PEERS[1]) == shield.retry_after(PEERS[2]) == 60
    assert (shield.peers, shield.dropped) == (2, 1)
    fail(shield, PEERS[2])
    assert (shield.peers, shield.dropped) == (2, 1)


class AgainstAModel(RuleBasedStateMachine):
    """Random attempts and times; the model reckons anew from the list of all failures each time it is asked."""

    PER_PEER, ALL, MAX_PEERS = 3, 6, 3

    def __init__(self) -> None:
        super().__init__()
        self.shield, self.clock = make(self.PER_PEER, self.ALL, self.MAX_PEERS)
        self.began = self.clock.now
        self.failures: list[tuple[float, bytes]] = []
        self.busy: list[bytes] = []

    def window(self) -> int:
        """The number of the window that a time is in."""
        return math.floor((self.clock.now - self.began) / WINDOW_S)

    def table(self) -> dict[bytes, int]:
        """Failures in this window of the peers still remembered."""
        table: dict[bytes, int] = {}
        for when, peer in self.failures:
            if math.floor((when - self.began) / WINDOW_S) != self.window():
                continue
            if peer not in table and len(table) == self.MAX_PEERS:
                del table[next(iter(table))]
            table[peer] = table.get(peer, 0) + 1
        return table

    def expected(self, peer: bytes) -> int | None:
        """What the contract says about a request of this peer now."""
        failed = self.table().get(peer, 0)
        if not failed:
            return None
        spent = sum(math.floor((when - self.began) / WINDOW_S) == self.window() for when, _ in self.failures)
        if failed + self.busy.count(peer) < self.PER_PEER and spent + self.busy.count(peer) < self.ALL:
            return None
        return max(1, math.ceil(self.began + (self.window() + 1) * WINDOW_S - self.clock.now))

    @rule(seconds=st.sampled_from([0.25, 1.0, 20.0, 59.75, 60.0, 180.5]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(peer=st.sampled_from(PEERS))
    def ask(self, peer: bytes) -> None:
        allowed = self.shield.retry_after(peer)
        assert allowed == self.expected(peer)
        if allowed is None:
            self.shield.begin(peer)
            self.busy.append(peer)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), failed=st.booleans())
    def finish(self, data: st.DataObject, failed: bool) -> None:
        peer = self.busy.pop(data.draw(st.integers(0, len(self.busy) - 1)))
        self.shield.end(peer, failed=failed)
        if failed:
            self.failures.append((self.clock.now, peer))

    @invariant()
    def peers_are_those_of_the_window(self) -> None:
        assert self.shield.peers == len(self.table())


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.__doc__ = "Whatever happens in whatever order, the shield says what the contract says."
TestAgainstAModel.settings = settings(max_examples=60, stateful_step_count=40)
