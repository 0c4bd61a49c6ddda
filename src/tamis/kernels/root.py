"""The root: entries that have escalated all the way, tested by the values of their contexts (paper 000, section 5).

When contexts move so often that keeping entries in their places costs more than it saves, all clauses of a template
leave the blocks: an update is then a plain store, of the value and of one byte. The *sketch* holds that byte for some
attributes of every context, its *strips*; 32 contexts lie side by side, so one instruction tests a bound of 32 of them:

    sketch   [context // 32, strip, context % 32]   the cell of the context's value, 1..253, or 0 for no value
    strips   [context attribute]                    its strip, -1 for none
    strip    [strip, 2]                             base and scale of its cells
    root     [family, 2]                            the template, and its first row in ``hull``
    hull     [predicate, 4]                         least and largest constant at the low end, and at the high end
    tenant   [family, context]                      the profile of the only clause there, or NOBODY, or SEVERAL

A bound ``x >= ctx.a + constant`` says of a message ``x`` which values of ``ctx.a`` come into question, the same ones
for all clauses of a template, as far as their constants agree (else the hull of the constants serves). Cells are
monotone, so the sketch never loses a match; who passes it is tested by the values themselves.

Invariants (verified by :func:`check`): the byte of every context of an entry is the cell of its value; the hull
contains the constants of every entry; tenants are right.

Complexity for C contexts: probe O(C / 32 * strips used + contexts that pass), update O(1), enter and leave O(1).
"""

from __future__ import annotations

import math

import numpy as np

from .bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CONST,
    CONSTANTS,
    CONTEXT,
    CTX,
    CTX_PLUS,
    FALSE_POSITIVES,
    FIRST_PREDICATE,
    FLAGS,
    GATE_LENGTH,
    HAS_EFFECT,
    HAS_SIBLING,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    HIGH_STRICT,
    LOW,
    LOW_CONST,
    LOW_CTX,
    LOW_STRICT,
    NEXT,
    NONE,
    PLACE,
    PREDICATES,
    PROFILE,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
)
from .cells import AT_ROOT, N_CONTEXTS, N_ROOT, OUT, ROOT_MET, release
from .jit import bare, inlined, kernel
from .postfilter import constant, holds
from .simd import lowest_bit, prefetch, row_within, within

NOBODY, SEVERAL = -1, -2
LANES = 32
TILE = 256  # groups of 32 contexts that are scanned before those that pass are looked at
WHOLE_LOW, WHOLE_HIGH = np.uint8(0), np.uint8(255)
ONE = np.uint32(1)
HUGE = 1e300  # numbers beyond this may overflow
ULPS = 2.0**-48  # how far, of the numbers involved, rounding may shift a bound


@inlined
def strip_cell(v, base, scale):
    """The cell of a context value: monotone, 0 for NaN."""
    y = (v - base) * scale + 2.0
    if y >= 253.0:
        return np.uint8(253)
    if y >= 1.0:
        return np.uint8(y)
    return np.uint8(1) if v == v else np.uint8(0)


@inlined
def draw(c, a, v, strips, strip, sketch):
    """Keep the sketch (three arrays of the index): context ``c``, attribute ``a`` became ``v``."""
    # Without a branch, as nobody can foretell it: what has no strip goes into the last byte, which belongs to nobody.
    s = np.uint64(max(0, strips[a]))
    at = ((np.uint64(c) >> np.uint64(5)) * np.uint64(strip.shape[0]) + s) << np.uint64(5) | np.uint64(c) & np.uint64(31)
    at = at if strips[a] >= 0 else np.uint64(sketch.shape[0] - 1)
    sketch[at] = strip_cell(v, strip[s, 0], strip[s, 1])


@bare
def draw_all(ix, contexts):
    """The sketch of all contexts as they stand."""
    strips, strip, sketch, value = ix.strips, ix.strip, ix.sketch, contexts.value
    for c in range(min(value.shape[0], sketch.shape[0] // (LANES * strip.shape[0]) * LANES)):
        for a in range(value.shape[1]):
            if strips[a] >= 0:
                draw(c, a, value[c, a], strips, strip, sketch)


# -- coming and going ------------------------------------------------------------------------------------------


@inlined
def family_of(ix, r):
    """The family of template ``r``, -1 if it is not at the root."""
    for i in range(ix.root.shape[0]):
        if ix.root[i, 0] == r:
            return i
    return -1


@bare
def let_loose(ids, world):
    """Clauses that go to the root: nothing has to be heard for their sake."""
    meta = world.clauses.meta
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        meta[k, PLACE] = AT_ROOT
        for a in range(world.contexts.value.shape[1]):
            release(world.contexts, np.int64(meta[k, CONTEXT]), a)


@bare
def _end(p, side, own, world):
    """The constant at one end of a predicate, as a range: nothing where there is no end, everything for NaN."""
    pred = world.templates.predicate
    kind = pred[p, LOW] if side == 0 else pred[p, HIGH]
    if kind == CTX:
        return 0.0, 0.0
    if kind != CONST and kind != CTX_PLUS:
        return np.inf, -np.inf
    value = constant(pred[p, LOW_CONST] if side == 0 else pred[p, HIGH_CONST], own, world)
    return (-np.inf, np.inf) if math.isnan(value) else (value, value)


@bare
def _settle_tenant(ix, i, c, world):
    """Find out who lives on context ``c``."""
    meta = world.clauses.meta
    found = NOBODY
    k = np.int64(world.contexts.head[c])
    while k >= 0:
        if meta[k, TEMPLATE] == ix.root[i, 0] and meta[k, PLACE] == AT_ROOT:
            alone = found == NOBODY and not meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT)
            found = np.int64(meta[k, PROFILE]) if alone else SEVERAL
        k = np.int64(meta[k, NEXT])
    ix.tenant[i, c] = found


@bare
def enter(ix, ids, world):
    """Clauses of templates at the root that are in the lists of their contexts."""
    meta, row = world.clauses.meta, world.templates.row
    for j in range(ids.shape[0]):
        k = np.int64(ids[j])
        i = family_of(ix, meta[k, TEMPLATE])
        r, own = np.int64(meta[k, TEMPLATE]), np.int64(meta[k, CONSTANTS])
        meta[k, PLACE] = AT_ROOT
        for q in range(row[r, PREDICATES]):
            for side in range(2):
                least, most = _end(np.int64(row[r, FIRST_PREDICATE]) + q, side, own, world)
                at = ix.root[i, 1] + q
                ix.hull[at, 2 * side] = min(ix.hull[at, 2 * side], least)
                ix.hull[at, 2 * side + 1] = max(ix.hull[at, 2 * side + 1], most)
        _settle_tenant(ix, i, np.int64(meta[k, CONTEXT]), world)
        ix.count[N_ROOT] += 1


@bare
def leave(ix, k, world):
    """Forget a clause at the root that is still in the list of its context."""
    meta = world.clauses.meta
    meta[k, PLACE] = OUT
    ix.count[N_ROOT] -= 1
    _settle_tenant(ix, family_of(ix, meta[k, TEMPLATE]), np.int64(meta[k, CONTEXT]), world)


# -- messages --------------------------------------------------------------------------------------------------


@kernel
def scratch_for_root(strips, attributes):
    """Room that a probe of the root works in: cells per strip; groups and contexts that pass; values per attribute."""
    return (
        np.empty((2, strips), np.uint8),
        np.empty(TILE + 1, np.uint64),
        np.empty((2, TILE * LANES), np.int32),
        np.empty((2, attributes)),
        np.empty(attributes >> 3, np.uint8),
    )


@bare
def _last(add, limit, up):
    """The largest v with ``v + add <= limit`` as doubles round; for ``up`` the smallest with ``limit <= v + add``."""
    if add == 0.0:
        return limit
    far = ULPS * (abs(limit) + abs(add))
    inside = limit - add + (far if up else -far)
    outside = limit - add - (far if up else -far)
    while True:
        middle = inside + 0.5 * (outside - inside)
        if not (min(inside, outside) < middle and middle < max(inside, outside)):
            return inside
        if (limit <= middle + add) if up else (middle + add <= limit):
            inside = middle
        else:
            outside = middle


@bare
def _aim(ix, i, m, world, scratch):
    """What message row ``m`` asks of the contexts of family ``i``.

    Leaves the range of cells per strip, the range of values per context attribute, and which attributes are free.
    Returns whether there can be a match at all, and whether these values decide.
    """
    pred, row, r = world.templates.predicate, world.templates.row, np.int64(ix.root[i, 0])
    cells, _, _, values, free = scratch
    wide = world.messages.residual.shape[0] > 0 or world.contexts.residual.shape[0] > 0
    exact = not wide and row[r, PROGRAM_LENGTH] == 0 and row[r, GATE_LENGTH] == 0
    for a in range(values.shape[1]):
        values[0, a], values[1, a] = -np.inf, np.inf
        free[a >> 3] = 255
    for s in range(ix.strip.shape[0]):
        cells[0, s], cells[1, s] = WHOLE_LOW, WHOLE_HIGH
    for q in range(row[r, PREDICATES]):
        p, at = np.int64(row[r, FIRST_PREDICATE]) + q, np.int64(ix.root[i, 1]) + q
        if pred[p, TRAITS] != 0:
            exact = False
            continue
        x = world.messages.value[m, pred[p, ATTRIBUTE]]
        for side in range(2):
            kind = pred[p, LOW] if side == 0 else pred[p, HIGH]
            if kind == NONE:
                continue
            if math.isnan(x):
                return False, exact
            exact = exact and math.isfinite(x)
            if kind != CONST and kind != CTX and kind != CTX_PLUS:
                exact = False
                continue
            # The test is ``value + least <= x`` from below, ``x <= value + most`` from above.
            least, most = ix.hull[at, 2 * side], ix.hull[at, 2 * side + 1]
            strict = pred[p, LOW_STRICT] if side == 0 else pred[p, HIGH_STRICT]
            exact = exact and least == most
            if kind == CONST:
                if (side == 0 and least > x) or (side == 1 and most < x):
                    return False, exact
                exact = exact and not (strict and least == x)
                continue
            a = np.int64(pred[p, LOW_CTX] if side == 0 else pred[p, HIGH_CTX])
            edge = x - (least if side == 0 else most)
            edge += (ULPS if side == 0 else -ULPS) * (abs(x) + abs(edge))
            s = np.int64(ix.strips[a])
            if s >= 0 and math.isfinite(edge):
                cell = strip_cell(edge, ix.strip[s, 0], ix.strip[s, 1])
                cells[0, s] = max(cells[0, s], np.uint8(1) if side == 0 else cell)
                cells[1, s] = min(cells[1, s], cell if side == 0 else np.uint8(253))
            exact = exact and abs(x) + abs(least) < HUGE
            if exact:
                limit = np.nextafter(x, -np.inf if side == 0 else np.inf) if strict else x
                free[a >> 3] &= np.uint8(~(1 << (a & 7)))
                if side == 0:
                    values[1, a] = min(values[1, a], _last(least, limit, False))
                else:
                    values[0, a] = max(values[0, a], _last(least, limit, True))
    for s in range(ix.strip.shape[0]):
        if cells[0, s] > cells[1, s]:
            return False, exact
    return True, exact


@bare
def _groups(ix, first, last, scratch):
    """The groups of 32 contexts, from first to last, of which some pass the sketch; returns how many."""
    cells, words, _, _, _ = scratch
    sketch, strips = ix.sketch, ix.strip.shape[0]
    # Two strips at once, without a branch; more only for what is left.
    one = min(1, strips - 1)
    low, high = cells[0, 0], cells[1, 0]
    low_one, high_one = cells[0, one], cells[1, one]
    n = 0
    at = first * strips * LANES
    for g in range(first, last):
        mask = within(sketch, at, low, high) & within(sketch, at + one * LANES, low_one, high_one)
        words[n] = np.uint64(g) << np.uint64(32) | np.uint64(mask)
        n += np.int64(mask != 0)
        at += strips * LANES
    for s in range(2, strips):
        if cells[0, s] == WHOLE_LOW and cells[1, s] == WHOLE_HIGH:
            continue
        left = 0
        for j in range(n):
            g = np.int64(words[j] >> np.uint64(32))
            mask = np.uint32(words[j]) & within(sketch, (g * strips + s) * LANES, cells[0, s], cells[1, s])
            words[left] = np.uint64(g) << np.uint64(32) | np.uint64(mask)
            left += np.int64(mask != 0)
        n = left
    return n


@bare
def _pass(ix, i, first, last, world, scratch, found):
    """The contexts of the groups first..last that pass the sketch, into ``found``; asks for what is read of them."""
    words, value, tenant = scratch[1], world.contexts.value, ix.tenant
    count = 0
    for j in range(_groups(ix, first, last, scratch)):
        mask, c = np.uint32(words[j]), np.int64(words[j] >> np.uint64(32)) * LANES
        while mask != 0:
            found[count] = c + lowest_bit(mask)
            prefetch(value, np.int64(found[count]) * value.shape[1])
            prefetch(tenant, i * tenant.shape[1] + np.int64(found[count]))
            # Behind the last context of its group there is nobody, though who asks for nothing finds them.
            count += np.int64(found[count] < ix.count[N_CONTEXTS])
            mask &= mask - ONE
    ix.count[ROOT_MET] += count
    return count


@bare
def _sift(count, world, scratch, found):
    """Those of the contexts ``found`` whose values are in their ranges; returns how many."""
    values, free = scratch[3], scratch[4]
    value, columns = world.contexts.value, world.contexts.value.shape[1]
    left = 0
    for j in range(count):
        c = np.int64(found[j])
        ok = row_within(value, c * columns, values[0], values[1], free[0])
        for a in range(8, columns, 8):
            ok &= row_within(value, c * columns + a, values[0, a:], values[1, a:], free[a >> 3])
        found[left] = c
        left += np.int64(ok)
    return left


@bare
def _ask(ix, i, c, m, exact, world, hits, n, special, n_special):
    """Those of the clauses on context ``c`` that match, one by one."""
    meta = world.clauses.meta
    k = np.int64(world.contexts.head[c])
    while k >= 0:
        if meta[k, TEMPLATE] == ix.root[i, 0] and meta[k, PLACE] == AT_ROOT:
            ix.count[CANDIDATES] += 1
            if not exact and not holds(k, m, world):
                ix.count[FALSE_POSITIVES] += 1
            elif meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT):
                special[n_special] = k
                n_special += 1
            else:
                hits[n] = meta[k, PROFILE]
                n += 1
        k = np.int64(meta[k, NEXT])
    return n, n_special


@bare
def probe_root(ix, m, world, hits, n, special, n_special, scratch):
    """All matches of message row ``m`` at the root, behind those in ``hits`` and ``special``; returns the counts."""
    tenant = ix.tenant
    groups = (ix.count[N_CONTEXTS] + LANES - 1) >> 5
    for i in range(ix.root.shape[0]):
        possible, exact = _aim(ix, i, m, world, scratch)
        if not possible:
            continue
        waiting = 0
        for tile in range((groups + TILE - 1) // TILE + 1):
            # What passes is looked at a tile later: by then it has come from memory.
            count = 0
            if tile * TILE < groups:
                first = tile * TILE
                count = _pass(ix, i, first, min(groups, first + TILE), world, scratch, scratch[2][tile & 1])
            found = scratch[2][~tile & 1]
            if exact:
                waiting = _sift(waiting, world, scratch, found)
            for j in range(waiting):
                c = np.int64(found[j])
                who = tenant[i, c]
                if exact and who >= 0:
                    hits[n] = who
                    n += 1
                elif who != NOBODY:
                    n, n_special = _ask(ix, i, c, m, exact, world, hits, n, special, n_special)
            waiting = count
    return n, n_special


@bare
def check_root(ix, ids, world):
    """Verify the invariants for the clauses ``ids`` at the root; returns (code, clause, strip) as ``blocks.check``."""
    meta, row, contexts = world.clauses.meta, world.templates.row, world.contexts
    if ix.count[N_ROOT] != ids.shape[0]:
        return 1, -1, -1
    for j in range(ids.shape[0]):
        k = np.int64(ids[j])
        r, c, own = np.int64(meta[k, TEMPLATE]), np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
        i = family_of(ix, r)
        if i < 0 or c >= ix.count[N_CONTEXTS]:
            return 3, k, -1
        for q in range(row[r, PREDICATES]):
            for side in range(2):
                least, most = _end(np.int64(row[r, FIRST_PREDICATE]) + q, side, own, world)
                at = ix.root[i, 1] + q
                if ix.hull[at, 2 * side] > least or ix.hull[at, 2 * side + 1] < most:
                    return 12, k, -1
        for a in range(contexts.value.shape[1]):
            s = np.int64(ix.strips[a])
            if s >= 0:
                at = ((c >> 5) * ix.strip.shape[0] + s) * LANES + (c & 31)
                if ix.sketch[at] != strip_cell(contexts.value[c, a], ix.strip[s, 0], ix.strip[s, 1]):
                    return 13, k, s
        before = ix.tenant[i, c]
        _settle_tenant(ix, i, c, world)
        if ix.tenant[i, c] != before:
            return 14, k, -1
    return 0, -1, -1
