"""Memory of a stream over 200 micro-batches: Spark's JVM, the Python workers, and the driver's own Python.

The stream of ``spark_stream.py`` at a tenth of its size: contexts that move and messages that match, nothing that
should grow. ``--docs`` writes the figures and the plot into the documentation. Target: what each holds in the last
quarter of the micro-batches is at most a tenth more than in the second; the first is for warming up.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from measure import Inexact, Result, main, progress
from report import GREY, ORANGE, STYLE, TEAL, plt
from spark_session import DOCS, FOR_DOCS, session, write_table
from spark_stream import Spark, World, engine, put

BATCHES, SHARE = 200, 0.1
HEAP = "Spark's heap, after a collection"


def run(scale: float = 1.0, repeats: int = BATCHES) -> dict[str, Any]:
    """The benchmark; ``repeats`` is the number of micro-batches."""
    world = World(SHARE * scale)
    batches = [world.batch(world.events) for _ in range(repeats)]
    result = Result(
        "spark-memory",
        "Memory of a stream",
        f"{world.profiles:,} profiles, {world.contexts:,} contexts, {repeats} micro-batches of {world.events:,} events",
        scale,
    )
    taken: dict[str, list[float]] = defaultdict(list)
    with progress("memory", repeats + 1) as advance, tempfile.TemporaryDirectory(prefix="tamis-benchmark-") as place:
        advance("the engine alone")
        expected = engine(world, batches)[1]
        spark = session("1g")
        side = Spark(spark, world, Path(place))
        for number, table in enumerate(batches):
            put(side.where / "in", number, table)
        query = side.start()
        for number in range(repeats):
            while query.isActive and number not in side.figures:
                time.sleep(0.01)
            advance(f"micro-batch {number + 1}")
            for name, megabytes in resident(spark).items():
                taken[name].append(megabytes)
        query.processAllAvailable()
        query.stop()
        spark.stop()
    if [side.matches[batch] for batch in range(repeats)] != expected:
        raise Inexact("matches per micro-batch differ from the engine's")
    for name, values in taken.items():
        early, late = (statistics.mean(quarter(values, number)) for number in (1, 3))
        note = f"{early:,.0f} MB in the second quarter, {late:,.0f} MB in the last, {max(values):,.0f} MB at most"
        result.add(name, late / early, "× from the second quarter to the last", 1.1, more_is_better=False, note=note)
    result.data["megabytes"] = dict(taken)
    result.exact = f"equal number of matches in each of {repeats} micro-batches"
    if FOR_DOCS:
        write_table("spark_memory", table_of(taken))
        plot(taken)
    return result.to_dict()


def quarter(values: list[float], number: int) -> list[float]:
    """One quarter of the micro-batches, 0 to 3."""
    size = len(values) // 4
    return values[number * size : (number + 1) * size]


def resident(spark: Any) -> dict[str, float]:
    """Megabytes by process; of the JVM also what is left after a collection, which is what it really holds."""
    gc.collect()
    me = psutil.Process()
    found = {"driver, Python": me.memory_info().rss / 1e6, "Python workers": 0.0, "Spark's JVM": 0.0}
    for child in me.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found["Spark's JVM" if child.name() == "java" else "Python workers"] += child.memory_info().rss / 1e6
    jvm = spark._jvm.java.lang
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    found[HEAP] = (runtime.totalMemory() - runtime.freeMemory()) / 1e6
    return found


def table_of(taken: Mapping[str, list[float]]) -> str:
    """Megabytes per quarter."""
    lines = ["| MB, mean of 50 micro-batches | 1–50 | 51–100 | 101–150 | 151–200 |", "|---|---|---|---|---|"]
    for name, values in taken.items():
        means = " | ".join(f"{statistics.mean(quarter(values, number)):,.0f}" for number in range(4))
        lines.append(f"| {name} | {means} |")
    return "\n".join(lines)


def plot(taken: Mapping[str, list[float]]) -> None:
    """The picture in the documentation."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
        looks = ((GREY, "-"), (TEAL, "-"), (ORANGE, "-"), (ORANGE, ":"))
        for (name, values), (colour, style) in zip(taken.items(), looks, strict=True):
            axes.plot(range(1, len(values) + 1), values, color=colour, linestyle=style, label=name)
        axes.set(xlabel="micro-batch", ylabel="resident memory (MB)", ylim=(0, None))
        axes.legend(ncols=2)
        figure.savefig(DOCS / "assets" / "results" / "spark-memory.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main(run)
