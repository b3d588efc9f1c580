"""The tables of docs/performance.md and bench/README.md, out of the results files and nothing else.

`python -m bench.docs` writes them; a test fails when one of them differs from its results. A table is its head and its
rows, or text as it stands.
"""

from collections.abc import Callable
from typing import Final

from bench import tables_beside
from bench.figures import USED, Table, middle, named, ranged, result

RATE: Final = 1000
"""Deliveries a second of the sizing table's examples."""


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


def findings() -> str:
    """What each dimension adds to the base, in sentences."""
    found = result("full")
    us = {one["name"]: one["cpu_us"]["product"]["median"] for one in found["workloads"] if one["cpu_us"]["product"]}
    base = us["1 ref, kept alive"]

    def beside(name: str) -> str:
        return f"{us[name]:,.0f} us, {us[name] / base:.2f} times the base" if name in us else "not measured"

    rotated = named(found, "rotation every 10 ms")["runs"]
    missed = sum(run["other"] for run in rotated if run["server"] == "product")
    served = sum(run["requests"] for run in rotated if run["server"] == "product")
    each = (us["64 refs, kept alive"] - base) / 63
    return (
        f"- The base takes {base:,.0f} us; each further ref {each:,.0f} us, {each / base:.0%} of it.\n"
        f"- A value of 16 KiB instead of 64 bytes: {beside('value of 16384 B')}.\n"
        f"- One connection instead of 16, so that the server waits in between: {beside('1 at a time')}. 256 of them:"
        f" {beside('256 at a time')}. 1,000 idle ones beside: {beside('1,000 idle connections beside')}.\n"
        f"- A fresh connection for each request: {beside('1 ref, fresh connections')}; it is the handshake, in every"
        " server. A worker that fetches more than once should keep its connection, as `sidecar/client.py` does.\n"
        f"- PostgreSQL: {beside('1 ref, PostgreSQL, pool 8')}. Receipts: {beside('receipts on')}.\n"
        f"- Rotation every 10 ms: {beside('rotation every 10 ms')}; {missed} of {missed + served:,} requests met two"
        " changes in a row and were told 503.\n"
    )


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
    found = [line for name in ("short", "full", "stages", "floor") for line in result(name)["not_compared"]]
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
    cold = found["parts_cold_us"]
    rows = [
        (name, f"{us:,.1f}", f"{cold[name]:,.1f}" if name in cold else "") for name, us in found["parts_us"].items()
    ]
    rows += [
        (f"{name}, {kind}", middle(of, 1), "")
        for name, kinds in found["servers_us"].items()
        for kind, of in kinds.items()
    ]
    if (round_trip := found["postgres_round_trip_us"]) is not None:
        rows.append(
            (
                f"one round trip of the driver (a delivery has {found['round_trips']} of its own)",
                f"{round_trip:,.1f}",
                "",
            )
        )
    return ("part alone", "us", "with cold caches"), rows


def floors() -> Table:
    """Each target, what it allows, and the floor."""
    short = result("short")
    product = {
        target: named(short, workload)["cpu_us"]["product"]["median"] / each
        for target, workload, each in (
            ("SQLite, kept alive", "1 ref, kept alive", 1),
            ("SQLite, fresh", "1 ref, fresh connections", 1),
            ("PostgreSQL, kept alive", "1 ref, PostgreSQL, pool 8", 1),
            ("files a second a core, 64 refs of 256 B", "64 refs of 256 B, root on tmpfs", 64),
        )
    }
    rows = [
        (
            one["name"],
            f"{one['target']:,g}",
            f"{one['allowed_us']:,g}",
            f"{one['floor_us']:,g}",
            f"{one['floor_cold_us']:,g}",
            f"{product[one['name']]:,.1f}",
            f"{one['best']:,g}",
            "yes" if one["possible"] else "**no**",
        )
        for one in result("floor")["floor"]["targets"]
    ]
    head = ("target", "figure", "it allows us", "floor us", "with cold caches", "product us")
    return (*head, "best that the floor permits", "possible"), rows


def calls() -> str:
    """The system calls of a delivery."""
    found = result("floor")["floor"]["system_calls"]
    if found is None:
        return "System calls were not counted.\n"
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


TABLES: Final[dict[str, Callable[[], Table | str]]] = {
    "bench conditions": lambda: conditions("full"),
    "bench full": lambda: workloads("full"),
    "bench findings": findings,
    "bench latency": latency,
    "bench missing": missing,
    "bench files": files,
    "bench stages": stages,
    "bench parts": parts,
    "bench floors": floors,
    "bench calls": calls,
    "bench refusals": refusals,
    "bench handshakes": handshakes,
    "bench replicas": tables_beside.replicas,
    "bench memory": tables_beside.memory,
    "bench footprint": tables_beside.footprint,
    "bench footprint sizes": tables_beside.footprint_sizes,
    "bench sizing": sizing,
    "bench database": tables_beside.database,
    "bench short conditions": lambda: conditions("short"),
    "bench short": lambda: workloads("short"),
    "bench postgres": tables_beside.postgres,
    "bench round trips": tables_beside.round_trips,
    "bench clients": tables_beside.clients,
    "bench starts": tables_beside.starts,
    "bench deploy": tables_beside.deploy,
    "bench readers": tables_beside.readers,
}
"""Every table by the name in its mark."""
