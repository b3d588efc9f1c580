"""Metrics: plain numbers on the request path, families of prometheus-client when they are asked for (contract 9).

Label values come from closed sets only: codes, reasons and stages of the outcome table, causes of silent closes,
names of readiness checks. Nothing from a request is ever a label.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from provider.outcomes import DELIVERED, Close, Code, Reason, Stage
from sidecar import __version__
from sidecar.head import HeadLimit

PREFIX: Final = "secret_sidecar"
UNANSWERED: Final = "unanswered"
"""The code of a request whose peer was gone, or whose drain ran out, before an answer."""
BOUNDS: Final = (
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    15.0,
)
"""Upper bounds of the stage histogram, seconds."""

Sample = Callable[[], float]


class Metrics(Collector):
    """The numbers of one process, and the collector that shows them."""

    def __init__(self) -> None:
        """Start at zero, with every label of every closed set present."""
        codes = [DELIVERED, UNANSWERED, *dict.fromkeys(code.value.code for code in Code)]
        self.requests: dict[str, int] = dict.fromkeys(codes, 0)
        self.reasons: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.closes: dict[Close, int] = dict.fromkeys(Close, 0)
        self.head_limits: dict[HeadLimit, int] = dict.fromkeys(HeadLimit, 0)
        self._buckets: dict[Stage, list[int]] = {stage: [0] * (len(BOUNDS) + 1) for stage in Stage}
        self._sums: dict[Stage, float] = dict.fromkeys(Stage, 0.0)
        self.in_flight = 0
        self.connections = 0
        self.handshaking = 0
        self.accepted = 0
        self.accept_pauses = 0
        self.pipelined = 0
        self.used_up = 0
        self.delivered_bytes = 0
        self.previous_pepper = 0
        self.loop_lag_s = 0.0
        """Worst lateness of the listener's sweep since the last scrape."""
        self._gauges: list[tuple[str, str, Sample]] = []
        self._counters: list[tuple[str, str, Sample]] = []
        self._labelled: list[tuple[str, str, str, Callable[[], dict[str, float]]]] = []

    def observe(self, stage: Stage, seconds: float) -> None:
        """Add a duration to a stage."""
        self._buckets[stage][bisect_left(BOUNDS, seconds)] += 1
        self._sums[stage] += seconds

    def gauge(self, name: str, text: str, sample: Sample) -> None:
        """Show what `sample` returns at each scrape."""
        self._gauges.append((name, text, sample))

    def counter(self, name: str, text: str, sample: Sample) -> None:
        """Show a number that only grows, kept elsewhere."""
        self._counters.append((name, text, sample))

    def labelled(self, name: str, text: str, label: str, sample: Callable[[], dict[str, float]]) -> None:
        """Show a gauge for each member of a closed set."""
        self._labelled.append((name, text, label, sample))

    def registry(self) -> CollectorRegistry:
        """Return a registry of its own: the library's default one adds figures of the platform."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        build = InfoMetricFamily(f"{PREFIX}_build", "Version of this process.")
        build.add_metric([], {"version": __version__})
        yield build
        yield _by_label("requests", "Requests by code of their answer.", "code", self.requests)
        yield _by_label(
            "refusals", "Refusals by reason.", "reason", {reason.name.lower(): n for reason, n in self.reasons.items()}
        )
        yield _by_label(
            "silent_closes",
            "Connections closed without an answer, by cause.",
            "cause",
            {cause.value: n for cause, n in self.closes.items()},
        )
        yield _by_label(
            "head_limits",
            "Malformed heads that are over a bound, by bound.",
            "limit",
            {limit.value: n for limit, n in self.head_limits.items()},
        )
        stages = HistogramMetricFamily(
            f"{PREFIX}_stage_seconds", "Time spent in each stage of a request.", labels=["stage"]
        )
        for stage in Stage:
            total, buckets = 0, []
            for bound, count in zip((*BOUNDS, float("inf")), self._buckets[stage], strict=True):
                total += count
                buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
            stages.add_metric([stage.value], buckets, self._sums[stage])
        yield stages
        lag, self.loop_lag_s = self.loop_lag_s, 0.0
        for name, text, value in (
            ("in_flight", "Requests in flight.", self.in_flight),
            ("connections", "Open connections after their handshake.", self.connections),
            ("handshaking_connections", "Connections before the end of their handshake.", self.handshaking),
            ("loop_lag_seconds", "Worst lateness of the event loop since the last scrape.", lag),
            ("open_descriptors", "Descriptors of this process.", _descriptors()),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
        for name, text, value in (
            ("connections_accepted", "Connections accepted.", self.accepted),
            ("accept_pauses", "Times accepting waited for descriptors or memory.", self.accept_pauses),
            ("used_up_connections", "Connections ended with the last request that one may make.", self.used_up),
            ("pipelined_connections", "Connections ended for sending more than one request at a time.", self.pipelined),
            ("delivered_bytes", "Body bytes of deliveries.", self.delivered_bytes),
            ("previous_pepper", "Credentials that matched only under the previous pepper.", self.previous_pepper),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, value)
        for name, text, sample in self._gauges:
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, sample())
        for name, text, sample in self._counters:
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, sample())
        for name, text, label, samples in self._labelled:
            family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
            for member, number in samples().items():
                family.add_metric([member], number)
            yield family


def _by_label(name: str, text: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for member, number in values.items():
        family.add_metric([member], number)
    return family


def _descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return -1
