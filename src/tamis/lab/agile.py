"""Experiments 1 to 3 of the AGILE paper (Section 6.3 to 6.5): throughput in steady state over three parameters.

UP (updates per profile), UpdAtt (the share of updates on indexed attributes) and ΔU (how far an update moves a value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from . import agile_workload as workload
from . import plots
from .contenders import BLOCKS, COST, INDEXES, OTHER_POLICIES, PAPER, POLICIES, chosen
from .experiment import COUNTS, ORDER, SIZE, Claim, Findings, Judge, Plot, Quantity, Setting, Table
from .plots import Line, Panel
from .race import Grid, Plan, Race, Standing, steady

UP: Final = (1, 10, 100, 1_000, 10_000)
UPD_ATT: Final = (0, 25, 50, 75, 100)
DELTA_U: Final = (1, 50, 100, 150, 500, 1_000, 1_500, 2_000, 2_500)
FIXED_UP: Final = 1_000  # of Experiments 2 and 3

TABLE_3: Final = {
    "NOINDEX": (27, 28, 28, 21, 9.5),
    "EAGER": (484, 366, 106, 13, 1.4),
    "GBU": (472, 375, 125, 19, 2.1),
    "AGILE": (472, 390, 178, 58, 10.1),
}
TABLE_4: Final = {
    "NOINDEX": (0, 0, 0, 0, 0),
    "EAGER": (0.024, 0.24, 2.4, 24, 240),
    "GBU": (0.024, 0.23, 2.2, 20, 180),
    "AGILE": (0.024, 0.22, 1.4, 4, 11),
}
TABLE_5: Final = {
    "NOINDEX": (4_000, 4_000, 4_000, 4_000, 4_000),
    "EAGER": (12, 12, 12, 12, 12),
    "GBU": (12, 12, 14, 19, 32),
    "AGILE": (13, 19, 72, 250, 700),
}
FOUR: Final = tuple(PAPER)
NOISE: Final = 0.97
"""Two runs of the same contender differ by a few percent: what is as good may measure 3 % less."""
WORTH: Final = {1: 3.0, 10: 3.0, 100: 3.0, 1_000: 1.5, 10_000: 0.95}
"""How many times the best of the paper's four ``blocks`` must be, by UP."""


def profiles_at(scale: float) -> int:
    """The paper's 500,000 at scale 1; never so few that nothing matches."""
    return max(500, round(workload.PROFILES * scale))


def budget_at(setting: Setting) -> float:
    """Seconds that a contender measures at a point: 2 at the paper's size, less below it."""
    return setting.budget if setting.budget is not None else max(0.15, 2 * setting.scale**0.65)


def parameters(setting: Setting, profiles: int, **more: Any) -> dict[str, Any]:
    """The parameters of Table 2."""
    return {
        "P": profiles,
        "Att": len(workload.NAMES),
        "CB": "90 %",
        "AttI": workload.INDEXED,
        "Val": f"0 to {workload.DOMAIN:,.0f}, {workload.DIGITS} relevant digits",
        "Msg": workload.MESSAGES,
        "warm-up messages": 500,
        "ΔU": workload.STEP,
        "UpdAtt": f"{workload.SHARE:.0%}",
        "seconds per contender and point": budget_at(setting),
        "contenders": {name: dict(options) for name, options in chosen(setting).items()},
        **more,
    }


# -- measuring -------------------------------------------------------------------------------------------------


def measured(
    setting: Setting, parameter: str, points: Sequence[float], at: Callable[[float], tuple[dict[str, float], float]]
) -> Grid:
    """All contenders at all points; ``at(point)`` gives the options of the world and UP."""
    plots.needed()
    contenders, profiles = chosen(setting), profiles_at(setting.scale)
    grid = Grid(parameter, points)
    total, finished = len(points) * len(contenders), 0
    for point in points:
        what = f"{parameter} = {point:,g}"
        setting.progress(finished, total, f"{what}: loading")
        options, up = at(point)
        world = workload.World(profiles, setting.seed, digits=workload.DIGITS, **options)
        race = Race(contenders, world)
        plan = Plan(
            budget_at(setting),
            workload.MESSAGES,
            enough=12 * world.moving * len(workload.NAMES),
            most=max(5_000_000, 100 * profiles),
        )

        def done(name: str, what: str = what) -> None:
            nonlocal finished
            finished += 1
            setting.progress(finished, total, f"{what}: {name} done")

        setting.progress(finished, total, f"{what}: racing")
        found = steady(race, workload.updates_per_message(up, profiles), plan, done)
        grid.standings.update({(name, point): found[name] for name in contenders})
    return grid


def updates_per_profile(setting: Setting) -> Findings:
    """Experiment 1: UP from 1 to 10,000."""
    grid = measured(setting, "UP", UP, lambda up: ({}, up))
    profiles = profiles_at(setting.scale)
    per_run = f"per {workload.MESSAGES:,} messages, {profiles:,} profiles"

    def millions(counter: str) -> Callable[[Standing], float | None]:
        return lambda one: None if counter not in one.counts else one.counts[counter] * workload.MESSAGES / 1e6

    tables = [
        beside("Table 3: throughput (messages per second)", grid, lambda one: one.rate, TABLE_3),
        beside("Table 4: index updates (millions)", grid, millions("index_updates"), TABLE_4, per_run),
        beside("Table 5: profiles to postfilter (millions)", grid, millions("postfiltered"), TABLE_5, per_run),
    ]
    return Findings(
        parameters(setting, profiles, UP=list(UP)),
        grid.to_list(),
        tables,
        [*_claims_of_exp1(grid, setting.scale), *policy_claims(grid, setting.scale, "Experiment 1")],
        _plots_of_exp1(grid, setting.scale),
        notes(setting),
    )


def update_attributes(setting: Setting) -> Findings:
    """Experiment 2: UpdAtt from 0 to 100 %, at UP = 1,000."""
    grid = measured(setting, "UpdAtt", UPD_ATT, lambda percent: ({"share": percent / 100}, FIXED_UP))
    judge = Judge(setting.scale)

    def slowdown(name: str) -> Quantity:
        return Quantity(f"{name}, slowest / fastest time over UpdAtt", lambda: _slowdown(grid, name))

    for other in ("EAGER", "GBU"):
        judge.at_most(
            f"AGILE is robust over UpdAtt: it suffers less than {other} when updates hit indexed attributes",
            slowdown("AGILE"),
            slowdown(other),
            scale=ORDER,
            unit="×",
        )
    judge.at_most(
        "AGILE is flat over UpdAtt: its slowest time is at most twice its fastest",
        slowdown("AGILE"),
        Quantity("twice", lambda: 2.0),
        scale=SIZE,
        unit="×",
        today="where no update hits the index it stays exact; in 2005 the stores of 50,000 updates a message hid that",
    )
    judge.at_most(
        "AGILE is flat over UpdAtt where updates hit the index at all: its slowest time is at most twice its fastest",
        Quantity("AGILE, slowest / fastest time from 25 to 100 %", lambda: _slowdown(grid, "AGILE", UPD_ATT[1:])),
        Quantity("twice", lambda: 2.0),
        scale=SIZE,
        unit="×",
    )
    claims = [*judge.claims, *policy_claims(grid, setting.scale, "Experiment 2")]
    return _completion(setting, grid, claims, "UpdAtt", list(UPD_ATT), 25, "updates on indexed attributes (%)", "12")


def update_distance(setting: Setting) -> Findings:
    """Experiment 3: ΔU from 1 to 2,500, at UP = 1,000."""
    grid = measured(setting, "ΔU", DELTA_U, lambda step: ({"step": float(step)}, FIXED_UP))
    judge = Judge(setting.scale)
    near, far = DELTA_U[0], DELTA_U[-1]
    for step in DELTA_U:
        judge.at_least(
            f"AGILE lies between GBU and NOINDEX: at ΔU = {step:,} it is not slower than both (5 % for noise)",
            _rate(grid, "AGILE", step),
            Quantity(
                "0.95 × the slower of GBU and NOINDEX",
                lambda step=step: 0.95 * min(grid.rate("GBU", step), grid.rate("NOINDEX", step)),  # type: ignore[misc]
            ),
            scale=ORDER,
            unit="msg/s",
        )
    for step, other, words in (
        (near, "GBU", "with the highest locality AGILE does as well as GBU"),
        (far, "NOINDEX", "without locality AGILE does as well as NOINDEX"),
    ):
        judge.at_least(
            f"{words} (ΔU = {step:,}; 10 % for noise)",
            _rate(grid, "AGILE", step),
            Quantity(f"0.9 × {other}", lambda step=step, other=other: 0.9 * grid.rate(other, step)),  # type: ignore[misc]
            scale=SIZE,
            unit="msg/s",
        )
    claims = [*judge.claims, *policy_claims(grid, setting.scale, "Experiment 3")]
    return _completion(setting, grid, claims, "ΔU", list(DELTA_U), 150, "ΔU, the longest step of an update", "13")


def notes(setting: Setting) -> list[str]:
    """What a reader of the figures should know."""
    return [
        "Only Filter.process and the reading of stats are timed; all contenders take turns on the same logs, and the "
        "matches of every log were equal; the last message of every log was compared with brute force as well.",
        "Each contender measures up to its seconds; how many messages that were, how long the warm-up was and why it "
        "ended stands with every measurement in the JSON file.",
    ] + (
        []
        if setting.scale >= 1
        else [f"Scale {setting.scale:g}: profiles and updates per message are {setting.scale:g} × the paper's."]
    )


# -- claims ----------------------------------------------------------------------------------------------------


def _rate(grid: Grid, name: str, point: float) -> Quantity:
    return Quantity(name, lambda: grid.rate(name, point))


def _slowdown(grid: Grid, name: str, points: Sequence[float] = ()) -> float:
    rates = [grid.rate(name, point) for point in points or grid.points]
    return max(rates) / min(rates)


def _claims_of_exp1(grid: Grid, scale: float) -> list[Claim]:
    judge = Judge(scale)

    def best(point: float, share: float, names: Sequence[str] = FOUR) -> Quantity:
        what = "the best of the four" if share == 1 else f"{share:g} × the best of the four"
        return Quantity(what, lambda: share * grid.best(names, point))

    def count(name: str, point: float, counter: str, share: float = 1.0) -> Quantity:
        what = name if share == 1 else f"{share:g} × {name}"
        return Quantity(what, lambda: share * grid.count(name, point, counter))

    speed: dict[str, Any] = {"unit": "msg/s"}
    judge.at_least(
        "EAGER is within 5 % of the best at UP = 1", _rate(grid, "EAGER", 1), best(1, 0.95), scale=SIZE, **speed
    )
    for name, point in (("NOINDEX", 1), ("EAGER", 10_000)):
        others = [other for other in FOUR if other != name]
        judge.at_most(
            f"{name} is the slowest of the four at UP = {point:,}",
            _rate(grid, name, point),
            Quantity(
                f"the slowest of {', '.join(others)}",
                lambda others=others, point=point: min(grid.rate(other, point) for other in others),  # type: ignore[misc]
            ),
            scale=ORDER,
            **speed,
        )
    for up in UP[1:]:
        judge.at_least(
            f"AGILE is the best or within 5 % of it at UP = {up:,}",
            _rate(grid, "AGILE", up),
            best(up, 0.95),
            scale=SIZE,
            **speed,
        )
    per_message: dict[str, Any] = {"unit": "per message"}
    for up in UP[2:]:
        for other in ("GBU", "EAGER"):
            judge.at_most(
                f"AGILE updates its indexes less often than {other} at UP = {up:,} (Table 4)",
                count("AGILE", up, "index_updates"),
                count(other, up, "index_updates"),
                scale=COUNTS,
                **per_message,
            )
    for up, share in ((1_000, 0.3), (10_000, 0.1)):
        for other in ("GBU", "EAGER"):
            judge.at_most(
                f"AGILE's index updates are far below {other}'s at UP = {up:,} (Table 4)",
                count("AGILE", up, "index_updates"),
                count(other, up, "index_updates", share),
                scale=ORDER,
                **per_message,
            )
    for up in UP[2:]:
        judge.at_least(
            f"AGILE pays with more profiles to postfilter than EAGER at UP = {up:,} (Table 5)",
            count("AGILE", up, "postfiltered"),
            count("EAGER", up, "postfiltered"),
            scale=COUNTS,
            **per_message,
        )
    for up, factor in WORTH.items():
        judge.at_least(
            f"blocks is at least {factor:g} × the best of the paper's four at UP = {up:,}",
            _rate(grid, "blocks", up),
            best(up, factor),
            scale=SIZE,
            whose="tamis",
            **speed,
        )
    return judge.claims


def policy_claims(grid: Grid, scale: float, where: str) -> list[Claim]:
    """Our policy against the paper's, by the geometric mean over the points of an experiment."""
    judge = Judge(scale)
    judge.at_least(
        f"policy cost is at least as good as the best of the paper's policies over {where} (3 % for noise)",
        Quantity("AGILE cost, mean over the points", lambda: grid.mean(COST)),
        Quantity(
            f"{NOISE:g} × the best of always, fixed, auto",
            lambda: NOISE * max(grid.mean(name) for name in OTHER_POLICIES),
        ),
        scale=ORDER,
        unit="msg/s",
        whose="tamis",
    )
    return judge.claims


# -- tables and plots ------------------------------------------------------------------------------------------


def beside(
    title: str,
    grid: Grid,
    value: Callable[[Standing], float | None],
    paper: Mapping[str, Sequence[float | None]],
    note: str = "",
) -> Table:
    """Our figures beside the paper's, one row per contender."""
    points = [f"{point:,g}" for point in grid.points]
    if not paper:
        rows = [[name, *grid.series(name, value)] for name in grid.names()]
        return Table(title, ["", *points], rows, note, [("", 1), (grid.parameter, len(points))])
    names = [*grid.names(), *(name for name in paper if name not in grid.names())]
    blank: Sequence[float | None] = [None] * len(grid.points)
    rows = [[name, *grid.series(name, value), *paper.get(name, blank)] for name in names]
    groups = [("", 1), (f"ours, {grid.parameter}", len(points)), (f"paper, {grid.parameter}", len(points))]
    return Table(title, ["", *points, *points], rows, note, groups)


def group_lines(grid: Grid, names: Iterable[str], value: Callable[[Standing], float | None]) -> list[Line]:
    """One line per contender of a group that was measured."""
    there = grid.names()
    return [(name, grid.points, grid.series(name, value)) for name in names if name in there]


def _groups(grid: Grid) -> list[tuple[str, list[str]]]:
    """The contenders by what they show: the paper's and ours, other indexes, policies; groups that ran only."""
    groups = [
        ("the paper's four, and blocks", [*PAPER, *BLOCKS]),
        ("AGILE on other indexes", ["AGILE", *INDEXES, *BLOCKS]),
        ("deescalation policies on skip lists; AGILE is fixed(1000)", [*OTHER_POLICIES, *POLICIES]),
    ]
    there = set(grid.names())
    special = [set(PAPER) | set(BLOCKS), set(INDEXES), set(POLICIES)]
    return [
        (words, list(dict.fromkeys(names)))
        for (words, names), needed in zip(groups, special, strict=True)
        if there & needed
    ]


def _plots_of_exp1(grid: Grid, scale: float) -> list[Plot]:
    axes: dict[str, Any] = {"xlabel": "UP, updates per profile in 10,000 messages", "logx": True, "ticks": UP}
    published = [(name, UP, values) for name, values in TABLE_3.items()]
    rates = [
        Panel(
            f"Throughput: {words}",
            ylabel="messages per second",
            lines=group_lines(grid, names, lambda one: one.rate),
            published=published if "NOINDEX" in names else (),
            logy=True,
            **axes,
        )
        for words, names in _groups(grid)
    ]
    found = [
        Plot("", f"Table 3 as a picture, at scale {scale:g}; published figures are of 2005", plots.draw(rates, "exp1"))
    ]
    if "AGILE" in grid.names():
        reference = {point: grid.rate("AGILE", point) for point in UP}
        ours: list[Line] = [
            (name, UP, [grid.rate(name, point) / reference[point] for point in UP])
            for name in [*PAPER, *BLOCKS]
            if name in grid.names()
        ]
        theirs = [
            (name, UP, [a / b for a, b in zip(values, TABLE_3["AGILE"], strict=True)])
            for name, values in TABLE_3.items()
            if name != "AGILE"
        ]
        panel = Panel(
            "Throughput, AGILE = 1", ylabel="throughput / AGILE's", lines=ours, published=theirs, logy=True, **axes
        )
        caption = (
            "Figure 11: throughput normalised to AGILE, each of ours to our AGILE, each published one to the paper's"
        )
        found.append(Plot("-normalised", caption, plots.draw([panel], "exp1-normalised", 4.2)))
    counted = [
        Panel(title, ylabel="per message", lines=lines, logy=True, **axes)
        for title, counter in (("Index updates", "index_updates"), ("Profiles to postfilter", "postfiltered"))
        if (lines := group_lines(grid, [*PAPER, *BLOCKS], lambda one, c=counter: one.counts.get(c) or None))  # type: ignore[misc]
        and any(value is not None for _, _, values in lines for value in values)
    ]
    if counted:
        caption = "Tables 4 and 5 as pictures, per message; a contender without any is not drawn"
        found.append(Plot("-counts", caption, plots.draw(counted, "exp1-counts")))
    return found


def _completion(
    setting: Setting,
    grid: Grid,
    claims: list[Claim],
    parameter: str,
    points: list[int],
    known: int,
    xlabel: str,
    number: str,
) -> Findings:
    """Figures 12 and 13: the time for 10,000 messages. The paper prints curves only; Table 3 has one point of each."""

    def seconds(one: Standing) -> float:
        return workload.MESSAGES / one.rate

    paper: dict[str, list[float | None]] = {
        name: [workload.MESSAGES / values[UP.index(FIXED_UP)] if point == known else None for point in points]
        for name, values in TABLE_3.items()
    }
    profiles = profiles_at(setting.scale)
    per_message = workload.updates_per_message(FIXED_UP, profiles)
    note = (
        f"{per_message:,.0f} updates per message (UP = {FIXED_UP:,}). The paper draws this without figures; those at "
        f"{parameter} = {known} follow from its Table 3."
    )
    title = f"Figure {number}: time for 10,000 messages (seconds)"
    published: list[Line] = [(name, points, values) for name, values in paper.items()]
    panels = [
        Panel(
            f"Time for 10,000 messages: {words}",
            xlabel,
            "seconds (less is better)",
            group_lines(grid, names, seconds),
            published if "NOINDEX" in names else (),
            logy=True,
            ticks=points if parameter == "UpdAtt" else (),
        )
        for words, names in _groups(grid)
    ]
    caption = f"Figure {number}, at scale {setting.scale:g}; the published points are those of Table 3"
    return Findings(
        parameters(setting, profiles, **{"UP": FIXED_UP, parameter: points}),
        grid.to_list(),
        [beside(title, grid, seconds, paper, note)],
        claims,
        [Plot("", caption, plots.draw(panels, f"figure-{number}"))],
        notes(setting),
    )
