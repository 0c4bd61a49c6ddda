"""The long random runs: exactness of every configuration, drift of large populations, mutated profile texts.

Every task is a seed; a failure prints the command that repeats it. A worker process that dies or hangs is a failure,
too. A run that is ended early (Ctrl-C, SIGTERM) leaves no process behind, reports what it did, and prints the command
that goes on from there. Exit code 0 only when everything was done and nothing differed.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import drift
import exactness
import language
from exactness import CONFIGURATIONS, Report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from configurations import BATCHED

EVENTS, CALM, DRIFT, TEXTS = 1_000_000, 1_000_000, 1_000_000, 10_000_000
WORLD, POPULATION, BATCH = 5_000, 60_000, 25_000  # events of one world, of one population; texts of one task
HANGS = 1_200  # seconds after which a task counts as hanging
CROWD = 50  # failures that end a part
EVERY = 60.0  # seconds between two lines about the progress where there is no terminal
ENDED = 130  # exit code of a run that was ended early


class Part(NamedTuple):
    """One sort of tasks: what it counts, the option that says how much, the task, its size, and all to be done."""

    name: str
    unit: str
    option: str
    task: Callable[[int, int], Report]
    size: int
    total: int


class Progress:
    """How far a part is: a bar on a terminal, else a line a minute."""

    def __init__(self, part: Part, console: Console) -> None:
        self._part, self._console = part, console
        self._start = self._told = time.monotonic()
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(*COLUMNS, console=console)
            self._task = self._bar.add_task(part.name, total=part.total, failures="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, total: Report, known: int, seed: int) -> None:
        """Prints the failures that were not known before, and how far it is; ``seed`` is the first not done."""
        for failure in total.failures[known:]:
            say(self._console, failure)
        failures = f"{len(total.failures)} failures"
        if self._bar is not None:
            self._bar.update(self._task, completed=total.events, failures=failures if total.failures else "")
        elif (now := time.monotonic()) - self._told >= EVERY:
            self._told, seconds = now, now - self._start
            rate = total.events / seconds
            left = f"{max(0, self._part.total - total.events) / rate / 60:,.0f} minutes left, " if rate else ""
            say(
                self._console,
                f"{self._part.name}: {total.events:,} of {self._part.total:,} {self._part.unit}, {rate:,.0f}/s, "
                f"{seconds / 60:,.0f} minutes gone, {left}{failures}, at seed {seed}",
            )


COLUMNS = (
    *(TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
    *(TimeRemainingColumn(), TextColumn("[red]{task.fields[failures]}")),
)


def say(console: Console, text: str) -> None:
    """Prints a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def settle_in() -> None:
    """A new worker: a Ctrl-C is the parent's business, and without a parent there is nobody to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def outlive() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=outlive, daemon=True).start()


def guarded(task: Callable[[int, int], Report], seed: int, size: int) -> Report:
    """A task in a worker; the process dies with all stacks printed when the task hangs."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    try:
        return task(seed, size)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Errand:
    """One part on its way: what was done, how long it took, and the first seed that is not done."""

    def __init__(self, part: Part, first: int) -> None:
        self.part, self.total, self.seconds = part, Report(), 0.0
        self._seeds = itertools.count(first)
        self._waiting: dict[Future[Report], int] = {}
        self._next = first

    @property
    def seed(self) -> int:
        """The first seed whose task is not done."""
        return min(self._waiting.values(), default=self._next)

    @property
    def wanted(self) -> bool:
        """Whether there is more to do."""
        return self.total.events < self.part.total and len(self.total.failures) < CROWD

    def carry_out(self, jobs: int, console: Console) -> None:
        """Tasks until all is done, or too much failed, on ``jobs`` processes; a pool that broke is replaced."""
        start = time.perf_counter()
        context = multiprocessing.get_context("spawn")  # a forked copy of a process that has run kernels is not safe
        try:
            with Progress(self.part, console) as progress:
                while self.wanted:
                    pool = ProcessPoolExecutor(jobs, context, settle_in)
                    try:
                        self._feed(pool, jobs, progress)
                    except BaseException:
                        for process in multiprocessing.active_children():
                            process.kill()
                        with suppress(RuntimeError):  # ended while the pool's thread was about to start
                            pool.shutdown()
                        raise
                    pool.shutdown()
        finally:
            self.seconds = time.perf_counter() - start

    def _feed(self, pool: ProcessPoolExecutor, jobs: int, progress: Progress) -> None:
        """Keeps the processes busy until nothing is left to do, or until one of them dies: then its tasks failed."""
        total, waiting = self.total, self._waiting
        while True:
            while len(waiting) < jobs and self.wanted:
                seed = next(self._seeds)
                waiting[pool.submit(guarded, self.part.task, seed, self.part.size)] = seed
                self._next = seed + 1
            if not waiting:
                return
            known = len(total.failures)
            for future in wait(waiting, EVERY, FIRST_COMPLETED).done:
                try:
                    add(total, future.result())
                except BrokenProcessPool:
                    suspects = sorted(waiting.values())
                    total.failures.append(f"{self.part.name}: a process died or hung; one of the seeds {suspects}")
                    waiting.clear()
                    progress.tell(total, known, self.seed)
                    return
                except Exception as error:
                    total.failures.append(f"{self.part.name}, seed {waiting[future]}: {type(error).__name__}: {error}")
                del waiting[future]
            progress.tell(total, known, self.seed)


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
            say(console, failure)
    return failures


def ended(*signal: Any) -> None:
    """SIGTERM is a Ctrl-C from afar."""
    raise KeyboardInterrupt


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--events", type=int, default=EVENTS, help=f"per configuration, small worlds (default: {EVENTS:,})"
    )
    parser.add_argument(
        "--calm", type=int, default=CALM, help=f"per batching configuration, worlds without effects (default: {CALM:,})"
    )
    parser.add_argument(
        "--drifting", type=int, default=DRIFT, help=f"per configuration, populations (default: {DRIFT:,})"
    )
    parser.add_argument("--texts", type=int, default=TEXTS, help=f"mutated profile texts (default: {TEXTS:,})")
    parser.add_argument("--quick", action="store_true", help="about a minute")
    parser.add_argument(
        "--configurations",
        metavar="PARTS",
        default="",
        help="those whose names have one of these parts, such as skiplist,eager (default: all)",
    )
    parser.add_argument("--only", choices=("exactness", "batches", "drift", "language"), help="one part")
    parser.add_argument("--seed", type=int, help="first seed (default: a new one each time, printed)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: all cores)")
    parser.add_argument("--world", type=int, action="append", metavar="SEED", help="repeat one small world")
    parser.add_argument("--batches", type=int, action="append", metavar="SEED", help="repeat one world without effects")
    parser.add_argument("--drift", type=int, action="append", metavar="SEED", help="repeat one population")
    parser.add_argument("--language", type=int, action="append", metavar="SEED", help="repeat one batch of texts")
    parser.add_argument("--shrink", choices=tuple(CONFIGURATIONS), help="with --world: the shortest failing story")
    options = parser.parse_args()
    wanted = options.configurations.split(",")
    names = tuple(name for name in CONFIGURATIONS if any(part.strip() in name for part in wanted))
    if not names:
        parser.error(f"--configurations: {options.configurations!r} is in none of {', '.join(CONFIGURATIONS)}")
    worlds, populations = partial(exactness.run, names=names), partial(drift.run, names=names)
    batching = tuple(name for name in names if name in BATCHED)
    calm = partial(exactness.run, names=batching, calm=True)
    console = Console()
    if options.world and options.shrink:
        console.print(exactness.shrink(options.world[0], WORLD, options.shrink), markup=False, soft_wrap=True)
        return
    if options.world or options.batches or options.drift or options.language:
        failures = repeat(worlds, options.world or (), WORLD, console)
        failures += repeat(calm, options.batches or (), WORLD, console)
        failures += repeat(populations, options.drift or (), POPULATION, console)
        failures += repeat(language.run, options.language or (), BATCH, console)
        raise SystemExit(bool(failures))
    if options.quick:
        options.events, options.calm, options.drifting, options.texts = 10_000, 10_000, 60_000, 150_000
    seed = random.SystemRandom().randrange(1_000_000) * 1_000 if options.seed is None else options.seed
    parts = [
        Part("exactness", "events per configuration", "--events", worlds, WORLD, options.events),
        Part("batches", "events per configuration", "--calm", calm, WORLD, options.calm if batching else 0),
        Part("drift", "events per configuration", "--drifting", populations, POPULATION, options.drifting),
        Part("language", "texts", "--texts", language.run, BATCH, options.texts),
    ]
    errands = [Errand(part, seed) for part in parts if options.only in (None, part.name) and part.total > 0]
    say(console, f"first seed {seed}; configurations: {', '.join(names)}; {options.jobs} processes")
    signal.signal(signal.SIGTERM, ended)
    early = False
    try:
        for errand in errands:
            errand.carry_out(options.jobs, console)
    except KeyboardInterrupt:
        early = True
        some = f" --configurations '{options.configurations}'" if options.configurations else ""
        say(console, f"ended early{rest(errands, parts, some)}")
    failures = show([errand for errand in errands if errand.seconds], early or "agile" not in names, console)
    raise SystemExit(1 if failures else ENDED if early else 0)


def rest(errands: Iterable[Errand], parts: Iterable[Part], some: str) -> str:
    """The command that does what is left, if any, from the first seed of the part at hand that is not done."""
    open_ones = [errand for errand in errands if errand.wanted]
    if not open_ones:
        return ""
    left = {part.option: 0 for part in parts}
    left |= {errand.part.option: errand.part.total - errand.total.events for errand in open_ones}
    seed, counts = open_ones[0].seed, " ".join(f"{option} {count}" for option, count in left.items())
    return f"; go on with: python tests/soak/run.py --seed {seed} {counts}{some}"


def show(errands: Iterable[Errand], partly: bool, console: Console) -> int:
    """The summary; returns how much failed. What has to happen in a whole run need not in one that is partly done."""
    failed = 0
    for part, report, seconds in ((errand.part, errand.total, errand.seconds) for errand in errands):
        never = [name for name in drift.HAPPENED if not report.facts.get(name)]
        if part.name == "drift" and never and not partly:
            report.failures.append(f"drift: never happened, so nothing was tested: {', '.join(never)}")
            say(console, report.failures[-1])
        failed += len(report.failures)
        counts = {"messages": report.messages, "matches": report.matches, "restarts": report.restarts, **report.facts}
        numbers = [
            f"{report.events:,} {part.unit}",
            *(f"{value:,.0f} {name}" for name, value in counts.items() if value),
        ]
        style = "red" if report.failures else "green"
        verdict = f"[{style}]{len(report.failures)} failures[/]"
        text = f"{part.name}: {verdict}; {', '.join(numbers)}; {seconds / 60:.1f} minutes"
        console.print(text, highlight=False, soft_wrap=True)
    return failed


if __name__ == "__main__":
    main()
