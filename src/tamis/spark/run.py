"""``tamis run``: a declared pipeline from its start to a clean end.

Guarantees that a stop (Ctrl-C, SIGTERM) never cuts a micro-batch: the one that runs is finished and committed, the next
is not begun. What was planned and not begun is repeated by the next run from the checkpoint. Refuses to know what is in
the events.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.live import Live

from tamis.errors import TamisError, UsageError

from . import session
from .jars import jars_in
from .pipeline import Pipeline, checkpoint_of
from .stream import MatchStream, match_stream, milliseconds
from .watch import Endpoint, Lag, Status, line, screen

_POLL: Final = 0.2
_LINES: Final = 10.0
"""Seconds between two lines where there is no terminal."""
_TRIGGER: Final = 500
"""Milliseconds between micro-batches of streams that wait for each other: their timers need empty ones."""


class RunError(TamisError):
    """The pipeline failed while it ran; the text is the innermost reason."""


def run(pipeline: Pipeline, once: bool = False) -> Status:
    """Run until everything that is there has been delivered (``once``), or until it is asked to stop."""
    console = Console(stderr=True)
    stop = Stop()
    status = Status()
    with ExitStack() as stack:
        if pipeline.metrics is not None:
            endpoint = stack.enter_context(_endpoint(pipeline, status))
            console.print(f"metrics at {endpoint.url}", style="dim", highlight=False, soft_wrap=True)
        before = checkpoint_of(pipeline.settings.checkpoint)
        if before is not None:
            console.print(f"going on after batch {before.finished}", style="dim", highlight=False)
        spark = _session(pipeline)
        stack.callback(session.end, spark)
        stack.enter_context(stop.on_signals())  # after Spark's start, which sets a handler that cancels all jobs
        watching = _Watching(pipeline, spark, status, stop, once, console)
        watching.until_end(_start(pipeline, spark, status, stop, once))
    return status


# -- start ---------------------------------------------------------------------------------------------------------


@contextmanager
def _endpoint(pipeline: Pipeline, status: Status) -> Iterator[Endpoint]:
    assert pipeline.metrics is not None
    host, port = pipeline.metrics.host, pipeline.metrics.port
    try:
        endpoint = Endpoint(status, host, port)
    except OSError as error:
        raise UsageError(f"[metrics]: {host} port {port} cannot be used: {error.strerror}") from None
    with endpoint:
        yield endpoint


def _session(pipeline: Pipeline) -> SparkSession:
    spark = pipeline.spark
    master = spark.master
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit says where
        master = "local[*]"
    config = {"spark.ui.showConsoleProgress": "false", "spark.log.level": spark.log}
    if master is not None and master.startswith("local"):
        config |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if spark.jars is not None:
        config["spark.jars"] = ",".join(jars_in(spark.jars))
    given = session.submitted()
    config = {key: value for key, value in config.items() if key not in given or key == "spark.jars"}
    builder = session.builder(master, pipeline.settings.name)
    for key, value in {**config, **spark.config}.items():
        builder = builder.config(key, value)
    try:
        made: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise RunError(f"Spark did not start: {reason(error)}") from error
    return made


def _start(pipeline: Pipeline, spark: SparkSession, status: Status, stop: Stop, once: bool) -> StreamingQuery:
    settings = pipeline.settings
    stream = _stream(pipeline, spark)
    # Streams that wait need timers, and those need micro-batches after the last event: availableNow has none.
    trigger: dict[str, Any] = {}
    if once and not pipeline.waits:
        trigger = {"availableNow": True}
    elif settings.trigger is not None:
        trigger = {"processingTime": f"{milliseconds(settings.trigger)} milliseconds"}
    elif pipeline.waits:
        trigger = {"processingTime": f"{_TRIGGER} milliseconds"}
    outputs: dict[str, Any] = dict(pipeline.sinks)
    outputs["figures"] = _Figures(status, pipeline.sinks.get("figures"))
    first = next(name for name in ("matches", "rejected", "figures") if name in outputs)
    outputs[first] = _Gate(stop, outputs[first])
    try:
        return stream.start(settings.checkpoint, **outputs, trigger=trigger, name=settings.name)
    except PySparkException as error:
        raise RunError(reason(error)) from error


def _stream(pipeline: Pipeline, spark: SparkSession) -> MatchStream:
    frames: dict[str, Any] = {}
    declared = [("sources", name, one) for name, one in pipeline.sources.items()]
    declared += [("initial", name, one.source) for name, one in pipeline.initial.items()]
    for table, name, source in declared:
        try:
            streaming = table == "sources"
            frames[name] = (_placed(source, pipeline.settings.order) if streaming else source).open(spark, streaming)
        except PySparkException as error:
            raise UsageError(f"[{table}.{name}]: {reason(error)}") from error
        except UsageError as error:
            raise UsageError(f"[{table}.{name}]: {error}") from None
    return match_stream(**frames, **pipeline.options())


def _placed(source: Any, order: str) -> Any:
    """A record without a place in the order is malformed: it is rejected where its line or offset is known."""
    if source.schema is None or order in source.required:
        return source
    return replace(source, required=(*source.required, order))


# -- outputs -------------------------------------------------------------------------------------------------------


class _Stopped(Exception):
    """Raised instead of beginning a micro-batch."""


class _Gate:
    """The first output of a micro-batch: once a stop is asked for, no further one begins.

    Nothing of the micro-batch has run when its first output is called, so Spark repeats it from the checkpoint.
    """

    def __init__(self, stop: Stop, sink: Any) -> None:
        self._stop, self._sink = stop, sink

    def __call__(self, frame: DataFrame, batch: int) -> None:
        if self._stop.asked.is_set():
            self._stop.closed.set()
            raise _Stopped(f"batch {batch} is left to the next run")
        self._sink(frame, batch)


class _Figures:
    """The figures of the shards into the status, and to the sink that the pipeline declares for them."""

    def __init__(self, status: Status, sink: Any) -> None:
        self._status, self._sink = status, sink

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = [row.figures for row in frame.collect()]
        if self._sink is not None:
            self._sink(frame, batch)
        self._status.figures(batch, rows)


# -- the run -------------------------------------------------------------------------------------------------------


class Stop:
    """Whether somebody asked for the end, and how urgently."""

    def __init__(self) -> None:
        self.asked, self.now, self.closed = threading.Event(), threading.Event(), threading.Event()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask; a second one insists. Only events are set: the main loop does the rest."""

        def handler(*_: Any) -> None:
            if self.asked.is_set():
                self.now.set()
            self.asked.set()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)


class _Watching:
    """The main loop: numbers from the query to the screen, and the end."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        status: Status,
        stop: Stop,
        once: bool,
        console: Console,
    ) -> None:
        self._pipeline, self._spark, self._status = pipeline, spark, status
        self._stop, self._once, self._console = stop, once, console
        self._quiet = False
        before = checkpoint_of(pipeline.settings.checkpoint)
        # A micro-batch that an earlier run had begun says nothing about what has come since.
        self._repeated = -1 if before is None else before.started
        self._lag = Lag(pipeline.settings.checkpoint)
        self._seen: tuple[int, str] | None = None
        self._said = time.monotonic()

    def until_end(self, query: StreamingQuery) -> None:
        """Returns when the query has ended well; raises :class:`RunError` when it failed."""
        self._query = query
        live: Live | None = None
        if self._console.is_terminal:
            live = Live(self._screen(), console=self._console, auto_refresh=False)
        with live if live is not None else ExitStack():
            while self._query.isActive:
                self._read()
                self._show(live)
                if self._stop.asked.is_set():
                    self._end()
                elif self._once and self._pipeline.waits and self._drained():
                    self._stop.asked.set()
                time.sleep(0.02) if self._stop.asked.is_set() else self._stop.asked.wait(_POLL)
            self._read()
            self._show(live, last=True)
        failure = self._query.exception()
        if failure is not None and not self._stop.closed.is_set() and not self._stop.now.is_set():
            raise RunError(reason(failure))

    def _read(self) -> None:
        last = self._query.lastProgress
        if last is None:
            return
        key = (last["batchId"], last["timestamp"])
        if key == self._seen:
            return
        # More than one batch may have ended since the last look.
        missed = self._seen is None or last["batchId"] > self._seen[0] + 1
        for one in self._query.recentProgress if missed else (last,):
            self._status.report(one)
        self._status.report(last, self._lag.of(last["sources"]))
        self._seen = key

    def _drained(self) -> bool:
        """No source has anything left, and nothing waits."""
        status = self._query.status
        if status["isDataAvailable"] or self._status.held:
            return False
        if self._status.batches == 0:  # nothing at all since the last run
            return self._query.lastProgress is not None or status["message"] == "Waiting for data to arrive"
        return self._status.idle and self._status.batch > self._repeated

    def _end(self) -> None:
        """Stop between two micro-batches; at once when the signal came twice."""
        if not self._quiet:  # a micro-batch that meets the gate is no failure, and Spark would log it as one
            self._spark.sparkContext.setLogLevel("OFF")
            self._quiet = True
        if self._stop.now.is_set() or not self._query.status["isTriggerActive"]:
            self._query.stop()

    # -- the screen --------------------------------------------------------------------------------------------

    def _screen(self, ended: bool = False) -> Any:
        hint = "Ctrl-C stops after this micro-batch"
        if ended:
            hint = "ended"
        elif self._stop.asked.is_set():
            hint = "finishing the micro-batch; Ctrl-C again stops at once"
        return screen(self._status, self._pipeline.settings.name, hint)

    def _show(self, live: Live | None, last: bool = False) -> None:
        if live is not None:
            live.update(self._screen(last), refresh=True)
        elif last or time.monotonic() - self._said > _LINES:
            self._said = time.monotonic()
            self._console.print(line(self._status), highlight=False, soft_wrap=True, markup=False)


def reason(error: BaseException) -> str:
    """The innermost reason in the text of an error of Spark: what tamis said in a worker, else the first line."""
    text = str(error)
    said = re.findall(r"tamis\.errors\.\w+: (.*)", text)
    if said:
        return str(said[-1]).strip()
    python = re.findall(r"(?m)^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", text)
    lines = [one.strip() for one in text.splitlines() if one.strip()]
    first = lines[0] if lines else type(error).__name__
    if python and python[-1][1] not in first:
        return f"{first} ({python[-1][0]}: {python[-1][1].strip()})"
    return first


__all__ = ["RunError", "Status", "Stop", "run"]
