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

from .agile import announce, deescalate, escalate
from .bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CONSTANTS,
    CONTEXT,
    FALSE_POSITIVES,
    FIRST_PREDICATE,
    FLAGS,
    HAS_EFFECT,
    HAS_SIBLING,
    META_COLUMNS,
    N_ENTRIES,
    PLACE,
    PREDICATES,
    PROBES,
    PROFILE,
    TEMPLATE,
)
from .cells import (
    ABSENT_CELL,
    BLOCK,
    BLOCK_FILL,
    BLOCKS_MET,
    CHUNK,
    CHUNKS,
    CHUNKS_MET,
    CLEAN,
    COUNTS,
    DEBT,
    DEESCALATIONS,
    FIXED,
    FULL,
    LINE,
    LOOSE,
    LOOSENED,
    MOVES,
    N_BLOCKS,
    ONE,
    OPEN,
    OPEN_HIGH,
    OPEN_LOW,
    SPLITS,
    TAKEN,
    VAIN,
    cell,
    cells_of,
    global_cell,
)
from .cluster import build, insert, needs_slots, remove
from .jit import bare
from .postfilter import holds, interval, predicate_holds, satisfiable
from .simd import count_bits, covers, covers_strictly, lowest_bit, prefetch

# The face of the index; its parts lie in ``cells``, ``cluster`` and ``agile``.
__all__ = [
    "BLOCK",
    "BLOCKS_MET",
    "BLOCK_FILL",
    "CHUNKS",
    "CHUNKS_MET",
    "CLEAN",
    "COUNTS",
    "DEESCALATIONS",
    "LINE",
    "LOOSENED",
    "MOVES",
    "N_BLOCKS",
    "SPLITS",
    "announce",
    "build",
    "check",
    "deescalate",
    "escalate",
    "insert",
    "needs_slots",
    "probe",
    "remove",
]


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
            ql, qh = cells_of(ix, b, s, sides, low, high)
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
