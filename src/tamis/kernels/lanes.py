"""Asking the catalogue: through which lane a message is matched, and which lanes are worth their upkeep.

Invariant: a group always has a lane that is awake, and every entry of the group that matches is found through each of
them. See :mod:`tamis.kernels.catalogue` for entries, sides and lists.
"""

from __future__ import annotations

import numpy as np

from .bundles import FLAGS, HAS_EFFECT, HAS_SIBLING, PROFILE
from .catalogue import (
    ASLEEP_BIT,
    AWAKE,
    AWAKE_BIT,
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
    GRAPH,
    GROUP,
    HEAD_EXACT,
    HEAD_WIDE,
    LANE,
    LOOKED,
    MOVE,
    N_GROUPS,
    NAPS,
    OUT,
    PROBES,
    ROOM,
    SERIAL,
    SIZE_EXACT,
    SIZE_WIDE,
    SOURCE,
    STATE,
    TOP,
    USUAL,
    WAY,
    place,
)
from .jit import bare
from .labels import reaches
from .postfilter import holds
from .simd import prefetch
from .taxonomy import DOWN, HEAD, MARKED, OWN, PRESENT, expand, taxonomy_at

DUE = 16  # candidates in vain after which a side is made exact again
SLEEP, WAKE = 10.0, 40.0  # what sending a side to sleep and waking it cost, in candidates
ASIDE = 16  # every so many messages lanes are compared; a search then goes on for so many times the best one


# -- sleeping --------------------------------------------------------------------------------------------------


@bare
def _watch(cx):
    """What context attributes the lanes depend on, awake and asleep."""
    for a in range(cx.watched.shape[0]):
        cx.watched[a] = 0
    for e in range(cx.count[TOP]):
        if cx.entry[e, CLAUSE] < 0:
            continue
        for i in range(cx.group[cx.entry[e, GROUP], 1]):
            a = cx.side[e, i, SOURCE]
            if a >= 0:
                cx.watched[a] |= AWAKE_BIT if cx.lane[cx.side[e, i, LANE], AWAKE] else ASLEEP_BIT


@bare
def sleep(cx, lane):
    """The lane is not kept up any more."""
    cx.lane[lane, AWAKE] = 0
    first = cx.lane[lane, FIRST]
    for at in range(first, first + cx.lane[lane, ROOM] + 1):
        cx.list[at, 0], cx.list[at, 1], cx.list[at, 2], cx.list[at, 3] = -1, -1, 0, 0
    for e in range(cx.count[TOP]):
        if cx.entry[e, CLAUSE] < 0:
            continue
        for i in range(cx.group[cx.entry[e, GROUP], 1]):
            if cx.side[e, i, LANE] == lane:
                for j in range(cx.node.shape[2]):
                    cx.node[e, i, j] = -1
                cx.side[e, i, STATE], cx.side[e, i, DEBT] = EVERYWHERE, 0
    cx.work[lane, BALANCE] = 0.0
    cx.count[NAPS] += 1
    _watch(cx)
    for a in range(cx.missed.shape[0]):
        cx.missed[a] = 0


@bare
def wake(cx, lane, world):
    """The lane is kept up again: all of its sides are made exact."""
    cx.lane[lane, AWAKE] = 1
    for e in range(cx.count[TOP]):
        if cx.entry[e, CLAUSE] < 0:
            continue
        for i in range(cx.group[cx.entry[e, GROUP], 1]):
            if cx.side[e, i, LANE] == lane:
                cx.side[e, i, STATE] = OUT
                place(cx, e, i, world)
    cx.work[lane, BALANCE] = 0.0
    _watch(cx)


@bare
def _account(cx, g, best, cost, other, world):
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
            for a in range(cx.missed.shape[0]):
                work[BALANCE] -= MOVE * cx.missed[a]
                cx.missed[a] = 0
            work[BALANCE] = max(work[BALANCE], 0.0)
            if work[BALANCE] > WAKE * size:
                wake(cx, lane, world)


# -- probing ---------------------------------------------------------------------------------------------------


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
def _passes(cx, e, i, world):
    """Whether a side could match the message at hand: 0 no, 1 perhaps, 2 yes."""
    state = cx.side[e, i, STATE]
    if state == EVERYWHERE:
        return 1
    lane = cx.side[e, i, LANE]
    tx = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]])
    below = cx.lane[lane, WAY] == BELOW
    searched = tx.count[HEAD] == tx.count[DOWN]
    if not below and not searched:
        return 1
    marks = tx.up if below else tx.down
    for j in range(cx.node.shape[2]):
        node = cx.node[e, i, j]
        if node >= 0 and (marks[node] or (not below and cx.wide[e, i, j] and tx.up[node])):
            return 2 if state == EXACT else 1
    return 0


@bare
def _hopeless(cx, e, g, found, world):
    """Whether the categories of another side than the one it was found through rule an entry out.

    Looks at nothing else of the entry: most candidates end here, and what costs is to fetch them.
    """
    most = cx.node.shape[2]
    for i in range(cx.group[g, 1]):
        lane = np.int64(cx.group[g, 2 + i])
        if i == found or cx.lane[lane, AWAKE] == 0:
            continue
        tx = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]])
        up, down = tx.up, tx.down
        below = cx.lane[lane, WAY] == BELOW
        searched = below or tx.count[HEAD] == tx.count[DOWN]
        hit = False
        for j in range(most):
            node = np.int64(cx.node[e, i, j])
            if node < 0:
                continue
            hit = up[node] != 0 or (not below and down[node] != 0)
            if not hit and not searched:
                for q in range(tx.count[OWN]):
                    hit = hit or reaches(tx.labels, np.int64(tx.below[q]), node)
            if hit:
                break
        if not hit:
            return True
    return False


@bare
def _visit(cx, p, g, found, m, world, hits, special, n, n_special, owed):
    """The entries of a list from posting ``p`` on, found through side ``found`` of group ``g``."""
    most = cx.node.shape[2]
    per = cx.node.shape[1] * most
    other = (found + 1) % max(1, np.int64(cx.group[g, 1])) * most
    meta = world.clauses.meta
    serial = cx.count[SERIAL]
    following = p // per
    while p >= 0:
        e = following
        p = np.int64(cx.link[p, 0])
        if p >= 0:
            following = p // per
            prefetch(cx.node, following * per + other)
        cx.count[CANDIDATES] += 1
        if _hopeless(cx, e, g, found, world):
            cx.count[FALSE_POSITIVES] += 1
            continue
        if cx.seen[e] == serial:
            continue
        cx.seen[e] = serial
        ok = True
        sure = cx.entry[e, CERTAIN] == 1
        for i in range(cx.group[cx.entry[e, GROUP], 1]):
            verdict = _passes(cx, e, i, world)
            if verdict == 0:
                ok = False
                break
            sure = sure and verdict == 2
        k = np.int64(cx.entry[e, CLAUSE])
        if ok and not sure:
            ok = holds(k, m, world)
        if not ok:
            cx.count[FALSE_POSITIVES] += 1
            if cx.side[e, found, STATE] > EXACT and cx.count[EAGER] == 0:
                cx.side[e, found, DEBT] += 1
                if cx.side[e, found, DEBT] >= DUE and owed[0] < 64:
                    owed[0] += 1
                    owed[owed[0]] = e * cx.node.shape[1] + found
            continue
        if meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT):
            special[n_special] = k
            n_special += 1
        else:
            hits[n] = meta[k, PROFILE]
            n += 1
    return n, n_special


@bare
def probe(cx, m, world, hits, special, n, n_special):
    """Add the matches of message row ``m``, whose categories are marked, to ``hits`` and ``special``."""
    cx.count[PROBES] += 1
    cx.count[SERIAL] += 1
    owed = cx.scratch[2]
    owed[0] = 0
    aside = cx.count[EAGER] == 0 and cx.count[PROBES] % ASIDE == 0
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
        lane = np.int64(cx.group[g, 2 + best])
        first = cx.lane[lane, FIRST]
        tx = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]])
        if cost > 0:
            p = np.int64(cx.list[first + cx.lane[lane, ROOM], HEAD_EXACT])
            n, n_special = _visit(cx, p, np.int64(g), best, m, world, hits, special, n, n_special, owed)
            below = cx.lane[lane, WAY] == BELOW
            for i in range(tx.count[MARKED]):
                at = first + tx.above[i]
                if below and cx.list[at, HEAD_EXACT] >= 0:
                    p = np.int64(cx.list[at, HEAD_EXACT])
                    n, n_special = _visit(cx, p, np.int64(g), best, m, world, hits, special, n, n_special, owed)
                if cx.list[at, HEAD_WIDE] >= 0:
                    p = np.int64(cx.list[at, HEAD_WIDE])
                    n, n_special = _visit(cx, p, np.int64(g), best, m, world, hits, special, n, n_special, owed)
            for i in range(0 if below else tx.count[DOWN]):
                at = first + tx.below[i]
                for wide in range(2):
                    if cx.list[at, HEAD_EXACT + wide] >= 0:
                        p = np.int64(cx.list[at, HEAD_EXACT + wide])
                        n, n_special = _visit(cx, p, np.int64(g), best, m, world, hits, special, n, n_special, owed)
        if aside:
            _account(cx, g, best, np.float64(cost), np.float64(other), world)
    for i in range(owed[0]):
        e, side = owed[1 + i] // cx.node.shape[1], owed[1 + i] % cx.node.shape[1]
        if cx.side[e, side, STATE] > EXACT and cx.lane[cx.side[e, side, LANE], AWAKE]:
            cx.count[DEESCALATIONS] += 1
            place(cx, e, side, world)
    return n, n_special
