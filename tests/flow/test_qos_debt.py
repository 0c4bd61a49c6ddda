"""Updates that a flow puts off are worked later, never after a later one of their value, and leave no error behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tamis import EventLog, Filter
from tamis.flow import Chunk, Costs, Flow, Hybrid, Shed
from tamis.flow import debt as debts
from tamis.flow.costs import FIRST
from tamis.flow.values import Latest


def updates(rng: np.random.Generator, count: int, contexts: int = 20) -> dict[str, Any]:
    return {
        "context": [f"c{k}" for k in rng.integers(contexts, size=count)],
        "attribute": "y",
        "value": rng.random(count),
    }


def filled(policy: Any = None) -> tuple[Flow, Filter]:
    f = Filter()
    for k in range(20):
        f.subscribe(f"p{k}", "x <= ctx.y", context=f"c{k}")
    return Flow(f, policy or Hybrid(1.0), costs=Costs(message=0.01, update=0.001)), f


def test_what_is_put_off_is_worked_when_there_is_time() -> None:
    flow, f = filled()
    flow.offer(("update", "c0", {"y": 1.0}), 0.0)
    flow.offer(("update", "c1", {"y": 2.0}), 0.0)
    flow.put_off(flow.queue.waiting.copy())
    assert len(flow.queue) == 0 and flow.balance()["update"]["queued"] == 2 == flow.doubt.outdated
    flow.check()
    while flow.step(lambda: 0.1):
        flow.check()
    assert f.context("c0") == {"y": 1.0} and f.context("c1") == {"y": 2.0}
    assert flow.balance()["update"] == {"in": 2, "delivered": 2, "shed": 0, "rejected": 0, "queued": 0}
    assert flow.doubt.outdated == 0


def test_a_later_update_of_the_value_makes_one_that_was_put_off_pointless() -> None:
    flow, f = filled()
    shed: list[int] = []
    flow.on_shed = lambda pieces, now: shed.extend(i for piece in pieces for i in piece.seq.tolist())
    flow.offer(("update", "c0", {"y": 1.0}), 0.0)
    flow.offer(("update", "c1", {"y": 1.0}), 0.0)
    flow.put_off(flow.queue.waiting.copy())
    flow.offer(("update", "c0", {"y": 5.0}), 0.1)
    while flow.step(lambda: 0.2):
        flow.check()
    assert shed == [0] and f.context("c0") == {"y": 5.0} and f.context("c1") == {"y": 1.0}
    assert flow.doubt.outdated == 0


def test_names_and_indices_of_contexts_never_pass_each_other() -> None:
    flow, f = filled()
    (zero,) = f.context_index(["c0"]).tolist()
    flow.offer(("update", "c0", {"y": 1.0}), 0.0)
    flow.put_off(flow.queue.waiting.copy())
    flow.offer(("update", zero, {"y": 7.0}), 0.1)  # the same value under another name: what was put off goes
    while flow.step(lambda: 0.2):
        flow.check()
    assert f.context("c0") == {"y": 7.0} and flow.balance()["update"]["shed"] == 1


def test_few_updates_do_not_keep_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debts, "PINNED", 100)
    rng = np.random.default_rng(1)
    flow, f = filled()
    last: dict[str, float] = {}
    for _ in range(30):
        some = updates(rng, 40)
        last |= dict(zip(some["context"], some["value"].tolist(), strict=True))
        flow.offer(EventLog.merge(updates=some), 0.0)
        flow.put_off(flow.queue.waiting.copy())
        flow.check()
        assert flow.debt._pinned <= 100 + 4 * len(flow.debt)
    assert len(flow.debt) == len(last)
    while flow.step(lambda: 0.1):
        flow.check()
    assert {name: f.context(name)["y"] for name in last} == last


def test_few_updates_do_not_keep_a_large_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debts, "PINNED", 100)
    flow, f = filled()
    log = EventLog.merge(updates=updates(np.random.default_rng(2), 5_000))
    chunk = Chunk(log, 0.0)
    for low in range(0, 300, 30):
        flow.offer_chunk(chunk, 0.0, low, low + 30)
        flow.put_off(flow.queue.waiting.copy())
        flow.check()
        assert chunk not in flow.debt._chunks and flow.debt._pinned <= 100 + 4 * len(flow.debt)
    assert log.updates is not None
    names, values = (column.to_pylist()[:300] for column in (log.updates.context, log.updates.value))
    while flow.step(lambda: 0.1):
        flow.check()
    assert {name: f.context(name)["y"] for name in names} == dict(zip(names, values, strict=True))


def test_giving_up_sheds_what_was_put_off() -> None:
    flow, _ = filled()
    flow.offer(("update", "c0", {"y": 1.0}), 0.0)
    flow.put_off(flow.queue.waiting.copy())
    flow.give_up()
    flow.check()
    assert flow.balance()["update"] == {"in": 1, "delivered": 0, "shed": 1, "rejected": 0, "queued": 0}
    assert flow.take(1.0) is None and flow.doubt.outdated == 1


def test_superseded_updates_go_first_those_that_fewest_messages_see() -> None:
    flow, _ = filled()
    events: list[Any] = [("update", "c0", {"y": 1.0}), {"x": 1}, {"x": 2}, ("update", "c0", {"y": 2.0})]
    events += [("update", "c1", {"y": 1.0}), ("update", "c1", {"y": 2.0}), ("update", "c2", {"y": 1.0})]
    for event in events:
        flow.offer(event, 0.0)
    shed: list[int] = []
    flow.on_shed = lambda pieces, now: shed.extend(i for piece in pieces for i in piece.seq.tolist())
    every = np.arange(1)
    assert flow.supersede(1, np.inf, every) == 1 and shed == [4]  # no message between it and the next one
    assert flow.supersede(9, 0.0, every) == 0
    assert flow.supersede(9, np.inf, every) == 1 and shed == [4, 0]  # the last of each value stays
    flow.check()


def test_no_error_of_a_hybrid_outlives_a_burst_for_long() -> None:
    def state(policy: Any) -> tuple[dict[str, Any], Filter]:
        rng = np.random.default_rng(5)
        flow, f = filled(policy)
        truth = Filter()
        log = EventLog.merge(updates=updates(rng, 20_000))
        truth.process(log)
        chunk = Chunk(log, np.linspace(0.0, 5.0, len(log)))  # 4,000 a second of which 1,000 can be worked
        now, sent = 0.0, 0
        messages = 0
        while sent < len(chunk) or flow.queued:
            until = chunk.until(now)
            flow.offer_chunk(chunk, now, sent, until)
            sent = until
            if messages < now * 10:
                flow.offer({"x": 0.5}, now)
                messages += 1
            work = flow.take(now)
            if work is None:
                now = float(chunk.arrival[sent]) if sent < len(chunk) else now
                continue
            matches = f.process(work.log)
            now += work.expected
            flow.done(work, matches, now)
        flow.check()
        same = sum(f.context(f"c{k}") == truth.context(f"c{k}") for k in range(20))
        return {"same": same, "outdated": flow.doubt.outdated, "late": flow.latency.max}, f

    hybrid, _ = state(Hybrid(0.5))
    assert hybrid["same"] == 20 and hybrid["outdated"] == 0 and hybrid["late"] <= 0.5
    assert state(Shed(0.5))[0]["outdated"] > 0


@pytest.mark.parametrize("seed", range(5))
def test_the_latest_of_each_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    latest, naive = Latest(more=1), dict[int, tuple[int, int]]()
    for _ in range(60):
        keys, seqs = rng.integers(0, 30, 12), rng.permutation(1_000)[:12]
        if rng.random() < 0.6:
            beaten = latest.add(keys, seqs, seqs * 2)
            given = [*zip(keys.tolist(), seqs.tolist(), strict=True), *((k, s) for k, (s, _) in naive.items())]
            for k, s in zip(keys.tolist(), seqs.tolist(), strict=True):
                if naive.get(k, (-1, 0))[0] <= s:
                    naive[k] = (s, 2 * s)
            left = sorted([*map(tuple, beaten[:2].T.tolist()), *((k, s) for k, (s, _) in naive.items())])
            assert left == sorted(given)
        else:
            reached = dict(zip(keys.tolist(), seqs.tolist(), strict=True))
            keys, seqs = np.array(list(reached)), np.array(list(reached.values()))
            gone = {int(k) for k in latest.pop_older(keys, seqs)[0]}
            assert gone == {k for k in reached if k in naive and naive[k][0] <= reached[k]}
            naive = {k: v for k, v in naive.items() if k not in gone}
        rows = latest.rows().T.tolist()
        assert rows == [[k, *naive[k]] for k in sorted(naive)] and len(latest) == len(naive)


def test_what_logs_cannot_tell_apart_stays_near_the_usual() -> None:
    rng = np.random.default_rng(1)
    costs = Costs()
    for _ in range(300):  # quiet: a log costs what it costs in itself
        costs.learn(1, 0, 3e-3 * (1 + 0.1 * rng.random()))
        costs.learn(0, 3, 3e-3 * (1 + 0.1 * rng.random()))
    for _ in range(300):  # a burst whose logs all have 25 updates per message
        n = int(rng.integers(50, 100))
        costs.learn(n, 25 * n, (3e-3 + 2e-4 * n) * (1 + 0.1 * rng.random()))
    assert costs.seconds(80, 2_000) == pytest.approx(1.05 * (3e-3 + 2e-4 * 80), rel=0.15)
    assert 0.2 < (costs.message / costs.update) / (FIRST[1] / FIRST[2]) < 5
