"""The names of categories: text in, number out.

Guarantees that a name means one category or is an error that says what it could have meant. A category is found by its
name; by a path, names joined by ``/`` from parent to child; or by the last part of its name when only one category
ends in it. Refuses to know reachability.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from tamis.errors import GraphError

SEPARATOR = "/"
SHOWN = 5


class Names:
    """Names by number; numbers are dense, and those of removed categories are not used again."""

    def __init__(self, graph: str, names: Iterable[str | None] = ()) -> None:
        self.graph = graph
        self.all: list[str | None] = list(names)
        self._ids = {name: i for i, name in enumerate(self.all) if name is not None}
        self._ends: dict[str, list[int]] | None = None

    def __len__(self) -> int:
        """How many categories there are."""
        return len(self._ids)

    def add(self, name: object) -> int:
        """The number of a name, a new one if need be. O(1)."""
        if not isinstance(name, str):
            raise GraphError(f"graph {self.graph!r}: the name of a category is text, got {name!r}")
        known = self._ids.get(name)
        if known is not None:
            return known
        if not name or any(not part for part in name.split(SEPARATOR)):
            raise GraphError(f"graph {self.graph!r}: the name of a category has no empty part, got {name!r}")
        self._ids[name] = len(self.all)
        if self._ends is not None:
            self._ends.setdefault(name.rpartition(SEPARATOR)[2], []).append(len(self.all))
        self.all.append(name)
        return len(self.all) - 1

    def remove(self, number: int) -> None:
        """Forget a name. O(1)."""
        name = self.all[number]
        if name is None:
            return
        del self._ids[name]
        self.all[number] = None
        if self._ends is not None:
            self._ends[name.rpartition(SEPARATOR)[2]].remove(number)

    def exact(self, name: str) -> int | None:
        """The number of exactly this name."""
        return self._ids.get(name)

    def of(self, number: int) -> str:
        """The name of a category."""
        name = self.all[number] if 0 <= number < len(self.all) else None
        if name is None:
            raise GraphError(f"graph {self.graph!r}: there is no category number {number}")
        return name

    def meant(self, text: str, parents: Callable[[int], Sequence[int]]) -> list[int]:
        """All categories that a text can mean: one when it is clear, none when it is unknown."""
        known = self._ids.get(text)
        if known is not None:
            return [known]
        *before, end = text.split(SEPARATOR)
        if self._ends is None:
            self._ends = {}
            for number, name in enumerate(self.all):
                if name is not None:
                    self._ends.setdefault(name.rpartition(SEPARATOR)[2], []).append(number)
        return [number for number in self._ends.get(end, ()) if self._is_below(number, before, parents)]

    def _is_below(self, number: int, before: list[str], parents: Callable[[int], Sequence[int]]) -> bool:
        """Whether a path of parents has these names, the nearest last."""
        if not before:
            return True
        whole = SEPARATOR.join(before)
        if self.of(number).rpartition(SEPARATOR)[0].endswith(whole):
            own = self.of(number).split(SEPARATOR)[:-1]
            if own[-len(before) :] == before:
                return True
        return any(
            self.of(parent).rpartition(SEPARATOR)[2] == before[-1] and self._is_below(parent, before[:-1], parents)
            for parent in parents(number)
        )

    def nearest(self, text: str) -> str | None:
        """A known name that looks like the text. O(names) at worst, once per error."""
        end = text.rpartition(SEPARATOR)[2].casefold()
        first = end[:1]
        near: dict[str, str] = {}
        for name in self._ids:
            last = name.rpartition(SEPARATOR)[2].casefold()
            # Comparing two texts costs microseconds: only those that could be near are compared.
            if abs(len(last) - len(end)) <= 2 + len(end) // 4 and (last[:1] == first or last[1:3] == end[1:3]):
                near.setdefault(last, name)
                if len(near) >= 20_000:
                    break
        found = difflib.get_close_matches(end, near, 1)
        return near[found[0]] if found else None
