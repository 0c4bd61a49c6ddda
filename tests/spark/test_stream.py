"""``match_stream`` equals the reference: any shards, any micro-batches, any restarts, any initial state."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from streams import ARROW, SCHEMA, VOCABULARY, Collected, Expected, Folder, cut, delivered, random_rows

from tamis import ReferenceFilter, TamisError
from tamis.errors import UsageError
from tamis.spark import match_stream, read_contexts, read_kinds, read_profiles, sinks
from tamis.spark.processor import _coarse
from tamis.spark.route import Packer, binned, from_bytes, shard_keys
from tamis.spark.session import prepare
from tamis.spark.sources import FileSource
from tamis.spark.stream import milliseconds
from tamis.testing import _comparable, random_tracks


def run(spark: Any, where: Path, sink: Any, files: int = 2, **options: Any) -> None:
    """All files that are there now, then stop."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(str(where / "in"))
    stream = match_stream(events=events, **options)
    writer = stream.results.writeStream.foreachBatch(sink).option("checkpointLocation", str(where / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def states(spark: Any, where: Path) -> dict[str, dict[str, Any]]:
    """The contexts of a checkpoint."""
    found: dict[str, dict[str, Any]] = {}
    for row in read_contexts(spark, str(where / "checkpoint")).collect():
        value = next((v for v in row.value if v is not None), None)
        found.setdefault(row.context, {})[row.attribute] = value
    return found


@pytest.mark.parametrize(("shards", "seed", "batches"), [(1, 0, 4), (2, 1, 6), (3, 2, 4), (8, 3, 3)])
def test_one_ordered_stream_equals_the_reference(
    spark: Any, tmp_path: Path, shards: int, seed: int, batches: int
) -> None:
    """Deliveries in serial order and rejected events, over random micro-batches and a clean restart."""
    rng = np.random.default_rng(seed)
    tracks = random_tracks(rng, seed % 3)
    rows = random_rows(rng, 600)
    expected = Expected(tracks).add(rows)
    folder, found = Folder(tmp_path / "in"), Collected()
    pieces = cut(rng, rows, batches)
    stop = int(rng.integers(0, len(pieces) - 1))
    for k, piece in enumerate(pieces):
        folder.put(piece, rng, files=2)
        if k in (stop, len(pieces) - 1):
            run(spark, tmp_path, found, shards=shards, track=tracks)
    assert found.deliveries == expected.deliveries
    assert found.rejected == sorted(expected.rejected)
    assert len(expected.deliveries) > 50
    assert len(found.batches) == len(pieces)
    if shards == 2:
        assert_contexts(spark, tmp_path, expected)
        with pytest.raises(Exception, match=r"another number of shards.*read_profiles"):
            folder.put(rows[:1], files=2)
            run(spark, tmp_path, found, shards=3, track=tracks)


def assert_contexts(spark: Any, where: Path, expected: Expected) -> None:
    """The contexts of the checkpoint are those of the reference."""
    state = states(spark, where)
    for name in {*VOCABULARY.contexts, *state}:
        plain = {key: _comparable(value) for key, value in expected.reference.context(name).items()}
        utc = {key: _utc(value) for key, value in state.get(name, {}).items()}
        assert utc == plain


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_another_number_of_shards(spark: Any, tmp_path: Path, seed: int) -> None:
    """What a checkpoint holds goes through files into a new one with more shards, as the documentation says."""
    rng = np.random.default_rng(seed)
    tracks = random_tracks(rng, seed % 3)
    rows = random_rows(rng, 800)
    expected = Expected(tracks).add(rows)
    parts, found = [rows[:400], rows[400:]], [Collected(), Collected()]
    old, new = tmp_path / "two", tmp_path / "three"
    for where, part in zip((old, new), parts, strict=True):
        folder = Folder(where / "in")
        for piece in cut(rng, part, 3):
            folder.put(piece, rng, files=2)
    run(spark, old, found[0], shards=2, track=tracks)
    checkpoint = str(old / "checkpoint")
    read_profiles(spark, checkpoint).write.parquet(str(tmp_path / "profiles"))
    read_contexts(spark, checkpoint).write.parquet(str(tmp_path / "contexts"))
    moved = {name: spark.read.parquet(str(tmp_path / name)) for name in ("profiles", "contexts")}
    run(spark, new, found[1], shards=3, track=tracks, schema=read_kinds(spark, checkpoint), **moved)
    assert found[0].deliveries + found[1].deliveries == expected.deliveries
    assert sorted(found[0].rejected + found[1].rejected) == sorted(expected.rejected)
    assert_contexts(spark, new, expected)
    assert len(found[1].deliveries) > 50


@pytest.mark.parametrize(
    ("order", "places"),
    [("double", [0.5, 1.25, -3.5]), ("date", ["2005-06-14", "2005-06-15", "2005-06-13"]), ("bigint", [2, 3, 1])],
)
def test_profiles_of_a_checkpoint_keep_their_places(spark: Any, tmp_path: Path, order: str, places: list[Any]) -> None:
    """Those of the start come first, by id; the others have the place they were subscribed at; ids may be numbers."""
    start = spark.createDataFrame([(8, 8.0), (7, 7.0)], "id bigint, low double")
    rows = [(places[k], "subscribe", k, f"x > {k} and y < ctx.y", "C", "ctx.y = 1") for k in range(3)]
    given = spark.createDataFrame(
        rows, "at string, event string, id bigint, profile string, context string, on_match string"
    )
    given.selectExpr(f"cast(at as {order}) at", "* except (at)", "0.5D x").write.parquet(str(tmp_path / "in"))
    events = spark.readStream.schema(spark.read.parquet(str(tmp_path / "in")).schema).parquet(str(tmp_path / "in"))
    stream = match_stream(events=events, profiles=start, profile="x > {low}", order="at")
    checkpoint, once = str(tmp_path / "checkpoint"), {"availableNow": True}
    stream.start(checkpoint, figures=lambda frame, _: frame.collect(), trigger=once).awaitTermination()
    found = read_profiles(spark, checkpoint, "at", order)
    assert found.dtypes[:2] == [("at", order), ("id", "bigint")]
    kept = found.orderBy("at", "id").withColumn("at", found["at"].cast("string")).collect()
    assert [row.id for row in kept] == [7, 8, 2, 0, 1]
    assert [str(row.at) for row in kept[2:]] == [str(places[k]) for k in (2, 0, 1)]
    assert tuple(kept[0])[2:] == ("x > 7", None, None)
    assert tuple(kept[3])[2:] == ("x > 0 and y < ctx.y", "C", "ctx.y = 1")


def _utc(value: Any) -> Any:
    """As Spark gives times: naive, in the time zone of this process."""
    if hasattr(value, "astimezone"):
        from datetime import UTC

        return value.astimezone(UTC)
    return _comparable(list(value) if isinstance(value, list) else value)


MESSAGES = "seq bigint, n bigint, x double, y double"
UPDATES = "seq bigint, context string, attribute string, value double"
PROFILES = "seq bigint, id string, profile string, context string, on_match string"
TYPES = {
    "messages": pa.schema([("seq", pa.int64()), ("n", pa.int64()), ("x", pa.float64()), ("y", pa.float64())]),
    "updates": pa.schema(
        [("seq", pa.int64()), ("context", pa.string()), ("attribute", pa.string()), ("value", pa.float64())]
    ),
    "profiles": pa.schema(
        [("seq", pa.int64()), *((name, pa.string()) for name in ("id", "profile", "context", "on_match"))]
    ),
}


def three(rng: np.random.Generator, events: int) -> dict[str, list[dict[str, Any]]]:
    """Messages, updates and profiles with one order among them."""
    rows: dict[str, list[dict[str, Any]]] = {"messages": [], "updates": [], "profiles": []}
    for seq in range(1, events + 1):
        roll, context = rng.random(), f"C{rng.integers(6)}"
        if roll < 0.15:
            id = f"p{rng.integers(20)}"
            gone = rng.random() < 0.2
            text = None if gone else f"x < ctx.low + {rng.integers(10)} and y > {rng.integers(10)}"
            effect = "ctx.low = ctx.low + 1" if rng.random() < 0.3 and not gone else None
            rows["profiles"].append({"seq": seq, "id": id, "profile": text, "context": context, "on_match": effect})
        elif roll < 0.55:
            value = float(rng.integers(20))
            rows["updates"].append({"seq": seq, "context": context, "attribute": "low", "value": value})
        else:
            x, y = rng.integers(0, 20, 2).tolist()
            rows["messages"].append({"seq": seq, "n": 10 * seq, "x": float(x), "y": float(y)})
    return rows


def serial(rows: dict[str, list[dict[str, Any]]]) -> tuple[list[tuple[int, str]], list[tuple[str, int]]]:
    """What the reference delivers and rejects, one event after another."""
    reference, found, rejected = ReferenceFilter(), [], []
    every = sorted((row["seq"], kind, row) for kind, listed in rows.items() for row in listed)
    for seq, kind, row in every:
        if kind == "messages":
            found += [(seq, str(id)) for id in reference.match({"x": row["x"], "y": row["y"], "n": row["n"]})]
        elif kind == "updates":
            reference.update(row["context"], {row["attribute"]: row["value"]})
        elif row["profile"] is not None:
            reference.subscribe(row["id"], row["profile"], row["context"], row["on_match"])
        elif row["id"] in reference:
            reference.unsubscribe(row["id"])
        else:
            rejected.append(("unsubscribe", seq))
    return found, rejected


def separate(spark: Any, where: Path, messages: str = MESSAGES, **options: Any) -> Any:
    """The three folders as one stream."""
    frames = {
        name: spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(where / name))
        for name, schema in (("messages", messages), ("updates", UPDATES), ("profiles", PROFILES))
    }
    return match_stream(**frames, message_id=("n", "seq"), **options)


def wait_for(found: Collected, what: Any, seconds: float = 60) -> None:
    """Until something holds of what was collected."""
    end = time.monotonic() + seconds
    while not what(found) and time.monotonic() < end:
        time.sleep(0.1)
    assert what(found)


def test_separate_streams_wait_for_each_other(spark: Any, tmp_path: Path) -> None:
    """Files arrive in different cuts per source; the order column decides; then a silent source holds nobody up."""
    rng = np.random.default_rng(7)
    rows = three(rng, 400)
    expected, rejected = serial(rows)
    folders = {name: Folder(tmp_path / name, TYPES[name]) for name in rows}
    for name, pieces in (("messages", 2), ("updates", 4), ("profiles", 3)):
        for piece in cut(rng, rows[name], pieces):
            folders[name].put(piece, rng)
    end = 1_000
    folders["messages"].put([{"seq": end, "n": 0, "x": None, "y": None}])
    folders["updates"].put([{"seq": end + 1, "context": "nobody", "attribute": "low", "value": 0.0}])
    folders["profiles"].put([{"seq": end + 2, "id": "nobody", "profile": "x < 0", "context": None, "on_match": None}])
    found = Collected()
    stream = separate(spark, tmp_path, shards=2, wait="20 seconds")
    query = (
        stream.results.writeStream.foreachBatch(found)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        wait_for(found, lambda f: len(f.deliveries) >= len(expected))
        assert found.deliveries == expected
        assert found.rejected == rejected != []
        assert all(figures["late"] == 0 for figures in found.figures)
        assert any(figures["held"] > 0 for figures in found.figures), "somebody had to wait, or nothing was tested"
        # The last profile passes only when messages and updates have been silent for the whole wait.
        wait_for(found, lambda f: f.figures and all(one["held"] == 0 for one in f.figures[-2:]))
        folders["updates"].put([{"seq": 5, "context": "C0", "attribute": "low", "value": 0.0}])
        wait_for(found, lambda f: sum(one["late"] for one in f.figures[-2:]) == 1)
    finally:
        query.stop()


def test_a_stream_has_passed_a_place_when_all_its_partitions_have(spark: Any, tmp_path: Path) -> None:
    """Messages of one partition arrive far ahead of those of the other, as they do from a topic; nothing is late."""
    rng = np.random.default_rng(8)
    rows = three(rng, 300)
    expected, rejected = serial(rows)
    schema = TYPES["messages"].append(pa.field("_partition", pa.string()))
    folders = {name: Folder(tmp_path / name, schema if name == "messages" else TYPES[name]) for name in rows}
    ends = [{"seq": 1_000 + k, "n": 0, "x": None, "y": None} for k in range(2)]
    lanes = [[{**row, "_partition": f"t/{k}"} for row in [*rows["messages"][k::2], ends[k]]] for k in range(2)]
    quick, slow = len(lanes[0]) // 2, len(lanes[1]) // 8
    for first, second in ((slice(quick), slice(slow)), (slice(quick, None), slice(slow, None))):
        folders["messages"].put([*lanes[0][first], *lanes[1][second]], rng)
    folders["updates"].put(rows["updates"], rng)
    folders["profiles"].put(rows["profiles"], rng)
    folders["updates"].put([{"seq": 1_003, "context": "nobody", "attribute": "low", "value": 0.0}])
    folders["profiles"].put([{"seq": 1_003, "id": "nobody", "profile": "x < 0", "context": None, "on_match": None}])
    found = Collected()
    stream = separate(spark, tmp_path, f"{MESSAGES}, _partition string", shards=2, wait="30 seconds")
    writer = stream.results.writeStream.foreachBatch(found).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="200 milliseconds").start()
    try:
        wait_for(found, lambda f: len(f.deliveries) >= len(expected))
        assert found.deliveries == expected != []
        assert found.rejected == rejected
        assert all(figures["late"] == 0 for figures in found.figures)
    finally:
        query.stop()


class Held:
    """What the rule of waiting says, event by event: messages and updates, none of them ever silent for long enough."""

    def __init__(self, limit: int) -> None:
        self.limit, self.high, self.floor = limit, dict[str, int](), 0
        self.waiting: list[tuple[int, str, dict[str, Any]]] = []
        self.replayed: list[tuple[int, str, dict[str, Any]]] = []
        self.late = self.forced = 0

    def batch(self, **rows: Any) -> None:
        """One micro-batch."""
        for name, listed in rows.items():
            self.waiting += [(row["seq"], name, row) for row in listed]
            self.high[name] = max([self.high.get(name, 0), *(row["seq"] for row in listed)])
        other = {"messages": "updates", "updates": "messages"}
        passed = [one for one in self.waiting if one[0] < self.high.get(other[one[1]], 0) or one[0] <= self.floor]
        left = sorted(one for one in self.waiting if one not in passed)
        forced = left[: max(0, len(left) - self.limit)]
        self.floor = max([self.floor, *(seq for seq, *_ in forced)])
        ready = sorted(passed + forced)
        done = max((seq for seq, *_ in self.replayed), default=0)
        self.late += sum(seq < done for seq, *_ in ready)
        self.forced += len(forced)
        self.replayed += ready
        self.waiting = [one for one in left if one not in forced]


def _forced(found: Collected, shards: int) -> int:
    return sum(one["forced"] for one in found.figures[-shards:])


@pytest.mark.parametrize("shards", [1, 3])
def test_no_more_wait_than_may(spark: Any, tmp_path: Path, shards: int) -> None:
    """A stream that stops lets the others go on from the limit, in order; what it sends later is late. Both counted."""
    rng = np.random.default_rng(17)
    rows = three(rng, 400)
    first = [row for row in rows["updates"] if row["seq"] <= 60]
    second = [row for row in rows["updates"] if 60 < row["seq"] <= 330]
    last = [{"seq": 1_000, "context": "nobody", "attribute": "low", "value": 0.0}]
    parts = [rows["messages"][at : at + 30] for at in range(0, len(rows["messages"]), 30)]
    end = [{"seq": 1_001, "n": 0, "x": None, "y": None}]
    model, found = Held(45), Collected()
    folders = {name: Folder(tmp_path / name, TYPES[name]) for name in ("messages", "updates")}
    profiles = [(f"p{i}", f"x < ctx.low + {i % 7} and y > {i % 5}", f"C{i % 6}", None) for i in range(30)]

    frames = {
        name: spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / name))
        for name, schema in (("messages", MESSAGES), ("updates", UPDATES))
    }
    initial = spark.createDataFrame(profiles, "id string, profile string, context string, on_match string")
    stream = match_stream(**frames, profiles=initial, shards=shards, wait="10 minutes", hold_limit=45)
    folders["updates"].put(first, rng)
    for k, part in enumerate(parts):
        folders["messages"].put(part, rng)
        model.batch(messages=part, updates=first if k == 0 else [])
    assert model.forced > 60, "the limit was meant to be passed more than once"
    assert model.late == 0
    writer = stream.results.writeStream.foreachBatch(found).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="200 milliseconds").start()
    try:
        wait_for(found, lambda f: _forced(f, shards) >= model.forced, 120)
        held = [[one["held"] for one in found.figures if one["shard"] == shard] for shard in range(shards)]
        assert all(max(counts) == 45 for counts in held), "messages wait in every shard"
        folders["updates"].put(second, rng)
        model.batch(updates=second)
        wait_for(found, lambda f: sum(one["late"] for one in f.figures[-shards:]) > 0)
        folders["updates"].put(last)
        folders["messages"].put(end)
        model.batch(messages=end, updates=last)
        wait_for(found, lambda f: max(one["held"] for one in f.figures[-shards:]) == 1)
    finally:
        query.stop()

    reference = ReferenceFilter()
    for id, profile, context, _ in profiles:
        reference.subscribe(id, profile, context)
    expected = []
    for seq, name, row in model.replayed:
        if name == "messages":
            expected += [(seq, str(id)) for id in reference.match({"x": row["x"], "y": row["y"]})]
        else:
            reference.update(row["context"], {row["attribute"]: row["value"]})
    assert sorted(found.deliveries) == sorted(expected) != []
    latest = found.figures[-shards:]
    assert _forced(found, shards) == model.forced
    assert sum(one["late"] for one in latest) > 30
    assert shards > 1 or latest[0]["late"] == model.late
    assert max(one["held"] for one in latest) == len(model.waiting) == 1


def test_initial_profiles_and_contexts(spark: Any, tmp_path: Path) -> None:
    """Prepared profiles and contexts are there before the first event; a bad text is rejected in the first batch."""
    profiles = pa.table(
        {"id": [f"p{i}" for i in range(50)], "context": [f"C{i % 9}" for i in range(50)], "by": np.arange(50.0)}
    )
    known = [(f"C{i}", "low", float(i)) for i in range(9)]
    contexts = spark.createDataFrame(known, UPDATES.removeprefix("seq bigint, "))
    rng = np.random.default_rng(3)
    rows = three(rng, 120)
    rows["profiles"] = [row for row in rows["profiles"] if row["profile"] is not None][:3]
    reference = ReferenceFilter()
    for row in sorted(profiles.to_pylist(), key=lambda row: row["id"]):
        reference.subscribe(row["id"], f"x < ctx.low + {row['by']} and y > 3", row["context"])
    for context, attribute, value in known:
        reference.update(context, {attribute: value})
    expected = []
    every = [(row["seq"], name, row) for name in ("messages", "updates") for row in rows[name]]
    for seq, kind, row in sorted(every):
        if kind == "messages":
            expected += [(seq, str(id)) for id in reference.match({"x": row["x"], "y": row["y"]})]
        else:
            reference.update(row["context"], {row["attribute"]: row["value"]})
    events = [{**row, "event": "message"} for row in rows["messages"]] + [
        {**row, "event": "update"} for row in rows["updates"]
    ]
    fields = {
        **{f.name: f.type for f in TYPES["messages"]},
        **{f.name: f.type for f in TYPES["updates"]},
        "event": pa.string(),
    }
    folder, found = Folder(tmp_path / "in", pa.schema(fields.items())), Collected()
    for piece in cut(rng, sorted(events, key=lambda row: row["seq"]), 3):
        folder.put(piece, rng, files=2)
    schema = "seq bigint, n bigint, x double, y double, context string, attribute string, value double, event string"
    for _ in range(2):
        stream = match_stream(
            events=spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in")),
            profiles=spark.createDataFrame(profiles).repartition(3),
            profile="x < ctx.low + {by} and y > 3",
            contexts=contexts,
            shards=3,
        )
        writer = stream.results.writeStream.foreachBatch(found)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
    assert sorted(found.deliveries) == sorted(expected) != []
    assert sum(figures["profiles"] for figures in found.figures[-3:]) == 50


def test_outputs_of_one_stream(spark: Any, tmp_path: Path) -> None:
    """Matches to Parquet and a table, rejected records with their place: one query, every row once."""
    rng = np.random.default_rng(11)
    rows = random_rows(rng, 150)
    expected = Expected().add(rows)
    fields = [*ARROW, pa.field("_source", pa.string()), pa.field("_corrupt_record", pa.string())]
    folder = Folder(tmp_path / "in", pa.schema(fields))
    marked = [{**row, "_source": f"log:{row['seq']}"} for row in rows]
    folder.put([*marked[:80], {"_source": "log:x", "_corrupt_record": "{half"}])
    folder.put([*marked[80:], {"seq": 999, "event": "massage", "_source": "log:999"}])
    schema = f"{SCHEMA}, _source string, _corrupt_record string"
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    bad: dict[int, list[Any]] = {}
    for _ in range(2):
        query = match_stream(events=events, shards=2).start(
            str(tmp_path / "checkpoint"),
            matches=sinks.Parquet(str(tmp_path / "matches")),
            rejected=lambda frame, batch: bad.update({batch: frame.collect()}),
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    assert delivered(spark, tmp_path / "matches") == expected.deliveries
    refused = [row for batch in sorted(bad) for row in bad[batch]]
    odd = {row.source: row.reason for row in refused if row.source in ("log:x", "log:999")}
    assert odd["log:x"] == "malformed record: {half"
    assert "got 'massage'" in odd["log:999"]
    usual = [(row.event, row.seq) for row in refused if row.source not in odd]
    assert sorted(usual) == sorted(expected.rejected)
    assert all(row.source == f"log:{row.seq}" for row in refused if row.source != "log:x")


@pytest.mark.parametrize("kind", ["parquet", "table"])
def test_a_driver_that_died_after_the_sink_had_committed(spark: Any, tmp_path: Path, kind: str) -> None:
    """The micro-batch is repeated, finds its rows in the sink, and the query goes on at once."""
    rng = np.random.default_rng(12)
    rows = random_rows(rng, 200)
    expected = Expected().add(rows)
    sink: Any = sinks.Parquet(str(tmp_path / "matches"))
    if kind == "table":
        sink = sinks.Table(f"sqlite:///{tmp_path / 'matches.db'}", "matches")
    folder = Folder(tmp_path / "in")
    for part in (rows[:100], rows[100:]):
        folder.put(part, rng, files=2)
        events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
        stream = match_stream(events=events, shards=2)
        stream.start(str(tmp_path / "checkpoint"), matches=sink, trigger={"availableNow": True}).awaitTermination()
        (tmp_path / "checkpoint" / "commits" / "0").unlink(missing_ok=True)  # as if it had not come so far
    if kind == "parquet":
        assert delivered(spark, tmp_path / "matches") == expected.deliveries
    else:
        with closing(sqlite3.connect(tmp_path / "matches.db")) as database:
            found = database.execute("select seq, profile from matches order by seq, rank, profile").fetchall()
        assert found == expected.deliveries
    assert len(expected.deliveries) > 20


def test_malformed_lines_of_files_have_their_numbers(spark: Any, tmp_path: Path) -> None:
    """Lines of a file that many tasks read, equal ones among them, and rows of a table that is there from the start."""
    bad, text = {}, b"\xef\xbb\xbf"  # as files from Windows begin
    for number in range(1, 1_001):
        line = b'{"seq": %d, "x": 1.5}' % number
        if number % 97 == 1:
            line = (b"broken", b'{"seq": %d, "x": "cheap"}' % number, b'{"x": 1.5}')[number % 3]
            at = 1 + text.count(b"\n")
            bad[f"a.jsonl#line {at}"] = (
                "malformed record: not JSON: Expecting value at column 1: broken",
                f'malformed record: x: expected double, got "cheap": {line.decode()}',
                'malformed record: seq: no value: {"x": 1.5}',
            )[number % 3]
        text += line + (b"\n", b"\r\n", b"\n\n")[number % 3]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(text)
    (tmp_path / "p.csv").write_text("id,profile\np,x > 1\n\nq\nr,\n,x > 2\n")
    bad["p.csv#line 4"] = "malformed record: 1 fields, expected 2: q"
    bad["p.csv#line 6"] = "malformed record: id: no value: ,x > 2"
    messages = FileSource("json", str(tmp_path / "in"), "seq bigint, x double", required="seq")
    profiles = FileSource("csv", str(tmp_path / "p.csv"), "id string, profile string", required="id")
    found: list[Any] = []
    old = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(len(text) // 5))
    try:
        frame = messages.open(spark)
        query = match_stream(frame, profiles=profiles.open(spark, streaming=False), shards=2).start(
            str(tmp_path / "checkpoint"),
            matches=sinks.Parquet(str(tmp_path / "matches")),
            rejected=lambda frame, _: found.extend(frame.collect()),
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", old or "128m")
    told = [(row.source.rpartition("/")[2], row.reason) for row in found if row.reason.startswith("malformed")]
    assert sorted(told) == sorted(bad.items())
    assert len(delivered(spark, tmp_path / "matches")) == 1_000 - (len(bad) - 2)


def test_events_that_cannot_be_replayed_have_their_lines(spark: Any, tmp_path: Path) -> None:
    """Well-formed records that a shard refuses, of a file that many tasks read and of the table at the start."""
    lines, bad = [], {}
    for number in range(1, 601):
        event = {"seq": 10 * number, "event": "update", "context": "C", "attribute": "low", "value": f"{number}"}
        if number % 97 == 1:
            event["value"] = '"much"'
            bad[f"a.jsonl#line {1 + len(lines)}"] = "update", 10 * number
        elif number == 300:
            event["event"] = "upsert"
            bad[f"a.jsonl#line {1 + len(lines)}"] = None, 10 * number
        lines += [json.dumps(event), *([""] if number % 3 else [])]
    twice = json.dumps({"seq": 5, "event": "update", "context": "C", "attribute": "low", "value": "true"})
    lines += [twice, "", twice]
    bad[f"a.jsonl#lines {len(lines) - 2}, {len(lines)}"] = "update", 5
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "p.csv").write_text("seq,id,profile,context\n1,p,x < ctx.low,C\n\n2,q,x <,C\n")
    bad["p.csv#line 4"] = "subscribe", 2
    events = FileSource(
        "json",
        str(tmp_path / "in"),
        "seq bigint, event string, context string, attribute string, value string, x double",
    )
    profiles = FileSource("csv", str(tmp_path / "p.csv"), "seq bigint, id string, profile string, context string")
    found: list[Any] = []
    old = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(sum(map(len, lines)) // 5))
    try:
        start, kinds = profiles.open(spark, streaming=False), {"ctx.low": "number"}
        stream = match_stream(events=events.open(spark), profiles=start, schema=kinds, shards=2)
        query = stream.start(
            str(tmp_path / "checkpoint"),
            rejected=lambda frame, _: found.extend(frame.collect()),
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", old or "128m")
    told = {row.source.rpartition("/")[2]: (row.event, row.seq) for row in found}
    assert told == bad
    assert len(found) == len(bad) + 1  # one of the lines that are there twice is told for each of them


def test_what_identifies_a_message(spark: Any, tmp_path: Path) -> None:
    """The order, an attribute, a column beside the struct of the same name as an attribute, a name with a dot."""
    schema = "seq bigint, event string, id string, profile string, n string, message struct<n: bigint, `a.b`: string>"
    kept = pa.struct([("n", pa.int64()), ("a.b", pa.string())])
    types = [("seq", pa.int64()), *((name, pa.string()) for name in ("event", "id", "profile", "n")), ("message", kept)]
    folder = Folder(tmp_path / "in", pa.schema(types))
    row = dict.fromkeys(name for name, _ in types)
    rows = [{**row, "seq": 1, "event": "subscribe", "id": "p", "profile": "n > 3"}]
    rows += [
        {**row, "seq": 2 + k, "event": "message", "n": f"own-{k}", "message": {"n": k, "a.b": f"dotted-{k}"}}
        for k in range(6)
    ]
    folder.put(rows)
    events = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    stream = match_stream(events=events, message_id=("n", "a.b", "seq"))
    found: list[Any] = []
    query = stream.start(str(tmp_path / "checkpoint"), matches=lambda frame, _: found.extend(frame.collect()))
    query.processAllAvailable()
    query.stop()
    assert sorted(tuple(one)[:3] for one in found) == [(f"own-{k}", f"dotted-{k}", 2 + k) for k in (4, 5)]
    flat = spark.readStream.schema("seq bigint, n bigint, `a.b` string").parquet(str(tmp_path / "in"))
    assert match_stream(messages=flat, message_id="a.b").matches.columns[0] == "a.b"


def test_the_checkpoint_of_one_machine_has_no_checksums_beside_its_files(spark: Any, tmp_path: Path) -> None:
    """A file and its checksum are renamed one after the other; a kill between the two would make both unreadable."""
    folder = Folder(tmp_path / "messages", TYPES["messages"])
    folder.put([{"seq": 1, "n": 0, "x": 1.0, "y": 1.0}])
    frame = spark.readStream.schema(MESSAGES).parquet(str(tmp_path / "messages"))
    query = match_stream(messages=frame).start(str(tmp_path / "checkpoint"), matches=lambda frame, _: frame.collect())
    query.processAllAvailable()
    query.stop()
    written = [path.name for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert {"0", "metadata", "1.changelog"} <= set(written)
    assert not [name for name in written if name.endswith(".crc")]
    chosen = "spark.sql.streaming.checkpointFileManagerClass"
    before = spark.conf.get(chosen)
    try:
        prepare(spark, 2, "http://localhost/checkpoint")
        assert spark.conf.get(chosen, "Spark's own") == "Spark's own", "a checkpoint elsewhere is left to Spark"
    finally:
        spark.conf.set(chosen, before)


def test_what_cannot_work_is_said_before_anything_runs(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    profiles = spark.readStream.schema(PROFILES).parquet(str(tmp_path / "in"))
    for options, words in (
        ({"events": events, "order": "sec"}, "did you mean 'seq'"),
        ({"events": events, "shards": 0}, "from 1 to 4096"),
        ({"events": events, "message_id": "nr"}, "there is no column 'nr'"),
        ({"messages": spark.range(3)}, "match_table"),
        ({"events": events, "wait": "soon"}, "such as '10 seconds'"),
        ({"events": events, "hold_limit": 0}, "hold_limit: expected a whole number of events from 1, got 0"),
        ({"events": events, "hold_limit": True}, "hold_limit: .*, got True; .* set wait to '0 s'"),
        ({"events": events, "hold_limit": 1e6}, "hold_limit: .*, got 1000000.0"),
        ({"events": events, "wait": "2 m"}, "write '2 min' or '2 ms'"),
        (
            {"events": events, "profiles": profiles},
            "static DataFrame.* events 'subscribe' and 'unsubscribe'.* messages=",
        ),
        ({"events": events, "profile": "x > {low}"}, "static DataFrame of profiles"),
        ({"events": events, "track": [{"context": "{s}", "set": "last ="}]}, "expected"),
        ({}, "give messages= or events="),
    ):
        with pytest.raises(TamisError, match=words):
            match_stream(**options)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        *(("500 ms", 500), ("1 millisecond", 1), ("2 milliseconds", 2), ("10s", 10_000), ("1.5 sec", 1_500)),
        *(("10 seconds", 10_000), ("2 min", 120_000), ("1 minute", 60_000), ("3 minutes", 180_000)),
        *(("2 h", 7_200_000), ("1 hour", 3_600_000), ("0.5 hours", 1_800_000), (2, 2_000), (0.25, 250), (0, 0)),
    ],
)
def test_times_have_units(time: str | float, expected: int) -> None:
    assert milliseconds(time) == expected


@pytest.mark.parametrize(
    "time", ["2 m", "2m", "2 mss", "2 hs", "2", "", "ms", "-1 s", -1, float("nan"), float("inf"), True]
)
def test_times_that_could_mean_something_else_are_refused(time: Any) -> None:
    with pytest.raises(UsageError, match=r"^trigger: .*'(2 min|2 ms)'.*"):
        milliseconds(time, "trigger")


def test_what_waits_is_counted_in_few_bins() -> None:
    """Every event is in one bin, none is taken for older than it is; bins are nearly equal, and few stay few."""
    rng = np.random.default_rng(5)
    for count in (1, 7, 64, 65, 1_000):
        keys = rng.integers(0, 500, count)
        bins = binned(keys)
        assert len(bins) == min(count, 64)
        assert max(n for _, n in bins) - min(n for _, n in bins) <= 1
        whole = _coarse([one for _ in range(9) for one in bins])
        assert len(whole) <= 256
        for found, copies in ((bins, 1), (whole, 9)):
            assert sum(n for _, n in found) == copies * count
            for last, _ in found:
                assert last in keys
                assert sum(n for key, n in found if key <= last) <= copies * np.count_nonzero(keys <= last)


def test_a_shard_gets_its_updates_and_what_fixes_kinds() -> None:
    """Of 1,000 updates of two attributes every shard gets its own, and of the others one per attribute and kind."""
    keys = shard_keys(4)
    names = [f"C{i % 100}" for i in range(1_000)]
    rows = pa.table(
        {
            "#order": np.arange(1_000),
            "context": names,
            "attribute": ["low" if i % 2 else "name" for i in range(1_000)],
            "value": [str(i) if i % 2 else '"text"' for i in range(1_000)],
        }
    )
    packs = Packer("updates", "updates", keys).pack(rows, 0, 0)
    tables = [from_bytes(data) for data in packs.column("updates").to_pylist()]
    own = [int(np.count_nonzero(table["#own"].to_numpy(zero_copy_only=False))) for table in tables]
    assert sum(own) == 1_000
    assert all(0 <= table.num_rows - mine <= 2 for table, mine in zip(tables, own, strict=True))
    assert [json.loads(high) for high in packs.column("high").to_pylist()] == [{"updates": 999}] * 4
