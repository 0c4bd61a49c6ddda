"""The eight-range workload in general-purpose engines, where installed: DuckDB, Polars. Not run by default."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from measure import Result, in_turns, main, progress, same
from tamis import Filter
from workloads import NAMES, TEXT, ProgressiveScan, Ranges, message_table, messages, ranges

PROFILES = 524_288
SAMPLE = 20

Match = Callable[[NDArray[np.float64]], Any]


def polars(profiles: Ranges) -> Match:
    """One filter expression per message over a frame of the bounds."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # read at import
    import polars as pl

    frame = pl.from_arrow(profiles.table())
    assert isinstance(frame, pl.DataFrame)

    def match(message: NDArray[np.float64]) -> Any:
        conditions = []
        for name, x in zip(NAMES, message.tolist(), strict=True):
            conditions += [pl.col(f"{name}lo") <= x, pl.col(f"{name}hi") >= x]
        return frame.lazy().filter(conditions).select("id").collect()["id"].to_list()

    return match


def duckdb(profiles: Ranges) -> Match:
    """One prepared query per message over a table of the bounds."""
    import duckdb as db

    connection = db.connect(config={"threads": 1})
    connection.register("given", profiles.table())
    connection.execute("create table profiles as select * from given")
    where = " and ".join(f"{name}lo <= ${k} and {name}hi >= ${k}" for k, name in enumerate(NAMES, 1))
    query = f"select id from profiles where {where}"
    return lambda message: [row[0] for row in connection.execute(query, message.tolist()).fetchall()]


PEERS: dict[str, Callable[[Ranges], Match]] = {"polars": polars, "duckdb": duckdb}


def run(scale: float = 1.0, repeats: int = 5) -> dict[str, Any]:
    """tamis, the NumPy scan and every peer that is installed, in turns."""
    rng = np.random.default_rng(3)
    count, many, few = max(1_000, int(PROFILES * scale)), max(500, int(20_000 * scale)), 30
    here = [name for name in PEERS if find_spec(name)]
    absent = [name for name in PEERS if name not in here]
    result = Result(
        "peers",
        "Peers: general-purpose engines",
        f"{count:,} profiles of eight ranges of 30 %, uniform messages; tamis takes {many:,} messages per repeat, the "
        f"others {few}; ids returned, one thread, {repeats} repeats in turns; "
        f"not installed: {', '.join(absent) or 'none'}.",
        scale,
    )
    profiles, values = ranges(rng, count), messages(rng, many)
    with progress("peers", repeats + 2) as advance:
        filter, scan = Filter(), ProgressiveScan(*profiles)
        filter.subscribe_many(TEXT, profiles.table())
        matchers: dict[str, Match] = {"NumPy progressive scan": scan.match, **{n: PEERS[n](profiles) for n in here}}
        advance("exactness")
        for row, message in enumerate(values[:SAMPLE]):
            mine = filter.match(dict(zip(NAMES, message.tolist(), strict=True)))
            for name, match in matchers.items():
                same(list(match(message)), mine, f"{name}, message {row}")
        advance("measuring")
        table = message_table(values)
        filter.match_many(table)
        sides: dict[str, tuple[Callable[[], Any], int]] = {"tamis": (lambda: filter.match_many(table).to_arrow(), many)}
        for name, match in matchers.items():
            sides[name] = (lambda match=match: [match(message) for message in values[:few]], few)
        times = in_turns(sides, repeats, lambda: advance("measuring"))
    for name, found in times.items():
        result.add(name, found.rate, "messages/s", spread=found.spread)
    result.exact = f"{SAMPLE} messages, all engines equal"
    result.data = {"bars": {name: found.rate for name, found in times.items()}}
    return result.to_dict()


if __name__ == "__main__":
    main(run)
