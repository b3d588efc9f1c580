"""The client's parser of the one answer: what the contract has the sidecar write, and nothing else."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider import limits
from provider.refs import SecretRef
from sidecar.client_answer import read_answer
from sidecar.client_head import NotAsContracted, complete, read_head
from sidecar.client_offer import Offer
from tests.kit.scripted import HEAD, body, ok, refusal
from tests.kit.world import default_refs, facts, offer

NOW_MS = 1_800_000_000_000
REFS = default_refs(3)
BUNDLE = SecretRef.of("project-1", "bundle", 3)
OFFER_V1 = offer(facts(NOW_MS, REFS), REFS)
OFFER_V2 = offer(facts(NOW_MS, REFS, BUNDLE), REFS, BUNDLE)

VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)


def read(document: dict[str, object], content: bytes) -> list[bytes]:
    """Return the values as bytes, which only a test may make of them."""
    room = bytearray(content)
    with memoryview(room) as view:
        values = read_answer(Offer.parse(json.dumps(document).encode()).command, view)
        result = [bytes(value) for value in values]
        assert all(value.readonly for value in values)
        for value in values:
            value.release()
    room.clear()  # raises BufferError while any view is left
    return result


def refuse(document: dict[str, object], content: bytes) -> None:
    """Hold that the body is refused and that no view of it is left."""
    room = bytearray(content)
    view = memoryview(room)
    with pytest.raises(NotAsContracted) as caught:
        read_answer(Offer.parse(json.dumps(document).encode()).command, view)
    view.release()
    assert str(caught.value) == "not as contracted"
    del caught
    room.clear()


def sample(document: dict[str, object], **values: bytes) -> bytes:
    """Return a valid body; the bundle and each secret have their default value unless one is given."""
    refs = {ref.text: values.get(f"s{n}", b"value-%d" % n) for n, ref in enumerate(REFS)}
    return body(document, refs | {BUNDLE.text: values.get("bundle", b"A=1\nB=2\n")})


@given(st.lists(VALUES, min_size=4, max_size=4))
def test_any_text_round_trips(values: list[str]) -> None:
    """Whatever strict UTF-8 without NUL a value is, the client gives its very bytes, secrets first, then the bundle."""
    given_values = dict(zip([*(ref.text for ref in REFS), BUNDLE.text], values, strict=True))
    assert read(OFFER_V2, body(OFFER_V2, given_values)) == [value.encode() for value in values]
    assert read(OFFER_V1, body(OFFER_V1, given_values)) == [value.encode() for value in values[:3]]


def test_ids_with_quotes_compare_as_they_are_written() -> None:
    """An id with a quote, a backslash or a letter beyond ASCII stands in the answer as JSON writes it."""
    document = OFFER_V1 | {"runId": 'ru"n\\é\u2028\x80', "offerId": "{}"}
    assert read(document, sample(document)) == [b"value-0", b"value-1", b"value-2"]


def test_no_bundle_is_an_empty_list() -> None:
    """An `@v2` answer without a bundle bears an empty `environmentBundles`, and an offer of bundle alone no value."""
    without = OFFER_V2 | {"environmentBundleRefs": []}
    assert len(read(without, sample(without))) == 3
    alone = OFFER_V2 | {"secretRefs": [], "environment": []}
    assert read(alone, sample(alone)) == [b"A=1\nB=2\n"]
    refuse(without, sample(OFFER_V2))


@pytest.mark.parametrize("document", [OFFER_V1, OFFER_V2], ids=["v1", "v2"])
def test_every_cut_is_refused(document: dict[str, object]) -> None:
    """A body cut anywhere, or with anything after it, is refused."""
    content = sample(document, s1=b'a"\\\x01\xc3\xa9')
    for length in range(len(content)):
        refuse(document, content[:length])
    for more in (b" ", b"\n", b"}", b"\0", content):
        refuse(document, content + more)


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_corrupt_byte_is_refused_or_inside_a_value(at: int, change: int) -> None:
    """One changed byte is refused, unless it stands in a value and makes it another valid one; then the length of the
    others and the order stay.
    """
    content = bytearray(sample(OFFER_V2))
    at %= len(content)
    content[at] ^= change
    inside = any(start <= at < end for start, end in _value_spans(bytes(sample(OFFER_V2))))
    try:
        values = read(OFFER_V2, bytes(content))
    except NotAsContracted:
        return
    assert inside
    assert len(values) == 4
    assert json.loads(bytes(content))["values"][0]["value"].encode() == values[0]


def _value_spans(content: bytes) -> list[tuple[int, int]]:
    return [match.span(1) for match in re.finditer(rb'"value":"((?:[^"\\]|\\.)*)"', content)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"schema":"qinglong/remote-secret-delivery@v2"', b'"schema":"qinglong/remote-secret-delivery@v1"'),
        (b'"runId":"018f', b'"runId":"018e'),
        (b'"attemptId":"018f', b'"attemptId":"018e'),
        (b'"offerId":"018f', b'"offerId":"018e'),
        (b'"executionDigest":"e', b'"executionDigest":"d'),
        (b'{"schema"', b'{ "schema"'),
        (b'{"schema"', b'\xef\xbb\xbf{"schema"'),
        (b'"values":[', b'"extra":1,"values":['),
        (b'"values":[', b'"values":[],"values":['),
        (b'"value":"value-0"', b'"value":"value-0","more":1'),
        (b'"value":"value-0"', b'"value":7'),
        (b'"value":"value-0"', b'"value":null'),
        (b'"value":"value-0"', b'"value":""'),
        (b'"value":"value-0"', b'"value":"a\0b"'),
        (b'"value":"value-0"', b'"value":"a\nb"'),
        (b'"value":"value-0"', b'"value":"\xff"'),
        (b'"value":"value-0"', b'"value":"\xed\xa0\x80"'),
        (b'"value":"value-0"', b'"value":"\xc0\x80"'),
        (b"]}", b'],"x":1}'),
        (b'"environmentBundles"', b'"bundles"'),
    ],
)
def test_the_frame_is_exact(old: bytes, new: bytes) -> None:
    """Another id, key, order, type, spacing or an ill-formed value is refused."""
    content = sample(OFFER_V2)
    assert old in content
    refuse(OFFER_V2, content.replace(old, new, 1))


def test_swapped_repeated_or_missing_items_are_refused() -> None:
    """Refs must be those asked for, each once, in the order asked."""
    first, second, third = (
        b'{"secretRef":"%s","value":"value-%d"}' % (ref.text.encode(), n) for n, ref in enumerate(REFS)
    )
    content = sample(OFFER_V1)
    whole = b",".join([first, second, third])
    assert whole in content
    for items in ([second, first, third], [first, first, third], [first, third], [first, second, third, third], []):
        refuse(OFFER_V1, content.replace(whole, b",".join(items)))
    refuse(OFFER_V1, sample(OFFER_V2))
    refuse(OFFER_V2, sample(OFFER_V1))


@pytest.mark.parametrize("code", range(256))
def test_only_the_contracts_escapes(code: int) -> None:
    """After a backslash stand the eight characters of the contract or `u00` and lower-case hex of a control character
    that has no shorter form, and nothing else.
    """
    short = {ord(char): value for char, value in zip('"\\bfnrt', b'"\\\b\f\n\r\t', strict=True)}
    content = sample(OFFER_V1).replace(b"value-0", b"a\\" + bytes([code]) + b"z")
    if code in short:
        assert read(OFFER_V1, content)[0] == b"a" + bytes([short[code]]) + b"z"
    else:
        refuse(OFFER_V1, content)
    for digits in {b"%02x" % code, b"%02X" % code}:
        content = sample(OFFER_V1).replace(b"value-0", b"a\\u00" + digits + b"z")
        if 0 < code < 0x20 and bytes([code]) not in b"\b\f\n\r\t" and digits.islower() | digits.isdigit():
            assert read(OFFER_V1, content)[0] == b"a" + bytes([code]) + b"z"
        else:
            refuse(OFFER_V1, content)


@pytest.mark.parametrize(
    "escape", [b"\\u0101", b"\\u001", b"\\u00", b"\\", b"\\x41", b"\\u+001", b"\\U0001", b"\\u0001\\"]
)
def test_broken_escapes(escape: bytes) -> None:
    """A longer, cut or unknown escape is refused."""
    refuse(OFFER_V1, sample(OFFER_V1).replace(b"value-0", escape))


def test_limits_hold_after_unescaping() -> None:
    """A value may have 16 KiB, a bundle 96 KiB, the batch 64 KiB, counted in raw bytes; one more is refused."""
    big = b"\x01" * limits.VALUE_BYTES
    assert read(OFFER_V2, sample(OFFER_V2, s0=big, s1=big))[:2] == [big, big]
    refuse(OFFER_V2, sample(OFFER_V2, s0=big + b"x"))
    bundle = b"n" * limits.BUNDLE_BYTES
    assert read(OFFER_V2, sample(OFFER_V2, bundle=bundle))[3] == bundle
    refuse(OFFER_V2, sample(OFFER_V2, bundle=bundle + b"x"))
    refs = default_refs(5)
    document = offer(facts(NOW_MS, refs), refs)
    quarter = {ref.text: b"q" * (limits.BATCH_BYTES // 4) for ref in refs}
    refuse(document, body(document, quarter))
    assert read(
        document, body(document, quarter | {refs[4].text: b"x", refs[0].text: b"q" * (limits.BATCH_BYTES // 4 - 1)})
    )


# --- the head ----------------------------------------------------------------------------------------------------


def test_head_of_a_delivery() -> None:
    """Status, length, type and where the body begins are read; other headers are let be, whatever their case."""
    data = ok(b"abc", HEAD.replace(b"content-type", b"Content-TYPE") + b"X-Request-Id: a\r\nconnection: keep-alive\r\n")
    head = read_head(memoryview(data))
    assert (head.status, head.length, head.framed, head.closes, head.retry_after) == (200, 3, True, False, None)
    assert data[head.body :] == b"abc"


def test_head_of_a_refusal() -> None:
    """`Retry-After` is read as whole seconds and `connection: close` is seen."""
    head = read_head(memoryview(refusal(429, "retry-after: 17", "connection: close")))
    assert (head.status, head.framed, head.closes, head.retry_after) == (429, False, True, 17)
    assert read_head(memoryview(refusal(503, "retry-after: tomorrow"))).retry_after is None


@pytest.mark.parametrize(
    "line",
    [
        b"transfer-encoding: chunked",
        b"content-encoding: gzip",
        b"content-type: text/html",
    ],
)
def test_another_framing_is_told(line: bytes) -> None:
    """A transfer or content encoding, or another type, makes a body that the client does not take."""
    head = HEAD if b"type" not in line else HEAD.replace(b"content-type: application/json; charset=utf-8\r\n", b"")
    assert not read_head(memoryview(ok(b"abc", head + line + b"\r\n"))).framed


@pytest.mark.parametrize("length", [b"", b"-1", b"+3", b"3 3", b"03", b"0x3", b"99999999", b"3, 3"])
def test_a_length_that_is_none(length: bytes) -> None:
    """Anything but a plain decimal of at most seven digits counts as no length."""
    head = read_head(memoryview(HEAD + b"content-length: " + length + b"\r\n\r\nabc"))
    assert head.length == 0


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 0200 OK\r\n\r\n",
        b"HTTP/1.1 600 OK\r\n\r\n",
        HEAD + b"no colon\r\n\r\n",
        HEAD + b" folded: x\r\n\r\n",
        HEAD + b"na me: x\r\n\r\n",
        HEAD + b"name : x\r\n\r\n",
        HEAD + b"name: x\x01\r\n\r\n",
        HEAD + b"name: x\ny: z\r\n\r\n",
        HEAD + b"content-length: 3\r\ncontent-length: 3\r\n\r\n",
        HEAD + b"content-type: application/json; charset=utf-8\r\n\r\n",
        HEAD,
    ],
)
def test_malformed_heads(data: bytes) -> None:
    """Another version, a line that is no header, or a watched header twice is refused."""
    with pytest.raises(NotAsContracted):
        read_head(memoryview(data))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_none(data: bytes) -> None:
    """Whatever arrives is read as a head, refused as none, or not complete yet."""
    for prefix in (b"", b"HTTP/1.1 200 OK\r\n", HEAD):
        view = memoryview(prefix + data + b"\r\n\r\n")
        assert complete(view)
        try:
            assert 100 <= read_head(view).status <= 599
        except NotAsContracted:
            continue
