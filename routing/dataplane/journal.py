"""What is written while requests are served, by a thread of its own: a slow disk or a full pipe holds nobody up."""

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable

import msgspec

from routing.dataplane.usage_files import Spool, UsageLog

log = logging.getLogger("routing")

EVERY_SECONDS = 0.5
#: What waits for a disk that takes nothing. Usage over it is counted and lost, lines of the access log are lost first.
USAGE_ROWS, LOG_LINES = 200_000, 20_000
#: Nothing is served while a batch is encoded, and memory once taken for a large one is kept.
BATCH_ROWS = 500


class Used(msgspec.Struct, gc=False):
    """What one request took of an engine."""

    uid: str
    at: float
    key: str | None
    model: str
    endpoint: str
    path: str
    status: int | None
    completed: bool
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float


class Line(msgspec.Struct, gc=False, tag_field="event", tag="request"):
    """Of the access log."""

    at: float
    id: str
    key: str | None
    method: str
    path: str
    model: str | None
    endpoint: str | None
    status: int | None
    ms: float


class Journal:
    def __init__(self, usage: Spool | UsageLog | None = None, log_file: int | None = None) -> None:
        """`usage`: None keeps none. `log_file`: a file descriptor for the access log."""
        self._usage, self._log_file = usage, log_file
        self._rows: deque[Used] = deque(maxlen=USAGE_ROWS)
        self._lines: deque[Line] = deque(maxlen=LOG_LINES)
        self._encode = msgspec.json.Encoder().encode_lines
        self._lost: dict[str, int] = {}
        self._trouble: dict[Callable[[], None], int | None] = {}  # the errno last said
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self.chores: list[Callable[[], None]] = []  # what else is written now and then

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write the last of it."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self.flush()

    def usage(self, row: Used) -> None:
        if self._usage is not None:
            if len(self._rows) == USAGE_ROWS:
                self._lose("usage")
            self._rows.append(row)

    def line(self, line: Line) -> None:
        if self._log_file is not None:
            if len(self._lines) == LOG_LINES:
                self._lose("access_log")
            self._lines.append(line)

    def _lose(self, kind: str, rows: int = 1) -> None:
        self._lost[kind] = self._lost.get(kind, 0) + rows

    def lost(self) -> dict[str, int]:
        """How many rows of what kind were lost since this was asked last."""
        lost, self._lost = self._lost, {}
        return lost

    def _run(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self.flush()

    def flush(self) -> None:
        """What can't be written is said once, until it can: the log may lie on the same disk."""
        for work in (self._write_lines, self._write_usage, *self.chores):
            try:
                work()
                self._trouble.pop(work, None)
            except OSError as error:
                if self._trouble.get(work) != error.errno:
                    log.error(json.dumps({"event": "unwritten", "path": error.filename, "error": error.strerror}))
                self._trouble[work] = error.errno

    def _write_lines(self) -> None:
        while self._lines and self._log_file is not None:
            data = self._encode([self._lines.popleft() for _ in range(min(len(self._lines), BATCH_ROWS))])
            while data:
                data = data[os.write(self._log_file, data) :]

    def _write_usage(self) -> None:
        if not self._rows or self._usage is None:
            return
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        try:
            self._usage.write(self._encode(rows[at : at + BATCH_ROWS]) for at in range(0, len(rows), BATCH_ROWS))
        except OSError:
            room = USAGE_ROWS - len(self._rows)
            if len(rows) > room:
                self._lose("usage", len(rows) - room)
            self._rows.extendleft(reversed(rows[:room]))
            raise
