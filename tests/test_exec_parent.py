"""`exec` as a parent: the command's status, its signals, its terminal, and the first process of a container."""

import fcntl
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
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.supervise import supervise
from tests.kit.commands import SIGNALS, exec_argv, run_exec
from tests.kit.memscan import ROOT
from tests.kit.side import Side


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
    """The command starts with the signals blocked and ignored that it would have without exec, which holds most and, as
    every Python, ignores two.
    """
    side = Side.make(tmp_path)
    show = ["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"]
    with side.serving() as (server, _):
        done = run_exec(side.files, server.port, command=show)
    assert done.stdout == subprocess.run(show, capture_output=True, text=True, check=True).stdout


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


INTERRUPTS = 8


def test_what_the_kernel_sends_is_not_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal of the terminal has reached the command already; one that a process sent has not."""
    by_kernel, by_process = 0x80, 0
    came = [(signal.SIGINT, by_kernel), (signal.SIGTERM, by_process), (signal.SIGCHLD, by_kernel)]
    sent: list[tuple[int, int]] = []
    waited = iter([SimpleNamespace(si_signo=number, si_code=code) for number, code in came])
    monkeypatch.setattr("sidecar.supervise.signal.sigwaitinfo", lambda _: next(waited))
    monkeypatch.setattr("sidecar.supervise.os.kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr("sidecar.supervise._reap", lambda _: 3)
    assert supervise(4711) == 3
    assert sent == [(4711, signal.SIGTERM)]


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
            seen = _expect(screen, b"ready\r\n")
            # Several times: a signal that comes twice before it is taken is one.
            for _ in range(INTERRUPTS):
                screen.write(b"\x03")
                seen += _expect(screen, b"SIGINT\r\n")
            fcntl.ioctl(screen, termios.TIOCSWINSZ, b"\x20\0\x40\0\0\0\0\0")
            seen += _expect(screen, b"SIGWINCH\r\n")
            screen.write(b"\x1a")
            seen += _expect(screen, b"shell: stopped\r\n")
            seen += _expect(screen, b"SIGCONT\r\n")
            screen.write(b"\x1a")
            seen += _expect(screen, b"shell: stopped\r\n")
            seen += _expect(screen, b"SIGCONT\r\n")
            seen += _drain(screen)
            assert (seen.count(b"SIGINT"), seen.count(b"SIGWINCH")) == (INTERRUPTS, 1)
            for child in _children(_children(process.pid)[0]):
                os.kill(child, signal.SIGTERM)
            seen += _expect(screen, b"shell: ended 3\r\n")
            assert process.wait(20) == 0


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _expect(screen: Any, text: bytes) -> bytes:
    """Read until `text` is on the screen; return all that was read."""
    data = b""
    end = time.monotonic() + 30
    while text not in data:
        assert select.select([screen], [], [], max(0.0, end - time.monotonic()))[0], data
        data += screen.read(1)
    return data


def _drain(screen: Any) -> bytes:
    data = b""
    while select.select([screen], [], [], 0.3)[0]:
        data += screen.read(4096)
    return data


@pytest.mark.root
def test_the_first_process_of_a_container(tmp_path: Path) -> None:
    """As process 1 exec takes in orphans, and forwards a SIGTERM, which the kernel would drop without a handler."""
    side = Side.make(tmp_path)
    script = (
        '(sleep 0.1 & ) ; trap "exit 5" TERM; sleep 0.5; ps -eo pid= -o stat=; echo done; while :; do sleep 0.1; done'
    )
    with side.serving() as (server, _):
        inner = [*exec_argv(side.files, server.port), "sh", "-c", script]
        with started(["unshare", "-pf", "--kill-child", "--mount-proc", *inner]) as (process, line):
            lines = list(iter(line, "done"))
            assert lines[0].split()[0] == "1"
            assert len(lines) == 3  # exec, the shell and ps: the orphan is neither running nor a zombie
            os.kill(_children(process.pid)[0], signal.SIGTERM)
            assert process.wait(20) == 5
