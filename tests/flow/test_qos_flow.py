"""A flow loses nothing uncounted, and what it does is what the reference does on the same events in the same order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import EventLog, Filter, InvariantError, Matches, ReferenceFilter, UsageError
from tamis.flow import Batch, Chunk, Costs, Flow, Hybrid, Lanes, Policy, Shed, Traditional, Work
from tamis.testing import Mix, Vocabulary, compare, random_log

COSTS = {"message": 0.01, "update": 0.001, "fixed": 0.005}
POLICIES: list[Policy] = [
    Traditional(),
    Batch(),
    Batch("no outdated state"),
    Batch("no premature state"),
    Batch(limit=0.03),
    Batch(latency=0.2, single=0.05),
    Batch(wait=0.1),
    Shed(0.1),
    Shed(0.1, "messages"),
    Shed(0.05, "updates"),
    Shed(0.2, "both", 0.9),
    Shed(0.1, "both", 0.0),
    Hybrid(0.1),
    Hybrid(0.2, "messages", consistency="no outdated state"),
    Hybrid(0.05, "updates"),
]


def event_of(kind: str, rest: tuple[Any, ...]) -> Any:
    return ("update", rest[0], {rest[1]: rest[2]}) if kind == "update" else (kind, *rest)


class World:
    """A flow, a filter and the reference, driven by random arrivals under a virtual clock."""

    def __init__(self, seed: int, policy: Policy, events: int = 90, learn: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.flow = Flow(
            Filter(),
            policy,
            classes={"gold": math.inf, "silver": 5, "bronze": 1},
            costs=Costs() if learn else Costs(**COSTS),
            seed=seed,
        )
        self.filter, self.reference = Filter(), ReferenceFilter()
        self.log = random_log(self.rng, events, Vocabulary(), Mix(messages=0.5, updates=0.35, subscribes=0.1))
        self.events: list[tuple[str, tuple[Any, ...]]] = []  # by sequence number
        self.shed: set[int] = set()
        self.worked: list[int] = []
        self.flow.on_shed = lambda pieces, now: self.shed.update(i for p in pieces for i in p.seq.tolist())
        self.now = 0.0
        self.late = 0.0

    def offer_some(self, source: list[tuple[str, tuple[Any, ...]]], count: int) -> None:
        """The next events, as a log, in parts of a chunk, or one by one."""
        some, way = source[:count], int(self.rng.integers(3))
        del source[:count]
        if not some:
            return
        names = ["gold", "silver", "bronze"]
        if way == 0:
            for kind, rest in some:
                self.flow.offer(event_of(kind, rest), self.now, qos=names[int(self.rng.integers(3))])
        else:
            builder = EventLog.builder()
            for kind, rest in some:
                if kind == "update":
                    builder.update(rest[0], {rest[1]: rest[2]})
                else:
                    getattr(builder, kind)(*rest)
            log = builder.build()
            classes = [names[k] for k in self.rng.integers(3, size=len(log)).tolist()]
            if way == 1:
                self.flow.offer(log, self.now, qos=classes)
            else:
                chunk = Chunk(log, self.now, self.flow.classes.codes(classes, len(log)))
                cut = int(self.rng.integers(len(log) + 1))
                self.flow.offer_chunk(chunk, self.now, 0, cut)
                self.flow.offer_chunk(chunk, self.now, cut)
        self.events += some

    def work(self) -> bool:
        """Take, process, compare with the reference, hand back."""
        work = self.flow.take(self.now)
        self.flow.check()
        if work is None:
            return False
        found = self.filter.process(work.log)
        self.compare(work, found)
        seconds = COSTS["fixed"] + COSTS["message"] * work.messages + COSTS["update"] * work.updates
        self.now += seconds
        self.flow.done(work, found, self.now)
        self.flow.check()
        return True

    def compare(self, work: Work, found: Matches) -> None:
        """The reference gets the same events, in the order of the consistency model, made anew from what was
        offered."""
        seqs = [i for piece in work.pieces for i in piece.seq.tolist()]
        self.worked += seqs
        if work.consistency != "serial":
            first = "update" if work.consistency == "no outdated state" else "message"
            seqs.sort(key=lambda i: self.events[i][0] != first)
        builder = EventLog.builder()
        rows: dict[str, list[int]] = {}
        for i in seqs:
            kind, rest = self.events[i]
            rows.setdefault(kind, []).append(i)
            if kind == "update":
                builder.update(rest[0], {rest[1]: rest[2]})
            else:
                getattr(builder, kind)(*rest)
        expected = self.reference.process(builder.build())
        pairs = Matches.of([(rows["message"][row], id) for row, id in expected])
        assert compare(Matches(found.message, found.codes, found._decode), pairs) == []
        rejected = sorted((r.kind, rows["message" if r.kind == "effect" else r.kind][r.row]) for r in expected.rejected)
        assert sorted((r.kind, r.row) for r in found.rejected) == rejected


def events_of(log: EventLog) -> list[tuple[str, tuple[Any, ...]]]:
    return [(kind, tuple(rest)) for kind, _, *rest in log.events()]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@settings(max_examples=12 if settings.get_current_profile_name() == "default" else 500)
@given(seed=st.integers(0, 2**32))
def test_every_policy_is_exact_on_what_it_keeps_and_accounts_for_the_rest(policy: Policy, seed: int) -> None:
    world = World(seed, policy, learn=seed % 3 == 0)
    source = events_of(world.log)
    for _ in range(1_000):
        if not source and not world.flow.queued:
            break
        if source and world.rng.random() < 0.6:
            world.offer_some(source, int(world.rng.integers(1, 40)))
            world.flow.check()
        elif not world.work():
            assert world.flow.wake > world.now or not world.flow.queued
            world.now = min(world.flow.wake, world.now + float(world.rng.exponential(0.05)))
    assert not source and not world.flow.queued
    total = {k: sum(part[k] for part in world.flow.balance().values()) for k in ("in", "delivered", "shed", "rejected")}
    assert total["in"] == len(world.events) == total["delivered"] + total["shed"] + total["rejected"]
    assert world.shed.isdisjoint(world.worked) and len(world.shed) == total["shed"]
    assert sorted([*world.shed, *world.worked]) == list(range(len(world.events)))
    by_value: dict[Any, list[int]] = {}
    for i in world.worked:
        kind, rest = world.events[i]
        by_value.setdefault(rest[:2] if kind == "update" else "others", []).append(i)
    assert all(some == sorted(some) for some in by_value.values()), "an update was worked after a later one"
    if not isinstance(policy, Hybrid):
        assert world.worked == sorted(world.worked), "events left the queue in another order than they came"
    gold = world.flow.by_class()["gold"]
    assert gold["shed"] == 0
    world.filter.check()


@settings(max_examples=12 if settings.get_current_profile_name() == "default" else 500)
@given(seed=st.integers(0, 2**32))
def test_without_shedding_and_in_serial_order_the_whole_is_one_process_call(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log = random_log(rng, 150, columnar=bool(seed % 2))
    flow, filter = Flow(policy=Batch(limit=0.02), costs=Costs(**COSTS)), Filter()
    chunk = Chunk(log, np.sort(rng.random(len(log))))
    found: list[tuple[int, Any]] = []
    now, sent = 0.0, 0
    while sent < len(chunk) or flow.queued:
        until = chunk.until(now)
        flow.offer_chunk(chunk, now, sent, until)
        sent = until
        work = flow.take(now)
        if work is None:
            now = float(chunk.arrival[sent]) if sent < len(chunk) else now
            continue
        matches = filter.process(work.log)
        found += list(matches)
        now += work.expected
        flow.done(work, matches, now)
    number = np.flatnonzero(chunk.kind == 0)  # sequence numbers count all events, rows of the log messages only
    expected = Matches.of((int(number[row]), id) for row, id in ReferenceFilter().process(log))
    assert compare(Matches.of(found), expected) == []


# -- bounds ----------------------------------------------------------------------------------------------------


def drive(policy: Policy, rate: float, seconds: float, noise: float = 0.2, seed: int = 0, **options: Any) -> Flow:
    """Messages and ten updates each at a rate, against a filter of known, noisy costs; the capacity is 40 one at a
    time."""
    rng = np.random.default_rng(seed)
    n = int(rate * seconds)
    order = np.arange(n * 11)
    log = EventLog.merge(
        messages={"x": rng.random(n), "seq": order[10::11]},
        updates={
            "context": rng.integers(0, 50, 10 * n).astype(str).tolist(),
            "attribute": "x",
            "value": rng.random(10 * n),
            "seq": np.delete(order, np.s_[10::11]),
        },
    )
    flow = Flow(policy=policy, **options)
    chunk = Chunk(log, order / (11 * rate))
    now, sent = 0.0, 0
    while sent < len(chunk) or flow.queued:
        until = chunk.until(now)
        flow.offer_chunk(chunk, now, sent, until)
        sent = until
        work = flow.take(now)
        flow.check()
        if work is None:
            now = float(chunk.arrival[sent]) if sent < len(chunk) else now
            continue
        took = (0.009 + 0.001 * work.messages + 0.0001 * work.updates) * (1 + noise * rng.random())
        now += took
        flow.done(work, Matches.of([]), now)
    return flow


ONE = 0.009 + 0.001 + 0.0001  # an event's cost without noise


@pytest.mark.parametrize("what", ["messages", "both"])
@pytest.mark.parametrize("bound", [0.1, 1.0])
def test_shedding_holds_its_bound(what: Any, bound: float) -> None:
    flow = drive(Shed(bound, what), rate=200, seconds=20)
    assert flow.latency.max <= bound + 1.2 * ONE
    assert flow.balance()["message"]["shed"] > 0
    assert flow.balance()["update"]["shed"] == 0 or what == "both"


def test_shedding_updates_cannot_help_against_too_many_messages() -> None:
    flow = drive(Shed(0.5, "updates"), rate=200, seconds=10)
    assert flow.latency.max > 1.0
    assert flow.balance()["message"]["shed"] == 0 < flow.balance()["update"]["shed"]


def test_traditional_processing_has_no_bound_and_gives_nothing_up() -> None:
    flow = drive(Traditional(), rate=200, seconds=10)
    assert flow.latency.max > 5.0
    assert flow.balance()["message"]["delivered"] == 2_000


@pytest.mark.parametrize("rate", [200, 2_000])
@pytest.mark.parametrize("bound", [0.2, 2.0])
def test_a_hybrid_holds_its_bound_and_sheds_less(rate: int, bound: float) -> None:
    hybrid, shed = drive(Hybrid(bound), rate, 5), drive(Shed(bound), rate, 5)
    assert hybrid.latency.max <= bound + 0.02
    assert hybrid.balance()["message"]["delivered"] >= 3 * shed.balance()["message"]["delivered"]
    assert rate > 200 or hybrid.balance()["message"]["shed"] == 0


def test_batches_level_a_burst_and_do_not_delay_a_quiet_stream() -> None:
    burst = drive(Batch(latency=1.0), rate=300, seconds=5)
    assert burst.latency.max < 1.0 and burst.balance()["message"]["shed"] == 0
    quiet = drive(Batch(latency=1.0), rate=10, seconds=20)
    assert quiet.latency.quantile(0.5) < 3 * ONE


def test_an_adaptive_batch_switches_between_single_and_batched_work() -> None:
    seen: dict[str, list[int]] = {"quiet": [], "burst": []}

    class Watched(Batch):
        def next(self, desk: Any, now: float) -> Any:
            found = super().next(desk, now)
            seen[mode].append(found.events)
            return found

    mode = "quiet"
    drive(Watched("no outdated state", single=0.1), rate=10, seconds=20)
    mode = "burst"
    drive(Watched("no outdated state", single=0.1), rate=300, seconds=5)
    assert max(seen["quiet"][10:]) <= 20 and max(seen["burst"]) > 80


def test_set_costs_are_kept_and_learned_ones_follow() -> None:
    learned = drive(Batch(limit=0.2), rate=2_000, seconds=2, noise=0.1).costs
    assert learned.seconds(100, 1_000) == pytest.approx(1.05 * (0.009 + 0.1 + 0.1), rel=0.15)
    fixed = Costs(message=1.0, update=0.5)
    assert drive(Traditional(), rate=20, seconds=1, costs=fixed).costs.message == 1.0


# -- classes ---------------------------------------------------------------------------------------------------


def classed(rate: float, share: float) -> Flow:
    """A third of the messages in each class, ``share`` of the capacity taken by the class without loss."""
    rng = np.random.default_rng(1)
    n = int(rate * 20)
    gold = rng.random(n) < share
    names = np.where(gold, "gold", np.where(rng.random(n) < 0.5, "silver", "bronze"))
    flow = Flow(policy=Shed(0.5, "messages"), classes={"gold": math.inf, "silver": 5.0, "bronze": 1.0})
    log = EventLog.of_messages({"x": rng.random(n)})
    chunk = Chunk(log, np.arange(n) / rate, flow.classes.codes(names.tolist(), n))
    now, sent = 0.0, 0
    while sent < n or len(flow.queue):
        until = chunk.until(now)
        flow.offer_chunk(chunk, now, sent, until)
        sent = until
        work = flow.take(now)
        if work is None:
            now = float(chunk.arrival[sent]) if sent < len(chunk) else now
            continue
        now += 0.01
        flow.done(work, Matches.of([]), now)
    flow.check()
    return flow


def test_shedding_takes_the_class_with_the_least_loss_first() -> None:
    flow = classed(rate=150, share=0.2)  # capacity 100: bronze alone is enough
    by = flow.by_class()
    assert by["gold"]["shed"] == 0 and by["bronze"]["shed"] > 600
    assert by["silver"]["shed"] <= 0.1 * by["bronze"]["shed"]
    assert flow.latency.max <= 0.5 + 0.01


def test_a_class_that_allows_no_errors_gets_none_while_there_is_capacity_for_it() -> None:
    by = classed(rate=300, share=0.3).by_class()  # gold alone takes 90 % of the capacity
    assert by["gold"]["shed"] == 0 and by["gold"]["delivered"] == by["gold"]["in"]
    assert by["bronze"]["delivered"] < 0.1 * by["bronze"]["in"]


def test_unknown_classes_are_named() -> None:
    flow = Flow(classes={"gold": 2, "silver": 1})
    with pytest.raises(UsageError, match="no class 'golden'; known: gold, silver; did you mean 'gold'"):
        flow.offer({"x": 1}, 0.0, qos="golden")
    with pytest.raises(UsageError, match="loss= is a number"):
        Flow(classes={"gold": -1})
    with pytest.raises(UsageError, match="one per event"):
        flow.offer(EventLog.of_messages({"x": [1, 2]}), 0.0, qos=["gold"])
    assert flow.queued == 0


def test_a_class_of_profiles_that_allows_no_errors_gets_none_in_overload() -> None:
    rng = np.random.default_rng(3)
    lanes = Lanes(lambda name: Filter(), {"basic": 1.0, "gold": math.inf}, {"basic": "latency <= 200ms"})
    truth = ReferenceFilter()
    for k in range(20):
        lanes.offer(("subscribe", f"g{k}", f"x between ctx.x and ctx.x + {k}", f"c{k % 4}"), 0.0, qos="gold")
        truth.subscribe(f"g{k}", f"x between ctx.x and ctx.x + {k}", f"c{k % 4}")
        lanes.offer(("subscribe", f"b{k}", f"x < {k}"), 0.0, qos="basic")
    found: list[tuple[float, Any]] = []
    expected: list[tuple[float, Any]] = []
    now = 0.0
    pending = 0.0
    while now < 20.0:
        while pending <= now and now < 10.0:  # 100 messages a second, of which both lanes together do 50
            context, value, x = f"c{rng.integers(4)}", float(rng.integers(20)), float(rng.integers(30)) + pending / 100
            for event in (("update", context, {"x": value}), {"x": x}):
                lanes.offer(event, now)
            truth.update(context, x=value)
            expected += [(x, id) for id in truth.match({"x": x})]
            pending += 0.01
        one = lanes.take(now)
        lanes.check()
        if one is None:
            now += 0.01
            continue
        matches = lanes.flows[one.qos].filter.process(one.work.log)  # type: ignore[union-attr]
        if one.qos == "gold":
            rows = one.work.log.message_rows.tolist()
            found += [(one.work.log.message(rows.index(seq))["x"], id) for seq, id in matches]
        now += 0.001 + 0.009 * one.work.messages
        lanes.done(one, matches, now)
    balance = lanes.balance()
    assert sorted(found) == sorted(expected) and expected
    assert balance["gold"]["message"]["shed"] == 0 < balance["basic"]["message"]["shed"]
    assert lanes.flows["gold"].latency.max < 1.0
    assert list(lanes.flows) == ["gold", "basic"]


def test_lanes_say_what_they_cannot_do() -> None:
    def make(name: str) -> Filter:
        return Filter()

    with pytest.raises(UsageError, match="'gold' allows no errors, but its policy sheds"):
        Lanes(make, {"gold": math.inf}, {"gold": "latency <= 1s"})
    with pytest.raises(UsageError, match="no class 'silver'"):
        Lanes(make, {"gold": 1}, {"silver": "no errors"})
    lanes = Lanes(make, {"gold": 2, "basic": 1})
    with pytest.raises(UsageError, match="no class 'golden'"):
        lanes.offer(("subscribe", "p", "x > 1"), 0.0, qos="golden")
    with pytest.raises(UsageError, match="offer subscriptions one by one"):
        lanes.offer(EventLog.builder().subscribe("p", "x > 1").build(), 0.0)


def test_a_profile_changes_its_class() -> None:
    lanes = Lanes(lambda name: Filter(), {"gold": 2, "basic": 1})
    lanes.offer(("subscribe", "p", "x > 1"), 0.0, qos="gold")
    lanes.offer(("subscribe", "p", "x > 1"), 0.0, qos="basic")
    lanes.offer(EventLog.of_messages({"x": [2]}), 0.0)
    lanes.offer(("unsubscribe", "p"), 0.0)
    lanes.offer({"x": 2}, 0.0)
    found = []
    while (done := lanes.step(lambda: 1.0)) is not None:
        found += [(done[0], id) for _, id in done[1]]
    assert found == [("basic", "p")]


# -- using it wrongly ------------------------------------------------------------------------------------------


def test_wrong_events_are_refused_and_cost_nothing() -> None:
    flow = Flow()
    for wrong in (5, ("update", "A"), ("update", "A", 3), ("update", 1.5, {"x": 1}), ("message", 3), ("nonsense", 1)):
        with pytest.raises(UsageError, match="expected"):
            flow.offer(wrong, 0.0)
    assert flow.queued == 0
    flow.check()
    flow.offer({"x": 1}, 1.0)
    with pytest.raises(UsageError, match="time goes forward"):
        flow.offer({"x": 1}, 0.5)
    with pytest.raises(UsageError, match="in the order of the events"):
        flow.offer(EventLog.of_messages({"x": [1, 2]}), 2.0, arrival=[1.0, 0.0])
    flow.check()


def test_work_is_handed_back_once() -> None:
    flow = Flow(Filter())
    flow.offer({"x": 1}, 0.0)
    work = flow.take(0.0)
    assert work is not None and flow.queued == 1
    flow.abandon(work, 1.0)
    assert flow.balance()["message"] == {"in": 1, "delivered": 0, "shed": 0, "rejected": 1, "queued": 0}
    with pytest.raises(UsageError, match="handed back before"):
        flow.done(work, Matches.of([]), 1.0)


def test_rejected_events_are_counted_by_sort_and_class() -> None:
    f = Filter()
    f.subscribe("p", "x > ctx.y", context="A")
    flow = Flow(f, classes={"a": 1, "b": 2})
    flow.offer({"x": 3}, 0.0, qos="a")
    flow.offer({"x": "text"}, 0.0, qos="b")
    flow.offer(("update", "A", {"y": 1}), 0.0, qos="b")
    flow.offer(("update", "A", {"y": "text"}), 0.0, qos="b")
    flow.offer(("subscribe", "q", "x >"), 0.0, qos="a")
    flow.offer(("unsubscribe", "nobody"), 0.0, qos="a")
    while flow.step(lambda: 1.0):
        flow.check()
    found = flow.balance()
    assert {kind: part["rejected"] for kind, part in found.items()} == dict.fromkeys(found, 1)
    assert {name: part["rejected"] for name, part in flow.by_class().items()} == {"a": 2, "b": 2}
    assert len(flow.latency) == 1


def test_contexts_by_name_and_by_index_go_through_one_flow() -> None:
    f = Filter()
    f.subscribe("p", "x > ctx.y", context="A")
    (a,) = f.context_index(["A"]).tolist()
    flow = Flow(f, Batch("no outdated state"))
    flow.offer(("update", "A", {"y": 3}), 0.0)
    flow.offer(("update", a, {"y": 1}), 0.0)
    flow.offer({"x": 2}, 0.0)
    flow.offer(EventLog.merge(updates={"context": np.array([a]), "attribute": ["y"], "value": [5.0]}), 0.0)
    found = []
    while (done := flow.step(lambda: 1.0)) is not None:
        found += list(done[1])
    assert f.context("A") == {"y": 5} and flow.balance()["update"]["delivered"] == 3 and len(found) <= 1


def test_a_broken_balance_is_found() -> None:
    flow = Flow()
    flow.offer({"x": 1}, 0.0)
    flow.queue.waiting[0, 0] += 1
    with pytest.raises(InvariantError):
        flow.check()


def test_a_flow_says_how_much_room_it_has() -> None:
    flow = Flow(capacity=2)
    flow.offer({"x": 1}, 0.0)
    assert flow.room == 1
    work = flow.take(0.0)
    assert work is not None and flow.room == 1
    flow.done(work, Matches.of([]), 0.1)
    assert flow.room == 2 and Flow().room is None
    with pytest.raises(UsageError, match="capacity"):
        Flow(capacity=0)


# -- doubt -----------------------------------------------------------------------------------------------------


def test_shed_updates_leave_doubt_until_the_next_of_the_same_value() -> None:
    flow = Flow(Filter(), Traditional())
    flow.offer(("update", "A", {"y": 1}), 0.0)
    flow.offer(("update", "B", {"y": 1}), 0.0)
    flow.thin(flow.queue.waiting.copy())
    assert flow.doubt.to_dict() == {"missed": 0, "suspect": 0, "outdated": 2}
    flow.offer({"x": 1}, 0.0)
    flow.offer(("update", "A", {"y": 2}), 0.0)
    flow.offer(("update", "B", {"y": 2}), 0.0)
    flow.offer({"x": 1}, 0.0)
    while flow.step(lambda: 1.0):
        pass
    assert flow.doubt.to_dict() == {"missed": 0, "suspect": 1, "outdated": 0}


def test_messages_that_updates_passed_are_suspect() -> None:
    flow = Flow(Filter(), Batch("no outdated state"))
    for event in ({"x": 1}, ("update", "A", {"y": 2}), {"x": 1}):
        flow.offer(event, 0.0)
    flow.step(lambda: 1.0)
    assert flow.doubt.suspect == 1


def test_a_hybrid_takes_larger_slices_where_a_log_costs_much_in_itself() -> None:
    def first(fixed: float) -> int:
        flow = Flow(policy=Hybrid(0.1), costs=Costs(message=1e-3, update=1e-5, fixed=fixed))
        flow.offer(EventLog.of_messages({"x": np.arange(50)}), 0.0)
        work = flow.take(0.0)
        assert work is not None
        return work.messages

    assert first(0.0) == 6  # a sixteenth of the bound
    assert first(5e-5) == 12  # 256 times what a log costs in itself
    assert first(1e-3) == 24  # a quarter of the bound


def test_a_class_that_is_not_there_is_refused_where_it_is_offered() -> None:
    log = EventLog.of_messages({"x": [1, 2, 3]})
    chunk = Chunk(log, 0.0, np.array([0, 1, 4], np.int16))
    flow = Flow(policy=Batch(), classes={"a": 1, "b": 2})
    flow.offer_chunk(chunk, 0.0, 0, 2)
    with pytest.raises(UsageError, match="class number 4, of 2 classes"):
        flow.offer_chunk(chunk, 0.0, 2)
    assert flow.queued == 2
    flow.check()
