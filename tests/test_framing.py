"""The framer: one bounded head, then exactly the declared body, however the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider import limits
from provider.outcomes import Reason, Refused
from sidecar.framing import Framer

HEAD = b"POST / HTTP/1.1\r\nhost: a\r\n\r\n"


def framed(*parts: bytes, length: int | None = 0, collect: bool = True) -> Framer:
    """Feed parts; every head found is followed by `expect(length)`."""
    framer = Framer()
    for part in parts:
        if framer.feed(part) is not None:
            framer.expect(length, collect=collect)
    return framer


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut `data` at these places."""
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True) if end > start]


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\r\n\n", b"\n\r\n"])
def test_a_head_ends_at_the_first_empty_line(end: bytes) -> None:
    """A head is complete at its first empty line, in whichever way its lines end."""
    framer = Framer()
    assert framer.feed(b"GET / HTTP/1.1" + end + b"rest") == b"GET / HTTP/1.1" + end
    framer.expect(4, collect=True)
    assert framer.body() == b"rest"


@given(st.lists(st.integers(0, 200), max_size=8), st.binary(max_size=40), st.integers(0, 45))
def test_how_bytes_are_cut_changes_nothing(places: list[int], after: bytes, length: int) -> None:
    """Whatever arrives in however many pieces, head, body and verdicts are those of one piece."""
    framer = Framer()
    heads = []
    for part in cut(HEAD + after, places):
        found = framer.feed(part)
        if found is not None:
            heads.append(found)
            framer.expect(length, collect=True)
    assert heads == [HEAD]
    assert framer.complete == (len(after) >= length)
    assert framer.pipelined == (len(after) > length)
    assert framer.received == len(after)
    assert bytes(framer.body())[: len(after)] == after[:length]
    assert len(framer.body()) == length


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_are_a_head_or_wait_for_one(data: bytes, places: list[int]) -> None:
    """A head is found if and only if there is an empty line, and nothing is lost or added."""
    framer = Framer()
    found = None
    for part in cut(data, places):
        if found is not None:
            break
        found = framer.feed(part)
    empty = [at for at in (data.find(b"\n\n"), data.find(b"\n\r\n")) if at >= 0]
    if not empty:
        assert found is None
        assert framer.started == bool(data)
    else:
        first = min(empty)
        assert found == data[: first + (2 if data[first + 1 : first + 2] == b"\n" else 3)]


def test_a_head_of_the_limit_passes_and_one_byte_more_does_not() -> None:
    """16384 bytes of request line and headers are a head; one more is refused, whether its end has come or not."""
    filler = b"x" * (limits.HEADER_BLOCK_BYTES - 4)
    assert Framer().feed(filler + b"\r\n\r\n") is not None
    waiting = Framer()
    assert waiting.feed(filler + b"yyyy") is None
    for block in (filler + b"y\r\n\r\n", filler + b"yyyyy"):
        framer = Framer()
        with pytest.raises(Refused) as caught:
            framer.feed(block)
        assert caught.value.reason is Reason.MALFORMED
    with pytest.raises(Refused):
        waiting.feed(b"\r\n\r\n")


def test_a_body_far_larger_than_a_head_may_follow_in_the_same_arrival() -> None:
    """The limit of the head counts the head alone."""
    body = bytes(limits.BODY_BYTES)
    assert framed(HEAD + body, length=len(body)).complete


def test_after_a_head_that_is_too_large_bytes_are_only_counted() -> None:
    """What follows a refused head is neither a head nor a body."""
    framer = Framer()
    with pytest.raises(Refused):
        framer.feed(bytes(limits.HEADER_BLOCK_BYTES + 1))
    framer.expect(None, collect=False)
    assert framer.feed(HEAD) is None
    assert not framer.complete
    assert not framer.pipelined
    assert framer.body() == b""


def test_a_request_whose_end_is_unknown_is_never_complete_nor_pipelined() -> None:
    """Chunks and malformed requests have no end that we could know: what follows them is no second request."""
    framer = framed(HEAD + b"5\r\nhello\r\n0\r\n\r\n" + HEAD, length=None)
    assert not framer.complete
    assert not framer.pipelined
    assert framer.body() == b""


def test_an_unwanted_body_is_counted_and_not_kept() -> None:
    """A body over the limit is counted to its end without being collected."""
    framer = framed(HEAD + b"abc", b"def", length=6, collect=False)
    assert framer.complete
    assert framer.body() == b""
    assert framer.received == 6


def test_a_dropped_body_is_gone_and_its_rest_still_ends_the_request() -> None:
    """After an early answer nothing of the body is kept, and its end is still seen."""
    framer = framed(HEAD + b"abc", length=6)
    framer.drop()
    assert framer.body() == b""
    framer.feed(b"def")
    assert framer.complete
    assert framer.body() == b""


def test_the_next_head_begins_anew() -> None:
    """Nothing of a finished request reaches the next one."""
    framer = framed(HEAD + b"body", length=4)
    framer.next()
    assert (framer.started, framer.complete, framer.pipelined, framer.received, framer.body()) == (
        False,
        True,
        False,
        0,
        b"",
    )
    assert framer.feed(HEAD) == HEAD
