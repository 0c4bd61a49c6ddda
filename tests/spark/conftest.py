"""One session for all tests of the room, small and tuned as the docs say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pyspark = pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")


def quiet(master: str) -> Any:
    """A session for tests."""
    from tamis.spark import builder

    spark = (
        builder(master, "tamis tests")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.files.openCostInBytes", str(128 * 2**20))
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "10s")
        .config("spark.sql.streaming.minBatchesToRetain", "5")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("FATAL")
    return spark


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Spark on two cores of this machine."""
    session = quiet("local[2]")
    yield session
    session.stop()
