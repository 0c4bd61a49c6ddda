"""Reachability labels of a content graph: is one category the other, or below it?

A spanning forest of the graph numbers the categories in preorder, so that what is below a category *in its tree* is one
interval ``first .. last``. The ancestors of a category are closed upwards, in the graph and so in the forest: they are
the tree paths above a few lowest points. One of these points is the category itself; the others are its *exceptions*,
kept in ascending order. ``above`` reaches ``below`` when the interval of ``above`` holds the number of ``below`` or one
of its exceptions: two comparisons in a tree, and one binary search in a list that is short or empty elsewhere.

A category with one parent has the exceptions of that parent: lists lie on numbered shelves that categories share.

Nothing here knows how labels come about (see :mod:`tamis.kernels.digraph`). The one condition for exactness: a category
reaches all of its tree, and the points of a category and what is above them in the forest are all of its ancestors.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .jit import bare
from .records import Record

# Entries of Labels.stock: numbers, shelves and points handed out so far.
NUMBERS, SHELVES, POINTS = range(3)


class Labels(Record):
    """The labels as flat arrays. A category that was removed has the empty interval -1 .. -2."""

    FIELDS: ClassVar = {
        "first": (np.int32, 1),  # [category]: its number
        "last": (np.int32, 1),  # [category]: the highest number in its tree
        "shelf": (np.int32, 1),  # [category]: where its exceptions are; shelf 0 is empty
        "trunk": (np.int32, 1),  # [category]: its parent in the forest, -1 for none
        "order": (np.int32, 1),  # [number]: its category
        "at": (np.int64, 1),  # [shelf]: its first point
        "count": (np.int32, 1),  # [shelf]: how many points it has
        "points": (np.int32, 1),  # numbers, ascending on every shelf
        "stock": (np.int64, 1),
    }


@bare
def holds_point(lb, shelf, low, high):
    """Whether a point of the shelf is in ``low .. high``. O(log points)."""
    start = np.int64(lb.at[shelf])
    stop = start + np.int64(lb.count[shelf])
    end = stop
    points = lb.points
    while start < stop:
        middle = (start + stop) >> 1
        if points[middle] < low:
            start = middle + 1
        else:
            stop = middle
    return start < end and points[start] <= high


@bare
def reaches(lb, above, below):
    """Whether category ``below`` is ``above`` or below it. O(log exceptions), O(1) in a tree."""
    low, high, number = lb.first[above], lb.last[above], lb.first[below]
    if low <= number and number <= high:
        return True
    shelf = lb.shelf[below]
    if shelf == 0:
        return False
    return holds_point(lb, shelf, low, high)


@bare
def reach_pairs(lb, above, below, out):
    """``reaches`` for pairs."""
    for i in range(above.shape[0]):
        out[i] = reaches(lb, np.int64(above[i]), np.int64(below[i]))


@bare
def climb(lb, number, marks, out, size):
    """Add the category of a number and what is above it in the forest to ``out``, up to one that is marked."""
    node = np.int64(lb.order[number])
    while node >= 0 and marks[node] == 0:
        marks[node] = 1
        out[size] = node
        size += 1
        node = np.int64(lb.trunk[node])
    return size


@bare
def ancestors(lb, node, marks, out, size):
    """Add ``node`` and all above it to ``out`` behind ``size``, except what is marked, and mark them. O(found)."""
    if lb.first[node] < 0:
        return size
    size = climb(lb, np.int64(lb.first[node]), marks, out, size)
    shelf = np.int64(lb.shelf[node])
    start = np.int64(lb.at[shelf])
    for i in range(start, start + lb.count[shelf]):
        size = climb(lb, np.int64(lb.points[i]), marks, out, size)
    return size
