"""Which attributes an index looks at, in which order, and where the cuts between their cells lie.

Decided on samples when an index is built: attributes that constrain many clauses tightly come first. At most
``MAX_SLOTS`` attributes are indexed; predicates on others are left to the postfilter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tamis.kernels import layout
from tamis.kernels.bundles import World

MAX_SLOTS = 64
CUTS = 255
SAMPLE = 4096


def choose_slots(
    ids: NDArray[np.int32], world: World, attributes: int
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """The attributes worth a slot, most selective first, their cuts [slot, 255], and the share each lets through."""
    rng = np.random.default_rng(len(ids))
    sample = ids if len(ids) <= SAMPLE else np.sort(rng.choice(ids, SAMPLE, replace=False))
    used = layout.attributes_used(ids, world, attributes)
    candidates = np.nonzero(used)[0].astype(np.int32)
    if len(candidates) == 0:
        return np.zeros(1, np.int32), np.full((1, CUTS), np.inf), np.ones(1)
    if len(candidates) > MAX_SLOTS:
        candidates = candidates[np.argsort(-used[candidates], kind="stable")[:MAX_SLOTS]]
    bounds = layout.sample_bounds(sample, candidates, world)
    cuts = np.empty((len(candidates), CUTS))
    passing = np.empty(len(candidates))
    for s in range(len(candidates)):
        cuts[s] = _cuts(bounds[:, s])
        low = np.searchsorted(cuts[s], bounds[:, s, 0])
        high = np.searchsorted(cuts[s], bounds[:, s, 1], side="right")
        passing[s] = np.mean(high - low + 1) / CUTS
    order = np.argsort(passing, kind="stable")
    return candidates[order], np.ascontiguousarray(cuts[order]), passing[order]


def _cuts(bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quantiles of the finite bounds: 252 cuts, padded with infinity for the eight-step search."""
    values = np.unique(bounds[np.isfinite(bounds)])
    cuts = np.full(CUTS, np.inf)
    if len(values) == 0:
        return cuts
    if len(values) <= 126:
        # Few values: a cut at each and just behind it, so that each has a cell of its own.
        both = np.sort(np.concatenate([values, np.nextafter(values, np.inf)]))
        cuts[: len(both)] = both
    else:
        cuts[:252] = np.quantile(values, np.linspace(0, 1, 252))
    return cuts
