"""Batching (paper 002): what to put into a batch, how large a minibatch should be, what it costs, how long it may take.

How a filter processes batches is its own business (``Filter(batching=...)``), and always exact. Here is what surrounds
it: the batch control over an input queue, the tuner that finds the size of minibatches by hill climbing, the cost model
and the latency model. Guarantees that nothing offered is lost or taken twice, and that the order of messages is kept.
Refuses to know sockets and clocks: time is an argument.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tamis.engine.filter import Filter
from tamis.errors import UsageError
from tamis.model.batching import (
    FULL,
    FULL_MIX,
    MINI,
    MINI_MIX,
    STRATEGIES,
    UNBATCHED,
    Batching,
    Grouping,
    by_value,
    fixed_number,
    fixed_size,
)
from tamis.model.events import EventLog
from tamis.model.matches import Matches

__all__ = [
    "FULL",
    "FULL_MIX",
    "MINI",
    "MINI_MIX",
    "STRATEGIES",
    "UNBATCHED",
    "BatchControl",
    "Batching",
    "CostModel",
    "Grouping",
    "LatencyModel",
    "Tuner",
    "Tuning",
    "by_value",
    "fixed_number",
    "fixed_size",
]


# -- batch control ---------------------------------------------------------------------------------------------


class BatchControl:
    """The input queue of a batching filter: who is free takes what waits, ``size`` messages at most.

    With ``patience`` 0 a quiet stream is not delayed: a message that finds nobody before it is a batch of one. In a
    burst messages pile up while a batch is processed, so the next one is larger, and faster per message: the burst is
    levelled (section 7.3). A larger ``patience`` waits that long for a full batch, by the oldest message.
    """

    def __init__(self, size: int = 2_048, patience: float = 0.0) -> None:
        if size < 1 or not patience >= 0.0:
            raise UsageError(f"batch control: expected size >= 1 and patience >= 0, got {size!r} and {patience!r}")
        self.size, self.patience = size, patience
        self.offered = self.taken = 0
        self._waiting: deque[tuple[Any, float]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, message: Any, now: float) -> None:
        """A message arrives."""
        self._waiting.append((message, now))
        self.offered += 1

    def due(self, now: float) -> bool:
        """Whether there is a batch to take."""
        if not self._waiting:
            return False
        return len(self._waiting) >= self.size or now - self._waiting[0][1] >= self.patience

    def take(self, now: float) -> list[tuple[Any, float]]:
        """The next batch, in the order of arrival, each with the time of its arrival; empty when none is due."""
        if not self.due(now):
            return []
        batch = [self._waiting.popleft() for _ in range(min(self.size, len(self._waiting)))]
        self.taken += len(batch)
        return batch


# -- tuning ----------------------------------------------------------------------------------------------------


class Tuner:
    """Finds the size at which a message costs least, by hill climbing on measured costs (section 6.5).

    Sizes are steps of a ladder, each ``factor`` times the last. A step that makes messages cheaper by more than
    ``noise`` is kept and the next one goes the same way; else the other way is tried, and when neither pays the tuner
    rests for ``rest`` reports before it looks around again, as the workload may have changed. Every size is judged by
    the least of ``trials`` reports: what disturbs a measurement only adds to it.

    >>> tuner = Tuner(start=2)
    >>> for _ in range(60):
    ...     tuner.report(abs(tuner.size - 40) + 10)  # best at 40
    >>> tuner.best
    34
    """

    def __init__(
        self,
        start: int = 16,
        *,
        least: int = 1,
        most: int = 4_096,
        factor: float = 1.5,
        trials: int = 1,
        noise: float = 0.02,
        rest: int = 32,
    ) -> None:
        if not 1 <= least <= start <= most or factor <= 1.0 or trials < 1:
            raise UsageError("tuner: expected 1 <= least <= start <= most, factor > 1 and trials >= 1")
        self._ladder = _ladder(start, least, most, factor)
        self._at = self._ladder.index(start)
        self._trials, self._noise, self._rest = trials, noise, rest
        self._way, self._failed, self._resting = 1, 0, 0
        self._reports: list[float] = []
        self._cost = math.inf
        self._trying: int | None = None

    @property
    def best(self) -> int:
        """The best size known."""
        return self._ladder[self._at]

    @property
    def size(self) -> int:
        """The size to use next."""
        return self._ladder[self._at if self._trying is None else self._trying]

    @property
    def resting(self) -> bool:
        """Whether neither way was better, so that it stays where it is for a while."""
        return self._resting > 0

    def report(self, cost: float) -> None:
        """What a message has cost at :attr:`size`."""
        self._reports.append(cost)
        if len(self._reports) < self._trials:
            return
        found = min(self._reports)
        self._reports.clear()
        if self._trying is None:
            self._cost = found
            self._resting -= 1
        elif found < self._cost * (1.0 - self._noise):
            self._at, self._cost, self._failed = self._trying, found, 0
        else:
            self._way, self._failed = -self._way, self._failed + 1
            if self._failed == 2:
                self._failed, self._resting = 0, self._rest
        self._trying = None if self._resting > 0 else self._next()

    def _next(self) -> int | None:
        """The next step to try; turns around at the ends of the ladder."""
        for _ in range(2):
            at = self._at + self._way
            if 0 <= at < len(self._ladder):
                return at
            self._way = -self._way
        return None


def _ladder(start: int, least: int, most: int, factor: float) -> list[int]:
    steps = {start}
    for way in (factor, 1.0 / factor):
        x = float(start)
        while least <= x <= most:
            steps.add(max(least, min(most, round(x))))
            x *= way
    return sorted(steps)


class Tuning:
    """A filter whose minibatches find their size while it runs: after every log the tuner hears what it cost.

    Works with groupings by size and by number; one by value is scaled as a whole, by size / the tuner's first size.
    """

    def __init__(
        self, filter: Filter, tuner: Tuner | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if filter.batching is None or filter.batching.strategy not in (MINI, MINI_MIX):
            raise UsageError(f"tuning: expected a filter with batching {MINI!r} or {MINI_MIX!r}, got {filter.batching}")
        self.filter, self.tuner, self._clock = filter, tuner or Tuner(), clock
        self._first, self._grouping = self.tuner.size, filter.batching.grouping

    def process(self, log: EventLog) -> Matches:
        """``Filter.process``, with minibatches of the size to be tried."""
        batching = self.filter.batching
        assert batching is not None
        self.filter.batching = replace(batching, grouping=self._sized(self.tuner.size))
        start = self._clock()
        found = self.filter.process(log)
        seconds = self._clock() - start
        if log.messages is not None and log.messages.num_rows:
            self.tuner.report(seconds / log.messages.num_rows)
        return found

    def _sized(self, size: int) -> Grouping:
        if self._grouping.how != "values":
            return replace(self._grouping, count=size)
        scale = size / self._first
        return replace(self._grouping, ranges=tuple(width * scale for width in self._grouping.ranges))


# -- models ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostModel:
    """What a message costs under each strategy, in any unit; the qualitative analysis of section 5 in figures.

    ``selectivity`` is the share of profiles that each of the two indexed attributes lets through for one message.
    ``gather`` is the cost of one index entry in a probe and the merge, ``read`` that of reading a profile's bounds,
    ``test`` that of comparing them with one message, ``lookup`` that of asking the message index for a profile.
    """

    profiles: int
    selectivity: tuple[float, float]
    gather: float = 1.0
    read: float = 30.0
    test: float = 4.0
    lookup: float = 20.0

    def union(self, spread: tuple[float, float]) -> float:
        """The union set of a minibatch whose messages span these shares of the two domains."""
        first, second = (min(1.0, own + wide) for own, wide in zip(self.selectivity, spread, strict=True))
        return self.profiles * first * second

    def cost(self, strategy: str, messages: int = 1, spread: tuple[float, float] = (0.0, 0.0)) -> float:
        """The cost of one of the ``messages`` of a minibatch (of a full batch, for the strategies without)."""
        if strategy not in STRATEGIES:
            raise UsageError(f"cost model: expected one of {', '.join(STRATEGIES)}, got {strategy!r}")
        if strategy == FULL_MIX:
            return self.profiles * ((self.read + self.lookup) / messages + self.test * self.selectivity[0])
        if strategy == UNBATCHED:
            messages, spread = 1, (0.0, 0.0)
        gathered = self.profiles * sum(min(1.0, s + w) for s, w in zip(self.selectivity, spread, strict=True))
        union = self.union(spread)
        shared = self.gather * gathered + self.read * union
        if strategy != MINI_MIX:
            return shared / messages + self.test * union
        second, wide = self.selectivity[1], spread[1]
        met = min(1.0, (second + 1.0 / messages) / (second + wide)) if wide else 1.0
        return (shared + self.lookup * union) / messages + self.test * union * met


@dataclass(frozen=True)
class LatencyModel:
    """Section 7.1: how long a message takes in a steady stream, from arrival to its matches.

    ``arrival_rate`` is messages per second, ``matching_single`` seconds per message without batches, ``speedup(size)``
    how many times faster a batch of that size is per message.
    """

    arrival_rate: float
    matching_single: float
    speedup: Callable[[float], float]

    def matching(self, size: float) -> float:
        """Seconds to process a batch."""
        return size * self.matching_single / self.speedup(size)

    def average(self, size: float) -> float:
        """The mean latency: half the time to collect a batch, and its processing."""
        return size / 2 / self.arrival_rate + self.matching(size)

    def maximum(self, size: float) -> float:
        """The latency of the first message of a batch."""
        return size / self.arrival_rate + self.matching(size)

    def bound(self, acceptable: float, most: int = 1 << 20) -> int:
        """The largest batch whose messages all take at most ``acceptable`` seconds; 0 when not even one does."""
        if self.maximum(1) > acceptable:
            return 0
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.maximum(middle) <= acceptable else (low, middle - 1)
        return low


PREDICTS: Final[Mapping[str, str]] = {
    UNBATCHED: "gather (s1 + s2) P + (read + test) s1 s2 P",
    FULL: "as MiniB/PIx with n = BS and the spread of the whole batch",
    FULL_MIX: "(read + lookup) P / n + test s1 P",
    MINI: "(gather (s1 + w1 + s2 + w2) P + read U) / n + test U, with U = (s1 + w1) (s2 + w2) P",
    MINI_MIX: "as MiniB/PIx, + lookup U / n, and test only what the message index returns",
}
"""The formulas of :class:`CostModel`, for people."""
