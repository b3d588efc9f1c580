"""Where the files of one batch are: in the generation that `..data` links to, or in the root itself (contract 7).

Kubelet and secrets-store CSI write each generation into a directory of its own and swap the link; agents replace single
files. A batch is read beneath one anchor. Whether that still is the place is asked again once everything was read.
"""

import os
import stat
from types import TracebackType
from typing import Final, Self

from provider.rootfs import DIRECTORY, FILE, PROBE, Descriptors, Opener

DATA: Final = b"..data"
"""The link that makes a root linked: it names the directory of the one generation in force."""


class Drift(Exception):
    """A projector changed what was being read. A signal between the attempts of one batch; it goes no further."""


class Layout:
    """The layout that the root has now, and the anchor that it gives. A context manager: it owns the anchor."""

    __slots__ = ("_anchor", "_held", "_opener", "_root")

    def __init__(self, root: int, opener: Opener) -> None:
        """Judge the layout. Raises OSError for a `..data` that is no link, dangles or leaves the root, and Drift."""
        self._root = root
        self._opener = opener
        self._held = Descriptors()
        generation = self._generation(self._held)
        self._anchor = root if generation is None else generation

    def open(self, name: bytes) -> int:
        """Open `name` beneath the anchor for reading. Raises OSError, and Drift when the generation was removed."""
        try:
            return self._opener(self._anchor, name, FILE)
        except FileNotFoundError:
            # A generation is removed only after it was replaced: otherwise the file is missing and stays so.
            if self.has_moved():
                raise Drift from None
            raise

    def look(self, name: bytes) -> os.stat_result:
        """Return what `name` resolves to beneath the anchor now. Raises OSError, and Drift when it is gone."""
        try:
            found = os.stat(name, dir_fd=self._anchor, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                with Descriptors() as held:
                    held.append(self._opener(self._anchor, name, PROBE))
                    found = os.fstat(held[0])
        except FileNotFoundError:
            raise Drift from None
        return found

    def has_moved(self) -> bool:
        """Tell whether `..data` does not name the anchor any more. A flat root has no place to move to."""
        if self._anchor == self._root:
            return False
        with Descriptors() as held:
            try:
                held.append(self._opener(self._root, DATA, DIRECTORY))
            except OSError:
                return True
            return _place(held[0]) != _place(self._anchor)

    def _generation(self, held: Descriptors) -> int | None:
        """Open the directory that `..data` links to; None in the flat layout."""
        target = self._target()
        if target is None:
            return None
        try:
            held.append(self._opener(self._root, DATA, DIRECTORY))
        except FileNotFoundError:
            if self._target() != target:
                raise Drift from None  # swapped, and the old one removed, between reading the link and following it
            raise
        return held[-1]

    def _target(self) -> bytes | None:
        try:
            return os.readlink(DATA, dir_fd=self._root)
        except FileNotFoundError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)


def _place(directory: int) -> tuple[int, int]:
    """Which directory it is: no two that exist at once have the same device and inode."""
    found = os.fstat(directory)
    return found.st_dev, found.st_ino
