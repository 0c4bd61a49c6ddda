"""What every batch has: the matches of its messages, found in another order than they came in, and that order restored.

A *batch* is a stretch of a log, messages and updates. Its matches come as *runs*, profile codes of one message in a
row, and where they come one by one as *pairs*, message of the batch << 32 | code. A code has the sign bit (SEVERAL) set
for clauses of profiles that have others, too. :func:`settle` restores the order of the log. Codes are moved a run at a
time: with a pair for every match, restoring the order took a fifth of the time of a batch.

Invariant: when a batch ends, contexts, index and matches are what one event at a time would have left.
"""

from __future__ import annotations

import numpy as np

from .bundles import FLAGS, HAS_SIBLING, PROFILE
from .jit import bare, inlined, kernel

SEVERAL = np.int64(1) << np.int64(31)
CODE = (np.int64(1) << np.int64(31)) - np.int64(1)
# Entries of ``spent``, in cycles: sorting values for the index, the index and the merge, sorting messages for their
# index, asking it, the postfilter, contexts that were touched, restoring the order, all of it; then, not in cycles,
# profiles in union sets and minibatches.
SORT_PIX, PROBE, SORT_MIX, ASK, POST, TOUCHED, ORDER, TOTAL, UNION, GROUPS = range(10)
SPENT = 10


@inlined
def code_of(k, world):
    """The code that clause ``k`` is reported with."""
    code = np.int64(world.clauses.meta[k, PROFILE])
    return code | SEVERAL if world.clauses.meta[k, FLAGS] & HAS_SIBLING else code


@inlined
def pair(j, k, world):
    """Message ``j`` of the batch matches clause ``k``."""
    return np.int64(j) << np.int64(32) | code_of(k, world)


@kernel
def room_for(array, n, more):
    """The array, with room for ``more`` behind the first ``n``."""
    if n + more <= array.shape[0]:
        return array
    larger = np.empty(2 * (n + more), array.dtype)
    for i in range(n):
        larger[i] = array[i]
    return larger


@bare
def sort_by_key(keys, rows, n):
    """Sort the first ``n`` keys, and their rows with them, by shell sort: often they are sorted already, or nearly."""
    gap = 1
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            x, m = keys[i], rows[i]
            j = i
            while j >= gap and keys[j - gap] > x:
                keys[j], rows[j] = keys[j - gap], rows[j - gap]
                j -= gap
            keys[j], rows[j] = x, m
        gap //= 3


@bare
def run_of_pairs(pairs, n, rows, counts, codes, n_codes, runs, n_runs):
    """Turn ``n`` pairs into runs: message j of them is ``rows[j]`` of the batch; returns the new counts.

    There must be room for ``n`` codes, and for a run of every message. ``counts`` is room, [messages + 1].
    """
    size = rows.shape[0]
    for j in range(size + 1):
        counts[j] = 0
    for i in range(n):
        counts[(pairs[i] >> 32) + 1] += 1
    at = n_codes
    for j in range(size):
        more = counts[j + 1]
        counts[j] = at
        if more:
            runs[n_runs], runs[n_runs + 1] = rows[j], at
            n_runs += 2
            at += more
    for i in range(n):
        j = pairs[i] >> 32
        codes[counts[j]] = np.int32(pairs[i] & 0xFFFFFFFF)
        counts[j] += 1
    return at, n_runs


@kernel
def settle(codes, n_codes, runs, n_runs, pairs, n, span, serial, profiles, out, n_out, ends):
    """The matches of messages first..last (``span``), by message, behind the ``n_out`` in ``out``; returns both anew.

    runs     int64 [n_runs]: of each run its message and where it begins in ``codes``, which it follows
    """
    first, last = span
    if n_out + n_codes + n > out.shape[0]:
        # As many as this batch has, for all that come.
        share = (n_out + n_codes + n) * ends.shape[0] // last
        larger = np.empty(share + (share >> 4) + 256, np.int32)
        for i in range(n_out):
            larger[i] = out[i]
        out = larger
    size = last - first
    at = np.zeros(size + 1, np.int64)
    for r in range(0, n_runs, 2):
        at[runs[r] + 1] += (runs[r + 3] if r + 2 < n_runs else n_codes) - runs[r + 1]
    for i in range(n):
        at[(pairs[i] >> 32) + 1] += 1
    at[0] = n_out
    for j in range(size):
        at[j + 1] += at[j]
        ends[first + j] = at[j + 1]
    several = np.int32(0)
    for r in range(0, n_runs, 2):
        begin, end = runs[r + 1], runs[r + 3] if r + 2 < n_runs else n_codes
        to = at[runs[r]]
        for i in range(end - begin):
            out[to + i] = codes[begin + i]
            several |= codes[begin + i]
        at[runs[r]] = to + end - begin
    for i in range(n):
        j = pairs[i] >> 32
        out[at[j]] = np.int32(pairs[i] & 0xFFFFFFFF)
        several |= out[at[j]]
        at[j] += 1
    n_out += n_codes + n
    if several < 0:
        # A profile with several clauses matches once.
        i = left = n_out - n_codes - n
        for m in range(first, last):
            for q in range(i, ends[m]):
                code = np.int64(out[q])
                if code < 0:
                    code = code & CODE
                    if profiles.seen[code] == serial + m:
                        continue
                    profiles.seen[code] = serial + m
                out[left] = np.int32(code)
                left += 1
            i = ends[m]
            ends[m] = left
        n_out = left
    return out, n_out
