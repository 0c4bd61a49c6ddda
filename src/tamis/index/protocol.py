"""The one face of every index.

An index holds *entries*, one per clause. Its arrays go into the replay kernel as a bundle; the methods here are what
happens between logs. The law that every index obeys is paper 000's ``k(i) in K(i)``: what it returns for a message may
contain clauses that do not match, it never lacks one that does.

| method | paper 000 | when |
|---|---|---|
| ``insert`` | insert | a clause is subscribed |
| ``remove`` | delete | a clause is unsubscribed |
| probe | probe | in the replay kernel, for every message |
| covers | new value in K(i)? | in the replay kernel, for every update: ``Contexts.safe`` |
| escalate | escalate | in the replay kernel, when ``covers`` says no |
| ``deescalate`` | deescalate | in the replay kernel when the evidence is there; from outside: all at once |
| ``settle`` | | between logs, when ``escalate`` found no room where an entry belongs |
| ``check`` | the conditions of Table 1 | on demand |
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from tamis.kernels.bundles import World

Ids = NDArray[np.int32]
BROKEN = {
    1: "the number of entries differs from the number of live clauses",
    2: "the number of taken places differs from the number of live clauses",
    3: "a clause and its place disagree",
    4: "a live clause has a place that counts as free",
    5: "a clause that could match is shut, or one that cannot is open and not postfiltered",
    6: "k(i) is not in K(i): the range of an entry lacks values of its interval",
    7: "the range of an entry is wider than the margin of its line",
    8: "a constrained slot is not marked as used in its block",
    9: "the zone of a chunk lacks part of an entry",
    10: "the box of a block lacks part of an entry",
    11: "the core of a chunk reaches beyond an entry",
    12: "the hull of a family at the root lacks a constant of an entry",
    13: "the sketch differs from the value of a context",
    14: "the tenant of a context at the root is another one",
    16: "keys are out of order",
    17: "the markers of an entry do not make up the range it holds",
    18: "a list and the markers of an entry disagree",
    19: "the range of a node lacks part of what is in it, or has more",
    20: "a node and its children or its depth disagree",
}


class Index(Protocol):
    """What the engine asks of an index."""

    name: ClassVar[str]
    bundle: Any  # Blocks, Scan, ...: what the replay kernel gets

    def build(self, ids: Ids, world: World, attributes: int) -> None:
        """Drop everything and index clauses ``ids``. O(N log N)."""

    def insert(self, ids: Ids, world: World, attributes: int) -> bool:
        """Index more clauses; False when a ``build`` over all live clauses would be the better deal."""

    def fit(self, contexts: int, attributes: int) -> None:
        """There are that many contexts and context attributes now. O(1) amortised."""

    def worn(self) -> bool:
        """Whether a ``build`` over all live clauses would pay by now. O(1)."""

    def crowded(self) -> bool:
        """Whether ``settle`` would pay by now. O(1)."""

    def settle(self, world: World) -> None:
        """Make room for entries that found none where they belong."""

    def remove(self, ids: Ids, world: World) -> None:
        """Forget clauses. O(1) each."""

    def deescalate(self, world: World) -> None:
        """Make every entry as exact as the index can."""

    def check(self, ids: Ids, world: World) -> None:
        """Raise InvariantError unless exactly the clauses ``ids`` are indexed and every invariant holds. O(N)."""

    def stats(self) -> dict[str, int]:
        """Counters since the index was built."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The bundle by name, for saving."""

    def adopt(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take over a bundle that ``arrays`` gave out."""
