"""From predicate trees to templates: shapes.

A *shape* is a profile with its constants lifted out as parameters; all profiles of a shape share its templates, one
per clause of the normal form. :mod:`tamis.engine.intervals` says what becomes of a clause's predicates,
:mod:`tamis.engine.programs` how expressions are computed, :mod:`tamis.engine.templates` keeps the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tamis.model import tree as t
from tamis.model.normal import Clause, normalise
from tamis.model.schema import Schema, context_name
from tamis.model.shapes import Piece
from tamis.model.shapes import joined as conjunction
from tamis.model.values import Kind

from .intervals import Draft
from .pieces import MAX_CLAUSES, PieceTemplates, spread
from .programs import evaluate
from .templates import Names, TemplateStore
from .values import ValueStore

__all__ = ["MAX_CLAUSES", "Columns", "Compiler", "Names", "Shape"]

MAX_SIGNATURES = 4_096
_NOTHING: frozenset[str] = frozenset()
_CODED = ("text", "list", "categories")  # kinds whose values are codes
# Encoded parameter columns: doubles, and residuals where integers are beyond 2**53.
Columns = Mapping[str, tuple[NDArray[np.float64], NDArray[np.int16] | None]]


class Shape(NamedTuple):
    """A compiled profile shape."""

    source: t.Condition | tuple[Piece, ...]  # pieces, where the condition is a conjunction of them
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
    def condition(self) -> t.Condition:
        """The tree, made when it is asked for: most shapes are never asked."""
        return conjunction(self.source) if type(self.source) is tuple else self.source  # type: ignore[return-value]

    @property
    def width(self) -> int:
        """How many constants a profile of this shape has."""
        return len(self.parameters) + len(self.wide) + len(self.computed)


class Compiler(TemplateStore):
    """Turns shapes into templates."""

    def __init__(self, schema: Schema, values: ValueStore) -> None:
        super().__init__(schema, values)
        self._pieces = PieceTemplates(self)
        # Names and kinds of the parameters of assembled shapes, by the kinds alone: shapes share them.
        self._signatures: dict[str, tuple[tuple[str, ...], Mapping[str, Kind]]] = {}

    def compile(
        self,
        condition: t.Condition,
        effects: tuple[t.Effect, ...],
        kinds: Mapping[str, Kind],
        wide: frozenset[str] = frozenset(),
        clauses: tuple[Clause, ...] | None = None,
    ) -> Shape:
        """The shape of a profile whose names are in the schema; ``wide`` parameters hold integers beyond 2**53.

        ``clauses`` is the normal form of the condition, if it is known.
        """
        parameters = tuple(dict.fromkeys(_parameters(condition, effects)))
        draft = Draft(self, parameters, kinds, wide)
        clauses = normalise(condition, MAX_CLAUSES) if clauses is None else clauses
        templates = tuple(draft.template(clause) for clause in spread(clauses))
        effect_codes = tuple(draft.effect(effect) for effect in effects)
        stores = any(
            (kind := self.schema.kind(context_name(effect.target))) is None or kind.name in _CODED for effect in effects
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
        draft = Draft(self, (), {}, frozenset())
        clauses = normalise(condition, MAX_CLAUSES)
        programs = [self.emit([i for predicate in clause for i in draft.test(predicate)]) for clause in clauses]
        return programs, [draft.effect(effect) for effect in effects]

    def assemble(self, pieces: tuple[Piece, ...]) -> Shape | None:
        """The shape of a conjunction whose pieces are over settled names; None when it takes :meth:`compile`."""
        templates = self._pieces.templates(pieces)
        if templates is None:
            return None
        signature = "".join([piece.signature for piece in pieces])
        found = self._signatures.get(signature)
        if found is None:
            kinds = {name: kind for piece in pieces for name, kind in piece.kinds.items()}
            if len(self._signatures) >= MAX_SIGNATURES:
                self._signatures.clear()
            found = self._signatures[signature] = (tuple(kinds), kinds)
        names, kinds_ = found
        return Shape(pieces, (), names, kinds_, _NOTHING, templates, (), (), False, False)

    def constants(
        self, shape: Shape, columns: Mapping[str, tuple[NDArray[np.float64], NDArray[np.int16] | None]]
    ) -> NDArray[np.float64]:
        """The own constants of many profiles of a shape, [profile, width], from encoded parameter columns."""
        draft = Draft(self, shape.parameters, shape.kinds, shape.wide)
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


def _parameters(condition: t.Condition, effects: Sequence[t.Effect]) -> Iterator[str]:
    for root in (condition, *(effect.value for effect in effects)):
        names = [node.name for node in t.walk(root) if isinstance(node, t.Parameter)]
        yield from reversed(names)  # walk is depth-first from the right
