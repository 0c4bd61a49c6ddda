"""Arrays that grow by doubling, so that appending n rows one at a time costs O(n)."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)


def with_room(array: NDArray[T], rows: int, fill: Any = 0) -> NDArray[T]:
    """The array itself if it has ``rows`` rows, else a copy with at least as many, new rows filled."""
    if len(array) >= rows:
        return array
    bigger = np.empty((max(rows, 2 * len(array), 8), *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    bigger[len(array) :] = fill
    return bigger
