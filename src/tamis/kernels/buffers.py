"""What the trees share: nodes with a number, a parent and a buffer (paper 000, section 5.4.2).

The buffer of a node is the list (see :mod:`tamis.kernels.postings`) of the same number. An entry is *exact* in a leaf,
at level 0, or *escalated* in the buffer of a node: at level 1 of its leaf, at level j of the node j - 1 steps above the
leaf, and above the root it needs no tree. A probe that visits a node returns all of its buffer. A node that does not
cover an entry cannot take it: to escalate it then goes on to the lowest ancestor that does, and when there is none
below where it was, to deescalate it goes into a leaf.
"""

from __future__ import annotations

import numpy as np

from . import postings
from .jit import bare
from .postings import AT, ENTRY, FILL

# Columns of the node table of every tree. The parent of a free node is the next free one.
CHILDREN, PARENT = range(2)


@bare
def levels(ix, g, k):
    """The one level that ``ix.aim`` means for all ends of a group, which rise and fall together, and the one before.

    Who wants an end higher than the entry was is escalating it, who wants an end lower deescalates it.
    """
    low, high, was = np.int64(127), np.int64(0), np.int64(0)
    for s in range(ix.group[g], ix.group[g + 1]):
        for end in range(2):
            low, high = min(low, np.int64(ix.aim[s, end])), max(high, np.int64(ix.aim[s, end]))
            was = max(was, np.int64(ix.level[k, s, end]))
    return high if high > was else low, was


@bare
def leaf(ix):
    """The level of leaves, at which GBU works."""
    return np.int64(1)


@bare
def extend(ix, g, k):
    """False: an entry that leaves its node, or its cells, has to be placed anew."""
    return False


@bare
def sink(ix, g, k, s, end, x):
    """The level to which an end goes that was met in vain: one down."""
    return max(np.int64(0), np.int64(ix.level[k, s, end]) - 1)


@bare
def set_level(ix, g, k, level):
    """Entry ``k`` is now at that level, with all of its ends."""
    for s in range(ix.group[g], ix.group[g + 1]):
        ix.level[k, s, 0], ix.level[k, s, 1] = level, level


@bare
def take_node(stock, used, free, node, limit):
    """A node of the kind that ``stock[used]`` and ``stock[free]`` count, below ``limit``; -1 when there is none."""
    n = stock[free]
    if n >= 0:
        stock[free] = node[n, PARENT]
    else:
        n = stock[used]
        if n == limit:
            return np.int64(-1)
        stock[used] += 1
    node[n, CHILDREN], node[n, PARENT] = 0, -1
    return n


@bare
def give_back(stock, free, node, n):
    """A node is free again."""
    node[n, CHILDREN], node[n, PARENT] = 0, stock[free]
    stock[free] = n


@bare
def is_hollow(ix, n):
    """Whether a node has no children or entries, and nothing in its buffer."""
    return ix.node[n, CHILDREN] == 0 and ix.postings.list[n, FILL] == 0


@bare
def buffered(ix, n, i):
    """Entry ``i`` of the buffer of a node."""
    return np.int64(ix.postings.marker[ix.postings.list[n, AT] + i, ENTRY])


@bare
def move_over(ix, g, k, into):
    """Entry ``k`` moves from the buffer it is in to another one; False, and it stays, when there is no room."""
    if not postings.add(ix.postings, into, k, g):
        return False
    postings.drop_one(ix.postings, k, g, np.int64(0))
    return True
