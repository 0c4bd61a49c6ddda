"""How a filter batches messages: the strategies and groupings of paper 002, as plain values.

Guarantees that a grouping puts every message into exactly one minibatch and that none is empty. What batching changes
is speed: whatever is chosen here, the matches are those of one event at a time. Refuses to know indexes and clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tamis.errors import UsageError

UNBATCHED, FULL, FULL_MIX, MINI, MINI_MIX = (
    "Unbatched/PIx",
    "Full/PIx",
    "Full/-/MIx",
    "MiniB/PIx",
    "MiniB/PIx/MIx",
)
STRATEGIES: Final = (UNBATCHED, FULL, FULL_MIX, MINI, MINI_MIX)
"""The strategies of paper 002: how messages are batched, whether profiles (PIx) and messages (MIx) are indexed."""
LARGEST: Final = 1 << 20  # messages of a batch

How: TypeAlias = Literal["size", "number", "values"]
Order: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Grouping:
    """How the messages of a batch are split into minibatches; see :func:`fixed_size` and its neighbours.

    ``least`` and ``most`` bound the messages of a minibatch: smaller groups join their neighbour, larger ones are cut.
    """

    how: How = "size"
    count: int = 16
    ranges: tuple[float, ...] = ()
    least: int = 1
    most: int = LARGEST

    def __post_init__(self) -> None:
        if self.how not in ("size", "number", "values"):
            raise UsageError(f"grouping: expected size, number or values, got {self.how!r}")
        for name, value in (("count", self.count), ("least", self.least), ("most", self.most)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"grouping: {name}: expected a whole number from 1 on, got {value!r}")
        if self.least > self.most:
            raise UsageError(f"grouping: expected least <= most, got {self.least} and {self.most}")
        if self.how == "values" and not self.ranges:
            raise UsageError("grouping: by value needs a range for one attribute at least")
        for width in self.ranges:
            if not (isinstance(width, int | float) and 0 < width < float("inf")):
                raise UsageError(f"grouping: expected a range above 0, got {width!r}")

    def split(self, columns: Sequence[NDArray[np.float64]]) -> tuple[Order, Order]:
        """The order of the messages, and where each minibatch begins in it (and where the last one ends).

        ``columns`` are the values of the indexed attributes, most selective first; NaN stands for none.
        """
        n = len(columns[0]) if columns else 0
        if n == 0:
            return np.zeros(0, np.int64), np.zeros(1, np.int64)
        first = columns[0]
        if self.how != "values":
            # Lexicographic, as in section 4: what is equal lies together, and indexes go on from the last value.
            order = np.lexsort((columns[min(1, len(columns) - 1)], first))
            step = self.count if self.how == "size" else -(-n // self.count)
            starts = np.arange(0, n, step)
        else:
            cells = [_cells(column, width) for column, width in zip(columns, self.ranges, strict=False)]
            order = np.lexsort((first, *reversed(cells)))
            new = np.zeros(n, np.bool_)
            new[0] = True
            for cell in cells:
                new[1:] |= cell[order[1:]] != cell[order[:-1]]
            starts = np.flatnonzero(new)
        return order.astype(np.int64, copy=False), self._bounded(np.append(starts, n))

    def _bounded(self, starts: Order) -> Order:
        """Small groups joined with the next one, large ones cut."""
        sizes = np.diff(starts)
        if sizes.min() < self.least and len(sizes) > 1:
            kept, last = [0], int(starts[-1])
            for start in starts[1:-1].tolist():
                if start - kept[-1] >= self.least:
                    kept.append(start)
            if len(kept) > 1 and last - kept[-1] < self.least:
                kept.pop()
            starts = np.array([*kept, last])
            sizes = np.diff(starts)
        if sizes.max() > self.most:
            pieces = [
                np.arange(a, b, self.most) for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
            ]
            starts = np.append(np.concatenate(pieces), starts[-1])
        return starts.astype(np.int64, copy=False)


def _cells(column: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    cells = np.floor(column / width)
    cells[np.isnan(column)] = np.inf
    return cells


def fixed_size(count: int) -> Grouping:
    """Sorted messages, so many in each minibatch."""
    return Grouping("size", count)


def fixed_number(count: int, *, least: int = 1, most: int = LARGEST) -> Grouping:
    """So many minibatches of equal size, whatever the batch; with bounds it is one of the paper's hybrids."""
    return Grouping("number", count, (), least, most)


def by_value(*ranges: float, least: int = 1, most: int = LARGEST) -> Grouping:
    """Messages whose values lie in the same range: one width (Val Att 1), or two (Val Att 2; Val Att 2+ if wider).

    Widths belong to the indexed attributes, most selective first; with bounds it is the paper's other hybrid.
    """
    return Grouping("values", 1, tuple(float(width) for width in ranges), least, most)


@dataclass(frozen=True)
class Batching:
    """What ``Filter(batching=...)`` takes: a strategy, the most messages of a batch, and how they are grouped.

    A log of fewer than ``least`` messages goes one event at a time: batches pay where they have many messages.

    >>> Batching("MiniB/PIx", size=10_000, grouping=fixed_size(32)).grouping.count
    32
    """

    strategy: str = MINI
    size: int = 2_048
    grouping: Grouping = Grouping()
    least: int = 2

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UsageError(f"batching: expected one of {', '.join(STRATEGIES)}, got {self.strategy!r}")
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= LARGEST:
            raise UsageError(f"batching: size: expected a whole number from 1 to {LARGEST:,}, got {self.size!r}")
        if isinstance(self.least, bool) or not isinstance(self.least, int) or self.least < 2:
            raise UsageError(f"batching: least: expected a whole number from 2 on, got {self.least!r}")
        if not isinstance(self.grouping, Grouping):
            raise UsageError(f"batching: grouping: expected a Grouping, got {self.grouping!r}")

    @classmethod
    def of(cls, given: Any) -> Batching | None:
        """What was meant: None, the name of a strategy, what :meth:`to_dict` gave, or a Batching."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str):
            return cls(given)
        if isinstance(given, Mapping):
            grouping = {**given["grouping"], "ranges": tuple(given["grouping"]["ranges"])}
            return cls(given["strategy"], given["size"], Grouping(**grouping), given.get("least", 2))
        raise UsageError(f"batching: expected a Batching or one of {', '.join(STRATEGIES)}, got {given!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @property
    def profile_index(self) -> bool:
        """Whether profiles are indexed."""
        return self.strategy != FULL_MIX

    @property
    def message_index(self) -> bool:
        """Whether messages are indexed."""
        return self.strategy in (FULL_MIX, MINI_MIX)

    def split(self, columns: Sequence[NDArray[np.float64]]) -> tuple[Order, Order]:
        """The minibatches of one batch, as :meth:`Grouping.split`; a full batch is one, or none if it is empty."""
        if self.strategy in (MINI, MINI_MIX):
            return self.grouping.split(columns)
        order, starts = Grouping("size", LARGEST).split(columns)
        return order, starts[[0, -1]] if len(order) else starts
