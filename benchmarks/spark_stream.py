"""Streams on Spark: ``match_stream`` in steady state against the engine alone, on the same log with as many threads.

500,000 profiles on 100,000 contexts, 50 updates and about 10 matches per message, micro-batches of 25,000 to 1,600,000
events: the larger they are the less their fixed cost counts. Also that fixed cost (two messages), and how long a shard
takes to come back. ``--docs`` writes the curve into ``docs/spark.md``. Target: 40 % of the engine's events per second
at 100,000 events, 400 ms, no rebuild in steady state, 30 s.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from measure import Inexact, Result, main, progress
from report import GREY, ORANGE, STYLE, TEAL, plt
from spark_session import DOCS, FOR_DOCS, load, session, write_table
from tamis import EventLog, Filter
from tamis.spark import match_stream

PROFILES, CONTEXTS, EVENTS, UPDATES = 500_000, 100_000, 100_000, 50
SIZES = (25_000, 100_000, 400_000, 1_600_000)
WARM, SETTLE, STEADY, IDLE = 30, 3, 8, 12  # the JVM compiles for a few dozen micro-batches
TEXT = "x between ctx.x - {reach} and ctx.x + {reach} and y between {low} and {high}"
SCHEMA = "seq bigint, event string, context string, attribute string, value double, x double, y double"
CORES = os.cpu_count() or 1


class World:
    """Profiles around contexts that walk on [0, 1), and batches of events."""

    def __init__(self, scale: float) -> None:
        self.rng = np.random.default_rng(5)
        self.profiles, self.contexts, self.events = (int(n * scale) for n in (PROFILES, CONTEXTS, EVENTS))
        self.names = np.array([f"context-{i}" for i in range(self.contexts)], object)
        self.place = self.rng.uniform(0, 1, self.contexts)
        self.seq = 0
        low = self.rng.uniform(0, 1, self.profiles)
        self.table = pa.table(
            {
                "id": [f"profile-{i}" for i in range(self.profiles)],
                "context": self.names[np.arange(self.profiles) % self.contexts],
                "reach": np.full(self.profiles, 0.005),
                "low": low,
                "high": low + 0.002 / scale,
            }
        )
        self.start = pa.table({"context": self.names, "attribute": ["x"] * self.contexts, "value": self.place.copy()})

    def batch(self, events: int) -> pa.Table:
        """One micro-batch: a message after every 50 updates."""
        message = np.arange(events) % (UPDATES + 1) == UPDATES
        who = self.rng.integers(0, self.contexts, events)
        moved = np.clip(self.place[who] + self.rng.normal(0, 0.003, events), 0, 1)
        self.place[who] = moved
        seq = np.arange(self.seq, self.seq + events)
        self.seq += events
        x, y = self.rng.uniform(0, 1, (2, events))
        return pa.table(
            {
                "seq": seq,
                "event": pa.array(np.where(message, "message", "update")),
                "context": pa.array(self.names[who], pa.string(), mask=message),
                "attribute": pa.array(np.full(events, "x"), mask=message),
                "value": pa.array(moved, mask=message),
                "x": pa.array(x, mask=~message),
                "y": pa.array(y, mask=~message),
            }
        )


def put(folder: Path, number: int, table: pa.Table) -> None:
    """One micro-batch as one file per core."""
    size = -(-table.num_rows // CORES)
    for part in range(CORES):
        name = folder / f"{number:05d}-{part}.parquet"
        aside = folder / f".{name.name}"
        pq.write_table(table.slice(part * size, size), aside)
        os.utime(aside, (1_700_000_000 + 10 * number + part,) * 2)
        aside.rename(name)


def log_of(table: pa.Table) -> EventLog:
    """The same events for the engine."""
    message = pa.compute.equal(table["event"], "message")
    messages = table.filter(message).select(["seq", "x", "y"])
    updates = table.filter(pa.compute.invert(message)).select(["seq", "context", "attribute", "value"])
    return EventLog.merge(messages=messages, updates=updates)


def engine(world: World, batches: list[pa.Table]) -> tuple[list[float], list[int]]:
    """Seconds per batch and its matches, without Spark, with one thread per core."""
    filter = Filter(threads=CORES)
    filter.subscribe_many(TEXT, world.table)
    filter.process(EventLog.merge(updates=world.start))
    seconds, matches = [], []
    for table in batches:
        log = log_of(table)
        start = time.perf_counter()
        found = filter.process(log)
        seconds.append(time.perf_counter() - start)
        matches.append(len(found))
    return seconds, matches


class Spark:
    """The stream, its collected outputs and its timings."""

    def __init__(self, spark: Any, world: World, where: Path) -> None:
        self.spark, self.world, self.where = spark, world, where
        self.matches: Counter[int] = Counter()
        self.figures: dict[int, list[dict[str, Any]]] = {}
        (where / "in").mkdir()
        for name, table in (("profiles", world.table), ("contexts", world.start)):
            pq.write_table(table, where / f"{name}.parquet")

    def start(self) -> Any:
        """Start, or start again."""
        read = self.spark.read
        events = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", CORES)
        stream = match_stream(
            events=events.parquet(str(self.where / "in")),
            profiles=read.parquet(str(self.where / "profiles.parquet")).repartition(CORES),
            contexts=read.parquet(str(self.where / "contexts.parquet")),
            profile=TEXT,
            shards=CORES,
        )
        writer = stream.results.writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self.where / "checkpoint")).start()

    def _take(self, results: Any, batch: int) -> None:
        rows = results.toArrow()
        self.matches[batch] = sum(len(cell) for cell in rows["profile"] if cell.is_valid)
        self.figures[batch] = [json.loads(text) for text in rows["figures"].to_pylist() if text]


def run(scale: float = 1.0, repeats: int = STEADY) -> dict[str, Any]:
    """The benchmark."""
    world, before = World(scale), load()
    sizes = [int(size * scale) for size in SIZES]
    schedule = [world.events] * WARM
    steady: dict[int, range] = {}
    for size in sizes:
        steady[size] = range(len(schedule) + SETTLE, len(schedule) + SETTLE + repeats)
        schedule += [size] * (SETTLE + repeats)
    rest = range(len(schedule) + SETTLE, len(schedule) + IDLE)
    batches = [world.batch(size) for size in (*schedule, *[2 * (UPDATES + 1)] * IDLE)]
    result = Result(
        "spark-stream",
        "match_stream against the engine alone",
        f"{world.profiles:,} profiles, {world.contexts:,} contexts, batches of {world.events:,} events, {CORES} cores",
        scale,
    )
    with progress("stream", 5) as advance:
        advance("the engine alone")
        alone, expected = engine(world, batches)
        advance("Spark: initial state")
        spark = session()
        with tempfile.TemporaryDirectory(prefix="tamis-benchmark-") as place:
            side = Spark(spark, world, Path(place))
            for number, table in enumerate(batches):
                put(side.where / "in", number, table)
            query = side.start()
            advance("Spark: batches")
            query.processAllAvailable()
            steps = {step["batchId"]: step for step in query.recentProgress}
            query.stop()
            advance("Spark: recovery")
            recovery = _recovery(side, len(batches), world)
        side.spark.stop()
    found = [side.matches[batch] for batch in range(len(expected))]
    if found != expected:
        raise Inexact(f"matches per batch differ: {found} instead of {expected}")
    took = {batch: steps[batch]["durationMs"]["triggerExecution"] / 1000 for batch in steps}
    curve = [Point.of(size, alone, took, steady[size]) for size in sizes]
    usual = curve[SIZES.index(EVENTS)]
    spread = (max(took[b] for b in steady[usual.events]) - min(took[b] for b in steady[usual.events])) / 2
    result.add("share of the engine's speed", usual.share, "%", 40, spread=spread / usual.spark)
    result.add("match_stream", usual.events / usual.spark, "events/s")
    result.add(f"the engine alone, {CORES} threads", usual.events / usual.engine, "events/s")
    for point in curve:
        if point is not usual:
            result.add(f"share, micro-batches of {point.events:,} events", point.share, "%")
    fixed = 1000 * statistics.median(took[batch] for batch in rest)
    result.add("fixed cost of a micro-batch", fixed, "ms", 400, more_is_better=False)
    caches = Counter(one["cache"] for batches in steady.values() for b in batches for one in side.figures[b])
    result.add("rebuilds in steady state", caches["rebuilt"], "", 0, more_is_better=False, note=str(dict(caches)))
    result.add("recovery of all shards", recovery, "s", 30, more_is_better=False)
    result.add("first micro-batch, with the initial state", took[0], "s")
    result.add("matches a message", sum(expected[:WARM]) / (WARM * world.events / (UPDATES + 1)), "")
    where = {f"{size:,} events": _where(side, steps, steady[size]) for size in sizes}
    result.data["where"] = where | {"fixed": _where(side, steps, rest)}
    result.exact = f"equal number of matches in each of {len(expected)} batches"
    print(json.dumps(result.data["where"], indent=1))
    if FOR_DOCS:
        write_table("spark_stream", _table(curve, usual, fixed, before))
        _plot(curve)
    return result.to_dict()


class Point(NamedTuple):
    """Seconds of a micro-batch of so many events, medians."""

    events: int
    engine: float
    spark: float

    @classmethod
    def of(cls, events: int, alone: Sequence[float], took: Mapping[int, float], batches: range) -> Point:
        """The point of some micro-batches of one size."""
        both = (statistics.median(side[batch] for batch in batches) for side in (alone, took))
        return cls(events, *both)

    @property
    def share(self) -> float:
        """Percent of the engine's speed."""
        return 100 * self.engine / self.spark


def _table(curve: Sequence[Point], usual: Point, fixed: float, before: str) -> str:
    lines = [
        f"| events in a micro-batch | `match_stream`, events/s | the engine, {CORES} threads | share | its latency |"
    ]
    lines.append("|---|---|---|---|---|")
    for at in curve:
        speeds = f"{at.events / at.spark:,.0f} | {at.events / at.engine:,.0f}"
        lines.append(f"| {at.events:,} | {speeds} | {at.share:.0f} % | {at.spark:.2f} s |")
    most = 100 * usual.engine / (usual.engine + fixed / 1000)
    lines += [
        "",
        f"The engine alone replays {usual.events:,} events in {1000 * usual.engine:.0f} ms, and a micro-batch with "
        f"next to no events took {fixed:.0f} ms in the same run: at that size a stream could not have more than "
        f"{most:.0f} % of the engine's speed even if Spark moved its rows for nothing. ({CORES} cores, {before}.)",
    ]
    return "\n".join(lines)


def _plot(curve: Sequence[Point]) -> None:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
        events = [at.events for at in curve]
        axes.plot(events, [at.events / at.engine / 1e6 for at in curve], "o-", color=GREY, label="the engine alone")
        axes.plot(events, [at.events / at.spark / 1e6 for at in curve], "o-", color=TEAL, label="match_stream")
        axes.set(xscale="log", xlabel="events in a micro-batch", ylabel="million events/s", ylim=(0, None))
        axes.set_xticks(events, [f"{n:,}" for n in events])
        axes.minorticks_off()
        for at in curve:
            place = (at.events, at.events / at.spark / 1e6)
            axes.annotate(f"{at.share:.0f} %", place, (0, 6), textcoords="offset points", ha="center", color=ORANGE)
        axes.legend()
        figure.savefig(DOCS / "assets" / "results" / "spark-stream.svg", metadata={"Date": None})
        plt.close(figure)


def _recovery(side: Spark, batch: int, world: World) -> float:
    """Seconds from the snapshot to a shard that is ready, the slowest shard; new workers know nothing."""
    put(side.where / "in", batch, world.batch(2 * (UPDATES + 1)))
    side.spark.stop()
    side.spark = session()
    query = side.start()
    query.processAllAvailable()
    query.stop()
    return max(one["state_ms"] for one in side.figures[batch] if one["cache"] == "rebuilt") / 1000


def _where(side: Spark, steps: dict[int, Any], batches: range) -> dict[str, float]:
    """The median milliseconds of every part of a micro-batch."""
    spark = {name for batch in batches for name in steps[batch]["durationMs"]}
    parts = {f"spark {name}": [steps[b]["durationMs"].get(name, 0) for b in batches] for name in sorted(spark)}
    for name in ("state_ms", "unpack_ms", "replay_ms", "output_ms", "save_ms"):
        parts[f"shard {name}"] = [max(one[name] for one in side.figures[batch]) for batch in batches]
    return {name: round(statistics.median(values), 1) for name, values in parts.items()}


if __name__ == "__main__":
    main(run)
