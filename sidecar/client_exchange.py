"""One request and its answer on one connection (contract 3): the status decides, then the head, then every byte."""

from contextlib import suppress
from typing import Final

from provider.command import Schema
from provider.limits import RESPONSE_BYTES_V1, RESPONSE_BYTES_V2
from provider.memory import BufferPool
from sidecar.client_answer import read_answer
from sidecar.client_errors import Denied, Unavailable, UnexpectedAnswer
from sidecar.client_head import HEAD_BYTES, Head, NotAsContracted, complete, read_head
from sidecar.client_offer import Offer
from sidecar.client_secrets import Secrets
from sidecar.client_transport import Connection

_LIMITS: Final = {Schema.V1: RESPONSE_BYTES_V1, Schema.V2: RESPONSE_BYTES_V2}
_OK: Final = 200
_DENIALS: Final = frozenset({400, 401, 409})
_UNAVAILABLE: Final = frozenset({429, 500, 503, 504})


async def exchange(
    connection: Connection, offer: Offer, request: memoryview, pool: BufferPool, end: float
) -> tuple[Secrets, bool]:
    """Return the secrets, which the caller wipes, and whether the connection may carry a next request.

    Raises Denied, Unavailable, UnexpectedAnswer, TlsFailed, or EndOfTime; the connection is of no use then.
    """
    # Where sending fails, the reason may wait to be read: an alert of TLS 1.3, or an answer given before the body came.
    with suppress(Unavailable):
        await connection.send(request, end)
    with pool.take(HEAD_BYTES) as room:
        filled = await _receive_head(connection, room.view, end)
        with room.view[:filled] as received:
            head = _judge(received, offer)
            with received[head.body :] as begun:
                return await _receive_body(connection, offer, head, begun, pool, end), not head.closes


async def _receive_head(connection: Connection, room: memoryview, end: float) -> int:
    filled = 0
    while filled < len(room):
        with room[filled:] as rest:
            filled += await connection.receive(rest, end)
        with room[:filled] as received:
            if complete(received):
                return filled
    raise UnexpectedAnswer(_OK)


def _judge(received: memoryview, offer: Offer) -> Head:
    try:
        head = read_head(received)
    except NotAsContracted:
        raise UnexpectedAnswer(_OK) from None
    if head.status in _DENIALS:
        raise Denied(head.status)
    if head.status in _UNAVAILABLE:
        raise Unavailable(head.status, head.retry_after)
    if head.status != _OK or not head.framed or not 0 < head.length <= _LIMITS[offer.command.schema]:
        raise UnexpectedAnswer(head.status)
    return head


async def _receive_body(
    connection: Connection, offer: Offer, head: Head, begun: memoryview, pool: BufferPool, end: float
) -> Secrets:
    """Receive a body of the length stated into memory of that size; `begun` is what came with the head."""
    filled = len(begun)
    if filled > head.length:
        raise UnexpectedAnswer(_OK)
    buffer = pool.take(head.length)
    try:
        buffer.view[:filled] = begun
        while filled < head.length:
            with buffer.view[filled:] as rest:
                filled += await connection.receive(rest, end)
        return Secrets(offer, buffer, read_answer(offer.command, buffer.view))
    except NotAsContracted:
        buffer.release()
        raise UnexpectedAnswer(_OK) from None
    except BaseException:
        buffer.release()
        raise
