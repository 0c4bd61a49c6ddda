"""Random content graphs, profiles on them and logs that move categories about; for tests and long runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tamis import EventLog
from tamis.graph import ContentGraph

CONTEXTS = ("A", "B", "C", "D", "E")
IDS = tuple(f"p{i}" for i in range(10))


def random_graph(rng: np.random.Generator, name: str, nodes: int = 14, tree: bool = False) -> ContentGraph:
    """A random graph; every category but the first has one parent (``tree``) or up to three among those before it."""
    edges = []
    for child in range(1, nodes):
        parents = rng.integers(0, child, 1 if tree else int(rng.integers(1, 4)))
        edges += [(f"{name}{parent}", f"{name}{child}") for parent in set(parents.tolist())]
    return ContentGraph.from_edges(edges, name=name)


class Scene:
    """Two graphs, and random words about them."""

    def __init__(self, rng: np.random.Generator, nodes: int = 14) -> None:
        self.rng = rng
        self.graphs = [random_graph(rng, "topic", nodes), random_graph(rng, "place", nodes, tree=True)]

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def category(self, graph: int) -> str:
        return str(self.pick(self.graphs[graph].names))

    def some(self, graph: int) -> list[str]:
        return [self.category(graph) for _ in range(int(self.rng.integers(0, 4)))]

    def value(self, graph: int) -> Any:
        """One category, several, none at all, or one that does not exist."""
        roll = self.rng.random()
        if roll < 0.04:
            return "no such category"
        if roll < 0.07:
            return 7
        return self.category(graph) if roll < 0.6 else self.some(graph)

    def predicate(self, context: bool) -> str:
        graph = int(self.rng.integers(2))
        name = ("topic", "place")[graph]
        op = self.pick(("within", "within", "covers", "covers", "not within", "not covers"))
        quoted = f"'{self.category(graph)}'"
        sides = [quoted, quoted, str(self.some(graph))]
        if context:
            sides += [f"ctx.{name}", f"ctx.{name}", f"ctx.{name}s", f"ctx.{name}s"]
        left = name
        if context and self.rng.random() < 0.15:
            left, sides = f"ctx.{name}", [quoted, name, str(self.some(graph))]
        return f"{left} {op} {self.pick(sides)}"

    def profile(self, context: bool = True) -> str:
        others = ["x > 1", "kind == 'a'", "has(topic)", *(["x <= ctx.x", "not has(ctx.place)"] if context else [])]
        parts = [self.predicate(context) for _ in range(int(self.rng.integers(1, 4)))]
        if self.rng.random() < 0.4:
            parts.append(self.pick(others))
        text = self.pick((" and ", " and ", " or ")).join(parts)
        return f"not ({text})" if self.rng.random() < 0.1 else text

    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = {"x": int(self.rng.integers(0, 4)), "kind": self.pick("ab")}
        for graph, name in enumerate(("topic", "place")):
            if self.rng.random() < 0.9:
                found[name] = self.value(graph)
        return found

    def update(self) -> tuple[str, dict[str, Any]]:
        name = self.pick(("topic", "place", "topics", "places", "x"))
        if name == "x":
            return self.pick(CONTEXTS), {"x": int(self.rng.integers(0, 4))}
        value = None if self.rng.random() < 0.1 else self.value(int(name.startswith("place")))
        return self.pick(CONTEXTS), {name: value}

    def log(self, events: int, updates: float = 0.5) -> EventLog:
        """A log in which most updates move a category."""
        builder = EventLog.builder()
        for _ in range(events):
            roll = self.rng.random()
            if roll < updates:
                context, values = self.update()
                builder.update(context, values)
            elif roll < 0.92:
                builder.message(self.message())
            elif roll < 0.98:
                effect = self.pick((None, None, "ctx.place = place", f"ctx.topic = '{self.category(0)}'"))
                builder.subscribe(self.pick(IDS), self.profile(), self.pick(CONTEXTS), effect)
            else:
                builder.unsubscribe(self.pick(IDS))
        return builder.build()

    def columns(self, rows: int) -> dict[str, Any]:
        """Messages as typed Arrow columns: one topic each, several places."""
        topics = [None if self.rng.random() < 0.1 else self.category(0) for _ in range(rows)]
        places = [None if self.rng.random() < 0.1 else self.some(1) for _ in range(rows)]
        return {
            "topic": pa.array(topics, pa.string()),
            "place": pa.array(places, pa.list_(pa.string())),
            "x": self.rng.integers(0, 4, rows),
        }

    def change(self) -> None:
        """One change of one graph."""
        graph = self.pick(self.graphs)
        ids = list(graph)
        roll = self.rng.random()
        if roll < 0.15:
            graph.add_node(f"{graph.name}{graph.size}", [self.pick(ids)])
        elif roll < 0.25 and len(ids) > 6:
            graph.remove_node(self.pick(ids[1:]))
        elif roll < 0.65:
            a, b = self.pick(ids), self.pick(ids)
            if not graph.reaches(b, a):
                graph.add_edge(a, b)
        else:
            child = self.pick(ids)
            parents = graph.parents(child)
            if parents:
                graph.remove_edge(self.pick(parents), child)
