"""Conjunctions from compiled pieces: what many shapes share is compiled once.

A piece (:class:`tamis.model.shapes.Piece`) is kept compiled once nothing about it can change: the kinds of all its
names are settled, and a settled kind stays; the kinds and numbers of its parameters belong to the piece. Whatever has
anything open, or constants computed per profile (whose place depends on the other pieces), is not kept, and the shape
goes through :meth:`tamis.engine.compile.Compiler.compile`, which gives an equivalent result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tamis.model import tree as t
from tamis.model.normal import Clause
from tamis.model.shapes import MAX_SET, Piece

from .intervals import Draft
from .templates import Interval, OpenTest, TemplateStore, code_bytes, interval_bytes, joined

MAX_CLAUSES = 64
# A set of at most so many constants becomes that many clauses, each with an equality the index can use.
MAX_SPREAD = MAX_SET
MAX_PIECES = 100_000


class _Compiled(NamedTuple):
    """A part that is complete: its bytes go into a template as they are, unless attributes come twice."""

    attributes: int  # a bit per message attribute with an interval
    intervals: list[Interval]
    rows: bytes
    program: bytes
    gate: bytes
    depends: int


class _Known:
    """A piece compiled: as one part, or, if it is a small set of constants, as one alternative per constant."""

    __slots__ = ("alternatives", "distinct", "whole", "written")

    def __init__(self, whole: _Compiled | None, alternatives: Sequence[_Compiled] | None, predicate: t.Node) -> None:
        self.whole = whole  # None for a set that was always spread so far
        self.alternatives = alternatives
        self.distinct = spread_size(predicate)
        self.written = len(predicate.collection.items) if self.distinct is not None else 0  # type: ignore[union-attr]


class PieceTemplates:
    """The compiled pieces of one template store."""

    def __init__(self, store: TemplateStore) -> None:
        self._store = store
        self._known: dict[Piece, _Known] = {}
        self._refused: set[Piece] = set()  # with constants computed per profile

    def templates(self, pieces: Sequence[Piece]) -> tuple[int, ...] | None:
        """Append the templates of a conjunction; None, and no template appended, when a piece cannot be kept."""
        if len([piece for piece in pieces if not piece.kinds]) > 1:
            # In a normal form a predicate stands once. With parameters, which differ, no two are the same.
            unique: dict[Piece | Clause, Piece] = {}
            for piece in pieces:
                unique.setdefault(piece if piece.kinds else piece.clause, piece)
            pieces = tuple(unique.values())
        known = self._known
        try:
            found = [known[piece] for piece in pieces]
        except KeyError:
            if not self._learn(pieces):
                return None
            found = [known[piece] for piece in pieces]
        best: _Known | None = None
        for one in found:
            if one.distinct is not None and (best is None or one.distinct < best.written):
                best = one
        if best is None:
            return (self._add([one.whole for one in found]),)  # type: ignore[misc]
        parts = [
            one.whole or self._whole(piece, one) for piece, one in zip(pieces, found, strict=True) if one is not best
        ]
        at = found.index(best)
        assert best.alternatives is not None
        return tuple([self._add([*parts[:at], one, *parts[at:]]) for one in best.alternatives])

    def _add(self, parts: Sequence[_Compiled]) -> int:
        attributes = depends = 0
        rows = program = gate = b""
        for part in parts:
            if attributes & part.attributes:
                intervals = [replace(interval) for one in parts for interval in one.intervals]
                rows = interval_bytes(joined(intervals))
                program = b"".join([one.program for one in parts])
                gate = b"".join([one.gate for one in parts])
                for one in parts:
                    depends |= one.depends
                break
            attributes |= part.attributes
            rows += part.rows
            program += part.program
            gate += part.gate
            depends |= part.depends
        return self._store.add_bytes(rows, program, gate, depends)

    def _learn(self, pieces: Sequence[Piece]) -> bool:
        """Compile the pieces that are new; false when one of them has to be compiled with the others."""
        if len(self._known) + len(self._refused) > MAX_PIECES:
            self._known.clear()
            self._refused.clear()
        new = [piece for piece in pieces if piece not in self._known]
        fits = self._store.schema.fits
        if any(piece in self._refused or not fits(piece.tree, piece.kinds) for piece in new):
            return False
        for piece in new:
            known = self._compiled(piece)
            if known is None:
                self._refused.add(piece)
                return False
            self._known[piece] = known
        return True

    def _compiled(self, piece: Piece) -> _Known | None:
        predicate = piece.clause[0]
        if len(piece.clause) == 1 and spread_size(predicate) is not None:
            equal = [self._part(piece, (one,)) for one in _alternatives(predicate)]
            return None if None in equal else _Known(None, equal, predicate)  # type: ignore[arg-type]
        if any(spread_size(predicate) is not None for predicate in piece.clause):
            return None
        whole = self._part(piece, piece.clause)
        return None if whole is None else _Known(whole, None, predicate)

    def _whole(self, piece: Piece, known: _Known) -> _Compiled:
        """A set in a clause that spreads another one."""
        whole = known.whole = self._part(piece, piece.clause)
        assert whole is not None, "a set of constants has neither parameters nor anything open"
        return whole

    def _part(self, piece: Piece, clause: Clause) -> _Compiled | None:
        names = tuple(piece.kinds)
        draft = Draft(self._store, names, piece.kinds, frozenset(), int(names[0][1:]) if names else 0)
        part = draft.part(clause)
        if draft.computed or any(interval.open_side is not None for interval in part.intervals):
            return None
        if any(isinstance(op, OpenTest) for code in (part.program, part.gate) for op, _, _ in code):
            return None
        attributes = 0
        for interval in part.intervals:
            attributes |= 1 << interval.attribute
        rows = interval_bytes(joined([replace(interval) for interval in part.intervals]))
        program, gate = code_bytes(part.program), code_bytes(part.gate)
        return _Compiled(attributes, part.intervals, rows, program, gate, part.depends)


def spread(clauses: tuple[Clause, ...]) -> tuple[Clause, ...]:
    """Turn one small set of constants per clause into clauses with an equality each."""
    out: list[Clause] = []
    for i, clause in enumerate(clauses):
        rest = len(clauses) - i - 1
        best = None
        for predicate in clause:
            size = spread_size(predicate)
            if size is not None and len(out) + size + rest <= MAX_CLAUSES:
                best = predicate if best is None or size < len(best.collection.items) else best  # type: ignore[union-attr]
        if best is None:
            out.append(clause)
            continue
        for equal in _alternatives(best):
            out.append(tuple(equal if predicate is best else predicate for predicate in clause))
    return tuple(out)


def spread_size(predicate: t.Node) -> int | None:
    """How many clauses a small set of constants becomes; None for any other predicate."""
    if type(predicate) is not t.Member or type(predicate.value) is not t.Attribute:
        return None
    items = predicate.collection
    if type(items) is not t.Items or not all(map(_is_constant, items.items)):
        return None
    size = len(set(items.items))
    return size if size <= MAX_SPREAD else None


def _is_constant(item: t.Expression) -> bool:
    """A constant as written, or lifted out of a text; the parameters of prepared profiles stay together."""
    return type(item) is t.Literal or (type(item) is t.Parameter and item.name[0] == "#")


def _alternatives(member: t.Node) -> list[t.Compare]:
    assert isinstance(member, t.Member) and isinstance(member.collection, t.Items)
    return [t.Compare("==", member.value, item) for item in dict.fromkeys(member.collection.items)]
