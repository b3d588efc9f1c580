"""`secret-sidecar exec`: what each mode gives the command, and that exec is a good parent (contract 9)."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.__main__ import main
from tests.kit.commands import SIGNALS, exec_argv, report, run_exec, without_mounts
from tests.kit.memscan import ROOT
from tests.kit.scripted import Step, ok, refusal
from tests.kit.side import BUNDLE, GIVEN, TOKEN, Side
from tests.kit.world import LEASE_TOKEN

TEXTS = dict(zip(("SECRET_0", "SECRET_1", "BUNDLE"), [value.decode() for value in GIVEN], strict=True))
NOTHING = dict.fromkeys(TEXTS)


def seen(tmp_path: Path, *options: str, **how: Any) -> dict[str, Any]:
    """Run the reporting command in a mode and return what it saw, which is never a secret in a command line."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        done = run_exec(side.files, server.port, *options, command=report(), **how)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    for line in (found["cmdline"], found["parent"]):
        assert not any(text in line for text in (*TEXTS.values(), TOKEN, LEASE_TOKEN))
    assert "sidecar\0exec" in found["parent"]
    return found


def test_env(tmp_path: Path) -> None:
    """Mode env: each value is a variable, and nothing else holds it."""
    found = seen(tmp_path, "--inject", "env", stdin=subprocess.DEVNULL)
    assert found["environ"] == TEXTS
    assert found["paths"] == NOTHING
    assert not any("memfd" in link for link in found["links"])


def test_fd_is_the_default(tmp_path: Path) -> None:
    """Mode fd: each value is in a sealed memory file of mode 0400, at its start, readable again and again."""
    found = seen(tmp_path, stdin=subprocess.DEVNULL)
    assert found["environ"] == NOTHING
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    for name, text in TEXTS.items():
        file = found["files"][name]
        assert found["paths"][name].startswith("/proc/self/fd/")
        assert (file["value"], file["again"], file["first"], file["mode"]) == (text, text, text, "0o400")
        assert file["seals"] & seals == seals
    assert sum("memfd" in link for link in found["links"]) == 3


def test_stdin(tmp_path: Path) -> None:
    """Mode stdin: one JSON object in plan order, a newline, and the end; even when the command reads late."""
    found = seen(tmp_path, "--inject", "stdin")
    assert found["stdin"] == '{"SECRET_0":"value-0","SECRET_1":"va\\"l\\\\ue\\n1","BUNDLE":"A=1"}\n'
    assert json.loads(found["stdin"]) == TEXTS
    assert (found["environ"], found["paths"]) == (NOTHING, NOTHING)


def test_stdin_larger_than_a_pipe(tmp_path: Path) -> None:
    """Values beyond the usual 64 KiB of a pipe arrive whole, although nobody feeds the pipe."""
    side = Side.make(tmp_path)
    large: dict[str, bytes | str] = {"first": "\x01" * 16384, "bundle": "b" * 98304}
    with side.serving(Step(ok(side.content(**large)))) as (server, _):
        done = run_exec(side.files, server.port, "--inject", "stdin", command=["sh", "-c", "sleep 0.3; wc -c"])
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 6 * 16384 + 98304


@pytest.mark.parametrize("mounts", [True, False], ids=["mounting", "not-mounting"])
def test_files(tmp_path: Path, mounts: bool) -> None:
    """Mode files: D/NAME of mode 0400 in a directory of mode 0700, and nothing of it afterwards."""
    directory = Path("/dev/shm") / f"exec-test-{os.getpid()}-{mounts}"
    found = seen(
        tmp_path,
        *("--inject", "files", "--dir", str(directory)),
        stdin=subprocess.DEVNULL,
        preexec_fn=None if mounts else without_mounts(),
    )
    assert found["environ"] == NOTHING
    for name, text in TEXTS.items():
        file = found["files"][name]
        assert found["paths"][name] == f"{directory}/{name}"
        assert (file["value"], file["mode"], file["directory"]) == (text, "0o400", "0o700")
    assert not directory.exists()


def test_own_variables_pass(tmp_path: Path) -> None:
    """The command has exec's environment, arguments and working directory; an injected name replaces an old one."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        done = run_exec(
            side.files,
            server.port,
            *("--inject", "env"),
            command=["sh", "-c", 'echo "$SECRET_0 $KEPT $1 $2"; pwd; env | grep -c "^SECRET_0="', "sh", "--", "a b"],
            env={**os.environ, "SECRET_0": "stale", "KEPT": "kept"},
        )
    assert done.stdout.splitlines() == ["value-0 kept -- a b", str(ROOT), "1"]


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["sh", "-c", "exit 7"], 7, ""),
        (["sh", "-c", "kill -KILL $$"], 137, ""),
        (["sh", "-c", "kill -USR1 $$"], 138, ""),
        (["no-such-command-here"], 127, "secret-sidecar exec: The command could not be started (No such file"),
        (["/etc/passwd"], 126, "secret-sidecar exec: The command could not be started (Permission denied)"),
        (["/"], 126, "secret-sidecar exec: The command could not be started"),
    ],
)
def test_status(tmp_path: Path, command: list[str], code: int, text: str) -> None:
    """Exec ends with the command's status, with 128 + its signal, or with 126 and 127 as a shell does."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        done = run_exec(side.files, server.port, command=command)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(text)
    assert done.stderr.count("\n") == bool(text)


def test_signal_state(tmp_path: Path) -> None:
    """The command starts with no signal blocked or ignored, although exec holds and Python ignores some."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        done = run_exec(side.files, server.port, command=["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"])
    assert [int(line.split()[1], 16) for line in done.stdout.splitlines()] == [0, 0]


@contextmanager
def started(argv: list[str], **how: Any) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Start `exec` and return it with a function that reads the command's next line."""
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, **how) as process:
        assert process.stdout is not None
        try:
            yield process, lambda: process.stdout.readline().decode().strip()  # type: ignore[union-attr]
        finally:
            if process.poll() is None:
                process.kill()


def test_signals_are_forwarded_once(tmp_path: Path) -> None:
    """What a process sends to exec reaches the command, each once; exec ends when the command does."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _), started([*exec_argv(side.files, server.port), *SIGNALS]) as (process, line):
        assert line() == "ready"
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGWINCH, signal.SIGCONT, signal.SIGTERM):
            process.send_signal(number)
            assert line() == number.name
        assert line() == ""
        assert process.wait(20) == 3


SHELL = """
import fcntl, os, signal, subprocess, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
job = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, job.pid)
while True:
    _, status = os.waitpid(job.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        break
    os.tcsetpgrp(0, os.getpgrp())
    print("shell: stopped", flush=True)
    os.tcsetpgrp(0, job.pid)
    os.killpg(job.pid, signal.SIGCONT)
print("shell: ended", os.waitstatus_to_exitcode(status), flush=True)
"""


def test_terminal(tmp_path: Path) -> None:
    """The command keeps the terminal: interrupt, quit of a suspend, window size reach it once; exec stops with it."""
    side = Side.make(tmp_path)
    leader, terminal = pty.openpty()
    with side.serving() as (server, _):
        argv = [sys.executable, "-c", SHELL]
        argv += [*exec_argv(side.files, server.port), *SIGNALS]
        process = subprocess.Popen(
            argv, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
        )
        os.close(terminal)
        with os.fdopen(leader, "r+b", buffering=0) as screen:
            _expect(screen, b"ready\r\n")
            screen.write(b"\x03")
            _expect(screen, b"SIGINT\r\n")
            fcntl.ioctl(screen, termios.TIOCSWINSZ, b"\x20\0\x40\0\0\0\0\0")
            _expect(screen, b"SIGWINCH\r\n")
            screen.write(b"\x1a")
            _expect(screen, b"shell: stopped\r\n")
            _expect(screen, b"SIGCONT\r\n")
            screen.write(b"\x1a")
            _expect(screen, b"shell: stopped\r\n")
            _expect(screen, b"SIGCONT\r\n")
            seen_twice = _drain(screen)
            assert b"SIGINT" not in seen_twice
            assert b"SIGWINCH" not in seen_twice
            for child in _children(_children(process.pid)[0]):
                os.kill(child, signal.SIGTERM)
            _expect(screen, b"shell: ended 3\r\n")
            assert process.wait(20) == 0


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _expect(screen: Any, text: bytes) -> None:
    """Read until `text` is on the screen."""
    data = b""
    end = time.monotonic() + 30
    while text not in data:
        assert select.select([screen], [], [], max(0.0, end - time.monotonic()))[0], data
        data += screen.read(1)


def _drain(screen: Any) -> bytes:
    data = b""
    while select.select([screen], [], [], 0.3)[0]:
        data += screen.read(4096)
    return data


# --- nothing is run that may not be --------------------------------------------------------------------------------


def _exit(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def test_a_bundle_needs_a_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An offer with a bundle and no --bundle-name is bad input, before any request."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        assert main(["exec", *side.files.arguments(server.port), "--", "true"]) == 65
        assert server.connections == 0
    assert "--bundle-name" in capfd.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--inject", "other"],
        ["--inject", "files"],
        ["--dir", "/dev/shm/x"],
        ["--allow-disk"],
        ["--inject", "env", "--allow-disk"],
        ["--bundle-name", "LD_PRELOAD"],
        ["--bundle-name", "1A"],
        ["--timeout", "0s"],
    ],
)
def test_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str]) -> None:
    """Options that do not fit together are usage faults, 64; so is a missing command."""
    arguments = ["exec", *Side.make(tmp_path).files.arguments(1), *options]
    assert _exit([*arguments, "--", "true"]) == 64
    assert _exit(["exec", *arguments[1:13], "--"]) == 64
    assert "usage: secret-sidecar exec" in capfd.readouterr().err


def test_help_states_exposures(capfd: pytest.CaptureFixture[str]) -> None:
    """The help tells what each mode exposes, which names are refused, and shows an example."""
    assert _exit(["exec", "--help"]) == 0
    out = capfd.readouterr().out
    for text in ("EXPOSED", "/proc/PID/environ", "PERL5*", "example:", "126 and 127"):
        assert text in out


@pytest.mark.parametrize(
    ("spoil", "step", "code"),
    [
        (lambda side: side.files.offer.chmod(0o644), Step(), 66),
        (lambda side: side.files.credential.unlink(), Step(), 66),
        (lambda side: side.files.cert.unlink(), Step(), 66),
        (lambda side: side.files.ca.write_text(""), Step(), 76),
        (lambda side: side.files.offer.write_text("[]"), Step(), 65),
        (lambda _: None, Step(refusal(409), "close"), 77),
        (lambda _: None, Step(refusal(503), "close"), 69),
        (lambda _: None, Step(refusal(302), "close"), 70),
        (lambda _: None, Step(b"", "hang"), 75),
    ],
)
def test_failures_run_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Side], object], step: Step, code: int
) -> None:
    """Whatever ends the fetch, the command does not run, no directory stays, and one line says why."""
    side = Side.make(tmp_path)
    spoil(side)
    mark, directory = tmp_path / "ran", tmp_path / "d"
    with side.serving(step) as (server, _):
        arguments = [*side.files.arguments(server.port), "--bundle-name", "B", "--timeout", "500ms"]
        # A process of its own: exec makes its process not dumpable, and covers the directory where it may.
        argv = [sys.executable, "-m", "sidecar", "exec", *arguments]
        argv += ["--inject", "files", "--dir", str(directory), "--allow-disk", "--", "touch", str(mark)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("secret-sidecar exec: ")
    assert done.stderr.count("\n") == 1
    assert not mark.exists()
    assert not directory.exists()
    assert BUNDLE.text not in done.stderr
