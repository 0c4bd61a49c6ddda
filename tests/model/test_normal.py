from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_trees import conditions

from tamis.errors import ProfileError
from tamis.model.language import parse
from tamis.model.normal import normalise
from tamis.model.printer import to_text
from tamis.model.tree import And, Attribute, Between, Compare, Condition, Literal, Not, Or, Truth

CLAUSES = {
    "a": ["a"],
    "a and b or c": ["a & b", "c"],
    "a and (b or c)": ["a & b", "a & c"],
    "(a or b) and (c or d)": ["a & c", "a & d", "b & c", "b & d"],
    "not (a or b)": ["not a & not b"],
    "not (a and b)": ["not a", "not b"],
    "not not a": ["a"],
    "not x < 1": ["x >= 1"],
    "not x <= 1 and not x == 2": ["x > 1 & x != 2"],
    "not (x > 1 and x >= 2 and x != 3)": ["x <= 1", "x < 2", "x == 3"],
    "x between 1 and 5": ["x >= 1 & x <= 5"],
    "x not between 1 and 5": ["x < 1", "x > 5"],
    "not x not between 1 and 5": ["x >= 1 & x <= 5"],
    "not 1 < x < 5": ["1 >= x", "x >= 5"],
    "not (x in [1] or s like 'a' or s startswith 'b' or s matches 'c' or has(y))": [
        "x not in [1] & s not like 'a' & s not startswith 'b' & s not matches 'c' & not has(y)"
    ],
    "a and true": ["a"],
    "a or true": [""],
    "true": [""],
    "not false or a": [""],
    "a and not true": [],
    "false": [],
    "(a or false) and (b or not true)": ["a & b"],
    "not (a and true) or false": ["not a"],
    "a and b and a": ["a & b"],
    "a and (a or b)": ["a"],
    "a or a and b": ["a"],
    "a and b or b and a": ["a & b"],
    "x == 1 or x == 1.0": ["x == 1", "x == 1.0"],
}


@pytest.mark.parametrize("text", CLAUSES)
def test_clauses(text: str) -> None:
    assert [" & ".join(map(to_text, clause)) for clause in normalise(parse(text))] == CLAUSES[text]


def test_the_size_is_known_before_it_is_built() -> None:
    text = " and ".join(f"(a{i} or b{i})" for i in range(20))
    with pytest.raises(ProfileError, match="1,048,576 clauses, at most 64") as caught:
        normalise(parse(text))
    assert caught.value.code == "too-many-clauses"
    with pytest.raises(ProfileError, match="more than a billion"):
        normalise(parse(" and ".join(f"(a{i} or b{i})" for i in range(2_000))))
    assert len(normalise(parse(" or ".join(f"x == {i}" for i in range(64))))) == 64
    with pytest.raises(ProfileError, match="65 clauses"):
        normalise(parse(" or ".join(f"x == {i}" for i in range(65))))
    assert len(normalise(parse("(a or b) and (c or d)"), limit=4)) == 4
    with pytest.raises(ProfileError, match="4 clauses, at most 3"):
        normalise(parse("(a or b) and (c or d)"), limit=3)


def test_depth_and_bad_constants_are_errors_of_the_profile() -> None:
    tree: Condition = Compare("==", Attribute("x"), Literal(1))
    for i in range(5_000):
        tree = Not((And if i % 2 else Or)((tree, tree)))
    with pytest.raises(ProfileError, match="too-deep"):
        normalise(tree)
    with pytest.raises(ProfileError, match="not-a-condition"):
        normalise(Truth(Literal(5)))


def truth(condition: Condition, values: dict[str, float | None], negated: bool = False) -> bool:
    """The meaning by the book: negation pushed down, a predicate without a value is false either way."""
    if isinstance(condition, Not):
        return truth(condition.item, values, not negated)
    if isinstance(condition, And | Or):
        join = all if isinstance(condition, And) is not negated else any
        return join(truth(item, values, negated) for item in condition.items)
    if isinstance(condition, Between):
        low = truth(Compare(">=", condition.value, condition.low), values, negated)
        high = truth(Compare("<=", condition.value, condition.high), values, negated)
        return (low or high) if negated else (low and high)
    if isinstance(condition, Truth):
        assert isinstance(condition.operand, Literal)
        return condition.operand.value is not negated
    assert isinstance(condition, Compare)
    sides = [values[e.name] if isinstance(e, Attribute) else e.value for e in (condition.left, condition.right)]  # type: ignore[union-attr]
    left, right = sides
    if left is None or right is None or left != left or right != right:
        return False
    results = {"==": left == right, "!=": left != right, "<": left < right, "<=": left <= right}  # type: ignore[operator]
    results |= {">": not results["<="], ">=": not results["<"]}
    return results[condition.op] is not negated


names = st.sampled_from("xy").map(Attribute)
sides = names | st.integers(0, 2).map(Literal)
comparisons = st.builds(Compare, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), sides, sides)
small = st.recursive(
    comparisons | st.builds(Between, names, sides, sides) | st.booleans().map(lambda value: Truth(Literal(value))),
    lambda inner: (
        st.builds(Not, inner)
        | st.lists(inner, min_size=2, max_size=3).map(lambda items: And(tuple(items)))
        | st.lists(inner, min_size=2, max_size=3).map(lambda items: Or(tuple(items)))
    ),
    max_leaves=8,
)


@given(small)
def test_the_clauses_mean_the_condition(condition: Condition) -> None:
    clauses = normalise(condition, limit=10_000)
    for x, y in product([None, float("nan"), 0, 1, 2.5], repeat=2):
        values = {"x": x, "y": y}
        found = any(all(truth(predicate, values) for predicate in clause) for clause in clauses)
        assert found == truth(condition, values)


@given(conditions)
def test_only_predicates_and_their_negations_remain(condition: Condition) -> None:
    for clause in normalise(condition, limit=100_000):
        for predicate in clause:
            inner = predicate.item if isinstance(predicate, Not) else predicate
            assert not isinstance(inner, And | Or | Not | Between)
            assert not (isinstance(predicate, Not) and isinstance(inner, Compare))
