"""Sinks for the outputs of one stream, each exactly once.

Spark may hand the last micro-batch over once more after a failure, with the same number and the same rows. Every sink
here makes that count for nothing: a batch is one atomic step that leaves its number behind. A function of your own must
do the same, for instance by replacing the rows that carry the batch number. Refuses to know how matches are made.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from tamis.errors import UsageError

if TYPE_CHECKING:
    from .stream import MatchStream


class Sink(Protocol):
    """Takes the rows of one micro-batch; ``bind`` is called once before, with the checkpoint."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Make the rows durable, once."""
        ...


class Outputs:
    """The ``foreachBatch`` function of a stream with several outputs: the stream is computed once for all."""

    def __init__(self, stream: MatchStream, sinks: Mapping[str, Any], checkpoint: str) -> None:
        views = {"matches": stream.matches_of, "rejected": stream.rejected_of, "figures": stream.figures_of}
        self._sinks = [(views[name], _checked(name, sink)) for name, sink in sinks.items() if sink is not None]
        if not self._sinks:
            raise UsageError("start: give at least one output, such as matches=sinks.parquet('deliveries')")
        for _, sink in self._sinks:
            if hasattr(sink, "bind"):
                sink.bind(stream.results.sparkSession, checkpoint)

    def __call__(self, results: DataFrame, batch: int) -> None:
        """All outputs of one micro-batch."""
        if len(self._sinks) == 1 and getattr(self._sinks[0][1], "reads_once", False):
            view, sink = self._sinks[0]
            sink(view(results), batch)
            return
        results.persist()
        try:
            for view, sink in self._sinks:
                sink(view(results), batch)
        finally:
            results.unpersist()


def _checked(name: str, sink: Any) -> Any:
    if not callable(sink):
        raise UsageError(f"{name}: expected a sink or a function (frame, batch), got {type(sink).__name__}")
    return sink


# -- Parquet ---------------------------------------------------------------------------------------------------


@dataclass
class Parquet:
    """A directory with one folder per micro-batch, ``batch=0``, ``batch=1``, ...: written aside, then renamed."""

    path: str
    reads_once = True

    def bind(self, spark: Any, checkpoint: str) -> None:
        """Refuse a directory that has the batches of another checkpoint: their numbers would be mistaken for ours."""
        marker = f"{self.path.rstrip('/')}/_tamis.json"
        fs, hadoop = self._files(spark, self.path)
        path = hadoop(marker)
        if fs.exists(path):
            stream = fs.open(path)
            known = json.loads(bytes(stream.readAllBytes()).decode())["checkpoint"]
            stream.close()
            if known != checkpoint:
                raise UsageError(f"{self.path}: has the deliveries of checkpoint {known}; choose another directory")
            return
        if fs.exists(hadoop(self.path)) and len(fs.listStatus(hadoop(self.path))):
            raise UsageError(f"{self.path}: exists and is not a directory of deliveries; choose another")
        stream = fs.create(path)
        stream.write(bytearray(json.dumps({"checkpoint": checkpoint}).encode()))
        stream.close()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """One folder, unless it is there already."""
        fs, hadoop = self._files(frame.sparkSession, self.path)
        root = self.path.rstrip("/")
        final = hadoop(f"{root}/batch={batch}")
        if fs.exists(final):
            return
        aside = f"{root}/_aside-{batch}-{uuid.uuid4().hex}"
        frame.drop("batch").write.parquet(aside)
        if not fs.rename(hadoop(aside), final):
            raise OSError(f"{aside}: cannot be renamed to batch={batch}")

    @staticmethod
    def _files(spark: Any, path: str) -> tuple[Any, Callable[[str], Any]]:
        jvm = spark._jvm
        hadoop = jvm.org.apache.hadoop.fs.Path
        return hadoop(path).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), hadoop


def parquet(path: str) -> Parquet:
    """A directory of Parquet files; ``spark.read.parquet(path)`` reads it, also while the stream runs."""
    return Parquet(path)


# -- relational ------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """A table of a database, by one transaction per micro-batch."""

    connect: Callable[[], Any]
    table: str
    mark: str = "?"
    reads_once = True
    _checkpoint: str = ""

    def bind(self, spark: Any, checkpoint: str) -> None:
        """Remember whose batches these are."""
        self._checkpoint = checkpoint

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Rows and the batch's number, in one transaction; nothing when the number is there."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            types = ", ".join(f"{_name(f.name)} {_SQL.get(type(f.dataType), 'text')}" for f in frame.schema)
            cursor.execute(f"create table if not exists {self.table} ({types})")
            cursor.execute(
                "create table if not exists tamis_batches (output varchar(200), checkpoint_path varchar(400), "
                "batch bigint, primary key (output, checkpoint_path, batch))"
            )
            connection.commit()
            mine = (self.table, self._checkpoint, batch)
            cursor.execute(
                f"select 1 from tamis_batches where output = {self.mark} and checkpoint_path = {self.mark} "
                f"and batch = {self.mark}",
                mine,
            )
            if cursor.fetchone() is not None:
                return
            rows = [tuple(row) for row in frame.collect()]
            if rows:
                names, marks = ", ".join(_name(c) for c in frame.columns), ", ".join([self.mark] * len(frame.columns))
                cursor.executemany(f"insert into {self.table} ({names}) values ({marks})", rows)
            marks = ", ".join([self.mark] * 3)
            cursor.execute(f"insert into tamis_batches values ({marks})", mine)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        finally:
            connection.close()


_SQL = {
    T.LongType: "bigint",
    T.IntegerType: "bigint",
    T.DoubleType: "double precision",
    T.TimestampType: "timestamp",
    T.BooleanType: "boolean",
}


def _name(column: str) -> str:
    if not re.fullmatch(r"\w+", column):
        raise UsageError(f"table: {column!r} cannot be the name of a column; rename it")
    return f'"{column}"'


def table(connect: Callable[[], Any], table: str, mark: str = "?") -> Table:
    """A table of any database with a Python driver: ``connect`` opens a connection, ``mark`` is its parameter mark.

    The rows of a micro-batch go through the driver. Table and bookkeeping (``tamis_batches``) are made if missing.
    """
    if not re.fullmatch(r"\w+(\.\w+)*", table):
        raise UsageError(f"table: {table!r} cannot be the name of a table")
    return Table(connect, table, mark)


# -- for people ------------------------------------------------------------------------------------------------


@dataclass
class Console:
    """Rows on the screen."""

    rows: int = 20

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """The first rows; how many there are in all."""
        found: Sequence[Any] = frame.take(self.rows)
        print(f"batch {batch}: {frame.count()} rows")
        for row in found:
            print("  " + ", ".join(f"{name}={value}" for name, value in row.asDict().items()))


def console(rows: int = 20) -> Console:
    """The first rows of every micro-batch on the screen."""
    return Console(rows)
