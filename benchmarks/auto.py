"""``index="auto"`` beside every index that it may choose from, on workloads of which each favours another one.

All sides process the same logs, in turns, after a warm-up in which ``auto`` may change its mind. In the last story it
has to: profiles about topics leave and profiles about ranges come; there the whole story is timed, with everything
that changing an index costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from measure import Inexact, Result, Times, clock, main, progress, ratio
from tamis import EventLog, Filter

PROFILES = 50_000
TARGET = 0.9
WARM = 8  # logs before the clock starts
DOMAIN = 1_000.0
AGILE: dict[str, dict[str, Any]] = {
    "blocks": {"index": "blocks"},
    "hash": {"index": "hash", "indexed": 1},
    "noindex": {"strategy": "noindex"},
}
EAGER: dict[str, dict[str, Any]] = {
    f"{index}, {indexed}": {"strategy": "eager", "index": index, "indexed": indexed}
    for index, indexed in (
        ("skiplist", 2),
        ("hash", 1),
        ("hash", 2),
        ("btree", 1),
        ("btree", 2),
        ("rtree", 2),
        ("rtree", 3),
    )
}


class Workload(NamedTuple):
    """Profiles for a filter, logs without end, messages per log; and who competes."""

    name: str
    load: Callable[[Filter], None]
    logs: Callable[[], Iterator[EventLog]]
    messages: int
    sides: dict[str, dict[str, Any]]


def uniform(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Values of the domain."""
    return rng.uniform(0, DOMAIN, count)


def static(
    name: str, rng: np.random.Generator, text: str, table: dict[str, Any], draw: Any, messages: int, sides: Any
) -> Workload:
    """Prepared profiles without contexts; ``draw`` makes the columns of some messages."""

    def load(filter: Filter) -> None:
        filter.subscribe_many(text, {"id": np.arange(len(next(iter(table.values())))), **table})

    def logs() -> Iterator[EventLog]:
        while True:
            yield EventLog.of_messages(pa.table(draw(messages)))

    return Workload(name, load, logs, messages, sides)


def moving(
    name: str,
    rng: np.random.Generator,
    text: str,
    profiles: int,
    contexts: int,
    attributes: list[str],
    updates: int,
    messages: int,
    sides: Any,
    extra: dict[str, Any] | None = None,
) -> Workload:
    """Profiles around contexts that jump about, with ``updates`` of them before every message."""
    names = [f"c{i}" for i in range(contexts)]
    first = {attribute: uniform(rng, contexts) for attribute in attributes}

    def load(filter: Filter) -> None:
        for attribute, values in first.items():
            filter.update_many(names, attribute, values)
        owner = [names[i % contexts] for i in range(profiles)]
        filter.subscribe_many(text, {"id": np.arange(profiles), "context": owner, **(extra or {})})

    def logs() -> Iterator[EventLog]:
        count = updates * messages
        while True:
            which = rng.integers(0, len(attributes), count).astype(np.int32)
            moved = {
                "context": rng.integers(0, contexts, count),
                "attribute": pa.DictionaryArray.from_arrays(pa.array(which), pa.array(attributes)),
                "value": uniform(rng, count),
                "seq": np.arange(count) // max(1, updates) * 2,
            }
            sent = {"x": uniform(rng, messages), "y": uniform(rng, messages), "seq": np.arange(messages) * 2 + 1}
            yield EventLog.merge(messages=pa.table(sent), updates=pa.table(moved), order="seq")

    return Workload(name, load, logs, messages, sides)


def workloads(scale: float) -> Iterator[Workload]:
    """One after the other: they are large."""
    rng = np.random.default_rng(11)
    n = max(2_000, int(PROFILES * scale))

    def ranges(names: str, width: float, profiles: int) -> tuple[str, dict[str, Any], Any]:
        low = {a: rng.uniform(0, 1 - width, profiles) * DOMAIN for a in names}
        text = " and ".join(f"{a} between {{{a}lo}} and {{{a}hi}}" for a in names)
        table = {f"{a}lo": low[a] for a in names} | {f"{a}hi": low[a] + width * DOMAIN for a in names}
        return text, table, lambda count: {a: uniform(rng, count) for a in names}

    def points(topics: int) -> Any:
        return lambda count: {
            "topic": rng.integers(0, topics, count),
            "x": uniform(rng, count),
            "y": uniform(rng, count),
        }

    yield static("ranges", rng, *ranges("abcdef", 0.3, n), 200, AGILE)
    table: dict[str, Any] = {"topic": rng.integers(0, n // 200, n)}
    yield static("points", rng, "topic == {topic}", table, points(n // 200), 2_000, AGILE)
    text, table, _ = ranges("xy", 0.1, n)
    mixed = {"topic": rng.integers(0, 100, n), **table}
    yield static("mixed", rng, f"topic == {{topic}} and {text}", mixed, points(100), 2_000, AGILE)
    yield static("few profiles", rng, *ranges("abcd", 0.3, 100), 20_000, AGILE)
    near = "abs(x - ctx.x) <= 5 and abs(y - ctx.y) <= 5"
    yield moving("extreme updates", rng, near, n, n, ["x", "y"], 200, 100, AGILE)
    offset = {"e": rng.uniform(-DOMAIN / 2, DOMAIN / 2, n)}
    yield moving(
        "shared contexts", rng, "x between ctx.x + {e} and ctx.x + {e} + 2", n, 10, ["x"], 1, 60, AGILE, offset
    )
    yield static("eager, mixed", rng, f"topic == {{topic}} and {text}", mixed, points(100), 1_000, EAGER)
    table = {"topic": rng.integers(0, n // 50, n)}
    yield static("eager, points", rng, "topic == {topic}", table, points(n // 50), 2_000, EAGER)
    text = "x between ctx.x - 5 and ctx.x + 5 and y between {e} and {e} + 15"
    yield moving("eager, one attribute races", rng, text, n, n, ["x"], 500, 30, EAGER, {"e": uniform(rng, n)})


def compare(workload: Workload, repeats: int) -> tuple[dict[str, Times], Filter]:
    """Seconds per message of every side, in turns on the same logs, all with the same matches; and ``auto`` itself."""
    strategy = "eager" if workload.sides is EAGER else "agile"
    filters = {name: Filter(**options) for name, options in workload.sides.items()}
    filters["auto"] = Filter(strategy=strategy)
    for filter in filters.values():
        workload.load(filter)
    logs = workload.logs()
    seconds: dict[str, list[float]] = {name: [] for name in filters}
    for turn in range(-WARM, repeats):
        log = next(logs)
        found = {name: clock(lambda f=filter, log=log: f.process(log)) for name, filter in filters.items()}
        sizes = {name: len(matches) for name, (matches, _) in found.items()}
        if len(set(sizes.values())) != 1:
            raise Inexact(f"{workload.name}: {sizes}")
        if turn >= 0:
            for name, (_, taken) in found.items():
                seconds[name].append(taken / workload.messages)
    return {name: Times(tuple(values)) for name, values in seconds.items()}, filters["auto"]


def drift(scale: float, repeats: int) -> tuple[dict[str, Times], Filter]:
    """A whole story, per message: topics only, then ranges in their place, everything timed but the logs."""
    rng = np.random.default_rng(12)
    n = max(2_000, int(PROFILES * scale))
    topics = rng.integers(0, n // 200, n)
    low = {a: uniform(rng, n) for a in "xy"}
    messages = [
        {"topic": rng.integers(0, n // 200, 2_000), "x": uniform(rng, 2_000), "y": uniform(rng, 2_000)}
        for _ in range(20)
    ]
    logs = [EventLog.of_messages(pa.table(part)) for part in messages]

    def story(options: dict[str, Any]) -> tuple[Filter, list[int]]:
        filter = Filter(**options)
        filter.subscribe_many("topic == {t}", {"id": np.arange(n), "t": topics})
        sizes = [len(filter.process(log)) for log in logs]
        ends = {f"{a}{end}": low[a] + (end == "hi") * 20.0 for a in "xy" for end in ("lo", "hi")}
        text = "x between {xlo} and {xhi} and y between {ylo} and {yhi}"
        filter.subscribe_many(text, {"id": np.arange(n), **ends})
        return filter, sizes + [len(filter.process(log)) for log in logs]

    seconds: dict[str, list[float]] = {}
    for _ in range(max(1, repeats // 2)):
        answers = []
        for name, options in {**AGILE, "auto": {}}.items():
            (filter, sizes), taken = clock(lambda options=options: story(options))
            seconds.setdefault(name, []).append(taken / (2 * len(logs) * 2_000))
            answers.append(sizes)
        if any(sizes != answers[0] for sizes in answers):
            raise Inexact("the story has several ends")
    return {name: Times(tuple(values)) for name, values in seconds.items()}, filter


def run(scale: float = 1.0, repeats: int = 5) -> dict[str, Any]:
    """Every workload, then the story."""
    result = Result(
        "auto",
        "The index that chooses itself",
        f"{max(2_000, int(PROFILES * scale)):,} profiles (100 in `few profiles`); `auto` and every index it may choose "
        f"from process the same logs in turns after {WARM} logs of warm-up; one thread, {repeats} repeats.",
        scale,
    )
    bars: dict[str, dict[str, float]] = {}
    with progress("auto", 11) as advance:

        def take(name: str, times: dict[str, Times], filter: Filter) -> None:
            others = {side: found for side, found in times.items() if side != "auto"}
            best = min(others, key=lambda side: others[side].median)
            plan = filter.plan
            on = f" on {', '.join(plan.attributes)}" if plan.index not in ("blocks", "noindex") else ""
            rates = ", ".join(f"{side} {found.median * 1e6:,.1f}" for side, found in times.items())
            value, spread = ratio(others[best], times["auto"])
            note = f"chosen {plan.index}{on}, best {best}, {filter.stats['index_changes']} changes; µs/message: {rates}"
            result.add(f"auto / best, {name}", value, "×", TARGET, spread=spread, note=note)
            bars[name] = {side: found.rate for side, found in times.items()}

        for workload in workloads(scale):
            advance(workload.name)
            take(workload.name, *compare(workload, repeats))
        advance("profiles that drift")
        take("profiles that drift", *drift(scale, repeats))
    result.exact = "all sides found the same number of matches in every log"
    result.data = {"rates": bars}
    return result.to_dict()


if __name__ == "__main__":
    main(run)
