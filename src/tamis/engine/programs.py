"""Programs: expressions and tests of predicates as instructions, and constants that are computed once.

Constants come in two sorts: those the shape itself fixes go to the templates' pool (negative index), those that
differ per profile to the clause's own constants (index >= 0): first the parameters, then what is computed from them.
Refuses to know intervals and clauses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import program as p
from tamis.kernels import taxonomy
from tamis.model import tree as t
from tamis.model.values import TEXT, TIME, Kind
from tamis.model.values import normalise as normalise_value

from .categories import mode_of
from .templates import Code, OpenTest, TemplateStore

_TESTS = {
    "<": p.LESS,
    "<=": p.LESS_EQUAL,
    ">": p.GREATER,
    ">=": p.GREATER_EQUAL,
    "==": p.EQUAL,
    "!=": p.NOT_EQUAL,
}
_TEXT_TESTS = {
    "<": p.TEXT_LESS,
    "<=": p.TEXT_LESS_EQUAL,
    ">": p.TEXT_GREATER,
    ">=": p.TEXT_GREATER_EQUAL,
}
_ARITHMETIC = {"+": p.ADD, "-": p.SUBTRACT, "*": p.MULTIPLY, "/": p.DIVIDE}


class Programs:
    """The compilation of one shape, or of one piece of it whose parameters start at number ``first``."""

    def __init__(
        self,
        store: TemplateStore,
        parameters: Sequence[str],
        kinds: Mapping[str, Kind],
        wide: frozenset[str],
        first: int = 0,
    ) -> None:
        self.store = store
        self.kinds = kinds
        self.wide = wide
        self.slot: dict[str, int] = {}
        n = first
        for name in parameters:
            self.slot[name] = n
            n += 2 if name in wide else 1
        self.first_computed = n
        self.computed: list[t.Expression] = []

    # -- constants ---------------------------------------------------------------------------------------------

    def literal(self, node: t.Literal) -> tuple[float, int]:
        return self.store.values.encode(normalise_value(node.value))

    def constant(self, expression: t.Expression) -> int:
        """The index of a constant expression: in the pool, or among the profile's own constants."""
        if isinstance(expression, t.Literal):
            return self.store.pool(*self.literal(expression))
        if isinstance(expression, t.Parameter):
            return self.slot[expression.name]
        if not any(isinstance(n, t.Parameter) for n in t.walk(expression)):
            return self.store.pool(float(evaluate(expression, {}, self)))
        if expression not in self.computed:
            self.computed.append(expression)
        return self.first_computed + self.computed.index(expression)

    def is_wide(self, expression: t.Expression) -> bool:
        if isinstance(expression, t.Literal):
            return self.literal(expression)[1] != 0
        return isinstance(expression, t.Parameter) and expression.name in self.wide

    def kind(self, expression: t.Expression) -> Kind | None:
        return self.store.schema.infer(expression, self.kinds)

    # -- instructions ------------------------------------------------------------------------------------------

    def expression(self, node: t.Expression) -> Code:
        """Instructions that push the value of an expression."""
        if isinstance(node, t.Attribute):
            return [(p.MESSAGE, self.store.attributes[node.name], 0)]
        if isinstance(node, t.Context):
            return [(p.CONTEXT, self.store.context_attributes[node.name], 0)]
        if isinstance(node, t.Parameter) and node.name in self.wide:
            return [(p.WIDE_CONSTANT, self.slot[node.name], self.slot[node.name] + 1)]
        if is_constant(node):
            return [(p.CONSTANT, self.constant(node), 0)]
        if isinstance(node, t.Negative):
            return [*self.expression(node.operand), (p.NEGATE, 0, 0)]
        if isinstance(node, t.Function) and node.name == "abs":
            return [*self.expression(node.arguments[0]), (p.ABSOLUTE, 0, 0)]
        if isinstance(node, t.Function):
            sizes = [len(a.items) if isinstance(a, t.Items) else -1 for a in node.arguments]
            return [*(i for a in node.arguments for i in self._list(a)), (p.DISTANCE, sizes[0], sizes[1])]
        assert isinstance(node, t.Arithmetic)
        left, right = self.expression(node.left), self.expression(node.right)
        times = [self.kind(node.left) is TIME, self.kind(node.right) is TIME]
        million = [(p.CONSTANT, self.store.pool(1e6), 0)]
        if all(times):
            return [*left, *right, (p.SUBTRACT, 0, 0), *million, (p.DIVIDE, 0, 0)]
        if any(times):
            seconds = [*million, (p.MULTIPLY, 0, 0)]
            left += [] if times[0] else seconds
            right += [] if times[1] else seconds
        return [*left, *right, (_ARITHMETIC[node.op], 0, 0)]

    def _list(self, node: t.Expression) -> Code:
        """A list operand: the elements of a list written in the profile, or a list attribute."""
        if isinstance(node, t.Items):
            return [i for item in node.items for i in self.expression(item)]
        return self.expression(node)

    def test(self, predicate: t.Predicate | t.Not) -> Code:
        """Instructions that end the program unless the predicate holds."""
        negated = isinstance(predicate, t.Not)
        node = predicate.item if isinstance(predicate, t.Not) else predicate
        if isinstance(node, t.Compare):
            op = _TESTS[node.op]
            if node.op in _TEXT_TESTS:
                kind = self.kind(node.left)
                if kind is TEXT:
                    op = _TEXT_TESTS[node.op]
                elif kind is None:
                    op = OpenTest(op, node.left)
            return [*self.expression(node.left), *self.expression(node.right), (op, 0, 0)]
        if isinstance(node, t.Truth):
            wanted = (p.CONSTANT, self.store.pool(float(not negated)), 0)
            return [*self.expression(node.operand), wanted, (p.EQUAL, 0, 0)]
        if isinstance(node, t.Has):
            if isinstance(node.operand, t.Attribute):
                op = p.HASNT_MESSAGE if negated else p.HAS_MESSAGE
                return [(op, self.store.attributes[node.operand.name], 0)]
            assert isinstance(node.operand, t.Context)
            op = p.HASNT_CONTEXT if negated else p.HAS_CONTEXT
            return [(op, self.store.context_attributes[node.operand.name], 0)]
        if isinstance(node, t.Member):
            return self._member(node, negated)
        if isinstance(node, t.Within | t.Covers):
            return self._categories(node, negated)
        if isinstance(node, t.StartsWith) and not isinstance(node.prefix, t.Literal):
            op = p.NOT_STARTS if negated else p.STARTS
            return [*self.expression(node.value), *self.expression(node.prefix), (op, 0, 0)]
        assert isinstance(node, t.Like | t.Matches | t.StartsWith)
        return self._pattern(node, negated)

    def _member(self, node: t.Member, negated: bool) -> Code:
        code = self.expression(node.value)
        if not isinstance(node.collection, t.Items):
            return [*code, *self.expression(node.collection), (p.NOT_IN_LIST if negated else p.IN_LIST, 0, 0)]
        items = node.collection.items
        if all(isinstance(item, t.Literal) for item in items):
            constants = [self.literal(item) for item in items]  # type: ignore[arg-type]
            present = [c for c in constants if c[0] == c[0]]
            self.store.has_wide |= any(r for _, r in present)
            first, count = self.store.pool_run(present)
            return [*code, (p.NOT_IN_POOL if negated else p.IN_POOL, first, count)]
        for item in items:
            code += self.expression(item)
        return [*code, (p.NOT_IN_STACK if negated else p.IN_STACK, len(items), 0)]

    def _categories(self, node: t.Within | t.Covers, negated: bool) -> Code:
        """``below`` within ``above``; where the message's own attribute is below, its marks say the same faster."""
        assert self.store.categories is not None
        graph = self.store.categories.graph_of(node)
        below, above = (node.value, node.category) if isinstance(node, t.Within) else (node.category, node.value)
        high, high_mode = self.category_set(above)
        if isinstance(below, t.Attribute) and self.store.categories.number.get(below.name) == graph:
            self.store.attributes[below.name]  # it gets a column
            return [*high, (p.NOT_UNDER if negated else p.UNDER, graph, high_mode)]
        low, low_mode = self.category_set(below)
        return [*low, *high, (p.NOT_WITHIN if negated else p.WITHIN, graph, low_mode | high_mode << 2)]

    def category_set(self, side: t.Expression) -> tuple[Code, int]:
        """Instructions that push a set of categories, and how it holds them."""
        if isinstance(side, t.Items):
            if all(isinstance(item, t.Literal) for item in side.items):
                code = self.store.values.add_list(tuple(item.value for item in side.items))  # type: ignore[union-attr]
                return [(p.CONSTANT, self.store.pool(float(code)), 0)], taxonomy.LIST
            index = self.constant(t.Function("categories", tuple(side.items)))
            return [(p.CONSTANT, index, 0)], taxonomy.LIST
        return self.expression(side), mode_of(self.kind(side))

    def _pattern(self, node: t.Like | t.Matches | t.StartsWith, negated: bool) -> Code:
        how = {t.Like: "like", t.Matches: "matches", t.StartsWith: "startswith"}[type(node)]
        pattern = node.prefix if isinstance(node, t.StartsWith) else node.pattern
        values, value = self.store.values, node.value
        if isinstance(pattern, t.Literal):
            number = values.pattern(how, str(pattern.value))
            index = self.store.pool(float(number))
            if isinstance(value, t.Literal):
                values.judge({number}, np.array([int(self.literal(value)[0])]))
        else:
            assert isinstance(pattern, t.Parameter)
            index, number = self.constant(t.Function("pattern", (t.Literal(how), pattern))), -1
        if isinstance(value, t.Attribute):
            self._ask(self.store.message_patterns, self.store.attributes[value.name], number, False, how)
        elif isinstance(value, t.Context):
            self._ask(self.store.context_patterns, self.store.context_attributes[value.name], number, True, how)
        op = p.NOT_PATTERN if negated else p.PATTERN
        return [*self.expression(value), (p.CONSTANT, index, 0), (op, 0, 0)]

    def _ask(self, asked: dict[int, set[int]], column: int, number: int, context: bool, how: str) -> None:
        if number >= 0:
            asked.setdefault(column, set()).add(number)
        elif (context, column, how) not in self.store.open_patterns:
            self.store.open_patterns.append((context, column, how))

    def pattern_numbers(self, how: str, texts: NDArray[np.float64]) -> NDArray[np.float64]:
        """The numbers of the patterns that a parameter column holds as text codes."""
        values = self.store.values
        codes, inverse = np.unique(texts.astype(np.int64), return_inverse=True)
        numbers = [values.pattern(how, str(values.texts[int(code)])) for code in codes]
        for context, column, asked in self.store.open_patterns:
            if asked == how:
                table = self.store.context_patterns if context else self.store.message_patterns
                table.setdefault(column, set()).update(numbers)
        return np.array(numbers, np.float64)[inverse]

    def effect(self, effect: t.Effect) -> tuple[int, int, int]:
        code = self.expression(effect.value)
        if self.kind(effect.value) is TIME and isinstance(effect.value, t.Arithmetic):
            code.append((p.INSTANT, 0, 0))
        self.store.has_wide |= self.is_wide(effect.value)
        return (self.store.context_attributes[effect.target], *self.store.emit(code))


def is_constant(expression: t.Expression) -> bool:
    return not any(isinstance(n, t.Attribute | t.Context | t.Items) for n in t.walk(expression))


def evaluate(expression: t.Expression, columns: Mapping[str, NDArray[np.float64]], programs: Any) -> Any:
    """A constant expression over encoded parameter columns, in doubles, as the programs compute."""
    if isinstance(expression, t.Literal):
        return programs.literal(expression)[0]
    if isinstance(expression, t.Parameter):
        return columns[expression.name]
    if isinstance(expression, t.Negative):
        return -evaluate(expression.operand, columns, programs)
    if isinstance(expression, t.Function) and expression.name == "pattern":
        how, parameter = expression.arguments
        return programs.pattern_numbers(how.value, columns[parameter.name])  # type: ignore[union-attr]
    if isinstance(expression, t.Function) and expression.name == "categories":
        items = [np.atleast_1d(evaluate(item, columns, programs)) for item in expression.arguments]
        elements = np.stack(np.broadcast_arrays(*items), axis=1)
        lengths = np.full(len(elements), elements.shape[1])
        return programs.store.values.add_lists(np.cumsum(lengths), elements.reshape(-1)).astype(np.float64)
    if isinstance(expression, t.Function):
        return np.abs(evaluate(expression.arguments[0], columns, programs))
    assert isinstance(expression, t.Arithmetic)
    left, right = (evaluate(side, columns, programs) for side in (expression.left, expression.right))
    times = [programs.kind(side) is TIME for side in (expression.left, expression.right)]
    if all(times):
        return (left - right) / 1e6
    if any(times):
        left = left if times[0] else left * 1e6
        right = right if times[1] else right * 1e6
    with np.errstate(all="ignore"):
        if expression.op == "+":
            return left + right
        if expression.op == "-":
            return left - right
        if expression.op == "*":
            return left * right
        return np.where(np.equal(right, 0), np.nan, np.divide(left, np.where(np.equal(right, 0), 1.0, right)))
