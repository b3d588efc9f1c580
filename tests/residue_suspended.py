"""A real `serve` that is caught with values in its buffers, and scanned after each way out of that moment.

Run by `tests/test_wiping.py`. Prints one line of JSON: for each way the needles while the request hung, which must be
more than none, since otherwise the scan after it would prove nothing; and those afterwards, which must be none.
"""

import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidecar import devcerts
from sidecar.devcerts import Pair
from tests.kit.memscan import filled, new_needle, scan
from tests.kit.stand import Answer, Wire, make_stand
from tests.kit.waiting import wait_for
from tests.kit.world import default_refs
from tests.residue import SIZES, reset, settled

LEASE_S: Final = 1.0
"""What the lease has left whose end comes while its request hangs: less than the 2 s that material may take."""
CAUGHT_S: Final = 5.0
TRIES: Final = 10
"""A way that a busy machine has turned into another one, by a bound that came first, is gone again."""


class Bed:
    """One process, and what was found in it."""

    def __init__(self, directory: Path, needle: bytes, **variables: str) -> None:
        """Start it on a world of its own."""
        self.needle = needle
        self.found: dict[str, tuple[int, int]] = {}
        self._go, self._leave = directory / "go", directory / "leave"
        stand = self.stand = make_stand(directory, refs=default_refs(len(SIZES)), receipts=True)
        for ref, size in zip(stand.world.refs, SIZES, strict=True):
            stand.put(ref, filled(needle, size))
        self._crl = directory / "tls" / "ca.crl"
        devcerts.write(self._crl, stand.pki.crl_pem(number=1))
        stand.environment["QL3_WORKER_INGRESS_TLS_CLIENT_CRL_FILE"] = str(self._crl)
        stand.environment["QL3_SECRET_SIDECAR_RECEIPTS"] = "on"
        stand.start(program=("-m", "tests.kit.suspended", str(directory)), **variables)
        assert stand.process is not None
        self.process = stand.process

    def needles(self) -> int:
        """Count, while nothing in the process moves."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            return scan(self.process.pid, self.needle)
        finally:
            self.process.send_signal(signal.SIGCONT)

    def way(self, name: str, end: Callable[[Wire], bool], before: Callable[[], Pair | None] = lambda: None) -> None:
        """Catch a request in the middle, let `end` end it, and tell what is left; `end` says if it came as wanted.

        `before` prepares and names the client; None is the world's.
        """
        for _ in range(TRIES):
            self._go.unlink(missing_ok=True)
            with self.stand.wire(before()) as wire:
                wire.send(self.stand.request())
                held = self.needles() if self._caught() else 0
                came = held > 0 and end(wire)
            settled(self.stand)
            if came:
                self.found[name] = held, self.needles()
                return
        raise AssertionError(f"{name}: never as wanted")

    def _caught(self) -> bool:
        """Wait until the request hangs; tell whether it does."""
        end = time.monotonic() + CAUGHT_S
        while not self.stand.metric("suspended"):
            if time.monotonic() > end:
                return False
        return True

    def last_way(self, name: str, end: Callable[[Wire], bool]) -> None:
        """As `way`, while the process ends: it is looked at once the command is over."""
        self._go.unlink(missing_ok=True)
        with self.stand.wire() as wire:
            wire.send(self.stand.request())
            assert self._caught(), name
            held = self.needles()
            self.process.send_signal(signal.SIGTERM)
            self.stand.event("process_stopping")
            assert end(wire), name
            assert self.stand.event("command_ended", 30)["code"] == 0
            self.found[name] = held, self.needles()
        self._leave.touch()
        assert self.process.wait(20) == 0

    def go(self, wire: Wire) -> Answer:
        """Let the provider go on, and read the answer."""
        self._go.touch()
        return wire.answer()

    def revoke(self, pair: Pair) -> None:
        """Put a CRL with this certificate into service."""
        before = self.stand.metric("identity_reloads_total")
        devcerts.write(self._crl, self.stand.pki.crl_pem(pair, number=int(before) + 2))
        wait_for(lambda: self.stand.metric("identity_reloads_total") > before)


def cut(wire: Wire) -> bool:
    """Reset the connection."""
    reset(wire)
    return True


def gone(wire: Wire) -> bool:
    """End the connection in good order."""
    wire.close()
    return True


def out_of_time(directory: Path, needle: bytes) -> dict[str, tuple[int, int]]:
    """Go the ways of a request whose time is shorter than that of its material, and leave with an answer."""
    bed = Bed(directory, needle, QL3_WORKER_INGRESS_REQUEST_TIMEOUT_MS="1500")
    with bed.stand:
        bed.way("client reset", cut)
        bed.way("client gone", gone)
        bed.way("deadline", lambda wire: wire.answer().code == "request_timeout")
        bed.last_way("shutdown, answered", lambda wire: bed.go(wire).status in (200, 503, 504))
    return bed.found


def in_time(directory: Path, needle: bytes) -> dict[str, tuple[int, int]]:
    """Go the other ways, and leave by a reset at the drain limit."""
    bed = Bed(directory, needle, QL3_WORKER_INGRESS_DRAIN_TIMEOUT_MS="300")
    stand = bed.stand
    with stand:
        last = stand.world.refs[-1]
        pairs: list[Pair] = []
        leases: list[float] = []

        def fresh() -> Pair:
            pairs.append(devcerts.issue(stand.pki.intermediate, f"client-{len(pairs)}", client=True))
            return pairs[-1]

        def revoked(wire: Wire) -> bool:
            bed.revoke(pairs[-1])
            return bed.go(wire).code == "tls_context_reloaded"

        def fenced(wire: Wire) -> bool:
            time.sleep(max(0.0, leases[-1] - time.time()) + 0.01)
            return bed.go(wire).code == "worker_secret_delivery_fenced"

        def lease(seconds: float) -> None:
            leases.append(time.time() + seconds)
            stand.world.change("run_dispatch_leases", expires_at_ms=int(leases[-1] * 1000))

        def short_lease() -> None:
            lease(LEASE_S)

        bed.way("success", lambda wire: bed.go(wire).status == 200)
        bed.way("material's time", lambda wire: wire.answer().code == "worker_ingress_unavailable")
        bed.way("revoked", revoked, fresh)
        bed.way("fenced", fenced, short_lease)
        lease(3600.0)
        stand.put(last, filled(needle, SIZES[-1] - 1) + b"\xff")
        bed.way("not UTF-8", lambda wire: bed.go(wire).code == "worker_ingress_unavailable")
        stand.put(last, filled(needle, SIZES[-1]))
        bed.last_way("shutdown, reset at the limit", was_reset)
    return bed.found


def was_reset(wire: Wire) -> bool:
    """Tell whether the connection ended without an answer."""
    with suppress(OSError, EOFError):
        wire.answer()
        return False
    return True


def main() -> None:
    """Run both in the directory of the first argument."""
    directory = Path(sys.argv[1])
    needle = new_needle()
    print(json.dumps({**out_of_time(directory / "short", needle), **in_time(directory / "long", needle)}))


if __name__ == "__main__":
    main()
