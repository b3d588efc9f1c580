"""The parts of a delivery alone, each as a hot loop: processor time of this thread, median of the turns."""

import asyncio
import hmac
import json
import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Final

import asyncpg

from sidecar import identity
from sidecar.ids import uuid4
from sidecar.stores.sqlite_file import connect
from tests.kit.pki import pki
from tests.kit.postgres import Postgres
from tests.kit.world import CREDENTIAL_ID, build_world

NEWEST: Final = "SELECT * FROM worker_credentials WHERE credential_id = ? ORDER BY version DESC LIMIT 1"
AUDIT: Final = "INSERT INTO security_audit_events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
# The fewest columns that the rules need, all rows by their keys: the product's own statement has more.
READ: Final = """
SELECT a.status, a.lease_token_digest, r.status, r.task_revision, l.status, l.version, l.expires_at_ms, s.status,
       s.lease_expires_at_ms, t.plan_json, t.content_digest, c.state, c.expires_at_ms
FROM run_attempts AS a JOIN runs AS r ON r.id = a.run_id
JOIN run_dispatch_leases AS l ON l.attempt_id = a.id
JOIN worker_sessions AS s ON s.worker_id = l.worker_id
JOIN task_execution_revisions AS t ON t.project_id = r.project_id AND t.task_id = r.task_id
     AND t.task_revision = r.task_revision AND t.executor_type = 'remote_worker'
JOIN worker_credentials AS c ON c.credential_id = ?2 AND c.version = 1
WHERE a.id = ?1
"""
WALKED_BYTES: Final = 4 * 1024 * 1024
"""More than a core's own caches hold, and little enough to stay in one that cores share."""
FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def timed(work: Callable[[], object], count: int, *, cold: bool = False) -> float:
    """Return the median microseconds of this thread's processor time that `work` takes.

    Cold: before every turn as much memory is walked through as displaces what the turn before has left in a core's own
    caches, as everything else of a delivery and the next delivery of another connection do.
    """
    took, walked = [], bytearray(WALKED_BYTES if cold else 0)
    for turn in range(count):
        walked[::64] = bytes([turn % 256]) * len(walked[::64])
        began = time.thread_time_ns()
        work()
        took.append(time.thread_time_ns() - began)
    return statistics.median(took) / 1000


def sqlite_loops(directory: Path, count: int, *, cold: bool = False) -> dict[str, float]:
    """The three statements that touch the store: credential, audit row on its own commit, and the authority's read."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        world = build_world(Path(name) / "store.db")
        with closing(connect(str(world.path))) as connection:

            def record() -> None:
                row = (uuid4(), "request", "worker.secrets", "allowed", "worker", "worker-1", "worker_credential:a:1",
                       '["worker_credential"]', 1)  # fmt: skip
                connection.execute(AUDIT, row)

            def read() -> None:
                connection.execute("BEGIN IMMEDIATE")
                assert connection.execute(READ, (world.attempt_id, CREDENTIAL_ID)).fetchone() is not None
                connection.execute("COMMIT")

            def look() -> None:
                connection.execute(NEWEST, (CREDENTIAL_ID,)).fetchall()

            return {
                "credential, select": timed(look, count, cold=cold),
                "audit row, committed": timed(record, count, cold=cold),
                "BEGIN IMMEDIATE, read, COMMIT": timed(read, count, cold=cold),
            }


def files_loop(directory: Path, count: int, where: str = "", *, cold: bool = False) -> dict[str, float]:
    """One file as the contract has it read: open beneath a descriptor, state, read, state again, name again, close."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        (Path(name) / "value").write_bytes(b"v" * 256)
        anchor, buffer = os.open(name, os.O_DIRECTORY), bytearray(257)
        views = [memoryview(buffer)]

        def read() -> None:
            descriptor = os.open("value", FLAGS, dir_fd=anchor)
            before = os.fstat(descriptor)
            os.readv(descriptor, views)
            after = os.fstat(descriptor)
            named = os.stat("value", dir_fd=anchor)
            os.close(descriptor)
            assert before.st_ino == after.st_ino == named.st_ino

        try:
            return {f"one file, checked{where}": timed(read, count, cold=cold)}
        finally:
            os.close(anchor)


def python_loop(count: int, *, cold: bool = False) -> dict[str, float]:
    """The least arithmetic of a request: its JSON, the credential's HMAC, digests of lease token and file name."""
    body = json.dumps({f"field{number}": "v" * 40 for number in range(12)} | {"secretRefs": ["r" * 60]}).encode()
    key, secret = b"k" * 32, b"s" * 32

    def work() -> None:
        json.loads(body)
        hmac.compare_digest(hmac.digest(key, secret, "sha256").hex(), "0" * 64)
        sha256(secret).hexdigest()
        sha256(body).hexdigest()

    return {"JSON, HMAC and digests": timed(work, count, cold=cold)}


def handshake_loop(count: int) -> dict[str, float]:
    """The server's side of a handshake in memory: key exchange, own signature, the client's chain and signature."""
    world = pki()
    with tempfile.TemporaryDirectory() as name:
        files = world.write(Path(name))
        ours, theirs = identity.load(files).context, world.client_context(world.client, Path(name))
        took = [_server_side(ours, theirs) for _ in range(count)]
    return {"handshake, the server's side in memory": statistics.median(took) / 1000}


def _server_side(server: ssl.SSLContext, client: ssl.SSLContext) -> int:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    spent, waiting = 0, list(sides)
    while waiting:
        side = waiting.pop(0)
        began = time.thread_time_ns()
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
        spent += (time.thread_time_ns() - began) * (side is sides[1])
    return spent


def postgres_loop(count: int) -> float:
    """Return the microseconds of processor time that the driver needs for one prepared round trip on an open session.

    Raises CannotRun where no PostgreSQL can run.
    """

    async def main(url: str) -> float:
        connection = await asyncpg.connect(url)
        try:
            statement = await connection.prepare("SELECT 1")
            for _ in range(50):
                await statement.fetchval()
            began = time.thread_time_ns()
            for _ in range(count):
                await statement.fetchval()
            return (time.thread_time_ns() - began) / count / 1000
        finally:
            await connection.close()

    with Postgres() as server, server.database() as database:
        return asyncio.run(main(database.url))
