from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_trees import conditions
from test_language import soups

from tamis.errors import ProfileError
from tamis.model.language import parse
from tamis.model.normal import normalise
from tamis.model.printer import to_text
from tamis.model.shapes import Piece, Shapes, joined, lift, substitute
from tamis.model.tree import And, Attribute, Compare, Condition, Items, Literal, Member, Not, Parameter, Scalar, walk
from tamis.model.values import NUMBER, TEXT


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


# -- pieces ----------------------------------------------------------------------------------------------------

ITEMS = [
    *("x < 5", "x <= 5", "5 > x", "-1 < x <= 2", "x between 1 and 2", "x Between -1 && 2", "x bEtween 1 and 2"),
    *("s == 'a and b'", "s in ['a', 'b']", "x in (1, 2.5)", "x not in [1, 2]", "s startswith 'a'", "s like ('a%')"),
    *("has(s)", "not x == 1", "NOT has(s)", "b", "true", "5", "(x < 5)", "(x < 5 or x > 9)", "(b and has(s))", "{p}"),
    *("x + 1 < ctx.y - 2", "abs(x - ctx.y) <= 3", "(", "x <", "s matches 'a+'", "t > date '2024-01-31'", "not"),
]
CONNECTORS = [" and ", " AND ", " && ", " aNd ", " and -- c\n", " or ", " oR ", " || "]
chains = st.lists(st.tuples(st.sampled_from(ITEMS), st.sampled_from([*CONNECTORS[:1] * 12, *CONNECTORS])), min_size=1)
PIECES = Shapes()


@given(chains)
@example([("b", " oR "), ("x < 5", " and "), ("b", "")])
@example([("b", " oR "), ("b", " and "), ("x < 5", "")])
@example([("x between 1", " and "), ("b", "")])
def test_a_text_put_together_from_pieces_is_the_text(chain: list[tuple[str, str]]) -> None:
    text = "".join(item + connector for item, connector in chain).removesuffix(chain[-1][1])
    try:
        expected = parse(text)
    except ProfileError as error:
        with pytest.raises(ProfileError) as caught:
            PIECES.lift(text)
        assert caught.value.to_dict() == error.to_dict()
        return
    assert filled(PIECES, text) == expected
    lifted = PIECES.take_apart(text)
    pieces = None if lifted is None else PIECES.pieces(lifted.parts)
    if lifted is not None and pieces is not None:
        values: dict[str, Any] = {f"#{i}": value for i, value in enumerate(lifted.values)}
        assert substitute(joined(pieces), values) == expected
        clauses = normalise(joined(pieces))
        assert clauses == (tuple(dict.fromkeys(predicate for piece in pieces for predicate in piece.clause)),)
        kinds = [kind for piece in pieces for kind in piece.kinds.values()]
        assert kinds == [NUMBER if isinstance(value, int | float) else TEXT for value in lifted.values]


def pieces_of(shapes: Shapes, text: str) -> tuple[Piece, ...]:
    lifted = shapes.take_apart(text)
    assert lifted is not None
    found = shapes.pieces(lifted.parts)
    assert found is not None
    return found


def test_texts_share_pieces_of_the_same_place_and_kind() -> None:
    shapes = Shapes()
    first = pieces_of(shapes, "x < 5 and has(s) and y < 7")
    again = pieces_of(shapes, "x<9 AND has(s) && y < 0")
    assert all(one is other for one, other in zip(again, first, strict=True))
    assert pieces_of(shapes, "y < 7 and x < 5")[0] is not first[2], "another number of the parameter"
    assert pieces_of(shapes, "x <= 5")[0] is not first[0]
    assert pieces_of(shapes, "x < 'a'")[0] is not first[0]
    assert pieces_of(shapes, "x < ctx.x and x < 5")[0].uses_context
    assert not first[0].uses_context
    assert [list(piece.kinds) for piece in first] == [["#0"], [], ["#1"]]


@pytest.mark.parametrize(
    "text",
    [
        *("x < 5 or y < 5", "x < 5 oR y < 5 and z", "(x < 5 or y) and z", "not (x < 5 and y) and z", "x < {p} and y"),
        *("true and x < 5", "x == true", "x < 5 and", "5 and x", "x in 5", "s like ('a') and x", "distance(5, p) < 2"),
    ],
)
def test_what_is_no_conjunction_of_predicates_has_no_pieces(text: str) -> None:
    shapes = Shapes()
    lifted = shapes.take_apart(text)
    assert lifted is not None
    for _ in range(2):
        assert shapes.pieces(lifted.parts) is None


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("x in [1, 2] and y < 3", "x in [ ?n , ?n ] and y < ?n", (1, 2, 3)),
        ("y < 3 and s In ('a', 'b',)", "y < ?n and s In ( ?s , ?s , )", (3, "a", "b")),
        ("x in [1, 2] and y in [3]", "x in [ 1 , 2 ] and y in [ 3 ]", ()),
        ("x in [1, 2] or y < 3", "x in [ 1 , 2 ] or y < ?n", (3,)),
        ("x not in [1, 2]", "x not in [ 1 , 2 ]", ()),
        ("! x in [1]", "! x in [ 1 ]", ()),
        ("x in [1, 1]", "x in [ 1 , 1 ]", ()),
        ("x in [1.0, 2.5]", "x in [ 1.0 , 2.5 ]", ()),
        ("x in [1.5, 2]", "x in [ ?n , ?n ]", (1.5, 2)),
        ("x in [-1, 2]", "x in [ - 1 , 2 ]", ()),
        ("b in [true]", "b in [ true ]", ()),
        ("x in []", "x in [ ]", ()),
        ("x in [{p}, 1]", "x in [ {p} , 1 ]", ()),
        ("x in [1, y]", "x in [ 1 , y ]", ()),
        ("x in [(1), 2]", "x in [ ( 1 ) , 2 ]", ()),
        ("x in [1,2,3,4,5,6,7,8,9]", "x in [ 1 , 2 , 3 , 4 , 5 , 6 , 7 , 8 , 9 ]", ()),
    ],
)
def test_the_one_small_set_of_a_conjunction_is_lifted(text: str, key: str, values: tuple[Scalar, ...]) -> None:
    shapes = Shapes()
    found, _, constants = shapes.lift(text)
    assert (found, constants) == (key, values)
    assert filled(shapes, text) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("x in [1, 9223372036854775808]", "x in [1, 5x]", "s in ['a', 'b]", r"s in ['a', '\q']", "x in [1, 2"),
        *("x in [1 2]", "x in [., 1]", "x in (1, 2]", "x in [1,, 2]"),
        " and ".join(["s matches 'a'"] * 33),
        " and ".join(f"x < {i}" for i in range(4_097)),
        " and ".join(["(" + " and ".join(f"x < {i}" for i in range(128)) + ")"] * 33),
    ],
    ids=lambda text: text[:24],
)
def test_pieces_hide_no_error(text: str) -> None:
    shapes = Shapes()
    with pytest.raises(ProfileError) as expected:
        parse(text)
    for _ in range(2):
        with pytest.raises(ProfileError) as caught:
            shapes.lift(text)
        assert caught.value.to_dict() == expected.value.to_dict()


def test_the_cache_of_pieces_is_bounded() -> None:
    shapes = Shapes(max_shapes=16)
    for i in range(100):
        pieces_of(shapes, f"a{i} < 5 and b{i} < 6 and has(c{i})")
        assert len(shapes._pieces.found) <= 16
        assert shapes._pieces.characters == sum(map(len, shapes._pieces.found))
    assert filled(shapes, "a0 < 5 and b0 < 6") == parse("a0 < 5 and b0 < 6")
