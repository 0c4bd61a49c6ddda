"""The virtual clock of the QoS experiments (Section 5.1 of the paper), and what a contender did under it.

Every event has its designated arrival. When the filter is ready it starts with what has arrived, or at the next
arrival; what it takes is measured, without interruptions by other work of the machine, and that moves the clock.
Control, input and output cost no virtual time, as in the paper; what control takes is reported. The machine is slowed
down by a factor: the paper's rates overload it then as they did the paper's machine. Guarantees that the balance of
events holds at every look.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tamis import EventLog, Filter, Matches
from tamis.flow import Batch, Costs, Flow, Policy, Traditional, Work

from .contenders import Options, make
from .experiment import Inexact
from .qos_workload import Stage

Process = Callable[[Work], tuple[Matches, float]]
"""Works a log; gives its matches and the seconds it took."""


@dataclass(frozen=True)
class Contender:
    """A policy in front of a filter of these options."""

    options: Options
    policy: Policy


@dataclass(frozen=True, eq=False)
class Drive:
    """What a contender did, by message of the course: ``latency`` is NaN where a message was shed."""

    latency: NDArray[np.float64]
    negatives: NDArray[np.int64]
    positives: NDArray[np.int64]
    at: NDArray[np.float64]
    """When the queue was looked at."""
    queued: NDArray[np.int64]
    balance: Mapping[str, Mapping[str, int]]
    jitter: float
    longest: float
    """The most that one log of one message, or of the updates between two, took."""
    overrun: float
    """The most by which a log took longer than the flow had estimated."""
    seconds: float
    control: float
    logs: int
    ended: float
    """When the last event was done."""
    interrupted: int = 0
    """Logs in which the machine did something else."""

    @property
    def worst(self) -> float:
        """The longest latency."""
        return float(np.nanmax(self.latency)) if np.isfinite(self.latency).any() else 0.0

    @property
    def mean(self) -> float:
        """The mean latency."""
        return float(np.nanmean(self.latency)) if self.shed < len(self.latency) else 0.0

    @property
    def errors(self) -> int:
        """False negatives and false positives."""
        return int(self.negatives.sum() + self.positives.sum())

    @property
    def shed(self) -> int:
        """Messages that were shed."""
        return int(np.isnan(self.latency).sum())


SUSPICIOUS: Final = 3.0
"""How many times longer than usual a log takes that was interrupted by other work of the machine."""
HITCH: Final = 0.0005
"""Seconds that an interruption takes at least."""
KNOWN: Final = 50
"""Logs after which a stopwatch knows what is usual."""


class Stopwatch:
    """The seconds of the processor that a filter works, without those in which the machine did something else.

    A virtual machine counts what other machines take of its processor as its own time. So a log that took suspiciously
    long for its messages and updates counts as the usual one; ``interrupted`` is how many did.
    """

    def __init__(self) -> None:
        self._usual = Costs()
        self.interrupted = 0

    def timed(self, filter: Filter, log: EventLog) -> tuple[Matches, float]:
        """Matches and seconds of a log."""
        begun = time.thread_time()
        matches = filter.process(log)
        took = time.thread_time() - begun
        messages = len(log.message_rows)
        usual = self._usual.seconds(messages, len(log) - messages)
        if self._usual.logs > KNOWN and took > SUSPICIOUS * usual + HITCH:
            self.interrupted += 1
            return matches, usual
        self._usual.learn(messages, len(log) - messages, took)
        return matches, took


def processing(filter: Filter, slowness: float, watch: Stopwatch) -> Process:
    """A filter on a machine that is so many times slower than this one."""

    def process(work: Work) -> tuple[Matches, float]:
        matches, took = watch.timed(filter, work.log)
        return matches, took * slowness

    return process


def drive(stage: Stage, flow: Flow, process: Process, truth: NDArray[np.int64] | None, every: int = 50) -> Drive:
    """The whole course through a flow. ``truth`` holds the sorted keys of all right matches, or None: not compared."""
    chunk = stage.course.chunk
    finished = np.full(len(stage.course.sent), np.nan)
    found: list[NDArray[np.int64]] = []
    at, queued = [], []
    now = busy = longest = overrun = 0.0
    sent = step = 0
    began = time.perf_counter()
    real = 0.0
    gc.disable()
    try:
        while sent < len(chunk) or flow.queued:
            until = chunk.until(now)
            if until > sent:
                flow.offer_chunk(chunk, now, sent, until)
                sent = until
            if step % every == 0 or flow.queued > every:
                at.append(now)
                queued.append(flow.queued)
            if step % every == 0:
                flow.check()
            work = flow.take(now)
            if work is None:
                coming = float(chunk.arrival[sent]) if sent < len(chunk) else np.inf
                now = min(coming, flow.wake) if np.isfinite(min(coming, flow.wake)) else now
                continue
            step += 1
            start = time.perf_counter()
            matches, seconds = process(work)
            real += time.perf_counter() - start
            now += seconds
            busy += seconds
            overrun = max(overrun, seconds - work.expected)
            flow.done(work, matches, now)
            if work.messages <= 1:
                longest = max(longest, seconds)
            finished[stage.numbers(work.log.message_rows)] = now
            if truth is not None and len(matches):
                ids = matches.to_arrow().column("profile").to_numpy()
                found.append(stage.numbers(matches.message) * stage.profiles + ids)
    finally:
        gc.enable()
    flow.check()
    negatives, positives = _errors(stage, found, truth)
    return Drive(
        latency=finished - stage.course.sent,
        negatives=negatives,
        positives=positives,
        at=np.array(at),
        queued=np.array(queued, np.int64),
        balance=flow.balance(),
        jitter=flow.jitter.quantile(0.99),
        longest=longest,
        overrun=overrun,
        seconds=busy,
        control=(time.perf_counter() - began - real) / max(1, step),
        logs=step,
        ended=now,
    )


def _errors(
    stage: Stage, found: list[NDArray[np.int64]], truth: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """False negatives and false positives of every message."""
    count = len(stage.course.sent)
    if truth is None:
        return np.zeros(count, np.int64), np.zeros(count, np.int64)
    keys = np.sort(np.concatenate([np.zeros(0, np.int64), *found]))
    missing = np.setdiff1d(truth, keys, assume_unique=True) // stage.profiles
    extra = np.setdiff1d(keys, truth, assume_unique=True) // stage.profiles
    return np.bincount(missing, minlength=count), np.bincount(extra, minlength=count)


def true_matches(stage: Stage, options: Options) -> NDArray[np.int64]:
    """The matches of serial processing, as sorted numbers of message × profiles + profile."""
    filter = stage.load(make("the serial truth", options))
    matches = filter.process(stage.course.chunk.log)
    if len(matches.rejected):
        raise Inexact(f"the serial truth rejected {matches.rejected[0]}")
    ids = matches.to_arrow().column("profile").to_numpy() if len(matches) else np.zeros(0, np.int64)
    found: NDArray[np.int64] = np.sort(matches.message * stage.profiles + ids)
    return found


REPEATS: Final = 3
"""Calibrations are repeated, and the least counts: the first time memory is cold, and others use the machine."""


def least(measure: Callable[[], NDArray[np.float64]]) -> list[float]:
    """The least of each figure that a measurement gives."""
    found: list[float] = np.min([measure() for _ in range(REPEATS)], axis=0).tolist()
    return found


def load_of(stage: Stage, options: Options, seconds: float) -> tuple[float, float]:
    """The processor seconds per second of the quiet phase and of the burst that one-at-a-time work takes here.

    Measured on filters of their own, on up to so many (virtual) seconds of the quiet phase and on the whole burst: an
    adaptive filter works its end at another cost than its beginning.
    """
    chunk, (burst, end) = stage.course.chunk, stage.course.burst

    def once() -> NDArray[np.float64]:
        filter = stage.load(make("the calibration", options))
        flow = Flow(policy=Traditional())
        chunk.first = -1
        loads = []
        for start, stop in ((max(0.0, burst - seconds), burst), (burst, end)):
            low, high = chunk.until(start), chunk.until(stop)
            flow.offer_chunk(chunk, stop, low, high)
            spent = 0.0
            process = processing(filter, 1.0, Stopwatch())
            while (work := flow.take(stop)) is not None:
                matches, took = process(work)
                spent += took
                flow.done(work, matches, stop, seconds=took)
            loads.append(spent / (stop - start))
        return np.array(loads)

    quiet, busy = least(once)
    return quiet, busy


LOG: Final = 0.5
"""Seconds of events in one log when the speed of batches is measured."""


def batched(stage: Stage, options: Options, seconds: float) -> float:
    """Processor seconds per second of the first seconds of the burst when it comes in large logs."""
    chunk, (start, end) = stage.course.chunk, stage.course.burst
    stop = min(end, start + seconds)

    def once() -> NDArray[np.float64]:
        filter = stage.load(make("the calibration", options))
        flow, watch, spent = Flow(policy=Batch()), Stopwatch(), 0.0
        chunk.first = -1
        low = chunk.until(start)
        for until in np.arange(start + LOG, stop + LOG / 2, LOG).tolist():
            high = chunk.until(until)
            flow.offer_chunk(chunk, until, low, high)
            low = high
            while (work := flow.take(until)) is not None:
                matches, took = watch.timed(filter, work.log)
                flow.done(work, matches, until, seconds=took)
                spent += took
        return np.array([spent])

    return least(once)[0] / (stop - start)


def plain(one: Drive) -> dict[str, Any]:
    """The figures of a drive, for JSON."""
    return {
        "messages": len(one.latency),
        "seconds": round(one.seconds, 4),
        "logs": one.logs,
        "longest latency": round(one.worst, 4),
        "mean latency": round(one.mean, 4),
        "jitter, 99 %": round(one.jitter, 4),
        "false negatives": int(one.negatives.sum()),
        "false positives": int(one.positives.sum()),
        "shed messages": one.shed,
        "shed updates": one.balance["update"]["shed"],
        "longest queue": int(one.queued.max()),
        "longest log of one message": round(one.longest, 5),
        "longest overrun of a log": round(one.overrun, 5),
        "interrupted logs": one.interrupted,
        "control, microseconds per log": round(one.control * 1e6, 1),
        "balance": {sort: dict(parts) for sort, parts in one.balance.items()},
    }
