"""Half a million profiles of four equalities over 32 attributes (workload PQ, ICDE 2005), against a NumPy scan."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from measure import Result, clock, in_turns, main, progress, same
from tamis import Filter
from workloads import by_message

PROFILES = 500_000
ATTRIBUTES = 32
VALUES = 35
TARGET = 20
SAMPLE = 200
FIRST_ID = 7_000_000


class Points(NamedTuple):
    """Profiles ``a0 == v[0] and a1 == v[1] and a<third> == v[2] and a<fourth> == v[3]``; ``value``: (4, profiles)."""

    ids: NDArray[np.int64]
    third: NDArray[np.int64]
    fourth: NDArray[np.int64]
    value: NDArray[Any]


def points(rng: np.random.Generator, profiles: int) -> Points:
    """Two attributes in every profile, two chosen out of the other thirty."""
    pairs = np.array(list(combinations(range(2, ATTRIBUTES), 2)))
    chosen = pairs[np.sort(rng.integers(0, len(pairs), profiles))]
    value = rng.integers(1, VALUES + 1, (4, profiles))
    return Points(np.arange(FIRST_ID, FIRST_ID + profiles), chosen[:, 0].copy(), chosen[:, 1].copy(), value)


def zipf(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Messages of shape (count, 32): value k with a probability proportional to 1/k."""
    weights = 1 / np.arange(1, VALUES + 1)
    return rng.choice(np.arange(1, VALUES + 1), (count, ATTRIBUTES), p=weights / weights.sum())


def load(filter: Filter, points: Points) -> None:
    """One prepared profile per combination of attributes."""
    starts = np.flatnonzero(np.r_[True, (np.diff(points.third) != 0) | (np.diff(points.fourth) != 0)])
    for start, stop in zip(starts, np.r_[starts[1:], len(points.ids)], strict=True):
        third, fourth = points.third[start], points.fourth[start]
        part = slice(start, stop)
        columns = {f"v{k}": points.value[k, part] for k in range(4)}
        text = f"a0 == {{v0}} and a1 == {{v1}} and a{third} == {{v2}} and a{fourth} == {{v3}}"
        filter.subscribe_many(text, {"id": points.ids[part], **columns})


class PointScan:
    """The progressive scan: ``a0`` of all profiles, ``a1`` of the survivors, then the two others by gathering."""

    def __init__(self, points: Points, dtype: type = np.int64) -> None:
        self.points, self.value = points, np.ascontiguousarray(points.value.astype(dtype))
        self._same = np.empty(len(points.ids), bool)

    def match(self, message: NDArray[Any]) -> NDArray[np.int64]:
        """The ids of the profiles that match a message of shape (32,)."""
        p, value = self.points, self.value
        np.equal(value[0], message[0], out=self._same)
        alive = np.flatnonzero(self._same)
        alive = alive[value[1][alive] == message[1]]
        alive = alive[value[2][alive] == message[p.third[alive]]]
        alive = alive[value[3][alive] == message[p.fourth[alive]]]
        return p.ids[alive]

    def match_many(self, messages: NDArray[Any]) -> list[NDArray[np.int64]]:
        """One array of ids per message."""
        return [self.match(message) for message in messages]


def run(scale: float = 1.0, repeats: int = 7) -> dict[str, Any]:
    """Both sides in turns; the scan also with values of one byte, which a careful author would choose."""
    rng = np.random.default_rng(5)
    count, many, few = max(1_000, int(PROFILES * scale)), max(500, int(50_000 * scale)), 500
    result = Result(
        "points",
        "Points: four equalities per profile",
        f"{count:,} profiles of four equalities, two attributes shared by all, two out of thirty; values 1 to 35; "
        f"messages of 32 attributes, Zipf; tamis takes {many:,} messages per repeat, the scan {few}; "
        f"ids returned, one thread, {repeats} repeats in turns.",
        scale,
    )
    with progress("points", repeats + 3) as advance:
        profiles, values = points(rng, count), zipf(rng, max(many, few))
        filter = Filter()
        scan, narrow = PointScan(profiles), PointScan(profiles, np.uint8)
        small = values[:few].astype(np.uint8)
        advance("subscribe_many")
        table = pa.table({f"a{k}": np.ascontiguousarray(values[:many, k]) for k in range(ATTRIBUTES)})
        seconds = clock(lambda: (load(filter, profiles), filter.match_many(table[:1])))[1]
        advance(f"exactness on {SAMPLE} messages")
        found = filter.match_many(table[:SAMPLE]).to_arrow()
        for row, ids in enumerate(by_message(found, SAMPLE)):
            same(ids, scan.match(values[row]).tolist(), f"message {row}")
            same(ids, narrow.match(values[row].astype(np.uint8)).tolist(), f"message {row}, bytes")
        advance("measuring")
        filter.match_many(table)
        times = in_turns(
            {
                "tamis": (lambda: filter.match_many(table).to_arrow(), many),
                "scan": (lambda: scan.match_many(values[:few]), few),
                "bytes": (lambda: narrow.match_many(small), few),
            },
            repeats,
            lambda: advance("measuring"),
        )
        matches = len(filter.match_many(table)) / many
    tamis = times["tamis"]
    result.compare("tamis / NumPy progressive scan", times["scan"], tamis, TARGET)
    result.compare("tamis / the same scan on bytes", times["bytes"], tamis, None)
    result.add("tamis", tamis.rate, "messages/s", spread=tamis.spread, note=f"{matches:.2f} matches per message")
    result.add("NumPy progressive scan", times["scan"].rate, "messages/s", spread=times["scan"].spread)
    result.add("NumPy scan on bytes", times["bytes"].rate, "messages/s", spread=times["bytes"].spread)
    result.add("load, 435 prepared profiles", seconds, "s", note="subscribe_many and the first match")
    result.exact = f"{SAMPLE} messages, {found.num_rows:,} matches, equal to both scans"
    rates = {"tamis": tamis.rate, "NumPy scan": times["scan"].rate, "NumPy scan on bytes": times["bytes"].rate}
    result.data = {"bars": rates}
    return result.to_dict()


if __name__ == "__main__":
    main(run)
