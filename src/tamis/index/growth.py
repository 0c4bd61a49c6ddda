"""Arrays that grow by doubling, so that appending n rows one at a time costs O(n), on large pages where they are large.

Kernels jump about in these arrays. With pages of 4 KB nearly every jump would miss the processor's table of pages,
which costs as much as the access itself. NumPy asks for large pages too, but not for arrays of zeros or of a few
megabytes.
"""

from __future__ import annotations

import math
import mmap
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

T = TypeVar("T", bound=np.generic)
PAGE = 2 << 20
LARGE = PAGE // 4  # bytes from which on an array gets pages of its own


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """As ``numpy.zeros``, on large pages if the array is large and the system has them."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    count = math.prod(shape)
    size = count * np.dtype(dtype).itemsize
    if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, -(-size // PAGE) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages
        return np.zeros(shape, dtype)
    return np.frombuffer(memory, dtype, count).reshape(shape)


def with_room(array: NDArray[T], rows: int, fill: Any = 0) -> NDArray[T]:
    """The array itself if it has ``rows`` rows, else a copy with at least as many, new rows filled."""
    if len(array) >= rows:
        return array
    bigger: NDArray[T] = zeros((max(rows, 2 * len(array), 8), *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    if fill != 0:
        bigger[len(array) :] = fill
    return bigger
