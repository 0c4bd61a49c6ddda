"""The workloads of the batching paper (Section 6.2, Table 1): range profiles and point profiles, and their messages.

RQ: every profile has a range on each of eight attributes, from 3 % of the domain on the most selective one to all of
it, such that 0.147 % of the profiles match a uniform message and 0.15 % a Gaussian one, as in the paper. Messages are
uniform (RQ-U), Gaussian on the first two attributes (RQ-G), or take Zipfian values out of 50 on the first four (RQ-Z).
PQ: profiles compare four of 32 attributes, two of them the same for all, with one of 35 values; messages have them all,
Zipfian. Guarantees the same profiles and messages for the same seed. Refuses to know clocks.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis import EventLog, Filter

from .agile_workload import DIGITS, DOMAIN, NAMES, quantise

PROFILES: Final = 500_000  # P
HALF: Final = np.array([0.03, 0.083, 1.0, 1.4, 1.5, 1.6, 1.8, 2.0]) * DOMAIN / 2
"""Half the width of each range."""
GAUSS: Final = (250.0, 350.0)  # standard deviations, around the middle
DISTINCT: Final = 50  # values of RQ-Z, on each of ZIPFIAN attributes
ZIPFIAN: Final = 4
POINTS: Final = tuple(f"a{k:02}" for k in range(32))  # AP
VALUES: Final = 35  # VRP

Columns = dict[str, NDArray[np.float64]]


class Workload(Protocol):
    """Profiles, the index that the paper uses for them, and messages by distribution."""

    profiles: int

    @property
    def index(self) -> str:
        """The paper's index."""

    @property
    def indexed(self) -> tuple[str, ...]:
        """The attributes that it covers."""

    def subscribe(self, filter: Filter) -> None:
        """All profiles; ids are 0 to profiles - 1."""

    def messages(self, count: int, distribution: str) -> EventLog:
        """The next messages."""


def zipf(count: int) -> NDArray[np.float64]:
    """The probabilities of Zipf's law."""
    weight: NDArray[np.float64] = 1.0 / np.arange(1, count + 1)
    weight /= weight.sum()
    return weight


class Ranges:
    """RQ: distributions Z, G and U."""

    index: Final = "skiplist"
    indexed: Final = NAMES[:2]

    def __init__(self, profiles: int, seed: int) -> None:
        self.rng, self.profiles = np.random.default_rng(seed), profiles
        middle = self.rng.uniform(0, DOMAIN, (profiles, len(NAMES)))
        self.low, self.high = middle - HALF, middle + HALF
        for ends in (self.low, self.high):
            quantise(ends.reshape(-1), DIGITS)
        self.values = self.rng.uniform(0, DOMAIN, (ZIPFIAN, DISTINCT))

    def subscribe(self, filter: Filter) -> None:
        """All profiles, out of one table."""
        table: dict[str, Any] = {"id": np.arange(self.profiles)}
        for k, name in enumerate(NAMES):
            table[f"{name}lo"], table[f"{name}hi"] = self.low[:, k], self.high[:, k]
        filter.subscribe_many(" and ".join(f"{n} between {{{n}lo}} and {{{n}hi}}" for n in NAMES), table)

    def columns(self, count: int, distribution: str) -> Columns:
        """The values of the next messages."""
        x = self.rng.uniform(0, DOMAIN, (count, len(NAMES)))
        if distribution == "Z":
            for k in range(ZIPFIAN):
                x[:, k] = self.rng.choice(self.values[k], count, p=zipf(DISTINCT))
        if distribution == "G":
            for k, deviation in enumerate(GAUSS):
                x[:, k] = self.rng.normal(DOMAIN / 2, deviation, count)
        return {name: np.ascontiguousarray(x[:, k]) for k, name in enumerate(NAMES)}

    def messages(self, count: int, distribution: str) -> EventLog:
        """The next messages as a log."""
        return EventLog.of_messages(self.columns(count, distribution))

    def matching(self, message: NDArray[np.float64]) -> NDArray[np.int64]:
        """The ids that match, by brute force."""
        return np.flatnonzero(((self.low <= message) & (message <= self.high)).all(axis=1))


class PointQueries:
    """PQ: two attributes are in every profile, two more are any of 28 others."""

    index: Final = "hash"
    indexed: Final = POINTS[:2]

    def __init__(self, profiles: int, seed: int) -> None:
        self.rng, self.profiles = np.random.default_rng(seed), profiles
        pairs = list(combinations(POINTS[4:], 2))
        shape = np.sort(self.rng.integers(0, len(pairs), profiles))
        self.shapes = [(pairs[i], np.flatnonzero(shape == i)) for i in np.unique(shape).tolist()]
        self.wanted = self.rng.integers(1, VALUES + 1, (profiles, 4)).astype(float)

    def subscribe(self, filter: Filter) -> None:
        """All profiles, one table for each pair of attributes."""
        for pair, ids in self.shapes:
            names = (*self.indexed, *pair)
            table: dict[str, Any] = {"id": ids, **{f"v{k}": self.wanted[ids, k] for k in range(4)}}
            filter.subscribe_many(" and ".join(f"{name} == {{v{k}}}" for k, name in enumerate(names)), table)

    def messages(self, count: int, distribution: str) -> EventLog:
        """The next messages, all Zipfian."""
        values = np.arange(1, VALUES + 1, dtype=float)
        return EventLog.of_messages({name: self.rng.choice(values, count, p=zipf(VALUES)) for name in POINTS})
