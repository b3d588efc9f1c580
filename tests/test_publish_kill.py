"""A publisher killed, or refused by the kernel, at any system call leaves whole values, and the next one mends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.folders import quick_path
from tests.kit.memscan import ROOT

__all__ = ["quick_path"]


def strike(folder: Path, before: str, layout: str, way: str) -> list[dict[str, Any]]:
    """Run the sweep in a process that forks and has no threads."""
    command = [sys.executable, "-m", "tests.kit.killing", str(folder), before, layout, way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("way", ["kill", "refuse"])
@pytest.mark.parametrize("before", ["empty", "linked", "flat"])
def test_linked_is_old_or_new(quick_path: Path, before: str, way: str) -> None:
    """Linked: at every call a reader has all old values or all new ones, what is kept is there, nothing is left."""
    results = strike(quick_path, before, "linked", way)
    calls = {result["call"] for result in results}
    assert calls >= {"open", "mkdir", "write", "fchown", "fchmod", "fsync", "symlink", "rename"}
    allowed = {"none", "new"} if before == "empty" else {"old", "new"}
    assert {result["seen"] for result in results} == allowed
    for result in results:
        assert result["again"] == "new" and result["left"] == [], result
        assert result["fourth"] == ("none" if before == "empty" else "old"), result


@pytest.mark.parametrize("way", ["kill", "refuse"])
@pytest.mark.parametrize("before", ["empty", "linked", "flat"])
def test_flat_is_whole_file_by_file(quick_path: Path, before: str, way: str) -> None:
    """Flat: at every call each file is old or new, never torn; the set may mix; the next run completes it."""
    results = strike(quick_path, before, "flat", way)
    allowed = {"empty": {"none", "new"}, "linked": {"old", "new"}, "flat": {"old", "mixed", "new"}}[before]
    assert {result["seen"] for result in results} == allowed
    for result in results:
        assert result["again"] == "new" and result["left"] == [], result
        assert result["fourth"] == ("none" if before == "empty" else "old"), result
