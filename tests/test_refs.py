"""provider/refs.py: one canonical text for every secret, and nothing else is a ref."""

import base64
import copy
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from provider.refs import PREFIX, InvalidRef, SecretRef
from tests.kit.exceptions import said

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text(encoding="utf-8"))
SAMPLE: str = VECTORS["secretRefs"][2]["ref"]
CANARY = "canary-Vq7xT2"

parts = st.text(
    st.characters(exclude_categories=["Cs"], min_codepoint=0x20, exclude_characters="\x7f"), min_size=1, max_size=128
).filter(lambda part: len(part.encode()) <= 128)
versions = st.none() | st.integers(1, 2_147_483_647)


def sealed(payload: bytes) -> str:
    """The text of a ref that carries these bytes, whatever they are."""
    return PREFIX + base64.urlsafe_b64encode(payload).rstrip(b"=").decode()


def canonical(project_id: str, name: str, version: int | None) -> str:
    """The canonical text, written without the code under test."""
    document: dict[str, object] = {"projectId": project_id, "name": name}
    if version is not None:
        document["version"] = version
    return sealed(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def fields(ref: SecretRef) -> tuple[object, ...]:
    """All that a ref says."""
    return ref.text, ref.project_id, ref.name, ref.version, ref.file_name


def is_ref(text: str) -> bool:
    """Whether `parse` takes the text; when it does, the ref must be what the text says and nothing else."""
    try:
        ref = SecretRef.parse(text)
    except InvalidRef:
        return False
    assert ref.text == text == canonical(ref.project_id, ref.name, ref.version)
    return True


@pytest.mark.parametrize("vector", VECTORS["secretRefs"], ids=lambda vector: str(vector["fileName"][:8]))
def test_vectors_are_parsed_and_written(vector: dict[str, Any]) -> None:
    """Every good vector parses to its parts and file name, and its parts write its text."""
    parsed = SecretRef.parse(vector["ref"])
    assert (parsed.project_id, parsed.name, parsed.version) == (vector["projectId"], vector["name"], vector["version"])
    assert parsed.file_name == vector["fileName"]
    assert SecretRef.of(vector["projectId"], vector["name"], vector["version"]) == parsed


@pytest.mark.parametrize("vector", VECTORS["refusedSecretRefs"], ids=lambda vector: str(vector["why"]))
def test_refused_vectors_are_refused(vector: dict[str, str]) -> None:
    """Every refused vector is refused, for the reason in its name."""
    with pytest.raises(InvalidRef):
        SecretRef.parse(vector["ref"])


@given(parts, parts, versions)
def test_parse_and_of_are_inverse(project_id: str, name: str, version: int | None) -> None:
    """Any parts within bounds make the canonical text, and that text gives the same parts."""
    text = canonical(project_id, name, version)
    assume(len(text) <= 512)
    ref = SecretRef.of(project_id, name, version)
    assert ref.text == text
    assert SecretRef.parse(text) == ref
    assert (ref.project_id, ref.name, ref.version) == (project_id, name, version)
    assert ref.file_name == hashlib.sha256(text.encode()).hexdigest()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | parts.filter(lambda part: len(part) < 20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["projectId", "name", "version", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)


@given(json_values, st.sampled_from([(",", ":"), (", ", ":"), (",", ": ")]), st.booleans())
def test_any_json_inside_is_canonical_or_refused(
    document: object, separators: tuple[str, str], ensure_ascii: bool
) -> None:
    """Whatever JSON a ref carries, it is taken only as the very text that its parts write."""
    is_ref(sealed(json.dumps(document, separators=separators, ensure_ascii=ensure_ascii).encode()))


@given(st.binary(max_size=400))
def test_any_bytes_inside_are_canonical_or_refused(payload: bytes) -> None:
    """Whatever bytes a ref carries, they are a canonical document or InvalidRef, never another exception."""
    is_ref(sealed(payload))


@given(st.text(max_size=600) | st.text(st.sampled_from("abAB01-_={}"), max_size=520).map(PREFIX.__add__))
def test_any_text_is_canonical_or_refused(text: str) -> None:
    """Whatever the text, lone surrogates and great length included, it is a canonical ref or InvalidRef."""
    is_ref(text)


def test_every_byte_value_at_every_position() -> None:
    """No character may stand for another: a ref with one changed position is another canonical ref or refused."""
    alphabet = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    for position in range(len(SAMPLE)):
        for character in map(chr, range(256)):
            taken = is_ref(SAMPLE[:position] + character + SAMPLE[position + 1 :])
            assert not taken or character in alphabet or character == SAMPLE[position]


def test_every_deletion_and_repetition_is_refused() -> None:
    """A ref that lost or doubled one character of its frame is refused."""
    frame = (*range(len(PREFIX) + 4), len(SAMPLE) - 1)  # prefix, `{"p` and the closing brace
    for position in frame:
        assert not is_ref(SAMPLE[:position] + SAMPLE[position + 1 :])
        assert not is_ref(SAMPLE[:position] + SAMPLE[position] + SAMPLE[position:])


@pytest.mark.parametrize("around", ["{} ", " {}", "{}\n", "\n{}", "{}=", "{}==", "\ufeff{}", "{}\x00", "{}{}"])
def test_nothing_may_stand_around_a_ref(around: str) -> None:
    """White space, padding, a byte order mark, a NUL or a second ref beside the text makes it none."""
    assert is_ref(SAMPLE)
    assert not is_ref(around.format(SAMPLE, SAMPLE))


@pytest.mark.parametrize(
    "document",
    [
        '{"projectId":"p","name":"n"} ',
        ' {"projectId":"p","name":"n"}',
        '{"projectId":"p","name":"n"}{}',
        '{"projectId":"p","name":"n"}x',
        '\ufeff{"projectId":"p","name":"n"}',
        '{"projectId":"p"}',
        '{"name":"n"}',
        '{"projectId":"p","name":null}',
        '{"projectId":["p"],"name":"n"}',
        '{"projectId":"p","name":"n","version":-1}',
        '{"projectId":"p","name":"n","version":-0}',
        '{"projectId":"p","name":"n","version":01}',
        '{"projectId":"p","name":"n","version":1e0}',
        '{"projectId":"p","name":"n","version":NaN}',
        '{"projectId":"p","name":"n","version":false}',
        '{"projectId":"p","name":"n","version":1,"version":1}',
        '{"version":1,"projectId":"p","name":"n"}',
        '{"projectId":"p","name":"n","Version":1}',
        "null",
        '"p"',
        "7",
        "",
    ],
)
def test_a_document_written_otherwise_is_refused(document: str) -> None:
    """What says the same in other words, or says something else, is no ref."""
    assert not is_ref(sealed(document.encode()))


def test_bytes_that_are_not_utf8_are_refused() -> None:
    """Overlong forms, encoded surrogates and stray continuation bytes are no UTF-8 and no ref."""
    for broken in (b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff"):
        assert not is_ref(sealed(b'{"projectId":"p","name":"' + broken + b'"}'))


@pytest.mark.parametrize(
    ("part", "good"),
    [
        ("", False),
        ("n", True),
        ("n" * 128, True),
        ("n" * 129, False),
        ("\u00e9" * 64, True),
        ("\u00e9" * 64 + "n", False),
        ("\u20ac" * 42 + "nn", True),
        ("\u20ac" * 43, False),
        ("\U0001f511" * 32, True),
        ("\U0001f511" * 32 + "n", False),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else f"{len(value)}c-{len(value.encode())}b",
)
def test_parts_are_bounded_in_bytes(part: str, good: bool) -> None:
    """`projectId` and `name` are 1..128 UTF-8 bytes each, however many characters that is."""
    for text in (canonical(part, "n", 1), canonical("p", part, None)):
        assert is_ref(text) is good
    if not good:
        with pytest.raises(InvalidRef):
            SecretRef.of("p", part)


def test_control_characters_are_exactly_those_of_the_contract() -> None:
    """U+0000..U+001F and U+007F are refused in both parts; U+0080, U+2028 and every other one is a name's own."""
    for code in (*range(0xA1), 0x2028, 0x2029, 0xFEFF, 0xFFFF, 0x10FFFF):
        good = code >= 0x20 and code != 0x7F
        for text in (canonical(f"a{chr(code)}", "n", None), canonical("p", f"a{chr(code)}", None)):
            assert is_ref(text) is good


@pytest.mark.parametrize("surrogate", ["\ud800", "\udbff", "\udc00", "\udfff", "a\udc80b"])
def test_lone_surrogates_are_refused(surrogate: str) -> None:
    """A lone surrogate has no UTF-8: it is refused as a part, inside the document and in the text itself."""
    with pytest.raises(InvalidRef):
        SecretRef.of("p", surrogate)
    with pytest.raises(InvalidRef):
        SecretRef.of(surrogate, "n")
    assert not is_ref(SAMPLE + surrogate)
    assert not is_ref(sealed(json.dumps({"projectId": "p", "name": surrogate}, separators=(",", ":")).encode()))


@pytest.mark.parametrize(
    ("version", "good"),
    [(None, True), (1, True), (2_147_483_647, True), (0, False), (-1, False), (2_147_483_648, False), (10**400, False)],
)
def test_versions_are_bounded(version: int | None, good: bool) -> None:
    """A version is 1..2147483647 or absent."""
    assert is_ref(canonical("p", "n", version)) is good
    if not good:
        with pytest.raises(InvalidRef):
            SecretRef.of("p", "n", version)


def test_no_size_of_a_version_is_another_error() -> None:
    """A version too long to be written at all is InvalidRef like any other that is out of bounds."""
    for version in (10**5000, -(10**5000)):
        with pytest.raises(InvalidRef):
            SecretRef.of("p", "n", version)


@pytest.mark.parametrize("version", [True, False, 1.0, "1", b"1"])
def test_only_an_integer_is_a_version(version: Any) -> None:
    """Booleans, floats and texts are no versions."""
    with pytest.raises(InvalidRef):
        SecretRef.of("p", "n", version)


@pytest.mark.parametrize("value", [None, 7, b"p", ["p"], True])
def test_only_text_is_a_part_or_a_ref(value: Any) -> None:
    """Anything but str is InvalidRef, in a part and as the whole."""
    with pytest.raises(InvalidRef):
        SecretRef.of(value, "n")
    with pytest.raises(InvalidRef):
        SecretRef.of("p", value)
    with pytest.raises(InvalidRef):
        SecretRef.parse(value)


def test_the_text_is_bounded_at_512_bytes() -> None:
    """The longest text that base64 can make within 512 is taken, the next one is refused though its parts are good."""
    frame = len('{"projectId":"","name":""}')
    # 375 bytes make 500 characters beside the prefix's 12; a quote is written with two bytes.
    quotes = '"' * 128
    project_id = '"' * 46 + "p"
    assert frame + 2 * len(quotes) + 2 * 46 + 1 == 375
    longest = SecretRef.of(project_id, quotes)
    assert len(longest.text) == 512 and SecretRef.parse(longest.text) == longest
    longer = canonical(project_id + "p", quotes, None)
    assert len(longer) > 512 and not is_ref(longer)
    with pytest.raises(InvalidRef):
        SecretRef.of(project_id + "p", quotes)


def test_no_ref_disagrees_with_its_text() -> None:
    """Made directly, copied or replaced, the text alone says what the fields are, or it is refused."""
    ref = SecretRef.parse(SAMPLE)
    assert SecretRef(ref.text) == ref
    assert copy.deepcopy(ref) == ref and copy.copy(ref).file_name == ref.file_name
    other = SecretRef.of("p", "n")
    assert fields(replace(ref, text=other.text)) == fields(other)
    changes: dict[str, Any]
    for changes in ({"project_id": "project-2"}, {"name": "other"}, {"version": None}, {"file_name": "0" * 64}):
        with pytest.raises((ValueError, TypeError)):
            replace(ref, **changes)
    with pytest.raises(InvalidRef):
        replace(ref, text=None)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        ref.name = "other"  # type: ignore[misc]


def test_refs_are_equal_and_hashed_by_text() -> None:
    """Two refs of one text are one member of a set; another version is another ref."""
    assert len({SecretRef.parse(SAMPLE), SecretRef.of("project-1", "certificate", 3)}) == 1
    assert SecretRef.of("project-1", "certificate", 3) != SecretRef.of("project-1", "certificate")


def test_deep_nesting_is_refused_near_the_end_of_the_stack() -> None:
    """A document of brackets is InvalidRef, also where the interpreter's stack ends first."""

    def descend(levels: int) -> bool:
        return is_ref(sealed(b"[" * 375)) if levels == 0 else descend(levels - 1)

    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    assert descend(sys.getrecursionlimit() - depth - 100) is False


@pytest.mark.parametrize(
    "make",
    [
        lambda: SecretRef.parse(CANARY),
        lambda: SecretRef.parse(PREFIX + CANARY),
        lambda: SecretRef.parse(sealed(f'{{"projectId":"{CANARY}'.encode())),
        lambda: SecretRef.parse(sealed(f'["{CANARY}"]'.encode())),
        lambda: SecretRef.parse(sealed(CANARY.encode() + b"\xff")),
        lambda: SecretRef.parse(canonical(CANARY, "\x00", None)),
        lambda: SecretRef.of(CANARY, "\ud800"),
        lambda: SecretRef.of(CANARY * 20, "n"),
        lambda: SecretRef(CANARY),
    ],
)
def test_no_error_holds_the_input(make: Callable[[], SecretRef]) -> None:
    """An InvalidRef, and whatever it refers to, says nothing of what was given."""
    with pytest.raises(InvalidRef) as caught:
        make()
    assert str(caught.value) == str(InvalidRef())
    assert CANARY not in said(caught.value)
    assert sealed(CANARY.encode())[len(PREFIX) : -2] not in said(caught.value)


def test_an_invalid_ref_takes_no_text() -> None:
    """The exception's text is fixed: giving it one raises TypeError."""
    with pytest.raises(TypeError):
        InvalidRef("text")  # type: ignore[call-arg]


def test_the_repr_shows_nothing() -> None:
    """The repr holds no text, name, project or file name of the ref."""
    ref = SecretRef.of(CANARY, "name-of-it", 7)
    shown = repr(ref)
    assert shown == "SecretRef(redacted)"
