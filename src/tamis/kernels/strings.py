"""A table of byte strings: string to code and back, in flat arrays.

Codes are dense and never change. The hash table uses linear probing and is at most half full; ``forget`` takes back
the newest strings, which is safe because with linear probing the last in can be the first out.
"""

from __future__ import annotations

import numpy as np

from .jit import bare


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
def find(heap, start, slots, data, offsets, codes):
    """codes[i] = the code of data[offsets[i]:offsets[i + 1]], or -1."""
    mask = np.uint64(slots.shape[0] - 1)
    for i in range(offsets.shape[0] - 1):
        begin, end = offsets[i], offsets[i + 1]
        at = _hash(data, begin, end) & mask
        code = -1
        while slots[at] >= 0:
            c = slots[at]
            if _same(heap, start[c], start[c + 1], data, begin, end):
                code = c
                break
            at = (at + np.uint64(1)) & mask
        codes[i] = code


@bare
def intern(heap, start, slots, count, data, offsets, codes):
    """Like ``find``, but unknown strings get the next code. Room must be there. Returns the new count."""
    mask = np.uint64(slots.shape[0] - 1)
    for i in range(offsets.shape[0] - 1):
        begin, end = offsets[i], offsets[i + 1]
        at = _hash(data, begin, end) & mask
        code = -1
        while slots[at] >= 0:
            c = slots[at]
            if _same(heap, start[c], start[c + 1], data, begin, end):
                code = c
                break
            at = (at + np.uint64(1)) & mask
        if code < 0:
            code = count
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
