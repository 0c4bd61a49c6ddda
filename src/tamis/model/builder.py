"""Profiles written in Python: the same trees, without text.

>>> from tamis.model.builder import attr, ctx
>>> from tamis.model.printer import to_text
>>> profile = (attr.quantity <= ctx.stock) & attr.item.is_in(["bolt", "nut"]) & ~ctx.busy.is_true()
>>> to_text(profile.tree)
"quantity <= ctx.stock and item in ['bolt', 'nut'] and not ctx.busy"

Python decides what ``and``, ``or``, ``not`` and chained comparisons mean, so they raise a :class:`TypeError` here
rather than drop half of a condition; ``&``, ``|``, ``~`` and ``between`` say the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any, NoReturn, TypeAlias, TypeVar

from tamis.errors import ProfileError
from tamis.model.language import defect
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

Operand: TypeAlias = "Value | int | float | str | bool | datetime | date"
Clauses: TypeAlias = "Test | Value | bool | Iterable[Test | Value | bool]"
N = TypeVar("N", bound="Node")


class _Built:
    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a profile has no truth value while it is built: use & | ~ for 'and', 'or', 'not' (with parentheses "
            "around comparisons), and .between(lo, hi) for a chained comparison"
        )

    def __contains__(self, item: object) -> NoReturn:
        self.__iter__()

    def __iter__(self) -> NoReturn:
        raise TypeError("a profile cannot be iterated; 'x in collection' is written x.is_in(collection)")


class Test(_Built):
    """A condition. ``&``, ``|`` and ``~`` combine conditions; :attr:`tree` is the result."""

    __slots__ = ("tree",)
    __test__ = False  # pytest: not a test class

    def __init__(self, tree: Condition) -> None:
        self.tree = tree

    def build(self) -> Condition:
        """The tree; the same as :attr:`tree`."""
        return self.tree

    def __and__(self, other: Test | Value | bool) -> Test:
        return all_of(self, other)

    def __rand__(self, other: Test | Value | bool) -> Test:
        return all_of(other, self)

    def __or__(self, other: Test | Value | bool) -> Test:
        return any_of(self, other)

    def __ror__(self, other: Test | Value | bool) -> Test:
        return any_of(other, self)

    def __invert__(self) -> Test:
        return Test(Not(self.tree))

    def __repr__(self) -> str:
        return f"Test({self.tree!r})"


class Value(_Built):
    """An expression: an attribute, a parameter, or arithmetic over them. Comparing it gives a :class:`Test`."""

    __slots__ = ("tree",)

    def __init__(self, tree: Expression) -> None:
        self.tree = tree

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Test:  # type: ignore[override]
        return self._compare("==", other)

    def __ne__(self, other: object) -> Test:  # type: ignore[override]
        return self._compare("!=", other)

    def __lt__(self, other: Operand) -> Test:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Test:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Test:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Test:
        return self._compare(">=", other)

    def __add__(self, other: Operand) -> Value:
        return self._arithmetic("+", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self._arithmetic("+", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self._arithmetic("-", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self._arithmetic("-", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self._arithmetic("*", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self._arithmetic("*", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self._arithmetic("/", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._arithmetic("/", other, self)

    def __neg__(self) -> Value:
        return Value(_checked(Negative(self.tree)))

    def __abs__(self) -> Value:
        return Value(_checked(Function("abs", (self.tree,))))

    def __and__(self, other: Test | Value | bool) -> Test:
        return all_of(self, other)

    def __rand__(self, other: Test | Value | bool) -> Test:
        return all_of(other, self)

    def __or__(self, other: Test | Value | bool) -> Test:
        return any_of(self, other)

    def __ror__(self, other: Test | Value | bool) -> Test:
        return any_of(other, self)

    def __invert__(self) -> Test:
        return ~self.is_true()

    def __repr__(self) -> str:
        return f"Value({self.tree!r})"

    def build(self) -> Condition:
        """The tree of this boolean as a condition."""
        return self.is_true().tree

    def between(self, low: Operand, high: Operand) -> Test:
        """``self between low and high``, both ends included."""
        return _test(Between(self.tree, _expression(low), _expression(high)))

    def is_in(self, collection: Value | Iterable[Operand]) -> Test:
        """``self in collection``: a list attribute, or constants."""
        return _test(Member(self.tree, _collection(collection)))

    def like(self, pattern: str | Value) -> Test:
        """``self like pattern``: ``%`` any run, ``_`` one character, backslash escapes."""
        return _test(Like(self.tree, _expression(pattern)))

    def startswith(self, prefix: str | Value) -> Test:
        """``self startswith prefix``."""
        return _test(StartsWith(self.tree, _expression(prefix)))

    def matches(self, pattern: str | Value) -> Test:
        """``self matches pattern``: an RE2 expression found anywhere in the text."""
        return _test(Matches(self.tree, _expression(pattern)))

    def within(self, category: str | Value | Iterable[str]) -> Test:
        """``self within category``: one of the categories, or below one, in the content graph of the attribute."""
        return _test(Within(self.tree, _categories(category)))

    def covers(self, category: str | Value | Iterable[str]) -> Test:
        """``self covers category``: one of the categories, or above one, in the content graph of the attribute."""
        return _test(Covers(self.tree, _categories(category)))

    def is_true(self) -> Test:
        """A boolean attribute as a condition."""
        return _test(Truth(self.tree))

    def _compare(self, op: str, other: object) -> Test:
        return _test(Compare(op, self.tree, _expression(other)))

    @staticmethod
    def _arithmetic(op: str, left: Operand, right: Operand) -> Value:
        return Value(_checked(Arithmetic(op, _expression(left), _expression(right))))


class Names:
    """Makes a :class:`Value` of a name: ``attr.quantity``, ``attr["odd name"]`` or ``attr("odd name")``."""

    __slots__ = ("_kind",)

    def __init__(self, kind: type[Attribute] | type[Context] | type[Parameter]) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Value:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Value:
        return Value(_checked(self._kind(name)))

    def __call__(self, name: str) -> Value:
        return self[name]

    def __repr__(self) -> str:
        return f"Names({self._kind.__name__})"


attr = Names(Attribute)
ctx = Names(Context)
param = Names(Parameter)


def has(value: Value) -> Test:
    """``has(x)``: the attribute is present."""
    return _test(Has(_expression(value)))


def distance(a: Value | Iterable[float], b: Value | Iterable[float]) -> Value:
    """``distance(a, b)``: the Euclidean distance of two lists of numbers."""
    return Value(_checked(Function("distance", (_collection(a), _collection(b)))))


def all_of(*conditions: Clauses) -> Test:
    """The conjunction of conditions or iterables of conditions; of none: true."""
    return _join(And, conditions)


def any_of(*conditions: Clauses) -> Test:
    """The disjunction of conditions or iterables of conditions; of none: false."""
    return _join(Or, conditions)


def _join(kind: type[And] | type[Or], conditions: Iterable[Clauses]) -> Test:
    items: list[Condition] = []
    for given in conditions:
        for one in [given] if isinstance(given, Test | Value | bool) else _iterated(given):
            tree = _condition(one)
            items.extend(tree.items if isinstance(tree, And | Or) and type(tree) is kind else [tree])
    if not items:
        return Test(Truth(Literal(kind is And)))
    return Test(kind(tuple(items)) if len(items) > 1 else items[0])


def _iterated(given: Any) -> list[Any]:
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return list(given)
    raise TypeError(f"expected a condition such as attr.x > 3, got {type(given).__name__}")


def _condition(given: Any) -> Condition:
    if isinstance(given, Test):
        return given.tree
    if isinstance(given, Value):
        return given.is_true().tree
    if isinstance(given, bool):
        return Truth(Literal(given))
    raise TypeError(f"expected a condition such as attr.x > 3, got {type(given).__name__}")


def _expression(given: Any) -> Expression:
    if isinstance(given, Value):
        return given.tree
    if isinstance(given, Test):
        raise TypeError("a condition cannot be compared or calculated with; combine conditions with & | ~")
    item = getattr(given, "item", None)
    if item is not None and getattr(given, "shape", None) == ():  # a NumPy scalar
        given = item()
    if isinstance(given, bool):
        return Literal(given)
    if isinstance(given, str):
        return _checked(Literal(str.__str__(given)))  # the text itself, also of a text enum
    if isinstance(given, int):
        return _checked(Literal(int(given)))
    if isinstance(given, float):
        return Literal(float(given))
    if isinstance(given, datetime):
        return Literal(given.replace(tzinfo=UTC, fold=0) if given.tzinfo is None else given.astimezone(UTC))
    if isinstance(given, date):
        return Literal(datetime(given.year, given.month, given.day, tzinfo=UTC))
    if given is None:
        raise TypeError("there is no null in a profile; whether a value is present is asked with has(attr.x)")
    raise TypeError(f"a profile takes numbers, texts, booleans and times, not {type(given).__name__}")


def _collection(given: Any) -> Expression:
    if isinstance(given, Value):
        return given.tree
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise TypeError(f"expected a list attribute or an iterable of constants, got {type(given).__name__}")
    return _checked(Items(tuple(_expression(item) for item in given)))


def _categories(given: Any) -> Expression:
    return _expression(given) if isinstance(given, str) else _collection(given)


def _test(tree: Condition) -> Test:
    _checked(tree)
    return Test(tree)


def _checked(node: N) -> N:
    wrong = defect(node)
    if wrong is not None:
        raise ProfileError(*wrong)
    return node
