"""Intervals: what of a clause an index can use, and what is left for its program and its gate.

For every predicate of a clause:
- ``x <= ctx.stock - 5``: the attribute alone on one side, nothing of the message on the other: an interval whose end
  is a constant, a context value, a context value plus a constant, or a program over the context;
- ``abs(x - ctx.x) <= 150``, ``x - ctx.x < 5``: the same after rearranging, as an OUTER interval, with the predicate
  itself as written in the program, because rearranging rounds;
- a predicate without message attributes: the gate;
- everything else: the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

import numpy as np

from tamis.kernels import bundles as b
from tamis.kernels import program as p
from tamis.model import tree as t
from tamis.model.normal import Clause
from tamis.model.values import NUMBER, TIME

from .programs import Programs, is_constant
from .templates import Code, Interval, joined

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


class Part(NamedTuple):
    """What some predicates of a clause add to its template; ``depends`` is a bit per context attribute."""

    intervals: list[Interval]
    program: Code
    gate: Code
    depends: int


class Draft(Programs):
    """The compilation of one shape or piece, with intervals."""

    def template(self, clause: Clause) -> int:
        """Append the template of a clause."""
        intervals, program, gate, depends = self.part(clause)
        return self.store.add(joined(intervals), program, gate, depends)

    def part(self, clause: Clause) -> Part:
        """What a clause, or a part of it, adds to its template."""
        intervals: list[Interval] = []
        program: Code = []
        gate: Code = []
        depends = 0
        for predicate in clause:
            simple = self._simple(predicate)
            if simple is not None:
                intervals.append(simple)
                continue
            leaves = [n for n in t.walk(predicate) if isinstance(n, t.Attribute | t.Context)]
            if isinstance(_bare(predicate), t.Within | t.Covers) and any(isinstance(n, t.Attribute) for n in leaves):
                program += self.test(predicate)  # of no concern to intervals, so neither are its context attributes
                continue
            for leaf in leaves:
                if isinstance(leaf, t.Context):
                    depends |= 1 << min(63, self.store.context_attributes[leaf.name])
            if not any(isinstance(leaf, t.Attribute) for leaf in leaves):
                gate += self.test(predicate)
                self.store.gated |= isinstance(_bare(predicate), t.Within | t.Covers)
                continue
            found = self.interval(predicate)
            if found is None:
                program += self.test(predicate)
                continue
            intervals.append(found)
            if found.traits & b.OUTER:
                program += self.test(predicate)
        return Part(intervals, program, gate, depends)

    def interval(self, predicate: t.Predicate | t.Not) -> Interval | None:
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
                    # Numbers or texts? The program knows when the time comes (see ``TemplateStore.settle``).
                    found = self._ends(x, op, other, b.OUTER | b.COMPLEX)
                    found.open_side = x
                    return found
                return self._ends(x, op, other, 0)
            turned = _rearranged(x, op, other) if kind is NUMBER else None
            if turned is not None and self.kind(turned.attribute) is NUMBER:
                return self._turned(turned)
        return None

    def _turned(self, turned: _Turned) -> Interval:
        """A rearranged comparison: ends computed with a margin, because rearranging rounds."""
        found = Interval(self.store.attributes[turned.attribute.name], traits=b.OUTER | b.COMPLEX)
        operands = [*self.expression(turned.one), *self.expression(turned.other)]
        if turned.op in (">", ">=", "==", "around"):
            sign = int(turned.op != "around" and turned.plus)
            found.low = (b.COMPUTED, *self.store.emit([*operands, (p.BELOW, sign, 0)]), 0)
        if turned.op in ("<", "<=", "==", "around"):
            sign = int(turned.op == "around" or turned.plus)
            found.high = (b.COMPUTED, *self.store.emit([*operands, (p.ABOVE, sign, 0)]), 0)
        return found

    def _simple(self, predicate: t.Predicate | t.Not) -> Interval | None:
        """``x <= 5``, the commonest predicate, without a walk through the tree."""
        if type(predicate) is not t.Compare or predicate.op == "!=" or type(predicate.left) is not t.Attribute:
            return None
        right, op = predicate.right, predicate.op
        if type(right) is t.Parameter:
            if right.name in self.wide:
                return None
        elif type(right) is not t.Literal:
            return None
        kind = self.kind(predicate.left)
        if kind is None or (kind not in (NUMBER, TIME) and op != "=="):
            return None
        if type(right) is t.Parameter:
            index = self.slot[right.name]
        else:
            double, residual = self.literal(right)  # type: ignore[arg-type]
            if residual:
                return None
            index = self.store.pool(double)
        found = Interval(self.store.attributes[predicate.left.name])
        end = (b.CONST, 0, index, int(op in ("<", ">")))
        if op in (">", ">=", "=="):
            found.low = end
        if op in ("<", "<=", "=="):
            found.high = end
        return found

    def _point(self, attribute: t.Attribute, value: float) -> Interval:
        end = (b.CONST, 0, self.store.pool(value), 0)
        return Interval(self.store.attributes[attribute.name], end, end)

    def _ends(self, x: t.Attribute, op: str, end: t.Expression, traits: int) -> Interval:
        found = Interval(self.store.attributes[x.name], traits=traits)
        strict = int(op in ("<", ">"))
        if op in (">", ">=", "=="):
            found.low = (*self._end(end, found), strict)
        if op in ("<", "<=", "=="):
            found.high = (*self._end(end, found), strict)
        return found

    def _end(self, expression: t.Expression, found: Interval) -> tuple[int, int, int]:
        """Kind, context attribute and constant of one end."""
        if is_constant(expression):
            if self.is_wide(expression):
                found.traits |= b.OUTER
            return b.CONST, 0, self.constant(expression)
        columns = self.store.context_attributes
        if isinstance(expression, t.Context):
            return b.CTX, columns[expression.name], 0
        if isinstance(expression, t.Arithmetic) and expression.op in "+-":
            left, right, op = expression.left, expression.right, expression.op
            if op == "+" and isinstance(right, t.Context) and is_constant(left):
                left, right = right, left
            if isinstance(left, t.Context) and is_constant(right):
                is_time, shift = self.kind(left) is TIME, self.kind(right)
                if shift is NUMBER:
                    if is_time:
                        right = t.Arithmetic("*", right, t.Literal(1e6))
                    return b.CTX_PLUS, columns[left.name], self.constant(right if op == "+" else t.Negative(right))
        code = self.store.emit(self.expression(expression))
        found.traits |= b.COMPLEX
        return b.COMPUTED, *code

    def _hull(self, member: t.Member) -> Interval | None:
        """The smallest interval around a set: found first, tested by the program."""
        assert isinstance(member.value, t.Attribute)
        found = Interval(self.store.attributes[member.value.name], traits=b.OUTER)
        collection = member.collection
        if isinstance(collection, t.Context):
            column = self.store.context_attributes[collection.name]
            found.traits |= b.COMPLEX
            found.low = (b.COMPUTED, *self.store.emit([(p.CONTEXT, column, 0), (p.LIST_LOW, 0, 0)]), 0)
            found.high = (b.COMPUTED, *self.store.emit([(p.CONTEXT, column, 0), (p.LIST_HIGH, 0, 0)]), 0)
            return found
        if isinstance(collection, t.Items) and all(isinstance(item, t.Literal) for item in collection.items):
            doubles = [self.literal(item)[0] for item in collection.items]  # type: ignore[arg-type]
            if doubles and not any(np.isnan(doubles)):
                found.low = (b.CONST, 0, self.store.pool(min(doubles)), 0)
                found.high = (b.CONST, 0, self.store.pool(max(doubles)), 0)
                return found
        return None


def _bare(predicate: t.Predicate | t.Not) -> t.Condition:
    return predicate.item if isinstance(predicate, t.Not) else predicate


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
