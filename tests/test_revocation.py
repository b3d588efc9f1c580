"""Revocation, lost trust and faulty lists on a real `serve`: what bites, how soon, and what changes nothing."""

import asyncio
import datetime
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sidecar import devcerts
from sidecar.devcerts import Pair, make_crl
from tests.kit.canary import VALUE
from tests.kit.pki import pki
from tests.kit.postgres import Database, make_postgres_stand
from tests.kit.stand import Stand, Wire, make_stand
from tests.kit.waiting import wait_for

CUT_S: Final = 1.0
"""How soon after the change of a file who is not good any more gets nothing (issue: revocation that bites)."""
TRIES: Final = 5
"""A machine that is busy with other things says nothing about us: the best of so many counts."""
HANDSHAKE_FAILED: Final = 'silent_closes_total{cause="handshake_failed"}'
HEADERS_JUDGED: Final = 'stage_seconds_count{stage="headers"}'
DAY: Final = datetime.timedelta(days=1)


def client() -> Pair:
    """Issue the certificate of a new client of the intermediate."""
    return devcerts.issue(pki().intermediate, "client", client=True)


def with_crl(stand: Stand) -> Stand:
    """Give a stand a CRL file in which nobody stands."""
    devcerts.write(crl_file(stand), pki().crl_pem(number=1))
    stand.environment["QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE"] = str(crl_file(stand))
    return stand


def crl_file(stand: Stand) -> Path:
    """The CRL file of a stand."""
    return stand.directory / "tls" / "ca.crl"


def reloads(stand: Stand) -> int:
    """How many snapshots were taken into service."""
    return int(stand.metric("identity_reloads_total"))


def revoke(stand: Stand, *pairs: Pair) -> None:
    """Replace the CRL file by one that revokes these, with the next number; nothing is waited for."""
    devcerts.write(crl_file(stand), pki().crl_pem(*pairs, number=reloads(stand) + 2))


def take_in(stand: Stand, name: str, data: bytes) -> None:
    """Replace a file of the identity and wait until the new snapshot is in service."""
    before = reloads(stand)
    devcerts.write(stand.directory / "tls" / name, data)
    wait_for(lambda: reloads(stand) == before + 1)


def not_let_in(stand: Stand, pair: Pair) -> None:
    """Hold that a client is refused at the handshake: not a byte of an answer, and the failure is counted."""
    before = stand.metric(HANDSHAKE_FAILED)
    with stand.wire(pair) as wire:
        assert wire.ended()
    wait_for(lambda: stand.metric(HANDSHAKE_FAILED) == before + 1)


# --- cut within a second -----------------------------------------------------------------------------------------
@dataclass
class Asking:
    """A worker that asks all the while in one way: when its successes began, and what ended them."""

    stand: Stand
    pair: Pair
    successes: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Codes, or what TLS said."""
    _context: ssl.SSLContext | None = None
    _session: ssl.SSLSession | None = None

    def kept(self) -> None:
        """Ask on one connection, until it is told to end; then on the next."""
        with self.stand.wire(self.pair) as wire:
            while self._ask(wire) is None:
                time.sleep(0.02)

    def fresh(self) -> None:
        """Ask on a connection of its own."""
        with self.stand.wire(self.pair) as wire:
            self._ask(wire)

    def resumed(self) -> None:
        """Ask on a connection that would resume the session of the one before."""
        if self._context is None:
            # A session belongs to its context, so every connection of this worker is made by the first one's.
            self._context = self.stand.pki.client_context(self.pair, self.stand.directory)
        raw = socket.create_connection(("127.0.0.1", self.stand.port), timeout=20)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with Wire(self._context.wrap_socket(raw, server_hostname="localhost", session=self._session)) as wire:
            self._ask(wire)
            assert not wire.sock.session_reused
            self._session = wire.sock.session
            assert self._session is None or not self._session.has_ticket

    def _ask(self, wire: Wire) -> str | None:
        """Ask once; return how the connection ends, None while it goes on."""
        began = time.monotonic()
        wire.send(self.stand.request())
        answer = wire.answer()
        if answer.status == 200:
            self.successes.append(began)
        else:
            assert VALUE.encode() not in answer.body
            self.refused.append(answer.code)
        return answer.header("connection")

    def run(self, how: Callable[["Asking"], None], ended: threading.Event) -> None:
        """Ask in this way until told to end."""
        while not ended.is_set():
            try:
                how(self)
            except (OSError, EOFError) as error:
                self.refused.append(type(error).__name__)
            time.sleep(0.02)


NOTHING: Final = {"SSLError", "SSLEOFError", "EOFError", "ConnectionResetError", "BrokenPipeError"}
"""What a client sees that is refused at the handshake: an alert, unless a reset overtakes it."""
WAYS: Final = (Asking.kept, Asking.fresh, Asking.resumed)


@contextmanager
def asking(stand: Stand, pair: Pair) -> Iterator[list[Asking]]:
    """Let a worker ask in every way at once, each well begun."""
    ended = threading.Event()
    # Its file is written once and not by several threads.
    stand.pki.client_context(pair, stand.directory)
    workers = [Asking(stand, pair) for _ in WAYS]
    threads = [
        threading.Thread(target=worker.run, args=(way, ended)) for worker, way in zip(workers, WAYS, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: all(len(worker.successes) > 3 for worker in workers))
        yield workers
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def cut(stand: Stand, bad: Callable[[], Pair], change: Callable[[Pair], object]) -> list[Asking]:
    """Change a file under a worker who asks in every way, and hold the last success of each to the second."""
    took = []
    for _ in range(TRIES):
        pair = bad()
        with asking(stand, pair) as workers, asking(stand, pki().direct) as others:
            began = time.monotonic()
            change(pair)
            time.sleep(CUT_S + 1)
            assert all(other.successes[-1] > began + CUT_S for other in others)
        assert {code for other in others for code in other.refused} == set()
        took.append(max(worker.successes[-1] for worker in workers) - began)
        if took[-1] < CUT_S:
            return workers
    raise AssertionError(f"cut too late: {took}")


def test_a_revoked_worker_is_cut_within_a_second(tmp_path: Path) -> None:
    """A second after the CRL file's change nothing is given any more, on fresh, resumed and kept-alive connections.

    Who stays good loses nothing by it, and no session was ever resumed.
    """
    with with_crl(make_stand(tmp_path / "stand")) as stand:
        stand.start()
        kept, fresh, resumed = cut(stand, client, partial(revoke, stand))
        # The connection that was there gets its answer, the others do not come so far.
        assert kept.refused[0] == "tls_context_reloaded"
        for worker in (fresh, resumed):
            assert set(worker.refused) <= NOTHING | {"tls_context_reloaded"}
            assert NOTHING & set(worker.refused)


def test_a_worker_whose_ca_is_gone_is_cut_within_a_second(tmp_path: Path) -> None:
    """The same for a worker whose CA is no client CA any more."""
    world = pki()
    with make_stand(tmp_path / "stand") as stand:
        stand.start()

        def trusted() -> Pair:
            take_in(stand, "ca.crt", world.ca_pem + world.other_root.pem)
            return world.stranger

        def distrust(_: Pair) -> None:
            devcerts.write(stand.directory / "tls" / "ca.crt", world.ca_pem)

        kept, fresh, resumed = cut(stand, trusted, distrust)
        assert kept.refused[0] == "tls_context_reloaded"
        for worker in (fresh, resumed):
            assert set(worker.refused) <= NOTHING | {"tls_context_reloaded"}
            assert NOTHING & set(worker.refused)


# --- while the request waits for its lock ------------------------------------------------------------------------
Held = Callable[[Stand], AbstractContextManager[None]]


@contextmanager
def sqlite_lock(stand: Stand) -> Iterator[None]:
    """Hold the store's write lock, which is the lock of every attempt."""
    with closing(sqlite3.connect(stand.world.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def postgres_lock(stand: Stand) -> Iterator[None]:
    """Hold the attempt's advisory lock."""
    held, release = threading.Event(), threading.Event()

    async def hold(connection: Any) -> None:
        key = f"ql3-attempt-authority:{stand.world.attempt_id}"
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key)
            held.set()
            await asyncio.to_thread(release.wait, 30)

    holder = threading.Thread(target=stand.world.database.run, args=(hold,))  # type: ignore[attr-defined]
    holder.start()
    try:
        assert held.wait(20)
        yield
    finally:
        release.set()
        holder.join()


def revoked_while_it_waits(stand: Stand, lock: Held, *, good: bool) -> str:
    """Revoke a client, or another one, while its request waits for the lock; return the code of its answer."""
    for _ in range(TRIES):
        pair, judged = client(), stand.metric(HEADERS_JUDGED)
        with stand.wire(pair) as wire:
            body = stand.request()
            wire.send(body[:-1])
            # Its audit row is written before the lock is taken from it.
            wait_for(lambda: stand.metric(HEADERS_JUDGED) == judged + 1)  # noqa: B023 - waited for here
            before = reloads(stand)
            opened = stand.metric("material_opens_total")
            with lock(stand):
                wire.send(body[-1:])
                time.sleep(0.1)
                revoke(stand, client() if good else pair)
                wait_for(lambda: reloads(stand) == before + 1)  # noqa: B023 - as above
                assert stand.metric("material_opens_total") == opened
            answer = wire.answer()
            assert (VALUE.encode() in answer.body) == (answer.status == 200)
            if answer.code != "worker_ingress_unavailable":  # the lock's own bound came first: another try
                assert answer.header("connection") == "close"
                assert stand.metric("material_opens_total") > opened
                return answer.code
    raise AssertionError("the lock was never held so shortly")


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_revoked_while_its_request_waits_for_the_lock(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A certificate revoked while its request waits for the attempt's lock gets nothing; another's costs it nothing."""
    if store == "postgres":
        database: Database = request.getfixturevalue("database")
        made, lock = make_postgres_stand(tmp_path / "stand", database), postgres_lock
    else:
        made, lock = make_stand(tmp_path / "stand"), sqlite_lock
    with with_crl(made) as stand:
        stand.start()
        wait_for(lambda: stand.checks()["authority"] == "ok")
        assert revoked_while_it_waits(stand, lock, good=False) == "tls_context_reloaded"
        assert revoked_while_it_waits(stand, lock, good=True) == "delivered"
        wait_for(lambda: stand.metric("buffers_outstanding") == 0)
        refused = [event for event in stand.events if event.get("code") == "tls_context_reloaded"]
        assert [(event["stage"], event["status"]) for event in refused] == [("connection", 503)]


# --- lists that may not come into service ------------------------------------------------------------------------
def lists(ca: Pair, *others: Pair, **how: Any) -> bytes:
    """Return a CRL of `ca` made so, beside good ones of the others."""
    return make_crl(ca, **({"number": 50} | how)) + b"".join(make_crl(one, number=50) for one in others)


def der(data: bytes) -> bytes:
    """Return a CRL as DER."""
    return x509.load_pem_x509_crl(data).public_bytes(Encoding.DER)


def faulty() -> dict[str, tuple[str, bytes]]:
    """Return files that may not come into service after number 10, each with the fault it bears."""
    world = pki()
    root, middle = world.root, world.intermediate
    past, future = devcerts.now() - 3 * DAY, devcerts.now() + DAY
    return {
        "expired": ("crl_expired", lists(root, middle, this_update=past, days=1)),
        "of tomorrow": ("crl_not_yet_valid", lists(root, middle, this_update=future)),
        "of a foreign issuer": ("crl_foreign", lists(world.other_root, root, middle)),
        "forged": ("crl_signature", lists(root, middle, signed_by=world.other_root)),
        "rolled back": ("crl_rollback", lists(root, middle, number=9)),
        "of one CA alone": ("crl_missing", lists(root)),
        "twice of one CA": ("crl_repeated", lists(root, root, middle)),
        "in DER": ("crl_malformed", der(make_crl(root))),
        "empty": ("crl_count", b""),
        "beside a certificate": ("crl_malformed", lists(root, middle) + root.pem),
        "over 1 MiB": ("too_large", lists(root, middle) + b"\n" * (1 << 20)),
    }


def test_a_faulty_list_changes_nothing_and_is_named(tmp_path: Path) -> None:
    """Whatever is wrong with a CRL file that arrives: one event names it, and the last good snapshot stays.

    That means two things: who was good is served on, and who was revoked stays so.
    """
    world, revoked = pki(), client()
    with with_crl(make_stand(tmp_path / "stand")) as stand:
        stand.start()
        take_in(stand, "ca.crl", world.crl_pem(revoked, number=10))
        for name, (fault, data) in faulty().items():
            failures = stand.metric("identity_reload_failures_total")
            with stand.wire() as kept:
                kept.send(stand.request())
                assert kept.answer().header("connection") is None
                devcerts.write(crl_file(stand), data)
                event = stand.event("identity_rejected", role="client_crl")
                assert event["fault"] == fault, name
                kept.send(stand.request())
                answer = kept.answer()
                assert (answer.status, answer.header("connection")) == (200, None), name
            assert stand.metric("identity_reload_failures_total") > failures
            assert reloads(stand) == 1
            not_let_in(stand, revoked)
            assert stand.checks()["crl"] == "ok"
        # The next good one is taken all the same.
        take_in(stand, "ca.crl", world.crl_pem(number=11))
        with stand.wire(revoked) as wire:
            wire.send(stand.request())
            assert wire.answer().status == 200


def test_an_intermediate_that_is_revoked_takes_its_clients_along(tmp_path: Path) -> None:
    """Revocation is judged along the whole chain, on a connection that is there and at the handshake."""
    world = pki()
    with with_crl(make_stand(tmp_path / "stand")) as stand:
        stand.start()
        with stand.wire() as kept, stand.wire(world.direct) as other:
            for wire in (kept, other):
                wire.send(stand.request())
                assert wire.answer().status == 200
            take_in(stand, "ca.crl", world.crl_pem(world.intermediate, number=2))
            kept.send(stand.request())
            assert kept.answer().code == "tls_context_reloaded"
            other.send(stand.request())
            assert other.answer().status == 200
        not_let_in(stand, world.client)
        with stand.wire(world.direct) as wire:
            wire.send(stand.request())
            assert wire.answer().status == 200


def test_a_large_list_bites_as_a_small_one(tmp_path: Path) -> None:
    """Ten thousand serials, the client's the last of them: it is refused on either kind of connection."""
    world, revoked = pki(), client()
    many = make_crl(world.intermediate, [*range(2, 10_001), revoked.serial], number=2) + make_crl(world.root, number=2)
    with with_crl(make_stand(tmp_path / "stand")) as stand:
        stand.start()
        with stand.wire(revoked) as kept:
            kept.send(stand.request())
            assert kept.answer().status == 200
            take_in(stand, "ca.crl", many)
            kept.send(stand.request())
            assert kept.answer().code == "tls_context_reloaded"
        not_let_in(stand, revoked)
        assert stand.ask().status == 200


@pytest.mark.parametrize("name", ["expired", "of one CA alone"])
def test_a_faulty_list_stands_against_a_start(name: str, tmp_path: Path) -> None:
    """What keeps the last good snapshot in service on a reload ends a start: 78, and the fault is named."""
    fault, data = faulty()[name]
    with with_crl(make_stand(tmp_path / "stand")) as stand:
        devcerts.write(crl_file(stand), data)
        with pytest.raises(AssertionError, match="no event process_ready"):
            stand.start()
        assert stand.stop() == 78
        told = [(event["variable"], event["fault"]) for event in stand.events if event["event"] == "start_fault"]
        assert told == [("QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE", fault)]
