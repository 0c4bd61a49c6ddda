"""Policies: what is worked next, how much of it at once, in which order, and what is given up.

Guarantees that a policy is a value (frozen, comparable, printable) that decides from what it is shown: the queue, the
costs, the rate and the time. ``traditional`` takes events one at a time; ``shed`` gives up what cannot meet a bound on
latency; ``batch`` takes what has arrived as one log; ``hybrid`` batches, and sheds only what still breaks the bound.
Refuses to know filters and clocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tamis.errors import UsageError
from tamis.model.events import MESSAGE, UPDATE

from .chunk import CONSISTENCY, Consistency
from .classes import WHAT, Classes, What
from .costs import Costs
from .queue import Counts, EventQueue

RELIEF: Final = 0.1
"""Shedding goes below the bound by this share of it: the next one comes when so much has piled up again, not at
once."""
SLICES: Final = 8
"""A hybrid works in slices of its bound: each is a chance to notice that costs have changed."""
SPARE: Final = 0.05
"""A hybrid aims at so much less than its bound."""


class Take(NamedTuple):
    """Work the first events, in that order."""

    events: int
    consistency: Consistency = "serial"


class Wait(NamedTuple):
    """Nothing to do: ask again when something has come, or at ``until``."""

    until: float = math.inf


class Desk(Protocol):
    """What a policy sees, and what it may do."""

    queue: EventQueue
    costs: Costs
    classes: Classes

    def rate(self, now: float) -> float:
        """Messages per second that arrive."""

    def thin(self, wanted: Counts) -> None:
        """Shed so many of each sort and class, at random."""

    def expire(self, events: int, arrived: float) -> None:
        """Shed messages among the first events that arrived before a time, where their class allows it."""


class Policy(Protocol):
    """Decides what is next."""

    def next(self, desk: Desk, now: float) -> Take | Wait:
        """Called when the filter is ready; at least one event waits."""


@dataclass(frozen=True)
class Traditional:
    """Every message on its own, in the order of arrival, and the updates between two messages. No errors, no bound."""

    def next(self, desk: Desk, now: float) -> Take | Wait:
        return Take(one_at_a_time(desk.queue))


def one_at_a_time(queue: EventQueue) -> int:
    """One message, or all events of another sort in front of the next."""
    kind = queue.first_kind()
    if kind == MESSAGE:
        return 1
    return queue.barrier(queue.run()) if kind == UPDATE else queue.run()


@dataclass(frozen=True)
class Shed:
    """One at a time, and what would break the ``bound`` (seconds) is shed: messages, updates or both.

    ``prefer`` is the share of the shed work that messages give where both may be shed; by default as much as they are
    of all work, so that both sorts lose the same share.
    """

    bound: float
    what: What = "both"
    prefer: float | None = None

    def __post_init__(self) -> None:
        _seconds("bound", self.bound)
        _one_of("what", self.what, WHAT)
        _share("prefer", self.prefer)

    def next(self, desk: Desk, now: float) -> Take | Wait:
        queue, costs = desk.queue, desk.costs
        messages, updates = queue.messages, queue.updates
        backlog = costs.singly(messages, updates)
        per_message = (backlog - updates * costs.update) / messages if messages else costs.message
        relieve(desk, now, backlog, self.bound, per_message, self.what, self.prefer)
        if queue.first_kind() == MESSAGE and self.what != "updates":
            late = now + costs.at_most(1, 0) - self.bound
            desk.expire(_crowd(queue, late), late)
            if not len(queue):
                return Wait()
        events = one_at_a_time(queue)
        if events > 1:  # a long run of updates: look again before it is through
            events = min(events, max(1, queue.fitting(slice_of(self.bound, costs), costs.seconds)))
        return Take(events)


def slice_of(bound: float, costs: Costs) -> float:
    """Seconds of one log under a bound: an eighth of it, or more where the fixed part of a log would eat that up."""
    return max(bound / SLICES, min(SLICES * costs.fixed, bound / 3))


def _crowd(queue: EventQueue, arrived: float) -> int:
    """How many messages in front to look at: one, and as many again each time all of them are too old."""
    head = queue.head()
    return queue.run() if head is not None and head.arrival < arrived else 1


def relieve(
    desk: Desk, now: float, backlog: float, bound: float, per_message: float, what: What, prefer: float | None
) -> None:
    """Thins the queue when its last message would break the bound: at random, by class, to below the bound."""
    youngest = desk.queue.youngest()
    excess = now + backlog - (now if youngest is None else youngest) - bound
    if excess > 0:
        goal = excess + RELIEF * bound
        wanted = desk.classes.thinning(desk.queue.waiting, goal, per_message, desk.costs.update, what, prefer)
        desk.thin(wanted)


@dataclass(frozen=True)
class Batch:
    """All that has arrived as one log, in the order of a consistency model; less where that would take too long.

    ``limit`` is how many seconds a batch may take. ``latency`` is the acceptable latency of a message: it bounds the
    number of messages in a batch by the rate at which they arrive and by what they cost. While the backlog would take
    less than ``single`` seconds one at a time, events go one at a time. ``wait`` lets the first event of a batch wait
    so many seconds for others.
    """

    consistency: Consistency = "serial"
    limit: float | None = None
    latency: float | None = None
    single: float = 0.0
    wait: float = 0.0

    def __post_init__(self) -> None:
        _one_of("consistency", self.consistency, CONSISTENCY)
        for name in ("limit", "latency"):
            if (value := getattr(self, name)) is not None:
                _seconds(name, value)
        for name in ("single", "wait"):
            if getattr(self, name) != 0:
                _seconds(name, getattr(self, name))
        if self.wait and self.latency is not None and self.wait >= self.latency:
            raise UsageError(
                f"wait: {self.wait:g} s of waiting leave nothing of an acceptable latency {self.latency:g} s"
            )

    def next(self, desk: Desk, now: float) -> Take | Wait:
        queue, costs = desk.queue, desk.costs
        if queue.first_kind() not in (MESSAGE, UPDATE):
            return Take(queue.run())
        messages = queue.messages
        most = self._most(desk, now)
        if self.wait and messages < most:
            oldest = queue.oldest()
            if oldest is not None and now < oldest + self.wait:
                return Wait(oldest + self.wait)
        if self.single and costs.singly(messages, queue.updates) < self.single:
            return Take(one_at_a_time(queue))
        events = queue.through_messages(int(most)) if messages > most else len(queue)
        if self.limit is not None:
            events = min(events, max(1, queue.fitting(self.limit, costs.seconds)))
        return Take(queue.barrier(events), self.consistency)

    def _most(self, desk: Desk, now: float) -> float:
        """Messages that a batch may have."""
        if self.latency is None:
            return math.inf
        queue, costs = desk.queue, desk.costs
        updates = queue.updates / max(1, queue.messages)
        return max(1.0, batch_size(self.latency, desk.rate(now), costs.message + updates * costs.update, costs.fixed))


def batch_size(latency: float, rate: float, matching: float, fixed: float = 0.0) -> float:
    """The most messages a batch may have so that none of them is later than ``latency``.

    The first message of a batch waits until the last has come, n / ``rate``, and then until all are matched, ``fixed``
    + n × ``matching``. ``matching`` is the cost of a message in a batch, with its share of the updates.

    >>> batch_size(latency=1.0, rate=1_000.0, matching=0.001)
    499.0
    """
    each = (1 / rate if rate > 0 else 0.0) + matching
    if each <= 0:
        return math.inf
    room = (latency - fixed) / each
    return max(0.0, math.ceil(room) - 1.0)


@dataclass(frozen=True)
class Hybrid:
    """Batches within a hard ``bound`` (seconds): what even batches cannot do in time is shed, and only that.

    Batches are slices of an eighth of the bound. The queue is thinned when its last message would be late at the speed
    of batches; a message that is late when its slice comes is shed, where ``what`` and its class allow it.
    """

    bound: float
    what: What = "both"
    prefer: float | None = None
    consistency: Consistency = "serial"
    limit: float | None = None

    def __post_init__(self) -> None:
        _seconds("bound", self.bound)
        _one_of("what", self.what, WHAT)
        _share("prefer", self.prefer)
        _one_of("consistency", self.consistency, CONSISTENCY)
        if self.limit is not None:
            _seconds("limit", self.limit)

    def next(self, desk: Desk, now: float) -> Take | Wait:
        queue, costs = desk.queue, desk.costs
        aim = self.bound * (1 - SPARE)
        longest = slice_of(self.bound, costs)
        longest = longest if self.limit is None else min(self.limit, longest)
        backlog = costs.seconds(queue.messages, queue.updates)
        backlog += costs.fixed * (backlog // longest)  # every slice has its own
        relieve(desk, now, backlog, aim, costs.message, self.what, self.prefer)
        if queue.first_kind() not in (MESSAGE, UPDATE):
            return Take(queue.run()) if len(queue) else Wait()
        events = min(queue.fitting(longest, costs.at_most), costs.reach)
        events = queue.barrier(max(1, int(events)))
        head = queue.head()
        if head is None or head.before >= events or self.what == "updates":
            return Take(events, self.consistency)
        left = head.arrival + aim - now
        if left < costs.at_most(*queue.counted(events)):
            # The oldest message would be late in so large a slice: a smaller one, unless that is hardly worth it.
            smaller = queue.fitting(left, costs.at_most)
            if smaller > head.before and smaller >= events // 4:
                return Take(smaller, self.consistency)
            before = len(queue)
            desk.expire(events, now + costs.at_most(*queue.counted(events)) - aim)
            events -= before - len(queue)
            if not events:
                return Wait()  # nothing of the slice is left: the next look takes what stands behind it
        return Take(events, self.consistency)


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"{name}: expected a number of seconds above nought, got {value!r}")


def _share(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UsageError(f"{name}: expected a share from 0 (updates) to 1 (messages), got {value!r}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}")
