"""NOINDEX from the outside: a scan that grows (see :mod:`tamis.kernels.scan`)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.errors import InvariantError
from tamis.kernels import blocks as blocks_kernel
from tamis.kernels import scan as kernel
from tamis.kernels.bundles import (
    CANDIDATES,
    COMMON_COUNTS,
    FALSE_POSITIVES,
    N_ENTRIES,
    PROBES,
    UPDATES,
    Scan,
    World,
)

from .protocol import BROKEN, Ids
from .root import fitted, no_sketch
from .slots import MAX_SLOTS, choose_slots


def empty_scan(room: int, slots: NDArray[np.int32], attributes: int) -> Scan:
    """A bundle with room for a number of entries."""
    attribute_slot = np.full(max(1, attributes), -1, np.int32)
    attribute_slot[slots] = np.arange(len(slots))
    return Scan(
        low=np.empty((len(slots), room), np.float32),
        high=np.empty((len(slots), room), np.float32),
        clause=np.zeros(room, np.int32),
        profile=np.zeros(room, np.int32),
        plain=np.zeros(room, np.uint8),
        slot_attribute=slots.astype(np.int32),
        attribute_slot=attribute_slot,
        count=np.zeros(COMMON_COUNTS, np.int64),
        **no_sketch(attributes),
    )


class NoIndex:
    """The brute-force approach. Runtime complexity: probe O(N), update O(1), insert O(1), remove O(1)."""

    name: ClassVar[str] = "noindex"

    def __init__(self) -> None:
        self.bundle = empty_scan(1, np.zeros(1, np.int32), 1)

    def build(self, ids: Ids, world: World, attributes: int) -> None:
        slots, _, _ = choose_slots(ids, world, attributes)
        counts = self.bundle.count
        self.bundle = empty_scan(len(ids) + 16, slots, attributes).replace(strips=self.bundle.strips)
        self.bundle.count[PROBES:] = counts[PROBES:]
        kernel.insert(self.bundle, ids, 0, world)

    def insert(self, ids: Ids, world: World, attributes: int) -> bool:
        missing = attributes - len(self.bundle.attribute_slot)
        if missing > 0:
            longer = np.concatenate([self.bundle.attribute_slot, np.full(missing, -1, np.int32)])
            self.bundle = self.bundle.replace(attribute_slot=longer)
        if len(self.bundle.slot_attribute) < MAX_SLOTS and blocks_kernel.needs_slots(self.bundle, ids, world):
            return False
        done = 0
        while True:
            done = kernel.insert(self.bundle, ids, done, world)
            if done == len(ids):
                return True
            self._grow(len(ids))

    def fit(self, contexts: int, attributes: int) -> None:
        larger = fitted(self.bundle, contexts, attributes)
        if larger:
            self.bundle = self.bundle.replace(**larger)

    def worn(self) -> bool:
        """Never: a scan has no order to lose."""
        return False

    def crowded(self) -> bool:
        """Never, for the same reason."""
        return False

    def settle(self, world: World) -> None:
        """Nothing to do: one place is as good as another."""

    def remove(self, ids: Ids, world: World) -> None:
        for k in ids:
            kernel.remove(self.bundle, k, world)

    def deescalate(self, world: World) -> None:
        """Nothing to do: a scan is always exact."""

    def check(self, ids: Ids, world: World) -> None:
        code, clause, slot = kernel.check(self.bundle, ids, world)
        if code:
            raise InvariantError(f"noindex: {BROKEN[code]} (clause {clause}, slot {slot})")

    def stats(self) -> dict[str, int]:
        count = self.bundle.count
        return {
            "entries": int(count[N_ENTRIES]),
            "messages": int(count[PROBES]),
            "updates": int(count[UPDATES]),
            "postfiltered": int(count[CANDIDATES]),
            "false_positives": int(count[FALSE_POSITIVES]),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        return dict(self.bundle.asdict())

    def adopt(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.bundle = Scan(**{name: arrays[name] for name in Scan.FIELDS})

    def _grow(self, more: int) -> None:
        old = self.bundle
        n = int(old.count[N_ENTRIES])
        new = empty_scan(2 * n + more, old.slot_attribute, len(old.attribute_slot))
        new.low[:, :n], new.high[:, :n] = old.low[:, :n], old.high[:, :n]
        for name in ("clause", "profile", "plain"):
            getattr(new, name)[:n] = getattr(old, name)[:n]
        self.bundle = new.replace(attribute_slot=old.attribute_slot, count=old.count, strips=old.strips)
