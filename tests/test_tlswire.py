"""TLS over an accepted socket: bytes on their way, sockets that are lost, held back or reset, and how it ends."""

import asyncio
import gc
import socket
import ssl
import weakref
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
        await running.until(lambda: transport.untaken == 0)
        assert transport.unsent == 0
        assert transport.write(bytes(LARGE))
        assert transport.unsent > 0
        assert transport.untaken > transport.unsent
        await drain(client, LARGE)
        await running.until(lambda: transport.untaken == transport.unsent == 0)


async def test_bytes_keep_their_order(tmp_path: Path) -> None:
    """What is written while earlier bytes still wait follows them, and the connection ends after the last one."""
    async with edge(tmp_path) as running:
        client = await running.client(receive_buffer=4096)
        transport = running.connection.transport
        transport.write(b"a" * LARGE)
        transport.write(memoryview(b"b" * 40_000))
        transport.close()
        received = await client.ended()
        assert received == b"a" * LARGE + b"b" * 40_000


async def test_a_lost_connection_holds_nothing(tmp_path: Path) -> None:
    """After the end every question has an answer: nothing untaken, nothing unsent, all over; and nothing is written."""
    async with edge(tmp_path) as running:
        client = await running.client()
        transport = running.connection.transport
        assert not transport.is_over
        client.reset()
        await running.until(lambda: not running.listener.connections)
        assert (transport.untaken, transport.unsent, transport.is_over, transport.peername()) == (0, 0, True, None)
        transport.hold_back()
        transport.let_in()
        transport.reset()
        transport.close()
        assert not transport.write(b"late")


async def test_a_socket_that_is_lost_takes_nothing(tmp_path: Path) -> None:
    """A write that the kernel refuses says so at once, and the connection is over."""
    async with edge(tmp_path) as running:
        client = await running.client()
        transport = running.connection.transport
        transport._socket.shutdown(socket.SHUT_WR)
        assert not transport.write(b"answer")
        assert transport.is_over
        await running.until(lambda: not running.listener.connections)
        await client.ended()


async def test_an_engine_that_fails_keeps_nothing(tmp_path: Path) -> None:
    """A write that TLS refuses leaves no view of the plaintext, and the connection is over."""

    class Broken:
        def write(self, data: object) -> int:
            raise ssl.SSLError("canary")

    async with edge(tmp_path) as running:
        client = await running.client()
        transport = running.connection.transport
        transport._tls = Broken()  # type: ignore[assignment]
        plaintext = bytearray(b"value")
        with memoryview(plaintext) as view:
            assert not transport.write(view)
        plaintext.clear()  # would raise while a view is held
        await client.ended()


async def test_a_reset_is_seen_as_one_and_drops_what_was_on_its_way(tmp_path: Path) -> None:
    """The peer sees a reset, not an end; what it had not taken by then it never gets."""
    async with edge(tmp_path) as running:
        client = await running.client(receive_buffer=4096)
        transport = running.connection.transport
        transport.write(bytes(LARGE))
        transport.reset()
        received = await client.ended()
        assert received == b"RESET" or len(received) < LARGE
        other = await running.client()
        running.connection.transport.reset()
        assert await other.ended() == b"RESET"


async def test_an_answer_waits_for_no_acknowledgement(tmp_path: Path) -> None:
    """Accepted sockets send at once what is written to them."""
    async with edge(tmp_path) as running:
        await running.client()
        assert running.connection.transport._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_what_is_held_back_waits_in_the_kernel(tmp_path: Path) -> None:
    """While a socket is held back nothing of it is read; let in again, everything comes."""
    async with edge(tmp_path) as running:
        client = await running.client()
        connection = running.connection
        connection.transport.hold_back()
        connection.transport.hold_back()
        client.send(b"POST ")
        await asyncio.sleep(0.1)
        assert not connection.framer.started
        connection.transport.let_in()
        await running.until(lambda: connection.framer.started)


async def test_a_body_of_many_records_comes_through_the_small_buffer(tmp_path: Path) -> None:
    """A body that is larger than what is read at once comes whole."""
    async with edge(tmp_path) as running:
        client = await running.client()
        assert (await client.ask(request(valid.body() + b" " * tlswire.READ_BYTES))).status == 200


async def test_a_peer_that_never_says_its_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After our end the peer's is waited for only so long."""
    monkeypatch.setattr("provider.limits.SHUTDOWN_S", 0.2)
    async with edge(tmp_path) as running:
        client = await running.client()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        running.connection.close_unless_busy()
        assert running.listener.connections
        await running.until(lambda: not running.listener.connections)


async def test_a_peer_that_leaves_still_gets_what_was_written(tmp_path: Path) -> None:
    """A peer that ends its own half gets what was written before; then the connection is over."""
    async with edge(tmp_path) as running:
        client = await running.client(receive_buffer=4096)
        transport = running.connection.transport
        transport.write(bytes(LARGE))
        client.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        await running.until(lambda: transport.is_over)
        assert transport.unsent > 0
        transport.let_in()
        assert not transport._reading, "there is nothing to read but the end, again and again"
        await drain(client, LARGE)
        await running.until(lambda: not running.listener.connections)


async def test_what_is_no_tls_is_told_why(tmp_path: Path) -> None:
    """A handshake that fails ends with an alert, one failure counted, and nothing kept."""
    async with edge(tmp_path) as running:
        with running.plain() as stranger:
            stranger.setblocking(False)
            stranger.sendall(b"\x16\x03\x01\x00\x04\x01\x00\x00\x00")
            async with asyncio.timeout(20):
                received = await asyncio.get_running_loop().sock_recv(stranger, 100)
        assert received[:1] == b"\x15", "no alert record"
        await running.until(lambda: running.metrics.closes[Close.HANDSHAKE_FAILED] == 1)


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


async def test_an_ended_connection_waits_for_no_collector(tmp_path: Path) -> None:
    """What a connection had for TLS goes with the connection, by itself."""
    async with edge(tmp_path) as running:
        client = await running.client()
        assert (await client.ask()).status == 200
        engine = weakref.ref(running.connection.transport.tls)
        gc.disable()
        try:
            await client.close()
            await running.until(lambda: engine() is None)
        finally:
            gc.enable()


async def test_a_fault_of_ours_ends_the_connection(tmp_path: Path) -> None:
    """When the connection's own code raises, the connection is over and the loop is told."""
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with edge(tmp_path) as running:
        client = await running.client()
        running.connection.framer = None  # type: ignore[assignment]
        client.send(b"POST ")
        await client.ended()
        await running.until(lambda: not running.listener.connections)
    assert [type(one["exception"]) for one in told] == [AttributeError]
