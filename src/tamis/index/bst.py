"""AGILE on a binary search tree: Figures 5 to 7 of paper 000, to be read before the indexes that are built for speed.

Every node has a key and three sets of identifiers: ``exact`` for those with that key, ``left`` and ``right`` for
*escalated* ones, of which is only known that their key lies on that side of the node, inside the node's part of the
tree. What the tree knows of an identifier is a set of keys K(i); the law is that its own key k(i) is in it. An update
that stays in K(i) changes nothing at all; one that leaves it *escalates* the identifier to the next node above that
covers both; ``deescalate`` goes one node down again, and where there is none, makes one.

The tree of the figures, two warehouses with two items each:

>>> tree = SearchTree()
>>> for name, stock in (("C", 5), ("A", 2), ("B", 2)):
...     tree.insert(name, stock)
>>> tree.update("A", 3)  # Figure 5
>>> print(tree)
5 left {A} exact {C}
< 2 exact {B}
>>> sorted(tree.probe(4)), sorted(tree.probe(5))  # A is a false positive for 4, but not for 5
(['A'], ['C'])
>>> tree.update("A", 1)  # Figure 6: nothing changes
>>> tree.deescalate("A")  # Figure 7
>>> print(tree)
5 exact {C}
< 2 left {A} exact {B}

It is not balanced and knows single keys only: no filter uses it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tamis.errors import InvariantError


class Range(NamedTuple):
    """A set of keys: one key, or all between two, without the ends."""

    low: float
    high: float

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int | float) and (self.low < key < self.high or key == self.low == self.high)


EVERYTHING = Range(-math.inf, math.inf)


@dataclass(eq=False)
class Node:
    """A key, its place in the tree, and the three sets."""

    key: float
    parent: Node | None
    left: set[Hashable] = field(default_factory=set)
    exact: set[Hashable] = field(default_factory=set)
    right: set[Hashable] = field(default_factory=set)
    below: Node | None = None
    above: Node | None = None

    def is_empty(self) -> bool:
        return not (self.left or self.exact or self.right or self.below or self.above)

    def side(self, key: float) -> set[Hashable]:
        """The set for a key that belongs into this part of the tree."""
        return self.exact if key == self.key else self.left if key < self.key else self.right

    def child(self, key: float) -> Node | None:
        return self.below if key < self.key else self.above

    def extent(self) -> Range:
        """The keys of this part of the tree: between the nearest keys above on either side."""
        low, high = EVERYTHING
        node = self.parent
        while node is not None:
            if self.key < node.key:
                high = min(high, node.key)
            else:
                low = max(low, node.key)
            node = node.parent
        return Range(low, high)


class SearchTree:
    """A binary search tree under AGILE. Runtime complexity of every operation: O(depth), of ``check`` O(N depth)."""

    def __init__(self) -> None:
        self._root: Node | None = None
        self._everywhere: set[Hashable] = set()
        self._key: dict[Hashable, float] = {}
        self._place: dict[Hashable, tuple[Node | None, set[Hashable]]] = {}

    def __len__(self) -> int:
        return len(self._key)

    def insert(self, identifier: Hashable, key: float) -> None:
        """A new identifier, exactly at its key."""
        if identifier in self._key:
            raise KeyError(f"{identifier!r} is in the tree already")
        self._key[identifier] = key
        self._put_below(None, identifier, exactly=True)

    def remove(self, identifier: Hashable) -> None:
        """Forget an identifier, and nodes that nobody needs any more."""
        self._take(identifier)
        del self._key[identifier]

    def probe(self, key: float) -> set[Hashable]:
        """All identifiers with ``key`` in K(i): on the way down, one set of every node."""
        found = set(self._everywhere)
        node = self._root
        while node is not None:
            found |= node.side(key)
            node = None if key == node.key else node.child(key)
        return found

    def known(self, identifier: Hashable) -> Range:
        """K(i): what the tree knows of an identifier."""
        node, place = self._place[identifier]
        if node is None:
            return EVERYTHING
        low, high = node.extent()
        if place is node.exact:
            return Range(node.key, node.key)
        return Range(low, node.key) if place is node.left else Range(node.key, high)

    def covers(self, identifier: Hashable, key: float) -> bool:
        """Whether ``key`` is in K(i)."""
        return key in self.known(identifier)

    def update(self, identifier: Hashable, key: float) -> None:
        """``update_context`` of Figure 8: the index hears of it only when K(i) does not cover the new key."""
        if not self.covers(identifier, key):
            self.escalate(identifier, key)
        self._key[identifier] = key

    def escalate(self, identifier: Hashable, key: float) -> None:
        """Move an identifier up to the first node that covers ``key`` and all that it covered before."""
        node, _ = self._place[identifier]
        before = node.key if node is not None else key
        above = node.parent if node is not None else None
        while above is not None and (key not in above.extent() or above.side(key) is not above.side(before)):
            above = above.parent
        self._take(identifier, keep=above)
        self._put(identifier, above, self._everywhere if above is None else above.side(key))

    def deescalate(self, identifier: Hashable) -> None:
        """Move an identifier one node down, towards its key; below a leaf that makes a node."""
        node, place = self._place[identifier]
        if node is None or place is not node.exact:
            self._take(identifier, keep=node)
            self._put_below(node, identifier, exactly=False)

    def check(self) -> None:
        """Raise InvariantError unless keys are in order, every identifier is in one place, and k(i) in K(i)."""
        met = list(self._everywhere)
        for node in self._nodes():
            low, high = node.extent()
            if not low < node.key < high:
                raise InvariantError(f"search tree: key {node.key} is out of order")
            if node.is_empty():
                raise InvariantError(f"search tree: node {node.key} is empty")
            met += [*node.left, *node.exact, *node.right]
        if len(met) != len(set(met)) or set(met) != set(self._key) or set(met) != set(self._place):
            raise InvariantError("search tree: an identifier is not in exactly one place")
        for identifier, key in self._key.items():
            if not self.covers(identifier, key) or identifier not in self.probe(key):
                raise InvariantError(f"search tree: k(i) is not in K(i) for {identifier!r}")

    def __str__(self) -> str:
        """A line per node, children below their parent, ``<`` and ``>`` saying on which side."""
        lines = [f"everywhere {_shown(self._everywhere)}"] if self._everywhere else []
        for node in self._nodes():
            steps, above = "", node
            while above.parent is not None:
                steps = ("<" if above is above.parent.below else ">") + steps
                above = above.parent
            sets = (("left", node.left), ("exact", node.exact), ("right", node.right))
            parts = [steps, f"{node.key:g}", *(f"{name} {_shown(ids)}" for name, ids in sets if ids)]
            lines.append(" ".join(part for part in parts if part))
        return "\n".join(lines)

    def _nodes(self) -> Iterator[Node]:
        """All nodes, a parent before its children."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            if node is not None:
                yield node
                waiting += [node.above, node.below]

    def _put(self, identifier: Hashable, node: Node | None, place: set[Hashable]) -> None:
        place.add(identifier)
        self._place[identifier] = (node, place)

    def _put_below(self, node: Node | None, identifier: Hashable, *, exactly: bool) -> None:
        """Into the child of a node (the root, for None) on the way to the key, or all the way down; made if need be."""
        key = self._key[identifier]
        while True:
            child = self._root if node is None else node.child(key)
            if child is None:
                child = Node(key, node)
                if node is None:
                    self._root = child
                elif key < node.key:
                    node.below = child
                else:
                    node.above = child
            node = child
            if not exactly or node.key == key:
                return self._put(identifier, node, node.side(key))

    def _take(self, identifier: Hashable, keep: Node | None = None) -> None:
        """Take an identifier out, and nodes that are empty then, up to ``keep``."""
        node, place = self._place.pop(identifier)
        place.discard(identifier)
        while node is not None and node is not keep and node.is_empty():
            above = node.parent
            if above is None:
                self._root = None
            elif above.below is node:
                above.below = None
            else:
                above.above = None
            node = above


def _shown(identifiers: set[Hashable]) -> str:
    return "{" + " ".join(sorted(map(str, identifiers))) + "}"
