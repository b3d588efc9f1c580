"""MountedFiles: values from files that a projector mounts, read afresh for every request (contract 7).

No cache, no watcher, no timer: what a request gets is what the root holds while it is served. Everything is opened
beneath descriptors, judged on descriptors and read once, into buffers that are wiped.
"""

import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, Literal

from provider import limits
from provider.authority import Authority
from provider.layout import Drift, Layout
from provider.material import Batch, Slot
from provider.memory import BufferPool
from provider.mounts import MountProbe, MountTable
from provider.outcomes import Reason, Refused
from provider.readers import Readers, within
from provider.refs import SecretRef
from provider.rootfs import Descriptors, Opener, choose_opener, is_root_path, judge_root, open_root

FORBIDDEN_MODE: Final = 0o7777 & ~0o640
"""A file may have no other permission than read and write for its owner and read for its group."""

_facts: Final = attrgetter("st_dev", "st_ino", "st_nlink", "st_size", "st_mtime_ns", "st_ctime_ns")
"""What must not change while a file is read."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What happened since the start, as numbers."""

    opens: int
    """Files opened beneath the root, those refused afterwards included. Directories are opened with O_PATH, which
    inotify counts as little as this does: watches on the root and on the generation's directory see as many IN_OPEN."""
    drift: int
    """Attempts during which a projector changed what was being read."""
    retries: int
    """Batches that were read a second time."""
    unavailable: int
    """Batches refused."""
    stuck_threads: int
    """Threads that wait for a hung root at this moment."""


@dataclass(frozen=True, slots=True)
class _Root:
    """The root as it is now: a descriptor, the mount that it is on, and whether that is of a local kind."""

    descriptor: int
    mount: int
    local: bool


class MountedFiles:
    """The provider over one root directory, for use from one event loop."""

    def __init__(
        self, root: str, pool: BufferPool, *, on_fatal: Callable[[], None] | None = None, opener: Opener | None = None
    ) -> None:
        """Take the root's path; nothing of it is touched yet.

        `on_fatal` must end the process with 1; it is called when more than 16 threads are stuck on mounts that the
        root has left behind. `opener` None: a self-test chooses.
        """
        self._path = root
        self._path_holds = is_root_path(root)
        self._pool = pool
        self._opener = opener or choose_opener()
        self._mounts = MountTable()
        self._probe = MountProbe()
        self._readers = Readers(on_fatal or (lambda: None))
        self._last_local: bool | None = None
        self._lock = threading.Lock()  # reader threads count too
        self._opens = self._drift = self._retries = self._unavailable = 0

    def verify_root(self) -> None:
        """Judge path and root before the listener opens; returns within 2 s even when the root, or a parent, hangs.

        Raises `Refused(INVALID_CONFIGURATION)` for the path's shape and `Refused(ROOT_UNAVAILABLE)` for the rest.
        """
        within(limits.MATERIAL_S, self._verify)

    def _verify(self) -> None:
        with Descriptors() as held:
            judge_root(self._enter(held).descriptor)

    def inline(self) -> bool:
        """Tell whether `resolve` will complete without suspending: the root is of a local kind, or is not there.

        Never waits for the root's file system, only for that of a parent directory. While no mount changes it says what
        was found last: it only chooses places and timers beforehand, and `resolve` judges the root that it opens.
        """
        if self._last_local is not None and self._mounts.is_settled():
            return self._last_local
        try:
            with Descriptors() as held:
                return self._enter(held).local
        except Refused:
            return True

    def health(self) -> Literal["ok", "failed"]:
        """Tell whether the root would be found good now; an empty one is. Waits for no more than `inline` does.

        A root that is not local is failed while a thread is stuck on it. Its mode is judged by requests alone, since
        looking can hang.
        """
        try:
            with Descriptors() as held:
                root = self._enter(held)
                self._require_live(root)
                if root.local:
                    judge_root(root.descriptor)
        except Refused:
            return "failed"
        return "ok"

    @property
    def stats(self) -> Stats:
        """The numbers so far."""
        return Stats(self._opens, self._drift, self._retries, self._unavailable, len(self._readers.stuck()))

    async def resolve(self, authority: Authority, deadline: float) -> Batch:
        """Read what `authority` names, secrets first, then the bundle, into one batch that the caller owns.

        A local root is read without suspending, any other in a thread and for at most 2 s; whoever keeps an earlier
        `deadline` cancels. Raises `Refused` of stage provider; then, and on cancellation, all that was read is wiped.
        """
        wanted = [(ref, False) for ref in authority.secret_refs] + [(ref, True) for ref in authority.bundle_refs]
        try:
            with Descriptors() as held:
                root = self._enter(held)
                self._require_live(root)
                if root.local:
                    return self._read(wanted, root.descriptor)
                held.clear()  # the thread takes the descriptor over
                return await self._readers.run(root.mount, root.descriptor, partial(self._read, wanted))
        except Refused as refused:
            reason = refused.reason
        self._count(unavailable=1)
        # A new one: the context of the first holds an OSError, and with it names and errno.
        raise Refused(reason)

    def _enter(self, held: Descriptors) -> _Root:
        """Open the root, whatever it is now. Raises `Refused` with INVALID_CONFIGURATION or ROOT_UNAVAILABLE."""
        if not self._path_holds:
            raise Refused(Reason.INVALID_CONFIGURATION)
        try:
            held.append(open_root(self._path))
            mount = self._probe.mount_id(held[0])
            self._last_local = local = self._mounts.is_local(mount)
            return _Root(held[0], mount, local)
        except OSError:
            raise Refused(Reason.ROOT_UNAVAILABLE) from None

    def _require_live(self, root: _Root) -> None:
        if self._readers.is_stuck(root.mount):
            raise Refused(Reason.ROOT_UNAVAILABLE)

    def _count(self, *, opens: int = 0, drift: int = 0, retries: int = 0, unavailable: int = 0) -> None:
        with self._lock:
            self._opens += opens
            self._drift += drift
            self._retries += retries
            self._unavailable += unavailable

    def _read(self, wanted: Sequence[tuple[SecretRef, bool]], root: int) -> Batch:
        """Read one batch, twice if need be. `wanted` holds refs and whether each is the bundle.

        1. The root was opened for this request; judge it.
        2. Layout: a link `..data` is followed once, to the anchor of the batch. Without it the root is the anchor.
        3. Open every file beneath the anchor and judge it on its descriptor, before a byte is read.
        4. Allocate from the sizes found, then read each file once, at most one byte beyond its size.
        5. After the last read judge every name again: the same file, unchanged. Linked: the same generation, too.
        6. Judge the bytes.

        Whatever changed under the reader is drift: all is wiped and 2 to 6 are done once more, then no more.
        """
        judge_root(root)  # 1
        for retries in (1, 0):
            with Descriptors() as files:
                try:
                    return self._attempt(wanted, root, files)
                except Drift:
                    self._count(drift=1, retries=retries)
                except OSError:
                    break
                finally:
                    self._count(opens=len(files))
        raise Refused(Reason.MATERIAL_UNAVAILABLE)

    def _attempt(self, wanted: Sequence[tuple[SecretRef, bool]], root: int, files: Descriptors) -> Batch:
        with Layout(root, self._opener) as layout:  # 2
            # 3
            slots, facts = [], []
            for ref, bundle in wanted:
                files.append(layout.open(ref.file_name.encode()))
                found = _judged(os.fstat(files[-1]))
                slots.append(Slot(ref, found.st_size, bundle))
                facts.append(_facts(found))
            # 4
            batch = Batch(self._pool, slots)
            try:
                for index, file in enumerate(files):
                    if os.preadv(file, (batch.room(index),), 0) != slots[index].size:
                        raise Drift
                # 5
                for slot, before in zip(slots, facts, strict=True):
                    if _facts(layout.look(slot.ref.file_name.encode())) != before:
                        raise Drift
                if layout.has_moved():
                    raise Drift
                # 6
                for index, slot in enumerate(slots):
                    batch.fill(index, slot.size)
            except BaseException:
                batch.wipe()
                raise
            return batch


def _judged(found: os.stat_result) -> os.stat_result:
    """Return `found` if a file may be like this; its size is judged by the batch.

    Raises `Refused(MATERIAL_UNAVAILABLE)`, and Drift for a file whose name went away since it was opened.
    """
    if not stat.S_ISREG(found.st_mode) or found.st_mode & FORBIDDEN_MODE or found.st_nlink > 1:
        raise Refused(Reason.MATERIAL_UNAVAILABLE)
    if found.st_nlink == 0:
        raise Drift
    return found
