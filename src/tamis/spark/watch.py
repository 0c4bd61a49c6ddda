"""What a running pipeline does, as numbers: for the screen and for Prometheus.

One :class:`Status` takes Spark's progress reports and the figures of the shards; :func:`screen` and :class:`Endpoint`
show it. Guarantees that a micro-batch which is repeated after a failure is counted once. Refuses to know queries.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np

_WINDOW: Final = 10.0
"""Seconds over which rates are taken."""


@dataclass
class Status:
    """All numbers since the start of this process, and the last ones of the shards."""

    clock: Any = time.monotonic
    batch: int = -1
    batches: int = 0
    events: int = 0
    matches: int = 0
    rejected: int = 0
    escalations: int = 0
    loads: Counter[str] = field(default_factory=Counter)
    """How shards came: created, warm, caught up, rebuilt."""
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    """Seconds of the last micro-batches that had events."""
    lags: dict[str, int] = field(default_factory=dict)
    """Per source what is there and not read yet: files, or records of a topic."""
    idle: bool = False
    """The last report was of a micro-batch without events."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: dict[int, dict[str, Any]] = {}
        self._reported: tuple[int, str] | None = None
        self._figured = -1
        self._began = self.clock()
        self._points: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)])

    # -- taking in ---------------------------------------------------------------------------------------------

    def report(self, progress: Mapping[str, Any], lags: Mapping[str, int] | None = None) -> None:
        """A progress report of Spark; the same one may come again."""
        key = (int(progress["batchId"]), str(progress["timestamp"]))
        with self._lock:
            if lags is not None:
                self.lags = dict(lags)
            if self._reported is not None and key <= self._reported:
                return
            self._reported = key
            rows = int(progress.get("numInputRows") or 0)
            ran = "addBatch" in progress.get("durationMs", {})
            self.idle = rows == 0
            self.events += rows
            if ran:
                self.batch, self.batches = key[0], self.batches + 1
                if rows:
                    self.latencies.append(float(progress["durationMs"].get("triggerExecution", 0)) / 1000)
            self._point()

    def figures(self, batch: int, rows: Iterable[str]) -> None:
        """The figures of all shards of one micro-batch."""
        with self._lock:
            if batch <= self._figured:
                return
            self._figured = batch
            for one in map(json.loads, rows):
                self._shards[int(one["shard"])] = one
                self.matches += int(one.get("matches", 0))
                self.rejected += int(one.get("rejected", 0))
                self.escalations += int(one.get("escalated", 0))
                self.loads[str(one["cache"])] += 1
            self._point()

    def _point(self) -> None:
        now = self.clock()
        self._points.append((now, self.events, self.matches))
        while len(self._points) > 2 and self._points[1][0] < now - _WINDOW:
            self._points.popleft()

    # -- reading -----------------------------------------------------------------------------------------------

    def _sum(self, name: str) -> int:
        return sum(int(one.get(name, 0)) for one in list(self._shards.values()))

    @property
    def held(self) -> int:
        """Events that wait for other streams. Every shard holds all messages, so the fullest one tells."""
        return max((int(one.get("held", 0)) for one in list(self._shards.values())), default=0)

    @property
    def profiles(self) -> int:
        """Profiles of all shards."""
        return self._sum("profiles")

    @property
    def contexts(self) -> int:
        """Contexts of all shards."""
        return self._sum("contexts")

    @property
    def late(self) -> int:
        """Events that came after events behind them had been replayed, since the checkpoint was made."""
        return self._sum("late")

    @property
    def forced(self) -> int:
        """Events that went on before their wait had ended because too many waited, since the checkpoint was made."""
        return self._sum("forced")

    @property
    def shed(self) -> tuple[int, int]:
        """Messages (once per shard that shed them) and updates that were shed, since the checkpoint was made."""
        return self._sum("shed_messages"), self._sum("shed_updates")

    @property
    def state_bytes(self) -> int:
        """Snapshots and deltas in the state store."""
        return self._sum("state_bytes")

    def rates(self) -> tuple[float, float]:
        """Events and matches per second, over the last ten seconds."""
        with self._lock:
            now = self.clock()
            at, events, matches = next((p for p in self._points if p[0] >= now - _WINDOW), self._points[-1])
            at = min(at, now - 1e-3)
            return (self.events - events) / (now - at), (self.matches - matches) / (now - at)

    def latency(self, share: float) -> float:
        """The quantile of seconds per micro-batch; 0 before the first."""
        with self._lock:
            return float(np.quantile(np.array(self.latencies), share)) if self.latencies else 0.0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return float(self.clock() - self._began)


# -- lag -----------------------------------------------------------------------------------------------------------


class Lag:
    """What the sources still have, from Spark's reports, its log of files, and the directories."""

    def __init__(self, checkpoint: str) -> None:
        place = urlsplit(checkpoint).path if checkpoint.startswith("file:") else checkpoint
        self._log = None if "://" in place else Path(place) / "sources"
        self._counts: dict[Path, int] = {}

    def of(self, sources: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """By the description of the source; sources of which nothing is known are left out."""
        found: dict[str, int] = {}
        for number, source in enumerate(sources):
            name = str(source.get("description", number))
            if name.startswith("FileStreamSource[file:"):
                place = unquote(urlsplit(name.removeprefix("FileStreamSource[").removesuffix("]")).path)
                if self._log is not None and Path(place).is_dir():
                    found[place] = max(0, _files(Path(place)) - self._read(self._log / str(number)))
            else:
                behind = _behind(_offsets(source.get("latestOffset")), _offsets(source.get("endOffset")))
                if behind is not None:
                    found[name] = behind
        return found

    def _read(self, log: Path) -> int:
        """Files in Spark's log of a source: the last compacted part and what came after it."""
        if not log.is_dir():
            return 0
        parts = sorted((int(one.name.partition(".")[0]), one) for one in log.iterdir() if one.name[0].isdigit())
        last = max((number for number, one in parts if one.suffix == ".compact"), default=-1)
        total = 0
        for number, one in parts:
            if number > last or (number == last and one.suffix == ".compact"):
                if one not in self._counts:
                    self._counts[one] = one.read_bytes().count(b'{"path"')
                total += self._counts[one]
        return total


def _files(place: Path) -> int:
    return sum(1 for one in place.iterdir() if one.is_file() and not one.name.startswith(("_", ".")))


def _offsets(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _behind(latest: Mapping[str, Any], end: Mapping[str, Any]) -> int | None:
    """Records between two offsets of Kafka; ``None`` when they are not offsets of topics."""
    total, any_ = 0, False
    for topic, partitions in latest.items():
        if isinstance(partitions, dict):
            for partition, offset in partitions.items():
                any_ = True
                total += int(offset) - int((end.get(topic) or {}).get(partition, 0))
    return total if any_ else None


# -- the screen ----------------------------------------------------------------------------------------------------


def line(status: Status) -> str:
    """One line, for logs."""
    coming, matching = status.rates()
    lag = ", ".join(f"{amount:,} behind in {name}" for name, amount in status.lags.items() if amount)
    forced = f"{status.forced:,} forced, " if status.forced else ""
    if any(status.shed):
        forced += f"{status.shed[0]:,} messages and {status.shed[1]:,} updates shed, "
    return (
        f"batch {status.batch}: {status.events:,} events ({coming:,.0f}/s), {status.matches:,} matches "
        f"({matching:,.0f}/s), {status.rejected:,} rejected, latency {status.latency(0.5):.2f} s, "
        f"{status.held:,} waiting, {status.late:,} late, {forced}{status.profiles:,} profiles, {status.contexts:,} "
        f"contexts, state {size(status.state_bytes)}, {status.escalations:,} escalations" + (f"; {lag}" if lag else "")
    )


def screen(status: Status, title: str, hint: str) -> Any:
    """The live display: a table for ``rich``."""
    from rich.panel import Panel
    from rich.table import Table

    coming, matching = status.rates()
    grid = Table.grid(padding=(0, 2))
    for _ in range(2):
        grid.add_column(style="dim")
        grid.add_column(justify="right", min_width=16)
    lag = sum(status.lags.values())
    cells = [
        ("events in", f"{status.events:,}", "events/s", f"{coming:,.0f}"),
        ("matches", f"{status.matches:,}", "matches/s", f"{matching:,.0f}"),
        ("batches", f"{status.batches:,}", "last batch", str(status.batch) if status.batch >= 0 else "–"),
        ("latency, median", f"{status.latency(0.5):.2f} s", "95 %", f"{status.latency(0.95):.2f} s"),
        ("lag", f"{lag:,}" if status.lags else "–", "waiting / late", f"{status.held:,} / {status.late:,}"),
        ("profiles", f"{status.profiles:,}", "contexts", f"{status.contexts:,}"),
        ("state", size(status.state_bytes), "escalations", f"{status.escalations:,}"),
        ("rejected", f"{status.rejected:,}", "rebuilt shards", f"{status.loads['rebuilt']:,}"),
    ]
    for row in cells:
        grid.add_row(*row)
    return Panel(grid, title=f"[bold]{title}[/bold]", subtitle=f"{hint} · {status.seconds:,.0f} s", expand=False)


def size(amount: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


# -- Prometheus ----------------------------------------------------------------------------------------------------


class Endpoint:
    """The numbers over HTTP, in the form that Prometheus reads; a context manager."""

    def __init__(self, status: Status, host: str, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(_Collector(status))
        self._server, self._thread = start_http_server(port, host, registry)
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    """Reads the status when it is asked, so that there is one truth."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status
        for name, text, value in (
            ("events", "Events read from the sources", status.events),
            ("matches", "Pairs of message and profile", status.matches),
            ("rejected", "Events rejected with a reason", status.rejected),
            ("late", "Events that came too late for their place in the order, since the checkpoint", status.late),
            ("forced", "Events that went on because too many waited, since the checkpoint", status.forced),
            ("shed_messages", "Messages shed, once per shard, since the checkpoint", status.shed[0]),
            ("shed_updates", "Updates shed, since the checkpoint", status.shed[1]),
            ("batches", "Micro-batches committed", status.batches),
            ("escalations", "Updates that left their safe range in an index", status.escalations),
        ):
            yield CounterMetricFamily(f"tamis_{name}", text, value=value)
        for name, text, value in (
            ("waiting_events", "Events that wait for other streams", status.held),
            ("profiles", "Profiles of all shards", status.profiles),
            ("contexts", "Contexts of all shards", status.contexts),
            ("state_bytes", "Snapshots and deltas in the state store", status.state_bytes),
            ("last_batch", "The last micro-batch", status.batch),
        ):
            yield GaugeMetricFamily(f"tamis_{name}", text, value=value)
        latency = GaugeMetricFamily(
            "tamis_batch_seconds", "Seconds of the last 100 micro-batches with events", labels=["quantile"]
        )
        for share in (0.5, 0.95, 1.0):
            latency.add_metric([str(share)], status.latency(share))
        yield latency
        lag = GaugeMetricFamily("tamis_lag", "Files or records that are there and not read yet", labels=["source"])
        for source, amount in dict(status.lags).items():
            lag.add_metric([source], amount)
        yield lag
        loads = CounterMetricFamily("tamis_shard_loads", "How shards came into their worker", labels=["how"])
        for how, amount in sorted(dict(status.loads).items()):
            loads.add_metric([how], amount)
        yield loads
