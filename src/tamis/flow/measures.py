"""What a flow measures: the balance of its events, and distributions in bounded memory.

Guarantees that ``in = delivered + shed + rejected + queued`` can be checked at any moment, per sort of event and class,
and that a distribution of any number of values takes the same few kilobytes, its extremes exact, its quantiles within
3 %. Refuses to know where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tamis.errors import InvariantError, UsageError
from tamis.model.events import KINDS

Counts = NDArray[np.int64]


class Balance:
    """Where every event went, counted by sort and class: ``came``, ``delivered``, ``shed``, ``rejected``, ``held``.

    ``held`` are events that were taken and are not done; with those that wait in the queue they are the queued ones.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        shape = (len(KINDS), len(self.classes))
        self.came, self.delivered, self.shed, self.rejected, self.held = (np.zeros(shape, np.int64) for _ in range(5))

    def check(self, waiting: Counts) -> None:
        """``in = delivered + shed + rejected + queued``, or :class:`tamis.InvariantError`."""
        out = self.delivered + self.shed + self.rejected + self.held + waiting
        if not np.array_equal(self.came, out) or min(int(part.min()) for part in (out, self.held, waiting)) < 0:
            raise InvariantError(f"flow: {self.came.tolist()} events came in, {out.tolist()} are accounted for")

    def _parts(self, waiting: Counts) -> dict[str, Counts]:
        return {
            "in": self.came,
            "delivered": self.delivered,
            "shed": self.shed,
            "rejected": self.rejected,
            "queued": self.held + waiting,
        }

    def to_dict(self, waiting: Counts) -> dict[str, dict[str, int]]:
        """Per sort of event: in, delivered, shed, rejected, queued."""
        parts = self._parts(waiting)
        return {kind: {name: int(part[k].sum()) for name, part in parts.items()} for k, kind in enumerate(KINDS)}

    def by_class(self, waiting: Counts) -> dict[str, dict[str, int]]:
        """Per class: in, delivered, shed, rejected, queued, of all sorts of events."""
        parts = self._parts(waiting)
        return {
            name: {what: int(part[:, k].sum()) for what, part in parts.items()} for k, name in enumerate(self.classes)
        }


_PER_DOUBLING: Final = 24
_LOWEST: Final = 1e-7
_BUCKETS: Final = _PER_DOUBLING * 44


class Distribution:
    """Seconds, from 100 ns to weeks, in buckets 3 % wide.

    >>> d = Distribution()
    >>> d.add(np.array([0.1, 0.2, 0.4]))
    >>> len(d), d.max, round(d.quantile(0.5), 2)
    (3, 0.4, 0.2)
    """

    def __init__(self) -> None:
        self._count = np.zeros(_BUCKETS, np.int64)
        self.sum = 0.0
        self.max = 0.0

    def add(self, seconds: NDArray[np.float64]) -> None:
        """More values; what is below 100 ns counts as 100 ns."""
        if not len(seconds):
            return
        place = np.ceil(np.log2(np.maximum(seconds, _LOWEST) / _LOWEST) * _PER_DOUBLING).astype(np.int64)
        self._count += np.bincount(np.minimum(place, _BUCKETS - 1), minlength=_BUCKETS)
        self.sum += float(seconds.sum())
        self.max = max(self.max, float(seconds.max()))

    def __len__(self) -> int:
        return int(self._count.sum())

    @property
    def mean(self) -> float:
        """The mean; nought of nothing."""
        return self.sum / len(self) if len(self) else 0.0

    def quantile(self, share: float) -> float:
        """The value that a share of all do not exceed, at most 3 % too high; nought of nothing."""
        if not 0 <= share <= 1:
            raise UsageError(f"quantile: expected a share from 0 to 1, got {share!r}")
        total = len(self)
        if not total:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._count), max(1, share * total)))
        return min(self.max, float(_LOWEST * 2 ** (place / _PER_DOUBLING)))

    def cumulative(self, ends: Sequence[float]) -> list[int]:
        """How many values do not exceed each end, as histograms of monitoring systems want them."""
        sums = np.cumsum(self._count)
        places = np.floor(np.log2(np.asarray(ends, np.float64) / _LOWEST) * _PER_DOUBLING + 1e-9).astype(np.int64)
        return [int(sums[min(place, _BUCKETS - 1)]) if place >= 0 else 0 for place in places.tolist()]

    def to_dict(self) -> dict[str, Any]:
        """Number, mean, quantiles and maximum."""
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
        found: dict[str, Any] = {"count": len(self), "mean": self.mean}
        return {**found, **{name: self.quantile(share) for name, share in shares.items()}, "max": self.max}
