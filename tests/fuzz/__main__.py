"""Fuzz targets for a while, two at a time, and say how far each came; a failure is shown with its input."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fuzz.targets import TARGETS

ROOT: Final = Path(__file__).resolve().parents[2]
GRACE_S: Final = 60
"""What a target may take beyond its time: to start on a busy machine, and to end."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a target ended."""

    name: str
    failed: bool
    runs: int
    covered: int
    """Edges of the code under test that some input reached."""
    told: str
    """For a failure: what was said of it, and the input."""


def fuzz(name: str, seconds: int, directory: Path) -> Result:
    """Fuzz one target in a directory that holds nothing yet."""
    seeds = directory / "seeds"
    seeds.mkdir(parents=True)
    target = TARGETS.get(name)
    for number, seed in enumerate(target.seeds() if target else [b"seed"]):
        (seeds / str(number)).write_bytes(seed)
    command = [sys.executable, "-m", "tests.fuzz.child", name, str(seeds), f"-max_total_time={seconds}", "-timeout=20"]
    command += [
        f"-max_len={target.most if target else 64}",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={directory}/found-",
    ]
    command += ["-print_final_stats=1"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(directory)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + GRACE_S,
            check=False,
        )
        output, errors, failed = done.stdout, done.stderr, done.returncode != 0
    except subprocess.TimeoutExpired as error:
        output, errors, failed = "", str(error), True
    # atheris tells the exception on standard output, libFuzzer the rest on standard error.
    told = [*output.splitlines()[-40:], *errors.splitlines()[-12:]]
    told += [f"input: {found.read_bytes()!r}" for found in sorted(directory.glob("found-*"))]
    runs = number_in(errors, r"number_of_executed_units: (\d+)")
    return Result(name, failed, runs, number_in(errors, r"cov: (\d+)"), "\n".join(told) if failed else "")


def number_in(text: str, pattern: str) -> int:
    """The last number that the pattern finds, 0 for none."""
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Fuzz what reads bytes from outside, guided by coverage.",
        epilog="example: python -m tests.fuzz --seconds 300 head CRL",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"targets (default all): {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=20, help="for each target (default 20)")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Fuzz and report. Returns 0, 1 when a target failed, 64 for a name that is none."""
    asked = arguments(given)
    if unknown := set(asked.names) - TARGETS.keys() - {"planted"}:
        print(f"tests.fuzz: no such target: {', '.join(sorted(unknown))}; see --help", file=sys.stderr)
        return 64
    return int(any(result.failed for result in fuzz_all(asked.names or list(TARGETS), asked.seconds)))


def fuzz_all(names: Sequence[str], seconds: int) -> list[Result]:
    """Fuzz these targets, as many at a time as there are processors, and print how each ended as it ends."""
    results = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made, ThreadPoolExecutor(os.cpu_count()) as pool:
        places = {name: Path(made) / str(number) for number, name in enumerate(names)}
        for one in as_completed(pool.submit(fuzz, name, seconds, place) for name, place in places.items()):
            result = one.result()
            results.append(result)
            verdict = "FAILED" if result.failed else "held"
            print(f"{result.name:16} {verdict:7} {result.runs:9,} inputs  {result.covered:5} edges", flush=True)
            if result.failed:
                print(result.told, flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
