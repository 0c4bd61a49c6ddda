"""Reachability labels of a content graph: is one category the other, or below it?

A spanning forest of the graph numbers the categories in preorder, so that what is below a category *in its tree* is one
interval of numbers: its own, and as many behind it as its *extent* says. The ancestors of a category are closed
upwards, in the graph and so in the forest: they are the tree paths above a few lowest points. One of these points is
the category itself; the others are its *exceptions*, kept in ascending order. ``above`` reaches ``below`` when the
interval of ``above`` holds the number of ``below`` or one of its exceptions: two comparisons in a tree, and elsewhere a
list to read that is short or empty.

A new graph gives categories their numbers as ids, so that numbers take no space: a tree has two bytes per category, its
extent. Ids stay when the forest changes; from then on numbers are written down.

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
from .simd import prefetch

# Entries of Labels.stock: numbers and units of the pool handed out so far.
NUMBERS, UNITS = range(2)
# A shelf is a place in the pool: two units for its base, then gaps, then END. The first gap is from -1. SKIP is a
# distance without a point at its end, for gaps that do not fit into a unit. Shelf 0 is empty.
END, SKIP = 0, 0xFFFF
EMPTY = 3  # units when there is no other shelf
STRIDE = 0xFFFE
DEEP = 255
# Extents: NOTHING is below the category, in the graph; else one more than the numbers below it in its tree, which may
# be none; too many for that are in Labels.wide.
NOTHING, WIDE = 0, 0xFFFF
LARGE = 1 << 20  # units of a pool that does not stay in the cache
AHEAD = 8  # how many pairs ahead memory is then asked for


class Labels(Record):
    """The labels as flat arrays. A category that was removed has the number -1."""

    FIELDS: ClassVar = {
        "number": (np.int32, 1),  # [category]: its number; empty while numbers are ids
        "order": (np.int32, 1),  # [number]: its category; empty while numbers are ids
        "extent": (np.uint16, 1),  # [category]
        "wide": (np.int32, 2),  # [some, 2]: number and extent of those that are WIDE, by number
        "shelf": (np.int32, 1),  # [category]: where its exceptions are; empty while there are none
        "level": (np.uint8, 1),  # [category]: above the levels of its parents, except at DEEP
        "trunk": (np.int32, 1),  # [category]: its parent in the forest, -1 for none
        "pool": (np.uint16, 1),  # all shelves
        "stock": (np.int64, 1),
    }


@bare
def number_of(lb, node):
    """The number of a category."""
    return np.int64(lb.number[node]) if lb.number.shape[0] > 0 else np.int64(node)


@bare
def category_of(lb, number):
    """The category of a number."""
    return np.int64(lb.order[number]) if lb.order.shape[0] > 0 else np.int64(number)


@bare
def extent_of(lb, node):
    """How many numbers behind that of a category are below it in its tree. O(1), O(log wide) where it is wide."""
    code = np.int64(lb.extent[node])
    if code != WIDE:
        return code - (code != NOTHING)
    number = number_of(lb, node)
    low, high = 0, lb.wide.shape[0] - 1
    while low < high:
        middle = (low + high) >> 1
        if lb.wide[middle, 0] < number:
            low = middle + 1
        else:
            high = middle
    return np.int64(lb.wide[low, 1])


@bare
def last_of(lb, node):
    """The highest number in the tree of a category."""
    return number_of(lb, node) + extent_of(lb, node)


@bare
def shelf_of(lb, node):
    """Where the exceptions of a category are."""
    return np.int64(lb.shelf[node]) if lb.shelf.shape[0] > 0 else np.int64(0)


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
    if above == below:
        return True
    if lb.extent[above] == NOTHING:
        return False
    tree = lb.shelf.shape[0] == 0
    # Most pairs end here, in an array that stays in the cache: among 600,000 categories a pair took 1,500 ns
    # without it and takes 225 ns with it.
    if not tree and lb.level[above] >= lb.level[below] and lb.level[above] != DEEP:
        return False
    low, number = number_of(lb, above), number_of(lb, below)
    high = low + extent_of(lb, above)
    if low <= number and number <= high:
        return True
    if tree:
        return False
    return holds_point(lb, np.int64(lb.shelf[below]), low, high)


@bare
def reach_pairs(lb, above, below, out):
    """``reaches`` for pairs."""
    # Where labels do not stay in the cache, a pair waits for memory twice, for its shelf and for the points on it.
    far = above.shape[0] - 2 * AHEAD if lb.pool.shape[0] > LARGE and lb.shelf.shape[0] > 0 else 0
    for i in range(above.shape[0]):
        if i < far:
            prefetch(lb.extent, np.int64(above[i + 2 * AHEAD]))
            prefetch(lb.shelf, np.int64(below[i + 2 * AHEAD]))
            prefetch(lb.pool, np.int64(lb.shelf[below[i + AHEAD]]))
        out[i] = reaches(lb, np.int64(above[i]), np.int64(below[i]))


@bare
def climb(lb, node, marks, out, size):
    """Add a category and what is above it in the forest to ``out``, up to one that is marked."""
    while node >= 0 and marks[node] == 0:
        marks[node] = 1
        out[size] = node
        size += 1
        node = np.int64(lb.trunk[node])
    return size


@bare
def ancestors(lb, node, marks, out, size):
    """Add ``node`` and all above it to ``out`` behind ``size``, except what is marked, and mark them. O(found)."""
    if number_of(lb, node) < 0:
        return size
    size = climb(lb, np.int64(node), marks, out, size)
    shelf = shelf_of(lb, node)
    while shelf != 0:
        i = shelf + 2
        x = np.int64(-1)
        while lb.pool[i] != END:
            if lb.pool[i] == SKIP:
                x += STRIDE
            else:
                x += np.int64(lb.pool[i])
                size = climb(lb, category_of(lb, x), marks, out, size)
            i += 1
        shelf = base_of(lb, shelf)
    return size
