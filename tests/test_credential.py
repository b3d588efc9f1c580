"""provider/credential.py: a good credential of this worker, or one refusal that says nothing."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.credential import (
    CredentialRow,
    PeerNames,
    Pepper,
    Peppers,
    Presented,
    Principal,
    authenticate,
    make_token,
    present,
    valid_credential_id,
    valid_worker_id,
)
from provider.outcomes import Reason, Refused
from tests.kit.exceptions import said
from tests.test_refs import VECTORS

CREDENTIALS: list[dict[str, str]] = VECTORS["credentials"]
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
LAST = b"AEIMQUYcgkosw048"
FIRST_OF_ID = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
REST_OF_ID = FIRST_OF_ID + b"._:-"
SECRET = bytes(range(100, 132))
PEPPER = Pepper.parse(CREDENTIALS[0]["pepper"])
OTHER = Pepper.parse(base64.urlsafe_b64encode(bytes(range(32, 64)))[:43].decode())
PRESENTED = Presented("cred_1", SECRET)
ROW = CredentialRow("cred_1", 3, "worker-1", PEPPER.digest("cred_1", SECRET), "active", 1_000, 2_000)
NOW = 1_500


def principal(
    row: CredentialRow | None = ROW,
    *,
    worker_id: str = "worker-1",
    presented: Presented = PRESENTED,
    now: int = NOW,
    peppers: Peppers = Peppers(PEPPER, None),  # noqa: B008 - frozen
    binding: PeerNames | None = None,
) -> Principal:
    """Authenticate in a valid world in which a test breaks one fact."""
    return authenticate(presented, worker_id, row, now, peppers, binding)


def refusal(judge: Callable[[], object]) -> Reason:
    """The reason for which `judge` refuses; fails when it does not, or says anything else."""
    with pytest.raises(Refused) as caught:
        judge()
    assert caught.value.__context__ is None
    assert str(caught.value) == caught.value.reason.name
    return caught.value.reason


def unauthenticated(judge: Callable[[], object]) -> bool:
    """Whether `judge` refuses as every failed authentication does."""
    return refusal(judge) is Reason.UNAUTHENTICATED


# --- the presented credential ----------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", CREDENTIALS, ids=lambda vector: str(vector["credentialId"]))
def test_vectors(vector: dict[str, str]) -> None:
    """Every vector's token is read to its id, digested as the store holds it, and written again."""
    shown = present(b"Worker " + vector["token"].encode())
    assert shown.credential_id == vector["credentialId"]
    assert Pepper.parse(vector["pepper"]).digest(shown.credential_id, shown.secret) == vector["digest"]
    assert make_token(shown.credential_id, shown.secret) == vector["token"]


ids = st.from_regex("[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", fullmatch=True, alphabet=st.characters(max_codepoint=127))


@given(ids, st.binary(min_size=32, max_size=32))
def test_make_and_present_are_inverse(credential_id: str, secret: bytes) -> None:
    """Any id, with `_` anywhere, and any 32 bytes come back from the token they make."""
    shown = present(f"Worker {make_token(credential_id, secret)}".encode())
    assert (shown.credential_id, shown.secret) == (credential_id, secret)


@given(st.binary(max_size=140) | st.binary(max_size=60).map(b"Worker ql3w_".__add__))
def test_any_bytes_are_a_credential_or_refused(header: bytes) -> None:
    """Whatever the header's bytes, they spell the credential that they are read as, or are refused."""
    try:
        shown = present(header)
    except Refused as refused:
        assert refused.reason is Reason.UNAUTHENTICATED
    else:
        assert header == b"Worker " + make_token(shown.credential_id, shown.secret).encode()


def test_the_last_43_characters_are_the_secret() -> None:
    """An id may look like a secret with `_` before it: the secret is what stands last."""
    secret = base64.urlsafe_b64encode(SECRET)[:43].decode()
    credential_id = "a_" + secret
    shown = present(f"Worker ql3w_{credential_id}_{secret}".encode())
    assert (shown.credential_id, shown.secret) == (credential_id, SECRET)


def test_every_byte_value_at_every_position_of_the_token() -> None:
    """Of all 256 byte values each position takes exactly its alphabet, the secret's last one only 16 of them."""
    good = b"Worker ql3w_ab_" + base64.urlsafe_b64encode(SECRET)[:43]
    allowed = [bytes([value]) for value in b"Worker ql3w_"]
    allowed += [FIRST_OF_ID, REST_OF_ID + b"_", b"_"] + [ALPHABET] * 42 + [LAST]
    assert len(allowed) == len(good)
    for at, alphabet in enumerate(allowed):
        for value in range(256):
            header = good[:at] + bytes([value]) + good[at + 1 :]
            if value in alphabet:
                assert make_token(present(header).credential_id, present(header).secret).encode() == header[7:]
            else:
                assert unauthenticated(partial(present, header))


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Worker",
        b"Worker ",
        b"Worker ql3w_",
        b"Worker  %s",
        b"Worker\t%s",
        b" Worker %s",
        b"Worker %s ",
        b"Worker %s\n",
        b"worker %s",
        b"WORKER %s",
        b"Bearer %s",
        b"Worker %s=",
        b"Worker %s, Worker %s",
        b"Worker %s %s",
        b"%s",
        b"Worker x%s",
        b"Worker QL3W_%s",
    ],
)
def test_the_header_is_exact(header: bytes | None) -> None:
    """The scheme is case-sensitive, one space follows, then the token and nothing else."""
    token = CREDENTIALS[0]["token"].encode()
    assert present(b"Worker %s" % token).credential_id == "worker_primary"
    assert unauthenticated(lambda: present(header and header.replace(b"%s", token)))


@pytest.mark.parametrize(("length", "good"), [(0, False), (1, True), (63, True), (64, True), (65, False)])
def test_a_credential_id_has_1_to_64_characters(length: int, good: bool) -> None:
    """Ids of 1..64 characters are read and written, others not."""
    credential_id = "a" * length
    assert valid_credential_id(credential_id) is good
    header = f"Worker ql3w_{credential_id}_{'A' * 43}".encode()
    if good:
        assert present(header).credential_id == credential_id
    else:
        assert unauthenticated(lambda: present(header))


@pytest.mark.parametrize(("length", "good"), [(0, False), (1, True), (127, True), (128, True), (129, False)])
def test_a_worker_id_has_1_to_128_characters(length: int, good: bool) -> None:
    """Worker ids have 1..128 characters."""
    assert valid_worker_id("w" * length) is good


@pytest.mark.parametrize("valid", [valid_credential_id, valid_worker_id])
def test_the_alphabet_of_ids(valid: Callable[[object], bool]) -> None:
    """Of all 256 byte values, the first character takes letters and digits, later ones also `._:-`."""
    rest = REST_OF_ID + b"_"
    for value in range(256):
        assert valid(chr(value) + "b") is (value in FIRST_OF_ID)
        assert valid("a" + chr(value) + "b") is (value in rest)
        assert valid("ab" + chr(value)) is (value in rest)
    for other in (None, 1, b"a", "\uff41", "a\u0661", "\ud800"):
        assert valid(other) is False


@pytest.mark.parametrize("secret", [b"", b"s" * 31, b"s" * 33])
def test_a_token_needs_32_bytes(secret: bytes) -> None:
    """No token is made of a secret of another length; the error does not show it."""
    with pytest.raises(ValueError, match="32 bytes") as caught:
        make_token("a", secret)
    assert not secret or secret.decode() not in said(caught.value)


@pytest.mark.parametrize("credential_id", ["", "_a", "a" * 65, "a b", "a\n", "\u00e9"])
def test_a_token_needs_a_valid_id(credential_id: str) -> None:
    """No token is made of an id that `present` would refuse."""
    with pytest.raises(ValueError, match="valid id"):
        make_token(credential_id, SECRET)


# --- the pepper ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", VECTORS["refusedPeppers"])
def test_refused_peppers(text: str) -> None:
    """A pepper of one repeated byte is refused, and not shown."""
    with pytest.raises(ValueError, match="repeated byte") as caught:
        Pepper.parse(text)
    assert text not in said(caught.value)


def test_any_two_bytes_that_differ_make_a_pepper() -> None:
    """Only a single repeated byte is refused: one other byte, wherever it stands, is enough."""
    for at in range(32):
        raw = bytes(7 if position != at else 8 for position in range(32))
        text = base64.urlsafe_b64encode(raw)[:43].decode()
        assert Pepper.parse(text).receipt_key() == hmac.new(raw, b"secret-sidecar-receipt-v1", "sha256").digest()


def test_every_byte_value_at_every_position_of_the_pepper() -> None:
    """Of all 256 byte values each position takes the base64url alphabet, the last one only those without stray bits."""
    good = CREDENTIALS[0]["pepper"]
    for at in range(43):
        for value in range(256):
            text = good[:at] + chr(value) + good[at + 1 :]
            if value in (LAST if at == 42 else ALPHABET):
                assert Pepper.parse(text) == Pepper(base64.urlsafe_b64decode(text + "="))
            else:
                with pytest.raises(ValueError, match="43 characters"):
                    Pepper.parse(text)


@pytest.mark.parametrize("form", ["", "{0:.42}", "{0}A", "{0}=", "{0}\n", " {0}", "{0} ", "\ud800" * 43, "\uff21" * 43])
def test_a_pepper_is_43_characters(form: str) -> None:
    """Nothing may stand around the 43 characters, and the error does not show them."""
    pepper = CREDENTIALS[0]["pepper"]
    with pytest.raises(ValueError, match="43 characters") as caught:
        Pepper.parse(form.format(pepper))
    assert pepper[:20] not in said(caught.value)


@pytest.mark.parametrize("value", [None, b"A" * 43, 7])
def test_a_pepper_is_text(value: Any) -> None:
    """What is no text is no pepper."""
    with pytest.raises(ValueError, match="43 characters"):
        Pepper.parse(value)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_pepper_is_32_bytes(size: int) -> None:
    """No pepper of another size can be made directly either."""
    with pytest.raises(ValueError, match="32 bytes"):
        Pepper(bytes(range(size)))


def test_the_digest_is_the_contracts() -> None:
    """Hex HMAC-SHA256 over domain, NUL, id, NUL and raw secret: one bit of any of them changes it."""
    raw = base64.urlsafe_b64decode(CREDENTIALS[0]["pepper"] + "=")
    message = b"qinglong-worker-credential-v1\x00cred_1\x00" + SECRET
    assert PEPPER.digest("cred_1", SECRET) == hmac.new(raw, message, hashlib.sha256).hexdigest()
    assert len({PEPPER.digest("cred_1", SECRET), PEPPER.digest("cred_2", SECRET), OTHER.digest("cred_1", SECRET)}) == 3


def test_reprs_show_nothing() -> None:
    """No repr holds a secret, a digest or a key."""
    shown = repr((PRESENTED, PEPPER, Peppers(PEPPER, OTHER), ROW))
    for form in (SECRET.decode("latin-1"), repr(SECRET)[2:-1], SECRET.hex(), CREDENTIALS[0]["pepper"], "\\x01\\x02"):
        assert form not in shown
    assert PEPPER.digest("cred_1", SECRET) not in shown


# --- authentication --------------------------------------------------------------------------------------------


def test_a_good_credential_makes_a_principal() -> None:
    """The principal says who it is, under which version, and until when."""
    made = principal()
    assert made.worker_id == "worker-1"
    assert made.credential_id == "cred_1"
    assert made.credential_version == 3
    assert made.expires_at_ms == 2_000
    assert made.previous_pepper is False
    assert made.authentication_id == "worker_credential:cred_1:3"


def test_nobody_else_makes_a_principal() -> None:
    """Constructing, replacing or changing a principal raises."""
    made = principal()
    with pytest.raises(TypeError):
        Principal("worker-1", "cred_1", 3, 2_000, False)
    with pytest.raises(TypeError):
        Principal()
    with pytest.raises(TypeError):
        replace(made, worker_id="worker-2")
    with pytest.raises(FrozenInstanceError):
        made.worker_id = "worker-2"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("now", "good"), [(999, False), (1_000, True), (1_001, True), (1_999, True), (2_000, False), (2_001, False)]
)
def test_valid_from_its_start_until_before_its_end(now: int, good: bool) -> None:
    """A credential is good from notBefore on and no longer at expires."""
    if good:
        assert principal(now=now).credential_version == 3
    else:
        assert unauthenticated(lambda: principal(now=now))


@pytest.mark.parametrize(
    "change",
    [
        {"credential_id": "cred_2"},
        {"worker_id": "worker-2"},
        {"worker_id": "Worker-1"},
        {"worker_id": ""},
        {"state": "revoked"},
        {"state": "ACTIVE"},
        {"state": ""},
        {"not_before_at_ms": None},
        {"expires_at_ms": None},
        {"not_before_at_ms": 1_501},
        {"expires_at_ms": 1_500},
        {"secret_digest": ""},
        {"secret_digest": "0" * 64},
        {"secret_digest": str(ROW.secret_digest).upper()},
        {"secret_digest": str(ROW.secret_digest) + "\n"},
        {"secret_digest": str(ROW.secret_digest)[:-1]},
        {"secret_digest": "\u00e9" * 64},
        {"secret_digest": "\ud800"},
        {"secret_digest": OTHER.digest("cred_1", SECRET)},
    ],
)
def test_one_changed_fact_of_the_row_refuses(change: dict[str, Any]) -> None:
    """Another id, worker, state, time or digest is the one refusal."""
    assert unauthenticated(lambda: principal(replace(ROW, **change)))


@pytest.mark.parametrize("at", range(64))
def test_every_digit_of_the_digest_counts(at: int) -> None:
    """A stored digest that differs in one digit does not match."""
    digest = str(ROW.secret_digest)
    changed = digest[:at] + ("0" if digest[at] != "0" else "1") + digest[at + 1 :]
    assert unauthenticated(lambda: principal(replace(ROW, secret_digest=changed)))


def test_another_secret_id_or_worker_refuses() -> None:
    """The secret, the id and the path's worker are the credential's own."""
    for bit in range(8):
        wrong = Presented("cred_1", bytes([SECRET[0] ^ 1 << bit]) + SECRET[1:])
        assert unauthenticated(partial(principal, presented=wrong))
    assert unauthenticated(lambda: principal(presented=Presented("cred_2", SECRET)))
    assert unauthenticated(lambda: principal(worker_id="worker-2"))


def test_a_missing_row_refuses() -> None:
    """No row, no principal."""
    assert unauthenticated(lambda: principal(None))


def test_a_missing_row_refuses_even_where_the_zero_digest_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest compared in place of a missing one can let nobody in."""
    monkeypatch.setattr(Pepper, "digest", lambda *_: "0" * 64)
    assert unauthenticated(lambda: principal(None, peppers=Peppers(PEPPER, OTHER)))


WRONG: list[tuple[str, object]] = [
    *(
        (column, value)
        for column in ("credential_id", "worker_id", "secret_digest", "state")
        for value in (None, 7, True, b"active", 1.5)
    ),
    *(("version", value) for value in (None, "3", True, 3.0, b"3")),
    *((column, value) for column in ("not_before_at_ms", "expires_at_ms") for value in ("1500", True, 1_500.0, b"1")),
]


@pytest.mark.parametrize(("column", "value"), WRONG)
def test_a_wrong_type_is_a_fault_of_the_store(column: str, value: object) -> None:
    """A column of a wrong type is told apart, also when the credential would be refused: the store is at fault."""
    broken = replace(ROW, **{column: value})
    assert refusal(lambda: principal(broken)) is Reason.CREDENTIAL_STORE
    assert refusal(lambda: principal(broken, worker_id="worker-2")) is Reason.CREDENTIAL_STORE


def test_the_previous_pepper_is_accepted_and_told() -> None:
    """A digest that matches under the previous pepper alone is good, and the principal says so."""
    assert principal(peppers=Peppers(OTHER, PEPPER)).previous_pepper is True
    assert principal(peppers=Peppers(PEPPER, OTHER)).previous_pepper is False
    assert principal(peppers=Peppers(PEPPER, PEPPER)).previous_pepper is False
    assert unauthenticated(lambda: principal(peppers=Peppers(OTHER, None)))
    assert unauthenticated(lambda: principal(peppers=Peppers(OTHER, OTHER)))


@pytest.mark.parametrize("row", [ROW, None, replace(ROW, state="revoked"), replace(ROW, secret_digest=7)])
@pytest.mark.parametrize(
    "peppers", [Peppers(PEPPER, OTHER), Peppers(OTHER, PEPPER), Peppers(OTHER, OTHER), Peppers(PEPPER, None)]
)
def test_both_digests_are_always_computed_and_compared(
    row: CredentialRow | None, peppers: Peppers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it ends, each pepper is used once and each digest compared once, in constant time."""
    used: list[Pepper] = []
    compared: list[bytes] = []
    digest, compare = Pepper.digest, hmac.compare_digest

    def count_digest(self: Pepper, credential_id: str, secret: bytes) -> str:
        used.append(self)
        return digest(self, credential_id, secret)

    def count_compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return compare(one, other)

    monkeypatch.setattr(Pepper, "digest", count_digest)
    monkeypatch.setattr(hmac, "compare_digest", count_compare)
    try:
        principal(row, peppers=peppers)
    except Refused as refused:
        assert refused.reason in (Reason.UNAUTHENTICATED, Reason.CREDENTIAL_STORE)
    wanted = [peppers.current] if peppers.previous is None else [peppers.current, peppers.previous]
    assert used == wanted
    assert [len(value) for value in compared] == [64] * len(wanted)


# --- the certificate binding -----------------------------------------------------------------------------------


def names(*uris: str, dns: tuple[str, ...] = ()) -> PeerNames:
    """The names of a client certificate."""
    return PeerNames(frozenset(uris), frozenset(dns))


@pytest.mark.parametrize(
    ("binding", "good"),
    [
        (None, True),
        (names("urn:ql3:worker:worker-1"), True),
        (names("urn:other:x", "urn:ql3:worker:worker-1"), True),
        (names(dns=("worker-1",)), True),
        (names("urn:ql3:worker:worker-2", dns=("other", "worker-1")), True),
        (names(), False),
        (names("urn:ql3:worker:worker-2"), False),
        (names("URN:ql3:worker:worker-1"), False),
        (names("urn:ql3:worker:Worker-1"), False),
        (names("urn:ql3:worker:worker-1 "), False),
        (names("urn:ql3:worker:worker-1/x"), False),
        (names("urn:ql3:worker:*"), False),
        (names("worker-1"), False),
        (names(dns=("urn:ql3:worker:worker-1",)), False),
        (names(dns=("WORKER-1",)), False),
        (names(dns=("*",)), False),
        (names(dns=("worker-1.",)), False),
        (names(dns=("worker-1.example",)), False),
    ],
)
def test_the_binding_is_byte_for_byte(binding: PeerNames | None, good: bool) -> None:
    """With the binding on, one URI or DNS name equals the worker's, without wildcard or case folding."""
    if good:
        assert principal(binding=binding).worker_id == "worker-1"
    else:
        assert unauthenticated(lambda: principal(binding=binding))


def test_the_binding_does_not_stand_in_for_the_credential() -> None:
    """A certificate of the right worker helps no bad credential, and a broken row is still the store's fault."""
    bound = names("urn:ql3:worker:worker-1")
    assert unauthenticated(lambda: principal(replace(ROW, state="revoked"), binding=bound))
    assert unauthenticated(lambda: principal(None, binding=bound))
    assert refusal(lambda: principal(replace(ROW, version="3"), binding=names())) is Reason.CREDENTIAL_STORE


def test_no_refusal_holds_the_input() -> None:
    """The refusal, and whatever it refers to, says nothing of the token."""
    token = CREDENTIALS[0]["token"]
    for header in (f"Worker {token}x".encode(), f"Basic {token}".encode()):
        with pytest.raises(Refused) as caught:
            present(header)
        assert token not in said(caught.value)
        assert token[-43:] not in said(caught.value)
