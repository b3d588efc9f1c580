"""bench/footprint.py: the stored figures are whole, and the measuring runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import footprint
from bench.bed import RESULTS
from tests.kit.memscan import ROOT


def test_stored_figures_are_whole() -> None:
    """Memory cold and warm on both stores, the peak of a group and its file, starts, sizes, the reference beside."""
    found = json.loads((RESULTS / "footprint.json").read_text())["footprint"]
    assert (found["deliveries"], found["reference_bytes"]) == (footprint.DELIVERIES, 42_033_152)
    assert found["targets"] == footprint.TARGETS
    assert found["prefix_bytes"] > sum(found["largest_bytes"].values()) > 0
    for store in ("sqlite", "postgres"):
        assert list(found[store]) == list(footprint.TEMPERATURES)
        for row in found[store].values():
            assert (row["group"]["version"], row["group"]["file"]) in (
                (1, "memory.max_usage_in_bytes"),
                (2, "memory.peak"),
            )
            after = row["after_deliveries"]
            assert 0 < after["resident_bytes"] <= after["peak_bytes"]
            assert after["anonymous_bytes"] < after["group_peak_bytes"]
    assert found["start_to_ready_s"]["lowest"] <= found["start_to_ready_s"]["median"]


@pytest.mark.soak
def test_it_runs(tmp_path: Path) -> None:
    """A short run fills every figure; an ordinary user has none of a group, and is told why."""
    command = [sys.executable, "-m", "bench.footprint", "--deliveries", "100", "--starts", "1"]
    command += ["--directory", str(tmp_path), "--output", str(tmp_path / "found.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=True)
    found = json.loads((tmp_path / "found.json").read_text())["footprint"]
    assert f"MiB after {found['deliveries']} deliveries" in done.stdout
    for row in found["sqlite"].values():
        peak = row["after_deliveries"]["group_peak_bytes"]
        assert peak > 0 if os.geteuid() == 0 else (peak is None and row["group"]["refused"])
