"""The exact test of one clause: the last layer, which decides.

Invariant: for every clause and every message row, :func:`holds` equals what the reference filter says of that clause.
Indexes may return too many candidates, never too few; this is where the surplus ends.
"""

from __future__ import annotations

import math

import numpy as np

from .bundles import (
    ATTRIBUTE,
    CONST,
    CONSTANTS,
    CONTEXT,
    CTX,
    CTX_PLUS,
    FIRST_PREDICATE,
    GATE,
    GATE_LENGTH,
    HIGH,
    HIGH_CONST,
    HIGH_CTX,
    HIGH_STRICT,
    LOW,
    LOW_CONST,
    LOW_CTX,
    LOW_STRICT,
    NONE,
    OUTER,
    PREDICATES,
    PROGRAM,
    PROGRAM_LENGTH,
    TEMPLATE,
    TRAITS,
)
from .jit import bare, inlined
from .program import run


@inlined
def constant(index, own, world):
    """A constant by index: the clause's own (>= 0) or the template's (< 0)."""
    if index >= 0:
        return world.clauses.constant[own + index]
    return world.templates.pool[-1 - index]


@inlined
def bound(kind, a, b, c, own, world):
    """The value of one end of an interval, as the context stands."""
    if kind == CONST:
        return constant(b, own, world)
    if kind == CTX:
        return world.contexts.value[c, a]
    if kind == CTX_PLUS:
        return world.contexts.value[c, a] + constant(b, own, world)
    return run(a, b, np.int64(0), c, own, world)[1]


@inlined
def _residual_of_bound(kind, a, c, world):
    if kind == CTX and world.contexts.residual.shape[0]:
        return np.int64(world.contexts.residual[c, a])
    return np.int64(0)


@bare
def predicate_holds(p, m, c, own, world):
    """Whether one interval predicate (a row of ``Templates.predicate``) holds, to 64-bit exactness."""
    pred = world.templates.predicate
    a = pred[p, ATTRIBUTE]
    x = world.messages.value[m, a]
    wide = world.messages.residual.shape[0] > 0
    kind = pred[p, LOW]
    if kind != NONE:
        low = bound(kind, pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
        if not (low < x):
            if not (low == x):
                return False
            xr = np.int64(world.messages.residual[m, a]) if wide else np.int64(0)
            if xr < _residual_of_bound(kind, pred[p, LOW_CTX], c, world) + pred[p, LOW_STRICT]:
                return False
    kind = pred[p, HIGH]
    if kind != NONE:
        high = bound(kind, pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
        if not (x < high):
            if not (x == high):
                return False
            xr = np.int64(world.messages.residual[m, a]) if wide else np.int64(0)
            if xr > _residual_of_bound(kind, pred[p, HIGH_CTX], c, world) - pred[p, HIGH_STRICT]:
                return False
    return True


@bare
def gate_open(k, world):
    """Whether the context-only predicates of clause ``k`` hold."""
    meta, row = world.clauses.meta, world.templates.row
    r = meta[k, TEMPLATE]
    if row[r, GATE_LENGTH] == 0:
        return True
    return run(
        row[r, GATE], row[r, GATE_LENGTH], np.int64(0), np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS]), world
    )[0]


@bare
def holds(k, m, world):
    """Whether clause ``k`` holds for message row ``m``: gates, intervals, then the program."""
    meta = world.clauses.meta
    row, pred = world.templates.row, world.templates.predicate
    r = meta[k, TEMPLATE]
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if pred[p, TRAITS] & OUTER:
            continue
        if not predicate_holds(p, m, c, own, world):
            return False
    if row[r, PROGRAM_LENGTH] > 0 and not run(row[r, PROGRAM], row[r, PROGRAM_LENGTH], m, c, own, world)[0]:
        return False
    return gate_open(k, world)


@bare
def interval(k, attribute, world):
    """The hull of clause ``k`` on one message attribute: (sides, low, high).

    ``sides`` is 0 when the attribute is not constrained, else 1 + 2 if there is a lower + 4 if there is an upper bound;
    a missing bound is infinite. A bound that has no value (its context attribute is absent) makes the clause
    unsatisfiable for now: low is then NaN.
    """
    meta = world.clauses.meta
    row, pred = world.templates.row, world.templates.predicate
    r = meta[k, TEMPLATE]
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    sides = 0
    low, high = -np.inf, np.inf
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if pred[p, ATTRIBUTE] != attribute:
            continue
        sides |= 1
        if pred[p, LOW] != NONE:
            v = bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
            if math.isnan(v):
                return sides, np.nan, high
            sides |= 2
            low = max(low, v)
        if pred[p, HIGH] != NONE:
            v = bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
            if math.isnan(v):
                return sides, np.nan, high
            sides |= 4
            high = min(high, v)
    return sides, low, high


@bare
def satisfiable(k, world):
    """Whether any message at all could match clause ``k`` as its context stands."""
    meta = world.clauses.meta
    row, pred = world.templates.row, world.templates.predicate
    r = meta[k, TEMPLATE]
    c, own = np.int64(meta[k, CONTEXT]), np.int64(meta[k, CONSTANTS])
    for p in range(row[r, FIRST_PREDICATE], row[r, FIRST_PREDICATE] + row[r, PREDICATES]):
        if pred[p, LOW] != NONE and math.isnan(
            bound(pred[p, LOW], pred[p, LOW_CTX], pred[p, LOW_CONST], c, own, world)
        ):
            return False
        if pred[p, HIGH] != NONE and math.isnan(
            bound(pred[p, HIGH], pred[p, HIGH_CTX], pred[p, HIGH_CONST], c, own, world)
        ):
            return False
    return gate_open(k, world)
