"""``Flow``: events in, work out, everything accounted for.

Guarantees that at any moment every event that came in is delivered, shed, rejected or queued, and that a flow without
shedding whose consistency is ``serial`` gives the matches of :meth:`tamis.Filter.process` on all events in order. Time
is an argument everywhere: the same flow runs under a virtual clock, in a live program and inside a pipeline. Refuses to
know clocks, threads and input or output.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.model.events import KINDS, MESSAGE, UPDATE, EventLog
from tamis.model.matches import Matches

from .chunk import Chunk, Consistency, Piece, counted, log_of, parts_of
from .classes import Classes, QosClass
from .costs import Costs, Rate
from .debt import Debt
from .doubt import Doubt
from .measures import Balance, Distribution
from .policies import Batch, Policy, Take, Wait
from .queue import Counts, EventQueue
from .values import Numbering
from .wishes import choose

if TYPE_CHECKING:
    from .live import Delivery


class Processor(Protocol):
    """What a flow needs of a filter."""

    def process(self, log: EventLog) -> Matches:
        """Replays a log."""


@dataclass(frozen=True, eq=False)
class Work:
    """What is to be done next: a log, whose rows are sequence numbers, and when its messages arrived.

    ``expected`` is what it should take, in seconds. Hand it back with :meth:`Flow.done` or :meth:`Flow.abandon`.
    """

    log: EventLog
    arrival: NDArray[np.float64]
    qos: NDArray[np.int16]
    taken: float
    expected: float
    consistency: Consistency
    counts: Counts
    pieces: list[Piece] = field(repr=False)

    @property
    def messages(self) -> int:
        """The number of messages."""
        return int(self.counts[MESSAGE].sum())

    @property
    def updates(self) -> int:
        """The number of updates."""
        return int(self.counts[UPDATE].sum())

    def __len__(self) -> int:
        return int(self.counts.sum())


class Flow:
    """A queue in front of a filter, a policy that says what is done next, and the measures of both.

    ``policy`` is one of :mod:`tamis.flow.policies`, or what a user wants in words, such as ``"latency <= 200ms"``; by
    default batches that keep the serial order. ``classes`` are names with the loss that an event of each would be,
    ``costs`` are learned unless they are set, ``capacity`` is how many events may be queued (see :attr:`room`).

    >>> from tamis import Filter
    >>> f = Filter()
    >>> f.subscribe("w-A", "quantity <= ctx.stock", context="A")
    >>> flow = Flow(f)
    >>> flow.offer(("update", "A", {"stock": 12}), now=0.0)
    >>> flow.offer({"quantity": 7}, now=0.1)
    >>> work = flow.take(now=0.2)
    >>> matches = f.process(work.log)
    >>> flow.done(work, matches, now=0.3)
    >>> list(matches), flow.balance()["message"]["delivered"], round(flow.latency.max, 3)
    ([(1, 'w-A')], 1, 0.2)
    """

    def __init__(
        self,
        filter: Processor | None = None,
        policy: Policy | str | Iterable[str] | None = None,
        *,
        classes: Mapping[str, float] | Iterable[QosClass] | Classes | None = None,
        costs: Costs | None = None,
        capacity: int | None = None,
        seed: int = 0,
        numbering: Numbering | None = None,
    ) -> None:
        self.filter = filter
        self.policy: Policy = Batch() if policy is None else _policy(policy)
        self.classes = classes if isinstance(classes, Classes) else Classes(classes)
        self.costs = costs if costs is not None else Costs()
        if capacity is not None and (isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1):
            raise UsageError(f"capacity: expected a number of events, at least 1, got {capacity!r}")
        self.capacity = capacity
        self.queue = EventQueue(len(self.classes))
        self._numbering = Numbering() if numbering is None else numbering  # flows that share chunks share it
        self.debt = Debt(len(self.classes), self._numbering)
        """Updates that were put off: they wait, but not in the queue."""
        self.latency, self.jitter, self.waiting = Distribution(), Distribution(), Distribution()
        self.wake = math.inf
        """When :meth:`take` wants to be asked again, after it gave nothing."""
        self.doubt = Doubt(self._numbering)
        self.on_shed: Callable[[list[Piece], float], None] | None = None
        """Called with what is shed, and when."""
        self.on_rejected: Callable[[str, Any, str], None] | None = None
        """Called for every rejected event: its sort, its sequence number (or the event, if it got none), the reason."""
        self.undelivered: deque[Delivery] = deque()
        """Deliveries that a live run found and whose consumer left; the next run begins with them."""
        self._balance = Balance(self.classes.names)
        self._rate, self._served = Rate(), Rate()
        self._rng = np.random.default_rng(seed)
        self._last_latency: float | None = None
        self._now = -math.inf
        self.logs = 0
        """Logs that were worked."""
        self._in_hand: set[int] = set()

    # -- in ----------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int | None:
        """How many more events may be queued; ``None``: any number. Offering more is no error: sources are to look."""
        return None if self.capacity is None else max(0, self.capacity - self.queued + len(self.debt))

    @property
    def queued(self) -> int:
        """Events that wait, were put off, or are being worked."""
        return len(self.queue) + len(self.debt) + int(self._balance.held.sum())

    def offer(self, event: Any, now: float, qos: Any = None, arrival: Any = None) -> None:
        """Events arrive: one, or an :class:`tamis.EventLog` of any number.

        One event is a message as a mapping, ``("update", context, {attribute: value})``, ``("subscribe", id, profile,
        context, on_match)`` or ``("unsubscribe", id)``. ``qos`` is the class of all, or, for a log, one per event.
        ``arrival`` is when they arrived, one time or one per event, if not now.
        """
        if isinstance(event, EventLog):
            codes = self.classes.codes(qos, len(event))
            self.offer_chunk(Chunk(event, now if arrival is None else arrival, codes), now)
            return
        self._forward(now)
        came = self.queue.put_one(event, float(now if arrival is None else arrival), self.classes.code(qos))
        self._came(came, now)

    def offer_chunk(self, chunk: Chunk, now: float, low: int = 0, high: int | None = None) -> None:
        """Events ``low`` to ``high`` of a chunk arrive; parts that follow each other stay one in the queue."""
        self._forward(now)
        high = len(chunk) if high is None else high
        highest = int(chunk.qos[low:high].max(initial=0))
        if highest >= len(self.classes):
            raise UsageError(f"chunk: class number {highest}, of {len(self.classes)} classes")
        self._came(self.queue.put(chunk, low, high), now)

    def refuse(self, event: Any, reason: str, now: float) -> None:
        """An event that cannot even be queued came in: it counts as a rejected message."""
        self._forward(now)
        one = np.zeros_like(self._balance.came)
        one[MESSAGE, self.classes.code(None)] = 1
        self._came(one, now)
        self._balance.rejected += one
        if self.on_rejected is not None:
            self.on_rejected("message", event, reason)

    def _came(self, came: Counts, now: float) -> None:
        self._balance.came += came
        self._rate.add(int(came[MESSAGE].sum()), now)

    def _forward(self, now: float) -> None:
        if not now >= self._now:
            raise UsageError(f"now: time goes forward, got {now!r} after {self._now!r}")
        self._now = now

    # -- out ---------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Work | None:
        """The next work; sheds what the policy gives up. ``None``: nothing to do before :attr:`wake`, or new events."""
        self._forward(now)
        self.wake = math.inf
        decision: Take | Wait = Wait()
        while len(self.queue) or len(self.debt):
            before = self.queue.waiting.sum(), len(self.debt)
            decision = self.policy.next(self, now)
            if isinstance(decision, Take) or before == (self.queue.waiting.sum(), len(self.debt)):
                break
        if isinstance(decision, Wait) or not decision.events + decision.deferred:
            self.wake = decision.until if isinstance(decision, Wait) else math.inf
            return None
        pieces, counts = self.queue.cut(decision.events)
        if len(self.debt):
            self._shed(self.debt.overtaken(pieces), known=True)
            paid = self.debt.cut(decision.deferred)
            pieces, counts = [*paid, *pieces], counts + self._counts(paid)
        self._balance.held += counts
        kinds = [piece.kind == MESSAGE for piece in pieces]
        arrival = np.concatenate([p.chunk.arrival[p.positions[k]] for p, k in zip(pieces, kinds, strict=True)])
        qos = np.concatenate([p.chunk.qos[p.positions[k]] for p, k in zip(pieces, kinds, strict=True)])
        expected = self.costs.seconds(int(counts[MESSAGE].sum()), int(counts[UPDATE].sum()))
        log = log_of(pieces, decision.consistency)
        work = Work(log, arrival, qos, now, expected, decision.consistency, counts, pieces)
        self.waiting.add(now - arrival)
        self._in_hand.add(id(work))
        return work

    def done(self, work: Work, matches: Matches, now: float, seconds: float | None = None) -> None:
        """Work is finished: its messages are delivered now. ``seconds`` is what it took, if not the time since."""
        self._back(work)
        self._forward(now)
        rejected = np.zeros_like(work.counts)
        late = work.arrival
        if len(matches.rejected):
            rejected, late = self._rejections(work, matches)
        self._balance.rejected += rejected
        self._balance.delivered += work.counts - rejected
        self.doubt.delivered(work.pieces, work.consistency, len(late))
        self._measure(now - late)
        self._served.add(len(late), now)
        self.logs += 1
        self.costs.learn(work.messages, work.updates, now - work.taken if seconds is None else seconds)

    def abandon(self, work: Work, now: float) -> None:
        """Work could not be done at all: its events count as rejected."""
        self._back(work)
        self._forward(now)
        self._balance.rejected += work.counts

    def _back(self, work: Work) -> None:
        if id(work) not in self._in_hand:
            raise UsageError("this work was not taken from this flow, or was handed back before")
        self._in_hand.remove(id(work))
        self._balance.held -= work.counts

    def _rejections(self, work: Work, matches: Matches) -> tuple[Counts, NDArray[np.float64]]:
        """What was rejected, by sort and class, and when the messages that were not had arrived."""
        rejected = np.zeros_like(work.counts)
        wrong = {kind: set[int]() for kind in KINDS}
        for one in matches.rejected:
            if one.kind in wrong:
                wrong[one.kind].add(one.row)
            if self.on_rejected is not None:
                self.on_rejected(one.kind, one.row, one.reason)
        for k, kind in enumerate(KINDS):
            if not wrong[kind]:
                continue
            rows = np.array(sorted(wrong[kind]), np.int64)
            for piece in work.pieces:
                mine = piece.positions[piece.kind == k]
                hit = mine[np.isin(piece.chunk.seq(mine), rows)]
                rejected[k] += np.bincount(piece.chunk.qos[hit], minlength=rejected.shape[1])
        if wrong["message"]:
            return rejected, work.arrival[~np.isin(work.log.message_rows, list(wrong["message"]))]
        return rejected, work.arrival

    def _measure(self, latency: NDArray[np.float64]) -> None:
        if not len(latency):
            return
        self.latency.add(latency)
        steps = np.abs(np.diff(latency, prepend=latency[0] if self._last_latency is None else self._last_latency))
        self.jitter.add(steps)
        self._last_latency = float(latency[-1])

    # -- what a policy may do ----------------------------------------------------------------------------------

    def rate(self, now: float) -> float:
        """Messages per second that arrive, about."""
        return self._rate.per_second(now)

    def served(self, now: float) -> float:
        """Messages per second that are delivered, about."""
        return self._served.per_second(now)

    def thin(self, wanted: Counts) -> None:
        """Shed so many events of each sort and class, at random."""
        self._shed(self.queue.thin(wanted, self._rng)[0])

    def put_off(self, wanted: Counts) -> None:
        """The same, but updates are not lost: they are worked when there is time, unless a later one of their value
        is."""
        gone, _ = self.queue.thin(wanted, self._rng)
        self._shed(parts_of(gone, MESSAGE))
        updates = parts_of(gone, UPDATE)
        self.doubt.shed(updates)
        self._shed(self.debt.add(updates), known=True)

    def supersede(self, most: int, within: float, classes: NDArray[np.int64]) -> int:
        """Shed up to so many updates of some classes that a later one of the same value follows in the queue, after
        ``within`` messages per context at most; returns how many."""
        gone, counts = self.queue.thin_superseded(most, within, classes, self._numbering)
        self._shed(gone)
        return int(counts.sum())

    def expire(self, events: int, arrived: float) -> None:
        """Shed messages among the first events that arrived before a time, where their class allows it."""
        self._shed(self.queue.expire(events, arrived, self.classes.sheddable)[0])

    def give_up(self) -> None:
        """Shed all updates that were put off."""
        self._shed(self.debt.cut(len(self.debt)), known=True)

    def _shed(self, gone: list[Piece], known: bool = False) -> None:
        """``known``: there is doubt about these since they were put off."""
        if not gone:
            return
        self._balance.shed += self._counts(gone)
        if not known:
            self.doubt.shed(gone)
        if self.on_shed is not None:
            self.on_shed(gone, self._now)

    def _counts(self, pieces: list[Piece]) -> Counts:
        return sum((counted(piece, len(self.classes)) for piece in pieces), np.zeros_like(self._balance.came))

    # -- the whole ---------------------------------------------------------------------------------------------

    def step(self, clock: Callable[[], float]) -> tuple[Work, Matches] | None:
        """Take work, process it with the flow's filter and hand it back; ``None`` when there is nothing to do."""
        work = self.take(clock())
        if work is None:
            return None
        matches = self._filter().process(work.log)
        self.done(work, matches, clock())
        return work, matches

    def _filter(self) -> Processor:
        if self.filter is None:
            raise UsageError("this flow has no filter: Flow(filter, ...)")
        return self.filter

    def run(self, source: Any, **options: Any) -> AsyncIterator[Delivery]:
        """``async for delivery in flow.run(source)``; see :func:`tamis.flow.live.run`."""
        from .live import run

        return run(self, source, **options)

    def balance(self) -> dict[str, dict[str, int]]:
        """Per sort of event: in, delivered, shed, rejected, queued."""
        return self._balance.to_dict(self._waiting)

    def by_class(self) -> dict[str, dict[str, int]]:
        """Per class: in, delivered, shed, rejected, queued."""
        return self._balance.by_class(self._waiting)

    @property
    def _waiting(self) -> Counts:
        return self.queue.waiting + self.debt.waiting

    @property
    def stats(self) -> dict[str, Any]:
        """All measures as plain values."""
        return {
            "balance": self.balance(),
            "classes": self.by_class(),
            "latency": self.latency.to_dict(),
            "jitter": self.jitter.to_dict(),
            "waiting": self.waiting.to_dict(),
            "costs": self.costs.to_dict(),
            "logs": self.logs,
            "deferred": len(self.debt),
            **self.doubt.to_dict(),
        }

    def check(self) -> None:
        """Verify the queue and the balance; raises :class:`tamis.InvariantError`. O(events that wait)."""
        self.queue.check()
        self.debt.check()
        self._balance.check(self._waiting)


def _policy(given: Any) -> Policy:
    if hasattr(given, "next"):
        policy: Policy = given
        return policy
    if isinstance(given, str | list | tuple | set | frozenset):
        return choose(given).policy
    raise UsageError(f"policy: expected Traditional, Shed, Batch, Hybrid or a wish in words, got {given!r}")
