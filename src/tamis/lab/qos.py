"""The combined burst of the QoS paper (Section 5.3, Figures 4 and 5), and bursts of messages or updates alone (5.4).

The machine is slowed down until the burst is 2.95 times what it can do one event at a time, as the paper's was: its
traditional processing was 19.5 s behind after 10 s. Times, bounds and, at scale 1, rates are the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tamis.flow import Batch, Batching, Flow, Hybrid, Shed, Traditional

from . import plots
from . import qos_workload as workload
from .agile import profiles_at
from .contenders import BLOCKS, PAPER, make
from .experiment import COUNTS, ORDER, Claim, Findings, Judge, NotMeasured, Plot, Quantity, Setting, Table
from .plots import Panel
from .qos_clock import Contender, Drive, Stopwatch, batched, drive, load_of, plain, processing, true_matches
from .qos_workload import Phase, Stage

BOUND: Final = 5.0
LOAD: Final = 2.95
"""Burst work per second of the burst: the paper's traditional processing ended a burst of 10 s 19.5 s late."""
QUIET: Final = 0.8
"""The most that the quiet phase may load the slowed machine; a burst is then less than 2.95 times its capacity."""
SLOW: Final = 36.0
"""About how slow the machine is made at most where the burst is made heavier: the slower it is, the more the fixed part
of a log counts; the faster, the more events there are."""
USUAL: Final = 0.02  # scale below which a run only tries whether all works: its bursts may be as much lighter
ROOMY: Final = 0.1
"""The least scale of a burst of updates that tells more than whether all works: what overloads a smaller filter with
updates alone is a tenth of a second of real work, and most of that is the index adapting to them."""
SAMPLE: Final = 2.0  # seconds of a phase that the calibration works, unless it works the whole
TIMES: Final = 2  # drives at most, where even batches are too slow and so the pace of the machine decides
BINS: Final = 0.5  # seconds per point of a plot

AGILE: Final = PAPER["AGILE"]
EXACT: Final = {**AGILE, "batching": Batching("MiniB/PIx", 10_000, least=1_000)}
"""The same index, and what arrives in one log is matched in exact batches where that pays."""
FIGURE_4: Final[dict[str, float]] = {
    "Traditional Agile": 19.5,
    "Shed messages": 5.0,
    "Shed both": 5.0,
    "Shed updates": 19.0,
    "Batching": 5.6,
}
FIGURE_5: Final[dict[str, str]] = {
    "Traditional Agile": "0",
    "Shed messages": "7,500 messages shed",
    "Shed both": "6,900 messages shed",
    "Batching": "2,609 FP, 2,706 FN",
}


def contenders(bound: float = BOUND) -> dict[str, Contender]:
    """Everybody; all but two work on the same index. Of ours two match in batches, too, not only take them."""
    return {
        "Traditional Eager": Contender(PAPER["EAGER"], Traditional()),
        "Traditional Agile": Contender(AGILE, Traditional()),
        "Shed messages": Contender(AGILE, Shed(bound, "messages")),
        "Shed updates": Contender(AGILE, Shed(bound, "updates")),
        "Shed both": Contender(AGILE, Shed(bound, "both")),
        "Batching": Contender(AGILE, Batch("no outdated state")),
        "Exact batching": Contender(EXACT, Batch()),
        "Exact, blocks": Contender(BLOCKS["blocks"], Batch()),
        "Hybrid": Contender(EXACT, Hybrid(bound)),
    }


# -- running ---------------------------------------------------------------------------------------------------


class Room:
    """A stage, its serial truth, and how slow the machine is made; runs contenders and keeps what they did."""

    def __init__(
        self,
        setting: Setting,
        phases: Sequence[Phase],
        overload: float | None = None,
        more_updates: bool = False,
        slow: float = SLOW,
        like: Room | None = None,
    ) -> None:
        """``like``: as slow a machine, and as much heavier a burst, as there."""
        plots.needed()
        self.given, self.slow = phases, slow * max(1.0, USUAL / setting.scale)
        self.setting, self.profiles = setting, profiles_at(setting.scale)
        self.phases = workload.scaled(phases, setting.scale)
        self.stage = Stage(self.profiles, setting.seed, self.phases)
        self.slowness = self.factor = 1.0
        self.loads: dict[str, float] = {}
        if like is None:
            self._calibrate(overload, more_updates)
        else:
            self.slowness, self.factor, self.loads = like.slowness, like.factor, like.loads
            self._restage(like.factor, like.factor)
        self.truth = true_matches(self.stage, BLOCKS["blocks"])
        self.drives: dict[str, Drive] = {}

    def _calibrate(self, overload: float | None, more_updates: bool) -> None:
        """How slow the machine is to be made, and how many times heavier a burst that it would not notice."""
        quiet, burst = load_of(self.stage, AGILE, SAMPLE)
        self.slowness = min(LOAD / burst, QUIET / quiet)
        self.loads["quiet phase"] = quiet
        self.loads["burst, one at a time"] = burst
        if overload is not None:
            self._overload(overload)
            self.loads["burst, one at a time"] *= self.factor
        elif more_updates:
            self._more_updates()
        self.loads = {name: load * self.slowness for name, load in self.loads.items()}

    def _restage(self, messages: float, updates: float) -> None:
        """A burst so many times heavier."""
        quiet, burst, *rest = workload.scaled(self.given, self.setting.scale)
        heavy = Phase(burst.seconds, burst.messages * messages, burst.updates * updates)
        self.phases = (quiet, heavy, *rest)
        self.stage = Stage(self.profiles, self.setting.seed, self.phases)

    def _overload(self, overload: float) -> None:
        """Makes the burst too heavy for batches on a machine that is not very slow, and the machine then as slow as it
        takes: what a heavier burst costs has to be measured."""
        for _ in range(2):  # the first time, what a log costs in itself still counts
            self.factor *= max(1.0, overload / (batched(self.stage, AGILE, SAMPLE) * min(self.slowness, self.slow)))
            self._restage(self.factor, self.factor)
        self.loads["burst, batched"] = batched(self.stage, AGILE, np.inf)
        self.slowness = overload / self.loads["burst, batched"]

    def _more_updates(self) -> None:
        """As many updates as it takes, on a machine that is not so slow that the fixed part of a log is all that
        counts."""
        for _ in range(2):
            self.factor *= max(1.0, LOAD / (self.loads["burst, one at a time"] * min(self.slowness, self.slow)))
            self._restage(1.0, self.factor)
            _, self.loads["burst, one at a time"] = load_of(self.stage, AGILE, SAMPLE)
        self.slowness = min(LOAD / self.loads["burst, one at a time"], QUIET / self.loads["quiet phase"])

    @property
    def small(self) -> float:
        """Seconds of a small log: one message, or the updates between two, while all is quiet."""
        return self.loads["quiet phase"] / (2 * self.phases[0].messages)

    def run(self, name: str, one: Contender) -> Drive:
        """One contender over the whole course. Where even batches are too slow everybody drives again, unless the
        first drive made no errors, and the drive with the fewest errors counts, of those the least late: a disturbed
        machine only makes them more and later, and there by far more than it was disturbed."""
        drives: list[Drive] = []
        times = TIMES if self.factor > 1 else 1
        while len(drives) < times and all(did.errors for did in drives):
            self.stage.course.chunk.first = -1  # every flow numbers the events itself
            filter = self.stage.load(make(name, one.options))
            flow = Flow(policy=one.policy, seed=self.setting.seed)
            watch = Stopwatch()
            did = drive(self.stage, flow, processing(filter, self.slowness, watch), self.truth)
            drives.append(replace(did, interrupted=watch.interrupted))
        self.drives[name] = min(drives, key=lambda did: (did.errors, did.mean))
        return self.drives[name]

    def run_all(self, chosen: Mapping[str, Contender], before: int = 0, after: int = 0) -> None:
        """All of them, or those that the run is for; ``before`` and ``after`` are steps of the experiment elsewhere."""
        wanted = self.setting.contenders
        if wanted is not None and set(wanted) & set(chosen):
            chosen = {name: one for name, one in chosen.items() if name in wanted}
        for k, (name, one) in enumerate(chosen.items()):
            self.setting.progress(before + k, before + len(chosen) + after, name)
            self.run(name, one)

    def get(self, name: str) -> Drive:
        """What a contender did."""
        if name not in self.drives:
            raise NotMeasured(f"{name} was not measured")
        return self.drives[name]

    def tail(self, name: str) -> int:
        """Errors in messages that arrived when the burst and a bound were over."""
        late = self.stage.course.sent > self.stage.course.burst[1] + BOUND
        one = self.get(name)
        return int(one.negatives[late].sum() + one.positives[late].sum())

    def parameters(self, **more: Any) -> dict[str, Any]:
        """Table 1, and how the machine was slowed down."""
        phases = [
            {"seconds": one.seconds, "MR": round(one.messages, 1), "UR": round(one.updates, 1)} for one in self.phases
        ]
        return {
            "P": self.profiles,
            "Att": 8,
            "AttI": 2,
            "phases": phases,
            "MD": f"Zipf ({workload.SKEW:g}) over {workload.DISTINCT:,} values",
            "UpdAtt": "25 %",
            "Lat": BOUND,
            "slowness": round(self.slowness, 2),
            "load": {name: round(value, 3) for name, value in self.loads.items()},
            "factor": round(self.factor, 2),
            **more,
        }

    def entries(self) -> list[dict[str, Any]]:
        """The figures of all contenders."""
        return [
            {"contender": name, **plain(one), "errors after it": self.tail(name)} for name, one in self.drives.items()
        ]


# -- tables and pictures ---------------------------------------------------------------------------------------


def table_of(room: Room, title: str, published: bool = False) -> Table:
    """One row per contender."""
    head = ["", "max, s", "mean, s", "jitter", "FN", "FP", "shed M", "shed U", "after", "queue"]
    head += ["paper", "paper's errors"] if published else []
    rows: list[list[Any]] = []
    for name, one in room.drives.items():
        row: list[Any] = [name, one.worst, one.mean, one.jitter, int(one.negatives.sum()), int(one.positives.sum())]
        row += [one.shed, one.balance["update"]["shed"], room.tail(name), int(one.queued.max())]
        rows.append([*row, FIGURE_4.get(name), FIGURE_5.get(name)] if published else row)
    note = (
        f"{len(room.stage.course.sent):,} messages and {len(room.stage.course.chunk) - len(room.stage.course.sent):,} "
        f"updates. Latency: the longest and the mean; jitter: 99 % are below. FN, FP: pairs of message and profile, of "
        f"{len(room.truth):,} true matches; after: errors when the burst and the bound are over. Queue: the longest."
    )
    return Table(title, head, rows, note)


def over_time(room: Room, value: NDArray[np.float64], how: str) -> tuple[list[float], list[float | None]]:
    """A figure per message over the time of arrival: the maximum, or the sum per second, of each half second."""
    sent, end = room.stage.course.sent, float(room.stage.course.starts[-1])
    bins = np.minimum((sent / BINS).astype(np.int64), int(end / BINS) - 1)
    places = [(k + 0.5) * BINS for k in range(int(end / BINS))]
    found: list[float | None] = []
    for k in range(len(places)):
        mine = value[bins == k]
        mine = mine[np.isfinite(mine)]
        found.append((float(mine.max()) if how == "max" else float(mine.sum() / BINS)) if len(mine) else None)
    return places, found


def figure_4(room: Room, names: Sequence[str], salt: str) -> Plot:
    """Latency over time."""
    begin, end = room.stage.course.burst
    lines = [(name, *over_time(room, room.get(name).latency, "max")) for name in names]
    panel = Panel(
        "Latency", "arrival of the message, s", "latency, s", lines, spans=[(begin, end, "burst")], markers=False
    )
    low = [line for line in lines if room.get(line[0]).worst <= BOUND * 1.1]
    near = Panel(
        "The same, without those beyond the bound", panel.xlabel, "latency, s", low, spans=panel.spans, markers=False
    )
    drawn = [panel, near] if 0 < len(low) < len(lines) else [panel]
    return Plot("", "Figure 4: latency, the longest of each half second", plots.draw(drawn, f"{salt}-latency", 3.4))


def figure_5(room: Room, names: Sequence[str], salt: str) -> Plot:
    """Errors over time."""
    spans = [(*room.stage.course.burst, "burst")]
    panels = [
        Panel(
            title,
            "arrival of the message, s",
            "per second",
            [(n, *over_time(room, getattr(room.get(n), part).astype(np.float64), "sum")) for n in names],
            logy=True,
            zero=True,
            spans=spans,
            markers=False,
        )
        for title, part in (("False negatives", "negatives"), ("False positives", "positives"))
    ]
    return Plot("-errors", "Figure 5: errors per second", plots.draw(panels, f"{salt}-errors", 3.0))


NOTES: Final = (
    "Virtual time: every log is processed and timed, and the clock moves by that time a factor; input, output and the "
    "control of the queues cost none, as in the paper.",
    "Errors are counted against serial processing of the same events, match by match.",
)

ENLARGED: Final = (
    f"Run at scale {ROOMY:g}: in a smaller filter a burst of updates is over before its index has adapted to them."
)


# -- claims ----------------------------------------------------------------------------------------------------


class Claims:
    """The claims of a room, in the paper's words or ours."""

    def __init__(self, room: Room) -> None:
        self.room, self.judge = room, Judge(room.setting.scale)

    def latency(self, name: str, share: float = 1.0) -> Quantity:
        """The longest latency of a contender, or a multiple of it."""
        what = f"{name}, longest latency"
        return Quantity(what if share == 1 else f"{share:g} × {what}", lambda: share * self.room.get(name).worst)

    def errors(self, name: str, share: float = 1.0) -> Quantity:
        """All errors of a contender, or a share of them."""
        what = f"{name}, errors"
        return Quantity(what if share == 1 else f"{share:g} × {what}", lambda: share * self.room.get(name).errors)

    def no_errors(self, *names: str, whose: Any = "paper") -> None:
        """Neither false negatives nor false positives."""
        for name in names:
            self.judge.at_most(f"{name} makes no errors", self.errors(name), number(0), scale=COUNTS, whose=whose)

    def holds(self, *names: str, bound: float = BOUND, whose: Any = "paper") -> None:
        """No message is later than the bound and what one event costs."""
        for name in names:
            self.judge.at_most(
                f"{name} holds its bound of {bound:g} s: no message is later than that and one event's cost",
                self.latency(name),
                self.late_at(name, bound),
                scale=COUNTS,
                unit="s",
                whose=whose,
            )

    def late_at(self, name: str, bound: float) -> Quantity:
        """The bound and the most that one event, or the updates between two messages, cost."""
        return Quantity("bound and the longest single log", lambda: bound + self.room.get(name).longest)

    def breaks(self, name: str, words: str, scale: float = COUNTS) -> None:
        """The bound of the others is not held."""
        self.judge.at_least(words, self.latency(name), number(BOUND, "the bound"), scale=scale, unit="s")

    def half(self, name: str, *others: str) -> None:
        """At most half the errors of shedding."""
        for other in others:
            self.judge.at_most(
                f"{name} makes at most half the errors of {other.lower()}",
                self.errors(name),
                self.errors(other, 0.5),
                scale=COUNTS,
                whose="tamis",
            )

    def hard(self, name: str, bound: float = BOUND) -> None:
        """A bound that no message breaks."""
        self.judge.at_most(
            f"{name} holds a hard bound of {bound:g} s",
            self.latency(name),
            number(bound, "the bound"),
            scale=COUNTS,
            unit="s",
            whose="tamis",
        )

    def exact(self, name: str = "Exact batching") -> None:
        """Exact batching has the latency of batching and no errors."""
        self.no_errors(name, whose="tamis")
        self.judge.at_most(
            f"{name.lower()} has the latency of batching (half as much again, and a tenth of a second, for noise)",
            Quantity(f"{name}, mean latency", lambda: self.room.get(name).mean),
            Quantity("1.5 × Batching + 0.1 s", lambda: 1.5 * self.room.get("Batching").mean + 0.1),
            scale=COUNTS,
            unit="s",
            whose="tamis",
        )

    def afterwards(self, name: str, words: str, none: bool = True) -> None:
        """Errors when the burst is over."""
        found = Quantity(f"{name}, errors after the burst", lambda: self.room.tail(name))
        if none:
            self.judge.at_most(
                words, found, Quantity("0.01 × its errors", lambda: 0.01 * self.room.get(name).errors), scale=COUNTS
            )
        else:
            self.judge.at_least(words, found, number(1), scale=COUNTS)


def number(value: float, what: str = "") -> Quantity:
    """A constant."""
    return Quantity(what or f"{value:g}", lambda: value)


# -- the experiments -------------------------------------------------------------------------------------------


def combined(setting: Setting) -> Findings:
    """Figures 4 and 5."""
    room = Room(setting, workload.COMBINED)
    room.run_all(contenders())
    claims = Claims(room)
    claims.no_errors("Traditional Eager", "Traditional Agile")
    claims.breaks("Traditional Agile", "traditional processing has no bound: it is later than the bound of the others")
    claims.holds("Shed messages", "Shed both")
    claims.breaks("Shed updates", "shedding updates cannot hold the bound, because messages alone are too many", ORDER)
    claims.judge.at_most(
        "shedding messages makes no false positives",
        Quantity("Shed messages, false positives", lambda: int(room.get("Shed messages").positives.sum())),
        number(0),
        scale=COUNTS,
    )
    claims.afterwards("Shed messages", "shedding messages leaves no errors behind")
    claims.afterwards("Shed both", "where updates are shed, errors go on after the burst", none=False)
    batching_claims(claims)
    claims.exact()
    claims.no_errors("Exact, blocks", whose="tamis")
    claims.hard("Hybrid")
    claims.half("Hybrid", "Shed messages", "Shed both")
    return findings(room, claims.judge.claims, "Combined burst", "combined", published=True)


def batching_claims(claims: Claims) -> None:
    """Batching is bounded by far less than traditional processing, and its errors end with the burst."""
    claims.judge.at_most(
        "batching levels the burst: at most half the latency of traditional processing",
        claims.latency("Batching"),
        claims.latency("Traditional Agile", 0.5),
        scale=COUNTS,
        unit="s",
    )
    claims.judge.at_most(
        "batching makes fewer errors than shedding", claims.errors("Batching"), claims.errors("Shed both"), scale=COUNTS
    )
    late = Quantity("Batching, errors after the burst", lambda: claims.room.tail("Batching"))
    quiet = Quantity("1 in 100 messages", lambda: 0.01 * len(claims.room.stage.course.sent))
    claims.judge.at_most("batching makes (almost) no errors after the burst", late, quiet, scale=COUNTS)


def message_burst(setting: Setting) -> Findings:
    """A burst of messages alone."""
    room = Room(setting, workload.MESSAGES)
    room.run_all(
        _some("Traditional Agile", "Shed messages", "Shed updates", "Shed both", "Batching", "Exact batching", "Hybrid")
    )
    claims = Claims(room)
    claims.no_errors("Traditional Agile")
    claims.breaks("Traditional Agile", "traditional processing has no bound")
    claims.holds("Shed messages", "Shed both")
    claims.breaks("Shed updates", "shedding updates does not help against a burst of messages")
    batching_claims(claims)
    claims.exact()
    claims.hard("Hybrid")
    claims.half("Hybrid", "Shed messages", "Shed both")
    return findings(room, claims.judge.claims, "Burst of messages", "messages")


def update_burst(setting: Setting) -> Findings:
    """A burst of updates alone."""
    larger = USUAL <= setting.scale < ROOMY
    room = Room(replace(setting, scale=ROOMY) if larger else setting, workload.UPDATES, more_updates=True)
    chosen = _some(
        "Traditional Agile", "Shed messages", "Shed updates", "Shed both", "Batching", "Exact batching", "Hybrid"
    )
    # Nothing of a long log of updates is shared: it only keeps its messages waiting, and more come meanwhile.
    room.run_all({**chosen, "Limited exact batching": Contender(EXACT, Batch(limit=BOUND / 4))})
    claims = Claims(room)
    claims.no_errors("Traditional Agile")
    claims.breaks("Traditional Agile", "traditional processing has no bound")
    claims.holds("Shed messages", "Shed both")
    claims.judge.at_most(
        "shedding updates helps against a burst of updates: it is not later than traditional processing",
        claims.latency("Shed updates"),
        claims.latency("Traditional Agile"),
        scale=ORDER,
        unit="s",
    )
    claims.no_errors("Exact batching", whose="tamis")
    claims.exact("Limited exact batching")
    claims.hard("Hybrid")
    claims.half("Hybrid", "Shed updates", "Shed both")
    found = findings(room, claims.judge.claims, "Burst of updates", "updates")
    return replace(found, notes=(*found.notes, ENLARGED)) if larger else found


def _some(*names: str) -> dict[str, Contender]:
    return {name: one for name, one in contenders().items() if name in names}


def findings(room: Room, claims: Sequence[Claim], title: str, salt: str, published: bool = False) -> Findings:
    """Table, both figures and claims of a room."""
    wrong = [name for name in room.drives if room.get(name).errors]
    pictures = [figure_4(room, list(room.drives), salt)]
    if wrong:
        pictures.append(figure_5(room, wrong, salt))
    table = table_of(room, f"{title} (bound {BOUND:g} s)", published)
    return Findings(room.parameters(), room.entries(), [table], claims, pictures, NOTES)
