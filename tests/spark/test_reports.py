"""Reports of a delivery log equal what plain Python counts, and the page holds all of it in one file."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import TamisError
from tamis.spark import reports, sinks

START = datetime(2005, 6, 14, 8, 30, tzinfo=UTC)
SCHEMA = "profile string, seq bigint, batch bigint, came timestamp, delivered timestamp"


@pytest.fixture(scope="module")
def log() -> list[dict[str, Any]]:
    """Random deliveries over four hours."""
    random = np.random.default_rng(3)
    rows = []
    for seq in range(600):
        came = START + timedelta(seconds=24 * seq)
        latency = timedelta(milliseconds=int(random.integers(1, 900)), microseconds=int(random.integers(0, 1000)))
        for profile in random.choice(12, int(random.integers(0, 4)), replace=False):
            row = {"profile": f"p{profile}", "seq": seq, "batch": seq // 100}
            rows.append({**row, "came": came, "delivered": came + latency})
    return rows


@pytest.fixture(scope="module")
def report(spark: Any, log: list[dict[str, Any]]) -> reports.Report:
    profiles = spark.createDataFrame(
        [(f"p{k}", f"c{k % 3}" if k != 5 else None) for k in range(12)], "id string, context string"
    )
    return reports.Report(spark.createDataFrame(log, SCHEMA), came="came", profiles=profiles)


def expected(log: list[dict[str, Any]], key: Any) -> dict[Any, dict[str, Any]]:
    """The same figures by NumPy."""
    groups = defaultdict(list)
    for row in log:
        groups[key(row)].append(row)
    found = {}
    for name, rows in groups.items():
        latency = np.array([(row["delivered"] - row["came"]) / timedelta(milliseconds=1) for row in rows])
        found[name] = {
            "deliveries": len(rows),
            "profiles": len({row["profile"] for row in rows}),
            "mean": latency.mean(),
            "max": latency.max(),
            **{name: np.quantile(latency, share) for name, share in reports.QUANTILES.items()},
        }
    return found


def context_of(row: dict[str, Any]) -> str | None:
    number = int(row["profile"][1:])
    return None if number == 5 else f"c{number % 3}"


@pytest.mark.parametrize(
    ("table", "column", "key"),
    [
        ("per_profile", "profile", lambda row: row["profile"]),
        ("per_context", "context", context_of),
        ("per_hour", "hour", lambda row: row["came"].replace(minute=0, second=0)),
        ("per_batch", "batch", lambda row: row["batch"]),
    ],
)
def test_every_table_equals_plain_python(
    report: reports.Report, log: list[dict[str, Any]], table: str, column: str, key: Any
) -> None:
    want = expected(log, key)
    rows = getattr(report, table).collect()
    found = {row[column].astimezone(UTC) if column == "hour" else row[column]: row for row in rows}
    assert found.keys() == want.keys()
    assert len(rows) == len(found)
    for name, figures in want.items():
        for figure, value in figures.items():
            if figure != "profiles" or column != "profile":
                assert found[name][figure] == pytest.approx(value, rel=1e-12), (name, figure)


def test_first_last_total_and_distributions(report: reports.Report, log: list[dict[str, Any]]) -> None:
    times = [row["delivered"] for row in log]
    total = report.total.first()
    assert total is not None
    assert (total.deliveries, total.profiles) == (len(log), len({row["profile"] for row in log}))
    assert (total["first"].astimezone(UTC), total["last"].astimezone(UTC)) == (min(times), max(times))
    bins = report.latencies(10).collect()
    assert sum(row.deliveries for row in bins) == len(log)
    latency = [(row["delivered"] - row["came"]) / timedelta(milliseconds=1) for row in log]
    assert bins[-1].high == pytest.approx(max(latency))
    assert bins[0].deliveries == sum(value < bins[0].high for value in latency)
    assert sum(row.deliveries * row.profiles for row in report.spread().collect()) == len(log)


@pytest.mark.parametrize("key", ["profile", "context"])
def test_the_busiest_are_the_first_rows_of_their_table(report: reports.Report, key: str) -> None:
    whole = (report.per_profile if key == "profile" else report.per_context).collect()
    whole.sort(key=lambda row: (-row.deliveries, row[key] or ""))
    assert report.busiest(key, 3).collect() == whole[:3]


def test_page_is_one_file_with_tables_and_pictures(report: reports.Report, tmp_path: Path) -> None:
    page = reports.write(report, tmp_path / "new" / "page.html", "Orders & <more>").read_text(encoding="utf-8")
    assert "<h1>Orders &amp; &lt;more&gt;</h1>" in page
    assert "<script" not in page and "http" not in page
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(pictures) == 4
    assert all(b"<svg" in base64.b64decode(picture) for picture in pictures)
    busiest = max(report.per_profile.collect(), key=lambda row: (row.deliveries, row.profile))
    assert f'<td class="n">{busiest.deliveries}</td>' in page
    for title in ("Deliveries per hour", "Latency", "Micro-batches", "Busiest profiles", "Busiest contexts", "Hours"):
        assert f"<h2>{title}</h2>" in page


def test_an_empty_log_is_a_page_too(spark: Any, tmp_path: Path) -> None:
    empty = reports.Report(spark.createDataFrame([], SCHEMA), came="came")
    assert "<b>0</b><span>deliveries</span>" in reports.write(empty, tmp_path / "page.html").read_text(encoding="utf-8")


def test_log_of_a_parquet_sink_knows_when_it_was_written(spark: Any, tmp_path: Path) -> None:
    """The time of a delivery is between the start and the end of the query that made it."""
    spark.range(5).selectExpr("id as seq", "'p' as profile", "current_timestamp() as came").write.parquet(
        str(tmp_path / "in")
    )
    before = datetime.now(UTC)
    rows = spark.readStream.schema("seq bigint, profile string, came timestamp").parquet(str(tmp_path / "in"))
    sink = sinks.Parquet(str(tmp_path / "out"))
    sinks.start(rows, sink, str(tmp_path / "checkpoint"), trigger={"availableNow": True}).awaitTermination()
    total = reports.Report(reports.read(spark, str(tmp_path / "out")), came="came").total.first()
    assert total is not None and total.deliveries == 5
    assert before - timedelta(seconds=1) <= total["first"].astimezone(UTC) <= datetime.now(UTC)
    assert total.max > 0


def test_what_is_missing_is_named(spark: Any, log: list[dict[str, Any]]) -> None:
    frame = spark.createDataFrame(log, SCHEMA)
    with pytest.raises(TamisError, match=r"column 'cam' is missing; .* did you mean 'came'"):
        reports.Report(frame, came="cam")
    with pytest.raises(TamisError, match="column 'seq': expected a time, got bigint"):
        reports.Report(frame, came="seq")
    with pytest.raises(TamisError, match="per context needs the DataFrame of profiles"):
        _ = reports.Report(frame, came="came").per_context
