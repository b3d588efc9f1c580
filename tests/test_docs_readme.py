"""README.md can be acted on: its picture is the pipeline, its output is the demo's, its deployment works as written."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from provider import pipeline
from sidecar import devcerts
from tests.tools.doctext import ROOT, blocks

TEXT: Final = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURE, SHOWN = [block for language, block in blocks(TEXT) if language == "text"]
SCRIPT: Final = "".join(block for language, block in blocks(TEXT) if language == "sh")


def free_port() -> int:
    """A port of the loopback address that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with the certificates that the page asks for, and the console command on the path."""
    ca = devcerts.make_ca("README")
    server = devcerts.issue(ca, "localhost", server=True, dns=["localhost"], ip=["127.0.0.1"])
    worker = devcerts.issue(ca, "worker-1", client=True, dns=["worker-1"])
    made = {"ca.crt": ca.pem, "server.crt": server.chain_pem, "server.key": server.key_pem}
    made |= {"worker.crt": worker.chain_pem, "worker.key": worker.key_pem}
    for name, data in made.items():
        devcerts.write(tmp_path / name, data)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "secret-sidecar").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sidecar "$@"\n')
    (tmp_path / "bin" / "secret-sidecar").chmod(0o755)
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    return tmp_path


@pytest.fixture
def outcome(folder: Path) -> Iterator[subprocess.CompletedProcess[str]]:
    """What following the page gives. The other listeners and their addresses are chosen for the test alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QL")}
    environment |= {
        "PATH": f"{folder / 'bin'}:{os.defpath}",
        "PYTHONPATH": str(ROOT),
        "QL3_WORKER_INGRESS_HOST": "127.0.0.1",
        "QL3_SECRET_SIDECAR_HEALTH_HOST": "127.0.0.1",
        "QL3_SECRET_SIDECAR_HEALTH_PORT": "0",
        "QL3_SECRET_SIDECAR_METRICS_HOST": "127.0.0.1",
        "QL3_SECRET_SIDECAR_METRICS_PORT": "0",
        "QL3_SECRET_SIDECAR_SHUTDOWN_DELAY_MS": "0",
    }
    script = SCRIPT.replace("5801", str(free_port()))
    script = script.replace("secret-sidecar serve &", "secret-sidecar serve > events.jsonl 2>&1 & echo $! > serve.pid")
    try:
        yield subprocess.run(
            ["sh", "-eu", "-c", script],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    finally:
        if (folder / "serve.pid").exists():
            os.kill(int((folder / "serve.pid").read_text()), signal.SIGTERM)


def test_the_deployment_works_as_written(outcome: subprocess.CompletedProcess[str], folder: Path) -> None:
    """From an empty folder to a fetched secret, by the page's lines alone; no value is shown."""
    assert outcome.returncode == 0, outcome.stderr
    assert "serve would start" in outcome.stdout
    name, ref, size = outcome.stdout.splitlines()[-1].split()
    assert (name, size) == ("GITHUB_TOKEN", "7")
    assert ref.startswith("qlsecret:v1:")
    assert "a-token" not in outcome.stdout + (folder / "events.jsonl").read_text()


def test_the_demo_prints_what_is_shown(tmp_path: Path) -> None:
    """The output on the page is the output of `secret-sidecar demo`, to the letter."""
    command = [sys.executable, "-m", "sidecar", "demo", "--keep", str(tmp_path / "kept")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout) == (0, SHOWN)
    # What the page says of it: the certificates that the deployment below asks for.
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert set(re.findall(r"`(\w+\.(?:crt|key))`", TEXT)) <= kept


def test_the_picture_is_the_pipeline() -> None:
    """What the picture makes out of what is what the pipeline speaks of, in its order."""
    steps = re.findall(r"-> ([A-Z][a-z]+)", PICTURE)
    assert steps == ["Peer", "Principal", "Command", "Authority", "Batch"]
    assert {"Principal", "Authority", "Batch"} <= vars(pipeline).keys()
    order = [PICTURE.index(word) for word in ("audit row", "strict", "lock", "files read", "COMMIT", "zeros")]
    assert order == sorted(order)
