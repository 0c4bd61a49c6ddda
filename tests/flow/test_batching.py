"""Groupings, batch control, the tuner, the cost model and the latency model."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import EventLog, Filter, UsageError
from tamis.flow import (
    STRATEGIES,
    BatchControl,
    Batching,
    CostModel,
    Grouping,
    LatencyModel,
    Tuner,
    Tuning,
    by_value,
    fixed_number,
    fixed_size,
)
from tamis.flow.batching import FULL, FULL_MIX, MINI, MINI_MIX, PREDICTS, UNBATCHED

# -- grouping --------------------------------------------------------------------------------------------------

groupings = st.one_of(
    st.builds(fixed_size, st.integers(1, 9)),
    st.builds(fixed_number, st.integers(1, 9), least=st.integers(1, 4), most=st.integers(4, 9)),
    st.builds(
        lambda ranges, least, most: by_value(*ranges, least=least, most=most),
        st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=2),
        st.integers(1, 4),
        st.integers(4, 9),
    ),
)
numbers = st.sampled_from([0.0, 0.2, 1.0, 1.5, 2.0, 7.0, float("nan"), float("inf"), -3.0])


@given(grouping=groupings, rows=st.lists(st.tuples(numbers, numbers), max_size=40))
def test_every_message_is_in_one_minibatch(grouping: Grouping, rows: list[tuple[float, float]]) -> None:
    columns = [np.array([row[k] for row in rows]) for k in range(2)]
    order, starts = grouping.split(columns)
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert starts[0] == 0 and starts[-1] == len(rows)
    sizes = np.diff(starts)
    assert (sizes > 0).all() and (sizes <= grouping.most).all()
    if len(sizes) > 1 and grouping.most == 1 << 20:
        assert (sizes[:-1] >= grouping.least).all()


@pytest.mark.parametrize("strategy", [FULL, FULL_MIX, MINI, MINI_MIX])
def test_a_batch_without_messages_has_no_minibatch(strategy: str) -> None:
    order, starts = Batching(strategy, 9).split([np.zeros(0), np.zeros(0)])
    assert order.tolist() == [] and starts.tolist() == [0]


def test_groupings_of_figure_3() -> None:
    first, second = np.array([1, 1, 1, 1, 1, 2, 2, 2.0]), np.array([1, 1, 3, 3, 4, 1, 1, 2.0])
    sizes = {name: np.diff(g.split([first, second])[1]).tolist() for name, g in FIGURE_3.items()}
    assert sizes == {
        "fixed-size: 2 messages": [2, 2, 2, 2],
        "fixed-number: 3 batches": [3, 3, 2],
        "value-based: 1 attribute": [5, 3],
        "value-based: 2 attributes": [2, 2, 1, 2, 1],
        "hybrid: at least 2": [2, 2, 4],
        "hybrid: at most 3": [3, 2, 3],
    }


FIGURE_3 = {
    "fixed-size: 2 messages": fixed_size(2),
    "fixed-number: 3 batches": fixed_number(3),
    "value-based: 1 attribute": by_value(1),
    "value-based: 2 attributes": by_value(1, 1),
    "hybrid: at least 2": by_value(1, 1, least=2),
    "hybrid: at most 3": by_value(1, most=3),
}


def test_values_in_the_same_range_lie_together_whatever_lies_between() -> None:
    first, second = np.array([10.0, 12.0, 11.0, 13.0]), np.array([0.0, 100.0, 1.0, 101.0])
    order, starts = by_value(10, 50).split([first, second])
    assert [sorted(order[a:b].tolist()) for a, b in pairwise(starts.tolist())] == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: fixed_size(0),
        lambda: fixed_number(3, least=5, most=4),
        lambda: by_value(),
        lambda: by_value(0.0),
        lambda: by_value(float("nan")),
        lambda: Grouping("nonsense"),  # type: ignore[arg-type]
        lambda: Batching("MiniB"),
        lambda: Batching(size=0),
        lambda: Batching(least=1),
        lambda: Batching(least=True),
        lambda: Batching(grouping=3),  # type: ignore[arg-type]
        lambda: Batching.of(7),
        lambda: Filter(batching="Mini"),
        lambda: Filter(index="blocks", batching=FULL),
        lambda: BatchControl(0),
        lambda: BatchControl(5, -1.0),
        lambda: Tuner(8, least=9),
        lambda: Tuning(Filter()),
        lambda: CostModel(10, (0.1, 0.1)).cost("Mini"),
    ],
)
def test_what_is_wrong_is_refused_with_what_was_expected(make: object) -> None:
    with pytest.raises(UsageError, match=r"expected|needs|choose"):
        make()  # type: ignore[operator]


def test_batchings_are_plain_values() -> None:
    for strategy in STRATEGIES:
        one = Batching(strategy, 100, by_value(1, 4, least=3), least=7)
        assert Batching.of(one.to_dict()) == one == Batching.of(one)
    assert Batching.of("MiniB/PIx") == Batching()
    assert set(PREDICTS) == set(STRATEGIES)


def test_logs_with_fewer_messages_than_the_least_are_not_batched() -> None:
    f = Filter(index="skiplist", batching=Batching(MINI, 64, fixed_size(4), least=10))
    f.subscribe("p", "a > 1")
    for count, minibatches in ((9, 0), (10, 3), (25, 10)):
        assert len(f.match_many({"a": np.arange(float(count))})) == count - 2
        assert f.batch_costs["minibatches"] == minibatches


# -- batch control ---------------------------------------------------------------------------------------------


@given(
    gaps=st.lists(st.sampled_from([0.0, 0.1, 1.0]), max_size=30),
    size=st.integers(1, 5),
    patience=st.sampled_from([0.0, 0.5]),
)
def test_nothing_is_lost_or_taken_twice(gaps: list[float], size: int, patience: float) -> None:
    control, now, taken = BatchControl(size, patience), 0.0, []
    for i, gap in enumerate(gaps):
        now += gap
        control.offer(i, now)
        if i % 3 == 0:
            batch = control.take(now)
            assert len(batch) <= size
            taken += [message for message, _ in batch]
        assert control.offered == control.taken + len(control)
    while len(control):
        taken += [message for message, _ in control.take(now + patience)]
    assert taken == list(range(len(gaps)))


def test_a_batch_waits_until_it_is_full_or_its_first_message_is_old() -> None:
    control = BatchControl(3, patience=1.0)
    assert control.take(0.0) == []
    control.offer("a", 0.0)
    control.offer("b", 0.9)
    assert not control.due(0.95) and control.take(0.95) == []
    assert control.take(1.0) == [("a", 0.0), ("b", 0.9)]
    for name in "cdef":
        control.offer(name, 2.0)
    assert [message for message, _ in control.take(2.0)] == ["c", "d", "e"]


# -- tuning ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 16, 4_096])
@pytest.mark.parametrize("best", [1, 7, 40, 600, 4_096])
def test_the_tuner_finds_a_single_minimum(start: int, best: int) -> None:
    def cost(size: int) -> float:
        return 10.0 + 50.0 / size * best + 50.0 * size / best

    tuner = Tuner(start)
    for _ in range(80):
        tuner.report(cost(tuner.size))
    assert cost(tuner.best) <= 1.1 * min(cost(size) for size in range(1, 4_097))


def test_the_tuner_bears_noise_and_follows_a_change() -> None:
    rng = random.Random(3)

    def cost(size: int, best: float) -> float:
        return (10.0 + 5.0 * best / size + 5.0 * size / best) * rng.uniform(1.0, 1.2)

    tuner = Tuner(4, trials=4, rest=4)
    for best in (100.0, 8.0):
        for _ in range(600):
            tuner.report(cost(tuner.size, best))
        assert best / 3 <= tuner.best <= best * 3


def test_tuning_sizes_the_minibatches_of_a_filter() -> None:
    clock = iter(range(1_000))
    f = Filter(index="skiplist", batching=Batching(MINI, 64, by_value(10, 40)))
    f.subscribe("p", "a > 1 and b > 1")
    tuning = Tuning(f, Tuner(8), lambda: float(next(clock)))
    log = EventLog.of_messages({"a": [0.0, 2.0], "b": [2.0, 2.0]})
    widths = []
    for _ in range(4):
        assert list(tuning.process(log)) == [(1, "p")]
        assert f.batching is not None
        widths.append(f.batching.grouping.ranges)
    assert widths[0] == (10.0, 40.0) and widths[1] == (15.0, 60.0)
    assert all(second == 4 * first for first, second in widths)


# -- models ----------------------------------------------------------------------------------------------------


def test_the_cost_model_has_the_order_of_the_paper() -> None:
    model = CostModel(500_000, (0.03, 0.083))
    alike, whole = (0.02, 0.08), (1.0, 1.0)
    large = {
        UNBATCHED: model.cost(UNBATCHED),
        FULL: model.cost(FULL, 10_000, whole),
        FULL_MIX: model.cost(FULL_MIX, 10_000),
        MINI: model.cost(MINI, 64, (0.0, 0.0)),
        MINI_MIX: model.cost(MINI_MIX, 64, (0.0, 0.0)),
    }
    assert min(large, key=lambda name: large[name]) == MINI
    assert max(large, key=lambda name: large[name]) == FULL
    assert model.cost(FULL_MIX, 1) > model.cost(UNBATCHED) > model.cost(FULL_MIX, 1_000)
    gains = [model.cost(UNBATCHED) / model.cost(MINI, n, (0.0, 0.0)) for n in (1, 2, 10, 100)]
    assert gains == sorted(gains) and gains[0] == 1.0
    assert model.cost(MINI, 16, (0.0, 0.0)) < model.cost(MINI, 16, alike) < model.cost(MINI, 16, whole)


def test_the_cost_model_orders_the_work_that_filters_do() -> None:
    """The model's union sets and tests, against those that are counted: the same order of strategies and groupings."""
    rng = np.random.default_rng(1)
    profiles, domain, half = 4_000, 1_000.0, (15.0, 40.0)
    f = Filter(index="skiplist", strategy="eager", indexed=("a", "b"))
    middle = rng.uniform(0, domain, (profiles, 2))
    table = {"id": np.arange(profiles)}
    for k, name in enumerate("ab"):
        table |= {f"{name}l": middle[:, k] - half[k], f"{name}h": middle[:, k] + half[k]}
    f.subscribe_many("a between {al} and {ah} and b between {bl} and {bh}", table)
    sent = {name: rng.uniform(0, domain, 2_000) for name in "ab"}
    model = CostModel(profiles, (2 * half[0] / domain, 2 * half[1] / domain))
    ways = {
        (FULL, None): (1.0, 1.0),
        (MINI, (300.0, 300.0)): (0.3, 0.3),
        (MINI, (100.0, 300.0)): (0.1, 0.3),
        (MINI, (40.0, 150.0)): (0.04, 0.15),
    }
    counted, predicted = [], []
    for (strategy, ranges), spread in ways.items():
        f.batching = Batching(strategy, 2_000, by_value(*ranges) if ranges else fixed_size(16))
        before, tests = f.batch_costs, f.stats["postfiltered"]
        f.match_many(sent)
        costs = f.batch_costs
        union = (costs["union_sets"] - before["union_sets"]) / (costs["minibatches"] - before["minibatches"])
        counted.append((union, f.stats["postfiltered"] - tests))
        predicted.append(model.union(spread))
        assert 0.5 < union / model.union(spread) < 1.5
    assert np.argsort([union for union, _ in counted]).tolist() == np.argsort(predicted).tolist()
    assert [tests for _, tests in counted] == sorted((tests for _, tests in counted), reverse=True)


def test_a_latency_bounds_the_batch() -> None:
    model = LatencyModel(450.0, 1 / 450.0, lambda size: 1.0 + size**0.25)
    sizes = [model.bound(seconds) for seconds in (0.001, 0.01, 0.1, 1.0, 10.0)]
    assert sizes[0] == 0 and sizes == sorted(sizes)
    for seconds, size in zip((0.1, 1.0, 10.0), sizes[2:], strict=True):
        assert model.maximum(size) <= seconds < model.maximum(size + 1)
        assert model.matching(size) < model.average(size) < model.maximum(size)
