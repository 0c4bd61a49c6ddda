"""A shard: one of several filters that together are one.

Guarantees that the results of all shards of a log, put together, are the result of one filter, whatever their number:
a context, its profiles and its state live in the shard that :func:`shard_of` names; every shard checks every
subscription and every message, so that all agree on the kinds of names and on what is rejected; exactly one of them
reports a rejected event. What changed since the last time is handed over as a *delta*, everything as a *snapshot*:
whoever keeps those can bring another shard of the same number to the same state. Refuses to know Spark.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.errors import EventError, InvariantError, TamisError, UsageError
from tamis.index.growth import with_room
from tamis.kernels import bundles as b
from tamis.model.events import KINDS, MESSAGE, SUBSCRIBE, UPDATE, EventLog
from tamis.model.matches import Id
from tamis.model.packed import pack, unpack
from tamis.model.profile import checked_id
from tamis.model.schema import context_name
from tamis.model.values import NUMBER, shown

from .filter import Filter
from .replay import _sliced, _sliced_updates
from .strings import StringTable

NO_RANK = -(2**63)
"""The rank of profiles that have none: before all others, by id among themselves."""


def shard_of(name: str | int, shards: int) -> int:
    """The shard of a context by its name, and of a profile without context by its id; the same for ever, everywhere."""
    return crc32(str(name).encode(errors="surrogatepass")) % shards


class Found(NamedTuple):
    """What one shard found in a log, in log order and inside a message in subscription order."""

    message: NDArray[np.int64]  # original row of the message
    profile: Any  # ids: an Arrow array, or a list where text and integers mix
    rank: NDArray[np.int64]
    rejected: list[tuple[str, int, str]]  # kind, original row, reason


@dataclass(frozen=True)
class Track:
    """The arguments of ``Filter.track``, for a shard to repeat."""

    context: str
    set: str
    when: str | None = None


class Shard:
    """Shard ``number`` of ``shards``.

    >>> both = [Shard(k, 2) for k in range(2)]
    >>> log = EventLog.builder().subscribe("p", "x > ctx.low", "A").update("A", low=3).message({"x": 5}).build()
    >>> [len(shard.process(log).message) for shard in both], shard_of("A", 2)
    ([0, 1], 1)
    """

    def __init__(self, number: int, shards: int, tracks: Sequence[Track] = (), **options: Any) -> None:
        if not 0 <= number < shards:
            raise UsageError(f"shard: expected a number from 0 to {shards - 1}, got {number}")
        self.number, self.shards = number, shards
        filter = Filter(**options)
        for track in tracks:
            filter.track(track.context, track.set, track.when)
        self._start(filter)
        self._ids, self._live = StringTable(), np.zeros(8, np.uint8)
        self._rank = np.zeros(8, np.int64)

    def _start(self, filter: Filter) -> None:
        self.filter = filter
        filter._owns = self.owns
        self._operations: list[list[Any]] = []
        self._registered: dict[Id, bool] = {}
        self._waiting: set[Id] = set()
        self._schema_version = -1
        self._before = np.zeros((0, 0), np.int64)
        self._residual_before = np.zeros((0, 0), np.int16)
        self._changes()
        self._schema_version = filter.schema.version

    def owns(self, context: str) -> bool:
        """Whether a context lives here."""
        return shard_of(context, self.shards) == self.number

    # -- logs --------------------------------------------------------------------------------------------------

    def process(
        self,
        log: EventLog,
        ranks: Callable[[int], int] | None = None,
        foreign: NDArray[np.bool_] | None = None,
    ) -> Found:
        """Replay this shard's part of a log: all messages and subscriptions, and the updates of its contexts.

        ``ranks`` gives the rank of a subscribe by its original row; ranks grow in log order, and profiles are reported
        by rank. ``foreign`` marks updates (by original row) of other shards' contexts, which are here to fix kinds: the
        first of each kind of value of an attribute is enough. What is wrong with them the other shard reports.
        """
        messages: list[NDArray[np.int64]] = []
        codes: list[NDArray[np.int32]] = []
        rank: list[NDArray[np.int64]] = []
        rejected: list[tuple[str, int, str]] = []
        for at, stop in log.segments():
            kind, first, last = log.runs[at].tolist()
            if kind in (MESSAGE, UPDATE):
                self._segment(_part(log, at, stop), foreign, messages, codes, rank, rejected)
                continue
            for i in range(first, last):
                self._subscription(log, kind, i, ranks, rejected)
        all_codes = _joined(codes, np.int32)
        ids = self.filter._profiles.ids.take(all_codes)
        return Found(_joined(messages, np.int64), ids, _joined(rank, np.int64), rejected)

    def _segment(self, log: EventLog, foreign: Any, messages: Any, codes: Any, rank: Any, rejected: Any) -> None:
        found = self.filter.process(log)
        self._waiting.clear()
        for kind, row, reason in found.rejected:
            if kind == "effect":
                mine = True
            elif kind == "message":
                mine = self.number == 0
            else:
                mine = foreign is None or not foreign[row]
            if mine:
                rejected.append((kind, row, reason))
        if not len(found):
            return
        message, code = found.message, found.codes
        ranks, order = self._rank[code], self.filter._profiles.order[code]
        position = np.zeros(len(message), np.int64)
        np.cumsum(message[1:] != message[:-1], out=position[1:])
        sort = np.lexsort((order, ranks, position))
        messages.append(message)
        codes.append(code[sort])
        rank.append(ranks[sort])

    def _subscription(self, log: EventLog, kind: int, i: int, ranks: Any, rejected: Any) -> None:
        table: Any = log.subscribes if kind == SUBSCRIBE else log.unsubscribes
        row = int(table.rows[i])
        id = table.id[i]
        try:
            if kind == SUBSCRIBE:
                rank = NO_RANK if ranks is None else ranks(row)
                self.subscribe(id, table.profile[i], table.context[i], table.on_match[i], rank)
            else:
                self.unsubscribe(id)
        except TamisError as error:
            if self._registers(id):
                rejected.append((KINDS[kind], row, str(error)))

    # -- profiles ----------------------------------------------------------------------------------------------

    def _registers(self, id: object) -> bool:
        """Whether this shard keeps account of an id, wherever its profile lives."""
        try:
            return shard_of(checked_id(id), self.shards) == self.number
        except UsageError:
            return self.number == 0

    def _has(self, id: Id) -> bool:
        return id in self._waiting or self.filter._profile_code(id) >= 0

    def subscribe(
        self, id: Id, profile: Any, context: str | None = None, on_match: Any = None, rank: int = NO_RANK
    ) -> None:
        """Keep a profile of this shard; check one of another, which replaces one with the same id here."""
        id = checked_id(id)
        if shard_of(id if context is None else context, self.shards) == self.number:
            self.filter.subscribe(id, profile, context, on_match)
            self._waiting.add(id)
            self._set_rank(self.filter._profiles.ids.intern(id), rank)
            self._operations.append([id, profile, context, on_match, rank])
        else:
            self.filter.admit(id, profile, context, on_match)
            if self._has(id):
                self.filter.unsubscribe(id)
                self._waiting.clear()
                self._operations.append([id])
        if self._registers(id):
            self._register(id, True)

    def _set_rank(self, code: int, rank: int) -> None:
        self._rank = with_room(self._rank, code + 1, NO_RANK)
        self._rank[code] = rank

    def unsubscribe(self, id: Id) -> None:
        """Remove a profile wherever it lives; the shard that registers the id raises when there is none."""
        id = checked_id(id)
        here = self._has(id)
        if self._registers(id) and not self._is_registered(id):
            raise EventError(f"unsubscribe: there is no profile {shown(id)}")
        if here:
            self.filter.unsubscribe(id)
            self._waiting.clear()
            self._operations.append([id])
        if self._registers(id):
            self._register(id, False)

    def _is_registered(self, id: Id) -> bool:
        code = self._ids.find(id)
        return code >= 0 and bool(self._live[code])

    def _register(self, id: Id, live: bool) -> None:
        code = self._ids.intern(id)
        self._live = with_room(self._live, code + 1)
        self._live[code] = live
        self._registered[id] = live

    def load(self, profile: Any, own: Any, registered: Any, ranks: NDArray[np.int64] | None, on_match: Any) -> None:
        """Prepared profiles, before any event: ``own`` is a table for ``subscribe_many``, ``registered`` some ids.

        Raises :class:`tamis.ProfileError` as ``subscribe_many`` does, and :class:`tamis.UsageError` for an id that
        occurs twice. Not part of any delta: take a snapshot afterwards.
        """
        self.filter.subscribe_many(profile, own, on_match)
        codes = self.filter._profiles.ids.intern_many(own.column("id").combine_chunks())
        self._rank = with_room(self._rank, len(self.filter._profiles.ids), NO_RANK)
        self._rank[codes] = NO_RANK if ranks is None else ranks
        codes = self._ids.intern_many(registered)
        self._live = with_room(self._live, len(self._ids))
        if len(np.unique(codes)) < len(codes) or self._live[codes].any():
            counts = np.bincount(codes) + self._live[: len(self._ids)]
            twice = self._ids[int(np.flatnonzero(counts > 1)[0])]
            raise UsageError(f"profiles: id {shown(twice)} occurs more than once; every profile needs an id of its own")
        self._live[codes] = 1

    # -- deltas ------------------------------------------------------------------------------------------------

    def _changes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The cells (context, attribute) whose values differ from those at the last call."""
        f = self.filter
        f._flush()
        f._fit()
        n = len(f._contexts)
        bundle = f._contexts.bundle
        now, residual = bundle.value[:n].view(np.int64), bundle.residual[:n]
        self._before = _fitted(self._before, now.shape, b.ABSENT_BITS)
        changed = now != self._before
        if len(residual):
            self._residual_before = _fitted(self._residual_before, residual.shape, 0)
            changed |= residual != self._residual_before
        rows, columns = np.nonzero(changed)
        self._before[rows, columns] = now[rows, columns]
        if len(residual):
            self._residual_before[rows, columns] = residual[rows, columns]
        return rows, columns

    def delta(self) -> bytes:
        """What changed since the last call: context values, subscriptions, kinds. O(contexts)."""
        f = self.filter
        rows, columns = self._changes()
        names: Any = f._contexts.names.take(rows.astype(np.int32))
        attributes = pa.array(list(f._compiler.context_attributes.column), pa.string())
        kinds = [f.schema.kind(context_name(name)) for name in attributes.to_pylist()]
        residual = f._contexts.bundle.residual
        value = f._contexts.bundle.value[rows, columns]
        absent = value.view(np.int64) == b.ABSENT_BITS
        is_number = np.array([kind is NUMBER for kind in kinds] or [False])[columns] | absent
        if len(residual):
            is_number &= residual[rows, columns] == 0
        number = np.flatnonzero(is_number)
        other = np.flatnonzero(~is_number)
        numbers = pa.table(
            {
                "context": names.take(pa.array(number)),
                "attribute": pa.DictionaryArray.from_arrays(pa.array(columns[number].astype(np.int32)), attributes),
                "value": pa.array(value[number], pa.float64(), mask=absent[number]),
            }
        )
        others = [
            [
                names[i].as_py(),
                attributes[int(columns[i])].as_py(),
                pack(self._decoded(int(rows[i]), int(columns[i]), kinds)),
            ]
            for i in other.tolist()
        ]
        head: dict[str, Any] = {
            "others": others,
            "operations": self._operations,
            "registered": list(self._registered.items()),
        }
        if f.schema.version != self._schema_version:
            head["schema"] = f.schema.to_dict()
        self._operations, self._registered, self._schema_version = [], {}, f.schema.version
        return _wire(numbers, head)

    def _decoded(self, row: int, column: int, kinds: Sequence[Any]) -> Any:
        bundle, kind = self.filter._contexts.bundle, kinds[column]
        if kind is None:
            raise InvariantError("a context holds a value whose kind is not known")
        residual = int(bundle.residual[row, column]) if len(bundle.residual) else 0
        return self.filter._values.decode(float(bundle.value[row, column]), residual, kind)

    def catch_up(self, delta: bytes) -> None:
        """Apply what another shard of the same number, in the same state, handed over."""
        f = self.filter
        numbers, head = _unwire(delta)
        if "schema" in head:
            f._restore_schema(head["schema"])
        for operation in head["operations"]:
            if len(operation) == 1:
                f.unsubscribe(operation[0])
                continue
            id, profile, context, on_match, rank = operation
            f.subscribe(id, profile, context, on_match)
            self._set_rank(f._profiles.ids.intern(id), rank)
        for id, live in head["registered"]:
            self._register(id, live)
        self._set(numbers)
        if head["others"]:
            context, attribute, value = (list(column) for column in zip(*head["others"], strict=True))
            self._set({"context": context, "attribute": attribute, "value": [unpack(one) for one in value]})
        self._changes()
        self._operations, self._registered, self._schema_version = [], {}, f.schema.version

    def _set(self, updates: Any) -> None:
        found = self.filter.process(EventLog.merge(updates=updates, values="plain"))
        for _, row, reason in found.rejected:
            raise InvariantError(f"a delta does not fit the state it is for: update {row}: {reason}")

    # -- snapshots ---------------------------------------------------------------------------------------------

    def snapshot(self, folder: str | Path | None = None) -> pa.Table:
        """Everything, as a table of files (name, data); the next delta starts here."""
        self.delta()
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = Path(place) / "shard"
            self.filter.save(path)
            extra = {f"id_{name}": array for name, array in self._ids.arrays().items()}
            extra |= {"live": self._live, "rank": self._rank}
            for name, array in extra.items():
                np.save(path / f"shard.{name}.npy", array)
            files = sorted(path.iterdir())
            data = [file.read_bytes() for file in files]
        return pa.table(
            {
                "name": pa.array([file.name for file in files], pa.string()),
                "data": pa.array(data, pa.large_binary()),
            }
        )

    @classmethod
    def restore(cls, number: int, shards: int, snapshot: pa.Table, folder: str | Path | None = None) -> Shard:
        """The shard that :meth:`snapshot` described, its arrays mapped from files that have no name any more."""
        shard = cls.__new__(cls)
        shard.number, shard.shards = number, shards
        place = Path(tempfile.mkdtemp(dir=folder))
        try:
            for name, data in zip(snapshot["name"].to_pylist(), snapshot["data"], strict=True):
                (place / name).write_bytes(data.as_buffer())
            filter = Filter.load(place)
            extra = {file.name.split(".")[1]: np.load(file) for file in place.glob("shard.*.npy")}
        finally:
            shutil.rmtree(place)
        shard._start(filter)
        shard._ids = StringTable.adopt({name: extra[f"id_{name}"] for name in ("heap", "start", "slots")})
        shard._live, shard._rank = extra["live"], extra["rank"]
        return shard

    # -- reading -----------------------------------------------------------------------------------------------

    def contexts(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """The contexts that live here, with their values."""
        names = self.filter._contexts.names
        for code in range(len(names)):
            name = str(names[code])
            if self.owns(name):
                yield name, self.filter.context(name)

    @property
    def stats(self) -> dict[str, int]:
        """As ``Filter.stats``, of this shard."""
        return self.filter.stats

    def check(self) -> None:
        """Every invariant of the filter, and that ids are registered where they should be."""
        self.filter.check()
        for code in range(len(self._ids)):
            if not self._registers(self._ids[code]):
                raise InvariantError(f"shard {self.number} registers {self._ids[code]!r}, which is not its to register")


def _part(log: EventLog, at: int, stop: int) -> EventLog:
    """The runs from ``at`` to ``stop``, messages and updates only, as a log of their own with the original rows."""
    runs = log.runs[at:stop].copy()
    tables: dict[int, tuple[int, int]] = {}
    for kind in (MESSAGE, UPDATE):
        mine = runs[:, 0] == kind
        first, last = (int(runs[mine, 1].min()), int(runs[mine, 2].max())) if mine.any() else (0, 0)
        runs[mine, 1:] -= first
        tables[kind] = first, last
    first, last = tables[MESSAGE]
    return EventLog(
        messages=_sliced(log.messages, first, last),
        message_rows=log.message_rows[first:last],
        updates=_sliced_updates(log.updates, *tables[UPDATE]),
        runs=runs,
    )


def _joined(parts: list[Any], dtype: Any) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _fitted(array: NDArray[Any], shape: tuple[int, ...], fill: Any) -> NDArray[Any]:
    """The array itself if it has the shape, else a copy that has it."""
    if array.shape == shape:
        return array
    new = np.full(shape, fill, array.dtype)
    rows, columns = min(shape[0], array.shape[0]), min(shape[1], array.shape[1])
    new[:rows, :columns] = array[:rows, :columns]
    return new


def _wire(table: pa.Table, head: Mapping[str, Any]) -> bytes:
    """A table and plain values as one Arrow stream."""
    table = table.replace_schema_metadata({"head": json.dumps(head)})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _unwire(data: bytes) -> tuple[pa.Table, dict[str, Any]]:
    table = pa.ipc.open_stream(data).read_all()
    return table.replace_schema_metadata(None), json.loads(table.schema.metadata[b"head"])
