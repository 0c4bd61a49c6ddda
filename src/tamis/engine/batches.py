"""Segments of a log in batches: which of them can be, how they are cut, and the calls of their kernels.

Guarantees the matches of one event at a time. Effects and tracks let a message change what the next one sees, so a
filter that has any is replayed one event at a time, and so is what batches do not make faster: entries at the root of
``blocks`` (there an update is a plain store, and a message a scan), short logs, the scan without an index.

Clauses in a catalogue of categories are replayed one event at a time, too, but they do not keep the others from being
batched: the segment is replayed on the catalogue alone, its updates are taken back, and then the others get it as a
batch. What asks for the categories of a message outside the catalogue, such as ``not topic within 'sport'``, does keep
them: its test needs marks that are made once per message.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import batch as kernel
from tamis.kernels import batch_blocks, minibatch, process, program
from tamis.kernels import bundles as b
from tamis.model.batching import UNBATCHED, Batching
from tamis.model.events import MESSAGE

if TYPE_CHECKING:
    from .filter import Filter

MOST = 1 << 21  # updates of a batch: sorting them needs 16 bytes each
SLICE = 2_048  # messages of a batch on blocks: the matches of more leave the cache (10,000 cost 30 to 45 % more)
SHARE = 16  # contexts per event above which sorting the events by context costs more than it saves
FIELDS = 4_096  # attributes of contexts: the sort has twelve bits for them
KEPT = 1 << 26  # bytes of room that are kept from log to log
COSTS = {
    "sort_values": kernel.SORT_PIX,
    "profile_index": kernel.PROBE,
    "sort_messages": kernel.SORT_MIX,
    "message_index": kernel.ASK,
    "postfilter": kernel.POST,
    "touched_contexts": kernel.TOUCHED,
    "restore_order": kernel.ORDER,
}


class Split(NamedTuple):
    """Where the clauses of a filter are."""

    filed: int  # in a catalogue
    indexed: int  # in an index
    siblings: bool  # whether a profile has several
    marked: bool  # whether one in an index asks for what is marked


class Batches:
    """Runs segments in batches, and knows what that has cost."""

    def __init__(self, owner: Filter) -> None:
        self._filter = owner
        self._tiled: dict[tuple[int, bool], tuple[NDArray[Any], ...]] = {}
        self._kept: dict[int, tuple[NDArray[Any], ...]] = {}
        self._dense: dict[int, float] = {}  # by shard, matches per message of the last log
        self.spent = np.zeros(kernel.SPENT)
        self.grouping_seconds = 0.0
        self._where: tuple[tuple[int, ...], Split] = ((), Split(0, 0, False, False))
        # Seconds per cycle: the least ever measured, as compilers may run in between.
        self._unit = np.inf

    def costs(self) -> dict[str, float]:
        """Seconds by stage so far, the minibatches there were, and the profiles in their union sets."""
        unit = self._unit if self._unit < np.inf else 0.0
        found = {name: float(self.spent[at] * unit) for name, at in COSTS.items()}
        return {
            "group": self.grouping_seconds,
            **found,
            "minibatches": float(self.spent[kernel.GROUPS]),
            "union_sets": float(self.spent[kernel.UNION]),
        }

    def wanted(self, messages: int, updates: int) -> bool:
        """Whether a segment of so many events is to be batched."""
        f = self._filter
        if f.batching is None or f.batching.strategy == UNBATCHED or messages < f.batching.least or f._tracks:
            return False
        if f._categories and (self._split().marked or not self._split().indexed):
            return False
        if isinstance(f._indexes[0].bundle, b.Scan) or f._contexts.bundle.value.shape[1] > FIELDS:
            return False
        if updates and (messages + updates) * SHARE < len(f._contexts):
            return False
        if any("root" in index.bundle.FIELDS and len(index.bundle.root) for index in f._indexes):
            return False
        return not f._profiles.has_effects()

    def _split(self) -> Split:
        """Where the clauses are. O(1) unless profiles have come or gone."""
        f = self._filter
        now = f._counts["subscribes"], f._counts["unsubscribes"], f._profiles.clauses
        if self._where[0] != now:
            live = f._profiles.live_clauses()
            meta = f._profiles.meta[live]
            filed = (meta[:, b.FLAGS] & b.FILED) != 0
            siblings = bool(np.any(meta[:, b.FLAGS] & b.HAS_SIBLING))
            templates = f._world(0).templates
            marked = False
            for r in np.unique(meta[~filed, b.TEMPLATE]).tolist():
                first = int(templates.row[r, b.PROGRAM])
                ops = templates.code[first : first + int(templates.row[r, b.PROGRAM_LENGTH]), 0]
                marked |= bool(np.isin(ops, (program.UNDER, program.NOT_UNDER)).any())
            self._where = now, Split(int(filed.sum()), int((~filed).sum()), siblings, marked)
        return self._where[1]

    def plan(
        self, messages: b.Messages, skip: NDArray[np.uint8], runs: NDArray[np.int64], updates: int, shard: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The rows of messages in the order of their minibatches, where these begin, and the batches."""
        batching = self._filter.batching
        assert isinstance(batching, Batching)
        start = time.perf_counter()
        seen = _updates_before(runs, len(skip), updates)
        slots = self._filter._indexes[shard].bundle.slot_attribute
        value = messages.value
        columns = [value[:, a] for a in slots[:2].tolist() if a < value.shape[1]] or [np.zeros(len(skip))]
        grouped = not isinstance(self._filter._indexes[shard].bundle, b.Blocks)
        rows: list[NDArray[np.int64]] = []
        starts, batches = [np.zeros(1, np.int64)], []
        size = batching.size if grouped else min(batching.size, SLICE)
        groups = total = first = 0
        while first < len(skip):
            last = min(len(skip), first + size)
            if seen[last - 1] - (seen[first - 1] if first else 0) > MOST:
                last = max(first + 1, int(np.searchsorted(seen, (seen[first - 1] if first else 0) + MOST, "right")))
            if grouped:
                some = first + np.flatnonzero(skip[first:last] == 0)
                order, at = batching.split([column[some] for column in columns])
                rows.append(some[order])
                starts.append(at[1:] + total)
                groups, total = groups + len(at) - 1, total + len(some)
            batches.append((last, groups, seen[last - 1]))
            first = last
        batches[-1] = (*batches[-1][:2], updates)
        joined = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        self.grouping_seconds += time.perf_counter() - start
        return joined, np.concatenate(starts), np.array(batches, np.int64)

    def run(
        self, shard: int, segment: Any, updates: tuple[NDArray[Any], ...], serial: int, profiles: b.Profiles, room: int
    ) -> tuple[Any, Any, Any]:
        """As :func:`tamis.kernels.process.replay` of one shard."""
        f = self._filter
        if f._categories and self._split().filed:
            filed = self._catalogued(shard, segment, updates, serial, profiles, room)
            found = self._batched(shard, segment, updates, serial, profiles, room)
            return (*self._joined(filed, found), np.zeros((0, 2), np.int64))
        return (*self._batched(shard, segment, updates, serial, profiles, room), np.zeros((0, 2), np.int64))

    def _catalogued(
        self, shard: int, segment: Any, updates: tuple[NDArray[Any], ...], serial: int, profiles: b.Profiles, room: int
    ) -> tuple[Any, Any]:
        """The matches of what is in the catalogue; contexts are as they were, the catalogue is behind the segment."""
        f = self._filter
        contexts = f._contexts.bundle
        mine = (updates[1] >= 0) & (updates[0] % f.threads == shard)
        cells = updates[0][mine], updates[1][mine]
        value = contexts.value[cells]
        residual = contexts.residual[cells] if len(contexts.residual) else None
        world = f._world(shard, segment.messages)
        none = f._new_index()  # of the same sort, so that the kernels are those of the usual replay
        none.build(np.zeros(0, np.int32), world, len(f._compiler.attributes))
        none.fit(len(contexts.value), contexts.value.shape[1])
        codes, ends, _ = process.replay(
            none.bundle,
            f._catalogues[shard].bundle,
            shard,
            f.threads,
            segment.runs,
            updates,
            segment.skip,
            np.zeros((0, 4), np.int32),
            np.zeros((0, 2), np.int32),
            segment.tracked,
            serial,
            profiles,
            world,
            room,
        )
        contexts.value[cells] = value
        if residual is not None:
            contexts.residual[cells] = residual
        return codes, ends

    def _joined(self, one: tuple[Any, Any], two: tuple[Any, Any]) -> tuple[Any, Any]:
        """Two sets of matches as one; a profile with clauses in both has a match once."""
        rows = [np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)) for _, ends in (one, two)]
        message, codes = np.concatenate(rows), np.concatenate([one[0], two[0]])
        if self._split().siblings:
            pairs = np.unique(message * (1 << 32) + codes)
            message, codes = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
        else:
            order = np.argsort(message, kind="stable")
            message, codes = message[order], codes[order]
        return codes, np.searchsorted(message, np.arange(len(one[1])), side="right")

    def _batched(
        self, shard: int, segment: Any, updates: tuple[NDArray[Any], ...], serial: int, profiles: b.Profiles, room: int
    ) -> tuple[Any, Any]:
        """The matches of what is in the index."""
        f = self._filter
        batching = f.batching
        assert isinstance(batching, Batching)
        index = f._indexes[shard].bundle
        world = f._world(shard, segment.messages)
        rows, groups, batches = self.plan(segment.messages, segment.skip, segment.runs, len(updates[0]), shard)
        longest = int(np.diff(batches[:, 2], prepend=0).max())
        tiled = self._room_for_updates(shard, longest, len(f._contexts.bundle.residual) > 0)
        kept = self._kept.get(shard) or tuple(np.empty(1 << 14, kind) for kind in (np.int32, np.int64, np.int64))
        # Made here, as NumPy asks for huge pages: fresh small ones cost as much as restoring the order.
        out = np.empty(256 + round(1.1 * self._dense.get(shard, 0.0) * len(segment.skip)), np.int32)
        spent = np.zeros(kernel.SPENT)
        start = time.perf_counter()
        common = (
            index,
            shard,
            f.threads,
            segment.runs,
            updates,
            segment.skip,
            serial,
            profiles,
            world,
            room,
            out,
            kept,
        )
        if isinstance(index, b.Blocks):
            codes, ends, kept = batch_blocks.replay(*common, batches, tiled, spent)
        else:
            how = minibatch.PIX * batching.profile_index | minibatch.MIX * batching.message_index
            if isinstance(index, b.HashTable):
                how |= minibatch.HASHED
            # Where about as many contexts are touched as there are, most clauses may be on one of them.
            every = not batching.profile_index or 0 < len(f._contexts) <= longest
            live = f._live(shard).astype(np.int32) if every else np.zeros(0, np.int32)
            codes, ends, kept = minibatch.replay(*common, rows, groups, batches, how, live, tiled, spent)
        self._dense[shard] = len(codes) / max(1, len(segment.skip))
        if sum(array.nbytes for array in kept) <= KEPT:
            self._kept[shard] = kept
        self._unit = min(self._unit, (time.perf_counter() - start) / max(1.0, spent[kernel.TOTAL]))
        self.spent += spent
        return codes, ends

    def _room_for_updates(self, shard: int, longest: int, wide: bool) -> tuple[NDArray[Any], ...]:
        """Room to sort updates in, kept: fresh memory costs as much as the sort."""
        found = self._tiled.get((shard, wide))
        if found is None or len(found[0]) < longest:
            found = (np.empty(longest, np.uint64), np.empty(longest), np.empty(longest if wide else 0, np.int16))
            self._tiled[shard, wide] = found
        return found


def _updates_before(runs: NDArray[np.int64], messages: int, updates: int) -> NDArray[np.int64]:
    """How many updates come before each message."""
    mine = runs[:, 0] == MESSAGE
    ends = np.maximum.accumulate(np.where(mine, 0, runs[:, 2]))
    found: NDArray[np.int64] = np.repeat(ends[mine], (runs[:, 2] - runs[:, 1])[mine])
    return found
