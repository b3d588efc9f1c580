"""provider/strictjson.py: RFC 8259 and nothing that can be read in two ways.

A second reader, written here from the RFC's grammar without the json module, judges the same bytes; both must agree.
"""

import json
import re
from typing import NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from provider.outcomes import Reason, Refused
from provider.strictjson import Number, parse
from tests.kit.exceptions import said

CANARY = "canary-Vq7xT2"
REFUSED = object()


class Reader:
    """Reads JSON by the grammar of RFC 8259, with contract 2's limits. Raises ValueError for everything else."""

    _token = re.compile(
        r'[ \t\n\r]*(?:(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
        r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
        r"|(?P<word>true|false|null)|(?P<mark>[][{},:])|(?P<end>\Z))"
    )
    _unit = re.compile(r"\\u(....)|\\(.)|([^\\])", re.DOTALL)

    def __init__(self, body: bytes) -> None:
        self.text, self.at, self.depth = body.decode(), 0, 0

    def document(self) -> object:
        value = self.value(*self.next())
        if self.next()[0] != "end":
            self.fail()
        return value

    def fail(self) -> NoReturn:
        raise ValueError

    def next(self) -> tuple[str, str]:
        match = self._token.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            self.fail()
        self.at = match.end()
        return match.lastgroup, match[match.lastgroup]

    def value(self, kind: str, token: str) -> object:
        if kind == "string":
            return self.string(token)
        if kind == "number":
            return Number(token)
        if kind == "word":
            return {"true": True, "false": False, "null": None}[token]
        if token not in ("[", "{") or self.depth == 4:
            self.fail()
        self.depth += 1
        value = self.array() if token == "[" else self.object()
        self.depth -= 1
        return value

    def array(self) -> list[object]:
        items: list[object] = []
        kind, token = self.next()
        while token != "]" or kind != "mark":
            items.append(self.value(kind, token))
            mark = self.next()
            if mark == ("mark", "]"):
                break
            if mark != ("mark", ","):
                self.fail()
            kind, token = self.next()
            if (kind, token) == ("mark", "]"):
                self.fail()
        return items

    def object(self) -> dict[str, object]:
        members: dict[str, object] = {}
        kind, token = self.next()
        while token != "}" or kind != "mark":
            if kind != "string" or (key := self.string(token)) in members or self.next() != ("mark", ":"):
                self.fail()
            members[key] = self.value(*self.next())
            mark = self.next()
            if mark == ("mark", "}"):
                break
            if mark != ("mark", ","):
                self.fail()
            kind, token = self.next()
            if (kind, token) == ("mark", "}"):
                self.fail()
        return members

    def string(self, token: str) -> str:
        units = b""
        for code, escape, plain in self._unit.findall(token[1:-1]):
            if code:
                units += int(code, 16).to_bytes(2, "little")
            else:
                units += (plain or dict(zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True))[escape]).encode("utf-16-le")
        return units.decode("utf-16-le")


def expected(body: bytes) -> object:
    """What the second reader makes of the bytes; REFUSED when nothing."""
    try:
        return Reader(body).document()
    except ValueError:
        return REFUSED


def outcome(body: bytes) -> object:
    """What `parse` makes of the bytes; REFUSED when it refuses for JSON. Any other exception fails the test."""
    try:
        return parse(body)
    except Refused as refusal:
        assert refusal.reason is Reason.JSON
        return REFUSED


def same(one: object, other: object) -> bool:
    """Equal in value and type: no bool for a number, no number for a text."""
    return repr(one) == repr(other) and one == other


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\u00e9\U0001f511", max_size=2), inner, max_size=3)
    ),
    max_leaves=10,
)
tokens = st.sampled_from(
    [
        *("{", "}", "[", "]", ",", ":", '"a"', '"a":', '"', "\\", '"\\u0061"', '"\\ud83d', '\\ude00"', '"\\ud800"'),
        *("\\n", '"\\x"', '"\\u00g0"', '"\\u 061"', '"\\U00000061"', '"\\u+061"', "//", "/**/", "'", "0x1"),
        *(
            "0",
            "1",
            "-",
            ".",
            "e",
            "E5",
            "+",
            "01",
            "-0",
            "NaN",
            "Infinity",
            "-Infinity",
            "true",
            "nul",
            "null",
            "True",
        ),
        *(" ", "\n", "\t", "\r", "\f", "\v", "\u00a0", "\u2028", "\ufeff", "\x00", "\x1f", "\x7f", "\u0663"),
    ]
)


@given(documents, st.booleans(), st.sampled_from([None, 1]))
def test_agrees_with_the_grammar_on_written_documents(document: object, ascii_only: bool, indent: int | None) -> None:
    """Every document that nests at most four deep is read to what it says, deeper ones are refused."""
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    assert same(outcome(body), expected(body))


@settings(max_examples=400)
@given(st.lists(tokens, max_size=8).map("".join))
@example('{"a":1,"\\u0061":2}')
@example("[[[[]]]]")
@example("[[[[[]]]]]")
def test_agrees_with_the_grammar_on_any_tokens(text: str) -> None:
    """Bits of JSON and of what looks like it, in any order, are read alike by both readers."""
    assert same(outcome(text.encode()), expected(text.encode()))


@settings(max_examples=300)
@given(documents, st.data())
def test_agrees_with_the_grammar_after_one_change(document: object, data: st.DataObject) -> None:
    """A document with one byte deleted, inserted or replaced is read alike by both readers."""
    body = json.dumps(document, ensure_ascii=data.draw(st.booleans())).encode()
    at = data.draw(st.integers(0, len(body)))
    body = body[:at] + data.draw(st.binary(max_size=1)) + body[at + data.draw(st.integers(0, 1)) :]
    assert same(outcome(body), expected(body))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Whatever the bytes, the outcome is a document or Refused(JSON)."""
    assert same(outcome(body), expected(body))


def test_every_byte_value_alone_and_inside() -> None:
    """Each of the 256 byte values, alone, between values, in a text and after a backslash, is read as the RFC says."""
    for byte in (bytes([value]) for value in range(256)):
        for body in (byte, b"[1" + byte + b"1]", b'"a' + byte + b'b"', b'"\\' + byte + b'"', byte + b"1", b"1" + byte):
            assert same(outcome(body), expected(body)), byte


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-16-le"),
        "{}".encode("utf-32"),
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b"NaN",
        b"[Infinity]",
        b'{"a":-Infinity}',
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":1}}',
        b'[{"":1,"":1}]',
        b'{"a":1,"\\u0061":1}',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud800\\u0061"',
        b'{"\\ud800":1}',
        b'[[["\\udfff"]]]',
        b'[[[{"a":"\\udfff"}]]]',
        b"[1,]",
        b'{"a":1,}',
        b"{a:1}",
        b"{'a':1}",
        b"[1 2]",
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"1e",
        b"0x10",
        b"1_000",
        b"{}{}",
        b"{} x",
        b"// c\n{}",
        b'"a\nb"',
        b'"a\x00b"',
        b'"\t"',
        b"tru",
        b"None",
    ],
)
def test_refuses(body: bytes) -> None:
    """Each of these is `invalid_json` in the contract's words."""
    assert expected(body) is REFUSED
    assert outcome(body) is REFUSED


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_four_levels_may_be_open_and_no_fifth(opening: str) -> None:
    """Four arrays or objects open at once are allowed, the outermost counted; a fifth is refused, also when empty."""
    closing = {"[": "]", '{"a":': "}"}[opening]
    for depth, good in ((1, True), (3, True), (4, True), (5, False), (6, False), (30, False)):
        inner = "{}" if opening == "[" else "[]"
        body = opening * (depth - 1) + inner + closing * (depth - 1)
        assert (outcome(body.encode()) is not REFUSED) is good
        assert same(outcome(body.encode()), expected(body.encode()))


def test_only_open_levels_count() -> None:
    """Brackets in texts and brackets that are closed again open nothing."""
    for text in ('["[[[[[[{{{{{{", {"[{[{[{": "]]]"}]', "[" + ",".join(["[[[]]]"] * 50) + "]"):
        assert same(outcome(text.encode()), json.loads(text))


@pytest.mark.parametrize("body", [b"[" * 65_536, b'{"a":' * 13_000, b"[" * 30_000 + b"]" * 30_000, b"[{}," * 16_000])
def test_depth_cannot_exhaust_the_stack(body: bytes) -> None:
    """A body made of nothing but openings is refused like any other, by no other exception."""
    assert outcome(body) is REFUSED


def test_long_numbers_keep_their_form() -> None:
    """A number of 5,000 digits or with a huge exponent is handed back as written: no limit of int is met."""
    for lexeme in ("9" * 5000, "-" + "1" * 60_000, "1e999999999", "0." + "0" * 5000 + "1"):
        assert parse(lexeme.encode()) == Number(lexeme)


@pytest.mark.parametrize("lexeme", ["0", "-0", "4", "4.0", "1e0", "1E+2", "-1.5e-3", "2147483648"])
def test_numbers_are_neither_text_nor_bool_nor_int(lexeme: str) -> None:
    """A number comes back as Number with its lexeme, so that `4.0`, `-0` and `1e0` can be told from integers."""
    number = parse(lexeme.encode())
    assert number != lexeme
    assert not isinstance(number, (str, int, float))
    assert number == Number(lexeme)


def test_white_space_may_stand_around() -> None:
    """The RFC's four white space characters, and no others, may stand before and after the document."""
    assert parse(b" \t\r\n{} \t\r\n") == {}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_reads_any_buffer(kind: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    """bytes, bytearray and memoryview are read alike."""
    assert parse(kind(b'{"a":["\xc3\xa9",null,true]}')) == {"a": ["\u00e9", None, True]}


@pytest.mark.parametrize(
    "body",
    [
        f'{{"leaseToken":"{CANARY}"'.encode(),
        f'{{"a":"{CANARY}","a":1}}'.encode(),
        f'["{CANARY}\\ud800"]'.encode(),
        f'["{CANARY}",NaN]'.encode(),
        f'["{CANARY}"'.encode() + b"\xff]",
        f'[[[[["{CANARY}"]]]]]'.encode(),
        b"[" * 65_000 + CANARY.encode(),
    ],
)
def test_no_refusal_holds_the_body(body: bytes) -> None:
    """The refusal, and whatever it refers to, says nothing of the body."""
    with pytest.raises(Refused) as caught:
        parse(body)
    assert caught.value.__context__ is None
    assert CANARY not in said(caught.value)


def test_a_number_shows_nothing() -> None:
    """The repr of a number leaves out what was written, as it is input."""
    assert "271828" not in repr(Number("271828"))
