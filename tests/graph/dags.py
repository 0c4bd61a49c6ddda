"""Random content graphs for tests, and their meaning by plain search."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from hypothesis import strategies as st

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
