"""Lists of entries, and for every entry the places where it is listed: what the indexes of paper 000 are made of.

A range of a skip list, a bucket of a hash table and the buffer of a tree node each own a *list* of entries. An entry is
in several lists of an index at once and has to leave all of them at once, so each listing is a *marker*: it knows its
list, and the markers of one entry (of one group of slots) are chained. Lists are contiguous, so that a probe reads them
at the speed of memory; a list that is full moves to a place twice as large, and what it leaves is used again.

Invariants: the markers of a list are ``at[i] .. at[i] + fill[i]``; following ``after`` from ``first[k, g]`` visits each
marker of entry ``k`` in group ``g`` once; adding and dropping are O(1) amortised.
"""

from __future__ import annotations

import numpy as np

from .jit import bare

# Columns of Postings.marker: the entry; its list; the next and the previous marker of the same entry and group.
ENTRY, LIST, AFTER, BEFORE = range(4)
# Columns of Postings.list: first marker; room as a power of two, -1 for none; markers in use.
AT, ROOM, FILL = range(3)
CLASSES = 32
# Entries of Postings.stock: markers handed out so far; behind it, per class, the first free place of that size.
MARKERS_USED = 0


@bare
def _take(ps, room):
    """A place for 2**room markers; -1 when there is none."""
    at = ps.stock[1 + room]
    if at >= 0:
        ps.stock[1 + room] = ps.marker[at, ENTRY]
        return at
    at = ps.stock[MARKERS_USED]
    if at + (1 << room) > ps.marker.shape[0]:
        return np.int64(-1)
    ps.stock[MARKERS_USED] += 1 << room
    return at


@bare
def _give_back(ps, at, room):
    ps.marker[at, ENTRY] = ps.stock[1 + room]
    ps.stock[1 + room] = at


@bare
def _move(ps, old, new, g):
    """Carry a marker to another place; its neighbours in the chain of its entry follow."""
    marker = ps.marker
    k, after, before = marker[old, ENTRY], marker[old, AFTER], marker[old, BEFORE]
    for column in range(4):
        marker[new, column] = marker[old, column]
    if after >= 0:
        marker[after, BEFORE] = new
    if before >= 0:
        marker[before, AFTER] = new
    else:
        ps.first[k, g] = new


@bare
def add(ps, i, k, g):
    """Put entry ``k`` into list ``i`` of group ``g``; False when there is no room."""
    lists, marker = ps.list, ps.marker
    room = np.int64(lists[i, ROOM])
    if room < 0 or lists[i, FILL] == 1 << room:
        at = _take(ps, room + 1)
        if at < 0:
            return False
        if room >= 0:
            old = np.int64(lists[i, AT])
            for j in range(lists[i, FILL]):
                _move(ps, old + j, at + j, g)
            _give_back(ps, old, room)
        lists[i, AT], lists[i, ROOM] = at, room + 1
    m = np.int64(lists[i, AT] + lists[i, FILL])
    lists[i, FILL] += 1
    head = ps.first[k, g]
    marker[m, ENTRY], marker[m, LIST], marker[m, AFTER], marker[m, BEFORE] = k, i, head, -1
    if head >= 0:
        marker[head, BEFORE] = m
    ps.first[k, g] = m
    return True


@bare
def drop_one(ps, m, g):
    """Take one marker out: the last of its list takes its place."""
    lists, marker = ps.list, ps.marker
    i = marker[m, LIST]
    after, before = marker[m, AFTER], marker[m, BEFORE]
    if after >= 0:
        marker[after, BEFORE] = before
    if before >= 0:
        marker[before, AFTER] = after
    else:
        ps.first[marker[m, ENTRY], g] = after
    lists[i, FILL] -= 1
    last = np.int64(lists[i, AT] + lists[i, FILL])
    if last != m:
        _move(ps, last, m, g)
    if lists[i, FILL] == 0:
        empty(ps, i)


@bare
def drop(ps, k, g):
    """Take entry ``k`` out of all lists of group ``g``."""
    while ps.first[k, g] >= 0:
        drop_one(ps, np.int64(ps.first[k, g]), g)


@bare
def empty(ps, i):
    """Give back the place of a list without markers."""
    if ps.list[i, ROOM] >= 0:
        _give_back(ps, np.int64(ps.list[i, AT]), np.int64(ps.list[i, ROOM]))
    ps.list[i, AT], ps.list[i, ROOM], ps.list[i, FILL] = 0, -1, 0


@bare
def has(ps, i, k, g):
    """Whether entry ``k`` is in list ``i`` of group ``g``."""
    m = ps.first[k, g]
    while m >= 0:
        if ps.marker[m, LIST] == i:
            return True
        m = ps.marker[m, AFTER]
    return False


@bare
def check(ps, lists, groups):
    """Verify both invariants for the first ``lists`` lists; 0, or 1 + the number of the list that is wrong."""
    markers = 0
    for i in range(lists):
        for m in range(ps.list[i, AT], ps.list[i, AT] + ps.list[i, FILL]):
            markers += 1
            if ps.marker[m, LIST] != i:
                return 1 + i
    chained = 0
    for k in range(ps.first.shape[0]):
        for g in range(groups):
            m, before = ps.first[k, g], -1
            while m >= 0:
                i = ps.marker[m, LIST]
                inside = ps.list[i, AT] <= m and m < ps.list[i, AT] + ps.list[i, FILL]
                if ps.marker[m, ENTRY] != k or ps.marker[m, BEFORE] != before or not inside or chained > markers:
                    return 1 + i
                chained += 1
                m, before = ps.marker[m, AFTER], m
    return 0 if chained == markers else 1
