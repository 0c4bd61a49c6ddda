"""The profile store: ids to rows, clauses, their constants and effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.index.growth import with_room
from tamis.kernels import bundles as b

from .compile import Shape
from .strings import StringTable


class ProfileStore:
    """Profiles by code. Adding and removing is O(clauses) per profile."""

    def __init__(self) -> None:
        self.ids = StringTable()
        self.row = np.full((8, b.PROFILE_COLUMNS), -1, np.int32)
        self.order = np.zeros(8, np.int64)
        self.seen = np.full(8, -1, np.int64)
        self.effect = np.zeros((8, 4), np.int32)
        self.meta = np.zeros((8, b.META_COLUMNS), np.int32)
        self.constant = np.zeros(8)
        self._bundle: b.Profiles | None = None
        self._clause_bundle: b.Clauses | None = None
        self.count = 0
        self.clauses = 0
        self._next_order = 0
        # Sizes in use of: clause rows, constants, effect rows.
        self._tops = [0, 0, 0]
        self._free_clauses: list[int] = []
        self._free_constants: dict[int, list[int]] = {}

    def bundle(self) -> b.Profiles:
        self._bundle = b.Profiles.current(self._bundle, self.row, self.order, self.seen, self.effect)
        return self._bundle

    def clause_bundle(self) -> b.Clauses:
        self._clause_bundle = b.Clauses.current(self._clause_bundle, self.meta, self.constant)
        return self._clause_bundle

    def add(
        self,
        codes: NDArray[np.int32],
        contexts: NDArray[np.int32],
        order: NDArray[np.int64],
        numbers: NDArray[np.int32] | int,
        templates: NDArray[np.int32],
        constants: NDArray[np.float64],
        shape: Shape | None = None,
        shared_effects: int = 0,
    ) -> NDArray[np.int32]:
        """Profiles ``codes`` with templates [profile, clause] and constants [profile, width] of shapes ``numbers``.

        ``shape`` is the one shape of all of them if it has effects. Returns the clauses, neither indexed nor linked.
        """
        n, many = templates.shape
        effects = () if shape is None else shape.effect_codes
        self.row = with_room(self.row, len(self.ids), -1)
        self.order = with_room(self.order, len(self.ids))
        self.seen = with_room(self.seen, len(self.ids), -1)
        own = self._place_constants(constants, n, constants.shape[1])
        clauses = self._take_clauses(n * many).reshape(n, many)
        flags = b.LIVE | (b.HAS_SIBLING if many > 1 else 0) | (b.HAS_EFFECT if effects else 0)
        for j in range(many):
            rows = clauses[:, j]
            self.meta[rows, b.TEMPLATE] = templates[:, j]
            self.meta[rows, b.CONTEXT] = contexts
            self.meta[rows, b.PROFILE] = codes
            self.meta[rows, b.CONSTANTS] = own
            self.meta[rows, b.PLACE] = -1
            self.meta[rows, b.NEXT] = -1
            self.meta[rows, b.SIBLING] = clauses[:, j + 1] if j + 1 < many else -1
            self.meta[rows, b.FLAGS] = flags
        # A profile that can never match has no clause; -2 tells it from a code without a profile.
        self.row[codes, b.FIRST_CLAUSE] = clauses[:, 0] if many else -2
        self.row[codes, b.SHAPE] = numbers
        self.row[codes, b.EFFECTS] = len(effects)
        own_effects = shape is not None and shape.own_effects
        self.row[codes, b.EFFECT] = self._place_effects(effects, own) if own_effects else shared_effects
        self.order[codes] = order
        self.seen[codes] = -1
        self.count += n
        self.clauses += n * many
        return clauses.reshape(-1)

    def clauses_of(self, code: int) -> list[int]:
        """The clauses of a profile."""
        found = []
        k = int(self.row[code, b.FIRST_CLAUSE])
        while k >= 0:
            found.append(k)
            k = int(self.meta[k, b.SIBLING])
        return found

    def remove(self, code: int, width: int) -> None:
        """Forget a profile whose clauses are neither indexed nor linked any more."""
        clauses = self.clauses_of(code)
        if clauses and width:
            self._free_constants.setdefault(width, []).append(int(self.meta[clauses[0], b.CONSTANTS]))
        for k in clauses:
            self.meta[k, b.FLAGS] = 0
        self._free_clauses += clauses
        self.row[code] = -1
        self.count -= 1
        self.clauses -= len(clauses)

    def has_effects(self) -> bool:
        """Whether a match may change a context. O(1) where nobody ever asked for it, else O(clauses)."""
        if self._tops[2] == 0:
            return False
        both = b.LIVE | b.HAS_EFFECT
        return bool(np.any((self.meta[: self._tops[0], b.FLAGS] & both) == both))

    def alive(self, code: int) -> bool:
        """Whether a code belongs to a profile now."""
        return 0 <= code < len(self.row) and int(self.row[code, b.FIRST_CLAUSE]) != -1

    def alive_among(self, codes: NDArray[np.int32]) -> list[int]:
        """Those of the codes that belong to a profile now."""
        if not self.count:
            return []
        if len(codes) < 4:  # four calls of NumPy take longer
            return [code for code in codes.tolist() if self.alive(code)]
        known = codes[codes < len(self.row)]
        found: list[int] = known[self.row[known, b.FIRST_CLAUSE] != -1].tolist()
        return found

    def live_clauses(self) -> NDArray[np.int32]:
        """All clauses of all profiles."""
        return np.nonzero(self.meta[: self._tops[0], b.FLAGS] & b.LIVE)[0].astype(np.int32)

    def next_order(self, n: int) -> NDArray[np.int64]:
        """The next n places in subscription order."""
        first = self._next_order
        self._next_order += n
        return np.arange(first, first + n)

    def place_effects(self, codes: Sequence[tuple[int, int, int]]) -> int:
        """Effects without constants of their own, shared by whoever names their first row."""
        return int(self._place_effects(codes, np.zeros(1, np.int64))[0]) if codes else 0

    def _take_clauses(self, n: int) -> NDArray[np.int32]:
        reused = [self._free_clauses.pop() for _ in range(min(n, len(self._free_clauses)))]
        first = self._tops[0]
        self._tops[0] += n - len(reused)
        self.meta = with_room(self.meta, self._tops[0])
        return np.concatenate([np.array(reused, np.int32), np.arange(first, self._tops[0], dtype=np.int32)])

    def _place_constants(self, constants: NDArray[np.float64], n: int, width: int) -> NDArray[np.int64]:
        if width == 0:
            return np.zeros(n, np.int64)
        free = self._free_constants.get(width, [])
        reused = [free.pop() for _ in range(min(n, len(free)))]
        first = self._tops[1]
        self._tops[1] += width * (n - len(reused))
        self.constant = with_room(self.constant, self._tops[1])
        own = np.concatenate([np.array(reused, np.int64), np.arange(first, self._tops[1], width)])
        if len(reused):
            self.constant[own[:, None] + np.arange(width)] = constants
        else:
            self.constant[first : self._tops[1]] = constants.reshape(-1)
        return own

    def _place_effects(self, codes: Sequence[tuple[int, int, int]], own: NDArray[np.int64]) -> NDArray[np.int64]:
        each = len(codes)
        first = self._tops[2]
        self._tops[2] += each * len(own)
        self.effect = with_room(self.effect, self._tops[2])
        rows = self.effect[first : self._tops[2]].reshape(len(own), each, 4)
        rows[:, :, :3] = np.array(codes, np.int32)
        rows[:, :, 3] = own[:, None]
        return np.arange(first, self._tops[2], each)

    def arrays(self) -> dict[str, NDArray[Any]]:
        n = len(self.ids)
        clauses, constants, effects = self._tops
        return {
            **{f"id_{name}": array for name, array in self.ids.arrays().items()},
            "row": self.row[:n],
            "order": self.order[:n],
            "effect": self.effect[:effects],
            "meta": self.meta[:clauses],
            "constant": self.constant[:constants],
            "next_order": np.array([self._next_order]),
        }

    @classmethod
    def adopt(cls, arrays: Mapping[str, NDArray[Any]]) -> ProfileStore:
        store = cls()
        store.ids = StringTable.adopt({name: arrays[f"id_{name}"] for name in ("heap", "start", "slots")})
        for name in ("row", "order", "effect", "meta", "constant"):
            setattr(store, name, arrays[name])
        store.seen = np.full(len(store.ids), -1, np.int64)
        store._next_order = int(arrays["next_order"][0])
        store._tops = [len(store.meta), len(store.constant), len(store.effect)]
        store.count = int(np.count_nonzero(store.row[:, b.FIRST_CLAUSE] != -1))
        live = (store.meta[:, b.FLAGS] & b.LIVE) != 0
        store.clauses = int(np.count_nonzero(live))
        store._free_clauses = np.nonzero(~live)[0].tolist()
        return store
