"""Sources on real files and a real broker: good rows come once, bad ones with their place and a reason."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from drain import drained
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafka_broker import Broker
from tamis.errors import UsageError
from tamis.spark.sources import CORRUPT, SOURCE, FileSource, KafkaSource, accepted, source

SCHEMA = "id string, price double, stock bigint, open boolean"

# Every line with the reason for which it must be refused, or the row that it must give.
JSON_LINES: list[tuple[bytes, str | tuple[Any, ...]]] = [
    (b'{"id": "a", "price": 1.5, "stock": 3, "open": true}', ("a", 1.5, 3, True)),
    (b'{"id": "b", "more": [1, 2]}', ("b", None, None, None)),
    (b'{"id": "c", "price": 7}', ("c", 7.0, None, None)),
    (b'{"id": "d", "stock": 1.5}', "stock: expected bigint, got 1.5"),
    (b'{"id": "e", "stock": 9223372036854775808}', "stock: expected bigint, got 9223372036854775808"),
    (b'{"id": "f", "price": "cheap"}', 'price: expected double, got "cheap"'),
    (b'{"id": "g", "open": 1}', "open: expected boolean, got 1"),
    (b'{"id": "h"} and more', "not JSON: Extra data at column 13"),
    (b'{"id": "i"}{"id": "j"}', "not JSON: Extra data at column 12"),
    (b'{"id": "k"}, "stock": 3', "not JSON: Extra data at column 12"),
    (b'{"id": "l"}} x', "not JSON: Extra data at column 12"),
    (b'{"id": "m"}]', "not JSON: Extra data at column 12"),
    (b'{"id": "n"', "not JSON: Expecting ',' delimiter at column 11"),
    (b'[{"id": "o"}]', 'expected an object, got [{"id": "o"}]'),
    (b"null", "expected an object, got null"),
    (b"{'id': 'p'}", "not JSON: Expecting property name enclosed in double quotes at column 2"),
    (b'{"id": "q", "price": NaN}', "not JSON: NaN is not a number of JSON"),
    (b'{"id": "r\xff"}', "not UTF-8"),
    (b'{"price": 2}', "id: no value"),
    (b'{"id": null}', "id: no value"),
    (b"not json at all", "not JSON: Expecting value at column 1"),
    (b'{"id": "\xc3\xa9"}', ("é", None, None, None)),
]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


def expected() -> tuple[list[tuple[Any, ...]], list[tuple[str, str, str]]]:
    good = [meant for _, meant in JSON_LINES if isinstance(meant, tuple)]
    bad = [
        (f"line {number}", meant, line.decode(errors="replace"))
        for number, (line, meant) in enumerate(JSON_LINES, start=1)
        if isinstance(meant, str)
    ]
    return good, bad


@pytest.mark.parametrize("streaming", [False, True])
def test_json_lines(spark: SparkSession, tmp_path: Path, streaming: bool) -> None:
    folder = tmp_path / "in # 1"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join(line for line, _ in JSON_LINES))
    files = FileSource("json", str(folder), SCHEMA, required=["id"])
    frame = files.open(spark, streaming)
    assert frame.columns == ["id", "price", "stock", "open", SOURCE, CORRUPT]
    good, bad = expected()
    taken, refused = accepted(frame), files.rejected(frame)
    if streaming:
        taken, refused = drained(taken, tmp_path / "good"), drained(refused, tmp_path / "bad")
    assert rows(taken) == good
    assert rows(refused.select("place", "reason", "record")) == bad
    (name,) = {row.source for row in refused.collect()}
    assert name.endswith("/in%20%23%201/a.jsonl")


def test_what_is_asked_for_does_not_change_what_is_bad(spark: SparkSession, tmp_path: Path) -> None:
    """Spark skips values that nobody asks for; a row that is bad there must stay bad."""
    (tmp_path / "a.jsonl").write_text('{"id": "a", "price": "cheap"}\n{"id": "b"}\n')
    (tmp_path / "a.csv").write_text("id,price\na,cheap\nb,\n")
    for kind in ("json", "csv"):
        frame = FileSource(kind, f"{tmp_path}/*.{kind[:4]}*", "id string, price double").open(spark, streaming=False)
        assert rows(accepted(frame).select("id")) == [("b",)]
        assert accepted(frame).count() == 1
        assert rows(frame.where(F.col(CORRUPT).isNotNull()).select(F.lit(1))) == [(1,)]


def test_lines_of_a_file_that_many_tasks_read(spark: SparkSession, tmp_path: Path) -> None:
    """Equal bad lines in different parts of a file, with every line ending there is, get each its own number."""
    numbers, text = [], b""
    for number in range(1, 4_001):
        bad = number % 97 == 0
        text += b"broken" if bad else b'{"n": %d, "text": "\xe2\x82\xac"}' % number
        text += (b"\n", b"\r\n", b"\r")[number % 3]
        if bad:
            numbers.append(number)
    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text))
    files = FileSource("json", str(tmp_path), "n bigint, text string")
    old = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(len(text) // 9))
    try:
        frame = files.open(spark, streaming=False)
        assert frame.rdd.getNumPartitions() > 5
        refused = rows(files.rejected(frame).select("source", "place", "reason"))
        count = accepted(frame).count()
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", old or "128m")
    by_file = Counter((name.rpartition("/")[2], place) for name, place, _ in refused)
    assert by_file == Counter((name, f"line {n}") for n in numbers for name in ("a.jsonl", "b.jsonl.gz"))
    assert count == 2 * (4_000 - len(numbers))
    assert {reason for *_, reason in refused} == {"not JSON: Expecting value at column 1"}


def test_a_file_that_is_gone_leaves_the_place_unknown(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("broken\n")
    files = FileSource("json", str(path), "id string")
    frame = files.open(spark, streaming=False).localCheckpoint()
    path.unlink()
    ((_, place, reason, record),) = rows(files.rejected(frame))
    assert (place, record) == ("unknown", "broken")
    assert reason.startswith("not JSON")


CSV = '''id,price,stock,open
a,1.5,3,true
b,,,
"c, with ""quotes""",2,4,false
d,cheap,1,true
e,1,2
f,1,2,true,more

,,,
g,1,99999999999999999999,true
,5,6,false
"",5,6,false
h,1,2,maybe
i,1e3,-2,
'''


@pytest.mark.parametrize("streaming", [False, True])
def test_csv(spark: SparkSession, tmp_path: Path, streaming: bool) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text(CSV)
    files = FileSource("csv", str(folder), SCHEMA, required=["id"])
    frame = files.open(spark, streaming)
    taken, refused = accepted(frame), files.rejected(frame).select("place", "reason", "record")
    if streaming:
        taken, refused = drained(taken, tmp_path / "good"), drained(refused, tmp_path / "bad")
    assert rows(taken) == [
        ("a", 1.5, 3, True),
        ("b", None, None, None),
        ('c, with "quotes"', 2.0, 4, False),
        ("i", 1000.0, -2, None),
    ]
    assert rows(refused) == [
        ("line 5", 'price: expected double, got "cheap"', "d,cheap,1,true"),
        ("line 6", "3 fields, expected 4", "e,1,2"),
        ("line 7", "5 fields, expected 4", "f,1,2,true,more"),
        ("line 9", "every field is empty", ",,,"),
        ("line 10", 'stock: expected bigint, got "99999999999999999999"', "g,1,99999999999999999999,true"),
        ("line 11", "id: no value", ",5,6,false"),
        ("line 12", "id: no value", '"",5,6,false'),
        ("line 13", 'open: expected boolean, got "maybe"', "h,1,2,maybe"),
    ]


def test_a_csv_file_with_other_columns_stops_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("price,id\n1,2\n")
    frame = FileSource("csv", str(tmp_path), "id string, price string").open(spark, streaming=False)
    with pytest.raises(Exception, match="header"):
        frame.collect()


@pytest.mark.parametrize("streaming", [False, True])
def test_parquet(spark: SparkSession, tmp_path: Path, streaming: bool) -> None:
    folder = tmp_path / "in"
    spark.createDataFrame([("a", 1.5), (None, 2.0), ("c", None)], "id string, price double").coalesce(1).write.parquet(
        str(folder)
    )
    files = FileSource("parquet", str(folder), required="id")
    frame = files.open(spark, streaming)
    taken, refused = accepted(frame), files.rejected(frame).select("place", "reason", "record")
    if streaming:
        taken, refused = drained(taken, tmp_path / "good"), drained(refused, tmp_path / "bad")
    assert rows(taken) == [("a", 1.5), ("c", None)]
    assert rows(refused) == [("row 2", "id: no value", '{"price":2.0}')]


def test_the_limit_cuts_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jsonl").write_text(json.dumps({"id": str(number)}) + "\n")
    frame = accepted(FileSource("json", str(folder), "id string", limit=2).open(spark))
    batches: list[int] = []
    query = (
        frame.writeStream.foreachBatch(lambda part, _: batches.append(part.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert batches == [2, 2, 1]


@pytest.mark.parametrize("streaming", [False, True])
def test_kafka(spark: SparkSession, kafka: Broker, tmp_path: Path, streaming: bool) -> None:
    topic = kafka.create("lines", partitions=2)
    kafka.produce(topic, [("k", line) for line, _ in JSON_LINES])
    kafka.produce(topic, [("k", None)])
    offsets = {record.value: f"partition {record.partition} offset {record.offset}" for record in kafka.consume(topic)}
    topics = KafkaSource(kafka.servers, topic, SCHEMA, required=["id"], limit=9)
    frame = topics.open(spark, streaming)
    taken, refused = accepted(frame), topics.rejected(frame)
    if streaming:
        taken, refused = drained(taken, tmp_path / "good"), drained(refused, tmp_path / "bad")
    good, _ = expected()
    assert sorted(rows(taken)) == sorted(good)
    wanted = [
        (topic, offsets[line], meant, line.decode(errors="replace"))
        for line, meant in JSON_LINES
        if isinstance(meant, str)
    ]
    wanted.append((topic, offsets[None], "no value", ""))
    assert sorted(rows(refused)) == sorted(wanted)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ({}, "[s]: the key 'format' is missing; it is one of kafka, json, csv, parquet"),
        ({"format": "jsn"}, "[s]: format: 'jsn' is not known; did you mean 'json'?"),
        ({"format": "json"}, "[s]: the key 'path' is missing"),
        ({"format": "json", "path": 3}, "[s]: path: expected a text, got 3"),
        ({"format": "json", "path": "x", "limit": "2"}, "[s]: limit: expected a whole number, got '2'"),
        ({"format": "json", "path": "x", "limit": 0}, "[s]: limit 0 is not a positive number"),
        ({"format": "csv", "path": "x", "topic": "t"}, "[s]: unknown key 'topic'; known are format, path, schema, req"),
        ({"format": "kafka", "topic": "t", "schema": "id int"}, "[s]: the key 'servers' is missing"),
    ],
)
def test_a_wrong_declaration_says_what_and_where(declaration: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        source(declaration, "[s]")
    assert str(caught.value).startswith(message)


def test_a_wrong_schema_says_so(spark: SparkSession, tmp_path: Path) -> None:
    for schema, required, message in [
        ("id strung", (), "schema 'id strung'"),
        ("id string, _source string", (), "the column _source is made by the source"),
        ("id string", ("di",), "required: 'di' is not a column; known are id"),
    ]:
        with pytest.raises(UsageError, match=message):
            FileSource("json", str(tmp_path), schema, required).open(spark)
    with pytest.raises(UsageError, match="no schema was given and none can be found"):
        FileSource("parquet", str(tmp_path / "none")).open(spark)
