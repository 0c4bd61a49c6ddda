"""``index="auto"`` at work: the indexes of a filter, looked at between logs and replaced where that pays.

What is decided lies in :mod:`tamis.index.choice`; here is when it is asked, and how one index takes the place of
another. Guarantees that the new one is complete before the next event, and that counters go on where the old one's
ended. Refuses to know costs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.index import FAMILY, BlocksIndex, Index, NoIndex
from tamis.index.choice import Chooser, Option
from tamis.index.picture import Load, Picture, look
from tamis.index.root import NOTHING, prospect
from tamis.kernels import bundles as b

from . import notice, warm

if TYPE_CHECKING:
    from .filter import Filter

CANDIDATES = {"agile": ("blocks", "hash", "noindex")}
"""What ``auto`` may choose from, the first to begin with; see ``docs/indexes.md`` for the workloads where each wins."""
OTHERS = ("btree", "hash", "rtree")
GAUGES = ("entries", "at_root", "blocks")  # what stats() says of the present, not of the past


class Auto:
    """The choosers of a filter, one per shard, and what they all have seen."""

    def __init__(self, owner: Filter) -> None:
        self._filter = owner
        self.load = Load()
        column = owner._compiler.attributes
        indexes = CANDIDATES.get(owner.strategy, OTHERS) if owner.index == "auto" else (owner.index,)
        names = owner.indexed
        self.choosers = [
            Chooser(
                indexes,
                self.load,
                number=names if isinstance(names, int) else None,
                fixed=tuple(column[name] for name in names) if isinstance(names, tuple) else None,
                scope=tuple(column[name] for name in owner.scope),
                shards=owner.threads,
            )
            for _ in range(owner.threads)
        ]
        self._retired: list[dict[str, int]] = [{} for _ in self.choosers]
        self._roots: dict[int, tuple[int, float]] = {}  # by shard: clauses, and the cost of a message at the root
        self._wake = (0, 0)

    def new_index(self, option: Option) -> Index:
        """An empty index of that sort."""
        f = self._filter
        if option.name == "blocks":
            return BlocksIndex(f._policy)
        if option.name == "noindex":
            return NoIndex()
        scope = {f._compiler.attributes[name]: ends for name, ends in f.scope.items()}
        return FAMILY[option.name](f.strategy, f._policy, option.attributes or 1, scope, ordered=True)

    # -- between logs ------------------------------------------------------------------------------------------

    def review(self) -> None:
        """Look at the indexes if it is time to, and replace those for which another has earned its price."""
        if self.load.messages < self._wake[0] and self.load.updates < self._wake[1]:
            return
        f = self._filter
        for shard, chooser in enumerate(self.choosers):
            if chooser.due(f._profiles.clauses // f.threads):
                ids = f._live(shard)
                option = chooser.better(f._indexes[shard], self._look(shard, ids), self._root(shard, ids))
                if option is not None:
                    self._replace(shard, option, ids)
        messages, updates = zip(*(chooser.wake() for chooser in self.choosers), strict=True)
        self._wake = (max(min(messages), self.load.messages + 1), max(min(updates), self.load.updates + 1))

    def build(self, shard: int) -> None:
        """The clauses of a shard have changed so much that its index is built anew: choose again."""
        f, chooser = self._filter, self.choosers[shard]
        ids = f._live(shard)
        before = chooser.option
        option = chooser.first(self._look(shard, ids), self._root(shard, ids))
        if option == before and f._indexes[shard].name == option.name:
            f._indexes[shard].build(ids, f._world(shard), len(f._compiler.attributes))
            chooser.started(f._indexes[shard].bundle.count)
        else:
            self._replace(shard, option, ids)

    def renew(self, shard: int) -> None:
        """The index is worn. What ``blocks`` wears out by is its own affair; others were chosen on worn grounds."""
        f, index = self._filter, self._filter._indexes[shard]
        if not isinstance(index, BlocksIndex):
            self.build(shard)
            return
        before = len(index.bundle.root)
        index.build(f._live(shard), f._world(shard), len(f._compiler.attributes))
        if len(index.bundle.root) != before:  # to the root, or back: as good as another index
            self.choosers[shard].started(index.bundle.count)

    def _look(self, shard: int, ids: NDArray[np.int32]) -> Picture:
        f, chooser = self._filter, self.choosers[shard]
        attributes = len(f._compiler.attributes)
        return look(ids, f._world(shard), attributes, self.load, f.threads, chooser.option.attributes, chooser.fixed)

    def _root(self, shard: int, ids: NDArray[np.int32]) -> Any:
        """What a message would cost at the root of ``blocks``; found out when asked, and again when profiles change."""
        f = self._filter

        def cost() -> float:
            clauses, known = self._roots.get(shard, (0, math.inf))
            if abs(clauses - len(ids)) > clauses // 10:
                found = prospect(ids, f._world(shard), len(f._compiler.attributes), {})
                known = math.inf if found is NOTHING else found.cost
                self._roots[shard] = len(ids), known
            return known

        return cost

    def _replace(self, shard: int, option: Option, ids: NDArray[np.int32]) -> None:
        """Another index takes over: nobody watches a context but for the new one."""
        f = self._filter
        past = self._retired[shard]
        for name, value in f._indexes[shard].stats().items():
            if name not in GAUGES:
                past[name] = past.get(name, 0) + value
        f._indexes[shard] = index = self.new_index(option)
        f._fit()
        contexts = f._contexts.bundle
        contexts.watch[shard :: f.threads] = 0
        contexts.safe[shard :: f.threads] = (-np.inf, np.inf)
        f._profiles.meta[ids, b.FLAGS] &= ~b.AWAY
        with notice.compiling():
            warm.begin()
            index.build(ids, f._world(shard), len(f._compiler.attributes))
        f._fit()  # a new bundle knows of no context yet
        self.choosers[shard].started(index.bundle.count)

    # -- reading and saving ------------------------------------------------------------------------------------

    def add_stats(self, found: dict[str, int]) -> None:
        """Adds what indexes that are gone have counted, and how many they are."""
        for past in self._retired:
            for name, value in past.items():
                if name not in ("messages", "updates"):
                    found[name] = found.get(name, 0) + value
        found["index_changes"] += sum(chooser.changes for chooser in self.choosers)

    def state(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "messages": self.load.messages,
            "updates": self.load.updates,
            "shards": [
                {
                    "option": chooser.option,
                    "factor": chooser.account.factor,
                    "costs": [(*option, cost) for option, cost in chooser.costs.items()],
                    "changes": chooser.changes,
                    "changed_after": chooser.changed_after,
                    "reason": chooser.reason,
                    "retired": past,
                }
                for chooser, past in zip(self.choosers, self._retired, strict=True)
            ],
        }

    def adopt(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` gave out, and make the indexes, still empty, that were in use then."""
        self.load.messages, self.load.updates = state["messages"], state["updates"]
        for shard, (chooser, saved) in enumerate(zip(self.choosers, state["shards"], strict=True)):
            chooser.resume(
                Option(saved["option"][0], tuple(saved["option"][1])),
                {name: (float(one), float(two)) for name, (one, two) in saved["factor"].items()},
                {Option(index, tuple(attributes)): cost for index, attributes, cost in saved["costs"]},
                saved["changes"],
                saved["changed_after"],
                saved["reason"],
            )
            self._retired[shard] = saved["retired"]
            self._filter._indexes[shard] = self.new_index(chooser.option)
