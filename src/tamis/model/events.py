"""The event log: messages, context updates, subscribes and unsubscribes in one order, as columns.

Guarantees that a log is frozen, that every event keeps its original row number, and that merging costs no Python step
per event. Refuses to know schemas and filters: a wrong value in a log is found, and reported, by who processes it.
"""

from __future__ import annotations

import difflib
import html
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.model.tables import Column, Order, Table, did_you_mean, from_python, read_table, to_list, to_table

__all__ = ["EventLog", "LogBuilder", "SubscribeTable", "Table", "UnsubscribeTable", "UpdateTable", "to_table"]

MESSAGE: Final = 0
UPDATE: Final = 1
SUBSCRIBE: Final = 2
UNSUBSCRIBE: Final = 3
KINDS: Final = ("message", "update", "subscribe", "unsubscribe")


# -- logs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UpdateTable:
    """Context updates, one value each; an absent value removes the attribute.

    ``context`` is a dictionary array of names, or an int64 array of indices from ``Filter.context_index``.
    """

    context: Any
    attribute: pa.DictionaryArray
    value: Column
    rows: Order

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class SubscribeTable:
    """Subscribes: ``profile`` is text, a tree, the JSON form or a builder's object; all columns are Python lists."""

    id: list[Any]
    profile: list[Any]
    context: list[Any]
    on_match: list[Any]
    rows: Order

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class UnsubscribeTable:
    """Unsubscribes: the ids that leave."""

    id: list[Any]
    rows: Order

    def __len__(self) -> int:
        return len(self.rows)


Event: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class EventLog:
    """Events of all sorts in one order.

    The tables are sorted by that order; ``*_rows`` and ``.rows`` hold each row's original number. ``runs`` has the
    shape (n, 3): the sort of event (:data:`MESSAGE`, :data:`UPDATE`, :data:`SUBSCRIBE`, :data:`UNSUBSCRIBE`), start
    and stop, positions in the sorted table of that sort; runs are as long as possible.

    >>> log = EventLog.merge(
    ...     messages={"seq": [1, 3], "quantity": [7, 9]},
    ...     updates={"seq": [2], "context": ["A"], "attribute": ["stock"], "value": [5]},
    ... )
    >>> [event[0] for event in log.events()]
    ['message', 'update', 'message']
    """

    messages: Table | None = None
    message_rows: Order = field(default_factory=lambda: np.empty(0, np.int64))
    updates: UpdateTable | None = None
    subscribes: SubscribeTable | None = None
    unsubscribes: UnsubscribeTable | None = None
    runs: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 3), np.int64))

    @classmethod
    def merge(
        cls,
        messages: Any = None,
        updates: Any = None,
        subscribes: Any = None,
        unsubscribes: Any = None,
        order: str = "seq",
        values: Literal["json", "plain"] = "json",
    ) -> EventLog:
        """One log of up to four tables, each with the column ``order`` (numbers or times).

        A table that is the only one may lack it and then keeps its own order. At equal order unsubscribes come first,
        then subscribes, updates and messages. Columns: updates ``context``, ``attribute``, ``value``; subscribes
        ``id``, ``profile`` and optionally ``context``, ``on_match``; unsubscribes ``id``. A text ``value`` that is
        valid JSON is read as JSON, unless ``values="plain"``. O(n log n), linear when the tables are sorted.
        """
        if values not in ("json", "plain"):
            raise UsageError(f"values: expected 'json' or 'plain', got {values!r}")
        given = {"unsubscribes": unsubscribes, "subscribes": subscribes, "updates": updates, "messages": messages}
        tables = {what: read_table(source, what) for what, source in given.items() if source is not None}
        for what, table in tables.items():
            _require(what, table)
        keys = _keys(tables, order)
        sorts = {what: _ascending(key) for what, key in keys.items()}
        sorted_tables = {what: table.without(order).reduced().take(sorts[what]) for what, table in tables.items()}
        rows = {what: _rows(sorts[what], table.num_rows) for what, table in tables.items()}
        return cls(
            messages=sorted_tables.get("messages"),
            message_rows=rows.get("messages", _frozen(np.empty(0, np.int64))),
            updates=_updates(sorted_tables["updates"], rows["updates"], values) if "updates" in tables else None,
            subscribes=_subscribes(sorted_tables["subscribes"], rows["subscribes"]) if "subscribes" in tables else None,
            unsubscribes=_unsubscribes(sorted_tables, rows) if "unsubscribes" in tables else None,
            runs=_frozen(_runs(keys)),
        )

    @classmethod
    def of_messages(cls, table: Any) -> EventLog:
        """A log of messages only, in table order; every column is an attribute."""
        messages = to_table(table, "messages")
        runs = np.array([[MESSAGE, 0, messages.num_rows]] if messages.num_rows else [], np.int64).reshape(-1, 3)
        return cls(messages=messages, message_rows=_rows(None, messages.num_rows), runs=_frozen(runs))

    @staticmethod
    def builder() -> LogBuilder:
        """An empty builder: one call per event, in order."""
        return LogBuilder()

    def __len__(self) -> int:
        return int((self.runs[:, 2] - self.runs[:, 1]).sum())

    def message(self, i: int) -> dict[str, Any]:
        """The message at a sorted position."""
        if self.messages is None:
            raise UsageError("this log has no messages")
        return self.messages.row(i)

    def column(self, name: str) -> Column:
        """A column of the messages."""
        if self.messages is None:
            raise UsageError("this log has no messages")
        return self.messages.column(name)

    def segments(self) -> Iterator[tuple[int, int]]:
        """The runs in stretches (first, behind the last): messages and updates together, other runs one by one."""
        at, end = 0, len(self.runs)
        for other in (*np.nonzero(~np.isin(self.runs[:, 0], (MESSAGE, UPDATE)))[0].tolist(), end):
            if at < other:
                yield at, other
            if other < end:
                yield other, other + 1
            at = other + 1

    def events(self) -> Iterator[Event]:
        """The events one by one as plain Python values, with their sorted position.

        ``("message", i, dict)``, ``("update", i, context, attribute, value)``,
        ``("subscribe", i, id, profile, context, on_match)`` or ``("unsubscribe", i, id)``.
        """
        sources = self._sources()
        for kind, start, stop in self.runs.tolist():
            name, source = KINDS[kind], sources[kind]
            for i in range(start, stop):
                yield (name, i, *next(source))

    def _sources(self) -> dict[int, Iterator[tuple[Any, ...]]]:
        sources: dict[int, Iterator[tuple[Any, ...]]] = {}
        if self.messages is not None:
            sources[MESSAGE] = ((row,) for row in self.messages.rows())
        if (u := self.updates) is not None:
            contexts = u.context.tolist() if isinstance(u.context, np.ndarray) else to_list(u.context)
            sources[UPDATE] = zip(contexts, to_list(u.attribute), to_list(u.value), strict=True)
        if (s := self.subscribes) is not None:
            sources[SUBSCRIBE] = zip(s.id, s.profile, s.context, s.on_match, strict=True)
        if self.unsubscribes is not None:
            sources[UNSUBSCRIBE] = ((one,) for one in self.unsubscribes.id)
        return sources

    def _counts(self) -> list[tuple[str, int]]:
        spans = self.runs[:, 2] - self.runs[:, 1]
        return [(f"{KINDS[kind]}s", int(spans[self.runs[:, 0] == kind].sum())) for kind in range(4)]

    def __repr__(self) -> str:
        return f"EventLog({', '.join(f'{n} {what}' for what, n in self._counts() if n) or 'empty'})"

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><th>{what}</th><td>{n:,}</td></tr>" for what, n in self._counts() if n)
        names = ", ".join(html.escape(name) for name in self.messages.names) if self.messages is not None else "—"
        return f"<table>{cells}<tr><th>message attributes</th><td>{names}</td></tr></table>"


def _frozen(array: NDArray[np.int64]) -> NDArray[np.int64]:
    array.flags.writeable = False
    return array


def _rows(order: Order | None, length: int) -> Order:
    return _frozen(np.arange(length, dtype=np.int64) if order is None else order)


_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "messages": (),
    "updates": ("context", "attribute", "value"),
    "subscribes": ("id", "profile"),
    "unsubscribes": ("id",),
}
_OPTIONAL: Final[dict[str, tuple[str, ...]]] = {"subscribes": ("context", "on_match")}


def _require(what: str, table: Table) -> None:
    for name in _REQUIRED[what]:
        if name not in table.columns:
            raise UsageError(
                f"{what}: column {name!r} is missing; expected {', '.join(_REQUIRED[what])}, "
                f"got {', '.join(table.names) or 'no columns'}{did_you_mean(name, table.names)}"
            )
    for name in _OPTIONAL.get(what, ()):
        near = difflib.get_close_matches(name, set(table.names) - set(_REQUIRED[what]), 1, 0.8)
        if name not in table.columns and near:
            raise UsageError(f"{what}: unknown column {near[0]!r}; did you mean {name!r}?")


# -- the order of events ---------------------------------------------------------------------------------------


def _keys(tables: Mapping[str, Table], order: str) -> dict[str, NDArray[Any]]:
    """One sortable array per table, comparable between the tables."""
    keys: dict[str, NDArray[Any]] = {}
    units: dict[str, str] = {}
    for what, table in tables.items():
        if order not in table.columns:
            if len(tables) == 1:
                return {what: np.arange(table.num_rows, dtype=np.int64)}
            raise UsageError(
                f"{what}: column {order!r}, the order of events, is missing; got {', '.join(table.names)}. "
                f"Add it to every table, or name it with order={did_you_mean(order, table.names)}"
            )
        key, unit = _key(what, table.columns[order], order)
        keys[what] = key
        if len(key):
            units[what] = unit
    if "number" in units.values() and len(set(units.values())) > 1:
        kinds = ", ".join(f"{what} {'numbers' if unit == 'number' else 'times'}" for what, unit in units.items())
        raise UsageError(f"column {order!r} must be numbers in all tables or times in all tables: {kinds}")
    if {"ns", "us"} <= set(units.values()):
        return _one_unit(keys, units)
    if len({key.dtype.kind for key in keys.values()}) > 1:
        for what, key in keys.items():
            if key.dtype.kind == "i" and len(key) and max(abs(int(key.min())), abs(int(key.max()))) > 2**53:
                raise UsageError(f"{what}: column {order!r} holds integers beyond 2**53 while others hold floats")
        keys = {what: key.astype(np.float64) for what, key in keys.items()}
    return keys


def _one_unit(keys: Mapping[str, NDArray[Any]], units: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Nanoseconds where all times fit, else microseconds."""
    limit = 2**63 // 1000 - 1
    if all(np.abs(keys[what]).max() < limit for what, unit in units.items() if unit == "us"):
        return {what: key * 1000 if units.get(what) == "us" else key for what, key in keys.items()}
    return {what: key // 1000 if units.get(what) == "ns" else key for what, key in keys.items()}


def _key(what: str, column: Column, order: str) -> tuple[NDArray[Any], str]:
    """The order column as int64 or float64, and its unit: ``number``, ``us`` or ``ns``."""
    wrong = UsageError(f"{what}: column {order!r}, the order of events, must hold numbers or times without nulls")
    if isinstance(column, list):
        if not all(type(value) in (int, float) for value in column):
            raise wrong
        if any(abs(value) > 2**53 for value in column if type(value) is int):
            raise UsageError(f"{what}: column {order!r} mixes floats with integers beyond 2**53")
        column = pa.array([float(value) for value in column], pa.float64())
    kind = column.type
    if len(column) == 0:
        return np.empty(0, np.int64), "number"
    if column.null_count:
        raise wrong
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("us")), pa.timestamp("us")
    if pa.types.is_timestamp(kind):
        unit = "ns" if kind.unit == "ns" else "us"
        return column.cast(pa.timestamp(unit, tz=kind.tz)).cast(pa.int64()).to_numpy(), unit
    if pa.types.is_uint64(kind):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise UsageError(f"{what}: column {order!r} holds integers beyond 64 bit signed") from None
    if pa.types.is_integer(kind):
        return column.to_numpy().astype(np.int64, copy=False), "number"
    if pa.types.is_floating(kind):
        numbers = column.to_numpy().astype(np.float64, copy=False)
        if np.isnan(numbers).any():
            raise wrong
        return numbers, "number"
    raise wrong


def _ascending(key: NDArray[Any]) -> Order | None:
    """The stable order of a key, ``None`` when it is sorted already."""
    if len(key) < 2 or bool(np.all(key[1:] >= key[:-1])):
        return None
    return np.argsort(key, kind="stable").astype(np.int64, copy=False)


_RANK: Final = (("unsubscribes", UNSUBSCRIBE), ("subscribes", SUBSCRIBE), ("updates", UPDATE), ("messages", MESSAGE))


def _runs(keys: Mapping[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Maximal runs of one sort of event, shape (n, 3). The stable sort keeps the rank of the tables at equal keys."""
    present = [(keys[what], kind) for what, kind in _RANK if what in keys and len(keys[what])]
    if not present:
        return np.empty((0, 3), np.int64)
    kinds = np.concatenate([np.full(len(key), kind, np.int8) for key, kind in present])
    if len(present) > 1:
        # Timsort: sorted tables in a row are merged in linear time.
        kinds = kinds[np.argsort(np.concatenate([np.sort(key, kind="stable") for key, _ in present]), kind="stable")]
    return runs_of(kinds)


def runs_of(kinds: NDArray[np.int8]) -> NDArray[np.int64]:
    """Maximal runs of one sort of event, shape (n, 3), of at least one event whose sorts are given in order."""
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(kinds)) + 1, [len(kinds)]))
    runs = np.empty((len(bounds) - 1, 3), np.int64)
    runs[:, 0] = kinds[bounds[:-1]]
    lengths = np.diff(bounds)
    for kind in range(4):
        mine = runs[:, 0] == kind
        stops = np.cumsum(lengths[mine])
        runs[mine, 2] = stops
        runs[mine, 1] = stops - lengths[mine]
    return runs


# -- the tables of a log ---------------------------------------------------------------------------------------


def _updates(table: Table, rows: Order, values: str) -> UpdateTable:
    value = table.column("value")
    if not isinstance(value, list) and _is_text(value.type):
        value = _coded(value)
        if values == "json":
            value = _json_values(value)
    elif not isinstance(value, list) and pa.types.is_list(value.type) and pa.types.is_string(value.type.value_type):
        value = _coded_lists(value)
    return UpdateTable(_contexts(table.column("context")), _names(table.column("attribute"), "attribute"), value, rows)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or (pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type)))


def _coded(column: Any) -> Any:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _coded_lists(column: Any) -> Any:
    """Lists of texts with each text once, as texts are."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    flat = column.flatten().dictionary_encode()
    if not column.null_count:
        return pa.ListArray.from_arrays(pc.subtract(column.offsets, column.offsets[0]), flat)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=column.is_null())


def _names(column: Column, what: str) -> Any:
    if not isinstance(column, list):
        if pa.types.is_null(column.type):
            return column.cast(pa.string()).dictionary_encode()
        if _is_text(column.type):
            return _coded(column)
    expected = "text, or integers from context_index()" if what == "context" else "text"
    got = "mixed values" if isinstance(column, list) else str(column.type)
    raise UsageError(f"updates: column {what!r}: expected {expected}, got {got}")


def _contexts(column: Column) -> Any:
    if not isinstance(column, list) and pa.types.is_integer(column.type):
        if column.null_count:
            raise UsageError("updates: column 'context' holds indices and nulls; every update needs a context")
        return _frozen(column.to_numpy().astype(np.int64))
    return _names(column, "context")


def _json_values(column: pa.DictionaryArray) -> Column:
    """Each distinct text is parsed once."""
    texts = column.dictionary.to_pylist()
    parsed = [_json_value(text) for text in texts]
    if all(value is text for value, text in zip(parsed, texts, strict=True)):
        return column
    lookup = [*parsed, None]
    codes = pc.fill_null(column.indices, len(parsed)).to_pylist()
    return from_python([lookup[code] for code in codes])


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _json_value(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _subscribes(table: Table, rows: Order) -> SubscribeTable:
    def optional(name: str) -> list[Any]:
        return to_list(table.column(name)) if name in table.columns else [None] * table.num_rows

    ids, profiles = to_list(table.column("id")), to_list(table.column("profile"))
    return SubscribeTable(ids, profiles, optional("context"), optional("on_match"), rows)


def _unsubscribes(tables: Mapping[str, Table], rows: Mapping[str, Order]) -> UnsubscribeTable:
    return UnsubscribeTable(to_list(tables["unsubscribes"].column("id")), rows["unsubscribes"])


# -- one event after another -----------------------------------------------------------------------------------


class LogBuilder:
    """Collects events in the order of the calls; any Python value is allowed, wrong ones are rejected in processing.

    >>> log = EventLog.builder().update("A", stock=5).message({"quantity": 3}).build()
    >>> len(log)
    2
    """

    def __init__(self) -> None:
        self._kinds: list[int] = []
        self._messages: list[Mapping[str, Any]] = []
        self._updates: list[tuple[Any, str, Any]] = []
        self._subscribes: list[tuple[Any, Any, Any, Any]] = []
        self._unsubscribes: list[Any] = []

    def message(self, message: Mapping[str, Any]) -> LogBuilder:
        """Adds a message."""
        if not isinstance(message, Mapping):
            raise UsageError(f"message: expected a mapping of attributes to values, got {type(message).__name__}")
        return self._add(MESSAGE, self._messages, dict(message))

    def update(self, context: Any, attributes: Mapping[str, Any] | None = None, /, **more: Any) -> LogBuilder:
        """Adds one update per attribute; ``None`` removes the attribute."""
        if not isinstance(context, str | int) or isinstance(context, bool):
            raise UsageError(f"update: expected a context's name, or its index, got {context!r}")
        for attribute, value in {**(attributes or {}), **more}.items():
            self._add(UPDATE, self._updates, (context, attribute, value))
        return self

    def subscribe(self, id: Any, profile: Any, context: Any = None, on_match: Any = None) -> LogBuilder:
        """Adds a subscribe."""
        return self._add(SUBSCRIBE, self._subscribes, (id, profile, context, on_match))

    def unsubscribe(self, id: Any) -> LogBuilder:
        """Adds an unsubscribe."""
        return self._add(UNSUBSCRIBE, self._unsubscribes, id)

    def _add(self, kind: int, events: list[Any], event: Any) -> LogBuilder:
        self._kinds.append(kind)
        events.append(event)
        return self

    def __len__(self) -> int:
        return len(self._kinds)

    def build(self) -> EventLog:
        """The log so far; the builder may go on."""
        kinds = np.array(self._kinds, np.int64)
        keys = {what: np.flatnonzero(kinds == kind) for what, kind in _RANK}
        return EventLog(
            messages=to_table(self._messages, "messages") if self._messages else None,
            message_rows=_rows(None, len(self._messages)),
            updates=self._update_table() if self._updates else None,
            subscribes=self._subscribe_table() if self._subscribes else None,
            unsubscribes=self._unsubscribe_table() if self._unsubscribes else None,
            runs=_frozen(_runs(keys)),
        )

    def _update_table(self) -> UpdateTable:
        contexts, attributes, values = (from_python(list(column)) for column in zip(*self._updates, strict=True))
        return UpdateTable(_contexts(contexts), _names(attributes, "attribute"), values, _rows(None, len(values)))

    def _subscribe_table(self) -> SubscribeTable:
        ids, profiles, contexts, effects = (list(column) for column in zip(*self._subscribes, strict=True))
        return SubscribeTable(ids, profiles, contexts, effects, _rows(None, len(ids)))

    def _unsubscribe_table(self) -> UnsubscribeTable:
        return UnsubscribeTable(list(self._unsubscribes), _rows(None, len(self._unsubscribes)))
