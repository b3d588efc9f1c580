"""Hardening: what a process looks like afterwards, told by the kernel."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.stand import make_stand
from tests.kit.waiting import wait_for

ROOT = Path(__file__).resolve().parents[1]
LOOK = """
import ctypes, json, os, resource, sys
from sidecar.hardening import harden
harden()
libc = ctypes.CDLL(None)
print(json.dumps([libc.prctl(3, 0, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE),
                  os.umask(0), sorted(set(sys.modules) & {"aiohttp", "cryptography", "ssl"})]))
"""
O_CLOEXEC = 0o2000000


def test_a_hardened_process() -> None:
    """Not dumpable, no new privileges, no core files, private files; and nothing large is imported for it."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[0, 1, [0, 0], 63, []]\n", "")


def test_a_serving_process_takes_every_descriptor_that_it_may(tmp_path: Path) -> None:
    """A soft limit below what the limits of connections need does not bite in their place."""
    with make_stand(tmp_path / "stand") as stand:
        stand.start(wrapper=("sh", "-c", 'ulimit -Sn 64; exec "$0" "$@"'))
        wires = [stand.wire(source=f"127.0.0.{number % 8 + 2}") for number in range(100)]
        wait_for(lambda: stand.metric("connections") == 100)
        wires[-1].send(stand.request())
        assert wires[-1].answer().status == 200
        assert stand.metric("accept_pauses_total") == 0
        for wire in wires:
            wire.close()


def test_what_cannot_be_had_is_an_error() -> None:
    """When the kernel refuses, hardening raises instead of going on without."""
    program = (
        "import ctypes\n"
        "import sidecar.hardening as module\n"
        "module._PR_SET_DUMPABLE = 999\n"
        "try:\n    module.harden()\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{errno.EINVAL}\n"


def test_a_serving_process_is_hardened(tmp_path: Path) -> None:
    """A real `serve` has no core files, no new privileges, a private umask, no descriptor for a child."""
    with make_stand(tmp_path / "stand") as stand:
        stand.start()
        assert stand.process is not None
        assert stand.ask().status == 200
        proc = Path(f"/proc/{stand.process.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
        assert (status["NoNewPrivs"].strip(), status["Umask"].strip()) == ("1", "0077")
        core = next(
            line for line in (proc / "limits").read_text().splitlines() if line.startswith("Max core file size")
        )
        assert core.split()[4:6] == ["0", "0"]
        try:
            descriptors = list((proc / "fdinfo").iterdir())
        except PermissionError:
            # What is not dumpable hides its descriptors from its own user, which proves the first point.
            return
        inherited = []
        for entry in descriptors:
            try:
                text = entry.read_text()
            except FileNotFoundError:
                continue
            flags = int(text.partition("flags:")[2].split()[0], 8)
            if not flags & O_CLOEXEC:
                inherited.append(int(entry.name))
        assert sorted(inherited) == [0, 1, 2]


@pytest.mark.parametrize("secret", ["QL3_WORKER_CREDENTIAL_PEPPER"])
def test_hardening_comes_before_the_first_secret(secret: str, tmp_path: Path) -> None:
    """The configuration, and the pepper in it, is read by a process that is hardened already."""
    program = (
        "import ctypes, sidecar.config as config\n"
        "from sidecar.cli import serve\n"
        "def load():\n"
        "    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "    raise SystemExit(0)\n"
        "serve.load = load\n"
        "serve.run(None)\n"
    )
    stand = make_stand(tmp_path / "stand")
    assert secret in stand.environment
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=stand.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "0\n"
