"""Keeping the TLS identity current: the snapshot in service, its reload, and the watch over its files.

A notice of the file system, a changed `stat` and a slow reading of the contents each lead to the same attempt, so a
watcher that sees nothing only delays. Whatever is wrong with what was found, the last good snapshot stays, and the
attempt is made again until the files fit: they may arrive in any order.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from sidecar.identity import Identity, build, load
from sidecar.identityfiles import IdentityFiles, read, stamp
from sidecar.trust import Finding, IdentityFault

QUICK_S: Final = 0.25
"""Between looks at `stat`, and the first pause before a failed attempt is repeated; each further pause doubles."""
POLL_S: Final = 30.0
"""Between readings of the contents when nothing seems to happen, and the longest pause after a failed attempt."""
_DEBOUNCE_MS: Final = 100
_STEP_MS: Final = 50
_JOIN_S: Final = 1.0
_BLIND_WAKES: Final = 20

Run = Callable[[Callable[[], None]], object]


class IdentityHolder:
    """The snapshot in service. `reload` may be called from any thread; it replaces `current` and nothing else does."""

    def __init__(self, files: IdentityFiles, on_event: Callable[..., None] = lambda name, **fields: None) -> None:
        """Load the first snapshot. Raises IdentityFault.

        `on_event(name, **fields)` gets `identity_reloaded` (generation), `identity_rejected` (role, fault), once for
        each new set of faults, and `identity_watch_failed`, once; `level` besides, as `Events.emit` takes it.
        """
        self.files = files
        self.current: Identity = load(files)
        self.on_event = on_event
        self.reloads = 0
        """New snapshots taken into service."""
        self.reload_failures = 0
        """Attempts that left the last good snapshot in service, repetitions included."""
        self.watch_failures = 0
        """Times the file system could not be watched, or the watch broke; polling went on."""
        self.faults: tuple[Finding, ...] = ()
        """What was wrong at the last attempt; empty when it was good or found nothing new."""
        self._lock = threading.Lock()

    @property
    def last_fault(self) -> Finding | None:
        """The first fault of the last attempt, None when there was none."""
        return self.faults[0] if self.faults else None

    def reload(self, run: Run = lambda call: call()) -> bool:
        """Read the files and, if their contents are new and good, put a snapshot of them into service.

        Return whether that happened. `run` says where the callbacks run; an event loop's `call_soon_threadsafe` fits.
        """
        with self._lock:
            try:
                with read(self.files) as material:
                    if material.digest == self.current.digest:
                        self.faults = ()
                        return False
                    identity = build(material, self.current, time.time())
            except IdentityFault as fault:
                self.reload_failures += 1
                if fault.faults != self.faults:
                    self.faults = fault.faults
                    for found in fault.faults:
                        fields = {"level": "error", "role": found.role.value, "fault": found.fault.code}
                        run(partial(self.on_event, "identity_rejected", **fields))
                return False
            self.current, self.faults = identity, ()
            self.reloads += 1
        run(partial(self.on_event, "identity_reloaded", generation=identity.generation))
        return True


async def watch(holder: IdentityHolder, stop: asyncio.Event, poll_s: float = POLL_S) -> None:
    """Keep `holder` current until `stop` is set. Callbacks run in this event loop.

    The work is done in a daemon thread: a load takes milliseconds that a delivery should not wait for, and files that
    hang must stop neither the loop nor the exit.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    ended = threading.Event()

    def run(call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(call)

    def work() -> None:
        try:
            _work(holder, run, ended, poll_s)
        finally:
            run(done.set)

    threading.Thread(target=work, name="identity-watch", daemon=True).start()
    try:
        await stop.wait()
    finally:
        ended.set()
        # Once this has returned nobody is told of a new snapshot any more; only files that hang are not waited for.
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _JOIN_S)


def _work(holder: IdentityHolder, run: Run, ended: threading.Event, poll_s: float) -> None:
    tried, due, pause = None, 0.0, QUICK_S
    for noticed in _wakes(holder, run, ended):
        seen = stamp(holder.files)
        changed = noticed or seen != tried
        if not changed and time.monotonic() < due:
            continue
        # Taken before the attempt: what changes during it is then seen as a change.
        tried = seen
        pause = QUICK_S if changed else min(pause * 2, poll_s)
        try:
            holder.reload(run)
        except Exception:  # noqa: BLE001 - nothing may end the watch; it is counted and tried again
            _watch_failed(holder, run)
        due = time.monotonic() + (pause if holder.faults else poll_s)


def _wakes(holder: IdentityHolder, run: Run, ended: threading.Event) -> Iterator[bool]:
    """Yield True after a notice of the file system, and False after QUICK_S without one, until `ended`."""
    while not ended.is_set():
        places = _places(holder.files)
        try:
            from watchfiles import watch as notices  # not needed by the other commands  # noqa: PLC0415

            for changes in notices(
                *sorted(path for path, _ in places),
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=_STEP_MS,
                rust_timeout=int(QUICK_S * 1000),
                yield_on_timeout=True,
                recursive=False,
                stop_event=ended,
            ):
                yield bool(changes)
                # A swap leads the names to another directory, a removed directory gives no notice any more.
                if _places(holder.files) != places:
                    break
        except Exception:  # noqa: BLE001 - the library raises OSError and errors of its own; polling goes on blind
            _watch_failed(holder, run)
            for _ in range(_BLIND_WAKES):
                if ended.wait(QUICK_S):
                    return
                yield False


def _places(files: IdentityFiles) -> frozenset[tuple[str, tuple[int, int] | None]]:
    """Return the directories that hold the names and those that hold the files they lead to, with their inodes."""
    paths = [path for _, path in files.named()]
    found = {os.path.dirname(path) for path in paths} | {os.path.dirname(os.path.realpath(path)) for path in paths}
    return frozenset((path, _inode(path)) for path in found)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _watch_failed(holder: IdentityHolder, run: Run) -> None:
    holder.watch_failures += 1
    if holder.watch_failures == 1:
        run(partial(holder.on_event, "identity_watch_failed", level="error"))
