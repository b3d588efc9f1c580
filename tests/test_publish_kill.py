"""A publisher killed, or refused by the kernel, at any system call leaves whole values, and the next one mends."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provider.refs import SecretRef
from sidecar.publish import How, Inputs, publish
from tests.kit.folders import quick_path
from tests.kit.killing import write_sources
from tests.kit.memscan import ROOT

__all__ = ["quick_path"]

CHANGING = {"open", "mkdir", "write", "fchown", "fchmod", "fsync", "symlink", "rename"}
LAYOUTS = ("linked", "flat")
BEFORE = ("empty", *LAYOUTS)
REFUSALS = ("ENOSPC", "EACCES", "EIO")
OPTIONS: list[tuple[str, ...]] = [(), ("prune",), ("from-dir",), ("prune", "from-dir")]

USUAL = [(before, layout, way, ()) for before in BEFORE for layout in LAYOUTS for way in ("kill", "ENOSPC")]
"""Struck in every run of the tests; with PRUNED all that differs: `--prune`, `--from-dir`, other errors."""
PRUNED = [
    ("linked", "linked", "kill", ("prune",)),
    ("flat", "flat", "kill", ("prune", "from-dir")),
    ("linked", "linked", "EIO", ("prune", "from-dir")),
    ("flat", "flat", "EACCES", ("prune",)),
]
EVERY = [
    *itertools.product(BEFORE, LAYOUTS, ("kill",), OPTIONS),
    *itertools.product(BEFORE, LAYOUTS, REFUSALS, (OPTIONS[0], OPTIONS[-1])),
]


def told(case: tuple[str, str, str, tuple[str, ...]]) -> str:
    """Name a case: what is published over what, and what strikes."""
    before, layout, way, options = case
    return "-".join((layout, "over", before, way, *options))


def strike(folder: Path, before: str, layout: str, way: str, options: tuple[str, ...]) -> list[dict[str, Any]]:
    """Run the sweep in a process that forks and has no threads."""
    command = [sys.executable, "-m", "tests.kit.killing", str(folder), before, layout, way, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def judge(results: list[dict[str, Any]], before: str, layout: str, options: tuple[str, ...]) -> None:
    """Hold what a reader had after each strike, and after the run that followed, against the promise."""
    kept = "none" if before == "empty" else "old"
    gone = "none" if "prune" in options else kept
    for result in results:
        assert result["again"] == "new" and result["left"] == [] and result["gone"] == gone, result
        assert result["fourth"] in (kept, gone), result
        if layout == "linked" or before == "linked":
            # One generation: what goes with it goes when the others change.
            assert result["fourth"] == (gone if result["seen"] == "new" else kept), result
    if before == "empty":
        allowed = {"none", "new"}
    else:
        allowed = {"old", "new", "mixed"} if (before, layout) == ("flat", "flat") else {"old", "new"}
    assert {result["seen"] for result in results} == allowed
    calls = {result["call"] for result in results}
    assert calls >= (CHANGING if layout == "linked" else CHANGING - {"mkdir", "symlink"})


@pytest.mark.parametrize(("before", "layout", "way", "options"), [*USUAL, *PRUNED], ids=map(told, [*USUAL, *PRUNED]))
def test_old_or_new_whatever_strikes(
    quick_path: Path, before: str, layout: str, way: str, options: tuple[str, ...]
) -> None:
    """Linked: old or new values at every call. Flat: each file old or new. Kept values stay; the next run mends."""
    judge(strike(quick_path, before, layout, way, options), before, layout, options)


@pytest.mark.soak
@pytest.mark.parametrize(("before", "layout", "way", "options"), EVERY, ids=map(told, EVERY))
def test_every_way_of_striking(quick_path: Path, before: str, layout: str, way: str, options: tuple[str, ...]) -> None:
    """The same for every error, with and without `--prune` and `--from-dir`, over whatever the root held."""
    judge(strike(quick_path, before, layout, way, options), before, layout, options)


@pytest.mark.parametrize("call", ["write", "fchmod", "fsync"])
def test_a_full_disk_leaves_a_flat_set_as_it_was(quick_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """What is refused while values are written, even the last one, changes none: the set that was in force stands."""
    refs = [SecretRef.of("project", f"n{number}") for number in range(3)]
    root = quick_path / "root"
    root.mkdir(mode=0o755)
    with Inputs(write_sources(quick_path, "old", refs)) as inputs:
        publish(str(root), inputs, How("flat"))
    whole, count = getattr(os, call), 0

    def refuse(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == len(refs):
            raise OSError(28, os.strerror(28))
        return whole(*args, **kwargs)

    sources = write_sources(quick_path, "new", refs)
    monkeypatch.setattr(os, call, refuse)
    with Inputs(sources) as inputs, pytest.raises(OSError, match="No space"):
        publish(str(root), inputs, How("flat"))
    assert sorted(path.read_text() for path in root.iterdir()) == [f"old-{ref.name}" for ref in refs]
