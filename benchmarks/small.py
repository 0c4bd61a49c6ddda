"""A thousand profiles, one call at a time: what a single match and a single update cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from measure import Result, Times, main, progress, same
from tamis import Filter
from tamis.reference import ReferenceFilter

PROFILES = 1_000
CALLS = 2_000
TEXT = "kind == {kind} and abs(x - ctx.x) <= {reach} and abs(y - ctx.y) <= {reach} and weight <= ctx.room"
KINDS = ("parcel", "letter", "pallet", "crate")


def populate(filter: Any, rng: np.random.Generator) -> None:
    """Couriers: each has a place, some room, and a kind of goods that it takes."""
    names = [f"courier {i}" for i in range(PROFILES)]
    kinds = [KINDS[k] for k in rng.integers(0, len(KINDS), PROFILES)]
    reach = rng.uniform(5, 20, PROFILES)
    filter.subscribe_many(TEXT, {"id": names, "context": names, "kind": kinds, "reach": reach})
    for attribute, high in (("x", 100), ("y", 100), ("room", 50)):
        filter.update_many(names, attribute, rng.uniform(0, high, PROFILES))


def random_messages(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Orders as dicts."""
    numbers = rng.uniform(0, 100, (count, 3)).tolist()
    kinds = rng.integers(0, len(KINDS), count).tolist()
    return [{"kind": KINDS[k], "x": x, "y": y, "weight": w / 2} for k, (x, y, w) in zip(kinds, numbers, strict=True)]


def each(call: Callable[[Any], Any], arguments: list[Any]) -> list[float]:
    """The seconds of every single call."""
    seconds, now = [], time.perf_counter
    for argument in arguments:
        start = now()
        call(argument)
        seconds.append(now() - start)
    return seconds


def run(scale: float = 1.0, repeats: int = 7) -> dict[str, Any]:
    """Medians over the calls, then over the repeats."""
    rng = np.random.default_rng(8)
    calls = max(200, int(CALLS * min(1.0, scale)))
    result = Result(
        "small",
        "Small: single calls on a thousand profiles",
        f"{PROFILES:,} profiles of four predicates around their own contexts, {calls:,} calls per repeat, "
        f"{repeats} repeats.",
        scale,
    )
    filter, reference = Filter(), ReferenceFilter()
    populate(filter, np.random.default_rng(1))
    populate(reference, np.random.default_rng(1))
    for k, message in enumerate(random_messages(rng, 100)):
        same(filter.match(message), reference.match(message), f"message {k}")
    names = [f"courier {i}" for i in range(PROFILES)]
    match: list[list[float]] = []
    update: list[list[float]] = []
    with progress("small", repeats) as advance:
        for repeat in range(repeats + 1):
            found = each(filter.match, random_messages(rng, calls))
            chosen = rng.integers(0, PROFILES, calls).tolist()
            places = [(names[i], x) for i, x in zip(chosen, rng.uniform(0, 100, calls).tolist(), strict=True)]
            moved = each(lambda place: filter.update(place[0], x=place[1]), places)
            if repeat:  # the first warms up
                match.append(found)
                update.append(moved)
                advance("measuring")
    for name, times, target in (("match(dict)", match, 80), ("update(name, x=...)", update, 15)):
        medians = Times(tuple(float(np.median(one)) * 1e6 for one in times))
        note = f"99 % of the calls within {np.percentile(np.concatenate(times), 99) * 1e6:.0f} µs"
        result.add(name, medians.median, "µs", target, more_is_better=False, spread=medians.spread, note=note)
    result.exact = "100 messages equal to the reference filter"
    return result.to_dict()


if __name__ == "__main__":
    main(run)
