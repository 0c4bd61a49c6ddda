"""What the choice of slots needs to know of the clauses: which attributes they constrain, and how tightly."""

from __future__ import annotations

import math

import numpy as np

from .bundles import ATTRIBUTE, FIRST_PREDICATE, PREDICATES, TEMPLATE
from .jit import kernel
from .postfilter import interval


@kernel
def attributes_used(ids, world, attributes):
    """How many interval predicates of clauses ``ids`` each message attribute has."""
    used = np.zeros(attributes, np.int64)
    for i in range(ids.shape[0]):
        row = world.templates.row[world.clauses.meta[ids[i], TEMPLATE]]
        for p in range(row[FIRST_PREDICATE], row[FIRST_PREDICATE] + row[PREDICATES]):
            used[world.templates.predicate[p, ATTRIBUTE]] += 1
    return used


@kernel
def sample_bounds(ids, attributes, world):
    """The intervals of clauses on attributes, [clause, attribute, 2]; infinite where there is no bound."""
    out = np.empty((ids.shape[0], attributes.shape[0], 2))
    for i in range(ids.shape[0]):
        for s in range(attributes.shape[0]):
            _, low, high = interval(np.int64(ids[i]), np.int64(attributes[s]), world)
            if math.isnan(low):
                low, high = -np.inf, np.inf
            out[i, s, 0], out[i, s, 1] = low, high
    return out
