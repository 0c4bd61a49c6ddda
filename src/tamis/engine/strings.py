"""String tables: names and texts as dense codes, without a Python object per string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.index.growth import with_room
from tamis.kernels import strings as kernel

Bytes = tuple[NDArray[np.uint8], NDArray[np.int64]]
# An integer id is stored as this byte, which no UTF-8 text contains, and its eight bytes.
_INTEGER = b"\xff"


class StringTable:
    """Strings and (for ids) integers, each with a code that never changes. Find and intern are O(length)."""

    __slots__ = ("_known", "_numbers", "_recent", "_slots", "count", "heap", "start")

    def __init__(self) -> None:
        self.heap = np.zeros(64, np.uint8)
        self.start = np.zeros(9, np.int64)
        self._slots = np.full(16, -1, np.int32)
        self.count = 0
        self._recent: dict[str | int, int] = {}
        # The integers again, by code, as long as there is nothing else: matches are turned into ids by the million.
        self._numbers: NDArray[np.int64] | None = np.zeros(8, np.int64)
        self._known = 0

    def __len__(self) -> int:
        return self.count

    def intern(self, name: str | int) -> int:
        """The code of one string, a new one if it is unknown."""
        code = self._recent.get(name)
        if code is None:
            code = int(self.intern_bytes(*_pack([_encode(name)]))[0])
            self._remember(name, code)
        return code

    def find(self, name: str | int) -> int:
        """The code of one string, -1 if it is unknown."""
        code = self._recent.get(name)
        if code is None:
            codes = np.empty(1, np.int32)
            kernel.find(self.heap, self.start, self._slots, *_pack([_encode(name)]), codes)
            code = int(codes[0])
            if code >= 0:
                self._remember(name, code)
        return code

    def intern_many(self, names: Any) -> NDArray[np.int32]:
        """The codes of an Arrow array of text or of a Python sequence."""
        return self.intern_bytes(*to_bytes(names))

    def intern_bytes(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int32]:
        n = len(offsets) - 1
        codes = np.empty(n, np.int32)
        self.start = with_room(self.start, self.count + n + 1)
        self.heap = with_room(self.heap, int(self.start[self.count] + offsets[-1] - offsets[0]))
        if 2 * (self.count + n) > len(self._slots):
            self._slots = np.full(1 << int(2 * (self.count + n)).bit_length(), -1, np.int32)
            kernel.rehash(self.heap, self.start, self.count, self._slots)
        self.count = kernel.intern(self.heap, self.start, self._slots, self.count, data, offsets, codes)
        return codes

    def forget(self, keep: int) -> None:
        """Take back the strings from code ``keep`` on."""
        if keep < self.count:
            kernel.forget(self.heap, self.start, self._slots, self.count, keep)
            self.count = keep
            self._known = min(self._known, keep)
            self._recent.clear()

    def __getitem__(self, code: int) -> str | int:
        return _decode(self.heap[self.start[code] : self.start[code + 1]].tobytes())

    def take(self, codes: NDArray[np.int32]) -> pa.Array | list[Any]:
        """The strings of many codes: an Arrow text array, or a list where integers are among them."""
        if (numbers := self._integers()) is not None:
            return pa.array(numbers[codes])
        used, inverse = np.unique(codes, return_inverse=True) if len(codes) > 4 * self.count else (codes, None)
        starts = self.start[used]
        if len(used) and np.any(self.heap[np.minimum(starts, len(self.heap) - 1)] == 255):
            values: list[Any] = [self[int(code)] for code in used]
            return values if inverse is None else [values[i] for i in inverse]
        lengths = self.start[used + 1] - starts
        offsets = np.zeros(len(used) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        kernel.gather(self.heap, starts, offsets, data)
        texts = pa.LargeStringArray.from_buffers(len(used), pa.py_buffer(offsets), pa.py_buffer(data))
        return texts if inverse is None else texts.take(pa.array(inverse))

    def _integers(self) -> NDArray[np.int64] | None:
        """All integers by code; None as soon as a string is among them. Amortised O(1) per code."""
        if self._numbers is not None and self._known < self.count:
            starts = self.start[self._known : self.count + 1]
            if np.any(np.diff(starts) != 9) or np.any(self.heap[starts[:-1]] != 255):
                self._numbers = None
                return None
            raw = self.heap[starts[0] : starts[-1]].reshape(-1, 9)[:, 1:]
            self._numbers = with_room(self._numbers, self.count)
            self._numbers[self._known : self.count] = np.ascontiguousarray(raw).view(">i8").reshape(-1)
            self._known = self.count
        return self._numbers

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"heap": self.heap, "start": self.start[: self.count + 1], "slots": self._slots}

    @classmethod
    def adopt(cls, arrays: dict[str, NDArray[Any]]) -> StringTable:
        table = cls()
        table.heap, table.start, table._slots = arrays["heap"], arrays["start"], arrays["slots"]
        table.count = len(table.start) - 1
        return table

    def _remember(self, name: str | int, code: int) -> None:
        if len(self._recent) >= 50_000:
            self._recent.clear()
        self._recent[name] = code


def _encode(name: str | int) -> bytes:
    return name.encode() if isinstance(name, str) else _INTEGER + int(name).to_bytes(8, "big", signed=True)


def _decode(raw: bytes) -> str | int:
    return int.from_bytes(raw[1:], "big", signed=True) if raw[:1] == _INTEGER else raw.decode()


def _pack(encoded: Sequence[bytes]) -> Bytes:
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(b) for b in encoded], out=offsets[1:])
    return np.frombuffer(b"".join(encoded) or b"\0", np.uint8), offsets


def to_bytes(names: Any) -> Bytes:
    """The bytes of many names: straight from the buffers of an Arrow array of text or int64, else one by one."""
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    if isinstance(names, pa.Array) and (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        names = names.cast(pa.large_string())
        _, offsets, data = names.buffers()
        at = np.frombuffer(offsets, np.int64, len(names) + 1, names.offset * 8)
        return np.frombuffer(data if data is not None and data.size else b"\0", np.uint8), at
    if isinstance(names, pa.Array) and pa.types.is_int64(names.type) and names.null_count == 0:
        packed = np.full((len(names) + 1, 9), _INTEGER[0], np.uint8)
        packed[:-1, 1:] = names.to_numpy().astype(">i8").view(np.uint8).reshape(-1, 8)
        return packed.reshape(-1), np.arange(len(names) + 1, dtype=np.int64) * 9
    if isinstance(names, pa.Array):
        names = names.to_pylist()
    return _pack([_encode(name) for name in names])
