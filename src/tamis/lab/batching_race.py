"""Batching strategies on the same messages: one filter per index, which is told how to batch before each log.

Guarantees that all strategies give the same matches of every log, that they take turns, and that only
``Filter.process`` is timed. Refuses to know what the messages are about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tamis import EventLog, Filter, UsageError
from tamis.flow import Batching

from .batching_workload import PROFILES, Workload
from .experiment import Inexact, NotMeasured, Setting
from .race import digest, rounded, timed

BLOCKS: Final = "blocks"
LEAST: Final = 2  # measurements of each contender at each point

Contenders = Mapping[str, tuple[str, Batching | None]]
"""Name: which filter, and how it batches."""


def profiles_at(scale: float) -> int:
    """The paper's 500,000 at scale 1; never so few that nothing matches."""
    return max(1_000, round(PROFILES * scale))


def budget_at(setting: Setting) -> float:
    """Seconds that a contender measures at a point: 2 at the paper's size, less below it."""
    return setting.budget if setting.budget is not None else max(0.05, 2 * setting.scale**0.65)


@dataclass
class Standing:
    """What a contender did at one point: messages per second of its best log, and what its batches cost."""

    rate: float
    runs: int
    costs: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; figures to four digits."""
        costs = {name: rounded(value) for name, value in self.costs.items()}
        return {"messages per second": rounded(self.rate), "runs": self.runs, "costs per message": costs}


class Race:
    """Filters with the paper's index and with ``blocks``, loaded alike."""

    def __init__(self, workload: Workload, setting: Setting) -> None:
        self.workload = workload
        options: dict[str, dict[str, Any]] = {
            workload.index: {"index": workload.index, "strategy": "eager", "indexed": workload.indexed},
            BLOCKS: {"index": "blocks"},
        }
        self.filters = {name: Filter(**more) for name, more in options.items()}
        for filter in self.filters.values():
            workload.subscribe(filter)
        self._wanted = setting.contenders

    def run(self, contenders: Contenders, log: EventLog, seconds: float) -> dict[str, Standing]:
        """All contenders on one log, in turns, until each has measured for so many seconds."""
        names = [name for name in contenders if self._wanted is None or name in self._wanted]
        if not names:
            raise UsageError(f"no contender of {', '.join(contenders)} is wanted")
        messages = 0 if log.messages is None else log.messages.num_rows
        best, runs, used = dict.fromkeys(names, np.inf), dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
        costs: dict[str, dict[str, float]] = {}
        found: tuple[str, tuple[int, int]] | None = None
        while names:
            for name in list(names):
                index, batching = contenders[name]
                filter = self.filters[index]
                filter.batching = batching
                before = filter.batch_costs
                tested = filter.stats["postfiltered"]
                matches, stats, taken = timed(filter, log)
                after = filter.batch_costs
                if runs[name] == 0:
                    mark = digest(matches)
                    if found is None:
                        found = (name, mark)
                    elif found[1] != mark:
                        raise Inexact(f"{name} and {found[0]} gave different matches")
                if taken < best[name]:
                    best[name] = taken
                    costs[name] = {stage: (after[stage] - before[stage]) / messages for stage in after}
                    costs[name]["tested"] = (stats["postfiltered"] - tested) / messages
                runs[name] += 1
                used[name] += taken
                if runs[name] >= LEAST and used[name] >= seconds:
                    names.remove(name)
        return {name: Standing(messages / best[name], runs[name], costs[name]) for name in best}


class Grid:
    """Contender × point; what is not there raises :class:`NotMeasured`."""

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter
        self.standings: dict[tuple[str, float], Standing] = {}

    def add(self, point: float, found: Mapping[str, Standing]) -> None:
        """What all contenders did at a point."""
        self.standings.update({(name, point): standing for name, standing in found.items()})

    def at(self, name: str, point: float) -> Standing:
        """What a contender did at a point."""
        standing = self.standings.get((name, point))
        if standing is None:
            raise NotMeasured(f"{name} was not measured at {self.parameter} = {point:,g}")
        return standing

    def rate(self, name: str, point: float) -> float:
        """Messages per second."""
        return self.at(name, point).rate

    def best(self, names: tuple[str, ...], point: float) -> float:
        """The most messages per second of several."""
        return max(self.rate(name, point) for name in names)

    def names(self) -> list[str]:
        """Who was measured, in order."""
        return list(dict.fromkeys(name for name, _ in self.standings))

    def points(self) -> list[float]:
        """Where."""
        return sorted({point for _, point in self.standings})

    def series(self, name: str) -> list[float | None]:
        """Messages per second at every point."""
        found = [self.standings.get((name, point)) for point in self.points()]
        return [None if one is None else one.rate for one in found]

    def to_list(self, **more: Any) -> list[dict[str, Any]]:
        """Plain values, one entry per contender and point."""
        return [
            {**more, "contender": name, self.parameter: point, **standing.to_dict()}
            for (name, point), standing in self.standings.items()
        ]
