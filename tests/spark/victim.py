"""A pipeline to be killed: a process of its own that runs a stream of events into a Parquet directory.

``python victim.py FOLDER SHARDS [MASTER]`` reads FOLDER/in and FOLDER/tracks.json, delivers to FOLDER/matches, and goes
on where it stopped when it is started again. It ends by itself when FOLDER/end exists and everything that is there has
been delivered.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from streams import SCHEMA

from tamis.spark import builder, match_stream, sinks


def main(where: Path, shards: int, master: str) -> None:
    """Until the end."""
    spark = (
        builder(master, "tamis-victim")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.files.openCostInBytes", str(128 * 2**20))
        .config("spark.task.maxFailures", "20")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "5s")
        .config("spark.sql.streaming.minBatchesToRetain", "10")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(where / "in"))
    tracks = json.loads((where / "tracks.json").read_text())
    query = match_stream(events=events, shards=shards, track=tracks).start(
        str(where / "checkpoint"), matches=sinks.Parquet(str(where / "matches"))
    )
    while not (where / "end").exists():
        if query.exception() is not None:
            raise SystemExit(f"the query failed: {query.exception()}")
        time.sleep(0.1)
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "local[2,20]")
