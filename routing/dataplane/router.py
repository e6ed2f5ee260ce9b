"""What a request gets: who asks, which model, which route; answers that need no engine; this process's books."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from routing.dataplane import surface
from routing.dataplane.client import ClientConnection
from routing.dataplane.exchange import Client, Proxied
from routing.dataplane.messages import Reply, Request, refusal
from routing.dataplane.upstream import Pool
from routing.dataplane.watch import Watch
from routing.domain import openai
from routing.domain.select import Load
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
    ) -> None:
        """`cors`: the origins whose pages may read answers; `*` for all."""
        self.loads: dict[str, Load] = defaultdict(Load)
        self.pool = Pool()
        self.table = table
        self.cors = frozenset(cors)
        self.clients: set[ClientConnection] = set()
        self._watch = Watch(self.clients)
        self.stopping = False
        self.turn = 0
        self.used = on_usage
        self._no_auth = no_auth
        self._counters: dict[tuple[str, str], int] = defaultdict(int)

    @property
    def table(self) -> RoutingTable:
        return self._table

    @table.setter
    def table(self, table: RoutingTable) -> None:
        self._table = table
        endpoints = {each.id: each for route in table.routes.values() for each in route.endpoints}
        for gone in [each for each, load in self.loads.items() if each not in endpoints and not load.outstanding]:
            del self.loads[gone]
        self.pool.keep({(each.address, each.port) for each in endpoints.values()})

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
        self.said(request, await self._answer(connection, request, client))

    def said(self, request: Request, status: int) -> None:
        self.count("llmgw_router_requests_total", str(status))
        line = {
            "event": "request",
            "id": request.id,
            "method": request.method,
            "path": request.path,
            "status": status,
            "ms": round((time.monotonic() - request.began) * 1000, 1),
        }
        log.info(json.dumps(line))

    async def _answer(self, connection: ClientConnection, request: Request, client: Client) -> int:
        def say(status: int, text: str, *, retry_after: int = 0, code: str = "") -> int:
            return client.whole(refusal(status, text, retry_after=retry_after, code=code))

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
        if not any(not endpoint.draining for endpoint in route.endpoints):
            why = route.reason or "no replica is ready"
            return say(503, f"cannot serve {route.name} now: {why}", retry_after=route.retry_after)
        exchange = Proxied(self, client, request, route, asked, key)
        connection.bind(exchange)
        return await exchange.run()

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
            return 200, self._metrics().encode()
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

    def count(self, name: str, label: str) -> None:
        self._counters[name, label] += 1

    def broken(self, request: Request, error: Exception) -> None:
        log.error(json.dumps({"event": "broken", "id": request.id, "path": request.path}), exc_info=error)

    def _metrics(self) -> str:
        lines = [f'{name}{{label="{label}"}} {value}' for (name, label), value in sorted(self._counters.items())]
        now = time.monotonic()
        for key, load in sorted(self.loads.items()):
            lines.append(f'llmgw_router_outstanding{{endpoint="{key}"}} {load.outstanding}')
            lines.append(f'llmgw_router_ejected{{endpoint="{key}"}} {int(load.ejected_until > now)}')
        lines.append(f"llmgw_router_table_revision {self.table.revision}")
        return "\n".join(lines) + "\n"


def _state(route: Route) -> str:
    return "ready" if any(not endpoint.draining for endpoint in route.endpoints) else route.state
