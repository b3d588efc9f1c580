"""A root on disk and the provider over it, for tests of what is read from it."""

import mmap
import os
from contextlib import suppress
from pathlib import Path

import pytest

from provider.material import Batch
from provider.memory import Buffer, BufferPool
from provider.mounted import MountedFiles
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef
from provider.rootfs import Opener
from tests.kit.authority import authority_for, bundle, secret
from tests.kit.inline import finish
from tests.kit.projector import publish, write_file

A, B, BUNDLE = secret("a"), secret("b"), bundle("environment")


class RecordingPool(BufferPool):
    """A pool that keeps sight of every mapping it ever made.

    It keeps every buffer as well, so that none is wiped merely because the collector found it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mappings: list[mmap.mmap] = []
        self.buffers: list[Buffer] = []

    def take(self, size: int) -> Buffer:
        """Lend a buffer and remember it."""
        self.buffers.append(super().take(size))
        return self.buffers[-1]

    def _map(self, room: int) -> mmap.mmap:
        self.mappings.append(super()._map(room))
        return self.mappings[-1]

    def holds_values(self) -> bool:
        """Tell whether any mapping holds anything but zeros."""
        return any(any(mapping[:]) for mapping in self.mappings)

    def is_clean(self) -> bool:
        """Tell whether nothing is taken and nothing is held."""
        return self.outstanding == 0 and not self.holds_values()


class Stage:
    """A root on disk and the provider over it."""

    def __init__(self, root: Path, opener: Opener | None = None) -> None:
        self.root = root
        self.pool = RecordingPool()
        self.provider = MountedFiles(str(root), self.pool, opener=opener)

    def write(self, ref: SecretRef, value: bytes, mode: int = 0o440) -> Path:
        """Write the file of `ref` into the flat root."""
        path = self.root / ref.file_name
        path.unlink(missing_ok=True)
        write_file(path, value, mode)
        return path

    def values(self, *refs: SecretRef, bundles: tuple[SecretRef, ...] = ()) -> list[bytes]:
        """Resolve, copy the values out and wipe."""
        with finish(self.provider.resolve(authority_for(refs, bundles), 0.0)) as batch:
            return copied(batch)

    def refusal(self, *refs: SecretRef, bundles: tuple[SecretRef, ...] = ()) -> Reason:
        """Resolve what must be refused; nothing may stay behind, and nothing may hang on the exception."""
        before = open_descriptors()
        with pytest.raises(Refused) as caught:
            finish(self.provider.resolve(authority_for(refs, bundles), 0.0))
        assert caught.value.__context__ is caught.value.__cause__ is None
        assert self.pool.is_clean()
        assert open_descriptors() == before
        return caught.value.reason


def copied(batch: Batch) -> list[bytes]:
    """Copy the values out of a batch."""
    values = []
    for index in range(len(batch.slots)):
        with batch.value(index) as value:
            values.append(bytes(value))
    return values


def make_flat(root: Path) -> Stage:
    """Make a flat root that holds A and B."""
    root.mkdir(mode=0o755)
    stage = Stage(root)
    stage.write(A, b"value of a")
    stage.write(B, b"value of b")
    return stage


def make_linked(root: Path) -> Stage:
    """Make a linked root whose generation `one` holds A and B."""
    root.mkdir(mode=0o755)
    publish(root, "one", {A.file_name: b"one a", B.file_name: b"one b"})
    return Stage(root)


def open_descriptors() -> list[str]:
    """Return what every open descriptor leads to, but for mount tables and probes, which the collector closes."""
    leads = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of the listing itself
            leads.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(lead for lead in leads if not lead.endswith("/mountinfo") and "/fdinfo/" not in lead)
