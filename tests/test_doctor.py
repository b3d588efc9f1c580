"""`secret-sidecar doctor`: golden cases, each a root built on a real file system and what is found in it (issue 5)."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from provider.refs import SecretRef
from sidecar.__main__ import main
from sidecar.doctor.place import reader_mend
from sidecar.publish import How, Inputs, publish
from tests.kit import projector
from tests.kit.folders import quick_path
from tests.kit.killing import write_sources
from tests.kit.mounting import MS_BIND, MS_RDONLY, MS_REMOUNT, mount, mounted

__all__ = ["quick_path"]

REF = SecretRef.of("project", "token")
OTHER = SecretRef.of("project", "other", 3)
NAME = REF.file_name
VALUE = b"canary-value"
KUBELET = "2026_11_30_12_00_00.123456789"
DAY_NS = 86_400 * 10**9

Build = Callable[[Path], None]


def flat(value: bytes = VALUE, mode: int = 0o440, name: str = NAME) -> Build:
    """A root with one file."""
    return lambda root: projector.write_file(root / name, value, mode)


def kubelet(value: bytes = VALUE) -> Build:
    """A root as the kubelet writes it."""
    return lambda root: projector.publish(root, KUBELET, {NAME: value})


def published(root: Path) -> None:
    """A root as this project writes it."""
    with Inputs(write_sources(root.parent, "new", [REF])) as inputs:
        publish(str(root), inputs, How())


def then(*steps: Build) -> Build:
    """One build after the other."""

    def build(root: Path) -> None:
        for step in steps:
            step(root)

    return build


def in_place(root: Path) -> None:
    """Write a file long after its directory changed last."""
    flat()(root)
    status = root.stat()
    os.utime(root / NAME, ns=(status.st_mtime_ns, status.st_mtime_ns + DAY_NS))


def linked_twice(root: Path) -> None:
    """An agent's backup by hard link."""
    flat()(root)
    os.link(root / NAME, root.parent / "backup")


def default_mode(root: Path) -> None:
    """A kubelet volume without defaultMode."""
    kubelet()(root)
    (root / NAME).chmod(0o644)


def old_generation(root: Path) -> None:
    """What a killed publisher leaves."""
    published(root)
    (root / "..gen-20260101T000000Z-00000000").mkdir()
    (root / f"..new-{NAME}").symlink_to("x")


def old_link(root: Path) -> None:
    """A link that a projector forgot."""
    kubelet()(root)
    (root / "gone").symlink_to("..data/gone")


def agent(root: Path) -> None:
    """A file as an agent writes it unless it is told otherwise, in a shared memory volume."""
    root.chmod(0o777)
    flat(mode=0o644)(root)


GOLDEN: list[tuple[str, Build, list[tuple[str, str, str]], str]] = [
    ("empty", lambda root: None, [], "nobody"),
    ("published", published, [], "publish"),
    ("flat", flat(), [], "flat"),
    ("kubelet", kubelet(), [], "kubelet or csi"),
    ("kubelet 0644", default_mode, [("error", "mode_default", "Set `defaultMode: 0440`")], "kubelet or csi"),
    ("flat 0644", flat(mode=0o644), [("error", "mode_default", "chmod 0440 ROOT/")], "flat"),
    ("flat 0660", flat(mode=0o660), [("error", "mode_open", "chmod 0440 ROOT/")], "flat"),
    ("flat 0550", flat(mode=0o550), [("error", "mode_open", "chmod 0440 ROOT/")], "flat"),
    ("empty value", flat(b""), [("error", "value_empty", "Write the value")], "flat"),
    ("NUL", flat(b"a\0b"), [("error", "value_nul", "Encode it")], "flat"),
    ("not UTF-8", flat(b"\xff\xfe"), [("error", "value_not_utf8", "Encode it")], "flat"),
    ("large", flat(b"x" * 16_385), [("warning", "value_large", "It is delivered only as a bundle")], "flat"),
    ("too large", flat(b"x" * 98_305), [("error", "value_too_large", "Shorten it")], "flat"),
    ("newline", flat(b"value\n"), [("warning", "trailing_newline", "truncate -s -1 ROOT/")], "flat"),
    ("space", flat(b" value"), [("warning", "surrounding_space", "Write it without")], "flat"),
    ("BOM", flat(b"\xef\xbb\xbfvalue"), [("warning", "byte_order_mark", "Save it as UTF-8")], "flat"),
    ("no hash", flat(name="token"), [("warning", "name_not_hash", "ref filename REF")], "flat"),
    ("in place", in_place, [("warning", "written_in_place", "by rename")], "flat"),
    ("hard link", linked_twice, [("error", "hard_linked", "backup")], "flat"),
    ("FIFO", lambda root: os.mkfifo(root / NAME, 0o440), [("error", "not_regular", "Put a file")], "flat"),
    ("directory", lambda root: (root / NAME).mkdir(), [("error", "not_regular", "Put a file")], "flat"),
    ("link", lambda root: (root / NAME).symlink_to("none"), [("error", "link_dangling", "Publish again")], "flat"),
    ("out", lambda root: (root / NAME).symlink_to("/etc/passwd"), [("error", "leaves_root", "Put the file")], "flat"),
    ("data file", flat(name="..data"), [("error", "data_not_link", "rm -r ROOT/..data")], "flat"),
    ("dangles", lambda root: (root / "..data").symlink_to("..x"), [("error", "data_dangling", "Publish")], "linked"),
    ("leaves", lambda root: (root / "..data").symlink_to("/etc"), [("error", "data_leaves_root", "beside")], "linked"),
    ("leftovers", old_generation, [("warning", "leftover", "Publish again")] * 2, "publish"),
    ("old link", old_link, [("warning", "link_dangling", "rm ROOT/gone")], "kubelet or csi"),
    ("beside", then(kubelet(), flat(name="f" * 64)), [("warning", "beside_data", "rm ROOT/ffff")], "kubelet or csi"),
    ("agent", agent, [("error", "root_writable", "go-w ROOT"), ("error", "mode_default", 'perms = "0440"')], "agent"),
]  # fmt: skip


@pytest.fixture
def root(quick_path: Path) -> Path:
    """An empty root."""
    made = quick_path / "root"
    made.mkdir(mode=0o755)
    return made


def doctor(root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """Run the command; its document never holds a value. The finding that this user may write is left out."""
    code = main(["doctor", str(root), *options, "--json"])
    output = capsys.readouterr().out
    assert "canary" not in output
    document: dict[str, Any] = json.loads(output)
    document["findings"] = [one for one in document["findings"] if one["code"] != "mount_writable"]
    return code, document


@pytest.mark.parametrize(("build", "expected", "writer"), [case[1:] for case in GOLDEN], ids=[c[0] for c in GOLDEN])
def test_golden(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    build: Build,
    expected: list[tuple[str, str, str]],
    writer: str,
) -> None:
    """A root of a known kind: exactly these findings, each with severity and mend; 65 when one is an error."""
    build(root)
    code, document = doctor(root, capsys)
    assert [(one["severity"], one["code"]) for one in document["findings"]] == [case[:2] for case in expected]
    for one, (_, _, mend) in zip(document["findings"], expected, strict=True):
        assert mend.replace("ROOT", str(root)) in one["mend"] and one["where"].startswith(str(root))
        assert re.fullmatch("[a-z0-9_]+", one["code"]) and one["cause"]
    assert document["summary"]["writer"] == writer
    assert code == (65 if any(case[0] == "error" for case in expected) else 0)
    assert main(["doctor", str(root)]) == code and "canary" not in capsys.readouterr().out


def test_strict_counts_warnings(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning is 0, and 65 with `--strict`."""
    flat(b"value\n")(root)
    assert doctor(root, capsys)[0] == 0
    assert doctor(root, capsys, "--strict")[0] == 65


def test_what_is_no_root(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing root, a link, a file and `/` are told, with the command that makes one."""
    (root.parent / "link").symlink_to(root)
    (root.parent / "file").touch()
    for name, expected in (("none", "root_missing"), ("link", "root_link"), ("file", "root_not_directory")):
        code, document = doctor(root.parent / name, capsys)
        assert code == 65 and [one["code"] for one in document["findings"]] == [expected]
    assert doctor(Path("/"), capsys)[1]["findings"][0]["code"] == "root_invalid"


@pytest.mark.parametrize("form", ["lines", "manifest"])
def test_refs_are_turned_back_and_missing_ones_listed(
    root: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """Given refs: hashes become refs, what is missing is an error with its manifest line, what is more is told."""
    flat()(root)
    flat(name="e" * 64)(root)
    refs = root.parent / "refs"
    if form == "lines":
        refs.write_text(f"# two\n{REF.text}\n\n{OTHER.text}\n")
    else:
        secrets = [{"ref": REF.text}, {"project": "project", "name": "other", "version": 3, "file": "x"}]
        refs.write_text(json.dumps({"schemaVersion": 1, "secrets": secrets}))
    code, document = doctor(root, capsys, "--refs", str(refs))
    assert code == 65
    missing, more = document["findings"]
    assert missing["code"] == "missing" and missing["where"] == f"{root}/{OTHER.file_name}"
    assert "project/other@3" in missing["cause"] and f'"ref":"{OTHER.text}"' in missing["mend"]
    assert more["code"] == "not_asked_for" and more["severity"] == "info"
    assert {one["name"]: one["ref"] for one in document["summary"]["files"]} == {NAME: REF.text, "e" * 64: None}


def test_bad_refs_are_told_by_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that is no ref is an error that names the line and does not show it."""
    refs = root.parent / "refs"
    refs.write_text(f"{REF.text}\nqlsecret:v1:canary\n")
    flat()(root)
    code, document = doctor(root, capsys, "--refs", str(refs))
    assert code == 65 and [one["where"] for one in document["findings"]] == [f"{refs}:2"]
    assert doctor(root, capsys, "--refs", "none")[1]["findings"][0]["code"] == "refs_unreadable"


def test_each_generation_has_an_age(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every generation is shown with its age, the one in force is marked."""
    kubelet()(root)
    old = root / "..2025_01_01_00_00_00.1"
    old.mkdir()
    os.utime(old, (1, 1))
    shown = {one["name"]: one for one in doctor(root, capsys)[1]["summary"]["generations"]}
    assert shown[old.name]["inForce"] is False and shown[old.name]["ageSeconds"] > 86_400
    assert shown[f"..{KUBELET}"]["inForce"] is True and shown[f"..{KUBELET}"]["ageSeconds"] < 600
    assert main(["doctor", str(root)]) == 0 and "in force" in capsys.readouterr().out


def test_not_readable_by_this_user(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that this user may not read is an error whose mend is a chgrp and a chmod."""
    flat(mode=0)(root)
    root.parent.chmod(0o755)
    with an_ordinary_user():
        code, document = doctor(root, capsys)
    (found,) = document["findings"]
    assert code == 65 and found["code"] == "not_readable"
    assert f"chmod 0440 {root}/{NAME}" in found["mend"]


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Be an ordinary user while the block runs."""
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(20_001)
    os.seteuid(20_001)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.mark.root
@pytest.mark.parametrize("kind", ["tmpfs", "overlay"])
def test_mounts(root: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """On tmpfs and overlay: a writable mount is a warning, a read-only bind mount none, a mount inside an error."""
    data = "mode=755"
    if kind == "overlay":
        with mounted("tmpfs", root.parent, "tmpfs", 0, "mode=755"):
            for name in ("lower", "upper", "work", "root"):
                (root.parent / name).mkdir(mode=0o755)
            data = ",".join(f"{part}dir={root.parent}/{part}" for part in ("lower", "upper", "work"))
            with mounted("overlay", root, "overlay", 0, data):
                look_at_mounts(root, capsys)
        return
    with mounted("tmpfs", root, "tmpfs", 0, data):
        look_at_mounts(root, capsys)


def look_at_mounts(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Judge a fresh mount at the root in all its states."""

    def codes() -> list[str]:
        main(["doctor", str(root), "--json"])
        return [one["code"] for one in json.loads(capsys.readouterr().out)["findings"]]

    flat()(root)
    flat(name="e" * 64)(root)
    assert codes() == ["mount_writable"]
    with mounted(str(root / NAME), root / ("e" * 64), "", MS_BIND):
        assert sorted(codes()) == ["leaves_root", "mount_inside", "mount_writable"]
    with mounted(str(root), root, "", MS_BIND):
        mount("", root, "", MS_REMOUNT | MS_BIND | MS_RDONLY)
        root_mode = codes()
        assert root_mode == []


@pytest.mark.root
def test_a_mounted_generation_never_rotates(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A root that is one generation's directory, as `subPath` mounts it, is a warning."""
    kubelet()(root)
    inside = root.parent / "inside"
    inside.mkdir(mode=0o755)
    with mounted(str(root / f"..{KUBELET}"), inside, "", MS_BIND):
        assert [one["code"] for one in doctor(inside, capsys)[1]["findings"]] == ["mount_subpath"]


def test_a_name_that_would_do_harm_is_shown_harmless(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name with an escape sequence, a space or bytes that are no text: told in both forms, quoted in its mend."""
    kubelet()(root)
    (root / "a b; x").symlink_to("..data/none")
    os.symlink(b"..data/none", os.fsencode(root) + b"/\x1b[2J\xff")
    _, document = doctor(root, capsys)
    assert [one["mend"] for one in document["findings"]] == [f"rm $'{root}/\\x1b[2J\\xff'", f"rm '{root}/a b; x'"]
    assert main(["doctor", str(root)]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("writer", "mend"),
    [
        ("kubelet", "Set `fsGroup: {gid}`"),
        ("csi", "Set `supplementalGroups: [0]`"),
        ("kubelet or csi", "Set `fsGroup: {gid}`"),
        ("agent", "Run the agent as the user {uid}"),
        ("flat", "chgrp {gid} /root; chmod 0440 /root"),
    ],
)
def test_each_writer_is_told_in_its_own_words_who_reads(writer: str, mend: str) -> None:
    """What lets the sidecar's user read a file is a setting of whoever writes it, a command otherwise."""
    assert reader_mend(writer, "/root").startswith(mend.format(uid=os.geteuid(), gid=os.getegid()))


def test_lines_tell_each_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For each name kind, mode, owner, links and size; refs in place of hashes, `missing` where there is no file."""
    flat()(root)
    (root / ("e" * 64)).mkdir()
    refs = root.parent / "refs"
    refs.write_text(f"{REF.text}\n{OTHER.text}\n")
    assert main(["doctor", str(root), "--refs", str(refs)]) == 65
    lines = capsys.readouterr().out.splitlines()
    owner = f"{os.geteuid()}:{(root / NAME).stat().st_gid}"
    assert f"project/token regular 0440 {owner} 1 {len(VALUE)}" in [" ".join(line.split()) for line in lines]
    assert "project/other@3 missing - - - -" in [" ".join(line.split()) for line in lines]
    _, document = doctor(root, capsys)
    assert {one["name"]: one["kind"] for one in document["summary"]["files"]} == {
        NAME: "regular",
        "e" * 64: "directory",
    }
