"""Logs: order, runs, row numbers, and the many sources of tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import UsageError
from tamis.model.events import EventLog, to_table

MESSAGES = {"seq": [3, 1, 2], "x": [30, 10, 20], "s": ["c", "a", None]}
UPDATES = {"seq": [2, 2], "context": ["A", "B"], "attribute": ["y", "y"], "value": [1.5, 2.5]}


def test_merge_sorts_and_keeps_row_numbers() -> None:
    log = EventLog.merge(
        messages=MESSAGES,
        updates=UPDATES,
        subscribes={"seq": [2], "id": ["p"], "profile": ["x > ctx.y"], "context": ["A"]},
        unsubscribes={"seq": [2, 9], "id": ["p", 7]},
    )
    assert list(log.events()) == [
        ("message", 0, {"x": 10, "s": "a"}),
        ("unsubscribe", 0, "p"),
        ("subscribe", 0, "p", "x > ctx.y", "A", None),
        ("update", 0, "A", "y", 1.5),
        ("update", 1, "B", "y", 2.5),
        ("message", 1, {"x": 20}),
        ("message", 2, {"x": 30, "s": "c"}),
        ("unsubscribe", 1, 7),
    ]
    assert log.message_rows.tolist() == [1, 2, 0]
    assert log.runs.tolist() == [[0, 0, 1], [3, 0, 1], [2, 0, 1], [1, 0, 2], [0, 1, 3], [3, 1, 2]]
    assert len(log) == 8 and log.message(2) == {"x": 30, "s": "c"}
    assert repr(log) == "EventLog(3 messages, 2 updates, 1 subscribes, 2 unsubscribes)"
    assert "<td>3</td>" in log._repr_html_()
    with pytest.raises(ValueError, match="read-only"):
        log.runs[0, 0] = 1


@given(
    st.lists(st.integers(0, 6), max_size=12),
    st.lists(st.integers(0, 6), max_size=12),
    st.lists(st.integers(0, 6), max_size=6),
    st.sampled_from([np.int64, np.float64, np.uint8]),
)
def test_merge_equals_a_stable_sort(m: list[int], u: list[int], s: list[int], dtype: Any) -> None:
    tables = {
        "messages": {"seq": np.array(m, dtype), "n": list(range(len(m)))},
        "updates": {
            "seq": u,
            "context": pa.array(["A"] * len(u), pa.string()),
            "attribute": "x",
            "value": list(range(len(u))),
        },
        "subscribes": {"seq": s, "id": list(range(len(s))), "profile": ["true"] * len(s)},
    }
    events = [(seq, 1, "subscribe", i) for i, seq in enumerate(s)]
    events += [(seq, 2, "update", i) for i, seq in enumerate(u)] + [(seq, 3, "message", i) for i, seq in enumerate(m)]
    log = EventLog.merge(**tables)
    which = {"subscribe": 2, "update": 4}
    found = [(e[0], e[2].get("n") if e[0] == "message" else e[which[e[0]]]) for e in log.events()]
    assert found == [(name, i) for _, _, name, i in sorted(events)]
    assert np.all(np.diff(log.runs[:, 0]) != 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: pa.table(d),
        lambda d: pa.table(d).to_batches()[0],
        lambda d: pd.DataFrame(d),
        lambda d: pl.DataFrame(d),
        lambda d: {k: pl.Series(v) for k, v in d.items()},
        lambda d: {k: pd.Series(v) for k, v in d.items()},
        lambda d: {k: tuple(v) for k, v in d.items()},
        lambda d: {k: pa.chunked_array([v[:1], v[1:]]) for k, v in d.items()},
        lambda d: [dict(zip(d, row, strict=True)) for row in zip(*d.values(), strict=True)],
        to_table,
    ],
)
def test_every_source_gives_the_same_table(make: Any) -> None:
    when = datetime(2024, 1, 1, 5, tzinfo=UTC)
    rows = {"i": [1, 2], "f": [0.5, None], "s": ["é", None], "b": [True, False], "t": [when, None], "l": [[1, 2], None]}
    table = to_table(make(rows))
    assert table.names == tuple(rows) and len(table) == 2
    assert list(table.rows()) == [
        {"i": 1, "f": 0.5, "s": "é", "b": True, "t": when, "l": [1, 2]},
        {"i": 2, "b": False},
    ]
    assert table.row(1) == {"i": 2, "b": False}


def test_types_are_few_and_nothing_is_coerced() -> None:
    table = to_table(
        {
            "nan": np.array([np.nan, 1.0]),
            "ns": np.array([-1, 1_999], "datetime64[ns]"),
            "big": [2**53 + 1, 0.5],
            "mixed": [1, "a"],
            "bool": [True, 1],
            "bytes": [b"x", "x"],
            "pos": np.array([[1.0, 2.0], [3.0, 4.0]]),
            "large": pa.array(["a", "b"], pa.large_string()),
            "dict": pa.array(["a", "b"]).dictionary_encode(),
            "zone": pa.array([datetime(2024, 1, 1)] * 2, pa.timestamp("s", tz="+02:00")),
            "one": 7,
        }
    )
    assert [table.row(0)[n] for n in ("big", "mixed", "bool", "bytes")] == [2**53 + 1, 1, True, b"x"]
    assert table.row(0)["ns"] == datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert table.row(1)["ns"] == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert table.row(0)["zone"] == datetime(2024, 1, 1, tzinfo=UTC)
    assert table.row(1)["pos"] == [3.0, 4.0] and table.row(1)["one"] == 7
    assert str(table.row(0)["nan"]) == "nan"
    assert table.column("large").type == pa.string() and isinstance(table.column("big"), list)
    assert "a" not in to_table(pd.DataFrame({"a": [np.nan, 1.0]})).row(0), "NaN of pandas is absent"
    assert to_table(pd.DataFrame({"a": ["x", 5, None]})).column("a") == ["x", 5, None]


def test_update_values() -> None:
    def values(column: Any, **how: Any) -> list[Any]:
        n = len(column)
        log = EventLog.merge(updates={"context": ["A"] * n, "attribute": "x", "value": column}, **how)
        return [event[4] for event in log.events()]

    texts = ["5", "true", '"5"', "NaN", "plain", "[1, 2]", None, "null", "1e3"]
    assert values(texts) == [5, True, "5", "NaN", "plain", [1, 2], None, None, 1000.0]
    assert values(texts, values="plain") == texts
    assert values(["a", "b"]) == ["a", "b"]
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([5, 0]), pa.array(["", "x"])])
    assert values(union) == [5, "x"]
    log = EventLog.merge(updates={"context": np.array([3, 1]), "attribute": ["x", "x"], "value": [1.0, None]})
    assert log.updates is not None and log.updates.context.dtype == np.int64
    assert list(log.events()) == [("update", 0, 3, "x", 1.0), ("update", 1, 1, "x", None)]


def test_orders() -> None:
    fine = pd.to_datetime([2, 1], unit="ns")
    log = EventLog.merge(
        messages=pd.DataFrame({"seq": fine, "n": [0, 1]}), unsubscribes={"seq": [datetime(2024, 1, 1)], "id": [1]}
    )
    assert [e[0] for e in log.events()] == ["message", "message", "unsubscribe"] and log.message_rows.tolist() == [1, 0]
    assert EventLog.merge(messages={"n": [5, 4]}).message_rows.tolist() == [0, 1]
    assert EventLog.merge(messages={"n": [5, 4]}, order="n").message_rows.tolist() == [1, 0]
    assert len(EventLog.merge()) == 0 and list(EventLog.merge(messages={}).events()) == []


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ({"messages": {"Seq": [1]}, "updates": UPDATES}, "messages: column 'seq'.*did you mean 'Seq'"),
        ({"updates": {**UPDATES, "value": [1]}}, "updates: column 'value' has 1 rows, the others have 2"),
        (
            {"updates": {"contxt": ["A"], "attribute": ["x"], "value": [1]}},
            "'context' is missing.*did you mean 'contxt'",
        ),
        (
            {"subscribes": {"id": [1], "profile": ["a"], "contex": ["A"]}},
            "unknown column 'contex'; did you mean 'context'",
        ),
        ({"messages": {"seq": ["a"]}}, "numbers or times without nulls"),
        ({"messages": {"seq": [1, None]}}, "numbers or times without nulls"),
        ({"messages": {"seq": [np.nan]}}, "numbers or times without nulls"),
        ({"messages": {"seq": [True]}}, "numbers or times"),
        ({"messages": {"seq": [1]}, "unsubscribes": {"seq": [datetime(2024, 1, 1)], "id": [1]}}, "in all tables"),
        ({"messages": {"seq": [2**60]}, "unsubscribes": {"seq": [0.5], "id": [1]}}, r"beyond 2\*\*53"),
        ({"messages": 5}, "cannot read a table from int"),
        ({"messages": {"a": {1, 2}}}, "'a': expected an array or a list, got set"),
        ({"updates": {**UPDATES, "context": [1.5, 2.5]}}, "'context': expected text, or integers"),
        ({"messages": pa.table([[1], [2]], names=["a", "a"])}, "'a' occurs more than once"),
        ({"messages": MESSAGES, "values": "yaml"}, "expected 'json' or 'plain'"),
    ],
)
def test_usage_errors(tables: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        EventLog.merge(**tables)


def test_builder() -> None:
    builder = EventLog.builder().message({"a": 1}).update("C", {"odd name": 2}, y="q").message({"a": "wrong", "b": {}})
    log = builder.subscribe("i", "a > 1", on_match=None).unsubscribe("i").message({}).build()
    assert [event[:2] for event in log.events()] == [
        ("message", 0),
        ("update", 0),
        ("update", 1),
        ("message", 1),
        ("subscribe", 0),
        ("unsubscribe", 0),
        ("message", 2),
    ]
    assert log.message(1) == {"a": "wrong", "b": {}} and log.column("a") == [1, "wrong", None]
    assert len(builder) == len(log) == 7
    assert len(EventLog.builder().build()) == 0
    with pytest.raises(UsageError, match="context's name"):
        builder.update(None, x=1)
    with pytest.raises(UsageError, match="mapping"):
        builder.message([1])  # type: ignore[arg-type]


def test_of_messages_keeps_every_column() -> None:
    log = EventLog.of_messages({"seq": [2, 1]})
    assert [event[2] for event in log.events()] == [{"seq": 2}, {"seq": 1}]
