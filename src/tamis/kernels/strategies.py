"""The strategies of paper 000 over any structure: what an update does to an index, and when an index gets better again.

An entry is a clause. For every slot it *holds* a range, K(i): the index returns it for messages in that range. The
structures (:mod:`skiplist`, :mod:`hashtable`, ...) know how to place a range at a *level*: 0 is exact, higher levels
round outward, the top is the whole domain, where an entry needs no structure at all. A strategy is then short:

| | when k(i) leaves K(i) | and when it does not |
|---|---|---|
| NOINDEX | it cannot: every entry is returned always | nothing |
| EAGER | place it exactly | place it exactly |
| PARTIAL | as EAGER inside the scope; outside the entry is returned always | the same |
| GBU | place it at level 1: the ranges that are there, nothing is split or joined | nothing |
| AGILE | *escalate* the end that left: one level up | nothing, the index does not even hear of it |

AGILE *deescalates* when a message meets an entry in vain and the policy agrees: ``fixed(FP)`` at every FP-th such false
positive (``always`` is FP = 1), ``auto(C)`` with FP = C * updates / false positives, one level down each time.
``cost`` is ours. It measures, in cycles, what a false positive and a move cost, how often and how far values move, and
how wide the ranges of each level are; from that it computes the level at which an entry of a slot costs least, and
moves entries there: those that leave their range at once, the others as far as the false positives they cause pay.

Invariants: k(i) in K(i) for every entry that some message could match; a context value may move without a word to the
index while k(i) stays in K(i) (``Contexts.safe``).
"""

from __future__ import annotations

import math

import numpy as np
from numba.extending import overload

from . import btree as _btree
from . import hashtable as _hashtable
from . import rtree as _rtree
from . import skiplist as _skiplist
from .bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CLOSED,
    COMMON_COUNTS,
    COMPLEX,
    CONSTANTS,
    CONTEXT,
    CTX,
    CTX_PLUS,
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
    HIGH_STRICT,
    LISTENERS,
    LOW,
    LOW_CONST,
    LOW_CTX,
    LOW_STRICT,
    META_COLUMNS,
    N_ENTRIES,
    NONE,
    PLACE,
    PREDICATES,
    PROBES,
    PROFILE,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
    UPDATES,
    BTree,
    HashTable,
    RTree,
    SkipList,
)
from .cells import BY_SLOT, depends, moves, narrow, pin, routed
from .jit import BARE, bare, inlined, kernel
from .merge import ONE64, begin, clear, is_empty, take_out
from .postfilter import bound, constant, holds, interval, satisfiable
from .simd import cycles, prefetch

OUT, PLACED, EVERYWHERE = range(3)
EAGER, PARTIAL, GBU, AGILE, NOINDEX = range(5)
FIXED, AUTO, COST = range(3)
# Entries of Family.rule: what was chosen; false positives since the last deescalation; cycles that false positives have
# cost and deescalations not yet used; cycles of a test and of a move; messages since the last review.
STRATEGY, POLICY, PARAMETER, IN_VAIN, CREDIT, TEST_COST, MOVE_COST, MESSAGES = range(8)
RULES = 8
# Columns of Family.seen: updates of values that move a slot's ranges, and the sum of their squared steps, both fading;
# the share of entries that a message passes; the least and the largest value in messages; the best level; then, per
# level, how far beyond its interval a range reaches on each side; then what each level costs.
MOVED, STEPS, PASSING, LEAST, LARGEST, BEST, REACH = range(7)
LEVELS = 16
COSTS = REACH + LEVELS
SEEN = COSTS + LEVELS
# Entries of count behind the common ones: changes of an index, entries for which there was no room, entries shut.
DEESCALATIONS, INDEX_UPDATES, SHORT, SHUT = range(COMMON_COUNTS, COMMON_COUNTS + 4)
COUNTS = COMMON_COUNTS + 4
REVIEW = 64  # messages between two reviews of the best levels
AHEAD = 8


# The type of a bundle says which structure it is; see :mod:`tamis.kernels.process`.


def _structure(bundle):
    return {SkipList: _skiplist, HashTable: _hashtable, BTree: _btree, RTree: _rtree}[bundle.record]


def _place(ix, g, k):
    """``place`` of the structure."""


def _unplace(ix, g, k):
    """``unplace`` of the structure."""


def _extend(ix, g, k):
    """``extend`` of the structure."""


def collect(ix, g, m, world):
    """``collect`` of the structure."""


def _top(ix, g):
    """``top`` of the structure."""


@overload(_place, jit_options=BARE)
def _place_of(ix, g, k):
    return _structure(ix).place.py_func


@overload(_unplace, jit_options=BARE)
def _unplace_of(ix, g, k):
    return _structure(ix).unplace.py_func


@overload(_extend, jit_options=BARE)
def _extend_of(ix, g, k):
    return _structure(ix).extend.py_func


@overload(collect, jit_options=BARE)
def _collect_of(ix, g, m, world):
    return _structure(ix).collect.py_func


@overload(_top, jit_options=BARE)
def _top_of(ix, g):
    return _structure(ix).top.py_func


# -- one entry -------------------------------------------------------------------------------------------------


@bare
def _read(ix, k, g, world):
    """The intervals of clause ``k`` on the slots of a group as its context stands, into ``ix.want``.

    An empty one is a point, so that all structures may rely on low <= high; the postfilter knows better.
    """
    for s in range(ix.group[g], ix.group[g + 1]):
        _, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
        ix.want[s, 0], ix.want[s, 1] = low, max(low, high)


@inlined
def _set_always(ix, k, g, on):
    bit = ONE64 << np.uint64(k & 63)
    has = ix.everywhere[g, k >> 6] & bit != 0
    if on and not has:
        ix.everywhere[g, k >> 6] |= bit
        ix.always[g] += 1
    if has and not on:
        ix.everywhere[g, k >> 6] &= ~bit
        ix.always[g] -= 1


@bare
def _give_up(ix, k, g):
    """Return entry ``k`` for every message from now on."""
    _set_always(ix, k, g, True)
    ix.state[k, g] = EVERYWHERE
    ix.certain[k] = 0
    for s in range(ix.group[g], ix.group[g + 1]):
        ix.held[k, s, 0], ix.held[k, s, 1] = -np.inf, np.inf


@bare
def _take(ix, k, g):
    """Take an entry out of a group."""
    if ix.state[k, g] == PLACED:
        _unplace(ix, g, k)
    else:
        _set_always(ix, k, g, False)
    ix.state[k, g] = OUT


@bare
def _in_scope(ix, g):
    """Whether ``ix.want`` belongs into the structure: nothing does for NOINDEX, for PARTIAL what its scope holds."""
    for s in range(ix.group[g], ix.group[g + 1]):
        if not (ix.scope[s, 0] <= ix.want[s, 0] and ix.want[s, 1] <= ix.scope[s, 1]):
            return False
    return ix.rule[STRATEGY] != NOINDEX


@bare
def _put(ix, k, g):
    """Place ``ix.want`` at the levels ``ix.aim``; whatever cannot be placed is returned always."""
    whole = True
    first, last = np.int64(ix.group[g]), np.int64(ix.group[g + 1])
    for s in range(first, last):
        whole = whole and ix.want[s, 0] == -np.inf and ix.want[s, 1] == np.inf
    if not whole and _in_scope(ix, g):
        done = _place(ix, g, k)
        ix.state[k, g] = PLACED
        if done == 1:
            return
        ix.count[SHORT] += done == 0
        _take(ix, k, g)
    for s in range(first, last):
        ix.level[k, s, 0], ix.level[k, s, 1] = ix.aim[s, 0], ix.aim[s, 1]
    _give_up(ix, k, g)


@bare
def _is_inside(ix, k, g):
    """Whether ``ix.want`` lies in what entry ``k`` holds: covers, of the protocol."""
    for s in range(ix.group[g], ix.group[g + 1]):
        if not (ix.held[k, s, 0] <= ix.want[s, 0] and ix.want[s, 1] <= ix.held[k, s, 1]):
            return False
    return True


@bare
def _learn_reach(ix, k, g):
    """Remember how far beyond its interval the range of each level reaches."""
    for s in range(ix.group[g], ix.group[g + 1]):
        for end in range(2):
            reach = abs(ix.want[s, end] - ix.held[k, s, end])
            j = min(LEVELS - 1, np.int64(ix.level[k, s, end]))
            if reach < np.inf and j > 0:
                ix.seen[s, REACH + j] += (reach - ix.seen[s, REACH + j]) * 0.02 if ix.seen[s, REACH + j] > 0 else reach


@bare
def _move(ix, k, g):
    """Place entry ``k`` anew, where ``ix.want`` and ``ix.aim`` say."""
    weigh = ix.rule[POLICY] == COST
    start = cycles() if weigh else np.int64(0)
    if not (ix.rule[STRATEGY] == AGILE and ix.state[k, g] == PLACED and _extend(ix, g, k)):
        _take(ix, k, g)
        _put(ix, k, g)
    ix.count[INDEX_UPDATES] += 1
    if weigh:
        taken = np.float64(cycles() - start)
        if taken < 1e6:  # else something else ran in between
            ix.rule[MOVE_COST] += (taken - ix.rule[MOVE_COST]) * 0.02
        if ix.state[k, g] == PLACED:
            _learn_reach(ix, k, g)


@bare
def _is_certain(ix, k, world):
    """Whether what the groups return of clause ``k`` needs no postfilter: ``fullyIndexed`` of paper 000."""
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    r = meta[k, TEMPLATE]
    if row[r, PROGRAM_LENGTH] > 0 or row[r, GATE_LENGTH] > 0:
        return False
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = ix.attribute_slot[pred[p, ATTRIBUTE]]
        if s < 0 or pred[p, TRAITS] != 0 or pred[p, LOW_STRICT] or pred[p, HIGH_STRICT]:
            return False
        if (pred[p, LOW] > 1 or pred[p, HIGH] > 1) and ix.rule[STRATEGY] != EAGER:
            return False  # the value of the context moves on without a word
    for g in range(ix.group.shape[0] - 1):
        for s in range(ix.group[g], ix.group[g + 1]):
            sides, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
            if ix.held[k, s, 0] != low or ix.held[k, s, 1] != high:
                return False
            # What is returned always is returned for messages without the attribute, too.
            if sides != 0 and (ix.state[k, g] != PLACED or (low == -np.inf and high == np.inf)):
                return False
    return True


@bare
def enter(ix, k, world):
    """Index clause ``k`` as its context stands, and let the context know what it may do without a word."""
    meta, row = world.clauses.meta, world.templates.row
    r, c = meta[k, TEMPLATE], np.int64(meta[k, CONTEXT])
    ix.certain[k] = 0
    if not satisfiable(k, world):
        meta[k, FLAGS] |= CLOSED
        ix.count[SHUT] += 1
        if c >= 0:
            pin(world.contexts, c, row[r, DEPENDS_LOW], row[r, DEPENDS_HIGH])
        return
    meta[k, FLAGS] &= ~CLOSED
    for g in range(ix.group.shape[0] - 1):
        _read(ix, k, g, world)
        for s in range(ix.group[g], ix.group[g + 1]):
            ix.aim[s, 0], ix.aim[s, 1] = 0, 0
        _put(ix, k, g)
    ix.certain[k] = _is_certain(ix, k, world)
    _tell(ix, k, world)


@bare
def leave(ix, k, world):
    """Take clause ``k`` out of all groups."""
    if world.clauses.meta[k, FLAGS] & CLOSED:
        ix.count[SHUT] -= 1
        return
    for g in range(ix.group.shape[0] - 1):
        _take(ix, k, g)


@inlined
def _from(end, off):
    """The least float32 from which on ``value + off >= end``."""
    u = np.float32(end - off)
    while np.float64(u) + off < end:
        u = np.nextafter(u, np.float32(np.inf))
    return u


@inlined
def _until(end, off):
    """The largest float32 up to which ``value + off <= end``."""
    u = np.float32(end - off)
    while np.float64(u) + off > end:
        u = np.nextafter(u, np.float32(-np.inf))
    return u


@bare
def _may_be(ix, k, s, end, world):
    """The values that an end of clause ``k`` on a slot may take without a word."""
    if ix.rule[STRATEGY] != PARTIAL:
        return ix.held[k, s, 0], ix.held[k, s, 1]
    # Inside its scope PARTIAL hears everything; outside nothing changes while one end stays beyond the scope's.
    _, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
    if high > ix.scope[s, 1]:
        return np.nextafter(ix.scope[s, 1], np.inf) if end == 1 else -np.inf, np.inf
    if low < ix.scope[s, 0]:
        return -np.inf, np.nextafter(ix.scope[s, 0], -np.inf) if end == 0 else np.inf
    return np.inf, -np.inf


@bare
def _slack(ix, k, a, world):
    """The range in which context attribute ``a`` may move while all of k(i) that depends on it stays in K(i)."""
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    r, own = meta[k, TEMPLATE], np.int64(meta[k, CONSTANTS])
    low, high = np.float32(-np.inf), np.float32(np.inf)
    if row[r, GATE_LENGTH] > 0:
        return np.float32(np.inf), np.float32(-np.inf)
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
        if s < 0:
            continue
        if pred[p, TRAITS] & COMPLEX or (ix.rule[STRATEGY] == EAGER and moves(pred, p, a)):
            return np.float32(np.inf), np.float32(-np.inf)
        for end in range(2):
            kind = pred[p, LOW] if end == 0 else pred[p, HIGH]
            if not (kind == CTX or kind == CTX_PLUS) or (pred[p, LOW_CTX] if end == 0 else pred[p, HIGH_CTX]) != a:
                continue
            off = 0.0
            if kind == CTX_PLUS:
                off = constant(pred[p, LOW_CONST] if end == 0 else pred[p, HIGH_CONST], own, world)
            least, most = _may_be(ix, k, s, end, world)
            low, high = max(low, _from(least, off)), min(high, _until(most, off))
    return low, high


@bare
def _tell(ix, k, world):
    """What entry ``k`` holds may have become smaller: so does what its context may do without a word."""
    c = np.int64(world.clauses.meta[k, CONTEXT])
    if c >= 0:
        for a in range(world.contexts.value.shape[1]):
            if depends(world.templates.row, world.clauses.meta[k, TEMPLATE], a):
                low, high = _slack(ix, k, a, world)
                narrow(world.contexts, c, a, low, high)


@bare
def _reconsider(ix, k, world):
    """Clause ``k`` was placed anew: an interval may have become empty, or unbounded, or found no room."""
    if ix.rule[STRATEGY] == EAGER:
        ix.certain[k] = _is_certain(ix, k, world)


# -- updates ---------------------------------------------------------------------------------------------------


@bare
def _revise(ix, k, g, world):
    """The interval of clause ``k`` on a group may have moved: do what the strategy says. Whether it was placed anew."""
    _read(ix, k, g, world)
    strategy = ix.rule[STRATEGY]
    first, last = np.int64(ix.group[g]), np.int64(ix.group[g + 1])
    if strategy == PARTIAL and ix.state[k, g] == EVERYWHERE:
        if not _in_scope(ix, g):
            return False
    elif strategy <= PARTIAL:
        same = True
        for s in range(first, last):
            same = same and ix.held[k, s, 0] == ix.want[s, 0] and ix.held[k, s, 1] == ix.want[s, 1]
        if same:
            _reconsider(ix, k, world)
            return False
    elif _is_inside(ix, k, g):
        return False
    for s in range(first, last):
        for end in range(2):
            ix.aim[s, end] = 0
            if strategy == GBU:
                ix.aim[s, end] = min(1, _top(ix, g) - 1)
            elif strategy == AGILE:
                ix.aim[s, end] = ix.level[k, s, end]
                left = ix.want[s, 0] < ix.held[k, s, 0] if end == 0 else ix.want[s, 1] > ix.held[k, s, 1]
                if ix.rule[POLICY] == COST:
                    ix.aim[s, end] = np.int8(ix.seen[s, BEST])
                elif left:
                    ix.aim[s, end] = min(_top(ix, g), np.int64(ix.level[k, s, end]) + 1)
    if strategy == AGILE:
        ix.count[ESCALATIONS] += 1
    _move(ix, k, g)
    _reconsider(ix, k, world)
    return True


@bare
def escalate(ix, k, a, v, world):
    """Context attribute ``a`` of clause ``k`` became ``v`` outside its safe range; returns the new safe range."""
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    nothing = (np.float32(np.inf), np.float32(-np.inf))
    if meta[k, PLACE] < 0:
        return nothing
    r = meta[k, TEMPLATE]
    if row[r, GATE_LENGTH] > 0 or meta[k, FLAGS] & CLOSED or math.isnan(v):
        if not satisfiable(k, world):
            if not meta[k, FLAGS] & CLOSED:
                leave(ix, k, world)
                enter(ix, k, world)
            return nothing
        if meta[k, FLAGS] & CLOSED:
            ix.count[SHUT] -= 1
            enter(ix, k, world)
            return _slack(ix, k, a, world)
    moved = False
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
        if s >= 0 and (pred[p, TRAITS] & COMPLEX or moves(pred, p, a)):
            for g in range(ix.group.shape[0] - 1):
                if ix.group[g] <= s and s < ix.group[g + 1]:
                    moved = _revise(ix, k, g, world) or moved
    if moved and ix.rule[STRATEGY] != EAGER:
        _tell(ix, k, world)  # other values move the same ends, or other ends of the same group
    return _slack(ix, k, a, world)


@bare
def follow(ix, k, p, a, v, world):
    """As :func:`tamis.kernels.agile.follow`: EAGER writes the new value and goes on listening."""
    meta = world.clauses.meta
    if ix.rule[STRATEGY] > PARTIAL or meta[k, PLACE] < 0 or meta[k, FLAGS] & CLOSED or math.isnan(v):
        return False
    low, high = escalate(ix, k, a, v, world)
    return low > high and not meta[k, FLAGS] & CLOSED


@bare
def announce(ix, k, a, world):
    """Prefetch what an escalation of clause ``k`` will read."""
    prefetch(ix.held, k * ix.held.shape[1] * 2)
    prefetch(ix.state, k * ix.state.shape[1])
    marks = ix.postings.marks
    for g in range(marks.shape[1]):
        prefetch(marks, (k * marks.shape[1] + g) * marks.shape[2])
    return np.int64(-1)


@bare
def observe(ix, c, a, v, old, weight, world):
    """One update stands for ``weight`` of them: how often, and how far, the ranges of a slot move."""
    k = np.int64(world.contexts.head[c])
    step = v - old
    if ix.rule[POLICY] != COST or k < 0 or not (step == step):
        return
    row, pred = world.templates.row, world.templates.predicate
    r = world.clauses.meta[k, TEMPLATE]
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
        if s >= 0 and moves(pred, p, a):
            ix.seen[s, MOVED] += weight
            ix.seen[s, STEPS] += weight * step * step


@bare
def deescalate(ix, chunk, world):
    """Nothing is owed: the probe has done it."""


# -- policies --------------------------------------------------------------------------------------------------


@bare
def review(ix):
    """The level at which an entry of each group costs least per message, by what has been measured lately."""
    entries = max(1, ix.count[LISTENERS])
    messages = max(1.0, ix.rule[MESSAGES])
    for g in range(ix.group.shape[0] - 1):
        top = min(LEVELS - 1, _top(ix, g))
        first, last = np.int64(ix.group[g]), np.int64(ix.group[g + 1])
        for s in range(first, last):
            others = 1.0
            for t in range(ix.slot_attribute.shape[0]):
                others *= ix.seen[t, PASSING] if t != s else 1.0
            domain = max(1e-300, ix.seen[s, LARGEST] - ix.seen[s, LEAST])
            rate = ix.seen[s, MOVED] / messages / entries
            step2 = ix.seen[s, STEPS] / max(1.0, ix.seen[s, MOVED])
            reach = 0.0
            for j in range(top + 1):
                if j == top:
                    reach = np.inf
                elif j > 0:
                    reach = max(ix.seen[s, REACH + j], reach * 2)
                # A walk of steps d leaves a range that reaches w beyond it after about (w / d)**2 steps.
                leaves = 1.0 / (1.0 + reach * reach / step2) if step2 > 0.0 else 0.0
                vain = min(1.0, 2.0 * reach / domain) * others
                cost = rate * leaves * ix.rule[MOVE_COST] + vain * ix.rule[TEST_COST]
                ix.seen[first, COSTS + j] = cost if s == first else ix.seen[first, COSTS + j] + cost
            ix.seen[s, MOVED] *= 0.5
            ix.seen[s, STEPS] *= 0.5
        best = 0
        for j in range(top + 1):
            best = j if ix.seen[first, COSTS + j] < ix.seen[first, COSTS + best] else best
        for s in range(first, last):
            ix.seen[s, BEST] = best
    ix.rule[MESSAGES] = ix.rule[MESSAGES] * 0.5


@bare
def wanted(ix, k, s, end):
    """``DEpolicy`` of paper 000: whether a false positive of entry ``k`` on an end of a slot shall deescalate it."""
    if ix.level[k, s, end] == 0:
        return False
    if ix.rule[POLICY] == COST:
        if ix.level[k, s, end] <= ix.seen[s, BEST] or ix.rule[CREDIT] < ix.rule[MOVE_COST]:
            return False
        ix.rule[CREDIT] -= ix.rule[MOVE_COST]
        return True
    ix.rule[IN_VAIN] += 1.0
    patience = ix.rule[PARAMETER]
    if ix.rule[POLICY] == AUTO:
        patience *= np.float64(ix.count[UPDATES]) / max(1, ix.count[FALSE_POSITIVES])
    if ix.rule[IN_VAIN] < patience:
        return False
    ix.rule[IN_VAIN] = 0.0
    return True


@bare
def lower(ix, k, s, end, world):
    """Deescalate entry ``k`` on one end of a slot: one level down, or to the best one."""
    for g in range(ix.group.shape[0] - 1):
        if not (ix.group[g] <= s and s < ix.group[g + 1]):
            continue
        _read(ix, k, g, world)
        for t in range(ix.group[g], ix.group[g + 1]):
            for e in range(2):
                if ix.rule[POLICY] == COST:
                    ix.aim[t, e] = np.int8(ix.seen[t, BEST])
                else:
                    level = min(_top(ix, g), np.int64(ix.level[k, t, e]))
                    ix.aim[t, e] = max(0, level - 1) if t == s and e == end else level
        _move(ix, k, g)
        ix.count[DEESCALATIONS] += 1
    _tell(ix, k, world)


@bare
def tighten(ix, ids, world):
    """Place all clauses exactly."""
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        if world.clauses.meta[k, FLAGS] & CLOSED:
            continue
        for g in range(ix.group.shape[0] - 1):
            _read(ix, k, g, world)
            for s in range(ix.group[g], ix.group[g + 1]):
                ix.aim[s, 0], ix.aim[s, 1] = 0, 0
            _take(ix, k, g)
            _put(ix, k, g)
        ix.certain[k] = _is_certain(ix, k, world)
        _tell(ix, k, world)


@bare
def survey(ix, ids, world):
    """Try all levels with some clauses: how far their ranges reach."""
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        if world.clauses.meta[k, FLAGS] & CLOSED:
            continue
        for g in range(ix.group.shape[0] - 1):
            _read(ix, k, g, world)
            highest = min(LEVELS, _top(ix, g))
            for j in range(1, highest + 1):
                for s in range(ix.group[g], ix.group[g + 1]):
                    ix.aim[s, 0] = ix.aim[s, 1] = j if j < highest else 0
                _take(ix, k, g)
                _put(ix, k, g)
                if ix.state[k, g] == PLACED:
                    _learn_reach(ix, k, g)


# -- messages --------------------------------------------------------------------------------------------------


@bare
def blamed(ix, k, m, world):
    """2 * slot + end of the indexed predicate of clause ``k`` that fails for message ``m``; -1 when none does."""
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    r = np.int64(meta[k, TEMPLATE])
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    for s in range(ix.slot_attribute.shape[0]):
        x = world.messages.value[m, ix.slot_attribute[s]]
        p = routed(ix, r, BY_SLOT, s, np.int64(row[r, FIRST_PREDICATE]))
        low, high = -np.inf, np.inf
        if p >= 0:
            if pred[p, LOW] != NONE:
                low = bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
            if pred[p, HIGH] != NONE:
                high = bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
        elif ix.routes[r, BY_SLOT] == 0:
            _, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
        if x < low:
            return 2 * s
        if x > high:
            return 2 * s + 1
    return -1


@bare
def probe(ix, m, world, hits, special, doubts, edges, owed, scratch):
    """All matches of message row ``m``; as :func:`tamis.kernels.blocks.probe`, but it deescalates by itself."""
    meta, contexts = world.clauses.meta, world.contexts
    groups = ix.group.shape[0] - 1
    which = 0
    for g in range(groups):
        begin(ix, g)
        collect(ix, g, m, world)
        which = g & 1
        if g > 0:
            clear(ix, 1 - which)
        if is_empty(ix, which):
            break
    total = take_out(ix, which, doubts)
    n = n_special = failed = tested = 0
    plain = world.messages.residual.shape[0] == 0 and contexts.residual.shape[0] == 0
    weigh = ix.rule[POLICY] == COST
    agile = ix.rule[STRATEGY] == AGILE
    start = cycles() if weigh else np.int64(0)
    columns = contexts.value.shape[1]
    moved = ix.rule[MOVE_COST]
    spent = ix.count[INDEX_UPDATES]
    for i in range(-AHEAD, total):
        if i + 2 * AHEAD < total:
            prefetch(meta, np.int64(doubts[i + 2 * AHEAD]) * META_COLUMNS)
        if i + AHEAD < total:
            k = np.int64(doubts[i + AHEAD])
            if meta[k, CONTEXT] >= 0:
                prefetch(contexts.value, np.int64(meta[k, CONTEXT]) * columns)
            prefetch(world.clauses.constant, np.int64(meta[k, CONSTANTS]))
        if i < 0:
            continue
        k = np.int64(doubts[i])
        if not (ix.certain[k] and plain):
            tested += 1
            blame = blamed(ix, k, m, world)
            if blame >= 0 or not holds(k, m, world):
                failed += 1
                if blame >= 0 and agile:
                    ix.rule[CREDIT] += ix.rule[TEST_COST]
                    if wanted(ix, k, np.int64(blame >> 1), np.int64(blame & 1)):
                        lower(ix, k, np.int64(blame >> 1), np.int64(blame & 1), world)
                continue
        if meta[k, FLAGS] & (HAS_SIBLING | HAS_EFFECT):
            special[n_special] = k
            n_special += 1
        else:
            hits[n] = meta[k, PROFILE]
            n += 1
    ix.count[PROBES] += 1
    ix.count[CANDIDATES] += tested
    ix.count[FALSE_POSITIVES] += failed
    if weigh:
        if tested >= 16:
            taken = np.float64(cycles() - start) - moved * np.float64(ix.count[INDEX_UPDATES] - spent)
            if taken > 0.0 and taken < 1e4 * tested:
                ix.rule[TEST_COST] += (taken / tested - ix.rule[TEST_COST]) * 0.05
        for s in range(ix.slot_attribute.shape[0]):
            x = world.messages.value[m, ix.slot_attribute[s]]
            if x == x:
                ix.seen[s, LEAST], ix.seen[s, LARGEST] = min(ix.seen[s, LEAST], x), max(ix.seen[s, LARGEST], x)
        ix.rule[MESSAGES] += 1.0
        if ix.count[PROBES] % REVIEW == 0:
            review(ix)
    return n, n_special, 0


@bare
def size(ix):
    """There are no blocks to meet."""
    return 0


# -- from outside ----------------------------------------------------------------------------------------------


@kernel
def insert(ix, ids, world):
    """Index clauses ``ids``."""
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        world.clauses.meta[k, PLACE] = 0
        ix.count[N_ENTRIES] += 1
        ix.count[LISTENERS] += np.int64(world.clauses.meta[k, CONTEXT] >= 0)
        enter(ix, k, world)


@kernel
def remove(ix, ids, world):
    """Forget clauses ``ids``."""
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        leave(ix, k, world)
        world.clauses.meta[k, PLACE] = -1
        world.clauses.meta[k, FLAGS] &= ~CLOSED
        ix.count[N_ENTRIES] -= 1
        ix.count[LISTENERS] -= np.int64(world.clauses.meta[k, CONTEXT] >= 0)


@bare
def check(ix, ids, world):
    """Verify what holds for every structure; (code, clause, slot), 0 when all is well."""
    if ix.count[N_ENTRIES] != ids.shape[0]:
        return 1, -1, -1
    groups = ix.group.shape[0] - 1
    shut = 0
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        if world.clauses.meta[k, PLACE] != 0:
            return 3, k, -1
        closed = world.clauses.meta[k, FLAGS] & CLOSED != 0
        shut += closed
        if closed and satisfiable(k, world):
            return 5, k, -1
        for g in range(groups):
            listed = ix.everywhere[g, k >> 6] >> np.uint64(k & 63) & ONE64 != 0
            if closed != (ix.state[k, g] == OUT) or listed != (ix.state[k, g] == EVERYWHERE):
                return 4, k, g
            if ix.postings.used[k, g] > 0 and (listed or closed):
                return 4, k, g
            if closed or listed or not satisfiable(k, world):
                continue
            _read(ix, k, g, world)
            if not _is_inside(ix, k, g):
                return 6, k, g
    for g in range(groups):
        n = 0
        for w in range(ix.everywhere.shape[1]):
            word = ix.everywhere[g, w]
            while word != 0:
                n += 1
                word &= word - ONE64
        if n != ix.always[g]:
            return 4, -1, g
    if shut != ix.count[SHUT]:
        return 5, -1, -1
    return 0, -1, -1
