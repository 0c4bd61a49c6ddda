"""spark-submit on a standalone cluster: a master and two workers as processes of their own, as docs/cluster.md says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.dataset as ds
import pyspark
import pytest
from daemons import Daemon, free_port
from faults import deliveries, judge
from streams import SCHEMA, Expected, Folder, cut, random_rows

from tamis.testing import random_tracks

ROOT = Path(__file__).parents[2]
BIN = Path(pyspark.__file__).parent / "bin"
LOCAL = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}


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

    def start(name: str, kind: str, workers: int, *arguments: str) -> None:
        (tmp_path / name).mkdir()
        daemons.append(Daemon(tmp_path / name, signal="TERM"))
        command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *arguments]
        daemons[-1].start(command, lambda: found.state().get("aliveworkers") == workers)

    try:
        start("master", "master.Master", 0, "--port", str(port), "--webui-port", str(page))
        for number in (1, 2):
            small = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", "work")
            start(f"worker-{number}", "worker.Worker", number, *small, found.url)
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


def figures(where: Path) -> list[dict[str, Any]]:
    """What the shards said of themselves, one entry per shard and micro-batch."""
    table = ds.dataset(where / "figures", partitioning="hive", format="parquet").to_table()
    return [json.loads(one) for one in table["figures"].to_pylist()]


def test_spark_submit_delivers_what_the_reference_does(cluster: Cluster, tmp_path: Path) -> None:
    """Without a master in the file the one of spark-submit is taken; a second call goes on from the checkpoint."""
    rng = np.random.default_rng(5)
    tracks, rows = random_tracks(rng, 1), random_rows(rng, 600)
    expected = Expected(tracks).add(rows)
    folder = Folder(tmp_path / "in")
    *pieces, last = cut(rng, rows, 5)
    declared = "\n".join(
        "[[track]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in track.items() if value is not None)
        for track in tracks
    )
    (tmp_path / "p.toml").write_text(PIPELINE.format(schema=SCHEMA, tracks=declared))
    submit = (str(ROOT / "examples" / "submit.py"), "run", str(tmp_path / "p.toml"), "--once")
    for part in (pieces, [last]):
        for piece in part:
            folder.put(piece, rng, files=2)
        done = cluster.submit(*submit)
        assert done.returncode == 0, done.stderr
        assert "Exception" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "going on after batch" in done.stderr
    assert judge(deliveries(tmp_path), expected.deliveries) == {"lost": 0, "doubled": 0, "misplaced": 0}
    assert len(expected.deliveries) > 50

    ran = cluster.state()["completedapps"]
    print(ran, figures(tmp_path))
    print(sorted(map(str, tmp_path.glob("worker-*/work/app-*/*"))), done.stderr, done.stdout)
    assert 0
