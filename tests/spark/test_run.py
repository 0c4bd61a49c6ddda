"""``tamis run``: mistakes are named before Spark starts; a real run, its resumption, and a clean stop by signal."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tamis import ReferenceFilter
from tamis.errors import UsageError
from tamis.spark import columns
from tamis.spark.explain import explain, hidden
from tamis.spark.jars import LISTING
from tamis.spark.pipeline import PipelineError, checkpoint_of, load
from tamis.spark.run import reason
from tamis.spark.watch import Endpoint, Lag, Status, line, screen

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "pipeline.toml"

GOOD = """\
checkpoint = "out/checkpoint"
shards = 2

[spark]
master = "local[2]"

[sources.events]
format = "json"
path = "in"
schema = "seq bigint, event string, context string, attribute string, value string, id string, profile string, n bigint"

[sinks.matches]
format = "parquet"
path = "out/matches"
"""

MESSAGES = """\
checkpoint = "c"
message_id = "n"

[sources.messages]
format = "json"
path = "in"
schema = { seq = "bigint", n = "bigint" }

[sources.updates]
format = "json"
path = "in"
schema = { seq = "bigint", context = "string", attribute = "string", value = "double" }

[initial.profiles]
format = "json"
path = "in"
schema = { id = "string", context = "string", low = "double" }
profile = "n > ctx.x + {low}"

[sinks.matches]
format = "console"
"""


def problems(folder: Path, text: str) -> list[str]:
    """What is said of a file; nothing when it is right."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "p.toml").write_text(text)
    try:
        load(folder / "p.toml")
    except PipelineError as error:
        return list(error.problems)
    return []


# -- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [GOOD, MESSAGES, GOOD + "[metrics]\nport = 0\n"])
def test_a_right_file_has_no_mistakes(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shards = 2", "shrads = 2", "unknown key 'shrads'; did you mean 'shards'?"),
        ("shards = 2", 'shards = "2"', "the top of the file: shards: expected a whole number, got '2'"),
        ("shards = 2", "shards = 0", "shards: expected a whole number from 1 to 4096, got 0"),
        (
            "shards = 2",
            'wait = "soon"',
            "wait: expected a time such as '10 seconds', '500 ms', '2 min' or '1 hour', go",
        ),
        ("shards = 2", 'wait = "2 m"', "wait: '2 m' may be minutes or milliseconds; write '2 min' or '2 ms'"),
        ("shards = 2", 'trigger = "2 m"', "trigger: '2 m' may be minutes or milliseconds; write '2 min' or '2 ms'"),
        ("shards = 2", 'trigger = "x"', "trigger: expected a time such as '10 seconds', '500 ms', '2 min' or '1 hour'"),
        (
            "shards = 2",
            "hold_limit = 0",
            "hold_limit: expected a whole number of events from 1, got 0; for streams that",
        ),
        ("shards = 2", 'hold_limit = "many"', "the top of the file: hold_limit: expected a whole number, got 'many'"),
        ("shards = 2", 'values = "jsn"', "values: 'jsn' is not known; did you mean 'json'?"),
        ("shards = 2", 'strategy = "agil"', "the top of the file: strategy"),
        ("shards = 2", 'message_id = "nn"', "message_id: [sources.events] has no column 'nn'; did you mean 'n'?"),
        ("shards = 2", 'order = "sec"', "[sources.events]: schema: column 'sec', the order of events, is missing"),
        ('checkpoint = "out/checkpoint"', "", "the top of the file: the key 'checkpoint' is missing"),
        ('checkpoint = "out/checkpoint"', 'checkpoint = "${NOPE_X}/c"', "the top of the file: ${NOPE_X}: there is no"),
        ("[sources.events]", "[sources.event]", "[sources.event]: 'event' is not known; did you mean 'events'?"),
        ("[sources.events]", "[source.events]", "unknown key 'source'; did you mean 'sources'?"),
        ('format = "json"', 'format = "jsn"', "[sources.events]: format: 'jsn' is not known; did you mean 'json'?"),
        ('format = "json"', 'fromat = "json"', "[sources.events]: unknown key 'fromat'; did you mean 'format'?"),
        ('path = "in"', 'paht = "in"', "[sources.events]: unknown key 'paht'; did you mean 'path'?"),
        ('path = "in"', 'path = "im"', "[sources.events]: path: there is no file or directory"),
        ('path = "in"', 'path = "in"\nlimit = 0', "[sources.events]: limit 0 is not a positive number"),
        (
            'path = "in"',
            'path = "in"\nrequired = ["sq"]',
            "[sources.events]: required: 'sq' is not known; did you mean",
        ),
        ("n bigint", "n bigimt", "[sources.events]: schema: column 'n': type 'bigimt' is not known; did you mean 'big"),
        ("seq bigint", "seq string", "[sources.events]: schema: column 'seq', the order of events, must hold numbers"),
        ("event string", "evnt string", "[sources.events]: schema: column 'event' is missing; did you mean 'evnt'?"),
        ("context string", "context int", "[sources.events]: schema: column 'context': expected string, got int"),
        ("[sinks.matches]", "[sinks.match]", "[sinks.match]: 'match' is not known; did you mean 'matches'?"),
        ('path = "out/matches"', "", "[sinks.matches]: the key 'path' is missing"),
        ('path = "out/matches"', "path = 3", "[sinks.matches]: path: expected a text, got 3"),
        ('master = "local[2]"', 'master = "lokal"', "[spark]: master: expected local[N], spark://HOST:PORT, yarn or"),
        ('master = "local[2]"', 'log = "LOUD"', "[spark]: log: 'LOUD' is not known"),
        ('master = "local[2]"', 'jars = "nowhere"', "[spark]: jars: "),
        ('master = "local[2]"', "config = { x = 1 }", "[spark.config]: x: settings of Spark begin with 'spark.'"),
        (
            "[spark]",
            "[metrics]\nport = 70000\n[spark]",
            "[metrics]: port: expected a number from 0 to 65535, got 70000",
        ),
        ("[spark]", '[schema]\nn = "nmber"\n[spark]', "[schema]: n: "),
        ("[spark]", '[[track]]\ncontext = "c"\n[spark]', "[[track]] 1: the key 'set' is missing"),
        ("[spark]", '[[track]]\ncontext = "c"\nset = "last ="\n[spark]', "[[track]] 1: "),
        ("[spark]", '[initial.contxts]\nformat = "csv"\n[spark]', "[initial.contxts]: 'contxts' is not known; did you"),
        ("[spark]", "[spark", "not TOML: "),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new, 1))
    assert any(one.startswith(message) for one in found), found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[sources.messages]", "[sources.profiles]", "[sources]: declare [sources.messages], or [sources.events]"),
        (
            "[sources.messages]",
            "[sources.events]",
            "[sources.updates]: [sources.events] is one ordered stream of every",
        ),
        ("[initial.profiles]", "[initial.contexts]", "[sources]: there are no profiles; declare [initial.profiles] or"),
        (
            '{ seq = "bigint", n',
            '{ seq = "double", n',
            "order: column 'seq' must be of one sort everywhere: [sources.m",
        ),
        ("low = ", "lo = ", "[initial.profiles]: schema: column 'low' is missing; did you mean 'lo'?"),
        ("{low}", "{low} and", "[initial.profiles]: profile: "),
        ('profile = "n > ctx.x + {low}"', 'on_match = "ctx.x = 1"', "[initial.profiles]: on_match: is the effect of"),
        ("[sinks.matches]", "[sinks.figures]", "[sinks]: nothing would be kept; declare [sinks.matches]"),
        (
            '[sinks.matches]\nformat = "console"',
            '[sinks.matches]\nformat = "parquet"\npath = "o"\n[sinks.rejected]\nformat = "parquet"\npath = "./o"',
            "[sinks.rejected]: goes where [sinks.matches] goes",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MESSAGES
    found = problems(tmp_path, MESSAGES.replace(old, new, 1))
    assert any(one.startswith(message) for one in found), found


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("shards = 2", "shards = 0\ncolour = 1").replace("parquet", "parket").replace("bigint,", "big,")
    found = problems(tmp_path, text)
    assert len(found) == 4, found
    with pytest.raises(PipelineError, match="4 mistakes"):
        load(tmp_path / "p.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_the_command_says_so_without_starting_spark(tmp_path: Path) -> None:
    problems(tmp_path, GOOD.replace("events", "event"))
    done = subprocess.run(
        [sys.executable, "-m", "tamis.cli", "run", str(tmp_path / "p.toml")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2
    assert "did you mean 'events'?" in done.stderr
    assert "Traceback" not in done.stderr and "log4j" not in done.stderr


def test_columns_are_read_as_spark_reads_them(spark: Any) -> None:
    """Whatever Spark takes is taken, with the same names; what it refuses is refused."""
    from pyspark.sql import types as T

    for schema in (
        "a int, b STRING NOT NULL, `c d` decimal(10, 2) COMMENT 'x, y', e array<struct<f: map<string, int>, g: date>>",
        "`a``b` timestamp_ntz, t timestamp, v variant, w varchar(3), x struct<y: array<int>>",
    ):
        assert list(columns.parse(schema)) == T.StructType.fromDDL(schema).names
    for schema in ("a", "a int,", "a itn", "a array<int", "a map<int>", "a struct<b>"):
        with pytest.raises(UsageError):
            columns.parse(schema)
        with pytest.raises(Exception):  # noqa: B017
            T.StructType.fromDDL(schema)


# -- the plan and the numbers ------------------------------------------------------------------------------------


def test_the_plan_tells_what_will_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hush")
    (tmp_path / "in").mkdir()
    table = '[sinks.rejected]\nformat = "table"\nurl = "postgresql://me:${SECRET}@db/x"\ntable = "bad"\n'
    (tmp_path / "p.toml").write_text("hold_limit = 5000\n" + MESSAGES + table)
    assert load(tmp_path / "p.toml").options()["hold_limit"] == 5_000
    plan = explain(load(tmp_path / "p.toml", "local[7]"))
    for words in (
        str(tmp_path / "in"),
        "by 'seq' over messages, updates",
        "silent for 10 s",
        "at most 5,000 events wait",
        "2 on local[7]",
        "n > ctx.x + {low}",
        "matches: AT LEAST ONCE",
        "rejected: one transaction per micro-batch",
        "postgresql://me:***@db/x",
        "the checkpoint is new",
    ):
        assert words in plan
    assert "hush" not in plan
    assert hidden("sqlite:///a/b") == "sqlite:///a/b"


def test_the_plan_and_the_checks_know_the_checkpoint(tmp_path: Path) -> None:
    for name, last in (("offsets", 3), ("commits", 2)):
        (tmp_path / "out" / "checkpoint" / name).mkdir(parents=True)
        (tmp_path / "out" / "checkpoint" / name / str(last)).write_text(
            'v1\n{"conf": {"spark.sql.shuffle.partitions": "2"}}\n'
        )
    assert problems(tmp_path, GOOD) == []
    plan = explain(load(tmp_path / "p.toml"))
    assert "goes on after micro-batch 2" in plan and "micro-batch 3 was begun and will be repeated" in plan
    (found,) = problems(tmp_path, GOOD.replace("shards = 2", "shards = 3"))
    assert found.startswith("shards: expected 2, the number that the checkpoint")


def report(batch: int, rows: int, at: int = 0) -> dict[str, Any]:
    durations = {"addBatch": 5, "triggerExecution": 250}
    return {"batchId": batch, "timestamp": f"t{at}", "numInputRows": rows, "durationMs": durations, "sources": []}


def test_numbers_count_every_batch_once() -> None:
    now = [100.0]
    status = Status(clock=lambda: now[0])
    shards = [
        {"shard": k, "cache": "warm", "matches": 4, "held": k, "forced": 2, "profiles": 3, "escalated": 1}
        for k in range(2)
    ]
    now[0] = 102.0
    for _ in range(2):
        status.report(report(0, 10))
        status.figures(0, map(json.dumps, shards))
    assert (status.events, status.matches, status.batches, status.profiles, status.held) == (10, 8, 1, 6, 1)
    assert (status.escalations, dict(status.loads)) == (2, {"warm": 2})
    assert status.rates() == (5.0, 4.0)
    assert status.latency(0.5) == 0.25
    now[0] = 200.0
    assert status.rates() == (0.0, 0.0)
    assert "4 forced" in line(status)
    assert "10 events" in line(status) and "8 matches" in line(status)
    from rich.console import Console

    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(screen(status, "orders", "Ctrl-C stops"))
    console.file.close()
    text = console.export_text()
    for word in ("events/s", "matches/s", "latency", "lag", "state", "escalations", "batches"):
        assert word in text
    with Endpoint(status, "127.0.0.1", 0) as endpoint, urllib.request.urlopen(endpoint.url) as answer:
        metrics = answer.read().decode()
    assert "tamis_forced_total 4.0" in metrics
    assert "tamis_events_total 10.0" in metrics and 'tamis_shard_loads_total{how="warm"} 2.0' in metrics


def test_lag_is_what_sources_still_have(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c", "_hidden", ".x"):
        (tmp_path / "in" / name).touch()
    log = tmp_path / "checkpoint" / "sources" / "0"
    log.mkdir(parents=True)
    (log / "0").write_text('v1\n{"path":"a"}\n')
    lag = Lag(str(tmp_path / "checkpoint"))
    files = {"description": f"FileStreamSource[file:{tmp_path}/in]"}
    topic = {
        "description": "KafkaV2[Subscribe[t]]",
        "latestOffset": '{"t":{"0":9,"1":4}}',
        "endOffset": {"t": {"0": 5}},
    }
    assert lag.of([files, topic]) == {f"{tmp_path}/in": 2, "KafkaV2[Subscribe[t]]": 8}
    (log / "1.compact").write_text('v1\n{"path":"a"}\n{"path":"b"}\n')
    assert lag.of([files]) == {f"{tmp_path}/in": 1}


def test_the_reason_of_a_failure_is_the_innermost() -> None:
    text = "[STREAM_FAILED] Query failed\n  File x\ntamis.errors.UsageError: shards=3: other\n\tat org.apache"
    assert reason(RuntimeError(text)) == "shards=3: other"
    assert reason(RuntimeError("one\nValueError: two\n")) == "one (ValueError: two)"


# -- real runs ---------------------------------------------------------------------------------------------------


def command(file: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tamis.cli", "run", str(file), *more]


def rows(path: Path) -> list[dict[str, Any]]:
    """What a directory of Parquet holds."""
    found = ds.dataset([str(one) for one in sorted(path.glob("batch=*/*.parquet"))], format="parquet").to_table()
    return list(found.to_pylist())


def expected(folder: Path) -> list[tuple[str, str]]:
    """What the reference delivers for the example: profiles, contexts, then all events by ``seq``."""
    reference = ReferenceFilter(schema={"quantity": "number", "ctx.stock": "number"})
    for text in (folder / "profiles.jsonl").read_text().splitlines():
        one = json.loads(text)
        reference.subscribe(one["id"], one["profile"], one.get("context"), one.get("on_match"))
    events: list[tuple[int, int, Any]] = []
    for place in (folder / "contexts.csv", folder / "stock" / "week.csv"):
        names, *lines = [text.split(",") for text in place.read_text().splitlines()]
        for values in lines:
            one = dict(zip(names, values, strict=True))
            events.append((int(one.get("seq", -1)), 0, one))
    for place in sorted((folder / "orders").glob("*.jsonl")):
        for text in place.read_text().splitlines():
            if text.startswith("{"):
                events.append((json.loads(text)["seq"], 1, json.loads(text)))
    found = []
    for _, kind, one in sorted(events, key=lambda event: event[:2]):
        if kind:
            found += [(one["order_id"], str(id)) for id in reference.match(one)]
        else:
            reference.update(one["context"], {one["attribute"]: json.loads(one["value"])})
    return found


def test_the_example_runs_once_and_goes_on(tmp_path: Path) -> None:
    """Files to Parquet as the docs say, with metrics; a second run reads only what is new."""
    shutil.copy(EXAMPLE, tmp_path)
    shutil.copytree(EXAMPLE.parent / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("out"))
    file, folder = tmp_path / EXAMPLE.name, tmp_path / "pipeline"
    file.write_text(file.read_text() + "[metrics]\nport = 0\n")
    done = subprocess.run(command(file, "--once"), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert re.search(r"metrics at http://127\.0\.0\.1:\d+/metrics", done.stderr)
    assert "Exception" not in done.stderr
    assert sorted((row["order_id"], row["profile"]) for row in rows(folder / "out" / "matches")) == sorted(
        expected(folder)
    )
    (bad,) = rows(folder / "out" / "rejected")
    assert bad["source"].endswith("monday.jsonl#line 4")
    assert bad["reason"].startswith("malformed record: not JSON: Expecting value at column 1: this line is not JSON")

    later = {"seq": 11, "order_id": "o-7", "type": "order", "item": "bolt", "quantity": 3}
    (folder / "orders" / "wednesday.jsonl").write_text(json.dumps(later) + "\n")
    done = subprocess.run(command(file, "--once"), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "going on after batch" in done.stderr
    delivered = sorted((row["order_id"], row["profile"]) for row in rows(folder / "out" / "matches"))
    assert delivered == sorted(expected(folder))
    assert any(order == "o-7" for order, _ in delivered)


def test_a_signal_ends_between_micro_batches_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group; what was begun is finished, and nothing is lost or repeated."""
    (tmp_path / "in").mkdir()
    total = 24
    subscribe = {"seq": 0, "event": "subscribe", "id": "odd", "profile": "n > ctx.low", "context": "C"}
    update = {"seq": 1, "event": "update", "context": "C", "attribute": "low", "value": "3"}
    for k in range(total):
        events = [{"seq": 10 + 10 * k + i, "event": "message", "n": i} for i in range(8)]
        text = "".join(json.dumps(one) + "\n" for one in ([subscribe, update] if k == 0 else []) + events)
        place = tmp_path / "in" / f"{k:03d}.jsonl"
        place.write_text(text)
        os.utime(place, (1_700_000_000 + k, 1_700_000_000 + k))
    (tmp_path / "p.toml").write_text(GOOD.replace('path = "in"', 'path = "in"\nlimit = 2'))
    matches, commits = tmp_path / "out" / "matches", tmp_path / "out" / "checkpoint" / "commits"
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command(tmp_path / "p.toml"), stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 400
            while len(list(matches.glob("batch=*"))) < 2 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=120) == 0, (tmp_path / "log").read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said and "Exception" not in said
    done = {int(one.name.partition("=")[2]) for one in matches.glob("batch=*")}
    assert done == {int(one.name) for one in commits.iterdir() if one.name.isdigit()}
    assert 2 <= len(done) < total // 2
    state = checkpoint_of(str(tmp_path / "out" / "checkpoint"))
    assert state is not None and state.finished == max(done) and state.shards == 2

    again = subprocess.run(command(tmp_path / "p.toml", "--once"), capture_output=True, text=True, timeout=500)
    assert again.returncode == 0, again.stderr
    wanted = [(10 + 10 * k + i, "odd") for k in range(total) for i in range(4, 8)]
    assert sorted((row["seq"], row["profile"]) for row in rows(matches)) == wanted


def test_pipelines_in_the_docs_are_right(tmp_path: Path) -> None:
    """The example file, and every block of TOML on the page."""
    load(EXAMPLE)
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL)
    for folder in ("events", "events-3", "moved/profiles", "moved/contexts"):  # which the reader has filled before
        (tmp_path / folder).mkdir(parents=True)
    jars = tmp_path / "jars" / "kafka"
    jars.mkdir(parents=True)
    for name in (LISTING, "connector.jar"):
        (jars / name).touch()
    for block in blocks:
        assert problems(tmp_path, block) == []
    assert blocks
