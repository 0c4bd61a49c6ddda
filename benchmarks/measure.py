"""What every benchmark shares: timing in turns, figures with targets, progress, the command line.

Guarantees that the two sides of a comparison run in one process, on one thread, in turns, so that a busy neighbour
slows both; that a median comes with its spread; and that nothing is drawn on the screen while the clock runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

pa.set_cpu_count(1)


class Inexact(Exception):
    """The filter and the baseline gave different answers: no figure counts."""


# -- timing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Seconds per piece of work (a message, an update, a call), one entry per repeat."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """Pieces per second."""
        return 1 / self.median

    @property
    def spread(self) -> float:
        """Half the distance between the slowest and the fastest repeat, as a share of the median."""
        return _spread(self.seconds)


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / 2 / statistics.median(values)


def in_turns(
    sides: Mapping[str, tuple[Callable[[], Any], int]], repeats: int, after: Callable[[], None] = lambda: None
) -> dict[str, Times]:
    """Times each side once per repeat, in turns; a side is a call and the number of pieces it does."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, (call, pieces) in sides.items():
            seconds[name].append(clock(call)[1] / pieces)
        after()
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def clock(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds; the garbage collector waits meanwhile."""
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        answer = call()
        return answer, time.perf_counter() - start
    finally:
        gc.enable()


def ratio(slow: Times, fast: Times) -> tuple[float, float]:
    """How many times faster ``fast`` is: the median over the repeats, each repeat against its neighbour; the spread."""
    each = [a / b for a, b in zip(slow.seconds, fast.seconds, strict=True)]
    return statistics.median(each), _spread(each)


# -- figures ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One number of a benchmark, and what it should be."""

    what: str
    value: float
    unit: str
    target: float | None = None
    more_is_better: bool = True
    spread: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.more_is_better else self.value <= self.target


@dataclass
class Result:
    """What a benchmark hands over: figures for the verdict, ``data`` for the plots, ``exact`` for trust."""

    name: str
    title: str
    workload: str
    scale: float
    figures: list[Figure] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    exact: str = ""

    def add(self, what: str, value: float, unit: str, target: float | None = None, **more: Any) -> None:
        """Adds a figure."""
        self.figures.append(Figure(what, float(value), unit, target, **more))

    def compare(self, what: str, slow: Times, fast: Times, target: float | None, note: str = "") -> None:
        """Adds how many times faster one side is."""
        value, spread = ratio(slow, fast)
        self.add(what, value, "×", target, spread=spread, note=note)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        figures = [{**asdict(figure), "met": figure.met} for figure in self.figures]
        return {**asdict(self), "figures": figures, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}


def same(found: Any, expected: Any, where: str) -> None:
    """Raises :class:`Inexact` unless two collections of ids are equal."""
    one, two = sorted(found), sorted(expected)
    if one != two:
        extra, lost = sorted(set(one) - set(two)), sorted(set(two) - set(one))
        raise Inexact(f"{where}: {len(one)} matches instead of {len(two)}; too many {extra[:5]}, missing {lost[:5]}")


# -- the command line ------------------------------------------------------------------------------------------

Advance = Callable[[str], None]


@contextmanager
def progress(title: str, steps: int) -> Iterator[Advance]:
    """A bar; ``advance("what comes next")`` after each step. Drawn only then: a drawing thread disturbs the clock."""
    columns = (TextColumn(f"{title:<8}"), BarColumn(), TextColumn("{task.description:<44}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("starting", total=steps)
        bar.refresh()

        def advance(what: str) -> None:
            bar.update(task, advance=1, description=what)
            bar.refresh()

        yield advance


def main(run: Callable[..., dict[str, Any]]) -> None:
    """The command of one benchmark: ``--scale``, ``--repeats``, ``--json``."""
    parser = argparse.ArgumentParser(description=sys.modules[run.__module__].__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the profiles and messages (default: 1)")
    parser.add_argument("--repeats", type=int, help="repeats per measurement (default: the benchmark's own)")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    options = parser.parse_args()
    try:
        result = run(options.scale, **({"repeats": options.repeats} if options.repeats else {}))
    except Inexact as error:
        raise SystemExit(f"INEXACT: {error}") from None
    if options.json:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    show(result)


def show(result: Mapping[str, Any], console: Console | None = None) -> None:
    """The figures of one benchmark as a table."""
    console = console or Console()
    table = Table("figure", "value", "spread", "target", "verdict", title=result["title"], title_justify="left")
    for figure in result["figures"]:
        table.add_row(*cells(figure, result["scale"]))
    console.print(table)
    for figure in result["figures"]:
        if figure["note"]:
            console.print(f"  {figure['what']}: {figure['note']}", style="dim", highlight=False)
    console.print(f"  {result['workload']}", style="dim", highlight=False)
    console.print(f"  exactness: {result['exact']}\n", style="dim", highlight=False)


def cells(figure: Mapping[str, Any], scale: float) -> tuple[str, str, str, str, str]:
    """One figure for people; targets are judged at full scale only."""
    spread = "" if figure["spread"] is None else f"± {figure['spread']:.0%}"
    if figure["target"] is None:
        return figure["what"], number(figure["value"], figure["unit"]), spread, "", ""
    sign = "≥" if figure["more_is_better"] else "≤"
    verdict = "not judged" if scale < 1 else "met" if figure["met"] else "missed"
    target = f"{sign} {number(figure['target'], figure['unit'])}"
    return figure["what"], number(figure["value"], figure["unit"]), spread, target, verdict


def number(value: float, unit: str) -> str:
    """Three digits where they matter, all of them above a hundred."""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
    return f"{text} {unit}".strip()
