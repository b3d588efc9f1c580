"""The head of a request: what aiohttp's parser refuses, what it lets through and we refuse, and what we read."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from provider import limits
from provider.outcomes import Reason, Refused
from sidecar.head import HAS_C_PARSER, Head, HeadParser
from tests.kit.exceptions import said

LINE = b"POST /api HTTP/1.1"
HOST = b"host: sidecar"
MARK = "c4n4ry"


@pytest.fixture(scope="module")
def parser() -> Iterator[HeadParser]:
    """A parser and the loop it wants to be told of."""
    loop = asyncio.new_event_loop()
    yield HeadParser(loop)
    loop.close()


def block(*fields: bytes, line: bytes = LINE, host: bytes | None = HOST) -> bytes:
    """Write a head."""
    return b"\r\n".join([line, *([host] if host is not None else []), *fields]) + b"\r\n\r\n"


def refused(parser: HeadParser, head: bytes) -> bool:
    """Tell whether a head is malformed; the refusal must say nothing of it."""
    try:
        parser.parse(head)
    except Refused as refusal:
        assert refusal.reason is Reason.MALFORMED
        assert MARK not in said(refusal)
        return True
    return False


# aiohttp-facts 2.5: what the parser refuses by itself.
BY_THE_PARSER = {
    "bare LF in a header": block(b"x: a\nb: c"),
    "bare LF after the line": LINE + b"\n" + HOST + b"\r\n\r\n",
    "only bare LFs": block().replace(b"\r\n", b"\n"),
    "bare CR": block(b"x: a\rb"),
    "folded header": block(b"x: a\r\n b"),
    "space before the colon": block(b"x : a"),
    "no colon": block(b"x"),
    "empty name": block(b": a"),
    "NUL in a value": block(b"x: a\0b"),
    "control character in a value": block(b"x: a\x0bb"),
    "DEL in a value": block(b"x: a\x7fb"),
    "8-bit name": block(b"x\xff: a"),
    "name with a bracket": block(b"(x): a"),
    "name with a space": block(b"x y: a"),
    "no host": block(host=None),
    "second host": block(b"host: other"),
    "second content-type": block(b"content-type: a", b"content-type: a"),
    "second content-length": block(b"content-length: 5", b"content-length: 5"),
    "second content-length in other case": block(b"content-length: 5", b"CONTENT-LENGTH: 6"),
    "listed content-length": block(b"content-length: 5, 5"),
    "signed content-length": block(b"content-length: +5"),
    "negative content-length": block(b"content-length: -5"),
    "empty content-length": block(b"content-length: "),
    "hexadecimal content-length": block(b"content-length: 0x5"),
    "float content-length": block(b"content-length: 5.0"),
    "overflowing content-length": block(b"content-length: 99999999999999999999"),
    "content-length before transfer-encoding": block(b"content-length: 5", b"transfer-encoding: chunked"),
    "transfer-encoding before content-length": block(b"transfer-encoding: chunked", b"content-length: 5"),
    "transfer-encoding gzip": block(b"transfer-encoding: gzip"),
    "transfer-encoding identity": block(b"transfer-encoding: identity"),
    "chunked is not last": block(b"transfer-encoding: chunked, gzip"),
    "chunked twice": block(b"transfer-encoding: chunked", b"transfer-encoding: chunked"),
    "chunked, chunked": block(b"transfer-encoding: chunked, chunked"),
    "xchunked": block(b"transfer-encoding: xchunked"),
    "chunked with a parameter": block(b"transfer-encoding: chunked;a=b"),
    "chunked quoted": block(b'transfer-encoding: "chunked"'),
    "unknown method": block(line=b"FETCH / HTTP/1.1"),
    "lower-case method": block(line=b"post / HTTP/1.1"),
    "HTTP/1.2": block(line=b"POST / HTTP/1.2"),
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\n",
    "non-ASCII target": block(line=b"POST /\xc3\xa4 HTTP/1.1"),
    "NUL in the target": block(line=b"POST /a\0b HTTP/1.1"),
    "control character in the target": block(line=b"POST /a\x01b HTTP/1.1"),
    "DEL in the target": block(line=b"POST /a\x7fb HTTP/1.1"),
    "TAB in the target": block(line=b"POST /a\tb HTTP/1.1"),
    "relative target": block(line=b"POST api HTTP/1.1"),
    "POST *": block(line=b"POST * HTTP/1.1"),
    "absolute form without host": block(line=b"POST http:///x HTTP/1.1"),
    "absolute form with a bad port": block(line=b"POST http://h:99999/ HTTP/1.1"),
    "absolute form with a bad host": block(line=b"POST http://[/x HTTP/1.1"),
    "Sec-WebSocket-Key1": block(b"sec-websocket-key1: a"),
}
# aiohttp-facts 2.6: what arrives behind the parser and is refused by us.
BY_US = {
    "HTTP/1.0": block(line=b"POST / HTTP/1.0"),
    "HTTP/0.9": block(line=b"POST / HTTP/0.9"),
    "no version": b"GET /\r\n\r\n",
    "HTTP/2.0": block(line=b"POST / HTTP/2.0"),
    "lower-case version": block(line=b"POST / http/1.1"),
    "CONNECT by authority": block(line=b"CONNECT h:1 HTTP/1.1"),
    "CONNECT by path": block(line=b"CONNECT /x HTTP/1.1"),
    "upgrade without connection": block(b"upgrade: websocket"),
    "upgrade": block(b"connection: upgrade", b"upgrade: websocket"),
    "unknown upgrade": block(b"connection: Upgrade", b"Upgrade: h2c"),
    "upgrade beside expect": block(b"expect: 100-continue", b"upgrade: h2c"),
    "empty transfer-encoding": block(b"transfer-encoding:"),
    "empty transfer-encoding before content-length": block(b"transfer-encoding: ", b"content-length: 5"),
    "empty transfer-encoding after content-length": block(b"content-length: 5", b"transfer-encoding:"),
    "second authorization": block(b"authorization: Worker a", b"Authorization: Worker b"),
    "second content-encoding": block(b"content-encoding: identity", b"content-encoding: identity"),
    "second x-request-id": block(b"x-request-id: a", b"X-Request-ID: a"),
    "two spaces after the method": block(line=b"POST  / HTTP/1.1"),
    "two spaces before the version": block(line=b"POST /  HTTP/1.1"),
    "TAB in the line": block(line=b"POST\t/ HTTP/1.1"),
    "space after the version": block(line=b"POST / HTTP/1.1 "),
    "leading CRLF": b"\r\n" + block(),
    "leading LF": b"\n" + block(),
    "nothing but an empty line": b"\r\n\r\n",
    "target over 8 KiB": block(line=b"POST /" + b"a" * limits.TARGET_BYTES + b" HTTP/1.1"),
    "65 headers": block(*(b"x-%d: a" % n for n in range(64))),
    "19 digits of content-length": block(b"content-length: " + b"9" * 19),
}


@pytest.mark.parametrize("name", [*BY_THE_PARSER, *BY_US])
def test_what_is_not_wanted_is_malformed(name: str, parser: HeadParser, caplog: pytest.LogCaptureFixture) -> None:
    """Every known way to write a bad, ambiguous or unwanted head is refused, and nothing of it is logged."""
    caplog.set_level(logging.DEBUG)
    assert refused(parser, (BY_THE_PARSER | BY_US)[name])
    assert caplog.records == []


@pytest.mark.parametrize(
    ("fields", "length", "chunked"),
    [
        ((), None, False),
        ((b"content-length: 0",), 0, False),
        ((b"content-length: 0002",), 2, False),
        ((b"content-length:  5 ",), 5, False),
        ((b"content-length: " + b"9" * 18,), int("9" * 18), False),
        ((b"transfer-encoding: chunked",), None, True),
        ((b"transfer-encoding: Chunked",), None, True),
        ((b"transfer-encoding: gzip, chunked",), None, True),
    ],
)
def test_the_framing_of_a_good_head(
    parser: HeadParser, fields: tuple[bytes, ...], length: int | None, chunked: bool
) -> None:
    """Declared bytes or chunks are read as they stand; chunks have no length."""
    head = parser.parse(block(*fields))
    assert (head.length, head.chunked) == (length, chunked)


@pytest.mark.parametrize(
    ("line", "method", "target"),
    [
        (b"GET http://h/x HTTP/1.1", "GET", "http://h/x"),
        (b"OPTIONS * HTTP/1.1", "OPTIONS", "*"),
        (b"GET //x HTTP/1.1", "GET", "//x"),
        (b"GET /a#f HTTP/1.1", "GET", "/a#f"),
        (b"GET /%zz?q HTTP/1.1", "GET", "/%zz?q"),
        (b'GET /"{}<>\\^| HTTP/1.1', "GET", '/"{}<>\\^|'),
        (b"GET /a/../b HTTP/1.1", "GET", "/a/../b"),
        (b"HEAD / HTTP/1.1", "HEAD", "/"),
        (b"QUERY / HTTP/1.1", "QUERY", "/"),
        (b"M-SEARCH / HTTP/1.1", "M-SEARCH", "/"),
        (b"POST /" + b"a" * (limits.TARGET_BYTES - 1) + b" HTTP/1.1", "POST", "/" + "a" * (limits.TARGET_BYTES - 1)),
    ],
)
def test_the_target_is_raw(parser: HeadParser, line: bytes, method: str, target: str) -> None:
    """Method and target come as they were sent: nothing is decoded or made normal."""
    head = parser.parse(block(line=line))
    assert (head.method, head.target) == (method, target)


def test_fields_are_raw_and_found_in_any_case(parser: HeadParser) -> None:
    """Values keep their bytes, without the white space around them; names are compared in lower case."""
    head = parser.parse(block(b"AUTHORIZATION:\t Worker \xff ", b"X-Other: y", b"Content-Type: a;b"))
    assert head.fields == {b"authorization": b"Worker \xff", b"content-type": b"a;b"}


def test_a_head_shows_nothing_of_itself(parser: HeadParser) -> None:
    """The repr of a head holds neither its credential nor its target: a repr may reach a log."""
    shown = repr(parser.parse(block(b"authorization: Worker canary", line=b"POST /canary HTTP/1.1")))
    assert "canary" not in shown


def test_a_header_may_fill_the_block(parser: HeadParser) -> None:
    """One field may be as large as the block: the block is bounded, the field is not besides."""
    room = limits.HEADER_BLOCK_BYTES - len(block(b"x-first: a", b"authorization: "))
    value = b"a" * room
    assert parser.parse(block(b"x-first: a", b"authorization: " + value)).fields[b"authorization"] == value


def test_64_headers_pass(parser: HeadParser) -> None:
    """The limit of 64 headers counts every field, the host among them."""
    assert parser.parse(block(*(b"x-%d: a" % n for n in range(63)))).method == "POST"


def test_expect_is_read_with_its_request(parser: HeadParser) -> None:
    """`Expect` is no parse error: its request keeps its id and its length."""
    head = parser.parse(block(b"expect: 100-continue", b"x-request-id: a", b"content-length: 5"))
    assert head.expects
    assert (head.length, head.fields[b"x-request-id"]) == (5, b"a")
    assert not parser.parse(block()).expects


@pytest.mark.parametrize(
    ("field", "closes"),
    [(b"connection: close", True), (b"Connection: keep-alive, Close", True), (b"connection: keep-alive", False)],
)
def test_a_peer_may_ask_for_the_end(parser: HeadParser, field: bytes, closes: bool) -> None:
    """`Connection: close` is read, also in a list; HTTP/1.1 keeps alive otherwise, with and without a body."""
    assert parser.parse(block(field)).closes is closes
    assert parser.parse(block(field, b"content-length: 5")).closes is closes
    assert not parser.parse(block(b"content-length: 5")).closes


def test_a_repeated_traceparent_is_no_valid_one(parser: HeadParser) -> None:
    """Two traceparents are joined into a value that is none: neither is chosen over the other."""
    head = parser.parse(block(b"traceparent: a", b"traceparent: b"))
    assert head.fields[b"traceparent"] == b"a,b"


def test_the_c_parser_is_here() -> None:
    """The tests speak of the C parser, the one that is required at start."""
    assert HAS_C_PARSER


@pytest.mark.parametrize(
    "head",
    [
        block(b"authorization : Worker " + MARK.encode()),
        block(b"author/zation: Worker " + MARK.encode()),
        block(b"authorization: Worker \0" + MARK.encode()),
        block(b"authorization: " + MARK.encode(), b"authorization: " + MARK.encode()),
        block(line=b"POST /" + MARK.encode() + b"\xff HTTP/1.1"),
    ],
)
def test_a_refusal_holds_nothing_of_the_head(parser: HeadParser, head: bytes) -> None:
    """Neither a refusal nor an exception that it refers to holds a part of the head, which may be the credential."""
    assert MARK.encode() in head
    assert refused(parser, head)


def test_no_head_reaches_the_next_one(parser: HeadParser) -> None:
    """A head is parsed the same after a bad one and after one whose body never came."""
    good = parser.parse(block(b"content-length: 5"))
    for other in (block(b"transfer-encoding: chunked"), BY_THE_PARSER["folded header"], block(b"content-length: 9")):
        refused(parser, other)
        assert parser.parse(block(b"content-length: 5")) == good


def judge_any(parser: HeadParser, data: bytes) -> None:
    """Parse and hold what must be true of every head that is not refused."""
    try:
        head = parser.parse(data)
    except Refused as refusal:
        assert refusal.reason is Reason.MALFORMED
        return
    assert isinstance(head, Head)
    method, target, version = data.partition(b"\r\n")[0].split(b" ")
    assert (method.decode(), target.decode(), version) == (head.method, head.target, b"HTTP/1.1")
    assert head.method != "CONNECT"
    assert not (head.chunked and head.length is not None)
    assert b"upgrade" not in head.fields


@given(st.binary(max_size=200))
@example(b"")
@example(b"\r\n\r\n")
def test_any_bytes_parse_or_are_refused(parser: HeadParser, data: bytes) -> None:
    """Arbitrary bytes end in a head or in one refusal, nothing else."""
    judge_any(parser, data)
    judge_any(parser, data + b"\r\n\r\n")


_TOKEN = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ-abcx09", min_size=1, max_size=12).map(str.encode)
_NAMES = st.sampled_from(
    [b"host", b"content-length", b"transfer-encoding", b"upgrade", b"connection", b"expect", b"authorization", b"te"]
)
_VALUES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"chunked", b"5", b"0", b"close", b"upgrade", b"identity", b"100-continue", b"Worker x"]),
)
_FIELD = st.builds(
    lambda name, colon, value: name + colon + value,
    st.one_of(_NAMES, _TOKEN),
    st.sampled_from([b": ", b":", b" : ", b""]),
    _VALUES,
)


@given(
    st.sampled_from([b"GET", b"POST", b"HEAD", b"CONNECT", b"PRI", b"get", b""]),
    st.one_of(st.binary(max_size=30), st.sampled_from([b"/", b"*", b"http://h/", b"h:1"])),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b""]),
    st.lists(_FIELD, max_size=6),
    st.sampled_from([b"\r\n", b"\n", b"\r"]),
)
def test_heads_that_nearly_hold_parse_or_are_refused(
    parser: HeadParser, method: bytes, target: bytes, version: bytes, fields: list[bytes], newline: bytes
) -> None:
    """Heads made of good and bad parts end in a head that is what was sent, or in one refusal."""
    judge_any(parser, newline.join([b" ".join([method, target, version]), *fields]) + newline * 2)
