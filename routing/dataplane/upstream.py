"""One connection to an engine, and the idle ones kept for reuse. Bytes go to the exchange that holds the connection."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection
from typing import Protocol, cast

import httptools

from routing.dataplane import sockets
from routing.table import Endpoint

IDLE_KEPT = 64
#: Up to here a copy is cheaper than a second piece.
JOINED_BYTES = 64 * 1024


class Exchange(Protocol):
    """Who is told what the engine answers."""

    def engine_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...
    def engine_body(self, data: bytes) -> None: ...
    def engine_read(self) -> None:
        """All of one read has been told."""

    def engine_done(self) -> None: ...
    def engine_lost(self) -> None: ...
    def engine_full(self, yes: bool) -> None:
        """Whether the engine takes the request slower than it is sent."""


class Upstream(asyncio.Protocol):
    def __init__(self, pool: "Pool", endpoint: Endpoint) -> None:
        self.pool = pool
        self.endpoint = endpoint
        self.used = False  # it has carried a request before: the engine may have closed it in the meantime
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.sending = False  # the request's body is still on its way

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
        if self.exchange is None:  # bytes that nobody asked for
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
            self._lost()
        if self.exchange is not None:
            self.exchange.engine_read()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.pool.forget(self)
        if self.exchange is not None and exc is None and self._until_close and self._headed:
            self.on_message_complete()  # a body without a length ends with the connection
        self._lost()

    # -- requests -----------------------------------------------------------------------------------------------------

    def begin(self, exchange: Exchange, head: bytes, body: bytes | bytearray) -> None:
        self.exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._headed = False
        self._until_close = True
        self.sending = False
        if len(body) <= JOINED_BYTES:
            self.write(head + body)
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
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    # -- httptools ----------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._headers.append((name, value))
        if name == b"content-length" or name == b"transfer-encoding":
            self._until_close = False

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._headed = True
        if self.exchange is not None:
            self.exchange.engine_head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        if self.exchange is not None:
            self.exchange.engine_body(data)

    def on_message_complete(self) -> None:
        if not self._headed:
            self._headers = []
            return
        exchange, self.exchange = self.exchange, None
        # Asked later, should_keep_alive() is always false: measured 105 instead of 29 us a request.
        # One that has not taken its whole request would take the next one for the rest of it.
        taken = not self.sending and self.transport is not None and not self.transport.get_write_buffer_size()
        if taken and self._parser.should_keep_alive() and not self._until_close:
            self.used = True
            self.pool.give_back(self)
        else:
            self.abort()
        if exchange is not None:
            exchange.engine_done()

    def _lost(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.engine_lost()


class Pool:
    """Idle connections by endpoint address, newest first."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], deque[Upstream]] = defaultdict(deque)

    async def take(self, endpoint: Endpoint, *, connect_seconds: float, fresh: bool = False) -> Upstream:
        """An idle connection, or a new one. Raises OSError or TimeoutError."""
        idle = self._idle[endpoint.address, endpoint.port]
        while idle and not fresh:
            upstream = idle.pop()
            if upstream.transport is not None and not upstream.transport.is_closing():
                upstream.endpoint = endpoint
                return upstream
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_seconds):
            _, upstream = await loop.create_connection(
                lambda: Upstream(self, endpoint), endpoint.address, endpoint.port
            )
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
