"""Writes one client's answers, one after the other. An exchange speaks to its client through it."""

import asyncio
from http import HTTPStatus

from routing.dataplane.messages import Headers, Reply, Request

_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Answers:
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.request: Request | None = None
        self.begun = False  # the head of this request's answer is out
        self._chunked = False

    def expect(self, request: Request) -> None:
        self.request = request
        self.begun = False

    def proceed(self) -> None:
        """An interim answer; clients take any number of them before the final one (RFC 9110, 15.2)."""
        if self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def head(self, status: int, headers: Headers, length_known: bool) -> None:
        if self.transport is None or self.request is None:
            return
        self.begun = True
        request = self.request
        self._chunked = not length_known and request.http11 and status not in (204, 304)
        if not length_known and not request.http11:
            request.keep_alive = False
        lines = [_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status]
        lines += [name + b": " + value + b"\r\n" for name, value in headers]
        lines.append(b"X-Request-Id: " + request.id.encode("latin-1") + b"\r\n")
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if not request.keep_alive:
            lines.append(b"Connection: close\r\n")
        self.transport.write(b"".join(lines) + b"\r\n")

    def body(self, data: bytes) -> None:
        if self.transport is not None and data:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        if self.transport is not None and self._chunked:
            self.transport.write(b"0\r\n\r\n")
        self._chunked = False

    def cut(self) -> None:
        """The answer can't be completed: the connection's end says so."""
        if self.transport is not None:
            self.transport.close()

    def whole(self, reply: Reply) -> int:
        """Write it all; the status."""
        length = str(len(reply.body)).encode()
        self.head(reply.status, [(b"Content-Type", reply.kind), (b"Content-Length", length), *reply.headers], True)
        if self.request is not None and self.request.method != "HEAD":
            self.body(reply.body)
        self.end()
        return reply.status
