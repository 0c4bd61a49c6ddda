"""The indexes of paper 000 under every strategy and policy, compared with the reference event by event.

Profiles are intervals that move with one or two context values, on several attributes; values jump, vanish and come
back, messages lack attributes, profiles come and go. After every log all invariants are verified.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tamis import EventLog, Filter
from tamis.index import FAMILY, family
from tamis.kernels import entries
from tamis.reference import ReferenceFilter
from tamis.testing import compare

CONTEXTS, PROFILES = 12, 150
SCOPE = {"x": (20.0, 70.0)}


def profile(rng: np.random.Generator) -> tuple[str, bool]:
    """A profile, and whether it needs a context."""
    a, b = (int(n) for n in rng.integers(0, 100, 2))
    shapes = (
        (f"x between {a} and {b} and y > {b}", False),
        (f"x == {a} or y < {b}", False),
        (f"x between ctx.x - {b % 20} and ctx.x + 7 and y < ctx.y", True),
        (f"x between ctx.x and ctx.y and z == {a % 5}", True),
        (f"z == ctx.z and abs(x - ctx.x) < {b}", True),
        ("x >= ctx.x and y <= ctx.y", True),
        (f"y >= ctx.x - ctx.y and x < {a}", True),
        (f"ctx.z > 1 and x <= ctx.x + {a}", True),
    )
    return shapes[int(rng.integers(len(shapes)))]


def log(rng: np.random.Generator, events: int, busy: float = 0.6) -> EventLog:
    """Updates, messages and subscriptions in one order; ``busy`` is the share of updates."""
    builder = EventLog.builder()
    here: set[int] = set()
    for _ in range(events):
        roll = rng.random()
        if roll < busy:
            name = "xyz"[rng.integers(3)]
            value = float(rng.integers(0, 5 if name == "z" else 100)) + (0.5 if rng.random() < 0.1 else 0.0)
            unusual = rng.random()
            gone = None if unusual < 0.04 else float("inf") if unusual < 0.05 else -1e300 if unusual < 0.06 else value
            builder.update(f"c{rng.integers(CONTEXTS)}", **{name: gone})
        elif roll < 0.94:
            present = [name for name in "xyz" if rng.random() > 0.08]
            builder.message({name: float(rng.integers(0, 5 if name == "z" else 100)) for name in present})
        elif roll < 0.97 or not here:
            number = int(rng.integers(PROFILES))
            text, needs = profile(rng)
            builder.subscribe(f"n{number}", text, f"c{rng.integers(CONTEXTS)}" if needs else None)
            here.add(number)
        else:
            builder.unsubscribe(f"n{here.pop()}")
    return builder.build()


def filled(rng: np.random.Generator, **choice: Any) -> tuple[Filter, ReferenceFilter]:
    """A filter and the reference with the same profiles."""
    both = Filter(**choice), ReferenceFilter()
    for i in range(PROFILES):
        text, needs = profile(rng)
        context = f"c{rng.integers(CONTEXTS)}" if needs else None
        for one in both:
            one.subscribe(f"p{i}", text, context=context)
    return both


def replayed(found: Filter, expected: ReferenceFilter, events: EventLog) -> None:
    assert compare(found.process(events), expected.process(events)) == []
    found.check()


@pytest.mark.parametrize("policy", ["cost", "always", "fixed(3)", "auto(10)"])
@pytest.mark.parametrize("strategy", ["eager", "gbu", "agile", "partial"])
@pytest.mark.parametrize("index", FAMILY)
def test_equals_the_reference(index: str, strategy: str, policy: str) -> None:
    rng = np.random.default_rng(len(index) + 10 * len(policy))
    scope = {"scope": SCOPE} if strategy == "partial" else {}
    indexed = 1 + len(policy) % 3
    found, expected = filled(rng, index=index, strategy=strategy, policy=policy, indexed=indexed, **scope)
    for part in range(6):
        replayed(found, expected, log(rng, 150, busy=(0.6, 0.9, 0.1)[part % 3]))
    for i in range(0, PROFILES, 2):  # half of them leave: nodes become empty
        found.unsubscribe(f"p{i}")
        expected.unsubscribe(f"p{i}")
    replayed(found, expected, log(rng, 150))
    stats = found.stats
    assert stats["index_updates"] > 0
    if strategy == "agile":
        assert stats["escalations"] > 0
        assert policy == "cost" or stats["deescalations"] > 0
    else:
        assert stats["escalations"] == stats["deescalations"] == 0


@pytest.mark.parametrize("index", FAMILY)
def test_an_interval_that_has_become_empty_matches_nothing(index: str) -> None:
    """EAGER does not test what its index is sure of; of an empty interval it keeps a point."""
    found, expected = Filter(index=index, strategy="eager"), ReferenceFilter()
    builder = EventLog.builder()
    for one in (found, expected):
        one.subscribe("p", "x >= ctx.a and x <= ctx.b", context="c")
        one.update("c", a=1.0, b=1.0)
    for a, b in ((1, 1), (1, 0), (1, 5), (7, 5), (5, 5)):
        builder.update("c", a=float(a)).update("c", b=float(b))
        for x in (0, 1, 5, 7):
            builder.message({"x": float(x)})
    replayed(found, expected, builder.build())


@pytest.mark.parametrize("strategy", ["gbu", "agile"])
@pytest.mark.parametrize("index", FAMILY)
def test_a_move_of_one_end_does_not_loosen_the_other(index: str, strategy: str) -> None:
    """Moving an entry because of one context value makes what it holds for another smaller: that one must know."""
    found, expected = Filter(index=index, strategy=strategy), ReferenceFilter()
    rng = np.random.default_rng(5)
    for one in (found, expected):
        for i in range(80):
            one.subscribe(f"fixed{i}", f"x between {i} and {i + 3}")
        one.subscribe("p", "x between ctx.a and ctx.b", context="c")
        one.update("c", a=10.0, b=20.0)
    for _ in range(40):
        builder = EventLog.builder()
        for _ in range(6):
            a = float(rng.integers(0, 60))
            builder.update("c", **{"ab"[rng.integers(2)]: a})
            builder.message({"x": float(rng.integers(0, 80))})
        replayed(found, expected, builder.build())


@pytest.mark.parametrize("strategy", ["eager", "agile"])
@pytest.mark.parametrize("index", FAMILY)
def test_without_room_it_stays_exact(index: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries for which there is no room are returned always; the next build has more room."""
    rng = np.random.default_rng(3)
    monkeypatch.setattr(family, "SPARE", 0.1)
    monkeypatch.setattr(FAMILY[index], "factor", 1)
    found, expected = filled(rng, index=index, strategy=strategy, policy="always")
    replayed(found, expected, log(rng, 20))
    with monkeypatch.context() as patience:
        patience.setattr(FAMILY[index], "worn", lambda self: False)
        for i in range(500):
            text, needs = profile(rng) if i % 2 else (f"x between {3 * i} and {3 * i + 1}", False)
            for one in (found, expected):
                one.subscribe(f"more{i}", text, context=f"c{i % CONTEXTS}" if needs else None)
        for _ in range(3):
            replayed(found, expected, log(rng, 80))
        assert found._indexes[0].bundle.count[entries.SHORT] > 0
    assert found._indexes[0].worn()
    replayed(found, expected, log(rng, 20))
    assert found._indexes[0]._factor > 1


@pytest.mark.parametrize(("roomy", "kept"), [(1.0, True), (0.0, False)])
@pytest.mark.parametrize("index", ["skiplist", "hash"])  # trees have no lists
def test_lists_are_packed_anew_in_the_room_they_have(
    index: str, roomy: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two logs; where there is not enough, in a larger one."""
    monkeypatch.setattr(family, "ROOMY", roomy)
    rng = np.random.default_rng(8)
    found, expected = filled(rng, index=index, policy="fixed(3)")
    for _ in range(4):
        replayed(found, expected, log(rng, 80))
        before = found._indexes[0].bundle.postings.marker
        found._indexes[0].settle(found._world(0))
        assert (found._indexes[0].bundle.postings.marker is before) == kept


def test_a_tree_that_empties_and_fills_again() -> None:
    """Nodes are freed and used again: a tree that was emptied has room for as much as before."""
    for index in ("btree", "rtree"):
        found = Filter(index=index, strategy="eager")
        for _ in range(3):
            for i in range(2_000):
                found.subscribe(f"p{i}", f"x between {i} and {i + 5} and y > {i % 7}")
            assert len(found.match({"x": 1000.0, "y": 9.0})) == 6
            found.check()
            for i in range(2_000):
                found.unsubscribe(f"p{i}")
            assert found.match({"x": 1000.0, "y": 9.0}) == []
            found.check()


def test_where_all_values_jump_cost_keeps_one_attribute_sharp() -> None:
    """Weighed each for itself, both would be given up: each relies on the other to shut most entries out."""
    rng, n, jumps = np.random.default_rng(4), 1_000, 10
    f = Filter(index="skiplist", policy="cost")
    names = [f"c{i}" for i in range(n)]
    text = "x between ctx.x - 15 and ctx.x + 15 and y between ctx.y - 40 and ctx.y + 40"
    f.subscribe_many(text, {"id": np.arange(n), "context": names})
    contexts = f.context_index(names)
    for name in "xy":
        f.update_many(contexts, name, rng.uniform(0, 1_000, n))

    def tests_per_message(messages: int) -> float:
        before = f.stats["postfiltered"]
        for _ in range(messages):
            for name in "xy":
                f.update_many(contexts[rng.integers(0, n, jumps)], name, rng.uniform(0, 1_000, jumps))
            f.match(dict(zip("xy", rng.uniform(0, 1_000, 2).tolist(), strict=True)))
        return (f.stats["postfiltered"] - before) / messages

    tests_per_message(600)
    assert tests_per_message(200) < n / 2
    f.check()


def test_cost_brings_down_what_no_message_meets_once_updates_rest() -> None:
    """After a burst an entry would wait for a message that meets it in vain, the last of them for thousands."""
    rng, n = np.random.default_rng(6), 10_000
    f = Filter(index="skiplist", policy="cost")
    names = [f"c{i}" for i in range(n)]
    text = "x between ctx.x - 2 and ctx.x + 2 and y between ctx.y - 5 and ctx.y + 5"
    f.subscribe_many(text, {"id": np.arange(n), "context": names})
    contexts = f.context_index(names)
    place = rng.uniform(200, 800, (n, 2))

    def walk() -> None:
        place[...] += rng.uniform(-3, 3, place.shape)
        for k, name in enumerate("xy"):
            f.update_many(contexts, name, place[:, k])

    def false_positives(messages: int) -> float:
        before = f.stats["false_positives"]
        sent = rng.uniform(200, 800, (messages, 2))
        f.match_many({"x": sent[:, 0], "y": sent[:, 1]})
        return (f.stats["false_positives"] - before) / messages

    walk()
    for _ in range(60):
        walk()
        f.match_many({"x": rng.uniform(0, 1_000, 4), "y": rng.uniform(0, 1_000, 4)})
    loose = false_positives(5)
    f.match_many({"x": rng.uniform(0, 20, 3_000), "y": rng.uniform(0, 20, 3_000)})  # where nobody is
    f.check()
    assert false_positives(5) < loose / 4
