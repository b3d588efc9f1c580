"""The worker's side of a test: an offer, the worker's files, and a scripted server to fetch from."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provider.credential import make_token
from provider.refs import SecretRef
from sidecar import devcerts
from sidecar.client import BlockingClient, FetchError, Offer
from tests.kit.pki import pki
from tests.kit.scripted import Scripted, Step, body, ok
from tests.kit.worker import WorkerFiles
from tests.kit.world import CREDENTIAL_ID, LEASE_TOKEN, SECRET, default_refs, facts, offer

REFS = default_refs(2)
BUNDLE = SecretRef.of("project-1", "bundle", 3)
VALUES: dict[str, bytes | str] = {REFS[0].text: "value-0", REFS[1].text: 'va"l\\ue\n1', BUNDLE.text: "A=1"}
GIVEN = [b"value-0", b'va"l\\ue\n1', b"A=1"]
"""The values as the client must give them, the bundle last."""
TOKEN = make_token(CREDENTIAL_ID, SECRET)


@dataclass(frozen=True)
class Side:
    """An `@v2` offer of two secrets and a bundle, good for ten minutes, and the files of its worker."""

    directory: Path
    document: dict[str, object]
    files: WorkerFiles

    @classmethod
    def make(cls, directory: Path) -> "Side":
        """Write the worker's files below a directory."""
        files = WorkerFiles(directory / "worker")
        files.directory.mkdir(parents=True)
        files.identify(pki().client)
        devcerts.write(files.credential, TOKEN.encode() + b"\n")
        devcerts.write(files.ca, pki().root.pem)
        document = offer(facts(time.time_ns() // 1_000_000, REFS, BUNDLE), REFS, BUNDLE)
        files.write_offer(document)
        return cls(directory, document, files)

    def offer(self, **changed: object) -> Offer:
        """Return the offer, with changes."""
        return Offer.parse(json.dumps(self.document | changed).encode())

    def content(self, **changed: bytes | str) -> bytes:
        """Return the contracted body; `first`, `second` and `bundle` name values to change."""
        refs = {"first": REFS[0].text, "second": REFS[1].text, "bundle": BUNDLE.text}
        return body(self.document, VALUES | {refs[name]: value for name, value in changed.items()})

    def whole(self) -> bytes:
        """Return the contracted answer."""
        return ok(self.content())

    @contextmanager
    def serving(
        self, *steps: Step, drops: tuple[str, ...] = (), **how: Any
    ) -> Iterator[tuple[Scripted, BlockingClient]]:
        """Run a scripted server, by default one that delivers, and a blocking client of it."""
        server = Scripted(steps or [Step(self.whole())], drops, **how)
        with server.run(self.directory), self.client(server.port) as client:
            yield server, client

    def client(self, port: int) -> BlockingClient:
        """Return a blocking client."""
        return BlockingClient(f"https://localhost:{port}", **self.files.identity())

    def fetch(self, client: BlockingClient) -> list[bytes]:
        """Fetch and return the values as bytes, the bundle last."""
        with client.fetch(self.offer()) as secrets:
            assert secrets.bundle is not None
            return [bytes(view) for view in (*secrets.values(), secrets.bundle)]

    def error(self, client: BlockingClient, seconds: float = 3.0) -> FetchError:
        """Fetch and return the error that ended it; its text and context hold nothing of offer, credential, answer."""
        with (
            pytest.raises(FetchError) as caught,
            client.fetch(self.offer(), deadline=time.monotonic() + seconds),
        ):
            raise AssertionError("delivered")
        error = caught.value
        text = f"{error} {error!r} {error.__context__!r} {error.__cause__!r}"
        for secret in ("value-", LEASE_TOKEN, "ql3w", "qlsecret", str(self.document["runId"])):
            assert secret not in text
        assert client._core._pool.outstanding == 0
        return error
