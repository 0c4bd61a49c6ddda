"""Reachability labels of a content graph: is one category the other, or below it?

A spanning forest of the graph numbers the categories in preorder, so that what is below a category *in its tree* is one
interval ``first .. last``. The ancestors of a category are closed upwards, in the graph and so in the forest: they are
the tree paths above a few lowest points. One of these points is the category itself; the others are its *exceptions*,
kept in ascending order. ``above`` reaches ``below`` when the interval of ``above`` holds the number of ``below`` or one
of its exceptions: two comparisons in a tree, and elsewhere a list to read that is short or empty.

A category with one parent has the exceptions of that parent: lists lie on *shelves* that categories share. A shelf has
a *base*, the shelf of one of the parents, and holds only what its category has beyond it; points are kept as the gaps
between them. Together that is a tenth of the plain lists, and shelves are short enough to be read from their start.

Nothing here knows how labels come about (see :mod:`tamis.kernels.digraph`). The one condition for exactness: a category
reaches all of its tree, and the points of a category and what is above them in the forest are all of its ancestors.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .jit import bare
from .records import Record

# Entries of Labels.stock: numbers and units of the pool handed out so far.
NUMBERS, UNITS = range(2)
# A shelf is a place in the pool: two units for its base, then gaps, then END. The first gap is from -1. SKIP is a
# distance without a point at its end, for gaps that do not fit into a unit. Shelf 0 is empty.
END, SKIP = 0, 0xFFFF
EMPTY = 3  # units when there is no other shelf
STRIDE = 0xFFFE
DEEP = 255


class Labels(Record):
    """The labels as flat arrays. A category that was removed has the empty interval -1 .. -2."""

    FIELDS: ClassVar = {
        "first": (np.int32, 1),  # [category]: its number
        "last": (np.int32, 1),  # [category]: the highest number in its tree
        "shelf": (np.int32, 1),  # [category]: where its exceptions are
        "level": (np.uint8, 1),  # [category]: above the levels of its parents, except at DEEP
        "trunk": (np.int32, 1),  # [category]: its parent in the forest, -1 for none
        "order": (np.int32, 1),  # [number]: its category
        "pool": (np.uint16, 1),  # all shelves
        "stock": (np.int64, 1),
    }


@bare
def base_of(lb, shelf):
    """The shelf whose points belong to this one, too; 0 for none."""
    return np.int64(lb.pool[shelf]) | (np.int64(lb.pool[shelf + 1]) << 16)


@bare
def holds_point(lb, shelf, low, high):
    """Whether a point of the shelf or its bases is in ``low .. high``. O(points)."""
    pool = lb.pool
    while shelf != 0:
        i = shelf + 2
        x = np.int64(-1)
        gap = np.int64(pool[i])
        while gap != END:
            if gap == SKIP:
                x += STRIDE
            else:
                x += gap
                if x >= low:
                    if x <= high:
                        return True
                    break
            i += 1
            gap = np.int64(pool[i])
        shelf = base_of(lb, shelf)
    return False


@bare
def reaches(lb, above, below):
    """Whether category ``below`` is ``above`` or below it. O(exceptions of ``below``), O(1) in a tree."""
    # Most pairs end here, in an array that stays in the cache: among 600,000 categories a pair took 1,500 ns
    # without it and takes 225 ns with it.
    level = lb.level[above]
    if level >= lb.level[below] and level != DEEP:
        return above == below
    low, high, number = np.int64(lb.first[above]), np.int64(lb.last[above]), np.int64(lb.first[below])
    if low <= number and number <= high:
        return True
    shelf = np.int64(lb.shelf[below])
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
    while shelf != 0:
        i = shelf + 2
        x = np.int64(-1)
        while lb.pool[i] != END:
            if lb.pool[i] == SKIP:
                x += STRIDE
            else:
                x += np.int64(lb.pool[i])
                size = climb(lb, x, marks, out, size)
            i += 1
        shelf = base_of(lb, shelf)
    return size
