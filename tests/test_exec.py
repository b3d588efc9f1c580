"""`secret-sidecar exec`: what each mode gives the command, and what keeps it from running (contract 9)."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.__main__ import main
from tests.kit.commands import exec_argv, report, run_exec, without_mounts
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
    # What the kernel was given: a shell drops repeated names of what it hands on.
    script = 'echo "$SECRET_0 $KEPT $1 $2"; pwd; tr "\\0" "\\n" < /proc/$$/environ | grep -c "^SECRET_0="'
    with side.serving() as (server, _):
        done = run_exec(
            side.files,
            server.port,
            *("--inject", "env"),
            command=["sh", "-c", script, "sh", "--", "a b"],
            env={**os.environ, "SECRET_0": "stale", "KEPT": "kept"},
        )
    assert done.stdout.splitlines() == ["value-0 kept -- a b", str(ROOT), "1"]


def test_nobody_looks_in_while_exec_holds_values(tmp_path: Path) -> None:
    """When `exec` has values its process is not dumpable: no core file, and no other process of this user reads it."""
    side = Side.make(tmp_path)
    program = (
        "import ctypes, sys\n"
        "from sidecar.__main__ import main\n"
        "from sidecar.cli import exec as command\n"
        "def told(*_):\n"
        "    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "    return 0\n"
        "command._run = told\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    with side.serving() as (server, _):
        argv = [*exec_argv(side.files, server.port)[3:], "true"]
        done = subprocess.run(
            [sys.executable, "-c", program, *argv], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


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
