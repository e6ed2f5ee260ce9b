"""Runs a program that may hang in the driver: own session, deadline, cap on output, bounded wait after the kill."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

LARGEST_BYTES = 16 * 1024 * 1024
AFTER_KILL_SECONDS = 1.0
_TICK_SECONDS = 0.05

#: Killed and not gone: in state D inside the driver. Kept so that they are reaped, and so that no second one joins.
_abandoned: dict[str, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    code: int | None  # None: no answer in time
    text: str


def run(argv: Sequence[str], *, deadline_seconds: float) -> Output:
    """Standard output and error together. While an earlier run of this program can't be killed, none is started."""
    stuck = _abandoned.get(argv[0])
    if stuck is not None:
        if stuck.poll() is None:
            return Output(code=None, text=f"an earlier run (pid {stuck.pid}) still hangs and can't be killed")
        del _abandoned[argv[0]]
    try:
        child = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Output(code=127, text=str(error))
    with child.stdout or open(os.devnull, "rb") as pipe:
        output, in_time = _collect(child, pipe.fileno(), time.monotonic() + deadline_seconds)
    if not in_time or child.poll() is None:
        _end(argv[0], child)
    if not in_time:
        return Output(code=None, text=f"it did not answer within {deadline_seconds:g} s")
    if len(output) > LARGEST_BYTES:
        return Output(code=child.returncode, text=f"it printed more than {LARGEST_BYTES} bytes")
    return Output(code=child.returncode, text=output.decode("utf-8", errors="replace"))


def _collect(child: subprocess.Popen[bytes], pipe: int, until: float) -> tuple[bytes, bool]:
    """What it prints, and whether it ended in time. A grandchild that keeps the pipe is not waited for."""
    output = bytearray()
    os.set_blocking(pipe, False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if selector.select(min(left, _TICK_SECONDS)):
                chunk = os.read(pipe, 1 << 16)
                output += chunk
                if len(output) > LARGEST_BYTES:
                    return bytes(output), True
                if not chunk:
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(timeout=max(0.0, until - time.monotonic()))
                    return bytes(output), child.poll() is not None
            elif child.poll() is not None:
                return bytes(output), True
    return bytes(output), False


def _end(name: str, child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(timeout=AFTER_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        _abandoned[name] = child
