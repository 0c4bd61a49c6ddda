"""The live runner: everything that was read is delivered, whoever stops, leaves or fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from tamis import EventLog, Filter, Matches, UsageError
from tamis.flow import Batch, Costs, Flow, Hybrid, Shed
from tamis.flow.live import Classed, Delivery, batches
from tamis.flow.metrics import FlowCollector


def stocked() -> Filter:
    f = Filter()
    f.subscribe("w-A", "quantity <= ctx.stock", context="A")
    f.update("A", stock=100)
    return f


async def orders(count: int, pause: float = 0.0) -> AsyncIterator[Any]:
    for k in range(count):
        yield {"quantity": k}
        if pause:
            await asyncio.sleep(pause)


async def collect(flow: Flow, source: Any, **options: Any) -> list[Delivery]:
    return [delivery async for delivery in flow.run(source, **options)]


class Slow:
    """A filter that takes its time, in a thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.filter = seconds, stocked()
        self.started = threading.Event()

    def process(self, log: EventLog) -> Matches:
        self.started.set()
        time.sleep(self.seconds)
        return self.filter.process(log)


def test_matches_come_out_with_their_messages() -> None:
    flow = Flow(stocked())
    found = asyncio.run(collect(flow, orders(150)))
    assert [d.message["quantity"] for d in found] == list(range(101))
    assert {d.profile for d in found} == {"w-A"} and all(0 <= d.latency < 60 for d in found)
    assert flow.balance()["message"]["delivered"] == 150 and flow.queued == 0
    flow.check()


def test_updates_logs_and_plain_iterables_are_sources_too() -> None:
    flow = Flow(stocked(), classes={"a": 1, "b": 2})
    log = EventLog.merge(messages={"quantity": np.arange(50)})
    late = [Classed({"quantity": 1}, "b"), ("unsubscribe", "w-A"), {"quantity": 0}]
    found = asyncio.run(collect(flow, [("update", "A", {"stock": 10}), log, *late]))
    assert [d.message["quantity"] for d in found] == [*range(11), 1]
    assert flow.by_class()["b"]["delivered"] == 1


def test_a_wrong_event_is_refused_and_the_others_go_on() -> None:
    flow = Flow(stocked(), classes={"a": 1})
    reasons: list[tuple[str, Any, str]] = []
    flow.on_rejected = lambda kind, what, reason: reasons.append((kind, what, reason))
    wrong = [7, Classed({"quantity": 2}, "z"), {"quantity": "x"}]
    found = asyncio.run(collect(flow, [{"quantity": 1}, *wrong, {"quantity": 3}]))
    assert [d.message["quantity"] for d in found] == [1, 3]
    assert flow.balance()["message"] == {"in": 5, "delivered": 2, "shed": 0, "rejected": 3, "queued": 0}
    assert [kind for kind, _, _ in reasons] == ["message"] * 3 and reasons[0][1] == 7
    flow.check()


def test_the_source_waits_while_there_is_no_room() -> None:
    flow = Flow(Slow(0.02), Batch(limit=0.001), costs=Costs(message=0.001, update=0.001), capacity=4)
    most = 0

    async def watched() -> AsyncIterator[Any]:
        nonlocal most
        async for event in orders(30):
            yield event
            most = max(most, flow.queued)

    assert len(asyncio.run(collect(flow, watched()))) == 30
    assert most <= 4


def test_a_slow_consumer_slows_the_source() -> None:
    flow = Flow(stocked(), Batch(limit=0.001), costs=Costs(message=0.001, update=0.001), capacity=5)
    read = 0

    async def counted() -> AsyncIterator[Any]:
        nonlocal read
        async for event in orders(100):
            read += 1
            yield event

    async def consume() -> int:
        seen = 0
        async for _ in flow.run(counted()):
            seen += 1
            await asyncio.sleep(0.001)
            assert read <= seen + 10
        return seen

    assert asyncio.run(consume()) == 100


def test_a_stop_works_off_what_was_read() -> None:
    flow = Flow(Slow(0.01), capacity=50)
    stop = asyncio.Event()

    async def forever() -> AsyncIterator[Any]:
        k = 0
        while True:
            yield {"quantity": k % 50}
            k += 1
            await asyncio.sleep(0)

    async def stopped() -> list[Delivery]:
        asyncio.get_running_loop().call_later(0.2, stop.set)
        return await asyncio.wait_for(collect(flow, forever(), stop=stop), 20)

    found = asyncio.run(stopped())
    balance = flow.balance()["message"]
    assert balance["in"] == balance["delivered"] == len(found) > 10 and flow.queued == 0


def test_a_stop_is_heard_while_the_source_is_silent() -> None:
    flow, stop = Flow(stocked()), asyncio.Event()

    async def silent() -> AsyncIterator[Any]:
        yield {"quantity": 1}
        await asyncio.sleep(3600)

    async def stopped() -> list[Delivery]:
        asyncio.get_running_loop().call_later(0.1, stop.set)
        return await asyncio.wait_for(collect(flow, silent(), stop=stop), 20)

    assert len(asyncio.run(stopped())) == 1


def test_who_leaves_in_the_middle_finds_the_rest_in_the_next_run() -> None:
    flow = Flow(stocked())

    async def leave() -> list[Delivery]:
        first = []
        run = flow.run([EventLog.of_messages({"quantity": np.arange(20)})])
        async for delivery in run:
            first.append(delivery)
            if len(first) == 5:
                break
        await run.aclose()  # type: ignore[attr-defined]
        return [*first, *await collect(flow, orders(3))]

    found = asyncio.run(leave())
    assert [d.message["quantity"] for d in found] == [*range(20), 0, 1, 2]


def test_a_cancelled_run_keeps_what_its_thread_found() -> None:
    slow = Slow(0.3)
    flow = Flow(slow)

    async def cancelled() -> list[Delivery]:
        task = asyncio.create_task(collect(flow, orders(1)))
        await asyncio.to_thread(slow.started.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        flow.check()
        return await collect(flow, [])

    assert len(asyncio.run(cancelled())) == 1


def test_a_source_that_fails_is_reported_after_the_rest_is_done() -> None:
    flow = Flow(stocked())
    found: list[Delivery] = []

    async def failing() -> AsyncIterator[Any]:
        async for event in orders(10):
            yield event
        raise RuntimeError("the line is dead")

    async def consume() -> None:
        async for delivery in flow.run(failing()):
            found.append(delivery)

    with pytest.raises(RuntimeError, match="the line is dead"):
        asyncio.run(consume())
    assert len(found) == 10


def test_a_filter_that_fails_loses_no_count() -> None:
    class Broken:
        def process(self, log: EventLog) -> Matches:
            raise RuntimeError("broken")

    flow = Flow(Broken())
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(collect(flow, orders(1)))
    assert flow.balance()["message"]["rejected"] == 1
    flow.check()


def test_overload_is_shed_in_real_time_within_the_bound() -> None:
    class Steady:
        def process(self, log: EventLog) -> Matches:
            time.sleep(0.005)
            return Matches.of([])

    async def burst() -> AsyncIterator[Any]:
        for _ in range(400):
            yield {"quantity": 1}
            await asyncio.sleep(0.001)

    flow = Flow(Steady(), Shed(0.1, "messages"))
    asyncio.run(collect(flow, burst()))
    balance = flow.balance()["message"]
    assert balance["in"] == 400 == balance["delivered"] + balance["shed"] and balance["shed"] > 0
    assert flow.latency.quantile(0.9) < 0.2  # a busy machine may be late once
    flow.check()


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(UsageError, match="no filter"):
        asyncio.run(collect(Flow(), orders(1)))
    with pytest.raises(UsageError, match="source: expected"):
        asyncio.run(collect(Flow(stocked()), 7))


def test_batches_come_whole() -> None:
    flow = Flow(stocked(), Hybrid(5.0))

    async def whole() -> int:
        log = EventLog.of_messages({"quantity": np.arange(1_000) % 150})
        return sum([len(done.matches) async for done in batches(flow, [log])])

    assert asyncio.run(whole()) == sum(k % 150 <= 100 for k in range(1_000))


# -- metrics ---------------------------------------------------------------------------------------------------


def test_every_measure_reaches_prometheus() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    flow = Flow(stocked(), "latency <= 5s", classes={"gold": 2, "default": 1})
    registry = CollectorRegistry()
    registry.register(FlowCollector(flow, "orders"))
    asyncio.run(collect(flow, [*({"quantity": k} for k in range(20)), {"quantity": "x"}]))
    flow.offer({"quantity": 1}, time.monotonic(), qos="gold")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"flow": "orders", **labels})

    assert value("tamis_flow_events_total", sort="message", to="in") == 22
    assert value("tamis_flow_events_total", sort="message", to="delivered") == 20
    assert value("tamis_flow_events_total", sort="message", to="rejected") == 1
    assert value("tamis_flow_events_total", sort="message", to="shed") == 0
    assert value("tamis_flow_queued", sort="message") == 1
    assert value("tamis_flow_class_events_total", **{"class": "gold", "to": "in"}) == 1
    for what in ("latency", "jitter", "waiting"):
        assert value(f"tamis_flow_{what}_seconds_count") in (20, 21)
        assert value(f"tamis_flow_{what}_seconds_bucket", le="60.0") in (20, 21)
    text = generate_latest(registry).decode()
    for name in (
        "missed",
        "suspect",
        "outdated",
        "deferred",
        "logs",
        "cost_seconds",
        "cost_deviation",
        "latency_max_seconds",
    ):
        assert f"tamis_flow_{name}" in text
