"""Whether a request may start now: its model is there, its key has something left, and there is a place for it."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from routing.dataplane.gate import Gate
from routing.dataplane.meters import Meter
from routing.grid import Grid
from routing.keys import Key
from routing.table import Route, RoutingTable


class Admission:
    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.gates: dict[str, Gate] = {}
        self._meters: dict[str, Meter] = {}
        self._held: set[asyncio.Future[None]] = set()

    def update(self, table: RoutingTable) -> None:
        self._limited = limited = {key.id: key for key in table.keys.values() if key.limits.any}
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
                while route.state == "loading" and not route.routable:
                    changed = asyncio.get_running_loop().create_future()
                    self._held.add(changed)
                    try:
                        await changed
                    finally:
                        self._held.discard(changed)
                    route = current() or route
        return route

    def meter(self, key: Key | None) -> Meter | None:
        """What counts for a key that is limited."""
        return self._meters.get(key.id) if key is not None and key.id in self._limited else None

    async def enter(self, route: Route, key: Key | None) -> Gate | None:
        """A place at the model, to be left again; None: all are taken, and those to wait in, too."""
        gate = self.gates[route.name]
        owner = key.id if key else ""
        entered = await gate.enter(owner, limit=route.concurrency, places=route.queue, seconds=route.queue_seconds)
        return gate if entered else None
