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


def test_extents_that_do_not_fit_into_two_bytes() -> None:
    nodes = 70_000
    chain = [(f"c{i}", f"c{i + 1}") for i in range(nodes)]
    graph = ContentGraph.from_edges([*chain, ("x", "c69000"), ("y", "x")], name="t")
    assert len(graph.bundle().wide) == nodes - 0xFFFE + 1
    assert graph.reaches("c0", f"c{nodes}") and graph.reaches("c5", "c65000") and not graph.reaches("c65000", "c5")
    assert graph.reaches("y", f"c{nodes}") and not graph.reaches("y", "c68999") and not graph.reaches("c0", "x")
    graph.remove_edge("c3000", "c3001")
    assert not graph.reaches("c3000", "c3001") and graph.reaches("c3001", f"c{nodes}") and graph.reaches("c0", "c3000")
    graph.check([graph.id(f"c{i}") for i in (0, 2_000, 3_001, 30_000)])


def test_a_tree_costs_two_bytes_a_category_and_ids_are_its_preorder() -> None:
    tree = ContentGraph.from_paths(["a/x/1", "b/y", "a/x/2", "a/z"], name="t")
    assert tree.names == ["a", "a/x", "a/x/1", "a/x/2", "a/z", "b", "b/y"]
    assert tree.label_bytes() == 2 * len(tree)
    tree.add_node("c", ["b"])
    assert not len(tree.bundle().number)  # an id is still a number
    before = tree.names
    tree.remove_edge("a", "a/x")
    assert len(tree.bundle().number) and tree.names == before
    tree.check()


def test_pairs_that_are_none_are_refused(topic: ContentGraph) -> None:
    with pytest.raises(GraphError, match="expected pairs"):
        topic.reach_many(np.array([0, 1]), np.array([1]))
    with pytest.raises(GraphError, match="ids are from 0 to 4"):
        topic.reach_many(np.array([0]), np.array([5]))


def test_a_graph_may_start_empty() -> None:
    graph = ContentGraph("topic")
    sport = graph.add_node("sport")
    for i in range(40):
        graph.add_node(f"c{i}", [sport, *([f"c{i - 1}"] if i % 3 else [])])
    graph.check()
    assert graph.reaches("sport", "c39") and graph.reaches("c36", "c38") and not graph.reaches("c38", "c39")


@pytest.mark.parametrize("gone", ["baseball", "soccer", "sport"])
def test_labelling_anew_leaves_holes_where_they_are(topic: ContentGraph, gone: str) -> None:
    hole = topic.id(gone)
    last = topic.size - 1
    topic.remove_node(gone)
    topic.remove_node(last) if last != hole else None
    topic.relabel()
    topic.add_node("cricket", ["boston"] if "boston" in topic else [])
    topic.add_node("test cricket", ["cricket"])
    topic.check()
    assert topic.reaches("cricket", "test cricket") and not topic.reaches("test cricket", "cricket")
    assert not topic.reach_many(np.full(topic.size, hole), np.arange(topic.size))[np.arange(topic.size) != hole].any()
