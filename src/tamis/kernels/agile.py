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
    PLACE,
    PREDICATES,
    PROBES,
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
    N_BLOCKS,
    ONE,
    OPEN,
    OPEN_HIGH,
    OPEN_LOW,
    SAMPLES,
    TAKEN,
    cell,
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
from .cluster import best_chunk, has_room, home_of, put, remove, shift, want_cells
from .jit import bare
from .postfilter import constant, interval, satisfiable
from .simd import count_bits, covers, lowest_bit, prefetch


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
    """Prefetch what an escalation of clause ``k`` by context attribute ``a`` will touch."""
    meta, row = world.clauses.meta, world.templates.row
    r, chunk = meta[k, TEMPLATE], np.int64(meta[k, PLACE]) >> 5
    p = routed(ix, r, BY_CONTEXT, a, np.int64(row[r, FIRST_PREDICATE])) if a < 64 else np.int64(-1)
    if chunk >= 0 and p >= 0:
        slots = ix.slot_attribute.shape[0]
        s = np.int64(ix.attribute_slot[world.templates.predicate[p, ATTRIBUTE]])
        block = (chunk >> 5) * slots + s
        prefetch(ix.lines, (chunk * slots + s) * LINE)
        prefetch(ix.zones, block * LINE)
        prefetch(ix.cores, block * LINE)
        prefetch(ix.margin, chunk * slots + s)
        prefetch(ix.base, block)
        prefetch(ix.scale, block)
        if ix.leash[s] < np.inf:
            prefetch(ix.plots, block * LINE)


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
        if to != ch:
            place = np.int64(b * CHUNKS + to) * CHUNK + shift(ix, k, b, ch, t, to)
            world.clauses.meta[k, PLACE] = place
            ix.count[MOVES] += 1
        return place
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
            s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
            if ix.leash[s] < np.inf:
                far = _strays(ix, p, a, v, s, own, b, ch, t, world)
                if far != NEAR:
                    place = _send_home(ix, k, s, far == ABROAD, b, ch, t, world)
                    b, ch, t = place >> 10, place >> 5 & 31, place & 31
            return fit(ix, p, a, v, ix.slack[s], own, b, ch, t, world)
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

# Costs in postfilter tests (about 30 ns): an update of a watched value, one that leaves its safe range, a chunk that a
# message meets, an entry that moves to another chunk, a test of an entry that is in doubt on several slots.
HEARING, ESCALATION, MEETING, MOVE, IN_DOUBT = 0.8, 7.0, 8.0, 20.0, 2.5
PATIENCE = 4.0  # updates per entry without a message after which none is expected
KEPT = 0.7  # what is as it is counts as cheaper by this factor: a change of mind costs a deescalation of every chunk
SAMPLE = 256  # one update in so many (fewer in a long run), one message in MESSAGE_SAMPLE, are looked at closely
MESSAGE_SAMPLE = 8
# Columns of Blocks.seen, per slot: updates, sum of squared steps, doubts, entries found, sum of their lines' margins.
# In the row behind the slots: messages, updates, chunks met.
MOVED, SQUARES, DOUBTED, FOUND, MARGINS = range(5)
CHUNKS_SEEN = 2
SEEN = 5
LEARNING = 0.02  # weight of one message in what is known of the selectivity of slots
UNBOUNDED = 200  # margin of a line, in cells, from which on it lets everything through
MEMORY = 512.0  # messages after which what was seen counts half


@bare
def observe(ix, c, a, v, old, weight, world):
    """Take note of an update that stands for ``weight`` of them: which slots it moves, and how far."""
    slots = ix.slot_attribute.shape[0]
    pred, row = world.templates.predicate, world.templates.row
    seen = ix.seen
    seen[slots, 1] += weight
    k = np.int64(world.contexts.head[c])
    step = v - old
    if k >= 0 and math.isfinite(step):
        r = world.clauses.meta[k, TEMPLATE]
        for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
            s = ix.attribute_slot[pred[p, ATTRIBUTE]]
            if s >= 0 and moves(pred, p, a):
                seen[s, MOVED] += weight
                seen[s, SQUARES] += weight * step * step
    ix.count[SAMPLES] += 1
    if ix.count[SAMPLES] & 127 == 0:
        adapt(ix)


@bare
def learn_passing(ix, m, world):
    """Let a message say how many entries each slot lets through, by a chunk chosen at random."""
    slots = ix.slot_attribute.shape[0]
    chunk = (ix.count[PROBES] * 40503 >> 3) % (ix.count[N_BLOCKS] * CHUNKS)
    b = chunk >> 5
    is_open = ix.masks[chunk, OPEN]
    if is_open == 0:
        return
    for s in range(slots):
        x = world.messages.value[m, ix.slot_attribute[s]]
        if math.isnan(x) or ix.margin[chunk * slots + s] >= UNBOUNDED:
            continue
        # Beyond the cells of the block only open ends pass: its box keeps other messages away.
        q = cell(x, ix.base[b, s], ix.scale[b, s])
        q = OPEN_LOW if q == 1 else OPEN_HIGH if q == 253 else q
        passed = count_bits(covers(ix.lines, (chunk * slots + s) * LINE, q, q) & is_open) / count_bits(is_open)
        ix.passing[s] += LEARNING * (max(passed, 1e-3) - ix.passing[s])


@bare
def _best_slack(ix, s, updates, square, doubts, base):
    """The slack of slot ``s`` that would have cost least, and that cost.

    An update within the slack only has to be heard; it escalates with probability ~ 1 / (1 + x^2 / mean squared step),
    as a random walk leaves a range in the square of its width. Slack x costs ``doubts`` for each cell of the ends of
    entries that it leaves open, 2 x of them and ``base``.
    """
    grain = ix.grain[s]
    best, cost = 0.0, np.inf
    x = 126.0 * grain
    if ix.plot[s] <= 0.5 * _domain(ix, s):
        # What the blocks are sorted by stays narrow: beyond this, chunks would be met for nothing.
        x = min(x, 0.25 * ix.passing[s] * _domain(ix, s))
    for i in range(12):
        price = updates * (HEARING + ESCALATION / (1.0 + x * x / square)) + doubts * (base + 2.0 * x / grain)
        if price < cost:
            best, cost = x, price
        x = 0.5 * x if i < 10 else 0.0
    x = ix.scratch[1, s]
    if x < np.inf:
        price = updates * (HEARING + ESCALATION / (1.0 + x * x / square)) + doubts * (base + 2.0 * x / grain)
        if KEPT * price < cost:
            return x, price
    return best, cost


@bare
def adapt(ix):
    """Give every slot the slack and the leash that would have cost least so far.

    Either the slots are weighed one by one, by the doubts at the ends of their entries; or some, the least selective,
    get unbounded slack. Then their updates cost nothing, all that the others find is in doubt, and slack of the others
    costs what they find more.
    """
    slots = ix.slot_attribute.shape[0]
    seen, slack = ix.seen, ix.slack
    if seen[slots, 0] == 0.0 and seen[slots, 1] < PATIENCE * ix.count[N_ENTRIES]:
        return
    total = 0.0
    before = 0
    while before < slots and not (slack[before] == np.inf and seen[before, MOVED] > 0.0):
        before += 1
    widths = ix.scratch[0]
    found = seen[0, FOUND]
    for s in range(slots):
        # What was found, and passed, includes what slack lets through.
        passed = ix.passing[s] * _domain(ix, s)
        extra = seen[s, MARGINS] / max(1.0, seen[s, FOUND]) * ix.grain[s]
        ix.scratch[1, s] = slack[s]
        widths[s] = max(passed - extra, 0.5 * passed) if slack[s] < np.inf else passed
        found *= widths[s] / passed
    for s in range(slots):
        updates = seen[s, MOVED]
        if updates == 0.0:
            slack[s] = 0.0 if seen[slots, 0] > 0.0 else slack[s]
            ix.leash[s] = np.inf
            continue
        square = seen[s, SQUARES] / updates + 1e-300
        margin = seen[s, MARGINS] / max(1.0, seen[s, FOUND])
        slack[s], price = _best_slack(ix, s, updates, square, seen[s, DOUBTED] / (1.0 + margin), 1.0)
        total += price
        ix.leash[s] = _best_leash(ix, s, updates, square)
    # Slots are in the order of their selectivity.
    unbounded, cost, doubts = slots, total * (KEPT if before == slots else 1.0), 0.0
    for first in range(slots - 1, -1, -1):
        if seen[slots, 0] > 0.0 and ix.plot[first] <= 0.5 * _domain(ix, first):
            break  # what the blocks are sorted by is never let go while there are messages
        if seen[first, MARGINS] < UNBOUNDED * seen[first, FOUND]:
            found /= ix.passing[first]
        if seen[first, MOVED] == 0.0:
            continue
        price = IN_DOUBT * found
        for s in range(first):
            if seen[s, MOVED] > 0.0:
                price += _slack_in_doubt(ix, s, found)[1]
        price *= KEPT if first == before else 1.0
        if price < cost:
            unbounded, cost, doubts = first, price, found
    if unbounded < slots:
        for s in range(slots):
            if seen[s, MOVED] > 0.0:
                slack[s] = np.inf if s >= unbounded else _slack_in_doubt(ix, s, doubts)[0]
    if seen[slots, 0] >= MEMORY or (seen[slots, 0] >= 8.0 and seen[slots, 1] > 4e6):
        for s in range(slots + 1):
            for i in range(SEEN):
                seen[s, i] *= 0.5


@bare
def _slack_in_doubt(ix, s, found):
    """The best slack of slot ``s``, and its cost, when all that is found is in doubt anyway; widths in ``scratch``."""
    updates = ix.seen[s, MOVED]
    square = ix.seen[s, SQUARES] / updates + 1e-300
    return _best_slack(ix, s, updates, square, IN_DOUBT * found * ix.grain[s] / ix.scratch[0, s], 0.0)


@bare
def _domain(ix, s):
    """How far the bounds on slot ``s`` are spread."""
    last = 254
    while last > 0 and ix.cuts[s, last] == np.inf:
        last -= 1
    return max(1e-300, ix.cuts[s, last] - ix.cuts[s, 0])


@bare
def _best_leash(ix, s, updates, square):
    """How far an entry may go from the plot of its chunk: the further, the fewer moves, but the more chunks are met.

    A message meets a chunk with a probability that is linear in the width of its zone.
    """
    slots = ix.slot_attribute.shape[0]
    plot, chunks = ix.plot[s], ix.seen[slots, CHUNKS_SEEN]
    domain = max(plot, _domain(ix, s))
    chunks /= min(domain, plot + 2.0 * ix.leash[s])
    best, cost = np.inf, chunks * domain * MEETING
    if plot > 0.5 * domain:
        return best
    x = 16.0 * math.sqrt(square)
    for _ in range(8):
        price = chunks * min(domain, plot + 2.0 * x) * MEETING + updates * MOVE / (1.0 + x * x / square)
        if price < cost:
            best, cost = x, price
        x *= 0.5
    return best


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
        if home != b and has_room(ix, home):
            remove(ix, k, world)
            put(ix, k, home, world)
            ix.count[N_ENTRIES] += 1
            ix.count[MOVES] += 1
        else:
            write_entry(ix, k, b, ch, t, world)
    _tighten(ix, b, ch)
    ix.debt[chunk] = CLEAN
