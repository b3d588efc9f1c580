"""What is measured: one base case, and each dimension varied alone from it. A new workload is a line here.

The full product of all dimensions would take days and say little more: costs add up, as the table of stages shows.
"""

from dataclasses import replace
from typing import Final

from bench.report import Workload

BASE: Final = Workload("1 ref, kept alive", target=0.40)


def varied(dimension: str, name: str, **changed: object) -> Workload:
    """Return the base with one dimension changed; no target unless it is named."""
    return replace(BASE, **{"target": None} | changed, name=name, dimension=dimension)  # type: ignore[arg-type]


FRESH: Final = varied("connection", "1 ref, fresh connections", requests_per_connection=1, target=0.95)
MANY_REFS: Final = varied("refs", "16 refs, kept alive", refs=16)
SMALL_FILES: Final = varied(
    "refs, tmpfs", "64 refs of 256 B, root on tmpfs", refs=64, value_bytes=256, root_in_memory=True
)
POSTGRES: Final = varied("store", "1 ref, PostgreSQL, pool 8", store="postgres", pool=8, target=0.20)

SHORT: Final = (
    BASE,
    MANY_REFS,
    FRESH,
    replace(FRESH, name="16 refs, fresh connections", refs=16, target=None),
    SMALL_FILES,
    POSTGRES,
)
FULL: Final = (
    BASE,
    *(varied("refs", f"{refs} refs, kept alive", refs=refs) for refs in (4, 16, 64)),
    *(varied("value", f"value of {size} B", value_bytes=size) for size in (1024, 16_384)),
    *(varied("connections", f"{number} at a time", connections=number) for number in (1, 64, 256)),
    FRESH,
    POSTGRES,
    varied("receipts", "receipts on", receipts=True),
    varied("idle", "1,000 idle connections beside", idle=1000),
    varied("rotation", "rotation every 10 ms", rotation_ms=10),
    SMALL_FILES,
)
FILES_TARGET: Final = 80_000
"""Files a second a core, of `SMALL_FILES`."""
