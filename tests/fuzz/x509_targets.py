"""Fuzz targets in DER, behind the base64 that hides it: what a CA, a deployer or a peer may have written.

A CRL is signed after it was changed, so that the search gets behind the signature.
"""

import time
from functools import cache
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from provider.outcomes import Reason, Refused
from sidecar import crl
from sidecar.devcerts import make_crl
from sidecar.identity import Identity, build
from sidecar.identityfiles import Material
from sidecar.peer import Peer, judge
from sidecar.trust import IdentityFault, Role
from tests.fuzz.target import Target, refused_for, silent
from tests.kit.pki import armoured, der_blocks, pki

_ECDSA_SHA256: Final = bytes.fromhex("300a06082a8648ce3d040302")
_ROLES: Final = tuple(Role)
_LABELS: Final = {
    Role.PRIVATE_KEY: "PRIVATE KEY",
    Role.CERTIFICATE: "CERTIFICATE",
    Role.CLIENT_CA: "CERTIFICATE",
    Role.CLIENT_CRL: "X509 CRL",
}


@cache
def good() -> dict[Role, bytes]:
    """The four files of an identity that is good, each with one block."""
    world = pki()
    return {
        Role.PRIVATE_KEY: world.server.key_pem,
        Role.CERTIFICATE: world.server.pem,
        Role.CLIENT_CA: world.root.pem,
        Role.CLIENT_CRL: make_crl(world.root, [world.client.serial]),
    }


@cache
def in_service() -> Identity:
    """A snapshot with these files."""
    return of(good())


def of(files: dict[Role, bytes]) -> Identity:
    """The snapshot of these files. Raises IdentityFault."""
    with Material({role: bytearray(data) for role, data in files.items()}) as material:
        return build(material, None, time.time())


def identity(data: bytes) -> bool:
    """The block of one of the four files, which the first byte names: a fault of some file, or a snapshot."""
    role, der = _ROLES[data[0] % len(_ROLES)] if data else _ROLES[0], data[1:]
    try:
        made = of(good() | {role: armoured(_LABELS[role], der)})
    except IdentityFault as error:
        assert error.faults
        silent(error, der)
        return False
    assert made.tls_ok(time.time()) and made.crl_ok(time.time())
    return True


def signed_list(data: bytes) -> bool:
    """A CRL that its CA signed, whatever it says: what is accepted is current, and the CA's."""
    ca = pki().root
    signature = ca.key.sign(data, ec.ECDSA(SHA256()))
    der = tagged(0x30, data + _ECDSA_SHA256 + tagged(0x03, b"\0" + signature))
    now = time.time()
    try:
        found = crl.revocations(armoured("X509 CRL", der), [ca.certificate], {}, now)
    except IdentityFault as error:
        assert error.faults
        silent(error, data)
        return False
    assert found.keys() == {crl.signer(ca.certificate)}
    assert all(one.this_update <= now < one.next_update for one in found.values())
    return True


def tagged(tag: int, content: bytes) -> bytes:
    """A DER value, its length written in as few bytes as can be."""
    size = len(content)
    number = size.to_bytes((size.bit_length() + 7) // 8 or 1, "big")
    return bytes((tag, *number) if size < 0x80 else (tag, 0x80 | len(number), *number)) + content


def to_be_signed(pem: bytes) -> bytes:
    """What was signed of the one CRL in a file."""
    ((_, der),) = der_blocks(pem)
    return x509.load_der_x509_crl(der).tbs_certlist_bytes


def leaf(data: bytes) -> bool:
    """A client's certificate as OpenSSL handed it over: it has names or none, and is good or not."""
    who = Peer((data, pki().root.der))
    assert all(isinstance(one, str) for one in who.names.uris | who.names.dns)
    try:
        judge(who, in_service(), time.time())
    except Refused as error:
        return refused_for(error, data, Reason.PEER_NOT_GOOD)
    return True


def of_each_file() -> list[bytes]:
    """The block of each file, after the byte that names it."""
    blocks = [der_blocks(good()[role]) for role in _ROLES]
    return [bytes((number,)) + der for number, ((_, der),) in enumerate(blocks)]


TARGETS: Final[dict[str, Target]] = {
    "identity": Target(identity, of_each_file),
    "signed CRL": Target(
        signed_list, lambda: [to_be_signed(good()[Role.CLIENT_CRL]), to_be_signed(make_crl(pki().root, number=None))]
    ),
    "leaf": Target(leaf, lambda: [pki().direct.der, pki().client.der, pki().stranger.der]),
}
