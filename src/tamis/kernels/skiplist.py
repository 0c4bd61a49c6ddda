"""Interval skip lists (Hanson and Johnson 1996), the structure of paper 000's experiments.

A *node* is a key, an *edge* leads from a node to the next one of at least its level: the range [key, next key). Every
edge has a list of entries. An entry that holds [low, high] has markers on the highest edges that together make up that
range, so a probe finds it on exactly one edge of its way down. Ranges are half open: a closed end is the next double.

*Levels*, for each end of an interval: at level 0 it has a node of its own; at level j it is rounded outward to the next
node that reaches level j, so at level 1 to the ranges of the bottom, at higher ones to longer and longer ranges, and
above the tallest node there is no end. To escalate is to go up a level ("the lowest higher-level range that covers the
new range"), to deescalate to go down, where the last step may split a range.

Invariants: keys grow along every level; a node has an owner, an entry that ends there; the edges of an entry's markers
are disjoint and make up the range between its two nodes.
"""

from __future__ import annotations

import numpy as np

from . import postings
from .jit import bare, kernel
from .merge import gather
from .postings import AT, ENTRY, FILL, LIST, MARKERS_USED

# Columns of SkipList.node.
HEIGHT, EDGE, OWNERS = range(3)
MAX_HEIGHT = 12  # one node in four reaches the next level: enough for 16 million
# Entries of SkipList.spare: nodes and edges handed out; random state; then free nodes by height; then the tallest node
# of each group.
NODES, EDGES, RANDOM, FREE = range(4)
TALLEST = FREE + MAX_HEIGHT + 1
TOP = MAX_HEIGHT + 1  # the level at which an end has no bound


@bare
def header(g):
    """The node before all others of a group; the one behind all others follows it."""
    return np.int64(2 * g)


@bare
def _before(ix, g, v, level):
    """The last node that reaches ``level`` (from 1) with a key <= v; the nodes above it go to ``ix.path``."""
    n = header(g)
    for up in range(ix.spare[TALLEST + g] - 1, level - 2, -1):
        t = np.int64(ix.to[ix.node[n, EDGE] + up])
        while ix.key[t] <= v:
            n = t
            t = np.int64(ix.to[ix.node[n, EDGE] + up])
        ix.path[up] = n
    return n


@bare
def _height(ix):
    """A random height: one in four of each reaches the next."""
    state = ix.spare[RANDOM]
    state ^= state << 13
    state ^= (state >> 7) & 0x01FF_FFFF_FFFF_FFFF
    state ^= state << 17
    ix.spare[RANDOM] = state
    height = 1
    while height < MAX_HEIGHT and state & 3 == 0:
        height += 1
        state >>= 2
    return height


@bare
def _new_node(ix, height):
    """A node with that many edges, -1 when there is no room."""
    n = ix.spare[FREE + height]
    if n >= 0:
        ix.spare[FREE + height] = ix.node[n, OWNERS]
        return n
    n, edge = ix.spare[NODES], ix.spare[EDGES]
    if n == ix.node.shape[0] or edge + height > ix.to.shape[0]:
        return np.int64(-1)
    ix.spare[NODES] += 1
    ix.spare[EDGES] += height
    ix.node[n, HEIGHT], ix.node[n, EDGE] = height, edge
    return n


@bare
def _node_at(ix, g, v):
    """The node with key ``v``, made if need be: the ranges that it splits hand their entries to both parts."""
    lists = ix.postings.list
    n = _before(ix, g, v, 1)
    if ix.key[n] == v and n != header(g):
        return n
    height = _height(ix)
    crossing = 0
    for up in range(min(height, ix.spare[TALLEST + g])):
        crossing += lists[ix.node[ix.path[up], EDGE] + up, FILL]
    if ix.postings.stock[MARKERS_USED] + 4 * crossing > ix.postings.marker.shape[0]:
        return np.int64(-1)
    new = _new_node(ix, height)
    if new < 0:
        return new
    while ix.spare[TALLEST + g] < height:
        ix.path[ix.spare[TALLEST + g]] = header(g)
        ix.spare[TALLEST + g] += 1
    ix.key[new], ix.node[new, OWNERS] = v, 0
    for up in range(height):
        left, right = np.int64(ix.node[ix.path[up], EDGE] + up), np.int64(ix.node[new, EDGE] + up)
        ix.to[right], ix.to[left] = ix.to[left], new
        for i in range(lists[left, FILL]):
            postings.add(ix.postings, right, np.int64(ix.postings.marker[lists[left, AT] + i, ENTRY]), g)
    return new


@bare
def _mark(ix, g, k):
    """Put markers of entry ``k`` on the highest edges between its nodes; False, and none of them, without room."""
    n, last = np.int64(ix.ends[k, g, 0]), np.int64(ix.ends[k, g, 1])
    end = ix.key[last]
    while n != last:
        up = ix.node[n, HEIGHT] - 1
        edge = np.int64(ix.node[n, EDGE])
        while up > 0 and (up >= ix.spare[TALLEST + g] or ix.key[ix.to[edge + up]] > end):
            up -= 1
        if not postings.add(ix.postings, edge + up, k, g):
            postings.drop(ix.postings, k, g)
            return False
        n = np.int64(ix.to[edge + up])
    return True


@bare
def _set_aside(ix, g, i, head):
    """Take all entries of list ``i`` out of the group and chain them."""
    ps = ix.postings
    while ps.list[i, FILL] > 0:
        k = np.int64(ps.marker[ps.list[i, AT], ENTRY])
        postings.drop(ps, k, g)
        ix.aside[k] = head
        head = k
    return head


@bare
def _remove_node(ix, g, n):
    """Join the ranges on both sides of a node that nobody owns; returns the entries that have to be marked anew."""
    height = np.int64(ix.node[n, HEIGHT])
    head = np.int64(-1)
    p = header(g)
    for up in range(ix.spare[TALLEST + g] - 1, -1, -1):
        t = np.int64(ix.to[ix.node[p, EDGE] + up])
        while ix.key[t] < ix.key[n]:
            p = t
            t = np.int64(ix.to[ix.node[p, EDGE] + up])
        if up < height:
            left, right = np.int64(ix.node[p, EDGE] + up), np.int64(ix.node[n, EDGE] + up)
            head = _set_aside(ix, g, left, head)
            head = _set_aside(ix, g, right, head)
            ix.to[left] = ix.to[right]
    ix.node[n, OWNERS] = ix.spare[FREE + height]
    ix.spare[FREE + height] = n
    return head


@bare
def _leave(ix, g, n):
    """One owner less; returns the entries that have to be marked anew."""
    ix.node[n, OWNERS] -= 1
    if ix.node[n, OWNERS] > 0 or n < 2 * (ix.group.shape[0] - 1):
        return np.int64(-1)
    return _remove_node(ix, g, n)


@bare
def place(ix, g, k):
    """Place ``ix.want`` at level ``ix.aim``; 1, or 2 when that is the whole domain, or 0 when there is no room."""
    s = np.int64(ix.group[g])
    low, high = ix.want[s, 0], ix.want[s, 1]
    a, b = header(g), header(g) + 1
    tallest = ix.spare[TALLEST + g]
    if low > -np.inf and ix.aim[s, 0] <= tallest:
        if ix.aim[s, 0] == 0:
            a = _node_at(ix, g, low)
            if a < 0:
                ix.aim[s, 0] = 1
        if ix.aim[s, 0] > 0:
            a = _before(ix, g, low, np.int64(ix.aim[s, 0]))
    ix.node[a, OWNERS] += 1  # now: finding the other end must not remove it
    if high < np.inf and ix.aim[s, 1] <= tallest:
        if ix.aim[s, 1] == 0:
            b = _node_at(ix, g, np.nextafter(high, np.inf))
            if b < 0:
                ix.aim[s, 1] = 1
        if ix.aim[s, 1] > 0:
            level = np.int64(ix.aim[s, 1])
            b = np.int64(ix.to[ix.node[_before(ix, g, high, level), EDGE] + level - 1])
    ix.node[b, OWNERS] += 1
    ix.ends[k, g, 0], ix.ends[k, g, 1] = a, b
    ix.held[k, s, 0], ix.held[k, s, 1] = ix.key[a], np.nextafter(ix.key[b], -np.inf) if ix.key[b] < np.inf else np.inf
    ix.level[k, s, 0], ix.level[k, s, 1] = ix.aim[s, 0], ix.aim[s, 1]
    if a == header(g) and b == header(g) + 1:
        return 2
    return 1 if _mark(ix, g, k) else 0


@bare
def unplace(ix, g, k):
    """Take entry ``k`` out; returns a chain of other entries (in ``ix.aside``) for which there was no room any more."""
    postings.drop(ix.postings, k, g)
    lost = np.int64(-1)
    for end in range(2):
        j = _leave(ix, g, np.int64(ix.ends[k, g, end]))
        while j >= 0:
            after = np.int64(ix.aside[j])
            if not _mark(ix, g, j):
                ix.aside[j] = lost
                lost = j
            j = after
    return lost


@bare
def collect(ix, g, m, world):
    """All entries of group ``g`` that hold the message's value, into the merge."""
    x = world.messages.value[m, ix.slot_attribute[ix.group[g]]]
    if not (x == x):
        return
    n = header(g)
    for up in range(ix.spare[TALLEST + g] - 1, -1, -1):
        t = np.int64(ix.to[ix.node[n, EDGE] + up])
        while ix.key[t] <= x:
            n = t
            t = np.int64(ix.to[ix.node[n, EDGE] + up])
        gather(ix, np.int64(ix.node[n, EDGE] + up), g)


@bare
def top(ix, g):
    """The level at which an end has no bound."""
    return ix.spare[TALLEST + g] + 1


@kernel
def check_structure(ix, ids, world):
    """Verify the invariants of the list; (code, clause, slot), 0 when all hold."""
    groups = ix.group.shape[0] - 1
    rank = np.zeros(ix.key.shape[0], np.int64)
    owners = np.zeros(ix.key.shape[0], np.int64)
    for i in range(ids.shape[0]):
        for g in range(groups):
            if ix.state[ids[i], g] == 1:
                owners[ix.ends[ids[i], g, 0]] += 1
                owners[ix.ends[ids[i], g, 1]] += 1
    for g in range(groups):
        n, at = header(g), 0
        while n != header(g) + 1:
            t = np.int64(ix.to[ix.node[n, EDGE]])
            if n >= 2 * groups and (ix.node[n, OWNERS] != owners[n] or owners[n] == 0):
                return 15, -1, g
            for up in range(ix.node[n, HEIGHT] if n >= 2 * groups else ix.spare[TALLEST + g]):
                if not ix.key[n] < ix.key[ix.to[ix.node[n, EDGE] + up]]:
                    return 16, -1, g
            at += 1
            rank[t] = at
            n = t
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        for g in range(groups):
            if ix.state[k, g] != 1:
                continue
            first, last = rank[ix.ends[k, g, 0]], rank[ix.ends[k, g, 1]]
            length = 0
            m = ix.postings.first[k, g]
            while m >= 0:
                edge = ix.postings.marker[m, LIST]
                length += 1
                m = ix.postings.marker[m, postings.AFTER]
                if edge >= ix.spare[EDGES]:
                    return 17, k, g
            # The edges from node to node, at most one of each: together they must be as long as the range.
            n, covered = np.int64(ix.ends[k, g, 0]), 0
            while rank[n] < last and length >= 0:
                best = np.int64(-1)
                for up in range(ix.node[n, HEIGHT]):
                    if postings.has(ix.postings, np.int64(ix.node[n, EDGE] + up), k, g):
                        best = np.int64(ix.to[ix.node[n, EDGE] + up])
                        covered += 1
                if best < 0:
                    return 17, k, g
                n = best
            if rank[n] != last or covered != length or first > last:
                return 17, k, g
    return 0, -1, -1
