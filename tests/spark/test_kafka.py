"""The broker of the tests is a real one: what is produced is what Spark and a client read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from drain import drain
from pyspark.sql import SparkSession

from kafka_broker import JARS, Broker, need_jars

RECORDS = [(str(number % 7), f"record {number}") for number in range(1_000)]


def test_a_thousand_records_through_spark_and_through_the_client(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    topic = kafka.create("thousand", partitions=3)
    assert kafka.produce(topic, RECORDS) == 1_000

    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka.servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 300)
        .load()
    )
    found, query = drain(stream, tmp_path)
    assert len(query.recentProgress) >= 4, "the limit per micro-batch was not kept"

    by_spark = {(row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in found.collect()}
    by_client = kafka.consume(topic)
    assert by_spark == {tuple(record) for record in by_client}
    assert len(by_client) == len(by_spark) == 1_000
    assert Counter((r.key.decode(), r.value.decode()) for r in by_client if r.key and r.value) == Counter(RECORDS)


def test_a_restarted_broker_has_kept_its_records(kafka: Broker) -> None:
    topic = kafka.create("restart", partitions=2)
    kafka.produce(topic, RECORDS[:100])
    before = kafka.consume(topic)
    kafka.stop(keep=True)
    kafka.start()
    assert kafka.consume(topic) == before
    assert len(before) == 100


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes by their working directory")
def test_a_broker_dies_with_the_tests(tmp_path: Path) -> None:
    """pytest killed with SIGKILL leaves neither the broker nor its directory."""
    need_jars("broker")
    directory = tmp_path / "broker"
    directory.mkdir()
    program = f"""
        import sys, time
        sys.path[:0] = {[str(Path(__file__).parent.parent)]!r}
        from pathlib import Path
        from kafka_broker import Broker, jars_in
        broker = Broker(jars_in({str(JARS / "broker")!r}), Path({str(directory)!r}))
        broker.start()
        print("running", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == "running\n"
        assert _living(directory), "the search for the broker's process does not work"
        os.kill(tests.pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while (_living(directory) or directory.exists()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _living(directory)
    assert not directory.exists()


def _living(directory: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == "java" and process.cwd().startswith(str(directory)):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
