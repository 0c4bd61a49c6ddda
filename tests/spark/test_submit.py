"""spark-submit on a standalone cluster: a master and two workers as processes of their own, as docs/cluster.md says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.dataset as ds
import pyspark
import pytest
from faults import deliveries, judge
from streams import SCHEMA, Expected, Folder, cut, random_rows

from daemons import Daemon, free_port
from tamis.testing import random_tracks

ROOT = Path(__file__).parents[2]
BIN = Path(pyspark.__file__).parent / "bin"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds: half of what the start of six of them takes."""
LOCAL = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": QUICK,
}


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster on this machine."""

    url: str
    page: str

    def state(self) -> dict[str, Any]:
        """What the master says of its workers and applications; empty before it answers."""
        with suppress(OSError), urllib.request.urlopen(f"{self.page}/json/", timeout=10) as answer:
            return dict(json.load(answer))
        return {}

    def submit(self, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """``spark-submit`` with one core per executor; its whole process group is gone afterwards."""
        command = [str(BIN / "spark-submit"), "--master", self.url, "--executor-cores", "1"]
        command += ["--executor-memory", "600m", "--driver-memory", "600m"]
        command += ["--driver-java-options", QUICK, "--conf", f"spark.executor.extraJavaOptions={QUICK}"]
        command += ["--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0", *arguments]
        with subprocess.Popen(
            command,
            env={**os.environ, **LOCAL},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A master and two workers with one core each; nothing of them is left afterwards, executors included."""
    for name, value in LOCAL.items():
        monkeypatch.setenv(name, value)
    port, page = free_port(), free_port()
    found = Cluster(f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{page}")
    before = set(psutil.Process().children(recursive=True))
    daemons: list[Daemon] = []

    def start(name: str, kind: str, answers: Callable[[], bool], *arguments: str) -> None:
        (tmp_path / name).mkdir()
        daemons.append(Daemon(tmp_path / name, signal="TERM"))
        command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *arguments]
        daemons[-1].start(command, answers)

    try:
        start("master", "master.Master", lambda: bool(found.state()), "--port", str(port), "--webui-port", str(page))
        worker = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", "work", found.url)
        start("worker-1", "worker.Worker", lambda: True, *worker)  # the second waits for both
        start("worker-2", "worker.Worker", lambda: found.state().get("aliveworkers") == 2, *worker)
        yield found
    finally:
        started = set(psutil.Process().children(recursive=True)) - before
        for daemon in reversed(daemons):
            daemon.stop()
        for left in psutil.wait_procs(list(started), timeout=10)[1]:
            left.kill()


PIPELINE = """\
checkpoint = "checkpoint"
shards = 2
name = "submitted"

[sources.events]
format = "parquet"
path = "in"
limit = 2
schema = "{schema}"

{tracks}

[sinks.matches]
format = "parquet"
path = "matches"

[sinks.figures]
format = "parquet"
path = "figures"
"""


def test_spark_submit_delivers_what_the_reference_does(cluster: Cluster, tmp_path: Path) -> None:
    """The file names no master, so the one of spark-submit is taken; shards are kept warm."""
    rng = np.random.default_rng(5)
    tracks, rows = random_tracks(rng, 1), random_rows(rng, 400)
    expected = Expected(tracks).add(rows)
    folder = Folder(tmp_path / "in")
    for piece in cut(rng, rows, 3):
        folder.put(piece, rng, files=2)
    declared = "\n".join(
        "[[track]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in track.items() if value is not None)
        for track in tracks
    )
    (tmp_path / "p.toml").write_text(PIPELINE.format(schema=SCHEMA, tracks=declared))
    (tmp_path / "events").mkdir()
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": (tmp_path / "events").as_uri()}
    logged |= {"spark.eventLog.compress": "false", "spark.ui.retainedJobs": "77"}
    settings = [word for key, value in logged.items() for word in ("--conf", f"{key}={value}")]
    script = str(ROOT / "examples" / "submit.py")
    done = cluster.submit(*settings, script, "run", str(tmp_path / "p.toml"), "--once")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Exception" not in said and "Traceback" not in said, said

    assert judge(deliveries(tmp_path), expected.deliveries) == {"lost": 0, "doubled": 0, "misplaced": 0}
    assert len(expected.deliveries) > 50

    (file,) = (tmp_path / "events").rglob("events_*")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    settings_of = next(one for one in events if one["Event"] == "SparkListenerEnvironmentUpdate")["Spark Properties"]
    assert settings_of["spark.master"] == cluster.url
    assert settings_of["spark.ui.retainedJobs"] == "77"  # what spark-submit is told goes before our defaults
    assert sum(one["Event"] == "SparkListenerExecutorAdded" for one in events) == 2
    table = ds.dataset(tmp_path / "figures", partitioning="hive", format="parquet").to_table()
    loads = sorted((one["batch"], one["shard"], one["cache"]) for one in map(json.loads, table["figures"].to_pylist()))
    assert [one[:2] for one in loads] == [(batch, shard) for batch in range(3) for shard in range(2)]
    hows = [how for _, _, how in loads]
    # On a busy machine Spark may send a shard elsewhere, where it is rebuilt; but not every time.
    assert hows[:2] == ["created"] * 2 and "warm" in hows
