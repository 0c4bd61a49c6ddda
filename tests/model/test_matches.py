"""Results: lazy ids, views, equality."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tamis.errors import UsageError
from tamis.model.matches import Matches, Rejected, Rejection


def test_views() -> None:
    matches = Matches.of([(0, "a"), (0, 7), (4, "a")], Rejected([("message", 3, "bad <value>")]))
    assert list(matches) == [(0, "a"), (0, 7), (4, "a")] and len(matches) == 3
    assert matches.by_message() == {0: ["a", 7], 4: ["a"]}
    assert matches.by_profile() == {"a": [0, 4], 7: [0]}
    assert matches.profile.tolist() == ["a", 7, "a"] and matches.profile.dtype == object
    assert matches.to_arrow().to_pydict() == {"message": [0, 0, 4], "profile": ["a", "7", "a"]}
    assert repr(matches) == "Matches(3, 1 rejected)"
    assert "bad &lt;value&gt;" in matches._repr_html_()
    assert Matches.of([(1, 2)]).to_arrow().schema.field("profile").type == pa.int64()
    assert list(matches.rejected) == [Rejection("message", 3, "bad <value>")] == [matches.rejected[0]]
    assert matches.rejected.to_arrow().column_names == ["kind", "row", "reason"]


def test_ids_are_decoded_once_and_late() -> None:
    calls: list[int] = []

    def decode(codes: np.ndarray) -> pa.Array:
        calls.append(len(codes))
        return pa.array(["x", "y"]).take(pa.array(codes))

    matches = Matches(np.array([5, 6], np.int64), np.array([1, 0], np.int32), decode)
    assert len(matches) == 2 and calls == []
    assert matches.profile.tolist() == ["y", "x"] and matches.profile.tolist() == ["y", "x"] and calls == [2]


def test_equality_ignores_order_and_reasons() -> None:
    one = Matches.of([(0, "a"), (1, "b")], Rejected([("update", 2, "this")]))
    assert one == Matches.of([(1, "b"), (0, "a")], Rejected([("update", 2, "that")]))
    assert one != Matches.of([(1, "b"), (0, "a")])
    assert one != Matches.of([(0, "a"), (1, "b"), (1, "b")], one.rejected)
    assert Matches.of([(0, 1)]) != Matches.of([(0, "1")])
    assert one != [(0, "a")]


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="2 messages but 1 profiles"):
        Matches(np.zeros(2, np.int64), np.zeros(1, np.int32), lambda codes: [])
    with pytest.raises(UsageError, match="unknown kind 'msg'"):
        Rejected([("msg", 1, "")])


def test_long_tables_are_cut_in_html() -> None:
    text = Matches.of([(i, i) for i in range(50)])._repr_html_()
    assert text.count("<tr>") == 21 and "50 in all" in text
