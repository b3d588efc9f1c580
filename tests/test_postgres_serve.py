"""`serve` over PostgreSQL from outside: deliveries, audit rows, readiness, exit codes, a pepper that rotates."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.crowd import crowd
from provider.credential import Pepper
from tests.kit.environments import LOGIN, POOL
from tests.kit.postgres import ROLE_PASSWORD, Database, Postgres, make_postgres_stand
from tests.kit.stand import Stand, value_of
from tests.kit.tcpproxy import TcpProxy
from tests.kit.waiting import wait_for
from tests.kit.world import CREDENTIAL_ID, PEPPER_TEXT, SECRET

OTHER_PEPPER = "H" + PEPPER_TEXT[1:]


def start(stand: Stand, **variables: str) -> Stand:
    """Start it and wait until the store is healthy."""
    stand.start(**variables)
    wait_for(lambda: stand.checks()["authority"] == "ok")
    return stand


def healthy(stand: Stand, state: str) -> None:
    """Wait until readiness tells this of the store."""
    wait_for(lambda: stand.checks()["authority"] == state)


def test_a_delivery_and_what_it_leaves(tmp_path: Path, database: Database) -> None:
    """The values arrive; the audit row is there and, with receipts on, rows `released` and `delivered`."""
    with start(make_postgres_stand(tmp_path, database), QL3_SECRET_SIDECAR_RECEIPTS="on") as stand:
        answer = stand.ask()
        assert answer.status == 200
        assert [item["value"] for item in answer.json()["values"]] == [value_of(0).decode(), value_of(1).decode()]
        assert [row["outcome"] for row in stand.world.audit()] == ["allowed"]
        kinds = "SELECT kind FROM secret_sidecar.receipts ORDER BY kind"
        wait_for(lambda: [row[0] for row in stand.world.execute(kinds)] == ["delivered"] * 2 + ["released"] * 2)
        stand.world.execute("UPDATE runs SET cancel_requested_at_ms = 1")
        assert stand.ask().code == "worker_secret_delivery_fenced"
        assert stand.ask(token="ql3w_nobody_" + "A" * 43).code == "worker_authentication_required"
        assert [row["outcome"] for row in stand.world.audit()][-1] == "authentication_rejected"
        assert stand.metric("store_sessions") >= 1
        assert stand.metric("store_sessions_used") == 0
        assert stand.metric("receipts_unacknowledged_total") == 0
        assert stand.stop() == 0


def test_a_server_that_comes_late_and_goes(tmp_path: Path, server: Postgres, database: Database) -> None:
    """Not there at the start: it listens, not ready. Lost later: shown within 3 s, 503 at once, and back again."""
    made = make_postgres_stand(tmp_path, database)
    server.stop()
    try:
        with made.start() as stand:
            assert stand.checks()["authority"] == "failed"
            assert stand.ask().code == "worker_authentication_unavailable"
            server.start()
            healthy(stand, "ok")
            assert stand.ask().status == 200
            server.psql("CHECKPOINT")  # this server forgets the last moments before a crash
            server.stop("immediate")
            began = time.monotonic()
            assert stand.ask().code == "worker_authentication_unavailable"
            healthy(stand, "failed")
            assert time.monotonic() - began < 3
            server.start()
            healthy(stand, "ok")
            assert stand.ask().status == 200
            assert stand.stop() == 0
    finally:
        if server._process is None:
            server.start()


def test_wrong_rights_at_the_start(tmp_path: Path, database: Database) -> None:
    """Nothing listens: exit 78, and standard error names the very statements, one for each fault."""
    database.psql(
        "REVOKE SELECT ON ql3.runs FROM ql3_secret_sidecar; GRANT SELECT ON ql3.security_audit_events TO PUBLIC"
    )
    with make_postgres_stand(tmp_path, database) as stand:
        with pytest.raises(AssertionError, match="no event process_ready"):
            stand.start()
        assert stand.stop() == 78
        said = stand.stderr()
        assert "GRANT SELECT ON ql3.runs TO ql3_secret_sidecar;" in said
        assert "REVOKE SELECT ON ql3.security_audit_events FROM PUBLIC;" in said
        assert [event.get("fault") for event in stand.events if event["event"] == "start_fault"] == ["store_rights"]


def test_wrong_rights_in_a_late_first_answer(tmp_path: Path, database: Database) -> None:
    """It listens already when the server first answers, and ends with 78 all the same."""
    database.psql("REVOKE SELECT ON ql3.runs FROM ql3_secret_sidecar")
    made = make_postgres_stand(tmp_path, database)
    with TcpProxy(database.server.port) as proxy:
        proxy.refuses = True
        with made.start(**{f"{LOGIN}PORT": str(proxy.port)}) as stand:
            assert stand.ask().code == "worker_authentication_unavailable"
            proxy.refuses = False
            assert stand.process is not None
            assert stand.process.wait(20) == 78
            assert "GRANT SELECT ON ql3.runs TO ql3_secret_sidecar;" in stand.stderr()


def test_rights_that_become_wrong(tmp_path: Path, database: Database) -> None:
    """One event, readiness, and 503 for every request, also with a credential that nobody knows; mending is enough."""
    with start(make_postgres_stand(tmp_path, database)) as stand:
        assert stand.ask().status == 200
        database.psql("REVOKE SELECT ON ql3.worker_credentials FROM ql3_secret_sidecar")
        assert stand.event("authority_rights_wrong")["fault"] == "right_missing"
        healthy(stand, "failed")
        for token in (None, "ql3w_nobody_" + "A" * 43):
            assert stand.ask(token=token).code == "worker_authentication_unavailable"
        database.psql("GRANT SELECT ON ql3.worker_credentials TO ql3_secret_sidecar")
        healthy(stand, "ok")
        assert stand.ask().status == 200
        assert [event["event"] for event in stand.events].count("authority_rights_wrong") == 1


def test_a_paused_server_is_answered_inside_the_deadline(tmp_path: Path, server: Postgres, database: Database) -> None:
    """Stopped where it is, with requests on the way: each gets its answer in time, and all is well when it goes on."""
    with start(make_postgres_stand(tmp_path, database), QL3_WORKER_INGRESS_REQUEST_TIMEOUT_MS="2000") as stand:
        assert stand.ask().status == 200
        server.pause()
        try:
            began = time.monotonic()
            with ThreadPoolExecutor(4) as clients:
                codes = [one.code for one in clients.map(lambda _: stand.ask(), range(4))]
            assert time.monotonic() - began < 6
            assert set(codes) <= {"request_timeout", "worker_authentication_unavailable"}
            healthy(stand, "failed")
        finally:
            server.resume()
        healthy(stand, "ok")
        assert stand.ask().status == 200
        assert stand.metric("buffers_outstanding") == 0


def test_a_client_that_goes_while_its_attempt_waits(tmp_path: Path, database: Database) -> None:
    """Its place and session come free, nothing is left of its values, and the attempt is served once it is unlocked."""
    held, release = threading.Event(), threading.Event()

    with start(make_postgres_stand(tmp_path, database)) as stand:
        key = f"ql3-attempt-authority:{stand.world.attempt_id}"

        async def hold_lock(connection: Any) -> None:
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key)
                held.set()
                await asyncio.to_thread(release.wait, 30)

        holder = threading.Thread(target=database.run, args=(hold_lock,))
        holder.start()
        try:
            assert held.wait(20)
            with stand.wire() as wire:
                wire.send(stand.request())
                wait_for(lambda: stand.metric("store_sessions_used") == 1)
            wait_for(lambda: stand.metric("store_sessions_used") == 0)
            assert stand.ask().code == "worker_ingress_unavailable"
        finally:
            release.set()
            holder.join()
        assert stand.ask().status == 200
        assert stand.metric("buffers_outstanding") == 0


def test_a_pepper_that_rotates(tmp_path: Path, database: Database) -> None:
    """Under a new pepper, the old one as the previous: the old digest is good and counted, the new one is good."""
    made = make_postgres_stand(tmp_path, database)
    previous = tmp_path / "previous"
    previous.touch(0o600)
    previous.write_text(PEPPER_TEXT)
    variables = {
        "QL3_WORKER_CREDENTIAL_PEPPER": OTHER_PEPPER,
        "QL3_SECRET_SIDECAR_PREVIOUS_PEPPER_FILE": str(previous),
    }
    with start(made, **variables) as stand:
        assert stand.ask().status == 200
        assert stand.metric("previous_pepper_total") == 1
        digest = Pepper.parse(OTHER_PEPPER).digest(CREDENTIAL_ID, SECRET)
        stand.world.execute("UPDATE worker_credentials SET secret_digest = ?", (digest,))
        assert stand.ask().status == 200
        assert stand.metric("previous_pepper_total") == 1


def test_a_login_that_rotates(tmp_path: Path, database: Database) -> None:
    """A new password in its file is enough: no restart, and no answer but deliveries on the way."""
    made = make_postgres_stand(tmp_path, database)
    del made.environment[f"{LOGIN}PASSWORD"]
    file = tmp_path / "password"

    def write(text: str) -> None:
        temporary = tmp_path / "password.new"
        temporary.touch(0o600)
        temporary.write_text(text)
        temporary.rename(file)

    write(ROLE_PASSWORD)
    with start(made, **{f"{LOGIN}PASSWORD_FILE": str(file)}) as stand:
        assert stand.ask().status == 200
        database.psql("ALTER ROLE ql3_secret_sidecar PASSWORD 'another-pw-9Wq'")
        try:
            assert stand.ask().status == 200  # sessions that are open stay
            write("another-pw-9Wq\n")
            database.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ql3_secret_sidecar'")
            wait_for(lambda: stand.metric("store_sessions") == 0 or stand.checks()["authority"] == "ok")
            assert stand.ask().status == 200
        finally:
            database.psql(f"ALTER ROLE ql3_secret_sidecar PASSWORD '{ROLE_PASSWORD}'")


AT_ONCE = {
    "QL3_WORKER_INGRESS_MAX_IN_FLIGHT": "64",
    "QL3_SECRET_SIDECAR_MAX_IN_FLIGHT_PER_CREDENTIAL": "64",
    "QL3_SECRET_SIDECAR_MAX_CONNECTIONS_PER_ADDRESS": "512",
}


def all_delivered_at_once(stand: Stand, requests: list[bytes]) -> bool:
    """Send each request on a connection of its own, all before the first answer; tell whether all were delivered."""
    with ExitStack() as stack:
        wires = [stack.enter_context(stand.wire()) for _ in requests]
        for wire, request in zip(wires, requests, strict=True):
            wire.send(request)
        answers = [wire.answer() for wire in wires]
    # Whoever waits longer than 2 s for a place is refused, which on a busy machine may befall some of so many.
    assert {answer.code for answer in answers if answer.status != 200} <= {"worker_ingress_unavailable"}
    return all(answer.status == 200 for answer in answers)


def test_sixty_four_at_once(tmp_path: Path, database: Database) -> None:
    """Sixty-four requests for one attempt at the same time, limits set for it: all are delivered."""
    with start(make_postgres_stand(tmp_path, database), **AT_ONCE) as stand:
        assert any(all_delivered_at_once(stand, [stand.request()] * 64) for _ in range(5))
        assert stand.metric("store_sessions") <= 4
        assert len(stand.world.audit()) % 64 == 0
        assert stand.metric("buffers_outstanding") == 0


def test_sixty_four_attempts_at_once(tmp_path: Path, database: Database) -> None:
    """Sixty-four requests at the same time, each for an attempt and with a credential of its own: all are delivered."""
    with make_postgres_stand(tmp_path, database) as stand:
        requests = [request.encode("ascii") for request in crowd(stand, 64)]
        start(stand, **AT_ONCE, **{f"{POOL}MAX_CONNECTIONS": "8"})
        assert any(all_delivered_at_once(stand, requests) for _ in range(5))
        assert 4 < stand.metric("store_sessions") <= 8
        assert len(stand.world.audit()) % 64 == 0
        assert stand.metric("buffers_outstanding") == 0
