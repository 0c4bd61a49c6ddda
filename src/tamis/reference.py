"""The reference filter: the meaning of tamis, naive and plain.

Guarantees nothing but the truth: every profile is tested against every message, one event at a time, with
:mod:`tamis.model.meaning`. Every test compares with it. It shares no matching code with the engine, and refuses to
be fast: O(profiles) per message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.errors import EventError, InvariantError, ProfileError, TamisError, UsageError
from tamis.model import tree as t
from tamis.model.categories import Graphs, read_graphs
from tamis.model.events import EventLog
from tamis.model.explanation import Explanation, explain
from tamis.model.matches import Id, Matches, Rejected
from tamis.model.meaning import assigned, holds
from tamis.model.packed import pack, unpack
from tamis.model.past import Past, history_room, recall_bounds
from tamis.model.profile import Profile, checked_id, read_profile, well_formed
from tamis.model.schema import Schema, context_name, message_name
from tamis.model.tables import to_list, to_table
from tamis.model.template import Template
from tamis.model.values import Kind, Value, kind_of, normalise, shown

MAX_CLAUSES = 64
_EVENTS = ("messages", "updates", "subscribes", "unsubscribes")
_COUNTERS = (*_EVENTS, "matches", "effects", "effects_skipped", "rejected")


@dataclass(frozen=True, slots=True)
class _Subscription:
    id: Id
    profile: Profile
    context: str | None


@dataclass(frozen=True, slots=True)
class _Track:
    template: Template
    profile: Profile


class ReferenceFilter:
    """A filter with the same face as :class:`tamis.Filter`, in the simplest code that is right.

    >>> f = ReferenceFilter()
    >>> f.subscribe("w-A", "quantity <= ctx.stock", context="A", on_match="ctx.stock -= quantity")
    >>> f.update("A", stock=12)
    >>> f.match({"quantity": 7}), f.context("A")
    (['w-A'], {'stock': 5.0})
    """

    def __init__(self, *, schema: Mapping[str, str | Kind] | None = None, graphs: Any = None, history: int = 0) -> None:
        self._graphs: Graphs = read_graphs(graphs)
        self._schema = Schema(schema, self._graphs)
        self._room = history_room(history)
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._profiles: dict[Id, _Subscription] = {}
        self._contexts: dict[str, dict[str, Value]] = {}
        self._names: list[str] = []
        self._tracks: list[_Track] = []
        self._stats = dict.fromkeys(_COUNTERS, 0)

    # -- profiles ----------------------------------------------------------------------------------------------

    def subscribe(self, id: Id, profile: Any, context: str | int | None = None, on_match: Any = None) -> None:
        """Adds a profile, or replaces the one with that id; the new one is the last in subscription order."""
        id = checked_id(id)
        read = read_profile(profile, on_match, id)
        self._insert(id, read, context)
        self._stats["subscribes"] += 1

    def subscribe_many(self, profile: Any, table: Any, on_match: Any = None) -> None:
        """One profile per row of a table with the columns ``id``, optionally ``context``, and one per parameter.

        All or nothing: bad rows raise one :class:`ProfileError` that names them.
        """
        prepared = read_profile(profile, on_match)
        rows = to_table(table, "subscribe_many")
        for name in ("id", *prepared.parameters()):
            rows.column(name)
        schema = self._copied_schema()
        before = (schema, dict(self._profiles), dict(self._contexts), list(self._names))
        wrong = []
        for i, row in enumerate(rows.rows()):
            try:
                id = checked_id(row.get("id"))
                values = {name: _given(name, row) for name in prepared.parameters()}
                filled = prepared.fill(values)
                well_formed(filled.condition)
                self._insert(id, filled, row.get("context"))
            except TamisError as error:
                wrong.append(f"row {i}: {getattr(error, 'message', error)}")
        if wrong:
            self._schema, self._profiles, self._contexts, self._names = before
            more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            plural = "row" if len(wrong) == 1 else "rows"
            raise ProfileError("bad-rows", f"{len(wrong)} bad {plural}: {'; '.join(wrong[:5])}{more}")
        self._stats["subscribes"] += rows.num_rows

    def unsubscribe(self, id: Id) -> None:
        """Removes a profile; :class:`EventError` when there is none with that id."""
        if self._profiles.pop(_key(id), None) is None:
            raise EventError(f"unsubscribe: there is no profile {shown(id)}")
        self._stats["unsubscribes"] += 1

    def _insert(self, id: Id, profile: Profile, context: Any) -> None:
        profile.ready(id, context is not None)
        name = None if context is None else self._context_name(context)
        if _clauses(profile.condition, False) > MAX_CLAUSES:
            raise ProfileError("too-many-clauses", f"more than {MAX_CLAUSES} alternatives", profile=id)
        profile.admit(self._schema, id)
        self._profiles.pop(id, None)
        self._profiles[id] = _Subscription(id, profile, name)
        if name is not None:
            self._open(name)

    @property
    def profiles(self) -> int:
        """The number of profiles."""
        return len(self._profiles)

    def __len__(self) -> int:
        return len(self._profiles)

    def __contains__(self, id: object) -> bool:
        return _key(id) in self._profiles

    # -- contexts ----------------------------------------------------------------------------------------------

    def update(self, context: str | int, attributes: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Sets attributes of a context, all or nothing; ``None`` removes an attribute."""
        name = self._context_name(context)
        values = {}
        for attribute, value in {**(attributes or {}), **more}.items():
            values[attribute] = self._readable(context_name(_attribute(attribute)), value)
        named = {context_name(attribute): value for attribute, value in values.items()}
        reason = self._schema.observe(named, f"since an update of {name!r}")
        if reason is not None:
            raise EventError(reason)
        self._open(name)
        for attribute, value in values.items():
            self._store(name, attribute, value)
        self._stats["updates"] += len(values)

    def update_many(self, contexts: Any, attribute: str, values: Any) -> None:
        """Sets one attribute of many contexts, in order; all or nothing."""
        table = to_table({"context": contexts, "value": values}, "update_many")
        schema = self._copied_schema()
        changes = []
        for i, (context, value) in enumerate(
            zip(to_list(table.column("context")), to_list(table.column("value")), strict=True)
        ):
            try:
                name = self._context_name(context)
                normal = self._readable(context_name(_attribute(attribute)), value)
                reason = schema.observe({context_name(attribute): normal}, f"since an update of {name!r}")
                if reason is not None:
                    raise EventError(reason)
            except EventError as error:
                raise EventError(f"update_many: row {i}: {error.reason}") from None
            changes.append((name, normal))
        self._schema = schema
        for name, value in changes:
            self._open(name)
            self._store(name, attribute, value)
        self._stats["updates"] += len(changes)

    def context_index(self, names: Iterable[str]) -> NDArray[np.int64]:
        """The index of each name, shape (n,); names unknown so far are created. An index never changes."""
        table = to_table({"name": [names] if isinstance(names, str) else names}, "context_index")
        listed = to_list(table.column("name"))
        return np.array([self._open(self._context_name(name)) for name in listed], np.int64)

    def context(self, name: str | int) -> dict[str, Any]:
        """The attributes of a context; empty when nobody has named it."""
        values = self._contexts.get(self._context_name(name), {})
        return {attribute: list(v) if isinstance(v, tuple) else v for attribute, v in values.items()}

    def _context_name(self, context: Any) -> str:
        if isinstance(context, str):
            return str.__str__(context)
        if isinstance(context, bool) or not hasattr(context, "__index__"):
            raise EventError(f"context: expected a name, or an index from context_index(), got {shown(context)}")
        if not 0 <= int(context) < len(self._names):
            raise EventError(f"context: there is no context with index {int(context)}")
        return self._names[int(context)]

    def _open(self, name: str) -> int:
        if name not in self._contexts:
            self._contexts[name] = {}
            self._names.append(name)
        return self._names.index(name)

    def _store(self, name: str, attribute: str, value: Value | None) -> None:
        if value is None:
            self._contexts[name].pop(attribute, None)
        else:
            self._contexts[name][attribute] = value

    def _copied_schema(self) -> Schema:
        return Schema.from_dict(self._schema.to_dict(), self._graphs)

    def _readable(self, name: str, value: Any) -> Value | None:
        try:
            return normalise(value)
        except EventError as error:
            raise EventError(f"{name}: {error.reason}") from None

    # -- tracks ------------------------------------------------------------------------------------------------

    def track(self, context: str, set: Any, when: Any = None) -> None:
        """Copies message values into the context that the message names: ``track("{symbol}", "last = price")``."""
        template = Template.parse(context)
        profile = read_profile("true" if when is None else when, set)
        if not profile.effects:
            raise UsageError("track: set= needs at least one assignment, such as 'last = price'")
        if profile.parameters():
            raise ProfileError("parameter", "a track cannot have parameters; holes go into context=")
        evidence = f"since track {context!r}"
        try:
            self._schema.admit(profile.condition, profile.effects, printed=template.attributes, evidence=evidence)
        except ProfileError as error:
            raise profile.located(error) from None
        self._tracks.append(_Track(template, profile))

    # -- messages ----------------------------------------------------------------------------------------------

    def match(self, message: Mapping[str, Any]) -> list[Id]:
        """The ids of all profiles that match, in subscription order; applies effects and tracks."""
        found, skipped = self._message(message)
        self._stats["effects_skipped"] += len(skipped)
        return found

    def match_many(self, table: Any) -> Matches:
        """Matches every row of a table, in order."""
        return self.process(EventLog.of_messages(table))

    def process(self, log: EventLog) -> Matches:
        """Replays a log one event at a time; bad events are reported in ``rejected`` and change nothing."""
        pairs: list[tuple[int, Id]] = []
        rejected: list[tuple[str, int, str]] = []
        for kind, i, *event in log.events():
            row = _row(log, kind, i)
            try:
                if kind == "message":
                    found, skipped = self._message(event[0])
                    pairs += [(row, id) for id in found]
                    rejected += [("effect", row, reason) for reason in skipped]
                    self._stats["effects_skipped"] += len(skipped)
                elif kind == "update":
                    self.update(event[0], {event[1]: event[2]})
                elif kind == "subscribe":
                    self.subscribe(*event)
                else:
                    self.unsubscribe(event[0])
            except TamisError as error:
                rejected.append((kind, row, str(error)))
                self._stats["rejected"] += 1
        return Matches.of(pairs, Rejected(rejected))

    def _message(self, message: Mapping[str, Any]) -> tuple[list[Id], list[str]]:
        """The matches of one message, and why effects were skipped."""
        values = self._accept(message)
        if self._room:
            self._history = [*self._history, (self._stats["messages"], dict(message))][-self._room :]
        self._stats["messages"] += 1
        found = [s for s in self._profiles.values() if self._holds(s.profile.condition, values, s.context)]
        skipped: list[str] = []
        for subscription in found:
            for effect in subscription.profile.effects:
                self._effect(effect, values, subscription.context or "", f"profile {subscription.id!r}", skipped)
        for track in self._tracks:
            name = track.template.fill(values)
            if name is not None and self._holds(track.profile.condition, values, name):
                for effect in track.profile.effects:
                    self._effect(effect, values, name, f"track {track.template.text!r}", skipped)
        self._stats["matches"] += len(found)
        return [subscription.id for subscription in found], skipped

    def _holds(self, condition: t.Condition, values: Mapping[str, Value], context: str | None) -> bool:
        return holds(condition, values, self._of(context), graphs=self._graphs)

    def recall(self, id: Id, *, since: int = 0, limit: int | None = None) -> list[Past]:
        """The messages of the history that a profile matches as its context stands now, oldest first.

        ``since`` is the number of the first message to look at, ``limit`` asks for the newest ones only. A message
        that would be rejected now matches nothing. Changes no context.
        """
        if id not in self:
            raise EventError(f"recall: there is no profile {shown(id)}")
        since, limit = recall_bounds(since, limit, self._room)
        subscription = self._profiles[_key(id)]
        found = []
        for number, message in self._history:
            if number < since:
                continue
            try:
                values = self._accept(message)
            except EventError:
                continue
            if self._holds(subscription.profile.condition, values, subscription.context):
                found.append(Past(number, dict(message)))
        return found if limit is None else found[max(0, len(found) - limit) :]

    def _of(self, context: str | None) -> Mapping[str, Value]:
        return {} if context is None else self._contexts.get(context, {})

    def _effect(self, effect: t.Effect, message: Mapping[str, Value], name: str, who: str, skipped: list[str]) -> None:
        try:
            value = assigned(effect, message, self._of(name))
        except EventError as error:
            skipped.append(f"{who}: {error.reason}")
            return
        self._open(name)
        self._store(name, effect.target, value)
        self._stats["effects"] += 1

    def _accept(self, message: Mapping[str, Any]) -> dict[str, Value]:
        """The values of the attributes that matter, or :class:`EventError`; fixes kinds still open."""
        if not isinstance(message, Mapping):
            raise EventError(f"expected a mapping of attributes to values, got {type(message).__name__}")
        values: dict[str, Value] = {}
        for attribute in self._schema.message_attributes():
            value = self._readable(attribute, message.get(attribute))
            if value is not None:
                values[attribute] = value
        reason = self._schema.observe({message_name(name): v for name, v in values.items()}, "since a message")
        if reason is not None:
            raise EventError(reason)
        return values

    def explain(self, id: Id, message: Mapping[str, Any]) -> Explanation:
        """Why a profile matches a message or not; changes nothing."""
        if id not in self:
            raise EventError(f"explain: there is no profile {shown(id)}")
        subscription = self._profiles[id]
        schema = self._schema
        self._schema = self._copied_schema()
        try:
            values = self._accept(message)
        except EventError as error:
            return Explanation(id, False, None, context_name=subscription.context, rejected=error.reason)
        finally:
            self._schema = schema
        context = self._of(subscription.context)
        return explain(
            subscription.profile.condition,
            values,
            context,
            id=id,
            context_name=subscription.context,
            graphs=self._graphs,
        )

    # -- the whole ---------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The kinds of all names."""
        return self._schema

    @property
    def stats(self) -> dict[str, int]:
        """What happened so far, as numbers."""
        return {**self._stats, "profiles": len(self._profiles), "contexts": len(self._contexts)}

    def check(self) -> None:
        """Verifies what must always hold; raises :class:`InvariantError`."""
        if self._names != list(self._contexts):
            raise InvariantError("context names and contexts differ")
        for id, subscription in self._profiles.items():
            if subscription.id != id:
                raise InvariantError(f"profile {id!r} is stored under another id")
            if subscription.context is not None and subscription.context not in self._contexts:
                raise InvariantError(f"profile {id!r} has an unknown context {subscription.context!r}")
            if subscription.context is None and subscription.profile.uses_context():
                raise InvariantError(f"profile {id!r} uses a context but has none")
        for name, values in self._contexts.items():
            for attribute, value in values.items():
                if kind_of(value) is None or normalise(value) is None:
                    raise InvariantError(f"context {name!r}: {attribute} holds {value!r}")
                reason = self._schema.expect(context_name(attribute), value)
                if reason is not None or not self._schema.knows(context_name(attribute)):
                    raise InvariantError(f"context {name!r}: {reason or attribute + ' is unknown'}")

    def save(self, path: str | Path) -> None:
        """Writes everything but the graphs and the history to one JSON file."""
        state = {
            "format": "tamis-reference-1",
            "schema": self._schema.to_dict(),
            "contexts": {
                name: {attribute: pack(value) for attribute, value in values.items()}
                for name, values in self._contexts.items()
            },
            "profiles": [[s.id, s.context, _pack_profile(s.profile)] for s in self._profiles.values()],
            "tracks": [[track.template.text, _pack_profile(track.profile)] for track in self._tracks],
            "stats": self._stats,
        }
        Path(path).write_text(json.dumps(state), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, *, graphs: Any = None, history: int = 0) -> ReferenceFilter:
        """The filter that :meth:`save` wrote, over the graphs it had."""
        state = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(state, dict) or state.get("format") != "tamis-reference-1":
            raise UsageError(f"{path}: not a saved reference filter")
        filter = cls(graphs=graphs, history=history)
        filter._schema = Schema.from_dict(state["schema"], filter._graphs)
        missing = {graph for known in filter._schema.to_dict().get("categories", {}).values() for graph in known}
        if missing - filter._graphs.keys():
            raise UsageError(f"{path}: has profiles on graphs; give graphs={sorted(missing - filter._graphs.keys())}")
        for name, values in state["contexts"].items():
            filter._open(name)
            filter._contexts[name] = {attribute: unpack(value) for attribute, value in values.items()}
        for id, context, profile in state["profiles"]:
            filter._profiles[id] = _Subscription(id, _unpack_profile(profile), context)
        filter._tracks = [_Track(Template.parse(text), _unpack_profile(p)) for text, p in state["tracks"]]
        filter._stats = state["stats"]
        return filter


def _key(id: object) -> Any:
    """The id as it is stored; ``None`` for what cannot be one."""
    try:
        return checked_id(id)
    except UsageError:
        return None


def _attribute(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise EventError(f"update: expected the name of an attribute, got {shown(name)}")
    return name


def _given(name: str, row: Mapping[str, Any]) -> Value:
    value = normalise(row.get(name))
    if value is None:
        raise EventError(f"parameter {{{name}}} has no value")
    return value


def _row(log: EventLog, kind: str, i: int) -> int:
    tables = {"update": log.updates, "subscribe": log.subscribes, "unsubscribe": log.unsubscribes}
    rows = log.message_rows if kind == "message" else tables[kind].rows  # type: ignore[union-attr]
    return int(rows[i])


def _clauses(node: t.Condition, negated: bool) -> int:
    """How many clauses the disjunctive form has; a constant counts as what it leaves of the whole."""
    count = _count(node, negated)
    return 1 if isinstance(count, bool) else count


def _count(node: t.Condition, negated: bool) -> int | bool:
    """The number of clauses, or the constant that the condition is."""
    if isinstance(node, t.Not):
        return _count(node.item, not negated)
    if isinstance(node, t.Truth) and isinstance(node.operand, t.Literal):
        return bool(node.operand.value) != negated
    if isinstance(node, t.Between):
        return 2 if negated else 1
    if not isinstance(node, t.And | t.Or):
        return 1
    every = isinstance(node, t.And) != negated
    counts = [_count(item, negated) for item in node.items]
    if any(count is (not every) for count in counts):
        return not every
    numbers = [count for count in counts if not isinstance(count, bool)]
    if not numbers:
        return every
    if not every:
        return sum(numbers)
    product = 1
    for number in numbers:
        product *= number
    return product


# -- saving ----------------------------------------------------------------------------------------------------


def _pack_profile(profile: Profile) -> Any:
    return [pack(profile.condition), pack(profile.effects), profile.text, profile.effects_text]


def _unpack_profile(packed: Any) -> Profile:
    condition, effects, text, effects_text = packed
    return Profile(unpack(condition), unpack(effects), text, effects_text)
