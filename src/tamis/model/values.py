"""Values and their kinds: the border between Python, NumPy, pandas, Arrow and the filter.

Guarantees that every value inside the filter is one of ``int`` (64 bit), ``float``, ``str``, ``bool``, aware UTC
``datetime`` or a tuple of one of those (``None`` for an absent element), and that nothing was coerced silently.
Refuses to know names, profiles and schemas.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np

from tamis.errors import EventError, UsageError
from tamis.model.tree import Scalar

Value: TypeAlias = "int | float | str | bool | datetime | tuple[Scalar | None, ...]"

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """What values of a name are: ``number``, ``text``, ``boolean``, ``time`` or ``list`` (of one of those).

    ``categories`` is text or a list of text, as it comes: the categories of a content graph.

    ``element`` is the kind of a list's elements, ``None`` while unknown (only empty lists were seen).
    """

    name: str
    element: Kind | None = None

    def __str__(self) -> str:
        return f"{self.name} of {self.element}" if self.element is not None else self.name

    @property
    def phrase(self) -> str:
        """The kind with its article, for error messages: ``a number``, ``a list of text``."""
        if self.name == "categories":
            return "text or a list of text"
        return str(self) if self.name == "text" else f"a {self}"

    @staticmethod
    def parse(text: str | Kind) -> Kind:
        """The kind that a text such as ``"number"`` or ``"list of text"`` names."""
        if isinstance(text, Kind):
            return text
        kind = KINDS.get(" ".join(text.split()).lower()) if isinstance(text, str) else None
        if kind is None:
            raise UsageError(f"unknown kind {text!r}: expected one of {', '.join(KINDS)}{_nearest(text)}")
        return kind


NUMBER: Final = Kind("number")
TEXT: Final = Kind("text")
BOOLEAN: Final = Kind("boolean")
TIME: Final = Kind("time")
LIST: Final = Kind("list")
CATEGORIES: Final = Kind("categories")
LIST_OF: Final[dict[Kind | None, Kind]] = {
    None: LIST,
    **{element: Kind("list", element) for element in (NUMBER, TEXT, BOOLEAN, TIME)},
}
KINDS: Final[dict[str, Kind]] = {str(k): k for k in (NUMBER, TEXT, BOOLEAN, TIME, *LIST_OF.values(), CATEGORIES)}

SCALAR_KIND: Final[dict[type, Kind]] = {int: NUMBER, float: NUMBER, str: TEXT, bool: BOOLEAN, datetime: TIME}
"""The kind of a normalised scalar by its exact Python type."""

_SPOKEN = {
    "int": "number",
    "integer": "number",
    "float": "number",
    "double": "number",
    "str": "text",
    "string": "text",
    "bool": "boolean",
    "datetime": "time",
    "timestamp": "time",
    "date": "time",
    "array": "list",
}


def _nearest(text: object) -> str:
    word = str(text).strip().lower()
    near = _SPOKEN.get(word) or next(iter(difflib.get_close_matches(word, KINDS, 1)), None)
    return f"; did you mean {near!r}?" if near else ""


def kind_of(value: object) -> Kind | None:
    """The kind of a normalised value; ``None`` for an absent one. O(1), O(n) for a list."""
    if value is None:
        return None
    kind = SCALAR_KIND.get(type(value))
    if kind is not None:
        return kind
    if type(value) is tuple:
        return LIST_OF[next((SCALAR_KIND[type(item)] for item in value if item is not None), None)]
    return kind_of(normalise(value))


def normalise(value: object) -> Value | None:
    """The value as the filter holds it; ``None`` means absent.

    Accepts Python, NumPy, pandas and Arrow scalars, and lists, tuples and 1-d arrays of them. NaN stays a number;
    ``None``, ``NaT``, ``pandas.NA`` and Arrow nulls are absent. Raises :class:`EventError` saying why a value is not
    supported.
    """
    if value is None:
        return None
    cls = type(value)
    if cls is str:
        return _text(value)  # type: ignore[arg-type]
    if cls is float or cls is bool:
        return value  # type: ignore[return-value]
    if cls is int:
        return _integer(value)  # type: ignore[arg-type]
    if isinstance(value, (list, tuple)):
        return _sequence(value)
    return _foreign(value)


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise EventError(f"text {shown(value)} holds a lone surrogate, which is not valid Unicode") from None
    return value


def _integer(value: int) -> int:
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise EventError(f"integer {shown(value)} is out of 64-bit range")


def _sequence(values: list[Any] | tuple[Any, ...]) -> tuple[Scalar | None, ...]:
    items = tuple(normalise(item) for item in values)
    kinds = {SCALAR_KIND.get(type(item), LIST) for item in items if item is not None}
    if LIST in kinds:
        raise EventError("a list inside a list is not supported")
    if len(kinds) > 1:
        raise EventError(f"a list of mixed kinds ({' and '.join(sorted(str(k) for k in kinds))}) is not supported")
    return items  # type: ignore[return-value]


def _foreign(value: Any) -> Value | None:
    """The rarer types, most specific first; ``NaT`` and ``Timestamp`` are datetimes, ``IntEnum`` is an int."""
    if isinstance(value, np.generic):
        return _numpy(value)
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise EventError(f"an array of {value.ndim} dimensions is not supported")
        return _sequence(list(value) if value.dtype.kind == "M" else value.tolist())
    name = type(value).__name__
    if name in ("NaTType", "NAType"):
        return None
    if isinstance(value, datetime):
        plain = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value
        return utc(plain)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, int):
        return _integer(int(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if hasattr(value, "as_py"):
        return normalise(value.as_py())
    raise EventError(f"a value of type {name} is not supported: {shown(value)}")


def _numpy(value: np.generic) -> Value | None:
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        return from_microseconds(int(value.astype("datetime64[us]").astype(np.int64)))
    if isinstance(value, np.timedelta64 | np.longdouble):
        raise EventError(f"a value of type {type(value).__name__} is not supported: {value}")
    return normalise(value.item())


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def utc(value: datetime) -> datetime:
    """The same instant as a plain aware datetime in UTC; a naive one is taken as UTC."""
    if value.tzinfo is UTC:
        return value
    try:
        moved = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise EventError(f"time {value} is out of range in UTC") from None
    return moved


def to_microseconds(value: datetime) -> int:
    """Microseconds since the epoch, exact."""
    return (utc(value) - EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int | float) -> datetime:
    """The instant, floored to a whole microsecond; the inverse of :func:`to_microseconds`."""
    try:
        return EPOCH + timedelta(microseconds=math.floor(microseconds))
    except (OverflowError, ValueError):
        raise EventError(f"time of {microseconds} microseconds since 1970 is out of range (years 1 to 9999)") from None


def shown(value: object, limit: int = 40) -> str:
    """The value for an error message, cut when long."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"of {value.bit_length()} bits"
    try:
        text = repr(list(value) if isinstance(value, tuple) else value)
    except Exception:  # a foreign repr must not hide the error that is being reported
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
