"""Runs a vendor's tool that may hang in the driver, print without end or leave children behind."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

DEADLINE_SECONDS = 5.0
#: More is no report of a machine's cards.
LARGEST_BYTES = 16 * 1024 * 1024
#: How long a killed program may take to go; in state D it can't be waited for and is left behind.
AFTER_KILL_SECONDS = 1.0
_TICK_SECONDS = 0.05

#: Killed and not gone: in state D inside the driver. Kept so that they are reaped, and so that no second one joins.
_abandoned: dict[str, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    code: int | None  # as the shell says it; None: no whole answer in time
    output: str = ""
    errors: str = ""

    @property
    def text(self) -> str:
        """Both streams: tools complain on either. A report that was cut off is none."""
        return self.errors if self.code is None else self.output + self.errors

    @property
    def complaint(self) -> str:
        """What went wrong, in one short line: the last line says it best."""
        lines = [line.strip() for line in (self.errors or self.output).splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self.code}"


def run(argv: Sequence[str], *, deadline_seconds: float = DEADLINE_SECONDS, name: str | None = None) -> Output:
    """In its own session, killed with all its children at the deadline. While an earlier run of the same `name` (else
    program) can't be killed, none is started. Too late, `output` has what was said until then."""
    name = name or argv[0]
    stuck = _abandoned.get(name)
    if stuck is not None:
        if stuck.poll() is None:
            return Output(code=None, errors=f"an earlier run (pid {stuck.pid}) still hangs and can't be killed")
        del _abandoned[name]
    try:
        child = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return Output(code=127, errors=f"{argv[0]}: {why}")
    try:
        output, errors, in_time = _collect(child, time.monotonic() + deadline_seconds)
    finally:
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    if not in_time or child.poll() is None:
        _end(name, child)
    if not in_time:
        return Output(code=None, output=_text(output), errors=f"it did not answer within {deadline_seconds:g} s")
    if len(output) + len(errors) > LARGEST_BYTES:
        return Output(code=None, errors=f"it printed more than {LARGEST_BYTES >> 20} MiB")
    return Output(code=child.returncode, output=_text(output), errors=_text(errors))


def is_stuck(name: str) -> bool:
    """An earlier run of that name was killed and is still there."""
    child = _abandoned.get(name)
    return child is not None and child.poll() is None


def run_quietly(argv: Sequence[str], deadline_seconds: float) -> str | None:
    """Both streams of a program that ended by itself in time, whatever its exit code; else None."""
    done = run(argv, deadline_seconds=deadline_seconds, name=" ".join(argv))
    return None if done.code is None else done.text


def _collect(child: subprocess.Popen[bytes], until: float) -> tuple[bytes, bytes, bool]:
    """Both streams, and whether it ended in time. A grandchild that keeps a stream is not waited for."""
    if child.stdout is None or child.stderr is None:
        raise AssertionError("both streams are pipes")
    parts = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    output, errors = parts.values()
    with selectors.DefaultSelector() as selector:
        for descriptor in parts:
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            events = selector.select(min(left, _TICK_SECONDS))
            for key, _ in events:
                chunk = os.read(key.fd, 1 << 16)
                parts[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            if len(output) + len(errors) > LARGEST_BYTES:
                return bytes(output), bytes(errors), True
            if not selector.get_map():
                with suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=max(0.0, until - time.monotonic()))
                return bytes(output), bytes(errors), child.poll() is not None
            if not events and child.poll() is not None:
                return bytes(output), bytes(errors), True
    return bytes(output), bytes(errors), False


def _end(name: str, child: subprocess.Popen[bytes]) -> None:
    # The leader is not reaped yet, so the group's number still belongs to it.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(timeout=AFTER_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        _abandoned[name] = child


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
