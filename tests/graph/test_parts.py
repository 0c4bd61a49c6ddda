"""Labels made in parts are the labels made at once."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from dags import a_graph, edges
from hypothesis import given
from hypothesis import strategies as st

from tamis.graph import ContentGraph, parts
from tamis.graph.labelling import Ids, Labelling


def in_parts(given_edges: list[tuple[str, str]], most: int) -> ContentGraph:
    """The graph of edges, its exceptions made in parts that travel as bytes."""

    def hang(whole: Labelling, topo: Ids, extent: Ids) -> None:
        sent = [parts.packed(part) for part in parts.split(whole, extent, most)]
        made = [parts.packed(parts.hang(parts.unpacked(parts.Part, data))) for data in sent]
        parts.join(whole, topo, (parts.unpacked(parts.Rows, data) for data in reversed(made)))

    names = list(dict.fromkeys(name for edge in given_edges for name in edge))
    numbers = np.array([[names.index(a), names.index(b)] for a, b in given_edges], np.int32).reshape(-1, 2)
    return ContentGraph.from_numbers(names, numbers[:, 0].copy(), numbers[:, 1].copy(), name="t", hang=hang)


def same(one: ContentGraph, other: ContentGraph) -> None:
    arrays = other.arrays()
    for name, array in one.arrays().items():
        assert np.array_equal(array, arrays[name]), name


@given(edges(), st.integers(1, 20))
def test_any_graph_in_any_parts(given_edges: list[tuple[str, str]], most: int) -> None:
    same(in_parts(given_edges, most), ContentGraph.from_edges(given_edges, name="t"))


@pytest.mark.parametrize("most", [100, 1_000])
def test_a_larger_graph_in_few_parts(most: int) -> None:
    graph = a_graph(Random(1), "t", nodes=2_000, extra=2_000)
    pairs = [(graph.named(p), graph.named(i)) for i in graph for p in graph.parents(i)]
    found = in_parts(pairs, most)
    found.check()
    same(found, ContentGraph.from_edges(pairs, name="t"))


def test_a_part_has_what_is_above_it_and_no_more() -> None:
    graph = ContentGraph.from_edges([("r", "a"), ("r", "b"), ("a", "x"), ("a", "y"), ("b", "y"), ("b", "z")], name="t")
    sizes = []

    def look(whole: Labelling, topo: Ids, extent: Ids) -> None:
        sizes.extend([whole_part.nodes.tolist() for whole_part in parts.split(whole, extent, 2)])
        whole.hang(topo, np.zeros(len(topo), np.uint8))

    pairs = np.array([[p, i] for i in graph for p in graph.parents(i)], np.int32)
    made = ContentGraph.from_numbers(graph.names, pairs[:, 0].copy(), pairs[:, 1].copy(), name="t", hang=look)
    assert sizes == [sorted({i for one in (a, a + 1) for i in made.ancestors(one).tolist()}) for a in (0, 2, 4)]
