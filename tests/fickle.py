"""Filters that change their index all the time, however little there is to gain by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tamis import Filter
from tamis.index.choice import Chooser, Option
from tamis.index.picture import Picture


class Fickle(Chooser):
    """Takes the next index at every look, on as many attributes as it has looks."""

    looks = 0

    def wake(self) -> tuple[int, int]:
        """Always."""
        return 0, 0

    def due(self, entries: int) -> bool:
        """Whenever anything has happened."""
        return self._seen[:2] != (self.load.messages, self.load.updates)

    def better(self, index: Any, picture: Picture, root: Callable[[], float]) -> Option | None:
        """Another option, whatever it costs; every fifth time only if there is a better one."""
        better = super().better(index, picture, root)
        self.looks += 1
        if self.looks % 5 == 0:
            return better
        name = self.indexes[self.looks % len(self.indexes)]
        columns = tuple(picture.columns.tolist())[: 1 + self.looks % 3]
        option = Option(name, () if name in ("blocks", "noindex") else columns)
        self._take(option, changed=True)
        return option


def fickle(**options: Any) -> Filter:
    """A filter that never keeps its index."""
    f = Filter(**options)
    assert f._auto is not None
    for one in f._auto.choosers:
        one.__class__ = Fickle
    return f
