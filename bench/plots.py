"""The plots of docs/performance.md, out of the results files: small SVG, the same bytes for the same results."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.figures import named, result

IMAGES: Final = Path(__file__).resolve().parents[1] / "docs" / "img"
# Text stays text, so a file is small and can be searched; ids are hashed with a fixed salt instead of a random one.
STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "secret-sidecar",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify": True,
}
COLOURS: Final = {"product": "#0b5fa5", "bare": "#c8781e", "nginx": "#5b8c3a"}
SHADES: Final = (
    "#0b5fa5", "#c8781e", "#5b8c3a", "#8e3b46", "#6a4c93", "#b0a03c", "#3c8d8d", "#d17ba0", "#7f7f7f", "#a3623a",
    "#1b1b1b", "#cfcfcf",
)  # fmt: skip
BASE: Final = "1 ref, kept alive"


def _points(dimension: str, key: str) -> list[Any]:
    found = result("full")
    some = [one for one in found["workloads"] if one["dimension"] == dimension]
    return sorted([named(found, BASE), *some], key=lambda one: int(one[key]))


def _growth(axes: Axes, dimension: str, key: str, label: str) -> None:
    points = _points(dimension, key)
    for server, colour in COLOURS.items():
        some = [(one[key], one["cpu_us"][server]) for one in points if one["cpu_us"].get(server)]
        if some:
            at = [x for x, _ in some]
            middle = [y["median"] for _, y in some]
            axes.plot(at, middle, marker="o", markersize=4, color=colour, label=server)
            axes.fill_between(at, [y["low"] for _, y in some], [y["high"] for _, y in some], color=colour, alpha=0.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks([one[key] for one in points], [f"{one[key]:,}" for one in points])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label)


def cost(figure: Figure) -> None:
    """Processor time a delivery, over refs, bytes of a value, and connections."""
    axes = figure.subplots(1, 3)
    _growth(axes[0], "refs", "refs", "refs")
    _growth(axes[1], "value", "value_bytes", "bytes of the value")
    _growth(axes[2], "connections", "connections", "connections at once")
    axes[0].set_ylabel("server CPU, us a request")
    axes[0].legend(frameon=False)


def latency(figure: Figure) -> None:
    """Percentiles of the product over connections at once, each with one request on its way."""
    axes = figure.subplots()
    points = _points("connections", "connections")
    at = [one["connections"] for one in points]
    for shade, name in zip(SHADES, ("50", "90", "99", "999"), strict=False):
        label = "p99.9" if name == "999" else f"p{name}"
        axes.plot(at, [one[f"p{name}_ms"]["product"]["median"] for one in points], marker="o", color=shade, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(at, [str(one) for one in at])
    axes.set_xlabel("connections at once, closed loop")
    axes.set_ylabel("ms")
    axes.legend(frameon=False)


def throughput(figure: Figure) -> None:
    """Requests a second of one server core, all workloads."""
    axes = figure.subplots()
    some = result("full")["workloads"]
    for offset, (server, colour) in enumerate(COLOURS.items()):
        pairs = [
            (n, one["per_second"][server]["median"]) for n, one in enumerate(some) if one["per_second"].get(server)
        ]
        axes.barh([n + (offset - 1) * 0.27 for n, _ in pairs], [y for _, y in pairs], 0.25, color=colour, label=server)
    axes.set_yticks(range(len(some)), [one["name"] for one in some])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("requests a second (one client; nginx is seldom kept busy by it)")
    axes.legend(frameon=False, loc="lower right")


def stages(figure: Figure) -> None:
    """The split of a delivery by stage."""
    axes = figure.subplots()
    cases = result("stages")["cases"]
    names = [one["name"] for one in cases]
    left = [0.0] * len(cases)
    for shade, stage in zip(SHADES, cases[0]["stages_us"], strict=False):
        shares = [one["stages_us"][stage] / one["sum_us"] * 100 for one in cases]
        axes.barh(names, shares, left=left, color=shade, label=stage)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the server's CPU")
    axes.legend(frameon=False, ncols=6, loc="upper center", bbox_to_anchor=(0.4, -0.25))


def memory(figure: Figure) -> None:
    """Resident memory over deliveries."""
    axes = figure.subplots()
    found = result("memory")["memory"]
    axes.plot(
        [n for n, _ in found["samples"]], [kib / 1024 for _, kib in found["samples"]], marker="o", color=SHADES[0]
    )
    axes.axhline(found["target_kib"] / 1024, color=SHADES[1], linestyle="--", label="target")
    axes.set_ylim(0, max(found["target_kib"], found["peak_kib"]) / 1024 * 1.15)
    axes.set_xlabel("deliveries")
    axes.set_ylabel("resident, MiB")
    axes.legend(frameon=False, loc="lower right")


def refusals(figure: Figure) -> None:
    """Each refusal's share of a delivery."""
    axes = figure.subplots()
    some = result("refusals")["refusals"]
    colours = [SHADES[1] if one["kept"] else SHADES[0] for one in some]
    axes.barh(
        [f"{one['stage']}: {one['name']}" for one in some], [one["share"]["median"] for one in some], color=colours
    )
    axes.axvline(1.0, color=SHADES[3], linestyle="--")
    axes.invert_yaxis()
    axes.set_xlabel("CPU, of a delivery (dashed: as much as one)")


PLOTS: Final[dict[str, tuple[Callable[[Figure], None], tuple[float, float]]]] = {
    "cost": (cost, (9.0, 2.8)),
    "latency": (latency, (5.0, 3.0)),
    "throughput": (throughput, (7.5, 5.0)),
    "stages": (stages, (8.0, 2.8)),
    "memory": (memory, (5.0, 2.6)),
    "refusals": (refusals, (7.5, 4.6)),
}
"""What each file under docs/img shows, and its inches."""


def drawn(name: str) -> bytes:
    """Return a plot as SVG."""
    draw, inches = PLOTS[name]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        draw(figure)
        out = BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def main() -> None:
    """Draw every plot."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in PLOTS:
        (IMAGES / f"bench-{name}.svg").write_bytes(drawn(name))


if __name__ == "__main__":
    main()
