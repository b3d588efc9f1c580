"""Commands for `exec` to run, each a small Python program that says what it sees; and the way to run `exec`.

python -m tests.kit.commands report    prints, as JSON, its own environment, descriptors, files and standard input
python -m tests.kit.commands signals   prints `ready`, then each signal it gets; SIGTERM ends it with 3
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.kit.memscan import ROOT
from tests.kit.worker import WorkerFiles

PYTHON = sys.executable


def exec_argv(files: WorkerFiles, port: int, *options: str) -> list[str]:
    """Return the command line of `exec` up to its `--`; the offer's bundle is called BUNDLE."""
    return [PYTHON, "-m", "sidecar", "exec", *files.arguments(port), "--bundle-name", "BUNDLE", *options, "--"]


def run_exec(
    files: WorkerFiles, port: int, *options: str, command: Sequence[str], **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run `exec` to its end."""
    argv = [*exec_argv(files, port, *options), *command]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **how)


def report(*arguments: str) -> list[str]:
    """Return the command line of `report`."""
    return [PYTHON, "-m", "tests.kit.commands", "report", *arguments]


SIGNALS = [PYTHON, "-m", "tests.kit.commands", "signals"]


def without_mounts() -> Callable[[], None] | None:
    """Return a `preexec_fn` that takes root's right to mount; an ordinary user has none."""
    if os.geteuid() != 0:
        return None

    def drop() -> None:
        import ctypes

        pr_capbset_drop, cap_sys_admin = 24, 21
        assert ctypes.CDLL(None).prctl(pr_capbset_drop, cap_sys_admin, 0, 0, 0) == 0

    return drop


def _link(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def _report() -> None:
    names = ("SECRET_0", "SECRET_1", "BUNDLE")
    seen: dict[str, Any] = {
        "environ": {name: os.environ.get(name) for name in names},
        "paths": {name: os.environ.get(f"{name}_FILE") for name in names},
        "cmdline": Path("/proc/self/cmdline").read_text(),
        "parent": Path(f"/proc/{os.getppid()}/cmdline").read_text(),
        "links": [link for link in map(_link, os.listdir("/proc/self/fd")) if link],
        "stdin": "" if os.isatty(0) else sys.stdin.read(),
        "files": {},
    }
    for name, path in seen["paths"].items():
        if path:
            descriptor = os.open(path, os.O_RDONLY)
            status = os.fstat(descriptor)
            seen["files"][name] = {
                "value": os.read(descriptor, 1 << 20).decode(),
                "again": Path(path).read_text(),
                "mode": oct(status.st_mode & 0o7777),
                "directory": oct(os.stat(os.path.dirname(path)).st_mode & 0o7777),
            }
            if path.startswith("/proc/self/fd/"):
                seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
                seen["files"][name]["seals"] = seals
                seen["files"][name]["first"] = os.read(int(path.rpartition("/")[2]), 1 << 20).decode()
    print(json.dumps(seen))


def _signals() -> None:
    watched = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH, signal.SIGCONT}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    os.write(1, b"ready\n")
    while True:
        number = signal.sigwait(watched)
        os.write(1, f"{signal.Signals(number).name}\n".encode())
        if number == signal.SIGTERM:
            sys.exit(3)


if __name__ == "__main__":
    {"report": _report, "signals": _signals}[sys.argv[1]]()
