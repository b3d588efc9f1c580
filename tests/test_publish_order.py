"""sidecar/publish: what a name leads to survives a power cut; the order of the system calls is what holds it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from provider.refs import SecretRef
from sidecar.publish import How, Inputs, Source, publish
from sidecar.publish.target import DATA, NEW

REFS = [SecretRef.of("project", name) for name in ("first", "second")]
Call = tuple[str, str]


class Calls:
    """What was written, synced, renamed and unlinked, each by the name it has, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Call] = []
        self._record(monkeypatch, "write", lambda descriptor, *_, **__: _name(descriptor))
        self._record(monkeypatch, "fsync", lambda descriptor, **__: _name(descriptor))
        self._record(monkeypatch, "rename", lambda source, target, **__: os.fspath(target))
        self._record(monkeypatch, "unlink", lambda name, **__: os.fspath(name))

    def _record(self, monkeypatch: pytest.MonkeyPatch, call: str, naming: Callable[..., str]) -> None:
        real = getattr(os, call)

        def recorded(*values: Any, **how: Any) -> Any:
            self.made.append((call, naming(*values, **how)))
            return real(*values, **how)

        monkeypatch.setattr(os, call, recorded)

    def last(self, call: str, name: str) -> int:
        """Where the last such call stands."""
        return max(at for at, one in enumerate(self.made) if one == (call, name))


def _name(descriptor: int) -> str:
    return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))


def write(root: Path, layout: Literal["linked", "flat"]) -> str | None:
    """Publish one value for each ref."""
    sources = []
    for ref in REFS:
        path = root.parent / ref.file_name
        path.write_bytes(ref.name.encode())
        sources.append(Source(ref.file_name, ref.name, str(path)))
    with Inputs(sources) as inputs:
        return publish(str(root), inputs, How(layout)).generation


@pytest.mark.parametrize("before", ["empty", "linked", "flat"])
def test_what_is_put_in_force_is_on_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Linked: files, then their directory, are on disk before the one rename; the old ones go when that is, too."""
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    old = write(root, before) if before in ("linked", "flat") else None  # type: ignore[arg-type]  # one of the two
    calls = Calls(monkeypatch)
    generation = write(root, "linked")
    assert generation is not None
    in_force = calls.last("rename", DATA)
    for ref in REFS:
        assert calls.last("write", ref.file_name) < calls.last("fsync", ref.file_name) < in_force
        assert calls.last("fsync", ref.file_name) < calls.last("fsync", generation) < in_force
    assert in_force < calls.last("fsync", root.name)
    if old is not None:
        gone = [at for at, (call, name) in enumerate(calls.made) if call == "unlink" and name == REFS[0].file_name]
        assert gone and in_force < calls.made.index(("fsync", root.name), in_force) < gone[-1]


def test_flat_files_are_on_disk_before_they_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat: each file is on disk before it is renamed to its name, and the names are when all is done."""
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    calls = Calls(monkeypatch)
    write(root, "flat")
    for ref in REFS:
        made = f"{NEW}{ref.file_name}"
        assert calls.last("write", made) < calls.last("fsync", made) < calls.last("rename", ref.file_name)
    assert calls.last("rename", REFS[1].file_name) < calls.last("fsync", root.name)
