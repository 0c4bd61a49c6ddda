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
    PINNED,
    PLACE,
    PREDICATES,
    PROFILE,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
    WATCHED,
)
from .jit import bare, inlined
from .postfilter import bound, constant, satisfiable
from .simd import count_bits

CHUNK = 32
CHUNKS = 32
BLOCK = CHUNK * CHUNKS
CHUNK_FILL = 28
BLOCK_FILL = CHUNK_FILL * CHUNKS
LINE = 64

# Columns of Blocks.masks, per chunk: slots in use; satisfiable now; always to be postfiltered.
TAKEN, OPEN, FIXED = range(3)
MASKS = 3
# Columns of Blocks.node: split slot, left, right, block (-1 for an inner node).
SLOT, LEFT, RIGHT, LEAF = range(4)
# Entries of Blocks.count behind the common ones.
BLOCKS_MET, CHUNKS_MET, DEESCALATIONS, MOVES, SPLITS = range(COMMON_COUNTS, COMMON_COUNTS + 5)
N_BLOCKS, N_NODES, SAMPLES, N_AWAY = range(COMMON_COUNTS + 5, COMMON_COUNTS + 9)
# Entries at the root, contexts in the sketch, contexts that passed it.
N_ROOT, N_CONTEXTS, ROOT_MET = range(COMMON_COUNTS + 9, COMMON_COUNTS + 12)
# Scans of a chunk in vain after which it is deescalated; a negative one times updates per false positive.
DUE = COMMON_COUNTS + 12
COUNTS = 20
# Places of clauses that are in no block.
OUT, AT_ROOT = -1, -2

OPEN_LOW, OPEN_HIGH, ANY_HIGH, ABSENT_CELL = np.uint8(0), np.uint8(254), np.uint8(255), np.uint8(255)
DEBT = 1024  # scans of a chunk in vain that cost as much as one deescalation (about 70 microseconds)
CLEAN = -1  # debt of a chunk that a deescalation could not improve
UNBOUNDED = 200  # margin of a line, in cells, from which on it lets everything through
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
        # infinity, there it covers the doubles.
        box = ((b >> 5) * slots + s) * LINE + (b & 31)
        if ql == OPEN_LOW:
            ix.boxes[box] = OPEN_LOW
        else:
            if ql > 1:
                low = ix.base[b, s] + (np.float64(ql) - 3.0) * ix.width[b, s]
            else:
                ix.reach[b, s, 0] = min(ix.reach[b, s, 0], low)
            ix.boxes[box] = min(ix.boxes[box], global_cell(ix.cuts, s, low))
        if qh >= OPEN_HIGH:
            ix.boxes[box + 32] = max(ix.boxes[box + 32], qh)
        else:
            if qh < 253:
                high = ix.base[b, s] + np.float64(qh) * ix.width[b, s]
            else:
                ix.reach[b, s, 1] = max(ix.reach[b, s, 1], high)
            ix.boxes[box + 32] = max(ix.boxes[box + 32], global_cell(ix.cuts, s, high))
    return grew


@inlined
def shrink_core(ix, b, ch, s, low, high):
    """Keep the core of a chunk, the cells strictly inside all its entries, within (low, high)."""
    at = (b * ix.slot_attribute.shape[0] + s) * LINE + ch
    ix.cores[at] = max(ix.cores[at], low)
    ix.cores[at + CHUNKS] = min(ix.cores[at + CHUNKS], high)


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
def narrow(contexts, c, a, low, high):
    """Shrink the safe range of one context value and watch it if it is finite."""
    contexts.safe[c, a, 0] = max(contexts.safe[c, a, 0], low)
    contexts.safe[c, a, 1] = min(contexts.safe[c, a, 1], high)
    if not (contexts.safe[c, a, 0] == -np.inf and contexts.safe[c, a, 1] == np.inf):
        contexts.watch[c, a >> 3, WATCHED] |= np.uint8(1 << (a & 7))
    if contexts.safe[c, a, 0] > contexts.safe[c, a, 1]:
        contexts.watch[c, a >> 3, PINNED] |= np.uint8(1 << (a & 7))


@inlined
def release(contexts, c, a):
    """Forget the safe range of one context value: no entry depends on it."""
    contexts.safe[c, a, 0] = -np.inf
    contexts.safe[c, a, 1] = np.inf
    contexts.watch[c, a >> 3, WATCHED] &= np.uint8(~(1 << (a & 7)))
    contexts.watch[c, a >> 3, PINNED] &= np.uint8(~(1 << (a & 7)))


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


# Columns of Blocks.routes (per template, bits) and Blocks.route (per predicate, in the order of those bits): the
# predicate on a slot, and the one predicate that a context attribute moves. A template without bits has to be searched.
BY_SLOT, BY_CONTEXT = 0, 1


@inlined
def routed(ix, r, which, i, first):
    """The predicate of template ``r`` for bit ``i``, -1 for none."""
    bits = ix.routes[r, which]
    bit = np.uint64(1) << np.uint64(i)
    if not bits & bit:
        return np.int64(-1)
    return np.int64(ix.route[first + count_bits(bits & (bit - np.uint64(1))), which])


@bare
def find_routes(ix, known, templates, whole, world):
    """Fill in the routes of templates known..templates; those that are not regular stay without, and are searched.

    With ``whole`` a template is regular only if all of its predicates have a slot; else those without are passed over.
    """
    row, pred = world.templates.row, world.templates.predicate
    for r in range(known, templates):
        first, last = np.int64(row[r, FIRST_PREDICATE]), np.int64(row[r, FIRST_PREDICATE] + row[r, PREDICATES])
        for which in range(2):
            bits = np.uint64(0)
            regular = which == BY_SLOT or row[r, GATE_LENGTH] == 0
            for p in range(first, last):
                s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
                regular = regular and pred[p, TRAITS] == 0 and (s >= 0 or not whole)
                if s < 0:
                    continue
                low = np.int64(pred[p, LOW_CTX]) if pred[p, LOW] == CTX or pred[p, LOW] == CTX_PLUS else -1
                high = np.int64(pred[p, HIGH_CTX]) if pred[p, HIGH] == CTX or pred[p, HIGH] == CTX_PLUS else -1
                for i in range(2):
                    at = s if which == BY_SLOT else low if i == 0 else high
                    if at < 0 or (i == 1 and (which == BY_SLOT or low == high)):
                        continue
                    regular = regular and at < 64 and not bits >> np.uint64(at) & np.uint64(1)
                    bits |= np.uint64(1) << np.uint64(at & 63)
            # A predicate that depends on two attributes may need more room than there is.
            regular = regular and count_bits(bits) <= last - first
            ix.routes[r, which] = bits if regular else np.uint64(0)
            if not regular:
                continue
            for p in range(first, last):
                at = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
                if at < 0:
                    continue
                for i in range(2):
                    if which == BY_CONTEXT:
                        at = np.int64(pred[p, LOW_CTX] if i == 0 else pred[p, HIGH_CTX])
                        if not moves(pred, p, at):
                            continue
                    rank = count_bits(bits & ((np.uint64(1) << np.uint64(at)) - np.uint64(1)))
                    ix.route[first + rank, which] = p


@inlined
def moves(pred, p, a):
    """Whether a bound of predicate ``p`` moves with context attribute ``a``."""
    low, high = pred[p, LOW], pred[p, HIGH]
    return ((low == CTX or low == CTX_PLUS) and pred[p, LOW_CTX] == a) or (
        (high == CTX or high == CTX_PLUS) and pred[p, HIGH_CTX] == a
    )


@bare
def fit(ix, p, a, v, slack, own, b, ch, t, world):
    """Give an entry a range on the slot of predicate ``p`` that holds while context attribute ``a`` is in v +- slack.

    Returns that range of the attribute, in float32; empty when there is no slack: then every update has to be heard.
    """
    pred = world.templates.predicate
    slots = ix.slot_attribute.shape[0]
    s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
    low, high = np.float32(v - slack), np.float32(v + slack)
    u_low, u_high = np.float64(low), np.float64(high)
    if not (slack > 0.0 and u_low <= v and v <= u_high):
        low, high = np.float32(np.inf), np.float32(-np.inf)
        u_low, u_high = v, v
    base, scale = ix.base[b, s], ix.scale[b, s]
    line = (b * CHUNKS + ch) * slots + s
    at = line * LINE + t
    ql, qh = ix.lines[at], ix.lines[at + CHUNK]
    margin = np.int64(ix.margin[line])
    inner_low, inner_high = OPEN_LOW, ANY_HIGH
    y_low, y_high = np.inf, -np.inf  # an end that does not move is in the box already
    kind = pred[p, LOW]
    if (kind == CTX or kind == CTX_PLUS) and pred[p, LOW_CTX] == a:
        off = constant(pred[p, LOW_CONST], own, world) if kind == CTX_PLUS else 0.0
        y_low = u_low + off
        ql = cell(y_low, base, scale)
        inner_low = cell(u_high + off, base, scale)
        margin = max(margin, np.int64(inner_low) - np.int64(ql))
    kind = pred[p, HIGH]
    if (kind == CTX or kind == CTX_PLUS) and pred[p, HIGH_CTX] == a:
        off = constant(pred[p, HIGH_CONST], own, world) if kind == CTX_PLUS else 0.0
        y_high = u_high + off
        qh = cell(y_high, base, scale)
        inner_high = cell(u_low + off, base, scale)
        margin = max(margin, np.int64(qh) - np.int64(inner_high))
    ix.lines[at], ix.lines[at + CHUNK] = ql, qh
    ix.margin[line] = np.uint8(margin)
    shrink_core(ix, b, ch, s, inner_low, inner_high)
    if widen(ix, b, ch, s, ql, qh, y_low, y_high):
        touch(ix, b * CHUNKS + ch)
    return low, high


@bare
def _claim(ix, k, b, ch, t, world):
    """Narrow the safe ranges of the context of clause ``k`` to what its entry allows.

    A value that had slack keeps as much as its slot gives now: what has moved will move again.
    """
    meta = world.clauses.meta
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    if c < 0:
        return
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    contexts, pred = world.contexts, world.templates.predicate
    alone = contexts.head[c] == k and meta[k, NEXT] < 0
    moving = np.uint64(0)
    for a in range(contexts.value.shape[1]):
        if depends(row, r, a):
            low, high = contexts.safe[c, a, 0], contexts.safe[c, a, 1]
            if low <= high and np.float32(-np.inf) < low and high < np.float32(np.inf):
                moving |= np.uint64(1) << np.uint64(min(a, 63))
            if alone:
                release(contexts, c, a)
    if row[r, GATE_LENGTH] > 0 or meta[k, FLAGS] & CLOSED:
        pin(contexts, c, row[r, DEPENDS_LOW], row[r, DEPENDS_HIGH])
        return
    first, last = np.int64(row[r, FIRST_PREDICATE]), np.int64(row[r, FIRST_PREDICATE] + row[r, PREDICATES])
    for p in range(first, last):
        if pred[p, TRAITS] & COMPLEX:
            pin(contexts, c, row[r, DEPENDS_LOW], row[r, DEPENDS_HIGH])
            return
    for p in range(first, last):
        s = ix.attribute_slot[pred[p, ATTRIBUTE]]
        if s < 0:
            # Not indexed: only presence matters, and losing the value goes through NaN, which is never safe.
            continue
        for side in range(2):
            kind = pred[p, LOW] if side == 0 else pred[p, HIGH]
            if kind != CTX and kind != CTX_PLUS:
                continue
            a = np.int64(pred[p, LOW_CTX] if side == 0 else pred[p, HIGH_CTX])
            if side == 1 and (pred[p, LOW] == CTX or pred[p, LOW] == CTX_PLUS) and pred[p, LOW_CTX] == a:
                continue
            slack = ix.slack[s]
            if slack != np.inf and not moving >> np.uint64(min(a, 63)) & np.uint64(1):
                slack = 0.0
            low, high = fit(ix, p, a, contexts.value[c, a], slack, own, b, ch, t, world)
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
            shrink_core(ix, b, ch, s, ql, qh)
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
    set_bit(ix.masks, chunk, FIXED, t, fixed)
    ix.summary[b] |= ONE << np.uint32(ch)
    ix.clause[place] = k
    ix.profile[place] = meta[k, PROFILE]
    meta[k, PLACE] = place
    _claim(ix, k, b, ch, t, world)
