"""Profiles that differ in their constants only are parsed once.

:func:`lift` takes the numbers, texts and booleans out of a profile text, looks the rest (its *shape*) up in a
bounded cache, and returns the shared tree with the constants beside it. Guarantees:
``substitute(tree, {"#0": values[0], ...}) == parse(text)``. Patterns, times and the items of lists stay in the
shape, because what is done with them once per shape (compiling, sorting) depends on their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar, cast

from tamis.errors import ProfileError
from tamis.model.language import INT_MAX, Parser, number, parse, readable, scan, string
from tamis.model.tree import (
    And,
    Arithmetic,
    Between,
    Compare,
    Condition,
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
    Scalar,
    StartsWith,
    Truth,
)

MAX_SHAPES = 100_000
MAX_CHARACTERS = 64_000_000

N = TypeVar("N", bound="Node")
Shape: TypeAlias = "tuple[str, Condition, tuple[Scalar, ...]]"

_DIGIT, _QUOTE, _OPEN, _WORD = 1, 2, 3, 4
# What the loop has to look at, by first character; every other token goes into the key as it is.
_FIRST = {**dict.fromkeys("0123456789.", _DIGIT), "'": _QUOTE, '"': _QUOTE, "[": _OPEN, "(": _OPEN}
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_PINNED = frozenset({"like", "startswith", "matches", "date", "timestamp", "number"})
_CALLED = frozenset({"date", "timestamp", "number"})
# After one of these a minus belongs to the number that follows it.
_BEFORE_OPERAND = frozenset(
    {
        *("", "(", "[", ",", "+", "-", "*", "/", "!", "&&", "||", "==", "=", "!=", "<>", "<", "<=", ">", ">="),
        *("and", "or", "not", "between", "in", "like", "startswith", "matches"),
    }
)


class Shapes:
    """A bounded cache of shapes; the oldest are dropped first."""

    __slots__ = ("_characters", "_trees", "max_characters", "max_shapes")

    def __init__(self, max_shapes: int = MAX_SHAPES, max_characters: int = MAX_CHARACTERS) -> None:
        self.max_shapes = max_shapes
        self.max_characters = max_characters
        self._trees: dict[str, Condition] = {}
        self._characters = 0

    def __len__(self) -> int:
        return len(self._trees)

    def lift(self, text: str) -> Shape:
        """Key, tree with parameters ``#0``, ``#1``, ... and the constants in their order.

        Raises what :func:`parse` raises. Runtime complexity: O(tokens), without building a tree on a hit.
        """
        readable(text)
        tokens = scan(text)
        values: list[Scalar] = []
        parts: list[str] = []
        previous = ""
        inside = 0
        for token in tokens:
            if inside:  # a list, which stays in the key
                inside += (token == "[" or token == "(") - (token == "]" or token == ")")
                parts.append(token)
                previous = token
                continue
            what = _FIRST.get(token[:1])
            if what is None:
                if token in _BOOLEANS:
                    values.append(_BOOLEANS[token])
                    token = "?b"
            elif what == _OPEN:
                inside = int(token == "[" or previous.lower() == "in")
            elif previous.lower() not in _PINNED and not (
                previous == "(" and len(parts) > 1 and parts[-2].lower() in _CALLED
            ):
                value = number(token) if what == _DIGIT and token != "." else string(token) if what == _QUOTE else None
                if what == _DIGIT:
                    if type(value) is str or value is None:
                        return self._refuse(text)
                    if previous == "-" and (len(parts) < 2 or _before_operand(parts[-2])):
                        parts.pop()
                        value = -cast("float", value)
                    elif type(value) is int and value > INT_MAX:
                        return self._refuse(text)
                    token = "?n"
                else:
                    if value is None:
                        return self._refuse(text)
                    token = "?s"
                values.append(value)
            parts.append(token)
            previous = token
        # No text has a token such as "?n", and texts and names delimit themselves: equal keys, equal tokens.
        key = " ".join(parts).rstrip(" ")
        tree = self._trees.get(key)
        if tree is None:
            tree = self._add(key, text, parts)
        return key, tree, tuple(values)

    def _add(self, key: str, text: str, parts: list[str]) -> Condition:
        parse(text)
        tokens: list[str] = []
        lifted = 0
        for part in parts:
            if part in ("?n", "?s", "?b"):
                # Without the closing brace: no text has such a token.
                part = f"{{#{lifted}"
                lifted += 1
            tokens.append(part)
        tree = Parser(text, tokens).profile()
        if len(key) <= self.max_characters // 100:
            if len(self._trees) >= self.max_shapes or self._characters + len(key) > self.max_characters:
                for old in list(self._trees)[: max(1, len(self._trees) // 8)]:
                    if self._trees.pop(old, None) is not None:
                        self._characters -= len(old)
            self._trees[key] = tree
            self._characters += len(key)
        return tree

    def _refuse(self, text: str) -> Shape:
        return text, parse(text), ()


def _before_operand(part: str) -> bool:
    return part in _BEFORE_OPERAND or part.lower() in _BEFORE_OPERAND


def substitute(tree: N, values: Mapping[str, Scalar | Sequence[Scalar]]) -> N:
    """The tree with each parameter that ``values`` names exchanged for its constant; the others stay.

    A list or tuple becomes a list constant. Parts without such parameters are shared, not copied.
    """
    try:
        return cast("N", _substitute(tree, values))
    except RecursionError:
        raise ProfileError("too-deep", "the tree is nested too deeply") from None


def _substitute(node: Node, values: Mapping[str, Scalar | Sequence[Scalar]]) -> Node:
    if isinstance(node, Parameter):
        if node.name not in values:
            return node
        value = values[node.name]
        return Items(tuple(map(Literal, value))) if isinstance(value, list | tuple) else Literal(cast("Scalar", value))
    names = _FIELDS.get(type(node))
    if names is None:
        return node
    changed: dict[str, object] = {}
    for name in names:
        old = getattr(node, name)
        new: object
        if type(old) is tuple:
            new = tuple([_substitute(item, values) for item in old])
            if all(a is b for a, b in zip(old, new, strict=True)):
                continue
        else:
            new = _substitute(old, values)
            if new is old:
                continue
        changed[name] = new
    return replace(node, **changed) if changed else node  # type: ignore[arg-type]


_FIELDS: dict[type, tuple[str, ...]] = {
    Items: ("items",),
    Negative: ("operand",),
    Arithmetic: ("left", "right"),
    Function: ("arguments",),
    Compare: ("left", "right"),
    Between: ("value", "low", "high"),
    Member: ("value", "collection"),
    Like: ("value", "pattern"),
    StartsWith: ("value", "prefix"),
    Matches: ("value", "pattern"),
    Has: ("operand",),
    Truth: ("operand",),
    And: ("items",),
    Or: ("items",),
    Not: ("item",),
}

_SHARED = Shapes()


def lift(text: str) -> Shape:
    """:meth:`Shapes.lift` on the cache of the process."""
    return _SHARED.lift(text)
