"""`secret-sidecar publish`: values of the right name, mode and bytes; every fault at once, none half done."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.refs import SecretRef
from sidecar.__main__ import main
from sidecar.publish import How, Inputs, Source, Unpublished, publish, read_manifest
from sidecar.publish.target import locked
from tests.kit.killing import leftovers, write_sources
from tests.kit.memscan import ROOT
from tests.kit.mounting import MS_BIND, MS_RDONLY, MS_REMOUNT, mount, mounted

REF = SecretRef.of("project", "token")
VERSIONED = SecretRef.of("project", "token", 2)


class Stand:
    """A folder with a root beside the files that are published into it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.root = folder / "root"
        self.root.mkdir(mode=0o755)

    def manifest(self, *secrets: dict[str, Any]) -> str:
        path = self.folder / "manifest.json"
        path.write_text(json.dumps({"schemaVersion": 1, "secrets": secrets}))
        return str(path)

    def file(self, name: str, value: bytes) -> str:
        (self.folder / name).write_bytes(value)
        return name

    def publish(self, *options: str, root: Path | None = None) -> tuple[int, dict[str, Any]]:
        code = main(["publish", str(root or self.root), *options, "--json"])
        document: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        assert document["schemaVersion"] == 1 and document["command"] == "publish"
        return code, document

    def refused(self, *options: str, root: Path | None = None) -> list[tuple[str, str]]:
        before = tree(self.root)
        code, document = self.publish(*options, root=root)
        assert code == 65 and document["summary"]["published"] is False and tree(self.root) == before
        return [(one["code"], one["where"]) for one in document["findings"] if one["severity"] == "error"]


def tree(root: Path) -> list[str]:
    """Every name below a root."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture
def stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Stand:
    """Give a stand whose root is empty."""
    return Stand(tmp_path, capsys)


def mode_of(path: Path) -> int:
    """The mode of what a path resolves to."""
    return stat.S_IMODE(path.stat().st_mode)


def test_linked_is_what_a_kubelet_writes(stand: Stand) -> None:
    """`<hash> -> ..data/<hash>`, `..data` to one new directory, files of mode 0440 and the group asked for."""
    stand.file("a", b"first")
    entries = ({"ref": REF.text, "file": "a"}, {"project": "project", "name": "token", "version": 2, "file": "a"})
    code, document = stand.publish("--manifest", stand.manifest(*entries), "--group", str(os.getegid()))
    assert code == 0 and document["summary"]["written"] == 2
    generation = os.readlink(stand.root / "..data")
    assert generation == document["summary"]["generation"]
    for ref in (REF, VERSIONED):
        path = stand.root / ref.file_name
        assert os.readlink(path) == f"..data/{ref.file_name}"
        assert path.read_bytes() == b"first" and mode_of(path) == 0o440 and path.stat().st_gid == os.getegid()
    assert mode_of(stand.root / generation) == 0o750


def test_flat_and_0400(stand: Stand) -> None:
    """Flat: regular files beneath the root itself; `--mode 0400` keeps the group out."""
    stand.file("a", b"first")
    code, document = stand.publish(
        "--manifest", stand.manifest({"ref": REF.text, "file": "a"}), "--layout", "flat", "--mode", "0400"
    )
    assert code == 0 and document["summary"]["generation"] is None
    path = stand.root / REF.file_name
    assert not path.is_symlink() and mode_of(path) == 0o400 and tree(stand.root) == [REF.file_name]


@pytest.mark.parametrize("layout", ["linked", "flat"])
def test_prune_drops_and_nothing_else_does(stand: Stand, layout: str) -> None:
    """A name that the manifest no longer has stays until `--prune`, and foreign names stay always."""
    stand.file("a", b"first")
    both = stand.manifest({"ref": REF.text, "file": "a"}, {"ref": VERSIONED.text, "file": "a"})
    assert stand.publish("--manifest", both, "--layout", layout)[0] == 0
    (stand.root / "README").write_text("mine")
    one = stand.manifest({"ref": REF.text, "file": "a"})
    assert stand.publish("--manifest", one, "--layout", layout)[1]["summary"]["kept"] == 1
    assert (stand.root / VERSIONED.file_name).read_bytes() == b"first"
    assert stand.publish("--manifest", one, "--layout", layout, "--prune")[1]["summary"]["dropped"] == 1
    assert not (stand.root / VERSIONED.file_name).is_symlink() and not (stand.root / VERSIONED.file_name).exists()
    assert (stand.root / "README").read_text() == "mine" and leftovers(stand.root) == []


def test_a_directory_of_hashes(stand: Stand) -> None:
    """`--from-dir` takes files named by hash, up to 96 KiB with a warning above 16 KiB; another name is a fault."""
    source = stand.folder / "source"
    source.mkdir()
    (source / REF.file_name).write_bytes(b"x" * 98_304)
    code, document = stand.publish("--from-dir", str(source))
    assert code == 0 and [one["code"] for one in document["findings"]] == ["value_large"]
    assert (stand.root / REF.file_name).stat().st_size == 98_304
    (source / "token.txt").write_bytes(b"x")
    (source / VERSIONED.file_name).write_bytes(b"x" * 98_305)
    wrong = stand.refused("--from-dir", str(source))
    assert [code for code, _ in wrong] == ["name_not_hash", "value_too_large"]


def test_an_empty_or_missing_directory_is_a_fault(stand: Stand) -> None:
    """A volume that was not mounted never empties the root, not even with `--prune`."""
    (stand.folder / "source").mkdir()
    assert stand.refused("--from-dir", str(stand.folder / "source"), "--prune")[0][0] == "directory_empty"
    assert stand.refused("--from-dir", str(stand.folder / "none"))[0][0] == "directory_unreadable"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", "value_empty"),
        (b"a\0b", "value_nul"),
        (b"\xff", "value_not_utf8"),
        (b"x" * 16_385, "value_too_large"),
        (None, "source_unreadable"),
    ],
)
def test_a_bad_value_is_refused(stand: Stand, value: bytes | None, code: str) -> None:
    """An empty value, a NUL, invalid UTF-8, over 16 KiB, an unreadable file: nothing is written."""
    if value is not None:
        stand.file("a", value)
    assert stand.refused("--manifest", stand.manifest({"ref": REF.text, "file": "a"})) == [(code, "secrets[0]")]


def test_sizes_at_their_limits(stand: Stand) -> None:
    """16 KiB is a value, 96 KiB a bundle; one byte more is neither."""
    stand.file("a", b"x" * 16_384)
    stand.file("b", b"x" * 98_304)
    entries = ({"ref": REF.text, "file": "a"}, {"ref": VERSIONED.text, "file": "b", "bundle": True})
    assert stand.publish("--manifest", stand.manifest(*entries))[0] == 0
    stand.file("b", b"x" * 98_305)
    assert stand.refused("--manifest", stand.manifest(*entries)) == [("value_too_large", "secrets[1]")]


def test_every_fault_at_once(stand: Stand) -> None:
    """An invalid ref, two sources, a ref twice and a faulty root: all are told together, without the bad ref."""
    stand.file("a", b"first")
    link = stand.folder / "link"
    link.symlink_to(stand.root)
    entries: list[dict[str, Any]] = [
        {"ref": "qlsecret:v1:canary-bad", "file": "a"},
        {"ref": REF.text, "file": "a", "stdin": True},
        {"ref": REF.text, "file": "a"},
        {"project": "project", "name": "other"},
        {"project": "project", "name": "other2", "file": "a", "extra": 1},
        {"project": "project", "name": "b", "file": "a", "bundle": True},
        {"project": "project", "name": "o", "version": 0, "file": "a"},
        {"ref": VERSIONED.text, "name": "token", "file": "a"},
        {"project": "project", "name": "empty", "file": "missing"},
    ]
    code, document = stand.publish("--manifest", stand.manifest(*entries), root=link)
    assert code == 65 and tree(stand.root) == [] and "canary" not in json.dumps(document)
    assert [(one["code"], one["where"]) for one in document["findings"]] == [
        ("ref_invalid", "secrets[0]"),
        ("source_twice", "secrets[1]"),
        ("ref_twice", "secrets[2]"),
        ("source_missing", "secrets[3]"),
        ("entry_key_unknown", "secrets[4]"),
        ("bundle_unversioned", "secrets[5]"),
        ("ref_invalid", "secrets[6]"),
        ("ref_ambiguous", "secrets[7]"),
        ("root_link", str(link)),
        ("source_unreadable", "secrets[8]"),
    ]
    assert all(one["cause"] and one["mend"].endswith(".") for one in document["findings"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "manifest_not_json"),
        ('{"schemaVersion":1,"schemaVersion":1,"secrets":[]}', "manifest_not_json"),
        ('{"schemaVersion":2,"secrets":[]}', "manifest_invalid"),
        ('{"schemaVersion":1,"secrets":{}}', "manifest_invalid"),
        ('{"schemaVersion":1}', "manifest_invalid"),
        ('{"schemaVersion":1,"secrets":[1]}', "entry_invalid"),
    ],
)
def test_what_is_no_manifest(stand: Stand, text: str, code: str) -> None:
    """A manifest is strict JSON of exactly one shape."""
    (stand.folder / "m.json").write_text(text)
    assert [found for found, _ in stand.refused("--manifest", str(stand.folder / "m.json"))] == [code]
    assert [found for found, _ in stand.refused("--manifest", "missing.json")] == ["manifest_unreadable"]


def test_standard_input_and_no_value_shown(stand: Stand) -> None:
    """One value may come from standard input; neither output shows a value."""
    manifest = stand.manifest({"ref": REF.text, "stdin": True})
    command = [sys.executable, "-m", "sidecar", "publish", str(stand.root), "--manifest", manifest]
    done = subprocess.run(command, cwd=ROOT, input=b"canary-value", capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and b"canary" not in done.stdout + done.stderr
    assert (stand.root / REF.file_name).read_bytes() == b"canary-value"
    twice = stand.manifest({"ref": REF.text, "stdin": True}, {"ref": VERSIONED.text, "stdin": True})
    done = subprocess.run(
        [*command[:-1], twice, "--json"], cwd=ROOT, input=b"x", capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 65 and json.loads(done.stdout)["findings"][0]["code"] == "stdin_twice"


def test_roots_that_are_refused(stand: Stand) -> None:
    """A missing root, a file, a foreign `..data`: a finding each, and the exact command where there is one."""
    stand.file("a", b"first")
    manifest = stand.manifest({"ref": REF.text, "file": "a"})
    assert stand.refused("--manifest", manifest, root=stand.folder / "none")[0][0] == "root_missing"
    assert stand.refused("--manifest", manifest, root=stand.folder / "a")[0][0] == "root_not_directory"
    (stand.root / "..data").mkdir()
    assert stand.refused("--manifest", manifest)[0][0] == "data_not_link"
    (stand.root / "..data").rmdir()
    (stand.root / "..data").symlink_to("/etc")
    assert stand.refused("--manifest", manifest)[0][0] == "data_foreign"


@pytest.mark.parametrize("layout", ["linked", "flat"])
def test_a_directory_in_the_place_of_a_file(stand: Stand, layout: str) -> None:
    """A directory that has the name of a value is told before anything is written: no rename would replace it."""
    stand.file("a", b"first")
    (stand.root / REF.file_name).mkdir()
    manifest = stand.manifest({"ref": VERSIONED.text, "file": "a"}, {"ref": REF.text, "file": "a"})
    assert stand.refused("--manifest", manifest, "--layout", layout) == [("name_taken", REF.file_name)]


@pytest.mark.parametrize("layout", ["linked", "flat"])
def test_a_value_that_turns_bad_while_it_is_published(stand: Stand, layout: Any) -> None:
    """A value that was good when all were looked at, and is not any more: nothing of the set is changed."""
    sources = write_sources(stand.folder, "old", [REF, VERSIONED])
    with Inputs(sources) as inputs:
        publish(str(stand.root), inputs, How(layout))
    before = [(stand.root / ref.file_name).read_bytes() for ref in (REF, VERSIONED)]
    new = write_sources(stand.folder, "new", [REF, SecretRef.of("project", "other")])
    with Inputs(new) as inputs:
        assert inputs.check() == []
        (stand.folder / "new-other").write_bytes(b"")
        with pytest.raises(Unpublished) as refused:
            publish(str(stand.root), inputs, How(layout))
    assert [one.code for one in refused.value.findings] == ["value_empty"]
    assert [(stand.root / ref.file_name).read_bytes() for ref in (REF, VERSIONED)] == before
    assert leftovers(stand.root) == []


def test_an_unknown_group_is_told_with_all_else(stand: Stand) -> None:
    """A group that is not there is a fault like any other: listed beside the rest."""
    stand.file("a", b"")
    manifest = stand.manifest({"ref": REF.text, "file": "a"})
    wrong = stand.refused("--manifest", manifest, "--group", "no-such-group")
    assert wrong == [("group_unknown", "--group"), ("value_empty", "secrets[0]")]


@pytest.mark.root
def test_a_read_only_mount_is_refused(stand: Stand) -> None:
    """A root on a read-only mount is told before anything is tried."""
    stand.file("a", b"first")
    manifest = stand.manifest({"ref": REF.text, "file": "a"})
    with mounted(str(stand.root), stand.root, "", MS_BIND):
        mount("", stand.root, "", MS_REMOUNT | MS_BIND | MS_RDONLY)
        assert stand.refused("--manifest", manifest)[0][0] == "root_read_only"


@pytest.mark.root
def test_a_full_disk_leaves_the_old_generation(stand: Stand) -> None:
    """When the disk is full midway the old generation stands and nothing of the new one is left."""
    stand.file("a", b"x" * 16_000)
    with mounted("tmpfs", stand.root, "tmpfs", 0, "size=64k,mode=755"):
        assert stand.publish("--manifest", stand.manifest({"ref": REF.text, "file": "a"}))[0] == 0
        more = [{"project": "project", "name": f"n{number}", "file": "a"} for number in range(8)]
        assert main(["publish", str(stand.root), "--manifest", stand.manifest(*more)]) == 1
        assert (stand.root / REF.file_name).stat().st_size == 16_000 and leftovers(stand.root) == []


def test_two_publishers_wait_for_each_other(tmp_path: Path) -> None:
    """While another has the lock a publisher waits, and then publishes."""
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    sources = write_sources(tmp_path, "new", [REF])
    done = threading.Event()

    def work() -> None:
        with Inputs(sources) as inputs:
            publish(str(root), inputs, How())
        done.set()

    with locked(str(root)):
        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.3) and tree(root) == []
    assert done.wait(30)
    thread.join()
    assert seen_one(root) == b"new-token"


def seen_one(root: Path) -> bytes:
    """The value of REF."""
    return (root / REF.file_name).read_bytes()


def test_memory_is_given_back(tmp_path: Path) -> None:
    """After a publication no buffer is outstanding, also when standard input was kept."""
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    reading, writing = os.pipe()
    os.write(writing, b"from stdin")
    os.close(writing)
    with Inputs([Source(REF.file_name, "stdin", None, ref=REF)], stdin=reading) as inputs:
        assert inputs.check() == []
        publish(str(root), inputs, How())
    os.close(reading)
    assert inputs.pool.outstanding == 0 and seen_one(root) == b"from stdin"


CANARY = "qlsecret:v1:canary"
scalars = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "a", "project", CANARY, "a\x00", "é"])
refs = st.builds(SecretRef.of, st.just("p"), st.sampled_from("ab"), st.none() | st.integers(1, 2))
good: st.SearchStrategy[dict[str, Any]] = st.one_of(
    refs.map(lambda ref: {"ref": ref.text}),
    refs.map(
        lambda ref: {"project": ref.project_id, "name": ref.name} | ({"version": ref.version} if ref.version else {})
    ),
)
sourced = st.tuples(
    good, st.sampled_from([{"file": "a"}, {"file": "b"}, {"stdin": True}, {"file": "a", "stdin": False}])
)
keys = st.sampled_from(["ref", "project", "name", "version", "file", "stdin", "bundle", "more"])
entries = (
    sourced.map(lambda both: both[0] | both[1])
    | st.dictionaries(keys, scalars | st.lists(scalars), max_size=5)
    | scalars
)


@given(st.lists(entries, max_size=5))
def test_any_manifest(given_entries: list[Any]) -> None:
    """Whatever stands in a manifest: each entry is one source of its own ref, or has a fault that names its place."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "m.json"
        path.write_text(json.dumps({"schemaVersion": 1, "secrets": given_entries}))
        sources, faults = read_manifest(str(path))
    assert "canary" not in repr(faults)
    faulty = {fault.where for fault in faults}
    assert {source.where for source in sources} | faulty == {f"secrets[{index}]" for index in range(len(given_entries))}
    assert not {source.where for source in sources} & faulty
    assert len({source.file_name for source in sources}) == len(sources)
    assert sum(source.path is None for source in sources) <= 1
    for source in sources:
        entry = given_entries[int(source.where[8:-1])]
        asked = entry.get("ref") or SecretRef.of(entry["project"], entry["name"], entry.get("version")).text
        assert source.ref is not None and source.ref.text == asked and source.ref.file_name == source.file_name
        assert source.path == (None if entry.get("stdin") else str(Path(made) / entry["file"]))
        assert source.limit == (98_304 if entry.get("bundle") else 16_384)
        assert not entry.get("bundle") or source.ref.version is not None


texts = st.text(min_size=1, max_size=40).filter(lambda text: "\0" not in text)
names = st.sampled_from([f"n{number}" for number in range(5)])
steps = st.tuples(
    st.dictionaries(names, texts, max_size=5),
    st.sampled_from(["linked", "flat"]),
    st.sampled_from([0o440, 0o400]),
    st.booleans(),
)


@settings(max_examples=40)
@given(st.lists(steps, min_size=1, max_size=4))
def test_any_sequence_of_publications(sequence: list[tuple[dict[str, str], Any, int, bool]]) -> None:
    """Whatever was published before, in whatever layout: the root holds what the last ones say, and nothing else."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        root = folder / "root"
        root.mkdir(mode=0o755)
        expected: dict[str, str] = {}
        for secrets, layout, mode, prune in sequence:
            sources = []
            for name, value in secrets.items():
                (folder / name).write_bytes(value.encode())
                ref = SecretRef.of("project", name)
                sources.append(Source(ref.file_name, name, str(folder / name), ref=ref))
            with Inputs(sources) as inputs:
                assert inputs.check() == []
                done = publish(str(root), inputs, How(layout, mode, None, prune))
            expected = ({} if prune else expected) | {
                SecretRef.of("project", name).file_name: value for name, value in secrets.items()
            }
            got = {path.name: path.read_bytes().decode() for path in root.iterdir() if path.is_file()}
            assert got == expected and leftovers(root) == []
            assert (root / "..data").is_symlink() == (layout == "linked") == (done.generation is not None)
            assert all(mode_of(root / SecretRef.of("project", name).file_name) == mode for name in secrets)


def test_the_writer_is_without_the_command_line() -> None:
    """Importing the writer loads no command, no argument parser and no listener: other programs may use it."""
    script = "import sys, sidecar.publish; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "sidecar.publish.writer" in loaded and not loaded & {"argparse", "aiohttp", "sidecar.cli", "sidecar.config"}
