"""Replay of an event log: the one path. Everything else in tamis prepares its input or reads its output.

Invariant: after event i the contexts, and the matches written so far, are those of a naive filter that has seen events
0..i one at a time. A shard replays the whole log but owns only the contexts with ``context % shards == shard`` and the
clauses on them, so shards run side by side without a word between them.
"""

from __future__ import annotations

import math

import numpy as np
from numba.extending import overload

from . import blocks as _blocks
from . import catalogue as _catalogue
from . import lanes as _lanes
from . import scan as _scan
from . import strategies as _strategies
from .bundles import (
    CONTEXT,
    EFFECT,
    EFFECTS,
    FIRST_CLAUSE,
    FLAGS,
    HAS_EFFECT,
    HAS_SIBLING,
    LISTENERS,
    META_COLUMNS,
    NEXT,
    PINNED,
    PROFILE,
    TEMPLATE,
    UPDATES,
    WATCHED,
    Blocks,
    Scan,
)
from .cells import depends, narrow, release
from .jit import BARE, bare, inlined, kernel
from .policy import SAMPLE
from .postfilter import holds
from .program import run
from .root import draw, draw_all
from .simd import prefetch
from .taxonomy import mark

MESSAGE, UPDATE = 0, 1
TILE = 256  # updates that are told to the index together
AHEAD = 4  # of them that are looked ahead; processors drop requests for memory beyond a few dozen
FAR_AHEAD = 32  # updates that are looked ahead when there is nothing to do but to store them
REDRAW = 2  # updates per context from which on drawing all of them is cheaper


# The type of an index bundle says which kernels work on it, so that only those of the index in use get compiled.


def _kernels_of(bundle):
    return {Blocks: _blocks, Scan: _scan}.get(bundle.record, _strategies)


def _probe(ix, m, world, hits, special, doubts, edges, owed, scratch):
    """``probe`` of the index."""


def _escalate(ix, k, a, v, world):
    """``escalate`` of the index."""


def _follow(ix, k, p, a, v, world):
    """``follow`` of the index."""


def observe(ix, c, a, v, old, weight, world):
    """``observe`` of the index."""


def _deescalate(ix, chunk, world):
    """``deescalate`` of the index."""


def announce(ix, k, a, world):
    """``announce`` of the index."""


def _size(ix):
    """``size`` of the index."""


@overload(_size, jit_options=BARE)
def _size_of(ix):
    return _kernels_of(ix).size.py_func


@overload(announce, jit_options=BARE)
def _announce_of(ix, k, a, world):
    return _kernels_of(ix).announce.py_func


@overload(_probe, jit_options=BARE)
def _probe_of(ix, m, world, hits, special, doubts, edges, owed, scratch):
    return _kernels_of(ix).probe.py_func


@overload(_escalate, jit_options=BARE)
def _escalate_of(ix, k, a, v, world):
    return _kernels_of(ix).escalate.py_func


@overload(_follow, jit_options=BARE)
def _follow_of(ix, k, p, a, v, world):
    return _kernels_of(ix).follow.py_func


@overload(observe, jit_options=BARE)
def _observe_of(ix, c, a, v, old, weight, world):
    return _kernels_of(ix).observe.py_func


@overload(_deescalate, jit_options=BARE)
def _deescalate_of(ix, chunk, world):
    return _kernels_of(ix).deescalate.py_func


@bare
def moved(ix, c, a, v, world):
    """A watched value left its safe range: tell the index about every clause that depends on it."""
    contexts = world.contexts
    low, high = np.float32(-np.inf), np.float32(np.inf)
    k = np.int64(contexts.head[c])
    release(contexts, c, a)
    while k >= 0:
        if depends(world.templates.row, world.clauses.meta[k, TEMPLATE], a):
            lo, hi = _escalate(ix, k, a, v, world)
            low, high = max(low, lo), min(high, hi)
        k = np.int64(world.clauses.meta[k, NEXT])
    narrow(contexts, c, a, low, high)


@inlined
def followed(ix, k, p, a, v, world):
    """Whether clause ``k``, of which ``announce`` said ``p``, and all behind it on its context follow to ``v``."""
    meta = world.clauses.meta
    while k >= 0:
        if depends(world.templates.row, meta[k, TEMPLATE], a) and not _follow(ix, k, p, a, v, world):
            return False
        k = np.int64(meta[k, NEXT])
        if k >= 0:
            p = announce(ix, k, a, world)
    return True


@inlined
def set_value(ix, cx, c, a, v, r, world):
    """Context ``c``, attribute ``a`` := ``v`` (with residual ``r``)."""
    contexts = world.contexts
    contexts.value[c, a] = v
    draw(c, a, v, ix.strips, ix.strip, ix.sketch)
    if contexts.residual.shape[0]:
        contexts.residual[c, a] = r
    if contexts.watch[c, a >> 3, WATCHED] >> (a & 7) & 1 and not (
        contexts.safe[c, a, 0] <= v and v <= contexts.safe[c, a, 1]
    ):
        moved(ix, c, a, v, world)
    if cx.count[_catalogue.LISTENERS]:
        _catalogue.hear(cx, c, a, world)


@bare
def set_one(ix, cx, c, a, v, r, world):
    """``set_value`` as a function of its own, for callers from outside."""
    set_value(ix, cx, c, a, v, r, world)


@bare
def _apply(ix, cx, first, count, m, c, profiles, world):
    """Run effects first..first+count on context ``c``; returns how many had no value."""
    failed = 0
    for e in range(first, first + count):
        row = profiles.effect
        _, v, r = run(row[e, 1], row[e, 2], m, c, np.int64(row[e, 3]), world)
        if math.isnan(v):
            failed += 1
        else:
            set_value(ix, cx, c, np.int64(row[e, 0]), v, np.int64(r), world)
    return failed


@bare
def _sort_by_order(codes, n, order):
    """Shell sort of profile codes by subscription order."""
    gap = n >> 1
    while gap > 0:
        for i in range(gap, n):
            p = codes[i]
            j = i
            while j >= gap and order[codes[j - gap]] > order[p]:
                codes[j] = codes[j - gap]
                j -= gap
            codes[j] = p
        gap >>= 1


@inlined
def _put(c, a, u, u_value, u_residual, value, residual):
    """Update ``u`` becomes the value of context ``c``, attribute ``a``."""
    value[c, a] = u_value[u]
    if residual.shape[0]:
        residual[c, a] = u_residual[u] if u_residual.shape[0] else 0


@bare
def _hear(ix, first, last, shard, shards, updates, heard, world):
    """Store updates first..last; those of watched values into column 0 of ``heard``. Returns how many."""
    u_context, u_attribute, u_value, u_residual = updates
    value, residual = world.contexts.value, world.contexts.residual
    watch, safe = world.contexts.watch, world.contexts.safe
    strips, strip, sketch = ix.strips, ix.strip, ix.sketch
    columns = np.uint64(value.shape[1])
    n = 0
    for u in range(first, last):
        if u_attribute[u] < 0 or (shards > 1 and u_context[u] % shards != shard):
            continue
        # Unsigned: an index that cannot be negative needs no test for it.
        c, a = np.uint64(u_context[u]), np.uint64(u_attribute[u])
        _put(c, a, u, u_value, u_residual, value, residual)
        draw(c, a, u_value[u], strips, strip, sketch)
        byte, bit = a >> np.uint64(3), a & np.uint64(7)
        if watch[c, byte, WATCHED] >> bit & 1:
            if not watch[c, byte, PINNED] >> bit & 1:
                prefetch(safe, np.int64(c * columns + a) * 2)
            heard[n, 0] = u
            n += 1
    return n


@bare
def _store(ix, first, last, shard, shards, updates, world):
    """Store updates first..last, of which no entry has to hear; after very many the sketch is drawn anew as a whole."""
    u_context, u_attribute, u_value, u_residual = updates
    value, residual = world.contexts.value, world.contexts.residual
    strips, strip, sketch = ix.strips, ix.strip, ix.sketch
    drawn = last - first < REDRAW * value.shape[0]
    for u in range(first, last):
        ahead = min(u + FAR_AHEAD, last - 1)
        prefetch(value, u_context[ahead] * value.shape[1] + np.int64(u_attribute[ahead]))
        if u_attribute[u] < 0 or (shards > 1 and u_context[u] % shards != shard):
            continue
        c, a = np.uint64(u_context[u]), np.uint64(u_attribute[u])
        _put(c, a, u, u_value, u_residual, value, residual)
        if drawn:
            draw(c, a, u_value[u], strips, strip, sketch)
    if not drawn:
        draw_all(ix, world.contexts)


@bare
def _update(ix, first, last, shard, shards, updates, heard, world):
    """Updates first..last of a log, of which no message sees a part.

    A tile of them is stored, then the index is told of the values that left their safe range, as they are by then.
    Updates jump about in memory: what each needs is asked for some updates ahead, so that their cache misses overlap.
    """
    ix.count[UPDATES] += last - first
    if ix.count[LISTENERS] == 0:
        _store(ix, first, last, shard, shards, updates, world)
        return
    u_context, u_attribute, u_value, _ = updates
    contexts, clauses = world.contexts, world.clauses
    value, safe, watch, head = contexts.value, contexts.safe, contexts.watch, contexts.head
    step = max(SAMPLE, (last - first) >> 6)
    sample = first + ((last - first - ix.count[UPDATES]) & (SAMPLE - 1))
    for start in range(first, last, TILE):
        stop = min(last, start + TILE)
        if start <= sample and sample < stop:
            if u_attribute[sample] >= 0 and u_context[sample] % shards == shard:
                c, a = u_context[sample], np.int64(u_attribute[sample])
                observe(ix, c, a, u_value[sample], value[c, a], step, world)
            sample += step
        n_heard = _hear(ix, start, stop, shard, shards, updates, heard, world)
        n = 0
        for i in range(n_heard):
            u = heard[i, 0]
            c, a, v = u_context[u], np.int64(u_attribute[u]), u_value[u]
            heard[n, 0] = u
            if watch[c, a >> 3, PINNED] >> (a & 7) & 1 or not (safe[c, a, 0] <= v and v <= safe[c, a, 1]):
                n += 1
                prefetch(head, c)
        for i in range(-2 * AHEAD, n):
            if i + 2 * AHEAD < n:
                k = np.int64(head[u_context[heard[i + 2 * AHEAD, 0]]])
                prefetch(clauses.meta, max(0, k) * META_COLUMNS)
            if i >= -AHEAD and i + AHEAD < n:
                u = heard[i + AHEAD, 0]
                if head[u_context[u]] >= 0:
                    heard[i + AHEAD, 1] = announce(ix, np.int64(head[u_context[u]]), np.int64(u_attribute[u]), world)
            if i >= 0:
                c, a = u_context[heard[i, 0]], np.int64(u_attribute[heard[i, 0]])
                v = value[c, a]
                if watch[c, a >> 3, PINNED] >> (a & 7) & 1:
                    if not followed(ix, np.int64(head[c]), heard[i, 1], a, v, world):
                        moved(ix, c, a, v, world)
                elif not (safe[c, a, 0] <= v and v <= safe[c, a, 1]):
                    moved(ix, c, a, v, world)


@kernel
def replay(ix, cx, shard, shards, runs, updates, skip, tracks, conditions, tracked, serial, profiles, world, room):
    """Replay the runs of messages and updates of a log on one shard.

    runs     int64 [n, 3]: MESSAGE or UPDATE, first, last row
    updates  (context int64, attribute int32 (-1: skip), value float64, residual int16 or [0])
    skip     uint8 [messages]: rejected messages
    tracks   int32 [rules, 4]: first and number of effects, first and number of conditions
    conditions int32 [n, 2]: first instruction and length; a rule fires when one of its conditions holds
    tracked  int32 [rules, messages]: the tracked context of each message, -1 for none
    serial   the serial number of message row 0
    room     number of live clauses of the shard (the most that can match)

    Returns (profile codes, end of each message's codes, [message, profile code or -1 - rule] of failed effects).
    """
    n_messages = world.messages.value.shape[0]
    ends = np.zeros(n_messages, np.int64)
    out = np.empty(max(256, min(room * n_messages, 1 << 16)), np.int32)
    n_out = 0
    failures = np.empty((16, 2), np.int64)
    n_failures = 0
    hits = np.empty(room + 64, np.int32)
    special = np.empty(room + 64, np.int32)
    doubts = np.empty(room + 64, np.int32)
    edges = np.empty(room + 64, np.uint64)
    owed = np.empty(64, np.int64)
    heard = np.empty((TILE + 1, 2), np.int64)
    slots = max(1, ix.slot_attribute.shape[0])
    scratch = _blocks.scratch_for(slots, _size(ix), ix.strip.shape[0], world.contexts.value.shape[1])
    for i in range(runs.shape[0]):
        first, last = runs[i, 1], runs[i, 2]
        if runs[i, 0] == UPDATE:
            _update(ix, first, last, shard, shards, updates, heard, world)
            if cx.count[_catalogue.LISTENERS]:
                _catalogue.hear_all(cx, first, last, shard, shards, updates, world)
            continue
        for m in range(first, last):
            if skip[m]:
                ends[m] = n_out
                continue
            if world.graphs.shape[0]:
                mark(world.graphs, world.messages, world.values, m)
            n, n_special, n_owed = _probe(ix, m, world, hits, special, doubts, edges, owed, scratch)
            if cx.count[_catalogue.N_ENTRIES]:
                n, n_special = _lanes.probe(cx, m, world, hits, special, n, n_special)
            n_effects = np.int64(0)
            for j in range(n_special):
                k = special[j]
                p, traits = world.clauses.meta[k, PROFILE], world.clauses.meta[k, FLAGS]
                if traits & HAS_SIBLING:
                    if profiles.seen[p] == serial + m:
                        continue
                    profiles.seen[p] = serial + m
                hits[n] = p
                n += 1
                if traits & HAS_EFFECT:
                    special[n_effects] = p  # reuses what has been read
                    n_effects += 1
            if n_out + n > out.shape[0]:
                bigger = np.empty(2 * (n_out + n), np.int32)
                for j in range(n_out):  # assigning a slice would compile NumPy's rules of broadcasting
                    bigger[j] = out[j]
                out = bigger
            for j in range(n):
                out[n_out + j] = hits[j]
            n_out += n
            ends[m] = n_out
            for j in range(n_effects + tracks.shape[0]):
                if j == 0:
                    _sort_by_order(special, n_effects, profiles.order)
                if j < n_effects:
                    owner = np.int64(special[j])
                    c = np.int64(world.clauses.meta[profiles.row[owner, FIRST_CLAUSE], CONTEXT])
                    first_effect, effects = profiles.row[owner, EFFECT], profiles.row[owner, EFFECTS]
                else:
                    rule = j - n_effects
                    owner = np.int64(-1 - rule)
                    c = np.int64(tracked[rule, m])
                    if c < 0 or (shards > 1 and c % shards != shard):
                        continue
                    fires = False
                    for q in range(tracks[rule, 2], tracks[rule, 2] + tracks[rule, 3]):
                        fires = fires or run(conditions[q, 0], conditions[q, 1], m, c, np.int64(0), world)[0]
                    if not fires:
                        continue
                    first_effect, effects = tracks[rule, 0], tracks[rule, 1]
                for _ in range(_apply(ix, cx, first_effect, effects, m, c, profiles, world)):
                    if n_failures == failures.shape[0]:
                        more = np.empty((2 * n_failures, 2), np.int64)
                        for q in range(n_failures):
                            more[q, 0], more[q, 1] = failures[q, 0], failures[q, 1]
                        failures = more
                    failures[n_failures, 0], failures[n_failures, 1] = m, owner
                    n_failures += 1
            for j in range(n_owed):
                _deescalate(ix, owed[j], world)
    return out[:n_out], ends, failures[:n_failures]


@bare
def recall(clauses, skip, out, world):
    """Write the message rows that one of the clauses matches to ``out``; returns how many."""
    n = 0
    for m in range(skip.shape[0]):
        if skip[m]:
            continue
        if world.graphs.shape[0]:
            mark(world.graphs, world.messages, world.values, m)
        for i in range(clauses.shape[0]):
            if holds(clauses[i], m, world):
                out[n] = m
                n += 1
                break
    return n


@kernel
def link(ids, contexts, clauses):
    """Enter clauses into the lists of their contexts."""
    for i in range(ids.shape[0]):
        k = ids[i]
        c = clauses.meta[k, CONTEXT]
        if c >= 0:
            clauses.meta[k, NEXT] = contexts.head[c]
            contexts.head[c] = k


@kernel
def unlink(k, contexts, clauses):
    """Take a clause out of the list of its context; the last one out stops the watching."""
    c = clauses.meta[k, CONTEXT]
    if c < 0:
        return
    if contexts.head[c] == k:
        contexts.head[c] = clauses.meta[k, NEXT]
    else:
        j = contexts.head[c]
        while clauses.meta[j, NEXT] != k:
            j = clauses.meta[j, NEXT]
        clauses.meta[j, NEXT] = clauses.meta[k, NEXT]
    if contexts.head[c] < 0:
        for a in range(contexts.value.shape[1]):
            release(contexts, c, a)


@bare
def count_linked(contexts, clauses):
    """The number of clauses in the lists of all contexts, -1 if a list is broken."""
    n = 0
    for c in range(contexts.head.shape[0]):
        k = contexts.head[c]
        while k >= 0:
            if clauses.meta[k, CONTEXT] != c or n > clauses.meta.shape[0]:
                return -1
            n += 1
            k = clauses.meta[k, NEXT]
    return n
