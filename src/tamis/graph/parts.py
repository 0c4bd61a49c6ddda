"""Labels of very large graphs in parts, each of which somebody else may make: another process, another machine.

Guarantees the very arrays that one process makes. A part has some categories and all above them: their exceptions
depend on nothing else, and the order of numbers inside a part is that of the whole graph. So a part needs memory for
its own categories and what is above them, however large the graph is. Refuses to know how parts travel.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import parts as kernels
from tamis.kernels.labels import NUMBERS

from .labelling import Ids, Labelling, broad

Bytes = NDArray[np.uint8]


class Part(NamedTuple):
    """Categories ``first .. last - 1``, and all above them."""

    span: Ids
    """[2]: ``first`` and ``last``."""
    nodes: Ids
    """[place]: the categories, ascending; the others are by place."""
    extent: Ids
    """[place]: how many places behind it are below it in its tree."""
    broad: Bytes
    parents: Ids
    """[edge]"""
    children: Ids


class Rows(NamedTuple):
    """The shelves of a part: rows of points, where row 0 is empty; all of a row's base belongs to it, too."""

    span: Ids
    row: Ids
    """[category - first]: its row."""
    base: Ids
    starts: NDArray[np.int64]
    points: Ids
    """Numbers in the whole graph."""


Packed = TypeVar("Packed", Part, Rows)


def split(whole: Labelling, extent: Ids, most: int) -> Iterator[Part]:
    """A forest in parts of at most ``most`` categories, and what is above them. O(edges of the part) each.

    Categories that follow each other are relatives, and have much of what is above them in common.
    """
    eg = whole.adjacency
    marks, place, found = np.zeros(whole.nodes, np.uint8), *np.empty((2, whole.nodes), np.int32)
    none = np.empty(0, np.int32)
    for first in range(0, whole.nodes, most):
        last = min(first + most, whole.nodes)
        nodes = np.sort(found[: kernels.closed(eg, first, last, marks, found)])
        count = kernels.edges_above(eg, nodes, place, none, none)
        parents, children = np.empty((2, count), np.int32)
        kernels.edges_above(eg, nodes, place, parents, children)
        behind = np.searchsorted(nodes, nodes + extent[nodes], "right") - np.arange(len(nodes)) - 1
        span = np.array([first, last], np.int32)
        yield Part(span, nodes, behind.astype(np.int32), broad(extent[nodes]), parents, children)


def hang(part: Part) -> Rows:
    """Make the exceptions of one part. O(edges and points of the part)."""
    one = Labelling()
    one.link(len(part.nodes), part.parents, part.children)
    places = np.arange(len(part.nodes), dtype=np.int32)
    one.reset(4 * len(places))
    one.bundle.stock[NUMBERS] = len(places)
    one.write(places, places, part.extent)
    one.shelves()
    one.hang(one.topological(places), part.broad)
    lb = one.bundle
    first, last = np.searchsorted(part.nodes, part.span)
    own = places[first:last]
    row = np.zeros(len(lb.pool), np.int32)
    rows, units = kernels.mark_rows(lb, own, row)
    base, starts = np.zeros(rows + 1, np.int32), np.zeros(rows + 2, np.int64)
    points = np.empty(units, np.int32)
    size = kernels.take_rows(lb, row, part.nodes, base, starts, points)
    return Rows(part.span, row[lb.shelf[own]], base, starts, points[:size])


def join(whole: Labelling, topo: Ids, parts: Iterable[Rows]) -> None:
    """Lay all rows on the shelves of the whole graph, in the order in which one process would. O(rows + points)."""
    row = np.zeros(whole.nodes, np.int32)
    bases, starts, points = [np.zeros(1, np.int32)], [np.zeros(1, np.int64)], [np.empty(0, np.int32)]
    rows, size = 0, 0
    for part in parts:
        first, last = part.span.tolist()
        row[first:last] = np.where(part.row > 0, part.row + rows, 0)
        bases.append(np.where(part.base[1:] > 0, part.base[1:] + rows, 0).astype(np.int32))
        starts.append(part.starts[1:-1] + size)
        points.append(part.points)
        rows, size = rows + len(part.base) - 1, size + len(part.points)
    starts.append(np.array([size], np.int64))
    shelf = np.full(rows + 1, -1, np.int64)
    shelf[0] = 0
    table = np.concatenate(bases), np.concatenate(starts), np.concatenate(points)
    known = whole.known()
    whole.fitting(len(topo), lambda done: kernels.put_rows(whole.bundle, topo, done, row, *table, shelf, known))


def packed(arrays: Part | Rows) -> bytes:
    """A part or its rows as bytes."""
    file = io.BytesIO()
    np.savez(file, **arrays._asdict())
    return file.getvalue()


def unpacked(kind: type[Packed], data: bytes) -> Packed:
    """What :func:`packed` packed."""
    with np.load(io.BytesIO(data)) as arrays:
        return kind(*(arrays[name] for name in kind._fields))
