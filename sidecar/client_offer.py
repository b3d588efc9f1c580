"""The offer: what a worker was handed with a run, and the request that it makes of it (contract 2).

One JSON object: the body's keys for its schema, and `workerId`, `sessionId`, `leaseExpiresAtMs` and `environment`, a
list of `{"name", "secretRef"}` in plan order. Everything is judged before a connection is made.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from provider import strictjson
from provider.command import Command, parse_command
from provider.credential import valid_worker_id
from provider.limits import BODY_BYTES, NAME_CHARACTERS
from provider.memory import BufferPool
from provider.outcomes import Refused
from provider.refs import CHARACTER, SecretRef
from provider.strictjson import Number
from sidecar.client_errors import Input, OfferInvalid
from sidecar.client_files import read_into

OFFER_BYTES: Final = 1 << 18
"""Largest offer file: a body of 64 KiB, and as many names and refs again with room."""

_SESSION_ID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NAME: Final = re.compile(f"{CHARACTER}{{1,{NAME_CHARACTERS}}}")
_MILLISECONDS: Final = re.compile("0|[1-9][0-9]{0,15}")
_OWN_KEYS: Final = ("workerId", "sessionId", "leaseExpiresAtMs", "environment")
_ENTRY_KEYS: Final = frozenset({"name", "secretRef"})


@dataclass(frozen=True, slots=True, repr=False)
class Offer:
    """A well-formed offer. `body` holds the lease token, so keep the offer no longer than it is needed.

    `environment` pairs each variable's name with its ref, in plan order; several names may share a ref.
    `lease_expires_at_ms` is in ms since the epoch, on the clock of the sidecar's store.
    """

    command: Command
    worker_id: str
    session_id: str
    lease_expires_at_ms: int
    environment: tuple[tuple[str, SecretRef], ...]
    body: bytes

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> "Offer":
        """Read an offer. Raises OfferInvalid, without any of it, for anything else."""
        try:
            return _offer(strictjson.parse(data))
        except Refused:
            invalid = OfferInvalid()
        raise invalid  # outside the handler: no context may hold the offer

    @classmethod
    def read(cls, path: str) -> "Offer":
        """Read an offer file, which others may not read. Raises InputUnusable or OfferInvalid."""
        with BufferPool(0).take(OFFER_BYTES + 1) as buffer:
            length = read_into(path, buffer.view, Input.OFFER)
            with buffer.view[:length] as data:
                return cls.parse(data)

    @property
    def target(self) -> str:
        """The request target of its secrets."""
        return f"/api/v3/worker-ingress/workers/{self.worker_id}/sessions/{self.session_id}/secrets"

    def __repr__(self) -> str:
        """Show nothing: it holds the lease token, and a repr may reach a log."""
        return "Offer(redacted)"


def _offer(document: object) -> Offer:
    if type(document) is not dict:
        raise OfferInvalid
    worker_id, session_id, expires, environment = (document.pop(key, None) for key in _OWN_KEYS)
    command = parse_command(document)
    if not (valid_worker_id(worker_id) and type(session_id) is str and _SESSION_ID.fullmatch(session_id)):
        raise OfferInvalid
    if type(expires) is not Number or _MILLISECONDS.fullmatch(expires.lexeme) is None:
        raise OfferInvalid
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=_integer).encode()
    if len(body) > BODY_BYTES:
        raise OfferInvalid
    assert type(worker_id) is str
    entries = _environment(environment, command)
    return Offer(command, worker_id, session_id, int(expires.lexeme), entries, body)


def _environment(value: object, command: Command) -> tuple[tuple[str, SecretRef], ...]:
    """The entries, whose refs, each at its first occurrence, are the ones asked for in the order asked."""
    if type(value) is not list:
        raise OfferInvalid
    refs = {ref.text: ref for ref in command.secret_refs}
    entries = tuple(_entry(item, refs) for item in value)
    names = {name for name, _ in entries}
    if len(names) != len(entries) or tuple(dict.fromkeys(ref for _, ref in entries)) != command.secret_refs:
        raise OfferInvalid
    return entries


def _entry(item: object, refs: dict[str, SecretRef]) -> tuple[str, SecretRef]:
    if type(item) is not dict or item.keys() != _ENTRY_KEYS:
        raise OfferInvalid
    name, text = item["name"], item["secretRef"]
    if type(name) is not str or _NAME.fullmatch(name) is None or type(text) is not str or text not in refs:
        raise OfferInvalid
    return name, refs[text]


def _integer(number: object) -> int:
    """A number as JSON writes it; the command has only integers, and they are judged."""
    assert type(number) is Number
    return int(number.lexeme)
