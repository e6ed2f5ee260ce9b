"""Whether a request may start now: its model is there, its key has something left, and there is a place for it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from routing.dataplane.gate import Gate
from routing.dataplane.meters import Meter
from routing.domain.limits import Exceeded
from routing.grid import Grid
from routing.keys import Key
from routing.table import Route, RoutingTable


class Charged(Protocol):
    @property
    def tokens(self) -> int: ...


class Admission:
    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.gates: dict[str, Gate] = {}
        self._meters: dict[str, Meter] = {}
        self._held: set[asyncio.Future[None]] = set()

    def update(self, table: RoutingTable) -> None:
        limited = {key.id: key for key in table.keys.values() if key.limits.any}
        gated = {route.name for route in table.routes.values() if route.concurrency}
        names = [f"key:{each}" for each in limited if each not in self._meters]
        names += [f"model:{each}" for each in gated if each not in self.gates]
        for name, row in self._grid.rows(names).items():
            kind, _, each = name.partition(":")
            if kind == "key":
                self._meters[each] = Meter(self._grid, row)
            else:
                self.gates[each] = Gate(self._grid, row)
        for each, key in limited.items():
            self._meters[each].update(key.limits, key.used_tokens, time.time())
        for held in self._held:
            if not held.done():
                held.set_result(None)

    async def hold(self, route: Route, current: Callable[[], Route | None]) -> Route:
        """The route as it is when it can be served, or when its time for waiting is over."""
        if route.state != "loading" or not route.hold_seconds:
            return route
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(route.hold_seconds):
                while route.state == "loading" and all(each.draining for each in route.endpoints):
                    changed = asyncio.get_running_loop().create_future()
                    self._held.add(changed)
                    try:
                        await changed
                    finally:
                        self._held.discard(changed)
                    route = current() or route
        return route

    @contextlib.contextmanager
    def charged(self, key: Key | None, body_bytes: int, charged: Charged) -> Iterator[Exceeded | None]:
        """Charge the key for the request, for as long as it takes; or why it may not come."""
        if key is None or not key.limits.any:
            yield None
            return
        meter = self._meters[key.id]
        too_much = meter.admit(body_bytes, time.time())
        if too_much is not None:
            yield too_much
            return
        try:
            yield None
        finally:
            meter.settle(body_bytes, charged.tokens, time.time())

    @contextlib.asynccontextmanager
    async def place(self, route: Route, key: Key | None) -> AsyncIterator[bool]:
        """A place at the model, for as long as it is used; False: all are taken, and those to wait in, too."""
        if not route.concurrency:
            yield True
            return
        gate = self.gates[route.name]
        owner = key.id if key else ""
        if not await gate.enter(owner, limit=route.concurrency, places=route.queue, seconds=route.queue_seconds):
            yield False
            return
        try:
            yield True
        finally:
            gate.leave()
