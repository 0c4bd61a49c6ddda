"""Experiment 4 of the AGILE paper (Section 6.6): a burst of updates, and how each contender adapts to it and back.

1,000 messages at UP = 1, then 1,000 at UP = 1,000, then 3,000 at UP = 1; one log per 100 messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from . import agile_workload as workload
from . import plots
from .agile import NOISE, notes, parameters, profiles_at
from .contenders import AUTO, BLOCKS, COST, OTHER_POLICIES, POLICIES, chosen
from .experiment import ORDER, SIZE, Claim, Findings, Judge, NotMeasured, Plot, Quantity, Setting, Table
from .plots import Line, Panel
from .race import COUNTERS, Lap, Race, rounded

PHASES: Final = ((1_000, 1), (1_000, 1_000), (3_000, 1))
"""Messages, and UP."""
BATCH: Final = 100
WARM: Final = 500
START, STOP, END = 1_000, 2_000, 5_000
"""Messages at which the burst starts and stops, and the last."""
TABLE_6: Final = {
    "NOINDEX": 18.0,
    "EAGER": 8.8,
    "GBU": 12.15,
    AUTO: 39.8,
    "AGILE fixed(10)": 30.25,
    "AGILE fixed(100)": 36.7,
}
STRETCHES: Final = {
    "before": (0, START),
    "burst, first half": (START, 1_500),
    "burst, second half": (1_500, STOP),
    "the 500 after": (STOP, 2_500),
    "the last 1,000": (4_000, END),
    "all 5,000": (0, END),
}
CURVES: Final = ("AGILE", AUTO, COST, "blocks")
"""Whose adaptation is drawn."""


class Course:
    """The laps of every contender, one per 100 messages."""

    def __init__(self) -> None:
        self.laps: dict[str, list[Lap]] = {}

    def rate(self, name: str, first: int = 0, stop: int = END) -> float:
        """Messages per second between two messages of the course."""
        laps = self.laps.get(name)
        if laps is None:
            raise NotMeasured(f"{name} was not measured")
        part = laps[first // BATCH : stop // BATCH]
        return sum(lap.messages for lap in part) / sum(lap.seconds for lap in part)

    def middles(self) -> list[float]:
        """The message in the middle of each batch."""
        return [BATCH * (k + 0.5) for k in range(END // BATCH)]


def burst(setting: Setting) -> Findings:
    """Experiment 4."""
    plots.needed()
    contenders, profiles = chosen(setting), profiles_at(setting.scale)
    total = (WARM + END) // BATCH
    setting.progress(0, total, "loading")
    race = Race(contenders, workload.World(profiles, setting.seed, digits=workload.DIGITS))
    for k in range(WARM // BATCH):
        setting.progress(k, total, "warm-up")
        race.play(BATCH, workload.updates_per_message(PHASES[0][1], profiles))
    course = Course()
    course.laps = {name: [] for name in contenders}
    finished = WARM // BATCH
    for messages, up in PHASES:
        for _ in range(messages // BATCH):
            setting.progress(finished, total, f"UP = {up:,}")
            for name, lap in race.play(BATCH, workload.updates_per_message(up, profiles)).items():
                course.laps[name].append(lap)
            finished += 1
    phases = [{"messages": messages, "UP": up} for messages, up in PHASES]
    given = parameters(setting, profiles, UP="1; 1,000 in the burst", phases=phases, batch=BATCH)
    del given["seconds per contender and point"]
    return Findings(
        given,
        [_entry(name, laps) for name, laps in course.laps.items()],
        _tables(course),
        _claims(course, setting.scale),
        _plots(course),
        [notes(setting)[0], *notes(setting)[2:]],
    )


def _entry(name: str, laps: Sequence[Lap]) -> dict[str, Any]:
    return {
        "contender": name,
        "messages": sum(lap.messages for lap in laps),
        "updates": sum(lap.updates for lap in laps),
        "seconds": rounded(sum(lap.seconds for lap in laps)),
        "batches": [
            {
                "messages per second": rounded(lap.messages / lap.seconds),
                **{counter: lap.counts[counter] for counter in COUNTERS if counter in lap.counts},
            }
            for lap in laps
        ],
    }


def _tables(course: Course) -> list[Table]:
    names = [*course.laps, *(name for name in TABLE_6 if name not in course.laps)]
    average: list[list[Any]] = [
        [name, course.rate(name) if name in course.laps else None, TABLE_6.get(name)] for name in names
    ]
    stretches: list[list[Any]] = [
        [name, *(course.rate(name, *stretch) for stretch in STRETCHES.values())] for name in course.laps
    ]
    return [
        Table("Table 6: average throughput (messages per second)", ["", "ours", "paper"], average),
        Table("The course in stretches (messages per second)", ["", *STRETCHES], stretches),
    ]


# -- claims ----------------------------------------------------------------------------------------------------


def _claims(course: Course, scale: float) -> list[Claim]:
    judge = Judge(scale)

    def rate(name: str, what: str, share: float = 1.0, stretch: tuple[int, int] = (0, END)) -> Quantity:
        text = f"{name}, {what}" if share == 1 else f"{share:g} × {name}, {what}"
        return Quantity(text, lambda: share * course.rate(name, *stretch))

    speed: dict[str, Any] = {"unit": "msg/s"}
    for other in ("NOINDEX", "EAGER", "GBU"):
        judge.at_least(
            f"AGILE (auto) is faster than {other} over the whole course (Table 6)",
            rate(AUTO, "average"),
            rate(other, "average"),
            scale=ORDER,
            **speed,
        )
    judge.at_least(
        "in the burst AGILE (auto) comes close to NOINDEX once it has adjusted (10 % for noise)",
        rate(AUTO, "second half of the burst", stretch=(1_500, STOP)),
        rate("NOINDEX", "second half of the burst", 0.9, (1_500, STOP)),
        scale=SIZE,
        **speed,
    )
    judge.at_least(
        "AGILE (auto) becomes faster again after the burst: its last 1,000 messages beat the 500 right after it",
        rate(AUTO, "last 1,000 messages", stretch=(4_000, END)),
        rate(AUTO, "the 500 after the burst", stretch=(STOP, 2_500)),
        scale=ORDER,
        **speed,
    )
    judge.at_least(
        "AGILE (auto) recovers after the burst: its last 1,000 messages run at 80 % of the speed before it",
        rate(AUTO, "last 1,000 messages", stretch=(4_000, END)),
        rate(AUTO, "before the burst", 0.8, (0, START)),
        scale=SIZE,
        today="false positives are dear beside the rest of a message, and C = 3,000 waits for as many as in 2005",
        **speed,
    )
    judge.at_least(
        "policy cost recovers: its last 1,000 messages run at 80 % of the speed of EAGER, whose index is always exact",
        rate(COST, "last 1,000 messages", stretch=(4_000, END)),
        rate("EAGER", "last 1,000 messages", 0.8, (4_000, END)),
        scale=ORDER,
        whose="tamis",
        **speed,
    )
    for factor, words in ((NOISE, "is at least as good as"), (1.2, "is 1.2 × as fast over the burst as")):
        judge.at_least(
            f"policy cost {words} the best of the paper's policies (average of the whole course)",
            rate(COST, "average"),
            Quantity(
                f"{factor:g} × the best of always, fixed, auto",
                lambda factor=factor: factor * max(course.rate(name) for name in OTHER_POLICIES),  # type: ignore[misc]
            ),
            scale=ORDER if factor == NOISE else SIZE,
            whose="tamis",
            **speed,
        )
    return judge.claims


# -- plots -----------------------------------------------------------------------------------------------------


def _plots(course: Course) -> list[Plot]:
    spans = [(START, STOP, "burst: UP = 1,000")]

    def lines(names: Iterable[str], value: Callable[[Lap], float | None]) -> list[Line]:
        kept = [name for name in dict.fromkeys(names) if name in course.laps]
        return [(name, course.middles(), [value(lap) for lap in course.laps[name]]) for name in kept]

    def speed(lap: Lap) -> float:
        return lap.messages / lap.seconds

    def panel(
        title: str, names: Iterable[str], value: Callable[[Lap], float | None], unit: str, zero: bool = False
    ) -> Panel | None:
        drawn = lines(names, value)
        if not any(y is not None for _, _, values in drawn for y in values):
            return None
        return Panel(title, "message", unit, drawn, logy=True, spans=spans, markers=False, zero=zero)

    unit = "messages per second"
    four = ["NOINDEX", "EAGER", "GBU", AUTO, *BLOCKS]
    rest = [name for name in course.laps if name not in four and name not in POLICIES and name != "AGILE"]
    pictures = [
        ("", "Figure 14: throughput per 100 messages; AGILE deescalates by auto", "Throughput", four, speed, unit),
        (
            "-policies",
            "Figure 15: deescalation policies on skip lists",
            "Policies",
            [*OTHER_POLICIES, COST],
            speed,
            unit,
        ),
        ("-indexes", "AGILE on other indexes", "Other indexes", ["AGILE", *rest, *BLOCKS], speed, unit),
    ]
    found = []
    for suffix, caption, title, names, value, label in pictures:
        if suffix and not (set(names) - {"AGILE", "blocks"}) & set(course.laps):
            continue
        one = panel(title, names, value, label)
        if one is not None:
            found.append(Plot(suffix, caption, plots.draw([one], f"burst{suffix}", 4.2)))
    adapting = [
        one
        for counter, title in (
            ("escalations", "Escalations"),
            ("deescalations", "Deescalations"),
            ("false_positives", "False positives"),
        )
        if (
            one := panel(
                title,
                CURVES,
                lambda lap, c=counter: lap.counts[c] / lap.messages if c in lap.counts else None,  # type: ignore[misc]
                "per message",
                zero=True,
            )
        )
    ]
    if adapting:
        caption = "How the indexes adapt: what updates make inexact, what messages make exact again, and its price"
        found.append(Plot("-adaptation", caption, plots.draw(adapting, "burst-adaptation", 2.9)))
    return found
