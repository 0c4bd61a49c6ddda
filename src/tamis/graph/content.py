"""``ContentGraph``: the categories of one attribute, their names and who is below whom.

Guarantees that the graph has no cycle and that :meth:`ContentGraph.reaches` is exact after every change. Refuses to
know what categories are used for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tamis.errors import GraphError
from tamis.kernels import digraph
from tamis.kernels.labels import UNITS, Labels, reach_pairs

from .labelling import Hang, Labelling
from .names import SEPARATOR, SHOWN, Names
from .read import file_edges, table_edges

Ids = NDArray[np.int32]


class ContentGraph:
    """A directed acyclic graph of named categories; an edge leads from a category to one of its subcategories."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise GraphError(f"the name of a graph is the name of an attribute, got {name!r}")
        self.name = name
        self.version = 0
        """Grows with every change."""
        self._names = Names(name)
        self._labels = Labelling()

    # -- making one --------------------------------------------------------------------------------------------

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[str | None, str]], *, name: str) -> Self:
        """A graph from (parent, child) names; without a parent the child is a category all the same.

        The same edge may occur twice. O(nodes + edges), and the labels.
        """
        graph = cls(name)
        parents: list[int] = []
        children: list[int] = []
        add = graph._names.add
        for i, edge in enumerate(edges):
            try:
                parent, child = edge
            except (TypeError, ValueError):
                raise GraphError(f"graph {name!r}: edge {i}: expected (parent, child), got {edge!r}") from None
            if parent is not None:
                parents.append(add(parent))
                children.append(add(child))
            else:
                add(child)
        graph._fill(np.array(parents, np.int32), np.array(children, np.int32))
        return graph

    @classmethod
    def from_table(
        cls, table: Any, *, name: str, parent: str = "parent", child: str = "child", label: str | None = None
    ) -> Self:
        """A graph from a table (Arrow, pandas, Polars, dict of columns) with an edge in every row.

        With a column ``label``, parents and children are keys, and a category is named by the label of its row.
        """
        return cls.from_edges(table_edges(table, parent, child, label), name=name)

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        name: str,
        parent: str = "parent",
        child: str = "child",
        label: str | None = None,
        columns: Sequence[str] | None = None,
        language: str = "en",
    ) -> Self:
        """A graph from a file: edges as CSV, TSV or Parquet, or a thesaurus in SKOS (Turtle, RDF/XML, JSON-LD).

        ``label`` is as in :meth:`from_table`; ``columns`` names the columns of a CSV or TSV file without a header;
        ``language`` is that of SKOS labels.
        """
        return cls.from_edges(file_edges(path, parent, child, label, columns, language), name=name)

    @classmethod
    def from_paths(cls, paths: Iterable[str], *, name: str) -> Self:
        """A tree from paths such as ``"sport/baseball"``: every beginning of a path is a category."""
        graph = cls(name)
        parents: list[int] = []
        children: list[int] = []
        for path in paths:
            known = len(graph._names.all)
            child = graph._names.add(path)
            while child == known:
                above, _, _ = path.rpartition(SEPARATOR)
                if not above:
                    break
                known = len(graph._names.all)
                parent = graph._names.add(above)
                parents.append(parent)
                children.append(child)
                path, child = above, parent
        graph._fill(np.array(parents, np.int32), np.array(children, np.int32))
        return graph

    @classmethod
    def from_numbers(cls, names: Iterable[str], parents: Ids, children: Ids, *, name: str, hang: Hang) -> Self:
        """A graph from numbered names and edges between them, whose exceptions somebody else makes.

        It is the graph that :meth:`from_edges` makes when names come in this order; its ids are not these numbers.
        """
        graph = cls(name)
        for category in names:
            graph._names.add(category)
        graph._fill(parents, children, hang)
        return graph

    def _fill(self, parents: Ids, children: Ids, hang: Hang | None = None) -> None:
        order, cycle = self._labels.fill(len(self._names.all), parents, children, hang)
        if cycle:
            raise self._cycle(cycle)
        self._names = Names(self.name, [self._names.all[i] for i in order.tolist()])
        self.version += 1

    def _cycle(self, nodes: Sequence[int]) -> GraphError:
        names = [self._names.of(node) for node in nodes]
        shown = names if len(names) <= 12 else [*names[:6], "...", *names[-5:]]
        return GraphError(f"graph {self.name!r} has a cycle: {' -> '.join(map(repr, [*shown, names[0]]))}")

    # -- categories --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many categories there are."""
        return len(self._names)

    def __repr__(self) -> str:
        return f"ContentGraph({self.name!r}, {len(self):,} categories, {self._labels.edges:,} edges)"

    def __contains__(self, category: object) -> bool:
        """Whether a text means exactly one category."""
        return isinstance(category, str) and len(self._names.meant(category, self.parents)) == 1

    def __iter__(self) -> Iterator[int]:
        """The ids of all categories."""
        return (i for i, name in enumerate(self._names.all) if name is not None)

    @property
    def names(self) -> list[str]:
        """The names of all categories, by id."""
        return [name for name in self._names.all if name is not None]

    @property
    def edges(self) -> int:
        """How many edges there are."""
        return self._labels.edges

    @property
    def size(self) -> int:
        """Ids are below this; removed categories leave holes."""
        return len(self._names.all)

    def id(self, category: str | int) -> int:
        """The id of a category: of its name, a path, or the last part of its name. O(1)."""
        if isinstance(category, str):
            known = self._names.exact(category)
            if known is not None:
                return known
            meant = self._names.meant(category, self.parents)
            if len(meant) == 1:
                return meant[0]
            if meant:
                shown = [self.path(one) for one in meant[:SHOWN]]
                more = f" and {len(meant) - SHOWN} more" if len(meant) > SHOWN else ""
                raise GraphError(
                    f"graph {self.name!r}: {category!r} may be {', '.join(map(repr, shown))}{more}; give the path"
                )
            near = self._names.nearest(category)
            hint = f"; did you mean {self.path(self._names.meant(near, self.parents)[0])!r}?" if near else ""
            raise GraphError(f"graph {self.name!r} has no category {category!r}{hint}")
        if isinstance(category, int | np.integer) and not isinstance(category, bool):
            self._names.of(int(category))
            return int(category)
        raise GraphError(f"graph {self.name!r}: a category is text or an id, got {category!r}")

    def named(self, id: int) -> str:
        """The name of a category, as it was given."""
        return self._names.of(id)

    def path(self, id: int) -> str:
        """Names from a root down to a category, joined by ``/``; along the parents that were given first."""
        name = self._names.of(id)
        if SEPARATOR in name:
            return name  # such names are paths themselves
        parts = [name]
        parents = self.parents(id)
        while parents:
            name = self._names.of(parents[0])
            parts.append(name)
            parents = () if SEPARATOR in name else self.parents(parents[0])
        return SEPARATOR.join(reversed(parts))

    def parents(self, id: int) -> Sequence[int]:
        """The categories right above, in the order in which they were given."""
        return self._labels.parents(id)

    def children(self, id: int) -> Sequence[int]:
        """The categories right below."""
        return self._labels.children(id)

    def roots(self) -> list[int]:
        """The categories without a parent."""
        return [i for i in self if not self.parents(i)]

    # -- reachability ------------------------------------------------------------------------------------------

    def reaches(self, above: str | int, below: str | int) -> bool:
        """Whether ``below`` is the category ``above`` or below it. O(log of the exceptions of ``below``)."""
        return self._labels.reaches(self.id(above), self.id(below))

    def reach_many(self, above: Ids, below: Ids) -> NDArray[np.bool_]:
        """:meth:`reaches` for arrays of ids."""
        ids = np.asarray(above, np.int32), np.asarray(below, np.int32)
        if ids[0].shape != ids[1].shape or ids[0].ndim != 1:
            raise GraphError(f"graph {self.name!r}: expected pairs, got {ids[0].shape} above and {ids[1].shape} below")
        for given in ids:
            if given.size and (given.min() < 0 or given.max() >= self.size):
                raise GraphError(f"graph {self.name!r}: ids are from 0 to {self.size - 1}")
        out = np.empty(len(ids[0]), np.bool_)
        reach_pairs(self.bundle(), np.ascontiguousarray(ids[0]), np.ascontiguousarray(ids[1]), out)
        return out

    def ancestors(self, category: str | int) -> Ids:
        """A category and all above it, by plain search: what labels have to agree with. O(edges above)."""
        return self._search(category, self.parents)

    def descendants(self, category: str | int) -> Ids:
        """A category and all below it, by plain search. O(edges below)."""
        return self._search(category, self.children)

    def _search(self, category: str | int, step: Callable[[int], Sequence[int]]) -> Ids:
        found = {self.id(category): None}
        todo = list(found)
        while todo:
            for other in step(todo.pop()):
                if other not in found:
                    found[other] = None
                    todo.append(other)
        return np.fromiter(found, np.int32, len(found))

    def bundle(self) -> Labels:
        """The labels as flat arrays for kernels; see :func:`tamis.kernels.labels.reaches`.

        Changes of the graph show in the arrays at once; when arrays have to grow there is a new bundle, so ask for it
        whenever ``version`` has changed.
        """
        return self._labels.bundle

    def adjacency(self) -> digraph.Edges:
        """The edges as flat arrays for kernels; the same holds as for :meth:`bundle`."""
        return self._labels.adjacency

    def label_bytes(self) -> int:
        """The bytes that a test of reachability reads from.

        In a tree these are extents alone; elsewhere also levels and shelves; and numbers once they are not ids.
        """
        lb = self.bundle()
        each = [lb.extent, *([lb.number] if len(lb.number) else []), *([lb.shelf, lb.level] if len(lb.shelf) else [])]
        shelves = lb.stock[UNITS] * lb.pool.itemsize if len(lb.shelf) else 0
        return int(self.size * sum(array.itemsize for array in each) + lb.wide.nbytes + shelves)

    def alive(self) -> NDArray[np.uint8]:
        """[id]: 1 where there is a category."""
        return self._labels.alive

    # -- changes -----------------------------------------------------------------------------------------------

    def add_node(self, category: str, parents: Iterable[str | int] = ()) -> int:
        """Add a category, below the given ones; its id. One that is there gains the parents it lacks."""
        above = [self.id(parent) for parent in parents]
        node = self._names.add(category)
        self._labels.fit(len(self._names.all))
        self.version += 1
        for parent in above:
            self._link(parent, node)
        return node

    def add_edge(self, parent: str | int, child: str | int) -> None:
        """Add an edge; refused when it closes a cycle. O(what ``child`` reaches and ``parent`` did not)."""
        self._link(self.id(parent), self.id(child))
        self.version += 1

    def _link(self, parent: int, child: int) -> None:
        if self._labels.reaches(child, parent):
            raise self._cycle(self._way(child, parent))
        self._labels.add_edge(parent, child)

    def remove_edge(self, parent: str | int, child: str | int) -> None:
        """Remove an edge; its child may be left without a parent. O(edges below ``child``)."""
        a, b = self.id(parent), self.id(child)
        if not self._labels.remove_edge(a, b):
            raise GraphError(
                f"graph {self.name!r}: there is no edge from {self._names.of(a)!r} to {self._names.of(b)!r}"
            )
        self.version += 1

    def remove_node(self, category: str | int) -> None:
        """Remove a category and its edges; what was right below it stays, perhaps without a parent."""
        node = self.id(category)
        self._labels.remove_node(node)
        self._names.remove(node)
        self.version += 1

    def _way(self, start: int, goal: int) -> list[int]:
        """A path from one category down to another."""
        came = {start: start}
        todo = [start]
        while todo and goal not in came:
            node = todo.pop()
            for child in self.children(node):
                if child not in came:
                    came[child] = node
                    todo.append(child)
        way = [goal]
        while way[-1] != start:
            way.append(came[way[-1]])
        return way[::-1]

    def relabel(self) -> None:
        """Label everything anew. Changes do that by themselves when much has been given up. O(edges + exceptions)."""
        self._labels.relabel()
        self.version += 1

    def check(self, categories: Sequence[int] | None = None) -> None:
        """Raise InvariantError unless labels and edges agree with plain search. O(ancestors) per category."""
        self._labels.check(list(self) if categories is None else categories)

    # -- saving ------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as arrays, for saving; :meth:`from_arrays` takes them back without labelling anew."""
        texts = [(name or "").encode() for name in self._names.all]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        return {"names": np.frombuffer(b"".join(texts), np.uint8).copy(), "ends": ends, **self._labels.arrays()}

    def save(self, path: str | Path) -> None:
        """Write everything to one file; :meth:`load` needs no labelling."""
        path = Path(path)
        fresh = path.with_name(path.name + ".new")
        with fresh.open("wb") as file:
            arrays: dict[str, Any] = {"graph": np.frombuffer(self.name.encode(), np.uint8), **self.arrays()}
            np.savez(file, **arrays)
        fresh.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The graph that :meth:`save` wrote."""
        try:
            with np.load(path) as arrays:
                return cls.from_arrays(arrays["graph"].tobytes().decode(), dict(arrays))
        except OSError as error:
            raise GraphError(f"{path}: is not a saved graph: {error}") from None
        except (ValueError, KeyError, TypeError):
            raise GraphError(f"{path}: is not a saved graph, or one of another version") from None

    @classmethod
    def from_arrays(cls, name: str, arrays: dict[str, NDArray[Any]]) -> Self:
        """The graph that :meth:`arrays` gave out."""
        graph = cls(name)
        text, ends = arrays["names"].tobytes(), arrays["ends"].tolist()
        names = [text[start:end].decode() or None for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        graph._names = Names(name, names)
        graph._labels.adopt(arrays)
        graph.version = 1
        return graph
