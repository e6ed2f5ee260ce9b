"""Keeps named child processes running; each dies with this process, and a crashed one comes back after a pause."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from routing.server.parent import die_with_parent

FIRST_PAUSE, LONGEST_PAUSE, STABLE_SECONDS = 0.5, 30.0, 30.0


@dataclass(slots=True, kw_only=True)
class Child:
    name: str
    argv: list[str]
    env: Mapping[str, str]
    log: Path
    stop_seconds: float = 10.0
    process: "subprocess.Popen[bytes] | None" = None
    began: float = 0.0
    again_at: float = 0.0
    failures: int = 0


@dataclass(slots=True)
class Children:
    kept: list[Child] = field(default_factory=list)

    def start(self, child: Child) -> None:
        self.kept.append(child)
        _spawn(child)

    def look(self) -> None:
        """Restart what has ended and waited long enough; call it often."""
        now = time.monotonic()
        for child in self.kept:
            if child.process is not None and (code := child.process.poll()) is not None:
                child.failures = 1 if now - child.began > STABLE_SECONDS else child.failures + 1
                pause = min(FIRST_PAUSE * 2 ** (child.failures - 1), LONGEST_PAUSE)
                say(f"{child.name} ended with code {code}; it starts again in {pause:g} s (log: {child.log})")
                child.process, child.again_at = None, now + pause
            if child.process is None and now >= child.again_at:
                _spawn(child)

    def stop(self) -> None:
        """TERM in reverse order, each with its time, then KILL."""
        for child in reversed(self.kept):
            if child.process is None or child.process.poll() is not None:
                continue
            child.process.terminate()
            try:
                child.process.wait(child.stop_seconds)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _spawn(child: Child) -> None:
    child.log.parent.mkdir(parents=True, exist_ok=True)
    with child.log.open("ab") as log:
        child.process = subprocess.Popen(
            child.argv,
            env=dict(child.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (this process has no threads)
        )
    child.began = time.monotonic()


def _die_with_parent() -> None:
    """Between fork and exec: no orphan after a kill -9 of the parent, and no Ctrl-C of the terminal's own."""
    die_with_parent()
    os.setpgid(0, 0)
