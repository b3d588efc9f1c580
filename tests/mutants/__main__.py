"""Run the mutants: `python -m tests.mutants [WORD...]`.

Each row of the table is applied to a copy of the tree, never to the checkout. Its test is run once without the mutant,
where it must pass, and once under it, where it must be collected and fail. Without a mutant the tests of a file are run
together, and alone only where that does not go well: starting takes longer than most of them. With words, only rows are
run that have one of them in promise, file or test: `python -m tests.mutants P07`. Exit code 1 if any mutant survives.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Final

from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

ROOT: Final = Path(__file__).resolve().parents[2]
WORKERS: Final = 3
"""One more than the cores of a small machine: many a test, and more so a broken one, waits."""
PASSED: Final = 0
FAILED: Final = 1
"""pytest's exit codes; every other one means that the test was not run: no such test, an error while collecting."""
PATIENCE_S: Final = 120.0
"""For a test without a mutant."""
_ALL_PASSED: Final = re.compile(r"[1-9]\d* passed in ")
_PLUGINS: Final = ("-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
_SETTINGS: Final = {
    "CI": "1",  # Hypothesis tries the same examples every time
    "PYTHONDONTWRITEBYTECODE": "1",  # two changes within one second would leave a compiled file stale
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # starting takes a quarter of the time
}
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv*", ".hypothesis", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "results"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a mutant: `fault` is empty when it was caught."""

    mutant: Mutant
    fault: str
    seconds: float


def places(text: str, line: str) -> list[int]:
    """The numbers of the lines of `text` that are `line`, white space around it left out."""
    return [number for number, one in enumerate(text.splitlines()) if one.strip() == line]


def mutated(text: str, mutant: Mutant) -> str:
    """The text with the one line replaced. Raises ValueError unless the line occurs exactly once."""
    [number] = places(text, mutant.before)
    lines = text.splitlines(keepends=True)
    lines[number] = lines[number].replace(mutant.before, mutant.after)
    return "".join(lines)


def run_test(tree: Path, tests: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
    """Run tests in `tree`; pytest's exit code, None for what took too long, and its last line."""
    environment = {**os.environ, **_SETTINGS, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", *_PLUGINS]
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # The test's own children too, or the pipe stays open.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            return None, f"no end within {timeout_s:g} s"
    return process.returncode, (output.strip().splitlines() or [""])[-1]


@contextmanager
def applied(tree: Path, mutant: Mutant) -> Iterator[None]:
    """Keep the mutant in the tree for the length of the block."""
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutated(text, mutant), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


class Trees:
    """Copies of the checkout, one for each worker, and what is known of the tests without a mutant."""

    def __init__(self, folder: Path) -> None:
        """Copy."""
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._good: dict[str, str] = {}
        self._lock = Lock()
        for number in range(WORKERS):
            tree = folder / f"tree-{number}"
            shutil.copytree(ROOT, tree, ignore=_LEFT_OUT, symlinks=True)
            self._free.put(tree)

    def prove(self, tests: Sequence[str]) -> None:
        """Run tests of one file together without a mutant; if not all of them pass, nothing is known of any."""
        tree = self._free.get()
        try:
            code, last = run_test(tree, tests, PATIENCE_S * len(tests))
        finally:
            self._free.put(tree)
        if code == PASSED and _ALL_PASSED.match(last) is not None:
            with self._lock:
                self._good.update(dict.fromkeys(tests, ""))

    def judge(self, mutant: Mutant) -> Verdict:
        """Run one mutant."""
        started = time.monotonic()
        tree = self._free.get()
        try:
            fault = self._fault_without(tree, mutant) or self._fault_with(tree, mutant)
        finally:
            self._free.put(tree)
        return Verdict(mutant, fault, time.monotonic() - started)

    def _fault_without(self, tree: Path, mutant: Mutant) -> str:
        with self._lock:
            known = self._good.get(mutant.test)
        if known is None:
            code, last = run_test(tree, [mutant.test], PATIENCE_S)
            # A test that was skipped ends well, too, and shows nothing.
            passed = code == PASSED and re.search(r"\b[1-9]\d* passed", last) is not None
            known = "" if passed else f"the test does not pass without the mutant: {last}"
            with self._lock:
                self._good[mutant.test] = known
        return known

    def _fault_with(self, tree: Path, mutant: Mutant) -> str:
        try:
            with applied(tree, mutant):
                code, last = run_test(tree, [mutant.test], mutant.timeout_s)
        except (OSError, ValueError):
            return "the line is not in the file exactly once"
        if code == FAILED:
            return ""
        return f"survived: {last}" if code == PASSED else f"the test was not run to its end: {last}"


def is_meant(mutant: Mutant, word: str) -> bool:
    """Tell whether the row is one of those that `word` asks for."""
    return word == mutant.promise or word in mutant.file or word in mutant.test


def by_file(rows: Iterable[Mutant]) -> list[list[str]]:
    """The tests of these rows, each once, by their file."""
    files: dict[str, dict[str, None]] = {}
    for mutant in rows:
        files.setdefault(mutant.test.partition("::")[0], {})[mutant.test] = None
    return [list(tests) for tests in files.values()]


def main(arguments: list[str]) -> int:
    """Run the mutants, print a line for each as it ends, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Break each promise in one line; its test must fail."
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="a promise (P07), or part of a file's name")
    words = parser.parse_args(arguments).words
    asked = [mutant for mutant in MUTANTS if not words or any(is_meant(mutant, word) for word in words)]
    rows = [mutant for mutant in asked if os.geteuid() == 0 or not mutant.root]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(WORKERS) as workers:
        trees = Trees(Path(folder))
        list(workers.map(trees.prove, by_file(rows)))
        for verdict in workers.map(trees.judge, rows):
            mutant = verdict.mutant
            word = "FAILED" if verdict.fault else "ok"
            print(f"{word:6}  {mutant.promise:4} {verdict.seconds:6.1f} s  {mutant.file:28}  {mutant.test}", flush=True)
            if verdict.fault:
                failed += 1
                print(f"        {mutant.before}\n     -> {mutant.after}\n        {verdict.fault}", flush=True)
    left_out = len(asked) - len(rows)
    print(
        f"{len(rows) - failed} passed, {failed} failed" + (f", {left_out} left out: they need root" if left_out else "")
    )
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
