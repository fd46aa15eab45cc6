"""Columns that grow while a trace is read, and the numbers that stand for distinct values in them."""

import mmap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bottleneck.trace.decode import ABSENT

Array = npt.NDArray[Any]

_FIRST_ROWS = 4096


class Codes(dict[Any, int]):
    """Distinct values in the order met, each with its number; looking up a new one adds it."""

    def __missing__(self, value: Any) -> int:
        self[value] = code = len(self)
        return code


class Column:
    """An array that grows.

    It lies in memory mapped for it alone, which goes back to the system when it has grown out of it. Pieces joined at
    the end, or arrays grown in place, leave holes in the heap: 1 GB of trace then peaks at 0.62 or 0.40 GB, not 0.30.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._data = self._mapped(0)
        self._count = 0

    def _mapped(self, rows: int) -> Array:
        size = max(rows, _FIRST_ROWS) * self._dtype.itemsize
        return np.frombuffer(mmap.mmap(-1, size), self._dtype)

    def add(self, values: Iterable[Any], count: int) -> None:
        """Appends ``count`` numbers; OverflowError when one does not fit."""
        self.add_array(np.fromiter(values, self._dtype, count))

    def add_array(self, values: Array) -> None:
        """Appends an array."""
        end = self._count + len(values)
        if end > len(self._data):
            larger = self._mapped(max(end, 2 * len(self._data)))
            larger[: self._count] = self._data[: self._count]
            self._data = larger
        self._data[self._count : end] = values
        self._count = end

    def take(self) -> Array:
        """All rows; empties this column."""
        rows = self._data[: self._count]
        self._data, self._count = self._mapped(0), 0
        return rows


class SparseColumn(Column):
    """A column of int64 that takes no memory until the first number that is not ABSENT."""

    def __init__(self) -> None:
        super().__init__("int64")
        self._absent = 0

    def add_array(self, values: Array) -> None:
        """Appends an array."""
        if self._count == 0 and (values == ABSENT).all():
            self._absent += len(values)
            return
        if self._absent:
            super().add_array(np.full(self._absent, ABSENT))
            self._absent = 0
        super().add_array(values)

    def take(self) -> Array:
        """All rows, read-only when all are absent; empties this column."""
        if self._count or not self._absent:
            return super().take()
        absent, self._absent = self._absent, 0
        return np.broadcast_to(np.int64(ABSENT), absent)


class Rows:
    """Columns of the events of one role; ``row`` is the event's position among all complete events."""

    def __init__(self, numbers: Sequence[str], **more: str) -> None:
        self.numbers = numbers
        self._row = Column("int32")
        self.columns: dict[str, Column] = {name: SparseColumn() for name in numbers}
        self.columns |= {name: Column(dtype) for name, dtype in more.items()}

    def add_rows(self, first: int, count: int) -> None:
        """Appends ``count`` positions from ``first`` on."""
        self._row.add_array(np.arange(first, first + count))

    def take(self) -> dict[str, Array]:
        """All columns as arrays; empties this one."""
        return {"row": self._row.take()} | {name: column.take() for name, column in self.columns.items()}
