"""The live runner: a flow under the real clock, between an asynchronous source and whoever takes the deliveries.

Guarantees that the source is not read while the flow has no room (backpressure), that a slow consumer slows the flow
and not the memory, that a stop or the end of the source works off everything that was taken in, and that nothing which
was found is lost when the consumer leaves in the middle: the next run begins with it. The filter works in a thread,
one log at a time; all else happens on the event loop. Refuses to know policies.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from tamis.errors import TamisError, UsageError
from tamis.model.matches import Id, Matches

from .core import Flow, Work

CAPACITY = 100_000
"""Events that may be queued when the flow itself has no limit."""


class Delivery(NamedTuple):
    """A match on its way to a subscriber: ``seq`` is the message's number, times are the clock's."""

    profile: Id
    message: dict[str, Any]
    seq: int
    arrival: float
    latency: float


class Classed(NamedTuple):
    """An event of a source with its class."""

    event: Any
    qos: str


class Done(NamedTuple):
    """A log that is done, as a whole: ``matches.message`` holds sequence numbers."""

    work: Work
    matches: Matches
    finished: float

    def deliveries(self) -> list[Delivery]:
        """One per match; the messages as mappings."""
        rows = self.work.log.message_rows
        order = np.argsort(rows, kind="stable")
        place = order[np.searchsorted(rows, self.matches.message, sorter=order)]
        messages = {k: self.work.log.message(k) for k in np.unique(place).tolist()}
        arrival = self.work.arrival[place]
        return [
            Delivery(id, messages[k], seq, came, self.finished - came)
            for id, k, seq, came in zip(
                self.matches.profile, place.tolist(), self.matches.message.tolist(), arrival.tolist(), strict=True
            )
        ]


async def run(flow: Flow, source: Any, **options: Any) -> AsyncIterator[Delivery]:
    """Every match of a source as it is found: ``async for delivery in flow.run(source)``.

    ``source`` is an asynchronous (or plain) iterable of events as :meth:`Flow.offer` takes them, or of
    :class:`Classed` ones. ``stop`` is an :class:`asyncio.Event` that ends the reading; what was read is worked off.
    ``clock`` gives seconds. An event that cannot be read counts as rejected (see ``flow.on_rejected``). When the source
    raises, what was read is worked off first.
    """
    left = flow.undelivered
    async for done in batches(flow, source, **options):
        left.extend(done.deliveries())
        while left:
            yield left.popleft()
    while left:
        yield left.popleft()


async def batches(
    flow: Flow,
    source: AsyncIterable[Any] | Iterable[Any],
    *,
    stop: asyncio.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Done]:
    """The same, log by log, without a Python object per match."""
    if flow.filter is None:
        raise UsageError("this flow has no filter: Flow(filter, ...)")
    reader = _Reader(flow, source, clock, stop)
    task = asyncio.create_task(reader.read())
    watcher = asyncio.create_task(reader.watch()) if stop is not None else None
    try:
        while True:
            work = flow.take(clock())
            if work is not None:
                yield await _process(flow, work, clock)
                reader.room.set()
                continue
            if reader.over and not flow.queued and not reader.holding:
                break
            await reader.next_event(flow.wake - clock())
        if stop is None or not stop.is_set():
            await task  # raises what the source raised
    finally:
        for one in (task, watcher):
            if one is not None:
                one.cancel()
        await asyncio.gather(*(one for one in (task, watcher) if one is not None), return_exceptions=True)


async def _process(flow: Flow, work: Work, clock: Callable[[], float]) -> Done:
    """One log in a thread. When the task is cancelled meanwhile, the log is still done and kept for the next run."""
    assert flow.filter is not None
    doing = asyncio.ensure_future(asyncio.to_thread(flow.filter.process, work.log))
    try:
        matches = await asyncio.shield(doing)
    except asyncio.CancelledError:
        matches = await doing
        finished = clock()
        flow.done(work, matches, finished)
        flow.undelivered.extend(Done(work, matches, finished).deliveries())
        raise
    except Exception:
        flow.abandon(work, clock())
        raise
    finished = clock()
    flow.done(work, matches, finished)
    return Done(work, matches, finished)


class _Reader:
    """Reads the source while there is room."""

    def __init__(self, flow: Flow, source: Any, clock: Callable[[], float], stop: asyncio.Event | None) -> None:
        self.flow, self.source, self.clock, self.stop = flow, source, clock, stop
        self.capacity = flow.capacity if flow.capacity is not None else CAPACITY
        self.room, self.arrived = asyncio.Event(), asyncio.Event()
        self.over = False
        self.holding = False  # an event was read that there is no room for yet

    async def read(self) -> None:
        """Offers events until the source ends; whoever waits for events then hears of the end."""
        try:
            async for event in _events(self.source):
                self.holding = True
                while self.flow.queued - len(self.flow.debt) >= self.capacity:
                    self.room.clear()
                    await self.room.wait()
                self.offer(event)
                self.holding = False
                if self.stop is not None and self.stop.is_set():
                    break
        finally:
            self.over = True
            self.arrived.set()

    def offer(self, event: Any) -> None:
        """One event of the source; a wrong one is refused, and the others go on."""
        qos = None
        given = event
        if isinstance(event, Classed):
            event, qos = event
        try:
            self.flow.offer(event, self.clock(), qos=qos)
        except TamisError as error:
            self.flow.refuse(given, str(error), self.clock())
        self.arrived.set()

    async def watch(self) -> None:
        """A stop ends the reading also while the source is silent."""
        assert self.stop is not None
        await self.stop.wait()
        self.over = True
        self.arrived.set()

    async def next_event(self, seconds: float) -> None:
        """Until something arrives, the source ends, or so many seconds have passed."""
        if self.over:
            # Nothing more comes: only the time can bring work.
            await asyncio.sleep(max(0.0, seconds) if math.isfinite(seconds) else 0.0)
            return
        self.arrived.clear()
        self.room.set()
        try:
            await asyncio.wait_for(self.arrived.wait(), seconds if math.isfinite(seconds) else None)
        except TimeoutError:
            return


async def _events(source: Any) -> AsyncIterator[Any]:
    if isinstance(source, AsyncIterable):
        async for event in source:
            yield event
    elif isinstance(source, Iterable):
        for event in source:
            yield event
            await asyncio.sleep(0)  # a plain iterable must not keep the loop to itself
    else:
        raise UsageError(f"source: expected an asynchronous or plain iterable of events, got {type(source).__name__}")
