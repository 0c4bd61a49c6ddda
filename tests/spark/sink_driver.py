"""A driver to be killed: numbers from files into a Parquet directory, a topic, and two databases, by one query.

``sink_driver.py SETTINGS`` prints a line per finished micro-batch, and ``end`` when the files are used up. It ends at
once when its standard input closes, so that it cannot outlive the tests.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from pyspark.sql import DataFrame, SparkSession

from tamis.spark import sinks
from tamis.spark.sources import FileSource, accepted


def watch() -> None:
    """Die with whoever holds the other end of standard input."""
    sys.stdin.read()
    os._exit(1)


def main(settings: dict[str, str]) -> None:
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    outputs = [
        sinks.Parquet(settings["parquet"]),
        sinks.Kafka(settings["servers"], settings["topic"], key="k", order_by="n"),
        sinks.Table(settings["postgres"], "numbers"),
        sinks.Table(settings["sqlite"], "numbers"),
    ]

    def write(frame: DataFrame, batch: int) -> None:
        for sink in outputs:
            sink(frame, batch)
        print("batch", batch, flush=True)

    files = FileSource("json", settings["files"], "n bigint, k string", limit=1)
    query = sinks.start(accepted(files.open(spark)), write, settings["checkpoint"], trigger={"availableNow": True})
    query.awaitTermination()
    print("end", flush=True)


if __name__ == "__main__":
    threading.Thread(target=watch, daemon=True).start()
    main(json.loads(sys.argv[1]))
