"""Throw-away certificates for `demo` and for tests: P-256, short-lived, never for real workers.

Strict verifiers accept them: key identifiers everywhere, critical basic constraints and key usage.
"""

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY: Final = datetime.timedelta(days=1)
_SLACK: Final = datetime.timedelta(minutes=5)  # clocks of containers differ


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, its private key, and the intermediates that go with it (`above`, nearest first, no root)."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    above: tuple[x509.Certificate, ...] = ()

    @property
    def serial(self) -> int:
        """The certificate's serial number, as a CRL lists it."""
        return self.certificate.serial_number

    @property
    def der(self) -> bytes:
        """The certificate in DER."""
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def pem(self) -> bytes:
        """The certificate alone in PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def chain_pem(self) -> bytes:
        """The certificate and its intermediates in PEM, as a certificate file holds them."""
        return self.pem + b"".join(one.public_bytes(Encoding.PEM) for one in self.above)

    @property
    def key_pem(self) -> bytes:
        """The private key in PEM, without a passphrase."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def now() -> datetime.datetime:
    """Return the present in UTC, in whole seconds as certificates have them."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def make_ca(
    name: str,
    *,
    issuer: Pair | None = None,
    days: float = 7,
    path_len: int | None = None,
    not_before: datetime.datetime | None = None,
    key: ec.EllipticCurvePrivateKey | None = None,
    crl_sign: bool = True,
) -> Pair:
    """Make a root, or with `issuer` an intermediate. Pass the `key` of an earlier one to renew it."""
    usage = _usage(key_cert_sign=True, crl_sign=crl_sign)
    extensions = [(x509.BasicConstraints(ca=True, path_length=path_len), True), (usage, True)]
    return _make(name, issuer, days, not_before, key, extensions)


def issue(  # noqa: PLR0913 - each names one field of a certificate
    ca: Pair,
    name: str,
    *,
    server: bool = False,
    client: bool = False,
    dns: Iterable[str] = (),
    ip: Iterable[str] = (),
    uri: Iterable[str] = (),
    days: float = 7,
    not_before: datetime.datetime | None = None,
    key: ec.EllipticCurvePrivateKey | None = None,
    extensions: Sequence[tuple[x509.ExtensionType, bool]] = (),
) -> Pair:
    """Issue a leaf for a server, a client or both; its intermediates come along in `above`.

    `extensions` are (extension, critical), beside those of every leaf.
    """
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] * server + [ExtendedKeyUsageOID.CLIENT_AUTH] * client
    names: list[x509.GeneralName] = [
        *map(x509.DNSName, dns),
        *(x509.IPAddress(ipaddress.ip_address(one)) for one in ip),
        *map(x509.UniformResourceIdentifier, uri),
    ]
    own: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
    ]
    if purposes:
        own.append((x509.ExtendedKeyUsage(purposes), False))
    if names:
        own.append((x509.SubjectAlternativeName(names), False))
    return _make(name, ca, days, not_before, key, [*own, *extensions])


def make_crl(
    ca: Pair,
    revoked: Iterable[int] = (),
    *,
    number: int | None = 1,
    days: float = 7,
    this_update: datetime.datetime | None = None,
    signed_by: Pair | None = None,
    extensions: Sequence[tuple[x509.ExtensionType, bool]] = (),
) -> bytes:
    """Make a CRL of `ca` in PEM. `signed_by` signs in its name (a forgery); `extensions` are (extension, critical)."""
    start = this_update or now() - _SLACK
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.certificate.subject)
        .last_update(start)
        .next_update(start + days * _DAY)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
    )
    if number is not None:
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    for serial in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(start)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign((signed_by or ca).key, SHA256()).public_bytes(Encoding.PEM)


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file in place by rename, never readable by others in between."""
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
    os.rename(temporary, path)


def _make(
    name: str,
    issuer: Pair | None,
    days: float,
    not_before: datetime.datetime | None,
    key: ec.EllipticCurvePrivateKey | None,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> Pair:
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = not_before or now() - _SLACK
    signing = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + days * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    above = () if issuer is None or _is_root(issuer) else (issuer.certificate, *issuer.above)
    return Pair(builder.sign(signing, SHA256()), key, above)


def _is_root(pair: Pair) -> bool:
    return pair.certificate.subject == pair.certificate.issuer


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
