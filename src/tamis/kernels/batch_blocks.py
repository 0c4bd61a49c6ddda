"""Batches on the index ``blocks``: every block meets all messages of a batch at once.

One message after the other walks through all of the index, and the next one finds nothing of it in the cache. Here the
messages of a batch are grouped by the blocks they meet (paper 002's minibatches, found by the index itself), and a
block is looked into while it is in the cache. What is found, and what is owed, is as in :mod:`tamis.kernels.blocks`:
a message has one run of codes from every block that it meets. Doubts are decided a block at a time.
"""

from __future__ import annotations

import math

import numpy as np

from .batch import ORDER, POST, PROBE, TOTAL, TOUCHED, pair, room_for, settle
from .blocks import (
    ask_for_block,
    decide,
    deescalate,
    lies_inside,
    look_into,
    meet,
    owe,
    patience_of,
    sift,
)
from .bundles import (
    NEXT,
    PLACE,
    PROBES,
    UPDATES,
)
from .cells import (
    ABSENT_CELL,
    BLOCK,
    BLOCKS_MET,
    CHUNK,
    CHUNKS,
    CHUNKS_MET,
    N_BLOCKS,
    ONE,
    OPEN,
    global_cell,
)
from .jit import bare, folded, kernel
from .policy import CHUNKS_SEEN, MESSAGE_SAMPLE, SINCE, adapt, learn_passing
from .simd import count_bits, cycles, lowest_bit
from .touched import by_tile, replay_touched

OWED = 4096
DOUBTS = 4096  # that are decided together; a message has at most BLOCK of them in a block


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


@folded
def _scan(ix, b, near, live, q, due, unsure, muted, patience, sampled, codes, n, doubts, edges, n_doubts, owed, n_owed):
    """What a message finds in the chunks ``near`` of block ``b``; returns the counts as :func:`sift` does."""
    while near != 0:
        chunk = b * CHUNKS + lowest_bit(near)
        near &= near - ONE
        found, certain = lies_inside(ix, chunk, ix.masks[chunk, OPEN], live, q, unsure)
        if found == 0:
            n_owed = owe(ix.debt, chunk, patience, owed, n_owed)
            continue
        if muted.shape[0]:
            found &= ~muted[chunk]
        n, n_doubts, n_owed = sift(
            ix, chunk, found, certain, live, q, due, unsure, sampled, codes, n, doubts, edges, n_doubts, owed, n_owed
        )
    return n, n_doubts, n_owed


@bare
def _decide(ix, first, start, of, doubts, edges, n_doubts, pairs, n, world):
    """The pairs of doubtful entries that hold, of messages ``of`` behind ``start`` in a batch from ``first`` on."""
    left = decide(ix, start, of, n_doubts, doubts, edges, world)
    for i in range(left):
        pairs[n + i] = pair(start - first + of[i], np.int64(doubts[i]), world)
    return n + left


@kernel
def _match_blocks(ix, first, last, skip, muted, owed, kept, filled, spent, world, rooms):
    """The matches of messages first..last in the blocks, into ``kept``; returns it anew, and how many chunks are owed.

    ``filled`` gets the numbers of codes, runs and pairs.
    """
    codes, runs, pairs = kept
    cells, lives, bytes_of, unsure, met, queue, sorted_queue, doubts, edges, of = rooms
    blocks = ix.count[N_BLOCKS]
    n_codes = n_runs = n_pairs = n_owed = np.int64(0)
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
        chunks_met = sampled_chunks = n_doubts = np.int64(0)
        before = np.int64(-1)
        runs = room_for(runs, n_runs, 2 * queued)
        for i in range(queued):
            b, j = sorted_queue[i] >> 32, sorted_queue[i] & 0xFFFFFFFF
            m = start + j
            if b != before:
                before = b
                if counts[b] < queued:
                    ask_for_block(ix, sorted_queue[counts[b]] >> 32)
            near = look_into(ix, b, m, cells[j], q, due, lives, world)
            if near == 0:
                continue
            sampled = m % MESSAGE_SAMPLE == 0
            chunks_met += count_bits(near)
            if sampled:
                sampled_chunks += count_bits(near)
            if n_codes + BLOCK + CHUNK > codes.shape[0]:
                codes = room_for(codes, n_codes, BLOCK + CHUNK)
            if n_doubts + BLOCK > DOUBTS:
                clock = cycles()
                pairs = room_for(pairs, n_pairs, n_doubts)
                n_pairs = _decide(ix, first, start, of, doubts, edges, n_doubts, pairs, n_pairs, world)
                n_doubts = np.int64(0)
                spent[POST] += np.float64(cycles() - clock)
            n, doubted = n_codes, n_doubts
            n_codes, n_doubts, n_owed = _scan(
                ix,
                b,
                near,
                lives,
                q,
                due,
                unsure,
                muted,
                patience,
                sampled,
                codes,
                n_codes,
                doubts,
                edges,
                n_doubts,
                owed,
                n_owed,
            )
            for d in range(doubted, n_doubts):
                of[d] = j
            if n_codes > n:
                runs[n_runs], runs[n_runs + 1] = m - first, n
                n_runs += 2
        pairs = room_for(pairs, n_pairs, n_doubts)
        n_pairs = _decide(ix, first, start, of, doubts, edges, n_doubts, pairs, n_pairs, world)
        ix.count[CHUNKS_MET] += chunks_met
        ix.seen[ix.slot_attribute.shape[0], CHUNKS_SEEN] += MESSAGE_SAMPLE * sampled_chunks
        start = stop
    filled[0], filled[1], filled[2] = n_codes, n_runs, n_pairs
    return (codes, runs, pairs), n_owed


# -- batches ---------------------------------------------------------------------------------------------------


@bare
def _mute(ix, touched, muted, on, world):
    """Take the clauses of touched contexts out of what blocks return, or back."""
    meta = world.clauses.meta
    for c in range(touched.shape[0]):
        if not touched[c]:
            continue
        k = np.int64(world.contexts.head[c])
        while k >= 0:
            place = np.int64(meta[k, PLACE])
            if place >= 0:
                muted[place >> 5] = muted[place >> 5] | ONE << np.uint32(place & 31) if on else np.uint32(0)
            k = np.int64(meta[k, NEXT])


@kernel
def replay(
    ix, shard, shards, runs_of_log, updates, skip, serial, profiles, world, room, out, kept, batches, tiled, spent
):
    """As :func:`tamis.kernels.minibatch.replay`: the index itself finds the minibatches. Nobody must be at the root."""
    whole = cycles()
    n_messages, n_updates = world.messages.value.shape[0], updates[0].shape[0]
    contexts = world.contexts.value.shape[0]
    ends = np.zeros(n_messages, np.int64)
    n_out = np.int64(0)
    slots = max(1, ix.slot_attribute.shape[0])
    owed = np.empty(OWED, np.int64)
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
        np.empty(DOUBTS, np.int32),
        np.empty(DOUBTS, np.uint64),
        np.empty(DOUBTS, np.int32),
    )
    filled = np.zeros(3, np.int64)
    cursor = np.zeros(2, np.int64)
    tiles, tile_bits, touched = np.zeros(0, np.int64), np.int64(0), np.zeros(0, np.uint8)
    first = u_first = np.int64(0)
    for b in range(batches.shape[0]):
        last, u_last = batches[b, 0], batches[b, 2]
        ix.count[UPDATES] += u_last - u_first
        clock = cycles()
        if u_last > u_first:
            tiles, tile_bits, touched = by_tile(
                cursor, u_first, u_last, first, shard, shards, runs_of_log, updates, contexts, tiled
            )
            _mute(ix, touched, muted, True, world)
            now = cycles()
            spent[TOUCHED] += np.float64(now - clock)
            clock = now
        deciding = spent[POST]
        kept, n_owed = _match_blocks(ix, first, last, skip, muted, owed, kept, filled, spent, world, rooms)
        now = cycles()
        spent[PROBE] += np.float64(now - clock) - (spent[POST] - deciding)
        clock = now
        codes, runs, pairs = kept
        n = filled[2]
        if u_last > u_first:
            _mute(ix, touched, muted, False, world)
            pairs, n = replay_touched(ix, first, last, tiles, tile_bits, tiled, skip, pairs, n, world)
            kept = (codes, runs, pairs)
        for i in range(n_owed):
            deescalate(ix, owed[i], world)
        adapt(ix)
        now = cycles()
        spent[TOUCHED] += np.float64(now - clock)
        clock = now
        out, n_out = settle(
            codes, filled[0], runs, filled[1], pairs, n, (first, last), serial, profiles, out, n_out, ends
        )
        spent[ORDER] += np.float64(cycles() - clock)
        first, u_first = last, u_last
    spent[TOTAL] += np.float64(cycles() - whole)
    return out[:n_out], ends, kept
