"""Contexts that a batch touches: their updates sorted by context, and their clauses matched version by version.

Of contexts that nobody updates in a batch all messages see the same values, in whatever order they come. The others are
*touched*: an index is asked as if they were not there, and :func:`replay_touched` matches their clauses the other way
round. The hull of all versions of a clause's bounds finds messages in a list sorted by one attribute, and each is
tested with the version that it has to see. Only then is the index told, once per value and batch, of the last version.

Updates are sorted in two passes: into *tiles* of neighbouring contexts, for the whole batch, then a tile at a time,
just before its contexts are matched. A tile's updates fit into the cache, however many the batch has.
"""

from __future__ import annotations

import numpy as np

from .batch import pair, room_for, sort_by_key
from .bundles import (
    ATTRIBUTE,
    COMPUTED,
    CONST,
    CONSTANTS,
    CTX,
    FIRST_PREDICATE,
    GATE_LENGTH,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    HIGH_STRICT,
    LOW,
    LOW_CONST,
    LOW_CTX,
    LOW_STRICT,
    META_COLUMNS,
    NEXT,
    NONE,
    OUTER,
    PINNED,
    PLACE,
    PREDICATES,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
    WATCHED,
)
from .cells import OUT
from .jit import bare, inlined, kernel
from .policy import SAMPLE
from .postfilter import constant, holds
from .process import MESSAGE, announce, followed, moved, observe
from .root import draw
from .simd import between, lowest_bit, prefetch

ONE64, LOW32 = np.uint64(1), np.uint64(0xFFFFFFFF)
EIGHT = 8
# A tile has 2**6 to 2**14 contexts, and about 2**15 updates: 16 bytes each.
FEWEST, MOST, FULL = 6, 14, 15
# Entries of a plan's ``of``: the template it was made for, its predicates, whether these decide.
TEMPLATE_OF, PREDICATES_OF, DECIDES = range(3)


# -- updates by context ----------------------------------------------------------------------------------------


@kernel
def by_tile(cursor, first, last, since, shard, shards, runs, updates, contexts, room):
    """Updates first..last in tiles of contexts, in their order, into ``room``.

    cursor   int64 [2]: the run of the log that update ``first`` is in or behind, and the messages before it; moved on
    since    the message that the batch begins with
    room     of each update what (message << 44 | attribute << 32 | context), value and residual

    Returns (where each tile begins, int64 [tiles + 1]; the bits of a context's number within its tile; whether each
    context is touched, uint8 [contexts]).
    """
    u_context, u_attribute, u_value, u_residual = updates
    what, value, residual = room
    bits = np.int64(MOST)
    while bits > FEWEST and (last - first) << bits > contexts << FULL:
        bits -= 1
    tiles = (contexts >> bits) + 1
    at = np.zeros(tiles + 2, np.int64)
    touched = np.zeros(contexts, np.uint8)
    for u in range(first, last):
        if u_attribute[u] >= 0 and (shards == 1 or u_context[u] % shards == shard):
            at[(u_context[u] >> bits) + 2] += 1
    for t in range(tiles):
        at[t + 2] += at[t + 1]
    i, m = cursor[0], cursor[1]
    while i < runs.shape[0]:
        if runs[i, 0] == MESSAGE:
            m = runs[i, 2]
            i += 1
            continue
        moment = np.uint64(m - since) << np.uint64(44)
        for u in range(max(first, runs[i, 1]), min(last, runs[i, 2])):
            if u_attribute[u] >= 0 and (shards == 1 or u_context[u] % shards == shard):
                c = np.uint64(u_context[u])
                t = (c >> np.uint64(bits)) + ONE64
                j = at[t]
                at[t] += 1
                what[j] = moment | np.uint64(u_attribute[u]) << np.uint64(32) | c
                value[j] = u_value[u]
                touched[c] = 1
                if residual.shape[0]:
                    residual[j] = u_residual[u] if u_residual.shape[0] else 0
        if runs[i, 2] >= last:
            break
        i += 1
    cursor[0], cursor[1] = i, m
    return at[: tiles + 1], bits, touched


@bare
def _sort_tile(first, last, base, tiled, begin, sorted_tile):
    """Updates first..last, all of one tile, by context; ``begin`` gets where each context begins."""
    what, value, residual = tiled
    to_what, to_value, to_residual = sorted_tile
    for i in range(begin.shape[0]):
        begin[i] = 0
    for i in range(first, last):
        begin[(what[i] & LOW32) - base + np.uint64(2)] += 1
    for c in range(begin.shape[0] - 2):
        begin[c + 2] += begin[c + 1]
    for i in range(first, last):
        c = (what[i] & LOW32) - base + ONE64
        j = begin[c]
        begin[c] += 1
        to_what[j], to_value[j] = what[i], value[i]
        if residual.shape[0]:
            to_residual[j] = residual[i]


@inlined
def _attribute(what):
    return np.int64(what >> np.uint64(32) & np.uint64(0xFFF))


@bare
def _sample(ix, first, last, total, base, begin, sorted_tile, world):
    """Let the policy see one update in so many, before the contexts of a tile move; first..last of ``total``."""
    what, value, _ = sorted_tile
    step = max(np.int64(SAMPLE), total >> 10)
    for at in range((first + step - 1) // step * step, last, step):
        u = at - first
        c, a = np.int64(what[u] & LOW32), _attribute(what[u])
        # Its step is from the version before.
        old = world.contexts.value[c, a]
        for i in range(begin[c - base], u):
            old = value[i] if _attribute(what[i]) == a else old
        observe(ix, c, a, value[u], old, step, world)


# -- clauses on touched contexts -------------------------------------------------------------------------------


@bare
def _sort_messages(world, a, b, first, last, skip, keys, second, rows):
    """The messages first..last that have attribute ``a``, sorted by it, and their values of ``b``; returns how many.

    Behind the last stand seven that lie nowhere.
    """
    n = 0
    for m in range(first, last):
        x = world.messages.value[m, a]
        if not skip[m] and x == x:
            keys[n], rows[n] = x, m - first
            n += 1
    sort_by_key(keys, rows, n)
    for i in range(n):
        second[i] = world.messages.value[first + rows[i], b]
    for i in range(n, n + EIGHT - 1):
        keys[i] = second[i] = np.nan
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
        if pred[q, ATTRIBUTE] == a and not (pred[q, LOW] == NONE and pred[q, HIGH] == NONE):
            p = np.int64(q)
            break
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
def _make_plan(k, plan, world):
    """Read the intervals of clause ``k`` once for all its versions: each end is a context value, or 0, plus a constant.

    A plan holds for all clauses of a template that have no constants of their own.
    """
    of, at, base, off, strict = plan
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    r, own = np.int64(meta[k, TEMPLATE]), np.int64(meta[k, CONSTANTS])
    if of[TEMPLATE_OF] == r:
        return
    wide = world.contexts.residual.shape[0] > 0 or world.messages.residual.shape[0] > 0
    decides = row[r, PROGRAM_LENGTH] == 0 and row[r, GATE_LENGTH] == 0 and not wide
    shared = True
    n = 0
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if pred[p, TRAITS] & OUTER or (pred[p, LOW] == NONE and pred[p, HIGH] == NONE):
            continue
        if pred[p, LOW] == COMPUTED or pred[p, HIGH] == COMPUTED or wide:
            decides = False
            continue
        at[n] = pred[p, ATTRIBUTE]
        strict[n] = pred[p, LOW_STRICT] | pred[p, HIGH_STRICT] << 1
        for side in range(2):
            kind = pred[p, LOW] if side == 0 else pred[p, HIGH]
            which = pred[p, LOW_CONST] if side == 0 else pred[p, HIGH_CONST]
            base[n, side] = -1
            if kind == NONE:
                off[n, side] = -np.inf if side == 0 else np.inf
                continue
            if kind != CONST:
                base[n, side] = pred[p, LOW_CTX] if side == 0 else pred[p, HIGH_CTX]
            off[n, side] = 0.0
            if kind != CTX:
                off[n, side] = constant(which, own, world)
                shared = shared and which < 0
        n += 1
    of[TEMPLATE_OF] = r if shared else -1
    of[PREDICATES_OF], of[DECIDES] = n, decides


@bare
def _version_holds(k, m, c, plan, world):
    """As :func:`tamis.kernels.postfilter.holds`, of the version that context ``c`` has now."""
    of, at, base, off, strict = plan
    message, value = world.messages.value, world.contexts.value
    for p in range(of[PREDICATES_OF]):
        x = message[m, at[p]]
        low, high = off[p, 0], off[p, 1]
        if base[p, 0] >= 0:
            low += value[c, base[p, 0]]
        if base[p, 1] >= 0:
            high += value[c, base[p, 1]]
        if not (low <= x and x <= high):
            return False
        if strict[p] and ((strict[p] & 1 and low == x) or (strict[p] & 2 and x == high)):
            return False
    return of[DECIDES] != 0 or holds(k, m, world)


@inlined
def _become(c, i, sorted_tile, contexts):
    """Context ``c`` becomes the version that update ``i`` makes."""
    what, value, residual = sorted_tile
    contexts.value[c, _attribute(what[i])] = value[i]
    if contexts.residual.shape[0]:
        contexts.residual[c, _attribute(what[i])] = residual[i]


@bare
def _match_touched(c, first, last, u, end, skip, index, sorted_tile, plan, pairs, n, world):
    """The pairs of all clauses on a touched context, whose updates are u..end; leaves it at its last version."""
    keys_of, keys, second, rows, n_keys, marks, row, wide = index
    what, value, _ = sorted_tile
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
                    found = between(keys, i, least, most)
                    if not free:
                        found &= between(second, i, low, high)
                    while found != 0:
                        j = np.uint64(rows[i + lowest_bit(found)])
                        marks[j >> np.uint64(6)] |= ONE64 << (j & np.uint64(63))
                        found &= found - np.uint32(1)
                    i += EIGHT
            _make_plan(k, plan, world)
            for w in range(marks.shape[0]):
                bits = marks[w]
                if bits == 0:
                    continue
                marks[w] = 0
                while bits != 0:
                    j = w * 64 + lowest_bit(bits)
                    bits &= bits - ONE64
                    while done < end and np.int64(what[done] >> np.uint64(44)) <= j:
                        _become(c, done, sorted_tile, contexts)
                        done += 1
                    if _version_holds(k, first + j, c, plan, world):
                        pairs[n] = pair(j, k, world)
                        n += 1
        k = np.int64(meta[k, NEXT])
    for i in range(done, end):
        _become(c, i, sorted_tile, contexts)
    return n


@bare
def _tell_one(ix, c, a, world):
    """The index hears of the value that attribute ``a`` of context ``c`` has now."""
    contexts = world.contexts
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
def _tell(ix, c, u, end, what, world):
    """The index hears of the last versions of context ``c``, whose updates are u..end: of each value once."""
    changed = np.uint64(0)
    for i in range(u, end):
        a = _attribute(what[i])
        if a < 64:
            changed |= ONE64 << np.uint64(a)
        else:
            _tell_one(ix, c, a, world)
    while changed != 0:
        _tell_one(ix, c, np.int64(lowest_bit(changed)), world)
        changed &= changed - ONE64


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
def _replay_some(ix, base, c, stop, first, last, begin, skip, index, sorted_tile, plan, pairs, n, world):
    """Match and tell the contexts c..stop of a tile, while there is room; returns the context that comes next."""
    while c < stop:
        u, end = begin[c - base], begin[c - base + 1]
        if u < end:
            ahead = c + 4
            if ahead < stop:
                prefetch(world.clauses.meta, max(0, np.int64(world.contexts.head[ahead])) * META_COLUMNS)
                prefetch(world.contexts.safe, ahead * world.contexts.value.shape[1] * 2)
            if n + _crowd(c, world) * (last - first) > pairs.shape[0]:
                return c, n
            n = _match_touched(c, first, last, u, end, skip, index, sorted_tile, plan, pairs, n, world)
            _tell(ix, c, u, end, sorted_tile[0], world)
        c += 1
    return c, n


@kernel
def replay_touched(ix, first, last, tiles, bits, tiled, skip, pairs, n, world):
    """Match the touched contexts, version by version, with messages first..last; then tell the index.

    ``tiles``, ``bits`` and ``tiled`` are what :func:`by_tile` gave. Returns the pairs and their number.
    """
    size, columns = last - first, world.contexts.value.shape[1]
    keys, second, rows = np.empty(size + EIGHT), np.empty(size + EIGHT), np.empty(size + EIGHT, np.int64)
    slots = ix.slot_attribute.shape[0]
    a = np.int64(ix.slot_attribute[0]) if slots else np.int64(0)
    b = np.int64(ix.slot_attribute[min(1, slots - 1)]) if slots else np.int64(0)
    n_keys = _sort_messages(world, a, b, first, last, skip, keys, second, rows)
    marks = np.zeros((size + 63) >> 6, np.uint64)
    index = ((a, b), keys, second, rows, n_keys, marks, np.empty(columns), np.zeros(columns, np.int16))
    predicates = np.int64(1)
    for r in range(world.templates.row.shape[0]):
        predicates = max(predicates, np.int64(world.templates.row[r, PREDICATES]))
    plan = (
        np.full(3, -1, np.int64),
        np.empty(predicates, np.int64),
        np.empty((predicates, 2), np.int64),
        np.empty((predicates, 2)),
        np.empty(predicates, np.int64),
    )
    n_tiles = tiles.shape[0] - 1
    longest = np.int64(0)
    for t in range(n_tiles):
        longest = max(longest, tiles[t + 1] - tiles[t])
    sorted_tile = (
        np.empty(longest, np.uint64),
        np.empty(longest),
        np.empty(longest if tiled[2].shape[0] else 0, np.int16),
    )
    begin = np.empty((np.int64(1) << bits) + 2, np.int64)
    for t in range(n_tiles):
        if tiles[t] == tiles[t + 1]:
            continue
        c = np.int64(t) << bits
        base, stop = c, min(c + (np.int64(1) << bits), np.int64(world.contexts.value.shape[0]))
        _sort_tile(tiles[t], tiles[t + 1], np.uint64(base), tiled, begin, sorted_tile)
        _sample(ix, tiles[t], tiles[t + 1], tiles[n_tiles], base, begin, sorted_tile, world)
        while True:
            c, n = _replay_some(ix, base, c, stop, first, last, begin, skip, index, sorted_tile, plan, pairs, n, world)
            if c == stop:
                break
            pairs = room_for(pairs, n, max(n, _crowd(c, world) * size))
    return pairs, n
