"""Exceptions made in parts: what is above some categories, and shelves that go from one pool to another.

A part is made of some categories and all above them, so that its exceptions come out as they would in the whole graph
(see :mod:`tamis.graph.parts`). Between pools a shelf is a row of points, and which row is its base; row 0 is empty.
"""

from __future__ import annotations

import numpy as np

from .digraph import above, shelve
from .jit import bare
from .labels import EMPTY, END, SKIP, STRIDE, UNITS, base_of


@bare
def closed(eg, first, last, marks, out):
    """Categories ``first .. last - 1`` and all above them into ``out``: how many. ``marks`` are 0 before and after."""
    size = np.int64(0)
    for v in range(first, last):
        size = above(eg, v, marks, out, size)
    for i in range(size):
        marks[out[i]] = 0
    return size


@bare
def edges_above(eg, nodes, place, parents, children):
    """The edges above ``nodes``, by their places among them, in the order they were given; how many.

    ``place`` [category] is room; nothing is written when ``parents`` is empty.
    """
    for i in range(nodes.shape[0]):
        place[nodes[i]] = i
    size = 0
    for i in range(nodes.shape[0]):
        e = np.int64(eg.up[nodes[i]])
        while e >= 0:
            if parents.shape[0] > 0:
                parents[size], children[size] = place[eg.parent[e]], i
            size += 1
            e = np.int64(eg.next_up[e])
    return size


@bare
def mark_rows(lb, nodes, row):
    """Give the shelves of ``nodes`` and their bases rows 1, 2, ... in the order of the pool: (rows, units at most).

    ``row`` [unit] is all 0.
    """
    for v in nodes:
        shelf = np.int64(lb.shelf[v])
        while shelf != 0 and row[shelf] == 0:
            row[shelf] = 1
            shelf = base_of(lb, shelf)
    rows, units = 0, np.int64(0)
    for shelf in range(EMPTY, lb.stock[UNITS]):
        if row[shelf] != 0:
            rows += 1
            row[shelf] = rows
            i = shelf + 2
            while lb.pool[i] != END:
                i += 1
                units += 1
    return rows, units


@bare
def take_rows(lb, row, numbers, base, starts, points):
    """The rows that ``mark_rows`` gave: their bases, starts and points, each as ``numbers`` [number] says."""
    size = np.int64(0)
    for shelf in range(EMPTY, lb.stock[UNITS]):
        if row[shelf] != 0:
            base[row[shelf]] = row[base_of(lb, shelf)]
            i, x = shelf + 2, np.int64(-1)
            while lb.pool[i] != END:
                if lb.pool[i] == SKIP:
                    x += STRIDE
                else:
                    x += np.int64(lb.pool[i])
                    points[size] = numbers[x]
                    size += 1
                i += 1
            starts[row[shelf] + 1] = size
    return size


@bare
def put_rows(lb, nodes, start, row, base, starts, points, shelf, known):
    """Give ``nodes`` (parents first) the shelves that rows say, from node number ``start`` on.

    ``shelf`` [row] is where a row is by now, -1 for nowhere. Returns how far it came, as in ``hang``.
    """
    for i in range(start, nodes.shape[0]):
        wanted = np.int64(row[nodes[i]])
        while shelf[wanted] < 0:
            lowest = wanted
            while shelf[base[lowest]] < 0:
                lowest = np.int64(base[lowest])
            some = points[starts[lowest] : starts[lowest + 1]]
            found = shelve(lb, np.int64(shelf[base[lowest]]), some, some.shape[0], known)
            if found < 0:
                return i
            shelf[lowest] = found
        lb.shelf[nodes[i]] = shelf[wanted]
    return nodes.shape[0]
