"""Request smuggling on raw TLS sockets: whatever is hidden behind or in a request, it is never served."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from provider.outcomes import Reason
from tests.kit.stand import make_stand
from tests.kit.surface import Surface, finished
from tests.kit.world import World

HIDDEN = "smuggled-in"
"""The request id of every hidden request, which is a good one."""


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surface]:
    """One sidecar; at its end no hidden request may have been told, counted or recorded."""
    with Surface(make_stand(tmp_path_factory.mktemp("smuggling"))) as made:
        made.stand.start()
        yield made
        made.verify()
        assert HIDDEN not in {event.get("requestId") for event in made.stand.events}
        assert HIDDEN not in {row["request_id"] for row in made.stand.world.audit()}


def hidden(surface: Surface) -> bytes:
    """A good request that must not be served."""
    return surface.stand.request(headers={"x-request-id": HIDDEN})


def head(world: World, *fields: bytes, newline: bytes = b"\r\n") -> bytes:
    """A request's head with the usual fields and these."""
    lines = [
        f"POST {world.target} HTTP/1.1".encode(),
        b"host: localhost",
        f"authorization: Worker {world.token}".encode(),
    ]
    return newline.join([*lines, b"content-type: application/json", *fields]) + newline * 2


# Each is (fields of the head, what comes between head and hidden request, the one answer that may come).
AMBIGUOUS: dict[str, tuple[list[bytes], bytes]] = {
    "CL.TE": ([b"content-length: 6", b"transfer-encoding: chunked"], b"0\r\n\r\n"),
    "TE.CL": ([b"transfer-encoding: chunked", b"content-length: 4"], b"5c\r\n"),
    "CL.CL": ([b"content-length: 5", b"content-length: 6"], b"12345"),
    "CL.CL, the same": ([b"content-length: 5", b"content-length: 5"], b"12345"),
    "CL in a list": ([b"content-length: 5, 5"], b"12345"),
    "CL with a sign": ([b"content-length: +5"], b"12345"),
    "CL in hex": ([b"content-length: 0x5"], b"12345"),
    "CL that overflows": ([b"content-length: 18446744073709551621"], b"12345"),
    "CL with a fraction": ([b"content-length: 5.0"], b"12345"),
    "CL with an inner space": ([b"content-length: 1 0"], b"12345"),
    "CL folded": ([b"content-length:\r\n 5"], b"12345"),
    "CL behind a space": ([b"content-length : 5"], b"12345"),
    "CL behind a bare CR": ([b"x: y\rcontent-length: 5"], b"12345"),
    "TE behind a space": ([b"content-length: 5", b"transfer-encoding : chunked"], b"0\r\n\r\n"),
    "TE behind a TAB": ([b"content-length: 5", b"transfer-encoding\t: chunked"], b"0\r\n\r\n"),
    "TE folded": ([b"content-length: 5", b"transfer-encoding:\r\n chunked"], b"0\r\n\r\n"),
    "TE after a vertical tab": ([b"content-length: 5", b"transfer-encoding: \x0bchunked"], b"0\r\n\r\n"),
    "TE after NUL": ([b"content-length: 5", b"transfer-encoding: \0chunked"], b"0\r\n\r\n"),
    "TE after a bare CR": ([b"content-length: 5", b"x: y\rtransfer-encoding: chunked"], b"0\r\n\r\n"),
    "TE after a bare LF": ([b"content-length: 5", b"x: y\ntransfer-encoding: chunked"], b"0\r\n\r\n"),
    "TE empty": ([b"content-length: 5", b"transfer-encoding:"], b"0\r\n\r\n"),
    "TE empty before CL": ([b"transfer-encoding: ", b"content-length: 5"], b"0\r\n\r\n"),
    "TE identity": ([b"content-length: 5", b"transfer-encoding: identity"], b"0\r\n\r\n"),
    "TE unknown": ([b"transfer-encoding: xchunked"], b"0\r\n\r\n"),
    "TE not last": ([b"transfer-encoding: chunked, identity"], b"0\r\n\r\n"),
    "TE twice": ([b"transfer-encoding: chunked", b"transfer-encoding: chunked"], b"0\r\n\r\n"),
    "TE twice, one hidden": ([b"transfer-encoding: chunked", b"transfer-encoding: x"], b"0\r\n\r\n"),
    "TE quoted": ([b'transfer-encoding: "chunked"'], b"0\r\n\r\n"),
    "TE with a parameter": ([b"transfer-encoding: chunked;q=1"], b"0\r\n\r\n"),
    "a second host": ([b"host: elsewhere", b"content-length: 0"], b""),
    "a second authorization": ([b"authorization: Worker x", b"content-length: 0"], b""),
    "a tunnel": ([b"connection: upgrade", b"upgrade: h2c", b"content-length: 0"], b""),
    "a websocket": ([b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-version: 13"], b""),
}


CHUNKS = {
    "no chunk": b"0\r\n\r\n",
    "chunks": b"5\r\nhello\r\n0\r\n\r\n",
    "extension and trailer": b"5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n",
    "size that overflows": b"ffffffffffffffff0\r\n",
    "size in hex with a prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "bare LF": b"5\nhello\n0\n\n",
    "nothing": b"",
}


def end_all(surface: Surface, requests: Mapping[str, bytes], reason: Reason) -> None:
    """Send each on a connection of its own; each gets one answer and the end. All at once: each end takes a second."""
    with ExitStack() as open_ones:
        wires = {name: open_ones.enter_context(surface.stand.wire()) for name in requests}
        for name, wire in wires.items():
            wire.send(requests[name])
        for name, wire in wires.items():
            is_head = requests[name].startswith(b"HEAD ")
            answer = surface.check(wire.answer(head_only=is_head), reason, head=is_head)
            assert answer.header("connection") == "close", name
        for name, wire in wires.items():
            assert finished(wire), name


def test_an_ambiguous_head_ends_the_connection(surface: Surface) -> None:
    """A head that two readers could frame differently is malformed: one answer, the end, and nothing behind it."""
    world, smuggled = surface.stand.world, hidden(surface)
    cases = {name: head(world, *fields) + between + smuggled for name, (fields, between) in AMBIGUOUS.items()}
    end_all(surface, cases, Reason.MALFORMED)


def test_a_chunked_request_ends_the_connection(surface: Surface) -> None:
    """Chunks are refused by their head and never read: what stands in or behind them is nothing."""
    cases = {
        f"{name}, {coding.decode()}": head(surface.stand.world, b"transfer-encoding: " + coding)
        + chunks
        + hidden(surface)
        for name, chunks in CHUNKS.items()
        for coding in (b"chunked", b"Chunked", b"gzip, chunked")
    }
    end_all(surface, cases, Reason.NO_LENGTH)


def test_a_method_without_a_body_hides_nothing_in_one(surface: Surface) -> None:
    """A body is as long as declared by whatever method; what it holds is no request."""
    methods = ("GET", "HEAD", "OPTIONS", "DELETE", "TRACE")
    cases = {method: surface.stand.request(hidden(surface), method=method) for method in methods}
    end_all(surface, cases, Reason.METHOD)


def test_a_request_in_a_body_is_a_body(surface: Surface) -> None:
    """A declared body that looks like a request is judged as JSON, and the next request on the connection is itself."""
    with surface.stand.wire() as wire:
        wire.send(surface.stand.request(hidden(surface)))
        assert surface.read(wire, Reason.JSON).header("connection") is None
        wire.send(surface.stand.request())
        surface.read(wire, None)


def test_a_body_shorter_than_declared_swallows_what_follows(surface: Surface) -> None:
    """What is sent while declared bytes are missing belongs to the body, whatever it looks like."""
    stand = surface.stand
    body = stand.world.body_bytes()
    smuggled = hidden(surface)
    with stand.wire() as wire:
        wire.send(stand.request(body, headers={"content-length": str(len(body) + len(smuggled))}))
        wire.send(smuggled)
        assert surface.read(wire, Reason.JSON).header("connection") is None


@pytest.mark.parametrize("cut", [0, 1, 20, None], ids=["at once", "one byte later", "in the head", "after the body"])
def test_what_follows_a_request_before_its_answer_is_dropped(cut: int | None, surface: Surface) -> None:
    """A second request before the first answer ends the connection after it, however it is cut."""
    stand = surface.stand
    good, smuggled = stand.request(), hidden(surface)
    with stand.wire() as wire:
        if cut is None:
            # The first request waits for its last byte, which arrives with the second one.
            wire.send(good[:-1])
            wire.send(good[-1:] + smuggled)
        else:
            wire.send(good + smuggled[: cut or len(smuggled)])
            wire.send(smuggled[cut or len(smuggled) :])
        assert surface.check(wire.answer(), None).header("connection") == "close"
        assert finished(wire)


def test_empty_lines_before_a_request_are_no_request(surface: Surface) -> None:
    """Empty lines that some servers skip are malformed here, before a first and before a later request."""
    stand = surface.stand
    for lines in (b"\r\n", b"\n", b"\r\n\r\n"):
        with stand.wire() as wire:
            wire.send(lines + hidden(surface))
            surface.check(wire.answer(), Reason.MALFORMED)
        with stand.wire() as wire:
            wire.send(stand.request())
            surface.check(wire.answer(), None)
            wire.send(lines + hidden(surface))
            surface.check(wire.answer(), Reason.MALFORMED)


def test_a_head_of_bare_line_feeds_is_malformed(surface: Surface) -> None:
    """A whole request written with bare LFs is refused at its end, not held until its time is over."""
    with surface.stand.wire() as wire:
        wire.send(head(surface.stand.world, b"content-length: 0", newline=b"\n") + hidden(surface))
        surface.check(wire.answer(), Reason.MALFORMED)
