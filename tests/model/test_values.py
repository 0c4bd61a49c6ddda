"""The border: what becomes what, and what is refused with which reason."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import EventError, UsageError
from tamis.model.values import (
    LIST_OF,
    NUMBER,
    TEXT,
    TIME,
    Kind,
    from_microseconds,
    kind_of,
    normalise,
    to_microseconds,
)

NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3, 3),
        (2**63 - 1, 2**63 - 1),
        (np.int32(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (None, None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.datetime64("NaT"), None),
        (pa.scalar(5), 5),
        (pa.scalar(None), None),
        (datetime(2024, 1, 31, 12), NOON),
        (datetime(2024, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
        (date(2024, 1, 31), NOON.replace(hour=0)),
        (pd.Timestamp("2024-01-31T12:00:00.000000999"), NOON),
        (np.datetime64("2024-01-31T12", "h"), NOON),
        (np.datetime64(-1, "ns"), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ([1, 2.5, None], (1, 2.5, None)),
        (np.array([1.0, 2.0]), (1.0, 2.0)),
        (np.array(["2024-01-31T12"], "datetime64[ns]"), (NOON,)),
        ((), ()),
    ],
)
def test_normalised(given: Any, expected: Any) -> None:
    found = normalise(given)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (2**63, "out of 64-bit range"),
        pytest.param(10**5000, "out of 64-bit range", id="huge"),
        pytest.param({"huge": 10**5000}, "type dict", id="huge inside"),
        (-(2**63) - 1, "out of 64-bit range"),
        (Decimal("1.5"), "type Decimal"),
        (b"x", "type bytes"),
        ({"a": 1}, "type dict"),
        ([1, "a"], "mixed kinds (number and text)"),
        ([True, 1], "mixed kinds"),
        ([[1]], "list inside a list"),
        (np.zeros((2, 2)), "2 dimensions"),
        (timedelta(1), "type timedelta"),
        ("\ud800", "lone surrogate"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))), "out of range"),
        (np.datetime64("20000-01-01", "us"), "out of range"),
    ],
)
def test_refused(given: Any, reason: str) -> None:
    with pytest.raises(EventError) as error:
        normalise(given)
    assert reason in error.value.reason


def test_nan_is_a_number() -> None:
    found = normalise(np.float64("nan"))
    assert isinstance(found, float) and found != found
    assert kind_of(found) is NUMBER


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=3))])))
def test_microseconds_are_exact(when: datetime) -> None:
    try:
        expected = when.astimezone(UTC)
    except OverflowError:
        return
    assert from_microseconds(to_microseconds(when)) == expected


def test_kinds() -> None:
    assert str(Kind.parse("list of text")) == "list of text" == str(LIST_OF[TEXT])
    assert Kind.parse(" List  OF number ") is LIST_OF[NUMBER]
    assert kind_of([None, NOON]) == LIST_OF[TIME]
    assert kind_of(()) is LIST_OF[None]
    assert kind_of(None) is None
    with pytest.raises(UsageError, match="did you mean 'text'"):
        Kind.parse("string")
    with pytest.raises(UsageError, match="did you mean 'number'"):
        Kind.parse("numbr")
