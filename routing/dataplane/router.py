"""What a request gets: who asks, which model, which route; answers that need no engine; this process's books."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from routing.dataplane import listing, surface
from routing.dataplane.admission import Admission
from routing.dataplane.choice import Chooser
from routing.dataplane.client import ClientConnection
from routing.dataplane.exchange import NO_RETRY, POISON, Client, Proxied
from routing.dataplane.journal import Line, Used
from routing.dataplane.messages import BODY_BYTES, NAME_LETTERS, Head, Reply, Request, clipped, refusal
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
        body_bytes: int = BODY_BYTES,
        on_usage: Callable[[Used], None],
        on_line: Callable[[Line], None] | None = None,
        grid: Grid | None = None,
        metrics: Callable[[Metrics], Metrics] = lambda own: own,
        lost: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`cors`: the origins whose pages may read answers; `*` for all. `on_line`: takes the access log. `grid`:
        shared with the other processes. `metrics`: adds theirs to our own. `lost`: how many rows of what kind were not
        written since it was asked last."""
        self.loop = asyncio.get_running_loop()
        self._grid = grid or Grid()
        self.metrics = Metrics()
        self.chooser = Chooser(self._grid, self.metrics.count)
        self.admission = Admission(self._grid)
        self.pool = Pool()
        self.table = table
        self.cors = frozenset(cors)
        self.body_bytes = body_bytes
        self.clients: set[ClientConnection] = set()
        self._watch = Watch(self.clients)
        self.stopping = False
        self.keys_fresh = True  # the table's keys are those of the database, as far as is known
        self.heads: dict[bytes, Head] = {}  # see http1.apart
        self._on_usage = on_usage
        self._no_auth = no_auth
        self._on_line = on_line
        self._all_metrics = metrics
        self._lost = lost

    @property
    def loads(self) -> dict[str, Load]:
        return self.chooser.loads

    @property
    def table(self) -> RoutingTable:
        return self._table

    @table.setter
    def table(self, table: RoutingTable) -> None:
        self._table = table  # with it goes what was found out about heads: see admitted()
        self.chooser.update(table)
        self.admission.update(table)
        self.pool.keep({(each.address, each.port) for route in table.routes.values() for each in route.endpoints})

    def welcome(self, connection: ClientConnection) -> None:
        self.clients.add(connection)
        self._watch.begin()

    def admit(self, request: Request) -> Reply | None:
        """The answer that needs no body, by the head alone; None for a request whose body is wanted."""
        if request.head.method == "OPTIONS":
            return surface.options(request, self.cors)
        plain = self._plain(request)
        if plain is not None:
            return Reply(status=plain[0], body=plain[1], kind=b"text/plain; charset=utf-8")
        methods = surface.methods(request.head.path)
        if not methods:
            return refusal(404, f"cannot find {clipped(request.head.path)}: the API begins with /v1/")
        if request.head.method not in methods:
            allow = ((b"Allow", b", ".join(each.encode() for each in methods)),)
            return refusal(
                405, f"cannot {request.head.method} {clipped(request.head.path)}: use {methods[0]}", headers=allow
            )
        if self._table.auth and not self._no_auth:
            found = authenticate(self._table.keys, surface.given_key(request), datetime.now(UTC))
            if isinstance(found, Denied):
                if found is Denied.UNKNOWN and not (self._table.keys_complete and self.keys_fresh):
                    return refusal(503, "cannot check the key now: the control plane is away", retry_after=5)
                return refusal(401, f"cannot authenticate: the API key is {found}", code="invalid_api_key")
            request.key = request.head.key = found
        request.head.table = self._table
        if request.head.method == "POST":
            return None
        return listing.models(self._table, request.key, request.head)

    def admitted(self, head: Head) -> bool:
        """Whether what admit() found for this head holds: the table is the same, and the key has not expired."""
        if head.table is not self._table:
            return False
        expires = head.key.expires if head.key is not None else None
        return expires is None or expires > datetime.now(UTC)

    def serve(self, connection: ClientConnection, request: Request, client: Client) -> None:
        """Go on with a request; when it is answered, maybe before this returns, the connection is told."""
        try:
            asked = request.form.asked() if request.form is not None else openai.read(request.body)
        except openai.BadRequest as error:
            coding = request.head.fields.get(b"content-encoding", b"identity").decode("latin-1")
            coded = f"cannot read the request: Content-Encoding {clipped(coding)} is not taken; send JSON as it is"
            text = str(error) if coding.lower() == "identity" else coded
            return self._refuse(connection, request, client, "", 400, text)
        route = self._table.routes.get(asked.model)
        if route is None:
            text = f"The model `{clipped(asked.model)}` does not exist."
            return self._refuse(connection, request, client, "", 404, text, code="model_not_found")
        key = request.key
        if key is not None and not key.may_use(route.name) and not key.may_use(asked.model):
            text = f"cannot use {clipped(asked.model)}: the key does not allow it"
            return self._refuse(connection, request, client, "", 403, text, code="model_not_allowed")
        if self.chooser.poison(request):
            return self._refuse(
                connection, request, client, route.name, 500, POISON, code="poison_request", headers=NO_RETRY
            )
        if route.concurrency or not route.routable:
            return connection.wait(self._serve_later(connection, request, client, route, asked))
        if self._charge(connection, request, client, route):
            self._proxy(connection, request, client, route, asked)

    async def _serve_later(
        self, connection: ClientConnection, request: Request, client: Client, route: Route, asked: openai.Asked
    ) -> None:
        """What may have to wait: until a replica is ready, until a place is free."""
        try:
            if not route.routable:
                route = await self.admission.hold(route, lambda: self._table.routes.get(asked.model))
            if not route.routable:
                text = f"cannot serve {route.name} now: {route.reason or 'no replica is ready'}"
                return self._refuse(connection, request, client, route.name, 503, text, retry_after=route.retry_after)
            if not self._charge(connection, request, client, route):
                return
            if route.concurrency:
                request.gate = await self.admission.enter(route, request.key)
                if request.gate is None:
                    text = f"cannot serve {route.name} now: {route.concurrency} requests are under way and others wait"
                    return self._refuse(
                        connection,
                        request,
                        client,
                        route.name,
                        429,
                        text,
                        retry_after=route.retry_after,
                        code="model_busy",
                    )
            self._proxy(connection, request, client, route, asked)
        except asyncio.CancelledError:
            self._end(request, 0, route.name)
            raise
        except Exception as error:
            self.broken(connection, request, error)

    def _charge(self, connection: ClientConnection, request: Request, client: Client, route: Route) -> bool:
        """Whether the key has something left for one more request."""
        meter = self.admission.meter(request.key)
        if meter is None:
            return True
        too_much = meter.admit(request.size, time.time())
        if too_much is None:
            request.meter = meter
            return True
        text = f"cannot serve: {too_much.text}"
        retry_after, code = too_much.retry_after, too_much.code
        self._refuse(connection, request, client, route.name, 429, text, retry_after=retry_after, code=code)
        return False

    def _proxy(
        self, connection: ClientConnection, request: Request, client: Client, route: Route, asked: openai.Asked
    ) -> None:
        exchange = Proxied(self, connection, client, request, route, asked)
        connection.bind(exchange)
        exchange.start()

    def _refuse(
        self,
        connection: ClientConnection,
        request: Request,
        client: Client,
        model: str,
        status: int,
        text: str,
        *,
        retry_after: int = 0,
        code: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        status = client.whole(refusal(status, text, retry_after=retry_after, code=code, headers=headers))
        self.metrics.count("refused", model, "", code or str(status))
        self._end(request, status, model)
        connection.answered(request)

    def _plain(self, request: Request) -> tuple[int, bytes] | None:
        if request.head.method not in ("GET", "HEAD"):
            return None
        if request.head.path == "/healthz":
            return 200, b"ok\n"
        if request.head.path == "/readyz":
            if self.stopping:
                return 503, b"stopping\n"
            return (200, b"ok\n") if self.table.loaded else (503, b"no routes yet\n")
        if request.head.path == "/metrics":
            return 200, self._all_metrics(self.snapshot()).text().encode()
        return None

    # -- books --------------------------------------------------------------------------------------------------------

    def said(self, request: Request, status: int) -> None:
        """It was answered by its head alone."""
        self._end(request, status, "")

    def proxied(
        self,
        request: Request,
        model: str,
        endpoint: str,
        told: int,
        status: int,
        completed: bool,
        prompt: int | None,
        completion: int | None,
    ) -> None:
        """An engine was asked. `status` went to the client; `told` is 0 when it did not stay for the end."""
        if prompt or completion:
            timings = self.metrics.timings[model, endpoint]
            timings.prompt += prompt or 0
            timings.completion += completion or 0
        now, seconds = self._end(request, told, model, endpoint, (prompt or 0) + (completion or 0))
        self._on_usage(
            Used(
                request.serial,
                now - seconds,
                request.key.id if request.key else None,
                model,
                endpoint,
                request.head.path,
                status or None,
                completed,
                prompt,
                completion,
                seconds * 1e4 // 1 / 1e4,  # to four places; round() takes three times as long
            )
        )

    def broken(self, connection: ClientConnection, request: Request, error: Exception) -> None:
        """An error of ours."""
        event = {"event": "broken", "id": request.id, "path": clipped(request.head.path)}
        log.error(json.dumps(event), exc_info=error)
        try:
            self._end(request, 500, "")
        finally:
            connection.broken(request)

    def _end(
        self, request: Request, status: int, model: str, endpoint: str = "", tokens: int = 0
    ) -> tuple[float, float]:
        """Whatever became of a request, its places are free again, and it is counted: with a line in the access log,
        in which nothing of what was asked stands. The machine's clock, and for how many seconds the request ran."""
        now, seconds = time.time(), time.monotonic() - request.began
        if request.over:
            return now, seconds
        request.over = True
        try:
            if request.gate is not None:
                request.gate.leave()
        finally:
            if request.meter is not None:
                request.meter.settle(request.size, tokens, now)
        self.metrics.requests[model, endpoint, status] += 1
        if self._on_line is not None:
            head, key = request.head, request.key
            self._on_line(
                Line(
                    now * 1e3 // 1 / 1e3,
                    request.id,
                    key.name if key is not None else None,
                    head.method,
                    head.path[:NAME_LETTERS],
                    model or None,
                    endpoint or None,
                    status or None,
                    seconds * 1e4 // 1 / 10,
                )
            )
        return now, seconds

    def snapshot(self) -> Metrics:
        """This process's metrics, with what is under way now."""
        for kind, rows in self._lost().items():
            self.metrics.count("lost", "", "", kind, by=rows)
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

    def flows(self) -> list[dict[str, Any]]:
        """What is under way where, and when bytes of an answer last came, by the machine's monotonic clock."""
        return [
            {"endpoint": name, "in_flight": load.outstanding, "moved_at": load.moved_at}
            for name, load in self.loads.items()
            if load.outstanding
        ]
