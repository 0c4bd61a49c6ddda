"""Asking the catalogue: through which lane a message is matched, and which lanes are worth their upkeep.

Invariant: a group always has a lane that is awake, and every entry of the group that matches is found through each of
them. See :mod:`tamis.kernels.catalogue` for entries, sides and lists.

What a lane gives lies in a bag and goes through a sieve per side, in which the categories that the side has now are
looked up among the marks of the message: one line of memory per candidate, asked for ahead. What is left matches,
unless the clause asks for more than categories.
"""

from __future__ import annotations

import numpy as np

from .bundles import FLAGS, HAS_EFFECT, HAS_SIBLING, PROFILE
from .catalogue import (
    AWAKE,
    BALANCE,
    BELOW,
    CANDIDATES,
    CERTAIN,
    CLAUSE,
    DEBT,
    DEESCALATIONS,
    EAGER,
    EVERYWHERE,
    EXACT,
    FALSE_POSITIVES,
    FIRST,
    FREE_CHUNK,
    GRAPH,
    GROUP,
    HEAD_EXACT,
    LANE,
    LOOKED,
    MANY,
    MOVE,
    N_GROUPS,
    NAPS,
    NOW,
    PER,
    PROBES,
    ROOM,
    SERIAL,
    SIZE_EXACT,
    SIZE_WIDE,
    STATE,
    TOP,
    USUAL,
    WAY,
    place,
    sides_of,
    stretches,
)
from .jit import bare
from .labels import holds_point, last_of, number_of, shelf_of
from .postfilter import holds
from .simd import prefetch
from .taxonomy import DOWN, HEAD, MARKED, OWN, PRESENT, expand, taxonomy_at

DUE = 16  # candidates in vain after which a side is made exact again
OWED = 64  # sides that are made exact by one message at most
SLEEP, WAKE = 8.0, 16.0  # what sending a side to sleep and waking it cost, in candidates
ASIDE = 16  # every so many messages lanes are compared; a search then goes on for so many times the best one
AHEAD, LISTS_AHEAD = 16, 6  # how many candidates, and lists, ahead memory is asked for
UNSURE, DOUBT = 1, 2  # of what is in the bag: found through a wide category; more categories than the side has room for
LAST_SERIAL = 2**31 - 1


# -- sleeping --------------------------------------------------------------------------------------------------


@bare
def sleep(cx, lane):
    """The lane is not kept up any more."""
    cx.lane[lane, AWAKE] = 0
    first, most = cx.lane[lane, FIRST], cx.spot.shape[1]
    for at in range(first, first + cx.lane[lane, ROOM] + 1):
        for wide in range(2):
            link = np.int64(cx.list[at, HEAD_EXACT + wide])
            while link >= 0:
                following = np.int64(cx.chunk[link, 0])
                cx.chunk[link, 0] = cx.count[FREE_CHUNK]
                cx.count[FREE_CHUNK] = link
                link = following
            cx.list[at, HEAD_EXACT + wide], cx.list[at, SIZE_EXACT + wide] = -1, 0
    for e in range(cx.count[TOP]):
        for i in range(cx.group[cx.entry[e, GROUP], 1] if cx.entry[e, CLAUSE] >= 0 else 0):
            s = e * sides_of(cx) + i
            if cx.side[s, LANE] == lane:
                for j in range(most):
                    cx.held[s, j], cx.spot[s, j] = -1, -1
                cx.side[s, STATE], cx.side[s, DEBT] = EVERYWHERE, 0
    cx.work[lane, BALANCE] = 0.0
    cx.missed[lane] = 0
    cx.count[NAPS] += 1


@bare
def wake(cx, lane):
    """The lane is kept up again: all of its sides are made exact."""
    cx.lane[lane, AWAKE] = 1
    for e in range(cx.count[TOP]):
        for i in range(cx.group[cx.entry[e, GROUP], 1] if cx.entry[e, CLAUSE] >= 0 else 0):
            s = e * sides_of(cx) + i
            if cx.side[s, LANE] == lane:
                cx.side[s, STATE] = EXACT
                place(cx, s)
    cx.work[lane, BALANCE] = 0.0


@bare
def _account(cx, g, best, cost, other):
    """What the lanes of a group cost and save by the last ASIDE messages, as by this one; lanes fall asleep or wake."""
    size = np.float64(cx.group[g, 0])
    awake = 0
    for i in range(cx.group[g, 1]):
        awake += cx.lane[cx.group[g, 2 + i], AWAKE]
    for i in range(cx.group[g, 1]):
        lane = np.int64(cx.group[g, 2 + i])
        work = cx.work[lane]
        if cx.lane[lane, AWAKE]:
            if i == best:
                work[BALANCE] -= ASIDE * (other - cost)
                work[USUAL] += 0.05 * (cost - work[USUAL])
            work[BALANCE] = max(work[BALANCE], 0.0)
            if awake > 1 and work[BALANCE] > SLEEP * size:
                sleep(cx, lane)
                awake -= 1
            continue
        work[BALANCE] += ASIDE * (cost - work[USUAL])
        work[LOOKED] += 1.0
        if work[LOOKED] >= 4.0:
            work[LOOKED] = 0.0
            work[BALANCE] = max(work[BALANCE] - MOVE * cx.missed[lane], 0.0)
            cx.missed[lane] = 0
            if work[BALANCE] > WAKE * size:
                wake(cx, lane)


# -- what a lane gives -----------------------------------------------------------------------------------------


@bare
def _cost_below(cx, lane, tx):
    """The candidates of a lane of way BELOW."""
    first = cx.lane[lane, FIRST]
    cost = np.int64(cx.list[first + cx.lane[lane, ROOM], SIZE_EXACT])
    above, lists = tx.above, cx.list
    for i in range(tx.count[MARKED]):
        at = first + above[i]
        cost += lists[at, SIZE_EXACT] + lists[at, SIZE_WIDE]
    return cost


@bare
def _cost_above(cx, lane, tx, best):
    """The candidates of a lane of way ABOVE, or ``best`` when they are not fewer; then the search stops."""
    first = cx.lane[lane, FIRST]
    lists = cx.list
    cost = np.int64(lists[first + cx.lane[lane, ROOM], SIZE_EXACT])
    for i in range(tx.count[MARKED]):
        cost += lists[first + tx.above[i], SIZE_WIDE]
    i = 0
    while cost + (i >> 3) < best:
        if i == tx.count[DOWN]:
            if not expand(tx):
                return cost
            continue
        at = first + tx.below[i]
        cost += lists[at, SIZE_EXACT] + lists[at, SIZE_WIDE]
        i += 1
    return best


@bare
def _take(cx, at, wide, unsure, found, n):
    """Put the entries of a list into the bag; side ``found`` of them is listed there.

    One with several categories that meet the message comes several times: to look it up would cost more.
    """
    size = np.int64(cx.list[at, SIZE_EXACT + wide])
    link = np.int64(cx.list[at, HEAD_EXACT + wide])
    chunk, bag = cx.chunk, cx.bag
    fill = (size - 1) % PER + 1 if size > 0 else 0
    while link >= 0:
        for q in range(1, fill + 1):
            bag[n] = 4 * (chunk[link, q] - found) + unsure
            n += 1
        link = np.int64(chunk[link, 0])
        fill = PER
    return n


@bare
def _ask(cx, lane, found, tx):
    """All that a lane gives into the bag; how many, and how many of them perhaps for a wide category."""
    first = cx.lane[lane, FIRST]
    lists, chunk, above = cx.list, cx.chunk, tx.above
    n = _take(cx, first + cx.lane[lane, ROOM], 0, UNSURE, found, np.int64(0))
    marked, below = tx.count[MARKED], cx.lane[lane, WAY] == BELOW
    for i in range(marked):
        # What is above one category of the message and below another, or is one of them, is met below: nothing twice,
        # as the bag has room for every posting once.
        if lists[first + above[i], SIZE_WIDE] > 0 and (below or tx.down[above[i]] == 0):
            n = _take(cx, first + above[i], 1, UNSURE, found, n)
    unsure = n
    if below:
        for i in range(marked):
            if i + 2 * LISTS_AHEAD < marked:
                prefetch(lists, (first + above[i + 2 * LISTS_AHEAD]) * 4)
            if i + LISTS_AHEAD < marked:
                head = np.int64(lists[first + above[i + LISTS_AHEAD], HEAD_EXACT])
                prefetch(chunk, max(0, head) * (PER + 1))
            n = _take(cx, first + above[i], 0, 0, found, n)
    else:
        for i in range(tx.count[DOWN]):
            at = first + tx.below[i]
            n = _take(cx, at, 0, 0, found, n)
            n = _take(cx, at, 1, 0, found, n)
    return n, unsure


# -- the sieve -------------------------------------------------------------------------------------------------


@bare
def _meets(cx, s, tx, below, spans):
    """Whether a category that a side has now meets the message: 1 yes, 0 no, -1 not to be said."""
    row = cx.side[s]
    n = np.int64(row[MANY])
    if below:
        for q in range(n):
            if tx.up[row[NOW + q]]:
                return 1
    elif spans < 0:
        for q in range(n):
            if tx.down[row[NOW + q]]:
                return 1
    else:
        labels, span = tx.labels, cx.scratch[2]
        for q in range(n):
            node = np.int64(row[NOW + q])
            number, shelf = number_of(labels, node), shelf_of(labels, node)
            for p in range(spans):
                if span[2 * p] <= number and number <= span[2 * p + 1]:
                    return 1
                if shelf != 0 and holds_point(labels, shelf, span[2 * p], span[2 * p + 1]):
                    return 1
    return -1 if n < 0 else 0


@bare
def _rule_out(cx, lane, i, n, tx):
    """Keep in the bag those of which side ``i`` may be below the message; how many."""
    bits = np.uint64(0)
    for p in range(tx.count[OWN]):
        node = np.int64(tx.below[p])
        bits |= stretches(cx, lane, number_of(tx.labels, node), last_of(tx.labels, node))
    bag, where = cx.bag, cx.where
    kept = np.int64(0)
    for at in range(n):
        candidate = bag[at]
        bag[kept] = candidate
        kept += where[np.int64(candidate >> 2) + i] & bits != 0  # a branch would be guessed wrong too often
    return kept


@bare
def _sieve(cx, lane, i, n, wide, owed, world):
    """Keep in the bag what side ``i`` does not rule out; how many. With ``wide``, those that are sure stay untested."""
    tx = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]])
    below = cx.lane[lane, WAY] == BELOW
    if not below and not wide:
        n = _rule_out(cx, lane, i, n, tx)
    spans = np.int64(-1)
    if not below and tx.count[HEAD] < tx.count[DOWN] and 2 * tx.count[OWN] <= cx.scratch.shape[1]:
        spans = tx.count[OWN]
        for p in range(spans):
            node = np.int64(tx.below[p])
            cx.scratch[2, 2 * p], cx.scratch[2, 2 * p + 1] = number_of(tx.labels, node), last_of(tx.labels, node)
    elif not below:
        while expand(tx):
            pass
    bag, side, width = cx.bag, cx.side, cx.side.shape[1]
    kept = np.int64(0)
    for at in range(n):
        if at + AHEAD < n:
            prefetch(side, (np.int64(bag[at + AHEAD] >> 2) + i) * width + NOW)
        candidate = bag[at]
        if wide and candidate & UNSURE == 0:
            bag[kept] = candidate
            kept += 1
            continue
        s = np.int64(candidate >> 2) + i
        verdict = _meets(cx, s, tx, below, spans)
        if verdict != 0:
            bag[kept] = candidate | (DOUBT if verdict < 0 else 0)
            kept += 1
        elif wide and cx.count[EAGER] == 0:
            side[s, DEBT] += 1
            if side[s, DEBT] >= DUE and owed[0] < OWED:
                owed[0] += 1
                owed[owed[0]] = s
    return kept


@bare
def probe(cx, m, world, hits, special, n, n_special):
    """Add the matches of message row ``m``, whose categories are marked, to ``hits`` and ``special``."""
    cx.count[PROBES] += 1
    owed = cx.scratch[1]
    owed[0] = 0
    sides = sides_of(cx)
    aside = cx.count[EAGER] == 0 and cx.count[PROBES] % ASIDE == 0
    if cx.count[SERIAL] == LAST_SERIAL:
        for i in range(cx.seen.shape[0]):
            cx.seen[i] = 0
        cx.count[SERIAL] = 0
    cx.count[SERIAL] += 1
    for g in range(cx.count[N_GROUPS]):
        if cx.group[g, 0] == 0:
            continue
        lanes = np.int64(cx.group[g, 1])
        best = np.int64(-1)
        cost = np.int64(1 << 60)
        other = np.int64(cx.group[g, 0])
        possible = True
        for way in range(2):
            for i in range(lanes):
                lane = np.int64(cx.group[g, 2 + i])
                tx = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]])
                possible = possible and tx.count[PRESENT] != 0
                if not possible or cx.lane[lane, WAY] != way or cx.lane[lane, AWAKE] == 0:
                    continue
                limit = cost * ASIDE if aside and cost < 1 << 50 else cost
                found = _cost_below(cx, lane, tx) if way == BELOW else _cost_above(cx, lane, tx, limit)
                if found < cost:
                    other = min(other, cost)
                    cost, best = found, np.int64(i)
                else:
                    other = min(other, found)
        if not possible or best < 0:
            continue
        if cost > 0:
            lane = np.int64(cx.group[g, 2 + best])
            many, unsure = _ask(cx, lane, best, taxonomy_at(world.graphs[cx.lane[lane, GRAPH]]))
            kept = many
            if unsure > 0:
                kept = _sieve(cx, lane, best, kept, True, owed, world)
            for t in range(1, lanes + 1):
                i = (best + t) % lanes
                if kept > 0:
                    kept = _sieve(cx, np.int64(cx.group[g, 2 + i]), i, kept, False, owed, world)
            matches = 0
            for at in range(kept):
                e = np.int64(cx.bag[at] >> 2) // sides
                if cx.seen[e] == cx.count[SERIAL]:
                    continue
                cx.seen[e] = cx.count[SERIAL]
                k = np.int64(cx.entry[e, CLAUSE])
                if (cx.entry[e, CERTAIN] == 0 or cx.bag[at] & DOUBT) and not holds(k, m, world):
                    continue
                matches += 1
                if world.clauses.meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT):
                    special[n_special] = k
                    n_special += 1
                else:
                    hits[n] = world.clauses.meta[k, PROFILE]
                    n += 1
            cx.count[CANDIDATES] += many
            cx.count[FALSE_POSITIVES] += many - matches
        if aside:
            _account(cx, g, best, np.float64(cost), np.float64(other))
    for i in range(owed[0]):
        s = owed[1 + i]
        if cx.side[s, STATE] > EXACT and cx.lane[cx.side[s, LANE], AWAKE]:
            cx.count[DEESCALATIONS] += 1
            place(cx, s)
    return n, n_special
