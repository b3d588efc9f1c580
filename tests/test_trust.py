"""sidecar/trust.py: the closed list of faults, PEM files, and which certificates may be client CAs."""

import re
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.devcerts import issue, make_ca
from sidecar.trust import (
    Fault,
    Finding,
    IdentityFault,
    Role,
    authorities,
    certificates,
    collecting,
    issued_in_order,
    pem_blocks,
)
from tests.kit.pki import pki

CERTIFICATE = b"CERTIFICATE"


def test_faults_are_a_closed_list() -> None:
    """Each fault has a code of its own, fit for a label, and a mend of one line; roles name contract variables."""
    assert len({fault.code for fault in Fault}) == len(Fault)
    assert all(re.fullmatch("[a-z_]{1,32}", fault.code) for fault in Fault)
    assert all(fault.mend and "\n" not in fault.mend for fault in Fault)
    assert {role.variable for role in Role} == {
        "QL3_WORKER_INGRESS_TLS_PRIVATE_KEY_FILE",
        "QL3_WORKER_INGRESS_TLS_CERTIFICATE_FILE",
        "QL3_WORKER_INGRESS_TLS_CLIENT_CA_FILE",
        "QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE",
    }


def test_text_of_a_fault() -> None:
    """A line for each finding, once: variable, mend, code."""
    missing, mode = Finding(Role.CLIENT_CA, Fault.MISSING), Finding(Role.PRIVATE_KEY, Fault.KEY_MODE)
    fault = IdentityFault(missing, mode, missing)
    assert fault.faults == (missing, mode)
    assert str(fault).splitlines() == [
        f"QL3_WORKER_INGRESS_TLS_CLIENT_CA_FILE: {Fault.MISSING.mend} [missing]",
        f"QL3_WORKER_INGRESS_TLS_PRIVATE_KEY_FILE: {Fault.KEY_MODE.mend} [key_mode]",
    ]


def test_collecting() -> None:
    """Faults are gathered, other errors pass."""
    found: list[Finding] = []

    def fail() -> None:
        raise IdentityFault(Finding(Role.CLIENT_CA, Fault.MISSING))

    with collecting(found):
        fail()
    assert found == [Finding(Role.CLIENT_CA, Fault.MISSING)]
    with pytest.raises(KeyError), collecting(found):
        raise KeyError


def test_pem_blocks_and_comments() -> None:
    """Blocks of one label are found in their order; text between them passes where comments are allowed only."""
    one, two = pki().root.pem, pki().intermediate.pem
    assert pem_blocks(one + b"\r\n\t " + two, CERTIFICATE, comments=False) == [one.strip(), two.strip()]
    assert pem_blocks(b"# one\n" + one + b"subject: two\n" + two, CERTIFICATE, comments=True) == [
        one.strip(),
        two.strip(),
    ]
    with pytest.raises(ValueError, match="not the PEM blocks"):
        pem_blocks(b"# one\n" + one, CERTIFICATE, comments=False)


@pytest.mark.parametrize("comments", [True, False])
def test_pem_blocks_refused(comments: bool) -> None:
    """Another label and an unfinished block are refused, with or without comments, wherever they stand."""
    good = pki().root.pem
    for bad in (
        pki().root.key_pem,
        good.replace(b"END CERT", b"END X509 CERT"),
        good[:-20],
        good[10:],
        b"-----BEGIN CERTIFICATE-----\n",
        b"-----END CERTIFICATE-----\n",
    ):
        for data in (bad, good + bad, bad + good):
            with pytest.raises(ValueError, match="not the PEM blocks"):
                pem_blocks(data, CERTIFICATE, comments=comments)


@given(
    st.binary()
    | st.lists(st.sampled_from([b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----", b"-", b"A", b"\n"])).map(
        b"".join
    )
)
def test_any_bytes_are_blocks_or_refused(data: bytes) -> None:
    """Any bytes are a list of certificates, possibly empty, or a ValueError."""
    with suppress(ValueError):
        assert certificates(data) == []


def test_order_of_a_chain() -> None:
    """A chain is in order when each certificate was issued, by name and signature, by the one after it."""
    world = pki()
    leaf, middle, root = (one.certificate for one in (world.client, world.intermediate, world.root))
    namesake = make_ca("test intermediate", issuer=world.root).certificate
    for good in ([], [leaf], [leaf, middle], [leaf, middle, root], [root, root]):
        assert issued_in_order(good)
    for bad in ([middle, leaf], [leaf, root], [leaf, root, middle], [leaf, namesake], [leaf, leaf]):
        assert not issued_in_order(bad)


def test_authorities() -> None:
    """Client CAs are returned in their order, each once."""
    world = pki()
    data = world.ca_pem + world.root.pem
    assert authorities(data, time.time(), sign_crls=True) == [world.root.certificate, world.intermediate.certificate]


def test_times_of_a_client_ca() -> None:
    """A client CA is good from its first moment up to, not including, its last one."""
    ca = make_ca("short", days=1)
    begin = ca.certificate.not_valid_before_utc.timestamp()
    end = ca.certificate.not_valid_after_utc.timestamp()
    for now in (begin, end - 1):
        assert authorities(ca.pem, now, sign_crls=True) == [ca.certificate]
    for now, fault in ((begin - 1, Fault.CA_NOT_YET_VALID), (end, Fault.CA_EXPIRED)):
        with pytest.raises(IdentityFault) as caught:
            authorities(ca.pem, now, sign_crls=True)
        assert caught.value.faults == (Finding(Role.CLIENT_CA, fault),)


def test_a_leaf_among_the_cas() -> None:
    """A leaf is no client CA, not even one that signed itself."""
    key = make_ca("self").key
    leaf = issue(make_ca("self", key=key), "self", key=key)
    with pytest.raises(IdentityFault) as caught:
        authorities(leaf.pem, time.time(), sign_crls=False)
    assert caught.value.faults == (Finding(Role.CLIENT_CA, Fault.CA_NOT_A_CA),)
