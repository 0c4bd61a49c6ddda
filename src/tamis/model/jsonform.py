"""The JSON form of profiles: the same tree, for programs that write profiles.

``quantity <= ctx.stock and not ctx.busy`` is
``{"and": [{"<=": [{"attr": "quantity"}, {"ctx": "stock"}]}, {"not": {"truth": {"ctx": "busy"}}}]}``.

Guarantees ``from_json(to_json(tree)) == tree``, also through ``json.dumps`` and ``json.loads``. Everything that is
not a profile gives a :class:`ProfileError` that names the place as a JSON path (``$.and[1]``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from tamis.errors import ProfileError
from tamis.model.language import MAX_DEPTH, MAX_OPERATORS, MAX_PREDICATES, defect, read_time
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
    Node,
    Not,
    Or,
    Parameter,
    StartsWith,
    Truth,
    Within,
)

N = TypeVar("N", bound="Node")

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_PAIRS: dict[str, Callable[[Expression, Expression], Condition]] = {
    "in": Member,
    "like": Like,
    "startswith": StartsWith,
    "matches": Matches,
    "within": Within,
    "covers": Covers,
}
_NAMES: dict[str, Callable[[str], Expression]] = {"attr": Attribute, "ctx": Context, "param": Parameter}
_CONDITIONS = ("and", "or", "not", *_COMPARISONS, "between", *_PAIRS, "has", "truth")
_EXPRESSIONS = (*_NAMES, "time", "number", "+", "-", "*", "/", "abs", "distance")
_LEVELS = MAX_DEPTH + MAX_OPERATORS + 8


def to_json(tree: Condition) -> dict[str, Any]:
    """The JSON form of a condition, as values that ``json.dumps`` takes."""
    try:
        return _condition_out(tree)
    except RecursionError:
        raise ProfileError("too-deep", "the tree is nested too deeply") from None


def from_json(value: Any) -> Condition:
    """The tree of a JSON form (as ``json.loads`` gives it)."""
    reader = _Reader()
    try:
        return reader.condition(value, "$", 0)
    except RecursionError:
        raise ProfileError("too-deep", "the JSON form is nested too deeply") from None


def _condition_out(node: Condition) -> dict[str, Any]:
    if isinstance(node, Compare):
        return {node.op: [_expression_out(node.left), _expression_out(node.right)]}
    if isinstance(node, And):
        return {"and": [_condition_out(item) for item in node.items]}
    if isinstance(node, Or):
        return {"or": [_condition_out(item) for item in node.items]}
    if isinstance(node, Not):
        return {"not": _condition_out(node.item)}
    if isinstance(node, Between):
        return {"between": [_expression_out(part) for part in (node.value, node.low, node.high)]}
    if isinstance(node, Member):
        return {"in": [_expression_out(node.value), _expression_out(node.collection)]}
    if isinstance(node, Like):
        return {"like": [_expression_out(node.value), _expression_out(node.pattern)]}
    if isinstance(node, StartsWith):
        return {"startswith": [_expression_out(node.value), _expression_out(node.prefix)]}
    if isinstance(node, Matches):
        return {"matches": [_expression_out(node.value), _expression_out(node.pattern)]}
    if isinstance(node, Within | Covers):
        word = "within" if isinstance(node, Within) else "covers"
        return {word: [_expression_out(node.value), _expression_out(node.category)]}
    if isinstance(node, Has):
        return {"has": _expression_out(node.operand)}
    return {"truth": _expression_out(node.operand)}


def _expression_out(node: Expression) -> Any:
    if isinstance(node, Attribute):
        return {"attr": node.name}
    if isinstance(node, Literal):
        value = node.value
        if isinstance(value, datetime):
            return {"time": value.replace(tzinfo=None).isoformat() + "Z"}
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return {"number": str(value)}
        return value
    if isinstance(node, Context):
        return {"ctx": node.name}
    if isinstance(node, Parameter):
        return {"param": node.name}
    if isinstance(node, Items):
        return [_expression_out(item) for item in node.items]
    if isinstance(node, Negative):
        return {"-": [_expression_out(node.operand)]}
    if isinstance(node, Arithmetic):
        return {node.op: [_expression_out(node.left), _expression_out(node.right)]}
    arguments = [_expression_out(argument) for argument in node.arguments]
    return {node.name: arguments if len(arguments) > 1 else arguments[0]}


class _Reader:
    def __init__(self) -> None:
        self.predicates = 0

    def condition(self, value: Any, path: str, depth: int) -> Condition:
        if isinstance(value, dict) and len(value) == 1:
            ((key, inner),) = value.items()
            here = f"{path}.{key}"
            if depth > _LEVELS:
                raise _error("too-deep", path, "nested too deeply")
            if key in ("and", "or"):
                return self.junction(key, inner, here, depth + 1)
            if key == "not":
                return Not(self.condition(inner, here, depth + 1))
            self.predicates += 1
            if self.predicates > MAX_PREDICATES:
                raise _error("too-long", here, f"more than {MAX_PREDICATES:,} predicates in one profile")
            if key in _COMPARISONS:
                left, right = self.expressions(inner, here, 2, depth)
                return _checked(Compare(key, left, right), here)
            if key == "between":
                middle, low, high = self.expressions(inner, here, 3, depth)
                return _checked(Between(middle, low, high), here)
            if key in _PAIRS:
                left, right = self.expressions(inner, here, 2, depth)
                return _checked(_PAIRS[key](left, right), here)
            if key == "has":
                return _checked(Has(self.expression(inner, here, depth + 1)), here)
            if key == "truth":
                return _checked(Truth(self.expression(inner, here, depth + 1)), here)
            if key not in _EXPRESSIONS:
                raise _error("bad-json", path, f"unknown operator {key!r}", _CONDITIONS)
        return _checked(Truth(self.expression(value, path, depth + 1)), path)

    def junction(self, key: str, inner: Any, path: str, depth: int) -> Condition:
        kind = And if key == "and" else Or
        if not isinstance(inner, list) or not inner:
            raise _error("bad-json", path, f"expected a list of conditions, got {_shown(inner)}")
        items: list[Condition] = []
        for i, item in enumerate(inner):
            found = self.condition(item, f"{path}[{i}]", depth)
            items.extend(found.items if isinstance(found, And | Or) and type(found) is kind else [found])
        return kind(tuple(items)) if len(items) > 1 else items[0]

    def expressions(self, inner: Any, path: str, wanted: int, depth: int) -> list[Expression]:
        if not isinstance(inner, list) or len(inner) != wanted:
            raise _error("bad-json", path, f"expected a list of {wanted} values, got {_shown(inner)}")
        return [self.expression(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(inner)]

    def expression(self, value: Any, path: str, depth: int) -> Expression:
        if depth > _LEVELS:
            raise _error("too-deep", path, "nested too deeply")
        if isinstance(value, bool):
            return Literal(value)
        for kind in (int, float, str):
            if isinstance(value, kind):  # subclasses (enums, NumPy floats) become plain values
                return _checked(Literal(kind.__str__(value) if kind is str else kind(value)), path)
        if isinstance(value, list):
            items = [self.expression(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
            return _checked(Items(tuple(items)), path)
        if value is None:
            raise _error("no-null", path, 'there is no null; whether a value is present is asked with {"has": ...}')
        if not isinstance(value, dict) or len(value) != 1:
            raise _error("bad-json", path, f"expected a constant or an object with one key, got {_shown(value)}")
        ((key, inner),) = value.items()
        here = f"{path}.{key}"
        if key in _NAMES:
            if not isinstance(inner, str):
                raise _error("bad-json", here, f"expected a name, got {_shown(inner)}")
            return _checked(_NAMES[key](inner), here)
        if key == "time":
            when = read_time(inner) if isinstance(inner, str) else None
            if when is None:
                raise _error("bad-time", here, f"expected an ISO 8601 date or timestamp, got {_shown(inner)}")
            return Literal(when)
        if key == "number":
            if inner not in ("inf", "-inf", "nan"):
                raise _error("bad-number", here, f"expected 'inf', '-inf' or 'nan', got {_shown(inner)}")
            return Literal(float(inner))
        if key == "-" and isinstance(inner, list) and len(inner) == 1:
            return _checked(Negative(self.expression(inner[0], f"{here}[0]", depth + 1)), here)
        if key in ("+", "-", "*", "/"):
            left, right = self.expressions(inner, here, 2, depth)
            return _checked(Arithmetic(key, left, right), here)
        if key == "abs":
            return _checked(Function(key, (self.expression(inner, here, depth + 1),)), here)
        if key == "distance":
            return _checked(Function(key, tuple(self.expressions(inner, here, 2, depth))), here)
        if key in _CONDITIONS:
            raise _error("not-an-expression", path, f"{key!r} gives a condition, but a value is needed here")
        raise _error("bad-json", path, f"unknown operator {_shown(key)}", _EXPRESSIONS)


def _checked(node: N, path: str) -> N:
    wrong = defect(node)
    if wrong is not None:
        raise _error(wrong[0], path, wrong[1])
    return node


def _error(code: str, path: str, message: str, expected: tuple[str, ...] = ()) -> ProfileError:
    return ProfileError(code, f"{path if len(path) < 200 else path[:197] + '...'}: {message}", expected=expected)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value) if isinstance(value, str | bool | float | None) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
