"""Results files, and how their figures are written in a table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"
USED: Final = 0.6
"""Share of a core that is planned for: the rest is for bursts, and for the replica that is down."""
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A head and its rows."""


def result(name: str) -> Any:
    """Return a results file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def middle(figures: Any, digits: int = 0) -> str:
    """Return a median as a text with thousands separated; a dash for nothing."""
    return "-" if figures is None else f"{figures['median']:,.{digits}f}"


def ranged(figures: Any, digits: int = 2) -> str:
    """Return median, lowest and highest as a text."""
    if figures is None:
        return "-"
    return f"{figures['median']:.{digits}f} ({figures['low']:.{digits}f} to {figures['high']:.{digits}f})"


def named(results: Any, name: str) -> Any:
    """Return a workload of a result by its name. Raises StopIteration."""
    return next(one for one in results["workloads"] if one["name"] == name)
