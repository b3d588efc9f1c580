"""sidecar/identity.py: what may be an identity, whatever is wrong with its files, and what its context then does."""

import datetime
import os
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric import x25519 as x25519_keys
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar import devcerts
from sidecar.devcerts import Pair, issue, make_ca, make_crl
from sidecar.identity import _self_test, build, load
from sidecar.identityfiles import FILE_BYTES, IdentityFiles, Material, read
from sidecar.reload import IdentityHolder
from sidecar.trust import Fault, Finding, IdentityFault, Role
from tests.kit.exceptions import said
from tests.kit.pki import (
    Pki,
    armoured,
    der_blocks,
    oddly_named,
    pki,
    put,
    put_server,
    put_trust,
    server,
    shake,
)

DAY = datetime.timedelta(days=1)
OLD = devcerts.now() - 30 * DAY
SOON = devcerts.now() + DAY
Break = Callable[[Pki, IdentityFiles], object]


def fifo(path: str) -> None:
    """Put a FIFO in the file's place."""
    os.unlink(path)
    os.mkfifo(path)


def directory(path: str) -> None:
    """Put a directory in the file's place."""
    os.unlink(path)
    os.mkdir(path)


def loop(path: str) -> None:
    """Put a link to itself in the file's place: unreadable for root too."""
    os.unlink(path)
    os.symlink(os.path.basename(path), path)


def forged_chain(world: Pki, files: IdentityFiles) -> None:
    """Put a leaf before an intermediate that bears its issuer's name and has not signed it."""
    leaf = server(world.intermediate)
    put_server(files, leaf)
    put(files.certificate, leaf.pem + make_ca("test intermediate", issuer=world.root).pem)


def encrypted(pair: Pair) -> bytes:
    """Return the pair's key under a passphrase."""
    return pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))


def delta(ca: Pair) -> bytes:
    """Return a CRL that only says what changed since number 5."""
    return make_crl(ca, number=9, extensions=[(x509.DeltaCRLIndicator(5), True)])


def v1_root() -> bytes:
    """Return a self-signed certificate without any extension, as roots were made long ago."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "old root")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, devcerts.now() - DAY, devcerts.now() + DAY)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def x25519(files: IdentityFiles) -> None:
    """Put a key that cannot sign, and its certificate."""
    key = x25519_keys.X25519PrivateKey.generate()
    root = pki().root
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x25519")])
    builder = x509.CertificateBuilder(
        root.certificate.subject, subject, key.public_key(), 1, devcerts.now() - DAY, devcerts.now() + DAY
    )
    put(files.certificate, builder.sign(root.key, SHA256()).public_bytes(Encoding.PEM))
    put(files.private_key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def odd(pem: bytes) -> bytes:
    """A file whose names the parser cannot make anything of; it says so with a TypeError."""
    return b"".join(armoured(label, oddly_named(der)) for label, der in der_blocks(pem))


# The valid world with one fact broken: the file at fault, the fault, and how it was brought about.
BREAKS: list[tuple[Role, Fault, Break]] = [
    (Role.CLIENT_CA, Fault.MISSING, lambda w, f: os.unlink(f.client_ca)),
    (Role.CLIENT_CRL, Fault.MISSING, lambda w, f: os.unlink(str(f.client_crl))),
    (Role.CLIENT_CA, Fault.UNREADABLE, lambda w, f: loop(f.client_ca)),
    (Role.CERTIFICATE, Fault.NOT_REGULAR, lambda w, f: fifo(f.certificate)),
    (Role.CERTIFICATE, Fault.NOT_REGULAR, lambda w, f: directory(f.certificate)),
    (Role.CLIENT_CA, Fault.TOO_LARGE, lambda w, f: put(f.client_ca, w.ca_pem.ljust(FILE_BYTES + 1, b"\n"))),
    (Role.PRIVATE_KEY, Fault.KEY_MODE, lambda w, f: os.chmod(f.private_key, 0o604)),
    (Role.PRIVATE_KEY, Fault.KEY_MALFORMED, lambda w, f: put(f.private_key, b"")),
    (Role.PRIVATE_KEY, Fault.KEY_MALFORMED, lambda w, f: put(f.private_key, w.server.key_pem[:-40])),
    (Role.PRIVATE_KEY, Fault.KEY_ENCRYPTED, lambda w, f: put(f.private_key, encrypted(w.server))),
    (Role.PRIVATE_KEY, Fault.KEY_MISMATCH, lambda w, f: put(f.private_key, w.client.key_pem)),
    (Role.CERTIFICATE, Fault.CERTIFICATE_MALFORMED, lambda w, f: put(f.certificate, b"")),
    (Role.CERTIFICATE, Fault.CERTIFICATE_MALFORMED, lambda w, f: put(f.certificate, w.server.der)),
    (Role.CERTIFICATE, Fault.CERTIFICATE_MALFORMED, lambda w, f: put(f.certificate, w.server.pem[:-30])),
    (Role.CERTIFICATE, Fault.CERTIFICATE_MALFORMED, lambda w, f: put(f.certificate, w.server.pem + w.server.key_pem)),
    (Role.CERTIFICATE, Fault.CERTIFICATE_MALFORMED, lambda w, f: put(f.certificate, odd(w.server.pem))),
    (Role.CERTIFICATE, Fault.CERTIFICATE_ORDER, lambda w, f: put(f.certificate, w.server.pem + w.intermediate.pem)),
    (Role.CERTIFICATE, Fault.CERTIFICATE_ORDER, forged_chain),
    (Role.CERTIFICATE, Fault.CERTIFICATE_EXPIRED, lambda w, f: put_server(f, server(w.root, OLD))),
    (
        Role.CERTIFICATE,
        Fault.CERTIFICATE_EXPIRED,
        lambda w, f: put_server(f, server(make_ca("old", issuer=w.root, not_before=OLD))),
    ),
    (Role.CERTIFICATE, Fault.CERTIFICATE_NOT_YET_VALID, lambda w, f: put_server(f, server(w.root, SOON))),
    (Role.CERTIFICATE, Fault.HANDSHAKE, lambda w, f: put_server(f, w.client)),
    (Role.CERTIFICATE, Fault.HANDSHAKE, lambda w, f: x25519(f)),
    (Role.CLIENT_CA, Fault.CA_MALFORMED, lambda w, f: put(f.client_ca, w.ca_pem.replace(b"\nMI", b"\n!!"))),
    (Role.CLIENT_CA, Fault.CA_MALFORMED, lambda w, f: put(f.client_ca, w.ca_pem + make_crl(w.root))),
    (Role.CLIENT_CA, Fault.CA_MALFORMED, lambda w, f: put(f.client_ca, w.ca_pem + w.root.pem[:-30])),
    (Role.CLIENT_CA, Fault.CA_MALFORMED, lambda w, f: put(f.client_ca, w.ca_pem.replace(b" CERT", b" TRUSTED CERT"))),
    (Role.CLIENT_CA, Fault.CA_MALFORMED, lambda w, f: put(f.client_ca, w.root.pem + odd(w.intermediate.pem))),
    (Role.CLIENT_CA, Fault.CA_COUNT, lambda w, f: put(f.client_ca, w.root.der)),
    (Role.CLIENT_CA, Fault.CA_COUNT, lambda w, f: put_trust(f, *(make_ca(f"ca {n}") for n in range(17)))),
    (Role.CLIENT_CA, Fault.CA_NOT_A_CA, lambda w, f: put_trust(f, w.root, w.client)),
    (Role.CLIENT_CA, Fault.CA_NOT_A_CA, lambda w, f: put(f.client_ca, w.ca_pem + v1_root())),
    (Role.CLIENT_CA, Fault.CA_EXPIRED, lambda w, f: put_trust(f, w.root, make_ca("old", not_before=OLD))),
    (Role.CLIENT_CA, Fault.CA_NOT_YET_VALID, lambda w, f: put_trust(f, w.root, make_ca("new", not_before=SOON))),
    (Role.CLIENT_CA, Fault.CA_NO_ROOT, lambda w, f: put_trust(f, w.intermediate)),
    (Role.CLIENT_CA, Fault.CA_NO_CRL_SIGN, lambda w, f: put_trust(f, w.root, make_ca("mute", crl_sign=False))),
    (Role.CLIENT_CRL, Fault.CRL_MALFORMED, lambda w, f: put(f.client_crl, b"no list")),
    (Role.CLIENT_CRL, Fault.CRL_MALFORMED, lambda w, f: put(f.client_crl, odd(w.crl_pem(number=9)))),
    (Role.CLIENT_CRL, Fault.CRL_COUNT, lambda w, f: put(f.client_crl, b"\n")),
    (Role.CLIENT_CRL, Fault.CRL_MISSING, lambda w, f: put(f.client_crl, make_crl(w.root, number=9))),
    (Role.CLIENT_CRL, Fault.CRL_FOREIGN, lambda w, f: put(f.client_crl, w.crl_pem(number=9) + make_crl(w.other_root))),
    (Role.CLIENT_CRL, Fault.CRL_SIGNATURE, lambda w, f: put_trust(f, w.root, crl=make_crl(w.root, signed_by=w.client))),
    (Role.CLIENT_CRL, Fault.CRL_REPEATED, lambda w, f: put(f.client_crl, w.crl_pem(number=9) + make_crl(w.root))),
    (Role.CLIENT_CRL, Fault.CRL_EXPIRED, lambda w, f: put_trust(f, w.root, crl=make_crl(w.root, this_update=OLD))),
    (
        Role.CLIENT_CRL,
        Fault.CRL_NOT_YET_VALID,
        lambda w, f: put_trust(f, w.root, crl=make_crl(w.root, this_update=SOON)),
    ),
    (Role.CLIENT_CRL, Fault.CRL_ROLLBACK, lambda w, f: put(f.client_crl, w.crl_pem(number=4))),
    (Role.CLIENT_CRL, Fault.CRL_UNSUPPORTED, lambda w, f: put_trust(f, w.root, crl=delta(w.root))),
]


@pytest.fixture
def files(tmp_path: Path) -> IdentityFiles:
    """The four files of the valid world, CRLs with number 5."""
    return pki().write(tmp_path / "tls-canary", crl=pki().crl_pem(number=5))


@pytest.mark.parametrize(("role", "fault", "break_it"), BREAKS, ids=[f"{r.value}-{f.code}" for r, f, _ in BREAKS])
def test_each_fault_is_named_and_changes_nothing(
    role: Role, fault: Fault, break_it: Break, files: IdentityFiles, tmp_path: Path
) -> None:
    """A broken file is refused with its own fault, the last good snapshot stays and serves, nothing of it is told."""
    world = pki()
    holder = IdentityHolder(files)
    before = holder.current
    break_it(world, files)
    assert not holder.reload()
    assert holder.last_fault == Finding(role, fault)
    assert {found.role for found in holder.faults} == {role}
    assert (holder.current, holder.reloads, holder.reload_failures) == (before, 0, 1)
    assert shake(holder.current.context, world.client_context(world.client, tmp_path)).version() == "TLSv1.3"
    with pytest.raises(IdentityFault) as caught:
        load(files, before)
    assert caught.value.faults == holder.faults
    text = said(caught.value)
    assert role.variable in text
    assert fault.mend in text
    for secret in ("canary", "localhost", "test root", *world.server.key_pem.decode().splitlines()[1:-1]):
        assert secret not in text


@pytest.mark.parametrize("role", [Role.PRIVATE_KEY, Role.CERTIFICATE, Role.CLIENT_CA, Role.CLIENT_CRL])
@pytest.mark.parametrize("mark", [b"?", b"=", b"\n", b""])
def test_a_damaged_file_is_not_echoed(role: Role, mark: bytes, files: IdentityFiles) -> None:
    """What a parser says of a file that it cannot read echoes the file, a key's too; nothing of that is left."""
    path = dict(zip(Role, (files.private_key, files.certificate, files.client_ca, files.client_crl), strict=True))[role]
    assert path is not None
    good = Path(path).read_bytes()
    begin = good.index(b"\n") + 1
    for at in range(begin, begin + 80, 3):
        put(path, good[:at] + mark + good[at + 1 :])
        try:
            load(files)
        except IdentityFault as fault:
            text = said(fault)
            assert not any(good[start : start + 12].decode() in text for start in range(begin, begin + 200))


def test_every_fault_has_its_test() -> None:
    """No member of the closed list is without a case: above, or in the two tests below that need more than files."""
    assert {fault for _, fault, _ in BREAKS} | {Fault.CHANGING, Fault.RESOURCES} == set(Fault)
    assert len({fault.code for fault in Fault}) == len(Fault)


def test_all_faults_are_listed_together(files: IdentityFiles) -> None:
    """What is wrong with the files themselves is listed at once, and so is what is wrong with their contents."""
    os.chmod(files.private_key, 0o620)
    os.unlink(files.client_ca)
    with pytest.raises(IdentityFault) as caught:
        load(files)
    assert caught.value.faults == (Finding(Role.PRIVATE_KEY, Fault.KEY_MODE), Finding(Role.CLIENT_CA, Fault.MISSING))

    put(files.private_key, pki().client.key_pem)
    put(files.certificate, server(pki().other_root, OLD).pem)
    put_trust(files, make_ca("old", not_before=OLD, crl_sign=False))
    with pytest.raises(IdentityFault) as caught:
        load(files)
    assert caught.value.faults == (
        Finding(Role.CERTIFICATE, Fault.CERTIFICATE_EXPIRED),
        Finding(Role.CLIENT_CA, Fault.CA_EXPIRED),
        Finding(Role.CLIENT_CA, Fault.CA_NO_CRL_SIGN),
    )
    assert len(str(caught.value).splitlines()) == 3


def test_limits_are_inclusive(files: IdentityFiles) -> None:
    """A file of exactly 1 MiB, 16 CAs and 16 CRLs are accepted; comments between certificates are no fault."""
    authorities = [pki().root, *(make_ca(f"ca {n}") for n in range(15))]
    put_trust(files, *authorities)
    put(files.client_ca, b"# of 16\n" + Path(files.client_ca).read_bytes().ljust(FILE_BYTES - 8, b"\n"))
    assert os.stat(files.client_ca).st_size == FILE_BYTES
    assert len(load(files).issuers) == 16


def test_a_repeated_ca_counts_once(files: IdentityFiles) -> None:
    """A bundle that holds a CA twice is the bundle that holds it once."""
    put(files.client_ca, pki().ca_pem * 10)
    assert len(load(files).issuers) == 2


def test_snapshot(files: IdentityFiles) -> None:
    """A snapshot says when its certificates and CAs end, the earliest of each, and which one it is."""
    world = pki()
    short = make_ca("short", days=2)
    leaf = issue(world.root, "localhost", server=True, days=3)
    put_server(files, leaf)
    put_trust(files, world.root, short)
    first = load(files)
    assert first.certificate_not_after == leaf.certificate.not_valid_after_utc.timestamp()
    assert first.certificate_not_before == leaf.certificate.not_valid_before_utc.timestamp()
    assert first.ca_not_after == short.certificate.not_valid_after_utc.timestamp()
    second = load(files, first)
    assert (first.generation, second.generation) == (1, 2)
    assert second.digest == first.digest
    assert second.context is not first.context
    put(files.client_crl, Path(str(files.client_crl)).read_bytes() + b"\n")
    assert load(files, first).digest != first.digest


@pytest.mark.parametrize("which", ["leaf", "intermediate", "client CA"])
def test_tls_readiness_follows_the_clock(which: str, files: IdentityFiles) -> None:
    """Time alone fails `tls` when a certificate of the server or a client CA ends, whichever comes first."""
    start = devcerts.now() - datetime.timedelta(minutes=1)

    def times(name: str) -> dict[str, Any]:
        return {"days": 1, "not_before": start} if name == which else {}

    middle = make_ca("middle", issuer=pki().root, **times("intermediate"))
    put_server(files, issue(middle, "localhost", server=True, **times("leaf")))
    put_trust(files, pki().root, make_ca("other", **times("client CA")))
    snapshot = load(files)
    begin, end = start.timestamp(), (start + DAY).timestamp()
    assert snapshot.tls_ok(begin)
    assert snapshot.tls_ok(end - 1)
    assert not snapshot.tls_ok(begin - 1)
    assert not snapshot.tls_ok(end)
    assert min(snapshot.certificate_not_after, snapshot.ca_not_after) == end


def test_crl_readiness_follows_the_clock(files: IdentityFiles) -> None:
    """Time alone fails `crl` when one CRL ends, or lies ahead of a clock set back; without a file it is off."""
    start = devcerts.now() - datetime.timedelta(minutes=1)
    crls = make_crl(pki().root) + make_crl(pki().intermediate, this_update=start, days=1)
    put_trust(files, pki().root, pki().intermediate, crl=crls)
    snapshot = load(files)
    end = (start + DAY).timestamp()
    assert snapshot.crl_next_update == end
    assert snapshot.crl_ok(start.timestamp()) is True
    assert snapshot.crl_ok(end - 1) is True
    assert snapshot.crl_ok(end) is False
    assert snapshot.crl_ok(start.timestamp() - 1) is False
    bare = load(IdentityFiles(files.private_key, files.certificate, files.client_ca, None))
    assert bare.crl_ok(end) is None
    assert bare.crl_next_update is None


def test_without_crls_a_ca_need_not_sign_them(files: IdentityFiles) -> None:
    """A CA that may not sign CRLs is no fault where no CRL file is set."""
    mute = make_ca("mute", crl_sign=False)
    put(files.client_ca, mute.pem)
    bare = IdentityFiles(files.private_key, files.certificate, files.client_ca, None)
    assert set(load(bare).issuers) == {mute.der}


def test_load_judges_at_the_time_it_is_given(files: IdentityFiles) -> None:
    """`now` decides about dates: the very files that are good today are refused after their end."""
    with pytest.raises(IdentityFault) as caught:
        load(files, now=load(files).ca_not_after)
    assert {found.fault for found in caught.value.faults} == {
        Fault.CERTIFICATE_EXPIRED,
        Fault.CA_EXPIRED,
    }


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@settings(max_examples=300)
@given(role=st.sampled_from(Role), changes=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), min_size=1))
def test_broken_bytes_are_a_fault_or_harmless(role: Role, changes: list[tuple[int, int]]) -> None:
    """Whatever bytes of a key, certificate or CRL are changed, the outcome is a snapshot or an IdentityFault."""
    world = pki()
    content = {
        Role.PRIVATE_KEY: world.server.key_pem,
        Role.CERTIFICATE: world.server.pem,
        Role.CLIENT_CA: world.root.pem,
        Role.CLIENT_CRL: make_crl(world.root, [world.client.serial]),
    }
    first, *body, last = content[role].splitlines()
    der = bytearray(b64decode(b"".join(body)))
    for at, value in changes:
        der[at % len(der)] = value
    content[role] = b"\n".join((first, b64encode(der), last))
    with (
        suppress(IdentityFault),
        Material({role: bytearray(part) for role, part in content.items()}) as material,
    ):
        assert build(material, None, time.time()).generation == 1


def test_no_memory_file(files: IdentityFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that gives no memory file is a fault with its own mend, not a crash."""

    def refuse(name: str, flags: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(IdentityFault) as caught:
        load(files)
    assert caught.value.faults == (Finding(Role.CERTIFICATE, Fault.RESOURCES),)


def test_an_old_kernel_knows_fewer_flags(files: IdentityFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the flag of newer kernels is refused, the identity loads without it."""
    real = os.memfd_create
    asked: list[int] = []

    def create(name: str, flags: int) -> int:
        asked.append(flags)
        if flags != os.MFD_CLOEXEC:
            raise OSError(22, "EINVAL")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", create)
    assert load(files).generation == 1
    assert asked.count(os.MFD_CLOEXEC) == 2


# --------------------------------------------------------------------------------------------------- the key's way


def test_the_bytes_judged_are_the_bytes_used(files: IdentityFiles, tmp_path: Path) -> None:
    """Files replaced after they were read change nothing: the context shows the certificate that was judged."""
    world = pki()
    with read(files) as material:
        put_server(files, server(world.root))
        snapshot = build(material, None, time.time())
    client = world.client_context(world.client, tmp_path)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = snapshot.context.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for side in (theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert theirs.getpeercert(True) == world.server.der


@pytest.mark.parametrize("good", [True, False], ids=["good", "refused"])
def test_the_key_stays_in_no_file(
    good: bool, files: IdentityFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory files are zeros when they are closed, none stays open, no other file is written, the buffer is wiped."""
    if not good:
        put_server(files, pki().client)
    closed: list[bytes] = []
    created: list[int] = []
    real_close, real_create = os.close, os.memfd_create

    def close(fd: int) -> None:
        if fd in created:
            closed.append(os.pread(fd, 1 << 20, 0))
            created.remove(fd)
        real_close(fd)

    def create(name: str, flags: int) -> int:
        created.append(real_create(name, flags))
        return created[-1]

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(os, "close", close)
    monkeypatch.setattr(os, "memfd_create", create)
    with read(files) as material:
        key = material.content[Role.PRIVATE_KEY]
        assert b"PRIVATE KEY" in key
        if good:
            build(material, None, time.time())
        else:
            with pytest.raises(IdentityFault):
                build(material, None, time.time())
    assert created == []
    assert len(closed) == 2
    assert all(content and not any(content) for content in closed)
    assert not any(key)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd_open(fd)]
    assert not any("memfd:identity" in link for link in links)


def fd_open(fd: str) -> bool:
    """Tell whether the descriptor is (still) open; the one that listed them is not."""
    return os.path.lexists(f"/proc/self/fd/{fd}")


# ------------------------------------------------------------------------------------------------------ the context


@pytest.mark.parametrize("with_crl", [True, False])
def test_context(with_crl: bool, tmp_path: Path) -> None:
    """TLS 1.3 only, client certificate required, no tickets, plaintext cleansed, CRLs for the whole chain."""
    context = load(pki().write(tmp_path, crl=pki().crl_pem() if with_crl else None)).context
    assert context.minimum_version == context.maximum_version == ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET
    assert context.options & 0x2
    assert bool(context.verify_flags & ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN) is with_crl
    assert not context.verify_flags & ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN


def test_gate(files: IdentityFiles, tmp_path: Path) -> None:
    """Who shows a certificate of a client CA gets in; nobody else does: none, a stranger's, a server's, TLS 1.2."""
    world = pki()
    context = load(files).context
    for good in (world.client, world.direct):
        assert shake(context, world.client_context(good, tmp_path)).getpeercert(True) == good.der
    for bad in (None, world.stranger, world.server):
        with pytest.raises(ssl.SSLError):
            shake(context, world.client_context(bad, tmp_path))
    old = world.client_context(world.client, tmp_path)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(context, old)


def test_the_self_test_finds_an_open_gate(files: IdentityFiles) -> None:
    """A context that would let a client in without a certificate does not pass the self-test."""
    context = load(files).context
    _self_test(context, pki().server.certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    with pytest.raises(IdentityFault) as caught:
        _self_test(context, pki().server.certificate)
    assert caught.value.faults == (Finding(Role.CERTIFICATE, Fault.HANDSHAKE),)


def test_a_server_certificate_of_an_intermediate(files: IdentityFiles, tmp_path: Path) -> None:
    """The certificate file's intermediates are sent: a client that knows only the root accepts the server."""
    world = pki()
    leaf = server(world.intermediate)
    put_server(files, leaf)
    assert leaf.above == (world.intermediate.certificate,)
    assert shake(load(files).context, world.client_context(world.direct, tmp_path)).version() == "TLSv1.3"
