"""Lists of values: those of a log as they come, and those that contexts hold once the others are forgotten.

List ``k`` is ``item[start[k]:start[k + 1]]``. A context's value is the code of a list, or, where texts and lists mix,
-1 - code (a text is not negative). Profiles hold lists, too: these are *pinned*, their codes never change.
"""

from __future__ import annotations

import math

import numpy as np

from .jit import bare


@bare
def take(table, indices, out, at):
    """out[at + i] = table[indices[i]]."""
    for i in range(indices.shape[0]):
        out[at + i] = table[indices[i]]


@bare
def _code(v, either):
    """The list of a context's value; -1 when it has none."""
    if math.isnan(v) or (either and v >= 0.0):
        return np.int64(-1)
    return np.int64(-1.0 - v) if either else np.int64(v)


@bare
def compact(value, columns, either, pinned, now, new, renamed):
    """Copy the lists that are pinned, or that ``columns`` of ``value`` hold, and rename them there. O(cells + lists).

    ``pinned`` uint8 reaches up to the last that is. ``now`` and ``new`` are (start, item, residual), ``renamed`` int32
    [lists] is all 0. What is not pinned fills the codes between what is, in its order, and so never gets a higher code.
    Returns the number of lists.
    """
    start, item, residual = now
    new_start, new_item, new_residual = new
    last = pinned.shape[0]
    held = 0
    for c in range(value.shape[0]):
        for j in range(columns.shape[0]):
            k = _code(value[c, columns[j]], either[j])
            if k >= 0 and (k >= last or not pinned[k]):
                held += renamed[k] == 0
                renamed[k] = 1
    source, k, top = 0, 0, np.int64(0)
    new_start[0] = 0
    while k < last or held > 0:
        old = -1
        if k < last and pinned[k]:
            old = k
        elif held > 0:
            while renamed[source] == 0:
                source += 1
            old = source
            renamed[source] = k
            source += 1
            held -= 1
        if old >= 0:
            for i in range(start[old], start[old + 1]):
                new_item[top], new_residual[top] = item[i], residual[i]
                top += 1
        k += 1
        new_start[k] = top
    for c in range(value.shape[0]):
        for j in range(columns.shape[0]):
            old = _code(value[c, columns[j]], either[j])
            if old >= 0 and (old >= last or not pinned[old]):
                value[c, columns[j]] = -1.0 - renamed[old] if either[j] else np.float64(renamed[old])
    return k
