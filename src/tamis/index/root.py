"""The root from the outside: which clauses could live there, when that pays, and their arrays.

See :mod:`tamis.kernels.root` for what happens there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import blocks as kernel
from tamis.kernels.bundles import (
    ATTRIBUTE,
    CANDIDATES,
    CONST,
    CONSTANTS,
    CONTEXT,
    CTX,
    CTX_PLUS,
    ESCALATIONS,
    FIRST_PREDICATE,
    GATE_LENGTH,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    LOW,
    LOW_CONST,
    LOW_CTX,
    N_ENTRIES,
    PREDICATES,
    PROBES,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
    UPDATES,
    World,
)
from tamis.kernels.policy import FOLLOWING, HEARING, MEETING, MOVE
from tamis.kernels.simd import LANES

from .growth import with_room, zeros
from .protocol import Ids
from .slots import SAMPLE, choose_slots

FAMILIES = 4  # templates at the root: each costs a scan
LEAST, SPARSE = 32, 32  # clauses of a template, and contexts per clause, that make a scan worth it
# Costs in postfilter tests, as in :mod:`tamis.kernels.policy`: a strip of 32 contexts; a context that passes the
# sketch, and what it costs more if the clause has to be asked; a deescalation; taking an entry to the root, and back.
STRIP, PASSING, ASKING, DEESCALATION, LEAVING, RETURNING = 0.013, 0.3, 1.0, 200.0, 4.0, 40.0
CAUTION = 1.25  # by how much the other side has to be cheaper
FRESH = 0.4  # cost of a message in a fresh index in which nothing moves, as a share of that at the root: a guess
OFTEN, SELDOM, MUCH = 1, 64, 1e5  # messages until the next look at the account, after much work and after little
ROUND = 1 << 18  # updates without a message until the next look


@dataclass(frozen=True)
class Prospect:
    """The root as it could be: templates, sketched context attributes, what a message would cost there."""

    templates: NDArray[np.int32]
    attributes: NDArray[np.int32]
    scan: float
    passing: float

    @property
    def cost(self) -> float:
        return self.scan + self.passing

    def members(self, ids: Ids, world: World) -> NDArray[np.bool_]:
        """Which of the clauses belong to its templates."""
        meta = world.clauses.meta[ids]
        found: NDArray[np.bool_] = np.isin(meta[:, TEMPLATE], self.templates) & (meta[:, CONTEXT] >= 0)
        return found


NOTHING = Prospect(np.zeros(0, np.int32), np.zeros(0, np.int32), np.inf, 0.0)


class Account:
    """Whether the root is where entries should be, by what the other place would have saved so far.

    Entries change places when that exceeds the price of the change: so the account never loses more than about twice
    what the wiser choice would have cost, whatever comes (the rule of renting or buying skis).
    """

    def __init__(self, count: NDArray[np.int64], rooted: bool = False) -> None:
        self.rooted = rooted
        self._saved = 0.0
        self._seen, self._next = count.copy(), self._from_now(count, 0)
        self._rate, self._cost = 1.0, 0.0  # updates per message, and cost of a message, when entries left their places

    def restart(self, count: NDArray[np.int64]) -> None:
        """The index was built anew: what was before does not count."""
        self._saved = 0.0
        self._seen, self._next = count.copy(), self._from_now(count, OFTEN)

    @staticmethod
    def _from_now(count: NDArray[np.int64], messages: int) -> tuple[int, int]:
        """When to look again: after so many messages, or many updates without one."""
        return int(count[PROBES]) + messages, int(count[UPDATES]) + ROUND

    def due(self, count: NDArray[np.int64], found: Prospect) -> bool:
        """Whether entries should change places now."""
        if found is NOTHING or (count[PROBES] < self._next[0] and count[UPDATES] < self._next[1]):
            return False
        past = (count - self._seen).tolist()
        messages, updates = past[PROBES], past[UPDATES]
        if self.rooted:
            spent = messages * found.scan + past[kernel.ROOT_MET] * PASSING + past[CANDIDATES]
            fresh = FRESH * found.cost
            other = messages * fresh + updates * max(0.0, self._cost - fresh) / self._rate
            price = RETURNING
        else:
            spent = work(past, found, rooted=False)
            other = messages * found.cost
            price = LEAVING
        self._saved = max(0.0, self._saved + spent - CAUTION * other)
        self._seen, self._next = count.copy(), self._from_now(count, OFTEN if spent > MUCH else SELDOM)
        if self._saved <= price * int(count[N_ENTRIES] + count[kernel.N_ROOT]):
            return False
        if not self.rooted:
            self._rate, self._cost = max(1.0, updates / max(1, messages)), spent / max(1, messages)
        self.rooted = not self.rooted
        return True


def work(past: Sequence[int], found: Prospect, rooted: bool) -> float:
    """What an index has done, in postfilter tests, by how far its counters went."""
    done = past[kernel.CHUNKS_MET] * MEETING + past[CANDIDATES] + past[kernel.MOVES] * MOVE
    done += past[ESCALATIONS] * (HEARING + FOLLOWING) + past[kernel.DEESCALATIONS] * DEESCALATION
    done += past[kernel.ROOT_MET] * PASSING
    return done + (past[PROBES] * found.scan if rooted else 0.0)


def no_sketch(attributes: int = 1) -> dict[str, NDArray[Any]]:
    """The fields of a bundle without a sketch."""
    return {
        "strips": np.full(max(1, attributes), -1, np.int32),
        "strip": np.ones((1, 2)),
        "sketch": np.zeros(LANES, np.uint8),
    }


def no_root() -> dict[str, NDArray[Any]]:
    """The fields of a bundle with nothing at the root."""
    return {
        **no_sketch(),
        "root": np.zeros((0, 2), np.int32),
        "hull": np.zeros((0, 4)),
        "tenant": np.zeros((0, 0), np.int32),
    }


def prospect(ids: Ids, world: World, attributes: int, learnt: Mapping[int, float]) -> Prospect:
    """The templates of clauses ``ids`` whose bounds move with their contexts, and what the root would cost them.

    ``learnt`` is what messages have said of the share of clauses that an attribute lets through.
    """
    meta = world.clauses.meta[ids]
    ids, meta = ids[meta[:, CONTEXT] >= 0], meta[meta[:, CONTEXT] >= 0]
    if not len(ids):
        return NOTHING
    contexts = int(meta[:, CONTEXT].max()) + 1
    counts = np.bincount(meta[:, TEMPLATE])
    large = np.argsort(-counts, kind="stable")[:FAMILIES]
    templates: list[int] = []
    sketched: dict[int, None] = {}
    scan = passing = 0.0
    for r in large[counts[large] >= max(LEAST, contexts // SPARSE)].tolist():
        family = ids[meta[:, TEMPLATE] == r]
        sample = family[:: max(1, len(family) // SAMPLE)]
        strips, share = _strips(sample, r, world, attributes, learnt)
        if strips:
            templates.append(r)
            sketched.update(dict.fromkeys(strips))
            scan += contexts / LANES * len(strips) * STRIP
            passing += len(family) * share * (PASSING if _alike(sample, r, world) else PASSING + ASKING)
    if not templates:
        return NOTHING
    return Prospect(np.array(templates, np.int32), np.array(list(sketched), np.int32), scan, passing)


def _predicates(r: int, world: World) -> Any:
    """The rows of a template's predicates."""
    first = int(world.templates.row[r, FIRST_PREDICATE])
    return world.templates.predicate[first : first + int(world.templates.row[r, PREDICATES])]


def _alike(sample: Ids, r: int, world: World) -> bool:
    """Whether clauses of a template differ in nothing but their contexts."""
    if world.templates.row[r, PROGRAM_LENGTH] or world.templates.row[r, GATE_LENGTH]:
        return False
    own = world.clauses.meta[sample, CONSTANTS]
    for row in _predicates(r, world).tolist():
        for kind, constant in ((LOW, LOW_CONST), (HIGH, HIGH_CONST)):
            if row[kind] in (CONST, CTX_PLUS) and row[constant] >= 0:
                values = world.clauses.constant[own + row[constant]]
                if values.min() != values.max():
                    return False
    return True


def _strips(family: Ids, r: int, world: World, attributes: int, learnt: Mapping[int, float]) -> tuple[list[int], float]:
    """The context attributes worth a strip, most selective first, and the share of contexts that pass them all."""
    slots, _, guessed = choose_slots(family, world, attributes)
    passing = {slot: learnt.get(slot, guess) for slot, guess in zip(slots.tolist(), guessed.tolist(), strict=True)}
    rows = _predicates(r, world)
    strips: list[int] = []
    share = 1.0
    for slot, passes in sorted(passing.items(), key=lambda item: item[1]):
        moving: set[int] = set()
        for row in rows[(rows[:, ATTRIBUTE] == slot) & (rows[:, TRAITS] == 0)].tolist():
            moving |= {row[ctx] for kind, ctx in ((LOW, LOW_CTX), (HIGH, HIGH_CTX)) if row[kind] in (CTX, CTX_PLUS)}
        moving -= set(strips)
        # Worth it if it spares more contexts than it costs to look at.
        if moving and share * (1.0 - passes) * PASSING > len(moving) * STRIP / LANES:
            strips += sorted(moving)
            share *= passes
    return strips, share


def root_arrays(found: Prospect, members: Ids, world: World) -> dict[str, NDArray[Any]]:
    """The fields of a bundle with these templates at the root, and nobody there yet."""
    contexts = len(world.contexts.value)
    strips = np.full(world.contexts.value.shape[1], -1, np.int32)
    strips[found.attributes] = np.arange(len(found.attributes))
    strip = np.ones((max(1, len(found.attributes)), 2))
    sample = world.clauses.meta[members[:: max(1, len(members) // SAMPLE)], CONTEXT]
    for s, attribute in enumerate(found.attributes.tolist()):
        values = world.contexts.value[sample, attribute]
        values = values[np.isfinite(values)]
        if len(values):
            low, high = np.quantile(values, (0.001, 0.999), method="nearest").tolist()
            width = high - low
            strip[s] = low, 250.0 / width if 0.0 < width < np.inf else 1.0
    predicates = world.templates.row[found.templates, PREDICATES]
    root = np.stack([found.templates, np.cumsum(predicates) - predicates], axis=1).astype(np.int32)
    return {
        "strips": strips,
        "strip": strip,
        "sketch": zeros(_sketch_size(contexts, len(strip)), np.uint8),
        "root": root,
        "hull": np.tile((np.inf, -np.inf, np.inf, -np.inf), (int(predicates.sum()), 1)),
        "tenant": np.full((len(root), contexts), -1, np.int32),
    }


def _sketch_size(contexts: int, strips: int) -> int:
    return (contexts // LANES + 1) * strips * LANES


def fitted(bundle: Any, contexts: int, attributes: int) -> dict[str, NDArray[Any]]:
    """The fields that have to grow for that many contexts and attributes."""
    larger: dict[str, NDArray[Any]] = {}
    if len(bundle.strips) < attributes:
        larger["strips"] = with_room(bundle.strips, attributes, -1)
    if "root" in bundle.FIELDS and len(bundle.root) and bundle.tenant.shape[1] < contexts:
        larger["tenant"] = np.ascontiguousarray(with_room(bundle.tenant.T, contexts, -1).T)
        larger["sketch"] = with_room(bundle.sketch, _sketch_size(larger["tenant"].shape[1], len(bundle.strip)))
    return larger
