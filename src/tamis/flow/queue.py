"""The queue of a flow: events in serial order, cut by counts and by estimated seconds, thinned at random by class.

Guarantees that the order of the events that stay never changes, that nothing disappears uncounted (what is cut or
thinned is returned, sort by sort and class by class), and that no operation costs Python work per event: events lie in
columnar segments, views of the chunks they came in. Refuses to know clocks, filters and why something is shed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tamis.errors import InvariantError
from tamis.model.events import MESSAGE, UPDATE

from .chunk import Chunk, Piece, Positions, Singles
from .values import Numbering, context_of, updates_of

SHEDDABLE: Final = (MESSAGE, UPDATE)
Counts = NDArray[np.int64]
"""Events by sort and class, shape (4, classes)."""


class Segment:
    """Events of one chunk that still wait: positions ``low`` to ``high``, or those in ``kept``."""

    __slots__ = ("before", "chunk", "head", "high", "kept", "low")

    def __init__(self, chunk: Chunk, low: int, high: int, kept: Positions | None = None) -> None:
        self.chunk, self.low, self.high, self.kept = chunk, low, high, kept
        self.head = 0 if kept is not None else low
        self.before: Positions = chunk.messages_before
        if kept is not None:
            self.before = np.zeros(len(kept) + 1, np.int64)
            np.cumsum(chunk.kind[kept] == MESSAGE, out=self.before[1:])

    # ``head`` and ``end`` are places: positions of the chunk while nothing was thinned, else places in ``kept``.

    @property
    def end(self) -> int:
        return self.high if self.kept is None else len(self.kept)

    def __len__(self) -> int:
        return self.end - self.head

    def messages(self) -> int:
        return int(self.before[self.end] - self.before[self.head])

    def position(self, place: int) -> int:
        return place if self.kept is None else int(self.kept[place])

    def positions(self, start: int, stop: int) -> Positions:
        return np.arange(start, stop, dtype=np.int64) if self.kept is None else self.kept[start:stop]

    def message_place(self, number: int) -> int:
        """The place of the ``number``-th waiting message, from 0."""
        return int(np.searchsorted(self.before, self.before[self.head] + number, "right")) - 1


class Head(NamedTuple):
    """A message that waits: how many events stand before it, when it arrived, its class."""

    before: int
    arrival: float
    qos: int


class EventQueue:
    """Events that wait, in serial order.

    ``classes`` is how many classes there are; ``waiting`` counts events by sort and class.
    """

    def __init__(self, classes: int = 1) -> None:
        self.waiting: Counts = np.zeros((4, classes), np.int64)
        self._segments: deque[Segment] = deque()
        self._singles = Singles()
        self._next = 0  # the next free sequence number
        self.contexts = 1
        """How many contexts there are, as far as updates that could be superseded told."""

    def __len__(self) -> int:
        return int(self.waiting.sum())

    @property
    def messages(self) -> int:
        """Messages that wait."""
        return int(self.waiting[MESSAGE].sum())

    @property
    def updates(self) -> int:
        """Updates that wait."""
        return int(self.waiting[UPDATE].sum())

    # -- in ----------------------------------------------------------------------------------------------------

    def put(self, chunk: Chunk, low: int, high: int) -> Counts:
        """Events ``low`` to ``high`` of a chunk; what came in, by sort and class. O(events)."""
        self._seal()
        return self._put(chunk, low, high)

    def put_one(self, event: Any, arrival: float, qos: int) -> Counts:
        """One event as a Python value."""
        if not self._singles.fits(event):
            self._seal()
        came = np.zeros_like(self.waiting)
        kind = {"update": UPDATE, "subscribe": 2, "unsubscribe": 3}.get(event[0] if isinstance(event, tuple) else "", 0)
        came[kind, qos] = self._singles.add(event, arrival, qos)
        self.waiting += came
        return came

    def _put(self, chunk: Chunk, low: int, high: int) -> Counts:
        came = np.zeros_like(self.waiting)
        if low == high:
            return came
        if chunk.first < 0:
            chunk.first = self._next
        self._next = max(self._next, chunk.first + len(chunk))  # another queue may have numbered it
        came = self._count(chunk, slice(low, high))
        last = self._segments[-1] if self._segments else None
        if last is not None and last.chunk is chunk and last.kept is None and last.high == low:
            last.high = high
        else:
            self._segments.append(Segment(chunk, low, high))
        self.waiting += came
        return came

    def _seal(self) -> None:
        if len(self._singles):
            chunk = self._singles.seal()
            self.waiting -= self._count(chunk, slice(None))
            self._put(chunk, 0, len(chunk))

    def _count(self, chunk: Chunk, which: slice | Positions) -> Counts:
        kinds, classes = self.waiting.shape
        code = chunk.kind[which].astype(np.int64) * classes + chunk.qos[which]
        return np.bincount(code, minlength=kinds * classes).reshape(kinds, classes)

    # -- what is there -----------------------------------------------------------------------------------------

    def first_kind(self) -> int:
        """The sort of the first event, -1 when nothing waits."""
        self._seal()
        if not self._segments:
            return -1
        first = self._segments[0]
        return int(first.chunk.kind[first.position(first.head)])

    def run(self) -> int:
        """How many events of one sort stand in front. O(run)."""
        self._seal()
        kind, total = self.first_kind(), 0
        for segment in self._segments:
            if kind == UPDATE:
                # The next message ends a run of updates, unless a subscription does: mostly there is none.
                ahead = segment.message_place(0) if segment.messages() else segment.end
                other = self._first_other(segment, kind, ahead)
            else:
                other = self._first_other(segment, kind, segment.end)
            total += other - segment.head
            if other < segment.end:
                break
        return total

    def _first_other(self, segment: Segment, kind: int, end: int) -> int:
        """The first place up to ``end`` whose event is of another sort; looked for in steps that grow."""
        if kind == UPDATE and not self.waiting[2:].any():
            return end
        start, step = segment.head, 64
        while start < end:
            stop = min(end, start + step)
            kinds = segment.chunk.kind[segment.positions(start, stop)]
            other = np.flatnonzero(kinds != kind)
            if len(other):
                return start + int(other[0])
            start, step = stop, 2 * step
        return end

    def head(self) -> Head | None:
        """The oldest message that waits. O(segments + log events)."""
        self._seal()
        return self._message(iter(self._segments), 0)

    def _message(self, segments: Iterator[Segment], before: int) -> Head | None:
        for segment in segments:
            if segment.messages():
                place = segment.message_place(0)
                position = segment.position(place)
                chunk = segment.chunk
                before += place - segment.head
                return Head(before, float(chunk.arrival[position]), int(chunk.qos[position]))
            before += len(segment)
        return None

    def youngest(self) -> float | None:
        """When the last message that waits arrived."""
        self._seal()
        for segment in reversed(self._segments):
            if count := segment.messages():
                return float(segment.chunk.arrival[segment.position(segment.message_place(count - 1))])
        return None

    def oldest(self) -> float | None:
        """When the first event that waits arrived."""
        self._seal()
        for segment in self._segments:
            return float(segment.chunk.arrival[segment.position(segment.head)])
        return None

    def fitting(self, seconds: float, cost: Callable[[int, int], float]) -> int:
        """How many events from the front fit into so many seconds; ``cost(messages, updates)`` must rise."""
        self._seal()
        messages = events = 0
        for segment in self._segments:
            mine = segment.messages()
            if cost(messages + mine, events + len(segment) - messages - mine) <= seconds:
                messages, events = messages + mine, events + len(segment)
                continue

            def spent(place: int, segment: Segment = segment, m: int = messages, e: int = events) -> float:
                within = int(segment.before[place] - segment.before[segment.head])
                return cost(m + within, e + place - segment.head - m - within)

            stop = bisect_right(range(segment.head + 1, segment.end + 1), seconds, key=spent)
            return events + stop
        return events

    def counted(self, events: int) -> tuple[int, int]:
        """How many of the first events are messages, and how many are not."""
        self._seal()
        messages, left = 0, events
        for segment in self._segments:
            if not left:
                break
            some = min(left, len(segment))
            messages += int(segment.before[segment.head + some] - segment.before[segment.head])
            left -= some
        return messages, events - left - messages

    def through_messages(self, messages: int) -> int:
        """How many events from the front hold so many messages, the last of which ends them; all, if there are
        fewer."""
        self._seal()
        events = 0
        for segment in self._segments:
            mine = segment.messages()
            if mine >= messages > 0:
                return events + segment.message_place(messages - 1) + 1 - segment.head
            messages -= mine
            events += len(segment)
        return events

    def barrier(self, events: int) -> int:
        """How many of the first events stand before the first subscription, and can be told in one log with one sort of
        context, names or indices."""
        self._seal()
        named: bool | None = None
        total, controls = 0, bool(self.waiting[2:].any())
        for segment in self._segments:
            mine = segment.chunk.named
            if named is not None and mine is not None and named != mine:
                return min(total, events)
            named = mine if named is None else named
            if controls:
                kinds = segment.chunk.kind[segment.positions(segment.head, segment.end)]
                other = np.flatnonzero((kinds != MESSAGE) & (kinds != UPDATE))
                if len(other):
                    return min(total + int(other[0]), events)
            total += len(segment)
            if total >= events:
                return events
        return min(total, events)

    # -- out ---------------------------------------------------------------------------------------------------

    def cut(self, events: int) -> tuple[list[Piece], Counts]:
        """The first events leave; O(events taken)."""
        self._seal()
        pieces: list[Piece] = []
        left = np.zeros_like(self.waiting)
        while events > 0:
            segment = self._segments[0]
            stop = min(segment.end, segment.head + events)
            piece = Piece(segment.chunk, segment.positions(segment.head, stop))
            events -= stop - segment.head
            segment.head = stop
            if stop == segment.end:
                self._segments.popleft()
            left += self._count(piece.chunk, piece.positions)
            if pieces and pieces[-1].chunk is piece.chunk:
                piece = Piece(piece.chunk, np.concatenate([pieces.pop().positions, piece.positions]))
            pieces.append(piece)
        self.waiting -= left
        return pieces, left

    def thin(self, wanted: Counts, rng: np.random.Generator) -> tuple[list[Piece], Counts]:
        """Take out so many events of each sort and class, at random over the whole queue. O(events that wait)."""
        self._seal()
        wanted = np.minimum(wanted, self.waiting)
        if not wanted.any():
            return [], np.zeros_like(self.waiting)
        places, codes = self._codes()
        stays = np.ones(len(codes), bool)
        for kind, qos in np.argwhere(wanted > 0).tolist():
            mine = np.flatnonzero(codes == kind * self.waiting.shape[1] + qos)
            stays[rng.choice(mine, int(wanted[kind, qos]), replace=False, shuffle=False)] = False
        return self._remove(places, stays)

    def thin_superseded(
        self, most: int, within: float, classes: Positions, numbering: Numbering
    ) -> tuple[list[Piece], Counts]:
        """Take out up to so many updates of some classes that a later one of the same value follows in the queue, those
        first that the fewest messages would have seen: at most ``within`` per context. O(events that wait, sorted)."""
        self._seal()
        places, codes = self._codes()
        kinds, qos = np.divmod(codes, self.waiting.shape[1])
        updates = np.flatnonzero(kinds == UPDATE)
        pieces = [Piece(segment.chunk, mine) for segment, mine in zip(self._segments, places, strict=True)]
        key, _ = updates_of(pieces, numbering)
        self.contexts = max(self.contexts, context_of(key.max(initial=0)) + 1)
        order = np.argsort(key, kind="stable")
        again = np.flatnonzero(key[order][1:] == key[order][:-1])
        first, later = updates[order[again]], updates[order[again + 1]]
        before = np.cumsum(kinds == MESSAGE)
        seen = before[later] - before[first]
        cheap = np.flatnonzero(np.isin(qos[first], classes) & (seen <= within * self.contexts))
        if len(cheap) > most:
            cheap = cheap[np.argpartition(seen[cheap], most)[:most]]
        stays = np.ones(len(codes), bool)
        stays[first[cheap]] = False
        return self._remove(places, stays)

    def _codes(self) -> tuple[list[Positions], Positions]:
        """The positions that wait, by segment, and sort × classes + class of each event."""
        places = [segment.positions(segment.head, segment.end) for segment in self._segments]
        classes = self.waiting.shape[1]
        codes = [
            s.chunk.kind[p].astype(np.int64) * classes + s.chunk.qos[p]
            for s, p in zip(self._segments, places, strict=True)
        ]
        return places, np.concatenate([np.zeros(0, np.int64), *codes])

    def _remove(self, places: list[Positions], stays: NDArray[np.bool_]) -> tuple[list[Piece], Counts]:
        """What does not stay leaves."""
        gone: list[Piece] = []
        out = np.zeros_like(self.waiting)
        kept: deque[Segment] = deque()
        start = 0
        for segment, mine in zip(self._segments, places, strict=True):
            stay = stays[start : start + len(mine)]
            start += len(mine)
            if stay.all():
                kept.append(segment)
                continue
            gone.append(Piece(segment.chunk, mine[~stay]))
            out += self._count(segment.chunk, mine[~stay])
            if stay.any():
                last = kept[-1] if kept else None
                positions = mine[stay]
                if last is not None and last.chunk is segment.chunk and last.kept is not None:
                    kept.pop()
                    positions = np.concatenate([last.kept[last.head :], positions])
                kept.append(Segment(segment.chunk, 0, 0, positions))
        self._segments = kept
        self.waiting -= out
        return gone, out

    def expire(self, events: int, arrived: float, sheddable: NDArray[np.bool_]) -> tuple[list[Piece], Counts]:
        """Of the first events, messages that arrived before a time leave, if their class allows it. O(events)."""
        head = self.head()
        if head is None or head.arrival >= arrived or head.before >= events:
            return [], np.zeros_like(self.waiting)
        gone: list[Piece] = []
        out = np.zeros_like(self.waiting)
        kept: deque[Segment] = deque()
        while self._segments and events > 0:
            segment = self._segments.popleft()
            stop = min(segment.end, segment.head + events)
            events -= stop - segment.head
            mine = segment.positions(segment.head, stop)
            chunk = segment.chunk
            late = (chunk.kind[mine] == MESSAGE) & (chunk.arrival[mine] < arrived) & sheddable[chunk.qos[mine]]
            if not late.any():
                kept.append(segment)
                continue
            gone.append(Piece(chunk, mine[late]))
            out += self._count(chunk, mine[late])
            if not late.all():
                kept.append(Segment(chunk, 0, 0, mine[~late]))
            if stop < segment.end:
                segment.head = stop
                kept.append(segment)
        self._segments.extendleft(reversed(kept))
        self.waiting -= out
        return gone, out

    def check(self) -> None:
        """Recount everything; :class:`tamis.InvariantError` when a number or the order is wrong. O(events)."""
        counts = np.zeros_like(self.waiting)
        singles = len(self._singles)
        for segment in self._segments:
            if len(segment) <= 0:
                raise InvariantError("queue: an empty segment was kept")
            positions = segment.positions(segment.head, segment.end)
            if np.any(np.diff(positions) <= 0):
                raise InvariantError("queue: events of a chunk changed their order")
            if segment.messages() != np.count_nonzero(segment.chunk.kind[positions] == MESSAGE):
                raise InvariantError("queue: messages of a segment are miscounted")
            counts += self._count(segment.chunk, positions)
        if singles + counts.sum() != self.waiting.sum() or np.any(counts > self.waiting):
            raise InvariantError(f"queue: {counts.tolist()} events wait, counted as {self.waiting.tolist()}")
