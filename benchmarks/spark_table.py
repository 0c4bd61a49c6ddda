"""Tables on Spark: ``match_table`` against the best plans that plain Spark SQL has for the same join.

500,000 profiles of eight ranges (25 % wide, about 8 matches a message) and 100,000 messages, in one session. The
competitors are a broadcast nested-loop join on all sixteen comparisons, and a range join binned by hand on two or three
attributes, measured on a tenth of the messages. ``--docs`` writes the figures into ``docs/spark.md``. Target: 30 times
the better of them with the index built and shipped, 100 times per message once it is warm.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from measure import Inexact, Result, main, progress
from spark_session import FOR_DOCS, load, session, write_table
from tamis.spark import build, match_table
from workloads import NAMES, TEXT

PROFILES, MESSAGES, WIDTH = 500_000, 100_000, 0.25
BINNED = ((2, 16), (3, 8))
"""Attributes and bins of the joins by hand; the best of them counts."""


def tables(scale: float) -> tuple[pa.Table, pa.Table]:
    """Profiles and messages, uniform on [0, 1)."""
    rng = np.random.default_rng(3)
    profiles, messages = int(PROFILES * scale), int(MESSAGES * scale)
    low = rng.uniform(0, 1 - WIDTH, (len(NAMES), profiles))
    columns: dict[str, Any] = {"id": np.arange(profiles)}
    for k, name in enumerate(NAMES):
        columns[f"{name}lo"], columns[f"{name}hi"] = low[k], low[k] + WIDTH
    values = rng.uniform(0, 1, (len(NAMES), messages))
    return pa.table(columns), pa.table({"n": np.arange(messages), **dict(zip(NAMES, values, strict=True))})


def inside() -> Any:
    """All sixteen comparisons."""
    condition = F.lit(True)
    for name in NAMES:
        condition = condition & F.col(name).between(F.col(f"{name}lo"), F.col(f"{name}hi"))
    return condition


def nested_loop(messages: DataFrame, profiles: DataFrame) -> DataFrame:
    """A broadcast nested-loop join: what Spark makes of the join as it is written."""
    return profiles.join(F.broadcast(messages), inside())


def binned(messages: DataFrame, profiles: DataFrame, attributes: int, bins: int) -> DataFrame:
    """A range join by hand: equality on the bins of some attributes, then the exact conditions."""
    keys = []
    for name in NAMES[:attributes]:
        low, high = (F.floor(F.col(f"{name}{end}") * bins).cast("int") for end in ("lo", "hi"))
        profiles = profiles.withColumn(f"{name}bin", F.explode(F.sequence(low, high)))
        messages = messages.withColumn(f"{name}bin", F.floor(F.col(name) * bins).cast("int"))
        keys.append(f"{name}bin")
    return profiles.join(F.broadcast(messages), keys).where(inside())


def pairs(frame: DataFrame) -> DataFrame:
    """The columns that ``match_table`` gives."""
    return frame.select("n", F.col("id").alias("profile"))


def counted(frame: DataFrame) -> tuple[int, int]:
    """How many pairs there are, and a checksum of them: the same work for every side."""
    row = frame.select(F.count("*"), F.sum(F.xxhash64("n", "profile").cast("decimal(38,0)"))).first()
    return int(row[0]), int(row[1] or 0)


def timed(frame: DataFrame) -> tuple[float, tuple[int, int]]:
    """Seconds to compute and count."""
    start = time.perf_counter()
    found = counted(frame)
    return time.perf_counter() - start, found


def run(scale: float = 1.0, repeats: int = 3) -> dict[str, Any]:
    """The benchmark."""
    before, spark = load(), session()
    profile_table, message_table = tables(scale)
    with _saved(profile_table, message_table) as folder:
        result = _measured(spark, folder, message_table, scale, repeats, before)
        spark.stop()
    return result.to_dict()


def _measured(spark: Any, folder: Path, message_table: pa.Table, scale: float, repeats: int, before: str) -> Result:
    profiles, messages = (spark.read.parquet(str(folder / name)).cache() for name in ("profiles", "messages"))
    counts = profiles.count(), messages.count()
    result = Result(
        "spark-table",
        "match_table against Spark SQL joins",
        f"{counts[0]:,} profiles of 8 ranges of 25 %, {counts[1]:,} messages",
        scale,
    )
    share = max(200, counts[1] // 10)
    few = message_table.slice(0, share)
    sample = spark.createDataFrame(few).repartition(1).cache()
    sample.count()
    with progress("table", 3 + repeats) as advance:
        # A first small run: workers start and kernels are compiled or read from the cache.
        counted(match_table(sample, profiles.limit(1000), profile=TEXT, message_id="n").matches)
        advance("nested-loop join")
        loop, right = timed(pairs(nested_loop(sample, profiles)))
        advance("binned join")
        bins, same = min(timed(pairs(binned(sample, profiles, *how))) for how in BINNED)
        advance("match_table")
        all_in: list[float] = []
        warm: list[float] = []
        for _ in range(repeats):
            start = time.perf_counter()
            index = build(profiles, profile=TEXT)
            found = counted(index.match(messages, "n").matches)
            all_in.append(time.perf_counter() - start)
            warm.append(timed(index.match(messages, "n").matches)[0])
            advance("match_table")
        mine = counted(index.match(sample, "n").matches)
    if not mine == right == same:
        raise Inexact(f"the sides differ on {share} messages: match_table {mine}, nested loop {right}, binned {same}")
    best = min(loop, bins) / share
    cold, hot = float(np.median(all_in)) / counts[1], float(np.median(warm)) / counts[1]
    spread = (max(all_in) - min(all_in)) / 2 / float(np.median(all_in))
    result.add("match_table, all in, against the better join", best / cold, "×", 30, spread=spread)
    result.add("match_table, warm, per message", best / hot, "×", 100)
    result.add("match_table, all in", float(np.median(all_in)), "s")
    result.add("match_table, warm", 1 / hot, "messages/s")
    result.add("nested-loop join", share / loop, "messages/s", note=f"measured on {share:,} messages")
    result.add(
        "binned join",
        share / bins,
        "messages/s",
        note=f"measured on {share:,} messages; best of (attributes, bins) {BINNED}",
    )
    result.add("matches a message", found[0] / counts[1], "")
    result.exact = f"equal pairs (number and checksum) for {share:,} messages on all three sides"
    if FOR_DOCS:
        lines = [
            f"| {counts[0]:,} profiles of 8 ranges, {counts[1]:,} messages | messages/s | × the better join |",
            "|---|---|---|",
            f"| Spark SQL: broadcast nested-loop join | {share / loop:,.0f} | {best * share / loop:.1f} |",
            f"| Spark SQL: range join, binned by hand | {share / bins:,.0f} | {best * share / bins:.1f} |",
            f"| `match_table`, index built and shipped | {1 / cold:,.0f} | {best / cold:,.0f} |",
            f"| `match_table`, index warm | {1 / hot:,.0f} | {best / hot:,.0f} |",
            "",
            f"The joins were measured on {share:,} messages; {os.cpu_count()} cores, {before}.",
        ]
        write_table("spark_table", "\n".join(lines))
    return result


@contextmanager
def _saved(profiles: pa.Table, messages: pa.Table) -> Iterator[Path]:
    """Both tables as two files each."""
    with tempfile.TemporaryDirectory(prefix="tamis-benchmark-") as place:
        for name, table in (("profiles", profiles), ("messages", messages)):
            (Path(place) / name).mkdir()
            half = (table.num_rows + 1) // 2
            for part in range(2):
                pq.write_table(table.slice(part * half, half), Path(place) / name / f"{part}.parquet")
        yield Path(place)


if __name__ == "__main__":
    main(run)
