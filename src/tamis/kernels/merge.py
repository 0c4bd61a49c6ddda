"""Merge: the sets of entries that the groups of an index return, and what they have in common (paper 000, 3.2.3).

A set is a bitmap of two levels: a bit per entry, and above it a bit for every word that may hold one, so that empty
stretches of 4,096 entries are passed over; a long list leaves few words empty and sets these bits all at once. Two such
maps take turns. The most selective group comes first; what it returns is the first set, and every further group only
adds to the next set what is in the one before it. When a set is known to be empty the others are not asked.
"""

from __future__ import annotations

import numpy as np

from .jit import bare
from .postings import AT, ENTRY, FILL
from .simd import lowest_bit, prefetch

ONE64, SIX, LOW6 = np.uint64(1), np.uint64(6), np.uint64(63)
LINE = 8  # markers in a cache line
AHEAD = 256  # markers of a long list asked for ahead: beyond the page, where the processor does not look by itself


@bare
def begin(ix, g):
    """The set of group ``g`` before its structure is asked: what it returns for every message."""
    bits, brief, always = ix.bits, ix.brief, ix.everywhere
    into = g & 1
    if g == 0:
        if ix.always[0] == 0:
            return
        for w in range(always.shape[1]):
            if always[0, w] != 0:
                bits[0, w] = always[0, w]
                brief[0, w >> 6] |= ONE64 << np.uint64(w & 63)
        return
    if ix.always[g] == 0:
        return
    for i in range(brief.shape[1]):
        words = brief[1 - into, i]
        while words != 0:
            w = i * 64 + lowest_bit(words)
            words &= words - ONE64
            found = bits[1 - into, w] & always[g, w]
            if found != 0:
                bits[into, w] = found
                brief[into, i] |= ONE64 << np.uint64(w & 63)


@bare
def gather(ix, i, g):
    """Add the entries of list ``i`` of group ``g`` to its set."""
    bits, brief, marker = ix.bits, ix.brief, ix.postings.marker
    first = np.int64(ix.postings.list[i, AT])
    last = first + ix.postings.list[i, FILL]
    if last - first >= 8 * brief.shape[1]:  # an entry in eight words
        _gather_many(ix, first, last, g)
        return
    if g == 0:
        for m in range(first, last):
            k = np.uint64(marker[m, ENTRY])
            word = k >> SIX
            bits[0, word] |= ONE64 << (k & LOW6)
            brief[0, word >> SIX] |= ONE64 << (word & LOW6)
        return
    into = g & 1
    for m in range(first, last):
        k = np.uint64(marker[m, ENTRY])
        word = k >> SIX
        found = bits[1 - into, word] & ONE64 << (k & LOW6)
        bits[into, word] |= found
        brief[into, word >> SIX] |= np.uint64(found != 0) << (word & LOW6)


@bare
def _gather_many(ix, first, last, g):
    """Add the entries of markers first..last, a long list, to the set of group ``g``."""
    bits, brief, marker = ix.bits, ix.brief, ix.postings.marker
    into, words = g & 1, bits.shape[1]
    for j in range(brief.shape[1]):
        if g > 0:
            brief[into, j] = brief[1 - into, j]  # the set is a part of the one before it
        else:
            brief[into, j] = ~np.uint64(0) if 64 * (j + 1) <= words else (ONE64 << np.uint64(words & 63)) - ONE64
    for line in range(first, last, LINE):
        prefetch(marker, (line + AHEAD) * 2)
        for m in range(line, min(last, line + LINE)):
            k = np.uint64(marker[m, ENTRY])
            bit = ONE64 << (k & LOW6)
            bits[into, k >> SIX] |= bit if g == 0 else bits[1 - into, k >> SIX] & bit


@bare
def add_one(ix, k, g):
    """Add one entry to the set of group ``g``."""
    w, bit = k >> 6, ONE64 << np.uint64(k & 63)
    into = g & 1
    if g == 0 or ix.bits[1 - into, w] & bit:
        ix.bits[into, w] |= bit
        ix.brief[into, w >> 6] |= ONE64 << np.uint64(w & 63)


@bare
def is_empty(ix, which):
    """Whether a map is known to be empty."""
    for i in range(ix.brief.shape[1]):
        if ix.brief[which, i] != 0:
            return False
    return True


@bare
def clear(ix, which):
    """Empty a map in time for what is in it."""
    for i in range(ix.brief.shape[1]):
        words = ix.brief[which, i]
        while words != 0:
            ix.bits[which, i * 64 + lowest_bit(words)] = 0
            words &= words - ONE64
        ix.brief[which, i] = 0


@bare
def take_out(ix, which, found):
    """Write the entries of a map into ``found``, in order, and empty it; returns how many."""
    n = 0
    for i in range(ix.brief.shape[1]):
        words = ix.brief[which, i]
        while words != 0:
            w = i * 64 + lowest_bit(words)
            words &= words - ONE64
            left = ix.bits[which, w]
            ix.bits[which, w] = 0
            while left != 0:
                found[n] = w * 64 + lowest_bit(left)
                n += 1
                left &= left - ONE64
        ix.brief[which, i] = 0
    return n
