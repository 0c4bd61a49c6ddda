"""Lists of entries, and for every entry the places where it is listed: what the indexes of paper 000 are made of.

A range of a skip list, a bucket of a hash table and the buffer of a tree node each own a *list* of entries. An entry is
in several lists of an index at once and has to leave all of them at once, so each listing is a *marker*, and an entry
keeps where its markers are. Lists are contiguous, so that a probe reads them at the speed of memory; a list that is
full moves to a place twice as large, and what it leaves is used again. To leave a list is to let the last marker of it
take the place; all that this touches is asked for before, so that the cache misses of an entry's markers overlap.

Invariants: the markers of list ``i`` are ``list[i, AT] .. list[i, AT] + list[i, FILL]``; marker ``marks[k, g, 2j + 1]``
of list ``marks[k, g, 2j]`` is (k, j). Adding and dropping are O(1) amortised per list.
"""

from __future__ import annotations

import numpy as np

from .jit import bare
from .simd import prefetch

# Columns of Postings.marker: the entry; which of the entry's markers it is.
ENTRY, WHICH = range(2)
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
    """Carry a marker to another place."""
    k, j = np.int64(ps.marker[old, ENTRY]), np.int64(ps.marker[old, WHICH])
    ps.marker[new, ENTRY], ps.marker[new, WHICH] = k, j
    ps.marks[k, g, 2 * j + 1] = new


@bare
def may_add(ps, k, g):
    """Whether entry ``k`` may have one more marker in group ``g``."""
    return 2 * np.int64(ps.used[k, g]) < ps.marks.shape[2]


@bare
def _append(ps, i, k, g, j):
    """Marker ``j`` of entry ``k`` at the end of list ``i`` of group ``g``; False when there is no room."""
    lists = ps.list
    room = np.int64(lists[i, ROOM])
    if room < 0 or lists[i, FILL] == 1 << room:
        at = _take(ps, room + 1)
        if at < 0:
            return False
        if room >= 0:
            old = np.int64(lists[i, AT])
            for m in range(lists[i, FILL]):
                _move(ps, old + m, at + m, g)
            _give_back(ps, old, room)
        lists[i, AT], lists[i, ROOM] = at, room + 1
    m = np.int64(lists[i, AT] + lists[i, FILL])
    lists[i, FILL] += 1
    ps.marker[m, ENTRY], ps.marker[m, WHICH] = k, j
    ps.marks[k, g, 2 * j], ps.marks[k, g, 2 * j + 1] = i, m
    return True


@bare
def add(ps, i, k, g):
    """Put entry ``k`` into list ``i`` of group ``g``; False when there is no room."""
    j = np.int64(ps.used[k, g])
    if 2 * j == ps.marks.shape[2] or not _append(ps, i, k, g, j):
        return False
    ps.used[k, g] = j + 1
    return True


@bare
def _close_gap(ps, i, m, g):
    """Marker ``m`` leaves list ``i``: the last one takes its place."""
    lists = ps.list
    lists[i, FILL] -= 1
    last = np.int64(lists[i, AT] + lists[i, FILL])
    if last != m:
        _move(ps, last, m, g)
    if lists[i, FILL] == 0:
        _give_back(ps, np.int64(lists[i, AT]), np.int64(lists[i, ROOM]))
        lists[i, AT], lists[i, ROOM] = 0, -1


@bare
def drop(ps, k, g):
    """Take entry ``k`` out of all lists of group ``g``."""
    lists, marker, marks = ps.list, ps.marker, ps.marks
    n = np.int64(ps.used[k, g])
    for j in range(n):
        prefetch(lists, np.int64(marks[k, g, 2 * j]) * 3)
    for j in range(n):
        i = marks[k, g, 2 * j]
        prefetch(marker, np.int64(lists[i, AT] + lists[i, FILL] - 1) * 2)
        prefetch(marker, np.int64(marks[k, g, 2 * j + 1]) * 2)
    for j in range(n):
        i = marks[k, g, 2 * j]
        last = lists[i, AT] + lists[i, FILL] - 1
        owner = np.int64(marker[last, ENTRY]) * marks.shape[1] + g
        prefetch(marks, owner * marks.shape[2] + 2 * np.int64(marker[last, WHICH]) + 1)
    for j in range(n):
        _close_gap(ps, np.int64(marks[k, g, 2 * j]), np.int64(marks[k, g, 2 * j + 1]), g)
    ps.used[k, g] = 0


@bare
def drop_one(ps, k, g, j):
    """Take entry ``k`` out of the list of its marker ``j``; its last marker becomes marker ``j``."""
    marks = ps.marks
    i, m = np.int64(marks[k, g, 2 * j]), np.int64(marks[k, g, 2 * j + 1])
    _close_gap(ps, i, m, g)
    last = np.int64(ps.used[k, g]) - 1
    ps.used[k, g] = last
    if j != last:
        marks[k, g, 2 * j], marks[k, g, 2 * j + 1] = marks[k, g, 2 * last], marks[k, g, 2 * last + 1]
        ps.marker[marks[k, g, 2 * j + 1], WHICH] = j


@bare
def relist(ps, i, k, g, j):
    """Marker ``j`` of entry ``k`` moves to list ``i``; False, and it stays, when there is no room."""
    old, m = np.int64(ps.marks[k, g, 2 * j]), np.int64(ps.marks[k, g, 2 * j + 1])
    if old == i:
        return True
    if not _append(ps, i, k, g, j):
        return False
    _close_gap(ps, old, m, g)
    return True


@bare
def has(ps, i, k, g):
    """Whether entry ``k`` is in list ``i`` of group ``g``."""
    for j in range(ps.used[k, g]):
        if ps.marks[k, g, 2 * j] == i:
            return True
    return False


@bare
def check(ps):
    """Verify both invariants; 0, or 1 + the number of a list that is wrong."""
    markers = 0
    for i in range(ps.list.shape[0]):
        markers += ps.list[i, FILL]
    for k in range(ps.used.shape[0]):
        for g in range(ps.used.shape[1]):
            for j in range(ps.used[k, g]):
                i, m = ps.marks[k, g, 2 * j], ps.marks[k, g, 2 * j + 1]
                inside = ps.list[i, AT] <= m and m < ps.list[i, AT] + ps.list[i, FILL]
                if not inside or ps.marker[m, ENTRY] != k or ps.marker[m, WHICH] != j:
                    return 1 + i
                markers -= 1
    return 0 if markers == 0 else 1
