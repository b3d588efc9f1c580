"""One fetch from the offer to the views, with all its attempts; the same code for the event loop and for threads."""

import time
from typing import Final

from provider.memory import BufferPool
from sidecar.client_errors import FetchError, LeaseOver, OutOfTime, Unavailable
from sidecar.client_exchange import exchange
from sidecar.client_identity import Identity, IdentityFiles
from sidecar.client_offer import Offer
from sidecar.client_request import CredentialSource, Origin, file_credential, lay_out
from sidecar.client_retry import Schedule
from sidecar.client_secrets import Secrets
from sidecar.client_transport import Connection, connect
from sidecar.client_waits import EndOfTime, Waits
from sidecar.ids import uuid4

DEFAULT_TIMEOUT_S: Final = 30.0
"""How long a fetch may take when its caller names no deadline: twice the sidecar's own for a request."""
_IDLE_CONNECTIONS: Final = 8
"""Most connections kept for next requests: the sidecar's default limit of requests in flight for one credential."""


class Core:
    """A client of one origin. For one thread at a time; under an event loop fetches may run side by side."""

    def __init__(self, url: str, files: IdentityFiles, credential: str | CredentialSource, waits: Waits) -> None:
        """Reads and connects nothing yet. `credential` is a file's path or a source. Raises ValueError for the URL."""
        self._origin = Origin.parse(url)
        self._identity = Identity(files)
        self._credential = file_credential(credential) if isinstance(credential, str) else credential
        self._waits = waits
        self._pool = BufferPool()
        self._idle: list[Connection] = []

    async def fetch(self, offer: Offer, deadline: float | None) -> Secrets:
        """Return the offer's secrets, which the caller wipes, or raise the FetchError that ended the fetch.

        Tries until `deadline` (seconds on the clock of `time.monotonic`; None: 30 s from now) or the end of the lease.
        """
        now = time.monotonic()
        lease_left = offer.lease_expires_at_ms / 1000 - time.time()
        if lease_left <= 0:
            raise LeaseOver
        end = min(now + DEFAULT_TIMEOUT_S if deadline is None else deadline, now + lease_left)
        schedule = Schedule(end)
        last: FetchError = OutOfTime()
        while True:
            request_id = uuid4()
            try:
                return await self._attempt(offer, request_id, end)
            except EndOfTime:
                # What was seen last says more than that time ran out while another attempt was under way.
                raise last from None
            except FetchError as error:
                error.request_id = request_id
                pause = schedule.pause(error.retry_after) if isinstance(error, Unavailable) and error.retried else None
                if pause is None:
                    raise
                last = error
            await self._waits.sleep(pause)

    def close(self) -> None:
        """Close the connections that are kept. The client may be used again."""
        while self._idle:
            self._idle.pop().close()

    async def _attempt(self, offer: Offer, request_id: str, end: float) -> Secrets:
        context = self._identity.context()
        with lay_out(self._origin, offer, self._credential, request_id, self._pool) as request:
            while self._idle:
                connection = self._idle.pop()
                if not connection.reusable(context):
                    connection.close()
                    continue
                try:
                    return await self._exchange(connection, offer, request.view, end)
                except Unavailable as error:
                    # The peer closed it just before the request came, which says nothing of the sidecar's health.
                    if error.status is not None:
                        raise
            connection = await connect(self._origin.host, self._origin.port, context, self._waits, end)
            return await self._exchange(connection, offer, request.view, end)

    async def _exchange(self, connection: Connection, offer: Offer, request: memoryview, end: float) -> Secrets:
        kept = False
        try:
            secrets, reusable = await exchange(connection, offer, request, self._pool, end)
            if reusable and len(self._idle) < _IDLE_CONNECTIONS:
                connection.rest()
                self._idle.append(connection)
                kept = True
            return secrets
        finally:
            if not kept:
                connection.close()
