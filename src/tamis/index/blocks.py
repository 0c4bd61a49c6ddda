"""The index ``blocks`` from the outside: allocation, growth and the decision to rebuild."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.errors import InvariantError
from tamis.kernels import blocks as kernel
from tamis.kernels.bundles import (
    AWAY,
    CANDIDATES,
    CLOSED,
    ESCALATIONS,
    FALSE_POSITIVES,
    FLAGS,
    N_ENTRIES,
    PLACE,
    PROBES,
    TEMPLATE,
    UPDATES,
    Blocks,
    World,
)

from .growth import with_room, zeros
from .policy import Policy
from .protocol import BROKEN, Ids
from .root import NOTHING, Account, Prospect, fitted, no_root, prospect, root_arrays, work
from .slots import MAX_SLOTS, choose_slots

ENOUGH = 512  # messages that say something of the selectivity of attributes
# Arrays whose size does not depend on the number of blocks.
KEPT = (
    "routes",
    "route",
    "cuts",
    "passing",
    "slack",
    "leash",
    "plot",
    "grain",
    "seen",
    "slot_attribute",
    "attribute_slot",
    "count",
    "scratch",
    "wanted",
    "growth",
    "strips",
    "strip",
    "sketch",
    "root",
    "hull",
    "tenant",
)


def empty_blocks(
    blocks: int, slots: NDArray[np.int32], cuts: NDArray[np.float64], passing: NDArray[np.float64], attributes: int
) -> Blocks:
    """A bundle with room for a number of blocks and no entries."""
    n = len(slots)
    attribute_slot = np.full(max(1, attributes), -1, np.int32)
    attribute_slot[slots] = np.arange(n)
    chunks = blocks * kernel.CHUNKS
    nodes = 2 * blocks + 2
    node = zeros((nodes, 4), np.int32)
    node[0] = (-1, -1, -1, 0)
    return Blocks(
        lines=zeros(chunks * n * kernel.LINE, np.uint8),
        zones=zeros(blocks * n * kernel.LINE, np.uint8),
        plots=zeros(blocks * n * kernel.LINE, np.uint8),
        cores=zeros(blocks * n * kernel.LINE, np.uint8),
        boxes=zeros((blocks + 31) // 32 * n * kernel.LINE, np.uint8),
        masks=zeros((chunks, kernel.MASKS), np.uint32),
        summary=zeros(blocks, np.uint32),
        clause=zeros(blocks * kernel.BLOCK, np.int32),
        profile=zeros(blocks * kernel.BLOCK, np.int32),
        base=zeros((blocks, n)),
        scale=np.ones((blocks, n)),
        width=np.ones((blocks, n)),
        reach=zeros((blocks, n, 2)),
        used=zeros(blocks, np.uint64),
        margin=zeros(chunks * n, np.uint8),
        debt=np.full(chunks, kernel.CLEAN, np.int32),
        slack=zeros(n),
        leash=np.full(n, np.inf),
        plot=np.ones(n),
        grain=np.ones(n),
        routes=zeros((0, 2), np.uint64),
        route=zeros((0, 2), np.int32),
        seen=zeros((n + 1, kernel.SEEN)),
        cuts=cuts,
        passing=passing,
        node=node,
        split=zeros(nodes),
        slot_attribute=slots.astype(np.int32),
        attribute_slot=attribute_slot,
        count=zeros(kernel.COUNTS, np.int64),
        scratch=zeros((3, n)),
        wanted=zeros((2, n), np.uint8),
        growth=zeros(kernel.CHUNKS, np.int32),
        **no_root(),
    )


class BlocksIndex:
    """AGILE on blocks of boxes (see :mod:`tamis.kernels.blocks`).

    Runtime complexity: probe O(N / 32768 + chunks met), update O(1) amortised, insert O(log N), remove O(1).
    """

    name: ClassVar[str] = "blocks"

    def __init__(self, policy: Policy | None = None) -> None:
        self.bundle = empty_blocks(1, np.zeros(1, np.int32), np.full((1, 255), np.inf), np.ones(1), 1)
        self.bundle.count[kernel.DUE] = kernel.DEBT if policy is None else policy.patience(kernel.DEBT)
        self._built = self._shut = self._next_look = self._routed = 0
        self._since = self.bundle.count.copy()
        self._prospect, self._account = NOTHING, Account(self.bundle.count)
        self._learnt: dict[int, float] = {}

    def build(self, ids: Ids, world: World, attributes: int) -> None:
        world.clauses.meta[ids, FLAGS] &= ~AWAY
        if not len(self.bundle.root) and self.bundle.count[PROBES] - self._since[PROBES] >= ENOUGH:
            self._learnt = dict(zip(self.bundle.slot_attribute.tolist(), self.bundle.passing.tolist(), strict=True))
        self._prospect = prospect(ids, world, attributes, self._learnt)
        at_root = ids[:0]
        if self._account.rooted:
            members = self._prospect.members(ids, world)
            at_root, ids = ids[members], ids[~members]
        kernel.let_loose(at_root, world)
        slots, cuts, passing = choose_slots(ids, world, attributes)
        room = int(len(ids) / kernel.BLOCK_FILL * 1.1) + 2
        counts = self.bundle.count
        while True:
            self.bundle = empty_blocks(room, slots, cuts, passing, attributes)
            self._routed = 0
            self._know_templates(ids, world)
            # An index without entries still has its first, empty block.
            if kernel.build(self.bundle, ids, world):
                break
            room *= 2
        used = int(self.bundle.count[kernel.N_BLOCKS])
        self.bundle.grain[:] = np.median(self.bundle.width[:used], axis=0)
        ends = self.bundle.plots.reshape(-1, len(slots), 2, kernel.CHUNKS)[:used].astype(np.float64)
        cells = np.maximum(0.0, ends[:, :, 1] - ends[:, :, 0]).mean(axis=2)
        self.bundle.plot[:] = np.median(self.bundle.width[:used] * cells, axis=0)
        self.bundle.count[PROBES : kernel.N_BLOCKS] = counts[PROBES : kernel.N_BLOCKS]
        self.bundle.count[kernel.N_CONTEXTS] = counts[kernel.N_CONTEXTS]
        self.bundle.count[kernel.ROOT_MET] = counts[kernel.ROOT_MET]
        self.bundle.count[kernel.DUE] = counts[kernel.DUE]
        self.fit(int(counts[kernel.N_CONTEXTS]), world.contexts.value.shape[1])
        if len(at_root):
            self.bundle = self.bundle.replace(**root_arrays(self._prospect, at_root, world))
            kernel.enter(self.bundle, at_root, world)
            kernel.draw_all(self.bundle, world.contexts)
        self._built = len(ids)
        self._shut = int(np.count_nonzero(world.clauses.meta[ids, FLAGS] & CLOSED))
        self._since = self.bundle.count.copy()
        self._account.restart(self._since)
        self._next_look = int(self._since[ESCALATIONS]) + max(64, self._shut // 2)

    def fit(self, contexts: int, attributes: int) -> None:
        self.bundle.count[kernel.N_CONTEXTS] = contexts
        larger = fitted(self.bundle, contexts, attributes)
        if larger:
            self.bundle = self.bundle.replace(**larger)

    def worn(self) -> bool:
        """Whether a new build would pay: the clauses have left the order they were clustered in.

        So it is when most had no value at build time (profiles first, contexts later), when after many moves a
        message still meets a good part of all chunks, or when it is time to go to the root, or back.
        """
        if self._account.due(self.bundle.count, self._prospect):
            return True
        moves = self.bundle.count[ESCALATIONS]
        if moves < self._next_look:
            return False
        entries = int(self.bundle.count[N_ENTRIES])
        self._next_look = int(moves) + max(64, entries // 8)
        past = self.bundle.count - self._since
        if self._shut > entries // 8 and past[ESCALATIONS] > self._shut // 2:
            return True
        chunks = int(self.bundle.count[kernel.N_BLOCKS]) * kernel.CHUNKS
        met = past[kernel.CHUNKS_MET] / max(64, past[PROBES])
        return bool(past[ESCALATIONS] > 2 * entries and met > 0.25 * chunks)

    def work(self, past: NDArray[np.int64]) -> float:
        """What it took, in postfilter tests, to go as far as the counters ``past`` say."""
        rooted = self._account.rooted and self._prospect is not NOTHING
        return work(past.tolist(), self._prospect, rooted)

    def insert(self, ids: Ids, world: World, attributes: int) -> bool:
        if len(self.bundle.root):
            members = self._prospect.members(ids, world)
            kernel.enter(self.bundle, ids[members], world)
            ids = ids[~members]
            if not len(ids):
                return True
        present = int(self.bundle.count[N_ENTRIES])
        if present == 0 or len(ids) > 512 + present // 4 or present + len(ids) > 1024 + 2 * self._built:
            return False
        self._know_attributes(attributes)
        slots = len(self.bundle.slot_attribute)
        if slots < MAX_SLOTS and kernel.needs_slots(self.bundle, ids, world):
            return False
        self._know_templates(ids, world)
        self._insert(ids, world)
        return True

    def _insert(self, ids: Ids, world: World) -> None:
        done = 0
        while done < len(ids):
            done = kernel.insert(self.bundle, ids, done, world)
            if done < len(ids):
                self._grow()

    def crowded(self) -> bool:
        away = int(self.bundle.count[kernel.N_AWAY])
        return away > 64 and away > int(self.bundle.count[N_ENTRIES]) // 1024

    def settle(self, world: World) -> None:
        ids = kernel.away(self.bundle, world)
        self.remove(ids, world)
        self._insert(ids, world)

    def remove(self, ids: Ids, world: World) -> None:
        for k in ids:
            kernel.forget(self.bundle, k, world)

    def deescalate(self, world: World) -> None:
        for chunk in range(int(self.bundle.count[kernel.N_BLOCKS]) * kernel.CHUNKS):
            kernel.deescalate(self.bundle, chunk, world)

    def check(self, ids: Ids, world: World) -> None:
        at_root = world.clauses.meta[ids, PLACE] == kernel.AT_ROOT
        code, clause, slot = kernel.check(self.bundle, ids[~at_root], world)
        if not code:
            code, clause, slot = kernel.check_root(self.bundle, ids[at_root], world)
        if code:
            raise InvariantError(f"blocks: {BROKEN[code]} (clause {clause}, slot {slot})")

    def stats(self) -> dict[str, int]:
        count = self.bundle.count
        return {
            "entries": int(count[N_ENTRIES] + count[kernel.N_ROOT]),
            "at_root": int(count[kernel.N_ROOT]),
            "blocks": int(count[kernel.N_BLOCKS]),
            "messages": int(count[PROBES]),
            "updates": int(count[UPDATES]),
            "blocks_met": int(count[kernel.BLOCKS_MET]),
            "chunks_met": int(count[kernel.CHUNKS_MET]),
            "postfiltered": int(count[CANDIDATES]),
            "false_positives": int(count[FALSE_POSITIVES]),
            "escalations": int(count[ESCALATIONS]),
            "deescalations": int(count[kernel.DEESCALATIONS]),
            "moves": int(count[kernel.MOVES]),
            "splits": int(count[kernel.SPLITS]),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        found = self._prospect
        return {
            **self.bundle.asdict(),
            "built": np.array([self._built, self._routed]),
            "prospect_templates": found.templates,
            "prospect_attributes": found.attributes,
            "prospect_cost": np.array([found.scan, found.passing]),
        }

    def adopt(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.bundle = Blocks(**{name: arrays[name] for name in Blocks.FIELDS})
        self._built, self._routed = (int(n) for n in arrays["built"])
        self._since = self.bundle.count.copy()
        self._account = Account(self._since, rooted=len(self.bundle.root) > 0)
        scan, passing = arrays["prospect_cost"].tolist()
        if scan < np.inf:
            self._prospect = Prospect(arrays["prospect_templates"], arrays["prospect_attributes"], scan, passing)

    def _know_attributes(self, attributes: int) -> None:
        missing = attributes - len(self.bundle.attribute_slot)
        if missing > 0:
            longer = np.concatenate([self.bundle.attribute_slot, np.full(missing, -1, np.int32)])
            self.bundle = self.bundle.replace(attribute_slot=longer)

    def _know_templates(self, ids: Ids, world: World) -> None:
        """Find the routes of templates that have come since the last time; rows behind those in use are still empty."""
        known, templates = self._routed, int(world.clauses.meta[ids, TEMPLATE].max(initial=-1)) + 1
        if known < templates:
            self.bundle = self.bundle.replace(
                routes=with_room(self.bundle.routes, templates),
                route=with_room(self.bundle.route, len(world.templates.predicate)),
            )
            kernel.find_routes(self.bundle, known, templates, True, world)
            self._routed = templates

    def _grow(self) -> None:
        """Half as many blocks again; everything keeps its place."""
        old = self.bundle
        room = len(old.used) * 3 // 2 + 2
        new = empty_blocks(room, old.slot_attribute, old.cuts, old.passing, len(old.attribute_slot))
        for name in Blocks.FIELDS:
            if name in KEPT:
                continue
            source = getattr(old, name)
            getattr(new, name)[: len(source)] = source
        self.bundle = new.replace(**{name: getattr(old, name) for name in KEPT})
