"""A streaming frame read until its source is empty, through Spark's own file sink."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery


def drain(frame: DataFrame, path: Path) -> tuple[DataFrame, StreamingQuery]:
    """What the frame gave, and the query that has ended."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(path / "out"))
        .option("checkpointLocation", str(path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return frame.sparkSession.read.schema(frame.schema).parquet(str(path / "out")), query


def drained(frame: DataFrame, path: Path) -> DataFrame:
    """What the frame gave."""
    return drain(frame, path)[0]
