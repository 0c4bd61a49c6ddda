from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from random_trees import conditions
from test_language import soups

from tamis.errors import ProfileError
from tamis.model.language import parse
from tamis.model.printer import to_text
from tamis.model.shapes import Shapes, lift, substitute
from tamis.model.tree import And, Attribute, Compare, Condition, Items, Literal, Member, Not, Parameter, Scalar, walk


def filled(shapes: Shapes, text: str) -> Condition:
    _, tree, values = shapes.lift(text)
    return substitute(tree, {f"#{i}": value for i, value in enumerate(values)})


@given(conditions)
def test_a_lifted_profile_filled_in_is_the_profile(tree: Condition) -> None:
    shapes = Shapes()
    text = to_text(tree)
    assert filled(shapes, text) == tree
    assert filled(shapes, text) == tree
    assert len(shapes) == 1


SHARED = Shapes()


@given(soups)
@example("x < {#0}")
@example("x < ?n")
@example("x == true and 5")
def test_any_text_lifts_as_it_parses(text: str) -> None:
    SHARED.lift("x < 5")
    SHARED.lift("x == true and true")
    try:
        expected = parse(text)
    except ProfileError as error:
        with pytest.raises(ProfileError) as caught:
            SHARED.lift(text)
        assert caught.value.to_dict() == error.to_dict()
    else:
        assert filled(SHARED, text) == expected


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("x < 5 and y == 'a'", "x < ?n and y == ?s", (5, "a")),
        ("x<-5 and y=='it''s' -- c", "x < ?n and y == ?s", (-5, "it's")),
        ("x - 5 < -.5", "x - ?n < ?n", (5, -0.5)),
        ("x -5 < - -9223372036854775808", "x - ?n < - ?n", (5, -(2**63))),
        ("x between -1 AND -2", "x between ?n AND ?n", (-1, -2)),
        ("(x) - 5 < {p} - 6", "( x ) - ?n < {p} - ?n", (5, 6)),
        ("-5 < x and not true", "?n < x and not ?b", (-5, True)),
        ("x in [1, abs(2)] or y == 3", "x in [ 1 , abs ( 2 ) ] or y == ?n", (3,)),
        ("x In (1, (2)) or y == 3", "x In ( 1 , ( 2 ) ) or y == ?n", (3,)),
        ("distance(p, [1, 2]) < 3", "distance ( p , [ 1 , 2 ] ) < ?n", (3,)),
        ("s like 'a' or s matches 'b' or s STARTSWITH 'c'", "s like 'a' or s matches 'b' or s STARTSWITH 'c'", ()),
        ("t > date '2024-01-31' or t < Timestamp(\"2024-01-31\")",
         "t > date '2024-01-31' or t < Timestamp ( \"2024-01-31\" )", ()),
        ("x < number 'inf' or abs(-4) < 2", "x < number 'inf' or abs ( ?n ) < ?n", (-4, 2)),
    ],
)  # fmt: skip
def test_keys_and_values(text: str, key: str, values: tuple[Scalar, ...]) -> None:
    found, tree, constants = lift(text)
    assert (found, constants) == (key, values)
    assert [type(value) for value in constants] == [type(value) for value in values]
    assert filled(Shapes(), text) == parse(text)
    assert sum(isinstance(node, Parameter) and node.name[0] == "#" for node in walk(tree)) == len(values)


def test_equal_shapes_share_one_tree() -> None:
    shapes = Shapes()
    trees = {id(shapes.lift(f"x < {i} and y == 'item {i}' and z between -{i} and {i}.5")[1]) for i in range(100)}
    assert len(trees) == len(shapes) == 1


def test_chained_constants_are_one_parameter() -> None:
    _, tree, values = lift("x < 5 < y")
    assert values == (5,)
    five = Parameter("#0")
    assert tree == And((Compare("<", Attribute("x"), five), Compare("<", five, Attribute("y"))))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("x < 5", "x < 9223372036854775808"),
        ("x < 5", "x < 5x"),
        ("x == 'a'", "x == 'a"),
        ("x == 'a'", r"x == '\q'"),
        ("x == 'ä'", "x == '\ud800'"),
        ("x < 5", "x < {#n}"),
        ("true and x", "5 and x"),
        ("x < 5", " " * 65_536 + "x < 5"),
    ],
)
def test_a_cached_shape_hides_no_error(good: str, bad: str) -> None:
    shapes = Shapes()
    shapes.lift(good)
    with pytest.raises(ProfileError) as expected:
        parse(bad)
    with pytest.raises(ProfileError) as caught:
        shapes.lift(bad)
    assert caught.value.to_dict() == expected.value.to_dict()


def test_the_cache_is_bounded_and_drops_the_oldest() -> None:
    shapes = Shapes(max_shapes=16)
    for i in range(100):
        shapes.lift(f"a{i} < 5")
        assert len(shapes) <= 16
    newest = shapes.lift("a99 < 6")[1]
    assert shapes.lift("a99 < 7")[1] is newest
    small = Shapes(max_characters=2_000)
    for i in range(1_000):
        small.lift(f"some_name_{i} < 5")
    assert 0 < len(small) < 150
    assert filled(small, "x in [" + "1, " * 50 + "1]") == parse("x in [" + "1, " * 50 + "1]")


def test_substitute_shares_what_it_does_not_change() -> None:
    tree = parse("a and x < {limit} and s in {names} and not has(y) and z == {other}")
    assert isinstance(tree, And)
    values: dict[str, Any] = {"limit": 5, "names": ["b", "c"]}
    found = substitute(tree, values)
    assert found == parse("a and x < 5 and s in ['b', 'c'] and not has(y) and z == {other}")
    assert isinstance(found, And)
    assert found.items[0] is tree.items[0]
    assert substitute(tree, {}) is tree
    member = substitute(Member(Attribute("s"), Items((Parameter("p"), Literal(1)))), {"p": 2})
    assert member == Member(Attribute("s"), Items((Literal(2), Literal(1))))


def test_depth_is_an_error_of_the_profile() -> None:
    tree = parse("x == {p}")
    for _ in range(5_000):
        tree = Not(tree)
    with pytest.raises(ProfileError, match="too-deep"):
        substitute(tree, {"p": 1})
