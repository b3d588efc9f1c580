"""The layouts: judged for each batch, and whether a batch's place still is the place."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provider import rootfs
from provider.layout import Drift, Layout
from provider.rootfs import FILE, Descriptors, Opener, open_root
from tests.kit.projector import publish
from tests.kit.stage import open_descriptors


@pytest.fixture(params=[rootfs.openat2, rootfs.walk], ids=["openat2", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    """Both openers: every rule below holds for each."""
    chosen: Opener = request.param
    return chosen


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A root as the kubelet writes it, with the file `key`."""
    root = tmp_path / "root"
    root.mkdir()
    publish(root, "one", {"key": b"one"})
    return root


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A root with one file."""
    root = tmp_path / "flat"
    root.mkdir()
    (root / "key").write_bytes(b"flat")
    return root


@pytest.fixture
def opened() -> Iterator[Callable[[Path], int]]:
    """Opens roots for the test."""
    with Descriptors() as held:

        def open_(path: Path) -> int:
            held.append(open_root(str(path)))
            return held[-1]

        yield open_


def content(layout: Layout, name: bytes = b"key") -> bytes:
    """Open and read."""
    with Descriptors([layout.open(name)]) as held:
        return os.read(held[0], 100)


def test_linked_is_pinned(linked: Path, opened: Callable[[Path], int], opener: Opener) -> None:
    """Every file of a batch comes from the generation that was in force when the layout was judged."""
    with Layout(opened(linked), opener) as layout:
        assert content(layout) == b"one"
        assert layout.look(b"key").st_size == 3
        assert not layout.has_moved()
        publish(linked, "two", {"key": b"other"})
        assert layout.has_moved()
    with Layout(opened(linked), opener) as layout:
        assert content(layout) == b"other"


def test_flat_is_the_root(flat: Path, opened: Callable[[Path], int], opener: Opener) -> None:
    """Without `..data` files lie in the root, and a link among them that stays inside is followed."""
    (flat / "link").symlink_to("key")
    with Layout(opened(flat), opener) as layout:
        assert content(layout) == content(layout, b"link") == b"flat"
        assert layout.look(b"link").st_ino == layout.look(b"key").st_ino == (flat / "key").stat().st_ino
        assert not layout.has_moved()


@pytest.mark.parametrize("target", ["missing", "../outside", "/", "key", "..data", "a/../../root/..one"])
def test_bad_link(linked: Path, opened: Callable[[Path], int], opener: Opener, target: str) -> None:
    """A `..data` that dangles, leaves the root, loops or leads to a file is an error, not a flat root."""
    (linked.parent / "outside").mkdir()
    (linked / "..data").unlink()
    (linked / "..data").symlink_to(target)
    with pytest.raises(OSError, match=r"Errno"):
        Layout(opened(linked), opener)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_data_that_is_no_link(
    linked: Path, opened: Callable[[Path], int], opener: Opener, make: Callable[[Path], None]
) -> None:
    """A `..data` that is a directory or a file is an error."""
    (linked / "..data").unlink()
    make(linked / "..data")
    with pytest.raises(OSError, match=r"Errno"):
        Layout(opened(linked), opener)


def test_missing_file_is_no_drift(linked: Path, flat: Path, opened: Callable[[Path], int], opener: Opener) -> None:
    """A file that is missing while the generation stands is missing; a second attempt would not find it."""
    for root in (linked, flat):
        with Layout(opened(root), opener) as layout, pytest.raises(FileNotFoundError):
            layout.open(b"other")


def test_removed_generation_is_drift(linked: Path, opened: Callable[[Path], int], opener: Opener) -> None:
    """A file that is missing because its generation was replaced and removed is drift, by either way of looking."""
    with Layout(opened(linked), opener) as layout:
        publish(linked, "two", {"key": b"two"})
        with pytest.raises(Drift):
            layout.open(b"key")
        with pytest.raises(Drift):
            layout.look(b"key")


def test_vanished_name_is_drift(flat: Path, opened: Callable[[Path], int], opener: Opener) -> None:
    """A name that was there and is gone, or dangles, when it is looked at again is drift."""
    (flat / "link").symlink_to("key")
    with Layout(opened(flat), opener) as layout:
        (flat / "key").unlink()
        for name in (b"key", b"link"):
            with pytest.raises(Drift):
                layout.look(name)


def test_swap_while_the_link_is_followed(linked: Path, opened: Callable[[Path], int], opener: Opener) -> None:
    """When the generation goes between reading `..data` and following it, that is drift."""

    def swapping(anchor: int, name: bytes, flags: int) -> int:
        (linked / "..one").rename(linked / "..two")
        try:
            return opener(anchor, name, flags)
        finally:
            (linked / "..data").unlink()
            (linked / "..data").symlink_to("..two")

    with pytest.raises(Drift):
        Layout(opened(linked), swapping)


def test_layout_that_changes_has_moved(linked: Path, opened: Callable[[Path], int], opener: Opener) -> None:
    """A `..data` that is gone, is bad, or is just being swapped when asked again does not name the anchor."""
    (linked / "..same").symlink_to("..one")
    with Layout(opened(linked), opener) as layout:
        for target, moved in (("..same", False), ("missing", True), ("/", True), (".", True), ("..one", False)):
            (linked / "..data").unlink()
            (linked / "..data").symlink_to(target)
            assert layout.has_moved() is moved, target
        (linked / "..data").unlink()
        assert layout.has_moved()
        (linked / "..data").mkdir()
        assert layout.has_moved()


def test_nothing_stays_open(linked: Path, flat: Path, opened: Callable[[Path], int], opener: Opener) -> None:
    """A layout closes its anchor, and never the root."""
    for root in (linked, flat):
        descriptor = opened(root)
        before = open_descriptors()
        with Layout(descriptor, opener) as layout:
            layout.has_moved()
            os.close(opener(descriptor, b"key", FILE))
        assert open_descriptors() == before
