"""From ten thousand to five million profiles: time per message and per update, memory, time to build."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from measure import Inexact, Result, Times, clock, in_turns, main, progress, same
from tamis import EventLog, Filter
from workloads import DOMAIN, NAMES, TEXT, WIDTH, ProgressiveScan, by_message, message_table, messages, ranges

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 5_000_000)
AROUND = " and ".join(f"{name} between ctx.{name} - {{half}} and ctx.{name} + {{half}}" for name in NAMES)
SAMPLE = 20


def measure(count: int, repeats: int, many: int) -> dict[str, float]:
    """One size, in this process: nine profiles in ten have constants, the tenth follows its own context."""
    rng = np.random.default_rng(count)
    fixed, moving = count * 9 // 10, count - count * 9 // 10
    process = psutil.Process()
    profiles, points = ranges(rng, fixed), messages(rng, many)
    places = rng.uniform(0, DOMAIN, (len(NAMES), moving))
    ids = np.arange(moving, dtype=np.int64)
    names = [f"c{i}" for i in range(moving)]
    _warm()
    filter = Filter()
    before = process.memory_info().rss
    start = time.perf_counter()
    filter.subscribe_many(TEXT, profiles.table())
    half = np.full(moving, WIDTH / 2 * DOMAIN)
    filter.subscribe_many(AROUND, {"id": ids, "context": names, "half": half})
    index = filter.context_index(names)
    for k, name in enumerate(NAMES):
        filter.update_many(index, name, places[k])
    filter.match_many(message_table(points[:1]))
    built = time.perf_counter() - start
    memory = process.memory_info().rss - before

    low = np.concatenate([profiles.low, places - half], axis=1)
    high = np.concatenate([profiles.high, places + half], axis=1)
    scan = ProgressiveScan(np.concatenate([profiles.ids, ids]), low, high)
    found = filter.match_many(message_table(points[:SAMPLE])).to_arrow()
    for row, mine in enumerate(by_message(found, SAMPLE)):
        same(mine, scan.match(points[row]).tolist(), f"{count:,} profiles, message {row}")

    table = message_table(points)
    matches = len(filter.match_many(table)) / many
    few = max(3, min(50, 10_000_000 // count))
    times = in_turns(
        {
            "message": (lambda: filter.match_many(table).to_arrow(), many),
            "scan": (lambda: scan.match_many(points[:few]), few),
        },
        repeats,
    )
    updates = _updates(rng, filter, index, places, repeats)
    return {
        "profiles": count,
        "matches per message": matches,
        "seconds per message": times["message"].median,
        "message spread": times["message"].spread,
        "seconds per message, scan": times["scan"].median,
        "seconds per update": updates.median,
        "update spread": updates.spread,
        "megabytes": memory / 1e6,
        "seconds to build": built,
    }


def _warm() -> None:
    """Loads the kernels, so that they count neither as memory nor as time of the profiles."""
    small = Filter()
    small.subscribe_many(TEXT, ranges(np.random.default_rng(0), 300).table())
    small.subscribe_many(AROUND, {"id": [1], "context": ["A"], "half": [1.0]})
    small.update("A", a=1)
    small.match_many(message_table(messages(np.random.default_rng(0), 10))).to_arrow()


def _updates(rng: np.random.Generator, filter: Filter, index: Any, places: Any, repeats: int) -> Times:
    """Seconds per update of contexts that move by at most 1.5 % of the domain."""
    count = 500_000
    attributes = pa.array(NAMES)
    seconds = []
    for repeat in range(repeats + 1):
        context = rng.integers(0, len(index), count)
        attribute = rng.integers(0, len(NAMES), count, np.int32)
        value = np.abs(places[attribute, context] + rng.uniform(-0.015, 0.015, count) * DOMAIN)
        table = pa.table(
            {
                "context": index[context],
                "attribute": pa.DictionaryArray.from_arrays(pa.array(attribute), attributes),
                "value": value,
            }
        )
        log = EventLog.merge(updates=table)
        took = clock(lambda log=log: filter.process(log))[1]
        if repeat:
            seconds.append(took / count)
    places[attribute, context] = value  # the last of several updates of one place wins, in NumPy as in the filter
    last = int(context[-1])
    wanted = float(places[attribute[-1], last])
    if filter.context(int(index[last]))[NAMES[attribute[-1]]] != wanted:
        raise Inexact(f"context {last}: the last update is lost")
    return Times(tuple(seconds))


def run(scale: float = 1.0, repeats: int = 5) -> dict[str, Any]:
    """Each size in a fresh process."""
    sizes = sorted({max(1_000, int(size * scale)) for size in SIZES})
    many = max(500, int(5_000 * min(1.0, scale)))
    result = Result(
        "growth",
        "Growth: from ten thousand to five million profiles",
        f"profiles of eight ranges of 30 %, every tenth around its own context; {many:,} uniform messages and 500,000 "
        f"updates per repeat, {repeats} repeats, each size in a fresh process.",
        scale,
    )
    rows: list[dict[str, float]] = []
    with progress("growth", len(sizes) + 1) as advance:
        for size in sizes:
            advance(f"{size:,} profiles")
            command = [sys.executable, __file__, "--one", str(size), str(repeats), str(many)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Inexact(f"{size:,} profiles: {done.stderr.strip().splitlines()[-1]}")
            rows.append(json.loads(done.stdout))
        advance("done")
    for row in rows:
        note = (
            f"{row['seconds per update'] * 1e9:,.0f} ns per update, {row['megabytes']:,.0f} MB, built in "
            f"{row['seconds to build']:.1f} s, {row['matches per message']:,.1f} matches per message, "
            f"{row['seconds per message, scan'] / row['seconds per message']:,.0f} times the NumPy scan"
        )
        what = f"{row['profiles']:,.0f} profiles"
        result.add(what, row["seconds per message"] * 1e6, "µs per message", spread=row["message spread"], note=note)
    result.exact = f"{SAMPLE} messages of every size equal to the scan"
    result.data = {"rows": rows}
    return result.to_dict()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(*map(int, sys.argv[2:5]))))
    else:
        main(run)
