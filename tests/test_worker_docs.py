"""What docs/worker.md and docs/systemd say holds: the examples run, the names and exit codes are the code's."""

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar import client_errors
from sidecar.cli import exec as exec_command
from sidecar.cli import worker
from sidecar.cli.common import Parser
from sidecar.client import Client, FetchError
from sidecar.inject import REFUSED_NAMES
from tests.kit.memscan import ROOT
from tests.kit.side import GIVEN, Side

TEXT = (ROOT / "docs" / "worker.md").read_text()
UNIT = (ROOT / "docs" / "systemd" / "secret-worker@.service").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_the_asynchronous_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first example, with the paths of a real worker in it, fetches."""
    side = Side.make(tmp_path)
    given: list[bytes] = []

    async def connect(view: memoryview, *, bundle: memoryview) -> None:
        given.extend((bytes(view), bytes(bundle)))

    with side.serving() as (server, _):
        program = _blocks("python")[0]
        paths = {"worker.pem": side.files.cert, "worker.key": side.files.key, "ca.pem": side.files.ca}
        paths |= {"token": side.files.credential, "offer.json": side.files.offer}
        for name, path in paths.items():
            assert f'"{name}"' in program
            program = program.replace(f'"{name}"', repr(str(path)))
        program = program.replace("https://sidecar.example:5801", f"https://localhost:{server.port}")
        names: dict[str, Any] = {"connect": connect}
        exec(compile(program, "worker.md", "exec"), names)  # noqa: S102 - the example is the thing under test
        work: Callable[[], Awaitable[None]] = names["work"]
        asyncio.run(work())  # type: ignore[arg-type]
    assert given == [GIVEN[0], GIVEN[2]]
    assert capsys.readouterr().out == "SECRET_0 7\nSECRET_1 9\n"


def test_the_blocking_example_runs(tmp_path: Path) -> None:
    """The second example, with its names defined, fetches."""
    side = Side.make(tmp_path)
    given: list[bytes] = []
    with side.serving() as (server, _):
        program = _blocks("python")[1].replace('"offer.json"', repr(str(side.files.offer)))
        names: dict[str, Any] = {
            "url": f"https://localhost:{server.port}",
            "use": lambda view: given.append(bytes(view)),
        }
        identity = side.files.identity()
        names |= identity | {"token": identity["credential"]}
        exec(compile(program, "worker.md", "exec"), names)  # noqa: S102 - the example is the thing under test
    assert given == GIVEN[:1]


def test_every_error_stands_with_its_code() -> None:
    """The table names every error of the client and the exit code that it ends `fetch` and `exec` with."""
    rows = dict(re.findall(r"^\| (`.*?) \|.*\| (\d+) \|$", TEXT, re.MULTILINE))
    codes = {name: int(code) for names, code in rows.items() for name in re.findall(r"`(\w+)`", names)}
    made: list[FetchError] = [
        client_errors.OfferInvalid(),
        client_errors.CredentialInvalid(),
        client_errors.InputUnusable(client_errors.Input.KEY, client_errors.Trouble.MISSING),
        client_errors.Unavailable(),
        client_errors.UnexpectedAnswer(302),
        client_errors.LeaseOver(),
        client_errors.OutOfTime(),
        client_errors.TlsFailed(client_errors.Tls.IDENTITY),
        client_errors.Denied(401),
    ]
    assert {type(error) for error in made} == set(FetchError.__subclasses__())
    assert codes == {type(error).__name__: int(worker.fault(error).code) for error in made}


def test_refused_names_stand_there() -> None:
    """The refused names of the document are those of the code."""
    found = TEXT.partition("Refused are ")[2].partition(",\n")[0]
    assert re.findall(r"`([^`]+)`", found) == REFUSED_NAMES.split(", ")


def _commands() -> list[list[str]]:
    script = _blocks("sh")[0].replace("\\\n", " ")
    line = next(line for line in script.splitlines() if line.startswith("exec "))
    shell = shlex.split(line)[1:]
    entry, command = re.findall(r"\[(.*?)\]", _blocks("dockerfile")[0], re.DOTALL)
    image = re.findall(r'"([^"]+)"', entry) + re.findall(r'"([^"]+)"', command)
    unit = UNIT.replace("\\\n", " ").partition("ExecStart=")[2].splitlines()[0]
    return [shell, image, shlex.split(unit)]


@pytest.mark.parametrize("command", _commands(), ids=["shell", "image", "unit"])
def test_commands_parse(command: list[str]) -> None:
    """The command lines of shell script, image and unit are what `exec` takes."""
    assert command[0].endswith("secret-sidecar")
    assert command[1] == "exec"
    parser = Parser(prog="secret-sidecar exec")
    exec_command.configure(parser)
    args = parser.parse_args(command[2:])
    assert args.url == "https://sidecar.example:5801"
    assert args.command


def test_the_unit_loads_what_it_names() -> None:
    """Every file of the unit's command line is one that LoadCredential gives it, and the exit codes that no further try
    mends end it.
    """
    loaded = set(re.findall(r"^LoadCredential=([^:]+):", UNIT, re.MULTILINE))
    assert set(re.findall(r"%d/(\S+)", UNIT)) == loaded
    assert "RestartPreventExitStatus=64 65 66 70 73 75 76 77\n" in UNIT


def test_the_defaults_stand_there() -> None:
    """The client's docstring and the document agree on what a fetch without a deadline does."""
    assert "None: 30 s from now" in (Client.fetch.__doc__ or "")
    assert "takes 30 seconds at most" in TEXT
