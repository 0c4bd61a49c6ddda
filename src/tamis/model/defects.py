"""What no text could have given: defects of single nodes, of like patterns and of regular expressions.

The parser asks about patterns; trees made by other means (JSON form, builder) are asked node by node.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import re2

from tamis.model.tokens import FUNCTIONS, INT_MAX, INT_MIN, SURROGATE
from tamis.model.tree import (
    Attribute,
    Context,
    Covers,
    Function,
    Has,
    Items,
    Like,
    Literal,
    Matches,
    Member,
    Node,
    Parameter,
    Truth,
    Within,
    children,
)

MAX_ITEMS: Final = 10_000
MAX_REGEX: Final = 1_000

COLLECTIONS: Final = frozenset({Items, Attribute, Context, Parameter})
RANGE: Final = ("number-range", "the number is out of range (integers have 64 bits, others are doubles)")


def defect(node: Node) -> tuple[str, str] | None:
    """Code and reason if one node, apart from its children, could not have come from the text form.

    For trees made by other means (JSON form, builder). Depth and size are not looked at.
    """
    if isinstance(node, Attribute | Context | Parameter):
        what = type(node).__name__.lower()
        if not isinstance(node.name, str) or not node.name:
            return ("empty-name", f"the name of a {what} is a text with at least one character")
        if SURROGATE.search(node.name):
            return ("bad-character", f"the name {node.name!r} holds a lone surrogate, which is not text")
        if isinstance(node, Parameter) and (node.name != node.name.strip() or set(node.name) & set("{}\r\n")):
            return ("bad-parameter", f"{node.name!r} cannot be the name of a parameter")
    elif isinstance(node, Literal):
        value = node.value
        if isinstance(value, str) and SURROGATE.search(value):
            return ("bad-character", f"the text {value!r} holds a lone surrogate, which is not text")
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            return RANGE
        if isinstance(value, datetime) and value.tzinfo is not UTC:
            return ("bad-time", f"{value!r} is not in UTC")
    elif isinstance(node, Items):
        if any(isinstance(item, Items) for item in node.items):
            return ("misplaced-list", "a list cannot hold lists")
        if len(node.items) > MAX_ITEMS:
            return ("too-long", f"a list has at most {MAX_ITEMS:,} items, this one has {len(node.items):,}")
    elif isinstance(node, Function):
        if FUNCTIONS.get(node.name) != len(node.arguments) or node.name == "has":
            return ("unknown-function", f"there is no function {node.name} of {len(node.arguments)} arguments")
        if node.name == "distance" and any(type(a) not in COLLECTIONS for a in node.arguments):
            return ("bad-argument", "distance takes two lists of numbers")
    elif isinstance(node, Member):
        if type(node.collection) not in COLLECTIONS:
            return ("bad-list", "'in' takes a list or the name of one")
    elif isinstance(node, Like | Matches):
        pattern = node.pattern
        if not isinstance(pattern, Parameter) and not (isinstance(pattern, Literal) and isinstance(pattern.value, str)):
            return ("bad-pattern", "the pattern is a text constant or a parameter")
        if isinstance(pattern, Literal):
            return pattern_defect(isinstance(node, Matches), str(pattern.value))
    elif isinstance(node, Within | Covers):
        return category_defect(node)
    elif isinstance(node, Has):
        if not isinstance(node.operand, Attribute | Context):
            return ("bad-argument", "has(...) takes the name of an attribute")
    elif isinstance(node, Truth):
        literal = isinstance(node.operand, Literal) and isinstance(node.operand.value, bool)
        if not literal and not isinstance(node.operand, Attribute | Context | Parameter):
            return ("not-a-condition", "only a name, a parameter, true or false is a condition by itself")
    if any(isinstance(child, Items) for child in children(node) if not isinstance(node, Member | Function | Items)) or (
        isinstance(node, Member) and isinstance(node.value, Items)
    ):
        return ("misplaced-list", "a list can stand after 'in' and in distance(...) only")
    return None


def category_defect(node: Within | Covers) -> tuple[str, str] | None:
    """Code and reason if the sides of a predicate on a content graph are not names and categories."""
    word = type(node).__name__.lower()
    if type(node.value) not in (Attribute, Context):
        return ("bad-category", f"left of '{word}' stands the name of an attribute")
    if type(node.category) is Items:
        if not all(type(item) in (Literal, Parameter) for item in node.category.items):
            return ("bad-category", f"the list after '{word}' holds texts and parameters only")
    elif type(node.category) not in (Attribute, Context, Parameter, Literal):
        return ("bad-category", f"'{word}' takes a category, a list of categories or the name of an attribute")
    return None


def pattern_defect(regex: bool, pattern: str) -> tuple[str, str] | None:
    """Code and reason if a like pattern, or a regular expression, is not valid."""
    if regex:
        reason = regex_defect(pattern)
        return None if reason is None else ("bad-regex", f"RE2 refuses the regular expression: {reason}")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        return ("bad-pattern", "the pattern ends with a backslash that escapes nothing")
    return None


@lru_cache(maxsize=4096)
def regex_defect(pattern: str) -> str | None:
    """Why RE2 refuses a pattern, or None when it accepts it."""
    if len(pattern) > MAX_REGEX:
        return f"the pattern is longer than {MAX_REGEX} characters"
    try:
        compile_regex(pattern)
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else "invalid"
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return None


def compile_regex(pattern: str) -> Any:
    """The compiled RE2 pattern, with the options under which profiles are checked."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    return re2.compile(pattern, options)
