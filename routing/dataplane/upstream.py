"""One connection to an engine, and the idle ones kept for reuse. Bytes go to the exchange that holds the connection."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any, Protocol, cast

import httptools

from routing.dataplane import sockets
from routing.dataplane.forward import AnswerHead, to_client
from routing.domain import http1
from routing.table import Endpoint

IDLE_KEPT = 64
#: Up to here a copy is cheaper than a second piece.
JOINED_BYTES = 64 * 1024

#: Of an answer's head, interim ones before it included; and of what follows a body's last byte or stands between two
#: of its pieces: sizes, extensions, trailers.
HEAD_BYTES = 64 * 1024


class WrongAnswer(Exception):
    """cannot understand the engine's answer."""


class Exchange(Protocol):
    """Who is told what the engine answers."""

    def engine_head(self, head: AnswerHead, length: int | None) -> None: ...
    def engine_body(self, data: bytes) -> None: ...
    def engine_read(self) -> None:
        """All of one read has been told, and the answer goes on."""

    def engine_done(self) -> None: ...
    def engine_lost(self, wrong: str = "") -> None:
        """`wrong`: what can't be understood of its answer; nothing: its connection has ended."""

    def engine_full(self, yes: bool) -> None:
        """Whether the engine takes the request slower than it is sent."""

    def broken(self, error: Exception) -> None:
        """An error of ours while this was told."""


class Upstream(asyncio.Protocol):
    def __init__(self, pool: "Pool", endpoint: Endpoint) -> None:
        self.pool = pool
        self.endpoint = endpoint
        self.used = False  # it has carried a request before: the engine may have closed it in the meantime
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.sending = False  # the request's body is still on its way
        self._parser: Any = None
        self._paused = False

    # -- asyncio ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class is none of asyncio's
        sockets.of_engine(transport)

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.engine_full(True)

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.engine_full(False)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # bytes that nobody asked for
            self.abort()
            return
        try:
            if self._missing:
                self._take(data)
            elif self._begun or not self._known(data):
                self._parse(data)
            if self._complete:
                self._end()
            elif self.exchange is not None:
                self.exchange.engine_read()
        except Exception as error:
            self.abort()
            exchange.broken(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        try:
            if self.exchange is not None and exc is None and self._until_close and self._headed:
                self._end()  # a body without a length ends with the connection
            self._lost()
        finally:
            self.pool.forget(self)

    # -- requests -----------------------------------------------------------------------------------------------------

    def begin(self, exchange: Exchange, head: bytes, body: bytes | bytearray) -> None:
        self.exchange = exchange
        self._begun = False  # the parser is in the middle of this answer
        self._missing = 0  # of a body that is only counted
        self._headed = False
        self._until_close = True
        self._complete = self._reusable = False
        self.sending = False
        if len(body) <= JOINED_BYTES and self.transport is not None:
            self.transport.write(head + body)
        else:
            self.write(head)
            self.write(body)

    def write(self, data: bytes | bytearray) -> None:
        if self.transport is not None and data:
            self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def _end(self) -> None:
        """The answer is whole. What comes after it in the same read belongs to nobody, least to the next request."""
        exchange, self.exchange = self.exchange, None
        transport = self.transport
        # One that has not taken its whole request would take the next one for the rest of it.
        taken = not self.sending and transport is not None and not transport.get_write_buffer_size()
        if taken and self._reusable:
            self.used = True
            self.pool.give_back(self)
        else:
            self.abort()
        if exchange is not None:
            exchange.engine_done()

    def _lost(self, wrong: str = "") -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.engine_lost(wrong)

    # -- answers whose head is known ----------------------------------------------------------------------------------

    def _known(self, data: bytes) -> bool:
        """Take an answer whose head was understood before, and whose length is known; False for any other."""
        found = http1.apart(data)
        self._apart: bytes | None = None
        if found is None or self.exchange is None:
            return False
        name, length, start = found
        head = self.pool.heads.get(name)
        size = len(data) - start
        if head is None or size > length:
            self._apart = name
            return False
        self._headed, self._reusable, self._until_close = True, True, False
        self._missing = length - size
        self.exchange.engine_head(head, length)
        if size:
            self.exchange.engine_body(data[start:])
        self._complete = size == length
        return True

    def _take(self, data: bytes) -> None:
        over = len(data) - self._missing
        if over > 0:
            self._reusable = False
            data = data[: self._missing]
        self._missing -= len(data)
        if self.exchange is not None:
            self.exchange.engine_body(data)
        self._complete = not self._missing

    # -- all others: httptools ----------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._headers: list[tuple[bytes, bytes]] = []
            self._dry = 0  # what came since the body's last byte
            if self._parser is None:
                self._parser = httptools.HttpResponseParser(self)
        self._dry += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, WrongAnswer):  # what was told by it went wrong on our side
                raise error.__context__ or error
            return self._wrong(str(error.__context__))
        except httptools.HttpParserError as error:
            return self._wrong(f"its answer is no HTTP: {error}")
        if self._dry > HEAD_BYTES and not self._complete:
            self._wrong(f"its answer's {'trailers are' if self._headed else 'head is'} over {HEAD_BYTES} bytes")

    def _wrong(self, what: str) -> None:
        if self._complete:
            self._reusable = False
        else:
            self.abort()
            self._lost(what)

    def on_message_begin(self) -> None:
        if self._complete:
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headed:
            return  # a trailer, which nobody asked for
        name = name.lower()
        self._headers.append((name, value))
        if name == b"content-length" or name == b"transfer-encoding":
            self._until_close = False

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status, fields = self._parser.get_status_code(), dict(self._headers)
        length, coding = fields.get(b"content-length"), fields.get(b"transfer-encoding")
        bodiless = status < 200 or status in (204, 304)
        stray = bodiless and (coding is not None or (length is not None and length.strip(b"0 ") != b""))
        self._check_head(status, coding, stray)
        if status < 200:
            return
        self._headed = True
        self._head = to_client(status, self._headers, fields)
        if length is None or bodiless or coding is not None:
            self._apart = None  # its body does not end where its length says
        if self.exchange is not None:
            self.exchange.engine_head(self._head, None if length is None or bodiless else int(length))
        if stray:  # what follows belongs to no answer, and the connection to nobody
            self._complete = True
        elif bodiless:
            self._until_close = False

    def _check_head(self, status: int, coding: bytes | None, stray: bool) -> None:
        """Raises WrongAnswer for one whose end could be read in two ways, or that no request of ours can get."""
        if self._dry > HEAD_BYTES and sum(len(name) + len(value) for name, value in self._headers) > HEAD_BYTES:
            raise WrongAnswer(f"its answer's head is over {HEAD_BYTES} bytes")
        if not 100 <= status <= 599 or status == 101:
            raise WrongAnswer(f"it answered with the status {status}")
        if status < 200 and stray:
            raise WrongAnswer(f"its interim answer {status} has a body")
        if coding is not None and coding.lower() != b"chunked":
            raise WrongAnswer("its answer's Transfer-Encoding is not chunked")

    def on_body(self, data: bytes) -> None:
        self._dry = 0
        if self.exchange is not None and not self._complete:
            self.exchange.engine_body(data)

    def on_message_complete(self) -> None:
        if not self._headed:  # an interim answer: the one that is meant follows
            self._headers = []
            self._apart, self._until_close = None, True
            return
        if self._complete:
            return
        self._complete = True
        # Asked later, should_keep_alive() is always false: measured 105 instead of 29 us a request.
        self._reusable = self._parser.should_keep_alive() and not self._until_close
        if self._reusable and self._apart is not None and not self._head.streams:
            http1.remember(self.pool.heads, self._apart, self._head)


class Pool:
    """Idle connections by endpoint address, newest first."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], deque[Upstream]] = defaultdict(deque)
        self.heads: dict[bytes, AnswerHead] = {}  # see http1.apart

    def idle(self, endpoint: Endpoint) -> Upstream | None:
        """The idle connection that was used last."""
        idle = self._idle[endpoint.address, endpoint.port]
        while idle:
            upstream = idle.pop()
            if upstream.transport is not None and not upstream.transport.is_closing():
                upstream.endpoint = endpoint
                return upstream
        return None

    async def connect(self, endpoint: Endpoint, *, seconds: float) -> Upstream:
        """A new connection. Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(seconds):
            _, upstream = await loop.create_connection(
                lambda: Upstream(self, endpoint), endpoint.address, endpoint.port
            )
        if upstream.transport is None or upstream.transport.is_closing():
            raise ConnectionResetError  # nobody would be told of its end, which was before its first request
        return upstream

    def keep(self, addresses: Collection[tuple[str, int]]) -> None:
        """Close what is idle elsewhere: nothing will be asked there any more."""
        for address in [each for each in self._idle if each not in addresses]:
            for upstream in self._idle.pop(address):
                upstream.abort()

    def give_back(self, upstream: Upstream) -> None:
        upstream.resume()
        idle = self._idle[upstream.endpoint.address, upstream.endpoint.port]
        if len(idle) >= IDLE_KEPT:
            upstream.abort()
        else:
            idle.append(upstream)

    def forget(self, upstream: Upstream) -> None:
        idle = self._idle.get((upstream.endpoint.address, upstream.endpoint.port))
        if idle and upstream in idle:
            idle.remove(upstream)
