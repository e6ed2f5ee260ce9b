"""One client's connection: its requests are answered in turn. A client that leaves cancels them."""

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from routing.dataplane import sockets
from routing.dataplane.answers import Answers
from routing.dataplane.exchange import Proxied
from routing.dataplane.incoming import BROKEN, Incoming
from routing.dataplane.messages import Request, refusal
from routing.dataplane.sounding import Sounding

if TYPE_CHECKING:
    from routing.dataplane.router import Router

#: What may wait behind the request that is being answered: no more is read until its turn.
AHEAD_BYTES = 256 * 1024
AHEAD_REQUESTS = 16

IDLE_SECONDS = 75.0  # between requests
HEAD_SECONDS = 10.0  # from a head's first byte to its last
STALL_SECONDS = 30.0  # an upload may take for ever, but not stand still for longer
LINGER_SECONDS = 5.0  # after a refusal; closing with bytes unread would be a reset, and destroy the answer


class ClientConnection(Incoming):
    def __init__(self, router: "Router") -> None:
        super().__init__(router)
        self._serving = False  # the first is
        self._stepping = False  # _next() is at work
        self._task: asyncio.Task[None] | None = None  # of a request that waits for its turn at a model
        self._out = Answers(router.cors)
        self._ended = False  # the client has said all
        self._sounding: Sounding | None = None  # after that, and while nothing is read
        self._lingering = self._held = False
        self._full = False  # the client does not take its answers as fast as they come

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
            if self._requests and self._requests[0].head.http11:  # HTTP/1.0 knows no interim answers
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
                        if request.reply is None:
                            self._router.serve(self, request, self._out)
                        else:
                            self._router.said(request, self._out.whole(request.reply))
                            self.answered(request)
                    except Exception as error:
                        self._router.broken(self, request, error)
                else:
                    if request.expects and not request.size:
                        self._out.proceed()
                    request.expects = False
                    return
        finally:
            self._stepping = False

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
