"""Twins of our processes that leak on purpose: a scan that finds nothing in them proves nothing in ours.

    python -m tests.kit.leaky freed FILE    reads FILE into memory of its own and frees it without a wipe
    python -m tests.kit.leaky answer FILE   an HTTP server on loopback that answers GET / by `json_response`
    python -m tests.kit.leaky spawn FILE    starts a program with FILE's content in its environment, by `subprocess`
    python -m tests.kit.leaky fetch FILE    fetches by `http.client` and `json`; FILE has port and worker's directory

Each gets the value only from FILE or the fetch, prints one line of JSON (its `pid`, and the `port` of `answer`) when it
is ready, holds no reference to the value then, and ends when its standard input does. None hardens itself.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.memscan import ROOT
from tests.kit.worker import WorkerFiles


@contextmanager
def leaky(kind: str, file: Path, *wrapper: str) -> Iterator[tuple[int, dict[str, int]]]:
    """Run a twin and yield its process id and what it said; it ends with the block."""
    command = [*wrapper, sys.executable, "-m", "tests.kit.leaky", kind, str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        try:
            yield said.pop("pid"), said
        finally:
            process.stdin.close()
            process.wait(20)


def _say(**facts: int) -> None:
    print(json.dumps({"pid": os.getpid(), **facts}), flush=True)


def _freed(file: Path) -> None:
    # Many blocks, as a single one may be the first that the allocator gives to the next caller.
    blocks = [bytearray(file.read_bytes()) for _ in range(8)]
    del blocks
    gc.collect()
    _say()
    sys.stdin.buffer.read()


def _answer(file: Path) -> None:
    from aiohttp import web

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"value": file.read_text()})  # noqa: ASYNC240 - as a careless server would

    async def serve() -> None:
        application = web.Application()
        application.router.add_get("/", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        _say(port=site._server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]
        await asyncio.to_thread(sys.stdin.buffer.read)
        await runner.cleanup()

    asyncio.run(serve())


def _spawn(file: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={"PATH": "/usr/bin:/bin", "VALUE": file.read_text()}) as child:
        gc.collect()
        _say()
        sys.stdin.buffer.read()
        child.kill()


def _fetch(file: Path) -> None:
    import http.client
    import ssl

    port, directory = file.read_text().split()
    files = WorkerFiles(Path(directory))
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    offer = json.loads(files.offer.read_text())
    own = {key: offer.pop(key) for key in ("workerId", "sessionId", "leaseExpiresAtMs", "environment")}
    connection = http.client.HTTPSConnection("localhost", int(port), context=context)
    target = f"/api/v3/worker-ingress/workers/{own['workerId']}/sessions/{own['sessionId']}/secrets"
    token = files.credential.read_text().strip()
    headers = {"authorization": f"Worker {token}", "content-type": "application/json"}
    connection.request("POST", target, json.dumps(offer), headers)
    length = sum(len(item["value"]) for item in json.loads(connection.getresponse().read())["values"])
    connection.close()
    gc.collect()
    _say(bytes=length)
    sys.stdin.buffer.read()


KINDS: dict[str, Callable[[Path], None]] = {"freed": _freed, "answer": _answer, "spawn": _spawn, "fetch": _fetch}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
