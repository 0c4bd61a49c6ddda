"""``Matcher``: who is interested in an event, for users with sets of categories in several content graphs.

Guarantees that the matches are exactly those of plain reachability, whatever has escalated; :meth:`Matcher.check`
verifies the invariants. Refuses to know names, profiles and attributes: users and categories are numbers. The kernels
are :mod:`tamis.kernels.categories`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tamis.errors import GraphError, InvariantError, UsageError
from tamis.kernels import categories as kernels
from tamis.kernels import postings
from tamis.kernels.bundles import Postings
from tamis.kernels.categories import Categories

from .content import ContentGraph

Direction: TypeAlias = Literal["within", "covers"]
Ids: TypeAlias = NDArray[np.int32]
STRATEGIES = ("agile", "eager")
BROKEN = {
    1: "a posting list and the entry disagree",
    2: "k(i) is not in K(i): a category has left what its entry holds",
    3: "an entry holds something else than its list says",
}


class Matched(NamedTuple):
    """Pairs of event and user, events in order."""

    event: NDArray[np.int64]
    user: Ids


class Matcher:
    """Users by category. ``graphs`` are pairs of a graph and ``"within"`` (the user's category is the event's or above
    it) or ``"covers"`` (the event's is the user's or above it); ``most`` is how many categories a user may have in one.
    """

    def __init__(
        self, graphs: Sequence[tuple[ContentGraph, Direction]], *, most: int = 8, strategy: str = "agile"
    ) -> None:
        for graph, direction in graphs:
            if direction not in ("within", "covers"):
                raise UsageError(f"graph {graph.name!r}: expected 'within' or 'covers', got {direction!r}")
        if strategy not in STRATEGIES:
            raise UsageError(f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
        if not graphs or not 1 <= most <= 127:
            raise UsageError("a matcher has at least one graph, and most is 1 to 127")
        self.graphs = [graph for graph, _ in graphs]
        self.strategy = strategy
        self._most = most
        self._covers = np.array([direction == "covers" for _, direction in graphs], np.uint8)
        self._value = np.full((len(graphs), 0, most), -1, np.int32)
        self._state = np.zeros(16, np.int64)
        self._versions: list[int] = []
        self._kept: list[tuple[Any, Any]] = []
        self._build()

    # -- the bundle --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        """List everything anew, exact. O(users + categories)."""
        graphs, users, most = self._value.shape
        now = [self._categories(g) for g in range(len(self._kept))] if users else [self._value[0]] * graphs
        self._versions = [graph.version for graph in self.graphs]
        self._kept = [(graph.bundle(), graph.adjacency()) for graph in self.graphs]  # kernels see their addresses
        value = np.stack(now, axis=1)
        for g, graph in enumerate(self.graphs):  # categories that were removed leave their users
            value[:, g][graph.alive()[value[:, g]] == 0] = -1
        value = np.take_along_axis(value, np.argsort(value < 0, axis=2, kind="stable"), 2)
        room = [len(lb.extent) for lb, _ in self._kept]
        numbers = [max(len(lb.order), len(lb.extent)) for lb, _ in self._kept]
        start = np.concatenate([[0], np.cumsum([2 * n + 1 for n in room])]).astype(np.int64)
        lists = np.zeros((int(start[-1]), 3), np.int32)
        lists[:, postings.ROOM] = -1
        stock = np.full(1 + postings.CLASSES, -1, np.int64)
        stock[postings.MARKERS_USED] = 0
        self._value = np.full_like(self._value, -1)
        pool = Postings(
            marker=np.zeros((max(1024, 4 * int((value >= 0).sum())), 2), np.int32),
            list=lists,
            marks=np.zeros((users, graphs, 2 * most), np.int32),
            used=np.zeros((users, graphs), np.uint8),
            stock=stock,
        )
        widest = max(room)
        self.bundle = Categories(
            postings=pool,
            graph=np.array([[lb.address, eg.address] for lb, eg in self._kept], np.int64),
            covers=self._covers,
            start=start,
            value=self._value,
            held=np.zeros((graphs, users, 3 * most), np.int32),
            where=np.zeros((graphs, users), np.uint64),
            stretch=np.array([max(0, (count - 1).bit_length() - 6) for count in numbers], np.int64),
            rates=np.zeros((graphs, 5)),
            coarse=np.zeros((graphs, max(numbers) // 64 + 1), np.int32),
            marks=np.zeros((graphs, widest), np.uint8),
            queue=np.zeros((graphs, widest), np.int32),
            span=np.zeros((graphs, kernels.WIDEST, 2), np.int32),
            seen=np.zeros(users, np.int32),
            bag=np.zeros(users + 1, np.int32),
            plan=np.zeros((4, graphs), np.int64),
            state=self._state,
        )
        self._state[kernels.STAMP] = 0
        self._state[kernels.HAND] = 0
        listed = np.flatnonzero((value >= 0).any(axis=(1, 2))).astype(np.int32)
        self._insert(listed, np.ascontiguousarray(value[listed]))

    def _categories(self, g: int) -> Ids:
        """[user, most]: the categories of all users in a graph, -1 for none."""
        value = self._value[g]
        if not self._covers[g]:
            return np.array(value, np.int32)
        order: Ids = self._kept[g][0].order  # numbers are never given to another category
        if not len(order):
            return np.array(value, np.int32)
        found: Ids = np.where(value < 0, np.int32(-1), order[value]).astype(np.int32)
        return found

    def categories(self, user: int) -> list[list[int]]:
        """The categories of a user, by graph."""
        self._follow()
        return [[c for c in self._categories(g)[user].tolist() if c >= 0] for g in range(len(self.graphs))]

    def _follow(self) -> None:
        """Take over what has changed in the graphs."""
        if self._versions != [graph.version for graph in self.graphs]:
            self._build()

    def _fit(self, users: int) -> None:
        """There are users 0 to ``users`` - 1. O(1) amortised."""
        have = self.users
        if users <= have:
            return
        room = max(users, have + have // 2)
        fields: dict[str, Any] = self.bundle.asdict()
        fields["bag"] = np.zeros(room + 1, np.int32)
        for name in ("value", "held", "where", "seen"):
            axis = fields[name].ndim - 1 and 1
            longer = _longer(np.moveaxis(fields[name], axis, 0), room, -1 if name == "value" else 0)
            fields[name] = np.ascontiguousarray(np.moveaxis(longer, 0, axis))
        pool = fields["postings"]
        fields["postings"] = pool.replace(marks=_longer(pool.marks, room, 0), used=_longer(pool.used, room, 0))
        self.bundle, self._value = Categories(**fields), fields["value"]

    @property
    def users(self) -> int:
        """Users are numbers below this."""
        return self._value.shape[1]

    def _more_markers(self) -> None:
        pool = self.bundle.postings
        pool = pool.replace(marker=_longer(pool.marker, 2 * len(pool.marker), 0))
        self.bundle = self.bundle.replace(postings=pool)

    # -- users -------------------------------------------------------------------------------------------------

    def insert(self, users: Any, *categories: Any) -> None:
        """Give users their categories: one array [user, up to ``most``] per graph, -1 for none. O(1) per category."""
        self._follow()
        users = np.ascontiguousarray(users, np.int32)
        if users.size and users.min() < 0:
            raise UsageError(f"users are numbers from 0, got {users.min()}")
        if len(categories) != len(self.graphs):
            raise UsageError(f"expected categories for {len(self.graphs)} graphs, got {len(categories)}")
        wide = self._padded(categories, len(users), "user", self._most)
        self._fit(int(users.max(initial=-1)) + 1)
        self.remove(users)
        self._insert(users, wide)

    def _insert(self, users: Ids, wide: Ids) -> None:
        done = 0
        while (done := kernels.insert_many(self.bundle, users, wide, done)) < len(users):
            self._more_markers()

    def remove(self, users: Any) -> None:
        """Forget users; those that are not there stay so. O(1) per category."""
        users = np.ascontiguousarray(users, np.int32)
        kernels.remove_many(self.bundle, users[(users >= 0) & (users < self.users)])

    def _padded(self, categories: Sequence[Any], rows: int, what: str, most: int) -> Ids:
        """[row, graph, most], used places first."""
        wide = np.full((rows, len(self.graphs), most), -1, np.int32)
        for g, (graph, given) in enumerate(zip(self.graphs, categories, strict=True)):
            if len(given) != rows:
                raise UsageError(f"graph {graph.name!r}: expected a row of categories for each of {rows} {what}s")
            given = np.asarray(given, np.int32).reshape(rows, np.size(given) // max(1, rows))
            if given.shape[1] > most:
                raise UsageError(f"graph {graph.name!r}: at most {most} categories per {what} (most=)")
            self._known(graph, given, what)
            order = np.argsort(given < 0, axis=1, kind="stable")
            wide[:, g, : given.shape[1]] = np.take_along_axis(given, order, 1)
        return wide

    def _known(self, graph: ContentGraph, given: Ids, what: str) -> None:
        """Refuse categories that the graph does not have."""
        alive = np.append(graph.alive()[: graph.size] != 0, True)  # -1 is no category
        wrong = (given < -1) | (given >= graph.size)
        wrong |= ~alive[np.where(wrong, -1, given)]
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            bad = given[wrong][0]
            raise GraphError(f"graph {graph.name!r}: {what} {row}: there is no category number {bad}")

    # -- logs --------------------------------------------------------------------------------------------------

    def update(self, users: Any, graph: int, which: Any, categories: Any) -> None:
        """Category number ``which`` of a user in a graph changes, for arrays of updates in their order."""
        self.process(self.moves(users, graph, which, categories), None, *([] for _ in self.graphs))

    def moves(self, users: Any, graph: Any, which: Any, categories: Any) -> Ids:
        """Updates as rows (user, graph, which, category), checked."""
        self._follow()
        users, graph, which, categories = np.broadcast_arrays(users, graph, which, categories)
        rows = np.ascontiguousarray(np.stack([users, graph, which, categories], axis=-1), np.int32).reshape(-1, 4)
        k, g, j, _ = rows.T
        if ((g < 0) | (g >= len(self.graphs))).any():
            raise UsageError(f"graphs are numbered 0 to {len(self.graphs) - 1}")
        inside = (k >= 0) & (k < self.users) & (j >= 0)
        inside[inside] = j[inside] < self.bundle.postings.used[k[inside], g[inside]]
        if not inside.all():
            bad = int(np.flatnonzero(~inside)[0])
            raise UsageError(f"update {bad}: user {k[bad]} has no category number {j[bad]} in graph number {g[bad]}")
        for number, one in enumerate(self.graphs):
            mine = rows[g == number, 3]
            if (mine == -1).any():
                raise GraphError(f"graph {one.name!r}: update: there is no category number -1")
            self._known(one, mine[:, None], "update")
        return rows

    def match(self, *categories: Any) -> Matched:
        """The users of events: one array [event, some categories] per graph, -1 for none."""
        return self.process(None, None, *categories)

    def process(self, moves: Ids | None, before: Any, *categories: Any) -> Matched:
        """Events and updates in one order: updates ``before[i] .. before[i + 1]`` of :meth:`moves` precede event ``i``,
        those left over follow the last. One kernel call, except where memory has to grow."""
        self._follow()
        if len(categories) != len(self.graphs):
            raise UsageError(f"expected categories for {len(self.graphs)} graphs, got {len(categories)}")
        rows = len(categories[0])
        widest = max(1, *(np.size(one) // max(1, rows) for one in categories))
        if widest > kernels.WIDEST:
            raise UsageError(f"an event has at most {kernels.WIDEST} categories in a graph, got {widest}")
        events = self._padded(categories, rows, "event", widest)
        moves = np.empty((0, 4), np.int32) if moves is None else moves
        starts = np.full(rows + 2, len(moves), np.int64)
        starts[0] = 0
        if before is not None:
            starts[: rows + 1] = before
        elif rows:
            starts[1 : rows + 1] = len(moves)
        done = np.array([starts[0], 0], np.int64)
        ends = np.zeros(rows, np.int64)
        out = np.empty(max(self.users, 16 * rows) + 1, np.int32)
        while state := kernels.replay(self.bundle, moves, starts, events, done, out, ends, self.strategy == "agile"):
            if state == 1:
                self._more_markers()
            else:
                out = _longer(out, 2 * len(out), 0)
        users = out[: ends[-1] if rows else 0]
        return Matched(np.repeat(np.arange(rows), np.diff(ends, prepend=0)), users)

    # -- the rest ----------------------------------------------------------------------------------------------

    def deescalate(self) -> None:
        """Make every entry exact. O(users)."""
        self._build()

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the matcher was made."""
        names = {
            "returned": kernels.RETURNED,
            "false_positives": kernels.VAIN,
            "updates": kernels.UPDATES,
            "index_updates": kernels.LISTED,
            "escalations": kernels.ESCALATED,
            "deescalations": kernels.DEESCALATED,
        }
        return {name: int(self._state[at]) for name, at in names.items()}

    def check(self) -> None:
        """Raise InvariantError unless every invariant holds. O(users)."""
        self._follow()
        for k in range(self.users):
            broken = kernels.check(self.bundle, k)
            if broken:
                raise InvariantError(f"user {k}: {BROKEN[broken]}")
        if postings.check(self.bundle.postings):
            raise InvariantError("posting lists and entries disagree")
        if (self.bundle.rates[:, kernels.ENTRIES] != self.bundle.postings.used.sum(axis=0)).any():
            raise InvariantError("the number of entries is wrong")
        if self.bundle.marks.any():
            raise InvariantError("categories of an event are still marked")
        wanted = np.zeros_like(self.bundle.coarse)
        pool = self.bundle.postings
        for g, (lb, _) in enumerate(self._kept):
            listed = pool.marks[:, g, ::2][np.arange(self._most) < pool.used[:, g, None]] - self.bundle.start[g]
            listed = listed[listed < 2 * len(lb.extent)] >> 1
            numbers = lb.number[listed] if len(lb.number) else listed
            np.add.at(wanted[g], numbers[numbers >= 0] >> 6, 1)
        if (wanted != self.bundle.coarse).any():
            raise InvariantError("the counts of listed entries are wrong")


def _longer(array: NDArray[Any], room: int, start: int) -> NDArray[Any]:
    """The array with more rows, filled with ``start``."""
    grown = np.full((room, *array.shape[1:]), start, array.dtype)
    grown[: len(array)] = array
    return grown
