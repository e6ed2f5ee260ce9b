"""Where the router's processes keep the counts that they share: how it is laid out, and the file that holds it."""

import os
from pathlib import Path

COLUMNS = 32
ROWS = 16_384
FIELDS = 8

HEAD, HINTS, SUSPECTS = 64, 65_536, 1024
DIRECTORY_AT = HEAD
HINTS_AT = DIRECTORY_AT + ROWS
SUSPECTS_AT = HINTS_AT + HINTS
CELLS_AT = SUSPECTS_AT + SUSPECTS
WORDS = CELLS_AT + ROWS * COLUMNS * FIELDS
SIZE_BYTES = WORDS * 8  # 34 MB on disk; in memory only the pages that are used


def on_disk(path: Path) -> int:
    """A file descriptor of the file, made where it is not there; its counts outlive a restart. Raises OSError.

    All its blocks are taken before it is used: a page for which the disk has no room left would end whoever writes to
    it with a SIGBUS.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        before = os.fstat(file).st_size
        try:
            os.posix_fallocate(file, 0, SIZE_BYTES)
        except OSError:
            os.ftruncate(file, before)  # what it took of the last room is wanted elsewhere
            raise
    except OSError as error:
        os.close(file)
        error.filename = str(path)
        raise
    return file


def in_memory() -> int:
    """The same without a disk: for processes that are handed this file descriptor, as long as one of them lives."""
    file = os.memfd_create("llmgw-router-grid")
    os.ftruncate(file, SIZE_BYTES)
    return file
