"""Tables: the columns that events, prepared profiles and bulk messages come in.

Guarantees that whatever the source (Arrow, pandas, Polars, dicts, lists) the rest of tamis sees few column types, and
that no value was coerced on the way. Refuses to know what the columns mean.

A column is an Arrow array, or a Python list when no single Arrow type can hold its values without coercion. In NumPy
arrays and Python lists NaN is a value; in pandas columns NaN, ``None``, ``NaT`` and ``NA`` all mean absent, as pandas
has it.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.errors import EventError, UsageError
from tamis.model.values import normalise

Column: TypeAlias = "pa.Array | list[Any]"
Order: TypeAlias = "NDArray[np.int64]"

_INSTANT: Final = pa.timestamp("us", tz="UTC")


class Unreadable:
    """Stands for an Arrow value that Python cannot hold, such as a time in the year 30000."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length; a column is an Arrow array or a list of Python values.

    :func:`to_table` leaves few Arrow types: ``string``, ``list``, ``timestamp[us, UTC]``, ``dictionary`` of strings,
    and integers, floats, booleans and the rest as they are.
    """

    columns: Mapping[str, Column]
    num_rows: int

    @property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple(self.columns)

    def column(self, name: str) -> Column:
        """One column by name."""
        if name not in self.columns:
            raise UsageError(f"no column {name!r}{did_you_mean(name, self.names)}")
        return self.columns[name]

    def row(self, i: int) -> dict[str, Any]:
        """One row as Python values, without the absent ones."""
        values = {name: _value(column, i) for name, column in self.columns.items()}
        return {name: value for name, value in values.items() if value is not None}

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows; one conversion per column."""
        names = self.names
        for values in zip(*(to_list(column) for column in self.columns.values()), strict=True):
            yield {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if not names:
            yield from ({} for _ in range(self.num_rows))

    def take(self, order: Order | None) -> Table:
        """The rows in another order; ``None`` is the order they have."""
        if order is None:
            return self
        return Table({name: _take(column, order) for name, column in self.columns.items()}, len(order))

    def reduced(self) -> Table:
        """The same rows with few column types; a column that already has one is shared."""
        return Table({name: _reduced(column) for name, column in self.columns.items()}, self.num_rows)

    def without(self, *names: str) -> Table:
        """The table without some columns."""
        return Table({name: c for name, c in self.columns.items() if name not in names}, self.num_rows)

    def __len__(self) -> int:
        return self.num_rows


def to_table(source: Any, what: str = "table") -> Table:
    """A table from Arrow, pandas, Polars, a dict of arrays or lists, or a list of dicts.

    In a dict a single text or number stands for a column of that value. ``what`` names the table in errors.
    """
    return read_table(source, what).reduced()


def read_table(source: Any, what: str) -> Table:
    """As :func:`to_table`, with the column types that the source has."""
    if isinstance(source, Table):
        return source
    if isinstance(source, pa.Table | pa.RecordBatch):
        return _from_arrow(source, what)
    module = type(source).__module__.partition(".")[0]
    if module == "pandas" and hasattr(source, "columns"):
        return _checked({str(name): _pandas(source[name], what) for name in source.columns}, len(source), what)
    if module == "polars" and hasattr(source, "lazy"):
        return _from_arrow(source.to_arrow(), what)
    if isinstance(source, Mapping):
        return _from_mapping(source, what)
    if hasattr(source, "__arrow_c_stream__"):
        return _from_arrow(pa.table(source), what)
    if isinstance(source, Sequence) and all(isinstance(row, Mapping) for row in source):
        names = dict.fromkeys(name for row in source for name in row)
        return _checked({n: from_python([row.get(n) for row in source]) for n in names}, len(source), what)
    raise UsageError(
        f"{what}: cannot read a table from {type(source).__name__}; expected an Arrow table, a pandas or Polars "
        "DataFrame, a dict of columns or a list of dicts"
    )


def to_list(column: Column) -> list[Any]:
    """A column as Python values."""
    if isinstance(column, list):
        return column
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [_value(column, i) for i in range(len(column))]


def _value(column: Column, i: int) -> Any:
    if isinstance(column, list):
        return column[i]
    try:
        return column[i].as_py()
    except (OverflowError, ValueError):
        raw = getattr(column[i], "value", None)
        return Unreadable(f"{column.type} {raw if isinstance(raw, int) else 'with a time out of range'}")


def _take(column: Column, order: Order) -> Column:
    if isinstance(column, list):
        return [column[i] for i in order.tolist()]
    return column.take(pa.array(order))


def _checked(columns: dict[str, Column], length: int | None, what: str) -> Table:
    for name, column in columns.items():
        length = len(column) if length is None else length
        if not isinstance(name, str):
            raise UsageError(f"{what}: column names are text, got {name!r}")
        if len(column) != length:
            raise UsageError(f"{what}: column {name!r} has {len(column)} rows, the others have {length}")
    return Table(columns, length or 0)


def _from_arrow(source: Any, what: str) -> Table:
    names = source.schema.names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise UsageError(f"{what}: column {twice[0]!r} occurs more than once")
    return _checked({name: _contiguous(source.column(k)) for k, name in enumerate(names)}, source.num_rows, what)


def _from_mapping(source: Mapping[Any, Any], what: str) -> Table:
    columns: dict[str, Column] = {}
    constants: dict[str, Any] = {}
    for name, values in source.items():
        if isinstance(values, str | int | float | datetime):
            constants[name] = values
            columns[name] = []  # keeps its place
        else:
            columns[name] = _sequence(values, name, what)
    length = next((len(column) for name, column in columns.items() if name not in constants), 1 if constants else 0)
    for name, value in constants.items():
        columns[name] = _repeat(value, length)
    return _checked(columns, length, what)


def _repeat(value: Any, length: int) -> Column:
    if isinstance(value, str):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, np.int32)), pa.array([value], pa.string()))
    return from_python([value] * length)


def _sequence(values: Any, name: object, what: str) -> Column:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _contiguous(values)
    if isinstance(values, np.ndarray):
        return _numpy(values)
    if type(values) is list:
        return from_python(values)
    module = type(values).__module__.partition(".")[0]
    if module == "pandas":
        return _pandas(values, what)
    if module == "polars":
        return _contiguous(values.to_arrow())
    if isinstance(values, Sequence | range):
        return from_python(list(values))
    raise UsageError(f"{what}: column {name!r}: expected an array or a list, got {type(values).__name__}")


def _numpy(values: NDArray[Any]) -> Column:
    if values.dtype.kind == "O":
        return from_python(values.tolist())
    if values.ndim == 2:
        offsets = np.arange(0, values.size + 1, values.shape[1] or 1, dtype=np.int32)
        return pa.ListArray.from_arrays(offsets[: len(values) + 1], pa.array(values.ravel()))
    if values.ndim != 1 or values.dtype.kind not in "biufUM":
        return list(values)
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return list(values)


def _pandas(series: Any, what: str) -> Column:
    if getattr(series, "ndim", 1) != 1:
        raise UsageError(f"{what}: column {series.columns[0]!r} occurs more than once")
    if series.dtype == object:
        absent = series.isna().tolist()
        return from_python([None if gone else value for gone, value in zip(absent, series.tolist(), strict=True)])
    return _contiguous(pa.Array.from_pandas(series))


_PLAIN: Final[dict[type, Any]] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def from_python(values: list[Any]) -> Column:
    """An Arrow array when all values are of one Python type, so that nothing is coerced; else the list as it is."""
    types = set(map(type, values)) - {type(None)}
    if not types:
        return pa.nulls(len(values))
    if len(types) > 1:
        return values
    (cls,) = types
    try:
        if cls in _PLAIN:
            return pa.array(values, _PLAIN[cls])
        if cls is datetime:
            return pa.array([normalise(value) for value in values], _INSTANT)
        if cls is date:
            return pa.array(values, pa.date32())
        if issubclass(cls, np.generic) and type(None) not in set(map(type, values)):
            return _numpy(np.array(values))
        if cls is list or cls is tuple:
            return _lists(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, EventError, OverflowError, UnicodeEncodeError, TypeError):
        return values
    return values


def _lists(values: list[Any]) -> Column:
    inner = set(map(type, itertools.chain.from_iterable(v for v in values if v is not None))) - {type(None)}
    if len(inner) == 1 and inner <= _PLAIN.keys():
        return pa.array(values, pa.list_(_PLAIN[inner.pop()]))
    return values


def _contiguous(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _reduced(column: Column) -> Column:
    if isinstance(column, list):
        return column
    kind = column.type
    if pa.types.is_timestamp(kind) and kind != _INSTANT:
        return _instants(column)
    if pa.types.is_union(kind):
        return from_python(column.to_pylist())
    wanted = _fewer(kind)
    if wanted != kind:
        try:
            return column.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return column
    return column


def _fewer(kind: Any) -> Any:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        return pa.list_(_fewer(kind.value_type))
    if pa.types.is_dictionary(kind):
        return pa.dictionary(pa.int32(), _fewer(kind.value_type))
    if pa.types.is_timestamp(kind):
        return _INSTANT
    return kind


def _instants(array: Any) -> Column:
    """Timestamps of any unit and zone as UTC microseconds, finer ones floored."""
    if array.type.unit != "ns":
        try:
            return array.cast(pa.timestamp("us", tz=array.type.tz)).cast(pa.int64()).cast(_INSTANT)
        except pa.ArrowInvalid:
            return array
    whole = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False) // 1000
    absent = pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(whole, pa.int64(), mask=absent).cast(_INSTANT)


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """The end of an error message: the nearest known name, if any is near."""
    folded = {other.casefold(): other for other in names}
    near = difflib.get_close_matches(name.casefold(), folded, 1)
    return f"; did you mean {folded[near[0]]!r}?" if near else ""
