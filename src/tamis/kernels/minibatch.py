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

from . import cost
from .batch import (
    ASK,
    GROUPS,
    ORDER,
    POST,
    PROBE,
    SORT_MIX,
    SORT_PIX,
    TOTAL,
    TOUCHED,
    UNION,
    code_of,
    room_for,
    run_of_pairs,
    settle,
    sort_by_key,
)
from .bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CONSTANTS,
    CONTEXT,
    FALSE_POSITIVES,
    FIRST_PREDICATE,
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
    PROGRAM,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
    UPDATES,
    SkipList,
)
from .entries import AGILE, COST, CREDIT, POLICY, STRATEGY, TEST_COST, collect, towards
from .jit import BARE, bare, inlined, kernel
from .merge import LOW6, ONE64, SIX, begin, clear, is_empty, take_out
from .postfilter import bound, gate_open, holds
from .postings import AT, ENTRY, FILL
from .program import run
from .simd import between, cycles, lowest_bit, prefetch
from .skiplist import LARGEST, TALLEST, header
from .strategies import blamed, lower, reckon, wanted
from .touched import by_tile, replay_touched

EIGHT = 8
AHEAD = 8
# What is asked for: the index of profiles, the index of messages (PIx and MIx of paper 002).
PIX, MIX, HASHED = 1, 2, 4
FEW = 8  # one clause in so many
LOCAL = 1 << 16  # pairs of a minibatch that are turned into runs together: they stay in the cache


# -- the index -------------------------------------------------------------------------------------------------


@bare
def _distinct(ix, g, rows, first, last, world, x, order):
    """The distinct values of the messages rows[first:last] on the attribute of group ``g``, sorted; how many."""
    a = np.int64(ix.slot_attribute[ix.group[g]])
    n = 0
    for i in range(first, last):
        v = world.messages.value[rows[i], a]
        if v == v and (n == 0 or x[n - 1] != v):
            x[n], order[n] = v, rows[i]
            n += 1
    sort_by_key(x, order, n)
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


def _collect_all(ix, g, rows, first, last, world, x, order, spent):
    """The union set of a group for the messages rows[first:last]."""


@overload(_collect_all, jit_options=BARE)
def _collect_all_of(ix, g, rows, first, last, world, x, order, spent):
    if ix.record is SkipList:

        def by_value(ix, g, rows, first, last, world, x, order, spent):
            start = cycles()
            n = _distinct(ix, g, rows, first, last, world, x, order)
            spent[SORT_PIX] += np.float64(cycles() - start)
            _collect_sorted(ix, g, x, n)

        return by_value

    def one_by_one(ix, g, rows, first, last, world, x, order, spent):
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
def _union(ix, rows, first, last, world, x, order, found, spent):
    """The union set of the messages rows[first:last], into ``found``; returns its size."""
    which = 0
    for g in range(ix.group.shape[0] - 1):
        begin(ix, g)
        _collect_all(ix, g, rows, first, last, world, x, order, spent)
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
    ix, found, total, rows, first, last, page, wide, room, key, message_index, touched, asked, spent, pairs, n, world
):
    """Split the union set into pairs with messages, while there is room; returns how far, and the number of pairs."""
    meta, row = world.clauses.meta, world.templates.row
    hashed, hash_keys, hash_at = message_index
    ends, at = room
    exact = world.messages.residual.shape[0] == 0 and world.contexts.residual.shape[0] == 0
    size = last - first
    agile = asked and ix.rule[STRATEGY] == AGILE
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
        if touched.shape[0] and c >= 0 and touched[c]:
            continue
        r = np.int64(meta[k, TEMPLATE])
        code = code_of(k, world)
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
    if asked:
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
    sort_by_key(x, order, n)
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


# -- batches ---------------------------------------------------------------------------------------------------


@kernel
def _match(ix, rows, since, how, key, clauses, touched, rooms, codes, runs, filled, spent, world):
    """The runs of one minibatch, the messages ``rows``, behind those in ``filled``; returns codes and runs anew.

    ``clauses`` are asked where there is no PIX.
    """
    x, order, page, hash_keys, hash_at, bounds, found, local, counts = rooms
    size = rows.shape[0]
    clock = cycles()
    hashed = key >= 0 and how & HASHED != 0
    if key >= 0:
        n_keys = _order_by(key, rows, 0, size, world, x, order)
        if hashed:
            _hash(x, n_keys, hash_keys, hash_at)
        now = cycles()
        spent[SORT_MIX] += np.float64(now - clock)
        clock = now
    asked = how & PIX != 0
    sorting = spent[SORT_PIX]
    if asked:
        total = np.int64(_union(ix, rows, 0, size, world, x, order, found, spent))
        clauses = found
    else:
        total = np.int64(clauses.shape[0])
    now = cycles()
    spent[PROBE] += np.float64(now - clock) - (spent[SORT_PIX] - sorting)
    spent[UNION] += np.float64(total)
    clock = now
    asking = spent[ASK]
    wide = _fill(page, rows, 0, size, world)
    done = np.int64(0)
    index = (hashed, hash_keys, hash_at)
    for j in range(size):
        order[j] = rows[j] - since
    while done < total:
        step, n = _split(
            ix,
            clauses[done:total],
            total - done,
            rows,
            0,
            size,
            page,
            wide,
            bounds,
            key,
            index,
            touched,
            asked,
            spent,
            local,
            0,
            world,
        )
        done += step
        codes, runs = room_for(codes, filled[0], n), room_for(runs, filled[1], 2 * size)
        filled[0], filled[1] = run_of_pairs(local, n, order[:size], counts, codes, filled[0], runs, filled[1])
    now = cycles()
    spent[POST] += np.float64(now - clock) - (spent[ASK] - asking)
    ix.count[PROBES] += size
    if ix.rule[POLICY] == COST and total * size >= 16:
        ix.rule[TEST_COST] = towards(ix.rule[TEST_COST], np.float64(now - clock) / (total * size), 0.05)
    return codes, runs


@bare
def _untouched(live, touched, world, left):
    """The clauses that no update of the batch concerns, into ``left``; returns how many."""
    n = 0
    for i in range(live.shape[0]):
        c = world.clauses.meta[live[i], CONTEXT]
        if c < 0 or not touched[c]:
            left[n] = live[i]
            n += 1
    return n


@kernel
def replay(
    ix,
    shard,
    shards,
    runs_of_log,
    updates,
    skip,
    serial,
    profiles,
    world,
    room,
    out,
    kept,
    rows,
    groups,
    batches,
    how,
    live,
    tiled,
    spent,
):
    """As :func:`tamis.kernels.process.replay`, without effects and tracks, in minibatches.

    out      int32: room for the matches, as many as are expected
    kept     codes, runs and pairs: room that is kept from log to log
    rows     int64 [messages that are not rejected]: in the order they are processed, batch by batch
    groups   int64 [minibatches + 1]: where each begins in ``rows``
    batches  int64 [n, 3]: the last message of each batch, where its minibatches end, and where its updates end
    how      PIX | MIX | HASHED
    live     int32: all clauses; empty where there is a PIX and updates are few
    tiled    room for :func:`tamis.kernels.touched.by_tile`
    spent    float64 [SPENT]

    Returns profile codes, the end of each message's, and the room.
    """
    whole = cycles()
    n_messages = world.messages.value.shape[0]
    ends = np.zeros(n_messages, np.int64)
    n_out = np.int64(0)
    codes, runs, pairs = kept
    largest = np.int64(0)
    for g in range(groups.shape[0] - 1):
        largest = max(largest, groups[g + 1] - groups[g])
    if live.shape[0]:
        for b in range(batches.shape[0]):
            largest = max(largest, groups[batches[b, 1]] - (groups[batches[b - 1, 1]] if b else 0))
    bits = 3
    while 1 << bits < 2 * largest:
        bits += 1
    predicates = np.int64(1)
    for r in range(world.templates.row.shape[0]):
        predicates = max(predicates, np.int64(world.templates.row[r, PREDICATES]))
    rooms = (
        np.empty(largest + EIGHT),
        np.empty(largest + EIGHT, np.int64),
        np.empty(world.messages.value.shape[1] * (largest + EIGHT)),
        np.empty(1 << bits),
        np.empty(1 << bits, np.int32),
        (np.empty((predicates, 2)), np.empty(predicates, np.int64)),
        np.empty(room + 64, np.int32),
        np.empty(max(LOCAL, 2 * largest), np.int64),
        np.empty(largest + 1, np.int64),
    )
    contexts = world.contexts.value.shape[0]
    nobody = np.zeros(0, np.uint8)
    slots = ix.slot_attribute.shape[0]
    key = narrow = np.int64(-1)
    if slots:
        narrow = np.int64(ix.slot_attribute[0])
        if how & MIX:
            key = np.int64(ix.slot_attribute[min(1, slots - 1)]) if how & PIX else narrow
    left = np.empty(live.shape[0] if how & PIX else 0, np.int32)
    cursor = np.zeros(2, np.int64)
    tiles, tile_bits = np.zeros(0, np.int64), np.int64(0)
    first = u_first = g_first = np.int64(0)
    for b in range(batches.shape[0]):
        last, g_last, u_last = batches[b, 0], batches[b, 1], batches[b, 2]
        ix.count[UPDATES] += u_last - u_first
        touched = nobody
        n_left = np.int64(live.shape[0])
        if u_last > u_first:
            clock = cycles()
            tiles, tile_bits, touched = by_tile(
                cursor, u_first, u_last, first, shard, shards, runs_of_log, updates, contexts, tiled
            )
            if how & PIX and live.shape[0]:
                n_left = _untouched(live, touched, world, left)
            spent[TOUCHED] += np.float64(cycles() - clock)
        filled = np.zeros(2, np.int64)
        if how & PIX and n_left * FEW < live.shape[0]:
            # So few that it is faster to go through them all than to ask an index of which most is touched.
            mine = rows[groups[g_first] : groups[g_last]]
            codes, runs = _match(
                ix, mine, first, MIX, narrow, left[:n_left], nobody, rooms, codes, runs, filled, spent, world
            )
        else:
            for g in range(g_first, g_last):
                mine = rows[groups[g] : groups[g + 1]]
                codes, runs = _match(ix, mine, first, how, key, live, touched, rooms, codes, runs, filled, spent, world)
        spent[GROUPS] += g_last - g_first
        n = np.int64(0)
        if u_last > u_first:
            clock = cycles()
            pairs, n = replay_touched(ix, first, last, tiles, tile_bits, tiled, skip, pairs, n, world)
            spent[TOUCHED] += np.float64(cycles() - clock)
        if ix.rule[POLICY] == COST:
            for i in range(groups[g_first], groups[g_last]):
                cost.meet(ix, rows[i], world)
            cost.adapt(ix, groups[g_last] - groups[g_first], world)
        clock = cycles()
        out, n_out = settle(
            codes, filled[0], runs, filled[1], pairs, n, (first, last), serial, profiles, out, n_out, ends
        )
        spent[ORDER] += np.float64(cycles() - clock)
        first, u_first, g_first = last, u_last, g_last
    spent[TOTAL] += np.float64(cycles() - whole)
    return out[:n_out], ends, (codes, runs, pairs)
