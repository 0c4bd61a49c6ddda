"""``match_table`` equals ``ReferenceFilter.match_many``, and says what it had to reject."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tamis import ReferenceFilter, UsageError
from tamis.spark import build, match_table, tamis

NAMES = tuple("abcd")


def some(seed: int, profiles: int = 300, messages: int = 200) -> tuple[pa.Table, pa.Table]:
    """Range profiles over four attributes, and messages, some attributes absent."""
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 60, (4, profiles))
    table = {"id": [f"p{i}" for i in range(profiles)]}
    texts = [
        " and ".join(f"{name} between {low[k, i]} and {low[k, i] + 40}" for k, name in enumerate(NAMES))
        for i in range(profiles)
    ]
    values = rng.integers(0, 100, (4, messages)).astype(float)
    columns = {name: pa.array(values[k], mask=rng.random(messages) < 0.02) for k, name in enumerate(NAMES)}
    return pa.table({**table, "profile": texts}), pa.table({"n": np.arange(messages), **columns})


def pairs(frame: Any, key: str = "n") -> list[tuple[Any, Any]]:
    return sorted((row[key], row.profile) for row in frame.collect())


def expected(
    profiles: pa.Table, messages: pa.Table, contexts: list[tuple[str, str, Any]] = ()
) -> list[tuple[Any, Any]]:
    reference = ReferenceFilter()
    for row in profiles.to_pylist():
        reference.subscribe(row["id"], row["profile"], row.get("context"))
    for context, attribute, value in contexts:
        reference.update(context, {attribute: value})
    return sorted((row, id) for row, id in reference.match_many(messages.drop_columns(["n"])))


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_table_equals_the_reference(spark: Any, partitions: int) -> None:
    profiles, messages = some(partitions)
    frame = spark.createDataFrame(messages).repartition(partitions)
    found = match_table(frame, spark.createDataFrame(profiles), message_id="n")
    assert pairs(found.matches) == expected(profiles, messages) != []
    assert found.rejected.collect() == []


def test_contexts_and_transform(spark: Any) -> None:
    profiles = pa.table(
        {
            "id": [f"w{i}" for i in range(40)],
            "profile": ["quantity <= ctx.stock and item == ctx.item"] * 40,
            "context": [f"C{i % 7}" for i in range(40)],
        }
    )
    messages = pa.table({"n": [0, 1, 2], "quantity": [1.0, 5.0, 9.0], "item": ["bolt", "nut", "bolt"]})
    values = [(f"C{i}", "stock", 3 * i) for i in range(7)] + [
        (f"C{i}", "item", "bolt" if i % 2 else "nut") for i in range(7)
    ]
    texts = [(context, attribute, str(value)) for context, attribute, value in values]
    contexts = spark.createDataFrame(texts, "context string, attribute string, value string")
    found = spark.createDataFrame(messages).transform(tamis(spark.createDataFrame(profiles), contexts, message_id="n"))
    assert found.columns == ["n", "profile"]
    assert pairs(found) == expected(profiles, messages, values) != []


@pytest.mark.parametrize("machines", [1, 2])
def test_prepared_profiles_with_whole_ids_stay_warm(spark: Any, machines: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("tamis.spark.table.on_one_machine", lambda master: machines == 1)  # else shipped
    rng = np.random.default_rng(5)
    low = rng.uniform(0, 1, 500)
    profiles = pa.table({"id": np.arange(500), "lo": low, "hi": low + 0.1})
    index = build(spark.createDataFrame(profiles), profile="x between {lo} and {hi}")
    for seed in range(2):
        x = np.random.default_rng(seed).uniform(0, 1, 100)
        frame = spark.createDataFrame(pa.table({"n": np.arange(100), "x": x}))
        right = [(int(i), int(p)) for i in range(100) for p in np.flatnonzero((low <= x[i]) & (x[i] <= low + 0.1))]
        assert pairs(match_table(frame, index, message_id="n").matches) == right


def test_rejected_rows_say_why(spark: Any) -> None:
    profiles = pa.table({"id": ["p", "bad"], "profile": ["x > 1", "x >"]})
    frame = spark.createDataFrame(
        [(0, "7", None, "f:1"), (1, None, None, "f:2"), (2, None, "{broken", "f:3")],
        "n int, x string, _corrupt_record string, _source string",
    )
    index = build(spark.createDataFrame(profiles))
    assert [(kind, id) for kind, id, _ in index.rejected] == [("profile", "bad")]
    found = {row.n: (row.source, row.reason) for row in index.match(frame, "n").rejected.collect()}
    assert sorted(found) == [0, 2]
    assert found[0][0] == "f:1" and "expected a number" in found[0][1]
    assert found[2] == ("f:3", "malformed record: {broken")


def test_what_cannot_work_is_said_at_once(spark: Any) -> None:
    messages = spark.createDataFrame([(1, 2.0)], "n int, x double")
    profiles = spark.createDataFrame([("p", "x > 1", "ctx.x = 1")], "id string, profile string, on_match string")
    with pytest.raises(UsageError, match="match_stream"):
        match_table(messages, profiles)
    with pytest.raises(UsageError, match="did you mean 'n'"):
        match_table(messages, profiles.drop("on_match"), message_id="N")
