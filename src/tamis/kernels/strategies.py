"""The strategies of paper 000 over any structure: what an update does to an index, and when an index gets better again.

An entry is a clause. For every slot it *holds* a range, K(i): the index returns it for messages in that range. The
structures (:mod:`skiplist`, :mod:`hashtable`, ...) know how to place a range at a *level*: 0 is exact, higher levels
round outward, the top is the whole domain, where an entry needs no structure at all. A strategy is then short:

| | when k(i) leaves K(i) | and when it does not |
|---|---|---|
| NOINDEX | it cannot: every entry is returned always | nothing |
| EAGER | place it exactly | place it exactly |
| PARTIAL | as EAGER inside the scope; outside the entry is returned always | the same |
| GBU | place it at the level of leaves: the ranges that are there, nothing is split or joined | nothing |
| AGILE | *escalate* the end that left: up to a range that covers | nothing, the index does not even hear of it |

AGILE *deescalates* when a message meets an entry in vain and the policy agrees: ``fixed(FP)`` at every FP-th such false
positive (``always`` is FP = 1), ``auto(C)`` with FP = C * updates / false positives, both of late. It goes down to
where that message would not have met it. ``cost``, ours, is in :mod:`tamis.kernels.cost`.

Invariants: k(i) in K(i) for every entry that some message could match; a context value may move without a word to the
index while k(i) stays in K(i) (``Contexts.safe``).
"""

from __future__ import annotations

import math

import numpy as np

from . import cost
from .bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CLOSED,
    COMPLEX,
    CONSTANTS,
    CONTEXT,
    ESCALATIONS,
    FALSE_POSITIVES,
    FIRST_PREDICATE,
    FLAGS,
    GATE_LENGTH,
    HAS_EFFECT,
    HAS_SIBLING,
    LISTENERS,
    META_COLUMNS,
    N_ENTRIES,
    PLACE,
    PREDICATES,
    PROBES,
    PROFILE,
    TEMPLATE,
    TRAITS,
    UPDATES,
)
from .cells import BY_CONTEXT, moves, routed
from .entries import (
    AGILE,
    AUTO,
    BEST,
    COST,
    CREDIT,
    EAGER,
    EVERYWHERE,
    GBU,
    HEARD,
    IN_VAIN,
    OUT,
    PARAMETER,
    PARTIAL,
    POLICY,
    RECENT_UPDATES,
    RECENT_VAIN,
    SHUT,
    STRATEGY,
    TEST_COST,
    collect,
    ends,
    enter,
    group_of,
    in_scope,
    is_certain,
    is_inside,
    is_left,
    leaf,
    learn_price,
    leave,
    move,
    put,
    read,
    reconsider,
    settle,
    sink,
    slack,
    take,
    tell,
    tell_others,
    top,
    towards,
)
from .jit import bare, kernel
from .merge import ONE64, begin, clear, is_empty, take_out
from .postfilter import holds, satisfiable
from .simd import cycles, prefetch

FADING = 1 / 64  # what AUTO has counted fades by this much at every message
AHEAD = 8


# -- updates ---------------------------------------------------------------------------------------------------


@bare
def _revise(ix, k, g, world):
    """The interval of clause ``k`` on a group may have moved: do what the strategy says. Whether it was placed anew."""
    read(ix, k, g, world)
    strategy = ix.rule[STRATEGY]
    first, last = np.int64(ix.group[g]), np.int64(ix.group[g + 1])
    if strategy == PARTIAL and ix.state[k, g] == EVERYWHERE:
        if not in_scope(ix, g):
            return False
    elif strategy <= PARTIAL:
        same = True
        for s in range(first, last):
            same = same and ix.held[k, s, 0] == ix.want[s, 0] and ix.held[k, s, 1] == ix.want[s, 1]
        if same:
            reconsider(ix, k, world)
            return False
    elif is_inside(ix, k, g):
        return False
    for s in range(first, last):
        for end in range(2):
            ix.aim[s, end] = 0
            if strategy == GBU:
                ix.aim[s, end] = min(leaf(ix), top(ix, g) - 1)
            elif strategy == AGILE:
                ix.aim[s, end] = ix.level[k, s, end]
                if ix.rule[POLICY] == COST:
                    ix.aim[s, end] = np.int8(ix.seen[s, BEST])
                elif is_left(ix, k, s, end):
                    ix.aim[s, end] = min(top(ix, g), np.int64(ix.level[k, s, end]) + 1)
    if strategy == AGILE:
        ix.count[ESCALATIONS] += 1
    move(ix, k, g, strategy == AGILE and (ix.rule[POLICY] != COST or cost.may_grow(ix, k, g)))
    reconsider(ix, k, world)
    return True


@bare
def escalate(ix, k, a, v, world):
    """Context attribute ``a`` of clause ``k`` became ``v`` outside its safe range; returns the new safe range."""
    meta, row, pred = world.clauses.meta, world.templates.row, world.templates.predicate
    nothing = (np.float32(np.inf), np.float32(-np.inf))
    if meta[k, PLACE] < 0:
        return nothing
    r = meta[k, TEMPLATE]
    if a < 64 and not (meta[k, FLAGS] & CLOSED or math.isnan(v)):
        p = routed(ix, r, BY_CONTEXT, a, np.int64(row[r, FIRST_PREDICATE]))
        if p >= 0:  # the one predicate that this value moves
            g = group_of(ix, np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]]))
            start = cycles() if ix.rule[POLICY] == COST else np.int64(0)
            moved = _revise(ix, k, g, world)
            if moved and ix.rule[STRATEGY] != EAGER:
                tell_others(ix, k, g, a, world)
            low, high = slack(ix, k, a, world)
            if moved and ix.rule[POLICY] == COST:
                learn_price(ix, k, g, np.float64(cycles() - start))
            return low, high
    if row[r, GATE_LENGTH] > 0 or meta[k, FLAGS] & CLOSED or math.isnan(v):
        if not satisfiable(k, world):
            if not meta[k, FLAGS] & CLOSED:
                leave(ix, k, world)
                enter(ix, k, world)
            return nothing
        if meta[k, FLAGS] & CLOSED:
            ix.count[SHUT] -= 1
            enter(ix, k, world)
            return slack(ix, k, a, world)
    moved = False
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
        if s >= 0 and (pred[p, TRAITS] & COMPLEX or moves(pred, p, a)):
            moved = _revise(ix, k, group_of(ix, s), world) or moved
    if moved and ix.rule[STRATEGY] != EAGER:
        tell(ix, k, world)  # other values move the same ends, or other ends of the same group
    return slack(ix, k, a, world)


@bare
def follow(ix, k, p, a, v, world):
    """As :func:`tamis.kernels.agile.follow`: EAGER writes the new value and goes on listening."""
    meta = world.clauses.meta
    if ix.rule[STRATEGY] > PARTIAL or meta[k, PLACE] < 0 or meta[k, FLAGS] & CLOSED or math.isnan(v):
        return False
    low, high = escalate(ix, k, a, v, world)
    return low > high and not meta[k, FLAGS] & CLOSED


@bare
def _fetch(ix, k, s):
    """Prefetch what placing entry ``k`` anew on slot ``s`` will read."""
    g, marks = group_of(ix, s), ix.postings.marks
    prefetch(ix.held, (k * ix.held.shape[1] + s) * 2)
    for i in range(0, 2 * np.int64(ix.postings.used[k, g]) + 1, 16):  # lines of 16 numbers
        prefetch(marks, (k * marks.shape[1] + g) * marks.shape[2] + i)


@bare
def announce(ix, k, a, world):
    """Prefetch what an escalation of clause ``k`` by context attribute ``a`` will read."""
    row = world.templates.row
    r = np.int64(world.clauses.meta[k, TEMPLATE])
    p = routed(ix, r, BY_CONTEXT, a, np.int64(row[r, FIRST_PREDICATE])) if a < 64 else np.int64(-1)
    if p >= 0:
        _fetch(ix, k, np.int64(ix.attribute_slot[world.templates.predicate[p, ATTRIBUTE]]))
    return np.int64(-1)


@bare
def observe(ix, c, a, v, old, weight, world):
    """One update that stands for ``weight`` of them: only the policy ``cost`` wants to know."""
    if ix.rule[POLICY] == COST:
        cost.observe(ix, c, a, v, old, weight, world)


@bare
def deescalate(ix, chunk, world):
    """Nothing is owed: the probe has done it."""


# -- policies --------------------------------------------------------------------------------------------------


@bare
def reckon(ix, messages, failed):
    """Keep the counts of AUTO: so many messages more, and their false positives."""
    if ix.rule[POLICY] == AUTO:
        kept = max(0.0, 1.0 - FADING * messages)
        ix.rule[RECENT_UPDATES] = kept * ix.rule[RECENT_UPDATES] + ix.count[UPDATES] - ix.rule[HEARD]
        ix.rule[RECENT_VAIN] = kept * ix.rule[RECENT_VAIN] + failed
        ix.rule[HEARD] = ix.count[UPDATES]


@bare
def wanted(ix, k, s, end):
    """``DEpolicy`` of paper 000: whether a false positive of entry ``k`` on an end of a slot shall deescalate it."""
    if ix.level[k, s, end] == 0:
        return False
    if ix.rule[POLICY] == COST:
        return cost.paid(ix, k, s, end, np.inf)
    ix.rule[IN_VAIN] += 1.0
    patience = ix.rule[PARAMETER]
    if ix.rule[POLICY] == AUTO:
        patience *= ix.rule[RECENT_UPDATES] / max(1.0, ix.rule[RECENT_VAIN])
    if ix.rule[IN_VAIN] < patience:
        return False
    ix.rule[IN_VAIN] = 0.0
    return True


@bare
def lower(ix, k, s, end, x, world):
    """Deescalate entry ``k``, met in vain at ``x`` on one end of a slot; the other end, as it is placed anew, too."""
    g = group_of(ix, s)
    if ix.rule[POLICY] == COST:
        cost.to_best(ix, k, g, world)
        return
    read(ix, k, g, world)
    sunk = sink(ix, g, k, s, end, x)
    for t in range(ix.group[g], ix.group[g + 1]):
        for e in range(2):
            ix.aim[t, e] = min(top(ix, g), np.int64(ix.level[k, t, e]))
            if t == s:
                ix.aim[t, e] = min(ix.aim[t, e], sunk)
    settle(ix, k, g, world)


@bare
def tighten(ix, ids, world):
    """Place all clauses exactly."""
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        if world.clauses.meta[k, FLAGS] & CLOSED:
            continue
        for g in range(ix.group.shape[0] - 1):
            read(ix, k, g, world)
            for s in range(ix.group[g], ix.group[g + 1]):
                ix.aim[s, 0], ix.aim[s, 1] = 0, 0
            take(ix, k, g)
            put(ix, k, g)
        ix.certain[k] = is_certain(ix, k, world)
        tell(ix, k, world)


# -- messages --------------------------------------------------------------------------------------------------


@bare
def blamed(ix, k, m, world):
    """2 * slot + end of the indexed predicate of clause ``k`` that fails for message ``m``; -1 when none does.

    Of several, the first that is not given up: where the top is best, deescalating is not.
    """
    blame = -1
    for s in range(ix.slot_attribute.shape[0]):
        x = world.messages.value[m, ix.slot_attribute[s]]
        low, high = ends(ix, k, s, world)
        if x < low or x > high:
            blame = 2 * s + np.int64(x > high)
            if ix.seen[s, BEST] < top(ix, group_of(ix, s)):
                return blame
    return blame


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
    n = n_special = failed = tested = lowered = 0
    plain = world.messages.residual.shape[0] == 0 and contexts.residual.shape[0] == 0
    weigh = ix.rule[POLICY] == COST
    agile = ix.rule[STRATEGY] == AGILE
    start = cycles() if weigh else np.int64(0)
    columns = contexts.value.shape[1]
    for i in range(-AHEAD, total):
        if i + 2 * AHEAD < total:
            prefetch(meta, np.int64(doubts[i + 2 * AHEAD]) * META_COLUMNS)
        if i + AHEAD < total:
            k = np.int64(doubts[i + AHEAD])
            if meta[k, CONTEXT] >= 0:
                prefetch(contexts.value, np.int64(meta[k, CONTEXT]) * columns)
            prefetch(world.clauses.constant, np.int64(meta[k, CONSTANTS]))
            if agile:
                prefetch(ix.level, k * ix.level.shape[1] * 2)  # for what may be met in vain
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
                        edges[lowered] = np.uint64(k) << np.uint64(8) | np.uint64(blame)
                        lowered += 1
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
    reckon(ix, 1, failed)
    if weigh and tested >= 16:
        ix.rule[TEST_COST] = towards(ix.rule[TEST_COST], np.float64(cycles() - start) / tested, 0.05)
    for i in range(-AHEAD, lowered):  # together, so that the cache misses of several overlap
        if i + AHEAD < lowered:
            k, s = np.int64(edges[i + AHEAD] >> np.uint64(8)), np.int64(edges[i + AHEAD] & np.uint64(255)) >> 1
            _fetch(ix, k, s)
        if i >= 0:
            k, blame = np.int64(edges[i] >> np.uint64(8)), np.int64(edges[i] & np.uint64(255))
            lower(ix, k, blame >> 1, blame & 1, world.messages.value[m, ix.slot_attribute[blame >> 1]], world)
    if weigh:
        cost.meet(ix, m, world)
        cost.adapt(ix, 1, world)
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
            read(ix, k, g, world)
            if not is_inside(ix, k, g):
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
