"""Figures 8 and 9 of the batching paper (Sections 6.4 and 6.5): how to group messages, and into how large groups."""

from __future__ import annotations

from typing import Any, Final

from tamis.flow import Batching, Grouping, Tuner, Tuning, by_value, fixed_size

from . import plots
from .batching import MINI, notes, rates
from .batching_race import Contenders, Grid, Race, budget_at, profiles_at
from .batching_workload import Ranges
from .experiment import COUNTS, ORDER, Findings, Judge, Plot, Quantity, Setting, Table
from .plots import Panel

BATCH_SIZES: Final = (75, 150, 1_000, 5_000, 10_000)
BS: Final = 10_000
GROUPINGS: Final[dict[str, Grouping]] = {
    "Fix No": fixed_size(32),
    "Val Att 1": by_value(200),
    "Val Att 2": by_value(200, 200),
    "Val Att 2+": by_value(200, 800),
    "hybrid": by_value(200, 800, least=8, most=256),
}
"""The paper's four, and a hybrid of section 3.2."""
BEST: Final = ("Fix No", "Val Att 2+", "hybrid")
MBS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048)
WIDTHS: Final = (1, 20, 50, 100, 200, 400, 800, 1_250, 2_500, 5_000)
WIDER: Final = 4.0  # the second range of Val Att 2+, in widths of the first
NOISE: Final = 0.9  # two measurements of one size differ by less
ROUNDS: Final = 80  # logs that the tuner sees
NEAR: Final = 0.9


def groupings(setting: Setting) -> Findings:
    """Figure 8: groupings over the batch size, on RQ-Z."""
    plots.needed()
    race = Race(Ranges(profiles_at(setting.scale), setting.seed), setting)
    grid = Grid("BS")
    for done, size in enumerate(BATCH_SIZES):
        setting.progress(done, len(BATCH_SIZES), f"BS = {size:,}")
        who: Contenders = {name: ("skiplist", Batching(MINI, size, how)) for name, how in GROUPINGS.items()}
        grid.add(size, race.run(who, race.workload.messages(max(size, 300), "Z"), budget_at(setting)))
    judge = Judge(setting.scale)
    judge.at_least(
        f"Val Att 2+ or Fix No (or their hybrid) is the best grouping at BS = {BS:,}",
        Quantity("the best of the three", lambda: grid.best(BEST, BS)),
        Quantity("the best of all", lambda: grid.best(tuple(GROUPINGS), BS)),
        scale=ORDER,
        unit="msg/s",
    )
    judge.at_least(
        "Val Att 2 makes the minibatches too small, especially of small batches",
        Quantity("minibatches of Val Att 2 at BS = 1,000", lambda: grid.at("Val Att 2", 1_000).costs["minibatches"]),
        Quantity("of Val Att 2+", lambda: grid.at("Val Att 2+", 1_000).costs["minibatches"]),
        scale=COUNTS,
        unit="per message",
    )
    judge.at_least(
        f"Val Att 1 makes them too large: its postfilter tests more than that of Val Att 2+ at BS = {BS:,}",
        Quantity("tests of Val Att 1", lambda: grid.at("Val Att 1", BS).costs["tested"]),
        Quantity("of Val Att 2+", lambda: grid.at("Val Att 2+", BS).costs["tested"]),
        scale=COUNTS,
        unit="per message",
    )
    lines = [(name, grid.points(), grid.series(name)) for name in grid.names()]
    panel = Panel("Groupings, RQ-Z", "BS, messages in a batch", "messages per second", lines, logx=True)
    return Findings(
        {"P": race.workload.profiles, "BS": list(BATCH_SIZES), "groupings": _shown(GROUPINGS)},
        grid.to_list(),
        [rates("Figure 8: groupings, RQ-Z", grid)],
        judge.claims,
        [Plot("", "Groupings over the batch size", plots.draw([panel], "batching-fig8"))],
        notes(setting),
    )


def _shown(groupings: dict[str, Grouping]) -> dict[str, Any]:
    return {name: list(one.ranges) if one.ranges else one.count for name, one in groupings.items()}


def sizes(setting: Setting) -> Findings:
    """Figure 9: minibatches of every size at BS = 10,000 on RQ-Z, and the size that the tuner finds."""
    plots.needed()
    race = Race(Ranges(profiles_at(setting.scale), setting.seed), setting)
    log = race.workload.messages(BS, "Z")
    fixed, ranged = Grid("MBS"), Grid("width")
    total = len(MBS) + len(WIDTHS) + 1
    for done, size in enumerate(MBS):
        setting.progress(done, total, f"MBS = {size:,}")
        fixed.add(
            size, race.run({"Fix No": ("skiplist", Batching(MINI, BS, fixed_size(size)))}, log, budget_at(setting))
        )
    for done, width in enumerate(WIDTHS):
        setting.progress(len(MBS) + done, total, f"width = {width:,}")
        how = Batching(MINI, BS, by_value(width, WIDER * width))
        ranged.add(width, race.run({"Val Att 2+": ("skiplist", how)}, log, budget_at(setting)))
    setting.progress(total - 1, total, "tuning")
    found, path = _tune(race, log)
    confirm = {
        f"MBS = {size}": ("skiplist", Batching(MINI, BS, fixed_size(size)))
        for size in {found, int(max(MBS, key=lambda size: fixed.rate("Fix No", size)))}
    }
    side = race.run(confirm, log, 2 * budget_at(setting))
    tuned, top = side[f"MBS = {found}"].rate, max(one.rate for one in side.values())
    judge = Judge(setting.scale)
    for name, grid in (("Fix No", fixed), ("Val Att 2+", ranged)):
        judge.at_least(
            f"{name} has a single maximum: both ways from the best size it only gets slower (10 % for noise)",
            Quantity("the least step towards the best", lambda grid=grid, name=name: _least_step(grid, name)),  # type: ignore[misc]
            Quantity("0.9", lambda: NOISE),
            scale=ORDER,
            unit="×",
        )
    judge.at_least(
        f"the tuner finds it: MBS = {found} is within 10 % of the best size of the sweep",
        Quantity("at the tuner's size", lambda: tuned),
        Quantity("0.9 × the best", lambda: NEAR * top),
        scale=ORDER,
        unit="msg/s",
        whose="tamis",
    )
    panels = [
        Panel("Fix No", "MBS, messages in a minibatch", "messages per second", _lines(fixed), logx=True, ticks=MBS),
        Panel("Val Att 2+", "width of the first range", "messages per second", _lines(ranged), logx=True, ticks=WIDTHS),
    ]
    rows = [[i + 1, size, cost * 1e6] for i, (size, cost) in enumerate(path)]
    tables = [
        rates("Figure 9: minibatches of a fixed number", fixed),
        rates("Figure 9: minibatches by value", ranged),
        Table("The way of the tuner", ["log", "MBS", "µs per message"], rows),
    ]
    return Findings(
        {"P": race.workload.profiles, "BS": BS, "MBS": list(MBS), "widths": list(WIDTHS), "the tuner's": found},
        [*fixed.to_list(), *ranged.to_list()],
        tables,
        judge.claims,
        [Plot("", "Throughput over the size of minibatches", plots.draw(panels, "batching-fig9"))],
        notes(setting),
    )


def _lines(grid: Grid) -> list[Any]:
    return [(name, grid.points(), grid.series(name)) for name in grid.names()]


def _least_step(grid: Grid, name: str) -> float:
    """The least quotient of neighbours, the one nearer to the best size over the other."""
    points = grid.points()
    found = [grid.rate(name, point) for point in points]
    best = found.index(max(found))
    return min(
        [found[i + 1] / found[i] for i in range(best)] + [found[i - 1] / found[i] for i in range(best + 1, len(found))]
    )


def _tune(race: Race, log: Any) -> tuple[int, list[tuple[int, float]]]:
    """The size that hill climbing comes to from one message per minibatch, and its way there."""
    filter = race.filters["skiplist"]
    filter.batching = Batching(MINI, BS, fixed_size(2))
    tuning = Tuning(filter, Tuner(2, most=4_096, factor=1.5, trials=2, noise=0.01, rest=1_000))
    path: list[tuple[int, float]] = []
    report = tuning.tuner.report

    def heard(cost: float) -> None:
        path.append((tuning.tuner.size, cost))
        report(cost)

    tuning.tuner.report = heard  # type: ignore[method-assign]
    for _ in range(ROUNDS):
        tuning.process(log)
        if tuning.tuner.resting:
            break
    return tuning.tuner.best, path
