"""The client behind a connection, and whether it is still good (contract 4, connection; contract 5).

A handshake cannot be repeated on a connection that lives, so the chain which OpenSSL verified is kept and judged
against the snapshot in service by the rules that OpenSSL applied: trust, revocation along the chain, times.
"""

import hashlib
import ssl
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

from cryptography import x509

from provider.credential import PeerNames
from provider.outcomes import Reason, Refused
from sidecar.trust import UNREADABLE, not_after, not_before

if TYPE_CHECKING:
    from sidecar.identity import Identity

_ENCODING_DER: Final = 2  # _ssl.ENCODING_DER
_NEVER: Final = (float("inf"), float("-inf"))
_REMEMBERED: Final = 1024
"""Certificates whose dates are kept, some 2 MiB of them at most."""


@dataclass(frozen=True, slots=True)
class _Link:
    serial: int
    not_before: float
    not_after: float


class Peer:
    """Who the client is: the SHA-256 of its leaf, and the verified chain, leaf first. Made once per connection.

    Nothing is parsed until `judge` or `names` needs it, and then once.
    """

    __slots__ = ("_good_from", "_good_until", "_judged", "_links", "_names", "chain", "fingerprint")

    def __init__(self, chain: tuple[bytes, ...]) -> None:
        """Take a verified chain in DER, leaf first and anchor last. Raises ValueError when it is empty."""
        if not chain:
            raise ValueError("a peer has a certificate")
        self.chain = chain
        self.fingerprint = hashlib.sha256(chain[0]).digest()
        self._links: tuple[_Link, ...] | None = None
        self._names: PeerNames | None = None
        self._judged: Identity | None = None
        self._good_from, self._good_until = _NEVER

    @classmethod
    def of(cls, ssl_object: ssl.SSLObject | ssl.SSLSocket) -> Self:
        """Take the peer of a finished handshake. Raises ValueError when it showed no certificate."""
        if hasattr(ssl_object, "get_verified_chain"):  # from Python 3.13
            return cls(tuple(ssl_object.get_verified_chain()))
        chain = ssl_object._sslobj.get_verified_chain() or ()  # type: ignore[union-attr]
        return cls(tuple(certificate.public_bytes(_ENCODING_DER) for certificate in chain))

    @property
    def names(self) -> PeerNames:
        """URI and DNS subject alternative names of the leaf; none when the extension is missing or cannot be read."""
        if self._names is None:
            self._names = _names(self.chain[0])
        return self._names

    def __repr__(self) -> str:
        return f"<Peer {self.fingerprint.hex()[:16]}>"

    def _judge(self, identity: "Identity") -> None:
        """Set the time in which this chain is good under `identity`; an empty one when it is not at all."""
        self._judged = identity
        self._good_from, self._good_until = _NEVER
        anchor = self.chain[-1]
        if anchor not in identity.issuers:
            return
        if self._links is None:
            try:
                self._links = tuple(map(_link, self.chain))
            except UNREADABLE:  # OpenSSL was more lenient than the parser: who cannot be judged is not good
                return
        good_from = [link.not_before for link in self._links]
        good_until = [link.not_after for link in self._links]
        if identity.crls:
            # Each certificate beside its issuer; the anchor is its own, as in OpenSSL's check of the whole chain.
            for link, issuer in zip(self._links, (*self.chain[1:], anchor), strict=True):
                crl = identity.issuers.get(issuer)
                if crl is None or link.serial in crl.serials:
                    return
                good_from.append(crl.this_update)
                good_until.append(crl.next_update)
        self._good_from, self._good_until = max(good_from), min(good_until)


def judge(peer: Peer, identity: "Identity", now: float) -> None:
    """Pass when the peer's whole chain is good under `identity` at `now` (seconds since the epoch).

    Its anchor is still a client CA, byte for byte; with a CRL file every issuer of the chain is one, has a current CRL,
    and no certificate of the chain stands in it; every certificate is inside its times. Costs a comparison when the
    snapshot is the one judged before. Raises Refused(PEER_NOT_GOOD).
    """
    if peer._judged is not identity:
        peer._judge(identity)
    if not peer._good_from <= now < peer._good_until:
        raise Refused(Reason.PEER_NOT_GOOD)


@lru_cache(maxsize=_REMEMBERED)
def _link(der: bytes) -> _Link:
    """What a certificate says of itself, public and always the same: workers come again, and their CA with each."""
    one = x509.load_der_x509_certificate(der)
    return _Link(one.serial_number, not_before(one), not_after(one))


def _names(leaf: bytes) -> PeerNames:
    try:
        found = x509.load_der_x509_certificate(leaf).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return PeerNames(
            frozenset(found.value.get_values_for_type(x509.UniformResourceIdentifier)),
            frozenset(found.value.get_values_for_type(x509.DNSName)),
        )
    except UNREADABLE:
        return PeerNames(frozenset(), frozenset())
