"""The trees of paper 000 from the outside, with a buffer in every node: B+-trees, one per attribute, and R-trees."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import btree, layout, rtree
from tamis.kernels.bundles import BTree, RTree, World
from tamis.kernels.records import Record

from .family import FamilyIndex
from .growth import zeros
from .protocol import Ids
from .slots import SAMPLE


class BTreeIndex(FamilyIndex):
    """B+-trees, one per attribute.

    Runtime complexity: probe O(log N + leaves with an interval that reaches the value), update O(log N).
    """

    name: ClassVar[str] = "btree"
    record: ClassVar[type[Record]] = BTree
    structure: ClassVar[Any] = btree
    marks: ClassVar[int] = 2  # one, and another while it moves
    factor: ClassVar[int] = 4

    def _structure_arrays(
        self, room: int, slots: NDArray[np.int32], groups: NDArray[np.int32], markers: int
    ) -> dict[str, Any]:
        n = len(groups) - 1
        # A leaf per ten entries: they are half full after a split, and fuller only by chance.
        leaves = n + markers // 64 + 8
        inners = 2 * (btree.MAX_HEIGHT + 2) * n + leaves // 4
        spare = np.array([n, -1, leaves, -1, inners], np.int64)
        node = zeros((leaves + inners, 2), np.int32)
        node[:n] = (0, -1)
        span = zeros((leaves + inners, 3))
        span[:n] = -np.inf
        return {
            "node": node,
            "span": span,
            "low": zeros((leaves, btree.LEAF)),
            "high": zeros((leaves, btree.LEAF)),
            "entry": zeros((leaves, btree.LEAF), np.int32),
            "key": zeros((inners, 2, btree.FAN)),
            "key_entry": zeros((inners, btree.FAN), np.int32),
            "child": zeros((inners, btree.FAN), np.int32),
            "cap": zeros((inners, btree.FAN)),
            "home": np.full((room, n), -1, np.int32),
            "tree": np.column_stack([np.arange(n), np.ones(n)]).astype(np.int32),
            "path": np.zeros(btree.STACK, np.int32),
            "spare": spare,
            "#lists": leaves + inners,
        }


class RTreeIndex(FamilyIndex):
    """One R-tree over all indexed attributes.

    Runtime complexity: probe O(log N + nodes whose box holds the message), update O(log N); no better bound is known.
    """

    name: ClassVar[str] = "rtree"
    record: ClassVar[type[Record]] = RTree
    structure: ClassVar[Any] = rtree
    marks: ClassVar[int] = 2
    factor: ClassVar[int] = 4

    def _groups(self, slots: int) -> NDArray[np.int32]:
        return np.array([0, slots], np.int32)

    def _structure_arrays(
        self, room: int, slots: NDArray[np.int32], groups: NDArray[np.int32], markers: int
    ) -> dict[str, Any]:
        n = len(slots)
        nodes = 2 * rtree.MAX_HEIGHT + markers // (24 * n)  # six markers per entry and slot: a node per four entries
        nothing = np.tile([np.inf, -np.inf], (n, 1))
        hull, load = zeros((nodes, n, 2)), zeros((nodes, n, 2))
        hull[0], load[0] = nothing, nothing
        node = zeros((nodes, 3), np.int32)
        node[0] = (0, -1, 1)
        return {
            "node": node,
            "hull": hull,
            "load": load,
            "box": zeros((nodes, 2 * n, rtree.FAN)),
            "child": zeros((nodes, rtree.FAN), np.int32),
            "home": np.full((room, 1), -1, np.int32),
            "tree": np.array([[0, 1]], np.int32),
            "unit": np.tile([0.0, 1.0, 1.0], (n, 1)),
            "at": np.zeros((n, 2)),
            "meets": np.zeros(rtree.FAN, np.uint8),
            "order": np.zeros((2, rtree.FAN), np.int32),
            "middle": np.zeros(rtree.FAN),
            "part": np.zeros((2 * rtree.FAN, n, 2)),
            "path": np.zeros(rtree.STACK, np.int32),
            "spare": np.array([1, -1, nodes - 1], np.int64),
            "#lists": nodes,
        }

    def _prepare(self, ids: Ids, world: World) -> None:
        """Sizes are measured where the middle 98 % of the bounds lie; a few far ones would make all others alike."""
        bounds = layout.sample_bounds(ids[:: max(1, len(ids) // SAMPLE)], self.bundle.slot_attribute, world)
        for s in range(len(self.bundle.slot_attribute)):
            ends = bounds[:, s][np.isfinite(bounds[:, s])]
            if len(ends):
                low, high = np.quantile(ends, (0.01, 0.99), method="nearest").tolist()
                if 0 < high - low < np.inf:
                    self.bundle.unit[s] = (low, high, 1 / (high - low))
