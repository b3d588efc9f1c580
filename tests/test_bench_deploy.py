"""bench/deploy.py: the stored figures hold what the issue asks of them, and the measuring runs."""

import json
import subprocess
import sys
from pathlib import Path

from bench import deploy
from tests.kit.memscan import ROOT


def test_stored_figures_hold_the_bounds() -> None:
    """Linked: none mixed, none torn, at most 1 in 10,000 unavailable; flat: none torn; every tool ended well."""
    results = json.loads(deploy.RESULTS.read_text())["results"]
    assert {name for name in results if name in deploy.WORK} == deploy.WORK.keys()
    assert all(results[name]["exit"] == 0 and results[name]["seconds"] > 0 for name in deploy.WORK)
    linked = results["reader while the publisher rotates, linked"]
    assert linked["mixed"] == linked["torn"] == 0 and linked["unavailable"] * 10_000 <= linked["batches"]
    assert results["reader while the publisher rotates, flat"]["torn"] == 0
    assert results["delivery of one ref, receipts off and on"].keys() == {"off_us", "on_us"}


def test_a_figure_is_taken_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Publishing a few values is measured: seconds, peak memory and exit code."""
    command = [sys.executable, "-m", "bench.deploy", "--measure", *deploy.publish(tmp_path, 3)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    figure = json.loads(done.stderr.splitlines()[-1])
    assert figure["exit"] == 0 and figure["seconds"] > 0 and figure["peak_mib"] > 1
    assert json.loads(done.stdout)["summary"]["written"] == 3
