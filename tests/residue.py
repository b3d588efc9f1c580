"""A real `serve`, scanned from outside after each way out of a request (issue: wiping). Run by `tests/test_wiping.py`.

Prints one line of JSON: needles found after each way, and in two leaky twins of the same run.
"""

import json
import signal
import socket
import sqlite3
import struct
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.kit.leaky import leaky
from tests.kit.memscan import filled, new_needle, scan
from tests.kit.stand import Stand, Wire, make_stand
from tests.kit.world import default_refs

SIZES = (64, 4096, 16384)
DEADLINE_MS = 1500


@contextmanager
def write_lock(stand: Stand) -> Iterator[None]:
    """Hold the store's write lock, as another process."""
    with closing(sqlite3.connect(stand.world.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


def reset(wire: Wire) -> None:
    """End a connection by a reset."""
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def settled(stand: Stand) -> None:
    """Wait until no request runs."""
    end = time.monotonic() + 20
    while stand.metric("in_flight") or stand.metric("buffers_outstanding"):
        assert time.monotonic() < end, "a request did not end"
        time.sleep(0.02)


def ways(stand: Stand, needle: bytes) -> dict[str, int]:
    """Go out every way and count needles after each."""
    assert stand.process is not None
    pid, found = stand.process.pid, {}

    def count(way: str) -> None:
        settled(stand)
        assert stand.process is not None
        assert stand.process.poll() is None
        found[way] = scan(pid, needle)

    with stand.wire() as wire:
        for _ in range(20):
            wire.send(stand.request())
            answer = wire.answer()
            assert answer.status == 200, answer
            assert answer.body.count(needle) == sum(SIZES) // len(needle)
    count("success")

    # The last file is read when the ones before are in memory already.
    stand.put(stand.world.refs[-1], filled(needle, 4096) + b"\xff")
    assert stand.ask().status == 503
    count("refusal: not UTF-8")
    (stand.root / stand.world.refs[-1].file_name).unlink()
    assert stand.ask().status == 503
    count("refusal: missing")
    stand.put(stand.world.refs[-1], filled(needle, SIZES[-1]))

    # Quotes double each byte: the batch fits, the answer does not.
    quoted = (needle[:15] + b'"') * 1024
    for ref in stand.world.refs:
        stand.put(ref, quoted)
    for _ in range(3):
        assert stand.ask().status in (200, 503)
    found["refusal: over the limit"] = scan(pid, needle[:15] + b'"')
    for ref, size in zip(stand.world.refs, SIZES, strict=True):
        stand.put(ref, filled(needle, size))

    stand.world.change("runs", cancel_requested_at_ms=1)
    assert stand.ask().status == 409
    stand.world.change("runs", cancel_requested_at_ms=None)
    count("refusal: fenced")

    for _ in range(20):
        wire = stand.wire()
        wire.send(stand.request())
        reset(wire)
    count("client reset")

    with write_lock(stand):
        wire = stand.wire()
        wire.send(stand.request())
        time.sleep(0.3)
        reset(wire)
    count("cancel while it waits")

    with write_lock(stand):
        wire = stand.wire()
        wire.send(stand.request())
        assert wire.answer().status in (503, 504)
    count("deadline")

    raw = stand.wire()
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(4):
        raw.send(stand.request())
        time.sleep(0.2)
    settled(stand)
    found["slow reader, while it holds"] = scan(pid, needle)
    reset(raw)
    count("slow reader, after its reset")

    wire = stand.wire()
    with write_lock(stand):
        wire.send(stand.request())
        time.sleep(0.3)
        stand.process.send_signal(signal.SIGTERM)
        stand.event("process_stopping")
        found["shutdown, while one runs"] = scan(pid, needle)
    assert wire.answer().status in (200, 503, 504)  # the scan above may outlast its time
    assert stand.process.wait(20) == 0
    return found


def twins(needle: bytes, directory: Path) -> dict[str, int]:
    """Count needles in a process that answers with json_response, and in one that frees an unwiped buffer."""
    found = {}
    for size in SIZES:
        file = directory / f"twin-{size}"
        file.write_bytes(filled(needle, size))
        for kind in ("freed", "answer"):
            with leaky(kind, file) as (pid, said):
                for _ in range(6 if kind == "answer" else 0):
                    with urllib.request.urlopen(f"http://127.0.0.1:{said['port']}/", timeout=10) as answer:
                        answer.read()
                found[f"{kind}, {size} bytes"] = scan(pid, needle)
    return found


def main() -> None:
    """Run everything in the directory of the first argument."""
    directory = Path(sys.argv[1])
    needle = new_needle()
    with make_stand(directory / "stand", refs=default_refs(len(SIZES)), receipts=True) as stand:
        for ref, size in zip(stand.world.refs, SIZES, strict=True):
            stand.put(ref, filled(needle, size))
        stand.environment["QL3_SECRET_SIDECAR_RECEIPTS"] = "on"
        stand.environment["QL3_WORKER_INGRESS_REQUEST_TIMEOUT_MS"] = str(DEADLINE_MS)
        stand.start()
        found = ways(stand, needle)
    print(json.dumps({"ways": found, "twins": twins(needle, directory)}))


if __name__ == "__main__":
    main()
