"""What is left on the worker's side, searched from outside (contract 3, wiping): 0 needles, and twins that must fail.

`main` runs where it may scan: a real sidecar whose values are one repeated needle, a client process, and `exec` in all
four modes; then the twins. The tests read its findings.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.refs import SecretRef
from tests.kit.breaking import BREAKS, Break
from tests.kit.commands import exec_argv, without_mounts
from tests.kit.leaky import leaky
from tests.kit.memscan import ROOT, filled, new_needle, run_inside, scan
from tests.kit.scripted import Scripted, Step, body, ok
from tests.kit.side import Side
from tests.kit.stand import Stand, make_stand
from tests.kit.worker import WorkerFiles, write_worker
from tests.kit.world import default_refs

SIZES = (64, 4096, 16384)
BUNDLE = SecretRef.of("project-1", "bundle", 3)
MODES = ("fd", "env", "files", "stdin")
EXAMPLES = 12
"""Runs of eight broken answers, each followed by a search."""


def make_needles(directory: Path) -> tuple[bytes, Stand, WorkerFiles]:
    """Make a stand whose every value is the needle, at three sizes and in a bundle, and its worker's files."""
    needle = new_needle()
    stand = make_stand(directory / "stand", refs=default_refs(len(SIZES)), bundle=BUNDLE)
    for ref, size in zip(stand.world.refs, SIZES, strict=True):
        stand.put(ref, filled(needle, size))
    stand.put(BUNDLE, filled(needle, 90_000))
    return needle, stand, write_worker(directory / "worker", stand.world)


@contextmanager
def target(port: int, files: WorkerFiles) -> Iterator[tuple[int, Any]]:
    """Run a client process and yield its id and a function that makes it fetch so many times."""
    argv = [sys.executable, "-m", "tests.kit.client_target", str(port), str(files.directory)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def fetch(count: int) -> dict[str, int]:
            process.stdin.write(f"{count}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            said: dict[str, int] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            return said

        yield process.pid, fetch
        process.stdin.close()
        process.wait(20)


def scan_client(directory: Path, found: dict[str, Any]) -> None:
    """Scan a client after deliveries of the real sidecar, and after each run of broken answers of a scripted one."""
    needle, stand, files = make_needles(directory)
    with stand.start():
        with target(stand.port, files) as (pid, fetch):
            found["client-fetches"] = fetch(20)["bytes"]
            found["client"] = scan(pid, needle)
        (directory / "twin").write_text(f"{stand.port} {files.directory}")
        with leaky("fetch", directory / "twin") as (pid, said):
            found["twin-fetch-bytes"] = said["bytes"]
            found["twin-fetch"] = scan(pid, needle)
    values: dict[str, bytes | str] = {
        ref.text: filled(needle, size) for ref, size in zip(stand.world.refs, SIZES, strict=True)
    }
    whole = ok(body(stand.world.offer, values | {BUNDLE.text: b'"\\\n' + filled(needle, 3000)}))
    scripted = Scripted([Step(whole)])
    outcomes = {"delivered": 0, "errors": 0, "bytes": 0}
    with scripted.run(directory), target(scripted.port, files) as (pid, fetch):

        @settings(max_examples=EXAMPLES, deadline=None, database=None)
        @given(st.lists(BREAKS, min_size=8, max_size=8))
        def breaking(breaks: list[Break]) -> None:
            scripted.requests.clear()
            # A cut is tried again: the next broken answer is then its second attempt, and the whole one the last.
            scripted.steps = [*(each.of(whole) for each in breaks), Step(whole)]
            while len(scripted.requests) < len(breaks):
                for key, count in fetch(1).items():
                    outcomes[key] += count
            assert scan(pid, needle) == 0

        breaking()
    found["broken"] = outcomes


def scan_exec(directory: Path, found: dict[str, Any]) -> None:
    """Scan `exec` in every mode just before the command may run, and while it runs."""
    needle, stand, files = make_needles(directory)
    with stand.start():
        for mode in MODES:
            options = ["--inject", mode]
            if mode == "files":
                options += ["--dir", f"/dev/shm/exec-residue-{os.getpid()}"]
            argv = [*exec_argv(files, stand.port, *options), "sleep", "60"]
            # The gate is held open, so that both processes can be looked at in the moment before the command runs.
            held = [sys.executable, "-c", HELD, *argv[3:]]
            with subprocess.Popen(held, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                stage = int(process.stdout.readline())
                found[f"{mode}-before"] = scan(process.pid, needle)
                found[f"{mode}-stage"] = scan(stage, needle)
                process.stdin.close()
                while Path(f"/proc/{stage}/comm").read_text().strip() != "sleep":
                    time.sleep(0.01)
                found[f"{mode}-running"] = scan(process.pid, needle)
                found[f"{mode}-environ"] = Path(f"/proc/{stage}/environ").read_bytes().count(needle)
                process.terminate()
                found[f"{mode}-status"] = process.wait(20)
    (directory / "twin").write_bytes(filled(needle, 4096))
    for kind in ("freed", "spawn"):
        with leaky(kind, directory / "twin") as (pid, _):
            found[f"twin-{kind}"] = scan(pid, needle)


HELD = """
import os, sys
from sidecar import __main__, stage
go = stage.Stage.go
def held(self):
    os.write(1, b"%d\\n" % self.pid)
    sys.stdin.buffer.read()
    return go(self)
stage.Stage.go = held
sys.exit(__main__.main(sys.argv[1:]))
"""


KILLED = """
import os, signal, sys
from sidecar import __main__, inject_files
left, count = int(sys.argv.pop(1)), 0
prepare = inject_files.Files.prepare
def hook(event, _):
    global count
    count += counting
    if count == left:
        os.kill(os.getpid(), signal.SIGKILL)
def counted(self):
    global counting
    counting = 1
    prepare(self)
counting = 0
inject_files.Files.prepare = counted
sys.addaudithook(hook)
code = __main__.main(sys.argv[1:])
counting = 0
os.write(1, b"%d\\n" % count)
sys.exit(code)
"""


PARTS = {"client": scan_client, "exec": scan_exec}


def main() -> None:
    """Run one part and print what was found."""
    found: dict[str, Any] = {}
    PARTS[sys.argv[1]](Path(sys.argv[2]), found)
    print(json.dumps(found))


def test_client_leaves_nothing(tmp_path: Path) -> None:
    """After a delivery, and after an answer cut or corrupted at any byte, no needle is left in the client's process;
    a client of the standard library leaves them.
    """
    found = run_inside("tests.test_exec_residue", "client", str(tmp_path))
    assert found["client-fetches"] == 20 * sum(SIZES)
    assert found["client"] == 0
    assert found["twin-fetch-bytes"] == sum(SIZES)
    assert found["twin-fetch"] > 0
    assert found["broken"]["errors"] > EXAMPLES
    assert found["broken"]["delivered"] > 0


def test_exec_leaves_nothing(tmp_path: Path) -> None:
    """In every mode `exec` holds no needle before the command's first instruction, nor while it runs; only in mode env
    the stage, which is the command before its first instruction, and the command hold them. The twins are caught.
    """
    found = run_inside("tests.test_exec_residue", "exec", str(tmp_path))
    for mode in MODES:
        assert found[f"{mode}-before"] == 0
        assert found[f"{mode}-running"] == 0
        assert (found[f"{mode}-stage"] > 0) == (mode == "env")
        assert (found[f"{mode}-environ"] > 0) == (mode == "env")
        assert found[f"{mode}-status"] == 128 + signal.SIGTERM
    assert found["twin-freed"] > 0
    assert found["twin-spawn"] > 0


def holders(directory: Path, needle: bytes) -> list[str]:
    """Return the files below a directory that hold the needle."""
    return [str(path) for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()]


@pytest.mark.parametrize("mounts", [True, False], ids=["mounting", "not-mounting"])
def test_killed_at_any_step(tmp_path: Path, mounts: bool) -> None:
    """Killed at any step, exec leaves no secret on a persistent file system; what it leaves on tmpfs the next start
    overwrites and removes.
    """
    needle = new_needle()
    side = Side.make(tmp_path / "side")
    content = side.content(first=filled(needle, 4096), second=filled(needle, 64), bundle=filled(needle, 900))
    memory = Path(f"/dev/shm/exec-killed-{os.getpid()}-{mounts}")
    drop = None if mounts else without_mounts()
    private = mounts and os.geteuid() == 0
    directory = tmp_path / "d" if private else memory
    with side.serving(Step(ok(content))) as (server, _):
        options = ["--inject", "files", "--dir", str(directory)]
        argv = exec_argv(side.files, server.port, *options)[3:]

        def run(kill_at: int) -> subprocess.CompletedProcess[bytes]:
            command = [sys.executable, "-c", KILLED, str(kill_at), *argv, "true"]
            return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, preexec_fn=drop, timeout=60, check=False)

        whole = run(-1)
        assert whole.returncode == 0
        steps = int(whole.stdout)
        assert steps > 40
        left = 0
        for kill_at in range(1, steps, max(1, steps // 8)):
            assert run(kill_at).returncode == -signal.SIGKILL
            assert holders(tmp_path, needle) == []
            left += len(holders(memory, needle)) if memory.exists() else 0
            assert run(-1).returncode == 0
            assert holders(directory, needle) == []
            assert not directory.exists() or list(directory.iterdir()) == []
        assert (left > 0) == (not private)
    if directory.exists():
        directory.rmdir()


@pytest.mark.root
def test_a_private_mount_is_private(tmp_path: Path) -> None:
    """Where exec may mount, nobody but the command sees its files, and they are gone when both were killed."""
    side = Side.make(tmp_path / "side")
    directory = tmp_path / "d"
    with side.serving() as (server, _):
        argv = exec_argv(side.files, server.port, "--inject", "files", "--dir", str(directory))
        show = ["sh", "-c", f"ls {directory}; exec sleep 60"]
        with subprocess.Popen([*argv, *show], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(3)] == [b"BUNDLE\n", b"SECRET_0\n", b"SECRET_1\n"]
            assert list(directory.iterdir()) == []
            os.killpg(process.pid, signal.SIGKILL)
        assert list(directory.iterdir()) == []


if __name__ == "__main__":
    main()
