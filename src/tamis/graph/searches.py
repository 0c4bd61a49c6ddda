"""The paper's searches, to be compared: unoptimised, transitive closure, content lists; and plans of several graphs.

Guarantees the same matches as :class:`tamis.graph.Matcher` for every method, orientation and order. Refuses to change:
users and graphs are given once. The kernels are :mod:`tamis.kernels.searches`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.kernels import searches as kernels
from tamis.kernels.searches import Searched, SearchGraph

from .content import ContentGraph
from .matcher import Direction, Matched

Ids: TypeAlias = NDArray[np.int32]
Starts: TypeAlias = NDArray[np.int64]
Side: TypeAlias = Literal["notification", "subscription"]
Plan: TypeAlias = "Sequence[tuple[int, Side]]"
"""Graphs in the order in which they are searched, and from where."""

METHODS: Final = {"search": kernels.SEARCH, "closure": kernels.CLOSURE, "lists": kernels.LISTS}
SIDES: Final = {"notification": kernels.NOTIFICATION, "subscription": kernels.SUBSCRIPTION}


@dataclass(frozen=True)
class Events:
    """Events as rows of categories, row ``event * graphs + graph``; and the same rows as content lists."""

    categories: Ids
    starts: Starts
    lists: Ids
    list_starts: Starts
    count: int


class Searches:
    """Users with categories [user, some] in each graph, -1 for none, and every table that a method needs."""

    def __init__(self, graphs: Sequence[tuple[ContentGraph, Direction]], *categories: Any) -> None:
        if len(categories) != len(graphs) or not graphs:
            raise UsageError(f"expected categories for {len(graphs)} graphs, got {len(categories)}")
        self.graphs = [graph for graph, _ in graphs]
        self.covers = np.array([direction == "covers" for _, direction in graphs], np.uint8)
        most = max(np.shape(one)[1] for one in categories)
        self.users = len(categories[0])
        value = np.full((len(graphs), self.users, most), -1, np.int32)
        for g, one in enumerate(categories):
            given = np.asarray(one, np.int32)
            value[g, :, : given.shape[1]] = np.take_along_axis(given, np.argsort(given < 0, axis=1, kind="stable"), 1)
        self._tables = [self._table(g, value[g]) for g in range(len(graphs))]
        widest = max(graph.size for graph in self.graphs)
        self._model = Searched(
            graph=np.array([table.address for table in self._tables], np.int64),
            covers=self.covers,
            value=value,
            marks=np.zeros((len(graphs), widest), np.uint8),
            queue=np.zeros((len(graphs), widest), np.int32),
            visited=np.zeros((len(graphs), widest), np.int64),
            trail=np.zeros(widest, np.int32),
            seen=np.zeros(self.users, np.int64),
            bag=np.zeros(self.users, np.int32),
            live=np.full((len(graphs), 4), -1.0),
            state=np.zeros(2, np.int64),
        )

    def _table(self, g: int, value: Ids) -> SearchGraph:
        graph = self.graphs[g]
        above, below = closure(graph, up=True), closure(graph, up=False)
        user, _ = np.nonzero(value >= 0)
        direct = value[value >= 0]
        # The content list of a subscription: every category of an event that it matches.
        starts, rows = above if self.covers[g] else below
        length = np.diff(starts)[direct]
        at = np.repeat(starts[:-1][direct] - np.cumsum(length) + length, length) + np.arange(length.sum())
        return SearchGraph(
            graph.adjacency(),
            *above,
            *below,
            *_grouped(direct, user, graph.size),
            *_grouped(rows[at], np.repeat(user, length), graph.size),
        )

    # -- events ------------------------------------------------------------------------------------------------

    def events(self, *categories: Any) -> Events:
        """Events with categories [event, some] in each graph, -1 for none; their content lists are made here."""
        count = len(categories[0])
        rows = [np.asarray(one, np.int32)[i] for i in range(count) for one in categories]
        rows = [row[row >= 0] for row in rows]
        lists = []
        for i, row in enumerate(rows):
            sg, g = self._tables[i % len(self.graphs)], i % len(self.graphs)
            starts, table = (sg.below_at, sg.below) if self.covers[g] else (sg.above_at, sg.above)
            lists.append(np.unique(np.concatenate([table[starts[t] : starts[t + 1]] for t in row] or [row])))
        return Events(*_rows(rows), *_rows(lists), count)

    def match(self, events: Events, method: str, plan: Plan | None = None) -> Matched:
        """The users of events. Without a plan, one is made per event from live statistics (searches that adapt)."""
        if method not in METHODS:
            raise UsageError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
        if plan is not None and sorted(g for g, _ in plan) != list(range(len(self.graphs))):
            raise UsageError(f"a plan names each of {len(self.graphs)} graphs once, got {plan!r}")
        if plan is None and (self._model.live < 0).any():
            self._probe(events, method)
        steps = np.array([(g, SIDES[side]) for g, side in plan or self.plan(events, method)], np.int64)
        ends = np.zeros(events.count, np.int64)
        out, done = np.empty(4 * self.users + 16 * events.count, np.int32), 0
        while (done := self._replay(events, method, steps, plan is None, done, out, ends)) < events.count:
            out = np.concatenate([out, np.empty_like(out)])
        users = out[: ends[-1] if events.count else 0]
        return Matched(np.repeat(np.arange(events.count), np.diff(ends, prepend=0)), users)

    def _replay(self, events: Events, method: str, steps: Any, dynamic: bool, done: int, out: Ids, ends: Starts) -> int:
        e = events
        rows = (e.categories, e.starts, e.lists, e.list_starts)
        return int(kernels.replay(self._model, *rows, METHODS[method], steps, dynamic, done, out, ends))

    def find(self, events: Events, graph: int, method: str) -> int:
        """The search alone: how many categories of a graph match, over all events; no user is looked at."""
        if method == "lists":
            return int(kernels.find_only(self._model, graph, events.lists, events.list_starts, METHODS[method]))
        return int(kernels.find_only(self._model, graph, events.categories, events.starts, METHODS[method]))

    # -- plans -------------------------------------------------------------------------------------------------

    def plans(self) -> list[Plan]:
        """Every order and orientation."""
        graphs = range(len(self.graphs))
        sides: tuple[Side, ...] = ("notification", "subscription")
        return [
            list(zip(order, chosen, strict=True))
            for order in itertools.permutations(graphs)
            for chosen in itertools.product(sides, repeat=len(self.graphs))
        ]

    def plan(self, events: Events, method: str) -> Plan:
        """The plan that the measured structure suggests: running means after a sample of events, both sides tried."""
        if (self._model.live < 0).any():
            self._probe(events, method)
        steps = np.zeros((len(self.graphs), 2), np.int64)
        kernels.choose(self._model, steps)
        sides: tuple[Side, ...] = ("notification", "subscription")
        return [(int(g), sides[int(side)]) for g, side in steps]

    def _probe(self, events: Events, method: str) -> None:
        """Try each graph first from either side with few events, so that there are means to start from."""
        few = Events(events.categories, events.starts, events.lists, events.list_starts, min(events.count, 4))
        others: tuple[Side, ...] = ("notification", "subscription")
        for g in range(len(self.graphs)):
            rest = [h for h in range(len(self.graphs)) if h != g]
            for side in others:
                self.match(few, method, [(g, side), *((h, "notification") for h in rest)])
        live = self._model.live
        live[live < 0] = 1.0  # content lists look nothing up from the subscription


def closure(graph: ContentGraph, *, up: bool) -> tuple[Starts, Ids]:
    """The transitive closure as rows: what is above each category, or below it, itself included; ascending."""
    starts = np.zeros(graph.size + 1, np.int64)
    marks, queue = np.zeros(graph.size, np.uint8), np.empty(graph.size, np.int32)
    kernels.close(graph.adjacency(), up, starts, np.empty(0, np.int32), marks, queue)
    np.cumsum(starts, out=starts)
    rows = np.empty(starts[-1], np.int32)
    kernels.close(graph.adjacency(), up, starts, rows, marks, queue)
    return starts, rows


def in_lists(starts: Starts, rows: Ids, keys: Ids, wanted: Ids) -> NDArray[np.bool_]:
    """Whether a category is in the content list of another, for arrays of pairs: a binary search each."""
    out = np.empty(len(keys), np.bool_)
    kernels.pairs_in(starts, rows, keys, wanted, out)
    return out


def _grouped(keys: NDArray[Any], values: NDArray[Any], size: int) -> tuple[Starts, Ids]:
    """Values by key, as rows."""
    order = np.argsort(keys, kind="stable")
    starts = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=size), out=starts[1:])
    return starts, np.ascontiguousarray(values[order], np.int32)


def _rows(rows: list[Ids]) -> tuple[Ids, Starts]:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return np.concatenate([*rows, np.empty(0, np.int32)]).astype(np.int32), starts
