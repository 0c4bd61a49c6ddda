"""What a micro-batch costs before it has any work to do, and where that goes.

A stream with few profiles, two messages and 100 updates per micro-batch: what is left is the fixed cost. Wall-clock
medians come from Spark's progress reports, its job log and the figures of the shards; the processor time of a
micro-batch, which a busy neighbour changes little, from the processes. ``--docs`` writes the table into
``docs/spark.md``. Target: 400 ms.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from measure import Inexact, Result, main, progress
from spark_session import FOR_DOCS, session, write_table
from spark_stream import CORES, UPDATES, Spark, World, engine, put

WARM, BATCHES = 60, 40
TRIGGER = {
    "latestOffset": "what is new in the sources",
    "walCommit": "write down what this micro-batch reads",
    "getBatch": "the rows of the sources",
    "queryPlanning": "plan",
    "addBatch": "run, see below",
    "commitOffsets": "write down that it is done",
}
SHARD = {
    "state_ms": "read the state of the shard",
    "unpack_ms": "unpack",
    "replay_ms": "replay",
    "output_ms": "output",
    "save_ms": "delta into the state store",
}


def run(scale: float = 1.0, repeats: int = BATCHES) -> dict[str, Any]:
    """The benchmark; only ``repeats`` counts."""
    world = World(0.01)
    batches = [world.batch(2 * (UPDATES + 1)) for _ in range(WARM + repeats)]
    result = Result(
        "spark-batch",
        "The fixed cost of a micro-batch",
        f"{world.profiles:,} profiles, 2 messages and {2 * UPDATES} updates a micro-batch, {CORES} cores and shards",
        scale,
    )
    with progress("batch", 4) as advance, tempfile.TemporaryDirectory(prefix="tamis-benchmark-") as place:
        advance("the engine alone")
        expected = engine(world, batches)[1]
        advance(f"{WARM} micro-batches to warm up")
        spark = session("1g")
        side = Spark(spark, world, Path(place))
        for number, table in enumerate(batches):
            put(side.where / "in", number, table)
        query = side.start()
        while query.isActive and max(side.figures, default=0) < WARM:
            time.sleep(0.02)
        advance(f"{repeats} micro-batches that count")
        first, before = max(side.figures), _processor_time()
        after = dict(before)
        while query.isActive and max(side.figures) < len(batches) - 1:
            time.sleep(0.2)
            after |= _processor_time()  # of those that have ended meanwhile the last value counts
        query.processAllAvailable()
        spent = _per_batch(before, after, len(batches) - 1 - first)
        steps = [step for step in query.recentProgress if step["batchId"] >= WARM][-repeats:]
        parts = _parts(spark, steps, side.figures)
        query.stop()
        spark.stop()
    if [side.matches[batch] for batch in range(len(batches))] != expected:
        raise Inexact("matches per batch differ from the engine's")
    fixed = [step["durationMs"]["triggerExecution"] for step in steps]
    spread = (statistics.quantiles(fixed, n=4)[2] - statistics.quantiles(fixed, n=4)[0]) / 2 / statistics.median(fixed)
    result.add("fixed cost of a micro-batch", statistics.median(fixed), "ms", 400, more_is_better=False, spread=spread)
    for name, value in spent.items():
        result.add(f"processor time, {name}", value, "ms")
    result.data["parts"], result.data["processor"] = parts, spent
    result.exact = f"equal number of matches in each of {len(expected)} micro-batches"
    table = "\n".join(_table(statistics.median(fixed), parts, spent))
    print(table)
    if FOR_DOCS:
        write_table("spark_batch", table)
    return result.to_dict()


def _processor_time() -> dict[tuple[str, int], float]:
    """Seconds that Spark's JVM, each Python worker and this process have used so far."""
    me = psutil.Process()
    found = {("driver", me.pid): sum(me.cpu_times()[:2])}
    for child in me.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            name = "Spark" if child.name() == "java" else "Python workers"
            found[name, child.pid] = sum(child.cpu_times()[:2])
    return found


def _per_batch(before: Mapping[Any, float], after: Mapping[Any, float], count: int) -> dict[str, float]:
    spent = dict.fromkeys(("Spark", "Python workers", "driver"), 0.0)
    for (name, number), seconds in after.items():
        spent[name] += 1000 * (seconds - before.get((name, number), 0.0)) / count
    return spent


def _parts(spark: Any, steps: list[Any], figures: dict[int, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Median milliseconds per part, in the three levels of the table."""
    taken: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ("trigger", "run", "shard")}
    jobs = list(_jobs(spark, len(steps)))
    for step, (job, pack, shard) in zip(steps, jobs, strict=True):
        times = step["durationMs"]
        for name in TRIGGER:
            taken["trigger"][name].append(times.get(name, 0))
        taken["trigger"]["rest"].append(times["triggerExecution"] - sum(times.get(name, 0) for name in TRIGGER))
        taken["run"]["plan of the sink, hand-over to it"].append(times["addBatch"] - job)
        taken["run"]["first stage: rows into packs, shuffle"].append(pack)
        taken["run"]["second stage: the shards"].append(shard)
        taken["run"]["scheduling, the result to the driver"].append(job - pack - shard)
        state = step["stateOperators"][0]
        slowest = {name: max(one[name] for one in figures[step["batchId"]]) for name in SHARD}
        load = state["customMetrics"].get("rocksdbLoadLatencyMs", 0) / CORES
        commit = state["commitTimeMs"] / CORES
        taken["shard"]["RocksDB: load"].append(load)
        for name, what in SHARD.items():
            taken["shard"][what].append(slowest[name])
        taken["shard"]["RocksDB: commit"].append(commit)
        taken["shard"]["start of the task, Python hand-over"].append(shard - load - commit - sum(slowest.values()))
    return {
        level: {name: statistics.median(values) for name, values in listed.items()} for level, listed in taken.items()
    }


def _jobs(spark: Any, count: int) -> Iterator[tuple[float, float, float]]:
    """Milliseconds of the last jobs, oldest first, and of their two stages."""
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    for number in reversed(range(count)):
        job = jobs.apply(number)
        stages = sorted(int(one) for one in job.stageIds().mkString(",").split(","))
        yield (_lasted(job), *(_lasted(store.lastStageAttempt(one)) for one in stages[-2:]))


def _lasted(one: Any) -> float:
    return float(one.completionTime().get().getTime() - one.submissionTime().get().getTime())


def _table(total: float, parts: dict[str, dict[str, float]], spent: dict[str, float]) -> Iterator[str]:
    yield "| part of a micro-batch | ms |"
    yield "|---|---|"
    yield f"| **all** | **{total:.0f}** |"
    for name, value in parts["trigger"].items():
        what = f" ({TRIGGER[name]})" if name in TRIGGER else ""
        yield f"| {name}{what} | {value:.0f} |"
        if name == "addBatch":
            for inner, inside in parts["run"].items():
                yield f"| - {inner} | {inside:.0f} |"
                if inner.startswith("second"):
                    yield from (f"| - - {what} | {ms:.0f} |" for what, ms in parts["shard"].items())
    yield f"| processor time: {', '.join(spent)} | {', '.join(f'{value:.0f}' for value in spent.values())} |"


if __name__ == "__main__":
    main(run)
