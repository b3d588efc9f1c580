"""provider/material: budgets before bytes, UTF-8 judged in place, and zeros on every way out."""

import copy
import itertools
import pickle
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from provider.material import Batch, Slot, is_text
from provider.memory import BufferPool
from provider.outcomes import Reason, Refused
from provider.refs import SecretRef
from tests.kit import valid
from tests.kit.fakes import is_zero

VALUE = 16_384
BUNDLE = 98_304
BATCH = 65_536


def secret(number: int) -> SecretRef:
    """Any ref."""
    return SecretRef.of("p", f"secret-{number}")


def slots(*sizes: int, bundles: tuple[int, ...] = ()) -> list[Slot]:
    """Slots of these sizes."""
    plain = [Slot(secret(number), size) for number, size in enumerate(sizes)]
    return plain + [Slot(SecretRef.of("p", "bundle", 1 + n), size, bundle=True) for n, size in enumerate(bundles)]


def filled(pool: BufferPool, *values: bytes) -> Batch:
    """A batch that holds these values."""
    batch = Batch(pool, slots(*map(len, values)))
    for index, value in enumerate(values):
        batch.room(index)[: len(value)] = value
        batch.fill(index, len(value))
    return batch


def refusal(call: Callable[[], object]) -> Reason:
    """The reason for which `call` refuses."""
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.reason


# --- text ---------------------------------------------------------------------------------------------------------


def decodes(data: bytes) -> bool:
    """The rule, in other words: not empty, no NUL, and the strict decoder takes it."""
    try:
        return "\0" not in data.decode("utf-8", "strict") and data != b""
    except UnicodeDecodeError:
        return False


# The first and last byte of every class of RFC 3629's table, and their neighbours.
EDGES = bytes.fromhex("00 01 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def test_text_is_judged_as_the_decoder_does_for_every_short_sequence() -> None:
    """Every sequence of one to three bytes of the interesting classes is judged as strict UTF-8 without NUL."""
    for length in (1, 2, 3):
        for sequence in itertools.product(EDGES, repeat=length):
            data = bytes(sequence)
            assert is_text(memoryview(data)) == decodes(data), data.hex()


def test_every_byte_and_pair_is_judged_as_the_decoder_does() -> None:
    """All 256 bytes and all 65,536 pairs are judged as strict UTF-8 without NUL."""
    for first in range(256):
        assert is_text(memoryview(bytes([first]))) == decodes(bytes([first]))
        for second in range(256):
            pair = bytes([first, second])
            assert is_text(memoryview(pair)) == decodes(pair), pair.hex()


def test_four_byte_sequences_are_judged_at_their_edges() -> None:
    """Of every four-byte lead, each continuation at its edges is judged as strict UTF-8."""
    for sequence in itertools.product(b"\xf0\xf1\xf3\xf4\xf5", EDGES, b"\x7f\x80\xbf\xc0", b"\x7f\x80\xbf\xc0"):
        data = bytes(sequence)
        assert is_text(memoryview(data)) == decodes(data), data.hex()


pieces = st.one_of(
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=4),
    st.sampled_from([b"\xef\xbb\xbf", b"\0", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xa8"]),
)


@given(st.lists(pieces, max_size=8).map(b"".join))
@example(b"")
@example(b"\xef\xbb\xbf")
def test_any_bytes_are_judged_as_the_decoder_does(data: bytes) -> None:
    """Whatever the bytes, the judgement in place equals that of the strict decoder, and NUL and nothing are refused."""
    assert is_text(memoryview(data)) == decodes(data)


@pytest.mark.parametrize("character", ["a", "\u00e9", "\u20ac", "\U00010348"])
@pytest.mark.parametrize(
    "fault", [b"", b"\xff", b"\0", b"\x80", b"\xe2\x82"], ids=["none", "ff", "nul", "stray", "cut"]
)
def test_the_largest_bundle_is_judged_to_its_end(character: str, fault: bytes) -> None:
    """A fault in the last bytes of 96 KiB is found, whatever the characters before it."""
    one = character.encode()
    data = one * ((BUNDLE - len(fault)) // len(one)) + fault
    assert is_text(memoryview(data)) == (fault == b"")


# --- budgets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        slots(1),
        slots(VALUE),
        slots(VALUE, VALUE, VALUE, VALUE),
        slots(*[1024] * 64),
        slots(bundles=(1,)),
        slots(bundles=(BUNDLE,)),
        slots(VALUE, VALUE, VALUE, VALUE, bundles=(BUNDLE,)),
    ],
    ids=["byte", "value", "batch", "64", "small bundle", "bundle", "batch and bundle"],
)
def test_exactly_at_a_budget_is_allowed(asked: list[Slot]) -> None:
    """A value, a batch and the bundle beside it may be exactly as large as their limits (contract 3)."""
    pool = BufferPool()
    with Batch(pool, asked) as batch:
        assert batch.slots == tuple(asked)
        assert [len(batch.room(index)) for index in range(len(asked))] == [slot.size + 1 for slot in asked]
    assert is_zero(pool)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (slots(0), Reason.MATERIAL_UNAVAILABLE),
        (slots(-1), Reason.MATERIAL_UNAVAILABLE),
        (slots(VALUE + 1), Reason.MATERIAL_UNAVAILABLE),
        (slots(1, bundles=(0,)), Reason.MATERIAL_UNAVAILABLE),
        (slots(1, bundles=(BUNDLE + 1,)), Reason.MATERIAL_UNAVAILABLE),
        (slots(VALUE, VALUE, VALUE, VALUE, 1), Reason.OVER_BUDGET),
        (slots(*[1024] * 64, 1), Reason.OVER_BUDGET),
        (slots(1, bundles=(1, 1)), Reason.OVER_BUDGET),
    ],
    ids=["empty", "negative", "value", "empty bundle", "bundle", "batch", "65 small", "two bundles"],
)
def test_beyond_a_budget_nothing_is_allocated(asked: list[Slot], reason: Reason) -> None:
    """One byte more than a limit, or an empty value, is refused before any memory is taken."""
    pool = BufferPool()
    assert refusal(lambda: Batch(pool, asked)) is reason
    assert pool.mapped_bytes == pool.outstanding == 0


def test_an_ordinary_value_is_never_widened_to_a_bundle() -> None:
    """The 98,304 bytes are for the slot of the bundle alone, also beside one (contract 3)."""
    pool = BufferPool()
    assert refusal(lambda: Batch(pool, slots(VALUE + 1, bundles=(BUNDLE,)))) is Reason.MATERIAL_UNAVAILABLE


# --- values -------------------------------------------------------------------------------------------------------


def test_values_are_as_read() -> None:
    """Each value is its bytes, no more and no less: BOM, line ends and white space stay (contract 3)."""
    values = (b"\xef\xbb\xbfx", b" a\r\n", b"\x7f\x01", "\u2028\U0001f511".encode())
    with filled(BufferPool(), *values) as batch:
        for index, value in enumerate(values):
            with batch.value(index) as view:
                assert bytes(view) == value
            assert batch.length(index) == len(value)
        assert batch.total == sum(map(len, values))


def test_values_are_read_only() -> None:
    """A view of a value cannot be written to."""
    with filled(BufferPool(), b"abc") as batch, batch.value(0) as view:
        assert view.readonly
        with pytest.raises(TypeError):
            view[0] = 0


def test_a_value_may_be_shorter_than_its_room() -> None:
    """A file that shrank is its shorter bytes; whether that is a drift the provider judges."""
    with Batch(BufferPool(), slots(10, 10)) as batch:
        batch.room(0)[:3] = b"abc"
        batch.fill(0, 3)
        with batch.value(0) as view:
            assert bytes(view) == b"abc"
        assert batch.total == 3


@pytest.mark.parametrize("length", [-1, 0, 4])
def test_a_length_outside_the_slot_is_refused(length: int) -> None:
    """Nothing, and the one byte more that shows a value which grew, are no value."""
    with Batch(BufferPool(), slots(3)) as batch:
        batch.room(0)[:] = b"abcd"
        assert refusal(lambda: batch.fill(0, length)) is Reason.MATERIAL_UNAVAILABLE
        with pytest.raises(ValueError, match="no value"):
            batch.value(0)


@pytest.mark.parametrize("data", [b"a\0b", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_a_value_that_is_no_text_is_refused(data: bytes) -> None:
    """NUL, bytes that are not UTF-8 and cut characters are refused (contract 7)."""
    with Batch(BufferPool(), slots(len(data))) as batch:
        batch.room(0)[: len(data)] = data
        assert refusal(lambda: batch.fill(0, len(data))) is Reason.MATERIAL_UNAVAILABLE


def test_a_slot_that_was_refused_holds_no_value() -> None:
    """After a refused second filling not even the first value's length is left."""
    with filled(BufferPool(), b"good") as batch:
        batch.room(0)[:4] = b"bad\0"
        assert refusal(lambda: batch.fill(0, 4)) is Reason.MATERIAL_UNAVAILABLE
        with pytest.raises(ValueError, match="no value"):
            batch.value(0)
        assert batch.total == 0


def test_an_unfilled_slot_has_no_value() -> None:
    """Value and length of a slot that was never filled raise ValueError."""
    with Batch(BufferPool(), slots(3)) as batch:
        for read in (batch.value, batch.length):
            with pytest.raises(ValueError, match="no value"):
                read(0)
        assert batch.total == 0


def test_rooms_do_not_overlap() -> None:
    """Writing all of one room changes no byte of another."""
    with Batch(BufferPool(), slots(3, 5, bundles=(7,))) as batch:
        for index in range(3):
            batch.room(index)[:] = bytes([65 + index]) * len(batch.room(index))
        assert [bytes(batch.room(index)) for index in range(3)] == [b"A" * 4, b"B" * 6, b"C" * 8]


# --- wiping -------------------------------------------------------------------------------------------------------


def fail(error: BaseException) -> Callable[[Batch], None]:
    """Something that goes wrong while the batch lives."""

    def work(_batch: Batch) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    "work",
    [
        lambda _batch: None,
        lambda batch: batch.wipe(),
        fail(Refused(Reason.OVER_BUDGET)),
        fail(KeyError()),
        fail(KeyboardInterrupt()),
    ],
    ids=["end", "wipe", "refusal", "error", "interrupt"],
)
def test_every_way_out_leaves_zeros(work: Callable[[Batch], None]) -> None:
    """However the block ends, the whole buffer is zero and given back once."""
    pool = BufferPool()
    try:
        with filled(pool, b"x" * 5000, b"y" * 10) as batch:
            work(batch)
    except (Refused, KeyError, KeyboardInterrupt):
        pass
    assert is_zero(pool)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8), st.integers(0, 7))
def test_a_batch_that_fails_at_any_step_leaves_zeros(values: list[bytes], last: int) -> None:
    """A batch that is left at step k, by a refused value or by choice, leaves zeros."""
    pool = BufferPool()
    try:
        with Batch(pool, slots(*map(len, values))) as batch:
            for index, value in enumerate(values[: last + 1]):
                batch.room(index)[: len(value)] = value
                batch.fill(index, len(value))
    except Refused as refused:
        assert refused.reason is Reason.MATERIAL_UNAVAILABLE
    assert is_zero(pool)


def test_a_forgotten_batch_is_wiped() -> None:
    """A batch that nobody wiped leaves zeros when it is gone."""
    pool = BufferPool()
    batch = filled(pool, b"x" * 100)
    del batch
    assert is_zero(pool)


def test_views_die_with_the_batch() -> None:
    """After the wipe rooms, values and fills raise ValueError; a view that was kept shows zeros, for ever."""
    pool = BufferPool()
    batch = filled(pool, b"abc")
    room, kept = batch.room(0), batch.value(0)
    batch.wipe()
    assert bytes(kept) == bytes(3)
    for use in (lambda: bytes(room), lambda: bytes(batch.room(0)), lambda: batch.value(0), lambda: batch.fill(0, 3)):
        with pytest.raises(ValueError, match=r"released|no value"):
            use()
    with filled(pool, b"xyz"):
        assert bytes(kept) == bytes(3)


def test_a_reader_that_is_left_behind_reaches_nobody() -> None:
    """A room that C code still writes to, as a system call may, is wiped; what comes late is in nobody's memory."""
    pool = BufferPool()
    batch = filled(pool, b"abc")
    late = pickle.PickleBuffer(batch.room(0))
    batch.wipe()
    with pytest.raises(BufferError):
        batch.room(0).release()
    assert bytes(late) == bytes(4)
    with filled(pool, b"xyz") as other:
        late.raw()[:] = b"late"
        with other.value(0) as value:
            assert bytes(value) == b"xyz"
    assert is_zero(pool)


def test_wipe_is_idempotent() -> None:
    """A second wipe touches no memory of a later batch."""
    pool = BufferPool()
    first = filled(pool, b"abc")
    first.wipe()
    with filled(pool, b"xyz") as second:
        first.wipe()
        with second.value(0) as value:
            assert bytes(value) == b"xyz"


def test_sizes_stay_known_after_the_wipe() -> None:
    """Lengths are no secret and serve the event of the outcome."""
    batch = filled(BufferPool(), b"abc", b"de")
    batch.wipe()
    assert (batch.length(0), batch.length(1), batch.total) == (3, 2, 5)


@pytest.mark.parametrize("send", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_a_batch_is_never_copied(send: Callable[[object], object]) -> None:
    """Neither copy nor pickle makes a second one."""
    with filled(BufferPool(), b"CANARY") as batch, pytest.raises(TypeError, match="never serialised"):
        send(batch)


def test_repr_shows_no_value_and_no_ref() -> None:
    """The repr says how many slots there are."""
    with Batch(BufferPool(), [Slot(valid.TOKEN, 6)]) as batch:
        batch.room(0)[:6] = b"CANARY"
        assert repr(batch) == str(batch) == "<Batch of 1>"
        assert valid.TOKEN.text not in repr(batch.slots)
