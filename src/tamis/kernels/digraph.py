"""A directed acyclic graph that changes, and the upkeep of its reachability labels.

Edges are linked lists in flat arrays: the edges below a category, and those above it in the order they were given.
How labels follow a change (see :mod:`tamis.kernels.labels` for what they mean):

- **An edge a -> b is added.** What b reaches and a did not reach yet gains the points of a, nothing else changes. So
  each shelf among these categories is merged with the points of a, once.
- **An edge a -> b is removed.** When another parent of b is below a, nothing changes. Else the exceptions of all that b
  reaches are made anew from their parents, in topological order. A category whose tree edge is gone starts a tree of
  its own, with new numbers; only what it reaches can have points in its old tree, and is made anew anyway.

Numbers and points that are given up are not used again: when they are many, everything is labelled anew.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .jit import bare, kernel
from .labels import NUMBERS, POINTS, SHELVES, reaches
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
def below(eg, node, marks, out, size):
    """Add ``node`` and all below it to ``out`` behind ``size``, except what is marked, and mark them. O(edges)."""
    if marks[node] != 0:
        return size
    head = size
    marks[node], out[size] = 1, node
    size += 1
    while head < size:
        e = np.int64(eg.down[out[head]])
        head += 1
        while e >= 0:
            child = np.int64(eg.child[e])
            if marks[child] == 0:
                marks[child], out[size] = 1, child
                size += 1
            e = np.int64(eg.next_down[e])
    return size


@bare
def above(eg, node, marks, out, size):
    """Add ``node`` and all above it to ``out`` behind ``size``, except what is marked, and mark them. O(edges)."""
    if marks[node] != 0:
        return size
    head = size
    marks[node], out[size] = 1, node
    size += 1
    while head < size:
        e = np.int64(eg.up[out[head]])
        head += 1
        while e >= 0:
            parent = np.int64(eg.parent[e])
            if marks[parent] == 0:
                marks[parent], out[size] = 1, parent
                size += 1
            e = np.int64(eg.next_up[e])
    return size


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
def grow_trunks(eg, topo, trunk, depth):
    """Choose the tree parent of every node: the deepest, whose long path then costs no points."""
    for v in topo:
        best, deep = np.int64(-1), np.int64(0)
        e = np.int64(eg.up[v])
        while e >= 0:
            p = np.int64(eg.parent[e])
            if depth[p] > deep:
                best, deep = p, np.int64(depth[p])
            e = np.int64(eg.next_up[e])
        trunk[v], depth[v] = best, deep + 1


@bare
def number(lb, topo, size):
    """New numbers for ``topo`` (parents first, and whole trees) behind those in use. ``size`` [category] is 0."""
    for i in range(topo.shape[0] - 1, -1, -1):
        v = topo[i]
        size[v] += 1
        if lb.trunk[v] >= 0:
            size[lb.trunk[v]] += size[v]
    for v in topo:
        t = lb.trunk[v]
        if t < 0:
            lb.first[v] = lb.stock[NUMBERS]
            lb.stock[NUMBERS] += size[v]
        else:
            # A tree hands out its numbers from its end: ``size`` is what is left of the parent's interval.
            lb.first[v] = lb.first[t] + size[t] - size[v]
            size[t] -= size[v]
        lb.last[v] = lb.first[v] + size[v] - 1
        lb.order[lb.first[v]] = v
    for v in topo:
        size[v] = 0


# -- exceptions ------------------------------------------------------------------------------------------------


@bare
def _unite(points, start, stop, table, side, size):
    """Merge ``points[start:stop]`` with row ``side`` of ``table`` into the other row; the new size."""
    old, new = table[side], table[1 - side]
    i, j, k = start, 0, 0
    while i < stop and j < size:
        if points[i] < old[j]:
            new[k] = points[i]
            i += 1
        else:
            if points[i] == old[j]:
                i += 1
            new[k] = old[j]
            j += 1
        k += 1
    while i < stop:
        new[k] = points[i]
        i += 1
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
        end = lb.last[lb.order[x]]
        if x <= inner and inner <= end:
            continue
        if i + 1 < size and row[i + 1] <= end:
            continue
        row[kept] = x
        kept += 1
    return kept


@bare
def _is_on(lb, shelf, row, size):
    """Whether a shelf has exactly these points."""
    if lb.count[shelf] != size:
        return False
    at = np.int64(lb.at[shelf])
    for i in range(size):
        if lb.points[at + i] != row[i]:
            return False
    return True


@bare
def _shelve(lb, row, size, known):
    """The shelf of these points, a new one if need be; -1 when there is no room for it.

    ``known`` is a hash table of shelves, -1 where there is none, or has length 0.
    """
    if size == 0:
        return np.int64(0)
    slot = np.int64(0)
    if known.shape[0] > 0:
        mix = np.uint64(size)
        for i in range(size):
            mix = (mix ^ np.uint64(row[i])) * np.uint64(0x9E3779B97F4A7C15)
            mix ^= mix >> np.uint64(29)
        slot = np.int64(mix & np.uint64(known.shape[0] - 1))
        tries = 0
        while known[slot] >= 0 and tries < 8:
            if _is_on(lb, np.int64(known[slot]), row, size):
                return np.int64(known[slot])
            slot = (slot + 1) & (known.shape[0] - 1)
            tries += 1
    shelf, at = lb.stock[SHELVES], lb.stock[POINTS]
    if shelf == lb.at.shape[0] or at + size > lb.points.shape[0]:
        return np.int64(-1)
    for i in range(size):
        lb.points[at + i] = row[i]
    lb.at[shelf], lb.count[shelf] = at, size
    lb.stock[SHELVES] += 1
    lb.stock[POINTS] += size
    if known.shape[0] > 0:
        known[slot] = shelf
    return shelf


@bare
def hang(lb, eg, nodes, start, table, known):
    """Make the exceptions of ``nodes`` (parents first) from those of their parents, from node number ``start`` on.

    Returns how far it came: less than all of them when there is no room for more points or shelves.
    """
    for i in range(start, nodes.shape[0]):
        v = np.int64(nodes[i])
        e = np.int64(eg.up[v])
        inner = lb.first[v]
        if e < 0:
            lb.shelf[v] = 0
            continue
        p = np.int64(eg.parent[e])
        if eg.next_up[e] < 0 and lb.first[p] <= inner and inner <= lb.last[p]:
            lb.shelf[v] = lb.shelf[p]
            continue
        side, size = 0, np.int64(0)
        while e >= 0:
            p = np.int64(eg.parent[e])
            shelf = np.int64(lb.shelf[p])
            at = np.int64(lb.at[shelf])
            if lb.count[shelf] > 0:
                size = _unite(lb.points, at, at + np.int64(lb.count[shelf]), table, side, size)
                side = 1 - side
            size = _put(table, side, size, lb.first[p])
            e = np.int64(eg.next_up[e])
        row = table[side]
        size = _lowest(lb, row, size, inner)
        shelf = np.int64(-1)
        e = np.int64(eg.up[v])
        while e >= 0 and shelf < 0:
            p = np.int64(eg.parent[e])
            if _is_on(lb, np.int64(lb.shelf[p]), row, size):
                shelf = np.int64(lb.shelf[p])
            e = np.int64(eg.next_up[e])
        if shelf < 0:
            shelf = _shelve(lb, row, size, known)
            if shelf < 0:
                return i
        lb.shelf[v] = shelf
    return nodes.shape[0]


# -- changes ---------------------------------------------------------------------------------------------------


@bare
def newly_reached(lb, eg, a, b, marks, out):
    """What ``b`` reaches and ``a`` does not: categories into ``out``, and the room that :func:`spread` may need.

    Returns (categories, shelves, points).
    """
    head, size = 0, 1
    marks[b], out[0] = 1, b
    shelves, points = np.int64(0), np.int64(0)
    gain = np.int64(lb.count[lb.shelf[a]]) + 1
    while head < size:
        v = out[head]
        head += 1
        shelves += 1
        points += gain + np.int64(lb.count[lb.shelf[v]])
        e = np.int64(eg.down[v])
        while e >= 0:
            child = np.int64(eg.child[e])
            if marks[child] == 0 and not reaches(lb, a, child):
                marks[child], out[size] = 1, child
                size += 1
            e = np.int64(eg.next_down[e])
    for i in range(size):
        marks[out[i]] = 0
    return size, shelves, points


@bare
def spread(lb, a, nodes, size, fresh, table):
    """``nodes[:size]`` gain ``a`` and all above it. ``fresh`` [shelf] is all -1 before and after; there is room."""
    mine = np.int64(lb.shelf[a])
    none = fresh[:0]
    for i in range(size):
        v = nodes[i]
        shelf = np.int64(lb.shelf[v])
        if fresh[shelf] < 0:
            at = np.int64(lb.at[shelf])
            n = _unite(lb.points, at, at + np.int64(lb.count[shelf]), table, 0, 0)
            at = np.int64(lb.at[mine])
            n = _unite(lb.points, at, at + np.int64(lb.count[mine]), table, 1, n)
            n = _put(table, 0, n, lb.first[a])
            n = _lowest(lb, table[0], n, np.int32(-1))
            fresh[shelf] = _shelve(lb, table[0], n, none)
            table[2, i] = shelf
        else:
            table[2, i] = -1
        lb.shelf[v] = fresh[shelf]
    for i in range(size):
        if table[2, i] >= 0:
            fresh[table[2, i]] = -1


@bare
def detach(lb, eg, topo, moved):
    """Nodes of ``topo`` (closed downwards, parents first) whose tree edge is no edge become roots of trees.

    All of the nodes in such trees go to ``moved``, in the same order; returns how many they are.
    """
    size = np.int64(0)
    for v in topo:
        t = np.int64(lb.trunk[v])
        if t < 0:
            continue
        gone = find_edge(eg, t, v) < 0
        if gone:
            lb.trunk[v] = -1
        if gone or lb.first[t] == -1:
            lb.first[v] = -1  # marks the tree for what comes behind
            moved[size] = v
            size += 1
    return size
