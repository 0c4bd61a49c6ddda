"""Where events come from: directories of JSON lines, CSV or Parquet, and Kafka topics, as (streaming) DataFrames.

Guarantees that no record is lost and none is half read. A frame of :meth:`open` has the columns of the schema and two
more: ``_source`` says where the row came from, and ``_corrupt_record`` holds the text of a record that does not fit the
schema, null for all others. Rows of a topic also have ``_partition``, since order holds inside a partition only.
:func:`accepted` keeps the good rows; ``rejected`` the others, with the line of the file or
the offset of the topic and a reason for people. Refuses to know events, filters and sinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tamis.errors import UsageError
from tamis.spark.declaration import build
from tamis.spark.records import CORRUPT, SOURCE, Records

PARTITION: Final = "_partition"
REJECTED: Final = "source string, place string, reason string, record string"

_FORMATS: Final = ("json", "csv", "parquet")
# Strict JSON: what Python's json module takes is taken, what it refuses is refused.
_JSON: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


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
            source = _at(F.col("_metadata.file_path"), F.col("_metadata.row_index"), self._records(schema))
            record = F.when(_lacks(self.required), F.to_json(F.struct(*map(_named, schema.names))))
            return rows.select(*map(_named, schema.names), source, record.cast("string").alias(CORRUPT))
        start = F.nullif(F.col("_metadata.file_block_start"), F.lit(0))
        source = _at(F.col("_metadata.file_path"), start, self._records(schema))
        if self.format == "csv":
            return self._csv(reader, schema, source)
        lines = reader.text(self.path).where("trim(value) != ''")
        return _parsed(lines, schema, self.required, source)

    def rejected(self, frame: DataFrame) -> DataFrame:
        """The bad rows, each with the number of its line (Parquet: of its row, from 1)."""
        schema = T.StructType([f for f in frame.schema.fields if f.name not in (SOURCE, CORRUPT)])
        rows = frame.where(F.col(CORRUPT).isNotNull()).select(SOURCE, CORRUPT)
        return rows.mapInArrow(self._records(schema), REJECTED)

    def _records(self, schema: T.StructType) -> Records:
        return Records(self.format, schema, tuple(self.required), dict(self.options))

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
        lines = records.select(
            value, _at(partition, F.col("offset"), self._records(schema)), partition.alias(PARTITION)
        )
        return _parsed(lines, schema, self.required, F.col(SOURCE), PARTITION)

    def rejected(self, frame: DataFrame) -> DataFrame:
        """The bad rows, each with its partition and offset."""
        schema = T.StructType([f for f in frame.schema.fields if f.name not in (SOURCE, CORRUPT, PARTITION)])
        rows = frame.where(F.col(CORRUPT).isNotNull()).select(SOURCE, CORRUPT)
        return rows.mapInArrow(self._records(schema), REJECTED)

    def _records(self, schema: T.StructType) -> Records:
        return Records("kafka", schema, tuple(self.required), {})


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


def _at(source: Column, place: Column, records: Records) -> Column:
    """``source#place``, or the source alone where there is no place. Paths have ``%23`` for the sign."""
    return F.concat_ws("#", source, place.cast("string")).alias(SOURCE, metadata=records.metadata)


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


__all__ = ["CORRUPT", "PARTITION", "REJECTED", "SOURCE", "FileSource", "KafkaSource", "Source", "accepted", "source"]
