"""Keeps the router's child processes running; they share one port by SO_REUSEPORT and die with this process.

A child is replaced without a gap: the new one takes connections first, then the old one stops and ends its answers.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.server.listening import BAD_ARGUMENT, CANNOT_LISTEN

log = logging.getLogger("routing")

PR_SET_PDEATHSIG = 1
READY_SECONDS = 30.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, STABLE_SECONDS = 0.2, 5.0, 10.0


def die_with_parent() -> None:
    """Between fork and exec: the kernel ends the child when the parent ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def environment() -> dict[str, str]:
    """`-m routing.server` is found whatever the working folder is."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


Awaited = asyncio.Future[int] | asyncio.Future[bool] | asyncio.Event


@dataclass(eq=False, slots=True, kw_only=True)
class Child:
    process: asyncio.subprocess.Process
    ended: asyncio.Future[int]
    ready: asyncio.Future[bool]
    control: int  # the write end of its pipe
    began: float


class ChildSet:
    def __init__(
        self,
        argv: Sequence[str],
        processes: int,
        *,
        stop_seconds: float = 610.0,
        program: Sequence[str] = (sys.executable, "-m", "routing.server"),
        listeners: Sequence[socket.socket] = (),
        handed: Sequence[int] = (),
    ) -> None:
        """`stop_seconds`: what a child has between TERM and KILL. `listeners`: one for each child, else it opens its
        own. `handed`: file descriptors that each child gets under the same numbers."""
        self._command = [*program, *argv]
        self._count = processes
        self._stop_seconds = stop_seconds
        self._listeners = listeners
        self._handed = handed
        self._stopping = asyncio.Event()
        self._renewals = [asyncio.Event() for _ in range(processes)]
        self._children: set[Child] = set()
        self._lock = threading.Lock()  # notify_reload comes from another thread
        self._leaving: set[asyncio.Future[None]] = set()

    @property
    def pids(self) -> set[int]:
        return {child.process.pid for child in self._children}

    async def run(self) -> int:
        """Until stop(): 0; or the exit code of a child that can't start at all, when the others are stopped too."""
        code = max(await asyncio.gather(*[self._keep(number) for number in range(self._count)]), default=0)
        if self._leaving:
            await asyncio.wait(self._leaving)
        return code

    def stop(self) -> None:
        self._stopping.set()

    def renew(self) -> None:
        """Replace all children by new ones, without a gap."""
        for renewal in self._renewals:
            renewal.set()

    def notify_reload(self) -> None:
        with self._lock:
            for child in self._children:
                with contextlib.suppress(OSError):  # full: it has been told already
                    os.write(child.control, b"reload\n")

    async def _keep(self, number: int) -> int:
        pause, served = FIRST_PAUSE_SECONDS, False
        child: Child | None = None
        while not self._stopping.is_set():
            child = child or await self._start(number)
            if child is not None:
                await self._any(child.ended, self._renewals[number])
                if not child.ended.done() and not self._stopping.is_set():
                    child = await self._replace(child, number)
                    continue
            if self._stopping.is_set():
                break
            code, lived = (child.ended.result(), time.monotonic() - child.began) if child else (1, 0.0)
            child = None
            log.error("router.child_ended number=%d code=%d lived=%.1f", number, code, lived)
            if code in (CANNOT_LISTEN, BAD_ARGUMENT) and not served:
                self.stop()
                return code
            served = served or code not in (CANNOT_LISTEN, BAD_ARGUMENT)
            pause = FIRST_PAUSE_SECONDS if lived > STABLE_SECONDS else min(pause * 2, LONGEST_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
        if child is not None:
            await self._end(child)
        return 0

    async def _replace(self, old: Child, number: int) -> Child:
        """The new child, when it takes requests; else the old one goes on."""
        self._renewals[number].clear()
        new = await self._start(number)
        if new is None:
            return old
        await self._any(new.ready, new.ended, seconds=READY_SECONDS)
        if not new.ready.done() or not new.ready.result():
            log.error("router.not_renewed number=%d", number)
            await self._end(new, seconds=0.0)
            return old
        leaving = asyncio.ensure_future(self._end(old))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return new

    async def _start(self, number: int) -> Child | None:
        (control_read, control), (ready_read, ready_write) = os.pipe(), os.pipe()
        os.set_blocking(control, False)
        handed = [control_read, ready_write, *self._handed]
        argv = [*self._command, "--control-fd", str(control_read), "--ready-fd", str(ready_write)]
        if self._listeners:
            handed.append(self._listeners[number].fileno())
            argv += ["--listen-fd", str(handed[-1])]
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, pass_fds=handed, preexec_fn=die_with_parent, env=environment()
            )
        except OSError as error:
            log.error("router.unstarted number=%d error=%s", number, error.strerror)
            os.close(control)
            os.close(ready_read)
            return None
        finally:
            os.close(control_read)
            os.close(ready_write)
        child = Child(
            process=process,
            ended=asyncio.ensure_future(process.wait()),
            ready=_ready(ready_read),
            control=control,
            began=time.monotonic(),
        )
        with self._lock:
            self._children.add(child)
        child.ended.add_done_callback(lambda _: self._forget(child))
        return child

    def _forget(self, child: Child) -> None:
        with self._lock:
            self._children.discard(child)
            os.close(child.control)

    async def _end(self, child: Child, *, seconds: float | None = None) -> None:
        limit = self._stop_seconds if seconds is None else seconds
        for signal_, patience in ((signal.SIGTERM, limit), (signal.SIGKILL, None)):
            if not child.ended.done():
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal_)
                await asyncio.wait({child.ended}, timeout=patience)

    async def _any(self, *awaited: Awaited, seconds: float | None = None) -> None:
        """Wait for the first of these, or for the stop."""
        waits = [asyncio.ensure_future(e.wait()) for e in (*awaited, self._stopping) if isinstance(e, asyncio.Event)]
        futures: list[Any] = [each for each in awaited if not isinstance(each, asyncio.Event)]
        await asyncio.wait([*waits, *futures], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


def _ready(pipe: int) -> asyncio.Future[bool]:
    """Whether the child says that it takes requests; False: it ended before."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()

    def readable() -> None:
        loop.remove_reader(pipe)
        ready.set_result(bool(os.read(pipe, 64)))
        os.close(pipe)

    loop.add_reader(pipe, readable)
    return ready
