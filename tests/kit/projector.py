"""Roots as projectors write them: the kubelet's generations behind `..data`, an agent's single files.

Run as a module it is a kubelet that does not rest: `python -m tests.kit.projector ROOT RATE NAME...` publishes
generation after generation, RATE times a second at most (0: as fast as it can), until its stdin is closed, then prints
how many it published and in how many seconds.
"""

import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path

GENERATION_DIGITS = 9
LEAST_REST_S, MOST_LATE_S = 0.001, 0.1


def write_file(path: Path, value: bytes, mode: int = 0o440) -> None:
    """Write one file of a projection; its mode is set whatever the umask is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, value)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def publish(root: Path, generation: str, files: Mapping[str, bytes]) -> None:
    """Make `generation` the one in force, in the kubelet's order, and remove the one before at once."""
    directory = root / f"..{generation}"
    directory.mkdir(mode=0o755)
    for name, value in files.items():
        write_file(directory / name, value)
    data, staged = root / "..data", root / "..data_tmp"
    old = root / os.readlink(data) if data.is_symlink() else None
    staged.symlink_to(directory.name)
    staged.replace(data)
    for name in files:
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"..data/{name}")
    if old is not None:
        for name in os.listdir(old):
            (old / name).unlink()
        old.rmdir()


def stamped(generation: int, length: int) -> bytes:
    """Return a value of `length` bytes that tells its generation in its first characters."""
    return f"{generation:0{GENERATION_DIGITS}d}".encode().ljust(length, b".")


def generation_of(value: bytes) -> int:
    """Return the generation that a stamped value tells."""
    return int(value[:GENERATION_DIGITS])


def main(root: Path, rate: float, names: list[str]) -> None:
    """Publish until stdin is closed."""
    begin = due = time.monotonic()
    generation = 0
    while True:
        generation += 1
        publish(root, f"g{generation}", {name: stamped(generation, 40 + generation % 50) for name in names})
        rest = 0.0
        if rate:
            # What a busy machine delayed is made up for, if it is little, though never in a burst.
            due = max(due + 1 / rate, time.monotonic() - MOST_LATE_S)
            rest = max(LEAST_REST_S, due - time.monotonic())
        if select.select([sys.stdin], [], [], rest)[0]:
            break
    print(generation, time.monotonic() - begin)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
