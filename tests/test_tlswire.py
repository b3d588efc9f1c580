"""What lies beneath a TLS transport: bytes on their way, sockets that are lost, held back or reset."""

import asyncio
import ssl
from pathlib import Path

import pytest

from provider.outcomes import Close
from sidecar import tlswire
from tests.kit import valid
from tests.kit.edge import Client, edge, request

LARGE = 8 << 20
"""More than any kernel buffer takes."""


async def drain(client: Client, count: int) -> None:
    """Read so many bytes."""
    async with asyncio.timeout(20):
        await client.reader.readexactly(count)


async def test_what_the_peer_has_not_taken(tmp_path: Path) -> None:
    """Bytes count as untaken until the peer's kernel has them all, and as unsent while this process holds them."""
    async with edge(tmp_path) as running:
        client = await running.client(receive_buffer=4096)
        transport = running.connection.transport
        await running.until(lambda: tlswire.untaken(transport) == 0)
        assert tlswire.unsent(transport) == 0
        transport.write(bytes(LARGE))
        assert tlswire.unsent(transport) > 0
        assert tlswire.untaken(transport) > tlswire.unsent(transport)
        assert not tlswire.plaintext_left(transport)
        await drain(client, LARGE)
        await running.until(lambda: tlswire.untaken(transport) == tlswire.unsent(transport) == 0)


async def test_a_lost_connection_holds_nothing(tmp_path: Path) -> None:
    """After the end every question has an answer: nothing untaken, nothing unsent, all over."""
    async with edge(tmp_path) as running:
        client = await running.client()
        transport = running.connection.transport
        assert not tlswire.is_over(transport)
        client.reset()
        await running.until(lambda: not running.listener.connections)
        assert (tlswire.untaken(transport), tlswire.unsent(transport), tlswire.is_over(transport)) == (0, 0, True)
        tlswire.hold_back(transport)
        tlswire.let_in(transport)
        tlswire.reset(transport)


async def test_a_socket_that_is_closing_is_over(tmp_path: Path) -> None:
    """A socket that is lost beneath a TLS transport which was not told yet is over."""
    async with edge(tmp_path) as running:
        await running.client()
        transport = running.connection.transport
        beneath = transport._ssl_protocol._transport  # type: ignore[attr-defined]
        beneath.close()
        assert not transport.is_closing()
        assert tlswire.is_over(transport)
        await running.until(lambda: not running.listener.connections)


async def test_a_reset_is_seen_as_one_and_drops_what_was_on_its_way(tmp_path: Path) -> None:
    """The peer sees a reset, not an end; what it had not taken by then it never gets."""
    async with edge(tmp_path) as running:
        client = await running.client(receive_buffer=4096)
        transport = running.connection.transport
        transport.write(bytes(LARGE))
        tlswire.reset(transport)
        received = await client.ended()
        assert received == b"RESET" or len(received) < LARGE
        other = await running.client()
        tlswire.reset(running.connection.transport)
        assert await other.ended() == b"RESET"


async def test_what_is_held_back_waits_in_the_kernel(tmp_path: Path) -> None:
    """While a socket is held back nothing of it is read; let in again, everything comes."""
    async with edge(tmp_path) as running:
        client = await running.client()
        connection = running.connection
        tlswire.hold_back(connection.transport)
        tlswire.hold_back(connection.transport)
        client.send(b"POST ")
        await asyncio.sleep(0.1)
        assert not connection.framer.started
        tlswire.let_in(connection.transport)
        await running.until(lambda: connection.framer.started)


async def test_a_connection_has_a_small_buffer(tmp_path: Path) -> None:
    """An accepted connection has our buffer and not asyncio's, and a body that is larger comes through it whole."""
    async with edge(tmp_path) as running:
        client = await running.client()
        held = running.connection.transport._ssl_protocol._ssl_buffer  # type: ignore[attr-defined]
        assert len(held) == tlswire.READ_BYTES
        assert (await client.ask(request(valid.body() + b" " * tlswire.READ_BYTES))).status == 200


async def test_a_client_that_is_refused_is_told(tmp_path: Path) -> None:
    """The alert with which a handshake fails reaches the client, which would otherwise see a closed connection."""
    async with edge(tmp_path) as running:
        for pair, said in ((running.pki.stranger, "UNKNOWN_CA"), (running.pki.server, "UNSUPPORTED_CERTIFICATE")):
            context = running.pki.client_context(pair, tmp_path)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", running.port, ssl=context, server_hostname="localhost"
            )
            async with asyncio.timeout(20):
                with pytest.raises(ssl.SSLError, match=f"ALERT_{said}"):
                    await reader.read(1)
            writer.transport.abort()
        await running.until(lambda: running.metrics.closes[Close.HANDSHAKE_FAILED] == 2)
