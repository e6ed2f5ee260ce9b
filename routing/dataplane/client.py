"""One client's connection: requests in, one after the other, and back pressure. A client that leaves cancels them."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import httptools

from routing.dataplane.answers import Answers
from routing.dataplane.exchange import Proxied
from routing.dataplane.messages import Request, refusal
from routing.dataplane.sounding import Sounding
from routing.domain import http1

if TYPE_CHECKING:
    from routing.dataplane.router import Router

HEAD_BYTES = 32 * 1024
HEAD_SECONDS = 10.0
BODY_BYTES = 64 * 1024 * 1024


class ClientConnection(asyncio.Protocol):
    def __init__(self, router: "Router") -> None:
        self._router = router
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._out = Answers()
        self._exchange: Proxied | None = None
        self._sounding: Sounding | None = None  # after the client's end
        self._fresh()

    def _fresh(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._offered = False
        self._parts: list[bytes] = []
        self._size = 0

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self._out.transport = cast(asyncio.Transport, transport)  # uvloop's own class is none of it
        self._router.clients.add(self)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._out.transport = None
        if self._sounding:
            self._sounding.stop()
        self._router.clients.discard(self)
        if self._timer:
            self._timer.cancel()
        if self._task:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        while data and self._transport is not None and not self._transport.is_closing():
            try:
                return self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._without_offer() + data[offer.args[0] :]
            except httptools.HttpParserError as error:
                return self._refuse(400, f"cannot read the request: {error}")

    def _without_offer(self) -> bytes:
        """The head just read, without its offer to upgrade, for a new parser: the old one would take no body."""
        head = http1.without_offer(self._parser.get_method(), self._url, self._parser.get_http_version(), self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self._fresh()
        return head

    def eof_received(self) -> bool:
        """Whether the connection stays open for the answers under way; HTTP/1.0 has nothing to sound a client with."""
        if self._task is None or self._transport is None or self._out.request is None or not self._out.request.http11:
            return False
        self._sounding = Sounding(self._transport, self._nudge)
        return True

    def _nudge(self) -> None:
        if self._transport is None or self._transport.get_write_buffer_size():
            return  # what waits there sounds by itself
        if not self._out.begun:
            self._out.proceed()
        elif self._exchange:
            self._exchange.nudge()

    def pause_writing(self) -> None:
        if self._exchange:
            self._exchange.pause()

    def resume_writing(self) -> None:
        if self._exchange:
            self._exchange.resume()

    def close_when_idle(self) -> bool:
        """Close now unless an answer is under way; whether it was closed."""
        if self._task is None and self._transport is not None:
            self._transport.close()
            return True
        return False

    # -- httptools ----------------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._offered = self._parser.should_upgrade()
        if self._offered:
            if self._parser.get_method() == b"CONNECT":
                self._refuse(405, "cannot CONNECT: this is no proxy")
            return
        names = [name.lower() for name, _ in self._headers]
        lengths = names.count(b"content-length")
        if lengths > 1 or (lengths and b"transfer-encoding" in names) or names.count(b"transfer-encoding") > 1:
            return self._refuse(400, "cannot read the request: its length is given twice")  # request smuggling
        if any(name == b"expect" for name in names) and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > BODY_BYTES:
            return self._refuse(413, f"cannot take a body over {BODY_BYTES} bytes")
        self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._offered or self._transport is None or self._transport.is_closing():
            return
        keep_alive = self._parser.should_keep_alive()  # only here does it tell the truth
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            method=self._parser.get_method().decode(),
            path=unquote(path),
            query=query,
            headers=self._headers,
            body=b"".join(self._parts),
            http11=self._parser.get_http_version() == "1.1",
            keep_alive=keep_alive,
        )
        given = next((value for name, value in self._headers if name.lower() == b"x-request-id"), b"")
        if given and len(given) <= 128:
            request.id = given.decode("latin-1")
        self._fresh()
        if self._timer:
            self._timer.cancel()
        self._waiting.append(request)
        if self._task is None:
            self._next()
        elif len(self._waiting) > 16:
            self._transport.pause_reading()

    # -- one request after the other ----------------------------------------------------------------------------------

    def _next(self) -> None:
        if self._waiting:
            request = self._waiting.popleft()
            self._out.expect(request)
            self._task = asyncio.get_running_loop().create_task(self._serve(request))
            if self._transport and len(self._waiting) <= 8:
                self._transport.resume_reading()
        elif self._sounding and self._transport:
            self._transport.close()
        else:
            self._watch_head()

    async def _serve(self, request: Request) -> None:
        try:
            await self._router.serve(self, request, self._out)
        except asyncio.CancelledError:
            return
        except Exception as error:
            self._router.broken(request, error)
            if not self._out.begun:
                self._out.whole(refusal(500, "cannot serve the request: an error inside the router"))
            elif self._transport:
                self._transport.abort()
        self._exchange = None
        self._task = None
        if self._transport is None or self._transport.is_closing():
            return
        if not request.keep_alive or self._router.stopping:
            self._transport.close()
        else:
            self._next()

    def bind(self, exchange: "Proxied | None") -> None:
        self._exchange = exchange

    # -- guards -------------------------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, f"cannot take a request head over {HEAD_BYTES} bytes")

    def _watch_head(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS * 6, self._idle)

    def _idle(self) -> None:
        if self._transport is not None and self._task is None:
            self._transport.close()

    def _refuse(self, status: int, text: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._task is None:
            self._out.expect(Request(method="", path="", query="", headers=[], keep_alive=False))
            self._out.whole(refusal(status, text))
        self._transport.close()
