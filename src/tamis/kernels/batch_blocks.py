"""Batches on the index ``blocks``: every block meets all messages of a batch at once.

One message after the other walks through all of the index, and the next one finds nothing of it in the cache. Here the
messages of a batch are grouped by the blocks they meet (paper 002's minibatches, found by the index itself), and a
block is looked into while it is in the cache. What is found, and what is owed, is as in :mod:`tamis.kernels.blocks`.
"""

from __future__ import annotations

import math

import numpy as np

from .batch import (
    ORDER,
    PROBE,
    TOTAL,
    by_context,
    moments,
    pair,
    replay_touched,
    room_for,
    sample_updates,
    settle,
)
from .blocks import (
    deescalate,
    edges_hold,
    look_into,
    meet,
    owe,
    patience_of,
    sample_doubts,
)
from .bundles import (
    CANDIDATES,
    FALSE_POSITIVES,
    NEXT,
    PLACE,
    PROBES,
    UPDATES,
)
from .cells import (
    ABSENT_CELL,
    BLOCKS_MET,
    CHUNK,
    CHUNKS,
    CHUNKS_MET,
    FIXED,
    LINE,
    N_BLOCKS,
    ONE,
    OPEN,
    global_cell,
)
from .jit import bare, kernel
from .policy import CHUNKS_SEEN, MESSAGE_SAMPLE, SINCE, adapt, learn_passing
from .postfilter import holds
from .simd import count_bits, covers, covers_strictly, cycles, lowest_bit

OWED = 4096


# -- blocks ----------------------------------------------------------------------------------------------------


@bare
def _queue(ix, first, last, skip, cells, met, counts, queue, n, world):
    """The blocks that each message meets, block << 32 | message, into ``queue``, while there is room for all of one."""
    slots = ix.slot_attribute.shape[0]
    for m in range(first, last):
        if skip[m]:
            continue
        if n + ix.count[N_BLOCKS] > queue.shape[0]:
            return m, n
        g = cells[m - first]
        for s in range(slots):
            x = world.messages.value[m, ix.slot_attribute[s]]
            g[s] = ABSENT_CELL if math.isnan(x) else global_cell(ix.cuts, s, x)
        n_met = meet(ix, g, met)
        for i in range(n_met):
            b = np.int64(met[i])
            queue[n] = b << 32 | (m - first)
            counts[b + 1] += 1
            n += 1
        ix.count[PROBES] += 1
        ix.count[BLOCKS_MET] += n_met
        if ix.count[PROBES] % MESSAGE_SAMPLE == 1:
            ix.seen[slots, 0] += MESSAGE_SAMPLE
            learn_passing(ix, m, world)
    return last, n


@bare
def _scan(ix, b, near, j, m, live, q, due, unsure, muted, patience, owed, n_owed, pairs, n, sampled, world):
    """The pairs of message ``m`` with the chunks ``near`` of block ``b``; returns their number, and what is owed."""
    slots = ix.slot_attribute.shape[0]
    lines, masks, profile, margin = ix.lines, ix.masks, ix.profile, ix.margin
    n_live = live[slots]
    mine = np.int64(j) << np.int64(32)
    tested = failed = 0
    while near != 0:
        chunk = b * CHUNKS + lowest_bit(near)
        near &= near - ONE
        at = chunk * slots * LINE
        found = masks[chunk, OPEN]
        for u in range(n_live):
            found &= covers(lines, at + live[u] * LINE, q[live[u]], q[live[u]])
            if found == 0:
                break
        if found == 0:
            n_owed = owe(ix.debt, chunk, patience, owed, n_owed)
            continue
        if muted.shape[0]:
            found &= ~muted[chunk]
        place = chunk * CHUNK
        fixed = found & masks[chunk, FIXED]
        found &= ~fixed
        unclear = np.uint32(0)
        loose = np.int64(0)
        for u in range(n_live):
            s = live[u]
            wide = margin[chunk * slots + s]
            x_low, x_high = q[s], q[s]
            if wide and x_low != ABSENT_CELL:
                x_low = np.uint8(max(1, np.int64(x_low) - np.int64(wide)))
                x_high = np.uint8(min(253, np.int64(x_high) + np.int64(wide)))
            mask = found & ~covers_strictly(lines, at + s * LINE, x_low, x_high)
            unsure[u] = mask
            unclear |= mask
            if wide > due[s]:
                loose += count_bits(mask)
        if loose:
            n_owed = owe(ix.debt, chunk, loose, owed, n_owed)
        if sampled:
            sample_doubts(ix.seen, unsure, live, n_live, margin, chunk, slots, count_bits(found))
        certain = found & ~unclear
        while certain != 0:
            pairs[n] = mine | np.int64(profile[place + lowest_bit(certain)])
            n += 1
            certain &= certain - ONE
        while unclear != 0:
            t = lowest_bit(unclear)
            unclear &= unclear - ONE
            bits = np.uint64(0)
            for u in range(n_live):
                bits |= np.uint64(unsure[u] >> np.uint32(t) & ONE) << np.uint64(live[u])
            tested += 1
            if edges_hold(ix, np.int64(ix.clause[place + t]), m, bits, world):
                pairs[n] = mine | np.int64(profile[place + t])
                n += 1
            else:
                failed += 1
        while fixed != 0:
            k = np.int64(ix.clause[place + lowest_bit(fixed)])
            fixed &= fixed - ONE
            tested += 1
            if holds(k, m, world):
                pairs[n] = pair(j, k, world)
                n += 1
            else:
                failed += 1
    ix.count[CANDIDATES] += tested
    ix.count[FALSE_POSITIVES] += failed
    return n, n_owed


@kernel
def _match_blocks(ix, first, last, skip, muted, owed, pairs, n, world, rooms):
    """The pairs of messages first..last in the blocks; returns them, their number, and how many chunks are owed."""
    cells, lives, bytes_of, unsure, met, queue, sorted_queue = rooms
    blocks = ix.count[N_BLOCKS]
    n_owed = np.int64(0)
    ix.seen[ix.slot_attribute.shape[0], SINCE] = 0.0
    patience = patience_of(ix)
    q, due = bytes_of[0], bytes_of[1]
    start = first
    while start < last:
        counts = np.zeros(blocks + 1, np.int64)
        stop, queued = _queue(ix, start, last, skip, cells, met, counts, queue, 0, world)
        for b in range(blocks):
            counts[b + 1] += counts[b]
        for i in range(queued):
            b = queue[i] >> 32
            sorted_queue[counts[b]] = queue[i]
            counts[b] += 1
        chunks_met = sampled_chunks = 0
        for i in range(queued):
            b, j = sorted_queue[i] >> 32, sorted_queue[i] & 0xFFFFFFFF
            m = start + j
            if n + CHUNKS * CHUNK > pairs.shape[0]:
                pairs = room_for(pairs, n, CHUNKS * CHUNK)
            near = look_into(ix, b, m, cells[j], q, due, lives, world)
            if near != 0:
                sampled = m % MESSAGE_SAMPLE == 0
                chunks_met += count_bits(near)
                if sampled:
                    sampled_chunks += count_bits(near)
                n, n_owed = _scan(
                    ix,
                    b,
                    near,
                    m - first,
                    m,
                    lives,
                    q,
                    due,
                    unsure,
                    muted,
                    patience,
                    owed,
                    n_owed,
                    pairs,
                    n,
                    sampled,
                    world,
                )
        ix.count[CHUNKS_MET] += chunks_met
        ix.seen[ix.slot_attribute.shape[0], CHUNKS_SEEN] += MESSAGE_SAMPLE * sampled_chunks
        start = stop
    return pairs, n, n_owed


# -- batches ---------------------------------------------------------------------------------------------------


@bare
def _mute(ix, begin, muted, on, world):
    """Take the clauses of touched contexts out of what blocks return, or back."""
    meta = world.clauses.meta
    for c in range(begin.shape[0] - 2):
        if begin[c] == begin[c + 1]:
            continue
        k = np.int64(world.contexts.head[c])
        while k >= 0:
            place = np.int64(meta[k, PLACE])
            if place >= 0:
                muted[place >> 5] = muted[place >> 5] | ONE << np.uint32(place & 31) if on else np.uint32(0)
            k = np.int64(meta[k, NEXT])


@kernel
def replay(ix, shard, shards, runs, updates, skip, serial, profiles, world, room, batches, sorted_updates, spent):
    """As :func:`tamis.kernels.minibatch.replay`: the index itself finds the minibatches. Nobody must be at the root."""
    start = cycles()
    n_messages, n_updates = world.messages.value.shape[0], updates[0].shape[0]
    contexts = world.contexts.value.shape[0]
    ends = np.zeros(n_messages, np.int64)
    out = np.empty(max(256, min(room * n_messages, 1 << 16)), np.int32)
    n_out = np.int64(0)
    when = moments(runs, n_updates)
    slots = max(1, ix.slot_attribute.shape[0])
    pairs, owed = np.empty(1 << 14, np.int64), np.empty(OWED, np.int64)
    muted = np.zeros(ix.masks.shape[0] if n_updates else 0, np.uint32)
    size = np.int64(0)
    for b in range(batches.shape[0]):
        size = max(size, batches[b, 0] - (batches[b - 1, 0] if b else 0))
    longest = max(1 << 16, 4 * ix.count[N_BLOCKS])
    rooms = (
        np.empty((size, slots), np.uint8),
        np.empty(slots + 1, np.int64),
        np.empty((2, max(64, slots)), np.uint8),
        np.empty(slots, np.uint32),
        np.empty(ix.used.shape[0] + 64, np.int32),
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
    )
    first = u_first = np.int64(0)
    for b in range(batches.shape[0]):
        last, u_last = batches[b, 0], batches[b, 2]
        ix.count[UPDATES] += u_last - u_first
        n = np.int64(0)
        begin = np.zeros(0, np.int64)
        if u_last > u_first:
            begin = by_context(u_first, u_last, first, shard, shards, updates, when, contexts, sorted_updates)
            _mute(ix, begin, muted, True, world)
        clock = cycles()
        pairs, n, n_owed = _match_blocks(ix, first, last, skip, muted, owed, pairs, n, world, rooms)
        spent[PROBE] += np.float64(cycles() - clock)
        if u_last > u_first:
            _mute(ix, begin, muted, False, world)
            sample_updates(ix, begin, sorted_updates[3], sorted_updates[4], world)
            pairs, n = replay_touched(ix, first, last, begin, sorted_updates[3:], skip, pairs, n, world)
        for i in range(n_owed):
            deescalate(ix, owed[i], world)
        adapt(ix)
        clock = cycles()
        out, n_out = settle(pairs, n, first, last, serial, profiles, out, n_out, ends)
        spent[ORDER] += np.float64(cycles() - clock)
        first, u_first = last, u_last
    spent[TOTAL] += np.float64(cycles() - start)
    return out[:n_out], ends
