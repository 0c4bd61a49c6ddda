"""One Spark session for all tests of a process, small and tuned as the docs say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tamis.spark import builder


def quiet(master: str, warehouse: Path) -> SparkSession:
    """A session for tests: few partitions, one per file, nothing listening that a test does not need."""
    session: SparkSession = (
        builder(master, "tamis-tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.sql.files.openCostInBytes", str(128 * 2**20))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine."""
    session = quiet("local[2]", tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()
