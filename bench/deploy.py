"""What the deployer's tools cost: publish, doctor, inventory and retention at size; a reader while values rotate.

    python -m bench.deploy [OUT.json]

Each figure is taken in a process of its own, so that its peak memory is its own. Files are in memory where that is
possible; the machine's other work is in the figures.
"""

import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.plan import processor_time
from provider.refs import SecretRef
from sidecar.__main__ import main as run_command
from sidecar.stores import sqlite_make
from tests.kit.stand import make_stand
from tests.test_publish_storm import Tally, publishing, read

RESULTS = Path(__file__).parent / "results" / "deploy.json"
MANY = 10_000
STORM_S = 30.0
PERIOD_MS = 10
CONNECTIONS, REQUESTS, ROUNDS = 10, 90, 3


def refs(count: int) -> list[SecretRef]:
    """Return refs with a version each."""
    return [SecretRef.of("shop", f"name-{number}", 1) for number in range(count)]


def publish(folder: Path, count: int) -> list[str]:
    """Prepare the publication of `count` values of 40 bytes; return the command."""
    secrets = []
    for ref in refs(count):
        (folder / ref.name).write_bytes(b"v" * 40)
        secrets.append({"ref": ref.text, "file": ref.name})
    (folder / "m.json").write_text(json.dumps({"schemaVersion": 1, "secrets": secrets}))
    (folder / "root").mkdir(mode=0o755)
    return ["publish", str(folder / "root"), "--manifest", str(folder / "m.json"), "--json"]


def publish_64(folder: Path) -> list[str]:
    """Publish the refs of one full batch."""
    return publish(folder, 64)


def publish_1000(folder: Path) -> list[str]:
    """Publish many."""
    return publish(folder, 1000)


def filled_root(folder: Path) -> Path:
    """Make a flat root of 10,000 files."""
    root = folder / "root"
    root.mkdir(mode=0o755)
    for ref in refs(MANY):
        path = root / ref.file_name
        path.write_bytes(b"v" * 40)
        path.chmod(0o440)
    return root


def doctor(folder: Path) -> list[str]:
    """Look at 10,000 files."""
    return ["doctor", str(filled_root(folder)), "--json"]


def filled_store(folder: Path, named: list[tuple[str, int, SecretRef]]) -> Path:
    """Make a store with a revision for each of these: task, number of the revision, and the one ref that it names."""
    store = folder / "store.db"
    sqlite_make.create(str(store))
    with sqlite3.connect(store) as connection:
        for task, number, ref in named:
            entry = {"name": "S", "kind": "secret", "secretRef": ref.text}
            plan = json.dumps({"command": {}, "environment": [entry]})
            row = ("shop", task, number, "remote_worker", f"qltd:v1:{number}:d", "d")
            connection.execute(
                "INSERT INTO task_execution_revisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, "qinglong/command-execution@v1", plan, "e"),
            )
    connection.close()
    return store


def inventory(folder: Path) -> list[str]:
    """Compare 10,000 files with 10,000 revisions."""
    store = filled_store(folder, [(f"task-{number}", 1, ref) for number, ref in enumerate(refs(MANY))])
    return ["inventory", str(filled_root(folder)), "--file", str(store), "--json"]


def retention(folder: Path) -> list[str]:
    """Plan over 10,000 files and 10,000 revisions, of which every second one is superseded."""
    store = filled_store(
        folder, [(f"task-{number // 2}", 1 + number % 2, ref) for number, ref in enumerate(refs(MANY))]
    )
    plan = ["retention", "plan", str(filled_root(folder)), "--keep-for", "1ms", "--out", str(folder / "plan.json")]
    return [*plan, "--file", str(store), "--json"]


def apply(folder: Path) -> list[str]:
    """Let those 5,000 old versions go."""
    command = [sys.executable, "-m", "sidecar", *retention(folder)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return ["retention", "apply", str(folder / "plan.json"), "--file", str(folder / "store.db"), "--json"]


WORK: dict[str, Callable[[Path], list[str]]] = {
    "publish 64 values": publish_64,
    "publish 1,000 values": publish_1000,
    "doctor over 10,000 files": doctor,
    "inventory over 10,000 files": inventory,
    "retention plan over 10,000 files": retention,
    "retention apply, 5,000 of 10,000 files": apply,
}


def measure(arguments: list[str]) -> None:
    """Run a command in this process; print seconds, those of them on a processor, and peak memory to stderr."""
    begin, before = time.monotonic(), time.process_time()
    code = run_command(arguments)
    seconds, ran = time.monotonic() - begin, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figure = {"seconds": round(seconds, 3), "processor_s": round(ran, 3), "peak_mib": round(peak, 1), "exit": code}
    print(json.dumps(figure), file=sys.stderr)


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder, in memory where that is possible."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def delivery_us(receipts: str) -> float:
    """Return the processor time of a delivery of one ref, one after the other, with receipts `on` or `off`."""
    with tempfile.TemporaryDirectory() as folder, make_stand(Path(folder), refs=1, receipts=True) as stand:
        stand.start(QL3_SECRET_SIDECAR_RECEIPTS=receipts)
        assert stand.process is not None
        begin = 0.0
        for connection in range(CONNECTIONS + 1):
            if connection == 1:  # the first one warms up
                begin, _ = processor_time(stand.process.pid)
            with stand.wire() as wire:
                for _ in range(REQUESTS):
                    wire.send(stand.request())
                    assert wire.answer().status == 200
        ran, _ = processor_time(stand.process.pid)
        return (ran - begin) / (CONNECTIONS * REQUESTS) * 1e6


def receipts_cost() -> dict[str, float]:
    """Take deliveries without and with receipts in turns; return the medians."""
    taken: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(ROUNDS):
        for receipts, figures in taken.items():
            figures.append(delivery_us(receipts))
    return {f"{receipts}_us": round(median(figures)) for receipts, figures in taken.items()}


def main(out: Path) -> None:
    """Take every figure and write it down."""
    results: dict[str, object] = {}
    for name, prepare in WORK.items():
        with scratch() as folder:
            command = [sys.executable, "-m", "bench.deploy", "--measure", *prepare(Path(folder))]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
            results[name] = json.loads(done.stderr.splitlines()[-1])
        print(name, results[name])
    for layout in ("linked", "flat"):
        tally = Tally()
        with scratch() as folder, publishing(Path(folder), layout, PERIOD_MS, tally) as root:
            read(root, tally, STORM_S)
        results[f"reader while the publisher rotates, {layout}"] = {
            "batches": tally.batches,
            "generations": tally.generations,
            "mixed": tally.mixed,
            "torn": tally.torn,
            "unavailable": tally.unavailable,
            "unavailable_while_off_the_processor": tally.held_up,
        }
        print(layout, tally)
    results["delivery of one ref, receipts off and on"] = receipts_cost()
    out.write_text(json.dumps({"load_after": os.getloadavg()[0], "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2:])
    else:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
