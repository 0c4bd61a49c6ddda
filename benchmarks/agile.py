"""Half a million profiles around moving contexts (AGILE, SIGMOD 2005, Table 2): messages between floods of updates.

The index against no index, at 50 to 500,000 updates per message, and updates alone against bare stores into an array.
No index means two things: a plain vectorised scan, which compares every message with all eight attributes of all
profiles and does nothing else, and the strategy ``noindex`` of the engine, which leaves a profile at the first
attributes that fail. The targets are against both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba as nb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from measure import Inexact, Result, Times, clock, in_turns, main, progress, same
from tamis import EventLog, Filter
from tamis.lab.agile_workload import DOMAIN, HALF, NAMES, PROFILES, STEP, Log, World, update_columns

UPDATES = 5_000_000  # of the comparison with bare stores, per repeat
WARM = 10_000_000  # updates before the clock starts: almost every value has moved, most of them several times
PIECE = 1_024  # profiles that the plain scan looks at together
LONGEST, MOST = 2_500_000, 5_000  # updates, and messages, in one log: a longer warm-up is cut


class Rate(NamedTuple):
    """One column of the paper's table: updates per message, the target, messages per repeat."""

    updates: int
    target: float
    messages: int


RATES = (
    Rate(50, 40, 2_000),
    Rate(500, 20, 600),
    Rate(5_000, 5, 150),
    Rate(50_000, 1.5, 20),
    Rate(500_000, 0.95, 3),
)
PAPER = {"AGILE, 2005": (472, 390, 178, 58, 10.1), "NOINDEX, 2005": (27, 28, 28, 21, 9.5)}
"""Messages/s of the AGILE paper, Table 3 (3.2 GHz Pentium 4), at the same five rates."""


# -- without a filter ------------------------------------------------------------------------------------------


@nb.njit(cache=True)
def store(array, context, attribute, value):
    """The bare stores of the same updates: what no filter can beat on one thread."""
    for i in range(len(context)):
        array[context[i], attribute[i]] = value[i]


@nb.njit(cache=True, error_model="numpy")
def plain_scan(centre, half, messages, updates, context, attribute, value, found, ends):
    """A log with ``updates`` stores before every message, which is compared with all columns; returns the ids.

    ``PIECE`` profiles at a time, so that the flags stay in the cache; the compiler makes vector instructions of it.
    """
    flags = np.empty(PIECE, np.uint8)
    words = flags.view(np.uint64)
    n = 0
    for m in range(len(messages)):
        for i in range(m * updates, (m + 1) * updates):
            centre[attribute[i], context[i]] = value[i]
        for first in range(0, centre.shape[1], PIECE):
            size = min(PIECE, centre.shape[1] - first)
            flags[:size] = 1
            flags[size:] = 0
            for k in range(len(half)):
                column, h, x = centre[k, first : first + size], half[k], messages[m, k]
                for i in range(size):
                    flags[i] &= (column[i] - h <= x) & (x <= column[i] + h)
            if n + PIECE > len(found):
                more = np.empty(2 * (n + PIECE), np.int32)
                more[:n] = found[:n]
                found = more
            for w in range(PIECE >> 3):
                if words[w]:
                    for i in range(w * 8, w * 8 + 8):
                        found[n] = first + i
                        n += flags[i]
        ends[m] = n
    return found[:n]


def quiet(log: Log) -> EventLog:
    """The same log without its messages."""
    return EventLog.merge(updates=pa.table(update_columns(*log.moves)))


# -- the two comparisons ---------------------------------------------------------------------------------------


def compare_at(rate: Rate, profiles: int, repeats: int, share: float) -> tuple[dict[str, Times], dict[str, float]]:
    """Seconds per message with and without an index, in turns on the same logs; all answers must be equal."""
    world = World(profiles, seed=rate.updates)
    agile, noindex = Filter(), Filter(strategy="noindex")
    for filter in (agile, noindex):
        world.subscribe(filter)
    left, count = max(3, int(WARM / rate.updates * share)), max(2, int(rate.messages * share))
    while left > 0:
        part = min(left, MOST, max(1, LONGEST // rate.updates))
        log = world.log(part, rate.updates)
        agile.process(log.events)
        noindex.process(quiet(log))  # its speed does not depend on what happened before; its contexts do
        left -= part
    plain, room = world.columns(), np.empty(1, np.int32)
    seconds: dict[str, list[float]] = {"tamis": [], "noindex": [], "plain": []}
    facts = {"messages": 0.0, "matches": 0.0, "brute": 0.0}
    for repeat in range(repeats + 1):
        log = world.log(count, rate.updates)
        ends = np.empty(count, np.int64)
        one, fast = clock(lambda log=log: agile.process(log.events).to_arrow())
        two, slow = clock(lambda log=log: noindex.process(log.events).to_arrow())
        args = (plain, HALF, log.points, rate.updates, *log.moves, room, ends)
        three, bare = clock(lambda args=args: plain_scan(*args))
        message = np.repeat(np.arange(count), np.diff(ends, prepend=0))
        equal_tables(one, two, f"{rate.updates} updates per message")
        equal_tables(one, pa.table({"message": message, "profile": three}).cast(one.schema), "plain scan")
        mine = one.filter(pc.equal(one["message"], count - 1))["profile"].to_pylist()
        wanted = world.matching(log.points[-1]).tolist()
        same(mine, wanted, f"{rate.updates} updates per message, message {count - 1}")
        facts = {
            "messages": facts["messages"] + count,
            "matches": facts["matches"] + one.num_rows,
            "brute": facts["brute"] + 1,
        }
        if repeat:  # the first is for the kernels
            for name, taken in (("tamis", fast), ("noindex", slow), ("plain", bare)):
                seconds[name].append(taken / count)
    return {name: Times(tuple(values)) for name, values in seconds.items()}, facts


def equal_tables(one: pa.Table, two: pa.Table, where: str) -> None:
    """Raises :class:`Inexact` unless two tables of matches hold the same pairs."""
    keys = [("message", "ascending"), ("profile", "ascending")]
    if not one.sort_by(keys).equals(two.sort_by(keys)):
        raise Inexact(f"{where}: {one.num_rows} matches with an index, {two.num_rows} without, or other ones")


def updates_alone(profiles: int, repeats: int, count: int) -> dict[str, Times]:
    """Seconds per update: a log of updates through the filter, and the same numbers into a plain array.

    ``first`` is the first such log, in which most updates are the first of their value since the index was built.
    """
    world = World(profiles, seed=1)
    filter = Filter()
    world.subscribe(filter)
    array = world.state
    times: dict[str, list[float]] = {"first": [], "tamis": [], "stores": []}
    warm = 5
    for repeat in range(repeats + warm):
        context, attribute, value = world.updates(count)
        log = EventLog.merge(updates=pa.table(update_columns(context, attribute, value)))
        now = in_turns(
            {
                "tamis": (lambda log=log: filter.process(log), count),
                "stores": (lambda c=context, a=attribute, v=value: store(array, c, a, v), count),
            },
            1,
        )
        if repeat == 0:
            times["first"] += now["tamis"].seconds
        elif repeat >= warm:
            for name, found in now.items():
                times[name] += found.seconds
    if not np.array_equal(array, world.state):
        raise Inexact("the bare stores lost an update")
    for i in world.rng.integers(0, world.moving, 200).tolist():
        if filter.context(i) != dict(zip(NAMES, array[i].tolist(), strict=True)):
            raise Inexact(f"context {i} holds {filter.context(i)}, should hold {array[i].tolist()}")
    message = world.rng.uniform(0, DOMAIN, len(NAMES))
    found = filter.match(dict(zip(NAMES, message.tolist(), strict=True)))
    same(found, world.matching(message).tolist(), "after updates alone")
    return {name: Times(tuple(values)) for name, values in times.items()}


def run(scale: float = 1.0, repeats: int = 5) -> dict[str, Any]:
    """All five rates, then updates alone."""
    profiles = max(2_000, int(PROFILES * scale))
    result = Result(
        "agile",
        "Moving contexts: messages between updates",
        f"{profiles:,} profiles of eight ranges, nine in ten around their own context; updates are uniform "
        f"over contexts and attributes, steps of at most {STEP:.0f} in [0, {DOMAIN:,.0f}]; both sides process the same "
        f"logs, warmed up to a steady state; ids returned, one thread, {repeats} repeats in turns; "
        "making the logs is not timed.",
        scale,
    )
    curves: dict[str, list[float]] = {"updates per message": [], "tamis": [], "noindex": [], "plain": []}
    facts: dict[str, float] = {"messages": 0, "matches": 0, "brute": 0}
    with progress("agile", len(RATES) + 1) as advance:
        for rate in RATES:
            advance(f"{rate.updates:,} updates per message")
            times, more = compare_at(rate, profiles, repeats, min(1.0, scale))
            facts = {name: facts[name] + more[name] for name in facts}
            curves["updates per message"].append(rate.updates)
            for name, found in times.items():
                curves[name].append(found.rate)
            drift = times["tamis"].seconds[-1] / times["tamis"].seconds[0]
            note = (
                f"{times['tamis'].rate:,.0f} and {times['noindex'].rate:,.0f} messages/s, "
                f"{more['matches'] / more['messages']:.0f} matches per message, last repeat {drift:.2f}× the first"
            )
            what = f"{rate.updates:,} updates per message"
            scan = f"the plain scan makes {times['plain'].rate:,.0f} messages/s"
            result.compare(f"tamis / plain scan, {what}", times["plain"], times["tamis"], rate.target, scan)
            result.compare(f"tamis / noindex, {what}", times["noindex"], times["tamis"], rate.target, note)
        advance("updates alone")
        alone = updates_alone(profiles, repeats, max(50_000, int(UPDATES * scale)))
    note = (
        f"{alone['tamis'].rate / 1e6:.1f} and {alone['stores'].rate / 1e6:.1f} million updates/s once every value has "
        f"moved; {alone['first'].rate / 1e6:.1f} in the first log after the index was built"
    )
    result.compare("updates alone / bare stores into an array", alone["stores"], alone["tamis"], 0.5, note)
    result.exact = (
        f"{facts['messages']:,.0f} messages, {facts['matches']:,.0f} matches equal with and without an index; "
        f"{facts['brute']:,.0f} messages equal to brute force"
    )
    result.data = {"curves": curves, "paper": PAPER}
    return result.to_dict()


if __name__ == "__main__":
    main(run)
