"""What a row of the table is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the line `before`, the only one of its file, becomes `after`; under that `test` must fail."""

    promise: str
    file: str
    before: str
    after: str
    test: str
    timeout_s: float = 60.0
    root: bool = False
    """Whether the test needs root: run as an ordinary user the row is left out, and said to be."""


def named(module: str, name: str) -> str:
    """Return the id of a test by its file and name, both without their prefix."""
    return f"tests/test_{module}.py::test_{name}"
