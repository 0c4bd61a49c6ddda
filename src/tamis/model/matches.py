"""Matches: what a filter found in a log, and what it had to reject.

Guarantees that a result is frozen, in log order, and holds profile ids lazily: an engine hands over codes and a way
to decode them, and nobody pays for ids that are never read, nor for a row number beside every match. Refuses to know
filters.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.errors import UsageError

Id: TypeAlias = "str | int"
Decode: TypeAlias = "Callable[[NDArray[np.int32]], pa.Array | list[Any]]"

REJECTED_KINDS = ("message", "update", "subscribe", "unsubscribe", "effect")

_SHOWN = 20


class Rejection(NamedTuple):
    """One rejected event. ``row`` is its row in the table it came from; an effect has the row of its message."""

    kind: str
    row: int
    reason: str


class Rejected:
    """The rejected events of a log, in log order."""

    __slots__ = ("kind", "reason", "row")

    def __init__(self, events: Iterable[tuple[str, int, str]] = ()) -> None:
        events = list(events)
        self.kind: tuple[str, ...] = tuple(kind for kind, _, _ in events)
        self.row: NDArray[np.int64] = np.array([row for _, row, _ in events], np.int64)
        self.reason: tuple[str, ...] = tuple(reason for _, _, reason in events)
        self.row.flags.writeable = False
        unknown = set(self.kind) - set(REJECTED_KINDS)
        if unknown:
            raise UsageError(f"rejected: unknown kind {unknown.pop()!r}; known: {', '.join(REJECTED_KINDS)}")

    def __len__(self) -> int:
        return len(self.kind)

    def __iter__(self) -> Iterator[Rejection]:
        return map(Rejection, self.kind, self.row.tolist(), self.reason)

    def __getitem__(self, i: int) -> Rejection:
        return Rejection(self.kind[i], int(self.row[i]), self.reason[i])

    def to_arrow(self) -> pa.Table:
        """A table with the columns kind, row, reason."""
        return pa.table(
            {
                "kind": pa.array(self.kind, pa.string()),
                "row": pa.array(self.row),
                "reason": pa.array(self.reason, pa.string()),
            }
        )

    def __repr__(self) -> str:
        return f"Rejected({len(self)})" if self.kind else "Rejected(none)"

    def _repr_html_(self) -> str:
        return _html(("kind", "row", "reason"), self, len(self))


class Matches:
    """Pairs of (message, profile).

    ``message`` holds original row numbers, shape (n,), in log order; ``profile`` the ids, shape (n,); both are made on
    first use. Two results are equal when they hold the same pairs as often and rejected the same events (kind and row).
    """

    __slots__ = ("_decode", "_message", "_profile", "codes", "rejected")

    def __init__(
        self,
        message: NDArray[np.int64] | Callable[[], NDArray[np.int64]],
        codes: NDArray[np.int32],
        decode: Decode,
        rejected: Rejected | None = None,
    ) -> None:
        if not callable(message) and len(message) != len(codes):
            raise UsageError(f"matches: {len(message)} messages but {len(codes)} profiles")
        self._message = message
        self.codes = codes
        self.rejected = rejected if rejected is not None else Rejected()
        self._decode = decode
        self._profile: NDArray[np.object_] | None = None

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, Id]], rejected: Rejected | None = None) -> Matches:
        """Matches from plain pairs (message row, profile id)."""
        pairs = list(pairs)
        ids = [id for _, id in pairs]
        codes = np.arange(len(ids), dtype=np.int32)
        message = np.array([row for row, _ in pairs], np.int64)
        return cls(message, codes, lambda wanted: [ids[code] for code in wanted.tolist()], rejected)

    @property
    def message(self) -> NDArray[np.int64]:
        """The original row number of each match's message."""
        if callable(self._message):
            self._message = self._message()
        return self._message

    @property
    def profile(self) -> NDArray[np.object_]:
        """The profile id of each match, as an object array."""
        if self._profile is None:
            ids = self._decode(self.codes)
            profile = np.empty(len(self.codes), object)
            profile[:] = ids if isinstance(ids, list) else ids.to_pylist()
            profile.flags.writeable = False
            self._profile = profile
        return self._profile

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[tuple[int, Id]]:
        return zip(self.message.tolist(), self.profile, strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matches):
            return NotImplemented
        mine, theirs = self.rejected, other.rejected
        return (
            len(self) == len(other)
            and Counter(zip(mine.kind, mine.row.tolist(), strict=True))
            == Counter(zip(theirs.kind, theirs.row.tolist(), strict=True))
            and Counter(self) == Counter(other)
        )

    __hash__ = None  # type: ignore[assignment]

    def by_message(self) -> dict[int, list[Id]]:
        """The ids per message row; messages without a match are not in it."""
        found: dict[int, list[Id]] = {}
        for row, id in self:
            found.setdefault(row, []).append(id)
        return found

    def by_profile(self) -> dict[Id, list[int]]:
        """The message rows per profile id."""
        found: dict[Id, list[int]] = {}
        for row, id in self:
            found.setdefault(id, []).append(row)
        return found

    def to_arrow(self) -> pa.Table:
        """A table with the columns message (int64) and profile.

        Ids are int64 when all are integers, text when all are text; a mix of both becomes text.
        """
        ids = self._decode(self.codes)
        if isinstance(ids, list):
            types = set(map(type, ids))
            ids = pa.array(ids, pa.int64()) if types == {int} else pa.array(map(str, ids), pa.string())
        return pa.table({"message": pa.array(self.message, pa.int64()), "profile": ids})

    def __repr__(self) -> str:
        rejected = f", {len(self.rejected)} rejected" if len(self.rejected) else ""
        return f"Matches({len(self)}{rejected})"

    def _repr_html_(self) -> str:
        head = Matches(self.message[:_SHOWN], self.codes[:_SHOWN], self._decode)
        text = _html(("message", "profile"), head, len(self))
        if len(self.rejected):
            text += f"<p>{len(self.rejected)} rejected</p>{self.rejected._repr_html_()}"
        return text


def _html(names: tuple[str, ...], rows: Iterable[tuple[Any, ...]], total: int) -> str:
    """The first rows as an HTML table, with the total below when there are more."""
    head = "".join(f"<th>{name}</th>" for name in names)
    body = [
        "<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row) + "</tr>"
        for row, _ in zip(rows, range(_SHOWN), strict=False)
    ]
    more = f"<p>… {total:,} in all</p>" if total > _SHOWN else ""
    return f"<table><tr>{head}</tr>{''.join(body)}</table>{more}"
