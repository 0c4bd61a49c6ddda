"""NOINDEX: no index at all, every clause is looked at (paper 000, Figure 3), as fast as a scan can be.

Bounds lie in one float32 row per slot, rounded outward, so one block of a row is compared with SIMD while it is in the
cache; the two most selective slots are tested for all entries of a block, the others only for what is left. The
doubles decide where float32 cannot. An update stores the new bounds; there is no slack, no zone and nothing to adapt.
"""

from __future__ import annotations

import math

import numpy as np

from .bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CLOSED,
    CONSTANTS,
    CONTEXT,
    CTX,
    DEPENDS_HIGH,
    DEPENDS_LOW,
    ESCALATIONS,
    FALSE_POSITIVES,
    FIRST_PREDICATE,
    FLAGS,
    GATE_LENGTH,
    HAS_EFFECT,
    HAS_SIBLING,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    LISTENERS,
    LOW,
    LOW_CONST,
    LOW_CTX,
    N_ENTRIES,
    NONE,
    PLACE,
    PREDICATES,
    PROBES,
    PROFILE,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
)
from .cells import pin
from .jit import bare, inlined
from .postfilter import bound, holds, interval, satisfiable
from .simd import prefetch

PIECE = 512
SHUT, PLAIN, CHECKED = 0, 1, 2


@inlined
def _round_down(v):
    f = np.float32(v)
    if np.float64(f) > v:
        f = np.nextafter(f, np.float32(-np.inf))
    return f


@inlined
def _round_up(v):
    f = np.float32(v)
    if np.float64(f) < v:
        f = np.nextafter(f, np.float32(np.inf))
    return f


@bare
def _write(ix, k, e, world):
    meta = world.clauses.meta
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    is_open = satisfiable(k, world)
    if is_open:
        meta[k, FLAGS] &= ~CLOSED
    else:
        meta[k, FLAGS] |= CLOSED
    checked = row[r, PROGRAM_LENGTH] > 0 or (meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT)) != 0
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        checked = checked or ix.attribute_slot[world.templates.predicate[p, ATTRIBUTE]] < 0
    for s in range(ix.slot_attribute.shape[0]):
        sides, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
        if sides == 0 or math.isnan(low):
            # NaN bounds: no constraint, also none on presence.
            ix.low[s, e], ix.high[s, e] = np.nan, np.nan
        else:
            ix.low[s, e], ix.high[s, e] = _round_down(low), _round_up(high)
    ix.plain[e] = SHUT if not is_open else CHECKED if checked else PLAIN
    ix.clause[e] = k
    ix.profile[e] = meta[k, PROFILE]
    meta[k, PLACE] = e


@bare
def insert(ix, ids, first, world):
    """Append clauses ids[first:]; returns how far it came before the room ran out."""
    for i in range(first, ids.shape[0]):
        e = ix.count[N_ENTRIES]
        if e == ix.clause.shape[0]:
            return i
        ix.count[N_ENTRIES] += 1
        k = np.int64(ids[i])
        _write(ix, k, e, world)
        meta = world.clauses.meta
        if meta[k, CONTEXT] >= 0:
            ix.count[LISTENERS] += 1
            row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
            pin(world.contexts, np.int64(meta[k, CONTEXT]), row[r, DEPENDS_LOW], row[r, DEPENDS_HIGH])
    return ids.shape[0]


@bare
def remove(ix, k, world):
    """Take clause ``k`` out: the last entry takes its place."""
    e = world.clauses.meta[k, PLACE]
    last = ix.count[N_ENTRIES] - 1
    ix.count[N_ENTRIES] = last
    ix.count[LISTENERS] -= np.int64(world.clauses.meta[k, CONTEXT] >= 0)
    if e != last:
        for s in range(ix.low.shape[0]):
            ix.low[s, e], ix.high[s, e] = ix.low[s, last], ix.high[s, last]
        ix.plain[e] = ix.plain[last]
        ix.clause[e] = ix.clause[last]
        ix.profile[e] = ix.profile[last]
        world.clauses.meta[ix.clause[e], PLACE] = e
    world.clauses.meta[k, PLACE] = -1


@inlined
def _ends(p, c, own, world):
    """The interval of a predicate that is the only one on its attribute."""
    pred = world.templates.predicate
    low, high = -np.inf, np.inf
    if pred[p, LOW] != NONE:
        low = bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
    if pred[p, HIGH] != NONE:
        high = bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
    return low, high


@bare
def announce(ix, k, a, world):
    """Prefetch the bounds of an entry for context attribute ``a``, guessing that the slots follow the attributes."""
    place = max(0, np.int64(world.clauses.meta[k, PLACE]))
    s = min(a, ix.slot_attribute.shape[0] - 1)
    for t in range(ix.slot_attribute.shape[0]):
        if ix.slot_attribute[t] == a:
            s = t
    prefetch(ix.low, s * ix.low.shape[1] + place)
    prefetch(ix.high, s * ix.low.shape[1] + place)
    prefetch(ix.plain, place)
    return np.int64(-1)


@bare
def escalate(ix, k, a, v, world):
    """Context attribute ``a`` of clause ``k`` changed: write the bounds that depend on it; no slack is given."""
    nothing = (np.float32(np.inf), np.float32(-np.inf))
    ix.count[ESCALATIONS] += 1
    meta = world.clauses.meta
    e = np.int64(meta[k, PLACE])
    if e < 0:
        return nothing
    row, r = world.templates.row, world.clauses.meta[k, TEMPLATE]
    pred = world.templates.predicate
    if (
        row[r, GATE_LENGTH] == 0
        and (meta[k, FLAGS] & CLOSED) == 0
        and not math.isnan(world.contexts.value[meta[k, CONTEXT], a])
    ):
        for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
            if (
                pred[p, TRAITS] != 0
                or (pred[p, LOW] >= CTX and pred[p, LOW_CTX] == a)
                or (pred[p, HIGH] >= CTX and pred[p, HIGH_CTX] == a)
            ):
                s = ix.attribute_slot[pred[p, ATTRIBUTE]]
                if s >= 0:
                    if pred[p, TRAITS] == 0:
                        low, high = _ends(p, np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS]), world)
                    else:
                        _, low, high = interval(k, np.int64(pred[p, ATTRIBUTE]), world)
                    if math.isnan(low) or math.isnan(high):
                        _write(ix, k, e, world)
                        return nothing
                    ix.low[s, e], ix.high[s, e] = _round_down(low), _round_up(high)
    else:
        _write(ix, k, e, world)
    return nothing


@bare
def follow(ix, k, p, a, v, world):
    """As :func:`tamis.kernels.agile.follow`: a scan always follows."""
    escalate(ix, k, a, v, world)
    return True


@bare
def observe(ix, c, a, v, old, weight, world):
    """Nothing to adapt."""


@bare
def deescalate(ix, chunk, world):
    """Nothing to do: a scan is always exact."""


@bare
def probe(ix, m, world, hits, special, doubts, edges, owed, scratch):
    """All matches of message row ``m``; as :func:`tamis.kernels.blocks.probe`, without anything to deescalate."""
    slots = ix.slot_attribute.shape[0]
    flags = scratch[3].reshape(-1)
    n = n_special = 0
    tested = failed = 0
    total = ix.count[N_ENTRIES]
    words = flags[:PIECE].view(np.uint64)
    for first in range(0, total, PIECE):
        size = min(PIECE, total - first)
        plain = ix.plain[first : first + size]
        for t in range(size):
            flags[t] = plain[t] != SHUT
        for t in range(size, PIECE):
            flags[t] = 0
        for s in range(min(2, slots)):
            low, high = ix.low[s, first : first + size], ix.high[s, first : first + size]
            x = world.messages.value[m, ix.slot_attribute[s]]
            xd, xu = _round_down(x), _round_up(x)
            for t in range(size):
                flags[t] &= ((low[t] <= xd) & (xu <= high[t])) | (low[t] != low[t])
        for w in range(PIECE >> 3):
            if words[w] == 0:
                continue
            for t in range(w * 8, w * 8 + 8):
                if flags[t] == 0:
                    continue
                e = first + t
                ok = True
                certain = plain[t] == PLAIN
                for s in range(slots):
                    low, high = ix.low[s, e], ix.high[s, e]
                    if low != low:
                        continue
                    x = world.messages.value[m, ix.slot_attribute[s]]
                    if not (np.float64(low) <= x and x <= np.float64(high)):
                        ok = False
                        break
                    # The bounds are rounded outward: only beyond the next float32 is it certain.
                    certain = certain and np.float64(np.nextafter(low, np.float32(np.inf))) < x
                    certain = certain and x < np.float64(np.nextafter(high, np.float32(-np.inf)))
                if not ok:
                    continue
                if not certain:
                    tested += 1
                    if not holds(np.int64(ix.clause[e]), m, world):
                        failed += 1
                        continue
                if plain[t] == CHECKED:
                    special[n_special] = ix.clause[e]
                    n_special += 1
                else:
                    hits[n] = ix.profile[e]
                    n += 1
    ix.count[PROBES] += 1
    ix.count[CANDIDATES] += tested
    ix.count[FALSE_POSITIVES] += failed
    return n, n_special, 0


@bare
def size(ix):
    """A scan meets no blocks."""
    return 0


@bare
def check(ix, ids, world):
    """Verify that every live clause has its place and its bounds; (code, clause, slot) as ``blocks.check``."""
    if ix.count[N_ENTRIES] != ids.shape[0]:
        return 1, -1, -1
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        e = world.clauses.meta[k, PLACE]
        if e < 0 or ix.clause[e] != k or ix.profile[e] != world.clauses.meta[k, PROFILE]:
            return 3, k, -1
        if satisfiable(k, world) != (ix.plain[e] != SHUT):
            return 5, k, -1
        if ix.plain[e] == SHUT:
            continue
        for s in range(ix.slot_attribute.shape[0]):
            sides, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
            if sides == 0:
                if ix.low[s, e] == ix.low[s, e]:
                    return 6, k, s
            elif not (ix.low[s, e] <= low and ix.high[s, e] >= high):
                return 6, k, s
    return 0, -1, -1
