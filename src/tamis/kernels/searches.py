"""The searches of Lee, Naganuma and Kurakake, as they describe them: who is interested in an event?

A plan goes from graph to graph and keeps, in a bag, who has passed so far. A graph is searched from the notification
(find all categories that match the event, then who subscribes to them) or from the subscription (for each user who is
left, start from the user's categories and look for the event's). Three methods find categories:

- ``SEARCH``: breadth-first over the edges, every time;
- ``CLOSURE``: a row of the transitive closure, one lookup; whether a pair is in it, one binary search;
- ``LISTS``: content lists. Notifications bring all their matching categories along, and subscriptions are entered under
  all of theirs, so that nothing is left to be found.

``replay`` follows one plan, or makes one per event from live statistics, which the paper leaves open.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numba import types
from numba.extending import intrinsic

from .digraph import Edges, above, below
from .jit import bare, kernel
from .labels import AHEAD, LARGE
from .records import Record
from .simd import prefetch

SEARCH, CLOSURE, LISTS = range(3)
NOTIFICATION, SUBSCRIPTION = range(2)
# Columns of Searched.live, running means per graph: categories that match an event; entries of a user's search from the
# subscription; users that a search from the notification returns; the share of users that pass.
MATCHING, WALK, RETURNED, PASS = range(4)
MEMORY = 0.05


class SearchGraph(Record):
    """One graph and all tables over it. ``*_at`` are the starts of rows, ``*`` the rows, ascending."""

    FIELDS: ClassVar = {
        "edges": Edges,
        "above_at": (np.int64, 1),  # [category + 1]: the closure: what is above
        "above": (np.int32, 1),
        "below_at": (np.int64, 1),  # and what is below
        "below": (np.int32, 1),
        "users_at": (np.int64, 1),  # [category + 1]: who subscribes to it
        "users": (np.int32, 1),
        "entered_at": (np.int64, 1),  # [category + 1]: who is entered under it by the content list of a subscription
        "entered": (np.int32, 1),
    }


class Searched(Record):
    """Users and graphs."""

    FIELDS: ClassVar = {
        "graph": (np.int64, 1),  # [graph]: the address of its SearchGraph
        "covers": (np.uint8, 1),
        "value": (np.int32, 3),  # [graph, user, most]
        "marks": (np.uint8, 2),  # [graph, category]: all 0 between events
        "queue": (np.int32, 2),
        "visited": (np.int64, 2),  # [graph, category]: the last search that came along
        "trail": (np.int32, 1),  # [category]
        "seen": (np.int64, 1),  # [user]
        "bag": (np.int32, 1),  # [user]
        "live": (np.float64, 2),  # [graph, 4]
        "state": (np.int64, 1),  # [2]: number of the last search; of the last stamp of users
    }


@intrinsic
def _graph(typingctx, address):
    return SearchGraph.numba_type(types.int64), lambda context, builder, signature, args: args[0]


@bare
def _found(md, g, categories, at, stop, method):
    """Mark and queue what matches the event in graph ``g``; how many. ``categories[at:stop]`` is its content list."""
    sg = _graph(md.graph[g])
    marks, queue = md.marks[g], md.queue[g]
    size = np.int64(0)
    for i in range(at, stop):
        t = np.int64(categories[i])
        if method == SEARCH:
            if md.covers[g]:
                size = below(sg.edges, t, marks, queue, size)
            else:
                size = above(sg.edges, t, marks, queue, size)
        elif method == CLOSURE:
            starts, row = (sg.below_at, sg.below) if md.covers[g] else (sg.above_at, sg.above)
            for j in range(starts[t], starts[t + 1]):
                if marks[row[j]] == 0:
                    marks[row[j]], queue[size] = 1, row[j]
                    size += 1
        elif marks[t] == 0:
            marks[t], queue[size] = 1, t
            size += 1
    return size


@bare
def _is_in(row, start, stop, wanted):
    """Whether a row has a value. O(log row)."""
    end = stop
    while start < stop:
        middle = (start + stop) >> 1
        if row[middle] < wanted:
            start = middle + 1
        else:
            stop = middle
    return start < end and row[start] == wanted


@bare
def _meets(md, sg, g, s, categories, at, stop, method):
    """Search from category ``s`` of a subscription: (does it meet the event, how many entries were looked at)."""
    if method == CLOSURE:
        for i in range(at, stop):
            t = np.int64(categories[i])
            low, high = (s, t) if md.covers[g] else (t, s)
            if _is_in(sg.above, sg.above_at[low], sg.above_at[low + 1], high):
                return True, i - at + 1
        return False, stop - at
    # Breadth-first; the event's categories are marked.
    md.state[0] += 1
    stamp, visited, trail, eg = md.state[0], md.visited[g], md.trail, sg.edges
    trail[0], visited[s] = s, stamp
    head, size = 0, 1
    while head < size:
        v = np.int64(trail[head])
        head += 1
        if md.marks[g, v] != 0:
            return True, size
        e = np.int64(eg.up[v] if md.covers[g] else eg.down[v])
        while e >= 0:
            other = np.int64(eg.parent[e] if md.covers[g] else eg.child[e])
            if visited[other] != stamp:
                visited[other], trail[size] = stamp, other
                size += 1
            e = np.int64(eg.next_up[e] if md.covers[g] else eg.next_down[e])
    return False, size


@bare
def _from_notification(md, g, categories, at, stop, method, many):
    """Keep who subscribes to what matches the event; ``many`` -1 is everybody. Returns how many are left."""
    found = _found(md, g, categories, at, stop, method)
    sg, kept = _graph(md.graph[g]), np.int64(0)
    if many < 0:
        md.state[1] += 1
        stamp = md.state[1]
        for i in range(found):
            c = np.int64(md.queue[g, i])
            for j in range(sg.users_at[c], sg.users_at[c + 1]):
                k = sg.users[j]
                if md.seen[k] != stamp:
                    md.seen[k], md.bag[kept] = stamp, k
                    kept += 1
        _learn(md, g, RETURNED, np.float64(kept))
    else:
        for i in range(many):
            k = md.bag[i]
            for v in md.value[g, k]:
                if v < 0:
                    break
                if md.marks[g, v] != 0:
                    md.bag[kept] = k
                    kept += 1
                    break
    for i in range(found):
        md.marks[g, md.queue[g, i]] = 0
    _learn(md, g, MATCHING, np.float64(found))
    return kept


@bare
def _from_subscription(md, g, categories, at, stop, method, many):
    """Keep who meets the event when searched from the subscription; ``many`` -1 is everybody."""
    sg, kept = _graph(md.graph[g]), np.int64(0)
    if method == LISTS:
        md.state[1] += 1
        stamp = md.state[1]
        for i in range(at, stop):
            t = np.int64(categories[i])
            for j in range(sg.entered_at[t], sg.entered_at[t + 1]):
                k = sg.entered[j]
                if md.seen[k] != stamp:
                    md.seen[k] = stamp
                    if many < 0:
                        md.bag[kept] = k
                        kept += 1
        for i in range(many):
            if md.seen[md.bag[i]] == stamp:
                md.bag[kept] = md.bag[i]
                kept += 1
        return kept
    for i in range(at, stop):
        md.marks[g, categories[i]] = 1
    walked = np.int64(0)
    users = md.value.shape[1] if many < 0 else many
    for i in range(users):
        k = i if many < 0 else np.int64(md.bag[i])
        for v in md.value[g, k]:
            if v < 0:
                break
            met, steps = _meets(md, sg, g, np.int64(v), categories, at, stop, method)
            walked += steps
            if met:
                md.bag[kept] = k
                kept += 1
                break
    for i in range(at, stop):
        md.marks[g, categories[i]] = 0
    if users > 0:
        _learn(md, g, WALK, walked / users)
    return kept


@bare
def _learn(md, g, what, value):
    """Let a running mean follow."""
    if md.live[g, what] < 0:
        md.live[g, what] = value
    else:
        md.live[g, what] += MEMORY * (value - md.live[g, what])


@bare
def choose(md, plan):
    """Order and orientation for the next event, cheapest by the running means.

    Each graph is tried as the first one, from either side; the others follow, those that let fewest pass first. From
    the notification costs what matches, and one test per category of who is left; from the subscription, a walk.
    """
    graphs, users, most = md.value.shape
    best, cost = np.int64(0), np.inf
    for way in range(2 * graphs):
        g, side = way >> 1, way & 1
        live = md.live[g]
        total = users * live[WALK] if side == SUBSCRIPTION else live[MATCHING] + live[RETURNED]
        left = users * live[PASS]
        for h in range(graphs):
            if h != g:
                total += min(md.live[h, MATCHING] + left * most, left * md.live[h, WALK])
                left *= md.live[h, PASS]
        if total < cost:
            best, cost = way, total
    plan[0, 0], plan[0, 1] = best >> 1, best & 1
    size = 1
    for h in range(graphs):
        if h == best >> 1:
            continue
        at = size
        while at > 1 and md.live[plan[at - 1, 0], PASS] > md.live[h, PASS]:
            plan[at, 0] = plan[at - 1, 0]
            at -= 1
        plan[at, 0] = h
        size += 1
    left = users * md.live[best >> 1, PASS]
    for i in range(1, graphs):
        live = md.live[plan[i, 0]]
        plan[i, 1] = NOTIFICATION if live[MATCHING] + left * most <= left * live[WALK] else SUBSCRIPTION
        left *= live[PASS]


@bare
def replay(md, categories, starts, lists, list_starts, method, plan, dynamic, first, out, ends):
    """Events from number ``first`` on: categories of event i in graph g are row ``i * graphs + g`` of ``categories``.

    ``lists`` are the same rows as content lists, read where ``LISTS`` searches from the notification. Returns the
    number of events done: less than all when ``out`` has no room.
    """
    graphs, users = md.value.shape[0], md.value.shape[1]
    for i in range(first, ends.shape[0]):
        size = np.int64(ends[i - 1]) if i > 0 else np.int64(0)
        if size + users > out.shape[0]:
            return i
        if dynamic:
            choose(md, plan)
        many = np.int64(-1)
        for step in range(graphs):
            g, row = plan[step, 0], i * graphs + plan[step, 0]
            before = users if many < 0 else many
            if starts[row] == starts[row + 1]:
                many = np.int64(0)
            elif plan[step, 1] == SUBSCRIPTION:
                many = _from_subscription(md, g, categories, starts[row], starts[row + 1], method, many)
            elif method == LISTS:
                many = _from_notification(md, g, lists, list_starts[row], list_starts[row + 1], method, many)
            else:
                many = _from_notification(md, g, categories, starts[row], starts[row + 1], method, many)
            if before > 0:
                _learn(md, g, PASS, many / before)
        for j in range(many):
            out[size + j] = md.bag[j]
        ends[i] = size + many
    return ends.shape[0]


@bare
def find_only(md, g, categories, starts, method):
    """The search alone, without users: how many categories match each event in graph ``g``, added up.

    The closure gives a row per category of the event; nothing is copied.
    """
    total = np.int64(0)
    graphs = md.covers.shape[0]
    sg = _graph(md.graph[g])
    for row in range(g, starts.shape[0] - 1, graphs):
        if method == CLOSURE:
            at = sg.below_at if md.covers[g] else sg.above_at
            for i in range(starts[row], starts[row + 1]):
                total += at[categories[i] + 1] - at[categories[i]]
        else:
            found = _found(md, g, categories, starts[row], starts[row + 1], method)
            for i in range(found):
                md.marks[g, md.queue[g, i]] = 0
            total += found
    return total


@kernel
def close(eg, up, starts, rows, marks, queue):
    """The rows of the closure: what is above (``up``) or below each category; sizes only when ``rows`` is empty."""
    for v in range(starts.shape[0] - 1):
        size = above(eg, v, marks, queue, 0) if up else below(eg, v, marks, queue, 0)
        for i in range(size):
            marks[queue[i]] = 0
        if rows.shape[0] == 0:
            starts[v + 1] = size
        else:
            row = rows[starts[v] : starts[v + 1]]
            for i in range(size):
                row[i] = queue[i]
            row.sort()


@bare
def pairs_in(starts, rows, keys, wanted, out):
    """Whether ``wanted[i]`` is in the row of ``keys[i]``: a content list as the test of a pair."""
    far = keys.shape[0] - 2 * AHEAD if rows.shape[0] > 16 * LARGE else 0  # as labels do; where rows are fewer it costs
    for i in range(keys.shape[0]):
        if i < far:
            prefetch(starts, np.int64(keys[i + 2 * AHEAD]))
            prefetch(rows, (starts[keys[i + AHEAD]] + starts[keys[i + AHEAD] + 1]) >> 1)
        out[i] = _is_in(rows, starts[keys[i]], starts[keys[i] + 1], wanted[i])
