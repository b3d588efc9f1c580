"""The TLS identity: leaf, key, client CAs and CRLs as one snapshot, used only once the whole was judged (contract 5).

A snapshot is never changed. `load` reads the files once, judges them, builds a context of its own from the very bytes
it judged and speaks TLS with it in memory; any fault leaves nothing behind.
"""

import os
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from sidecar.crl import Revocations, revocations, signer
from sidecar.identityfiles import IdentityFiles, Material, read
from sidecar.trust import (
    UNREADABLE,
    Fault,
    Finding,
    IdentityFault,
    Role,
    authorities,
    certificates,
    collecting,
    issued_in_order,
    not_after,
    not_before,
)

_CLEANSE_PLAINTEXT: Final = 0x2  # SSL_OP_CLEANSE_PLAINTEXT, which the ssl module does not name
_MFD_NOEXEC_SEAL: Final = 0x8
_TURNS: Final = 10


@dataclass(frozen=True, slots=True)
class Identity:
    """One snapshot. Times are seconds since the epoch; a moment of expiry is already outside."""

    context: ssl.SSLContext = field(repr=False)
    generation: int
    """1 for the first snapshot of a process, then one more for each."""
    digest: str
    """Hex SHA-256 of the files' contents."""
    certificate_not_before: float
    certificate_not_after: float
    """Earliest end of the certificate file's leaf and intermediates."""
    ca_not_before: float
    ca_not_after: float
    """Earliest end of the client CAs."""
    crl_next_update: float | None
    """Earliest next update of the CRLs; None without a CRL file."""
    issuers: Mapping[bytes, Revocations | None] = field(repr=False)
    """DER of each client CA, and its CRL where a CRL file is set."""
    crls: Mapping[bytes, Revocations] = field(repr=False)
    """CRLs by `crl.signer`: what a later snapshot's CRLs must not be older than."""

    def tls_ok(self, now: float) -> bool:
        """Tell whether the server's certificates and every client CA are valid at `now` (readiness, `tls`)."""
        return (
            self.certificate_not_before <= now < self.certificate_not_after
            and self.ca_not_before <= now < self.ca_not_after
        )

    def crl_ok(self, now: float) -> bool | None:
        """Tell whether every CRL is current at `now` (readiness, `crl`); None without a CRL file, which shows `off`."""
        if self.crl_next_update is None:
            return None
        return now < self.crl_next_update and all(crl.this_update <= now for crl in self.crls.values())


def load(files: IdentityFiles, previous: Identity | None = None, now: float | None = None) -> Identity:
    """Read, judge and try the files; return a fresh snapshot.

    `previous` is the snapshot in service, whose CRLs must not be undercut. `now` defaults to the wall clock.
    Raises IdentityFault with all faults that could be found together.
    """
    with read(files) as material:
        return build(material, previous, time.time() if now is None else now)


def build(material: Material, previous: Identity | None, now: float) -> Identity:
    """Judge material and make a snapshot of it; the other half of `load`."""
    findings: list[Finding] = []
    content = material.content
    key = b""
    chain: list[x509.Certificate] = []
    trusted: list[x509.Certificate] = []
    crls: dict[bytes, Revocations] = {}
    with collecting(findings):
        key = _key(content[Role.PRIVATE_KEY])
    with collecting(findings):
        chain = _chain(content[Role.CERTIFICATE], now)
    if key and chain and key != _spki(chain[0].public_key()):
        findings.append(Finding(Role.PRIVATE_KEY, Fault.KEY_MISMATCH))
    with collecting(findings):
        trusted = authorities(content[Role.CLIENT_CA], now, sign_crls=Role.CLIENT_CRL in content)
        if Role.CLIENT_CRL in content:
            crls = revocations(content[Role.CLIENT_CRL], trusted, {} if previous is None else previous.crls, now)
    if not findings:
        with collecting(findings):
            context = _context(content, chain, trusted)
            _self_test(context, chain[-1])
            return Identity(
                context=context,
                generation=1 if previous is None else previous.generation + 1,
                digest=material.digest,
                certificate_not_before=max(map(not_before, chain)),
                certificate_not_after=min(map(not_after, chain)),
                ca_not_before=max(map(not_before, trusted)),
                ca_not_after=min(map(not_after, trusted)),
                crl_next_update=min((crl.next_update for crl in crls.values()), default=None),
                issuers={ca.public_bytes(Encoding.DER): crls.get(signer(ca)) for ca in trusted},
                crls=crls,
            )
    raise IdentityFault(*findings)


def _chain(data: bytearray, now: float) -> list[x509.Certificate]:
    try:
        chain = certificates(data)
    except ValueError:
        chain = []
    if not chain:
        raise IdentityFault(Finding(Role.CERTIFICATE, Fault.CERTIFICATE_MALFORMED))
    rules = (
        (Fault.CERTIFICATE_ORDER, not issued_in_order(chain)),
        (Fault.CERTIFICATE_EXPIRED, any(now >= not_after(one) for one in chain)),
        (Fault.CERTIFICATE_NOT_YET_VALID, any(now < not_before(one) for one in chain)),
    )
    faults = [Finding(Role.CERTIFICATE, fault) for fault, broken in rules if broken]
    if faults:
        raise IdentityFault(*faults)
    return chain


def _key(data: bytearray) -> bytes:
    """Return the public half of the private key."""
    try:
        return _spki(load_pem_private_key(data, None).public_key())
    except TypeError:
        fault = Fault.KEY_ENCRYPTED
    except UNREADABLE:
        fault = Fault.KEY_MALFORMED
    # Outside the handler: the parser's error echoes what it could not read, and that is a key.
    raise IdentityFault(Finding(Role.PRIVATE_KEY, fault))


def _spki(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _context(
    content: Mapping[Role, bytearray], chain: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # A resumed session would skip the judgement of the client's chain.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | _CLEANSE_PLAINTEXT
    crl = content.get(Role.CLIENT_CRL)
    try:
        # OpenSSL takes these from files only. The files may have changed since they were read, so it is given files
        # of memory with the bytes that were judged. The empty password keeps it from ever asking a terminal.
        with _memory_file([*map(_pem, chain), content[Role.PRIVATE_KEY]]) as path:
            context.load_cert_chain(path, password="")
        with _memory_file([*map(_pem, trusted), crl or b""]) as path:
            context.load_verify_locations(path)
    except ssl.SSLError:
        raise IdentityFault(Finding(Role.CERTIFICATE, Fault.HANDSHAKE)) from None
    except OSError:
        raise IdentityFault(Finding(Role.CERTIFICATE, Fault.RESOURCES)) from None
    if crl is not None:
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
    return context


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


@contextmanager
def _memory_file(parts: Iterable[bytes | bytearray]) -> Iterator[str]:
    """Give an anonymous file of memory with these parts; it is overwritten and gone afterwards."""
    try:
        fd = os.memfd_create("identity", os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError:  # before Linux 6.3 the second flag, which newer systems may demand, is not known
        fd = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        with os.fdopen(fd, "wb", buffering=0, closefd=False) as file:
            for part in parts:
                file.write(part)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.pwrite(fd, bytes(os.fstat(fd).st_size), 0)
        os.close(fd)


def _self_test(context: ssl.SSLContext, anchor: x509.Certificate) -> None:
    """Speak TLS 1.3 in memory with a client that trusts the last certificate of the file and shows none of its own.

    Proves that OpenSSL signs with this key, that clients who trust the chain's end accept the server, its purpose
    included, and that the gate is shut: the server must refuse the client for want of a certificate. That a good
    client is let in is not proved, since nobody here holds a client's key. Raises IdentityFault.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=anchor.public_bytes(Encoding.DER))
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server)
    accepted = False
    for _ in range(_TURNS):
        try:
            with suppress(ssl.SSLWantReadError):
                theirs.do_handshake()
                accepted = True
            with suppress(ssl.SSLWantReadError):
                ours.do_handshake()
                break
        except ssl.SSLError as error:
            if accepted and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                return
            break
    raise IdentityFault(Finding(Role.CERTIFICATE, Fault.HANDSHAKE))
