"""Which index, on which attributes: what ``index="auto"`` decides, and when it changes its mind.

Every candidate has a *cost*: the work that messages and updates make on it, in exact tests of a clause (about 70 ns).
For the index in use it is counted, for the others it is estimated from a :class:`tamis.index.picture.Picture`. An
account says what each of the others would have saved so far. When that exceeds the price of building it, it is built:
so the account never loses more than about twice what the wiser choice would have cost, and it cannot flap, as every
change has to be earned first (the rule of renting or buying skis). What a candidate really cost while it was in use,
beside its estimate, is remembered: a wrong estimate is made once.

Costs are counted work, not seconds: the same events always lead to the same choices. Refuses to know how an index is
built or replaced; see :mod:`tamis.engine.auto`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import entries
from tamis.kernels.bundles import CANDIDATES, ESCALATIONS, PROBES

from .blocks import BlocksIndex
from .picture import Load, Picture

# Measured on this and that workload of benchmarks/auto.py: a message, whatever finds its matches; a candidate that is
# tested, one that is tested for what the index knows nearly enough, a match without a test; an entry that the list of a
# structure holds, and a word of 64 entries that are returned always.
FLOOR, TEST, EDGE, CERTAIN, WORD = 12.0, 0.85, 0.7, 0.4, 0.03
READ: Mapping[str, float] = {"hash": 0.06, "btree": 0.07, "skiplist": 0.08}
# An R-tree decides all attributes at once; how many nodes a message meets grows with what it finds.
TREE, NODES = 15.0, 10.0
MOVE: Mapping[str, float] = {"hash": 9.0, "btree": 11.0, "rtree": 18.0, "skiplist": 25.0}
"""Placing an entry anew."""
CELLS = 1.25  # of what a hash table returns for ranges, more than it should
# A scan: an entry per attribute of the first two, an entry that is left then, an entry that an update writes.
SCANNED, LEFT, WRITTEN = 0.0025, 0.15, 2.5
# Blocks: a message, 32 blocks of boxes per attribute, a chunk met, a match inside a range; an update heard, and what it
# costs more when the interval has to be computed anew.
MEET, BOXES, CHUNK, INSIDE, HEARD, REWRITTEN = 6.0, 0.3, 1.5, 0.2, 1.4, 2.0
ROOT = 0.1  # an update at the root
BUILD: Mapping[str, float] = {"blocks": 25.0, "noindex": 7.0, "hash": 20.0, "btree": 20.0, "rtree": 30.0}
"""Building an index, per entry (and per attribute, where a structure is one per attribute)."""

CAUTION = 1.25  # by how much another index has to be cheaper
LEAST = 1_024  # clauses below which nothing is changed: there is nothing to gain
MOST = 4  # attributes of one index
# Messages until the next look, and how many times as long it may take while something else looks better, and when all
# is well: a look costs a millisecond or two.
SOON, EARNING, LATEST = 256, 4, 256
ROUND = 32_768  # updates until the next look, divided by the clauses that each of them concerns
FACTORS = (0.25, 64.0)  # how far an estimate may be corrected


class Option(NamedTuple):
    """An index by name, and the attributes (columns) it is on; none where it is on all."""

    name: str
    attributes: tuple[int, ...] = ()


class Cost(NamedTuple):
    """Work of a stretch of events: what its messages and what its updates make."""

    messages: float
    updates: float

    @property
    def all(self) -> float:
        return self.messages + self.updates


@dataclass
class Account:
    """What every other index would have saved, and what estimates turned out to be worth."""

    saved: dict[str, float] = field(default_factory=dict)
    factor: dict[str, tuple[float, float]] = field(default_factory=dict)  # of messages, of updates

    def corrected(self, index: str, cost: Cost) -> Cost:
        messages, updates = self.factor.get(index, (1.0, 1.0))
        return Cost(cost.messages * messages, cost.updates * updates)

    def learn(self, index: str, estimate: Cost, spent: float, heavy: bool) -> None:
        """``index`` has cost ``spent``; where updates are ``heavy`` the difference is theirs, else the messages'."""
        messages, updates = self.factor.get(index, (1.0, 1.0))
        if heavy and estimate.updates > 0:
            updates = 0.5 * (updates + _within((spent - messages * estimate.messages) / estimate.updates))
        elif not heavy and estimate.messages > 0:
            messages = 0.5 * (messages + _within((spent - updates * estimate.updates) / estimate.messages))
        self.factor[index] = messages, updates


def _within(factor: float) -> float:
    return min(max(factor, FACTORS[0]), FACTORS[1])


class Chooser:
    """The choice of one shard's index. ``indexes`` are the candidates; ``fixed`` the attributes, if they are given.

    ``number`` is how many attributes an index is on, if that is given; ``scope`` are columns that must be among them.
    """

    def __init__(
        self,
        indexes: tuple[str, ...],
        load: Load,
        number: int | None = None,
        fixed: tuple[int, ...] | None = None,
        scope: tuple[int, ...] = (),
        shards: int = 1,
    ) -> None:
        self.indexes, self.load, self._shards = indexes, load, shards
        self._number, self.fixed, self._scope = number, fixed, scope
        self.option = Option(indexes[0])
        self.account = Account()
        self.costs: dict[Option, float] = {}  # per message, at the last look; the option in use first
        self.picture: Picture | None = None
        self.changes = 0
        self.changed_after = 0  # messages
        self.reason = "no profiles yet"
        self._begun = False  # a choice was made, on profiles
        self._patience = 1
        self._from_now(1.0)

    def _from_now(self, fan: float) -> None:
        """Look again after some messages, or many updates."""
        load = self.load
        self._seen = (load.messages, load.updates, list(load.moved))
        self._counts: NDArray[np.int64] | None = None
        self._next = (
            load.messages + SOON * self._patience,
            load.updates + max(64, int(ROUND / fan)) * self._patience,
        )

    def wake(self) -> tuple[int, int]:
        """Messages and updates before which there is nothing to do."""
        return self._next

    def due(self, entries: int) -> bool:
        """Whether it is time for a look. O(1)."""
        if self.load.messages < self._next[0] and self.load.updates < self._next[1]:
            return False
        if entries < LEAST:
            self._from_now(1.0)
        return entries >= LEAST

    # -- choosing ----------------------------------------------------------------------------------------------

    def first(self, picture: Picture, root: Callable[[], float]) -> Option:
        """The best option for profiles of which the index is built anew anyhow; the past has no say but as experience.

        ``root`` is what a message would cost at the root of ``blocks``, infinite where nothing could be there.
        """
        self.picture = picture
        messages, updates = self._recent(picture)
        estimates = self._estimates(picture, messages, updates, root)
        self.costs = {option: cost.all / messages for option, cost in estimates.items()}
        cheapest = min(self.costs, key=lambda option: self.costs[option])
        now = self.option.name
        here = next((option for option in self.costs if option.name == now), None)
        few = now == "blocks" and picture.clauses < LEAST
        if here and (few or (self._begun and self.costs[here] <= CAUTION * self.costs[cheapest])):
            cheapest = here
        self.reason = "too few clauses to matter" if few else f"cheapest for {picture.clauses:,} clauses as they came"
        changed, self._begun = self._begun and cheapest.name != now, picture.clauses > 0
        self._take(cheapest, changed)
        return cheapest

    def better(self, index: Any, picture: Picture, root: Callable[[], float]) -> Option | None:
        """Settle the account since the last look; another option, if it has earned its price by now."""
        self.picture = picture
        counts = index.bundle.count
        if self._counts is None or len(self._counts) != len(counts) or counts[PROBES] < self._counts[PROBES]:
            past = counts.copy()
            past[:] = 0
        else:
            past = counts - self._counts
        messages, updates = self._since()
        estimates = self._estimates(picture, messages, updates, root, raw=True)
        here = self._cost(self.option, picture, messages, updates, root)
        spent = self._spent(index, past, picture, messages)
        if self.option.name == "blocks" and not len(index.bundle.root):
            # When it costs more than at its root it is on its way there, and needs no help.
            spent = min(spent, CAUTION * _at_root(messages, updates, root()).all)
        if messages + float(updates.sum()) > 0:
            self.account.learn(self.option.name, here, spent, heavy=float(updates.sum()) > messages)
        per = max(1.0, messages)
        self.costs = {self.option: spent / per}
        best, gain = None, 0.0
        others = {option: self.account.corrected(option.name, raw).all for option, raw in estimates.items()}
        for option, cost in others.items():
            if option.name == self.option.name and set(option.attributes) == set(self.option.attributes):
                continue
            self.costs[option] = cost / per
            saved = max(0.0, self.account.saved.get(option.name, 0.0) + spent - CAUTION * cost)
            self.account.saved[option.name] = saved
            won = saved - self._price(option, picture.clauses)
            # One that is built sooner, but costs more for ever after, has to wait.
            if won > gain and cost <= CAUTION * min(others.values()):
                best, gain = option, won
        if best is None:
            earning = any(self.account.saved.values())
            self._patience = min(EARNING if earning else LATEST, 2 * self._patience)
            self._from_now(picture.fan)
            self._counts = counts.copy()
            return None
        self.reason = (
            f"{self.option.name} cost {self.costs[self.option]:,.0f} per message, {best.name} "
            f"{self.costs[best]:,.0f} at {float(updates.sum()) / per:,.1f} updates per message"
        )
        self._take(best, changed=True)
        return best

    def _take(self, option: Option, changed: bool) -> None:
        self.option = option
        self._patience = 1
        if changed:
            self.changes += 1
            self.changed_after = self.load.messages

    def started(self, count: NDArray[np.int64]) -> None:
        """The index was built; its counters stand at ``count``. What it was before does not count any more."""
        self.account.saved.clear()
        self._from_now(1.0 if self.picture is None else self.picture.fan)
        self._counts = count.copy()

    def resume(
        self,
        option: Option,
        factor: dict[str, tuple[float, float]],
        costs: dict[Option, float],
        changes: int,
        changed_after: int,
        reason: str,
    ) -> None:
        """Go on where another chooser has stopped."""
        self.option, self.account.factor, self.costs = option, factor, costs
        self.changes, self.changed_after, self.reason = changes, changed_after, reason
        self._begun = len(costs) > 0
        self._from_now(1.0)

    def _since(self) -> tuple[float, NDArray[np.float64]]:
        """Messages, and updates per context attribute, since the last look."""
        before = self._seen[2] + [0.0] * (len(self.load.moved) - len(self._seen[2]))
        moved = np.array(self.load.moved) - np.array(before)
        return float(self.load.messages - self._seen[0]), moved / self._shards

    def _recent(self, picture: Picture) -> tuple[float, NDArray[np.float64]]:
        """The same; where there was next to nothing to see, each message comes with an update per context attribute.

        Contexts that many clauses share are guessed to move less often: every message finds one clause changed.
        """
        messages, moved = self._since()
        return (messages, moved) if messages >= 16 else (1.0, np.full(len(picture.depends), 1.0 / picture.fan))

    def _price(self, option: Option, clauses: int) -> float:
        many = len(option.attributes) if option.name in ("hash", "btree") else 1
        return BUILD.get(option.name, 30.0) * max(1, many) * clauses

    # -- costs -------------------------------------------------------------------------------------------------

    def _estimates(
        self,
        picture: Picture,
        messages: float,
        updates: NDArray[np.float64],
        root: Callable[[], float],
        raw: bool = False,
    ) -> dict[Option, Cost]:
        """The best option of every index, and its cost."""
        found = {}
        for index in self.indexes:
            options = [Option(index)] if index in ("blocks", "noindex") else self._on_attributes(index, picture)
            costs = {option: self._cost(option, picture, messages, updates, root) for option in options}
            if costs:
                best = min(costs, key=lambda option: costs[option].all)
                found[best] = costs[best] if raw else self.account.corrected(index, costs[best])
        return found

    def _on_attributes(self, index: str, picture: Picture) -> Iterable[Option]:
        """Sets of attributes: the fixed one, or every number of them, each time adding what leaves the fewest."""
        columns = picture.columns.tolist()
        if not columns:
            return [Option(index)]
        if self.fixed is not None:
            return [Option(index, tuple(column for column in columns if column in self.fixed) or tuple(columns[:1]))]
        options = []
        # Beside ``blocks`` a hash table has to offer what it is best at: values that are asked for as they are.
        all_rows = [row for row in range(len(columns)) if "blocks" not in self.indexes or picture.equal[row] > 0.5]
        # Most selective first, once among all attributes and once among those that no context moves.
        still = [row for row in all_rows if not picture.moves[row].any()]
        for among in (all_rows, still):
            chosen = list(picture.rows(self._scope))
            while len(chosen) < min(MOST if self._number is None else self._number, max(len(among), len(chosen))):
                rest = [row for row in among if row not in chosen]
                if not rest:
                    break
                chosen.append(min(rest, key=lambda row: picture.joint([*chosen, row])))
                if self._number is None or len(chosen) == min(self._number, len(columns)):
                    options.append(Option(index, tuple(columns[row] for row in chosen)))
        return options if options or "blocks" in self.indexes else [Option(index, tuple(columns[: self._number or 1]))]

    def _cost(
        self,
        option: Option,
        picture: Picture,
        messages: float,
        updates: NDArray[np.float64],
        root: Callable[[], float],
    ) -> Cost:
        """The estimated work of that many messages, and of that many updates per context attribute."""
        n, fan = picture.clauses, picture.fan
        moved = np.zeros(len(picture.depends))
        moved[: len(updates)] = updates[: len(moved)]
        heard = float(moved @ picture.depends) * fan
        found = n * picture.joint(range(len(picture.columns)))
        # What asks for one value has no inside: every match lies at an end, where only the values decide.
        points = _mean(picture.equal, 1.0 - picture.passing) > 0.5
        if option.name == "blocks":
            chunks = 2.0 + found / 16.0
            one = MEET + BOXES * len(picture.columns) * n / 32_768 + CHUNK * chunks
            one += found * (EDGE if points else INSIDE)
            follow = Cost(messages * (FLOOR + one), (HEARD + REWRITTEN * picture.rewritten) * heard)
            at_root = _at_root(messages, moved, root() if heard > 0 else math.inf)
            return follow if follow.all <= at_root.all else at_root
        if option.name == "noindex":
            first = range(min(2, len(picture.columns)))
            one = SCANNED * n * len(first) + LEFT * n * picture.joint(first)
            one += found * (EDGE if points else CERTAIN)
            return Cost(messages * (FLOOR + one), WRITTEN * heard)
        rows = picture.rows(option.attributes)
        one = reading(option.name, rows, picture)
        candidates = n * picture.joint(rows)
        ranges = option.name == "hash" and rows and min(picture.equal[list(rows)]) < 0.5
        certain = found * picture.plain if len(rows) == len(picture.columns) and not ranges and not heard else 0.0
        one += TEST * (candidates * (CELLS if ranges else 1.0) - certain) + CERTAIN * found
        placed = float(moved @ picture.moves[list(rows)].sum(axis=0)) * fan if rows else 0.0
        return Cost(messages * (FLOOR + one), MOVE[option.name] * placed)

    def _spent(self, index: Any, past: NDArray[np.int64], picture: Picture, messages: float) -> float:
        """What the index in use has done since the last look, as far as it counts; the rest by the estimate."""
        base = messages * FLOOR
        if isinstance(index, BlocksIndex):
            base += REWRITTEN * picture.rewritten * float(past[ESCALATIONS])
            return base + MEET * messages + index.work(past) - (1.0 - EDGE) * float(past[CANDIDATES])
        if index.name == "noindex":
            first = range(min(2, len(picture.columns)))
            one = SCANNED * picture.clauses * len(first) + LEFT * picture.clauses * picture.joint(first)
            return base + messages * one + EDGE * float(past[CANDIDATES]) + WRITTEN * float(past[ESCALATIONS])
        rows = picture.rows(self.option.attributes)
        found = picture.clauses * picture.joint(range(len(picture.columns)))
        moved = MOVE[index.name] * float(past[entries.INDEX_UPDATES])
        one = reading(index.name, rows, picture) + CERTAIN * found
        return base + messages * one + TEST * float(past[CANDIDATES]) + moved


def _at_root(messages: float, updates: NDArray[np.float64], cost: float) -> Cost:
    """The work at the root of ``blocks``, where a message costs ``cost``."""
    return Cost(messages * (FLOOR + cost), ROOT * float(updates.sum()))


def reading(index: str, rows: tuple[int, ...], picture: Picture) -> float:
    """The work of a probe until the candidates are known: the lists of the structure, and what is returned always."""
    n = picture.clauses
    if index == "rtree":
        return TREE + NODES * math.sqrt(n * picture.joint(rows))
    work = 0.0
    for row in rows:
        listed = max(0.0, float(picture.passing[row] - (1.0 - picture.bound[row])))
        work += READ[index] * n * listed + WORD * n / 64.0 * float(picture.bound[row] < 1.0)
    return work


def _mean(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    total = float(weights.sum())
    return float(values @ weights) / total if total > 0 else 0.0
