"""Content graphs against the figures of Lee, Naganuma and Kurakake: who finds the users of an event, and how fast.

Times are of the processor (one thread), so that busy neighbours do not count; all contenders of a point get the same
events, and their matches are compared. The paper's three methods follow the paper's plan: topics from the notification,
then places from the subscription. Compiling is done before anything is measured.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis import EventLog, Filter, UsageError
from tamis.graph import ContentGraph, Matched, Matcher, Searches
from tamis.graph.searches import Events, Plan, closure

from . import plots
from .experiment import ORDER, SIZE, Findings, Inexact, Judge, NotMeasured, Plot, Quantity, Setting, Table, Whose
from .graph_workload import GO, OF_EVENT, OF_USER, PLACES, USERS, Model, places, real, topics
from .plots import Panel
from .race import timed

METHOD: Final = {"unoptimised": "search", "closure": "closure", "content lists": "lists", "adaptive": "closure"}
ALL: Final = (*METHOD, "ours")
PAPER: Final[Plan] = [(0, "notification"), (1, "subscription")]
POINTS: Final = (100, 1_000, 10_000, 100_000)
SIZES: Final = (4_000, 13_000, 44_506)
EVENTS: Final = 2_000
NOISE: Final = 0.97
MICRO: Final = 1e6


def chosen(setting: Setting) -> tuple[str, ...]:
    """The contenders of a run, in their order."""
    if setting.contenders is None:
        return ALL
    for name in setting.contenders:
        if name not in ALL:
            near = difflib.get_close_matches(name, ALL, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"there is no contender {name!r}{hint} (known: {', '.join(ALL)})")
    return tuple(name for name in ALL if name in setting.contenders)


def share(size: int, scale: float, least: int) -> int:
    """A size of the paper at a scale."""
    return max(least, round(size * scale))


def cpu(work: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call: the mean of as many as fit, after one that does not count."""
    work()
    calls, start = 0, time.thread_time()
    while calls < 3 or (time.thread_time() - start < seconds and calls < 10_000):
        work()
        calls += 1
    return (time.thread_time() - start) / calls


class Field:
    """Users in every contender, over one model."""

    def __init__(self, model: Model, users: int) -> None:
        columns = model.users(users)
        self.searches = Searches(model.graphs, *columns)
        self.matcher = Matcher(model.graphs, most=max(OF_USER))
        self.matcher.insert(np.arange(users), *columns)
        self.raw = model.events(EVENTS)
        self.events = self.searches.events(*self.raw)

    def first(self, count: int) -> Events:
        """The first events."""
        return replace(self.events, count=count)

    def match(self, name: str, count: int) -> Matched:
        """Who the first events match, by a contender."""
        if name == "ours":
            return self.matcher.match(*(column[:count] for column in self.raw))
        return self.searches.match(self.first(count), METHOD[name], None if name == "adaptive" else PAPER)

    def race(self, names: Sequence[str], seconds: float) -> dict[str, dict[str, float]]:
        """Seconds per event of each contender, as many events as fit; all must give the same matches."""
        found: dict[str, dict[str, float]] = {}
        wanted: set[tuple[int, int]] | None = None
        for name in names:
            few = self.match(name, 10)
            got = set(zip(few.event.tolist(), few.user.tolist(), strict=True))
            if wanted is not None and got != wanted:
                raise Inexact(f"{name} and {names[0]} gave different matches")
            wanted = got
            count, spent = 10, 0.0
            while True:
                start = time.thread_time()
                matched = self.match(name, count)
                spent = time.thread_time() - start
                if spent >= seconds / 3 or count == EVENTS:
                    break
                count = min(EVENTS, max(2 * count, int(count * seconds / 2 / max(spent, 1e-6))))
            each = cpu(lambda name=name, count=count: self.match(name, count), seconds) / count  # type: ignore[misc]
            found[name] = {"events": count, "seconds": each, "matches per event": len(matched.user) / count}
        return found

    def search_alone(self, names: Sequence[str], seconds: float) -> dict[str, float]:
        """Seconds per event that finding the matching topics takes; no user is looked at."""
        methods = {name: METHOD[name] for name in names if name in METHOD and name != "adaptive"}
        return {
            name: cpu(lambda method=method: self.searches.find(self.events, 0, method), seconds) / EVENTS  # type: ignore[misc]
            for name, method in methods.items()
        }


class Grid:
    """Figures by contender and point, and what claims ask of them."""

    def __init__(self) -> None:
        self.figures: dict[tuple[str, float], float] = {}

    def at(self, name: str, point: float, factor: float = 1.0, what: str = "") -> Quantity:
        """A figure times a factor."""

        def value() -> float:
            if (name, point) not in self.figures:
                raise NotMeasured(f"{name} was not measured at {point:,}")
            return factor * self.figures[name, point]

        return Quantity(what or (name if factor == 1 else f"{factor:g} × {name}"), value)

    def ratio(self, over: tuple[str, float], under: tuple[str, float], what: str) -> Quantity:
        """One figure over another."""
        top, bottom = self.at(*over), self.at(*under)
        return Quantity(what, lambda: top.value() / bottom.value())

    def rows(self, points: Sequence[float], names: Sequence[str]) -> list[list[Any]]:
        return [[f"{point:,}", *(self.figures.get((name, point)) for name in names)] for point in points]

    def lines(self, points: Sequence[float], names: Sequence[str]) -> list[plots.Line]:
        return [(name, list(points), [self.figures.get((name, p)) for p in points]) for name in names]


def _number(value: float) -> Quantity:
    return Quantity(f"{value:g}", lambda: value)


_Row: TypeAlias = "tuple[str, tuple[Quantity, str, Quantity], float]"
"""A claim: its words, what is compared, and the scale from which on it is judged."""


def _claim(judge: Judge, rows: Sequence[_Row], whose: Whose, unit: str = "") -> None:
    for words, (left, sign, right), scale in rows:
        compare = judge.at_least if sign == "≥" else judge.at_most
        compare(words, left, right, scale=scale, unit=unit, whose=whose)


def _given(model: Model, **more: Any) -> dict[str, Any]:
    return {
        "topics": len(model.topic),
        "places": len(model.place),
        "categories of a user": list(OF_USER),
        "categories of an event": list(OF_EVENT),
        "plan of the paper's methods": [list(step) for step in PAPER],
        **more,
    }


def _model(topic_count: int, setting: Setting) -> Model:
    rng = np.random.default_rng(setting.seed)
    return Model(topics(topic_count, rng), places(share(PLACES, setting.scale, 60), rng), rng)


# -- Figure 6 --------------------------------------------------------------------------------------------------


def users(setting: Setting) -> Findings:
    """The time to match an event, over the number of users."""
    plots.needed()
    names, seconds = chosen(setting), setting.budget or 1.0
    model = _model(share(SIZES[-1], setting.scale, 300), setting)
    points = sorted({share(point, setting.scale, 20) for point in POINTS})
    whole, alone, measurements = Grid(), Grid(), []
    for i, point in enumerate(points):
        setting.progress(i, len(points), f"{point:,} users")
        field = Field(model, point)
        for name, one in field.race(names, seconds).items():
            whole.figures[name, point] = one["seconds"] * MICRO
            measurements.append({"contender": name, "users": point, **one})
        if point == points[-1]:
            for name, each in field.search_alone(names, seconds / 2).items():
                alone.figures[name, point] = each * MICRO
                measurements.append({"contender": name, "users": point, "events": EVENTS, "seconds of search": each})
    most = points[-1]
    judge = Judge(setting.scale)
    closure_time, lists_time, our_time = (whole.at(name, most) for name in ("closure", "content lists", "ours"))
    rows: list[_Row] = [
        (
            "closure finds the matching topics at least 20 times as fast as the unoptimised search",
            (alone.at("unoptimised", most), "≥", alone.at("closure", most, 20)),
            SIZE,
        ),
        (f"content lists match faster than closure at {most:,} users", (lists_time, "≤", closure_time), ORDER),
        (
            f"unoptimised search is the slowest of the paper's methods at {most:,} users (3 % for noise)",
            (whole.at("closure", most, NOISE), "≤", whole.at("unoptimised", most)),
            ORDER,
        ),
    ]
    _claim(judge, rows, "paper", "µs")
    often = Quantity("a 20,000th of a second", lambda: MICRO / 20_000)
    rows = [
        (f"ours is at least as fast as content lists at {most:,} users", (our_time, "≤", lists_time), ORDER),
        (
            f"ours is at least 5 times as fast as closure at {most:,} users",
            (whole.at("ours", most, 5), "≤", closure_time),
            SIZE,
        ),
        ("ours matches 20,000 events a second", (our_time, "≤", often), SIZE),
        (
            "a plan from live statistics is no slower than the paper's, both by closure (3 % for noise)",
            (whole.at("adaptive", most, NOISE), "≤", closure_time),
            ORDER,
        ),
    ]
    _claim(judge, rows, "tamis", "µs")
    panel = Panel(
        f"Matching an event, {len(model.topic):,} topics",
        "users",
        "µs of one processor",
        whole.lines(points, names),
        logx=True,
        logy=True,
        ticks=points,
    )
    search = Table(
        "Finding the matching topics alone (µs per event)",
        ["", *(name for name, _ in alone.figures)],
        [["search", *alone.figures.values()]],
        "What the method changes. In memory, looking at the users whom topics return takes most of the time.",
    )
    return Findings(
        _given(model, users=points),
        measurements,
        [Table("Matching an event (µs)", ["users", *names], whole.rows(points, names)), search],
        judge.claims,
        [Plot("", "the paper's Figure 6", plots.draw([panel], "graph-fig6", 4.6))],
        [
            "The paper's tables were in a database, where each step of a search is a query: there the whole match is "
            "20 to 30 times as fast by closure, and 30 times as fast again by content lists. In memory the factor is "
            "in the search alone."
        ],
    )


# -- Figure 7 --------------------------------------------------------------------------------------------------


def event_model(setting: Setting) -> Findings:
    """The time to match an event, over the number of topics."""
    plots.needed()
    names, seconds = chosen(setting), setting.budget or 1.0
    count = share(USERS, setting.scale, 50)
    models = {share(size, setting.scale, 200 * (i + 1)): None for i, size in enumerate(SIZES)}
    points = list(models)
    whole, alone = Grid(), Grid()
    measurements: list[dict[str, Any]] = []
    model = None
    for i, point in enumerate(points):
        setting.progress(i, len(points), f"{point:,} topics")
        model = _model(point, setting)
        _measure(model, count, names, seconds, point, whole, alone, measurements)
    tables = [
        Table("Matching an event (µs)", ["topics", *names], whole.rows(points, names)),
        Table("Finding the matching topics alone (µs)", ["topics", *METHOD], alone.rows(points, list(METHOD))),
    ]
    go = real(setting.data, GO, "topic")
    if go is not None:
        assert model is not None
        point = len(go)
        _measure(replace(model, topic=go), count, names, seconds, point, whole, alone, measurements)
        tables.append(
            Table("The same with the Gene Ontology as topics (µs)", ["topics", *names], whole.rows([point], names))
        )
    low, high = points[0], points[-1]
    judge = Judge(setting.scale)

    def growth(grid: Grid, name: str) -> Quantity:
        return grid.ratio((name, high), (name, low), "most over fewest topics")

    rows: list[_Row] = [
        (
            "by closure, finding the topics takes about as long with most topics as with fewest",
            (growth(alone, "closure"), "≤", _number(1.5)),
            ORDER,
        ),
        (
            "by closure, the whole match does not take longer with most topics",
            (growth(whole, "closure"), "≤", _number(1.5)),
            ORDER,
        ),
        (
            "the unoptimised search takes longer with more topics",
            (growth(alone, "unoptimised"), "≥", _number(2.0)),
            SIZE,
        ),
        ("content lists take longer with more topics", (growth(alone, "content lists"), "≥", _number(1.5)), SIZE),
    ]
    _claim(judge, rows, "paper")
    rows = [
        (
            f"ours is at least as fast as content lists with {point:,} topics",
            (whole.at("ours", point), "≤", whole.at("content lists", point)),
            ORDER,
        )
        for point in points
    ]
    _claim(judge, rows, "tamis", "µs")
    panels = [
        Panel(title, "topics", "µs of one processor", grid.lines(points, shown), logx=True, logy=True, ticks=points)
        for title, grid, shown in (
            (f"Matching an event, {count:,} users", whole, names),
            ("Finding the matching topics alone", alone, [name for name in METHOD if name in names]),
        )
    ]
    assert model is not None
    return Findings(
        _given(model, users=count, topics=points),
        measurements,
        tables,
        judge.claims,
        [Plot("", "the paper's Figure 7", plots.draw(panels, "graph-fig7"))],
        [
            "The same users spread over more topics, so that each topic returns fewer of them: whole matches by "
            "closure get faster, while searches alone get slower or stay the same."
        ],
    )


def _measure(
    model: Model,
    count: int,
    names: Sequence[str],
    seconds: float,
    point: int,
    whole: Grid,
    alone: Grid,
    measurements: list[dict[str, Any]],
) -> None:
    field = Field(model, count)
    for name, one in field.race(names, seconds).items():
        whole.figures[name, point] = one["seconds"] * MICRO
        measurements.append({"contender": name, "topics": point, "users": count, **one})
    for name, each in field.search_alone(names, seconds / 2).items():
        alone.figures[name, point] = each * MICRO
        measurements.append({"contender": name, "topics": point, "events": EVENTS, "seconds of search": each})


# -- moving users ----------------------------------------------------------------------------------------------

RATES: Final = (1, 10, 100, 1_000)
STRATEGIES: Final = {"AGILE": "agile", "EAGER": "eager"}
ENGINE: Final = {f"{name}, engine": strategy for name, strategy in STRATEGIES.items()}
PROFILE: Final = "topic within ctx.topics and place covers ctx.places"


def moves(setting: Setting) -> Findings:
    """Users move about in a neighbourhood: events a second over the updates before each."""
    plots.needed()
    seconds = setting.budget or 1.0
    model = _model(share(SIZES[-1], setting.scale, 300), setting)
    count = share(USERS, setting.scale, 100)
    world = _Neighbourhoods(model, count)
    grid, listed, measurements = Grid(), Grid(), []
    rates = {rate: max(1, round(rate * setting.scale)) if setting.scale < 1 else rate for rate in RATES}
    for i, (rate, updates) in enumerate(rates.items()):
        setting.progress(i, len(rates), f"{rate:,} updates per event")
        for name, one in world.race(updates, seconds).items():
            grid.figures[name, rate] = one["events per second"]
            listed.figures[name, rate] = one["changes of lists per event"]
            measurements.append({"contender": name, "updates per event": updates, **one})
    for name, each in world.updates_alone(seconds).items():
        grid.figures[name, 0] = 1 / each
        measurements.append({"contender": name, "updates": world.batch, "seconds of an update": each})
    judge = Judge(setting.scale)
    for where, who in (("", ""), ("in the whole engine ", ", engine")):
        judge.at_least(
            f"{where}AGILE is at least 3 times as fast as EAGER at 1,000 updates per event",
            grid.at(f"AGILE{who}", 1_000),
            grid.at(f"EAGER{who}", 1_000, 3),
            scale=SIZE,
            unit="events/s",
            whose="tamis",
        )
        judge.at_least(
            f"{where}a category moves 1,000,000 times a second",
            grid.at(f"AGILE{who}", 0, what="updates alone, AGILE"),
            _number(1e6),
            scale=SIZE,
            unit="updates/s",
            whose="tamis",
        )
    judge.at_least(
        "AGILE changes lists at most a tenth as often as EAGER at 1,000 updates per event",
        listed.at("EAGER", 1_000),
        listed.at("AGILE", 1_000, 10),
        scale=SIZE,
        unit="changes per event",
        whose="tamis",
    )
    judge.at_least(
        "AGILE is as fast as EAGER at 1 update per event (15 % for noise)",
        grid.at("AGILE", 1),
        grid.at("EAGER", 1, 0.85),
        scale=SIZE,
        unit="events/s",
        whose="tamis",
    )
    names = [*STRATEGIES, *ENGINE]
    panel = Panel(
        f"{count:,} users in {len(model.place):,} places",
        "updates per event",
        "events per second of one processor",
        grid.lines(RATES, names),
        logx=True,
        logy=True,
        ticks=RATES,
    )
    return Findings(
        _given(model, users=count, **{"updates per event": list(rates.values())}),
        measurements,
        [
            Table("Events per second", ["updates per event", *names], grid.rows(RATES, names)),
            Table("Updates per second, alone", ["", *names], [["", *(grid.figures[name, 0] for name in names)]]),
        ],
        judge.claims,
        [Plot("", "beyond the paper: places that change", plots.draw([panel], "graph-moves", 4.2))],
        [
            "A place moves at random below the grandparent of where it started: from house to house in a town. AGILE "
            "and EAGER are those of Matcher, which gets numbers. The engine gets logs of texts in which an update is "
            "the set of all places of a user; turning them into codes counts."
        ],
    )


class _Neighbourhoods:
    """Users whose places move, in both strategies, in a matcher and in a filter."""

    batch = 200_000

    def __init__(self, model: Model, count: int) -> None:
        self.model, self.count = model, count
        topic, place = model.users(count)
        self.matchers = {}
        for name, strategy in STRATEGIES.items():
            self.matchers[name] = Matcher(model.graphs, most=max(OF_USER), strategy=strategy)
            self.matchers[name].insert(np.arange(count), topic, place)
        self.places = np.array(place)
        self.filters = {}
        for name, strategy in ENGINE.items():
            one = self.filters[name] = Filter(strategy=strategy, graphs=[model.topic, model.place])
            contexts = one.context_index([f"u{i}" for i in range(count)])
            one.update_many(contexts, "topics", _names(model.topic, topic))
            one.update_many(contexts, "places", _names(model.place, place))
            one.subscribe_many(PROFILE, {"id": np.arange(count), "context": contexts})
        graph = model.place
        parent = np.array([(*graph.parents(i), i)[0] for i in range(graph.size)])
        self.home = parent[parent[place]]
        self.starts, self.rows = closure(graph, up=False)

    def log(self, updates: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Users, which of their places, and where to."""
        rng = self.model.rng
        user, which = rng.integers(0, self.count, updates), rng.integers(0, OF_USER[1], updates)
        home = self.home[user, which]
        low, high = self.starts[home], self.starts[home + 1]
        return user, which, self.rows[low + (rng.random(updates) * (high - low)).astype(np.int64)]

    def texts(
        self, user: NDArray[Any], which: NDArray[Any], to: NDArray[Any], log: Sequence[NDArray[Any]], updates: int
    ) -> EventLog:
        """The same events and updates for a filter."""
        after = np.empty((len(user), self.places.shape[1]), np.int64)
        for i, (k, j, place) in enumerate(zip(user.tolist(), which.tolist(), to.tolist(), strict=True)):
            self.places[k, j] = place
            after[i] = self.places[k]
        events = len(log[0])
        seq = np.arange(events + len(user))
        is_event = seq % (updates + 1) == updates if events else np.zeros(len(seq), np.bool_)
        moves = {"context": user, "attribute": "places", "value": _names(self.model.place, after)}
        columns = {"topic": _names(self.model.topic, log[0]), "place": _names(self.model.place, log[1])}
        return EventLog.merge(
            messages={**columns, "seq": seq[is_event]} if events else None,
            updates={**moves, "seq": seq[~is_event]},
        )

    def race(self, updates: int, seconds: float) -> dict[str, dict[str, float]]:
        """Events a second of both, after a warm-up: where updates are many, every place has moved about six times."""
        events = max(20, min(2_000, self.batch // updates))
        names = [*self.matchers, *self.filters]
        spent, before = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
        done, warm = 0, 6 * self.count * OF_USER[1]
        while done < 3 * events or max(spent.values()) < seconds:
            user, which, to = self.log(events * updates)
            log = self.model.events(events)
            got: list[set[tuple[int, int]]] = []
            for name, matcher in self.matchers.items():
                rows = matcher.moves(user, 1, which, to)
                start = time.thread_time()
                found = matcher.process(rows, np.arange(events + 1) * updates, *log)
                spent[name] += time.thread_time() - start
                got.append(set(zip(found.event.tolist(), found.user.tolist(), strict=True)))
            texts = self.texts(user, which, to, log, updates)
            for name, one in self.filters.items():
                matches, _, took = timed(one, texts)
                spent[name] += took
                got.append(set(zip(matches.message.tolist(), matches.profile.tolist(), strict=True)))
            if any(one != got[0] for one in got):
                raise Inexact("AGILE and EAGER, or matcher and engine, gave different matches")
            done += events
            if warm > 0:
                warm -= events * updates if updates >= 100 else warm
                done, spent = 0, dict.fromkeys(spent, 0.0)
                before = {name: self.changes(name) for name in names}
        return {
            name: {
                "events": done,
                "seconds": spent[name],
                "events per second": done / spent[name],
                "changes of lists per event": (self.changes(name) - before[name]) / done,
            }
            for name in names
        }

    def changes(self, name: str) -> int:
        """How often a contender has changed its lists so far."""
        if name in self.matchers:
            return self.matchers[name].stats["index_updates"]
        return self.filters[name].stats["moves"]

    def updates_alone(self, seconds: float) -> dict[str, float]:
        """Seconds per update in a log without events."""
        user, which, to = self.log(self.batch)
        none = np.empty((0, 1), np.int32)
        found = {}
        for name, matcher in self.matchers.items():
            forth = matcher.moves(user, 1, which, to)
            user, which, to = self.log(self.batch)
            back = matcher.moves(user, 1, which, to)

            def work(matcher: Matcher = matcher, logs: Sequence[Any] = (forth, back)) -> None:
                for rows in logs:
                    matcher.process(rows, None, none, none)

            found[name] = cpu(work, seconds / 2) / (2 * self.batch)
        none = np.empty((0, 1), np.int64)
        texts = [self.texts(*self.log(self.batch), (none, none), 0) for _ in range(2)]
        for name, one in self.filters.items():

            def process(one: Filter = one) -> None:
                for log in texts:
                    one.process(log)

            found[name] = cpu(process, seconds / 2) / (2 * self.batch)
        return found


def _names(graph: ContentGraph, categories: NDArray[Any]) -> pa.Array:
    """Rows of categories as lists of their names."""
    codes = pa.DictionaryArray.from_arrays(pa.array(categories.reshape(-1).astype(np.int32)), pa.array(graph.names))
    offsets = pa.array(np.arange(0, categories.size + 1, categories.shape[1], dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, codes)
