"""``match_table``: every row of a table against all profiles, exactly, in one pass.

The driver builds the filter once and ships its files; every Python worker maps them into memory once and keeps them as
long as it lives. Guarantees what ``Filter.match_many`` gives, for any number of partitions. Refuses profiles that
change contexts: rows of a table have no order, so use :func:`tamis.spark.match_stream` for those.
"""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tamis.engine.filter import Filter
from tamis.errors import UsageError
from tamis.model.events import EventLog
from tamis.model.tables import did_you_mean, to_table

from .route import _cut, union_values
from .session import on_one_machine

_KEPT: Final = 4
_opened: OrderedDict[str, Filter] = OrderedDict()
_PLACE, _CORRUPT = "_source", "_corrupt_record"


@dataclass(frozen=True)
class TableMatches:
    """``matches``: the id columns of a message and ``profile``; ``rejected``: the id columns, ``source``, ``reason``.

    Both are computed when they are asked for, from the same pass over the messages; ``cache()`` the
    ``results`` to make that pass only once.
    """

    results: DataFrame
    _ids: tuple[str, ...]

    @property
    def matches(self) -> DataFrame:
        """One row per match."""
        return self.results.where(F.col("reason").isNull()).select(*map(_quoted, self._ids), "profile")

    @property
    def rejected(self) -> DataFrame:
        """One row per rejected message."""
        return self.results.where(F.col("reason").isNotNull()).select(*map(_quoted, self._ids), "source", "reason")


@dataclass(frozen=True)
class Index:
    """Profiles and contexts ready for :meth:`match`, shipped once: the warm way for many tables.

    ``rejected`` holds the profiles and contexts that were refused, as (kind, id or context, reason).
    """

    version: str
    file: str
    whole_ids: bool
    rejected: tuple[tuple[str, Any, str], ...] = ()

    def match(self, messages: DataFrame, message_id: str | Sequence[str] | None = None) -> TableMatches:
        """The matches of a table; without ``message_id`` all columns identify a message."""
        ids = (message_id,) if isinstance(message_id, str) else tuple(message_id or messages.columns)
        for name in ids:
            if name not in messages.columns:
                raise UsageError(f"message_id: there is no column {name!r}{did_you_mean(name, messages.columns)}")
        for name in ("profile", "source", "reason"):
            if name in ids:
                raise UsageError(f"message_id: {name!r} is a column of the result; rename the column of the messages")
        fields = [messages.schema[name] for name in ids]
        profile: T.DataType = T.LongType() if self.whole_ids else T.StringType()
        output = T.StructType(
            [
                *(T.StructField(field.name, field.dataType) for field in fields),
                T.StructField("profile", profile),
                T.StructField("source", T.StringType()),
                T.StructField("reason", T.StringType()),
            ]
        )
        return TableMatches(messages.mapInArrow(_Search(self.version, self.file, ids, self.whole_ids), output), ids)


def match_table(
    messages: DataFrame,
    profiles: DataFrame | Index,
    contexts: DataFrame | None = None,
    *,
    message_id: str | Sequence[str] | None = None,
    profile: str | None = None,
    schema: Mapping[str, str] | None = None,
    values: str = "json",
    graphs: Sequence[Any] | None = None,
) -> TableMatches:
    """The matches of a static DataFrame of messages; every column is an attribute.

    ``profiles`` has ``id``, ``profile`` and optionally ``context``; with ``profile``, text with ``{parameters}``, a
    column per parameter instead of a text each, which is much faster. ``contexts`` has ``context``, ``attribute`` and
    ``value``. An index from :func:`build` may stand for both: it is shipped once and stays warm in the workers.
    ``graphs`` are content graphs for ``within`` and ``covers``.
    """
    if messages.isStreaming:
        raise UsageError("messages: expected a static DataFrame; use match_stream for a stream")
    if isinstance(profiles, Index):
        if contexts is not None:
            raise UsageError("contexts: an index has its contexts already")
        return profiles.match(messages, message_id)
    made = build(profiles, contexts, profile=profile, schema=schema, values=values, graphs=graphs)
    return made.match(messages, message_id)


def tamis(
    profiles: DataFrame | Index,
    contexts: DataFrame | None = None,
    *,
    message_id: str | Sequence[str] | None = None,
    **options: Any,
) -> Callable[[DataFrame], DataFrame]:
    """For ``DataFrame.transform``: ``orders.transform(tamis(profiles, message_id="order"))`` gives the matches."""

    def matches(messages: DataFrame) -> DataFrame:
        return match_table(messages, profiles, contexts, message_id=message_id, **options).matches

    return matches


def build(
    profiles: DataFrame,
    contexts: DataFrame | None = None,
    *,
    profile: str | None = None,
    schema: Mapping[str, str] | None = None,
    values: str = "json",
    graphs: Sequence[Any] | None = None,
) -> Index:
    """Build the index on the driver and ship it to the workers."""
    for name, frame in {"profiles": profiles, "contexts": contexts}.items():
        if frame is not None and frame.isStreaming:
            raise UsageError(f"{name}: expected a static DataFrame; use match_stream for a stream")
    if "on_match" in profiles.columns:
        raise UsageError("profiles: rows of a table have no order, so effects (on_match) need match_stream")
    filter = Filter(schema=schema, graphs=graphs)
    rejected: list[tuple[str, Any, str]] = []
    table = profiles.toArrow()
    whole = pa.types.is_integer(table.schema.field("id").type) if "id" in table.column_names else False
    if profile is not None:
        filter.subscribe_many(profile, table)
    else:
        found = filter.process(EventLog.merge(subscribes=table))
        rejected += [("profile", table["id"][row].as_py(), reason) for _, row, reason in found.rejected]
    if contexts is not None:
        known = contexts.toArrow()
        columns: dict[str, Any] = {name: known[name] for name in known.column_names}
        if "value" in columns and pa.types.is_struct(known["value"].type):
            columns["value"] = union_values(known["value"].combine_chunks())
        found = filter.process(EventLog.merge(updates=columns, values=values))  # type: ignore[arg-type]
        rejected += [("context", known["context"][row].as_py(), reason) for _, row, reason in found.rejected]
    version = uuid.uuid4().hex
    return Index(version, _ship(profiles.sparkSession, filter, version), whole, tuple(rejected))


def _ship(spark: SparkSession, filter: Filter, version: str) -> str:
    """One uncompressed archive that Spark hands to every executor; returns its name there.

    On one machine the workers map the driver's own files. Either stays until the driver ends: an executor that joins
    later asks for it then.
    """
    place = Path(tempfile.mkdtemp(prefix="tamis-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    filter.save(place / "filter")
    if on_one_machine(spark.sparkContext.master):
        return str(place / "filter")
    archive = place / f"tamis-{version}.tar"
    with tarfile.open(archive, "w") as tar:
        for file in sorted((place / "filter").iterdir()):
            tar.add(file, file.name)
    shutil.rmtree(place / "filter")
    spark.sparkContext.addArchive(str(archive))
    return archive.name


@dataclass(frozen=True)
class _Search:
    """The function for ``mapInArrow``."""

    version: str
    file: str
    ids: tuple[str, ...]
    whole_ids: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filter = self._filter()
        for batch in batches:
            if batch.num_rows:
                yield from self._matched(filter, batch)

    def _filter(self) -> Filter:
        filter = _opened.pop(self.version, None)
        if filter is None:
            filter = Filter.load(SparkFiles.get(self.file))  # a whole path stays as it is
        _opened[self.version] = filter
        while len(_opened) > _KEPT:
            _opened.popitem(last=False)
        return filter

    def _matched(self, filter: Filter, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        reasons: dict[int, str] = {}
        names = batch.schema.names
        if _CORRUPT in names:
            corrupt = batch.column(_CORRUPT)
            for i in np.flatnonzero(pc.is_valid(corrupt).to_numpy(zero_copy_only=False)).tolist():
                reasons[i] = f"malformed record: {_cut(corrupt[i].as_py())}"
        known = set(filter.schema.message_attributes())
        attributes = [name for name in names if name in known and name not in (_PLACE, _CORRUPT)]
        table = (
            to_table(pa.table({name: batch.column(name) for name in attributes}), "messages") if attributes else None
        )
        log = EventLog.of_messages([{}] * batch.num_rows if table is None else table)
        found = filter.process(log)
        for _, row, reason in found.rejected:
            reasons.setdefault(row, reason)
        rows, profile = found.message, found.to_arrow()["profile"]
        if reasons:
            good = ~np.isin(rows, list(reasons))
            rows, profile = rows[good], profile.filter(pa.array(good))
        kind = pa.int64() if self.whole_ids else pa.string()
        yield self._rows(batch, rows, profile.cast(kind), None)
        if reasons:
            at = sorted(reasons)
            yield self._rows(batch, np.array(at), pa.nulls(len(at), kind), [reasons[i] for i in at])

    def _rows(self, batch: pa.RecordBatch, rows: Any, profile: Any, reasons: list[str] | None) -> pa.RecordBatch:
        at = pa.array(rows, pa.int64())
        profile = profile.combine_chunks() if isinstance(profile, pa.ChunkedArray) else profile
        if isinstance(profile, pa.ChunkedArray):
            profile = pa.concat_arrays(profile.chunks)
        columns = {name: batch.column(name).take(at) for name in self.ids}
        nothing = pa.nulls(len(at), pa.string())
        columns["profile"] = profile
        columns["source"] = batch.column(_PLACE).take(at) if reasons and _PLACE in batch.schema.names else nothing
        columns["reason"] = pa.array(reasons, pa.string()) if reasons else nothing
        return pa.RecordBatch.from_pydict(columns)


def _quoted(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")
