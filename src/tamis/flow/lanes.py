"""Lanes: classes of profiles, each with a filter and a flow of its own, served in the order of their loss.

Which class a message belongs to is only known once it is matched, so a class of profiles gets what it was promised by
its own lane: every message and update goes to all lanes, and the lane with the greatest loss is served first.
Guarantees that a lane never waits for more than one log of another, so that a class that allows no errors gets none,
and is late only when its own events are more than can be worked. Contexts belong to a lane: what an effect changes in
one is not seen in the others. Refuses to know clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tamis.errors import UsageError
from tamis.model.events import EventLog
from tamis.model.matches import Matches

from .chunk import Chunk
from .classes import Classes
from .core import Flow, Processor, Work
from .values import Numbering


class LaneWork(NamedTuple):
    """Work, and the class of profiles it is for."""

    qos: str
    work: Work


class Lanes:
    """One flow per class of profiles.

    ``classes`` are names with the loss that an error would be, ``policies`` a policy or wish for each, ``filters``
    makes the filter of a class.

    >>> from tamis import Filter
    >>> import math
    >>> lanes = Lanes(lambda name: Filter(), {"gold": math.inf, "basic": 1.0}, {"basic": "latency <= 1s"})
    >>> lanes.offer(("subscribe", "p", "x > 3"), now=0.0, qos="gold")
    >>> lanes.offer(("subscribe", "q", "x > 4"), now=0.0, qos="basic")
    >>> lanes.offer({"x": 5}, now=0.0)
    >>> found = []
    >>> while (done := lanes.step(lambda: 0.1)) is not None:
    ...     found += [(done[0], id) for _, id in done[1]]
    >>> found
    [('gold', 'p'), ('basic', 'q')]
    """

    def __init__(
        self,
        filters: Callable[[str], Processor],
        classes: Mapping[str, float],
        policies: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        known = Classes(classes)
        given = dict(policies or {})
        for name in given:
            known.code(name)
        order = sorted(known.names, key=lambda name: -classes[name])
        options.setdefault("numbering", Numbering())
        self.flows = {name: Flow(filters(name), given.get(name), **options) for name in order}
        for name, flow in self.flows.items():
            if known.loss[known.code(name)] == float("inf") and hasattr(flow.policy, "what"):
                raise UsageError(f"class {name!r} allows no errors, but its policy sheds: {flow.policy}")
        self._classes = known
        self._lane: dict[Any, str] = {}

    def offer(self, event: Any, now: float, qos: str | None = None) -> None:
        """A message or update for all lanes, a subscribe for the lane of its class; or a log of messages and
        updates."""
        if isinstance(event, EventLog):
            if event.subscribes is not None or event.unsubscribes is not None:
                raise UsageError(
                    "lanes: a log holds messages and updates; offer subscriptions one by one, with a class"
                )
            chunk = Chunk(event, now)
            for flow in self.flows.values():
                flow.offer_chunk(chunk, now)
            return
        kind = event[0] if isinstance(event, tuple) and event else "message"
        if kind not in ("subscribe", "unsubscribe"):
            for flow in self.flows.values():
                flow.offer(event, now)
            return
        self._subscription(event, now, qos)

    def _subscription(self, event: tuple[Any, ...], now: float, qos: str | None) -> None:
        if len(event) < 2:
            raise UsageError(f"event {event[0]!r}: expected an id behind it, got {event!r}")
        last = self._lane.get(event[1])
        if event[0] == "unsubscribe":
            self.flows[last or next(iter(self.flows))].offer(event, now)
            self._lane.pop(event[1], None)
            return
        name = self._classes.names[self._classes.code(qos)]
        self.flows[name].offer(event, now)
        if last is not None and last != name:  # the profile changes its class
            self.flows[last].offer(("unsubscribe", event[1]), now)
        self._lane[event[1]] = name

    def take(self, now: float) -> LaneWork | None:
        """The next work of the first lane that has any."""
        for name, flow in self.flows.items():
            work = flow.take(now)
            if work is not None:
                return LaneWork(name, work)
        return None

    @property
    def wake(self) -> float:
        """When :meth:`take` wants to be asked again, after it gave nothing."""
        return min(flow.wake for flow in self.flows.values())

    def done(self, one: LaneWork, matches: Matches, now: float, seconds: float | None = None) -> None:
        """Work is finished."""
        self.flows[one.qos].done(one.work, matches, now, seconds)

    def step(self, clock: Callable[[], float]) -> tuple[str, Matches] | None:
        """Take work, process it and hand it back; the class and the matches."""
        one = self.take(clock())
        if one is None:
            return None
        filter = self.flows[one.qos].filter
        assert filter is not None
        matches = filter.process(one.work.log)
        self.done(one, matches, clock())
        return one.qos, matches

    def balance(self) -> dict[str, dict[str, dict[str, int]]]:
        """The balance of every lane."""
        return {name: flow.balance() for name, flow in self.flows.items()}

    def check(self) -> None:
        """Verify every lane."""
        for flow in self.flows.values():
            flow.check()
