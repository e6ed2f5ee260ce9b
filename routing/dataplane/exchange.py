"""One request between client and engine: choose, send, pass bytes on, retry before the first byte, settle the books."""

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any, Protocol

from routing.dataplane.forward import to_client, to_engine
from routing.dataplane.messages import Headers, Reply, Request, refusal
from routing.dataplane.metrics import Timings
from routing.dataplane.upload import Upload
from routing.dataplane.upstream import Upstream
from routing.domain import anthropic, openai
from routing.domain.sse import SseReader
from routing.domain.usage import WholeReader
from routing.keys import Key
from routing.table import Endpoint, Route

if TYPE_CHECKING:
    from routing.dataplane.router import Router

ATTEMPTS = 2
POISON = "cannot serve the request: two engines ended while they worked on it"
#: OpenAI's clients ask again after a 500 unless they are told not to.
NO_RETRY = ((b"X-Should-Retry", b"false"),)


class Client(Protocol):
    """How the exchange reaches its client."""

    def head(self, status: int, headers: Headers, length_known: bool) -> None: ...
    def body(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def flush(self) -> None: ...
    def cut(self) -> None: ...
    def hold(self, yes: bool) -> None: ...
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
        self._upload: Upload | None = None
        self._paused = False  # the client does not take more for now
        self._sent_at = self._asked_at = 0.0  # when the request's first and last bytes were sent
        self._sent = self._lost = False  # a request is with an engine; the engine ended in the middle of its answer
        self._engine_status = 0
        self._timings: Timings  # of the endpoint that was chosen
        self._streams = self._pieces = False  # the answer is a stream; a piece of it has come
        self.tokens = 0  # that the key is charged
        self._heard_at: float | None = None  # when the answer's last bytes came

    @property
    def endpoint(self) -> str:
        """Of the last attempt."""
        return self._endpoint.id if self._endpoint else ""

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
        chooser, route = self._router.chooser, self._route
        chooser.came(route)
        tried: set[str] = set()
        for number in range(ATTEMPTS):
            endpoint = chooser.choose(route, self._request, tried)
            if endpoint is None or (number and not chooser.may_retry(route)):
                break
            if number:
                self._router.metrics.count("retries", route.name, endpoint.id)
            tried.add(endpoint.id)
            chooser.begin(endpoint)
            try:
                outcome = await self._try(endpoint)
            finally:
                chooser.end(endpoint)
            if outcome is not None:
                return outcome
            if self._sent and chooser.died(self._request, endpoint):
                self._router.metrics.count("errors", route.name, endpoint.id, "poison")
                self._fail(500, POISON, code="poison_request", headers=NO_RETRY)
                return False
        reason = route.reason or f"no replica of {route.name} could be reached"
        self._fail(503, f"cannot serve {route.name} now: {reason}", retry_after=route.retry_after)
        return False

    async def _try(self, endpoint: Endpoint) -> bool | None:
        """True: answered whole. False: answered in part. None: no byte came, so another endpoint may be tried."""
        self._endpoint = endpoint
        self._sent = False
        self._timings = self._router.metrics.timings[self._route.name, endpoint.id]
        chooser = self._router.chooser
        connect_seconds = self._route.timers.connect
        for fresh in (False, True):
            try:
                self._upstream = await self._router.pool.take(
                    # A kept connection may be found closed, and a body that is still on its way can't be sent again.
                    endpoint,
                    connect_seconds=connect_seconds,
                    fresh=fresh or not self._request.complete,
                )
            except (OSError, TimeoutError) as error:
                chooser.failed(self._route, endpoint, f"cannot be connected to: {type(error).__name__}")
                self._router.metrics.count("errors", self._route.name, endpoint.id, "connect")
                return None
            used = self._upstream.used
            self._send(self._upstream, endpoint)
            whole = await self._done
            if self._status:
                if whole:
                    chooser.answered(self._route, endpoint, self._engine_status)
                elif self._lost:
                    chooser.failed(self._route, endpoint, "ended in the middle of an answer")
                    self._router.metrics.count("errors", self._route.name, endpoint.id, "cut")
                    chooser.died(self._request, endpoint)
                return whole
            if not used:
                break
            # A kept connection that the engine had closed: not its failure, once more on a new one.
        chooser.failed(self._route, endpoint, "ended before its answer")
        self._router.metrics.count("errors", self._route.name, endpoint.id, "no_answer")
        return None

    def _send(self, upstream: Upstream, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        self._sent = True
        self._sent_at = self._asked_at = loop.time()
        self._heard_at = None
        head, body, self._strip = to_engine(self._request, self._asked, endpoint)
        if self._request.complete:
            upstream.begin(self, head, body)
            return
        upstream.begin(self, head, b"")
        self._request.body = body
        self._upload = Upload(upstream, self._request)
        self._upload.more()

    def more(self) -> None:
        """More of the body has come."""
        if self._upload is not None:
            self._upload.more()
            self._asked_at = asyncio.get_running_loop().time()
            if self._request.complete:
                self._client.hold(False)

    # -- what the engine says -----------------------------------------------------------------------------------------

    def engine_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._timings.first.note(self._heard_at - self._asked_at)
        self._engine_status = status
        if status in (401, 403):
            # Trouble between router and engine is ours, never the client's key.
            self._replace = (502, f"cannot serve {self._route.name}: the engine refused the router's key")
            self._status = 502
            return
        self._status = status
        fields = dict(headers)
        kept = to_client(headers, fields)
        length_known = b"content-length" in fields
        if fields.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._streams = True
            self._reader = SseReader(path=self._request.path, strip_usage=self._strip)
            kept = [header for header in kept if header[0] != b"content-length"]
            length_known = False
        elif status == 200:
            self._reader = WholeReader()
        self._client.head(status, kept, length_known)

    def engine_body(self, data: bytes) -> None:
        if self._replace:
            return
        now = asyncio.get_running_loop().time()
        if self._heard_at is not None and self._pieces:
            self._timings.gap.note(now - self._heard_at)
        self._pieces, self._heard_at = self._streams, now
        if self._reader is not None:
            data = self._reader.feed(data)
        if data:
            self._client.body(data)

    def engine_read(self) -> None:
        self._client.flush()

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
        # A body that was passed on as it came is kept nowhere, so it can't be sent again.
        self._lost = self._status != 0
        self._break(502, "the engine ended in the middle of it", known=self._upload is not None)

    def engine_full(self, yes: bool) -> None:
        if self._upload is not None:
            self._client.hold(yes and not self._request.complete)

    def look(self, now: float) -> None:
        """The timers."""
        if self._upstream is None or self._done.done():
            return
        if self._paused and self._heard_at is not None:
            self._heard_at = now  # it is the client's pause
        asked_at = now if self._upload is not None and not self._request.complete else self._asked_at
        late = self._route.timers.expired(now=now, sent_at=self._sent_at, asked_at=asked_at, heard_at=self._heard_at)
        if late:
            self._upstream.exchange = None
            self._upstream.abort()
            self._break(504, late, known=True)

    def _break(self, status: int, text: str, *, known: bool = False) -> None:
        """The answer ends here. `known`: for a reason that no other attempt would change."""
        if self._done.done():
            return
        if self._replace:
            self._fail(*self._replace)
        elif self._status:
            if isinstance(self._reader, SseReader):
                begun = b"" if self._reader.between_events else b"\n\n"
                self._client.body(begun + self._error_event(status, f"cannot go on: {text}"))
            self._client.cut()
        elif known:
            self._fail(status, f"cannot serve {self._route.name}: {text}")
        self._done.set_result(False)

    def _error_event(self, status: int, text: str) -> bytes:
        if self._request.path.startswith(anthropic.PATH):
            return b"event: error\ndata: " + anthropic.error(status, text) + b"\n\n"
        return b"data: " + openai.error(status, text, code="engine_lost") + b"\n\n"

    def pause(self) -> None:
        self._paused = True
        if self._upstream is not None and self._upstream.exchange is self:  # else it is another's, or idle
            self._upstream.pause()

    def resume(self) -> None:
        self._paused = False
        if self._upstream is not None and self._upstream.exchange is self:
            self._upstream.resume()

    def nudge(self) -> None:
        """Write what changes nothing, where a stream allows it: a comment."""
        if isinstance(self._reader, SseReader) and self._reader.between_events:
            self._client.body(b":\n\n")
            self._client.flush()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _fail(self, status: int, text: str, **more: Any) -> None:
        self._status = self._client.whole(refusal(status, text, **more))

    def _settle(self, began: float, completed: bool) -> None:
        prompt = completion = None
        if self._reader is not None:
            facts = self._reader.facts
            prompt, completion = facts.prompt_tokens, facts.completion_tokens
            completed = completed and not facts.failed
            if completion is None and isinstance(self._reader, SseReader):
                completion = facts.events
        self.tokens = (prompt or 0) + (completion or 0)
        if self.tokens:
            self._router.metrics.count("tokens", self._route.name, self.endpoint, "prompt", prompt or 0)
            self._router.metrics.count("tokens", self._route.name, self.endpoint, "completion", completion or 0)
        self._router.used(
            {
                "uid": str(uuid.uuid4()),
                "at": began,
                "key": self._key.id if self._key else None,
                "model": self._route.name,
                "endpoint": self.endpoint,
                "path": self._request.path,
                "status": self._status or None,
                "completed": completed and self._status == 200,
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "seconds": round(time.time() - began, 4),
            }
        )
