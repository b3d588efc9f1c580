"""The tables of docs/performance.md and bench/README.md, out of the results files and nothing else.

`python -m bench.docs` writes them; a test fails when one of them differs from its results. A table is its head and its
rows, or text as it stands.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"
USED: Final = 0.6
"""Share of a core that is planned for: the rest is for bursts, and for the replica that is down."""
RATE: Final = 1000
"""Deliveries a second of the sizing table's examples."""
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


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


def conditions(name: str) -> str:
    """When, where and how a result was taken, in a sentence."""
    found = result(name)
    about, settings = found["machine"], found["settings"]
    shared = (
        " **Other programs kept the machine busy: worth less than a quiet machine's.**" if settings["shared"] else ""
    )
    return (
        f"Taken {found['measured_at'][:10]} on {about['processors']} processors ({about['processor']}), Linux"
        f" {about['kernel'].split('-')[0]}, {about['file_system']}, Python {about['python']},"
        f" {about['openssl'].rsplit(' ', 3)[0]}, SQLite {about['sqlite']}, aiohttp {about['aiohttp']}; nginx:"
        f" {about['nginx']}; client: {about['client']}. Runs of {settings['seconds']:g} s, {settings['rounds']} rounds,"
        f" load before {about['load_before']:g}.{shared}\n"
    )


def workloads(name: str) -> Table:
    """Processor time and ratios of each workload."""
    rows = [
        (
            one["name"],
            "" if one["target"] is None else f"{one['target']:.2f}",
            middle(one["cpu_us"]["product"]),
            middle(one["cpu_us"]["bare"]),
            middle(one["cpu_us"].get("nginx")),
            ranged(one["ratio"]),
            ranged(one["ratio_nginx"], 3),
        )
        for one in result(name)["workloads"]
    ]
    head = ("workload", "target", "product us", "bare us", "nginx us", "bare / product", "nginx / product")
    return head, rows


def latency() -> Table:
    """Throughput and percentiles of each workload."""
    rows = [
        (
            one["name"],
            middle(one["per_second"]["product"]),
            middle(one["per_second"]["bare"]),
            middle(one["per_second"].get("nginx")),
            *(middle(one[f"p{name}_ms"]["product"], 1) for name in ("50", "90", "99", "999")),
        )
        for one in result("full")["workloads"]
    ]
    head = ("workload", "a second", "bare", "nginx", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms")
    return head, rows


def missing() -> str:
    """What could not be compared where the results were taken."""
    found = [line for name in ("short", "full", "floor") for line in result(name)["not_compared"]]
    return "".join(f"- {line}\n" for line in dict.fromkeys(found)) or "Everything was compared.\n"


def files() -> str:
    """Files a second a core of the workload that has a target for it."""
    one = named(result("short"), "64 refs of 256 B, root on tmpfs")
    rate = one["refs"] / one["cpu_us"]["product"]["median"] * 1e6
    return f"64 refs of 256 B on tmpfs: {rate:,.0f} files a second a core, whole deliveries counted (target 80,000).\n"


def stages() -> Table:
    """The split by stage, with shares."""
    cases = result("stages")["cases"]
    rows = [
        (stage, *(f"{one['stages_us'][stage]:,.0f} ({one['stages_us'][stage] / one['sum_us']:.0%})" for one in cases))
        for stage in cases[0]["stages_us"]
    ]
    rows += [
        (label, *(f"{one[key]:,.0f}" for one in cases))
        for label, key in (
            ("**sum**", "sum_us"),
            ("the kernel's count", "cpu_us"),
            ("without sampler", "without_sampler_us"),
            ("samples", "samples"),
        )
    ]
    return ("us a delivery", *(one["name"] for one in cases)), rows


def parts() -> Table:
    """The parts alone."""
    found = result("floor")["floor"]
    rows = [(name, f"{us:,.1f}") for name, us in found["parts_us"].items()]
    rows += [
        (f"{name}, {kind}", middle(of, 1)) for name, kinds in found["servers_us"].items() for kind, of in kinds.items()
    ]
    if (round_trip := found["postgres_round_trip_us"]) is not None:
        rows.append((f"one round trip of the driver (a delivery has {found['round_trips']})", f"{round_trip:,.1f}"))
    return ("part alone", "us"), rows


def floors() -> Table:
    """Each target, what it allows, and the floor."""
    rows = [
        (
            one["name"],
            f"{one['target']:,g}",
            f"{one['allowed_us']:,g}",
            f"{one['floor_us']:,g}",
            f"{one['best']:,g}",
            "yes" if one["possible"] else "**no**",
        )
        for one in result("floor")["floor"]["targets"]
    ]
    return ("target", "figure", "it allows us", "floor us", "best that the floor permits", "possible"), rows


def calls() -> str:
    """The system calls of a delivery."""
    found = result("floor")["floor"]["system_calls"]
    if found is None:
        return "System calls were not counted: strace was missing.\n"
    shown = ", ".join(f"`{name}` {number:g}" for name, number in found.items())
    return f"{sum(found.values()):.0f} system calls a delivery of one ref, kept alive: {shown}.\n"


def refusals() -> Table:
    """What each refusal costs."""
    found = result("refusals")
    rows = [("", name, "200", middle(figures), "1") for name, figures in found["served"].items()]
    rows += [
        (
            one["stage"],
            one["name"],
            str(one["status"] or "ends"),
            middle(one["cpu_us"]),
            f"{one['share']['median']:.2f}{'' if one['held'] else ' **more**'}",
        )
        for one in found["refusals"]
    ]
    return ("stage", "refusal", "answer", "us", "of a delivery"), rows


def handshakes() -> Table:
    """Handshakes with and without a storm."""
    found = result("handshakes")["handshakes"]
    rows = [
        (
            label,
            middle(found[key]["per_second"]),
            middle(found[key]["cpu_us"]),
            middle(found[key]["p99_ms"], 1),
            middle(found[key]["reloads"]),
            "0",
        )
        for label, key in (("no reload", "none"), ("reload storm", "storm"))
    ]
    return ("", "handshakes a second", "us each", "p99 ms", "reloads in a run", "lost"), rows


def replicas() -> Table:
    """One and two replicas."""
    rows = [
        (number, *(middle(of[key], digits) for key, digits in
                   (("per_second", 0), ("sidecar_us", 0), ("database_us", 0), ("p99_ms", 1), ("sessions", 0))))
        for number, of in result("replicas")["replicas"].items()
    ]  # fmt: skip
    return ("replicas", "a second", "sidecar us", "database us", "p99 ms", "sessions"), rows


def memory() -> str:
    """Resident memory, its slope and its target."""
    found = result("memory")["memory"]
    samples = found["samples"]
    return (
        f"{found['resident_kib_at_start'] / 1024:.1f} MiB at the start, {samples[1][1] / 1024:.1f} after"
        f" {samples[1][0]:,} deliveries, {found['resident_kib'] / 1024:.1f} after {samples[-1][0]:,} (target"
        f" {found['target_kib'] / 1024:.0f}), slope {found['slope_kib_per_1000']:.2f} KiB for each 1,000 deliveries;"
        f" {found['kib_per_connection']:.0f} KiB for each further open connection.\n"
    )


def sizing() -> Table:
    """What a core does, and what 1,000 deliveries a second take."""
    short, two = result("short"), result("replicas")["replicas"]["2"]
    rows = []
    for label, us in (
        ("SQLite, kept alive", named(short, "1 ref, kept alive")["cpu_us"]["product"]["median"]),
        ("SQLite, 16 refs", named(short, "16 refs, kept alive")["cpu_us"]["product"]["median"]),
        ("SQLite, fresh connections", named(short, "1 ref, fresh connections")["cpu_us"]["product"]["median"]),
        ("PostgreSQL, kept alive", two["sidecar_us"]["median"]),
        ("the database for it", two["database_us"]["median"]),
    ):
        rows.append(
            (label, f"{us:,.0f}", f"{1e6 / us:,.0f}", f"{1e6 / us * USED:,.0f}", f"{RATE * us / 1e6 / USED:.1f}")
        )
    head = ("", "us a delivery", "a second a core, full", f"planned ({USED:.0%})", f"cores for {RATE:,} a second")
    return head, rows


def postgres() -> Table:
    """Ratios for each pool."""
    rows = [
        (one["name"], f"{one['target']:.2f}", middle(one["cpu_us"]["product"]), middle(one["cpu_us"]["bare"]),
         ranged(one["ratio"]), middle(one["per_second"]["product"]), f"{one['half_load']['asked_per_second']:,.0f}",
         f"{one['half_load']['p50_ms']:.1f}", f"{one['half_load']['p99_ms']:.1f}")
        for one in result("postgres")["workloads"]
    ]  # fmt: skip
    head = ("workload", "target", "product us", "bare us", "ratio (low to high)")
    return (*head, "a second at most", "half of that", "its p50 ms", "its p99 ms"), rows


def round_trips() -> Table:
    """Milliseconds of each step with the sessions of more replicas open."""
    found = result("postgres")["round_trips_ms"]
    steps = next(iter(found.values()))
    rows = [(step, *(f"{of[step]:.2f}" for of in found.values())) for step in steps]
    return ("step, median ms, one at a time", *(f"replicas: {number}" for number in found)), rows


def clients() -> Table:
    """Fetches a second of the worker's clients."""
    rates = result("worker")["rates"]
    rows = [
        (name, *(f"{median(run[key] for run in rates if run['client'] == name):,.0f}" for key in
                 ("per_second", "client_cpu_us")))
        for name in dict.fromkeys(run["client"] for run in rates)
    ]  # fmt: skip
    return ("client", "fetches a second", "client us a fetch"), rows


def starts() -> Table:
    """What `exec` adds to a start."""
    rows = [
        (name, *(f"{median(column):,.0f}" for column in zip(*times, strict=True)))
        for name, times in result("worker")["starts_ms"].items()
    ]
    return ("start of `true`", "ms", "of that processor ms"), rows


def deploy() -> Table:
    """The deployer's tools at size."""
    rows = [
        (
            name,
            f"{found['seconds']:.2f}",
            f"{found['processor_s']:.2f}" if "processor_s" in found else "-",
            f"{found['peak_mib']:.0f}",
        )
        for name, found in result("deploy")["results"].items()
        if "peak_mib" in found
    ]
    return ("what", "seconds", "of them on a processor", "peak MiB"), rows


def readers() -> Table:
    """A reader while the publisher rotates."""
    keys = ("batches", "generations", "mixed", "torn", "unavailable")
    rows = [
        (name.rpartition(", ")[2], *(f"{found[key]:,}" for key in keys))
        for name, found in result("deploy")["results"].items()
        if "batches" in found
    ]
    return ("layout", *keys), rows


TABLES: Final[dict[str, Callable[[], Table | str]]] = {
    "bench conditions": lambda: conditions("full"),
    "bench full": lambda: workloads("full"),
    "bench latency": latency,
    "bench missing": missing,
    "bench files": files,
    "bench stages": stages,
    "bench parts": parts,
    "bench floors": floors,
    "bench calls": calls,
    "bench refusals": refusals,
    "bench handshakes": handshakes,
    "bench replicas": replicas,
    "bench memory": memory,
    "bench sizing": sizing,
    "bench short conditions": lambda: conditions("short"),
    "bench short": lambda: workloads("short"),
    "bench postgres": postgres,
    "bench round trips": round_trips,
    "bench clients": clients,
    "bench starts": starts,
    "bench deploy": deploy,
    "bench readers": readers,
}
"""Every table by the name in its mark."""
