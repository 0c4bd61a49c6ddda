"""Subscriptions on their way in: shapes, and profiles that wait to be indexed together.

A profile is checked when it is subscribed and indexed when somebody needs the index, so that a loop of ``subscribe``
calls costs about what one bulk load costs. Texts of the same shape are parsed and compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.errors import EventError, ProfileError, TamisError
from tamis.kernels import bundles as b
from tamis.model import tree as t
from tamis.model.categories import graph_name, unknown_category
from tamis.model.language import defect
from tamis.model.matches import Id
from tamis.model.normal import Clause
from tamis.model.normal import normalise as normal_form
from tamis.model.profile import Profile, checked_id, read_profile
from tamis.model.schema import Schema
from tamis.model.shapes import MAX_SHAPES, Lifted, Shapes, joined, substitute
from tamis.model.tables import Column, Table, to_list, to_table
from tamis.model.values import NUMBER, TEXT, Kind, kind_of, normalise

from .compile import MAX_CLAUSES, Columns, Compiler, Shape
from .contexts import ContextStore
from .encode import column_kind, encode_arrow
from .profiles import ProfileStore
from .values import WIDE, ValueStore

_KINDS: dict[type, Kind] = {int: NUMBER, float: NUMBER, str: TEXT}
Add = Callable[[], NDArray[np.int32]]


class _Waiting:
    """Profiles that wait, by column: an object per profile would cost the garbage collector a fifth of the load."""

    __slots__ = ("contexts", "ids", "shapes", "values")

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.shapes: list[int] = []
        self.values: list[tuple[Any, ...]] = []
        self.contexts: list[int] = []


class _Bulk(NamedTuple):
    shape: int
    codes: NDArray[np.int32]
    contexts: NDArray[np.int32]
    columns: Columns


class Subscriptions:
    """The way from a profile in any form to rows of the profile store."""

    def __init__(self, schema: Schema, compiler: Compiler, contexts: ContextStore, profiles: ProfileStore) -> None:
        self._schema, self._compiler, self._contexts, self._profiles = schema, compiler, contexts, profiles
        self.shapes: list[Shape] = []
        self.stores_codes = False  # whether an effect of any shape may put a text or list of a message into a context
        self._shared_effects: list[int] = []
        self._needs_context: list[bool] = []
        self._plain: list[bool] = []
        # Of every shape with category constants: the graph of each, and its text or the number of its parameter.
        self._asked: dict[int, list[tuple[str, str | int]]] = {}
        self._numbers: dict[Any, int] = {}
        self._admitted: set[Any] = set()
        self._texts = Shapes()
        self._waiting = _Waiting()
        self._bulk: list[_Bulk] = []

    @property
    def pending(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting.ids or self._bulk)

    # -- one ---------------------------------------------------------------------------------------------------

    def add(self, id: Id, profile: Any, context: int | None, on_match: Any) -> None:
        """Check one profile and let it wait."""
        key, lifted, values = self._lift(id, profile, on_match)
        number = self._numbers.get(key)
        if self._schema.graphs and not self._known_categories(number, values):
            # A lifted constant has to be a category: the long way tells what is wrong before anything is kept.
            self._checked(id, profile, context is not None, on_match)
        if number is None or (context is None and self._needs_context[number]):
            number, values = self._first_of(id, profile, context, on_match, key, lifted)
        waiting = self._waiting
        waiting.ids.append(id)
        waiting.shapes.append(number)
        waiting.values.append(values)
        waiting.contexts.append(-1 if context is None else context)

    def admit(self, id: Id, profile: Any, has_context: bool, on_match: Any) -> None:
        """Check one profile as :meth:`add` does, fix the kinds it needs, and keep nothing else of it."""
        key, _, values = self._lift(id, profile, on_match)
        number = self._numbers.get(key)
        if self._schema.graphs and not self._known_categories(number, values):
            self._checked(id, profile, has_context, on_match)
            return
        if number is not None and (has_context or not self._needs_context[number]):
            return
        if key is None or (key, has_context) not in self._admitted:
            self._checked(id, profile, has_context, on_match)
            if key is not None:
                if len(self._admitted) >= MAX_SHAPES:
                    self._admitted.clear()
                self._admitted.add((key, has_context))

    def _known_categories(self, number: int | None, values: tuple[Any, ...]) -> bool:
        """Whether the categories of a profile of a known shape are known; false where that has to be looked at."""
        if number is None:
            return False
        graphs = self._schema.graphs
        for graph, asked in self._asked.get(number, ()):
            if (values[asked] if isinstance(asked, int) else asked) not in graphs[graph]:
                return False
        return True

    def _ask_categories(self, number: int, condition: t.Condition) -> None:
        asked: list[tuple[str, str | int]] = []
        for node in t.walk(condition):
            graph = graph_name(node, self._schema.graphs) if isinstance(node, t.Within | t.Covers) else None
            if graph is None or not isinstance(node, t.Within | t.Covers):
                continue
            for part in node.category.items if isinstance(node.category, t.Items) else (node.category,):
                if isinstance(part, t.Literal):
                    asked.append((graph, str(part.value)))
                elif isinstance(part, t.Parameter) and part.name.startswith("#"):
                    asked.append((graph, int(part.name[1:])))
        if asked:
            self._asked[number] = asked

    def _lift(self, id: Id, profile: Any, on_match: Any) -> tuple[Any, Lifted | None, tuple[Any, ...]]:
        """The key of a profile's shape (``None`` when it is no text), what is lifted out of it, and its constants."""
        if type(profile) is not str or not (on_match is None or type(on_match) is str):
            return None, None, ()
        try:
            lifted = self._texts.take_apart(profile)
        except ProfileError as error:
            error.profile = id
            raise
        key: Any = profile
        values: tuple[Any, ...] = ()
        if lifted is not None and _stays_lifted(lifted.values):
            key, _, values = lifted
        else:
            lifted = None
        return key if on_match is None else (key, on_match), lifted, values

    def _checked(self, id: Id, profile: Any, has_context: bool, on_match: Any) -> Profile:
        """The profile after every check; the schema has the kinds it needs."""
        read = read_profile(profile, on_match, id)
        read.ready(id, has_context)
        try:
            normal_form(read.condition, MAX_CLAUSES)
        except ProfileError as error:
            error.profile, error.text = id, read.text
            raise
        read.admit(self._schema, id)
        return read

    def _first_of(
        self, id: Id, profile: Any, context: int | None, on_match: Any, key: Any, lifted: Lifted | None
    ) -> tuple[int, tuple[Any, ...]]:
        """The first profile of a shape, and where an error is due: the number of the shape, and the constants."""
        if lifted is not None:
            if on_match is None:
                number = self._assembled(id, key, lifted.parts, context is not None)
                if number is not None:
                    return number, lifted.values
            try:
                tree = self._texts.tree(lifted, profile)
            except ProfileError as error:
                error.profile = id
                raise
            if tree is not None:
                return self._read(id, profile, context, on_match, key, tree, lifted.values), lifted.values
            key = profile if on_match is None else (profile, on_match)
        return self._read(id, profile, context, on_match, key, None, ()), ()

    def _assembled(self, id: Id, key: Any, parts: list[str], has_context: bool) -> int | None:
        """The short way, for a conjunction: pieces that are known need no parsing, checking or compiling."""
        pieces = self._texts.pieces(parts)
        if pieces is None:
            return None
        uses = any([piece.uses_context for piece in pieces])  # noqa: C419 (a generator takes three times as long)
        if uses and not has_context:
            return None
        shape = self._compiler.assemble(pieces)
        if shape is not None:
            self._numbers[key] = number = len(self.shapes)
            self._append(shape, uses, bool(shape.templates), 0)
            return number
        tree = joined(pieces)
        kinds = {name: kind for piece in pieces for name, kind in piece.kinds.items()}
        try:
            self._schema.admit(tree, (), id, kinds)
        except ProfileError:
            return None
        clause = tuple(dict.fromkeys(predicate for piece in pieces for predicate in piece.clause))
        return self._number(key, tree, (), kinds, clauses=(clause,))

    def _read(
        self, id: Id, profile: Any, context: int | None, on_match: Any, key: Any, tree: t.Condition | None, values: Any
    ) -> int:
        """The long way, with every check."""
        kinds = {f"#{i}": _KINDS[type(value)] for i, value in enumerate(values)}
        if tree is not None and on_match is None and self._is_ready(tree, context is not None):
            # The lifted tree will do; what is wrong with it is told better by the long way below.
            try:
                clauses = normal_form(tree, MAX_CLAUSES)
                self._schema.admit(tree, (), id, kinds)
                return self._number(key, tree, (), kinds, clauses=clauses)
            except ProfileError:
                pass
        read = self._checked(id, profile, context is not None, on_match)
        condition = read.condition if tree is None else tree
        if key is None:
            key = (condition, read.effects)
        return self._number(key, condition, read.effects, kinds)

    def _is_ready(self, tree: t.Condition, has_context: bool) -> bool:
        """Whether a lifted tree has no parameters of its own, and no use for a context that it has not got."""
        for node in t.walk(tree):
            if isinstance(node, t.Context) and not has_context:
                return False
            if isinstance(node, t.Parameter) and not node.name.startswith("#"):
                return False
        return True

    def _number(
        self,
        key: Any,
        condition: t.Condition,
        effects: tuple[t.Effect, ...],
        kinds: Mapping[str, Kind],
        wide: frozenset[str] = frozenset(),
        clauses: tuple[Clause, ...] | None = None,
    ) -> int:
        number = self._numbers.get(key)
        if number is None:
            shape = self._compiler.compile(condition, effects, kinds, wide, clauses)
            number = len(self.shapes)
            self.adopt(shape)
            self._numbers[key] = number
        return number

    def adopt(self, shape: Shape, shared_effects: int | None = None) -> None:
        """Append a compiled shape."""
        uses = any(isinstance(node, t.Context) for node in t.walk(shape.condition)) or bool(shape.effects)
        plain = bool(shape.templates) and not (shape.effects or shape.computed or shape.wide)
        plain = plain and shape.parameters == tuple(f"#{i}" for i in range(len(shape.parameters)))
        if shared_effects is None:
            shared_effects = 0 if shape.own_effects else self._profiles.place_effects(shape.effect_codes)
        self._append(shape, uses, plain, shared_effects)

    def _append(self, shape: Shape, uses_context: bool, plain: bool, shared_effects: int) -> None:
        if self._schema.graphs:
            self._ask_categories(len(self.shapes), shape.condition)
        self.shapes.append(shape)
        self.stores_codes = self.stores_codes or shape.stores_codes
        self._needs_context.append(uses_context)
        self._plain.append(plain)
        self._shared_effects.append(shared_effects)

    @property
    def shared_effects(self) -> list[int]:
        """The first effect row of every shape, for saving."""
        return self._shared_effects

    # -- many --------------------------------------------------------------------------------------------------

    def add_many(self, profile: Any, source: Any, on_match: Any, context_codes: Callable[[Any], Any]) -> int:
        """Check a table of profiles and let it wait; returns how many."""
        read = read_profile(profile, on_match)
        table = to_table(source, "subscribe_many")
        names = read.parameters()
        for name in ("id", *names):
            table.column(name)
        if table.num_rows == 0:
            return 0
        wrong: dict[int, str] = {}
        ids = _ids(table, wrong)
        columns: dict[str, Any] = {}
        kinds: dict[str, Kind] = {}
        for name in names:
            columns[name], kinds[name] = self._parameter(name, table.column(name), wrong)
        contexts = self._contexts_of(table, read, context_codes, wrong)
        self._check_patterns(read, table, wrong)
        self._check_categories(read, table, wrong)
        if not wrong:
            try:
                normal_form(read.condition, MAX_CLAUSES)
                self._schema.admit(read.condition, read.effects, table.row(0).get("id"), kinds)
            except ProfileError as error:
                wrong[0] = read.located(error).message
        if wrong:
            raise _bad_rows(wrong)
        wide = frozenset(name for name, (_, residual) in columns.items() if residual is not None)
        self._compiler.has_wide |= bool(wide)
        key = ("prepared", read.condition, read.effects, tuple(kinds.items()), wide)
        number = self._number(key, read.condition, read.effects, kinds, wide)
        codes = self._profiles.ids.intern_many(ids)
        self._bulk.append(_Bulk(number, codes, contexts, columns))
        return table.num_rows

    def _parameter(
        self, name: str, column: Column, wrong: dict[int, str]
    ) -> tuple[tuple[NDArray[np.float64], NDArray[np.int16] | None], Kind]:
        values = self._compiler.values
        if not isinstance(column, list):
            kind = column_kind(column.type)
            if kind is not None and column.null_count == 0:
                fast = encode_arrow(column, kind, values)
                if fast is not None:
                    return (fast.value, fast.residual), kind
            column = to_list(column)
        doubles, residuals = np.zeros(len(column)), np.zeros(len(column), np.int16)
        first: Kind | None = None
        for i, given in enumerate(column):
            try:
                value = normalise(given)
                if value is None:
                    raise EventError(f"parameter {{{name}}} has no value")
                kind = kind_of(value)
                if first is None or first.element is None:
                    first = kind
                elif kind is not first and not (kind is not None and kind.name == first.name and kind.element is None):
                    raise EventError(f"parameter {{{name}}}: expected {first.phrase}, as in row 0, got {kind}")
                doubles[i], residuals[i] = values.encode(value)
            except EventError as error:
                wrong.setdefault(i, error.reason)
        return (doubles, residuals if residuals.any() else None), first or NUMBER

    def _contexts_of(
        self, table: Table, read: Profile, context_codes: Callable[[Any], Any], wrong: dict[int, str]
    ) -> NDArray[np.int32]:
        nobody = np.full(table.num_rows, -1, np.int32)
        column = table.column("context") if "context" in table.names else None
        if column is None or (not isinstance(column, list) and column.null_count == len(column)):
            if read.uses_context():
                message = "the profile uses a context; give it one in the column 'context'"
                wrong.update(dict.fromkeys(range(table.num_rows), message))
            return nobody
        if not isinstance(column, list) and column.null_count == 0:
            try:
                codes: NDArray[np.int32] = context_codes(column)
                return codes
            except EventError:
                pass
        for i, given in enumerate(to_list(column)):
            if given is None:
                if read.uses_context():
                    wrong.setdefault(i, "the profile uses a context and the row has none")
                continue
            try:
                nobody[i] = context_codes([given])[0]
            except EventError as error:
                wrong.setdefault(i, error.reason)
        return nobody

    def _check_patterns(self, read: Profile, table: Table, wrong: dict[int, str]) -> None:
        for node in read.nodes():
            if isinstance(node, t.Like | t.Matches) and isinstance(node.pattern, t.Parameter):
                for i, text in enumerate(to_list(table.column(node.pattern.name))):
                    found = defect(type(node)(node.value, t.Literal(text))) if isinstance(text, str) else None
                    if found is not None:
                        wrong.setdefault(i, found[1])

    def _check_categories(self, read: Profile, table: Table, wrong: dict[int, str]) -> None:
        for node in read.nodes() if self._schema.graphs else ():
            graph = graph_name(node, self._schema.graphs) if isinstance(node, t.Within | t.Covers) else None
            if graph is None or not isinstance(node, t.Within | t.Covers):
                continue
            known: dict[Any, str | None] = {}
            for part in node.category.items if isinstance(node.category, t.Items) else (node.category,):
                for i, given in enumerate(to_list(table.column(part.name)) if isinstance(part, t.Parameter) else ()):
                    for text in (given,) if isinstance(given, str) or not isinstance(given, Iterable) else given:
                        if text not in known:
                            known[text] = (
                                unknown_category(self._schema.graphs[graph], text) if isinstance(text, str) else None
                            )
                        if known[text] is not None:
                            wrong.setdefault(i, str(known[text]))

    # -- in ----------------------------------------------------------------------------------------------------

    def take(self) -> tuple[list[Add], list[int]]:
        """Everything that waits: functions that store one shape's profiles each, and codes to retire before."""
        adds: list[Add] = []
        replaced: list[int] = []
        waiting, self._waiting = self._waiting, _Waiting()
        bulk, self._bulk = self._bulk, []
        if waiting.ids:
            codes = self._profiles.ids.intern_many(waiting.ids)
            order = self._profiles.next_order(len(codes))
            keep = _last_of_each(codes)
            replaced += self._profiles.alive_among(codes[keep])
            groups: dict[int, list[int]] = {}
            plain: dict[tuple[int, int], list[int]] = {}
            for i in keep.tolist():
                number = waiting.shapes[i]
                if self._plain[number]:
                    plain.setdefault((len(waiting.values[i]), len(self.shapes[number].templates)), []).append(i)
                else:
                    groups.setdefault(number, []).append(i)
            for (width, _), members in plain.items():
                adds.append(self._plain_adder(width, members, waiting, codes, order))
            for number, members in groups.items():
                at = np.array(members)
                contexts = np.array([waiting.contexts[i] for i in members], np.int32)
                columns = self._lifted(self.shapes[number], [waiting.values[i] for i in members])
                adds.append(self._adder(number, codes[at], contexts, columns, order[at]))
        for batch in bulk:
            order = self._profiles.next_order(len(batch.codes))
            keep = _last_of_each(batch.codes)
            replaced += self._profiles.alive_among(batch.codes[keep])
            columns = batch.columns
            if len(keep) < len(order):
                columns = {name: (d[keep], None if r is None else r[keep]) for name, (d, r) in columns.items()}
            adds.append(self._adder(batch.shape, batch.codes[keep], batch.contexts[keep], columns, order[keep]))
        return adds, replaced

    def _adder(self, number: int, codes: Any, contexts: Any, columns: Columns, order: Any) -> Add:
        shape = self.shapes[number]

        def add() -> NDArray[np.int32]:
            constants = self._compiler.constants(shape, columns)
            if len(constants) != len(codes):
                constants = np.broadcast_to(constants, (len(codes), shape.width))
            templates = np.broadcast_to(np.array(shape.templates, np.int32), (len(codes), len(shape.templates)))
            shared = self._shared_effects[number]
            return self._profiles.add(codes, contexts, order, number, templates, constants, shape, shared)

        return add

    def _plain_adder(self, width: int, members: list[int], waiting: _Waiting, codes: Any, order: Any) -> Add:
        """Profiles of many shapes at once: as many clauses each, constants as they are, no effects."""

        def add() -> NDArray[np.int32]:
            flat = [value for i in members for value in waiting.values[i]]
            texts = [value for value in flat if type(value) is str]
            if texts:
                interned = iter(self._compiler.values.texts.intern_many(texts).tolist())
                flat = [next(interned) if type(value) is str else value for value in flat]
            constants = np.array(flat, np.float64).reshape(len(members), width)
            numbers = [waiting.shapes[i] for i in members]
            templates = np.array([self.shapes[number].templates for number in numbers], np.int32)
            contexts = np.array([waiting.contexts[i] for i in members], np.int32)
            at = np.array(members)
            return self._profiles.add(codes[at], contexts, order[at], np.array(numbers, np.int32), templates, constants)

        return add

    def _lifted(self, shape: Shape, rows: list[tuple[Any, ...]]) -> Columns:
        texts = self._compiler.values.texts
        columns: dict[str, Any] = {}
        for name in shape.parameters:
            i = int(name[1:])
            given = [row[i] for row in rows]
            if shape.kinds[name] is TEXT:
                columns[name] = (texts.intern_many(given).astype(np.float64), None)
            else:
                columns[name] = (np.array(given, np.float64), None)
        return columns

    # -- out ---------------------------------------------------------------------------------------------------

    def read(self, code: int, profiles: ProfileStore, values: ValueStore) -> tuple[t.Condition, int]:
        """The condition of a stored profile with its constants in place, and its context."""
        shape = self.shapes[int(profiles.row[code, b.SHAPE])]
        first = int(profiles.row[code, b.FIRST_CLAUSE])
        if first < 0:
            return shape.condition, -1
        own, context = int(profiles.meta[first, b.CONSTANTS]), int(profiles.meta[first, b.CONTEXT])
        given: dict[str, Any] = {}
        at = own
        for name in shape.parameters:
            residual = int(profiles.constant[at + 1]) if name in shape.wide else 0
            kind = shape.kinds[name]
            given[name] = values.decode(float(profiles.constant[at]), residual, kind)
            at += 2 if name in shape.wide else 1
        return substitute(shape.condition, given), context


def _stays_lifted(values: tuple[Any, ...]) -> bool:
    """True and false fold in the normal form; wide integers are rare: neither is lifted."""
    for value in values:
        kind = type(value)
        if kind is bool or (kind is int and not -WIDE <= value <= WIDE):
            return False
    return True


def _last_of_each(codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Positions of the last occurrence of every code, ascending."""
    _, first_from_end = np.unique(codes[::-1], return_index=True)
    return np.sort(len(codes) - 1 - first_from_end)


def _ids(table: Table, wrong: dict[int, str]) -> Any:
    column = table.column("id")
    if not isinstance(column, list) and column.null_count == 0:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return column
        if pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type):
            return column.cast(pa.string())
        if pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type):
            return column.cast(pa.int64())
    ids: list[Any] = []
    for i, given in enumerate(to_list(column)):
        try:
            ids.append(checked_id(given))
        except TamisError as error:
            ids.append(0)
            wrong.setdefault(i, str(error))
    return ids


def _bad_rows(wrong: Mapping[int, str]) -> ProfileError:
    listed = [f"row {i}: {wrong[i]}" for i in sorted(wrong)]
    more = f"; and {len(listed) - 5} more" if len(listed) > 5 else ""
    plural = "row" if len(listed) == 1 else "rows"
    return ProfileError("bad-rows", f"{len(listed)} bad {plural}: {'; '.join(listed[:5])}{more}")
