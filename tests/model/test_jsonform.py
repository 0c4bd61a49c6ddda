from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_trees import conditions

from tamis.errors import ProfileError
from tamis.model.jsonform import from_json, to_json
from tamis.model.language import parse
from tamis.model.tree import Condition


@given(conditions)
def test_the_json_form_comes_back_through_text(tree: Condition) -> None:
    assert from_json(to_json(tree)) == tree
    assert from_json(json.loads(json.dumps(to_json(tree), allow_nan=False))) == tree


def test_the_form_reads_like_the_profile() -> None:
    text = "quantity <= ctx.stock and not ctx.busy and (item in ['bolt', {other}] or -x < abs(y - 1.5))"
    form = {
        "and": [
            {"<=": [{"attr": "quantity"}, {"ctx": "stock"}]},
            {"not": {"truth": {"ctx": "busy"}}},
            {
                "or": [
                    {"in": [{"attr": "item"}, ["bolt", {"param": "other"}]]},
                    {"<": [{"-": [{"attr": "x"}]}, {"abs": {"-": [{"attr": "y"}, 1.5]}}]},
                ]
            },
        ]
    }
    assert to_json(parse(text)) == form
    assert from_json(form) == parse(text)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"ctx": "busy"}, "ctx.busy"),
        (True, "true"),
        ({"and": [{"and": [{"attr": "a"}, {"attr": "b"}]}, {"attr": "c"}]}, "a and b and c"),
        ({"or": [{"has": {"attr": "a"}}]}, "has(a)"),
        ({"<": [{"attr": "t"}, {"time": "2024-01-31"}]}, "t < date '2024-01-31'"),
        ({"<": [{"distance": [{"attr": "p"}, [1, 2.0]]}, {"number": "inf"}]}, "distance(p, [1, 2.0]) < number 'inf'"),
    ],
)
def test_shorter_spellings(form: Any, text: str) -> None:
    assert from_json(form) == parse(text)


@pytest.mark.parametrize(
    ("form", "code", "message"),
    [
        ({"and": [{"attr": "a"}, {"<": [1]}]}, "bad-json", "$.and[1].<: expected a list of 2 values, got a list of 1"),
        ({"nand": []}, "bad-json", "$: unknown operator 'nand'"),
        ({"<": [{"atr": "x"}, 1]}, "bad-json", "$.<[0]: unknown operator 'atr'"),
        ({"==": [{"attr": "x"}, None]}, "no-null", "$.==[1]: there is no null"),
        ({"==": [{"attr": "x"}, {"has": {"attr": "y"}}]}, "not-an-expression", "$.==[1]: 'has' gives a condition"),
        ({"matches": [{"attr": "x"}, "("]}, "bad-regex", "$.matches: RE2 refuses"),
        ({"like": [{"attr": "x"}, {"attr": "y"}]}, "bad-pattern", "$.like: the pattern is a text constant"),
        ({"in": [{"attr": "x"}, 5]}, "bad-list", "$.in: 'in' takes a list"),
        ({"==": [{"attr": "x"}, [1]]}, "misplaced-list", "$.==: a list can stand after 'in'"),
        ({"in": [{"attr": "x"}, [[1]]]}, "misplaced-list", "$.in[1]: a list cannot hold lists"),
        ({"==": [{"attr": "x"}, 2**63]}, "number-range", "$.==[1]: "),
        ({"<": [{"attr": "x"}, {"time": "yesterday"}]}, "bad-time", "$.<[1].time: expected an ISO 8601"),
        ({"and": []}, "bad-json", "$.and: expected a list of conditions"),
        ({"attr": ""}, "empty-name", "$.attr: "),
        ({"attr": 5}, "bad-json", "$.attr: expected a name, got int"),
        ({"+": [1, 2]}, "not-a-condition", "$: only a name"),
        ({"a": 1, "b": 2}, "bad-json", "$: expected a constant or an object with one key, got an object with 2 keys"),
        (5, "not-a-condition", "$: only a name"),
        (None, "no-null", "$: "),
    ],
)
def test_errors_say_the_path(form: Any, code: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        from_json(form)
    assert caught.value.code == code
    assert caught.value.message.startswith(message)


keys = st.sampled_from(["and", "or", "not", "==", "in", "like", "has", "attr", "ctx", "time", "-", "abs", "truth", "?"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=2),
)


@given(anything)
def test_anything_gives_a_tree_or_a_profile_error(form: Any) -> None:
    try:
        tree = from_json(form)
    except ProfileError as error:
        assert error.code
    else:
        assert from_json(to_json(tree)) == tree


def test_depth_is_an_error_of_the_profile() -> None:
    form: Any = {"attr": "x"}
    for _ in range(100_000):
        form = {"not": form}
    with pytest.raises(ProfileError, match="too-deep"):
        from_json(form)
