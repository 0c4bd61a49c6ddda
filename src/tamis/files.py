"""Files and pipes as records: JSON lines, CSV, Parquet and ``.tamis`` profile files, read and written.

Guarantees that one bad line or row never stops the rest: it is refused with its place and a reason. Refuses to know
the filter; kinds of attributes come in as a function. Only what has no readable form at all raises ``UsageError``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from tamis.errors import UsageError

Id = str | int
Kinds = Callable[[str], str | None]
Column = Any  # pa.Array | pa.ChunkedArray, or a list of Python values when one attribute mixes types

FORMATS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
CHUNK = 65_536  # lines per chunk: large enough for the kernels, small enough for a living progress bar
TABLE_ROWS = 100  # matches shown to people


class Bad(NamedTuple):
    """Something that was refused: where it came from, where it stands there, and why."""

    source: str
    place: str
    reason: str


@dataclass(frozen=True)
class Records:
    """The records of one file (or of one chunk of a pipe) by column, and the places they came from.

    ``numbers[i]`` is the record number of row ``i`` in its file, from 0 and with bad records counted, so that a
    number means the same record whatever was refused before it; ``places[i]`` is the same for people.
    """

    columns: dict[str, Column]
    numbers: Sequence[int]
    places: Sequence[str]

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, start: int, stop: int) -> Records:
        """The rows from ``start`` up to ``stop``."""
        columns = {
            name: column[start:stop] if isinstance(column, list) else column.slice(start, stop - start)
            for name, column in self.columns.items()
        }
        return replace(self, columns=columns, numbers=self.numbers[start:stop], places=self.places[start:stop])

    def keep(self, rows: Sequence[int]) -> Records:
        """Only the given rows."""
        columns = {
            name: [column[row] for row in rows] if isinstance(column, list) else column.take(rows)
            for name, column in self.columns.items()
        }
        numbers, places = [self.numbers[r] for r in rows], [self.places[r] for r in rows]
        return replace(self, columns=columns, numbers=numbers, places=places)


@dataclass(frozen=True)
class Profile:
    """One profile as it stands in a file. ``offset`` is the column where its condition starts."""

    id: Id
    condition: Any
    context: str | None
    on_match: str | None
    place: str
    offset: int = 0


@dataclass
class Rejections:
    """Everything refused during one command, in the order of discovery."""

    items: list[Bad] = field(default_factory=list)

    def add(self, source: str, place: str, reason: str) -> None:
        self.items.append(Bad(source, place, reason))


# -- reading -----------------------------------------------------------------------------------------------------


def format_of(path: str, otherwise: str = "say --input-format") -> str:
    """The format that a file's extension stands for."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(f"{path}: unknown extension {suffix!r}; known are {', '.join(FORMATS)} (or {otherwise})")
    return FORMATS[suffix]


def wire_of(path: str, wire: str | None) -> str:
    """The format of an input: as asked for, else JSON lines for a pipe, else by the extension."""
    return wire or ("json" if path == "-" else format_of(path))


def _open(path: str, mode: str) -> IO[bytes]:
    try:
        return open(path, mode)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """The file, or standard input for ``-``."""
    if path == "-":
        yield sys.stdin.buffer
        return
    with _open(path, "rb") as stream:
        yield stream


def json_chunks(stream: IO[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Numbered lines in chunks; a slow pipe gives what has arrived instead of waiting for a full chunk."""
    read = getattr(stream, "read1", stream.read)
    rest, number, pending = b"", 0, list[tuple[int, bytes]]()
    while block := read(1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                pending.append((number, line))
        short = len(block) < 1 << 16
        if pending and (short or len(pending) >= CHUNK):
            yield pending
            pending = []
    if rest.strip():
        pending.append((number + 1, rest))
    if pending:
        yield pending


def read_json(source: str, lines: list[tuple[int, bytes]], first: int, kinds: Kinds, bad: Rejections) -> Records:
    """JSON lines: every line is one object; a line that is not is refused alone."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    places: list[str] = []
    for position, (line, text) in enumerate(lines):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            bad.add(source, f"line {line}", f"not JSON: {error}")
            continue
        if not isinstance(row, dict):
            bad.add(source, f"line {line}", f"expected a JSON object, got {json.dumps(row)[:60]}")
            continue
        rows.append(row)
        numbers.append(first + position)
        places.append(f"line {line}")
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Column] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if (kinds(name) or "").endswith("time"):
            values = [as_time(value) for value in values]
        columns[name] = values
    return Records(columns, numbers, places)


def read_csv(source: str, stream: IO[bytes], kinds: Kinds, bad: Rejections) -> Records:
    """CSV with a header. Cells take the kind that the profiles need; an empty cell is an absent attribute."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    data = pa.py_buffer(stream.read())
    refused: list[int] = []

    def refuse(row: Any) -> str:
        refused.append(row.number - 2)
        place = f"row {row.number - 1}"
        bad.add(source, place, f"expected {row.expected_columns} columns, got {row.actual_columns}: {row.text[:60]}")
        return "skip"

    def options(handler: Callable[[Any], str]) -> Any:
        return arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=handler)

    try:
        header = arrow_csv.open_csv(pa.BufferReader(data), parse_options=options(lambda row: "skip")).schema.names
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise UsageError(f"{source}s: column {twice[0]!r} occurs more than once")
        known = {name: kind for name in header if (kind := kinds(name)) is not None}
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=arrow_csv.ReadOptions(use_threads=False),  # rows are numbered only without threads
            parse_options=options(refuse),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(known, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise UsageError(f"{source}s: {error}") from None
    columns = {name: table.column(name) for name in table.column_names}
    for name, kind in known.items():
        columns[name] = cells(columns[name], kind)
    skipped = set(refused)
    numbers = [n for n in range(table.num_rows + len(skipped)) if n not in skipped]
    return Records(columns, numbers, [f"row {n + 1}" for n in numbers])


def cells(column: Any, kind: str) -> Column:
    """Text cells as values of a kind; a cell that does not convert stays text, for the filter to refuse."""
    import pyarrow as pa

    if kind == "text":
        return column
    types = {"number": (pa.int64(), pa.float64()), "boolean": (pa.bool_(),)}.get(kind, ())
    for arrow_type in types:
        try:
            return column.cast(arrow_type)
        except pa.ArrowInvalid:
            continue
    convert = _converter(kind)
    return [None if text is None else convert(text) for text in column.to_pylist()]


def _converter(kind: str | None) -> Callable[[str], Any]:
    converters: dict[str, Callable[[str], Any]] = {
        "number": _number,
        "boolean": _boolean,
        "time": as_time,
        "text": str,
        "categories": _categories,
    }
    return converters.get(kind or "", _json)


def _number(text: str) -> int | float | str:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _categories(text: str) -> Any:
    """One category, or several as a JSON list."""
    return _json(text) if text.lstrip().startswith("[") else text


def _boolean(text: str) -> bool | str:
    return {"true": True, "false": False, "1": True, "0": False}.get(text.lower(), text)


def as_time(value: Any) -> Any:
    """ISO text, or a list of such texts, as times; anything else as it is."""
    from tamis.model.language import read_time

    if isinstance(value, str):
        return read_time(value) or value
    return [as_time(item) for item in value] if isinstance(value, list) else value


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=float)
    except (ValueError, RecursionError):
        return text


def read_parquet(source: str, stream: IO[bytes]) -> Records:
    """A Parquet file; its own types are taken as they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(stream.read()))
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{source}: {error}") from None
    columns = {name: table.column(name) for name in table.column_names}
    return Records(columns, range(table.num_rows), [f"row {n + 1}" for n in range(table.num_rows)])


def chunks(path: str, wire: str | None, kinds: Kinds, bad: Rejections, source: str) -> Iterator[Records]:
    """The records of a file or pipe, chunk by chunk where the format allows it."""
    form = wire_of(path, wire)
    with opened(path) as stream:
        if form != "json":
            records = read_csv(source, stream, kinds, bad) if form == "csv" else read_parquet(source, stream)
            for start in range(0, len(records), CHUNK):
                yield records.slice(start, start + CHUNK)
        else:
            first = 0
            for lines in json_chunks(stream):
                yield read_json(source, lines, first, kinds, bad)
                first += len(lines)


def whole(path: str, wire: str | None, kinds: Kinds, bad: Rejections, source: str) -> Records:
    """All records of a file at once, for what has to be sorted or applied as a whole."""
    form = wire_of(path, wire)
    with opened(path) as stream:
        if form == "csv":
            return read_csv(source, stream, kinds, bad)
        if form == "parquet":
            return read_parquet(source, stream)
        lines = [line for part in json_chunks(stream) for line in part]
    return read_json(source, lines, 0, kinds, bad)


def ordered(records: Records, order: str, source: str, bad: Rejections) -> Records:
    """The records with a usable order: numbers, or times (also as ISO text). Others are refused one by one."""
    if not len(records):
        return records
    values = [as_time(value) for value in plain(records.columns[order])]
    times = sum(isinstance(value, datetime) for value in values) * 2 > len(values)
    rows = []
    for row, value in enumerate(values):
        usable = isinstance(value, datetime) if times else type(value) in (int, float) and value == value
        if usable:
            rows.append(row)
        else:
            wanted = "a time" if times else "a number"
            bad.add(source, records.places[row], f"{order}: the order of events must be {wanted}, got {value!r}")
    if len(rows) == len(values) and not times:
        return records
    return replace(records, columns={**records.columns, order: values}).keep(rows)


def read_updates(path: str, kinds: Kinds, bad: Rejections) -> Records:
    """Context updates: the columns context, attribute and value; values take the kind that the profiles need."""
    texts = dict.fromkeys(("context", "attribute", "value"), "text")
    records = whole(path, None, texts.get, bad, "update")
    for name in texts:
        if len(records) and name not in records.columns:
            raise UsageError(f"{path}: no column {name!r}; updates need context, attribute and value")
    if not len(records):
        return records
    contexts, attributes, values = (plain(records.columns[name]) for name in texts)
    known = {name: kinds(f"ctx.{name}") for name in {a for a in attributes if isinstance(a, str)}}
    # Parquet has no column of mixed types, so text in its value column may be JSON, as in CSV; JSON lines say it.
    untyped = not isinstance(records.columns["value"], list)
    rows = []
    for row, (context, attribute, value) in enumerate(zip(contexts, attributes, values, strict=True)):
        if not isinstance(context, str) or not isinstance(attribute, str):
            named = ("context", context) if not isinstance(context, str) else ("attribute", attribute)
            bad.add("update", records.places[row], f"{named[0]}: expected text, got {named[1]!r}")
            continue
        rows.append(row)
        if isinstance(value, str) and untyped:
            values[row] = _converter(known[attribute])(value)
        elif known[attribute] == "time":
            values[row] = as_time(value)
    return replace(records, columns={**records.columns, "value": values}).keep(rows)


# -- profiles ----------------------------------------------------------------------------------------------------

LINE = re.compile(
    r"\s*(?P<id>`[^`]+`|[^\s:@`#]+)(?:@(?P<context>`[^`]+`|[^\s:`]+))?\s*:\s*(?P<condition>.*)", re.DOTALL
)


def read_profiles(path: str, wire: str | None, bad: Rejections) -> list[Profile]:
    """Profiles from a ``.tamis`` text file, or from records with the columns id, profile, context, on_match."""
    if wire is None and Path(path).suffix == ".tamis":
        with opened(path) as stream:
            return _read_text(path, stream.read().decode("utf-8", errors="replace"), bad)
    texts = ("id", "profile", "context", "on_match")
    records = whole(path, wire, lambda name: "text" if name in texts else None, bad, "profile")
    for name in ("id", "profile"):
        if len(records) and name not in records.columns:
            raise UsageError(
                f"{path}: no column {name!r}; profiles need id and profile, and may have context and on_match"
            )
    absent = [None] * len(records)
    rows = zip(*(plain(records.columns.get(name, absent)) for name in texts), records.places, strict=True)
    profiles = []
    for id, condition, context, on_match, place in rows:
        if id is None or condition is None:
            bad.add("profile", f"{path}, {place}", "id and profile must not be empty")
            continue
        profiles.append(Profile(id, condition, context, on_match, f"{path}, {place}"))
    return profiles


def plain(column: Column) -> list[Any]:
    return column if isinstance(column, list) else list(column.to_pylist())


def _read_text(path: str, text: str, bad: Rejections) -> list[Profile]:
    """One profile per line: ``id[@context]: condition [-> effects]``; ``#`` starts a comment."""
    profiles = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        place = f"{path}, line {number}"
        found = LINE.fullmatch(line)
        if found is None:
            bad.add("profile", place, f"expected `id: condition` or `id@context: condition`, got {line.strip()[:60]!r}")
            continue
        condition, effects = _split(found["condition"])
        context = found["context"]
        profiles.append(
            Profile(
                found["id"].strip("`"),
                condition,
                context.strip("`") if context else None,
                effects,
                place,
                found.start("condition"),
            )
        )
    return profiles


def _split(text: str) -> tuple[str, str | None]:
    """Condition and effects around ``->``; an arrow inside quotes or a comment is none."""
    from tamis.model.language import tokenise

    last = None
    for token in tokenise(text):
        if token.text == ">" and last is not None and last.text == "-" and last.start + 1 == token.start:
            return text[: last.start].rstrip(), text[token.start + 1 :].strip()
        last = token
    return text.rstrip(), None


# -- writing -----------------------------------------------------------------------------------------------------


class Sink:
    """Where matches go. Lines are written as they come; tables and Parquet files when the work is done."""

    def __init__(self, form: str, path: str, key: str | None) -> None:
        self.form, self.path, self.key = form, path, key
        self.count = 0
        self._columns: list[tuple[Sequence[Any], ...]] = []
        self._names = ("message", "profile") if key is None else ("message", key, "profile")
        self._stream = sys.stdout.buffer if path == "-" else _open(path, "wb")
        if form == "csv":
            self._csv([self._names])

    def write(self, messages: Sequence[int], keys: Sequence[Any] | None, profiles: Sequence[Id]) -> None:
        """Some matches, one entry per match in each sequence."""
        columns = (messages, profiles) if keys is None else (messages, keys, profiles)
        self.count += len(messages)
        if self.form == "json":
            dump = json.JSONEncoder(ensure_ascii=False, default=str).encode
            rows = (dump(dict(zip(self._names, row, strict=True))) + "\n" for row in zip(*columns, strict=True))
            self._stream.write("".join(rows).encode())
            self._stream.flush()
        elif self.form == "csv":
            self._csv(zip(*columns, strict=True))
        elif self.form == "parquet" or self.count - len(messages) < TABLE_ROWS:
            self._columns.append(columns)

    def close(self) -> None:
        """Writes what had to wait."""
        columns = [[value for part in self._columns for value in part[i]] for i in range(len(self._names))]
        if self.form == "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            arrays = [pa.array(columns[0], pa.int64()), *(_one_type(column) for column in columns[1:])]
            pq.write_table(pa.table(dict(zip(self._names, arrays, strict=True))), self._stream)
        elif self.form == "table":
            from rich.console import Console
            from rich.table import Table

            table = Table(*self._names, title=f"{self.count:,} matches")
            for row in list(zip(*columns, strict=True))[:TABLE_ROWS]:
                table.add_row(*map(str, row))
            if self.count > TABLE_ROWS:
                table.caption = f"the first {TABLE_ROWS}; all of them with --format json, csv or parquet"
            console = Console(file=io.TextIOWrapper(self._stream, "utf-8", write_through=True))
            console.print(table)
            console.file.detach()  # type: ignore[attr-defined]
        self._stream.flush()
        if self.path != "-":
            self._stream.close()

    def _csv(self, rows: Iterable[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._stream.write(text.getvalue().encode())
        self._stream.flush()


def _one_type(values: list[Any]) -> Any:
    """An Arrow column; values of several types are written as text."""
    import pyarrow as pa

    if len({type(value) for value in values} - {type(None)}) > 1:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    return pa.array(values) if values else pa.array(values, pa.string())


def write_rejected(bad: Rejections, path: str) -> None:
    """All that was refused, one record each with the columns source, place, reason."""
    form = format_of(path, "choose one of them")
    if form == "json":
        lines = (json.dumps(item._asdict(), ensure_ascii=False) + "\n" for item in bad.items)
        Path(path).write_text("".join(lines), encoding="utf-8")
        return
    import pyarrow as pa
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as pq

    columns = {name: pa.array([getattr(item, name) for item in bad.items], pa.string()) for name in Bad._fields}
    (arrow_csv.write_csv if form == "csv" else pq.write_table)(pa.table(columns), path)
