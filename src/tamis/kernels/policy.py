"""The policy of AGILE on the index ``blocks``: how much slack, and how far from home (paper 000).

Answered by weighing what both sides cost, from samples of updates and messages; see :mod:`tamis.kernels.blocks`.
"""

from __future__ import annotations

import math

import numpy as np

from .bundles import ATTRIBUTE, FIRST_PREDICATE, N_ENTRIES, PLACE, PREDICATES, PROBES, TEMPLATE
from .cells import AT_ROOT, CHUNKS, LINE, N_BLOCKS, OPEN, OPEN_HIGH, OPEN_LOW, SAMPLES, UNBOUNDED, cell, moves
from .jit import bare
from .simd import count_bits, covers

# Costs in postfilter tests (about 70 ns): an update of a watched value; what it costs more when its entry follows, and
# when it leaves its safe range; a chunk that a message meets; an entry that moves to another chunk; a test of an entry
# that is in doubt on several slots.
HEARING, FOLLOWING, ESCALATION, MEETING, MOVE, IN_DOUBT = 0.5, 0.9, 3.0, 1.5, 28.0, 1.3
PATIENCE = 4.0  # updates per entry without a message after which none is expected
KEPT = 0.7  # what is as it is counts as cheaper by this factor: a change of mind costs a deescalation of every chunk
SAMPLE = 256  # one update in so many (fewer in a long run), one message in MESSAGE_SAMPLE, are looked at closely
MESSAGE_SAMPLE = 8
ENOUGH = 128  # updates looked at without which nothing is decided
# Columns of Blocks.seen, per slot: updates, sum of squared steps, doubts, entries found, sum of their lines' margins.
# In the row behind the slots: messages, updates, chunks met, updates since the last message.
MOVED, SQUARES, DOUBTED, FOUND, MARGINS = range(5)
CHUNKS_SEEN, SINCE = 2, 3
SEEN = 5
LEARNING = 0.02  # weight of one message in what is known of the selectivity of slots
MEMORY = 512.0  # messages after which what was seen counts half


@bare
def observe(ix, c, a, v, old, weight, world):
    """Take note of an update that stands for ``weight`` of them: which slots it moves, and how far."""
    slots = ix.slot_attribute.shape[0]
    pred, row = world.templates.predicate, world.templates.row
    seen = ix.seen
    seen[slots, 1] += weight
    seen[slots, SINCE] += weight
    k = np.int64(world.contexts.head[c])
    step = v - old
    if k >= 0 and world.clauses.meta[k, PLACE] != AT_ROOT and math.isfinite(step):
        r = world.clauses.meta[k, TEMPLATE]
        for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
            s = ix.attribute_slot[pred[p, ATTRIBUTE]]
            if s >= 0 and moves(pred, p, a):
                seen[s, MOVED] += weight
                seen[s, SQUARES] += weight * step * step
    ix.count[SAMPLES] += 1
    if ix.count[SAMPLES] % ENOUGH == 0:
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
    as a random walk leaves a range in the square of its width; without slack its entry follows. Slack x costs
    ``doubts`` for each cell of the ends of entries that it leaves open, 2 x of them and ``base``.
    """
    grain = ix.grain[s]
    best, cost = 0.0, np.inf
    x = 126.0 * grain
    if ix.plot[s] <= 0.5 * _domain(ix, s):
        # What the blocks are sorted by stays narrow: beyond this, chunks would be met for nothing.
        x = min(x, ix.passing[s] * _domain(ix, s))
    for i in range(13):
        leaving = ESCALATION / (1.0 + x * x / square) if x > 0.0 else FOLLOWING
        price = updates * (HEARING + leaving) + doubts * (base + 2.0 * x / grain)
        if price * (KEPT if i == 12 else 1.0) < cost:
            best, cost = x, price
        x = 0.5 * x if i < 10 else 0.0 if i == 10 else ix.scratch[1, s]  # last what it is today
        if x == np.inf:
            break
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
    if ix.count[SAMPLES] < ENOUGH:
        return
    if seen[slots, SINCE] >= PATIENCE * ix.count[N_ENTRIES]:
        for s in range(slots):
            if seen[s, MOVED] > 0.0:
                slack[s], ix.leash[s] = np.inf, np.inf
        return
    if seen[slots, 0] == 0.0:
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
            slack[s], ix.leash[s] = 0.0, np.inf
            continue
        square = seen[s, SQUARES] / updates + 1e-300
        margin = seen[s, MARGINS] / max(1.0, seen[s, FOUND])
        slack[s], price = _best_slack(ix, s, updates, square, seen[s, DOUBTED] / (1.0 + margin), 1.0)
        total += price
        ix.leash[s] = _best_leash(ix, s, updates, square)
    # Slots are in the order of their selectivity.
    unbounded, cost, doubts = slots, total * (KEPT if before == slots else 1.0), 0.0
    for first in range(slots - 1, -1, -1):
        if ix.plot[first] <= 0.5 * _domain(ix, first):
            break  # what the blocks are sorted by is not let go while there are messages
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
        far = 0.25 * plot + x  # from a place on the plot to the end of the leash
        price = chunks * min(domain, plot + 2.0 * x) * MEETING + updates * MOVE / (1.0 + far * far / square)
        if price < cost:
            best, cost = x, price
        x *= 0.5
    return best
