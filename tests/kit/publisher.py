"""A publisher that does not rest: `python -m tests.kit.publisher ROOT FOLDER LAYOUT PERIOD_MS`.

Publishes generation after generation of eight stamped values with this project's own writer, LAYOUT `linked` or `flat`,
or rewrites them in place (`in-place`, which no reader can live with), one every PERIOD_MS or, where that is not to be
had, as fast as it can, until its stdin is closed; then prints how many.
"""

import os
import select
import sys
import time
from pathlib import Path

from sidecar.publish import How, Inputs, Source, publish
from tests.kit.authority import secret
from tests.kit.projector import stamped

REFS = [secret(f"name-{number}") for number in range(8)]
LONGEST = 4_000


def main(root: Path, folder: Path, layout: str, period_ms: int) -> None:
    """Publish until stdin is closed."""
    paths = [folder / ref.file_name for ref in REFS]
    sources = [Source(ref.file_name, ref.name, str(path), ref=ref) for ref, path in zip(REFS, paths, strict=True)]
    generation = 0
    due = time.monotonic()
    while True:
        generation += 1
        value = stamped(generation, LONGEST - generation % 2000)
        if layout == "in-place":
            rewrite(root, value)
        else:
            for path in paths:
                path.write_bytes(value)
            with Inputs(sources) as inputs:
                publish(str(root), inputs, How("linked" if layout == "linked" else "flat"))
        if generation == 1:
            print("ready", flush=True)
        # What is late is not made up for: then the next one comes at once, and the period counts from there.
        now = time.monotonic()
        due = max(due + period_ms / 1000, now)
        if select.select([sys.stdin], [], [], due - now)[0]:
            break
    print(generation)


def rewrite(root: Path, value: bytes) -> None:
    """Truncate and write each file where it is."""
    for ref in REFS:
        descriptor = os.open(root / ref.file_name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        for start in range(0, len(value), 500):
            os.write(descriptor, value[start : start + 500])
        os.close(descriptor)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
