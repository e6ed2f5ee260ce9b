"""One request between client and engine: choose, send, pass bytes on, retry before the first byte, settle the books."""

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from routing.dataplane.forward import AnswerHead, to_engine
from routing.dataplane.messages import Reply, Request, refusal
from routing.dataplane.metrics import Timings
from routing.dataplane.upload import Upload
from routing.dataplane.upstream import Upstream
from routing.domain import anthropic, openai
from routing.domain.select import Load
from routing.domain.sse import SseReader
from routing.domain.usage import WholeReader
from routing.table import Endpoint, Route

if TYPE_CHECKING:
    from routing.dataplane.client import ClientConnection
    from routing.dataplane.router import Router

ATTEMPTS = 2
#: A stream whose engine pauses for so long gets a comment, and again: proxies between here and the client cut what is
#: idle, many after 60 s.
PING_SECONDS = 15.0
QUIET_SECONDS = 0.4
POISON = "cannot serve the request: two engines ended while they worked on it"
#: OpenAI's clients ask again after a 500 unless they are told not to.
NO_RETRY = ((b"X-Should-Retry", b"false"),)


class Client(Protocol):
    """How the exchange reaches its client."""

    def head(self, status: int, given: bytes, length: int | None) -> None: ...
    def body(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def flush(self) -> None: ...
    def cut(self) -> None: ...
    def hold(self, yes: bool) -> None: ...
    def whole(self, reply: Reply) -> int: ...


P = ParamSpec("P")
R = TypeVar("R")


def _whole(step: Callable[Concatenate["Proxied", P], R]) -> Callable[Concatenate["Proxied", P], R | None]:
    """An error of ours in this step ends its request alone: the engine's connection is closed, its place given back,
    the books are settled and the client is told, whoever called."""

    @wraps(step)
    def run(self: "Proxied", *args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return step(self, *args, **kwargs)
        except Exception as error:
            self.broken(error)
            return None

    return run


class Proxied:
    """Implements upstream.Exchange. No task runs for it but while it connects: what the engine and the client do calls
    it, and whoever calls last settles the books."""

    # Each request makes one of these: what most of them never change stands here.
    _upstream: Upstream | None = None
    _endpoint: Endpoint | None = None  # of the last attempt
    _tried: tuple[str, ...] = ()
    _dial: asyncio.Task[None] | None = None
    _working = False  # the endpoint counts this request
    _status = 0
    _reader: SseReader | WholeReader | None = None
    _strip = False
    _replace: tuple[int, str] | None = None
    _upload: Upload | None = None
    _paused = False  # the client does not take more for now
    _sent_at = _asked_at = 0.0  # when the request's first and last bytes were sent
    _wrong = ""  # what the last engine's answer was no answer for
    _sent = _lost = False  # a request is with an engine; the engine ended in the middle of its answer
    _engine_status = 0
    _timings: Timings  # of the endpoint that was chosen
    _load: Load  # the same one's
    _streams = _pieces = False  # the answer is a stream; a piece of it has come
    _heard_at: float | None = None  # when the answer's last bytes came
    _pinged_at = 0.0
    _over = False

    def __init__(
        self,
        router: "Router",
        connection: "ClientConnection",
        client: Client,
        request: Request,
        route: Route,
        asked: openai.Asked,
    ) -> None:
        self._router = router
        self._connection = connection
        self._client = client
        self._request = request
        self._route = route
        self._asked = asked
        self._loop = connection.loop

    # -- attempts -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        try:  # as _whole has it, without the cost of two calls more
            self._router.chooser.came(self._route)
            self._attempt()
        except Exception as error:
            self.broken(error)

    @_whole
    def leave(self) -> None:
        """The client is gone: the engine sees it at once and stops working."""
        if not self._over:
            self._settle(0, False)

    def _attempt(self) -> None:
        chooser, route, tried = self._router.chooser, self._route, self._tried
        endpoint = chooser.choose(route, self._request, tried) if len(tried) < ATTEMPTS else None
        if endpoint is None or (tried and not chooser.may_retry(route)):
            reason = route.reason or self._wrong or f"no replica of {route.name} could be reached"
            self._fail(
                502 if self._wrong else 503, f"cannot serve {route.name} now: {reason}", retry_after=route.retry_after
            )
            return self._finish(False)
        if tried:
            self._router.metrics.count("retries", route.name, endpoint.id)
        self._tried = (*tried, endpoint.id)
        self._endpoint, self._sent = endpoint, False
        self._timings = self._router.metrics.timings[route.name, endpoint.id]
        self._load = chooser.loads[endpoint.id]
        chooser.begin(endpoint, stream=self._asked.stream)
        self._working = True
        self._open(endpoint)

    def _open(self, endpoint: Endpoint, *, fresh: bool = False) -> None:
        # A kept connection may be found closed, and a body that is still on its way can't be sent again.
        kept = None if fresh or not self._request.complete else self._router.pool.idle(endpoint)
        if kept is not None:
            self._send(kept, endpoint)
        else:
            self._dial = self._loop.create_task(self._connect(endpoint))

    async def _connect(self, endpoint: Endpoint) -> None:
        try:
            try:
                upstream = await self._router.pool.connect(endpoint, seconds=self._route.timers.connect)
            except (OSError, TimeoutError) as error:
                reason = f"cannot be connected to: {type(error).__name__}"
                self._router.chooser.failed(self._route, endpoint, reason)
                self._router.metrics.count("errors", self._route.name, endpoint.id, "connect")
                self._dial = None
                self._unanswered(endpoint)
            else:
                self._dial = None
                self._send(upstream, endpoint)
        except Exception as error:
            self.broken(error)

    def _told(self, whole: bool) -> None:
        """The engine says no more. `whole`: it has said all; if not, another may be asked before the first byte."""
        endpoint = self._endpoint
        if self._over or endpoint is None:
            return
        chooser, route = self._router.chooser, self._route
        if self._status:
            if whole:
                chooser.answered(route, endpoint, self._engine_status)
            elif self._lost:
                chooser.failed(route, endpoint, self._wrong or "ended in the middle of an answer")
                self._router.metrics.count("errors", route.name, endpoint.id, "cut")
                chooser.died(self._request, endpoint)
            self._finish(whole)
        elif self._upstream is not None and self._upstream.used and not self._wrong:
            # A kept connection that the engine had closed: not its failure, once more on a new one.
            self._open(endpoint, fresh=True)
        else:
            chooser.failed(route, endpoint, self._wrong or "ended before its answer")
            self._router.metrics.count("errors", route.name, endpoint.id, "no_answer")
            self._unanswered(endpoint)

    def _unanswered(self, endpoint: Endpoint) -> None:
        self._let_go()
        if self._sent and not self._wrong and self._router.chooser.died(self._request, endpoint):
            self._router.metrics.count("errors", self._route.name, endpoint.id, "poison")
            self._fail(500, POISON, code="poison_request", headers=NO_RETRY)
            return self._finish(False)
        self._attempt()

    def _let_go(self) -> None:
        if self._working and self._endpoint is not None:
            self._working = False
            self._router.chooser.end(self._endpoint, stream=self._asked.stream)

    def _send(self, upstream: Upstream, endpoint: Endpoint) -> None:
        self._upstream, upstream.exchange = upstream, self  # from here on it is closed with this request
        self._sent = True
        self._sent_at = self._asked_at = self._loop.time()
        self._heard_at = None
        head, body, self._strip = to_engine(self._request, self._asked, endpoint)
        if self._request.complete:
            upstream.begin(self, head, body)
            return
        upstream.begin(self, head, b"")
        self._request.body = body
        self._upload = Upload(upstream, self._request)
        self._upload.more()

    @_whole
    def more(self) -> None:
        """More of the body has come."""
        if self._upload is not None:
            self._upload.more()
            self._asked_at = self._loop.time()
            if self._request.complete:
                self._client.hold(False)

    # -- what the engine says -----------------------------------------------------------------------------------------

    def engine_head(self, head: AnswerHead, length: int | None) -> None:
        self._heard_at = now = self._loop.time()
        self._timings.first.note(now - self._asked_at)
        self._engine_status = status = head.status
        if status in (401, 403):
            # Trouble between router and engine is ours, never the client's key.
            self._replace = (502, f"cannot serve {self._route.name}: the engine refused the router's key")
            self._status = 502
            self._loop.call_soon(self._refused)  # what else it says of that nobody waits for
            return
        self._status = status
        if head.streams:
            self._streams, length = True, None
            self._reader = SseReader(path=self._request.head.path, strip_usage=self._strip)
        elif status == 200:
            self._reader = WholeReader()
        self._client.head(status, head.lines, length)

    @_whole
    def _refused(self) -> None:
        """Where its answer did not end with what came of it at once, its connection does."""
        if not self._over and self._replace:
            self._fail(*self._replace)
            self._told(True)

    def engine_body(self, data: bytes) -> None:
        if self._replace:
            return
        now = self._loop.time()
        if self._streams:
            if self._pieces and self._heard_at is not None:
                self._timings.gap.note(now - self._heard_at)
            self._pieces = True
        self._heard_at = self._load.moved_at = now
        if self._reader is not None:
            data = self._reader.feed(data)
        if data:
            self._client.body(data)

    def engine_read(self) -> None:
        self._client.flush()

    def engine_done(self) -> None:
        try:
            if self._replace:
                self._fail(*self._replace)
            else:
                if self._reader is not None and (rest := self._reader.finish()):
                    self._client.body(rest)
                self._client.end()
            self._told(True)
        except Exception as error:
            self.broken(error)

    @_whole
    def engine_lost(self, wrong: str = "") -> None:
        # A body that was passed on as it came is kept nowhere, so it can't be sent again.
        self._lost, self._wrong = self._status != 0, wrong
        text = f"the engine can't be understood: {wrong}" if wrong else "the engine ended in the middle of it"
        self._break(502, text, known=self._upload is not None)

    @_whole
    def engine_full(self, yes: bool) -> None:
        if self._upload is not None:
            self._client.hold(yes and not self._request.complete)

    @_whole
    def look(self, now: float) -> None:
        """The timers."""
        if self._upstream is None or self._upstream.exchange is not self:
            return
        if self._paused and self._heard_at is not None:
            self._heard_at = now  # it is the client's pause
        elif self._heard_at is not None and now - max(self._heard_at, self._pinged_at) > PING_SECONDS:
            self._pinged_at = now
            self.nudge()
        asked_at = now if self._upload is not None and not self._request.complete else self._asked_at
        late = self._route.timers.expired(now=now, sent_at=self._sent_at, asked_at=asked_at, heard_at=self._heard_at)
        if late:
            self._upstream.exchange = None
            self._upstream.abort()
            self._break(504, late, known=True)

    def _break(self, status: int, text: str, *, known: bool = False) -> None:
        """The answer ends here. `known`: for a reason that no other attempt would change."""
        if self._over:
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
        self._told(False)

    def _error_event(self, status: int, text: str) -> bytes:
        if self._request.head.anthropic:
            return b"event: error\ndata: " + anthropic.error(status, text) + b"\n\n"
        return b"data: " + openai.error(status, text, code="engine_lost") + b"\n\n"

    @_whole
    def pause(self) -> None:
        self._paused = True
        if self._upstream is not None and self._upstream.exchange is self:  # else it is another's, or idle
            self._upstream.pause()

    @_whole
    def resume(self) -> None:
        self._paused = False
        if self._upstream is not None and self._upstream.exchange is self:
            self._upstream.resume()

    @_whole
    def nudge(self) -> bool:
        """Write what changes nothing, where a stream allows it: a comment. Whether the client was told anything of
        late, this or a piece of its answer."""
        if isinstance(self._reader, SseReader) and self._reader.between_events:
            self._client.body(b":\n\n")
            self._client.flush()
            return True
        return self._heard_at is not None and self._loop.time() - self._heard_at < QUIET_SECONDS

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _fail(self, status: int, text: str, **more: Any) -> None:
        self._status = self._client.whole(refusal(status, text, **more))

    def _finish(self, completed: bool) -> None:
        if not self._over:
            self._settle(self._status, completed)
            self._connection.answered(self._request)

    def broken(self, error: Exception) -> None:
        """An error of ours, wherever it was."""
        try:
            if not self._over:
                self._status = self._status or 500
                self._settle(self._status, False)
        except Exception as another:
            another.__context__ = error
            error = another
        self._router.broken(self._connection, self._request, error)

    def _settle(self, told: int, completed: bool) -> None:
        """Once, however it ended. `told`: the status that stands in the books, 0 for a client that had left."""
        self._over = True
        try:
            if self._dial is not None:
                self._dial.cancel()
            if self._upstream is not None and self._upstream.exchange is self:
                self._upstream.exchange = None
                self._upstream.abort()
        finally:
            self._let_go()
        self._book(told, completed)

    def _book(self, told: int, completed: bool) -> None:
        prompt = completion = None
        if self._reader is not None:
            facts = self._reader.facts
            prompt, completion = facts.prompt_tokens, facts.completion_tokens
            completed = completed and not facts.failed
            if completion is None and isinstance(self._reader, SseReader):
                completion = facts.events
        self._router.proxied(
            self._request,
            self._route.name,
            self._endpoint.id if self._endpoint else "",
            told,
            self._status,
            completed and self._status == 200,
            prompt,
            completion,
        )
