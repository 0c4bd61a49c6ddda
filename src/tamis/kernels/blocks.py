"""The index ``blocks``: boxes of boxes, tested 32 at a time, under AGILE.

Layout. An *entry* is one clause: a range of byte cells per *slot* (an indexed attribute, most selective first).
32 entries make a *chunk*, 32 chunks a *block*. A *line* of 64 bytes holds the ranges of 32 neighbours on one slot:

    boxes   line (block // 32, slot)    the box of every block, in global cells (``cuts``, quantiles)
    zones   line (block, slot)          the box of every chunk of a block, in the block's own cells
    plots   line (block, slot)          the zones as they were laid out: where the entries of every chunk belong
    cores   line (block, slot)          the cells strictly inside all entries of every chunk of a block
    lines   line (block, chunk, slot)   the range of every entry of a chunk, in the block's own cells
    reach   [block, slot, 2]            how far the end cells of a block, which are open, are known to be in its box

A cell function maps doubles to 1..253 and is monotone, so ``low <= x <= high`` implies the same of cells: no false
negatives. Ends 0 and 254 stand for an open end, [0, 255] for a slot that the entry does not constrain, 255 for a
message that lacks the attribute. A block's own cells span its box, so few messages fall into the cell of a bound;
those strictly inside are matches without a look at the exact values.

AGILE (paper 000). ``Contexts.safe`` holds for every context value the range in which all its entries stay valid:
K(i). An update inside it is a plain store. Without such a range the entry *follows*: two cells are written, if they
stay in the zone. An update that leaves the range *escalates*: the entry gets a new range, wider than its
interval by the *slack* of the slot, and the value may move that far. The ``margin`` of a line says how many cells its
ranges may be too wide: a message that lies deeper inside is a match all the same, one within the margin is in doubt and
postfiltered. Slack saves escalations and costs doubts; :func:`tamis.kernels.policy.adapt` weighs the two, per slot, by
what it has seen, and finds the *leash* of the slot: an entry that escalates further than that off the plot of its chunk
moves to the chunk on whose plot it lies, so that what matches together stays together. Scans in vain, and doubts by
margins that today's slack would not give, are a chunk's ``debt``; when it reaches the price of a *deescalation* the
chunk is made tight again and its strays go home.

Invariants (verified by :func:`check`): every range contains the cells of the entry's interval for all context values
inside ``safe``, and is at either end at most ``margin`` cells wider; zones contain their entries, boxes their zones;
every live clause has one place.

Complexity for N entries: probe O(blocks / 32 + chunks met), update O(1) amortised, insert O(log N + chunks of a block),
deescalate O(32 slots).
"""

from __future__ import annotations

import math

import numpy as np

from .agile import announce, deescalate, due_margin, escalate, follow
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
    LISTENERS,
    META_COLUMNS,
    N_ENTRIES,
    PLACE,
    PREDICATES,
    PROBES,
    PROFILE,
    TEMPLATE,
    UPDATES,
)
from .cells import (
    ABSENT_CELL,
    AT_ROOT,
    BLOCK,
    BLOCK_FILL,
    BLOCKS_MET,
    BY_SLOT,
    CHUNK,
    CHUNKS,
    CHUNKS_MET,
    CLEAN,
    COUNTS,
    DEBT,
    DEESCALATIONS,
    DUE,
    FIXED,
    FULL,
    LINE,
    MASKS,
    MOVES,
    N_AWAY,
    N_BLOCKS,
    N_CONTEXTS,
    N_ROOT,
    ONE,
    OPEN,
    OPEN_HIGH,
    OPEN_LOW,
    ROOT_MET,
    SPLITS,
    TAKEN,
    cell,
    cells_of,
    find_routes,
    global_cell,
    routed,
)
from .cluster import away, build, insert, needs_slots, remove
from .jit import bare, folded, kernel
from .policy import (
    CHUNKS_SEEN,
    DOUBTED,
    FOUND,
    MARGINS,
    MESSAGE_SAMPLE,
    SEEN,
    SINCE,
    adapt,
    learn_passing,
    observe,
)
from .postfilter import holds, interval, predicate_holds, satisfiable
from .root import check_root, draw_all, enter, leave, let_loose, probe_root, scratch_for_root
from .simd import compress, count_bits, covers, covers_strictly, lowest_bit, prefetch

# The face of the index; its parts lie in ``cells``, ``cluster`` and ``agile``.
__all__ = [
    "AT_ROOT",
    "BLOCK",
    "BLOCKS_MET",
    "BLOCK_FILL",
    "CHUNKS",
    "CHUNKS_MET",
    "CLEAN",
    "COUNTS",
    "DEBT",
    "DEESCALATIONS",
    "DUE",
    "LINE",
    "MASKS",
    "MOVES",
    "N_AWAY",
    "N_BLOCKS",
    "N_CONTEXTS",
    "N_ROOT",
    "ROOT_MET",
    "SEEN",
    "SPLITS",
    "announce",
    "away",
    "build",
    "check",
    "check_root",
    "deescalate",
    "draw_all",
    "enter",
    "escalate",
    "find_routes",
    "follow",
    "forget",
    "insert",
    "let_loose",
    "needs_slots",
    "observe",
    "probe",
]


GROUP = 16  # blocks that are looked into before their chunks
GLANCE = 2  # slots that are looked at first
STEP = 3  # chunks that are looked ahead
AHEAD = 8  # doubtful entries that are looked ahead; processors drop requests for memory beyond a few dozen


@bare
def edges_hold(ix, k, m, edges, world):
    """Postfilter only the predicates on the slots in ``edges``."""
    meta, pred = world.clauses.meta, world.templates.predicate
    row, r = world.templates.row, meta[k, TEMPLATE]
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    first = np.int64(row[r, FIRST_PREDICATE])
    if ix.routes[r, BY_SLOT]:
        while edges:
            s = count_bits((edges & (~edges + np.uint64(1))) - np.uint64(1))
            edges &= edges - np.uint64(1)
            p = routed(ix, r, BY_SLOT, s, first)
            if p >= 0 and not predicate_holds(p, m, c, own, world):
                return False
        return True
    for p in range(first, first + row[r, PREDICATES]):
        s = ix.attribute_slot[pred[p, ATTRIBUTE]]
        if edges >> np.uint64(s) & np.uint64(1) and not predicate_holds(p, m, c, own, world):
            return False
    return True


@bare
def decide(ix, m, of, n_doubts, doubts, edges, world):
    """Keep the doubtful entries that hold, as clauses; what they hang on is fetched ahead, clause, then context.

    ``doubts`` are places, and become clauses; ``edges`` the slots to test, 0 for the whole clause. The message of doubt
    i is ``m + of[i]``, or ``m`` where ``of`` is empty. All three are moved up. Returns how many are left.
    """
    meta, value, columns = world.clauses.meta, world.contexts.value, world.contexts.value.shape[1]
    own_constant = world.clauses.constant
    several = of.shape[0] > 0
    left = 0
    for i in range(-3 * AHEAD, n_doubts):
        if i + 3 * AHEAD < n_doubts:
            prefetch(ix.clause, np.int64(doubts[i + 3 * AHEAD]))
        if i >= -2 * AHEAD and i + 2 * AHEAD < n_doubts:
            doubts[i + 2 * AHEAD] = ix.clause[doubts[i + 2 * AHEAD]]
            prefetch(meta, np.int64(doubts[i + 2 * AHEAD]) * META_COLUMNS)
        if i >= -AHEAD and i + AHEAD < n_doubts:
            c = np.int64(meta[doubts[i + AHEAD], CONTEXT])
            own = np.int64(meta[doubts[i + AHEAD], CONSTANTS])
            prefetch(own_constant, own)
            if c >= 0:
                prefetch(value, c * columns)
            else:
                prefetch(own_constant, own + 8)
        if i < 0:
            continue
        k = np.int64(doubts[i])
        row = m + np.int64(of[i]) if several else m
        if edges_hold(ix, k, row, edges[i], world) if edges[i] else holds(k, row, world):
            doubts[left], edges[left] = k, edges[i]
            if several:
                of[left] = of[i]
            left += 1
    ix.count[CANDIDATES] += n_doubts
    ix.count[FALSE_POSITIVES] += n_doubts - left
    return left


@folded
def lies_inside(ix, chunk, found, live, q, unsure):
    """Of entries of a chunk those whose ranges contain a message, and of those the ones that it lies strictly inside.

    ``unsure`` gets what each slot leaves open; it tells nothing where nothing is found.
    """
    slots = ix.slot_attribute.shape[0]
    at = chunk * slots * LINE
    certain = found
    for u in range(live[slots]):
        s = live[u]
        found &= covers(ix.lines, at + s * LINE, q[s], q[s])
        if found == 0:
            break
        strictly = covers_strictly(ix.lines, at + s * LINE, q[s], q[s])
        unsure[u] = ~strictly
        certain &= strictly
    return found, certain & found


@folded
def sift(ix, chunk, found, certain, live, q, due, unsure, sampled, hits, n, doubts, edges, n_doubts, owed, n_owed):
    """Tell apart what a message has ``found`` in a chunk: matches, into ``hits``, and doubts, to be decided.

    ``certain`` and ``unsure`` are what :func:`lies_inside` says, margins apart. ``hits`` has room for a chunk more.
    Returns the counts of hits, doubts and chunks that are owed.
    """
    slots = ix.slot_attribute.shape[0]
    margin = ix.margin
    n_live = live[slots]
    place = chunk * CHUNK
    fixed = found & ix.masks[chunk, FIXED]
    found &= ~fixed
    slack = np.uint8(0)
    for u in range(n_live):
        slack |= margin[chunk * slots + live[u]]
    if slack or sampled:
        certain, n_owed = _allow_for_slack(ix, chunk, found, live, q, due, unsure, sampled, owed, n_owed)
    n = compress(ix.profile, place, certain & found, hits, n)
    unclear = found & ~certain
    while unclear != 0:
        t = lowest_bit(unclear)
        unclear &= unclear - ONE
        bits = np.uint64(0)
        for u in range(n_live):
            bits |= np.uint64(unsure[u] >> np.uint32(t) & ONE) << np.uint64(live[u])
        doubts[n_doubts], edges[n_doubts] = place + t, bits
        n_doubts += 1
    while fixed != 0:
        doubts[n_doubts], edges[n_doubts] = place + lowest_bit(fixed), 0
        fixed &= fixed - ONE
        n_doubts += 1
    return n, n_doubts, n_owed


@bare
def _allow_for_slack(ix, chunk, found, live, q, due, unsure, sampled, owed, n_owed):
    """What matches for certain of what was ``found`` in a chunk of which some slots have a margin.

    ``unsure`` gets what each slot leaves open. A margin wider than is due, and to blame for a doubt, is owed at once.
    """
    slots = ix.slot_attribute.shape[0]
    margin, n_live = ix.margin, live[slots]
    unclear = np.uint32(0)
    loose = np.uint32(0)
    for u in range(n_live):
        s = live[u]
        wide = margin[chunk * slots + s]
        x_low, x_high = q[s], q[s]
        if wide and x_low != ABSENT_CELL:
            x_low = np.uint8(max(1, np.int64(x_low) - np.int64(wide)))
            x_high = np.uint8(min(253, np.int64(x_high) + np.int64(wide)))
        mask = found & ~covers_strictly(ix.lines, (chunk * slots + s) * LINE, x_low, x_high)
        unsure[u] = mask
        unclear |= mask
        if wide > due[s]:
            loose |= mask
    if loose:
        n_owed = owe(ix.debt, chunk, 1, owed, n_owed)
    if sampled:
        _sample_doubts(ix.seen, unsure, live, n_live, margin, chunk, slots, count_bits(found))
    return found & ~unclear, n_owed


@bare
def patience_of(ix):
    """The debt at which the policy deescalates a chunk."""
    patience = ix.count[DUE]
    return patience if patience >= 0 else -patience * ix.count[UPDATES] // max(1, ix.count[FALSE_POSITIVES])


@folded
def owe(debt, chunk, patience, owed, n_owed):
    """A chunk that may improve was scanned in vain; when that happens too often it is noted for deescalation."""
    if debt[chunk] >= 0:
        debt[chunk] += 1
        if debt[chunk] >= patience and n_owed < owed.shape[0]:
            debt[chunk] = 0
            owed[n_owed] = chunk
            n_owed += 1
    return n_owed


@bare
def size(ix):
    """The number of blocks that a probe may meet."""
    return ix.used.shape[0]


@kernel
def scratch_for(slots, blocks, strips, attributes):
    """Room that a probe works in: blocks met; chunks of a group of them; per block its slots and cells; slot masks.

    Then nothing, as all doubts of a probe are about one message. Last what it needs at the root.
    """
    return (
        np.empty(blocks + 64, np.int32),
        np.empty((GROUP * CHUNKS, 3), np.uint32),
        np.empty((GROUP, slots + 1), np.int64),
        np.empty((GROUP + 1, 2, max(64, slots)), np.uint8),
        np.empty(slots, np.uint32),
        np.empty(0, np.int32),
        scratch_for_root(strips, attributes),
    )


@bare
def ask_for_block(ix, b):
    """Prefetch what a look into a block will touch."""
    slots = ix.slot_attribute.shape[0]
    for s in range(slots):
        prefetch(ix.zones, (b * slots + s) * LINE)
        prefetch(ix.cores, (b * slots + s) * LINE)
    for s in range(0, slots, 8):
        prefetch(ix.base, b * slots + s)
        prefetch(ix.scale, b * slots + s)


@bare
def meet(ix, g, met):
    """The blocks whose boxes contain a message (its global cells), into ``met``; returns how many."""
    slots = ix.slot_attribute.shape[0]
    n_met = 0
    n_blocks = ix.count[N_BLOCKS]
    for d in range((n_blocks + 31) >> 5):
        alive = FULL
        if n_blocks - d * 32 < 32:
            alive = (ONE << np.uint32(n_blocks - d * 32)) - ONE
        at = d * slots * LINE
        for s in range(slots):
            alive &= covers(ix.boxes, at, g[s], g[s])
            if alive == 0:
                break
            at += LINE
        while alive != 0:
            met[n_met] = d * 32 + lowest_bit(alive)
            alive &= alive - ONE
            n_met += 1
    return n_met


@folded
def look_into(ix, b, m, g, q, due, live, world):
    """The message in a block's own cells ``q``; returns the chunks whose zones contain it.

    ``live`` gets the slots to look at, and their number behind the last: on the others the message is in the core of
    every such chunk. ``due`` gets the margin that today's slack would give.
    """
    slots = ix.slot_attribute.shape[0]
    used, near = ix.used[b], ix.summary[b]
    at = b * slots * LINE
    for s in range(slots):
        if not used >> np.uint64(s) & np.uint64(1):
            continue
        if g[s] == ABSENT_CELL:
            q[s] = ABSENT_CELL
        else:
            q[s] = cell(world.messages.value[m, ix.slot_attribute[s]], ix.base[b, s], ix.scale[b, s])
        near &= covers(ix.zones, at + s * LINE, q[s], q[s])
        if near == 0:
            return near
    n_live = 0
    for s in range(slots):
        if used >> np.uint64(s) & np.uint64(1) and near & ~covers_strictly(ix.cores, at + s * LINE, q[s], q[s]):
            live[n_live] = s
            n_live += 1
            due[s] = due_margin(ix, b, s)
    live[slots] = n_live
    return near


@bare
def _ask_for_chunk(ix, chunk, live, first, last):
    """Prefetch the lines of a chunk for the slots ``live[first:last]``."""
    slots = ix.slot_attribute.shape[0]
    for u in range(first, last):
        prefetch(ix.lines, (chunk * slots + live[u]) * LINE)


@bare
def probe(ix, m, world, hits, special, doubts, edges, owed, scratch):
    """All matches of message row ``m``.

    Writes profile codes to ``hits`` and clauses that hold but belong to a profile with other clauses or with effects
    to ``special``; chunks whose debt is due to ``owed``. Returns the three counts. ``doubts`` and ``edges`` are room
    for entries to postfilter, ``scratch`` is room per slot.
    """
    slots = ix.slot_attribute.shape[0]
    lines, masks, profile, margin, debt = ix.lines, ix.masks, ix.profile, ix.margin, ix.debt
    x_of, slot_attribute = world.messages.value, ix.slot_attribute
    met, alive, lives, bytes_of, unsure, alone, at_root = scratch
    g = bytes_of[GROUP, 0]
    for s in range(slots):
        x = x_of[m, slot_attribute[s]]
        g[s] = ABSENT_CELL if math.isnan(x) else global_cell(ix.cuts, s, x)
    n = n_doubts = n_owed = zero = np.int64(0)  # not literals, which would be types of their own
    ix.count[PROBES] += 1
    ix.seen[slots, SINCE] = 0.0
    patience = patience_of(ix)
    sampled = ix.count[PROBES] % MESSAGE_SAMPLE == 1
    n_met = meet(ix, g, met)
    chunks_met = 0
    for group in range(0, n_met, GROUP):
        n_alive = 0
        for i in range(group, min(n_met, group + GROUP)):
            if i + 1 < n_met:
                ask_for_block(ix, np.int64(met[i + 1]))
            cells = bytes_of[i - group]
            near = look_into(ix, np.int64(met[i]), m, g, cells[0], cells[1], lives[i - group], world)
            while near != 0:
                alive[n_alive, 0], alive[n_alive, 1] = np.int64(met[i]) * CHUNKS + lowest_bit(near), i - group
                n_alive += 1
                near &= near - ONE
        chunks_met += n_alive
        # Chunks lie anywhere in memory: each is asked for a few chunks ahead, its first slots, then, if they find
        # something, the others.
        for j in range(-2 * STEP, n_alive):
            if j + 2 * STEP < n_alive:
                chunk, i = np.int64(alive[j + 2 * STEP, 0]), np.int64(alive[j + 2 * STEP, 1])
                _ask_for_chunk(ix, chunk, lives[i], zero, min(GLANCE, lives[i, slots]))
                prefetch(masks, chunk * MASKS)
            if j + STEP >= 0 and j + STEP < n_alive:
                chunk, i = np.int64(alive[j + STEP, 0]), np.int64(alive[j + STEP, 1])
                live, q = lives[i], bytes_of[i, 0]
                found = masks[chunk, OPEN]
                for u in range(min(GLANCE, live[slots])):
                    found &= covers(lines, (chunk * slots + live[u]) * LINE, q[live[u]], q[live[u]])
                alive[j + STEP, 2] = found
                if found == 0:
                    n_owed = owe(debt, chunk, patience, owed, n_owed)
                else:
                    _ask_for_chunk(ix, chunk, live, np.int64(GLANCE), live[slots])
                    prefetch(profile, chunk * CHUNK)
                    prefetch(profile, chunk * CHUNK + 16)
                    prefetch(margin, chunk * slots)
            if j < 0 or alive[j, 2] == 0:
                continue
            chunk, i, found = np.int64(alive[j, 0]), np.int64(alive[j, 1]), alive[j, 2]
            live, q, due = lives[i], bytes_of[i, 0], bytes_of[i, 1]
            found, certain = lies_inside(ix, chunk, found, live, q, unsure)
            if found == 0:
                n_owed = owe(debt, chunk, patience, owed, n_owed)
                continue
            n, n_doubts, n_owed = sift(
                ix, chunk, found, certain, live, q, due, unsure, sampled, hits, n, doubts, edges, n_doubts, owed, n_owed
            )
    ix.count[BLOCKS_MET] += n_met
    ix.count[CHUNKS_MET] += chunks_met
    if sampled:
        ix.seen[slots, 0] += MESSAGE_SAMPLE
        ix.seen[slots, CHUNKS_SEEN] += MESSAGE_SAMPLE * chunks_met
        learn_passing(ix, m, world)
        if ix.count[PROBES] % (8 * MESSAGE_SAMPLE) == 1:
            adapt(ix)
    n_special = zero
    for i in range(decide(ix, m, alone, n_doubts, doubts, edges, world)):
        k = np.int64(doubts[i])
        if edges[i] == 0 and world.clauses.meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT):
            special[n_special] = k
            n_special += 1
        else:
            hits[n] = world.clauses.meta[k, PROFILE]
            n += 1
    if ix.root.shape[0]:
        n, n_special = probe_root(ix, m, world, hits, n, special, n_special, at_root)
    return n, n_special, n_owed


@bare
def _sample_doubts(seen, unsure, live, n_live, margin, chunk, slots, found):
    """Take note of the doubts in a chunk: what slack costs."""
    for i in range(n_live):
        seen[live[i], DOUBTED] += MESSAGE_SAMPLE * count_bits(unsure[i])
    for s in range(slots):
        seen[s, FOUND] += MESSAGE_SAMPLE * found
        seen[s, MARGINS] += MESSAGE_SAMPLE * found * margin[chunk * slots + s]


@bare
def forget(ix, k, world):
    """Take a clause out, wherever it is."""
    if world.clauses.meta[k, PLACE] == AT_ROOT:
        leave(ix, k, world)
    else:
        ix.count[LISTENERS] -= np.int64(world.clauses.meta[k, CONTEXT] >= 0)
        remove(ix, k, world)


@bare
def check(ix, ids, world):
    """Verify the invariants for the clauses ``ids`` in blocks; returns (code, clause, slot), code 0 when all hold."""
    slots = ix.slot_attribute.shape[0]
    if ix.count[N_ENTRIES] != ids.shape[0]:
        return 1, -1, -1
    listeners = taken = 0
    for i in range(ids.shape[0]):
        listeners += np.int64(world.clauses.meta[ids[i], CONTEXT] >= 0)
    if listeners != ix.count[LISTENERS]:
        return 1, -1, -1
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
        marked = ix.masks[chunk, OPEN] & bit != 0
        if is_open and not marked:
            return 5, k, -1
        if not is_open:
            # A value without bounds to its slack may get lost unheard: then every message is in doubt about its slot.
            doubtful = ix.masks[chunk, FIXED] & bit != 0
            for s in range(slots):
                if math.isnan(interval(k, np.int64(ix.slot_attribute[s]), world)[1]):
                    doubtful = doubtful or ix.margin[chunk * slots + s] >= 252
            if marked and not doubtful:
                return 5, k, -1
            continue
        for s in range(slots):
            sides, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
            ql, qh = cells_of(ix, b, s, sides, low, high)
            at = (chunk * slots + s) * LINE + t
            sl, sh = ix.lines[at], ix.lines[at + CHUNK]
            if sl > ql or sh < qh:
                return 6, k, s
            margin = np.int64(ix.margin[chunk * slots + s])
            if np.int64(sl) + margin < ql or np.int64(sh) - margin > qh:
                return 7, k, s
            if sides and not ix.used[b] >> np.uint64(s) & np.uint64(1):
                return 8, k, s
            if ix.zones[(b * slots + s) * LINE + ch] > sl or ix.zones[(b * slots + s) * LINE + CHUNKS + ch] < sh:
                return 9, k, s
            core = (b * slots + s) * LINE + ch
            if ix.cores[core] < ql or ix.cores[core + CHUNKS] > qh:
                return 11, k, s
            box = ((b >> 5) * slots + s) * LINE + (b & 31)
            gl = OPEN_LOW if ql == OPEN_LOW else global_cell(ix.cuts, s, low)
            gh = qh if qh >= OPEN_HIGH else global_cell(ix.cuts, s, high)
            if ix.boxes[box] > gl or ix.boxes[box + 32] < gh:
                return 10, k, s
    return 0, -1, -1
