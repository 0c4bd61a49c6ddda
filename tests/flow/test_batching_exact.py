"""Batches give what one event at a time gives: every structure, strategy and grouping against the reference."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configurations import BATCHED
from contract import VOCABULARY
from tamis import EventLog, Filter, ReferenceFilter
from tamis.engine import batches
from tamis.model.batching import Batching
from tamis.testing import Mix, Vocabulary, differences, random_log

MIXES = (
    Mix(messages=0.5, updates=0.45, subscribes=0.04, unsubscribes=0.01, effects=0.0, open_kinds=0.0),
    Mix(messages=0.15, updates=0.84, subscribes=0.01, unsubscribes=0.0, effects=0.0, absent=0.3),
    Mix(messages=0.9, updates=0.05, subscribes=0.05, unsubscribes=0.0, effects=0.0, wrong=0.1),
)


class Counted:
    """How many segments were batched: a test in which none is proves nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        real = batches.Batches.run

        def run(*arguments: Any) -> Any:
            self.runs += 1
            return real(*arguments)

        monkeypatch.setattr(batches.Batches, "run", run)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", BATCHED)
def test_random_logs(name: str, seed: int, counted: Counted) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary(edges=(0.0, 0.15, 0.5, 0.0)[seed], contexts=("A", "B", "C", "D")[: 1 + seed])
    filter, reference = BATCHED[name](), ReferenceFilter()
    for part, mix in enumerate(MIXES):
        for columnar in (False, True):
            log = random_log(rng, 150, vocabulary, mix, columnar=columnar)
            assert differences(filter, reference, log) == [], f"part {part}"
            filter.check()
    assert counted.runs > 0


@pytest.mark.parametrize("name", ["batched blocks", "batched skiplist", "batched messages"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), events=st.integers(2, 60), size=st.integers(1, 30))
def test_any_cut(name: str, seed: int, events: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    filter, reference = BATCHED[name](schema=VOCABULARY.schema()), ReferenceFilter(schema=VOCABULARY.schema())
    filter.batching = Batching(filter.batching.strategy, size, filter.batching.grouping)
    for _ in range(2):
        assert differences(filter, reference, random_log(rng, events, VOCABULARY, MIXES[0])) == []
    filter.check()


def crowd(rng: np.random.Generator, filter: Any, profiles: int) -> None:
    """Profiles around contexts of their own, and as many around constants."""
    filter.context_index([f"c{i}" for i in range(profiles)])
    names = [f"c{i}" for i in range(profiles)]
    for name in ("a", "b"):
        filter.update_many(names, name, rng.uniform(0, 100, profiles))
    around = "a between ctx.a - {w} and ctx.a + {w} and b between ctx.b - 9 and ctx.b + 9 and c >= {l}"
    table = {"id": np.arange(profiles), "context": names, "w": rng.uniform(1, 9, profiles)}
    filter.subscribe_many(around, {**table, "l": rng.uniform(0, 90, profiles)})
    low = rng.uniform(0, 90, profiles)
    constant = {"id": np.arange(profiles, 2 * profiles), "l": low, "h": low + 10, "k": rng.integers(0, 5, profiles)}
    filter.subscribe_many("a between {l} and {h} and d == {k}", constant)


def drift(rng: np.random.Generator, messages: int, updates: int, contexts: int) -> EventLog:
    """Messages with so many updates before each."""
    sent = {name: rng.uniform(0, 100, messages) for name in "abc"}
    sent["d"] = rng.integers(0, 5, messages).astype(float)
    total = messages * updates
    moves = {
        "context": [f"c{i}" for i in rng.integers(0, contexts, total)],
        "attribute": [("a", "b")[i] for i in rng.integers(0, 2, total)],
        "value": rng.uniform(0, 100, total),
        "seq": np.arange(total),
    }
    return EventLog.merge(messages={**sent, "seq": np.arange(1, messages + 1) * updates - 1}, updates=moves)


@pytest.mark.parametrize("name", BATCHED)
def test_crowds_that_drift(name: str, counted: Counted) -> None:
    rng = np.random.default_rng(5)
    filter, reference = BATCHED[name](), Filter(strategy="noindex")
    filter.batching = Batching(filter.batching.strategy, 64, filter.batching.grouping)
    for one in (filter, reference):
        crowd(np.random.default_rng(3), one, 400)
    for updates in (0, 1, 30, 3, 0):
        log = drift(rng, 120, updates, 400)
        assert filter.process(log) == reference.process(log)
        filter.check()
    assert counted.runs > 0


@pytest.mark.parametrize("name", BATCHED)
def test_values_that_repeat(name: str) -> None:
    rng = np.random.default_rng(9)
    filter, reference = BATCHED[name](), Filter(strategy="noindex")
    filter.batching = Batching(filter.batching.strategy, 100, filter.batching.grouping)
    for one in (filter, reference):
        crowd(np.random.default_rng(4), one, 300)
    few = rng.uniform(0, 100, 12)
    sent = {key: rng.choice(few, 400) for key in "abc"} | {"d": rng.integers(0, 5, 400).astype(float)}
    assert filter.match_many(sent) == reference.match_many(sent)


@pytest.mark.parametrize("name", BATCHED)
def test_batches_whose_messages_are_all_rejected(name: str, counted: Counted) -> None:
    """The entries of a context that races are returned always: nobody may ask which message met them in vain."""
    schema = {"x": "number", "ctx.x": "number"}
    filter, reference = BATCHED[name](schema=schema), ReferenceFilter(schema=schema)
    for one in (filter, reference):
        one.subscribe_many("x < ctx.x", {"id": range(4), "context": list("AABB")})
    for at in range(3):
        sent: list[Any] = [float(k % 7) for k in range(40)] + ["seven"] * 700 + [3.0] * 40
        builder = EventLog.builder()
        for k, x in enumerate(sent):
            builder.update("AB"[k % 2], {"x": (k * (at + 3)) % 11})
            builder.message({"x": x})
        log = builder.build()
        assert differences(filter, reference, log) == []
        filter.check()
    assert counted.runs > 0


@pytest.mark.parametrize("change", ["effect", "track"])
def test_what_messages_change_is_seen_by_the_next(change: str, counted: Counted) -> None:
    f = Filter(index="skiplist", batching=Batching("MiniB/PIx", 100))
    f.update("A", stock=10)
    if change == "effect":
        f.subscribe("w", "quantity <= ctx.stock", context="A", on_match="ctx.stock -= quantity")
    else:
        f.subscribe("w", "quantity <= ctx.stock", context="A")
        f.track("A", "stock = 10 - quantity * n")
    found = f.match_many({"quantity": [4.0, 4.0, 4.0], "n": [1.0, 2.0, 3.0]})
    assert found.message.tolist() == [0, 1]
    assert counted.runs == 0
    if change == "effect":
        f.unsubscribe("w")
        f.subscribe("v", "quantity >= 0")
        assert len(f.match_many({"quantity": [4.0, 4.0, 4.0]})) == 3
        assert counted.runs == 1


def test_profiles_with_several_clauses_match_once() -> None:
    for name, make in BATCHED.items():
        f = make()
        f.subscribe("p", "a > 1 or b > 1 or a + b > 3")
        found = f.match_many({"a": [0.0, 2.0, 2.0], "b": [0.0, 0.0, 2.0]})
        assert list(found) == [(1, "p"), (2, "p")], name


def test_saved_filters_know_how_they_batch() -> None:
    f = BATCHED["batched both"]()
    f.subscribe("p", "a > 1")
    with tempfile.TemporaryDirectory() as folder:
        f.save(Path(folder) / "f")
        assert Filter.load(Path(folder) / "f").batching == f.batching


def test_costs_are_told(counted: Counted) -> None:
    f = Filter(index="skiplist", batching="MiniB/PIx/MIx")
    crowd(np.random.default_rng(1), f, 200)
    f.process(drift(np.random.default_rng(2), 200, 2, 200))
    costs = f.batch_costs
    assert all(costs[stage] > 0 for stage in ("group", "profile_index", "sort_messages", "postfilter", "restore_order"))
    assert costs["minibatches"] == -(-200 // 16)
    assert costs["union_sets"] > 0


@pytest.mark.parametrize("name", BATCHED)
def test_batches_that_touch_nearly_all_contexts(name: str, counted: Counted) -> None:
    rng = np.random.default_rng(11)
    filter, reference = BATCHED[name](), Filter(strategy="noindex")
    filter.batching = Batching(filter.batching.strategy, 64, filter.batching.grouping)
    names = [f"c{i}" for i in range(600)]
    shapes = (
        "a > ctx.a and a < ctx.a + {w} and b between ctx.b - 9 and ctx.b + 9",
        "a between ctx.a - {w} and ctx.a + {w} or b > ctx.b and c < {w}",
        "a <= ctx.a and a * 2 + b > ctx.b and c >= {w} and ctx.a > 20",
    )
    for one in (filter, reference):
        own = np.random.default_rng(12)
        for attribute in ("a", "b"):
            one.update_many(names, attribute, np.round(own.uniform(0, 100, len(names))))
        for k, shape in enumerate(shapes):
            mine = names[k :: len(shapes)]
            one.subscribe_many(shape, {"id": mine, "context": mine, "w": np.round(own.uniform(1, 9, len(mine)))})
        one.subscribe_many("a between {l} and {l} + 5", {"id": np.arange(20), "l": np.round(own.uniform(0, 90, 20))})
    for updates in (40, 5, 40):
        log = drift(rng, 150, updates, len(names))
        assert filter.process(log) == reference.process(log)
        filter.check()
    assert counted.runs > 0


def test_an_index_of_which_most_is_touched_is_not_asked() -> None:
    f = Filter(index="skiplist", strategy="agile", batching=Batching("MiniB/PIx", 64))
    crowd(np.random.default_rng(1), f, 200)
    for id in range(205, 400):
        f.unsubscribe(id)
    before = f.batch_costs["union_sets"]
    f.process(drift(np.random.default_rng(2), 64, 40, 200))
    # The constant profiles, and those on the odd context that none of 2,560 updates touched.
    assert f.batch_costs["union_sets"] - before < 10
