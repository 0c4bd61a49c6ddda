"""Categories of content graphs: 100,000 users with five topics and three places each, events of three and two.

The event model of "Efficient Matching in a Context-Aware Event Notification System for Mobile Users": a graph of 44,506
topics in which many have several parents, a tree of 6,905 places. An event matches a user when one of its topics is
within one of the user's and one of its places covers one of theirs. The engine is compared with the paper's optimised
matching: topics by their transitive closure, then places from the subscription. Users move: an update changes one of
their places to a neighbour. AGILE is compared with EAGER, which keeps the catalogue exact, at 1,000 updates a message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from measure import Inexact, Result, Times, clock, main, progress, same
from tamis import EventLog, Filter
from tamis.graph import ContentGraph, Searches
from tamis.graph.searches import Plan

USERS, TOPICS, PLACES = 100_000, 44_506, 6_905
PAPER: Plan = [(0, "notification"), (1, "subscription")]
PROFILE = "topic within ctx.topics and place covers ctx.places"
Ids = NDArray[np.int64]


def layered(rng: np.random.Generator, nodes: int, fan: int, more: float) -> list[tuple[str, str]]:
    """Edges of a graph of layers, each ``fan`` times the one above; a share of ``more`` has a second parent."""
    bounds = [0, 1]
    while bounds[-1] < nodes:
        bounds.append(min(nodes, bounds[-1] + max(fan, (bounds[-1] - bounds[-2]) * fan)))
    edges = []
    for layer in range(1, len(bounds) - 1):
        children = np.arange(bounds[layer], bounds[layer + 1])
        parents = rng.integers(bounds[layer - 1], bounds[layer], len(children))
        edges += list(zip(parents.tolist(), children.tolist(), strict=True))
        again = children[rng.random(len(children)) < more]
        second = rng.integers(0, bounds[layer], len(again))
        edges += list(zip(second.tolist(), again.tolist(), strict=True))
    return [(f"n{parent}", f"n{child}") for parent, child in dict.fromkeys(edges) if parent != child]


class Town:
    """Graphs, users and random events."""

    def __init__(self, scale: float, seed: int = 1) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.users = max(1_000, int(USERS * scale))
        self.topic = ContentGraph.from_edges(layered(rng, max(500, int(TOPICS * scale)), 8, 1.0), name="topic")
        self.place = ContentGraph.from_edges(layered(rng, max(300, int(PLACES * scale)), 9, 0.0), name="place")
        self.topics = rng.integers(0, len(self.topic), (self.users, 5))
        self.places = rng.integers(0, len(self.place), (self.users, 3))
        near = [[*self.place.parents(i), *self.place.children(i)] or [i] for i in range(len(self.place))]
        self._near = np.array([[one[int(k * len(one))] for k in rng.random(8)] for one in near])

    def names(self, graph: ContentGraph, ids: Ids) -> pa.Array:
        """Lists of names, one per row of ids."""
        codes = pa.DictionaryArray.from_arrays(pa.array(ids.reshape(-1).astype(np.int32)), pa.array(graph.names))
        offsets = pa.array(np.arange(0, ids.size + 1, ids.shape[1], dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, codes.cast(pa.string()))

    def subscribe(self, filter: Filter) -> None:
        """All users: their categories, and one profile each."""
        contexts = filter.context_index([f"u{i}" for i in range(self.users)])
        filter.update_many(contexts, "topics", self.names(self.topic, self.topics))
        filter.update_many(contexts, "places", self.names(self.place, self.places))
        filter.subscribe_many(PROFILE, {"id": np.arange(self.users), "context": contexts})

    def events(self, count: int) -> tuple[dict[str, pa.Array], Ids, Ids]:
        """Random events as columns, and as ids."""
        topics = self.rng.integers(0, len(self.topic), (count, 3))
        places = self.rng.integers(0, len(self.place), (count, 2))
        return {"topic": self.names(self.topic, topics), "place": self.names(self.place, places)}, topics, places

    def moves(self, count: int) -> dict[str, Any]:
        """Updates: random users step to a neighbour of one of their places."""
        users = self.rng.integers(0, self.users, count)
        which, step = self.rng.integers(0, 3, count), self.rng.integers(0, 8, count)
        after = np.empty((count, 3), np.int64)
        places, near = self.places, self._near
        for i in range(count):
            user = users[i]
            places[user, which[i]] = near[places[user, which[i]], step[i]]
            after[i] = places[user]
        value = self.names(self.place, after)
        return {"context": users, "attribute": "places", "value": value}

    def matching(self, topics: Ids, places: Ids) -> list[int]:
        """The users of one event, by brute force."""
        within = np.zeros(len(self.topic), np.bool_)
        covered = np.zeros(len(self.place), np.bool_)
        for topic in topics.tolist():
            within[self.topic.ancestors(topic)] = True
        for place in places.tolist():
            covered[self.place.descendants(place)] = True
        return np.flatnonzero(within[self.topics].any(axis=1) & covered[self.places].any(axis=1)).tolist()


def mixed(town: Town, messages: int, updates: int) -> tuple[EventLog, list[int]]:
    """A log with ``updates`` moves before each message, and the users of the last."""
    columns, topics, places = town.events(messages)
    moves = town.moves(messages * updates)
    seq = np.arange(messages * (updates + 1))
    is_message = seq % (updates + 1) == updates
    log = EventLog.merge(messages={**columns, "seq": seq[is_message]}, updates={**moves, "seq": seq[~is_message]})
    return log, town.matching(topics[-1], places[-1])


def run(scale: float = 1.0, repeats: int = 5) -> dict[str, Any]:
    """Events alone, updates alone, then both."""
    result = Result(
        "topics",
        "Content graphs: events by topic and place",
        f"{max(1_000, int(USERS * scale)):,} users of 5 topics and 3 places, events of 3 and 2; one thread; texts "
        f"become codes while the clock runs (but for the closure, which gets numbers); {repeats} repeats in turns.",
        scale,
    )
    town = Town(scale)
    agile, eager = (Filter(strategy=one, graphs=[town.topic, town.place]) for one in ("agile", "eager"))
    exact = matches = 0
    times: dict[str, list[float]] = {name: [] for name in ("events", "closure", "updates", "agile", "eager")}
    count, mass, batch = max(1_000, int(20_000 * scale)), max(20_000, int(1_000_000 * scale)), 200
    with progress("topics", 2 * repeats + 4) as advance:
        advance("users subscribe")
        for filter in (agile, eager):
            town.subscribe(filter)
            filter.match({})
        searches = Searches([(town.topic, "within"), (town.place, "covers")], town.topics, town.places)
        for repeat in range(repeats + 1):  # the first is for the kernels
            advance(f"events, repeat {repeat}")
            columns, topics, places = town.events(count)
            found, seconds = clock(lambda columns=columns: agile.process(EventLog.of_messages(columns)))
            few = searches.events(topics[: count // 10], places[: count // 10])
            closed, slow = clock(lambda few=few: searches.match(few, "closure", PAPER))
            ids = found.by_message()
            for i in range(0, count // 10, max(1, count // 100)):
                same(ids.get(i, []), town.matching(topics[i], places[i]), f"event {i}")
                same(closed.user[closed.event == i].tolist(), ids.get(i, []), f"event {i}, by closure")
                exact += 1
            matches += len(found)
            if repeat:
                times["events"].append(seconds / count)
                times["closure"].append(slow / (count // 10))
        for repeat in range(repeats + 1):
            advance(f"moves, repeat {repeat}")
            moves = town.moves(mass)
            _, moving = clock(lambda moves=moves: agile.process(EventLog.merge(updates=moves)))
            eager.process(EventLog.merge(updates=moves))
            both, last = mixed(town, batch, max(10, int(1_000 * scale)))
            one, quick = clock(lambda log=both: agile.process(log))
            two, slow = clock(lambda log=both: eager.process(log))
            found_by = [found.by_message() for found in (one, two)]
            same(found_by[0].get(batch - 1, []), last, "the last event of a mixed log")
            exact += 1
            if {i: sorted(ids) for i, ids in found_by[0].items()} != {i: sorted(ids) for i, ids in found_by[1].items()}:
                raise Inexact("AGILE and EAGER differ")
            if repeat:
                times["updates"].append(moving / mass)
                times["agile"].append(quick / batch)
                times["eager"].append(slow / batch)
    done = {name: Times(tuple(values)) for name, values in times.items()}
    result.add("events", done["events"].rate, "events/s", 20_000, spread=done["events"].spread)
    note = f"{done['closure'].rate:,.0f} events/s by closure"
    result.compare("engine / closure, events", done["closure"], done["events"], 5, note)
    result.add("category updates", done["updates"].rate, "updates/s", 1_000_000, spread=done["updates"].spread)
    note = f"{done['agile'].rate:,.0f} and {done['eager'].rate:,.0f} messages/s; {agile.stats['naps']} naps"
    result.compare("AGILE / EAGER, 1,000 updates per message", done["eager"], done["agile"], 3, note)
    result.exact = f"{exact} events equal to brute force, {matches:,} matches; mixed logs equal under both"
    result.data = {"stats": {name: filter.stats for name, filter in (("agile", agile), ("eager", eager))}}
    return result.to_dict()


if __name__ == "__main__":
    main(run)
