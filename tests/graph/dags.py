"""Random content graphs for tests, and their meaning by plain search."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.graph import ContentGraph

Edge = tuple[str, str]


@st.composite
def edges(draw: st.DrawFn, nodes: int = 14) -> list[Edge]:
    """Edges of an acyclic graph: every one leads from a smaller to a larger number."""
    pair = st.tuples(st.integers(0, nodes - 2), st.integers(1, nodes - 1)).filter(lambda one: one[0] < one[1])
    return [(f"c{a}", f"c{b}") for a, b in draw(st.lists(pair, max_size=3 * nodes))]


def random_edges(nodes: int, count: int, rng: Random) -> list[Edge]:
    """As many edges of an acyclic graph with names c0, c1, ..."""
    return [(f"c{a}", f"c{b}") for a, b in (sorted(rng.sample(range(nodes), 2)) for _ in range(count))]


def reachable(edges: Iterable[Edge], nodes: Iterable[str]) -> set[Edge]:
    """All pairs (above, below), a category with itself included."""
    below: dict[str, set[str]] = {}
    for parent, child in edges:
        below.setdefault(parent, set()).add(child)
    pairs = set()
    for start in nodes:
        found, todo = {start}, [start]
        while todo:
            fresh = below.get(todo.pop(), set()) - found
            found |= fresh
            todo.extend(fresh)
        pairs |= {(start, end) for end in found}
    return pairs


def held(graph: ContentGraph) -> set[Edge]:
    """All pairs that the labels of a graph say."""
    return {(a, b) for a in graph.names for b in graph.names if graph.reaches(a, b)}


def a_graph(rng: Random, name: str, nodes: int | None = None, extra: int | None = None) -> ContentGraph:
    """A random tree, with edges across it or without."""
    nodes = rng.randint(2, 25) if nodes is None else nodes
    extra = rng.choice([0, nodes // 2]) if extra is None else extra
    tree = [(f"c{rng.randrange(i)}", f"c{i}") for i in range(1, nodes)]
    return ContentGraph.from_edges(tree + random_edges(nodes, extra, rng), name=name)


def padded(rows: list[list[int]]) -> NDArray[np.int32]:
    """Rows of different lengths as one array, -1 behind them."""
    wide = np.full((len(rows), max([1, *map(len, rows)])), -1, np.int32)
    for row, values in zip(wide, rows, strict=True):
        row[: len(values)] = values
    return wide


def naive_matches(
    graphs: list[tuple[ContentGraph, str]], users: dict[int, list[list[int]]], event: list[list[int]]
) -> set[int]:
    """What a match is: in every graph, a path between a category of the user and one of the event."""

    def related(g: int, mine: int, theirs: int) -> bool:
        graph, direction = graphs[g]
        low, high = (theirs, mine) if direction == "within" else (mine, theirs)
        return high in graph.ancestors(low)

    return {
        k
        for k, mine in users.items()
        if all(any(related(g, s, t) for s in mine[g] for t in event[g]) for g in range(len(graphs)))
    }
