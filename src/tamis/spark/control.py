"""Quality of service of a micro-batch: the controllers of :mod:`tamis.flow` decide what a shard works, and in which
order.

The events of a micro-batch have waited as long as the last one took to replay. From there the flow goes on in estimated
time: what would be done later than the bound is shed. Guarantees that a micro-batch that is run again, after a failure,
sheds the same events: estimates and the wait come from the state, chance from the number of the batch. Every shard
decides for itself. Refuses to know Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.engine.shard import Found
from tamis.errors import UsageError
from tamis.flow import Batch, Chunk, Costs, Flow, Policy, choose
from tamis.flow.chunk import CONSISTENCY, Piece
from tamis.model.events import KINDS, EventLog
from tamis.model.matches import Matches

_NOTHING = Matches.of([])


def read_qos(qos: str | Sequence[str] | None, consistency: str = "serial") -> Policy | None:
    """The policy of a wish and a consistency model; ``None`` when there is nothing to control."""
    if consistency not in CONSISTENCY:
        raise UsageError(f"consistency: expected one of {', '.join(map(repr, CONSISTENCY))}, got {consistency!r}")
    wishes = [] if qos is None else [qos] if isinstance(qos, str) else list(qos)
    if consistency != "serial":
        wishes.append(consistency)
    if not any(wish.strip() for wish in wishes if isinstance(wish, str)) and all(isinstance(w, str) for w in wishes):
        return None
    policy = choose(", ".join(wishes) if all(isinstance(wish, str) for wish in wishes) else wishes).policy
    return None if policy == Batch() else policy


class Controlled(NamedTuple):
    """What was found, what was shed (sort, row in its table), and what the next micro-batch has to know."""

    found: Found
    shed: list[tuple[str, int]]
    memory: dict[str, Any]
    suspect: int


def controlled(
    log: EventLog,
    process: Callable[[EventLog], Found],
    policy: Policy,
    memory: dict[str, Any] | None,
    seed: int,
) -> Controlled:
    """Replays a log under a policy; ``memory`` is that of the last micro-batch."""
    known = memory or {}
    estimates = Costs.restored(known.get("costs"))
    learned = Costs.restored(known.get("costs"))
    estimates.learning = False
    flow = Flow(policy=policy, costs=estimates, seed=seed)
    now = float(known.get("spent", 0.0))
    chunk = Chunk(log, 0.0)
    gone: list[Piece] = []
    flow.on_shed = lambda pieces, when: gone.extend(pieces)
    flow.offer_chunk(chunk, now)
    parts: list[Found] = []
    spent = 0.0
    while len(flow.queue):
        work = flow.take(now)
        if work is None:
            if len(flow.queue):
                now = flow.wake
            continue
        start = time.perf_counter()
        parts.append(process(_as_given(work.log, chunk)))
        took = time.perf_counter() - start
        learned.learn(work.messages, work.updates, took)
        spent += took
        now += work.expected
        flow.done(work, _NOTHING, now, seconds=work.expected)
    flow.give_up()  # what there was no time for is shed, as a micro-batch ends
    flow.check()
    shed = [(KINDS[kind], row) for piece in gone for kind, row in _rows(chunk, piece)]
    return Controlled(_joined(parts), shed, {"costs": learned.to_state(), "spent": spent}, flow.doubt.suspect)


def _as_given(log: EventLog, chunk: Chunk) -> EventLog:
    """The log with the row numbers of the tables it was made of instead of sequence numbers."""
    given = chunk.log

    def rows(table: NDArray[np.int64], seq: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = table[chunk.at[seq - chunk.first]]
        return found

    changed: dict[str, Any] = {"message_rows": rows(given.message_rows, log.message_rows)}
    for name in ("updates", "subscribes", "unsubscribes"):
        table = getattr(log, name)
        if table is not None:
            changed[name] = replace(table, rows=rows(getattr(given, name).rows, table.rows))
    return replace(log, **changed)


def _rows(chunk: Chunk, piece: Piece) -> list[tuple[int, int]]:
    """Sort and row of shed events: messages and updates only. Those that were put off may lie in another chunk now."""
    places, log = piece.seq - chunk.first, chunk.log
    kinds, at = chunk.kind[places], chunk.at[places]
    rows = np.zeros(len(kinds), np.int64)
    for kind, table in ((0, log.message_rows), (1, None if log.updates is None else log.updates.rows)):
        mine = kinds == kind
        if table is not None and mine.any():
            rows[mine] = table[at[mine]]
    return list(zip(kinds.tolist(), rows.tolist(), strict=True))


def _joined(parts: list[Found]) -> Found:
    if len(parts) == 1:
        return parts[0]
    profile: Any
    if parts and all(not isinstance(part.profile, list) for part in parts):
        profile = pa.concat_arrays([_whole(part.profile) for part in parts])
    else:
        profile = [id for part in parts for id in _listed(part.profile)]
    empty = np.zeros(0, np.int64)
    return Found(
        np.concatenate([empty, *(part.message for part in parts)]),
        profile,
        np.concatenate([empty, *(part.rank for part in parts)]),
        [one for part in parts for one in part.rejected],
    )


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _listed(column: Any) -> list[Any]:
    return column if isinstance(column, list) else column.to_pylist()
