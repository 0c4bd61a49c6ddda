"""``index="auto"``: what it chooses, when it changes its mind, and that nobody but ``plan`` and ``stats`` notices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fickle import fickle
from tamis import EventLog, Filter, UsageError
from tamis.index import choice
from tamis.reference import ReferenceFilter
from tamis.testing import compare
from test_family import filled, log, replayed

N = 4_000
RNG = np.random.default_rng(7)


def ranges(names: str, width: float) -> tuple[str, dict[str, Any]]:
    """A prepared profile of ranges, and its table."""
    low = {a: RNG.uniform(0, 1_000 * (1 - width), N) for a in names}
    text = " and ".join(f"{a} between {{{a}lo}} and {{{a}hi}}" for a in names)
    return text, {f"{a}lo": low[a] for a in names} | {f"{a}hi": low[a] + 1_000 * width for a in names}


def subscribed(f: Filter, text: str, table: dict[str, Any]) -> Filter:
    f.subscribe_many(text, {"id": np.arange(N), **table})
    return f


POINTS = ("t == {t}", {"t": RNG.integers(0, 20, N)})
MIXED = (f"t == {{t}} and {ranges('xy', 0.1)[0]}", POINTS[1] | ranges("xy", 0.1)[1])


@pytest.mark.parametrize(
    ("strategy", "profiles", "index", "attributes"),
    [
        ("agile", POINTS, "hash", ["t"]),
        ("agile", ranges("abcd", 0.3), "blocks", ["a", "b", "c", "d"]),
        ("agile", MIXED, "blocks", ["t", "x", "y"]),
        ("eager", POINTS, "hash", ["t"]),
        ("eager", MIXED, "rtree", ["t", "x", "y"]),
        ("gbu", ranges("abc", 0.1), "rtree", ["a", "b", "c"]),
        ("eager", ranges("a", 0.01), "btree", ["a"]),
    ],
)
def test_the_kind_of_profiles_decides(strategy: str, profiles: Any, index: str, attributes: list[str]) -> None:
    f = subscribed(Filter(strategy=strategy), *profiles)
    plan = f.plan
    assert (plan.index, sorted(plan.attributes)) == (index, attributes)
    assert f.stats["indexed_attributes"] == len(attributes) and f.stats["index_changes"] == 0
    assert plan.parts[0].candidates[0].index == index
    f.check()


def test_few_profiles_stay_where_they_are() -> None:
    f = Filter()
    for i in range(50):
        f.subscribe(i, f"t == {i % 3}")
    f.match_many({"t": np.arange(3_000) % 3})
    assert f.plan.index == "blocks" and f.stats["index_changes"] == 0
    assert "too few clauses" in str(f.plan)


def test_what_the_user_fixes_is_kept() -> None:
    f = subscribed(Filter(strategy="eager", indexed=["y"]), *MIXED)
    assert f.plan.attributes == ("y",)
    f = subscribed(Filter(strategy="eager", indexed=2), *MIXED)
    assert len(f.plan.attributes) == 2
    f = subscribed(Filter(strategy="eager", index="skiplist", indexed="auto"), *MIXED)
    assert f.plan.index == "skiplist" and "t" in f.plan.attributes
    f = subscribed(Filter(index="skiplist"), *MIXED)
    assert len(f.plan.attributes) == 2 and f._auto is None
    assert "as asked for" in str(f.plan)
    with pytest.raises(UsageError, match="'auto'"):
        Filter(indexed="all")


def racing(f: Filter, updates: int, messages: int, rounds: int, names: tuple[str, ...] = ("x", "y")) -> None:
    """Rounds of updates of random contexts, with messages behind them."""
    rng = np.random.default_rng(updates)
    for _ in range(rounds):
        for name in names if updates else ():
            f.update_many(rng.integers(0, N, updates), name, rng.uniform(0, 1_000, updates))
        f.match_many({name: rng.uniform(0, 1_000, messages) for name in ("x", "y")})


def around(text: str, **options: Any) -> Filter:
    """Profiles around a context of their own each."""
    f = Filter(**options)
    names = [f"c{i}" for i in range(N)]
    for attribute in "xy":
        f.update_many(names, attribute, RNG.uniform(0, 1_000, N))
    f.subscribe_many(text, {"id": np.arange(N), "context": names, "e": RNG.uniform(0, 900, N)})
    return f


NEAR = "abs(x - ctx.x) <= 5 and abs(y - ctx.y) <= 5"


def test_a_storm_of_updates_comes_and_goes() -> None:
    f = around(NEAR)
    racing(f, 0, 200, 4)
    assert f.plan.index == "blocks" and f.stats["index_changes"] == 0
    racing(f, 1_000, 20, 60)
    assert f.plan.index == "noindex" and f.stats["index_changes"] == 1
    racing(f, 1_000, 20, 60)
    assert f.stats["index_changes"] == 1
    racing(f, 0, 500, 60)
    assert f.plan.index == "blocks" and f.stats["index_changes"] == 2
    before = f.stats
    racing(f, 0, 500, 40)
    after = f.stats
    assert after["index_changes"] == 2
    # What indexes that are gone have counted stays in the count.
    assert all(after[name] >= before[name] for name in after)
    assert before["escalations"] > 0
    f.check()


def test_it_never_flaps() -> None:
    """Storms and calms take turns, each too short for a change to pay: it stays, or goes once."""
    f = around(NEAR)
    for _ in range(12):
        racing(f, 1_000, 20, 2)
        racing(f, 0, 100, 2)
    assert f.stats["index_changes"] <= 1


def test_an_attribute_that_races_is_not_indexed() -> None:
    """EAGER pays for every update of what it indexes: it indexes the other attribute, though that selects less."""
    f = around("x between ctx.x - 3 and ctx.x + 3 and y between {e} and {e} + 20", strategy="eager")
    assert "x" in f.plan.attributes
    racing(f, 0, 300, 2)
    assert "x" in f.plan.attributes
    racing(f, 20_000, 10, 20, names=("x",))
    assert f.plan.attributes == ("y",) and f.stats["index_changes"] >= 1
    placed = f.stats["index_updates"]
    racing(f, 20_000, 10, 2, names=("x",))
    assert f.stats["index_updates"] == placed
    racing(f, 0, 1_000, 40)
    assert "x" in f.plan.attributes
    f.check()


def test_messages_decide_what_is_selective() -> None:
    """By the profiles ``t`` selects best; then all messages are about the same ``t``."""
    t = np.where(np.arange(N) % 8 == 0, 0, RNG.integers(0, 1_000, N))
    low = RNG.uniform(0, 950, N)
    f = Filter(strategy="eager", indexed=1)
    subscribed(f, "t == {t} and x between {lo} and {hi}", {"t": t, "lo": low, "hi": low + 50})
    f.match_many({"t": RNG.integers(1, 1_000, 300), "x": RNG.uniform(0, 1_000, 300)})
    assert f.plan.attributes == ("t",)
    for _ in range(40):
        f.match_many({"t": np.zeros(500, int), "x": RNG.uniform(0, 1_000, 500)})
    assert f.plan.attributes == ("x",) and f.stats["index_changes"] >= 1
    f.check()


def test_other_profiles_change_the_picture() -> None:
    f = subscribed(Filter(), *POINTS)
    assert f.plan.index == "hash"
    text, table = ranges("xy", 0.02)
    f.subscribe_many(text, {"id": np.arange(N), **table})  # the same ids: those about points are gone
    f.match_many({"x": RNG.uniform(0, 1_000, 600), "y": RNG.uniform(0, 1_000, 600)})
    assert f.plan.index == "blocks" and f.stats["index_changes"] == 1
    f.check()


@pytest.mark.parametrize(
    ("strategy", "threads"), [("agile", 1), ("agile", 3), ("eager", 1), ("eager", 2), ("gbu", 1), ("partial", 1)]
)
def test_every_change_is_exact(strategy: str, threads: int) -> None:
    rng = np.random.default_rng(len(strategy) + threads)
    scope = {"scope": {"x": (20.0, 70.0)}} if strategy == "partial" else {}
    found, expected = filled(rng, strategy=strategy, threads=threads, **scope)
    assert found._auto is not None
    wild = fickle(strategy=strategy, threads=threads, **scope)
    found._auto.choosers[:] = wild._auto.choosers  # type: ignore[union-attr]
    for one in found._auto.choosers:
        one.load = found._auto.load
    seen = set()
    for part in range(9):
        replayed(found, expected, log(rng, 80, busy=(0.6, 0.9, 0.1)[part % 3]))
        seen.add(found._indexes[0].name)
    assert found.stats["index_changes"] > 5
    assert len(seen) == 3


def test_single_calls_are_exact_while_the_index_changes() -> None:
    rng = np.random.default_rng(3)
    found, expected = fickle(), ReferenceFilter()
    for f in (found, expected):
        for i in range(40):
            f.subscribe(f"p{i}", "x between ctx.x - 5 and ctx.x + 5 and y < ctx.y", context=f"c{i % 7}")
    for _ in range(80):
        context, x, y = f"c{rng.integers(7)}", float(rng.integers(0, 40)), float(rng.integers(0, 40))
        for f in (found, expected):
            f.update(context, x=x, y=y)
        message = {"x": float(rng.integers(0, 40)), "y": float(rng.integers(0, 40))}
        assert found.match(message) == expected.match(message)
        found.check()
    assert found.stats["index_changes"] > 20


@pytest.mark.parametrize("strategy", ["agile", "eager"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_saved_filter_keeps_its_choice(strategy: str, threads: int, tmp_path: Path) -> None:
    f = subscribed(Filter(strategy=strategy, threads=threads), *POINTS)
    message = {"t": [3, 4, 5]}
    expected = f.match_many(message)
    assert f.plan.index == "hash"
    f.save(tmp_path / "f")
    again = Filter.load(tmp_path / "f")
    assert [index.name for index in again._indexes] == ["hash"] * threads
    assert again.index == "auto" and again.indexed == "auto"
    assert again.plan.parts[0].candidates == f.plan.parts[0].candidates
    assert again.plan.parts[0].reason == f.plan.parts[0].reason
    assert again.match_many(message) == expected
    again.check()
    assert again.stats["index_changes"] == f.stats["index_changes"]


def test_a_change_survives_saving(tmp_path: Path) -> None:
    f = around(NEAR)
    racing(f, 1_000, 20, 60)
    assert f.plan.index == "noindex"
    f.save(tmp_path / "f")
    again = Filter.load(tmp_path / "f")
    assert again.plan.index == "noindex" and again.stats == f.stats
    probe = {"x": [500.0], "y": [500.0]}
    assert compare(again.match_many(probe), f.match_many(probe)) == []
    racing(again, 0, 500, 60)
    assert again.plan.index == "blocks" and again.stats["index_changes"] == 2


def test_the_plan_for_people_and_programs() -> None:
    f = subscribed(Filter(), *POINTS)
    f.match_many({"t": [1, 2, 3]})
    text = str(f.plan)
    assert "index hash, chosen: cheapest for 4,000 clauses" in text
    assert "4,000 clauses" in text and "blocks" in text and "judged by 3 messages" in text
    plain = json.loads(json.dumps(f.plan.to_dict()))
    assert plain["index"] == "hash" and plain["parts"][0]["attributes"].keys() == {"t"}
    html = f.plan._repr_html_()
    assert html.startswith("<table>") and "<td>hash</td>" in html
    assert "index='hash'" in repr(f)
    two = subscribed(Filter(threads=2), *POINTS)
    assert str(two.plan).count("index hash") == 2


def test_the_plan_of_an_empty_filter() -> None:
    plan = Filter().plan
    assert plan.index == "blocks" and plan.attributes == () and "no profiles yet" in str(plan)
    f = Filter(strategy="noindex")
    assert f.plan.index == "noindex" and "as asked for" in str(f.plan)


def test_a_hash_table_over_intervals_that_are_mostly_empty() -> None:
    """Empty intervals have a negative width, which is no width of a cell."""
    found, expected = Filter(index="hash", indexed=1), ReferenceFilter()
    for f in (found, expected):
        for i in range(40):
            f.update(f"c{i}", a=float(i % 9), b=float(i % 4 if i % 5 else i % 9 + 2))
            f.subscribe(i, "x between ctx.a and ctx.b", context=f"c{i}")
    found.check()
    for x in range(-1, 12):
        assert found.match({"x": float(x)}) == expected.match({"x": float(x)})


def test_nothing_to_index_is_no_trouble() -> None:
    """Profiles that are programs only: no attribute has an interval."""
    for strategy in ("agile", "eager"):
        f = Filter(strategy=strategy)
        for i in range(choice.LEAST + 10):
            f.subscribe(i, f"a * 2 < b + {i}")
        assert len(f.match({"a": 1, "b": 1})) == choice.LEAST + 8
        f.process(EventLog.of_messages({"a": [1] * 600, "b": [1] * 600}))
        f.check()
        assert f.plan.parts[0].clauses == choice.LEAST + 10
