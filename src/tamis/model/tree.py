"""The predicate tree: what a profile says, as frozen values.

The text form, the JSON form and the Python builder all produce these nodes; the printer, the reference filter
and the engine all read them. A tree knows nothing of schemas, contexts or indexes. Nodes compare by value, so
``parse(print(tree)) == tree`` can be stated as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

Scalar: TypeAlias = "int | float | str | bool | datetime"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. Timestamps are aware ``datetime`` values in UTC; a list constant is :class:`Items`."""

    value: Scalar

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and True are equal in Python but not the same constant here.
        return (
            isinstance(other, Literal)
            and type(self.value) is type(other.value)
            and (self.value == other.value or (self.value != self.value and other.value != other.value))
        )

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of the message: ``quantity``."""

    name: str


@dataclass(frozen=True, slots=True)
class Context:
    """An attribute of the profile's context: ``ctx.stock``."""

    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A hole in a prepared profile: ``{limit}``."""

    name: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list written in the profile: ``['bolt', 'nut']``."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Negative:
    """``-x``. A minus in front of a number literal is part of the literal."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``left op right`` with ``op`` one of ``+ - * /``."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Function:
    """``abs(x)`` or ``distance(a, b)``."""

    name: str
    arguments: tuple[Expression, ...]


Expression: TypeAlias = "Literal | Attribute | Context | Parameter | Items | Negative | Arithmetic | Function"


@dataclass(frozen=True, slots=True)
class Compare:
    """``left op right`` with ``op`` one of ``== != < <= > >=``."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Between:
    """``value between low and high``, both ends included."""

    value: Expression
    low: Expression
    high: Expression


@dataclass(frozen=True, slots=True)
class Member:
    """``value in collection``; the collection is :class:`Items` or a list attribute."""

    value: Expression
    collection: Expression


@dataclass(frozen=True, slots=True)
class Like:
    """``value like 'a%_'`` as in SQL, with backslash as the escape; the pattern is a text literal or parameter."""

    value: Expression
    pattern: Expression


@dataclass(frozen=True, slots=True)
class StartsWith:
    """``value startswith prefix``; the prefix may be any text expression."""

    value: Expression
    prefix: Expression


@dataclass(frozen=True, slots=True)
class Matches:
    """``value matches 'regex'``: RE2, found anywhere in the text; the pattern is a text literal or parameter."""

    value: Expression
    pattern: Expression


@dataclass(frozen=True, slots=True)
class Within:
    """``value within category``: some category of the value is one of the given ones or below one, in their graph.

    ``value`` is a name; ``category`` a text, a list written in the profile, a name or a parameter.
    """

    value: Expression
    category: Expression


@dataclass(frozen=True, slots=True)
class Covers:
    """``value covers category``: some category of the value is one of the given ones or above one, in their graph."""

    value: Expression
    category: Expression


@dataclass(frozen=True, slots=True)
class Has:
    """``has(x)``: the attribute is present."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Truth:
    """A boolean used as a condition: ``ctx.busy``, ``true``, ``{flag}``."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class And:
    """All of at least two conditions; an item is never itself an :class:`And`."""

    items: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of at least two conditions; an item is never itself an :class:`Or`."""

    items: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The negation; its meaning is to push the negation down to the predicates."""

    item: Condition


Predicate: TypeAlias = "Compare | Between | Member | Like | StartsWith | Matches | Within | Covers | Has | Truth"
Condition: TypeAlias = "Predicate | And | Or | Not"
Node: TypeAlias = "Expression | Condition"


@dataclass(frozen=True, slots=True)
class Effect:
    """``ctx.target = value``; ``ctx.stock -= quantity`` is ``Effect("stock", ctx.stock - quantity)``."""

    target: str
    value: Expression


def children(node: Node) -> Iterator[Node]:
    """The direct sub-nodes of a node, in reading order."""
    for name in node.__slots__:
        value = getattr(node, name)
        if type(value) is tuple:
            yield from value
        elif hasattr(value, "__dataclass_fields__"):
            yield value


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, from the right."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        fields = FIELDS.get(type(node))
        if fields is None:
            stack.extend(children(node))
            continue
        for name in fields:  # children(), written out: half the time
            value = getattr(node, name)
            if type(value) is tuple:
                stack.extend(value)
            elif type(value) in FIELDS or hasattr(value, "__dataclass_fields__"):
                stack.append(value)


# The fields of every node that may hold nodes.
FIELDS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((Literal, Attribute, Context, Parameter), ()),
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
    Within: ("value", "category"),
    Covers: ("value", "category"),
    Has: ("operand",),
    Truth: ("operand",),
    And: ("items",),
    Or: ("items",),
    Not: ("item",),
}
