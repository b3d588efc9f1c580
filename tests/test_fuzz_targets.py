"""The fuzz targets: each holds for its seeds and for what chance brings; for long, guided by coverage (atheris)."""

import importlib
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz import __main__ as fuzzing
from tests.fuzz.targets import TARGETS

LONG_S = 20
"""For each target, two at a time."""


def needs_atheris() -> None:
    """Skip where atheris has no wheel, saying so; anything else that keeps it from being imported is a failure."""
    try:
        importlib.import_module("atheris")
    except ModuleNotFoundError:
        pytest.skip(f"no atheris for Python {sys.version_info[0]}.{sys.version_info[1]} on this processor")


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_begins_with_what_is_accepted(name: str) -> None:
    """Every seed is held, and at least one is accepted, so that the search starts behind the first check."""
    target = TARGETS[name]
    seeds = target.seeds()
    accepted = [target.one(seed) for seed in seeds]
    assert any(accepted)
    assert max(map(len, seeds)) <= target.most


@given(st.sampled_from(list(TARGETS)), st.binary(max_size=64), st.integers(0, 1 << 16), st.integers(0, 64))
@example("head", b"", 0, 64)
@example("CRL", b"-----", 0, 0)
def test_a_target_holds_for_any_bytes(name: str, data: bytes, at: int, gone: int) -> None:
    """Any bytes alone, and in the place of others in a good input, are refused as promised, or held when accepted."""
    target = TARGETS[name]
    target.one(data)
    seed = target.seeds()[0]
    at %= len(seed) + 1
    target.one(seed[:at] + data + seed[at + gone :])


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line says which target does not exist, and ends with 64."""
    assert fuzzing.main(["head", "nothing"]) == 64
    assert "nothing" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_planted_fault_is_found_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The search is guided: it finds a fault that chance would not, fails, and shows the input that causes it."""
    needs_atheris()
    assert fuzzing.main(["planted", "--seconds", "60"]) == 1
    told = capsys.readouterr().out
    assert "the planted fault" in told
    assert "input: b'fla" in told


@pytest.mark.soak
@pytest.mark.timeout(LONG_S * len(TARGETS) + 300)
def test_every_target_holds_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    """No input that coverage leads to makes a target raise what it must not, break what it holds, or hang."""
    needs_atheris()
    with capsys.disabled():
        print()
        results = fuzzing.fuzz_all(list(TARGETS), LONG_S)
    # What was told stands in the failure too: of what is printed on the way, a log of the run may keep the end alone.
    assert "\n".join(result.told for result in results if result.failed) == ""
    assert {result.name for result in results if result.runs > 0} == TARGETS.keys()
