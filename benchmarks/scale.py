"""Toward internet scale: what a hundred million profiles and a million messages a second would take.

Unit costs are measured: shards of the sizes in question, filled with their profiles, are matched and updated by the
engine. How many shards a message has to visit is simulated: a hundred million subscribers live in cities of uneven
size, some shards are drawn and filled to the last profile, and messages are held against their summaries while
subscribers move. A small world is run for real first, a filter per shard behind such a router, and compared with one
filter. ``--docs`` writes the tables into ``docs/scale.md``.
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
CITIES, TOPICS, GRID, STEP, TRAVEL = 2_000, 500, 512, 0.001, 0.002
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
        topic = 1 / np.arange(1, TOPICS + 1)
        self.topic = topic / topic.sum()

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
            "topic": self.rng.choice(TOPICS, count, p=self.topic),
            "limit": self.rng.uniform(0, 1, count),
        }

    def messages(self, place: Points) -> dict[str, NDArray[Any]]:
        """Messages from these places."""
        n = len(place)
        topic = self.rng.choice(TOPICS, n, p=self.topic)
        return {"x": place[:, 0], "y": place[:, 1], "topic": topic, "price": self.rng.uniform(0, 1, n)}


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


def run_for_real(world: World, profiles: int = 4_000, shards: int = 8, rounds: int = 60) -> tuple[int, float]:
    """Shards behind the router against one filter. Returns the matches, and the share of shards that were visited."""
    home = Map.of(world, shards)
    place = world.places(profiles)
    wishes = world.wishes(profiles)
    owner = home.shard(place)
    one, many = Filter(), [Filter() for _ in range(shards)]
    names = np.array([f"s{i}" for i in range(profiles)], object)
    for filter, mine in [(one, np.arange(profiles)), *((many[s], np.flatnonzero(owner == s)) for s in range(shards))]:
        filter.subscribe_many(TEXT, {"id": mine, "context": names[mine], **{k: v[mine] for k, v in wishes.items()}})
        for axis, name in enumerate("xy"):
            filter.update_many(names[mine], name, place[mine, axis])
    summary = np.array([paint(place[owner == s], wishes["reach"][owner == s]) for s in range(shards)])
    found = visits = 0
    for number in range(rounds):
        movers = world.rng.choice(profiles, profiles // 20, replace=False)
        place[movers] = world.moved(place[movers])
        for filter, mine in [(one, movers), *((many[s], movers[owner[movers] == s]) for s in range(shards))]:
            for axis, name in enumerate("xy"):
                filter.update_many(names[mine], name, place[mine, axis])
        # The router passes updates on, so it knows of every move before the messages after it; how far each subscriber
        # looks only the shards know, and they tell anew now and then.
        for s in range(shards):
            summary[s] |= paint(place[movers[owner[movers] == s]], FAR)
            if number % 10 == 9:
                summary[s] = paint(place[owner == s], wishes["reach"][owner == s])
        where = world.places(200)
        messages = world.messages(where)
        expected = one.match_many(messages)
        pairs = []
        for s in range(shards):
            rows = np.flatnonzero(summary[s][cells(where)])
            visits += len(rows)
            if len(rows):
                part = many[s].match_many({name: column[rows] for name, column in messages.items()})
                pairs += zip(rows[part.message].tolist(), part.profile.tolist(), strict=True)
        if sorted(pairs) != sorted(zip(expected.message.tolist(), expected.profile.tolist(), strict=True)):
            raise Inexact(f"round {number}: {len(pairs)} matches behind the router, {len(expected)} of one filter")
        found += len(pairs)
    return found, visits / (rounds * 200 * shards)


# -- simulated -------------------------------------------------------------------------------------------------


class Visits(NamedTuple):
    """Shards that a message visits: as laid out, at the end of a second of updates, after many without new summaries.

    Also the share of subscribers whose place belongs to another shard, after one update and after eight.
    """

    fresh: float
    second: float
    worn: float
    away: float
    long_away: float


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

    def summaries(self, place: Points, reach: Any, who: Any = slice(None)) -> list[Bits]:
        """One of every shard, for some of its subscribers."""
        owner = self.owner[who]
        reach = np.broadcast_to(reach, len(place))
        return [paint(place[owner == shard], reach[owner == shard]) for shard in self.shards]

    def visits(self, world: World) -> Visits:
        """Hold messages against the summaries while subscribers move."""
        at = cells(world.places(PROBES))

        def visited(summaries: list[Bits]) -> float:
            return self.home.shards * float(np.mean([bits[at].mean() for bits in summaries]))

        tight = self.summaries(self.place, self.reach)
        movers = np.flatnonzero(world.rng.random(len(self.place)) < UPDATES / PROFILES)
        after = world.moved(self.place[movers])
        second = [old | new for old, new in zip(tight, self.summaries(after, FAR, movers), strict=True)]
        worn, now = tight, self.place
        for _ in range(8):
            now = world.moved(now)
            worn = [old | new for old, new in zip(worn, self.summaries(now, FAR), strict=True)]
        away = float(np.mean(self.home.shard(after) != self.owner[movers]))
        long_away = float(np.mean(self.home.shard(now) != self.owner))
        return Visits(visited(tight), visited(second), visited(worn), away, long_away)

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

    @property
    def cores_all(self) -> float:
        """Cores when every message visits every shard, whose profiles are from everywhere."""
        return MESSAGES * self.shards * self.spread.message + UPDATES * self.spread.update

    @property
    def cores_some(self) -> float:
        """Cores when summaries say which shards it visits."""
        return MESSAGES * self.visits.second * self.placed.message + UPDATES * self.placed.update


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
            plans.append(Plan(shards, visits, spread, measured(world, place, reach, near, repeats)))
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
    yield "| shards | visited by a message | a second later | after 8 moves | away after 1 move | after 8 |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for p in plans:
        v = p.visits
        yield f"| {p.shards:,} | {v.fresh:,.1f} | {v.second:,.1f} | {v.worn:,.1f} | {v.away:.0%} | {v.long_away:.0%} |"
    yield ""
    yield "| shards | a message in one of all | in one that it visits | an update of a place |"
    yield "|---:|---:|---:|---:|"
    for p in plans:
        costs = (p.spread.message, p.placed.message, p.placed.update)
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
