"""What a request gets: who asks, which model, which route; answers that need no engine; this process's books."""

import json
import logging
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from routing.dataplane import surface
from routing.dataplane.admission import Admission
from routing.dataplane.choice import Chooser
from routing.dataplane.client import ClientConnection
from routing.dataplane.exchange import NO_RETRY, POISON, Client, Proxied
from routing.dataplane.messages import Reply, Request, refusal
from routing.dataplane.metrics import Metrics
from routing.dataplane.upstream import Pool
from routing.dataplane.watch import Watch
from routing.domain import openai
from routing.domain.select import Load
from routing.grid import Grid
from routing.keys import Denied, authenticate
from routing.table import Route, RoutingTable

log = logging.getLogger("routing")


class Router:
    def __init__(
        self,
        table: RoutingTable,
        *,
        no_auth: bool = False,
        cors: Collection[bytes] = (),
        on_usage: Callable[[dict[str, Any]], None],
        on_line: Callable[[dict[str, Any]], None] | None = None,
        grid: Grid | None = None,
        metrics: Callable[[Metrics], Metrics] = lambda own: own,
    ) -> None:
        """`cors`: the origins whose pages may read answers; `*` for all. `on_line`: takes the access log. `grid`:
        shared with the other processes. `metrics`: adds theirs to our own."""
        self._grid = grid or Grid()
        self.metrics = Metrics()
        self.chooser = Chooser(self._grid, self.metrics.count)
        self.admission = Admission(self._grid)
        self.pool = Pool()
        self.table = table
        self.cors = frozenset(cors)
        self.clients: set[ClientConnection] = set()
        self._watch = Watch(self.clients)
        self.stopping = False
        self.used = on_usage
        self._no_auth = no_auth
        self._on_line = on_line
        self._all_metrics = metrics

    @property
    def loads(self) -> dict[str, Load]:
        return self.chooser.loads

    @property
    def table(self) -> RoutingTable:
        return self._table

    @table.setter
    def table(self, table: RoutingTable) -> None:
        self._table = table
        self.chooser.update(table)
        self.admission.update(table)
        self.pool.keep({(each.address, each.port) for route in table.routes.values() for each in route.endpoints})

    def welcome(self, connection: ClientConnection) -> None:
        self.clients.add(connection)
        self._watch.begin()

    def admit(self, request: Request) -> Reply | None:
        """The answer that needs no body, by the head alone; None for a request whose body is wanted."""
        if request.method == "OPTIONS":
            return surface.options(request, self.cors)
        plain = self._plain(request)
        if plain is not None:
            return Reply(status=plain[0], body=plain[1], kind=b"text/plain; charset=utf-8")
        methods = surface.methods(request.path)
        if not methods:
            return refusal(404, f"cannot find {request.path}: the API begins with /v1/")
        if request.method not in methods:
            allow = ((b"Allow", b", ".join(each.encode() for each in methods)),)
            return refusal(405, f"cannot {request.method} {request.path}: use {methods[0]}", headers=allow)
        if self.table.auth and not self._no_auth:
            found = authenticate(self.table.keys, surface.given_key(request), datetime.now(UTC))
            if isinstance(found, Denied):
                if found is Denied.UNKNOWN and not self.table.keys_complete:
                    return refusal(503, "cannot check the key now: the control plane is away", retry_after=5)
                return refusal(401, f"cannot authenticate: the API key is {found}", code="invalid_api_key")
            request.key = found
        return self._models(request) if request.method != "POST" else None

    async def serve(self, connection: ClientConnection, request: Request, client: Client) -> None:
        told: dict[str, Any] = {}
        status = 0
        try:
            status = await self._answer(connection, request, client, told)
        finally:  # a client that left has its line, too
            self.said(request, status, **told)

    def said(self, request: Request, status: int, *, model: str = "", endpoint: str = "", refused: str = "") -> None:
        """Count the request, and a line for the access log: nothing of what was asked stands in it."""
        self.metrics.count("requests", model, endpoint, str(status))
        if refused:
            self.metrics.count("refused", model, "", refused)
        if self._on_line is not None:
            self._on_line(
                {
                    "event": "request",
                    "at": round(time.time(), 3),
                    "id": request.id,
                    "key": request.key.name if request.key else None,
                    "method": request.method,
                    "path": request.path,
                    "model": model or None,
                    "endpoint": endpoint or None,
                    "status": status or None,
                    "ms": round((time.monotonic() - request.began) * 1000, 1),
                }
            )

    async def _answer(
        self, connection: ClientConnection, request: Request, client: Client, told: dict[str, Any]
    ) -> int:
        def say(status: int, text: str, *, retry_after: int = 0, code: str = "", **more: Any) -> int:
            told["refused"] = code or str(status)
            return client.whole(refusal(status, text, retry_after=retry_after, code=code, **more))

        key = request.key
        try:
            asked = request.form.asked() if request.form is not None else openai.read(request.body)
        except openai.BadRequest as error:
            return say(400, str(error))
        route = self.table.routes.get(asked.model)
        if route is None:
            return say(404, f"The model `{asked.model}` does not exist.", code="model_not_found")
        if key is not None and not (key.may_use(route.name) or key.may_use(asked.model)):
            return say(403, f"cannot use {asked.model}: the key does not allow it", code="model_not_allowed")
        told["model"] = route.name
        if self.chooser.poison(request):
            return say(500, POISON, code="poison_request", headers=NO_RETRY)
        if not _routable(route):
            route = await self.admission.hold(route, lambda: self.table.routes.get(asked.model))
            if not _routable(route):
                why = route.reason or "no replica is ready"
                return say(503, f"cannot serve {route.name} now: {why}", retry_after=route.retry_after)
        meter = self.admission.meter(key)
        too_much = meter.admit(request.size, time.time()) if meter is not None else None
        if too_much is not None:
            return say(429, f"cannot serve: {too_much.text}", retry_after=too_much.retry_after, code=too_much.code)
        tokens, gate = 0, None
        try:
            if route.concurrency:
                gate = await self.admission.enter(route, key)
                if gate is None:
                    text = f"cannot serve {route.name} now: {route.concurrency} requests are under way and others wait"
                    return say(429, text, retry_after=route.retry_after, code="model_busy")
            exchange = Proxied(self, client, request, route, asked, key)
            connection.bind(exchange)
            try:
                return await exchange.run()
            finally:
                tokens, told["endpoint"] = exchange.tokens, exchange.endpoint
        finally:
            if gate is not None:
                gate.leave()
            if meter is not None:
                meter.settle(request.size, tokens, time.time())

    def _plain(self, request: Request) -> tuple[int, bytes] | None:
        if request.method not in ("GET", "HEAD"):
            return None
        if request.path == "/healthz":
            return 200, b"ok\n"
        if request.path == "/readyz":
            if self.stopping:
                return 503, b"stopping\n"
            return (200, b"ok\n") if self.table.loaded else (503, b"no routes yet\n")
        if request.path == "/metrics":
            return 200, self._all_metrics(self.snapshot()).text().encode()
        return None

    def _models(self, request: Request) -> Reply:
        wanted = unquote(request.path).removeprefix("/v1/models").removeprefix("/")
        rows = []
        for name, route in self.table.routes.items():
            if request.key is None or request.key.may_use(route.name) or request.key.may_use(name):
                rows.append({"id": name, "object": "model", "created": 0, "owned_by": "llmgw", "state": _state(route)})
        if not wanted:
            return Reply(status=200, body=json.dumps({"object": "list", "data": rows}).encode())
        row = next((row for row in rows if row["id"] == wanted), None)
        if row is None:
            return refusal(404, f"The model `{wanted}` does not exist.", code="model_not_found")
        return Reply(status=200, body=json.dumps(row).encode())

    # -- books --------------------------------------------------------------------------------------------------------

    def broken(self, request: Request, error: Exception) -> None:
        log.error(json.dumps({"event": "broken", "id": request.id, "path": request.path}), exc_info=error)

    def snapshot(self) -> Metrics:
        """This process's metrics, with what is under way now."""
        gauges = self.metrics.gauges = {}
        for route in {route.name: route for route in self.table.routes.values()}.values():
            for each in route.endpoints:
                load = self.loads[each.id]
                gauges["in_flight", (route.name, each.id, "")] = load.outstanding
                gauges["ejected", (route.name, each.id, "")] = int(bool(load.health.reason))
            if route.concurrency:
                gauges["queue", (route.name, "", "")] = self.admission.gates[route.name].waiting
        return self.metrics

    def ejections(self) -> list[dict[str, Any]]:
        """Whom this process leaves out, by the machine's clock."""
        shift = time.time() - time.monotonic()
        return [
            {
                "endpoint": each.id,
                "model": route.name,
                "reason": health.reason,
                "failures": health.failures,
                "since": health.since + shift,
                "until": health.probe_at + shift,
            }
            for route in {route.name: route for route in self.table.routes.values()}.values()
            for each in route.endpoints
            if (health := self.loads[each.id].health).reason
        ]


def _state(route: Route) -> str:
    return "ready" if _routable(route) else route.state


def _routable(route: Route) -> bool:
    return any(not endpoint.draining for endpoint in route.endpoints)
