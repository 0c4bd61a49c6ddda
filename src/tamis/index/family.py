"""The indexes of paper 000 from the outside: allocation, growth, and the choice of what to index.

One class for all of them: a structure is named by its bundle and by how much room its arrays need. What an update does
to it is decided in :mod:`tamis.kernels.strategies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.errors import InvariantError
from tamis.kernels import cells, cost, entries, hashtable, layout, postings, skiplist
from tamis.kernels import strategies as kernel
from tamis.kernels.bundles import (
    CANDIDATES,
    ESCALATIONS,
    FALSE_POSITIVES,
    N_ENTRIES,
    PROBES,
    TEMPLATE,
    UPDATES,
    HashTable,
    Postings,
    SkipList,
    World,
)
from tamis.kernels.records import Record

from .growth import with_room, zeros
from .policy import Policy, read_policy
from .protocol import BROKEN, Ids
from .root import fitted, no_sketch
from .slots import SAMPLE, choose_slots

STRATEGIES = {
    "eager": entries.EAGER,
    "partial": entries.PARTIAL,
    "gbu": entries.GBU,
    "agile": entries.AGILE,
    "noindex": entries.NOINDEX,
}
NODES = 8_192  # of a skip list, per attribute: finer than that the postfilter is cheaper
SPARE = 1.5  # room for markers, nodes and lists beyond what a build needs
CROWDED = 0.9  # of that room, in use: then lists are packed anew
ROOMY = 0.85  # of that room, needed then: with more than that a larger one is taken
SURVEYED = 256  # clauses with which the levels are tried after a build
TEST, MOVE = 60.0, 2_000.0
"""Cycles of a test and of a move, until they have been measured."""


def _empty_stock() -> NDArray[np.int64]:
    """No markers handed out, none free."""
    stock = np.full(1 + postings.CLASSES, -1, np.int64)
    stock[postings.MARKERS_USED] = 0
    return stock


class FamilyIndex:
    """An index per attribute (or one for several), a merge of what they return, a postfilter.

    ``indexed`` says how many attributes, the most selective first, or which, by column; ``ordered`` that they are given
    in the order in which they are to be asked.
    """

    name: ClassVar[str]
    record: ClassVar[type[Record]]
    structure: ClassVar[Any]
    marks: ClassVar[int]  # the most markers of an entry in a group
    factor: ClassVar[int] = 12
    """Markers per entry and slot, to begin with."""

    def __init__(
        self,
        strategy: str = "agile",
        policy: Policy | None = None,
        indexed: int | Sequence[int] = 2,
        scope: dict[int, tuple[float, float]] | None = None,
        ordered: bool = False,
    ) -> None:
        self._ordered = ordered
        self._strategy, self._policy = STRATEGIES[strategy], policy or read_policy("cost")
        self._indexed, self._scope = indexed, scope or {}
        self._built = self._shut = self._routed = 0
        self._factor = self.factor
        self.bundle = self._empty(1, np.zeros(1, np.int32), np.ones(1), 1, 16)

    # -- allocation --------------------------------------------------------------------------------------------

    def _empty(
        self, room: int, slots: NDArray[np.int32], passing: NDArray[np.float64], attributes: int, markers: int
    ) -> Any:
        """A bundle with room for ``room`` entries and ``markers`` markers."""
        n, groups = len(slots), self._groups(len(slots))
        attribute_slot = np.full(max(1, attributes), -1, np.int32)
        attribute_slot[slots] = np.arange(n)
        words = room // 64 + 1
        rule = np.zeros(entries.RULES)
        rule[entries.STRATEGY], rule[entries.POLICY] = self._strategy, self._policy.kind
        rule[entries.PARAMETER] = self._policy.parameter
        rule[entries.TEST_COST], rule[entries.DEARER] = TEST, 1.0
        seen = np.zeros((n, entries.SEEN))
        seen[:, entries.PRICES :] = MOVE
        seen[:, entries.PASSING], seen[:, entries.LEAST], seen[:, entries.LARGEST] = passing, np.inf, -np.inf
        scope = np.tile([-np.inf, np.inf], (n, 1))
        for s, attribute in enumerate(slots.tolist()):
            if attribute in self._scope and self._strategy == entries.PARTIAL:
                scope[s] = self._scope[attribute]
        own = self._structure_arrays(room, slots, groups, markers)
        lists = own.pop("#lists")
        family = {
            "postings": Postings(
                marker=zeros((markers, 2), np.int32),
                list=np.tile(np.array([0, -1, 0], np.int32), (lists, 1)),
                marks=zeros((room, len(groups) - 1, 2 * self.marks), np.int32),
                used=zeros((room, len(groups) - 1), np.uint8),
                stock=_empty_stock(),
            ),
            "held": zeros((room, n, 2)),
            "level": zeros((room, n, 2), np.int8),
            "state": zeros((room, len(groups) - 1), np.uint8),
            "everywhere": np.zeros((len(groups) - 1, words), np.uint64),
            "always": np.zeros(len(groups) - 1, np.int64),
            "certain": np.zeros(room, np.uint8),
            "bits": np.zeros((2, words), np.uint64),
            "brief": np.zeros((2, words // 64 + 1), np.uint64),
            "want": np.zeros((n, 2)),
            "aim": np.zeros((n, 2), np.int8),
            "levels": np.zeros((2, len(groups) - 1), np.int64),
            "group": groups,
            "scope": scope,
            "rule": rule,
            "seen": seen,
            "routes": zeros((0, 2), np.uint64),
            "route": zeros((0, 2), np.int32),
            "slot_attribute": slots.astype(np.int32),
            "attribute_slot": attribute_slot,
            "count": np.zeros(entries.COUNTS, np.int64),
            **no_sketch(attributes),
        }
        return self.record(**family, **own)

    def _groups(self, slots: int) -> NDArray[np.int32]:
        """The first slot of every group, and the end: a group per slot."""
        return np.arange(slots + 1, dtype=np.int32)

    def _structure_arrays(
        self, room: int, slots: NDArray[np.int32], groups: NDArray[np.int32], markers: int
    ) -> dict[str, Any]:
        """The arrays of the structure, empty, and under ``#lists`` how many lists it may have."""
        raise NotImplementedError  # abstract

    def _prepare(self, ids: Ids, world: World) -> None:
        """Before entries come into an empty structure."""

    # -- the protocol ------------------------------------------------------------------------------------------

    def build(self, ids: Ids, world: World, attributes: int) -> None:
        slots, _, passing = choose_slots(ids, world, attributes)
        if isinstance(self._indexed, int):
            slots, passing = slots[: self._indexed], passing[: self._indexed]
        elif np.isin(slots, self._indexed).any():
            wanted = np.isin(slots, self._indexed)
            slots, passing = slots[wanted], passing[wanted]
            if self._ordered:
                order = np.argsort([list(self._indexed).index(slot) for slot in slots.tolist()])
                slots, passing = slots[order], passing[order]
        counts = self.bundle.count
        if counts[entries.SHORT]:
            self._factor *= 2
        room = int(ids.max(initial=0) * SPARE) + 1024
        while True:
            markers = int(SPARE * self._factor * (len(ids) + 64) * len(slots))
            self.bundle = self._empty(room, slots, passing, attributes, markers)
            self._routed = 0
            self._know_templates(ids, world)
            self._prepare(ids, world)
            kernel.insert(self.bundle, ids, world)
            if not self.bundle.count[entries.SHORT]:
                break
            self._factor *= 2
        if self._strategy == entries.AGILE and self._policy.name == "cost":
            cost.survey(self.bundle, ids[:: max(1, len(ids) // SURVEYED)], world)
        self.bundle.count[PROBES : entries.SHORT] = counts[PROBES : entries.SHORT]
        self._shut = int(self.bundle.count[entries.SHUT])
        self._built = len(ids)

    def insert(self, ids: Ids, world: World, attributes: int) -> bool:
        present = int(self.bundle.count[N_ENTRIES])
        few = len(ids) <= 512 + present // 4 and present + len(ids) <= 1024 + 2 * self._built
        if present == 0 or not few or ids.max(initial=0) >= len(self.bundle.certain):
            return False
        missing = attributes - len(self.bundle.attribute_slot)
        if missing > 0:
            longer = np.concatenate([self.bundle.attribute_slot, np.full(missing, -1, np.int32)])
            self.bundle = self.bundle.replace(attribute_slot=longer)
        self._know_templates(ids, world)
        kernel.insert(self.bundle, ids, world)
        return True

    def fit(self, contexts: int, attributes: int) -> None:
        larger = fitted(self.bundle, contexts, attributes)
        if larger:
            self.bundle = self.bundle.replace(**larger)

    def worn(self) -> bool:
        """There was no room for some entries, or most had no value, and so no selectivity, when it was built."""
        count = self.bundle.count
        had_none = self._shut > int(count[N_ENTRIES]) // 8 and int(count[entries.SHUT]) < self._shut // 2
        return had_none or bool(count[entries.SHORT])

    def crowded(self) -> bool:
        """Lists have grown and moved until there is little room for more."""
        lists = self.bundle.postings
        return bool(lists.stock[postings.MARKERS_USED] > CROWDED * len(lists.marker) and len(lists.marker) > 1024)

    def settle(self, world: World) -> None:
        """Give every list a place of its size, without gaps between them, and room behind the last.

        The room is kept where it is large enough: to ask for large pages anew takes up to 20 ms in the midst of work.
        """
        lists = self.bundle.postings
        fill = lists.list[:, postings.FILL].astype(np.int64)
        room = np.where(fill > 0, np.ceil(np.log2(np.maximum(fill, 1))), -1).astype(np.int32)
        size = np.where(fill > 0, 1 << np.maximum(room, 0).astype(np.int64), 0)
        needed = int(size.sum())
        packed = np.zeros((needed, 2), np.int32)
        postings.compact(lists, packed, np.concatenate([[0], np.cumsum(size)[:-1]]), room)
        marker = lists.marker
        if needed > ROOMY * len(marker):
            marker = zeros((int(SPARE * needed), 2), np.int32)
        marker[:needed] = packed
        stock = _empty_stock()
        stock[postings.MARKERS_USED] = needed
        self.bundle = self.bundle.replace(postings=lists.replace(marker=marker, stock=stock))

    def remove(self, ids: Ids, world: World) -> None:
        kernel.remove(self.bundle, ids, world)

    def deescalate(self, world: World) -> None:
        kernel.tighten(self.bundle, np.flatnonzero(self.bundle.state.any(axis=1)).astype(np.int32), world)

    def check(self, ids: Ids, world: World) -> None:
        code, clause, slot = kernel.check(self.bundle, ids, world)
        if not code:
            wrong = postings.check(self.bundle.postings)
            code, clause, slot = (18, -1, wrong - 1) if wrong else (0, -1, -1)
        if not code:
            code, clause, slot = self.structure.check_structure(self.bundle, ids, world)
        if code:
            raise InvariantError(f"{self.name}: {BROKEN[code]} (clause {clause}, slot {slot})")

    def stats(self) -> dict[str, int]:
        count = self.bundle.count
        return {
            "entries": int(count[N_ENTRIES]),
            "messages": int(count[PROBES]),
            "updates": int(count[UPDATES]),
            "postfiltered": int(count[CANDIDATES]),
            "false_positives": int(count[FALSE_POSITIVES]),
            "escalations": int(count[ESCALATIONS]),
            "deescalations": int(count[entries.DEESCALATIONS]),
            "index_updates": int(count[entries.INDEX_UPDATES]),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        fields = self.bundle.asdict()
        lists = fields.pop("postings").asdict()
        numbers = np.array([self._built, self._shut, self._routed, self._factor])
        return {**fields, **{f"postings_{name}": array for name, array in lists.items()}, "built": numbers}

    def adopt(self, arrays: dict[str, NDArray[Any]]) -> None:
        lists = Postings(**{name: arrays[f"postings_{name}"] for name in Postings.FIELDS})
        fields = {name: arrays[name] for name in self.record.FIELDS if name != "postings"}
        self.bundle = self.record(postings=lists, **fields)
        self._built, self._shut, self._routed, self._factor = (int(n) for n in arrays["built"])

    def _know_templates(self, ids: Ids, world: World) -> None:
        """Find the routes of templates that have come since the last time."""
        known, templates = self._routed, int(world.clauses.meta[ids, TEMPLATE].max(initial=-1)) + 1
        if known < templates:
            self.bundle = self.bundle.replace(
                routes=with_room(self.bundle.routes, templates),
                route=with_room(self.bundle.route, len(world.templates.predicate)),
            )
            cells.find_routes(self.bundle, known, templates, False, world)
            self._routed = templates


class SkipListIndex(FamilyIndex):
    """Interval skip lists, one per attribute. Runtime complexity: probe O(log N + found), update O(log N)."""

    name: ClassVar[str] = "skiplist"
    record: ClassVar[type[Record]] = SkipList
    structure: ClassVar[Any] = skiplist
    marks: ClassVar[int] = 32
    factor: ClassVar[int] = 24

    def _structure_arrays(
        self, room: int, slots: NDArray[np.int32], groups: NDArray[np.int32], markers: int
    ) -> dict[str, Any]:
        n, own = len(groups) - 1, skiplist.MAX_HEIGHT + 1
        edges = n * own + int(1.4 * n * min(2 * room, NODES)) + 64
        key, beyond = np.zeros(edges), np.full(edges, np.inf)
        height, to = np.zeros(edges, np.int8), np.zeros(edges, np.int32)
        for g in range(n):
            first, last = g * own, g * own + skiplist.MAX_HEIGHT
            key[first], key[last], height[first] = -np.inf, np.inf, skiplist.MAX_HEIGHT
            to[first:last] = last
        spare = np.ones(skiplist.TALLEST + n, np.int64)
        spare[: skiplist.TALLEST] = (n * own, 88_172_645_463_325_252, 0)
        return {
            "key": key,
            "height": height,
            "to": to,
            "beyond": beyond,
            "ends": zeros((room, n, 2), np.int32),
            "path": np.zeros(skiplist.MAX_HEIGHT, np.int32),
            "edges": np.zeros(self.marks, np.int32),
            "spare": spare,
            "#lists": edges,
        }

    def _prepare(self, ids: Ids, world: World) -> None:
        """Nodes at the ends of a sample, or of all if they are few; as many again may come later."""
        skiplist.seed(self.bundle, ids[:: -(-4 * len(ids) // NODES) or 1], world)

    def worn(self) -> bool:
        """Also when many ends are rounded by much: the values have gone where there are no nodes."""
        return super().worn() or int(self.bundle.spare[skiplist.ROUGH]) > 64 + int(self.bundle.count[N_ENTRIES])


class HashIndex(FamilyIndex):
    """Hash tables, one per attribute. Runtime complexity: probe O(1 + found), update O(cells of an interval)."""

    name: ClassVar[str] = "hash"
    record: ClassVar[type[Record]] = HashTable
    structure: ClassVar[Any] = hashtable
    marks: ClassVar[int] = hashtable.MOST

    def _structure_arrays(
        self, room: int, slots: NDArray[np.int32], groups: NDArray[np.int32], markers: int
    ) -> dict[str, Any]:
        buckets = markers // 2 + 64
        return {
            "cell": np.zeros(len(slots)),
            "bucket": zeros((buckets, 2), np.int64),
            "slots": np.full(1 << int(2 * buckets).bit_length(), -1, np.int32),
            "spare": np.zeros(1, np.int64),
            "#lists": buckets,
        }

    def _prepare(self, ids: Ids, world: World) -> None:
        """Cells a quarter as wide as the median interval; none where most clauses compare for equality."""
        sample = ids[:: max(1, len(ids) // SAMPLE)]
        bounds = layout.sample_bounds(sample, self.bundle.slot_attribute, world)
        for s in range(len(self.bundle.slot_attribute)):
            with np.errstate(invalid="ignore", over="ignore"):
                width = bounds[:, s, 1] - bounds[:, s, 0]
            width = width[np.isfinite(width) & (width >= 0)]  # an interval may be empty just now
            self.bundle.cell[s] = float(np.median(width)) / 4 if len(width) else 0.0
