"""Routing: rows of a partition into one pack per shard.

A pack is one wide row: the messages, updates, subscribes and unsubscribes of a partition as Arrow streams, how far the
source, or each of its partitions, has come, and where in the order how many of its events are. Messages, subscribes and
unsubscribes go to every shard; an update goes to the shard of its context, and the first update of every kind of value
of an attribute goes to all, so that every shard fixes the same kinds. Every shard gets a pack of every partition, an
empty one if need be: all know how far every source is.

Guarantees that nothing is lost: what cannot be an event at all is in ``wrong``, which goes to shard 0. Refuses to know
sessions and state: this is Arrow in, Arrow out, and runs inside ``mapInArrow``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.engine.shard import shard_of
from tamis.errors import EventError, UsageError
from tamis.model.events import KINDS, _json_value
from tamis.model.values import kind_of, normalise

from .order import to_key
from .records import Records, Search
from .worker import settle

ORDER, PLACE, CORRUPT, EVENT = "#order", "#place", "#corrupt", "#event"
MESSAGE, ID = "#message", "#id"
"""What columns of attributes of messages begin with, and those that identify a message and are nothing else."""
OWN: Final = "#own"
LANE: Final = "#lane"
"""The part of a source, such as a partition of a topic, inside of which events come in order."""
SHARD: Final = "#shard"
"""The shard of an update's context, when Spark has worked it out (with ``crc32``, as :func:`shard_of` does)."""
TABLES: Final = ("messages", "updates", "subscribes", "unsubscribes")
PACK: Final = pa.schema(
    [
        ("key", pa.int32()),
        ("source", pa.string()),
        ("part", pa.int32()),
        ("piece", pa.int32()),
        ("high", pa.string()),
        ("bins", pa.string()),
        *((name, pa.binary()) for name in (*TABLES, "prepared", "wrong")),
    ]
)
PACK_DDL: Final = "key int, source string, part int, piece int, high string, bins string, " + ", ".join(
    f"{name} binary" for name in (*TABLES, "prepared", "wrong")
)
_SORTS: Final = (*(f"{kind}s" for kind in KINDS), "prepared")
LIMIT: Final = 256 * 2**20
"""Bytes of rows after which a partition gives another pack."""

BINS: Final = 64
"""Into so many parts of equal size the events of a pack are counted."""

WRONG: Final = pa.schema([("event", pa.string()), (ORDER, pa.int64()), (PLACE, pa.string()), ("reason", pa.string())])


@dataclass(frozen=True)
class Packer:
    """The function for ``mapInArrow``: ``kind`` is one of messages, updates, profiles, prepared and events."""

    source: str
    kind: str
    keys: tuple[int, ...]
    values: str = "json"
    records: Records | None = None
    """How the source writes its records, when it is known: bad ones then have their place and a reason."""
    order: str = ""
    """The name of the order column."""
    counts: bool = False
    """The shards have to know how many events wait, those of other shards too."""
    ids: tuple[tuple[str, str], ...] = ()
    message: tuple[tuple[str, str], ...] = ()
    """What identifies a message, and its attributes: their names, and the columns that they are in."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        search = None if self.records is None else Search(self.records)
        waiting: list[pa.RecordBatch] = []
        size = piece = 0
        for batch in batches:
            waiting.append(batch)
            size += batch.nbytes
            if size >= LIMIT:
                yield self.pack(pa.Table.from_batches(waiting), part, piece, search)
                waiting, size, piece = [], 0, piece + 1
        if waiting or piece == 0:
            yield self.pack(pa.Table.from_batches(waiting) if waiting else None, part, piece, search)
        settle()

    def pack(self, rows: pa.Table | None, part: int, piece: int, search: Search | None = None) -> pa.RecordBatch:
        """The rows of one partition as one pack per shard."""
        shards = len(self.keys)
        high: dict[str, int] = {}
        bins: list[tuple[int, int]] = []
        columns: dict[str, list[bytes | None]] = {name: [None] * shards for name in (*TABLES, "prepared", "wrong")}
        if rows is not None and rows.num_rows:
            tables, wrong, high = self._tables(rows.combine_chunks(), search)
            if self.counts and tables:
                bins = binned(np.concatenate([table[ORDER].to_numpy() for table in tables.values()]))
            for name, table in tables.items():
                if table.num_rows == 0:
                    continue
                if name == "updates":
                    columns[name] = [
                        to_bytes(t) if t.num_rows else None for t in route_updates(table, shards, self.values)
                    ]
                elif name == "prepared":
                    columns[name] = [to_bytes(t) for t in route_prepared(table, shards)]
                else:
                    columns[name] = [to_bytes(table)] * shards
            if wrong.num_rows:
                columns["wrong"][0] = to_bytes(wrong)
        arrays = [
            pa.array(self.keys, pa.int32()),
            pa.array([self.source] * shards, pa.string()),
            pa.array([part] * shards, pa.int32()),
            pa.array([piece] * shards, pa.int32()),
            pa.array([json.dumps(high)] * shards, pa.string()),
            pa.array([json.dumps(bins)] * shards, pa.string()),
            *(pa.array(columns[name], pa.binary()) for name in (*TABLES, "prepared", "wrong")),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=PACK)

    def _tables(self, rows: pa.Table, search: Search | None) -> tuple[dict[str, pa.Table], pa.Table, dict[str, int]]:
        n = rows.num_rows
        reasons: dict[int, str] = {}
        ordered = ORDER in rows.column_names
        if ordered:
            key, missing = to_key(_one(rows[ORDER]))
            for i in np.flatnonzero(missing).tolist():
                reasons[i] = "the order column is null or not a number"
        else:
            key, missing = np.zeros(n, np.int64), np.zeros(n, bool)
        places: dict[int, str] = {}
        if CORRUPT in rows.column_names:
            for i in np.flatnonzero(pc.is_valid(_one(rows[CORRUPT])).to_numpy(zero_copy_only=False)).tolist():
                record, why = rows[CORRUPT][i].as_py(), ""
                if search is not None:
                    places[i], record = search.located(rows[PLACE][i].as_py(), record)
                    why = f"{search.records.reason(record)}: "
                reasons[i] = f"malformed record: {why}{_cut(record)}"
        event = self._events(rows, reasons)
        if self.records is not None:
            rest = [i for i in reasons if i not in places]
            known = [(rows[PLACE][i].as_py(), None if missing[i] else int(key[i])) for i in rest]
            places |= zip(rest, self.records.lines(self.order, known), strict=True)
        good = np.ones(n, bool)
        good[list(reasons)] = False
        wrong = _wrong(rows, event, key, missing, reasons, places)
        shared = {ORDER: pa.array(key)} if ordered else {}
        if PLACE in rows.column_names:
            shared[PLACE] = rows[PLACE]
        tables = {}
        for code in np.unique(event[good]).tolist():
            mine = good & (event == code)
            picked = self._columns(_SORTS[code], rows, shared)
            tables[_SORTS[code]] = picked if mine.all() else picked.filter(pa.array(mine))
        return tables, wrong, self._high(rows, key, good) if ordered and good.any() else {}

    def _high(self, rows: pa.Table, key: NDArray[np.int64], good: NDArray[np.bool_]) -> dict[str, int]:
        """How far the source is, or each of the parts of it that have rows here."""
        if LANE not in rows.column_names:
            return {self.source: int(key[good].max())}
        lanes = _one(rows[LANE]).dictionary_encode()
        names, codes = lanes.dictionary.to_pylist(), lanes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        found = {}
        for code, name in enumerate(names):
            mine = good & (codes == code)
            if mine.any():
                found[f"{self.source} {name}"] = int(key[mine].max())
        return found

    def _events(self, rows: pa.Table, reasons: dict[int, str]) -> NDArray[np.int64]:
        """The sort of event of every row, a place in ``_SORTS``; -1 where it is none."""
        if self.kind == "events":
            found = pc.index_in(_one(rows[EVENT]), pa.array(KINDS))
            event: NDArray[np.int64] = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
            for i in np.flatnonzero(event < 0).tolist():
                got = rows[EVENT][i].as_py()
                reasons.setdefault(i, f"event: expected one of {', '.join(KINDS)}, got {got!r}")
            return event
        if self.kind == "profiles":
            gone = pc.is_null(_one(rows["profile"])).to_numpy(zero_copy_only=False)
            return np.where(gone, _SORTS.index("unsubscribes"), _SORTS.index("subscribes"))
        return np.full(rows.num_rows, _SORTS.index(self.kind))

    def _columns(self, name: str, rows: pa.Table, shared: dict[str, Any]) -> pa.Table:
        columns = dict(shared)
        if name == "messages":
            columns |= {id_column(name): rows[column] for name, column in self.ids}
            columns |= {name: rows[column] for name, column in self.message}
        elif name == "prepared":
            columns |= {c: rows[c] for c in rows.column_names if not c.startswith("#")}
        else:
            wanted = {
                "updates": ("context", "attribute", "value", SHARD),
                "subscribes": ("id", "profile", "context", "on_match"),
                "unsubscribes": ("id",),
            }[name]
            columns |= {c: rows[c] for c in wanted if c in rows.column_names}
        return pa.table(columns)


def id_column(name: str) -> str:
    """What an identifying column is called in the messages of a pack, beside the attributes."""
    return f"{ID}.{name}"


def binned(keys: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Sorted keys in a few parts of nearly equal size: the last key of each, and how many it has."""
    keys = np.sort(keys)
    ends = np.unique(np.linspace(0, len(keys), min(BINS, len(keys)) + 1).astype(np.int64)[1:])
    return list(zip(keys[ends - 1].tolist(), np.diff(ends, prepend=0).tolist(), strict=True))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _cut(text: Any, limit: int = 200) -> str:
    shown = text if isinstance(text, str) else repr(text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def _wrong(
    rows: pa.Table, event: Any, key: Any, missing: Any, reasons: dict[int, str], places: dict[int, str]
) -> pa.Table:
    """The rows that are no events; ``places`` are better known than the column has them."""
    at = sorted(reasons)
    known = PLACE in rows.column_names
    return pa.table(
        [
            pa.array([KINDS[event[i]] if 0 <= event[i] < len(KINDS) else None for i in at], pa.string()),
            pa.array([None if missing[i] else int(key[i]) for i in at], pa.int64()),
            pa.array([places.get(i) or (rows[PLACE][i].as_py() if known else None) for i in at], pa.string()),
            pa.array([reasons[i] for i in at], pa.string()),
        ],
        schema=WRONG,
    )


# -- one table for every shard ---------------------------------------------------------------------------------


def hashed(column: Any, shards: int) -> NDArray[np.int64]:
    """The shard of every name; 0 where there is none."""
    coded = _one(column) if isinstance(column, pa.ChunkedArray) else column
    if shards == 1:
        return np.zeros(len(coded), np.int64)
    coded = coded.dictionary_encode()
    names = coded.dictionary.to_pylist()
    lookup = np.array([*(shard_of(name, shards) if name is not None else 0 for name in names), 0], np.int64)
    found: NDArray[np.int64] = lookup[pc.fill_null(coded.indices, len(names)).to_numpy(zero_copy_only=False)]
    return found


def route_updates(table: pa.Table, shards: int, values: str) -> list[pa.Table]:
    """The updates of each shard, and of the others what fixes kinds; the column ``#own`` tells them apart."""
    if shards == 1:
        table = table.drop_columns([SHARD]) if SHARD in table.column_names else table
        return [table.append_column(OWN, pa.array(np.ones(table.num_rows, bool)))]
    if SHARD in table.column_names:
        owner = table[SHARD].to_numpy()
        table = table.drop_columns([SHARD])
    else:
        owner = hashed(table["context"], shards)
    first = evidence(table, values)
    parts = []
    for shard in range(shards):
        own = owner == shard
        wanted = own | first
        parts.append(table.append_column(OWN, pa.array(own)).filter(pa.array(wanted)))
    return parts


def route_prepared(table: pa.Table, shards: int) -> list[pa.Table]:
    """The profiles of each shard, those whose ids it registers, and one of any shard to fix the kinds."""
    has_context = "context" in table.column_names
    by_id = hashed(table["id"], shards)
    owner = by_id
    if has_context:
        named = pc.is_valid(_one(table["context"])).to_numpy(zero_copy_only=False)
        owner = np.where(named, hashed(table["context"], shards), by_id)
    parts = []
    for shard in range(shards):
        own, registers = owner == shard, by_id == shard
        wanted = own | registers
        wanted[0] = True
        marked = table.append_column(OWN, pa.array(own)).append_column("#registers", pa.array(registers))
        parts.append(marked.filter(pa.array(wanted)))
    return parts


# -- what fixes kinds ------------------------------------------------------------------------------------------

_NUMBER = r"^-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_PLAIN_TEXT = r"""^[^\s\[{0-9"tfnNI-]"""


def evidence(table: pa.Table, values: str) -> NDArray[np.bool_]:
    """The first update, by order, of every kind of value of every attribute; further ones of it change no kind.

    Where telling kinds apart is not worth the time the answer has more rows than needed, never fewer.
    """
    kinds = _kinds(_one(table["value"]), values)
    attribute = _one(table["attribute"]).dictionary_encode()
    valid = pc.and_(pc.is_valid(_one(table["context"])), pc.is_valid(attribute)).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(valid & (kinds >= 0))
    if ORDER in table.column_names:
        at = at[np.argsort(table[ORDER].to_numpy()[at], kind="stable")]
    codes = pc.fill_null(attribute.indices, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    _, first = np.unique(codes[at] * 64 + kinds[at], return_index=True)
    found = np.zeros(table.num_rows, bool)
    found[at[first]] = True
    return found


def _kinds(column: pa.Array, values: str) -> NDArray[np.int64]:
    """A number for the kind of every value; -1 where it is absent."""
    kind = column.type
    found = np.zeros(len(column), np.int64)
    if pa.types.is_struct(kind):
        return _listed(union_values(column))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _listed(column.to_pylist())
    if (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and values == "json":
        number = pc.fill_null(pc.match_substring_regex(column, _NUMBER), False).to_numpy(zero_copy_only=False)
        text = pc.fill_null(pc.match_substring_regex(column, _PLAIN_TEXT), False).to_numpy(zero_copy_only=False)
        found[text] = _KIND_NUMBERS["text"]
        rest = np.flatnonzero(~(number | text))
        if len(rest):
            coded = column.take(pa.array(rest)).dictionary_encode()
            listed = np.append(_listed([_json_value(text) for text in coded.dictionary.to_pylist()]), -1)
            found[rest] = listed[pc.fill_null(coded.indices, len(listed) - 1).to_numpy(zero_copy_only=False)]
    elif pa.types.is_decimal(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind):
        return np.full(len(column), -1, np.int64)  # no value of tamis: rejected wherever it is
    absent = pc.is_null(column).to_numpy(zero_copy_only=False)
    found[absent] = -1
    return found


_KIND_NUMBERS = {
    name: i
    for i, name in enumerate(
        ("number", "text", "boolean", "time", "list", *(f"list of {e}" for e in ("number", "text", "boolean", "time")))
    )
}


def _listed(values: Sequence[Any]) -> NDArray[np.int64]:
    found = np.full(len(values), -1, np.int64)
    for i, value in enumerate(values):
        try:
            kind = kind_of(normalise(value))
        except EventError:
            continue
        if kind is not None:
            found[i] = _KIND_NUMBERS[str(kind)]
    return found


def union_values(column: pa.Array) -> list[Any]:
    """A struct as a union: every row's value is its only field that is not null."""
    fields = [part.to_pylist() for part in column.flatten()]
    return [next((value for value in row if value is not None), None) for row in zip(*fields, strict=True)]


# -- the wire --------------------------------------------------------------------------------------------------


def to_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> pa.Table:
    """The table of an Arrow stream."""
    return pa.ipc.open_stream(data).read_all()


def shard_keys(shards: int) -> tuple[int, ...]:
    """One grouping key per shard, such that Spark puts shard ``i`` of ``n`` into partition ``i`` of ``n``."""
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= 4096:
        raise UsageError(f"shards: expected a whole number from 1 to 4096, got {shards!r}")
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < shards:
        keys.setdefault(_murmur3(key) % shards, key)
        key += 1
    return tuple(keys[shard] for shard in range(shards))


def _murmur3(value: int, seed: int = 42) -> int:
    """Spark's ``hash`` of an int, signed."""

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & 0xFFFF_FFFF

    k = rotated((value * 0xCC9E_2D51) & 0xFFFF_FFFF, 15) * 0x1B87_3593 & 0xFFFF_FFFF
    h = (rotated(seed ^ k, 13) * 5 + 0xE654_6B64) & 0xFFFF_FFFF
    h ^= 4
    h = ((h ^ (h >> 16)) * 0x85EB_CA6B) & 0xFFFF_FFFF
    h = ((h ^ (h >> 13)) * 0xC2B2_AE35) & 0xFFFF_FFFF
    h ^= h >> 16
    return h - 2**32 if h >= 2**31 else h


__all__ = ["PACK_DDL", "Packer", "evidence", "from_bytes", "shard_keys", "to_bytes", "union_values"]
