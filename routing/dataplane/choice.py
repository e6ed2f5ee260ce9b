"""Who gets a request, and what became of those who got one: loads over all processes, ejection, second attempts."""

import asyncio
import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from random import random
from zlib import crc32

from routing.dataplane.messages import Request
from routing.domain import affinity, select
from routing.domain.budget import RetryBudget
from routing.domain.poison import Suspects
from routing.domain.select import Load
from routing.grid import Grid
from routing.table import Endpoint, Route, RoutingTable

log = logging.getLogger("routing")

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")

PROBE_SECONDS = 2.0
LOOK_SECONDS = 0.2

#: Fields of an endpoint's cells, and of the row that tells of changes: what a process has under way; until when it
#: leaves the endpoint out; how often it changed its mind.
_OUTSTANDING, _OUT_UNTIL, _CHANGES = 0, 1, 2
#: So long after its next probe the word of a process that says no more is forgotten.
FORGOTTEN_SECONDS = PROBE_SECONDS + 1.0


class Chooser:
    def __init__(self, grid: Grid, count: Callable[[str, str, str], None]) -> None:
        """`count`: told the kind, model and endpoint of what happened."""
        self.loads: dict[str, Load] = defaultdict(Load)
        self._grid = grid
        self._count = count
        self._suspects = Suspects(grid.suspects)
        self._budgets: dict[str, RetryBudget] = defaultdict(RetryBudget)
        self._rows: dict[str, int] = {}
        self._cells: dict[str, int] = {}
        self._words: dict[int, str] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._turn = 0
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._changes_row = grid.rows(["ejections"])["ejections"]
        self._changes = -1  # as last heard
        self._hear_at = 0.0  # when the soonest of the others' words is forgotten

    def update(self, table: RoutingTable) -> None:
        endpoints = {each.id: each for route in table.routes.values() for each in route.endpoints}
        for gone in [each for each, load in self.loads.items() if each not in endpoints and not load.outstanding]:
            del self.loads[gone]
        self._endpoints = endpoints
        self._rows |= self._grid.rows(each for each in endpoints if each not in self._rows)
        self._cells = {each: self._grid.cell(row) for each, row in self._rows.items()}
        self._words = {affinity.word_of(each): each for each in endpoints}
        self._changes = -1

    # -- before -------------------------------------------------------------------------------------------------------

    def choose(self, route: Route, request: Request, tried: Collection[str]) -> Endpoint | None:
        if len(route.endpoints) == 1 and not tried:
            only = route.endpoints[0]
            if not only.draining and only.weight > 0 and not self.loads[only.id].health.reason:
                return only
        alone = self._grid.alone
        if not alone:
            self._hear()
        fit, panic = select.routable(route.endpoints, self.loads, tried)
        if panic:
            self._count("panics", route.name, "")
        if len(fit) < 2:
            return fit[0] if fit else None
        if not alone:
            for each in fit:
                load = self.loads[each.id]
                load.elsewhere = self._grid.total(self._rows[each.id], _OUTSTANDING) - load.outstanding
        if route.sticky and (session := request.field(route.sticky)):
            return affinity.by_header(session, fit)
        fit = select.speaking(fit, self.loads, time.monotonic())
        preferred, sums = None, list[int]()
        if route.affinity and request.form is None:
            sums = affinity.beginnings(route.name, request.body)
            preferred = self._words.get(affinity.remembered(self._grid.hints, sums)) if sums else None
        chosen = select.pick(fit, self.loads, preferred=preferred, draws=None if alone else (random(), random()))
        if sums and chosen is not None:
            affinity.remember(self._grid.hints, sums, affinity.word_of(chosen.id))
        return chosen

    def begin(self, endpoint: Endpoint, *, stream: bool = False) -> None:
        load = self.loads[endpoint.id]
        self._turn += 1
        load.turn = self._turn
        if not load.outstanding:
            load.moved_at = time.monotonic()
        if stream:
            if not load.streams:
                load.owing_since = time.monotonic()
            load.streams += 1
        load.outstanding += 1
        if (cell := self._cells.get(endpoint.id)) is not None:
            self._grid.words[cell + _OUTSTANDING] = load.outstanding

    def end(self, endpoint: Endpoint, *, stream: bool = False) -> None:
        load = self.loads[endpoint.id]
        load.outstanding -= 1
        load.streams -= stream
        if (cell := self._cells.get(endpoint.id)) is not None:
            self._grid.words[cell + _OUTSTANDING] = load.outstanding

    # -- after --------------------------------------------------------------------------------------------------------

    def came(self, route: Route) -> None:
        self._budgets[route.name].deposit()

    def may_retry(self, route: Route) -> bool:
        return self._budgets[route.name].withdraw()

    def answered(self, route: Route, endpoint: Endpoint, status: int) -> None:
        health = self.loads[endpoint.id].health
        if status < 500 and health.well:
            return
        was_out = bool(health.reason)
        if health.answered(status, now=time.monotonic()):
            self._ejected(route, endpoint)
        elif was_out:
            self._tell(endpoint.id)

    def failed(self, route: Route, endpoint: Endpoint, reason: str) -> None:
        if self.loads[endpoint.id].health.failed(reason, now=time.monotonic()):
            self._ejected(route, endpoint)
        else:
            self._tell(endpoint.id)

    def poison(self, request: Request) -> bool:
        if not self._suspects.ever:
            return False
        now = int(time.time())
        return self._suspects.any(now) and request.form is None and self._suspects.poison(crc32(request.body), now)

    def died(self, request: Request, endpoint: Endpoint) -> bool:
        """An engine died during this request; whether that makes it poison. One that was out of routing by then was
        ended by whoever took it out."""
        now_routed = self._endpoints.get(endpoint.id)
        if request.form is not None or now_routed is None or now_routed.draining:
            return False
        now, checksum = int(time.time()), crc32(request.body)
        self._suspects.died(checksum, affinity.word_of(endpoint.id) >> 1, now)
        return self._suspects.poison(checksum, now)

    # -- what the processes tell each other ---------------------------------------------------------------------------

    def _tell(self, endpoint: str) -> None:
        """Until when this process leaves it out, in milliseconds of the machine's steady clock; 0: it does not."""
        cell, health = self._cells.get(endpoint), self.loads[endpoint].health
        if cell is not None:
            until = health.probe_at + FORGOTTEN_SECONDS if health.reason else 0.0
            self._grid.words[cell + _OUT_UNTIL] = int(until * 1000)
            self._grid.words[self._grid.cell(self._changes_row) + _CHANGES] += 1

    def _hear(self) -> None:
        """What the others leave out is out here, too: one process pays for finding out, and one asks."""
        changes, now = self._grid.total(self._changes_row, _CHANGES), time.monotonic()
        if changes == self._changes and now < self._hear_at:
            return
        self._changes, soonest = changes, float("inf")
        for name in self._endpoints:
            told = list(self._grid.fields(self._rows[name], _OUT_UNTIL))
            told[self._grid.column] = 0
            until = max(told) / 1000
            self.loads[name].out_elsewhere = until > now
            soonest = min(soonest, until) if until > now else soonest
        self._hear_at = soonest

    # -- probes -------------------------------------------------------------------------------------------------------

    def _ejected(self, route: Route, endpoint: Endpoint) -> None:
        self._tell(endpoint.id)
        health = self.loads[endpoint.id].health
        self._count("ejections", route.name, endpoint.id)
        log.warning(json.dumps({"event": "ejected", "endpoint": endpoint.id, "reason": health.reason}))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Ask those who are out and whose time has come."""
        self._timer, now, out = None, time.monotonic(), False
        for name, load in self.loads.items():
            endpoint = self._endpoints.get(name)
            if not load.health.reason or endpoint is None:
                continue
            out = True
            if now >= load.health.probe_at and name not in self._probes:
                self._probes[name] = task = asyncio.get_running_loop().create_task(self._probe(endpoint, load))
                task.add_done_callback(lambda _, name=name: self._probes.pop(name, None))  # type: ignore[misc]
        if out:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    async def _probe(self, endpoint: Endpoint, load: Load) -> None:
        """Any answer below 500 says that something is there that understands HTTP."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                status = await _ask_health(endpoint)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            load.health.failed(f"does not answer a probe: {type(error).__name__}", now=time.monotonic())
            self._tell(endpoint.id)
            return
        if status < 500:
            load.health.probed()
            log.warning(json.dumps({"event": "returned", "endpoint": endpoint.id}))
        else:
            load.health.failed(f"answers a probe with {status}", now=time.monotonic())
        self._tell(endpoint.id)

    def close(self) -> None:
        for name, load in self.loads.items():
            if load.health.reason:
                load.health.probed()
                self._tell(name)
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._probes.values()):
            task.cancel()


async def _ask_health(endpoint: Endpoint) -> int:
    reader, writer = await asyncio.open_connection(endpoint.address, endpoint.port)
    try:
        key = f"Authorization: Bearer {endpoint.key}\r\n" if endpoint.key else ""
        writer.write(f"GET /health HTTP/1.1\r\nHost: {endpoint.authority}\r\n{key}Connection: close\r\n\r\n".encode())
        line = await reader.readuntil(b"\r\n")
        found = _STATUS.match(line)
        if found is None:
            raise ValueError("its answer is no HTTP")
        return int(found[1])
    finally:
        writer.transport.abort()
