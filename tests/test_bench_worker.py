"""The worker's benchmark: that it runs, and what it stores."""

import json
from pathlib import Path

import pytest

from bench import worker
from bench.bed import RESULTS


def test_stored_result_has_its_shape() -> None:
    """The stored result has every client and every way to start a program, as often as the others."""
    found = json.loads((RESULTS / "worker.json").read_text())
    assert found["format"] == 1
    assert {run["client"] for run in found["rates"]} == set(worker.CLIENTS)
    assert set(found["starts_ms"]) == {"alone", *worker.MODES}
    assert len({len(times) for times in found["starts_ms"].values()}) == 1
    assert {"processor", "kernel", "python", "openssl", "load_before"} <= found["machine"].keys()


def test_a_short_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole benchmark runs: every client fetches, every mode starts its program."""
    output = tmp_path / "worker.json"
    assert worker.main(["--fetches", "10", "--rounds", "1", "--starts", "1", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert all(run["per_second"] > 0 for run in found["rates"])
    assert all(ms > 0 for times in found["starts_ms"].values() for ms, _ in times)
    out = capsys.readouterr().out
    assert "| client, 8 |" in out
    assert "| files |" in out
