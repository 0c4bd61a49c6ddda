"""Random well-formed trees: whatever text, JSON form or builder can say."""

from __future__ import annotations

import string
from datetime import UTC, datetime

from hypothesis import strategies as st

from tamis.model.tree import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Condition,
    Context,
    Covers,
    Expression,
    Function,
    Has,
    Items,
    Like,
    Literal,
    Matches,
    Member,
    Negative,
    Not,
    Or,
    Parameter,
    StartsWith,
    Truth,
    Within,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["it's", 'say "hi"', "'\"", "a\\b", "\n\t\r", "\x00", "--", "# no", "{x}", "'", "''", "\u2028", "😀"]
)
ODD = "x y order.quantity date timestamp number abs has distance r R is Preis_€ größe and NOT in ctx ctx.x CTX.y null"
words = st.sampled_from([*ODD.split(), "true", "within", "odd name", "`", "a``b", "1x", "x.", "ℵ", "²", "e5"])
names = words | st.text(string.ascii_letters + "._`µ ", min_size=1, max_size=6)
times = st.datetimes(min_value=datetime(1, 1, 1), timezones=st.just(UTC)).map(lambda when: when.replace(fold=0))
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.integers(-3, 3)
scalars = numbers | texts | st.booleans() | times
literals = scalars.map(Literal)
parameters = st.sampled_from(["limit", "odd name", "a.b", "ctx"]).map(Parameter)
attributes = names.map(Attribute) | names.map(Context)
leaves: st.SearchStrategy[Expression] = literals | attributes | parameters


def _expressions(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    lists = st.lists(inner, max_size=3).map(lambda items: Items(tuple(items)))
    positions = lists | attributes | parameters
    return (
        st.builds(Negative, inner)
        | st.builds(Arithmetic, st.sampled_from("+-*/"), inner, inner)
        | inner.map(lambda one: Function("abs", (one,)))
        | st.tuples(positions, positions).map(lambda two: Function("distance", two))
    )


expressions: st.SearchStrategy[Expression] = st.recursive(leaves, _expressions, max_leaves=5)
items = st.lists(expressions, max_size=4).map(lambda given: Items(tuple(given)))
like_patterns = st.sampled_from(["a%", "_", "", "\\%", "it's\\\\", "\n"]).map(Literal) | parameters
regexes = st.sampled_from(["a+", r"^\d{2}$", "", "(?i)x|y", "'"]).map(Literal) | parameters
category_lists = st.lists(texts.map(Literal) | parameters, max_size=3).map(lambda given: Items(tuple(given)))
categories = texts.map(Literal) | attributes | parameters | category_lists
predicates: st.SearchStrategy[Condition] = (
    st.builds(Compare, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), expressions, expressions)
    | st.builds(Between, expressions, expressions, expressions)
    | st.builds(Member, expressions, items | attributes | parameters)
    | st.builds(Like, expressions, like_patterns)
    | st.builds(StartsWith, expressions, expressions)
    | st.builds(Matches, expressions, regexes)
    | st.builds(Within, attributes, categories)
    | st.builds(Covers, attributes, categories)
    | st.builds(Has, attributes)
    | st.builds(Truth, attributes | parameters | st.booleans().map(Literal))
)


def _flat(kind: type[And] | type[Or], given: list[Condition]) -> Condition:
    return kind(tuple(part for one in given for part in (one.items if type(one) is kind else (one,))))  # type: ignore[union-attr]


def _conditions(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(inner, min_size=2, max_size=3)
    return (
        several.map(lambda given: _flat(And, given))
        | several.map(lambda given: _flat(Or, given))
        | st.builds(Not, inner)
    )


conditions: st.SearchStrategy[Condition] = st.recursive(predicates, _conditions, max_leaves=5)
