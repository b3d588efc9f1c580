"""`secret-sidecar fetch`: its lines, its exit codes and its messages (contract 9)."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from sidecar import devcerts
from sidecar.__main__ import main
from tests.kit.pki import pki
from tests.kit.scripted import Step, ok, refusal
from tests.kit.side import BUNDLE, REFS, TOKEN, Side
from tests.kit.stand import make_stand
from tests.kit.worker import write_worker
from tests.kit.world import LEASE_TOKEN

VALUE = "value-"


def test_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One aligned line a secret in plan order: name, ref and bytes, the bundle last and unnamed; no value."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        assert main(["fetch", *side.files.arguments(server.port)]) == 0
    out, err = capfd.readouterr()
    width = len(REFS[1].text)
    assert out.splitlines() == [
        f"SECRET_0  {REFS[0].text:<{width}}      7",
        f"SECRET_1  {REFS[1].text:<{width}}      9",
        f"-         {BUNDLE.text:<{width}}      3",
    ]
    assert err == ""


def test_show(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With --show each line ends with the value as a JSON string, so that a line stays a line."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        assert main(["fetch", *side.files.arguments(server.port), "--show"]) == 0
    out, _err = capfd.readouterr()
    assert [line.split("  ")[-1] for line in out.splitlines()] == ['"value-0"', '"va\\"l\\\\ue\\n1"', '"A=1"']


def _expired(side: Side) -> None:
    import datetime

    start = devcerts.now() - datetime.timedelta(days=9)
    side.files.identify(devcerts.issue(pki().intermediate, "worker-1", client=True, not_before=start))


def _lease_over(side: Side) -> None:
    side.files.write_offer(side.document | {"leaseExpiresAtMs": time.time_ns() // 1_000_000})


SPOILT: list[tuple[str, Callable[[Side], object], int, str]] = [
    ("offer open", lambda side: side.files.offer.chmod(0o644), 66, "The offer file is open to others."),
    ("offer missing", lambda side: side.files.offer.unlink(), 66, "The offer file does not exist."),
    ("offer malformed", lambda side: side.files.offer.write_text("{"), 65, "The offer is malformed."),
    ("credential open", lambda side: side.files.credential.chmod(0o604), 66, "The credential file is open to others."),
    ("credential malformed", lambda side: side.files.credential.write_text("x"), 65, "The credential is malformed."),
    ("key missing", lambda side: side.files.key.unlink(), 66, "The key file does not exist."),
    ("certificate missing", lambda side: side.files.cert.unlink(), 66, "The certificate file does not exist."),
    ("ca missing", lambda side: side.files.ca.unlink(), 66, "The CA file does not exist."),
    ("not PEM", lambda side: side.files.cert.write_text("x"), 76, "do not make a usable identity"),
    ("wrong ca", lambda side: side.files.ca.write_bytes(pki().other_root.pem), 76, "does not lead to the CA"),
    ("expired", _expired, 76, "The server refused the client's certificate."),
    ("lease over", _lease_over, 75, "The offer's lease is over."),
]


@pytest.mark.parametrize(("spoil", "code", "text"), [row[1:] for row in SPOILT], ids=[row[0] for row in SPOILT])
def test_what_the_worker_has_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Side], object], code: int, text: str
) -> None:
    """Each thing wrong on the worker's side has its exit code and one line that says what and how to mend it."""
    side = Side.make(tmp_path)
    spoil(side)
    with side.serving() as (server, _):
        assert main(["fetch", *side.files.arguments(server.port), "--timeout", "5s"]) == code
        assert server.requests == []
    _one_line(capfd, text)


ANSWERS: list[tuple[str, Callable[[Side], Step], int, str]] = [
    *((f"{status}", lambda _, s=status: Step(refusal(s), "close"), 77, f"({status})") for status in (400, 401, 409)),
    *((f"{s}", lambda _, s=s: Step(refusal(s), "close"), 69, f"({s})") for s in (429, 500, 503, 504)),
    *((f"{s}", lambda _, s=s: Step(refusal(s), "close"), 70, f"({s})") for s in (302, 404, 408)),
    ("reset", lambda side: Step(side.whole()[:100], "reset"), 69, "cannot be reached"),
    ("slow", lambda _: Step(b"", "hang"), 75, "No attempt ended in time."),
    ("oversized", lambda _: Step(ok(b"x" * 262_145), "close"), 70, "is not as contracted"),
    ("type", lambda side: Step(side.whole().replace(b"/json", b"/xml"), "close"), 70, "is not as contracted"),
    ("extra keys", lambda side: Step(ok(side.content()[:-1] + b',"x":1}'), "close"), 70, "is not as contracted"),
]


@pytest.mark.parametrize(("step", "code", "text"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_what_the_sidecar_answers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], step: Callable[[Side], Step], code: int, text: str
) -> None:
    """Each answer that is no delivery has its exit code and one line, which names the request where there was one."""
    side = Side.make(tmp_path)
    with side.serving(step(side)) as (server, _):
        assert main(["fetch", *side.files.arguments(server.port), "--timeout", "1s"]) == code
        assert server.requests
    line = _one_line(capfd, text)
    assert ("[request " in line) == (text != "No attempt ended in time.")


def _one_line(capfd: pytest.CaptureFixture[str], text: str) -> str:
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("secret-sidecar fetch: ")
    assert text in err
    for secret in (VALUE, TOKEN, LEASE_TOKEN, "qlsecret"):
        assert secret not in err
    return err


def test_sidecar_down(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody listening is 69."""
    side = Side.make(tmp_path)
    with side.serving() as (server, _):
        pass
    assert main(["fetch", *side.files.arguments(server.port), "--timeout", "300ms"]) == 69
    _one_line(capfd, "cannot be reached")


@pytest.mark.parametrize(
    "arguments",
    [[], ["--url", "http://localhost:1"], ["--timeout", "30"], ["--url", "https://localhost:1/api"], ["--offer", "x"]],
)
def test_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Missing arguments and malformed ones are usage faults, 64, before any file is read."""
    complete = Side.make(tmp_path).files.arguments(1) if arguments else []
    with pytest.raises(SystemExit) as caught:
        main(["fetch", *complete, *arguments])
    assert caught.value.code == 64
    assert "usage: secret-sidecar fetch" in capfd.readouterr().err


def test_help_shows_an_example(capfd: pytest.CaptureFixture[str]) -> None:
    """--help ends with an example and the exit codes."""
    with pytest.raises(SystemExit) as caught:
        main(["fetch", "--help"])
    assert caught.value.code == 0
    out = capfd.readouterr().out
    assert "secret-sidecar fetch --url" in out
    assert "77 denied" in out


def test_against_the_sidecar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The real sidecar delivers; a cancelled run is denied; a stopped sidecar is unreachable."""
    stand = make_stand(tmp_path / "stand", bundle=BUNDLE)
    files = write_worker(tmp_path / "worker", stand.world)
    with ExitStack() as running:
        running.enter_context(stand.start())
        assert main(["fetch", *files.arguments(stand.port)]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["SECRET_0", "SECRET_1", "-"]
        assert [int(line.split()[2]) for line in lines] == [20, 20, 19]
        stand.world.change("runs", cancel_requested_at_ms=stand.world.now_ms)
        assert main(["fetch", *files.arguments(stand.port)]) == 77
        assert "(409)" in capfd.readouterr().err
        assert stand.stop() == 0
        assert main(["fetch", *files.arguments(stand.port), "--timeout", "200ms"]) == 69
