"""`secret-sidecar check` finds at once all that would keep `serve` from starting, and changes nothing (contract 8)."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from provider import limits
from provider.mounted import MountedFiles
from provider.outcomes import Reason, Refused
from sidecar.__main__ import main
from tests.kit.environments import INGRESS, PEPPER, POSTGRES
from tests.kit.pki import pki
from tests.kit.stand import make_stand

SOURCES: Final = Path(__file__).resolve().parents[1]
ROOT: Final = "QL3_WORKER_SECRET_ROOT_DIRECTORY"
STORE: Final = "QL3_WORKER_SECRET_AUTHORITY_FILE"
KEY: Final = f"{INGRESS}TLS_PRIVATE_KEY_FILE"


@dataclass
class World:
    """A sound deployment in a folder of its own, and `check` run in it."""

    directory: Path
    environment: dict[str, str]
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def set(self, **values: str | None) -> None:
        for name, value in values.items():
            self.environment.pop(name, None)
            if value is not None:
                self.environment[name] = value

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def store(self) -> Path:
        return self.directory / "store.sqlite3"

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code and what was printed, in which no path, pepper or content may be."""
        for name in [name for name in os.environ if name.startswith("QL")]:
            self.monkeypatch.delenv(name)
        for name, value in self.environment.items():
            self.monkeypatch.setenv(name, value)
        code = main(["check", *arguments])
        out, error = self.capsys.readouterr()
        assert error == ""
        assert str(self.directory) not in out and PEPPER not in out
        return code, out

    def check(self) -> tuple[int, dict[str, Any]]:
        """The exit code and the document."""
        code, out = self.run("--json")
        return code, json.loads(out)

    def findings(self) -> list[tuple[str, str]]:
        """The code and the place of each finding; the exit code and the lines agree with them."""
        code, document = self.check()
        found = [(finding["code"], finding["where"]) for finding in document["findings"]]
        assert code == (78 if found else 0)
        line_code, out = self.run()
        assert line_code == code
        lines = out.splitlines()[:-1]
        assert [tuple(line.split()[:2]) for line in lines] == [(where, name) for name, where in found]
        return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    """A sound deployment."""
    stand = make_stand(tmp_path / "here")
    return World(stand.directory, {**stand.environment}, monkeypatch, capsys)


def state(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of every file below a directory."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in files}


def test_a_sound_deployment_has_no_finding(world: World) -> None:
    """Where serve would start, check says so, ends with 0, names what it looked at, and has changed nothing."""
    before = state(world.directory)
    code, document = world.check()
    assert code == 0
    assert document == {
        "schemaVersion": 1,
        "command": "check",
        "findings": [],
        "summary": {
            "state": "sound",
            "findings": 0,
            "checked": ["configuration", "tls", "root", "store"],
            "skipped": [],
        },
    }
    assert world.run() == (0, "serve would start; checked: configuration, tls, root, store\n")
    assert state(world.directory) == before


def test_a_disabled_ingress_is_no_finding(world: World) -> None:
    """Disabled, check says that serve would end with 0, looks at nothing else, and ends with 0 too."""
    world.set(QL3_WORKER_INGRESS_ENABLED="false", QL3_WORKER_INGRESS_PORT="faulty", **{KEY: None})
    code, document = world.check()
    assert (code, document["findings"], document["summary"]["state"]) == (0, [], "disabled")
    code, out = world.run()
    assert code == 0 and out.startswith("the ingress is disabled")


def test_a_closed_gate_is_one_finding(world: World) -> None:
    """Enabled under another profile is the only finding; nothing else is looked at, and that is said."""
    world.set(QL_DEPLOYMENT_PROFILE="edge", QL3_WORKER_INGRESS_PORT="faulty")
    assert world.findings() == [("configuration", "QL_DEPLOYMENT_PROFILE")]
    assert world.check()[1]["summary"]["skipped"] == ["tls", "root", "store"]


def test_everything_is_found_at_once(world: World) -> None:
    """Findings of configuration, identity, root and store stand in one list, in this order."""
    (world.directory / "tls" / "tls.key").chmod(0o444)
    world.root.chmod(0o777)
    world.store.write_bytes(b"no database")
    world.set(QL3_WORKER_INGRESS_PORT="x", QL3_SECRET_SIDECAR_TYPO="x")
    assert world.findings() == [
        ("configuration", f"{INGRESS}PORT"),
        ("configuration", "QL3_SECRET_SIDECAR_TYPO"),
        ("tls_key_mode", KEY),
        ("root_writable", ROOT),
        ("store_not_a_store", STORE),
    ]


def test_what_cannot_be_looked_at_yet_is_named(world: World) -> None:
    """A part whose own variables are at fault is skipped, and the others are looked at all the same."""
    world.set(QL3_WORKER_SECRET_PROVIDER="vault", QL3_WORKER_SECRET_AUTHORITY_FILE="x" * 4097, **{KEY: ""})
    world.set(QL3_SECRET_SIDECAR_RECEIPTS="maybe")
    code, document = world.check()
    assert code == 78
    assert document["summary"]["skipped"] == ["tls", "root", "store"]
    assert "not checked before its variables are mended: tls, root, store" in world.run()[1]


def test_a_disabled_provider_has_no_root_to_check(world: World) -> None:
    """Where the provider is disabled no root is looked at, and no provider is loaded."""
    world.set(QL3_WORKER_SECRET_PROVIDER="disabled", **{ROOT: None})
    assert world.check()[1]["summary"]["checked"] == ["configuration", "tls", "store"]
    program = "import sys; from sidecar.__main__ import main; print(main(['check']), 'provider.mounted' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=SOURCES,
        env=world.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "0 False"


def put_link(root: Path) -> None:
    """Move the root away and leave a link in its place."""
    root.rename(root.with_name("moved"))
    root.symlink_to("moved")


def put_file(root: Path) -> None:
    """Move the root away and leave a file in its place."""
    root.rename(root.with_name("moved"))
    root.write_bytes(b"")


ROOTS: Final[dict[str, Callable[[Path], object]]] = {
    "root_missing": lambda root: root.rename(root.with_name("moved")),
    "root_link": put_link,
    "root_not_directory": put_file,
    "root_writable": lambda root: root.chmod(0o775),
}


@pytest.mark.parametrize("code", ROOTS)
def test_a_bad_root_is_named_by_its_cause(code: str, world: World) -> None:
    """Each way in which a root can be refused has a finding of its own."""
    ROOTS[code](world.root)
    assert world.findings() == [(code, ROOT)]


def test_a_root_that_cannot_be_seen_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that is refused and cannot be looked at, or looks good meanwhile, or does not answer, is told as that."""

    def refuse(self: MountedFiles) -> None:
        raise Refused(Reason.ROOT_UNAVAILABLE)

    monkeypatch.setattr(MountedFiles, "verify_root", refuse)
    assert world.findings() == [("root_unavailable", ROOT)]
    released = threading.Event()
    released.set()
    lstat = os.lstat

    def look(path: Any, **keywords: Any) -> os.stat_result:
        if Path(path) != world.root:
            return lstat(path, **keywords)
        released.wait(30)
        raise PermissionError

    monkeypatch.setattr(os, "lstat", look)
    assert world.findings() == [("root_unreachable", ROOT)]
    monkeypatch.setattr(limits, "MATERIAL_S", 0.05)
    released.clear()
    assert world.findings() == [("root_silent", ROOT)]
    released.set()


STORES: Final[dict[str, Callable[[Path], object]]] = {
    "store_missing": lambda store: store.unlink(),
    "store_too_open": lambda store: store.chmod(0o644),
    "store_not_a_store": lambda store: store.write_bytes(b"SQLite format 3\0" + bytes(4096)),
}


@pytest.mark.parametrize("code", STORES)
def test_a_bad_store_is_named_by_its_cause(code: str, world: World) -> None:
    """A store that serve would refuse is a finding with the store's own words, and stays as it is."""
    STORES[code](world.store)
    before = state(world.directory)
    assert world.findings() == [(code, STORE)]
    assert state(world.directory) == before


def test_a_store_without_receipts_is_found(world: World) -> None:
    """Receipts that are on need their table; the finding says how to make it."""
    world.set(QL3_SECRET_SIDECAR_RECEIPTS="on")
    assert world.findings() == [("store_no_receipts", STORE)]


def test_a_database_that_is_not_there_is_found(world: World) -> None:
    """A PostgreSQL that does not answer is a finding: serve would listen, but not be ready."""
    world.set(**{STORE: None, "QL3_WORKER_SECRET_AUTHORITY": "postgres"})
    world.set(**{name: value for name, value in POSTGRES.items() if "POSTGRES" in name})
    world.set(QL3_POSTGRES_WORKER_INGRESS_HOST="127.0.0.1", QL3_POSTGRES_WORKER_INGRESS_PORT="1")
    assert world.findings() == [("store_unreachable", "QL3_WORKER_SECRET_AUTHORITY")]


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_ca_file_of_the_database_that_is_none_is_named(world: World, content: bytes | None) -> None:
    """A CA file that is missing or holds no certificate is told as such, not as a server that is not there."""
    file = world.directory / "postgres-ca.crt"
    if content is not None:
        file.write_bytes(content)
    world.set(**{STORE: None, "QL3_WORKER_SECRET_AUTHORITY": "postgres"})
    world.set(**{name: value for name, value in POSTGRES.items() if "POSTGRES" in name})
    world.set(QL3_WORKER_INGRESS_POSTGRES_TLS_CA_FILE=str(file))
    assert world.findings() == [("store_unreachable", "QL3_WORKER_SECRET_AUTHORITY")]
    assert "CA file" in world.run()[1]


def test_a_bad_identity_is_found_file_by_file(world: World) -> None:
    """Every file of the identity has its own findings, each with the mend of the identity's own table."""
    identity = world.directory / "tls"
    (identity / "tls.key").write_bytes(pki().client.key_pem)
    (identity / "ca.crt").write_bytes(pki().client.pem)
    found = world.findings()
    assert ("tls_key_mismatch", KEY) in found
    assert any(code.startswith("tls_ca_") and where == f"{INGRESS}TLS_CLIENT_CA_FILE" for code, where in found)


def test_every_finding_has_cause_and_mend(world: World) -> None:
    """A finding has a stable code, a severity, a place, a cause and a mend; a line has them all in columns."""
    world.root.chmod(0o777)
    world.store.unlink()
    world.set(QL3_WORKER_INGRESS_PORT="x")
    for finding in world.check()[1]["findings"]:
        assert list(finding) == ["code", "severity", "where", "cause", "mend"]
        assert re.fullmatch("[a-z_]+", finding["code"]) and finding["severity"] == "error"
        assert finding["where"].startswith("QL") and finding["cause"] and not finding["cause"].endswith(".")
        assert finding["mend"][0].isupper() and finding["mend"].endswith(".")
    *lines, last = world.run()[1].splitlines()
    assert len({line.index(line.split()[1]) for line in lines}) == 1
    assert last == "3 findings"


def test_check_and_serve_agree(world: World) -> None:
    """For the same deployment serve ends with 78 and blames the same variables."""
    (world.directory / "tls" / "tls.crt").unlink()
    world.root.chmod(stat.S_IRWXU | stat.S_IWOTH)
    world.store.unlink()
    blamed = {where for _, where in world.findings()}
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "serve"],
        cwd=SOURCES,
        env=world.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 78
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["variable"] for event in events if event["event"] == "start_fault"} == blamed
    assert blamed == {f"{INGRESS}TLS_CERTIFICATE_FILE", ROOT, STORE}


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """The help says what the exit codes mean and shows an example."""
    with pytest.raises(SystemExit) as left:
        main(["check", "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "example:" in shown and "78" in shown
