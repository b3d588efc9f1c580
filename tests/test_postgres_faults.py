"""`serve` over a network that fails at each step of a delivery: the contract's answer, in time, and no trace."""

import time
from pathlib import Path

import pytest

from tests.kit.environments import LOGIN
from tests.kit.postgres import Database, make_postgres_stand
from tests.kit.tcpproxy import TcpProxy
from tests.kit.waiting import wait_for
from tests.kit.world import CREDENTIAL_ID

STEPS = {
    "credential": ((b"newest\0", CREDENTIAL_ID.encode()), "worker_authentication_unavailable"),
    "audit row": ((b"audit\0",), "worker_audit_unavailable"),
    "begin, lock and read": ((b"lock\0",), "worker_ingress_unavailable"),
    "COMMIT": ((b"COMMIT\0",), "worker_ingress_unavailable"),
}
"""By what a step is known on the wire, and what answers when it fails."""
DEADLINE_MS = 1500


def strike(proxy: TcpProxy, how: str, marks: tuple[bytes, ...]) -> list[bytes]:
    """Have the network fail when these bytes are sent; return what will hold the message that it then failed at."""
    struck: list[bytes] = []

    def sent(data: bytes) -> None:
        if struck or not all(mark in data for mark in marks):
            return
        struck.append(data)
        match how:
            case "cut":
                proxy.cut()
            case "deaf":
                proxy.deaf = True
            case "mute":
                proxy.mute_server = True

    proxy.sent = sent
    return struck


def heal(proxy: TcpProxy) -> None:
    """Let everything through again, on new connections."""
    proxy.sent = lambda _data: None
    proxy.deaf = proxy.mute_server = False
    proxy.cut()


@pytest.mark.parametrize("how", ["cut", "deaf", "mute"])
def test_the_network_fails_at_each_step(tmp_path: Path, database: Database, how: str) -> None:
    """Cut: the step's own answer. Silent, before or after the server heard of it: the deadline's. No value in either.

    Afterwards no buffer, no session and no lock is left, and the next request is served.
    """
    made = make_postgres_stand(tmp_path, database)
    with TcpProxy(database.server.port) as proxy:
        variables = {f"{LOGIN}PORT": str(proxy.port), "QL3_WORKER_INGRESS_REQUEST_TIMEOUT_MS": str(DEADLINE_MS)}
        with made.start(**variables) as stand:
            for marks, code in STEPS.values():
                wait_for(lambda: stand.ask().status == 200)
                struck = strike(proxy, how, marks)
                began = time.monotonic()
                answer = stand.ask()
                assert time.monotonic() - began < DEADLINE_MS / 1000 + 5
                assert struck
                assert answer.code == (code if how == "cut" else "request_timeout")
                wait_for(lambda: stand.metric("store_sessions_used") == 0)
                assert stand.metric("buffers_outstanding") == 0
                heal(proxy)
                locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database"
                wait_for(lambda: not stand.world.execute(f"{locks} WHERE datname = current_database())"))  # noqa: B023
            wait_for(lambda: stand.ask().status == 200)
            assert stand.stop() == 0
