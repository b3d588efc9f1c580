"""Reading where reading may hang: daemon threads that a request can leave behind (contract 7).

A thread that waits for a dead file system cannot be ended. It is abandoned: it keeps its buffer, wipes it if it ever
returns, and the process ends without it. `concurrent.futures` joins its threads at exit and so cannot be used.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from provider import limits
from provider.material import Batch
from provider.outcomes import Reason, Refused

STUCK_AFTER_S: Final = limits.MATERIAL_S / 2
"""A reader left behind counts as stuck from this age on. A peer that goes away early leaves a healthy reader behind,
which must not make the root look dead."""


@dataclass(eq=False, slots=True)
class _Job:
    """One reader: the mount it reads from, since when, and where its request waits."""

    mount: int
    started: float
    answer: "asyncio.Future[Batch | Reason]"
    abandoned: bool = False

    def abandon(self) -> None:
        """Nobody waits any more; a batch that came too late to be taken is wiped."""
        self.abandoned = True
        if self.answer.done() and not self.answer.cancelled():
            _wipe(self.answer.result())

    def hand_over(self, outcome: Batch | Reason) -> None:
        """Give the outcome to the request; called in its loop."""
        if self.answer.done():
            _wipe(outcome)
        else:
            self.answer.set_result(outcome)


class Readers:
    """The reader threads of one root. `on_fatal` is called when more than 16 are stuck on mounts that are gone."""

    def __init__(self, on_fatal: Callable[[], None]) -> None:
        """Begin without threads."""
        self._on_fatal = on_fatal
        self._jobs: set[_Job] = set()
        self._lock = threading.Lock()

    def stuck(self) -> list[int]:
        """Return the mount of every stuck thread."""
        latest = time.monotonic() - STUCK_AFTER_S
        with self._lock:
            return [job.mount for job in self._jobs if job.abandoned and job.started <= latest]

    def is_stuck(self, mount: int) -> bool:
        """Tell whether a thread is stuck on `mount`, the one that the root resolves to now; may call `on_fatal`."""
        if not self._jobs:
            return False
        stuck = self.stuck()
        here = stuck.count(mount)
        if len(stuck) - here > limits.STUCK_THREADS:
            self._on_fatal()
        return here > 0

    async def run(self, mount: int, root: int, read: Callable[[int], Batch]) -> Batch:
        """Run `read(root)` in a thread and return its batch within 2 s. Takes `root` over and closes it in every case.

        Raises what `read` refuses, and `Refused(ROOT_UNAVAILABLE)` when there is no answer in time, when 16 threads
        read from this mount already, or when no thread can be had.
        """
        loop = asyncio.get_running_loop()
        job = _Job(mount, time.monotonic(), loop.create_future())
        self._start(job, loop, root, read)
        taken = False
        try:
            async with asyncio.timeout(limits.MATERIAL_S):
                outcome = await job.answer
                taken = True
        except TimeoutError:
            raise Refused(Reason.ROOT_UNAVAILABLE) from None
        finally:
            if not taken:
                job.abandon()
        if isinstance(outcome, Reason):
            raise Refused(outcome)
        return outcome

    def _start(self, job: _Job, loop: asyncio.AbstractEventLoop, root: int, read: Callable[[int], Batch]) -> None:
        thread = threading.Thread(target=self._work, args=(job, loop, root, read), name="material", daemon=True)
        with self._lock:
            full = sum(other.mount == job.mount for other in self._jobs) >= limits.STUCK_THREADS
            if not full:
                self._jobs.add(job)
        try:
            if full:
                raise RuntimeError
            thread.start()
        except RuntimeError:
            os.close(root)
            self._forget(job)
            raise Refused(Reason.ROOT_UNAVAILABLE) from None

    def _work(self, job: _Job, loop: asyncio.AbstractEventLoop, root: int, read: Callable[[int], Batch]) -> None:
        outcome: Batch | Reason
        try:
            outcome = read(root)
        except Refused as refused:
            outcome = refused.reason
        except Exception:  # noqa: BLE001
            # What inline would be answered as an internal error is so here; a trace on stderr could hold a path.
            outcome = Reason.INTERNAL
        with suppress(OSError):
            os.close(root)
        self._forget(job)
        try:
            loop.call_soon_threadsafe(job.hand_over, outcome)
        except RuntimeError:  # the loop is closed: the process is ending
            _wipe(outcome)

    def _forget(self, job: _Job) -> None:
        with self._lock:
            self._jobs.discard(job)


def within(seconds: float, judge: Callable[[], None]) -> None:
    """Run `judge` in a daemon thread and wait at most `seconds`, for use before there is a loop.

    Raises what `judge` refuses, and `Refused(ROOT_UNAVAILABLE)` when it does not return in time.
    """
    verdict: list[Reason | None] = []

    def work() -> None:
        try:
            judge()
            verdict.append(None)
        except Refused as refused:
            verdict.append(refused.reason)

    thread = threading.Thread(target=work, name="root", daemon=True)
    thread.start()
    thread.join(seconds)
    reason = verdict[0] if verdict else Reason.ROOT_UNAVAILABLE
    if reason is not None:
        raise Refused(reason)


def _wipe(outcome: Batch | Reason) -> None:
    if isinstance(outcome, Batch):
        outcome.wipe()
