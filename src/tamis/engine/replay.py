"""From a log to kernel calls: segments between subscriptions, encoded, replayed shard by shard, collected.

The kinds of all columns are settled before a segment is encoded (see :meth:`Replay._settle`), so that a kernel only
ever sees values of the right kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.errors import EventError, TamisError
from tamis.kernels import bundles as b
from tamis.kernels import process as kernel
from tamis.model.events import KINDS, MESSAGE, SUBSCRIBE, UPDATE, EventLog, UpdateTable
from tamis.model.matches import Id, Matches, Rejected
from tamis.model.schema import context_name, message_name
from tamis.model.tables import Table, to_list
from tamis.model.values import TEXT, normalise

from . import notice, warm
from .batches import Batches
from .encode import FEW, column_kind, encode_column
from .values import Mark, read_only

if TYPE_CHECKING:
    from .filter import Filter

_NO_UPDATES = (np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0), np.zeros(0, np.int16))
_ONE_MESSAGE = np.array([[kernel.MESSAGE, 0, 1]])
# Events times clauses below which one thread is done before another has woken up, later still on a busy machine.
WORTH_THREADS = 4_000
_WRONG_EFFECT = "an effect has no value: an absent attribute, a division by zero, or NaN"


@dataclass
class _Segment:
    """Part of a log without subscriptions, encoded."""

    messages: b.Messages
    skip: NDArray[np.uint8]
    updates: tuple[NDArray[Any], ...]
    runs: NDArray[np.int64]
    tracked: NDArray[np.int32]
    mark: Mark
    wrong_messages: dict[int, str] = field(default_factory=dict)
    wrong_updates: dict[int, str] = field(default_factory=dict)


@dataclass
class _Result:
    codes: NDArray[np.int32]
    counts: NDArray[np.int64]  # per message
    failures: NDArray[np.int64]  # [n, 2]: message, profile code or -1 - track


class Replay:
    """Runs logs on the state of a filter."""

    def __init__(self, owner: Filter) -> None:
        self._filter = owner
        self._serial = 0
        self._names: tuple[int, list[tuple[str, str]]] = (-1, [])
        self.batches = Batches(owner)
        # The row that ``one`` fills again and again; never handed out.
        self._row = b.Messages(np.empty((1, 1)), np.zeros((0, 0), np.int16))

    def message_names(self) -> list[tuple[str, str]]:
        """The message attributes that matter, with their schema names."""
        schema = self._filter._schema
        if self._names[0] != schema.version:
            self._names = (schema.version, [(name, message_name(name)) for name in schema.message_attributes()])
        return self._names[1]

    # -- one message -------------------------------------------------------------------------------------------

    def one(self, message: Mapping[str, Any]) -> list[Id]:
        """``match``: a log of one row."""
        f = self._filter
        f._flush()
        values = f._accept(message)
        f._compiler.settle()
        mark = f._values.mark()
        columns = f._compiler.attributes.column
        if self._row.value.shape[1] != max(1, len(columns)):
            self._row = b.Messages(np.empty((1, max(1, len(columns)))), np.zeros((0, 0), np.int16))
        row, residual = self._row.value, self._row.residual
        row.fill(b.ABSENT)
        for name, value in values.items():
            at = columns.get(name)
            if at is not None:
                row[0, at], wide = f._values.encode_as(f._schema.kind(message_name(name)), value)
                if wide:
                    if not len(residual):
                        residual = np.zeros(row.shape, np.int16)
                    residual[0, at] = wide
        tracked = np.empty((len(f._tracks), 1), np.int32)
        for j, track in enumerate(f._tracks):
            context = track.template.fill(values)
            tracked[j, 0] = f._tracked(context)
        messages = b.Messages(row, residual) if len(residual) else self._row
        segment = _Segment(messages, np.zeros(1, np.uint8), _NO_UPDATES, _ONE_MESSAGE, tracked, mark)
        self._judge(segment.messages)
        result = self._execute(segment)
        self._forget(mark)
        f._history.add_one(message)
        f._counts["messages"] += 1
        f._counts["matches"] += len(result.codes)
        f._counts["effects_skipped"] += len(result.failures)
        codes = result.codes
        if len(codes) > 1:
            codes = codes[np.argsort(f._profiles.order[codes])]
        return [f._profiles.ids[code] for code in codes.tolist()]

    # -- logs --------------------------------------------------------------------------------------------------

    def run(self, log: EventLog) -> Matches:
        """``process``: segments of messages and updates, and subscriptions between them."""
        f = self._filter
        f._flush()
        found: list[NDArray[np.int32]] = []
        counts = np.zeros(0 if log.messages is None else log.messages.num_rows, np.int64)
        rejected: list[tuple[int, int, str, int, str]] = []
        for at, stop in log.segments():
            kind, first, last = log.runs[at].tolist()
            if kind in (MESSAGE, UPDATE):
                self._run_segment(log, at, stop, found, counts, rejected)
                continue
            for i in range(first, last):
                self._subscription(log, kind, i, at, rejected)
        f._tidy()  # the log that leaves lists behind pays for them, not the next
        f._counts["rejected"] += sum(1 for entry in rejected if entry[2] != "effect")
        codes = found[0] if len(found) == 1 else np.concatenate([np.zeros(0, np.int32), *found])
        f._counts["matches"] += len(codes)
        rejected.sort(key=lambda entry: entry[:2])
        return Matches(
            lambda: np.repeat(log.message_rows, counts),
            codes,
            f._profiles.ids.take,
            Rejected((kind, row, reason) for _, _, kind, row, reason in rejected),
        )

    def _subscription(self, log: EventLog, kind: int, i: int, at: int, rejected: list[Any]) -> None:
        f = self._filter
        table: Any = log.subscribes if kind == SUBSCRIBE else log.unsubscribes
        try:
            if kind == SUBSCRIBE:
                f.subscribe(table.id[i], table.profile[i], table.context[i], table.on_match[i])
            else:
                f.unsubscribe(table.id[i])
        except TamisError as error:
            rejected.append((at, i, KINDS[kind], int(table.rows[i]), str(error)))

    def _run_segment(self, log: EventLog, at: int, stop: int, found: Any, counts: Any, rejected: Any) -> None:
        f = self._filter
        f._flush()
        runs = log.runs[at:stop]
        segment = self._encode(log, runs)
        with notice.compiling():
            result = self._execute(segment)
        self._forget(segment.mark)
        found.append(result.codes)
        m0 = _start(runs, MESSAGE)
        f._history.add(_sliced(log.messages, m0, _stop(runs, MESSAGE)), segment.skip)
        counts[m0 : m0 + len(result.counts)] = result.counts
        f._counts["messages"] += len(result.counts) - len(segment.wrong_messages)
        f._counts["updates"] += int(np.sum((runs[:, 2] - runs[:, 1])[runs[:, 0] == UPDATE])) - len(
            segment.wrong_updates
        )
        f._counts["effects_skipped"] += len(result.failures)
        if not (segment.wrong_messages or segment.wrong_updates or len(result.failures)):
            return
        u0 = _start(runs, UPDATE)
        for i, reason in segment.wrong_messages.items():
            rejected.append((*_position(runs, MESSAGE, m0 + i, at), "message", int(log.message_rows[m0 + i]), reason))
        for i, reason in segment.wrong_updates.items():
            assert log.updates is not None
            row = int(log.updates.rows[u0 + i])
            rejected.append((*_position(runs, UPDATE, u0 + i, at), "update", row, reason))
        for i, owner in result.failures.tolist():
            who = (
                f"profile {f._profiles.ids[owner]!r}"
                if owner >= 0
                else f"track {f._tracks[-1 - owner].template.text!r}"
            )
            row = int(log.message_rows[m0 + i])
            rejected.append((*_position(runs, MESSAGE, m0 + i, at), "effect", row, f"{who}: {_WRONG_EFFECT}"))

    def update_all(self, log: EventLog) -> None:
        """A log of updates, all or nothing."""
        f = self._filter
        f._flush()
        before, mark = f._schema.to_dict(), f._values.mark()
        segment = self._encode(log, log.runs)
        if segment.wrong_updates:
            f._restore_schema(before)
            f._values.forget(mark)
            f._categories.forget(mark[0])
            row, reason = min(segment.wrong_updates.items())
            raise EventError(f"update_many: row {row}: {reason}")
        with notice.compiling():
            self._execute(segment)
        f._counts["updates"] += len(segment.updates[0])

    def recall(self, log: EventLog, clauses: NDArray[np.int64]) -> NDArray[np.int64]:
        """The messages of a log that one of the clauses matches as things stand; nothing happens to them."""
        f = self._filter
        f._fit()
        segment = self._encode(log, log.runs)
        out = np.empty(len(segment.skip), np.int64)
        found = kernel.recall(clauses, segment.skip, out, f._world(0, segment.messages))
        self._forget(segment.mark)
        return out[:found]

    # -- encoding ----------------------------------------------------------------------------------------------

    def _encode(self, log: EventLog, runs: NDArray[np.int64]) -> _Segment:
        f = self._filter
        m0, m1 = _start(runs, MESSAGE), _stop(runs, MESSAGE)
        u0, u1 = _start(runs, UPDATE), _stop(runs, UPDATE)
        messages = _sliced(log.messages, m0, m1)
        updates = _sliced_updates(log.updates, u0, u1)
        moved = runs.copy()
        moved[runs[:, 0] == MESSAGE, 1:] -= m0
        moved[runs[:, 0] == UPDATE, 1:] -= u0
        self._settle(messages, updates, moved)
        wrong_messages: dict[int, str] = {}
        wrong_updates: dict[int, str] = {}
        # Updates first: their texts stay, those of the messages behind the mark are taken back.
        coded = self._encode_updates(updates, wrong_updates) if updates is not None else _NO_UPDATES
        for column, patterns in f._compiler.context_patterns.items():
            _judge_column(f._values, patterns, coded[2][coded[1] == column])
        mark = f._values.mark()
        encoded, skip = self._encode_messages(messages, m1 - m0, wrong_messages)
        tracked = self._track_contexts(messages, m1 - m0, skip)
        self._judge(encoded)
        return _Segment(encoded, skip, coded, moved, tracked, mark, wrong_messages, wrong_updates)

    def _settle(self, messages: Table | None, updates: UpdateTable | None, runs: NDArray[np.int64]) -> None:
        """Fix the kinds still open, in the order of the log: look at events until none is open any more."""
        f = self._filter
        schema = f._schema
        open_names = set()
        if messages is not None:
            present = set(messages.names)
            open_names |= {n for a, n in self.message_names() if a in present and _is_open(schema.kind(n))}
        if updates is not None:
            for attribute in updates.attribute.dictionary.to_pylist():
                if isinstance(attribute, str) and attribute and _is_open(schema.kind(context_name(attribute))):
                    open_names.add(context_name(attribute))
        attributes = codes = None
        for kind, first, last in runs.tolist():
            for i in range(first, last):
                if not open_names:
                    f._compiler.settle()
                    return
                if kind == MESSAGE:
                    assert messages is not None
                    try:
                        f._accept(messages.row(i))
                    except EventError:
                        continue
                else:
                    assert updates is not None
                    if attributes is None:
                        attributes, codes = updates.attribute.dictionary.to_pylist(), updates.attribute.indices
                    assert codes is not None
                    code = codes[i].as_py()
                    name = context_name(attributes[code]) if code is not None and attributes[code] else None
                    if name is None or not self._context_exists(updates, i):
                        continue
                    value = updates.value[i]
                    try:
                        value = normalise(value.as_py() if isinstance(value, pa.Scalar) else value)
                    except EventError:
                        continue
                    if value is not None:
                        schema.observe({name: value}, f"since an update of {self._context_shown(updates, i)}")
                open_names = {name for name in open_names if _is_open(schema.kind(name))}
        f._compiler.settle()

    def _context_exists(self, updates: UpdateTable, i: int) -> bool:
        if isinstance(updates.context, np.ndarray):
            return 0 <= int(updates.context[i]) < len(self._filter._contexts)
        return updates.context[i].as_py() is not None

    def _context_shown(self, updates: UpdateTable, i: int) -> str:
        if isinstance(updates.context, np.ndarray):
            return repr(self._filter._contexts.names[int(updates.context[i])])
        return repr(updates.context[i].as_py())

    def _encode_messages(
        self, table: Table | None, n: int, wrong: dict[int, str]
    ) -> tuple[b.Messages, NDArray[np.uint8]]:
        f = self._filter
        columns = f._compiler.attributes.column
        value = np.full((n, max(1, len(columns))), b.ABSENT)
        residual = np.zeros((0, 0), np.int16)
        if table is not None:
            present = set(table.names)
            for attribute, name in self.message_names():
                if attribute not in present:
                    continue
                coded = encode_column(name, table.column(attribute), f._schema, f._values, attribute)
                for i, reason in coded.wrong.items():
                    wrong.setdefault(i, reason)
                at = columns.get(attribute)
                if at is None:
                    continue
                value[:, at] = coded.value
                if coded.residual is not None:
                    if not len(residual):
                        residual = np.zeros(value.shape, np.int16)
                    residual[:, at] = coded.residual
                    f._compiler.has_wide = True
        skip = np.zeros(n, np.uint8)
        if wrong:
            skip[list(wrong)] = 1
        return b.Messages(value, residual), skip

    def _encode_updates(self, updates: UpdateTable, wrong: dict[int, str]) -> tuple[NDArray[Any], ...]:
        f = self._filter
        n = len(updates.value)
        contexts = self._update_contexts(updates, wrong)
        names = updates.attribute.dictionary.to_pylist()
        codes = _indices(updates.attribute)
        lut = np.full(len(names) + 1, -1, np.int32)
        for j, attribute in enumerate(names):
            if isinstance(attribute, str) and attribute:
                lut[j] = f._compiler.context_attributes[attribute]
        # Often the names come in the order of the columns: then the codes are the columns.
        regular = not updates.attribute.null_count and np.array_equal(lut[:-1], np.arange(len(names)))
        attributes = codes.astype(np.int32, copy=False) if regular else lut[codes]
        if not regular:
            for i in np.nonzero(attributes < 0)[0].tolist():
                wrong.setdefault(i, "update: expected the name of an attribute, got None")
        kinds = {j: f._schema.kind(context_name(names[j])) for j in np.nonzero(lut >= 0)[0].tolist()}
        column = updates.value
        given = None if isinstance(column, list) else column_kind(column.type)
        if any(kind is not given for kind in kinds.values()):
            occur = set(_used(codes, len(names)).tolist())
            kinds = {j: kind for j, kind in kinds.items() if j in occur}
        if given is not None and all(kind is given for kind in kinds.values()):
            some = next((names[j] for j in kinds), None)
            coded = encode_column(context_name(some), column, f._schema, f._values, "") if some else None
            if coded is None:
                return contexts, np.full(n, -1, np.int32), np.zeros(n), np.zeros(0, np.int16)
            value, residual = coded.value, coded.residual
            for i, reason in coded.wrong.items():
                wrong.setdefault(i, f"ctx.{names[codes[i]]}{reason}")
        else:
            whole = len(kinds) == 1 and not np.any(attributes < 0)
            value, residual = np.full(0 if whole else n, b.ABSENT), None
            for j in kinds:
                at = np.zeros(0, np.int64) if whole else np.nonzero(codes == j)[0]
                part = column if whole else _taken(column, at)
                coded = encode_column(context_name(names[j]), part, f._schema, f._values, f"ctx.{names[j]}")
                for i, reason in coded.wrong.items():
                    wrong.setdefault(i if whole else int(at[i]), reason)
                if whole:
                    value, residual = coded.value, coded.residual
                    break
                value[at] = coded.value
                if coded.residual is not None:
                    residual = np.zeros(n, np.int16) if residual is None else residual
                    residual[at] = coded.residual
        if wrong:
            attributes = attributes.copy()
            attributes[list(wrong)] = -1
        if residual is not None:
            f._compiler.has_wide = True
        return contexts, attributes, value, np.zeros(0, np.int16) if residual is None else residual

    def _update_contexts(self, updates: UpdateTable, wrong: dict[int, str]) -> NDArray[np.int64]:
        f = self._filter
        if isinstance(updates.context, np.ndarray):
            codes = np.ascontiguousarray(updates.context, np.int64)
            if len(codes) and codes.view(np.uint64).max() >= len(f._contexts):  # unsigned, so below nought is beyond
                bad = (codes < 0) | (codes >= len(f._contexts))
                for i in np.nonzero(bad)[0].tolist():
                    wrong[i] = f"context: there is no context with index {int(codes[i])}"
                codes = np.where(bad, 0, codes)
            return codes
        names = updates.context.dictionary
        indices = _indices(updates.context)
        known = np.zeros(len(names) + 1, np.int64)
        # Only names that occur in this part of the log become contexts.
        used = _used(indices, len(names))
        if len(used) <= FEW:
            known[used] = [f._contexts.names.intern(names[j].as_py()) for j in used.tolist()]
        else:
            known[used] = f._contexts.names.intern_many(names.take(pa.array(used)).cast(pa.large_string()))
        if updates.context.null_count:
            for i in np.nonzero(indices == len(names))[0].tolist():
                wrong[i] = "context: expected a name, or an index from context_index(), got None"
        found: NDArray[np.int64] = known[indices]
        return found

    def _track_contexts(self, table: Table | None, n: int, skip: NDArray[np.uint8]) -> NDArray[np.int32]:
        f = self._filter
        tracked = np.full((len(f._tracks), n), -1, np.int32)
        if table is None or not f._tracks:
            return tracked
        for j, track in enumerate(f._tracks):
            template = track.template
            wanted = list(dict.fromkeys(template.attributes))
            if not set(wanted) <= set(table.names):
                continue
            columns = [to_list(table.column(name)) for name in wanted]
            named: dict[Any, int] = {}
            for i in np.nonzero(skip == 0)[0].tolist():
                key = tuple(column[i] for column in columns)
                if None in key:
                    continue
                # 0 and 0.0, 0.0 and -0.0 are equal, but print differently, and the name is what they print.
                typed = (*key, *map(type, key), *(str(value) for value in key if value == 0))
                code = named.get(typed)
                if code is None:
                    values = {name: normalise(value) for name, value in zip(wanted, key, strict=True)}
                    code = f._tracked(template.fill(values))
                    named[typed] = code
                tracked[j, i] = code
        return tracked

    def _judge(self, messages: b.Messages) -> None:
        """Prepare the verdicts of patterns on the texts of this segment."""
        f = self._filter
        for column, patterns in f._compiler.message_patterns.items():
            if column < messages.value.shape[1]:
                _judge_column(f._values, patterns, messages.value[:, column])
        for patterns in f._compiler.context_patterns.values() if self._stores_codes() else ():
            # Effects may carry any text of a message into the context.
            for attribute, at in f._compiler.attributes.column.items():
                kind = f._schema.kind(message_name(attribute))
                if kind is TEXT and at < messages.value.shape[1]:
                    _judge_column(f._values, patterns, messages.value[:, at])

    def _stores_codes(self) -> bool:
        f = self._filter
        return bool(f._tracks) or f._subscriptions.stores_codes

    def _forget(self, mark: Mark) -> None:
        """Take back the texts and lists of messages, unless contexts may hold them now."""
        if not self._stores_codes():
            self._filter._values.forget(mark)
            self._filter._categories.forget(mark[0])

    # -- execution ---------------------------------------------------------------------------------------------

    def _execute(self, segment: _Segment) -> _Result:
        f = self._filter
        f._fit()
        warm.done()
        if f._auto is not None:
            f._auto.load.saw(segment.messages.value, segment.updates[1])
        rules, conditions = self._rules()
        room = f._profiles.clauses
        profiles = f._profiles.bundle()
        n = len(segment.skip)
        serial, self._serial = self._serial, self._serial + n
        updates = tuple(read_only(column) for column in segment.updates)

        batched = self.batches.wanted(n, len(updates[0]))

        def shard(number: int) -> tuple[Any, Any, Any]:
            if batched:
                return self.batches.run(number, segment, updates, serial, profiles, room)
            found: tuple[Any, Any, Any] = kernel.replay(
                f._indexes[number].bundle,
                f._catalogues[number].bundle,
                number,
                f.threads,
                segment.runs,
                updates,
                segment.skip,
                rules,
                conditions,
                segment.tracked,
                serial,
                profiles,
                f._world(number, segment.messages),
                room,
            )
            return found

        if f.threads == 1:
            codes, ends, failures = shard(0)
            return _Result(codes, _counts(ends), failures)
        if (n + len(segment.updates[0])) * room < WORTH_THREADS:
            parts = [shard(number) for number in range(f.threads)]
        else:
            if f._pool is None:
                f._pool = ThreadPoolExecutor(f.threads)
            parts = list(f._pool.map(shard, range(f.threads)))
        counts = [_counts(ends) for _, ends, _ in parts]
        message = np.concatenate([np.repeat(np.arange(n), count) for count in counts])
        codes = np.concatenate([codes for codes, _, _ in parts])
        order = np.argsort(message, kind="stable")
        failures = np.concatenate([failures for _, _, failures in parts])
        return _Result(codes[order], np.sum(counts, axis=0), failures[np.argsort(failures[:, 0], kind="stable")])

    def _rules(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The tracks as arrays; their effects lie in the profile store."""
        f = self._filter
        rules = np.zeros((len(f._tracks), 4), np.int32)
        conditions: list[tuple[int, int]] = []
        for j, track in enumerate(f._tracks):
            rules[j] = (track.first_effect, len(track.effects), len(conditions), len(track.clauses))
            conditions += track.clauses
        return rules, np.array(conditions, np.int32).reshape(-1, 2)


def _counts(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lengths of the runs that end at ``ends``."""
    counts = ends.copy()
    counts[1:] -= ends[:-1]
    return counts


def _is_open(kind: Any) -> bool:
    return kind is None or (kind.name == "list" and kind.element is None)


def _start(runs: NDArray[np.int64], kind: int) -> int:
    mine = runs[runs[:, 0] == kind]
    return int(mine[0, 1]) if len(mine) else 0


def _stop(runs: NDArray[np.int64], kind: int) -> int:
    mine = runs[runs[:, 0] == kind]
    return int(mine[-1, 2]) if len(mine) else 0


def _sliced(table: Table | None, first: int, last: int) -> Table | None:
    if table is None or first == last:
        return None
    if last - first == table.num_rows:
        return table
    return Table({name: table.column(name)[first:last] for name in table.names}, last - first)


def _sliced_updates(updates: UpdateTable | None, first: int, last: int) -> UpdateTable | None:
    if updates is None or first == last:
        return None
    if last - first == len(updates):
        return updates
    return UpdateTable(
        updates.context[first:last], updates.attribute[first:last], updates.value[first:last], updates.rows[first:last]
    )


def _taken(column: Any, rows: NDArray[np.int64]) -> Any:
    return [column[i] for i in rows.tolist()] if isinstance(column, list) else column.take(pa.array(rows))


def _indices(column: Any) -> NDArray[Any]:
    """The codes of a dictionary array; null is the number behind the last."""
    indices = column.indices
    return np.asarray(indices.fill_null(len(column.dictionary)) if indices.null_count else indices)


def _used(codes: NDArray[Any], size: int) -> NDArray[np.int64]:
    """Which of the codes 0 to size - 1 occur, in order."""
    if len(codes) and codes[0] < size and codes.min() == codes.max():  # often, and ten times as fast
        return codes[:1].astype(np.int64)
    occurs = np.zeros(size + 1, np.bool_)
    occurs[codes] = True
    return np.nonzero(occurs[:size])[0]


def _position(runs: NDArray[np.int64], kind: int, i: int, at: int) -> tuple[int, int]:
    """The place of event ``i`` of a kind in the log: (run, position inside)."""
    mine = np.nonzero(runs[:, 0] == kind)[0]
    k = mine[np.searchsorted(runs[mine, 1], i, side="right") - 1]
    return at + int(k), i


def _judge_column(values: Any, patterns: Any, doubles: NDArray[np.float64]) -> None:
    codes = doubles[doubles == doubles]
    if len(codes):
        values.judge(patterns, codes.astype(np.int64))
