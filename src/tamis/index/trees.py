"""The trees of paper 000 from the outside: B+-trees, one per attribute, with a buffer in every node."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import btree
from tamis.kernels.bundles import BTree
from tamis.kernels.records import Record

from .family import FamilyIndex
from .growth import zeros


class BTreeIndex(FamilyIndex):
    """B+-trees, one per attribute. Runtime complexity: probe O(log N + leaves that reach the value), update O(log N)."""

    name: ClassVar[str] = "btree"
    record: ClassVar[type[Record]] = BTree
    structure: ClassVar[Any] = btree
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
