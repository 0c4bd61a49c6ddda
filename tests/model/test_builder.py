from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from tamis.errors import ProfileError
from tamis.model.builder import Test, all_of, any_of, attr, ctx, distance, has, param
from tamis.model.language import parse
from tamis.model.printer import to_text
from tamis.model.tree import Compare, Literal

x, y = attr.x, attr.y


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (
            (attr.quantity <= ctx.stock) & attr.item.is_in(["bolt"]) & ~ctx.busy.is_true(),
            "quantity <= ctx.stock and item in ['bolt'] and not ctx.busy",
        ),
        (attr["odd name"] != ctx["and"], "`odd name` != ctx.and"),
        (5 < x, "x > 5"),  # noqa: SIM300
        (x.between(1, ctx.hi + 1), "x between 1 and ctx.hi + 1"),
        (x.like("a%") | x.startswith(ctx.p) | x.matches("^b"), "x like 'a%' or x startswith ctx.p or x matches '^b'"),
        (has(x) & ~has(ctx.y), "has(x) and not has(ctx.y)"),
        (distance(attr.pos, ctx.pos) < 500, "distance(pos, ctx.pos) < 500"),
        (distance(attr.pos, (1, 2.5)) < 500, "distance(pos, [1, 2.5]) < 500"),
        (abs(x - ctx.x) <= 150, "abs(x - ctx.x) <= 150"),
        (2 * x + 1 > -(1 - y / 2), "2 * x + 1 > -(1 - y / 2)"),
        (1 / x == 3 + y, "1 / x == 3 + y"),
        (x.is_in(ctx.portfolio), "x in ctx.portfolio"),
        (x <= param.limit, "x <= {limit}"),
        (x <= param("odd name"), "x <= {odd name}"),
        (ctx.busy & x | ~y, "ctx.busy and x or not y"),
        (all_of(x > 1, [y > 2, ctx.z], True), "x > 1 and y > 2 and ctx.z and true"),
        (any_of(x > 1 for _ in range(1)), "x > 1"),
        (all_of(), "true"),
        (any_of([]), "false"),
        (x > date(2024, 1, 31), "x > date '2024-01-31'"),
        (x > datetime(2024, 1, 31, 12), "x > timestamp '2024-01-31T12:00:00Z'"),
        (
            x > datetime(2024, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))),
            "x > timestamp '2024-01-31T10:00:00Z'",
        ),
        (x.is_in(np.array([1, 2])), "x in [1, 2]"),
        (x == np.float64(1.5), "x == 1.5"),
    ],
)
def test_the_same_tree_as_the_text(built: Test, text: str) -> None:
    assert built.tree == parse(text)
    assert built.build() == parse(to_text(built.tree))


def test_numpy_scalars_become_plain_constants() -> None:
    tree = (x == np.int32(4)).tree
    assert isinstance(tree, Compare) and isinstance(tree.right, Literal)
    assert type(tree.right.value) is int
    assert (x == np.bool_(True)).tree == parse("x == true")


def test_naive_times_are_utc() -> None:
    assert (x == datetime(2024, 1, 1, 5)).tree == (x == datetime(2024, 1, 1, 5, tzinfo=UTC)).tree


@pytest.mark.parametrize(
    ("attempt", "hint"),
    [
        (lambda: 1 < x < 5, "between"),
        (lambda: (x > 1) and (y > 1), "use & "),
        (lambda: not x, "use & "),
        (lambda: "a" in x, "is_in"),
        (lambda: x == None, "has"),  # noqa: E711
        (lambda: x == [1], "not list"),
        (lambda: x.is_in("abc"), "iterable of constants"),
        (lambda: (x > 1) & 5, "expected a condition"),
        (lambda: x == (y > 1), "combine conditions"),
        (lambda: {x: 1}, "unhashable"),
        (lambda: all_of("x > 1"), "expected a condition"),
    ],
)
def test_python_traps_raise_type_errors(attempt: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        attempt()


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (lambda: x.matches("("), "bad-regex"),
        (lambda: x.like("a\\"), "bad-pattern"),
        (lambda: x.like(y), "bad-pattern"),
        (lambda: x == 2**63, "number-range"),
        (lambda: attr[""], "empty-name"),
        (lambda: has(x + 1), "bad-argument"),
        (lambda: (x + 1) & y, "not-a-condition"),
        (lambda: x.is_in(y + 1), "bad-list"),
        (lambda: param["{"], "bad-parameter"),
    ],
)
def test_what_the_language_refuses(attempt: Any, code: str) -> None:
    with pytest.raises(ProfileError) as caught:
        attempt()
    assert caught.value.code == code


def test_dunder_lookups_are_no_attributes() -> None:
    with pytest.raises(AttributeError):
        attr.__wrapped__  # noqa: B018
