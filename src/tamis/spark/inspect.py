"""Looking into a checkpoint: the contexts that the shards keep, without running the stream.

Guarantees what the last committed micro-batch left. Works on the driver: for checks, reports and moves, not for speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from tamis.engine.shard import Shard

from .state import Store

VALUE: Final = (
    "struct<whole: bigint, number: double, text: string, flag: boolean, time: timestamp, "
    "numbers: array<double>, texts: array<string>, flags: array<boolean>, times: array<timestamp>>"
)


def shards(spark: SparkSession, checkpoint: str) -> list[Shard]:
    """The shards of a checkpoint at its last version, by number."""
    rows = (
        spark.read.format("statestore")
        .option("path", checkpoint)
        .option("stateVarName", "shard")
        .option("flattenCollectionTypes", "true")
        .load()
    )
    values: dict[int, dict[str, bytes]] = {}
    for row in rows.select("partition_id", "user_map_key.name", "user_map_value.data").collect():
        values.setdefault(row[0], {})[row[1]] = bytes(row[2])
    found = []
    for number in sorted(values):
        store = Store(_Reading(values[number]))
        meta = store.meta()
        if meta is not None:
            found.append(store.load(number, meta)[0])
    return found


def contexts(spark: SparkSession, checkpoint: str) -> DataFrame:
    """All contexts, as a table that ``contexts=`` of :func:`tamis.spark.match_stream` takes."""
    rows = [row for shard in shards(spark, checkpoint) for row in _rows(shard)]
    return spark.createDataFrame(rows, f"context string, attribute string, value {VALUE}")


def _rows(shard: Shard) -> Iterator[tuple[str, str, dict[str, Any]]]:
    names = {int: "whole", float: "number", str: "text", bool: "flag"}
    for context, values in shard.contexts():
        for attribute, value in values.items():
            if isinstance(value, list):
                items = [type(item) for item in value if item is not None]
                kind = {float: "numbers", int: "numbers", str: "texts", bool: "flags"}.get(
                    items[0] if items else str, "times"
                )
                listed = [float(v) if kind == "numbers" and v is not None else v for v in value]
                yield context, attribute, {kind: listed}
            else:
                yield context, attribute, {names.get(type(value), "time"): value}


class _Reading:
    """The part of Spark's handle that reading needs, over values already here."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self._values = values

    def getMapState(self, *_: Any) -> _Reading:
        return self

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:
        found = self._values.get(key[0])
        return None if found is None else (found,)
