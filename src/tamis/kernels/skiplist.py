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
LARGEST = np.finfo(np.float64).max  # of a key: behind it there is only the node behind all others
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
    n, v = header(g), min(v, LARGEST)
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
    v = min(v, LARGEST)
    n = _before(ix, g, v, 1)
    if ix.key[n] == v and n != header(g):
        return n
    height = _height(ix)
    new, edge = ix.spare[NODES], ix.spare[EDGES]
    crossing = 0
    for up in range(min(height, ix.spare[TALLEST + g])):
        crossing += lists[ix.node[ix.path[up], EDGE] + up, FILL]
    room = ix.postings.stock[MARKERS_USED] + 4 * crossing <= ix.postings.marker.shape[0]
    for up in range(min(height, ix.spare[TALLEST + g])):
        left = np.int64(ix.node[ix.path[up], EDGE] + up)
        for i in range(lists[left, FILL]):
            room = room and postings.may_add(ix.postings, np.int64(ix.postings.marker[lists[left, AT] + i, ENTRY]), g)
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
def _mark(ix, g, k, n, last):
    """Put markers of entry ``k`` on the highest edges from node ``n`` to node ``last``; False when there is no room."""
    end = ix.key[last]
    while n != last:
        up = min(np.int64(ix.node[n, HEIGHT]), ix.spare[TALLEST + g]) - 1
        edge = np.int64(ix.node[n, EDGE])
        while up > 0 and ix.key[ix.to[edge + up]] > end:
            up -= 1
        if not postings.add(ix.postings, edge + up, k, g):
            return False
        n = np.int64(ix.to[edge + up])
    return True


@bare
def _nodes_for(ix, g):
    """The nodes between which ``ix.want`` lies at level ``ix.aim``."""
    s = np.int64(ix.group[g])
    low, high = ix.want[s, 0], ix.want[s, 1]
    a, b = header(g), header(g) + 1
    if low > -np.inf and ix.aim[s, 0] <= ix.spare[TALLEST + g]:
        a = node_at(ix, g, low) if ix.aim[s, 0] == 0 else np.int64(-1)
        if a < 0:
            a = _before(ix, g, low, max(1, np.int64(ix.aim[s, 0])))
    if high < LARGEST and ix.aim[s, 1] <= ix.spare[TALLEST + g]:
        b = node_at(ix, g, np.nextafter(high, np.inf)) if ix.aim[s, 1] == 0 else np.int64(-1)
        if b < 0:
            level = max(1, np.int64(ix.aim[s, 1]))
            b = np.int64(ix.to[ix.node[_before(ix, g, high, level), EDGE] + level - 1])
    return a, b


@bare
def _hold(ix, g, k, a, b):
    """Entry ``k`` lies between nodes ``a`` and ``b``."""
    s = np.int64(ix.group[g])
    ix.ends[k, g, 0], ix.ends[k, g, 1] = a, b
    ix.held[k, s, 0], ix.held[k, s, 1] = ix.key[a], np.nextafter(ix.key[b], -np.inf) if ix.key[b] < np.inf else np.inf
    width = ix.want[s, 1] - ix.want[s, 0]
    for end in range(2):
        ix.level[k, s, end] = ix.aim[s, end]
        if ix.aim[s, end] == 0 and abs(ix.held[k, s, end] - ix.want[s, end]) > 0.125 * width:
            ix.spare[ROUGH] += 1


@bare
def place(ix, g, k):
    """Place ``ix.want`` at level ``ix.aim``; 1, or 2 when that is the whole domain, or 0 when there is no room."""
    s = np.int64(ix.group[g])
    while True:
        a, b = _nodes_for(ix, g)
        if a == header(g) and b == header(g) + 1:
            return 2
        if _mark(ix, g, k, a, b):
            _hold(ix, g, k, a, b)
            return 1
        many = not postings.may_add(ix.postings, k, g)
        postings.drop(ix.postings, k, g)
        if not many:
            return 0
        for end in range(2):  # longer ranges are fewer
            ix.aim[s, end] = min(MAX_HEIGHT + 1, ix.aim[s, end] + 1)


@bare
def extend(ix, g, k):
    """As ``place`` for an entry that is placed: when its range only grows, what is new gets markers, the rest stays."""
    a, b = _nodes_for(ix, g)
    old_a, old_b = np.int64(ix.ends[k, g, 0]), np.int64(ix.ends[k, g, 1])
    grows = ix.key[a] <= ix.key[old_a] and ix.key[old_b] <= ix.key[b]
    if not grows or (a == header(g) and b == header(g) + 1):
        return False
    if not (_mark(ix, g, k, a, old_a) and _mark(ix, g, k, old_b, b)):
        return False
    _hold(ix, g, k, a, b)
    return True


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
    n, x = header(g), min(x, LARGEST)
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
            markers = np.int64(ix.postings.used[k, g])
            if markers == 0:
                continue
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
