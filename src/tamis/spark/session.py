"""Settings of Spark that tamis needs, and those that make it fast and lean.

Guarantees that what is needed is set when a stream is started (:func:`prepare`); what makes it fast and lean has to be
set before Spark starts (:func:`builder`) and changes no result.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

# docs/spark.md, 'Tuning', says what they bring.
FAST: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    # With a limit Spark measures the whole Arrow batch after every row. The number of rows is limited all the same.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.python.udf.pipelined.enabled": "true",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}
# A stream runs for months: the driver remembers this much of what it did, not the last thousand of everything.
LEAN: Final = {
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "200",
    "spark.sql.ui.retainedExecutions": "100",
}
# Without Hadoop's native library its FileContext runs `readlink` and `chmod` as processes of their own, several for
# every file of the checkpoint. A FileSystem does with one; on one machine its rename is as atomic.
_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PLAIN: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def builder(master: str | None = None, name: str = "tamis") -> SparkSession.Builder:
    """A session builder with the settings that make streams fast; add your own and call ``getOrCreate()``.

    What spark-submit was told goes before them.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = SparkSession.builder.appName(name)
    if master is not None:
        found = found.master(with_retries(master))
    files = {_FILES: _PLAIN} if on_one_machine(master) else {}
    given = submitted()
    for key, value in {**FAST, **LEAN, **files}.items():
        if key not in given:
            found = found.config(key, value)
    return found


def submitted() -> frozenset[str]:
    """The names of the settings that came with spark-submit; none when something else started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return frozenset()
    SparkContext._ensure_initialized()  # connects to the JVM that waits for us, and starts nothing
    return frozenset(key for key, _ in SparkConf().getAll())


def on_one_machine(master: str | None) -> bool:
    """Whether driver and workers share a machine and its files.

    >>> on_one_machine("local[2,4]"), on_one_machine("local"), on_one_machine("local-cluster[2,1,1024]")
    (True, True, False)
    """
    return master is not None and re.match(r"local(\[|$)", master) is not None


def with_retries(master: str) -> str:
    """``local[N]`` as ``local[N,4]``: on one machine, too, a task may be tried again, as a cluster does.

    Spark ends Python workers that were idle for a minute; a task that is given one at that moment fails.

    >>> with_retries("local[2]"), with_retries("local[2,9]"), with_retries("yarn")
    ('local[2,4]', 'local[2,9]', 'yarn')
    """
    return re.sub(r"^local\[(\d+|\*)\]$", r"local[\1,4]", master)


def prepare(spark: SparkSession, shards: int, checkpoint: str | None = None) -> None:
    """What a stream needs in the session that starts it: RocksDB with a changelog, and one partition per shard."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    # Counting keys looks every value up before it is written, and these are few and large.
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows", "false")
    spark.conf.set("spark.sql.shuffle.partitions", str(shards))
    if spark.conf.get(_FILES, "") == _PLAIN:
        jvm: Any = spark._jvm
        files, hadoop = jvm.org.apache.hadoop.fs, spark._jsc.hadoopConfiguration()
        if checkpoint is not None and files.Path(checkpoint).getFileSystem(hadoop).getScheme() != "file":
            spark.conf.unset(_FILES)
        else:  # a file and its checksum are two renames, and a kill may come between them
            files.FileSystem.getLocal(hadoop).setWriteChecksum(False)


def end(spark: SparkSession) -> None:
    """Stop a session of our own, its Python workers first.

    On one machine the JVM hangs up on idle workers before their daemon ends them, and on a busy machine some print a
    traceback about it: alarming, about nothing. Ended by the daemon they are silent.
    """
    if on_one_machine(spark.sparkContext.master):
        jvm: Any = spark._jvm
        for child in jvm.java.lang.ProcessHandle.current().children().toArray():
            if "pyspark.daemon" in child.info().commandLine().orElse(""):
                child.destroy()
                child.onExit().join()
    spark.stop()
