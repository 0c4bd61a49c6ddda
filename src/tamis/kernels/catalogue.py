"""The catalogue: clauses by the categories of content graphs that they ask for (posting lists over a graph's labels).

An *entry* is a clause with at least one *side*: a predicate ``topic within X`` (way BELOW: the message's category is
below one of X) or ``topic covers X`` (way ABOVE), where X is a constant or a value of the clause's context. Entries
with the same graphs and ways are a *group*; a *lane* is one graph and way of a group, with two lists of entries per
category: exact ones, and wide ones, which stand for anything below it. A side holds up to MOST categories; K(i) of
paper 000 is what it is found for, and always contains what X asks for.

- **Probe.** What is above a message's categories is marked (:mod:`tamis.kernels.taxonomy`); what is below them is
  searched for step by step. Each group is asked through the lane that gives the fewest candidates for this message; a
  search downwards stops as soon as it gives more than the best so far. The other sides of a candidate reject most of
  those that do not match before the exact test.
- **Update, EAGER.** The categories that X no longer has are taken out, new ones put in.
- **Update, AGILE.** What the side holds already is free. Else a category it no longer needs *escalates* to an ancestor
  that it has in common with the new one, if that is near and not too large, or moves. Candidates found in vain through
  a wide category are *evidence*; enough of it makes the side exact again. A lane whose upkeep costs more than it saves
  *sleeps* (all of it is then escalated to everywhere) as long as its group has another one, and wakes later.

Nothing here allocates: lists are linked through flat arrays that :mod:`tamis.index.catalogue` makes.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from .bundles import (
    CONSTANTS,
    CONTEXT,
    GATE_LENGTH,
    PLACE,
    PREDICATES,
    PROGRAM,
    PROGRAM_LENGTH,
    TEMPLATE,
)
from .jit import bare
from .labels import extent_of, reaches
from .postfilter import constant
from .records import Record
from .simd import prefetch
from .taxonomy import COLUMN, element, span, taxonomy_at

# Instructions of programs; :mod:`tamis.kernels.program` imports what this module needs, so they are named there, too.
_MESSAGE, _CONTEXT, _CONSTANT, _UNDER, _WITHIN = 0, 1, 2, 45, 47

BELOW, ABOVE = range(2)
OUT, EXACT, ROUGH, EVERYWHERE = range(4)  # states of a side
# Columns of Catalogue.entry.
CLAUSE, NEXT_ON, GROUP, CERTAIN = range(4)
# Columns of Catalogue.side: the context attribute X comes from (-1: a constant), its index, how it holds categories.
LANE, SOURCE, OPERAND, MODE, STATE, DEBT = range(6)
SIDE_COLUMNS = 6
# Columns of Catalogue.list.
HEAD_EXACT, HEAD_WIDE, SIZE_EXACT, SIZE_WIDE = range(4)
# Columns of Catalogue.lane; the list behind the last category is that of entries that are found everywhere.
GRAPH, WAY, FIRST, ROOM, AWAKE, COST = range(6)
LANE_COLUMNS = 6
# Columns of Catalogue.work, per lane: what upkeep cost more than it saved, the usual candidates, messages looked at.
BALANCE, USUAL, LOOKED = range(3)
# Entries of Catalogue.count.
N_ENTRIES, LISTENERS, TOP, FREE, PROBES, CANDIDATES, FALSE_POSITIVES, MOVES, ESCALATIONS, DEESCALATIONS = range(10)
NAPS, EAGER, N_GROUPS, SERIAL, UPDATES = range(10, 15)
COUNTS = 16
AWAKE_BIT, ASLEEP_BIT = 1, 2  # of Catalogue.watched

MAX_ANCHORS = 8
CLIMB = 3  # steps upwards that an escalation takes at most
LARGEST = 32  # it stays below categories whose tree has more than this part of the graph
HEARD, MOVE = 12.0, 20.0  # what hearing of an update costs, in candidates, and what moving a side costs


class Catalogue(Record):
    """Entries, their sides, and lists of them by category."""

    FIELDS: ClassVar = {
        "entry": (np.int32, 2),  # [entry, 4]
        "side": (np.int32, 3),  # [entry, sides, SIDE_COLUMNS]
        "node": (np.int32, 3),  # [entry, sides, MOST]: the categories a side holds, -1 for none
        "wide": (np.uint8, 3),  # [entry, sides, MOST]
        "link": (np.int32, 2),  # [posting, 2]: next, and the one before or -1 - (2 * list + wide)
        "list": (np.int32, 2),  # [list, 4]
        "lane": (np.int64, 2),  # [lane, LANE_COLUMNS]
        "group": (np.int32, 2),  # [group, 2 + sides]: entries, number of lanes, lanes
        "head": (np.int32, 1),  # [context]: its first entry, -1 for none
        "watched": (np.uint8, 1),  # [context attribute]: AWAKE_BIT, ASLEEP_BIT
        "missed": (np.int64, 1),  # [context attribute]: updates that only sleeping lanes would have heard of
        "seen": (np.int64, 1),  # [entry]: the last probe that found it
        "work": (np.float64, 2),  # [lane, 3]
        "scratch": (np.int64, 2),  # [4, MOST + 72]
        "asked": (np.int64, 2),  # [MAX_ANCHORS, 4]: the sides of the clause at hand
        "count": (np.int64, 1),
    }


# -- what a clause asks for ------------------------------------------------------------------------------------


@bare
def anchors(k, world, out):
    """The sides of clause ``k``: rows (lane key 2 * graph + way, source, operand, mode) of ``out``.

    Returns their number and whether they are all that the clause asks.
    """
    row, code = world.templates.row, world.templates.code
    r = world.clauses.meta[k, TEMPLATE]
    n = 0
    consumed = 0
    first = np.int64(row[r, PROGRAM])
    for pc in range(first, first + row[r, PROGRAM_LENGTH]):
        op, g = code[pc, 0], np.int64(code[pc, 1])
        if op == _UNDER and pc > first:
            at, key, mode, length = pc - 1, 2 * g + BELOW, np.int64(code[pc, 2]), 2
        elif op == _WITHIN and pc > first + 1:
            at, key, mode, length = pc - 2, 2 * g + ABOVE, np.int64(code[pc, 2]) & 3, 3
            if code[pc - 1, 0] != _MESSAGE or code[pc - 1, 1] != taxonomy_at(world.graphs[g]).count[COLUMN]:
                continue
        else:
            continue
        if code[at, 0] != _CONTEXT and code[at, 0] != _CONSTANT:
            continue
        known = n == MAX_ANCHORS
        for i in range(n):
            known = known or out[i, 0] == key
        if known:
            continue
        out[n, 0], out[n, 1], out[n, 2], out[n, 3] = key, -1, code[at, 1], mode
        if code[at, 0] == _CONTEXT:
            out[n, 1] = code[at, 1]
        n += 1
        consumed += length
    certain = consumed == row[r, PROGRAM_LENGTH] and row[r, PREDICATES] == 0 and row[r, GATE_LENGTH] == 0
    return n, certain


@bare
def _wanted(cx, e, i, world, out):
    """The categories that a side asks for into ``out``; how many, more than MOST when there is no room for them."""
    k = np.int64(cx.entry[e, CLAUSE])
    meta = world.clauses.meta
    a = np.int64(cx.side[e, i, SOURCE])
    if a >= 0:
        v = world.contexts.value[np.int64(meta[k, CONTEXT]), a]
    else:
        v = constant(np.int64(cx.side[e, i, OPERAND]), np.int64(meta[k, CONSTANTS]), world)
    if math.isnan(v):
        return np.int64(0)
    most = cx.node.shape[2]
    tx = taxonomy_at(world.graphs[cx.lane[cx.side[e, i, LANE], GRAPH]])
    first, last, text = span(v, np.int64(cx.side[e, i, MODE]), world.values)
    n = np.int64(0)
    for j in range(first, last):
        node = element(tx, j, text, world.values)
        known = node < 0
        for q in range(n):
            known = known or out[q] == node
        if not known:
            if n == most:
                return np.int64(most + 1)
            out[n] = node
            n += 1
    return n


# -- lists -----------------------------------------------------------------------------------------------------


@bare
def _posting(cx, e, i, j):
    return (e * cx.node.shape[1] + i) * cx.node.shape[2] + j


@bare
def _link(cx, e, i, j, node, wide):
    p = _posting(cx, e, i, j)
    at = cx.lane[cx.side[e, i, LANE], FIRST] + node
    head = cx.list[at, HEAD_EXACT + wide]
    cx.link[p, 0], cx.link[p, 1] = head, -1 - (2 * at + wide)
    if head >= 0:
        cx.link[head, 1] = p
    cx.list[at, HEAD_EXACT + wide] = p
    cx.list[at, SIZE_EXACT + wide] += 1
    cx.node[e, i, j], cx.wide[e, i, j] = node, wide


@bare
def _unlink(cx, e, i, j):
    p = _posting(cx, e, i, j)
    after, before = cx.link[p, 0], np.int64(cx.link[p, 1])
    if before < 0:
        at = -1 - before
        cx.list[at >> 1, HEAD_EXACT + (at & 1)] = after
    else:
        cx.link[before, 0] = after
    if after >= 0:
        cx.link[after, 1] = before
    at = cx.lane[cx.side[e, i, LANE], FIRST] + cx.node[e, i, j]
    cx.list[at, SIZE_EXACT + cx.wide[e, i, j]] -= 1
    cx.node[e, i, j] = -1


@bare
def _clear(cx, e, i):
    for j in range(cx.node.shape[2]):
        if cx.node[e, i, j] >= 0:
            _unlink(cx, e, i, j)
    cx.side[e, i, STATE], cx.side[e, i, DEBT] = OUT, 0


@bare
def _everywhere(cx, e, i):
    """The side is found for every message."""
    _clear(cx, e, i)
    _link(cx, e, i, 0, cx.lane[cx.side[e, i, LANE], ROOM], 0)
    cx.side[e, i, STATE] = EVERYWHERE


@bare
def place(cx, e, i, world):
    """Make a side exact. O(its categories)."""
    out = cx.scratch[0]
    n = _wanted(cx, e, i, world, out)
    most = cx.node.shape[2]
    if n > most:
        if cx.side[e, i, STATE] != EVERYWHERE:
            _everywhere(cx, e, i)
        cx.side[e, i, DEBT] = 0
        return
    for j in range(most):
        node = cx.node[e, i, j]
        if node < 0:
            continue
        keep = False
        if cx.wide[e, i, j] == 0:
            for q in range(n):
                if out[q] == node:
                    out[q] = -1
                    keep = True
                    break
        if not keep:
            _unlink(cx, e, i, j)
            cx.count[MOVES] += 1
    j = 0
    for q in range(n):
        if out[q] >= 0:
            while cx.node[e, i, j] >= 0:
                j += 1
            _link(cx, e, i, j, out[q], 0)
            cx.count[MOVES] += 1
    cx.side[e, i, STATE], cx.side[e, i, DEBT] = EXACT if n else OUT, 0


# -- updates ---------------------------------------------------------------------------------------------------


@bare
def _follow(cx, e, i, world):
    """X of a side has changed: keep k(i) in K(i). Returns whether lists had to change."""
    lane = np.int64(cx.side[e, i, LANE])
    if cx.count[EAGER]:
        place(cx, e, i, world)
        return True
    state = cx.side[e, i, STATE]
    if state == EVERYWHERE:
        return False
    out, needed = cx.scratch[0], cx.scratch[1]
    n = _wanted(cx, e, i, world, out)
    most = cx.node.shape[2]
    if n > most:
        _everywhere(cx, e, i)
        return True
    tx = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]])
    used = 0
    exact = True
    for j in range(most):
        needed[j] = 0
        used += cx.node[e, i, j] >= 0
    missing = 0
    for q in range(n):
        found = False
        for j in range(most):
            node = np.int64(cx.node[e, i, j])
            if node >= 0 and (node == out[q] or (cx.wide[e, i, j] and reaches(tx.labels, node, out[q]))):
                needed[j] = 1
                found = True
                exact = exact and cx.wide[e, i, j] == 0
                break
        if not found:
            out[missing] = out[q]
            missing += 1
    if missing == 0:
        if n == 0 and used == 0:
            cx.side[e, i, STATE] = OUT
        else:
            cx.side[e, i, STATE] = EXACT if exact and used == n else ROUGH
        return False
    largest = max(2, cx.lane[lane, ROOM] // LARGEST)
    for q in range(missing):
        x = out[q]
        spare = -1
        done = False
        for j in range(most):
            node = np.int64(cx.node[e, i, j])
            if node < 0:
                if spare < 0:
                    spare = j
                continue
            if needed[j]:
                continue
            # A category that is no longer needed: a near ancestor of both, or it moves.
            up = np.int64(tx.labels.trunk[node])
            for _ in range(CLIMB):
                if up < 0 or extent_of(tx.labels, up) >= largest:
                    up = np.int64(-1)
                    break
                if reaches(tx.labels, up, x):
                    break
                up = np.int64(tx.labels.trunk[up])
            _unlink(cx, e, i, j)
            if up >= 0 and reaches(tx.labels, up, x):
                _link(cx, e, i, j, up, 1)
                cx.count[ESCALATIONS] += 1
            else:
                _link(cx, e, i, j, x, 0)
            needed[j] = 1
            done = True
            break
        if not done:
            if spare < 0:
                _everywhere(cx, e, i)
                return True
            _link(cx, e, i, spare, x, 0)
            needed[spare] = 1
        cx.count[MOVES] += 1
    held = 0
    exact = True
    for j in range(most):
        if cx.node[e, i, j] >= 0:
            held += 1
            exact = exact and cx.wide[e, i, j] == 0
    cx.side[e, i, STATE] = EXACT if exact and held == n else ROUGH
    return True


@bare
def hear(cx, c, a, world):
    """Context attribute ``a`` of context ``c`` has a new value."""
    if a >= cx.watched.shape[0] or c >= cx.head.shape[0]:
        return
    state = cx.watched[a]
    if state & AWAKE_BIT == 0:
        cx.missed[a] += state != 0
        return
    e = np.int64(cx.head[c])
    while e >= 0:
        lanes = cx.group[cx.entry[e, GROUP], 1]
        for i in range(lanes):
            if cx.side[e, i, SOURCE] == a:
                lane = np.int64(cx.side[e, i, LANE])
                if cx.lane[lane, AWAKE]:
                    cx.work[lane, BALANCE] += MOVE if _follow(cx, e, i, world) else HEARD
        e = np.int64(cx.entry[e, NEXT_ON])


@bare
def hear_all(cx, first, last, shard, shards, updates, world):
    """Updates first..last of a log, which are stored by now."""
    u_context, u_attribute, _, _ = updates
    watched, head, side = cx.watched, cx.head, cx.side
    width, per = side.shape[1] * side.shape[2], cx.node.shape[1] * cx.node.shape[2]
    cx.count[UPDATES] += last - first
    for u in range(first, last):
        if u + 16 < last:
            prefetch(head, u_context[u + 16])
        if u + 8 < last and u_context[u + 8] < head.shape[0]:
            e = max(0, np.int64(head[u_context[u + 8]]))
            prefetch(side, e * width)
            prefetch(cx.node, e * per)
        a = np.int64(u_attribute[u])
        if a < 0 or a >= watched.shape[0] or watched[a] == 0 or (shards > 1 and u_context[u] % shards != shard):
            continue
        hear(cx, u_context[u], a, world)


# -- entries ---------------------------------------------------------------------------------------------------


@bare
def survey(ids, world, asked, sides, keys):
    """What clauses ask for: the number of sides of each, their lane keys as bits, and the largest set among them."""
    largest = np.int64(0)
    meta = world.clauses.meta
    for at in range(ids.shape[0]):
        k = np.int64(ids[at])
        n, _ = anchors(k, world, asked)
        sides[at], keys[at] = n, 0
        for i in range(n):
            keys[at] |= np.uint64(1) << np.uint64(asked[i, 0])
            if asked[i, 1] >= 0:
                v = world.contexts.value[np.int64(meta[k, CONTEXT]), asked[i, 1]]
            else:
                v = constant(asked[i, 2], np.int64(meta[k, CONSTANTS]), world)
            if not math.isnan(v):
                first, last, _ = span(v, asked[i, 3], world.values)
                largest = max(largest, last - first)
    return largest


@bare
def file_in(cx, ids, start, key_lane, world):
    """Enter clauses ids[start:]; where it stopped, and why: 0 done, 1 no room, 2 a group is missing.

    ``key_lane`` int64 [group, 2 * graphs]: the place of a lane key in its group, -1 for none.
    """
    out, wanted = cx.asked, cx.scratch[3]
    meta = world.clauses.meta
    for at in range(start, ids.shape[0]):
        k = np.int64(ids[at])
        n, certain = anchors(k, world, out)
        if cx.count[FREE] < 0 and cx.count[TOP] == cx.entry.shape[0]:
            return at, 1
        group = np.int64(-1)
        for g in range(cx.count[N_GROUPS]):
            if cx.group[g, 1] != n:
                continue
            fits = True
            for i in range(n):
                fits = fits and key_lane[g, out[i, 0]] >= 0
            if fits:
                group = np.int64(g)
                break
        if group < 0:
            return at, 2
        if cx.count[FREE] >= 0:
            e = cx.count[FREE]
            cx.count[FREE] = cx.entry[e, NEXT_ON]
        else:
            e = cx.count[TOP]
            cx.count[TOP] += 1
        cx.entry[e, CLAUSE], cx.entry[e, GROUP], cx.entry[e, CERTAIN] = k, group, certain
        cx.seen[e] = -1
        cx.group[group, 0] += 1
        meta[k, PLACE] = e
        listens = False
        for i in range(n):
            s = key_lane[group, out[i, 0]]
            lane = cx.group[group, 2 + s]
            cx.side[e, s, LANE], cx.side[e, s, SOURCE] = lane, out[i, 1]
            cx.side[e, s, OPERAND], cx.side[e, s, MODE] = out[i, 2], out[i, 3]
            cx.side[e, s, DEBT] = 0
            for j in range(cx.node.shape[2]):
                cx.node[e, s, j] = -1
            a = out[i, 1]
            if a >= 0:
                listens = True
                cx.watched[a] |= AWAKE_BIT if cx.lane[lane, AWAKE] else ASLEEP_BIT
            wanted[i] = s
        for i in range(n):
            s = wanted[i]
            if cx.lane[cx.side[e, s, LANE], AWAKE]:
                cx.side[e, s, STATE] = OUT
                place(cx, e, s, world)
            else:
                cx.side[e, s, STATE] = EVERYWHERE
        cx.entry[e, NEXT_ON] = -1
        if listens:
            c = meta[k, CONTEXT]
            cx.entry[e, NEXT_ON] = cx.head[c]
            cx.head[c] = e
            cx.count[LISTENERS] += 1
        cx.count[N_ENTRIES] += 1
    return ids.shape[0], 0


@bare
def take_out(cx, k, world):
    """Remove clause ``k``."""
    meta = world.clauses.meta
    e = np.int64(meta[k, PLACE])
    g = cx.entry[e, GROUP]
    listens = False
    for i in range(cx.group[g, 1]):
        if cx.lane[cx.side[e, i, LANE], AWAKE]:
            _clear(cx, e, i)
        listens = listens or cx.side[e, i, SOURCE] >= 0
    if listens:
        c = meta[k, CONTEXT]
        if cx.head[c] == e:
            cx.head[c] = cx.entry[e, NEXT_ON]
        else:
            j = np.int64(cx.head[c])
            while cx.entry[j, NEXT_ON] != e:
                j = np.int64(cx.entry[j, NEXT_ON])
            cx.entry[j, NEXT_ON] = cx.entry[e, NEXT_ON]
        cx.count[LISTENERS] -= 1
    cx.group[g, 0] -= 1
    cx.entry[e, CLAUSE] = -1
    cx.entry[e, NEXT_ON] = cx.count[FREE]
    cx.count[FREE] = e
    cx.count[N_ENTRIES] -= 1
    meta[k, PLACE] = -1


@bare
def deescalate(cx, world):
    """Make every side of every lane that is awake exact."""
    for e in range(cx.count[TOP]):
        if cx.entry[e, CLAUSE] >= 0:
            for i in range(cx.group[cx.entry[e, GROUP], 1]):
                if cx.lane[cx.side[e, i, LANE], AWAKE] and cx.side[e, i, STATE] > EXACT:
                    place(cx, e, i, world)


@bare
def check(cx, ids, world):
    """Verify every invariant; (code, clause, side) of the first that is broken, 0 for none."""
    if cx.count[N_ENTRIES] != ids.shape[0]:
        return 1, -1, -1
    out = cx.scratch[0]
    total = np.int64(0)
    for at in range(ids.shape[0]):
        k = np.int64(ids[at])
        e = np.int64(world.clauses.meta[k, PLACE])
        if e < 0 or e >= cx.count[TOP] or cx.entry[e, CLAUSE] != k:
            return 3, k, -1
        g = cx.entry[e, GROUP]
        for i in range(cx.group[g, 1]):
            lane = cx.side[e, i, LANE]
            state = cx.side[e, i, STATE]
            if cx.group[g, 2 + i] != lane:
                return 3, k, i
            if cx.lane[lane, AWAKE] == 0:
                if state != EVERYWHERE:
                    return 6, k, i
                continue
            tx = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]])
            held = 0
            for j in range(cx.node.shape[2]):
                node = np.int64(cx.node[e, i, j])
                if node < 0:
                    continue
                held += 1
                p = _posting(cx, e, i, j)
                before, after = np.int64(cx.link[p, 1]), np.int64(cx.link[p, 0])
                where = 2 * (cx.lane[lane, FIRST] + node) + cx.wide[e, i, j]
                if after >= 0 and cx.link[after, 1] != p:
                    return 18, k, i
                if before >= 0 and cx.link[before, 0] != p:
                    return 18, k, i
                if before < 0 and (-1 - before != where or cx.list[where >> 1, HEAD_EXACT + (where & 1)] != p):
                    return 18, k, i
            total += held
            if state == EVERYWHERE:
                if held != 1 or cx.node[e, i, 0] != cx.lane[lane, ROOM]:
                    return 18, k, i
                continue
            n = _wanted(cx, e, i, world, out)
            if n > cx.node.shape[2] or (state == OUT and (held or n)) or (state == EXACT and held != n):
                return 6, k, i
            for q in range(n):
                covered = False
                for j in range(cx.node.shape[2]):
                    node = np.int64(cx.node[e, i, j])
                    wide = cx.wide[e, i, j] != 0
                    if node >= 0 and (node == out[q] or (wide and reaches(tx.labels, node, out[q]))):
                        covered = covered or state == ROUGH or not wide
                if not covered:
                    return 6, k, i
    for at in range(cx.list.shape[0]):
        total -= cx.list[at, SIZE_EXACT] + cx.list[at, SIZE_WIDE]
    return (0, -1, -1) if total == 0 else (18, -1, -1)
