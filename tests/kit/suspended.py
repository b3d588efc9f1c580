"""A real `serve` whose provider suspends with values in its buffers: `python -m tests.kit.suspended DIRECTORY`.

The production provider never waits on a local root, so no request of it can be caught in the middle. This entry point
puts another one into the table of providers, under the name of the first, and runs the command as it is; nothing in
the product knows of it. The provider reads each value in two halves. Before the last half it waits until a file `go`
is in DIRECTORY, or until it is cancelled. Once the command has ended, its exit code is told in a line of JSON, and the
process stays, to be looked at, until a file `leave` is there.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from provider.authority import Authority
from provider.material import Batch, Slot
from provider.memory import BufferPool
from sidecar import compose
from sidecar.__main__ import main
from sidecar.config import Config
from sidecar.metrics import Metrics

_LOOK_S = 0.01


class Suspended:
    """A provider that is never inline: half of the last value is always still to come."""

    def __init__(self, root: str | None, pool: BufferPool, directory: Path) -> None:
        """Read below `root`; wait for `go` in `directory`."""
        assert root is not None
        self._root, self._pool, self._go = root, pool, directory / "go"
        self.waiting = 0

    def verify_root(self) -> None:
        """It is what the test has made."""

    def health(self) -> compose.State:
        """It is well."""
        return "ok"

    def inline(self) -> bool:
        """It is not."""
        return False

    async def resolve(self, authority: Authority, deadline: float) -> Batch:
        """Take every value in two halves, and wait before the last one."""
        refs = [(ref, False) for ref in authority.secret_refs] + [(ref, True) for ref in authority.bundle_refs]
        with ExitStack() as custody:
            files = [os.open(f"{self._root}/{ref.file_name}", os.O_RDONLY | os.O_CLOEXEC) for ref, _ in refs]
            for file in files:
                custody.callback(os.close, file)
            sizes = [os.fstat(file).st_size for file in files]
            slots = [Slot(ref, size, bundle) for (ref, bundle), size in zip(refs, sizes, strict=True)]
            with ExitStack() as owner:
                batch = owner.enter_context(Batch(self._pool, slots))
                for index, (file, size) in enumerate(zip(files, sizes, strict=True)):
                    room, half = batch.room(index), size // 2
                    os.preadv(file, (room[:half],), 0)
                    if index == len(files) - 1:
                        await self._suspend()
                    os.preadv(file, (room[half:size],), half)
                    batch.fill(index, size)
                owner.pop_all()
        return batch

    async def _suspend(self) -> None:
        self.waiting += 1
        try:
            # A file is looked at, since whoever is outside has nothing else in common with this process.
            while not self._go.exists():  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_S)
        finally:
            self.waiting -= 1


def _run(directory: Path) -> None:
    def make(config: Config, pool: BufferPool, metrics: Metrics, on_fatal: Callable[[], None]) -> compose.Provider:
        provider = Suspended(config.root_directory, pool, directory)
        metrics.gauge("suspended", "Requests that wait with values in memory.", lambda: provider.waiting)
        return provider

    compose.PROVIDERS["mounted-files"] = make
    code = main(["serve"])
    print(json.dumps({"event": "command_ended", "code": code}), flush=True)
    while not (directory / "leave").exists():
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    _run(Path(sys.argv[1]))
