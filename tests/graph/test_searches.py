"""All searches of the paper, in every plan, give what plain reachability gives."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from dags import a_graph, naive_matches, padded
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import UsageError
from tamis.graph import Matcher, Searches
from tamis.graph.searches import METHODS, closure


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_all_methods_and_plans_agree(seed: int) -> None:
    rng = Random(seed)
    graphs = [(a_graph(rng, f"g{i}"), rng.choice(["within", "covers"])) for i in range(rng.randint(1, 2))]

    def some(least: int, count: int) -> list[list[list[int]]]:
        return [
            [[rng.choice(list(graph)) for _ in range(rng.randint(least, 3))] for graph, _ in graphs]
            for _ in range(count)
        ]

    users, events = some(0, 30), some(0, 8)
    wanted = [naive_matches(graphs, dict(enumerate(users)), event) for event in events]
    columns = [padded([user[g] for user in users]) for g in range(len(graphs))]
    searches = Searches(graphs, *columns)
    given_events = searches.events(*(padded([event[g] for event in events]) for g in range(len(graphs))))
    for method in METHODS:
        for plan in [*searches.plans(), None]:
            found = searches.match(given_events, method, plan)
            got = [set(found.user[found.event == i].tolist()) for i in range(len(events))]
            assert got == wanted and len(found.user) == sum(map(len, got)), (method, plan)
    ours = Matcher(graphs, most=3)
    ours.insert(np.arange(len(users)), *columns)
    found = ours.match(*(padded([event[g] for event in events]) for g in range(len(graphs))))
    assert [set(found.user[found.event == i].tolist()) for i in range(len(events))] == wanted
    for g in range(len(graphs)):
        sizes = {method: searches.find(given_events, g, method) for method in ("search", "lists")}
        assert sizes["search"] == sizes["lists"] <= searches.find(given_events, g, "closure")


def test_the_plan_follows_the_shape_of_the_graph() -> None:
    rng = Random(7)
    graph = a_graph(rng, "place", nodes=200, extra=0)
    users = [[rng.choice(list(graph))] for _ in range(3)]
    few = Searches([(graph, "covers")], padded(users))
    root = few.events(np.zeros((20, 1), np.int32))
    few.match(root, "search")
    assert few.plan(root, "search") == [(0, "subscription")]  # three short walks up, not the whole tree down
    many = Searches([(graph, "covers")], padded(users * 3000))
    leaf = next(i for i in graph if not graph.children(i))
    leaves = many.events(np.full((20, 1), leaf, np.int32))
    many.match(leaves, "search")
    assert many.plan(leaves, "search") == [(0, "notification")]


def test_the_closure_has_a_row_per_category() -> None:
    graph = a_graph(Random(3), "t")
    starts, rows = closure(graph, up=True)
    for i in graph:
        assert rows[starts[i] : starts[i + 1]].tolist() == sorted(graph.ancestors(i).tolist())


def test_wrong_methods_and_plans_are_named() -> None:
    graph = a_graph(Random(1), "t")
    searches = Searches([(graph, "within")], np.zeros((1, 1), np.int32))
    events = searches.events(np.zeros((1, 1), np.int32))
    with pytest.raises(UsageError, match="unknown method 'list'; known: search, closure, lists"):
        searches.match(events, "list")
    with pytest.raises(UsageError, match="a plan names each of 1 graphs once"):
        searches.match(events, "search", [])
