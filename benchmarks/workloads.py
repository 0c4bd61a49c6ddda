"""The eight-range workload, and the scan that everybody can write: shared by several benchmarks.

HEM's workload (DASFAA 2022): every profile has a range of 30 % of the domain on each of eight attributes, messages are
uniform. :class:`ProgressiveScan` is the honest plain answer to it in NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NAMES = tuple("abcdefgh")
DOMAIN = 1e6
WIDTH = 0.3
FIRST_ID = 1_000_000_000  # so that an id is never mistaken for a row number

TEXT = " and ".join(f"{name} between {{{name}lo}} and {{{name}hi}}" for name in NAMES)


class Ranges(NamedTuple):
    """Profiles by columns: ``low`` and ``high`` have the shape (8, profiles)."""

    ids: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def table(self) -> pa.Table:
        """The table for ``subscribe_many(TEXT, ...)``."""
        columns: dict[str, Any] = {"id": self.ids}
        for k, name in enumerate(NAMES):
            columns[f"{name}lo"], columns[f"{name}hi"] = self.low[k], self.high[k]
        return pa.table(columns)


def ranges(rng: np.random.Generator, profiles: int, first: int = FIRST_ID) -> Ranges:
    """Random profiles: centres uniform where the whole range fits into the domain."""
    half = WIDTH / 2
    centre = rng.uniform(half, 1 - half, (len(NAMES), profiles)) * DOMAIN
    ids = np.arange(first, first + profiles, dtype=np.int64)
    return Ranges(ids, centre - half * DOMAIN, centre + half * DOMAIN)


def messages(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Uniform messages, shape (count, 8)."""
    return rng.uniform(0, DOMAIN, (count, len(NAMES)))


def message_table(values: NDArray[np.float64], names: tuple[str, ...] = NAMES) -> pa.Table:
    """Messages as the table that a user would have."""
    return pa.table({name: np.ascontiguousarray(values[:, k]) for k, name in enumerate(names)})


class ProgressiveScan:
    """Tests one message against all profiles: the first attribute in full, every further one on the survivors.

    ``low`` and ``high`` have the shape (attributes, profiles). The most selective attribute comes first.
    """

    def __init__(self, ids: NDArray[np.int64], low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        self.order = np.argsort((high - low).mean(axis=1), kind="stable").tolist()
        self.ids, self.low, self.high = ids, np.ascontiguousarray(low), np.ascontiguousarray(high)
        self._above, self._below = np.empty(len(ids), bool), np.empty(len(ids), bool)

    def match(self, message: NDArray[np.float64]) -> NDArray[np.int64]:
        """The ids of the profiles that match a message of shape (attributes,)."""
        first, *rest = self.order
        np.less_equal(self.low[first], message[first], out=self._above)
        np.greater_equal(self.high[first], message[first], out=self._below)
        self._above &= self._below
        alive = np.flatnonzero(self._above)
        for k in rest:
            x = message[k]
            alive = alive[(self.low[k][alive] <= x) & (self.high[k][alive] >= x)]
        return self.ids[alive]

    def match_many(self, messages: NDArray[np.float64]) -> list[NDArray[np.int64]]:
        """One array of ids per message."""
        return [self.match(message) for message in messages]


def by_message(found: pa.Table, count: int) -> list[list[int]]:
    """The ids of each message out of ``Matches.to_arrow()``, for messages 0 to count - 1."""
    message = found["message"].to_numpy()
    profile = found["profile"].to_numpy()
    order = np.argsort(message, kind="stable")
    bounds = np.searchsorted(message[order], np.arange(1, count))
    return [part.tolist() for part in np.split(profile[order], bounds)]
