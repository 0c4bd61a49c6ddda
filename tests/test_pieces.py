"""Compiled pieces: shapes put together from them are the shapes compiled as a whole, and nothing is shared wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import Filter, ProfileError
from tamis.engine import pieces as pieces_module
from tamis.kernels import bundles as b
from tamis.kernels import program as p
from tamis.model.shapes import Shapes
from tamis.reference import ReferenceFilter

# A context c with all attributes, and one profile per name that settles its kind.
SETTLING = [
    *("x < 1", "y < 1", "s == ''", "w == ''", "b", "t > date '2024-01-31'", "ctx.n < 1", "ctx.m < 1", "ctx.s == ''"),
    "s in ctx.names",
]
ITEMS = [
    *("x < 5", "x <= 5", "x > 5", "x >= 5", "x == 5", "x != 5", "5 < x", "x between 2 and 7", "2 < x <= 7", "x < 2.5"),
    *("y < 5", "y between 1 and 8", "not y < 3", "x in [1, 2, 5]", "y in [3, 4]", "y in (4)", "x not in [1, 2]"),
    *("s == 'a'", "s != 'a'", "s < 'b'", "s in ['a', 'b']", "w in ['a']", "s startswith 'a'", "s like 'a%'"),
    *("w matches 'b$'", "w not like '_a'", "has(x)", "not has(y)", "b", "not b", "s in ctx.names", "s == ctx.s"),
    *("x < ctx.n", "x > ctx.n", "ctx.n < 5", "ctx.n > 1", "x < ctx.n + 1", "x > ctx.m - 2", "x < ctx.n * 2 + y"),
    *("abs(x - ctx.n) <= 3", "x - ctx.n < 2", "x + y < 9", "x == y", "t > date '2024-01-31'", "(x < 6 and y < 6)"),
    *("(x < 2 or y < 2)", "x == 9007199254740993", "x < 9007199254740993", "x in [1, 9007199254740993]", "(b)"),
]


def settled(**options: Any) -> Filter:
    f = Filter(**options)
    for i, text in enumerate(SETTLING):
        f.subscribe(f"settling {i}", text, context="c")
    return f


def resolved(f: Filter, number: int) -> list[Any]:
    """The templates of a shape with everything they refer to in place."""
    arrays = f._compiler.arrays()
    pool = arrays["pool"].tolist()

    def constant(index: int) -> Any:
        return ("own", index) if index >= 0 else pool[-1 - index]

    def program(first: int, length: int) -> list[Any]:
        out: list[Any] = []
        for op, one, two in arrays["code"][first : first + length].tolist():
            if op == p.CONSTANT:
                out.append((op, constant(one)))
            elif op in (p.IN_POOL, p.NOT_IN_POOL):
                out.append((op, *pool[one : one + two]))
            else:
                out.append((op, one, two))
        return out

    def end(kind: int, one: int, two: int, strict: int) -> Any:
        if kind == b.COMPUTED:
            return (kind, program(one, two), strict)
        return (kind, one, constant(two) if kind in (b.CONST, b.CTX_PLUS) else two, strict)

    found = []
    for template in f._subscriptions.shapes[number].templates:
        row = arrays["row"][template].tolist()
        first, count = row[b.FIRST_PREDICATE], row[b.PREDICATES]
        intervals = [
            (r[b.ATTRIBUTE], end(*r[b.LOW : b.LOW + 4]), end(*r[b.HIGH : b.HIGH + 4]), r[b.TRAITS])
            for r in arrays["predicate"][first : first + count].tolist()
        ]
        gate, body = program(*row[b.GATE : b.GATE + 2]), program(*row[b.PROGRAM : b.PROGRAM + 2])
        found.append((intervals, body, gate, row[b.DEPENDS_LOW], row[b.DEPENDS_HIGH]))
    return found


def random_text(rng: np.random.Generator, most: int = 5) -> str:
    return " and ".join(rng.choice(ITEMS, rng.integers(1, most)))


@pytest.mark.parametrize("seed", range(4))
def test_a_shape_from_pieces_is_the_shape_compiled_as_a_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    texts = [random_text(rng) for _ in range(400)]
    assembled = settled()
    short = 0
    for i, text in enumerate(texts):
        assembled.subscribe(i, text, context="c")
        short += type(assembled._subscriptions.shapes[-1].source) is tuple
    with monkeypatch.context() as patch:
        patch.setattr(Shapes, "pieces", lambda *_: None)
        whole = settled()
        for i, text in enumerate(texts):
            whole.subscribe(i, text, context="c")
    assert short > 150
    one, two = assembled._subscriptions, whole._subscriptions
    assert one._waiting.values == two._waiting.values
    for i, (here, there) in enumerate(zip(one._waiting.shapes, two._waiting.shapes, strict=True)):
        mine, other = one.shapes[here], two.shapes[there]
        text = (SETTLING + texts)[i]
        assert mine.condition == other.condition, text
        assert (mine.parameters, mine.kinds, mine.computed) == (other.parameters, other.kinds, other.computed), text
        assert one._needs_context[here] == two._needs_context[there], text
        assert resolved(assembled, here) == resolved(whole, there), text


def random_message(rng: np.random.Generator) -> dict[str, Any]:
    message = {
        "x": rng.choice(np.array([0, 1, 2, 2.25, 3, 5, 6, 7, 2**53 + 1], object)),
        "y": int(rng.integers(0, 9)),
        "s": str(rng.choice(["a", "ab", "b", ""])),
        "w": str(rng.choice(["a", "aa", "b", "ba"])),
        "b": bool(rng.integers(0, 2)),
    }
    return {name: value for name, value in message.items() if rng.random() < 0.95}


@pytest.mark.parametrize("most", [2, pieces_module.MAX_PIECES])
@pytest.mark.parametrize("strategy", ["agile", "noindex"])
def test_profiles_from_pieces_match_as_the_reference(strategy: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "MAX_PIECES", most)
    rng = np.random.default_rng(most)
    f, reference = Filter(strategy=strategy), ReferenceFilter()
    matches = 0
    for _ in range(12):
        for _ in range(60):
            id, text, context = int(rng.integers(0, 400)), random_text(rng), rng.choice(["c", "d"])
            for filter in (f, reference):
                filter.subscribe(id, text, context=context)
        for context in ("c", "d"):
            values = {"n": int(rng.integers(0, 8)), "m": int(rng.integers(0, 8)), "s": "a", "names": ["a", "ab"]}
            for filter in (f, reference):
                filter.update(context, values)
        for _ in range(15):
            message = random_message(rng)
            expected = reference.match(message)
            matches += len(expected)
            assert f.match(message) == expected, message
        f.check()
    assert matches > 500


def both(*texts: str, context: str | None = None) -> tuple[Filter, ReferenceFilter]:
    f, reference = Filter(), ReferenceFilter()
    for filter in (f, reference):
        for i, text in enumerate(texts):
            filter.subscribe(i, text, context=context)
    return f, reference


def test_the_place_of_a_constant_is_not_shared() -> None:
    f, reference = both("x < 1 and y < 9", "x < 1 and y < 9", "y < 1 and x < 9", "x < 9 and y < 1 and x > 0", "y < 5")
    for x in range(-1, 11):
        for y in range(-1, 11):
            assert f.match({"x": x, "y": y}) == reference.match({"x": x, "y": y})


def test_strictness_is_not_shared() -> None:
    f, reference = both(*(f"x {op} 5 and y {op} 5" for op in ("<", "<=", ">", ">=", "==", "!=") for _ in range(2)))
    for x in (4, 5, 6):
        assert f.match({"x": x, "y": 5}) == reference.match({"x": x, "y": 5})


def test_a_wide_constant_does_not_use_the_piece_of_a_narrow_one() -> None:
    odd = 2**53 + 1
    f, reference = both(
        "x == 5 and y < 9", f"x == {odd} and y < 9", f"x in [1, {odd}] and y < 9", f"x < {odd} and y < 9"
    )
    for x in (5, odd - 1, odd, odd + 1):
        assert f.match({"x": x, "y": 1}) == reference.match({"x": x, "y": 1})


def test_a_known_piece_forgives_no_wrong_kind_and_no_missing_context() -> None:
    for texts, context in (
        (("x == 5 and y == 'a'", "x == 'a' and y == 'a'"), None),
        (("x in [1, 2] and y < 5", "x in [1, 'a'] and y < 5"), None),
        (("x in [1, 2] and y < 5", "x in ['a', 'b'] and y < 5"), None),
        (("x < ctx.n and y < 5", "x < ctx.n and y < 5"), "c"),
        (("x < ctx.n and y < 5", "y < 6 and x < ctx.n"), "c"),
    ):
        errors = []
        for filter in (Filter(), ReferenceFilter()):
            filter.subscribe("good", texts[0], context=context)
            filter.subscribe("other", texts[0].replace("5", "6"), context=context)
            with pytest.raises(ProfileError) as caught:
                filter.subscribe("bad", texts[1])
            errors.append(caught.value.to_dict())
            assert "bad" not in filter
        assert errors[0] == errors[1]


def test_a_piece_of_open_kind_is_not_kept() -> None:
    f, reference = both("x < ctx.n and has(y)", "x < ctx.n and has(z)", context="c")
    for filter in (f, reference):
        filter.subscribe("number", "y < 5 and z < 5")
        filter.update("c", n="m")  # only now x and ctx.n are texts
        filter.subscribe("after", "x < ctx.n and y < 9", context="c")
        filter.subscribe("again", "x < ctx.n and y < 8 and z < 8", context="c")
    for x in ("a", "m", "z"):
        message = {"x": x, "y": 1, "z": 1}
        assert f.match(message) == reference.match(message)
    f.check()


@pytest.mark.parametrize("before", [[], [{"y": 1}], [{"x": "b", "y": 1}]])
def test_an_update_that_settles_a_kind_reaches_the_index(before: list[dict[str, Any]]) -> None:
    f, reference = both("x < ctx.n and has(y)", "x < ctx.n and has(y)", context="c")
    for filter in (f, reference):
        for message in before:
            filter.match(message)
        filter.update("c", n="m")
        assert filter.match({"x": "a", "y": 1}) == [0, 1]
        assert filter.match({"x": "z", "y": 1}) == []
        filter.check()


def test_filters_do_not_share_pieces() -> None:
    one, two = Filter(), Filter()
    for i in range(3):
        one.subscribe(i, f"x == {i} and y < 5")
        two.subscribe(i, f"y < 5 and x == '{i}'")
    assert one.match({"x": 1, "y": 1}) == two.match({"x": "1", "y": 1}) == [1]
    assert one.schema.kind("x") is not two.schema.kind("x")


def test_an_explanation_settles_nothing_for_pieces() -> None:
    f, reference = both("has(a) and x < 5", "has(a) and x < 6")
    for filter in (f, reference):
        filter.explain(0, {"a": 1, "x": 2})
        filter.subscribe("text", "a == 'text' and x < 5")
        filter.subscribe("more", "a == 'text' and x < 6 and has(a)")
    assert f.match({"a": "text", "x": 1}) == reference.match({"a": "text", "x": 1}) == [0, 1, "text", "more"]


def test_pieces_after_loading(tmp_path: Path) -> None:
    texts = ["x < 5 and s in ['a', 'b']", "s startswith 'a' and x in [1, 2]", "x < 7 and s == 'a' and x > 0"]
    f, reference = both(*texts)
    f.match({"x": 1})
    f.save(tmp_path / "f")
    loaded = Filter.load(tmp_path / "f")
    for filter in (loaded, reference):
        for i, text in enumerate(texts):
            filter.subscribe(f"more {i}", f"{text} and y < 5")
            filter.subscribe(f"same {i}", text)
    for x in range(8):
        for s in ("a", "ab", "b"):
            message = {"x": x, "s": s, "y": 1}
            assert loaded.match(message) == reference.match(message)
    for i in range(len(texts)):
        assert str(loaded.explain(i, {"x": 1, "s": "a"})) == str(reference.explain(i, {"x": 1, "s": "a"}))
    loaded.check()


def test_a_lifted_set_matches_once() -> None:
    f, reference = both("x in [1, 01, 2] and y < 5", "y < 5 and x in [1, 2] and x in [2, 3]", "x in [1, 2] and x < 2")
    for x in range(5):
        assert f.match({"x": x, "y": 1}) == reference.match({"x": x, "y": 1})
    f.unsubscribe(0)
    reference.unsubscribe(0)
    assert f.match({"x": 1, "y": 1}) == reference.match({"x": 1, "y": 1})
    f.check()
