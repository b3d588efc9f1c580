"""The budget of failed authentications (contract 5, shield): per process, monotonic clock, fixed window."""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShieldLimits:
    """Configured limits: window in seconds, failures for one peer and for all, peers remembered."""

    window_s: float
    per_peer: int
    all_peers: int
    max_peers: int


class Shield:
    """Counts failures of peers (SHA-256 of the client's leaf). Only who failed in this window can be refused."""

    __slots__ = ("_busy", "_clock", "_failed", "_limits", "_spent", "_window_end", "dropped", "refused")

    def __init__(self, limits: ShieldLimits, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._limits = limits
        self._clock = clock
        self._window_end = clock() + limits.window_s
        self._failed: dict[bytes, int] = {}
        self._busy: dict[bytes, int] = {}
        self._spent = 0
        self.refused = 0
        """Requests refused since the start."""
        self.dropped = 0
        """Peers dropped from a full table since the start."""

    def _roll(self) -> float:
        now = self._clock()
        if now >= self._window_end:
            # Windows keep their grid: a quiet hour does not shift the next one.
            missed = math.floor((now - self._window_end) / self._limits.window_s)
            self._window_end += (missed + 1) * self._limits.window_s
            self._failed.clear()
            self._spent = 0
        return now

    def retry_after(self, peer: bytes) -> int | None:
        """Return None when this peer may try, otherwise whole seconds to the end of the window, at least 1.

        Once a peer has failed in the window, its attempts in progress count as spent, from both budgets.
        """
        now = self._roll()
        failures = self._failed.get(peer, 0)
        if not failures:
            return None
        busy = self._busy.get(peer, 0)
        if failures + busy < self._limits.per_peer and self._spent + busy < self._limits.all_peers:
            return None
        self.refused += 1
        return max(1, math.ceil(self._window_end - now))

    def begin(self, peer: bytes) -> None:
        """Count an attempt in progress; `end` must follow."""
        self._busy[peer] = self._busy.get(peer, 0) + 1

    def end(self, peer: bytes, *, failed: bool) -> None:
        """End an attempt; a failed one spends from the peer's and the global budget."""
        left = self._busy[peer] - 1
        if left:
            self._busy[peer] = left
        else:
            del self._busy[peer]
        if failed:
            self._roll()
            self._spent += 1
            if peer not in self._failed and len(self._failed) >= self._limits.max_peers:
                del self._failed[next(iter(self._failed))]
                self.dropped += 1
            self._failed[peer] = self._failed.get(peer, 0) + 1

    @property
    def peers(self) -> int:
        """Peers that have failed in the current window."""
        self._roll()
        return len(self._failed)
