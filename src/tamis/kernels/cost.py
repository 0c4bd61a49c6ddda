"""The policy ``cost`` of AGILE over the indexes of paper 000: at which level an entry costs least (its future work).

It measures, in cycles, what a false positive and a move cost, how often and how far values move, and how wide the
ranges of each level are. From that it computes the *best* level of every group: there go entries that leave their
range, at once; the others as far as the false positives they cause pay; and all of them, met or not, once updates have
become rare. Refuses to know why an entry is met in vain or leaves its range: that is
:mod:`tamis.kernels.strategies`.
"""

from __future__ import annotations

import numpy as np

from .bundles import (
    ATTRIBUTE,
    CLOSED,
    FIRST_PREDICATE,
    FLAGS,
    LISTENERS,
    PREDICATES,
    PROBES,
    TEMPLATE,
)
from .cells import moves
from .entries import (
    ASKED,
    BEST,
    CREDIT,
    DEARER,
    INDEX_UPDATES,
    LARGEST,
    LEAST,
    LEVELS,
    MESSAGES,
    MOVED,
    OBSERVED,
    OUT,
    PASSING,
    PLACED,
    PRICES,
    REACH,
    RECENT_UPDATES,
    REVIEWED,
    STEPS,
    SWEPT,
    TEST_COST,
    UNSWEPT,
    group_of,
    is_left,
    leaf,
    learn_reach,
    put,
    read,
    settle,
    take,
    top,
)
from .jit import bare
from .simd import cycles

REVIEW = 64  # messages between two reviews of the best levels
HURRY = 8_192  # or index updates, when they are many between messages
FORGET = 8  # messages after which it is forgotten how many updates came with them, all but this part
CHOSEN, TRIED = range(2)  # rows of Family.levels
KEPT = 2.0  # times what the best level reaches: so far an end may lie that is not placed anew
SURELY = 0.95  # of what another choice costs: below that it is better, and not by chance
RARELY = 0.1  # of the price of a move: what asks for less will pay many times over, and need not wait for a message
ROUND = 512  # messages in which a sweep looks at all entries


# -- what is measured ---------------------------------------------------------------------------------------------


@bare
def survey(ix, ids, world):
    """Try all levels with some clauses: how far their ranges reach, and what a move costs."""
    for i in range(ids.shape[0]):
        k = np.int64(ids[i])
        if world.clauses.meta[k, FLAGS] & CLOSED:
            continue
        for g in range(ix.group.shape[0] - 1):
            read(ix, k, g, world)
            take(ix, k, g)
            for j in range(min(LEVELS, top(ix, g)) - 1, -1, -1):
                for s in range(ix.group[g], ix.group[g + 1]):
                    ix.aim[s, 0] = ix.aim[s, 1] = j
                start = cycles()
                put(ix, k, g)
                at = PRICES + min(LEVELS - 1, np.int64(ix.level[k, ix.group[g], 0]))
                if ix.state[k, g] == PLACED:
                    learn_reach(ix, k, g)
                take(ix, k, g)
                # Towards the median: the first touch of a page takes longer than a hundred moves.
                ix.seen[ix.group[g], at] *= 1.05 if cycles() - start > ix.seen[ix.group[g], at] else 0.95
            put(ix, k, g)


@bare
def observe(ix, c, a, v, old, weight, world):
    """One update stands for ``weight`` of them: how often, and how far, the ranges of a slot move."""
    k = np.int64(world.contexts.head[c])
    step = v - old
    ix.rule[RECENT_UPDATES] += weight
    ix.rule[OBSERVED] += weight
    if k < 0 or not (step == step):
        return
    row, pred = world.templates.row, world.templates.predicate
    r = world.clauses.meta[k, TEMPLATE]
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        s = np.int64(ix.attribute_slot[pred[p, ATTRIBUTE]])
        if s >= 0 and moves(pred, p, a):
            ix.seen[s, MOVED] += weight
            ix.seen[s, STEPS] += weight * step * step
    if ix.count[INDEX_UPDATES] - ix.rule[REVIEWED] >= HURRY:
        review(ix)


@bare
def meet(ix, m, world):
    """Take note of a message: between which values they lie."""
    for s in range(ix.slot_attribute.shape[0]):
        x = world.messages.value[m, ix.slot_attribute[s]]
        if x == x:
            ix.seen[s, LEAST], ix.seen[s, LARGEST] = min(ix.seen[s, LEAST], x), max(ix.seen[s, LARGEST], x)


# -- what a level costs -------------------------------------------------------------------------------------------


@bare
def _highest(ix, g):
    return min(LEVELS - 1, top(ix, g))


@bare
def _reaches(ix, s, j):
    """How far a range of level ``j`` goes beyond its interval; a level not yet tried: twice as far as the one below."""
    if j >= _highest(ix, group_of(ix, s)):
        return np.inf
    reach = 0.0
    for i in range(1, j + 1):
        reach = max(ix.seen[s, REACH + i], reach * 2)
    return reach


@bare
def _met_at(ix, s, j):
    """The share of messages that meet an entry at level ``j`` of a slot."""
    domain = max(1e-300, ix.seen[s, LARGEST] - ix.seen[s, LEAST])
    return min(1.0, ix.seen[s, PASSING] + 2.0 * _reaches(ix, s, j) / domain)


@bare
def _leaves(ix, s, j, more):
    """How often an entry leaves its range at level ``j`` of a slot, per message; with ``more`` updates than were seen.

    A walk of steps d leaves a range that reaches w beyond it after about (w / d)**2 steps. How many updates there are
    is what was seen of late, since a burst ends at once; which of them move a slot, and how far, of a longer time.
    """
    reach, moved = _reaches(ix, s, j), ix.seen[s, MOVED]
    step2 = ix.seen[s, STEPS] / max(1.0, moved)
    share = 1.0 / (1.0 + reach * reach / step2) if step2 > 0.0 else 0.0
    if reach == 0.0:
        share = 1.0
    updates = ix.rule[RECENT_UPDATES] * moved / max(1.0, ix.rule[OBSERVED]) + more
    return share * updates / max(1.0, ix.rule[MESSAGES]) / max(1, ix.count[LISTENERS])


@bare
def _move_price(ix, g, j):
    """Cycles of a move to level ``j`` of a group: what it took in the survey, at the speed of late."""
    return ix.rule[DEARER] * ix.seen[ix.group[g], PRICES + j]


@bare
def _price(ix, g, j):
    """What an entry at level ``j`` of a group costs: (moves, in cycles per message; the share of messages it meets)."""
    moves, met = 0.0, 1.0
    for s in range(ix.group[g], ix.group[g + 1]):
        moves += _leaves(ix, s, j, 0.0) * _move_price(ix, g, j)
        met *= _met_at(ix, s, j)
    return moves, met


# -- the best levels ----------------------------------------------------------------------------------------------


@bare
def _improve(ix, row):
    """Improve a choice in ``ix.levels``, a group at a time, until none wants to change; what an entry costs then.

    An entry is tested when all groups return it: what one of them shuts out, the others need not.
    """
    levels, groups = ix.levels, ix.group.shape[0] - 1
    cost, changed = 0.0, True
    while changed:
        changed = False
        for g in range(groups):
            moves, met = 0.0, 1.0
            for h in range(groups):
                if h != g:
                    paid, share = _price(ix, h, levels[row, h])
                    moves, met = moves + paid, met * share
            paid, share = _price(ix, g, levels[row, g])
            cost = moves + paid + met * share * ix.rule[TEST_COST]
            for j in range(_highest(ix, g) + 1):
                paid, share = _price(ix, g, j)
                other = moves + paid + met * share * ix.rule[TEST_COST]
                if other < SURELY * cost:
                    levels[row, g], cost, changed = j, other, True
    return cost


@bare
def _charge(ix):
    """What false positives have to have cost before an entry goes from each level to the best.

    The price of the move: so moves never cost more than false positives have. Less where an entry stays, by the updates
    of late, until it has been spared the price many times: there waiting costs more than a move in vain.
    """
    slots = ix.slot_attribute.shape[0]
    for s in range(slots):
        best = np.int64(ix.seen[s, BEST])
        price, leaves, met = _move_price(ix, group_of(ix, s), best), _leaves(ix, s, best, 1.0), _met_at(ix, s, best)
        test = ix.rule[TEST_COST]  # of messages that all other slots let through
        for t in range(slots):
            test *= _met_at(ix, t, np.int64(ix.seen[t, BEST])) if t != s else 1.0
        for j in range(best + 1, LEVELS):
            spared = (_met_at(ix, s, j) - met) * test
            ix.seen[s, ASKED + j] = price * min(1.0, price * leaves / max(1e-300, spared))
        if ix.seen[s, ASKED + LEVELS - 1] > RARELY * price:
            ix.seen[s, SWEPT] = LEVELS
        elif best < ix.seen[s, SWEPT]:
            ix.seen[s, SWEPT], ix.rule[UNSWEPT] = best, ix.state.shape[0]
        else:
            ix.seen[s, SWEPT] = best


@bare
def review(ix):
    """The levels at which an entry costs least per message, by what has been measured lately.

    Which group shall be sharp and which not is more than one can see from where one is: so each is also tried as the
    only one that is.
    """
    levels, groups = ix.levels, ix.group.shape[0] - 1
    for g in range(groups):
        levels[CHOSEN, g] = np.int64(ix.seen[ix.group[g], BEST])
    least = _improve(ix, CHOSEN)
    for only in range(groups):
        for g in range(groups):
            levels[TRIED, g] = 0 if g == only else _highest(ix, g)
        cost = _improve(ix, TRIED)
        if cost < SURELY * least:
            least = cost
            for g in range(groups):
                levels[CHOSEN, g] = levels[TRIED, g]
    for g in range(groups):
        for s in range(ix.group[g], ix.group[g + 1]):
            ix.seen[s, BEST] = levels[CHOSEN, g]
    _charge(ix)
    for s in range(ix.slot_attribute.shape[0]):
        ix.seen[s, MOVED] *= 0.5
        ix.seen[s, STEPS] *= 0.5
    ix.rule[OBSERVED] *= 0.5
    if ix.rule[MESSAGES] >= FORGET and ix.rule[RECENT_UPDATES] >= 1.0:  # that there are none is worth knowing for long
        ix.rule[MESSAGES] /= FORGET
        ix.rule[RECENT_UPDATES] /= FORGET
    ix.rule[REVIEWED] = ix.count[INDEX_UPDATES]


@bare
def adapt(ix, messages, world):
    """So many messages more have been probed."""
    ix.rule[MESSAGES] += messages
    if ix.count[PROBES] % REVIEW < messages:
        review(ix)
    sweep(ix, messages, world)


# -- entries ------------------------------------------------------------------------------------------------------


@bare
def may_grow(ix, k, g):
    """Whether entry ``k``, which leaves its range at one end, may keep the other: a walk comes back to where it was.

    Not where that lies beyond what the best level reaches several times over: false positives would add up.
    """
    if ix.state[k, g] != PLACED:
        return False
    for s in range(ix.group[g], ix.group[g + 1]):
        best = np.int64(ix.seen[s, BEST])
        if best < leaf(ix) or best >= _highest(ix, g):
            return False
        far = KEPT * _reaches(ix, s, best)
        for end in range(2):
            if is_left(ix, k, s, end):
                if ix.level[k, s, end] < leaf(ix):
                    return False
            elif abs(ix.want[s, end] - ix.held[k, s, end]) > far:
                return False
    return True


@bare
def paid(ix, k, s, end, most):
    """Whether the account holds what an end of entry ``k`` is asked for, ``most`` at the most; then it is taken off."""
    level = np.int64(ix.level[k, s, end])
    if level <= ix.seen[s, BEST]:
        return False
    asked = ix.seen[s, ASKED + min(LEVELS - 1, level)]
    if asked > most or ix.rule[CREDIT] < asked:
        return False
    ix.rule[CREDIT] -= asked
    return True


@bare
def to_best(ix, k, g, world):
    """Deescalate entry ``k`` in a group to the best level."""
    read(ix, k, g, world)
    for s in range(ix.group[g], ix.group[g + 1]):
        ix.aim[s, 0] = ix.aim[s, 1] = np.int8(ix.seen[s, BEST])
    settle(ix, k, g, world)


@bare
def _is_due(ix, k, g, most):
    """Whether an end of entry ``k`` in a group shall go to the best level, for ``most`` at the most, though not met."""
    for s in range(ix.group[g], ix.group[g + 1]):
        if paid(ix, k, s, 0, most) or paid(ix, k, s, 1, most):
            return True
    return False


@bare
def sweep(ix, messages, world):
    """Entries that no message has met yet go to the best level, too, where that pays many times over: the last of them
    would wait for thousands of messages. A part of all entries for each of so many messages."""
    last = np.int64(ix.rule[UNSWEPT])
    first = max(0, last - messages * (ix.state.shape[0] // ROUND + 1))
    for g in range(ix.group.shape[0] - 1):
        most = RARELY * _move_price(ix, g, np.int64(ix.seen[ix.group[g], BEST]))
        for k in range(first, last):
            if ix.state[k, g] != OUT and _is_due(ix, k, g, most):
                to_best(ix, k, g, world)
    ix.rule[UNSWEPT] = first
