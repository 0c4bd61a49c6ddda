"""An entry of the indexes of paper 000: where it is, what it holds, and what its context may do without a word.

An entry is a clause. For every slot it *holds* a range, K(i): the index returns it for messages in that range. The
structures (:mod:`skiplist`, :mod:`hashtable`, ...) know how to place a range at a *level*: 0 is exact, higher levels
round outward, the top is the whole domain, where an entry needs no structure at all. Refuses to know when an entry
moves: that is what :mod:`tamis.kernels.strategies` is about.

Invariants: k(i) in K(i) for every entry that some message could match; a context value may move without a word to the
index while k(i) stays in K(i) (``Contexts.safe``).
"""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from . import btree as _btree
from . import buffers as _buffers
from . import hashtable as _hashtable
from . import rtree as _rtree
from . import skiplist as _skiplist
from .bundles import (
    ATTRIBUTE,
    CLOSED,
    COMMON_COUNTS,
    COMPLEX,
    CONSTANTS,
    CONTEXT,
    CTX,
    CTX_PLUS,
    DEPENDS_HIGH,
    DEPENDS_LOW,
    FIRST_PREDICATE,
    FLAGS,
    GATE_LENGTH,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    HIGH_STRICT,
    LOW,
    LOW_CONST,
    LOW_CTX,
    LOW_STRICT,
    NONE,
    PREDICATES,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
    BTree,
    HashTable,
    RTree,
    SkipList,
)
from .cells import BY_SLOT, depends, moves, narrow, pin, routed
from .jit import BARE, bare, inlined
from .merge import ONE64
from .postfilter import bound, constant, interval, satisfiable

OUT, PLACED, EVERYWHERE = range(3)
EAGER, PARTIAL, GBU, AGILE, NOINDEX = range(5)
FIXED, AUTO, COST = range(3)
# Entries of Family.rule: what was chosen; false positives since the last deescalation; cycles that false positives have
# cost and deescalations not yet used; cycles of a test; how many times dearer a move is than in the survey; messages of
# late; index updates until the last review; updates (AUTO counts them, COST estimates them from samples) and false
# positives of late, and all updates so far; updates that were looked at closely, fading; entries that a sweep has
# still to look at.
STRATEGY, POLICY, PARAMETER, IN_VAIN, CREDIT, TEST_COST, DEARER, MESSAGES, REVIEWED = range(9)
RECENT_UPDATES, RECENT_VAIN, HEARD, OBSERVED, UNSWEPT = range(9, 14)
RULES = 14
# Columns of Family.seen: updates of values that move a slot's ranges, and the sum of their squared steps, both fading;
# the share of entries that a message passes; the least and the largest value in messages; the best level; the level
# that a sweep has brought all entries down to; then, per level, how far beyond its interval a range reaches on each
# side; then, per level, the cycles that a move to it took in the survey (of the first slot of a group); then, per
# level, those that false positives have to have cost before an entry leaves it for the best one.
MOVED, STEPS, PASSING, LEAST, LARGEST, BEST, SWEPT, REACH = range(8)
LEVELS = 16
PRICES = REACH + LEVELS
ASKED = PRICES + LEVELS
SEEN = ASKED + LEVELS
# Entries of count behind the common ones: changes of an index, entries for which there was no room, entries shut.
DEESCALATIONS, INDEX_UPDATES, SHORT, SHUT = range(COMMON_COUNTS, COMMON_COUNTS + 4)
COUNTS = COMMON_COUNTS + 4


# The type of a bundle says which structure it is; see :mod:`tamis.kernels.process`.


def _structure(bundle):
    return {SkipList: _skiplist, HashTable: _hashtable, BTree: _btree, RTree: _rtree}[bundle.record]


def place(ix, g, k):
    """``place`` of the structure."""


def unplace(ix, g, k):
    """``unplace`` of the structure."""


def extend(ix, g, k):
    """``extend`` of the structure: of the skip list, where a range may simply become larger; the others refuse."""


def sink(ix, g, k, s, end, x):
    """``sink`` of the structure."""


def collect(ix, g, m, world):
    """``collect`` of the structure."""


def leaf(ix):
    """``leaf`` of the structure."""


def top(ix, g):
    """``top`` of the structure."""


@overload(place, jit_options=BARE)
def _place_of(ix, g, k):
    return _structure(ix).place.py_func


@overload(unplace, jit_options=BARE)
def _unplace_of(ix, g, k):
    return _structure(ix).unplace.py_func


@overload(extend, jit_options=BARE)
def _extend_of(ix, g, k):
    return (_skiplist if ix.record is SkipList else _buffers).extend.py_func


@overload(sink, jit_options=BARE)
def _sink_of(ix, g, k, s, end, x):
    return (_skiplist if ix.record is SkipList else _buffers).sink.py_func


@overload(collect, jit_options=BARE)
def _collect_of(ix, g, m, world):
    return _structure(ix).collect.py_func


@overload(leaf, jit_options=BARE)
def _leaf_of(ix):
    return (_skiplist if ix.record is SkipList else _buffers).leaf.py_func


@overload(top, jit_options=BARE)
def _top_of(ix, g):
    return _structure(ix).top.py_func


# -- one entry -------------------------------------------------------------------------------------------------


@inlined
def ends(ix, k, s, world):
    """The interval of clause ``k`` on a slot as its context stands; without a bound it is infinite."""
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    r = np.int64(meta[k, TEMPLATE])
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    low, high = -np.inf, np.inf
    p = routed(ix, r, BY_SLOT, s, np.int64(row[r, FIRST_PREDICATE]))
    if p >= 0:
        if pred[p, LOW] != NONE:
            low = bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
        if pred[p, HIGH] != NONE:
            high = bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
    elif ix.routes[r, BY_SLOT] == 0:
        _, low, high = interval(k, np.int64(ix.slot_attribute[s]), world)
    return low, high


@bare
def read(ix, k, g, world):
    """The intervals of clause ``k`` on the slots of a group as its context stands, into ``ix.want``.

    An empty one is a point, so that all structures may rely on low <= high; the postfilter knows better.
    """
    for s in range(ix.group[g], ix.group[g + 1]):
        low, high = ends(ix, k, s, world)
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
def take(ix, k, g):
    """Take an entry out of a group."""
    if ix.state[k, g] == PLACED:
        unplace(ix, g, k)
    else:
        _set_always(ix, k, g, False)
    ix.state[k, g] = OUT


@bare
def in_scope(ix, g):
    """Whether ``ix.want`` belongs into the structure: nothing does for NOINDEX, for PARTIAL what its scope holds."""
    for s in range(ix.group[g], ix.group[g + 1]):
        if not (ix.scope[s, 0] <= ix.want[s, 0] and ix.want[s, 1] <= ix.scope[s, 1]):
            return False
    return ix.rule[STRATEGY] != NOINDEX


@bare
def put(ix, k, g):
    """Place ``ix.want`` at the levels ``ix.aim``; whatever cannot be placed is returned always."""
    whole = True
    first, last = np.int64(ix.group[g]), np.int64(ix.group[g + 1])
    for s in range(first, last):
        whole = whole and ix.want[s, 0] == -np.inf and ix.want[s, 1] == np.inf
    if not whole and in_scope(ix, g):
        done = place(ix, g, k)
        ix.state[k, g] = PLACED
        if done == 1:
            return
        ix.count[SHORT] += done == 0
        take(ix, k, g)
    for s in range(first, last):
        ix.level[k, s, 0], ix.level[k, s, 1] = ix.aim[s, 0], ix.aim[s, 1]
    _give_up(ix, k, g)


@bare
def is_inside(ix, k, g):
    """Whether ``ix.want`` lies in what entry ``k`` holds: covers, of the protocol."""
    for s in range(ix.group[g], ix.group[g + 1]):
        if not (ix.held[k, s, 0] <= ix.want[s, 0] and ix.want[s, 1] <= ix.held[k, s, 1]):
            return False
    return True


@inlined
def is_left(ix, k, s, end):
    """Whether ``ix.want`` lies beyond an end of what entry ``k`` holds on a slot."""
    return ix.want[s, 0] < ix.held[k, s, 0] if end == 0 else ix.want[s, 1] > ix.held[k, s, 1]


@bare
def learn_reach(ix, k, g):
    """Remember how far beyond its interval the range of each level reaches."""
    for s in range(ix.group[g], ix.group[g + 1]):
        for end in range(2):
            reach = abs(ix.want[s, end] - ix.held[k, s, end])
            j = min(LEVELS - 1, np.int64(ix.level[k, s, end]))
            if reach < np.inf and j > 0:
                ix.seen[s, REACH + j] += (reach - ix.seen[s, REACH + j]) * 0.02 if ix.seen[s, REACH + j] > 0 else reach


@bare
def move(ix, k, g, grow):
    """Place entry ``k`` anew, where ``ix.want`` and ``ix.aim`` say; if it may ``grow``, what is there may stay."""
    if not (grow and ix.state[k, g] == PLACED and extend(ix, g, k)):
        take(ix, k, g)
        put(ix, k, g)
        if ix.rule[POLICY] == COST and ix.state[k, g] == PLACED:
            learn_reach(ix, k, g)
    ix.count[INDEX_UPDATES] += 1


@inlined
def towards(mean, value, share):
    """A mean of late, one value later. Of what took far longer only a part counts: something else ran in between."""
    return mean + (min(value, 4.0 * mean) - mean) * share


@bare
def learn_price(ix, k, g, taken):
    """Remember how many times dearer than in the survey a move was, with all that comes with it."""
    expected = ix.seen[ix.group[g], PRICES + min(LEVELS - 1, np.int64(ix.level[k, ix.group[g], 0]))]
    ix.rule[DEARER] = towards(ix.rule[DEARER], taken / expected, 0.02)


@bare
def is_certain(ix, k, world):
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
        read(ix, k, g, world)
        for s in range(ix.group[g], ix.group[g + 1]):
            ix.aim[s, 0], ix.aim[s, 1] = 0, 0
        put(ix, k, g)
    ix.certain[k] = is_certain(ix, k, world)
    tell(ix, k, world)


@bare
def leave(ix, k, world):
    """Take clause ``k`` out of all groups."""
    if world.clauses.meta[k, FLAGS] & CLOSED:
        ix.count[SHUT] -= 1
        return
    for g in range(ix.group.shape[0] - 1):
        take(ix, k, g)


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
def slack(ix, k, a, world):
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
def tell(ix, k, world):
    """What entry ``k`` holds may have become smaller: so does what its context may do without a word."""
    c = np.int64(world.clauses.meta[k, CONTEXT])
    if c >= 0:
        for a in range(world.contexts.value.shape[1]):
            if depends(world.templates.row, world.clauses.meta[k, TEMPLATE], a):
                low, high = slack(ix, k, a, world)
                narrow(world.contexts, c, a, low, high)


@bare
def tell_others(ix, k, g, a, world):
    """As :func:`tell`, where only what entry ``k`` holds in a group has changed; ``a`` is told by the caller."""
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    r, c = meta[k, TEMPLATE], np.int64(meta[k, CONTEXT])
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = ix.attribute_slot[pred[p, ATTRIBUTE]]
        if c < 0 or s < ix.group[g] or s >= ix.group[g + 1]:
            continue
        for end in range(2):
            kind = pred[p, LOW] if end == 0 else pred[p, HIGH]
            other = np.int64(pred[p, LOW_CTX] if end == 0 else pred[p, HIGH_CTX])
            if (kind == CTX or kind == CTX_PLUS) and other != a:
                low, high = slack(ix, k, other, world)
                narrow(world.contexts, c, other, low, high)


@bare
def settle(ix, k, g, world):
    """Deescalate entry ``k`` in a group: place it anew as ``ix.want`` and ``ix.aim`` say."""
    move(ix, k, g, False)
    ix.count[DEESCALATIONS] += 1
    tell_others(ix, k, g, np.int64(-1), world)


@bare
def reconsider(ix, k, world):
    """Clause ``k`` was placed anew: an interval may have become empty, or unbounded, or found no room."""
    if ix.rule[STRATEGY] == EAGER:
        ix.certain[k] = is_certain(ix, k, world)


@inlined
def group_of(ix, s):
    """The group of a slot."""
    g = 0
    while ix.group[g + 1] <= s:
        g += 1
    return g
