"""The templates' bundle: what clauses share apart from their constants, as rows that only grow.

Guarantees that a row, an instruction or a pooled constant keeps its number for good; what is new waits in byte strings
and joins the arrays when somebody asks for them. Refuses to know predicates (:mod:`tamis.engine.intervals`) and
expressions (:mod:`tamis.engine.programs`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.index.growth import with_room
from tamis.kernels import bundles as b
from tamis.kernels import program as p
from tamis.model import tree as t
from tamis.model.schema import Schema
from tamis.model.values import TEXT

from .values import ValueStore

if TYPE_CHECKING:
    from .categories import Categories

Code = list[tuple[int, int, int]]

# A row of ``Templates.row``: six numbers, and the context attributes it depends on as one word of 64 bits.
_ROW = struct.Struct("=6iQ")
_PREDICATE_BYTES = 4 * b.PREDICATE_COLUMNS
_INSTRUCTION_BYTES = 12


class OpenTest(int):
    """An order comparison whose kind is not known yet; as a number it is the comparison of numbers."""

    side: t.Expression

    def __new__(cls, op: int, side: t.Expression) -> OpenTest:
        made = super().__new__(cls, op)
        made.side = side
        return made


@dataclass
class Interval:
    """One end or two on one attribute, as columns of ``Templates.predicate``."""

    attribute: int
    low: tuple[int, int, int, int] = (b.NONE, 0, 0, 0)
    high: tuple[int, int, int, int] = (b.NONE, 0, 0, 0)
    traits: int = 0
    open_side: t.Expression | None = None  # an order comparison of a kind not known yet

    def row(self) -> tuple[int, ...]:
        return (self.attribute, *self.low, *self.high, self.traits)


def joined(intervals: list[Interval]) -> list[Interval]:
    """A lower and an upper end on one attribute make one interval; further ones make the attribute COMPLEX."""
    out: list[Interval] = []
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


class Names:
    """Attribute names and their columns; columns are handed out in order of first use and stay."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.column: dict[str, int] = {name: i for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> int:
        return self.column.setdefault(name, len(self.column))

    def __len__(self) -> int:
        return len(self.column)


def interval_bytes(intervals: Sequence[Interval]) -> bytes:
    """Rows of ``Templates.predicate``."""
    return np.array([interval.row() for interval in intervals], np.int32).tobytes() if intervals else b""


def code_bytes(code: Code) -> bytes:
    """Rows of ``Templates.code``."""
    return np.array(code, np.int32).tobytes() if code else b""


class TemplateStore:
    """Templates, and the names, constants and patterns that they refer to."""

    def __init__(self, schema: Schema, values: ValueStore) -> None:
        self.schema = schema
        self.values = values
        # The content graphs that predicates are about; set by whoever has some.
        self.categories: Categories | None = None
        self.gated = False  # whether a gate asks a graph, so that it may open when the graph changes
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
        self._given_up: list[int] = []  # predicates whose interval was, since somebody asked
        self._settled = -1
        self._bundle: b.Templates | None = None
        self._pooled: dict[tuple[float, int], int] = {}
        # What is not in the arrays yet.
        self._new_rows, self._new_predicates, self._new_code = bytearray(), bytearray(), bytearray()

    def bundle(self) -> b.Templates:
        """The arrays as kernels see them: settled, so that no bound is ever taken from a comparison of texts."""
        self.settle()
        self._write()
        self._bundle = b.Templates.current(
            self._bundle, self._row, self._predicate, self._code, self._pool, self._pool_residual
        )
        return self._bundle

    def arrays(self) -> dict[str, NDArray[Any]]:
        self._write()
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

    def _write(self) -> None:
        """Move what waits into the arrays."""
        if self._new_rows:
            self._row = _appended(self._row, self.sizes[0], self._new_rows)
            self._new_rows = bytearray()
        if self._new_predicates:
            self._predicate = _appended(self._predicate, self.sizes[1], self._new_predicates)
            self._new_predicates = bytearray()
        if self._new_code:
            self._code = _appended(self._code, self.sizes[2], self._new_code)
            self._new_code = bytearray()

    # -- constants ---------------------------------------------------------------------------------------------

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

    # -- kinds that are not known yet --------------------------------------------------------------------------

    def settle(self) -> None:
        """Kinds may have become known: order comparisons that turn out to be of texts compare texts from now on."""
        if self._settled == self.schema.version:
            return
        self._settled = self.schema.version
        if not self._open and not self._open_intervals:
            return
        self._write()
        for at, side in self._open:
            if self.schema.infer(side) is TEXT:
                self._code[at, 0] += p.TEXT_LESS - p.LESS
        for at, side in self._open_intervals:
            if self.schema.infer(side) is TEXT:
                self._predicate[at, [b.LOW, b.HIGH]] = b.NONE
                self._given_up.append(at)
        self._open = [(at, side) for at, side in self._open if self.schema.infer(side) is None]
        self._open_intervals = [(at, side) for at, side in self._open_intervals if self.schema.infer(side) is None]

    def lately_changed(self) -> NDArray[np.int64]:
        """The templates that have given up an interval since the last call, as of now."""
        self.settle()
        if not self._given_up:
            return _NONE
        self._write()
        first = self._row[: self.sizes[0], b.FIRST_PREDICATE]
        found = np.unique(np.searchsorted(first, self._given_up, "right") - 1)
        self._given_up = []
        return found

    def open_names(self) -> tuple[list[tuple[int, t.Expression]], list[tuple[int, t.Expression]]]:
        """What ``settle`` has still to decide, for saving."""
        return self._open, self._open_intervals

    def reopen(self, instructions: Sequence[Any], intervals: Sequence[Any]) -> None:
        """What ``open_names`` gave out."""
        self._open, self._open_intervals, self._settled = list(instructions), list(intervals), -1

    # -- templates ---------------------------------------------------------------------------------------------

    def emit(self, code: Code) -> tuple[int, int]:
        """Append a program; returns its first instruction and its length."""
        at = self.sizes[2]
        for i, (op, _, _) in enumerate(code):
            if isinstance(op, OpenTest):
                self._open.append((at + i, op.side))
                self._settled = -1
        return self.emit_bytes(code_bytes(code))

    def emit_bytes(self, code: bytes) -> tuple[int, int]:
        """:meth:`emit` for a program without open tests, as :func:`code_bytes` gave it."""
        at, length = self.sizes[2], len(code) // _INSTRUCTION_BYTES
        self.sizes[2] += length
        self._new_code += code
        return at, length

    def add(self, intervals: Sequence[Interval], program: Code, gate: Code, depends: int) -> int:
        """Append a template; returns its number."""
        for i, interval in enumerate(intervals):
            if interval.open_side is not None:
                self._open_intervals.append((self.sizes[1] + i, interval.open_side))
                self._settled = -1
        return self._add(interval_bytes(intervals), self.emit(program), self.emit(gate), depends)

    def add_bytes(self, intervals: bytes, program: bytes, gate: bytes, depends: int) -> int:
        """:meth:`add` for intervals and programs that have nothing open."""
        return self._add(intervals, self.emit_bytes(program), self.emit_bytes(gate), depends)

    def _add(self, intervals: bytes, program: tuple[int, int], gate: tuple[int, int], depends: int) -> int:
        """The one place where a row of ``Templates.row`` is made."""
        at, first, _, _ = self.sizes
        count = len(intervals) // _PREDICATE_BYTES
        self._new_predicates += intervals
        self._new_rows += _ROW.pack(first, count, *program, *gate, depends)
        self.sizes[0] += 1
        self.sizes[1] += count
        return at


_NONE = np.zeros(0, np.int64)


def _appended(array: NDArray[np.int32], size: int, new: bytearray) -> NDArray[np.int32]:
    """The array with the last rows of ``size`` taken from ``new``."""
    rows = np.frombuffer(new, np.int32).reshape(-1, array.shape[1])
    array = with_room(array, size)
    array[size - len(rows) : size] = rows
    return array
