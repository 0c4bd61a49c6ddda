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
from numpy.typing import NDArray

from measure import Inexact, Result, Times, clock, in_turns, main, progress, same
from tamis import EventLog, Filter
from workloads import message_table

PROFILES = 500_000
DOMAIN = 10_000.0
STEP = 150.0
NAMES = tuple(f"x{k}" for k in range(8))
HALF = np.array([0.03, 0.083, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0]) * DOMAIN / 2
"""Half the width of each range: selectivities of about 3 %, 8.3 %, then 87 % to 100 %."""
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


# -- contexts that walk ----------------------------------------------------------------------------------------


@nb.njit(cache=True)
def walk(state, context, attribute, step, value):
    """Moves ``state[context[i], attribute[i]]`` by ``step[i]``, reflected into the domain; ``value``: the new place."""
    for i in range(len(context)):
        x = state[context[i], attribute[i]] + step[i]
        if x < 0.0:
            x = -x
        if x > DOMAIN:
            x = 2 * DOMAIN - x
        state[context[i], attribute[i]] = x
        value[i] = x


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


class Log(NamedTuple):
    """Updates and messages of one log, for all sides."""

    mixed: EventLog
    quiet: EventLog
    points: NDArray[np.float64]
    moves: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]


class World:
    """The profiles, and a generator of realistic logs; knows where every context is after the last log it gave."""

    def __init__(self, profiles: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.moving = profiles * 9 // 10
        self.profiles = profiles
        self.names = [f"c{i}" for i in range(self.moving)]
        self.state = self.rng.uniform(0, DOMAIN, (self.moving, len(NAMES)))
        self.fixed = self.rng.uniform(0, DOMAIN, (profiles - self.moving, len(NAMES)))

    def subscribe(self, filter: Filter) -> None:
        """Nine profiles in ten follow their own context, the tenth has constants; ids are 0 to profiles - 1."""
        pieces = zip(NAMES, HALF.tolist(), strict=True)
        around = " and ".join(f"{name} between ctx.{name} - {half} and ctx.{name} + {half}" for name, half in pieces)
        filter.subscribe_many(around, {"id": np.arange(self.moving), "context": self.names})
        constant = " and ".join(f"{name} between {{{name}lo}} and {{{name}hi}}" for name in NAMES)
        columns: dict[str, Any] = {"id": np.arange(self.moving, self.profiles)}
        for k, name in enumerate(NAMES):
            columns[f"{name}lo"], columns[f"{name}hi"] = self.fixed[:, k] - HALF[k], self.fixed[:, k] + HALF[k]
        filter.subscribe_many(constant, columns)
        indices = filter.context_index(self.names)
        if not np.array_equal(indices, np.arange(self.moving)):
            raise Inexact("contexts are not numbered in the order of their names")
        for k, name in enumerate(NAMES):
            filter.update_many(indices, name, self.state[:, k])

    def updates(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]:
        """Contexts, attributes and new values of the next updates."""
        context = self.rng.integers(0, self.moving, count)
        attribute = self.rng.integers(0, len(NAMES), count, np.int32)
        value = np.empty(count)
        walk(self.state, context, attribute, self.rng.uniform(-STEP, STEP, count), value)
        return context, attribute, value

    def log(self, messages: int, updates: int) -> Log:
        """A log with that many updates before every message, and the same log without messages."""
        context, attribute, value = self.updates(messages * updates)
        columns = update_columns(context, attribute, value)
        points = self.rng.uniform(0, DOMAIN, (messages, len(NAMES)))
        order = pa.array(np.arange(1, messages + 1, dtype=np.int64) * updates - 1)
        sent = message_table(points, NAMES).append_column("seq", order)
        ordered = pa.table({**columns, "seq": np.arange(len(context), dtype=np.int64)})
        mixed = EventLog.merge(messages=sent, updates=ordered)
        return Log(mixed, EventLog.merge(updates=pa.table(columns)), points, (context, attribute, value))

    def columns(self) -> NDArray[np.float64]:
        """The middles of all ranges, one row per attribute, as they are now."""
        return np.ascontiguousarray(np.concatenate([self.state, self.fixed]).T)

    def matching(self, message: NDArray[np.float64]) -> NDArray[np.int64]:
        """The ids that match now, by brute force; the bounds are computed as the profiles say."""
        around = ((self.state - HALF <= message) & (message <= self.state + HALF)).all(axis=1)
        constant = ((self.fixed - HALF <= message) & (message <= self.fixed + HALF)).all(axis=1)
        return np.flatnonzero(np.concatenate([around, constant]))


def update_columns(
    context: NDArray[np.int64], attribute: NDArray[np.int32], value: NDArray[np.float64]
) -> dict[str, Any]:
    """The three columns of an update table: indices, dictionary codes and numbers, the fast way."""
    names = pa.DictionaryArray.from_arrays(pa.array(attribute), pa.array(NAMES))
    return {"context": context, "attribute": names, "value": value}


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
        agile.process(log.mixed)
        noindex.process(log.quiet)  # its speed does not depend on what happened before; its contexts do
        left -= part
    plain, room = world.columns(), np.empty(1, np.int32)
    seconds: dict[str, list[float]] = {"tamis": [], "noindex": [], "plain": []}
    facts = {"messages": 0.0, "matches": 0.0, "brute": 0.0}
    for repeat in range(repeats + 1):
        log = world.log(count, rate.updates)
        ends = np.empty(count, np.int64)
        one, fast = clock(lambda log=log: agile.process(log.mixed).to_arrow())
        two, slow = clock(lambda log=log: noindex.process(log.mixed).to_arrow())
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
    array = world.state.copy()
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
