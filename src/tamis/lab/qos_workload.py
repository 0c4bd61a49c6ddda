"""The workload of the QoS paper (Section 5.2, Table 1): the AGILE workload with skewed messages, and bursts over time.

A course is a sequence of phases, each with a rate of messages and of updates; every event has the time of its
designated arrival. Guarantees the same course for the same seed. Refuses to know policies and clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tamis import EventLog, Filter
from tamis.flow import Chunk

from .agile_workload import DIGITS, DOMAIN, NAMES, World, update_columns

SKEW: Final = 0.6
DISTINCT: Final = 1_000
WARM: Final = 300  # messages before the clock starts


class Phase(NamedTuple):
    """So many seconds with so many messages and updates per second."""

    seconds: float
    messages: float
    updates: float


STEADY: Final = Phase(10, 150, 7_500)
DECAY: Final = Phase(50, 50, 2_500)
COMBINED: Final = (STEADY, Phase(10, 800, 115_000), DECAY)
MESSAGES: Final = (STEADY, Phase(10, 1_500, 7_500), DECAY)
UPDATES: Final = (Phase(10, 50, 2_500), Phase(10, 50, 150_000), DECAY)


def scaled(phases: Sequence[Phase], scale: float) -> tuple[Phase, ...]:
    """The phases at a share of the paper's size: times stay, every profile is updated as often, messages are fewer."""
    return tuple(Phase(one.seconds, one.messages * thin(scale), one.updates * scale) for one in phases)


def thin(scale: float) -> float:
    """The share of the paper's messages: falls more slowly than the scale, so that a small run still has thousands."""
    return float(scale**0.55)


class Skewed(World):
    """The AGILE world with messages whose values follow a Zipf distribution, other values in front on each
    attribute."""

    def __init__(self, profiles: int, seed: int) -> None:
        super().__init__(profiles, seed, digits=DIGITS)
        weight = 1.0 / np.arange(1, DISTINCT + 1) ** SKEW
        self._weight = weight / weight.sum()
        self._place = np.stack([self.rng.permutation(DISTINCT) for _ in NAMES], axis=1)

    def points(self, count: int) -> NDArray[np.float64]:
        """The next messages, shape (count, 8)."""
        rank = self.rng.choice(DISTINCT, (count, len(NAMES)), p=self._weight)
        value = (np.take_along_axis(self._place, rank, axis=0) + 0.5) * (DOMAIN / DISTINCT)
        return self._seen(value.astype(np.float64))

    def course(self, phases: Sequence[Phase]) -> Course:
        """All events of some phases with their times; rates are even within a phase."""
        starts = np.cumsum([0.0, *(phase.seconds for phase in phases)])
        sent, moved = [np.zeros(0)], [np.zeros(0)]
        for phase, start in zip(phases, starts, strict=False):
            for times, rate in ((sent, phase.messages), (moved, phase.updates)):
                count = round(rate * phase.seconds)
                times.append(start + (np.arange(count) + 0.5) * (phase.seconds / max(count, 1)))
        at_message, at_update = np.concatenate(sent), np.concatenate(moved)
        points, moves = self.points(len(at_message)), self.updates(len(at_update))
        log = EventLog.merge(
            messages={**{n: np.ascontiguousarray(points[:, k]) for k, n in enumerate(NAMES)}, "seq": at_message},
            updates={**update_columns(*moves), "seq": at_update},
        )
        return Course(Chunk(log, np.sort(np.concatenate([at_update, at_message]), kind="stable")), starts, at_message)


class Course(NamedTuple):
    """The events of a course in one chunk; ``starts`` are the times at which its phases begin, and its end."""

    chunk: Chunk
    starts: NDArray[np.float64]
    sent: NDArray[np.float64]
    """When each message arrives."""

    @property
    def burst(self) -> tuple[float, float]:
        """When the burst, the second phase, begins and ends."""
        return float(self.starts[1]), float(self.starts[2])


class Stage:
    """A world, a log that every filter warms up with, and the course; filters are loaded as the world was at first."""

    def __init__(self, profiles: int, seed: int, phases: Sequence[Phase]) -> None:
        self.profiles, self.seed = profiles, seed
        world = Skewed(profiles, seed)
        quiet = phases[0]
        warm = Phase(WARM / quiet.messages, quiet.messages, quiet.updates)
        self.warm = world.course([warm]).chunk.log
        self.course = world.course(phases)

    def load(self, filter: Filter) -> Filter:
        """Profiles and contexts into a filter, and the warm-up, one piece after the other: its kernels are compiled."""
        Skewed(self.profiles, self.seed).subscribe(filter)
        filter.process(self.warm)
        return filter

    def numbers(self, seq: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which message of the course an event is."""
        return self.course.chunk.messages_before[seq]
