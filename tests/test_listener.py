"""The accept loop: limits before the handshake, places that never leak, identities, descriptors running out."""

import asyncio
import errno
import os
import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.outcomes import Close
from sidecar import listener as module
from sidecar.listener import ConnectionLimits, address_key, bind
from tests.kit.edge import Edge, edge, request

HAS_IPV6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and bool(Path("/proc/net/if_inet6").read_text())
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6 address")


def reset(sock: socket.socket) -> None:
    """Reset a plain connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def gone(sock: socket.socket) -> bool:
    """Tell whether the other side has ended a plain connection."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::/64"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_the_key_of_an_address(host: str, key: str) -> None:
    """IPv4 counts by address, also inside IPv6; IPv6 counts by /64, whatever the interface."""
    assert address_key(host) == key


@given(st.ip_addresses(v=6), st.integers(0, 2**64 - 1))
def test_one_network_of_ipv6_is_one_key(address: Any, other: int) -> None:
    """Two addresses share a key exactly when their first 64 bits are the same."""
    if address.ipv4_mapped is not None:
        return
    neighbour = type(address)((int(address) >> 64 << 64) | other)
    if neighbour.ipv4_mapped is None:
        assert address_key(str(address)) == address_key(str(neighbour))
    elsewhere = type(address)(int(address) ^ (1 << 64))
    assert address_key(str(address)) != address_key(str(elsewhere))


@needs_ipv6
def test_the_unspecified_ipv6_address_is_dual_stack() -> None:
    """A listener on `::` takes IPv4 and IPv6, on one port."""
    (listening,) = bind("::", 0)
    with listening:
        port = listening.getsockname()[1]
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as client:
                client.connect((host, port))
                listening.setblocking(True)
                accepted, address = listening.accept()
                accepted.close()
                assert address_key(address[0]) == ("127.0.0.1" if family == socket.AF_INET else "::/64")


@needs_ipv6
def test_an_ipv6_address_alone_leaves_ipv4_alone() -> None:
    """A listener on another IPv6 address does not take the port of IPv4 too."""
    (listening,) = bind("::1", 0)
    with listening, socket.socket() as other:
        other.bind(("127.0.0.1", listening.getsockname()[1]))


def test_what_was_bound_is_given_back_when_an_address_is_taken() -> None:
    """An address in use raises OSError and leaves no socket open."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", taken.getsockname()[1])
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_kernel_drops_dead_peers_later_than_we_do() -> None:
    """Accepted sockets inherit a limit for unacknowledged bytes that lies behind the one we count."""
    (listening,) = bind("127.0.0.1", 0)
    with listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 11_000
        assert not listening.getblocking()


async def test_beyond_the_limit_of_an_address_nobody_is_let_in(tmp_path: Path) -> None:
    """The connection over an address's limit is closed and counted; other addresses and freed places are not."""
    async with edge(tmp_path, connections=ConnectionLimits(100, 8)) as running:
        held = [await running.client() for _ in range(8)]
        with pytest.raises(OSError):
            await running.client()
        assert running.metrics.closes[Close.ADDRESS_LIMIT] == 1
        assert (await (await running.client(source="127.0.0.2")).ask()).status == 200
        await held[0].close()
        await running.until(lambda: running.metrics.connections == 8)
        assert (await (await running.client()).ask()).status == 200
        assert running.metrics.closes[Close.CONNECTION_LIMIT] == 0


async def test_beyond_the_limit_of_all_nobody_is_let_in(tmp_path: Path) -> None:
    """The connection over the limit of all is closed and counted, from whatever address."""
    async with edge(tmp_path, connections=ConnectionLimits(8, 8)) as running:
        for number in range(8):
            await running.client(source=f"127.0.0.{number + 1}")
        with pytest.raises(OSError):
            await running.client(source="127.0.0.9")
        assert running.metrics.closes[Close.CONNECTION_LIMIT] == 1
        assert running.metrics.closes[Close.ADDRESS_LIMIT] == 0


@pytest.mark.parametrize(("limit", "share"), [(8, 2), (4, 1), (1, 1), (64, 16)])
@pytest.mark.parametrize("whose", ["address", "all"])
async def test_the_oldest_of_too_many_handshakes_goes(whose: str, limit: int, share: int, tmp_path: Path) -> None:
    """At most a quarter of a limit, and at least one, is before the end of the handshake: the oldest gives way."""
    limits = ConnectionLimits(100 * limit, limit) if whose == "address" else ConnectionLimits(limit, 1000)
    async with edge(tmp_path, connections=limits) as running:
        stalled = []
        for number in range(share):
            stalled.append(running.plain())
            await running.until(lambda count=number + 1: running.metrics.handshaking == count)
        assert not any(gone(one) for one in stalled)
        assert (await (await running.client()).ask()).status == 200
        await running.until(lambda: gone(stalled[0]))
        assert not any(gone(one) for one in stalled[1:])
        assert running.metrics.closes[Close.HANDSHAKE_EVICTED] == 1
        assert running.metrics.closes[Close.HANDSHAKE_FAILED] == 0
        for one in stalled:
            one.close()


async def test_handshakes_evicted_before_they_began_leave_nothing(tmp_path: Path) -> None:
    """Connections that queued while the loop was busy, and gave way to each other at once, give their places back."""
    async with edge(tmp_path, connections=ConnectionLimits(16, 16)) as running:
        for _ in range(4):
            # No turn of the loop in between: all of them wait in the kernel.
            queued = [running.plain() for _ in range(14)]
            await running.until(lambda: running.metrics.handshaking == 4)
            for one in queued:
                one.close()
            await running.until(running.is_empty)
        assert running.metrics.accepted == 56
        assert running.metrics.closes[Close.HANDSHAKE_EVICTED] == 40
        assert (await (await running.client()).ask()).status == 200


async def test_a_connection_is_not_evicted_once_its_handshake_is_done(tmp_path: Path) -> None:
    """A worker that is through is not closed in favour of those who only begin."""
    async with edge(tmp_path, connections=ConnectionLimits(4, 4)) as running:
        worker = await running.client()
        stalled = [running.plain() for _ in range(3)]
        await running.until(lambda: running.metrics.closes[Close.HANDSHAKE_EVICTED] == 2)
        assert (await worker.ask()).status == 200
        for one in stalled:
            one.close()


async def _storm(running: Edge, number: int) -> None:
    """One bad or short connection."""
    kind = number % 8
    if kind < 4:
        sock = running.plain()
        if kind == 1:
            sock.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        if kind == 2:
            sock.send(bytes.fromhex("160301"))
        if kind == 3:
            await asyncio.sleep(0.001 * (number % 5))
        reset(sock) if number % 2 else sock.close()
        return
    with suppress(OSError, ssl.SSLError, EOFError, TimeoutError):
        if kind == 4:
            await running.client(running.pki.stranger)
        elif kind == 5:
            client = await running.client()
            client.send(request()[: number % 300])
            client.reset()
        elif kind == 6:
            client = await running.client()
            client.send(request())
            client.reset()
        else:
            client = await running.client()
            await client.ask()
            await client.close()


async def test_a_storm_leaves_every_place_free(tmp_path: Path) -> None:
    """After failed handshakes, garbage, resets and good requests in any order all gauges are 0 and all places free."""
    async with edge(tmp_path, connections=ConnectionLimits(16, 12)) as running:
        for start in range(0, 160, 16):
            # All at once most give way to each other before their handshake; one by one they come further.
            at_once = 1 if start % 32 else 16
            for first in range(start, start + 16, at_once):
                await asyncio.gather(*(_storm(running, number) for number in range(first, first + at_once)))
        for client in running.clients:
            await client.close()
        await running.until(running.is_empty)
        # The limits have not been eaten: as many as ever may come.
        for _ in range(12):
            await running.client()
        assert (running.metrics.connections, running.metrics.handshaking) == (12, 0)
        assert running.metrics.accepted >= 160
        assert running.metrics.closes[Close.HANDSHAKE_FAILED] > 0


async def test_a_handshake_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that does not end in time is closed and counted as such, and its place is free again."""
    monkeypatch.setattr("provider.limits.HANDSHAKE_S", 0.1)
    async with edge(tmp_path) as running:
        stalled = running.plain()
        await running.until(lambda: running.metrics.handshaking == 1)
        await running.until(lambda: gone(stalled))
        await running.until(running.is_empty)
        assert running.metrics.closes[Close.HANDSHAKE_TIMEOUT] == 1
        stalled.close()


async def test_clients_without_a_good_certificate_are_refused_at_the_handshake(tmp_path: Path) -> None:
    """No certificate, or one of a foreign CA: the handshake fails, counted, and nothing of the request is read."""
    async with edge(tmp_path) as running:
        for pair in (None, running.pki.stranger):
            context = running.pki.client_context(pair, tmp_path)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", running.port, ssl=context, server_hostname="localhost"
            )
            writer.write(request())
            with suppress(ssl.SSLError):
                assert await reader.read() == b""
            writer.transport.abort()
        await running.until(lambda: running.metrics.closes[Close.HANDSHAKE_FAILED] == 2)
        assert running.told() == []


async def test_running_out_of_descriptors_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While accepting fails for want of descriptors or memory the listener waits, and then goes on."""
    async with edge(tmp_path) as running:
        loop = asyncio.get_running_loop()
        errors = [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED]
        accept, asked = socket.socket.accept, list[float]()

        def failing(sock: socket.socket) -> Any:
            asked.append(loop.time())
            if errors:
                raise OSError(errors.pop(0), "no room")
            return accept(sock)

        monkeypatch.setattr(socket.socket, "accept", failing)
        assert (await (await running.client()).ask()).status == 200
        assert (await (await running.client()).ask()).status == 200
        waits = [later - sooner for sooner, later in pairwise(asked)]
        # No spinning: after each of the first four it paused.
        assert min(waits[:4]) >= module._SWEEP_S * 0.9
        assert running.metrics.accept_pauses == 4


async def test_accepting_takes_turns(tmp_path: Path) -> None:
    """While connections queue, the loop does not belong to the accept loop alone."""
    async with edge(tmp_path, connections=ConnectionLimits(1000, 1000)) as running:
        queued = [running.plain() for _ in range(50)]
        seen = set()
        while running.metrics.accepted < 50:
            seen.add(running.metrics.accepted)
            await asyncio.sleep(0)
        assert len(seen) > 10
        for one in queued:
            one.close()


async def test_one_connection_gone_wrong_does_not_lift_the_bounds_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error while one connection is looked at ends that connection, and the sweep goes on."""
    monkeypatch.setattr("provider.limits.HEADERS_S", 0.3)
    async with edge(tmp_path) as running:
        broken = await running.client()
        (connection,) = running.listener.connections
        connection.due = None  # type: ignore[assignment]
        assert await broken.ended() == b"RESET"
        idle = await running.client()
        assert await idle.ended() == b""
        assert running.metrics.closes[Close.HEADERS_TIMEOUT] == 1


async def test_a_connection_keeps_the_snapshot_it_was_accepted_under(tmp_path: Path) -> None:
    """A new snapshot is for new connections; an older connection is served once more and told to end."""
    async with edge(tmp_path) as running:
        old = await running.client()
        assert (await old.ask()).header("connection") is None
        running.identities.append(replace(running.identities[0], generation=2))
        fresh = await running.client()
        assert (await fresh.ask()).header("connection") is None
        last = await old.ask()
        assert (last.status, last.header("connection")) == (200, "close")
        assert await old.ended() == b""


async def test_stopping_ends_idle_and_half_sent_connections(tmp_path: Path) -> None:
    """Stopping waits for no peer: idle, half-sent, unshaken and never-closing ones are gone in about a second."""
    async with edge(tmp_path) as running:
        idle, half = await running.client(), await running.client()
        half.send(request()[:50])
        unshaken = running.plain()
        await running.until(lambda: running.metrics.handshaking == 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await running.listener.stop()
        assert loop.time() - began < 4
        assert running.is_empty()
        assert await idle.ended() == await half.ended() == b""
        assert gone(unshaken)
        unshaken.close()
        with pytest.raises(ConnectionRefusedError):
            running.plain()


async def test_loop_lag_is_seen(tmp_path: Path) -> None:
    """When the loop stands still the sweep is late, and the metric says by how much."""
    async with edge(tmp_path) as running:
        await asyncio.sleep(0.01)
        import time

        time.sleep(0.3)  # noqa: ASYNC251 - the very thing that must not happen
        await running.until(lambda: running.metrics.loop_lag_s >= 0.2)
