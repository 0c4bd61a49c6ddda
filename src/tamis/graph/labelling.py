"""The arrays of a content graph: its edges and its reachability labels, kept in step.

Guarantees that labels are exact after every change; :meth:`Labelling.check` proves it by plain search. Refuses to know
names. The kernels are :mod:`tamis.kernels.digraph` and :mod:`tamis.kernels.labels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.errors import InvariantError
from tamis.kernels import digraph, labels
from tamis.kernels.digraph import Edges
from tamis.kernels.labels import DEEP, EMPTY, NOTHING, NUMBERS, UNITS, WIDE, Labels

Ids = NDArray[np.int32]
Hang = Callable[["Labelling", "Ids", "Ids"], None]
"""Makes the shelves of a forest, given its nodes, parents first, and how many are below each in its tree."""
BROAD = 2
"""With so many below it in its tree, a category has all its points on its own shelf: chains of bases end there."""
SLACK = 65_536  # numbers and units that may be given up before labelling anew is worth a thought
_PER_NODE = {"number": -1, "extent": NOTHING, "shelf": 0, "level": 0, "trunk": -1, "down": -1, "up": -1}
"""What a category starts with."""
_OPTIONAL = ("number", "shelf")  # not there as long as they say nothing
_PER_EDGE = ("parent", "child", "next_down", "next_up")
_NONE = np.empty(0, np.int32)
R = TypeVar("R", Labels, Edges)


class Labelling:
    """Edges and labels of categories 0 to ``nodes`` - 1."""

    def __init__(self) -> None:
        self.nodes = 0
        self.edges = 0
        """How many edges there are."""
        self.alive = np.zeros(0, np.uint8)
        self._free: list[int] = []  # edges that were removed
        self._top = 0  # edges handed out so far
        self.adjacency = Edges(**{name: np.empty(0, kind[0]) for name, kind in Edges.FIELDS.items()})
        self.reset(0)

    def reset(self, units: int) -> None:
        """No label at all; room for that many units of the pool."""
        nodes = len(self.adjacency.up)
        self.bundle = Labels(
            number=_NONE,
            order=_NONE,
            extent=np.full(nodes, NOTHING, np.uint16),
            wide=np.empty((0, 2), np.int32),
            shelf=_NONE,
            level=np.zeros(nodes, np.uint8),
            trunk=np.full(nodes, -1, np.int32),
            pool=np.zeros(max(16, units), np.uint16),
            stock=np.array([0, EMPTY], np.int64),  # behind shelf 0, which is empty
        )
        self._built = 0

    # -- all at once -------------------------------------------------------------------------------------------

    def fill(self, nodes: int, parents: Ids, children: Ids, hang: Hang | None = None) -> tuple[Ids, list[int]]:
        """Take a whole graph: [id]: which node got it. Ids are the numbers of labels. O(edges + points).

        If there is a cycle, it is returned behind that, and the graph is of no use. ``hang`` makes the shelves.
        """
        both = np.unique(parents.astype(np.int64) * max(1, nodes) + children, return_index=True)[1]
        both.sort()  # an edge that is given twice counts once, where it came first
        parents, children = parents[both], children[both]
        self.link(nodes, parents, children)
        topo = self.topological(np.arange(nodes, dtype=np.int32))
        if len(topo) < nodes:
            return topo, self._cycle(topo)
        self.reset(0)
        first, _ = self._forest(topo)
        order = np.argsort(first).astype(np.int32)
        self.link(nodes, first[parents], first[children])
        self._label(first[topo], hang)
        return order, []

    def link(self, nodes: int, parents: Ids, children: Ids) -> None:
        """These edges and no others."""
        self.nodes, self.edges, self._top = nodes, len(parents), len(parents)
        self.alive = np.ones(nodes, np.uint8)
        ends = np.full((2, nodes), -1, np.int32)
        links = np.full((2, len(parents)), -1, np.int32)
        self.adjacency = Edges(ends[0], ends[1], parents, children, links[0], links[1])
        digraph.link_all(self.adjacency, 0, self.edges)

    def topological(self, nodes: Ids) -> Ids:
        into = np.full(len(self.adjacency.up), -1, np.int32)
        return digraph.topological(self.adjacency, nodes, into)  # type: ignore[no-any-return]

    def _cycle(self, sorted_out: Ids) -> list[int]:
        """A cycle among what could not be sorted: everything there has a parent there."""
        rest = np.ones(self.nodes, np.bool_)
        rest[sorted_out] = False
        node = int(np.flatnonzero(rest)[0])
        seen: dict[int, int] = {}
        way: list[int] = []
        while node not in seen:
            seen[node] = len(way)
            way.append(node)
            node = next(parent for parent in self.parents(node) if rest[parent])
        return way[seen[node] :][::-1]

    def _forest(self, topo: Ids) -> tuple[Ids, Ids]:
        """Choose trees and levels anew: numbers and extents, by node."""
        lb = self.bundle
        digraph.grow_trunks(self.adjacency, topo, lb.trunk, lb.level, np.zeros(len(lb.trunk), np.int32))
        return self._numbers(topo)

    def _numbers(self, topo: Ids) -> tuple[Ids, Ids]:
        """New numbers for whole trees, behind those in use, and their extents; [node] both."""
        lb = self.bundle
        first, extent, cursor = np.full(len(lb.trunk), -1, np.int32), *np.zeros((2, len(lb.trunk)), np.int32)
        lb.stock[NUMBERS] = digraph.number(lb.trunk, topo, lb.stock[NUMBERS], first, extent, cursor)
        return first, extent

    def write(self, topo: Ids, first: Ids, extent: Ids) -> None:
        """Write numbers and extents down; numbers only where they are not the ids."""
        below = self.adjacency.down[topo] >= 0
        codes = np.where(below, np.minimum(extent[topo] + 1, WIDE), NOTHING)
        self.bundle.extent[topo] = codes
        wide = topo[codes == WIDE]
        if len(wide):
            rows = np.stack([first[wide], extent[wide]], axis=1)
            rows = rows[np.argsort(rows[:, 0])]
            self.bundle = self.bundle.replace(wide=np.concatenate([self.bundle.wide, rows]))
        in_step = self.bundle.stock[NUMBERS] == self.nodes  # so that the next node's number is its id, too
        if len(self.bundle.number) or not in_step or not np.array_equal(first[topo], topo):
            self._number()
            self._room(numbers=0)
            self.bundle.number[topo] = first[topo]
            self.bundle.order[first[topo]] = topo

    def _number(self) -> None:
        """From now on numbers are written down."""
        if not len(self.bundle.number):
            same = np.arange(len(self.bundle.extent), dtype=np.int32)
            self.bundle = self.bundle.replace(number=same, order=same.copy())

    def shelves(self) -> None:
        """From now on there are exceptions, or will be."""
        if not len(self.bundle.shelf):
            self.bundle = self.bundle.replace(shelf=np.zeros(len(self.bundle.extent), np.int32))

    def _label(self, topo: Ids, hang: Hang | None = None) -> None:
        """Label everything anew, parents first."""
        self.reset(4 * len(topo))
        first, extent = self._forest(topo)
        self.write(topo, first, extent)
        if len(self.bundle.number):
            self.bundle.number[self.alive == 0] = -1
        self.shelves()
        (hang or _hang)(self, topo, extent)
        used = int(self.bundle.stock[UNITS])
        self.bundle = self.bundle.replace(
            pool=self.bundle.pool[: used + used // 8 + 16].copy(), shelf=self.bundle.shelf if used > EMPTY else _NONE
        )
        self._built = used

    def hang(self, topo: Ids, broad: NDArray[np.uint8]) -> None:
        """Make the exceptions of nodes, parents first, and lay each set of points on one shelf."""
        table, known = self._table(), self.known()
        self.fitting(len(topo), lambda done: digraph.hang(self.bundle, self.adjacency, topo, done, broad, table, known))

    def known(self) -> Ids:
        """A hash table of shelves that has room for one of each node."""
        return np.zeros(1 << (2 * self.nodes).bit_length(), np.int32)

    def fitting(self, count: int, work: Callable[[int], int]) -> None:
        """Do ``work`` from a place on until all is done: it says how far it came when there was no room in the pool."""
        done = 0
        while (done := work(done)) < count:
            self._room(units=digraph.needed(self.bundle.stock[NUMBERS], self.bundle.stock[NUMBERS]))

    def _table(self) -> NDArray[np.int32]:
        """Four rows that kernels merge points in."""
        return np.empty((4, int(self.bundle.stock[NUMBERS]) + 1), np.int32)

    def _room(self, units: int = 0, numbers: int = 0) -> None:
        """Room for so many more. O(1) amortised."""
        lb, stock = self.bundle, self.bundle.stock
        changes = {}
        if stock[UNITS] + units > len(lb.pool):
            changes["pool"] = _grown(lb.pool, int(stock[UNITS] + units + len(lb.pool) // 2))
        if len(lb.order) and stock[NUMBERS] + numbers > len(lb.order):
            changes["order"] = _grown(lb.order, int(stock[NUMBERS] + numbers + len(lb.order) // 2))
        if changes:
            self.bundle = lb.replace(**changes)

    # -- questions ---------------------------------------------------------------------------------------------

    def reaches(self, above: int, below: int) -> bool:
        return bool(labels.reaches(self.bundle, above, below))

    def parents(self, node: int) -> Sequence[int]:
        eg = self.adjacency
        return _row(eg.up.item(node), eg.next_up, eg.parent)

    def children(self, node: int) -> Sequence[int]:
        eg = self.adjacency
        return _row(eg.down.item(node), eg.next_down, eg.child)

    # -- changes -----------------------------------------------------------------------------------------------

    def fit(self, nodes: int) -> None:
        """There are that many nodes now; each new one is a tree. O(1) amortised."""
        if nodes <= self.nodes:
            return
        have = len(self.bundle.extent)
        if nodes > have:
            room = nodes + have
            self.bundle, self.adjacency = _roomier(self.bundle, room), _roomier(self.adjacency, room)
            self.alive = _grown(self.alive, room, 0)
        self._room(numbers=nodes - self.nodes)
        lb = self.bundle
        for node in range(self.nodes, nodes):
            if len(lb.number):
                lb.number[node] = lb.stock[NUMBERS]
                lb.order[lb.stock[NUMBERS]] = node
            lb.stock[NUMBERS] += 1
            self.alive[node] = 1
        self.nodes = nodes

    def add_edge(self, a: int, b: int) -> None:
        """Add an edge that closes no cycle. O(what ``b`` reaches and ``a`` did not)."""
        if digraph.find_edge(self.adjacency, a, b) >= 0:
            return
        if not self._free and self._top == len(self.adjacency.parent):
            room = 2 * self._top + 16
            eg = self.adjacency.asdict()
            self.adjacency = Edges(**{n: _grown(array, room) if n in _PER_EDGE else array for n, array in eg.items()})
        if self._free:
            e = self._free.pop()
        else:
            e, self._top = self._top, self._top + 1
        digraph.link(self.adjacency, e, a, b)
        self.edges += 1
        self.bundle.extent[a] = max(self.bundle.extent[a], NOTHING + 1)
        if self.reaches(a, b):
            return
        if self._worn():
            self.relabel()
            return
        found = np.empty(self.nodes + self.edges, np.int32)
        digraph.sink(self.adjacency, self.bundle.level, a, b, found)
        size = digraph.newly_reached(self.bundle, self.adjacency, a, b, np.zeros(self.nodes, np.uint8), found)
        nodes = found[:size]
        self.shelves()
        nodes = nodes[np.argsort(self.bundle.shelf[nodes], kind="stable")]
        table = self._table()
        self.fitting(size, lambda done: digraph.spread(self.bundle, a, nodes, done, table))

    def remove_edge(self, a: int, b: int) -> bool:
        """Remove an edge; False when there is none. O(edges below ``b``)."""
        e = int(digraph.find_edge(self.adjacency, a, b))
        if e < 0:
            return False
        digraph.unlink(self.adjacency, e)
        self._free.append(e)
        self.edges -= 1
        if any(self.reaches(a, other) for other in self.parents(b)):
            return True  # and so does what is above it, and tree edges still mean reachability
        if self._worn():
            self.relabel()
            return True
        found = np.empty(self.nodes, np.int32)
        size = digraph.below(self.adjacency, b, np.zeros(self.nodes, np.uint8), found, 0)
        topo = self.topological(found[:size])
        self._number()
        moved = found[: digraph.detach(self.bundle, self.adjacency, topo, found)]
        self.write(moved, *self._numbers(moved))
        self.shelves()
        table, none = self._table(), np.zeros(self.nodes, np.uint8)
        self.fitting(len(topo), lambda done: digraph.hang(self.bundle, self.adjacency, topo, done, none, table, _NONE))
        return True

    def remove_node(self, node: int) -> None:
        """Remove a node and its edges."""
        for parent in self.parents(node):
            self.remove_edge(parent, node)
        for child in self.children(node):
            self.remove_edge(node, child)
        self.alive[node] = 0
        self._number()
        self.bundle.number[node], self.bundle.extent[node], self.bundle.trunk[node] = -1, NOTHING, -1
        if len(self.bundle.shelf):
            self.bundle.shelf[node] = 0

    def _worn(self) -> bool:
        """Whether so much has been given up that labelling anew pays."""
        stock = self.bundle.stock
        return bool(stock[UNITS] > 2 * self._built + SLACK or stock[NUMBERS] > 2 * self.nodes + SLACK)

    def relabel(self) -> None:
        """Label everything anew. O(edges + exceptions)."""
        self._label(self.topological(np.flatnonzero(self.alive).astype(np.int32)))

    # -- the rest ----------------------------------------------------------------------------------------------

    def check(self, nodes: Sequence[int]) -> None:
        """Raise InvariantError unless the labels agree with plain search. O(nodes × ancestors)."""
        marks, found = np.zeros(self.nodes, np.uint8), np.empty(self.nodes, np.int32)
        wanted = np.empty(self.nodes, np.int32)
        for node in nodes:
            size = digraph.above(self.adjacency, node, marks, wanted, 0)
            marks[wanted[:size]] = 0
            have = labels.ancestors(self.bundle, node, marks, found, 0)
            marks[found[:have]] = 0
            if self.bundle.extent[node] == NOTHING and self.children(node):
                raise InvariantError(f"category {node} has something below it, and its extent says nothing")
            levels = self.bundle.level[[node, *self.parents(node)]].tolist()
            if levels[0] != DEEP and max(levels[1:], default=-1) >= levels[0]:
                raise InvariantError(f"category {node} is not below the level of all its parents")
            if set(wanted[:size].tolist()) != set(found[:have].tolist()):
                raise InvariantError(f"the labels of category {node} and the edges above it disagree")

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            **self.bundle.asdict(),
            **self.adjacency.asdict(),
            "alive": self.alive,
            "free": np.array(self._free, np.int32),
            "counters": np.array([self.nodes, self.edges, self._top, self._built], np.int64),
        }

    def adopt(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.bundle = Labels(**{name: arrays[name] for name in Labels.FIELDS})
        self.adjacency = Edges(**{name: arrays[name] for name in Edges.FIELDS})
        self.alive, self._free = arrays["alive"], arrays["free"].tolist()
        self.nodes, self.edges, self._top, self._built = arrays["counters"].tolist()


def broad(extent: Ids) -> NDArray[np.uint8]:
    """Which categories have all their points on their own shelf."""
    return (extent >= BROAD).astype(np.uint8)


def _hang(labelling: Labelling, topo: Ids, extent: Ids) -> None:
    labelling.hang(topo, broad(extent))


def _roomier(record: R, nodes: int) -> R:
    """The record with room for so many nodes; what is not there as it says nothing stays away."""
    arrays = {name: getattr(record, name) for name in _PER_NODE if name in record.FIELDS}
    kept = {name for name in _OPTIONAL if not len(arrays.get(name, ()))}
    return record.replace(**{n: _grown(array, nodes, _PER_NODE[n]) for n, array in arrays.items() if n not in kept})


def _row(edge: int, following: Ids, ends: Ids) -> list[int]:
    """Where the edges of a list lead."""
    found = []
    while edge >= 0:
        found.append(ends.item(edge))
        edge = following.item(edge)
    return found


def _grown(array: NDArray[Any], room: int, start: int = 0) -> NDArray[Any]:
    """The array with room for more, filled with ``start``."""
    grown = np.full(room, start, array.dtype)
    grown[: len(array)] = array
    return grown
