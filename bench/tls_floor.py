"""`python -m bench.tls_floor TARGET LENGTH`: the least of asyncio and its TLS: read a request, write fixed bytes.

No HTTP library, no parser: it counts bytes. What this costs no server on this event loop can be cheaper than.
"""

import argparse
import asyncio
import json
import os

from bench.bare import tls_files
from provider import limits
from sidecar import identity
from sidecar.listener import bind


class Fixed(asyncio.Protocol):
    """Answers each request with the same bytes, and ends the connection with the last one."""

    def __init__(self, length: int) -> None:
        """Prepare an answer with a body of that length."""
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n" % length
        self._answer = head + b"\r\n" + b"v" * length
        self._last = head + b"connection: close\r\n\r\n" + b"v" * length
        self._left = limits.REQUESTS_PER_CONNECTION
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer as soon as a request is whole."""
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]):
            return
        self._data = b""
        self._left -= 1
        assert self._transport is not None
        self._transport.write(self._answer if self._left else self._last)
        if not self._left:
            self._transport.close()


async def serve(length: int) -> None:
    """Serve until the process is ended."""
    (listening,) = bind("127.0.0.1", 0)
    context = identity.load(tls_files(os.environ)).context
    server = await asyncio.get_running_loop().create_server(lambda: Fixed(length), sock=listening, ssl=context)
    print(json.dumps({"port": listening.getsockname()[1]}), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.tls_floor", description=__doc__)
    parser.add_argument("target", help="taken for the sake of the bare handler's arguments; not looked at")
    parser.add_argument("length", type=int, help="bytes of the answer's body")
    asyncio.run(serve(parser.parse_args().length))
