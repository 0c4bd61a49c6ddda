"""Entries of the index ``blocks``: cells, lines, what an entry lets its context do; see :mod:`tamis.kernels.blocks`."""

from __future__ import annotations

import math

import numpy as np

from .bundles import (
    ATTRIBUTE,
    CLOSED,
    COMMON_COUNTS,
    COMPLEX,
    CONSTANTS,
    CONTEXT,
    CTX,
    CTX_PLUS,
    DEPENDS_HIGH,
    DEPENDS_LOW,
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
    NEXT,
    NONE,
    PLACE,
    PREDICATES,
    PROFILE,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
)
from .jit import bare, inlined
from .postfilter import bound, constant, satisfiable

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
def set_bit(masks, chunk, which, t, on):
    if on:
        masks[chunk, which] |= ONE << np.uint32(t)
    else:
        masks[chunk, which] &= ~(ONE << np.uint32(t))


@inlined
def touch(ix, chunk):
    """A range grew: from now on a deescalation of this chunk may gain something."""
    if ix.debt[chunk] == CLEAN:
        ix.debt[chunk] = 0


@bare
def widen(ix, b, ch, s, ql, qh, low, high):
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
def read_entry(ix, k, world):
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
def cells_of(ix, b, s, sides, low, high):
    """The range of cells of an interval (see ``postfilter.interval``) in block ``b``."""
    if sides == 0:
        return OPEN_LOW, ANY_HIGH
    ql = cell(low, ix.base[b, s], ix.scale[b, s]) if sides & 2 else OPEN_LOW
    qh = cell(high, ix.base[b, s], ix.scale[b, s]) if sides & 4 else OPEN_HIGH
    return ql, qh


@inlined
def exact_reach(y, k, base, scale):
    """The range of u for which ``cell(u + k)`` stays the cell of ``y``; empty when it cannot be named in float32."""
    q = cell(y, base, scale)
    # In an end cell the box of the block ends a little beyond y (see ``widen``), and so does the reach.
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
                low, high = exact_reach(y, off, ix.base[b, s], ix.scale[b, s])
                narrow(contexts, c, a, low, high)


@bare
def write_entry(ix, k, b, ch, t, world):
    """Write the exact ranges of clause ``k``, which ``read_entry`` has read, into a place; zones and boxes grow."""
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
            ql, qh = cells_of(ix, b, s, sides, low, high)
        ix.lines[at] = ql
        ix.lines[at + CHUNK] = qh
        if sides:
            ix.used[b] |= np.uint64(1) << np.uint64(s)
        if widen(ix, b, ch, s, ql, qh, low, high):
            touch(ix, chunk)
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    fixed = row[r, PROGRAM_LENGTH] > 0 or (meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT)) != 0
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if ix.attribute_slot[world.templates.predicate[p, ATTRIBUTE]] < 0:
            fixed = True
    place = chunk * CHUNK + t
    set_bit(ix.masks, chunk, TAKEN, t, True)
    set_bit(ix.masks, chunk, OPEN, t, is_open)
    set_bit(ix.masks, chunk, LOOSE, t, False)
    set_bit(ix.masks, chunk, FIXED, t, fixed)
    ix.summary[b] |= ONE << np.uint32(ch)
    ix.clause[place] = k
    ix.profile[place] = meta[k, PROFILE]
    meta[k, PLACE] = place
    _claim_exact(ix, k, b, world)
