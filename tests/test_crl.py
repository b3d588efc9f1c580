"""sidecar/crl.py: which CRL files are accepted, and that an accepted one bites in the handshake."""

import datetime
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from sidecar import devcerts
from sidecar.crl import Revocations, revocations, signer
from sidecar.devcerts import Pair, issue, make_ca, make_crl
from sidecar.identity import Identity, load
from sidecar.peer import Peer, judge
from sidecar.trust import Fault, Finding, IdentityFault, Role
from tests.kit.pki import pki, shake

DAY = datetime.timedelta(days=1)


def judged(
    data: bytes, *cas: Pair, service: dict[bytes, Revocations] | None = None, now: float | None = None
) -> dict[bytes, Revocations]:
    """Judge a CRL file against these CAs, by default the root alone."""
    trusted = [one.certificate for one in cas or (pki().root,)]
    return revocations(data, trusted, service or {}, time.time() if now is None else now)


def faults(data: bytes, *cas: Pair, service: dict[bytes, Revocations] | None = None) -> list[Fault]:
    """Return what is wrong with a CRL file, nothing when it is accepted."""
    try:
        judged(data, *cas, service=service)
    except IdentityFault as fault:
        assert {found.role for found in fault.faults} == {Role.CLIENT_CRL}
        return [found.fault for found in fault.faults]
    return []


def snapshot(directory: Path, crl: bytes, *cas: Pair) -> Identity:
    """Load a snapshot with these client CAs and this CRL file."""
    files = pki().write(directory, crl=crl)
    devcerts.write(Path(files.client_ca), b"".join(one.pem for one in cas))
    return load(files)


def test_what_is_kept_of_a_crl() -> None:
    """Serials, number and both times of each CRL are kept under the CA's name and key."""
    root = pki().root
    data = make_crl(root, [7, 9], number=3)
    parsed = x509.load_pem_x509_crl(data)
    assert parsed.next_update_utc is not None
    assert judged(data) == {
        signer(root.certificate): Revocations(
            frozenset({7, 9}), 3, parsed.last_update_utc.timestamp(), parsed.next_update_utc.timestamp()
        )
    }


def test_one_for_each_ca() -> None:
    """Exactly one CRL for each CA of the file: none missing, none twice, in any order."""
    world = pki()
    root, middle = make_crl(world.root), make_crl(world.intermediate)
    both = (world.root, world.intermediate)
    assert faults(root + middle, *both) == faults(middle + root, *both) == []
    assert faults(root, *both) == faults(middle, *both) == [Fault.CRL_MISSING]
    assert faults(root + middle + root, *both) == [Fault.CRL_REPEATED]
    assert faults(root + make_crl(world.root, number=2) + middle, *both) == [Fault.CRL_REPEATED]


def test_foreign_issuer() -> None:
    """A CRL whose issuer is not in the client CA file is a fault, also beside all those that belong."""
    world = pki()
    assert faults(make_crl(world.other_root)) == [Fault.CRL_FOREIGN]
    assert faults(make_crl(world.root) + make_crl(world.other_root)) == [Fault.CRL_FOREIGN]
    assert faults(make_crl(world.root) + make_crl(world.intermediate)) == [Fault.CRL_FOREIGN]


def test_signature() -> None:
    """A CRL in the CA's name that another key signed, or of which a byte was changed, is a fault."""
    world = pki()
    assert faults(make_crl(world.root, signed_by=world.other_root)) == [Fault.CRL_SIGNATURE]
    der = bytearray(x509.load_pem_x509_crl(make_crl(world.root, [0x1234567890])).public_bytes(Encoding.DER))
    der[der.index(bytes.fromhex("1234567890"))] ^= 1
    changed = x509.load_der_x509_crl(bytes(der)).public_bytes(Encoding.PEM)
    assert faults(changed) == [Fault.CRL_SIGNATURE]


def test_signature_of_another_kind() -> None:
    """A CRL signed with another kind of key than the CA's, or of a CA whose key cannot sign, is a fault."""
    root = pki().root
    start = devcerts.now() - DAY
    builder = x509.CertificateRevocationListBuilder(root.certificate.subject, start, start + 9 * DAY)
    other = builder.sign(ed25519.Ed25519PrivateKey.generate(), None).public_bytes(Encoding.PEM)
    assert faults(other) == [Fault.CRL_SIGNATURE]
    name = root.certificate.subject
    mute = x509.CertificateBuilder(name, name, x25519.X25519PrivateKey.generate().public_key(), 1, start, start + DAY)
    with pytest.raises(IdentityFault) as caught:
        revocations(make_crl(root), [mute.sign(root.key, SHA256())], {}, time.time())
    assert caught.value.faults == (Finding(Role.CLIENT_CRL, Fault.CRL_SIGNATURE),)


def test_nothing_else_in_the_file() -> None:
    """PEM CRLs and white space only: DER, text, another block, a cut or mislabelled block are faults."""
    good = make_crl(pki().root)
    assert faults(b"\n" + good + b"\r\n \n") == []
    der = x509.load_pem_x509_crl(good).public_bytes(Encoding.DER)
    for bad in (
        der,
        good + der,
        b"text\n" + good,
        good + b"# comment\n",
        good + pki().root.pem,
        pki().root.pem,
        good + pki().client.key_pem,
        good[:-5],
        good + good[: len(good) // 2],
        good.replace(b"BEGIN X509 CRL", b"BEGIN CRL"),
        good.replace(b"X509 CRL", b"CRL"),
        good.replace(b"\nMI", b"\n!!"),
        b"-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n",
        good + b"-----",
    ):
        assert faults(bad) == [Fault.CRL_MALFORMED]


def test_count() -> None:
    """1 to 16 CRLs: sixteen are accepted, none and seventeen are not."""
    cas = [make_ca(f"ca {number}") for number in range(17)]
    lists = [make_crl(one) for one in cas]
    assert faults(b"".join(lists[:16]), *cas[:16]) == []
    assert faults(b"".join(lists), *cas) == [Fault.CRL_COUNT]
    assert faults(b"") == [Fault.CRL_COUNT]


def test_current() -> None:
    """A CRL is current from its this-update up to, not including, its next-update."""
    start = devcerts.now()
    data = make_crl(pki().root, this_update=start, days=1)
    begin, end = start.timestamp(), (start + DAY).timestamp()
    for moment, expected in ((begin - 1, Fault.CRL_NOT_YET_VALID), (end, Fault.CRL_EXPIRED)):
        with pytest.raises(IdentityFault) as caught:
            judged(data, now=moment)
        assert caught.value.faults == (Finding(Role.CLIENT_CRL, expected),)
    for moment in (begin, end - 1):
        assert len(judged(data, now=moment)) == 1


def _sequence(content: bytes) -> bytes:
    """Write a DER sequence of 256 to 65,535 bytes by hand: the library makes no CRL without a next update."""
    return b"\x30\x82" + len(content).to_bytes(2, "big") + content


def test_without_next_update() -> None:
    """A CRL that names no next update could stay for ever: it is refused as expired."""
    root = pki().root
    usual = x509.load_pem_x509_crl(make_crl(root, range(1, 100)))
    signed = usual.tbs_certlist_bytes
    assert signed[:2] == b"\x30\x82"
    at = signed.index(b"\x17\x0d", signed.index(b"\x17\x0d") + 15)  # the second time is the next update
    signed = _sequence(signed[4:at] + signed[at + 15 :])
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
    bits = b"\0" + root.key.sign(signed, ec.ECDSA(SHA256()))
    signature = bytes([0x03, len(bits)]) + bits
    forever = x509.load_der_x509_crl(_sequence(signed + algorithm + signature))
    assert forever.next_update_utc is None
    assert forever.is_signature_valid(root.key.public_key())
    assert faults(forever.public_bytes(Encoding.PEM)) == [Fault.CRL_EXPIRED]


@given(before=st.none() | st.integers(0, 2**160 - 1), after=st.none() | st.integers(0, 2**160 - 1))
def test_rollback(before: int | None, after: int | None) -> None:
    """A number never goes down and never goes away; the same number again and the first number are accepted."""
    root = pki().root
    in_service = judged(make_crl(root, number=before))
    refused = before is not None and (after is None or after < before)
    found = faults(make_crl(root, number=after), service=in_service)
    assert found == ([Fault.CRL_ROLLBACK] if refused else [])


def test_rollback_without_numbers() -> None:
    """Where neither CRL has a number, the earlier this-update is the older one."""
    root = pki().root
    start = devcerts.now() - DAY
    in_service = judged(make_crl(root, number=None, this_update=start))
    earlier = start - datetime.timedelta(seconds=1)
    assert faults(make_crl(root, number=None, this_update=earlier), service=in_service) == [Fault.CRL_ROLLBACK]
    assert faults(make_crl(root, number=None, this_update=start), service=in_service) == []


def test_rollback_is_each_cas_own() -> None:
    """Numbers are compared for one CA, also across a renewal of its certificate with the same key."""
    root, other = make_ca("one"), make_ca("two")
    in_service = judged(make_crl(root, number=5) + make_crl(other, number=2), root, other)
    assert faults(make_crl(root, number=5) + make_crl(other, number=2), root, other, service=in_service) == []
    lower = make_crl(root, number=5) + make_crl(other, number=1)
    assert faults(lower, root, other, service=in_service) == [Fault.CRL_ROLLBACK]
    renewed = make_ca("one", key=root.key)
    assert faults(make_crl(renewed, number=4), renewed, service=in_service) == [Fault.CRL_ROLLBACK]
    assert faults(make_crl(renewed, number=6), renewed, service=in_service) == []


def _scope(**limits: bool) -> x509.IssuingDistributionPoint:
    every = {"only_contains_user_certs", "only_contains_ca_certs", "only_contains_attribute_certs", "indirect_crl"}
    flags = dict.fromkeys(every, False) | limits
    reasons = frozenset({x509.ReasonFlags.key_compromise}) if not limits else None
    return x509.IssuingDistributionPoint(None, None, only_some_reasons=reasons, **flags)


@pytest.mark.parametrize(
    ("extension", "critical"),
    [
        (x509.DeltaCRLIndicator(1), True),
        (x509.DeltaCRLIndicator(1), False),
        (_scope(only_contains_user_certs=True), True),
        (_scope(only_contains_ca_certs=True), True),
        (_scope(only_contains_attribute_certs=True), True),
        (_scope(indirect_crl=True), True),
        (_scope(), False),
        (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True),
    ],
)
def test_incomplete_lists(extension: x509.ExtensionType, critical: bool) -> None:
    """A delta, indirect or scoped CRL, and one with an unknown critical extension, is no complete CRL of the CA."""
    assert faults(make_crl(pki().root, extensions=[(extension, critical)])) == [Fault.CRL_UNSUPPORTED]


def test_extensions_without_harm(tmp_path: Path) -> None:
    """A distribution point's name and an unknown extension that is not critical limit nothing."""
    where = x509.IssuingDistributionPoint(
        [x509.UniformResourceIdentifier("http://localhost/root.crl")], None, False, False, None, False, False
    )
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
    assert faults(make_crl(pki().root, extensions=[(where, True), (unknown, False)])) == []


def test_entry_with_a_critical_mark() -> None:
    """An entry that names another issuer makes the CRL an indirect one, whatever its header says; a reason does not."""
    root = pki().root
    start = devcerts.now() - DAY

    def with_entry(extension: x509.ExtensionType, critical: bool) -> bytes:
        entry = x509.RevokedCertificateBuilder().serial_number(5).revocation_date(start)
        builder = x509.CertificateRevocationListBuilder(root.certificate.subject, start, start + 9 * DAY)
        builder = builder.add_revoked_certificate(entry.add_extension(extension, critical).build())
        return builder.sign(root.key, SHA256()).public_bytes(Encoding.PEM)

    issuer = x509.CertificateIssuer([x509.DirectoryName(pki().other_root.certificate.subject)])
    assert faults(with_entry(issuer, True)) == [Fault.CRL_UNSUPPORTED]
    assert faults(with_entry(x509.CRLReason(x509.ReasonFlags.certificate_hold), False)) == []


def test_all_faults_at_once() -> None:
    """Each CRL's fault is listed, whichever comes first."""
    world = pki()
    data = (
        make_crl(world.other_root)
        + make_crl(world.root, this_update=devcerts.now() + DAY)
        + make_crl(world.intermediate, signed_by=world.root)
    )
    assert faults(data, world.root, world.intermediate) == [
        Fault.CRL_FOREIGN,
        Fault.CRL_NOT_YET_VALID,
        Fault.CRL_SIGNATURE,
    ]


# ---------------------------------------------------------------------------------------------------- real handshakes


def test_revoked_clients_are_refused(tmp_path: Path) -> None:
    """A revoked leaf, and the leaf of a revoked intermediate, get no handshake; everybody else does."""
    world = pki()
    for number, (revoked, refused) in enumerate(
        (((), ()), ((world.client,), (world.client,)), ((world.intermediate,), (world.client,)))
    ):
        crl = world.crl_pem(*revoked)
        context = snapshot(tmp_path / str(number), crl, world.root, world.intermediate).context
        for pair in (world.client, world.direct):
            client = world.client_context(pair, tmp_path)
            if pair in refused:
                with pytest.raises(ssl.SSLError, match="revoked"):
                    shake(context, client)
            else:
                shake(context, client)


def test_a_chain_through_a_ca_outside_the_file(tmp_path: Path) -> None:
    """With a CRL file, a client whose intermediate is not in the client CA file is refused at the handshake."""
    world = pki()
    context = snapshot(tmp_path, make_crl(world.root), world.root).context
    shake(context, world.client_context(world.direct, tmp_path))
    with pytest.raises(ssl.SSLError, match="unable to get certificate CRL"):
        shake(context, world.client_context(world.client, tmp_path))


def test_ten_thousand_serials(tmp_path: Path) -> None:
    """A CRL of 10,000 entries loads, and its last entry bites, in the handshake and in the judgement of who is in."""
    world = pki()
    before = snapshot(tmp_path, world.crl_pem(), world.root, world.intermediate)
    client = world.client_context(world.direct, tmp_path)
    kept = Peer.of(shake(before.context, client))
    many = [*range(1, 10_000), world.direct.serial]
    after = snapshot(
        tmp_path, make_crl(world.root, many) + make_crl(world.intermediate), world.root, world.intermediate
    )
    assert len(after.crls[signer(world.root.certificate)].serials) == 10_000
    with pytest.raises(ssl.SSLError, match="revoked"):
        shake(after.context, client)
    judge(kept, before, time.time())
    with pytest.raises(Exception, match="PEER_NOT_GOOD"):
        judge(kept, after, time.time())


def test_two_cas_of_one_name(tmp_path: Path) -> None:
    """While a CA changes its key, both of its certificates stand in the file, each with a CRL of its own that bites."""
    old, new = make_ca("rolling"), make_ca("rolling")
    former, latter = issue(old, "former", client=True), issue(new, "latter", client=True)
    assert faults(make_crl(new), old, new) == [Fault.CRL_MISSING]
    assert faults(make_crl(new) + make_crl(new), old, new) == [Fault.CRL_REPEATED]
    for revoked in (None, former, latter):
        lists = [
            make_crl(ca, [revoked.serial] if revoked and revoked in mine else [])
            for ca, *mine in ((old, former), (new, latter))
        ]
        context = snapshot(tmp_path, b"".join(lists), old, new).context
        for pair in (former, latter):
            client = pki().client_context(pair, tmp_path)
            if pair is revoked:
                with pytest.raises(ssl.SSLError, match="revoked"):
                    shake(context, client)
            else:
                shake(context, client)


def test_a_renewed_ca_needs_no_second_list(tmp_path: Path) -> None:
    """One CRL serves both certificates of a CA that was renewed with its key: it is current for each of them."""
    old = make_ca("renewed", days=2)
    new = make_ca("renewed", key=old.key)
    leaf = issue(old, "leaf", client=True)
    identity = snapshot(tmp_path, make_crl(old), old, new)
    assert set(identity.issuers) == {old.der, new.der}
    judge(Peer.of(shake(identity.context, pki().client_context(leaf, tmp_path))), identity, time.time())
