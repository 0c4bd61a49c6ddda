"""Content graphs as the language sees them: which graph a predicate means, and what reaches what.

Guarantees to be the definition: a category is within another one when there is a path from the other one down to it,
a category being within itself. What a graph does not know (because it was taken out of it) is within nothing and
covers nothing. Refuses to know how graphs are stored and labelled: a graph is whatever answers :class:`Graph`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tamis.errors import TamisError, UsageError
from tamis.model import tree as t
from tamis.model.values import shown


@runtime_checkable
class Graph(Protocol):
    """A directed acyclic graph of categories: :class:`tamis.graph.ContentGraph`."""

    name: str

    @property
    def version(self) -> int:
        """Grows with every change."""

    def __contains__(self, category: object) -> bool: ...

    def id(self, category: Any) -> int:
        """The number of a category; an error that says what was meant perhaps."""

    def ancestors(self, category: Any) -> Iterable[Any]:
        """The numbers of the category itself and of all above it."""


Graphs: TypeAlias = Mapping[str, Graph]
CategoryPredicate: TypeAlias = "t.Within | t.Covers"


def read_graphs(given: Any) -> dict[str, Graph]:
    """The graphs of ``Filter(graphs=[...])`` by name."""
    if given is None:
        return {}
    if isinstance(given, Graph):
        given = (given,)
    if isinstance(given, Mapping):
        given = given.values()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"graphs: expected content graphs, such as [ContentGraph.from_edges(...)], got {given!r}")
    found: dict[str, Graph] = {}
    for graph in given:
        if not isinstance(graph, Graph) or not isinstance(graph.name, str) or not graph.name:
            raise UsageError(f"graphs: expected a ContentGraph with a name, got {type(graph).__name__} {shown(graph)}")
        if graph.name in found:
            raise UsageError(f"graphs: there are two graphs named {graph.name!r}; a graph has its attribute's name")
        found[graph.name] = graph
    return found


def graph_name(node: CategoryPredicate, graphs: Graphs) -> str | None:
    """The graph that a predicate is about: that of the name on its left, else that of the name on its right."""
    for side in (node.value, node.category):
        if isinstance(side, t.Attribute | t.Context) and side.name in graphs:
            return side.name
    return None


def unknown_category(graph: Graph, category: str) -> str | None:
    """Why a graph does not know a category, with the nearest ones; ``None`` when it does."""
    if category in graph:
        return None
    try:
        graph.id(category)
    except TamisError as error:
        return str(error)
    return f"graph {graph.name!r} has no category {shown(category)}"


def reaches(graph: Graph, above: str, below: str) -> bool:
    """Whether there is a path from one category down to another, or both are the same: plain search upwards."""
    if above not in graph or below not in graph:
        return False
    return int(graph.id(above)) in {int(found) for found in graph.ancestors(graph.id(below))}


def related(graph: Graph, above: Iterable[Any], below: Iterable[Any]) -> bool:
    """Whether some category of one set covers some category of another."""
    lower = [category for category in below if category is not None]
    return any(reaches(graph, one, two) for one in above if one is not None for two in lower)
