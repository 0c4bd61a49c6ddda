"""The content graphs of a filter: texts as categories, and the records that kernels read.

Guarantees that kernels see the graphs as they are when a log starts: whoever asks for :meth:`Categories.addresses` gets
records of the present version, with the category of every text that has a code by then. Refuses to know predicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.graph import ContentGraph
from tamis.index.growth import with_room
from tamis.kernels import taxonomy as kernel
from tamis.kernels.taxonomy import Taxonomy
from tamis.model import tree as t
from tamis.model.categories import Graphs, graph_name
from tamis.model.schema import Schema, message_name
from tamis.model.values import CATEGORIES, TEXT, Kind

from .values import ValueStore

_NONE = np.zeros(0, np.int64)


def mode_of(kind: Kind | None) -> int:
    """How a value of a kind holds categories."""
    return kernel.TEXT if kind is TEXT else kernel.EITHER if kind is CATEGORIES else kernel.LIST


class Categories:
    """The graphs of one filter, numbered in the order in which they were given."""

    def __init__(self, graphs: Graphs, schema: Schema, values: ValueStore, columns: Any, shards: int) -> None:
        self.graphs = graphs
        self._list: list[Any] = list(graphs.values())
        for graph in self._list:
            assert isinstance(graph, ContentGraph)
        self.number = {name: i for i, name in enumerate(graphs)}
        self._schema, self._values, self._columns = schema, values, columns
        self._versions: list[int] = [-1] * len(self._list)
        self._category = [np.full(16, -1, np.int32) for _ in self._list]
        self._known = 0  # texts whose categories are known
        self._cache: list[dict[str, int]] = [{} for _ in self._list]
        self._marks: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in range(shards)]
        self._records: list[list[Taxonomy | None]] = [[None] * len(self._list) for _ in range(shards)]
        self._addresses: list[NDArray[np.int64]] = [_NONE] * shards

    def __bool__(self) -> bool:
        return bool(self._list)

    def graph_of(self, node: t.Within | t.Covers) -> int:
        """The number of the graph that a predicate is about."""
        name = graph_name(node, self.graphs)
        assert name is not None, "the schema has admitted it"
        return self.number[name]

    def changed(self) -> bool:
        """Whether a graph has changed since kernels last saw it."""
        return any(graph.version != version for graph, version in zip(self._list, self._versions, strict=True))

    def sizes(self) -> list[int]:
        """The number behind the last category of each graph."""
        return [graph.size for graph in self._list]

    def forget(self, texts: int) -> None:
        """Texts from this code on were taken back."""
        self._known = min(self._known, texts)

    def addresses(self, shard: int) -> NDArray[np.int64]:
        """The records of all graphs for one shard. O(new texts), O(texts) after a change of a graph."""
        if not self._list:
            return _NONE
        if self.changed():
            self._known = 0
            self._versions = [graph.version for graph in self._list]
            self._cache = [{} for _ in self._list]
            self._marks = [[] for _ in self._marks]
        if self._known < self._values.texts.count:
            self._learn()
        if not self._marks[shard]:
            self._marks[shard] = [_marks(graph.size) for graph in self._list]
        records = self._records[shard]
        for g, graph in enumerate(self._list):
            *marks, count = self._marks[shard][g]
            records[g] = Taxonomy.current(
                records[g], graph.bundle(), graph.adjacency(), self._category[g], *marks, count
            )
            count[kernel.COLUMN] = self._columns.column.get(graph.name, -1)
            count[kernel.MODE] = mode_of(self._schema.kind(message_name(graph.name)))
        now = [record.address for record in records if record is not None]
        if self._addresses[shard].tolist() != now:
            self._addresses[shard] = np.array(now, np.int64)
        return self._addresses[shard]

    def _learn(self) -> None:
        """The categories of texts that are new."""
        texts = self._values.texts
        first, last = self._known, texts.count
        names = texts.take(np.arange(first, last, dtype=np.int32))
        listed: Sequence[str] = names if isinstance(names, list) else names.to_pylist()
        for g, graph in enumerate(self._list):
            category = self._category[g] = with_room(self._category[g], last, -1)
            cache = self._cache[g]
            if len(cache) > 1_000_000:
                cache.clear()
            for i, text in enumerate(listed):
                found = cache.get(text)
                if found is None:
                    found = cache[text] = graph.id(text) if text in graph else -1
                category[first + i] = found
        self._known = last


def _marks(size: int) -> tuple[NDArray[Any], ...]:
    """Marks for a graph whose categories are below ``size``, none of them set."""
    sets = [(np.zeros(size + 1, np.uint8), np.zeros(size + 1, np.int32)) for _ in range(2)]
    for marks, _ in sets:
        marks[size] = 1  # where entries are that are found everywhere
    return (*sets[0], *sets[1], np.zeros(8, np.int64))
