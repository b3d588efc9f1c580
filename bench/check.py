"""`make bench-check`: has a delivery become dearer? Ratios of now against the stored ones, judged against their noise.

    python -m bench.check --store      takes the ratios that later runs are held against, on this machine
    python -m bench.check              measures the same again; ends with 1 when one fell beyond the tolerance

A ratio is taken within one round of two runs next to each other, so what slows both servers falls out of it. The median
of the rounds has an interval that follows from order statistics alone, whatever the noise looks like. A workload has
failed only if even the upper end of its interval lies below what is allowed; it has passed only if the lower end lies
above; in between more rounds are taken, so noise costs time and neither hides a loss nor makes one up.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from bench.bed import RESULTS, Settings, bare, load, pid_of, processors, product, result_of, store
from bench.report import Workload
from bench.workloads import BASE, FRESH, MANY_REFS

WATCHED: Final = (BASE, MANY_REFS, FRESH)
TOLERANCE: Final = 0.05
"""A ratio may fall by this share."""
CONFIDENCE: Final = 0.95
ROUNDS: Final = 9
MOST_ROUNDS: Final = 45
SAME: Final = ("processor", "processors", "kernel", "python", "openssl", "sqlite", "aiohttp", "file_system")
"""Facts of the machine that a stored ratio holds for."""


class Verdict(StrEnum):
    """What the rounds so far say."""

    HELD = "held"
    FELL = "fell"
    UNDECIDED = "undecided"


def interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval in which the true median lies with that confidence: from the k-th lowest to the k-th highest.

    Each round lies above or below the true median as a coin falls, so the coverage is binomial, whatever the noise is.
    With too few rounds for the confidence the interval is everything.
    """
    ordered, rounds = sorted(ratios), len(ratios)
    missed, rank = 0.0, 0
    while rank < rounds // 2:
        missed += 2 * math.comb(rounds, rank) / 2**rounds
        if missed > 1 - confidence:
            break
        rank += 1
    return (ordered[rank - 1], ordered[-rank]) if rank else (0.0, math.inf)


def judged(stored: float, ratios: Sequence[float], tolerance: float = TOLERANCE) -> Verdict:
    """Hold the rounds of a workload against its stored ratio."""
    least, (low, high) = stored * (1 - tolerance), interval(ratios)
    if high < least:
        return Verdict.FELL
    return Verdict.HELD if low >= least else Verdict.UNDECIDED


def decided(
    stored: float, take: Callable[[], float], tolerance: float = TOLERANCE, most: int = MOST_ROUNDS
) -> tuple[Verdict, list[float]]:
    """Take rounds until they decide, at most `most`; undecided at the end is told by the median."""
    ratios = [take() for _ in range(ROUNDS)]
    while (verdict := judged(stored, ratios, tolerance)) is Verdict.UNDECIDED and len(ratios) < most:
        ratios += [take() for _ in range(2)]
    if verdict is Verdict.UNDECIDED:
        held = statistics.median(ratios) >= stored * (1 - tolerance)
        verdict = Verdict.HELD if held else Verdict.FELL
    return verdict, ratios


@contextmanager
def rounds(workload: Workload, directory: Path, settings: Settings) -> Iterator[Callable[[], float]]:
    """Start both servers; yield what measures one round, bare / product, each time in the other order."""
    with product(directory, workload, settings) as (stand, requests):
        crowded: dict[str, Any] = {"request": requests[0], "others": tuple(requests[1:])}
        with bare(stand, len(stand.ask().body), settings) as handler:
            servers: dict[str, tuple[int, int, dict[str, Any]]] = {
                "product": (pid_of(stand), stand.port, crowded),
                "bare": (*handler, {}),
            }
            order = list(servers)

            def take() -> float:
                took = {}
                for name in order:
                    pid, port, changed = servers[name]
                    seen = load(stand, pid, port, workload, settings, **changed)
                    took[name] = seen.cpu_s / seen.requests
                order.reverse()
                return took["bare"] / took["product"]

            take()  # the first one warms both up
            yield take


def baseline(path: Path, about: dict[str, Any]) -> dict[str, float]:
    """Return the stored ratios. Raises ValueError, saying what to do, where they hold for another machine."""
    if not path.exists():
        raise ValueError("no ratios are stored; take them first: python -m bench.check --store")
    kept = json.loads(path.read_text())
    other = [name for name in SAME if kept["machine"].get(name) != about.get(name)]
    if other:
        raise ValueError(
            f"the stored ratios are of another machine ({', '.join(other)} differ); take them here first, with the code"
            " to compare with: python -m bench.check --store"
        )
    return {str(name): float(ratio) for name, ratio in kept["ratios"].items()}


def main(given: Sequence[str] | None = None) -> int:
    """Store ratios or hold this code against them. Returns 0 when they held, 1 when one fell, 65 without any."""
    parser = argparse.ArgumentParser(prog="python -m bench.check", description="Has a delivery become dearer?")
    parser.add_argument("--store", action="store_true", help="take the ratios that later runs are held against")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one run (default 1)")
    parser.add_argument("--only", default="", help="workloads whose name holds this text")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="a ratio may fall by this share (0.05)")
    parser.add_argument("--directory", default="/var/tmp", help="where the stores are made; a disk (default /var/tmp)")
    parser.add_argument("--baseline", type=Path, default=RESULTS / "check.json", help="the stored ratios")
    asked = parser.parse_args(given)
    settings = Settings(asked.seconds, 0.2, ROUNDS, *processors(), False)
    watched = [workload for workload in WATCHED if asked.only in workload.name]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        about = result_of(Path(name), settings)
        try:
            kept = {} if asked.store else baseline(asked.baseline, about["machine"])
        except ValueError as why:
            print(f"bench-check: {why}", file=sys.stderr)
            return 65
        found: dict[str, float] = {}
        fell = []
        for number, workload in enumerate(watched):
            with rounds(workload, Path(name) / str(number), settings) as take:
                if asked.store:
                    ratios, verdict = [take() for _ in range(2 * ROUNDS)], Verdict.HELD
                else:
                    verdict, ratios = decided(kept[workload.name], take, asked.tolerance)
            low, high = interval(ratios)
            found[workload.name] = round(statistics.median(ratios), 4)
            beside = "" if asked.store else f", stored {kept[workload.name]:.3f}: {verdict}"
            print(
                f"{workload.name:28}{found[workload.name]:8.3f} ({low:.3f} to {high:.3f}, {len(ratios)} rounds){beside}"
            )
            fell += [workload.name] * (verdict is Verdict.FELL)
    if asked.store:
        store(about | {"ratios": found}, asked.baseline)
    for name in fell:
        print(f"bench-check: {name} fell by more than {asked.tolerance:.0%}", file=sys.stderr)
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
