"""``match_stream``: standing profiles against streams of messages and updates, exactly.

``DataFrame`` in, ``DataFrame`` out; what happens in between is :mod:`~tamis.spark.route` (rows into packs), Spark's
shuffle, and :mod:`~tamis.spark.processor` (packs through a shard). Guarantees that the result does not depend on the
number of shards, of partitions, or on where micro-batches end. Refuses to know files, topics and clocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

from tamis.engine.shard import Shard, Track
from tamis.errors import UsageError
from tamis.model.tables import did_you_mean

from . import inspect, session
from .control import read_qos
from .graphs import packed_graphs, unpacked_options
from .processor import Matcher, Plan
from .records import Records
from .route import CORRUPT, EVENT, ID, LANE, MESSAGE, ORDER, PACK_DDL, PLACE, SHARD, Packer, shard_keys

EVENT_COLUMNS: Final = ("event", "context", "attribute", "value", "id", "profile", "on_match")
HOLD_LIMIT: Final = 1_000_000
"""Events that may wait for other streams; every shard keeps its part of them in its state."""
_NEEDED: Final = {
    "messages": (),
    "updates": ("context", "attribute", "value"),
    "contexts": ("context", "attribute", "value"),
    "profiles": ("id", "profile"),
    "events": ("event",),
}
_UNITS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
}
_PLACE, _CORRUPT, _PARTITION = "_source", "_corrupt_record", "_partition"
_ORDERED = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.DateType)


@dataclass(frozen=True)
class MatchStream:
    """What :func:`match_stream` returns.

    ``results`` is the stream itself, a few wide rows per micro-batch; ``matches``, ``rejected``, ``figures`` are views
    of it. Each query that is started on one of them is a stream of its own, with its own state: to have several outputs
    of one stream use :meth:`start`.
    """

    results: DataFrame
    shards: int
    _ids: tuple[str, ...]
    _order: str
    _order_type: T.DataType

    @property
    def matches(self) -> DataFrame:
        """One row per match: the message's id columns, ``profile``, ``batch``, the order column and ``rank``.

        Sorted by order column, rank and profile the rows are the deliveries of one filter that saw one event at a time.
        """
        return self.matches_of(self.results)

    @property
    def rejected(self) -> DataFrame:
        """One row per rejected event: ``event``, the order column, ``source``, ``reason`` and ``batch``."""
        return self.rejected_of(self.results)

    @property
    def figures(self) -> DataFrame:
        """One row per shard and micro-batch: counts, sizes and milliseconds, as JSON text."""
        return self.figures_of(self.results)

    def matches_of(self, results: DataFrame) -> DataFrame:
        """The matches in a part of ``results``, as in a ``foreachBatch`` function."""
        ids = [f"id{k}" for k in range(len(self._ids))]
        zipped = F.inline(F.arrays_zip(*ids, "profile", "order", "rank"))
        rows = results.where(F.col("profile").isNotNull()).select("batch", zipped)
        named = [F.col(f"id{k}").alias(name) for k, name in enumerate(self._ids)]
        keep = [] if self._order in self._ids else [self._as_order("order")]
        return rows.select(*named, "profile", "batch", *keep, "rank")

    def rejected_of(self, results: DataFrame) -> DataFrame:
        """The rejected events in a part of ``results``."""
        zipped = F.inline(F.arrays_zip("r_event", "r_order", "r_source", "r_reason"))
        rows = results.where(F.col("r_reason").isNotNull()).select("batch", zipped)
        return rows.select(
            F.col("r_event").alias("event"),
            self._as_order("r_order"),
            F.col("r_source").alias("source"),
            F.col("r_reason").alias("reason"),
            "batch",
        )

    def figures_of(self, results: DataFrame) -> DataFrame:
        """The figures in a part of ``results``."""
        return results.where(F.col("figures").isNotNull()).select("batch", "figures")

    def _as_order(self, name: str) -> Any:
        return _from_key(name, self._order_type).alias(self._order)

    def start(
        self,
        checkpoint: str,
        *,
        matches: Any = None,
        rejected: Any = None,
        figures: Any = None,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> StreamingQuery:
        """One query with several outputs, each a sink of :mod:`tamis.spark.sinks` or any function (frame, batch).

        After a failure the last micro-batch may be handed over once more, with the same batch number and the same rows:
        a function must make the second time count for nothing, as the sinks do.
        """
        from .sinks import Outputs

        outputs = Outputs(self, {"matches": matches, "rejected": rejected, "figures": figures}, checkpoint)
        session.prepare(self.results.sparkSession, self.shards, checkpoint)
        writer = self.results.writeStream.foreachBatch(outputs).option("checkpointLocation", checkpoint)
        if trigger:
            writer = writer.trigger(**trigger)
        if name:
            writer = writer.queryName(name)
        return writer.start()


def match_stream(
    messages: DataFrame | None = None,
    updates: DataFrame | None = None,
    profiles: DataFrame | None = None,
    *,
    events: DataFrame | None = None,
    contexts: DataFrame | None = None,
    order: str = "seq",
    message_id: str | Sequence[str] | None = None,
    shards: int = 2,
    track: Sequence[Mapping[str, Any]] = (),
    profile: str | None = None,
    on_match: str | None = None,
    schema: Mapping[str, str] | None = None,
    values: str = "json",
    wait: str | float = "10 seconds",
    hold_limit: int = HOLD_LIMIT,
    strategy: str = "agile",
    consistency: str = "serial",
    qos: str | Sequence[str] | None = None,
    graphs: Sequence[Any] | None = None,
) -> MatchStream:
    """Matches of streams, exact whatever the number of shards and the cutting into micro-batches.

    Either ``events``, one ordered stream with the columns ``event`` (message, update, subscribe, unsubscribe), those of
    the tables below, and the message attributes as a struct ``message`` or as all other columns; or separate streams:

    - ``messages``: every column is an attribute.
    - ``updates``: ``context``, ``attribute``, ``value`` (a number, text that is read as JSON unless ``values="plain"``,
      a time, a list; or a struct whose one field that is not null is the value). Null removes the attribute.
    - ``profiles``: ``id``, ``profile`` (null unsubscribes), optionally ``context`` and ``on_match``.

    Streams have the column ``order``, numbers or times. With separate streams an event waits until the others have
    passed its place, or until they have been silent for ``wait``; what comes later still is replayed on arrival and
    counted as late. When more than ``hold_limit`` events wait, the oldest of them go on as if their wait had ended.

    A static DataFrame of ``profiles``, and ``contexts`` (or static ``updates``), are there from the start, profiles
    first, by the order column if they have it, else by id. With ``profile``, text with ``{parameters}``, the static
    profiles have a column per parameter instead of a text each, which loads much faster.

    ``message_id`` names the columns that identify a message in the output (default: the order column), ``track`` holds
    arguments of ``Filter.track``, ``schema`` kinds of names, ``graphs`` content graphs as they are when the stream
    starts. A column ``_source`` says where a row came from and is
    repeated for rejected events; a row whose column ``_corrupt_record`` is not null is rejected. A column
    ``_partition`` names the part of a stream inside of which events come in order: such a stream has passed a place
    when each of its parts has.

    ``qos`` is a wish of :func:`tamis.flow.choose`, such as ``"latency <= 5s"``, and ``consistency`` the order in which
    a micro-batch is worked; with either the result depends on where micro-batches end. What is shed is rejected with
    the reason, and counted in the figures.
    """
    inputs = _Inputs(order, message_id, events, messages, updates, profiles, contexts, profile)
    keys = shard_keys(shards)
    if values not in ("json", "plain"):
        raise UsageError(f"values: expected 'json' or 'plain', got {values!r}")
    options: dict[str, Any] = {"strategy": strategy}
    if schema:
        options["schema"] = dict(schema)
    tracks = tuple(Track(**dict(one)) for one in track)
    if graphs:
        options["graphs"] = packed_graphs(graphs)
    Shard(
        0, 1, tracks, **unpacked_options(options)
    )  # what is wrong with tracks and kinds is told here, not by a worker
    patience = milliseconds(wait)
    if len(inputs.streams) == 1:
        patience = 0  # there is nobody to wait for
    checked_hold_limit(hold_limit)
    policy = read_qos(qos, consistency)
    packed = inputs.packed(keys, values, counts=patience > 0)
    plan = Plan(
        keys=keys,
        sources=tuple(inputs.streams),
        order=order,
        records={name: Records.of(frame.schema) for name, frame in {**inputs.static, **inputs.streams}.items()},
        ids=inputs.ids,
        whole_ids=isinstance(inputs.profile_id, T.LongType),
        floating_order=isinstance(inputs.order_type, T.FloatType | T.DoubleType),
        tracks=tracks,
        options=tuple(options.items()),
        prepared=None if profile is None else (profile, on_match),
        values=values,
        wait=patience,
        hold_limit=hold_limit,
        policy=policy,
    )
    initial = inputs.initial(keys, values)
    results = packed.groupBy("key").transformWithStateInPandas(
        statefulProcessor=Matcher(plan),
        outputStructType=_output(inputs),
        outputMode="append",
        timeMode="processingTime" if plan.wait else "none",
        initialState=None if initial is None else initial.groupBy("key"),
    )
    session.prepare(packed.sparkSession, shards)
    return MatchStream(results, shards, inputs.ids, order, inputs.order_type)


def milliseconds(time: str | float, name: str = "wait") -> int:
    """``"500 ms"``, ``"10 seconds"``, ``"2 min"``, ``"1 hour"`` or a number of seconds; ``name`` is the setting's.

    >>> milliseconds("1.5 min")
    90000
    >>> milliseconds("2 m", "trigger")
    Traceback (most recent call last):
    tamis.errors.UsageError: trigger: '2 m' may be minutes or milliseconds; write '2 min' or '2 ms'
    """
    if isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time < math.inf:
        return int(time * 1000)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", str(time))
    if found is not None and found[2] == "m":
        raise UsageError(f"{name}: {time!r} may be minutes or milliseconds; write '{found[1]} min' or '{found[1]} ms'")
    if found is None or found[2] not in _UNITS:
        raise UsageError(f"{name}: expected a time such as '10 seconds', '500 ms', '2 min' or '1 hour', got {time!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def checked_hold_limit(limit: Any) -> int:
    """The limit itself, when it is one."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise UsageError(
            f"hold_limit: expected a whole number of events from 1, got {limit!r}; for streams that do not wait for "
            "each other at all set wait to '0 s'"
        )
    return limit


class _Inputs:
    """The DataFrames after every check that can be made before anything runs."""

    def __init__(
        self,
        order: str,
        message_id: str | Sequence[str] | None,
        events: DataFrame | None,
        messages: DataFrame | None,
        updates: DataFrame | None,
        profiles: DataFrame | None,
        contexts: DataFrame | None,
        template: str | None,
    ) -> None:
        given = {"events": events, "messages": messages, "updates": updates, "profiles": profiles, "contexts": contexts}
        frames = {name: frame for name, frame in given.items() if frame is not None}
        if events is not None and (messages is not None or (updates is not None and updates.isStreaming)):
            raise UsageError(
                "events: one ordered stream has everything; do not give messages or streaming updates as well"
            )
        if events is not None and profiles is not None and profiles.isStreaming:
            raise UsageError(
                "profiles: expected a static DataFrame, the profiles that are there from the start; events= is one "
                "ordered stream of everything, and later subscriptions come in it as events 'subscribe' and "
                "'unsubscribe'. For a stream of profiles of its own give messages= and updates= instead of events="
            )
        self.order, self.template = order, template
        self.streams = {name: frame for name, frame in frames.items() if frame.isStreaming}
        self.static = {name: frame for name, frame in frames.items() if not frame.isStreaming}
        if contexts is not None and contexts.isStreaming:
            raise UsageError("contexts: expected a static DataFrame; a stream of updates is updates=")
        if "updates" in self.static:
            if contexts is not None:
                raise UsageError("contexts: updates= is static and so the same; give one of them")
            self.static["contexts"] = self.static.pop("updates")
        for name in ("messages", "events"):
            if name in self.static:
                raise UsageError(f"{name}: expected a streaming DataFrame; use match_table for a static one")
        if "messages" not in self.streams and "events" not in self.streams:
            raise UsageError("match_stream: give messages= or events=, a streaming DataFrame")
        if template is not None and "profiles" not in self.static:
            raise UsageError("profile: a text with parameters needs a static DataFrame of profiles")
        for name, frame in frames.items():
            role = "contexts" if name == "updates" and not frame.isStreaming else name
            self._check(role, frame)
        self.order_type = self._order_type()
        main = self.streams.get("messages", self.streams.get("events"))
        assert main is not None
        self.main = main
        self.ids = (message_id,) if isinstance(message_id, str) else tuple(message_id or (order,))
        self.id_types = [self._id_type(name) for name in self.ids]
        struct = main.schema["message"].dataType if "events" in self.streams and "message" in main.columns else None
        self.nested = struct.names if isinstance(struct, T.StructType) else []
        self.message = self._message()
        self.id_wires = tuple((name, self._id_wire(k, name)) for k, name in enumerate(self.ids))
        self.profile_id = self._profile_id()

    # -- checks ------------------------------------------------------------------------------------------------

    def _check(self, name: str, frame: DataFrame) -> None:
        needed = ("id",) if name == "profiles" and self.template is not None else _NEEDED[name]
        for column in (*needed, *((self.order,) if frame.isStreaming else ())):
            if column not in frame.columns:
                what = ", the order of events" if column == self.order else ""
                near = did_you_mean(column, frame.columns)
                raise UsageError(f"{name}: column {column!r}{what}, is missing; got {', '.join(frame.columns)}{near}")
        for column in ("context", "attribute", "profile", "on_match", "event"):
            if column in frame.columns and name != "messages" and not (name == "profiles" and self.template):
                found = frame.schema[column].dataType
                if not isinstance(found, T.StringType):
                    raise UsageError(f"{name}: column {column!r}: expected text, got {found.simpleString()}")

    def _order_type(self) -> T.DataType:
        types: dict[str, T.DataType] = {}
        for name, frame in {**self.streams, **self.static}.items():
            if self.order in frame.columns:
                found = frame.schema[self.order].dataType
                if not isinstance(found, (*_ORDERED, T.TimestampType, T.TimestampNTZType)):
                    raise UsageError(
                        f"{name}: column {self.order!r}, the order of events, must hold numbers, dates or times, "
                        f"got {found.simpleString()}"
                    )
                types[name] = found
        sorts = {name: _sort(found) for name, found in types.items()}
        if len(set(sorts.values())) > 1:
            shown = ", ".join(f"{name} {types[name].simpleString()}" for name in sorts)
            raise UsageError(f"column {self.order!r} must be of one sort in all DataFrames: {shown}")
        return types["messages" if "messages" in types else "events"]

    def _id_type(self, name: str) -> T.DataType:
        fields = self.main.schema
        if name in self.main.columns:
            return fields[name].dataType
        if "message" in self.main.columns and isinstance(fields["message"].dataType, T.StructType):
            inner = fields["message"].dataType
            if name in inner.names:
                return inner[name].dataType
        raise UsageError(f"message_id: there is no column {name!r}{did_you_mean(name, self.main.columns)}")

    def _profile_id(self) -> T.DataType:
        found: dict[str, T.DataType] = {}
        for name in ("events", "profiles"):
            for frame in (self.streams.get(name), self.static.get(name)):
                if frame is not None and "id" in frame.columns:
                    kind = frame.schema["id"].dataType
                    whole = isinstance(kind, T.ByteType | T.ShortType | T.IntegerType | T.LongType)
                    if not whole and not isinstance(kind, T.StringType):
                        raise UsageError(f"{name}: column 'id': expected text or integers, got {kind.simpleString()}")
                    found[name] = T.LongType() if whole else T.StringType()
        if len({type(kind) for kind in found.values()}) > 1:
            raise UsageError("profile ids are text in one DataFrame and integers in another; make them alike")
        return next(iter(found.values()), T.StringType())

    # -- canonical columns -------------------------------------------------------------------------------------

    def packed(self, keys: tuple[int, ...], values: str, counts: bool) -> DataFrame:
        """All streams as packs."""
        wires = tuple((name, wire) for name, (wire, _) in self.message.items())
        parts = [
            self._canonical(name, frame, len(keys)).mapInArrow(
                Packer(name, name, keys, values, Records.of(frame.schema), self.order, counts, self.id_wires, wires),
                PACK_DDL,
            )
            for name, frame in self.streams.items()
        ]
        packs = parts[0]
        for part in parts[1:]:
            packs = packs.unionByName(part)
        return packs

    def initial(self, keys: tuple[int, ...], values: str) -> DataFrame | None:
        """The static profiles and contexts as packs."""
        packs: DataFrame | None = None
        for name, frame in self.static.items():
            kind = {"contexts": "updates", "profiles": "profiles" if self.template is None else "prepared"}[name]
            packer = Packer(name, kind, keys, values, Records.of(frame.schema), self.order)
            part = self._canonical(kind, frame, len(keys)).mapInArrow(packer, PACK_DDL)
            packs = part if packs is None else packs.unionByName(part)
        return packs

    def _canonical(self, kind: str, frame: DataFrame, shards: int) -> DataFrame:
        columns = [] if self.order not in frame.columns else [F.col(_quoted(self.order)).alias(ORDER)]
        special = {self.order, _PLACE, _CORRUPT, _PARTITION}
        if _PLACE in frame.columns:
            columns.append(F.col(_PLACE).cast("string").alias(PLACE))
        if _CORRUPT in frame.columns:
            columns.append(F.col(_CORRUPT).cast("string").alias(CORRUPT))
        if _PARTITION in frame.columns and frame.isStreaming and len(self.streams) > 1:
            columns.append(F.col(_PARTITION).cast("string").alias(LANE))
        if kind == "prepared":
            columns += [F.col(_quoted(c)) for c in frame.columns if c not in special]
        if kind in ("updates", "events"):
            columns += [F.col(c) for c in ("context", "attribute", "value") if c in frame.columns]
            if "context" in frame.columns:
                name = F.col("context").cast("binary")  # the bytes as they are; F.encode would decode them first
                owner = F.coalesce(F.crc32(name), F.lit(0)) % F.lit(shards)
                columns.append(owner.cast("int").alias(SHARD))
        if kind in ("profiles", "events"):
            wanted = ("id", "profile", "on_match", *(() if kind == "events" else ("context",)))
            columns += [F.col(c) for c in wanted if c in frame.columns]
        if kind == "events":
            columns.append(F.col("event").alias(EVENT))
        if kind in ("messages", "events"):
            columns += [column.alias(wire) for wire, column in self.message.values()]
            columns += [F.col(_quoted(name)).alias(wire) for name, wire in self.id_wires if wire.startswith(ID)]
        return frame.select(*columns)

    def _message(self) -> dict[str, tuple[str, Any]]:
        """The attributes of messages: how each is called on the way to Python, and its column.

        Flat, as Spark measures an Arrow batch after every row of it, and a struct takes it several times as long; by
        number, as names may have dots.
        """
        if self.nested:
            found = {name: F.col("message").getField(name) for name in self.nested}
        else:
            special = {self.order, _PLACE, _CORRUPT, _PARTITION, *(EVENT_COLUMNS if "events" in self.streams else ())}
            found = {name: F.col(_quoted(name)) for name in self.main.columns if name not in special}
        if not found:
            raise UsageError(f"{next(iter(self.streams))}: there is no column with an attribute of messages")
        return {name: (f"{MESSAGE}{k}", column) for k, (name, column) in enumerate(found.items())}

    def _id_wire(self, k: int, name: str) -> str:
        """Where the way to Python has an identifying column: it may be the order or an attribute, and goes once."""
        if name == self.order:
            return ORDER
        apart = name not in self.message or (name in self.nested and name in self.main.columns)
        return f"{ID}{k}" if apart else self.message[name][0]


def _sort(kind: T.DataType) -> str:
    if isinstance(kind, T.FloatType | T.DoubleType):
        return "float"
    return "time" if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType) else "whole"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _output(inputs: _Inputs) -> T.StructType:
    key = T.DoubleType() if isinstance(inputs.order_type, T.FloatType | T.DoubleType) else T.LongType()
    fields: list[tuple[str, T.DataType]] = [("batch", T.LongType())]
    fields += [(f"id{k}", T.ArrayType(kind)) for k, kind in enumerate(inputs.id_types)]
    fields += [
        ("profile", T.ArrayType(inputs.profile_id)),
        ("order", T.ArrayType(key)),
        ("rank", T.ArrayType(T.LongType())),
        ("r_event", T.ArrayType(T.StringType())),
        ("r_order", T.ArrayType(key)),
        ("r_source", T.ArrayType(T.StringType())),
        ("r_reason", T.ArrayType(T.StringType())),
        ("figures", T.StringType()),
    ]
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def _from_key(name: str, kind: T.DataType) -> Any:
    """A column of keys (:mod:`~tamis.spark.order`) as the order column that they were made of."""
    if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        return F.timestamp_micros(name).cast(kind)
    return F.col(name).cast(kind)


def read_contexts(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The state of all contexts in a checkpoint, for ``contexts=`` of :func:`match_stream`."""
    return inspect.contexts(spark, checkpoint)


def read_profiles(
    spark: SparkSession, checkpoint: str, order: str = "seq", order_type: str | T.DataType = "bigint"
) -> DataFrame:
    """The profiles in a checkpoint, for ``profiles=`` of :func:`match_stream`; their texts are in canonical form.

    ``order`` and ``order_type`` are the order column of the stream: profiles keep their places in it.
    """
    kind = T.DataType.fromDDL(order_type) if isinstance(order_type, str) else order_type
    found = inspect.profiles(spark, checkpoint, isinstance(kind, T.FloatType | T.DoubleType))
    if "order" not in found.columns:
        return found
    return found.withColumn("order", _from_key("order", kind)).withColumnRenamed("order", order)


def read_kinds(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """The kinds of names that a checkpoint has settled on, for ``schema=`` of :func:`match_stream`."""
    return inspect.kinds(spark, checkpoint)
