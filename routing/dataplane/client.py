"""One client's connection: requests in, answers out, back pressure. A client that leaves cancels its request."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import httptools

from routing.dataplane.exchange import Client, Proxied, Request
from routing.domain import http1, openai

if TYPE_CHECKING:
    from routing.dataplane.router import Router

HEAD_BYTES = 32 * 1024
HEAD_SECONDS = 10.0
BODY_BYTES = 64 * 1024 * 1024
_REASONS = {200: b"OK", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden"}
_REASONS |= {404: b"Not Found"}
_REASONS |= {405: b"Method Not Allowed", 413: b"Content Too Large", 429: b"Too Many Requests", 431: b"Header Too Large"}
_REASONS |= {500: b"Internal Server Error", 502: b"Bad Gateway", 503: b"Service Unavailable", 408: b"Request Timeout"}


class ClientConnection(asyncio.Protocol):
    def __init__(self, router: "Router") -> None:
        self._router = router
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chunked = False
        self._current: Request | None = None
        self._started = False
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none of asyncio's
        self._router.clients.add(self)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
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

    def pause_writing(self) -> None:
        if self._exchange:
            self._exchange.pause()

    def resume_writing(self) -> None:
        if self._exchange:
            self._exchange.resume()

    _exchange: "Proxied | None" = None

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
            self._current = self._waiting.popleft()
            self._started = False
            self._task = asyncio.get_running_loop().create_task(self._serve(self._current))
            if self._transport and len(self._waiting) <= 8:
                self._transport.resume_reading()
        else:
            self._watch_head()

    async def _serve(self, request: Request) -> None:
        client = Client(head=self._head, body=self._body, end=self._end)
        try:
            await self._router.serve(self, request, client)
        except asyncio.CancelledError:
            return
        except Exception as error:
            self._router.broken(request, error)
            if not self._started:
                self.answer(500, openai.error(500, "cannot serve the request: an error inside the router"))
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

    def cut(self) -> None:
        """The answer can't be completed: the connection's end says so."""
        if self._transport is not None:
            self._transport.close()

    # -- answers ------------------------------------------------------------------------------------------------------

    def answer(self, status: int, body: bytes, *, kind: bytes = b"application/json", headers: tuple = ()) -> None:
        length = str(len(body)).encode()
        self._head(status, [(b"Content-Type", kind), (b"Content-Length", length), *headers], True)
        if self._current is None or self._current.method != "HEAD":
            self._body(body)
        self._end()

    def _head(self, status: int, headers: list[tuple[bytes, bytes]], length_known: bool) -> None:
        if self._transport is None or self._current is None:
            return
        self._started = True
        request = self._current
        self._chunked = not length_known and request.http11 and status not in (204, 304)
        if not length_known and not request.http11:
            request.keep_alive = False
        lines = [b"HTTP/1.1 " + str(status).encode() + b" " + _REASONS.get(status, b"Status") + b"\r\n"]
        lines += [name + b": " + value + b"\r\n" for name, value in headers]
        lines.append(b"X-Request-Id: " + request.id.encode("latin-1") + b"\r\n")
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if not request.keep_alive:
            lines.append(b"Connection: close\r\n")
        self._transport.write(b"".join(lines) + b"\r\n")

    def _body(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _end(self) -> None:
        if self._transport is not None and self._chunked:
            self._transport.write(b"0\r\n\r\n")
        self._chunked = False

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
            body = openai.error(status, text)
            head = f"HTTP/1.1 {status} ".encode() + _REASONS.get(status, b"Error")
            length = str(len(body)).encode()
            self._transport.write(
                head
                + b"\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
                + length
                + b"\r\n\r\n"
                + body
            )
        self._transport.close()
