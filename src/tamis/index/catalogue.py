"""The catalogue from the outside: which clauses it takes, how it grows (see :mod:`tamis.kernels.catalogue`).

It stands beside the index of a shard: a clause is either here or there. What it guarantees is the law of every index:
it may find too much, never too little. Runtime complexity: probe O(marked categories + candidates), update O(categories
of the context's value), insert and remove O(categories).
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

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
_LINE = 16  # columns of a cache line
_FEW = 64  # different values of an equality from which on it may tell clauses apart better than categories


def wanted(ids: Ids, world: World, sizes: list[int]) -> NDArray[np.bool_]:
    """The clauses that a catalogue should take: those that ask for categories, unless an equality finds them better."""
    found = _survey(ids, world).sides > 0
    if not found.any() or 2 * len(sizes) > 64:
        return np.zeros(len(ids), np.bool_)
    templates = world.clauses.meta[ids, b.TEMPLATE]
    for r in np.unique(templates[found]).tolist() if _has_equality(np.unique(templates[found]), world) else ():
        mine = found & (templates == r)
        if _distinct(ids[mine], r, world) > max(_FEW, min(sizes) // 4):
            found[mine] = False
    return found


class _Survey(NamedTuple):
    """What clauses ask for."""

    sides: NDArray[np.int64]  # [clause]
    keys: NDArray[np.uint64]  # [clause]: lane keys as bits
    largest: int  # set of categories
    sources: NDArray[np.intp]  # the context attributes that sides come from


def _survey(ids: Ids, world: World) -> _Survey:
    sides, keys = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.uint64)
    sources = np.zeros(world.contexts.value.shape[1], np.uint8)
    largest = kernel.survey(ids, world, _asked(), sides, keys, sources)
    return _Survey(sides, keys, int(largest), np.flatnonzero(sources))


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
        count[kernel.FREE_CHUNK] = -1
        room = max(1, entries)
        return Catalogue(
            entry=zeros((room, 4), np.int32),
            side=zeros((room * sides, -(-(kernel.NOW + most) // _LINE) * _LINE), np.int32),
            held=zeros((room * sides, most), np.int32),
            spot=zeros((room * sides, most), np.int32),
            where=zeros(room * sides, np.uint64),
            chunk=zeros((0, 1 + kernel.PER), np.int32),
            list=np.zeros((0, 4), np.int32),
            lane=np.zeros((0, kernel.LANE_COLUMNS), np.int64),
            group=np.zeros((0, 2 + sides), np.int32),
            slot=np.full(1, -1, np.int32),
            head=np.full((1, 0), -1, np.int32),
            heard=np.zeros(kernel.TILE, np.int32),
            missed=np.zeros(0, np.int64),
            seen=zeros(room, np.int32),
            bag=zeros(room * most, np.int32),
            work=np.zeros((0, 3)),
            scratch=np.zeros((3, 80), np.int64),
            asked=_asked(),
            count=count,
        )

    def watches(self, attribute: int) -> bool:
        """Whether an entry depends on a context attribute."""
        slot = self.bundle.slot
        return attribute < len(slot) and bool(slot[attribute] >= 0)

    def fits(self, sizes: list[int]) -> bool:
        """Whether its lists are those of graphs of these sizes; without lists it fits any."""
        return not self._keys or self._sizes == sizes

    def build(self, ids: Ids, world: World, sizes: list[int]) -> None:
        """Drop everything and enter clauses ``ids``. O(N)."""
        survey = _survey(ids, world)
        moving = bool(np.any(world.clauses.meta[ids, b.CONTEXT] >= 0))
        most = min(MOST, max(4, survey.largest + 1) if moving else max(1, survey.largest))
        old = self.bundle.count
        self._sizes, self._keys = sizes, []
        self._place = np.full((0, 2 * len(sizes)), -1, np.int64)
        self.bundle = self._empty(len(ids) + len(ids) // 8 + 8, max(1, int(survey.sides.max(initial=1))), most)
        self.bundle.count[kernel.PROBES : kernel.NAPS + 1] = old[kernel.PROBES : kernel.NAPS + 1]
        self.fit(len(world.contexts.value), world.contexts.value.shape[1])
        self._enter(ids, survey, world)

    def insert(self, ids: Ids, world: World) -> bool:
        """Enter more clauses; False when a ``build`` over all of them would be the better deal, or is necessary."""
        survey = _survey(ids, world)
        most = self.bundle.spot.shape[1]
        if not self._keys or survey.sides.max() > kernel.sides_of(self.bundle):
            return False
        if survey.largest > most and most < MOST:
            return False
        self._enter(ids, survey, world)
        return True

    def _enter(self, ids: Ids, survey: _Survey, world: World) -> None:
        for key in np.unique(survey.keys).tolist():
            if _bits(key) not in self._keys:
                self._add_group(_bits(key))
        self._listen(survey.sources)
        self._make_chunks()
        done = 0
        while True:
            done, why = kernel.file_in(self.bundle, ids, done, self._place, world)
            if why == 0:
                return
            assert why == 1, "every group is there"
            self._grow(len(self.bundle.entry) + len(ids) - done)

    def _listen(self, sources: NDArray[np.intp]) -> None:
        """Sides may come from these context attributes."""
        cx = self.bundle
        new = sources[cx.slot[sources] < 0]
        if len(new):
            cx.slot[new] = np.arange(len(new)) + cx.head.shape[1]
            head = zeros((len(cx.head), cx.head.shape[1] + len(new)), np.int32)
            head[:, : cx.head.shape[1]] = cx.head
            head[:, cx.head.shape[1] :] = -1
            self.bundle = cx.replace(head=head)

    def _make_chunks(self) -> None:
        """As many as the lists can ever need: all but the first of a list are full."""
        cx = self.bundle
        postings = cx.spot.size
        need = postings // kernel.PER + min(postings, 2 * len(cx.list)) + 1
        if need > len(cx.chunk):
            self.bundle = cx.replace(chunk=with_room(cx.chunk, need))

    def _add_group(self, keys: tuple[int, ...]) -> None:
        """A group with lanes of these keys, each with empty lists for all categories of its graph."""
        cx = self.bundle
        lanes, first = len(cx.lane), len(cx.list)
        rows = []
        stretches = kernel.STRETCHES.bit_length() - 1
        for key in keys:
            room = self._sizes[key // 2]
            rows.append((key // 2, key % 2, first, room, 1, max(0, (room - 1).bit_length() - stretches)))
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
            missed=np.concatenate([cx.missed, np.zeros(len(keys), np.int64)]),
            work=np.concatenate([cx.work, np.zeros((len(keys), 3))]),
        )
        self.bundle.count[kernel.N_GROUPS] = len(self._keys)

    def _grow(self, entries: int) -> None:
        cx = self.bundle
        room = max(entries, 2 * len(cx.entry))
        sides, most = kernel.sides_of(cx), cx.spot.shape[1]
        rows = {"entry": room, "seen": room, "bag": room * most}
        rows |= dict.fromkeys(("side", "held", "spot", "where"), room * sides)
        self.bundle = cx.replace(**{name: with_room(getattr(cx, name), many)[:many] for name, many in rows.items()})
        self._make_chunks()

    def fit(self, contexts: int, attributes: int) -> None:
        """There are that many contexts and context attributes now. O(1) amortised."""
        cx = self.bundle
        if contexts > len(cx.head):
            self.bundle = cx = cx.replace(head=with_room(cx.head, contexts, -1))
        if attributes > len(cx.slot):
            self.bundle = cx.replace(slot=with_room(cx.slot, attributes, -1))

    def remove(self, ids: Ids, world: World) -> None:
        """Forget clauses. O(their categories)."""
        for k in ids.tolist():
            kernel.take_out(self.bundle, k, world)

    def deescalate(self) -> None:
        """Make every entry exact in every lane that is awake."""
        kernel.deescalate(self.bundle)

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
