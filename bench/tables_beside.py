"""Tables of what stands beside a delivery: replicas, memory, PostgreSQL, the worker's half, the deployer's tools."""

from statistics import median

from bench.figures import USED, Table, middle, ranged, result


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


def footprint() -> Table:
    """What a sidecar takes, beside the reference."""
    found = result("footprint")["footprint"]
    rows = []
    for store in ("sqlite", "postgres"):
        for temperature, of in found[store].items():
            if temperature != "refused":
                after = of["after_deliveries"]
                keys = ("peak_bytes", "anonymous_bytes", "file_bytes", "group_peak_bytes")
                rows.append(
                    (f"{store}, {temperature}", f"{of['start_to_ready_s']:.2f}", *(_mib(after[key]) for key in keys))
                )
    rows.append(
        ("reference (another runtime, architecture and kernel)", "-", "-", "-", "-", _mib(found["reference_bytes"]))
    )
    head = (
        f"after {found['deliveries']:,} deliveries, MiB",
        "start to ready, s",
        "VmHWM",
        "of it anonymous",
        "and of files",
    )
    return (*head, "peak of the group"), rows


def footprint_sizes() -> str:
    """Start to ready, an idle connection, the prefix, and the group's file."""
    found = result("footprint")["footprint"]
    ready, warm = found["start_to_ready_s"], found["sqlite"]["warm"]
    largest = ", ".join(f"{name} {_mib(size)}" for name, size in found["largest_bytes"].items())
    group = warm["group"]
    told = (
        f"`{group['file']}` of cgroup version {group['version']}"
        if "file" in group
        else "no file: no group could be had"
    )
    return (
        f"Start to ready {ready['median']:.2f} s ({ready['lowest']:.2f} to {ready['highest']:.2f}; target"
        f" {found['targets']['start_to_ready_s']}); an idle connection {warm['idle_connection_bytes'] / 1024:.0f} KiB;"
        f" the prefix {_mib(found['prefix_bytes'])} MiB ({largest}). The peak of the group is {told}.\n"
    )


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / (1 << 20):.1f}"


def database() -> str:
    """What a replica more does to the database, and how many sessions a core keeps busy."""
    one, two = (result("replicas")["replicas"][number] for number in ("1", "2"))
    steps = next(iter(result("postgres")["round_trips_ms"].values()))
    store_ms = sum(steps.values())
    rate = 1e6 / two["sidecar_us"]["median"] * USED
    return (
        f"With one replica a delivery costs the database {middle(one['database_us'])} us, with two"
        f" {middle(two['database_us'])}; {middle(one['sessions'])} and {middle(two['sessions'])} sessions are open. The"
        f" store takes {store_ms:.1f} ms of a delivery when it is alone, so a core at its planned {rate:,.0f}"
        f" deliveries a second keeps {rate * store_ms / 1000:.1f} sessions busy on average.\n"
    )


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
