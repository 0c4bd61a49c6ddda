"""The matcher against plain reachability: users and events with several categories, moving, in graphs that change."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from dags import a_graph, naive_matches, padded
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import UsageError
from tamis.graph import ContentGraph, GraphError, Matcher
from tamis.graph.matcher import STRATEGIES


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_matches_are_those_of_plain_reachability(strategy: str, seed: int) -> None:
    rng = Random(seed)
    graphs = [(a_graph(rng, f"g{i}"), rng.choice(["within", "covers"])) for i in range(rng.randint(1, 3))]
    matcher = Matcher(graphs, most=3, strategy=strategy)
    users: dict[int, list[list[int]]] = {}

    def some(g: int, least: int = 0) -> list[int]:
        return [rng.choice(list(graphs[g][0])) for _ in range(rng.randint(least, 3))]

    for _ in range(6):
        fresh = rng.sample(range(30), 8)
        for k in fresh:
            users[k] = [some(g) for g in range(len(graphs))]
        matcher.insert(fresh, *(padded([users[k][g] for k in fresh]) for g in range(len(graphs))))
        gone = rng.sample(range(40), 4)
        matcher.remove(gone)
        users = {k: mine for k, mine in users.items() if k not in gone}
        events = [[some(g, 1) if rng.random() < 0.9 else [] for g in range(len(graphs))] for _ in range(6)]
        slots = [(k, g, j) for k, mine in users.items() for g in range(len(graphs)) for j in range(len(mine[g]))]
        moves: list[tuple[int, int, int, int]] = []
        before, wanted = [0], []
        for event in events:
            for k, g, j in rng.sample(slots, min(len(slots), rng.randint(0, 12))):
                # Most moves are small: to a neighbour in the graph.
                graph = graphs[g][0]
                here = users[k][g][j]
                near = [*graph.parents(here), *graph.children(here), here]
                to = rng.choice(near if rng.random() < 0.6 else list(graph))
                moves.append((k, g, j, to))
                users[k][g][j] = to
            before.append(len(moves))
            wanted.append(naive_matches(graphs, users, event))
        rows = matcher.moves(*np.array(moves).T) if moves else None
        found = matcher.process(rows, before, *(padded([event[g] for event in events]) for g in range(len(graphs))))
        matcher.check()
        got = [set(found.user[found.event == i].tolist()) for i in range(len(events))]
        assert len(found.user) == sum(map(len, got)), "a user twice for one event"
        assert got == wanted
        if rng.random() < 0.5:
            graph = graphs[0][0]
            a, b = rng.choice(list(graph)), rng.choice(list(graph))
            if graph.reaches(b, a):
                graph.add_node(f"n{graph.version}", [a, b])
            else:
                graph.add_edge(a, b)


def test_who_stands_still_becomes_exact_again() -> None:
    rng = Random(5)
    place, topic = a_graph(rng, "place", nodes=300, extra=0), a_graph(rng, "topic", nodes=50, extra=20)
    matcher = Matcher([(place, "covers"), (topic, "within")], most=1)
    users = np.arange(2_000)
    matcher.insert(users, rng.choices(list(place), k=2_000), rng.choices(list(topic), k=2_000))
    for _ in range(3):
        matcher.update(users, 0, 0, np.array(rng.choices(list(place), k=2_000)))
    escalated = matcher.stats["escalations"]
    assert escalated > 0 and matcher.stats["index_updates"] < 3 * 2_000  # what has escalated moves for a store
    events = np.array(rng.choices(list(place), k=4_000))[:, None], np.array(rng.choices(list(topic), k=4_000))[:, None]
    for _ in range(5):
        matcher.match(*events)
    matcher.check()
    assert matcher.stats["deescalations"] > 0
    first = matcher.stats["returned"]
    matcher.match(*events)
    eager = Matcher([(place, "covers"), (topic, "within")], most=1, strategy="eager")
    eager.insert(users, *(np.array([matcher.categories(int(k))[g][0] for k in users]) for g in range(2)))
    eager.match(*events)
    assert matcher.stats["returned"] - first == eager.stats["returned"]  # as few candidates as if nobody had moved


def test_a_removed_category_leaves_its_users() -> None:
    graph = ContentGraph.from_edges([("a", "b"), ("b", "c")], name="t")
    matcher = Matcher([(graph, "covers")], most=2)
    matcher.insert([0, 1], [[graph.id("b"), graph.id("c")], [graph.id("b"), -1]])
    graph.remove_node("b")
    assert matcher.match([[graph.id("c")]]).user.tolist() == [0]
    assert matcher.match([[graph.id("a")]]).user.tolist() == []
    assert matcher.categories(0) == [[graph.id("c")]] and matcher.categories(1) == [[]]
    matcher.check()


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    graph = ContentGraph.from_edges([("a", "b")], name="t")
    matcher = Matcher([(graph, "within")], most=2)
    matcher.insert([0], [[0]])
    with pytest.raises(GraphError, match="graph 't': user 0: there is no category number 9"):
        matcher.insert([0], [[9]])
    with pytest.raises(UsageError, match="update 0: user 0 has no category number 1 in graph number 0"):
        matcher.update([0], 0, 1, [1])
    with pytest.raises(GraphError, match="event 1: there is no category number 7"):
        matcher.match([[0], [7]])
    with pytest.raises(UsageError, match="at most 2 categories per user"):
        matcher.insert([1], [[0, 1, 0]])
    with pytest.raises(UsageError, match="unknown strategy 'lazy'; known: agile, eager"):
        Matcher([(graph, "within")], strategy="lazy")
    with pytest.raises(UsageError, match="expected 'within' or 'covers', got 'above'"):
        Matcher([(graph, "above")])  # type: ignore[list-item]
    assert matcher.match([[1]]).user.tolist() == [0]
    matcher.check()
