"""Slow clients in a process of their own: so many of a kind at once, each replaced as soon as it was cut off.

    python -m tests.kit.crowd PLAN

PLAN is a file of JSON, as `Crowd` writes it. The process prints a line once every client has begun for the first time,
and ends with its standard input. It is a process of its own so that what it costs is not measured as our latency.
"""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.kit.memscan import ROOT
from tests.kit.stand import Stand

ADDRESSES: Final = 16
RAMP_S: Final = 0.01
"""Between the first beginnings of two clients: a crowd that gathers, and not one volley of handshakes."""
DRIP_S: Final = 0.5
AGAIN_S: Final = 1.0
"""How long a client that was cut off waits before it comes again; one that was refused waits as long as a bound."""
REFUSED_S: Final = 5.0
_ESTABLISHED: Final = b"\1"


class Crowd:
    """The process, seen from a test; every client has begun when the block is entered."""

    def __init__(self, stand: Stand, tokens: Sequence[str], **kinds: int) -> None:
        """Send so many clients of each kind at a stand, all with one certificate; each kind has a credential."""
        plan = stand.directory / "crowd.json"
        stand.pki.client_context(stand.pki.client, stand.directory)
        plan.write_text(
            json.dumps({
                "port": stand.port,
                "kinds": kinds,
                "ca": stand.pki.root.pem.decode(),
                "pair": str(stand.directory / f"{stand.pki.client.serial:x}.pem"),
                "requests": {
                    kind: stand.request(token=token).decode("latin-1")
                    for kind, token in zip(kinds, tokens, strict=True)
                },
            })
        )  # fmt: skip
        self._command = [sys.executable, "-m", "tests.kit.crowd", str(plan)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "gathered\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


class _Slow:
    """One slow client's connection: its socket from one of the addresses, and TLS on it."""

    def __init__(self, plan: dict[str, Any], context: ssl.SSLContext, kind: str, number: int) -> None:
        self._plan, self._context = plan, context
        self._source = f"127.0.8.{number % ADDRESSES + 1}"
        self.request: bytes = plan["requests"][kind].encode("latin-1")

    async def tcp(self) -> socket.socket:
        """Connect."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((self._source, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._plan["port"]))
        return sock

    async def tls(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect and shake hands."""
        return await asyncio.open_connection(
            sock=await self.tcp(), ssl=self._context, server_hostname="localhost", ssl_shutdown_timeout=1
        )


async def _handshake(slow: _Slow) -> float:
    with await slow.tcp() as sock:
        await asyncio.get_running_loop().sock_recv(sock, 1)
    return AGAIN_S


async def _head(slow: _Slow) -> float:
    reader, writer = await slow.tls()
    writer.write(slow.request[:200])
    await reader.read()
    writer.transport.abort()
    return AGAIN_S


async def _body(slow: _Slow) -> float:
    reader, writer = await slow.tls()
    head, end, body = slow.request.partition(b"\r\n\r\n")
    writer.write(head + end)
    answer = asyncio.ensure_future(reader.readline())
    for at in range(len(body)):
        writer.write(body[at : at + 1])
        if (await asyncio.wait([answer], timeout=DRIP_S))[0]:
            break
    line = await answer
    writer.transport.abort()
    return REFUSED_S if b" 503 " in line else AGAIN_S


async def _answer(slow: _Slow) -> float:
    _, writer = await slow.tls()
    writer.write(slow.request)
    # Beneath the TLS transport, which would go on reading from its socket.
    writer.transport._ssl_protocol._transport.pause_reading()  # type: ignore[attr-defined]
    # Nothing is read, so nobody tells that the other side has gone: the kernel is asked.
    sock = writer.get_extra_info("socket")
    while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == _ESTABLISHED:  # noqa: ASYNC110
        await asyncio.sleep(DRIP_S)
    writer.transport.abort()
    return AGAIN_S


async def _idle(slow: _Slow) -> float:
    reader, writer = await slow.tls()
    writer.write(slow.request)
    await reader.read()
    writer.transport.abort()
    return AGAIN_S


KINDS: Final[dict[str, Callable[[_Slow], Awaitable[float]]]] = {
    "handshake": _handshake,
    "head": _head,
    "body": _body,
    "answer": _answer,
    "idle": _idle,
}
"""No byte of a handshake; half a head; a body byte by byte; nothing read of the answer; nothing said after it."""


async def _live(kind: str, slow: _Slow) -> None:
    while True:
        pause = AGAIN_S
        with suppress(OSError, EOFError):
            pause = await KINDS[kind](slow)
        await asyncio.sleep(pause)


async def _gather(plan: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    # What asyncio says of connections that were reset is nothing to us.
    loop.set_exception_handler(lambda *_: None)
    context = ssl.create_default_context(cadata=plan["ca"])
    context.load_cert_chain(plan["pair"])
    kinds = [kind for kind, count in plan["kinds"].items() for _ in range(count)]
    living = []
    for number, kind in enumerate(kinds):
        living.append(loop.create_task(_live(kind, _Slow(plan, context, kind, number))))
        await asyncio.sleep(RAMP_S)
    print("gathered", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    for one in living:
        one.cancel()
    await asyncio.wait(living)


if __name__ == "__main__":
    asyncio.run(_gather(json.loads(Path(sys.argv[1]).read_text())))
