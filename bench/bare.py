"""The bare handler: one aiohttp POST route that reads the body and returns a fixed answer, over the product's TLS.

`python -m bench.bare TARGET LENGTH` with the variables of `serve` that name the TLS files; says its port in one line of
JSON. With `--content FILE` the answer is that file, not LENGTH bytes, for a client that looks at it. It authenticates
nobody beyond the handshake, keeps no record and opens no file: it is the floor, not a model.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from provider import limits
from sidecar import identity
from sidecar.identityfiles import IdentityFiles
from sidecar.listener import bind

_VARIABLE = "QL3_WORKER_INGRESS_TLS_{}_FILE"


def tls_files(environment: Mapping[str, str]) -> IdentityFiles:
    """Return the TLS files that `serve`'s variables name."""
    return IdentityFiles(
        environment[_VARIABLE.format("PRIVATE_KEY")],
        environment[_VARIABLE.format("CERTIFICATE")],
        environment[_VARIABLE.format("CLIENT_CA")],
        None,
    )


def application(target: str, content: bytes) -> web.Application:
    """Return an application whose one route answers `content` and ends a connection after 100 requests."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        response = web.Response(body=content, content_type="application/json", charset="utf-8")
        # The count lives on the transport: it is the one object of a connection that takes a further attribute.
        transport = request.transport
        served = transport.__dict__["served"] = transport.__dict__.get("served", 0) + 1
        if served >= limits.REQUESTS_PER_CONNECTION:
            response.force_close()
        return response

    app = web.Application(client_max_size=limits.BODY_BYTES)
    app.router.add_post(target, answer)
    return app


async def serve(target: str, content: bytes) -> None:
    """Serve until the process is ended."""
    runner = web.AppRunner(
        application(target, content),
        access_log=None,
        # One bound for what are two in the product; the longer one, so that connections opened beside stay open.
        keepalive_timeout=limits.HEADERS_S,
        max_line_size=limits.TARGET_BYTES,
        max_headers=limits.HEADER_COUNT,
        max_field_size=limits.HEADER_BLOCK_BYTES,
    )
    await runner.setup()
    (listening,) = bind("127.0.0.1", 0)
    await web.SockSite(runner, listening, ssl_context=identity.load(tls_files(os.environ)).context).start()
    print(json.dumps({"port": listening.getsockname()[1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.bare", description=__doc__)
    parser.add_argument("target", help="the one path that is served")
    parser.add_argument("length", type=int, help="bytes of the answer's body")
    parser.add_argument("--content", type=Path, help="a file whose bytes are the body instead")
    arguments = parser.parse_args()
    asyncio.run(
        serve(arguments.target, arguments.content.read_bytes() if arguments.content else b"v" * arguments.length)
    )
