"""The index ``blocks``: boxes of boxes, tested 32 at a time, under AGILE.

Layout. An *entry* is one clause: a range of byte cells per *slot* (an indexed attribute, most selective first).
32 entries make a *chunk*, 32 chunks a *block*. A *line* of 64 bytes holds the ranges of 32 neighbours on one slot:

    boxes   line (block // 32, slot)    the box of every block, in global cells (``cuts``, quantiles)
    zones   line (block, slot)          the box of every chunk of a block, in the block's own cells
    lines   line (block, chunk, slot)   the range of every entry of a chunk, in the block's own cells

A cell function maps doubles to 1..253 and is monotone, so ``low <= x <= high`` implies the same of cells: no false
negatives. Ends 0 and 254 stand for an open end, [0, 255] for a slot that the entry does not constrain, 255 for a
message that lacks the attribute. A block's own cells span its box, so few messages fall into the cell of a bound;
those strictly inside are matches without a look at the exact values.

AGILE (paper 000). ``Contexts.safe`` holds for every context value the range in which all its entries stay valid:
K(i). An update inside it is a plain store. One that leaves it *escalates*: the entry gets a new range, exact while its
chunk is seldom updated, and with slack that doubles every time while updates outnumber probes (``heat``). An entry
with slack is *loose*: it is always postfiltered. Scans in vain and postfiltering of loose entries are a chunk's
``debt``; when it reaches the price of a *deescalation* the chunk is made exact and tight again and its strays go home.

Invariants (verified by :func:`check`): every range contains the cells of the entry's interval for all context values
inside ``safe``; the range of an entry that is not loose equals those cells; zones contain their entries, boxes their
zones; every live clause has one place.

Complexity for N entries: probe O(blocks / 32 + chunks met), update O(1) amortised, insert O(log N + chunks of a block),
deescalate O(32 slots).
"""

from __future__ import annotations

import math

import numpy as np

from .bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CLOSED,
    COMMON_COUNTS,
    COMPLEX,
    CONSTANTS,
    CONTEXT,
    CTX,
    CTX_PLUS,
    DEPENDS_HIGH,
    DEPENDS_LOW,
    ESCALATIONS,
    FALSE_POSITIVES,
    FIRST_PREDICATE,
    FLAGS,
    GATE_LENGTH,
    HAS_EFFECT,
    HAS_SIBLING,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    LOW,
    LOW_CONST,
    LOW_CTX,
    META_COLUMNS,
    N_ENTRIES,
    NEXT,
    NONE,
    PLACE,
    PREDICATES,
    PROBES,
    PROFILE,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
)
from .jit import bare, inlined, kernel
from .postfilter import bound, constant, holds, interval, predicate_holds, satisfiable
from .simd import count_bits, covers, covers_strictly, lowest_bit, prefetch

CHUNK = 32
CHUNKS = 32
BLOCK = CHUNK * CHUNKS
CHUNK_FILL = 28
BLOCK_FILL = CHUNK_FILL * CHUNKS
LINE = 64

# Columns of Blocks.masks, per chunk: slots in use; satisfiable now; with slack; always to be postfiltered.
TAKEN, OPEN, LOOSE, FIXED = range(4)
# Columns of Blocks.node: split slot, left, right, block (-1 for an inner node).
SLOT, LEFT, RIGHT, LEAF = range(4)
# Entries of Blocks.count behind the common ones.
BLOCKS_MET, CHUNKS_MET, LOOSENED, DEESCALATIONS, MOVES, SPLITS = range(COMMON_COUNTS, COMMON_COUNTS + 6)
N_BLOCKS, N_NODES = COMMON_COUNTS + 6, COMMON_COUNTS + 7
COUNTS = 16

OPEN_LOW, OPEN_HIGH, ANY_HIGH, ABSENT_CELL = np.uint8(0), np.uint8(254), np.uint8(255), np.uint8(255)
# Escalations between two scans of a chunk from which on slack pays: for ranges that prune little, and for the others.
WARM, HEAT = 2, 8
SLACK = 64.0  # widest slack, in cells of the block, while the chunk is still scanned now and then
DEBT = 256  # postfilter tests that cost as much as one deescalation (about 12 microseconds)
VAIN = 1  # what a scan in vain adds to the debt, a postfilter test of a loose entry adds 4
CLEAN = -1  # debt of a chunk that a deescalation could not improve
BEYOND = 8.0  # cells that a box leaves free behind an entry in an end cell
FULL = np.uint32(0xFFFFFFFF)
ONE = np.uint32(1)


@inlined
def cell(x, base, scale):
    """The cell of ``x`` in a block's own scale: 1..253, monotone in x; x must not be NaN."""
    y = (x - base) * scale + 2.0
    if y < 1.0:
        return np.uint8(1)
    if y > 253.0:
        return np.uint8(253)
    return np.uint8(y)


@inlined
def global_cell(cuts, s, x):
    """1 + the number of cuts of slot ``s`` that are <= x; 255 cuts, padded with infinity, in eight steps."""
    i = 0
    step = 128
    while step > 0:
        if cuts[s, i + step - 1] <= x:
            i += step
        step >>= 1
    return np.uint8(min(i, 252) + 1)


@inlined
def _set_bit(masks, chunk, which, t, on):
    if on:
        masks[chunk, which] |= ONE << np.uint32(t)
    else:
        masks[chunk, which] &= ~(ONE << np.uint32(t))


@inlined
def _touch(ix, chunk):
    """A range grew: from now on a deescalation of this chunk may gain something."""
    if ix.debt[chunk] == CLEAN:
        ix.debt[chunk] = 0


@bare
def _widen(ix, b, ch, s, ql, qh, low, high):
    """Make the zone of a chunk, and the box of its block, contain a range (cells of the block, and its doubles)."""
    slots = ix.slot_attribute.shape[0]
    at = (b * slots + s) * LINE + ch
    grew = False
    if ql < ix.zones[at]:
        ix.zones[at] = ql
        grew = True
    if qh > ix.zones[at + CHUNKS]:
        ix.zones[at + CHUNKS] = qh
        grew = True
    if grew or ql == 1 or qh == 253:
        # The box covers whole cells, so that an entry inside its zone is inside the box; the two end cells reach to
        # infinity, there it covers the doubles and some room to move.
        box = ((b >> 5) * slots + s) * LINE + (b & 31)
        if ql == OPEN_LOW:
            ix.boxes[box] = OPEN_LOW
        else:
            if ql > 1:
                low = ix.base[b, s] + (np.float64(ql) - 3.0) / ix.scale[b, s]
            else:
                low -= BEYOND / ix.scale[b, s]
            ix.boxes[box] = min(ix.boxes[box], global_cell(ix.cuts, s, low))
        if qh >= OPEN_HIGH:
            ix.boxes[box + 32] = max(ix.boxes[box + 32], qh)
        else:
            if qh < 253:
                high = ix.base[b, s] + np.float64(qh) / ix.scale[b, s]
            else:
                high += BEYOND / ix.scale[b, s]
            ix.boxes[box + 32] = max(ix.boxes[box + 32], global_cell(ix.cuts, s, high))
    return grew


@bare
def _read(ix, k, world):
    """The intervals of clause ``k`` on all slots as its context stands, into ``ix.scratch`` (sides, low, high)."""
    slots = ix.slot_attribute.shape[0]
    scratch = ix.scratch
    for s in range(slots):
        scratch[0, s], scratch[1, s], scratch[2, s] = 0.0, -np.inf, np.inf
    meta, pred = world.clauses.meta, world.templates.predicate
    row, r = world.templates.row, meta[k, TEMPLATE]
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = ix.attribute_slot[pred[p, ATTRIBUTE]]
        if s < 0:
            continue
        sides = np.int64(scratch[0, s]) | 1
        if pred[p, LOW] != NONE:
            v = bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
            sides |= 2 | (8 if math.isnan(v) else 0)
            scratch[1, s] = max(scratch[1, s], v)
        if pred[p, HIGH] != NONE:
            v = bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
            sides |= 4 | (8 if math.isnan(v) else 0)
            scratch[2, s] = min(scratch[2, s], v)
        scratch[0, s] = sides


@inlined
def _cells(ix, b, s, sides, low, high):
    """The range of cells of an interval (see ``postfilter.interval``) in block ``b``."""
    if sides == 0:
        return OPEN_LOW, ANY_HIGH
    ql = cell(low, ix.base[b, s], ix.scale[b, s]) if sides & 2 else OPEN_LOW
    qh = cell(high, ix.base[b, s], ix.scale[b, s]) if sides & 4 else OPEN_HIGH
    return ql, qh


# --- what an index entry allows its context to do -------------------------------------------------------------------


@inlined
def _exact_reach(y, k, base, scale):
    """The range of u for which ``cell(u + k)`` stays the cell of ``y``; empty when it cannot be named in float32."""
    q = cell(y, base, scale)
    # In an end cell the box of the block ends a little beyond y (see ``_widen``), and so does the reach.
    low = base + (q - 2 + 1e-4) / scale if q > 1 else y - 0.9 * BEYOND / scale
    high = base + (q - 1 - 1e-4) / scale if q < 253 else y + 0.9 * BEYOND / scale
    lo, hi = np.float32(low - k), np.float32(high - k)
    ok = lo <= hi
    ok = ok and (q > 1 or np.float64(lo) + k >= y - BEYOND / scale)
    ok = ok and (q < 253 or np.float64(hi) + k <= y + BEYOND / scale)
    # The cell function is monotone: both ends in the cell means everything between is.
    ok = ok and cell(np.float64(lo) + k, base, scale) == q
    ok = ok and cell(np.float64(hi) + k, base, scale) == q
    if ok:
        return lo, hi
    return np.float32(np.inf), np.float32(-np.inf)


@inlined
def narrow(contexts, c, a, low, high):
    """Shrink the safe range of one context value and watch it if it is finite."""
    contexts.safe[c, a, 0] = max(contexts.safe[c, a, 0], low)
    contexts.safe[c, a, 1] = min(contexts.safe[c, a, 1], high)
    if not (contexts.safe[c, a, 0] == -np.inf and contexts.safe[c, a, 1] == np.inf):
        contexts.watch[c, a >> 3] |= np.uint8(1 << (a & 7))


@inlined
def release(contexts, c, a):
    """Forget the safe range of one context value: no entry depends on it."""
    contexts.safe[c, a, 0] = -np.inf
    contexts.safe[c, a, 1] = np.inf
    contexts.watch[c, a >> 3] &= np.uint8(~(1 << (a & 7)))


@bare
def pin(contexts, c, row_low, row_high):
    """Every update of the attributes in the dependency mask has to be heard."""
    mask = (np.uint64(np.uint32(row_high)) << np.uint64(32)) | np.uint64(np.uint32(row_low))
    for a in range(contexts.value.shape[1]):
        if mask >> np.uint64(min(a, 63)) & np.uint64(1):
            narrow(contexts, c, a, np.float32(np.inf), np.float32(-np.inf))


@inlined
def depends(row, r, a):
    """Whether template ``r`` depends on context attribute ``a`` (attributes from 63 on share a bit)."""
    a = min(a, 63)
    if a < 32:
        return (np.uint32(row[r, DEPENDS_LOW]) >> np.uint32(a)) & ONE != 0
    return (np.uint32(row[r, DEPENDS_HIGH]) >> np.uint32(a - 32)) & ONE != 0


@bare
def _claim_exact(ix, k, b, world):
    """Narrow the safe ranges of the context of clause ``k`` to what its exact cells in block ``b`` allow."""
    meta = world.clauses.meta
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    if c < 0:
        return
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    contexts = world.contexts
    alone = contexts.head[c] == k and meta[k, NEXT] < 0
    if alone:
        for a in range(contexts.value.shape[1]):
            if depends(row, r, a):
                release(contexts, c, a)
    if row[r, GATE_LENGTH] > 0 or meta[k, FLAGS] & CLOSED:
        pin(contexts, c, row[r, DEPENDS_LOW], row[r, DEPENDS_HIGH])
        return
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        pred = world.templates.predicate
        traits = pred[p, TRAITS]
        if traits & COMPLEX:
            pin(contexts, c, row[r, DEPENDS_LOW], row[r, DEPENDS_HIGH])
            return
        s = ix.attribute_slot[pred[p, ATTRIBUTE]]
        if s < 0:
            # Not indexed: only presence matters, and losing the value goes through NaN, which is never safe.
            continue
        for side in range(2):
            kind = pred[p, LOW] if side == 0 else pred[p, HIGH]
            if kind == CTX or kind == CTX_PLUS:
                a = np.int64(pred[p, LOW_CTX] if side == 0 else pred[p, HIGH_CTX])
                off = 0.0
                if kind == CTX_PLUS:
                    off = constant(pred[p, LOW_CONST] if side == 0 else pred[p, HIGH_CONST], own, world)
                y = contexts.value[c, a] + off
                low, high = _exact_reach(y, off, ix.base[b, s], ix.scale[b, s])
                narrow(contexts, c, a, low, high)


@bare
def _write(ix, k, b, ch, t, world):
    """Write the exact ranges of clause ``k``, which ``_read`` has read, into a place; zones and boxes grow."""
    slots = ix.slot_attribute.shape[0]
    meta = world.clauses.meta
    chunk = b * CHUNKS + ch
    is_open = satisfiable(k, world)
    if is_open:
        meta[k, FLAGS] &= ~CLOSED
    else:
        meta[k, FLAGS] |= CLOSED
    for s in range(slots):
        sides, low, high = np.int64(ix.scratch[0, s]), ix.scratch[1, s], ix.scratch[2, s]
        at = (chunk * slots + s) * LINE + t
        if sides & 8:
            # Closed for now; any range will do, it is rewritten when the clause opens.
            ql, qh, low, high = np.uint8(2), np.uint8(2), ix.base[b, s], ix.base[b, s]
        else:
            ql, qh = _cells(ix, b, s, sides, low, high)
        ix.lines[at] = ql
        ix.lines[at + CHUNK] = qh
        if sides:
            ix.used[b] |= np.uint64(1) << np.uint64(s)
        if _widen(ix, b, ch, s, ql, qh, low, high):
            _touch(ix, chunk)
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    fixed = row[r, PROGRAM_LENGTH] > 0 or (meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT)) != 0
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if ix.attribute_slot[world.templates.predicate[p, ATTRIBUTE]] < 0:
            fixed = True
    place = chunk * CHUNK + t
    _set_bit(ix.masks, chunk, TAKEN, t, True)
    _set_bit(ix.masks, chunk, OPEN, t, is_open)
    _set_bit(ix.masks, chunk, LOOSE, t, False)
    _set_bit(ix.masks, chunk, FIXED, t, fixed)
    ix.summary[b] |= ONE << np.uint32(ch)
    ix.clause[place] = k
    ix.profile[place] = meta[k, PROFILE]
    meta[k, PLACE] = place
    _claim_exact(ix, k, b, world)


# --- clustering -----------------------------------------------------------------------------------------------------


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
        at = (b * slots + s) * LINE
        ix.zones[at : at + CHUNKS] = 255
        ix.zones[at + CHUNKS : at + LINE] = 0
        box = ((b >> 5) * slots + s) * LINE + (b & 31)
        ix.boxes[box] = 255
        ix.boxes[box + 32] = 0
    ix.used[b] = 0
    ix.summary[b] = 0
    for ch in range(b * CHUNKS, (b + 1) * CHUNKS):
        ix.masks[ch] = 0
        ix.debt[ch] = CLEAN
        ix.heat[ch] = 0
    todo = np.empty((64, 2), np.int64)
    todo[0, 0], todo[0, 1] = first, last
    depth = 1
    ch = 0
    fill = max(CHUNK_FILL, (last - first + CHUNKS - 1) // CHUNKS)
    while depth > 0:
        depth -= 1
        lo, hi = todo[depth, 0], todo[depth, 1]
        if hi - lo <= fill:
            for t in range(lo, hi):
                k = np.int64(ids[perm[t]])
                _read(ix, k, world)
                _write(ix, k, b, ch, t - lo, world)
            ix.debt[b * CHUNKS + ch] = CLEAN
            ch += 1
            continue
        cut = _partition(bounds, perm, key, lo, hi, fill, False)[0]
        todo[depth, 0], todo[depth, 1] = lo, cut
        todo[depth + 1, 0], todo[depth + 1, 1] = cut, hi
        depth += 2


@kernel
def _bounds_of(ix, ids, world):
    """The intervals of clauses as float32 [clause, slot, 2], for clustering only."""
    slots = ix.slot_attribute.shape[0]
    bounds = np.empty((ids.shape[0], slots, 2), np.float32)
    for i in range(ids.shape[0]):
        _read(ix, np.int64(ids[i]), world)
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
        cut, s, value = _partition(bounds, perm, key, first, last, BLOCK_FILL, True)
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
def _home(ix):
    """The tree node whose block the clause that ``_read`` has read belongs to."""
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
def _roomiest_fit(ix, b):
    """The chunk of block ``b`` with a free place whose zone grows least by the clause read; -1 when it is full."""
    slots = ix.slot_attribute.shape[0]
    growth = ix.growth
    for ch in range(CHUNKS):
        growth[ch] = 0
    for s in range(slots):
        sides = np.int64(ix.scratch[0, s])
        if sides == 0 or sides & 8:
            continue
        ql, qh = _cells(ix, b, s, sides, ix.scratch[1, s], ix.scratch[2, s])
        at = (b * slots + s) * LINE
        for ch in range(CHUNKS):
            zl, zh = ix.zones[at + ch], ix.zones[at + CHUNKS + ch]
            if zl > zh:
                growth[ch] += np.int64(qh) - np.int64(ql) + 1
            else:
                growth[ch] += max(0, np.int64(zl) - np.int64(ql)) + max(0, np.int64(qh) - np.int64(zh))
    best, at = np.int64(1) << 60, -1
    for ch in range(CHUNKS):
        if ix.masks[b * CHUNKS + ch, TAKEN] != FULL and growth[ch] < best:
            best, at = growth[ch], ch
    return at


@bare
def _put(ix, k, b, world):
    """Write clause ``k``, which ``_read`` has read, into block ``b``; False when it is full."""
    ch = _roomiest_fit(ix, b)
    if ch < 0:
        return False
    t = lowest_bit(~ix.masks[b * CHUNKS + ch, TAKEN])
    _write(ix, k, b, ch, t, world)
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
    cut, s, value = _partition(bounds, perm, key, 0, n, 1, True)
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
            _read(ix, k, world)
            node = _home(ix)
            if _put(ix, k, np.int64(ix.node[node, LEAF]), world):
                break
            if ix.count[N_BLOCKS] == ix.used.shape[0] or ix.count[N_NODES] + 2 > ix.node.shape[0]:
                return i
            _split_block(ix, node, world)
        ix.count[N_ENTRIES] += 1
    return ids.shape[0]


@bare
def remove(ix, k, world):
    """Take clause ``k`` out; zones and boxes may stay too wide until the next deescalation."""
    meta = world.clauses.meta
    place = np.int64(meta[k, PLACE])
    chunk, t = place >> 5, place & 31
    for which in range(4):
        _set_bit(ix.masks, chunk, which, t, False)
    if ix.masks[chunk, TAKEN] == 0:
        b, ch = chunk >> 5, chunk & 31
        ix.summary[b] &= ~(ONE << np.uint32(ch))
    meta[k, PLACE] = -1
    ix.count[N_ENTRIES] -= 1
    _touch(ix, chunk)


# --- AGILE ----------------------------------------------------------------------------------------------------------


@bare
def announce(ix, place, a):
    """Prefetch the line of an entry for context attribute ``a``, guessing that the slots follow the attributes."""
    slots = ix.slot_attribute.shape[0]
    chunk = place >> 5
    s = min(a, slots - 1)
    for t in range(slots):
        if ix.slot_attribute[t] == a:
            s = t
    prefetch(ix.lines, (chunk * slots + s) * LINE)
    prefetch(ix.zones, ((chunk >> 5) * slots + s) * LINE)
    prefetch(ix.heat, chunk)
    prefetch(ix.base, (chunk >> 5) * slots)
    prefetch(ix.scale, (chunk >> 5) * slots)


@bare
def _close(ix, k, chunk, t, world):
    """No message can match clause ``k`` now; every update that might change this has to be heard."""
    meta, row = world.clauses.meta, world.templates.row
    r = meta[k, TEMPLATE]
    meta[k, FLAGS] |= CLOSED
    _set_bit(ix.masks, chunk, OPEN, t, False)
    if meta[k, CONTEXT] >= 0:
        pin(world.contexts, np.int64(meta[k, CONTEXT]), row[r, DEPENDS_LOW], row[r, DEPENDS_HIGH])


@bare
def escalate(ix, k, a, v, old_low, old_high, world):
    """Context attribute ``a`` of clause ``k`` became ``v`` outside its safe range; returns the new safe range."""
    meta = world.clauses.meta
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    place = np.int64(meta[k, PLACE])
    nothing = (np.float32(np.inf), np.float32(-np.inf))
    if place < 0:
        return nothing
    chunk, t = place >> 5, place & 31
    b, ch = chunk >> 5, chunk & 31
    slots = ix.slot_attribute.shape[0]
    ix.count[ESCALATIONS] += 1
    if row[r, GATE_LENGTH] > 0 or meta[k, FLAGS] & CLOSED or math.isnan(v):
        is_open = satisfiable(k, world)
        was_open = (meta[k, FLAGS] & CLOSED) == 0
        if not is_open:
            _close(ix, k, chunk, t, world)
            return nothing
        if not was_open:
            _read(ix, k, world)
            _write(ix, k, b, ch, t, world)
            return nothing
    if ix.heat[chunk] < 255:
        ix.heat[chunk] += np.uint8(1)
    slack = 0.0
    if ix.heat[chunk] > WARM:
        reach = 0.0
        if old_low <= old_high:
            reach = 0.5 * (np.float64(old_high) - np.float64(old_low))
            step = max(np.float64(old_low) - v, v - np.float64(old_high))
        else:
            step = 1e-3 * abs(v)
        slack = 2.0 * (reach + step)
    low, high = np.float32(-np.inf), np.float32(np.inf)
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        pred = world.templates.predicate
        traits = pred[p, TRAITS]
        s = ix.attribute_slot[pred[p, ATTRIBUTE]]
        if traits & COMPLEX:
            low, high = nothing
            if s < 0:
                continue  # such a clause is always postfiltered
            sides, lo, hi = interval(k, np.int64(pred[p, ATTRIBUTE]), world)
            if math.isnan(lo):
                _close(ix, k, chunk, t, world)
                return nothing
            ql, qh = _cells(ix, b, s, sides, lo, hi)
            at = (chunk * slots + s) * LINE + t
            ix.lines[at], ix.lines[at + CHUNK] = ql, qh
            if _widen(ix, b, ch, s, ql, qh, lo, hi):
                _touch(ix, chunk)
            continue
        if s < 0:
            continue
        moves_low = (pred[p, LOW] == CTX or pred[p, LOW] == CTX_PLUS) and pred[p, LOW_CTX] == a
        moves_high = (pred[p, HIGH] == CTX or pred[p, HIGH] == CTX_PLUS) and pred[p, HIGH_CTX] == a
        if not moves_low and not moves_high:
            continue
        base, scale = ix.base[b, s], ix.scale[b, s]
        at = (chunk * slots + s) * LINE + t
        u_low, u_high = v, v
        # Ranges that let through much anyway (a share of bounds, not of messages) are not worth keeping up with.
        wide = ix.passing[s] > 0.4
        if slack > 0 and (wide or ix.heat[chunk] > HEAT):
            if wide or ix.heat[chunk] == 255:
                slack = np.inf
            elif slack * scale > SLACK:
                slack = SLACK / scale
            lo32, hi32 = np.float32(v - slack), np.float32(v + slack)
            if np.float64(lo32) <= v and v <= np.float64(hi32):
                u_low, u_high = np.float64(lo32), np.float64(hi32)
                low, high = max(low, lo32), min(high, hi32)
                _set_bit(ix.masks, chunk, LOOSE, t, True)
                _touch(ix, chunk)
                ix.count[LOOSENED] += 1
            else:
                slack = 0.0
        ql, qh = ix.lines[at], ix.lines[at + CHUNK]
        y_low, y_high = -np.inf, np.inf
        for side in range(2):
            if not (moves_low if side == 0 else moves_high):
                continue
            off = 0.0
            if (pred[p, LOW] if side == 0 else pred[p, HIGH]) == CTX_PLUS:
                off = constant(pred[p, LOW_CONST] if side == 0 else pred[p, HIGH_CONST], own, world)
            y = (u_low if side == 0 else u_high) + off
            if side == 0:
                ql, y_low = cell(y, base, scale), y
            else:
                qh, y_high = cell(y, base, scale), y
            if u_low == u_high:
                lo32, hi32 = _exact_reach(y, off, base, scale)
                low, high = max(low, lo32), min(high, hi32)
        ix.lines[at], ix.lines[at + CHUNK] = ql, qh
        if y_low == -np.inf and not moves_low and pred[p, LOW] != NONE:
            y_low = bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
        if y_high == np.inf and not moves_high and pred[p, HIGH] != NONE:
            y_high = bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
        if _widen(ix, b, ch, s, ql, qh, y_low, y_high):
            _touch(ix, chunk)
    if row[r, GATE_LENGTH] > 0:
        return nothing
    return low, high


@bare
def _tighten(ix, b, ch):
    """Recompute the zone of a chunk from its entries, and the box of its block from the zones."""
    slots = ix.slot_attribute.shape[0]
    chunk = b * CHUNKS + ch
    taken = ix.masks[chunk, TAKEN]
    for s in range(slots):
        if not ix.used[b] >> np.uint64(s) & np.uint64(1):
            continue
        at = (chunk * slots + s) * LINE
        ql, qh = np.uint8(255), np.uint8(0)
        for t in range(CHUNK):
            if taken >> np.uint32(t) & ONE:
                ql, qh = min(ql, ix.lines[at + t]), max(qh, ix.lines[at + CHUNK + t])
        zone = (b * slots + s) * LINE
        shrank = ql > ix.zones[zone + ch] or qh < ix.zones[zone + CHUNKS + ch]
        ix.zones[zone + ch], ix.zones[zone + CHUNKS + ch] = ql, qh
        if not shrank:
            continue
        zl, zh = np.uint8(255), np.uint8(0)
        for i in range(CHUNKS):
            zl, zh = min(zl, ix.zones[zone + i]), max(zh, ix.zones[zone + CHUNKS + i])
        box = ((b >> 5) * slots + s) * LINE + (b & 31)
        # Back from cells to doubles, a cell further out; the end cells hold everything beyond, they cannot shrink.
        if zl > 1 and zl <= 253:
            low = ix.base[b, s] + (np.float64(zl) - 3.0) / ix.scale[b, s]
            ix.boxes[box] = max(ix.boxes[box], global_cell(ix.cuts, s, low))
        if zh < 253 and zh > 0:
            high = ix.base[b, s] + np.float64(zh) / ix.scale[b, s]
            ix.boxes[box + 32] = min(ix.boxes[box + 32], global_cell(ix.cuts, s, high))


@bare
def deescalate(ix, chunk, world):
    """Make a chunk exact and tight again; entries whose home is another block with room move there."""
    b, ch = chunk >> 5, chunk & 31
    ix.count[DEESCALATIONS] += 1
    meta, contexts = world.clauses.meta, world.contexts
    columns = contexts.value.shape[1]
    for stage in range(2):
        taken = ix.masks[chunk, TAKEN]
        while taken != 0:
            k = np.int64(ix.clause[chunk * CHUNK + lowest_bit(taken)])
            taken &= taken - ONE
            if stage == 0:
                prefetch(meta, k * META_COLUMNS)
            elif meta[k, CONTEXT] >= 0:
                at = np.int64(meta[k, CONTEXT]) * columns
                for a in range(0, columns, 8):
                    prefetch(contexts.value, at + a)
                    prefetch(contexts.safe, (at + a) * 2)
    taken = ix.masks[chunk, TAKEN]
    while taken != 0:
        t = lowest_bit(taken)
        taken &= taken - ONE
        k = np.int64(ix.clause[chunk * CHUNK + t])
        _read(ix, k, world)
        home = np.int64(ix.node[_home(ix), LEAF])
        if home != b and _roomiest_fit(ix, home) >= 0:
            remove(ix, k, world)
            _put(ix, k, home, world)
            ix.count[N_ENTRIES] += 1
            ix.count[MOVES] += 1
        else:
            _write(ix, k, b, ch, t, world)
    _tighten(ix, b, ch)
    ix.debt[chunk] = CLEAN
    ix.heat[chunk] = 0


# --- probe ----------------------------------------------------------------------------------------------------------


@bare
def _edges(lines, at, t, q, slots):
    """The slots on which a bound of entry ``t`` shares its cell with the message, as bits: all others are certain."""
    found = np.uint64(0)
    for s in range(slots):
        line = at + s * LINE + t
        if not (lines[line] < q[s] and q[s] < lines[line + CHUNK]):
            found |= np.uint64(1) << np.uint64(s)
    return found


@bare
def _edges_hold(ix, k, m, edges, world):
    """Postfilter only the predicates on the slots in ``edges``."""
    meta, pred = world.clauses.meta, world.templates.predicate
    row, r = world.templates.row, meta[k, TEMPLATE]
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = ix.attribute_slot[pred[p, ATTRIBUTE]]
        if edges >> np.uint64(s) & np.uint64(1) and not predicate_holds(p, m, c, own, world):
            return False
    return True


@bare
def _postfilter(ix, m, n_doubts, doubts, edges, hits, n, special, world):
    """Decide the doubtful entries; what they hang on is fetched a few entries ahead."""
    meta, value, columns = world.clauses.meta, world.contexts.value, world.contexts.value.shape[1]
    n_special = failed = 0
    for i in range(n_doubts):
        if i + 8 < n_doubts:
            c = np.int64(meta[doubts[i + 8], CONTEXT])
            if c >= 0:
                prefetch(value, c * columns)
        k = np.int64(doubts[i])
        if not (_edges_hold(ix, k, m, edges[i], world) if edges[i] else holds(k, m, world)):
            failed += 1
        elif edges[i] == 0 and meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT):
            special[n_special] = k
            n_special += 1
        else:
            hits[n] = meta[k, PROFILE]
            n += 1
    ix.count[CANDIDATES] += n_doubts
    ix.count[FALSE_POSITIVES] += failed
    return n, n_special


@bare
def _owe(debt, chunk, amount, owed, n_owed):
    """Add to the debt of a chunk that may improve; when it is due the chunk is noted for deescalation."""
    if debt[chunk] >= 0:
        debt[chunk] += amount
        if debt[chunk] >= 4 * DEBT and n_owed < owed.shape[0]:
            debt[chunk] = 0
            owed[n_owed] = chunk
            n_owed += 1
    return n_owed


@bare
def probe(ix, m, world, hits, special, doubts, edges, owed, scratch):
    """All matches of message row ``m``.

    Writes profile codes to ``hits`` and clauses that hold but belong to a profile with other clauses or with effects
    to ``special``; chunks whose debt is due to ``owed``. Returns the three counts. ``doubts`` and ``edges`` are room
    for entries to postfilter, ``scratch`` is two arrays uint8 [slots].
    """
    slots = ix.slot_attribute.shape[0]
    lines, zones, boxes, masks, profile = ix.lines, ix.zones, ix.boxes, ix.masks, ix.profile
    heat, debt, base, scale, slot_attribute = ix.heat, ix.debt, ix.base, ix.scale, ix.slot_attribute
    x_of, meta = world.messages.value, world.clauses.meta
    g, q = scratch
    for s in range(slots):
        x = x_of[m, slot_attribute[s]]
        g[s] = ABSENT_CELL if math.isnan(x) else global_cell(ix.cuts, s, x)
    n = n_doubts = n_owed = 0
    blocks_met = chunks_met = 0
    n_blocks = ix.count[N_BLOCKS]
    for d in range((n_blocks + 31) >> 5):
        alive = FULL
        if n_blocks - d * 32 < 32:
            alive = (ONE << np.uint32(n_blocks - d * 32)) - ONE
        at = d * slots * LINE
        for s in range(slots):
            alive &= covers(boxes, at, g[s])
            if alive == 0:
                break
            at += LINE
        while alive != 0:
            b = d * 32 + lowest_bit(alive)
            alive &= alive - ONE
            used = ix.used[b]
            near = ix.summary[b]
            blocks_met += 1
            at = b * slots * LINE
            for s in range(slots):
                if used >> np.uint64(s) & np.uint64(1):
                    if g[s] == ABSENT_CELL:
                        q[s] = ABSENT_CELL
                    else:
                        q[s] = cell(x_of[m, slot_attribute[s]], base[b, s], scale[b, s])
                    near &= covers(zones, at + s * LINE, q[s])
                    if near == 0:
                        break
                else:
                    q[s] = np.uint8(128)
            # Chunks lie anywhere in memory: ask for all of them before the first is needed.
            ahead = near
            while ahead != 0:
                chunk = b * CHUNKS + lowest_bit(ahead)
                ahead &= ahead - ONE
                for s in range(min(slots, 4)):
                    prefetch(lines, (chunk * slots + s) * LINE)
                prefetch(profile, chunk * CHUNK)
            while near != 0:
                chunk = b * CHUNKS + lowest_bit(near)
                near &= near - ONE
                chunks_met += 1
                found = masks[chunk, OPEN]
                at = chunk * slots * LINE
                for s in range(slots):
                    found &= covers(lines, at + s * LINE, q[s])
                    if found == 0:
                        break
                heat[chunk] = 0
                if found == 0:
                    n_owed = _owe(debt, chunk, VAIN, owed, n_owed)
                    continue
                place = chunk * CHUNK
                doubtful = found & (masks[chunk, LOOSE] | masks[chunk, FIXED])
                close = found & ~doubtful
                if close != 0:
                    certain = close
                    for s in range(slots):
                        certain &= covers_strictly(lines, at + s * LINE, q[s])
                        if certain == 0:
                            break
                    close &= ~certain
                    while certain != 0:
                        hits[n] = profile[place + lowest_bit(certain)]
                        n += 1
                        certain &= certain - ONE
                    while close != 0:
                        t = lowest_bit(close)
                        close &= close - ONE
                        k = np.int64(ix.clause[place + t])
                        prefetch(meta, k * META_COLUMNS)
                        doubts[n_doubts], edges[n_doubts] = k, _edges(lines, at, t, q, slots)
                        n_doubts += 1
                if doubtful != 0:
                    n_owed = _owe(debt, chunk, 4 * count_bits(doubtful & masks[chunk, LOOSE]), owed, n_owed)
                    while doubtful != 0:
                        k = np.int64(ix.clause[place + lowest_bit(doubtful)])
                        doubtful &= doubtful - ONE
                        prefetch(meta, k * META_COLUMNS)
                        doubts[n_doubts], edges[n_doubts] = k, 0
                        n_doubts += 1
    ix.count[PROBES] += 1
    ix.count[BLOCKS_MET] += blocks_met
    ix.count[CHUNKS_MET] += chunks_met
    n, n_special = _postfilter(ix, m, n_doubts, doubts, edges, hits, n, special, world)
    return n, n_special, n_owed


# --- check ----------------------------------------------------------------------------------------------------------


@bare
def check(ix, ids, world):
    """Verify the invariants for all live clauses ``ids``; returns (code, clause, slot), code 0 when all hold."""
    slots = ix.slot_attribute.shape[0]
    if ix.count[N_ENTRIES] != ids.shape[0]:
        return 1, -1, -1
    taken = 0
    for chunk in range(ix.count[N_BLOCKS] * CHUNKS):
        taken += count_bits(ix.masks[chunk, TAKEN])
    if taken != ids.shape[0]:
        return 2, -1, -1
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        meta = world.clauses.meta
        place = np.int64(meta[k, PLACE])
        if place < 0 or ix.clause[place] != k or ix.profile[place] != meta[k, PROFILE]:
            return 3, k, -1
        chunk, t = place >> 5, place & 31
        b, ch = chunk >> 5, chunk & 31
        bit = ONE << np.uint32(t)
        if not ix.masks[chunk, TAKEN] & bit or not ix.summary[b] & (ONE << np.uint32(ch)):
            return 4, k, -1
        is_open = satisfiable(k, world)
        loose = ix.masks[chunk, LOOSE] & bit != 0
        marked = ix.masks[chunk, OPEN] & bit != 0
        if is_open and not marked:
            return 5, k, -1
        if not is_open:
            if marked and not loose and not ix.masks[chunk, FIXED] & bit:
                return 5, k, -1
            continue
        for s in range(slots):
            sides, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
            ql, qh = _cells(ix, b, s, sides, low, high)
            at = (chunk * slots + s) * LINE + t
            sl, sh = ix.lines[at], ix.lines[at + CHUNK]
            if sl > ql or sh < qh:
                return 6, k, s
            if not loose and (sl != ql or sh != qh):
                return 7, k, s
            if sides and not ix.used[b] >> np.uint64(s) & np.uint64(1):
                return 8, k, s
            if ix.zones[(b * slots + s) * LINE + ch] > sl or ix.zones[(b * slots + s) * LINE + CHUNKS + ch] < sh:
                return 9, k, s
            box = ((b >> 5) * slots + s) * LINE + (b & 31)
            gl = OPEN_LOW if ql == OPEN_LOW else global_cell(ix.cuts, s, low)
            gh = qh if qh >= OPEN_HIGH else global_cell(ix.cuts, s, high)
            if ix.boxes[box] > gl or ix.boxes[box + 32] < gh:
                return 10, k, s
    return 0, -1, -1
