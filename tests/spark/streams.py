"""Random logs as files of events, and the deliveries of a stream compared with the reference.

Guarantees that stream and reference get the same values: a value that Arrow cannot hold is replaced in both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis import EventLog, ReferenceFilter
from tamis.testing import Mix, Vocabulary, random_log

VOCABULARY = Vocabulary(ids=tuple(f"q{i}" for i in range(16)), contexts=("A", "B", "C", "D", "E", "F"))
MESSAGE = (
    "struct<a: bigint, b: double, c: double, s: string, u: string, f: boolean, t: timestamp, "
    "p: array<double>, g: array<string>>"
)
VALUE = (
    "struct<whole: bigint, number: double, text: string, flag: boolean, time: timestamp, "
    "points: array<double>, tags: array<string>, blob: binary>"
)
SCHEMA = (
    f"seq bigint, event string, context string, attribute string, value {VALUE}, "
    f"id string, profile string, on_match string, message {MESSAGE}"
)
_TIME = pa.timestamp("us", tz="UTC")
_VALUE = pa.struct(
    [
        ("whole", pa.int64()),
        ("number", pa.float64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("time", _TIME),
        ("points", pa.list_(pa.float64())),
        ("tags", pa.list_(pa.string())),
        ("blob", pa.binary()),
    ]
)
_MESSAGE = pa.struct(
    [
        *(("a", pa.int64()), ("b", pa.float64()), ("c", pa.float64()), ("s", pa.string()), ("u", pa.string())),
        *(("f", pa.bool_()), ("t", _TIME), ("p", pa.list_(pa.float64())), ("g", pa.list_(pa.string()))),
    ]
)
ARROW = pa.schema(
    [
        *(("seq", pa.int64()), ("event", pa.string()), ("context", pa.string()), ("attribute", pa.string())),
        *(("value", _VALUE), ("id", pa.string()), ("profile", pa.string()), ("on_match", pa.string())),
        ("message", _MESSAGE),
    ]
)


def union(value: Any) -> dict[str, Any] | None:
    """A value as the struct that the events have."""
    if value is None:
        return None
    kinds = {bool: "flag", float: "number", str: "text", datetime: "time"}
    if type(value) is int:
        return {"whole": value} if -(2**63) <= value < 2**63 else {"blob": b"?"}
    if type(value) in kinds:
        return {kinds[type(value)]: value}
    if isinstance(value, list):
        if all(type(item) in (int, float) for item in value):
            return {"points": [float(item) for item in value]}
        if all(type(item) is str for item in value):
            return {"tags": value}
    return {"blob": b"?"}


def plain(value: Mapping[str, Any] | None) -> Any:
    """The value of such a struct."""
    return None if value is None else next(iter(value.values()))


def rows_of(log: EventLog, first: int = 1) -> list[dict[str, Any]]:
    """The events of a log as rows, numbered from ``first``."""
    rows: list[dict[str, Any]] = []
    for seq, (kind, _, *event) in enumerate(log.events(), first):
        row: dict[str, Any] = {"seq": seq, "event": kind}
        if kind == "message":
            row["message"] = event[0]
        elif kind == "update":
            row |= {"context": event[0], "attribute": event[1], "value": union(event[2])}
        elif kind == "subscribe":
            row |= dict(zip(("id", "profile", "context", "on_match"), event, strict=True))
        else:
            row["id"] = event[0]
        rows.append(row)
    return rows


def random_rows(
    rng: np.random.Generator, events: int, mix: Mix | None = None, vocabulary: Vocabulary = VOCABULARY
) -> list[dict[str, Any]]:
    """Random events as rows."""
    return rows_of(random_log(rng, events, vocabulary, mix, columnar=True))


def log_of(rows: Sequence[Mapping[str, Any]]) -> EventLog:
    """The rows as a log for the reference."""
    builder = EventLog.builder()
    for row in rows:
        if row["event"] == "message":
            builder.message(row["message"])
        elif row["event"] == "update":
            builder.update(row["context"], {row["attribute"]: plain(row["value"])})
        elif row["event"] == "subscribe":
            builder.subscribe(row["id"], row["profile"], row["context"], row["on_match"])
        else:
            builder.unsubscribe(row["id"])
    return builder.build()


@dataclass
class Expected:
    """What the reference says about rows: deliveries (seq, profile) in order, and rejected (event, seq)."""

    tracks: Sequence[Mapping[str, Any]] = ()
    reference: ReferenceFilter = field(default_factory=ReferenceFilter)
    deliveries: list[tuple[int, str]] = field(default_factory=list)
    rejected: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for track in self.tracks:
            self.reference.track(**track)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> Expected:
        """More rows, in order."""
        found = self.reference.process(log_of(rows))
        of = {
            kind: [row["seq"] for row in rows if row["event"] == kind]
            for kind in ("message", "update", "subscribe", "unsubscribe")
        }
        self.deliveries += [(of["message"][row], str(id)) for row, id in found]
        self.rejected += [(kind, of["message" if kind == "effect" else kind][row]) for kind, row, _ in found.rejected]
        return self


class Folder:
    """A folder that a stream reads; what is put into it becomes one micro-batch per call, of ``files`` files."""

    def __init__(self, path: Path, schema: pa.Schema = ARROW) -> None:
        self.path, self.schema, self._count = path, schema, 0
        path.mkdir(parents=True, exist_ok=True)

    def put(self, rows: Sequence[Mapping[str, Any]], rng: np.random.Generator | None = None, files: int = 1) -> None:
        """Rows in random order, dealt out to the files."""
        rows = list(rows)
        if rng is not None:
            rows = [rows[i] for i in rng.permutation(len(rows))]
        ready = []
        for k in range(files):
            name = self.path / f"{self._count:06d}.parquet"
            aside = self.path / f".{name.name}"
            pq.write_table(pa.Table.from_pylist(rows[k::files], self.schema), aside)
            os.utime(aside, (1_700_000_000 + self._count, 1_700_000_000 + self._count))
            ready.append((aside, name))
            self._count += 1
        for aside, name in ready:  # all at once: a running stream would take the first without the others
            aside.rename(name)


def cut(rng: np.random.Generator, rows: Sequence[Any], pieces: int) -> list[Sequence[Any]]:
    """Rows cut at random places, some pieces perhaps empty of messages, none empty."""
    places = sorted({0, len(rows), *rng.integers(1, len(rows), pieces - 1).tolist()})
    return [rows[a:b] for a, b in pairwise(places)]


class Collected:
    """A sink in memory: one entry per micro-batch, so that a batch that comes twice counts once."""

    def __init__(self) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}

    def __call__(self, results: Any, batch: int) -> None:
        """Keep the rows of ``MatchStream.results``."""
        self.batches[batch] = results.toArrow().to_pylist()

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, batch by batch."""
        for batch in sorted(self.batches):
            yield from self.batches[batch]

    @property
    def deliveries(self) -> list[tuple[Any, Any]]:
        """(seq, profile) in serial order."""
        found = []
        for row in self.rows():
            if row["profile"] is not None:
                found += zip(row["order"], row["rank"], row["profile"], strict=True)
        return [(seq, profile) for seq, _, profile in sorted(found)]

    @property
    def rejected(self) -> list[tuple[str, int]]:
        """(event, seq), sorted."""
        return sorted(
            pair
            for row in self.rows()
            if row["r_event"] is not None
            for pair in zip(row["r_event"], row["r_order"], strict=True)
        )

    @property
    def figures(self) -> list[dict[str, Any]]:
        """One entry per shard and batch."""
        return [json.loads(row["figures"]) for row in self.rows() if row["figures"] is not None]


def delivered(spark: Any, path: Path) -> list[tuple[int, str]]:
    """What a directory of deliveries holds, in serial order."""
    found = spark.read.parquet(str(path)).orderBy("seq", "rank", "profile").select("seq", "profile").collect()
    return [(row.seq, row.profile) for row in found]
