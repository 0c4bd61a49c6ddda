"""Where events come from: directories of JSON lines, CSV or Parquet, and Kafka topics, as (streaming) DataFrames.

Guarantees that no record is lost and none is half read. A frame of :meth:`open` has the columns of the schema and two
more: ``_source`` says where the row came from, and ``_corrupt_record`` holds the text of a record that does not fit the
schema, null for all others. Rows of a topic also have ``_partition``, since order holds inside a partition only.
:func:`accepted` keeps the good rows; ``rejected`` the others, with the line of the file or
the offset of the topic and a reason for people. Refuses to know events, filters and sinks.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tamis.errors import UsageError
from tamis.spark.declaration import build

SOURCE: Final = "_source"
CORRUPT: Final = "_corrupt_record"
PARTITION: Final = "_partition"
REJECTED: Final = "source string, place string, reason string, record string"

_FORMATS: Final = ("json", "csv", "parquet")
# Strict JSON: what Python's json module takes is taken, what it refuses is refused.
_JSON: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_WHOLE: Final[dict[type[T.DataType], int]] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}


class Source(Protocol):
    """What every source can do."""

    def open(self, spark: SparkSession, streaming: bool = True) -> DataFrame:
        """The rows, good and bad."""
        ...

    def rejected(self, frame: DataFrame) -> DataFrame:
        """The bad rows of what :meth:`open` returned, as ``source``, ``place``, ``reason``, ``record``."""
        ...


def source(declaration: Mapping[str, Any], where: str = "source") -> Source:
    """The source that a table of ``pipeline.toml`` declares; ``where`` is the name of that table in errors.

    >>> source({"format": "json", "path": "in", "schema": {"id": "string", "price": "double"}})
    FileSource(format='json', path='in', schema='`id` string, `price` double', ...)
    >>> source({"format": "json", "paht": "in"}, "[sources.messages]")
    Traceback (most recent call last):
    tamis.errors.UsageError: [sources.messages]: unknown key 'paht'; did you mean 'path'?
    """
    return build({"kafka": KafkaSource, **dict.fromkeys(_FORMATS, FileSource)}, declaration, where)


def accepted(frame: DataFrame) -> DataFrame:
    """The rows that fit the schema, with the columns of the schema only."""
    return frame.where(F.col(CORRUPT).isNull()).drop(SOURCE, CORRUPT, PARTITION)


@dataclass(frozen=True)
class FileSource:
    """A directory (or one file, or a pattern) of JSON lines, CSV or Parquet.

    ``schema`` is Spark's text form or a table of names and types; without it the files that are there decide, which
    suits Parquet. A row without a value in a ``required`` column is rejected. A new file is read when it appears: move
    it into the directory whole. ``limit`` is the number of files per micro-batch.

    CSV has a header line, checked against the schema: a file with other columns stops the stream, since none of its
    rows could be trusted. Blank lines are skipped; records do not span lines.
    """

    format: str
    path: str
    schema: str | Mapping[str, str] | None = None
    required: Sequence[str] = ()
    limit: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise UsageError(f"format {self.format!r} is not one of {', '.join(_FORMATS)}")
        _normalise(self)

    def open(self, spark: SparkSession, streaming: bool = True) -> DataFrame:
        """The rows, good and bad. Every row of a file comes once, in the order of the file."""
        schema = self._schema(spark)
        reader: Any = spark.readStream if streaming else spark.read
        reader = reader.options(**self.options)
        if streaming and self.limit:
            reader = reader.option("maxFilesPerTrigger", self.limit)
        if self.format == "parquet":
            rows: DataFrame = reader.schema(schema).parquet(self.path)
            source = _at(F.col("_metadata.file_path"), F.col("_metadata.row_index"))
            record = F.when(_lacks(self.required), F.to_json(F.struct(*map(_named, schema.names))))
            return rows.select(*map(_named, schema.names), source, record.cast("string").alias(CORRUPT))
        source = _at(F.col("_metadata.file_path"), F.nullif(F.col("_metadata.file_block_start"), F.lit(0)))
        if self.format == "csv":
            return self._csv(reader, schema, source)
        lines = reader.text(self.path).where("trim(value) != ''")
        return _parsed(lines, schema, self.required, source)

    def rejected(self, frame: DataFrame) -> DataFrame:
        """The bad rows, each with the number of its line (Parquet: of its row, from 1)."""
        schema = T.StructType([f for f in frame.schema.fields if f.name not in (SOURCE, CORRUPT)])
        rows = frame.where(F.col(CORRUPT).isNotNull()).select(SOURCE, CORRUPT)
        return rows.mapInArrow(_Located(self.format, schema, tuple(self.required), dict(self.options)), REJECTED)

    def _csv(self, reader: Any, schema: T.StructType, source: Column) -> DataFrame:
        with_record = T.StructType([*schema.fields, T.StructField(CORRUPT, T.StringType())])
        options: dict[str, Any] = {"header": True, "enforceSchema": False, "columnPruning": False, "escape": '"'}
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT} | dict(self.options)
        rows: DataFrame = reader.schema(with_record).options(**options).csv(self.path)
        # Spark refuses to look at the record alone; the test for rows without any value names all other columns too.
        lacking = F.coalesce(*(_named(name).cast("string") for name in schema.names)).isNull()
        plain = F.to_csv(F.struct(*map(_named, schema.names)), {"sep": options.get("sep", ","), "escape": '"'})
        bad = F.coalesce(F.col(CORRUPT), F.when(lacking | _lacks(self.required), plain))
        return rows.select(*map(_named, schema.names), source, bad.alias(CORRUPT))

    def _schema(self, spark: SparkSession) -> T.StructType:
        if self.schema is not None:
            return _parse(str(self.schema), self.required)
        reader = spark.read.options(**{"header": "true", "inferSchema": "true"} | dict(self.options))
        try:
            return reader.format(self.format).load(self.path).schema
        except Exception as error:
            text = str(error).splitlines()[0]
            raise UsageError(f"{self.path}: no schema was given and none can be found there: {text}") from error


@dataclass(frozen=True)
class KafkaSource:
    """Topics of a Kafka broker whose values are JSON objects.

    ``topic`` may name several with commas; ``starting`` is where a query without a checkpoint begins, ``limit`` the
    number of records per micro-batch, ``options`` go to the connector as they are (``kafka.security.protocol``, ...).
    Only committed records are read. A record without a value is rejected like any other that is not an object.
    """

    servers: str
    topic: str
    schema: str | Mapping[str, str]
    required: Sequence[str] = ()
    starting: str = "earliest"
    limit: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    format: str = "kafka"

    def __post_init__(self) -> None:
        _normalise(self)

    def open(self, spark: SparkSession, streaming: bool = True) -> DataFrame:
        """The rows, good and bad. ``_source`` is ``topic/partition#offset``, ``_partition`` is ``topic/partition``."""
        schema = _parse(str(self.schema), self.required)
        options = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.topic,
            "startingOffsets": self.starting,
            "kafka.isolation.level": "read_committed",
        } | dict(self.options)
        if self.limit and streaming:
            options["maxOffsetsPerTrigger"] = str(self.limit)
        reader: Any = spark.readStream if streaming else spark.read
        records = _load_kafka(reader.format("kafka").options(**options))
        partition = F.concat_ws("/", F.col("topic"), F.col("partition"))
        value = F.coalesce(F.col("value").cast("string"), F.lit("")).alias("value")
        lines = records.select(value, _at(partition, F.col("offset")), partition.alias(PARTITION))
        return _parsed(lines, schema, self.required, F.col(SOURCE), PARTITION)

    def rejected(self, frame: DataFrame) -> DataFrame:
        """The bad rows, each with its partition and offset."""
        schema = T.StructType([f for f in frame.schema.fields if f.name not in (SOURCE, CORRUPT, PARTITION)])
        rows = frame.where(F.col(CORRUPT).isNotNull()).select(SOURCE, CORRUPT)
        return rows.mapInArrow(_Located("kafka", schema, tuple(self.required), {}), REJECTED)


# -- parsing -------------------------------------------------------------------------------------------------------


def _parsed(lines: DataFrame, schema: T.StructType, required: Sequence[str], source: Column, *more: str) -> DataFrame:
    """Lines of JSON as rows; ``more`` names columns to keep as they are.

    Spark's parser stops after the first value and ignores what follows. A line that is one value both inside an object
    and inside an array is one value and nothing else. Spark never prunes a parser that has options, so a row is good or
    bad whatever columns are asked for.
    """
    wrapped = T.StructType([T.StructField("r", schema), T.StructField(CORRUPT, T.StringType())])
    value = F.col("value")
    inside = F.from_json(
        F.concat(F.lit('{"r":'), value, F.lit("}")), wrapped, {**_JSON, "columnNameOfCorruptRecord": CORRUPT}
    )
    rows = lines.select(value, source, *more, inside.alias("parsed"))
    single = F.json_array_length(F.concat(F.lit("["), value, F.lit("]")))
    good = F.col(f"parsed.{CORRUPT}").isNull() & F.col("parsed.r").isNotNull()
    good = good & F.coalesce(single == 1, F.lit(False)) & F.is_valid_utf8(value)
    fields = [F.col("parsed.r").getField(name).alias(name) for name in schema.names]
    parsed = rows.select(*fields, SOURCE, *more, good.alias("#good"), value.alias("#value"))
    bad = F.when(~F.col("#good") | _lacks(required), F.make_valid_utf8("#value"))
    return parsed.select(*map(_named, schema.names), SOURCE, bad.alias(CORRUPT), *more)


def _named(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _at(source: Column, place: Column) -> Column:
    """``source#place``, or the source alone where there is no place. Paths have ``%23`` for the sign."""
    return F.concat_ws("#", source, place.cast("string")).alias(SOURCE)


def _lacks(required: Sequence[str]) -> Column:
    lacking = F.lit(False)
    for name in required:
        lacking = lacking | _named(name).isNull()
    return lacking


def _load_kafka(reader: Any) -> DataFrame:
    try:
        frame: DataFrame = reader.load()
    except Exception as error:
        if "Failed to find data source: kafka" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise UsageError(
                "Spark was started without its Kafka connector: `python -m tamis.spark.jars DIRECTORY` fetches the "
                "jars for spark.jars, or start it with spark.jars.packages"
            ) from None
        raise
    return frame


def _parse(schema: str, required: Sequence[str]) -> T.StructType:
    try:
        found = T.StructType.fromDDL(schema)
    except Exception as error:
        text = next((line for line in str(error).splitlines() if line.strip()), "")
        raise UsageError(f"schema {schema!r}: {text}") from None
    if not isinstance(found, T.StructType):
        raise UsageError(f"schema {schema!r}: expected names and types of columns")
    for name in (SOURCE, CORRUPT, PARTITION):
        if name in found.names:
            raise UsageError(f"schema: the column {name} is made by the source and cannot be one of the record")
    for name in required:
        if name not in found.names:
            raise UsageError(f"required: {name!r} is not a column; known are {', '.join(found.names)}")
    return found


def _normalise(declared: Any) -> None:
    """A schema given as a table becomes text, one required name a list of one."""
    if isinstance(declared.schema, Mapping):
        columns = ("`{}` {}".format(name.replace("`", "``"), kind) for name, kind in declared.schema.items())
        object.__setattr__(declared, "schema", ", ".join(columns))
    required = (declared.required,) if isinstance(declared.required, str) else tuple(declared.required)
    object.__setattr__(declared, "required", required)
    if declared.limit is not None and declared.limit < 1:
        raise UsageError(f"limit {declared.limit} is not a positive number")


# -- what is wrong with a record, and where it stands -----------------------------------------------------------------


@dataclass(frozen=True)
class _Located:
    """Bad rows with their places and reasons.

    Spark does not know the numbers of lines. The bad lines of a part of a file come in the order of the file, so one
    pass over that part finds each of them, and only parts with bad lines are read again.
    """

    format: str
    schema: T.StructType
    required: tuple[str, ...]
    options: dict[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, lines = "", iter(list[tuple[int, str]]())
        for batch in batches:
            rows = []
            for origin, record in zip(batch.column(SOURCE).to_pylist(), batch.column(CORRUPT).to_pylist(), strict=True):
                source, _, place = origin.partition("#")
                if self.format in ("json", "csv"):
                    if part != origin:
                        part, lines = origin, _lines(source, int(place or 0))
                    found = next((one for one in lines if self._is(one[1], record)), None)
                    place, record = (f"line {found[0]}", found[1]) if found else ("unknown", record)
                elif self.format == "parquet":
                    place = f"row {int(place) + 1}"
                else:
                    source, _, partition = source.rpartition("/")
                    place = f"partition {partition} offset {place}"
                rows.append((source, place, self.reason(record), record))
            columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)] if rows else []
            if columns:
                yield pa.RecordBatch.from_arrays(columns, names=["source", "place", "reason", "record"])

    def _is(self, line: str, record: str) -> bool:
        """Whether a line of the file is the record.

        A CSV row that is bad only for want of a value was written anew by Spark; since all bad rows come in order, the
        next line that wants a value is the one.
        """
        return line == record or (self.format == "csv" and self._wants(line) and self._wants(record))

    def _wants(self, line: str) -> bool:
        fields = self._fields(line)
        if len(fields) != len(self.schema):
            return False
        return not any(fields) or any(not fields[self.schema.names.index(name)] for name in self.required)

    def _fields(self, line: str) -> list[str]:
        return next(csv.reader([line], delimiter=self.options.get("sep", ",")), [])

    def reason(self, record: str) -> str:
        """Why the record is bad, in words that help to mend it."""
        if self.format == "csv":
            fields = self._fields(record)
            if len(fields) != len(self.schema):
                return f"{len(fields)} fields, expected {len(self.schema)}"
            if not any(fields):
                return "every field is empty"
            values: dict[str, Any] = {
                name: None if text == "" else text for name, text in zip(self.schema.names, fields, strict=True)
            }
            return self._misfit(values, _reads)
        if not record.strip():
            return "no value"
        try:
            value = json.loads(record, parse_constant=_refuse)
        except json.JSONDecodeError as error:
            return f"not JSON: {error.msg} at column {error.colno}"
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        if not isinstance(value, dict):
            return f"expected an object, got {_shown(value)}"
        return self._misfit(value, _holds)

    def _misfit(self, values: Mapping[str, Any], fits: Any) -> str:
        for name in self.schema.names:
            value, kind = values.get(name), self.schema[name].dataType
            if value is not None and not fits(value, kind):
                return f"{name}: expected {kind.simpleString()}, got {_shown(value)}"
        lacking = [name for name in self.required if values.get(name) is None]
        if lacking:
            return f"{lacking[0]}: no value"
        return "not UTF-8" if any("\ufffd" in str(value) for value in values.values()) else "does not fit the schema"


def _lines(uri: str, start: int) -> Iterator[tuple[int, str]]:
    """The numbered lines of a part of a file as Spark splits it: those that begin after ``start``, or all from 0."""
    try:
        system, path = fs.FileSystem.from_uri(uri)
        stream = io.BufferedReader(system.open_input_stream(path))
    except (OSError, ValueError, pa.ArrowException):
        return  # moved away since it was read: the place stays unknown, the reason does not depend on it
    with stream:
        number = offset = 0
        for chunk in stream:
            for line in chunk.splitlines(keepends=True):
                number += 1
                if offset > start or start == 0:
                    yield number, line.rstrip(b"\r\n").decode(errors="replace")
                offset += len(line)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a number of JSON")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _holds(value: Any, kind: T.DataType) -> bool:
    """Whether a value of JSON is surely of the type; text forms of dates and the like are Spark's to judge."""
    bits = _WHOLE.get(type(kind))
    if bits:
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits - 1) <= value < 1 << bits - 1
    if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, T.BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, T.StructType | T.MapType):
        return isinstance(value, dict)
    if isinstance(kind, T.ArrayType):
        return isinstance(value, list)
    if isinstance(kind, T.StringType):
        return True
    return isinstance(value, str) and _date(value)


def _reads(text: str, kind: T.DataType) -> bool:
    """Whether the text of a field reads as a value of the type."""
    try:
        if type(kind) in _WHOLE:
            return _holds(int(text), kind)
        if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType):
            float(text)
        elif isinstance(kind, T.BooleanType):
            return text.lower() in ("true", "false")
        elif not isinstance(kind, T.StringType):
            return _date(text)
    except ValueError:
        return False
    return True


def _date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
