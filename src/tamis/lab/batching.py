"""Figures 6 and 7 and Tables 2 to 4 of the batching paper (Section 6.3): strategies over the batch size.

The paper's five strategies on its own indexes (interval skip lists for ranges, hash tables for points), and ``blocks``,
which finds its minibatches by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tamis.flow import Batching, Grouping, by_value

from . import plots
from .batching_race import BLOCKS, Contenders, Grid, Race, budget_at, profiles_at
from .batching_workload import PointQueries, Ranges, Workload
from .experiment import COUNTS, ORDER, SIZE, Findings, Judge, Plot, Quantity, Setting, Table
from .plots import Panel

BATCH_SIZES: Final = (1, 10, 75, 150, 1_000, 5_000, 10_000)  # BS
LARGEST: Final = BATCH_SIZES[-1]
BIGGER: Final = (1_000, 5_000, 10_000, 25_000, 50_000, 100_000)  # of Table 4
FEWEST: Final = 300  # messages of a log
UNBATCHED, FULL, FULL_MIX, MINI, MINI_MIX = "Unbatched/PIx", "Full/PIx", "Full/-/MIx", "MiniB/PIx", "MiniB/PIx/MIx"
PAPER: Final = (UNBATCHED, FULL, FULL_MIX, MINI, MINI_MIX)
MINIBATCHES: Final = (MINI, MINI_MIX)
GROUPINGS: Final[dict[str, Grouping]] = {
    "Z": by_value(200, 800, least=8),
    "G": by_value(300, 400, least=8),
    "U": by_value(1_250, 5_000, least=8),
    "PQ": by_value(1, 1, least=8),
}
"""Val Att 2+, as the paper has it in these figures; widths as they did best on each distribution."""
NOISE: Final = 0.97
TABLE_2: Final = {
    "group": (0, 0, 0, 0.01, 0.01),
    "sort_values": (0, 0.01, 0, 0.01, 0.01),
    "profile_index": (14.28, 1.97, 0, 5.51, 7.87),
    "sort_messages": (0, 0, 0.01, 0, 0.01),
    "message_index": (0, 0, 71.58, 0, 12.98),
    "postfilter": (6.54, 77.58, 28.76, 8.27, 6.08),
}
TABLE_3: Final = {
    "group": (None, 0, 0, 0.03, 0.03),
    "sort_values": (None, 0.01, 0, 0.01, 0.01),
    "profile_index": (None, 0.05, 0, 0.73, 0.95),
    "sort_messages": (None, 0, 0.01, 0, 0.01),
    "message_index": (None, 0, 15.91, 0, 2.83),
    "postfilter": (None, 462.79, 14.9, 3.29, 2.45),
}
TABLE_4: Final = {MINI: (3.01, 5.82, 7.48, 9.59, 11.35, 13.07), MINI_MIX: (2.86, 4.7, 7.58, 10.47, 12.37, 15)}
STAGES: Final = {
    "group": "SortMB",
    "sort_values": "SortPIx",
    "profile_index": "PIx",
    "sort_messages": "SortMIx",
    "message_index": "MIx",
    "postfilter": "PostF",
}


def contenders(index: str, size: int, grouping: Grouping) -> Contenders:
    """The five strategies on the paper's index, and ``blocks``."""
    found: dict[str, tuple[str, Batching | None]] = {UNBATCHED: (index, None)}
    for strategy in PAPER[1:]:
        found[strategy] = (index, Batching(strategy, size, grouping))
    found[BLOCKS] = (BLOCKS, Batching(MINI, max(size, 2)))
    return found


def measured(
    race: Race, setting: Setting, distribution: str, sizes: Sequence[int], step: Callable[[str], None], only: Any = ()
) -> Grid:
    """All contenders at all batch sizes, on messages of one distribution."""
    grid = Grid("BS")
    for size in sizes:
        log = race.workload.messages(max(size, FEWEST), distribution)
        who = contenders(race.workload.index, size, GROUPINGS[distribution])
        who = {name: how for name, how in who.items() if not only or name in only}
        grid.add(size, race.run(who, log, budget_at(setting)))
        step(f"{distribution}, BS = {size:,}")
    return grid


def _steps(setting: Setting, total: int) -> Callable[[str], None]:
    done = 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        setting.progress(done, total, what)

    return step


def ranges(setting: Setting) -> Findings:
    """Figure 6 a to c, Tables 2 to 4: range profiles, Zipfian, Gaussian and uniform messages."""
    plots.needed()
    profiles = profiles_at(setting.scale)
    step = _steps(setting, 3 * len(BATCH_SIZES) + len(BIGGER))
    race = Race(Ranges(profiles, setting.seed), setting)
    grids = {one: measured(race, setting, one, BATCH_SIZES, step) for one in "ZGU"}
    larger = [size for size in BIGGER if size <= max(LARGEST, round(100_000 * setting.scale))]
    bigger = measured(race, setting, "Z", larger, step, MINIBATCHES)
    judge = Judge(setting.scale)
    for one, grid in grids.items():
        speedup, ours = {"Z": 5.0, "G": 2.0, "U": 1.5}[one], {"Z": NOISE}.get(one, 2.0)
        claims(judge, grid, f"RQ-{one}", speedup, ours)
    tables = [rates(f"Figure 6{letter}: RQ-{one}", grids[one]) for letter, one in zip("abc", "ZGU", strict=True)]
    tables += [
        breakdown("Table 2: cost breakdown, RQ-Z, BS = 75", grids["Z"], 75, TABLE_2),
        breakdown("Table 3: cost breakdown, RQ-Z, BS = 5,000", grids["Z"], 5_000, TABLE_3),
        _speedups(bigger, grids["Z"]),
    ]
    measurements = [row for one, grid in grids.items() for row in grid.to_list(workload=f"RQ-{one}")]
    return Findings(
        _parameters(setting, race.workload, ("Z", "G", "U")),
        measurements + bigger.to_list(workload="RQ-Z, Table 4"),
        tables,
        judge.claims,
        [_plot("", "Throughput over the batch size", {f"RQ-{one}": grid for one, grid in grids.items()})],
        notes(setting),
    )


def points(setting: Setting) -> Findings:
    """Figure 7: point profiles."""
    plots.needed()
    race = Race(PointQueries(profiles_at(setting.scale), setting.seed), setting)
    grid = measured(race, setting, "PQ", BATCH_SIZES, _steps(setting, len(BATCH_SIZES)))
    judge = Judge(setting.scale)
    claims(judge, grid, "PQ", 4.0, NOISE)
    return Findings(
        _parameters(setting, race.workload, ("PQ",)),
        grid.to_list(workload="PQ"),
        [rates("Figure 7: PQ", grid)],
        judge.claims,
        [_plot("", "Throughput over the batch size, point profiles", {"PQ": grid})],
        notes(setting),
    )


def _parameters(setting: Setting, workload: Workload, groupings: Sequence[str]) -> dict[str, Any]:
    return {
        "P": workload.profiles,
        "CO": len(workload.indexed),
        "BS": list(BATCH_SIZES),
        "index": workload.index,
        "MBS": {name: list(GROUPINGS[name].ranges) for name in groupings},
        "seconds per contender and point": budget_at(setting),
    }


def notes(setting: Setting) -> list[str]:
    """What a reader of the figures should know."""
    found = [
        "All strategies share one filter, one index and one postfilter, which compares a profile with eight messages "
        "at a time; the matches of every log were equal. Messages per second are those of each one's best log.",
        "Unbatched processing is Filter.process on the same log, one message after the other.",
    ]
    if setting.scale < 1:
        found.append(
            f"Scale {setting.scale:g}: profiles are {setting.scale:g} × the paper's, batch sizes are the paper's."
        )
    return found


# -- claims ----------------------------------------------------------------------------------------------------


def claims(judge: Judge, grid: Grid, name: str, speedup: float, ours: float) -> None:
    """What the paper says of one workload, and what we add: ``blocks`` is ``ours`` times the best of the others."""

    def rate(who: str, size: int = LARGEST) -> Quantity:
        return Quantity(f"{who}, BS = {size:,}", lambda: grid.rate(who, size))

    def best(size: int = LARGEST, factor: float = 1.0, names: tuple[str, ...] = MINIBATCHES) -> Quantity:
        what = "the better minibatching" if names == MINIBATCHES else "the best of the others"
        words = what if factor == 1 else f"{factor:g} × {what}"
        return Quantity(f"{words}, BS = {size:,}", lambda: factor * grid.best(names, size))

    speed: dict[str, Any] = {"unit": "msg/s"}
    judge.at_least(
        f"{name}: minibatching is the best strategy at BS = {LARGEST:,} (3 % for noise)",
        best(),
        best(factor=NOISE, names=(UNBATCHED, FULL, FULL_MIX)),
        scale=ORDER,
        **speed,
    )
    judge.at_least(
        f"{name}: minibatching is at least {speedup:g} × as fast as unbatched at BS = {LARGEST:,}",
        best(),
        Quantity(f"{speedup:g} × {UNBATCHED}", lambda: speedup * grid.rate(UNBATCHED, LARGEST)),
        scale=SIZE,
        **speed,
    )
    judge.at_least(
        f"{name}: minibatching gains with the batch size", best(), best(BATCH_SIZES[3]), scale=ORDER, **speed
    )
    judge.at_most(
        f"{name}: {FULL} collapses: at BS = {LARGEST:,} it does at most half of minibatching",
        rate(FULL),
        best(factor=0.5),
        scale=ORDER,
        **speed,
    )
    judge.at_least(
        f"{name}: its union set puts the work on the postfilter: 5 × the tests of {MINI} at BS = {LARGEST:,}",
        Quantity(FULL, lambda: grid.at(FULL, LARGEST).costs["tested"]),
        Quantity(f"5 × {MINI}", lambda: 5 * grid.at(MINI, LARGEST).costs["tested"]),
        scale=COUNTS,
        unit="tests per message",
    )
    judge.at_most(
        f"{name}: minibatching shares its probes: union sets per message shrink with the batch",
        Quantity(f"{MINI}, BS = {LARGEST:,}", lambda: grid.at(MINI, LARGEST).costs["union_sets"]),
        Quantity(f"{MINI}, BS = {BATCH_SIZES[2]}", lambda: grid.at(MINI, BATCH_SIZES[2]).costs["union_sets"]),
        scale=COUNTS,
        unit="profiles per message",
    )
    others = tuple(PAPER)
    judge.at_least(
        f"{name}: blocks is {'at least 2 × the best' if ours > 1 else 'not slower than the best'} of the others",
        rate(BLOCKS),
        best(factor=ours, names=others),
        scale=SIZE,
        whose="tamis",
        **speed,
    )


# -- tables and plots ------------------------------------------------------------------------------------------


def rates(title: str, grid: Grid) -> Table:
    """Messages per second, a row per contender."""
    points = [f"{point:,g}" for point in grid.points()]
    rows = [[name, *grid.series(name)] for name in grid.names()]
    return Table(f"{title} (messages per second)", ["", *points], rows, "", [("", 1), (grid.parameter, len(points))])


def breakdown(title: str, grid: Grid, size: int, paper: dict[str, tuple[Any, ...]]) -> Table:
    """Microseconds per message by stage, beside the paper's seconds."""
    there = [name for name in PAPER if (name, size) in grid.standings]
    rows: list[list[Any]] = []
    for stage, words in STAGES.items():
        ours = [grid.at(name, size).costs.get(stage, 0.0) * 1e6 if name != UNBATCHED else None for name in there]
        rows.append([words, *ours, *paper[stage]])
    whole = [1e6 / grid.rate(name, size) for name in there]
    rows.append(["all", *whole, *([None] * len(PAPER))])
    groups = [("", 1), ("ours, µs per message", len(there)), ("paper, s", len(PAPER))]
    return Table(title, ["", *there, *PAPER], rows, "Unbatched processing is not timed by stage.", groups)


def _speedups(grid: Grid, small: Grid) -> Table:
    """Over unbatched processing, which does not depend on the batch: as fast as it was at the largest of the others."""
    rows = []
    base = small.standings.get((UNBATCHED, LARGEST))
    for name in MINIBATCHES:
        ours = [
            grid.rate(name, size) / base.rate if base is not None and (name, size) in grid.standings else None
            for size in BIGGER
        ]
        rows.append([name, *ours, *TABLE_4[name]])
    sizes = [f"{size // 1000} K" for size in BIGGER]
    groups = [("", 1), ("ours", len(sizes)), ("paper", len(sizes))]
    return Table("Table 4: speed-up over unbatched, RQ-Z", ["", *sizes, *sizes], rows, "", groups)


def _plot(suffix: str, caption: str, grids: dict[str, Grid]) -> Plot:
    panels = [
        Panel(
            name,
            "BS, messages in a batch",
            "messages per second",
            [(who, grid.points(), grid.series(who)) for who in grid.names()],
            logx=True,
            logy=True,
            ticks=grid.points(),
        )
        for name, grid in grids.items()
    ]
    return Plot(suffix, caption, plots.draw(panels, f"batching{suffix}{caption}"))
