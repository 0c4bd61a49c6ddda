"""A table of byte strings: string to code and back, in flat arrays.

Codes are dense and never change. The hash table uses linear probing and is at most half full; ``forget`` takes back
the newest strings, which is safe because with linear probing the last in can be the first out.
"""

from __future__ import annotations

import numpy as np

from .jit import bare
from .simd import prefetch

AHEAD = 6  # strings for which memory is asked for ahead, in three steps


@bare
def _hash(data, first, last):
    h = np.uint64(0xCBF29CE484222325)
    for i in range(first, last):
        h = (h ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return h ^ (h >> np.uint64(29))


@bare
def _same(heap, first, last, data, begin, end):
    if last - first != end - begin:
        return False
    for i in range(last - first):
        if heap[first + i] != data[begin + i]:
            return False
    return True


@bare
def _look_ahead(heap, start, slots, data, offsets, codes, i):
    """Ask for what the strings behind ``i`` will need, a step each; ``codes`` has the first slots of those ahead."""
    mask, last = np.uint64(slots.shape[0] - 1), offsets.shape[0] - 2
    for j in range(i if i == 0 else i + 3 * AHEAD, min(last, i + 3 * AHEAD) + 1):
        codes[j] = _hash(data, offsets[j], offsets[j + 1]) & mask
        prefetch(slots, np.int64(codes[j]))
    if i + 2 * AHEAD <= last:
        prefetch(start, np.int64(max(0, slots[codes[i + 2 * AHEAD]])))
    if i + AHEAD <= last:
        prefetch(heap, start[max(0, slots[codes[i + AHEAD]])])


@bare
def _find(heap, start, slots, data, begin, end, at):
    """The code of a string whose first slot is ``at``, or -1, and the slot where it is or would be."""
    while slots[at] >= 0:
        c = np.int64(slots[at])
        if _same(heap, start[c], start[c + 1], data, begin, end):
            return c, at
        at = (at + 1) & (slots.shape[0] - 1)
    return np.int64(-1), at


@bare
def find(heap, start, slots, data, offsets, codes):
    """codes[i] = the code of data[offsets[i]:offsets[i + 1]], or -1."""
    for i in range(offsets.shape[0] - 1):
        _look_ahead(heap, start, slots, data, offsets, codes, i)
        codes[i] = _find(heap, start, slots, data, offsets[i], offsets[i + 1], np.int64(codes[i]))[0]


@bare
def intern(heap, start, slots, count, data, offsets, codes):
    """Like ``find``, but unknown strings get the next code. Room must be there. Returns the new count."""
    for i in range(offsets.shape[0] - 1):
        _look_ahead(heap, start, slots, data, offsets, codes, i)
        begin, end = offsets[i], offsets[i + 1]
        code, at = _find(heap, start, slots, data, begin, end, np.int64(codes[i]))
        if code < 0:
            code = np.int64(count)
            slots[at] = code
            top = start[count]
            for j in range(end - begin):
                heap[top + j] = data[begin + j]
            start[count + 1] = top + end - begin
            count += 1
        codes[i] = code
    return count


@bare
def rehash(heap, start, count, slots):
    """Fill an empty hash table with strings 0..count."""
    mask = np.uint64(slots.shape[0] - 1)
    for c in range(count):
        at = _hash(heap, start[c], start[c + 1]) & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = c


@bare
def forget(heap, start, slots, count, keep):
    """Take back strings keep..count, newest first."""
    mask = np.uint64(slots.shape[0] - 1)
    for c in range(count - 1, keep - 1, -1):
        at = _hash(heap, start[c], start[c + 1]) & mask
        while slots[at] != c:
            at = (at + np.uint64(1)) & mask
        slots[at] = -1


@bare
def gather(heap, starts, offsets, out):
    """out[offsets[i]:offsets[i + 1]] = the bytes from starts[i] on."""
    for i in range(starts.shape[0]):
        begin = starts[i]
        for j in range(offsets[i], offsets[i + 1]):
            out[j] = heap[begin + j - offsets[i]]
