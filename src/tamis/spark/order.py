"""The order column as 64-bit keys: one sort of number for whole numbers, floats, dates and times.

Guarantees that keys compare as the values do and that ``from_key`` gives the values back. Refuses to know Spark.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.errors import UsageError

_SIGN: Final = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def to_key(column: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The key of every value, and where there is none (null or NaN). Shapes (n,)."""
    kind = column.type
    missing = pc.is_null(column).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # no -0.0
        missing = missing | np.isnan(values)
        return _turn(values.view(np.int64)), missing
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise UsageError(f"order: expected a column of numbers, dates or times, got {kind}")
    return pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), missing


def from_key(keys: NDArray[np.int64], floating: bool) -> NDArray[Any]:
    """Floats from the keys of floats; other keys are whole numbers, days and microseconds already."""
    return _turn(keys).view(np.float64) if floating else keys


def _turn(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Floats' bits so that they compare as the floats do; its own inverse."""
    return np.where(bits < 0, bits ^ _SIGN, bits)
