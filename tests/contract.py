"""The contract of every filter: whatever is done to it, it answers as the reference does.

``machine(factory)`` gives a Hypothesis state machine that drives a filter and a :class:`ReferenceFilter` side by side.
Random choices of :mod:`tamis.testing` are drawn from Hypothesis, so that a failure shrinks to a short story.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tamis.errors import TamisError
from tamis.model.events import EventLog
from tamis.model.matches import Matches
from tamis.reference import ReferenceFilter
from tamis.testing import (
    MALFORMED,
    WRONG,
    Mix,
    Vocabulary,
    compare,
    differences,
    random_effects,
    random_log,
    random_message,
    random_profile,
    random_tracks,
)

VOCABULARY = Vocabulary(ids=("q", "r", "s", 0, 1, 2), contexts=("A", "B", "C"))
CONTEXTS = (*VOCABULARY.contexts, "", "a", "ab", "abc", "b", "n1", "n2", "n1.5")


class Drawn:
    """The part of ``numpy.random.Generator`` that ``tamis.testing`` uses, with choices drawn from Hypothesis."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integers(self, low: int, high: int | None = None) -> int:
        low, high = (0, low) if high is None else (low, high)
        return int(self._draw(st.integers(low, high - 1)))

    def random(self) -> float:
        return float(self._draw(st.integers(0, 99)) / 100)

    def choice(self, count: int, size: int, p: Sequence[float]) -> np.ndarray:
        bounds = np.cumsum(p)
        return np.array(
            [min(int(np.searchsorted(bounds, self.random(), "right")), count - 1) for _ in range(size)], int
        )


@st.composite
def drawn(draw: Any, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a function of ``tamis.testing`` makes of drawn choices."""
    return make(Drawn(draw), *arguments, **options)


contexts = st.sampled_from(VOCABULARY.contexts)
ids = st.sampled_from(VOCABULARY.ids)
any_ids = ids | st.sampled_from((True, 2**63, None))
profiles = drawn(random_profile, VOCABULARY)
plain_profiles = drawn(random_profile, VOCABULARY, context=False)
effects = st.none() | drawn(random_effects, VOCABULARY)
messages = drawn(random_message, VOCABULARY, wrong=0.05)
easy_profiles = st.sampled_from(("true", "a >= 0", "has(s)", "ctx.a > 0 or not has(ctx.a)"))
easy_effects = st.sampled_from((None, "ctx.a = 3", "ctx.a += 1", "ctx.a = ctx.a * 2; ctx.b = ctx.a"))
columnar_logs = st.integers(1, 25).flatmap(lambda n: drawn(random_log, n, VOCABULARY, columnar=True))
mixed_logs = st.integers(1, 25).flatmap(lambda n: drawn(random_log, n, VOCABULARY, Mix(wrong=0.1, malformed=0.1)))


@st.composite
def changes(draw: Any) -> dict[str, Any]:
    """Attributes for one update, now and then with a wrong value or a removal."""
    rng = Drawn(draw)
    names = draw(st.lists(st.sampled_from(VOCABULARY.names), min_size=1, max_size=3, unique=True))
    found = {}
    for name in names:
        roll = rng.random()
        wrong = WRONG[rng.integers(len(WRONG))] if roll < 0.05 else VOCABULARY.value(rng, name)  # type: ignore[arg-type]
        found[name] = None if roll > 0.85 else wrong
    return found


class FilterMachine(RuleBasedStateMachine):
    """Drives ``factory()`` and the reference with the same calls; every answer and every refusal must be the same."""

    factory: Callable[..., Any] = ReferenceFilter

    @initialize(declared=st.booleans(), first=st.lists(st.tuples(ids, easy_profiles, easy_effects), max_size=6))
    def start(self, declared: bool, first: list[tuple[Any, str, str | None]]) -> None:
        schema = VOCABULARY.schema() if declared else None
        self.filter = type(self).factory(schema=schema)
        self.reference = ReferenceFilter(schema=schema)
        for id, profile, on_match in first:
            self.same(lambda f, i=id, p=profile, e=on_match: f.subscribe(i, p, context="A", on_match=e))  # type: ignore[misc]

    def both(self, call: Callable[[Any], Any]) -> tuple[Any, Any]:
        """The answers of both; a refusal is answered by the error's class and code."""
        answers = []
        for filter in (self.filter, self.reference):
            try:
                answers.append(call(filter))
            except TamisError as error:
                answers.append((type(error), getattr(error, "code", None)))
        return answers[0], answers[1]

    def same(self, call: Callable[[Any], Any]) -> None:
        found, expected = self.both(call)
        if isinstance(found, Matches) and isinstance(expected, Matches):
            assert compare(found, expected) == []
        else:
            assert found == expected

    @rule(id=any_ids, profile=profiles | st.sampled_from(MALFORMED), context=contexts, on_match=effects)
    def subscribe(self, id: Any, profile: str, context: str, on_match: str | None) -> None:
        self.same(lambda f: f.subscribe(id, profile, context=context, on_match=on_match))

    @rule(id=any_ids, profile=plain_profiles)
    def subscribe_without_context(self, id: Any, profile: str) -> None:
        self.same(lambda f: f.subscribe(id, profile))

    @rule(
        rows=st.lists(
            st.tuples(ids, contexts, st.sampled_from((0, 1, 2.5, None)), st.sampled_from(("a", "b"))), max_size=4
        ),
        shape=st.sampled_from(
            ("abs(a - ctx.a) <= {e} and s == {s}", "a between ctx.a - {e} and ctx.a + {e} or s > {s}")
        ),
    )
    def subscribe_many(self, rows: list[tuple[Any, ...]], shape: str) -> None:
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
        table = dict(zip(("id", "context", "e", "s"), columns, strict=True))
        self.same(lambda f: f.subscribe_many(shape, table))

    @rule(id=ids)
    def unsubscribe(self, id: Any) -> None:
        self.same(lambda f: f.unsubscribe(id))

    @rule(context=contexts, attributes=changes())
    def update(self, context: str, attributes: dict[str, Any]) -> None:
        self.same(lambda f: f.update(context, attributes))

    @rule(
        rows=st.lists(st.tuples(contexts, st.sampled_from((0, 1, 2, 2.5, float("nan"), None))), min_size=1, max_size=6),
        attribute=st.sampled_from(VOCABULARY.numbers),
        by_index=st.booleans(),
    )
    def update_many(self, rows: list[tuple[str, Any]], attribute: str, by_index: bool) -> None:
        names, values = (list(column) for column in zip(*rows, strict=True))
        self.same(lambda f: f.update_many(f.context_index(names) if by_index else names, attribute, values))

    @rule(message=messages)
    def match(self, message: dict[str, Any]) -> None:
        self.same(lambda f: f.match(message))

    @rule(rows=st.lists(messages, min_size=1, max_size=5))
    def match_many(self, rows: list[dict[str, Any]]) -> None:
        self.same(lambda f: f.match_many(rows))

    @rule(log=columnar_logs | mixed_logs)
    def process(self, log: EventLog) -> None:
        assert differences(self.filter, self.reference, log, CONTEXTS) == []

    @rule(tracks=drawn(random_tracks, 1, VOCABULARY))
    def track(self, tracks: list[dict[str, Any]]) -> None:
        self.same(lambda f: f.track(**tracks[0]))

    @rule(id=ids, message=messages)
    def explain(self, id: Any, message: dict[str, Any]) -> None:
        self.same(lambda f: f.explain(id, message).matched)

    @rule()
    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "filter"
            self.filter.save(path)
            self.filter = type(self.filter).load(path)

    @invariant()
    def answers_agree(self) -> None:
        if not hasattr(self, "filter"):
            return
        self.filter.check()
        assert len(self.filter) == len(self.reference)
        assert [id in self.filter for id in VOCABULARY.ids] == [id in self.reference for id in VOCABULARY.ids]
        assert differences(self.filter, self.reference, EventLog(), CONTEXTS) == []


def machine(factory: Callable[..., Any]) -> type[FilterMachine]:
    """The state machine for one way to make a filter; ``factory`` takes ``schema=``."""
    return type("Machine", (FilterMachine,), {"factory": staticmethod(factory)})
