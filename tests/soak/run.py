"""The long random runs: exactness of every configuration, drift of large populations, mutated profile texts.

Every task is a seed; a failure prints the command that repeats it. A worker process that dies or hangs is a failure,
too. Exit code 0 only when nothing differed.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import drift
import exactness
import language
from exactness import CONFIGURATIONS, Report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVENTS, DRIFT, TEXTS = 1_000_000, 1_000_000, 10_000_000
WORLD, POPULATION, BATCH = 5_000, 60_000, 25_000  # events of one world, of one population; texts of one task
HANGS = 1_200  # seconds after which a task counts as hanging
CROWD = 50  # failures that end a part


class Part(NamedTuple):
    """One sort of tasks: what it counts, the task, its size, and how much is to be done by all tasks together."""

    name: str
    unit: str
    task: Callable[[int, int], Report]
    size: int
    total: int


def guarded(task: Callable[[int, int], Report], seed: int, size: int) -> Report:
    """A task in a worker; the process dies with all stacks printed when the task hangs."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    try:
        return task(seed, size)
    finally:
        faulthandler.cancel_dump_traceback_later()


def carry_out(part: Part, first: int, jobs: int, bar: Progress) -> tuple[Report, float]:
    """Tasks until the total is done, or too much failed, on ``jobs`` processes; a pool that broke is replaced."""
    start, total = time.perf_counter(), Report()
    task = bar.add_task(part.name, total=part.total, failures="")
    seeds = itertools.count(first)
    context = multiprocessing.get_context("spawn")  # a forked copy of a process that has run kernels is not safe

    def tell(known: int) -> None:
        for failure in total.failures[known:]:
            bar.console.print(failure, markup=False, highlight=False, soft_wrap=True)
        failures = f"{len(total.failures)} failures" if total.failures else ""
        bar.update(task, completed=total.events, failures=failures)

    while wanted(part, total):
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            feed(pool, jobs, part, seeds, total, tell)
    return total, time.perf_counter() - start


def wanted(part: Part, total: Report) -> bool:
    """Whether there is more to do."""
    return total.events < part.total and len(total.failures) < CROWD


def feed(
    pool: ProcessPoolExecutor, jobs: int, part: Part, seeds: Iterator[int], total: Report, tell: Callable[[int], None]
) -> None:
    """Keeps the processes busy until nothing is left to do, or until one of them dies: then its tasks are failures."""
    waiting: dict[Future[Report], int] = {}
    while True:
        while len(waiting) < jobs and wanted(part, total):
            seed = next(seeds)
            waiting[pool.submit(guarded, part.task, seed, part.size)] = seed
        if not waiting:
            return
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            seed, known = waiting.pop(future), len(total.failures)
            try:
                add(total, future.result())
            except BrokenProcessPool:
                suspects = sorted([seed, *waiting.values()])
                total.failures.append(f"{part.name}: a process died or hung; one of the seeds {suspects}")
                tell(known)
                return
            except Exception as error:
                total.failures.append(f"{part.name}, seed {seed}: {type(error).__name__}: {error}")
            tell(known)


def add(total: Report, more: Report) -> None:
    """Sums up; of facts the largest counts."""
    total.events += more.events
    total.messages += more.messages
    total.matches += more.matches
    total.restarts += more.restarts
    total.failures += more.failures
    for name, value in more.facts.items():
        total.facts[name] = max(total.facts.get(name, 0), value)


def repeat(task: Callable[[int, int], Report], seeds: Iterable[int], size: int, console: Console) -> int:
    """Single tasks in this process."""
    failures = 0
    for seed in seeds:
        report = task(seed, size)
        failures += len(report.failures)
        console.print(
            f"seed {seed}: {report.events:,} events, {report.matches:,} matches, {len(report.failures)} failures"
        )
        for failure in report.failures:
            console.print(failure, markup=False, highlight=False, soft_wrap=True)
    return failures


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--events", type=int, default=EVENTS, help=f"per configuration, small worlds (default: {EVENTS:,})"
    )
    parser.add_argument(
        "--drifting", type=int, default=DRIFT, help=f"per configuration, populations (default: {DRIFT:,})"
    )
    parser.add_argument("--texts", type=int, default=TEXTS, help=f"mutated profile texts (default: {TEXTS:,})")
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument("--only", choices=("exactness", "drift", "language"), help="one part")
    parser.add_argument("--seed", type=int, help="first seed (default: a new one each time, printed)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: all cores)")
    parser.add_argument("--world", type=int, action="append", metavar="SEED", help="repeat one small world")
    parser.add_argument("--drift", type=int, action="append", metavar="SEED", help="repeat one population")
    parser.add_argument("--language", type=int, action="append", metavar="SEED", help="repeat one batch of texts")
    parser.add_argument("--shrink", choices=tuple(CONFIGURATIONS), help="with --world: the shortest failing story")
    options = parser.parse_args()
    console = Console()
    if options.world and options.shrink:
        console.print(exactness.shrink(options.world[0], WORLD, options.shrink), markup=False, soft_wrap=True)
        return
    if options.world or options.drift or options.language:
        failures = repeat(exactness.run, options.world or (), WORLD, console)
        failures += repeat(drift.run, options.drift or (), POPULATION, console)
        failures += repeat(language.run, options.language or (), BATCH, console)
        raise SystemExit(bool(failures))
    if options.quick:
        options.events, options.drifting, options.texts = 10_000, 60_000, 150_000
    seed = random.SystemRandom().randrange(1_000_000) * 1_000 if options.seed is None else options.seed
    parts = [
        Part("exactness", "events per configuration", exactness.run, WORLD, options.events),
        Part("drift", "events per configuration", drift.run, POPULATION, options.drifting),
        Part("language", "texts", language.run, BATCH, options.texts),
    ]
    console.print(f"first seed {seed}; configurations: {', '.join(CONFIGURATIONS)}; {options.jobs} processes")
    columns = (
        *(TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        *(TimeRemainingColumn(), TextColumn("[red]{task.fields[failures]}")),
    )
    results = {}
    with Progress(*columns, console=console) as bar:
        for part in parts:
            if options.only in (None, part.name) and part.total:
                results[part] = carry_out(part, seed, options.jobs, bar)
    raise SystemExit(show(results, console))


def show(results: dict[Part, tuple[Report, float]], console: Console) -> int:
    """The summary; 1 when anything failed."""
    failed = 0
    for part, (report, seconds) in results.items():
        if part.name == "drift" and (never := [name for name in drift.HAPPENED if not report.facts.get(name)]):
            report.failures.append(f"drift: never happened, so nothing was tested: {', '.join(never)}")
            console.print(report.failures[-1], markup=False)
        failed += len(report.failures)
        counts = {"messages": report.messages, "matches": report.matches, "restarts": report.restarts, **report.facts}
        numbers = [
            f"{report.events:,} {part.unit}",
            *(f"{value:,.0f} {name}" for name, value in counts.items() if value),
        ]
        style = "red" if report.failures else "green"
        verdict = f"[{style}]{len(report.failures)} failures[/]"
        console.print(f"{part.name}: {verdict}; {', '.join(numbers)}; {seconds / 60:.1f} minutes", highlight=False)
    return int(bool(failed))


if __name__ == "__main__":
    main()
