"""The Spark session of the Spark benchmarks: all cores of the machine, one Python worker per core."""

from __future__ import annotations

import os
from typing import Any

from tamis.spark import builder


def session(memory: str = "4g") -> Any:
    """Spark on this machine, tuned as the docs say; both sides of a comparison run in it."""
    cores = os.cpu_count() or 1
    spark = (
        builder(f"local[{cores}]", "tamis-benchmark")
        .config("spark.driver.memory", memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(cores))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark
