"""Event models as in Lee et al.: a graph of topics, a tree of places, users and events with sets of categories.

Real graphs are read from a folder where it has them; the others are made: topics in the shape of the Open Directory
(a tree whose levels grow, and about one symbolic link per topic, half of them nearby), places in the shape of a
gazetteer. The same seed makes the same model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tamis.graph import ContentGraph

Ids = NDArray[np.int32]

TOPICS: Final = {4_000: 7, 13_000: 9, 44_506: 10, 600_000: 10}
"""Topics of the paper's models (all within 4, 5 and 6 links of the root, and all of ODP), and how deep we make them."""
PLACES: Final = 6_905
USERS: Final = 100_000
OF_USER: Final = (5, 3)
OF_EVENT: Final = (3, 2)
GO: Final = ("topics/go_edges.tsv.gz", ("child", "parent", "kind"))
GEONAMES: Final = ("places/geonames_tree.tsv.gz", ("child", "parent", "name", "lat", "lng"))


def directory(nodes: int, depth: int, links: float, rng: np.random.Generator, name: str) -> ContentGraph:
    """A tree of so many levels below its root, and ``links`` more parents per node, on levels above it."""
    sizes = np.power(nodes ** (1 / depth), np.arange(1, depth + 1))
    sizes = np.maximum(1, np.round(sizes * (nodes - 1) / sizes.sum())).astype(np.int64)
    sizes[-1] += nodes - 1 - sizes.sum()
    starts = np.concatenate([[0, 1], 1 + np.cumsum(sizes)])
    edges: list[NDArray[np.int64]] = []
    for level in range(1, depth + 1):
        count, above, first = int(sizes[level - 1]), int(starts[level] - starts[level - 1]), starts[level]
        # Families differ in size; children lie in the order of their parents, so that neighbours are relatives.
        parent = starts[level - 1] + np.sort((above * rng.random(count) ** 1.5).astype(np.int64))
        edges.append(np.stack([parent, first + np.arange(count)]))
        if level == 1:
            continue
        child = np.repeat(np.arange(count), rng.poisson(links, count))
        near = (child * above / count + rng.normal(0, 0.01 * above + 2, len(child))).astype(np.int64)
        near = starts[level - 1] + near.clip(0, above - 1)
        far = rng.integers(1, first, len(child))
        edges.append(np.stack([np.where(rng.random(len(child)) < 0.5, near, far), first + child]))
    parents, children = np.concatenate(edges, axis=1)
    names = [f"{name}{i}" for i in range(nodes)]
    return ContentGraph.from_edges(
        ((names[a], names[b]) for a, b in zip(parents.tolist(), children.tolist(), strict=True)), name=name
    )


def topics(nodes: int, rng: np.random.Generator) -> ContentGraph:
    """Topics as in ODP; a size that the paper has not gets the depth of the nearest one."""
    depth = TOPICS[min(TOPICS, key=lambda known: abs(known - nodes))]
    return directory(nodes, depth, 1.0, rng, "topic")


def places(nodes: int, rng: np.random.Generator) -> ContentGraph:
    """Places as in a gazetteer: a tree in which a place has itself and three others above it, about."""
    return directory(nodes, 3, 0.0, rng, "place")


def real(data: Path | None, what: tuple[str, tuple[str, ...]], name: str) -> ContentGraph | None:
    """A graph of the folder, if it is there."""
    path = None if data is None else data / what[0]
    if path is None or not path.exists():
        return None
    return ContentGraph.read(path, name=name, columns=what[1])


@dataclass(frozen=True)
class Model:
    """Two graphs, and a generator of users and events over them."""

    topic: ContentGraph
    place: ContentGraph
    rng: np.random.Generator

    @property
    def graphs(self) -> list[tuple[ContentGraph, Any]]:
        """Subtopics of what a user asked for, in places that cover the user's."""
        return [(self.topic, "within"), (self.place, "covers")]

    def _some(self, count: int, each: tuple[int, int]) -> tuple[Ids, Ids]:
        return (
            self.rng.integers(0, self.topic.size, (count, each[0]), dtype=np.int32),
            self.rng.integers(0, self.place.size, (count, each[1]), dtype=np.int32),
        )

    def users(self, count: int) -> tuple[Ids, Ids]:
        """Categories of users, at random."""
        return self._some(count, OF_USER)

    def events(self, count: int) -> tuple[Ids, Ids]:
        """Categories of events, at random."""
        return self._some(count, OF_EVENT)
