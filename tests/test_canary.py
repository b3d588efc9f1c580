"""The look for canaries: it would find them wherever they got out, so that it finds none means something."""

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import canary
from tests.kit.stand import make_stand, value_of
from tests.kit.world import LEASE_TOKEN, PEPPER_TEXT, SECRET, default_refs

LEAKS = {
    "value": value_of(3).decode(),
    "lease_token": LEASE_TOKEN,
    "pepper": PEPPER_TEXT,
    "credential": base64.urlsafe_b64encode(SECRET).decode().rstrip("="),
    "password": f"postgres://user:{canary.PASSWORD}@localhost/",
}
EVENT = {"event": "process_ready", "port": 1, "healthPort": 1, "metricsPort": 1}


@pytest.mark.parametrize(("kind", "text"), LEAKS.items())
def test_every_kind_is_found_in_every_spelling(kind: str, text: str) -> None:
    """A secret is found as text, in any case, in hex, in a bytes literal and in base64, wherever it stands in it."""
    assert canary.found(f"before{text}after") == {kind}
    if kind not in ("pepper", "credential"):  # base64 in another case is another text
        assert canary.found(text.upper()) == canary.found(text.lower()) == {kind}
    assert canary.found(json.dumps({"a": text})) == {kind}
    raw = {"pepper": bytes(range(32)), "credential": SECRET}.get(kind, text.encode())
    assert canary.found(raw.hex()) == canary.found(raw.hex().upper()) == {kind}
    assert canary.found(repr(raw)) == {kind}
    for shift in range(4):
        padded = b"x" * shift + raw + b"y"
        assert canary.found(base64.b64encode(padded).decode()) == {kind}
        assert canary.found(base64.urlsafe_b64encode(padded).decode()) == {kind}


def test_what_is_no_secret_is_not_found() -> None:
    """Refs, file names and digests of the world are none."""
    ref = default_refs(2)[1]
    assert canary.found(f"{ref.text} {ref.file_name} {SECRET[:8].hex()} {LEASE_TOKEN[:20]}") == set()


def test_a_record_is_searched_in_all_its_parts() -> None:
    """A secret is found in a record's message, in arguments that the message does not show, and in its exception."""
    secret = LEAKS["value"]
    quiet = logging.LogRecord("quiet", logging.INFO, "", 0, "nothing of %s", ("interest",), None)
    canary.refuse_record(quiet)
    try:
        raise ValueError("told") from KeyError(secret)
    except ValueError as error:
        loud = logging.LogRecord("loud", logging.INFO, "", 0, "told", (), (type(error), error, None))
    for record in (
        logging.LogRecord("loud", logging.INFO, "", 0, secret, (), None),
        logging.LogRecord("loud", logging.INFO, "", 0, "%.2s", (secret,), None),
        loud,
    ):
        with pytest.raises(AssertionError, match="value in a log record of loud"):
            canary.refuse_record(record)


def test_an_expected_exception_is_searched() -> None:
    """`pytest.raises` refuses an exception that says a secret, whatever the test expected of it."""
    try:
        with pytest.raises(ValueError, match="value"):
            raise ValueError(LEAKS["value"])
    except AssertionError as failure:
        assert str(failure) == "a secret got out: value in the text of an exception"
    else:
        pytest.fail("the secret was not found")


@pytest.mark.parametrize("place", ["standard output", "standard error", "audit rows"])
def test_a_process_that_lets_a_secret_out_fails_its_test(place: str, tmp_path: Path) -> None:
    """What a stand's process writes, and what its store keeps as audit rows, is searched when the stand ends."""
    leak = LEAKS["lease_token"]
    lines = {
        "standard output": f"print({json.dumps({'event': 'x', 'y': leak})!r}, flush=True)",
        "standard error": f"print({leak!r}, file=sys.stderr, flush=True)",
        "audit rows": "pass",
    }
    program = f"import sys\n{lines[place]}\nprint({json.dumps(EVENT)!r}, flush=True)\nsys.stdin.read()"
    stand = make_stand(tmp_path)
    if place == "audit rows":
        stand.world.execute(
            "INSERT INTO security_audit_events (event_id, request_id, operation_id, outcome, subject_type, subject_id,"
            " authentication_id, reasons, occurred_at_ms) VALUES ('a', ?, 'o', 'x', NULL, NULL, NULL, '[]', 1)",
            (leak,),
        )
    with pytest.raises(AssertionError, match=f"lease_token in {place}"), stand:
        stand.start(program=("-c", program))


def test_metrics_are_searched() -> None:
    """What a process shows besides is searched too."""

    class Process:
        def let_out(self) -> Iterator[tuple[str, str]]:
            yield from ()

    watch = canary.Watch()
    watch.awake = True
    process = Process()
    watch.add(process)
    with pytest.raises(AssertionError, match="pepper in metrics"):
        watch.leave(process, iter([("metrics", LEAKS["pepper"])]))
    watch.leave(process, iter([("metrics", LEAKS["pepper"])]))
