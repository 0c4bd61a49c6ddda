"""R-trees with a buffer in every node (Guttman 1984; paper 000, section 5.4.2).

One tree for all indexed slots: a group of its own. The entries of a leaf are the boxes of clauses, the children of an
inner node the bounding boxes of the nodes below; both lie slot by slot beside each other, so that a probe tests all of
a node at once. A side without a bound is infinite. A message that lacks an attribute meets only boxes that are
unbounded on its slot, on both sides.

*Levels*: at 0 an entry is in a leaf and is returned for its very box. Above, it is in the buffer of a node and returned
for all of the node's box, as :mod:`tamis.kernels.buffers` says; when that box does not cover it, it goes to the lowest
ancestor whose box does.

Insertion goes where the box grows least. A full node is split as in the R*-tree: along the slot, and at the cut, where
the halves overlap least. That costs a sort per slot, no more than Guttman's quadratic split, and overlap is what a
probe pays for. There is no forced reinsertion: entries that move all the time are reinserted all the time. Sizes are
measured inside the part of the domain where bounds lay at the build (``unit``), for an infinite box has no size.

When a node splits, buffered entries that neither half covers go to the parent's buffer (or stay, and the box of their
half with them, when there is no room for that). Nodes are freed when they are empty, never merged; boxes shrink as soon
as what touched their border leaves. All leaves have the same depth.

Invariants: the box of a node is the hull of its children and of its ``load``, and its parent has the same; the load
covers what the entries of its buffer hold; an entry is in one place.
"""

from __future__ import annotations

import numpy as np

from . import postings
from .buffers import CHILDREN, PARENT, buffered, give_back, is_hollow, levels, move_over, set_level, take_node
from .jit import bare, kernel
from .merge import add_one, gather
from .postings import FILL

FAN = 16
LEAST = 6  # that a half of a split gets
MAX_HEIGHT = 16
STACK = MAX_HEIGHT * FAN
HEIGHT_OF = 2  # column of RTree.node behind those of every tree: 1 for a leaf
# Columns of RTree.tree.
ROOT, HEIGHT = range(2)
# Entries of RTree.spare: nodes handed out, first free one, all that are free.
NODES, FREE, LEFT = range(3)
THIN = 1e-3  # of the domain, added to every edge: boxes without an extent in one slot differ in others


@bare
def _new_node(ix, height):
    n = take_node(ix.spare, NODES, FREE, ix.node, np.int64(ix.node.shape[0]))
    ix.spare[LEFT] -= n >= 0
    ix.node[n, HEIGHT_OF] = height
    _empty(ix.load, n)
    _empty(ix.hull, n)
    return n


@bare
def _free(ix, n):
    give_back(ix.spare, FREE, ix.node, n)
    ix.spare[LEFT] += 1


# -- boxes -----------------------------------------------------------------------------------------------------


@bare
def _empty(boxes, n):
    for s in range(boxes.shape[1]):
        boxes[n, s, 0], boxes[n, s, 1] = np.inf, -np.inf


@bare
def _join(boxes, n, other, m):
    """Box ``n`` becomes the hull of itself and of box ``m`` of another array; whether it grew."""
    grew = False
    for s in range(boxes.shape[1]):
        if other[m, s, 0] < boxes[n, s, 0]:
            boxes[n, s, 0], grew = other[m, s, 0], True
        if other[m, s, 1] > boxes[n, s, 1]:
            boxes[n, s, 1], grew = other[m, s, 1], True
    return grew


@bare
def _has(boxes, n, other, m):
    """Whether box ``n`` covers box ``m`` of another array."""
    for s in range(boxes.shape[1]):
        if not (boxes[n, s, 0] <= other[m, s, 0] and other[m, s, 1] <= boxes[n, s, 1]):
            return False
    return True


@bare
def _edge(ix, s, low, high):
    """The length of a side, as a share of the domain."""
    low, high = max(low, ix.unit[s, 0]), min(high, ix.unit[s, 1])
    return max(0.0, high - low) * ix.unit[s, 2] + THIN


@bare
def _put_child(ix, n, i, c, boxes, m):
    """Child (or entry) ``c`` with box ``m`` of an array becomes the ``i``-th of node ``n``."""
    ix.child[n, i] = c
    for s in range(boxes.shape[1]):
        ix.box[n, 2 * s, i], ix.box[n, 2 * s + 1, i] = boxes[m, s, 0], boxes[m, s, 1]


@bare
def _copy_child(ix, n, i, m, j):
    """The ``j``-th child of node ``m`` becomes the ``i``-th of node ``n``."""
    ix.child[n, i] = ix.child[m, j]
    for b in range(ix.box.shape[1]):
        ix.box[n, b, i] = ix.box[m, b, j]


@bare
def _measure(ix, n):
    """The hull of a node by what is in it, into ``ix.hull[n]``; whether it changed."""
    changed = False
    for s in range(ix.hull.shape[1]):
        low, high = ix.load[n, s, 0], ix.load[n, s, 1]
        for i in range(ix.node[n, CHILDREN]):
            low, high = min(low, ix.box[n, 2 * s, i]), max(high, ix.box[n, 2 * s + 1, i])
        changed = changed or low != ix.hull[n, s, 0] or high != ix.hull[n, s, 1]
        ix.hull[n, s, 0], ix.hull[n, s, 1] = low, high
    return changed


@bare
def _position(ix, p, n):
    """Which child of ``p`` node ``n`` is."""
    i = 0
    while ix.child[p, i] != n:
        i += 1
    return i


@bare
def _tell_parent(ix, n):
    """The box of a node, where its parent reads it; returns the parent."""
    p = np.int64(ix.node[n, PARENT])
    if p >= 0:
        _put_child(ix, p, _position(ix, p, n), n, ix.hull, n)
    return p


@bare
def _grow(ix, n, boxes, m):
    """Box ``m`` of an array lies in ``n`` from now on."""
    while n >= 0 and _join(ix.hull, n, boxes, m):
        n = _tell_parent(ix, n)


@bare
def _shrink(ix, n):
    """Something has left ``n``."""
    while n >= 0 and _measure(ix, n):
        n = _tell_parent(ix, n)


# -- the way down ----------------------------------------------------------------------------------------------


@bare
def _leaf_for(ix, g):
    """The leaf where ``ix.want`` makes boxes grow least, the smaller box where several do not grow."""
    n = np.int64(ix.tree[g, ROOT])
    slots = ix.want.shape[0]
    while ix.node[n, HEIGHT_OF] > 1:
        best, least, smallest = 0, np.inf, np.inf
        for i in range(ix.node[n, CHILDREN]):
            size, grown = 1.0, 1.0
            for s in range(slots):
                low, high = ix.box[n, 2 * s, i], ix.box[n, 2 * s + 1, i]
                size *= _edge(ix, s, low, high)
                grown *= _edge(ix, s, min(low, ix.want[s, 0]), max(high, ix.want[s, 1]))
            if grown - size < least or (grown - size == least and size < smallest):
                best, least, smallest = i, grown - size, size
        n = np.int64(ix.child[n, best])
    return n


# -- splits ----------------------------------------------------------------------------------------------------


@bare
def _sort(ix, n, s):
    """The order of a full node's children by the middle of their boxes on a slot, into ``ix.order[0]``."""
    order, box = ix.order, ix.box
    for i in range(FAN):
        middle = max(box[n, 2 * s, i], ix.unit[s, 0]) + min(box[n, 2 * s + 1, i], ix.unit[s, 1])
        j = i
        while j > 0 and ix.middle[j - 1] > middle:
            ix.middle[j], order[0, j] = ix.middle[j - 1], order[0, j - 1]
            j -= 1
        ix.middle[j], order[0, j] = middle, i


@bare
def _hulls(ix, n):
    """The hulls of the first i children in order, and of those from i on, into ``ix.part``."""
    part, order = ix.part, ix.order
    for i in range(FAN):
        for s in range(part.shape[1]):
            a, b = order[0, i], order[0, FAN - 1 - i]
            low, high = ix.box[n, 2 * s, a], ix.box[n, 2 * s + 1, a]
            part[i, s, 0] = low if i == 0 else min(low, part[i - 1, s, 0])
            part[i, s, 1] = high if i == 0 else max(high, part[i - 1, s, 1])
            low, high = ix.box[n, 2 * s, b], ix.box[n, 2 * s + 1, b]
            j = 2 * FAN - 1 - i
            part[j, s, 0] = low if i == 0 else min(low, part[j + 1, s, 0])
            part[j, s, 1] = high if i == 0 else max(high, part[j + 1, s, 1])


@bare
def _choose_cut(ix, n):
    """The order and the place at which to split a full node, into ``ix.order[1]`` and as the result."""
    cut, overlaps, sizes = 0, np.inf, np.inf
    for t in range(ix.want.shape[0]):
        _sort(ix, n, t)
        _hulls(ix, n)
        for i in range(LEAST, FAN - LEAST + 1):
            common, left, right = 1.0, 1.0, 1.0
            for s in range(ix.want.shape[0]):
                low, high = ix.part[i - 1, s, 0], ix.part[i - 1, s, 1]
                low2, high2 = ix.part[FAN + i, s, 0], ix.part[FAN + i, s, 1]
                left *= _edge(ix, s, low, high)
                right *= _edge(ix, s, low2, high2)
                common *= _edge(ix, s, max(low, low2), min(high, high2)) if max(low, low2) <= min(high, high2) else 0.0
            if common < overlaps or (common == overlaps and left + right < sizes):
                cut, overlaps, sizes = i, common, left + right
                for j in range(FAN):
                    ix.order[1, j] = ix.order[0, j]
    return cut


@bare
def _share_buffer(ix, g, n, new, p):
    """Node ``n`` has given half of itself to ``new``: its buffered entries stay, go along, or go up to ``p``."""
    i = 0
    while i < ix.postings.list[n, FILL]:
        k = buffered(ix, n, i)
        if _has(ix.hull, n, ix.held, k):
            _join(ix.load, n, ix.held, k)
            i += 1
        elif _has(ix.hull, new, ix.held, k) and move_over(ix, g, k, new):
            _join(ix.load, new, ix.held, k)
        elif move_over(ix, g, k, p):
            # The parent covers more, so the entry may hold more.
            _join(ix.held, k, ix.hull, p)
            _join(ix.load, p, ix.held, k)
            set_level(ix, g, k, np.int64(ix.node[p, HEIGHT_OF]))
        else:
            _join(ix.load, n, ix.held, k)
            _join(ix.hull, n, ix.held, k)
            i += 1


@bare
def _split(ix, g, n):
    """Split a full node whose parent has room."""
    p = np.int64(ix.node[n, PARENT])
    new = _new_node(ix, np.int64(ix.node[n, HEIGHT_OF]))
    cut = _choose_cut(ix, n)
    for i in range(cut, FAN):
        j = np.int64(ix.order[1, i])
        c = np.int64(ix.child[n, j])
        _copy_child(ix, new, i - cut, n, j)
        if ix.node[n, HEIGHT_OF] == 1:
            ix.home[c, g] = new
        else:
            ix.node[c, PARENT] = new
        ix.child[n, j] = -1
    left = 0
    for i in range(FAN):
        if ix.child[n, i] >= 0:
            _copy_child(ix, n, left, n, i)
            left += 1
    ix.node[n, CHILDREN], ix.node[new, CHILDREN] = cut, FAN - cut
    _empty(ix.load, n)
    _measure(ix, n)
    _measure(ix, new)
    _share_buffer(ix, g, n, new, p)
    at = np.int64(ix.node[p, CHILDREN])
    ix.node[p, CHILDREN] = at + 1
    ix.node[new, PARENT] = p
    _put_child(ix, p, at, new, ix.hull, new)
    _tell_parent(ix, n)
    _shrink(ix, p)


@bare
def _make_room(ix, g, n):
    """Split leaf ``n`` and, from the top down, whatever is full above it; False when there is no room."""
    if ix.spare[LEFT] < ix.tree[g, HEIGHT] + 2 or ix.tree[g, HEIGHT] == MAX_HEIGHT:
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
        ix.tree[g, HEIGHT] += 1
        p = _new_node(ix, np.int64(ix.tree[g, HEIGHT]))
        ix.node[old, PARENT] = p
        ix.node[p, CHILDREN] = 1
        _put_child(ix, p, 0, old, ix.hull, old)
        _measure(ix, p)
        ix.tree[g, ROOT] = p
    while full >= 0:
        _split(ix, g, np.int64(ix.path[full]))
        full -= 1
    return True


# -- what the layer calls --------------------------------------------------------------------------------------


@bare
def place(ix, g, k):
    """Place ``ix.want`` at level ``ix.aim``; 1, or 2 when that is the whole domain, or 0 when there is no room."""
    level, was = levels(ix, g, k)
    ix.home[k, g] = -1
    if level > ix.tree[g, HEIGHT]:
        return 2
    slots = ix.want.shape[0]
    n = leaf = _leaf_for(ix, g)
    covered = level == 0
    while not covered and ix.node[n, PARENT] >= 0:
        covered = ix.node[n, HEIGHT_OF] >= level
        for s in range(slots):
            covered = covered and ix.hull[n, s, 0] <= ix.want[s, 0] and ix.want[s, 1] <= ix.hull[n, s, 1]
        if not covered:
            n = np.int64(ix.node[n, PARENT])
    if level == 0 or (level < was and was <= ix.node[n, HEIGHT_OF]):
        n, level = leaf, np.int64(0)
        while ix.node[n, CHILDREN] == FAN:
            if not _make_room(ix, g, n):
                return 0
            n = _leaf_for(ix, g)  # boxes have changed: it may be yet another one
        for s in range(slots):
            ix.held[k, s, 0], ix.held[k, s, 1] = ix.want[s, 0], ix.want[s, 1]
        i = np.int64(ix.node[n, CHILDREN])
        _put_child(ix, n, i, k, ix.held, k)
        ix.node[n, CHILDREN] = i + 1
        ix.home[k, g] = n
    else:
        level = np.int64(ix.node[n, HEIGHT_OF])
        whole = True
        for s in range(slots):
            ix.held[k, s, 0] = min(ix.want[s, 0], ix.hull[n, s, 0])
            ix.held[k, s, 1] = max(ix.want[s, 1], ix.hull[n, s, 1])
            whole = whole and ix.held[k, s, 0] == -np.inf and ix.held[k, s, 1] == np.inf
        if whole:
            return 2
        if not postings.add(ix.postings, n, k, g):
            return 0
        _join(ix.load, n, ix.held, k)
    _grow(ix, n, ix.held, k)
    set_level(ix, g, k, level)
    return 1


@bare
def _lowest(ix, n):
    """The node itself, or what is below it while that is an only child."""
    while ix.node[n, HEIGHT_OF] > 1 and ix.node[n, CHILDREN] == 1:
        n = np.int64(ix.child[n, 0])
    return n


@bare
def _remove_child(ix, p, i):
    """Child ``i`` of ``p`` and all that hangs on it, only children without content, are free."""
    n = _lowest(ix, np.int64(ix.child[p, i]))
    while n != p:
        above = np.int64(ix.node[n, PARENT])
        _free(ix, n)
        n = above
    ix.node[p, CHILDREN] -= 1
    _copy_child(ix, p, i, p, np.int64(ix.node[p, CHILDREN]))


@bare
def _prune(ix, g, n):
    """Free empty nodes, from a leaf ``n`` upwards, and roots with one child."""
    n = _lowest(ix, n)
    while is_hollow(ix, n):
        p = np.int64(ix.node[n, PARENT])
        while p >= 0 and ix.node[p, CHILDREN] == 1 and ix.postings.list[p, FILL] == 0:
            n, p = p, np.int64(ix.node[p, PARENT])
        if p < 0 or ix.node[p, CHILDREN] == 1:
            break
        _remove_child(ix, p, _position(ix, p, n))
        n = _lowest(ix, p)  # an only child may have been waiting, empty, for its siblings to go
    root = np.int64(ix.tree[g, ROOT])
    while ix.node[root, HEIGHT_OF] > 1 and ix.node[root, CHILDREN] == 1 and ix.postings.list[root, FILL] == 0:
        ix.tree[g, ROOT] = ix.child[root, 0]
        ix.tree[g, HEIGHT] -= 1
        _free(ix, root)
        root = np.int64(ix.tree[g, ROOT])
        ix.node[root, PARENT] = -1


@bare
def unplace(ix, g, k):
    """Take entry ``k`` out."""
    n = np.int64(ix.home[k, g])
    if n >= 0:
        last = np.int64(ix.node[n, CHILDREN]) - 1
        _copy_child(ix, n, _position(ix, n, k), n, last)
        ix.node[n, CHILDREN] = last
        ix.home[k, g] = -1
        for s in range(ix.want.shape[0]):
            if ix.held[k, s, 0] == ix.hull[n, s, 0] or ix.held[k, s, 1] == ix.hull[n, s, 1]:
                _shrink(ix, n)
                break
        if last == 0:
            _prune(ix, g, n)
    elif ix.postings.used[k, g] > 0:
        n = np.int64(ix.postings.marks[k, g, 0])
        postings.drop(ix.postings, k, g)
        if ix.postings.list[n, FILL] == 0:
            _empty(ix.load, n)
            _shrink(ix, n)
            _prune(ix, g, n)


@bare
def collect(ix, g, m, world):
    """All entries that hold the message's values, into the merge."""
    slots = ix.want.shape[0]
    at, box, child, path, meets = ix.at, ix.box, ix.child, ix.path, ix.meets
    n = np.int64(ix.tree[g, ROOT])
    for s in range(slots):
        x = world.messages.value[m, ix.slot_attribute[s]]
        at[s, 0], at[s, 1] = (x, x) if x == x else (-np.inf, np.inf)
        if not (ix.hull[n, s, 0] <= at[s, 0] and at[s, 1] <= ix.hull[n, s, 1]):
            return
    path[0], depth = n, 1
    while depth > 0:
        depth -= 1
        n = np.int64(path[depth])
        if ix.postings.list[n, FILL] > 0:
            gather(ix, n, g)
        for i in range(FAN):
            meets[i] = 1
        for s in range(slots):
            low, high = at[s, 0], at[s, 1]
            for i in range(FAN):
                meets[i] &= np.uint8(box[n, 2 * s, i] <= low) & np.uint8(high <= box[n, 2 * s + 1, i])
        leaf = ix.node[n, HEIGHT_OF] == 1
        for i in range(ix.node[n, CHILDREN]):
            if meets[i]:
                if leaf:
                    add_one(ix, np.int64(child[n, i]), g)
                else:
                    path[depth] = child[n, i]
                    depth += 1


@bare
def top(ix, g):
    """The level at which an entry is returned always."""
    return np.int64(ix.tree[g, HEIGHT]) + 1


# -- verification ----------------------------------------------------------------------------------------------


@bare
def _is_found(ix, n, k):
    """Whether a probe anywhere in what entry ``k`` holds comes by node ``n``."""
    while n >= 0:
        if not _has(ix.hull, n, ix.held, k):
            return False
        p = np.int64(ix.node[n, PARENT])
        if p >= 0:
            i = _position(ix, p, n)
            for s in range(ix.want.shape[0]):
                if ix.box[p, 2 * s, i] != ix.hull[n, s, 0] or ix.box[p, 2 * s + 1, i] != ix.hull[n, s, 1]:
                    return False
        n = p
    return True


@bare
def _check_node(ix, g, n):
    """Verify one node, and of its children that they are its own; a code, 0 when all is well."""
    height, count = np.int64(ix.node[n, HEIGHT_OF]), np.int64(ix.node[n, CHILDREN])
    if _measure(ix, n):
        return 19
    if height < 1 or count > FAN or (height > 1 and count < 1):
        return 20
    for i in range(ix.postings.list[n, FILL]):
        k = buffered(ix, n, np.int64(i))
        if ix.state[k, g] != 1 or ix.home[k, g] >= 0 or ix.level[k, 0, 0] != height:
            return 18
        if not (_has(ix.load, n, ix.held, k) and _is_found(ix, n, k)):
            return 19
    for i in range(count):
        c = np.int64(ix.child[n, i])
        if height > 1:
            if ix.node[c, PARENT] != n or ix.node[c, HEIGHT_OF] != height - 1:
                return 20
            continue
        if ix.state[c, g] != 1 or ix.home[c, g] != n or ix.postings.used[c, g] > 0 or ix.level[c, 0, 0] != 0:
            return 18
        for s in range(ix.want.shape[0]):
            if ix.box[n, 2 * s, i] != ix.held[c, s, 0] or ix.box[n, 2 * s + 1, i] != ix.held[c, s, 1]:
                return 18
        if not _is_found(ix, n, c):
            return 19
    return 0


@kernel
def check_structure(ix, ids, world):
    """Verify the invariants of the tree; (code, clause, slot), 0 when all hold."""
    todo = np.empty(ix.node.shape[0], np.int64)
    g = 0
    todo[0], left, met, nodes = ix.tree[g, ROOT], 1, 0, 0
    if ix.node[todo[0], PARENT] >= 0 or ix.node[todo[0], HEIGHT_OF] != ix.tree[g, HEIGHT]:
        return 20, -1, -1
    while left > 0:
        left -= 1
        n = todo[left]
        nodes += 1
        code = _check_node(ix, g, n)
        if code:
            return code, -1, -1
        met += ix.postings.list[n, FILL]
        if ix.node[n, HEIGHT_OF] == 1:
            met += ix.node[n, CHILDREN]
            continue
        for i in range(ix.node[n, CHILDREN]):
            todo[left] = ix.child[n, i]
            left += 1
    placed = 0
    for i in range(ids.shape[0]):
        placed += ix.state[ids[i], g] == 1
        if ix.state[ids[i], g] == 1 and (ix.home[ids[i], g] >= 0) == (ix.postings.used[ids[i], g] > 0):
            return 18, ids[i], -1
    if met != placed:
        return 18, -1, -1
    if nodes + ix.spare[LEFT] != ix.node.shape[0]:
        return 20, -1, -1
    return 0, -1, -1
