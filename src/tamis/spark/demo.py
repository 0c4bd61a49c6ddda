"""The warehouse story of the AGILE paper on Spark, from files to deliveries.

Every warehouse is a context with a place and the stock of the one item it keeps; its profile matches the orders that it
can deliver (enough in stock, close enough to the customer), and on a match the goods leave the stock. Orders and
restocks are JSON lines in one order; files arrive one after the other, each as soon as Spark has taken the one before.
Guarantees the same deliveries for the same seed, and compares those of a sample of the warehouses, and what is left in
their stock, with the naive reference filter. Clears its folder first, if the folder is its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tamis.engine.shard import Shard
from tamis.errors import UsageError
from tamis.model.events import EventLog
from tamis.reference import ReferenceFilter

from . import inspect, reports, sinks
from .session import builder, end
from .stream import MatchStream, match_stream

ITEMS: Final = ("bolt", "nut", "washer", "hinge", "bracket", "spring", "gasket", "bearing", "valve", "gear")
PROFILE: Final = (
    "type == 'order' and item == {item} and quantity <= ctx.stock "
    "and abs(x - ctx.x) <= {reach} and abs(y - ctx.y) <= {reach}"
)
ON_MATCH: Final = "ctx.stock -= quantity"
SIDE: Final = 1_000.0  # the map is a square, in kilometres
NEAR: Final = 3.0  # warehouses with the item that reach a customer, on average
DAY: Final = 1_118_620_800_000  # 13 June 2005, 0:00 UTC, the day before SIGMOD began, in milliseconds
PER_FILE: Final = 50_000
WHOLE: Final = 8  # warehouses whose reference sees every event there was
NEARBY: Final = 500  # warehouses whose reference sees the orders of their item within three times their reach
SCHEMA: Final = (
    "seq bigint, event string, context string, attribute string, value bigint, "
    "message struct<type: string, item: string, quantity: bigint, x: double, y: double, placed: bigint>, "
    "_corrupt_record string"
)
_OWN: Final = "_tamis-demo"


# -- the story -------------------------------------------------------------------------------------------------


class Places(NamedTuple):
    """Where everything lies."""

    root: Path

    @property
    def outbox(self) -> Path:
        """Events that have not been sent."""
        return self.root / "outbox"

    @property
    def events(self) -> Path:
        """Events that Spark may read."""
        return self.root / "events"

    @property
    def profiles(self) -> Path:
        """Profiles: id, context, item, reach."""
        return self.root / "profiles.parquet"

    @property
    def contexts(self) -> Path:
        """The start: context, attribute, value."""
        return self.root / "contexts.parquet"

    @property
    def checkpoint(self) -> Path:
        """Spark's own."""
        return self.root / "checkpoint"

    @property
    def deliveries(self) -> Path:
        """What came out."""
        return self.root / "deliveries"

    @property
    def rejected(self) -> Path:
        """What was refused, with reasons."""
        return self.root / "rejected"

    @property
    def page(self) -> Path:
        """The summary."""
        return self.root / "summary.html"

    @property
    def log(self) -> Path:
        """What Spark says."""
        return self.root / "spark.log"

    def clear(self) -> None:
        """An empty folder; one with anything else in it is refused."""
        if self.root.exists() and any(self.root.iterdir()) and not (self.root / _OWN).exists():
            raise UsageError(f"{self.root}: is not empty and not of an earlier demo; choose another folder")
        shutil.rmtree(self.root, ignore_errors=True)
        for path in (self.outbox, self.events):
            path.mkdir(parents=True)
        (self.root / _OWN).touch()


def tell(places: Places, warehouses: int, events: int, seed: int, advance: Callable[[int], None]) -> list[int]:
    """Writes the files; one event in four is a restock, some orders are wrong. Returns the events of every file."""
    random = np.random.default_rng(seed)
    names = np.array([f"warehouse-{n:06d}" for n in range(warehouses)], object)
    mean = min(SIDE / 2, SIDE * float(np.sqrt(NEAR * len(ITEMS) / warehouses)) / 2)
    reach = random.uniform(0.5 * mean, 1.5 * mean, warehouses).round(2)
    kept = np.array(ITEMS, object)[random.integers(0, len(ITEMS), warehouses)]
    pq.write_table(pa.table({"id": names, "context": names, "item": kept, "reach": reach}), places.profiles)
    start = {"stock": random.integers(0, 60, warehouses).astype(float)}
    start |= {axis: random.uniform(0, SIDE, warehouses).round(2) for axis in ("x", "y")}
    columns = {
        "context": np.tile(names, len(start)),
        "attribute": np.repeat(np.array(list(start), object), warehouses),
        "value": np.concatenate(list(start.values())),
    }
    pq.write_table(pa.table(columns), places.contexts)
    times = _times(random, events)
    counts = []
    for number, first in enumerate(range(0, events, PER_FILE)):
        count = min(PER_FILE, events - first)
        lines = _lines(random, names, first, times[first : first + count])
        (places.outbox / f"{number:05d}.json").write_text("".join(lines), encoding="utf-8")
        counts.append(count)
        advance(count)
    return counts


def _times(random: np.random.Generator, events: int) -> NDArray[np.int64]:
    """Moments of one day in order, most of them around eleven and around seven in the evening."""
    peaks = random.choice([11.0, 19.0], events, p=[0.6, 0.4])
    hours = np.where(random.random(events) < 0.25, random.uniform(0, 24, events), random.normal(peaks, 2.2) % 24)
    return DAY + np.sort((hours * 3_600_000).astype(np.int64))


def _lines(random: np.random.Generator, names: NDArray[Any], first: int, times: NDArray[np.int64]) -> Iterator[str]:
    """Events as JSON lines, numbered from ``first``."""
    count = len(times)
    restock = (random.random(count) < 0.25).tolist()
    whom = names[random.integers(0, len(names), count)].tolist()
    refill = random.integers(20, 100, count).tolist()
    item = random.integers(0, len(ITEMS), count).tolist()
    quantity: list[Any] = random.integers(1, 13, count).tolist()
    for k in np.flatnonzero(random.random(count) < 5e-5).tolist():
        quantity[k] = '"seven"'  # somebody always spells it out
    x, y = (random.uniform(0, SIDE, count).round(2).tolist() for _ in range(2))
    for k, placed in enumerate(times.tolist()):
        if restock[k]:
            yield (
                f'{{"seq":{first + k},"event":"update","context":"{whom[k]}",'
                f'"attribute":"stock","value":{refill[k]}}}\n'
            )
        else:
            yield (
                f'{{"seq":{first + k},"event":"message","message":{{"type":"order","item":"{ITEMS[item[k]]}",'
                f'"quantity":{quantity[k]},"x":{x[k]},"y":{y[k]},"placed":{placed}}}}}\n'
            )


# -- the pipeline ----------------------------------------------------------------------------------------------


def pipeline(spark: SparkSession, places: Places, shards: int) -> MatchStream:
    """The stream: files of events, a table of profiles, a table of contexts."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(places.events))
    arrived = F.unix_micros("_metadata.file_modification_time").alias("arrived")
    return match_stream(
        events=events.select("*", arrived, F.col("_metadata.file_name").alias("_source")),
        profiles=spark.read.parquet(str(places.profiles)),
        contexts=spark.read.parquet(str(places.contexts)),
        profile=PROFILE,
        on_match=ON_MATCH,
        message_id=("seq", "placed", "arrived"),
        shards=shards,
    )


@dataclass
class Tally:
    """A sink for figures: what is known of every micro-batch, and when it was done."""

    batches: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    done: dict[int, float] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """A batch that comes twice counts once."""
        self.batches[batch] = [json.loads(row.figures) for row in frame.collect()]
        self.done[batch] = time.monotonic()

    def total(self, name: str) -> int:
        """The sum over shards and batches."""
        return sum(int(one.get(name, 0)) for found in self.batches.values() for one in found)


class Feeder(threading.Thread):
    """Sends the next file when Spark has taken the one before, so that they cannot be read in another order."""

    def __init__(self, places: Places) -> None:
        super().__init__(name="feeder", daemon=True)
        self._places, self._ended = places, threading.Event()
        self.sent = 0

    def run(self) -> None:
        """All files, or until :meth:`end`."""
        log = self._places.checkpoint / "sources" / "0"
        for path in sorted(self._places.outbox.iterdir()):
            while not self._ended.is_set() and self._taken(log) < self.sent:
                time.sleep(0.02)
            if self._ended.is_set():
                return
            os.utime(path)
            path.rename(self._places.events / path.name)
            self.sent += 1

    @staticmethod
    def _taken(log: Path) -> int:
        """Spark's file source writes down every file before it reads it: one entry per micro-batch here."""
        return max((int(path.name.partition(".")[0]) + 1 for path in log.glob("[0-9]*")), default=0)

    def end(self) -> None:
        """No more files."""
        self._ended.set()
        self.join()


def play(stream: MatchStream, places: Places, counts: list[int], show: Callable[[Tally], None]) -> Tally:
    """The stream over all files; ``show`` is called a few times a second."""
    tally, feeder = Tally(), Feeder(places)
    query = stream.start(
        str(places.checkpoint),
        matches=sinks.Parquet(str(places.deliveries)),
        rejected=sinks.Parquet(str(places.rejected)),
        figures=tally,
    )
    feeder.start()
    try:
        while len(tally.done) < len(counts):
            if not query.isActive:
                query.awaitTermination()  # raises what went wrong
                raise UsageError("the stream was stopped before its end")
            time.sleep(0.2)
            show(tally)
        query.processAllAvailable()  # the last micro-batch is written, but maybe not yet committed
    finally:
        feeder.end()
        query.stop()
    show(tally)
    return tally


# -- the check -------------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    """What the reference says about some warehouses."""

    deliveries: list[tuple[int, str]]
    stock: dict[str, float]
    events: int


@dataclass(frozen=True)
class Check:
    """The comparison of a sample with the reference."""

    warehouses: int
    deliveries: int
    events: int
    wrong: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether everything was equal."""
        return not self.wrong


def check(spark: SparkSession, places: Places, shards: int, seed: int, whole: int, nearby: int) -> Check:
    """A sample of the warehouses on the reference, which reads the files itself, on Spark's cores."""
    profiles = pq.read_table(places.profiles).to_pylist()
    random = np.random.default_rng(seed + 1)
    chosen = random.permutation(len(profiles))[: whole + nearby].tolist()
    start: dict[str, dict[str, float]] = {profiles[k]["context"]: {} for k in chosen}
    for row in pq.read_table(places.contexts, filters=[("context", "in", list(start))]).to_pylist():
        start[row["context"]][row["attribute"]] = row["value"]
    sample = [{**profiles[k], **start[profiles[k]["context"]]} for k in chosen]
    tasks = [(sample[:whole][part::shards], sample[whole:][part::shards]) for part in range(shards)]
    events = str(places.events)
    answers = spark.sparkContext.parallelize(tasks, shards).map(lambda task: replay(events, *task)).collect()
    names = list(start)
    found = spark.read.parquet(str(places.deliveries)).where(F.col("profile").isin(names))
    got = sorted((row.seq, row.profile) for row in found.select("seq", "profile").collect())
    left = _stock(inspect.shards(spark, str(places.checkpoint)), set(names))
    expected = sorted(pair for one in answers for pair in one.deliveries)
    stock = {name: value for one in answers for name, value in one.stock.items()}
    wrong = [f"delivery {pair} is missing" for pair in sorted(set(expected) - set(got))]
    wrong += [f"delivery {pair} should not be" for pair in sorted(set(got) - set(expected))]
    wrong += ["some deliveries came twice"] if len(set(got)) < len(got) else []
    wrong += [
        f"{name}: stock {left.get(name)}, not {value}" for name, value in stock.items() if left.get(name) != value
    ]
    return Check(len(sample), len(expected), sum(one.events for one in answers), tuple(wrong))


def _stock(shards: Iterable[Shard], names: set[str]) -> dict[str, float]:
    return {name: values["stock"] for shard in shards for name, values in shard.contexts() if name in names}


def replay(folder: str, whole: list[dict[str, Any]], nearby: list[dict[str, Any]]) -> Expected:
    """The reference over the files: all events for some warehouses, for others those of their surroundings."""
    events = [json.loads(line) for path in sorted(Path(folder).glob("*.json")) for line in path.open(encoding="utf-8")]
    found = [_reference(events, whole)] if whole else []
    orders = [event for event in events if event["event"] == "message"]
    where = np.array([[order["message"]["x"], order["message"]["y"]] for order in orders]).reshape(-1, 2)
    restocks: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event["event"] == "update":
            restocks.setdefault(event["context"], []).append(event)
    for one in nearby:
        distance = np.abs(where - [one["x"], one["y"]]).max(axis=1)
        close = [orders[k] for k in np.flatnonzero(distance <= 3 * one["reach"]).tolist()]
        mine = [order for order in close if order["message"]["item"] == one["item"]]
        mine += restocks.get(one["context"], [])
        found.append(_reference(sorted(mine, key=lambda event: int(event["seq"])), [one]))
    return Expected(
        [pair for one in found for pair in one.deliveries],
        {name: value for one in found for name, value in one.stock.items()},
        sum(one.events for one in found),
    )


def _reference(events: list[dict[str, Any]], sample: list[dict[str, Any]]) -> Expected:
    reference = ReferenceFilter()
    table = {name: [one[name] for one in sample] for name in ("id", "context", "item", "reach")}
    reference.subscribe_many(PROFILE, table, on_match=ON_MATCH)
    names = {one["context"] for one in sample}
    for one in sample:
        reference.update(one["context"], stock=one["stock"], x=one["x"], y=one["y"])
    log, numbers, count = EventLog.builder(), [], 0
    for event in events:
        if event["event"] == "message":
            log.message({name: value for name, value in event["message"].items() if name != "placed"})
            numbers.append(event["seq"])
        elif event["context"] in names:
            log.update(event["context"], {event["attribute"]: event["value"]})
        else:
            continue
        count += 1
    found = reference.process(log.build())
    deliveries = [(numbers[row], str(id)) for row, id in found]
    return Expected(deliveries, {name: reference.context(name)["stock"] for name in names}, count)


# -- for people ------------------------------------------------------------------------------------------------


class Screen:
    """The live display: bars for the steps, a table for the stream."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bars, self._figures = Progress(*columns, console=console), Table(box=None)
        self._live = Live(Group(self.bars), console=console, refresh_per_second=5)

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def step(self, name: str, total: int) -> Callable[[int], None]:
        """A new bar; call the result to move it on."""
        task = self.bars.add_task(name, total=total)

        def advance(by: int) -> None:
            self.bars.advance(task, by)

        return advance

    def stream(self, counts: list[int]) -> Callable[[Tally], None]:
        """The bar and the table of the stream."""
        task = self.bars.add_task("events", total=sum(counts))

        def show(tally: Tally) -> None:
            self.bars.update(task, completed=sum(counts[: len(tally.done)]))
            self._live.update(Group(self.bars, Panel(_figures(tally, counts), title="stream", title_align="left")))

        return show


def _figures(tally: Tally, counts: list[int]) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=False)
    if not tally.done:
        table.add_row("loading profiles and contexts into Spark's state store …")
        return table
    last = max(tally.done)
    shards = tally.batches[last]
    seconds = tally.done[last] - tally.done[last - 1] if last - 1 in tally.done else None
    rate = f"{counts[last] / seconds:,.0f} events/s" if seconds else "first batch"
    state = sum(one.get("delta_bytes", 0) + one.get("snapshot_bytes", 0) for one in shards)
    table.add_row("micro-batch", f"{last + 1} of {len(counts)}", "rate", rate)
    table.add_row("deliveries", f"{tally.total('matches'):,}", "rejected", f"{tally.total('rejected'):,}")
    table.add_row(
        "replay",
        " / ".join(f"{one['replay_ms']:,.0f}" for one in shards) + " ms per shard",
        "state written",
        f"{state / 1e6:,.1f} MB",
    )
    table.add_row(
        "profiles", f"{sum(one.get('profiles', 0) for one in shards):,}",
        "index", ", ".join(one["cache"] for one in shards),
    )  # fmt: skip
    return table


def rates(tally: Tally, counts: list[int]) -> tuple[list[int], list[float]]:
    """Events per second of every micro-batch but the first, which also loads and warms up."""
    batches = sorted(tally.done)[1:]
    return batches, [counts[k] / (tally.done[k] - tally.done[k - 1]) for k in batches]


def rate_plot(batches: list[int], rate: list[float]) -> bytes:
    """Events per second."""
    from matplotlib.ticker import MaxNLocator

    drawn, axes = reports.figure(height=2.4)
    axes.bar(batches, rate, color=reports.TEAL, width=0.86)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="micro-batch", ylabel="events per second")
    axes.grid(visible=False, axis="x")
    return reports.svg(drawn)


def delivery_report(spark: SparkSession, places: Places) -> reports.Report:
    """The report of a demo; hours are those of the story, latency is from the arrival of a file to the delivery."""
    log = reports.read(spark, str(places.deliveries))
    log = log.withColumns({"arrived": F.timestamp_micros("arrived"), "placed": F.timestamp_millis("placed")})
    return reports.Report(log, came="arrived", hour="placed", profiles=spark.read.parquet(str(places.profiles)))


def summary(
    spark: SparkSession, places: Places, tally: Tally, counts: list[int], checked: Check, sizes: Mapping[str, str]
) -> Path:
    """The page."""
    report = delivery_report(spark, places)
    refused = spark.read.parquet(str(places.rejected)) if tally.total("rejected") else None
    sections = reports.sections(report)
    batches, rate = rates(tally, counts)
    if batches:
        text = f"Micro-batches of {PER_FILE:,} events; the first, which also loads the profiles, is left out."
        sections.insert(0, reports.Section("Throughput", text, rate_plot(batches, rate)))
    if refused is not None:
        rows = refused.orderBy("seq").limit(10).select("seq", "event", "source", "reason").collect()
        listed = [[row.seq, row.event, row.source, row.reason] for row in rows]
        sections.append(reports.Section("Rejected", "", table=(["seq", "event", "file", "reason"], listed)))
    text = (
        "Warehouses take the orders that they can deliver: the item, enough in stock, close enough. The goods leave "
        "the stock, restocks come in between, all in one order. "
        f"Checked with the reference filter: {verdict(checked)}."
    )
    facts = {**sizes, **reports.facts(report)}
    return reports.Page("The warehouse story on Spark", text, facts, sections).write(places.page)


def verdict(checked: Check) -> str:
    """The outcome of the check in words."""
    if checked.same:
        return f"{checked.warehouses:,} warehouses and their {checked.deliveries:,} deliveries are equal"
    return f"{len(checked.wrong):,} differences, the first: {checked.wrong[0]}"


def session(cores: int, log: Path) -> SparkSession:
    """Spark on this machine; what it and its workers have to say goes into a file, not across the display."""
    made = (
        builder(f"local[{cores}]", "tamis-demo")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
    )
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)  # Java inherits it
        spark: SparkSession = made.getOrCreate()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(
    folder: str | Path,
    warehouses: int = 100_000,
    events: int = 1_000_000,
    seed: int = 7,
    shards: int = 2,
    sample: tuple[int, int] = (WHOLE, NEARBY),
    spark: SparkSession | None = None,
) -> Check:
    """The story on the terminal; ends with an error when the reference disagrees."""
    clock = time.monotonic()
    console, places = Console(), Places(Path(folder).absolute())
    places.clear()
    console.print(
        Panel(
            f"{warehouses:,} warehouses, each a context with a profile, and {events:,} events in one order: orders and "
            f"restocks.\nFiles ─► Spark, {shards} shards ─► deliveries, exactly once.\n\n{PROFILE}\n"
            f"on a match: {ON_MATCH}",
            title="tamis: the warehouse story on Spark",
        ),
        highlight=False,
    )
    own = spark is None
    took: dict[str, float] = {}

    def lap(name: str, last: list[float] = [clock]) -> None:  # noqa: B006
        now = time.monotonic()
        took[name], last[0] = now - last[0], now

    spark = spark or session(shards, places.log)
    try:
        lap("Spark's start")
        with Screen(console) as screen:
            counts = tell(places, warehouses, events, seed, screen.step("writing events", events))
            lap("writing the events")
            tally = play(pipeline(spark, places, shards), places, counts, screen.stream(counts))
            lap("stream")
            advance = screen.step("reference check", 1)
            checked = check(spark, places, shards, seed, *sample)
            advance(1)
            lap("reference check")
            advance = screen.step("summary", 1)
            sizes = {"profiles": f"{warehouses:,}", "events": f"{events:,}"}
            _, rate = rates(tally, counts)
            if rate:
                sizes["events/s, median"] = f"{sorted(rate)[len(rate) // 2]:,.0f}"
            page = summary(spark, places, tally, counts, checked, sizes)
            advance(1)
            lap("summary")
    finally:
        if own:
            end(spark)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in sizes.items():
        table.add_row(name, text)
    table.add_row("deliveries", f"{tally.total('matches'):,}")
    table.add_row("rejected", f"{tally.total('rejected'):,}")
    table.add_row("reference filter", Text(verdict(checked), "green" if checked.same else "red"))
    table.add_row("time", ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items()))
    table.add_row("in all", f"{time.monotonic() - clock:.0f} s")
    console.print(table)
    console.print(f"summary: {page}", soft_wrap=True, highlight=False)  # whole, however narrow the terminal
    if not checked.same:
        raise SystemExit("the deliveries and the reference filter disagree: please report this as a bug")
    return checked
