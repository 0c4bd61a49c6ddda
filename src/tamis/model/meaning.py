"""The meaning of the profile language, one message and one context at a time.

Guarantees to be the definition: plain Python over the tree as it was written, no normal form, no index, no cache but
compiled patterns. The reference filter decides with it and ``explain`` speaks with it. Refuses to know filters and
schemas: it relies on kinds that a schema has already checked, and no engine may decide matches with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias

from tamis.errors import EventError
from tamis.model import tree as t
from tamis.model.categories import Graphs, graph_name, related
from tamis.model.language import compile_regex
from tamis.model.values import Value, from_microseconds, to_microseconds

Values: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Instant:
    """A time while computing: microseconds since the epoch, fractional after arithmetic."""

    microseconds: int | float


Computed: TypeAlias = "int | float | str | bool | Instant | tuple[Any, ...] | None"

NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


_NO_GRAPHS: Graphs = {}


def holds(
    node: t.Condition, message: Values, context: Values, negated: bool = False, graphs: Graphs = _NO_GRAPHS
) -> bool:
    """Whether a condition is true; ``negated`` asks for its negation, pushed down to the predicates."""
    if isinstance(node, t.Not):
        return holds(node.item, message, context, not negated, graphs)
    if isinstance(node, t.And | t.Or):
        verdicts = (holds(item, message, context, negated, graphs) for item in node.items)
        return all(verdicts) if isinstance(node, t.And) != negated else any(verdicts)
    if isinstance(node, t.Compare):
        op = NEGATED[node.op] if negated else node.op
        return compare(op, value(node.left, message, context), value(node.right, message, context))
    if isinstance(node, t.Between):
        x, low, high = (value(side, message, context) for side in (node.value, node.low, node.high))
        if negated:
            return compare("<", x, low) or compare(">", x, high)
        return compare(">=", x, low) and compare("<=", x, high)
    if isinstance(node, t.Has):
        return (value(node.operand, message, context) is not None) != negated
    if isinstance(node, t.Truth):
        return value(node.operand, message, context) is (not negated)
    if isinstance(node, t.Member):
        return _member(value(node.value, message, context), _collection(node, message, context), negated)
    if isinstance(node, t.Like | t.Matches):
        return _text(node, value(node.value, message, context), value(node.pattern, message, context), negated)
    if isinstance(node, t.StartsWith):
        return _text(node, value(node.value, message, context), value(node.prefix, message, context), negated)
    if isinstance(node, t.Within | t.Covers):
        sides = value(node.value, message, context), value(node.category, message, context)
        return _categories(node, *sides, negated, graphs)
    raise TypeError(f"not a condition: {node!r}")


def compare(op: str, left: Computed, right: Computed) -> bool:
    """One comparison; false when a side has no value or is NaN, whatever the operator."""
    if isinstance(left, Instant) and isinstance(right, Instant):
        left, right = left.microseconds, right.microseconds
    if left is None or right is None or left != left or right != right:
        return False
    a: Any = left
    b: Any = right
    if op == "==":
        return bool(a == b)
    if op == "!=":
        return bool(a != b)
    if op == "<":
        return bool(a < b)
    if op == "<=":
        return bool(a <= b)
    if op == ">":
        return bool(a > b)
    return bool(a >= b)


def _collection(node: t.Member, message: Values, context: Values) -> tuple[Computed, ...] | None:
    """The elements to look among; ``None`` when the list, or an element written in the profile, has no value."""
    if not isinstance(node.collection, t.Items):
        found = value(node.collection, message, context)
        return found if isinstance(found, tuple) else None
    elements = tuple(value(item, message, context) for item in node.collection.items)
    return None if None in elements else elements


def _member(x: Computed, collection: tuple[Computed, ...] | None, negated: bool) -> bool:
    if x is None or x != x or collection is None:
        return False
    return any(compare("==", x, element) for element in collection) != negated


def _text(node: t.Like | t.Matches | t.StartsWith, text: Computed, pattern: Computed, negated: bool) -> bool:
    if not isinstance(text, str) or not isinstance(pattern, str):
        return False
    if isinstance(node, t.StartsWith):
        found = text.startswith(pattern)
    elif isinstance(node, t.Like):
        found = like(text, pattern)
    else:
        found = _regex(pattern).search(text) is not None
    return found != negated


def _categories(node: t.Within | t.Covers, value: Computed, category: Computed, negated: bool, graphs: Graphs) -> bool:
    """Any of one side with any of the other: a path exists. A text is a set of one."""
    name = graph_name(node, graphs)
    if value is None or category is None or name is None:
        return False
    left, right = (side if isinstance(side, tuple) else (side,) for side in (value, category))
    above, below = (right, left) if isinstance(node, t.Within) else (left, right)
    return related(graphs[name], above, below) != negated


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> Any:
    return compile_regex(pattern)


@lru_cache(maxsize=4096)
def _like_steps(pattern: str) -> tuple[str | None, ...]:
    """The pattern one code point at a time: ``"%"`` any run, ``None`` any one, ``"=x"`` the code point x."""
    steps: list[str | None] = []
    points = iter(pattern)
    for point in points:
        if point == "\\":
            steps.append("=" + next(points, "\\"))
        else:
            steps.append("%" if point == "%" else None if point == "_" else "=" + point)
    return tuple(steps)


def like(text: str, pattern: str) -> bool:
    """Whether the whole text fits an SQL pattern: ``%`` any run, ``_`` one code point, backslash escapes.

    Greedy with one point of return: the last ``%`` is the only one worth going back to. O(len(text) * len(pattern)).
    """
    steps = _like_steps(pattern)
    at = k = 0
    back, resume = -1, 0
    while at < len(text):
        if k < len(steps) and steps[k] == "%":
            back, resume = k, at
            k += 1
        elif k < len(steps) and (steps[k] is None or steps[k] == "=" + text[at]):
            at, k = at + 1, k + 1
        elif back >= 0:
            resume += 1
            at, k = resume, back + 1
        else:
            return False
    return all(step == "%" for step in steps[k:])


# -- expressions -----------------------------------------------------------------------------------------------


def value(node: t.Expression, message: Values, context: Values) -> Computed:
    """The value of an expression; ``None`` when it has none."""
    if isinstance(node, t.Literal):
        return _inner(node.value)
    if isinstance(node, t.Attribute):
        return _inner(message.get(node.name))
    if isinstance(node, t.Context):
        return _inner(context.get(node.name))
    if isinstance(node, t.Items):
        return tuple(value(item, message, context) for item in node.items)
    if isinstance(node, t.Negative):
        return _double(value(node.operand, message, context), lambda x: -x)
    if isinstance(node, t.Arithmetic):
        return _arithmetic(node.op, value(node.left, message, context), value(node.right, message, context))
    if isinstance(node, t.Function) and node.name == "abs":
        return _double(value(node.arguments[0], message, context), abs)
    if isinstance(node, t.Function) and node.name == "distance":
        a, b = (value(argument, message, context) for argument in node.arguments)
        return _distance(a, b)
    raise TypeError(f"cannot be evaluated: {node!r}")


def outer(computed: Computed) -> Value | None:
    """A computed value as the context stores it: times are floored to microseconds, NaN is no value.

    Raises :class:`EventError` for a time out of range.
    """
    if isinstance(computed, Instant):
        return from_microseconds(computed.microseconds)
    if computed is None or computed != computed:
        return None
    if isinstance(computed, tuple):
        return tuple(from_microseconds(x.microseconds) if isinstance(x, Instant) else x for x in computed)
    return computed


def _inner(stored: Value | None) -> Computed:
    if isinstance(stored, datetime):
        return Instant(to_microseconds(stored))
    if isinstance(stored, tuple):
        return tuple(_inner(item) for item in stored)
    return stored


def _double(x: Computed, function: Any) -> float | None:
    return _number(function(float(x))) if isinstance(x, int | float) else None


def _number(result: float) -> float | None:
    return None if math.isnan(result) else result


def _arithmetic(op: str, left: Computed, right: Computed) -> Computed:
    """``+ - * /`` on doubles. A time with a number is a time, a time minus a time is seconds."""
    if left is None or right is None:
        return None
    if isinstance(left, Instant) and isinstance(right, Instant):
        seconds = (float(left.microseconds) - float(right.microseconds)) / 1e6
        return _number(seconds)
    if isinstance(left, Instant) or isinstance(right, Instant):
        a = float(left.microseconds) if isinstance(left, Instant) else float(left) * 1e6  # type: ignore[arg-type]
        b = float(right.microseconds) if isinstance(right, Instant) else float(right) * 1e6  # type: ignore[arg-type]
        moved = a + b if op == "+" else a - b
        return None if math.isnan(moved) else Instant(moved)
    x, y = float(left), float(right)  # type: ignore[arg-type]
    if op == "+":
        return _number(x + y)
    if op == "-":
        return _number(x - y)
    if op == "*":
        return _number(x * y)
    return None if y == 0 else _number(x / y)


def _distance(a: Computed, b: Computed) -> float | None:
    if not isinstance(a, tuple) or not isinstance(b, tuple) or len(a) != len(b) or None in a or None in b:
        return None
    total = 0.0
    for x, y in zip(a, b, strict=True):
        difference = float(x) - float(y)
        total += difference * difference
    return _number(math.sqrt(total)) if not math.isnan(total) else None


def assigned(effect: t.Effect, message: Values, context: Values) -> Value:
    """The value an effect assigns; :class:`EventError` says why there is none."""
    result = outer(value(effect.value, message, context))
    if result is None:
        why = missing(effect.value, message, context)
        raise EventError(f"ctx.{effect.target}: there is no value to assign: {why}")
    return result


def missing(node: t.Node, message: Values, context: Values) -> str:
    """Why a node has no value: the first absent attribute, else that the computation has no result."""
    for leaf in _leaves(node):
        if isinstance(leaf, t.Attribute) and leaf.name not in message:
            return f"the message has no {leaf.name}"
        if isinstance(leaf, t.Context) and leaf.name not in context:
            return f"the context has no {leaf.name}"
    return "the computation has no result (division by zero, NaN, or lists of different lengths)"


def _leaves(node: t.Node) -> list[t.Attribute | t.Context]:
    if isinstance(node, t.Attribute | t.Context):
        return [node]
    return [leaf for child in t.children(node) for leaf in _leaves(child)]
