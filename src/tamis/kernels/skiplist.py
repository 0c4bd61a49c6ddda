"""Interval skip lists (Hanson and Johnson 1996), the structure of paper 000's experiments.

A *node* is a key, an *edge* leads from a node to the next one of at least its level: the range [key, next key). The
edges of a node lie beside each other and know the key they lead to, so that a search reads one cache line a node; the
number of a node is that of its first edge. Every edge has a list of entries. An entry that holds [low, high] has
markers on edges that together make up that range, the highest ones when it is placed, so a probe finds it on exactly
one edge of its way down. Ranges are half open: a closed end is the next double.

*Levels*, for each end of an interval: at level 0 it has a node of its own; at level j it is rounded outward to the next
node that reaches level j, so at level 1 to the ranges of the bottom, at higher ones to longer and longer ranges, and
above the tallest node there is no end. To escalate is to go up: from an exact place to a leaf, from there to the lowest
higher level whose range is as long as the way that the end went. To deescalate is to go down, to ranges that lack the
value that was found in vain; at level 0 a range may be split.

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
from .simd import prefetch

MAX_HEIGHT = 12  # one node in four reaches the next level: enough for 16 million
LARGEST = np.finfo(np.float64).max  # of a key: behind it there is only the node behind all others
# Entries of SkipList.spare: edges handed out; random state; ends that were rounded by much; then the tallest node of
# each group.
EDGES, RANDOM, ROUGH, TALLEST = range(4)
NO_ROOM, DONE, TOO_MANY = range(3)


@bare
def header(g):
    """The node before all others of a group."""
    return np.int64(g) * (MAX_HEIGHT + 1)


@bare
def tail(g):
    """The node behind all others of a group."""
    return header(g) + MAX_HEIGHT


@bare
def _before(ix, g, v, level):
    """The last node that reaches ``level`` (from 1) with a key <= v; the nodes above it go to ``ix.path``."""
    n, v, to, beyond = header(g), min(v, LARGEST), ix.to, ix.beyond
    for up in range(ix.spare[TALLEST + g] - 1, level - 2, -1):
        while beyond[n + up] <= v:
            n = np.int64(to[n + up])
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
    new, height = ix.spare[EDGES], _height(ix)
    if new + height > ix.to.shape[0]:
        return np.int64(-1)
    crossing = 0
    for up in range(min(height, ix.spare[TALLEST + g])):
        crossing += lists[ix.path[up] + up, FILL]
    room = ix.postings.stock[MARKERS_USED] + 4 * crossing <= ix.postings.marker.shape[0]
    for up in range(min(height, ix.spare[TALLEST + g])):
        left = np.int64(ix.path[up]) + up
        for i in range(lists[left, FILL]):
            room = room and postings.may_add(ix.postings, np.int64(ix.postings.marker[lists[left, AT] + i, ENTRY]), g)
    if not room:
        return np.int64(-1)
    ix.spare[EDGES] += height
    ix.key[new], ix.height[new] = v, height
    while ix.spare[TALLEST + g] < height:
        ix.path[ix.spare[TALLEST + g]] = header(g)
        ix.spare[TALLEST + g] += 1
    for up in range(height):
        left, right = np.int64(ix.path[up]) + up, new + up
        ix.to[right], ix.to[left] = ix.to[left], new
        ix.beyond[right], ix.beyond[left] = ix.beyond[left], v
        for i in range(lists[left, FILL]):
            postings.add(ix.postings, right, np.int64(ix.postings.marker[lists[left, AT] + i, ENTRY]), g)
    return new


@bare
def _mark(ix, g, k, n, last):
    """Put markers of entry ``k`` on the highest edges from node ``n`` to node ``last``: DONE, TOO_MANY, or NO_ROOM."""
    end, lists, edges = ix.key[last], ix.postings.list, ix.edges
    count, most = 0, edges.shape[0] - np.int64(ix.postings.used[k, g])
    while n != last:
        up = min(np.int64(ix.height[n]), ix.spare[TALLEST + g]) - 1
        while up > 0 and ix.beyond[n + up] > end:
            up -= 1
        if count == most:
            return TOO_MANY
        edges[count] = n + up
        prefetch(lists, (n + up) * 3)
        count += 1
        n = np.int64(ix.to[n + up])
    for i in range(count):
        prefetch(ix.postings.marker, np.int64(lists[edges[i], AT] + lists[edges[i], FILL]) * 2)
    for i in range(count):
        if not postings.add(ix.postings, np.int64(edges[i]), k, g):
            return NO_ROOM
    return DONE


@bare
def _low_node(ix, g, low, level):
    """The node from which a range on that begins at ``low`` is marked."""
    if low == -np.inf or level > ix.spare[TALLEST + g]:
        return header(g)
    n = node_at(ix, g, low) if level == 0 else np.int64(-1)
    return n if n >= 0 else _before(ix, g, low, max(1, level))


@bare
def _high_node(ix, g, high, level):
    """The node up to which a range that ends at ``high`` is marked."""
    if high >= LARGEST or level > ix.spare[TALLEST + g]:
        return tail(g)
    n = node_at(ix, g, np.nextafter(high, np.inf)) if level == 0 else np.int64(-1)
    level = max(1, level)
    return n if n >= 0 else np.int64(ix.to[_before(ix, g, high, level) + level - 1])


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
        a = _low_node(ix, g, ix.want[s, 0], np.int64(ix.aim[s, 0]))
        b = _high_node(ix, g, ix.want[s, 1], np.int64(ix.aim[s, 1]))
        if a == header(g) and b == tail(g):
            return 2
        marked = _mark(ix, g, k, a, b)
        if marked == DONE:
            _hold(ix, g, k, a, b)
            return 1
        postings.drop(ix.postings, k, g)
        if marked == NO_ROOM:
            return 0
        for end in range(2):  # longer ranges are fewer
            ix.aim[s, end] = min(MAX_HEIGHT + 1, ix.aim[s, end] + 1)


@bare
def _rise(ix, g, k, end):
    """Raise ``ix.aim`` of an end that was left to the lowest level whose range is as long as the way it went.

    The lowest range that covers the old end as well would often be far longer: wherever a tall node lies in between.
    Returns the node at the new end.
    """
    s = np.int64(ix.group[g])
    level, above = np.int64(ix.aim[s, end]), top(ix, g)
    way = abs(ix.want[s, end] - ix.held[k, s, end])
    if level < above and way < np.inf:
        _before(ix, g, ix.want[s, end], level)
        while level < above:
            n = np.int64(ix.path[level - 1])
            if ix.beyond[n + level - 1] - ix.key[n] >= way:
                ix.aim[s, end] = level
                return np.int64(ix.to[n + level - 1]) if end == 1 else n
            level += 1
    ix.aim[s, end] = above
    return tail(g) if end == 1 else header(g)


@bare
def leaf(ix):
    """The level at which GBU works: a leaf is what lies between two nodes of level 2, four ranges on average."""
    return np.int64(2)


@bare
def extend(ix, g, k):
    """Escalate an entry that is placed: an end that was left rises, and what is new gets markers.

    The rest stays, so that E(i) contains K(i) as in paper 000. False when the entry has to be placed anew: when there
    is no room, and when an end has left an exact place. One update is no evidence of more to come: it goes to a leaf.
    """
    s = np.int64(ix.group[g])
    a, b = np.int64(ix.ends[k, g, 0]), np.int64(ix.ends[k, g, 1])
    old_a, old_b = a, b
    below, above = ix.want[s, 0] < ix.held[k, s, 0], ix.want[s, 1] > ix.held[k, s, 1]
    if (below and ix.level[k, s, 0] < leaf(ix)) or (above and ix.level[k, s, 1] < leaf(ix)):
        for end in range(2):
            ix.aim[s, end] = max(leaf(ix), np.int64(ix.level[k, s, end]))
        return False
    if below:
        a = _rise(ix, g, k, 0)
    if above:
        b = _rise(ix, g, k, 1)
    if a == header(g) and b == tail(g):
        return False
    if _mark(ix, g, k, a, old_a) != DONE or _mark(ix, g, k, old_b, b) != DONE:
        return False
    _hold(ix, g, k, a, b)
    return True


@bare
def sink(ix, g, k, s, end, x):
    """The level to which an end goes that was met in vain at ``x``: the highest lower one whose range lacks ``x``."""
    level = min(ix.spare[TALLEST + g], np.int64(ix.level[k, s, end]) - 1)
    if level < 1:
        return np.int64(0)
    _before(ix, g, ix.want[s, end], 1)
    while level > 0:
        n = np.int64(ix.path[level - 1])
        if ix.beyond[n + level - 1] <= x if end == 1 else x < ix.key[n]:
            break
        level -= 1
    return level


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
        while ix.beyond[n + up] <= x:
            n = np.int64(ix.to[n + up])
        gather(ix, n + up, g)


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
        while n != tail(g):
            for up in range(min(ix.height[n], ix.spare[TALLEST + g])):
                if not (ix.key[n] < ix.beyond[n + up] and ix.beyond[n + up] == ix.key[ix.to[n + up]]):
                    return 16, -1, g
            n = np.int64(ix.to[n])
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        for g in range(groups):
            markers = np.int64(ix.postings.used[k, g])
            if markers == 0:
                continue
            n, last = np.int64(ix.ends[k, g, 0]), np.int64(ix.ends[k, g, 1])
            while n != last:
                t = np.int64(-1)
                for up in range(ix.height[n]):
                    if postings.has(ix.postings, n + up, k, g):
                        t = np.int64(ix.to[n + up])
                        markers -= 1
                if t < 0 or markers < 0:
                    return 17, k, g
                n = t
            if markers != 0:
                return 17, k, g
    return 0, -1, -1
