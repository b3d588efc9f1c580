"""The figures in the documents are those of the results files: tables, plots, and what of them may be missing."""

import copy
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import figures, tables
from tests.tools import docgen

PERFORMANCE = docgen.ROOT / "docs" / "performance.md"


def test_a_table_is_the_results_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure of the results that changes, changes in the table, and nothing else does."""
    real = figures.result("full")
    changed: dict[str, Any] = copy.deepcopy(real)
    changed["workloads"][0]["cpu_us"]["product"]["median"] = 123_456.0
    before = docgen.table(*tables.workloads("full"))
    monkeypatch.setattr(tables, "result", lambda _: changed)
    after = docgen.table(*tables.workloads("full"))
    (differs,) = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
    assert "123,456" in differs[1]


def test_a_result_without_nginx_or_ratio_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not compared is a dash, and stands in words besides."""
    found: dict[str, Any] = copy.deepcopy(figures.result("full"))
    for one in found["workloads"]:
        del one["cpu_us"]["nginx"]
        one["ratio_nginx"] = None
    found["not_compared"] = ["no nginx here"]
    monkeypatch.setattr(tables, "result", lambda _: found)
    assert all(row[-1] == row[4] == "-" for row in tables.workloads("full")[1])
    assert tables.missing() == "- no nginx here\n"


def test_a_shared_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that were taken while others worked say so above themselves."""
    found: dict[str, Any] = copy.deepcopy(figures.result("full"))
    monkeypatch.setattr(tables, "result", lambda _: found)
    for shared in (True, False):
        found["settings"]["shared"] = shared
        assert ("Other programs kept" in tables.conditions("full")) is shared


def test_figures_of_the_page_stand_in_generated_tables_only() -> None:
    """Outside them docs/performance.md has no measured time, so none can be stale."""
    by_hand = re.sub(r"<!-- generated: .*?<!-- end of generated -->", "", PERFORMANCE.read_text(), flags=re.DOTALL)
    assert re.findall(r"[0-9.,]+ (?:us|ms|MiB|KiB)\b", by_hand) == ["512 MiB"]  # the manifests' limit


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="matplotlib is locked for CPython 3.11 to 3.13")
def test_plots_are_of_the_results() -> None:
    """Each plot in docs/img is, byte for byte, what the results give; the page shows every one of them."""
    from bench import plots

    shown = re.findall(r"\]\((img/bench-[a-z]+\.svg)\)", PERFORMANCE.read_text())
    assert sorted(shown) == sorted(f"img/bench-{name}.svg" for name in plots.PLOTS)
    for name in plots.PLOTS:
        path: Path = plots.IMAGES / f"bench-{name}.svg"
        assert path.read_bytes() == plots.drawn(name), f"{name}: run `make docs`"
        assert path.stat().st_size < 100_000
