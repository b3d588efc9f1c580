"""What the client tries again, and until when (contract 4 and 9)."""

import time
from pathlib import Path

import pytest

from sidecar import client_core, client_retry
from sidecar.client import BlockingClient, Denied, LeaseOver, OutOfTime, Unavailable, UnexpectedAnswer
from tests.kit.scripted import Step, refusal
from tests.kit.side import GIVEN, Side


@pytest.mark.parametrize("status", [400, 401, 409])
def test_denials_are_final(tmp_path: Path, status: int) -> None:
    """400, 401 and 409 are never tried again, whatever Retry-After they bear; the error names the request."""
    side = Side.make(tmp_path)
    with side.serving(Step(refusal(status, "retry-after: 0"), "close")) as (server, client):
        error = side.error(client)
    assert isinstance(error, Denied)
    assert error.status == status
    assert len(server.requests) == 1
    assert f"x-request-id: {error.request_id}\r\n".encode() in server.requests[0]


@pytest.mark.parametrize("status", [500, 504])
def test_500_and_504_are_not_tried_again(tmp_path: Path, status: int) -> None:
    """500 and 504 end the fetch as unavailable, after one request."""
    side = Side.make(tmp_path)
    with side.serving(Step(refusal(status), "close")) as (server, client):
        error = side.error(client)
    assert isinstance(error, Unavailable)
    assert error.status == status
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [100, 204, 206, 301, 302, 307, 403, 404, 405, 408, 411, 413, 415, 417, 502, 505])
def test_other_statuses_are_unexpected(tmp_path: Path, status: int) -> None:
    """Any other status, a redirect included, is no contracted answer; nothing is followed or tried again."""
    side = Side.make(tmp_path)
    with side.serving(Step(refusal(status, "location: https://localhost/"), "close")) as (server, client):
        error = side.error(client)
    assert isinstance(error, UnexpectedAnswer)
    assert error.status == status
    assert server.connections == 1


@pytest.mark.parametrize("status", [429, 503])
def test_busy_answers_are_tried_again(tmp_path: Path, status: int) -> None:
    """429 and 503 are tried again, each pause longer on the whole and each request with an id of its own."""
    side = Side.make(tmp_path)
    with side.serving(*[Step(refusal(status), "close")] * 3, Step(side.whole())) as (server, client):
        assert side.fetch(client) == GIVEN
    assert len(server.requests) == 4
    pauses = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    assert all(pause >= client_retry.FIRST_PAUSE_S / 2 * 2**n for n, pause in enumerate(pauses))
    assert len({request.partition(b"x-request-id: ")[2][:36] for request in server.requests}) == 4


def test_retry_after_is_kept(tmp_path: Path) -> None:
    """No attempt comes before the server's Retry-After, and one that would come too late is not waited for."""
    side = Side.make(tmp_path)
    with side.serving(Step(refusal(503, "retry-after: 1"), "close"), Step(side.whole())) as (server, client):
        assert side.fetch(client) == GIVEN
        assert server.times[1] - server.times[0] >= 1.0
    with side.serving(Step(refusal(429, "retry-after: 60"), "close")) as (server, client):
        began = time.monotonic()
        error = side.error(client, seconds=30)
        assert isinstance(error, Unavailable)
        assert error.status == 429
        assert time.monotonic() - began < 15
        assert len(server.requests) == 1


def test_pauses_grow_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses double from 0.1 s up to 5 s, are at least half of that, and end where the fetch does."""
    monkeypatch.setattr("sidecar.client_retry.time.monotonic", lambda: 0.0)
    schedule = client_retry.Schedule(5.5)
    for bound in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        pause = schedule.pause(None)
        assert pause is not None
        assert bound / 2 <= pause <= bound
    assert schedule.pause(3) is None


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("cut", [0, 1, 40, 200, -1])
def test_broken_connections_are_tried_again(tmp_path: Path, then: str, cut: int) -> None:
    """A close or reset anywhere in the answer is tried again; no part of the broken answer is used."""
    side = Side.make(tmp_path)
    with side.serving(Step(side.whole()[:cut], then), Step(side.whole())) as (server, client):
        assert side.fetch(client) == GIVEN
    assert len(server.requests) == 2


def test_drops_before_the_handshake_are_tried_again(tmp_path: Path) -> None:
    """A connection that is closed or reset before TLS is a connection fault."""
    side = Side.make(tmp_path)
    with side.serving(drops=("close", "reset")) as (server, client):
        assert side.fetch(client) == GIVEN
    assert server.connections == 3


def test_a_stalled_handshake_does_not_take_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that accepts and stays silent is given up after the handshake's time, and another attempt is made."""
    monkeypatch.setattr("sidecar.client_transport.HANDSHAKE_S", 0.5)
    side = Side.make(tmp_path)
    with side.serving(drops=("hang",)) as (server, client):
        assert side.fetch(client) == GIVEN
        assert server.connections >= 2


def test_nobody_listens(tmp_path: Path) -> None:
    """A refused connection is tried again until the deadline, and is what the error tells."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        pass
    began = time.monotonic()
    error = side.error(side.client(server.port), seconds=0.6)
    assert isinstance(error, Unavailable)
    assert error.status is None
    assert time.monotonic() - began < 10


def test_an_unknown_host(tmp_path: Path) -> None:
    """A name that does not resolve is a connection fault."""
    side = Side.make(tmp_path)
    with BlockingClient("https://a.invalid:1", **side.files.identity()) as client:
        assert isinstance(side.error(client, seconds=0.2), Unavailable)


def test_the_lease_is_over(tmp_path: Path) -> None:
    """A lease that is over before the first attempt ends the fetch without a connection."""
    side = Side.make(tmp_path)
    side.document["leaseExpiresAtMs"] = time.time_ns() // 1_000_000
    with side.serving() as (server, client):
        assert isinstance(side.error(client), LeaseOver)
        assert server.connections == 0


@pytest.mark.parametrize("bound", ["deadline", "lease"])
def test_no_attempt_ends_in_time(tmp_path: Path, bound: str) -> None:
    """A sidecar that never answers is given up at the deadline, and at the end of the lease if that comes first."""
    side = Side.make(tmp_path)
    if bound == "lease":
        side.document["leaseExpiresAtMs"] = time.time_ns() // 1_000_000 + 2000
    with side.serving(Step(b"", "hang")) as (server, client):
        began = time.monotonic()
        assert isinstance(side.error(client, seconds=0.5 if bound == "deadline" else 20), OutOfTime)
        assert time.monotonic() - began < 15
        assert len(server.requests) == 1


def test_the_default_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a deadline a fetch ends by itself."""
    monkeypatch.setattr(client_core, "DEFAULT_TIMEOUT_S", 0.3)
    side = Side.make(tmp_path)
    with side.serving(Step(b"", "hang")) as (_, client), pytest.raises(OutOfTime):
        side.fetch(client)


def test_what_was_seen_last_is_told(tmp_path: Path) -> None:
    """When time runs out under a later attempt, the error is the outcome of the one before."""
    side = Side.make(tmp_path)
    with side.serving(Step(refusal(503), "close"), Step(b"", "hang")) as (server, client):
        error = side.error(client, seconds=2.0)
        assert isinstance(error, Unavailable)
        assert error.status == 503
        assert len(server.requests) == 2
