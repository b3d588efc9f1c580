"""Bytes of the answers: heads, problem documents, ids and times."""

import json
import re
import time
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.outcomes import Code, Reason
from provider.wire import HEAD_ROOM
from sidecar import answers
from tests.kit.stand import Answer, parse_answer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
KEYS = ["type", "title", "status", "detail", "instance", "code", "timestamp", "trace_id"]


def refusal(reason: Reason, *, close: bool = False, retry_after: int | None = None) -> Answer:
    """Return a refusal as a client reads it."""
    made = answers.refusal(reason, "an-id", TRACE, close=close, retry_after=retry_after)
    answer, rest = parse_answer(made.data)
    assert rest == b""
    assert answer.json()["instance"] == made.instance
    return answer


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_a_refusal_is_the_problem_document_of_its_row(reason: Reason) -> None:
    """Status, code and fixed texts are the table's, keys and headers the contract's, and nothing else stands there."""
    answer = refusal(reason)
    problem = reason.value.code.value
    document = answer.json()
    assert list(document) == KEYS
    assert document["type"] == f"urn:secret-sidecar:problem:{problem.code}"
    assert (document["title"], document["detail"], document["code"]) == (problem.title, problem.detail, problem.code)
    assert answer.status == document["status"] == problem.status
    assert document["trace_id"] == TRACE
    instance = uuid.UUID(document["instance"].removeprefix("urn:uuid:"))
    assert instance.version == 4
    assert f"urn:uuid:{instance}" == document["instance"]
    expected = {
        "content-type": "application/problem+json",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "content-length": str(len(answer.body)),
        "x-request-id": "an-id",
    }
    extra = {
        Reason.METHOD: {"allow": "POST"},
        Reason.IN_FLIGHT_LIMIT: {"retry-after": "1"},
        Reason.CREDENTIAL_IN_FLIGHT_LIMIT: {"retry-after": "1"},
    }
    assert answer.headers == list((expected | extra.get(reason, {})).items())


def test_every_answer_of_one_code_differs_only_in_ids_and_time() -> None:
    """Who is refused for different reasons of one code cannot tell them apart."""
    for code in Code:
        documents = []
        for reason in (reason for reason in Reason if reason.value.code is code):
            document = refusal(reason).json()
            documents.append({key: document[key] for key in KEYS if key not in ("instance", "timestamp")})
        assert all(document == documents[0] for document in documents)


def test_close_stands_in_the_head_when_the_connection_ends() -> None:
    """`connection: close` is written exactly when the connection ends with the answer."""
    assert refusal(Reason.JSON, close=True).header("connection") == "close"
    assert refusal(Reason.JSON).header("connection") is None
    assert b"connection: close\r\n" in answers.ok_head(1, "a", close=True)
    assert b"connection" not in answers.ok_head(1, "a", close=False)


def test_the_shields_answer_says_when_to_come_back() -> None:
    """`Retry-After` of the shield is what it was given."""
    assert refusal(Reason.SHIELDED, retry_after=42).header("retry-after") == "42"


def test_head_is_answered_with_the_length_and_without_the_body() -> None:
    """The answer to HEAD announces the document that GET would bring, and ends with its head."""
    made = answers.refusal(Reason.METHOD, "a", TRACE, close=True, body=False)
    head, found, rest = made.data.partition(b"\r\n\r\n")
    assert found
    assert rest == b""
    with_body, _ = parse_answer(answers.refusal(Reason.METHOD, "a", TRACE, close=True).data)
    assert f"content-length: {len(with_body.body)}".encode() in head


def test_the_head_of_a_delivery_is_the_contracts() -> None:
    """A delivery has these headers and no other, and the largest fits the room in front of a body."""
    head = answers.ok_head(542, "an-id", close=False).decode()
    assert head == (
        "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ncache-control: no-store\r\n"
        "x-content-type-options: nosniff\r\ncontent-length: 542\r\nx-request-id: an-id\r\n\r\n"
    )
    assert len(answers.ok_head(262_144, "x" * 128, close=True)) <= HEAD_ROOM


@pytest.mark.parametrize("good", [b"a", b"0", b"A.b:c_d-e", b"x" * 128, b"539f9f84-8a15-4601-aa2a-d4dd4c078637"])
def test_a_valid_request_id_comes_back(good: bytes) -> None:
    """A valid `x-request-id` is used as it came."""
    assert answers.request_id(good) == good.decode()


@pytest.mark.parametrize("bad", [None, b"", b"-a", b".a", b"_a", b":a", b"x" * 129, b"a b", b"a\xff", b"a\r", b"a/b"])
def test_an_invalid_request_id_is_replaced(bad: bytes | None) -> None:
    """Anything else gets a fresh UUIDv4 each time."""
    first, second = answers.request_id(bad), answers.request_id(bad)
    assert first != second
    assert (uuid.UUID(first).version, str(uuid.UUID(first))) == (4, first)


@given(st.binary(max_size=140))
def test_any_bytes_make_a_request_id_that_may_be_written(value: bytes) -> None:
    """Whatever a peer sends, what goes back into a header and an event holds no other character."""
    assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", answers.request_id(value))


@pytest.mark.parametrize(
    "parent",
    [
        f"00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-ff",
        f"01-{TRACE}-{PARENT}-00",
        f"cc-{TRACE}-{PARENT}-00-what-the-future-brings",
    ],
)
def test_a_valid_traceparent_gives_its_trace_id(parent: str) -> None:
    """The trace id of a valid W3C traceparent is used, of a later version too."""
    assert answers.trace_id(parent.encode()) == TRACE


@pytest.mark.parametrize(
    "parent",
    [
        None,
        "",
        TRACE,
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"cc-{TRACE}-{PARENT}-00more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f" 00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01,00-{TRACE}-{PARENT}-01",
    ],
)
def test_any_other_traceparent_gives_a_random_trace_id(parent: str | None) -> None:
    """Without a valid traceparent the trace id is 32 random hex digits."""
    value = None if parent is None else parent.encode()
    first, second = answers.trace_id(value), answers.trace_id(value)
    assert first != second
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert first != TRACE


def test_the_time_is_rfc_3339_in_utc_with_milliseconds() -> None:
    """The timestamp is now, in the form that the contract names, whenever in a second it is taken."""
    for _ in range(50):
        before = time.time_ns() // 1_000_000
        text = answers.timestamp()
        after = time.time_ns() // 1_000_000
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
        moment = datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)
        assert before <= round(moment.timestamp() * 1000) <= after
        time.sleep(0.0005)


def test_a_document_is_compact_ascii() -> None:
    """Problem documents have no white space and no byte beyond ASCII."""
    for reason in Reason:
        body = refusal(reason).body
        assert body.isascii()
        assert body == json.dumps(json.loads(body), separators=(",", ":")).encode()
