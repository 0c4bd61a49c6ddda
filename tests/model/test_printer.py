from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from random_trees import conditions, expressions, names

from tamis.errors import ProfileError
from tamis.model.language import parse, parse_effects
from tamis.model.printer import effects_to_text, to_text
from tamis.model.tree import Attribute, Compare, Condition, Context, Effect, Expression, Literal, Negative, Not


@given(conditions)
def test_the_text_of_a_tree_parses_to_the_tree(tree: Condition) -> None:
    text = to_text(tree)
    assert parse(text) == tree
    assert to_text(parse(text)) == text


@given(names, expressions)
def test_effects_come_back(target: str, value: Expression) -> None:
    effects = (Effect(target, value), Effect("n", Literal(1)))
    assert parse_effects(effects_to_text(effects)) == effects


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("((a<1) AND (b=2||c<>3))", "a < 1 and (b == 2 or c != 3)"),
        ("a and b or c and d", "a and b or c and d"),
        ("a and (b and c)", "a and b and c"),
        ("not (a in (1,2))", "a not in [1, 2]"),
        ("! (a between 1 && 2)", "a not between 1 and 2"),
        ("not (x like 'a%') and not(s matches r'\\d')", "x not like 'a%' and s not matches '\\\\d'"),
        ("not (a or b)", "not (a or b)"),
        ("not not a", "not not a"),
        ("not (a < b)", "not a < b"),
        ("10 < x <= 20", "10 < x and x <= 20"),
        ("(a + b) * c - (d - e) > -(f)", "(a + b) * c - (d - e) > -f"),
        ("a - b - c == a * (b / c)", "a - b - c == a * (b / c)"),
        ("-(5) < - 5", "-(5) < -5"),
        ("x == 1_000 or x == 1e3 or x == .5", "x == 1000 or x == 1000.0 or x == 0.5"),
        ("""x == "it's" or x == 'a''b"' """, """x == "it's" or x == 'a\\'b"'"""),
        ("`and` == 1 and ctx.`odd name` > `a``b`", "`and` == 1 and ctx.`odd name` > `a``b`"),
        ("ctx.and == `ctx.x`", "ctx.and == `ctx.x`"),
        ("t == timestamp '2024-01-31T00:00:00+00:00'", "t == date '2024-01-31'"),
        ("t == timestamp('2024-01-31 12:00:00.5+01:00')", "t == timestamp '2024-01-31T11:00:00.500000Z'"),
        ("x < number 'INF' -- far\n", "x < number 'inf'"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert to_text(parse(text)) == canonical


def test_compound_assignments_are_printed_as_such() -> None:
    effects = parse_effects("stock = ctx.stock - quantity*2; ctx.n += 1;")
    assert effects_to_text(effects) == "ctx.stock -= quantity * 2; ctx.n += 1"


@pytest.mark.parametrize(
    ("tree", "code"),
    [
        (Compare("==", Attribute(""), Literal(1)), "empty-name"),
        (Compare("==", Context("\ud800"), Literal(1)), "bad-character"),
        (Compare("==", Attribute("x"), Literal("\udfff")), "bad-character"),
        (Compare("==", Attribute("x"), Literal(2**63)), "number-range"),
        (Compare("==", Attribute("x"), Literal(datetime(2024, 1, 1))), "bad-time"),
    ],
)
def test_what_has_no_text_is_refused(tree: Condition, code: str) -> None:
    with pytest.raises(ProfileError) as caught:
        to_text(tree)
    assert caught.value.code == code


def test_depth_is_an_error_of_the_profile() -> None:
    tree: Condition = Compare("==", Attribute("x"), Literal(datetime(2024, 1, 1, tzinfo=UTC)))
    for _ in range(5_000):
        tree = Not(tree)
    with pytest.raises(ProfileError, match="too-deep"):
        to_text(tree)
    value: Expression = Attribute("x")
    for _ in range(5_000):
        value = Negative(value)
    with pytest.raises(ProfileError, match="too-deep"):
        to_text(value)


@pytest.mark.parametrize("signs", [1, 2, 3, 60])
def test_signs_in_a_row_print_no_deeper_than_they_were(signs: int) -> None:
    tree = parse(f"a == {'- ' * signs}2.0 and b > {'- ' * signs}ctx.b")
    assert parse(to_text(tree)) == tree
