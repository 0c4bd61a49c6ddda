"""AGILE on the index ``blocks``: escalate and deescalate (see :mod:`tamis.kernels.blocks`; paper 000, section 5)."""

from __future__ import annotations

import math

import numpy as np

from .bundles import (
    ATTRIBUTE,
    AWAY,
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
    NEXT,
    PLACE,
    PREDICATES,
    TEMPLATE,
    TRAITS,
)
from .cells import (
    AT_ROOT,
    BY_CONTEXT,
    BY_SLOT,
    CHUNK,
    CHUNKS,
    CLEAN,
    DEESCALATIONS,
    LEAF,
    LINE,
    MOVES,
    N_AWAY,
    ONE,
    OPEN,
    TAKEN,
    UNBOUNDED,
    cell,
    cells_of,
    fit,
    global_cell,
    moves,
    pin,
    read_entry,
    release,
    routed,
    set_bit,
    shrink_core,
    touch,
    widen,
    write_entry,
)
from .cluster import best_chunk, has_room, home_of, put, remove, shift, want_cells
from .jit import bare, inlined
from .postfilter import constant, interval, satisfiable
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
def announce(ix, k, a, world):
    """Prefetch what an escalation of clause ``k`` by context attribute ``a`` will touch; returns what ``follow`` needs.

    That is the one predicate which the attribute moves, -1 when it is not that simple.
    """
    meta, row = world.clauses.meta, world.templates.row
    r, chunk = meta[k, TEMPLATE], np.int64(meta[k, PLACE]) >> 5
    p = routed(ix, r, BY_CONTEXT, a, np.int64(row[r, FIRST_PREDICATE])) if a < 64 else np.int64(-1)
    if chunk >= 0 and p >= 0:
        slots = ix.slot_attribute.shape[0]
        s = np.int64(ix.attribute_slot[world.templates.predicate[p, ATTRIBUTE]])
        prefetch(ix.lines, (chunk * slots + s) * LINE)
    return p


@bare
def follow(ix, k, p, a, v, world):
    """Let the entry of clause ``k`` follow context attribute ``a``, on which it has no slack, to ``v``.

    ``p`` is what ``announce`` said. False when it takes more than to write two cells: then the entry escalates.
    """
    meta, pred = world.clauses.meta, world.templates.predicate
    place = np.int64(meta[k, PLACE])
    if place == AT_ROOT:
        return True
    if p < 0 or place < 0 or meta[k, FLAGS] & CLOSED or math.isnan(v):
        return False
    s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
    if ix.slack[s] > 0.0:
        return False
    own = np.int64(meta[k, CONSTANTS])
    slots = ix.slot_attribute.shape[0]
    chunk, t = place >> 5, place & 31
    b, ch = chunk >> 5, chunk & 31
    base, scale = ix.base[b, s], ix.scale[b, s]
    leash = ix.leash[s] * scale + 1.0
    at, zone = (chunk * slots + s) * LINE + t, (b * slots + s) * LINE + ch
    ql, qh = ix.lines[at], ix.lines[at + CHUNK]
    kind = pred[p, LOW]
    if (kind == CTX or kind == CTX_PLUS) and pred[p, LOW_CTX] == a:
        end = v + constant(pred[p, LOW_CONST], own, world) if kind == CTX_PLUS else v
        y = (end - base) * scale + 2.0
        ql = cell(end, base, scale)
        if not (ix.zones[zone] <= ql and y >= ix.plots[zone] - leash and (ql > 1 or end >= ix.reach[b, s, 0])):
            return False
    kind = pred[p, HIGH]
    if (kind == CTX or kind == CTX_PLUS) and pred[p, HIGH_CTX] == a:
        end = v + constant(pred[p, HIGH_CONST], own, world) if kind == CTX_PLUS else v
        y = (end - base) * scale + 2.0
        qh = cell(end, base, scale)
        far = ix.plots[zone + CHUNKS] + leash
        if not (qh <= ix.zones[zone + CHUNKS] and y <= far and (qh < 253 or end <= ix.reach[b, s, 1])):
            return False
    ix.lines[at], ix.lines[at + CHUNK] = ql, qh
    shrink_core(ix, b, ch, s, ql, qh)
    ix.count[ESCALATIONS] += 1
    return True


# What an entry that moved is: near the plot of its chunk, off it by more than the leash, or off even its block.
NEAR, STRAY, ABROAD = range(3)


@bare
def _strays(ix, p, a, v, s, own, b, ch, t, world):
    """How far predicate ``p`` went with context attribute ``a`` = ``v``; leaves the cells it wants in ``ix.wanted``."""
    pred = world.templates.predicate
    slots = ix.slot_attribute.shape[0]
    base, scale = ix.base[b, s], ix.scale[b, s]
    at = ((b * CHUNKS + ch) * slots + s) * LINE + t
    ix.wanted[0, s], ix.wanted[1, s] = ix.lines[at], ix.lines[at + CHUNK]
    at = (b * slots + s) * LINE + ch
    leash = ix.leash[s] * scale + 1.0
    x = (v - base) * scale + 2.0
    found = NEAR
    kind = pred[p, LOW]
    if (kind == CTX or kind == CTX_PLUS) and pred[p, LOW_CTX] == a:
        y = x + (constant(pred[p, LOW_CONST], own, world) * scale if kind == CTX_PLUS else 0.0)
        ix.wanted[0, s] = np.uint8(min(253.0, max(1.0, y)))
        if y < ix.plots[at] - leash:
            found = ABROAD if y < 1.0 - leash else STRAY
    kind = pred[p, HIGH]
    if (kind == CTX or kind == CTX_PLUS) and pred[p, HIGH_CTX] == a:
        y = x + (constant(pred[p, HIGH_CONST], own, world) * scale if kind == CTX_PLUS else 0.0)
        ix.wanted[1, s] = np.uint8(min(253.0, max(1.0, y)))
        if y > ix.plots[at + CHUNKS] + leash:
            found = ABROAD if y > 253.0 + leash else STRAY
    return found


@inlined
def due_margin(ix, b, s):
    """The margin, in cells of block ``b``, that the slack of slot ``s`` gives today."""
    slack = ix.slack[s]
    return np.uint8(min(255.0, 2.0 * slack * ix.scale[b, s] + 2.0)) if slack > 0.0 else np.uint8(0)


@bare
def _as_due(ix, b, ch):
    """Whether no line of a chunk is wider than today's slack makes it."""
    slots = ix.slot_attribute.shape[0]
    for s in range(slots):
        if ix.margin[(b * CHUNKS + ch) * slots + s] > due_margin(ix, b, s):
            return False
    return True


@bare
def _may_carry(ix, b, ch, to):
    """Whether an entry of a chunk can move to another one as it is, without making the other wider than is due."""
    slots = ix.slot_attribute.shape[0]
    old, new = (b * CHUNKS + ch) * slots, (b * CHUNKS + to) * slots
    for s in range(slots):
        if ix.margin[old + s] > max(ix.margin[new + s], due_margin(ix, b, s)):
            return False
    return True


@bare
def _send_home(ix, k, s, abroad, b, ch, t, world):
    """Move an entry that strays on slot ``s`` to the chunk on whose plot it lies; returns its place after that."""
    slots = ix.slot_attribute.shape[0]
    place = np.int64(b * CHUNKS + ch) * CHUNK + t
    judges = np.uint64(0)
    for u in range(slots):
        if ix.leash[u] < np.inf:
            judges |= np.uint64(1) << np.uint64(u)
            if u != s:
                at = (np.int64(b * CHUNKS + ch) * slots + u) * LINE + t
                ix.wanted[0, u], ix.wanted[1, u] = ix.lines[at], ix.lines[at + CHUNK]
    to = -1 if abroad else best_chunk(ix, b, ix.plots, judges)
    if to >= 0 and ix.growth[to] <= ix.leash[s] * ix.scale[b, s] + 1.0:
        if to == ch:
            return place
        if _may_carry(ix, b, ch, to):
            place = np.int64(b * CHUNKS + to) * CHUNK + shift(ix, k, b, ch, t, to)
            world.clauses.meta[k, PLACE] = place
            ix.count[MOVES] += 1
            return place
        home = b
        read_entry(ix, k, world)
    else:
        read_entry(ix, k, world)
        home = np.int64(ix.node[home_of(ix), LEAF])
        to = best_chunk(ix, home, ix.plots, want_cells(ix, home) & judges)
    if to >= 0 and (home != b or to != ch):
        remove(ix, k, world)
        write_entry(ix, k, home, to, lowest_bit(~ix.masks[home * CHUNKS + to, TAKEN]), world)
        ix.count[N_ENTRIES] += 1
        ix.count[MOVES] += 1
    return np.int64(world.clauses.meta[k, PLACE])


@bare
def _rewrite(ix, k, b, ch, t, world):
    """Write clause ``k``, which ``read_entry`` has read, into its home block if that has room, else where it is.

    Room is made between logs, see :func:`tamis.kernels.cluster.away`.
    """
    home = np.int64(ix.node[home_of(ix), LEAF])
    flags = world.clauses.meta[k, FLAGS]
    if home != b and not has_room(ix, home):
        if not flags & AWAY:
            world.clauses.meta[k, FLAGS] |= AWAY
            ix.count[N_AWAY] += 1
        write_entry(ix, k, b, ch, t, world)
        return
    if flags & AWAY:
        world.clauses.meta[k, FLAGS] &= ~AWAY
        ix.count[N_AWAY] -= 1
    if home != b:
        remove(ix, k, world)
        put(ix, k, home, world)
        ix.count[N_ENTRIES] += 1
        ix.count[MOVES] += 1
    else:
        write_entry(ix, k, b, ch, t, world)


@bare
def _let_go(ix, chunk, s, world):
    """Slot ``s`` gets slack without bounds: all entries of a chunk together, as one of them puts the line in doubt."""
    meta, pred, row = world.clauses.meta, world.templates.predicate, world.templates.row
    slots = ix.slot_attribute.shape[0]
    if ix.margin[chunk * slots + s] >= UNBOUNDED:
        return
    at = (chunk * slots + s) * LINE
    for stage in range(2):
        taken = ix.masks[chunk, TAKEN] & ix.masks[chunk, OPEN]
        while taken != 0:
            t = lowest_bit(taken)
            taken &= taken - ONE
            k = np.int64(ix.clause[chunk * CHUNK + t])
            if stage == 0:
                prefetch(meta, k * META_COLUMNS)
                continue
            c, r = np.int64(meta[k, CONTEXT]), meta[k, TEMPLATE]
            p = routed(ix, r, BY_SLOT, s, np.int64(row[r, FIRST_PREDICATE]))
            if c < 0 or p < 0 or ix.routes[r, BY_CONTEXT] == 0:
                continue
            if world.contexts.head[c] != k or meta[k, NEXT] >= 0:
                continue
            if pred[p, LOW] == CTX or pred[p, LOW] == CTX_PLUS:
                ix.lines[at + t] = 1
                release(world.contexts, c, np.int64(pred[p, LOW_CTX]))
            if pred[p, HIGH] == CTX or pred[p, HIGH] == CTX_PLUS:
                ix.lines[at + CHUNK + t] = 253
                release(world.contexts, c, np.int64(pred[p, HIGH_CTX]))
    b, ch = chunk >> 5, chunk & 31
    ix.margin[chunk * slots + s] = 252
    shrink_core(ix, b, ch, s, np.uint8(253), np.uint8(1))
    if widen(ix, b, ch, s, np.uint8(1), np.uint8(253), -np.inf, np.inf):
        touch(ix, chunk)


@bare
def escalate(ix, k, a, v, world):
    """Context attribute ``a`` of clause ``k`` became ``v`` outside its safe range; returns the new safe range."""
    meta, pred = world.clauses.meta, world.templates.predicate
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    own, place = np.int64(meta[k, CONSTANTS]), np.int64(meta[k, PLACE])
    nothing = (np.float32(np.inf), np.float32(-np.inf))
    if place == AT_ROOT:
        return np.float32(-np.inf), np.float32(np.inf)
    if place < 0:
        return nothing
    chunk, t = place >> 5, place & 31
    b, ch = chunk >> 5, chunk & 31
    ix.count[ESCALATIONS] += 1
    if a < 64 and not (meta[k, FLAGS] & CLOSED or math.isnan(v)):
        p = routed(ix, r, BY_CONTEXT, a, row[r, FIRST_PREDICATE])
        if p >= 0:
            s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
            if ix.leash[s] < np.inf:
                far = _strays(ix, p, a, v, s, own, b, ch, t, world)
                if far != NEAR:
                    place = _send_home(ix, k, s, far == ABROAD, b, ch, t, world)
                    b, ch, t = place >> 10, place >> 5 & 31, place & 31
            if ix.slack[s] == np.inf:
                _let_go(ix, b * CHUNKS + ch, s, world)
            return fit(ix, p, a, v, ix.slack[s], own, b, ch, t, world)
    if row[r, GATE_LENGTH] > 0 or meta[k, FLAGS] & CLOSED or math.isnan(v):
        is_open = satisfiable(k, world)
        if not is_open:
            _close(ix, k, chunk, t, world)
            return nothing
        if meta[k, FLAGS] & CLOSED:
            # Where it lies was decided while its values were unknown.
            read_entry(ix, k, world)
            _rewrite(ix, k, b, ch, t, world)
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


@bare
def _tighten(ix, b, ch):
    """Recompute the zone and the core of a chunk from its entries, and the box of its block from the zones.

    Returns whether the zone has shrunk.
    """
    better = False
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
        better = True
        zl, zh = np.uint8(255), np.uint8(0)
        for i in range(CHUNKS):
            zl, zh = min(zl, ix.zones[zone + i]), max(zh, ix.zones[zone + CHUNKS + i])
        box = ((b >> 5) * slots + s) * LINE + (b & 31)
        # Back from cells to doubles, a cell further out; the end cells hold everything beyond, they cannot shrink.
        if zl > 1 and zl <= 253:
            ix.reach[b, s, 0] = np.inf
            low = ix.base[b, s] + (np.float64(zl) - 3.0) * ix.width[b, s]
            ix.boxes[box] = max(ix.boxes[box], global_cell(ix.cuts, s, low))
        if zh < 253 and zh > 0:
            ix.reach[b, s, 1] = -np.inf
            high = ix.base[b, s] + np.float64(zh) * ix.width[b, s]
            ix.boxes[box + 32] = min(ix.boxes[box + 32], global_cell(ix.cuts, s, high))
    return better


@bare
def deescalate(ix, chunk, world):
    """Make a chunk as tight as its slots' slack allows; entries whose home is another block with room move there.

    When only its zone is too wide that is all that is made smaller.
    """
    b, ch = chunk >> 5, chunk & 31
    ix.count[DEESCALATIONS] += 1
    if _as_due(ix, b, ch) and _tighten(ix, b, ch):
        ix.debt[chunk] = 0
        return
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
        _rewrite(ix, k, b, ch, t, world)
    _tighten(ix, b, ch)
    ix.debt[chunk] = CLEAN
