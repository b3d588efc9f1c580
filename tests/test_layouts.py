"""Random trees and links: whatever a root holds, no byte from outside it is ever delivered, and nothing hangs."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider import rootfs
from provider.limits import LINK_DEPTH
from provider.outcomes import Reason, Refused
from provider.rootfs import Opener
from tests.kit.authority import secret
from tests.kit.projector import write_file
from tests.kit.stage import Stage

REFS: Final = [secret(name) for name in "abc"]
HASHES: Final = [ref.file_name for ref in REFS]
INSIDE, OUTSIDE = b"inside", b"outside"
KERNEL_LINKS: Final = 40
"""Links that the kernel follows for one name; the walk follows eight."""

# Few names, so that links often meet something; two of them are directories that projectors make.
NAMES: Final = st.sampled_from([*HASHES, "..data", "..one", "..two", "x"])
STEPS: Final = st.sampled_from([*HASHES, "..data", "..one", "..two", "x", "..", ".", "", "root", "outside", "beside"])
TARGETS: Final = st.one_of(
    st.lists(STEPS, min_size=1, max_size=4).map("/".join).filter(bool),
    st.sampled_from(["{base}/outside", "{base}/root/x", "/proc/self/root{base}/outside", "/", "../outside", "."]),
)


@dataclass(frozen=True)
class Entry:
    """Something in the root: where, what, and for a link to where."""

    path: tuple[str, ...]
    kind: str
    target: str = ""


ENTRIES: Final = st.one_of(
    st.builds(
        Entry, st.lists(NAMES, min_size=1, max_size=3).map(tuple), st.sampled_from(["file", "file", "fifo", "outside"])
    ),
    st.builds(Entry, st.lists(NAMES, min_size=1, max_size=2).map(tuple), st.just("link"), TARGETS),
)


def build(base: Path, entries: list[Entry]) -> Path:
    """Make the outside and then the root of these entries; one that does not fit what is there already is left out."""
    root = base / "root"
    root.mkdir(mode=0o755)
    write_file(base / "outside", OUTSIDE)
    (base / "beside").mkdir()
    for name in HASHES:
        write_file(base / "beside" / name, OUTSIDE)
    for entry in entries:
        path = root.joinpath(*entry.path)
        above = [parent for parent in path.parents if root in parent.parents and os.path.lexists(parent)]
        if os.path.lexists(path) or any(parent.is_symlink() or not parent.is_dir() for parent in above):
            continue  # nothing is made through a link: the outside stays as it is
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.kind == "link":
            path.symlink_to(entry.target.replace("{base}", str(base)))
        elif entry.kind == "fifo":
            os.mkfifo(path, 0o440)
        elif entry.kind == "outside":
            os.link(base / "outside", path)
        else:
            write_file(path, INSIDE)
    return root


def served(root: Path, opener: Opener) -> list[bytes | Reason]:
    """Ask for each ref alone, and return what came."""
    stage = Stage(root, opener)
    outcomes: list[bytes | Reason] = []
    for ref in REFS:
        try:
            outcomes += stage.values(ref)
        except Refused as refused:
            outcomes.append(refused.reason)
        assert stage.pool.is_clean()
    return outcomes


def is_inside(root: Path, name: str, most_links: int) -> bool:
    """Tell, in another way than the openers do, whether `name` is served: every step of every link judged by itself."""
    anchor = root
    if (root / "..data").is_symlink():
        generation = resolved(root, "..data", most_links)
        if generation is None or not generation.is_dir():
            return False
        anchor = generation
    elif os.path.lexists(root / "..data"):
        return False
    path = resolved(anchor, name, most_links)
    return path is not None and path.is_file() and path.stat().st_nlink == 1


def resolved(anchor: Path, name: str, most_links: int) -> Path | None:
    """Resolve `name` beneath `anchor`; None when a step leads above it or nowhere, or there are too many links."""
    here, pending, links = anchor, name.split("/")[::-1], 0
    while pending:
        part = pending.pop()
        if not here.is_dir():
            return None
        if part == "..":
            if here == anchor:
                return None
            here = here.parent
        elif part not in ("", "."):
            here = here / part
            if here.is_symlink():
                target = os.readlink(here)
                links += 1
                if target.startswith("/") or links > most_links:
                    return None
                here, pending = here.parent, pending + target.split("/")[::-1]
            elif not here.exists():
                return None
    return here


@given(st.lists(ENTRIES, min_size=1, max_size=12))
def test_no_byte_from_outside(entries: list[Entry]) -> None:
    """Both openers deliver exactly what lies inside by every step, whatever links lead where, and nothing else."""
    with tempfile.TemporaryDirectory() as directory:
        root = build(Path(directory), entries)
        for opener, most_links in ((rootfs.openat2, KERNEL_LINKS), (rootfs.walk, LINK_DEPTH)):
            expected = [INSIDE if is_inside(root, name, most_links) else Reason.MATERIAL_UNAVAILABLE for name in HASHES]
            assert served(root, opener) == expected
        assert (Path(directory) / "outside").read_bytes() == OUTSIDE


@pytest.mark.parametrize("opener", [rootfs.openat2, rootfs.walk], ids=["openat2", "walk"])
def test_the_net_catches(opener: Opener) -> None:
    """The random test could fail: an opener that follows any link does deliver bytes from outside."""

    def careless(anchor: int, name: bytes, flags: int) -> int:
        return os.open(name, flags, dir_fd=anchor)

    base = Path(tempfile.mkdtemp())
    try:
        root = build(base, [Entry((HASHES[0],), "link", "../outside"), Entry((HASHES[1],), "link", "{base}/beside/x")])
        assert served(root, careless)[0] == OUTSIDE
        assert served(root, opener)[0] is Reason.MATERIAL_UNAVAILABLE
    finally:
        shutil.rmtree(base)
