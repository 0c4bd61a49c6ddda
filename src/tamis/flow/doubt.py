"""Doubt: which errors a flow may have caused, as far as it can know without a second filter.

A shed message may be a false negative for every profile. An update that is shed or put off leaves a value of a context
outdated until it, or a later one of the same value, is delivered; a message that is matched meanwhile, or in another
order than it came, may be wrong either way. Guarantees that a message that is not counted here got the matches of
serial processing, unless an effect of one that is had changed a context. Refuses to know profiles: whether an error
happened only the serial truth tells.
"""

from __future__ import annotations

import numpy as np

from tamis.model.events import MESSAGE, UPDATE

from .chunk import Consistency, Piece
from .values import Latest, Numbering, updates_of


class Doubt:
    """Counts what may be wrong: ``missed`` messages were shed, ``suspect`` ones matched against another state."""

    def __init__(self, numbering: Numbering | None = None) -> None:
        self.missed = 0
        self.suspect = 0
        self._numbering = Numbering() if numbering is None else numbering
        self._outdated = Latest()

    @property
    def outdated(self) -> int:
        """Values of contexts that lack their last update."""
        return len(self._outdated)

    def shed(self, pieces: list[Piece]) -> None:
        """Events were given up, or put off. O(outdated values + events)."""
        self.missed += sum(int(np.count_nonzero(piece.kind == MESSAGE)) for piece in pieces)
        key, seq = updates_of(pieces, self._numbering)
        if len(key):
            self._outdated.add(key, seq)

    def delivered(self, pieces: list[Piece], consistency: Consistency, messages: int) -> None:
        """Work is done; ``messages`` of it were matched. O(updates log outdated)."""
        if self.outdated:
            self.suspect += messages
            self._outdated.pop_older(*updates_of(pieces, self._numbering))
        elif consistency != "serial" and messages:
            self.suspect += min(messages, _reordered(pieces, consistency))

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
