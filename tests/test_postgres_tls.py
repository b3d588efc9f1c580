"""TLS to PostgreSQL: `verify-full` with a CA file and a name of its own, against a real server and a front of ours."""

import asyncio
import datetime
import os
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from provider.outcomes import Refused
from sidecar.devcerts import Pair, issue, make_ca, now
from sidecar.devpostgres import CannotRun
from sidecar.postgres_config import Postgres as Login
from sidecar.postgres_config import PostgresTls
from sidecar.stores.faults import StoreFault, StoreFaultKind
from tests.conformance.store_suite import ask
from tests.kit.postgres import Database, Postgres
from tests.kit.postgres_bed import PostgresBed, login, served
from tests.kit.postgres_versions import system_programs
from tests.kit.world import CREDENTIAL_ID

NAME = "postgres.ql3.internal"
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
DAY = datetime.timedelta(days=1)


class Front:
    """Answers SSLRequest with `answer`, and where that is S ends TLS itself, in front of a server on `port`."""

    def __init__(self, port: int, context: ssl.SSLContext, answer: bytes) -> None:
        """Made by `front`."""
        self._to, self._context, self._answer = port, context, answer
        self.port = 0
        self.names: list[str | None] = []
        """Names that clients asked for."""
        self.plain: list[bytes] = []
        """What came in without TLS, SSLRequest apart."""
        self.serving: set[asyncio.Task[object]] = set()
        context.sni_callback = lambda _socket, name, _context: self.names.append(name)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                first = await reader.readexactly(8)
                if first != SSL_REQUEST:
                    self.plain.append(first)
                    return
                writer.write(self._answer)
                if self._answer == b"S":
                    await writer.start_tls(self._context)
                    await self._forward(reader, writer)
                elif rest := await reader.read(1024):
                    self.plain.append(rest)
        finally:
            writer.transport.abort()
            self.serving.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._to)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
            sink.transport.abort()

        try:
            await asyncio.gather(pump(reader, to_server), pump(from_server, writer))
        finally:
            to_server.transport.abort()


@asynccontextmanager
async def front(port: int, pair: Pair, directory: Path, answer: bytes = b"S") -> AsyncIterator[Front]:
    """Listen in front of a server."""
    path = directory / f"{pair.serial:x}.pem"
    path.write_bytes(pair.chain_pem + pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    made = Front(port, context, answer)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        for task in list(made.serving):
            task.cancel()
        await asyncio.gather(*made.serving, return_exceptions=True)
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def ca() -> Pair:
    """The CA that the operator trusts."""
    return make_ca("postgres-ca")


@pytest.fixture
def ca_file(tmp_path: Path, ca: Pair) -> str:
    """The file that names it."""
    path = tmp_path / "ca.pem"
    path.write_bytes(ca.pem)
    return str(path)


def secure(database: Database, port: int, ca_file: str | None, name: str = NAME) -> Login:
    """Return the login with `verify-full`."""
    return replace(login(database, port=port), tls=PostgresTls(name, ca_file), connection_timeout_ms=1000)


async def refused(bed: PostgresBed) -> bool:
    """Tell whether a credential cannot be looked up."""
    try:
        await bed.store.newest(CREDENTIAL_ID)
    except Refused:
        return True
    return False


async def test_the_name_asked_for_is_the_configured_one(
    tmp_path: Path, database: Database, ca: Pair, ca_file: str
) -> None:
    """Connected by an address, verified by another name: with a CA file and a certificate for it, all is served."""
    async with front(database.server.port, issue(ca, "db", server=True, dns=[NAME]), tmp_path) as here:
        async with served(database, secure(database, here.port, ca_file)) as bed:
            await ask(bed)
            assert bed.store.health() == "ok"
        assert set(here.names) == {NAME}
        assert here.plain == []


@pytest.mark.parametrize(
    "what",
    ["another CA", "another name", "address alone", "a common name beside it", "expired", "not yet", "expired CA"],
)
async def test_a_certificate_that_is_not_good(tmp_path: Path, database: Database, ca: Pair, what: str) -> None:
    """Another CA or name, or a time that is over or not come: no connection, no word in the clear, not a fault."""
    old = make_ca("old-ca", not_before=now() - 3 * DAY, days=1)
    pair = {
        "another CA": lambda: issue(make_ca("postgres-ca"), "db", server=True, dns=[NAME]),
        "another name": lambda: issue(ca, "db", server=True, dns=["localhost", "other.ql3.internal"]),
        "address alone": lambda: issue(ca, "db", server=True, ip=["127.0.0.1"]),
        "a common name beside it": lambda: issue(ca, NAME, server=True, dns=["other.ql3.internal"]),
        "expired": lambda: issue(ca, "db", server=True, dns=[NAME], not_before=now() - 3 * DAY, days=1),
        "not yet": lambda: issue(ca, "db", server=True, dns=[NAME], not_before=now() + DAY),
        "expired CA": lambda: issue(old, "db", server=True, dns=[NAME]),
    }[what]()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.pem if what == "expired CA" else ca.pem)
    async with front(database.server.port, pair, tmp_path) as here:
        async with served(database, secure(database, here.port, str(trusted))) as bed:
            assert await refused(bed)
            assert bed.store.health() == "failed"
            assert bed.faults == []
        assert here.plain == []


@pytest.mark.parametrize("answer", [b"N", b"E", b"", b"S-and-more"], ids=["refused", "error", "nothing", "more"])
async def test_there_is_no_downgrade(tmp_path: Path, database: Database, ca: Pair, ca_file: str, answer: bytes) -> None:
    """A server, or somebody between, that has no TLS to offer gets no login: nothing follows in the clear."""
    async with front(database.server.port, issue(ca, "db", server=True, dns=[NAME]), tmp_path, answer) as here:
        async with served(database, secure(database, here.port, ca_file)) as bed:
            assert await refused(bed)
        assert all(data.startswith(b"\x16\x03") for data in here.plain)  # a TLS handshake that came to nothing


async def test_the_systems_authorities_are_no_others(tmp_path: Path, database: Database, ca: Pair) -> None:
    """Without a CA file the system's are trusted, and ours is not among them."""
    pair = issue(ca, "db", server=True, dns=[NAME])
    async with (
        front(database.server.port, pair, tmp_path) as here,
        served(database, secure(database, here.port, None)) as bed,
    ):
        assert await refused(bed)


@pytest.mark.parametrize("content", [None, b"", b"no certificate"], ids=["missing", "empty", "garbage"])
async def test_a_ca_file_that_is_none(tmp_path: Path, database: Database, content: bytes | None) -> None:
    """A CA file that cannot be read, or holds no certificate, is a fault at the start."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    bed = PostgresBed(database, secure(database, database.server.port, str(path)))
    with pytest.raises(StoreFault) as caught:
        await bed.store.open()
    assert caught.value.kind is StoreFaultKind.UNREADABLE
    assert "TLS_CA_FILE" in caught.value.mend
    bed.store.close()


@pytest.fixture(scope="module")
def system(ca: Pair) -> Iterator[Postgres]:
    """The system's PostgreSQL, which speaks TLS."""
    programs = system_programs()
    if programs is None:
        pytest.skip("the system has no PostgreSQL server; the front of our own is tested all the same")
    try:
        server = Postgres(programs, settings={"ssl": "on"})
    except CannotRun as why:
        pytest.skip(str(why))
    pair = issue(ca, "db", server=True, dns=[NAME])
    owner = server.data.stat()
    for name, data in (("server.crt", pair.chain_pem), ("server.key", pair.key_pem)):
        path = server.data / name
        path.touch(0o600)
        path.write_bytes(data)
        os.chown(path, owner.st_uid, owner.st_gid)
    with server:
        yield server


async def test_the_systems_server_over_tls(system: Postgres, ca_file: str) -> None:
    """A server of another version that ends TLS itself: every session is encrypted, and everything is served."""
    with system.database() as database:
        async with served(database, secure(database, system.port, ca_file)) as bed:
            await ask(bed)
            encrypted = await bed.execute(
                "SELECT count(*) > 0 AND bool_and(s.ssl) FROM pg_stat_ssl AS s JOIN pg_stat_activity AS a USING (pid)"
                " WHERE a.usename = 'ql3_secret_sidecar'"
            )
            assert encrypted == [(True,)]
        async with served(database, secure(database, system.port, ca_file, "other.ql3.internal")) as bed:
            assert await refused(bed)


async def test_the_systems_server_without_tls(system: Postgres) -> None:
    """Where TLS is disabled, which takes two variables, it is the same server and the same statements."""
    with system.database() as database:
        async with served(database) as bed:
            await ask(bed)
