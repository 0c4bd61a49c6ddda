"""The canonical text of a tree, with as few parentheses as the tree allows.

Guarantees ``parse(to_text(tree)) == tree`` for every well-formed tree, however it was made. A tree that the text
form cannot say (an empty name, a lone surrogate) is refused with a :class:`ProfileError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import cast

from tamis.errors import ProfileError
from tamis.model.language import defect, is_plain_name
from tamis.model.tree import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Compare,
    Condition,
    Context,
    Covers,
    Effect,
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
    Scalar,
    StartsWith,
    Truth,
    Within,
)

_SUM, _PRODUCT, _UNARY, _LEAF = 1, 2, 3, 4
_POWER = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WORDS = {
    Member: "in",
    Like: "like",
    StartsWith: "startswith",
    Matches: "matches",
    Within: "within",
    Covers: "covers",
    Between: "between",
}


def to_text(tree: Condition | Expression) -> str:
    """The canonical text of a condition or of an expression. Runtime complexity: O(size of the tree)."""
    try:
        return _text(tree, 0)
    except RecursionError:
        raise ProfileError("too-deep", "the tree is nested too deeply to be printed") from None


def effects_to_text(effects: Iterable[Effect]) -> str:
    """The canonical text of effects: ``ctx.stock -= quantity; ctx.seen = 1``."""
    return "; ".join(_effect(effect) for effect in effects)


def scalar_to_text(value: Scalar) -> str:
    """A constant as it is written in a profile."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, datetime):
        return time_to_text(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"number '{value}'"
    return repr(value)


def time_to_text(value: datetime) -> str:
    """``date '2024-01-31'`` at midnight, else ``timestamp '2024-01-31T12:00:00Z'``."""
    if not (value.hour or value.minute or value.second or value.microsecond):
        return f"date '{value.date().isoformat()}'"
    return f"timestamp '{value.replace(tzinfo=None).isoformat()}Z'"


def name_to_text(name: str) -> str:
    """A name, in backticks when it needs them."""
    return name if is_plain_name(name) else "`" + name.replace("`", "``") + "`"


def _text(node: Node, power: int) -> str:
    # One frame per level of the tree: the parser's limits then keep this far from Python's.
    wrong = defect(node)
    if wrong is not None:
        raise ProfileError(wrong[0], wrong[1])
    kind = type(node)
    if kind is Attribute:
        return name_to_text(cast("Attribute", node).name)
    if kind is Literal:
        return scalar_to_text(cast("Literal", node).value)
    if isinstance(node, Context):
        return "ctx." + (node.name if _plain_after_ctx(node.name) else "`" + node.name.replace("`", "``") + "`")
    if isinstance(node, Compare):
        return f"{_text(node.left, 0)} {node.op} {_text(node.right, 0)}"
    if isinstance(node, And):
        return " and ".join([f"({_text(i, 0)})" if isinstance(i, And | Or) else _text(i, 0) for i in node.items])
    if isinstance(node, Or):
        return " or ".join([f"({_text(i, 0)})" if isinstance(i, Or) else _text(i, 0) for i in node.items])
    if isinstance(node, Not):
        item = node.item
        if type(item) in _WORDS:
            # The negation is written inside the predicate: power -1 asks for it.
            return _text(item, -1)
        return f"not ({_text(item, 0)})" if isinstance(item, And | Or) else f"not {_text(item, 0)}"
    if isinstance(node, Between):
        word = "not between" if power < 0 else "between"
        return f"{_text(node.value, 0)} {word} {_text(node.low, 0)} and {_text(node.high, 0)}"
    if isinstance(node, Member | Like | StartsWith | Matches | Within | Covers):
        word = "not " + _WORDS[type(node)] if power < 0 else _WORDS[type(node)]
        right = (
            node.collection
            if isinstance(node, Member)
            else node.prefix
            if isinstance(node, StartsWith)
            else node.category
            if isinstance(node, Within | Covers)
            else node.pattern
        )
        return f"{_text(node.value, 0)} {word} {_text(right, 0)}"
    if isinstance(node, Has):
        return f"has({_text(node.operand, 0)})"
    if isinstance(node, Truth):
        return _text(node.operand, 0)
    if isinstance(node, Parameter):
        return f"{{{node.name}}}"
    if isinstance(node, Items):
        return "[" + ", ".join([_text(item, 0) for item in node.items]) + "]"
    if isinstance(node, Function):
        return f"{node.name}({', '.join([_text(argument, 0) for argument in node.arguments])})"
    if isinstance(node, Negative):
        inner = node.operand
        text = _text(inner, 0)
        if isinstance(inner, Attribute | Context | Parameter | Function):
            return f"-{text}"
        # Signs one after the other stay so: parentheses would make the text deeper than the one it came from.
        return f"- {text}" if isinstance(inner, Negative | Literal) and text.startswith("-") else f"-({text})"
    if isinstance(node, Arithmetic):
        own = _POWER[node.op]
        text = f"{_text(node.left, own)} {node.op} {_text(node.right, own + 1)}"
        return f"({text})" if own < power else text
    raise ProfileError("bad-tree", f"{node!r} is not a node of a profile")


def _effect(effect: Effect) -> str:
    target = Context(effect.target)
    value = effect.value
    if isinstance(value, Arithmetic) and value.left == target:
        return f"{to_text(target)} {value.op}= {to_text(value.right)}"
    return f"{to_text(target)} = {to_text(value)}"


def _plain_after_ctx(name: str) -> bool:
    return is_plain_name("x." + name)


def _quoted(value: str) -> str:
    quote = '"' if "'" in value and '"' not in value else "'"
    body = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    if quote == "'":
        body = body.replace("'", "\\'")
    body = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", body)
    return f"{quote}{body}{quote}"
