"""Toward internet scale: what a hundred million profiles and a million messages a second would take.

Unit costs are measured: shards of the sizes in question, filled with their profiles, are matched and updated by the
engine. How many shards a message has to visit is simulated: a hundred million subscribers live in cities of uneven
size, some shards are drawn and filled to the last profile, and messages are held against their summaries while
subscribers move. A small world is run for real first, a filter per shard and one for the root behind such a router, and
compared with one filter. ``--docs`` writes the tables into ``docs/scale.md``.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from measure import Inexact, Result, clock, main, progress
from report import GREY, ORANGE, STYLE, TEAL, plt
from spark_session import DOCS, FOR_DOCS, write_table
from tamis import EventLog, Filter

PROFILES, MESSAGES, UPDATES = 100_000_000, 1_000_000, 10_000_000
"""Profiles, each on a context of its own; messages and updates a second."""
SHARDS = (256, 1_024, 4_096)
DRAWN, PROBES, REPEATS = 24, 20_000, 5
CITIES, TOPICS, GRID, STEP, TRAVEL = 2_000, 5_000, 512, 0.001, 0.002
NEAR, FAR = 0.002, 0.02
"""How far subscribers look."""
TEXT = (
    "x between ctx.x - {reach} and ctx.x + {reach} and y between ctx.y - {reach} and ctx.y + {reach} "
    "and topic == {topic} and price <= {limit}"
)

Points = NDArray[np.float64]
Bits = NDArray[np.bool_]


# -- the world -------------------------------------------------------------------------------------------------


class World:
    """Cities of uneven size; subscribers live, move and travel between them, and so do the shops that send messages."""

    def __init__(self, seed: int = 11) -> None:
        self.rng = np.random.default_rng(seed)
        self.city = self.rng.uniform(0.02, 0.98, (CITIES, 2))
        size = 1 / np.arange(1, CITIES + 1)
        self.size = size / size.sum()
        # The larger, the wider, so that no place is a point.
        self.width = 0.02 * np.sqrt(self.size / self.size[0]) + 0.001

    def places(self, count: int) -> Points:
        """Where people are, [count, 2] in the unit square."""
        who = np.searchsorted(np.cumsum(self.size), self.rng.random(count), side="right").clip(max=CITIES - 1)
        spread = self.width[who][:, None] * self.rng.standard_normal((count, 2))
        return np.clip(self.city[who] + spread, 0, 1 - 1e-9)

    def moved(self, place: Points) -> Points:
        """The next place of everybody: a step, now and then another city."""
        after = np.clip(place + STEP * self.rng.standard_normal(place.shape), 0, 1 - 1e-9)
        gone = self.rng.random(len(place)) < TRAVEL
        after[gone] = self.places(int(gone.sum()))
        return after

    def wishes(self, count: int) -> dict[str, NDArray[Any]]:
        """What subscribers look for."""
        return {
            "reach": self.rng.uniform(NEAR, FAR, count),
            "topic": self.rng.integers(0, TOPICS, count),
            "limit": self.rng.uniform(0, 1, count),
        }

    def messages(self, place: Points) -> dict[str, NDArray[Any]]:
        """Messages from these places."""
        n = len(place)
        wish = {"topic": self.rng.integers(0, TOPICS, n), "price": self.rng.uniform(0, 1, n)}
        return {"x": place[:, 0], "y": place[:, 1], **wish}


# -- the router ------------------------------------------------------------------------------------------------


def morton(place: Points) -> NDArray[np.uint64]:
    """The place on a curve that keeps neighbours together: the bits of x and y in turns."""
    code = np.zeros(len(place), np.uint64)
    for axis in range(2):
        bits = (place[:, axis] * 2**24).astype(np.uint64)
        for shift, mask in ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F)):
            bits = (bits | bits << np.uint64(shift)) & np.uint64(mask)
        for shift, mask in ((2, 0x3333333333333333), (1, 0x5555555555555555)):
            bits = (bits | bits << np.uint64(shift)) & np.uint64(mask)
        code |= bits << np.uint64(axis)
    return code


@dataclass(frozen=True)
class Map:
    """Which shard is at home where: pieces of the curve with equally many subscribers."""

    cuts: NDArray[np.uint64]

    @classmethod
    def of(cls, world: World, shards: int) -> Map:
        """Cut by a sample of the subscribers."""
        sample = morton(world.places(200 * shards + 100_000))
        return cls(np.quantile(sample, np.arange(1, shards) / shards).astype(np.uint64))

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self.cuts) + 1

    def shard(self, place: Points) -> NDArray[np.int64]:
        """The shard of every place."""
        return np.searchsorted(self.cuts, morton(place), side="right")


def cells(place: Points) -> NDArray[np.int64]:
    """The cells of a summary that places are in."""
    at = (place * GRID).astype(np.int64)
    return at[:, 0] * GRID + at[:, 1]


def paint(place: Points, reach: Any) -> Bits:
    """A summary: the cells that somebody at these places, looking that far, may hear from."""
    low = ((place - np.reshape(reach, (-1, 1))).clip(0) * GRID).astype(np.int64)
    high = ((place + np.reshape(reach, (-1, 1))) * GRID).astype(np.int64).clip(max=GRID - 1) + 1
    edges = np.zeros((GRID + 1, GRID + 1), np.int64)
    for x, y, sign in ((low, low, 1), (high, high, 1), (low, high, -1), (high, low, -1)):
        np.add.at(edges, (x[:, 0], y[:, 1]), sign)
    return (np.cumsum(np.cumsum(edges, axis=0), axis=1)[:GRID, :GRID] > 0).ravel()


# -- for real, in small ----------------------------------------------------------------------------------------


class Small:
    """Shards and a root behind the router, a filter each, beside one filter that has everything."""

    def __init__(self, world: World, profiles: int, shards: int) -> None:
        self.world, self.home = world, Map.of(world, shards)
        self.place = world.places(profiles)
        self.wishes = {**world.wishes(profiles), "topic": world.rng.integers(0, 20, profiles)}
        self.names = np.array([f"s{i}" for i in range(profiles)], object)
        self.owner = np.full(profiles, shards)  # the last is the root
        self.filters = [Filter() for _ in range(shards + 1)]
        self.one = Filter()
        self._settle(self.one, np.arange(profiles))
        self.go_home()

    def _settle(self, filter: Filter, who: NDArray[np.int64]) -> None:
        mine = {name: column[who] for name, column in self.wishes.items()}
        filter.subscribe_many(TEXT, {"id": who, "context": self.names[who], **mine})
        self._tell(filter, who)

    def _tell(self, filter: Filter, who: NDArray[np.int64]) -> None:
        for axis, name in enumerate("xy"):
            filter.update_many(self.names[who], name, self.place[who, axis])

    def _move_to(self, who: NDArray[np.int64], owner: NDArray[np.int64]) -> None:
        for i in who.tolist():
            if i in self.filters[self.owner[i]]:
                self.filters[self.owner[i]].unsubscribe(i)
        for s in np.unique(owner).tolist():
            self._settle(self.filters[s], who[owner == s])
        self.owner[who] = owner

    def go_home(self) -> None:
        """Those at the root move to the shard of their place; shards tell their summaries anew."""
        guests = np.flatnonzero(self.owner == len(self.filters) - 1)
        if len(guests):
            self._move_to(guests, self.home.shard(self.place[guests]))
        of = [np.flatnonzero(self.owner == s) for s in range(len(self.filters) - 1)]
        self.summary = np.array([paint(self.place[who], self.wishes["reach"][who]) for who in of])

    def move(self, who: NDArray[np.int64]) -> None:
        """Updates pass through the router: it escalates before the next message."""
        self.place[who] = self.world.moved(self.place[who])
        root = len(self.filters) - 1
        self._tell(self.one, who)
        staying = self.owner[who] == root
        staying[~staying] = self.summary[self.owner[who[~staying]], cells(self.place[who[~staying]])]
        if not staying.all():
            self._move_to(who[~staying], np.full((~staying).sum(), root))
        for s in range(root + 1):
            mine = who[self.owner[who] == s]
            self._tell(self.filters[s], mine)
            if s < root:
                self.summary[s] |= paint(self.place[mine], FAR)

    def match(self, count: int) -> tuple[int, int]:
        """Messages to the root and to the shards whose summary has them: matches, and visits to shards."""
        where = self.world.places(count)
        messages = {**self.world.messages(where), "topic": self.world.rng.integers(0, 20, count)}
        expected = self.one.match_many(messages)
        pairs, visits = [], 0
        for s, filter in enumerate(self.filters):
            rows = np.arange(count) if s == len(self.summary) else np.flatnonzero(self.summary[s][cells(where)])
            visits += len(rows) if s < len(self.summary) else 0
            if len(rows):
                part = filter.match_many({name: column[rows] for name, column in messages.items()})
                pairs += zip(rows[part.message].tolist(), part.profile.tolist(), strict=True)
        if sorted(pairs) != sorted(zip(expected.message.tolist(), expected.profile.tolist(), strict=True)):
            raise Inexact(f"{len(pairs)} matches behind the router, {len(expected)} of one filter")
        return len(pairs), visits


def run_for_real(world: World, profiles: int = 4_000, shards: int = 8, rounds: int = 60) -> tuple[int, float]:
    """Shards behind the router against one filter. Returns the matches, and the share of shards that were visited."""
    small = Small(world, profiles, shards)
    found = visits = 0
    for number in range(rounds):
        small.move(world.rng.choice(profiles, profiles // 20, replace=False))
        matches, visited = small.match(200)
        found, visits = found + matches, visits + visited
        if number % 5 == 4:
            small.go_home()
    return found, visits / (rounds * 200 * shards)


# -- simulated -------------------------------------------------------------------------------------------------


class Visits(NamedTuple):
    """Shards that a message visits: as laid out, after a second of updates, after many without new summaries.

    Also the share of subscribers at the root, after that second and after many updates without going home.
    """

    fresh: float
    second: float
    worn: float
    guests: float
    stranded: float


@dataclass(frozen=True)
class Drawn:
    """Some shards of a map, with all their subscribers."""

    home: Map
    shards: NDArray[np.int64]
    place: Points
    owner: NDArray[np.int64]
    reach: NDArray[np.float64]

    @classmethod
    def of(cls, world: World, homes: list[Map], scale: float) -> list[Drawn]:
        """Let everybody pass once and keep those who live in shards that were drawn."""
        drawn = [world.rng.choice(home.shards, min(DRAWN, home.shards), replace=False) for home in homes]
        kept: list[list[tuple[Points, NDArray[np.int64]]]] = [[] for _ in homes]
        for start in range(0, int(PROFILES * scale), 2_000_000):
            place = world.places(min(2_000_000, int(PROFILES * scale) - start))
            for home, wanted, mine in zip(homes, drawn, kept, strict=True):
                owner = home.shard(place)
                those = np.isin(owner, wanted)
                mine.append((place[those], owner[those]))
        found = []
        for home, wanted, mine in zip(homes, drawn, kept, strict=True):
            place, owner = (np.concatenate(parts) for parts in zip(*mine, strict=True))
            found.append(cls(home, wanted, place, owner, world.rng.uniform(NEAR, FAR, len(place))))
        return found

    def summaries(self, place: Points, reach: NDArray[np.float64]) -> list[Bits]:
        """One of every shard."""
        return [paint(place[self.owner == shard], reach[self.owner == shard]) for shard in self.shards]

    def visits(self, world: World) -> Visits:
        """Hold messages against the summaries while subscribers move."""
        at = cells(world.places(PROBES))

        def visited(summaries: list[Bits]) -> float:
            return self.home.shards * float(np.mean([bits[at].mean() for bits in summaries]))

        tight = self.summaries(self.place, self.reach)
        movers = np.flatnonzero(world.rng.random(len(self.place)) < UPDATES / PROFILES)
        second, left = self._escalated(tight, world.moved(self.place[movers]), movers)
        worn, now, gone = tight, self.place, np.zeros(len(self.place), bool)
        for _ in range(8):
            now = world.moved(now)
            staying = np.flatnonzero(~gone)
            worn, lost = self._escalated(worn, now[staying], staying)
            gone[staying[lost]] = True
        guests = float(left.mean()) * UPDATES / PROFILES
        return Visits(visited(tight), visited(second), visited(worn), guests, float(gone.mean()))

    def _escalated(self, summaries: list[Bits], place: Points, who: NDArray[np.int64]) -> tuple[list[Bits], Bits]:
        """Summaries after these updates, and who of them went to the root."""
        left = np.zeros(len(who), bool)
        grown = []
        for bits, shard in zip(summaries, self.shards, strict=True):
            mine = np.flatnonzero(self.owner[who] == shard)
            near = bits[cells(place[mine])]
            left[mine[~near]] = True
            grown.append(bits | paint(place[mine[near]], FAR))
        return grown, left

    def one(self) -> tuple[Points, NDArray[np.float64]]:
        """The subscribers of one shard: where they are, how far they look."""
        mine = self.owner == self.shards[0]
        return self.place[mine], self.reach[mine]


# -- unit costs ------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """Of one shard: seconds per message that visits it and per update, bytes per profile."""

    message: float
    update: float
    memory: float


def measured(world: World, place: Points, reach: NDArray[np.float64], probes: Points, repeats: int) -> Cost:
    """A filter with these profiles, messages from these places, and moves."""
    n = len(place)
    filter = Filter()
    names = np.array([f"s{i}" for i in range(n)], object)
    filter.subscribe_many(TEXT, {"id": np.arange(n), "context": names, **world.wishes(n), "reach": reach})
    index = filter.context_index(names)
    for axis, name in enumerate("xy"):
        filter.update_many(index, name, place[:, axis])
    filter.match_many(world.messages(probes[:1]))
    with tempfile.TemporaryDirectory(prefix="tamis-benchmark-") as place_on_disk:
        filter.save(f"{place_on_disk}/shard")  # the arrays as they are
        memory = sum(one.stat().st_size for one in Path(place_on_disk).rglob("*") if one.is_file()) / n
    messages, updates = [], []
    for _ in range(repeats):
        movers = world.rng.integers(0, n, 50_000)
        after = world.moved(place[movers])
        moves = {"context": np.repeat(index[movers], 2), "attribute": np.tile(["x", "y"], len(movers))}
        log = EventLog.merge(updates={"seq": np.arange(2 * len(movers)), **moves, "value": after.ravel()})
        updates.append(clock(lambda log=log: filter.process(log))[1] / len(movers))
        table = world.messages(probes)
        messages.append(clock(lambda table=table: filter.match_many(table).to_arrow())[1] / len(probes))
    return Cost(statistics.median(messages), statistics.median(updates), memory)


# -- all of it -------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A number of shards and what comes of it, with messages to all shards and to those whose summary has them."""

    shards: int
    visits: Visits
    spread: Cost
    placed: Cost
    root: Cost

    @property
    def cores_all(self) -> float:
        """Cores when every message visits every shard, whose profiles are from everywhere."""
        return MESSAGES * self.shards * self.spread.message + UPDATES * self.spread.update

    @property
    def cores_some(self) -> float:
        """Cores when summaries say which shards it visits."""
        per_message = self.visits.second * self.placed.message + self.root.message
        return MESSAGES * per_message + UPDATES * self.placed.update


def run(scale: float = 1.0, repeats: int = REPEATS) -> dict[str, Any]:
    """The benchmark."""
    world = World()
    result = Result(
        "scale",
        "Toward internet scale",
        f"{PROFILES:,} profiles on contexts of their own, {MESSAGES:,} messages and {UPDATES:,} updates a second",
        scale,
    )
    plans = []
    with progress("scale", 2 + 2 * len(SHARDS)) as advance:
        advance("a small world for real")
        found, share = run_for_real(world)
        advance(f"{int(PROFILES * scale):,} subscribers")
        for drawn in Drawn.of(world, [Map.of(world, shards) for shards in SHARDS], scale):
            shards = drawn.home.shards
            advance(f"{shards:,} shards: visits")
            visits = drawn.visits(world)
            advance(f"{shards:,} shards: unit costs")
            place, reach = drawn.one()
            spread = measured(world, world.places(len(place)), reach, world.places(PROBES), repeats)
            probes = world.places(40 * PROBES)
            near = probes[paint(place, reach)[cells(probes)]][:PROBES]
            placed = measured(world, place, reach, near, repeats)
            guests = world.places(max(1_000, int(visits.guests * PROFILES)))
            wide = world.rng.uniform(NEAR, FAR, len(guests))
            root = measured(world, guests, wide, world.places(PROBES), repeats)
            plans.append(Plan(shards, visits, spread, placed, root))
    for plan in plans:
        what = f"{plan.shards:,} shards"
        result.add(f"{what}: shards that a message visits", plan.visits.second, "")
        result.add(f"{what}: cores, every message to all", plan.cores_all, "")
        result.add(f"{what}: cores, by summaries", plan.cores_some, "")
    result.exact = (
        f"8 real shards behind summaries, visited by {share:.0%} of the messages, and one filter: "
        f"the same {found:,} matches"
    )
    tables = "\n".join(_tables(plans, result.exact))
    print(tables)
    if FOR_DOCS:
        write_table("scale", tables, "scale.md")
        _plot(plans)
    return result.to_dict()


def _tables(plans: list[Plan], exact: str) -> Iterator[str]:
    yield "| shards | profiles of one | its memory | cores, every message to all shards | by summaries |"
    yield "|---:|---:|---:|---:|---:|"
    for p in plans:
        n = PROFILES / p.shards
        memory = f"{n * p.placed.memory / 1e6:,.0f} MB"
        yield f"| {p.shards:,} | {n:,.0f} | {memory} | {p.cores_all:,.0f} | {p.cores_some:,.0f} |"
    yield ""
    yield "| shards | visited by a message | a second later | after 8 moves | at the root then | after 8 moves |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for p in plans:
        v = p.visits
        shares = f"{v.guests:.2%} | {v.stranded:.0%}"
        yield f"| {p.shards:,} | {v.fresh:,.1f} | {v.second:,.1f} | {v.worn:,.1f} | {shares} |"
    yield ""
    yield "| shards | a message in one of all | in one that it visits | at the root | an update of a place |"
    yield "|---:|---:|---:|---:|---:|"
    for p in plans:
        costs = (p.spread.message, p.placed.message, p.root.message, p.placed.update)
        yield f"| {p.shards:,} | {' | '.join(f'{1e6 * one:,.2f} µs' for one in costs)} |"
    yield ""
    yield f"Exactness: {exact}."


def _plot(plans: list[Plan]) -> None:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
        at = np.arange(len(plans))
        for shift, colour, label, of in (
            (-0.2, GREY, "every message to all shards", lambda p: p.cores_all),
            (0.2, TEAL, "by summaries", lambda p: p.cores_some),
        ):
            bars = axes.bar(at + shift, [of(p) for p in plans], 0.4, color=colour, label=label)
            axes.bar_label(bars, [f"{of(p):,.0f}" for p in plans], padding=2, color=ORANGE)
        axes.set(yscale="log", ylabel="cores of this machine", xlabel="shards")
        axes.set_xticks(at, [f"{p.shards:,}" for p in plans])
        axes.grid(visible=False, axis="x")
        axes.legend()
        figure.savefig(DOCS / "assets" / "results" / "scale.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main(run)
