"""What an index is chosen from: profiles, messages and updates as they are, on samples.

Guarantees that a look costs the same whatever the number of profiles, apart from one pass over the list of contexts,
and that the same events give the same picture: nothing here reads a clock. Refuses to know what an index is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import layout
from tamis.kernels.bundles import (
    ATTRIBUTE,
    COMPLEX,
    COMPUTED,
    CONTEXT,
    CTX,
    DEPENDS_HIGH,
    DEPENDS_LOW,
    FIRST_PREDICATE,
    GATE_LENGTH,
    HIGH,
    HIGH_CTX,
    HIGH_STRICT,
    LOW,
    LOW_CTX,
    LOW_STRICT,
    PREDICATES,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
    World,
)

from .protocol import Ids

CLAUSES, MESSAGES = 384, 128  # of a sample; their product bounds how small a share can be seen
CONSIDERED = 8  # attributes, the most selective, of which combinations are weighed
PER_LOG, EVERY = 32, 8  # messages kept of one log; of single messages one in so many


class Load:
    """Messages and updates as they come: how many, which, and a sample of the messages."""

    def __init__(self) -> None:
        self.messages = self.updates = 0
        self.moved: list[float] = []  # updates per context attribute
        self._rows = np.full((MESSAGES, 1), np.nan)
        self._kept = 0

    def saw(self, values: NDArray[np.float64], attributes: NDArray[np.int32]) -> None:
        """A log: encoded messages [message, attribute], and the context attribute of every update (-1: refused)."""
        n, u = values.shape[0], attributes.shape[0]
        self.messages += n
        if n > 1 or (n == 1 and self.messages % EVERY == 1):
            self._keep(values[:: max(1, n // PER_LOG)][:PER_LOG])
        if u:
            self.updates += u
            step = max(1, u // 1024)
            part = attributes[::step]
            counts = np.bincount(part[part >= 0])
            self._fit(len(counts))
            for a in np.flatnonzero(counts).tolist():
                self.moved[a] += float(counts[a]) * u / len(part)

    def saw_update(self, attribute: int) -> None:
        """One update outside a log."""
        self.updates += 1
        if attribute >= len(self.moved):
            self._fit(attribute + 1)
        self.moved[attribute] += 1.0

    def sample(self) -> NDArray[np.float64]:
        """The messages kept, [message, attribute]; NaN where a message has no value."""
        return self._rows[: min(self._kept, MESSAGES)]

    def _fit(self, attributes: int) -> None:
        self.moved += [0.0] * (attributes - len(self.moved))

    def _keep(self, rows: NDArray[np.float64]) -> None:
        if rows.shape[1] != self._rows.shape[1]:
            wider = np.full((MESSAGES, rows.shape[1]), np.nan)
            both = min(rows.shape[1], self._rows.shape[1])
            wider[:, :both] = self._rows[:, :both]
            self._rows = wider
        places = np.arange(self._kept, self._kept + len(rows)) % MESSAGES
        self._rows[places] = rows
        self._kept += len(rows)


@dataclass(frozen=True)
class Picture:
    """Clauses and messages beside each other. Arrays have a row per attribute considered, the most selective first."""

    clauses: int
    columns: NDArray[np.int32]  # [attribute]: the message attributes
    passing: NDArray[np.float64]  # [attribute]: the share of clauses that let a message pass
    equal: NDArray[np.float64]  # [attribute]: of the clauses with a bound there, those that ask for one value
    bound: NDArray[np.float64]  # [attribute]: the share of clauses with a bound there
    inside: NDArray[np.bool_]  # [attribute, clause, message]: whether it passes
    moves: NDArray[np.float64]  # [attribute, context attribute]: the share of clauses whose bounds it moves
    depends: NDArray[np.float64]  # [context attribute]: the share of clauses that depend on it
    fan: float  # clauses per context
    plain: float  # the share of clauses that are closed intervals and nothing else
    rewritten: float  # the share of clauses with an interval that every update computes anew
    seen: int  # messages looked at; 0 when they had to be guessed from the profiles
    _joint: dict[frozenset[int], float] = field(default_factory=dict, repr=False)

    def joint(self, rows: Iterable[int]) -> float:
        """The share of clauses that let a message pass on all these attributes."""
        key = frozenset(rows)
        if key not in self._joint:
            found = np.logical_and.reduce(self.inside[list(key)]) if key else np.ones(self.inside.shape[1:], np.bool_)
            self._joint[key] = np.count_nonzero(found) / found.size if found.size else 0.0
        return self._joint[key]

    def rows(self, columns: Iterable[int]) -> tuple[int, ...]:
        """The rows of attributes; those that are not considered have none."""
        known = {column: row for row, column in enumerate(self.columns.tolist())}
        return tuple(known[column] for column in columns if column in known)


def look(
    ids: Ids,
    world: World,
    attributes: int,
    load: Load,
    shards: int = 1,
    wanted: Iterable[int] = (),
    only: Iterable[int] | None = None,
) -> Picture:
    """The clauses ``ids``, of one of ``shards``, beside the messages of ``load``.

    Attributes in ``wanted`` are considered in any case; if ``only`` is given, no others than those are.
    """
    rng = np.random.default_rng(len(ids))
    sample = ids[rng.integers(0, len(ids), CLAUSES)] if len(ids) > CLAUSES else ids
    used = layout.attributes_used(sample, world, attributes)
    columns = np.flatnonzero(used).astype(np.int32)
    if only is not None and np.isin(columns, list(only)).any():
        columns = columns[np.isin(columns, list(only))]
    bounds = layout.sample_bounds(sample, columns, world)
    has = np.isfinite(bounds).any(axis=2)
    messages = load.sample()
    seen = len(messages)
    inside = np.empty((len(columns), len(sample), MESSAGES if seen == 0 else seen), np.bool_)
    for s, column in enumerate(columns.tolist()):
        low, high = bounds[:, s, 0], bounds[:, s, 1]
        if seen == 0:
            x = _guessed(rng, low[has[:, s]], high[has[:, s]])
        else:
            x = messages[:, column] if column < messages.shape[1] else np.full(seen, np.nan)
        inside[s] = ((low[:, None] <= x) & (x <= high[:, None])) | ~has[:, s, None]
    passing = inside.mean(axis=(1, 2)) if inside.size else np.ones(len(columns))
    order = np.argsort(passing, kind="stable")
    keep = np.isin(columns[order], list(wanted)) | (np.arange(len(order)) < CONSIDERED)
    order = order[keep]
    columns = columns[order]
    equal = (bounds[:, :, 0] == bounds[:, :, 1])[:, order].sum(axis=0) / np.maximum(1, has[:, order].sum(axis=0))
    moves, depends, plain, rewritten = _templates(sample, columns, world)
    return Picture(
        clauses=len(ids),
        columns=columns,
        passing=passing[order],
        equal=equal,
        bound=has[:, order].mean(axis=0) if len(sample) else np.zeros(len(columns)),
        inside=inside[order],
        moves=moves,
        depends=depends,
        fan=_fan(ids, sample, shards, world),
        plain=plain,
        rewritten=rewritten,
        seen=seen,
    )


def _guessed(rng: np.random.Generator, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Messages that nobody has seen yet come where the profiles are: somewhere between the ends of some clause."""
    if not len(low):
        return np.full(MESSAGES, np.nan)
    pick = rng.integers(0, len(low), MESSAGES)
    low, high = low[pick], high[pick]
    low, high = np.where(np.isfinite(low), low, high), np.where(np.isfinite(high), high, low)
    part = rng.random(MESSAGES)
    with np.errstate(over="ignore"):
        return np.asarray(low * (1 - part) + high * part)


def _fan(ids: Ids, sample: Ids, shards: int, world: World) -> float:
    """Clauses per context that has any; every shard has as many contexts."""
    contexts = np.count_nonzero(world.contexts.head >= 0) / shards
    with_context = float(np.mean(world.clauses.meta[sample, CONTEXT] >= 0)) if len(sample) else 0.0
    return max(1.0, with_context * len(ids) / contexts) if contexts else 1.0


def _templates(sample: Ids, columns: NDArray[np.int32], world: World) -> tuple[Any, Any, float, float]:
    """What moves which attribute, who depends on what, and the shares ``plain`` and ``rewritten``."""
    context_attributes = world.contexts.value.shape[1]
    moves = np.zeros((len(columns), context_attributes))
    depends = np.zeros(context_attributes)
    plain = rewritten = 0.0
    row_of = {column: row for row, column in enumerate(columns.tolist())}
    bits = np.minimum(np.arange(context_attributes), 63)
    templates, counts = np.unique(world.clauses.meta[sample, TEMPLATE], return_counts=True)
    for r, count in zip(templates.tolist(), (counts / max(1, len(sample))).tolist(), strict=True):
        row = world.templates.row[r].tolist()
        mask = (row[DEPENDS_HIGH] & 0xFFFF_FFFF) << 32 | (row[DEPENDS_LOW] & 0xFFFF_FFFF)
        depends += count * (np.uint64(mask) >> bits.astype(np.uint64) & np.uint64(1))
        first = row[FIRST_PREDICATE]
        closed = row[PROGRAM_LENGTH] == 0 and row[GATE_LENGTH] == 0
        anew = False
        for predicate in world.templates.predicate[first : first + row[PREDICATES]].tolist():
            closed = closed and not (predicate[TRAITS] or predicate[LOW_STRICT] or predicate[HIGH_STRICT])
            anew = anew or bool(predicate[TRAITS] & COMPLEX)
            at = row_of.get(predicate[ATTRIBUTE])
            if at is None:
                continue
            if predicate[TRAITS] or COMPUTED in (predicate[LOW], predicate[HIGH]):
                moves[at] += count * (np.uint64(mask) >> bits.astype(np.uint64) & np.uint64(1))
                continue
            ends = {predicate[c] for kind, c in ((LOW, LOW_CTX), (HIGH, HIGH_CTX)) if predicate[kind] >= CTX}
            for a in ends:
                moves[at, a] += count
        plain += count * closed
        rewritten += count * anew
    return moves, depends, plain, rewritten
