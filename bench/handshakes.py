"""`python -m bench.handshakes`: handshakes a second while the TLS identity is replaced again and again, against none.

No limit holds back a stream of fresh handshakes of one who has a certificate: what each costs the server is listed, as
not bounded. A handshake that fails ends the run with an error, so a result says that none was lost.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.bed import RESULTS, Settings, ended, pid_of, planned, processors, product, result_of, started, store
from bench.plan import Until
from bench.report import described, spread
from bench.workloads import BASE
from tests.kit import pki
from tests.kit.stand import Stand

LEAVES: Final = 8
"""Server certificates that take turns."""
UNBOUNDED: Final = "processor time of a stream of fresh handshakes: not bounded, except by the certificate it takes"


def reloads(stand: Stand) -> int:
    """Return how many identities came into service so far."""
    return sum(event["event"] == "identity_reloaded" for event in stand.events)


def measure(directory: Path, settings: Settings, pause_s: float) -> list[dict[str, Any]]:
    """Shake hands with and without a storm of reloads, in turns."""
    runs = []
    with product(directory, BASE, settings) as (stand, _):
        files = pki.files_in(stand.directory / "tls", crl=False)
        leaves = itertools.cycle([pki.server(stand.pki.root) for _ in range(LEAVES)])
        for number in range(settings.rounds):
            for name in ("none", "storm") if number % 2 == 0 else ("storm", "none"):
                plan = planned(stand, pid_of(stand), stand.port, BASE, settings, until=Until.HANDSHAKE)
                before, client = reloads(stand), started(plan)
                while name == "storm" and client.poll() is None:
                    pki.put_server(files, next(leaves))
                    time.sleep(pause_s)
                run = described(name, number, ended(client), shared=settings.shared, busy_from=0.0)
                runs.append(run | {"reloads": reloads(stand) - before})
    return runs


def summarised(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of both, and the share of handshakes a second that a storm leaves, taken within each round."""
    of = {name: [run for run in runs if run["server"] == name] for name in ("none", "storm")}
    keys = {"per_second": 1, "cpu_us": 1, "p99_ms": 3, "reloads": 0}
    pairs = zip(of["storm"], of["none"], strict=True)
    return {
        **{name: {key: spread([run[key] for run in some], digits) for key, digits in keys.items()}
           for name, some in of.items()},
        "left_by_a_storm": spread([storm["per_second"] / none["per_second"] for storm, none in pairs], 3),
        "lost": 0,
        "not_bounded": UNBOUNDED,
    }  # fmt: skip


def show(result: dict[str, Any]) -> str:
    """Return the results as lines for people."""
    found = result["handshakes"]
    lines = [
        f"{name:8}{found[name]['per_second']['median']:9.0f} handshakes a second, "
        f"{found[name]['cpu_us']['median']:7.0f} us each, {found[name]['reloads']['median']:4.0f} reloads in a run"
        for name in ("none", "storm")
    ]
    return "\n".join([*lines, f"a storm leaves {found['left_by_a_storm']['median']:.0%}; none was lost", UNBOUNDED])


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them."""
    parser = argparse.ArgumentParser(prog="python -m bench.handshakes", description="Handshakes in a reload storm.")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two renewals (default 0.1)")
    parser.add_argument("--shared", action="store_true", help="other programs are busy here")
    parser.add_argument("--directory", default="/var/tmp", help="where the store is made; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "handshakes.json", help="the results' file")
    asked = parser.parse_args(given)
    settings = Settings(asked.seconds, 0.3, asked.rounds, *processors(), asked.shared)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        about = result_of(Path(name), settings)
        runs = measure(Path(name) / "stand", settings, asked.pause)
        result = about | {"handshakes": summarised(runs), "runs": runs}
    store(result, asked.output)
    print(show(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
