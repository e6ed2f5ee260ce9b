"""One client's connection: requests in, judged by their heads, answered in turn. A client that leaves cancels them."""

import asyncio
import json
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

import httptools

from routing.dataplane import sockets
from routing.dataplane.answers import Answers
from routing.dataplane.exchange import Proxied
from routing.dataplane.messages import Head, Request, refusal
from routing.dataplane.sounding import Sounding
from routing.domain import http1
from routing.domain.form import form_of
from routing.domain.openai import BadRequest

if TYPE_CHECKING:
    from routing.dataplane.router import Router

log = logging.getLogger("routing")

HEAD_BYTES = 32 * 1024
_LONG_HEAD = f"cannot take a request head over {HEAD_BYTES} bytes"
_LONG_BODY = "cannot take a body over {} bytes"
BROKEN = "cannot serve the request: an error inside the router"
#: What may wait behind the request that is being answered: no more is read until its turn.
AHEAD_BYTES = 256 * 1024
AHEAD_REQUESTS = 16

IDLE_SECONDS = 75.0  # between requests
HEAD_SECONDS = 10.0  # from a head's first byte to its last
STALL_SECONDS = 30.0  # an upload may take for ever, but not stand still for longer
LINGER_SECONDS = 5.0  # after a refusal; closing with bytes unread would be a reset, and destroy the answer


class ClientConnection(asyncio.Protocol):
    def __init__(self, router: "Router") -> None:
        self._router = router
        self.loop = router.loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._requests: list[Request] = []  # whose heads are here; the first is being answered
        self._serving = False  # the first is
        self._stepping = False  # _next() is at work
        self._task: asyncio.Task[None] | None = None  # of a request that waits for its turn at a model
        self._out = Answers(router.cors)
        self._exchange: Proxied | None = None
        self._ended = False  # the client has said all
        self._sounding: Sounding | None = None  # after that, and while nothing is read
        self._deaf = False  # what comes is dropped: it can't be understood, or nobody waits for it
        self._heard_at = self._head_at = 0.0
        self._lingering = self._held = False
        self._full = False  # the client does not take its answers as fast as they come
        self._missing = 0  # of the last request's body, which is only counted
        self._fresh()

    def _fresh(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._raw = 0  # what came since the request before
        self._between, self._in_head = True, False  # no byte of a next request has come
        self._offered = False
        self._apart: bytes | None = None  # the head as it will be known again: see http1.apart

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._out.transport = cast(asyncio.Transport, transport)  # uvloop's own class is none of it
        sockets.of_client(transport)
        self._heard_at = self.loop.time()
        self._router.welcome(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._out.transport = None
        if self._sounding:
            self._sounding.stop()
        self._router.clients.discard(self)
        self._stop()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        if self._missing and not self._deaf:
            data = self._take(data)
        if data and not (self._between and self._known(data)):
            self._parse(data)
        self._next()
        if len(self._requests) > 1:
            self._hold()

    def _stop(self) -> None:
        """Nobody waits for the answer under way any more."""
        self._serving = False
        task, self._task = self._task, None
        exchange, self._exchange = self._exchange, None
        if task is not None:
            task.cancel()
        if exchange is not None:
            exchange.leave()

    # -- requests whose head is known ---------------------------------------------------------------------------------

    def _known(self, data: bytes) -> bool:
        """Take a request whose head was judged before; False for any other."""
        found = http1.apart(data)
        if found is None or self._deaf:
            return False
        name, length, start = found
        head = self._router.heads.get(name)
        size = len(data) - start
        if head is None or size > length or length > self._router.body_bytes or not self._router.admitted(head):
            self._apart = name
            return False
        request = Request(head, time.monotonic())
        request.size = size
        request.body = data[start:]
        self._missing = length - size
        request.complete = size == length
        self._requests.append(request)
        return True

    def _take(self, data: bytes) -> bytes:
        """More of its body; what is left of the bytes."""
        request = self._requests[-1]
        left = data[self._missing :]
        if left:
            data = data[: self._missing]
        self._missing -= len(data)
        request.take(data)
        request.complete = not self._missing
        return left

    # -- all others: httptools ----------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        while data and not self._deaf and self._transport is not None and not self._transport.is_closing():
            self._raw += len(data)
            try:
                self._parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as offer:
                data = self._without_offer() + data[offer.args[0] :]
            except httptools.HttpParserCallbackError as error:
                log.error(json.dumps({"event": "broken", "what": "head or body"}), exc_info=error)
                return self._refuse(500, BROKEN)
            except httptools.HttpParserError as error:
                return self._refuse(400, f"cannot read the request: {error}")
        if self._in_head and self._raw > HEAD_BYTES:
            self._refuse(431, _LONG_HEAD)
        elif self._requests and not self._requests[-1].complete:
            self._check_overhead(self._requests[-1])

    def _without_offer(self) -> bytes:
        """The head just read, without its offer to upgrade, for a new parser: the old one would take no body."""
        head = http1.without_offer(self._parser.get_method(), self._url, self._parser.get_http_version(), self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self._fresh()
        return head

    def eof_received(self) -> bool:
        """Whether the connection stays open for the answers under way; HTTP/1.0 has nothing to sound a client with."""
        if self._lingering or not self._requests or self._transport is None:
            return False
        if not self._requests[0].complete or not self._requests[0].head.http11:
            return False
        self._ended = True
        self._sounding = self._sounding or Sounding(self._transport, self._nudge)
        return True

    def _nudge(self) -> None:
        if self._transport is None or self._transport.get_write_buffer_size():
            return  # what waits there sounds by itself
        if not self._out.begun:
            self._out.proceed()
        elif self._exchange and not self._exchange.nudge() and self._ended and self._sounding:
            self._transport.abort()  # nothing tells it from one that is gone, and that is by far the likelier

    def pause_writing(self) -> None:
        self._full = True
        if self._exchange:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._full = False
        if self._exchange:
            self._exchange.resume()
        self._next()

    def close_when_idle(self) -> bool:
        """Close now unless an answer is under way; whether it was closed."""
        if not self._requests and not self._lingering and self._transport is not None:
            self._transport.close()
            return True
        return False

    # -- httptools ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._between, self._in_head = False, True
        self._head_at = self._heard_at

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._offered, self._in_head = self._parser.should_upgrade(), False
        if self._deaf or self._offered:
            if self._parser.get_method() == b"CONNECT":
                self._refuse(405, "cannot CONNECT: this is no proxy")
            return
        headers, version = self._headers, self._parser.get_http_version()
        if self._raw > HEAD_BYTES and sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES:
            return self._refuse(431, _LONG_HEAD)
        fields = dict(headers)
        target = http1.origin_form(self._url)
        wrong = http1.fault(version, headers, fields)
        if wrong or target is None:
            return self._refuse(400, f"cannot read the request: {wrong or 'its target is no path'}")
        head = Head.read(self._parser.get_method(), target, headers, fields, http11=version == "1.1")
        request = Request(head, time.monotonic())
        request.reply = self._router.admit(request)
        if request.reply is None:
            self._await_body(request)
        self._headers = []  # what comes now are a chunked body's trailers, which nobody asked for
        self._requests.append(request)

    def _await_body(self, request: Request) -> None:
        fields = request.head.fields
        if int(fields.get(b"content-length", 0)) > self._router.body_bytes:
            request.reply = refusal(413, _LONG_BODY.format(self._router.body_bytes))
        elif (expected := fields.get(b"expect")) is not None and request.head.http11:
            request.expects = expected.lower() == b"100-continue"
            if not request.expects:
                request.reply = refusal(417, "cannot meet the expectation: only 100-continue is known")
        try:
            request.form = form_of(fields.get(b"content-type", b""))
        except BadRequest as error:
            request.reply = refusal(400, str(error))

    def on_body(self, data: bytes) -> None:
        if self._deaf or not self._requests:
            return
        request = self._requests[-1]
        if request.reply is not None:
            return
        if request.size + len(data) > self._router.body_bytes:
            return self._refuse(413, _LONG_BODY.format(self._router.body_bytes))
        try:
            request.take(data)
        except BadRequest as error:
            return self._refuse(400, str(error))
        if self._exchange and request is self._requests[0]:
            self._exchange.more()

    def on_message_complete(self) -> None:
        if self._deaf or self._offered or not self._requests:
            return
        request = self._requests[-1]
        request.keep_alive = self._parser.should_keep_alive()  # only here does it tell the truth
        request.complete = True
        if self._apart is not None and request.plain:
            http1.remember(self._router.heads, self._apart, request.head)
        self._fresh()
        if self._exchange and request is self._requests[0]:
            self._exchange.more()

    # -- one request after the other ----------------------------------------------------------------------------------

    def _next(self) -> None:
        """Go on with the first request, as far as it is here."""
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._requests and not self._serving and not self._full:
                if self._transport is None or self._transport.is_closing():
                    return
                request = self._requests[0]
                self._out.expect(request)
                if request.reply is not None or request.ready:
                    self._serving = True
                    try:
                        self._serve(request)
                    except Exception as error:
                        self._router.broken(self, request, error)
                else:
                    if request.expects and not request.size:
                        self._out.proceed()
                    request.expects = False
                    return
        finally:
            self._stepping = False

    def _serve(self, request: Request) -> None:
        if request.reply is None:
            return self._router.serve(self, request, self._out)
        self._router.said(request, self._out.whole(request.reply))
        self.answered(request)

    def answered(self, request: Request) -> None:
        """Said by whoever serves it, once."""
        if self._serving and self._requests and self._requests[0] is request:
            self._serving = False
            self._done(request)
            self._next()

    def broken(self, request: Request) -> None:
        """The router can't answer it."""
        if not self._serving or not self._requests or self._requests[0] is not request:
            return
        try:
            if not self._out.begun:
                self._out.whole(refusal(500, BROKEN))
        finally:
            if not self._out.ended and self._transport:
                self._transport.abort()
            self.answered(request)

    def wait(self, serving: Coroutine[Any, Any, None]) -> None:
        self._task = self.loop.create_task(serving)

    def bind(self, exchange: Proxied) -> None:
        self._exchange, self._task = exchange, None

    def _done(self, request: Request) -> None:
        """It is answered, whether its body has come or not."""
        self._exchange = self._task = None
        if self._transport is None or self._transport.is_closing():
            return
        self._requests.pop(0)
        self._heard_at = self._head_at = self.loop.time()
        if not request.complete or (self._deaf and not self._requests):
            self._linger()
        elif not request.keep_alive or self._router.stopping or (self._ended and not self._requests):
            self._linger() if self._requests else self._transport.close()
        elif self._held:
            self._hold()

    def _linger(self) -> None:
        """Say that this was all, and drop what still comes for a while: a reset would destroy the answer."""
        self._deaf = self._lingering = True
        self._requests.clear()
        if self._transport is not None:
            self._transport.write_eof()
            self._transport.resume_reading()

    # -- guards -------------------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """The timers."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._out.stalled(now):
            return self._transport.abort()
        self._sound(self._transport)
        if self._lingering:
            if now - self._head_at > LINGER_SECONDS:
                self._transport.abort()
        elif not self._requests:
            if self._between and now - self._heard_at > IDLE_SECONDS:
                self._transport.close()
            elif not self._between and now - self._head_at > HEAD_SECONDS:
                self._refuse(408, f"cannot wait for the request: its head took over {HEAD_SECONDS:g} s")
        else:
            if self._out.held:
                self._heard_at = now
            elif not self._requests[0].complete and now - self._heard_at > STALL_SECONDS:
                self._refuse(408, f"cannot wait for the request: its body stood still for {STALL_SECONDS:g} s")
            if self._exchange:
                self._exchange.look(now)

    def _sound(self, transport: asyncio.Transport) -> None:
        held = self._held or self._out.held
        if held and self._sounding is None:
            self._sounding = Sounding(transport, self._nudge)
        elif self._sounding and not held and not self._ended:
            self._sounding.stop()
            self._sounding = None

    def _hold(self) -> None:
        """Read no more while much waits behind the request that is being answered."""
        waiting = self._requests[1:]
        held = len(waiting) > AHEAD_REQUESTS or sum(len(each.body) for each in waiting) > AHEAD_BYTES
        if self._transport is not None and held != self._held:
            self._held = held
            self._transport.pause_reading() if held else self._transport.resume_reading()

    def _check_overhead(self, request: Request) -> None:
        if not http1.overhead_allowed(self._raw, request.size):
            self._refuse(400, "cannot read the request: its chunks are mostly overhead")

    def _refuse(self, status: int, text: str) -> None:
        """Answer this in its turn, as the last: what comes after it can't be told from anything."""
        if self._deaf or self._transport is None or self._transport.is_closing():
            return
        self._deaf = True
        if not self._requests or self._requests[-1].complete:
            self._requests.append(Request.unread(time.monotonic()))
        request = self._requests[-1]
        request.reply = request.reply or refusal(status, text)
        if self._serving and request is self._requests[0]:  # its upload was on its way to the engine
            self._stop()
            if self._out.begun:
                return self._transport.abort()
        self._next()
