"""The guard against regressions: how it decides, on made-up rounds whose truth is known."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import check
from bench.bed import Settings
from bench.check import MOST_ROUNDS, ROUNDS, Verdict, decided, interval, judged
from bench.report import machine
from bench.workloads import BASE

STORED = 0.30


def noisy(true: float, spread: float, seed: int) -> Iterator[float]:
    """Yield ratios around a true median: mostly near it, one in five far off, as on a machine that others use."""
    chance = random.Random(seed)
    while True:
        far = 6 if chance.random() < 0.2 else 1
        yield true * (1 + chance.gauss(0, spread * far))


def test_the_interval_is_of_order_statistics() -> None:
    """Nine rounds give the second lowest and second highest at 95 %; five give no bound at all."""
    assert interval([float(number) for number in range(1, 10)]) == (2.0, 8.0)
    assert interval([1.0] * 5)[1] == float("inf")


def test_a_loss_beyond_the_tolerance_falls_and_a_gain_holds() -> None:
    """With quiet rounds the first ones decide."""
    assert judged(STORED, [STORED * 0.90] * ROUNDS) is Verdict.FELL
    assert judged(STORED, [STORED * 0.96] * ROUNDS) is Verdict.HELD
    assert judged(STORED, [STORED * 1.30] * ROUNDS) is Verdict.HELD


def test_rounds_on_both_sides_decide_nothing() -> None:
    """An interval that holds the boundary asks for more rounds."""
    assert judged(STORED, [STORED * (0.90 + number / 100) for number in range(ROUNDS)]) is Verdict.UNDECIDED


def share(true: float, wanted: Verdict) -> tuple[float, float]:
    """Return how often 200 checks of noisy rounds end so, and how many rounds they took on average."""
    ended, taken = 0, 0
    for seed in range(200):
        verdict, ratios = decided(STORED, noisy(true, 0.03, seed).__next__)
        ended += verdict is wanted
        taken += len(ratios)
    return ended / 200, taken / 200


def test_noise_neither_makes_up_a_loss_nor_hides_one() -> None:
    """With noisy rounds unchanged code passes and a loss of 12 % fails, nearly always and soon."""
    passed, rounds = share(STORED, Verdict.HELD)
    assert passed >= 0.98
    assert rounds < 16
    failed, rounds = share(STORED * 0.88, Verdict.FELL)
    assert failed >= 0.98
    assert rounds < 20


def test_what_stays_undecided_ends_by_the_median() -> None:
    """A ratio exactly on the boundary ends the check after the last round that is allowed."""
    least = STORED * (1 - check.TOLERANCE)
    both = iter([least * 0.9, least * 1.1] * MOST_ROUNDS)
    verdict, ratios = decided(STORED, both.__next__)
    assert len(ratios) == MOST_ROUNDS
    assert verdict is Verdict.FELL  # one more below than above


def stored(path: Path, directory: Path, **changed: object) -> Path:
    """Write ratios as if taken on this machine, with facts of it changed."""
    ratios = {workload.name: STORED for workload in check.WATCHED}
    path.write_text(json.dumps({"machine": machine(directory) | changed, "ratios": ratios}))
    return path


@pytest.mark.parametrize(("true", "code"), [(STORED, 0), (STORED * 0.5, 1)])
def test_the_exit_code_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], true: float, code: int
) -> None:
    """0 when every ratio held, 1 and its name when one fell."""

    @contextmanager
    def made_up(*_: object) -> Iterator[object]:
        yield lambda: true

    monkeypatch.setattr(check, "rounds", made_up)
    path = stored(tmp_path / "check.json", tmp_path)
    assert check.main(["--baseline", str(path), "--directory", str(tmp_path)]) == code
    assert ("fell by more than 5%" in capsys.readouterr().err) is bool(code)


@pytest.mark.parametrize("changed", [{"processor": "another"}, {"python": "3.99.0"}])
def test_ratios_of_another_machine_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str]
) -> None:
    """A ratio holds for one processor and interpreter: elsewhere the check says what to do and measures nothing."""
    path = stored(tmp_path / "check.json", tmp_path, **changed)
    assert check.main(["--baseline", str(path), "--directory", str(tmp_path)]) == 65
    assert "bench.check --store" in capsys.readouterr().err
    assert check.main(["--baseline", str(tmp_path / "none.json"), "--directory", str(tmp_path)]) == 65


def test_ratios_are_taken_and_held_against(tmp_path: Path) -> None:
    """A round of real servers gives a ratio, and another one, in the other order, too."""
    settings = Settings(0.2, 0.0, 1, None, None, True)
    with check.rounds(BASE, tmp_path / "stand", settings) as take:
        assert 0 < take() < 1.5
