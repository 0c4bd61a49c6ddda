"""Values as doubles: how every kind is encoded, and the texts, lists and pattern verdicts that codes refer to.

Numbers are doubles with a residual beyond 2**53, booleans 0 and 1, instants microseconds, texts and lists codes.
Texts and lists of messages are interned for the length of a log and then taken back, unless an effect may have
stored them in a context.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

import numpy as np
import re2
from numpy.typing import NDArray

from tamis.index.growth import with_room, zeros
from tamis.kernels import lists as kernel
from tamis.kernels.bundles import ABSENT
from tamis.kernels.bundles import Values as Bundle
from tamis.kernels.program import add_verdict, forget_verdict
from tamis.model.language import compile_regex
from tamis.model.values import BOOLEAN, CATEGORIES, TEXT, TIME, Kind, Value, from_microseconds, to_microseconds

from .strings import StringTable

WIDE = 1 << 53
COMPACT = 1 << 20
Mark = tuple[int, int, int]


def split(number: int) -> tuple[float, int]:
    """An integer as its double and the difference to it."""
    double = float(number)
    return double, number - int(double)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to: to Numba that is another type, and some columns come from Arrow as such."""
    view = array.view()
    view.flags.writeable = False
    return view


class ValueStore:
    """Texts, lists and patterns of one filter."""

    def __init__(self) -> None:
        self.texts = StringTable()
        self._list_start = np.zeros(9, np.int64)
        self._list_value = np.zeros(16)
        self._list_residual = np.zeros(16, np.int16)
        self._lists = 0
        self._pinned: list[tuple[int, int]] = []  # runs of lists that profiles hold: first, last
        # What compact() copies to, and then from.
        self._spare = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int16)
        self._worth = COMPACT  # elements from which on lists that nobody holds are looked for
        self._patterns: dict[tuple[str, str], int] = {}
        self._verdict = np.zeros(16, np.uint64)
        self._true: list[tuple[int, int]] = []
        self._judged: dict[int, set[int]] = {}
        self._admitted: dict[str, tuple[object, NDArray[np.bool_]]] = {}
        self._bundle: Bundle | None = None

    # -- encoding ----------------------------------------------------------------------------------------------

    def encode(self, value: Value | None) -> tuple[float, int]:
        """A normalised value as (double, residual)."""
        if isinstance(value, bool):
            return float(value), 0
        if isinstance(value, int):
            return split(value) if not -WIDE <= value <= WIDE else (float(value), 0)
        if isinstance(value, float):
            return value, 0
        if isinstance(value, str):
            return float(self.texts.intern(value)), 0
        if isinstance(value, datetime):
            return split(to_microseconds(value))
        if isinstance(value, tuple):
            return float(self.add_list(value)), 0
        return ABSENT, 0

    def encode_as(self, kind: Kind | None, value: Value | None) -> tuple[float, int]:
        """A normalised value of a name of this kind: where texts and lists mix, lists have negative codes."""
        if isinstance(value, tuple):
            code = self.add_list(value, pinned=False)
            return -1.0 - code if kind is CATEGORIES else float(code), 0
        return self.encode(value)

    def decode(self, double: float, residual: int, kind: Kind) -> Value:
        """What ``encode`` encoded; numbers that are whole come back as int."""
        if kind is TEXT:
            text = self.texts[int(double)]
            assert isinstance(text, str)
            return text
        if kind is BOOLEAN:
            return double != 0
        if kind is TIME:
            return from_microseconds(int(double) + residual)
        if kind is CATEGORIES:
            return self.decode(double, 0, TEXT) if double >= 0 else self._get_list(-1 - int(double), TEXT)
        if kind.name == "list":
            return self._get_list(int(double), kind.element)
        if residual or (double.is_integer() and abs(double) <= WIDE):
            return int(double) + residual
        return double

    def doubtful(self, name: str, versions: object, codes: NDArray[np.int32]) -> NDArray[np.intp]:
        """Which of some texts were not :meth:`admitted <admit>` with the graphs of a name at these versions."""
        before = self._admitted.get(name)
        known = before[1] if before is not None and before[0] == versions else np.zeros(0, np.bool_)
        self._admitted[name] = versions, with_room(known, self.texts.count)
        return np.flatnonzero(~self._admitted[name][1][codes])

    def admit(self, name: str, codes: NDArray[np.int32]) -> None:
        """Some texts are categories of a name."""
        self._admitted[name][1][codes] = True

    def add_list(self, items: Iterable[Any], pinned: bool = True) -> int:
        """A new list; absent elements are kept as such. One that is not ``pinned`` lives while a context holds it."""
        encoded = [self.encode(item) for item in items]
        top = int(self._list_start[self._lists])
        self._list_value = with_room(self._list_value, top + len(encoded))
        self._list_residual = with_room(self._list_residual, top + len(encoded))
        self._list_start = with_room(self._list_start, self._lists + 2)
        for i, (double, residual) in enumerate(encoded):
            self._list_value[top + i], self._list_residual[top + i] = double, residual
        self._lists += 1
        self._list_start[self._lists] = top + len(encoded)
        if pinned:
            self._pin(self._lists - 1)
        return self._lists - 1

    def add_lists(
        self,
        ends: NDArray[Any],
        elements: NDArray[np.float64],
        indices: NDArray[np.int32] | None = None,
        pinned: bool = True,
    ) -> NDArray[np.int64]:
        """Many new lists, one behind the other, of encoded elements without residuals; their codes.

        ``ends`` is where each ends in ``elements``, or in ``indices`` that say which of the elements follow each other.
        """
        first, top = self._lists, int(self._list_start[self._lists])
        size = len(elements) if indices is None else len(indices)
        self._list_value = with_room(self._list_value, top + size)
        self._list_residual = with_room(self._list_residual, top + size)
        self._list_start = with_room(self._list_start, first + len(ends) + 1)
        if indices is None:
            self._list_value[top : top + size] = elements
        else:
            kernel.take(elements, read_only(indices), self._list_value, top)
        self._list_residual[top : top + size] = 0
        self._lists += len(ends)
        np.add(ends, top, out=self._list_start[first + 1 : self._lists + 1])
        if pinned:
            self._pin(first)
        return np.arange(first, self._lists)

    def _pin(self, first: int) -> None:
        """Lists from ``first`` on are a profile's."""
        if self._pinned and self._pinned[-1][1] == first:
            first = self._pinned.pop()[0]
        self._pinned.append((first, self._lists))

    def wasteful(self) -> bool:
        """Whether :meth:`compact` may pay. O(1)."""
        return int(self._list_start[self._lists]) > self._worth

    def compact(self, value: NDArray[np.float64], columns: NDArray[np.int64], either: NDArray[np.uint8]) -> None:
        """Forget the lists that no profile and no context holds; the values of contexts follow.

        ``either`` says of each of the ``columns`` that may hold lists whether they may hold texts as well. Two sets of
        arrays take turns: fresh memory would cost as much as the copy. O(lists + elements + cells).
        """
        runs = np.array(self._pinned, np.int64).reshape(-1, 2)
        edges = np.zeros(int(runs[:, 1].max(initial=0)) + 1, np.int64)
        np.add.at(edges, runs[:, 0], 1)
        np.add.at(edges, runs[:, 1], -1)
        pinned = (np.cumsum(edges)[:-1] > 0).astype(np.uint8)
        now = self._list_start, self._list_value, self._list_residual
        start, items, residual = self._spare
        new = with_room(start, len(now[0])), with_room(items, len(now[1])), with_room(residual, len(now[2]))
        self._lists = kernel.compact(value, columns, either, pinned, now, new, zeros(self._lists, np.int32))
        self._spare = now
        self._list_start, self._list_value, self._list_residual = new
        self._worth = max(COMPACT, 4 * int(self._list_start[self._lists]))

    def _get_list(self, code: int, element: Kind | None) -> tuple[Any, ...]:
        first, last = self._list_start[code], self._list_start[code + 1]
        bits = self._list_value.view(np.int64)
        absent = np.float64(ABSENT).view(np.int64)
        return tuple(
            None
            if bits[i] == absent or element is None
            else self.decode(float(self._list_value[i]), int(self._list_residual[i]), element)
            for i in range(first, last)
        )

    # -- patterns ----------------------------------------------------------------------------------------------

    def pattern(self, how: str, text: str) -> int:
        """The number of a pattern; ``how`` is like, matches or startswith."""
        return self._patterns.setdefault((how, text), len(self._patterns))

    def judge(self, patterns: set[int], texts: NDArray[np.int64]) -> None:
        """Make the verdicts of patterns on texts (by code) known to the kernels."""
        known: list[tuple[str, str]] = []
        for code in set(texts.tolist()):
            done = self._judged.setdefault(code, set())
            if patterns <= done:
                continue
            known = known or list(self._patterns)
            text = self.texts[code]
            for pattern in patterns - done:
                if _searcher(*known[pattern]).search(text) is not None:
                    self._add_verdict(pattern, code)
            done |= patterns

    def _add_verdict(self, pattern: int, text: int) -> None:
        self._true.append((pattern, text))
        if 2 * len(self._true) > len(self._verdict):
            self._verdict = np.zeros(2 * len(self._verdict), np.uint64)
            for p, c in self._true:
                add_verdict(self._verdict, p, c)
        else:
            add_verdict(self._verdict, pattern, text)

    # -- the bundle, and what a log leaves behind --------------------------------------------------------------

    def bundle(self) -> Bundle:
        self._bundle = Bundle.current(
            self._bundle,
            self.texts.heap,
            self.texts.start,
            self._list_start,
            self._list_value,
            self._list_residual,
            self._verdict,
        )
        return self._bundle

    def mark(self) -> Mark:
        """Where texts, lists and verdicts end now."""
        return self.texts.count, self._lists, len(self._true)

    def forget(self, mark: Mark) -> None:
        """Take back what came after the mark."""
        texts, lists, verdicts = mark
        newer = self._true[verdicts:]
        for pattern, text in reversed(newer):
            forget_verdict(self._verdict, pattern, text)
        del self._true[verdicts:]
        for pattern, text in newer:
            if text < texts:
                self._add_verdict(pattern, text)
        for code in [code for code in self._judged if code >= texts] if texts < self.texts.count else ():
            del self._judged[code]
        for _, known in self._admitted.values():
            known[texts : self.texts.count] = False
        self.texts.forget(texts)
        self._lists = lists

    def arrays(self) -> dict[str, NDArray[Any]]:
        top = int(self._list_start[self._lists])
        return {
            **{f"text_{name}": array for name, array in self.texts.arrays().items()},
            "list_start": self._list_start[: self._lists + 1],
            "list_value": self._list_value[:top],
            "list_residual": self._list_residual[:top],
            "list_pinned": np.array(self._pinned, np.int64).reshape(-1, 2),
        }

    def patterns(self) -> list[tuple[str, str]]:
        """All patterns in the order of their numbers, for saving."""
        return list(self._patterns)

    @classmethod
    def adopt(cls, arrays: dict[str, NDArray[Any]], patterns: Iterable[Iterable[str]]) -> ValueStore:
        store = cls()
        store.texts = StringTable.adopt({name: arrays[f"text_{name}"] for name in ("heap", "start", "slots")})
        store._list_start = arrays["list_start"]
        store._list_value, store._list_residual = arrays["list_value"], arrays["list_residual"]
        store._lists = len(store._list_start) - 1
        store._pinned = [(first, last) for first, last in arrays["list_pinned"].tolist()]
        for how, text in patterns:
            store.pattern(how, text)
        return store


@lru_cache(maxsize=65_536)
def _searcher(how: str, pattern: str) -> Any:
    """Every pattern as RE2: linear in the text, whatever the pattern."""
    if how == "matches":
        return compile_regex(pattern)
    if how == "startswith":
        return compile_regex(r"\A" + re2.escape(pattern))
    parts = [r"(?s)\A"]
    escaped = False
    for char in pattern:
        if escaped or char not in "%_\\":
            parts.append(re2.escape(char))
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            parts.append(".*" if char == "%" else ".")
    return compile_regex("".join(parts) + r"\z")
