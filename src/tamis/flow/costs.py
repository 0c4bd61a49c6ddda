"""What work costs: seconds of a log as a fixed part, a part per message and a part per update.

Guarantees estimates that are never negative and rise with the number of events. They are set, or learned while running
from the seconds that finished logs took: least squares on relative errors, so that logs of one event and of a million
count alike, with forgetting, so that a filter that adapts is followed. Refuses to know clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tamis.errors import UsageError

FIRST: Final = (300e-6, 100e-6, 1e-6)
"""Seconds per log, message and update that a learner starts with; the first logs correct them."""
FORGET: Final = 0.98
"""The weight of a log when the next one has come: the last fifty count most."""
INERTIA: Final = 0.02
"""How much figures cling to the usual: enough that they stay near it where logs do not tell them from each other, as
when all have the same number of updates per message. A wrong share would be fatal for who sheds by it: what he thinks
expensive he sheds, and then it hardly occurs in his logs."""
LEAST: Final = 0.125
"""No event costs less than this share of the usual."""
ADAPT: Final = 0.05
"""How far one log moves the scale of the usual figures."""
MANY: Final = 8
"""Events of a log that tells what they cost beside what it costs in itself."""
EVERY: Final = 8
"""After the first logs the figures are computed anew after so many, or at once after a surprise."""
SURPRISE: Final = 0.4
"""A log is a surprise when it takes so much more or less than expected, as a share."""
SLACK: Final = 1.2
RELAX: Final = 1.05
"""No event costs more than a log that had many of them, per event, and SLACK; that is forgotten by and by. Without it
a flow that has shed so much that all its logs are small could not know what large ones would cost, and would go on
shedding."""
REACH: Final = 4
"""Estimates are trusted for logs up to so many times the largest one that was seen."""
CAREFUL: Final = 2.0
"""How many mean deviations an estimate that must hold adds."""
OVERRUN: Final = 1.0
"""What a log may always take longer than estimated, as a share."""
MOST: Final = 2.0
"""What an estimate at worst adds at most, as a share."""
CALM: Final = 0.99
"""How much of the worst surprise is remembered after the next log."""


class Costs:
    """Estimated seconds of a log.

    >>> costs = Costs(message=1850e-6, update=80e-6)        # set by the administrator
    >>> round(costs.seconds(messages=2, updates=10), 6)
    0.0045
    >>> costs = Costs()                                      # learned
    >>> for messages, updates in [(1, 0), (0, 50), (1, 0), (10, 500), (100, 100)] * 40:
    ...     costs.learn(messages, updates, 1e-3 + 2e-3 * messages + 1e-5 * updates)
    >>> 0.09 < costs.seconds(messages=50, updates=1_000) < 0.13
    True
    """

    def __init__(self, message: float | None = None, update: float | None = None, fixed: float = 0.0) -> None:
        if (message is None) != (update is None):
            raise UsageError("costs: set both message= and update=, in seconds, or neither to learn them")
        self.learning = message is None
        given = FIRST if message is None or update is None else (fixed, message, update)
        for name, value in zip(("fixed", "message", "update"), given, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise UsageError(f"costs: {name}= is a number of seconds, nought or more, got {value!r}")
        self._each = np.array(given, np.float64)
        self._scale = 1.0  # how many times FIRST a message and an update cost, as far as large logs tell
        # Sums over logs of x xᵀ / seconds² and of x / seconds, x = (1, messages, updates), the older the lighter.
        self._square, self._cross = np.zeros((3, 3)), np.zeros(3)
        self.deviation = 0.0
        """The mean relative difference between what logs took and what was estimated."""
        self._surprise = 0.0  # seconds beyond the estimate, by the square root of the estimate; the worst, fading
        self.logs = 0
        self._largest = 16
        self._ceiling = np.full(3, np.inf)

    @property
    def reach(self) -> float:
        """How many events a log may have so that its estimate is worth something."""
        return REACH * self._largest if self.learning else math.inf

    @property
    def fixed(self) -> float:
        """Seconds of a log whatever is in it."""
        return float(self._each[0])

    @property
    def message(self) -> float:
        """Seconds of one message more in a log."""
        return float(self._each[1])

    @property
    def update(self) -> float:
        """Seconds of one update more in a log."""
        return float(self._each[2])

    def seconds(self, messages: int, updates: int) -> float:
        """What a log is expected to take."""
        fixed, message, update = self._each.tolist()
        return float(fixed + messages * message + updates * update)

    def at_most(self, messages: int, updates: int) -> float:
        """A close upper bound of what a log takes: the estimate and two mean deviations."""
        return self.seconds(messages, updates) * (1 + CAREFUL * self.deviation)

    def worst(self, seconds: float) -> float:
        """What a log that is expected to take so long takes at worst, after the surprises of late.

        What goes wrong on the way adds up like steps of chance: with the square root of the time. Beyond MOST nothing
        is planned for: who feared the worst that ever happened would get nothing done.
        """
        return seconds + min(max(OVERRUN * seconds, self._surprise * math.sqrt(seconds)), MOST * seconds)

    def at_worst(self, messages: int, updates: int) -> float:
        """What a log takes at worst."""
        return self.worst(self.seconds(messages, updates))

    def singly(self, messages: int, updates: int) -> float:
        """What so many events take one message, or the updates between two of them, at a time."""
        return self.seconds(messages, updates) + self.fixed * max(0, messages + min(messages, updates) - 1)

    def learn(self, messages: int, updates: int, seconds: float) -> None:
        """A log is done; nothing happens when the costs are set."""
        if not self.learning or messages + updates == 0 or not 0 < seconds < math.inf:
            return
        row = np.array([1.0, messages, updates])
        expected = float(row @ self._each)
        if self.logs:
            off = min(1.0, abs(seconds - expected) / max(expected, 1e-12))
            share = max(1 - FORGET, 1 / (self.logs + 1))
            self.deviation += share * (off - self.deviation)
            if self.logs > 2 * EVERY:  # before, it is the estimate that is new
                beyond = (seconds - expected) / math.sqrt(max(expected, 1e-12))
                self._surprise = max(CALM * self._surprise, beyond)
        self.logs += 1
        self._largest = max(self._largest, messages + updates)
        surprise = abs(seconds - expected) / max(seconds, expected)
        if seconds > 2 * self.fixed and messages + updates >= MANY:
            now = (seconds - self.fixed) / (messages * FIRST[1] + updates * FIRST[2])
            self._scale *= (now / self._scale) ** ADAPT
        with np.errstate(divide="ignore"):
            # One log that seems to have taken far too little must not pull the ceiling down at once.
            self._ceiling = np.minimum(self._ceiling * RELAX, SLACK * max(seconds, expected / 2) / row)
        # A log that is far off counts less: it is as likely to have met a busy machine as to tell something new.
        row *= min(1.0, SURPRISE / max(surprise, 1e-9)) ** 0.5 / seconds
        self._square = FORGET * self._square + np.outer(row, row)
        self._cross = FORGET * self._cross + row * (seconds * row[0])
        if self.logs <= 2 * EVERY or self.logs % EVERY == 0 or surprise > SURPRISE:
            usual = np.array([self.fixed, self._scale * FIRST[1], self._scale * FIRST[2]])
            self._each = _solved(self._square, self._cross, usual, self._ceiling)

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain values, for :meth:`restored`."""
        return {
            "each": self._each.tolist(),
            "scale": self._scale,
            "square": self._square.tolist(),
            "cross": self._cross.tolist(),
            "ceiling": [None if math.isinf(value) else value for value in self._ceiling.tolist()],
            "deviation": self.deviation,
            "surprise": self._surprise,
            "logs": self.logs,
            "largest": self._largest,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any] | None) -> Costs:
        """A learner that goes on from a state; a new one without."""
        costs = cls()
        if state is not None:
            costs._each, costs._cross = np.array(state["each"], np.float64), np.array(state["cross"], np.float64)
            costs._square = np.array(state["square"], np.float64)
            costs._ceiling = np.array([math.inf if value is None else value for value in state["ceiling"]])
            costs.deviation, costs.logs, costs._largest = state["deviation"], state["logs"], state["largest"]
            costs._surprise = state.get("surprise", 0.0)
            costs._scale = state.get("scale", 1.0)
        return costs

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "fixed": self.fixed,
            "message": self.message,
            "update": self.update,
            "deviation": self.deviation,
            "learned": self.learning,
        }


Vector = NDArray[np.float64]


def _solved(square: Vector, cross: Vector, usual: Vector, ceiling: Vector) -> Vector:
    """The figures between a share of the usual ones and a ceiling that explain the logs best and lie near the usual."""
    floor = np.minimum(usual * [0, LEAST, LEAST], ceiling)
    cling = INERTIA * np.diag(square)
    matrix, right = square + np.diag(cling), cross + cling * usual
    found = np.minimum(usual, ceiling)
    free = np.flatnonzero(cling > 0)
    while len(free):
        others = np.setdiff1d(np.arange(3), free)
        part = np.linalg.solve(matrix[np.ix_(free, free)], right[free] - matrix[np.ix_(free, others)] @ found[others])
        beyond = np.maximum(floor[free] - part, part - ceiling[free]) * np.sqrt(cling[free])
        worst = int(np.argmax(beyond))
        if beyond[worst] <= 0:
            found[free] = part
            break
        found[free[worst]] = (floor if part[worst] < floor[free[worst]] else ceiling)[free[worst]]
        free = np.delete(free, worst)
    return found


class Rate:
    """Arrivals per second, over about ``memory`` seconds."""

    def __init__(self, memory: float = 1.0) -> None:
        self._memory = memory
        self._start: float | None = None
        self._last = 0.0
        self._weight = 0.0  # events, each forgotten with time
        self._time = 0.0

    def add(self, count: int, now: float) -> None:
        """So many more have arrived by now."""
        if self._start is None:
            self._start = self._last = now
        fade = math.exp(-max(0.0, now - self._last) / self._memory)
        self._time = self._time * fade + self._memory * (1 - fade)
        self._weight = self._weight * fade + count
        self._last = max(now, self._last)

    def per_second(self, now: float) -> float:
        """The rate as of now; nought until time has passed."""
        if self._start is None:
            return 0.0
        fade = math.exp(-max(0.0, now - self._last) / self._memory)
        time = self._time * fade + self._memory * (1 - fade)
        return self._weight * fade / time if time > 0 else 0.0
