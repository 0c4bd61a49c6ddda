"""The catalogue from the outside: which clauses it takes, how it grows (see :mod:`tamis.kernels.catalogue`).

It stands beside the index of a shard: a clause is either here or there. What it guarantees is the law of every index:
it may find too much, never too little. Runtime complexity: probe O(marked categories + candidates), update O(categories
of the context's value), insert and remove O(categories).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.errors import InvariantError
from tamis.kernels import bundles as b
from tamis.kernels import catalogue as kernel
from tamis.kernels.bundles import World
from tamis.kernels.catalogue import Catalogue

from .growth import with_room, zeros
from .protocol import BROKEN, Ids

MOST = 16  # categories that a side holds at most
_FEW = 64  # different values of an equality from which on it may tell clauses apart better than categories


def wanted(ids: Ids, world: World, sizes: list[int]) -> NDArray[np.bool_]:
    """The clauses that a catalogue should take: those that ask for categories, unless an equality finds them better."""
    sides, _, _ = _survey(ids, world)
    found = sides > 0
    if not found.any() or 2 * len(sizes) > 64:
        return np.zeros(len(ids), np.bool_)
    templates = world.clauses.meta[ids, b.TEMPLATE]
    for r in np.unique(templates[found]).tolist() if _has_equality(np.unique(templates[found]), world) else ():
        mine = found & (templates == r)
        if _distinct(ids[mine], r, world) > max(_FEW, min(sizes) // 4):
            found[mine] = False
    return found


def _survey(ids: Ids, world: World) -> tuple[NDArray[np.int64], NDArray[np.uint64], int]:
    sides, keys = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.uint64)
    largest = kernel.survey(ids, world, _asked(), sides, keys)
    return sides, keys, int(largest)


def _asked() -> NDArray[np.int64]:
    return np.zeros((kernel.MAX_ANCHORS, 4), np.int64)


def _equalities(r: int, world: World) -> NDArray[np.int32]:
    """The predicates of a template that ask for one value of its own constants."""
    first = int(world.templates.row[r, b.FIRST_PREDICATE])
    rows = world.templates.predicate[first : first + int(world.templates.row[r, b.PREDICATES])]
    same = (rows[:, b.LOW] == b.CONST) & (rows[:, b.HIGH] == b.CONST) & (rows[:, b.LOW_CONST] == rows[:, b.HIGH_CONST])
    found: NDArray[np.int32] = rows[same & (rows[:, b.LOW_CONST] >= 0)]
    return found


def _has_equality(templates: NDArray[np.int32], world: World) -> bool:
    return any(len(_equalities(r, world)) for r in templates.tolist())


def _distinct(ids: Ids, r: int, world: World) -> int:
    """How many values the best equality of some clauses of one template tells apart."""
    own = world.clauses.meta[ids, b.CONSTANTS]
    values = [world.clauses.constant[own + row[b.LOW_CONST]] for row in _equalities(r, world)]
    return max((len(np.unique(column)) for column in values), default=0)


class CatalogueIndex:
    """The catalogue of one shard; ``eager`` keeps every entry exact all the time."""

    name: ClassVar[str] = "catalogue"

    def __init__(self, eager: bool) -> None:
        self._eager = eager
        self._keys: list[tuple[int, ...]] = []  # the lane keys of every group
        self._place = np.full((0, 1), -1, np.int64)
        self._sizes: list[int] = []
        self.bundle = self._empty(0, 1, 1)

    def _empty(self, entries: int, sides: int, most: int) -> Catalogue:
        count = np.zeros(kernel.COUNTS, np.int64)
        count[kernel.FREE] = -1
        count[kernel.EAGER] = self._eager
        room = max(1, entries)
        return Catalogue(
            entry=zeros((room, 4), np.int32),
            side=zeros((room, sides, kernel.SIDE_COLUMNS), np.int32),
            node=zeros((room, sides, most), np.int32),
            wide=zeros((room, sides, most), np.uint8),
            link=zeros((room * sides * most, 2), np.int32),
            list=np.zeros((0, 4), np.int32),
            lane=np.zeros((0, kernel.LANE_COLUMNS), np.int64),
            group=np.zeros((0, 2 + sides), np.int32),
            head=np.full(1, -1, np.int32),
            watched=np.zeros(1, np.uint8),
            missed=np.zeros(1, np.int64),
            seen=zeros(room, np.int64),
            work=np.zeros((0, 3)),
            scratch=np.zeros((4, most + 72), np.int64),
            asked=_asked(),
            count=count,
        )

    def watches(self, attribute: int) -> bool:
        """Whether an entry depends on a context attribute."""
        watched = self.bundle.watched
        return attribute < len(watched) and bool(watched[attribute])

    def build(self, ids: Ids, world: World, sizes: list[int]) -> None:
        """Drop everything and enter clauses ``ids``. O(N)."""
        sides, keys, largest = _survey(ids, world)
        moving = bool(np.any(world.clauses.meta[ids, b.CONTEXT] >= 0))
        most = min(MOST, max(4, 2 * largest)) if moving else min(MOST, max(1, largest))
        old = self.bundle.count
        self._sizes, self._keys = sizes, []
        self._place = np.full((0, 2 * len(sizes)), -1, np.int64)
        self.bundle = self._empty(len(ids) + len(ids) // 8 + 8, max(1, int(sides.max(initial=1))), most)
        self.bundle.count[kernel.PROBES : kernel.NAPS + 1] = old[kernel.PROBES : kernel.NAPS + 1]
        self.fit(len(world.contexts.value), world.contexts.value.shape[1])
        for key in np.unique(keys).tolist():
            self._add_group(_bits(key))
        self._enter(ids, world)

    def insert(self, ids: Ids, world: World) -> bool:
        """Enter more clauses; False when a ``build`` over all of them would be the better deal, or is necessary."""
        sides, keys, largest = _survey(ids, world)
        shape = self.bundle.node.shape
        if not self._keys or sides.max() > shape[1] or (largest > shape[2] and shape[2] < MOST):
            return False
        for key in np.unique(keys).tolist():
            if _bits(key) not in self._keys:
                self._add_group(_bits(key))
        self._enter(ids, world)
        return True

    def _enter(self, ids: Ids, world: World) -> None:
        done = 0
        while True:
            done, why = kernel.file_in(self.bundle, ids, done, self._place, world)
            if why == 0:
                return
            assert why == 1, "every group is there"
            self._grow(len(self.bundle.entry) + len(ids) - done)

    def _add_group(self, keys: tuple[int, ...]) -> None:
        """A group with lanes of these keys, each with empty lists for all categories of its graph."""
        cx = self.bundle
        lanes, first = len(cx.lane), len(cx.list)
        rows = []
        for key in keys:
            room = self._sizes[key // 2]
            rows.append((key // 2, key % 2, first, room, 1, 0))
            first += room + 1
        lists = zeros((first, 4), np.int32)
        lists[: len(cx.list)] = cx.list
        lists[len(cx.list) :, :2] = -1
        group = np.zeros((1, cx.group.shape[1]), np.int32)
        group[0, 1 : 2 + len(keys)] = (len(keys), *range(lanes, lanes + len(keys)))
        place = np.full((1, self._place.shape[1]), -1, np.int64)
        place[0, list(keys)] = np.arange(len(keys))
        self._keys.append(keys)
        self._place = np.concatenate([self._place, place])
        self.bundle = cx.replace(
            list=lists,
            lane=np.concatenate([cx.lane, np.array(rows, np.int64)]),
            group=np.concatenate([cx.group, group]),
            work=np.concatenate([cx.work, np.zeros((len(keys), 3))]),
        )
        self.bundle.count[kernel.N_GROUPS] = len(self._keys)

    def _grow(self, entries: int) -> None:
        cx = self.bundle
        room = max(entries, 2 * len(cx.entry))
        per = cx.node.shape[1] * cx.node.shape[2]
        names = ("entry", "side", "node", "wide", "seen")
        larger: dict[str, Any] = {name: with_room(getattr(cx, name), room)[:room] for name in names}
        larger["link"] = with_room(cx.link, room * per)[: room * per]
        self.bundle = cx.replace(**larger)

    def fit(self, contexts: int, attributes: int) -> None:
        """There are that many contexts and context attributes now. O(1) amortised."""
        cx = self.bundle
        if contexts > len(cx.head):
            self.bundle = cx = cx.replace(head=with_room(cx.head, contexts, -1))
        if attributes > len(cx.watched):
            self.bundle = cx.replace(watched=with_room(cx.watched, attributes), missed=with_room(cx.missed, attributes))

    def remove(self, ids: Ids, world: World) -> None:
        """Forget clauses. O(their categories)."""
        for k in ids.tolist():
            kernel.take_out(self.bundle, k, world)

    def deescalate(self, world: World) -> None:
        """Make every entry exact in every lane that is awake."""
        kernel.deescalate(self.bundle, world)

    def check(self, ids: Ids, world: World) -> None:
        """Raise InvariantError unless exactly the clauses ``ids`` are entered and every invariant holds. O(N)."""
        code, clause, side = kernel.check(self.bundle, ids, world)
        if code:
            raise InvariantError(f"catalogue: {BROKEN[code]} (clause {clause}, side {side})")

    def stats(self) -> dict[str, int]:
        """Counters since the filter was made."""
        count = self.bundle.count
        return {
            "entries": int(count[kernel.N_ENTRIES]),
            "catalogued": int(count[kernel.N_ENTRIES]),
            "postfiltered": int(count[kernel.CANDIDATES]),
            "false_positives": int(count[kernel.FALSE_POSITIVES]),
            "escalations": int(count[kernel.ESCALATIONS]),
            "deescalations": int(count[kernel.DEESCALATIONS]),
            "moves": int(count[kernel.MOVES]),
            "naps": int(count[kernel.NAPS]),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The bundle by name, for saving."""
        return {**self.bundle.asdict(), "place": self._place, "sizes": np.array(self._sizes, np.int64)}

    def adopt(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take over what ``arrays`` gave out."""
        self.bundle = Catalogue(**{name: arrays[name] for name in Catalogue.FIELDS})
        self._place, self._sizes = arrays["place"], arrays["sizes"].tolist()
        self._keys = [tuple(np.flatnonzero(row >= 0).tolist()) for row in self._place]


def _bits(key: int) -> tuple[int, ...]:
    return tuple(i for i in range(64) if key >> i & 1)
