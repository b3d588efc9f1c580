"""provider/wire: the answer is the contract's JSON to the byte, laid out once, refused before anything is allocated."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from provider import wire
from provider.command import Command, Schema
from provider.material import Batch, Slot
from provider.memory import Buffer, BufferPool
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef
from tests.kit import valid
from tests.kit.fakes import is_zero

V1_LIMIT = 131_072
V2_LIMIT = 262_144
ANY = 1 << 30
"""No configured limit."""

V1 = valid.command(valid.body_v1())
V2 = valid.command()


def secret(number: int) -> SecretRef:
    """Any ref of the world's project."""
    return SecretRef.of(valid.PROJECT, f"secret-{number}")


def batch_of(pool: BufferPool, values: list[bytes], bundle: bytes | None = None) -> Batch:
    """A filled batch: these values, then the bundle."""
    slots = [Slot(secret(number), len(value)) for number, value in enumerate(values)]
    if bundle is not None:
        slots.append(Slot(valid.BUNDLE, len(bundle), bundle=True))
    batch = Batch(pool, slots)
    for index, value in enumerate(values if bundle is None else [*values, bundle]):
        batch.room(index)[: len(value)] = value
        batch.fill(index, len(value))
    return batch


def answer_of(command: Command, batch: Batch, pool: BufferPool, limit: int = ANY) -> wire.Response:
    """The answer, written; wiped when it could not be."""
    response = wire.Response(pool)
    try:
        wire.encode(response, command, batch, limit)
    except BaseException:
        response.wipe()
        raise
    return response


def encoded(command: Command, values: list[bytes], bundle: bytes | None = None, limit: int = ANY) -> bytes:
    """The body for these values; the pool is clean afterwards."""
    pool = BufferPool()
    with (
        batch_of(pool, values, bundle) as batch,
        answer_of(command, batch, pool, limit) as response,
        response.body() as body,
    ):
        assert response.length == len(body)
        shown = bytes(body)
    assert is_zero(pool)
    return shown


def reference(command: Command, values: list[bytes], bundle: bytes | None = None) -> bytes:
    """The same body by the standard encoder, which escapes as the contract asks when it is told to leave the rest."""

    def item(ref: SecretRef, value: bytes) -> dict[str, str]:
        return {"secretRef": ref.text, "value": value.decode()}

    document: dict[str, object] = {
        "schema": command.schema.value,
        "runId": command.run_id,
        "attemptId": command.attempt_id,
        "offerId": command.offer_id,
        "executionDigest": command.execution_digest,
        "values": [item(secret(number), value) for number, value in enumerate(values)],
    }
    if command.schema is Schema.V2:
        document["environmentBundles"] = [] if bundle is None else [item(valid.BUNDLE, bundle)]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


# --- the bytes ----------------------------------------------------------------------------------------------------


def test_v1_answer_is_the_contracts() -> None:
    """Keys, their order and the lack of white space of `@v1` are exactly those of contract 3."""
    assert encoded(V1, [b"one", b"two"]).decode() == (
        '{"schema":"qinglong/remote-secret-delivery@v1"'
        f',"runId":"{valid.RUN}","attemptId":"{valid.ATTEMPT}","offerId":"offer-1"'
        f',"executionDigest":"{valid.PLAN_DIGEST}"'
        f',"values":[{{"secretRef":"{secret(0).text}","value":"one"}},{{"secretRef":"{secret(1).text}","value":"two"}}]}}'
    )


def test_v2_answer_has_the_bundles_last() -> None:
    """`@v2` adds `environmentBundles`, a list of the same item shape, after the values."""
    shown = encoded(V2, [b"one"], b"A=1\n").decode()
    assert shown.startswith('{"schema":"qinglong/remote-secret-delivery@v2","runId":')
    assert shown.endswith(
        f',"values":[{{"secretRef":"{secret(0).text}","value":"one"}}]'
        f',"environmentBundles":[{{"secretRef":"{valid.BUNDLE.text}","value":"A=1\\n"}}]}}'
    )


def test_v2_lists_may_be_empty() -> None:
    """`@v2` without a bundle has an empty list of them, and without ordinary secrets an empty list of values."""
    assert encoded(V2, [b"one"]).endswith(b'"}],"environmentBundles":[]}')
    assert b',"values":[],"environmentBundles":[{' in encoded(V2, [], b"A=1")


@pytest.mark.parametrize(
    ("character", "escaped"),
    [
        ('"', '\\"'),
        ("\\", "\\\\"),
        ("\b", "\\b"),
        ("\t", "\\t"),
        ("\n", "\\n"),
        ("\f", "\\f"),
        ("\r", "\\r"),
        ("\x01", "\\u0001"),
        ("\x0b", "\\u000b"),
        ("\x1f", "\\u001f"),
        (" ", " "),
        ("/", "/"),
        ("\x7f", "\x7f"),
        ("\x80", "\x80"),
        ("\u2028", "\u2028"),
        ("\u2029", "\u2029"),
        ("\ufeff", "\ufeff"),
        ("\U0001f511", "\U0001f511"),
    ],
)
def test_only_what_must_be_is_escaped(character: str, escaped: str) -> None:
    """Quote, backslash and control characters are escaped in the contract's form; everything else stands as it is.

    Alone, repeated, and beside one that must be escaped in any case.
    """
    assert f'"value":"{escaped}"}}'.encode() in encoded(V1, [character.encode()])
    assert f'"value":"a{escaped}b{escaped}"}}'.encode() in encoded(V1, [f"a{character}b{character}".encode()])
    assert f'"value":"{escaped}\\n{escaped}"}}'.encode() in encoded(V1, [f"{character}\n{character}".encode()])


def test_every_control_character_is_escaped_as_the_reference_does() -> None:
    """U+0001 to U+001F and every other byte that ASCII has, alone and all together."""
    ascii_bytes = bytes(range(1, 128))
    for byte in ascii_bytes:
        assert encoded(V1, [bytes([byte])]) == reference(V1, [bytes([byte])])
    assert encoded(V1, [ascii_bytes * 3]) == reference(V1, [ascii_bytes * 3])


values = st.text(
    st.one_of(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
        st.sampled_from('"\\\b\t\n\f\r\x01\x0b\x1f\x7f\u2028\ufeff\U0001f511'),
    ),
    min_size=1,
    max_size=30,
).map(str.encode)


@given(st.sampled_from([V1, V2]), st.lists(values, max_size=5), st.none() | values)
@example(V2, [], b"\n")
def test_answer_equals_the_reference_for_any_values(command: Command, plain: list[bytes], bundle: bytes | None) -> None:
    """For any values, in both schemas, the answer is the standard encoder's, and reading it gives the values back."""
    if command is V1:
        bundle = None
    if not plain and bundle is None:
        plain = [b"x"]
    shown = encoded(command, plain, bundle)
    assert shown == reference(command, plain, bundle)
    assert [item["value"].encode() for item in json.loads(shown)["values"]] == plain


names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)


@given(run=names, attempt=names, offer=names)
@example(run='"', attempt="\\", offer="\x80\u2028\ufeff")
def test_ids_are_given_back_as_they_came(run: str, attempt: str, offer: str) -> None:
    """Ids are escaped by the same rules: whatever characters they have, they are read back the same."""
    command = replace(V1, run_id=run, attempt_id=attempt, offer_id=offer)
    shown = encoded(command, [b"x"])
    assert shown == reference(command, [b"x"])
    document = json.loads(shown)
    assert (document["runId"], document["attemptId"], document["offerId"]) == (run, attempt, offer)


def test_nothing_of_the_request_but_its_five_fields_is_echoed() -> None:
    """No lease token, no digest of it and no other claim of the request stands in the answer."""
    shown = encoded(V2, [b"x"], b"y").decode()
    for hidden in (valid.LEASE_TOKEN, valid.LEASE_DIGEST, valid.PROJECT, "task-1", valid.TASK_REVISION):
        assert hidden not in shown
    assert list(json.loads(shown)) == [
        "schema",
        "runId",
        "attemptId",
        "offerId",
        "executionDigest",
        "values",
        "environmentBundles",
    ]


# --- limits -------------------------------------------------------------------------------------------------------


class CountingPool(BufferPool):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        """Nothing yet."""
        super().__init__()
        self.sizes: list[int] = []

    def take(self, size: int) -> Buffer:
        """Count, and give."""
        self.sizes.append(size)
        return super().take(size)


def exactly(
    command: Command, length: int, sizes: list[int], bundle: int | None = None
) -> tuple[list[bytes], bytes | None]:
    """Values of these raw sizes at most, escaped so that the whole answer has exactly `length` bytes."""
    plain: list[bytes] = [b"a"] * len(sizes)
    base = len(reference(command, plain, None if bundle is None else b"a"))
    left = length - base
    made: list[bytes] = []
    for size in [*sizes, bundle] if bundle is not None else sizes:
        # A control character takes six bytes, a letter one; the first letter is in the base already.
        controls = min(size - 1, left // 6)
        letters = min(size - 1 - controls, left - 6 * controls)
        left -= 6 * controls + letters
        made.append(b"a" + b"\x01" * controls + b"b" * letters)
    assert left == 0
    return (made, None) if bundle is None else (made[:-1], made[-1])


@pytest.mark.parametrize(
    ("command", "limit", "sizes", "bundle"),
    [(V1, V1_LIMIT, [16_384] * 4, None), (V2, V2_LIMIT, [16_384] * 4, 98_304)],
    ids=["v1", "v2"],
)
def test_the_schemas_limit_holds_to_the_byte(
    command: Command, limit: int, sizes: list[int], bundle: int | None
) -> None:
    """An answer of exactly its schema's limit is given; one byte more is refused, whatever is configured."""
    plain, carrier = exactly(command, limit, sizes, bundle)
    assert len(encoded(command, plain, carrier)) == limit
    assert len(encoded(command, plain, carrier, limit)) == limit
    plain, carrier = exactly(command, limit + 1, sizes, bundle)
    assert refusal(lambda: encoded(command, plain, carrier)) is Reason.OVER_BUDGET


def refusal(call: Callable[[], object]) -> Reason:
    """The reason for which `call` refuses."""
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.reason


@pytest.mark.parametrize("command", [V1, V2], ids=["v1", "v2"])
def test_the_configured_limit_holds_to_the_byte(command: Command) -> None:
    """An answer of exactly the configured limit is given; with a limit one less it is refused."""
    values = [b'"\n\x01plain', b"x" * 700]
    length = len(reference(command, values))
    assert len(encoded(command, values, limit=length)) == length
    assert refusal(lambda: encoded(command, values, limit=length - 1)) is Reason.OVER_BUDGET


def test_refused_before_anything_is_allocated() -> None:
    """A delivery over its limit takes no buffer for an answer; the batch is left to its owner."""
    pool = CountingPool()
    with batch_of(pool, [b"x" * 100]) as batch:
        pool.sizes.clear()
        assert refusal(lambda: answer_of(V1, batch, pool, 50)) is Reason.OVER_BUDGET
        assert pool.sizes == []
        with batch.value(0) as value:
            assert bytes(value) == b"x" * 100


def test_allocated_once_at_its_full_size() -> None:
    """An answer is one buffer, of its exact length and the room for the head."""
    pool = CountingPool()
    with batch_of(pool, [b"\n" * 100, b"y"]) as batch:
        pool.sizes.clear()
        with answer_of(V1, batch, pool) as response:
            assert pool.sizes == [wire.HEAD_ROOM + response.length]


# --- the buffer ---------------------------------------------------------------------------------------------------


def test_head_and_body_leave_in_one_piece() -> None:
    """`framed` puts the head right before the body, so that both are one view."""
    pool = BufferPool()
    with batch_of(pool, [b"one"]) as batch, answer_of(V1, batch, pool) as response:
        for head in (b"HTTP/1.1 200 OK\r\n\r\n", b"", b"h" * wire.HEAD_ROOM):
            with response.framed(head) as whole:
                assert bytes(whole) == head + reference(V1, [b"one"])
    assert is_zero(pool)


def test_a_head_longer_than_its_room_is_refused() -> None:
    """A head that does not fit raises ValueError and touches no byte of the body."""
    pool = BufferPool()
    with batch_of(pool, [b"one"]) as batch, answer_of(V1, batch, pool) as response:
        with pytest.raises(ValueError, match="longer"):
            response.framed(b"h" * (wire.HEAD_ROOM + 1))
        with response.body() as body:
            assert bytes(body) == reference(V1, [b"one"])


@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt])
def test_leaving_wipes_head_and_body(error: type[BaseException] | None) -> None:
    """However the block of an answer ends, its whole buffer is zero."""
    pool = BufferPool()
    try:
        with batch_of(pool, [b"one"]) as batch, answer_of(V1, batch, pool) as response:
            response.framed(b"h" * 100).release()
            batch.wipe()
            if error is not None:
                raise error
    except (KeyError, KeyboardInterrupt):
        pass
    assert is_zero(pool)


def test_wipe_is_idempotent_and_ends_the_answer() -> None:
    """After the wipe neither body nor frame can be had, and a second wipe does nothing."""
    pool = BufferPool()
    with batch_of(pool, [b"one"]) as batch:
        response = answer_of(V1, batch, pool)
    response.wipe()
    response.wipe()
    for use in (response.body, lambda: response.framed(b"head")):
        with pytest.raises(ValueError, match="released"):
            use()
    assert is_zero(pool)


@pytest.mark.parametrize("by", [-1, 1], ids=["shorter", "longer"])
def test_an_answer_not_as_long_as_counted_is_never_given(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should counting and writing ever disagree, the answer is wiped and given to nobody."""
    pool, counted = BufferPool(), wire.escaped_length
    monkeypatch.setattr(wire, "escaped_length", lambda value: counted(value) + by)
    with batch_of(pool, [b'"aaaaa']) as batch, pytest.raises((AssertionError, ValueError)):
        answer_of(V1, batch, pool)
    assert is_zero(pool)


@pytest.mark.parametrize("error", [KeyError(), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_failure_while_writing_leaves_zeros(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the midst of writing leaves nothing of what was written."""

    def fail(body: memoryview, at: int, value: memoryview) -> int:
        body[at : at + len(value)] = value
        raise error

    pool = BufferPool()
    monkeypatch.setattr(wire, "put_escaped", fail)
    with batch_of(pool, [b'"aaaaa']) as batch, pytest.raises(type(error)):
        answer_of(V1, batch, pool)
    assert is_zero(pool)
