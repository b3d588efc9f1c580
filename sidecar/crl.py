"""Certificate revocation lists, judged as a whole at load so that handshake and later judgement agree (contract 5).

The CRL file holds exactly one current CRL for each CA of the client CA file and nothing else. OpenSSL would take less
(and then refuse every client, or none); what it would not do at all is to notice an older list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sidecar.trust import CLIENT_CAS, UNREADABLE, Fault, Finding, IdentityFault, Role, pem_blocks

_UNDERSTOOD: Final = (x509.AuthorityKeyIdentifier, x509.CRLNumber, x509.IssuingDistributionPoint)


@dataclass(frozen=True, slots=True)
class Revocations:
    """One CRL in force. Good in [this_update, next_update), seconds since the epoch."""

    serials: frozenset[int]
    number: int | None
    this_update: float
    next_update: float


def signer(authority: x509.Certificate) -> bytes:
    """Return what a CA signs with, its name and public key: the same for a CA certificate that was renewed."""
    return authority.subject.public_bytes() + authority.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )


def revocations(
    data: bytes | bytearray,
    authorities: Sequence[x509.Certificate],
    in_service: Mapping[bytes, Revocations],
    now: float,
) -> dict[bytes, Revocations]:
    """Judge a CRL file against the CAs of the client CA file; return the CRL of each `signer`.

    `in_service` holds the CRLs of the snapshot in service by `signer`. Raises IdentityFault with everything wrong.
    """
    lists: list[x509.CertificateRevocationList] | None
    names: list[bytes] = []
    try:
        lists = [x509.load_pem_x509_crl(block) for block in pem_blocks(data, b"X509 CRL", comments=False)]
        names += [crl.issuer.public_bytes() for crl in lists]
    except UNREADABLE:
        lists = None
    if lists is None:  # raised outside the handler: the parser's error echoes what it could not read
        raise _fault(Fault.CRL_MALFORMED)
    if not 1 <= len(lists) <= CLIENT_CAS:
        raise _fault(Fault.CRL_COUNT)
    faults: list[Fault] = []
    accepted: dict[bytes, Revocations] = {}
    for crl, name in zip(lists, names, strict=True):
        try:
            owner = _issuer(crl, name, authorities)
            if owner in accepted:
                faults.append(Fault.CRL_REPEATED)
                continue
            accepted[owner] = _judge(crl, in_service.get(owner), now)
        except IdentityFault as fault:
            faults.extend(found.fault for found in fault.faults)
    # With a list refused above, which CA it was meant for is not always known: a missing one would be said twice.
    if not faults and any(signer(authority) not in accepted for authority in authorities):
        faults.append(Fault.CRL_MISSING)
    if faults:
        raise _fault(*faults)
    return accepted


def _issuer(crl: x509.CertificateRevocationList, name: bytes, authorities: Sequence[x509.Certificate]) -> bytes:
    """Return the `signer` whose name the CRL bears and whose key signed it; two CAs may share a name, not a key."""
    named = [authority for authority in authorities if authority.subject.public_bytes() == name]
    if not named:
        raise _fault(Fault.CRL_FOREIGN)
    for authority in named:
        if _signed_by(crl, authority):
            return signer(authority)
    raise _fault(Fault.CRL_SIGNATURE)


def _signed_by(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # other kinds raise TypeError
    except UNREADABLE:
        return False


def _judge(crl: x509.CertificateRevocationList, before: Revocations | None, now: float) -> Revocations:
    supported: bool | None
    number: int | None = None
    entries: list[x509.RevokedCertificate] = []
    try:
        number, entries = _number(crl), list(crl)
        # Critical marks on an entry change what it means (an indirect CRL names another issuer there).
        supported = _is_complete(crl) and not any(mark.critical for entry in entries for mark in entry.extensions)
    except UNREADABLE:
        supported = None
    if supported is None:
        raise _fault(Fault.CRL_MALFORMED)
    if not supported:
        raise _fault(Fault.CRL_UNSUPPORTED)
    this_update = crl.last_update_utc.timestamp()
    if now < this_update:
        raise _fault(Fault.CRL_NOT_YET_VALID)
    # Without a next update nobody could say when the list is out of date.
    if crl.next_update_utc is None or now >= crl.next_update_utc.timestamp():
        raise _fault(Fault.CRL_EXPIRED)
    found = Revocations(
        serials=frozenset(entry.serial_number for entry in entries),
        number=number,
        this_update=this_update,
        next_update=crl.next_update_utc.timestamp(),
    )
    if before is not None and _is_older(found, before):
        raise _fault(Fault.CRL_ROLLBACK)
    return found


def _is_complete(crl: x509.CertificateRevocationList) -> bool:
    for extension in crl.extensions:
        value = extension.value
        if isinstance(value, x509.DeltaCRLIndicator) or (extension.critical and not isinstance(value, _UNDERSTOOD)):
            return False
        if isinstance(value, x509.IssuingDistributionPoint) and (
            value.only_contains_user_certs
            or value.only_contains_ca_certs
            or value.only_contains_attribute_certs
            or value.indirect_crl
            or value.only_some_reasons is not None
        ):
            return False
    return True


def _number(crl: x509.CertificateRevocationList) -> int | None:
    try:
        return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return None


def _is_older(found: Revocations, before: Revocations) -> bool:
    """Compare by CRL number. A CRL without one is older than any that has one; two without are compared by date."""
    if before.number is None:
        return found.number is None and found.this_update < before.this_update
    return found.number is None or found.number < before.number


def _fault(*faults: Fault) -> IdentityFault:
    return IdentityFault(*(Finding(Role.CLIENT_CRL, fault) for fault in faults))
