"""What can be wrong with a TLS identity, and the judgement of its certificates (contract 5 and 8).

Faults are a closed list. A fault names the variable's role and never a path, an errno or content of a file.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, unique
from itertools import pairwise
from typing import Final

from cryptography import x509

CLIENT_CAS: Final = 16
"""Most certificates of the client CA file, and most CRLs of the CRL file (contract 5)."""
UNREADABLE: Final = Exception
"""What the parser raises for a certificate, key or CRL, on loading it and on first looking at a part of it.

It promises no list: beside ValueError there are some of its own, and TypeError for a name of an odd kind. Whatever it
is, it is the input's fault, so the blocks that catch it hold nothing but calls of the parser.
"""
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----[^-]*-----END \1-----")


@unique
class Role(Enum):
    """Which of the four files. The value is the role's name in events and metrics."""

    PRIVATE_KEY = "private_key"
    CERTIFICATE = "certificate"
    CLIENT_CA = "client_ca"
    CLIENT_CRL = "client_crl"

    @property
    def variable(self) -> str:
        """The variable of contract 8 that names the file."""
        return f"QL3_WORKER_INGRESS_TLS_{self.name}_FILE"


@unique
class Fault(Enum):
    """Why an identity cannot be used. `code` is a closed label, `mend` tells a person what to do."""

    MISSING = ("missing", "the file does not exist; create it or correct the path")
    UNREADABLE = ("unreadable", "the file cannot be read; give this process's user or group the right to read it")
    RESOURCES = ("resources", "no descriptor, memory or memory file (memfd_create) could be had; raise the limits")
    NOT_REGULAR = ("not_regular", "the path must lead to a regular file")
    TOO_LARGE = ("too_large", "the file is over 1 MiB")
    CHANGING = ("changing", "the file kept changing while it was read; replace it by rename")
    KEY_MODE = ("key_mode", "the key's mode must have no group write and nothing for others, for example 0440 or 0400")
    KEY_MALFORMED = ("key_malformed", "the file must hold one private key in PEM")
    KEY_ENCRYPTED = ("key_encrypted", "the private key has a passphrase; write it without one")
    KEY_MISMATCH = ("key_mismatch", "the private key is not that of the first certificate of the certificate file")
    CERTIFICATE_MALFORMED = ("certificate_malformed", "the file must hold PEM certificates: leaf, then intermediates")
    CERTIFICATE_ORDER = ("certificate_order", "each certificate after the leaf must be the issuer of the one before it")
    CERTIFICATE_EXPIRED = ("certificate_expired", "a certificate of the file has expired; renew it")
    CERTIFICATE_NOT_YET_VALID = (
        "certificate_not_yet_valid",
        "a certificate of the file is not valid yet; check clocks",
    )
    CA_MALFORMED = ("ca_malformed", "the file must hold PEM certificates and nothing else in PEM")
    CA_COUNT = ("ca_count", "the file must hold 1 to 16 certificates in PEM")
    CA_NOT_A_CA = ("ca_not_a_ca", "every certificate of the file must be a CA (basic constraints CA:TRUE)")
    CA_EXPIRED = ("ca_expired", "a CA of the file has expired; remove or renew it")
    CA_NOT_YET_VALID = ("ca_not_yet_valid", "a CA of the file is not valid yet; check clocks")
    CA_NO_ROOT = ("ca_no_root", "no CA of the file is self-signed, so no client could be verified; add the root")
    CA_NO_CRL_SIGN = ("ca_no_crl_sign", "a CA of the file may not sign CRLs (key usage cRLSign)")
    CRL_MALFORMED = ("crl_malformed", "the file must hold CRLs in PEM and nothing else")
    CRL_COUNT = ("crl_count", "the file must hold 1 to 16 CRLs in PEM")
    CRL_UNSUPPORTED = (
        "crl_unsupported",
        "a CRL is a delta, indirect, limited in scope or marked critical in an unknown way",
    )
    CRL_FOREIGN = ("crl_foreign", "a CRL's issuer is not in the client CA file")
    CRL_SIGNATURE = ("crl_signature", "a CRL is not signed by the CA whose name it bears")
    CRL_MISSING = ("crl_missing", "a CA of the client CA file has no CRL in the file")
    CRL_REPEATED = ("crl_repeated", "a CA of the client CA file has more than one CRL in the file")
    CRL_EXPIRED = ("crl_expired", "a CRL has expired or names no next update; publish a new one")
    CRL_NOT_YET_VALID = ("crl_not_yet_valid", "a CRL is not valid yet; check clocks")
    CRL_ROLLBACK = ("crl_rollback", "a CRL is older than the one in service")
    HANDSHAKE = ("handshake", "a TLS 1.3 handshake with it failed; check key type, key size and purpose")

    def __init__(self, code: str, mend: str) -> None:
        """Unpack the member's pair."""
        self.code = code
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of one file."""

    role: Role
    fault: Fault


class IdentityFault(Exception):
    """The identity cannot be used. `faults` lists all that were found, in the order of the files; never empty."""

    def __init__(self, *faults: Finding) -> None:
        """Raise for these findings; repeated ones are listed once."""
        super().__init__()
        self.faults: tuple[Finding, ...] = tuple(dict.fromkeys(faults))

    def __str__(self) -> str:
        """Return a line for each finding: variable, what is wrong and how to mend it."""
        return "\n".join(f"{found.role.variable}: {found.fault.mend} [{found.fault.code}]" for found in self.faults)


@contextmanager
def collecting(findings: list[Finding]) -> Iterator[None]:
    """Add the faults of an IdentityFault to `findings` instead of raising it.

    What is raised of them later stands in no `except` clause, so no system error with a path hangs on it as context.
    """
    try:
        yield
    except IdentityFault as fault:
        findings.extend(fault.faults)


def pem_blocks(data: bytes | bytearray, label: bytes, *, comments: bool) -> list[bytes]:
    """Return the PEM blocks of a file, each with its armour.

    Raises ValueError for a block with another label, for an unfinished one and, without `comments`, for any text
    between the blocks.
    """
    found = list(_BLOCK.finditer(data))
    rest = _BLOCK.sub(b"", data)
    if any(block[1] != label for block in found) or b"-----" in rest or (not comments and rest.strip()):
        raise ValueError("not the PEM blocks asked for")
    return [bytes(block[0]) for block in found]


def certificates(data: bytes | bytearray) -> list[x509.Certificate]:
    """Return the certificates of a PEM file. Raises ValueError for anything else in PEM or a broken certificate."""
    found: list[x509.Certificate] | None
    try:
        found = [x509.load_pem_x509_certificate(block) for block in pem_blocks(data, b"CERTIFICATE", comments=True)]
        for one in found:
            # Parts are parsed when they are first looked at: here, so that nobody after this meets a broken one.
            _ = one.subject, one.issuer, one.public_key()
    except UNREADABLE:
        found = None
    if found is None:  # raised here and below outside the handler: the parser's error echoes what it could not read
        raise ValueError("not a certificate that can be read")
    return found


def not_before(certificate: x509.Certificate) -> float:
    """Return the first moment of validity, in seconds since the epoch."""
    return certificate.not_valid_before_utc.timestamp()


def not_after(certificate: x509.Certificate) -> float:
    """Return the end of validity, in seconds since the epoch; as in OpenSSL, the moment itself is already outside."""
    return certificate.not_valid_after_utc.timestamp()


def authorities(data: bytes | bytearray, now: float, *, sign_crls: bool) -> list[x509.Certificate]:
    """Return the client CAs, each once. Raises IdentityFault unless they are 1..16 valid CAs (contract 5)."""
    found: list[x509.Certificate] | None
    try:
        found = list(dict.fromkeys(certificates(data)))
    except ValueError:
        found = None
    if found is None:
        raise IdentityFault(Finding(Role.CLIENT_CA, Fault.CA_MALFORMED))
    rules: tuple[tuple[Fault, Callable[[x509.Certificate], bool]], ...] = (
        (Fault.CA_NOT_A_CA, _is_no_ca),
        (Fault.CA_EXPIRED, lambda ca: now >= not_after(ca)),
        (Fault.CA_NOT_YET_VALID, lambda ca: now < not_before(ca)),
        (Fault.CA_NO_CRL_SIGN, lambda ca: sign_crls and _signs_no_crl(ca)),
    )
    faults = [fault for fault, broken in rules if any(broken(ca) for ca in found)]
    if not 1 <= len(found) <= CLIENT_CAS:
        faults.append(Fault.CA_COUNT)
    elif all(ca.subject.public_bytes() != ca.issuer.public_bytes() for ca in found):
        faults.append(Fault.CA_NO_ROOT)
    if faults:
        raise IdentityFault(*(Finding(Role.CLIENT_CA, fault) for fault in faults))
    return found


def _is_no_ca(certificate: x509.Certificate) -> bool:
    try:
        return not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except UNREADABLE:
        return True


def _signs_no_crl(certificate: x509.Certificate) -> bool:
    try:
        return not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    except x509.ExtensionNotFound:
        return False
    except UNREADABLE:
        return True


def issued_in_order(chain: Sequence[x509.Certificate]) -> bool:
    """Tell whether each certificate was issued by the one after it: names and signature."""
    try:
        for issued, issuer in pairwise(chain):
            issued.verify_directly_issued_by(issuer)
    except UNREADABLE:
        return False
    return True
