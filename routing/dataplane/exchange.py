"""One request between client and engine: choose, send, pass bytes on, retry before the first byte, settle the books."""

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Protocol

from routing.dataplane.messages import Headers, Reply, Request, refusal
from routing.dataplane.upstream import Upstream
from routing.domain import openai, select
from routing.domain.sse import SseReader
from routing.domain.usage import WholeReader
from routing.keys import Key
from routing.table import Endpoint, Route

if TYPE_CHECKING:
    from routing.dataplane.router import Router

_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"proxy-connection"}
#: Not passed to the engine: replaced, or the client's secrets.
_OWN = _HOP | {b"host", b"content-length", b"authorization", b"x-api-key", b"expect", b"accept-encoding"}
ATTEMPTS = 2


class Client(Protocol):
    """How the exchange reaches its client."""

    def head(self, status: int, headers: Headers, length_known: bool) -> None: ...
    def body(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def cut(self) -> None: ...
    def whole(self, reply: Reply) -> int: ...


class Proxied:
    """Implements upstream.Exchange."""

    def __init__(
        self,
        router: "Router",
        client: Client,
        request: Request,
        route: Route,
        asked: openai.Asked,
        key: Key | None,
    ) -> None:
        self._router = router
        self._client = client
        self._request = request
        self._route = route
        self._asked = asked
        self._key = key
        self._upstream: Upstream | None = None
        self._endpoint: Endpoint | None = None
        self._done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._reader: SseReader | WholeReader | None = None
        self._strip = False
        self._replace: tuple[int, str] | None = None

    async def run(self) -> int:
        """Serve; the status that the client got, 0 when it left before any. A client's leaving cancels this."""
        began = time.time()
        completed = False
        try:
            completed = await self._attempts()
            return self._status
        finally:
            if self._upstream is not None and self._upstream.exchange is self:
                self._upstream.exchange = None
                self._upstream.abort()  # the engine sees it at once and stops working
            self._settle(began, completed)

    async def _attempts(self) -> bool:
        tried: set[str] = set()
        for _ in range(ATTEMPTS):
            endpoint = select.pick(self._route.endpoints, self._router.loads, now=time.monotonic(), exclude=tried)
            if endpoint is None:
                break
            tried.add(endpoint.id)
            load = self._router.loads[endpoint.id]
            self._router.turn += 1
            load.turn = self._router.turn
            load.outstanding += 1
            try:
                outcome = await self._try(endpoint)
            finally:
                load.outstanding -= 1
            if outcome is not None:
                select.succeeded(load) if outcome else None
                return outcome
            select.failed(load, now=time.monotonic())
            self._router.count("llmgw_router_retries_total", self._route.name)
        reason = self._route.reason or f"no replica of {self._route.name} could be reached"
        self._fail(503, f"cannot serve {self._route.name} now: {reason}", retry_after=self._route.retry_after)
        return False

    async def _try(self, endpoint: Endpoint) -> bool | None:
        """True: answered whole. False: answered in part. None: no byte came, so another endpoint may be tried."""
        self._endpoint = endpoint
        payload = self._payload(endpoint)
        for fresh in (False, True):
            try:
                self._upstream = await self._router.pool.take(endpoint, fresh=fresh)
            except (OSError, TimeoutError):
                return None
            used = self._upstream.used
            self._done = asyncio.get_running_loop().create_future()
            self._upstream.begin(self, payload)
            if await self._done:
                return True
            if self._status:
                return False
            if not used:
                return None
            # A kept connection that the engine had closed: not its failure, once more on a new one.
        return None

    def _payload(self, endpoint: Endpoint) -> bytes:
        request = self._request
        body = request.body
        self._strip = False
        if request.method == "POST" and body:
            body, self._strip = openai.ask_usage(body, request.path, self._asked)
            if endpoint.model and endpoint.model != self._asked.model:
                body = openai.rename(body, endpoint.model)
        target = f"{request.path}?{request.query}" if request.query else request.path
        lines = [f"{request.method} {target} HTTP/1.1\r\nHost: {endpoint.authority}\r\n".encode()]
        lines += [name + b": " + value + b"\r\n" for name, value in request.headers if name.lower() not in _OWN]
        if endpoint.key:
            lines.append(f"Authorization: Bearer {endpoint.key}\r\n".encode())
        lines.append(f"X-Request-Id: {request.id}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        return b"".join(lines) + body

    # -- what the engine says -----------------------------------------------------------------------------------------

    def engine_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if status in (401, 403):
            # Trouble between router and engine is ours, never the client's key.
            self._replace = (502, f"cannot serve {self._route.name}: the engine refused the router's key")
            self._status = 502
            return
        self._status = status
        dropped = _HOP | {b"x-request-id"}
        kept = [(name, value) for name, value in headers if name.lower() not in dropped]
        kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
        if kind.startswith(b"text/event-stream"):
            self._reader = SseReader(path=self._request.path, strip_usage=self._strip)
            kept = [(name, value) for name, value in kept if name.lower() != b"content-length"]
        elif status == 200:
            self._reader = WholeReader()
        known = any(name.lower() == b"content-length" for name, _ in kept)
        self._client.head(status, kept, known)

    def engine_body(self, data: bytes) -> None:
        if self._replace:
            return
        if self._reader is not None:
            data = self._reader.feed(data)
        if data:
            self._client.body(data)

    def engine_done(self) -> None:
        if self._replace:
            self._fail(*self._replace)
        else:
            if self._reader is not None and (rest := self._reader.finish()):
                self._client.body(rest)
            self._client.end()
        if not self._done.done():
            self._done.set_result(True)

    def engine_lost(self) -> None:
        if self._done.done():
            return
        if self._status and not self._replace:
            if isinstance(self._reader, SseReader):
                text = "cannot go on: the engine ended in the middle of the answer"
                begun = b"" if self._reader.between_events else b"\n\n"
                self._client.body(begun + b"data: " + openai.error(502, text, code="engine_lost") + b"\n\n")
            self._client.cut()
        elif self._replace:
            self._fail(*self._replace)
        self._done.set_result(False)

    def pause(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def nudge(self) -> None:
        """Write what changes nothing, where a stream allows it: a comment."""
        if isinstance(self._reader, SseReader) and self._reader.between_events:
            self._client.body(b":\n\n")

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _fail(self, status: int, text: str, *, retry_after: int = 0) -> None:
        self._status = self._client.whole(refusal(status, text, retry_after=retry_after))

    def _settle(self, began: float, completed: bool) -> None:
        prompt = completion = None
        if self._reader is not None:
            facts = self._reader.facts
            prompt, completion = facts.prompt_tokens, facts.completion_tokens
            completed = completed and not facts.failed
            if completion is None and isinstance(self._reader, SseReader):
                completion = facts.events
        self._router.used(
            {
                "uid": str(uuid.uuid4()),
                "at": began,
                "key": self._key.id if self._key else None,
                "model": self._route.name,
                "endpoint": self._endpoint.id if self._endpoint else "",
                "path": self._request.path,
                "status": self._status or None,
                "completed": completed and self._status == 200,
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "seconds": round(time.time() - began, 4),
            }
        )
