"""Looking into a checkpoint: the profiles, contexts and kinds that the shards keep, without running the stream.

Guarantees what the last committed micro-batch left. Works on the driver: for checks, reports and moves, not for speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tamis.engine.shard import NO_RANK, Shard
from tamis.errors import UsageError
from tamis.kernels import bundles as b
from tamis.model import tree as t
from tamis.model.printer import effects_to_text, to_text
from tamis.model.values import shown

from .order import from_key
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


def profiles(spark: SparkSession, checkpoint: str, floating: bool = False) -> DataFrame:
    """All profiles in the order of their subscription: ``order``, ``id``, ``profile``, ``context``, ``on_match``.

    Those that were there from the start without an order come just before all others; when all were, there is no column
    ``order``. ``floating`` says that the order is one of floats.
    """
    rows = sorted(row for shard in shards(spark, checkpoint) for row in _profiles(shard))
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 5
    ranks, ids, *texts = columns
    whole = bool(ids) and isinstance(ids[0], int)
    table = {"id": pa.array(ids, pa.int64() if whole else pa.string())}
    table |= {
        name: pa.array(column, pa.string())
        for name, column in zip(("profile", "context", "on_match"), texts, strict=True)
    }
    ordered = [rank for rank in ranks if rank != NO_RANK]
    if ordered:
        keys = [ordered[0] - 1 if rank == NO_RANK else rank for rank in ranks]
        table = {"order": pa.array(from_key(np.array(keys, np.int64), floating)), **table}
    return spark.createDataFrame(pa.table(table))


def _profiles(shard: Shard) -> Iterator[tuple[int, Any, str, str | None, str | None]]:
    f = shard.filter
    for code in range(len(f._profiles.ids)):
        if not f._profiles.alive(code):
            continue
        id = f._profiles.ids[code]
        condition, context = f._subscriptions.read(code, f._profiles, f._values)
        effects = f._subscriptions.shapes[int(f._profiles.row[code, b.SHAPE])].effects
        if any(isinstance(node, t.Parameter) for effect in effects for node in t.walk(effect.value)):
            raise UsageError(
                f"profile {shown(id)}: its on_match has {{parameters}}, and such profiles cannot be read back; take "
                "them from the table that they were loaded from"
            )
        # A profile that can never match has no clause, and so no context; any name will do.
        name = str(f._contexts.names[context]) if context >= 0 else None
        if name is None and (effects or any(isinstance(node, t.Context) for node in t.walk(condition))):
            name = str(id)
        yield int(shard._rank[code]), id, to_text(condition), name, effects_to_text(effects) or None


def kinds(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """The kinds of all names that are fixed, as ``schema=`` of :func:`tamis.spark.match_stream` takes them."""
    schema = next((shard.filter.schema for shard in shards(spark, checkpoint)), None)
    found = {} if schema is None else {name: schema.kind(name) for name in schema.names()}
    return {name: str(kind) for name, kind in found.items() if kind is not None}


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
