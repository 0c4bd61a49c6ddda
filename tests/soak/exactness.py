"""Small worlds: every way to make a filter against the reference, on random logs of every mix.

A *world* is a schema, some tracks and a row of random logs, all from one seed. The reference answers each log once, and
every configuration must give the same matches, rejections and contexts, and pass ``check()`` after every log. In
between filters are saved and loaded, and some worlds are replayed one call at a time.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from configurations import BATCHED, FAMILIES
from fickle import fickle
from restless import restless
from tamis import EventLog, Filter
from tamis.engine import replay
from tamis.errors import TamisError
from tamis.model.matches import Matches
from tamis.reference import ReferenceFilter
from tamis.testing import Mix, Vocabulary, differences, pick, random_log, random_tracks

CONFIGURATIONS: dict[str, Callable[..., Any]] = {
    "agile": Filter,
    "noindex": lambda **options: Filter(strategy="noindex", **options),
    "two threads": lambda **options: Filter(threads=2, **options),
    "restless": restless,
    "fickle": fickle,
    **FAMILIES,
    **BATCHED,
}
MIXES = (
    Mix(),
    Mix(messages=0.8, updates=0.1, subscribes=0.08, unsubscribes=0.02),
    Mix(messages=0.2, updates=0.7, subscribes=0.08, unsubscribes=0.02, absent=0.3),
    Mix(messages=0.3, updates=0.1, subscribes=0.35, unsubscribes=0.25),
    Mix(messages=0.5, updates=0.1, subscribes=0.35, unsubscribes=0.05, effects=0.8, absent=0.05),
    Mix(messages=0.45, updates=0.3, wrong=0.3, malformed=0.3, open_kinds=0.8),
    Mix(messages=0.6, updates=0.3, subscribes=0.1, unsubscribes=0.0, absent=0.6),
    Mix(messages=0.5, updates=0.4, subscribes=0.1, unsubscribes=0.0, absent=0.0, wrong=0.0, malformed=0.0),
    # Few subscriptions, so that the stretches between them are long.
    Mix(messages=0.6, updates=0.38, subscribes=0.015, unsubscribes=0.005),
)
POPULATIONS = (3, 12, 12, 40, 150)
LENGTHS = (1, 5, 25, 100, 400, 400, 1_500, 1_500)
LOGS = 150  # of one world: short logs cost more than their events
WORTH_THREADS = (replay.WORTH_THREADS, 0)  # in every second world threads run at once, however little there is to do


@dataclass
class Report:
    """What came out of one task: how much was done, and every failure with what is needed to repeat it."""

    events: int = 0
    messages: int = 0
    matches: int = 0
    restarts: int = 0
    failures: list[str] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)


class Answered:
    """The reference and its answer to the log at hand, so that it answers once for all configurations."""

    def __init__(self, reference: ReferenceFilter, answer: Matches) -> None:
        self.context = reference.context
        self._answer = answer

    def process(self, log: EventLog) -> Matches:
        """The answer given before."""
        return self._answer


class World:
    """One seed's choices; gives the same logs every time. A ``calm`` one has no effects and no tracks."""

    def __init__(self, seed: int, calm: bool = False) -> None:
        self.rng = rng = np.random.default_rng(seed)
        population = pick(rng, POPULATIONS)
        ids = (*(f"q{i}" for i in range((population + 1) // 2)), *range(population // 2))
        contexts = tuple("ABCDEFGHIJKLMNOPQRST"[: pick(rng, (1, 2, 4, 20))])
        numbers = ("a", "b", "c", "d", "e")[: pick(rng, (1, 3, 3, 5))]
        self.vocabulary = Vocabulary(numbers=numbers, ids=ids, contexts=contexts, edges=pick(rng, (0.0, 0.1, 0.4)))
        self.mix = pick(rng, MIXES)
        self.length = pick(rng, LENGTHS)
        self.schema = self.vocabulary.schema() if rng.random() < 0.4 else None
        self.tracks = random_tracks(rng, pick(rng, (0, 0, 1, 3)), self.vocabulary)
        self.columnar = rng.random() < 0.4
        self.by_calls = rng.random() < 0.1
        self.restarts = pick(rng, (0.0, 0.0005, 0.002))
        if calm:
            self.mix, self.tracks, self.by_calls = replace(self.mix, effects=0.0), [], False

    def logs(self, events: int) -> Iterator[tuple[EventLog, bool]]:
        """At most :data:`LOGS` logs, until that many events; each with whether the filters restart after it."""
        done = 0
        for _ in range(LOGS):
            if done >= events:
                break
            length = max(1, min(int(self.length * self.rng.uniform(0.5, 1.5)), events - done))
            log = random_log(self.rng, length, self.vocabulary, self.mix, columnar=self.columnar)
            done += max(1, len(log))
            yield log, self.rng.random() < self.restarts * length


def run(seed: int, events: int, names: Sequence[str] = tuple(CONFIGURATIONS), calm: bool = False) -> Report:
    """One world on the named configurations."""
    world, report = World(seed, calm), Report()
    replay.WORTH_THREADS = WORTH_THREADS[seed % 2]
    reference = ReferenceFilter(schema=world.schema)
    filters = {name: CONFIGURATIONS[name](schema=world.schema) for name in names}
    for track in world.tracks:
        expected = refusal(lambda t=track: reference.track(**t))
        for name, filter in filters.items():
            if (found := refusal(lambda t=track, f=filter: f.track(**t))) != expected:
                report.failures.append(f"{where(seed, name, 0)} track {track}: {found} instead of {expected}")
    for part, (log, restart) in enumerate(world.logs(events)):
        if world.by_calls:
            expected_calls = list(calls(reference, log))
        else:
            answer = Answered(reference, reference.process(log))
        for name in list(filters):
            try:
                if world.by_calls:
                    wrong = first_difference(list(calls(filters[name], log)), expected_calls)
                else:
                    wrong = differences(filters[name], answer, log, world.vocabulary.contexts)
                filters[name].check()
                if len(filters[name]) != len(reference):
                    wrong.append(f"{len(filters[name])} profiles instead of {len(reference)}")
                if restart:
                    filters[name] = restarted(filters[name])
                    report.restarts += 1
            except Exception:
                wrong = [traceback.format_exc(limit=-6)]
            if wrong:
                report.failures.append(f"{where(seed, name, part, calm)} {'; '.join(wrong[:3])}")
                del filters[name]  # what it says from here on proves nothing
        report.events += len(log)
    report.messages, report.matches = reference.stats["messages"], reference.stats["matches"]
    return report


def where(seed: int, name: str, part: int, calm: bool = False) -> str:
    """How to repeat a failure."""
    option = "--batches" if calm else "--world"
    return f"[{name}] log {part} of world {seed} (python tests/soak/run.py {option} {seed}):"


def refusal(call: Callable[[], Any]) -> str | None:
    """The class of the error when the call is refused."""
    try:
        call()
    except TamisError as error:
        return type(error).__name__
    return None


def restarted(filter: Any) -> Any:
    """The filter, saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "filter"
        filter.save(path)
        return type(filter).load(path)


def calls(filter: Any, log: EventLog) -> Iterator[tuple[Any, ...]]:
    """The answers of the single calls that the events stand for; matches in their order, refusals by their class."""
    for kind, i, *event in log.events():
        try:
            if kind == "message":
                yield (kind, i, filter.match(event[0]))
            elif kind == "update":
                yield (kind, i, filter.update(event[0], {event[1]: event[2]}))
            elif kind == "subscribe":
                yield (kind, i, filter.subscribe(*event))
            else:
                yield (kind, i, filter.unsubscribe(event[0]))
        except TamisError as error:
            yield (kind, i, type(error).__name__, getattr(error, "code", None))


def first_difference(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> list[str]:
    """The first call that was answered differently."""
    pairs = (f"{one} instead of {two}" for one, two in zip(found, expected, strict=True) if one != two)
    return [next(pairs)] if found != expected else []


# -- shrinking -------------------------------------------------------------------------------------------------

Step = tuple[Any, ...]


def shrink(seed: int, events: int, name: str) -> str:
    """The shortest story found that still fails, as Python code; slow, for people who look for a bug."""
    world = World(seed)
    replay.WORTH_THREADS = WORTH_THREADS[seed % 2]
    steps: list[Step] = []
    for log, restart in world.logs(events):
        steps += [(kind, *event) for kind, _, *event in log.events()]
        steps.append(("restart",) if restart else ("cut",))
    if not _fails(steps, world, name):
        return "the story does not fail event by event; it depends on columns, or on single calls: see --world"
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if fewer and _fails(fewer, world, name):
                steps = fewer
            else:
                start += size
        size //= 2
    return _story(steps, world, name)


def _fails(steps: Iterable[Step], world: World, name: str) -> bool:
    reference = ReferenceFilter(schema=world.schema)
    try:
        filter = CONFIGURATIONS[name](schema=world.schema)
        for track in world.tracks:
            if refusal(lambda t=track: reference.track(**t)) != refusal(lambda t=track, f=filter: f.track(**t)):
                return True
        builder = EventLog.builder()
        for step in (*steps, ("cut",)):
            if step[0] not in ("cut", "restart"):
                _add(builder, step)
                continue
            if differences(filter, reference, builder.build(), world.vocabulary.contexts):
                return True
            filter.check()
            filter = restarted(filter) if step[0] == "restart" else filter
            builder = EventLog.builder()
    except Exception:
        return True
    return False


def _add(builder: Any, step: Step) -> None:
    kind, *event = step
    if kind == "update":
        builder.update(event[0], {event[1]: event[2]})
    else:
        getattr(builder, kind)(*event)


def _story(steps: Sequence[Step], world: World, name: str) -> str:
    lines = [f"# {name}; schema={world.schema!r}", *(f"f.track(**{track!r})" for track in world.tracks), "log = ("]
    for kind, *event in steps:
        if kind in ("cut", "restart"):
            lines.append(f"# -- {kind}")
        elif kind == "update":
            lines.append(f"  .update({event[0]!r}, {{{event[1]!r}: {event[2]!r}}})")
        else:
            lines.append(f"  .{kind}({', '.join(map(repr, event))})")
    return "\n".join([*lines, ")"])
