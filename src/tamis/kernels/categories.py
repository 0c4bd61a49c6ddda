"""Users with sets of categories in several content graphs, and who of them an event matches.

In every graph a user has some categories, an event has some, and one of each has to be related: in a graph that is
``within``, the user's is the event's or above it; in one that is ``covers``, it is the event's or below it. An event
matches a user when that holds in all graphs.

Each category of a user is an entry of a posting list (see :mod:`tamis.kernels.postings`). Every category has two lists:
of the entries that are *exact* there, and of those that have *escalated* to it, which are somewhere in its tree. One
more list per graph has what may be anywhere. The law is paper 000's ``k(i) in K(i)``: ``held`` is the interval of the
tree in which the entry may move for the price of a store.

- **Probe.** Labels and counts say how many entries each graph would return. The graph that returns fewest is asked;
  what it returns is verified in the others, fewest first. Entries that are exact where they were asked for are sure.
  Before that a word per user, the stretches of a tree where its categories are or were, rules most users out.
- **Update.** Inside ``held``: a store. Else EAGER puts the entry into the list of its category. AGILE does so, too,
  while that costs less than what events would verify in vain; when updates are many it escalates the entry: up the
  trunk, to the lowest category that holds both.
- **Deescalate.** What events verify in vain buys steps of a clock hand over all entries. An escalated entry that has
  not moved since the hand passed goes to the list of its category; one that has moved, but has not left what it holds
  for some rounds, goes one step down the tree.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numba import types
from numba.extending import intrinsic

from . import postings
from .bundles import Postings
from .digraph import Edges, below
from .jit import bare
from .labels import (
    EMPTY,
    UNITS,
    Labels,
    ancestors,
    category_of,
    climb,
    holds_point,
    last_of,
    number_of,
    shelf_of,
)
from .postings import AT, ENTRY, FILL, WHICH
from .records import Record
from .simd import prefetch

LABELS, EDGES = range(2)
EVERYWHERE = np.int32(2**31 - 1)
UNSURE = 1 << 30
AHEAD, LISTS_AHEAD = 24, 4  # how many updates or candidates, and lists, ahead memory is asked for
# Entries of Categories.state.
(HAND, CREDIT, STAMP, RETURNED, VAIN, UPDATES, LISTED, ESCALATED, DEESCALATED) = range(9)
PRICE = 16  # entries verified in vain that buy one step of the hand
MOVED, ROUND = 1, 2  # what the hand finds: whether the entry has moved since it passed, and rounds to rest
REST = 16  # rounds in which an entry that keeps moving is left where it escalated to
WIDEST = 128  # categories of an event in a graph
# Columns of Categories.rates: updates since the last event; running means per event of updates, and of what the other
# graphs return; whether entries escalate; how many entries there are.
PENDING, UPDATED, OTHERS, ESCALATES, ENTRIES = range(5)
MEMORY = 1 / 16
LISTING = 6  # candidates that are verified in the time of one change of lists: 110 and 18 ns
ALL = np.uint64(2**64 - 1)


class Categories(Record):
    """Users and their categories; ``most`` is how many a user may have in a graph."""

    FIELDS: ClassVar = {
        "postings": Postings,
        "graph": (np.int64, 2),  # [graph, 2]: the addresses of its labels and its edges
        "covers": (np.uint8, 1),  # [graph]: whether the event's category has to be above the user's
        "start": (np.int64, 1),  # [graph + 1]: its first list; category c has lists 2c and 2c + 1, the last is of all
        # [graph, user, most]: the categories as they are, -1 behind them; in graphs that cover, their numbers
        "value": (np.int32, 3),
        # [graph, user, 3 * most]: the numbers between which they may move, and what the hand will find
        "held": (np.int32, 3),
        # [graph, user]: bits of the stretches of numbers where the user's categories are or were; where graphs cover
        "where": (np.uint64, 2),
        "stretch": (np.int64, 1),  # [graph]: numbers of a stretch, as a power of two
        "rates": (np.float64, 2),  # [graph, 5]
        "coarse": (np.int32, 2),  # [graph, number >> 6]: entries listed there
        "marks": (np.uint8, 2),  # [graph, category]: all 0 between events
        "queue": (np.int32, 2),  # [graph, category]
        "span": (np.int32, 3),  # [graph, WIDEST, 2]: the intervals of the event's categories
        "seen": (np.int32, 1),  # [user]: the last event that returned it
        "bag": (np.int32, 1),  # [user + 1]: what the event returned
        "plan": (
            np.int64,
            2,
        ),  # [4, graph]: entries it would return; graphs, fewest first; marked; categories of the event
        "state": (np.int64, 1),
    }


@intrinsic
def _labels(typingctx, address):
    return Labels.numba_type(types.int64), lambda context, builder, signature, args: args[0]


@intrinsic
def _edges(typingctx, address):
    return Edges.numba_type(types.int64), lambda context, builder, signature, args: args[0]


# -- entries ---------------------------------------------------------------------------------------------------


@bare
def category(ix, k, g, j):
    """Category ``j`` of a user."""
    v = np.int64(ix.value[g, k, j])
    return category_of(_labels(ix.graph[g, LABELS]), v) if ix.covers[g] else v


@bare
def _count(ix, g, listed, change):
    """One entry more or less in list ``listed`` of a graph."""
    if listed != ix.start[g + 1] - 1:
        number = number_of(_labels(ix.graph[g, LABELS]), (listed - ix.start[g]) >> 1)
        if number >= 0:  # else the category was removed
            ix.coarse[g, number >> 6] += change


@bare
def _bit(ix, g, number):
    return np.uint64(1) << np.uint64(number >> ix.stretch[g])


@bare
def _hold(ix, k, g, j, low, high):
    ix.held[g, k, 3 * j], ix.held[g, k, 3 * j + 1] = low, high


@bare
def insert(ix, k, g, c):
    """User ``k`` gains a category in a graph, exact; False when there is no room."""
    j = np.int64(ix.postings.used[k, g])
    listed = ix.start[g] + 2 * c
    if not postings.add(ix.postings, listed, k, g):
        return False
    number = np.int32(number_of(_labels(ix.graph[g, LABELS]), c))
    if ix.covers[g]:
        ix.value[g, k, j] = number
        ix.where[g, k] |= _bit(ix, g, number)
    else:
        ix.value[g, k, j] = c
    ix.held[g, k, 3 * j + 2] = 0
    ix.rates[g, ENTRIES] += 1
    _hold(ix, k, g, j, number, number)
    _count(ix, g, listed, 1)
    return True


@bare
def insert_many(ix, users, categories, start):
    """``insert`` of ``categories`` [user, graph, most], -1 for none; how many users were done."""
    for i in range(start, users.shape[0]):
        k = np.int64(users[i])
        for g in range(categories.shape[1]):
            for j in range(categories.shape[2]):
                if categories[i, g, j] >= 0 and ix.postings.used[k, g] <= j:
                    if not insert(ix, k, g, np.int64(categories[i, g, j])):
                        return i
    return users.shape[0]


@bare
def remove_many(ix, users):
    """Forget users."""
    for k in users:
        for g in range(ix.covers.shape[0]):
            for j in range(ix.postings.used[k, g]):
                _count(ix, g, np.int64(ix.postings.marks[k, g, 2 * j]), -1)
                ix.value[g, k, j] = -1
            ix.rates[g, ENTRIES] -= ix.postings.used[k, g]
            postings.drop(ix.postings, k, g)
            ix.where[g, k] = 0


@bare
def _list_at(ix, k, g, j, listed, low, high):
    """Move an entry to a list; False, and it stays, when there is no room."""
    old = np.int64(ix.postings.marks[k, g, 2 * j])
    if not postings.relist(ix.postings, listed, k, g, j):
        return False
    _count(ix, g, old, -1)
    _count(ix, g, listed, 1)
    _hold(ix, k, g, j, low, high)
    ix.state[LISTED] += 1
    return True


@bare
def escalate(ix, k, g, j, number):
    """Move an entry up the trunk to the lowest category whose tree has ``number``; False when there is no room."""
    lb = _labels(ix.graph[g, LABELS])
    listed = np.int64(ix.postings.marks[k, g, 2 * j])
    top = ix.start[g + 1] - 1
    node = np.int64(-1) if listed == top else (listed - ix.start[g]) >> 1
    while node >= 0 and not (number_of(lb, node) <= number and number <= last_of(lb, node)):
        node = np.int64(lb.trunk[node])
    ix.state[ESCALATED] += 1
    if node < 0:
        return _list_at(ix, k, g, j, top, np.int32(0), EVERYWHERE)
    return _list_at(ix, k, g, j, ix.start[g] + 2 * node + 1, number_of(lb, node), last_of(lb, node))


@bare
def step_down(ix, k, g, j):
    """Move an escalated entry one step down its tree; False when there is no room."""
    lb = _labels(ix.graph[g, LABELS])
    listed = np.int64(ix.postings.marks[k, g, 2 * j])
    above = np.int64(-1) if listed == ix.start[g + 1] - 1 else (listed - ix.start[g]) >> 1
    node = category(ix, k, g, j)
    if node == above or lb.trunk[node] == above:
        return deescalate(ix, k, g, j)
    while lb.trunk[node] != above:
        node = np.int64(lb.trunk[node])
    return _list_at(ix, k, g, j, ix.start[g] + 2 * node + 1, number_of(lb, node), last_of(lb, node))


@bare
def deescalate(ix, k, g, j):
    """Move an entry to the list of its category; False when there is no room."""
    c = category(ix, k, g, j)
    number = np.int32(number_of(_labels(ix.graph[g, LABELS]), c))
    return _list_at(ix, k, g, j, ix.start[g] + 2 * c, number, number)


@bare
def is_exact(ix, k, g, j):
    """Whether an entry is in the list of its category."""
    return ix.postings.marks[k, g, 2 * j] == ix.start[g] + 2 * category(ix, k, g, j)


@bare
def update(ix, k, g, j, c, agile):
    """Category ``j`` of a user is now ``c``; False, and nothing has changed, when there is no room."""
    number = np.int32(number_of(_labels(ix.graph[g, LABELS]), c))
    old, new, held = ix.value[g, k, j], number if ix.covers[g] else np.int32(c), ix.held
    low, high = held[g, k, 3 * j], held[g, k, 3 * j + 1]
    rates = ix.rates
    rates[g, PENDING] += 1
    if agile and rates[g, PENDING] * LISTING > 4 * rates[g, OTHERS]:
        rates[g, ESCALATES] = 1
    escalates = agile and rates[g, ESCALATES] != 0
    if ix.covers[g] and ix.where[g, k] & _bit(ix, g, number) == 0:
        ix.where[g, k] |= _bit(ix, g, number)
    if low <= number and number <= high and (escalates or low == high):
        ix.value[g, k, j] = new
        if held[g, k, 3 * j + 2] & MOVED == 0:  # else no store, no line to write back
            held[g, k, 3 * j + 2] |= MOVED
    elif escalates:
        if not escalate(ix, k, g, j, number):
            return False
        ix.value[g, k, j], held[g, k, 3 * j + 2] = new, REST * ROUND | MOVED
    else:
        ix.value[g, k, j] = new
        if not deescalate(ix, k, g, j):
            ix.value[g, k, j] = old
            return False
    return True


@bare
def sweep(ix, steps):
    """Move the hand over so many entries."""
    graphs, users, most = ix.value.shape
    total = users * graphs * most
    at = ix.state[HAND]
    for _ in range(min(steps, total)):
        g, rest = at // (users * most), at % (users * most)
        k, j = rest // most, rest % most
        at = at + 1 if at + 1 < total else 0
        if j >= ix.postings.used[k, g] or is_exact(ix, k, g, j):
            continue
        moved = ix.held[g, k, 3 * j + 2]
        if moved & MOVED != 0 and moved >= ROUND and ix.rates[g, ESCALATES] != 0:
            ix.held[g, k, 3 * j + 2] = moved - ROUND - MOVED
        elif step_down(ix, k, g, j) if moved & MOVED != 0 and ix.rates[g, ESCALATES] != 0 else deescalate(ix, k, g, j):
            ix.held[g, k, 3 * j + 2] = 0
            ix.state[DEESCALATED] += 1
    ix.state[HAND] = at


# -- events ----------------------------------------------------------------------------------------------------


@bare
def _fill(ix, listed):
    return np.int64(ix.postings.list[listed, FILL])


@bare
def _unmark(ix, g, size):
    for i in range(size):
        ix.marks[g, ix.queue[g, i]] = 0


@bare
def _listed_in(ix, g, low, high):
    """How many entries are listed at numbers ``low .. high``, about: whole words of 64 numbers."""
    total = np.int64(0)
    for word in range(low >> 6, (high >> 6) + 1):
        total += ix.coarse[g, word]
    if high - low < 63:
        total = total * (high - low + 1) // 64 + 1
    return total


@bare
def _expect(ix, g, wanted, least):
    """How many entries graph ``g`` would return, about. What is above a ``within`` graph's event stays marked.

    When it is clearly more than ``least``, which another graph returns, the lists are not counted.
    """
    lb = _labels(ix.graph[g, LABELS])
    top = _fill(ix, ix.start[g + 1] - 1)
    size, total, some = np.int64(0), top, 0
    for t in wanted:
        if t >= 0:
            ix.span[g, some, 0], ix.span[g, some, 1] = number_of(lb, t), last_of(lb, t)
            some += 1
            size = ancestors(lb, np.int64(t), ix.marks[g], ix.queue[g], size)
            if ix.covers[g]:
                total += _listed_in(ix, g, np.int64(ix.span[g, some - 1, 0]), np.int64(ix.span[g, some - 1, 1]))
    usual = np.int64(size * ix.rates[g, ENTRIES] * 2 / (ix.start[g + 1] - ix.start[g]))
    counted = ix.covers[g] or usual < 2 * least
    if not counted:
        total += usual + 1
    for i in range(size if counted else 0):
        listed = ix.start[g] + 2 * np.int64(ix.queue[g, i])
        total += _fill(ix, listed + 1)
        if not ix.covers[g]:
            total += _fill(ix, listed)
    if ix.covers[g]:
        _unmark(ix, g, size)
        size = 0
    ix.plan[2, g], ix.plan[3, g] = size, some
    return total if some > 0 else np.int64(-1)


@bare
def _sieve(ix, asked):
    """Choose the graph whose ``where`` rules users out before anything else is looked at; not the one that is asked.

    Returns (graph, bits that a user must have one of, bits that all users are taken to have).
    """
    for h in range(1, ix.covers.shape[0]):
        g = ix.plan[1, h]
        if ix.covers[g] and _labels(ix.graph[g, LABELS]).stock[UNITS] <= EMPTY:
            bits = np.uint64(0)
            for n in range(ix.plan[3, g]):
                low, high = ix.span[g, n, 0] >> ix.stretch[g], ix.span[g, n, 1] >> ix.stretch[g]
                bits |= (ALL >> np.uint64(63 - high)) & (ALL << np.uint64(low))
            return g, bits, np.uint64(0)
    return asked, ALL, ALL


@bare
def _take_list(ix, listed, flag, size, sieve):
    """Put the users of a list into the bag, each once per event, if the sieve lets them pass."""
    ps, seen, bag, where = ix.postings, ix.seen, ix.bag, ix.where[sieve[0]]
    marker, first = ps.marker, np.int64(ps.list[listed, AT])
    stamp = np.int32(ix.state[STAMP])
    bits, free = sieve[1], sieve[2]
    last = first + ps.list[listed, FILL]
    for m in range(first, last):
        k = marker[m, ENTRY]
        if (where[k] | free) & bits != 0:
            bag[size] = k | flag
            size += seen[k] != stamp  # a branch would be guessed wrong too often
            seen[k] = stamp
    ix.state[RETURNED] += last - first
    return size


@bare
def _ask(ix, g, wanted, found):
    """Put the users that graph ``g`` returns into the bag, those that are sure first; how many."""
    start, size = ix.start[g], np.int64(0)
    lower, sieve = np.int64(0), _sieve(ix, g)
    if ix.covers[g]:
        lb, eg = _labels(ix.graph[g, LABELS]), _edges(ix.graph[g, EDGES])
        for t in wanted:
            if t >= 0:
                found = below(eg, np.int64(t), ix.marks[g], ix.queue[g], found)
        lower = found
        # What has escalated may be below the event when its category is above something that is.
        for i in range(lower):
            node = np.int64(lb.trunk[ix.queue[g, i]])
            found = climb(lb, node, ix.marks[g], ix.queue[g], found)
        _unmark(ix, g, found)
        for i in range(lower):
            listed = start + 2 * np.int64(ix.queue[g, i])
            size = _take_list(ix, listed, 0, size, sieve)
            size = _take_list(ix, listed + 1, 0, size, sieve)  # all of its tree is below the event
    else:
        lists, marker, queue = ix.postings.list, ix.postings.marker, ix.queue[g]
        for i in range(found):
            if i + LISTS_AHEAD < found:
                prefetch(marker, 2 * np.int64(lists[start + 2 * np.int64(queue[i + LISTS_AHEAD]), AT]))
            size = _take_list(ix, start + 2 * np.int64(queue[i]), 0, size, sieve)
    for i in range(lower, found):
        size = _take_list(ix, start + 2 * np.int64(ix.queue[g, i]) + 1, UNSURE, size, sieve)
    return _take_list(ix, ix.start[g + 1] - 1, UNSURE, size, sieve)


@bare
def _is_below(lb, values, span, wanted):
    """Whether one of the categories, given by number, has an exception in one of the event's intervals."""
    for v in values:
        if v < 0:
            break
        shelf = shelf_of(lb, category_of(lb, np.int64(v)))
        for i in range(wanted if shelf != 0 else 0):
            if holds_point(lb, shelf, np.int64(span[i, 0]), np.int64(span[i, 1])):
                return True
    return False


@bare
def _keep(ix, g, many, only):
    """Keep in the bag who has a category that is related to one of the event in graph ``g``; how many they are.

    With ``only``, those that are sure stay untested.
    """
    value, bag, marks, span = ix.value, ix.bag, ix.marks[g], ix.span[g]
    lb = _labels(ix.graph[g, LABELS])
    wanted, covers = ix.plan[3, g], ix.covers[g] != 0
    most, base = value.shape[2], g * value.shape[1] * value.shape[2]
    plain = lb.stock[UNITS] <= EMPTY
    where, sieved = ix.where[g], covers and plain and not only
    kept = 0
    for i in range(many):
        if i + AHEAD < many:
            prefetch(value, base + np.int64(bag[i + AHEAD] & (UNSURE - 1)) * most)
        b = bag[i]
        k = np.int64(b & (UNSURE - 1))
        hit = only and b == k
        if not hit and covers:
            # Reachability with the event's intervals at hand: `reaches` takes three times as long here.
            for j in range(most):
                number = value[g, k, j]
                if number < 0:
                    break
                for n in range(wanted):
                    hit |= (span[n, 0] <= number) & (number <= span[n, 1])
            if not hit and not plain:
                hit = _is_below(lb, value[g, k], span, wanted)
        elif not hit:
            for j in range(most):
                v = value[g, k, j]
                if v < 0:
                    break
                hit |= marks[v] != 0
        if hit:
            bag[kept] = b
            kept += 1
        elif sieved:
            bits = np.uint64(0)
            for j in range(most):
                if value[g, k, j] < 0:
                    break
                bits |= _bit(ix, g, value[g, k, j])
            where[k] = bits
    return kept


@bare
def probe(ix, event, out, size):
    """The users that an event [graph, categories] matches into ``out`` behind ``size``; -1 when they do not fit."""
    graphs = ix.covers.shape[0]
    ranked, empty, least = 0, False, np.int64(2**61)
    for turn in range(2 * graphs):
        g = turn % graphs
        if (ix.covers[g] != 0) != (turn < graphs):
            continue  # those that cover are quick to count
        expected = _expect(ix, g, event[g], least)
        least = min(least, expected)
        ix.plan[0, g] = expected
        empty |= expected < 0 or (expected == 0 and not ix.covers[g])  # what covers is estimated
        at = ranked
        while at > 0 and ix.plan[0, ix.plan[1, at - 1]] > expected:
            ix.plan[1, at] = ix.plan[1, at - 1]
            at -= 1
        ix.plan[1, at] = g
        ranked += 1
    if not empty:
        ix.state[STAMP] += 1
        if ix.state[STAMP] == EVERYWHERE:
            ix.seen[:] = 0
            ix.state[STAMP] = 1
        g = ix.plan[1, 0]
        before = ix.state[RETURNED]
        kept = _ask(ix, g, event[g], ix.plan[2, g])
        for h in range(1, graphs):
            kept = _keep(ix, ix.plan[1, h], kept, False)
        kept = _keep(ix, g, kept, True)
        ix.state[VAIN] += ix.state[RETURNED] - before - kept
        if size + kept > out.shape[0]:
            size = np.int64(-1)
        else:
            for i in range(kept):
                out[size + i] = ix.bag[i] & (UNSURE - 1)
            size += kept
    for g in range(graphs):
        if not ix.covers[g]:
            _unmark(ix, g, ix.plan[2, g])
    return size


@bare
def _settle_rates(ix):
    """An event comes: let the running means follow, and see in which graphs entries are to escalate.

    What the other graphs returned for the last event is what events have to verify when this graph is of no use.
    """
    graphs = ix.covers.shape[0]
    for g in range(graphs):
        others = ix.bag.shape[0] if graphs == 1 else np.int64(2**62)
        for h in range(graphs):
            if h != g:
                others = min(others, ix.plan[0, h])
        rates = ix.rates[g]
        rates[UPDATED] += MEMORY * (rates[PENDING] - rates[UPDATED])
        rates[OTHERS] += MEMORY * (max(others, 0) - rates[OTHERS])
        rates[PENDING] = 0
        rates[ESCALATES] = 1.0 if rates[UPDATED] * LISTING > rates[OTHERS] else 0.0


@bare
def replay(ix, moves, before, events, done, out, ends, agile):
    """Events with the updates before each, in order.

    ``moves`` [update, 4] are user, graph, which, category; updates ``before[i] .. before[i + 1]`` precede event ``i``.
    ``done`` (updates, events) says how far it is; the users of event ``i`` end at ``ends[i]`` in ``out``. Returns 0 at
    the end, 1 when the pool of markers has no room, 2 when ``out`` has none.
    """
    users, graphs, most = ix.value.shape[1], ix.value.shape[0], ix.value.shape[2]
    for i in range(done[1], events.shape[0] + 1):
        stop = before[i + 1]
        for u in range(done[0], stop):
            if u + AHEAD < stop:
                k, g, j = np.int64(moves[u + AHEAD, 0]), np.int64(moves[u + AHEAD, 1]), np.int64(moves[u + AHEAD, 2])
                at = (g * users + k) * most + j
                prefetch(ix.value, at)
                prefetch(ix.held, 3 * at)
                prefetch(ix.where, g * users + k)
                if not agile or ix.rates[g, ESCALATES] == 0:
                    prefetch(ix.postings.marks, 2 * ((k * graphs + g) * most + j))
            k, g, j = np.int64(moves[u, 0]), np.int64(moves[u, 1]), np.int64(moves[u, 2])
            if not update(ix, k, g, j, np.int64(moves[u, 3]), agile):
                done[0] = u
                return 1
        ix.state[UPDATES] += stop - done[0]
        done[0] = stop
        if i == events.shape[0]:
            break
        if agile:
            _settle_rates(ix)
        vain = ix.state[VAIN]
        size = probe(ix, events[i], out, np.int64(ends[i - 1] if i > 0 else 0))
        if size < 0:
            return 2
        ends[i] = size
        done[1] = i + 1
        if agile:
            ix.state[CREDIT] += ix.state[VAIN] - vain
            if ix.state[CREDIT] >= PRICE:
                sweep(ix, ix.state[CREDIT] // PRICE)
                ix.state[CREDIT] %= PRICE
    return 0


@bare
def check(ix, k):
    """What is wrong with user ``k``: 0, or a number of tamis.graph.matcher.BROKEN."""
    for g in range(ix.covers.shape[0]):
        lb = _labels(ix.graph[g, LABELS])
        for j in range(ix.postings.used[k, g]):
            listed, m = np.int64(ix.postings.marks[k, g, 2 * j]), np.int64(ix.postings.marks[k, g, 2 * j + 1])
            if ix.postings.marker[m, ENTRY] != k or ix.postings.marker[m, WHICH] != j:
                return 1
            number = number_of(lb, category(ix, k, g, j))
            low, high = ix.held[g, k, 3 * j], ix.held[g, k, 3 * j + 1]
            if number < low or number > high:
                return 2
            if listed == ix.start[g + 1] - 1:
                if low != 0 or high != EVERYWHERE:
                    return 3
                continue
            node = (listed - ix.start[g]) >> 1
            if (listed - ix.start[g]) & 1:
                if low != number_of(lb, node) or high != last_of(lb, node):
                    return 3
            elif low != high or node != category(ix, k, g, j):
                return 3
    return 0
