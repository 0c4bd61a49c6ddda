"""The warehouse story on Spark, small: it agrees with the reference, and says so when it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tamis import TamisError
from tamis.spark import demo


def test_the_story_agrees_with_the_reference_and_can_be_told_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All warehouses on the reference: half of them with every event, half with the events around them."""
    monkeypatch.setattr(demo, "PER_FILE", 1_500)
    folder = tmp_path / "demo"
    checked = demo.run(folder, warehouses=60, events=4_000, seed=3, sample=(30, 30), spark=spark)
    assert checked.same and checked.warehouses == 60 and checked.deliveries > 500
    deliveries = pq.read_table(folder / "deliveries").num_rows
    assert deliveries == checked.deliveries
    assert len(list((folder / "deliveries").glob("batch=*"))) == 3
    shown = capsys.readouterr().out
    assert "60 warehouses and their" in shown and f"summary: {folder / 'summary.html'}\n" in shown
    page = (folder / "summary.html").read_text(encoding="utf-8")
    assert f"<b>{deliveries:,}</b><span>deliveries</span>" in page and "Throughput" in page

    again = demo.run(folder, warehouses=60, events=2_000, seed=3, sample=(5, 5), spark=spark)
    assert again.same and again.warehouses == 10

    places = demo.Places(folder)
    for event in sorted(places.events.glob("*.json"))[:1]:
        rows = [json.loads(line) for line in event.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            if row["event"] == "message":
                row["message"]["quantity"] = 1
        event.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    wrong = demo.check(spark, places, shards=2, seed=3, whole=30, nearby=30)
    assert not wrong.same and "differences" in demo.verdict(wrong)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(TamisError, match="choose another folder"):
        demo.run(tmp_path)
    assert (tmp_path / "thesis.txt").exists()
