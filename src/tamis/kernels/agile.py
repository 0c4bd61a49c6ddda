"""AGILE on the index ``blocks``: escalate and deescalate (see :mod:`tamis.kernels.blocks`; paper 000, section 5)."""

from __future__ import annotations

import math

import numpy as np

from .bundles import (
    ATTRIBUTE,
    CLOSED,
    COMPLEX,
    CONSTANTS,
    CONTEXT,
    DEPENDS_HIGH,
    DEPENDS_LOW,
    ESCALATIONS,
    FIRST_PREDICATE,
    FLAGS,
    GATE_LENGTH,
    META_COLUMNS,
    N_ENTRIES,
    PLACE,
    PREDICATES,
    TEMPLATE,
    TRAITS,
)
from .cells import (
    BY_CONTEXT,
    CHUNK,
    CHUNKS,
    CLEAN,
    DEESCALATIONS,
    LEAF,
    LINE,
    MOVES,
    ONE,
    OPEN,
    SAMPLES,
    TAKEN,
    cells_of,
    fit,
    global_cell,
    moves,
    pin,
    read_entry,
    routed,
    set_bit,
    shrink_core,
    touch,
    widen,
    write_entry,
)
from .cluster import home_of, put, remove, roomiest_fit
from .jit import bare
from .postfilter import interval, satisfiable
from .simd import lowest_bit, prefetch


@bare
def _close(ix, k, chunk, t, world):
    """No message can match clause ``k`` now; every update that might change this has to be heard."""
    meta, row = world.clauses.meta, world.templates.row
    r = meta[k, TEMPLATE]
    meta[k, FLAGS] |= CLOSED
    set_bit(ix.masks, chunk, OPEN, t, False)
    if meta[k, CONTEXT] >= 0:
        pin(world.contexts, np.int64(meta[k, CONTEXT]), row[r, DEPENDS_LOW], row[r, DEPENDS_HIGH])


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
    prefetch(ix.cores, ((chunk >> 5) * slots + s) * LINE)
    prefetch(ix.margin, chunk * slots + s)
    prefetch(ix.base, (chunk >> 5) * slots)
    prefetch(ix.scale, (chunk >> 5) * slots)


@bare
def escalate(ix, k, a, v, world):
    """Context attribute ``a`` of clause ``k`` became ``v`` outside its safe range; returns the new safe range."""
    meta, pred = world.clauses.meta, world.templates.predicate
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    own, place = np.int64(meta[k, CONSTANTS]), np.int64(meta[k, PLACE])
    nothing = (np.float32(np.inf), np.float32(-np.inf))
    if place < 0:
        return nothing
    chunk, t = place >> 5, place & 31
    b, ch = chunk >> 5, chunk & 31
    ix.count[ESCALATIONS] += 1
    if a < 64 and not (meta[k, FLAGS] & CLOSED or math.isnan(v)):
        p = routed(ix, r, BY_CONTEXT, a, row[r, FIRST_PREDICATE])
        if p >= 0:
            return fit(ix, p, a, v, ix.slack[ix.attribute_slot[pred[p, ATTRIBUTE]]], own, b, ch, t, world)
    if row[r, GATE_LENGTH] > 0 or meta[k, FLAGS] & CLOSED or math.isnan(v):
        is_open = satisfiable(k, world)
        if not is_open:
            _close(ix, k, chunk, t, world)
            return nothing
        if meta[k, FLAGS] & CLOSED:
            read_entry(ix, k, world)
            write_entry(ix, k, b, ch, t, world)
            return nothing
    low, high = np.float32(-np.inf), np.float32(np.inf)
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if pred[p, TRAITS] & COMPLEX:
            low, high = nothing
            if not _recompute(ix, k, p, b, ch, t, world):
                _close(ix, k, chunk, t, world)
                return nothing
        elif moves(pred, p, a):
            s = ix.attribute_slot[pred[p, ATTRIBUTE]]
            if s >= 0:
                lo, hi = fit(ix, p, a, v, ix.slack[s], own, b, ch, t, world)
                low, high = max(low, lo), min(high, hi)
    if row[r, GATE_LENGTH] > 0:
        return nothing
    return low, high


@bare
def _recompute(ix, k, p, b, ch, t, world):
    """Write the range of a COMPLEX predicate as its context stands; False when it has no value."""
    attribute = np.int64(world.templates.predicate[p, ATTRIBUTE])
    s = np.int64(ix.attribute_slot[attribute])
    if s < 0:
        return True  # such a clause is always postfiltered
    sides, low, high = interval(k, attribute, world)
    if math.isnan(low):
        return False
    ql, qh = cells_of(ix, b, s, sides, low, high)
    at = ((b * CHUNKS + ch) * ix.slot_attribute.shape[0] + s) * LINE + t
    ix.lines[at], ix.lines[at + CHUNK] = ql, qh
    shrink_core(ix, b, ch, s, ql, qh)
    if widen(ix, b, ch, s, ql, qh, low, high):
        touch(ix, b * CHUNKS + ch)
    return True


# -- how much slack: paper 000's policy question, answered by weighing what both sides cost -------------------------

# Costs in postfilter tests (about 30 ns).
ESCALATION = 5.0
SAMPLE = 64  # one update in so many, and one message in MESSAGE_SAMPLE, are looked at closely
MESSAGE_SAMPLE = 8
# Columns of Blocks.seen, per slot: updates, sum of squared steps, doubts, entries found, sum of their lines' margins.
# In the row behind the slots: messages, updates.
MOVED, SQUARES, DOUBTED, FOUND, MARGINS = range(5)
SEEN = 5
MEMORY = 512.0  # messages after which what was seen counts half


@bare
def observe(ix, c, a, v, old, world):
    """Take note of one update in ``SAMPLE``: which slots it moves, and how far."""
    slots = ix.slot_attribute.shape[0]
    pred, row = world.templates.predicate, world.templates.row
    seen = ix.seen
    seen[slots, 1] += SAMPLE
    k = np.int64(world.contexts.head[c])
    step = v - old
    if k >= 0 and math.isfinite(step):
        r = world.clauses.meta[k, TEMPLATE]
        for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
            s = ix.attribute_slot[pred[p, ATTRIBUTE]]
            if s >= 0 and moves(pred, p, a):
                seen[s, MOVED] += SAMPLE
                seen[s, SQUARES] += SAMPLE * step * step
    ix.count[SAMPLES] += 1
    if ix.count[SAMPLES] & 127 == 0:
        adapt(ix)


@bare
def adapt(ix):
    """Give every slot the slack that would have cost least so far.

    With slack x an update escalates with probability ~ 1 / (1 + x^2 / mean squared step): a random walk leaves a range
    in the square of its width. The ends of an entry are in doubt over 2 x and a cell each, so doubts are linear in x.
    """
    slots = ix.slot_attribute.shape[0]
    seen = ix.seen
    for s in range(slots):
        updates = seen[s, MOVED]
        if updates == 0.0:
            ix.slack[s] = 0.0 if seen[slots, 0] > 0.0 else ix.slack[s]
            continue
        square = seen[s, SQUARES] / updates + 1e-300
        grain = ix.grain[s]
        margin = seen[s, MARGINS] / max(1.0, seen[s, FOUND])
        doubts = seen[s, DOUBTED] / (1.0 + margin)  # per cell of margin
        best, cost = np.inf, min(doubts * 253.0, seen[s, FOUND] / ix.passing[s])
        x = 126.0 * grain
        while x >= 0.0:
            price = updates * ESCALATION / (1.0 + x * x / square) + doubts * (1.0 + 2.0 * x / grain)
            if price < cost:
                best, cost = x, price
            x = 0.5 * x if x > 0.25 * grain else x - 1.0 if x == 0.0 else 0.0
        ix.slack[s] = best
    if seen[slots, 0] >= MEMORY or (seen[slots, 0] >= 8.0 and seen[slots, 1] > 4e6):
        for s in range(slots + 1):
            for i in range(SEEN):
                seen[s, i] *= 0.5


@bare
def _tighten(ix, b, ch):
    """Recompute the zone and the core of a chunk from its entries, and the box of its block from the zones."""
    slots = ix.slot_attribute.shape[0]
    chunk = b * CHUNKS + ch
    taken = ix.masks[chunk, TAKEN]
    for s in range(slots):
        if not ix.used[b] >> np.uint64(s) & np.uint64(1):
            continue
        at = (chunk * slots + s) * LINE
        ql, qh = np.uint8(255), np.uint8(0)
        core_low, core_high = np.uint8(0), np.uint8(255)
        is_open = ix.masks[chunk, OPEN]
        for t in range(CHUNK):
            if taken >> np.uint32(t) & ONE:
                low, high = ix.lines[at + t], ix.lines[at + CHUNK + t]
                ql, qh = min(ql, low), max(qh, high)
                if is_open >> np.uint32(t) & ONE:
                    core_low, core_high = max(core_low, low), min(core_high, high)
        zone = (b * slots + s) * LINE
        wide = np.int64(ix.margin[chunk * slots + s])
        ix.cores[zone + ch] = min(255, core_low + wide)
        ix.cores[zone + CHUNKS + ch] = max(0, np.int64(core_high) - wide)
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
            low = ix.base[b, s] + (np.float64(zl) - 3.0) * ix.width[b, s]
            ix.boxes[box] = max(ix.boxes[box], global_cell(ix.cuts, s, low))
        if zh < 253 and zh > 0:
            high = ix.base[b, s] + np.float64(zh) * ix.width[b, s]
            ix.boxes[box + 32] = min(ix.boxes[box + 32], global_cell(ix.cuts, s, high))


@bare
def deescalate(ix, chunk, world):
    """Make a chunk as tight as its slots' slack allows; entries whose home is another block with room move there."""
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
    slots = ix.slot_attribute.shape[0]
    for s in range(slots):
        ix.margin[chunk * slots + s] = 0
    taken = ix.masks[chunk, TAKEN]
    while taken != 0:
        t = lowest_bit(taken)
        taken &= taken - ONE
        k = np.int64(ix.clause[chunk * CHUNK + t])
        read_entry(ix, k, world)
        home = np.int64(ix.node[home_of(ix), LEAF])
        if home != b and roomiest_fit(ix, home) >= 0:
            remove(ix, k, world)
            put(ix, k, home, world)
            ix.count[N_ENTRIES] += 1
            ix.count[MOVES] += 1
        else:
            write_entry(ix, k, b, ch, t, world)
    _tighten(ix, b, ch)
    ix.debt[chunk] = CLEAN
