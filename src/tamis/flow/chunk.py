"""Chunks: events in columns on their way through a flow, with the time each arrived and the class it belongs to.

Guarantees that cutting a chunk shares its columns, that a log made of any events of chunks keeps for each the sequence
number it was given, and that no step costs Python work per event. Refuses to know queues, policies and filters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.model.events import (
    KINDS,
    MESSAGE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UPDATE,
    EventLog,
    LogBuilder,
    SubscribeTable,
    UnsubscribeTable,
    UpdateTable,
    runs_of,
)
from tamis.model.tables import Column, Table, to_list

Consistency: TypeAlias = Literal["serial", "no outdated state", "no premature state"]
CONSISTENCY: Final[tuple[Consistency, ...]] = ("serial", "no outdated state", "no premature state")
"""In which order a batch is worked: as it arrived; updates first; messages first."""

Positions: TypeAlias = "NDArray[np.int64]"


class Chunk:
    """The events of a log, in its order; event ``i`` arrived at ``arrival[i]`` and has the class ``qos[i]``.

    ``kind`` is the sort of each event, ``at`` its row in the sorted table of that sort, ``messages_before`` the number
    of messages before each event, with one entry more for the end. ``first`` is the sequence number of event 0; events
    that were numbered before have a ``seq`` each.
    """

    __slots__ = ("_numbering", "_seq", "_values", "arrival", "at", "first", "kind", "log", "messages_before", "qos")

    def __init__(
        self, log: EventLog, arrival: Any, qos: NDArray[np.int16] | None = None, seq: Positions | None = None
    ) -> None:
        n = len(log)
        self.log = log
        runs = log.runs
        lengths = runs[:, 2] - runs[:, 1]
        self.kind: NDArray[np.int8] = np.repeat(runs[:, 0].astype(np.int8), lengths)
        starts = np.cumsum(lengths) - lengths
        self.at: Positions = np.arange(n, dtype=np.int64) - np.repeat(starts - runs[:, 1], lengths)
        self.arrival = _arrivals(arrival, n)
        self.qos: NDArray[np.int16] = np.zeros(n, np.int16) if qos is None else qos
        self.messages_before: Positions = np.zeros(n + 1, np.int64)
        np.cumsum(self.kind == MESSAGE, out=self.messages_before[1:])
        self._values: Positions | None = None
        self._numbering: Callable[[str], int] | None = None
        self._seq = seq
        self.first = -1  # given when the first event of the chunk is offered

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def named(self) -> bool | None:
        """Whether updates name their contexts, or use indices; None without updates. One log has one of the two."""
        return None if self.log.updates is None else not isinstance(self.log.updates.context, np.ndarray)

    def seq(self, positions: Positions) -> Positions:
        """The sequence numbers of some events."""
        found: Positions = self.first + positions if self._seq is None else self._seq[positions]
        return found

    def values(self, positions: Positions, names: Callable[[str], int]) -> Positions:
        """A number for the context and attribute that each update sets; ``names`` numbers names. Indices and names of
        contexts are numbered apart."""
        if self._values is None or self._numbering is not names:
            self._numbering = names
            updates = self.log.updates
            assert updates is not None
            attribute = _numbered(updates.attribute, names)
            if isinstance(updates.context, np.ndarray):
                self._values = (updates.context << 33) | (attribute << 1)
            else:
                self._values = (_numbered(updates.context, names) << 33) | (attribute << 1) | 1
        found: Positions = self._values[self.at[positions]]
        return found

    def until(self, time: float) -> int:
        """How many events have arrived at a time. O(log n)."""
        return int(np.searchsorted(self.arrival, time, "right"))


def _numbered(column: Any, names: Callable[[str], int]) -> Positions:
    """Dictionary-coded names as numbers; each distinct name is looked up once."""
    known = np.array([names(str(name)) for name in column.dictionary.to_pylist()] or [0], np.int64)
    codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
    found: Positions = known[codes]
    return found


def _arrivals(arrival: Any, n: int) -> NDArray[np.float64]:
    if isinstance(arrival, int | float):
        found = np.full(n, float(arrival))
    else:
        found = np.ascontiguousarray(arrival, np.float64)
        if found.shape != (n,):
            raise UsageError(f"arrival: expected one time, or one per event ({n:,}), got the shape {found.shape}")
    if not np.isfinite(found).all():
        raise UsageError("arrival: expected times as numbers of seconds, got NaN or infinity")
    if n > 1 and bool(np.any(found[1:] < found[:-1])):
        raise UsageError("arrival: expected times in the order of the events; sort the events by time first")
    return found


@dataclass(frozen=True, eq=False)
class Piece:
    """Some events of one chunk: the positions, rising."""

    chunk: Chunk
    positions: Positions

    @property
    def seq(self) -> Positions:
        """The sequence numbers."""
        return self.chunk.seq(self.positions)

    @property
    def kind(self) -> NDArray[np.int8]:
        """The sorts."""
        return self.chunk.kind[self.positions]


def counted(piece: Piece, classes: int) -> NDArray[np.int64]:
    """Events of a piece by sort and class, shape (4, classes)."""
    code = piece.kind.astype(np.int64) * classes + piece.chunk.qos[piece.positions]
    return np.bincount(code, minlength=len(KINDS) * classes).reshape(len(KINDS), classes)


def parts_of(pieces: Sequence[Piece], kind: int) -> list[Piece]:
    """The events of one sort."""
    parts = (Piece(piece.chunk, piece.positions[piece.kind == kind]) for piece in pieces)
    return [part for part in parts if len(part.positions)]


# -- logs of pieces --------------------------------------------------------------------------------------------


def log_of(pieces: Sequence[Piece], consistency: Consistency = "serial") -> EventLog:
    """One log of all events of the pieces; rows of messages, updates and subscriptions are sequence numbers."""
    parts = [_Part(piece) for piece in pieces]
    kinds = np.concatenate([part.kind for part in parts]) if parts else np.zeros(0, np.int8)
    return EventLog(
        messages=_joined_tables([part.messages for part in parts if part.messages is not None]),
        message_rows=_joined_rows([part.rows(MESSAGE) for part in parts]),
        updates=_joined_updates([part.updates for part in parts if part.updates is not None]),
        subscribes=_joined_subscribes([part.subscribes for part in parts if part.subscribes is not None]),
        unsubscribes=_joined_unsubscribes([part.unsubscribes for part in parts if part.unsubscribes is not None]),
        runs=_ordered_runs(kinds, consistency),
    )


class _Part:
    """The tables of one piece."""

    def __init__(self, piece: Piece) -> None:
        log, at = piece.chunk.log, piece.chunk.at[piece.positions]
        self.kind, self._seq = piece.kind, piece.seq
        mine = {kind: at[self.kind == kind] for kind in (MESSAGE, UPDATE, SUBSCRIBE, UNSUBSCRIBE)}
        self.messages = self.updates = self.subscribes = self.unsubscribes = None
        if len(mine[MESSAGE]):
            assert log.messages is not None
            columns = {name: picked(column, mine[MESSAGE]) for name, column in log.messages.columns.items()}
            self.messages = Table(columns, len(mine[MESSAGE]))
        if len(mine[UPDATE]):
            u = log.updates
            assert u is not None
            columns = {name: picked(getattr(u, name), mine[UPDATE]) for name in ("context", "attribute", "value")}
            self.updates = UpdateTable(**columns, rows=self.rows(UPDATE))
        if len(mine[SUBSCRIBE]):
            s = log.subscribes
            assert s is not None
            lists = {n: picked(getattr(s, n), mine[SUBSCRIBE]) for n in ("id", "profile", "context", "on_match")}
            self.subscribes = SubscribeTable(**lists, rows=self.rows(SUBSCRIBE))
        if len(mine[UNSUBSCRIBE]):
            assert log.unsubscribes is not None
            ids = picked(log.unsubscribes.id, mine[UNSUBSCRIBE])
            self.unsubscribes = UnsubscribeTable(ids, rows=self.rows(UNSUBSCRIBE))

    def rows(self, kind: int) -> Positions:
        rows: Positions = self._seq[self.kind == kind]
        rows.flags.writeable = False
        return rows


def picked(column: Any, rows: Positions) -> Any:
    """Some rows of an Arrow array, a NumPy array or a list; a slice where they lie together."""
    first, stop = int(rows[0]), int(rows[-1]) + 1
    if stop - first == len(rows):
        return column[first:stop]
    if isinstance(column, list):
        return [column[i] for i in rows.tolist()]
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))


def _joined_rows(rows: Sequence[Positions]) -> Positions:
    found = rows[0] if len(rows) == 1 else np.concatenate([np.zeros(0, np.int64), *rows])
    found.flags.writeable = False
    return found


def _joined_columns(columns: Sequence[Column]) -> Column:
    """Columns one below the other: as Arrow where the types agree, else as Python values."""
    if len(columns) == 1:
        return columns[0]
    arrays = [column for column in columns if not isinstance(column, list)]
    if len(arrays) == len(columns):
        types = {array.type for array in arrays}
        solid = {kind for kind in types if not pa.types.is_null(kind)}
        if len(solid) <= 1:
            wanted = solid.pop() if solid else pa.null()
            whole = [array if array.type == wanted else pa.nulls(len(array), wanted) for array in arrays]
            return _stacked(pa.chunked_array(whole))
    return [value for column in columns for value in to_list(column)]


def _joined_tables(tables: Sequence[Table]) -> Table | None:
    if len(tables) < 2:
        return tables[0] if tables else None
    names = dict.fromkeys(name for table in tables for name in table.names)
    columns = {
        name: _joined_columns([table.columns.get(name, pa.nulls(table.num_rows)) for table in tables]) for name in names
    }
    return Table(columns, sum(table.num_rows for table in tables))


def _joined_updates(tables: Sequence[UpdateTable]) -> UpdateTable | None:
    if len(tables) < 2:
        return tables[0] if tables else None
    contexts: Any
    if all(isinstance(table.context, np.ndarray) for table in tables):
        contexts = np.concatenate([table.context for table in tables])
    else:
        contexts = _stacked(pa.chunked_array([table.context for table in tables]))
    attributes = _stacked(pa.chunked_array([table.attribute for table in tables]))
    value = _joined_columns([table.value for table in tables])
    return UpdateTable(contexts, attributes, value, _joined_rows([table.rows for table in tables]))


def _stacked(column: Any) -> Any:
    """The chunks of a column as one array; dictionaries become one."""
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return pa.concat_arrays(column.chunks)


def _joined_subscribes(tables: Sequence[SubscribeTable]) -> SubscribeTable | None:
    if len(tables) < 2:
        return tables[0] if tables else None
    lists = {n: [v for t in tables for v in getattr(t, n)] for n in ("id", "profile", "context", "on_match")}
    return SubscribeTable(**lists, rows=_joined_rows([table.rows for table in tables]))


def _joined_unsubscribes(tables: Sequence[UnsubscribeTable]) -> UnsubscribeTable | None:
    if len(tables) < 2:
        return tables[0] if tables else None
    return UnsubscribeTable([v for t in tables for v in t.id], rows=_joined_rows([table.rows for table in tables]))


def _ordered_runs(kinds: NDArray[np.int8], consistency: Consistency) -> Positions:
    """Maximal runs of one sort, shape (n, 3), in the order that the consistency asks for."""
    if len(kinds) == 0:
        return np.zeros((0, 3), np.int64)
    if consistency != "serial":
        # A stable sort by rank: subscriptions are never in such a batch, so two ranks are enough.
        last = MESSAGE if consistency == "no outdated state" else UPDATE
        kinds = kinds[np.argsort(kinds == last, kind="stable")]
    runs = runs_of(kinds)
    runs.flags.writeable = False
    return runs


# -- events one by one -----------------------------------------------------------------------------------------


class Singles:
    """Collects events that come one by one until somebody needs them as a chunk."""

    def __init__(self) -> None:
        self._builder = LogBuilder()
        self._arrival: list[float] = []
        self._qos: list[int] = []

        self._named: bool | None = None

    def __len__(self) -> int:
        return len(self._arrival)

    def fits(self, event: Any) -> bool:
        """Whether an event may join: updates of one chunk name their contexts, or all of them use indices."""
        if self._named is None or not isinstance(event, tuple) or len(event) < 2 or event[0] != "update":
            return True
        return isinstance(event[1], str) == self._named

    def add(self, event: Any, arrival: float, qos: int) -> int:
        """One event as :meth:`Flow.offer` takes them; returns how many rows it became (an update has one per value)."""
        before = len(self._builder)
        _add(self._builder, event)
        added = len(self._builder) - before
        if added and isinstance(event, tuple) and event[0] == "update":
            self._named = isinstance(event[1], str)
        self._arrival += [arrival] * added
        self._qos += [qos] * added
        return added

    def seal(self) -> Chunk:
        """All of them as a chunk; the collection is empty afterwards."""
        chunk = Chunk(self._builder.build(), np.array(self._arrival), np.array(self._qos, np.int16))
        self.__init__()  # type: ignore[misc]
        return chunk


def _add(builder: LogBuilder, event: Any) -> None:
    """A mapping is a message; a tuple starts with its sort, as :meth:`tamis.EventLog.events` gives them."""
    if isinstance(event, tuple) and event and event[0] in ("message", "update", "subscribe", "unsubscribe"):
        kind, rest = event[0], event[1:]
        wanted = {"message": (1,), "update": (2, 3), "subscribe": (2, 3, 4), "unsubscribe": (1,)}[kind]
        if len(rest) not in wanted:
            raise UsageError(f"event {kind!r}: expected {EXPECTED[kind]}, got {len(rest)} values behind {kind!r}")
        if kind == "message":
            builder.message(rest[0])
        elif kind == "update":
            values = rest[1] if len(rest) == 2 else {rest[1]: rest[2]}
            if not isinstance(values, Mapping) or not all(isinstance(name, str) and name for name in values):
                raise UsageError(f"event 'update': expected {EXPECTED[kind]}, got {values!r:.80} behind the context")
            builder.update(rest[0], values)
        elif kind == "subscribe":
            builder.subscribe(*rest)
        else:
            builder.unsubscribe(rest[0])
        return
    try:
        builder.message(event)
    except UsageError:
        raise UsageError(
            f"event: expected a message as a mapping, one of {'; '.join(EXPECTED.values())}, or an EventLog, "
            f"got {event!r:.80}"
        ) from None


EXPECTED: Final = {
    "message": "('message', {attribute: value})",
    "update": "('update', context, {attribute: value})",
    "subscribe": "('subscribe', id, profile, context, on_match)",
    "unsubscribe": "('unsubscribe', id)",
}
