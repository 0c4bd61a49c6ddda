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
    CTX,
    CTX_PLUS,
    DEPENDS_HIGH,
    DEPENDS_LOW,
    ESCALATIONS,
    FIRST_PREDICATE,
    FLAGS,
    GATE_LENGTH,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    LOW,
    LOW_CONST,
    LOW_CTX,
    META_COLUMNS,
    N_ENTRIES,
    NONE,
    PLACE,
    PREDICATES,
    TEMPLATE,
    TRAITS,
)
from .cells import (
    CHUNK,
    CHUNKS,
    CLEAN,
    DEESCALATIONS,
    HEAT,
    LEAF,
    LINE,
    LOOSE,
    LOOSENED,
    MOVES,
    ONE,
    OPEN,
    SLACK,
    TAKEN,
    WARM,
    cell,
    cells_of,
    exact_reach,
    global_cell,
    pin,
    read_entry,
    set_bit,
    touch,
    widen,
    write_entry,
)
from .cluster import home_of, put, remove, roomiest_fit
from .jit import bare
from .postfilter import bound, constant, interval, satisfiable
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
    prefetch(ix.heat, chunk)
    prefetch(ix.base, (chunk >> 5) * slots)
    prefetch(ix.scale, (chunk >> 5) * slots)


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
            read_entry(ix, k, world)
            write_entry(ix, k, b, ch, t, world)
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
            ql, qh = cells_of(ix, b, s, sides, lo, hi)
            at = (chunk * slots + s) * LINE + t
            ix.lines[at], ix.lines[at + CHUNK] = ql, qh
            if widen(ix, b, ch, s, ql, qh, lo, hi):
                touch(ix, chunk)
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
                set_bit(ix.masks, chunk, LOOSE, t, True)
                touch(ix, chunk)
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
                lo32, hi32 = exact_reach(y, off, base, scale)
                low, high = max(low, lo32), min(high, hi32)
        ix.lines[at], ix.lines[at + CHUNK] = ql, qh
        if y_low == -np.inf and not moves_low and pred[p, LOW] != NONE:
            y_low = bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
        if y_high == np.inf and not moves_high and pred[p, HIGH] != NONE:
            y_high = bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
        if widen(ix, b, ch, s, ql, qh, y_low, y_high):
            touch(ix, chunk)
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
    ix.heat[chunk] = 0
