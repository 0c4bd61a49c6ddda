"""``match_stream`` equals the reference: any shards, any micro-batches, any restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streams import SCHEMA, Expected, Folder, cut, delivered, random_rows, refused

from tamis.spark import match_stream, sinks
from tamis.testing import random_tracks


def run(spark: Any, where: Path, **options: Any) -> None:
    """All files that are there now, then stop."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(where / "in"))
    query = match_stream(events=events, **options).start(
        str(where / "checkpoint"),
        matches=sinks.parquet(str(where / "matches")),
        rejected=sinks.parquet(str(where / "rejected")),
        figures=sinks.parquet(str(where / "figures")),
        trigger={"availableNow": True},
    )
    query.awaitTermination()


@pytest.mark.parametrize(("shards", "seed"), [(1, 0), (2, 1), (3, 2), (8, 3), (2, 4)])
def test_one_ordered_stream_equals_the_reference(spark: Any, tmp_path: Path, shards: int, seed: int) -> None:
    """Deliveries in serial order, rejected events and batches, over clean restarts."""
    rng = np.random.default_rng(seed)
    tracks = random_tracks(rng, seed % 3)
    rows = random_rows(rng, 600)
    expected = Expected(tracks).add(rows)
    folder = Folder(tmp_path / "in")
    pieces = cut(rng, rows, 8)
    for k, piece in enumerate(pieces):
        folder.put(piece, rng, files=2)
        if k in (4, len(pieces) - 1):
            run(spark, tmp_path, shards=shards, track=tracks)
    assert delivered(spark, tmp_path / "matches") == expected.deliveries
    assert refused(spark, tmp_path / "rejected") == sorted(expected.rejected)
    assert len(expected.deliveries) > 50
