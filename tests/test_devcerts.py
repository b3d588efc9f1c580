"""sidecar/devcerts.py: throw-away certificates that strict verifiers accept, and files nobody else can read."""

import ipaddress
import os
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sidecar.devcerts import issue, make_ca, make_crl, write
from tests.kit.pki import pki, shake


def test_strict_verifiers_accept_them(tmp_path: Path) -> None:
    """Both sides verify with X509_STRICT, as default contexts do from Python 3.13, intermediates included."""
    root = make_ca("root", path_len=1)
    middle = make_ca("middle", issuer=root, path_len=0)
    contexts = []
    for protocol, name in ((ssl.PROTOCOL_TLS_SERVER, "localhost"), (ssl.PROTOCOL_TLS_CLIENT, "client")):
        pair = issue(middle, name, server=name == "localhost", client=name == "client", dns=[name])
        write(tmp_path / name, pair.chain_pem + pair.key_pem)
        context = ssl.SSLContext(protocol)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(tmp_path / name)
        context.load_verify_locations(cadata=root.pem.decode())
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        contexts.append(context)
    assert len(shake(*contexts).getpeercert()["subjectAltName"]) == 1  # type: ignore[index]


def test_names() -> None:
    """A leaf carries the names it was asked to carry: DNS, addresses of both families, URIs."""
    leaf = issue(pki().root, "x", dns=["a.example"], ip=["127.0.0.1", "::1"], uri=["urn:ql3:worker:w"])
    names = leaf.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example"]
    assert names.get_values_for_type(x509.IPAddress) == [*map(ipaddress.ip_address, ("127.0.0.1", "::1"))]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["urn:ql3:worker:w"]


def test_crl() -> None:
    """A CRL is its CA's own, carries its number and lists the serials."""
    root = pki().root
    crl = x509.load_pem_x509_crl(make_crl(root, [3, 5], number=8))
    assert crl.is_signature_valid(root.key.public_key())
    assert {entry.serial_number for entry in crl} == {3, 5}
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 8


def test_a_pair_shows_no_key() -> None:
    """The representation of a pair holds nothing of its key; the PEM of the key is asked for by name."""
    pair = pki().client
    assert "key" not in repr(pair)
    assert load_pem_private_key(pair.key_pem, None).public_key() == pair.key.public_key()


def test_write_replaces_by_rename(tmp_path: Path) -> None:
    """A file has mode 0600 whatever the umask, replaces what was there by rename, and leaves nothing beside it."""
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    before = os.stat(path).st_ino
    mask = os.umask(0)
    try:
        write(path, b"new")
    finally:
        os.umask(mask)
    status = os.stat(path)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_ino != before
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["key"]


def test_write_follows_no_link(tmp_path: Path) -> None:
    """A link in the temporary file's place is not written through."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"safe")
    (tmp_path / ".key.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        write(tmp_path / "key", b"new")
    assert victim.read_bytes() == b"safe"
