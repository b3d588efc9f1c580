"""The split of a delivery by stage and the floor below it: how samples are charged, and what follows from parts."""

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bench import floor, profiled, stages
from bench.bed import RESULTS, Settings
from bench.floor_parts import files_loop, handshake_loop, postgres_loop, python_loop, sqlite_loops
from bench.profiled import REST, RULES, STAGES, Sampler, stage_of_code
from bench.workloads import BASE

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("file", "function", "stage"),
    [
        ("/x/sidecar/stores/sqlite.py", "record", "audit"),
        ("/x/sidecar/stores/sqlite.py", "newest", "authentication"),
        ("/x/sidecar/stores/sqlite_lock.py", "take", profiled.NO_STAGE),
        ("/lib/asyncio/sslproto.py", "_do_write", "TLS"),
        ("/lib/json/decoder.py", "decode", profiled.NO_STAGE),
    ],
)
def test_a_helper_bears_no_stage(file: str, function: str, stage: str) -> None:
    """A function is charged to its stage; one that several stages use is charged to its caller's."""
    assert stage_of_code(file, function) == stage


def test_every_rule_names_a_file_of_ours_that_is_there() -> None:
    """A module that was renamed would be charged to its caller without a word."""
    for file, function, _ in RULES:
        if file.startswith(("sidecar/", "provider/")):
            assert function is None or f"def {function}(" in (ROOT / file).read_text(), file
            assert (ROOT / file).exists(), file


def test_a_sample_is_charged_to_the_innermost_stage() -> None:
    """What no function on the stack owns is the rest."""
    sampler = Sampler(Path("unused"))
    here: FrameType = sys._getframe()
    assert sampler.stage_of(here) == REST
    sampler.begin()
    sampler.sample(0, here)
    assert sampler.counts == {REST: 1}


def test_the_split_sums_to_what_the_kernel_counted() -> None:
    """Samples split the main thread's time; the other threads' time stands beside, and nothing is lost."""
    found = stages.split({"TLS": 1, "files": 2, REST: 1}, main_us=400.0, threads_us=30.0)
    assert found == dict.fromkeys(STAGES, 0.0) | {"TLS": 100.0, "files": 200.0, REST: 100.0, "threads": 30.0}
    with pytest.raises(ValueError, match="no sample"):
        stages.split({}, 1.0, 1.0)


def test_a_sidecar_is_sampled(tmp_path: Path) -> None:
    """The profiled process serves, is sampled, and its stages sum to its processor time."""
    found = stages.measure(BASE, tmp_path, Settings(1.0, 0.2, 1, None, None, True))
    assert found["samples"] > 0
    assert found["sum_us"] == pytest.approx(found["cpu_us"], abs=len(STAGES) * 0.1)


def servers(bare: float, alone: float) -> dict[str, dict[str, Any]]:
    """Return the floors that are servers, as medians."""
    return {
        name: {kind: {"median": us} for kind in ("kept", "fresh")}
        for name, us in (("bare", bare), ("TLS alone", alone))
    }


PARTS = {
    "credential, select": 5.0,
    "audit row, committed": 10.0,
    "BEGIN IMMEDIATE, read, COMMIT": 20.0,
    "JSON, HMAC and digests": 5.0,
    "one file, checked": 10.0,
    "one file, checked on tmpfs": 9.0,
}


def test_the_floor_follows_from_its_parts() -> None:
    """A target below the sum of TLS and the parts is named as not possible, with the best ratio that is."""
    found = {one["name"]: one for one in floor.concluded(PARTS, servers(100.0, 40.0), 30.0)}
    assert found["SQLite, kept alive"]["floor_us"] == 90.0
    assert found["SQLite, kept alive"]["best"] == 1.111
    assert found["SQLite, kept alive"]["possible"] is True
    assert found["PostgreSQL, kept alive"]["floor_us"] == 40 + 15 + floor.ROUND_TRIPS * 30
    assert found["files a second a core, 64 refs of 256 B"]["floor_us"] == round(9 + (40 + 40) / 64, 2)
    beyond = floor.concluded(PARTS, servers(20.0, 40.0), None)
    assert [one["possible"] for one in beyond if one["name"] == "SQLite, kept alive"] == [False]
    assert not any(one["name"].startswith("PostgreSQL") for one in beyond)


@pytest.mark.usefixtures("server")  # it shows that one can run here
def test_the_parts_are_measured(tmp_path: Path) -> None:
    """Every part takes some time of this thread, and a round trip takes more than arithmetic."""
    found = sqlite_loops(tmp_path, 5) | files_loop(tmp_path, 5) | python_loop(5) | handshake_loop(2)
    assert all(us > 0 for us in found.values())
    assert {name for name in PARTS if "tmpfs" not in name} <= found.keys()
    assert postgres_loop(5) > 0


def test_without_a_tracer_no_call_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without strace gives no figure instead of an error."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert floor.system_calls(tmp_path, Settings(0.1, 0.0, 1, None, None, True)) is None


def test_calls_are_counted_from_the_tracer_s_table() -> None:
    """The summary's rows give a number for each name; its lines and its total give none."""
    table = (
        "    calls syscall\n--------- -------\n      400 sendto\n        3 openat2\n--------- ----\n      403 total\n"
    )
    assert floor._counted(table) == {"sendto": 400, "openat2": 3}


def test_the_stored_results_have_their_shape() -> None:
    """The split sums to the whole, and each target has its floor."""
    split = json.loads((RESULTS / "stages.json").read_text())
    for one in split["cases"]:
        assert sum(one["stages_us"].values()) == pytest.approx(one["cpu_us"], abs=len(STAGES) * 0.1)
    found = json.loads((RESULTS / "floor.json").read_text())["floor"]
    assert [one["name"] for one in found["targets"]] == [
        "SQLite, kept alive",
        "SQLite, fresh",
        "PostgreSQL, kept alive",
        "files a second a core, 64 refs of 256 B",
    ]
