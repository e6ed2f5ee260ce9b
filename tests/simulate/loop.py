"""An event loop whose time moves only when nothing is left to do, and which can drop a whole process at once.

Everything that a simulated process scheduled carries its name in the context; once it is dead nothing of it runs
again, not even a `finally`: that is what kill -9 means.
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
        #: What would have run: kept, so that coroutines can be unwound at the very end, while the world stands still.
        self.dropped: list[Callable[[], Any]] = []
        self.tasks: list[asyncio.Task[Any]] = []  # kept: a collected coroutine would run its `finally`


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


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
        return super().call_soon(_living(callback, context), *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        context = context or contextvars.copy_context()
        return super().call_at(when, _living(callback, context), *args, context=context)

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
    if process is None:
        return callback

    def run(*args: Any) -> Any:
        if not process.dead:
            return callback(*args)
        process.dropped.append(lambda: callback(*args))
        return None

    return run


def _task(loop: Any, coroutine: Any, context: Any = None) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, context=context)
    if (process := PROCESS.get()) is not None:
        process.tasks.append(task)
        if len(process.tasks) > 200:
            process.tasks = [each for each in process.tasks if not each.done()]
    return task
