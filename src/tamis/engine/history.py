"""The past of a filter: the last messages, as they came, and which of them a profile matches now.

Guarantees that a recalled message is one that a filter which sees it now would match: kinds, contexts and graphs are
those of now. Messages are kept as rows of the tables they came in, so keeping them costs nothing per row; looking back
encodes them once and runs one profile over all of them, in one kernel call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.model.events import EventLog
from tamis.model.past import Past
from tamis.model.tables import Table, to_table

if TYPE_CHECKING:
    from .filter import Filter


class History:
    """The last ``room`` messages; numbers count from 0 in the order in which messages were accepted."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._parts: deque[tuple[int, list[dict[str, Any]] | tuple[Table, NDArray[np.int64]]]] = deque()
        self._kept = 0
        self._next = 0

    def start(self, number: int) -> None:
        """The next message has this number: a filter that was loaded has no past, but goes on counting."""
        self._next = number

    def add(self, table: Table | None, skip: NDArray[np.uint8]) -> None:
        """Messages of a log, those with ``skip`` left out. O(1) per message."""
        rows = np.flatnonzero(skip == 0)
        if not len(rows):
            return
        first, self._next = self._next, self._next + len(rows)
        if table is None:
            table = Table({}, len(skip))
        if self.room:
            self._append(first, (table, rows), len(rows))

    def add_one(self, message: Mapping[str, Any]) -> None:
        """One message of ``match``."""
        number, self._next = self._next, self._next + 1
        if not self.room:
            return
        last = self._parts[-1][1] if self._parts else None
        if isinstance(last, list) and len(last) < 1024:
            last.append(dict(message))
            self._kept += 1
            self._trim()
        else:
            self._append(number, [dict(message)], 1)

    def _append(self, first: int, part: Any, rows: int) -> None:
        self._parts.append((first, part))
        self._kept += rows
        self._trim()

    def _trim(self) -> None:
        while self._parts and self._kept - _size(self._parts[0][1]) >= self.room:
            self._kept -= _size(self._parts.popleft()[1])

    def recall(self, owner: Filter, code: int, since: int, limit: int | None) -> list[Past]:
        """The kept messages from number ``since`` on that profile ``code`` matches, oldest first."""
        since = max(since, self._next - self.room)
        clauses = np.array(owner._profiles.clauses_of(code), np.int64)
        found: list[Past] = []
        for first, part in self._parts:
            skipped = max(0, since - first)
            if skipped >= _size(part):
                continue
            table = to_table(part[skipped:], "history") if isinstance(part, list) else part[0].take(part[1][skipped:])
            for i in owner._replay.recall(EventLog.of_messages(table), clauses).tolist():
                message = dict(part[skipped + i]) if isinstance(part, list) else table.row(i)
                found.append(Past(first + skipped + i, message))
        return found if limit is None else found[max(0, len(found) - limit) :]


def _size(part: Any) -> int:
    return len(part) if isinstance(part, list) else len(part[1])
