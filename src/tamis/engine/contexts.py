"""The context store: names to rows, and the arrays behind :class:`tamis.kernels.bundles.Contexts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.index.growth import with_room, zeros
from tamis.kernels.bundles import ABSENT, Contexts
from tamis.model.values import CATEGORIES, Kind

from .strings import StringTable

if TYPE_CHECKING:
    from .values import ValueStore


class ContextStore:
    """Contexts by code; rows and columns appear when somebody names them. All operations are O(1) amortised."""

    def __init__(self) -> None:
        self.names = StringTable()
        self.bundle = _empty(8, 8)

    def __len__(self) -> int:
        return len(self.names)

    def fit(self, columns: int, wide: bool = False) -> None:
        """Make room for all named contexts, for a number of attributes, and for residuals if they are needed."""
        old, rows = self.bundle, len(self.names)
        if columns > old.value.shape[1]:
            new = _empty(len(old.value), max((columns + 7) // 8 * 8, 2 * old.value.shape[1]))
            had = old.value.shape[1]
            new.value[:, :had], new.safe[:, :had] = old.value, old.safe
            new.watch[:, : old.watch.shape[1]] = old.watch
            residual = old.residual
            if len(residual):
                residual = zeros(new.value.shape, np.int16)
                residual[:, :had] = old.residual
            old = new.replace(head=old.head, residual=residual)
        if rows > len(old.value):
            safe = with_room(old.safe, rows)
            safe[len(old.safe) :] = (-np.inf, np.inf)
            old = Contexts(
                value=with_room(old.value, rows, ABSENT),
                residual=with_room(old.residual, rows) if len(old.residual) else old.residual,
                watch=with_room(old.watch, rows),
                safe=safe,
                head=with_room(old.head, rows, -1),
            )
        if wide and not len(old.residual):
            old = old.replace(residual=zeros(old.value.shape, np.int16))
        self.bundle = old

    def forget_lists(self, kinds: Mapping[int, Kind | None], values: ValueStore) -> None:
        """Forget the lists that contexts held once; ``kinds`` are those of the columns. O(cells + lists)."""
        value = self.bundle.value
        held = {
            column: kind is CATEGORIES  # lists have negative codes there
            for column, kind in kinds.items()
            if column < value.shape[1] and kind is not None and kind.name in ("list", "categories")
        }
        values.compact(value, np.array(list(held), np.int64), np.array(list(held.values()), np.uint8))

    def arrays(self) -> dict[str, NDArray[Any]]:
        n = len(self.names)
        named = {f"name_{name}": array for name, array in self.names.arrays().items()}
        return {**named, **{name: array[:n] for name, array in self.bundle.asdict().items()}}

    @classmethod
    def adopt(cls, arrays: Mapping[str, NDArray[Any]]) -> ContextStore:
        store = cls()
        store.names = StringTable.adopt({name: arrays[f"name_{name}"] for name in ("heap", "start", "slots")})
        store.bundle = Contexts(**{name: arrays[name] for name in Contexts.FIELDS})
        if len(store.names) == 0:
            store.bundle = _empty(8, store.bundle.value.shape[1])
        return store


def _empty(rows: int, columns: int) -> Contexts:
    safe = np.empty((rows, columns, 2), np.float32)
    safe[:] = (-np.inf, np.inf)
    return Contexts(
        value=np.full((rows, columns), ABSENT),
        residual=np.zeros((0, 0), np.int16),
        watch=zeros((rows, (columns + 7) // 8, 2), np.uint8),
        safe=safe,
        head=np.full(rows, -1, np.int32),
    )
