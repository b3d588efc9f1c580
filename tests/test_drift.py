"""MountedFiles: what drift is, that nothing stays behind whichever step fails, and that opens are counted truly."""

import errno
import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provider import mounted, rootfs
from provider.layout import Drift, Layout
from provider.material import Batch
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef
from provider.rootfs import Opener
from tests.kit.authority import authority_for, secret
from tests.kit.inline import finish
from tests.kit.inotify import OpenWitness
from tests.kit.projector import publish, write_file
from tests.kit.stage import BUNDLE, A, B, RecordingPool, Stage, copied, make_flat, make_linked, open_descriptors


@pytest.fixture
def flat(tmp_path: Path) -> Stage:
    """A flat root that holds A and B."""
    return make_flat(tmp_path / "flat")


@pytest.fixture
def linked(tmp_path: Path) -> Stage:
    """A linked root that holds A and B."""
    return make_linked(tmp_path / "linked")


# --- drift -----------------------------------------------------------------------------------------------------


def after_read(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> None:
    """Make the next changes, one after each read of a file; None is waited out."""
    left = list(changes)
    preadv = os.preadv

    def preadv_then_change(descriptor: int, rooms: Any, offset: int) -> int:
        done = preadv(descriptor, rooms, offset)
        if left:
            left.pop(0)()
        return done

    monkeypatch.setattr(os, "preadv", preadv_then_change)


def nothing() -> None:
    """No change."""


def rewrite(path: Path, value: bytes) -> None:
    """Write in place."""
    path.chmod(0o640)
    path.write_bytes(value)


CHANGES: dict[str, Callable[[Stage], object]] = {
    "replaced": lambda stage: stage.write(A, b"value of A"),
    "removed": lambda stage: (stage.root / A.file_name).unlink(),
    "rewritten in place": lambda stage: rewrite(stage.root / A.file_name, b"VALUE OF A"),
    "truncated": lambda stage: os.truncate(stage.root / A.file_name, 3),
    "grown": lambda stage: os.truncate(stage.root / A.file_name, 11),
    "linked": lambda stage: os.link(stage.root / A.file_name, stage.root / "other"),
    "chmodded": lambda stage: (stage.root / A.file_name).chmod(0o400),
    "mtime only": lambda stage: os.utime(stage.root / A.file_name, ns=(1, 1)),
    "made a link": lambda stage: os.replace(symlink(stage.root / "staged", B.file_name), stage.root / A.file_name),
}


def symlink(path: Path, target: str) -> Path:
    """Make a link and return its path."""
    path.symlink_to(target)
    return path


@pytest.mark.parametrize("change", CHANGES)
def test_drift_in_a_flat_root(flat: Stage, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Whatever changes of a file after its read, though before the last one's, is drift: the batch is read again."""
    (flat.root / A.file_name).chmod(0o640)
    after_read(monkeypatch, lambda: CHANGES[change](flat))
    try:
        values = flat.values(A, B)
    except Refused as refused:
        assert refused.reason is Reason.MATERIAL_UNAVAILABLE
        assert change in ("removed", "grown", "linked")  # what is there now is not as a file must be
    else:
        assert values[0] == {
            "chmodded": b"value of a", "mtime only": b"value of a", "truncated": b"val", "made a link": b"value of b",
            "replaced": b"value of A", "rewritten in place": b"VALUE OF A",
        }[change]  # fmt: skip
    assert (flat.provider.stats.drift, flat.provider.stats.retries) == (1, 1)
    assert flat.pool.is_clean()


@pytest.mark.parametrize("change", ["replaced", "rewritten in place", "truncated", "chmodded"])
def test_drift_before_the_read(flat: Stage, change: str) -> None:
    """A change between opening and reading is drift as well."""
    changes = [CHANGES[change]]

    def opener(anchor: int, name: bytes, flags: int) -> int:
        descriptor = rootfs.openat2(anchor, name, flags)
        if name == B.file_name.encode() and changes:
            changes.pop()(stage)
        return descriptor

    stage = Stage(flat.root, opener)
    (stage.root / A.file_name).chmod(0o640)
    stage.values(A, B)
    assert (stage.provider.stats.drift, stage.provider.stats.retries) == (1, 1)


def test_name_gone_before_it_is_judged(flat: Stage) -> None:
    """A file whose name went away between opening and judging has no hard link: drift, since it was replaced."""
    changes = [lambda: flat.write(A, b"new")]

    def opener(anchor: int, name: bytes, flags: int) -> int:
        descriptor = rootfs.openat2(anchor, name, flags)
        if changes:
            changes.pop()()
        return descriptor

    stage = Stage(flat.root, opener)
    assert stage.values(A) == [b"new"]
    assert stage.provider.stats.drift == 1


def test_file_without_a_name_is_drift() -> None:
    """A file that lost its only name is not judged like one with two."""
    with pytest.raises(Drift):
        mounted._judged(os.stat_result((stat.S_IFREG | 0o440, 1, 1, 0, 0, 0, 5, 0, 0, 0)))


@pytest.mark.parametrize("fact", ["st_dev", "st_ino", "st_nlink", "st_size", "st_mtime_ns", "st_ctime_ns"])
def test_each_fact_alone_is_drift(flat: Stage, monkeypatch: pytest.MonkeyPatch, fact: str) -> None:
    """Each fact that must not change is drift by itself; a file that only was read is none."""
    look = Layout.look

    def changed(layout: Layout, name: bytes) -> os.stat_result:
        found = look(layout, name)
        facts = {known: getattr(found, known) for known in dir(found) if known.startswith("st_")}
        return SimpleNamespace(**facts | {fact: facts[fact] + 1})  # type: ignore[return-value]

    assert flat.values(A) == [b"value of a"]
    monkeypatch.setattr(Layout, "look", changed)
    assert flat.refusal(A) is Reason.MATERIAL_UNAVAILABLE
    assert flat.provider.stats.drift == 2


@pytest.mark.parametrize("missing", [1, -1])
def test_read_of_another_length(flat: Stage, monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    """A read that brings fewer or more bytes than the size said is drift, whatever else seems unchanged."""
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *arguments: preadv(*arguments) - missing)
    assert flat.refusal(A) is Reason.MATERIAL_UNAVAILABLE
    assert flat.provider.stats.drift == 2


def test_second_drift_is_unavailable(flat: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is read twice and no more; the next request begins afresh."""
    swap = [lambda: flat.write(A, b"x"), nothing] * 2
    after_read(monkeypatch, *swap)
    assert flat.refusal(A, B) is Reason.MATERIAL_UNAVAILABLE
    stats = flat.provider.stats
    assert (stats.drift, stats.retries, stats.unavailable) == (2, 1, 1)
    assert flat.values(A, B) == [b"x", b"value of b"]


def test_rotation_between_two_files(linked: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation that is swapped in between is never mixed in: the batch is read again, from the new one."""
    new = {A.file_name: b"two a", B.file_name: b"two b"}
    after_read(monkeypatch, lambda: publish(linked.root, "two", new))
    assert linked.values(A, B) == [b"two a", b"two b"]
    assert linked.provider.stats.drift == 1


def test_swap_alone_is_drift(linked: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old generation, although it still is whole, is not delivered once `..data` names another."""
    new = linked.root / "..two"
    new.mkdir()
    write_file(new / A.file_name, b"two a")
    after_read(monkeypatch, lambda: os.replace(symlink(linked.root / "..data_tmp", "..two"), linked.root / "..data"))
    assert linked.values(A) == [b"two a"]
    assert linked.provider.stats.drift == 1


# --- nothing stays behind --------------------------------------------------------------------------------------


class Failing:
    """Lets call number `step` to the kernel fail, and knows whether values were in memory then."""

    def __init__(self, step: int, pool: RecordingPool) -> None:
        self.calls = itertools.count()
        self.step = step
        self.pool = pool
        self.has_failed = self.held_values = False

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return `real`, counted."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            if next(self.calls) == self.step:
                self.has_failed, self.held_values = True, self.pool.holds_values()
                raise OSError(errno.EIO, "canary", "canary")
            return real(*arguments, **keywords)

        return call


@pytest.mark.parametrize("make", [make_flat, make_linked])
@pytest.mark.parametrize("opener", [rootfs.openat2, rootfs.walk], ids=["openat2", "walk"])
def test_failure_at_every_step(
    make: Callable[[Path], Stage], opener: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call fails, the batch is refused as one of the provider's, or read again; all is wiped and closed."""
    root = make(tmp_path / "root").root
    values = Stage(root).values(A, B)
    refusals, with_values = 0, 0
    for step in itertools.count():
        stage = Stage(root, opener)
        stage.provider.inline()  # so that the mount table is open before descriptors are counted
        failing = Failing(step, stage.pool)
        before = open_descriptors()
        with monkeypatch.context() as patch:
            for name in ("open", "read", "pread", "dup2", "fstat", "stat", "readlink", "preadv"):
                patch.setattr(os, name, failing.wrap(getattr(os, name)))
            patch.setattr(rootfs, "_syscall", failing.wrap(rootfs._syscall))
            patch.setattr(Batch, "fill", failing.wrap(Batch.fill))
            try:
                with finish(stage.provider.resolve(authority_for([A, B]), 0.0)) as batch:
                    assert copied(batch) == values
            except Refused as refused:
                assert refused.reason in (Reason.ROOT_UNAVAILABLE, Reason.MATERIAL_UNAVAILABLE)
                assert refused.__context__ is None
                refusals += 1
        assert stage.pool.is_clean()
        assert open_descriptors() == before
        if not failing.has_failed:
            break
        with_values += failing.held_values
    assert refusals >= 15
    assert with_values >= 5, "too few steps failed while values were in memory: nothing was proved"


def test_no_memory(flat: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no buffer is to be had the batch is refused."""

    def take(size: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(flat.pool, "take", take)
    assert flat.refusal(A) is Reason.MATERIAL_UNAVAILABLE


def test_opens_agree_with_the_witness(flat: Stage, tmp_path: Path) -> None:
    """The counter is what inotify sees from outside, for what is delivered and what is refused, in both layouts."""
    flat.write(BUNDLE, b"b")
    (flat.root / "link").symlink_to(A.file_name)
    os.mkfifo(flat.root / secret("fifo").file_name)
    other = make_linked(tmp_path / "linked")
    for opener in (rootfs.openat2, rootfs.walk):
        for stage, watched in ((flat, [flat.root]), (other, [other.root, other.root / "..one"])):
            stage.provider._opener = opener
            before = stage.provider.stats.opens
            with OpenWitness(*watched) as witness:
                stage.provider.verify_root()
                stage.provider.inline()
                stage.provider.health()
                assert witness.opens() == 0
                stage.values(A, B)
                assert witness.opens() == stage.provider.stats.opens - before == 2
                for refs in ([A, secret("missing"), B], [secret("fifo")], [secret("missing")]):
                    stage_refuses(stage, refs)
                assert witness.opens() == stage.provider.stats.opens - before
                assert set(witness.names()) <= {ref.file_name for ref in (A, B, secret("fifo"))}


def stage_refuses(stage: Stage, refs: list[SecretRef]) -> None:
    """Resolve what is refused; unlike `refusal` nothing is listed meanwhile."""
    with pytest.raises(Refused):
        finish(stage.provider.resolve(authority_for(refs), 0.0))
