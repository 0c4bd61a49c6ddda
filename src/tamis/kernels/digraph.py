"""A directed acyclic graph that changes, and the upkeep of its reachability labels.

Edges are linked lists in flat arrays: the edges below a category, and those above it in the order they were given.
How labels follow a change (see :mod:`tamis.kernels.labels` for what they mean):

- **An edge a -> b is added.** What b reaches and a did not reach yet gains the points of a, nothing else changes. So
  each shelf among these categories gets one above it that has it as its base and adds the points of a.
- **An edge a -> b is removed.** When another parent of b is below a, nothing changes. Else the exceptions of all that b
  reaches are made anew from their parents, in topological order. A category whose tree edge is gone starts a tree of
  its own, with new numbers; only what it reaches can have points in its old tree, and is made anew anyway.

Numbers and shelves that are given up are not used again: when they are many, everything is labelled anew.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .jit import bare, kernel
from .labels import (
    DEEP,
    END,
    NUMBERS,
    SKIP,
    STRIDE,
    UNITS,
    base_of,
    category_of,
    extent_of,
    last_of,
    number_of,
    reaches,
)
from .records import Record


class Edges(Record):
    """Adjacency; -1 ends a list."""

    FIELDS: ClassVar = {
        "down": (np.int32, 1),  # [category]: its first edge downwards
        "up": (np.int32, 1),  # [category]: its first edge upwards
        "parent": (np.int32, 1),  # [edge]
        "child": (np.int32, 1),  # [edge]
        "next_down": (np.int32, 1),  # [edge]: the next one of the same parent
        "next_up": (np.int32, 1),  # [edge]: the next one of the same child
    }


# -- edges -----------------------------------------------------------------------------------------------------


@bare
def link_all(eg, start, stop):
    """Hang edges ``start .. stop - 1`` into the lists; the lists upwards keep their order. Only into empty lists."""
    for e in range(stop - 1, start - 1, -1):
        a, b = eg.parent[e], eg.child[e]
        eg.next_down[e], eg.down[a] = eg.down[a], e
        eg.next_up[e], eg.up[b] = eg.up[b], e


@bare
def find_edge(eg, a, b):
    """The edge from ``a`` to ``b``, or -1. O(parents of b)."""
    e = np.int64(eg.up[b])
    while e >= 0 and eg.parent[e] != a:
        e = np.int64(eg.next_up[e])
    return e


@bare
def link(eg, e, a, b):
    """Edge ``e`` from ``a`` to ``b``, behind the parents that ``b`` has. O(parents of b)."""
    eg.parent[e], eg.child[e], eg.next_up[e] = a, b, -1
    eg.next_down[e], eg.down[a] = eg.down[a], e
    last = np.int64(eg.up[b])
    if last < 0:
        eg.up[b] = e
        return
    while eg.next_up[last] >= 0:
        last = np.int64(eg.next_up[last])
    eg.next_up[last] = e


@bare
def unlink(eg, e):
    """Take an edge out of both lists. O(children of its parent + parents of its child)."""
    a, b = np.int64(eg.parent[e]), np.int64(eg.child[e])
    if eg.down[a] == e:
        eg.down[a] = eg.next_down[e]
    else:
        other = np.int64(eg.down[a])
        while eg.next_down[other] != e:
            other = np.int64(eg.next_down[other])
        eg.next_down[other] = eg.next_down[e]
    if eg.up[b] == e:
        eg.up[b] = eg.next_up[e]
    else:
        other = np.int64(eg.up[b])
        while eg.next_up[other] != e:
            other = np.int64(eg.next_up[other])
        eg.next_up[other] = eg.next_up[e]


@bare
def _walk(heads, following, ends, node, marks, out, size):
    """Add ``node`` and all that the edges lead to, breadth-first; see below."""
    if marks[node] != 0:
        return size
    head = size
    marks[node], out[size] = 1, node
    size += 1
    while head < size:
        e = np.int64(heads[out[head]])
        head += 1
        while e >= 0:
            other = np.int64(ends[e])
            if marks[other] == 0:
                marks[other], out[size] = 1, other
                size += 1
            e = np.int64(following[e])
    return size


@bare
def below(eg, node, marks, out, size):
    """Add ``node`` and all below it to ``out`` behind ``size``, except what is marked, and mark them. O(edges)."""
    return _walk(eg.down, eg.next_down, eg.child, node, marks, out, size)


@bare
def above(eg, node, marks, out, size):
    """Add ``node`` and all above it to ``out`` behind ``size``, except what is marked, and mark them. O(edges)."""
    return _walk(eg.up, eg.next_up, eg.parent, node, marks, out, size)


@kernel
def topological(eg, nodes, into):
    """Those of ``nodes`` that are on no cycle, parents first; edges from other nodes do not count.

    ``into`` [category] is all -1 before and after.
    """
    out = np.empty(nodes.shape[0], np.int32)
    for v in nodes:
        into[v] = 0
    for v in nodes:
        e = np.int64(eg.down[v])
        while e >= 0:
            if into[eg.child[e]] >= 0:
                into[eg.child[e]] += 1
            e = np.int64(eg.next_down[e])
    size = 0
    for v in nodes:
        if into[v] == 0:
            out[size] = v
            size += 1
    head = 0
    while head < size:
        e = np.int64(eg.down[out[head]])
        head += 1
        while e >= 0:
            child = eg.child[e]
            if into[child] >= 0:
                into[child] -= 1
                if into[child] == 0:
                    out[size] = child
                    size += 1
            e = np.int64(eg.next_down[e])
    for v in nodes:
        into[v] = -1
    return out[:size]


# -- the forest ------------------------------------------------------------------------------------------------


@bare
def grow_trunks(eg, topo, trunk, level, depth):
    """Choose the tree parent of every node: the deepest, whose long path then costs no points."""
    for v in topo:
        best, deep = np.int64(-1), np.int64(0)
        e = np.int64(eg.up[v])
        while e >= 0:
            p = np.int64(eg.parent[e])
            if depth[p] > deep:
                best, deep = p, np.int64(depth[p])
            e = np.int64(eg.next_up[e])
        trunk[v], depth[v], level[v] = best, deep + 1, min(deep, DEEP)


@bare
def sink(eg, level, a, b, out):
    """An edge from ``a`` to ``b`` is there: lower ``b``, and what is below it, as far as levels ask for."""
    if level[b] > level[a] or level[b] == DEEP:
        return
    level[b] = min(np.int64(level[a]) + 1, DEEP)
    out[0] = b
    size = 1
    while size > 0:
        size -= 1
        v = np.int64(out[size])
        e = np.int64(eg.down[v])
        while e >= 0:
            child = np.int64(eg.child[e])
            if level[child] <= level[v] and level[child] != DEEP:
                level[child] = min(np.int64(level[v]) + 1, DEEP)
                out[size] = child
                size += 1
            e = np.int64(eg.next_down[e])


@bare
def number(trunk, topo, start, first, extent, cursor):
    """Numbers from ``start`` on for ``topo`` (parents first, and whole trees), and how many are below each in its tree.

    Children get theirs in the order of ``topo``. ``extent`` [category] is 0. Returns the number behind the last.
    """
    for i in range(topo.shape[0] - 1, -1, -1):
        v = topo[i]
        if trunk[v] >= 0:
            extent[trunk[v]] += extent[v] + 1
    for v in topo:
        t = trunk[v]
        if t < 0:
            first[v] = start
            start += extent[v] + 1
        else:
            first[v] = cursor[t]
            cursor[t] += extent[v] + 1
        cursor[v] = first[v] + 1
    return start


# -- exceptions ------------------------------------------------------------------------------------------------


@bare
def _unite(pool, shelf, table, side, size):
    """Merge what one shelf adds with row ``side`` of ``table`` into row ``side ^ 1``; the new size."""
    old, new = table[side], table[side ^ 1]
    i, j, k = shelf + 2, 0, 0
    x = np.int64(-1)
    while pool[i] != END:
        if pool[i] == SKIP:
            x += STRIDE
            i += 1
            continue
        x += np.int64(pool[i])
        i += 1
        while j < size and old[j] < x:
            new[k] = old[j]
            j += 1
            k += 1
        if j < size and old[j] == x:
            j += 1
        new[k] = x
        k += 1
    while j < size:
        new[k] = old[j]
        j += 1
        k += 1
    return k


@bare
def _put(table, side, size, point):
    """Put one point into a row, in order."""
    row = table[side]
    i = size
    while i > 0 and row[i - 1] > point:
        i -= 1
    if i > 0 and row[i - 1] == point:
        return size
    for j in range(size, i, -1):
        row[j] = row[j - 1]
    row[i] = point
    return size + 1


@bare
def _lowest(lb, row, size, inner):
    """Keep the points of a row that are above no other one, nor above number ``inner``; the new size."""
    kept = 0
    for i in range(size):
        x = row[i]
        end = x + extent_of(lb, category_of(lb, np.int64(x)))
        if x <= inner and inner <= end:
            continue
        if i + 1 < size and row[i + 1] <= end:
            continue
        row[kept] = x
        kept += 1
    return kept


@bare
def _missing(row, size, other, have):
    """How many points of a row are not in another one."""
    missing, j = 0, 0
    for i in range(size):
        while j < have and other[j] < row[i]:
            j += 1
        if j == have or other[j] != row[i]:
            missing += 1
    return missing


@bare
def shelve(lb, base, row, size, known):
    """The shelf of these points above ``base``, a new one if need be; -1 when there is no room for it.

    ``known`` is a hash table of shelves, 0 where there is none, or has length 0.
    """
    if size == 0:
        return base
    pool = lb.pool
    start = lb.stock[UNITS]
    if start + needed(size, lb.stock[NUMBERS]) > pool.shape[0]:
        return np.int64(-1)
    pool[start], pool[start + 1] = base & 0xFFFF, base >> 16
    i = start + 2
    x = np.int64(-1)
    mix = np.uint64(base)
    for j in range(size):
        gap = np.int64(row[j]) - x
        while gap > STRIDE:
            pool[i] = SKIP
            gap -= STRIDE
            i += 1
        pool[i] = gap
        i += 1
        x = np.int64(row[j])
        mix = (mix ^ np.uint64(x)) * np.uint64(0x9E3779B97F4A7C15)
        mix ^= mix >> np.uint64(29)
    pool[i] = END
    stop = i + 1
    if known.shape[0] > 0:
        slot = np.int64(mix & np.uint64(known.shape[0] - 1))
        while known[slot] != 0:
            other = np.int64(known[slot])
            i = start
            while i < stop and pool[i] == pool[other]:
                i += 1
                other += 1
            if i == stop:
                return np.int64(known[slot])
            slot = (slot + 1) & (known.shape[0] - 1)
        known[slot] = start
    lb.stock[UNITS] = stop
    return start


@bare
def needed(points, numbers):
    """Units that a shelf of so many points may take."""
    return 3 + points + numbers // STRIDE


@bare
def _all_points(lb, shelf, table, side):
    """The points of a shelf and its bases: (row of ``table``, how many), starting in row ``side``, using its pair."""
    size = np.int64(0)
    while shelf != 0:
        size = _unite(lb.pool, shelf, table, side, size)
        side ^= 1
        shelf = base_of(lb, shelf)
    return side, size


@bare
def hang(lb, eg, nodes, start, broad, table, known):
    """Make the exceptions of ``nodes`` (parents first) from those of their parents, from node number ``start`` on.

    A category that is ``broad`` [category] has all its points on its own shelf: chains of bases end there. ``table``
    has four rows. Returns how far it came: less than all of them when there is no room for more shelves.
    """
    for i in range(start, nodes.shape[0]):
        v = np.int64(nodes[i])
        e = np.int64(eg.up[v])
        inner = number_of(lb, v)
        if e < 0:
            lb.shelf[v] = 0
            continue
        p = np.int64(eg.parent[e])
        if eg.next_up[e] < 0 and number_of(lb, p) <= inner and inner <= last_of(lb, p):
            lb.shelf[v] = lb.shelf[p]
            continue
        side, size = 0, np.int64(0)
        while e >= 0:
            p = np.int64(eg.parent[e])
            shelf = np.int64(lb.shelf[p])
            while shelf != 0:
                size = _unite(lb.pool, shelf, table, side, size)
                side ^= 1
                shelf = base_of(lb, shelf)
            size = _put(table, side, size, number_of(lb, p))
            e = np.int64(eg.next_up[e])
        row = table[side]
        size = _lowest(lb, row, size, inner)
        # The base is the shelf of a parent that leaves least to add; -1 for none looked at.
        base, least = np.int64(-1), np.int64(0)
        e = np.int64(-1) if broad[v] else np.int64(eg.up[v])
        while e >= 0:
            shelf = np.int64(lb.shelf[eg.parent[e]])
            e = np.int64(eg.next_up[e])
            if shelf == base:
                continue
            other, have = _all_points(lb, shelf, table, 2)
            missing = _missing(row, size, table[other], have)
            if base < 0 or missing < least:
                base, least = shelf, missing
        base = max(base, 0)
        other, have = _all_points(lb, base, table, 2)
        kept, j = 0, 0
        for k in range(size):
            while j < have and table[other, j] < row[k]:
                j += 1
            if j == have or table[other, j] != row[k]:
                row[kept] = row[k]
                kept += 1
        shelf = shelve(lb, base, row, kept, known)
        if shelf < 0:
            return i
        lb.shelf[v] = shelf
    return nodes.shape[0]


# -- changes ---------------------------------------------------------------------------------------------------


@bare
def newly_reached(lb, eg, a, b, marks, out):
    """What ``b`` reaches and ``a`` does not into ``out``; returns how many. ``marks`` are all 0 before and after."""
    head, size = 0, 1
    marks[b], out[0] = 1, b
    while head < size:
        e = np.int64(eg.down[out[head]])
        head += 1
        while e >= 0:
            child = np.int64(eg.child[e])
            if marks[child] == 0 and not reaches(lb, a, child):
                marks[child], out[size] = 1, child
                size += 1
            e = np.int64(eg.next_down[e])
    for i in range(size):
        marks[out[i]] = 0
    return size


@bare
def spread(lb, a, nodes, start, table):
    """``nodes``, in the order of their shelves, gain ``a`` and all above it, from node number ``start`` on.

    Returns how far it came: less than all of them when there is no room for more shelves.
    """
    mine, many = _all_points(lb, np.int64(lb.shelf[a]), table, 2)
    many = _lowest(lb, table[mine], _put(table, mine, many, number_of(lb, a)), np.int64(-1))
    i = start
    while i < nodes.shape[0]:
        shelf = np.int64(lb.shelf[nodes[i]])
        side, have = _all_points(lb, shelf, table, 0)
        row, theirs = table[side ^ 1], table[side]
        size, j = 0, 0
        for k in range(many):
            x = table[mine, k]
            while j < have and theirs[j] < x:
                j += 1
            if j == have or theirs[j] > x + extent_of(lb, category_of(lb, np.int64(x))):
                row[size] = x
                size += 1
        fresh = shelve(lb, shelf, row, size, nodes[:0])
        if fresh < 0:
            return i
        while i < nodes.shape[0] and lb.shelf[nodes[i]] == shelf:
            lb.shelf[nodes[i]] = fresh
            i += 1
    return i


@bare
def detach(lb, eg, topo, moved):
    """Nodes of ``topo`` (closed downwards, parents first) whose tree edge is no edge become roots of trees.

    All of the nodes in such trees go to ``moved``, in the same order; returns how many they are. Numbers are written
    down by now.
    """
    size = np.int64(0)
    for v in topo:
        t = np.int64(lb.trunk[v])
        if t < 0:
            continue
        gone = find_edge(eg, t, v) < 0
        if gone:
            lb.trunk[v] = -1
        if gone or lb.number[t] == -1:
            lb.number[v] = -1  # marks the tree for what comes behind
            moved[size] = v
            size += 1
    return size
