"""Five times what a filter can do, for long: the balance, the bound, the way back, and memory.

First under a virtual clock (a machine so slow that it does 100 messages a second, ten minutes), then in real time.
Every sample checks the balance; the bound on latency holds but for what one log took longer than estimated; ten
seconds after the overload the flow is quiet again; the queue and the memory stay bounded. Exit code 0 only when all of
that holds.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from tamis import EventLog, Filter, Matches
from tamis.flow import Chunk, Flow, Hybrid, Policy, Shed, Work
from tamis.lab.qos_clock import Stopwatch
from tamis.lab.qos_workload import Phase, Skewed

PROFILES, RATIO, OVER = 2_000, 10, 5.0
QUIET, RECOVERY = 0.2, 10.0  # share of the capacity after the overload; seconds within which it must be quiet again
PIECE = 1.0  # seconds of events that are made at once
GROWTH = 300e6  # bytes that a flow may need

POLICIES: dict[str, Callable[[float], Policy]] = {
    "shed messages": lambda bound: Shed(bound, "messages"),
    "shed both": Shed,
    "hybrid": Hybrid,
}


@dataclass
class Report:
    """What a run did."""

    bound: float
    samples: int = 0
    worst: float = 0.0
    overrun: float = 0.0
    queue: int = 0
    late_after: float = 0.0
    memory: float = 0.0
    came: int = 0
    delivered: int = 0
    problems: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        """What does not hold."""
        if self.worst > self.bound + max(self.overrun, 0.0):
            self.problems.append(
                f"latency {self.worst:.3f} s beyond {self.bound:g} s and the overrun {self.overrun:.3f} s"
            )
        if self.late_after > self.bound / 4:
            self.problems.append(f"{RECOVERY:g} s after the overload a message still took {self.late_after:.3f} s")
        if self.memory > GROWTH:
            self.problems.append(f"memory grew by {self.memory / 1e6:,.0f} MB")
        return self.problems


class Source:
    """Events piece by piece, at a rate of messages with their updates, made when they are due."""

    def __init__(self, world: Skewed) -> None:
        self.world = world

    def piece(self, start: float, rate: float) -> Chunk:
        """The events of the next second."""
        course = self.world.course([Phase(PIECE, rate, RATIO * rate)])
        return Chunk(course.chunk.log, course.chunk.arrival + start)


def capacity_of(filter: Filter, source: Source) -> float:
    """Messages a second that one-at-a-time work does here."""
    watch, spent = Stopwatch(), 0.0
    log = source.piece(0.0, 300.0).log
    filter.process(log)
    chunk = source.piece(0.0, 300.0)
    flow = Flow(policy=Shed(1e6, "messages"))
    flow.offer_chunk(chunk, PIECE)
    while (work := flow.take(PIECE)) is not None:
        matches, took = watch.timed(filter, work.log)
        spent += took
        flow.done(work, matches, PIECE, seconds=took)
    return 300.0 / spent


def run(policy: Policy, bound: float, seconds: float, slow: float | None, seed: int) -> Report:
    """Overload for so many seconds, then quiet; ``slow`` is the virtual capacity, None is real time."""
    world = Skewed(PROFILES, seed)
    filter = Filter(strategy="agile", index="skiplist", policy="fixed(1000)")
    world.subscribe(filter)
    source = Source(world)
    capacity = capacity_of(filter, source)
    slowness = capacity / slow if slow is not None else 1.0
    rate = OVER * capacity / slowness
    flow, report, watch = Flow(policy=policy, seed=seed), Report(bound), Stopwatch()
    process = psutil.Process()
    began = time.perf_counter()
    gc.collect()
    before = process.memory_info().rss
    now, made, sent = 0.0, 0.0, 0
    chunk = Chunk(EventLog(), 0.0)
    end = seconds + 2 * RECOVERY
    samples = -1
    while True:
        if slow is None:
            now = time.perf_counter() - began
        while made <= now and made < end and sent == len(chunk):
            chunk, sent = source.piece(made, rate if made < seconds else QUIET * rate / OVER), 0
            made += PIECE
        until = chunk.until(now)
        if until > sent:
            flow.offer_chunk(chunk, now, sent, until)
            sent = until
        if int(now * 10) != samples:
            samples = int(now * 10)
            flow.check()
            report.samples += 1
            report.queue = max(report.queue, flow.queued)
            report.memory = max(report.memory, process.memory_info().rss - before)
        work = flow.take(now)
        if work is None:
            if made >= end and sent == len(chunk):
                break
            coming = float(chunk.arrival[sent]) if sent < len(chunk) else made
            if slow is not None:
                now = max(now, coming)
            else:
                time.sleep(max(0.0, min(coming - now, 0.01)))
            continue
        now = _work(flow, filter, watch, work, now, slowness, began if slow is None else None, report, seconds)
    flow.check()
    balance = flow.balance()["message"]
    report.came, report.delivered = balance["in"], balance["delivered"]
    report.worst = flow.latency.max
    if balance["in"] != balance["delivered"] + balance["shed"] + balance["rejected"] or balance["queued"]:
        report.problems.append(f"the balance does not close: {balance}")
    return report


def _work(
    flow: Flow,
    filter: Filter,
    watch: Stopwatch,
    work: Work,
    now: float,
    slowness: float,
    began: float | None,
    report: Report,
    over: float,
) -> float:
    matches: Matches
    if began is None:
        matches, took = watch.timed(filter, work.log)
        took *= slowness
        now += took
    else:
        matches = filter.process(work.log)
        took = time.perf_counter() - began - now
        now += took
    report.overrun = max(report.overrun, took - work.expected)
    flow.done(work, matches, now)
    quiet = work.arrival[work.arrival > over + RECOVERY]
    if len(quiet):
        report.late_after = max(report.late_after, float(now - quiet.min()))
    return now


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual", type=float, default=600.0, help="seconds of virtual overload (default: 600)")
    parser.add_argument("--real", type=float, default=120.0, help="seconds of real overload (default: 120)")
    parser.add_argument("--bound", type=float, default=2.0, help="the bound on latency (default: 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(POLICIES), help="one policy")
    options = parser.parse_args()
    wrong = 0
    for name, make in POLICIES.items():
        if options.only not in (None, name):
            continue
        for what, seconds, slow in (("virtual", options.virtual, 100.0), ("real", options.real, None)):
            if not seconds:
                continue
            start = time.perf_counter()
            report = run(make(options.bound), options.bound, seconds, slow, options.seed)
            problems = report.judge()
            wrong += len(problems)
            print(
                f"{name}, {seconds:g} s {what}: {report.came:,} messages came, {report.delivered:,} delivered,",
                f"longest latency {report.worst:.3f} s of {report.bound:g} s, after it {report.late_after:.3f} s,",
                f"queue at most {report.queue:,}, {report.memory / 1e6:,.0f} MB,",
                f"balance held at {report.samples:,} samples, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
            for problem in problems:
                print(f"  FAILED: {problem}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
