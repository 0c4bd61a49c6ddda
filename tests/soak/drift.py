"""Large populations under drift: every configuration against the naive twin, through every kind of weather.

The weather decides what the contexts do: stand still, walk, storm, gather in one place, scatter, vanish and come
back, while profiles come and go. So entries really escalate and deescalate, and blocks fill up and split; the report
has the counters, and the caller can insist on them.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from exactness import CONFIGURATIONS, Report, restarted
from naive import ATTRIBUTES, CONTEXT_ATTRIBUTES, DOMAIN, SHAPES, NaiveFilter
from numpy.typing import NDArray

from tamis import EventLog
from tamis.testing import pick

SIZES = (3_000, 20_000, 20_000, 50_000)
WEATHER = ("quiet", "walk", "walk", "storm", "gather", "scatter", "vanish", "churn")
HAPPENED = ("escalations", "deescalations", "moves", "splits")


class Population:
    """Profiles, contexts and their weather, out of one seed; drives the twin and any number of filters."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.size = pick(rng, SIZES)
        self.contexts = max(1, int(self.size * pick(rng, (0.02, 0.5, 1.0))))
        self.width = pick(rng, (5.0, 30.0, 150.0))
        self.twin = NaiveFilter(self.contexts)
        self.next_id = 0
        self.names = [f"c{i}" for i in range(self.contexts)]

    def parameters(self, shape: int, count: int) -> dict[str, NDArray[np.float64]]:
        """Random constants: ``w`` half widths, ``l`` and ``h`` bounds, ``k`` a small whole number, ``b`` a shift."""
        rng, columns = self.rng, {}
        for name in SHAPES[shape].parameters:
            if name[0] == "w":
                columns[name] = rng.exponential(self.width, count)
            elif name == "k":
                columns[name] = rng.integers(0, 6, count).astype(np.float64)
            elif name == "b":
                columns[name] = rng.uniform(-DOMAIN, DOMAIN / 4, count)
            else:
                columns[name] = rng.uniform(0, DOMAIN, count)
        for low, high in (("l0", "h0"), ("l1", "h1"), ("l2", "h2")):
            if low in columns and high in columns:
                columns[high] = columns[low] + rng.exponential(4 * self.width, count)
        return columns

    def populate(self, filters: dict[str, Any]) -> None:
        """The first profiles and the first values, in either order."""
        for filter in filters.values():
            if filter.context_index(self.names).tolist() != list(range(self.contexts)):
                raise AssertionError("contexts are not numbered in the order of their names")
        steps = [lambda: self.furnish(filters), lambda: self.move_in(filters)]
        for step in steps if self.rng.random() < 0.5 else reversed(steps):
            step()

    def move_in(self, filters: dict[str, Any]) -> None:
        """The profiles, shape by shape."""
        for shape, share in enumerate(self.rng.dirichlet(np.ones(len(SHAPES)))):
            self.subscribe(filters, shape, int(self.size * share))

    def furnish(self, filters: dict[str, Any]) -> None:
        """A value for nearly every attribute of every context."""
        for name in CONTEXT_ATTRIBUTES:
            chosen = np.flatnonzero(self.rng.random(self.contexts) < 0.95)
            values = self.places(name, len(chosen))
            self.twin.values[name][chosen] = values
            for filter in filters.values():
                filter.update_many(chosen, name, values)

    def subscribe(self, filters: dict[str, Any], shape: int, count: int) -> None:
        """A table of profiles; some of their ids exist already."""
        ids = np.arange(self.next_id, self.next_id + count, dtype=np.int64)
        self.next_id += count
        if self.twin.places and count:
            again = self.rng.choice(list(self.twin.places), min(len(self.twin.places), count // 20 + 1), replace=False)
            ids[: len(again)] = again
        context = self.rng.integers(0, self.contexts, count)
        columns = self.parameters(shape, count)
        self.twin.subscribe_many(shape, ids, context, columns)
        for filter in filters.values():
            filter.subscribe_many(
                SHAPES[shape].text, {"id": ids, "context": context, **columns}, on_match=SHAPES[shape].on_match
            )

    def places(self, name: str, count: int) -> NDArray[np.float64]:
        """Values as they are at rest."""
        if name == "k":
            return self.rng.integers(0, 6, count).astype(np.float64)
        if name == "on":
            return self.rng.integers(0, 2, count).astype(np.float64)
        return self.rng.uniform(0, DOMAIN, count)

    def log(self, weather: str, events: int) -> EventLog:
        """About so many events of that weather."""
        rng = self.rng
        share = {"quiet": 0.8, "walk": 0.1, "storm": 0.004, "churn": 0.3}.get(weather, 0.05)
        messages = max(1, int(events * share))
        updates = max(1, events - messages)
        if weather == "quiet":
            updates = updates // 10 + 1
        order = rng.permutation(messages + updates)
        tables: dict[str, Any] = {
            "messages": {"seq": np.sort(order[:messages]), **self.messages(messages)},
            "updates": pa.table({"seq": np.sort(order[messages:]), **self.updates(weather, updates)}),
        }
        if weather == "churn":
            tables |= self.churn(max(1, events // 20), messages + updates)
        return EventLog.merge(**tables)

    def messages(self, count: int) -> dict[str, Any]:
        """Columns of messages; one value in twenty is absent. Half of them are near some context."""
        columns: dict[str, Any] = {}
        near = self.rng.random(count) < 0.5
        context = self.rng.integers(0, self.contexts, count)
        for name in ATTRIBUTES:
            values = self.places(name, count)
            here = self.twin.values[name][context]
            values = np.where(near & ~np.isnan(here), here, values)
            columns[name] = pa.array(values, mask=self.rng.random(count) < 0.05)
        return columns

    def updates(self, weather: str, count: int) -> dict[str, Any]:
        """Columns of updates; the walk is from where the contexts are before the log."""
        rng = self.rng
        context = rng.integers(0, self.contexts, count)
        attribute = rng.choice(len(CONTEXT_ATTRIBUTES), count, p=(0.35, 0.25, 0.15, 0.05, 0.1, 0.1)).astype(np.int32)
        before = np.stack([self.twin.values[name] for name in CONTEXT_ATTRIBUTES])[attribute, context]
        fresh = np.stack([self.places(name, count) for name in CONTEXT_ATTRIBUTES])[attribute, np.arange(count)]
        before = np.where(np.isnan(before), fresh, before)
        walks = attribute < 4
        if weather in ("quiet", "walk", "storm", "churn"):
            moved = before + rng.normal(0, self.width * pick(rng, (0.05, 0.5, 3.0)), count)
            value = np.where(walks, moved, fresh)
        elif weather == "gather":
            value = np.where(walks, DOMAIN / 3 + rng.normal(0, 1, count), fresh)
        else:
            value = fresh
        gone = rng.random(count) < (0.5 if weather == "vanish" else 0.01)
        names = pa.DictionaryArray.from_arrays(pa.array(attribute), pa.array(CONTEXT_ATTRIBUTES))
        return {"context": context, "attribute": names, "value": pa.array(value, mask=gone)}

    def churn(self, count: int, span: int) -> dict[str, Any]:
        """Profiles that leave, and texts that come."""
        rng = self.rng
        here = np.array(list(self.twin.places))
        leaving = rng.choice(here, min(count, len(here)), replace=False)
        coming: dict[str, list[Any]] = {"seq": [], "id": [], "profile": [], "context": [], "on_match": []}
        for seq in np.sort(rng.integers(0, span, count)).tolist():
            shape = int(rng.integers(len(SHAPES)))
            given = {name: float(column[0]) for name, column in self.parameters(shape, 1).items()}
            text = SHAPES[shape].text.format(**{name: repr(value) for name, value in given.items()})
            # Two shapes share a text and differ in the effect; a space tells them apart.
            text += " " * shape
            self.twin.texts[text] = (shape, given)
            for name, value in zip(coming, (seq, self.next_id, text, None, SHAPES[shape].on_match), strict=True):
                coming[name].append(value)
            coming["context"][-1] = self.names[int(rng.integers(self.contexts))]
            self.next_id += 1
        left = {"seq": np.sort(rng.integers(0, span, len(leaving))), "id": leaving}
        return {"subscribes": coming, "unsubscribes": left}


def run(seed: int, events: int, names: Sequence[str] = tuple(CONFIGURATIONS), rounds: int = 12) -> Report:
    """One population through some rounds of weather."""
    population, report = Population(seed), Report()
    filters = {name: CONFIGURATIONS[name]() for name in names}
    population.populate(filters)
    for part in range(rounds):
        weather = pick(population.rng, WEATHER)
        log = population.log(weather, events // rounds)
        before = population.twin.skipped
        expected = population.twin.process(log, lambda name: int(name[1:]))
        restart = population.rng.random() < 0.2
        for name in list(filters):
            try:
                wrong = compare(filters[name], log, expected, population.twin.skipped - before, population)
                filters[name].check()
                if restart:
                    filters[name] = restarted(filters[name])
                    report.restarts += 1
            except Exception:
                wrong = [traceback.format_exc(limit=-6)]
            if wrong:
                place = f"[{name}] round {part} ({weather}) of drift {seed} (python tests/soak/run.py --drift {seed}):"
                report.failures.append(f"{place} {'; '.join(wrong[:3])}")
                del filters[name]
        if population.rng.random() < 0.3:
            shape = int(population.rng.integers(len(SHAPES)))
            population.subscribe(filters, shape, int(population.rng.integers(1, 2_000)))
        report.events += len(log)
        report.messages += len(expected)
        report.matches += sum(map(len, expected))
    for name in HAPPENED:
        report.facts[name] = filters["agile"].stats.get(name, 0) if "agile" in filters else 0
    return report


def compare(
    filter: Any, log: EventLog, expected: list[NDArray[np.int64]], skipped: int, population: Population
) -> list[str]:
    """How a filter's answers differ from the twin's, and its contexts after the log."""
    matches = filter.process(log)
    wrong = [f"rejected {one.kind} {one.row}: {one.reason}" for one in matches.rejected if one.kind != "effect"]
    if (effects := len(matches.rejected) - len(wrong)) != skipped:
        wrong.append(f"{effects} effects without a value instead of {skipped}")
    found = matches.to_arrow()
    message, profile = found["message"].to_numpy(), found["profile"].to_numpy()
    order = np.lexsort((profile, message))
    parts = np.split(profile[order], np.searchsorted(message[order], np.arange(1, len(expected))))
    for row, (mine, right) in enumerate(zip(parts, expected, strict=True)):
        if not np.array_equal(mine, np.sort(right)):
            extra, lost = np.setdiff1d(mine, right).tolist(), np.setdiff1d(right, mine).tolist()
            wrong.append(f"message {row}: too many {extra[:5]}, missing {lost[:5]}, {len(mine)} for {len(right)}")
    for i in np.linspace(0, population.contexts - 1, 20).astype(int).tolist():
        values = {name: column[i] for name, column in population.twin.values.items() if column[i] == column[i]}
        if filter.context(i) != values:
            wrong.append(f"context {i}: {filter.context(i)} instead of {values}")
    return wrong
