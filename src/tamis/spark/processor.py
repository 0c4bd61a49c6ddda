"""The stateful operator: one micro-batch of one shard.

Packs come in, are put into one order with the events that waited, replayed on the shard, and one wide row goes out:
matches, rejected events and figures as arrays. Guarantees the law of exactness for what it replays; an event waits
until every other source, and every partition of a partitioned one, has passed its place or has been silent for
``wait``, or until more than ``hold_limit`` events wait, and one that comes later than events after it is replayed on
arrival and counted. What is let go is decided from what all shards know, so that they replay the same order. Refuses to
know sinks and sources.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tamis.engine.shard import Found, Shard, Track
from tamis.errors import UsageError
from tamis.flow import Policy
from tamis.model.events import EventLog
from tamis.model.schema import context_name
from tamis.model.tables import to_table

from .control import controlled
from .graphs import unpacked_options
from .order import from_key
from .records import Records
from .route import ORDER, OWN, PLACE, TABLES, from_bytes, id_column, union_values
from .state import Meta, Store
from .worker import settle

SOURCE_OF: Final = {
    "messages": "messages",
    "updates": "updates",
    "subscribes": "profiles",
    "unsubscribes": "profiles",
}
TABLE_OF: Final = {"message": "messages", "update": "updates", "subscribe": "subscribes", "unsubscribe": "unsubscribes"}
COARSE: Final = 256
"""Bins of a source in the state."""
ROWS: Final = 200_000
"""Matches in one row of the output."""


@dataclass(frozen=True)
class Plan:
    """What every shard has to know; the same for the whole life of a query."""

    keys: tuple[int, ...]
    sources: tuple[str, ...]
    order: str
    """The name of the order column."""
    records: Mapping[str, Records | None]
    """How streams and initial tables write their records, where it is known."""
    ids: tuple[str, ...]
    whole_ids: bool
    """Profile ids are integers."""
    floating_order: bool
    tracks: tuple[Track, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    prepared: tuple[str, str | None] | None = None
    values: str = "json"
    wait: int = 0
    """Milliseconds; 0 replays every event on arrival."""
    hold_limit: int = 1_000_000
    """Events of all shards that may wait."""
    policy: Policy | None = None
    """How much is worked in which order; without one everything, as it came."""


class Matcher(StatefulProcessor):
    """Spark's side of a shard."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def init(self, handle: Any) -> None:
        """Open the state variables."""
        self._handle, self._store = handle, Store(handle)

    def close(self) -> None:
        """The end of a task."""
        settle()

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Lay initial profiles and contexts aside until the first batch, when all of them are here."""
        for row in initialState.itertuples(index=False):
            for name in (*TABLES, "prepared", "wrong"):
                if getattr(row, name) is not None:
                    self._store.add_initial(f"{name} {row.part:08d} {row.piece:08d}", getattr(row, name))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """One micro-batch."""
        frames = list(rows)
        batch = _Batch(self, self._plan.keys.index(int(key[0])), timerValues.getCurrentProcessingTimeInMs())
        return iter(batch.run(frames))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """A source has been silent for long enough: what waited for it goes on."""
        batch = _Batch(self, self._plan.keys.index(int(key[0])), timerValues.getCurrentProcessingTimeInMs())
        return iter(batch.run([], expired=expiredTimerInfo.getExpiryTimeInMs()))


class _Batch:
    """One run of one shard."""

    def __init__(self, owner: Matcher, number: int, now: int) -> None:
        self.plan, self.store, self.handle = owner._plan, owner._store, owner._handle
        self.number, self.now = number, now
        context = TaskContext.get()
        self.batch = int(context.getLocalProperty("streaming.sql.batchId") or 0) if context is not None else 0
        if context is not None and context.partitionId() != number:
            raise UsageError(_OTHER_SHARDS.format(shards=len(self.plan.keys)))
        self._sources = dict.fromkeys(TABLES, "events") if "events" in self.plan.sources else SOURCE_OF
        self.figures: dict[str, Any] = {"shard": number, "batch": self.batch}
        self._clock = time.perf_counter()

    def _took(self, what: str) -> None:
        now = time.perf_counter()
        self.figures[f"{what}_ms"] = round(1000 * (now - self._clock), 2)
        self._clock = now

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self, frames: Sequence[pd.DataFrame], expired: int | None = None) -> list[pd.DataFrame]:
        """Everything, in the order in which it has to happen."""
        plan, store = self.plan, self.store
        outputs: list[pd.DataFrame] = []
        meta = store.meta()
        first = meta is None
        if meta is None:
            meta = Meta(shards=len(plan.keys))
            shard = Shard(self.number, len(plan.keys), plan.tracks, **unpacked_options(dict(plan.options)))
            outputs += self._initial(shard)
            how, deltas = "created", 0
        else:
            if meta.shards != len(plan.keys):
                raise UsageError(_OTHER_SHARDS.format(shards=len(plan.keys)))
            shard, how, deltas = store.load(self.number, meta)
        self.figures |= {"cache": how, "deltas": deltas}
        before = shard.stats.get("escalations", 0)
        self._took("state")
        tables, wrong = self._gather(frames, meta)
        self._took("unpack")
        if expired is not None and meta.timer == expired:
            meta.timer = None
        ready = self._release(tables, meta)
        found = self._process(shard, ready, meta if plan.policy is not None else None)
        self._took("replay")
        outputs += self._output(found, ready, wrong, self._sources)
        self._took("output")
        self.figures |= store.create(shard, meta) if first else store.save(shard, meta)
        store.put_meta(meta)
        self._took("save")
        stats = shard.stats
        self.figures |= {name: stats[name] for name in ("profiles", "contexts", "escalations") if name in stats}
        # Copies of a shard in different workers count for themselves: only the difference of one batch adds up.
        self.figures["escalated"] = stats.get("escalations", 0) - before
        self.figures["state_bytes"] = meta.snapshot_bytes + sum(size for _, _, size in meta.chain)
        self.figures |= {"late": meta.late, "held": meta.held, "forced": meta.forced}
        outputs.append(_row(self.plan, self.batch, figures=json.dumps(self.figures)))
        return [pd.concat(outputs, ignore_index=True)]

    def _initial(self, shard: Shard) -> list[pd.DataFrame]:
        """Initial profiles, then initial contexts."""
        tables: dict[str, list[pa.Table]] = {}
        for place, data in self.store.take_initial():
            tables.setdefault(place.split()[0], []).append(from_bytes(data))
        joined = {name: _concat(parts) for name, parts in tables.items()}
        outputs = []
        if "prepared" in joined:
            self._load_prepared(shard, joined["prepared"])
        for name in ("subscribes", "updates"):
            if name in joined:
                ready: dict[str, pa.Table] = {name: _by_id(joined[name], name)}
                found = self._process(shard, ready)
                outputs += self._output(found, ready, [], {"subscribes": "profiles", "updates": "contexts"})
        outputs += self._output(None, {}, [joined["wrong"]] if "wrong" in joined else [], {})
        return outputs

    def _load_prepared(self, shard: Shard, table: pa.Table) -> None:
        assert self.plan.prepared is not None
        profile, on_match = self.plan.prepared
        ordered = ORDER in table.column_names
        table = table.sort_by([(ORDER, "ascending"), ("id", "ascending")] if ordered else "id")
        parameters = table.select([name for name in table.column_names if not name.startswith("#")])
        own = table[OWN].to_numpy()
        if not own.any():
            # A profile of another shard, for the kinds it needs.
            sample = parameters.slice(0, 1)
            shard.filter.subscribe_many(profile, sample, on_match)
            shard.filter.unsubscribe(sample["id"][0].as_py())
            mine = parameters.slice(0, 0)
        else:
            mine = parameters.filter(pa.array(own))
        registered = table.filter(table["#registers"])["id"].combine_chunks()
        ranks = table[ORDER].to_numpy()[own] if ordered else None
        shard.load(profile, mine, registered, ranks, on_match)

    # -- order -------------------------------------------------------------------------------------------------

    def _gather(self, frames: Sequence[pd.DataFrame], meta: Meta) -> tuple[dict[str, pa.Table], list[pa.Table]]:
        """The tables of all packs and of what waited; how far the sources are goes into ``meta``."""
        packs = sorted(
            (row for frame in frames for row in frame.itertuples(index=False)),
            key=lambda row: (row.source, row.part, row.piece),
        )
        for source in self.plan.sources:
            if not any(_source(lane) == source for lane in meta.seen):
                meta.seen[source] = self.now
        parts: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        if meta.held:
            for name, table in self.store.held(meta.holding):
                parts[name].append(table)
        wrong: list[pa.Table] = []
        bytes_in = 0
        for pack in packs:
            for lane, high in json.loads(pack.high).items():
                meta.high[lane] = max(meta.high.get(lane, high), high)
                meta.seen[lane] = self.now
                if lane != pack.source:  # known by its partitions from now on
                    meta.high.pop(pack.source, None)
                    meta.seen.pop(pack.source, None)
            if pack.bins != "[]":
                meta.waiting.setdefault(pack.source, []).extend((last, count) for last, count in json.loads(pack.bins))
            for name in TABLES:
                data = getattr(pack, name)
                if data is not None:
                    parts[name].append(from_bytes(data))
                    bytes_in += len(data)
            if pack.wrong is not None:
                wrong.append(from_bytes(pack.wrong))
        tables = {name: _concat(listed) for name, listed in parts.items() if listed}
        self.figures |= {name: tables[name].num_rows if name in tables else 0 for name in TABLES}
        self.figures["bytes_in"] = bytes_in
        return tables, wrong

    def _release(self, tables: dict[str, pa.Table], meta: Meta) -> dict[str, pa.Table]:
        """What may be replayed now; the rest goes back into the state."""
        plan = self.plan
        if plan.wait == 0 or len(plan.sources) == 1:
            self._count_late(tables, meta)
            return tables
        active = [lane for lane, seen in meta.seen.items() if self.now - seen < plan.wait]
        fronts = {source: self._front(source, active, meta) for source in plan.sources}
        full = self._too_many(fronts, meta)
        waiting: dict[str, pa.Table] = {}
        ready: dict[str, pa.Table] = {}
        meta.held = 0
        for name, table in tables.items():
            key = table[ORDER].to_numpy()
            passed = key <= fronts[SOURCE_OF[name]]
            if full is not None:
                forced = ~passed & (key <= full)
                meta.forced += int(np.count_nonzero(forced & self._counted(name, table)))
                passed |= forced
            if passed.all():
                ready[name] = table
                continue
            rest = table.filter(pa.array(~passed))
            waiting[name] = rest
            meta.held += rest.num_rows
            ready[name] = table.filter(pa.array(passed))
        meta.holding = self.store.hold(waiting, meta.holding)
        self._set_timer(active if meta.held or meta.waiting else (), meta)
        self._count_late(ready, meta)
        return ready

    def _front(self, source: str, active: Sequence[str], meta: Meta) -> int:
        """The last key of a source's events that every active lane has passed; its own lanes may stand on it."""
        front = _LAST
        for lane in active:
            high = meta.high.get(lane)
            if _source(lane) != source:
                front = min(front, _FIRST - 1 if high is None else high - 1)
            elif high is not None:
                front = min(front, high)
        return front if meta.floor is None else max(front, meta.floor)

    def _too_many(self, fronts: Mapping[str, int], meta: Meta) -> int | None:
        """The key up to which the oldest events have to go on because too many wait; ``None`` when there is room.

        Counts are those of all shards, and so the answer is the same in each: an order that differs from shard to shard
        would be no order at all.
        """
        left = {source: [one for one in meta.waiting.get(source, ()) if one[0] > fronts[source]] for source in fronts}
        excess = sum(count for bins in left.values() for _, count in bins) - self.plan.hold_limit
        full = None
        for last, count in sorted(one for bins in left.values() for one in bins):
            if excess <= 0:
                break
            full, excess = last, excess - count
        if full is not None:
            meta.floor = full
            left = {source: [one for one in bins if one[0] > full] for source, bins in left.items()}
        meta.waiting = {source: _coarse(bins) for source, bins in left.items() if bins}
        return full

    def _set_timer(self, active: Sequence[str], meta: Meta) -> None:
        wanted = min((meta.seen[source] + self.plan.wait for source in active), default=None)
        if wanted == meta.timer:
            return
        if meta.timer is not None:
            self.handle.deleteTimer(meta.timer)
        if wanted is not None:
            self.handle.registerTimer(wanted)
        meta.timer = wanted

    def _count_late(self, tables: dict[str, pa.Table], meta: Meta) -> None:
        last = meta.done
        for name, table in tables.items():
            if table.num_rows == 0:
                continue
            key = table[ORDER].to_numpy()
            if meta.done is not None:
                meta.late += int(np.count_nonzero((key < meta.done) & self._counted(name, table)))
            last = max(int(key.max()), int(key.min()) if last is None else last)
        meta.done = last

    def _counted(self, name: str, table: pa.Table) -> Any:
        """Only shard 0 counts messages and subscriptions, which all shards see; every shard its own updates."""
        return table[OWN].to_numpy(zero_copy_only=False) if name == "updates" else self.number == 0

    # -- replay ------------------------------------------------------------------------------------------------

    def _process(self, shard: Shard, tables: dict[str, pa.Table], control: Meta | None = None) -> Found | None:
        """Replays the tables; what is not needed leaves them, so that row numbers are those of what was replayed.

        With ``control`` the policy decides how, and remembers there.
        """
        if "updates" in tables:
            tables["updates"] = _needed(shard, tables["updates"])
        for name in [name for name, table in tables.items() if table.num_rows == 0]:
            del tables[name]
        if not tables:
            return None
        foreign = ~tables["updates"][OWN].to_numpy(zero_copy_only=False) if "updates" in tables else None
        ranks: NDArray[np.int64] | None = None
        if "subscribes" in tables and ORDER in tables["subscribes"].column_names:
            ranks = tables["subscribes"][ORDER].to_numpy()
        given: dict[str, Any] = {}
        for name, table in tables.items():
            wanted = [c for c in table.column_names if c == ORDER or not c.startswith("#")]
            given[name] = table.select(wanted)
        if "updates" in given and pa.types.is_struct(given["updates"]["value"].type):
            given["updates"] = _from_union(given["updates"])
        log = EventLog.merge(**given, order=ORDER, values=self.plan.values)  # type: ignore[arg-type]
        rank = (lambda row: int(ranks[row])) if ranks is not None else None

        def process(part: EventLog) -> Found:
            return shard.process(part, rank, foreign)

        found = process(log) if control is None else self._controlled(log, process, foreign, control)
        self.figures["matches"] = self.figures.get("matches", 0) + len(found.message)
        return found

    def _controlled(
        self, log: EventLog, process: Callable[[EventLog], Found], foreign: NDArray[np.bool_] | None, meta: Meta
    ) -> Found:
        """The log under the policy; what is shed is reported as rejected, with the reason."""
        assert self.plan.policy is not None
        seed = self.batch * len(self.plan.keys) + self.number
        done = controlled(log, process, self.plan.policy, meta.control, seed)
        meta.control = done.memory
        own = [one for one in done.shed if one[0] != "update" or foreign is None or not foreign[one[1]]]
        for kind, _ in own:
            meta.shed[kind] = meta.shed.get(kind, 0) + 1
        self.figures |= {f"shed_{kind}s": meta.shed.get(kind, 0) for kind in ("message", "update")}
        self.figures["suspect"] = done.suspect
        reason = f"shed by shard {self.number}: more came than it can do within the bound ({self.plan.policy})"
        return done.found._replace(rejected=[*done.found.rejected, *((kind, row, reason) for kind, row in own)])

    # -- output ------------------------------------------------------------------------------------------------

    def _output(
        self,
        found: Found | None,
        tables: dict[str, pa.Table],
        wrong: list[pa.Table],
        sources: Mapping[str, str],
    ) -> list[pd.DataFrame]:
        """``sources`` names where the rows of each table came from."""
        outputs = []
        if found is not None and len(found.message):
            messages = tables["messages"]
            order = messages[ORDER].to_numpy()[found.message]
            for at in range(0, len(order), ROWS):
                piece = slice(at, at + ROWS)
                rows = pa.array(found.message[piece])
                ids = [messages[id_column(name)] for name in self.plan.ids]
                columns = {f"id{k}": _cell(column.take(rows)) for k, column in enumerate(ids)}
                profile = found.profile[piece]
                columns["profile"] = profile if isinstance(profile, list) else _cell(profile)
                columns["order"] = from_key(order[piece], self.plan.floating_order)
                columns["rank"] = found.rank[piece]
                outputs.append(_row(self.plan, self.batch, **columns))
        rejected = [] if found is None else list(self._rejected(found, tables, sources))
        for table in wrong:
            rejected += zip(
                table["event"].to_pylist(),
                table[ORDER].to_pylist(),
                table[PLACE].to_pylist(),
                table["reason"].to_pylist(),
                strict=True,
            )
        self.figures["rejected"] = self.figures.get("rejected", 0) + len(rejected)
        if rejected:
            event, keys, place, reason = (list(column) for column in zip(*rejected, strict=True))
            floating = self.plan.floating_order
            order = [None if k is None else from_key(np.array([k], np.int64), floating)[0].item() for k in keys]
            outputs.append(_row(self.plan, self.batch, r_event=event, r_order=order, r_source=place, r_reason=reason))
        return outputs

    def _rejected(
        self, found: Found, tables: dict[str, pa.Table], sources: Mapping[str, str]
    ) -> Iterator[tuple[Any, Any, Any, str]]:
        by_table: dict[str, list[tuple[str, int, str]]] = {}
        for one in found.rejected:
            by_table.setdefault(TABLE_OF.get(one[0], "messages"), []).append(one)
        for name, listed in by_table.items():
            table = tables[name].take([row for _, row, _ in listed])
            order: list[Any] = table[ORDER].to_pylist() if ORDER in table.column_names else [None] * len(listed)
            place: list[Any] = table[PLACE].to_pylist() if PLACE in table.column_names else [None] * len(listed)
            records = self.plan.records.get(sources[name])
            if records is not None:
                place = records.lines(self.plan.order, zip(place, order, strict=True))
            for (kind, _, reason), at, where in zip(listed, order, place, strict=True):
                yield kind, at, where, reason


def _coarse(bins: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours put together until there are few; the last key stays: no event is taken for older than it is."""
    bins = sorted(bins)
    step = -(-len(bins) // COARSE)
    if step < 2:
        return bins
    parts = (bins[at : at + step] for at in range(0, len(bins), step))
    return [(part[-1][0], sum(count for _, count in part)) for part in parts]


def _source(lane: str) -> str:
    """The source that a lane is or is a partition of."""
    return lane.partition(" ")[0]


def _needed(shard: Shard, updates: pa.Table) -> pa.Table:
    """Without the updates of other shards whose attribute has its kind already: they cannot fix anything."""
    own = updates[OWN].to_numpy(zero_copy_only=False)
    if own.all():
        return updates
    schema = shard.filter.schema
    foreign = updates["attribute"].filter(pa.array(~own)).unique().to_pylist()
    kinds = {name: schema.kind(context_name(name)) for name in foreign if name}
    still = [name for name, kind in kinds.items() if kind is None or (kind.name == "list" and kind.element is None)]
    if not still:
        return updates.filter(pa.array(own))
    wanted = np.isin(np.array(updates["attribute"].to_pylist(), object), still)
    return updates.filter(pa.array(own | wanted))


def _from_union(updates: pa.Table) -> Any:
    columns: dict[str, Any] = {name: updates[name] for name in updates.column_names if name != "value"}
    table = to_table(columns, "updates")
    columns["value"] = to_table({"value": union_values(updates["value"].combine_chunks())}, "updates").column("value")
    return type(table)({**table.columns, "value": columns["value"]}, table.num_rows)


def _by_id(table: pa.Table, name: str) -> pa.Table:
    """Initial profiles without an order, or with the same place in it, are taken by id; contexts as they come."""
    return table.sort_by("id") if name == "subscribes" else table


def _concat(parts: list[pa.Table]) -> pa.Table:
    return (parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="permissive")).combine_chunks()


def _cell(column: Any) -> Any:
    """A column as one cell of a row: numbers as an array, the rest as a list."""
    if pa.types.is_primitive(column.type) and not pa.types.is_temporal(column.type) and column.null_count == 0:
        return column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return column.to_pylist()


def _row(plan: Plan, batch: int, **cells: Any) -> pd.DataFrame:
    names = (*(f"id{k}" for k in range(len(plan.ids))), *_CELLS)
    row = {"batch": [batch], **{name: [cells.get(name)] for name in names}}
    return pd.DataFrame(
        {name: pd.Series(value, dtype=object if name != "batch" else None) for name, value in row.items()}
    )


_FIRST, _LAST = -(2**63), 2**63 - 1
_CELLS: Final = ("profile", "order", "rank", "r_event", "r_order", "r_source", "r_reason", "figures")
_OTHER_SHARDS: Final = (
    "shards={shards}: the checkpoint was made with another number of shards, and where profiles and contexts live "
    "depends on it. Start with the number it was made with; or start a new checkpoint with what the old one holds, "
    "profiles=read_profiles(spark, old), contexts=read_contexts(spark, old), schema=read_kinds(spark, old) of "
    "tamis.spark, and let the sources go on where the old query stopped: docs/spark.md, 'Another number of shards'. "
    "(A query that is started by hand needs spark.sql.shuffle.partitions equal to shards.)"
)

__all__ = ["Matcher", "Plan"]
