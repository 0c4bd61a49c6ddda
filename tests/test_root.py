"""Entries that have escalated to the root: who goes there, who comes back, and that nobody notices."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from restless import accounted, restless
from tamis import EventLog, Filter, InvariantError
from tamis.index.root import Account, Prospect
from tamis.kernels import root as kernel
from tamis.reference import ReferenceFilter
from tamis.testing import EDGES, SMALL

NUMBERS = st.floats(-1e290, 1e290)


class Settled(Account):
    """Stays where it is."""

    def due(self, count: Any, found: Prospect) -> bool:
        """Never."""
        return False


def rooted() -> Filter:
    """A filter whose entries go to the root at once, and stay."""
    return accounted(Filter(), Settled)


@given(NUMBERS, NUMBERS, st.booleans())
@example(1e16, 1.0, False)
@example(-0.1, 0.3, True)
@example(5e-324, 0.0, False)
@example(1e6, 1e6, True)
def test_the_last_value_within_a_bound_is_found_to_the_last_bit(add: float, limit: float, up: bool) -> None:
    last = kernel._last(add, limit, up)
    beyond = math.nextafter(last, -math.inf if up else math.inf)
    if up:
        assert last + add >= limit > beyond + add
    else:
        assert last + add <= limit < beyond + add


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(
    "profile",
    [
        "x < ctx.a",
        "x <= ctx.a + {k} and x > ctx.a - {k}",
        "x >= ctx.a - {k} and x < ctx.b",
        "x == ctx.a",
        "x between ctx.a and ctx.b and y > {k}",
        "x > ctx.a and y >= ctx.a + {k} and y <= 3",
        "x <= ctx.a and y * 2 > ctx.b + {k}",
        "ctx.a > ctx.b and x >= ctx.b - {k}",
        "x < ctx.a or y > ctx.b + {k}",
        "x <= ctx.c + {k} and y between -1 and {k}",
    ],
)
def test_every_bound_is_kept(profile: str, alike: bool) -> None:
    rng = np.random.default_rng(len(profile))
    values = [float(v) for v in (*SMALL, *EDGES) if abs(v) < 2**53 or math.isinf(v)] + [None]
    f, reference = rooted(), ReferenceFilter()
    columns: dict[str, Any] = {"id": np.arange(80), "context": [f"c{i % 60}" for i in range(80)]}
    if "{k}" in profile:
        columns["k"] = np.full(80, 1.5) if alike else rng.choice([0.0, 0.5, 1.5, 1e6], 80)
    for either in (f, reference):
        rng = np.random.default_rng(1)
        for i, name in itertools.product(range(60), "abc"):
            either.update(f"c{i}", {name: rng.choice(values)})
        either.subscribe_many(profile, columns)
    f.match({"x": 1.0})
    assert f.stats["at_root"] == f.stats["clauses"]
    for x, y in itertools.product(values, (None, 1.5, 3, -0.0)):
        message = {name: value for name, value in (("x", x), ("y", y)) if value is not None}
        assert f.match(message) == reference.match(message)
    f.check()


def test_numbers_at_the_ends_of_the_line() -> None:
    f, reference = rooted(), ReferenceFilter()
    values = (-1.7e308, -1.0, 0.0, 1.0, 1.7e308, math.inf, -math.inf, math.nan)
    for either in (f, reference):
        for i, value in enumerate(values):
            either.update(f"c{i}", a=value)
        names = [f"c{i}" for i in range(len(values))]
        for k in (1.0, math.nan, math.inf):
            columns = {"id": [f"{name} {k}" for name in names], "context": names, "k": np.full(len(names), k)}
            either.subscribe_many("x >= ctx.a - {k} and x <= ctx.a + {k}", columns)
    f.match({"x": 1.0})
    assert f.stats["at_root"] == 3 * len(values)
    f.check()
    for x in (*values, 1.5, 1.75e308):
        assert f.match({"x": x}) == reference.match({"x": x})


def walk(rng: np.random.Generator, contexts: int, messages: int, updates: int) -> EventLog:
    """Contexts that jump about between messages."""
    n = messages * updates
    names = pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, 2, n).astype(np.int32)), pa.array(["x", "y"]))
    moved = {"seq": np.arange(n), "context": rng.integers(0, contexts, n), "attribute": names}
    sent = {"seq": np.arange(messages) * max(1, updates), "x": rng.uniform(0, 1000, messages)}
    return EventLog.merge(
        messages={**sent, "y": rng.uniform(0, 1000, messages)}, updates={**moved, "value": rng.uniform(0, 1000, n)}
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_entries_go_to_the_root_when_contexts_race_and_return_when_they_rest(threads: int) -> None:
    rng = np.random.default_rng(5)
    f, plain = Filter(threads=threads), Filter(strategy="noindex")
    names = [f"c{i}" for i in range(2_000)]
    for either in (f, plain):
        rng = np.random.default_rng(5)
        either.subscribe_many(
            "x between ctx.x - 5 and ctx.x + 5 and y between ctx.y - 50 and ctx.y + 50", {"id": names, "context": names}
        )
        for name in ("x", "y"):
            either.update_many(names, name, rng.uniform(0, 1000, len(names)))
    for updates, wanted in ((400, 2_000), (400, 2_000), (0, 0)):
        for _ in range(200):
            log = walk(rng, len(names), 100 if updates else 1_000, updates)
            assert (
                f.process(log)
                .to_arrow()
                .sort_by("profile")
                .sort_by("message")
                .equals(plain.process(log).to_arrow().sort_by("profile").sort_by("message"))
            )
            if f.stats["at_root"] == wanted:
                break
        assert f.stats["at_root"] == wanted
        f.check()


def test_profiles_that_differ_too_much_stay_where_they_are() -> None:
    rng = np.random.default_rng(6)
    f = Filter()
    names = [f"c{i}" for i in range(1_000)]
    f.subscribe_many("k == {k} and x <= ctx.x", {"id": names, "context": names, "k": np.arange(1_000)})
    f.update_many(names, "x", rng.uniform(0, 1000, len(names)))
    for _ in range(50):
        n = 200
        names_of = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array(["x"]))
        updates = {"seq": np.arange(n), "context": rng.integers(0, 1_000, n), "attribute": names_of}
        f.process(
            EventLog.merge(
                messages={"seq": np.arange(100) * 2, "k": rng.integers(0, 1_000, 100), "x": rng.uniform(0, 1000, 100)},
                updates={**updates, "value": rng.uniform(0, 1000, n)},
            )
        )
    assert f.stats["at_root"] == 0


def test_coming_and_going_at_the_root(tmp_path: Path) -> None:
    f, reference = rooted(), ReferenceFilter()

    def both(method: str, *arguments: Any, **more: Any) -> None:
        for either in (f, reference):
            getattr(either, method)(*arguments, **more)

    for i in range(70):
        both("subscribe", i, f"x between ctx.x - {i % 3} and ctx.x + 2", context=f"c{i}")
        both("update", f"c{i}", x=float(i % 10))
    assert f.match({"x": 4}) == reference.match({"x": 4})
    assert f.stats["at_root"] == 70
    # A second profile on a context, one with an effect, one replaced, one that leaves, contexts nobody had named.
    both("subscribe", "twin", "x between ctx.x - 1 and ctx.x + 2", context="c4")
    both("subscribe", "thrifty", "x between ctx.x - 2 and ctx.x + 2", context="c5", on_match="ctx.x += 3")
    both("subscribe", 6, "x between ctx.x - 9 and ctx.x + 9", context="c66")
    both("unsubscribe", 4)
    for i in range(500, 900):
        both("update", f"c{i}", x=1.0)
    both("subscribe", "late", "x between ctx.x - 1 and ctx.x + 2", context="c899")
    both("update", "c7", x=None)
    f.check()
    for x in (1, 4, 4, 7.5, -3):
        assert f.match({"x": x}) == reference.match({"x": x})
    f.check()
    f.save(tmp_path / "saved")
    f = Filter.load(tmp_path / "saved")
    assert f.stats["at_root"] > 70
    both("update", "c9", x=100.0)
    for x in (9, 99, 101):
        assert f.match({"x": x}) == reference.match({"x": x})
    f.check()


def test_check_finds_what_is_wrong_at_the_root() -> None:
    f = rooted()
    names = [f"c{i}" for i in range(40)]
    f.update_many(names, "x", np.arange(40.0))
    f.subscribe_many("x between ctx.x - 1 and ctx.x + 1", {"id": names, "context": names})
    f.match({"x": 3})
    bundle: Any = f._indexes[0].bundle
    for array, where, wrong in (
        (bundle.sketch, 5, "sketch"),
        (bundle.tenant, (0, 5), "tenant"),
        (bundle.hull, 0, "hull"),
    ):
        kept = array[where].copy()
        array[where] = 0
        with pytest.raises(InvariantError, match=wrong):
            f.check()
        array[where] = kept
        f.check()


def test_a_restless_filter_really_moves() -> None:
    f = restless()
    names = [f"c{i}" for i in range(40)]
    f.update_many(names, "x", np.arange(40.0))
    f.subscribe_many("x between ctx.x - 1 and ctx.x + 1", {"id": names, "context": names})
    seen = set()
    for i in range(12):
        assert f.match({"x": i}) == [name for j, name in enumerate(names) if abs(i - j) <= 1]
        seen.add(len(f._indexes[0].bundle.root))
    assert seen == {0, 1}
