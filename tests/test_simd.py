"""Machine instructions by hand: each does what a loop over the same numbers does."""

from __future__ import annotations

import numba as nb
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tamis.kernels import simd

MASKS = st.integers(0, 2**32 - 1)
BYTES = st.lists(st.integers(0, 255), min_size=64, max_size=64)
BYTE = st.integers(0, 255)


@nb.njit
def _compress(source, at, mask, out, n):
    return simd.compress(source, at, np.uint32(mask), out, n)


@nb.njit
def _covers(line, x, y):
    return simd.covers(line, 0, np.uint8(x), np.uint8(y)), simd.covers_strictly(line, 0, np.uint8(x), np.uint8(y))


@given(MASKS, st.integers(0, 32), st.integers(0, 40))
def test_compress_writes_what_is_asked_for(mask: int, at: int, n: int) -> None:
    source, out = np.arange(64, dtype=np.int32), np.full(80, -1, np.int32)
    end = _compress(source, at, mask, out, n)
    assert out[n:end].tolist() == [at + t for t in range(32) if mask >> t & 1]
    assert (out[:n] == -1).all() and (out[n + 32 :] == -1).all()


@given(BYTES, BYTE, BYTE)
def test_lines_are_tested_lane_by_lane(line: list[int], x: int, y: int) -> None:
    masks = _covers(np.array(line, np.uint8), x, y)
    low, high = line[:32], line[32:]
    assert masks[0] == sum(1 << t for t in range(32) if low[t] <= x and y <= high[t])
    assert masks[1] == sum(1 << t for t in range(32) if low[t] < x and y < high[t])
