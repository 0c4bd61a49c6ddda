"""Clustering of the index ``blocks``: build, homes, insert, split, remove (see :mod:`tamis.kernels.blocks`)."""

from __future__ import annotations

import math

import numpy as np

from .bundles import (
    ATTRIBUTE,
    AWAY,
    CONTEXT,
    FIRST_PREDICATE,
    FLAGS,
    LISTENERS,
    N_ENTRIES,
    PLACE,
    PREDICATES,
    TEMPLATE,
)
from .cells import (
    BLOCK,
    BLOCK_FILL,
    CHUNK,
    CHUNK_FILL,
    CHUNKS,
    CLEAN,
    FULL,
    LEAF,
    LEFT,
    LINE,
    MASKS,
    N_AWAY,
    N_BLOCKS,
    N_NODES,
    ONE,
    OPEN_HIGH,
    OPEN_LOW,
    OUT,
    RIGHT,
    SLOT,
    SPLITS,
    TAKEN,
    cells_of,
    read_entry,
    set_bit,
    shrink_core,
    touch,
    widen,
    write_entry,
)
from .jit import bare, inlined, kernel
from .simd import lowest_bit, prefetch


@inlined
def _centre(low, high):
    """What an interval is sorted by: its middle, its one end, or infinity when it constrains nothing."""
    if low == -np.inf:
        return high
    if high == np.inf:
        return low
    return 0.5 * (low + high)


@bare
def _select(key, perm, first, last, k):
    """Quickselect: afterwards key[first:k] <= key[k] <= key[k:last]; perm moves along."""
    last -= 1
    while first < last:
        pivot = key[(first + last) >> 1]
        i, j = first, last
        while i <= j:
            while key[i] < pivot:
                i += 1
            while key[j] > pivot:
                j -= 1
            if i <= j:
                key[i], key[j] = key[j], key[i]
                perm[i], perm[j] = perm[j], perm[i]
                i += 1
                j -= 1
        if k <= j:
            last = j
        elif k >= i:
            first = i
        else:
            return


@bare
def _best_slot(bounds, perm, first, last, banned):
    """The slot whose median split lets the fewest messages into both halves, judged on a sample; -1 if none divides.

    A range of centres r and widths w survive a message with probability ~ r + w before and r/2 + w after the split.
    """
    slots = bounds.shape[1]
    n = last - first
    step = max(1, n // 64)
    best, at = 0.999, -1
    for s in range(slots):
        if banned >> np.uint64(s) & np.uint64(1):
            continue
        low, high = np.inf, -np.inf
        width = 0.0
        free = one_sided = seen = 0
        for t in range(first, last, step):
            a, b = np.float64(bounds[perm[t], s, 0]), np.float64(bounds[perm[t], s, 1])
            seen += 1
            x = _centre(a, b)
            if not math.isfinite(x):
                free += 1
                continue
            low, high = min(low, x), max(high, x)
            if math.isfinite(a) and math.isfinite(b):
                width += b - a
            else:
                one_sided += 1
        r = high - low
        if seen == free or not r > 0:
            continue
        w = (width + one_sided * r) / (seen - free)
        share = free / seen
        value = share + (1 - share) * (0.5 * r + w) / (r + w)
        if value < best:
            best, at = value, s
    return at


@bare
def _partition(bounds, perm, key, first, last, size, exact):
    """Split perm[first:last] in two near the middle, the left part a multiple of ``size``.

    Returns (cut, slot, value): entries before the cut have centre < value. With ``exact`` false equal centres may
    end up on both sides (inside a block, where nobody is routed). slot is -1 when nothing divides the entries.
    """
    n = last - first
    half = first + max(size, (n // 2 + size - 1) // size * size)
    if half >= last:
        half = first + n // 2
    banned = np.uint64(0)
    for _ in range(bounds.shape[1]):
        s = _best_slot(bounds, perm, first, last, banned)
        if s < 0:
            break
        for t in range(first, last):
            key[t] = _centre(bounds[perm[t], s, 0], bounds[perm[t], s, 1])
        _select(key, perm, first, last, half)
        value = key[half]
        if not exact:
            return half, s, np.float64(value)
        # Entries equal to the value go right; if nothing is smaller, the next value up becomes the split.
        smaller = 0
        above = np.inf
        for t in range(first, last):
            if key[t] < value:
                smaller += 1
            elif key[t] > value:
                above = min(above, key[t])
        larger_split = smaller < n // 8 and above < np.inf
        if larger_split:
            value = above
        if smaller > 0 or larger_split:
            i = first
            for t in range(first, last):
                if key[t] < value:
                    key[i], key[t] = key[t], key[i]
                    perm[i], perm[t] = perm[t], perm[i]
                    i += 1
            return i, s, np.float64(value)
        banned |= np.uint64(1) << np.uint64(s)
    return half, -1, 0.0


@kernel
def _lay_out(ix, b, ids, bounds, perm, key, first, last, world):
    """Write the entries ids[perm[first:last]] into block ``b``: own cells, then chunks clustered like blocks are."""
    slots = ix.slot_attribute.shape[0]
    for s in range(slots):
        low, high = np.inf, -np.inf
        for t in range(first, last):
            for side in range(2):
                v = np.float64(bounds[perm[t], s, side])
                if math.isfinite(v):
                    low, high = min(low, v), max(high, v)
        ix.base[b, s] = low if low <= high else 0.0
        # A single value gets a cell of its own: everything else falls to either end.
        ix.scale[b, s] = 251.0 / (high - low) if high > low and 251.0 / (high - low) < 1e300 else 1e300
        ix.width[b, s] = 1.0 / ix.scale[b, s]
        ix.reach[b, s, 0], ix.reach[b, s, 1] = np.inf, -np.inf
        at = (b * slots + s) * LINE
        ix.zones[at : at + CHUNKS] = 255
        ix.zones[at + CHUNKS : at + LINE] = 0
        ix.plots[at : at + CHUNKS] = 255
        ix.plots[at + CHUNKS : at + LINE] = 0
        ix.cores[at : at + CHUNKS] = 0
        ix.cores[at + CHUNKS : at + LINE] = 255
        box = ((b >> 5) * slots + s) * LINE + (b & 31)
        ix.boxes[box] = 255
        ix.boxes[box + 32] = 0
    ix.used[b] = 0
    ix.summary[b] = 0
    ix.margin[b * CHUNKS * slots : (b + 1) * CHUNKS * slots] = 0
    for ch in range(b * CHUNKS, (b + 1) * CHUNKS):
        ix.masks[ch] = 0
        ix.debt[ch] = CLEAN
    todo = np.empty((64, 2), np.int64)
    todo[0, 0], todo[0, 1] = first, last
    depth = 1
    ch = np.int64(0)  # not a literal, which would be a type of its own and compile everything twice
    fill = max(CHUNK_FILL, (last - first + CHUNKS - 1) // CHUNKS)
    while depth > 0:
        depth -= 1
        lo, hi = todo[depth, 0], todo[depth, 1]
        if hi - lo <= fill:
            for t in range(lo, hi):
                k = np.int64(ids[perm[t]])
                read_entry(ix, k, world)
                write_entry(ix, k, b, ch, t - lo, world)
            ix.debt[b * CHUNKS + ch] = CLEAN
            for s in range(slots):
                at = (b * slots + s) * LINE + ch
                ix.plots[at], ix.plots[at + CHUNKS] = ix.zones[at], ix.zones[at + CHUNKS]
            ch += 1
            continue
        cut = _partition(bounds, perm, key, lo, hi, fill, np.int64(0))[0]
        todo[depth, 0], todo[depth, 1] = lo, cut
        todo[depth + 1, 0], todo[depth + 1, 1] = cut, hi
        depth += 2


@kernel
def _bounds_of(ix, ids, world):
    """The intervals of clauses as float32 [clause, slot, 2], for clustering only."""
    slots = ix.slot_attribute.shape[0]
    bounds = np.empty((ids.shape[0], slots, 2), np.float32)
    for i in range(ids.shape[0]):
        read_entry(ix, np.int64(ids[i]), world)
        for s in range(slots):
            unknown = np.int64(ix.scratch[0, s]) & 8
            bounds[i, s, 0] = -np.inf if unknown else ix.scratch[1, s]
            bounds[i, s, 1] = np.inf if unknown else ix.scratch[2, s]
    return bounds


@kernel
def build(ix, ids, world):
    """Cluster clauses ``ids`` into an empty index; False when the room for blocks or nodes ran out."""
    n = ids.shape[0]
    bounds = _bounds_of(ix, ids, world)
    perm = np.arange(n).astype(np.int32)
    key = np.empty(n, np.float32)
    ix.count[N_ENTRIES] = n
    ix.count[LISTENERS] = 0
    for i in range(n):
        ix.count[LISTENERS] += np.int64(world.clauses.meta[ids[i], CONTEXT] >= 0)
    ix.count[N_NODES] = 1
    ix.count[N_BLOCKS] = 0
    todo = np.empty((256, 3), np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, 0, n
    depth = 1
    while depth > 0:
        depth -= 1
        node, first, last = todo[depth, 0], todo[depth, 1], todo[depth, 2]
        if last - first <= BLOCK_FILL:
            b = ix.count[N_BLOCKS]
            if b == ix.used.shape[0]:
                return False
            ix.count[N_BLOCKS] += 1
            ix.node[node, LEAF] = b
            _lay_out(ix, b, ids, bounds, perm, key, first, last, world)
            continue
        cut, s, value = _partition(bounds, perm, key, first, last, np.int64(BLOCK_FILL), np.int64(1))
        left = ix.count[N_NODES]
        if left + 2 > ix.node.shape[0]:
            return False
        ix.count[N_NODES] += 2
        ix.node[node, SLOT], ix.node[node, LEFT], ix.node[node, RIGHT], ix.node[node, LEAF] = s, left, left + 1, -1
        ix.split[node] = value
        todo[depth, 0], todo[depth, 1], todo[depth, 2] = left, first, cut
        todo[depth + 1, 0], todo[depth + 1, 1], todo[depth + 1, 2] = left + 1, cut, last
        depth += 2
    return True


@bare
def home_of(ix):
    """The tree node whose block the clause that ``read_entry`` has read belongs to."""
    node = np.int64(0)
    while ix.node[node, LEAF] < 0:
        s = ix.node[node, SLOT]
        if s < 0:
            node = np.int64(ix.node[node, RIGHT])
            continue
        low, high = np.float32(ix.scratch[1, s]), np.float32(ix.scratch[2, s])
        if np.int64(ix.scratch[0, s]) & 8:
            low, high = np.float32(-np.inf), np.float32(np.inf)
        centre = np.float64(_centre(low, high))
        node = np.int64(ix.node[node, LEFT] if centre < ix.split[node] else ix.node[node, RIGHT])
    return node


@bare
def want_cells(ix, b):
    """The clause read, in the cells of block ``b``, into ``ix.wanted``; returns the slots that it constrains."""
    constrained = np.uint64(0)
    for s in range(ix.slot_attribute.shape[0]):
        sides = np.int64(ix.scratch[0, s])
        if sides and not sides & 8:
            ix.wanted[0, s], ix.wanted[1, s] = cells_of(ix, b, s, sides, ix.scratch[1, s], ix.scratch[2, s])
            constrained |= np.uint64(1) << np.uint64(s)
    return constrained


@bare
def best_chunk(ix, b, land, judges):
    """The chunk of block ``b`` with a free place whose ``land`` (zones or plots) grows least by the cells wanted.

    Only slots in ``judges`` count. Returns -1 when the block is full.
    """
    slots = ix.slot_attribute.shape[0]
    growth = ix.growth
    for ch in range(CHUNKS):
        growth[ch] = 0
    for s in range(slots):
        if not judges >> np.uint64(s) & np.uint64(1):
            continue
        ql, qh = np.int32(ix.wanted[0, s]), np.int32(ix.wanted[1, s])
        at = (b * slots + s) * LINE
        for ch in range(CHUNKS):
            zl, zh = np.int32(land[at + ch]), np.int32(land[at + CHUNKS + ch])
            more = max(np.int32(0), zl - ql) + max(np.int32(0), qh - zh)
            growth[ch] += qh - ql + np.int32(1) if zl > zh else more
    best, at = np.int32(1 << 30), -1
    for ch in range(CHUNKS):
        if growth[ch] < best and ix.masks[b * CHUNKS + ch, TAKEN] != FULL:
            best, at = growth[ch], ch
    return at


@bare
def has_room(ix, b):
    """Whether a block has a free place."""
    for chunk in range(b * CHUNKS, (b + 1) * CHUNKS):
        if ix.masks[chunk, TAKEN] != FULL:
            return True
    return False


@bare
def shift(ix, k, b, ch, t, to):
    """Carry an entry to a free place of chunk ``to`` of the same block; its cells, and so its safe ranges, stay."""
    slots = ix.slot_attribute.shape[0]
    old, new = b * CHUNKS + ch, b * CHUNKS + to
    u = lowest_bit(~ix.masks[new, TAKEN])
    for s in range(slots):
        prefetch(ix.lines, (new * slots + s) * LINE)
    for which in range(MASKS):
        set_bit(ix.masks, new, which, u, ix.masks[old, which] >> np.uint32(t) & ONE != 0)
        set_bit(ix.masks, old, which, t, False)
    if ix.masks[old, TAKEN] == 0:
        ix.summary[b] &= ~(ONE << np.uint32(ch))
    ix.summary[b] |= ONE << np.uint32(to)
    ix.clause[new * CHUNK + u], ix.profile[new * CHUNK + u] = k, ix.profile[old * CHUNK + t]
    grew = False
    for s in range(slots):
        at = (old * slots + s) * LINE + t
        ql, qh = ix.lines[at], ix.lines[at + CHUNK]
        wide = ix.margin[old * slots + s]
        ix.margin[new * slots + s] = max(ix.margin[new * slots + s], wide)
        at = (new * slots + s) * LINE + u
        ix.lines[at], ix.lines[at + CHUNK] = ql, qh
        low = min(255, np.int64(ql) + np.int64(wide)) if ql > OPEN_LOW else np.int64(0)
        high = max(0, np.int64(qh) - np.int64(wide)) if qh < OPEN_HIGH else np.int64(qh)
        shrink_core(ix, b, to, s, np.uint8(low), np.uint8(high))
        grew |= widen(ix, b, to, s, ql, qh, np.inf, -np.inf)  # its box has it already
    touch(ix, old)
    if grew:
        touch(ix, new)
    return u


@bare
def put(ix, k, b, world):
    """Write clause ``k``, which ``read_entry`` has read, into block ``b``; False when it is full."""
    ch = best_chunk(ix, b, ix.zones, want_cells(ix, b))
    if ch < 0:
        return False
    t = lowest_bit(~ix.masks[b * CHUNKS + ch, TAKEN])
    write_entry(ix, k, b, ch, t, world)
    return True


@kernel
def _split_block(ix, node, world):
    """Give half of the entries of a full block to a new one."""
    slots = ix.slot_attribute.shape[0]
    b = np.int64(ix.node[node, LEAF])
    ids = np.empty(BLOCK, np.int32)
    n = 0
    for ch in range(b * CHUNKS, (b + 1) * CHUNKS):
        for t in range(CHUNK):
            if ix.masks[ch, TAKEN] >> np.uint32(t) & ONE:
                ids[n] = ix.clause[ch * CHUNK + t]
                n += 1
    bounds = _bounds_of(ix, ids[:n], world)
    perm = np.arange(n).astype(np.int32)
    key = np.empty(n, np.float32)
    cut, s, value = _partition(bounds, perm, key, np.int64(0), n, np.int64(1), np.int64(1))
    other = ix.count[N_BLOCKS]
    ix.count[N_BLOCKS] += 1
    ix.count[SPLITS] += 1
    left = ix.count[N_NODES]
    ix.count[N_NODES] += 2
    ix.node[node, SLOT], ix.node[node, LEFT], ix.node[node, RIGHT], ix.node[node, LEAF] = s, left, left + 1, -1
    ix.split[node] = value
    ix.node[left, LEAF], ix.node[left + 1, LEAF] = b, other
    for u in range(slots):
        at = (other * slots + u) * LINE
        ix.zones[at : at + CHUNKS] = 255
        ix.zones[at + CHUNKS : at + LINE] = 0
    _lay_out(ix, b, ids, bounds, perm, key, 0, cut, world)
    _lay_out(ix, other, ids, bounds, perm, key, cut, n, world)


@bare
def needs_slots(ix, ids, world):
    """Whether some clause constrains an attribute that has no slot yet."""
    for i in range(ids.shape[0]):
        row, r = world.templates.row, world.clauses.meta[ids[i], TEMPLATE]
        for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
            if ix.attribute_slot[world.templates.predicate[p, ATTRIBUTE]] < 0:
                return True
    return False


@kernel
def insert(ix, ids, first, world):
    """Insert clauses ids[first:]; returns how far it came before the room for new blocks ran out."""
    for i in range(first, ids.shape[0]):
        k = np.int64(ids[i])
        while True:
            read_entry(ix, k, world)
            node = home_of(ix)
            if put(ix, k, np.int64(ix.node[node, LEAF]), world):
                break
            if ix.count[N_BLOCKS] == ix.used.shape[0] or ix.count[N_NODES] + 2 > ix.node.shape[0]:
                return i
            _split_block(ix, node, world)
        ix.count[N_ENTRIES] += 1
        ix.count[LISTENERS] += np.int64(world.clauses.meta[k, CONTEXT] >= 0)
    return ids.shape[0]


@kernel
def away(ix, world):
    """The clauses that lie elsewhere because there was no room in their home block."""
    found = np.empty(max(0, ix.count[N_AWAY]), np.int32)
    n = 0
    for chunk in range(ix.count[N_BLOCKS] * CHUNKS):
        taken = ix.masks[chunk, TAKEN]
        while taken != 0:
            k = ix.clause[chunk * CHUNK + lowest_bit(taken)]
            taken &= taken - ONE
            if world.clauses.meta[k, FLAGS] & AWAY and n < found.shape[0]:
                found[n] = k
                n += 1
    return found[:n]


@bare
def remove(ix, k, world):
    """Take clause ``k`` out; zones and boxes may stay too wide until the next deescalation."""
    meta = world.clauses.meta
    if meta[k, FLAGS] & AWAY:
        meta[k, FLAGS] &= ~AWAY
        ix.count[N_AWAY] -= 1
    place = np.int64(meta[k, PLACE])
    chunk, t = place >> 5, place & 31
    for which in range(MASKS):
        set_bit(ix.masks, chunk, which, t, False)
    if ix.masks[chunk, TAKEN] == 0:
        b, ch = chunk >> 5, chunk & 31
        ix.summary[b] &= ~(ONE << np.uint32(ch))
    meta[k, PLACE] = OUT
    ix.count[N_ENTRIES] -= 1
    touch(ix, chunk)
