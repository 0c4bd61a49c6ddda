"""What is wrong with a record of a source, and where it stands.

Guarantees that the number of a line is that of the file, whatever parts Spark cuts it into, and that nothing is read
again but the files that have bad records. Refuses to know streams, events and sessions: it runs inside ``mapInArrow``.
"""

from __future__ import annotations

import csv
import io
import json
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import types as T

SOURCE: Final = "_source"
CORRUPT: Final = "_corrupt_record"
_KEY: Final = "tamis"
_DIGITS: Final = re.compile(r"-?\d+")
_TOLD: Final = 3
"""So many lines with the same place in the order are named; of more only the file."""
_WHOLE: Final[dict[type[T.DataType], int]] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}


@dataclass(frozen=True)
class Records:
    """How the records of a source are written: enough to say what is wrong with one.

    A frame of a source carries it along as metadata of the column ``_source``, so that whoever finds the bad rows can
    tell where they stand.
    """

    format: str
    schema: T.StructType
    required: tuple[str, ...]
    options: Mapping[str, str]

    @property
    def metadata(self) -> dict[str, str]:
        """For the column ``_source``."""
        told = {"format": self.format, "schema": self.schema.jsonValue(), "required": self.required}
        return {_KEY: json.dumps({**told, "options": dict(self.options)})}

    @staticmethod
    def of(schema: T.StructType) -> Records | None:
        """What the columns of a frame carry along; ``None`` when the frame is not one of a source."""
        found = schema[SOURCE].metadata.get(_KEY) if SOURCE in schema.names else None
        if found is None:
            return None
        told = json.loads(found)
        kinds = T.StructType.fromJson(told["schema"])
        return Records(told["format"], kinds, tuple(told["required"]), told["options"])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for ``mapInArrow``: bad rows as ``source``, ``place``, ``reason``, ``record``."""
        search = Search(self)
        for batch in batches:
            rows = []
            for origin, record in zip(batch.column(SOURCE).to_pylist(), batch.column(CORRUPT).to_pylist(), strict=True):
                source, place, record = search(origin, record)
                rows.append((source, place or "unknown", self.reason(record), record))
            columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)] if rows else []
            if columns:
                yield pa.RecordBatch.from_arrays(columns, names=["source", "place", "reason", "record"])

    def matches(self, line: str, record: str) -> bool:
        """Whether a line of the file is the record.

        A CSV row that is bad only for want of a value was written anew by Spark; since all bad rows come in order, the
        next line that wants a value is the one.
        """
        return line == record or (self.format == "csv" and self._wants(line) and self._wants(record))

    def _wants(self, line: str) -> bool:
        fields = self._fields(line)
        if len(fields) != len(self.schema):
            return False
        return not any(fields) or any(not fields[self.schema.names.index(name)] for name in self.required)

    def _fields(self, line: str) -> list[str]:
        return next(csv.reader([line], delimiter=self.options.get("sep", ",")), [])

    def lines(self, order: str, rows: Iterable[tuple[str, int | None]]) -> list[str]:
        """Where rows stand of which ``_source`` and the value of the order column are known, a whole number.

        Every part of a file is read once. Where the line cannot be told ``_source`` stays as it is; it is exact already
        for formats that are not lines of text.
        """
        rows = list(rows)
        if self.format not in ("json", "csv"):
            return [origin for origin, _ in rows]
        parts: dict[str, set[int]] = {}
        for origin, key in rows:
            if key is not None:
                parts.setdefault(origin, set()).add(key)
        found = {(origin, key): at for origin, keys in parts.items() for key, at in self._lines(origin, order, keys)}
        return [origin if key is None else found.get((origin, key), origin) for origin, key in rows]

    def _lines(self, origin: str, order: str, keys: Collection[int]) -> Iterator[tuple[int, str]]:
        source, _, start = origin.partition("#")
        numbers: dict[int, list[str]] = {key: [] for key in keys}
        texts = set(map(str, keys))
        for number, line in _lines(source, int(start or 0)):
            if not texts.isdisjoint(_DIGITS.findall(line)):  # what cannot be one of them is not parsed
                key = self._whole(line, order)
                if key in numbers:
                    numbers[key].append(str(number))
        for key, listed in numbers.items():
            if 0 < len(listed) <= _TOLD:
                yield key, f"{source}#{'line' if len(listed) == 1 else 'lines'} {', '.join(listed)}"

    def _whole(self, line: str, name: str) -> int | None:
        """The whole number in a column of a line, if there is one."""
        try:
            if self.format == "csv":
                return int(self._fields(line)[self.schema.names.index(name)])
            value = json.loads(line)[name]
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        return value if type(value) is int else None

    def reason(self, record: str) -> str:
        """Why the record is bad, in words that help to mend it."""
        if self.format == "csv":
            fields = self._fields(record)
            if len(fields) != len(self.schema):
                return f"{len(fields)} fields, expected {len(self.schema)}"
            if not any(fields):
                return "every field is empty"
            values: dict[str, Any] = {
                name: None if text == "" else text for name, text in zip(self.schema.names, fields, strict=True)
            }
            return self._misfit(values, _reads)
        if not record.strip():
            return "no value"
        try:
            value = json.loads(record, parse_constant=_refuse)
        except json.JSONDecodeError as error:
            return f"not JSON: {error.msg} at column {error.colno}"
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        if not isinstance(value, dict):
            return f"expected an object, got {_shown(value)}"
        return self._misfit(value, _holds)

    def _misfit(self, values: Mapping[str, Any], fits: Any) -> str:
        for name in self.schema.names:
            value, kind = values.get(name), self.schema[name].dataType
            if value is not None and not fits(value, kind):
                return f"{name}: expected {kind.simpleString()}, got {_shown(value)}"
        lacking = [name for name in self.required if values.get(name) is None]
        if lacking:
            return f"{lacking[0]}: no value"
        return "not UTF-8" if any("\ufffd" in str(value) for value in values.values()) else "does not fit the schema"


class Search:
    """Where the bad records of one task stand.

    Spark does not know the numbers of lines. The bad lines of a part of a file come in the order of the file, so one
    pass over that part finds each of them, and only parts with bad lines are read again.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self._part, self._lines = "", iter(list[tuple[int, str]]())

    def __call__(self, origin: str, record: str) -> tuple[str, str, str]:
        """Source, place (empty when it cannot be found) and text of the record that ``_source`` and Spark tell of."""
        source, _, place = origin.partition("#")
        if self.records.format == "parquet":
            return source, f"row {int(place) + 1}", record
        if self.records.format == "kafka":
            topic, _, partition = source.rpartition("/")
            return topic, f"partition {partition} offset {place}", record
        if self._part != origin:
            self._part, self._lines = origin, _lines(source, int(place or 0))
        found = next((one for one in self._lines if self.records.matches(one[1], record)), None)
        return (source, f"line {found[0]}", found[1]) if found else (source, "", record)

    def located(self, origin: str, record: str) -> tuple[str, str]:
        """As one text ``file#line 3``, or ``_source`` itself where that is exact; and the record."""
        source, place, text = self(origin, record)
        if self.records.format in ("parquet", "kafka"):
            return origin, text
        return f"{source}#{place}" if place else source, text


def _lines(uri: str, start: int) -> Iterator[tuple[int, str]]:
    """The numbered lines of a part of a file as Spark splits it: those that begin after ``start``, or all from 0."""
    try:
        system, path = fs.FileSystem.from_uri(uri)
        stream = io.BufferedReader(system.open_input_stream(path))
    except (OSError, ValueError, pa.ArrowException):
        return  # moved away since it was read: the place stays unknown, the reason does not depend on it
    with stream:
        number = offset = 0
        for chunk in stream:
            for line in chunk.splitlines(keepends=True):
                number += 1
                if offset > start or start == 0:
                    text = line.rstrip(b"\r\n")
                    yield number, (text if offset else text.removeprefix(BOM_UTF8)).decode(errors="replace")
                offset += len(line)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a number of JSON")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _holds(value: Any, kind: T.DataType) -> bool:
    """Whether a value of JSON is surely of the type; text forms of dates and the like are Spark's to judge."""
    bits = _WHOLE.get(type(kind))
    if bits:
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits - 1) <= value < 1 << bits - 1
    if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(kind, T.BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, T.StructType | T.MapType):
        return isinstance(value, dict)
    if isinstance(kind, T.ArrayType):
        return isinstance(value, list)
    if isinstance(kind, T.StringType):
        return True
    return isinstance(value, str) and _date(value)


def _reads(text: str, kind: T.DataType) -> bool:
    """Whether the text of a field reads as a value of the type."""
    try:
        if type(kind) in _WHOLE:
            return _holds(int(text), kind)
        if isinstance(kind, T.FloatType | T.DoubleType | T.DecimalType):
            float(text)
        elif isinstance(kind, T.BooleanType):
            return text.lower() in ("true", "false")
        elif not isinstance(kind, T.StringType):
            return _date(text)
    except ValueError:
        return False
    return True


def _date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
