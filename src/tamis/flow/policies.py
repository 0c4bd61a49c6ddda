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

import numpy as np
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.model.events import MESSAGE, UPDATE

from .chunk import CONSISTENCY, Consistency
from .classes import WHAT, Classes, What
from .costs import Costs
from .debt import Debt
from .queue import Counts, EventQueue

RELIEF: Final = 0.1
"""Shedding goes below the bound by this share of it: the next one comes when so much has piled up again, not at
once."""


class Slices(NamedTuple):
    """How long a log may take under a bound: ``1 / finest`` of it, or longer, up to ``1 / coarsest`` of it, where that
    is less than ``worth`` times what a log costs in itself."""

    finest: int
    coarsest: int
    worth: int

    def seconds(self, bound: float, costs: Costs) -> float:
        """What one log may take."""
        return max(bound / self.finest, min(self.worth * costs.fixed, bound / self.coarsest))


RUNS: Final = Slices(8, 3, 8)
"""A long run of updates is shed in slices of the bound: each is a chance to notice that costs have changed."""
BATCHES: Final = Slices(16, 4, 256)
"""A hybrid works in slices of its bound. Small ones leave less to what a log may take too long, large ones cost less
per event: with 500,000 profiles, logs of 22 messages a sixth less than logs of 9."""
SPARE: Final = 0.125
"""What a slice may take longer than estimated, as a share of the bound, or as long again."""
LEAST: Final = 0.25
"""A hybrid plans with so much of its bound at least, whatever surprises there were: else it would shed all, and never
learn that they are over."""


class Take(NamedTuple):
    """Work the first events, in that order; before them so many updates that were put off."""

    events: int
    consistency: Consistency = "serial"
    deferred: int = 0


class Wait(NamedTuple):
    """Nothing to do: ask again when something has come, or at ``until``."""

    until: float = math.inf


class Desk(Protocol):
    """What a policy sees, and what it may do."""

    queue: EventQueue
    costs: Costs
    classes: Classes
    debt: Debt

    def rate(self, now: float) -> float:
        """Messages per second that arrive."""

    def served(self, now: float) -> float:
        """Messages per second that are delivered."""

    def thin(self, wanted: Counts) -> None:
        """Shed so many of each sort and class, at random."""

    def put_off(self, wanted: Counts) -> None:
        """The same, but updates are worked later, when there is time."""

    def supersede(self, most: int, within: float, classes: NDArray[np.int64]) -> int:
        """Shed up to so many updates that a later one of their value follows in the queue, after ``within`` messages
        per context at most; returns how many."""

    def expire(self, events: int, arrived: float) -> None:
        """Shed messages among the first events that arrived before a time, where their class allows it."""


class Policy(Protocol):
    """Decides what is next."""

    def next(self, desk: Desk, now: float) -> Take | Wait:
        """Called when the filter is ready; at least one event waits, in the queue or among those that were put off."""


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
        goal = _excess(desk, now, backlog, self.bound)
        if goal > 0:
            desk.thin(desk.classes.thinning(queue.waiting, goal, per_message, costs.update, self.what, self.prefer))
        if queue.first_kind() == MESSAGE and self.what != "updates":
            late = now + costs.at_most(1, 0) - self.bound
            desk.expire(_crowd(queue, late), late)
            if not len(queue):
                return Wait()
        events = one_at_a_time(queue)
        if events > 1:  # a long run of updates: look again before it is through
            events = min(events, max(1, queue.fitting(RUNS.seconds(self.bound, costs), costs.seconds)))
        return Take(events)


def _crowd(queue: EventQueue, arrived: float) -> int:
    """How many messages in front to look at: one, and as many again each time all of them are too old."""
    head = queue.head()
    return queue.run() if head is not None and head.arrival < arrived else 1


def _excess(desk: Desk, now: float, backlog: float, bound: float) -> float:
    """Seconds of work to give up so that the last message does not break a bound, and some more; nought if it does
    not."""
    youngest = desk.queue.youngest()
    excess = now + backlog - (now if youngest is None else youngest) - bound
    return excess + RELIEF * bound if excess > 0 else 0.0


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

    Batches are slices of the bound. When the last message of the queue would be late at the speed of batches, the queue
    gives up updates that a later one of the same value follows, and then messages and other updates; but those updates
    are only put off, until there is time, so that the state is the serial one again soon after a burst. A message
    that may be late when its slice comes is shed. ``what`` and the classes say what may be touched at all.
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
        longest = BATCHES.seconds(self.bound, costs)
        longest = longest if self.limit is None else min(self.limit, longest)
        backlog = costs.seconds(queue.messages, queue.updates)
        backlog += costs.fixed * (backlog // longest)  # every slice has its own
        self._relieve(desk, now, backlog, longest)
        if queue.first_kind() not in (MESSAGE, UPDATE, -1):
            return Take(queue.run())
        events = min(queue.fitting(longest, costs.seconds), costs.reach)
        events = queue.barrier(max(1, int(events))) if len(queue) else 0
        head = queue.head()
        if head is None or head.before >= events or self.what == "updates":
            return self._with_debt(desk, events, longest)
        left = head.arrival + self.bound - now
        worst = self._worst(costs, *queue.counted(events))
        if left < worst:
            # The oldest message may be late in so large a slice: a smaller one, unless that is hardly worth it.
            smaller = queue.fitting(left, lambda messages, updates: self._worst(costs, messages, updates))
            if smaller > head.before and smaller >= events // 4:
                return Take(smaller, self.consistency)
            before = len(queue)
            desk.expire(events, now + worst - self.bound)
            events -= before - len(queue)
            if not events:
                return Wait()  # nothing of the slice is left: the next look takes what stands behind it
            return Take(events, self.consistency)
        return self._with_debt(desk, events, longest)

    def _worst(self, costs: Costs, messages: int, updates: int) -> float:
        """What a slice takes at worst."""
        return max(costs.at_worst(messages, updates), costs.seconds(messages, updates) + SPARE * self.bound)

    def _with_debt(self, desk: Desk, events: int, longest: float) -> Take:
        """What was put off fills the slice, if that slice is all that waits."""
        if not len(desk.debt) or events < len(desk.queue):
            return Take(events, self.consistency)
        spare = longest - desk.costs.seconds(*desk.queue.counted(events))
        most = spare / desk.costs.update if desk.costs.update else math.inf
        return Take(events, self.consistency, int(min(len(desk.debt), desk.costs.reach, max(0 if events else 1, most))))

    def _relieve(self, desk: Desk, now: float, backlog: float, longest: float) -> None:
        """Gives up what would break the bound: level by level of loss, the cheapest first."""
        spare = max(desk.costs.worst(longest) - longest, SPARE * self.bound)
        # Half a slice less than there is time for: else the oldest messages would often have to go in smaller ones.
        aim = max(LEAST * self.bound, self.bound - spare - longest / 2)
        goal = _excess(desk, now, backlog, aim)
        costs, queue = desk.costs, desk.queue
        for level in desk.classes.levels if goal > 0 else ():
            if self.what != "messages" and costs.update:
                within = costs.update / costs.message if costs.message else math.inf
                within *= max(1.0, desk.rate(now) / max(desk.served(now), 1e-9))  # not all that wait will see it
                goal -= desk.supersede(math.ceil(goal / costs.update), within, level) * costs.update
            if goal <= 0:
                break
            waiting = np.zeros_like(queue.waiting)
            waiting[:, level] = queue.waiting[:, level]
            prefer = self._share(desk, now, waiting) if self.prefer is None else self.prefer
            wanted = desk.classes.thinning(waiting, goal, costs.message, costs.update, self.what, prefer)
            desk.put_off(wanted)
            goal -= int(wanted[MESSAGE].sum()) * costs.message + int(wanted[UPDATE].sum()) * costs.update

    def _share(self, desk: Desk, now: float, waiting: Counts) -> float:
        """The share of the work given up that messages should give, by the errors that a second of each avoids.

        A message that is shed misses all its matches. A value that is outdated makes, in every message until it is
        not, about 1 / contexts as many errors as a message has matches. So the number of matches does not matter.
        """
        costs, queue = desk.costs, desk.queue
        meanwhile = 2 * desk.served(now) * self.bound
        by_message = costs.update
        by_update = costs.message * meanwhile / queue.contexts
        messages = int(waiting[MESSAGE].sum()) * costs.message * by_update**2
        updates = int(waiting[UPDATE].sum()) * costs.update * by_message**2
        return messages / (messages + updates) if messages + updates > 0 else 0.5


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
