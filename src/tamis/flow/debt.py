"""Debt: updates that were put off because messages could not wait for them.

Guarantees that an update is never worked after a later one of the same value: what was put off leaves the debt when
such a one is taken. So the debt holds one update per value at most, and the state of a filter is the serial one again
when the debt is paid. Refuses to know policies and time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tamis.errors import InvariantError
from tamis.model.events import UPDATE

from .chunk import Chunk, Piece, counted, log_of
from .queue import Counts
from .values import Latest, Numbering, Numbers, updates_of

PINNED: Final = 100_000
"""Events of chunks that the debt may keep from being freed, beside four for each of its own."""


class Debt:
    """Updates that were put off, one per value; ``waiting`` counts them by sort and class."""

    def __init__(self, classes: int, numbering: Numbering) -> None:
        self.waiting: Counts = np.zeros((4, classes), np.int64)
        self._numbering = numbering
        self._latest = Latest(more=2)  # which chunk, which position
        self._chunks: list[Chunk] = []
        self._which: dict[int, int] = {}  # by identity: chunks that are held stay where they are
        self._pinned = 0  # events of all chunks
        self._named: bool | None = None

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, pieces: list[Piece]) -> list[Piece]:
        """Puts updates off; returns those that are given up, because a later one of their value was put off, too.

        Names and indices of contexts cannot be compared: after updates of the one sort those of the other are not put
        off.
        """
        given_up: list[Piece] = []
        added: list[Numbers] = []
        for piece in pieces:
            if self._named is None:
                self._named = piece.chunk.named
            if piece.chunk.named != self._named:
                given_up.append(piece)
                continue
            key, seq = updates_of([piece], self._numbering)
            if _pins_too_much(len(piece.chunk), len(key)):
                piece = _alone([piece])
            added.append(np.stack([key, seq, np.full_like(key, self._number(piece.chunk)), piece.positions]))
            self.waiting += self._count(piece)
        if added:
            given_up += self._left(self._latest.add(*np.concatenate(added, axis=1)))
            self._compact()
        return given_up

    def overtaken(self, pieces: list[Piece]) -> list[Piece]:
        """These pieces are about to be worked: what they make pointless leaves. O(updates log debt)."""
        if not len(self):
            return []
        if any(piece.chunk.named not in (None, self._named) and (piece.kind == UPDATE).any() for piece in pieces):
            return self.cut(len(self))
        return self._left(self._latest.pop_older(*updates_of(pieces, self._numbering)))

    def cut(self, count: int) -> list[Piece]:
        """So many updates leave, to be worked."""
        return self._left(self._latest.pop(count))

    def _left(self, rows: Numbers) -> list[Piece]:
        found = self._pieces(rows)
        for piece in found:
            self.waiting -= self._count(piece)
        if not len(self):
            self._forget()
            self._named = None
        return found

    def _forget(self) -> None:
        self._chunks, self._which, self._pinned = [], {}, 0

    def _pieces(self, rows: Numbers) -> list[Piece]:
        """Rows by chunk, the positions rising."""
        if not rows.shape[1]:
            return []
        rows = rows[:, np.lexsort((rows[3], rows[2]))]
        which, starts = np.unique(rows[2], return_index=True)
        return [
            Piece(self._chunks[chunk], positions)
            for chunk, positions in zip(which.tolist(), np.split(rows[3], starts[1:]), strict=True)
        ]

    def _count(self, piece: Piece) -> Counts:
        return counted(piece, self.waiting.shape[1])

    def _number(self, chunk: Chunk) -> int:
        number = self._which.setdefault(id(chunk), len(self._chunks))
        if number == len(self._chunks):
            self._chunks.append(chunk)
            self._pinned += len(chunk)
        return number

    def _compact(self) -> None:
        """Few updates of many chunks move into one of their own."""
        if not _pins_too_much(self._pinned, len(self)):
            return
        alone = _alone(self._pieces(self._latest.rows()))
        self._forget()
        key, seq = updates_of([alone], self._numbering)
        self._latest = Latest(more=2)
        self._latest.add(key, seq, np.full_like(key, self._number(alone.chunk)), alone.positions)

    def check(self) -> None:
        """Recount; :class:`tamis.InvariantError` when a number is wrong. O(debt)."""
        pieces = self._pieces(self._latest.rows())
        counts = sum((self._count(piece) for piece in pieces), np.zeros_like(self.waiting))
        if not np.array_equal(counts, self.waiting) or len(self) != counts.sum():
            raise InvariantError(f"debt: {counts.tolist()} updates are put off, counted as {self.waiting.tolist()}")


def _pins_too_much(events: int, kept: int) -> bool:
    """Whether chunks of so many events are too large to be kept for so many of these: a chunk is freed as a whole."""
    return events > PINNED + 4 * kept


def _alone(pieces: list[Piece]) -> Piece:
    """Events in a chunk of their own."""
    arrival = np.concatenate([piece.chunk.arrival[piece.positions] for piece in pieces])
    qos = np.concatenate([piece.chunk.qos[piece.positions] for piece in pieces])
    seq = np.concatenate([piece.seq for piece in pieces])
    return Piece(Chunk(log_of(pieces), np.maximum.accumulate(arrival), qos, seq), np.arange(len(seq)))
