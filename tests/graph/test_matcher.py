"""The matcher against plain reachability: users and events with several categories, moving, in graphs that change."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from dags import random_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.graph import ContentGraph, Matcher
from tamis.graph.matcher import STRATEGIES


class Naive:
    """What a match is: in every graph, a path between a category of the user and one of the event."""

    def __init__(self, graphs: list[tuple[ContentGraph, str]]) -> None:
        self.graphs = graphs
        self.users: dict[int, list[list[int]]] = {}

    def match(self, event: list[list[int]]) -> set[int]:
        above = [[set(graph.ancestors(t).tolist()) for t in event[g]] for g, (graph, _) in enumerate(self.graphs)]
        return {
            k
            for k, mine in self.users.items()
            if all(self._meets(g, mine[g], event[g], above[g]) for g in range(len(event)))
        }

    def _meets(self, g: int, mine: list[int], event: list[int], above: list[set[int]]) -> bool:
        graph, direction = self.graphs[g]
        if direction == "within":
            return any(s in over for s in mine for over in above)
        return any(t in set(graph.ancestors(s).tolist()) for s in mine for t in event)


def a_graph(rng: Random, name: str) -> ContentGraph:
    nodes = rng.randint(2, 25)
    tree = [(f"c{rng.randrange(i)}", f"c{i}") for i in range(1, nodes)]
    return ContentGraph.from_edges(tree + random_edges(nodes, rng.choice([0, nodes // 2]), rng), name=name)


def padded(rows: list[list[int]]) -> np.ndarray:
    wide = np.full((len(rows), max([1, *map(len, rows)])), -1)
    for row, values in zip(wide, rows, strict=True):
        row[: len(values)] = values
    return wide


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_matches_are_those_of_plain_reachability(strategy: str, seed: int) -> None:
    rng = Random(seed)
    graphs = [(a_graph(rng, f"g{i}"), rng.choice(["within", "covers"])) for i in range(rng.randint(1, 3))]
    matcher, naive = Matcher(graphs, most=3, strategy=strategy), Naive(graphs)

    def some(g: int, least: int = 0) -> list[int]:
        return [rng.choice(list(graphs[g][0])) for _ in range(rng.randint(least, 3))]

    for _ in range(6):
        fresh = rng.sample(range(30), 8)
        for k in fresh:
            naive.users[k] = [some(g) for g in range(len(graphs))]
        matcher.insert(fresh, *(padded([naive.users[k][g] for k in fresh]) for g in range(len(graphs))))
        gone = rng.sample(range(40), 4)
        matcher.remove(gone)
        naive.users = {k: mine for k, mine in naive.users.items() if k not in gone}
        events = [[some(g, 1) if rng.random() < 0.9 else [] for g in range(len(graphs))] for _ in range(6)]
        slots = [(k, g, j) for k, mine in naive.users.items() for g in range(len(graphs)) for j in range(len(mine[g]))]
        moves = [(*rng.choice(slots), g) for g in range(0)] if not slots else []
        before, wanted = [0], []
        for event in events:
            for k, g, j in rng.sample(slots, min(len(slots), rng.randint(0, 12))):
                # Most moves are small: to a neighbour in the graph.
                graph = graphs[g][0]
                here = naive.users[k][g][j]
                near = [*graph.parents(here), *graph.children(here), here]
                to = rng.choice(near if rng.random() < 0.6 else list(graph))
                moves.append((k, g, j, to))
                naive.users[k][g][j] = to
            before.append(len(moves))
            wanted.append(naive.match(event))
        rows = matcher.moves(*np.array(moves).T) if moves else None
        found = matcher.process(
            rows, before[1:] and [0, *before[1:]], *(padded([event[g] for event in events]) for g in range(len(graphs)))
        )
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
