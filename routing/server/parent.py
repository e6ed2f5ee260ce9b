"""Keeps the router's child processes running; they share one port by SO_REUSEPORT and die with this process."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger("routing")

PR_SET_PDEATHSIG = 1
#: A child's exit code for a port that it can't have (EX_UNAVAILABLE of sysexits.h), and argparse's for a bad argument.
CANNOT_LISTEN, BAD_ARGUMENT = 69, 2
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, STABLE_SECONDS = 0.2, 5.0, 10.0


def die_with_parent() -> None:
    """Between fork and exec: the kernel ends the child when the parent ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _environment() -> dict[str, str]:
    """`-m routing.server` is found whatever the working folder is."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


class ChildSet:
    def __init__(
        self,
        argv: Sequence[str],
        processes: int,
        *,
        stop_seconds: float = 610.0,
        program: Sequence[str] = (sys.executable, "-m", "routing.server"),
    ) -> None:
        """`stop_seconds`: what a child has between TERM and KILL."""
        self.pids: set[int] = set()
        self._command = [*program, *argv]
        self._count = processes
        self._stop_seconds = stop_seconds
        self._stopping = asyncio.Event()
        self._pipes: dict[int, int] = {}  # child number → write end of its control pipe
        self._pipes_lock = threading.Lock()  # notify_reload comes from another thread

    async def run(self) -> int:
        """Until stop(): 0; or the exit code of a child that can't start at all, when the others are stopped too."""
        return max(await asyncio.gather(*[self._keep(number) for number in range(self._count)]), default=0)

    def stop(self) -> None:
        self._stopping.set()

    def notify_reload(self) -> None:
        with self._pipes_lock:
            for pipe in self._pipes.values():
                with contextlib.suppress(OSError):  # full: it has been told already
                    os.write(pipe, b"reload\n")

    async def _keep(self, number: int) -> int:
        pause, served = FIRST_PAUSE_SECONDS, False
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._one(number)
            if self._stopping.is_set():
                break
            lived = time.monotonic() - began
            log.error("router.child_ended number=%d code=%d lived=%.1f", number, code, lived)
            if code in (CANNOT_LISTEN, BAD_ARGUMENT) and not served:
                self.stop()
                return code
            served = served or code not in (CANNOT_LISTEN, BAD_ARGUMENT)
            pause = FIRST_PAUSE_SECONDS if lived > STABLE_SECONDS else min(pause * 2, LONGEST_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
        return 0

    async def _one(self, number: int) -> int:
        """Run one child until it ends; its exit code."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                "--control-fd",
                str(read_end),
                pass_fds=(read_end,),
                preexec_fn=die_with_parent,
                env=_environment(),
            )
        except OSError as error:
            log.error("router.unstarted number=%d error=%s", number, error.strerror)
            os.close(write_end)
            return 1
        finally:
            os.close(read_end)
        self.pids.add(child.pid)
        with self._pipes_lock:
            self._pipes[number] = write_end
        try:
            return await self._until_end(child)
        finally:
            self.pids.discard(child.pid)
            with self._pipes_lock:
                os.close(self._pipes.pop(number))

    async def _until_end(self, child: asyncio.subprocess.Process) -> int:
        ended, stopping = asyncio.ensure_future(child.wait()), asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for signal_, seconds in ((signal.SIGTERM, self._stop_seconds), (signal.SIGKILL, None)):
            if not ended.done():
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signal_)
                await asyncio.wait({ended}, timeout=seconds)
        return await ended
