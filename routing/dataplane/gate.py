"""The places of one model that takes only so many requests at once, over all processes, and those who wait for one."""

import asyncio

from routing.domain.admission import Demand, FairQueue, may_start
from routing.grid import Grid

_RUNNING, _WAITING = 0, 1
#: What another process gives back is seen this soon.
LOOK_SECONDS = 0.01

Ticket = asyncio.Future[bool]


class Gate:
    def __init__(self, grid: Grid, row: int) -> None:
        self._grid, self._row, self._cell = grid, row, grid.cell(row)
        self._queue = FairQueue[Ticket]()
        self._limit = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def enter(self, key: str, *, limit: int, places: int, seconds: float) -> bool:
        """Take a place, within so many seconds; False: there is none. Who entered leaves."""
        self._limit = limit
        if not self._queue and self._may_start():
            self._run(1)
            return True
        ticket: Ticket = asyncio.get_running_loop().create_future()
        displaced = self._queue.put(key, ticket, places=places)
        if displaced is not None and not displaced.done():
            displaced.set_result(False)
        self._queued()
        try:
            async with asyncio.timeout(seconds):
                return await ticket
        except TimeoutError:
            return ticket.done() and not ticket.cancelled() and ticket.result()
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled() and ticket.result():
                self.leave()
            raise
        finally:
            self._queue.remove(key, ticket)
            self._queued()

    def leave(self) -> None:
        self._run(-1)
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and self._may_start():
            ticket = self._queue.pop()
            if ticket is not None and not ticket.done():
                self._run(1)
                ticket.set_result(True)
        self._queued()

    def _may_start(self) -> bool:
        mine = Demand(running=self._grid.words[self._cell + _RUNNING], waiting=len(self._queue))
        total = Demand(running=self._grid.total(self._row, _RUNNING), waiting=self._grid.total(self._row, _WAITING))
        return may_start(self._limit, mine, total)

    def _run(self, change: int) -> None:
        self._grid.words[self._cell + _RUNNING] += change

    def _queued(self) -> None:
        self._grid.words[self._cell + _WAITING] = len(self._queue)
        if self._queue and self._timer is None and not self._grid.alone:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        self._let_in()
