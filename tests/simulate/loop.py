"""An event loop whose time moves only when nothing is left to do, and which can drop a whole process at once.

Everything that a simulated process scheduled carries its name in the context; once it is dead nothing of it runs
again, not even a `finally`: that is what kill -9 means. One that is paused runs later, with all that came due.
"""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any


class Process:
    """A process of the simulation; `node` where it is an agent's."""

    def __init__(self, name: str, node: Any = None) -> None:
        self.name, self.node = name, node
        self.dead = False
        self.paused = False  # as SIGSTOP does; what comes due is kept, and runs once it goes on
        self.held: list[_Living] = []
        #: What would have run: kept, so that coroutines can be unwound at the very end, while the world stands still.
        self.dropped: list[Callable[[], Any]] = []
        self.tasks: list[asyncio.Task[Any]] = []  # kept: a collected coroutine would run its `finally`


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Living:
    """A scheduled call of a process: nothing while that is dead, later while it is paused."""

    __slots__ = ("args", "callback", "context", "handle", "process")

    def __init__(self, callback: Callable[..., Any], process: Process, context: contextvars.Context) -> None:
        self.callback, self.process, self.context = callback, process, context
        self.handle: asyncio.Handle | None = None
        self.args: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> Any:
        if self.process.dead:
            self.process.dropped.append(lambda: self.callback(*args))
            return None
        if self.process.paused:
            self.args = args
            self.process.held.append(self)
            return None
        return self.callback(*args)

    def again(self) -> None:
        """What has been cancelled meanwhile, by what was due before it, is not called."""
        if self.handle is None or not self.handle.cancelled():
            self(*self.args)


class Blocked(Exception):
    """Raised in an executor's call: its thread never comes back."""


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self._selector = self
        self._readers: dict[int, Callable[[], None]] = {}
        self.set_task_factory(_task)
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.errors.append(context))

    # -- time and the selector that there is none of -----------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the simulation waits for nothing")
        if timeout > 0:
            self._now += max(timeout, 1e-6)  # less is lost in rounding, and time would stand still
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # -- what is scheduled belongs to a process ----------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        context = context or contextvars.copy_context()
        callback = _living(callback, context)
        return _held_by(callback, super().call_soon(callback, *args, context=context))

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        context = context or contextvars.copy_context()
        callback = _living(callback, context)
        return _held_by(callback, super().call_at(when, callback, *args, context=context))

    def go_on(self, process: Process) -> None:
        """A paused process: all that came due is there at once, in its order."""
        process.paused = False
        held, process.held = process.held, []
        for each in held:
            super().call_soon(each.again, context=each.context)

    def from_outside(self, when: float, callback: Any, *args: Any) -> Any:
        """At a time, as the network's, a kernel's or the world's doing: whoever set it off may be dead by then."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, None)
        return self.call_at(when, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """At once: threads would make two runs of one seed differ."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Blocked:
            pass
        except Exception as error:
            future.set_exception(error)
        return future

    # -- readers and signals -----------------------------------------------------------------------------------------

    def add_reader(self, fd: int, callback: Any, *args: Any) -> None:
        context = contextvars.copy_context()
        self._readers[fd] = lambda: self.call_soon(callback, *args, context=context)

    def remove_reader(self, fd: int) -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        if callback := self._readers.get(fd):
            callback()

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        pass


def _living(callback: Any, context: contextvars.Context) -> Any:
    process = context.get(PROCESS)
    return callback if process is None else _Living(callback, process, context)


def _held_by(callback: Any, handle: Any) -> Any:
    if isinstance(callback, _Living):
        callback.handle = handle
    return handle


def _task(loop: Any, coroutine: Any, context: Any = None) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, context=context)
    if (process := PROCESS.get()) is not None:
        process.tasks.append(task)
        if len(process.tasks) > 200:
            process.tasks = [each for each in process.tasks if not each.done()]
    return task
