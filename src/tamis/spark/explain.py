"""``tamis run --explain``: what a pipeline would do, in words, without starting Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from . import sinks, sources
from .control import read_qos
from .pipeline import Pipeline, checkpoint_of
from .stream import milliseconds


def explain(pipeline: Pipeline) -> str:
    """The plan: sources, order, shards, state, sinks, and what exactly-once rests on."""
    settings = pipeline.settings
    parts: list[tuple[str, list[str]]] = [
        ("sources", [f"{name:<9} {_source(one)}" for name, one in pipeline.sources.items()]),
        ("initial", list(_initial(pipeline))),
        ("order", list(_order(pipeline))),
        ("rules", list(_rules(pipeline))),
        ("shards", list(_shards(pipeline))),
        ("state", list(_state(pipeline))),
        ("sinks", [f"{name:<9} {_sink(one)}" for name, one in pipeline.sinks.items()]),
        ("exactly once", list(_once(pipeline))),
        ("metrics", list(_metrics(pipeline))),
    ]
    text = [f"{settings.name} ({pipeline.path})"]
    for title, lines in parts:
        if lines:
            text += ["", title, *(f"  {line}" for line in lines)]
    return "\n".join(text)


def hidden(url: str) -> str:
    """An address without its password."""
    return re.sub(r"(//[^:/@]*):[^@/]*@", r"\1:***@", url)


def _source(one: Any) -> str:
    place = f"topic {one.topic} of {one.servers}" if isinstance(one, sources.KafkaSource) else one.path
    limit = ""
    if one.limit:
        limit = f", {one.limit} {'records' if isinstance(one, sources.KafkaSource) else 'files'} a micro-batch"
    return f"{one.format:<7} {place}{limit}\n            {one.schema or 'columns as the files have them'}"


def _initial(pipeline: Pipeline) -> Iterator[str]:
    for name, one in pipeline.initial.items():
        yield f"{name:<9} {_source(one.source)}"
        if one.profile is not None:
            yield f"          one profile per row: {one.profile}" + (f" -> {one.on_match}" if one.on_match else "")
    if pipeline.initial:
        yield "read when the checkpoint is new, and only then"


def _order(pipeline: Pipeline) -> Iterator[str]:
    settings = pipeline.settings
    if "events" in pipeline.sources:
        yield f"one stream, ordered by {settings.order!r}; every event is replayed in the micro-batch it came in"
    elif not pipeline.waits:
        yield f"by {settings.order!r} within a micro-batch; nothing waits"
    else:
        yield f"by {settings.order!r} over {', '.join(pipeline.sources)}"
        yield (
            f"an event waits until the others have passed its place, or were silent for "
            f"{milliseconds(settings.wait) / 1000:g} s; what comes later still is replayed on arrival and counted"
        )
        yield f"at most {settings.hold_limit:,} events wait; beyond that the oldest go on as if their wait had ended"
    policy = read_qos(settings.qos, settings.consistency)
    if policy is not None:
        yield f"a micro-batch is worked under {policy}; what is shed is rejected with the reason"
    ids = settings.message_id or settings.order
    yield f"a message is known in the output by {ids if isinstance(ids, str) else ', '.join(ids)}"


def _rules(pipeline: Pipeline) -> Iterator[str]:
    for track in pipeline.tracks:
        when = f" when {track['when']}" if track.get("when") else ""
        yield f"track     {track['context']}: {track['set']}{when}"
    for name, kind in pipeline.schema.items():
        yield f"kind      {name} is {kind}"


def _shards(pipeline: Pipeline) -> Iterator[str]:
    settings = pipeline.settings
    yield f"{settings.shards} on {pipeline.spark.master or 'local[*], unless spark-submit says otherwise'}"
    yield "profiles and updates go to the shard of their context, messages to every shard"
    if settings.trigger is not None:
        yield f"a micro-batch every {milliseconds(settings.trigger) / 1000:g} s"


def _state(pipeline: Pipeline) -> Iterator[str]:
    place = pipeline.settings.checkpoint
    before = checkpoint_of(place)
    yield f"Spark's state store (RocksDB with a changelog) in the checkpoint {place}"
    if before is None:
        yield "the checkpoint is new, or not on this machine's disk: a new one starts with the initial tables"
        return
    yield f"goes on after micro-batch {before.finished}" if before.finished >= 0 else "no micro-batch was finished yet"
    if before.started > before.finished:
        yield f"micro-batch {before.started} was begun and will be repeated with the same events"


def _sink(one: Any) -> str:
    if isinstance(one, sinks.Parquet):
        return f"parquet {one.path}"
    if isinstance(one, sinks.Kafka):
        return f"kafka   topic {one.topic} of {one.servers}"
    if isinstance(one, sinks.Table):
        return f"table   {one.table} of {hidden(str(one.url))}"
    return "console" if isinstance(one, sinks.Console) else f"function {one.function}"


def _once(pipeline: Pipeline) -> Iterator[str]:
    yield "sources: the checkpoint records what each micro-batch reads, and a repeated one reads the same again;"
    yield "  files must stay unchanged, and topics keep their records, until their micro-batch is finished"
    yield "state: a micro-batch's changes are committed with it, or not at all"
    for name, one in pipeline.sinks.items():
        yield f"{name}: {_promise(one)}"


def _promise(one: Any) -> str:
    if isinstance(one, sinks.Parquet):
        return "one folder per micro-batch, renamed into place; a folder that is there is not written again"
    if isinstance(one, sinks.Kafka):
        if not one.exactly_once:
            return "AT LEAST ONCE: exactly_once = false, a repeated micro-batch is sent again"
        return "one transaction per micro-batch with its number; consumers must read with read_committed"
    if isinstance(one, sinks.Table):
        return f"one transaction per micro-batch that also records its number in {sinks.BOOK}"
    if isinstance(one, sinks.Console):
        return "AT LEAST ONCE: a repeated micro-batch is printed again"
    return "as good as the function: it must make a repeated batch number count for nothing"


def _metrics(pipeline: Pipeline) -> Iterator[str]:
    if pipeline.metrics is not None:
        port = pipeline.metrics.port or "a free port, printed at the start"
        yield f"Prometheus at {pipeline.metrics.host}, {f'port {port}' if pipeline.metrics.port else port}"
