"""Runs a vendor's tool with a deadline. It may hang in the driver, print without end, or leave children behind."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

DEADLINE_SECONDS = 5.0
#: More is no report of a machine's cards.
MOST_OUTPUT_BYTES = 8 * 1024 * 1024
#: How long a killed program may take to go; in state D it can't be waited for and is left behind.
_KILL_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """`code` as the shell says it: 127 could not start, 124 too slow or too much output, below 0 a signal."""

    code: int
    output: str = ""
    errors: str = ""

    @property
    def complaint(self) -> str:
        """What went wrong, in one short line: tools complain on either stream, the last line says it best."""
        lines = [line.strip() for line in (self.errors or self.output).splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self.code}"


def run(argv: Sequence[str], *, deadline_seconds: float = DEADLINE_SECONDS) -> Finished:
    """Start it in its own session, wait for its end and that of its children; kill them all at the deadline."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Finished(code=127, errors=f"{argv[0]}: {error.strerror}")
    deadline = time.monotonic() + deadline_seconds
    try:
        output, errors, trouble = _collect(child, deadline)
        if trouble is None:
            try:
                child.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                trouble = _too_slow(deadline_seconds)
        elif trouble == "":
            trouble = _too_slow(deadline_seconds)
        if trouble is not None:
            _kill(child)
            return Finished(code=124, output=_text(output), errors=trouble)
        return Finished(code=child.returncode, output=_text(output), errors=_text(errors))
    finally:
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def _collect(child: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes, str | None]:
    """Both streams until their ends. The third: None at the ends, "" at the deadline, else what was wrong."""
    if child.stdout is None or child.stderr is None:
        raise AssertionError("both streams are pipes")
    parts: dict[int, bytearray] = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    output, errors = parts.values()
    trouble: str | None = None
    with selectors.DefaultSelector() as selector:
        for descriptor in parts:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and trouble is None:
            left = deadline - time.monotonic()
            events = selector.select(left) if left > 0 else []
            if not events and deadline <= time.monotonic():
                trouble = ""
            for key, _ in events:
                data = os.read(key.fd, 65_536)
                parts[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if len(output) + len(errors) > MOST_OUTPUT_BYTES:
                trouble = f"it printed more than {MOST_OUTPUT_BYTES >> 20} MiB"
    return bytes(output), bytes(errors), trouble


def _kill(child: subprocess.Popen[bytes]) -> None:
    # The leader is not reaped yet, so the group's number still belongs to it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_KILL_WAIT_SECONDS)


def _too_slow(deadline_seconds: float) -> str:
    return f"it did not answer within {deadline_seconds:g} s"


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
