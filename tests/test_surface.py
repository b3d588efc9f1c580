"""The table of contract 4 on real TLS sockets: every row, and each row before the next one."""

import http
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from provider import limits
from provider.credential import make_token
from provider.outcomes import Code, Reason
from sidecar import answers, devcerts
from tests.kit.stand import Stand, make_stand, value_of
from tests.kit.surface import Surface, finished, without
from tests.kit.waiting import wait_for
from tests.kit.world import CREDENTIAL_ID, SECRET

PER_PEER = 6
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surface]:
    """One sidecar for all tests, with small limits and a CRL; at its end all events and counts must be right."""
    stand = make_stand(tmp_path_factory.mktemp("surface"))
    crl = stand.directory / "tls" / "ca.crl"
    devcerts.write(crl, stand.pki.crl_pem(number=1))
    stand.environment["QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE"] = str(crl)
    with Surface(stand) as made:
        stand.start(
            QL3_WORKER_INGRESS_AUTH_RATE_PER_PEER=str(PER_PEER),
            QL3_WORKER_INGRESS_MAX_IN_FLIGHT="4",
            QL3_SECRET_SIDECAR_MAX_IN_FLIGHT_PER_CREDENTIAL="2",
            QL3_WORKER_INGRESS_MAX_RESPONSE_BYTES="1024",
        )
        yield made


@pytest.fixture(scope="module")
def disabled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surface]:
    """A sidecar without a provider, which binds certificates to workers and gives requests little time."""
    stand = make_stand(tmp_path_factory.mktemp("disabled"))
    del stand.environment["QL3_WORKER_SECRET_ROOT_DIRECTORY"]
    with Surface(stand) as made:
        stand.start(
            QL3_WORKER_SECRET_PROVIDER="disabled",
            QL3_WORKER_INGRESS_CERTIFICATE_BINDING="san",
            QL3_WORKER_INGRESS_REQUEST_TIMEOUT_MS="700",
        )
        yield made


@pytest.fixture(autouse=True)
def events_agree(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test every answer has its one event, which says the same."""
    yield
    for name in ("surface", "disabled"):
        if name in request.fixturenames:
            request.getfixturevalue(name).verify()


def raw(stand: Stand, *fields: str, line: str | None = None, host: str = "host: localhost\r\n") -> bytes:
    """Return a head without the usual fields."""
    first = line or f"POST {stand.world.target} HTTP/1.1"
    return (first + "\r\n" + host + "".join(f"{field}\r\n" for field in fields) + "\r\n").encode("latin-1")


def revoke(surface: Surface, *pairs: devcerts.Pair) -> None:
    """Put a CRL that revokes these certificates into service."""
    stand = surface.stand
    generation = int(stand.metric("identity_reloads_total")) + 2
    devcerts.write(stand.directory / "tls" / "ca.crl", stand.pki.crl_pem(*pairs, number=generation))
    wait_for(lambda: stand.metric("identity_reloads_total") == generation - 1)


# --- the good way ------------------------------------------------------------------------------------------------
def test_a_delivery(surface: Surface) -> None:
    """The valid request gets the values, byte for byte, in the contract's form, on a connection that goes on."""
    stand = surface.stand
    with stand.wire() as wire:
        for _ in range(2):
            wire.send(stand.request())
            answer = surface.read(wire, None)
            assert answer.header("connection") is None
            document = answer.json()
            assert list(document) == ["schema", "runId", "attemptId", "offerId", "executionDigest", "values"]
            assert document["values"] == [
                {"secretRef": ref.text, "value": value_of(number).decode()}
                for number, ref in enumerate(stand.world.refs)
            ]
            assert answer.body == _compact(answer.body)


def _compact(body: bytes) -> bytes:
    return re.sub(rb"(?<=[,:\[{}\]])\s+", b"", body)


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "APPLICATION/json"},
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "application/json ; x=y"},
        {"content-encoding": "identity"},
        {"content-encoding": "Identity"},
        {"host": ""},
        {"connection": "keep-alive"},
        {"accept-encoding": "gzip", "te": "trailers", "x-forwarded-for": "1.2.3.4"},
    ],
)
def test_headers_that_are_good(headers: dict[str, str | None], surface: Surface) -> None:
    """Content types with parameters and in any case, identity in any case, and what nobody reads, are good."""
    surface.ask(surface.stand.request(headers=headers), None)


def test_a_peer_may_ask_that_the_connection_ends(surface: Surface) -> None:
    """`Connection: close` of the request is answered with the same and the end."""
    answer = surface.ask(surface.stand.request(headers={"connection": "close"}), None)
    assert answer.header("connection") == "close"


@pytest.mark.parametrize("reason", [None, Reason.JSON, Reason.UNAUTHENTICATED, Reason.EXPECTATION, Reason.CONTENT_TYPE])
def test_a_request_id_and_a_trace_are_taken_over(reason: Reason | None, surface: Surface) -> None:
    """A valid `x-request-id` and `traceparent` come back in the answer and its event, refused or not."""
    changes: dict[Reason | None, dict[str, Any]] = {
        None: {},
        Reason.JSON: {"body": b"{"},
        Reason.UNAUTHENTICATED: {"token": "ql3w_x"},
        Reason.EXPECTATION: {"headers": {"expect": "100-continue"}},
        Reason.CONTENT_TYPE: {"headers": {"content-type": "text/plain"}},
    }
    change = changes[reason]
    request_id = f"Order.7:{reason.name.lower().replace('_', '-') if reason else 'delivered'}"
    headers = dict(change.pop("headers", {})) | {
        "x-request-id": request_id,
        "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
    }
    answer = surface.ask(
        surface.stand.request(headers=headers, **change), reason, request_id=request_id, pair=surface.peer()
    )
    if reason is not None:
        assert answer.json()["trace_id"] == TRACE


@pytest.mark.parametrize("value", ["", "-a", "a b", "a/b", "x" * 129, "\xe4"])
def test_an_invalid_request_id_is_replaced(value: str, surface: Surface) -> None:
    """Any other request id gives way to a fresh UUIDv4; the request is none the worse."""
    surface.ask(surface.stand.request(headers={"x-request-id": value}), None)


def test_the_hundredth_answer_is_the_last(surface: Surface) -> None:
    """A connection serves a hundred requests; the answer to the last says so."""
    stand = surface.stand
    with stand.wire() as wire:
        for number in range(1, limits.REQUESTS_PER_CONNECTION + 1):
            wire.send(stand.request(b"{}" if number % 2 else None))
            answer = surface.read(wire, Reason.COMMAND if number % 2 else None)
            assert (answer.header("connection") == "close") == (number == limits.REQUESTS_PER_CONNECTION)


def test_answers_from_the_body_stage_on_leave_the_connection_open(surface: Surface) -> None:
    """Every refusal decided after the body, but 504 and 500, leaves the connection to the next request."""
    stand = surface.stand
    with stand.wire() as wire:
        for body, reason in (
            (b"", Reason.JSON),
            (b"[]", Reason.COMMAND),
            (stand.world.body_bytes(leaseToken="x" * 40), Reason.AUTHORITY_MISMATCH),
            (stand.world.body_bytes(executionDigest="0" * 64), Reason.SECRET_SCOPE_MISMATCH),
        ):
            wire.send(stand.request(body))
            assert surface.read(wire, reason).header("connection") is None
        (stand.root / stand.world.refs[0].file_name).chmod(0o444)
        wire.send(stand.request())
        assert surface.read(wire, Reason.MATERIAL_UNAVAILABLE).header("connection") is None
        (stand.root / stand.world.refs[0].file_name).chmod(0o440)
        wire.send(stand.request())
        assert surface.read(wire, None).header("connection") is None


# --- parse -------------------------------------------------------------------------------------------------------
MALFORMED: dict[str, dict[str, Any]] = {
    "HTTP/1.0": {"line": "POST /api/v3 HTTP/1.0"},
    "HTTP/2.0": {"line": "POST /api/v3 HTTP/2.0"},
    "bad request line": {"line": "POST  /api/v3 HTTP/1.1"},
    "bad header": {"fields": ["x y: z"]},
    "no host": {"host": ""},
    "bad content-length": {"fields": ["content-length: 1x"]},
    "repeated content-length": {"fields": ["content-length: 1", "content-length: 1"]},
    "transfer-encoding beside content-length": {"fields": ["content-length: 1", "transfer-encoding: chunked"]},
    "target over 8 KiB": {"line": f"POST /{'x' * limits.TARGET_BYTES} HTTP/1.1"},
    "header block over 16 KiB": {"fields": [f"x: {'y' * limits.HEADER_BLOCK_BYTES}"]},
    "65 headers": {"fields": ["x: y"] * 64},
    "repeated authorization": {"fields": ["authorization: Worker a", "authorization: Worker a"]},
    "repeated content-type": {"fields": ["content-type: application/json"] * 2},
    "repeated content-encoding": {"fields": ["content-encoding: identity"] * 2},
    "repeated x-request-id": {"fields": ["x-request-id: a", "x-request-id: a"]},
    "upgrade": {"fields": ["upgrade: websocket", "connection: upgrade"]},
    "CONNECT": {"line": "CONNECT localhost:443 HTTP/1.1"},
    "expect beside a repeated header": {"fields": ["expect: 100-continue", "x-request-id: a", "x-request-id: b"]},
}


def test_malformed_requests(surface: Surface) -> None:
    """Every condition of the first row: 400, a fresh request id, nothing of the request, and the end."""
    stand = surface.stand
    wires = {}
    for name, parts in MALFORMED.items():
        fields = [*parts.get("fields", ()), "x-request-id: sent-by-me", "authorization: Worker c4n4ry-v4lu3"]
        if "x-request-id: a" in fields:
            fields.remove("x-request-id: sent-by-me")
        wires[name] = stand.wire()
        wires[name].send(raw(stand, *fields, line=parts.get("line"), host=parts.get("host", "host: localhost\r\n")))
    for name, wire in wires.items():
        answer = surface.check(wire.answer(), Reason.MALFORMED)
        assert b"c4n4ry" not in answer.body, name
        assert answer.header("connection") == "close", name
    for wire in wires.values():
        assert finished(wire)
        wire.close()


def test_an_expectation(surface: Surface) -> None:
    """`Expect`, whatever is expected, is 417 and the end; the body is not asked for."""
    for value in ("100-continue", "200-ok", ""):
        surface.ask(raw(surface.stand, f"expect: {value}", "content-length: 0"), Reason.EXPECTATION)


# --- connection, and the rows around it --------------------------------------------------------------------------
def test_a_revoked_peer_and_its_neighbours(surface: Surface) -> None:
    """A peer revoked while connected: after `Expect`, before all else; a good one is served a last time."""
    stand = surface.stand
    targets = [stand.world.target, "*", "/elsewhere", "/api/v3/x"]
    pairs = [surface.peer() for _ in range(len(targets) + 1)]
    wires = [stand.wire(pair) for pair in pairs]
    good = stand.wire()
    for wire in (*wires, good):
        wire.send(stand.request())
        assert surface.read(wire, None).header("connection") is None
    revoke(surface, *pairs)
    wires[-1].send(stand.request(headers={"expect": "100-continue"}))
    surface.read(wires[-1], Reason.EXPECTATION)
    for wire, target in zip(wires, targets, strict=False):
        method = "OPTIONS" if target == "*" else "POST"
        wire.send(stand.request(target=target, method=method))
        surface.read(wire, Reason.PEER_NOT_GOOD)
    good.send(stand.request())
    assert surface.read(good, None).header("connection") == "close"
    for wire in (*wires, good):
        wire.close()
    with stand.wire(pairs[0]) as again:
        again.send(stand.request())
        assert again.ended()
    revoke(surface)


# --- route -------------------------------------------------------------------------------------------------------
def test_targets_that_are_no_path(surface: Surface) -> None:
    """What parses and does not begin with a slash is 400 `invalid_url`, inside and outside the API."""
    stand = surface.stand
    for target in ("http://localhost/api/v3/x", "http://localhost/elsewhere", f"https://localhost{stand.world.target}"):
        surface.ask(stand.request(target=target), Reason.INVALID_TARGET)
    surface.ask(stand.request(target="*", method="OPTIONS"), Reason.INVALID_TARGET)


@pytest.mark.parametrize(
    "target",
    ["/", "/healthz", "/metrics", "/api/v2", "/api/v33", "/api/v3.", "/api/v3#x", "/API/v3/", "//api/v3/", "/%61pi/v3"],
)
def test_targets_outside_the_api(target: str, surface: Surface) -> None:
    """Anything but `/api/v3`, `/api/v3/...` and `/api/v3?...` is 404 `not_found`, whatever the method."""
    surface.ask(surface.stand.request(target=target), Reason.OUTSIDE_API)
    surface.ask(surface.stand.request(b"", target=target, method="GET"), Reason.OUTSIDE_API)


def wrong_targets(target: str) -> list[str]:
    """Targets that resemble the secrets route and are not it."""
    worker, session = target.split("/")[5], target.split("/")[7]
    return [
        "/api/v3", "/api/v3/", "/api/v3?x", "/api/v3/../v3/x", f"{target}/", f"{target}?", f"{target}?x=y",
        f"{target}#x", target.replace("/workers/", "//workers/"), target.replace(worker, "%77orker-1"),
        target.replace(worker, ""), target.replace(worker, "-" + worker), target.replace(worker, "w" * 129),
        target.replace(session, session.upper()), target.replace(session, session.replace("-7", "-4", 1)),
        target.replace(session, session.replace("-", "")), target.replace("secrets", "Secrets"),
        target.replace("/secrets", "/./secrets"), target.replace("/secrets", "/%73ecrets"),
        target.replace("/api/v3/", "/api/v3/x/../"),
    ]  # fmt: skip


def test_any_other_worker_path_or_a_query(surface: Surface) -> None:
    """The raw target is matched byte for byte; what is not the route is 404 `worker_route_not_found`, by any method."""
    stand = surface.stand
    for target in wrong_targets(stand.world.target):
        surface.ask(stand.request(target=target), Reason.UNKNOWN_WORKER_PATH)
    surface.ask(stand.request(b"", target="/api/v3/x", method="GET"), Reason.UNKNOWN_WORKER_PATH)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "QUERY", "PROPFIND"])
def test_other_methods(method: str, surface: Surface) -> None:
    """The secrets route knows POST only; the answer to HEAD has no body."""
    surface.ask(surface.stand.request(b"", method=method), Reason.METHOD)


# --- shield ------------------------------------------------------------------------------------------------------
def test_the_shield_and_its_neighbours(surface: Surface) -> None:
    """A peer whose budget is spent gets 429: after 404 `not_found`, before 405 and everything later; others go on."""
    stand, peer = surface.stand, surface.peer()
    for _ in range(PER_PEER):
        surface.ask(stand.request(token="ql3w_nobody_x"), Reason.UNAUTHENTICATED, pair=peer)
    for data in (stand.request(), stand.request(method="GET"), stand.request(target="/api/v3/x")):
        answer = surface.ask(data, Reason.SHIELDED, pair=peer, retry_after=True)
        assert 1 <= int(answer.header("retry-after") or 0) <= 60
    surface.ask(stand.request(target="/elsewhere"), Reason.OUTSIDE_API, pair=peer)
    surface.ask(stand.request(target="*", method="OPTIONS"), Reason.INVALID_TARGET, pair=peer)
    surface.ask(stand.request(), None)
    surface.ask(stand.request(), None, pair=surface.peer())
    assert stand.metric("shield_refused_total") >= 3


def test_only_failed_authentications_spend(surface: Surface) -> None:
    """Answers of any other kind, however many, cost a peer nothing."""
    stand, peer = surface.stand, surface.peer()
    with without(stand, "worker_credentials"):
        for _ in range(PER_PEER):
            surface.ask(stand.request(), Reason.CREDENTIAL_STORE, pair=peer)
    for _ in range(PER_PEER):
        surface.ask(stand.request(b"{}"), Reason.COMMAND, pair=peer)
        surface.ask(stand.request(method="GET"), Reason.METHOD, pair=peer)
    surface.ask(stand.request(), None, pair=peer)


def test_a_failure_that_could_not_be_recorded_spends_too(surface: Surface) -> None:
    """A failed authentication answered `worker_audit_unavailable` costs as any other."""
    stand, peer = surface.stand, surface.peer()
    with without(stand, "security_audit_events"):
        for _ in range(PER_PEER):
            surface.ask(stand.request(token="ql3w_nobody_x"), Reason.AUDIT_STORE, pair=peer)
    surface.ask(stand.request(), Reason.SHIELDED, pair=peer, retry_after=True)


# --- admission ---------------------------------------------------------------------------------------------------
def test_the_limits_in_flight_and_their_neighbours(surface: Surface) -> None:
    """A full house is 503 with `Retry-After: 1`: after 405, before 404; a full credential is, after the audit."""
    stand = surface.stand
    second = surface.second_credential()
    with surface.holding(2):
        answer = surface.ask(stand.request(), Reason.CREDENTIAL_IN_FLIGHT_LIMIT, retry_after=True)
        assert answer.header("retry-after") == "1"
        # It comes after the audit's row and before those of the headers.
        recorded = len(stand.world.audit())
        refused = stand.request(headers={"content-encoding": "gzip", "content-type": "x"})
        surface.ask(refused, Reason.CREDENTIAL_IN_FLIGHT_LIMIT, retry_after=True)
        assert [row["outcome"] for row in stand.world.audit()[recorded:]] == ["allowed"]
        with without(stand, "security_audit_events"):
            surface.ask(stand.request(), Reason.AUDIT_STORE)
        surface.ask(stand.request(token=second), None)
        with surface.holding(2, second):
            recorded = len(stand.world.audit())
            for target in (stand.world.target, "/api/v3/x"):
                answer = surface.ask(stand.request(target=target), Reason.IN_FLIGHT_LIMIT, retry_after=True)
                assert answer.header("retry-after") == "1"
            surface.ask(stand.request(method="GET"), Reason.METHOD)
            surface.ask(stand.request(target="/elsewhere"), Reason.OUTSIDE_API)
            assert len(stand.world.audit()) == recorded
    surface.ask(stand.request(), None)


# --- authentication and audit ------------------------------------------------------------------------------------
def test_credentials_that_do_not_hold(surface: Surface) -> None:
    """Missing, malformed, unknown, mismatched credentials, another worker's path: one answer for all, recorded."""
    stand, token = surface.stand, surface.stand.world.token
    recorded = len(stand.world.audit())
    cases = [
        stand.request(headers={"authorization": value})
        for value in (None, "", "Worker", f"worker {token}", f"Worker  {token}", f"Bearer {token}", f"Worker {token} x",
                      f"Worker {token[:-1]}", f"Worker {token}=", "Worker \xff")
    ]  # fmt: skip
    cases += [
        stand.request(token=make_token("nobody", SECRET)),
        stand.request(token=make_token(CREDENTIAL_ID, bytes(32))),
        stand.request(target=stand.world.target.replace("worker-1", "worker-2")),
    ]
    peers = [surface.peer() for _ in range(0, len(cases), PER_PEER - 1)]
    for number, data in enumerate(cases):
        peer = peers[number // (PER_PEER - 1)]
        document = surface.ask(data, Reason.UNAUTHENTICATED, pair=peer).json()
        assert {key: document[key] for key in document if key not in ("instance", "timestamp", "trace_id")} == {
            "type": "urn:secret-sidecar:problem:worker_authentication_required",
            "title": "Authentication required",
            "status": 401,
            "detail": "A valid worker credential for this worker is required.",
            "code": "worker_authentication_required",
        }
    rows = stand.world.audit()[recorded:]
    assert len(rows) == len(cases)
    for row in rows:
        assert (row["outcome"], row["reasons"]) == ("authentication_rejected", '["authentication_rejected"]')
        assert (row["subject_type"], row["subject_id"], row["authentication_id"]) == (None, None, None)


@pytest.mark.parametrize(
    "column",
    [{"state": "revoked"}, {"expires_at_ms": 1}, {"not_before_at_ms": 2**47}, {"worker_id": "worker-2"},
     {"secret_digest": "0" * 64}],
    ids=str,
)  # fmt: skip
def test_credentials_that_are_not_good_any_more(column: dict[str, object], surface: Surface) -> None:
    """Revoked, expired, not yet valid, another worker's, another secret: 401."""
    stand, row = surface.stand, surface.stand.world.rows["worker_credentials"]
    stand.world.change("worker_credentials", **column)
    try:
        surface.ask(stand.request(), Reason.UNAUTHENTICATED, pair=surface.peer())
    finally:
        stand.world.change("worker_credentials", **{name: row[name] for name in column})
        surface.second_credential()


def test_a_failed_credential_store_and_its_neighbours(surface: Surface) -> None:
    """503 `worker_authentication_unavailable`: after the route, before the judgement of the credential; recorded."""
    stand = surface.stand
    recorded = len(stand.world.audit())
    with without(stand, "worker_credentials"):
        surface.ask(stand.request(), Reason.CREDENTIAL_STORE)
        surface.ask(stand.request(token=make_token("nobody", SECRET)), Reason.CREDENTIAL_STORE)
        surface.ask(stand.request(target="/api/v3/x"), Reason.UNKNOWN_WORKER_PATH)
        assert [row["outcome"] for row in stand.world.audit()[recorded:]] == ["authentication_unavailable"] * 2
        with without(stand, "security_audit_events"):
            # The row is best effort then: the answer is the same.
            surface.ask(stand.request(), Reason.CREDENTIAL_STORE)
    stand.world.change("worker_credentials", expires_at_ms="never")
    surface.ask(stand.request(), Reason.CREDENTIAL_STORE)
    stand.world.change("worker_credentials", expires_at_ms=stand.world.rows["worker_credentials"]["expires_at_ms"])


def test_no_record_no_answer(surface: Surface) -> None:
    """Without an audit row neither a good nor a bad credential learns anything: 503, before the headers are judged."""
    stand = surface.stand
    with without(stand, "security_audit_events"):
        bad_headers = stand.request(headers={"content-encoding": "gzip", "content-length": None})
        for data in (stand.request(), bad_headers, stand.request(token=make_token("nobody", SECRET))):
            surface.ask(data, Reason.AUDIT_STORE, pair=surface.peer())


# --- headers -----------------------------------------------------------------------------------------------------
HEADERS: list[tuple[Reason, dict[str, str | None]]] = [
    (Reason.CONTENT_ENCODING, {"content-encoding": "gzip"}),
    (Reason.CONTENT_ENCODING, {"content-encoding": ""}),
    (Reason.CONTENT_ENCODING, {"content-encoding": "identity, gzip"}),
    (Reason.NO_LENGTH, {"content-length": None}),
    (Reason.NO_LENGTH, {"content-length": None, "transfer-encoding": "chunked"}),
    (Reason.DECLARED_TOO_LARGE, {"content-length": str(limits.BODY_BYTES + 1)}),
    (Reason.DECLARED_TOO_LARGE, {"content-length": "9" * 18}),
    (Reason.CONTENT_TYPE, {"content-type": None}),
    (Reason.CONTENT_TYPE, {"content-type": "text/json"}),
    (Reason.CONTENT_TYPE, {"content-type": "application/jsonx"}),
    (Reason.CONTENT_TYPE, {"content-type": "application/json, text/plain"}),
    # Each row before the next one.
    (Reason.CONTENT_ENCODING, {"content-encoding": "gzip", "content-length": None, "content-type": None}),
    (Reason.NO_LENGTH, {"content-length": None, "content-type": None}),
    (Reason.DECLARED_TOO_LARGE, {"content-length": "99999", "content-type": None}),
    # All before the first byte of a body, which never comes.
    (Reason.CONTENT_TYPE, {"content-type": "x", "content-length": "5"}),
]


def test_headers_in_their_order(surface: Surface) -> None:
    """Encoding, length, size and type are judged in this order, before a byte of the body."""
    stand = surface.stand
    wires = []
    for reason, headers in HEADERS:
        wires.append((reason, stand.wire()))
        sent: dict[str, str | None] = {"content-length": "0", **headers}
        wires[-1][1].send(stand.request(b"", headers=sent))
        surface.check(wires[-1][1].answer(), reason)
    for _, wire in wires:
        assert finished(wire)
        wire.close()


def test_an_empty_body_is_no_json(surface: Surface) -> None:
    """A declared length of zero is a length; what is missing then is the JSON."""
    surface.ask(surface.stand.request(b"", headers={"content-length": "0"}), Reason.JSON)


def test_the_largest_body_is_read(surface: Surface) -> None:
    """A body of exactly the limit is read and judged."""
    surface.ask(surface.stand.request(b" " * limits.BODY_BYTES), Reason.JSON)
    padded = surface.stand.world.body_bytes()
    surface.ask(surface.stand.request(padded + b" " * (limits.BODY_BYTES - len(padded))), None)


# --- body, command, authority, provider --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body", [b"{", b"\xef\xbb\xbf{}", b'{"a":1,"a":1}', b"NaN", b"[[[[[]]]]]", b'"\\ud800"', b"\xff"], ids=repr
)
def test_what_is_no_strict_json(body: bytes, surface: Surface) -> None:
    """Bytes that are not strict JSON are 400 `invalid_json`."""
    surface.ask(surface.stand.request(body), Reason.JSON)


def test_what_is_no_command_and_its_neighbours(surface: Surface) -> None:
    """JSON that is no command is 400 `invalid_worker_request`, before any fence is looked at."""
    stand = surface.stand
    for body in (b"null", b"{}", stand.world.body_bytes(more=1), stand.world.body_bytes(runId="", leaseToken="x" * 40)):
        surface.ask(stand.request(body), Reason.COMMAND)


def test_fences_and_their_neighbours(surface: Surface) -> None:
    """A fence is 409, one answer for both reasons, before anything of the root is looked at."""
    stand = surface.stand
    missing = stand.root / stand.world.refs[0].file_name
    missing.rename(missing.with_name("away"))
    try:
        bodies: dict[Reason, list[dict[str, Any]]] = {
            Reason.AUTHORITY_MISMATCH: [{"leaseToken": "x" * 40}, {"offerId": "other"}, {"workerGeneration": 4}],
            Reason.SECRET_SCOPE_MISMATCH: [{"executionDigest": "0" * 64}, {"secretRefs": [stand.world.refs[0].text]}],
        }
        documents = []
        for reason, changes in bodies.items():
            for change in changes:
                answer = surface.ask(stand.request(stand.world.body_bytes(**change)), reason)
                documents.append([answer.json()[key] for key in ("type", "title", "status", "detail", "code")])
        assert all(document == documents[0] for document in documents)
        surface.ask(stand.request(), Reason.MATERIAL_UNAVAILABLE)
    finally:
        missing.with_name("away").rename(missing)


def test_what_is_unavailable(surface: Surface) -> None:
    """Store, root, file and budget failures are one 503 outside, and told apart in the event."""
    stand = surface.stand
    with without(stand, "run_attempts"):
        surface.ask(stand.request(), Reason.AUTHORITY_STORE)
    stand.world.change("task_execution_revisions", plan_schema="other")
    surface.ask(stand.request(), Reason.AUTHORITY_STORE)
    stand.world.change("task_execution_revisions", plan_schema="qinglong/command-execution@v1")
    stand.root.chmod(0o777)
    surface.ask(stand.request(), Reason.ROOT_UNAVAILABLE)
    stand.root.chmod(0o755)
    stand.put(stand.world.refs[0], b"x" * 800)
    surface.ask(stand.request(), Reason.OVER_BUDGET)
    stand.put(stand.world.refs[0], value_of(0), mode=0o444)
    surface.ask(stand.request(), Reason.MATERIAL_UNAVAILABLE)
    stand.put(stand.world.refs[0], value_of(0))
    surface.ask(stand.request(), None)


# --- without a provider ------------------------------------------------------------------------------------------
def test_a_disabled_provider_and_its_neighbours(disabled: Surface) -> None:
    """503 `worker_secret_delivery_unavailable`: after strict JSON, before the command's shape."""
    stand = disabled.stand
    disabled.ask(stand.request(b"{"), Reason.JSON)
    for body in (b"null", b"{}", None):
        disabled.ask(stand.request(body), Reason.PROVIDER_DISABLED)
    disabled.ask(stand.request(headers={"content-type": "x"}), Reason.CONTENT_TYPE)
    # Nothing can be opened, and the metrics say so.
    assert stand.metric("material_opens_total") == stand.metric("drift_total") == 0
    assert stand.checks()["root"] == "off"


def test_a_certificate_that_is_not_the_workers(disabled: Surface) -> None:
    """Where certificates are bound, a good credential under another worker's certificate is 401."""
    disabled.ask(disabled.stand.request(), Reason.UNAUTHENTICATED, pair=disabled.stand.pki.direct)
    disabled.ask(disabled.stand.request(), Reason.UNAUTHENTICATED, pair=disabled.peer())


def test_the_deadline(disabled: Surface) -> None:
    """When the whole request runs out of time the answer is 504 and the end, whatever it waits for."""
    stand = disabled.stand
    with stand.wire() as wire:
        wire.send(stand.request()[:-1])
        disabled.read(wire, Reason.DEADLINE)
    # Another program holds the store's write lock, which the audit row needs.
    with closing(sqlite3.connect(stand.world.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        disabled.ask(stand.request(), Reason.DEADLINE)
        assert stand.get("/healthz")[0] == 200
    disabled.ask(stand.request(), Reason.PROVIDER_DISABLED)


# --- the whole table ---------------------------------------------------------------------------------------------
def test_every_status_has_its_phrase() -> None:
    """The reason phrases are the registered ones."""
    for code in Code:
        status = code.value.status
        ours = answers._STATUS_TEXT[status]
        registered = http.HTTPStatus(status).phrase
        assert ours == {413: "Content Too Large"}.get(status, registered)


NOT_HERE = {
    Reason.NOT_ADMITTING: "tests/test_process.py",
    Reason.BODY_TIMEOUT: "tests/test_phases.py",
    Reason.INVALID_CONFIGURATION: "tests/test_process.py",
    Reason.INTERNAL: "tests/test_app.py",
}
"""Rows that need a process or a time of their own, and where they are held."""


def test_every_row_has_its_test() -> None:
    """Every reason of the table is asked for in a test of this file, or named in the file where it is."""
    here = Path(__file__).read_text(encoding="utf-8")
    for reason in Reason:
        text = here if reason not in NOT_HERE else (Path(__file__).parent.parent / NOT_HERE[reason]).read_text("utf-8")
        assert f"Reason.{reason.name}" in text
