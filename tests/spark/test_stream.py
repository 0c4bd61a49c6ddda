"""``match_stream`` equals the reference: any shards, any micro-batches, any restarts, any initial state."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from streams import SCHEMA, Collected, Expected, Folder, cut, delivered, random_rows

from tamis import UsageError
from tamis.spark import match_stream, prepare, sinks
from tamis.testing import random_tracks


def run(spark: Any, where: Path, sink: Any, files: int = 2, **options: Any) -> None:
    """All files that are there now, then stop."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(str(where / "in"))
    stream = match_stream(events=events, **options)
    writer = stream.results.writeStream.foreachBatch(sink).option("checkpointLocation", str(where / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(("shards", "seed"), [(1, 0), (2, 1), (3, 2), (8, 3)])
def test_one_ordered_stream_equals_the_reference(spark: Any, tmp_path: Path, shards: int, seed: int) -> None:
    """Deliveries in serial order and rejected events, over random micro-batches of two partitions and a clean restart."""
    rng = np.random.default_rng(seed)
    tracks = random_tracks(rng, seed % 3)
    rows = random_rows(rng, 600)
    expected = Expected(tracks).add(rows)
    folder, found = Folder(tmp_path / "in"), Collected()
    pieces = cut(rng, rows, 6)
    stop = int(rng.integers(1, len(pieces) - 1))
    for k, piece in enumerate(pieces):
        folder.put(piece, rng, files=2)
        if k in (stop, len(pieces) - 1):
            run(spark, tmp_path, found, shards=shards, track=tracks)
    assert found.deliveries == expected.deliveries
    assert found.rejected == sorted(expected.rejected)
    assert len(expected.deliveries) > 50
    assert len(found.batches) == len(pieces)
