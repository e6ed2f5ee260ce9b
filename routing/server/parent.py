"""Keeps the router's child processes running; they share one port by SO_REUSEPORT and die with this process."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time

log = logging.getLogger("routing")

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Between fork and exec: the kernel ends the child when the parent ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class ChildSet:
    def __init__(self, argv: list[str], processes: int) -> None:
        self._argv = argv
        self._count = processes
        self._pipes: dict[int, int] = {}  # child number → write end of its control pipe
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = False

    async def run(self) -> int:
        """Until stop(); the exit code of a child that can't start at all."""
        results = await asyncio.gather(*[self._keep(number) for number in range(self._count)])
        return max(results, default=0)

    async def _keep(self, number: int) -> int:
        pause = 0.2
        while not self._stopping:
            began = time.monotonic()
            read_end, self._pipes[number] = os.pipe()
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "routing.server",
                *self._argv,
                "--control-fd",
                str(read_end),
                pass_fds=(read_end,),
                preexec_fn=die_with_parent,
            )
            os.close(read_end)
            self._children[number] = child
            code = await child.wait()
            os.close(self._pipes.pop(number))
            if self._stopping:
                break
            lived = time.monotonic() - began
            log.error("router.child_ended number=%d code=%d lived=%.1f", number, code, lived)
            pause = 0.2 if lived > 10 else min(pause * 2, 5.0)
            await asyncio.sleep(pause)
        return 0

    def notify_reload(self) -> None:
        for pipe in self._pipes.values():
            with contextlib.suppress(OSError):
                os.write(pipe, b"reload\n")

    def stop(self) -> None:
        self._stopping = True
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
