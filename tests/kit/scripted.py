"""A TLS server that does what a script says, for the worker's side: whatever a sidecar, or no sidecar, may answer.

One step is played for each request, in the order of arrival; the last one again and again. Drops are played first, one
for each connection, before its handshake.
"""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar import devcerts
from sidecar.devcerts import Pair
from tests.kit.pki import pki

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ncache-control: no-store\r\n"


@dataclass(frozen=True)
class Step:
    """Send `data`, in pieces of `piece` bytes unless that is 0, then keep, close, reset or hang the connection."""

    data: bytes = b""
    then: str = "keep"
    piece: int = 0
    pause: float = 0.0
    """Seconds to wait before the first byte."""


def body(offer: Mapping[str, object], values: Mapping[str, bytes | str]) -> bytes:
    """Return the contract's body for an offer: its refs' values, written by the standard library."""

    def items(refs: object) -> list[dict[str, str]]:
        assert isinstance(refs, list)
        texts = {ref: value if isinstance(value, str) else value.decode() for ref, value in values.items()}
        return [{"secretRef": ref, "value": texts[ref]} for ref in refs]

    document = {key: offer[key] for key in ("schema", "runId", "attemptId", "offerId", "executionDigest")}
    document["values"] = items(offer["secretRefs"])
    if "environmentBundleRefs" in offer:
        document["environmentBundles"] = items(offer["environmentBundleRefs"])
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def ok(content: bytes, head: bytes = HEAD) -> bytes:
    """Return a 200 with this body."""
    return head + b"content-length: %d\r\n\r\n" % len(content) + content


def refusal(status: int, *headers: str) -> bytes:
    """Return a problem answer with further header lines."""
    content = b'{"type":"urn:secret-sidecar:problem:x"}'
    lines = [f"HTTP/1.1 {status} No", "content-type: application/problem+json", f"content-length: {len(content)}"]
    return "\r\n".join([*lines, *headers]).encode() + b"\r\n\r\n" + content


@dataclass
class Scripted:
    """The server. `requests` are whole requests as they came; `connections` counts those that were accepted."""

    steps: Sequence[Step]
    drops: Sequence[str] = ()
    pair: Pair = field(default_factory=lambda: pki().server)
    client_ca: bytes = field(default_factory=lambda: pki().ca_pem)
    requests: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    arrived: threading.Event = field(default_factory=threading.Event)
    """Set once a request has arrived."""
    _open: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _context(self, directory: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.client_ca.decode())
        path = directory / f"scripted-{self.pair.serial:x}.pem"
        devcerts.write(path, self.pair.chain_pem + self.pair.key_pem)
        context.load_cert_chain(path)
        return context

    @contextlib.contextmanager
    def run(self, directory: Path) -> Iterator["Scripted"]:
        """Serve on loopback while the block runs."""
        context = self._context(directory)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            accepting = threading.Thread(target=self._accept, args=(listener, context), daemon=True)
            accepting.start()
            try:
                yield self
            finally:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                accepting.join(10)
                for sock in self._open:
                    _close(sock, reset=True)

    def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.connections <= len(self.drops):
                self._drop(raw, self.drops[self.connections - 1])
                continue
            threading.Thread(target=self._serve, args=(raw, context), daemon=True).start()

    def _drop(self, raw: socket.socket, how: str) -> None:
        if how == "hang":
            self._open.append(raw)
        else:
            _close(raw, reset=how == "reset")

    def _serve(self, raw: socket.socket, context: ssl.SSLContext) -> None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.settimeout(30)
        try:
            sock = context.wrap_socket(raw, server_side=True)
        except OSError:
            _close(raw, reset=False)
            return
        self._open.append(sock)
        with contextlib.suppress(OSError, EOFError):
            while self._play(sock, self._request(sock)):
                pass

    def _request(self, sock: ssl.SSLSocket) -> Step:
        data = b""
        while True:
            head, found, rest = data.partition(b"\r\n\r\n")
            if found and len(rest) >= int(head.partition(b"content-length: ")[2].partition(b"\r")[0]):
                break
            more = sock.recv(65536)
            if not more:
                raise EOFError
            data += more
        with self._lock:
            self.requests.append(data)
            self.times.append(time.monotonic())
            self.arrived.set()
            return self.steps[min(len(self.requests), len(self.steps)) - 1]

    def _play(self, sock: ssl.SSLSocket, step: Step) -> bool:
        time.sleep(step.pause)
        if step.piece:
            for start in range(0, len(step.data), step.piece):
                sock.sendall(step.data[start : start + step.piece])
                time.sleep(0.001)
        elif step.data:
            sock.sendall(step.data)
        if step.then == "hang":
            time.sleep(3600)
        if step.then != "keep":
            _close(sock, reset=step.then == "reset")
        return step.then == "keep"


def _close(sock: socket.socket, *, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
