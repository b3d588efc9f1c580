"""Metrics: what is counted comes out, in both formats, with labels from closed sets alone."""

import math

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from provider.outcomes import DELIVERED, Close, Code, Reason, Stage
from sidecar import __version__
from sidecar.head import HeadLimit
from sidecar.metrics import BOUNDS, UNANSWERED, Metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def families(metrics: Metrics) -> dict[str, Metric]:
    """Return the families as a scraper of the plain format reads them."""
    return {family.name: family for family in parse(generate_latest(metrics.registry()).decode())}


def samples(metrics: Metrics) -> Samples:
    """Return every sample by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families(metrics).values()
        for sample in family.samples
    }


def one(metrics: Metrics, name: str, **labels: str) -> float:
    """Return one sample's value."""
    return samples(metrics)[f"secret_sidecar_{name}", tuple(sorted(labels.items()))]


def test_every_label_of_every_closed_set_is_there_from_the_start() -> None:
    """Each code, reason, cause and stage stands at zero before it first happens, and no other label is there."""
    metrics = Metrics()
    found = samples(metrics)
    expected = {
        "secret_sidecar_requests_total": {"code": {DELIVERED, UNANSWERED, *(code.value.code for code in Code)}},
        "secret_sidecar_refusals_total": {"reason": {reason.name.lower() for reason in Reason}},
        "secret_sidecar_silent_closes_total": {"cause": {cause.value for cause in Close}},
        "secret_sidecar_head_limits_total": {"limit": {"target", "block", "fields"}},
        "secret_sidecar_stage_seconds_count": {"stage": {stage.value for stage in Stage}},
    }
    for name, labels in expected.items():
        for label, members in labels.items():
            assert {dict(pairs)[label] for found_name, pairs in found if found_name == name} == members
    assert all(value == 0 for (name, _), value in found.items() if name.endswith(("_total", "_count", "_sum")))
    assert {label for _, pairs in found for label, _ in pairs} == {
        "code", "reason", "cause", "limit", "stage", "le", "version",
    }  # fmt: skip


def test_what_is_counted_comes_out() -> None:
    """Counters and gauges show the numbers that the request path wrote."""
    metrics = Metrics()
    metrics.requests[DELIVERED] += 2
    metrics.reasons[Reason.JSON] += 3
    metrics.closes[Close.IDLE_TIMEOUT] += 4
    metrics.in_flight, metrics.connections, metrics.handshaking = 5, 6, 7
    metrics.accepted, metrics.pipelined, metrics.delivered_bytes, metrics.previous_pepper = 8, 9, 10, 11
    metrics.accept_pauses, metrics.used_up = 12, 13
    metrics.head_limits[HeadLimit.FIELDS] += 14
    assert one(metrics, "requests_total", code=DELIVERED) == 2
    assert one(metrics, "refusals_total", reason="json") == 3
    assert one(metrics, "silent_closes_total", cause="idle_timeout") == 4
    names = ["in_flight", "connections", "handshaking_connections", "connections_accepted_total"]
    names += ["pipelined_connections_total", "delivered_bytes_total", "previous_pepper_total"]
    names += ["accept_pauses_total", "used_up_connections_total"]
    assert [one(metrics, name) for name in names] == list(range(5, 14))
    assert one(metrics, "head_limits_total", limit="fields") == 14
    assert one(metrics, "build_info", version=__version__) == 1
    assert one(metrics, "open_descriptors") > 2


def test_stage_times_are_a_cumulative_histogram() -> None:
    """A time counts in its bucket and in all above; a bound belongs to its bucket; the sum is the sum."""
    metrics = Metrics()
    times = [0.0, BOUNDS[0], BOUNDS[3], (BOUNDS[3] + BOUNDS[4]) / 2, BOUNDS[-1], 100.0]
    for seconds in times:
        metrics.observe(Stage.BODY, seconds)
    found = samples(metrics)
    for bound in (*BOUNDS, math.inf):
        shown = "+Inf" if bound == math.inf else repr(bound)
        key = ("secret_sidecar_stage_seconds_bucket", (("le", shown), ("stage", "body")))
        assert found[key] == sum(seconds <= bound for seconds in times)
    assert one(metrics, "stage_seconds_count", stage="body") == len(times)
    assert one(metrics, "stage_seconds_sum", stage="body") == pytest.approx(sum(times))
    assert one(metrics, "stage_seconds_count", stage="parse") == 0


def test_what_others_count_is_asked_at_each_scrape() -> None:
    """Registered gauges, counters and labelled gauges show what their source says at that moment."""
    metrics = Metrics()
    state = {"a": 1.0, "b": 0.0}
    metrics.gauge("some_gauge", "text", lambda: state["a"])
    metrics.counter("some_events", "text", lambda: state["a"] * 10)
    metrics.labelled("ready", "text", "check", lambda: state)
    assert (one(metrics, "some_gauge"), one(metrics, "some_events_total")) == (1, 10)
    state["a"] = 2.0
    assert (one(metrics, "some_gauge"), one(metrics, "some_events_total")) == (2, 20)
    assert (one(metrics, "ready", check="a"), one(metrics, "ready", check="b")) == (2, 0)


def test_loop_lag_is_the_worst_since_the_last_scrape() -> None:
    """The worst lateness is shown once; then it is reckoned anew."""
    metrics = Metrics()
    metrics.loop_lag_s = 0.25
    assert one(metrics, "loop_lag_seconds") == 0.25
    assert one(metrics, "loop_lag_seconds") == 0


def test_both_formats_say_the_same() -> None:
    """OpenMetrics is well-formed, as its own strict parser judges, and holds the families of the plain format."""
    metrics = Metrics()
    metrics.observe(Stage.PARSE, 0.5)
    text = generate_openmetrics(metrics.registry()).decode()  # type: ignore[no-untyped-call]
    strict = {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    plain = {name.removesuffix("_total").removesuffix("_info") for name in families(metrics)}
    assert plain == {name.removesuffix("_info") for name in strict}
    assert all(family.documentation for family in families(metrics).values())


def test_an_unknown_stage_of_a_closed_set_cannot_be_observed() -> None:
    """A label from outside the sets raises instead of making a new series."""
    metrics = Metrics()
    before = samples(metrics).keys()
    with pytest.raises(KeyError):
        metrics.observe("elsewhere", 1.0)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        metrics.requests["elsewhere"] += 1
    assert samples(metrics).keys() == before
