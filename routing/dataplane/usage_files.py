"""Where usage is written: to a spool that the feed takes into the database, or, without one, to a log of its own."""

import errno
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path


class Spool:
    """Whole files in a folder: those that end in `.ready` are for whoever takes them in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def write(self, pieces: Iterable[bytes]) -> None:
        self._number += 1
        name = self._folder / f"usage-{os.getpid()}-{time.time_ns()}-{self._number}"
        self._folder.mkdir(parents=True, exist_ok=True)
        with name.with_suffix(".new").open("wb") as file:
            for piece in pieces:
                file.write(piece)
        name.with_suffix(".new").replace(name.with_suffix(".ready"))


class UsageLog:
    """JSON lines at the end of one file, which all processes share. It is opened for each batch, so it may be moved
    away at any time (logrotate needs no signal); what can't be written whole is taken back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, pieces: Iterable[bytes]) -> None:
        with self._path.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = os.fstat(file.fileno()).st_size
            try:
                for piece in pieces:
                    if file.write(piece) != len(piece):
                        raise OSError(errno.ENOSPC, "it took a part of the usage only", str(self._path))
            except OSError:
                file.truncate(before)
                raise
