"""From predicate trees to templates: what of a clause is an interval, a gate or a program.

A *shape* is a profile with its constants lifted out as parameters; all profiles of a shape share its templates, one
per clause of the normal form. Constants come in two sorts: those the shape itself fixes go to the templates' pool
(negative index), those that differ per profile to the clause's own constants (index >= 0): first the parameters, then
what is computed from them.

For every clause:
- ``x <= ctx.stock - 5``: the attribute alone on one side, nothing of the message on the other: an interval whose end
  is a constant, a context value, a context value plus a constant, or a program over the context;
- ``abs(x - ctx.x) <= 150``, ``x - ctx.x < 5``: the same after rearranging, as an OUTER interval, with the predicate
  itself as written in the program, because rearranging rounds;
- a predicate without message attributes: the gate;
- everything else: the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tamis.index.growth import with_room
from tamis.kernels import bundles as b
from tamis.kernels import program as p
from tamis.model import tree as t
from tamis.model.normal import Clause, normalise
from tamis.model.schema import Schema, context_name
from tamis.model.values import NUMBER, TEXT, TIME, Kind
from tamis.model.values import normalise as normalise_value

from .values import ValueStore

MAX_CLAUSES = 64
# A set of at most so many constants becomes that many clauses, each with an equality the index can use.
MAX_SPREAD = 8

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
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

Code = list[tuple[int, int, int]]
# Encoded parameter columns: doubles, and residuals where integers are beyond 2**53.
Columns = Mapping[str, tuple[NDArray[np.float64], NDArray[np.int16] | None]]


class _OpenTest(int):
    """An order comparison whose kind is not known yet; as a number it is the comparison of numbers."""

    side: t.Expression

    def __new__(cls, op: int, side: t.Expression) -> _OpenTest:
        made = super().__new__(cls, op)
        made.side = side
        return made


@dataclass(frozen=True)
class Shape:
    """A compiled profile shape."""

    condition: t.Condition
    effects: tuple[t.Effect, ...]
    parameters: tuple[str, ...]
    kinds: Mapping[str, Kind]
    wide: frozenset[str]
    templates: tuple[int, ...]
    computed: tuple[t.Expression, ...]  # constants behind those of the parameters
    effect_codes: tuple[tuple[int, int, int], ...]  # target, first instruction, length
    own_effects: bool  # effects that use the profile's constants
    stores_codes: bool  # an effect may put a text or list of the message into a context

    @property
    def width(self) -> int:
        """How many constants a profile of this shape has."""
        return len(self.parameters) + len(self.wide) + len(self.computed)


@dataclass
class _Interval:
    """One end or two on one attribute, as columns of ``Templates.predicate``."""

    attribute: int
    low: tuple[int, int, int, int] = (b.NONE, 0, 0, 0)
    high: tuple[int, int, int, int] = (b.NONE, 0, 0, 0)
    traits: int = 0
    open_side: t.Expression | None = None  # an order comparison of a kind not known yet

    def row(self) -> tuple[int, ...]:
        return (self.attribute, *self.low, *self.high, self.traits)


class Names:
    """Attribute names and their columns; columns are handed out in order of first use and stay."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.column: dict[str, int] = {name: i for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> int:
        return self.column.setdefault(name, len(self.column))

    def __len__(self) -> int:
        return len(self.column)


class Compiler:
    """Turns shapes into templates and keeps the templates' bundle."""

    def __init__(self, schema: Schema, values: ValueStore) -> None:
        self.schema = schema
        self.values = values
        self.attributes = Names()
        self.context_attributes = Names()
        # Which patterns are asked of which column, so that their verdicts can be prepared.
        self.message_patterns: dict[int, set[int]] = {}
        self.context_patterns: dict[int, set[int]] = {}
        # The same for patterns that differ per profile: column -> how it is asked.
        self.open_patterns: list[tuple[bool, int, str]] = []
        self.has_wide = False
        self._row = np.zeros((8, b.TEMPLATE_COLUMNS), np.int32)
        self._predicate = np.zeros((8, b.PREDICATE_COLUMNS), np.int32)
        self._code = np.zeros((8, 3), np.int32)
        self._pool = np.zeros(8)
        self._pool_residual = np.zeros(8, np.int16)
        self.sizes = [0, 0, 0, 0]
        # Order comparisons of names whose kind is still open: (instruction, side whose kind decides).
        self._open: list[tuple[int, t.Expression]] = []
        # Their intervals: (predicate, side), given up if they turn out to be of texts.
        self._open_intervals: list[tuple[int, t.Expression]] = []
        self._settled = -1
        self._bundle: b.Templates | None = None
        self._pooled: dict[tuple[float, int], int] = {}

    def bundle(self) -> b.Templates:
        self._bundle = b.Templates.current(
            self._bundle, self._row, self._predicate, self._code, self._pool, self._pool_residual
        )
        return self._bundle

    def arrays(self) -> dict[str, NDArray[Any]]:
        rows, predicates, codes, pool = self.sizes
        return {
            "row": self._row[:rows],
            "predicate": self._predicate[:predicates],
            "code": self._code[:codes],
            "pool": self._pool[:pool],
            "pool_residual": self._pool_residual[:pool],
        }

    def adopt(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over templates that ``arrays`` gave out."""
        self._row, self._predicate, self._code = arrays["row"], arrays["predicate"], arrays["code"]
        self._pool, self._pool_residual = arrays["pool"], arrays["pool_residual"]
        self.sizes = [len(self._row), len(self._predicate), len(self._code), len(self._pool)]
        self._pooled = {}

    def compile(
        self,
        condition: t.Condition,
        effects: tuple[t.Effect, ...],
        kinds: Mapping[str, Kind],
        wide: frozenset[str] = frozenset(),
    ) -> Shape:
        """The shape of a profile whose names are in the schema; ``wide`` parameters hold integers beyond 2**53."""
        parameters = tuple(dict.fromkeys(_parameters(condition, effects)))
        draft = _Draft(self, parameters, kinds, wide)
        clauses = _spread(normalise(condition, MAX_CLAUSES))
        templates = tuple(draft.template(clause) for clause in clauses)
        effect_codes = tuple(draft.effect(effect) for effect in effects)
        stores = any(
            (kind := self.schema.kind(context_name(effect.target))) is None or kind.name in ("text", "list")
            for effect in effects
        )
        own = any(isinstance(n, t.Parameter) for effect in effects for n in t.walk(effect.value))
        return Shape(
            condition,
            effects,
            parameters,
            dict(kinds),
            wide,
            templates,
            tuple(draft.computed),
            effect_codes,
            own,
            stores,
        )

    def rule(
        self, condition: t.Condition, effects: Sequence[t.Effect]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
        """A track: a program (first instruction, length) per clause of its condition, and its effects."""
        draft = _Draft(self, (), {}, frozenset())
        clauses = normalise(condition, MAX_CLAUSES)
        programs = [self.emit([i for predicate in clause for i in draft.test(predicate)]) for clause in clauses]
        return programs, [draft.effect(effect) for effect in effects]

    # -- bundles -----------------------------------------------------------------------------------------------

    def constants(
        self, shape: Shape, columns: Mapping[str, tuple[NDArray[np.float64], NDArray[np.int16] | None]]
    ) -> NDArray[np.float64]:
        """The own constants of many profiles of a shape, [profile, width], from encoded parameter columns."""
        draft = _Draft(self, shape.parameters, shape.kinds, shape.wide)
        rows = len(next(iter(columns.values()))[0]) if columns else 1
        out = np.zeros((rows, shape.width))
        for name in shape.parameters:
            double, residual = columns[name]
            out[:, draft.slot[name]] = double
            if name in shape.wide:
                out[:, draft.slot[name] + 1] = 0 if residual is None else residual
        doubles = {name: column[0] for name, column in columns.items()}
        for i, expression in enumerate(shape.computed):
            out[:, draft.first_computed + i] = evaluate(expression, doubles, draft)
        return out

    def pool(self, double: float, residual: int = 0) -> int:
        """The (negative) index of a constant in the pool."""
        key = (double, residual)
        at = self._pooled.get(key)
        if at is None or double != double:
            at = self._append_pool([key])
            self._pooled[key] = at
        self.has_wide |= residual != 0
        return -1 - at

    def pool_run(self, constants: list[tuple[float, int]]) -> tuple[int, int]:
        """A sorted run of constants; returns its first index and its length."""
        return self._append_pool(sorted(set(constants))), len(set(constants))

    def _append_pool(self, constants: Sequence[tuple[float, int]]) -> int:
        at = self.sizes[3]
        self.sizes[3] += len(constants)
        self._pool = with_room(self._pool, self.sizes[3])
        self._pool_residual = with_room(self._pool_residual, self.sizes[3])
        for i, (double, residual) in enumerate(constants):
            self._pool[at + i], self._pool_residual[at + i] = double, residual
        return at

    def settle(self) -> None:
        """Kinds may have become known: order comparisons that turn out to be of texts compare texts from now on."""
        if self._settled == self.schema.version:
            return
        self._settled = self.schema.version
        for at, side in self._open:
            if self.schema.infer(side) is TEXT:
                self._code[at, 0] += p.TEXT_LESS - p.LESS
        for at, side in self._open_intervals:
            if self.schema.infer(side) is TEXT:
                self._predicate[at, [b.LOW, b.HIGH]] = b.NONE
        self._open = [(at, side) for at, side in self._open if self.schema.infer(side) is None]
        self._open_intervals = [(at, side) for at, side in self._open_intervals if self.schema.infer(side) is None]

    def open_names(self) -> tuple[list[tuple[int, t.Expression]], list[tuple[int, t.Expression]]]:
        """What ``settle`` has still to decide, for saving."""
        return self._open, self._open_intervals

    def reopen(self, instructions: Sequence[Any], intervals: Sequence[Any]) -> None:
        """What ``open_names`` gave out."""
        self._open, self._open_intervals, self._settled = list(instructions), list(intervals), -1

    def emit(self, code: Code) -> tuple[int, int]:
        at = self.sizes[2]
        for i, (op, _, _) in enumerate(code):
            if isinstance(op, _OpenTest):
                self._open.append((at + i, op.side))
        self._settled = -1
        self.sizes[2] += len(code)
        self._code = with_room(self._code, self.sizes[2])
        if code:
            self._code[at : at + len(code)] = code
        return at, len(code)

    def add_template(self, intervals: Sequence[_Interval], program: Code, gate: Code, depends: int) -> int:
        first = self.sizes[1]
        self.sizes[1] += len(intervals)
        self._predicate = with_room(self._predicate, self.sizes[1])
        for i, interval in enumerate(intervals):
            self._predicate[first + i] = interval.row()
            if interval.open_side is not None:
                self._open_intervals.append((first + i, interval.open_side))
        at = self.sizes[0]
        self.sizes[0] += 1
        self._row = with_room(self._row, self.sizes[0])
        words = np.array([depends], np.uint64).view(np.int32)
        self._row[at] = (first, len(intervals), *self.emit(program), *self.emit(gate), words[0], words[1])
        return at


class _Draft:
    """The compilation of one shape."""

    def __init__(self, compiler: Compiler, parameters: Sequence[str], kinds: Mapping[str, Kind], wide: frozenset[str]):
        self.compiler = compiler
        self.kinds = kinds
        self.wide = wide
        self.slot: dict[str, int] = {}
        n = 0
        for name in parameters:
            self.slot[name] = n
            n += 2 if name in wide else 1
        self.first_computed = n
        self.computed: list[t.Expression] = []

    # -- clauses -----------------------------------------------------------------------------------------------

    def template(self, clause: Clause) -> int:
        intervals: list[_Interval] = []
        program: Code = []
        gate: Code = []
        depends = 0
        for predicate in clause:
            simple = self._simple(predicate)
            if simple is not None:
                intervals.append(simple)
                continue
            leaves = [n for n in t.walk(predicate) if isinstance(n, t.Attribute | t.Context)]
            for leaf in leaves:
                if isinstance(leaf, t.Context):
                    depends |= 1 << min(63, self.compiler.context_attributes[leaf.name])
            if not any(isinstance(leaf, t.Attribute) for leaf in leaves):
                gate += self.test(predicate)
                continue
            found = self.interval(predicate)
            if found is None:
                program += self.test(predicate)
                continue
            intervals.append(found)
            if found.traits & b.OUTER:
                program += self.test(predicate)
        return self.compiler.add_template(_joined(intervals), program, gate, depends)

    def interval(self, predicate: t.Predicate | t.Not) -> _Interval | None:
        """The predicate as an interval on one message attribute, or None."""
        if isinstance(predicate, t.Truth) and isinstance(predicate.operand, t.Attribute):
            return self._point(predicate.operand, 1.0)
        if isinstance(predicate, t.Not) and isinstance(predicate.item, t.Truth):
            operand = predicate.item.operand
            return self._point(operand, 0.0) if isinstance(operand, t.Attribute) else None
        if isinstance(predicate, t.Member) and isinstance(predicate.value, t.Attribute):
            return self._hull(predicate)
        if not isinstance(predicate, t.Compare) or predicate.op == "!=":
            return None
        kind = self.kind(predicate.left)
        if kind not in (NUMBER, TIME, None) and predicate.op != "==":
            return None
        for op, x, other in (
            (predicate.op, predicate.left, predicate.right),
            (_FLIPPED[predicate.op], predicate.right, predicate.left),
        ):
            if any(isinstance(n, t.Attribute) for n in t.walk(other)):
                continue
            if isinstance(x, t.Attribute):
                if kind is None and op != "==":
                    # Numbers or texts? The program knows when the time comes (see ``Compiler.settle``).
                    found = self._ends(x, op, other, b.OUTER | b.COMPLEX)
                    found.open_side = x
                    return found
                return self._ends(x, op, other, 0)
            turned = _rearranged(x, op, other) if kind is NUMBER else None
            if turned is not None and self.kind(turned.attribute) is NUMBER:
                return self._turned(turned)
        return None

    def _turned(self, turned: _Turned) -> _Interval:
        """A rearranged comparison: ends computed with a margin, because rearranging rounds."""
        found = _Interval(self.compiler.attributes[turned.attribute.name], traits=b.OUTER | b.COMPLEX)
        operands = [*self.expression(turned.one), *self.expression(turned.other)]
        if turned.op in (">", ">=", "==", "around"):
            sign = int(turned.op != "around" and turned.plus)
            found.low = (b.COMPUTED, *self.compiler.emit([*operands, (p.BELOW, sign, 0)]), 0)
        if turned.op in ("<", "<=", "==", "around"):
            sign = int(turned.op == "around" or turned.plus)
            found.high = (b.COMPUTED, *self.compiler.emit([*operands, (p.ABOVE, sign, 0)]), 0)
        return found

    def _simple(self, predicate: t.Predicate | t.Not) -> _Interval | None:
        """``x <= 5``, the commonest predicate, without a walk through the tree."""
        if type(predicate) is not t.Compare or predicate.op == "!=" or type(predicate.left) is not t.Attribute:
            return None
        if type(predicate.right) is not t.Literal and type(predicate.right) is not t.Parameter:
            return None
        if self._is_wide(predicate.right):
            return None
        kind = self.kind(predicate.left)
        if kind is None or (kind not in (NUMBER, TIME) and predicate.op != "=="):
            return None
        return self._ends(predicate.left, predicate.op, predicate.right, 0)

    def _point(self, attribute: t.Attribute, value: float) -> _Interval:
        end = (b.CONST, 0, self.compiler.pool(value), 0)
        return _Interval(self.compiler.attributes[attribute.name], end, end)

    def _ends(self, x: t.Attribute, op: str, end: t.Expression, traits: int) -> _Interval:
        found = _Interval(self.compiler.attributes[x.name], traits=traits)
        strict = int(op in ("<", ">"))
        if op in (">", ">=", "=="):
            found.low = (*self._end(end, found), strict)
        if op in ("<", "<=", "=="):
            found.high = (*self._end(end, found), strict)
        return found

    def _end(self, expression: t.Expression, found: _Interval) -> tuple[int, int, int]:
        """Kind, context attribute and constant of one end."""
        if _is_constant(expression):
            if self._is_wide(expression):
                found.traits |= b.OUTER
            return b.CONST, 0, self.constant(expression)
        columns = self.compiler.context_attributes
        if isinstance(expression, t.Context):
            return b.CTX, columns[expression.name], 0
        if isinstance(expression, t.Arithmetic) and expression.op in "+-":
            left, right, op = expression.left, expression.right, expression.op
            if op == "+" and isinstance(right, t.Context) and _is_constant(left):
                left, right = right, left
            if isinstance(left, t.Context) and _is_constant(right):
                is_time, shift = self.kind(left) is TIME, self.kind(right)
                if shift is NUMBER:
                    if is_time:
                        right = t.Arithmetic("*", right, t.Literal(1e6))
                    return b.CTX_PLUS, columns[left.name], self.constant(right if op == "+" else t.Negative(right))
        code = self.compiler.emit(self.expression(expression))
        found.traits |= b.COMPLEX
        return b.COMPUTED, *code

    def _hull(self, member: t.Member) -> _Interval | None:
        """The smallest interval around a set: found first, tested by the program."""
        assert isinstance(member.value, t.Attribute)
        found = _Interval(self.compiler.attributes[member.value.name], traits=b.OUTER)
        collection = member.collection
        if isinstance(collection, t.Context):
            column = self.compiler.context_attributes[collection.name]
            found.traits |= b.COMPLEX
            found.low = (b.COMPUTED, *self.compiler.emit([(p.CONTEXT, column, 0), (p.LIST_LOW, 0, 0)]), 0)
            found.high = (b.COMPUTED, *self.compiler.emit([(p.CONTEXT, column, 0), (p.LIST_HIGH, 0, 0)]), 0)
            return found
        if isinstance(collection, t.Items) and all(isinstance(item, t.Literal) for item in collection.items):
            doubles = [self.literal(item)[0] for item in collection.items]  # type: ignore[arg-type]
            if doubles and not any(np.isnan(doubles)):
                found.low = (b.CONST, 0, self.compiler.pool(min(doubles)), 0)
                found.high = (b.CONST, 0, self.compiler.pool(max(doubles)), 0)
                return found
        return None

    # -- constants ---------------------------------------------------------------------------------------------

    def literal(self, node: t.Literal) -> tuple[float, int]:
        return self.compiler.values.encode(normalise_value(node.value))

    def constant(self, expression: t.Expression) -> int:
        """The index of a constant expression: in the pool, or among the profile's own constants."""
        if isinstance(expression, t.Literal):
            return self.compiler.pool(*self.literal(expression))
        if isinstance(expression, t.Parameter):
            return self.slot[expression.name]
        if not any(isinstance(n, t.Parameter) for n in t.walk(expression)):
            return self.compiler.pool(float(evaluate(expression, {}, self)))
        if expression not in self.computed:
            self.computed.append(expression)
        return self.first_computed + self.computed.index(expression)

    def _is_wide(self, expression: t.Expression) -> bool:
        if isinstance(expression, t.Literal):
            return self.literal(expression)[1] != 0
        return isinstance(expression, t.Parameter) and expression.name in self.wide

    def kind(self, expression: t.Expression) -> Kind | None:
        return self.compiler.schema.infer(expression, self.kinds)

    # -- programs ----------------------------------------------------------------------------------------------

    def expression(self, node: t.Expression) -> Code:
        """Instructions that push the value of an expression."""
        if isinstance(node, t.Attribute):
            return [(p.MESSAGE, self.compiler.attributes[node.name], 0)]
        if isinstance(node, t.Context):
            return [(p.CONTEXT, self.compiler.context_attributes[node.name], 0)]
        if isinstance(node, t.Parameter) and node.name in self.wide:
            return [(p.WIDE_CONSTANT, self.slot[node.name], self.slot[node.name] + 1)]
        if _is_constant(node):
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
        million = [(p.CONSTANT, self.compiler.pool(1e6), 0)]
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
                    op = _OpenTest(op, node.left)
            return [*self.expression(node.left), *self.expression(node.right), (op, 0, 0)]
        if isinstance(node, t.Truth):
            wanted = (p.CONSTANT, self.compiler.pool(float(not negated)), 0)
            return [*self.expression(node.operand), wanted, (p.EQUAL, 0, 0)]
        if isinstance(node, t.Has):
            if isinstance(node.operand, t.Attribute):
                op = p.HASNT_MESSAGE if negated else p.HAS_MESSAGE
                return [(op, self.compiler.attributes[node.operand.name], 0)]
            assert isinstance(node.operand, t.Context)
            op = p.HASNT_CONTEXT if negated else p.HAS_CONTEXT
            return [(op, self.compiler.context_attributes[node.operand.name], 0)]
        if isinstance(node, t.Member):
            return self._member(node, negated)
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
            self.compiler.has_wide |= any(r for _, r in present)
            first, count = self.compiler.pool_run(present)
            return [*code, (p.NOT_IN_POOL if negated else p.IN_POOL, first, count)]
        for item in items:
            code += self.expression(item)
        return [*code, (p.NOT_IN_STACK if negated else p.IN_STACK, len(items), 0)]

    def _pattern(self, node: t.Like | t.Matches | t.StartsWith, negated: bool) -> Code:
        how = {t.Like: "like", t.Matches: "matches", t.StartsWith: "startswith"}[type(node)]
        pattern = node.prefix if isinstance(node, t.StartsWith) else node.pattern
        values, value = self.compiler.values, node.value
        if isinstance(pattern, t.Literal):
            number = values.pattern(how, str(pattern.value))
            index = self.compiler.pool(float(number))
            if isinstance(value, t.Literal):
                values.judge([number], np.array([int(self.literal(value)[0])]))
        else:
            assert isinstance(pattern, t.Parameter)
            index, number = self.constant(t.Function("pattern", (t.Literal(how), pattern))), -1
        if isinstance(value, t.Attribute):
            self._ask(self.compiler.message_patterns, self.compiler.attributes[value.name], number, False, how)
        elif isinstance(value, t.Context):
            self._ask(self.compiler.context_patterns, self.compiler.context_attributes[value.name], number, True, how)
        op = p.NOT_PATTERN if negated else p.PATTERN
        return [*self.expression(value), (p.CONSTANT, index, 0), (op, 0, 0)]

    def _ask(self, asked: dict[int, set[int]], column: int, number: int, context: bool, how: str) -> None:
        if number >= 0:
            asked.setdefault(column, set()).add(number)
        elif (context, column, how) not in self.compiler.open_patterns:
            self.compiler.open_patterns.append((context, column, how))

    def pattern_numbers(self, how: str, texts: NDArray[np.float64]) -> NDArray[np.float64]:
        """The numbers of the patterns that a parameter column holds as text codes."""
        values = self.compiler.values
        codes, inverse = np.unique(texts.astype(np.int64), return_inverse=True)
        numbers = [values.pattern(how, str(values.texts[int(code)])) for code in codes]
        for context, column, asked in self.compiler.open_patterns:
            if asked == how:
                table = self.compiler.context_patterns if context else self.compiler.message_patterns
                table.setdefault(column, set()).update(numbers)
        return np.array(numbers, np.float64)[inverse]

    # -- effects and tracks ------------------------------------------------------------------------------------

    def effect(self, effect: t.Effect) -> tuple[int, int, int]:
        code = self.expression(effect.value)
        if self.kind(effect.value) is TIME and isinstance(effect.value, t.Arithmetic):
            code.append((p.INSTANT, 0, 0))
        self.compiler.has_wide |= self._is_wide(effect.value)
        return (self.compiler.context_attributes[effect.target], *self.compiler.emit(code))


def _joined(intervals: list[_Interval]) -> list[_Interval]:
    """A lower and an upper end on one attribute make one interval; further ones make the attribute COMPLEX."""
    out: list[_Interval] = []
    for interval in intervals:
        for other in out:
            if other.attribute == interval.attribute and other.traits == interval.traits and not other.open_side:
                if other.low[0] == b.NONE and interval.high[0] == b.NONE:
                    other.low = interval.low
                    break
                if other.high[0] == b.NONE and interval.low[0] == b.NONE:
                    other.high = interval.high
                    break
        else:
            out.append(interval)
    many = [i.attribute for i in out]
    for interval in out:
        if many.count(interval.attribute) > 1:
            interval.traits |= b.COMPLEX
    return out


@dataclass(frozen=True)
class _Turned:
    """``attribute op one ± other``; ``around`` stands for ``one - other <= attribute <= one + other``."""

    attribute: t.Attribute
    op: str
    one: t.Expression
    other: t.Expression
    plus: bool


def _rearranged(side: t.Expression, op: str, other: t.Expression) -> _Turned | None:
    """``side op other`` solved for the one attribute in ``side``."""
    if isinstance(side, t.Function) and side.name == "abs" and op in ("<", "<="):
        inner = side.arguments[0]
        if not isinstance(inner, t.Arithmetic) or inner.op != "-":
            return None
        x, centre = inner.left, inner.right
        if not isinstance(x, t.Attribute):
            x, centre = centre, x
        return _Turned(x, "around", centre, other, True) if _alone(x, centre) else None
    if not isinstance(side, t.Arithmetic) or side.op not in "+-":
        return None
    x, rest = side.left, side.right
    if side.op == "+" and isinstance(rest, t.Attribute):
        x, rest = rest, x
    if not _alone(x, rest):
        return None
    return _Turned(x, op, other, rest, side.op == "-")


def _alone(x: t.Expression, rest: t.Expression) -> TypeGuard[t.Attribute]:
    """Whether ``x`` is an attribute and ``rest`` has none."""
    return isinstance(x, t.Attribute) and not any(isinstance(n, t.Attribute) for n in t.walk(rest))


def _spread(clauses: tuple[Clause, ...]) -> tuple[Clause, ...]:
    """Turn one small set of constants per clause into clauses with an equality each."""
    out: list[Clause] = []
    for i, clause in enumerate(clauses):
        rest = len(clauses) - i - 1
        best = None
        for predicate in clause:
            if isinstance(predicate, t.Member) and isinstance(predicate.value, t.Attribute):
                items = predicate.collection
                if isinstance(items, t.Items) and all(isinstance(item, t.Literal) for item in items.items):
                    size = len(set(items.items))
                    if size <= MAX_SPREAD and len(out) + size + rest <= MAX_CLAUSES:
                        best = predicate if best is None or size < len(best.collection.items) else best  # type: ignore[union-attr]
        if best is None:
            out.append(clause)
            continue
        for item in dict.fromkeys(best.collection.items):  # type: ignore[union-attr]
            equal = t.Compare("==", best.value, item)
            out.append(tuple(equal if predicate is best else predicate for predicate in clause))
    return tuple(out)


def _parameters(condition: t.Condition, effects: Sequence[t.Effect]) -> Iterator[str]:
    for root in (condition, *(effect.value for effect in effects)):
        names = [node.name for node in t.walk(root) if isinstance(node, t.Parameter)]
        yield from reversed(names)  # walk is depth-first from the right


def _is_constant(expression: t.Expression) -> bool:
    return not any(isinstance(n, t.Attribute | t.Context | t.Items) for n in t.walk(expression))


def evaluate(expression: t.Expression, columns: Mapping[str, NDArray[np.float64]], draft: Any) -> Any:
    """A constant expression over encoded parameter columns, in doubles, as the programs compute."""
    if isinstance(expression, t.Literal):
        return draft.literal(expression)[0]
    if isinstance(expression, t.Parameter):
        return columns[expression.name]
    if isinstance(expression, t.Negative):
        return -evaluate(expression.operand, columns, draft)
    if isinstance(expression, t.Function) and expression.name == "pattern":
        how, parameter = expression.arguments
        return draft.pattern_numbers(how.value, columns[parameter.name])  # type: ignore[union-attr]
    if isinstance(expression, t.Function):
        return np.abs(evaluate(expression.arguments[0], columns, draft))
    assert isinstance(expression, t.Arithmetic)
    left, right = (evaluate(side, columns, draft) for side in (expression.left, expression.right))
    times = [draft.kind(side) is TIME for side in (expression.left, expression.right)]
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
