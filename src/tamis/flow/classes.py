"""Classes of service: what losing an event of each would cost, and whom shedding takes first.

Guarantees that shedding takes all it may from the class with the least declared loss before it touches the next, and
never anything from a class that allows no errors. Refuses to know queues and time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.model.events import MESSAGE, UPDATE
from tamis.model.tables import did_you_mean

What: TypeAlias = Literal["messages", "updates", "both"]
WHAT: Final[tuple[What, ...]] = ("messages", "updates", "both")
DEFAULT: Final = "default"


@dataclass(frozen=True)
class QosClass:
    """A class: ``loss`` is what losing one of its events costs, compared with others; infinite: none may be lost."""

    name: str
    loss: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"class: expected a name, got {self.name!r}")
        if isinstance(self.loss, bool) or not isinstance(self.loss, int | float) or not self.loss >= 0:
            raise UsageError(
                f"class {self.name!r}: loss= is a number, nought or more (math.inf: none), got {self.loss!r}"
            )


class Classes:
    """The classes of a flow, each with a number.

    >>> classes = Classes({"gold": math.inf, "silver": 10, "bronze": 1})
    >>> classes.names, classes.code("silver")
    (('gold', 'silver', 'bronze'), 1)
    """

    def __init__(self, given: Mapping[str, float] | Iterable[QosClass] | None = None) -> None:
        if given is None:
            given = (QosClass(DEFAULT),)
        found = [QosClass(*pair) for pair in given.items()] if isinstance(given, Mapping) else list(given)
        if not found or not all(isinstance(one, QosClass) for one in found):
            raise UsageError("classes: expected {name: loss}, or QosClass objects, at least one")
        self.names = tuple(one.name for one in found)
        if len(set(self.names)) < len(found):
            raise UsageError(f"classes: a name occurs twice in {', '.join(self.names)}")
        self.loss: NDArray[np.float64] = np.array([one.loss for one in found], np.float64)
        self.sheddable: NDArray[np.bool_] = np.isfinite(self.loss)
        self._code = {name: k for k, name in enumerate(self.names)}
        self.levels = [np.flatnonzero(self.loss == loss) for loss in np.unique(self.loss[self.sheddable])]

    def __len__(self) -> int:
        return len(self.names)

    def code(self, name: str | None) -> int:
        """The number of a class; ``None`` is the first one, or the one named ``default``."""
        if name is None:
            return self._code.get(DEFAULT, 0)
        code = self._code.get(name) if isinstance(name, str) else None
        if code is None:
            near = did_you_mean(str(name), self.names)
            raise UsageError(f"class: there is no class {name!r}; known: {', '.join(self.names)}{near}")
        return code

    def codes(self, given: Any, events: int) -> NDArray[np.int16]:
        """The numbers of a class for all events, or of one per event."""
        if given is None or isinstance(given, str):
            return np.full(events, self.code(given), np.int16)
        names = np.asarray(given, object)
        if names.shape != (events,):
            raise UsageError(f"qos: expected a class, or one per event ({events:,}), got {names.size:,}")
        unique, inverse = np.unique(names.astype(str), return_inverse=True)
        known: NDArray[np.int16] = np.array([self.code(str(name)) for name in unique.tolist()], np.int16)[inverse]
        return known

    def thinning(
        self,
        waiting: NDArray[np.int64],
        excess: float,
        per_message: float,
        per_update: float,
        what: What = "both",
        prefer: float | None = None,
    ) -> NDArray[np.int64]:
        """How many events of each sort and class to shed so that work of ``excess`` seconds goes.

        ``prefer`` is the share of these seconds that messages should give, where both sorts may be shed: by default
        what their share of the work is. What one sort cannot give the other does. Less than asked for when all that
        may be shed is not enough.
        """
        wanted = np.zeros_like(waiting)
        for level in self.levels:
            if excess <= 0:
                break
            messages = int(waiting[MESSAGE, level].sum()) if what != "updates" else 0
            updates = int(waiting[UPDATE, level].sum()) if what != "messages" else 0
            work = messages * per_message + updates * per_update
            share = prefer if prefer is not None and what == "both" else messages * per_message / work if work else 0.0
            least = min(share * excess, messages * per_message)
            from_updates = min(excess - least, updates * per_update)
            from_messages = min(excess - from_updates, messages * per_message)
            for kind, seconds, each in ((MESSAGE, from_messages, per_message), (UPDATE, from_updates, per_update)):
                if seconds <= 0 or each <= 0:
                    continue
                _spread(wanted[kind], waiting[kind], level, math.ceil(seconds / each - 1e-9))
            excess -= from_messages + from_updates
        return wanted


def _spread(wanted: NDArray[np.int64], waiting: NDArray[np.int64], level: NDArray[np.int64], count: int) -> None:
    """Shares a count among the classes of one level, by how many of each wait."""
    there = waiting[level]
    total = int(there.sum())
    count = min(count, total)
    if not total:
        return
    part = there * count // total
    missing = count - int(part.sum())
    room = there - part
    order = np.argsort(-room, kind="stable")
    for k in order.tolist():
        more = min(missing, int(room[k]))
        part[k] += more
        missing -= more
    wanted[level] += part
