"""tests/mutants: each row names a line that is there once and a test that exists, and each promise has a row."""

import ast
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest

from tests.mutants.__main__ import ROOT, Verdict, main, mutated, places, run_test
from tests.mutants.mutant import Mutant
from tests.mutants.promises import PROMISES
from tests.mutants.table import MUTANTS

THREAT_MODEL = ROOT / "docs" / "threat-model.md"


@cache
def source(file: str) -> str:
    """The text of a file of the tree."""
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def functions_of(file: str) -> set[str]:
    """The names of the functions in a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(source(file)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def row_id(mutant: Mutant) -> str:
    """A readable name for a row."""
    return f"{mutant.promise} {mutant.before[:60]}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=row_id)
def test_the_line_is_there_once(mutant: Mutant) -> None:
    """The line that a row breaks is in its file exactly once, and breaking it changes the file."""
    text = source(mutant.file)
    assert len(places(text, mutant.before)) == 1
    assert mutated(text, mutant) != text


@pytest.mark.parametrize("mutant", MUTANTS, ids=row_id)
def test_the_mutant_is_a_program(mutant: Mutant) -> None:
    """A broken line still compiles, so that it is the rule that is missed and not the syntax."""
    compile(mutated(source(mutant.file), mutant), mutant.file, "exec")


@pytest.mark.parametrize("test", sorted({mutant.test for mutant in MUTANTS}))
def test_the_named_test_exists(test: str) -> None:
    """The test of a row is a function in its file, or in a suite that stores share."""
    file, *_, name = test.split("::")
    suites = (str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "conformance").glob("*_suite.py"))
    assert any(name.partition("[")[0] in functions_of(one) for one in (file, *suites))


@cache
def root_tests_of(file: str) -> set[str]:
    """The names of the functions in a file that are marked root, by themselves or by their file."""
    tree = ast.parse(source(file))
    of_file = any("pytestmark = pytest.mark.root" in ast.unparse(node) for node in tree.body)
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if of_file or any("mark.root" in ast.unparse(mark) for mark in node.decorator_list)
    }


@pytest.mark.parametrize("mutant", MUTANTS, ids=row_id)
def test_a_row_says_whether_its_test_needs_root(mutant: Mutant) -> None:
    """A row is left out for an ordinary user exactly where its test would be skipped, which proves nothing."""
    file, *_, name = mutant.test.split("::")
    assert mutant.root is (name.partition("[")[0] in root_tests_of(file))


def test_no_row_stands_twice() -> None:
    """Two rows never make the same change under the same test."""
    assert len(set(MUTANTS)) == len(MUTANTS)


def test_every_promise_has_a_row() -> None:
    """Each promise is broken by some row, and no row breaks what was never promised."""
    assert {mutant.promise for mutant in MUTANTS} == set(PROMISES)
    assert list(PROMISES) == [f"P{number}" for number in range(1, len(PROMISES) + 1)]


def test_the_threat_model_has_the_same_promises() -> None:
    """The promises of docs/threat-model.md are those that are broken here."""
    text = THREAT_MODEL.read_text(encoding="utf-8") if THREAT_MODEL.exists() else ""
    shown = re.findall(r"^\| (P\d+) \|", text, re.MULTILINE)
    if not shown:
        pytest.skip("docs/threat-model.md has no table of promises yet")
    assert shown == list(PROMISES)


# --- the harness itself -------------------------------------------------------------------------------------------


@pytest.fixture
def small_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one module and its tests, in place of the checkout."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "code.py").write_text("def double(x):\n    return x + x\n\n\nTIMES = 2\n")
    (tmp_path / "tests" / "test_code.py").write_text(
        "import pytest\n"
        "import code_under_test as code\n"
        "def test_double():\n    assert code.double(3) == 6\n"
        "def test_blind():\n    assert code.double\n"
        "def test_red():\n    assert False\n"
        "def test_skipped():\n    pytest.skip('not here')\n"
        "def test_slow():\n    while code.double(3) != 6: pass\n"
    )
    (tmp_path / "code.py").rename(tmp_path / "code_under_test.py")
    monkeypatch.setattr("tests.mutants.__main__.ROOT", tmp_path)
    return tmp_path


def row(before: str, after: str, test: str, timeout_s: float = 60.0) -> Mutant:
    """A row of the small tree."""
    return Mutant("P1", "code_under_test.py", before, after, f"tests/test_code.py::{test}", timeout_s)


CASES: list[tuple[Mutant, str]] = [
    (row("return x + x", "return x", "test_double"), ""),
    (row("return x + x", "return x", "test_blind"), "survived: 1 passed"),
    (row("return x + x", "return x", "test_red"), "the test does not pass without the mutant: 1 failed"),
    (row("return x + x", "return x", "test_skipped"), "the test does not pass without the mutant: 1 skipped"),
    (row("return x + x", "return x", "test_missing"), "the test does not pass without the mutant"),
    (row("return x + x", "return x +", "test_double"), "the test was not run to its end"),
    (row("TIMES = 2", "import nothing_like_it", "test_double"), "the test was not run to its end"),
    (row("return x + x", "return x", "test_slow", 2.0), "the test was not run to its end: no end within 2 s"),
    (row("return x * x", "return x", "test_double"), "the line is not in the file exactly once"),
]


def test_only_a_failing_test_catches_a_mutant(
    small_tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A test that passes, is skipped, is missing, cannot be collected or does not end has caught nothing."""
    before = (small_tree / "code_under_test.py").read_text()
    monkeypatch.setattr("tests.mutants.__main__.MUTANTS", tuple(mutant for mutant, _ in CASES))
    assert main([]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "1 passed, 8 failed"
    for mutant, fault in CASES:
        assert lines.pop(0).startswith("FAILED  P1" if fault else "ok      P1")
        if fault:
            shown = [lines.pop(0).strip() for _ in range(3)]
            assert shown[:2] == [mutant.before, f"-> {mutant.after}"]
            assert shown[2].startswith(fault)
    assert lines == []
    assert (small_tree / "code_under_test.py").read_text() == before


def test_without_a_mutant_the_tests_of_a_file_run_together(
    small_tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run shows that all named tests of a file pass; where one of them does not, each is run alone."""
    runs: list[list[str]] = []
    run = run_test

    def counted(tree: Path, tests: list[str], timeout_s: float) -> tuple[int | None, str]:
        runs.append([test.rpartition("::")[2] for test in tests])
        return run(tree, tests, timeout_s)

    monkeypatch.setattr("tests.mutants.__main__.run_test", counted)
    good, blind, red = (row("return x + x", "return x", test) for test in ("test_double", "test_blind", "test_red"))
    monkeypatch.setattr("tests.mutants.__main__.MUTANTS", (good, blind))
    assert main([]) == 1
    assert sorted(runs) == [["test_blind"], ["test_double"], ["test_double", "test_blind"]]
    assert capsys.readouterr().out.endswith("1 passed, 1 failed\n")
    runs.clear()
    monkeypatch.setattr("tests.mutants.__main__.MUTANTS", (good, red))
    assert main([]) == 1
    assert sorted(runs) == [["test_double"], ["test_double"], ["test_double", "test_red"], ["test_red"]]
    assert "the test does not pass without the mutant: 1 failed" in capsys.readouterr().out


def test_all_caught_is_a_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 is for all mutants caught; rows that need root are left out as an ordinary user, and said to be."""
    caught = row("return x + x", "return x", "test_double")
    monkeypatch.setattr("tests.mutants.__main__.MUTANTS", (caught, replace(caught, root=True)))
    monkeypatch.setattr("tests.mutants.__main__.Trees", AllCaught)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 1 left out: they need root"


class AllCaught:
    """Trees in which every mutant is caught at once; `ran` are their promises."""

    ran: ClassVar[list[str]] = []

    def __init__(self, _folder: Path) -> None:
        """Copy nothing."""

    def prove(self, _tests: list[str]) -> None:
        """Run nothing."""

    def judge(self, mutant: Mutant) -> Verdict:
        """Catch it."""
        self.ran.append(mutant.promise)
        return Verdict(mutant, "", 0.0)


def test_words_choose_rows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows are run whose promise, file or test is asked for; none is a fault."""
    AllCaught.ran.clear()
    monkeypatch.setattr("tests.mutants.__main__.Trees", AllCaught)
    assert main(["P1"]) == 0
    assert set(AllCaught.ran) == {"P1"}
    assert main(["no such file"]) == 1
    assert capsys.readouterr().out.endswith("0 passed, 0 failed\n")


def test_help_is_shown() -> None:
    """The command says what it does."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "WORD" in done.stdout
