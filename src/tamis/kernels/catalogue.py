"""The catalogue: clauses by the categories of content graphs that they ask for (posting lists over a graph's labels).

An *entry* is a clause with at least one *side*: a predicate ``topic within X`` (way BELOW: the message's category is
below one of X) or ``topic covers X`` (way ABOVE), where X is a constant or a value of the clause's context. Entries
with the same graphs and ways are a *group*; a *lane* is one graph and way of a group, with two lists of entries per
category: exact ones, and wide ones, which stand for anything below it. A side *holds* up to MOST categories: K(i) of
paper 000 is what it is found for, and always contains what X asks for. What X asks for *now* lies beside it, so that a
candidate is tested by its categories alone, however roughly it is held. Before that a word per side rules most of them
out: *where*, the stretches of the graph's numbers in which a message's category may be above one of X.

- **Probe.** What is above a message's categories is marked (:mod:`tamis.kernels.taxonomy`); what is below them is
  searched for step by step. Each group is asked through the lane that gives the fewest candidates for this message; a
  search downwards stops as soon as it gives more than the best so far (:mod:`tamis.kernels.lanes`).
- **Update, EAGER.** The categories that X no longer has are taken out, new ones put in.
- **Update, AGILE.** What the side holds already is free: the new categories are stored. Else a category it no longer
  needs *escalates* to an ancestor that it has in common with the new one, if that is near and not too large, or moves.
  Candidates found in vain through a wide category are *evidence*; enough of it makes the side exact again. A lane whose
  upkeep costs more than it saves *sleeps* (all of it is then escalated to everywhere, and an update is a store) as long
  as its group has another one, and wakes later.

Nothing here allocates. A list is a chain of *chunks* of up to PER entries, a cache line each; all but the first are
full, so that there are never more than the entries and the lists need, and :mod:`tamis.index.catalogue` makes them all.
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
from .jit import bare, inlined
from .labels import extent_of, number_of, reaches, shelf_of
from .postfilter import constant
from .records import Record
from .simd import prefetch
from .taxonomy import COLUMN, element, span, taxonomy_at

# Instructions of programs; :mod:`tamis.kernels.program` imports what this module needs, so they are named there, too.
_MESSAGE, _CONTEXT, _CONSTANT, _UNDER, _WITHIN = 0, 1, 2, 45, 47

BELOW, ABOVE = range(2)
OUT, EXACT, ROUGH, EVERYWHERE = range(4)  # states of a side
# Columns of Catalogue.entry.
CLAUSE, GROUP, CERTAIN, FOLLOWING = range(4)
# Columns of Catalogue.side: the context attribute X comes from (-1: a constant), its index, how it holds categories;
# evidence against the state; how many categories X has now, -1 when more than there is room for; the next side that
# hears of the same value. Behind them are the categories of now; with up to eight of them a side is one cache line.
LANE, SOURCE, OPERAND, MODE, STATE, DEBT, MANY, NEXT_ON = range(8)
NOW = 8
# Columns of Catalogue.list.
HEAD_EXACT, HEAD_WIDE, SIZE_EXACT, SIZE_WIDE = range(4)
# Columns of Catalogue.lane; the list behind the last category is that of entries that are found everywhere. A stretch
# is so many numbers, as a power of two; what is behind the last of them belongs to it.
GRAPH, WAY, FIRST, ROOM, AWAKE, STRETCH = range(6)
LANE_COLUMNS = 6
STRETCHES = 64
ALL = np.uint64(2**STRETCHES - 1)
# Columns of Catalogue.work, per lane: what upkeep cost more than it saved, the usual candidates, messages looked at.
BALANCE, USUAL, LOOKED = range(3)
# Entries of Catalogue.count.
N_ENTRIES, LISTENERS, TOP, FREE, PROBES, CANDIDATES, FALSE_POSITIVES, MOVES, ESCALATIONS, DEESCALATIONS = range(10)
NAPS, EAGER, N_GROUPS, SERIAL, UPDATES, CHUNKS, FREE_CHUNK = range(10, 17)
COUNTS = 17
PER = 15  # entries of a chunk; before them is the chunk that follows, -1 for none

MAX_ANCHORS = 8
CLIMB = 3  # steps upwards that an escalation takes at most
TILE = 32  # updates for which memory is asked for together
LARGEST = 32  # it stays below categories whose tree has more than this part of the graph
HEARD, MOVE = 1.0, 24.0  # what hearing of an update costs, in candidates, and what moving a side costs


class Catalogue(Record):
    """Entries, their sides, and lists of them by category."""

    FIELDS: ClassVar = {
        "entry": (np.int32, 2),  # [entry, 4]
        # All by entry * sides + side: what it asks for; [, MOST]: the categories it holds as 2 * category + wide, and
        # where in their chunks they are listed, -1 for none; bits of stretches, of way ABOVE alone.
        "side": (np.int32, 2),
        "held": (np.int32, 2),
        "spot": (np.int32, 2),
        "where": (np.uint64, 1),
        "chunk": (np.int32, 2),  # [chunk, 1 + PER]
        "list": (np.int32, 2),  # [list, 4]
        "lane": (np.int64, 2),  # [lane, LANE_COLUMNS]
        "group": (np.int32, 2),  # [group, 2 + sides]: entries, number of lanes, lanes
        "slot": (np.int32, 1),  # [context attribute]: its column of head, -1 when no side comes from it
        "head": (np.int32, 2),  # [context, slot]: the first side that hears of the value, -1 for none
        "heard": (np.int32, 1),  # [TILE]: the first side that hears of each update at hand
        "missed": (np.int64, 1),  # [lane]: updates that it would have followed, had it been awake
        "seen": (np.int32, 1),  # [entry]: the last probe that it matched
        "bag": (np.int32, 1),  # [entry * MOST]: what a probe found
        "work": (np.float64, 2),  # [lane, 3]
        "scratch": (np.int64, 2),  # [3, 80]
        "asked": (np.int64, 2),  # [MAX_ANCHORS, 4]: the sides of the clause at hand
        "count": (np.int64, 1),
    }


@bare
def sides_of(cx):
    """How many sides an entry may have."""
    return cx.group.shape[1] - 2


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
def stretches(cx, lane, low, high):
    """The bits of the stretches that have the numbers ``low .. high``."""
    first = np.uint64(min(STRETCHES - 1, low >> cx.lane[lane, STRETCH]))
    last = np.uint64(min(STRETCHES - 1, high >> cx.lane[lane, STRETCH]))
    return (ALL >> (np.uint64(STRETCHES - 1) - last)) & (ALL << first)


@bare
def read(cx, s, v, world):
    """The value of X of side ``s`` is ``v``: the categories that it asks for become those of now. Returns MANY."""
    row = cx.side[s]
    n = np.int64(0)
    where = np.uint64(0)
    if not math.isnan(v):
        most, lane = cx.spot.shape[1], cx.lane[row[LANE]]
        tx = taxonomy_at(world.graphs[lane[GRAPH]])
        first, last, text = span(v, np.int64(row[MODE]), world.values)
        # At hand before the loop, whose stores could be to any of them for all that the compiler knows.
        elements, category = world.values.list_value, tx.category
        above, stretch, numbers, shelves = lane[WAY] == ABOVE, lane[STRETCH], tx.labels.number, tx.labels.shelf
        for j in range(first, last):
            node = element(j, text, elements, category)
            known = node < 0
            for q in range(n):
                known = known or row[NOW + q] == node
            if known:
                continue
            if n == most:
                n, where = np.int64(-1), ALL
                break
            row[NOW + n] = node
            n += 1
            if above:
                number = np.int64(numbers[node]) if numbers.shape[0] > 0 else node
                where |= np.uint64(1) << np.uint64(min(STRETCHES - 1, number >> stretch))
                if shelves.shape[0] > 0 and shelves[node] != 0:
                    where = ALL  # what is above it by another parent may have any number
    row[MANY] = n
    cx.where[s] = where
    return n


@bare
def value_of(cx, e, s, world):
    """The value of X of side ``s`` of entry ``e``, as things stand."""
    k = np.int64(cx.entry[e, CLAUSE])
    meta = world.clauses.meta
    a = np.int64(cx.side[s, SOURCE])
    if a >= 0:
        return world.contexts.value[np.int64(meta[k, CONTEXT]), a]
    return constant(np.int64(cx.side[s, OPERAND]), np.int64(meta[k, CONSTANTS]), world)


# -- lists -----------------------------------------------------------------------------------------------------


@bare
def _link(cx, s, j, node, wide):
    """Side ``s`` holds a category in place ``j``."""
    at = cx.lane[cx.side[s, LANE], FIRST] + node
    size = np.int64(cx.list[at, SIZE_EXACT + wide])
    fill = size % PER
    if fill == 0:
        fresh = cx.count[FREE_CHUNK]
        if fresh >= 0:
            cx.count[FREE_CHUNK] = cx.chunk[fresh, 0]
        else:
            fresh = cx.count[CHUNKS]
            cx.count[CHUNKS] += 1
        cx.chunk[fresh, 0] = cx.list[at, HEAD_EXACT + wide]
        cx.list[at, HEAD_EXACT + wide] = fresh
    spot = np.int64(cx.list[at, HEAD_EXACT + wide]) * (PER + 1) + 1 + fill
    cx.chunk[spot // (PER + 1), spot % (PER + 1)] = s
    cx.list[at, SIZE_EXACT + wide] = size + 1
    cx.spot[s, j] = spot
    cx.held[s, j] = 2 * node + wide


@bare
def _unlink(cx, s, j):
    """Side ``s`` does not hold the category in place ``j`` any more: the last one of the list takes its place there."""
    most = cx.spot.shape[1]
    held = np.int64(cx.held[s, j])
    at, wide = cx.lane[cx.side[s, LANE], FIRST] + (held >> 1), held & 1
    size = np.int64(cx.list[at, SIZE_EXACT + wide])
    head = np.int64(cx.list[at, HEAD_EXACT + wide])
    last = head * (PER + 1) + 1 + (size - 1) % PER
    spot = np.int64(cx.spot[s, j])
    if spot != last:
        other = np.int64(cx.chunk[head, last % (PER + 1)])
        cx.chunk[spot // (PER + 1), spot % (PER + 1)] = other
        for q in range(most):
            if cx.spot[other, q] == last:
                cx.spot[other, q] = spot
                break
    cx.list[at, SIZE_EXACT + wide] = size - 1
    if (size - 1) % PER == 0:
        cx.list[at, HEAD_EXACT + wide] = cx.chunk[head, 0]
        cx.chunk[head, 0] = cx.count[FREE_CHUNK]
        cx.count[FREE_CHUNK] = head
    cx.spot[s, j] = -1
    cx.held[s, j] = -1


@bare
def _clear(cx, s):
    most = cx.spot.shape[1]
    for j in range(most):
        if cx.held[s, j] >= 0:
            _unlink(cx, s, j)
    cx.side[s, STATE], cx.side[s, DEBT] = OUT, 0


@bare
def _everywhere(cx, s):
    """The side is found for every message."""
    _clear(cx, s)
    _link(cx, s, 0, cx.lane[cx.side[s, LANE], ROOM], 0)
    cx.side[s, STATE] = EVERYWHERE


@bare
def place(cx, s):
    """Hold exactly the categories of now. O(categories)."""
    row, most = cx.side[s], cx.spot.shape[1]
    held = cx.held[s]
    n = np.int64(row[MANY])
    if n < 0:
        if row[STATE] != EVERYWHERE:
            _everywhere(cx, s)
        row[DEBT] = 0
        return
    kept = 0
    for j in range(most):
        if held[j] < 0:
            continue
        keep = False
        for q in range(n):
            keep = keep or 2 * row[NOW + q] == held[j]
        kept += keep
        if not keep:
            _unlink(cx, s, j)
            cx.count[MOVES] += 1
    j = 0
    for q in range(n if kept < n else 0):
        known = False
        for p in range(most):
            known = known or 2 * row[NOW + q] == held[p]
        if not known:
            while held[j] >= 0:
                j += 1
            _link(cx, s, j, np.int64(row[NOW + q]), 0)
            cx.count[MOVES] += 1
    row[STATE], row[DEBT] = EXACT if n else OUT, 0


# -- updates ---------------------------------------------------------------------------------------------------


@bare
def _stands_for(labels, way, up, x):
    """Whether entries that ask for ``x`` may be listed as wide at ``up``.

    A message below ``x`` finds them there whenever ``up`` reaches ``x``. One above ``x`` looks only at what is above or
    below itself, so all that is above ``x`` has to be above or below ``up``, which another parent of ``x`` need not be.
    It is so where ``x`` is in the tree of ``up`` and has no exceptions of its own.
    """
    if way == BELOW:
        return reaches(labels, up, x)
    low, number = number_of(labels, up), number_of(labels, x)
    inside = low <= number and number <= low + extent_of(labels, up)
    return inside and shelf_of(labels, up) == shelf_of(labels, x)


@bare
def _holds(labels, way, held, x):
    """Whether a side that holds a category is found for another."""
    return held >= 0 and (held >> 1 == x or ((held & 1) != 0 and _stands_for(labels, way, held >> 1, x)))


@bare
def _common(labels, way, node, x, largest):
    """The lowest category above ``node`` that stands for ``x``; -1 when it is far or large."""
    up = np.int64(labels.trunk[node])
    for _ in range(CLIMB):
        if up < 0 or extent_of(labels, up) >= largest:
            return np.int64(-1)
        if _stands_for(labels, way, up, x):
            return up
        up = np.int64(labels.trunk[up])
    return np.int64(-1)


@bare
def _follow(cx, s, lane, world):
    """X of a side has changed: keep k(i) in K(i). Returns whether lists had to change."""
    if cx.count[EAGER]:
        place(cx, s)
        return True
    row, most = cx.side[s], cx.spot.shape[1]
    if row[STATE] == EVERYWHERE:
        return False
    n = np.int64(row[MANY])
    if n < 0:
        _everywhere(cx, s)
        return True
    labels, way = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]]).labels, cx.lane[lane, WAY]
    held = cx.held[s]
    needed, missing = cx.scratch[0], cx.scratch[1]
    used, lost = 0, 0
    exact = True
    for j in range(most):
        needed[j] = 0
        used += held[j] >= 0
    for q in range(n):
        found = False
        for j in range(most):
            if _holds(labels, way, np.int64(held[j]), np.int64(row[NOW + q])):
                needed[j] = 1
                found = True
                exact = exact and held[j] & 1 == 0
                break
        if not found:
            missing[lost] = row[NOW + q]
            lost += 1
    if lost == 0:
        row[STATE] = OUT if used == 0 else EXACT if exact and used == n else ROUGH
        return False
    largest = max(2, cx.lane[lane, ROOM] // LARGEST)
    for q in range(lost):
        x = missing[q]
        spare = -1
        done = False
        for j in range(most):
            if held[j] < 0:
                spare = j if spare < 0 else spare
            elif needed[j] == 0 or _holds(labels, way, np.int64(held[j]), x):
                if needed[j] == 0:
                    # A category that is no longer needed: a near ancestor of both, or it moves.
                    up = _common(labels, way, np.int64(held[j]) >> 1, x, largest)
                    _unlink(cx, s, j)
                    _link(cx, s, j, up if up >= 0 else x, np.int64(up >= 0))
                    cx.count[ESCALATIONS] += up >= 0
                    cx.count[MOVES] += 1
                needed[j] = 1
                done = True
                break
        if not done:
            if spare < 0:
                _everywhere(cx, s)
                return True
            _link(cx, s, spare, x, 0)
            cx.count[MOVES] += 1
            needed[spare] = 1
    total = 0
    exact = True
    for j in range(most):
        if held[j] >= 0:
            total += 1
            exact = exact and held[j] & 1 == 0
    row[STATE] = EXACT if exact and total == n else ROUGH
    return True


@inlined
def _hearer(cx, c, a):
    """The first side that hears of attribute ``a`` of context ``c``, -1 for none."""
    if a < 0 or a >= cx.slot.shape[0] or cx.slot[a] < 0 or c >= cx.head.shape[0]:
        return np.int64(-1)
    return np.int64(cx.head[c, cx.slot[a]])


@bare
def hear(cx, c, a, world):
    """Context attribute ``a`` of context ``c`` has a new value."""
    _told(cx, _hearer(cx, c, a), world.contexts.value[c, a], world)


@bare
def _told(cx, s, v, world):
    """``v`` is the new value of X of side ``s`` and of those that hear of it behind it."""
    while s >= 0:
        read(cx, s, v, world)
        lane = np.int64(cx.side[s, LANE])
        if cx.lane[lane, AWAKE]:
            cx.work[lane, BALANCE] += MOVE if _follow(cx, s, lane, world) else HEARD
        else:
            cx.missed[lane] += 1
        s = np.int64(cx.side[s, NEXT_ON])


@bare
def hear_all(cx, first, last, shard, shards, updates, world):
    """Updates first..last of a log, which are stored by now.

    They jump about in memory: what a tile of them needs is asked for before the first is followed. Of several to one
    value only the last is followed, which no message can tell.
    """
    u_context, u_attribute, u_value, _ = updates
    side, where, value, heard = cx.side, cx.where, world.contexts.value, cx.heard
    slots, width, most = cx.head.shape[1], side.shape[1], cx.spot.shape[1]
    cx.count[UPDATES] += last - first
    for start in range(first, last, TILE):
        stop = min(last, start + TILE)
        for u in range(start, min(last, stop + TILE)):
            if u >= stop or start == first:
                prefetch(cx.head, u_context[u] * slots)
                prefetch(value, u_context[u] * value.shape[1] + np.int64(max(0, u_attribute[u])))
        for u in range(start, stop):
            c, a = u_context[u], np.int64(u_attribute[u])
            heard[u - start] = s = _hearer(cx, c, a)
            if s >= 0:
                prefetch(side, s * width)
                prefetch(where, s)
        for u in range(start, stop):
            s = np.int64(heard[u - start])
            if s >= 0 and cx.lane[side[s, LANE], AWAKE]:
                prefetch(cx.held, s * most)
                prefetch(cx.spot, s * most)
        for u in range(start, stop):
            c, a, v = u_context[u], np.int64(u_attribute[u]), u_value[u]
            if heard[u - start] < 0 or (shards > 1 and c % shards != shard):
                continue
            if v == value[c, a] or math.isnan(v):  # else a later update has the last word
                _told(cx, np.int64(heard[u - start]), value[c, a], world)


# -- entries ---------------------------------------------------------------------------------------------------


@bare
def survey(ids, world, asked, sides, keys, sources):
    """What clauses ask for: the number of sides of each, their lane keys as bits, and the largest set among them.

    ``sources`` uint8 [context attributes] gets a 1 for each that a side comes from.
    """
    largest = np.int64(0)
    meta = world.clauses.meta
    for at in range(ids.shape[0]):
        k = np.int64(ids[at])
        n, _ = anchors(k, world, asked)
        sides[at], keys[at] = n, 0
        for i in range(n):
            keys[at] |= np.uint64(1) << np.uint64(asked[i, 0])
            if asked[i, 1] >= 0:
                sources[asked[i, 1]] = 1
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
    out = cx.asked
    meta = world.clauses.meta
    sides, most = sides_of(cx), cx.spot.shape[1]
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
            cx.count[FREE] = cx.entry[e, FOLLOWING]
        else:
            e = cx.count[TOP]
            cx.count[TOP] += 1
        cx.entry[e, CLAUSE], cx.entry[e, GROUP], cx.entry[e, CERTAIN] = k, group, certain
        cx.seen[e] = 0
        cx.group[group, 0] += 1
        meta[k, PLACE] = e
        listens = False
        for i in range(n):
            which = key_lane[group, out[i, 0]]
            lane = cx.group[group, 2 + which]
            s = e * sides + which
            row = cx.side[s]
            row[LANE], row[SOURCE], row[OPERAND], row[MODE] = lane, out[i, 1], out[i, 2], out[i, 3]
            row[STATE], row[DEBT], row[NEXT_ON] = OUT, 0, -1
            for j in range(most):
                cx.held[s, j], cx.spot[s, j] = -1, -1
            if out[i, 1] >= 0:
                listens = True
                c, j = meta[k, CONTEXT], cx.slot[out[i, 1]]
                row[NEXT_ON] = cx.head[c, j]
                cx.head[c, j] = s
            read(cx, s, value_of(cx, e, s, world), world)
            if cx.lane[lane, AWAKE]:
                place(cx, s)
            else:
                row[STATE] = EVERYWHERE
        cx.count[LISTENERS] += listens
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
        s = e * sides_of(cx) + i
        if cx.lane[cx.side[s, LANE], AWAKE]:
            _clear(cx, s)
        a = cx.side[s, SOURCE]
        if a >= 0:
            listens = True
            c, slot = meta[k, CONTEXT], cx.slot[a]
            if cx.head[c, slot] == s:
                cx.head[c, slot] = cx.side[s, NEXT_ON]
            else:
                j = np.int64(cx.head[c, slot])
                while cx.side[j, NEXT_ON] != s:
                    j = np.int64(cx.side[j, NEXT_ON])
                cx.side[j, NEXT_ON] = cx.side[s, NEXT_ON]
    cx.count[LISTENERS] -= listens
    cx.group[g, 0] -= 1
    cx.entry[e, CLAUSE] = -1
    cx.entry[e, FOLLOWING] = cx.count[FREE]
    cx.count[FREE] = e
    cx.count[N_ENTRIES] -= 1
    meta[k, PLACE] = -1


@bare
def deescalate(cx):
    """Make every side of every lane that is awake exact."""
    for e in range(cx.count[TOP]):
        if cx.entry[e, CLAUSE] >= 0:
            for i in range(cx.group[cx.entry[e, GROUP], 1]):
                s = e * sides_of(cx) + i
                if cx.lane[cx.side[s, LANE], AWAKE] and cx.side[s, STATE] > EXACT:
                    place(cx, s)


@bare
def check(cx, ids, world):
    """Verify every invariant; (code, clause, side) of the first that is broken, 0 for none."""
    if cx.count[N_ENTRIES] != ids.shape[0]:
        return 1, -1, -1
    total = np.int64(0)
    most, before = cx.spot.shape[1], cx.scratch[0]
    for at in range(ids.shape[0]):
        k = np.int64(ids[at])
        e = np.int64(world.clauses.meta[k, PLACE])
        if e < 0 or e >= cx.count[TOP] or cx.entry[e, CLAUSE] != k:
            return 3, k, -1
        g = cx.entry[e, GROUP]
        for i in range(cx.group[g, 1]):
            s = e * sides_of(cx) + i
            row = cx.side[s]
            lane, state, n = row[LANE], row[STATE], np.int64(row[MANY])
            if cx.group[g, 2 + i] != lane:
                return 3, k, i
            for q in range(most):
                before[q] = row[NOW + q]
            bits = cx.where[s]
            if read(cx, s, value_of(cx, e, s, world), world) != n or cx.where[s] != bits:
                return 6, k, i
            for q in range(n):
                if row[NOW + q] != before[q]:
                    return 6, k, i
            if cx.lane[lane, AWAKE] == 0:
                if state != EVERYWHERE:
                    return 6, k, i
                continue
            labels, way = taxonomy_at(world.graphs[cx.lane[lane, GRAPH]]).labels, cx.lane[lane, WAY]
            used = 0
            for j in range(most):
                held, spot = np.int64(cx.held[s, j]), np.int64(cx.spot[s, j])
                if (held < 0) != (spot < 0):
                    return 18, k, i
                if held < 0:
                    continue
                used += 1
                if cx.chunk[spot // (PER + 1), spot % (PER + 1)] != s:
                    return 18, k, i
                where, wide = cx.lane[lane, FIRST] + (held >> 1), held & 1
                link = np.int64(cx.list[where, HEAD_EXACT + wide])
                for _ in range((cx.list[where, SIZE_EXACT + wide] - 1) // PER):
                    link = link if link == spot // (PER + 1) else np.int64(cx.chunk[link, 0])
                if link != spot // (PER + 1):
                    return 18, k, i
            total += used
            if state == EVERYWHERE:
                if used != 1 or cx.held[s, 0] != 2 * cx.lane[lane, ROOM]:
                    return 18, k, i
                continue
            if n < 0 or (state == OUT and (used or n)) or (state == EXACT and used != n):
                return 6, k, i
            for q in range(n):
                covered = False
                for j in range(most):
                    held = np.int64(cx.held[s, j])
                    covered = covered or (
                        _holds(labels, way, held, np.int64(row[NOW + q])) and (state == ROUGH or held & 1 == 0)
                    )
                if not covered:
                    return 6, k, i
    for at in range(cx.list.shape[0]):
        total -= cx.list[at, SIZE_EXACT] + cx.list[at, SIZE_WIDE]
    return (0, -1, -1) if total == 0 else (18, -1, -1)
