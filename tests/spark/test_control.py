"""Quality of service inside Spark: the order of a micro-batch, what is shed, and that a second attempt does the
same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import EventLog, Filter, Matches, ReferenceFilter, UsageError
from tamis.engine.shard import Found, Shard
from tamis.flow import Batch, Hybrid, Shed, Traditional, debt
from tamis.spark import match_stream
from tamis.spark.control import controlled, read_qos
from tamis.testing import compare, random_log


def pairs(found: Found) -> Matches:
    ids = found.profile if isinstance(found.profile, list) else found.profile.to_pylist()
    return Matches.of(zip(found.message.tolist(), ids, strict=True))


@pytest.mark.parametrize(
    "policy", [Batch(limit=1e-4), Traditional(), Hybrid(1e6), Batch(latency=1e6), Shed(1e6)], ids=str
)
def test_a_log_under_a_policy_that_sheds_nothing_equals_the_reference(policy: Any) -> None:
    rng = np.random.default_rng(7)
    log = random_log(rng, 200)
    shard = Shard(0, 1)
    done = controlled(log, lambda part: shard.process(part, None, None), policy, None, 1)
    expected = ReferenceFilter().process(log)
    assert compare(pairs(done.found), Matches.of(expected)) == [] and not done.shed
    assert sorted((kind, row) for kind, row, _ in done.found.rejected) == sorted(
        (r.kind, r.row) for r in expected.rejected
    )
    assert done.memory["spent"] > 0 and json.loads(json.dumps(done.memory)) == done.memory


def test_what_is_shed_is_named_and_the_rest_is_as_it_would_be_without_it() -> None:
    rng = np.random.default_rng(8)
    log = EventLog.merge(messages={"x": rng.random(500)})
    f = Filter()
    f.subscribe("p", "x > 0.5")

    def process(part: EventLog) -> Found:
        found = f.process(part)
        return Found(found.message, list(found.profile), np.zeros(len(found), np.int64), [])

    done = controlled(log, process, Hybrid(0.02, "messages"), None, 3)
    lost = {row for kind, row in done.shed if kind == "message"}
    assert 0 < len(lost) < 500 and len(lost) == len(done.shed)
    assert set(done.found.message.tolist()) == set(np.flatnonzero(np.asarray(log.column("x")) > 0.5).tolist()) - lost
    again = controlled(log, process, Hybrid(0.02, "messages"), None, 3)
    assert again.shed == done.shed, "a second attempt must shed the same"
    later = controlled(log, process, Hybrid(0.02, "messages"), {**done.memory, "spent": 1.0}, 3)
    assert len(later.shed) == 500, "what has waited longer than the bound is late"


def test_updates_that_a_micro_batch_had_no_time_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debt, "PINNED", 0)  # what is put off moves into a chunk of its own at once
    rng = np.random.default_rng(9)
    n = 4_000
    names = [f"c{k}" for k in rng.integers(3_000, size=n)]
    log = EventLog.merge(
        messages={"x": rng.random(50), "seq": np.arange(50) * 80},
        updates={"context": names, "attribute": "y", "value": np.arange(n) * 1.0, "seq": np.arange(n) * 1.0 + 0.5},
    )
    f = Filter()
    for k in range(3_000):
        f.subscribe(f"p{k}", "x > ctx.y", context=f"c{k}")

    def process(part: EventLog) -> Found:
        found = f.process(part)
        return Found(found.message, list(found.profile), np.zeros(len(found), np.int64), [])

    done = controlled(log, process, Hybrid(0.003, "updates"), None, 3)
    lost = [row for kind, row in done.shed if kind == "update"]
    assert 0 < len(lost) == len(set(lost)) == len(done.shed)
    kept = np.setdiff1d(np.arange(n), lost)
    expected = {names[row]: float(row) for row in kept.tolist()}  # the last of each that was not lost
    assert {name: f.context(name).get("y") for name in expected} == expected


def test_a_wish_and_a_consistency_become_a_policy() -> None:
    assert read_qos(None) is None and read_qos("") is None and read_qos("no errors") is None and read_qos([]) is None
    assert read_qos(None, "no outdated state") == Batch("no outdated state")
    assert read_qos("latency <= 5s", "no premature state") == Hybrid(5.0, consistency="no premature state")
    with pytest.raises(UsageError, match="consistency: expected one of 'serial'"):
        read_qos(None, "fresh")
    with pytest.raises(UsageError, match="two orders"):
        read_qos("fresh state", "no premature state")


# -- on Spark --------------------------------------------------------------------------------------------------

SCHEMA = "seq bigint, event string, context string, attribute string, value double, id string, profile string, x double"


def stream(spark: Any, where: Path, events: list[dict[str, Any]], **options: Any) -> dict[str, list[Any]]:
    """One micro-batch of events; matches, rejected events and figures."""
    (where / "in").mkdir(parents=True)
    lines = (json.dumps({"seq": k, **event}) for k, event in enumerate(events))
    (where / "in" / "events.json").write_text("\n".join(lines), encoding="utf-8")
    frame = spark.readStream.schema(SCHEMA).json(str(where / "in"))
    matching = match_stream(events=frame, **options)
    found: dict[str, list[Any]] = {"matches": [], "rejected": [], "figures": []}
    query = matching.start(
        str(where / "checkpoint"),
        matches=lambda frame, batch: found["matches"].extend((row.seq, row.profile) for row in frame.collect()),
        rejected=lambda frame, batch: found["rejected"].extend(frame.collect()),
        figures=lambda frame, batch: found["figures"].extend(json.loads(row.figures) for row in frame.collect()),
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    return found


def test_the_consistency_of_a_micro_batch(spark: Any, tmp_path: Path) -> None:
    events = [
        {"event": "subscribe", "id": "p", "profile": "x > ctx.y", "context": "A"},
        {"event": "update", "context": "A", "attribute": "y", "value": 5.0},
        {"event": "message", "x": 4.0},
        {"event": "update", "context": "A", "attribute": "y", "value": 3.0},
        {"event": "message", "x": 4.0},
    ]
    assert stream(spark, tmp_path / "serial", events)["matches"] == [(4, "p")]
    fresh = stream(spark, tmp_path / "fresh", events, consistency="no outdated state")
    assert sorted(fresh["matches"]) == [(2, "p"), (4, "p")]
    assert stream(spark, tmp_path / "premature", events, qos="no premature state")["matches"] == []


def test_what_breaks_the_bound_is_shed_rejected_and_counted(spark: Any, tmp_path: Path) -> None:
    subscribe = {"event": "subscribe", "id": "p", "profile": "x >= 0", "context": None}
    events = [subscribe, *({"event": "message", "x": float(k)} for k in range(400))]
    found = stream(spark, tmp_path, events, shards=1, qos=["latency <= 10ms", "no false positives"])
    lost = {row.seq for row in found["rejected"]}
    assert 0 < len(lost) < 400
    assert all(row.event == "message" and "shed by shard 0" in row.reason for row in found["rejected"])
    assert {seq for seq, _ in found["matches"]} == set(range(1, 401)) - lost
    assert sum(one["shed_messages"] for one in found["figures"]) == len(lost)
