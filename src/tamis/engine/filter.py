"""``Filter``: the public face of the engine.

Guarantees the law of exactness: ``process(log)`` gives what :class:`tamis.reference.ReferenceFilter` gives. Every
other method prepares or reads; ``match`` is a log of one row. Refuses to know files, clocks and Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.errors import EventError, InvariantError, ProfileError, UsageError
from tamis.index import FAMILY, BlocksIndex, CatalogueIndex, Index, NoIndex
from tamis.index.catalogue import wanted
from tamis.index.policy import read_policy
from tamis.kernels import bundles as b
from tamis.kernels import process as kernel
from tamis.kernels.program import DEPTH
from tamis.model import tree as t
from tamis.model.batching import MINI, UNBATCHED, Batching
from tamis.model.categories import read_graphs
from tamis.model.events import EventLog
from tamis.model.explanation import Explanation, explain
from tamis.model.matches import Id, Matches
from tamis.model.past import Past, history_room, recall_bounds
from tamis.model.profile import checked_id, read_profile
from tamis.model.schema import Schema, context_name
from tamis.model.tables import to_list, to_table
from tamis.model.template import Template
from tamis.model.values import Kind, Value, normalise, shown

from . import bundle, notice, warm
from .auto import Auto
from .categories import Categories
from .compile import Compiler
from .contexts import ContextStore
from .history import History
from .options import attribute_name, known, read_indexed, read_scope
from .plan import Plan, plan_of
from .profiles import ProfileStore
from .replay import Replay
from .subscriptions import Subscriptions
from .values import ValueStore

STRATEGIES = ("agile", "eager", "partial", "gbu", "noindex")
INDEXES = ("auto", "blocks", *FAMILY)


@dataclass(frozen=True)
class Track:
    """A rule that derives contexts from messages."""

    template: Template
    condition: t.Condition
    effects: tuple[t.Effect, ...]
    clauses: list[tuple[int, int]]  # first instruction and length of each clause of the condition
    first_effect: int


class Filter:
    """A context-aware information filter.

    >>> f = Filter()
    >>> f.subscribe("w-A", "item == 'bolt' and quantity <= ctx.stock", context="A", on_match="ctx.stock -= quantity")
    >>> f.update("A", stock=12)
    >>> f.match({"item": "bolt", "quantity": 7}), f.context("A")["stock"] == 5
    (['w-A'], True)

    ``strategy`` is what an update does to an index: ``agile`` adapts, ``eager`` keeps it exact, ``gbu`` moves locally,
    ``partial`` indexes what lies in a ``scope``, such as ``{"quantity": (0, 50)}``, and ``noindex`` has none: it is a
    vectorised scan, or, where another ``index`` than ``blocks`` is asked for, paper 000's, which gives every profile to
    the postfilter. ``index`` is the structure, ``indexed`` how many attributes it covers, the most selective first, or
    which (``blocks`` always covers all); with ``auto`` both are chosen from what profiles, messages and updates look
    like, and changed when that changes (:attr:`plan` says why). Of a structure that is named it covers two attributes
    unless told otherwise. ``policy`` is when ``agile`` makes it more exact again:
    ``cost``, ``always``, ``fixed(FP)`` or ``auto(C)``. ``threads`` is the number of cores a log is spread over,
    ``schema`` declares kinds of names, such as ``{"price": "number", "ctx.portfolio": "list of text"}``. ``batching``
    lets logs be processed in batches, as fast as :mod:`tamis.flow.batching` says and exact all the same. ``graphs`` are
    content graphs for ``within`` and ``covers``, each named as the attribute whose categories it holds. ``history`` is
    how many messages are kept for :meth:`recall`.
    """

    def __init__(
        self,
        *,
        strategy: str = "agile",
        index: str = "auto",
        policy: str = "cost",
        threads: int = 1,
        schema: Mapping[str, str | Kind] | None = None,
        indexed: int | str | Sequence[str] | None = None,
        scope: Mapping[str, tuple[float, float]] | None = None,
        batching: Batching | str | Mapping[str, Any] | None = None,
        graphs: Iterable[Any] | None = None,
        history: int = 0,
    ) -> None:
        known("strategy", strategy, STRATEGIES)
        known("index", index, INDEXES)
        self._policy = read_policy(policy)
        if index == "blocks" and strategy not in ("agile", "noindex"):
            raise UsageError(
                f"strategy {strategy!r}: not on 'blocks', which adapts by itself; choose index {' or '.join(FAMILY)}"
            )
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
            raise UsageError(f"threads: expected a whole number from 1 to 256, got {threads!r}")
        self.strategy, self.index, self.policy, self.threads = strategy, index, str(self._policy), threads
        self.indexed = read_indexed(("auto" if index == "auto" else 2) if indexed is None else indexed)
        self.scope = read_scope(scope, strategy)
        self.batching = batching
        self._schema = Schema(schema, read_graphs(graphs))
        self._values = ValueStore()
        self._compiler = Compiler(self._schema, self._values)
        self._categories = self._compiler.categories = self._new_categories()
        self._history = History(history_room(history))
        self._contexts = ContextStore()
        self._profiles = ProfileStore()
        chooses = strategy != "noindex" and (index == "auto" or (index in FAMILY and self.indexed == "auto"))
        self._auto = Auto(self) if chooses else None
        self._indexes: list[Index] = [self._new_index() for _ in range(threads)]
        self._catalogues = [CatalogueIndex(strategy != "agile") for _ in range(threads)]
        self._subscriptions = Subscriptions(self._schema, self._compiler, self._contexts, self._profiles)
        self._tracks: list[Track] = []
        # Set when this filter is one of several: which contexts are its own for tracks to change.
        self._owns: Callable[[str], bool] | None = None
        self._replay = Replay(self)
        self._counts = dict.fromkeys(
            ("messages", "updates", "subscribes", "unsubscribes", "matches", "effects_skipped", "rejected"), 0
        )
        self._stack = [np.zeros((2, DEPTH)) for _ in range(threads)]
        self._worlds: list[Any] = [None] * threads
        self._pool: ThreadPoolExecutor | None = None

    def _new_categories(self) -> Categories:
        columns = self._compiler.attributes
        return Categories(self._schema.graphs, self._schema, self._values, columns, self.threads)

    def _new_index(self) -> Index:
        if self._auto is not None:
            return self._auto.new_index(self._auto.choosers[0].option)
        if self.index in ("auto", "blocks"):
            return NoIndex() if self.strategy == "noindex" else BlocksIndex(self._policy)
        column = self._compiler.attributes
        indexed = [column[name] for name in self.indexed] if isinstance(self.indexed, tuple) else self.indexed
        assert not isinstance(indexed, str)
        scope = {column[name]: ends for name, ends in self.scope.items()}
        return FAMILY[self.index](self.strategy, self._policy, indexed, scope)

    @property
    def batching(self) -> Batching | None:
        """How logs are batched; may be changed between logs. Also takes the name of a strategy."""
        return self._batching

    @batching.setter
    def batching(self, given: Batching | str | Mapping[str, Any] | None) -> None:
        batching = Batching.of(given)
        if batching is not None and self.index == "blocks" and batching.strategy not in (UNBATCHED, MINI):
            raise UsageError(
                f"batching: {batching.strategy!r} is not on 'blocks', which finds its minibatches by itself; "
                f"choose {MINI!r}, or index {' or '.join(FAMILY)}"
            )
        self._batching = batching

    # -- profiles ----------------------------------------------------------------------------------------------

    def subscribe(self, id: Id, profile: Any, context: str | int | None = None, on_match: Any = None) -> None:
        """Add a profile, or replace the one with that id; the new one is the last in subscription order.

        ``profile`` is text, a tree, the JSON form or a builder. Raises :class:`tamis.ProfileError`.
        """
        self._subscriptions.add(checked_id(id), profile, self._context_code(context), on_match)
        self._counts["subscribes"] += 1

    def subscribe_many(self, profile: Any, table: Any, on_match: Any = None) -> None:
        """One profile per row of a table with the columns ``id``, optionally ``context``, and one per parameter.

        The profile is parsed once. All or nothing: bad rows raise one :class:`tamis.ProfileError` that names them.
        """
        self._flush()
        self._counts["subscribes"] += self._subscriptions.add_many(profile, table, on_match, self._context_codes)
        self._flush()

    def unsubscribe(self, id: Id) -> None:
        """Remove a profile; :class:`tamis.EventError` when there is none with that id."""
        self._flush()
        code = self._profile_code(id)
        if code < 0:
            raise EventError(f"unsubscribe: there is no profile {shown(id)}")
        self._retire([code])
        self._counts["unsubscribes"] += 1

    def admit(self, id: Id, profile: Any, context: str | None = None, on_match: Any = None) -> None:
        """Check a profile as :meth:`subscribe` does and fix the kinds it needs, without keeping it.

        For one filter of several that together are one: each knows the kinds of all profiles, and holds a part.
        """
        self._subscriptions.admit(checked_id(id), profile, context is not None, on_match)

    @property
    def profiles(self) -> int:
        """The number of profiles."""
        self._flush()
        return self._profiles.count

    def __len__(self) -> int:
        return self.profiles

    def __contains__(self, id: object) -> bool:
        self._flush()
        return self._profile_code(id) >= 0

    def __repr__(self) -> str:
        return (
            f"<Filter {self.profiles:,} profiles on {len(self._contexts):,} contexts, "
            f"strategy={self.strategy!r}, index={self._indexes[0].name!r}, threads={self.threads}>"
        )

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{value:,}</td></tr>" for name, value in self.stats.items())
        return f"<table><caption>tamis.Filter, {self.strategy} on {self._indexes[0].name}</caption>{rows}</table>"

    def _profile_code(self, id: object) -> int:
        try:
            code = self._profiles.ids.find(checked_id(id))
        except UsageError:
            return -1
        return code if self._profiles.alive(code) else -1

    def _flush(self) -> None:
        """Bring subscriptions that wait into the store and into the indexes; build worn indexes anew."""
        self._tidy()
        if self._categories.changed():
            self._rebuild()
        if len(templates := self._compiler.lately_changed()):
            self._index_anew(templates)
        if self._auto is not None:
            self._auto.review()
        for shard, index in enumerate(self._indexes):
            if index.worn():
                if self._auto is not None:
                    self._auto.renew(shard)
                else:
                    index.build(self._live(shard), self._world(shard), len(self._compiler.attributes))
            if self._indexes[shard].crowded():
                self._indexes[shard].settle(self._world(shard))
        if not self._subscriptions.pending:
            return
        added, replaced = self._subscriptions.take()
        if replaced:
            self._retire(replaced)
        clauses = [add() for add in added]
        if clauses:
            self._index_clauses(np.concatenate(clauses))

    def _tidy(self) -> None:
        """Forget the lists that contexts held once, when they have become many."""
        if self._values.wasteful():
            kinds = {
                column: self._schema.kind(context_name(attribute))
                for attribute, column in self._compiler.context_attributes.column.items()
            }
            self._contexts.forget_lists(kinds, self._values)

    def _rebuild(self) -> None:
        """A graph has changed: gates that ask it may open or close, and it may have other categories."""
        sizes = self._categories.sizes()
        for shard, index in enumerate(self._indexes):
            world = self._world(shard)
            if self._compiler.gated:
                index.build(self._live(shard), world, len(self._compiler.attributes))
            filed = self._live(shard, filed=True)
            if len(filed) or not self._catalogues[shard].fits(sizes):
                self._catalogues[shard].build(filed, world, sizes)

    def _index_clauses(self, clauses: NDArray[np.int32]) -> None:
        self._fit()
        if self._categories and self.strategy != "noindex":
            clauses = self._file(clauses)
        kernel.link(clauses, self._contexts.bundle, self._profiles.clause_bundle())
        self._prepare_patterns()
        for shard in range(len(self._indexes)):
            mine = clauses[self._shard_of(clauses) == shard] if self.threads > 1 else clauses
            self._insert(shard, mine)

    def _insert(self, shard: int, clauses: NDArray[np.int32]) -> None:
        """Enter clauses into the index of their shard."""
        index, world, attributes = self._indexes[shard], self._world(shard), len(self._compiler.attributes)
        if len(clauses) and not index.insert(clauses, world, attributes):
            with notice.compiling():
                warm.begin()
                if self._auto is not None:
                    self._auto.build(shard)
                else:
                    index.build(self._live(shard), world, attributes)

    def _index_anew(self, templates: NDArray[np.int64]) -> None:
        """Templates have given up intervals that turned out to be of texts: what was shut for want of such a bound is
        open from now on. O(profiles)."""
        for shard, index in enumerate(self._indexes):
            mine = self._live(shard)
            mine = mine[np.isin(self._profiles.meta[mine, b.TEMPLATE], templates)]
            if len(mine):
                index.remove(mine, self._world(shard))
                self._insert(shard, mine)

    def _file(self, clauses: NDArray[np.int32]) -> NDArray[np.int32]:
        """Enter the clauses that ask for categories into the catalogues; returns the others."""
        mine = wanted(clauses, self._world(0), self._categories.sizes())
        filed = clauses[mine]
        self._profiles.meta[filed, b.FLAGS] |= b.FILED
        for shard, catalogue in enumerate(self._catalogues):
            some = filed[self._shard_of(filed) == shard] if self.threads > 1 else filed
            world = self._world(shard)
            if len(some) and not catalogue.insert(some, world):
                with notice.compiling():
                    catalogue.build(self._live(shard, filed=True), world, self._categories.sizes())
        return clauses[~mine]

    def _shard_of(self, clauses: NDArray[np.int32]) -> NDArray[np.int64]:
        """A clause lives with its context; one without context by its profile."""
        meta = self._profiles.meta[clauses]
        return np.where(meta[:, b.CONTEXT] >= 0, meta[:, b.CONTEXT], meta[:, b.PROFILE]) % self.threads

    def _live(self, shard: int, filed: bool = False) -> NDArray[np.int32]:
        """The live clauses of a shard that are in its index, or those that are in its catalogue."""
        clauses = self._profiles.live_clauses()
        if self._categories:
            clauses = clauses[((self._profiles.meta[clauses, b.FLAGS] & b.FILED) != 0) == filed]
        elif filed:
            return clauses[:0]
        return clauses[self._shard_of(clauses) == shard] if self.threads > 1 else clauses

    def _retire(self, codes: list[int]) -> None:
        for code in codes:
            clauses = np.array(self._profiles.clauses_of(code), np.int32)
            if len(clauses):
                shard = int(self._shard_of(clauses[:1])[0]) if self.threads > 1 else 0
                filed = (self._profiles.meta[clauses, b.FLAGS] & b.FILED) != 0
                if filed.any():
                    self._catalogues[shard].remove(clauses[filed], self._world(shard))
                    clauses = clauses[~filed]
                self._indexes[shard].remove(clauses, self._world(shard))
                for k in clauses.tolist():
                    kernel.unlink(k, self._contexts.bundle, self._profiles.clause_bundle())
            shape = self._subscriptions.shapes[int(self._profiles.row[code, b.SHAPE])]
            self._profiles.remove(code, shape.width)

    # -- contexts ----------------------------------------------------------------------------------------------

    def update(self, context: str | int, attributes: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Set attributes of a context, all or nothing; ``None`` removes an attribute."""
        code = self._context_code(context)
        if code is None:
            raise EventError("context: expected a name, or an index from context_index(), got None")
        values: dict[str, Value | None] = {}
        for attribute, given in ({**attributes, **more} if attributes else more).items():
            values[attribute_name(attribute)] = self._readable(context_name(attribute), given)
        reason = self._schema.observe(
            {context_name(attribute): value for attribute, value in values.items()},
            f"since an update of {context if isinstance(context, str) else self._contexts.names[code]!r}",
        )
        if reason is not None:
            raise EventError(reason)
        for attribute, value in values.items():
            encoded = self._values.encode_as(self._schema.kind(context_name(attribute)), value)
            self._store(code, self._compiler.context_attributes[attribute], *encoded)
        self._counts["updates"] += len(values)

    def _store(self, c: int, a: int, double: float, residual: int) -> None:
        """One value; the kernel is called only when an index watches it."""
        contexts = self._contexts
        if self._auto is not None:
            self._auto.load.saw_update(a)
        if residual:
            self._compiler.has_wide = True
        if a >= contexts.bundle.value.shape[1] or c >= len(contexts.bundle.value) or residual:
            self._fit()
        arrays = contexts.bundle
        watched = arrays.watch[c, a >> 3, b.WATCHED] >> (a & 7) & 1
        shard = c % self.threads
        strips = self._indexes[shard].bundle.strips
        if (
            (watched and not float(arrays.safe[c, a, 0]) <= double <= float(arrays.safe[c, a, 1]))
            or (a < len(strips) and strips[a] >= 0)
            or self._catalogues[shard].watches(a)
        ):
            self._flush()
            self._prepare_patterns(c, a, double)
            bundles = self._indexes[shard].bundle, self._catalogues[shard].bundle
            kernel.set_one(*bundles, c, a, double, residual, self._world(shard))
            return
        arrays.value[c, a] = double
        if len(arrays.residual):
            arrays.residual[c, a] = residual
        if a in self._compiler.context_patterns:
            self._prepare_patterns(c, a, double)

    def update_many(self, contexts: Any, attribute: str, values: Any) -> None:
        """Set one attribute of many contexts, in order; all or nothing.

        ``contexts`` are names, or integers from :meth:`context_index` (the fast way, with numeric ``values``).
        """
        attribute_name(attribute)
        table = to_table({"context": contexts, "value": values}, "update_many")
        same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(table.num_rows, np.int32)), pa.array([attribute]))
        columns = {"context": table.column("context"), "attribute": same, "value": table.column("value")}
        log = EventLog.merge(updates=columns, values="plain")
        self._replay.update_all(log)

    def context_index(self, names: Iterable[str]) -> NDArray[np.int64]:
        """The index of each name, shape (n,); names unknown so far are created. An index never changes."""
        column = to_table({"name": [names] if isinstance(names, str) else names}, "context_index").column("name")
        return self._context_codes(column).astype(np.int64)

    def context(self, name: str | int) -> dict[str, Any]:
        """The attributes of a context; empty when nobody has named it."""
        code = self._contexts.names.find(name) if isinstance(name, str) else self._context_code(name)
        if code is None or code < 0:
            return {}
        values = self._context_values(code)
        return {attribute: list(v) if isinstance(v, tuple) else v for attribute, v in values.items()}

    def _context_values(self, code: int) -> dict[str, Value]:
        arrays, found = self._contexts.bundle, {}
        if code >= len(arrays.value):
            return {}
        bits = arrays.value[code].view(np.int64)
        for attribute, column in self._compiler.context_attributes.column.items():
            if column < len(bits) and bits[column] != b.ABSENT_BITS:
                kind = self._schema.kind(context_name(attribute))
                residual = int(arrays.residual[code, column]) if len(arrays.residual) else 0
                assert kind is not None
                found[attribute] = self._values.decode(float(arrays.value[code, column]), residual, kind)
        return found

    def _context_code(self, context: Any) -> int | None:
        if context is None:
            return None
        if isinstance(context, str):
            return self._contexts.names.intern(context)
        if isinstance(context, bool) or not hasattr(context, "__index__"):
            raise EventError(f"context: expected a name, or an index from context_index(), got {shown(context)}")
        if not 0 <= int(context) < len(self._contexts):
            raise EventError(f"context: there is no context with index {int(context)}")
        return int(context)

    def _context_codes(self, column: Any) -> NDArray[np.int32]:
        """Codes of a column of names or indices; the names become known."""
        if not isinstance(column, list) and pa.types.is_integer(column.type) and column.null_count == 0:
            codes = np.asarray(column)
            if len(codes) == 0 or (codes.min() >= 0 and codes.max() < len(self._contexts)):
                return codes.astype(np.int32)
        if not isinstance(column, list) and pa.types.is_string(column.type) and column.null_count == 0:
            return self._contexts.names.intern_many(column)
        listed = [self._context_code(value) for value in to_list(column)]
        if None in listed:
            raise EventError("context: expected a name, or an index from context_index(), got None")
        return np.array(listed, np.int32)

    def _readable(self, name: str, value: Any) -> Value | None:
        try:
            return normalise(value)
        except EventError as error:
            raise EventError(f"{name}: {error.reason}") from None

    # -- tracks ------------------------------------------------------------------------------------------------

    def track(self, context: str, set: Any, when: Any = None) -> None:
        """Copy message values into the context that the message names: ``track("{symbol}", "last = price")``.

        Profiles can so refer to earlier messages; the message itself still sees the state before it.
        """
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
        clauses, effects = self._compiler.rule(profile.condition, profile.effects)
        first = self._profiles.place_effects(effects)
        self._tracks.append(Track(template, profile.condition, profile.effects, clauses, first))

    def _tracked(self, context: str | None) -> int:
        """The code of a context that a track names, -1 when it is not this filter's to change."""
        if context is None or (self._owns is not None and not self._owns(context)):
            return -1
        return self._contexts.names.intern(context)

    # -- messages ----------------------------------------------------------------------------------------------

    def match(self, message: Mapping[str, Any]) -> list[Id]:
        """The ids of all profiles that match, in subscription order; applies effects and tracks."""
        return self._replay.one(message)

    def match_many(self, table: Any) -> Matches:
        """Match every row of a table, in order."""
        return self.process(EventLog.of_messages(table))

    def process(self, log: EventLog) -> Matches:
        """Replay a log: the result is that of one event at a time. Bad events go to ``.rejected``, the rest goes on."""
        return self._replay.run(log)

    def explain(self, id: Id, message: Mapping[str, Any]) -> Explanation:
        """Why a profile matches a message or not: every predicate with the values it saw; changes nothing."""
        self._flush()
        code = self._profile_code(id)
        if code < 0:
            raise EventError(f"explain: there is no profile {shown(id)}")
        condition, context = self._subscriptions.read(code, self._profiles, self._values)
        name = None if context < 0 else str(self._contexts.names[context])
        before = self._schema.to_dict()
        try:
            values = self._accept(message)
        except EventError as error:
            return Explanation(id, False, None, context_name=name, rejected=error.reason)
        finally:
            self._restore_schema(before)
        state = self._context_values(context) if context >= 0 else {}
        return explain(condition, values, state, id=id, context_name=name, graphs=self._schema.graphs)

    def recall(self, id: Id, *, since: int = 0, limit: int | None = None) -> list[Past]:
        """The messages of the history that a profile matches as its context stands now, oldest first.

        ``since`` is the number of the first message to look at (messages are numbered as ``stats["messages"]`` counts
        them), ``limit`` asks for the newest ones only. Changes no context. Needs ``Filter(history=N)``.
        """
        since, limit = recall_bounds(since, limit, self._history.room)
        self._flush()
        code = self._profile_code(id)
        if code < 0:
            raise EventError(f"recall: there is no profile {shown(id)}")
        return self._history.recall(self, code, since, limit)

    def _accept(self, message: Mapping[str, Any]) -> dict[str, Value]:
        """The values of the attributes that matter, or :class:`EventError`; fixes kinds still open."""
        if not isinstance(message, Mapping):
            raise EventError(f"expected a mapping of attributes to values, got {type(message).__name__}")
        values: dict[str, Value] = {}
        for attribute, name in self._replay.message_names():
            given = message.get(attribute)
            if given is not None:
                value = self._readable(attribute, given)
                if value is not None:
                    values[name] = value
        reason = self._schema.observe(values, "since a message")
        if reason is not None:
            raise EventError(reason)
        return {attribute: values[name] for attribute, name in self._replay.message_names() if name in values}

    def _restore_schema(self, saved: dict[str, Any]) -> None:
        if self._schema.to_dict() != saved:
            self._schema.__dict__.update(Schema.from_dict(saved, self._schema.graphs).__dict__)

    # -- the whole ---------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The kinds of all names."""
        return self._schema

    @property
    def graphs(self) -> list[Any]:
        """The content graphs, in the order in which they were given; they may be changed."""
        return list(self._schema.graphs.values())

    @property
    def stats(self) -> dict[str, int]:
        """What happened so far, as numbers; the meaning of each is in the operations guide."""
        self._flush()
        found = {**self._counts, "profiles": self._profiles.count, "contexts": len(self._contexts)}
        found["clauses"] = self._profiles.clauses
        for index in self._indexes:
            for name, value in index.stats().items():
                if name not in ("messages", "updates"):
                    found[name] = found.get(name, 0) + value
        found["indexed_attributes"] = max(len(index.bundle.slot_attribute) for index in self._indexes)
        found["index_changes"] = 0
        if self._auto is not None:
            self._auto.add_stats(found)
        for catalogue in self._catalogues if self._categories else ():
            for name, value in catalogue.stats().items():
                found[name] = found.get(name, 0) + value
        return found

    @property
    def plan(self) -> Plan:
        """Which index is in use, on which attributes, what others would cost, and why; print it."""
        self._flush()
        return plan_of(self)

    @property
    def batch_costs(self) -> dict[str, float]:
        """What batches have cost so far: seconds by stage, minibatches, and profiles in their union sets."""
        return self._replay.batches.costs()

    def deescalate(self) -> None:
        """Make every index entry as exact as it can be, at once; the engine does the same bit by bit on evidence."""
        self._flush()
        for shard, index in enumerate(self._indexes):
            index.deescalate(self._world(shard))
            self._catalogues[shard].deescalate()

    def check(self) -> None:
        """Verify every invariant of every structure; raises :class:`tamis.InvariantError`. O(profiles)."""
        self._flush()
        self._fit()
        live = self._profiles.live_clauses()
        if len(live) != self._profiles.clauses:
            raise InvariantError("profiles: the number of live clauses is wrong")
        meta = self._profiles.meta[live]
        if len(live) and np.any(self._profiles.row[meta[:, b.PROFILE], b.FIRST_CLAUSE] < 0):
            raise InvariantError("profiles: a live clause belongs to no profile")
        linked = kernel.count_linked(self._contexts.bundle, self._profiles.clause_bundle())
        if linked != np.count_nonzero((meta[:, b.CONTEXT] >= 0) & ((meta[:, b.FLAGS] & b.FILED) == 0)):
            raise InvariantError("contexts: the lists of clauses and the clauses disagree")
        for shard, index in enumerate(self._indexes):
            index.check(self._live(shard), self._world(shard))
            self._catalogues[shard].check(self._live(shard, filed=True), self._world(shard))

    def save(self, path: str | Path) -> None:
        """Write the filter to a folder of arrays that :meth:`load` opens memory-mapped."""
        self._flush()
        bundle.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Filter:
        """The filter that :meth:`save` wrote, mapped copy-on-write: processes share what they only read."""
        return bundle.load(cls, Path(path))

    # -- what replay needs -------------------------------------------------------------------------------------

    def _fit(self) -> None:
        self._contexts.fit(len(self._compiler.context_attributes), self._compiler.has_wide)
        for index in self._indexes:
            index.fit(len(self._contexts), self._contexts.bundle.value.shape[1])
        for catalogue in self._catalogues if self._categories else ():
            catalogue.fit(len(self._contexts.bundle.value), self._contexts.bundle.value.shape[1])

    def _world(self, shard: int, messages: b.Messages | None = None) -> b.World:
        self._worlds[shard] = b.World.current(
            self._worlds[shard],
            _NO_MESSAGES if messages is None else messages,
            self._contexts.bundle,
            self._compiler.bundle(),
            self._profiles.clause_bundle(),
            self._values.bundle(),
            self._categories.addresses(shard),
            self._stack[shard],
        )
        world: b.World = self._worlds[shard]
        return world

    def _prepare_patterns(self, c: int = -1, a: int = -1, double: float = 0.0) -> None:
        """Judge the texts that contexts hold by the patterns asked of them."""
        asked = self._compiler.context_patterns
        if not asked:
            return
        if a >= 0:
            if a in asked and double == double:
                self._values.judge(asked[a], np.array([int(double)]))
            return
        self._compiler.settle()
        for column, patterns in asked.items():
            codes = self._contexts.bundle.value[:, column]
            codes = codes[codes == codes]
            if len(codes):
                self._values.judge(patterns, codes.astype(np.int64))


_NO_MESSAGES = b.Messages(np.zeros((0, 1)), np.zeros((0, 0), np.int16))
