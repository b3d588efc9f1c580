"""`python -m bench.refusals`: what a refusal costs the server, for each stage that can refuse, beside a delivery.

A refusal must be cheaper than what it refuses (issue 4): on a fresh connection every one of them, and on a kept one
those from the body stage on. Each is taken in turns with deliveries of its own, since a machine does not stay as fast
as it was: what is compared was measured within two seconds.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.bed import RESULTS, Settings, load, pid_of, processors, product, result_of, store
from bench.plan import Until
from bench.report import described, spread
from bench.workloads import BASE
from tests.kit.stand import Stand

ADDRESS_LIMIT: Final = 8
OPEN, SPENT, TIGHT, EMPTY = "open", "spent", "tight", "empty"
SIDECARS: Final[dict[str, dict[str, str]]] = {
    # Failed authentications are not held back, and everything can be delivered.
    OPEN: {
        "QL3_WORKER_INGRESS_AUTH_RATE_PER_PEER": "1000000",
        "QL3_WORKER_INGRESS_AUTH_RATE_GLOBAL": "1000000",
    },
    # The one peer has spent its budget.
    SPENT: {
        "QL3_WORKER_INGRESS_AUTH_RATE_PER_PEER": "1",
        "QL3_WORKER_INGRESS_AUTH_RATE_WINDOW_MS": "3600000",
    },
    TIGHT: {"QL3_SECRET_SIDECAR_MAX_CONNECTIONS_PER_ADDRESS": str(ADDRESS_LIMIT)},
    # The root holds nothing.
    EMPTY: {},
}
SERVED: Final = ("served, fresh", "served, kept alive")
NOT_MEASURED: Final = (
    "Refusals that are a state of the whole process (not_ready, admission_capacity_exhausted, tls_context_reloaded, a"
    " failed store) and those that a clock decides (body_timeout, request_timeout, silent closes) are not measured."
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One way to be refused."""

    name: str
    stage: str
    status: int | None
    """None: the connection ends without an answer."""
    request: Callable[[Stand], bytes]
    sidecar: str = OPEN
    plain: bool = False
    pair: str | None = None
    """Attribute of the stand's certificates; an empty one for none at all."""
    idle: int = 0
    kept: bool = False
    """On a kept connection; otherwise each has one of its own."""


def _json(**changed: object) -> Callable[[Stand], bytes]:
    return lambda stand: stand.request(stand.world.body_bytes(**changed))


def _headers(**changed: str | None) -> Callable[[Stand], bytes]:
    named = {name.replace("_", "-"): value for name, value in changed.items()}
    return lambda stand: stand.request(headers=named)


def _repeated(stand: Stand) -> bytes:
    return stand.request().replace(b"content-type:", b"authorization: Worker x\r\ncontent-type:", 1)


_LATE: Final = (
    Refusal("not strict JSON", "body", 400, lambda stand: stand.request(b"[" * 9)),
    Refusal("not the command", "command", 400, _json(schema="none")),
    Refusal("another lease version", "authority", 409, _json(expectedLeaseVersion=2_147_483_647)),
    Refusal("no such file", "material", 503, lambda stand: stand.request(), EMPTY),
)
REFUSALS: Final = (
    Refusal("over the address limit", "before the handshake", None, lambda _: b"", TIGHT, True, idle=4 * ADDRESS_LIMIT),
    Refusal("bytes that are no TLS", "before the handshake", None, lambda _: b"GET / HTTP/1.1\r\n\r\n", plain=True),
    Refusal("no client certificate", "handshake", None, lambda _: b"", pair=""),
    Refusal("certificate of another CA", "handshake", None, lambda _: b"", pair="stranger"),
    Refusal("header block over 16 KiB", "head", 400, _headers(x_filler="x" * 16_384)),
    Refusal("repeated authorization", "parse", 400, _repeated),
    Refusal("Expect", "parse", 417, _headers(expect="100-continue")),
    Refusal("outside the API", "route", 404, lambda stand: stand.request(target="/none")),
    Refusal("another method", "route", 405, lambda stand: stand.request(method="PUT")),
    Refusal("credential of nobody", "authentication", 401, lambda stand: stand.request(token=_nobody(stand))),
    Refusal("budget of failures spent", "shield", 429, lambda stand: stand.request(), SPENT),
    Refusal("another content type", "headers", 415, _headers(content_type="text/plain")),
    Refusal("no length", "headers", 411, _headers(content_length=None)),
    *_LATE,
    *(replace(one, name=f"{one.name}, kept alive", kept=True) for one in _LATE),
)


def _nobody(stand: Stand) -> str:
    # The right form and the wrong secret: the digest is computed and a row is written.
    return stand.world.token[:-2] + ("AA" if stand.world.token[-2:] != "AA" else "BA")


def planned(refusal: Refusal, stand: Stand) -> dict[str, Any]:
    """Return what a load client's plan needs to be refused so."""
    changed: dict[str, Any] = {
        "request": refusal.request(stand).decode("latin-1"),
        "requests_per_connection": 100 if refusal.kept else 1,
        "plain": refusal.plain,
        "idle": refusal.idle,
    }
    if refusal.pair is not None:
        changed["pair"] = refusal.pair and _file_of(stand, refusal.pair)
    return changed | ({"until": Until.CUT} if refusal.status is None else {"statuses": (refusal.status,)})


def _file_of(stand: Stand, name: str) -> str:
    pair = getattr(stand.pki, name)
    stand.pki.client_context(pair, stand.directory)
    return str(stand.directory / f"{pair.serial:x}.pem")


def measure(directory: Path, settings: Settings, refusals: Sequence[Refusal] = REFUSALS) -> list[dict[str, Any]]:
    """Take every refusal beside a delivery, in turns who is first; return all runs, each with the pair it is of."""
    runs = []
    with ExitStack() as stack:
        stands = {
            name: stack.enter_context(product(directory / name, BASE, settings, variables=variables))[0]
            for name, variables in SIDECARS.items()
        }
        assert stands[SPENT].ask(token=_nobody(stands[SPENT])).status == 401
        for path in (stands[EMPTY].root / "..data").iterdir():
            path.unlink()
        pairs: list[tuple[str, list[tuple[str, Stand, dict[str, Any]]]]] = []
        for one in refusals:
            served = (SERVED[one.kept], stands[OPEN], {"requests_per_connection": 100 if one.kept else 1})
            refused = (one.name, stands[one.sidecar], planned(one, stands[one.sidecar]))
            pairs.append((one.name, [served, refused]))
        for number in range(settings.rounds):
            for pair, both in pairs:
                for name, stand, changed in both[:: 1 if number % 2 == 0 else -1]:
                    try:
                        seen = load(stand, pid_of(stand), stand.port, BASE, settings, **changed)
                    except RuntimeError as error:
                        error.add_note(f"while measuring: {name}")
                        raise
                    run = described(name, number, seen, shared=settings.shared, busy_from=0.0)
                    runs.append(run | {"pair": pair})
    return runs


def judged(runs: Sequence[dict[str, Any]], refusals: Sequence[Refusal] = REFUSALS) -> list[dict[str, Any]]:
    """Return each refusal with its share of a delivery's processor time, and whether it stays below one.

    On a fresh connection the delivery is on a fresh one too, on a kept connection it is on a kept one. The share is
    taken within each pair, then the median of the rounds.
    """
    of: dict[str, dict[int, dict[str, float]]] = {}
    for run in runs:
        of.setdefault(run["pair"], {}).setdefault(run["round"], {})[run["server"]] = run["cpu_us"]
    found = []
    for refusal in refusals:
        beside, by_round = SERVED[refusal.kept], of[refusal.name]
        share = spread([one[refusal.name] / one[beside] for one in by_round.values()], 3)
        assert share is not None
        found.append({
            "name": refusal.name,
            "stage": refusal.stage,
            "status": refusal.status,
            "kept": refusal.kept,
            "cpu_us": spread([one[refusal.name] for one in by_round.values()], 1),
            "beside": beside,
            "share": share,
            "held": share["median"] < 1.0,
        })  # fmt: skip
    return found


def show(result: dict[str, Any]) -> str:
    """Return the results as a table for people."""
    lines = [f"{'stage':22}{'refusal':38}{'us':>9}{'of a delivery':>15}"]
    lines += [f"{'':22}{name:38}{figures['median']:9.1f}" for name, figures in result["served"].items()]
    lines += [
        f"{one['stage']:22}{one['name']:38}{one['cpu_us']['median']:9.1f}{one['share']['median']:15.2f}"
        f"{'' if one['held'] else '  MORE THAN A DELIVERY'}"
        for one in result["refusals"]
    ]
    return "\n".join([*lines, NOT_MEASURED])


def main(given: Sequence[str] | None = None) -> int:
    """Measure, write the results, show them. Returns 1 when a refusal costs more than a delivery."""
    parser = argparse.ArgumentParser(prog="python -m bench.refusals", description="What a refusal of each stage costs.")
    parser.add_argument("--seconds", type=float, default=0.8, help="length of one run (default 0.8)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--shared", action="store_true", help="other programs are busy here")
    parser.add_argument("--directory", default="/var/tmp", help="where the stores are made; a disk (default /var/tmp)")
    parser.add_argument("--output", type=Path, default=RESULTS / "refusals.json", help="the results' file")
    asked = parser.parse_args(given)
    settings = Settings(asked.seconds, 0.2, asked.rounds, *processors(), asked.shared)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        about = result_of(Path(name), settings)
        runs = measure(Path(name), settings)
        served = {each: spread([run["cpu_us"] for run in runs if run["server"] == each], 1) for each in SERVED}
        found = {"served": served, "refusals": judged(runs), "not_measured": NOT_MEASURED, "runs": runs}
        result = about | found
    store(result, asked.output)
    print(show(result))
    return 0 if all(one["held"] for one in result["refusals"]) else 1


if __name__ == "__main__":
    sys.exit(main())
