"""Many requests in one moment: none finds its place taken by one that only waits for its turn."""

import os
import signal
from pathlib import Path

from tests.kit.stand import make_stand

CONNECTIONS = 96
"""More than may be in flight at once, for all and for one credential (64 and 8)."""


def test_a_burst_of_one_credential_is_delivered_whole(tmp_path: Path) -> None:
    """Requests that the embedded store serves without waiting are all served, however many arrive in one moment."""
    with make_stand(tmp_path) as stand:
        stand.start()
        assert stand.process is not None
        wires = [stand.wire(source=f"127.0.0.{2 + number % 3}") for number in range(CONNECTIONS)]
        # So that it finds all of them at once.
        os.kill(stand.process.pid, signal.SIGSTOP)
        for wire in wires:
            wire.send(stand.request())
        os.kill(stand.process.pid, signal.SIGCONT)
        assert [wire.answer().status for wire in wires] == [200] * CONNECTIONS
        assert stand.metric('requests_total{code="admission_capacity_exhausted"}') == 0
        for wire in wires:
            wire.close()
