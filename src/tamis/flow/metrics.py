"""The measures of a flow for Prometheus, read when they are asked for: the flow itself pays nothing.

Needs prometheus-client (``pip install 'tamis[metrics]'``). Guarantees one series for every measure of
:attr:`Flow.stats`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, Final

from tamis.errors import UsageError

from .core import Flow
from .measures import Distribution

BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class FlowCollector:
    """Registers with a prometheus-client registry: ``registry.register(FlowCollector(flow, "orders"))``.

    ``name`` is the label ``flow`` of all series: several flows can share a registry.
    """

    def __init__(self, flow: Flow, name: str = "flow") -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            raise UsageError("metrics need prometheus-client: pip install 'tamis[metrics]'")
        self.flow, self.name = flow, name

    def collect(self) -> Iterator[Any]:
        """All series as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        flow, label = self.flow, [self.name]
        balance = CounterMetricFamily(
            "tamis_flow_events", "Events by sort and where they went.", labels=["flow", "sort", "to"]
        )
        queued = GaugeMetricFamily("tamis_flow_queued", "Events that wait or are worked.", labels=["flow", "sort"])
        for sort, parts in flow.balance().items():
            for to in ("in", "delivered", "shed", "rejected"):
                balance.add_metric([self.name, sort, to], parts[to])
            queued.add_metric([self.name, sort], parts["queued"])
        yield balance
        yield queued
        classes = CounterMetricFamily(
            "tamis_flow_class_events", "Events by class and where they went.", labels=["flow", "class", "to"]
        )
        for name, parts in flow.by_class().items():
            for to in ("in", "delivered", "shed", "rejected"):
                classes.add_metric([self.name, name, to], parts[to])
        yield classes
        for what, words, found in (
            ("latency", "From the arrival of a message to its delivery.", flow.latency),
            ("jitter", "The change of latency between two consecutive messages.", flow.jitter),
            ("waiting", "From the arrival of a message until it is worked.", flow.waiting),
        ):
            yield self._histogram(HistogramMetricFamily, f"tamis_flow_{what}_seconds", words, found)
        for what, words, value in (
            ("missed", "Messages that were shed: possible false negatives.", flow.doubt.missed),
            ("suspect", "Messages matched against another state than the serial one.", flow.doubt.suspect),
            ("logs", "Logs that were worked.", flow.logs),
        ):
            counter = CounterMetricFamily(f"tamis_flow_{what}", words, labels=["flow"])
            counter.add_metric(label, value)
            yield counter
        costs = flow.costs
        cost = GaugeMetricFamily("tamis_flow_cost_seconds", "Estimated cost by what it is for.", labels=["flow", "of"])
        for of, seconds in (("log", costs.fixed), ("message", costs.message), ("update", costs.update)):
            cost.add_metric([self.name, of], seconds)
        yield cost
        for what, words, number in (
            ("outdated", "Values of contexts that lack their last update.", float(flow.doubt.outdated)),
            ("deferred", "Updates that were put off until there is time.", float(len(flow.debt))),
            ("latency_max_seconds", "The longest latency so far.", flow.latency.max),
            ("cost_deviation", "Mean relative error of the estimated costs.", costs.deviation),
        ):
            gauge = GaugeMetricFamily(f"tamis_flow_{what}", words, labels=["flow"])
            gauge.add_metric(label, number)
            yield gauge

    def _histogram(self, family: Any, name: str, words: str, found: Distribution) -> Any:
        histogram = family(name, words, labels=["flow"])
        counts = [(str(end), count) for end, count in zip(BUCKETS, found.cumulative(BUCKETS), strict=True)]
        histogram.add_metric([self.name], buckets=[*counts, ("+Inf", len(found))], sum_value=found.sum)
        return histogram
