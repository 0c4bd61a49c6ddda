"""The engine from the outside: pruning, slack, worn indexes, sharing between processes, odd numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tamis import EventError, EventLog, Filter, InvariantError, ProfileError, UsageError
from tamis.index import FAMILY
from tamis.kernels import process as kernel
from tamis.reference import ReferenceFilter
from tamis.testing import differences

BOTH = pytest.mark.parametrize("strategy", ["agile", "noindex"])


def ranges(n: int, rng: np.random.Generator) -> tuple[Filter, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A filter of n boxes in two dimensions, and their bounds."""
    low = rng.uniform(0, 1000, (n, 2))
    high = low + rng.uniform(1, 50, (n, 2))
    f = Filter()
    columns = {"id": np.arange(n), "a": low[:, 0], "b": high[:, 0], "c": low[:, 1], "d": high[:, 1]}
    f.subscribe_many("x between {a} and {b} and y between {c} and {d}", columns)
    return f, low, high


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint32(), pa.int64(), pa.uint64()])
def test_whole_ids_of_every_width(kind: pa.DataType) -> None:
    ids = [0, 1, 7, 127] + ([-128, -1] if pa.types.is_signed_integer(kind) else [])
    ids += [2**63 - 1, -(2**63)] if kind == pa.int64() else []
    f = Filter()
    f.subscribe_many("x > {low}", {"id": pa.array(ids, kind), "low": np.arange(float(len(ids)))})
    assert f.match({"x": 2.5}) == ids[:3] and all(id in f for id in ids) and len(f) == len(ids)
    f.unsubscribe(ids[-1])
    assert ids[-1] not in f
    f.check()


def test_an_id_beyond_64_bits_is_named() -> None:
    with pytest.raises(ProfileError, match="row 1: id: 18446744073709551615 is out of 64-bit range"):
        Filter().subscribe_many("x > {low}", {"id": pa.array([1, 2**64 - 1], pa.uint64()), "low": [0, 1]})


def test_a_probe_prunes() -> None:
    rng = np.random.default_rng(1)
    f, low, high = ranges(20_000, rng)
    points = rng.uniform(0, 1000, (200, 2))
    found = f.match_many({"x": points[:, 0], "y": points[:, 1]}).by_message()
    for i, point in enumerate(points):
        assert sorted(found.get(i, [])) == np.nonzero(((low <= point) & (point <= high)).all(1))[0].tolist()
    stats = f.stats
    # 20,000 entries are 715 chunks; few of them may be looked at, and few entries tested one by one.
    assert stats["chunks_met"] / stats["messages"] < 40
    assert stats["postfiltered"] < stats["matches"]
    f.check()


def chunks_met(f: Filter, x: np.ndarray[Any, Any]) -> float:
    """How many chunks a message meets."""
    before = f.stats["chunks_met"]
    f.match_many({"x": x})
    f.check()
    return float(f.stats["chunks_met"] - before) / len(x)


def late_values(moving: int, fixed: int, low: float, high: float) -> Filter:
    """A filter in which some profiles get their values, between low and high, after the index was built."""
    rng = np.random.default_rng(2)
    names = [f"c{i}" for i in range(moving)]
    start = rng.uniform(0, 10_000, fixed)
    f = Filter()
    f.subscribe_many("x between {low} and {high}", {"id": np.arange(fixed), "low": start, "high": start + 10})
    f.subscribe_many("x between ctx.x - 5 and ctx.x + 5", {"id": names, "context": names})
    f.match({"x": 1})
    f.update_many(names, "x", rng.uniform(low, high, moving))
    return f


@pytest.mark.parametrize(("moving", "fixed"), [(5_000, 0), (500, 9_500)])
def test_profiles_before_values_do_not_ruin_the_index(moving: int, fixed: int) -> None:
    f = late_values(moving, fixed, 0, 10_000)
    assert chunks_met(f, np.random.default_rng(3).uniform(0, 10_000, 100)) < 10


def test_room_is_made_for_profiles_that_open_at_the_same_place() -> None:
    f = late_values(1_000, 19_000, 5_000, 5_100)
    assert chunks_met(f, np.random.default_rng(3).uniform(0, 4_000, 100)) < 10
    assert f.stats["splits"] > late_values(1, 19_000, 0, 10_000).stats["splits"]


def test_updates_inside_the_safe_range_do_not_touch_the_index() -> None:
    rng = np.random.default_rng(3)
    names = [f"c{i}" for i in range(1_000)]
    f = Filter()
    contexts = f.context_index(names)
    f.update_many(contexts, "x", rng.uniform(0, 1000, len(names)))
    f.subscribe_many("x between ctx.x - 5 and ctx.x + 5", {"id": names, "context": names})
    f.match({"x": 1})
    for _ in range(40):
        f.update_many(contexts, "x", rng.uniform(0, 1000, len(names)))
    early = f.stats["escalations"]
    for _ in range(40):
        f.update_many(contexts, "x", rng.uniform(0, 1000, len(names)))
    # Without messages slack grows until updates are plain stores.
    assert f.stats["escalations"] - early < 4_000
    f.check()
    f.deescalate()
    f.check()


@BOTH
@pytest.mark.parametrize(
    ("profile", "first", "then", "message", "matches"),
    [
        ("x >= 0 / ctx.a", {"a": 1.0}, {"a": 0.0}, {"x": 5.0}, False),
        ("x >= ctx.a - ctx.b", {"a": 1.0, "b": 0.0}, {"a": float("inf"), "b": float("inf")}, {"x": 5.0}, False),
        ("ctx.c <= 1e16 + x", {"c": 0.0}, {"c": 1e16}, {"x": -0.5}, True),
        ("x + ctx.a >= ctx.b", {"a": 0.0, "b": 1.0}, {"a": float("inf"), "b": float("inf")}, {"x": 1.0}, True),
        ("abs(x - ctx.a) <= 0.3", {"a": 0.0}, {"a": 0.1}, {"x": 0.4}, False),
        ("x <= ctx.a", {"a": 0}, {"a": 2**53 + 1}, {"x": 2**53 + 1}, True),
        ("x < ctx.a", {"a": 0}, {"a": 2**63 - 1}, {"x": 2**63 - 2}, True),
        ("x < ctx.a", {"a": 0}, {"a": float("inf")}, {"x": float("inf")}, False),
        ("x in ctx.l", {"l": [1, 2]}, {"l": []}, {"x": 1}, False),
        ("name < ctx.n", {"n": "b"}, {"n": "z"}, {"name": "m"}, True),
    ],
)
def test_bounds_that_lose_and_find_their_value(
    strategy: str, profile: str, first: Any, then: Any, message: Any, matches: bool
) -> None:
    f, reference = Filter(strategy=strategy), ReferenceFilter()
    for filter in (f, reference):
        filter.subscribe("p", profile, context="c")
        filter.update("c", first)
        filter.match(message)
        filter.update("c", then)
        assert filter.match(message) == (["p"] if matches else [])
        filter.update("c", dict.fromkeys(then))
        assert filter.match(message) == []
        filter.update("c", then)
        assert filter.match(message) == (["p"] if matches else [])
        filter.check()


@pytest.mark.parametrize(
    "options",
    [{"strategy": "noindex"}, {"threads": 2}, {"index": "auto"}, *({"index": name} for name in ("blocks", *FAMILY))],
    ids=str,
)
def test_a_bound_that_turns_out_to_be_a_text_keeps_no_profile_shut(options: dict[str, Any]) -> None:
    f, message = Filter(**options), {"s": "a", "u": "c", "x": 1}
    f.subscribe_many("x < {most} and ctx.s < u", {"id": range(20), "context": ["E", "F"] * 10, "most": range(20)})
    f.check()  # shut, as ctx.s has no value
    assert f.match(message) == []  # now the kind of u is known
    f.check()
    f.update("E", s="b")
    assert f.match(message) == list(range(2, 20, 2))
    f.check()
    f.update("E", s=None)
    assert f.match(message) == []
    f.check()


def test_a_log_of_everything_equals_the_reference() -> None:
    log = EventLog.builder()
    log.subscribe("w", "q <= ctx.stock", context="A", on_match="ctx.stock -= q; ctx.sold = q")
    log.subscribe("bad", "q <= ").update("A", stock=10).message({"q": 4}).message({"q": "four"}).message({"q": 7})
    log.update("A", stock="none").message({"q": 6}).unsubscribe("w").unsubscribe("w").message({"q": 1})
    f, reference = Filter(), ReferenceFilter()
    assert differences(f, reference, log.build(), ["A"]) == []
    assert f.context("A") == {"stock": 0, "sold": 6}


def test_tracked_contexts_are_named_by_what_values_print() -> None:
    """Equal values that print differently name different contexts, whichever of them a log has first."""
    filters = Filter(), ReferenceFilter()
    for f in filters:
        f.track(context="n{x}", set="last = y")
        f.process(EventLog.merge(messages={"seq": [1, 2, 3, 4], "x": [0.0, -0.0, 1.5, 0.0], "y": [1.0, 2.0, 3.0, 4.0]}))
        assert {name: f.context(name) for name in ("n0.0", "n-0.0", "n1.5")} == {
            "n0.0": {"last": 4.0},
            "n-0.0": {"last": 2.0},
            "n1.5": {"last": 3.0},
        }


def test_replacing_and_removing_reuses_room() -> None:
    f = Filter()
    for round in range(50):
        for i in range(20):
            f.subscribe(i, f"x == {round} and y < ctx.z", context=f"c{i % 3}")
        f.update("c1", z=round)
        assert f.match({"x": round, "y": round - 1}) == [i for i in range(20) if i % 3 == 1]
        for i in range(0, 20, 2):
            f.unsubscribe(i)
        f.check()
    assert len(f) == 10 and 1 in f and 0 not in f
    assert len(f._profiles.meta) <= 64


def test_a_saved_filter_is_shared_by_processes(tmp_path: Path) -> None:
    f, low, high = ranges(5_000, np.random.default_rng(4))
    f.save(tmp_path / "f")
    script = (
        "import sys; from tamis import Filter; f = Filter.load(sys.argv[1]); f.check();"
        "f.subscribe('new', 'x > 0'); print(len(f.match({'x': 500.0, 'y': 500.0})))"
    )
    done = [
        subprocess.run([sys.executable, "-c", script, str(tmp_path / "f")], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    inside = int(((low <= 500) & (high >= 500)).all(1).sum())
    assert [int(d.stdout) for d in done] == [inside + 1] * 2
    with pytest.raises(UsageError, match="not a saved filter"):
        Filter.load(tmp_path)


def test_wrong_arguments_name_what_is_known() -> None:
    with pytest.raises(UsageError, match="agile, eager, partial, gbu, noindex"):
        Filter(strategy="lazy")
    with pytest.raises(UsageError, match="auto, blocks, skiplist, hash, btree, rtree"):
        Filter(index="bitmap")
    with pytest.raises(UsageError, match="cost, always, fixed\\(FP\\), auto\\(C\\)"):
        Filter(policy="never")
    with pytest.raises(UsageError, match="not on 'blocks'"):
        Filter(strategy="eager", index="blocks")
    with pytest.raises(UsageError, match="only strategy 'partial'"):
        Filter(scope={"x": (0, 1)})
    with pytest.raises(UsageError, match="low <= high"):
        Filter(strategy="partial", scope={"x": (1, 0)})
    with pytest.raises(UsageError, match="indexed: expected a number"):
        Filter(indexed=0)
    with pytest.raises(UsageError, match="threads"):
        Filter(threads=0)
    f = Filter()
    with pytest.raises(ProfileError, match="context"):
        f.subscribe("p", "x < ctx.y")
    with pytest.raises(EventError, match="no profile"):
        f.unsubscribe("p")
    with pytest.raises(ProfileError, match="row 1") as error:
        f.subscribe_many("x < {a}", {"id": ["a", "b"], "a": [1, None]})
    assert error.value.code == "bad-rows" and len(f) == 0


def test_check_finds_a_broken_index() -> None:
    f, _, _ = ranges(2_000, np.random.default_rng(5))
    f.match({"x": 1.0, "y": 1.0})
    f._indexes[0].bundle.lines[:64] = 255
    with pytest.raises(InvariantError, match="K\\(i\\)"):
        f.check()


def test_a_value_with_unbounded_slack_may_get_lost() -> None:
    """A flood of updates without a message: nobody watches the contexts any more, not even when a value is lost."""
    engine, oracle = Filter(), ReferenceFilter()
    names = [f"c{i}" for i in range(300)]
    rng = np.random.default_rng(5)
    for name in names:
        for f in (engine, oracle):
            f.subscribe(name, "x between ctx.a - 5 and ctx.a + 5", context=name)
    for _ in range(200):
        values = rng.uniform(0, 300, len(names))
        engine.update_many(engine.context_index(names), "a", values)
    for name, value in zip(names, values.tolist(), strict=True):
        oracle.update(name, a=value)
    before = engine.stats["escalations"]
    for f in (engine, oracle):
        f.update("c7", a=None)
    assert engine.stats["escalations"] == before
    engine.check()
    for x in np.linspace(-10, 310, 400).tolist():
        assert engine.match({"x": x}) == oracle.match({"x": x})
        engine.check()


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (pa.timestamp("s"), [253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801, -(2**63), 2**63 - 1]),
        (pa.timestamp("ms"), [253_402_300_799_999, 253_402_300_800_000, -62_135_596_800_001, -(2**63), 1]),
        (pa.timestamp("us"), [253_402_300_799_999_999, 253_402_300_800_000_000, -(2**63), -1]),
        (pa.timestamp("ns"), [-1, 999, 1_000, -1_000, -1_001, 2**63 - 1, -(2**63) + 1]),
        (pa.timestamp("us", tz="+02:00"), [0, 1, -1]),
        (pa.date32(), [0, -1, 2_932_896, 2_932_897, -719_162, -719_163, 2**31 - 1, -(2**31)]),
        (pa.date64(), [0, 86_400_000, -86_400_000, 86_399_999, 1, -1]),
    ],
    ids=str,
)
def test_times_of_every_unit_up_to_the_ends_of_the_calendar(kind: pa.DataType, raw: list[int], few: bool) -> None:
    """A column of few rows is read value by value, one of many at once; one value beyond the years spoils no other."""
    texts = ("t < date '2024-01-01'", "t >= date '1970-01-01'", "t == date '1970-01-01'", "t > date '1969-12-31'")
    copies = 1 if few else 20
    for values in ([*raw, None], *([value, None] for value in raw)):
        f, reference = Filter(), ReferenceFilter()
        for either in (f, reference):
            for text in texts:
                either.subscribe(text, text)
        width = pa.int32() if kind == pa.date32() else pa.int64()
        column = pa.array(values * copies, width).view(kind)
        assert not differences(f, reference, EventLog.of_messages({"t": column})), values


def test_a_list_with_a_time_beyond_the_calendar_is_rejected_alone() -> None:
    column = pa.array([[0], [2**62], None], pa.list_(pa.timestamp("s")))
    f, reference = Filter(), ReferenceFilter()
    for either in (f, reference):
        either.subscribe("epoch", "date '1970-01-01' in times")
    assert not differences(f, reference, EventLog.of_messages({"times": column}))
    found = f.match_many({"times": column})
    assert found.by_message() == {0: ["epoch"]}
    assert [(one.kind, one.row) for one in found.rejected] == [("message", 1)]


def test_columns_from_arrow_do_not_compile_the_kernels_again() -> None:
    f = Filter()
    f.subscribe("near", "x between ctx.x - 5 and ctx.x + 5", context="c")
    f.update("c", x=1)
    f.match({"x": 1})
    before = len(kernel.replay.signatures)
    f.process(
        EventLog.merge(
            updates=pa.table({"context": np.zeros(3, np.int64), "attribute": ["x"] * 3, "value": [1.0, 2.0, 3.0]})
        )
    )
    f.process(EventLog.merge(messages=pa.table({"x": [1.0, 2.0]})))
    assert len(kernel.replay.signatures) == before
