"""Batches on the indexes of paper 000: minibatches, union sets, and a message index (paper 002).

The messages of a batch come in groups of similar ones. An index is asked once for a *minibatch*: what it returns for
any of its messages is the *union set*, which the postfilter splits into the matches of each. The bounds of a clause are
read once for the minibatch and compared with eight messages at a time. Skip lists go on from the last value instead of
starting at the top; equal values are looked up once. With a *message index* a clause meets only the messages whose
value on one attribute lies between its bounds.

Invariant: the union set contains every clause that any message of the minibatch matches, but for those on touched
contexts, which :mod:`tamis.kernels.batch` matches.
"""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from .batch import (
    ASK,
    GROUPS,
    ORDER,
    POST,
    PROBE,
    SEVERAL,
    SORT_MIX,
    SORT_PIX,
    TOTAL,
    TOUCHED,
    UNION,
    by_context,
    moments,
    replay_touched,
    room_for,
    sample_updates,
    settle,
)
from .bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CONSTANTS,
    CONTEXT,
    FALSE_POSITIVES,
    FIRST_PREDICATE,
    FLAGS,
    HAS_SIBLING,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    HIGH_STRICT,
    LOW,
    LOW_CONST,
    LOW_CTX,
    LOW_STRICT,
    META_COLUMNS,
    NONE,
    OUTER,
    PREDICATES,
    PROBES,
    PROFILE,
    PROGRAM,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
    UPDATES,
    SkipList,
)
from .entries import AGILE, COST, CREDIT, LEAST, MESSAGES, POLICY, STRATEGY, TEST_COST, collect
from .entries import LARGEST as MOST
from .jit import BARE, bare, inlined, kernel
from .merge import LOW6, ONE64, SIX, begin, clear, is_empty, take_out
from .postfilter import bound, gate_open, holds
from .postings import AT, ENTRY, FILL
from .program import run
from .simd import between, cycles, lowest_bit, prefetch
from .skiplist import LARGEST, TALLEST, header
from .strategies import blamed, lower, reckon, review, wanted

EIGHT = 8
AHEAD = 8
# What is asked for: the index of profiles, the index of messages (PIx and MIx of paper 002).
PIX, MIX, HASHED = 1, 2, 4


# -- the index -------------------------------------------------------------------------------------------------


@bare
def _sort(x, n):
    """Sort the first ``n`` values: often they are sorted already, or nearly."""
    gap = 1
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            v = x[i]
            j = i
            while j >= gap and x[j - gap] > v:
                x[j] = x[j - gap]
                j -= gap
            x[j] = v
        gap //= 3


@bare
def _distinct(ix, g, rows, first, last, world, x):
    """The distinct values of the messages rows[first:last] on the attribute of group ``g``, sorted; how many."""
    a = np.int64(ix.slot_attribute[ix.group[g]])
    n = 0
    for i in range(first, last):
        v = world.messages.value[rows[i], a]
        if v == v and (n == 0 or x[n - 1] != v):
            x[n] = v
            n += 1
    _sort(x, n)
    left = min(n, 1)
    for i in range(1, n):
        if x[i] != x[left - 1]:
            x[left] = x[i]
            left += 1
    return left


@bare
def _gather(ix, i, g):
    """As :func:`tamis.kernels.merge.gather`, for lists of which most entries are in the set already or never will be.

    Writing to a word that was just written waits for that: what would change nothing is not written.
    """
    bits, brief, marker = ix.bits, ix.brief, ix.postings.marker
    first = np.int64(ix.postings.list[i, AT])
    last = first + ix.postings.list[i, FILL]
    into = g & 1
    for m in range(first, last):
        k = np.uint64(marker[m, ENTRY])
        word, bit = k >> SIX, ONE64 << (k & LOW6)
        if bits[into, word] & bit or (g > 0 and not bits[1 - into, word] & bit):
            continue
        bits[into, word] |= bit
        brief[into, word >> SIX] |= ONE64 << (word & LOW6)


@bare
def _collect_sorted(ix, g, x, n):
    """The union set of a skip list for sorted values: each goes on where the last one was.

    An edge of the way to the last value that also covers this one has been gathered, and so have all above it.
    """
    for i in range(n):
        v = min(x[i], LARGEST)
        tallest = ix.spare[TALLEST + g]
        up = np.int64(0)
        node = header(g)
        if i == 0:
            up = tallest
        else:
            while up < tallest and ix.beyond[ix.path[up] + up] <= v:
                up += 1
            if up < tallest:
                node = np.int64(ix.path[up])
            if up == 0:
                continue
        # Below ``up`` nothing of the last way is of use but its last node: the walk goes on from there.
        for level in range(up - 1, -1, -1):
            if i > 0:
                last = np.int64(ix.path[level])
                if ix.key[last] > ix.key[node]:
                    node = last
            while ix.beyond[node + level] <= v:
                node = np.int64(ix.to[node + level])
            ix.path[level] = node
            _gather(ix, node + level, g)


def _collect_all(ix, g, rows, first, last, world, x, spent):
    """The union set of a group for the messages rows[first:last]."""


@overload(_collect_all, jit_options=BARE)
def _collect_all_of(ix, g, rows, first, last, world, x, spent):
    if ix.record is SkipList:

        def by_value(ix, g, rows, first, last, world, x, spent):
            start = cycles()
            n = _distinct(ix, g, rows, first, last, world, x)
            spent[SORT_PIX] += np.float64(cycles() - start)
            _collect_sorted(ix, g, x, n)

        return by_value

    def one_by_one(ix, g, rows, first, last, world, x, spent):
        # Sorted lexicographically, equal messages are neighbours.
        slots = ix.group[g + 1] - ix.group[g]
        for i in range(first, last):
            same = i > first
            for s in range(ix.group[g], ix.group[g] + slots if same else ix.group[g]):
                a = ix.slot_attribute[s]
                same = same and world.messages.value[rows[i], a] == world.messages.value[rows[i - 1], a]
            if not same:
                collect(ix, g, rows[i], world)

    return one_by_one


@bare
def _union(ix, rows, first, last, world, x, found, spent):
    """The union set of the messages rows[first:last], into ``found``; returns its size."""
    which = 0
    for g in range(ix.group.shape[0] - 1):
        begin(ix, g)
        _collect_all(ix, g, rows, first, last, world, x, spent)
        which = g & 1
        if g > 0:
            clear(ix, 1 - which)
        if is_empty(ix, which):
            break
    return take_out(ix, which, found)


# -- the postfilter --------------------------------------------------------------------------------------------


@bare
def _fill(page, rows, first, last, world):
    """The messages rows[first:last], one column each; behind the last what matches nothing."""
    attributes, n = world.messages.value.shape[1], last - first
    wide = (n + EIGHT - 1) // EIGHT * EIGHT
    for i in range(n):
        m = rows[first + i]
        for a in range(attributes):
            page[a * wide + i] = world.messages.value[m, a]
    for a in range(attributes):
        for i in range(n, wide):
            page[a * wide + i] = np.nan
    return wide


@bare
def _read_bounds(k, world, ends, at):
    """The intervals of clause ``k`` as closed ones, and the attributes they are on; returns how many."""
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    r, c, own = np.int64(meta[k, TEMPLATE]), np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    n = 0
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if pred[p, TRAITS] & OUTER or (pred[p, LOW] == NONE and pred[p, HIGH] == NONE):
            continue
        low, high = -np.inf, np.inf
        if pred[p, LOW] != NONE:
            low = bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
            if pred[p, LOW_STRICT]:
                low = np.nextafter(low, np.inf) if low < np.inf else np.nan
        if pred[p, HIGH] != NONE:
            high = bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
            if pred[p, HIGH_STRICT]:
                high = np.nextafter(high, -np.inf) if high > -np.inf else np.nan
        ends[n, 0], ends[n, 1] = low, high
        at[n] = pred[p, ATTRIBUTE]
        n += 1
    return n


@inlined
def _lookup(keys, n, low, high, hashed, hash_keys, hash_at):
    """The stretch of sorted keys between low and high: by hash where that is one value, else by binary search."""
    first = np.int64(0)
    if low == high and hashed:
        mask = np.int64(hash_keys.shape[0] - 1)
        h = np.int64(np.float64(low + 0.0).view(np.int64) * np.int64(-7046029254386353131))
        i = (h >> 40) & mask
        while hash_at[i] >= 0 and hash_keys[i] != low:
            i = (i + 1) & mask
        first = np.int64(hash_at[i]) if hash_at[i] >= 0 else np.int64(n)
    else:
        last = np.int64(n)
        while first < last:
            middle = (first + last) >> 1
            if keys[middle] < low:
                first = middle + 1
            else:
                last = middle
    stop = first
    while stop < n and keys[stop] <= high:
        stop += 1
    return first, stop


@bare
def _split(
    ix, found, total, rows, first, last, page, wide, ends, at, key, message_index, touched, spent, pairs, n, world
):
    """Split the union set into pairs with messages, while there is room; returns how far, and the number of pairs."""
    meta, row = world.clauses.meta, world.templates.row
    hashed, hash_keys, hash_at = message_index
    exact = world.messages.residual.shape[0] == 0 and world.contexts.residual.shape[0] == 0
    size = last - first
    agile = ix.rule[STRATEGY] == AGILE
    tested = failed = np.int64(0)
    done = total
    for i in range(total):
        if n + size > pairs.shape[0]:
            done = i
            break
        if i + AHEAD < total:
            prefetch(meta, np.int64(found[i + AHEAD]) * META_COLUMNS)
        if i + (AHEAD >> 1) < total:
            k = np.int64(found[i + (AHEAD >> 1)])
            prefetch(world.clauses.constant, np.int64(meta[k, CONSTANTS]))
            prefetch(world.clauses.constant, np.int64(meta[k, CONSTANTS]) + 8)
        k = np.int64(found[i])
        c = np.int64(meta[k, CONTEXT])
        if touched.shape[0] and c >= 0 and touched[c] < touched[c + 1]:
            continue
        r = np.int64(meta[k, TEMPLATE])
        code = np.int64(meta[k, PROFILE])
        if meta[k, FLAGS] & HAS_SIBLING:
            code |= SEVERAL
        before = n
        start, stop = np.int64(0), np.int64(size)
        if not exact:
            tested += size
            for j in range(size):
                if holds(k, rows[first + j], world):
                    pairs[n] = np.int64(j) << np.int64(32) | code
                    n += 1
        else:
            predicates = _read_bounds(k, world, ends, at)
            if key >= 0:
                clock = cycles() if i & 15 == 0 else np.int64(0)
                for p in range(predicates):
                    if at[p] == key:
                        start, stop = _lookup(
                            page[key * wide :], size, ends[p, 0], ends[p, 1], hashed, hash_keys, hash_at
                        )
                        break
                if clock:
                    spent[ASK] += 16.0 * np.float64(cycles() - clock)
            tested += stop - start
            program = np.int64(row[r, PROGRAM_LENGTH])
            is_open = True
            for j in range(start >> 3 << 3, stop, EIGHT):
                mask = np.uint32(255)
                if j < start:
                    mask &= np.uint32(255) << np.uint32(start - j)
                for p in range(predicates):
                    mask &= between(page, at[p] * wide + j, ends[p, 0], ends[p, 1])
                    if mask == 0:
                        break
                if stop - j < EIGHT:
                    mask &= (np.uint32(1) << np.uint32(stop - j)) - np.uint32(1)
                if mask != 0 and n == before:
                    is_open = gate_open(k, world)
                    if not is_open:
                        break
                while mask != 0:
                    q = j + lowest_bit(mask)
                    mask &= mask - np.uint32(1)
                    if (
                        program
                        and not run(row[r, PROGRAM], program, rows[first + q], c, np.int64(meta[k, CONSTANTS]), world)[
                            0
                        ]
                    ):
                        continue
                    pairs[n] = np.int64(q) << np.int64(32) | code
                    n += 1
        failed += stop - start - (n - before)
        if n == before and agile and c >= 0:
            # In vain: what paper 000 counts as a false positive, once per minibatch.
            blame = blamed(ix, k, rows[first], world)
            if blame >= 0:
                ix.rule[CREDIT] += ix.rule[TEST_COST]
                s = np.int64(blame >> 1)
                if wanted(ix, k, s, np.int64(blame & 1)):
                    x = world.messages.value[rows[first], ix.slot_attribute[s]]
                    lower(ix, k, s, np.int64(blame & 1), x, world)
    ix.count[CANDIDATES] += tested
    ix.count[FALSE_POSITIVES] += failed
    reckon(ix, last - first, failed)
    return done, n


@bare
def _order_by(key, rows, first, last, world, x, order):
    """Sort rows[first:last] by attribute ``key``; messages without it come last. ``x`` and ``order`` are room."""
    n = 0
    for i in range(first, last):
        v = world.messages.value[rows[i], key]
        if v == v:
            x[n], order[n] = v, rows[i]
            n += 1
    absent = n
    for i in range(first, last):
        v = world.messages.value[rows[i], key]
        if not v == v:
            order[absent] = rows[i]
            absent += 1
    gap = 1
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            v, m = x[i], order[i]
            j = i
            while j >= gap and x[j - gap] > v:
                x[j], order[j] = x[j - gap], order[j - gap]
                j -= gap
            x[j], order[j] = v, m
        gap //= 3
    for i in range(last - first):
        rows[first + i] = order[i]
    return n


@bare
def _hash(x, n, hash_keys, hash_at):
    """The first place of every value among the sorted ``x``."""
    mask = np.int64(hash_keys.shape[0] - 1)
    for i in range(hash_keys.shape[0]):
        hash_at[i] = -1
    for q in range(n):
        if q > 0 and x[q] == x[q - 1]:
            continue
        h = np.int64(np.float64(x[q] + 0.0).view(np.int64) * np.int64(-7046029254386353131))
        i = (h >> 40) & mask
        while hash_at[i] >= 0:
            i = (i + 1) & mask
        hash_keys[i], hash_at[i] = x[q], q


@bare
def _learn_domain(ix, rows, first, last, world):
    """Policy ``cost`` wants to know where messages are."""
    for s in range(ix.slot_attribute.shape[0]):
        for i in range(first, last):
            x = world.messages.value[rows[i], ix.slot_attribute[s]]
            if x == x:
                ix.seen[s, LEAST], ix.seen[s, MOST] = min(ix.seen[s, LEAST], x), max(ix.seen[s, MOST], x)


# -- batches ---------------------------------------------------------------------------------------------------


@kernel
def replay(
    ix,
    shard,
    shards,
    runs,
    updates,
    skip,
    serial,
    profiles,
    world,
    room,
    rows,
    groups,
    batches,
    how,
    live,
    sorted_updates,
    spent,
):
    """As :func:`tamis.kernels.process.replay`, without effects and tracks, in minibatches.

    rows     int64 [messages that are not rejected]: in the order they are processed, batch by batch
    groups   int64 [minibatches + 1]: where each begins in ``rows``
    batches  int64 [n, 3]: the last message of each batch, where its minibatches end, and where its updates end
    how      PIX | MIX | HASHED
    live     int32: all clauses, where there is no PIX
    sorted_updates  room for :func:`tamis.kernels.batch.by_context`
    spent    float64 [SPENT]
    """
    whole = cycles()
    n_messages, n_updates = world.messages.value.shape[0], updates[0].shape[0]
    attributes = world.messages.value.shape[1]
    ends = np.zeros(n_messages, np.int64)
    out = np.empty(max(256, min(room * n_messages, 1 << 16)), np.int32)
    n_out = np.int64(0)
    when = moments(runs, n_updates)
    pairs, local = np.empty(1 << 14, np.int64), np.empty(1 << 14, np.int64)
    found = np.empty(room + 64, np.int32)
    largest = np.int64(0)
    for g in range(groups.shape[0] - 1):
        largest = max(largest, groups[g + 1] - groups[g])
    page = np.empty(attributes * (largest + EIGHT))
    x, order = np.empty(largest + EIGHT), np.empty(largest + EIGHT, np.int64)
    bits = 3
    while 1 << bits < 2 * largest:
        bits += 1
    hash_keys, hash_at = np.empty(1 << bits), np.empty(1 << bits, np.int32)
    predicates = np.int64(1)
    for r in range(world.templates.row.shape[0]):
        predicates = max(predicates, np.int64(world.templates.row[r, PREDICATES]))
    bounds, at = np.empty((predicates, 2)), np.empty(predicates, np.int64)
    contexts = world.contexts.value.shape[0]
    nobody = np.zeros(0, np.int64)
    key = np.int64(-1)
    slots = ix.slot_attribute.shape[0]
    if how & MIX and slots:
        key = np.int64(ix.slot_attribute[min(1, slots - 1) if how & PIX else 0])
    first = u_first = g_first = np.int64(0)
    for b in range(batches.shape[0]):
        last, g_last, u_last = batches[b, 0], batches[b, 1], batches[b, 2]
        ix.count[UPDATES] += u_last - u_first
        begin = nobody
        if u_last > u_first:
            begin = by_context(u_first, u_last, first, shard, shards, updates, when, contexts, sorted_updates)
        n = np.int64(0)
        for g in range(g_first, g_last):
            i, size = groups[g], groups[g + 1] - groups[g]
            clock = cycles()
            n_keys = np.int64(0)
            hashed = False
            if key >= 0:
                n_keys = _order_by(key, rows, i, i + size, world, x, order)
                if how & HASHED:
                    hashed = True
                    _hash(x, n_keys, hash_keys, hash_at)
                now = cycles()
                spent[SORT_MIX] += np.float64(now - clock)
                clock = now
            sorting = spent[SORT_PIX]
            if how & PIX:
                total = _union(ix, rows, i, i + size, world, x, found, spent)
            else:
                total = np.int64(live.shape[0])
            now = cycles()
            spent[PROBE] += np.float64(now - clock) - (spent[SORT_PIX] - sorting)
            spent[UNION] += np.float64(total)
            clock = now
            asking = spent[ASK]
            wide = _fill(page, rows, i, i + size, world)
            done = np.int64(0)
            m = np.int64(0)
            index = (hashed, hash_keys, hash_at)
            while done < total:
                local = room_for(local, m, max(size, 4096))
                clauses = found[done:total] if how & PIX else live[done:total]
                step, m = _split(
                    ix,
                    clauses,
                    total - done,
                    rows,
                    i,
                    i + size,
                    page,
                    wide,
                    bounds,
                    at,
                    key,
                    index,
                    begin,
                    spent,
                    local,
                    m,
                    world,
                )
                done += step
            pairs = room_for(pairs, n, m)
            for q in range(m):
                j = local[q] >> 32
                pairs[n + q] = (rows[i + j] - first) << np.int64(32) | local[q] & 0xFFFFFFFF
            n += m
            now = cycles()
            spent[POST] += np.float64(now - clock) - (spent[ASK] - asking)
            ix.count[PROBES] += size
            if ix.rule[POLICY] == COST:
                ix.rule[MESSAGES] += size
                if total * size >= 16:
                    taken = np.float64(now - clock) / (total * size)
                    ix.rule[TEST_COST] += (taken - ix.rule[TEST_COST]) * 0.05
                _learn_domain(ix, rows, i, i + size, world)
        spent[GROUPS] += g_last - g_first
        if u_last > u_first:
            clock = cycles()
            sample_updates(ix, begin, sorted_updates[3], sorted_updates[4], world)
            if ix.rule[POLICY] == COST:
                review(ix)
            pairs, n = replay_touched(ix, first, last, begin, sorted_updates[3:], skip, pairs, n, world)
            spent[TOUCHED] += np.float64(cycles() - clock)
        clock = cycles()
        out, n_out = settle(pairs, n, first, last, serial, profiles, out, n_out, ends)
        spent[ORDER] += np.float64(cycles() - clock)
        first, u_first, g_first = last, u_last, g_last
    spent[TOTAL] += np.float64(cycles() - whole)
    return out[:n_out], ends
