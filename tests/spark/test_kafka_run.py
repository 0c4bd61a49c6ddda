"""``tamis run`` between topics of a real broker: killed in the middle, started again, every delivery once.

Three topics go in (messages, updates, profiles), with records among them that are no events; deliveries and rejected
events come out, into two topics. The oracle is the reference filter on the events in their order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from streams import Expected

from kafka_broker import JARS, Broker

TOML = """\
checkpoint = "checkpoint"
shards = 2
wait = "3 seconds"

[spark]
master = "local[2]"
jars = "{jars}"
config = {{ "spark.driver.memory" = "1g" }}

[sources.messages]
format = "kafka"
servers = "{servers}"
topic = "{messages}"
schema = {{ seq = "bigint", item = "string", quantity = "bigint", price = "double" }}
limit = 60

[sources.updates]
format = "kafka"
servers = "{servers}"
topic = "{updates}"
schema = {{ seq = "bigint", context = "string", attribute = "string", value = "string" }}
limit = 60

[sources.profiles]
format = "kafka"
servers = "{servers}"
topic = "{profiles}"
schema = {{ seq = "bigint", id = "string", profile = "string", context = "string", on_match = "string" }}
limit = 20

[sinks.matches]
format = "kafka"
servers = "{servers}"
topic = "{deliveries}"
key = "profile"
order_by = ["seq", "rank"]

[sinks.rejected]
format = "kafka"
servers = "{servers}"
topic = "{rejected}"
"""
SOURCES = {"message": "messages", "update": "updates", "subscribe": "profiles", "unsubscribe": "profiles"}
SELLS = ("item == '{item}' and quantity <= ctx.stock", "ctx.stock -= quantity")
WATCHES = ("item == '{item}' and price between ctx.low and ctx.low + 20", None)


def story(rng: np.random.Generator, events: int) -> list[dict[str, Any]]:
    """Orders, stock and interests that come and go; who sells changes the stock, so every error shows later, too."""
    rows: list[dict[str, Any]] = []
    for seq in range(1, events + 1):
        kind = "subscribe" if seq <= 10 else str(rng.choice(list(SOURCES), p=[0.45, 0.45, 0.07, 0.03]))
        row: dict[str, Any] = {"seq": seq, "event": kind}
        item, context = (f"{name}{rng.integers(4)}" for name in ("item", "W"))
        if kind == "message":
            quantity, price = int(rng.integers(1, 6)), float(rng.integers(0, 100))
            row["message"] = {"seq": seq, "item": item, "quantity": quantity, "price": price}
        elif kind == "update":
            attribute = str(rng.choice(["stock", "low"]))
            row |= {"context": context, "attribute": attribute, "value": {"whole": int(rng.integers(0, 80))}}
        else:
            row["id"] = f"p{rng.integers(25)}"
            if kind == "subscribe":
                text, effect = SELLS if rng.random() < 0.5 else WATCHES
                broken = " and" if rng.random() < 0.1 else ""
                row |= {"profile": text.format(item=item) + broken, "context": context, "on_match": effect}
        rows.append(row)
    return rows


def records(rows: Sequence[dict[str, Any]], source: str) -> list[tuple[str, str]]:
    """The events of one source as keys and values of records."""
    found = []
    for row in rows:
        if SOURCES[row["event"]] != source:
            continue
        if row["event"] == "message":
            key, value = row["message"]["item"], row["message"]
        elif row["event"] == "update":
            key, value = row["context"], {**row, "value": json.dumps(row["value"]["whole"])}
        else:
            key, value = row["id"], {"profile": None, **row}
        found.append((key, json.dumps({name: one for name, one in value.items() if name != "event"})))
    return found


WRONG = {
    "messages": ['{"seq": 5, "item": "item1"', "half a", '{"seq": "five", "item": "item1"}'],
    "updates": ["[1, 2]", '{"seq": null, "context": "W1", "attribute": "low", "value": "1"}'],
    "profiles": ['{"seq": 7, "id": 7.5} {}'],
}
"""Records that are no events: malformed, of another type, without a place in the order."""


class Pipeline:
    """``tamis run`` as a user starts it, in a session of its own."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tamis.cli", "run", str(self.where / "pipeline.toml"), *arguments]
        with (self.where / "run.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        return self._process

    def kill(self) -> int:
        """SIGKILL to the driver, its JVM and the Python workers, at once; returns how many that were."""
        if self._process is None or self._process.poll() is not None:
            return 0
        driver = psutil.Process(self._process.pid)
        family = [driver, *driver.children(recursive=True)]  # the workers have a process group of their own
        os.killpg(driver.pid, signal.SIGKILL)
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        self._process.wait()
        psutil.wait_procs(family, timeout=30)
        return len(family)

    def log(self) -> str:
        return (self.where / "run.log").read_text(errors="replace")[-3000:]


def delivered(kafka: Broker, topic: str) -> list[dict[str, Any]]:
    """What a consumer of committed records finds."""
    return [json.loads(record.value or b"null") for record in kafka.consume(topic)]


def test_a_killed_pipeline_between_topics_delivers_everything_once(tmp_path: Path, kafka: Broker) -> None:
    """Partitions are read at different paces: the order of events is that of the column, not that of arrival."""
    rows = story(np.random.default_rng(31), 1_200)
    expected = Expected().add(rows)
    partitions = {"messages": 3, "updates": 2, "profiles": 1, "deliveries": 2, "rejected": 1}
    topics = {name: kafka.create(name, count) for name, count in partitions.items()}
    (tmp_path / "pipeline.toml").write_text(TOML.format(servers=kafka.servers, jars=JARS / "connector", **topics))

    def produce(part: Sequence[dict[str, Any]]) -> None:
        for source in WRONG:
            kafka.produce(topics[source], records(part, source))

    middle = len(rows) * 2 // 3
    produce(rows[: middle // 2])
    for source, values in WRONG.items():
        kafka.produce(topics[source], [("wrong", value) for value in values])
    produce(rows[middle // 2 : middle])
    pipeline = Pipeline(tmp_path)
    try:
        process = pipeline.start()
        end = time.monotonic() + 180
        while not delivered(kafka, topics["deliveries"]):
            assert process.poll() is None and time.monotonic() < end, pipeline.log()
            time.sleep(0.5)
        time.sleep(np.random.default_rng().uniform(0, 2))  # another moment in every run
        assert pipeline.kill() >= 3, "the driver, its JVM and a worker"
        before = len(delivered(kafka, topics["deliveries"]))
        assert 0 < before < len(expected.deliveries), "the kill was meant to come in the middle"
        produce(rows[middle:])
        assert pipeline.start("--once").wait(240) == 0, pipeline.log()
    finally:
        pipeline.kill()

    found = delivered(kafka, topics["deliveries"])
    in_order = sorted(found, key=lambda one: (one["seq"], one["rank"], one["profile"]))
    assert [(one["seq"], one["profile"]) for one in in_order] == expected.deliveries
    assert len(expected.deliveries) > 300
    per_profile: dict[str, list[int]] = defaultdict(list)
    for one in found:
        per_profile[one["profile"]].append(one["seq"])
    assert all(sent == sorted(sent) for sent in per_profile.values()), "a profile's deliveries are in order as sent"

    refused = delivered(kafka, topics["rejected"])
    wrong = {text for values in WRONG.values() for text in values}
    places = {
        f"{topic}/{record.partition}#{record.offset}": (record.value or b"").decode()
        for topic in (topics[source] for source in WRONG)
        for record in kafka.consume(topic)
    }
    told = {one["source"]: one["reason"] for one in refused}
    assert len(told) == len(refused), "every rejected event once"
    assert {places[source] for source in told} >= wrong
    for source, reason in told.items():
        if places[source] in wrong:
            assert reason.startswith(("malformed record", "the order column is null")), reason
    events = [(one["event"], one["seq"]) for one in refused if places[one["source"]] not in wrong]
    assert sorted(events) == sorted(expected.rejected)
    assert len(events) > 3
