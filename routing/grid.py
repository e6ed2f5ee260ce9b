"""Counts that the router's processes share without a lock: a file in memory, where each cell has one writer.

A row belongs to an endpoint, a model or a key; in it each process has a cell, which it alone writes and all read. A
total is the sum over a row, right but for what happens in the same microsecond. A process takes its column by a lock
that the kernel gives back however the process ends; whoever comes next clears what the dead one had under way.
"""

import fcntl
import mmap
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from routing.grid_file import (
    CELLS_AT,
    COLUMNS,
    DIRECTORY_AT,
    FIELDS,
    HINTS,
    HINTS_AT,
    ROWS,
    SIZE_BYTES,
    SUSPECTS,
    SUSPECTS_AT,
    on_disk,
)

#: The first fields of a cell say what is under way: they end with their process. The others outlive it.
LIVE_FIELDS = 2

_VERSION = 1
_DIRECTORY_LOCK = COLUMNS


class GridError(OSError):
    """cannot share counts between the router's processes."""


class Grid:
    def __init__(self, path: Path | None = None, *, file: int | None = None) -> None:
        """`file`: a file descriptor of grid_file's, which is kept; `path`: it is opened here. Without either the counts
        are this process's own. Raises OSError."""
        if path is not None:
            file = on_disk(path)
        self._file = -1 if file is None else file
        if self._file >= 0:
            self._lock(_DIRECTORY_LOCK)
        self.words = memoryview(mmap.mmap(self._file, SIZE_BYTES)).cast("q")
        if self.words[0] != _VERSION:
            for at in range(1, CELLS_AT):
                if self.words[at]:
                    self.words[at] = 0
            self.words[0] = _VERSION
        self.hints = self.words[HINTS_AT : HINTS_AT + HINTS]
        self.suspects = self.words[SUSPECTS_AT : SUSPECTS_AT + SUSPECTS]
        self.column = self._claim()
        self.words[1] = max(self.words[1], self.column + 1)
        if self._file >= 0:
            self._unlock(_DIRECTORY_LOCK)

    @property
    def alone(self) -> bool:
        """No other process has ever shared this."""
        return self.words[1] <= 1

    # -- cells --------------------------------------------------------------------------------------------------------

    def cell(self, row: int) -> int:
        """Where this process's fields of a row begin in `words`."""
        return CELLS_AT + (row * COLUMNS + self.column) * FIELDS

    def cells(self, row: int) -> range:
        """Where the fields of each process begin."""
        start = CELLS_AT + row * COLUMNS * FIELDS
        return range(start, start + self.words[1] * FIELDS, FIELDS)

    def fields(self, row: int, field: int) -> memoryview:
        """One field of all processes."""
        start = CELLS_AT + row * COLUMNS * FIELDS
        return self.words[start + field : start + self.words[1] * FIELDS : FIELDS]

    def total(self, row: int, field: int) -> int:
        return sum(self.fields(row, field))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def rows(self, names: Iterable[str]) -> dict[str, int]:
        """The rows of these names, the same in each process and after restarts. Where there is no free one left, names
        share: a limit then comes too early, never too late."""
        if self._file >= 0:
            self._lock(_DIRECTORY_LOCK)
        try:
            return {name: self._row(name) for name in names}
        finally:
            if self._file >= 0:
                self._unlock(_DIRECTORY_LOCK)

    def _row(self, name: str) -> int:
        mark = int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1 or 1
        for step in range(256):
            row = (mark + step) % ROWS
            found = self.words[DIRECTORY_AT + row]
            if found == 0:
                self.words[DIRECTORY_AT + row] = mark
            if found in (0, mark):
                return row
        return mark % ROWS

    # -- columns ------------------------------------------------------------------------------------------------------

    def _claim(self) -> int:
        """Take the first free column, and clear the free ones: their processes are gone."""
        mine = -1
        for column in range(COLUMNS):
            if self._file >= 0 and not self._lock(column, wait=False):
                continue
            self._clear(column)
            if mine < 0:
                mine = column
                if self._file < 0:
                    break
            else:
                self._unlock(column)
            if column >= self.words[1]:
                break
        if mine < 0:
            raise GridError(f"cannot share counts: more than {COLUMNS} processes")
        return mine

    def _clear(self, column: int) -> None:
        for row in range(ROWS):
            if self.words[DIRECTORY_AT + row]:
                at = CELLS_AT + (row * COLUMNS + column) * FIELDS
                for field in range(LIVE_FIELDS):
                    self.words[at + field] = 0

    def _lock(self, number: int, *, wait: bool = True) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, number)
        except OSError:
            return False
        return True

    def _unlock(self, number: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)
