"""B+-trees of intervals with a buffer in every node (paper 000, section 5.4.2).

One tree per slot. Entries lie in leaves by (lower end, upper end, number), which is unique, so that a leaf can always
be split, and entries without a lower end lie by their upper one. A leaf keeps the ends beside the numbers, in no order:
a probe scans it as a whole. An inner node keeps for every child the least key that may lie below it, and its *cap*, the
largest upper end below it. A message's value x visits the nodes with ``from <= x <= cap``.

*Levels*: at 0 an entry is in a leaf and is returned for its very interval. Above, it is in the buffer of a node, and
returned for all of [from, cap] of that node: nothing is compared, and while its interval stays in that range nothing
moves. See :mod:`tamis.kernels.buffers` for which node. An entry that ends beyond the cap goes to the lowest ancestor
that covers it.

When a node splits, buffered entries that neither half covers go to the parent's buffer (or stay, and the cap of their
half with them, when there is no room for that). Nodes are freed when they are empty, never merged: Johnson and Shasha
(1993) show that under mixed inserts and deletes that wastes little space and saves most restructuring. All leaves have
the same depth. The first child of a node stays though it be empty, so that ``from`` of a node never changes.

Invariants: ``from`` of a node is the lower end of its least key, for a first child that of its parent; ``cap`` is the
maximum of what is below and of ``load``, which is at least what any entry of the buffer holds; an entry is in one
place.
"""

from __future__ import annotations

import numpy as np

from . import postings
from .buffers import CHILDREN, PARENT, buffered, give_back, is_hollow, levels, move_over, set_level, take_node
from .jit import bare, kernel
from .merge import LOW6, SIX, gather
from .postings import FILL

LEAF, FAN = 32, 16  # entries of a leaf; children of an inner node
MAX_HEIGHT = 16
# Columns of BTree.span.
FROM, CAP, LOAD = range(3)
# Columns of BTree.tree.
ROOT, HEIGHT = range(2)
# Entries of BTree.spare: leaves handed out, first free one; inner nodes handed out, first free one, all that are free.
LEAVES, FREE_LEAF, INNERS, FREE_INNER, INNERS_LEFT = range(5)
STACK = MAX_HEIGHT * FAN


@bare
def _leaves(ix):
    """The number of leaves there may be; the nodes behind them are inner ones."""
    return np.int64(ix.entry.shape[0])


@bare
def _new_leaf(ix):
    return take_node(ix.spare, LEAVES, FREE_LEAF, ix.node, _leaves(ix))


@bare
def _new_inner(ix):
    n = take_node(ix.spare, INNERS, FREE_INNER, ix.node, np.int64(ix.node.shape[0]))
    ix.spare[INNERS_LEFT] -= n >= 0
    return n


@bare
def _free(ix, n):
    if n < _leaves(ix):
        give_back(ix.spare, FREE_LEAF, ix.node, n)
    else:
        give_back(ix.spare, FREE_INNER, ix.node, n)
        ix.spare[INNERS_LEFT] += 1


# -- the way down, and the caps on the way up ------------------------------------------------------------------


@bare
def _position(ix, p, n):
    """Which child of ``p`` node ``n`` is."""
    v = p - _leaves(ix)
    i = 0
    while ix.child[v, i] != n:
        i += 1
    return i


@bare
def _is_before(low, high, k, low2, high2, k2):
    """Whether one key comes before another."""
    if low != low2:
        return low < low2
    if high != high2:
        return high < high2
    return k < k2


@bare
def _leaf_for(ix, g, low, high, k):
    """The leaf whose range of keys holds a key."""
    n, leaves = np.int64(ix.tree[g, ROOT]), _leaves(ix)
    while n >= leaves:
        v = n - leaves
        i = ix.node[n, CHILDREN] - 1
        while i > 0 and _is_before(low, high, k, ix.key[v, 0, i], ix.key[v, 1, i], np.int64(ix.key_entry[v, i])):
            i -= 1
        n = np.int64(ix.child[v, i])
    return n


@bare
def _set_cap(ix, n, cap):
    """The cap of a node, also where its parent reads it; returns the parent."""
    ix.span[n, CAP] = cap
    p = np.int64(ix.node[n, PARENT])
    if p >= 0:
        ix.cap[p - _leaves(ix), _position(ix, p, n)] = cap
    return p


@bare
def _raise_caps(ix, n, cap):
    """Something below ``n`` ends at ``cap``."""
    while n >= 0 and ix.span[n, CAP] < cap:
        n = _set_cap(ix, n, cap)


@bare
def _cap_of(ix, n):
    """The cap of a node by what is in it and below it."""
    cap, leaves = ix.span[n, LOAD], _leaves(ix)
    for i in range(ix.node[n, CHILDREN]):
        cap = max(cap, ix.high[n, i] if n < leaves else ix.cap[n - leaves, i])
    return cap


@bare
def _lower_caps(ix, n):
    """Something has left ``n``."""
    while n >= 0:
        cap = _cap_of(ix, n)
        if cap == ix.span[n, CAP]:
            return
        n = _set_cap(ix, n, cap)


# -- splits ----------------------------------------------------------------------------------------------------


@bare
def _sort_leaf(ix, n):
    """Sort the entries of a leaf by key."""
    low, high, entry = ix.low, ix.high, ix.entry
    for i in range(1, ix.node[n, CHILDREN]):
        a, b, k = low[n, i], high[n, i], entry[n, i]
        j = i
        while j > 0 and _is_before(a, b, np.int64(k), low[n, j - 1], high[n, j - 1], np.int64(entry[n, j - 1])):
            low[n, j], high[n, j], entry[n, j] = low[n, j - 1], high[n, j - 1], entry[n, j - 1]
            j -= 1
        low[n, j], high[n, j], entry[n, j] = a, b, k


@bare
def _insert_child(ix, p, i, n, low, high, k):
    """Node ``n`` becomes child ``i`` of ``p``; its least key is given."""
    v = p - _leaves(ix)
    for j in range(np.int64(ix.node[p, CHILDREN]), i, -1):
        ix.key[v, 0, j], ix.key[v, 1, j] = ix.key[v, 0, j - 1], ix.key[v, 1, j - 1]
        ix.key_entry[v, j], ix.child[v, j], ix.cap[v, j] = ix.key_entry[v, j - 1], ix.child[v, j - 1], ix.cap[v, j - 1]
    ix.key[v, 0, i], ix.key[v, 1, i], ix.key_entry[v, i] = low, high, k
    ix.child[v, i], ix.cap[v, i] = n, ix.span[n, CAP]
    ix.node[n, PARENT] = p
    ix.node[p, CHILDREN] += 1


@bare
def _share_buffer(ix, g, n, new, p):
    """Node ``n`` has given half of itself to ``new``: its buffered entries stay, go along, or go up to ``p``."""
    s = np.int64(ix.group[g])
    own = _cap_of(ix, n)
    load = -np.inf
    i = 0
    while i < ix.postings.list[n, FILL]:
        k = buffered(ix, n, i)
        low, high = ix.held[k, s, 0], ix.held[k, s, 1]
        into = np.int64(-1)
        if high > own:
            into = new if ix.span[new, FROM] <= low and high <= ix.span[new, CAP] else p
        if into < 0:
            load = max(load, high)
            i += 1
            continue
        if not move_over(ix, g, k, into):
            load, own = max(load, high), max(own, high)
            i += 1
        elif into == new:
            ix.span[new, LOAD] = max(ix.span[new, LOAD], high)
        else:
            # The parent covers more, so the entry may hold more.
            ix.held[k, s, 0], ix.held[k, s, 1] = ix.span[p, FROM], ix.span[p, CAP]
            ix.span[p, LOAD] = max(ix.span[p, LOAD], ix.span[p, CAP])
            set_level(ix, g, k, np.int64(ix.level[k, s, 0]) + 1)
    ix.span[n, LOAD] = load


@bare
def _split(ix, g, n):
    """Split a full node whose parent has room: the upper half of its keys moves to a new node."""
    leaves = _leaves(ix)
    p = np.int64(ix.node[n, PARENT])
    count = np.int64(ix.node[n, CHILDREN])
    half = count >> 1
    if n < leaves:
        new = _new_leaf(ix)
        _sort_leaf(ix, n)
        low, high, first = ix.low[n, half], ix.high[n, half], np.int64(ix.entry[n, half])
        for i in range(half, count):
            k = np.int64(ix.entry[n, i])
            ix.low[new, i - half], ix.high[new, i - half], ix.entry[new, i - half] = ix.low[n, i], ix.high[n, i], k
            ix.home[k, g] = new
        ix.node[new, CHILDREN] = count - half
    else:
        new = _new_inner(ix)
        v = n - leaves
        low, high, first = ix.key[v, 0, half], ix.key[v, 1, half], np.int64(ix.key_entry[v, half])
        for i in range(half, count):
            c = np.int64(ix.child[v, i])
            _insert_child(ix, new, i - half, c, ix.key[v, 0, i], ix.key[v, 1, i], np.int64(ix.key_entry[v, i]))
    ix.node[n, CHILDREN] = half
    ix.span[new, FROM], ix.span[new, LOAD] = low, -np.inf
    ix.span[new, CAP] = _cap_of(ix, new)
    _insert_child(ix, p, _position(ix, p, n) + 1, new, low, high, first)
    ix.span[n, LOAD] = -np.inf
    _share_buffer(ix, g, n, new, p)
    _set_cap(ix, n, _cap_of(ix, n))
    _lower_caps(ix, p)


@bare
def _make_room(ix, g, n):
    """Split leaf ``n`` and, from the top down, whatever is full above it; False when there is no room."""
    if (ix.spare[FREE_LEAF] < 0 and ix.spare[LEAVES] == _leaves(ix)) or ix.tree[g, HEIGHT] == MAX_HEIGHT:
        return False
    if ix.spare[INNERS_LEFT] < ix.tree[g, HEIGHT] + 1:
        return False
    ix.path[0] = n
    full = 0
    p = np.int64(ix.node[n, PARENT])
    while p >= 0 and ix.node[p, CHILDREN] == FAN:
        full += 1
        ix.path[full] = p
        p = np.int64(ix.node[p, PARENT])
    if p < 0:
        old = np.int64(ix.tree[g, ROOT])
        p = _new_inner(ix)
        ix.span[p, FROM], ix.span[p, CAP], ix.span[p, LOAD] = -np.inf, ix.span[old, CAP], -np.inf
        _insert_child(ix, p, 0, old, -np.inf, -np.inf, np.int64(-1))
        ix.tree[g, ROOT] = p
        ix.tree[g, HEIGHT] += 1
    while full >= 0:
        _split(ix, g, np.int64(ix.path[full]))
        full -= 1
    return True


# -- what the layer calls --------------------------------------------------------------------------------------


@bare
def place(ix, g, k):
    """Place ``ix.want`` at level ``ix.aim``; 1, or 2 when that is the whole domain, or 0 when there is no room."""
    s = np.int64(ix.group[g])
    low, high = ix.want[s, 0], ix.want[s, 1]
    level, was = levels(ix, g, k)
    ix.home[k, g] = -1
    if level > ix.tree[g, HEIGHT]:
        return 2
    leaf = _leaf_for(ix, g, low, high, k)
    n, up = leaf, np.int64(1)
    while level > 0 and ix.node[n, PARENT] >= 0 and (up < level or ix.span[n, CAP] < high):
        n = np.int64(ix.node[n, PARENT])
        up += 1
    if level == 0 or (level < was and was <= up):
        n, level = leaf, np.int64(0)
        if ix.node[n, CHILDREN] == LEAF:
            if not _make_room(ix, g, n):
                return 0
            n = _leaf_for(ix, g, low, high, k)
        i = ix.node[n, CHILDREN]
        ix.low[n, i], ix.high[n, i], ix.entry[n, i] = low, high, k
        ix.node[n, CHILDREN] = i + 1
        ix.home[k, g] = n
        _raise_caps(ix, n, high)
        ix.held[k, s, 0], ix.held[k, s, 1] = low, high
    else:
        level = up
        cap = max(high, ix.span[n, CAP])
        if ix.span[n, FROM] == -np.inf and cap == np.inf:
            return 2
        if not postings.add(ix.postings, n, k, g):
            return 0
        ix.span[n, LOAD] = max(ix.span[n, LOAD], cap)
        _raise_caps(ix, n, cap)
        ix.held[k, s, 0], ix.held[k, s, 1] = ix.span[n, FROM], cap
    set_level(ix, g, k, level)
    return 1


@bare
def _lowest(ix, n):
    """The node itself, or what is below it while that is an only child."""
    while n >= _leaves(ix) and ix.node[n, CHILDREN] == 1:
        n = np.int64(ix.child[n - _leaves(ix), 0])
    return n


@bare
def _remove_child(ix, p, i):
    """Child ``i`` of ``p``, not the first, and all that hangs on it, only children without content, are free."""
    v = p - _leaves(ix)
    n = _lowest(ix, np.int64(ix.child[v, i]))
    while n != p:
        above = np.int64(ix.node[n, PARENT])
        _free(ix, n)
        n = above
    for j in range(i, ix.node[p, CHILDREN] - 1):
        ix.key[v, 0, j], ix.key[v, 1, j] = ix.key[v, 0, j + 1], ix.key[v, 1, j + 1]
        ix.key_entry[v, j], ix.child[v, j] = ix.key_entry[v, j + 1], ix.child[v, j + 1]
        ix.cap[v, j] = ix.cap[v, j + 1]
    ix.node[p, CHILDREN] -= 1


@bare
def _prune(ix, g, n):
    """Free empty nodes, from a leaf ``n`` upwards, and roots with one child."""
    n = _lowest(ix, n)
    while is_hollow(ix, n):
        p = np.int64(ix.node[n, PARENT])
        while p >= 0 and ix.node[p, CHILDREN] == 1 and ix.postings.list[p, FILL] == 0:
            n, p = p, np.int64(ix.node[p, PARENT])
        i = _position(ix, p, n) if p >= 0 else 0
        if i == 0:
            break
        _remove_child(ix, p, i)
        n = _lowest(ix, p)  # the first child may have been waiting, empty, for its siblings to go
    root = np.int64(ix.tree[g, ROOT])
    while ix.node[root, CHILDREN] == 1 and root >= _leaves(ix) and ix.postings.list[root, FILL] == 0:
        ix.tree[g, ROOT] = ix.child[root - _leaves(ix), 0]
        ix.tree[g, HEIGHT] -= 1
        _free(ix, root)
        root = np.int64(ix.tree[g, ROOT])
        ix.node[root, PARENT] = -1


@bare
def unplace(ix, g, k):
    """Take entry ``k`` out."""
    n = np.int64(ix.home[k, g])
    if n >= 0:
        i, last = 0, ix.node[n, CHILDREN] - 1
        while ix.entry[n, i] != k:
            i += 1
        high = ix.high[n, i]
        ix.low[n, i], ix.high[n, i], ix.entry[n, i] = ix.low[n, last], ix.high[n, last], ix.entry[n, last]
        ix.node[n, CHILDREN] = last
        ix.home[k, g] = -1
        if high == ix.span[n, CAP]:
            _lower_caps(ix, n)
        if last == 0:
            _prune(ix, g, n)
    elif ix.postings.used[k, g] > 0:
        n = np.int64(ix.postings.marks[k, g, 0])
        postings.drop(ix.postings, k, g)
        if ix.postings.list[n, FILL] == 0:
            ix.span[n, LOAD] = -np.inf
            _lower_caps(ix, n)
            _prune(ix, g, n)


@bare
def _scan(ix, n, x, g):
    """The entries of leaf ``n`` that hold ``x``, into the merge. Half of them do: branches would be mispredicted."""
    bits, brief, low, high, entry = ix.bits, ix.brief, ix.low, ix.high, ix.entry
    into = g & 1
    for i in range(ix.node[n, CHILDREN]):
        k = np.uint64(entry[n, i])
        word, bit = k >> SIX, k & LOW6
        hit = np.uint64(low[n, i] <= x) & np.uint64(x <= high[n, i])
        if g > 0:
            hit &= bits[1 - into, word] >> bit
        bits[into, word] |= hit << bit
        brief[into, word >> SIX] |= hit << (word & LOW6)


@bare
def collect(ix, g, m, world):
    """All entries of group ``g`` that hold the message's value, into the merge."""
    x = world.messages.value[m, ix.slot_attribute[ix.group[g]]]
    n = np.int64(ix.tree[g, ROOT])
    if not (x <= ix.span[n, CAP]):  # nor when there is no value
        return
    path, key, cap, child, node = ix.path, ix.key, ix.cap, ix.child, ix.node
    leaves = _leaves(ix)
    path[0], depth = n, 1
    while depth > 0:
        depth -= 1
        n = np.int64(path[depth])
        if ix.postings.list[n, FILL] > 0:
            gather(ix, n, g)
        if n < leaves:
            _scan(ix, n, x, g)
            continue
        v = n - leaves
        for i in range(node[n, CHILDREN]):
            if i > 0 and key[v, 0, i] > x:
                break
            if x <= cap[v, i]:
                path[depth] = child[v, i]
                depth += 1


@bare
def top(ix, g):
    """The level at which an entry is returned always."""
    return np.int64(ix.tree[g, HEIGHT]) + 1


# -- verification ----------------------------------------------------------------------------------------------


@bare
def _is_found(ix, n, low, high):
    """Whether a probe for either end comes by node ``n``."""
    leaves = _leaves(ix)
    while n >= 0:
        if not (ix.span[n, FROM] <= low and high <= ix.span[n, CAP]):
            return False
        p = np.int64(ix.node[n, PARENT])
        if p >= 0:
            i = _position(ix, p, n)
            first = ix.span[p, FROM] if i == 0 else ix.key[p - leaves, 0, i]
            if ix.span[n, FROM] != first or ix.cap[p - leaves, i] != ix.span[n, CAP]:
                return False
        n = p
    return True


@bare
def _check_node(ix, g, n, level):
    """Verify one node, and of its children that they are in order; a code, 0 when all is well."""
    s, leaves, count = np.int64(ix.group[g]), _leaves(ix), np.int64(ix.node[n, CHILDREN])
    if ix.span[n, CAP] != _cap_of(ix, n) or (ix.span[n, LOAD] > -np.inf and ix.postings.list[n, FILL] == 0):
        return 19
    if (n < leaves) != (level == 1) or (n >= leaves and (count < 1 or count > FAN)):
        return 20
    for i in range(ix.postings.list[n, FILL]):
        k = buffered(ix, n, np.int64(i))
        if ix.state[k, g] != 1 or ix.home[k, g] >= 0 or ix.level[k, s, 0] != level:
            return 18
        if ix.held[k, s, 1] > ix.span[n, LOAD] or not _is_found(ix, n, ix.held[k, s, 0], ix.held[k, s, 1]):
            return 19
    for i in range(count):
        if n < leaves:
            k = np.int64(ix.entry[n, i])
            if ix.state[k, g] != 1 or ix.home[k, g] != n or ix.postings.used[k, g] > 0 or ix.level[k, s, 0] != 0:
                return 18
            if ix.low[n, i] != ix.held[k, s, 0] or ix.high[n, i] != ix.held[k, s, 1]:
                return 18
            if not _is_found(ix, n, ix.low[n, i], ix.high[n, i]):
                return 19
            if _leaf_for(ix, g, ix.low[n, i], ix.high[n, i], k) != n:
                return 16
        else:
            v, c = n - leaves, np.int64(ix.child[n - leaves, i])
            if ix.node[c, PARENT] != n:
                return 20
            if i > 1 and not _is_before(
                ix.key[v, 0, i - 1],
                ix.key[v, 1, i - 1],
                np.int64(ix.key_entry[v, i - 1]),
                ix.key[v, 0, i],
                ix.key[v, 1, i],
                np.int64(ix.key_entry[v, i]),
            ):
                return 16
    return 0


@kernel
def check_structure(ix, ids, world):
    """Verify the invariants of the trees; (code, clause, slot), 0 when all hold."""
    leaves = _leaves(ix)
    inners = np.int64(0)
    for g in range(ix.group.shape[0] - 1):
        todo = np.empty((ix.node.shape[0], 2), np.int64)
        todo[0, 0], todo[0, 1] = ix.tree[g, ROOT], ix.tree[g, HEIGHT]
        left, met = 1, 0
        if ix.node[ix.tree[g, ROOT], PARENT] >= 0 or ix.span[ix.tree[g, ROOT], FROM] != -np.inf:
            return 20, -1, g
        while left > 0:
            left -= 1
            n, level = todo[left, 0], todo[left, 1]
            code = _check_node(ix, g, n, level)
            if code:
                return code, -1, g
            met += ix.postings.list[n, FILL]
            if n < leaves:
                met += ix.node[n, CHILDREN]
                continue
            inners += 1
            for i in range(ix.node[n, CHILDREN]):
                todo[left, 0], todo[left, 1] = ix.child[n - leaves, i], level - 1
                left += 1
        placed = 0
        for i in range(ids.shape[0]):
            placed += ix.state[ids[i], g] == 1
            if ix.state[ids[i], g] == 1 and (ix.home[ids[i], g] >= 0) == (ix.postings.used[ids[i], g] > 0):
                return 18, ids[i], g
        if met != placed:
            return 18, -1, g
    if inners + ix.spare[INNERS_LEFT] != ix.node.shape[0] - leaves:
        return 20, -1, -1
    return 0, -1, -1
