"""Inference of kinds: variables, and one attempt to change them.

Guarantees that an attempt is all or nothing: every step is on a trail that can be taken back. A kind not yet known is
a variable of a union-find; it carries the set of kinds it may still become, as a bit mask. Refuses to know values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from tamis.errors import EventError, ProfileError, UsageError
from tamis.model import tree as t
from tamis.model.categories import Graphs, graph_name, unknown_category
from tamis.model.values import (
    BOOLEAN,
    CATEGORIES,
    LIST,
    LIST_OF,
    NUMBER,
    SCALAR_KIND,
    TEXT,
    TIME,
    Kind,
    normalise,
    shown,
)

# A set of kinds is a bit mask.
_N, _T, _B, _I, _L = 1, 2, 4, 8, 16
_SCALAR, _ORDERED, _ANY = _N | _T | _B | _I, _N | _T | _I, 31
BIT: Final[dict[str, int]] = {"number": _N, "text": _T, "boolean": _B, "time": _I, "list": _L}
_KIND: Final[dict[int, Kind]] = {_N: NUMBER, _T: TEXT, _B: BOOLEAN, _I: TIME, _L: LIST}

_PLUS: Final = ((_N, _N, _N), (_I, _N, _I), (_N, _I, _I))
_MINUS: Final = ((_N, _N, _N), (_I, _I, _N), (_I, _N, _I))
EQUALITY: Final = frozenset(("==", "!="))


class Variable:
    """A kind that may still be open: a set of kinds, and the element variable of a list.

    ``either`` says that the kind is settled as text or a list of text, whatever comes.
    """

    __slots__ = ("either", "element", "evidence", "mask", "parent", "size")

    def __init__(self, mask: int, evidence: str = "", element: Variable | None = None) -> None:
        self.parent: Variable | None = None
        self.mask = mask
        self.element = element
        self.evidence = evidence
        self.size = 1
        self.either = False


class Clash(Exception):
    """Two sets of kinds without a common member."""


def find(variable: Variable) -> Variable:
    while variable.parent is not None:
        variable = variable.parent
    return variable


def kind_of_variable(variable: Variable) -> Kind | None:
    """The kind of a variable, ``None`` while several are possible."""
    root = find(variable)
    if root.either:
        return CATEGORIES
    if root.mask == _L:
        return LIST_OF[None if root.element is None else kind_of_variable(root.element)]
    return _KIND.get(root.mask)


def phrase(variable: Variable) -> str:
    kind = kind_of_variable(variable)
    if kind is not None:
        return kind.phrase
    mask = find(variable).mask
    return " or ".join(k.phrase for bit, k in _KIND.items() if mask & bit)


def message_name(attribute: str) -> str:
    """The schema's name of a message attribute; one that looks like a context attribute is put in backticks."""
    return f"`{attribute}`" if attribute.startswith(("ctx.", "`")) else attribute


def context_name(attribute: str) -> str:
    """The schema's name of a context attribute: ``ctx.stock``."""
    return f"ctx.{attribute}"


def _describe(node: t.Node) -> str:
    if isinstance(node, t.Attribute):
        return node.name
    if isinstance(node, t.Context):
        return context_name(node.name)
    if isinstance(node, t.Parameter):
        return f"{{{node.name}}}"
    if isinstance(node, t.Literal):
        return shown(node.value)
    if isinstance(node, t.Negative):
        return f"-{_describe(node.operand)}"
    if isinstance(node, t.Arithmetic):
        return f"{_describe(node.left)} {node.op} {_describe(node.right)}"
    if isinstance(node, t.Function):
        return f"{node.name}({', '.join(map(_describe, node.arguments))})"
    if isinstance(node, t.Items):
        return "the list"
    return type(node).__name__.lower()


class Attempt:
    """One attempt to change the schema; :meth:`undo` takes every step back, in reverse."""

    def __init__(
        self,
        variables: dict[str, Variable],
        evidence: str,
        parameters: Mapping[str, Kind] | None = None,
        profile: str | int | None = None,
        graphs: Graphs | None = None,
        bound: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        self._graphs = graphs or {}
        self._bound = {} if bound is None else bound
        self._variables = variables
        self._evidence = evidence
        self._profile = profile
        self._given = parameters or {}
        self._holes: dict[str, Variable] = {}
        self._trail: list[Callable[[], object]] = []
        self._pending: list[tuple[t.Arithmetic, Variable, Variable, Variable]] = []

    @property
    def changed(self) -> bool:
        """Whether any step was taken."""
        return bool(self._trail)

    def undo(self) -> None:
        for step in reversed(self._trail):
            step()

    # -- variables ---------------------------------------------------------------------------------------------

    def name(self, name: str) -> Variable:
        variables = self._variables
        variable = variables.get(name)
        if variable is None:
            variable = variables[name] = Variable(_ANY)
            self._trail.append(lambda: variables.pop(name))
        return variable

    def _change(self, v: Variable) -> None:
        before = v.parent, v.mask, v.element, v.evidence, v.size, v.either

        def restore() -> None:
            v.parent, v.mask, v.element, v.evidence, v.size, v.either = before

        self._trail.append(restore)

    def restrict(self, variable: Variable, mask: int) -> None:
        root = find(variable)
        mask &= root.mask
        if not mask or (root.either and mask != root.mask):
            raise Clash
        if mask != root.mask:
            self._change(root)
            root.mask, root.evidence = mask, self._evidence

    def narrow(self, variable: Variable, kind: Kind) -> None:
        if kind is CATEGORIES or (find(variable).either and kind in (TEXT, LIST, LIST_OF[TEXT])):
            self.categorise(variable)
            return
        self.restrict(variable, BIT[kind.name])
        if kind.element is not None:
            self.restrict(self.element(variable), BIT[kind.element.name])

    def categorise(self, variable: Variable) -> None:
        """Makes it hold categories: text, or a list of text, or, if nothing decides between them, either."""
        root = find(variable)
        if root.either:
            return
        mask = root.mask & (_T | _L)
        self.restrict(root, mask)
        if mask & _L:
            if root.element is None:
                self._change(root)
                root.element = Variable(_T, self._evidence)
            self.restrict(root.element, _T)
        if mask == _T | _L:
            self._change(root)
            root.either, root.evidence = True, self._evidence

    def element(self, variable: Variable) -> Variable:
        """The element variable of a list; makes the variable a list."""
        self.restrict(variable, _L)
        root = find(variable)
        if root.element is None:
            self._change(root)
            root.element = Variable(_SCALAR, self._evidence)
        return root.element

    def unify(self, one: Variable, two: Variable) -> None:
        """Makes both the same kind. Fixed variables are never linked, so that each keeps its own evidence."""
        a, b = find(one), find(two)
        if a is b:
            return
        if a.either or b.either:
            other = b if a.either else a
            if other.mask in _KIND:
                raise Clash
            self.categorise(other)
            return
        if a.mask in _KIND or b.mask in _KIND:
            self.restrict(a, b.mask)
            self.restrict(b, a.mask)
            if a.mask == _L:
                self.unify(self.element(a), self.element(b))
            return
        mask = a.mask & b.mask
        if not mask:
            raise Clash
        if a.size < b.size:
            a, b = b, a
        self._change(a)
        self._change(b)
        b.parent = a
        a.size += b.size
        if a.mask != mask:
            a.mask, a.evidence = mask, self._evidence
        if mask in _KIND and mask == _L and b.element is not None:
            if a.element is None:
                a.element = b.element
            else:
                self.unify(a.element, b.element)

    # -- conditions --------------------------------------------------------------------------------------------

    def condition(self, node: t.Condition) -> None:
        if isinstance(node, t.And | t.Or):
            for item in node.items:
                self.condition(item)
        elif isinstance(node, t.Not):
            self.condition(node.item)
        elif isinstance(node, t.Compare):
            allowed = _SCALAR if node.op in EQUALITY else _ORDERED
            self._together(node, (node.left, node.right), allowed, f"{node.op!r}")
        elif isinstance(node, t.Between):
            self._together(node, (node.value, node.low, node.high), _ORDERED, "'between'")
        elif isinstance(node, t.Member):
            self._member(node)
        elif isinstance(node, t.Like | t.Matches):
            self._together(node, (node.value, node.pattern), _T, f"'{type(node).__name__.lower()}'")
        elif isinstance(node, t.StartsWith):
            self._together(node, (node.value, node.prefix), _T, "'startswith'")
        elif isinstance(node, t.Within | t.Covers):
            self._categories(node)
        elif isinstance(node, t.Truth):
            self._together(node, (node.operand,), _B, "a condition")
        elif isinstance(node, t.Has):
            self.expression(node.operand)
        else:
            raise UsageError(f"expected a condition, got {type(node).__name__}")

    def effect(self, effect: t.Effect) -> None:
        target = t.Context(effect.target)
        if isinstance(effect.value, t.Items) and not effect.value.items:
            self.element(self.name(context_name(effect.target)))
            return
        if find(self.name(context_name(effect.target))).either and not isinstance(effect.value, t.Arithmetic):
            value = find(self.expression(effect.value))
            if value.mask == _T:  # one category is a set of one
                return
        self._together(effect.value, (target, effect.value), _ANY, "'='")

    def printed(self, attribute: str) -> None:
        node = t.Attribute(attribute)
        self._together(node, (node,), _N | _T, "the name of a context")

    def _together(self, node: t.Node, sides: Sequence[t.Expression], allowed: int, what: str) -> None:
        """All sides are of one kind, one of ``allowed``."""
        variables = [self.expression(side) for side in sides]
        for side, variable in zip(sides, variables, strict=True):
            try:
                self.restrict(variable, allowed)
            except Clash:
                wanted = " or ".join(kind.phrase for bit, kind in _KIND.items() if allowed & bit)
                raise self._error(node, [(side, variable)], f"{what} needs {wanted}") from None
        for k in range(1, len(sides)):
            try:
                self.unify(variables[0], variables[k])
            except Clash:
                pair = [(sides[0], variables[0]), (sides[k], variables[k])]
                raise self._error(node, pair, f"{what} needs both of one kind") from None

    def _categories(self, node: t.Within | t.Covers) -> None:
        word = f"'{type(node).__name__.lower()}'"
        name = graph_name(node, self._graphs)
        if name is None:
            names = [_describe(side) for side in t.children(node) if isinstance(side, t.Attribute | t.Context)]
            known = f"the graphs are {', '.join(self._graphs)}" if self._graphs else "there is none: graphs=[...]"
            text = f"{word} needs a content graph named as {' or '.join(names)}; {known}"
            named = [side.name for side in t.children(node) if isinstance(side, t.Attribute | t.Context)]
            close = [found for name in named for found in get_close_matches(name, self._graphs, 1)]
            suggestion = close[0] if close else None
            error = ProfileError("unknown-graph", text, suggestion=suggestion, profile=self._profile)
            raise self._located(error, node)
        for side in (node.value, node.category):
            parts = side.items if isinstance(side, t.Items) else (side,)
            for part in parts:
                variable = self.expression(part)
                try:
                    self.restrict(variable, _T) if isinstance(side, t.Items) else self.categorise(variable)
                except Clash:
                    raise self._error(node, [(part, variable)], f"{word} needs {CATEGORIES.phrase}") from None
                if isinstance(part, t.Attribute):
                    self.bind(message_name(part.name), name)
                elif isinstance(part, t.Context):
                    self.bind(context_name(part.name), name)
                elif isinstance(part, t.Literal):
                    reason = unknown_category(self._graphs[name], str(part.value))
                    if reason is not None:
                        text, _, near = reason.partition("; did you mean ")
                        error = ProfileError("unknown-category", text, profile=self._profile)
                        error.suggestion = near.rstrip("?").strip("'\"") or None
                        raise self._located(error, part)

    def bind(self, name: str, graph: str) -> None:
        """Values of a name are categories of a graph from now on."""
        bound = self._bound
        before = bound.get(name, ())
        if graph not in before:
            bound[name] = (*before, graph)
            self._trail.append(lambda: bound.__setitem__(name, before) if before else bound.pop(name))

    def _member(self, node: t.Member) -> None:
        value = self.expression(node.value)
        try:
            self.restrict(value, _SCALAR)
        except Clash:
            raise self._error(node, [(node.value, value)], "'in' looks for one value, not for a list") from None
        if isinstance(node.collection, t.Items):
            for item in node.collection.items:
                variable = self.expression(item)
                try:
                    self.restrict(variable, _SCALAR)
                    self.unify(value, variable)
                except Clash:
                    pair = [(node.value, value), (item, variable)]
                    raise self._error(node, pair, "'in' needs elements of the value's kind") from None
            return
        collection = self.expression(node.collection)
        try:
            self.unify(value, self.element(collection))
        except Clash:
            pair = [(node.value, value), (node.collection, collection)]
            raise self._error(node, pair, "'in' needs a list of the value's kind") from None

    # -- expressions -------------------------------------------------------------------------------------------

    def expression(self, node: t.Expression) -> Variable:
        if isinstance(node, t.Attribute):
            return self.name(message_name(node.name))
        if isinstance(node, t.Context):
            return self.name(context_name(node.name))
        if isinstance(node, t.Literal):
            return self._literal(node)
        if isinstance(node, t.Parameter):
            if node.name not in self._holes:
                self._holes[node.name] = variable = Variable(_ANY, self._evidence)
                if node.name in self._given:
                    self.narrow(variable, self._given[node.name])
            return self._holes[node.name]
        if isinstance(node, t.Arithmetic):
            return self._arithmetic(node)
        if isinstance(node, t.Negative):
            return self._numbers(node, (node.operand,), NUMBER, "unary '-'")
        if isinstance(node, t.Function):
            return self._function(node)
        if isinstance(node, t.Items):
            return self._items(node)
        raise UsageError(f"expected an expression, got {type(node).__name__}")

    def _literal(self, node: t.Literal) -> Variable:
        kind = SCALAR_KIND.get(type(node.value))
        try:
            normalise(node.value)
        except EventError as error:
            code = "number-range" if isinstance(node.value, int) else "bad-value"
            raise self._located(ProfileError(code, error.reason, profile=self._profile), node) from None
        if kind is None:
            text = f"a literal of type {type(node.value).__name__} is not supported"
            raise self._located(ProfileError("bad-value", text, profile=self._profile), node)
        return Variable(BIT[kind.name], self._evidence)

    def _items(self, node: t.Items) -> Variable:
        element = Variable(_SCALAR, self._evidence)
        for item in node.items:
            variable = self.expression(item)
            try:
                self.unify(element, variable)
            except Clash:
                pair = [(node.items[0], element), (item, variable)]
                raise self._error(node, pair, "a list holds values of one kind") from None
        return Variable(_L, self._evidence, element)

    def _function(self, node: t.Function) -> Variable:
        if node.name == "abs" and len(node.arguments) == 1:
            return self._numbers(node, node.arguments, NUMBER, "abs(x)")
        if node.name == "distance" and len(node.arguments) == 2:
            return self._numbers(node, node.arguments, LIST_OF[NUMBER], "distance(a, b)")
        text = f"unknown function {node.name}() of {len(node.arguments)} arguments; known: abs(x), distance(a, b)"
        raise self._located(ProfileError("unknown-function", text, profile=self._profile), node)

    def _numbers(self, node: t.Expression, sides: Sequence[t.Expression], kind: Kind, what: str) -> Variable:
        for side in sides:
            variable = self.expression(side)
            try:
                self.narrow(variable, kind)
            except Clash:
                raise self._error(node, [(side, variable)], f"{what} needs {kind.phrase}") from None
        return Variable(_N, self._evidence)

    def _arithmetic(self, node: t.Arithmetic) -> Variable:
        if node.op in "*/":
            return self._numbers(node, (node.left, node.right), NUMBER, f"{node.op!r}")
        left, right = self.expression(node.left), self.expression(node.right)
        result = Variable(_N | _I, self._evidence)
        entry = (node, left, right, result)
        self._narrow_arithmetic(entry)
        self._pending.append(entry)
        return result

    def _narrow_arithmetic(self, entry: tuple[t.Arithmetic, Variable, Variable, Variable]) -> bool:
        """Keeps of each operand and the result what some rule of ``+`` or ``-`` allows; true when that changed any."""
        node, *variables = entry
        masks = [find(variable).mask for variable in variables]
        rules = _PLUS if node.op == "+" else _MINUS
        legal = [rule for rule in rules if all(bit & mask for bit, mask in zip(rule, masks, strict=True))]
        if not legal:
            pair = [(node.left, variables[0]), (node.right, variables[1])]
            what = f"{node.op!r} needs numbers, or a time and a number" + (", or two times" if node.op == "-" else "")
            raise self._error(node, pair, what)
        changed = False
        for k, variable in enumerate(variables):
            allowed = 0
            for rule in legal:
                allowed |= rule[k]
            if find(variable).mask & ~allowed:
                self.restrict(variable, allowed)
                changed = True
        return changed

    def settle(self) -> None:
        """Resolves ``+`` and ``-`` over open operands; what stays ambiguous is a number, left operands first."""
        while True:
            changed = True
            while changed:
                changed = sum(self._narrow_arithmetic(entry) for entry in self._pending) > 0
            for _, left, right, _ in self._pending:
                choice = next((v for v in (left, right) if find(v).mask not in _KIND), None)
                if choice is not None:
                    self.restrict(choice, _N)
                    break
            else:
                return

    # -- errors ------------------------------------------------------------------------------------------------

    def _error(self, node: t.Node, sides: Iterable[tuple[t.Node, Variable]], what: str) -> ProfileError:
        """``kind-conflict`` when a name's earlier evidence is involved, ``kind`` when the words alone make no sense."""
        parts, names = [], []
        for side, variable in sides:
            root, text = find(variable), _describe(side)
            mine = [n for n in t.walk(side) if isinstance(n, t.Attribute | t.Context)]
            names += mine
            because = f" ({root.evidence})" if root.evidence and isinstance(side, t.Attribute | t.Context) else ""
            parts.append(f"{text} is {phrase(variable)}{because}" if root.mask != _ANY else text)
        text = f"{what}, but {' and '.join(parts)}"
        if not names:
            return self._located(ProfileError("kind", text, profile=self._profile), node)
        spelled = _describe(names[0])
        hint = f"; if the profile is right, declare the kind first: schema={{{spelled!r}: ...}}"
        return self._located(ProfileError("kind-conflict", text + hint, profile=self._profile), node)

    @staticmethod
    def _located(error: ProfileError, node: t.Node) -> ProfileError:
        error.node = node  # type: ignore[attr-defined]
        return error
