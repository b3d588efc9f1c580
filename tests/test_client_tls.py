"""The client's side of TLS: the server's name and chain, its own identity, and its rotation (contract 5 and 9)."""

import datetime
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from provider import limits
from sidecar import devcerts
from sidecar.client import BlockingClient, Offer, Tls, TlsFailed, UnexpectedAnswer
from sidecar.devcerts import Pair
from tests.kit.pki import pki
from tests.kit.scripted import Scripted, Step, ok
from tests.kit.side import GIVEN, Side
from tests.kit.stand import make_stand
from tests.kit.worker import write_worker


def _old(ca: Pair, name: str, **how: Any) -> Pair:
    """Return a pair that expired two days ago."""
    return devcerts.issue(ca, name, not_before=devcerts.now() - datetime.timedelta(days=9), **how)


def _cases() -> list[tuple[Tls, dict[str, Any]]]:
    world = pki()
    local = {"server": True, "dns": ["localhost"]}
    return [
        (Tls.SERVER_EXPIRED, {"pair": _old(world.root, "localhost", **local)}),
        (Tls.SERVER_NAME, {"pair": devcerts.issue(world.root, "x", server=True, dns=["elsewhere.example"])}),
        (Tls.SERVER_UNTRUSTED, {"pair": devcerts.issue(world.other_root, "localhost", server=True, dns=["localhost"])}),
        (Tls.CLIENT_REFUSED, {"client_ca": world.other_root.pem}),
    ]


@pytest.mark.parametrize(("cause", "how"), _cases(), ids=lambda value: value.name if isinstance(value, Tls) else "")
def test_tls_that_cannot_be(tmp_path: Path, cause: Tls, how: dict[str, Any]) -> None:
    """Each way in which TLS fails has its cause; no request is sent and none is tried again."""
    side = Side.make(tmp_path)
    with side.serving(**how) as (server, client):
        error = side.error(client)
    assert isinstance(error, TlsFailed)
    assert error.cause is cause
    assert (server.connections, server.requests) == (1, [])


def test_an_expired_client_certificate(tmp_path: Path) -> None:
    """The server's alert is read and named, although TLS 1.3 sends it after the client's side of the handshake."""
    side = Side.make(tmp_path)
    side.files.identify(_old(pki().intermediate, "worker-1", client=True))
    with side.serving() as (_, client):
        error = side.error(client)
    assert isinstance(error, TlsFailed)
    assert error.cause is Tls.CLIENT_REFUSED


def test_a_sidecar_that_refuses_the_certificate_is_understood(tmp_path: Path) -> None:
    """A real sidecar says that it refuses the client's certificate, and `fetch` ends with 76 instead of trying on."""
    side = Side.make(tmp_path / "worker")
    side.files.identify(pki().stranger)
    with make_stand(tmp_path / "stand") as stand:
        stand.start()
        command = [sys.executable, "-m", "sidecar", "fetch", *side.files.arguments(stand.port), "--timeout", "20s"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 76
    assert Tls.CLIENT_REFUSED.value in done.stderr


def test_an_older_tls_is_not_spoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that knows no TLS 1.3, with the very certificate asked for, gets no request."""
    make = Scripted._context

    def older(server: Scripted, directory: Path) -> ssl.SSLContext:
        context = make(server, directory)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context

    monkeypatch.setattr(Scripted, "_context", older)
    side = Side.make(tmp_path)
    with side.serving() as (server, client):
        error = side.error(client)
    assert isinstance(error, TlsFailed)
    assert server.requests == []


def test_not_tls_at_all(tmp_path: Path) -> None:
    """A server that speaks something else than TLS 1.3 is a TLS fault."""
    side = Side.make(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def plain() -> None:
            sock, _ = listener.accept()
            with sock, suppress(OSError):
                sock.recv(4096)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                sock.recv(4096)

        thread = threading.Thread(target=plain)
        thread.start()
        error = side.error(side.client(listener.getsockname()[1]))
        thread.join()
    assert isinstance(error, TlsFailed)
    assert error.cause is Tls.PROTOCOL


def test_a_rotating_identity_serves_on(tmp_path: Path) -> None:
    """While the files do not fit together the last good identity serves; the new one once all are in place."""
    side = Side.make(tmp_path)
    files = side.files
    steps: list[tuple[Callable[[], object], int]] = [
        (lambda: None, 1),
        (lambda: devcerts.write(files.cert, pki().direct.chain_pem), 1),
        (lambda: devcerts.write(files.key, pki().direct.key_pem), 2),
        (files.ca.unlink, 2),
        (lambda: devcerts.write(files.ca, pki().root.pem), 3),
    ]
    with side.serving() as (server, client):
        for change, connections in steps:
            change()
            assert side.fetch(client) == GIVEN
            assert server.connections == connections


def test_an_identity_that_is_none(tmp_path: Path) -> None:
    """Files that hold no identity are a TLS fault, and a key with a passphrase asks nobody for it."""
    side = Side.make(tmp_path)
    locked = pki().client.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    files = side.files
    with side.serving() as (server, _):
        for path, content in (
            (files.key, pki().direct.key_pem),
            (files.key, locked),
            (files.key, b""),
            (files.cert, b"nothing"),
            (files.ca, b"nothing"),
        ):
            before = path.read_bytes()
            devcerts.write(path, content)
            error = side.error(side.client(server.port))
            assert isinstance(error, TlsFailed)
            assert error.cause is Tls.IDENTITY
            devcerts.write(path, before)
        assert server.connections == 0


def test_a_certificate_rotates_under_a_thousand_fetches(tmp_path: Path) -> None:
    """A thousand fetches from the real sidecar succeed while certificate and key are replaced, one after the other."""
    stand = make_stand(tmp_path / "stand")
    files = write_worker(tmp_path / "worker", stand.world)
    offer = Offer.read(str(files.offer))
    world = pki()
    pairs = [world.client, devcerts.issue(world.intermediate, "worker-1", client=True, dns=["worker-1"])]
    done = threading.Event()
    rotations = 0

    def rotate() -> None:
        nonlocal rotations
        while not done.wait(0.1):
            rotations += 1
            pair = pairs[rotations % 2]
            devcerts.write(files.cert, pair.chain_pem)
            devcerts.write(files.key, pair.key_pem)

    with stand.start(), BlockingClient(f"https://localhost:{stand.port}", **files.identity()) as client:
        rotating = threading.Thread(target=rotate)
        rotating.start()
        try:
            for _ in range(1000):
                with client.fetch(offer) as secrets:
                    assert len(secrets["SECRET_0"]) == 20
        finally:
            done.set()
            rotating.join()
    assert rotations >= 5


def _replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole.replace(old, new, 1)


@pytest.mark.parametrize(
    "change",
    [
        _replaced(b"application/json; charset=utf-8", b"application/json"),
        _replaced(b"content-length: ", b"x-length: "),
        _replaced(b"cache-control: no-store", b"content-encoding: gzip"),
        _replaced(b"cache-control: no-store", b"transfer-encoding: chunked"),
        _replaced(b"HTTP/1.1 200", b"HTTP/1.0 200"),
        _replaced(b"content-length: ", b"content-length: 0\r\ncontent-length: "),
        _replaced(b'"value":', b'"extra":"","value":'),
        _replaced(b"cache-control", b"x-padding: " + b"p" * 4096 + b"\r\ncache-control"),
        lambda whole: whole + b"junk",
        lambda whole: ok(b""),
        lambda whole: ok(b"x" * (limits.RESPONSE_BYTES_V2 + 1)),
        lambda whole: b"\0" * 5000,
    ],
)
def test_not_as_contracted(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    """An answer that differs in head, size or body ends the fetch at once; nothing of it is used."""
    side = Side.make(tmp_path)
    whole = side.whole()
    assert change(whole) != whole
    with side.serving(Step(change(whole), "close")) as (server, client):
        assert isinstance(side.error(client), UnexpectedAnswer)
    assert len(server.requests) == 1
