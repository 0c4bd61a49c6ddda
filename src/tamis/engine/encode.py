"""Columns of a log as doubles: kinds are checked here, once per column, and wrong rows are named.

Everything the kernels see has passed through this module: the right kind, absent as ABSENT, texts and lists interned.
Reasons for rejected rows are made one by one, but only for rejected rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.errors import EventError
from tamis.kernels.bundles import ABSENT
from tamis.model.schema import Schema
from tamis.model.tables import Column, to_list
from tamis.model.values import BOOLEAN, CATEGORIES, LIST_OF, NUMBER, TEXT, TIME, Kind, normalise

from .values import WIDE, ValueStore

# Microseconds of a unit, as a fraction.
_MICROSECONDS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
# Of a date: how many make a day, and how they are stored.
_DATES = {pa.date32(): (1, pa.int32()), pa.date64(): (86_400_000, pa.int64())}
# Where the years 1 and 10000 begin, in microseconds: what a datetime can hold.
_YEARS = (-62_135_596_800_000_000, 253_402_300_800_000_000)
# Up to so many rows one value after the other is faster: Arrow's and NumPy's calls cost tens of microseconds a column.
FEW = 8


@dataclass
class Encoded:
    """A column as doubles [rows]; ``residual`` is None while no integer is beyond 2**53; ``wrong`` is row -> reason."""

    value: NDArray[np.float64]
    residual: NDArray[np.int16] | None
    wrong: dict[int, str]


def encode_column(name: str, column: Column, schema: Schema, values: ValueStore, label: str) -> Encoded:
    """A column under a schema name whose kind is fixed (or that holds no value); ``label`` names it in reasons."""
    kind = schema.kind(name)
    if not isinstance(column, list):
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if column.null_count == len(column):
            return Encoded(np.full(len(column), ABSENT), None, {})
        given = column_kind(column.type) if len(column) > FEW else None
        if len(column) > FEW and (kind is CATEGORIES or kind is LIST_OF[TEXT] or (kind is TEXT and schema.bound(name))):
            texts = _encode_texts(name, column, kind, schema, values)
            if texts is not None:
                return texts
        elif given is not None and given is kind:
            fast = encode_arrow(column, kind, values)
            if fast is not None:
                return fast
        column = to_list(column)
    return _encode_list(name, column, schema, values, label)


def column_kind(given: Any) -> Kind | None:
    """The kind of all values of an Arrow type; None where it has to be looked at value by value."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_integer(given) or pa.types.is_floating(given):
        return NUMBER
    if pa.types.is_string(given) or pa.types.is_large_string(given):
        return TEXT
    if pa.types.is_boolean(given):
        return BOOLEAN
    if pa.types.is_timestamp(given) or pa.types.is_date(given):
        return TIME
    return None


def encode_arrow(column: pa.Array, kind: Kind, values: ValueStore) -> Encoded | None:
    absent = np.asarray(column.is_null()) if column.null_count else None
    if kind is TEXT:
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = values.texts.intern_many(coded.dictionary.cast(pa.large_string()))
        if len(codes) == 0:
            return None
        doubles = codes.astype(np.float64)[np.asarray(coded.indices.fill_null(0))]
        return Encoded(_with_absent(doubles, absent), None, {})
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if kind is BOOLEAN:
        return Encoded(_with_absent(np.asarray(column.fill_null(False)).astype(np.float64), absent), None, {})
    if kind is TIME:
        if pa.types.is_date(column.type):
            # Milliseconds within the day, which Arrow forbids and some writers leave, are no part of a date.
            unit, integer = _DATES[column.type]
            raw = np.floor_divide(np.asarray(column.view(integer).fill_null(0)).astype(np.int64), unit)
            microseconds, divisor = 86_400_000_000, 1
        else:
            raw = np.asarray(pc.fill_null(column.cast(pa.timestamp(column.type.unit)).view(pa.int64()), 0))
            microseconds, divisor = _MICROSECONDS[column.type.unit]
        low, high = (bound // microseconds * divisor for bound in _YEARS)
        if not low <= int(raw.min()) <= int(raw.max()) < high:
            return None
        return _encode_integers(np.floor_divide(raw * microseconds, divisor), absent)
    if pa.types.is_floating(column.type):
        filled = column if absent is None else column.fill_null(0.0)
        return Encoded(_with_absent(np.asarray(filled).astype(np.float64, copy=False), absent), None, {})
    raw = np.asarray(column.fill_null(0))
    if raw.dtype == np.uint64:
        if np.any(raw > np.uint64(2**63 - 1)):
            return None
        raw = raw.astype(np.int64)
    return _encode_integers(raw, absent)


def _encode_texts(name: str, column: pa.Array, kind: Kind, schema: Schema, values: ValueStore) -> Encoded | None:
    """A column of texts, or of lists of texts, whose values may have to be categories; None if it is another one."""
    listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if (listed and kind is TEXT) or (not listed and kind is LIST_OF[TEXT]):
        return None
    flat = column.flatten() if listed else column
    if column_kind(flat.type) is not TEXT:
        return None
    coded = flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode()
    size = len(coded.dictionary)
    indices = np.asarray(coded.indices.fill_null(size) if coded.null_count else coded.indices)
    indices = indices.astype(np.int32, copy=False)
    table, reasons = _text_table(name, coded.dictionary, indices, schema, values)
    if not listed:
        doubles = table[indices]
    else:
        if column.null_count:
            ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(column), 0)), dtype=np.int64)
        else:
            offsets = np.asarray(column.offsets)
            ends = offsets[1:] - offsets[0]
        first = int(values.add_lists(ends, table, indices, pinned=False)[0])
        # Where texts and lists mix, lists have negative codes.
        low, step = (-1.0 - first, -1.0) if kind is CATEGORIES else (float(first), 1.0)
        doubles = np.arange(len(column), dtype=np.float64) * step + low
        doubles = _with_absent(doubles, np.asarray(column.is_null()) if column.null_count else None)
    wrong: dict[int, str] = {}
    if reasons:
        unknown = np.zeros(size + 1, np.bool_)
        unknown[list(reasons)] = True
        for at in np.flatnonzero(unknown[indices]).tolist():
            row = int(np.searchsorted(ends, at, side="right")) if listed else at
            wrong.setdefault(row, reasons[int(indices[at])])
    return Encoded(doubles, None, wrong)


def _text_table(
    name: str, dictionary: pa.Array, indices: NDArray[np.int32], schema: Schema, values: ValueStore
) -> tuple[NDArray[np.float64], dict[int, str]]:
    """The texts of a dictionary as doubles, ABSENT behind the last, and why some are no categories.

    A dictionary may hold far more than a log uses, such as all names of a graph: the rest stays unread.
    """
    size = len(dictionary)
    table = np.full(size + 1, ABSENT)
    used = np.arange(size)
    if size > len(indices):
        occurs = np.zeros(size + 1, np.bool_)
        occurs[indices] = True
        used = np.flatnonzero(occurs[:size])
        dictionary = dictionary.take(pa.array(used))
    if not len(used):
        return table, {}
    if dictionary.null_count:
        here = np.asarray(dictionary.is_valid())
        used, dictionary = used[here], dictionary.drop_null()
    table[used] = codes = values.texts.intern_many(dictionary.cast(pa.large_string()))
    if not schema.bound(name):
        return table, {}
    # Most texts have a code that was admitted before; those of messages lose theirs after every log.
    new = values.doubtful(name, schema.versions(name), codes)
    unknown = schema.all_unknown(name, dictionary.take(pa.array(new)).to_pylist()) if len(new) else {}
    values.admit(name, np.delete(codes[new], list(unknown)))
    return table, {int(used[new[i]]): reason for i, reason in unknown.items()}


def _encode_integers(raw: NDArray[Any], absent: NDArray[np.bool_] | None) -> Encoded:
    doubles = raw.astype(np.float64)
    residual = None
    if raw.dtype == np.int64 and len(raw) and (raw.max() > WIDE or raw.min() < -WIDE):
        # 2**63 itself is a double but no int64: the difference is taken from the next smaller double's side.
        below = np.where(doubles >= 2.0**63, 2.0**63 - 1024.0, doubles)
        gap = (raw - below.astype(np.int64)) - (doubles - below).astype(np.int64)
        residual = gap.astype(np.int16)
    return Encoded(_with_absent(doubles, absent), residual, {})


def _with_absent(doubles: NDArray[np.float64], absent: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    if absent is not None:
        doubles = np.where(absent, ABSENT, doubles)
    return doubles


def _encode_list(name: str, column: list[Any], schema: Schema, values: ValueStore, label: str) -> Encoded:
    kind = schema.kind(name)
    doubles = np.full(len(column), ABSENT)
    residuals = np.zeros(len(column), np.int16)
    wrong: dict[int, str] = {}
    for i, given in enumerate(column):
        if given is None:
            continue
        try:
            value = normalise(given)
        except EventError as error:
            wrong[i] = f"{label}: {error.reason}"
            continue
        if value is None:
            continue
        reason = schema.expect(name, value)
        if reason is not None:
            wrong[i] = reason
            continue
        doubles[i], residuals[i] = values.encode_as(kind, value)
    return Encoded(doubles, residuals if residuals.any() else None, wrong)
