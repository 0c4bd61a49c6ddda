"""The meaning of the language and of the filter, case by case, worked out by hand."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import EventError, InvariantError, ProfileError, TamisError, UsageError
from tamis.model.events import EventLog
from tamis.model.meaning import holds, like
from tamis.model.tree import Not
from tamis.reference import ReferenceFilter
from tamis.testing import Vocabulary, differences, random_log, random_tracks

NAN, INF = float("nan"), float("inf")
T0 = datetime(2024, 1, 1, tzinfo=UTC)


def matches(profile: str, message: dict[str, Any], context: dict[str, Any] | None = None) -> bool:
    f = ReferenceFilter(schema={"t": "time", "u": "time"})
    f.subscribe("p", profile, context="C")
    f.update("C", context or {})
    found = f.match(message)
    assert f.explain("p", message).matched == bool(found)
    f.check()
    return bool(found)


@pytest.mark.parametrize(
    ("profile", "message", "expected"),
    [
        # exact numbers
        ("x == 9007199254740993", {"x": 2**53 + 1}, True),
        ("x == 9007199254740993", {"x": 2.0**53}, False),
        ("x < 9007199254740993", {"x": 2.0**53}, True),
        ("x == 9223372036854775807", {"x": 2.0**63}, False),
        ("x >= -9223372036854775808", {"x": -(2.0**63)}, True),
        # arithmetic is IEEE double
        ("x + 0 == y", {"x": 2**53 + 1, "y": 2**53}, True),
        ("-x == y", {"x": 2**53 + 1, "y": -(2**53)}, True),
        ("x / y > 0", {"x": 1, "y": 0}, False),
        ("not x / y > 0", {"x": 1, "y": 0}, False),
        ("x * 1e308 > y", {"x": 1e10, "y": 1e308}, True),
        ("x - x == 0", {"x": INF}, False),
        ("not x - x == 0", {"x": INF}, False),
        # NaN is present and compares false
        ("x != 1", {"x": NAN}, False),
        ("not x == 1", {"x": NAN}, False),
        ("has(x)", {"x": NAN}, True),
        ("x in [1, 2]", {"x": NAN}, False),
        ("x not in [1, 2]", {"x": NAN}, False),
        ("not (x between 1 and 2)", {"x": NAN}, False),
        # absence
        ("x != 1", {}, False),
        ("not x == 1", {}, False),
        ("not (x > 1 and y > 1)", {"x": 0}, True),
        ("not (x > 1 or y > 1)", {"x": 0}, False),
        ("has(x)", {"x": None}, False),
        ("not has(x)", {"x": None}, True),
        ("not f", {}, False),
        ("not f", {"f": False}, True),
        ("x not in [1]", {}, False),
        ("x not in []", {"x": 1}, True),
        ("x in []", {"x": 1}, False),
        ("x in [y, 5]", {"x": 5}, False),
        ("not (x in l)", {"x": 1, "l": [2, None]}, True),
        ("not (x between y and 3)", {"x": 5}, True),
        ("not (x between y and 3)", {"x": 2}, False),
        ("x between 1 and 3 and 1 < x <= 3", {"x": 3}, True),
        # text by code point
        ("s < '\U0001f600'", {"s": "\uffff"}, True),
        ("s startswith 'a'", {"s": "A"}, False),
        ("s like 'a%b'", {"s": "a\nb"}, True),
        ("not s like 'a_'", {"s": "a\U0001f600"}, False),
        (r"s like r'a\%'", {"s": "a%"}, True),
        (r"s like r'a\%'", {"s": "ab"}, False),
        ("s like ''", {"s": ""}, True),
        ("s matches 'b+'", {"s": "abba"}, True),
        ("not s matches '^b'", {"s": "abba"}, True),
        ("f == true", {"f": True}, True),
        # time
        ("t > date '2024-01-01'", {"t": T0 + timedelta(microseconds=1)}, True),
        ("t - u == 1.5", {"t": T0 + timedelta(seconds=1.5), "u": T0}, True),
        ("t + 0.0000005 > timestamp '2024-01-01T00:00:00Z'", {"t": T0}, True),
        ("t >= timestamp '2024-01-01T00:00:00Z' - 5", {"t": T0 - timedelta(seconds=5)}, True),
        ("t == date '2024-01-01'", {"t": datetime(2024, 1, 1)}, True),
        # lists
        ("distance(p, [0, 0]) == 5", {"p": [3, 4]}, True),
        ("not distance(p, [0, 0]) == 5", {"p": [3]}, False),
        ("distance(p, p) == 0", {"p": []}, True),
        ("x in l", {"x": 2**53 + 1, "l": [2.0**53]}, False),
    ],
)
def test_meaning(profile: str, message: dict[str, Any], expected: bool) -> None:
    assert matches(profile, message) is expected


@given(st.text("ab%_\\\n", max_size=8), st.text("ab%_\\", max_size=6))
def test_like_against_a_regular_expression(text: str, pattern: str) -> None:
    pattern = re.sub(r"\\$", "", pattern.replace("\\\\", ""))
    steps = re.findall(r"\\.|.", pattern)
    regex = "".join(".*" if s == "%" else "." if s == "_" else re.escape(s[-1]) for s in steps)
    assert like(text, pattern) == (re.fullmatch(regex, text, re.DOTALL) is not None)


def test_subscription_order_effects_and_tracks() -> None:
    f = ReferenceFilter()
    f.track(context="{symbol}", set="last = price; n += 1", when="type == 'tick'")
    f.subscribe(
        "first", "quantity <= ctx.stock", context="A", on_match="ctx.stock -= quantity; ctx.half = ctx.stock / 2"
    )
    f.subscribe(2, "quantity <= ctx.stock", context="A", on_match="ctx.stock -= quantity")
    f.subscribe("first", "quantity <= ctx.stock", context="A", on_match="ctx.stock = 100")
    f.update("A", stock=10)
    f.update("IBM", n=0)
    assert f.match({"quantity": 7}) == [2, "first"], "all are decided before any effect; a replaced id is last"
    assert f.context("A") == {"stock": 100}
    assert f.match({"type": "tick", "symbol": "IBM", "price": 3}) == []
    assert f.context("IBM") == {"last": 3, "n": 1.0}
    f.match({"type": "tick", "symbol": "new"})
    assert f.context("new") == {} and f.stats["effects_skipped"] == 2
    f.match({"type": "tick", "price": 3})
    assert f.stats["effects_skipped"] == 2, "a track whose context has no name does not fire"
    f.check()


def test_wrong_kinds_reject_the_whole_message() -> None:
    f = ReferenceFilter()
    f.subscribe("w-A", "quantity > 3 or item == 'bolt'")
    assert f.match({"item": "bolt", "ignored": {1, 2}}) == ["w-A"]
    with pytest.raises(EventError, match=r"^quantity: expected a number \(since profile 'w-A'\), got text 'seven'$"):
        f.match({"item": "bolt", "quantity": "seven"})
    with pytest.raises(EventError, match="quantity: integer 9223372036854775808 is out of 64-bit range"):
        f.match({"item": "bolt", "quantity": 2**63})
    with pytest.raises(EventError, match=r"ctx.stock: expected a number \(since an update of 'A'\)"):
        f.update("A", stock=1)
        f.update("A", {"stock": "x", "other": 1})
    assert f.context("A") == {"stock": 1}, "an update is all or nothing"
    f.update("A", stock=None)
    assert f.context("A") == {}


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        (("p", "x > ctx.y"), ProfileError, "no-context"),
        (("p", "x > 1", None, "ctx.y = 1"), ProfileError, "no-context"),
        (("p", "x > {y}"), ProfileError, "parameter"),
        (("p", "x >"), ProfileError, "unexpected-end"),
        (("p", 5), ProfileError, "not-a-condition"),
        (("p", "x == 'a' and x > 1"), ProfileError, "kind-conflict"),
        (("p", " and ".join(f"(a == {k} or b == {k})" for k in range(7))), ProfileError, "too-many-clauses"),
        ((True, "x > 1"), UsageError, None),
        ((2**63, "x > 1"), UsageError, None),
        ((1.5, "x > 1"), UsageError, None),
        (("p", "x > ctx.y", 3), EventError, None),
    ],
)
def test_refused_subscriptions_change_nothing(arguments: Any, error: type[TamisError], code: str | None) -> None:
    f = ReferenceFilter()
    f.subscribe("p", "old > 1")
    with pytest.raises(error) as caught:
        f.subscribe(*arguments)
    assert getattr(caught.value, "code", None) == code
    assert code is None or getattr(caught.value, "profile", None) == "p"
    assert f.match({"old": 2}) == ["p"] and f.schema.names() == ["old"]


def test_errors_show_the_place() -> None:
    f = ReferenceFilter()
    f.subscribe("a", "item == 'bolt'")
    with pytest.raises(ProfileError) as caught:
        f.subscribe("b", "quantity > 3\n  and item > 5")
    assert (caught.value.line, caught.value.column) == (2, 7)
    assert "since profile 'a'" in str(caught.value)


def test_subscribe_many() -> None:
    f = ReferenceFilter()
    table = {"id": [1, "b"], "context": ["A", "B"], "e": [1, 2.5], "p": ["a%", "%"], "l": [["x"], ["y", "z"]]}
    f.subscribe_many("abs(x - ctx.x) <= {e} and s like {p} and tag in {l}", table)
    f.update_many(f.context_index(["A", "B"]), "x", np.array([0.0, 5.0]))
    assert f.match({"x": 1, "s": "ab", "tag": "x"}) == [1]
    assert f.match({"x": 3, "s": "ab", "tag": "z"}) == ["b"]
    before = f.schema.to_dict()
    with pytest.raises(ProfileError, match=r"3 bad rows: row 1: .*no value; row 2: RE2 refuses.*; row 3: id") as caught:
        f.subscribe_many("s matches {p} and new > 1", {"id": [5, 6, 7, None], "p": ["a", None, "(", "a"]})
    assert caught.value.code == "bad-rows" and len(f) == 2 and f.schema.to_dict() == before
    with pytest.raises(UsageError, match="no column 'p'"):
        f.subscribe_many("s matches {p}", {"id": [5]})


def test_contexts() -> None:
    f = ReferenceFilter()
    assert f.context_index(["B", "A", "B"]).tolist() == [0, 1, 0]
    assert f.context_index(["C", "A"]).tolist() == [2, 1]
    f.update(1, x=1)
    assert f.context("A") == {"x": 1} and f.context("unheard") == {}
    with pytest.raises(EventError, match=r"row 1: ctx\.x: expected a number"):
        f.update_many(["A", "B"], "x", [5, "a"])
    assert f.context("A") == {"x": 1}
    f.update_many(["A", "B", "A"], "x", [5, 6, None])
    assert f.context("A") == {} and f.context("B") == {"x": 6}
    with pytest.raises(EventError, match="no context with index 9"):
        f.update(9, x=1)
    with pytest.raises(EventError, match="no profile 'q'"):
        f.unsubscribe("q")
    f.subscribe(1, "true")
    assert 1 in f and True not in f and 1.0 not in f and "1" not in f and f.profiles == 1
    with pytest.raises(EventError):
        f.unsubscribe(1.0)  # type: ignore[arg-type]


def test_process_reports_bad_events_and_goes_on() -> None:
    log = (
        EventLog.builder()
        .subscribe("p", "x > ctx.y", "A", "ctx.z = q")
        .subscribe("bad", "x >")
        .update("A", y=1)
        .update("A", y="wrong")
        .message({"x": 2})
        .message({"x": "wrong", "q": 1})
        .message({"x": 2, "q": 5})
        .unsubscribe("nobody")
        .build()
    )
    f = ReferenceFilter()
    found = f.process(log)
    assert list(found) == [(0, "p"), (2, "p")]
    assert sorted((r.kind, r.row) for r in found.rejected) == [
        ("effect", 0),
        ("message", 1),
        ("subscribe", 1),
        ("unsubscribe", 0),
        ("update", 1),
    ]
    assert f.context("A") == {"y": 1, "z": 5}
    assert f.match_many({"x": [0, 3], "seq": ["b", "a"]}).by_message() == {1: ["p"]}


def test_explain() -> None:
    f = ReferenceFilter()
    f.subscribe("w-A", "item == 'bolt' and quantity <= ctx.stock and not (rush or has(hold))", context="A")
    f.update("A", stock=5)
    text = str(f.explain("w-A", {"item": "bolt", "quantity": 9, "rush": False}))
    assert text.splitlines() == [
        "✗ profile 'w-A' does not match",
        "  message: item = 'bolt', quantity = 9, rush = False",
        "  context 'A': stock = 5",
        "  ✗ all of",
        "    ✓ item == 'bolt'   (item = 'bolt')",
        "    ✗ quantity <= ctx.stock   (quantity = 9, ctx.stock = 5, 9 <= 5 is false)",
        "    ✓ all of",
        "      ✓ not rush   (rush = False)",
        "      ✓ not has(hold)   (absent)",
    ]
    absent = f.explain("w-A", {"item": "bolt", "rush": False})
    assert [v.why for v in absent.failing()] == ["the message has no quantity"]
    assert absent.to_dict()["verdict"]["parts"][1]["holds"] is False and "<pre>" in absent._repr_html_()
    refused = f.explain("w-A", {"item": 5})
    assert not refused and "rejected: item: expected text" in str(refused)
    assert f.stats["messages"] == 0
    with pytest.raises(EventError):
        f.explain("nobody", {})


def test_save_and_load(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    f = ReferenceFilter()
    for track in random_tracks(rng, 2):
        f.track(**track)
    f.process(random_log(rng, 150))
    f.save(tmp_path / "f.json")
    g = ReferenceFilter.load(tmp_path / "f.json")
    g.check()
    assert g.stats == f.stats and g.schema.to_dict() == f.schema.to_dict()
    assert differences(g, f, random_log(rng, 100), Vocabulary().contexts) == []
    (tmp_path / "f.json").write_text("{}")
    with pytest.raises(UsageError, match="not a saved"):
        ReferenceFilter.load(tmp_path / "f.json")


def test_check_finds_damage() -> None:
    f = ReferenceFilter()
    f.update("A", x=1)
    f._contexts["A"]["x"] = "text"
    with pytest.raises(InvariantError, match="expected a number"):
        f.check()


@pytest.mark.parametrize("seed", range(6))
def test_random_logs_are_reproducible_and_lively(seed: int) -> None:
    log = random_log(np.random.default_rng(seed), 200, columnar=seed % 2 == 1)
    one, two = ReferenceFilter(), ReferenceFilter()
    assert differences(one, two, log) == []
    assert two.process(random_log(np.random.default_rng(seed), 200, columnar=seed % 2 == 1)) is not None
    assert one.stats["matches"] > 20 and one.stats["messages"] > 50
    one.check()


def test_differences_sees_what_differs() -> None:
    class Forgetful(ReferenceFilter):
        def _insert(self, id: Any, profile: Any, context: Any) -> None:
            if id != 3:
                super()._insert(id, profile, context)

    log = EventLog.builder().subscribe(3, "true", "A", "ctx.x = 1").message({}).update("B", y=1).build()
    assert differences(Forgetful(), ReferenceFilter(), log) == [
        "message 0: too many [], missing [3]",
        "context 'A': x is None, should be 1",
    ]


def test_negation_is_pushed_down_everywhere() -> None:
    rng = np.random.default_rng(5)
    f = ReferenceFilter(schema=Vocabulary().schema())
    f.process(random_log(rng, 120))
    for s in f._profiles.values():
        doubled = Not(Not(s.profile.condition))
        assert holds(doubled, {}, {}) == holds(s.profile.condition, {}, {})
