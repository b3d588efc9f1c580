"""sidecar/peer.py: who the client is, and whether its chain is still good under the snapshot in service."""

import datetime
import ssl
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.credential import PeerNames
from provider.outcomes import Reason, Refused
from sidecar import devcerts
from sidecar import peer as peer_module
from sidecar.devcerts import Pair, issue, make_ca, make_crl
from sidecar.identity import Identity, load
from sidecar.peer import Peer, judge
from tests.kit.pki import WORKER, pki, shake


def snapshot(
    directory: Path,
    authorities: tuple[Pair, ...],
    revoked: tuple[Pair, ...] | None = (),
    crl: bytes | None = None,
    previous: Identity | None = None,
) -> Identity:
    """Load a snapshot with these client CAs; `revoked` None means that no CRL file is set."""
    files = pki().write(directory, crl=None if revoked is None else b"")
    devcerts.write(Path(files.client_ca), b"".join(one.pem for one in authorities))
    if files.client_crl is not None:
        lists = [make_crl(ca, [one.serial for one in revoked or () if issued_by(one, ca)]) for ca in authorities]
        devcerts.write(Path(files.client_crl), crl or b"".join(lists))
    return load(files, previous)


def issued_by(pair: Pair, ca: Pair) -> bool:
    """Tell whether the pair's issuer bears the CA's name."""
    return pair.certificate.issuer == ca.certificate.subject


@pytest.fixture
def everybody(tmp_path: Path) -> Identity:
    """The snapshot that lets in every client of the world, with CRLs."""
    world = pki()
    return snapshot(tmp_path, (world.root, world.intermediate, world.other_root))


def peer(identity: Identity, pair: Pair, directory: Path) -> Peer:
    """Let a client in and return who it is."""
    return Peer.of(shake(identity.context, pki().client_context(pair, directory)))


def is_good(who: Peer, identity: Identity, now: float | None = None) -> bool:
    """Turn the judgement's exception into a truth value, for comparing."""
    try:
        judge(who, identity, time.time() if now is None else now)
    except Refused as refused:
        assert refused.reason is Reason.PEER_NOT_GOOD
        return False
    return True


def test_identity_of_a_peer(everybody: Identity, tmp_path: Path) -> None:
    """A peer is the SHA-256 of its leaf and its verified chain, leaf to anchor; its names are the leaf's."""
    world = pki()
    who = peer(everybody, world.client, tmp_path)
    assert who.chain == (world.client.der, world.intermediate.der, world.root.der)
    assert who.fingerprint == world.client.certificate.fingerprint(SHA256())
    assert who.names == PeerNames(frozenset({f"urn:ql3:worker:{WORKER}"}), frozenset({WORKER}))
    assert who.names is who.names
    assert "worker" not in repr(who)


def test_names_that_are_not_there(everybody: Identity, tmp_path: Path) -> None:
    """A leaf without alternative names, or whose extension nobody can read, has none and meets no binding."""
    none = PeerNames(frozenset(), frozenset())
    assert peer(everybody, pki().stranger, tmp_path).names == none
    unreadable = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x05rest")
    leaf = issue(pki().root, "x", client=True, extensions=[(unreadable, False)])
    assert Peer((leaf.der,)).names == none


def test_no_certificate_is_no_peer(tmp_path: Path) -> None:
    """A handshake without a client certificate makes no peer."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = tmp_path / "server.pem"
    pair.write_bytes(pki().server.chain_pem + pki().server.key_pem)
    server.load_cert_chain(pair)
    with pytest.raises(ValueError, match="a peer has a certificate"):
        Peer.of(shake(server, pki().client_context(None, tmp_path)))


def test_good_under_the_snapshot_of_its_handshake(everybody: Identity, tmp_path: Path) -> None:
    """Whoever the handshake let in is good, and stays so under a mere renewal of the server's leaf."""
    world = pki()
    renewed = snapshot(tmp_path / "renewed", (world.root, world.intermediate, world.other_root), previous=everybody)
    for pair in (world.client, world.direct, world.stranger):
        who = peer(everybody, pair, tmp_path)
        assert is_good(who, everybody)
        assert is_good(who, renewed)
        assert is_good(who, everybody)


def test_the_anchor_must_still_be_a_client_ca(everybody: Identity, tmp_path: Path) -> None:
    """A client of a CA that left the file is not good, not even when a namesake with the same key has come."""
    world = pki()
    who = peer(everybody, world.direct, tmp_path)
    assert not is_good(who, snapshot(tmp_path / "a", (world.other_root,)))
    namesake = make_ca("test root", key=world.root.key)
    assert not is_good(who, snapshot(tmp_path / "b", (namesake,)))


@pytest.mark.parametrize("name", ["client", "intermediate", "root"])
def test_revoked_anywhere_in_the_chain(name: str, everybody: Identity, tmp_path: Path) -> None:
    """A revoked leaf, intermediate or root is not good (contract 5: along the whole chain), and others stay good."""
    world = pki()
    trusted = (world.root, world.intermediate, world.other_root)
    now = snapshot(tmp_path / "now", trusted, (getattr(world, name),))
    assert not is_good(peer(everybody, world.client, tmp_path), now)
    assert is_good(peer(everybody, world.stranger, tmp_path), now)
    assert is_good(peer(everybody, world.direct, tmp_path), now) is (name != "root")


def test_a_serial_counts_for_its_issuer_only(everybody: Identity, tmp_path: Path) -> None:
    """A serial in the CRL of another CA revokes nothing."""
    world = pki()
    trusted = (world.root, world.intermediate, world.other_root)
    lists = make_crl(world.root, [world.client.serial]) + make_crl(world.intermediate) + make_crl(world.other_root)
    assert is_good(peer(everybody, world.client, tmp_path), snapshot(tmp_path / "now", trusted, crl=lists))


def test_with_crls_every_issuer_must_be_in_the_file(everybody: Identity, tmp_path: Path) -> None:
    """An intermediate that left the file takes its clients with it where a CRL file is set, and not where none is."""
    world = pki()
    who = peer(everybody, world.client, tmp_path)
    assert not is_good(who, snapshot(tmp_path / "a", (world.root,)))
    assert is_good(who, snapshot(tmp_path / "b", (world.root,), None))


def test_times_of_every_certificate(tmp_path: Path) -> None:
    """A leaf, intermediate or root outside its times is not good; an end is outside, a start inside, as in OpenSSL."""
    for days in ((3, 2, 1), (3, 1, 2), (1, 3, 2)):
        root = make_ca("r", days=days[0])
        intermediate = make_ca("i", issuer=root, days=days[1])
        leaf = issue(intermediate, "l", client=True, days=days[2])
        identity = snapshot(tmp_path / str(days), (root, intermediate), None)
        who = peer(identity, leaf, tmp_path)
        end = min(one.certificate.not_valid_after_utc.timestamp() for one in (root, intermediate, leaf))
        start = max(one.certificate.not_valid_before_utc.timestamp() for one in (root, intermediate, leaf))
        assert not is_good(who, identity, start - 1)
        assert is_good(who, identity, start)
        assert is_good(who, identity, end - 1)
        assert not is_good(who, identity, end)


def test_a_crl_that_ends_takes_its_clients_along(tmp_path: Path) -> None:
    """Time alone makes a peer bad: when the CRL of one of its issuers ends, and only that one's."""
    world = pki()
    start = devcerts.now() - datetime.timedelta(minutes=1)
    lists = make_crl(world.root) + make_crl(world.intermediate, this_update=start, days=1)
    identity = snapshot(tmp_path, (world.root, world.intermediate), crl=lists)
    end = identity.crl_next_update
    assert end is not None
    client, direct = peer(identity, world.client, tmp_path), peer(identity, world.direct, tmp_path)
    assert is_good(client, identity, end - 1)
    assert not is_good(client, identity, end)
    assert is_good(direct, identity, end)
    assert is_good(client, identity, start.timestamp())
    assert not is_good(client, identity, start.timestamp() - 1)
    assert is_good(direct, identity, start.timestamp() - 1)


def test_an_unreadable_chain_is_not_good(everybody: Identity) -> None:
    """A certificate which the parser does not take, whatever OpenSSL made of it, is judged as not good."""
    assert not is_good(Peer((b"\x30\x03abc", pki().root.der)), everybody)


@cache
def checked() -> Identity:
    """Return a snapshot with CRLs."""
    with TemporaryDirectory() as name:
        return snapshot(Path(name), (pki().root, pki().intermediate))


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@given(at=st.integers(0, 399), value=st.integers(0, 255))
def test_broken_leaves_are_judged(at: int, value: int) -> None:
    """Whatever byte of a leaf is changed, its names can be asked for and its judgement is a yes or a no."""
    _, good = let_in()[0]
    leaf = bytearray(good.chain[0])
    leaf[at % len(leaf)] = value
    who = Peer((bytes(leaf), *good.chain[1:]))
    is_good(who, checked())
    assert all(isinstance(one, str) for one in who.names.uris | who.names.dns)


def test_parsed_once(everybody: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer costs a digest until it is judged; each certificate is parsed once, for all judgements and all peers."""
    peer_module._link.cache_clear()
    parsed: list[bytes] = []
    real = x509.load_der_x509_certificate

    def parse(data: bytes) -> x509.Certificate:
        parsed.append(data)
        return real(data)

    monkeypatch.setattr(x509, "load_der_x509_certificate", parse)
    who = peer(everybody, pki().client, tmp_path)
    assert parsed == []
    later = snapshot(tmp_path / "later", (pki().root, pki().intermediate), previous=everybody)
    for identity in (everybody, later, everybody, later):
        assert is_good(who, identity)
    assert is_good(peer(everybody, pki().client, tmp_path), everybody)
    assert parsed == list(who.chain)


@cache
def let_in() -> list[tuple[Pair, Peer]]:
    """Return the world's clients with their chains, as verified under the snapshot that trusts everybody."""
    world = pki()
    with TemporaryDirectory() as name:
        identity = snapshot(Path(name), (world.root, world.intermediate, world.other_root), None)
        return [(pair, peer(identity, pair, Path(name))) for pair in (world.client, world.direct, world.stranger)]


@settings(max_examples=40)
@given(data=st.data())
def test_judgement_agrees_with_a_fresh_handshake(data: st.DataObject) -> None:
    """For any client CA file, with or without CRLs, and any certificates revoked: the kept connection is judged as
    OpenSSL judges a new one.
    """
    world = pki()
    roots = [world.root, world.other_root]
    trusted = data.draw(st.lists(st.sampled_from(roots), min_size=1, unique=True))
    if data.draw(st.booleans()):
        trusted.append(world.intermediate)
    everyone = [*roots, world.intermediate, world.client, world.direct, world.stranger]
    revoked = data.draw(st.none() | st.lists(st.sampled_from(everyone), max_size=2, unique=True).map(tuple))
    with TemporaryDirectory() as name:
        identity = snapshot(Path(name), tuple(trusted), revoked)
        for pair, kept in let_in():
            fresh = False
            with suppress(ssl.SSLError):
                shake(identity.context, world.client_context(pair, Path(name)))
                fresh = True
            assert is_good(kept, identity) is fresh
