"""Sinks on local Spark, a real broker and a real database: every row once, whatever dies, whatever is repeated."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_broker import Broker
from tamis.errors import UsageError
from tamis.spark import sinks
from tamis.spark.sinks import BOOK, Console, Function, Kafka, Parquet, Sink, Table, sink
from tamis.spark.sources import FileSource, accepted

DRIVER = Path(__file__).with_name("sink_driver.py")
ALL = {"availableNow": True}


class Crash(Exception):
    """What a test throws where a machine would die."""


def numbers(folder: Path, files: int, rows: int = 10) -> list[int]:
    """Files of consecutive numbers, in the order in which Spark takes them: by time of change."""
    folder.mkdir()
    now = time.time() - files
    for file in range(files):
        path = folder / f"{file:04}.jsonl"
        lines = (json.dumps({"n": file * rows + row, "k": str(row % 3)}) for row in range(rows))
        path.write_text("\n".join(lines))
        os.utime(path, (now + file, now + file))
    return list(range(files * rows))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return accepted(FileSource("json", str(folder), "n bigint, k string", limit=1).open(spark))


@pytest.fixture(params=["parquet", "kafka", "postgres", "sqlite"])
def made(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> tuple[Sink, Callable[[], list[int]]]:
    """Every exact sink, and how its numbers are read back."""
    if request.param == "parquet":
        folder = str(tmp_path / "out")
        return Parquet(folder), lambda: sorted(row.n for row in spark.read.parquet(folder).collect())
    if request.param == "kafka":
        broker: Broker = request.getfixturevalue("kafka")
        topic = broker.create("sink", partitions=2)
        return Kafka(broker.servers, topic, key="k", order_by=["n"]), lambda: sorted(in_topic(broker, topic))
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres")
        return Table(url, "numbers"), lambda: sorted(in_postgres(url))
    path = tmp_path / "numbers.db"
    return Table(f"sqlite:///{path}", "numbers"), lambda: sorted(in_sqlite(path))


def in_topic(broker: Broker, topic: str) -> list[int]:
    return [json.loads(record.value or b"")["n"] for record in broker.consume(topic)]


def in_postgres(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [n for (n,) in connection.execute("select n from numbers")]


def in_sqlite(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [n for (n,) in connection.execute("select n from numbers")]


def test_a_crash_before_or_after_the_commit_of_a_batch(
    spark: SparkSession, tmp_path: Path, made: tuple[Sink, Callable[[], list[int]]]
) -> None:
    """Batch 1 dies before it is written, batch 2 after: Spark repeats both, the sink has both once."""
    written, read = made
    wanted = numbers(tmp_path / "in", files=4)
    crashes = {(1, "before"), (2, "after")}
    seen: list[int] = []

    def write(frame: DataFrame, batch: int) -> None:
        seen.append(batch)
        for moment in ("before", "after"):
            if moment == "after":
                written(frame, batch)
            if (batch, moment) in crashes:
                crashes.discard((batch, moment))
                raise Crash(f"{batch} {moment}")

    frame, checkpoint = stream(spark, tmp_path / "in"), str(tmp_path / "checkpoint")
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="Crash"):
            sinks.start(frame, write, checkpoint, trigger=ALL).awaitTermination()
    assert sinks.start(frame, write, checkpoint, trigger=ALL).awaitTermination(120)
    assert seen == [0, 1, 1, 2, 2, 3]
    assert read() == wanted


def test_a_crash_inside_a_batch_leaves_nothing_of_it(
    spark: SparkSession, tmp_path: Path, made: tuple[Sink, Callable[[], list[int]]]
) -> None:
    """A batch whose rows cannot all be computed is not there, and comes whole when they can."""
    written, read = made
    wanted = numbers(tmp_path / "in", files=2)
    broken = tmp_path / "broken"
    broken.touch()
    flag = str(broken)

    @F.udf("bigint")  # type: ignore[untyped-decorator]
    def fragile(n):  # type: ignore[no-untyped-def]  # Spark takes hints for a wish for another kind of function
        if n == 17 and os.path.exists(flag):
            raise ValueError("a row that cannot be computed")
        return n

    frame = stream(spark, tmp_path / "in").select(fragile("n").alias("n"), "k")
    with pytest.raises(StreamingQueryException):
        sinks.start(frame, written, str(tmp_path / "checkpoint"), trigger=ALL).awaitTermination()
    assert read() == wanted[:10]
    broken.unlink()
    assert sinks.start(frame, written, str(tmp_path / "checkpoint"), trigger=ALL).awaitTermination(120)
    assert read() == wanted


def test_a_new_checkpoint_is_a_new_query(spark: SparkSession, tmp_path: Path, postgres: str, kafka: Broker) -> None:
    """Batch 0 of a second query is not taken for a repetition of batch 0 of the first; a directory is refused."""
    wanted = numbers(tmp_path / "in", files=1)
    topic = kafka.create("two")
    table, records, folder = Table(postgres, "numbers"), Kafka(kafka.servers, topic), Parquet(str(tmp_path / "out"))
    for turn in (1, 2):
        for name, one in (("table", table), ("topic", records)):
            query = sinks.start(stream(spark, tmp_path / "in"), one, str(tmp_path / f"{name}-{turn}"), trigger=ALL)
            assert query.awaitTermination(120)
        assert sorted(in_postgres(postgres)) == sorted(wanted * turn)
        assert sorted(in_topic(kafka, topic)) == sorted(wanted * turn)
    sinks.start(stream(spark, tmp_path / "in"), folder, str(tmp_path / "folder-1"), trigger=ALL).awaitTermination(120)
    with pytest.raises(StreamingQueryException, match="choose another directory"):
        sinks.start(stream(spark, tmp_path / "in"), folder, str(tmp_path / "folder-2"), trigger=ALL).awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(wanted)


def test_killed_drivers(tmp_path: Path, kafka: Broker, postgres: str) -> None:
    """SIGKILL at random moments of a query with four sinks: each has every number once, topics in order per key."""
    chance = random.Random(7)
    wanted = numbers(tmp_path / "in", files=16)
    topic = kafka.create("killed", partitions=3)
    settings = {
        "files": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "parquet": str(tmp_path / "out"),
        "servers": kafka.servers,
        "topic": topic,
        "postgres": postgres,
        "sqlite": f"sqlite:///{tmp_path}/numbers.db",
    }
    kills = 0
    for _ in range(20):
        command = [sys.executable, str(DRIVER), json.dumps(settings)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as driver:
            assert driver.stdout is not None
            last = driver.stdout.readline()
            if kills < 3 and last.startswith("batch"):
                time.sleep(chance.uniform(0, 1.5))
                os.killpg(driver.pid, signal.SIGKILL)
                kills += 1
                continue
            *_, last = [last, *driver.stdout]
        assert driver.returncode == 0
        assert last == "end\n"
        break
    assert kills == 3
    assert sorted(in_postgres(postgres)) == wanted
    assert sorted(in_sqlite(tmp_path / "numbers.db")) == wanted
    found = in_topic(kafka, topic)
    assert sorted(found) == wanted
    per_key: dict[bytes | None, list[int]] = defaultdict(list)
    for record in kafka.consume(topic):
        per_key[record.key].append(json.loads(record.value or b"")["n"])
    assert all(sent == sorted(sent) for sent in per_key.values())
    import pyarrow.dataset as ds

    assert sorted(ds.dataset(tmp_path / "out", partitioning="hive").to_table()["n"].to_pylist()) == wanted


def test_every_type_of_column_in_a_table(spark: SparkSession, tmp_path: Path, postgres: str) -> None:
    numbers(tmp_path / "in", files=1, rows=1)
    frame = stream(spark, tmp_path / "in").select(
        F.col("n").alias("a column"),
        F.lit(1.5).alias("d"),
        F.lit(True).alias("b"),
        F.lit(None).cast("string").alias("nothing"),
        F.lit("tab\tand\nline\\N").alias("s"),
        F.to_timestamp(F.lit("2024-05-06 07:08:09")).alias("t"),
        F.to_date(F.lit("2024-05-06")).alias("day"),
        F.lit(Decimal("1.25")).cast("decimal(5,2)").alias("dec"),
        F.array(F.lit("p"), F.lit("q")).alias("list"),
    )
    path = tmp_path / "types.db"
    for number, url in enumerate((postgres, f"sqlite:///{path}")):
        query = sinks.start(frame, Table(url, "types"), str(tmp_path / f"checkpoint-{number}"), trigger=ALL)
        assert query.awaitTermination(120)
    with psycopg.connect(postgres) as connection:
        connection.execute("set time zone 'UTC'")
        row = connection.execute("select * from types").fetchone()
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    shared = (0, 1.5, True, None, "tab\tand\nline\\N")
    assert row == (*shared, moment, date(2024, 5, 6), Decimal("1.25"), '["p","q"]')
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("select * from types").fetchone()
    assert found == (*shared, "2024-05-06 07:08:09", "2024-05-06", "1.25", '["p","q"]')


def test_the_book_of_batches_does_not_grow(spark: SparkSession, tmp_path: Path, postgres: str) -> None:
    numbers(tmp_path / "in", files=5)
    query = sinks.start(stream(spark, tmp_path / "in"), Table(postgres, "numbers"), str(tmp_path / "c"), trigger=ALL)
    assert query.awaitTermination(120)
    with psycopg.connect(postgres) as connection:
        assert connection.execute(f"select query, output, batch from {BOOK}").fetchall() == [(query.id, "numbers", 4)]


def test_spark_writes_a_topic_itself_when_repetition_does_not_matter(
    spark: SparkSession, tmp_path: Path, kafka: Broker
) -> None:
    wanted = numbers(tmp_path / "in", files=2)
    topic = kafka.create("plain")
    one = Kafka(kafka.servers, topic, key="k", exactly_once=False)
    assert sinks.start(stream(spark, tmp_path / "in"), one, str(tmp_path / "c"), trigger=ALL).awaitTermination(120)
    assert sorted(in_topic(kafka, topic)) == wanted


def test_console_and_function(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers(tmp_path / "in", files=1)
    seen: list[tuple[int, int]] = []

    def mine(frame: DataFrame, batch: int) -> None:
        seen.append((batch, frame.count()))

    frame = stream(spark, tmp_path / "in")
    assert sinks.start(frame, Function(mine), str(tmp_path / "f"), trigger=ALL).awaitTermination(120)
    assert seen == [(0, 10)]
    capsys.readouterr()
    assert sinks.start(frame, Console(rows=2), str(tmp_path / "c"), trigger=ALL).awaitTermination(120)
    assert capsys.readouterr().out == "batch 0: 10 rows\n  n=0, k=0\n  n=1, k=1\n"
    assert sink({"format": "function", "function": "json:dumps"}) == Function("json:dumps")


def test_a_sink_outside_of_a_stream_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="call them from foreachBatch"):
        Parquet(str(tmp_path / "out"))(spark.range(3).toDF("n"), 0)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (
            {"format": "table", "url": "mysql://x", "table": "t"},
            "[s]: url 'mysql://x' must begin with postgresql:",
        ),
        ({"format": "table", "url": "sqlite:///x", "table": "t; drop"}, "[s]: table 't; drop' cannot be the name"),
        ({"format": "kafka", "servers": "x"}, "[s]: the key 'topic' is missing"),
        (
            {"format": "kafka", "servers": "x", "topic": "t", "exactly_once": "no"},
            "[s]: exactly_once: expected true",
        ),
        (
            {"format": "function", "function": "no.such:thing"},
            "[s]: function 'no.such:thing': expected 'package",
        ),
        ({"format": "console", "rwos": 3}, "[s]: unknown key 'rwos'; did you mean 'rows'?"),
        ({"format": "delta"}, "[s]: format: 'delta' is not known; known are parquet, kafka, table, console, function"),
    ],
)
def test_a_wrong_declaration_says_what_and_where(declaration: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        sink(declaration, "[s]")
    assert str(caught.value).startswith(message)
