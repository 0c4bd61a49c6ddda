"""Content graphs: names, reachability by labels against plain search, changes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from dags import edges, held, random_edges, reachable
from hypothesis import given
from hypothesis import strategies as st

from tamis.graph import ContentGraph, GraphError
from tamis.kernels.labels import reach_pairs

BASEBALL = [("sport", "baseball"), ("baseball", "red sox"), ("boston", "red sox"), ("sport", "soccer")]


@pytest.fixture
def topic() -> ContentGraph:
    return ContentGraph.from_edges(BASEBALL, name="topic")


# -- names -----------------------------------------------------------------------------------------------------


def test_a_category_is_found_by_name_by_path_and_by_its_last_part(topic: ContentGraph) -> None:
    red = topic.id("red sox")
    assert topic.id("baseball/red sox") == topic.id("sport/baseball/red sox") == topic.id("boston/red sox") == red
    assert topic.path(red) == "sport/baseball/red sox" and topic.named(red) == "red sox"
    assert "sport/baseball" in topic and "boston/baseball" not in topic and 3 not in topic
    places = ContentGraph.from_paths(["usa/ma/springfield", "usa/il/springfield", "usa/ma/boston"], name="place")
    assert places.id("boston") == places.id("ma/boston") == places.id("usa/ma/boston")
    assert places.path(places.id("boston")) == "usa/ma/boston"
    assert "springfield" not in places and "ma/springfield" in places
    with pytest.raises(GraphError, match="'springfield' may be 'usa/ma/springfield', 'usa/il/springfield'; give the"):
        places.id("springfield")


def test_an_unknown_category_gets_a_hint(topic: ContentGraph) -> None:
    with pytest.raises(GraphError, match=r"graph 'topic' has no category 'basebal'; did you mean 'sport/baseball'\?"):
        topic.id("basebal")
    with pytest.raises(GraphError, match=r"graph 'topic' has no category 'xyz'$"):
        topic.id("xyz")
    with pytest.raises(GraphError, match=r"a category is text or an id, got 1\.5"):
        topic.id(1.5)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="there is no category number 99"):
        topic.reaches(99, 0)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([("a", "b"), ("b", "c"), ("c", "a"), ("x", "a")], "cycle: 'b' -> 'c' -> 'a' -> 'b'"),
        ([("a", "a")], "cycle: 'a' -> 'a'"),
        ([("a", 7)], "the name of a category is text, got 7"),
        ([("a", "b"), ("a",)], r"edge 1: expected \(parent, child\), got \('a',\)"),
        ([("a", "")], "no empty part, got ''"),
    ],
)
def test_what_is_no_graph_is_refused(bad: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        ContentGraph.from_edges(bad, name="t")


# -- reachability ----------------------------------------------------------------------------------------------


@given(edges())
def test_labels_agree_with_plain_search(given_edges: list[tuple[str, str]]) -> None:
    graph = ContentGraph.from_edges(given_edges, name="t")
    graph.check()
    pairs = reachable(given_edges, graph.names)
    assert held(graph) == pairs
    ids = np.array(list(graph), np.int32)
    above, below = np.repeat(ids, len(ids)), np.tile(ids, len(ids))
    out = np.zeros(len(above), np.bool_)
    reach_pairs(graph.bundle(), above, below, out)
    named = {(graph.named(a), graph.named(b)) for a, b in zip(above[out], below[out], strict=True)}
    assert named == pairs
    for i in ids.tolist():
        assert {(graph.named(a), graph.named(i)) for a in graph.ancestors(i)} == {
            p for p in pairs if p[1] == graph.named(i)
        }
        assert {(graph.named(i), graph.named(d)) for d in graph.descendants(i)} == {
            p for p in pairs if p[0] == graph.named(i)
        }


@given(st.integers(0, 2**32))
def test_labels_follow_changes(seed: int) -> None:
    rng = Random(seed)
    given_edges = random_edges(12, rng.randint(1, 20), rng)
    graph = ContentGraph.from_edges(given_edges, name="t")
    now, nodes = set(given_edges), set(graph.names)
    for step in range(12):
        version = graph.version
        a, b = rng.choice(sorted(nodes)), rng.choice(sorted(nodes))
        what = rng.random()
        if what < 0.5:
            if (b, a) in reachable(now, nodes):
                with pytest.raises(GraphError, match="cycle"):
                    graph.add_edge(a, b)
                continue
            graph.add_edge(a, b)
            now.add((a, b))
        elif what < 0.8 and now:
            edge = rng.choice(sorted(now))
            graph.remove_edge(*edge)
            now.remove(edge)
        elif what < 0.9 and len(nodes) > 2:
            graph.remove_node(a)
            nodes.remove(a)
            now = {edge for edge in now if a not in edge}
        else:
            graph.add_node(f"n{step}", [a])
            nodes.add(f"n{step}")
            now.add((a, f"n{step}"))
        assert graph.version > version
        graph.check()
        assert held(graph) == reachable(now, nodes)
    again = ContentGraph.from_arrays("t", graph.arrays())
    again.check()
    assert held(again) == held(graph) and list(again) == list(graph)
