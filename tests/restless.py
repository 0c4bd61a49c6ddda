"""Filters whose entries go to the root and back all the time, however little there is to gain by it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis import Filter
from tamis.index import root
from tamis.kernels.bundles import PROBES

root.LEAST, root.SPARSE = 1, 1 << 30  # one clause of a template is enough


class Restless(root.Account):
    """Changes its mind at every look but the third, whatever that costs."""

    looks = 0

    def due(self, count: NDArray[np.int64], found: root.Prospect) -> bool:
        """Whether entries should change places now: usually."""
        if found is root.NOTHING or count[PROBES] < self._next[0]:
            return False
        self.restart(count)
        self.looks += 1
        if self.looks % 3 == 0:
            return False
        self.rooted = not self.rooted
        return True


def restless(**options: Any) -> Filter:
    """A filter that never comes to rest."""
    return accounted(Filter(**options), Restless)


def accounted(f: Filter, account: type[root.Account]) -> Filter:
    """The filter with accounts of another sort."""
    for index in f._indexes:
        index._account = account(index.bundle.count, rooted=True)  # type: ignore[attr-defined]
    return f
