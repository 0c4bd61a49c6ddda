"""Values of contexts as numbers, and the latest update of each.

Guarantees that updates of the same value have the same number in all chunks that one numbering has seen, and that of
each value only the latest update is remembered, whatever the order in which they are told. Refuses to know why somebody
asks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tamis.model.events import UPDATE

from .chunk import Piece

Numbers = NDArray[np.int64]


class Numbering:
    """A number for every name, given when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._known.setdefault(name, len(self._known))


def updates_of(pieces: Sequence[Piece], numbering: Numbering) -> tuple[Numbers, Numbers]:
    """The value that each update of some pieces sets, and its sequence number, in their order."""
    keys, seqs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for piece in pieces:
        mine = piece.positions[piece.kind == UPDATE]
        if len(mine):
            keys.append(piece.chunk.values(mine, numbering))
            seqs.append(piece.chunk.seq(mine))
    return np.concatenate(keys), np.concatenate(seqs)


def context_of(value: int) -> int:
    """The number of the context that a value belongs to."""
    return int(value) >> 33


class Latest:
    """Per value the latest update, with ``more`` numbers beside it. What is taken out leaves the arrays later."""

    def __init__(self, more: int = 0) -> None:
        self._rows: Numbers = np.zeros((2 + more, 0), np.int64)  # value, sequence number, more; sorted by value
        self._still: NDArray[np.bool_] = np.zeros(0, bool)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, *columns: Numbers) -> Numbers:
        """Updates: value, sequence number, more; returns the rows that are not the latest. O(new log all + all)."""
        new = np.stack(columns)
        new = new[:, np.lexsort((new[1], new[0]))]
        last = np.append(new[0, 1:] != new[0, :-1], True)[: new.shape[1]]
        old, new = [new[:, ~last]], new[:, last]
        place = np.searchsorted(self._rows[0], new[0])
        there = np.zeros(len(place), bool)
        within = np.flatnonzero(place < len(self._still))
        there[within] = self._rows[0, place[within]] == new[0, within]
        at, mine = place[there], new[:, there]
        wins = ~self._still[at] | (self._rows[1, at] <= mine[1])
        old += [mine[:, ~wins], self._rows[:, at[wins & self._still[at]]]]
        self._rows[:, at[wins]] = mine[:, wins]
        self._still[at] = True
        if not there.all():
            self._rows = np.insert(self._rows, place[~there], new[:, ~there], axis=1)
            self._still = np.insert(self._still, place[~there], True)
        self._count = int(np.count_nonzero(self._still))
        beaten: Numbers = np.concatenate(old, axis=1)
        return beaten

    def pop_older(self, key: Numbers, seq: Numbers) -> Numbers:
        """Takes out the values that an update as late, or later, has reached. O(updates log all)."""
        if not self._count or not len(key):
            return self._rows[:, :0]
        place = np.minimum(np.searchsorted(self._rows[0], key), len(self._still) - 1)
        hit = (self._rows[0, place] == key) & (self._rows[1, place] <= seq) & self._still[place]
        return self._pop(np.unique(place[hit]))

    def pop(self, count: int) -> Numbers:
        """Takes out so many, the first by value."""
        return self._pop(np.flatnonzero(self._still)[:count])

    def rows(self) -> Numbers:
        """All of them, by value."""
        found: Numbers = self._rows[:, self._still]
        return found

    def _pop(self, places: NDArray[np.intp]) -> Numbers:
        found: Numbers = self._rows[:, places]
        self._still[places] = False
        self._count -= len(places)
        if 2 * self._count < len(self._still):
            self._keep(self._rows[:, self._still])
        return found

    def _keep(self, rows: Numbers) -> None:
        self._rows, self._count = rows, rows.shape[1]
        self._still = np.ones(self._count, bool)
