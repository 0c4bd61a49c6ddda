"""Tables 5 and 6 of the batching paper (Section 7): what speed-up a latency allows, and what a burst does to latencies.

Time is virtual: messages arrive and are processed as fast as measured, so the same queue runs here as in a service.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np

from tamis.flow import BatchControl, Batching, LatencyModel

from . import plots
from .batching import GROUPINGS, LARGEST, MINI, UNBATCHED
from .batching_race import Grid, Race, budget_at, profiles_at
from .batching_workload import Ranges
from .experiment import COUNTS, ORDER, Findings, Judge, Plot, Quantity, Setting, Table
from .plots import Panel

SIZES: Final = (10, 30, 100, 300, 1_000, 3_000, 10_000)
LATENCIES: Final = (10, 100, 1_000, 10_000)  # ms, of Table 5
TABLE_5: Final = (1.1, 1.3, 2.28, 9.2)
BURSTS: Final = (30, 300, 3_000, 30_000)  # messages: 3,000 per second for 10 ms to 10 s
FASTER: Final = 3_000 / 450  # than unbatched processing can follow
TABLE_6: Final = {
    "unbatched, average": (30.8, 282.7, 2_802.8, 28_002.7),
    "unbatched, maximum": (59.4, 563.2, 5_603.4, 56_003.3),
    "batched, average": (29.7, 196.3, 985.4, 2_668),
    "batched, maximum": (47, 301.9, 1_592.3, 4_451.3),
}


def speedups(grid: Grid) -> Callable[[float], float]:
    """The measured speed-up by batch size, between the points on a logarithmic scale; 1 for a single message."""
    sizes = [1.0, *grid.points()]
    gains = [1.0, *(max(1.0, grid.rate(MINI, size) / grid.rate(UNBATCHED, size)) for size in grid.points())]
    return lambda size: float(np.interp(math.log(max(1.0, size)), np.log(sizes), gains))


def burst(arrivals: list[float], cost: Callable[[int], float], size: int) -> list[float]:
    """The latency of every message, of a server that takes what waits, ``size`` messages at most."""
    control = BatchControl(size)
    now, i, latencies = 0.0, 0, []
    while i < len(arrivals) or len(control):
        while i < len(arrivals) and arrivals[i] <= now:
            control.offer(i, arrivals[i])
            i += 1
        batch = control.take(now)
        if not batch:
            now = arrivals[i]
            continue
        now += cost(len(batch))
        latencies += [now - arrived for _, arrived in batch]
    return latencies


def latency(setting: Setting) -> Findings:
    """Tables 5 and 6."""
    plots.needed()
    race = Race(Ranges(profiles_at(setting.scale), setting.seed), setting)
    grid = Grid("BS")
    for done, size in enumerate(SIZES):
        setting.progress(done, len(SIZES), f"BS = {size:,}")
        who = {
            UNBATCHED: ("skiplist", None),
            MINI: ("skiplist", Batching(MINI, size, GROUPINGS["Z"])),
        }
        grid.add(size, race.run(who, race.workload.messages(max(size, 300), "Z"), budget_at(setting)))
    gain = speedups(grid)
    single = 1.0 / grid.rate(UNBATCHED, LARGEST)
    model = LatencyModel(1.0 / single, single, gain)
    bounds = [model.bound(ms / 1e3) for ms in LATENCIES]
    allowed = [gain(size) if size else 1.0 for size in bounds]

    def batched(size: int) -> float:
        return size * single / gain(size)

    found: dict[str, list[float]] = {name: [] for name in TABLE_6}
    for messages in BURSTS:
        arrivals = [i * single / FASTER for i in range(messages)]
        for name, cost, size in (("unbatched", lambda n: n * single, 1), ("batched", batched, LARGEST)):
            each = burst(arrivals, cost, size)
            found[f"{name}, average"].append(1e3 * sum(each) / len(each))
            found[f"{name}, maximum"].append(1e3 * max(each))
    quiet = [2 * i * single for i in range(3_000)]
    calm = {
        name: float(np.mean(burst(quiet, cost, size)))
        for name, cost, size in (("unbatched", lambda n: n * single, 1), ("batched", batched, LARGEST))
    }
    judge = Judge(setting.scale)
    judge.at_least(
        "the more latency is acceptable, the larger are the batches (Table 5)",
        Quantity("the least step", lambda: float(min(b - a for a, b in pairwise(bounds)))),
        Quantity("0", lambda: 0.0),
        scale=COUNTS,
        unit="messages",
    )
    judge.at_least(
        "and with them the speed-up: 10 s allow at least twice that of 10 ms",
        Quantity("at 10 s", lambda: allowed[-1]),
        Quantity("2 × at 10 ms", lambda: 2 * allowed[0]),
        scale=ORDER,
        unit="×",
    )
    judge.at_most(
        "the bound holds: the largest batch that the formula allows takes no longer",
        Quantity(
            "the largest share of the latency",
            lambda: max(model.maximum(size) / (ms / 1e3) for size, ms in zip(bounds, LATENCIES, strict=True) if size),
        ),
        Quantity("1", lambda: 1.0),
        scale=COUNTS,
        unit="×",
    )
    for i, factor in ((2, 1.5), (3, 3.0)):
        judge.at_least(
            f"a burst of {BURSTS[i]:,} messages is levelled: its average latency is {factor:g} × lower (Table 6)",
            Quantity("unbatched", lambda i=i: found["unbatched, average"][i]),  # type: ignore[misc]
            Quantity(f"{factor:g} × batched", lambda i=i, factor=factor: factor * found["batched, average"][i]),  # type: ignore[misc]
            scale=ORDER,
            unit="ms",
        )
    judge.at_most(
        "a quiet stream, at half of what unbatched processing can do, is not delayed",
        Quantity("batched, average", lambda: 1e3 * calm["batched"]),
        Quantity("1.01 × unbatched", lambda: 1e3 * 1.01 * calm["unbatched"]),
        scale=COUNTS,
        unit="ms",
        whose="tamis",
    )
    heads = [f"{ms:,} ms" for ms in LATENCIES]
    tables = [
        Table(
            "Table 5: the speed-up that a latency allows, RQ-Z",
            ["", *heads, *heads],
            [["speed-up", *allowed, *TABLE_5], ["largest batch", *bounds, *([None] * 4)]],
            f"Messages arrive as fast as unbatched processing can follow: {1 / single:,.0f} per second.",
            [("", 1), ("ours", 4), ("paper", 4)],
        ),
        Table(
            "Table 6: latencies of a burst (ms)",
            ["", *(f"{n:,}" for n in BURSTS), *(f"{n:,}" for n in BURSTS)],
            [[name, *ours, *TABLE_6[name]] for name, ours in found.items()],
            f"Messages of the burst; they arrive {FASTER:.1f} × as fast as unbatched processing can follow.",
            [("", 1), ("ours", 4), ("paper", 4)],
        ),
    ]
    lines = [(name, BURSTS, values) for name, values in found.items()]
    panel = Panel("Latencies of a burst", "messages of the burst", "ms", lines, logx=True, logy=True, ticks=BURSTS)
    return Findings(
        {"P": race.workload.profiles, "BS": list(SIZES), "messages per second, unbatched": 1 / single},
        grid.to_list(),
        tables,
        judge.claims,
        [Plot("", "Latencies of bursts, batched and not", plots.draw([panel], "batching-latency"))],
        ["Time is virtual: costs were measured, and the batch control itself runs on arrivals computed from them."],
    )
