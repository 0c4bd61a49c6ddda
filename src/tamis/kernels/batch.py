"""What every batch has: its pairs of matches, its updates by context, and the profiles that moved in it.

A *batch* is a stretch of a log, messages and updates. Messages are matched in another order than they came in, so a
match is a *pair*: message of the batch << 32 | profile, with SEVERAL set for clauses of profiles that have others, too.
:func:`settle` restores the order of the log.

Updates stay exact. Of contexts that nobody updates in the batch all messages see the same values, in whatever order
they come. The others are *touched*: an index is asked as if they were not there, and :func:`replay_touched` matches
their clauses the other way round, version by version, against the batch's messages, sorted by one attribute. Only then
is the index told, once per value and batch, of the last version.

Invariant: when a batch ends, contexts, index and matches are what one event at a time would have left.
"""

from __future__ import annotations

import numpy as np

from .bundles import (
    ATTRIBUTE,
    COMPUTED,
    CONST,
    CONSTANTS,
    CTX,
    FIRST_PREDICATE,
    FLAGS,
    HAS_SIBLING,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    LOW,
    LOW_CONST,
    LOW_CTX,
    META_COLUMNS,
    NEXT,
    NONE,
    PINNED,
    PLACE,
    PREDICATES,
    PROFILE,
    TEMPLATE,
    WATCHED,
)
from .cells import OUT
from .jit import bare, inlined, kernel
from .policy import SAMPLE
from .postfilter import constant, holds
from .process import announce, followed, moved, observe
from .root import draw
from .simd import lowest_bit, prefetch

SEVERAL = np.int64(1) << np.int64(31)
CODE = (np.int64(1) << np.int64(31)) - np.int64(1)
ONE64, LOW32 = np.uint64(1), np.uint64(0xFFFFFFFF)
# Entries of ``spent``, in cycles: sorting values for the index, the index and the merge, sorting messages for their
# index, asking it, the postfilter, contexts that were touched, restoring the order, all of it; then, not in cycles,
# profiles in union sets and minibatches.
SORT_PIX, PROBE, SORT_MIX, ASK, POST, TOUCHED, ORDER, TOTAL, UNION, GROUPS = range(10)
SPENT = 10
TILE = 12  # bits of a context's number: 4,096 contexts are a tile, which the second pass of a sort stays in


@inlined
def pair(j, k, world):
    """Message ``j`` of the batch matches clause ``k``."""
    code = np.int64(world.clauses.meta[k, PROFILE])
    if world.clauses.meta[k, FLAGS] & HAS_SIBLING:
        code |= SEVERAL
    return np.int64(j) << np.int64(32) | code


@kernel
def room_for(pairs, n, more):
    """The pairs, in an array with room for ``more`` behind the first ``n``."""
    if n + more <= pairs.shape[0]:
        return pairs
    larger = np.empty(2 * (n + more), np.int64)
    for i in range(n):
        larger[i] = pairs[i]
    return larger


@kernel
def settle(pairs, n, first, last, serial, profiles, out, n_out, ends):
    """The pairs of messages first..last, by message, behind the ``n_out`` matches in ``out``; returns both anew."""
    if n_out + n > out.shape[0]:
        larger = np.empty(max(2 * out.shape[0], n_out + n + (n >> 1)), np.int32)
        for i in range(n_out):
            larger[i] = out[i]
        out = larger
    size = last - first
    at = np.zeros(size + 1, np.int64)
    several = np.int64(0)
    for i in range(n):
        at[(pairs[i] >> 32) + 1] += 1
        several |= pairs[i] & SEVERAL
    at[0] = n_out
    for j in range(size):
        at[j + 1] += at[j]
        ends[first + j] = at[j + 1]
    for i in range(n):
        j = pairs[i] >> 32
        out[at[j]] = np.int32(pairs[i] & 0xFFFFFFFF)
        at[j] += 1
    n_out += n
    if several:
        # A profile with several clauses matches once.
        i = left = n_out - n
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


@kernel
def moments(runs, n_updates):
    """For every update the message that is the first to see it, int32 [updates]."""
    when = np.empty(n_updates, np.int32)
    m = np.int64(0)
    for i in range(runs.shape[0]):
        if runs[i, 0] == 0:
            m = runs[i, 2]
        else:
            for u in range(runs[i, 1], runs[i, 2]):
                when[u] = m
    return when


# -- contexts that are touched ---------------------------------------------------------------------------------


@kernel
def by_context(first, last, since, shard, shards, updates, when, contexts, room):
    """Updates first..last sorted by context, in their order; returns where each context begins, int64 [contexts + 1].

    In two passes, so that neither jumps about in more memory than the cache holds. ``room`` is two sorted lists: of
    each update what (message << 44 | attribute << 32 | context), value and residual; the second is the result.
    """
    u_context, u_attribute, u_value, u_residual = updates
    half, half_value, half_residual, what, value, residual = room
    tiles = (contexts >> TILE) + 1
    at = np.zeros(tiles + 1, np.int64)
    for u in range(first, last):
        if u_attribute[u] >= 0 and (shards == 1 or u_context[u] % shards == shard):
            at[(u_context[u] >> TILE) + 1] += 1
    for t in range(tiles):
        at[t + 1] += at[t]
    begin = np.zeros(contexts + 2, np.int64)
    for u in range(first, last):
        if u_attribute[u] >= 0 and (shards == 1 or u_context[u] % shards == shard):
            c = np.uint64(u_context[u])
            t = c >> np.uint64(TILE)
            i = at[t]
            at[t] += 1
            half[i] = np.uint64(when[u] - since) << np.uint64(44) | np.uint64(u_attribute[u]) << np.uint64(32) | c
            half_value[i] = u_value[u]
            if residual.shape[0]:
                half_residual[i] = u_residual[u] if u_residual.shape[0] else 0
    total = at[tiles - 1]
    for i in range(total):
        begin[(half[i] & LOW32) + np.uint64(2)] += 1
    for c in range(contexts):
        begin[c + 2] += begin[c + 1]
    for i in range(total):
        c = (half[i] & LOW32) + np.uint64(1)
        j = begin[c]
        begin[c] += 1
        what[j], value[j] = half[i], half_value[i]
        if residual.shape[0]:
            residual[j] = half_residual[i]
    return begin


@inlined
def _attribute(what):
    return np.int64(what >> np.uint64(32) & np.uint64(0xFFF))


@bare
def _sort_messages(world, a, b, first, last, skip, keys, second, rows):
    """The messages first..last that have attribute ``a``, sorted by it, and their values of ``b``; returns how many."""
    n = 0
    for m in range(first, last):
        x = world.messages.value[m, a]
        if not skip[m] and x == x:
            keys[n], rows[n] = x, m - first
            n += 1
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
    for i in range(n):
        second[i] = world.messages.value[first + rows[i], b]
    return n


@inlined
def first_from(keys, n, x):
    """How many of the first ``n`` sorted keys are below ``x``."""
    low, high = 0, n
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


@bare
def _hull(k, a, c, u, end, what, value, world):
    """The hull of the intervals of clause ``k`` on attribute ``a`` over all versions of its context, updates u..end.

    Without bounds where it is not plain to see, and for messages without the attribute.
    """
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    r, own = np.int64(meta[k, TEMPLATE]), np.int64(meta[k, CONSTANTS])
    p = np.int64(-1)
    for q in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if pred[q, ATTRIBUTE] == a and p < 0 and not (pred[q, LOW] == NONE and pred[q, HIGH] == NONE):
            p = np.int64(q)
    if p < 0 or pred[p, LOW] == COMPUTED or pred[p, HIGH] == COMPUTED:
        return -np.inf, np.inf
    least, most = -np.inf, np.inf
    at = np.int64(-1)
    low = high = np.nan
    for side in range(2):
        kind = pred[p, LOW] if side == 0 else pred[p, HIGH]
        if kind == NONE:
            continue
        off = 0.0 if kind == CTX else constant(pred[p, LOW_CONST] if side == 0 else pred[p, HIGH_CONST], own, world)
        if kind == CONST:
            least, most = (off, most) if side == 0 else (least, off)
            continue
        moving = np.int64(pred[p, LOW_CTX] if side == 0 else pred[p, HIGH_CTX])
        if moving != at:
            at = moving
            low = high = world.contexts.value[c, at]
            if not low == low:
                low, high = np.inf, -np.inf
            for i in range(u, end):
                if _attribute(what[i]) == at:
                    v = value[i]
                    low, high = v if v < low else low, v if v > high else high
        # A version without a value matches nothing, and adding is monotone.
        if side == 0:
            least = low + off
        else:
            most = high + off
    return least, most


@bare
def _match_touched(c, first, last, u, end, skip, keys_of, index, sorted_updates, pairs, n, world):
    """The pairs of all clauses on a touched context, whose updates are u..end; leaves it at its last version."""
    keys, second, rows, n_keys, marks, row, wide = index
    what, value, residual = sorted_updates
    a, b = keys_of
    meta, contexts = world.clauses.meta, world.contexts
    k = np.int64(contexts.head[c])
    if k >= 0 and meta[k, NEXT] >= 0:
        for at in range(row.shape[0]):
            row[at] = contexts.value[c, at]
            if contexts.residual.shape[0]:
                wide[at] = contexts.residual[c, at]
    done = u
    while k >= 0:
        if meta[k, PLACE] != OUT:
            if done != u:
                done = u
                for at in range(row.shape[0]):
                    contexts.value[c, at] = row[at]
                    if contexts.residual.shape[0]:
                        contexts.residual[c, at] = wide[at]
            least, most = _hull(k, a, c, u, end, what, value, world)
            if least == -np.inf and most == np.inf:
                for m in range(first, last):
                    marks[(m - first) >> 6] |= np.uint64(skip[m] == 0) << np.uint64((m - first) & 63)
            elif least <= most:
                low, high = _hull(k, b, c, u, end, what, value, world)
                free = low == -np.inf and high == np.inf
                i = first_from(keys, n_keys, least)
                while i < n_keys and keys[i] <= most:
                    j = np.uint64(rows[i])
                    marks[j >> np.uint64(6)] |= np.uint64(free or (low <= second[i] and second[i] <= high)) << (
                        j & np.uint64(63)
                    )
                    i += 1
            for w in range(marks.shape[0]):
                bits = marks[w]
                if bits == 0:
                    continue
                marks[w] = 0
                while bits != 0:
                    j = w * 64 + lowest_bit(bits)
                    bits &= bits - ONE64
                    while done < end and np.int64(what[done] >> np.uint64(44)) <= j:
                        contexts.value[c, _attribute(what[done])] = value[done]
                        if contexts.residual.shape[0]:
                            contexts.residual[c, _attribute(what[done])] = residual[done]
                        done += 1
                    if holds(k, first + j, world):
                        pairs[n] = pair(j, k, world)
                        n += 1
        k = np.int64(meta[k, NEXT])
    for i in range(done, end):
        contexts.value[c, _attribute(what[i])] = value[i]
        if contexts.residual.shape[0]:
            contexts.residual[c, _attribute(what[i])] = residual[i]
    return n


@bare
def _tell(ix, c, u, end, what, world):
    """The index hears of the last versions of context ``c``, whose updates are u..end."""
    contexts = world.contexts
    told = np.uint64(0)
    for i in range(u, end):
        a = _attribute(what[i])
        if told >> np.uint64(a & 63) & ONE64 and a < 64:
            continue
        told |= ONE64 << np.uint64(a & 63)
        v = contexts.value[c, a]
        draw(c, a, v, ix.strips, ix.strip, ix.sketch)
        if contexts.watch[c, a >> 3, WATCHED] >> (a & 7) & 1:
            if contexts.watch[c, a >> 3, PINNED] >> (a & 7) & 1:
                k = np.int64(contexts.head[c])
                if not followed(ix, k, announce(ix, k, a, world), a, v, world):
                    moved(ix, c, a, v, world)
            elif not (contexts.safe[c, a, 0] <= v and v <= contexts.safe[c, a, 1]):
                moved(ix, c, a, v, world)


@bare
def sample_updates(ix, begin, what, value, world):
    """Let the policy see one update in so many, before contexts move."""
    contexts = np.int64(begin.shape[0] - 2)
    step = max(np.int64(SAMPLE), begin[contexts] >> 10)
    for u in range(0, begin[contexts], step):
        c = np.int64(what[u] & LOW32)
        # Its step is from the version before.
        old = world.contexts.value[c, _attribute(what[u])]
        for i in range(begin[c], u):
            old = value[i] if _attribute(what[i]) == _attribute(what[u]) else old
        observe(ix, c, _attribute(what[u]), value[u], old, step, world)


@bare
def _crowd(c, world):
    """How many clauses are on context ``c``."""
    n = 0
    k = np.int64(world.contexts.head[c])
    while k >= 0:
        n += 1
        k = np.int64(world.clauses.meta[k, NEXT])
    return n


@bare
def _replay_some(ix, c, last_context, first, last, begin, skip, keys_of, index, sorted_updates, pairs, n, world):
    """As :func:`replay_touched` from context ``c`` on, while there is room; returns the context that comes next."""
    what = sorted_updates[0]
    while c < last_context:
        u, end = begin[c], begin[c + 1]
        if u < end:
            ahead = c + 4
            if ahead < last_context:
                prefetch(world.clauses.meta, max(0, np.int64(world.contexts.head[ahead])) * META_COLUMNS)
                prefetch(world.contexts.safe, ahead * world.contexts.value.shape[1] * 2)
            if n + _crowd(c, world) * (last - first) > pairs.shape[0]:
                return c, n
            n = _match_touched(c, first, last, u, end, skip, keys_of, index, sorted_updates, pairs, n, world)
            _tell(ix, c, u, end, what, world)
        c += 1
    return c, n


@kernel
def replay_touched(ix, first, last, begin, sorted_updates, skip, pairs, n, world):
    """Match the touched contexts, version by version, with messages first..last; then tell the index."""
    size, columns = last - first, world.contexts.value.shape[1]
    keys, second, rows = np.empty(size), np.empty(size), np.empty(size, np.int64)
    slots = ix.slot_attribute.shape[0]
    a = np.int64(ix.slot_attribute[0]) if slots else np.int64(0)
    b = np.int64(ix.slot_attribute[min(1, slots - 1)]) if slots else np.int64(0)
    n_keys = _sort_messages(world, a, b, first, last, skip, keys, second, rows)
    marks = np.zeros((size + 63) >> 6, np.uint64)
    index = (keys, second, rows, n_keys, marks, np.empty(columns), np.zeros(columns, np.int16))
    contexts = np.int64(begin.shape[0] - 2)
    c = np.int64(0)
    while True:
        c, n = _replay_some(ix, c, contexts, first, last, begin, skip, (a, b), index, sorted_updates, pairs, n, world)
        if c == contexts:
            return pairs, n
        pairs = room_for(pairs, n, max(n, _crowd(c, world) * size))
