"""An event loop with real sockets, and a clock that the test puts forward: minutes of silence in a second."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class ShiftedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.shift = 0.0

    def time(self) -> float:
        return super().time() + self.shift


async def let_pass(seconds: float, *, step: float = 0.5, each: Callable[[], object] = lambda: None) -> None:
    """Put the clock forward step by step, doing what becomes due; `each` is called after every step."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ShiftedLoop)
    end = loop.time() + seconds
    while loop.time() < end:
        loop.shift += step
        for _ in range(3):  # what was due wrote something, which the other end reads, and answers
            await asyncio.sleep(0)
        each()


def in_shifted_time(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=ShiftedLoop) as runner:
        runner.run(test)
