"""Contenders on the same logs: what is timed, how long, and that all of them give the same matches.

Guarantees that only ``Filter.process`` and the reading of ``stats`` (which ends deferred work) run on the clock; that
contenders take turns log by log, so that a busy neighbour slows all of them; and that every log's matches are compared.
What only warms up runs on all cores. Filters of one thread are taken for granted.
Refuses to know what the logs are about.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numba.core import event as numba_event
from numpy.typing import NDArray

from tamis import EventLog, Filter, Matches

from .contenders import Options, make
from .experiment import Inexact, NotMeasured

T = TypeVar("T")
R = TypeVar("R")
COUNTERS: Final[tuple[str, ...]] = ("postfiltered", "false_positives", "escalations", "deescalations", "index_updates")
LONGEST: Final = 2_500_000  # updates in one log of a steady race
MOST: Final = 1_000  # messages in one log of a steady race
SETTLED: Final = 0.1  # two stretches of a warm-up that differ by less have settled
PATIENCE: Final = 5  # times the seconds of a measurement: that long a contender warms up at most
SLICES: Final = 6  # logs that the slowest contender measures, about


class Workload(Protocol):
    """Where profiles and logs come from."""

    profiles: int

    def subscribe(self, filter: Filter) -> None:
        """Contexts and profiles into a filter; ids are 0 to profiles - 1."""

    def events(self, messages: int, updates: float) -> EventLog:
        """The next log, with that many updates before every message."""

    def now(self) -> EventLog | None:
        """What all contexts hold now, as updates; None: that depends on the matches of all logs so far."""

    def last(self) -> NDArray[np.int64] | None:
        """The ids that match the last message of the last log, sorted, by brute force; None: not known."""


@dataclass(frozen=True)
class Lap:
    """One log through one filter; ``counts`` are what the filter's counters grew by."""

    seconds: float
    messages: int
    updates: int
    counts: Mapping[str, int]


class Race:
    """The filters of all contenders, loaded alike; each log goes through those that are still running."""

    def __init__(self, contenders: Mapping[str, Options], workload: Workload) -> None:
        self.workload = workload
        # All filters are made before the first is loaded: a name that is refused costs no time.
        self.filters = {name: make(name, options) for name, options in contenders.items()}
        _side_by_side(workload.subscribe, self.filters.values())
        self.warming = [
            name
            for name, options in contenders.items()
            if options.get("strategy", "agile") == "agile" or workload.now() is None
        ]
        self._logs = 0
        self._before = {name: filter.stats for name, filter in self.filters.items()}

    def catch_up(self) -> None:
        """Bring the contexts of filters that do not adapt, and so did not warm up, to where the others are."""
        log = self.workload.now()
        if log is not None:
            idle = self.filters.keys() - set(self.warming)
            _side_by_side(lambda name: self.filters[name].process(log), idle)
            self._before |= {name: self.filters[name].stats for name in idle}

    def play(self, messages: int, updates: float) -> dict[str, Lap]:
        """The next log through every filter in turn."""
        turn = self._logs % len(self.filters)  # who is first reads the log from memory, the others from the cache
        self._logs += 1
        names = list(self.filters)
        return self._compared(messages, updates, names[turn:] + names[:turn], map)

    def warm_up(self, messages: int, updates: float) -> dict[str, Lap]:
        """The next log through all filters that adapt, side by side."""
        return self._compared(messages, updates, self.warming, _side_by_side)

    def _compared(
        self, messages: int, updates: float, names: Iterable[str], each: Callable[..., Iterable[Any]]
    ) -> dict[str, Lap]:
        """The laps of some filters, which ``each`` runs as ``map`` does."""
        log = self.workload.events(messages, updates)

        def run(name: str) -> tuple[Lap, Matches, tuple[int, int]]:
            matches, after, seconds = timed(self.filters[name], log)
            if len(matches.rejected):
                raise Inexact(f"{name} rejected {matches.rejected[0]}")
            before, self._before[name] = self._before[name], after
            counts = {key: after[key] - before[key] for key in COUNTERS if key in after and key in before}
            return Lap(seconds, messages, after["updates"] - before["updates"], counts), matches, digest(matches)

        found: tuple[str, Matches, tuple[int, int]] | None = None
        laps = {}
        for name, (lap, matches, mark) in zip(names, each(run, names), strict=True):
            laps[name] = lap
            if found is None:
                found = (name, matches, mark)
                self._check_last(matches, messages, name)
            elif found[2] != mark:
                raise Inexact(self._difference(found[0], self._keys(found[1]), name, self._keys(matches)))
        return laps

    def leave(self, name: str) -> None:
        """A contender that is done; its filter is given back."""
        del self.filters[name], self._before[name]
        gc.collect()  # a filter and its parts know each other, and a gigabyte of arrays looks small to the collector

    def _keys(self, matches: Matches) -> NDArray[np.int64]:
        """Message and profile of every match as one sorted number."""
        return np.sort(matches.message * self.workload.profiles + _ids(matches))

    def _check_last(self, matches: Matches, messages: int, name: str) -> None:
        expected = self.workload.last()
        if expected is None:
            return
        before = (messages - 1) * self.workload.profiles
        wanted = before + expected
        mine = before + np.sort(_ids(matches)[np.searchsorted(matches.message, messages - 1) :])
        if not np.array_equal(mine, wanted):
            raise Inexact(self._difference("brute force", wanted, name, mine))

    def _difference(self, one: str, left: NDArray[np.int64], two: str, right: NDArray[np.int64]) -> str:
        def pairs(keys: NDArray[np.int64]) -> str:
            shown = [f"({key // self.workload.profiles}, {key % self.workload.profiles})" for key in keys[:5].tolist()]
            return ", ".join(shown) or "none"

        return (
            f"{one} found {len(left):,} matches, {two} {len(right):,}; (message, profile) of {one} only: "
            f"{pairs(np.setdiff1d(left, right))}; of {two} only: {pairs(np.setdiff1d(right, left))}"
        )


def _side_by_side(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """As ``map``, on all cores: for what is not measured."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))


def _ids(matches: Matches) -> NDArray[np.int64]:
    found: NDArray[np.int64] = (
        matches.to_arrow().column("profile").to_numpy() if len(matches) else np.empty(0, np.int64)
    )
    return found


def digest(matches: Matches) -> tuple[int, int]:
    """The same for the same pairs, in whatever order the profiles of a message come: their number, a sum of hashes."""
    ids = _ids(matches)
    total = 0
    for first in range(0, len(ids), 1 << 20):
        part = slice(first, first + (1 << 20))
        mixed = matches.message[part].astype(np.uint64) << np.uint64(32) ^ ids[part].astype(np.uint64)
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            mixed ^= mixed >> np.uint64(30)
            mixed *= np.uint64(factor)
        total += int((mixed ^ mixed >> np.uint64(31)).sum(dtype=np.uint64))
    return len(ids), total & 0xFFFFFFFFFFFFFFFF


def timed(filter: Filter, log: EventLog) -> tuple[Matches, dict[str, int], float]:
    """Matches, counters afterwards, seconds of this thread: work of others on this machine does not count.

    Nor do compilers, and the garbage collector waits meanwhile.
    """
    gc.disable()  # a collection before every log would take longer than most logs
    try:
        with _Compiling() as compiling:
            start = time.thread_time()
            matches = filter.process(log)
            stats = filter.stats
            seconds = time.thread_time() - start
        return matches, stats, seconds - compiling.seconds
    finally:
        gc.enable()


class _Compiling(numba_event.Listener):
    """How long kernels were compiled or read from the disk meanwhile: that happens once per machine or process."""

    def __enter__(self) -> _Compiling:
        self.seconds, self._start, self._depth = 0.0, 0.0, 0
        numba_event.register("numba:compiler_lock", self)
        return self

    def __exit__(self, *_: object) -> None:
        numba_event.unregister("numba:compiler_lock", self)

    def on_start(self, event: object) -> None:
        self._depth += 1
        if self._depth == 1:
            self._start = time.thread_time()

    def on_end(self, event: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.thread_time() - self._start


# -- steady state ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """What a contender did at one point: ``counts`` are per message, ``warm_up`` how the warm-up went."""

    rate: float
    spread: float
    seconds: float
    messages: int
    updates: int
    logs: int
    counts: Mapping[str, float]
    warm_up: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; figures to four digits."""
        return {
            "messages per second": rounded(self.rate),
            "spread": rounded(self.spread),
            "seconds": rounded(self.seconds),
            "messages": self.messages,
            "updates": self.updates,
            "logs": self.logs,
            "per message": {name: rounded(value) for name, value in self.counts.items()},
            "warm-up": dict(self.warm_up),
        }


def rounded(value: float) -> float:
    """Four digits: more would be noise."""
    return float(f"{value:.4g}")


@dataclass(frozen=True)
class Plan:
    """How long a steady race lasts, per contender.

    Only contenders that adapt need to warm up, the others are the same at any time: ``warm`` messages as in the paper,
    or, where updates are many, ``enough`` of them (every value has moved several times); then until the speed in the
    last quarter is within a tenth of that in the quarter before; or five times ``seconds``. Then ``messages`` are
    measured, or fewer: at most ``seconds`` and ``most`` updates, at least three logs.
    """

    seconds: float
    messages: int = 10_000
    warm: int = 500
    enough: float = float("inf")
    most: int = 50_000_000


def _pace(laps: Sequence[Lap]) -> float:
    """Seconds per message."""
    return sum(lap.seconds for lap in laps) / sum(lap.messages for lap in laps)


@dataclass
class _Progress:
    """How far one contender is."""

    plan: Plan
    warm: list[Lap] = field(default_factory=list)
    laps: list[Lap] = field(default_factory=list)
    ended: str = "not needed"

    def warm_up(self, lap: Lap) -> bool:
        """One log more; whether that is enough."""
        self.warm.append(lap)
        done, updates = sum(lap.messages for lap in self.warm), sum(lap.updates for lap in self.warm)
        self.ended = "out of time"
        quarter = len(self.warm) // 4
        if quarter and (done >= self.plan.warm or updates >= self.plan.enough):
            last, before = _pace(self.warm[-quarter:]), _pace(self.warm[-2 * quarter : -quarter])
            if abs(last - before) < SETTLED * before:
                self.ended = "settled"
        return self.ended == "settled" or sum(lap.seconds for lap in self.warm) >= PATIENCE * self.plan.seconds

    @property
    def done(self) -> bool:
        if len(self.laps) < 3:
            return False
        plan = self.plan
        return (
            sum(lap.seconds for lap in self.laps) >= plan.seconds
            or sum(lap.messages for lap in self.laps) >= plan.messages
            or sum(lap.updates for lap in self.laps) >= plan.most
        )

    def standing(self) -> Standing:
        seconds, messages = sum(lap.seconds for lap in self.laps), sum(lap.messages for lap in self.laps)
        each = [lap.seconds / lap.messages for lap in self.laps]
        names = self.laps[0].counts
        counts = {name: sum(lap.counts[name] for lap in self.laps) / messages for name in names}
        warm_up = {
            "messages": sum(lap.messages for lap in self.warm),
            "updates": sum(lap.updates for lap in self.warm),
            "ended": self.ended,
        }
        spread = (max(each) - min(each)) / 2 / statistics.median(each)
        updates = sum(lap.updates for lap in self.laps)
        return Standing(messages / seconds, spread, seconds, messages, updates, len(self.laps), counts, warm_up)


def steady(race: Race, updates: float, plan: Plan, done: Callable[[str], None]) -> dict[str, Standing]:
    """Messages per second of every contender at a fixed rate of updates per message; ``done(name)`` as each ends.

    A log is as long as the slowest contender that still runs takes for a sixth of its seconds: the slowest measures a
    few messages at least, and the others go on until they have used theirs.
    """
    race.play(2, updates)  # kernels compile, or come from the disk
    running = {name: _Progress(plan) for name in race.filters}
    standings: dict[str, Standing] = {}
    size = 2
    warm: set[str] = set()
    while len(warm) < len(race.warming):  # all of them to the end, so that their contexts stay the same
        laps = race.warm_up(size, updates)
        warm |= {name for name in race.warming if running[name].warm_up(laps[name])}
        size = _size(plan, updates, size, laps.values())
    race.catch_up()
    size = 2
    while running:
        laps = race.play(size, updates)
        for name, lap in laps.items():
            running[name].laps.append(lap)
        for name in [name for name, one in running.items() if one.done]:
            standings[name] = running.pop(name).standing()
            race.leave(name)
            done(name)
        size = _size(plan, updates, size, (lap for name, lap in laps.items() if name in running))
    return standings


def _size(plan: Plan, updates: float, last: int, laps: Iterable[Lap]) -> int:
    """Messages of the next log, after one of ``last``: a slice of the slowest contender's seconds."""
    slowest = max((lap.seconds / lap.messages for lap in laps), default=np.inf)
    longest = LONGEST / updates if updates else MOST
    return int(max(1, min(plan.seconds / SLICES / slowest, 4 * last, MOST, longest)))


# -- a grid of points ------------------------------------------------------------------------------------------


class Grid:
    """Contender × point; asks for what is not there raise :class:`NotMeasured`."""

    def __init__(self, parameter: str, points: Sequence[float]) -> None:
        self.parameter, self.points = parameter, tuple(points)
        self.standings: dict[tuple[str, float], Standing] = {}

    def at(self, name: str, point: float) -> Standing:
        """What a contender did at a point."""
        found = self.standings.get((name, point))
        if found is None:
            raise NotMeasured(f"{name} was not measured at {self.parameter} = {point:,g}")
        return found

    def rate(self, name: str, point: float) -> float:
        """Messages per second."""
        return self.at(name, point).rate

    def best(self, names: Sequence[str], point: float) -> float:
        """The most messages per second among several contenders, all of which must be there."""
        return max(self.rate(name, point) for name in names)

    def count(self, name: str, point: float, counter: str) -> float:
        """A counter per message."""
        found = self.at(name, point).counts.get(counter)
        if found is None:
            raise NotMeasured(f"{name} has no counter {counter!r}")
        return found

    def mean(self, name: str) -> float:
        """The geometric mean of messages per second over all points."""
        return statistics.geometric_mean([self.rate(name, point) for point in self.points])

    def names(self) -> list[str]:
        """The contenders that were measured, in order."""
        return list(dict.fromkeys(name for name, _ in self.standings))

    def series(self, name: str, value: Callable[[Standing], float | None]) -> list[float | None]:
        """One value per point; None where there is none."""
        found = [self.standings.get((name, point)) for point in self.points]
        return [None if one is None else value(one) for one in found]

    def to_list(self) -> list[dict[str, Any]]:
        """Plain values, one entry per contender and point."""
        return [
            {"contender": name, self.parameter: point, **standing.to_dict()}
            for (name, point), standing in self.standings.items()
        ]
