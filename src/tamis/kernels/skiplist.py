"""Interval skip lists (Hanson and Johnson 1996), the structure of paper 000's experiments.

A *node* is a key, an *edge* leads from a node to the next one of at least its level: the range [key, next key). Every
edge has a list of entries. An entry that holds [low, high] has markers on the highest edges that together make up that
range, so a probe finds it on exactly one edge of its way down. Ranges are half open: a closed end is the next double.

*Levels*, for each end of an interval: at level 0 it has a node of its own; at level j it is rounded outward to the next
node that reaches level j, so at level 1 to the ranges of the bottom, at higher ones to longer and longer ranges, and
above the tallest node there is no end. To escalate is to go up a level ("the lowest higher-level range that covers the
new range"), to deescalate to go down, where the last step may split a range.

Nodes stay until the next build, and there is room for so many of them: when it is used up, ends are rounded to nodes
that are there. Hanson and Johnson remove nodes that nobody needs. With values that never repeat that would be two nodes
for every update, each with dozens of markers to be set anew, for a precision that the postfilter does not need.

Invariants: keys grow along every level; the edges of an entry's markers are disjoint and make up the range between its
two nodes.
"""

from __future__ import annotations

import numpy as np

from . import postings
from .jit import bare, kernel
from .merge import gather
from .postfilter import interval
from .postings import AT, ENTRY, FILL, MARKERS_USED

# Columns of SkipList.node.
HEIGHT, EDGE = range(2)
MAX_HEIGHT = 12  # one node in four reaches the next level: enough for 16 million
# Entries of SkipList.spare: nodes and edges handed out; random state; ends that were rounded by much; then the tallest
# node of each group.
NODES, EDGES, RANDOM, ROUGH, TALLEST = range(5)


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
def node_at(ix, g, v):
    """The node with key ``v``, made if there is room, else -1: the ranges that it splits hand their entries to both."""
    lists = ix.postings.list
    n = _before(ix, g, v, 1)
    if ix.key[n] == v and n != header(g):
        return n
    height = _height(ix)
    new, edge = ix.spare[NODES], ix.spare[EDGES]
    crossing = 0
    for up in range(min(height, ix.spare[TALLEST + g])):
        crossing += lists[ix.node[ix.path[up], EDGE] + up, FILL]
    room = ix.postings.stock[MARKERS_USED] + 4 * crossing <= ix.postings.marker.shape[0]
    if new == ix.node.shape[0] or edge + height > ix.to.shape[0] or not room:
        return np.int64(-1)
    ix.spare[NODES] += 1
    ix.spare[EDGES] += height
    ix.key[new], ix.node[new, HEIGHT], ix.node[new, EDGE] = v, height, edge
    while ix.spare[TALLEST + g] < height:
        ix.path[ix.spare[TALLEST + g]] = header(g)
        ix.spare[TALLEST + g] += 1
    for up in range(height):
        left, right = np.int64(ix.node[ix.path[up], EDGE] + up), np.int64(edge + up)
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
def place(ix, g, k):
    """Place ``ix.want`` at level ``ix.aim``; 1, or 2 when that is the whole domain, or 0 when there is no room."""
    s = np.int64(ix.group[g])
    low, high = ix.want[s, 0], ix.want[s, 1]
    a, b = header(g), header(g) + 1
    tallest = ix.spare[TALLEST + g]
    if low > -np.inf and ix.aim[s, 0] <= tallest:
        a = node_at(ix, g, low) if ix.aim[s, 0] == 0 else np.int64(-1)
        if a < 0:
            a = _before(ix, g, low, max(1, np.int64(ix.aim[s, 0])))
    if high < np.inf and ix.aim[s, 1] <= tallest:
        b = node_at(ix, g, np.nextafter(high, np.inf)) if ix.aim[s, 1] == 0 else np.int64(-1)
        if b < 0:
            level = max(1, np.int64(ix.aim[s, 1]))
            b = np.int64(ix.to[ix.node[_before(ix, g, high, level), EDGE] + level - 1])
    ix.ends[k, g, 0], ix.ends[k, g, 1] = a, b
    ix.held[k, s, 0], ix.held[k, s, 1] = ix.key[a], np.nextafter(ix.key[b], -np.inf) if ix.key[b] < np.inf else np.inf
    for end in range(2):
        ix.level[k, s, end] = ix.aim[s, end]
        if ix.aim[s, end] == 0 and abs(ix.held[k, s, end] - ix.want[s, end]) > 0.125 * (high - low):
            ix.spare[ROUGH] += 1
    if a == header(g) and b == header(g) + 1:
        return 2
    return 1 if _mark(ix, g, k) else 0


@bare
def unplace(ix, g, k):
    """Take entry ``k`` out."""
    postings.drop(ix.postings, k, g)


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
def seed(ix, ids, world):
    """Make nodes at the ends of clauses ``ids``, while there is nothing to split."""
    for i in range(ids.shape[0]):
        for g in range(ix.group.shape[0] - 1):
            _, low, high = interval(np.int64(ids[i]), np.int64(ix.slot_attribute[ix.group[g]]), world)
            if np.isfinite(low):
                node_at(ix, g, low)
            if np.isfinite(high):
                node_at(ix, g, np.nextafter(high, np.inf))


@kernel
def check_structure(ix, ids, world):
    """Verify the invariants of the list; (code, clause, slot), 0 when all hold."""
    groups = ix.group.shape[0] - 1
    for g in range(groups):
        n = header(g)
        while n != header(g) + 1:
            for up in range(min(ix.node[n, HEIGHT], ix.spare[TALLEST + g])):
                if not ix.key[n] < ix.key[ix.to[ix.node[n, EDGE] + up]]:
                    return 16, -1, g
            n = np.int64(ix.to[ix.node[n, EDGE]])
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        for g in range(groups):
            if ix.postings.first[k, g] < 0:
                continue
            markers = 0
            m = ix.postings.first[k, g]
            while m >= 0:
                markers += 1
                m = ix.postings.marker[m, postings.AFTER]
            n, last = np.int64(ix.ends[k, g, 0]), np.int64(ix.ends[k, g, 1])
            while n != last:
                t = np.int64(-1)
                for up in range(ix.node[n, HEIGHT]):
                    if postings.has(ix.postings, np.int64(ix.node[n, EDGE] + up), k, g):
                        t = np.int64(ix.to[ix.node[n, EDGE] + up])
                        markers -= 1
                if t < 0 or markers < 0:
                    return 17, k, g
                n = t
            if markers != 0:
                return 17, k, g
    return 0, -1, -1
