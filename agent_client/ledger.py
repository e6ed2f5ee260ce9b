"""What this agent started, on disk with a checksum, so that a restarted agent adopts instead of starting twice.

The file is replaced whole by an atomic rename. Unreadable means `lost`: nothing is killed for its sake, and
nothing is started until the server has answered. A right checksum proves neither that it is the newest copy nor that
it is this agent's: what it tells counts only as far as living processes bear it out (supervisor.left_behind).
"""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_client.protocol.codec import read_part

SHARD_LONGEST = 200
PID_HIGHEST = 2**22  # PID_MAX_LIMIT in linux/threads.h
VERSION = 1  # a file of a later one is lost here: fields may be added, but none may change its meaning below it


@dataclass(slots=True, kw_only=True)
class Entry:
    """One engine. `pid` 0: it was about to be started. `start_time` in clock ticks since boot, from /proc/PID/stat."""

    shard: str
    epoch: int
    boot_id: str
    port: int
    spec: Mapping[str, Any] = field(default_factory=dict)
    pid: int = 0
    start_time: int = 0
    argv_hash: str = ""
    ready: bool = False
    endpoint: str = ""
    log_path: str = ""
    readiness: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()  # as it may be shown, without secrets
    env: Mapping[str, str] = field(default_factory=dict)  # the same
    cgroup: str = ""  # of its own, where one was permitted
    internal_ports: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.shard}@{self.epoch}"

    @property
    def ports(self) -> set[int]:
        return {self.port, *self.internal_ports}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    entries: tuple[Entry, ...]
    epochs: Mapping[str, int]
    version: int = VERSION


class Ledger:
    """Raises OSError when the file can't be written: then the caller starts nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.epochs: dict[str, int] = {}  # the highest order seen for each shard
        self.lost = False
        self._lock = threading.Lock()  # it is written from several threads, for a disk may be slow
        self._load()

    def highest_epoch(self, shard: str) -> int:
        return self.epochs.get(shard, 0)

    def record(self, entry: Entry) -> None:
        with self._lock:
            before = self.entries.get(entry.shard), self.epochs.get(entry.shard)
            self.entries[entry.shard] = entry
            self.epochs[entry.shard] = max(entry.epoch, self.highest_epoch(entry.shard))
            try:
                self._save()
            except OSError:
                self._restore(entry.shard, *before)
                raise

    def see(self, shard: str, epoch: int) -> None:
        """An order that was refused: nothing runs for it, but lower ones are stale."""
        with self._lock:
            before = self.epochs.get(shard)
            self.epochs[shard] = max(epoch, self.highest_epoch(shard))
            if self.epochs[shard] != before:
                self._save()

    def forget(self, shard: str, epoch: int) -> None:
        """The engine is gone; the highest epoch stays known. A disk that is full now is written at the next change."""
        with self._lock:
            entry = self.entries.get(shard)
            if entry is not None and entry.epoch == epoch:
                del self.entries[shard]
                with contextlib.suppress(OSError):
                    self._save()

    def forget_epochs(self, wanted: set[str]) -> None:
        """Shards that the server no longer wants need no epoch once their engine is gone."""
        with self._lock:
            kept = {shard: epoch for shard, epoch in self.epochs.items() if shard in wanted or shard in self.entries}
            if kept != self.epochs:
                self.epochs = kept
                with contextlib.suppress(OSError):
                    self._save()

    def _restore(self, shard: str, entry: Entry | None, epoch: int | None) -> None:
        if entry is None:
            self.entries.pop(shard, None)
        else:
            self.entries[shard] = entry
        if epoch is None:
            self.epochs.pop(shard, None)
        else:
            self.epochs[shard] = epoch

    def _load(self) -> None:
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError:
            self.lost = True
            return
        try:
            digest, _, body = raw.partition(b"\n")
            if hashlib.sha256(body).hexdigest().encode() != digest:
                raise ValueError("checksum")
            stored = read_part(_Stored, json.loads(body))
            if stored.version > VERSION or not all(map(_sensible, stored.entries)):
                raise ValueError("of another kind")
            self.entries = {entry.shard: entry for entry in stored.entries}
            self.epochs = dict(stored.epochs)
        except (ValueError, RecursionError):  # MessageError is a ValueError
            self.entries, self.epochs, self.lost = {}, {}, True

    def _save(self) -> None:
        entries = [asdict(entry) for entry in self.entries.values()]
        data = {"version": VERSION, "entries": entries, "epochs": self.epochs}
        body = json.dumps(data).encode()
        temporary = self.path.with_suffix(".new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        self.lost = False


def _sensible(entry: Entry) -> bool:
    """Names become names of files, and numbers are given to the kernel, to which 0 and -1 as pids mean many."""
    numbers = (entry.epoch, entry.pid, entry.start_time)
    ports = (entry.port, *entry.internal_ports)
    named = entry.shard.isprintable() and 0 < len(entry.shard) <= SHARD_LONGEST
    return named and min(numbers) >= 0 and entry.pid <= PID_HIGHEST and all(0 <= port < 65_536 for port in ports)
