"""Who is asking (contract 5): a presented credential and the store's row become a Principal, or are refused alike.

Every way to fail looks the same from outside. Only a row that the store should never hold is told apart, as a fault
of the store.
"""

import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from provider import base64url
from provider.outcomes import Reason, Refused

SECRET_BYTES: Final = 32
"""Secret of a credential, and the pepper: 256 random bits, 43 characters of base64url."""

_KEY: Final = "[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]"  # canonical: the last character carries two zero bits
_CREDENTIAL_ID: Final = "[A-Za-z0-9][A-Za-z0-9._:-]{0,63}"
_WORKER_ID: Final = re.compile("[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_HEADER: Final = re.compile(f"Worker ql3w_({_CREDENTIAL_ID})_({_KEY})".encode())
_CREDENTIAL_ID_ONLY: Final = re.compile(_CREDENTIAL_ID)
_KEY_ONLY: Final = re.compile(_KEY)
_DOMAIN: Final = b"qinglong-worker-credential-v1\0"
_RECEIPT_DOMAIN: Final = b"secret-sidecar-receipt-v1"
_ZERO_DIGEST: Final = "0" * 64


@dataclass(frozen=True, slots=True, repr=False)
class Presented:
    """A well-formed credential as a peer showed it; nothing says yet that it is good."""

    credential_id: str
    secret: bytes

    def __repr__(self) -> str:
        """Show nothing: a repr may reach a log."""
        return "Presented(redacted)"


def present(header: bytes | None) -> Presented:
    """Read the value of the `authorization` header: `Worker`, one space, the token. Raises Refused(UNAUTHENTICATED)."""
    match = None if header is None else _HEADER.fullmatch(header)
    if match is None:
        raise Refused(Reason.UNAUTHENTICATED)
    return Presented(match[1].decode(), base64url.decode(match[2]))


def make_token(credential_id: str, secret: bytes) -> str:
    """Write the token of a credential. Raises ValueError unless the id is valid and the secret has 32 bytes."""
    if not valid_credential_id(credential_id) or len(secret) != SECRET_BYTES:
        raise ValueError("a credential is a valid id and 32 bytes")
    return f"ql3w_{credential_id}_{base64url.encode(secret).decode()}"


def valid_credential_id(text: object) -> bool:
    """Whether `text` is a credential id: `[A-Za-z0-9][A-Za-z0-9._:-]{0,63}` (contract 5)."""
    return type(text) is str and _CREDENTIAL_ID_ONLY.fullmatch(text) is not None


def valid_worker_id(text: object) -> bool:
    """Whether `text` is a worker id: `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}` (contract 2)."""
    return type(text) is str and _WORKER_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, repr=False)
class Pepper:
    """The key under which credentials are digested. Made by `parse`; shows nothing of itself."""

    _key: bytes
    _keyed: hmac.HMAC = field(init=False, compare=False)
    """Begun with the key: to copy it costs a third of beginning anew."""

    def __post_init__(self) -> None:
        """Hold the rule for the key. Raises ValueError with a fixed text."""
        if len(self._key) != SECRET_BYTES:
            raise ValueError("the pepper must be 32 bytes")
        if len(set(self._key)) == 1:
            raise ValueError("the pepper must not be one repeated byte")
        object.__setattr__(self, "_keyed", hmac.new(self._key, digestmod="sha256"))

    @classmethod
    def parse(cls, text: str) -> "Pepper":
        """Read 43 characters of canonical base64url. Raises ValueError with a fixed text, never the input."""
        if type(text) is not str or _KEY_ONLY.fullmatch(text) is None:
            raise ValueError("the pepper must be 43 characters of canonical base64url (32 bytes), without padding")
        return cls(base64url.decode(text.encode()))

    def digest(self, credential_id: str, secret: bytes) -> str:
        """Lower-case hex HMAC-SHA256 that the store keeps of a credential (contract 5)."""
        keyed = self._keyed.copy()
        keyed.update(_DOMAIN + credential_id.encode() + b"\0" + secret)
        return keyed.hexdigest()

    def receipt_key(self) -> bytes:
        """32 bytes: the key of the receipts' marks (contract 6, step 8)."""
        return hmac.digest(self._key, _RECEIPT_DOMAIN, "sha256")

    def __repr__(self) -> str:
        """Show nothing: a repr may reach a log."""
        return "Pepper(redacted)"


@dataclass(frozen=True, slots=True)
class Peppers:
    """The pepper in force and, while peppers rotate, the one before."""

    current: Pepper
    previous: Pepper | None


@dataclass(frozen=True, slots=True, repr=False)
class CredentialRow:
    """The newest version of a credential as the store holds it, unjudged: any column may hold anything. Times in ms."""

    credential_id: object
    version: object
    worker_id: object
    secret_digest: object
    state: object
    not_before_at_ms: object
    expires_at_ms: object

    def __repr__(self) -> str:
        """Show nothing: it holds a digest, and a repr may reach a log."""
        return "CredentialRow(redacted)"


@dataclass(frozen=True, slots=True)
class PeerNames:
    """URI and DNS subject alternative names of the client certificate, as written in it."""

    uris: frozenset[str]
    dns: frozenset[str]


@dataclass(frozen=True, slots=True, init=False)
class Principal:
    """A worker whose credential was good at the store's clock. Only `authenticate` makes one; anything else raises."""

    worker_id: str
    credential_id: str
    credential_version: int
    expires_at_ms: int
    """End of the credential, ms on the store's clock; at this moment it is over."""
    previous_pepper: bool
    """The digest matched under the previous pepper only: to be counted, so that one sees when to drop it."""

    def __init__(self, *_args: object, **_fields: object) -> None:
        """Raise TypeError: a principal is the outcome of `authenticate`."""
        raise TypeError("only authenticate makes a Principal")

    @property
    def authentication_id(self) -> str:
        """Name of the authentication in the audit row (contract 6)."""
        return f"worker_credential:{self.credential_id}:{self.credential_version}"


def authenticate(
    presented: Presented,
    worker_id: str,
    row: CredentialRow | None,
    now_ms: int,
    peppers: Peppers,
    binding: PeerNames | None = None,
) -> Principal:
    """Judge a credential for the path's `worker_id` at `now_ms`, the store's clock in ms (contract 5).

    `row` is the newest version of the credential, None when the store has none. `binding` holds the names of the
    client certificate when it is bound to the worker (`san`), None when it is not. Raises Refused(UNAUTHENTICATED)
    for every way to fail, and Refused(CREDENTIAL_STORE) for a row with a column of a wrong type.
    """
    # Both digests are always computed and compared, row or none, so that the time taken tells nothing.
    stored = row.secret_digest if row is not None and type(row.secret_digest) is str else _ZERO_DIGEST
    is_current = _matches(peppers.current, presented, stored)
    is_previous = peppers.previous is not None and _matches(peppers.previous, presented, stored)
    if row is None:
        raise Refused(Reason.UNAUTHENTICATED)
    version, not_before, expires = row.version, row.not_before_at_ms, row.expires_at_ms
    if not (
        type(row.credential_id) is str
        and type(version) is int
        and type(row.worker_id) is str
        and type(row.secret_digest) is str
        and type(row.state) is str
        and (not_before is None or type(not_before) is int)
        and (expires is None or type(expires) is int)
    ):
        raise Refused(Reason.CREDENTIAL_STORE)
    if not_before is None or expires is None:
        raise Refused(Reason.UNAUTHENTICATED)
    if not all(
        (
            is_current or is_previous,
            row.credential_id == presented.credential_id,
            row.worker_id == worker_id,
            row.state == "active",
            not_before <= now_ms < expires,
            binding is None or _is_bound(binding, worker_id),
        )
    ):
        raise Refused(Reason.UNAUTHENTICATED)
    return _principal(worker_id, presented.credential_id, version, expires, previous_pepper=not is_current)


def _matches(pepper: Pepper, presented: Presented, stored: str) -> bool:
    digest = pepper.digest(presented.credential_id, presented.secret)
    return hmac.compare_digest(digest.encode(), stored.encode(errors="replace"))


def _is_bound(names: PeerNames, worker_id: str) -> bool:
    return f"urn:ql3:worker:{worker_id}" in names.uris or worker_id in names.dns


def _principal(
    worker_id: str, credential_id: str, version: int, expires_at_ms: int, *, previous_pepper: bool
) -> Principal:
    principal = object.__new__(Principal)
    object.__setattr__(principal, "worker_id", worker_id)
    object.__setattr__(principal, "credential_id", credential_id)
    object.__setattr__(principal, "credential_version", version)
    object.__setattr__(principal, "expires_at_ms", expires_at_ms)
    object.__setattr__(principal, "previous_pepper", previous_pepper)
    return principal
