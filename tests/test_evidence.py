"""`make evidence`: every gate holds where it should, sees what it is for, and nothing stays behind."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from tests.evidence import __main__ as command
from tests.evidence import limits, linux
from tests.evidence.gates import GATES, Failed, Record, Stop, require
from tests.evidence.limits import Limit, NoLimit
from tests.evidence.witness import Witness
from tests.kit.manifests import ROOT
from tests.kit.postgres import ROLE_PASSWORD
from tests.kit.waiting import wait_for
from tests.kit.world import LEASE_TOKEN, PEPPER_TEXT, default_refs

SECRET: Final = re.compile("|".join([r"generation-\d-[0-9a-f]{32}", LEASE_TOKEN, PEPPER_TEXT, ROLE_PASSWORD, "ql3w_"]))
SEEN_BY: Final = {
    "writable": {"read_only"},
    "capable": {"identity"},
    "token": {"no_token"},
    "stray": {"no_api_traffic"},
    "rotation": {"generation_2", "receipts"},
}


def start(out: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the command."""
    line = [sys.executable, "-m", "tests.evidence", "--out", str(out), *arguments]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(out: Path, *arguments: str) -> tuple[int, list[str], dict[str, Any]]:
    """Run the command; its exit code, its lines and its report."""
    with start(out, *arguments) as process:
        shown, errors = process.communicate(timeout=100)
    assert errors == ""
    report = json.loads(out.read_text(encoding="utf-8"))
    unable(report)
    return process.returncode, shown.splitlines(), report


def unable(report: dict[str, Any]) -> None:
    """Skip the test where this machine gives root no namespaces, no limits or no tool: its gates fail, rightly."""
    reasons = [str(gate["reason"]) for gate in report["gates"]]
    reasons += [str(value) for name, value in report["facts"].items() if name.endswith("_no_limit")]
    for reason in reasons:
        if reason.startswith(("the kernel refuses", "no cgroup", "cgroup version 2 has", "there is no program ip")):
            pytest.skip(f"no evidence can be given here: {reason}")


def failed(report: dict[str, Any]) -> set[str]:
    """The gates that do not hold."""
    return {gate["gate"] for gate in report["gates"] if not gate["passed"]}


def left() -> list[str]:
    """What runs of the command would leave: processes, groups, directories."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"tests.evidence" in words:
            found.append(str(path))
    groups = [str(path) for path in Path("/sys/fs/cgroup").rglob("secret-sidecar-*-evidence-*")]
    return [*found, *groups, *map(str, Path(tempfile.gettempdir()).glob("secret-sidecar-evidence-*"))]


# --- the whole of it ---------------------------------------------------------------------------------------------
@pytest.mark.root
def test_every_gate_holds(tmp_path: Path) -> None:
    """Each gate has a line and holds; the report is private and bears no value, no ref and no token."""
    code, lines, report = run(tmp_path / "report.json")
    assert (code, failed(report), report["passed"]) == (0, set(), True), lines
    assert [line.split()[1] for line in lines[:-1]] == list(GATES)
    assert (tmp_path / "report.json").stat().st_mode & 0o7777 == 0o600
    text = json.dumps(report) + "\n".join(lines)
    assert SECRET.search(text) is None
    assert not [ref for ref in default_refs(2) if ref.text in text or ref.file_name in text]
    for replica in ("replica-1", "replica-2"):
        assert report["facts"][f"{replica}_memory"]["cgroup_version"] in (1, 2)
        assert 0 < report["facts"][f"{replica}_memory"]["vm_hwm_bytes"] < limits.MEMORY_BYTES
    wait_for(lambda: left() == [])


@pytest.mark.root
def test_a_token_is_seen(tmp_path: Path) -> None:
    """With a token mounted one gate fails, the rest is judged all the same, and the exit code is 1."""
    code, lines, report = run(tmp_path / "report.json", "--break", "token")
    assert (code, failed(report), report["broken"]) == (1, SEEN_BY["token"], "token")
    assert [line for line in lines if line.startswith("FAILED")] == [
        "FAILED  no_token        mounted besides: /var/run/secrets/kubernetes.io/serviceaccount"
    ]


@pytest.mark.root
@pytest.mark.soak
@pytest.mark.parametrize("broken", sorted(SEEN_BY.keys() - {"token"}))
def test_each_break_is_seen(tmp_path: Path, broken: str) -> None:
    """Whatever is made wrong on purpose fails exactly the gates that are for it."""
    code, _, report = run(tmp_path / "report.json", "--break", broken)
    assert (code, failed(report)) == (1, SEEN_BY[broken])


@pytest.mark.root
def test_nothing_stays_after_an_interrupt(tmp_path: Path) -> None:
    """Interrupted in the middle it ends with 130, without a report, and nothing of it is left."""
    with start(tmp_path / "report.json") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.split()[1] == "ready":
                break
        if process.poll() is not None:
            unable(json.loads((tmp_path / "report.json").read_text(encoding="utf-8")))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert not (tmp_path / "report.json").exists()
    wait_for(lambda: left() == [])


def test_each_break_has_an_expectation() -> None:
    """What can be broken is what is tested here."""
    assert command.BREAKS.keys() == SEEN_BY.keys()


def test_only_root_may(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Anybody else gets 77, one sentence, and no report."""
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    assert command.main(["--out", str(tmp_path / "report.json")]) == 77
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n"), "run it as root" in shown.err) == ("", 1, True)
    assert list(tmp_path.iterdir()) == []


def test_what_the_kernel_refuses_is_a_failed_gate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without namespaces the gate says why, the others were not reached, and the exit code is 1."""

    def refuse(_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(linux, "unshare", refuse)
    monkeypatch.setattr(limits, "_parent", no_controller)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert command.main(["--out", str(tmp_path / "report.json")]) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert failed(report) == set(GATES)
    reasons = {gate["gate"]: gate["reason"] for gate in report["gates"]}
    assert reasons.pop("namespaces") == "the kernel refuses them to root here (Operation not permitted)"
    assert set(reasons.values()) == {"not reached"}
    assert report["facts"]["replica-1_no_limit"] == "there is none"
    assert len(capsys.readouterr().out.splitlines()) == len(GATES) + 1


def no_controller(_: str) -> tuple[int, Path]:
    """As on a machine without cgroups."""
    raise NoLimit("there is none")


# --- its parts ---------------------------------------------------------------------------------------------------
def fail(error: Exception) -> None:
    """Raise it."""
    raise error


def test_a_gate_notes_why_it_does_not_hold() -> None:
    """A reason is ours or the system's word; the text of any other error, which may hold anything, is left out."""
    reader, writer = os.pipe()
    record = Record(writer)
    with record.gate("ready"):
        pass
    with record.gate("limits"):
        require(False, "too low")
    with record.gate("prefix"):
        fail(PermissionError(13, "Permission denied", "/secret/path"))
    with record.gate("quiet"):
        fail(RuntimeError("canary"))
    with pytest.raises(Stop), record.gate("database", needed=True):
        fail(Failed("none"))
    with pytest.raises(ValueError, match="no such gate"), record.gate("other"):
        pass
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as told:
        lines = [json.loads(line) for line in told]
    assert [line["passed"] for line in lines] == [True, False, False, False, False]
    assert [line["reason"] for line in lines][:2] == [None, "too low"]
    assert lines[2]["reason"].startswith("the system refused: Permission denied (test_evidence.py:")
    assert lines[3]["reason"].startswith("RuntimeError (test_evidence.py:")
    assert "canary" not in json.dumps(lines) and "/secret" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("version", "files", "met", "peak"),
    [
        (
            1,
            {"memory.failcnt": "3\n", "memory.max_usage_in_bytes": "4096\n", "memory.limit_in_bytes": "8192\n"},
            3,
            4096,
        ),
        (2, {"memory.events": "low 9\nmax 2\noom 1\noom_kill 7\n", "memory.peak": "5\n", "memory.max": "8192\n"}, 3, 5),
        (2, {"memory.events": "low 0\nmax 0\noom 0\n", "memory.max": "8192\n"}, 0, None),
    ],
)
def test_both_versions_are_read(
    tmp_path: Path, version: int, files: dict[str, str], met: int, peak: int | None
) -> None:
    """Limit, peak and how often it was met come from the files of the version; a kernel may tell no peak."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    limit = Limit("memory", version, str(tmp_path))
    assert (limit.value, limit.met(), limit.peak()) == (8192, met, peak)


@pytest.mark.parametrize(
    ("mounted", "handed_down", "wanted"),
    [
        ([("cgroup", "rw,memory")], "", 1),
        ([("cgroup2", "rw")], "memory pids", 2),
        ([("cgroup2", "rw")], "pids", "does not hand it to groups below"),
        ([("cgroup", "rw,pids")], "", "no cgroup file system has the controller memory"),
        ([], "", "no cgroup file system has the controller memory"),
    ],
)
def test_the_version_that_has_the_controller_is_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mounted: list[tuple[str, str]],
    handed_down: str,
    wanted: int | str,
) -> None:
    """Version 1 where the controller is mounted by itself, else 2 where it is handed down; else it is said why not."""
    (tmp_path / "cgroup.controllers").write_text("memory pids", encoding="ascii")
    control = tmp_path / "cgroup.subtree_control"
    control.write_text(handed_down, encoding="ascii")
    real = Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda path, *a, **k: None if path == control else real(path, *a, **k))
    monkeypatch.setattr(limits, "_mounts", lambda: ((kind, set(opts.split(",")), tmp_path) for kind, opts in mounted))
    if isinstance(wanted, int):
        assert limits._parent("memory") == (wanted, tmp_path)
    else:
        with pytest.raises(NoLimit, match=wanted):
            limits._parent("memory")


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    """Groups of a process that is no more are removed, those of a living one stay."""
    with subprocess.Popen(["true"]) as gone:
        pass
    old, living = (tmp_path / f"secret-sidecar-{pid}-evidence-1" for pid in (gone.pid, os.getpid()))
    old.mkdir()
    living.mkdir()
    limits._sweep(tmp_path)
    assert (old.exists(), living.exists()) == (False, True)


def frame(flags: int, port: int, *, protocol: int = 6, kind: int = 0x0800) -> bytes:
    """An Ethernet frame from 198.18.1.2 to 198.18.1.1."""
    head = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, protocol, 0, bytes([198, 18, 1, 2]), bytes([198, 18, 1, 1])
    )
    return bytes(12) + struct.pack("!H", kind) + head + struct.pack("!HHIIBB", 4000, port, 0, 0, 0x50, flags)


def test_the_witness_notes_who_opens_what() -> None:
    """A first packet of TCP is a connection opened, its answer is none; ARP is passed over, the rest is noted."""
    witness = Witness("none")
    for seen in (
        frame(0x02, 443),
        frame(0x12, 444),
        frame(0x10, 445),
        frame(0, 0, kind=0x0806),
        frame(0, 53, protocol=17),
        frame(0, 0, kind=0x86DD),
    ):
        witness.see(seen)
    assert dict(witness.opened) == {("198.18.1.2", "198.18.1.1", 443): 1}
    assert dict(witness.other) == {"ip protocol 17": 1, "0x86dd": 1}
