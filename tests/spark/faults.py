"""Killing a pipeline with SIGKILL at random moments, and what must hold of its deliveries afterwards.

Only processes that :class:`Victim` started, and their children, are killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds


class Victim:
    """A pipeline in a process group of its own, started again whenever its driver is dead."""

    def __init__(
        self, where: Path, shards: int, tracks: Sequence[Mapping[str, Any]], master: str = "local[2,20]"
    ) -> None:
        self.where, self.command = where, [sys.executable, str(Path(__file__).with_name("victim.py")), str(where)]
        self.command += [str(shards), master]
        (where / "tracks.json").write_text(json.dumps(list(tracks)))
        self.kills: Counter[str] = Counter()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the driver unless it lives; what an earlier one left behind is killed first."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        with (self.where / "victim.log").open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)

    def stop(self) -> None:
        """Kill the whole group."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _parts(self) -> dict[str, list[psutil.Process]]:
        """What can be killed: Python workers, executors, the driver (its JVM and its Python die together)."""
        found: dict[str, list[psutil.Process]] = {"worker": [], "executor": [], "driver": []}
        if self._process is None or self._process.poll() is not None:
            return found
        found["driver"] = [psutil.Process(self._process.pid)]
        for child in found["driver"][0].children(recursive=True):
            try:
                line = " ".join(child.cmdline())
                if "pyspark.daemon" in line and "pyspark.daemon" in " ".join(child.parent().cmdline()):  # type: ignore[union-attr]
                    found["worker"].append(child)
                elif "CoarseGrainedExecutorBackend" in line:
                    found["executor"].append(child)
            except psutil.Error:
                continue
        return found

    def kill(self, rng: random.Random, what: str) -> bool:
        """SIGKILL one part; False when there is none now."""
        parts = self._parts()[what]
        if not parts:
            return False
        try:
            if what == "driver":
                self.stop()
            else:
                rng.choice(parts).send_signal(signal.SIGKILL)
        except psutil.Error:
            return False
        self.kills[what] += 1
        return True

    def batches(self) -> int:
        """How many micro-batches have been delivered."""
        return len(list((self.where / "matches").glob("batch=*")))

    def wait(self, until: Callable[[], bool], seconds: float, start: bool = True) -> None:
        """Keep the driver alive until something holds."""
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                tail = (self.where / "victim.log").read_bytes()[-3000:].decode(errors="replace")
                raise TimeoutError(f"{self.batches()} batches after {seconds:.0f} s, kills {dict(self.kills)}: {tail}")
            if start:
                self.start()
            time.sleep(0.05)

    def finish(self, seconds: float) -> None:
        """Let it deliver everything and end."""
        (self.where / "end").touch()
        process: list[Any] = []

        def ended() -> bool:
            process[:] = [self._process]
            return self._process is not None and self._process.poll() == 0

        self.wait(ended, seconds)


def deliveries(where: Path) -> list[tuple[int, str]]:
    """What was delivered, in the order of a consumer that reads one micro-batch after the other, without Spark."""
    table = ds.dataset(where / "matches", partitioning="hive", format="parquet", exclude_invalid_files=False).to_table()
    found = zip(*(table[name].to_pylist() for name in ("batch", "seq", "rank", "profile")), strict=True)
    return [(seq, profile) for _, seq, _, profile in sorted(found)]


def judge(found: Sequence[tuple[int, str]], expected: Sequence[tuple[int, str]]) -> dict[str, int]:
    """Lost, doubled and misplaced deliveries; all 0 when right."""
    have, want = Counter(found), Counter(expected)
    misplaced = sum(a != b for a, b in zip(found, expected, strict=True)) if have == want else 0
    return {"lost": (want - have).total(), "doubled": (have - want).total(), "misplaced": misplaced}
