"""The client without an event loop: the same fetch, blocking its thread. `sidecar.client` has both."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from sidecar.client_core import Core
from sidecar.client_identity import IdentityFiles
from sidecar.client_offer import Offer
from sidecar.client_request import CredentialSource
from sidecar.client_secrets import Secrets
from sidecar.client_waits import BlockingWaits, run_blocking


class BlockingClient:
    """A client of one origin for one thread at a time. A context manager: leaving closes its connections."""

    def __init__(self, url: str, *, cert: str, key: str, ca: str, credential: str | CredentialSource) -> None:
        """As `sidecar.client.Client`."""
        self._core = Core(url, IdentityFiles(cert, key, ca), credential, BlockingWaits())

    @contextmanager
    def fetch(self, offer: Offer, *, deadline: float | None = None) -> Iterator[Secrets]:
        """As `sidecar.client.Client.fetch`, blocking."""
        with run_blocking(self._core.fetch(offer, deadline)) as secrets:
            yield secrets

    def close(self) -> None:
        """Close the connections that are kept. The client may be used again."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
