"""Doubt: which errors a flow may have caused, as far as it can know without a second filter.

A shed message may be a false negative for every profile. A shed update leaves a value of a context outdated until a
later update of the same value is delivered; a message that is matched meanwhile, or in another order than it came, may
be wrong either way. Guarantees that a message that is not counted here got the matches of serial processing, unless an
effect of one that is had changed a context. Refuses to know profiles: whether an error happened only the serial truth
tells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tamis.model.events import MESSAGE, UPDATE

from .chunk import Consistency, Piece


class Doubt:
    """Counts what may be wrong: ``missed`` messages were shed, ``suspect`` ones matched against another state."""

    def __init__(self) -> None:
        self.missed = 0
        self.suspect = 0
        self._names: dict[str, int] = {}
        self._key: NDArray[np.int64] = np.zeros(0, np.int64)  # outdated values, sorted
        self._seq: NDArray[np.int64] = np.zeros(0, np.int64)  # the last update of each that was shed
        self._still: NDArray[np.bool_] = np.zeros(0, bool)
        self._outdated = 0

    @property
    def outdated(self) -> int:
        """Values of contexts that lack their last update."""
        return self._outdated

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _updates(self, pieces: list[Piece]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        keys, seqs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for piece in pieces:
            mine = piece.positions[piece.kind == UPDATE]
            if len(mine):
                keys.append(piece.chunk.values(mine, self._number))
                seqs.append(piece.chunk.first + mine)
        return np.concatenate(keys), np.concatenate(seqs)

    def shed(self, pieces: list[Piece]) -> None:
        """Events were given up. O(outdated values + events)."""
        self.missed += sum(int(np.count_nonzero(piece.kind == MESSAGE)) for piece in pieces)
        key, seq = self._updates(pieces)
        if not len(key):
            return
        key, seq = np.concatenate([self._key[self._still], key]), np.concatenate([self._seq[self._still], seq])
        order = np.lexsort((seq, key))
        key, seq = key[order], seq[order]
        last = np.append(key[1:] != key[:-1], True)
        self._key, self._seq = key[last], seq[last]
        self._still = np.ones(len(self._key), bool)
        self._outdated = len(self._key)

    def delivered(self, pieces: list[Piece], consistency: Consistency, messages: int) -> None:
        """Work is done; ``messages`` of it were matched. O(updates log outdated)."""
        if self._outdated:
            self.suspect += messages
            self._refresh(*self._updates(pieces))
        elif consistency != "serial" and messages:
            self.suspect += min(messages, _reordered(pieces, consistency))

    def _refresh(self, key: NDArray[np.int64], seq: NDArray[np.int64]) -> None:
        if not len(key):
            return
        place = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        hit = place[(self._key[place] == key) & (self._seq[place] < seq)]
        self._still[hit] = False
        self._outdated = int(np.count_nonzero(self._still))
        if 2 * self._outdated < len(self._key):
            self._key, self._seq = self._key[self._still], self._seq[self._still]
            self._still = np.ones(self._outdated, bool)

    def to_dict(self) -> dict[str, int]:
        """The counts as plain values."""
        return {"missed": self.missed, "suspect": self.suspect, "outdated": self.outdated}


def _reordered(pieces: list[Piece], consistency: Consistency) -> int:
    """Messages that an update of the same batch passed, or that passed one."""
    kind = np.concatenate([piece.kind for piece in pieces])
    updates = np.flatnonzero(kind == UPDATE)
    if not len(updates):
        return 0
    messages = np.flatnonzero(kind == MESSAGE)
    if consistency == "no outdated state":
        return int(np.count_nonzero(messages < updates[-1]))
    return int(np.count_nonzero(messages > updates[0]))
