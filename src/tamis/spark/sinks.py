"""Where rows go, exactly once: a Parquet directory, a Kafka topic, a relational table, the screen, a function.

A sink is a function ``(frame, batch)`` for ``foreachBatch``. After a failure Spark may hand the last micro-batch over
once more, with the same number and the same rows. Every sink here makes the second time count for nothing: a batch is
one atomic step that leaves its number behind, under the identity of the query, which lives and dies with the
checkpoint. **The rule for a function of your own** is the same: what it writes must contain the batch number, in one
transaction or one atomic rename, or it must not matter how often it is written. Refuses to know how rows are made.
"""

from __future__ import annotations

import importlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

from tamis.errors import UsageError
from tamis.spark.declaration import build

BOOK: Final = "tamis_batches"
"""The table beside a table sink that knows the last batch of every query."""

_MARKER: Final = "_tamis.json"
_TRANSACTION_MS: Final = 300_000
_SECONDS: Final = 60.0
_ROWS: Final = 10_000
_NESTED: Final = (T.ArrayType, T.MapType, T.StructType)


class Sink(Protocol):
    """Takes the rows of one micro-batch and makes them durable, once."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Called once per micro-batch, or more often with the same number and rows."""
        ...


def sink(declaration: Mapping[str, Any], where: str = "sink") -> Sink:
    """The sink that a table of ``pipeline.toml`` declares; ``where`` is the name of that table in errors.

    >>> sink({"format": "parquet", "path": "deliveries"})
    Parquet(path='deliveries')
    >>> sink({"format": "parquet"}, "[sinks.matches]")
    Traceback (most recent call last):
    tamis.errors.UsageError: [sinks.matches]: the key 'path' is missing
    """
    kinds: dict[str, type[Any]] = {
        "parquet": Parquet,
        "kafka": Kafka,
        "table": Table,
        "console": Console,
        "function": Function,
    }
    made: Sink = build(kinds, declaration, where)
    return made


def start(
    frame: DataFrame,
    sink: Sink,
    checkpoint: str,
    *,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> StreamingQuery:
    """Write a streaming frame to a sink; ``trigger`` as in ``DataStreamWriter.trigger``."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    if name:
        writer = writer.queryName(name)
    return writer.start()


class Outputs:
    """The ``foreachBatch`` function of a stream with several outputs: the stream is computed once for all.

    ``stream`` has a method ``NAME_of(results)`` for every output, which takes its rows out of a micro-batch.
    """

    def __init__(self, stream: Any, sinks: Mapping[str, Any], checkpoint: str | None = None) -> None:
        self._sinks = []
        for name, one in sinks.items():
            if one is None:
                continue
            if not callable(one):
                raise UsageError(f"{name}: expected a sink or a function (frame, batch), got {type(one).__name__}")
            self._sinks.append((getattr(stream, f"{name}_of"), one))
        if not self._sinks:
            raise UsageError("start: give at least one output, such as matches=sinks.Parquet('deliveries')")

    def __call__(self, results: DataFrame, batch: int) -> None:
        """All outputs of one micro-batch."""
        if len(self._sinks) == 1 and getattr(self._sinks[0][1], "reads_once", False):
            view, one = self._sinks[0]
            one(view(results), batch)
            return
        results.persist()
        try:
            for view, one in self._sinks:
                one(view(results), batch)
        finally:
            results.unpersist()


def query_of(frame: DataFrame) -> str:
    """The identity of the query that handed the frame over: it stays across restarts from one checkpoint."""
    found = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:
        raise UsageError("sinks take micro-batches: call them from foreachBatch, or use sinks.start")
    return str(found)


def pass_over(frame: DataFrame) -> None:
    """Compute a micro-batch that is there already, and write nothing.

    What a stream keeps is committed when its rows are computed; Spark ends a query whose rows nobody asked for.
    """
    frame.write.format("noop").mode("overwrite").save()


# -- Parquet -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parquet:
    """A directory with one folder per micro-batch, ``batch=0``, ``batch=1``, ...: written aside, then renamed.

    Atomic where a rename is: on local disks and on HDFS. ``spark.read.parquet(path)`` reads it, also while it grows,
    and gives the column ``batch``. A directory belongs to one query: a second one is refused, since its batches have
    the same numbers.
    """

    path: str
    reads_once: ClassVar[bool] = True

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """One folder, unless it is there already."""
        files, at = self._files(frame.sparkSession)
        self._claim(files, at, query_of(frame))
        if files.exists(at(f"batch={batch}")):
            pass_over(frame)
            return
        for left in files.globStatus(at(f"_aside-{batch}-*")) or ():  # of an earlier try that died
            files.delete(left.getPath(), True)
        aside = f"_aside-{batch}-{uuid.uuid4().hex}"
        frame.drop("batch").write.parquet(f"{self.path.rstrip('/')}/{aside}")
        if not files.rename(at(aside), at(f"batch={batch}")):
            raise OSError(f"{self.path}: {aside} cannot be renamed to batch={batch}")

    def _claim(self, files: Any, at: Callable[[str], Any], query: str) -> None:
        marker = at(_MARKER)
        if files.exists(marker):
            stream = files.open(marker)
            owner = json.loads(bytes(stream.readAllBytes()).decode())["query"]
            stream.close()
            if owner != query:
                raise UsageError(
                    f"{self.path}: holds what query {owner} wrote, this is {query}; choose another directory"
                )
            return
        if files.globStatus(at("*")):
            raise UsageError(f"{self.path}: is not empty and not written by this sink; choose another directory")
        aside = at(f"_aside-{uuid.uuid4().hex}")
        stream = files.create(aside)
        stream.write(bytearray(json.dumps({"query": query}).encode()))
        stream.close()
        if not files.rename(aside, marker):
            raise OSError(f"{self.path}: {_MARKER} cannot be written")

    def _files(self, spark: SparkSession) -> tuple[Any, Callable[[str], Any]]:
        """Hadoop's view of the directory: whatever Spark can write to can be renamed there."""
        jvm: Any = spark._jvm
        path, root = jvm.org.apache.hadoop.fs.Path, self.path.rstrip("/")
        files = path(root).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        return files, lambda name: path(f"{root}/{name}")


# -- Kafka ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kafka:
    """A topic, by one Kafka transaction per micro-batch. Consumers read it with ``isolation.level=read_committed``.

    A record's value is the row as JSON, or the column ``value``; its key is the column ``key``, which also decides the
    partition: rows with one key keep the order of ``order_by``. The batch number is committed in the same transaction,
    as the offset of a consumer group that nobody reads with; the broker keeps it for ``offsets.retention.minutes``
    (7 days) after the last batch, so a pipeline may rest no longer than that between a crash and its restart.

    ``exactly_once=False`` lets Spark's executors write instead of the driver: faster, and repeated after a failure.
    """

    servers: str
    topic: str
    key: str | None = None
    value: str | None = None
    order_by: Sequence[str] = ()
    exactly_once: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    _producers: dict[str, tuple[Any, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)
    reads_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        order = (self.order_by,) if isinstance(self.order_by, str) else tuple(self.order_by)
        object.__setattr__(self, "order_by", order)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """All rows and the batch's number, or nothing."""
        if not self.exactly_once:
            settings = {"kafka.bootstrap.servers": self.servers, "topic": self.topic}
            options = {f"kafka.{name}": text for name, text in self.options.items()}
            rows = frame.orderBy(*self.order_by) if self.order_by else frame
            self._records(rows).write.format("kafka").options(**settings, **options).save()
            return
        name = f"tamis-{query_of(frame)}-{self.topic}"
        try:
            self._transaction(*self._clients(name), self._records(frame, *self.order_by), batch)
        except BaseException:
            self._producers.pop(name, None)  # the next try makes a new one, which ends the transaction of this one
            raise

    def _records(self, frame: DataFrame, *more: str) -> DataFrame:
        value = F.to_json(F.struct("*")) if self.value is None else F.col(self.value).cast("string")
        key = F.lit(None) if self.key is None else F.col(self.key)
        order = (F.col(name).alias(f"#{number}") for number, name in enumerate(more))
        return frame.select(key.cast("string").alias("key"), value.alias("value"), *order)

    def _clients(self, name: str) -> tuple[Any, Any]:
        """A producer of transactions, and the group whose offset is the next batch; kept for the next batch."""
        from confluent_kafka import Consumer, Producer

        if name not in self._producers:
            settings = {"bootstrap.servers": self.servers, **self.options}
            limits = {"transaction.timeout.ms": _TRANSACTION_MS, "linger.ms": 20, "compression.type": "lz4"}
            producer = Producer({**limits, **settings, "transactional.id": name})
            producer.init_transactions(_SECONDS)  # ends what a dead driver left open, shuts a living one out
            self._producers[name] = producer, Consumer({**settings, "group.id": name, "enable.auto.commit": False})
        return self._producers[name]

    def _transaction(self, producer: Any, group: Any, records: DataFrame, batch: int) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        if self._last(group) >= batch:
            pass_over(records)
            return
        failures: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(str(error))

        rows = records.toArrow()
        if self.order_by:  # here and not by Spark: the rows are here anyway, and a sort there is a shuffle
            rows = rows.sort_by([(f"#{number}", "ascending") for number in range(len(self.order_by))])
        producer.begin_transaction()
        for part in rows.select(["key", "value"]).to_batches(max_chunksize=_ROWS):
            for key, value in zip(*(column.to_pylist() for column in part.columns), strict=True):
                self._produce(producer, key, value, delivered)
            producer.poll(0)
        if producer.flush(_SECONDS) or failures:
            raise KafkaException(f"{self.topic}: {failures[0] if failures else 'the broker does not answer'}")
        offsets = [TopicPartition(self.topic, 0, batch + 1)]
        producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), _SECONDS)
        producer.commit_transaction(_SECONDS)

    def _last(self, group: Any) -> int:
        """The last batch that a transaction of this query committed, -1 when there is none."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        passing = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE}
        passing |= {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError._WAIT_COORD}
        end = time.monotonic() + _SECONDS
        while True:
            try:
                (done,) = group.committed([TopicPartition(self.topic, 0)], timeout=_SECONDS)
            except KafkaException as error:  # a broker that has just started is still choosing who keeps offsets
                if error.args[0].code() not in passing or time.monotonic() > end:
                    raise
                time.sleep(0.1)
                continue
            return int(done.offset) - 1 if done.offset >= 0 else -1

    def _produce(self, producer: Any, key: Any, value: Any, delivered: Callable[[Any, Any], None]) -> None:
        while True:
            try:
                producer.produce(self.topic, value=value, key=key, on_delivery=delivered)
                return
            except BufferError:  # the queue is full: let it drain
                producer.poll(1)


# -- relational tables ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table of a database, by one transaction per micro-batch that also records the batch's number.

    ``url`` is ``postgresql://...`` (psycopg, with COPY), ``sqlite:///path``, or a function that opens a connection of
    any Python driver whose parameter mark is ``mark``. The table is made if missing, and beside it ``tamis_batches``,
    one row per query. Arrays and structs become JSON text. The rows of a micro-batch go through Spark's driver.
    """

    url: str | Callable[[], Any]
    table: str
    mark: str = "?"
    reads_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w+(\.\w+)*", self.table):
            raise UsageError(f"table {self.table!r} cannot be the name of a table")
        if isinstance(self.url, str) and not self.url.startswith(("postgresql://", "postgres://", "sqlite:///")):
            raise UsageError(f"url {self.url!r} must begin with postgresql:// or sqlite:///")

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Rows and the batch's number, in one transaction; nothing when the number is there."""
        query, rows = query_of(frame), self._plain(frame)
        with self._connection() as (connection, mark):
            cursor = connection.cursor()
            columns = ", ".join(f"{_quoted(one.name)} {_sql(one.dataType)}" for one in rows.schema.fields)
            cursor.execute(f"create table if not exists {self.table} ({columns})")
            cursor.execute(
                f"create table if not exists {BOOK} "
                "(query varchar(100), output varchar(200), batch bigint not null, primary key (query, output))"
            )
            connection.commit()
            if self._claim(cursor, mark, query, batch):
                self._insert(cursor, mark, rows)
                connection.commit()
                return
        pass_over(rows)

    def _claim(self, cursor: Any, mark: str, query: str, batch: int) -> bool:
        """Record the batch; False when it or a later one is recorded. The row stays locked until the commit."""
        mine = f"query = {mark} and output = {mark}"
        cursor.execute(
            f"update {BOOK} set batch = {mark} where {mine} and batch < {mark}", (batch, query, self.table, batch)
        )
        if cursor.rowcount == 1:
            return True
        cursor.execute(f"select batch from {BOOK} where {mine}", (query, self.table))
        if cursor.fetchone() is not None:
            return False
        cursor.execute(
            f"insert into {BOOK} (query, output, batch) values ({mark}, {mark}, {mark})", (query, self.table, batch)
        )
        return True

    def _insert(self, cursor: Any, mark: str, rows: DataFrame) -> None:
        names = ", ".join(_quoted(name) for name in rows.columns)
        parts = (
            zip(*(column.to_pylist() for column in part.columns), strict=True)
            for part in rows.toArrow().to_batches(max_chunksize=_ROWS)
        )
        if hasattr(cursor, "copy"):
            with cursor.copy(f"copy {self.table} ({names}) from stdin") as copy:
                for part in parts:
                    for row in part:
                        copy.write_row(row)
            return
        for part in parts:
            marks = ", ".join([mark] * len(rows.columns))
            cursor.executemany(f"insert into {self.table} ({names}) values ({marks})", list(part))

    def _plain(self, frame: DataFrame) -> DataFrame:
        """The rows in types that the driver of the database takes."""
        texts: tuple[type[T.DataType], ...] = ()
        if isinstance(self.url, str) and self.url.startswith("sqlite"):
            texts = (T.TimestampType, T.TimestampNTZType, T.DateType, T.DecimalType)
        columns = []
        for one in frame.schema.fields:
            column = F.col("`" + one.name.replace("`", "``") + "`")
            if isinstance(one.dataType, _NESTED):
                column = F.to_json(column)
            elif isinstance(one.dataType, texts):
                column = column.cast("string")
            columns.append(column.alias(one.name))
        return frame.select(*columns)

    @contextmanager
    def _connection(self) -> Iterator[tuple[Any, str]]:
        """An open connection and its parameter mark; what is not committed is undone, whatever happens."""
        if not isinstance(self.url, str):
            connection, mark = self.url(), self.mark
        elif self.url.startswith("sqlite"):
            import sqlite3

            connection, mark = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=_SECONDS), "?"
        else:
            import psycopg

            connection, mark = psycopg.connect(self.url), "%s"
        try:
            yield connection, mark
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()


_SQL: Final[dict[type[T.DataType], str]] = {
    T.ByteType: "smallint",
    T.ShortType: "smallint",
    T.IntegerType: "integer",
    T.LongType: "bigint",
    T.FloatType: "real",
    T.DoubleType: "double precision",
    T.BooleanType: "boolean",
    T.DateType: "date",
    T.TimestampType: "timestamp with time zone",
    T.TimestampNTZType: "timestamp",
    T.BinaryType: "bytea",
}


def _sql(kind: T.DataType) -> str:
    if isinstance(kind, T.DecimalType):
        return f"decimal({kind.precision}, {kind.scale})"
    return _SQL.get(type(kind), "text")


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


# -- the screen, and functions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Console:
    """The first rows of every micro-batch on the screen, and how many there are in all."""

    rows: int = 20

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Print; a repeated batch is printed again."""
        found = frame.take(self.rows)
        print(f"batch {batch}: {frame.count()} rows")
        for row in found:
            print("  " + ", ".join(f"{name}={value}" for name, value in row.asDict().items()))


@dataclass(frozen=True)
class Function:
    """A function ``(frame, batch)`` of your own, itself or as ``"package.module:name"``; see the rule above."""

    function: str | Callable[[DataFrame, int], None]
    _found: list[Callable[[DataFrame, int], None]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._found.append(self.function if callable(self.function) else _imported(self.function))

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Hand the batch on."""
        self._found[0](frame, batch)


def _imported(name: str) -> Callable[[DataFrame, int], None]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"function {name!r}: expected 'package.module:name': {error}") from None
    if not callable(found):
        raise UsageError(f"function {name!r}: is not a function")
    return found  # type: ignore[no-any-return]
