"""Hash tables of cells under AGILE (paper 000, section 5.4.2).

The domain of a slot is cut into cells of one width; a bucket lists the entries whose interval touches its cell. Where
the clauses compare for equality the width is 0 and the values themselves are hashed: a bucket is then exact. An
interval of more than ``MOST`` cells is not hashed. There are two levels: 0 is hashed, at 1 an entry is on the 'escalate
list', returned for every message.

Invariants: the table is never more than half full; an entry is in the buckets of all cells that its interval touches.
"""

from __future__ import annotations

import numpy as np

from . import postings
from .buffers import levels
from .jit import bare, inlined, kernel
from .merge import gather

MOST = 12
BUCKETS = 0


@inlined
def _cell(ix, s, x):
    """The cell of a value: a number, or the bits of the value."""
    width = ix.cell[s]
    if width == 0.0:
        return np.float64(x + 0.0).view(np.int64)  # one zero
    return np.int64(max(-4e18, min(4e18, np.floor(x / width))))


@bare
def _find(ix, g, cell, make):
    """The bucket of a cell, -1 when there is none (or no room to make one)."""
    mask = ix.slots.shape[0] - 1
    h = np.uint64(cell) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(g)
    at = np.int64((h ^ (h >> np.uint64(29))) & np.uint64(mask))
    while ix.slots[at] >= 0:
        b = np.int64(ix.slots[at])
        if ix.bucket[b, 0] == g and ix.bucket[b, 1] == cell:
            return b
        at = (at + 1) & mask
    b = ix.spare[BUCKETS]
    if not make or b == ix.bucket.shape[0]:
        return np.int64(-1)
    ix.spare[BUCKETS] += 1
    ix.slots[at] = b
    ix.bucket[b, 0], ix.bucket[b, 1] = g, cell
    return b


@bare
def place(ix, g, k):
    """Place ``ix.want`` at level ``ix.aim``; 1, or 2 when that is the whole domain, or 0 when there is no room."""
    s = np.int64(ix.group[g])
    low, high = ix.want[s, 0], ix.want[s, 1]
    level, _ = levels(ix, g, k)
    ix.aim[s, 0] = ix.aim[s, 1] = level
    if level > 0:
        return 2
    point = ix.cell[s] == 0.0
    if point and low != high:
        return 2
    first, last = _cell(ix, s, low), _cell(ix, s, high)
    if low == -np.inf or high == np.inf or last - first >= MOST:
        return 2
    for cell in range(first, last + 1):
        b = _find(ix, g, cell, True)
        if b < 0 or not postings.add(ix.postings, b, k, g):
            return 0
    width = ix.cell[s]
    ix.held[k, s, 0], ix.held[k, s, 1] = low, high
    if not point:
        # Whole cells; never more than asked for by rounding, never less than the interval.
        ix.held[k, s, 0] = min(low, np.nextafter(first * width, np.inf))
        ix.held[k, s, 1] = max(high, np.nextafter((last + 1) * width, -np.inf))
    ix.level[k, s, 0], ix.level[k, s, 1] = 0, 0
    return 1


@bare
def unplace(ix, g, k):
    """Take entry ``k`` out."""
    postings.drop(ix.postings, k, g)


@bare
def collect(ix, g, m, world):
    """All entries of group ``g`` whose cells hold the message's value."""
    s = np.int64(ix.group[g])
    x = world.messages.value[m, ix.slot_attribute[s]]
    if not (x == x):
        return
    b = _find(ix, g, _cell(ix, s, x), False)
    if b >= 0:
        gather(ix, b, g)


@bare
def top(ix, g):
    """The level at which an entry is returned always."""
    return np.int64(1)


@kernel
def check_structure(ix, ids, world):
    """Verify that an entry is in the buckets of its interval; (code, clause, slot), 0 when all is well."""
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        for g in range(ix.group.shape[0] - 1):
            if ix.state[k, g] != 1:
                continue
            s = np.int64(ix.group[g])
            if ix.postings.used[k, g] == 0:
                return 18, k, g
            for end in range(2):
                b = _find(ix, g, _cell(ix, s, ix.held[k, s, end]), False)
                if ix.cell[s] == 0.0 and (b < 0 or not postings.has(ix.postings, b, k, g)):
                    return 18, k, g
    return 0, -1, -1
